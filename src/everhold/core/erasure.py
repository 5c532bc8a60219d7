"""The durable state of a forgetting: the places that hold a person's data, and how far each has come. Pure.

A place is confirmed only after it was read back twice. What it was asked to delete is recorded until then, and filters
everything that the place still finds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct, structs

from everhold.core.entries import Began, Entry, EntryKind, StoredRecord, Took
from everhold.core.exchange import build_exchange_key, build_note_key
from everhold.core.wording import describe_count
from everhold.ports.memory import ErasureState, ProviderDeletion

UNCONFIRMED_AFTER_SECONDS: Final = 24 * 3_600.0
"""How long after it was asked a place that still shows the data, or cannot be read, is unconfirmed."""
ASK_AGAIN_SECONDS: Final = 24 * 3_600.0
"""How often an unconfirmed place is asked again."""
INTERRUPTED_ID: Final = "interrupted"
"""The id of the deletion that stands for what an interrupted request may have deleted. No provider knows it."""
DETACHED_ID: Final = "detached"
"""The id of the deletion that stands for what a memory has that is not in the configuration any more."""
_STATE_ORDER: Final = (
    ErasureState.PLANNED,
    ErasureState.ASKED,
    ErasureState.UNCONFIRMED,
    ErasureState.CANNOT,
    ErasureState.CONFIRMED,
)
"""The first state that a part is in is the state of the whole."""
_SPOKEN_KINDS: Final = frozenset({EntryKind.HEARD, EntryKind.SAID, EntryKind.THOUGHT, EntryKind.RETURNED})
_OPEN_STATES: Final = frozenset({ErasureState.PLANNED, ErasureState.ASKED, ErasureState.UNCONFIRMED})


class ErasureMoment(Struct, frozen=True):
    """When a forgetting began, by the log and by the clock. The log decides; the clock is for what has no position."""

    pos: int
    at: float


class DeletionRecord(StoredRecord, frozen=True, kw_only=True):
    """One deletion of a provider, and when it was asked for and last read back."""

    deletion: ProviderDeletion
    asked_at: float = 0.0
    """When it was first asked for."""
    clean_at: float = 0.0
    """When reading back found nothing for the first time in a row; 0: it found something, or was not tried."""
    accepted_at: float = 0.0
    """When an operator accepted that it cannot be deleted; 0: nobody did."""

    @property
    def state(self) -> ErasureState:
        return self.deletion.state

    @property
    def can_show(self) -> bool:
        """Whether a recall, a tool or an export of the provider may still show it."""
        return self.state is not ErasureState.CONFIRMED and not self.deletion.hidden and not self.accepted_at


class PlaceErasure(StoredRecord, frozen=True, kw_only=True):
    """One memory of one agent in a forgetting."""

    agent: str
    memory: str
    deletions: tuple[DeletionRecord, ...] = ()
    first_tried_at: float = 0.0
    asked_at: float = 0.0
    """When it was last asked; 0: not yet."""
    began_at: float = 0.0
    """When a request began whose answer is not recorded; 0: every answer is."""
    is_interrupted: bool = False
    """An earlier request began, and its answer was lost. It may have deleted something that nothing names any more."""
    problem: str = ""
    """Why it could not be asked or read back."""
    new_names: Mapping[str, str] = {}
    """Hash of a session's name in the memory -> the name under which its conversation goes on. It is stored before
    it is used, so that it is the same after a crash. The old name may be made of a title, so only its hash is kept."""

    @property
    def state(self) -> ErasureState:
        if self.is_detached:
            return ErasureState.CANNOT
        if not self.asked_at:
            return ErasureState.UNCONFIRMED if self.is_overdue else ErasureState.PLANNED
        return combine_states(it.state for it in self.deletions)

    is_overdue: bool = False
    """It could not even be asked for a day."""

    @property
    def is_open(self) -> bool:
        return self.state in _OPEN_STATES

    @property
    def is_detached(self) -> bool:
        """Whether the memory was not in the configuration when it was to be asked."""
        return any(it.deletion.id == DETACHED_ID for it in self.deletions)

    @property
    def accepted_at(self) -> float:
        """When an operator accepted the last of what it cannot delete; 0: not all of it."""
        accepted = [it.accepted_at for it in self.deletions if it.state is ErasureState.CANNOT]
        return max(accepted) if accepted and all(accepted) else 0.0

    @property
    def can_show(self) -> bool:
        """Whether the memory may still show something that is being erased."""
        return not self.asked_at or any(it.can_show for it in self.deletions)


class PersonErasure(StoredRecord, frozen=True, kw_only=True):
    """A forgetting. It is stored as a state record, and its beginning and end are in the erasures file, too, because a
    restore of the store must not lose them.
    """

    identities: tuple[str, ...]
    starts: Mapping[str, float] = {}
    """Those identities that stand for the person only from a time on. What they said before is a former owner's."""
    at: float
    upto_pos: int = 0
    """The last entry of the log when it began. Later ones are of somebody who came back."""
    by: str = ""
    label: str = ""
    """The person's name, until the forgetting is finished."""
    audiences: tuple[tuple[str, ...], ...] = ()
    """The audiences of what was erased. A memory may have concluded something for any of them."""
    places: tuple[PlaceErasure, ...] = ()
    rebuild: bool = False
    log_erased_at: float = 0.0
    """When the last of it was gone from the log; 0: not yet. Older backups contain it."""

    @property
    def moment(self) -> ErasureMoment:
        return ErasureMoment(self.upto_pos, self.at)

    @property
    def names(self) -> dict[str, float]:
        """Every identity, and the time from which on it stands for the person."""
        return {it: self.starts.get(it, 0.0) for it in self.identities}

    @property
    def log_erased(self) -> bool:
        return self.log_erased_at > 0

    @property
    def id(self) -> str:
        return make_erasure_id(self.identities, self.at)

    @property
    def is_open(self) -> bool:
        return not self.log_erased or any(it.is_open for it in self.places)

    @property
    def state(self) -> ErasureState:
        if not self.log_erased:
            return ErasureState.PLANNED
        return combine_states(it.state for it in self.places)


