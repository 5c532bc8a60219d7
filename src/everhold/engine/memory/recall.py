"""Recall for a turn: ask the memories about its messages, within a deadline. The result belongs to this turn only.

The memories are asked inside the turn that shows the result, so a late answer cannot appear in another turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Final

from msgspec import Struct, structs

from everhold.core.entries import Entry, Heard, Noted, Said, Stamp
from everhold.core.facts import Fact, quote_facts
from everhold.core.people import PresentAudience, can_hear
from everhold.core.provenance import build_piece_origin, has_own_words
from everhold.core.recall import (
    MemoryAnswer,
    RecalledItem as Item,
    RecallRecord,
    RecallTarget,
    RecallTrace,
    make_delimiter,
    merge_results,
    quote_items,
    trace_item,
)
from everhold.core.recall_blobs import TextSource, pack_text, restore_text
from everhold.core.tokens import BYTES_PER_TOKEN
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes
from everhold.engine.effects import deliver_outside
from everhold.engine.facts import FactCache
from everhold.engine.gates import Gates
from everhold.engine.memory import destination as memory_destination
from everhold.engine.memory.peers import PeerRegistry, build_peer_registry
from everhold.engine.memory.tombstones import TombstoneFilter
from everhold.engine.recall_records import get_entry_text
from everhold.errors import EverholdError
from everhold.ports.memory import MemoryHit, MemoryQuery
from everhold.ports.store import CitedEntry, Session, Store
from everhold.telemetry.metrics import RECALL_SECONDS

MIN_HITS: Final = 40
TOKENS_PER_HIT: Final = 16
"""A short message with its header. So many hits are requested that short ones fill the limit of tokens."""
MAX_QUERY_CHARS: Final = 4_000
MAX_RECALL_ROUNDS: Final = 2
"""How often memories are asked about one message if the context changes while they answer."""
MAX_SHADOW_HITS: Final = 20
"""How many hits of each memory that is only compared are recorded."""
MAX_LEFT_OUT: Final = 5
"""How many left-out items are recorded for each reason, beside their number."""


class AskedMemory(Struct, frozen=True, kw_only=True):
    """What a memory found, or None if it did not answer in time, and how long it took."""

    hits: Sequence[MemoryHit] | None
    seconds: float = 0.0


class TurnRecall(Struct, frozen=True, kw_only=True):
    """What a turn is shown beside its messages, and the record of its sources. Both are empty if there was nothing to
    ask.
    """

    text: str = ""
    record: RecallRecord | None = None
    stored_text: bytes = b""
    """The text as it is stored: with references to entries instead of their words."""


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
    list_visible: Callable[[], Collection[int]],
) -> TurnRecall:
    """Return the facts for the people present, and what every memory of the agent finds about a message. All are asked
    at once.

    `list_visible` returns this session's entries that the model sees anyway. An answer for an outdated context is
    dropped and asked for once more.
    """
    if not stamp.audience:
        return TurnRecall()
    facts = await runtime.fact_cache.list_valid(session.agent, stamp.audience) if runtime.fact_cache is not None else []
    asking = runtime.recall_seconds > 0 and bool(text.strip())
    if not facts and not asking:
        return TurnRecall()
    visible = frozenset(list_visible())
    asked, found = await _ask_until_stable(
        gates, runtimes, runtime, session, takes, text if asking else "", stamp, visible
    )
    answered = {name: answer.hits for name, answer in found.items() if answer.hits is not None}
    silent = tuple(name for name in found if name not in answered and name not in runtime.shadow_memories)
    sight = RecallFilter(
        gates,
        session,
        stamp,
        visible=visible,
        facts={(fact.session, fact.seq) for fact in facts},
        notes=runtime.note_cache,
    )
    allowed = await sight.filter_hits(answered)
    compared = {name: allowed.pop(name) for name in runtime.shadow_memories if name in allowed}
    merged = merge_results(allowed, budget=runtime.recall_tokens, precedence=runtime.recall_memories)
    shown = tuple(sight.mark_origin(item) for item in merged.shown)
    refused = [one for one in sight.refused if one.provider not in runtime.shadow_memories]
    left = [*refused, *(trace_item(sight.mark_origin(item), why_not) for item, why_not in merged.left_out)]
    why = RecallRecord(
        asked=asked,
        audience=stamp.audience,
        facts=tuple(
            RecallTrace(provider="facts", session=fact.session, seq=fact.seq, person=fact.stamp.person, at=fact.at)
            for fact in facts
        ),
        shown=tuple(trace_item(item) for item in shown),
        left_out=_select_first_of_each(left),
        left_out_counts=dict(Counter(one.why_not for one in left)),
        unavailable=silent,
        shadow=tuple(
            trace_item(sight.mark_origin(Item(provider=name, hit=hit)))
            for name, hits in compared.items()
            for hit in hits[:MAX_SHADOW_HITS]
        ),
        answers={name: _describe_answer(it, {**allowed, **compared}.get(name, ())) for name, it in found.items()},
        budget=runtime.recall_tokens,
        tokens=merged.tokens,
        deadline=runtime.recall_seconds,
    )
    # The authors of recalled text cannot know the delimiter.
    end = make_delimiter(session.id, op, gates.chance.bytes(16).hex())
    warnings = _warnings(silent, _list_lagging_memories(runtimes, runtime, session.agent))
    parts = (quote_facts(facts, end), quote_items(shown, end), *warnings)
    text = "\n".join(part for part in parts if part)
    return TurnRecall(text=text, record=why, stored_text=_pack_recalled_text(text, facts, shown, sight.texts))


def _describe_answer(answer: AskedMemory, hits: Sequence[MemoryHit]) -> MemoryAnswer:
    size = sum(len(hit.text.encode("utf-8", "surrogatepass")) for hit in hits)
    return MemoryAnswer(
        seconds=round(answer.seconds, 4),
        found=len(hits),
        tokens=-(-size // BYTES_PER_TOKEN),
        answered=answer.hits is not None,
    )


def _select_first_of_each(left: Sequence[RecallTrace]) -> tuple[RecallTrace, ...]:
    """Return the first left-out items of each reason."""
    seen: Counter[str] = Counter()
    chosen = []
    for one in left:
        seen[one.why_not] += 1
        if seen[one.why_not] <= MAX_LEFT_OUT:
            chosen.append(one)
    return tuple(chosen)


def _pack_recalled_text(
    text: str, facts: Sequence[Fact], shown: Sequence[Item], texts: Mapping[tuple[str, int], str]
) -> bytes:
    """Return the stored form of a recall: with references, if they restore it exactly."""
    if not text:
        return b""
    sources = [TextSource(fact.session, fact.seq, fact.text, fact.text) for fact in facts]
    for item in shown:
        place = (item.hit.session, item.hit.seq)
        if place in texts:
            sources.append(TextSource(*place, item.hit.text, texts[place]))
    packed = pack_text(text, sources)
    known = {(one.session, one.seq): one.text for one in sources}
    return packed if restore_text(packed, known) == text else text.encode()


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
    """Decides which hits a turn may be shown. The log says for which audience an entry is,
    whichever memory found it.
    """

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
        self.log = gates.log.bind(session=session.id)
        self.session = session
        self.visible = visible
        self.facts = facts
        self.judge = HitJudge(gates.store, notes, agent=session.agent, audience=stamp.audience)
        self.refused: list[RecallTrace] = []
        self.texts: dict[tuple[str, int], str] = {}
        """The texts of the entries of the hits that may be shown."""
        self._origins: dict[tuple[str, int], str] = {}

    async def filter_hits(self, answers: Mapping[str, Sequence[MemoryHit]]) -> dict[str, list[MemoryHit]]:
        """Return the hits that may be shown. Entries that are visible anyway are skipped. Hits that are not for the
        people present are not even counted where they could see it.
        """
        unseen = {name: [found for found in answer if self._is_unseen(name, found)] for name, answer in answers.items()}
        return {name: await self._select_allowed(name, answer) for name, answer in unseen.items()}

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

    async def _select_allowed(self, provider: str, found: Sequence[MemoryHit]) -> list[MemoryHit]:
        allowed = []
        for judged in await self.judge.judge_hits(provider, found):
            hit = judged.hit
            place = (hit.session, hit.seq)
            if judged.objection:
                self.log.warning(
                    "recall.withheld", memory=provider, reason=judged.objection, found=f"{place[0]}:{place[1]}"
                )
                continue
            if judged.entry is not None:
                if origin := find_foreign_origin(judged.entry):
                    self._origins[place] = origin
                if text := get_entry_text(judged.entry):
                    self.texts[place] = text
            allowed.append(hit)
        return allowed


class JudgedHit(Struct, frozen=True, kw_only=True):
    """A hit, its entry if it has one in this log, and why it must not be shown; empty if it may."""

    hit: MemoryHit
    entry: Entry | None
    objection: str


class HitJudge:
    """Judges what memories find, for one agent and audience. Recall, tools, searches and exports all use it."""

    def __init__(self, store: Store, notes: FactCache | None, *, agent: str, audience: Collection[str]) -> None:
        self.store = store
        self.notes = notes
        self.agent = agent
        self.audience = tuple(audience)
        self.tombstones = TombstoneFilter(store=store, notes=notes, agent=agent, audience=self.audience)

    async def judge_hits(self, memory: str, hits: Sequence[MemoryHit]) -> list[JudgedHit]:
        """Judge each hit by the log, and those without an entry in it by what is being erased."""
        places = {(it.session, it.seq) for it in hits if it.session and it.seq}
        judged = await judge_places(self.store, self.notes, places, agent=self.agent, audience=self.audience)
        found = []
        for hit in hits:
            entry, objection = judged.get((hit.session, hit.seq), (None, ""))
            objection = objection or await self.tombstones.find_objection(memory, hit, is_in_log=entry is not None)
            found.append(JudgedHit(hit=hit, entry=entry, objection=objection))
        return found

    async def select_visible(self, memory: str, hits: Sequence[MemoryHit]) -> list[MemoryHit]:
        return [it.hit for it in await self.judge_hits(memory, hits) if not it.objection]


async def judge_places(
    store: Store, notes: FactCache | None, places: Collection[tuple[str, int]], *, agent: str, audience: Collection[str]
) -> dict[tuple[str, int], tuple[Entry, str]]:
    """Return the entries at these places, and why each must not be shown to the people present; empty if it may.

    A memory may not know yet that an entry was undone or taken back, but the log does.
    """
    cited = await store.get_cited_entries(places) if places else {}
    if not cited:
        return {}
    present = (await store.get_people()).expand_audience(audience)
    retracted = (
        await notes.find_retracted(agent, (it.entry for it in cited.values() if it.agent == agent)) if notes else set()
    )
    return {
        place: (it.entry, find_objection(it, agent=agent, present=present, taken_back=place in retracted))
        for place, it in cited.items()
    }


def find_objection(cited: CitedEntry, *, agent: str, present: PresentAudience, taken_back: bool) -> str:
    """Return why an entry must not be shown; empty if it may."""
    body = cited.entry.body
    if body is None:
        return "erased"
    if isinstance(body, Heard | Said | Noted):
        if cited.agent != agent:
            return "another agent's"
        if not can_hear(present, body.stamp.audience, cited.entry.at):
            return "not for everybody present"
    if cited.undone:
        return "undone"
    return "taken back" if taken_back else ""


def find_foreign_origin(entry: Entry) -> str:
    """Return the source of an entry's text if no person present said it."""
    match entry.body:
        case Heard(bot=True, sender=sender):
            return f"bot:{sender or entry.author}"
        case Heard(approval=approval) if approval is not None:
            return f"tool:{approval.tool}"
        case Heard(text=text, pieces=pieces) if pieces and not has_own_words(text, (), pieces):
            return build_piece_origin(pieces[0])
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
) -> tuple[RecallTarget, dict[str, AskedMemory]]:
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
            nothing = {name: AskedMemory(hits=None, seconds=answer.seconds) for name, answer in found.items()}
            return asked, nothing  # the context keeps changing, so the turn continues without recall


