"""Address, title and strategy -> the name a memory provider files a session under. Resolved once, then kept.

Names use `[A-Za-z0-9_-]` only and fit the provider's limit. Two sessions that should differ never get one name: where
sanitising or cutting could make two meet, a short hash of the original is appended; a plain address stays plain.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from everhold.core.address import Address, parse_address

NamingStrategy: TypeAlias = Literal["per-session", "per-directory", "per-repo", "global"]

HASH_DIGITS: Final = 10
"""Hex digits that keep two names apart."""
HERMES_MAX_NAME_CHARS: Final = 100
_UNSAFE_CHARS: Final = re.compile(r"[^A-Za-z0-9_-]+")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_]+")


class SessionOrigin(Struct, frozen=True, kw_only=True):
    """What is known about a session when its first exchange is stored."""

    session: str
    owner: str = ""
    title: str = ""
    address: str = ""
    """Empty for a terminal: there the strategy decides."""
    directory: str = ""
    repo: str = ""
    """Where it is; only its name in what was said to earlier versions."""


class NamingRule(Struct, frozen=True, kw_only=True):
    """How a memory instance names sessions."""

    strategy: NamingStrategy = "per-directory"
    workspace: str = "everhold"
    peer: str = ""
    """Put before every name; empty for nothing."""
    max_chars: int = 100


class MemoryName(Struct, frozen=True, kw_only=True):
    """A name, and the rule it came from: `title`, `address`, a strategy, or `workspace`."""

    text: str
    source: str


def choose_memory_name(origin: SessionOrigin, rule: NamingRule) -> MemoryName:
    """The name under everhold's own rules: title, address, strategy, workspace; what is empty falls through."""
    for source, text, original in _list_candidates(origin, rule):
        plain = _sanitize_name(text)
        if plain:
            return MemoryName(text=_fit_name(plain, original, rule), source=source)
    return MemoryName(
        text=_fit_name(_sanitize_name(rule.workspace) or "everhold", f"workspace\0{rule.workspace}", rule),
        source="workspace",
    )


def _list_candidates(origin: SessionOrigin, rule: NamingRule) -> list[tuple[str, str, str]]:
    """(source, readable text, everything that tells it apart; empty when the text alone already does)."""
    found: list[tuple[str, str, str]] = []
    if origin.title:
        # people choose the same title: whose it is belongs to the name
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
    """A directory is called by its last part; the whole path tells two of one name apart."""
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


# -- names as hermes-agent 0.19.0 gave them, so that existing sessions keep resolving --------------------------------


class HermesNaming(Struct, frozen=True, kw_only=True):
    """What that system's naming looks at besides."""

    sessions: dict[str, str] = {}
    """Directory -> name, as configured there."""


def choose_hermes_name(origin: SessionOrigin, rule: NamingRule, hermes: HermesNaming | None = None) -> MemoryName:
    """Its order and sanitiser, to the letter: gateway key, per-session id, map, title, repo, directory, workspace."""
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
    """The routing key of the same conversation there: joined by colons, nothing escaped."""
    parts = ["agent", address.agent, address.platform, address.kind, address.chat]
    parts += [part for part in (address.thread, address.person) if part]
    return ":".join(parts)


def build_hermes_session_name(key: str) -> str:
    """The name under which a routing key of its was filed in a memory service."""
    return _sanitize_hermes_name(limit_hermes_name(key))


def limit_hermes_name(key: str) -> str:
    text = _sanitize_name(key)
    if len(text) <= HERMES_MAX_NAME_CHARS:
        return text
    return f"{text[:91]}-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _sanitize_hermes_name(text: str) -> str:
    """The second sanitising, character by character, that its client applied on the way out."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", text)