def make_erasure_id(identities: Sequence[str], at: float) -> str:
    return hashlib.sha256(f"{at!r}\0{chr(0).join(identities)}".encode()).hexdigest()[:12]


def combine_states(states: Iterable[ErasureState]) -> ErasureState:
    """Return the state of a whole from those of its parts; confirmed if there are none."""
    given = set(states)
    return next((state for state in _STATE_ORDER if state in given), ErasureState.CONFIRMED)


def list_blocking_erasures(erasures: Iterable[PersonErasure], memory: str) -> list[PersonErasure]:
    """Return the forgettings for which a rebuild in a memory waits. A copy would look newer than the erasure."""
    return [it for it in erasures if any(place.is_open and place.memory == memory for place in it.places)]


# -- one place ---------------------------------------------------------------------------------------------------------


def record_began(place: PlaceErasure, *, now: float) -> PlaceErasure:
    """Return the place before it is asked. It is stored, because the answer may be lost."""
    return structs.replace(place, began_at=now, is_interrupted=place.is_interrupted or place.began_at > 0)


def record_asked(place: PlaceErasure, deletions: Sequence[ProviderDeletion], *, now: float) -> PlaceErasure:
    """Return the place after it was asked. What it does not name again is read back all the same, because a service
    may hide what it has not deleted yet. What it could not delete remains, too.

    If the answer of an earlier request was lost, a place that names nothing is not confirmed by that: it is asked again
    a day later, and must name nothing again.
    """
    before = {it.deletion.id: it for it in place.deletions}
    named = {it.id for it in deletions} | {_hash_id(it.id) for it in deletions}
    unnamed = [_read_interrupted(it, deletions, now) for it in place.deletions if it.deletion.id not in named]
    if place.is_interrupted and not deletions and not any(map(_is_interrupted, unnamed)):
        unnamed.append(_build_interrupted(now))
    kept = [_mark_asked(it, now) if it.state is ErasureState.PLANNED else it for it in unnamed]
    added = [_add_deletion(before.get(it.id), it, now) for it in deletions]
    asked = structs.replace(place, deletions=(*kept, *added), asked_at=now, problem="", is_overdue=False)
    return structs.replace(asked, first_tried_at=place.first_tried_at or now, began_at=0.0, is_interrupted=False)


def record_new_names(place: PlaceErasure, names: Mapping[str, str]) -> PlaceErasure:
    """Return the place with the new name of each of these sessions. It is stored before a conversation gets the
    name.
    """
    return structs.replace(place, new_names={**place.new_names, **{_hash_id(old): new for old, new in names.items()}})


def find_new_name(places: Iterable[PlaceErasure], memory: str, name: str) -> str:
    """Return the new name that was chosen for a session of a memory, for whichever agent; empty if there is none."""
    key = _hash_id(name)
    return next((it.new_names[key] for it in places if it.memory == memory and key in it.new_names), "")


def _build_interrupted(now: float) -> DeletionRecord:
    deletion = ProviderDeletion(id=INTERRUPTED_ID, what="what a request deleted whose answer was lost")
    return DeletionRecord(deletion=deletion, asked_at=now, clean_at=now)


