"""Secrets go where variables are named, and are refused where they stand in the open. Plug-ins' keys are put aside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from everhold.config.literals import (
    env_name_for,
    env_reference,
    has_url_password,
    is_env_name,
    is_secret_key,
    looks_secret,
)
from everhold.config.problems import KeyPath, Problem, dotted
from everhold.config.secrets import Environment
from everhold.config.settings import PluginPart, given_fields
from everhold.config.source import Document
from everhold.config.values import Part, freeze
from everhold.secret import Secret

Raw: TypeAlias = dict[str, Any]
ReadPersona: TypeAlias = Callable[[str], str]

STAND_IN: Final = Secret("not-set")
"""What a plug-in validates in place of a secret that is missing."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the configuration that belongs to a plug-in."""

    group: str
    plugin: str
    path: KeyPath
    raw: Mapping[str, Any]
    unset: frozenset[KeyPath]
    """Keys whose secret is missing, however deep: nothing is to be said about their value."""

    def silent(self, path: KeyPath) -> bool:
        """Whether `path` leads to a secret that is missing, or into one."""
        return any(path[: len(key)] == key for key in self.unset)


@dataclass(slots=True)
class Effective:
    """What is meant, ready to be validated, and where each piece of it was written."""

    document: Document
    environment: Environment
    read_persona: ReadPersona
    env_file: str = ".env"
    data: Raw = field(default_factory=dict)
    sections: list[Section] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    origins: dict[KeyPath, tuple[KeyPath, ...]] = field(default_factory=dict)
    personas: dict[str, str] = field(default_factory=dict)
    absent: dict[KeyPath, set[KeyPath]] = field(default_factory=dict)
    """Section -> the secrets among its plug-in's own keys that are not set."""

    def origin(self, path: KeyPath) -> KeyPath:
        """Where the value at effective `path` was written, or would have been."""
        for length in range(len(path), 0, -1):
            if path[:length] not in self.origins:
                continue
            places = [place + path[length:] for place in self.origins[path[:length]]]
            for place in places:
                if place in self.document.lines:
                    return place
            return places[0]
        return path

    def problem(
        self, path: KeyPath, message: str, remedy: str = "", *, fatal: bool = True, disables: KeyPath = ()
    ) -> None:
        self.add(Problem(message, remedy, path=path, fatal=fatal, disables=dotted(disables)))

    def add(self, problem: Problem) -> None:
        path = self.origin(problem.path)
        self.problems.append(replace(problem, path=path, file=self.document.file, line=self.document.line(path)))


