"""Forgets a person: erases their entries from the log, from everything derived from it, and from every provider.

The forgetting is recorded before it begins and finished after a crash. First the log is erased, then the derived data,
then the data of every provider that can delete. The report names what cannot be deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from everhold.admin.sessions import SessionAdmin
from everhold.core import forgetting
from everhold.core.attachments import list_incoming_attachments
from everhold.core.consumers import memory_consumer
from everhold.core.entries import EntryKind, Thought
from everhold.core.recall import RecallRecord
from everhold.core.schedule import Schedule
from everhold.engine.effects import deliver_outside
from everhold.engine.recall_records import RecallRecords
from everhold.engine.state_updates import update_state_record
from everhold.errors import EverholdError, InvalidRequest
from everhold.infra.home import append_line
from everhold.ports.memory import MemoryCapability
from everhold.ports.store import Change, Session, StateNamespace, StateRecord, Step

MAX_ROUNDS: Final = 5
"""How often the log is searched again for entries that were added during the forgetting."""
SETTLE_WAIT_SECONDS: Final = 60.0
"""How long a forgetting waits for batches in flight before it reports that they are not settled."""
RETRY_SECONDS: Final = 10.0
MAX_RETRY_SECONDS: Final = 3_600.0
"""The first and the longest delay before an unfinished forgetting is retried."""


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


class ProviderErasure(Struct, frozen=True, kw_only=True):
    """One provider's part in a forgetting."""

    agent: str
    memory: str
    can: bool
    deleted: int = 0
    kept: tuple[str, ...] = ()
    """The items that still exist, one line each, with the reason."""
    done: bool = False


class ForgetReport(Struct, frozen=True, kw_only=True):
    """A plan, or its result."""

    person: str
    names: tuple[str, ...]
    done: bool
    sessions: tuple[SessionErasure, ...]
    recalls: int
    """Recall records in any session that contain something of the person."""
    dead_letters: int
    schedules: int
    """The person's schedules, which are deleted."""
    providers: tuple[ProviderErasure, ...]
    remains: tuple[str, ...]
    """What is not deleted, and why."""

    @property
    def entry_count(self) -> int:
        return sum(len(part.seqs) for part in self.sessions)


