"""Forgets a person: erases their entries from the log, from everything derived from it, and from every provider.

The forgetting is recorded before it begins and finished after a crash. First the log is erased, then the derived data,
then every provider is asked to delete and is read back. Each place has a state, and "deleted" is said only after
reading back. The report names what cannot be deleted.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, structs

from everhold.admin.erasure_records import ErasureRecords, FiledErasure
from everhold.admin.personal_data import PersonalData, SessionErasure
from everhold.admin.provider_erasure import SETTLE_WAIT_SECONDS, ProviderEraser
from everhold.admin.session_rebuild import SHARED_CHECK_SECONDS, SessionRebuilder
from everhold.admin.sessions import SessionAdmin
from everhold.config.settings import BUILTIN_MEMORY
from everhold.core import erasure as erasures
from everhold.core.erasure import PersonErasure, PlaceErasure, combine_states, is_ask_due, is_half_read, make_erasure_id
from everhold.core.forgetting import IdentityStarts
from everhold.core.people import IdentityProof
from everhold.engine.effects import deliver_outside
from everhold.engine.work_lock import WorkLock
from everhold.errors import EverholdError, InvalidRequest, LeaseLost, NotFound
from everhold.ports.memory import ErasureState, ProviderDeletion
from everhold.ports.store import Session

MAX_READ_WAIT_SECONDS: Final = 30.0
"""How long a forgetting waits before it reads back again. Longer waits are left to the next attempt."""
MAX_LISTED_QUOTES: Final = 10
"""How many messages that quote the person a report lists."""
RETRY_SECONDS: Final = 10.0
MAX_RETRY_SECONDS: Final = 3_600.0
"""The first and the longest delay before an unfinished forgetting is continued."""


class PlaceReport(Struct, frozen=True, kw_only=True):
    """One place that holds a person's data, as a report shows it."""

    place: str
    """`log`, `backups`, or the name of a memory."""
    agent: str = ""
    state: ErasureState = ErasureState.PLANNED
    asked_at: float = 0.0
    until: float = 0.0
    """For `cannot`: when the place loses the data by itself, at the earliest; 0: it does not, or nobody knows."""
    problem: str = ""
    parts: tuple[ProviderDeletion, ...] = ()
    accepted_at: float = 0.0
    """When an operator accepted what the place cannot delete; 0: nobody did, or there is more since."""

    @property
    def title(self) -> str:
        return f"{self.place} (agent {self.agent})" if self.agent else self.place


class ErasureReport(Struct, frozen=True, kw_only=True):
    """A forgetting that has begun: whom, when, and the state of every place."""

    id: str
    identities: tuple[str, ...]
    at: float
    by: str
    state: ErasureState
    places: tuple[PlaceReport, ...]


class BackupHolding(Struct, frozen=True):
    """The backups that were made before a time, and so contain what was erased then."""

    count: int = 0
    expires_at: float = 0.0
    """When the last of them is replaced, at the earliest; 0: never."""


class ForgetReport(Struct, frozen=True, kw_only=True):
    """A plan, or its result."""

    person: str
    names: tuple[str, ...]
    former: tuple[str, ...]
    """Identities that were linked to the person once. They are not included."""
    state: ErasureState
    sessions: tuple[SessionErasure, ...]
    recalls: int
    """Recall records in any session that contain something of the person."""
    dead_letters: int
    schedules: int
    """The person's schedules, which are deleted."""
    records: int
    """Pairing requests and grants, link offers and owners of direct chats, which are deleted."""
    places: tuple[PlaceReport, ...]
    remains: tuple[str, ...]
    """What is not deleted, and why."""

    @property
    def entry_count(self) -> int:
        return sum(len(part.seqs) for part in self.sessions)

    @property
    def done(self) -> bool:
        """Whether nothing more happens by itself."""
        return self.state in (ErasureState.CONFIRMED, ErasureState.CANNOT)


