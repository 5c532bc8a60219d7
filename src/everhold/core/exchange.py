"""Entries -> what memory is handed: exchanges, notes, retractions and jobs, under the identity stamped in them."""

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
"""Kinds of entries at which something for memory may stand."""

TASKS_PLATFORM: Final = "job"
"""The lane of tasks, and the platform that their results are heard from."""
_REPORT_OPENING: Final = "[Result of the background task “"
_REPORT_CLOSING: Final = "”]\n"

REMEMBERED_OUTCOMES: Final = frozenset({"done", "stopped", "interrupted"})
"""Outcomes of turns that were a conversation worth remembering."""


def build_exchange_key(session: str, op: int) -> str:
    return f"{session}:{op}"


def build_note_key(session: str, seq: int) -> str:
    return f"{session}:{seq}:note"


def is_memory_entry(entry: Entry) -> bool:
    """Whether an entry is a place at which memory is handed something."""
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
    """The exchange that an ended turn stands for; None if nothing was said by anybody, or all of it was erased."""
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
    """Whose exchange it is: the last speaker's, for those who heard all of it.

    A session can be led to from a direct chat and from a group; what was said in both is for neither alone.
    """
    stamp = (heard or said)[-1].stamp
    heard_by_all = tuple(one for one in stamp.audience if all(one in it.stamp.audience for it in (*heard, *said)))
    return stamp if heard_by_all == stamp.audience else structs.replace(stamp, audience=heard_by_all)


def build_note(entry: Entry, *, agent: str) -> MemoryNote | None:
    """The note an entry stands for; None once erased."""
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
    """What an undo takes back from memory: the exchanges of the turns among its operations."""
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
    """A finished task as its session hears of it."""
    return f"{_REPORT_OPENING}{task}{_REPORT_CLOSING}{result}"


def build_job_result(heard: Entry, *, agent: str) -> JobResult | None:
    """The job whose report was heard there; None if it is none, or was erased.

    All of it is taken from this one entry: what is handed over must not change when another one is erased.
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
    """What a batch is recognised by: a retry must be the same to the byte."""
    return hashlib.sha256(msgspec.json.encode((name, list(items)))).hexdigest()


def _render_tool_calls(steps: Sequence[Entry]) -> tuple[str, ...]:
    """The tools that were used and how it went, a line each."""
    lines: list[str] = []
    tools: dict[str, str] = {}
    for entry in steps:
        if isinstance(entry.body, Thought):
            tools = {call.id: call.tool for call in entry.body.calls}  # models use an id again in a later round
        elif isinstance(entry.body, Returned):
            lines.append(f"{tools.get(entry.body.call, 'tool')}: {_render_outcome(entry.body)}")
    return tuple(lines)


def _render_outcome(returned: Returned) -> str:
    return "outcome unknown" if returned.unknown else "failed" if returned.error else "done"
