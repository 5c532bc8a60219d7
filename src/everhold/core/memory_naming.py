"""Choose the name under which a memory provider stores a session, from address, title and strategy. A name is chosen
once and then kept.

Names use only `[A-Za-z0-9_-]` and fit the provider's limit. Two sessions that should differ never get the same name: if
sanitising or cutting could make two names equal, a short hash of the original is appended. A plain address stays
unchanged.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from everhold.core.address import Address, parse_address

NamingStrategy: TypeAlias = Literal["per-session", "per-directory", "per-repo", "global"]

HASH_DIGITS: Final = 10
"""Hex digits of the hash that keeps two names different."""
HERMES_MAX_NAME_CHARS: Final = 100
_UNSAFE_CHARS: Final = re.compile(r"[^A-Za-z0-9_-]+")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_]+")


class SessionOrigin(Struct, frozen=True, kw_only=True):
    """What is known about a session when its first exchange is stored."""

    session: str
    owner: str = ""
    title: str = ""
    address: str = ""
    """Empty for a terminal, where the strategy decides."""
    directory: str = ""
    repo: str = ""
    """The path of the repository. Entries of earlier versions contain only its name."""


class NamingRule(Struct, frozen=True, kw_only=True):
    """How a memory names sessions."""

    strategy: NamingStrategy = "per-directory"
    workspace: str = "everhold"
    peer: str = ""
    """A prefix of every name; empty for none."""
    max_chars: int = 100


class MemoryName(Struct, frozen=True, kw_only=True):
    """A name, and the rule it came from: `title`, `address`, a strategy, or `workspace`."""

    text: str
    source: str


def choose_memory_name(origin: SessionOrigin, rule: NamingRule) -> MemoryName:
    """Return the name under everhold's rules. The order is title, address, strategy, workspace; empty ones are
    skipped.
    """
    for source, text, original in _list_candidates(origin, rule):
        plain = _sanitize_name(text)
        if plain:
            return MemoryName(text=_fit_name(plain, original, rule), source=source)
    return MemoryName(
        text=_fit_name(_sanitize_name(rule.workspace) or "everhold", f"workspace\0{rule.workspace}", rule),
        source="workspace",
    )


def _list_candidates(origin: SessionOrigin, rule: NamingRule) -> list[tuple[str, str, str]]:
    """Return (source, readable text, what makes the name unique; empty if the text alone does) for each candidate."""
    found: list[tuple[str, str, str]] = []
    if origin.title:
        # People choose the same titles, so the owner is part of the name.
        found.append(("title", origin.title, f"title\0{origin.owner}\0{origin.title}"))
    if origin.address:
        plain = all(_PLAIN_NAME.fullmatch(part) for part in origin.address.split(":"))
        found.append(("address", origin.address, "" if plain else f"address\0{origin.address}"))
    match rule.strategy:
        case "per-session":
            found.append(
                ("per-session", origin.session, "" if _PLAIN_NAME.fullmatch(origin.session) else origin.session)
            )
        case "per-repo":
            found.append(_name_directory("per-repo", origin.repo))
            found.append(_name_directory("per-directory", origin.directory))
        case "per-directory":
            found.append(_name_directory("per-directory", origin.directory))
        case "global":
            pass
    return found


def _name_directory(source: str, path: str) -> tuple[str, str, str]:
    """A directory is named by its last component. The whole path distinguishes directories with the same name."""
    last = path.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
    return source, last, f"{source}\0{path}"


def _sanitize_name(text: str) -> str:
    return _UNSAFE_CHARS.sub("-", text).strip("-")


def _fit_name(text: str, original: str, rule: NamingRule) -> str:
    peer = _sanitize_name(rule.peer)
    whole = f"{peer}-{text}" if peer else text
    told_apart = f"{rule.peer}\0{original}" if original else ""
    if peer and (peer != rule.peer or not _PLAIN_NAME.fullmatch(peer)):
        told_apart = told_apart or f"{rule.peer}\0{text}"
    if not told_apart and len(whole) <= rule.max_chars:
        return whole
    digest = hashlib.sha256((told_apart or whole).encode("utf-8", "surrogatepass")).hexdigest()[:HASH_DIGITS]
    return f"{whole[: rule.max_chars - HASH_DIGITS - 1].rstrip('-')}-{digest}".lstrip("-")


# -- the naming of hermes-agent 0.19.0, so that its existing sessions are found ---------------------------------------


class HermesNaming(Struct, frozen=True, kw_only=True):
    """Further inputs of hermes-agent's naming."""

    sessions: dict[str, str] = {}
    """Directory -> name, as configured in hermes-agent."""


def choose_hermes_name(origin: SessionOrigin, rule: NamingRule, hermes: HermesNaming | None = None) -> MemoryName:
    """Return the name that hermes-agent chooses. The order is gateway key, per-session id, map, title, repo, directory,
    workspace; the sanitising is identical.
    """
    if origin.address:
        return MemoryName(
            text=build_hermes_session_name(build_hermes_key(parse_address(origin.address))), source="address"
        )
    prefix = f"{rule.peer}-" if rule.peer else ""
    repo = origin.repo.rpartition("/")[2]
    last = origin.directory.rstrip("/").rpartition("/")[2]
    candidates = (
        ("per-session", f"{prefix}{origin.session}" if rule.strategy == "per-session" else ""),
        ("map", hermes.sessions.get(origin.directory, "") if hermes else ""),
        ("title", f"{prefix}{_sanitize_name(origin.title)}" if _sanitize_name(origin.title) else ""),
        ("per-repo", f"{prefix}{repo}" if rule.strategy == "per-repo" and repo else ""),
        ("per-directory", f"{prefix}{last}" if rule.strategy in ("per-repo", "per-directory") and last else ""),
    )
    for source, text in candidates:
        if _sanitize_name(text):
            return MemoryName(text=_sanitize_hermes_name(_sanitize_name(text)), source=source)
    return MemoryName(text=_sanitize_hermes_name(_sanitize_name(rule.workspace)), source="workspace")


def build_hermes_key(address: Address) -> str:
    """Return hermes-agent's routing key of the same conversation: joined by colons, nothing escaped."""
    parts = ["agent", address.agent, address.platform, address.kind, address.chat]
    parts += [part for part in (address.thread, address.person) if part]
    return ":".join(parts)


def build_hermes_session_name(key: str) -> str:
    """Return the name under which hermes-agent stored a routing key in a memory service."""
    return _sanitize_hermes_name(limit_hermes_name(key))


def limit_hermes_name(key: str) -> str:
    text = _sanitize_name(key)
    if len(text) <= HERMES_MAX_NAME_CHARS:
        return text
    return f"{text[:91]}-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _sanitize_hermes_name(text: str) -> str:
    """Sanitise character by character, as hermes-agent's client does before it sends a name."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", text)