class PersonForgetter:
    """One per home. `agents` lists the configured agents."""

    def __init__(
        self,
        control: SessionAdmin,
        *,
        agents: Callable[[], Collection[str]],
        backups: Callable[[float], BackupHolding] = lambda _: BackupHolding(),
        set_aside: Callable[[], Sequence[Path]] = tuple,
        wipe_index: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`backups` returns the backups that were made before a time. `wipe_index` removes erased entries from the
        search index, whether or not an agent uses the index.
        """
        self.control = control
        self.gates = control.gates
        self.store = control.store
        self.runtimes = control.runtimes
        self.agents = agents
        self.backups = backups
        self.set_aside = set_aside
        self.wipe_index = wipe_index
        self._lock = WorkLock(control.gates, "forgetting")
        """Prevents two forgettings at the same time."""
        self.records = ErasureRecords(control, lock=self._lock)
        self.personal_data = PersonalData(control)
        self.eraser = ProviderEraser(control.gates, control.runtimes)
        self.rebuilder = SessionRebuilder(control, lock=self._lock)
        self._unfinished_event = asyncio.Event()
        """Set when a person could not be forgotten everywhere."""

    async def plan_forgetting(self, person: str) -> ForgetReport:
        """Return what forgetting would do, without changing anything."""
        names = await self._list_starts(person)
        erasure = PersonErasure(
            identities=tuple(names),
            starts=_select_starts(names),
            at=self.gates.clock.now(),
            upto_pos=await self.store.last_pos(),
            places=self._list_places(),
        )
        detached = await self._list_detached(await self.personal_data.list_sessions_of(names))
        return await self._build_plan(_add_missing_places(erasure, detached))

    async def forget_person(self, person: str, *, by: str = "operator", rebuild: bool = False) -> ForgetReport:
        """Forget a person. Return what was deleted, and the state of every place.

        With `rebuild`, memories store the words of others anew where they can delete only both together.
        """
        async with self._lock:
            names = await self._list_starts(person)
            erasure = await self._begin_erasure(names, by=by, rebuild=rebuild)
            return await self._run_forgetting(erasure, force=True)

    async def list_erasures(self) -> list[ErasureReport]:
        """Every forgetting that has begun, the newest first, with the state of every place."""
        found = sorted(await self.records.load_all(), key=lambda it: -it.at)
        return [self._report_erasure(it) for it in found]

    async def accept_remainders(self, id: str) -> ErasureReport:
        """Record that an operator accepts what the places of a forgetting cannot delete, or has deleted it by hand. The
        report still names it, and memories show it again as far as they have it.
        """
        async with self._lock:
            erasure = await self.records.find(id)
            if erasure is None:
                raise NotFound(f"there is no forgetting {id!r}", remedy="`everhold memory erasures` lists them")
            if not any(it.state is ErasureState.CANNOT for place in erasure.places for it in place.deletions):
                raise InvalidRequest(
                    "nothing of this forgetting is in the state cannot",
                    remedy="everhold goes on with the other places by itself; `everhold memory erasures` shows how far",
                )
            now = self.gates.clock.now()
            places = tuple(erasures.record_accepted(it, now=now) for it in erasure.places)
            erasure = structs.replace(erasure, places=places)
            await self.records.save(erasure)
            self.gates.log.info("erasure.accepted", erasure=id)
            return self._report_erasure(erasure)

    async def resume_erasures(self, *, restored: bool = False) -> int:
        """Continue unfinished forgettings in this home before any consumer reads the log. Return the number of erased
        entries.

        A forgetting that only the erasures file knows is begun again, because the store was restored from before it.
        With `restored`, the places of all may have been asked without a record of it.
        """
        if not self.store.is_exclusive and not restored:
            return await self._resume_lost()
        for filed in self._list_lost(await self.records.load_all()):
            await self._begin_again(filed)
        count = 0
        for erasure in await self.records.load_all():
            if erasure.is_open:
                erasure = _add_missing_places(erasure, self._list_places())
                done, _ = await self._erase_here(_mark_interrupted(erasure) if restored else erasure)
                count += done.entry_count
        return count

    def _list_lost(self, known: Sequence[PersonErasure]) -> list[FiledErasure]:
        """Return the forgettings that only the file knows, and that no later one of the same person includes."""
        ids = {it.id for it in known}
        newest = {it.identities: it.at for it in sorted(known, key=lambda it: it.at)}
        return [
            it
            for it in self.records.read_file()
            if not it.is_merged
            and make_erasure_id(it.identities, it.at) not in ids
            and newest.get(it.identities, -math.inf) <= it.at
        ]

    async def _resume_lost(self) -> int:
        """Begin again what a restore of a shared store has lost. What else is unfinished, another host may be at work
        on; `keep_finishing_unfinished` waits for it."""
        if not self._list_lost(await self.records.load_all()):
            return 0
        count = 0
        async with self._lock:
            lost = self._list_lost(await self.records.load_all())
            for filed in lost:
                await self._begin_again(filed)
            begun = {make_erasure_id(it.identities, it.at) for it in lost}
            for erasure in await self.records.load_all():
                if erasure.id in begun:
                    done, _ = await self._erase_here(_mark_interrupted(erasure))
                    count += done.entry_count
        return count

    async def finish_unfinished(self) -> None:
        """Continue every forgetting that a crash or a provider left unfinished."""
        for listed in await self._list_unfinished():
            try:
                async with self._lock:
                    erasure = await self.records.find(listed.id)
                    if erasure is not None and (erasure.is_open or self._list_attached(erasure)):
                        await self._run_forgetting(erasure)
            except LeaseLost:
                continue  # this host was too slow, and another one goes on with it
        if await self.control.list_interrupted_erasures():
            async with self._lock:
                await self.control.finish_interrupted_erasures()

    async def keep_finishing_unfinished(self) -> None:
        """Continue unfinished forgettings with growing delays until every place is confirmed or cannot. Runs until
        cancelled.
        """
        tries = 0
        while True:
            self._unfinished_event.clear()
            await self.finish_unfinished()
            tries = tries + 1 if await self._list_unfinished() else 0
            if tries:
                await self.gates.sleep(min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** min(tries - 1, 20)))
            elif await self._has_detached():  # the configuration may bring a memory back at any time
                await self.gates.sleep(MAX_RETRY_SECONDS, wakeup=self._unfinished_event)
            elif self.store.is_exclusive:
                await self._unfinished_event.wait()
            else:  # another host may die and leave one unfinished
                await self.gates.sleep(SHARED_CHECK_SECONDS, wakeup=self._unfinished_event)

    async def _list_unfinished(self) -> list[PersonErasure]:
        """Forgettings that are open, or whose memory is in the configuration again."""
        return [it for it in await self.records.load_all() if it.is_open or self._list_attached(it)]

    async def _has_detached(self) -> bool:
        return any(place.is_detached for it in await self.records.load_all() for place in it.places)

    async def _list_names(self, person: str) -> tuple[str, ...]:
        """Every identity of the person that a label, an identity or a person's id means. A person whose forgetting is
        unfinished is still known by name.
        """
        if not person.strip():
            raise InvalidRequest("no person was named", remedy="name a person, or an identity such as telegram:1001")
        people = await self.store.get_people()
        if people.resolve_name(person) is None:
            for erasure in await self.records.load_all():
                if erasure.is_open and (person == erasure.label or person in erasure.identities):
                    return erasure.identities
        return people.list_names(person)

    async def _list_starts(self, person: str) -> dict[str, float]:
        """Every identity of a person, and the time from which on what it said is theirs. An identity that is named
        itself stands for itself at all times.
        """
        names = await self._list_names(person)
        people = await self.store.get_people()
        starts: IdentityStarts = dict(people.list_name_starts(person))
        if people.resolve_name(person) is None:  # the links went with the forgetting that is unfinished
            starts = next((it.starts for it in await self.records.load_all() if it.identities == names), {})
        return {it: 0.0 if it == person else starts.get(it, 0.0) for it in names}

    # -- one forgetting ----------------------------------------------------------------------------------------------

    async def _begin_erasure(self, names: IdentityStarts, *, by: str, rebuild: bool) -> PersonErasure:
        """Record a forgetting before anything is erased. It continues an unfinished one of the same identities."""
        identities = tuple(names)
        erasure = PersonErasure(
            identities=identities,
            starts=_select_starts(names),
            at=self.gates.clock.now(),
            upto_pos=await self.store.last_pos(),
            by=by,
            label=(await self.store.get_people()).find_label(identities[0]),
            places=self._list_places(),
            rebuild=rebuild,
        )
        merged = [it for it in await self.records.load_all() if it.is_open and it.identities == identities]
        for one in merged:
            known = {(it.agent, it.memory): it for it in one.places}
            erasure = structs.replace(
                erasure,
                starts=_select_starts({it: min(since, one.names[it]) for it, since in erasure.names.items()}),
                label=erasure.label or one.label,
                audiences=tuple(dict.fromkeys((*erasure.audiences, *one.audiences))),
                # each is asked again, because the person may have said something since
                places=tuple(
                    structs.replace(known.pop((it.agent, it.memory), it), asked_at=0.0) for it in erasure.places
                )
                + tuple(known.values()),
            )
        self.records.file_begin(erasure)
        await self.records.save(erasure)
        for one in merged:
            if one.id != erasure.id:
                self.records.file_end(one, merged=True)
                await self.records.drop(one)
        return erasure

    async def _begin_again(self, filed: FiledErasure) -> None:
        """Record a forgetting that the store does not know. What was asked and answered before is lost with it."""
        erasure = PersonErasure(
            identities=filed.identities,
            starts=filed.starts,
            at=filed.at,
            upto_pos=await self._find_upto_pos(filed),
            by="system",
            places=self._list_places(),
            rebuild=filed.rebuild,
        )
        await self.records.save(erasure if filed.is_done else _mark_interrupted(erasure))

    async def _find_upto_pos(self, filed: FiledErasure) -> int:
        """The last position that the log had then. The clock may have gone back before, so time alone is not enough.
        A restored log may end earlier; what is written after its end is new.
        """
        return max(await self._find_pos_at(filed.at), min(filed.upto_pos, await self.store.last_pos()))

    async def _find_pos_at(self, at: float) -> int:
        """The last position of the log that was written by then."""
        last = after = 0
        while page := await self.store.read_feed(after=after):
            last = max((entry.pos for entry in page if entry.at <= at), default=last)
            after = page[-1].pos
        return last

    async def _run_forgetting(self, erasure: PersonErasure, *, force: bool = False) -> ForgetReport:
        """Erase what is left, ask every place that is due, and read back. With `force`, ask every place."""
        plan, erasure = await self._erase_here(erasure)
        erasure = await self._ask_places(erasure, force=force)
        erasure = await self._read_places(erasure)
        # a turn may have recalled something from a provider before that deleted it
        later, more = await self.personal_data.erase_entries(erasure.names, upto=erasure.moment, by=erasure.by)
        problems = await self._wipe_index()
        if not problems and (later or not erasure.log_erased):
            erasure = structs.replace(erasure, log_erased_at=self.gates.clock.now())
        if not erasure.is_open:
            erasure = structs.replace(erasure, label="")
        await self.records.save(erasure)
        if not erasure.is_open:
            self.records.file_end(erasure)
        if erasure.is_open or any(it.is_detached for it in erasure.places):
            self._unfinished_event.set()
        sessions = (*plan.sessions, *later)
        entries = sum(len(part.seqs) for part in sessions)
        self.gates.log.info("person.forgotten", entries=entries, done=not erasure.is_open)
        report = self._report_erasure(erasure)
        return structs.replace(
            plan,
            state=report.state,
            sessions=sessions,
            recalls=plan.recalls + more,
            places=report.places,
            remains=(*plan.remains, *_describe_places(report.places), *problems),
        )

    async def _erase_here(self, erasure: PersonErasure) -> tuple[ForgetReport, PersonErasure]:
        """Erase the person from the log and the state records. Return what there was, and the saved forgetting."""
        names = erasure.names
        plan = await self._build_plan(erasure)
        # afterwards nobody knows who could read it
        audiences = (*erasure.audiences, *await self.personal_data.list_audiences(plan.sessions))
        erasure = structs.replace(erasure, audiences=tuple(dict.fromkeys(audiences)))
        await self.records.save(erasure)
        # only once, because not every record says when it was made, and the person may have come back
        if not erasure.log_erased:
            await self.personal_data.remove_records(names, upto=erasure.moment)
        erased, recalls = await self.personal_data.erase_entries(names, upto=erasure.moment, by=erasure.by)
        # most records were deleted with the entries that they repeat, and are not counted twice
        return structs.replace(plan, sessions=tuple(erased), recalls=max(plan.recalls, recalls)), erasure

    async def _ask_places(self, erasure: PersonErasure, *, force: bool) -> PersonErasure:
        now = self.gates.clock.now()
        erasure = _add_missing_places(erasure, self._list_places())
        for place in self._list_attached(erasure):
            erasure = _replace_place(erasure, erasures.record_attached(place))
        configured = {(it.agent, it.memory) for it in self._list_places()}
        due = [it for it in erasure.places if (force or is_ask_due(it, now=now)) and _get_key(it) in configured]
        gone = [it for it in erasure.places if not it.is_detached and it.is_open and _get_key(it) not in configured]
        sessions: list[Session] = []
        if not erasure.log_erased or due or gone:
            sessions = await self.personal_data.list_sessions_of(erasure.identities)
            erasure = _add_missing_places(erasure, await self._list_detached(sessions))
            for place in gone:
                erasure = _replace_place(erasure, await self._detach_place(place, sessions))
            await self.records.save(erasure)

        async def save(asked: PlaceErasure) -> None:
            nonlocal erasure
            erasure = _replace_place(erasure, asked)
            await self.records.save(erasure)

        for place in due:
            await save(await self.eraser.ask_place(place, erasure, sessions, save=save))
        return erasure

    async def _read_places(self, erasure: PersonErasure) -> PersonErasure:
        """Read back twice. Between the two a service gets the time after which it shows what it has."""
        for again in (False, True):
            waiting = [it for it in erasure.places if is_half_read(it)]
            if again and not waiting:
                break
            if again:
                await self.gates.sleep(min(MAX_READ_WAIT_SECONDS, max(map(self.eraser.get_visible_after, waiting))))
            places = tuple([await self.eraser.read_back(it) for it in erasure.places])
            erasure = structs.replace(erasure, places=places)
            await self.records.save(erasure)
        return erasure

    async def _wipe_index(self) -> list[str]:
        """Remove erased entries from the search index. Return a line with the error if that fails."""
        if self.wipe_index is not None:
            try:
                await deliver_outside("wiping the index", self.wipe_index, self.gates, deadline=SETTLE_WAIT_SECONDS)
            except EverholdError as error:
                return [f"the search index: {error}; everhold retries"]
        return []

    # -- places --------------------------------------------------------------------------------------------------------

    def _list_places(self) -> tuple[PlaceErasure, ...]:
        """The memories of the configuration."""
        return tuple(
            PlaceErasure(agent=agent, memory=memory) for agent in self.agents() for memory in self._list_memories(agent)
        )

    def _list_memories(self, agent: str) -> tuple[str, ...]:
        return self.runtimes.get_runtime(agent, {}).all_memories

    def _list_attached(self, erasure: PersonErasure) -> list[PlaceErasure]:
        """The memories that were taken out of the configuration, and are in it again."""
        configured = (
            {_get_key(it) for it in self._list_places()} if any(it.is_detached for it in erasure.places) else ()
        )
        return [it for it in erasure.places if it.is_detached and _get_key(it) in configured]

    async def _list_detached(self, sessions: Collection[Session]) -> tuple[PlaceErasure, ...]:
        """The memories that received something of these sessions, and are not in the configuration any more."""
        configured = {_get_key(it) for it in self._list_places()}
        found: dict[tuple[str, str], PlaceErasure] = {}
        for session in sessions:
            for memory in await self.eraser.list_memories_of(session):
                key = (session.agent, memory)
                if key not in configured and key not in found and memory != BUILTIN_MEMORY:
                    found[key] = await self._detach_place(PlaceErasure(agent=session.agent, memory=memory), sessions)
        return tuple(found.values())

    async def _detach_place(self, place: PlaceErasure, sessions: Collection[Session]) -> PlaceErasure:
        items = await self.eraser.count_received(place, sessions)
        return erasures.record_detached(place, items=items, now=self.gates.clock.now())

    # -- reports -------------------------------------------------------------------------------------------------------

    async def _build_plan(self, erasure: PersonErasure) -> ForgetReport:
        names, upto, data = erasure.names, erasure.moment, self.personal_data
        parts = await data.list_parts(names, upto=upto)
        places = {(part.session, seq) for part in parts for seq in part.seqs}
        dead_letters = sum((item.session, item.seq) in places for item in await self.store.list_dead_letters())
        former = await data.list_former_identities(names)
        remains = [
            "that the person took part: the ids of their messages, chats and sessions, the times, and which of their "
            "identities were linked",
            "what other people said about them",
        ]
        if quotes := await data.list_quotes(names, upto=upto):
            remains.append(_describe_quotes(quotes))
        people = await self.store.get_people()
        given = [it for it in names if it in people.identities and people.identities[it].proof == IdentityProof.CONFIG]
        if given:
            remains.append(f"config.yaml, which names {', '.join(given)} under people; remove it there")
        if erasure.starts:
            remains.append(
                f"what {', '.join(sorted(erasure.starts))} said before the link, because it may be another person's"
            )
        if former:
            remains.append(f"identities that were linked to the person once and are not now: {', '.join(former)}")
        return ForgetReport(
            person=erasure.identities[0],
            names=erasure.identities,
            former=former,
            state=ErasureState.PLANNED,
            sessions=tuple(parts),
            recalls=len(await data.find_recall_blobs(names, parts, upto=upto)),
            dead_letters=dead_letters,
            schedules=len(await data.list_schedules(names, upto=upto)),
            records=len(await data.list_records(names, upto=upto)),
            places=self._report_places(erasure),
            remains=tuple(remains),
        )

    def _report_erasure(self, erasure: PersonErasure) -> ErasureReport:
        places = self._report_places(erasure)
        return ErasureReport(
            id=erasure.id,
            identities=erasure.identities,
            at=erasure.at,
            by=erasure.by,
            state=combine_states(it.state for it in places),
            places=places,
        )

    def _report_places(self, erasure: PersonErasure) -> tuple[PlaceReport, ...]:
        """The log, every memory, and the backups."""
        log = ErasureState.CONFIRMED if erasure.log_erased else ErasureState.PLANNED
        memories = [
            PlaceReport(
                place=it.memory,
                agent=it.agent,
                state=it.state,
                asked_at=it.asked_at,
                problem=self.eraser.errors.get((it.agent, it.memory), it.problem) if it.problem else "",
                parts=tuple(one.deletion for one in it.deletions),
                accepted_at=it.accepted_at,
            )
            for it in erasure.places
        ]
        # a backup that is made before the log is erased contains it
        backups = self._report_backups(erasure.log_erased_at or math.inf)
        return (PlaceReport(place="log", state=log), *memories, *backups)

    def _report_backups(self, before: float) -> list[PlaceReport]:
        held = self.backups(before)
        copies = self.set_aside()
        if not held.count and not copies:
            return []
        parts = [] if not held.count else [_describe_backups(held)]
        parts += [
            ProviderDeletion(
                id=str(path), what=str(path), state=ErasureState.CANNOT, count=1, reason="it was set aside; remove it"
            )
            for path in copies
        ]
        until = 0.0 if copies else held.expires_at
        return [PlaceReport(place="backups", state=ErasureState.CANNOT, until=until, parts=tuple(parts))]


def _get_key(place: PlaceErasure) -> tuple[str, str]:
    return place.agent, place.memory


def _replace_place(erasure: PersonErasure, place: PlaceErasure) -> PersonErasure:
    """Return the forgetting with a new state of one of its places."""
    places = tuple(place if _get_key(it) == _get_key(place) else it for it in erasure.places)
    return structs.replace(erasure, places=places)


def _add_missing_places(erasure: PersonErasure, wanted: Collection[PlaceErasure]) -> PersonErasure:
    """Return the forgetting with those places that it does not have yet."""
    known = {_get_key(it) for it in erasure.places}
    missing = tuple(it for it in wanted if _get_key(it) not in known)
    return structs.replace(erasure, places=(*erasure.places, *missing))


def _select_starts(names: IdentityStarts) -> dict[str, float]:
    """Return the identities that stand for the person only from a time on."""
    return {it: since for it, since in names.items() if since > 0}


def _mark_interrupted(erasure: PersonErasure) -> PersonErasure:
    """Return the forgetting so that no place is confirmed by naming nothing: it may have been asked before, and may
    hide what it has not deleted yet.
    """
    places = tuple(structs.replace(it, is_interrupted=it.is_interrupted or it.is_open) for it in erasure.places)
    return structs.replace(erasure, places=places)


def _describe_quotes(quotes: Sequence[str]) -> str:
    more = len(quotes) - MAX_LISTED_QUOTES
    listed = ", ".join(quotes[:MAX_LISTED_QUOTES]) + (f" and {more} more" if more > 0 else "")
    messages = "1 message" if len(quotes) == 1 else f"{len(quotes)} messages"
    return (
        f"text of theirs that others quoted or forwarded in {messages} ({listed}), because it belongs to whoever "
        "brought it; POST /api/sessions/SESSION/erase erases such a message"
    )


def _describe_backups(held: BackupHolding) -> ProviderDeletion:
    day = time.strftime("%Y-%m-%d", time.gmtime(held.expires_at))
    when = f"the last one is replaced on {day} at the earliest" if held.expires_at else "no backup replaces them"
    return ProviderDeletion(
        id="backups",
        what="1 backup contains it" if held.count == 1 else f"{held.count} backups contain it",
        state=ErasureState.CANNOT,
        count=held.count,
        reason=f"{when}; restoring one forgets the person again",
    )


def _describe_places(places: Collection[PlaceReport]) -> list[str]:
    """What is left in each place, one line each."""
    lines = []
    for place in places:
        if place.problem:
            lines.append(f"{place.title}: {place.problem}")
        for part in place.parts:
            if part.state is not ErasureState.CONFIRMED:
                reason = f": {part.reason}" if part.reason else ""
                lines.append(f"{place.title}, {part.state}: {part.what}{reason}")
    return list(dict.fromkeys(lines))