def _is_interrupted(record: DeletionRecord) -> bool:
    return record.deletion.id == INTERRUPTED_ID


def _read_interrupted(record: DeletionRecord, deletions: Sequence[ProviderDeletion], now: float) -> DeletionRecord:
    """Return the record after the place was asked again. It has no id to read back, so the request reads it back."""
    if not _is_interrupted(record):
        return record
    if deletions:
        return structs.replace(record, clean_at=0.0)
    return _read_deletion(record, ErasureState.CONFIRMED, visible_after=ASK_AGAIN_SECONDS, now=now)


def _mark_asked(record: DeletionRecord, now: float) -> DeletionRecord:
    return structs.replace(
        record, deletion=structs.replace(record.deletion, state=ErasureState.ASKED), asked_at=now, clean_at=0.0
    )


def record_detached(place: PlaceErasure, *, items: int, now: float) -> PlaceErasure:
    """Return the place of a memory that is not in the configuration any more, so that it cannot be asked."""
    deletion = ProviderDeletion(
        id=DETACHED_ID,
        what=f"{describe_count(items, 'item')} that memory {place.memory} received" if items else "what it received",
        state=ErasureState.CANNOT,
        count=items,
        reason=f"memory {place.memory} of agent {place.agent} is not in the configuration any more: put its section "
        "back, and everhold asks it; or delete the data with the service's own tools",
    )
    return record_asked(place, [deletion], now=now)


def record_attached(place: PlaceErasure) -> PlaceErasure:
    """Return the place of a memory that is in the configuration again. It is asked as if for the first time."""
    kept = tuple(it for it in place.deletions if it.deletion.id != DETACHED_ID)
    return structs.replace(place, deletions=kept, asked_at=0.0, first_tried_at=0.0)


def record_accepted(place: PlaceErasure, *, now: float) -> PlaceErasure:
    """Return the place after an operator accepted what it cannot delete."""
    return structs.replace(
        place,
        deletions=tuple(
            structs.replace(it, accepted_at=it.accepted_at or now) if it.state is ErasureState.CANNOT else it
            for it in place.deletions
        ),
    )


def _add_deletion(known: DeletionRecord | None, deletion: ProviderDeletion, now: float) -> DeletionRecord:
    if known is not None and known.deletion == deletion and deletion.state is ErasureState.CANNOT:
        return known
    if known is None or known.state not in (ErasureState.ASKED, ErasureState.UNCONFIRMED):
        return DeletionRecord(deletion=deletion, asked_at=now)
    if deletion.state in (ErasureState.ASKED, ErasureState.PLANNED):
        # a repeat finds only what was added since, and the rest has to be gone as well
        before = known.deletion
        upto, count = max(before.upto, deletion.upto), max(before.count, deletion.count)
        deletion = structs.replace(deletion, state=known.state, reason=before.reason, upto=upto, count=count)
    # it was found again, so an earlier reading that found nothing does not count
    return DeletionRecord(deletion=deletion, asked_at=known.asked_at)


def record_problem(place: PlaceErasure, problem: str, *, now: float) -> PlaceErasure:
    """Return the place after it could not be asked or read back."""
    first = _limit_time(place.first_tried_at, now) or now
    overdue = not place.asked_at and has_passed(first, UNCONFIRMED_AFTER_SECONDS, now)
    late = structs.replace(place, first_tried_at=first, problem=problem, is_overdue=overdue)
    return structs.replace(late, deletions=tuple(_age_deletion(it, now, problem) for it in late.deletions))


def record_readback(
    place: PlaceErasure, states: Mapping[str, ErasureState], *, visible_after: float, now: float
) -> PlaceErasure:
    """Return the place after it was read back. A deletion is confirmed when nothing was found twice, `visible_after`
    seconds apart. What is not in `states` may still be there.
    """
    read = [
        _read_deletion(it, states.get(it.deletion.id, ErasureState.ASKED), visible_after=visible_after, now=now)
        if _is_unread(it)
        else it
        for it in place.deletions
    ]
    return structs.replace(place, deletions=tuple(read), problem="")


def list_unread(place: PlaceErasure) -> list[ProviderDeletion]:
    """Return the deletions that are not confirmed yet and can be read back."""
    return [] if place.is_detached else [it.deletion for it in place.deletions if _is_unread(it)]


def is_half_read(place: PlaceErasure) -> bool:
    """Return whether reading back found nothing once, and has to find nothing again."""
    return any(it.clean_at and _is_unread(it) for it in place.deletions)


