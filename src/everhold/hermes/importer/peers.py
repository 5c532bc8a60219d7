"""Finds the names under which hermes-agent 0.19.0 stored people in memory services, so that this data is found."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from everhold.core.memory_naming import (
    NamingRule,
    SessionOrigin,
    build_hermes_session_name,
    choose_hermes_name,
)
from everhold.hermes.importer.people import ImportedSender
from everhold.ports.store import PeerRecord

HERMES_SOURCE: Final = "hermes"
MEM0_DEFAULT_USER: Final = "hermes-user"
_STRATEGIES: Final = ("per-session", "per-directory", "per-repo", "global")
_HASH_DIGITS: Final = (8, 12, 16, 24, 32, 64)


class ServiceUse(NamedTuple):
    """A memory service as one agent of hermes-agent used it."""

    memory: str
    """The name of the memory here."""
    provider: str
    agent: str
    given: Mapping[str, Any]
    """Its settings in hermes-agent."""
    pinned: bool = False
    """All people were one peer."""
    profile: str = ""
    """The name of the agent in hermes-agent."""


class _ChosenPeer(NamedTuple):
    peer: str
    rule: str
    """What chose it: `pin`, `alias:<id>`, or empty for a name made from the sender's id."""


def resolve_peers(
    use: ServiceUse, senders: Sequence[ImportedSender], *, is_same: Callable[[str, str], bool]
) -> list[PeerRecord]:
    """Return the peer of each identity; nothing for a service that did not separate people."""
    chosen: dict[str, _ChosenPeer] = {}
    for sender in sorted(senders, key=lambda it: (it.chain.tip.started_at, it.chain.tip.id)):
        found = _choose_peer(use, sender)
        if found is not None and found.peer:
            chosen[sender.identity] = found  # the latest one: an identity has one peer
    return [
        PeerRecord(
            memory=use.memory,
            agent=use.agent,
            identity=identity,
            peer=found.peer,
            from_pos=0,
            source=HERMES_SOURCE,
            shared=_is_shared(identity, found, chosen, is_same),
        )
        for identity, found in sorted(chosen.items())
    ]


def _is_shared(
    identity: str, mine: _ChosenPeer, chosen: Mapping[str, _ChosenPeer], is_same: Callable[[str, str], bool]
) -> bool:
    """Whether the peer also stands for another person, which nobody intended: two people may share one only if the
    settings pin it, or have an alias for each of them.
    """
    for other, their in chosen.items():
        if other == identity or their.peer != mine.peer or is_same(identity, other):
            continue
        intended = bool(mine.rule) and bool(their.rule) and (mine.rule != their.rule or mine.rule == "pin")
        if not intended:
            return True
    return False


def _choose_peer(use: ServiceUse, sender: ImportedSender) -> _ChosenPeer | None:
    match use.provider:
        case "honcho":
            return _choose_honcho_peer(use, sender)
        case "mem0":
            configured = str(use.given.get("user_id") or "")
            separate = configured in ("", MEM0_DEFAULT_USER)
            return _ChosenPeer(sender.user or MEM0_DEFAULT_USER, "") if separate else None
        case "hindsight":
            return _choose_hindsight_bank(use, sender)
        case _:
            return None


# -- Honcho ------------------------------------------------------------------------------------------------------------


def _choose_honcho_peer(use: ServiceUse, sender: ImportedSender) -> _ChosenPeer:
    """Return the peer in hermes-agent's order: pin, alias of the id, alias of the second id, prefix and id, id,
    `peerName`, the session's name.
    """
    name = str(use.given.get("peerName") or "")
    if use.pinned and name:
        return _ChosenPeer(_sanitize_peer(name), "pin")
    aliases = read_aliases(use.given)
    for id in filter(None, (sender.user, sender.alt)):
        if alias := aliases.get(id):
            return _ChosenPeer(_sanitize_peer(alias), f"alias:{id}")
    if sender.user or sender.alt:
        id = sender.user or sender.alt
        prefix = str(use.given.get("runtimePeerPrefix") or "").strip()
        explicit = {name, *aliases.values()}
        return _ChosenPeer(_make_prefixed_peer(prefix, id, explicit) if prefix else _sanitize_peer(id), "")
    if name:
        return _ChosenPeer(_sanitize_peer(name), "")
    return _ChosenPeer(_sanitize_peer(f"user-default-{_name_honcho_session(use, sender)}"), "")


def read_aliases(given: Mapping[str, Any]) -> dict[str, str]:
    """Return hermes-agent's aliases: a bare id -> a peer."""
    found = given.get("userPeerAliases")
    items = found.items() if isinstance(found, dict) else ()
    return {str(id).strip(): peer.strip() for id, peer in items if isinstance(peer, str) and peer.strip()}


def _make_prefixed_peer(prefix: str, id: str, explicit: set[str]) -> str:
    raw = f"{prefix}{id}"
    plain = _sanitize_peer(raw)
    taken = {_sanitize_peer(one) for one in explicit if one}
    if plain == raw and plain not in taken:
        return plain
    digest = hashlib.sha256(raw.encode("utf-8", "surrogatepass")).hexdigest()
    names = (f"{plain}-{digest[:digits]}" for digits in _HASH_DIGITS)
    return next((one for one in names if one not in taken), f"{plain}-{digest}")


def _name_honcho_session(use: ServiceUse, sender: ImportedSender) -> str:
    tip = sender.chain.tip
    if key := tip.session_key or sender.chain.root.session_key:
        return build_hermes_session_name(key)
    strategy = use.given.get("sessionStrategy")
    rule = NamingRule(
        strategy=strategy if strategy in _STRATEGIES else "per-directory",
        workspace=str(use.given.get("workspace") or use.profile),
    )
    origin = SessionOrigin(session=tip.id, title=sender.chain.title, directory=tip.cwd, repo=tip.repo)
    return choose_hermes_name(origin, rule).text


def _sanitize_peer(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]", "-", text.strip())


# -- Hindsight ---------------------------------------------------------------------------------------------------------


def _choose_hindsight_bank(use: ServiceUse, sender: ImportedSender) -> _ChosenPeer | None:
    """Return the bank of one person; None if the people are in one bank, or every session has its own."""
    template = str(use.given.get("bank_id_template") or "")
    if "{user}" not in template or "{session}" in template:
        return None
    values = {
        "profile": use.profile,
        "workspace": "hermes",
        "platform": sender.chain.tip.source,
        "user": sender.user,
    }
    bank = template
    for name, value in values.items():
        bank = bank.replace(f"{{{name}}}", _sanitize_bank_part(value))
    if "{" in bank or "}" in bank:
        return None  # hermes-agent does not understand it either, and uses one bank for all
    bank = re.sub("_{2,}", "_", re.sub("-{2,}", "-", bank)).strip("-_")
    return _ChosenPeer(bank or str(use.given.get("bank_id") or "hermes"), "")


def _sanitize_bank_part(text: str) -> str:
    return re.sub("-{2,}", "-", "".join(char if char.isalnum() or char in "-_" else "-" for char in text)).strip("-_")
