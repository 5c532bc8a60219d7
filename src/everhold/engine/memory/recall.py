"""Recall for a turn: ask the memories about its messages, within a deadline. The result belongs to this turn only.

The memories are asked inside the turn that shows the result, so a late answer cannot appear in another turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from everhold.core.entries import Entry, Heard, Noted, Said, Stamp
from everhold.core.facts import fence_facts
from everhold.core.recall import (
    RecalledItem as Item,
    RecallRecord,
    RecallTarget,
    RecallTrace,
    fence_items,
    make_delimiter,
    merge_results,
    trace_item,
)
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes
from everhold.engine.effects import deliver_outside
from everhold.engine.facts import FactCache
from everhold.engine.gates import Gates
from everhold.engine.memory import destination as memory_destination
from everhold.errors import EverholdError
from everhold.ports.memory import MemoryHit, MemoryQuery
from everhold.ports.store import CitedEntry, Session, Store

MAX_HITS: Final = 40
MAX_QUERY_CHARS: Final = 4_000
MAX_RECALL_ROUNDS: Final = 2
"""How often memories are asked about one message if the context changes while they answer."""
MAX_LEFT_OUT: Final = 30
"""How many left-out items are recorded."""


class TurnRecall(Struct, frozen=True, kw_only=True):
    """What a turn is shown beside its messages, and the record of its sources. Both are empty if there was nothing to
    ask.
    """

    text: str = ""
    record: RecallRecord | None = None


async def recall_for_turn(
    gates: Gates,
    runtimes: AgentRuntimes,
    runtime: AgentRuntime,
    session: Session,
    *,
    op: int,
    takes: tuple[int, ...],
    text: str,
    stamp: Stamp,
    visible: Collection[int],
) -> TurnRecall:
    """Return the facts for the people present, and what every memory of the agent finds about a message. All are asked
    at once.

    `visible` are this session's entries that the model sees anyway. An answer for an outdated context is dropped and
    asked for once more.
    """
    if not stamp.audience:
        return TurnRecall()
    facts = await runtime.fact_cache.list_valid(session.agent, stamp.audience) if runtime.fact_cache is not None else []
    asking = runtime.recall_seconds > 0 and bool(text.strip())
    if not facts and not asking:
        return TurnRecall()
    asked, found = await _ask_until_stable(
        gates, runtimes, runtime, session, takes, text if asking else "", stamp, visible
    )
    answered = {name: answer for name, answer in found.items() if answer is not None}
    silent = tuple(name for name in found if name not in answered)
    sight = RecallFilter(
        gates,
        session,
        stamp,
        visible=visible,
        facts={(fact.session, fact.seq) for fact in facts},
        notes=runtime.note_cache,
    )
    merged = merge_results(
        await sight.filter_hits(answered), budget=runtime.recall_tokens, precedence=runtime.recall_memories
    )
    shown = tuple(sight.mark_origin(item) for item in merged.shown)
    left = [*sight.refused, *(trace_item(sight.mark_origin(item), why_not) for item, why_not in merged.left_out)]
    why = RecallRecord(
        asked=asked,
        audience=stamp.audience,
        facts=tuple(
            RecallTrace(provider="facts", session=fact.session, seq=fact.seq, person=fact.stamp.person, at=fact.at)
            for fact in facts
        ),
        shown=tuple(trace_item(item) for item in shown),
        left_out=tuple(left[:MAX_LEFT_OUT]),
        unavailable=silent,
        budget=runtime.recall_tokens,
        tokens=merged.tokens,
        deadline=runtime.recall_seconds,
    )
    # The authors of recalled text cannot know the delimiter.
    end = make_delimiter(session.id, op, gates.chance.bytes(16).hex())
    warnings = _warnings(silent, _list_lagging_memories(runtimes, runtime, session.agent))
    parts = (fence_facts(facts, end), fence_items(shown, end), *warnings)
    return TurnRecall(text="\n".join(part for part in parts if part), record=why)


def _warnings(silent: Sequence[str], lagging: Sequence[str]) -> list[str]:
    """Return warnings for the model about memories that did not answer, and about those that store nothing now."""
    warnings: list[str] = []
    if silent:
        warnings.append(f"[Memory is incomplete right now: {', '.join(silent)} did not answer in time.]")
    if lagging:
        warnings.append(
            f"[Memory is incomplete right now: {', '.join(lagging)} stores nothing new. "
            "Messages are kept until it does.]"
        )
    return warnings


def _list_lagging_memories(runtimes: AgentRuntimes, runtime: AgentRuntime, agent: str) -> list[str]:
    """Return the memories that fail to store at present."""
    there = ((name, runtimes.find_memory(name, agent)) for name in runtime.recall_memories)
    return [name for name, memory in there if memory and memory.liveness and memory.liveness.store_calls.is_failing]


class RecallFilter:
    """Decides which hits a turn may be shown. The log says for which audience an entry is, whichever memory found it."""

    def __init__(
        self,
        gates: Gates,
        session: Session,
        stamp: Stamp,
        *,
        visible: Collection[int],
        facts: Collection[tuple[str, int]],
        notes: FactCache | None,
    ) -> None:
        self.store = gates.store
        self.log = gates.log.bind(session=session.id)
        self.session = session
        self.present = set(stamp.audience)
        self.visible = visible
        self.facts = facts
        self.notes = notes
        self.refused: list[RecallTrace] = []
        self._origins: dict[tuple[str, int], str] = {}

    async def filter_hits(self, answers: Mapping[str, Sequence[MemoryHit]]) -> dict[str, list[MemoryHit]]:
        """Return the hits that may be shown. Entries that are visible anyway are skipped. Hits that are not for the
        people present are not even counted where they could see it.
        """
        unseen = {name: [found for found in answer if self._is_unseen(name, found)] for name, answer in answers.items()}
        places = {(it.session, it.seq) for answer in unseen.values() for it in answer if it.session and it.seq}
        judged = await judge_places(self.store, self.notes, places, agent=self.session.agent, present=self.present)
        return {name: [it for it in answer if self._is_allowed(name, it, judged)] for name, answer in unseen.items()}

    def mark_origin(self, item: Item) -> Item:
        origin = self._origins.get((item.hit.session, item.hit.seq), "")
        return structs.replace(item, origin=origin) if origin else item

    def _is_unseen(self, provider: str, found: MemoryHit) -> bool:
        if found.session == self.session.id and found.seq in self.visible:
            return False
        if (found.session, found.seq) in self.facts:
            self.refused.append(trace_item(Item(provider=provider, hit=found), "a fact, shown as such"))
            return False
        return True

    def _is_allowed(self, provider: str, found: MemoryHit, judged: Mapping[tuple[str, int], tuple[Entry, str]]) -> bool:
        """Return whether a hit may be shown. A hit without an entry in this log is judged by its memory."""
        place = (found.session, found.seq)
        stands = judged.get(place)
        if stands is None:
            return True
        entry, objection = stands
        if objection:
            self.log.warning("recall.withheld", memory=provider, reason=objection, found=f"{place[0]}:{place[1]}")
        elif origin := find_foreign_origin(entry):
            self._origins[place] = origin
        return not objection


async def judge_places(
    store: Store, notes: FactCache | None, places: Collection[tuple[str, int]], *, agent: str, present: Collection[str]
) -> dict[tuple[str, int], tuple[Entry, str]]:
    """Return the entries at these places, and why each must not be shown to the people present; empty if it may.

    A memory may not know yet that an entry was undone or taken back, but the log does.
    """
    cited = await store.get_cited_entries(places) if places else {}
    gone = (
        await notes.find_retracted(agent, (it.entry for it in cited.values() if it.agent == agent)) if notes else set()
    )
    return {
        place: (it.entry, find_objection(it, agent=agent, present=present, taken_back=place in gone))
        for place, it in cited.items()
    }


def find_objection(cited: CitedEntry, *, agent: str, present: Collection[str], taken_back: bool) -> str:
    """Return why an entry must not be shown; empty if it may."""
    body = cited.entry.body
    if body is None:
        return "erased"
    if isinstance(body, Heard | Said | Noted):
        if cited.agent != agent:
            return "another agent's"
        if not set(present).issubset(body.stamp.audience):
            return "not for everybody present"
    if cited.undone:
        return "undone"
    return "taken back" if taken_back else ""


def find_foreign_origin(entry: Entry) -> str:
    """Return the source of an entry's text if no person present said it."""
    match entry.body:
        case Heard(bot=True, sender=sender):
            return f"bot:{sender or entry.author}"
        case Noted(origin=origin):
            return origin
        case _:
            return ""


