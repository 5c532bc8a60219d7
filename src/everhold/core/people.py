"""Who an identity belongs to, and what the people present may hear. Pure: events in, a directory or new events out.

The log records identities (`platform:id`), never people. A person is a set of identities, and it is resolved when
something is read. So a link applies to everything that was said before, and an unlink takes it back, without a change
to any entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct, structs

from everhold.errors import InvalidRequest, NotFound

HOOK_PLATFORM: Final = "hook"
"""The platform of webhooks that have a conversation of their own, and of their identities."""
PERSON_MEMBER: Final = "person:"
"""The prefix of an identity in audiences and authors."""
PERSON_ID_PREFIX: Final = "p_"
PERSON_ID_BYTES: Final = 7
"""Random bytes of a person's id. They give the ten characters after the prefix, with some to spare."""
LOCAL_IDENTITIES: Final = "local"
"""The platform of identities in the terminal: the user of this machine."""
_BASE32: Final = "abcdefghijklmnopqrstuvwxyz234567"
_REUSED_ID_PLATFORMS: Final = frozenset({"irc"})
"""Platforms on which an id may belong to another human later."""
_PLATFORM_NAMES: Final = MappingProxyType({"terminal": LOCAL_IDENTITIES})


class IdentityProof(StrEnum):
    """Why an identity belongs to its person."""

    CONFIG = "config"
    """`people` in the configuration names it."""
    PAIRED = "paired"
    """An operator approved its pairing code as this person."""
    LINKED = "linked"
    """Both sides confirmed it with `/link`."""
    OPERATOR = "operator"
    """An operator linked it."""
    TOKEN = "token"
    """A token of the configuration speaks for the person."""
    IMPORT = "import"
    """An import found both ids on one account. It grants no rights."""
    SEEN = "seen"
    """It spoke, and nothing else is known about it."""


UNPROVEN: Final = frozenset({IdentityProof.IMPORT, IdentityProof.SEEN})
"""Proofs that grant no rights of a person's name."""


class PeopleAction(StrEnum):
    """What happened to a person or an identity."""

    MADE = "made"
    NAMED = "named"
    LINKED = "linked"
    UNLINKED = "unlinked"
    MERGED = "merged"
    FORGOTTEN = "forgotten"


class PeopleEvent(Struct, frozen=True, kw_only=True):
    """One row of the people log. `n` and `at` are set when it is committed."""

    action: PeopleAction
    person: str
    identity: str = ""
    proof: str = ""
    since: float = 0.0
    note: str = ""
    """The label of `named`, the person that a `merged` one continues in, or a remark."""
    by: str = ""
    n: int = 0
    at: float = 0.0


class PersonRecord(Struct, frozen=True, kw_only=True):
    """A person. The id is permanent and never used again; the label may change."""

    id: str
    label: str = ""
    merged_into: str = ""
    forgotten_at: float = 0.0


class IdentityRecord(Struct, frozen=True, kw_only=True):
    """One identity and the person it belongs to."""

    identity: str
    person: str
    proof: str
    since: float = 0.0
    """The identity stands for the person in entries from this time on; 0: in all of them."""
    at: float = 0.0
    """When it was linked."""
    former: str = ""
    """The person it belonged to before. An unlink gives it back if that person was merged."""

    @property
    def is_proven(self) -> bool:
        return self.proof not in UNPROVEN


class AudienceMember(Struct, frozen=True):
    """A member of an audience that stands for somebody present, in entries from `since` on."""

    member: str
    since: float = 0.0


