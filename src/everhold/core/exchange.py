"""Turn entries into what memories receive: exchanges, notes, retractions and job results, each with the stamp of its
entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

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
from everhold.core.people import PERSON_MEMBER, PeopleDirectory, can_hear
from everhold.core.provenance import has_own_words
from everhold.ports.memory import Exchange, JobResult, MemoryItem, MemoryNote, MemoryRetraction, MemoryUtterance

MEMORY_KINDS: Final = (EntryKind.ENDED, EntryKind.NOTED, EntryKind.CHANGED)
"""Kinds of entries that may produce an item for memories."""

TASKS_PLATFORM: Final = "job"
"""The platform that the results of tasks are heard from."""
_REPORT_OPENING: Final = "[Result of the background task “"
_REPORT_CLOSING: Final = "”]\n"

MOVED_MARK: Final = "@"
"""Stands before the peer in the key of an item that was moved to another peer."""

FindPeer: TypeAlias = Callable[[str, Entry], str]
"""(identity, entry) -> the peer of the identity at that entry; empty if the memory has no peers."""


def find_no_peer(identity: str, entry: Entry) -> str:
    return ""


REMEMBERED_OUTCOMES: Final = frozenset({"done", "stopped", "interrupted"})
"""Outcomes of turns that memories receive."""


def build_exchange_key(session: str, op: int) -> str:
    return f"{session}:{op}"


def build_note_key(session: str, seq: int) -> str:
    return f"{session}:{seq}:note"


def get_original_key(key: str) -> str:
    """Return the key that an item had before it was moved to another peer."""
    return key.partition(MOVED_MARK)[0]


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


def is_remembered(body: Heard) -> bool:
    """Return whether a memory receives a message: it has words of its sender's own. Those of a webhook are the
    configuration's, those of a result a sub-agent's, and those of a report the gateway's.
    """
    is_theirs = not body.hook and not body.delegated and body.approval is None
    return is_theirs and has_own_words(body.text, (), body.pieces)


def build_exchange(
    *,
    session: str,
    agent: str,
    op: int,
    heard: Sequence[Entry],
    steps: Sequence[Entry],
    people: PeopleDirectory,
    parent: str = "",
    find_peer: FindPeer = find_no_peer,
) -> Exchange | None:
    """Return the exchange of an ended turn; None if nothing was said, or everything was erased. `people` are those of
    the time of the turn, because a retry must build the same.

    Forwarded and quoted words are not in it, because a memory would store them as the sender's own. Each utterance has
    the peer of its own entry. What is stored as a whole has the peers of the first entry.
    """
    listened = [entry for entry in heard if isinstance(entry.body, Heard) and is_remembered(entry.body)]
    spoken = [entry for entry in steps if isinstance(entry.body, Said)]
    if not listened and not spoken:
        return None
    utterances = tuple(_build_utterance(entry, find_peer) for entry in listened)
    said = tuple(_build_utterance(entry, find_peer) for entry in spoken)
    stamp = merge_audiences(
        (utterances or said)[-1].stamp, [(it.stamp.audience, it.at) for it in (*utterances, *said)], people
    )
    return Exchange(
        key=build_exchange_key(session, op),
        session=session,
        agent=agent,
        op=op,
        heard=utterances,
        said=said,
        did=_render_tool_calls(steps),
        at=max((entry.at for entry in steps), default=0.0),
        stamp=stamp,
        parent=parent,
        peers=build_peers(stamp, (listened or spoken)[0], find_peer),
    )


def _build_utterance(entry: Entry, find_peer: FindPeer) -> MemoryUtterance:
    assert isinstance(entry.body, Heard | Said)
    stamp = entry.body.stamp
    own = entry.author.startswith(PERSON_MEMBER)
    return MemoryUtterance(
        author=entry.author,
        text=entry.body.text,
        at=entry.at,
        stamp=stamp,
        seq=entry.seq,
        peer=find_peer(stamp.person, entry) if own and stamp.person else "",
    )


def list_stamp_identities(stamp: Stamp) -> list[str]:
    """Return the identities of a stamp: the person, and the people of the audience."""
    heard_by = (it.removeprefix(PERSON_MEMBER) for it in stamp.audience if it.startswith(PERSON_MEMBER))
    return sorted({it for it in (stamp.person, *heard_by) if it})


def build_peers(stamp: Stamp, entry: Entry, find_peer: FindPeer) -> dict[str, str]:
    """Return the peers of the identities of a stamp, as they were at an entry."""
    found = {identity: find_peer(identity, entry) for identity in list_stamp_identities(stamp)}
    return {identity: peer for identity, peer in found.items() if peer}


def merge_audiences(stamp: Stamp, audiences: Sequence[tuple[Sequence[str], float]], people: PeopleDirectory) -> Stamp:
    """Return a stamp with those members of its audience who heard everything that was for these audiences, each from a
    time.

    A direct chat and a group can be bound to the same session. An exchange with messages from both is for neither
    audience alone.
    """
    if all(audience == stamp.audience for audience, _ in audiences):
        return stamp
    heard_by_all = tuple(
        one
        for one in stamp.audience
        if all(can_hear(people.expand_audience((one,)), audience, at) for audience, at in audiences)
    )
    return stamp if heard_by_all == stamp.audience else structs.replace(stamp, audience=heard_by_all)


def build_note(entry: Entry, *, agent: str, find_peer: FindPeer = find_no_peer) -> MemoryNote | None:
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
        peers=build_peers(body.stamp, entry, find_peer),
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


def render_delegate_report(number: int, task: str, result: str) -> str:
    """Return the message by which a session hears of the work of a sub-agent."""
    return f"[Result of sub-agent {number}, to which you gave the task “{task}”]\n{result}"


def build_job_result(heard: Entry, *, agent: str, find_peer: FindPeer = find_no_peer) -> JobResult | None:
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
        peers=build_peers(body.stamp, heard, find_peer),
    )


def fingerprint_batch(name: str, items: Sequence[MemoryItem | JobResult]) -> str:
    """Return the digest that identifies a batch. A retry must send the same bytes.

    It is stored. The items leave out default values, so a field that a later version adds does not change it.
    """
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
