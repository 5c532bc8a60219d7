"""A turn's message -> what memories have to say about it, within a deadline. Belongs to that turn and to nobody else.

It is asked for inside the turn that shows it, so there is nothing that could arrive late in another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from everhold.core.entries import Entry, Heard, Noted, Said, Stamp
from everhold.core.facts import fence as fence_facts
from everhold.core.recall import Asked, Recalled as Item, Trace, Why, delimiter, fence, merge, trace
from everhold.errors import EverholdError
from everhold.flow import remember
from everhold.flow.facts import Facts
from everhold.flow.gates import Gates
from everhold.flow.perform import hand_over
from everhold.flow.runtime import Runtime, Runtimes
from everhold.ports.memory import Found, Query
from everhold.ports.store import Cited, Session, Store

MOST_FOUND: Final = 40
LONGEST_QUERY: Final = 4_000
MOST_VIEWS: Final = 2
"""How often memories are asked about one message if the view of the session changes while they answer."""
MOST_LEFT_OUT: Final = 30
"""How many of those that were left out are written down."""


class Recalled(Struct, frozen=True, kw_only=True):
    """What a turn is shown beside its message, and where it came from; both empty if there was nothing to ask."""

    text: str = ""
    why: Why | None = None


async def recall(
    gates: Gates,
    runtimes: Runtimes,
    runtime: Runtime,
    session: Session,
    *,
    op: int,
    takes: tuple[int, ...],
    text: str,
    stamp: Stamp,
    visible: Collection[int],
) -> Recalled:
    """The facts of those present, and what every memory of the agent says about a message, all asked at once.

    `visible` are this session's entries that the model sees anyway. An answer that was given for another view of the
    session is dropped, and asked for once more.
    """
    if not stamp.audience:
        return Recalled()
    facts = await runtime.facts.holding(session.agent, stamp.audience) if runtime.facts is not None else []
    asking = runtime.recall_seconds > 0 and bool(text.strip())
    if not facts and not asking:
        return Recalled()
    asked, found = await _steady(gates, runtimes, runtime, session, takes, text if asking else "", stamp, visible)
    answered = {name: answer for name, answer in found.items() if answer is not None}
    sight = Sight(
        gates,
        session,
        stamp,
        visible=visible,
        facts={(fact.session, fact.seq) for fact in facts},
        notes=runtime.notes,
    )
    merged = merge(await sight.admitted(answered), budget=runtime.recall_tokens, precedence=runtime.recalls)
    shown = tuple(sight.marked(item) for item in merged.shown)
    silent = tuple(name for name, answer in found.items() if answer is None)
    # nobody who wrote the material can have known where its fence ends
    end = delimiter(session.id, op, gates.chance.bytes(16).hex())
    parts = [fence_facts(facts, end), fence(shown, end)]
    if silent:
        parts.append(f"[Memory is incomplete right now: {', '.join(silent)} did not answer in time.]")
    if behind := _behind(runtimes, runtime, session.agent):
        parts.append(
            f"[Memory is behind right now: {', '.join(behind)} takes nothing in. What is said is kept meanwhile.]"
        )
    left = [*sight.refused, *(trace(sight.marked(item), why_not) for item, why_not in merged.left_out)]
    why = Why(
        asked=asked,
        audience=stamp.audience,
        facts=tuple(
            Trace(provider="facts", session=fact.session, seq=fact.seq, person=fact.stamp.person, at=fact.at)
            for fact in facts
        ),
        shown=tuple(trace(item) for item in shown),
        left_out=tuple(left[:MOST_LEFT_OUT]),
        silent=silent,
        budget=runtime.recall_tokens,
        tokens=merged.tokens,
        deadline=runtime.recall_seconds,
    )
    return Recalled(text="\n".join(part for part in parts if part), why=why)


def _behind(runtimes: Runtimes, runtime: Runtime, agent: str) -> list[str]:
    """Memories that do not take in what is said, for the time being."""
    there = ((name, runtimes.memory(name, agent)) for name in runtime.recalls)
    return [name for name, memory in there if memory and memory.pulse and memory.pulse.storing.failing]


class Sight:
    """What a turn may be shown of what was found. The log says whom it is for, whoever found it."""

    def __init__(
        self,
        gates: Gates,
        session: Session,
        stamp: Stamp,
        *,
        visible: Collection[int],
        facts: Collection[tuple[str, int]],
        notes: Facts | None,
    ) -> None:
        self.store = gates.store
        self.log = gates.log.bind(session=session.id)
        self.session = session
        self.present = set(stamp.audience)
        self.visible = visible
        self.facts = facts
        self.notes = notes
        self.refused: list[Trace] = []
        self._origins: dict[tuple[str, int], str] = {}

    async def admitted(self, answers: Mapping[str, Sequence[Found]]) -> dict[str, list[Found]]:
        """What may be shown. What is in sight anyway is passed over; what is not for those present is not even
        counted where they could see it.
        """
        unseen = {name: [found for found in answer if self._unseen(name, found)] for name, answer in answers.items()}
        places = {(it.session, it.seq) for answer in unseen.values() for it in answer if it.session and it.seq}
        judged = await judge(self.store, self.notes, places, agent=self.session.agent, present=self.present)
        return {name: [it for it in answer if self._allowed(name, it, judged)] for name, answer in unseen.items()}

    def marked(self, item: Item) -> Item:
        origin = self._origins.get((item.found.session, item.found.seq), "")
        return structs.replace(item, origin=origin) if origin else item

    def _unseen(self, provider: str, found: Found) -> bool:
        if found.session == self.session.id and found.seq in self.visible:
            return False
        if (found.session, found.seq) in self.facts:
            self.refused.append(trace(Item(provider=provider, found=found), "a fact, shown as such"))
            return False
        return True

    def _allowed(self, provider: str, found: Found, judged: Mapping[tuple[str, int], tuple[Entry, str]]) -> bool:
        """Whether it may be shown. What does not stand in this log is its finder's to judge."""
        place = (found.session, found.seq)
        stands = judged.get(place)
        if stands is None:
            return True
        entry, objection = stands
        if objection:
            self.log.warning("recall.withheld", memory=provider, reason=objection, found=f"{place[0]}:{place[1]}")
        elif origin := origin_of(entry):
            self._origins[place] = origin
        return not objection


