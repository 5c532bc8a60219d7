"""Forgets a person: erases their entries from the log, from everything derived from it, and from every provider.

The forgetting is recorded before it begins and finished after a crash. First the log is erased, then the derived data,
then every provider is asked to delete and is read back. Each place has a state, and "deleted" is said only after
reading back. The report names what cannot be deleted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, structs

from everhold.admin.provider_erasure import SETTLE_WAIT_SECONDS, ProviderEraser
from everhold.admin.sessions import SessionAdmin
from everhold.core import forgetting
from everhold.core.attachments import list_incoming_attachments
from everhold.core.entries import EntryKind, Thought
from everhold.core.erasure import PersonErasure, PlaceErasure, combine_states, is_ask_due, is_half_read
from everhold.core.people import IdentityProof, PeoplePlanner
from everhold.core.recall import RecallRecord
from everhold.core.schedule import Schedule
from everhold.engine.effects import deliver_outside
from everhold.engine.memory.tombstones import load_erasures
from everhold.engine.recall_records import RecallRecords
from everhold.engine.state_updates import update_people, update_state_record
from everhold.errors import EverholdError, InvalidRequest
from everhold.infra.home import append_line
from everhold.ports.memory import ErasureState, ProviderDeletion
from everhold.ports.store import Change, Session, StateNamespace, StateRecord, Step

MAX_ROUNDS: Final = 5
"""How often the log is searched again for entries that were added during the forgetting."""
MAX_READ_WAIT_SECONDS: Final = 30.0
"""How long a forgetting waits before it reads back again. Longer waits are left to the next attempt."""
RETRY_SECONDS: Final = 10.0
MAX_RETRY_SECONDS: Final = 3_600.0
"""The first and the longest delay before an unfinished forgetting is continued."""
_PERSONAL_NAMESPACES: Final = (
    StateNamespace.PAIRING_REQUEST,
    StateNamespace.PAIRING_GRANT,
    StateNamespace.PAIRING_ATTEMPTS,
    StateNamespace.IDENTITY_LINK,
    StateNamespace.DM_OWNER,
)
"""State records that belong to one identity and may contain a display name."""


class SessionErasure(Struct, frozen=True, kw_only=True):
    """The entries of one session that would be, or were, erased."""

    session: str
    agent: str
    seqs: tuple[int, ...]
    alone: bool
    repeated: int
    """Entries for other people that contain words which only this person used."""
    blobs: tuple[str, ...] = ()
    """The attachments of these entries."""


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

    @property
    def title(self) -> str:
        return f"{self.place} (agent {self.agent})" if self.agent else self.place


class ErasureReport(Struct, frozen=True, kw_only=True):
    """A forgetting that has begun: whom, when, and the state of every place."""

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
        self.eraser = ProviderEraser(control.gates, control.runtimes)
        self._lock = asyncio.Lock()
        """Prevents two forgettings of the same person at the same time."""
        self._unfinished_event = asyncio.Event()
        """Set when a person could not be forgotten everywhere."""

    async def plan_forgetting(self, person: str) -> ForgetReport:
        """Return what forgetting would do, without changing anything."""
        names = await self._list_names(person)
        erasure = PersonErasure(identities=names, at=self.gates.clock.now(), places=self._list_places())
        return await self._build_plan(erasure)

    async def forget_person(self, person: str, *, by: str = "operator", rebuild: bool = False) -> ForgetReport:
        """Forget a person. Return what was deleted, and the state of every place.

        With `rebuild`, memories store the words of others anew where they can delete only both together.
        """
        names = await self._list_names(person)
        async with self._lock:
            erasure = await self._begin_erasure(names, by=by, rebuild=rebuild)
            return await self._run_forgetting(erasure, force=True)

    async def list_erasures(self) -> list[ErasureReport]:
        """Every forgetting that has begun, the newest first, with the state of every place."""
        found = sorted(await self._load_erasures(), key=lambda it: -it.at)
        return [self._report_erasure(it) for it in found]

    def _report_erasure(self, erasure: PersonErasure) -> ErasureReport:
        places = self._report_places(erasure)
        return ErasureReport(
            identities=erasure.identities,
            at=erasure.at,
            by=erasure.by,
            state=combine_states(it.state for it in places),
            places=places,
        )

    async def resume_erasures(self, *, restored: bool = False) -> int:
        """Continue unfinished forgettings in the log before any consumer reads it. Return their number.

        What lies outside of the log is also removed for finished forgettings, because a restore of the store may have
        brought it back. With `restored`, so are entries: under every identity that the person had when they were
        forgotten, also those that the restored store does not know as theirs.
        """
        for erasure in self._read_erasures(done=True):
            await self._remove_records(erasure.identities, at=erasure.at, undated=restored)
            if restored:
                await self._erase_from_log(erasure.identities, at=erasure.at, by="system")
        unfinished = self._read_erasures(done=False)
        for erasure in unfinished:
            await self._restore_record(erasure)
            known = await self._load_erasure(erasure.id) or erasure
            await self._save_audiences(known, await self._build_plan(known))
            await self._remove_records(erasure.identities, at=erasure.at)
            await self._erase_from_log(erasure.identities, at=erasure.at, by="system")
        return len(unfinished)

    async def finish_unfinished(self) -> None:
        """Continue every forgetting that a crash or a provider left unfinished."""
        for erasure in self._read_erasures(done=False):
            async with self._lock:
                known = await self._load_erasure(erasure.id)
                await self._run_forgetting(known or erasure)

    async def keep_finishing_unfinished(self) -> None:
        """Continue unfinished forgettings with growing delays until every place is confirmed or cannot. Runs until
        cancelled.
        """
        tries = 0
        while True:
            self._unfinished_event.clear()
            await self.finish_unfinished()
            tries = tries + 1 if self._read_erasures(done=False) else 0
            if tries:
                seconds = min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** min(tries - 1, 20))
                await self.gates.sleep(seconds)
            else:
                await self._unfinished_event.wait()

    async def _list_names(self, person: str) -> tuple[str, ...]:
        """Every identity of the person that a label, an identity or a person's id means. A person whose forgetting is
        unfinished is still known by name.
        """
        if not person.strip():
            raise InvalidRequest("no person was named", remedy="name a person, or an identity such as telegram:1001")
        people = await self.store.get_people()
        if people.resolve_name(person) is None:
            for erasure in await self._load_erasures():
                if erasure.is_open and (person == erasure.label or person in erasure.identities):
                    return erasure.identities
        return people.list_names(person)

    # -- one forgetting ----------------------------------------------------------------------------------------------

    async def _begin_erasure(self, names: tuple[str, ...], *, by: str, rebuild: bool) -> PersonErasure:
        """Record a forgetting before anything is erased. It continues an unfinished one of the same identities."""
        label = (await self.store.get_people()).find_label(names[0])
        erasure = PersonErasure(
            identities=names, at=self.gates.clock.now(), by=by, label=label, places=self._list_places(), rebuild=rebuild
        )
        before = [it for it in await self._load_erasures() if it.is_open and it.identities == names]
        for one in before:
            known = {(it.agent, it.memory): it for it in one.places}
            erasure = structs.replace(
                erasure,
                label=erasure.label or one.label,
                audiences=tuple(dict.fromkeys((*erasure.audiences, *one.audiences))),
                # each is asked again, because the person may have said something since
                places=tuple(
                    structs.replace(known.get((it.agent, it.memory), it), asked_at=0.0) for it in erasure.places
                ),
            )
        self._record_progress(erasure, done=False)
        await self._save_erasure(erasure)
        for one in before:
            self._record_progress(one, done=True)
            await self._drop_record(one)
        return erasure

    async def _run_forgetting(self, erasure: PersonErasure, *, force: bool = False) -> ForgetReport:
        """Erase what is left, ask every place that is due, and read back. With `force`, ask every place that is not
        confirmed.
        """
        names, at = erasure.identities, erasure.at
        plan = await self._build_plan(erasure)
        erasure = await self._save_audiences(erasure, plan)
        records = await self._remove_records(names, at=at)
        erased, recalls = await self._erase_from_log(names, at=at, by=erasure.by)
        erasure = await self._ask_places(erasure, force=force)
        erasure = await self._read_places(erasure)
        # a turn may have recalled something from a provider before that deleted it
        later, more = await self._erase_from_log(names, at=at, by=erasure.by)
        problems = await self._wipe_index()
        erasure = structs.replace(erasure, log_erased=not problems)
        if not erasure.is_open:
            erasure = structs.replace(erasure, label="")
        await self._save_erasure(erasure)
        if erasure.is_open:
            self._unfinished_event.set()
        else:
            self._record_progress(erasure, done=True)
        entries = sum(len(part.seqs) for part in (*erased, *later))
        self.gates.log.info("person.forgotten", entries=entries, done=not erasure.is_open)
        report = self._report_erasure(erasure)
        return structs.replace(
            plan,
            state=report.state,
            sessions=(*erased, *later),
            # most records were deleted with the entries that they repeat, and are not counted twice
            recalls=max(plan.recalls, recalls + more),
            records=max(plan.records, records),
            places=report.places,
            remains=(*plan.remains, *_describe_places(report.places), *problems),
        )

    async def _save_audiences(self, erasure: PersonErasure, plan: ForgetReport) -> PersonErasure:
        """Record who could read what is about to be erased, because afterwards nobody knows."""
        found = list(erasure.audiences)
        for part in plan.sessions:
            for entry in await self.store.list_entries(part.session):
                stamp = forgetting.get_stamp(entry)
                if entry.seq in part.seqs and stamp is not None:
                    found.append(tuple(stamp.audience))
        audiences = tuple(it for it in dict.fromkeys(found) if it)
        if audiences != erasure.audiences:
            erasure = structs.replace(erasure, audiences=audiences)
            await self._save_erasure(erasure)
        return erasure

    async def _ask_places(self, erasure: PersonErasure, *, force: bool) -> PersonErasure:
        now = self.gates.clock.now()
        places = _add_missing_places(erasure.places, self._list_places())
        due = [it for it in places if is_ask_due(it, now=now) or (force and it.state is not ErasureState.CONFIRMED)]
        sessions = await self._list_sessions_of(erasure.identities) if due else []
        erasure = structs.replace(erasure, places=places)

        async def save(asked: PlaceErasure) -> None:
            nonlocal erasure
            erasure = _replace_place(erasure, asked)
            await self._save_erasure(erasure)

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
            await self._save_erasure(erasure)
        return erasure

    def _list_places(self) -> tuple[PlaceErasure, ...]:
        return tuple(
            PlaceErasure(agent=agent, memory=memory) for agent in self.agents() for memory in self._list_memories(agent)
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
            )
            for it in erasure.places
        ]
        return (PlaceReport(place="log", state=log), *memories, *self._report_backups(erasure.at))

    def _report_backups(self, at: float) -> list[PlaceReport]:
        held = self.backups(at)
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

    async def _wipe_index(self) -> list[str]:
        """Remove erased entries from the search index. Return a line with the error if that fails."""
        if self.wipe_index is not None:
            try:
                await deliver_outside("wiping the index", self.wipe_index, self.gates, deadline=SETTLE_WAIT_SECONDS)
            except EverholdError as error:
                return [f"the search index: {error}; everhold retries"]
        return []

    async def _erase_from_log(self, names: tuple[str, ...], *, at: float, by: str) -> tuple[list[SessionErasure], int]:
        """Erase the person's entries from the log, with their recall records and attachments. Return the erased entries
        and the number of recall records."""
        erased: list[SessionErasure] = []
        records = RecallRecords(self.store)
        for _ in range(MAX_ROUNDS):
            found = await self._list_personal_parts(names, before=at)
            if not found:
                break
            for part in found:
                why = "a person was forgotten"
                await self.control.erase_entries(part.session, part.seqs, by=by, why=why, records=records)
            erased += found
        recalls = await self._find_recall_blobs(names, {(part.session, seq) for part in erased for seq in part.seqs})
        blobs = await self._find_unshared({blob for part in erased for blob in part.blobs})
        if recalls or blobs:
            now = self.gates.clock.now()
            await self.store.commit(Change(step=Step.ERASE, session="", at=now, drop_blobs=(*recalls, *blobs)))
        return erased, len(recalls)

    async def _list_scheduled(self, names: Collection[str], *, before: float) -> list[StateRecord]:
        """The state records of the schedules that the person made by then."""
        found = []
        for kept in await self.store.list_state_records(StateNamespace.SCHEDULE):
            schedule = msgspec.json.decode(kept.value, type=Schedule)
            if schedule.made <= before and forgetting.is_scheduled_by(schedule, names):
                found.append(kept)
        return found

    async def _remove_records(self, names: Collection[str], *, at: float, undated: bool = True) -> int:
        """Delete what is stored about the person outside of the log. Return the number of records. Without `undated`,
        records stay that do not say when they were made, because the person may have come back since.
        """
        found = await self._list_records(names, before=at)
        gone = [it for it in found if undated or forgetting.read_record_time(it)]
        for kept in (*await self._list_scheduled(names, before=at), *gone):
            # delete it even if it is rewritten at this moment
            await update_state_record(
                self.store,
                kept.namespace,
                kept.key,
                scope=kept.scope,
                at=self.gates.clock.now(),
                decide=lambda _: None,
                step=Step.ERASE,
            )
        await self._forget_identities(names, at=at)
        return len(gone)

    async def _list_records(self, names: Collection[str], *, before: float) -> list[StateRecord]:
        """The pairing requests and grants, link offers and owners of direct chats of these identities."""
        found = []
        for namespace in _PERSONAL_NAMESPACES:
            for kept in await self.store.list_state_records(namespace):
                if forgetting.is_record_of(kept, names) and forgetting.read_record_time(kept) <= before:
                    found.append(kept)
        return found

    async def _forget_identities(self, names: Collection[str], *, at: float) -> None:
        """Remove the label and the links of the person. An identity that speaks again is a new person."""

        def plan(planner: PeoplePlanner) -> None:
            for person in dict.fromkeys(
                it.person for it in people.identities.values() if it.identity in names and it.at <= at
            ):
                planner.forget_person(person)

        people = await self.store.get_people()
        if any(it.identity in names and it.at <= at for it in people.identities.values()):
            now = self.gates.clock.now()
            await update_people(self.store, chance=self.gates.chance, at=now, by="operator", plan=plan)

    async def _list_former(self, names: Collection[str]) -> tuple[str, ...]:
        """Identities that once belonged to the same person, and do not any more."""
        people = await self.store.get_people()
        persons = {it.person for it in people.identities.values() if it.identity in names}
        former: list[str] = []
        after = 0
        while page := await self.store.list_people_events(after=after):
            former += [it.identity for it in page if it.person in persons and it.identity and it.identity not in names]
            after = page[-1].n
        return tuple(dict.fromkeys(former))

    async def _build_plan(self, erasure: PersonErasure) -> ForgetReport:
        names, before = erasure.identities, erasure.at
        parts = await self._list_personal_parts(names, before=before)
        places = {(part.session, seq) for part in parts for seq in part.seqs}
        dead_letters = sum((item.session, item.seq) in places for item in await self.store.list_dead_letters())
        former = await self._list_former(names)
        remains = [
            "that the person took part: the ids of their messages, chats and sessions, and the times",
            "what other people said about them",
        ]
        people = await self.store.get_people()
        given = [it for it in names if it in people.identities and people.identities[it].proof == IdentityProof.CONFIG]
        if given:
            remains.append(f"config.yaml, which names {', '.join(given)} under people; remove it there")
        if former:
            remains.append(f"identities that were linked to the person once and are not now: {', '.join(former)}")
        return ForgetReport(
            person=names[0],
            names=names,
            former=former,
            state=ErasureState.PLANNED,
            sessions=tuple(parts),
            recalls=len(await self._find_recall_blobs(names, places)),
            dead_letters=dead_letters,
            schedules=len(await self._list_scheduled(names, before=before)),
            records=len(await self._list_records(names, before=before)),
            places=self._report_places(erasure),
            remains=tuple(remains),
        )

    async def _list_personal_parts(self, names: tuple[str, ...], *, before: float) -> list[SessionErasure]:
        """The person's entries in each session that are not erased yet and were written by `before`."""
        sessions = [session async for session in self._iterate_sessions()]
        others: set[str] = set()
        concerned: list[Session] = []
        for session in sessions:
            entries = await self.store.list_entries(session.id)
            others |= forgetting.collect_words_of_others(entries, names)
            if any(forgetting.is_spoken_by(entry, names) for entry in entries):
                concerned.append(session)
            await asyncio.sleep(0)
        found = []
        for session in concerned:
            entries = [entry for entry in await self.store.list_entries(session.id) if entry.at <= before]
            part = forgetting.select_personal_entries(entries, names, others=others)
            if part.seqs:
                found.append(
                    SessionErasure(
                        session=session.id,
                        agent=session.agent,
                        seqs=part.seqs,
                        alone=part.sole_speaker,
                        repeated=len(part.repeated),
                        blobs=tuple(
                            attachment.blob
                            for entry in entries
                            if entry.seq in part.seqs
                            for attachment in list_incoming_attachments(entry)
                        ),
                    )
                )
            await asyncio.sleep(0)
        return found

    async def _find_recall_blobs(self, names: Collection[str], places: Collection[tuple[str, int]]) -> list[str]:
        """The blobs of recall records, in any session, that contain something of the person."""
        found: list[str] = []
        async for session in self._iterate_sessions():
            for entry in await self.store.list_entries(session.id, kinds=(EntryKind.THOUGHT,)):
                if not isinstance(entry.body, Thought) or not entry.body.why:
                    continue
                blob = await self.store.get_blob(entry.body.why)
                why = msgspec.json.decode(blob, type=RecallRecord) if blob else None
                if why is not None and _is_about_person(why, names, places):
                    blobs = (entry.body.why, entry.body.recall)
                    found += [digest for digest in blobs if digest and await self.store.get_blob(digest)]
            await asyncio.sleep(0)
        return list(dict.fromkeys(found))

    async def _find_unshared(self, blobs: set[str]) -> set[str]:
        """The attachments that no other entry contains."""
        if not blobs:
            return blobs
        async for session in self._iterate_sessions():
            for entry in await self.store.list_entries(session.id, kinds=(EntryKind.HEARD, EntryKind.RETURNED)):
                blobs -= {attachment.blob for attachment in list_incoming_attachments(entry)}
        return blobs

    def _list_memories(self, agent: str) -> tuple[str, ...]:
        return self.runtimes.get_runtime(agent, {}).all_memories

    async def _list_sessions_of(self, names: Collection[str]) -> list[Session]:
        """The sessions in which the person spoke. An erased entry still has its author."""
        found = []
        async for session in self._iterate_sessions():
            entries = await self.store.list_entries(session.id)
            if any(forgetting.is_spoken_by(entry, names) for entry in entries):
                found.append(session)
            await asyncio.sleep(0)
        return found

    # -- durable state -----------------------------------------------------------------------------------------------

    async def _load_erasures(self) -> list[PersonErasure]:
        return await load_erasures(self.store)

    async def _load_erasure(self, id: str) -> PersonErasure | None:
        kept = await self.store.get_state_record(StateNamespace.ERASURE, id)
        return None if kept is None else msgspec.json.decode(kept.value, type=PersonErasure)

    async def _save_erasure(self, erasure: PersonErasure) -> None:
        text = msgspec.json.encode(erasure).decode()
        await self._write_record(erasure.id, lambda _: text)

    async def _restore_record(self, erasure: PersonErasure) -> None:
        """Store the record of a forgetting again if the store was restored from before it began."""
        text = msgspec.json.encode(structs.replace(erasure, places=self._list_places())).decode()
        await self._write_record(erasure.id, lambda present: present or text)

    async def _drop_record(self, erasure: PersonErasure) -> None:
        await self._write_record(erasure.id, lambda _: None)

    async def _write_record(self, id: str, decide: Callable[[str | None], str | None]) -> None:
        now = self.gates.clock.now()
        await update_state_record(self.store, StateNamespace.ERASURE, id, at=now, decide=decide, step=Step.ERASE)

    def _record_progress(self, erasure: PersonErasure, *, done: bool) -> None:
        """Record in the erasures file that a forgetting has begun or is done. It is read at the next start, also of a
        store that was restored.
        """
        if self.control.erasures is None:
            return
        line = {"session": "", "seqs": [], "forget": list(erasure.identities), "at": erasure.at, "done": done}
        if erasure.rebuild:
            line["rebuild"] = True
        append_line(self.control.erasures, msgspec.json.encode(line))

    def _read_erasures(self, *, done: bool) -> list[PersonErasure]:
        """The forgettings that are unfinished, or `done`, as far as the erasures file knows them."""
        found: dict[str, PersonErasure] = {}
        finished: set[str] = set()
        for line in self.control.read_erasures(about=b'"forget"'):
            if names := tuple(line.get("forget", ())):
                rebuild = bool(line.get("rebuild"))
                one = PersonErasure(identities=names, at=line["at"], by="system", rebuild=rebuild)
                found[one.id] = one
                if line["done"]:
                    finished.add(one.id)
        return [it for it in found.values() if (it.id in finished) == done]

    async def _iterate_sessions(self) -> AsyncIterator[Session]:
        after = ""
        while page := await self.store.list_sessions(limit=500, after=after):
            for session in page:
                yield session
            after = page[-1].id


def _is_about_person(why: RecallRecord, names: Collection[str], places: Collection[tuple[str, int]]) -> bool:
    traces = (*why.facts, *why.shown, *why.left_out)
    return any(one.person in names or (one.session, one.seq) in places for one in traces) or any(
        f"person:{name}" in why.audience for name in names
    )


def _replace_place(erasure: PersonErasure, place: PlaceErasure) -> PersonErasure:
    """Return the forgetting with a new state of one of its places."""
    key = (place.agent, place.memory)
    return structs.replace(
        erasure, places=tuple(place if (it.agent, it.memory) == key else it for it in erasure.places)
    )


def _add_missing_places(places: tuple[PlaceErasure, ...], wanted: tuple[PlaceErasure, ...]) -> tuple[PlaceErasure, ...]:
    """Return the places with those memories that were attached since."""
    known = {(it.agent, it.memory) for it in places}
    return (*places, *(it for it in wanted if (it.agent, it.memory) not in known))


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