class PresentAudience(Struct, frozen=True):
    """The people present. `members` are those of the stamp; `groups` has, for each, all members that mean the same
    person.
    """

    members: tuple[str, ...] = ()
    groups: tuple[tuple[AudienceMember, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.groups)

    def drop_reused_ids(self) -> PresentAudience:
        """Return the people present without other ids of theirs that may have been somebody else's before. It is for
        answers that do not say how old their content is.
        """
        if all(not one.since for group in self.groups for one in group):
            return self
        return PresentAudience(
            self.members, tuple(tuple(one for one in group if not one.since) for group in self.groups)
        )

    def list_members(self) -> list[str]:
        """Return every member that stands for somebody present."""
        return list(dict.fromkeys(one.member for group in self.groups for one in group))


def build_present(audience: Collection[str]) -> PresentAudience:
    """Return the people present, if no identity is linked to another."""
    return PresentAudience(tuple(audience), tuple((AudienceMember(one),) for one in audience))


def can_hear(present: PresentAudience, audience: Collection[str], at: float) -> bool:
    """Return whether everybody present could read an entry of this audience from this time. False if nobody is
    present.
    """
    return bool(present.groups) and all(
        any(one.member in audience and at >= one.since for one in group) for group in present.groups
    )


class PeopleDirectory:
    """All people at one moment. `epoch` is the number of its last event.

    Nothing that was read from it becomes untrue: only identities that nobody had seen before are added to it. Any other
    event makes a new directory.
    """

    def __init__(
        self,
        *,
        epoch: int = 0,
        persons: Iterable[PersonRecord] = (),
        identities: Iterable[IdentityRecord] = (),
        partings: Iterable[tuple[str, str, int]] = (),
    ) -> None:
        """`partings` are (identity, person, event): the last event that took an identity away from a person."""
        self.epoch = epoch
        self.version = epoch
        """The epoch at which it was built. It stays while only new identities are added."""
        self._persons = {one.id: one for one in persons}
        self._identities = {one.identity: one for one in identities}
        self.persons: Mapping[str, PersonRecord] = MappingProxyType(self._persons)
        self.identities: Mapping[str, IdentityRecord] = MappingProxyType(self._identities)
        self._by_person: dict[str, list[IdentityRecord]] = {}
        for record in self.identities.values():
            self._by_person.setdefault(record.person, []).append(record)
        for records in self._by_person.values():
            records.sort(key=lambda record: (record.at, record.identity))
        self._labels = {one.label: one.id for one in self.persons.values() if one.label and not one.merged_into}
        self._present: dict[tuple[str, ...], PresentAudience] = {}
        self._parted_at: dict[str, int] = {}
        """Identity or person -> the event by which the identity last left its person, or the person last lost one."""
        for identity, person, n in partings:
            for name in (identity, self.follow_merges(person)):
                self._parted_at[name] = max(n, self._parted_at.get(name, 0))
        self.named_authors: Mapping[str, tuple[str, ...]] = {
            label.casefold(): tuple(f"{PERSON_MEMBER}{it.identity}" for it in self._by_person.get(id, ()))
            for label, id in self._labels.items()
        }
        """The name of each person in small letters -> the authors under which the log knows them."""

    def add_first_seen(self, events: Sequence[PeopleEvent]) -> bool:
        """Add identities that were seen for the first time. Return False, and add nothing, for any other event."""
        if not all(self._is_first_seen(event) for event in events):
            return False
        for event in events:
            apply_event(self._persons, self._identities, event)
            if event.identity:
                self._by_person[event.person] = [self._identities[event.identity]]
            self.epoch = event.n
        return True

    def _is_first_seen(self, event: PeopleEvent) -> bool:
        if event.action is PeopleAction.MADE:
            return event.person not in self._persons and not event.note
        return (
            event.action is PeopleAction.LINKED
            and event.proof == IdentityProof.SEEN
            and event.identity not in self._identities
            and event.person not in self._by_person
        )

    def find_person(self, identity: str) -> PersonRecord | None:
        """Return the person that an identity belongs to."""
        record = self.identities.get(identity)
        return None if record is None else self.persons.get(record.person)

    def find_label(self, identity: str) -> str:
        """Return the label of the identity's person; empty if there is none."""
        person = self.find_person(identity)
        return "" if person is None else person.label

    def describe_identity(self, identity: str) -> str:
        """Return how people read an identity: the label of its person, or the identity."""
        return self.find_label(identity) or identity

    def find_proven_label(self, identity: str) -> str:
        """Return the label of the identity's person if the identity has the rights of that name."""
        record = self.identities.get(identity)
        return self.find_label(identity) if record is not None and record.is_proven else ""

    def list_identities(self, person: str) -> list[IdentityRecord]:
        """Return the identities of a person, the oldest link first."""
        return list(self._by_person.get(person, ()))

    def list_same_person(self, identity: str) -> tuple[str, ...]:
        """Return all identities of the identity's person, this one first."""
        record = self.identities.get(identity)
        others = self._by_person.get(record.person, ()) if record is not None else ()
        return (identity, *(it.identity for it in others if it.identity != identity))

    def list_same_authors(self, author: str) -> tuple[str, ...]:
        """Return all authors (`person:<identity>`) that are the same person as `author`; other authors alone."""
        if not author.startswith(PERSON_MEMBER):
            return (author,)
        same = self.list_same_person(author.removeprefix(PERSON_MEMBER))
        return tuple(f"{PERSON_MEMBER}{identity}" for identity in same)

    def is_same_person(self, one: str, other: str) -> bool:
        """Return whether two identities belong to one person."""
        if one == other:
            return True
        first, second = self.identities.get(one), self.identities.get(other)
        return first is not None and second is not None and first.person == second.person

    def belongs_to(self, author: str, identity: str, *, at: float) -> bool:
        """Return whether what the identity `author` said or made at a time belongs to the person of `identity`."""
        if author == identity:
            return True
        record = self.identities.get(author)
        return record is not None and self.is_same_person(author, identity) and at >= record.since

    def has_parted_since(self, identity: str, epoch: int = 0) -> bool:
        """Return whether, after an epoch, an identity left its person, or its person lost another identity."""
        if not self._parted_at:
            return False  # the usual case, asked twice in each turn
        record = self.identities.get(identity)
        names = (identity,) if record is None else (identity, record.person)
        return any(self._parted_at.get(name, 0) > epoch for name in names)

    def follow_merges(self, person: str) -> str:
        """Return the person that a merged person continues in."""
        seen = set()
        while (record := self.persons.get(person)) is not None and record.merged_into and person not in seen:
            seen.add(person)
            person = record.merged_into
        return person

    def resolve_name(self, name: str) -> PersonRecord | None:
        """Return the person that a label, an identity or a person's id means."""
        if name in self._labels:
            return self.persons[self._labels[name]]
        if name in self.persons:
            return self.persons[self.follow_merges(name)]
        return self.find_person(name)

    def list_names(self, name: str) -> tuple[str, ...]:
        """Return the identities that a label, an identity or a person's id stands for, as the log has them.

        A name that nobody has stands for itself, so an identity that was never seen can be named, too.
        """
        person = self.resolve_name(name)
        if person is None:
            return (name,)
        return tuple(record.identity for record in self.list_identities(person.id)) or (name,)

    def list_name_starts(self, name: str) -> tuple[tuple[str, float], ...]:
        """Return the identities that a name stands for, as `list_names` does, each with the time from which on.

        An identity that is named itself stands for itself at all times.
        """
        starts = {it: self.identities[it].since for it in self.list_names(name) if it in self.identities}
        return tuple((it, 0.0 if it == name else starts.get(it, 0.0)) for it in self.list_names(name))

    def identify_audience(self, audience: Collection[str], at: float) -> frozenset[str]:
        """Return an audience from a time with persons in the place of identities, so that two audiences can be
        compared. An identity that did not stand for its person yet stays as it is.
        """
        return frozenset(self._identify_member(member, at) for member in audience)

    def _identify_member(self, member: str, at: float) -> str:
        record = self.identities.get(member.removeprefix(PERSON_MEMBER)) if member.startswith(PERSON_MEMBER) else None
        return member if record is None or at < record.since else record.person

    def expand_audience(self, audience: Collection[str]) -> PresentAudience:
        """Return the people present, with every member that means the same person."""
        members = tuple(audience)
        found = self._present.get(members)
        if found is None:
            found = PresentAudience(members, tuple(self._expand_member(one) for one in members))
            if len(self._present) >= 10_000:
                self._present.clear()
            self._present[members] = found
        return found

    def _expand_member(self, member: str) -> tuple[AudienceMember, ...]:
        own = AudienceMember(member)
        if not member.startswith(PERSON_MEMBER):
            return (own,)
        identity = member.removeprefix(PERSON_MEMBER)
        record = self.identities.get(identity)
        if record is None:
            return (own,)
        others = (it for it in self._by_person[record.person] if it.identity != identity)
        return (own, *(AudienceMember(f"{PERSON_MEMBER}{it.identity}", it.since) for it in others))


def date_links(events: Iterable[PeopleEvent], *, at: float, latest: float) -> tuple[PeopleEvent, ...]:
    """Return events whose links that count from now on count from after everything that was said before, whatever the
    clock showed then. `latest` is the latest time of any entry.
    """
    if latest <= at:
        return tuple(events)
    start = math.nextafter(latest, math.inf)
    return tuple(structs.replace(it, since=start) if it.since == at else it for it in events)


# -- events ------------------------------------------------------------------------------------------------------------


def apply_event(persons: dict[str, PersonRecord], identities: dict[str, IdentityRecord], event: PeopleEvent) -> None:
    """Apply one event to the tables that are derived from the people log."""
    match event.action:
        case PeopleAction.MADE:
            persons[event.person] = PersonRecord(id=event.person, label=event.note)
        case PeopleAction.NAMED:
            persons[event.person] = structs.replace(persons[event.person], label=event.note)
        case PeopleAction.LINKED:
            before = identities.get(event.identity)
            former = "" if before is None else before.former if before.person == event.person else before.person
            identities[event.identity] = IdentityRecord(
                identity=event.identity,
                person=event.person,
                proof=event.proof,
                since=event.since,
                at=event.at,
                former=former,
            )
        case PeopleAction.UNLINKED:
            identities.pop(event.identity, None)
        case PeopleAction.MERGED:
            persons[event.person] = structs.replace(persons[event.person], merged_into=event.note, label="")
        case PeopleAction.FORGOTTEN:
            persons[event.person] = structs.replace(persons[event.person], label="", forgotten_at=event.at)
            for identity in [it.identity for it in identities.values() if it.person == event.person]:
                del identities[identity]


def build_directory(events: Iterable[PeopleEvent]) -> PeopleDirectory:
    """Return the directory that follows from the people log."""
    persons: dict[str, PersonRecord] = {}
    identities: dict[str, IdentityRecord] = {}
    partings = []
    epoch = 0
    for event in events:
        apply_event(persons, identities, event)
        if event.action is PeopleAction.UNLINKED:
            partings.append((event.identity, event.person, event.n))
        epoch = event.n
    return PeopleDirectory(epoch=epoch, persons=persons.values(), identities=identities.values(), partings=partings)


# -- ids ---------------------------------------------------------------------------------------------------------------


def make_person_id(random: bytes) -> str:
    """Return a new person's id."""
    number = int.from_bytes(random[:PERSON_ID_BYTES], "big")
    letters = []
    for _ in range(10):
        number, at = divmod(number, 32)
        letters.append(_BASE32[at])
    return PERSON_ID_PREFIX + "".join(letters)


def build_identity(platform: str, sender: str) -> str:
    """Return the identity of a sender on a platform, as the log records it."""
    return f"{_PLATFORM_NAMES.get(platform, platform)}:{sender}"


def is_identity(name: str) -> bool:
    platform, _, id = name.partition(":")
    return bool(platform and id)


def can_change_hands(identity: str) -> bool:
    """Return whether an id may belong to another human later: nicks, and names that a caller chooses."""
    platform, _, id = identity.partition(":")
    return platform in _REUSED_ID_PLATFORMS or (platform == "http" and "/" in id)


# -- planning changes --------------------------------------------------------------------------------------------------


class PeoplePlanner:
    """Plans the events of one change, on a working copy of a directory. `new_id` makes ids of people."""

    def __init__(self, directory: PeopleDirectory, *, new_id: Callable[[], str], at: float, by: str) -> None:
        self._persons = dict(directory.persons)
        self._identities = dict(directory.identities)
        self._new_id = new_id
        self._at = at
        self._by = by
        self.events: list[PeopleEvent] = []

    def get_person(self, identity: str, *, proof: IdentityProof = IdentityProof.SEEN) -> str:
        """Return the person of an identity; make one with this proof if it was never seen."""
        record = self._identities.get(identity)
        if record is not None:
            return record.person
        person = self._make_person("")
        self._add_link(identity, person, proof, since=0.0)
        return person

    def get_label(self, person: str) -> str:
        return self._persons[person].label

    def get_labelled(self, label: str) -> str:
        """Return the person with this label; make one if there is none."""
        found = self._find_label(label)
        return found or self._make_person(label)

    def name_person(self, person: str, label: str) -> None:
        """Give a person a label. A label belongs to one person at a time."""
        if self._persons[person].label == label:
            return
        holder = self._find_label(label) if label else ""
        if holder:
            raise InvalidRequest(
                f"another person is called {label!r} already", remedy="choose another name, or link the identities"
            )
        self._add(PeopleAction.NAMED, person, note=label)

    def link_identity(self, identity: str, person: str, proof: IdentityProof, *, since: float | None = None) -> None:
        """Make one identity belong to a person. A person who is left without identities continues in the new one."""
        if person not in self._persons:
            raise NotFound(f"there is no person {person!r}", remedy="`everhold people list` shows them")
        before = self._identities.get(identity)
        if before is not None and before.person == person:
            self._renew_link(before, proof, since)
            return
        if before is not None and self._has_others(before):
            self._add(PeopleAction.UNLINKED, before.person, identity=identity)
        self._date_identities(person)
        if since is None:
            since = self._at if can_change_hands(identity) else 0.0
        self._add_link(identity, person, proof, since=since)
        if before is not None:
            self._merge_if_empty(before.person, person)

    def _renew_link(self, before: IdentityRecord, proof: IdentityProof, since: float | None) -> None:
        """Give a link another proof, or another start if there is one. The identity stays with its person."""
        since = self._find_start(before) if since is None else since
        if (before.proof, before.since) == (proof, since):
            return
        if since > before.since and self._has_others(before):
            self._add(PeopleAction.UNLINKED, before.person, identity=before.identity)  # what is older is taken away
        self._add_link(before.identity, before.person, proof, since=since)

    def _date_identities(self, person: str) -> None:
        """Let the ids of a person that can change hands count from now on, because the person gets company.

        Before, they stood for themselves alone, so nobody had to know since when.
        """
        for record in [it for it in self._identities.values() if it.person == person]:
            start = self._find_start(record)
            if start != record.since:
                self._add_link(record.identity, person, IdentityProof(record.proof), since=start)

    def _find_start(self, record: IdentityRecord) -> float:
        """Return from when on an identity stands for its person, if it is linked to another one now. A proof that it
        has keeps its start.
        """
        return self._at if can_change_hands(record.identity) and not record.is_proven else record.since

    def prove_identity(self, identity: str, proof: IdentityProof) -> None:
        """Record a proof for an identity that stays with its person. An earlier proof stays."""
        person = self.get_person(identity)
        if not self._identities[identity].is_proven:
            self.link_identity(identity, person, proof)

    def join_people(
        self, person: str, other: str, proof: IdentityProof, *, proven: Collection[str] | None = None
    ) -> None:
        """Make every identity of `other` belong to `person`. `proof` is for those in `proven`; None: for all."""
        if proven is None:
            proven = {it.identity for it in self._identities.values() if it.person == other}
        if person == other:
            return
        self._date_identities(person)
        for record in [it for it in self._identities.values() if it.person == other]:
            # What was not proven before does not become proven by the proof of another identity.
            kept = record.proof if record.identity not in proven else proof
            self._add_link(record.identity, person, IdentityProof(kept), since=self._find_start(record))
        self._merge_if_empty(other, person)

    def unlink_identity(self, identity: str) -> None:
        """Take an identity away from its person. It goes back to the person that it was before, else to a new one."""
        before = self._identities.get(identity)
        if before is None:
            raise NotFound(f"{identity} belongs to nobody", remedy="`everhold people list` shows the identities")
        if not self._has_others(before) and not self._persons[before.person].label:
            if before.is_proven:  # it is a person of its own already, but not a proven one any more
                self._add_link(identity, before.person, IdentityProof.SEEN, since=before.since)
            return
        self._add(PeopleAction.UNLINKED, before.person, identity=identity)
        self._add_link(identity, self._restore_former(before), IdentityProof.SEEN, since=0.0)

    def forget_person(self, person: str) -> None:
        """Remove the label and the identities of a person. An identity that speaks again is a new person.

        Identities that were one person leave each other like by an unlink, so that no chat of one still leads to a
        session of another.
        """
        identities = [it.identity for it in self._identities.values() if it.person == person]
        for identity in identities if len(identities) > 1 else ():
            self._add(PeopleAction.UNLINKED, person, identity=identity)
        self._add(PeopleAction.FORGOTTEN, person)

    def forget_identities(self, person: str, identities: Collection[str]) -> None:
        """Remove these identities of a person, who keeps the label and the other identities."""
        for identity in identities:
            self._add(PeopleAction.UNLINKED, person, identity=identity)

    def _has_others(self, record: IdentityRecord) -> bool:
        """Return whether the person of an identity has other identities."""
        return any(it.person == record.person and it.identity != record.identity for it in self._identities.values())

    def _find_label(self, label: str) -> str:
        return next((it.id for it in self._persons.values() if it.label == label and not it.merged_into), "")

    def _make_person(self, label: str) -> str:
        person = self._new_id()
        while person in self._persons:
            person = self._new_id()
        self._add(PeopleAction.MADE, person, note=label)
        return person

    def _restore_former(self, record: IdentityRecord) -> str:
        """Return the person that an identity was before it was linked, if that person was merged; else a new one."""
        former = self._persons.get(record.former)
        if former is None or former.merged_into != record.person or former.forgotten_at:
            return self._make_person("")
        self._add(PeopleAction.MADE, former.id)
        return former.id

    def _merge_if_empty(self, person: str, into: str) -> None:
        if not any(it.person == person for it in self._identities.values()):
            self._add(PeopleAction.MERGED, person, note=into)

    def _add_link(self, identity: str, person: str, proof: IdentityProof, *, since: float) -> None:
        self._add(PeopleAction.LINKED, person, identity=identity, proof=proof, since=since)

    def _add(
        self,
        action: PeopleAction,
        person: str,
        *,
        identity: str = "",
        proof: str = "",
        since: float = 0.0,
        note: str = "",
    ) -> None:
        event = PeopleEvent(
            action=action,
            person=person,
            identity=identity,
            proof=str(proof),
            since=since,
            note=note,
            by=self._by,
            at=self._at,
        )
        apply_event(self._persons, self._identities, event)
        self.events.append(event)


class ConfiguredPerson(Struct, frozen=True):
    """A person as the configuration has them."""

    label: str
    identities: tuple[str, ...] = ()
    token_identities: tuple[str, ...] = ()
    """Identities of tokens that speak for the person."""


def plan_configured_people(
    directory: PeopleDirectory,
    people: Sequence[ConfiguredPerson],
    *,
    new_id: Callable[[], str],
    at: float,
) -> list[PeopleEvent]:
    """Return the events that make the directory agree with the configuration. The configuration wins.

    An entry that shares an identity with an existing person is that person. An identity that was taken out of the
    configuration is unlinked.
    """
    planner = PeoplePlanner(directory, new_id=new_id, at=at, by="config")
    wanted = {identity: IdentityProof.CONFIG for it in people for identity in it.identities}
    wanted |= {identity: IdentityProof.TOKEN for it in people for identity in it.token_identities}
    for record in directory.identities.values():
        if record.proof in (IdentityProof.CONFIG, IdentityProof.TOKEN) and record.identity not in wanted:
            planner.unlink_identity(record.identity)
    labels = {entry.label for entry in people}
    for entry in people:
        person = _find_configured_person(planner, directory, entry, labels)
        for identity in (*entry.identities, *entry.token_identities):
            planner.link_identity(identity, person, wanted[identity])
    return planner.events


def _find_configured_person(
    planner: PeoplePlanner, directory: PeopleDirectory, entry: ConfiguredPerson, labels: Collection[str]
) -> str:
    """Return the person of an entry: by its label; else by the oldest of its identities, unless another entry names
    that person; else a new one.
    """
    named = directory.resolve_name(entry.label)
    if named is not None and named.label == entry.label:
        return named.id
    names = entry.identities or entry.token_identities
    known = [directory.identities[it] for it in names if it in directory.identities]
    for record in sorted(known, key=lambda it: (it.at, it.identity)):
        label = planner.get_label(record.person)
        if label not in labels:
            if entry.identities or not label:  # a name that an operator gave stays, unless `people` gives another
                planner.name_person(record.person, entry.label)
            return record.person
    return planner.get_labelled(entry.label)
