"""From the files of a home to one frozen Settings, or to everything that is wrong with them at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from everhold.config.checks import check
from everhold.config.display import to_yaml
from everhold.config.expand import expand, written
from everhold.config.explain import UNKNOWN_KEY, problems_of
from everhold.config.fill import Effective, ReadPersona
from everhold.config.problems import ConfigError, KeyPath, Problem
from everhold.config.revision import model_signature_of, revision_of, signature_of
from everhold.config.secrets import Environment, EnvLine, parse_env
from everhold.config.settings import Settings, ValidatePlugin
from everhold.config.sight import Mark, Seen, digest_of, mark_of
from everhold.config.source import read
from everhold.config.values import freeze
from everhold.core.builtin_tools import SELECTABLE_TOOLS
from everhold.home import READ_LIMIT, Home, read_file, write_file

SALT_BYTES: Final = 32
PERSONA_LIMIT: Final = 256 << 10


def load(
    home: Home,
    *,
    environ: Mapping[str, str],
    validate_plugin: ValidatePlugin | None = None,
    last_good: bool = False,
    text: bytes | None = None,
    random_bytes: Callable[[int], bytes] = os.urandom,
    mark: Callable[[Path], Mark | None] = mark_of,
) -> Settings:
    """What the files in `home` say. Raises ConfigError with everything that is wrong.

    `last_good` starts from the stored configuration instead of config.yaml; `text` stands in for config.yaml (to look
    before writing). The environment wins over `.env`.
    """
    file = home.last_good if last_good else home.config
    reader = _Reader(mark)
    problems: list[Problem] = []
    lines: list[EnvLine] = []
    data: bytes | None = None
    reader.glance(home.path)
    try:
        home.check()
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
        problems.append(Problem("there is none yet", "start without --last-good", file=str(file)))
    try:
        return parse(
            data or b"",
            environment=Environment(environ, lines),
            validate_plugin=validate_plugin,
            read_persona=lambda name: reader.text(home.path / os.path.expanduser(name)),
            file=str(file),
            env_file=str(home.env),
            salt=_salt(home, random_bytes),
            problems=problems,
        ).model_copy(update={"seen": freeze(reader.seen)})
    except ConfigError as error:
        raise ConfigError(error.problems, seen=reader.seen) from None


def parse(
    text: str | bytes,
    *,
    environment: Environment | None = None,
    validate_plugin: ValidatePlugin | None = None,
    read_persona: ReadPersona | None = None,
    file: str = "config.yaml",
    env_file: str = ".env",
    salt: bytes = b"",
    problems: list[Problem] | None = None,
) -> Settings:
    """What `text` says, touching nothing else. `problems` are those already known; they are told with the rest."""
    document = read(text, file=file)
    found = [*(problems or ()), *document.problems]
    if document.root is None and document.problems:
        raise ConfigError(found)
    it = expand(document, environment or Environment({}), read_persona or _no_files, env_file=env_file)
    check(it)
    settings = _validated(it)
    if validate_plugin is not None:
        _ask_plugins(it, validate_plugin)
    found += it.problems
    fatal = [problem for problem in found if problem.fatal]
    if fatal or settings is None:
        raise ConfigError(fatal)
    told = tuple(sorted(set(found), key=lambda problem: (problem.line, problem.key, problem.message)))
    return settings.model_copy(
        update={
            "problems": told,
            "document": written(it),
            "revision": revision_of(settings, salt=salt),
            "signatures": freeze(
                {name: signature_of(settings, agent, salt=salt) for name, agent in settings.agents.items()}
            ),
            "model_signatures": freeze(
                {name: model_signature_of(model, salt=salt) for name, model in settings.models.items()}
            ),
        }
    )


def keep_last_good(home: Home, settings: Settings) -> bool:
    """Store what is in force for `up --last-good`; whether there was anything to write. Raises OSError."""
    text = f"# What was in force last, revision {settings.revision}. Written by everhold for `up --last-good`.\n"
    data = (text + to_yaml(settings.document)).encode()
    try:
        if read_file(home.last_good, private=True) == data:
            return False
    except ConfigError:
        pass  # whatever stands there is replaced
    write_file(home.last_good, data)
    return True


def _validated(it: Effective) -> Settings | None:
    try:
        return Settings.model_validate(it.data)
    except ValidationError as error:
        known = {(problem.path, problem.message) for problem in it.problems}
        for problem in problems_of(error, Settings):
            if (it.origin(problem.path), problem.message) not in known:
                it.add(problem)
        return None


def _ask_plugins(it: Effective, validate: ValidatePlugin) -> None:
    refused: set[tuple[str, str]] = set()
    for section in it.sections:
        for problem in validate(section.group, section.plugin, section.raw):
            if section.silent(problem.path) and problem.message != UNKNOWN_KEY:
                continue
            if not problem.path and not problem.fatal:  # about the plug-in as such: said once, where it is chosen
                if (section.group, section.plugin) in refused:
                    continue
                refused.add((section.group, section.plugin))
                provider = (*section.path, "provider")
                path = provider if it.origin(provider) in it.document.lines else section.path
                it.add(replace(problem, path=path))
                continue
            it.add(replace(problem, path=(*section.path, *problem.path)))
    for tool, path in _plain_tools(it).items():
        for problem in validate("tools", tool, {}):
            if " " in tool and not problem.fatal:
                problem = replace(problem, remedy="separate names with commas: [memory, attach]")
            it.add(replace(problem, path=("tools", tool, *problem.path) if problem.path else path))


def _plain_tools(it: Effective) -> dict[str, KeyPath]:
    """The plug-ins that agents name as tools and that have no section of their own, and where they are named."""
    tools: dict[str, KeyPath] = {}
    agents, sections = it.data.get("agents"), it.data.get("tools")
    known = {*SELECTABLE_TOOLS, *(sections if isinstance(sections, dict) else ())}
    for name, agent in agents.items() if isinstance(agents, dict) else ():
        listed = agent.get("tools") if isinstance(agent, dict) else None
        for place, tool in enumerate(listed if isinstance(listed, tuple) else ()):
            if isinstance(tool, str) and tool not in known and not tool.startswith("mcp:"):
                tools.setdefault(tool, ("agents", name, "tools", place))
    return tools


def _no_files(name: str) -> str:
    raise ConfigError([Problem("there is no home to read it from", "write {text: …}")])


class _Reader:
    """Reads files and remembers how they looked before."""

    def __init__(self, mark: Callable[[Path], Mark | None]) -> None:
        self.seen: dict[Path, Seen] = {}
        self._mark = mark

    def glance(self, path: Path) -> None:
        """Remember how something looks that is not read."""
        self.seen[path] = Seen(self._mark(path), b"")

    def read(self, path: Path, *, private: bool = False, limit: int = READ_LIMIT) -> bytes | None:
        mark = self._mark(path)
        self.seen[path] = Seen(mark, b"")
        data = read_file(path, private=private, limit=limit)
        self.seen[path] = Seen(mark if data is not None else None, digest_of(data))
        return data

    def text(self, path: Path) -> str:
        try:
            data = self.read(path, limit=PERSONA_LIMIT)
        except ValueError as error:
            raise ConfigError([Problem(f"is not a path ({error})")]) from None
        if data is None:
            raise ConfigError([Problem("there is no such file")])
        try:
            return data.decode("utf-8-sig").strip()
        except UnicodeDecodeError:
            raise ConfigError([Problem("is not UTF-8 text", "save the file as UTF-8")]) from None


def _salt(home: Home, random_bytes: Callable[[int], bytes]) -> bytes:
    """What a home's revisions are keyed with. A home that does not exist, or cannot be written, does without."""
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