async def _ask_until_stable(
    gates: Gates,
    runtimes: AgentRuntimes,
    runtime: AgentRuntime,
    session: Session,
    takes: tuple[int, ...],
    text: str,
    stamp: Stamp,
    visible: Collection[int],
) -> tuple[RecallTarget, dict[str, Sequence[MemoryHit] | None]]:
    """Return what the memories answer, and the context they answered for. It is current when they have answered."""
    views = 0
    while True:
        views += 1
        asked = RecallTarget(session=session.id, generation=session.generation, takes=takes)
        if not text:
            return asked, {}
        found = await _ask_memories(gates, runtimes, runtime, session, text, stamp, visible)
        session = await gates.store.get_session(session.id)
        if session.generation == asked.generation:
            return asked, found
        gates.log.info("recall.dropped", session=session.id, generation=asked.generation)
        if views == MAX_RECALL_ROUNDS:
            return asked, dict.fromkeys(found)  # the context keeps changing, so the turn continues without recall


async def _ask_memories(
    gates: Gates,
    runtimes: AgentRuntimes,
    runtime: AgentRuntime,
    session: Session,
    text: str,
    stamp: Stamp,
    visible: Collection[int],
) -> dict[str, Sequence[MemoryHit] | None]:
    names = [name for name in runtime.recall_memories if runtimes.find_memory(name, session.agent) is not None]
    asked = [
        _ask_memory(gates, runtimes, runtime, name, _build_query(session, name, text, stamp, visible, runtime))
        for name in names
    ]
    # Most agents have one memory, and a separate task for one call would be wasted.
    found = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
    return dict(zip(names, found, strict=True))


