"""Choose the peer of an identity: the name under which a memory stores a person.

A peer is chosen once for a memory, an agent and an identity, and is then recorded. A later edit of the configuration, a
link or an unlink records another one for the entries from there on. So the peer of an entry never changes afterwards.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from everhold.core.people import PeopleDirectory
from everhold.ports.store import FROM_COMMIT, PeerRecord

MAX_PEERS: Final = 8
"""How many peers of the people present are asked in one search."""
PINNED: Final = "pinned"
ALIAS: Final = "alias"
OPERATOR: Final = "operator"
PERSON: Final = "person"
LABEL: Final = "label"
IDENTITY: Final = "identity"
_CONFIGURED: Final = frozenset({PINNED, ALIAS})
"""Sources that give several people one peer. Such a peer belongs to none of them."""
_LATER: Final = 2**62
"""The place of a record that is about to be committed: after all entries."""
_UNSAFE_CHARS: Final = re.compile(r"[^A-Za-z0-9_-]+")


class PeerRule(Struct, frozen=True, kw_only=True):
    """How a memory names people. A provider declares it as `peer_rule`."""

    pinned: str = ""
    """The peer of everybody, as the service gets it; empty if people have peers of their own."""
    aliases: Mapping[str, str] = {}
    """Identity, bare id or label -> peer, as the service gets it."""
    prefix: str = ""
    """Put before the name of a person."""
    unknown: str = "user"
    """The peer of a speaker without an identity."""
    reserved: tuple[str, ...] = ()
    """Names that no person may get, such as the agent's own peer."""


class PeerChoice(Struct, frozen=True):
    """A peer, and why it was chosen."""

    peer: str
    source: str


