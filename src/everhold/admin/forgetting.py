"""Forgets a person, across the log, what was made of it, and every provider.

It is written down before it begins and finished after a crash: the words go from the log, then from whatever was made
of them, then from every provider that can delete. What cannot be deleted is named.
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
"""How often it is looked again whether something came back while it was being forgotten."""
SETTLE_WAIT_SECONDS: Final = 60.0
"""How long a forgetting waits for batches on their way to be settled before it says that they are not."""
RETRY_SECONDS: Final = 10.0
MAX_RETRY_SECONDS: Final = 3_600.0
"""How long a forgetting that could not be finished waits before it is tried again, at first and at most."""


class SessionErasure(Struct, frozen=True, kw_only=True):
    """What of one session would go, or went."""

    session: str
    agent: str
    seqs: tuple[int, ...]
    alone: bool
    repeated: int
    """Entries said to, or made for, somebody else that use words only this person brought in."""
    blobs: tuple[str, ...] = ()
    """Attachments that came with it."""


class ProviderErasure(Struct, frozen=True, kw_only=True):
    """One provider's part in a forgetting."""

    agent: str
    memory: str
    can: bool
    deleted: int = 0
    kept: tuple[str, ...] = ()
    """What is still there, a line each, with the reason."""
    done: bool = False


class ForgetReport(Struct, frozen=True, kw_only=True):
    """A plan, or what came of it."""

    person: str
    names: tuple[str, ...]
    done: bool
    sessions: tuple[SessionErasure, ...]
    recalls: int
    """Records elsewhere of what a model was shown that tell of it."""
    dead_letters: int
    schedules: int
    """What they had scheduled, and nobody says any more."""
    providers: tuple[ProviderErasure, ...]
    remains: tuple[str, ...]
    """What is not deleted, and why."""

    @property
    def entry_count(self) -> int:
        return sum(len(going.seqs) for going in self.sessions)