def _build_query(
    session: Session, memory: str, text: str, stamp: Stamp, visible: Collection[int], runtime: AgentRuntime
) -> MemoryQuery:
    return MemoryQuery(
        text=text[-MAX_QUERY_CHARS:],
        agent=session.agent,
        session=session.id,
        # Before anything is stored there, the memory has the name that it will get.
        name=session.names.get(memory)
        or runtime.choose_memory_name(memory, memory_destination.build_session_origin(session, stamp)),
        audience=stamp.audience,
        person=stamp.person,
        limit=MAX_HITS,
        seen=frozenset(visible),
        tokens=runtime.recall_tokens,
        stamp=stamp,
    )


async def _ask_memory(
    gates: Gates, runtimes: AgentRuntimes, runtime: AgentRuntime, name: str, query: MemoryQuery
) -> Sequence[MemoryHit] | None:
    """Return what one memory finds, or None if it does not answer in time. A repeated search is harmless."""
    provider = runtimes.find_memory(name, query.agent)
    if provider is None:
        return None
    try:
        return await deliver_outside(
            f"recall from {name}", lambda: provider.find(query), gates, deadline=runtime.recall_seconds
        )
    except EverholdError as error:
        gates.log.warning("recall.failed", memory=name, session=query.session, error=str(error))
        return None
