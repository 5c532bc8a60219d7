"""A turn's message -> what memories have to say about it, within a deadline. Belongs to that turn and to nobody else.

It is asked for inside the turn that shows it, so there is nothing that could arrive late in another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct

from everhold.core.entries import Stamp
from everhold.core.recall import delimiter, fence, merge
from everhold.errors import EverholdError
from everhold.flow.gates import Gates
from everhold.flow.perform import hand_over
from everhold.flow.runtime import Runtime, Runtimes
from everhold.ports.memory import Found, Query
from everhold.ports.store import Session

MOST_FOUND: Final = 40
LONGEST_QUERY: Final = 4_000


class Recalled(Struct, frozen=True, kw_only=True):
    """What a turn is shown beside its message; empty if nothing was found."""

    text: str = ""
    shown: int = 0
    silent: tuple[str, ...] = ()
    """Memories that gave no answer in time."""


async def recall(
    gates: Gates,
    runtimes: Runtimes,
    runtime: Runtime,
    session: Session,
    *,
    op: int,
    text: str,
    stamp: Stamp,
    visible: Collection[int],
) -> Recalled:
    """Ask every memory of the agent at once. `visible` are this session's entries that the model sees anyway."""
    if runtime.recall_seconds <= 0 or not stamp.audience or not text.strip():
        return Recalled()
    names = [name for name in runtime.recalls if runtimes.memory(name, session.agent) is not None]
    asked = [_ask(gates, runtimes, runtime, name, _query(session, name, text, stamp)) for name in names]
    answers = await asyncio.gather(*asked)
    found = dict(zip(names, answers, strict=True))
    silent = tuple(name for name, answer in found.items() if answer is None)
    unseen = {
        name: [item for item in answer if not (item.session == session.id and item.seq in visible)]
        for name, answer in found.items()
        if answer is not None
    }
    merged = merge(unseen, budget=runtime.recall_tokens, precedence=runtime.recalls)
    # nobody who wrote the material can have known where its fence ends
    parts = [fence(merged.shown, delimiter(session.id, op, gates.chance.bytes(16).hex()))]
    if silent:
        parts.append(f"[Memory is incomplete right now: {', '.join(silent)} did not answer in time.]")
    return Recalled(text="\n".join(part for part in parts if part), shown=len(merged.shown), silent=silent)


def _query(session: Session, memory: str, text: str, stamp: Stamp) -> Query:
    return Query(
        text=text[-LONGEST_QUERY:],
        agent=session.agent,
        session=session.id,
        name=session.names.get(memory, session.id),
        audience=stamp.audience,
        person=stamp.person,
        limit=MOST_FOUND,
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
