"""What operators do with memories, across the log and every provider: search, explain, status, forget, export."""

from __future__ import annotations

import asyncio
import functools
import math
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from everhold.admin.audit import read_entries
from everhold.admin.forgetting import PersonForgetter
from everhold.admin.memory_questions import QuestionReader
from everhold.admin.sessions import render_entry
from everhold.config.settings import BUILTIN_MEMORY
from everhold.core import forgetting
from everhold.core.consumers import backfill_consumer, memory_consumer, rekey_consumer
from everhold.core.entries import Entry, Heard, Noted, Said
from everhold.core.erasure import ErasureMoment
from everhold.core.facts import Fact
from everhold.core.memory_comparison import compare_memories
from everhold.core.peers import PeerBook
from everhold.core.recall import RecalledItem, merge_results, select_relevant, trace_item
from everhold.engine.commands import memory as commands_memory
from everhold.engine.effects import deliver_outside
from everhold.engine.memory import backfill, health as memory_health, recall, rekey, resend
from everhold.engine.memory.peers import PeerRegistry, build_peer_registry
from everhold.engine.memory.rekey_orders import RekeyOrder
from everhold.engine.memory.tombstones import UNCONFIRMED_ERASURE
from everhold.engine.state_updates import MOST_CONFLICTS
from everhold.errors import Conflict, EverholdError, InvalidRequest, NotFound
from everhold.ports.memory import MemoryCapability, MemoryHit, MemoryQuery
from everhold.ports.platform import DeliveryGuarantee

