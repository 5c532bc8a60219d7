"""What a person in charge may ask of memory, across the log and every provider: search, why, status, forget, export.

Forgetting a person is written down before it begins and finished after a crash: the words go from the log, then from
whatever was made of them, then from every provider that can delete. What cannot be deleted is named.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from everhold.control import Control, entry_json
from everhold.core import forgetting
from everhold.core.attachments import brought
from everhold.core.entries import Heard, Kind, Noted, Said, Thought
from everhold.core.facts import Fact
from everhold.core.recall import Recalled, Why, merge, trace
from everhold.errors import EverholdError, Misuse, NotFound
from everhold.flow import backfill, health, memo, remember, replay
from everhold.flow.perform import hand_over
from everhold.flow.records import Records
from everhold.home import append_line
from everhold.ports.memory import Capability, Found, Query
from everhold.ports.platform import Delivery
from everhold.ports.store import Change, Session, Step

MOST_ROUNDS: Final = 5
"""How often it is looked again whether something came back while it was being forgotten."""
PATIENCE_SECONDS: Final = 60.0
"""How long a forgetting waits for batches on their way to be settled before it says that they are not."""
AGAIN_SECONDS: Final = 10.0
LONGEST_AGAIN_SECONDS: Final = 3_600.0
"""How long a forgetting that could not be finished waits before it is tried again, at first and at most."""
SEARCH_SECONDS: Final = 10.0
SEARCH_TOKENS: Final = 8_000


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
    providers: tuple[Reach, ...]
    remains: tuple[str, ...]
    """What is not deleted, and why."""

    @property
    def entries(self) -> int:
        return sum(len(going.seqs) for going in self.sessions)


class Memory:
    """One per home. `people` maps a person to every name the configuration knows; `agents` are those there are."""

    def __init__(
        self,
        control: Control,
        *,
        agents: Callable[[], Collection[str]],
        people: Callable[[str], Collection[str]] = lambda person: (person,),
        backups: Callable[[], int] = lambda: 0,
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
        self.wipe = wipe
        self._one = asyncio.Lock()
        """Two who forget the same person would stand in each other's way."""
        self._left = asyncio.Event()
        """Rings when somebody could not be forgotten everywhere."""

    # -- looking -----------------------------------------------------------------------------------------------------

    async def search(self, text: str, *, agent: str, person: str, limit: int = 20) -> dict[str, Any]:
        """What an agent's memories find for a person as if they were alone with it, merged as for a turn."""
        if not text.strip():
            raise Misuse("search for what?", remedy="everhold memory search 'some words'")
        if agent not in self.agents():
            raise NotFound(f"there is no agent {agent!r}", remedy="`everhold agents` lists them")
        if not person:
            raise Misuse("whose memory?", remedy="name the person: --person NAME")
        runtime = self.runtimes.runtime(agent, {})
        query = Query(
            text=text, agent=agent, session="", name="", audience=(f"person:{person}",), person=person, limit=limit
        )
        answers: dict[str, Sequence[Found]] = {}
        silent: list[str] = []
        for name in runtime.recalls:
            provider = self.runtimes.memory(name, agent)
            if provider is None:
                continue
            try:
                answers[name] = await hand_over(
                    f"search in {name}",
                    lambda provider=provider: provider.find(query),  # type: ignore[misc]
                    self.gates,
                    deadline=SEARCH_SECONDS,
                )
            except EverholdError as error:
                silent.append(f"{name}: {error}")
        merged = merge(answers, budget=SEARCH_TOKENS, precedence=runtime.recalls)
        allowed = [item for item in merged.shown if await self._may_see(item, agent, person)]
        return {"agent": agent, "person": person, "memories": [_found(item) for item in allowed], "silent": silent}

    async def _may_see(self, item: Recalled, agent: str, person: str) -> bool:
        """What stands in the log is shown to those it was for, whoever found it."""
        found = item.found
        if not (found.session and found.seq):
            return True
        try:
            session, entry = await self.store.session(found.session), await self.store.entry(found.session, found.seq)
        except NotFound:
            return True
        stamp = forgetting.stamp_of(entry)
        return session.agent == agent and stamp is not None and f"person:{person}" in stamp.audience

    async def facts(self, agent: str, person: str) -> list[Fact]:
        """What an agent keeps in mind of a person, what held before included."""
        runtime = self.runtimes.runtime(agent, {})
        everything = await runtime.facts.all(agent) if runtime.facts is not None else []
        return [fact for fact in everything if f"person:{person}" in fact.stamp.audience]

    async def why(self, name: str, *, at: int | None = None) -> dict[str, Any]:
        """What was recalled for the answer at, or last before, entry `at`, from where, and what was left out."""
        session = await self.control.find(name)
        found = await memo.reason(self.store, session, at=at)
        if found is None:
            raise NotFound(
                f"nothing was recalled for any recent answer in session {session.id}",
                remedy="`everhold sessions context` shows what the model saw",
            )
        entry, why = found
        words = await memo.words(self.store, why, session.agent)
        plain: dict[str, Any] = msgspec.to_builtins(why)
        for kind in ("facts", "shown", "left_out"):
            for one in plain.get(kind, ()):
                one.setdefault("text", words.get((one.get("session", ""), one.get("seq", 0)), ""))
        return {"session": session.id, "op": entry.op, "at": entry.seq, **plain}

    async def status(self) -> dict[str, Any]:
        """Every memory of every agent: what waits for it, since when, what was given up, and the last complaint."""
        lanes = await self.store.lanes(waiting=True)
        parked = await self.store.parked()
        again = await self.store.parked(state="replaying")
        told = {(it.memory, it.agent): it for it in await health.conditions(self.gates, self.runtimes.attached())}
        agents = {lane.session: "" for lane in lanes} | {item.session: "" for item in (*parked, *again)}
        for session in agents:
            agents[session] = (await self.store.session(session)).agent
        rows = []
        for agent in self.agents():
            for memory in self._memories(agent):
                reader = remember.reader_of(memory)
                readers = (reader, backfill.lane_of(memory))
                mine = [lane for lane in lanes if lane.reader == reader and agents[lane.session] == agent]
                provider = self.runtimes.memory(memory, agent)
                rows.append(
                    {
                        "agent": agent,
                        "memory": memory,
                        "there": provider is not None,
                        "waiting": len(mine),
                        "since": min((lane.since for lane in mine if lane.since is not None), default=None),
                        "in_doubt": sum(lane.flight is not None and lane.flight.state == "doubt" for lane in mine),
                        "parked": sum(it.reader == reader and agents[it.session] == agent for it in parked),
                        "replaying": sum(it.reader in readers and agents[it.session] == agent for it in again),
                        **_account(told.get((memory, agent))),
                        "error": next((lane.error for lane in mine if lane.error), ""),
                    }
                )
        return {"memories": rows, "forgetting": [list(names) for names in self._unfinished()]}

    # -- the past ----------------------------------------------------------------------------------------------------

    async def backfill(
        self,
        instance: str,
        *,
        agent: str = "",
        since: float = 0.0,
        until: float = float("inf"),
        per_minute: int = backfill.PER_MINUTE,
        really: bool = False,
    ) -> dict[str, Any]:
        """What a memory that came later was never handed, and what handing it over takes; `really` begins it."""
        agents = self._having(instance, agent)
        if per_minute < 1:
            raise Misuse("less than one a minute is never", remedy="--per-minute 60")
        stretches = [
            found
            async for session in self._sessions()
            if session.agent in agents
            and (found := await backfill.stretch(self.store, session, instance, since=since, until=until)) is not None
        ]
        if really:
            for one in stretches:
                await backfill.begin(self.gates, one, instance, per_minute=per_minute)
            self.control.bells.work.set()
        items = sum(one.items for one in stretches)
        return {
            "memory": instance,
            "begun": really and bool(stretches),
            "sessions": len(stretches),
            "items": items,
            "requests": backfill.requests(stretches),
            "tokens": sum(one.tokens for one in stretches),
            "minutes": round(items / per_minute, 1),
            "since": min((one.since for one in stretches), default=None),
            "until": max((one.until for one in stretches), default=None),
        }

    async def replay(self, instance: str, *, since: float, agent: str = "", really: bool = True) -> dict[str, Any]:
        """Hand a memory again what it was handed since then, under the same keys; how much that is."""
        agents = self._having(instance, agent)
        delivery = self._repeatable(instance, agents)
        found = [
            again
            async for session in self._sessions()
            if session.agent in agents
            and (again := await replay.handed_over(self.store, session, instance, since=since)) is not None
        ]
        if really:
            for again in found:
                await replay.begin(self.gates, again)
            self.control.bells.work.set()
        return {
            "memory": instance,
            "begun": really and bool(found),
            "sessions": len(found),
            "items": sum(again.items for again in found),
            "since": min((again.since for again in found), default=None),
            "until": max((again.until for again in found), default=None),
            "repeats": delivery,
        }

    def _repeatable(self, instance: str, agents: Sequence[str]) -> str:
        """What a repeat does there, in words. Raises Misuse where it would double everything for certain."""
        attached = [it for name in agents if (it := self.runtimes.memory(instance, name)) is not None]
        if not attached:
            raise Misuse(
                f"memory {instance!r} is not there now, and nobody can tell what a repeat would do",
                remedy="`everhold memory status` says why",
            )
        for it in attached:
            if it.delivery is Delivery.BLIND:
                raise Misuse(
                    f"memory {instance!r} would have everything twice: it neither knows keys nor can be asked",
                    remedy="`everhold memory replay` without a name sends again what never arrived there",
                )
        first = attached[0]
        looks = first.delivery is Delivery.UNACKNOWLEDGED and first.can(Capability.PROBE)
        return replay.LOOKED_FOR if looks else replay.REPEATS[first.delivery]

    def _having(self, instance: str, agent: str) -> list[str]:
        """The agents that have a memory; of one name, if one is given."""
        agents = [it for it in self.agents() if instance in self._memories(it) and agent in ("", it)]
        if not agents:
            raise NotFound(
                f"no agent {'' if not agent else f'{agent!r} '}has a memory {instance!r}",
                remedy="`everhold memory status` lists them; attach it to an agent first",
            )
        return agents

    # -- forgetting --------------------------------------------------------------------------------------------------

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
        """Erase again what an unfinished forgetting left in the log, before anybody reads it; how many there are."""
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
            names |= dict.fromkeys(await self.store.identities(name))
        return tuple(names)

    async def _forget(self, names: tuple[str, ...], *, at: float, by: str) -> Forgetting:
        async with self._one:
            found = await self._forgotten(names, at=at, by=by)
        if not found.done:
            self._left.set()
        return found

    async def _forgotten(self, names: tuple[str, ...], *, at: float, by: str) -> Forgetting:
        plan = await self._plan(names, before=at)
        gone, recalls = await self._erase(names, at=at, by=by)
        reached = [await self._reach(reach, names) for reach in plan.providers]
        # while a provider could still be asked, something it remembered may have been recalled again
        later, more = await self._erase(names, at=at, by=by)
        kept = await self._wiped()
        done = all(reach.done for reach in reached) and not kept
        if done:
            self._write_down(names, at, done=True)
        self.gates.log.info("person.forgotten", entries=sum(len(it.seqs) for it in (*gone, *later)), done=done)
        return msgspec.structs.replace(
            plan,
            done=done,
            sessions=(*gone, *later),
            # most records went with the entries they repeat, and are not counted once more
            recalls=max(plan.recalls, recalls + more),
            providers=tuple(reached),
            remains=(*plan.remains, *(line for reach in reached for line in reach.kept), *kept),
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

    async def _plan(self, names: tuple[str, ...], *, before: float) -> Forgetting:
        parts = await self._parts(names, before=before)
        places = {(going.session, seq) for going in parts for seq in going.seqs}
        parked = sum((item.session, item.seq) in places for item in await self.store.parked())
        remains = [
            "that they were there: the ids of their messages, chats and sessions, and when they spoke",
            "what others said about them",
        ]
        if copies := self.backups():
            remains.append(f"{copies} backups hold it until they are replaced; restoring one forgets it again")
        return Forgetting(
            person=names[0],
            names=names,
            done=False,
            sessions=tuple(parts),
            recalls=len(await self._sweep(names, places)),
            parked=parked,
            providers=tuple(self._providers()),
            remains=tuple(remains),
        )

    async def _parts(self, names: tuple[str, ...], *, before: float) -> list[Going]:
        """What of each session is theirs and still there, as far as it was there by then."""
        sessions = [session async for session in self._sessions()]
        others: set[str] = set()
        concerned: list[Session] = []
        for session in sessions:
            entries = await self.store.entries(session.id)
            others |= forgetting.spoken_of(entries, names)
            if any(forgetting.spoken_by(entry, names) for entry in entries):
                concerned.append(session)
            await asyncio.sleep(0)
        found = []
        for session in concerned:
            entries = [entry for entry in await self.store.entries(session.id) if entry.at <= before]
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
            for entry in await self.store.entries(session.id, kinds=(Kind.THOUGHT,)):
                if not isinstance(entry.body, Thought) or not entry.body.why:
                    continue
                blob = await self.store.blob(entry.body.why)
                why = msgspec.json.decode(blob, type=Why) if blob else None
                if why is not None and _tells_of(why, names, places):
                    found += [it for it in (entry.body.why, entry.body.recall) if it and await self.store.blob(it)]
            await asyncio.sleep(0)
        return list(dict.fromkeys(found))

    async def _unshared(self, blobs: set[str]) -> set[str]:
        """Those attachments that nobody else sent, too."""
        if not blobs:
            return blobs
        async for session in self._sessions():
            for entry in await self.store.entries(session.id, kinds=(Kind.HEARD, Kind.RETURNED)):
                blobs -= {attachment.blob for attachment in brought(entry)}
        return blobs

    def _memories(self, agent: str) -> tuple[str, ...]:
        """Every memory of an agent: those that are asked, and those that are only told."""
        runtime = self.runtimes.runtime(agent, {})
        return tuple(dict.fromkeys((*runtime.recalls, *runtime.memories)))

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
        return msgspec.structs.replace(reach, deleted=deleted, kept=tuple(kept), done=True)

    async def _settled(self, reach: Reach) -> bool:
        """Whether no flight to a provider holds something that was erased: waits for those that do."""
        reader = remember.reader_of(reach.memory)
        until = self.gates.clock.monotonic() + PATIENCE_SECONDS
        while True:
            lanes = [lane for lane in await self.store.lanes(reader=reader) if lane.flight is not None]
            if not any(lane.flight is not None and lane.flight.state == "void" for lane in lanes):
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
        """Whom somebody began to forget, and as of when."""
        found: dict[tuple[str, ...], float] = {}
        path = self.control.erasures
        for line in path.read_bytes().splitlines() if path is not None and path.exists() else ():
            record = msgspec.json.decode(line) if b'"forget"' in line else {}
            if names := tuple(record.get("forget", ())):
                if record["done"]:
                    found.pop(names, None)
                else:
                    found[names] = record["at"]
        return found

    async def _sessions(self) -> AsyncIterator[Session]:
        after = ""
        while page := await self.store.sessions(limit=500, after=after):
            for session in page:
                yield session
            after = page[-1].id

    # -- exporting ---------------------------------------------------------------------------------------------------

    async def export(self, person: str) -> AsyncIterator[dict[str, Any]]:
        """Everything that is a person's, one record each: from the log, then from every provider that can tell."""
        names = await self._names(person)
        async for session in self._sessions():
            for entry in await self.store.entries(session.id, kinds=(Kind.HEARD, Kind.SAID, Kind.NOTED)):
                if isinstance(entry.body, Heard | Said | Noted) and forgetting.spoken_by(entry, names):
                    yield {"from": "log", "agent": session.agent, "session": session.id, **entry_json(entry)}
            await asyncio.sleep(0)
        for reach in self._providers():
            provider = self.runtimes.memory(reach.memory, reach.agent)
            about = {"from": reach.memory, "agent": reach.agent}
            if provider is None or not provider.can(Capability.EXPORT):
                yield {**about, "missing": "it cannot be asked for everything of a person"}
                continue
            for name in names:
                try:
                    async for found in provider.export(name):
                        yield {**about, **msgspec.to_builtins(found)}
                except EverholdError as error:
                    yield {**about, "missing": str(error)}


def fact_json(fact: Fact) -> dict[str, Any]:
    return {
        "id": fact.id,
        "text": fact.text,
        "target": fact.target,
        "author": fact.author,
        "session": fact.session,
        "seq": fact.seq,
        "at": fact.at,
        "until": fact.until,
    }


def _account(condition: health.Condition | None) -> dict[str, Any]:
    """What is known of what a memory was handed. One that acknowledges has no account: its word is enough."""
    if condition is None or condition.handed is None:
        return {"delivery": condition.delivery if condition else "", "handed_over": None}
    unknown = condition.handed - condition.seen
    handed = {"handed_over": condition.handed, "confirmed": condition.seen, "unknown": unknown}
    return {"delivery": condition.delivery, **handed}


def _found(item: Recalled) -> dict[str, Any]:
    return {**msgspec.to_builtins(trace(item)), "text": item.found.text, "score": item.found.score}


def _tells_of(why: Why, names: Collection[str], places: Collection[tuple[str, int]]) -> bool:
    traces = (*why.facts, *why.shown, *why.left_out)
    return any(one.person in names or (one.session, one.seq) in places for one in traces) or any(
        f"person:{name}" in why.audience for name in names
    )
