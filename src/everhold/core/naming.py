"""Address, title and strategy -> the name a memory provider files a session under. Resolved once, then kept.

Names use `[A-Za-z0-9_-]` only and fit the provider's limit. Two sessions that should differ never get one name: where
sanitising or cutting could make two meet, a short hash of the original is appended; a plain address stays plain.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from everhold.core.address import Address, parse

Strategy: TypeAlias = Literal["per-session", "per-directory", "per-repo", "global"]

HASH: Final = 10
"""Hex digits that keep two names apart."""
HERMES_LIMIT: Final = 100
_OTHER: Final = re.compile(r"[^A-Za-z0-9_-]+")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_]+")


class Origin(Struct, frozen=True, kw_only=True):
    """What is known about a session when its first exchange is stored."""

    session: str
    owner: str = ""
    title: str = ""
    address: str = ""
    """Empty for a terminal: there the strategy decides."""
    directory: str = ""
    repo: str = ""
    """Where it is; only its name in what was said to earlier versions."""


class Rule(Struct, frozen=True, kw_only=True):
    """How a memory instance names sessions."""

    strategy: Strategy = "per-directory"
    workspace: str = "everhold"
    peer: str = ""
    """Put before every name; empty for nothing."""
    limit: int = 100


class Name(Struct, frozen=True, kw_only=True):
    """A name, and the rule it came from: `title`, `address`, a strategy, or `workspace`."""

    text: str
    source: str


def name(origin: Origin, rule: Rule) -> Name:
    """The name under everhold's own rules: title, address, strategy, workspace; what is empty falls through."""
    for source, text, original in _candidates(origin, rule):
        plain = _clean(text)
        if plain:
            return Name(text=_fit(plain, original, rule), source=source)
    return Name(
        text=_fit(_clean(rule.workspace) or "everhold", f"workspace\0{rule.workspace}", rule), source="workspace"
    )


def _candidates(origin: Origin, rule: Rule) -> list[tuple[str, str, str]]:
    """(source, readable text, everything that tells it apart; empty when the text alone already does)."""
    found: list[tuple[str, str, str]] = []
    if origin.title:
        # people choose the same title: whose it is belongs to the name
        found.append(("title", origin.title, f"title\0{origin.owner}\0{origin.title}"))
    if origin.address:
        plain = all(_PLAIN.fullmatch(part) for part in origin.address.split(":"))
        found.append(("address", origin.address, "" if plain else f"address\0{origin.address}"))
    match rule.strategy:
        case "per-session":
            found.append(("per-session", origin.session, "" if _PLAIN.fullmatch(origin.session) else origin.session))
        case "per-repo":
            found.append(_place("per-repo", origin.repo))
            found.append(_place("per-directory", origin.directory))
        case "per-directory":
            found.append(_place("per-directory", origin.directory))
        case "global":
            pass
    return found


def _place(source: str, path: str) -> tuple[str, str, str]:
    """A directory is called by its last part; the whole path tells two of one name apart."""
    last = path.rstrip("/\\").replace("\\", "/").rpartition("/")[2]
    return source, last, f"{source}\0{path}"


def _clean(text: str) -> str:
    return _OTHER.sub("-", text).strip("-")


def _fit(text: str, original: str, rule: Rule) -> str:
    peer = _clean(rule.peer)
    whole = f"{peer}-{text}" if peer else text
    told_apart = f"{rule.peer}\0{original}" if original else ""
    if peer and (peer != rule.peer or not _PLAIN.fullmatch(peer)):
        told_apart = told_apart or f"{rule.peer}\0{text}"
    if not told_apart and len(whole) <= rule.limit:
        return whole
    digest = hashlib.sha256((told_apart or whole).encode("utf-8", "surrogatepass")).hexdigest()[:HASH]
    return f"{whole[: rule.limit - HASH - 1].rstrip('-')}-{digest}".lstrip("-")


# -- names as hermes-agent 0.19.0 gave them, so that existing sessions keep resolving --------------------------------


class Hermes(Struct, frozen=True, kw_only=True):
    """What that system's naming looks at besides."""

    sessions: dict[str, str] = {}
    """Directory -> name, as configured there."""


def hermes_name(origin: Origin, rule: Rule, hermes: Hermes | None = None) -> Name:
    """Its order and sanitiser, to the letter: gateway key, per-session id, map, title, repo, directory, workspace."""
    if origin.address:
        return Name(text=hermes_filed(hermes_key(parse(origin.address))), source="address")
    prefix = f"{rule.peer}-" if rule.peer else ""
    repo = origin.repo.rpartition("/")[2]
    last = origin.directory.rstrip("/").rpartition("/")[2]
    candidates = (
        ("per-session", f"{prefix}{origin.session}" if rule.strategy == "per-session" else ""),
        ("map", hermes.sessions.get(origin.directory, "") if hermes else ""),
        ("title", f"{prefix}{_clean(origin.title)}" if _clean(origin.title) else ""),
        ("per-repo", f"{prefix}{repo}" if rule.strategy == "per-repo" and repo else ""),
        ("per-directory", f"{prefix}{last}" if rule.strategy in ("per-repo", "per-directory") and last else ""),
    )
    for source, text in candidates:
        if _clean(text):
            return Name(text=_hermes_wire(_clean(text)), source=source)
    return Name(text=_hermes_wire(_clean(rule.workspace)), source="workspace")


def hermes_key(address: Address) -> str:
    """The routing key of the same conversation there: joined by colons, nothing escaped."""
    parts = ["agent", address.agent, address.platform, address.kind, address.chat]
    parts += [part for part in (address.thread, address.person) if part]
    return ":".join(parts)


def hermes_filed(key: str) -> str:
    """The name under which a routing key of its was filed in a memory service."""
    return _hermes_wire(hermes_limited(key))


def hermes_limited(key: str) -> str:
    text = _clean(key)
    if len(text) <= HERMES_LIMIT:
        return text
    return f"{text[:91]}-{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _hermes_wire(text: str) -> str:
    """The second sanitising, character by character, that its client applied on the way out."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", text)
