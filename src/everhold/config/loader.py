"""Load the files of a home into one frozen Settings, or raise ConfigError with all problems."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from everhold.config.checks import check_consistency
from everhold.config.display import to_yaml
from everhold.config.errors import ConfigError, ConfigProblem, KeyPath
from everhold.config.file_stamp import FileMark, SeenFile, compute_file_digest, read_file_mark
from everhold.config.resolve import build_last_good_document, resolve_document
from everhold.config.revision import compute_agent_signature, compute_model_signature, compute_revision
from everhold.config.secret_resolution import ReadPersona, ResolvedConfig
from everhold.config.secrets import EnvLine, SecretEnvironment, parse_env
from everhold.config.settings import Settings, ValidatePlugin
from everhold.config.source import read_document
from everhold.config.validation_messages import UNKNOWN_KEY, explain_empty_unknown_keys, explain_validation_error
from everhold.config.values import freeze_value
from everhold.core.builtin_tools import SELECTABLE_TOOLS
from everhold.infra.home import MAX_READ_BYTES, Home, read_file, write_file

SALT_BYTES: Final = 32
MAX_PERSONA_BYTES: Final = 256 << 10


def load_settings(
    home: Home,
    *,
    environ: Mapping[str, str],
    validate_plugin: ValidatePlugin | None = None,
    last_good: bool = False,
    text: bytes | None = None,
    random_bytes: Callable[[int], bytes] = os.urandom,
    mark: Callable[[Path], FileMark | None] = read_file_mark,
) -> Settings:
    """Load the configuration of `home`. Raises ConfigError with all problems.

    `last_good` reads the stored last good configuration instead of config.yaml. `text` replaces the content of
    config.yaml, to validate it before writing. The environment overrides `.env`.
    """
    file = home.last_good if last_good else home.config
    reader = _ConfigFileReader(mark)
    problems: list[ConfigProblem] = []
    lines: list[EnvLine] = []
    data: bytes | None = None
    reader.record_mark(home.path)
    try:
        home.check_private()
    except ConfigError as error:
        problems += error.problems
    try:
        data = reader.read(file) if text is None else text
    except ConfigError as error:
        problems += error.problems
    try:
        secrets = reader.read(home.env, private=True)
    except ConfigError as error:
        problems += error.problems
    else:
        lines, found = parse_env(secrets or b"", file=str(home.env))
        problems += found
    if last_good and data is None and not problems:
        problems.append(ConfigProblem("there is none yet", "start without --last-good", file=str(file)))
    try:
        return parse_settings(
            data or b"",
            environment=SecretEnvironment(environ, lines),
            validate_plugin=validate_plugin,
            read_persona=lambda name: reader.read_text(home.path / os.path.expanduser(name)),
            file=str(file),
            env_file=str(home.env),
            salt=_load_salt(home, random_bytes),
            problems=problems,
        ).model_copy(update={"seen": freeze_value(reader.seen_files)})
    except ConfigError as error:
        raise ConfigError(error.problems, seen=reader.seen_files) from None


def parse_settings(
    text: str | bytes,
    *,
    environment: SecretEnvironment | None = None,
    validate_plugin: ValidatePlugin | None = None,
    read_persona: ReadPersona | None = None,
    file: str = "config.yaml",
    env_file: str = ".env",
    salt: bytes = b"",
    problems: list[ConfigProblem] | None = None,
) -> Settings:
    """Parse `text` without reading any file. `problems` that are already known are reported with the rest."""
    document = read_document(text, file=file)
    found = [*(problems or ()), *document.problems]
    if document.root is None and document.problems:
        raise ConfigError(found)
    it = resolve_document(
        document, environment or SecretEnvironment({}), read_persona or _refuse_persona_file, env_file=env_file
    )
    check_consistency(it)
    settings = _validate_settings(it)
    if validate_plugin is not None:
        _validate_plugins(it, validate_plugin)
    found += it.problems
    fatal = [problem for problem in found if problem.fatal]
    if fatal or settings is None:
        raise ConfigError(fatal)
    reported = tuple(sorted(set(found), key=lambda problem: (problem.line, problem.key, problem.message)))
    return settings.model_copy(
        update={
            "problems": reported,
            "document": build_last_good_document(it),
            "revision": compute_revision(settings, salt=salt),
            "signatures": freeze_value(
                {name: compute_agent_signature(settings, agent, salt=salt) for name, agent in settings.agents.items()}
            ),
            "model_signatures": freeze_value(
                {name: compute_model_signature(model, salt=salt) for name, model in settings.models.items()}
            ),
        }
    )


def store_last_good(home: Home, settings: Settings) -> bool:
    """Store the configuration in force for `up --last-good`. Returns whether the file changed. Raises OSError."""
    text = f"# The last valid configuration, revision {settings.revision}. Written by everhold for `up --last-good`.\n"
    data = (text + to_yaml(settings.document)).encode()
    try:
        if read_file(home.last_good, private=True) == data:
            return False
    except ConfigError:
        pass  # an unreadable file is replaced
    write_file(home.last_good, data)
    return True


def _validate_settings(it: ResolvedConfig) -> Settings | None:
    for problem in explain_empty_unknown_keys(it.document.data, Settings):
        it.add_problem(problem)
    try:
        return Settings.model_validate(it.data)
    except ValidationError as error:
        known = {(problem.path, problem.message) for problem in it.problems}
        for problem in explain_validation_error(error, Settings):
            if (it.get_origin(problem.path), problem.message) not in known:
                it.add_problem(problem)
        return None


def _validate_plugins(it: ResolvedConfig, validate: ValidatePlugin) -> None:
    refused: set[tuple[str, str]] = set()
    for section in it.sections:
        for problem in validate(section.group, section.plugin, section.raw):
            if section.is_missing_secret(problem.path) and problem.message != UNKNOWN_KEY:
                continue
            if not problem.path and not problem.fatal:  # about the plug-in itself: reported once, where it is chosen
                if (section.group, section.plugin) in refused:
                    continue
                refused.add((section.group, section.plugin))
                provider = (*section.path, "provider")
                path = provider if it.get_origin(provider) in it.document.lines else section.path
                it.add_problem(replace(problem, path=path))
                continue
            it.add_problem(replace(problem, path=(*section.path, *problem.path)))
    for tool, path in _list_plain_tools(it).items():
        for problem in validate("tools", tool, {}):
            if " " in tool and not problem.fatal:
                problem = replace(problem, remedy="separate names with commas: [memory, attach]")
            it.add_problem(replace(problem, path=("tools", tool, *problem.path) if problem.path else path))


def _list_plain_tools(it: ResolvedConfig) -> dict[str, KeyPath]:
    """Return the plug-ins that agents list as tools without a section of their own, and where they are listed."""
    tools: dict[str, KeyPath] = {}
    agents, sections = it.data.get("agents"), it.data.get("tools")
    known = {*SELECTABLE_TOOLS, *(sections if isinstance(sections, dict) else ())}
    for name, agent in agents.items() if isinstance(agents, dict) else ():
        listed = agent.get("tools") if isinstance(agent, dict) else None
        for place, tool in enumerate(listed if isinstance(listed, tuple) else ()):
            if isinstance(tool, str) and tool not in known and not tool.startswith("mcp:"):
                tools.setdefault(tool, ("agents", name, "tools", place))
    return tools


def _refuse_persona_file(name: str) -> str:
    raise ConfigError([ConfigProblem("there is no home to read it from", "write {text: …}")])


class _ConfigFileReader:
    """Reads files and records their state before reading."""

    def __init__(self, mark: Callable[[Path], FileMark | None]) -> None:
        self.seen_files: dict[Path, SeenFile] = {}
        self._mark = mark

    def record_mark(self, path: Path) -> None:
        """Record the state of a path that is not read."""
        self.seen_files[path] = SeenFile(self._mark(path), b"")

    def read(self, path: Path, *, private: bool = False, limit: int = MAX_READ_BYTES) -> bytes | None:
        mark = self._mark(path)
        self.seen_files[path] = SeenFile(mark, b"")
        data = read_file(path, private=private, limit=limit)
        self.seen_files[path] = SeenFile(mark if data is not None else None, compute_file_digest(data))
        return data

    def read_text(self, path: Path) -> str:
        try:
            data = self.read(path, limit=MAX_PERSONA_BYTES)
        except ValueError as error:
            raise ConfigError([ConfigProblem(f"is not a path ({error})")]) from None
        if data is None:
            raise ConfigError([ConfigProblem("there is no such file")])
        try:
            return data.decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise ConfigError([ConfigProblem("is not UTF-8 text", "save the file as UTF-8")]) from None


def _load_salt(home: Home, random_bytes: Callable[[int], bytes]) -> bytes:
    """Return the key for the digests of revisions. Empty if the home does not exist or cannot be written."""
    try:
        data = read_file(home.salt, private=True)
        if data is None or len(data) != SALT_BYTES:
            if not home.path.is_dir():
                return b""
            write_file(home.salt, random_bytes(SALT_BYTES))
            data = read_file(home.salt, private=True)
    except (ConfigError, OSError):
        return b""
    return data or b""