async def judge(
    store: Store, notes: Facts | None, places: Collection[tuple[str, int]], *, agent: str, present: Collection[str]
) -> dict[tuple[str, int], tuple[Entry, str]]:
    """What stands at these places, and why it must not be shown to those present; nothing if it may.

    A memory need not have heard yet, or ever, that something was undone or taken back: the log has.
    """
    cited = await store.get_cited_entries(places) if places else {}
    gone = await notes.gone(agent, (it.entry for it in cited.values() if it.agent == agent)) if notes else set()
    return {
        place: (it.entry, objection(it, agent=agent, present=present, taken_back=place in gone))
        for place, it in cited.items()
    }


def objection(cited: Cited, *, agent: str, present: Collection[str], taken_back: bool) -> str:
    """Why an entry must not be shown; nothing if it may."""
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


def origin_of(entry: Entry) -> str:
    """Whose words an entry holds if not those of somebody who is here."""
    match entry.body:
        case Heard(bot=True, sender=sender):
            return f"bot:{sender or entry.author}"
        case Noted(origin=origin):
            return origin
        case _:
            return ""


async def _steady(
    gates: Gates,
    runtimes: Runtimes,
    runtime: Runtime,
    session: Session,
    takes: tuple[int, ...],
    text: str,
    stamp: Stamp,
    visible: Collection[int],
) -> tuple[Asked, dict[str, Sequence[Found] | None]]:
    """What memories answer for the view as it still is when they have answered, and for which view that was."""
    views = 0
    while True:
        views += 1
        asked = Asked(session=session.id, generation=session.generation, takes=takes)
        if not text:
            return asked, {}
        found = await _ask_all(gates, runtimes, runtime, session, text, stamp, visible)
        session = await gates.store.get_session(session.id)
        if session.generation == asked.generation:
            return asked, found
        gates.log.info("recall.dropped", session=session.id, generation=asked.generation)
        if views == MOST_VIEWS:
            return asked, dict.fromkeys(found)  # it changes again and again: the turn goes on without


async def _ask_all(
    gates: Gates,
    runtimes: Runtimes,
    runtime: Runtime,
    session: Session,
    text: str,
    stamp: Stamp,
    visible: Collection[int],
) -> dict[str, Sequence[Found] | None]:
    names = [name for name in runtime.recalls if runtimes.memory(name, session.agent) is not None]
    asked = [
        _ask(gates, runtimes, runtime, name, _query(session, name, text, stamp, visible, runtime)) for name in names
    ]
    # most agents have one memory: a task for it alone is a round through the loop for nothing
    found = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
    return dict(zip(names, found, strict=True))


def _query(session: Session, memory: str, text: str, stamp: Stamp, visible: Collection[int], runtime: Runtime) -> Query:
    return Query(
        text=text[-LONGEST_QUERY:],
        agent=session.agent,
        session=session.id,
        # before anything was stored there it has the name that it will get
        name=session.names.get(memory) or runtime.naming(memory, remember.origin_of(session, stamp)),
        audience=stamp.audience,
        person=stamp.person,
        limit=MOST_FOUND,
        seen=frozenset(visible),
        tokens=runtime.recall_tokens,
        stamp=stamp,
    )


async def _ask(gates: Gates, runtimes: Runtimes, runtime: Runtime, name: str, query: Query) -> Sequence[Found] | None:
    """What one memory finds, or None if it does not say in time. Reading again does no harm: doubt is no matter."""
    provider = runtimes.memory(name, query.agent)
    if provider is None:
        return None
    try:
        return await hand_over(
            f"recall from {name}", lambda: provider.find(query), gates, deadline=runtime.recall_seconds
        )
    except EverholdError as error:
        gates.log.warning("recall.failed", memory=name, session=query.session, error=str(error))
        return None
