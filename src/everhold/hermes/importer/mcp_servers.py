"""Converts a tool server of hermes-agent into a section of `mcp`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from everhold.infra.secret import SecretString

_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_CONVERTED_KEYS: Final = frozenset({"command", "args", "env", "url", "headers", "timeout", "enabled"})
_REASONS: Final = {
    "tools": "all tools of a server are offered; a rule of policy can deny one (do: deny)",
    "connect_timeout": "everhold has no such setting",
    "auth": "a login of hermes-agent; everhold sends a token",
    "oauth": "a login of hermes-agent; everhold sends a token",
}


@dataclass
class ConvertedServer:
    """A section without its secrets, and what has no place here."""

    name: str
    section: dict[str, Any] | None = None
    variables: dict[str, SecretString] = field(default_factory=dict)
    """The variables that the program reads."""
    token: SecretString | None = None
    used_variables: set[str] = field(default_factory=set)
    """The variables of the profile that its values refer to."""
    unknown: list[str] = field(default_factory=list)
    """`.key: why`"""


def convert_server(name: str, given: Any, env: Mapping[str, SecretString]) -> ConvertedServer:
    """Return the section of a server. `env` are the variables of the profile, which values may refer to."""
    found = ConvertedServer(_NAME.sub("-", name).strip("-") or "imported")
    if not isinstance(given, dict):
        found.unknown.append(": it is not a section")
        return found
    command, url = given.get("command"), given.get("url")
    args = given.get("args")
    if isinstance(command, str) and command:
        listed = args if isinstance(args, list) else []
        found.section = {"command": [command, *map(str, listed)]}
        if any(_REFERENCE.search(str(part)) for part in listed):
            found.unknown.append(".args: everhold fills in no variables; write the value, or let the program read it")
        _convert_variables(found, given.get("env"), env)
    elif isinstance(url, str) and url:
        found.section = {"url": url}
        _convert_headers(found, given.get("headers"), env)
    else:
        found.unknown.append(": it has neither a command nor a url")
        return found
    timeout = given.get("timeout")
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout > 0:
        found.section["deadline_seconds"] = float(timeout)
    for key in sorted(map(str, set(given) - _CONVERTED_KEYS)):
        found.unknown.append(f".{key}: {_REASONS.get(key, 'everhold has no such setting')}")
    return found


def _convert_variables(found: ConvertedServer, given: Any, env: Mapping[str, SecretString]) -> None:
    for key, value in given.items() if isinstance(given, dict) else ():
        if not _ENV_NAME.fullmatch(str(key)):
            found.unknown.append(f".env.{key}: is not the name of a variable")
            continue
        text = _fill_references(found, str(value), env)
        if text is None:
            found.unknown.append(f".env.{key}: refers to a variable that is not set; write {key}=… to .env")
            found.variables.pop(str(key), None)
        elif text:
            found.variables[str(key)] = SecretString(text)


def _convert_headers(found: ConvertedServer, given: Any, env: Mapping[str, SecretString]) -> None:
    for key, value in given.items() if isinstance(given, dict) else ():
        text = _fill_references(found, str(value), env)
        if str(key).lower() == "authorization" and text and text.lower().startswith("bearer "):
            found.token = SecretString(text[len("bearer ") :].strip())
        else:
            found.unknown.append(f".headers.{key}: everhold sends only a bearer token")


def _fill_references(found: ConvertedServer, text: str, env: Mapping[str, SecretString]) -> str | None:
    """Return a value with `${NAME}` filled in from the variables of the profile; None if one is not set."""
    names = _REFERENCE.findall(text)
    if any(name not in env for name in names):
        return None
    found.used_variables.update(names)
    return _REFERENCE.sub(lambda match: env[match[1]].reveal(), text)