class PersonForgetter:
    """One per home. `people` maps a person to every name in the configuration; `agents` lists the configured agents."""

    def __init__(
        self,
        control: SessionAdmin,
        *,
        agents: Callable[[], Collection[str]],
        people: Callable[[str], Collection[str]] = lambda person: (person,),
        backups: Callable[[], int] = lambda: 0,
        set_aside: Callable[[], Sequence[Path]] = tuple,
        wipe_index: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`wipe_index` removes erased entries from the search index, whether or not an agent uses the index."""
        self.control = control
        self.gates = control.gates
        self.store = control.store
        self.runtimes = control.runtimes
        self.agents = agents
        self.people = people
        self.backups = backups
        self.set_aside = set_aside
        self.wipe_index = wipe_index
        self._lock = asyncio.Lock()
        """Prevents two forgettings of the same person at the same time."""
        self._unfinished_event = asyncio.Event()
        """Set when a person could not be forgotten everywhere."""

    async def plan_forgetting(self, person: str) -> ForgetReport:
        """Return what forgetting would do, without changing anything."""
        names = await self._list_names(person)
        return await self._plan_for_names(names, before=self.gates.clock.now())

    async def forget_person(self, person: str, *, by: str = "operator") -> ForgetReport:
        """Forget a person. Return what was deleted and what could not be."""
        names, at = await self._list_names(person), self.gates.clock.now()
        self._record_progress(names, at, done=False)
        return await self._forget_names(names, at=at, by=by)

    async def resume_erasures(self) -> int:
        """Continue unfinished forgettings in the log before any consumer reads it. Return their number.

        Schedules are also deleted for finished forgettings, because a restore of the store may have brought them back.
        """
        for names, at in self._read_progress(done=True).items():
            await self._remove_schedules(names, at=at)
        unfinished = self._read_unfinished()
        for names, at in unfinished.items():
            await self._erase_from_log(names, at=at, by="system")
        return len(unfinished)

    async def finish_unfinished(self) -> None:
        """Finish every forgetting that a crash or an unavailable provider left unfinished."""
        for names, at in self._read_unfinished().items():
            await self._forget_names(names, at=at, by="system")

    async def keep_finishing_unfinished(self) -> None:
        """Finish unfinished forgettings, and retry with growing delays until all are done. Runs until cancelled."""
        tries = 0
        while True:
            self._unfinished_event.clear()
            await self.finish_unfinished()
            tries = tries + 1 if self._read_unfinished() else 0
            if tries:
                await self.gates.sleep(min(MAX_RETRY_SECONDS, RETRY_SECONDS * 2.0 ** min(tries - 1, 20)))
            else:
                await self._unfinished_event.wait()

    async def _list_names(self, person: str) -> tuple[str, ...]:
        """Every name of a person: the configured ones and the linked identities."""
        if not person.strip():
            raise InvalidRequest("no person was named", remedy="name a person, or an identity such as telegram:1001")
        names = dict.fromkeys((person, *self.people(person)))
        for name in tuple(names):
            names |= dict.fromkeys(await self.store.list_identities(name))
        return tuple(names)

    async def _forget_names(self, names: tuple[str, ...], *, at: float, by: str) -> ForgetReport:
        async with self._lock:
            found = await self._run_forgetting(names, at=at, by=by)
        if not found.done:
            self._unfinished_event.set()
        return found

    async def _run_forgetting(self, names: tuple[str, ...], *, at: float, by: str) -> ForgetReport:
        planned = await self._plan_for_names(names, before=at)
        erased, recalls = await self._erase_from_log(names, at=at, by=by)
        providers = [await self._forget_in_provider(provider, names) for provider in planned.providers]
        # a turn may have recalled something from a provider before that deleted it
        later, more = await self._erase_from_log(names, at=at, by=by)
        kept = await self._wipe_index()
        done = all(provider.done for provider in providers) and not kept
        if done:
            self._record_progress(names, at, done=True)
        self.gates.log.info("person.forgotten", entries=sum(len(part.seqs) for part in (*erased, *later)), done=done)
        return msgspec.structs.replace(
            planned,
            done=done,
            sessions=(*erased, *later),
            # most records were deleted with the entries that they repeat, and are not counted twice
            recalls=max(planned.recalls, recalls + more),
            providers=tuple(providers),
            remains=(*planned.remains, *(line for provider in providers for line in provider.kept), *kept),
        )

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
        await self._remove_schedules(names, at=at)
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

    async def _remove_schedules(self, names: Collection[str], *, at: float) -> None:
        for kept in await self._list_scheduled(names, before=at):
            # delete it even if it fires, and so is rewritten, at this moment
            await update_state_record(
                self.store,
                kept.namespace,
                kept.key,
                at=self.gates.clock.now(),
                decide=lambda _: None,
                step=Step.ERASE,
            )

    async def _plan_for_names(self, names: tuple[str, ...], *, before: float) -> ForgetReport:
        parts = await self._list_personal_parts(names, before=before)
        places = {(part.session, seq) for part in parts for seq in part.seqs}
        dead_letters = sum((item.session, item.seq) in places for item in await self.store.list_dead_letters())
        remains = [
            "that the person took part: the ids of their messages, chats and sessions, and the times",
            "what other people said about them",
        ]
        if copies := self.backups():
            held = "1 backup contains it until it is" if copies == 1 else f"{copies} backups contain it until they are"
            remains.append(f"{held} replaced; restoring one forgets the person again")
        for copy in self.set_aside():
            remains.append(f"{copy}, which was set aside, contains it until you remove it")
        return ForgetReport(
            person=names[0],
            names=names,
            done=False,
            sessions=tuple(parts),
            recalls=len(await self._find_recall_blobs(names, places)),
            dead_letters=dead_letters,
            schedules=len(await self._list_scheduled(names, before=before)),
            providers=tuple(self._list_providers()),
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

    def _list_providers(self) -> list[ProviderErasure]:
        found = []
        for agent in self.agents():
            for memory in self._list_memories(agent):
                provider = self.runtimes.find_memory(memory, agent)
                can = provider is not None and provider.has_capability(MemoryCapability.FORGET)
                found.append(ProviderErasure(agent=agent, memory=memory, can=can))
        return found

    async def _forget_in_provider(self, erasure: ProviderErasure, names: Collection[str]) -> ProviderErasure:
        """Delete the person's data in one provider, after waiting for batches in flight that could bring it back."""
        what = f"{erasure.memory} (agent {erasure.agent})"
        provider = self.runtimes.find_memory(erasure.memory, erasure.agent)
        if provider is None:
            line = f"{what}: it is not available; everhold deletes its data once it is"
            return msgspec.structs.replace(erasure, kept=(line,))
        if not erasure.can:
            line = f"{what}: it cannot delete; delete its data with the provider's own tools"
            return msgspec.structs.replace(erasure, kept=(line,), done=True)
        if not await self._is_settled(erasure):
            line = f"{what}: a batch with some of the data is in flight; everhold retries"
            return msgspec.structs.replace(erasure, kept=(line,))
        deleted = 0
        kept: list[str] = []
        for name in names:
            try:
                forgotten = await deliver_outside(
                    f"forgetting in {erasure.memory}",
                    lambda name=name: provider.forget(name),  # type: ignore[misc]
                    self.gates,
                    deadline=provider.deadline,
                )
            except EverholdError as error:
                line = f"{what}: {error}; everhold retries"
                return msgspec.structs.replace(erasure, deleted=deleted, kept=(*kept, line))
            deleted += forgotten.deleted
            kept += [f"{what}: {line}" for line in forgotten.kept]
        return msgspec.structs.replace(erasure, deleted=deleted, kept=tuple(dict.fromkeys(kept)), done=True)

    async def _is_settled(self, erasure: ProviderErasure) -> bool:
        """Wait for batches in flight that contain erased entries. Return whether there are none left."""
        consumer = memory_consumer(erasure.memory)
        until = self.gates.clock.monotonic() + SETTLE_WAIT_SECONDS
        while True:
            cursors = [
                cursor for cursor in await self.store.list_cursors(consumer=consumer) if cursor.in_flight is not None
            ]
            if not any(cursor.in_flight is not None and cursor.in_flight.state == "voided" for cursor in cursors):
                return True
            if self.gates.clock.monotonic() >= until:
                return False
            await self.gates.sleep(1.0)

    def _record_progress(self, names: Sequence[str], at: float, *, done: bool) -> None:
        """Record in the erasures file that a forgetting has begun or is done. It is read at the next start."""
        if self.control.erasures is None:
            return
        line = {"session": "", "seqs": [], "forget": list(names), "at": at, "done": done}
        append_line(self.control.erasures, msgspec.json.encode(line))

    def _read_unfinished(self) -> dict[tuple[str, ...], float]:
        return self._read_progress(done=False)

    def _read_progress(self, *, done: bool) -> dict[tuple[str, ...], float]:
        """The names and times of the forgettings that are unfinished, or `done`."""
        found: dict[tuple[str, ...], float] = {}
        for record in self.control.read_erasures(about=b'"forget"'):
            if names := tuple(record.get("forget", ())):
                if record["done"] == done:
                    found[names] = record["at"]
                elif not done:
                    found.pop(names, None)
        return found

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
