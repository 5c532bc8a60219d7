"""Resolve `*_env` keys to secrets, refuse literal secrets, and separate the keys of plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from everhold.config.errors import ConfigProblem, KeyPath, ProblemCause, format_key_path
from everhold.config.literals import (
    has_url_password,
    is_env_name,
    is_secret_key,
    is_secret_like,
    parse_env_reference,
    suggest_env_name,
)
from everhold.config.secrets import SecretEnvironment
from everhold.config.settings import PluginConfigSection, list_given_fields
from everhold.config.source import YamlDocument
from everhold.config.values import ConfigSection, freeze_value
from everhold.infra.secret import SecretString

RawSection: TypeAlias = dict[str, Any]
ReadPersona: TypeAlias = Callable[[str], str]

PLACEHOLDER_SECRET: Final = SecretString("not-set")
"""Stands for a missing secret when a plug-in validates its section."""


@dataclass(frozen=True, slots=True)
class PluginSection:
    """A part of the configuration that belongs to a plug-in."""

    group: str
    plugin: str
    path: KeyPath
    raw: Mapping[str, Any]
    unset: frozenset[KeyPath]
    """Keys, also nested ones, whose secret is missing. Problems with their values are not reported."""

    def is_missing_secret(self, path: KeyPath) -> bool:
        """Whether `path` leads to a secret that is missing, or into one."""
        return any(path[: len(key)] == key for key in self.unset)


@dataclass(slots=True)
class ResolvedConfig:
    """The resolved configuration before validation, with the origin of each value in the file."""

    document: YamlDocument
    environment: SecretEnvironment
    read_persona: ReadPersona
    env_file: str = ".env"
    data: RawSection = field(default_factory=dict)
    sections: list[PluginSection] = field(default_factory=list)
    problems: list[ConfigProblem] = field(default_factory=list)
    origins: dict[KeyPath, tuple[KeyPath, ...]] = field(default_factory=dict)
    personas: dict[str, str] = field(default_factory=dict)
    missing_secrets: dict[KeyPath, set[KeyPath]] = field(default_factory=dict)
    """Section -> the secrets among its plug-in's own keys that are not set."""

    def get_origin(self, path: KeyPath) -> KeyPath:
        """Return the path in the file of the value at the resolved `path`, or where it would be written."""
        for length in range(len(path), 0, -1):
            if path[:length] not in self.origins:
                continue
            places = [place + path[length:] for place in self.origins[path[:length]]]
            for place in places:
                if place in self.document.lines:
                    return place
            return places[0]
        return path

    def report_problem(
        self, path: KeyPath, message: str, remedy: str = "", *, fatal: bool = True, disables: KeyPath = ()
    ) -> None:
        self.add_problem(ConfigProblem(message, remedy, path=path, fatal=fatal, disables=format_key_path(disables)))

    def add_problem(self, problem: ConfigProblem) -> None:
        path = self.get_origin(problem.path)
        self.problems.append(replace(problem, path=path, file=self.document.file, line=self.document.find_line(path)))


def remove_nulls(value: Any) -> Any:
    """Return `value` without nulls, because null means "not given"."""
    if isinstance(value, dict):
        return {key: remove_nulls(item) for key, item in value.items() if item is not None}
    return tuple(remove_nulls(item) for item in value) if isinstance(value, tuple) else value


def reject_secret_literals(it: ResolvedConfig, value: Any, path: KeyPath) -> Any:
    """Report literal secrets, and continue as if a variable had been named instead."""
    if isinstance(value, dict):
        kept: RawSection = {}
        for key, item in value.items():
            place = (*path, key)
            if is_secret_like(key):
                it.report_problem(
                    place, "looks like a secret, which must not be in this file", f"write it to {it.env_file}"
                )
            elif _is_secret_literal(key, item, path):
                _report_secret_literal(it, place, str(item))
                kept[f"{key}_env"] = suggest_env_name(place)
            else:
                kept[key] = reject_secret_literals(it, item, place)
        return kept
    if isinstance(value, tuple):
        return tuple(reject_secret_literals(it, item, (*path, place)) for place, item in enumerate(value))
    if isinstance(value, str) and is_secret_like(value):
        last = str(path[-1]) if path and isinstance(path[-1], str) else ""
        if last.endswith("_env"):
            _report_secret_literal(it, (*path[:-1], last.removesuffix("_env")), value, at=path)
            return suggest_env_name((*path[:-1], last.removesuffix("_env")))
        _report_secret_shape(it, path, value)
        return ""
    return value


def _is_secret_literal(key: str, value: Any, path: KeyPath) -> bool:
    if path[:1] == ("mcp",) and path[-1] == "effects":
        return False
    return is_secret_key(key) and isinstance(value, str | int) and not isinstance(value, bool) and value != ""


def _report_secret_literal(it: ResolvedConfig, path: KeyPath, value: str, *, at: KeyPath | None = None) -> None:
    key = path[-1]
    name = parse_env_reference(value)
    if name is not None:
        it.report_problem(at or path, "holds the name of a variable", f"write {key}_env: {name}")
        return
    name = suggest_env_name(path)
    it.report_problem(
        at or path,
        "holds a secret, which must not be in this file",
        f"write {key}_env: {name} here, and in {it.env_file} the line {name}=…",
    )


