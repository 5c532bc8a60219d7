"""What a person in charge may ask of memory, across the log and every provider: search, why, status, forget, export."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec

from everhold.config.settings import BUILTIN
from everhold.control import entry_json
from everhold.core import forgetting
from everhold.core.consumers import backfill_consumer, memory_consumer
from everhold.core.entries import Heard, Kind, Noted, Said
from everhold.core.facts import Fact
from everhold.core.recall import Recalled, merge, trace, worth
from everhold.errors import EverholdError, Misuse, NotFound
from everhold.flow import backfill, health, memo, recall, replay
from everhold.flow.perform import hand_over
from everhold.forgetting import Forgetful
from everhold.ports.memory import Capability, Found, Query
from everhold.ports.platform import Delivery

SEARCH_SECONDS: Final = 10.0
SEARCH_TOKENS: Final = 8_000


class Memory(Forgetful):
    """One per home."""

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
        for name in runtime.known:
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
        merged = merge(answers, budget=SEARCH_TOKENS, precedence=runtime.known)
        allowed = await self._seen_by(person, merged.shown, agent=agent)
        fitting = set(worth([trace(item) for item in allowed]))
        shown = [_found(item) for item in allowed if trace(item) in fitting]
        return {"agent": agent, "person": person, "memories": shown, "unavailable": silent}

    async def _seen_by(self, person: str, items: Sequence[Recalled], *, agent: str) -> list[Recalled]:
        """What stands in the log is shown to those it was for, whoever found it, and while it holds."""
        places = {(it.found.session, it.found.seq) for it in items if it.found.session and it.found.seq}
        notes = self.runtimes.runtime(agent, {}).notes
        judged = await recall.judge(self.store, notes, places, agent=agent, present={f"person:{person}"})
        refused = {place for place, (entry, why) in judged.items() if why or forgetting.stamp_of(entry) is None}
        return [it for it in items if (it.found.session, it.found.seq) not in refused]

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
        plain["unavailable"] = plain.pop("silent", [])
        return {"session": session.id, "op": entry.op, "at": entry.seq, **plain}

    async def status(self) -> dict[str, Any]:
        """Every memory of every agent: what waits for it, since when, what was given up, and the last complaint."""
        lanes = await self.store.list_cursors(waiting=True)
        parked = await self.store.list_dead_letters()
        again = await self.store.list_dead_letters(state="replaying")
        for agent in self.agents():
            self.runtimes.memory(BUILTIN, agent)  # a command without a gateway has used none yet; this one needs nobody
        told = {(it.memory, it.agent): it for it in await health.conditions(self.gates, self.runtimes.attached())}
        agents = {lane.session: "" for lane in lanes} | {item.session: "" for item in (*parked, *again)}
        for session in agents:
            agents[session] = (await self.store.get_session(session)).agent
        rows = []
        for agent in self.agents():
            for memory in self._memories(agent):
                reader = memory_consumer(memory)
                readers = (reader, backfill_consumer(memory))
                mine = [lane for lane in lanes if lane.consumer == reader and agents[lane.session] == agent]
                provider = self.runtimes.memory(memory, agent)
                condition = told.get((memory, agent))
                rows.append(
                    {
                        "agent": agent,
                        "memory": memory,
                        "there": provider is not None,
                        "waiting": len(mine),
                        # when the oldest of it was said, not when it was last tried
                        "since": condition.oldest if condition and mine else None,
                        "in_doubt": sum(
                            lane.in_flight is not None and lane.in_flight.state == "in_doubt" for lane in mine
                        ),
                        "dead_letters": sum(it.consumer == reader and agents[it.session] == agent for it in parked),
                        "replaying": sum(it.consumer in readers and agents[it.session] == agent for it in again),
                        **_account(condition),
                        "says": condition.says if condition else "",
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
        notes = {name: self.runtimes.runtime(name, {}).notes for name in agents}
        stretches = [
            found
            async for session in self._sessions()
            if session.agent in agents
            and (
                found := await backfill.stretch(
                    self.store, session, instance, notes=notes[session.agent], since=since, until=until
                )
            )
            is not None
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
                    remedy="`everhold dead-letters replay` sends again what never arrived there",
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

    # -- exporting ---------------------------------------------------------------------------------------------------

    async def export(self, person: str) -> AsyncIterator[dict[str, Any]]:
        """Everything that is a person's, one record each: from the log, then from every provider that can tell."""
        names = await self._names(person)
        async for session in self._sessions():
            for entry in await self.store.list_entries(session.id, kinds=(Kind.HEARD, Kind.SAID, Kind.NOTED)):
                if isinstance(entry.body, Heard | Said | Noted) and forgetting.spoken_by(entry, names):
                    yield {"from": "log", "agent": session.agent, "session": session.id, **entry_json(entry)}
            await asyncio.sleep(0)
        for kept in await self._scheduled(names, before=math.inf):
            yield {"from": "schedules", **msgspec.json.decode(kept.value)}
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