async def _ask_memories(
    gates: Gates,
    runtimes: AgentRuntimes,
    runtime: AgentRuntime,
    session: Session,
    text: str,
    stamp: Stamp,
    visible: Collection[int],
) -> dict[str, AskedMemory]:
    wanted = (*runtime.recall_memories, *runtime.shadow_memories)
    names = [name for name in wanted if runtimes.find_memory(name, session.agent) is not None]
    registry = build_peer_registry(gates, runtimes)
    present = (await gates.store.get_people()).expand_audience(stamp.audience)
    now = gates.clock.now()
    queries = [
        await _build_query(registry, now, present, session, name, text, stamp, visible, runtime) for name in names
    ]
    asked = [_ask_memory(gates, runtimes, runtime, name, query) for name, query in zip(names, queries, strict=True)]
    # Most agents have one memory, and a separate task for one call would be wasted.
    found = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
    return dict(zip(names, found, strict=True))


async def _build_query(
    registry: PeerRegistry,
    now: float,
    present: PresentAudience,
    session: Session,
    memory: str,
    text: str,
    stamp: Stamp,
    visible: Collection[int],
    runtime: AgentRuntime,
) -> MemoryQuery:
    name = session.names.get(memory)
    if not name:
        # Before anything is stored there, the memory has the name that it will get.
        peer = await registry.find_current_peer(memory, session.agent, stamp.person)
        name = runtime.choose_memory_name(memory, memory_destination.build_session_origin(session, stamp, peer=peer))
    return MemoryQuery(
        text=text[-MAX_QUERY_CHARS:],
        agent=session.agent,
        session=session.id,
        name=name,
        audience=stamp.audience,
        person=stamp.person,
        limit=max(MIN_HITS, runtime.recall_tokens // TOKENS_PER_HIT),
        seen=frozenset(visible),
        tokens=runtime.recall_tokens,
        stamp=stamp,
        present=present,
        asked_at=now,
        utc_offset_seconds=_get_utc_offset(runtime.zone, now),
        peers=await registry.list_present_peers(memory, session.agent, present),
    )


def _get_utc_offset(zone: tzinfo, now: float) -> int:
    offset = datetime.fromtimestamp(now, zone).utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


async def _ask_memory(
    gates: Gates, runtimes: AgentRuntimes, runtime: AgentRuntime, name: str, query: MemoryQuery
) -> AskedMemory:
    """Ask one memory. A repeated search is harmless."""
    provider = runtimes.find_memory(name, query.agent)
    if provider is None:
        return AskedMemory(hits=None)
    begun = gates.clock.monotonic()
    hits: Sequence[MemoryHit] | None = None
    try:
        with gates.metrics.time_call(RECALL_SECONDS, name):
            hits = await deliver_outside(
                f"recall from {name}", lambda: provider.find(query), gates, deadline=runtime.recall_seconds
            )
    except EverholdError as error:
        gates.log.warning("recall.failed", memory=name, session=query.session, error=str(error))
    return AskedMemory(hits=hits, seconds=gates.clock.monotonic() - begun)
