"""What operators do with memories, across the log and every provider: search, explain, status, forget, export."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec

from everhold.admin.forgetting import PersonForgetter
from everhold.admin.sessions import render_entry
from everhold.config.settings import BUILTIN_MEMORY
from everhold.core import forgetting
from everhold.core.consumers import backfill_consumer, memory_consumer
from everhold.core.entries import EntryKind, Heard, Noted, Said
from everhold.core.facts import Fact
from everhold.core.recall import RecalledItem, merge_results, select_relevant, trace_item
from everhold.engine.commands import memory as commands_memory
from everhold.engine.effects import deliver_outside
from everhold.engine.memory import backfill, health as memory_health, recall, resend
from everhold.errors import EverholdError, InvalidRequest, NotFound
from everhold.ports.memory import MemoryCapability, MemoryHit, MemoryQuery
from everhold.ports.platform import DeliveryGuarantee

SEARCH_DEADLINE_SECONDS: Final = 10.0
MAX_SEARCH_TOKENS: Final = 8_000


class MemoryAdmin(PersonForgetter):
    """One per home."""

    # -- reading -----------------------------------------------------------------------------------------------------

    async def search_memories(self, text: str, *, agent: str, person: str, limit: int = 20) -> dict[str, Any]:
        """Search an agent's memories for a person as in a direct chat, and merge the results as for a turn."""
        if not text.strip():
            raise InvalidRequest("no search words were given", remedy="everhold memory search 'some words'")
        if agent not in self.agents():
            raise NotFound(f"there is no agent {agent!r}", remedy="`everhold agents` lists them")
        if not person:
            raise InvalidRequest("no person was named", remedy="name the person: --person NAME")
        runtime = self.runtimes.get_runtime(agent, {})
        query = MemoryQuery(
            text=text, agent=agent, session="", name="", audience=(f"person:{person}",), person=person, limit=limit
        )
        answers: dict[str, Sequence[MemoryHit]] = {}
        unavailable: list[str] = []
        for name in runtime.all_memories:
            provider = self.runtimes.find_memory(name, agent)
            if provider is None:
                continue
            try:
                answers[name] = await deliver_outside(
                    f"search in {name}",
                    lambda provider=provider: provider.find(query),  # type: ignore[misc]
                    self.gates,
                    deadline=SEARCH_DEADLINE_SECONDS,
                )
            except EverholdError as error:
                unavailable.append(f"{name}: {error}")
        merged = merge_results(answers, budget=MAX_SEARCH_TOKENS, precedence=runtime.all_memories)
        allowed = await self._filter_visible(person, merged.shown, agent=agent)
        fitting = set(select_relevant([trace_item(item) for item in allowed]))
        shown = [_render_hit(item) for item in allowed if trace_item(item) in fitting]
        return {"agent": agent, "person": person, "memories": shown, "unavailable": unavailable}

    async def _filter_visible(self, person: str, items: Sequence[RecalledItem], *, agent: str) -> list[RecalledItem]:
        """Remove hits whose entry was for another audience, or is no longer valid."""
        places = {(it.hit.session, it.hit.seq) for it in items if it.hit.session and it.hit.seq}
        notes = self.runtimes.get_runtime(agent, {}).note_cache
        judged = await recall.judge_places(self.store, notes, places, agent=agent, present={f"person:{person}"})
        refused = {place for place, (entry, why) in judged.items() if why or forgetting.get_stamp(entry) is None}
        return [it for it in items if (it.hit.session, it.hit.seq) not in refused]

    async def list_facts(self, agent: str, person: str) -> list[Fact]:
        """An agent's facts about a person, including those that are no longer valid."""
        runtime = self.runtimes.get_runtime(agent, {})
        everything = await runtime.fact_cache.list_versions(agent) if runtime.fact_cache is not None else []
        return [fact for fact in everything if f"person:{person}" in fact.stamp.audience]

    async def explain_answer(self, name: str, *, at: int | None = None) -> dict[str, Any]:
        """What was recalled, from where, and what was left out, for the answer at or last before entry `at`."""
        session = await self.control.find_session(name)
        found = await commands_memory.find_recall_record(self.store, session, at=at)
        if found is None:
            raise NotFound(
                f"nothing was recalled for any recent answer in session {session.id}",
                remedy="`everhold sessions context` shows what the model saw",
            )
        entry, why = found
        words = await commands_memory.read_cited_texts(self.store, why, session.agent)
        plain: dict[str, Any] = msgspec.to_builtins(why)
        for kind in ("facts", "shown", "left_out"):
            for one in plain.get(kind, ()):
                one.setdefault("text", words.get((one.get("session", ""), one.get("seq", 0)), ""))
        plain["unavailable"] = plain.pop("silent", [])
        return {"session": session.id, "op": entry.op, "at": entry.seq, **plain}

    async def collect_status(self) -> dict[str, Any]:
        """Each memory of each agent: backlog, its age, dead letters, last error."""
        cursors = await self.store.list_cursors(waiting=True)
        dead_letters = await self.store.list_dead_letters()
        replaying = await self.store.list_dead_letters(state="replaying")
        for agent in self.agents():
            # A command without a gateway has built no memory yet. The built-in one needs no service, so build it.
            self.runtimes.find_memory(BUILTIN_MEMORY, agent)
        conditions = {
            (condition.memory, condition.agent): condition
            for condition in await memory_health.collect_conditions(self.gates, self.runtimes.list_memories())
        }
        letters = (*dead_letters, *replaying)
        agents = {cursor.session: "" for cursor in cursors} | {letter.session: "" for letter in letters}
        for session in agents:
            agents[session] = (await self.store.get_session(session)).agent
        rows = []
        for agent in self.agents():
            for memory in self._list_memories(agent):
                consumer = memory_consumer(memory)
                consumers = (consumer, backfill_consumer(memory))
                mine = [cursor for cursor in cursors if cursor.consumer == consumer and agents[cursor.session] == agent]
                provider = self.runtimes.find_memory(memory, agent)
                condition = conditions.get((memory, agent))
                rows.append(
                    {
                        "agent": agent,
                        "memory": memory,
                        "there": provider is not None,
                        "waiting": len(mine),
                        # when the oldest item was committed, not when it was last tried
                        "since": condition.oldest if condition and mine else None,
                        "in_doubt": sum(
                            cursor.in_flight is not None and cursor.in_flight.state == "in_doubt" for cursor in mine
                        ),
                        "dead_letters": sum(
                            letter.consumer == consumer and agents[letter.session] == agent for letter in dead_letters
                        ),
                        "replaying": sum(
                            letter.consumer in consumers and agents[letter.session] == agent for letter in replaying
                        ),
                        **_render_delivered(condition),
                        "says": condition.says if condition else "",
                        "error": next((cursor.error for cursor in mine if cursor.error), ""),
                    }
                )
        return {"memories": rows, "forgetting": [list(names) for names in self._read_unfinished()]}

    # -- backfill and resend -----------------------------------------------------------------------------------------

    async def backfill_memory(
        self,
        instance: str,
        *,
        agent: str = "",
        since: float = 0.0,
        until: float = float("inf"),
        per_minute: int = backfill.DEFAULT_ITEMS_PER_MINUTE,
        really: bool = False,
    ) -> dict[str, Any]:
        """Plan a backfill: the older items that a memory did not receive, and the cost. With `really`, start it."""
        agents = self._list_agents_with(instance, agent)
        if per_minute < 1:
            raise InvalidRequest("the rate must be at least one item per minute", remedy="--per-minute 60")
        notes = {name: self.runtimes.get_runtime(name, {}).note_cache for name in agents}
        ranges = [
            found
            async for session in self._iterate_sessions()
            if session.agent in agents
            and (
                found := await backfill.find_backfill_range(
                    self.store, session, instance, notes=notes[session.agent], since=since, until=until
                )
            )
            is not None
        ]
        if really:
            for one in ranges:
                await backfill.start_backfill(self.gates, one, instance, per_minute=per_minute)
            self.control.wakeups.work_available.set()
        items = sum(one.items for one in ranges)
        return {
            "memory": instance,
            "begun": really and bool(ranges),
            "sessions": len(ranges),
            "items": items,
            "requests": backfill.count_requests(ranges),
            "tokens": sum(one.tokens for one in ranges),
            "minutes": round(items / per_minute, 1),
            "since": min((one.since for one in ranges), default=None),
            "until": max((one.until for one in ranges), default=None),
        }

    async def resend_memory(
        self, instance: str, *, since: float, agent: str = "", really: bool = True
    ) -> dict[str, Any]:
        """Plan a resend of what a memory received since a time, under the same keys. With `really`, start it."""
        agents = self._list_agents_with(instance, agent)
        delivery = self._describe_repeat(instance, agents)
        found = [
            again
            async for session in self._iterate_sessions()
            if session.agent in agents
            and (again := await resend.plan_resend(self.store, session, instance, since=since)) is not None
        ]
        if really:
            for again in found:
                await resend.start_resend(self.gates, again)
            self.control.wakeups.work_available.set()
        return {
            "memory": instance,
            "begun": really and bool(found),
            "sessions": len(found),
            "items": sum(again.item_count for again in found),
            "since": min((again.since for again in found), default=None),
            "until": max((again.until for again in found), default=None),
            "repeats": delivery,
        }

    def _describe_repeat(self, instance: str, agents: Sequence[str]) -> str:
        """Describe what a resend does in a memory. Raises InvalidRequest if it would certainly store everything
        twice.
        """
        clients = [found for name in agents if (found := self.runtimes.find_memory(instance, name)) is not None]
        if not clients:
            raise InvalidRequest(
                f"memory {instance!r} is not available, so the effect of a resend is unknown",
                remedy="`everhold memory status` says why",
            )
        for client in clients:
            if client.delivery is DeliveryGuarantee.BLIND:
                raise InvalidRequest(
                    f"memory {instance!r} would store everything twice, because it supports neither keys nor probes",
                    remedy="`everhold dead-letters replay` sends only what did not arrive",
                )
        first = clients[0]
        probes = first.delivery is DeliveryGuarantee.UNACKNOWLEDGED and first.has_capability(MemoryCapability.PROBE)
        return resend.PROBED_EFFECT if probes else resend.REPEAT_EFFECTS[first.delivery]

    def _list_agents_with(self, instance: str, agent: str) -> list[str]:
        """The agents that have a memory, or the one with the given name."""
        agents = [name for name in self.agents() if instance in self._list_memories(name) and agent in ("", name)]
        if not agents:
            raise NotFound(
                f"no agent {'' if not agent else f'{agent!r} '}has a memory {instance!r}",
                remedy="`everhold memory status` lists them; attach it to an agent first",
            )
        return agents

    # -- exporting ---------------------------------------------------------------------------------------------------

    async def export_person(self, person: str) -> AsyncIterator[dict[str, Any]]:
        """Everything of a person, one record each: from the log, then from every provider that can export."""
        names = await self._list_names(person)
        async for session in self._iterate_sessions():
            for entry in await self.store.list_entries(
                session.id, kinds=(EntryKind.HEARD, EntryKind.SAID, EntryKind.NOTED)
            ):
                if isinstance(entry.body, Heard | Said | Noted) and forgetting.is_spoken_by(entry, names):
                    yield {"from": "log", "agent": session.agent, "session": session.id, **render_entry(entry)}
            await asyncio.sleep(0)
        for kept in await self._list_scheduled(names, before=math.inf):
            yield {"from": "schedules", **msgspec.json.decode(kept.value)}
        for listed in self._list_providers():
            provider = self.runtimes.find_memory(listed.memory, listed.agent)
            about = {"from": listed.memory, "agent": listed.agent}
            if provider is None or not provider.has_capability(MemoryCapability.EXPORT):
                yield {**about, "missing": "it cannot export the data of a person"}
                continue
            for name in names:
                try:
                    async for found in provider.export(name):
                        yield {**about, **msgspec.to_builtins(found)}
                except EverholdError as error:
                    yield {**about, "missing": str(error)}


def render_fact(fact: Fact) -> dict[str, Any]:
    return {
        "id": fact.id,
        "text": fact.text,
        "target": fact.target,
        "author": fact.author,
        "session": fact.session,
        "seq": fact.seq,
        "at": fact.at,
        "until": fact.valid_until,
    }


def _render_delivered(condition: memory_health.MemoryCondition | None) -> dict[str, Any]:
    """The delivery counts of a memory. One that acknowledges has none, because its receipts suffice."""
    if condition is None or condition.handed is None:
        return {"delivery": condition.delivery if condition else "", "handed_over": None}
    unknown = condition.handed - condition.seen
    counts = {"handed_over": condition.handed, "confirmed": condition.seen, "unknown": unknown}
    return {"delivery": condition.delivery, **counts}


def _render_hit(item: RecalledItem) -> dict[str, Any]:
    return {**msgspec.to_builtins(trace_item(item)), "text": item.hit.text, "score": item.hit.score}