def _report_secret_shape(it: ResolvedConfig, path: KeyPath, value: str) -> None:
    name = suggest_env_name(path)
    if has_url_password(value):
        it.report_problem(
            path, "holds a password", f"take it out of the URL: password_env: {name}, and in {it.env_file} {name}=…"
        )
        return
    it.report_problem(
        path,
        "looks like a secret, which must not be in this file",
        f"write it to {it.env_file} as {name}=… and name the variable in a key that ends in _env",
    )


def resolve_secret(
    it: ResolvedConfig, name: Any, path: KeyPath, needs: KeyPath | None
) -> tuple[SecretString | None, str]:
    """Return the secret of a `*_env` key and the variable's name (empty if the name is invalid)."""
    if not is_env_name(name):
        it.report_problem(
            path, "is not the name of an environment variable", f"write NAME here and NAME=… in {it.env_file}"
        )
        return None, ""
    secret = it.environment.get(name)
    if secret is None and needs is not None:
        it.add_problem(
            ConfigProblem(
                f"{name} is not set",
                f"add the line {name}=… to {it.env_file}",
                path=path,
                fatal=False,
                disables=format_key_path(needs),
                cause=ProblemCause.MISSING_KEY,
            )
        )
    return secret, name


def resolve_section(
    it: ResolvedConfig, raw: RawSection, model: type[ConfigSection], path: KeyPath, *, needs: KeyPath | None
) -> RawSection:
    """Resolve the secrets of a section, and move the plug-in's own keys to `=extra`.

    `needs` is what a missing secret disables. With None, a missing secret is not reported.
    """
    known = set(list_given_fields(model))
    filled: RawSection = {}
    extra: RawSection = {}
    missing: list[str] = []
    for key, value in remove_nulls(raw).items():
        if key not in known and issubclass(model, PluginConfigSection):
            extra[key] = value
            continue
        filled[key] = value
        if key in known and key.endswith("_env"):
            secret, name = resolve_secret(it, value, (*path, key), needs)
            filled[f"={key.removesuffix('_env')}"] = secret
            if not name:
                filled[key] = "REFUSED"
            elif secret is None:
                missing.append(name)
    if issubclass(model, PluginConfigSection):
        env: dict[str, str] = {}
        filled["=extra"] = freeze_value(_resolve_nested_secrets(it, extra, path, (), env, missing, needs))
        filled["=env"] = freeze_value(env)
    filled["=missing"] = tuple(dict.fromkeys(missing))
    return filled


def _resolve_nested_secrets(
    it: ResolvedConfig,
    value: Any,
    path: KeyPath,
    inner: KeyPath,
    env: dict[str, str],
    missing: list[str],
    needs: KeyPath | None,
) -> Any:
    """Return `value` with each `X_env: NAME` replaced by `X: SecretString`. X is left out if NAME is not set."""
    if isinstance(value, tuple):
        return tuple(
            _resolve_nested_secrets(it, item, path, (*inner, place), env, missing, needs)
            for place, item in enumerate(value)
        )
    if not isinstance(value, dict):
        return value
    opened: RawSection = {}
    for key, item in value.items():
        bare = key.removesuffix("_env")
        if bare == key or not bare:
            opened[key] = _resolve_nested_secrets(it, item, path, (*inner, key), env, missing, needs)
            continue
        secret, name = resolve_secret(it, item, (*path, *inner, key), needs)
        if name:
            env[format_key_path((*inner, bare))] = name
            if secret is None:
                missing.append(name)
                it.missing_secrets.setdefault(path, set()).add((*inner, bare))
        if secret is not None:
            opened[bare] = secret
    return opened


def add_section(it: ResolvedConfig, group: str, plugin: Any, path: KeyPath, filled: RawSection) -> None:
    """Record a plug-in's section for its validation: as written, with `X: SecretString` for each `X_env`."""
    if not isinstance(plugin, str):
        return
    absent = set(it.missing_secrets.get(path, ()))
    raw: RawSection = _fill_placeholders(filled["=extra"], (), absent)
    for key, value in filled.items():
        if key.startswith("="):
            continue
        if not key.endswith("_env"):
            raw[key] = value
            continue
        name = key.removesuffix("_env")
        secret = filled.get(f"={name}")
        raw[name] = secret if isinstance(secret, SecretString) else PLACEHOLDER_SECRET
        if not isinstance(secret, SecretString):
            absent.add((name,))
    unset = absent | {(*inner, f"{name}_env") for *inner, name in absent}
    it.sections.append(PluginSection(group, plugin, path, raw, frozenset(unset)))


def _fill_placeholders(value: Any, inner: KeyPath, absent: set[KeyPath]) -> Any:
    """Return a copy of `value` with a placeholder for each missing secret."""
    if isinstance(value, tuple):
        return tuple(_fill_placeholders(item, (*inner, place), absent) for place, item in enumerate(value))
    if not isinstance(value, Mapping):
        return value
    kept = {key: _fill_placeholders(item, (*inner, key), absent) for key, item in value.items()}
    return {**{str(key[-1]): PLACEHOLDER_SECRET for key in absent if key[:-1] == inner}, **kept}