def make_safe_id(text: str, *, limit: int = 100, parts: str = "") -> str:
    """Return `text` as an id of `[A-Za-z0-9_-]`. A hash keeps ids different whose cleaned texts are equal.

    `parts` is hashed instead of the text where the text does not show what it was made of.
    """
    plain = _UNSAFE_CHARS.sub("-", text).strip("-")
    if plain == text and len(plain) <= limit and not parts:
        return plain
    digest = hashlib.sha256((parts or text).encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{plain[: limit - 11].rstrip('-')}-{digest}".lstrip("-")


def make_safe_id_prefix(text: str) -> str:
    """Return the part that the ids of all texts that begin with `text` have in common."""
    return _UNSAFE_CHARS.sub("-", text).strip("-")[:80]


class PeerBook:
    """The recorded peers of one memory and agent."""

    def __init__(self, records: Iterable[PeerRecord]) -> None:
        self._by_identity: dict[str, list[PeerRecord]] = {}
        self._by_peer: dict[str, list[PeerRecord]] = {}
        for record in records:
            self.add_record(record)

    def add_record(self, record: PeerRecord) -> None:
        for rows in (
            self._by_identity.setdefault(record.identity, []),
            self._by_peer.setdefault(record.peer, []),
        ):
            rows.append(record)
            rows.sort(key=lambda row: row.from_pos)

    def list_identities(self) -> list[str]:
        """Return the identities that have a peer, those with the oldest record first."""
        return sorted(self._by_identity, key=lambda it: (self._by_identity[it][0].from_pos, it))

    def list_records(self, identity: str) -> Sequence[PeerRecord]:
        return self._by_identity.get(identity, ())

    def list_recalled_peers(self, identity: str, people: PeopleDirectory) -> tuple[str, ...]:
        """Return all peers that were ever recorded for an identity, the latest first, without those that stand for
        several people although the configuration does not say so.
        """
        return tuple(
            dict.fromkeys(
                row.peer
                for row in reversed(self.list_records(identity))
                if not row.shared and (row.source in _CONFIGURED or self.is_own(row.peer, identity, people))
            )
        )

    def find_latest(self, identity: str) -> PeerRecord | None:
        """Return the record for new entries of an identity."""
        return next((row for row in reversed(self.list_records(identity)) if not row.shared), None)

    def is_own(self, peer: str, identity: str, people: PeopleDirectory) -> bool:
        """Return whether a peer stands for the person of an identity alone. After an unlink, a peer that both people
        used stands for neither, until an operator assigns it.
        """
        rows = [row for row in self._by_peer.get(peer, ()) if not row.shared]
        if assigned := [row for row in rows if row.source == OPERATOR]:
            return people.is_same_person(assigned[-1].identity, identity)
        chosen = [row for row in rows if row.source not in _CONFIGURED]
        first = min((row.from_pos for row in chosen if people.is_same_person(row.identity, identity)), default=_LATER)
        # An alias that leads others to this peer later is what the configuration wants. An earlier one made the peer.
        aliased = [row for row in rows if row.source in _CONFIGURED and row.from_pos <= first]
        return all(people.is_same_person(row.identity, identity) for row in (*chosen, *aliased))

    def split_peers(self, identities: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return all peers that these identities of one person ever had: those of this person alone, and those under
        which a memory may have something of other people.
        """
        every = dict.fromkeys(row.peer for it in identities for row in reversed(self.list_records(it)))
        own = tuple(peer for peer in every if self._is_only_of(peer, identities))
        return own, tuple(peer for peer in every if peer not in own)

    def _is_only_of(self, peer: str, identities: Collection[str]) -> bool:
        rows = self._by_peer.get(peer, ())
        if any(row.source == PINNED or (row.identity not in identities and not row.shared) for row in rows):
            return False
        if any(row.shared for row in rows):  # several people used it before everhold, until an operator assigned it
            assigned = [row for row in rows if row.source == OPERATOR]
            return bool(assigned) and assigned[-1].identity in identities
        return True

    def is_unused(self, peer: str, identity: str, people: PeopleDirectory) -> bool:
        """Return whether no other person ever had a peer."""
        return all(people.is_same_person(row.identity, identity) for row in self._by_peer.get(peer, ()))


def find_peer_at(records: Sequence[PeerRecord], pos: int) -> PeerRecord | None:
    """Return the record in force for an entry, among the records of one identity. Entries before the first record have
    the first one.
    """
    own = [row for row in records if not row.shared]
    before = [row for row in own if row.from_pos <= pos]
    return before[-1] if before else own[0] if own else None


def choose_peer(rule: PeerRule, identity: str, *, people: PeopleDirectory, book: PeerBook) -> PeerChoice:
    """Return the peer for the next entries of an identity.

    The order: pinned; an alias; assigned by an operator; the peer of the person's oldest identity; the person's label;
    the identity. Two people share a peer only if the configuration says so.
    """
    if rule.pinned:
        return PeerChoice(rule.pinned, PINNED)
    if alias := find_alias(rule, identity, people=people, book=book):
        return PeerChoice(alias, ALIAS)
    latest = book.find_latest(identity)
    if latest is not None and latest.source == OPERATOR and book.is_own(latest.peer, identity, people):
        return PeerChoice(latest.peer, OPERATOR)
    for other in _list_oldest_first(identity, people=people, book=book):
        if found := _find_own_peer(rule, other, people=people, book=book):
            return found if other == identity else PeerChoice(found.peer, PERSON)
    taken = {*rule.reserved, *rule.aliases.values()}
    label = people.find_label(identity)
    for text, source in ((label, LABEL), (identity, IDENTITY)):
        peer = make_safe_id(f"{rule.prefix}{text}") if text else ""
        if peer and peer not in taken and book.is_unused(peer, identity, people):
            return PeerChoice(peer, source)
    number = 1
    while not book.is_unused(peer := make_safe_id(f"{rule.prefix}{identity}\0person{number}"), identity, people):
        number += 1
    return PeerChoice(peer, IDENTITY)


def plan_peer_changes(
    rule: PeerRule, *, memory: str, agent: str, people: PeopleDirectory, book: PeerBook
) -> list[PeerRecord]:
    """Return the records that make the peers of new entries agree with the configuration and the people as they are
    now. They are added to `book`, because one choice may depend on another.
    """
    changed = []
    for identity in book.list_identities():
        latest = book.find_latest(identity)
        if latest is None:
            continue
        choice = choose_peer(rule, identity, people=people, book=book)
        if choice.peer != latest.peer:
            record = PeerRecord(
                memory=memory, agent=agent, identity=identity, peer=choice.peer, from_pos=_LATER, source=choice.source
            )
            book.add_record(record)
            changed.append(structs.replace(record, from_pos=FROM_COMMIT))
    return changed


def _list_oldest_first(identity: str, *, people: PeopleDirectory, book: PeerBook) -> list[str]:
    """Return the identities of the person, the one with the oldest record first. An id that belonged to somebody else
    before is left out, because its peer may know that person; only the id itself keeps it.
    """
    own = [it for it in people.list_same_person(identity) if it == identity or people.belongs_to(it, identity, at=0.0)]
    order = {it: book.list_records(it)[0].from_pos for it in own if book.list_records(it)}
    return sorted(order, key=lambda it: (order[it], it))


def _find_own_peer(rule: PeerRule, identity: str, *, people: PeopleDirectory, book: PeerBook) -> PeerChoice | None:
    """Return the peer that an identity has by itself: its alias, or the latest recorded one that is not another
    person's.
    """
    if alias := find_alias(rule, identity, people=people, book=book):
        return PeerChoice(alias, ALIAS)
    for row in reversed(book.list_records(identity)):
        if not row.shared and row.source not in _CONFIGURED and book.is_own(row.peer, identity, people):
            return PeerChoice(row.peer, row.source)
    return None


# -- aliases -----------------------------------------------------------------------------------------------------------


def find_alias(rule: PeerRule, identity: str, *, people: PeopleDirectory, book: PeerBook) -> str:
    """Return the alias of an identity: by the identity, by its bare id if only one person has that id, or by the
    label; else an empty string.
    """
    if alias := rule.aliases.get(identity):
        return alias
    bare = _get_bare_id(identity)
    if alias := rule.aliases.get(bare, "") if bare else "":
        latest = book.find_latest(identity)
        # An alias that applied keeps applying, so nobody can end it with an account that has the same id elsewhere.
        kept = latest is not None and latest.source == ALIAS and latest.peer == alias
        if kept or len(_list_claimants(bare, {identity, *_list_with_bare_id(bare, people, book)}, people)) == 1:
            return alias
    label = people.find_label(identity)
    return rule.aliases.get(label, "") if label else ""


def list_ambiguous_aliases(
    rule: PeerRule, *, people: PeopleDirectory, book: PeerBook
) -> list[tuple[str, tuple[str, ...]]]:
    """Return the bare ids among the aliases that several people have, each with the identities that it could mean."""
    found = []
    for key in rule.aliases:
        if ":" in key:
            continue
        identities = _list_with_bare_id(key, people, book)
        if len(_list_claimants(key, identities, people)) > 1 and not people.resolve_name(key):
            found.append((key, tuple(sorted(identities))))
    return found


def _get_bare_id(identity: str) -> str:
    return identity.partition(":")[2]


def _list_with_bare_id(bare: str, people: PeopleDirectory, book: PeerBook) -> set[str]:
    return {it for it in (*people.identities, *book.list_identities()) if _get_bare_id(it) == bare}


def _list_claimants(bare: str, identities: Iterable[str], people: PeopleDirectory) -> set[str]:
    """Return the people whom a bare id could mean: those with such an identity, and the one whose label it is."""
    claimants = {person.id if (person := people.find_person(it)) else it for it in identities}
    named = people.resolve_name(bare)
    return claimants | ({named.id} if named is not None else set())
