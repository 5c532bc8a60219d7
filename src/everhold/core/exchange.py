"""Turn entries into what memories receive: exchanges, notes, retractions and job results, each with the stamp of its
entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import structs

from everhold.core.entries import (
    Changed,
    Ended,
    Entry,
    EntryKind,
    Heard,
    Noted,
    OperationsUndone,
    Returned,
    Said,
    Stamp,
    Thought,
)
from everhold.ports.memory import Exchange, JobResult, MemoryItem, MemoryNote, MemoryRetraction, MemoryUtterance

MEMORY_KINDS: Final = (EntryKind.ENDED, EntryKind.NOTED, EntryKind.CHANGED)
"""Kinds of entries that may produce an item for memories."""

TASKS_PLATFORM: Final = "job"
"""The platform that the results of tasks are heard from."""
_REPORT_OPENING: Final = "[Result of the background task “"
_REPORT_CLOSING: Final = "”]\n"

REMEMBERED_OUTCOMES: Final = frozenset({"done", "stopped", "interrupted"})
"""Outcomes of turns that memories receive."""


def build_exchange_key(session: str, op: int) -> str:
    return f"{session}:{op}"


def build_note_key(session: str, seq: int) -> str:
    return f"{session}:{seq}:note"


def is_memory_entry(entry: Entry) -> bool:
    """Return whether an entry produces an item for memories."""
    match entry.body:
        case Ended(outcome=outcome):
            return entry.op is not None and outcome in REMEMBERED_OUTCOMES
        case Noted():
            return True
        case Changed(change=OperationsUndone()):
            return True
        case _:
            return False


def build_exchange(
    *, session: str, agent: str, op: int, heard: Sequence[Entry], steps: Sequence[Entry], parent: str = ""
) -> Exchange | None:
    """Return the exchange of an ended turn; None if nothing was said, or everything was erased."""
    utterances = tuple(
        MemoryUtterance(author=entry.author, text=entry.body.text, at=entry.at, stamp=entry.body.stamp, seq=entry.seq)
        for entry in heard
        if isinstance(entry.body, Heard)
    )
    said = tuple(
        MemoryUtterance(author=entry.author, text=entry.body.text, at=entry.at, stamp=entry.body.stamp, seq=entry.seq)
        for entry in steps
        if isinstance(entry.body, Said)
    )
    if not utterances and not said:
        return None
    return Exchange(
        key=build_exchange_key(session, op),
        session=session,
        agent=agent,
        op=op,
        heard=utterances,
        said=said,
        did=_render_tool_calls(steps),
        at=max((entry.at for entry in steps), default=0.0),
        stamp=_merge_stamps(utterances, said),
        parent=parent,
    )


def _merge_stamps(heard: Sequence[MemoryUtterance], said: Sequence[MemoryUtterance]) -> Stamp:
    """Return the last speaker's stamp, with the audience that heard the whole exchange.

    A direct chat and a group can be bound to the same session. An exchange with messages from both is for neither
    audience alone.
    """
    stamp = (heard or said)[-1].stamp
    heard_by_all = tuple(one for one in stamp.audience if all(one in it.stamp.audience for it in (*heard, *said)))
    return stamp if heard_by_all == stamp.audience else structs.replace(stamp, audience=heard_by_all)


def build_note(entry: Entry, *, agent: str) -> MemoryNote | None:
    """Return the note of an entry; None if it was erased."""
    if not isinstance(entry.body, Noted):
        return None
    body = entry.body
    return MemoryNote(
        key=build_note_key(entry.session, entry.seq),
        session=entry.session,
        agent=agent,
        seq=entry.seq,
        text=body.text,
        author=entry.author,
        at=entry.at,
        stamp=body.stamp,
        action=body.action,
        fact=body.fact,
        supersedes=build_note_key(entry.session, body.supersedes) if body.supersedes else "",
        cites=body.cites,
        tags=body.tags,
        origin=body.origin,
    )


def build_retraction(entry: Entry, *, agent: str, turns: Sequence[int]) -> MemoryRetraction | None:
    """Return what an undo retracts from memory: the exchanges of the turns among its operations."""
    if not turns:
        return None
    return MemoryRetraction(
        key=f"{entry.session}:{entry.seq}:retract",
        session=entry.session,
        agent=agent,
        keys=tuple(build_exchange_key(entry.session, op) for op in turns),
        at=entry.at,
    )


def render_task_report(task: str, result: str) -> str:
    """Return the message by which a session hears of a finished task."""
    return f"{_REPORT_OPENING}{task}{_REPORT_CLOSING}{result}"


def build_job_result(heard: Entry, *, agent: str) -> JobResult | None:
    """Return the job whose result an entry reports; None if it reports none, or was erased.

    The result is built from this entry alone, so it does not change when another entry is erased.
    """
    body = heard.body
    if not isinstance(body, Heard) or body.origin.platform != TASKS_PLATFORM:
        return None
    task, _, result = body.text.removeprefix(_REPORT_OPENING).partition(_REPORT_CLOSING)
    return JobResult(
        key=f"{heard.session}:{heard.seq}:job",
        session=heard.session,
        agent=agent,
        seq=heard.seq,
        task=task,
        result=result,
        at=heard.at,
        stamp=body.stamp,
    )


def fingerprint_batch(name: str, items: Sequence[MemoryItem | JobResult]) -> str:
    """Return the digest that identifies a batch. A retry must send the same bytes."""
    return hashlib.sha256(msgspec.json.encode((name, list(items)))).hexdigest()


def _render_tool_calls(steps: Sequence[Entry]) -> tuple[str, ...]:
    """Return the tools that were used with their outcomes, one line each."""
    lines: list[str] = []
    tools: dict[str, str] = {}
    for entry in steps:
        if isinstance(entry.body, Thought):
            tools = {call.id: call.tool for call in entry.body.calls}  # models reuse ids in later rounds
        elif isinstance(entry.body, Returned):
            lines.append(f"{tools.get(entry.body.call, 'tool')}: {_render_outcome(entry.body)}")
    return tuple(lines)


def _render_outcome(returned: Returned) -> str:
    return "outcome unknown" if returned.unknown else "failed" if returned.error else "done"