SEARCH_DEADLINE_SECONDS: Final = 10.0
REQUESTS_PER_MOVE: Final = 4
"""Requests for one item that moves to another peer: look for it, store it, read it back, delete the old one."""
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
        starts = await self._list_starts(person)
        identity = min(starts, key=lambda it: starts[it])  # one whose history is the person's from the beginning
        audience = (f"person:{identity}",)
        present = (await self.store.get_people()).expand_audience(audience)
        peers = build_peer_registry(self.gates, self.runtimes)
        query = MemoryQuery(
            text=text,
            agent=agent,
            session="",
            name="",
            audience=audience,
            person=identity,
            limit=limit,
            present=present,
        )
        answers: dict[str, Sequence[MemoryHit]] = {}
        unavailable: list[str] = []
        for name in runtime.shown_memories:
            provider = self.runtimes.find_memory(name, agent)
            if provider is None:
                continue
            asked = msgspec.structs.replace(query, peers=await peers.list_present_peers(name, agent, present))
            try:
                answers[name] = await deliver_outside(
                    f"search in {name}",
                    lambda provider=provider, asked=asked: provider.find(asked),  # type: ignore[misc]
                    self.gates,
                    deadline=SEARCH_DEADLINE_SECONDS,
                )
            except EverholdError as error:
                unavailable.append(f"{name}: {error}")
        merged = merge_results(answers, budget=MAX_SEARCH_TOKENS, precedence=runtime.shown_memories)
        allowed = await self._filter_visible(identity, merged.shown, agent=agent)
        fitting = set(select_relevant([trace_item(item) for item in allowed]))
        shown = [_render_hit(item) for item in allowed if trace_item(item) in fitting]
        name = (await self.store.get_people()).describe_identity(identity)
        return {"agent": agent, "person": name, "memories": shown, "unavailable": unavailable}

    async def _filter_visible(self, identity: str, items: Sequence[RecalledItem], *, agent: str) -> list[RecalledItem]:
        """Remove hits whose entry was for another audience or is no longer valid, and what is being erased."""
        judge = self._make_judge(identity, agent=agent)
        allowed = []
        for item in items:
            (judged,) = await judge.judge_hits(item.provider, (item.hit,))
            has_stamp = judged.entry is None or forgetting.get_stamp(judged.entry) is not None
            if not judged.objection and has_stamp:
                allowed.append(item)
        return allowed

    def _make_judge(self, identity: str, *, agent: str) -> recall.HitJudge:
        notes = self.runtimes.get_runtime(agent, {}).note_cache
        return recall.HitJudge(self.store, notes, agent=agent, audience=(f"person:{identity}",))

    async def list_facts(self, agent: str, person: str) -> list[Fact]:
        """An agent's facts about a person, including those that are no longer valid."""
        runtime = self.runtimes.get_runtime(agent, {})
        everything = await runtime.fact_cache.list_versions(agent) if runtime.fact_cache is not None else []
        starts = await self._list_starts(person)
        return [
            fact
            for fact in everything
            if any(f"person:{name}" in fact.stamp.audience and fact.at >= since for name, since in starts.items())
        ]

    async def list_notes(self, agent: str, person: str, *, limit: int) -> list[dict[str, Any]]:
        """The newest notes of an agent that the person may see in a direct chat, the newest first."""
        cache = self.runtimes.get_runtime(agent, {}).note_cache
        if cache is None:
            return []
        starts = await self._list_starts(person)

        def is_theirs(entry: Entry) -> bool:
            heard_by = set(entry.body.stamp.audience) if isinstance(entry.body, Noted) else set()
            return any(f"person:{name}" in heard_by and entry.at >= since for name, since in starts.items())

        return [_render_note(entry) for entry in await cache.list_notes(agent, limit=limit, is_wanted=is_theirs)]

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
        for kind in ("facts", "shown", "left_out", "shadow"):
            for one in plain.get(kind, ()):
                one.setdefault("text", words.get((one.get("session", ""), one.get("seq", 0)), ""))
        plain.setdefault("unavailable", [])
        return {"session": session.id, "op": entry.op, "at": entry.seq, **plain}

    async def compare_memories(self, agent: str, *, person: str = "", limit: int = 50) -> dict[str, Any]:
        """What each memory of an agent found for the newest questions, and what of it the answers used."""
        runtime = self.runtimes.get_runtime(agent, {})
        reader = QuestionReader(self.store)
        identities = set(await self._list_names(person)) if person else set()
        questions = await reader.read_newest(agent, identities=identities, limit=limit)
        modes = {
            **{name: "shown" if number else "primary" for number, name in enumerate(runtime.recall_memories)},
            **dict.fromkeys(runtime.shadow_memories, "shadow"),
        }
        found = compare_memories(questions, modes=modes)
        plain: dict[str, Any] = msgspec.to_builtins(found)
        for row in plain["memories"]:
            row["usd"] = round(runtime.price_usd(round(row["tokens"]), 0), 6)
        return {"agent": agent, **plain}

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
                consumers = (consumer, backfill_consumer(memory), rekey_consumer(memory))
                agent_cursors = [
                    cursor for cursor in cursors if cursor.consumer == consumer and agents[cursor.session] == agent
                ]
                provider = self.runtimes.find_memory(memory, agent)
                condition = conditions.get((memory, agent))
                rows.append(
                    {
                        "agent": agent,
                        "memory": memory,
                        "available": provider is not None,
                        "backlog": condition.backlog if condition and agent_cursors else len(agent_cursors),
                        # when the oldest item was committed, not when it was last tried
                        "backlog_since": condition.backlog_since if condition and agent_cursors else None,
                        "in_doubt": sum(
                            cursor.in_flight is not None and cursor.in_flight.state == "in_doubt"
                            for cursor in agent_cursors
                        ),
                        "dead_letters": sum(
                            letter.consumer in (consumer, rekey_consumer(memory)) and agents[letter.session] == agent
                            for letter in dead_letters
                        ),
                        "replaying": sum(
                            letter.consumer in consumers and agents[letter.session] == agent for letter in replaying
                        ),
                        "rekeying": sum(
                            cursor.consumer == rekey_consumer(memory) and agents[cursor.session] == agent
                            for cursor in cursors
                        ),
                        **_render_delivered(condition),
                        "report": condition.report if condition else "",
                        "remedy": condition.remedy if condition else "",
                        "error": next((cursor.error for cursor in agent_cursors if cursor.error), ""),
                    }
                )
        return {"memories": rows, "forgetting": [list(it.identities) for it in await self._list_unfinished()]}

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
            async for session in self.personal_data.iterate_sessions()
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
            async for session in self.personal_data.iterate_sessions()
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

    async def rekey_memory(
        self, instance: str, *, person: str, agent: str = "", really: bool = False
    ) -> dict[str, Any]:
        """Plan to move what a memory stores of a person to the peers that they have now. With `really`, start it."""
        agents = self._list_agents_with(instance, agent)
        registry = build_peer_registry(self.gates, self.runtimes)
        identities = await self._list_names(person)
        ranges: list[rekey.RekeyRange] = []
        targets: dict[str, str] = {}
        for name in agents:
            self._require_rekeying(instance, name)
            await registry.settle_memory(instance, name)
            peers = {it: await registry.find_current_peer(instance, name, it) for it in identities}
            targets |= peers
            build = functools.partial(self._build_rekey_destination, registry, instance, name)
            async for session in self.personal_data.iterate_sessions():
                if session.agent == name:
                    found = await self._rekey_session(session.id, instance, peers, build, really=really)
                    ranges += [found] if found is not None else []
        if really:
            self.control.wakeups.work_available.set()
        return {
            "memory": instance,
            "person": person,
            "begun": really and bool(ranges),
            "sessions": len(ranges),
            "items": sum(one.items for one in ranges),
            "requests": sum(one.items for one in ranges) * REQUESTS_PER_MOVE,
            "old_peers": sorted({peer for one in ranges for peer in one.old_peers}),
            "new_peers": targets,
        }

    async def _rekey_session(
        self,
        id: str,
        instance: str,
        peers: Mapping[str, str],
        build: Callable[[Sequence[RekeyOrder]], rekey.RekeyDestination],
        *,
        really: bool,
    ) -> rekey.RekeyRange | None:
        """Plan to move the items of a session, and start it if `really`. If the session grows meanwhile, plan again."""
        conflicts = 0
        while True:
            session = await self.store.get_session(id)
            found = await rekey.plan_rekey(self.gates, session, instance, peers=peers, destination=build)
            if found is None or not really:
                return found
            try:
                await rekey.start_rekey(self.gates, found, instance)
            except Conflict:
                conflicts += 1
                if conflicts == MOST_CONFLICTS:
                    raise
            else:
                return found

    def _require_rekeying(self, instance: str, agent: str) -> None:
        client = self.runtimes.find_memory(instance, agent)
        if client is None:
            raise InvalidRequest(f"memory {instance!r} is not available", remedy="`everhold memory status` says why")
        can_move = client.peer_rule is not None and client.has_capability(MemoryCapability.REMOVE)
        if not can_move or not client.has_capability(MemoryCapability.PROBE):
            raise InvalidRequest(
                f"memory {instance!r} cannot move items, because it cannot find and delete single ones",
                remedy="new messages go to the new peer, and recall asks for both",
            )
        if client.delivery is DeliveryGuarantee.BLIND:
            raise InvalidRequest(
                f"memory {instance!r} stores what a language model extracts, which cannot be found again",
                remedy="new messages go to the new peer, and recall asks for both",
            )

    def _build_rekey_destination(
        self, registry: PeerRegistry, instance: str, agent: str, orders: Sequence[RekeyOrder]
    ) -> rekey.RekeyDestination:
        provider = self.runtimes.find_memory(instance, agent)
        assert provider is not None, "it was required"
        return rekey.RekeyDestination(
            self.gates,
            provider,
            current_provider=lambda: self.runtimes.find_memory(instance, agent),
            in_doubt_policy="resend",
            instance=instance,
            orders=orders,
            notes=self.runtimes.get_runtime(agent, {}).note_cache,
            peers=registry,
        )

    # -- peers -------------------------------------------------------------------------------------------------------

    async def list_peers(self) -> list[dict[str, Any]]:
        """How each memory calls each identity, the latest name last."""
        return [msgspec.to_builtins(row) for row in await self.store.list_peers()]

    async def assign_peer(self, instance: str, peer: str, identity: str) -> dict[str, Any]:
        """Make a peer that several people used belong to one identity."""
        agents = self._list_agents_with(instance, "")
        registry = build_peer_registry(self.gates, self.runtimes)
        await registry.assign_peer(instance, peer, identity, agents=agents)
        return {"memory": instance, "peer": peer, "identity": identity}

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
        starts = await self._list_starts(person)
        async for session in self.personal_data.iterate_sessions():
            async for entry in read_entries(self.store, session.id):
                own = isinstance(entry.body, Heard | Said | Noted) and forgetting.is_spoken_by(entry, starts)
                if own:
                    yield {"from": "log", "agent": session.agent, "session": session.id, **render_entry(entry)}
            await asyncio.sleep(0)
        for kept in await self.personal_data.list_schedules(starts, upto=_EVER):
            yield {"from": "schedules", **msgspec.json.decode(kept.value)}
        for place in self._list_places():
            async for record in self._export_from_memory(place.memory, place.agent, starts):
                yield {"from": place.memory, "agent": place.agent, **record}

    async def _export_from_memory(
        self, memory: str, agent: str, starts: Mapping[str, float]
    ) -> AsyncIterator[dict[str, Any]]:
        provider = self.runtimes.find_memory(memory, agent)
        if provider is None or not provider.has_capability(MemoryCapability.EXPORT):
            yield {"missing": "it cannot export the data of a person"}
            return
        withheld = 0
        book = PeerBook(await self.store.list_peers(memory=memory, agent=agent))
        for name, since in starts.items():
            judge = self._make_judge(name, agent=agent)
            peers, shared_peers = book.split_peers((name,))
            try:
                async for found in provider.export(name, peers=peers, shared_peers=shared_peers):
                    (judged,) = await judge.judge_hits(memory, (found,))
                    # what was said to others is the person's all the same; what was erased or undone is not shown
                    if judged.objection in _EXPORT_OBJECTIONS:
                        withheld += 1
                    elif found.at < since:
                        continue  # the id belonged to somebody else then
                    else:
                        yield msgspec.to_builtins(found)
            except EverholdError as error:
                yield {"missing": str(error)}
        if withheld:
            yield {"missing": f"{withheld} items that were erased, undone or taken back, and that it still has"}


