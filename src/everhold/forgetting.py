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

from everhold.control import Control
from everhold.core import forgetting
from everhold.core.attachments import brought
from everhold.core.consumers import memory_consumer
from everhold.core.entries import Kind, Thought
from everhold.core.recall import Why
from everhold.core.schedule import Schedule
from everhold.errors import EverholdError, Misuse
from everhold.flow.perform import hand_over
from everhold.flow.records import Records
from everhold.flow.state import update_state_record
from everhold.home import append_line
from everhold.ports.memory import Capability
from everhold.ports.store import Change, Session, StateNamespace, StateRecord, Step

MOST_ROUNDS: Final = 5
"""How often it is looked again whether something came back while it was being forgotten."""
PATIENCE_SECONDS: Final = 60.0
"""How long a forgetting waits for batches on their way to be settled before it says that they are not."""
AGAIN_SECONDS: Final = 10.0
LONGEST_AGAIN_SECONDS: Final = 3_600.0
"""How long a forgetting that could not be finished waits before it is tried again, at first and at most."""


class Going(Struct, frozen=True, kw_only=True):
    """What of one session would go, or went."""

    session: str
    agent: str
    seqs: tuple[int, ...]
    alone: bool
    repeated: int
    """Entries said to, or made for, somebody else that use words only this person brought in."""
    blobs: tuple[str, ...] = ()
    """Attachments that came with it."""


class Reach(Struct, frozen=True, kw_only=True):
    """One provider's part in a forgetting."""

    agent: str
    memory: str
    can: bool
    deleted: int = 0
    kept: tuple[str, ...] = ()
    """What is still there, a line each, with the reason."""
    done: bool = False


class Forgetting(Struct, frozen=True, kw_only=True):
    """A plan, or what came of it."""

    person: str
    names: tuple[str, ...]
    done: bool
    sessions: tuple[Going, ...]
    recalls: int
    """Records elsewhere of what a model was shown that tell of it."""
    parked: int
    schedules: int
    """What they had scheduled, and nobody says any more."""
    providers: tuple[Reach, ...]
    remains: tuple[str, ...]
    """What is not deleted, and why."""

    @property
    def entries(self) -> int:
        return sum(len(going.seqs) for going in self.sessions)