def _is_unread(record: DeletionRecord) -> bool:
    return record.state in (ErasureState.ASKED, ErasureState.UNCONFIRMED) and not _is_interrupted(record)


def is_ask_due(place: PlaceErasure, *, now: float) -> bool:
    """Return whether a place is asked now: it never was, something is only planned, or it is asked again daily."""
    if not place.asked_at or any(it.state is ErasureState.PLANNED for it in place.deletions):
        return True
    repeats = place.state is ErasureState.UNCONFIRMED or any(map(_is_interrupted, place.deletions))
    # after the clock was set back, nobody knows how long ago it was asked
    return repeats and (place.asked_at > now or has_passed(place.asked_at, ASK_AGAIN_SECONDS, now))


def has_passed(since: float, seconds: float, now: float) -> bool:
    """Return whether a duration is over. A clock that was set back does not end it."""
    return now - since >= seconds


def _limit_time(at: float, now: float) -> float:
    """Return a past time. If the clock was set back since, a duration begins anew, and does not last until then."""
    return min(at, now)


def _read_deletion(record: DeletionRecord, state: ErasureState, *, visible_after: float, now: float) -> DeletionRecord:
    if state is not ErasureState.CONFIRMED:
        return _age_deletion(structs.replace(record, clean_at=0.0), now, "it is still there")
    if not record.clean_at or record.clean_at > now:
        return structs.replace(record, clean_at=now)
    if not has_passed(record.clean_at, visible_after, now):
        return record
    # the id may be made of a title, so it is not kept longer than it is needed
    done = structs.replace(record.deletion, state=ErasureState.CONFIRMED, reason="", session="")
    return structs.replace(record, deletion=structs.replace(done, id=_hash_id(done.id)))


def _hash_id(id: str) -> str:
    return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _age_deletion(record: DeletionRecord, now: float, reason: str) -> DeletionRecord:
    """Return a deletion that was asked for long ago as unconfirmed."""
    record = structs.replace(record, asked_at=_limit_time(record.asked_at, now))
    if record.state is not ErasureState.ASKED or not has_passed(record.asked_at, UNCONFIRMED_AFTER_SECONDS, now):
        return record
    return structs.replace(
        record, deletion=structs.replace(record.deletion, state=ErasureState.UNCONFIRMED, reason=reason)
    )


# -- what was erased ---------------------------------------------------------------------------------------------------


def list_kept_keys(session: str, entries: Sequence[Entry]) -> list[str]:
    """Return the keys of the items that contain nothing erased."""
    gone = set(list_erased_keys(session, entries))
    keys = [build_note_key(session, it.seq) for it in entries if it.body is not None and it.kind is EntryKind.NOTED]
    ops = {it.op for it in entries if it.body is not None and it.op is not None and it.kind in _SPOKEN_KINDS}
    keys += [build_exchange_key(session, op) for op in sorted(ops)]
    return [key for key in keys if key not in gone]


def list_erased_keys(session: str, entries: Sequence[Entry]) -> list[str]:
    """Return the keys of the items that contain an erased entry: exchanges by their turn, and notes."""
    erased = {entry.seq for entry in entries if entry.body is None}
    keys = [build_note_key(session, e.seq) for e in entries if e.body is None and e.kind is EntryKind.NOTED]
    ops = {e.op for e in entries if e.body is None and e.op is not None and e.kind in _SPOKEN_KINDS}
    ops |= {
        e.op
        for e in entries
        if isinstance(e.body, Began | Took) and e.op is not None and not erased.isdisjoint(e.body.takes)
    }
    keys += [build_exchange_key(session, op) for op in sorted(ops)]
    return keys


def is_concerned(erasure: PersonErasure, audience: Collection[str]) -> bool:
    """Return whether a memory may have concluded something for this audience from what is being erased."""
    members = {f"person:{identity}" for identity in erasure.identities}.union(*erasure.audiences)
    return not members.isdisjoint(audience)


class _ErasureLine(Struct, frozen=True):
    """A line of an erasures file: erased entries of a session, or a person who is forgotten."""

    session: str
    seqs: tuple[Annotated[int, Meta(ge=1)], ...]
    at: float
    seals: tuple[str, ...] = ()
    forget: tuple[str, ...] = ()
    since: dict[str, float] = {}
    done: bool | None = None


def is_erasure_line(text: bytes) -> bool:
    """Return whether a line of an erasures file from elsewhere can be used."""
    try:
        line = msgspec.json.decode(text, type=_ErasureLine)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    if line.forget:
        return line.done is not None and not line.seqs
    return not line.seals or len(line.seals) == len(line.seqs)