_EVER: Final = ErasureMoment(sys.maxsize, math.inf)
_EXPORT_OBJECTIONS: Final = frozenset({"erased", "undone", "taken back", UNCONFIRMED_ERASURE})
"""Why an item of the person is not exported. Other audiences are no reason."""


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
        "replaced_by": fact.replaced_by,
    }


def _render_note(entry: Entry) -> dict[str, Any]:
    assert isinstance(entry.body, Noted)
    return {
        "text": entry.body.text,
        "author": entry.author,
        "session": entry.session,
        "seq": entry.seq,
        "at": entry.at,
        "origin": entry.body.origin,
    }


def _render_delivered(condition: memory_health.MemoryCondition | None) -> dict[str, Any]:
    """The delivery counts of a memory. One that acknowledges has none, because its receipts suffice."""
    if condition is None or condition.sent is None:
        return {"delivery": condition.delivery if condition else "", "sent": None}
    unknown = condition.sent - condition.confirmed
    counts = {"sent": condition.sent, "confirmed": condition.confirmed, "unknown": unknown}
    return {"delivery": condition.delivery, **counts}


def _render_hit(item: RecalledItem) -> dict[str, Any]:
    return {**msgspec.to_builtins(trace_item(item)), "text": item.hit.text, "score": item.hit.score}