class Forgetful:
    """One per home. `people` maps a person to every name the configuration knows; `agents` are those there are."""

    def __init__(
        self,
        control: Control,
        *,
        agents: Callable[[], Collection[str]],
        people: Callable[[str], Collection[str]] = lambda person: (person,),
        backups: Callable[[], int] = lambda: 0,
        set_aside: Callable[[], Sequence[Path]] = tuple,
        wipe: Callable[[], Awaitable[None]] | None = None,
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
        self.wipe = wipe
        self._one = asyncio.Lock()
        """Two who forget the same person would stand in each other's way."""
        self._left = asyncio.Event()
        """Rings when somebody could not be forgotten everywhere."""

    async def plan(self, person: str) -> Forgetting:
        """What forgetting would do. Nothing is changed."""
        names = await self._names(person)
        return await self._plan(names, before=self.gates.clock.now())

    async def forget(self, person: str, *, by: str = "operator") -> Forgetting:
        """Forget a person; what went, and what could not."""
        names, at = await self._names(person), self.gates.clock.now()
        self._write_down(names, at, done=False)
        return await self._forget(names, at=at, by=by)

    async def take_up(self) -> int:
        """Erase again what an unfinished forgetting left in the log, before anybody reads it; how many there are.

        What somebody had scheduled, a copy of the store that was put back may have brought back, whoever is finished.
        """
        for names, at in self._written_down(done=True).items():
            await self._unschedule(names, at=at)
        unfinished = self._unfinished()
        for names, at in unfinished.items():
            await self._erase(names, at=at, by="system")
        return len(unfinished)

    async def finish(self) -> None:
        """Finish every forgetting that a crash, or a provider that was away, left unfinished."""
        for names, at in self._unfinished().items():
            await self._forget(names, at=at, by="system")

    async def keep_finishing(self) -> None:
        """Finish what is unfinished, and try again for as long as something is: after ten seconds, and ever later."""
        tries = 0
        while True:
            self._left.clear()
            await self.finish()
            tries = tries + 1 if self._unfinished() else 0
            if tries:
                await self.gates.sleep(min(LONGEST_AGAIN_SECONDS, AGAIN_SECONDS * 2.0 ** min(tries - 1, 20)))
            else:
                await self._left.wait()

    async def _names(self, person: str) -> tuple[str, ...]:
        """Every name somebody goes by: as configured, and as they were linked."""
        if not person.strip():
            raise Misuse("whom?", remedy="name a person, or an identity such as telegram:1001")
        names = dict.fromkeys((person, *self.people(person)))
        for name in tuple(names):
            names |= dict.fromkeys(await self.store.list_identities(name))
        return tuple(names)

    async def _forget(self, names: tuple[str, ...], *, at: float, by: str) -> Forgetting:
        async with self._one:
            found = await self._forgotten(names, at=at, by=by)
        if not found.done:
            self._left.set()
        return found

    async def _forgotten(self, names: tuple[str, ...], *, at: float, by: str) -> Forgetting:
        planned = await self._plan(names, before=at)
        gone, recalls = await self._erase(names, at=at, by=by)
        reached = [await self._reach(reach, names) for reach in planned.providers]
        # while a provider could still be asked, something it remembered may have been recalled again
        later, more = await self._erase(names, at=at, by=by)
        kept = await self._wiped()
        done = all(reach.done for reach in reached) and not kept
        if done:
            self._write_down(names, at, done=True)
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

    async def _wiped(self) -> list[str]:
        """Have the search index let go of it, even if no agent asks it; why not, if it cannot."""
        if self.wipe is not None:
            try:
                await hand_over("wiping the index", self.wipe, self.gates, deadline=PATIENCE_SECONDS)
            except EverholdError as error:
                return [f"the search index: {error}; it is asked again"]
        return []

    async def _erase(self, names: tuple[str, ...], *, at: float, by: str) -> tuple[list[Going], int]:
        """Erase what is theirs from the log, and what tells of it; what went, and how many records did."""
        gone: list[Going] = []
        records = Records(self.store)
        await self._unschedule(names, at=at)
        for _ in range(MOST_ROUNDS):
            found = await self._parts(names, before=at)
            if not found:
                break
            for going in found:
                why = "a person was forgotten"
                await self.control.erase(going.session, going.seqs, by=by, why=why, records=records)
            gone += found
        sweep = await self._sweep(names, {(it.session, seq) for it in gone for seq in it.seqs})
        blobs = await self._unshared({blob for it in gone for blob in it.blobs})
        if sweep or blobs:
            now = self.gates.clock.now()
            await self.store.commit(Change(step=Step.ERASE, session="", at=now, drop_blobs=(*sweep, *blobs)))
        return gone, len(sweep)

    async def _scheduled(self, names: Collection[str], *, before: float) -> list[StateRecord]:
        """Where what they had scheduled by then is kept."""
        found = []
        for kept in await self.store.list_state_records(StateNamespace.SCHEDULE):
            schedule = msgspec.json.decode(kept.value, type=Schedule)
            if schedule.made <= before and forgetting.scheduled_by(schedule, names):
                found.append(kept)
        return found

    async def _unschedule(self, names: Collection[str], *, at: float) -> None:
        for kept in await self._scheduled(names, before=at):
            # it goes even if it was said, and so rewritten, in this very moment
            await update_state_record(
                self.store,
                kept.namespace,
                kept.key,
                at=self.gates.clock.now(),
                decide=lambda _: None,
                step=Step.ERASE,
            )

    async def _plan(self, names: tuple[str, ...], *, before: float) -> Forgetting:
        parts = await self._parts(names, before=before)
        places = {(going.session, seq) for going in parts for seq in going.seqs}
        parked = sum((item.session, item.seq) in places for item in await self.store.list_dead_letters())
        remains = [
            "that they were there: the ids of their messages, chats and sessions, and when they spoke",
            "what others said about them",
        ]
        if copies := self.backups():
            held = "1 backup holds it until it is" if copies == 1 else f"{copies} backups hold it until they are"
            remains.append(f"{held} replaced; restoring one forgets it again")
        for copy in self.set_aside():
            remains.append(f"{copy}, which was set aside, holds it until you remove it")
        return Forgetting(
            person=names[0],
            names=names,
            done=False,
            sessions=tuple(parts),
            recalls=len(await self._sweep(names, places)),
            parked=parked,
            schedules=len(await self._scheduled(names, before=before)),
            providers=tuple(self._providers()),
            remains=tuple(remains),
        )

    async def _parts(self, names: tuple[str, ...], *, before: float) -> list[Going]:
        """What of each session is theirs and still there, as far as it was there by then."""
        sessions = [session async for session in self._sessions()]
        others: set[str] = set()
        concerned: list[Session] = []
        for session in sessions:
            entries = await self.store.list_entries(session.id)
            others |= forgetting.spoken_of(entries, names)
            if any(forgetting.spoken_by(entry, names) for entry in entries):
                concerned.append(session)
            await asyncio.sleep(0)
        found = []
        for session in concerned:
            entries = [entry for entry in await self.store.list_entries(session.id) if entry.at <= before]
            part = forgetting.theirs(entries, names, others=others)
            if part.seqs:
                found.append(
                    Going(
                        session=session.id,
                        agent=session.agent,
                        seqs=part.seqs,
                        alone=part.alone,
                        repeated=len(part.repeated),
                        blobs=tuple(
                            attachment.blob
                            for entry in entries
                            if entry.seq in part.seqs
                            for attachment in brought(entry)
                        ),
                    )
                )
            await asyncio.sleep(0)
        return found

    async def _sweep(self, names: Collection[str], places: Collection[tuple[str, int]]) -> list[str]:
        """The blobs that tell what a model was shown of it, wherever that was."""
        found: list[str] = []
        async for session in self._sessions():
            for entry in await self.store.list_entries(session.id, kinds=(Kind.THOUGHT,)):
                if not isinstance(entry.body, Thought) or not entry.body.why:
                    continue
                blob = await self.store.get_blob(entry.body.why)
                why = msgspec.json.decode(blob, type=Why) if blob else None
                if why is not None and _tells_of(why, names, places):
                    found += [it for it in (entry.body.why, entry.body.recall) if it and await self.store.get_blob(it)]
            await asyncio.sleep(0)
        return list(dict.fromkeys(found))

    async def _unshared(self, blobs: set[str]) -> set[str]:
        """Those attachments that nobody else sent, too."""
        if not blobs:
            return blobs
        async for session in self._sessions():
            for entry in await self.store.list_entries(session.id, kinds=(Kind.HEARD, Kind.RETURNED)):
                blobs -= {attachment.blob for attachment in brought(entry)}
        return blobs

    def _memories(self, agent: str) -> tuple[str, ...]:
        return self.runtimes.runtime(agent, {}).known

    def _providers(self) -> list[Reach]:
        found = []
        for agent in self.agents():
            for memory in self._memories(agent):
                provider = self.runtimes.memory(memory, agent)
                can = provider is not None and provider.can(Capability.FORGET)
                found.append(Reach(agent=agent, memory=memory, can=can))
        return found

    async def _reach(self, reach: Reach, names: Collection[str]) -> Reach:
        """Let one provider forget, once nothing is on its way to it any more that could bring it back."""
        what = f"{reach.memory} (agent {reach.agent})"
        provider = self.runtimes.memory(reach.memory, reach.agent)
        if provider is None:
            line = f"{what}: it is not there now; what it holds goes once it is"
            return msgspec.structs.replace(reach, kept=(line,))
        if not reach.can:
            line = f"{what}: it cannot delete; remove what it holds there, by its own means"
            return msgspec.structs.replace(reach, kept=(line,), done=True)
        if not await self._settled(reach):
            line = f"{what}: a batch that held some of it is on its way; it is asked again"
            return msgspec.structs.replace(reach, kept=(line,))
        deleted = 0
        kept: list[str] = []
        for name in names:
            try:
                forgotten = await hand_over(
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

    async def _settled(self, reach: Reach) -> bool:
        """Whether no flight to a provider holds something that was erased: waits for those that do."""
        reader = memory_consumer(reach.memory)
        until = self.gates.clock.monotonic() + PATIENCE_SECONDS
        while True:
            lanes = [lane for lane in await self.store.list_cursors(consumer=reader) if lane.in_flight is not None]
            if not any(lane.in_flight is not None and lane.in_flight.state == "voided" for lane in lanes):
                return True
            if self.gates.clock.monotonic() >= until:
                return False
            await self.gates.sleep(1.0)

    def _write_down(self, names: Sequence[str], at: float, *, done: bool) -> None:
        """Note beside the database that somebody is being, or was, forgotten. It is read at the next start."""
        if self.control.erasures is None:
            return
        line = {"session": "", "seqs": [], "forget": list(names), "at": at, "done": done}
        append_line(self.control.erasures, msgspec.json.encode(line))

    def _unfinished(self) -> dict[tuple[str, ...], float]:
        return self._written_down(done=False)

    def _written_down(self, *, done: bool) -> dict[tuple[str, ...], float]:
        """Whom somebody began to forget and did not finish, or those that are `done`, and as of when."""
        found: dict[tuple[str, ...], float] = {}
        for record in self.control.written_down(about=b'"forget"'):
            if names := tuple(record.get("forget", ())):
                if record["done"] == done:
                    found[names] = record["at"]
                elif not done:
                    found.pop(names, None)
        return found

    async def _sessions(self) -> AsyncIterator[Session]:
        after = ""
        while page := await self.store.list_sessions(limit=500, after=after):
            for session in page:
                yield session
            after = page[-1].id


def _tells_of(why: Why, names: Collection[str], places: Collection[tuple[str, int]]) -> bool:
    traces = (*why.facts, *why.shown, *why.left_out)
    return any(one.person in names or (one.session, one.seq) in places for one in traces) or any(
        f"person:{name}" in why.audience for name in names
    )