class PersonForgetter:
    """One per home. `people` maps a person to every name the configuration knows; `agents` are those there are."""

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
        """`wipe` leaves nothing of what was erased in what is derived from the log, whoever asks that or not."""
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
        """Two who forget the same person would stand in each other's way."""
        self._unfinished_event = asyncio.Event()
        """Rings when somebody could not be forgotten everywhere."""

    async def plan_forgetting(self, person: str) -> ForgetReport:
        """What forgetting would do. Nothing is changed."""
        names = await self._list_names(person)
        return await self._plan_for_names(names, before=self.gates.clock.now())

    async def forget_person(self, person: str, *, by: str = "operator") -> ForgetReport:
        """Forget a person; what went, and what could not."""
        names, at = await self._list_names(person), self.gates.clock.now()
        self._record_progress(names, at, done=False)
        return await self._forget_names(names, at=at, by=by)

    async def resume_erasures(self) -> int:
        """Erase again what an unfinished forgetting left in the log, before anybody reads it; how many there are.

        What somebody had scheduled, a copy of the store that was put back may have brought back, whoever is finished.
        """
        for names, at in self._read_progress(done=True).items():
            await self._remove_schedules(names, at=at)
        unfinished = self._read_unfinished()
        for names, at in unfinished.items():
            await self._erase_from_log(names, at=at, by="system")
        return len(unfinished)

    async def finish_unfinished(self) -> None:
        """Finish every forgetting that a crash, or a provider that was away, left unfinished."""
        for names, at in self._read_unfinished().items():
            await self._forget_names(names, at=at, by="system")

    async def keep_finishing_unfinished(self) -> None:
        """Finish what is unfinished, and try again for as long as something is: after ten seconds, and ever later."""
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
        """Every name somebody goes by: as configured, and as they were linked."""
        if not person.strip():
            raise InvalidRequest("whom?", remedy="name a person, or an identity such as telegram:1001")
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
        gone, recalls = await self._erase_from_log(names, at=at, by=by)
        reached = [await self._forget_in_provider(reach, names) for reach in planned.providers]
        # while a provider could still be asked, something it remembered may have been recalled again
        later, more = await self._erase_from_log(names, at=at, by=by)
        kept = await self._wipe_index()
        done = all(reach.done for reach in reached) and not kept
        if done:
            self._record_progress(names, at, done=True)
        self.gates.log.info("person.forgotten", entries=sum(len(it.seqs) for it in (*gone, *later)), done=done)
        return msgspec.structs.replace(
            planned,
            done=done,
            sessions=(*gone, *later),
            # most records went with the entries they repeat, and are not counted once more
            recalls=max(planned.recalls, recalls + more),
            providers=tuple(reached),
            remains=(*planned.remains, *(line for reach in reached for line in reach.kept), *kept),
        )

    async def _wipe_index(self) -> list[str]:
        """Have the search index let go of it, even if no agent asks it; why not, if it cannot."""
        if self.wipe_index is not None:
            try:
                await deliver_outside("wiping the index", self.wipe_index, self.gates, deadline=SETTLE_WAIT_SECONDS)
            except EverholdError as error:
                return [f"the search index: {error}; it is asked again"]
        return []

    async def _erase_from_log(self, names: tuple[str, ...], *, at: float, by: str) -> tuple[list[SessionErasure], int]:
        """Erase what is theirs from the log, and what tells of it; what went, and how many records did."""
        gone: list[SessionErasure] = []
        records = RecallRecords(self.store)
        await self._remove_schedules(names, at=at)
        for _ in range(MAX_ROUNDS):
            found = await self._list_personal_parts(names, before=at)
            if not found:
                break
            for going in found:
                why = "a person was forgotten"
                await self.control.erase_entries(going.session, going.seqs, by=by, why=why, records=records)
            gone += found
        sweep = await self._find_recall_blobs(names, {(it.session, seq) for it in gone for seq in it.seqs})
        blobs = await self._find_unshared({blob for it in gone for blob in it.blobs})
        if sweep or blobs:
            now = self.gates.clock.now()
            await self.store.commit(Change(step=Step.ERASE, session="", at=now, drop_blobs=(*sweep, *blobs)))
        return gone, len(sweep)

    async def _list_scheduled(self, names: Collection[str], *, before: float) -> list[StateRecord]:
        """Where what they had scheduled by then is kept."""
        found = []
        for kept in await self.store.list_state_records(StateNamespace.SCHEDULE):
            schedule = msgspec.json.decode(kept.value, type=Schedule)
            if schedule.made <= before and forgetting.is_scheduled_by(schedule, names):
                found.append(kept)
        return found

    async def _remove_schedules(self, names: Collection[str], *, at: float) -> None:
        for kept in await self._list_scheduled(names, before=at):
            # it goes even if it was said, and so rewritten, in this very moment
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
        places = {(going.session, seq) for going in parts for seq in going.seqs}
        dead_letters = sum((item.session, item.seq) in places for item in await self.store.list_dead_letters())
        remains = [
            "that they were there: the ids of their messages, chats and sessions, and when they spoke",
            "what others said about them",
        ]
        if copies := self.backups():
            held = "1 backup holds it until it is" if copies == 1 else f"{copies} backups hold it until they are"
            remains.append(f"{held} replaced; restoring one forgets it again")
        for copy in self.set_aside():
            remains.append(f"{copy}, which was set aside, holds it until you remove it")
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
        """What of each session is theirs and still there, as far as it was there by then."""
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
        """The blobs that tell what a model was shown of it, wherever that was."""
        found: list[str] = []
        async for session in self._iterate_sessions():
            for entry in await self.store.list_entries(session.id, kinds=(EntryKind.THOUGHT,)):
                if not isinstance(entry.body, Thought) or not entry.body.why:
                    continue
                blob = await self.store.get_blob(entry.body.why)
                why = msgspec.json.decode(blob, type=RecallRecord) if blob else None
                if why is not None and _is_about_person(why, names, places):
                    found += [it for it in (entry.body.why, entry.body.recall) if it and await self.store.get_blob(it)]
            await asyncio.sleep(0)
        return list(dict.fromkeys(found))

    async def _find_unshared(self, blobs: set[str]) -> set[str]:
        """Those attachments that nobody else sent, too."""
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

    async def _forget_in_provider(self, reach: ProviderErasure, names: Collection[str]) -> ProviderErasure:
        """Let one provider forget, once nothing is on its way to it any more that could bring it back."""
        what = f"{reach.memory} (agent {reach.agent})"
        provider = self.runtimes.find_memory(reach.memory, reach.agent)
        if provider is None:
            line = f"{what}: it is not there now; what it holds goes once it is"
            return msgspec.structs.replace(reach, kept=(line,))
        if not reach.can:
            line = f"{what}: it cannot delete; remove what it holds there, by its own means"
            return msgspec.structs.replace(reach, kept=(line,), done=True)
        if not await self._is_settled(reach):
            line = f"{what}: a batch that held some of it is on its way; it is asked again"
            return msgspec.structs.replace(reach, kept=(line,))
        deleted = 0
        kept: list[str] = []
        for name in names:
            try:
                forgotten = await deliver_outside(
                    f"forgetting in {reach.memory}",
                    lambda name=name: provider.forget(name),  # type: ignore[misc]
                    self.gates,
                    deadline=provider.deadline,
                )
            except EverholdError as error:
                line = f"{what}: {error}; it is asked again"
                return msgspec.structs.replace(reach, deleted=deleted, kept=(*kept, line))
            deleted += forgotten.deleted
            kept += [f"{what}: {line}" for line in forgotten.kept]
        return msgspec.structs.replace(reach, deleted=deleted, kept=tuple(dict.fromkeys(kept)), done=True)

    async def _is_settled(self, reach: ProviderErasure) -> bool:
        """Whether no flight to a provider holds something that was erased: waits for those that do."""
        consumer = memory_consumer(reach.memory)
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
        """Note beside the database that somebody is being, or was, forgotten. It is read at the next start."""
        if self.control.erasures is None:
            return
        line = {"session": "", "seqs": [], "forget": list(names), "at": at, "done": done}
        append_line(self.control.erasures, msgspec.json.encode(line))

    def _read_unfinished(self) -> dict[tuple[str, ...], float]:
        return self._read_progress(done=False)

    def _read_progress(self, *, done: bool) -> dict[tuple[str, ...], float]:
        """Whom somebody began to forget and did not finish, or those that are `done`, and as of when."""
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