def without_nulls(value: Any) -> Any:
    """A null means "not given"."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return tuple(without_nulls(item) for item in value) if isinstance(value, tuple) else value


def without_literals(it: Effective, value: Any, path: KeyPath) -> Any:
    """Refuse what is a secret or looks like one, and go on as if the variable had been named."""
    if isinstance(value, dict):
        kept: Raw = {}
        for key, item in value.items():
            place = (*path, key)
            if looks_secret(key):
                it.problem(
                    place, "looks like a secret, which must not stand in this file", f"write it to {it.env_file}"
                )
            elif _is_literal(key, item, path):
                _refuse_literal(it, place, str(item))
                kept[f"{key}_env"] = env_name_for(place)
            else:
                kept[key] = without_literals(it, item, place)
        return kept
    if isinstance(value, tuple):
        return tuple(without_literals(it, item, (*path, place)) for place, item in enumerate(value))
    if isinstance(value, str) and looks_secret(value):
        last = str(path[-1]) if path and isinstance(path[-1], str) else ""
        if last.endswith("_env"):
            _refuse_literal(it, (*path[:-1], last.removesuffix("_env")), value, at=path)
            return env_name_for((*path[:-1], last.removesuffix("_env")))
        _refuse_shape(it, path, value)
        return ""
    return value


def _is_literal(key: str, value: Any, path: KeyPath) -> bool:
    if path[:1] == ("mcp",) and path[-1] == "effects":
        return False
    return is_secret_key(key) and isinstance(value, str | int) and not isinstance(value, bool) and value != ""


def _refuse_literal(it: Effective, path: KeyPath, value: str, *, at: KeyPath | None = None) -> None:
    key = path[-1]
    name = env_reference(value)
    if name is not None:
        it.problem(at or path, "holds a secret's name", f"write {key}_env: {name}")
        return
    name = env_name_for(path)
    it.problem(
        at or path,
        "holds a secret, which must not stand in this file",
        f"write {key}_env: {name} here, and in {it.env_file} the line {name}=…",
    )


def _refuse_shape(it: Effective, path: KeyPath, value: str) -> None:
    name = env_name_for(path)
    if has_url_password(value):
        it.problem(
            path, "holds a password", f"take it out of the URL: password_env: {name}, and in {it.env_file} {name}=…"
        )
        return
    it.problem(
        path,
        "looks like a secret, which must not stand in this file",
        f"write it to {it.env_file} as {name}=… and name the variable in a key that ends in _env",
    )


def secret_of(it: Effective, name: Any, path: KeyPath, needs: KeyPath | None) -> tuple[Secret | None, str]:
    """The secret behind a `*_env` key, or the variable that is missing (empty if its name was refused)."""
    if not is_env_name(name):
        it.problem(path, "is not the name of an environment variable", f"write NAME here and NAME=… in {it.env_file}")
        return None, ""
    secret = it.environment.get(name)
    if secret is None and needs is not None:
        it.problem(path, f"{name} is not set", f"add the line {name}=… to {it.env_file}", fatal=False, disables=needs)
    return secret, name


def fill(it: Effective, raw: Raw, model: type[Part], path: KeyPath, *, needs: KeyPath | None) -> Raw:
    """A section with its secrets resolved, and what only its plug-in understands put aside.

    `needs` is what a missing secret disables; None to say nothing about it.
    """
    known = set(given_fields(model))
    filled: Raw = {}
    extra: Raw = {}
    missing: list[str] = []
    for key, value in without_nulls(raw).items():
        if key not in known and issubclass(model, PluginPart):
            extra[key] = value
            continue
        filled[key] = value
        if key in known and key.endswith("_env"):
            secret, name = secret_of(it, value, (*path, key), needs)
            filled[f"={key.removesuffix('_env')}"] = secret
            if not name:
                filled[key] = "REFUSED"
            elif secret is None:
                missing.append(name)
    if issubclass(model, PluginPart):
        env: dict[str, str] = {}
        filled["=extra"] = freeze(_opened(it, extra, path, (), env, missing, needs))
        filled["=env"] = freeze(env)
    filled["=missing"] = tuple(dict.fromkeys(missing))
    return filled


def _opened(
    it: Effective,
    value: Any,
    path: KeyPath,
    inner: KeyPath,
    env: dict[str, str],
    missing: list[str],
    needs: KeyPath | None,
) -> Any:
    """`value` with each `X_env: NAME` in it replaced by `X: Secret`; X is left out when it is not set."""
    if isinstance(value, tuple):
        return tuple(_opened(it, item, path, (*inner, place), env, missing, needs) for place, item in enumerate(value))
    if not isinstance(value, dict):
        return value
    opened: Raw = {}
    for key, item in value.items():
        bare = key.removesuffix("_env")
        if bare == key or not bare:
            opened[key] = _opened(it, item, path, (*inner, key), env, missing, needs)
            continue
        secret, name = secret_of(it, item, (*path, *inner, key), needs)
        if name:
            env[dotted((*inner, bare))] = name
            if secret is None:
                missing.append(name)
                it.absent.setdefault(path, set()).add((*inner, bare))
        if secret is not None:
            opened[bare] = secret
    return opened


def add_section(it: Effective, group: str, plugin: Any, path: KeyPath, filled: Raw) -> None:
    """Note a plug-in's section for its own validation: as written, with `X: Secret` for each `X_env`."""
    if not isinstance(plugin, str):
        return
    absent = set(it.absent.get(path, ()))
    raw: Raw = _stood_in(filled["=extra"], (), absent)
    for key, value in filled.items():
        if key.startswith("="):
            continue
        if not key.endswith("_env"):
            raw[key] = value
            continue
        name = key.removesuffix("_env")
        secret = filled.get(f"={name}")
        raw[name] = secret if isinstance(secret, Secret) else STAND_IN
        if not isinstance(secret, Secret):
            absent.add((name,))
    unset = absent | {(*inner, f"{name}_env") for *inner, name in absent}
    it.sections.append(Section(group, plugin, path, raw, frozenset(unset)))


def _stood_in(value: Any, inner: KeyPath, absent: set[KeyPath]) -> Any:
    """A copy of `value` with something in the place of each secret that is missing from it."""
    if isinstance(value, tuple):
        return tuple(_stood_in(item, (*inner, place), absent) for place, item in enumerate(value))
    if not isinstance(value, Mapping):
        return value
    kept = {key: _stood_in(item, (*inner, key), absent) for key, item in value.items()}
    return {**{str(key[-1]): STAND_IN for key in absent if key[:-1] == inner}, **kept}
