"""Checks the effects of compressions on a store: changed ids, forks, copies, and messages that no model will read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from everhold.doctor.finding import DoctorFinding, StoreEdit
from everhold.hermes.doctor.case import HermesInspection, ReadChain, read_tool_call_ids
from everhold.hermes.reader.database import HermesSession
from everhold.hermes.reader.transcript import MessageDigest

MERGED_REASON: Final = "everhold_merged"
_ARCHIVE_VALUES: Final = (("active", 0), ("compacted", 1))


def check_chains(case: HermesInspection) -> Iterator[DoctorFinding]:
    """Check chains and the rows in them."""
    yield from _check_forks(case)
    yield from _check_orphans(case)
    archives = {"active", "compacted"} <= case.columns["messages"]
    for read_chain in case.read_chains():
        for check in (_check_changed_ids, _check_duplicates, _check_unread, _check_message_order):
            for finding in check(case, read_chain):
                yield finding if archives else _drop_impossible_edits(finding)


def _drop_impossible_edits(finding: DoctorFinding) -> DoctorFinding:
    """Remove the edits of messages, because an older schema cannot archive messages."""
    if not any(edit.table == "messages" for edit in finding.edits):
        return finding
    remedy = "this schema cannot archive messages; open it once with hermes-agent 0.19.0, which adds what is missing"
    return replace(finding, edits=(), remedy=f"{remedy}, or import it")


def _check_forks(case: HermesInspection) -> Iterator[DoctorFinding]:
    for parent, children in case.lineage.forks.items():
        edits = []
        for other in children[1:]:
            config = {**case.sessions[other].config, "_branched_from": parent}
            edits.append(StoreEdit("sessions", (("id", other),), (("model_config", json.dumps(config)),)))
        lost = f"the messages in {', '.join(children[1:])} are not in the conversation that continues"
        yield DoctorFinding(
            "fork",
            f"session {parent} continued under {len(children)} ids after one compression; {children[0]} is in use",
            where=(parent, *children),
            count=len(children) - 1,
            lost=lost,
            remedy="the others become branches of it, which can be resumed",
            edits=tuple(edits),
        )


def _check_orphans(case: HermesInspection) -> Iterator[DoctorFinding]:
    for session in case.lineage.orphans:
        heir = _find_continuation(case, session)
        if heir is not None:
            edit = StoreEdit("sessions", (("id", heir.id),), (("parent_session_id", session.id),))
            remedy = f"{heir.id}, in which the same chat continued, becomes its continuation"
        else:
            edit = StoreEdit("sessions", (("id", session.id),), (("ended_at", None), ("end_reason", None)))
            remedy = "it is opened again"
        yield DoctorFinding(
            "ended-by-compression",
            f"session {session.id} was ended by a compression and has no continuation",
            where=(session.id,),
            lost=f"{case.rows.get(session.id, 0)} messages are no longer in any conversation",
            remedy=remedy,
            edits=(edit,),
        )


def _find_continuation(case: HermesInspection, ended: HermesSession) -> HermesSession | None:
    """Return the session in which the same chat continued, if that session has no parent."""
    if not ended.session_key:
        return None
    later = [
        session
        for session in case.sessions_by_chat[ended.session_key]
        if session.id != ended.id
        and session.started_at >= (ended.ended_at or ended.started_at) - 60
        and not session.parent
        and not session.branched_from
        and not session.is_delegated
    ]
    return min(later, key=lambda session: session.started_at, default=None)


def _check_changed_ids(case: HermesInspection, read_chain: ReadChain) -> Iterator[DoctorFinding]:
    chain = read_chain.chain
    if len(chain.sessions) < 2:
        return
    tip = chain.tip
    edits = []
    rows: dict[str, list[MessageDigest]] = {}
    for row in read_chain.digests.values():
        rows.setdefault(row.session, []).append(row)
    for session in chain.sessions[:-1]:
        for row in rows.get(session.id, ()):
            values = (("session_id", tip.id), *(_ARCHIVE_VALUES if row.live else ()))
            edits.append(StoreEdit("messages", (("id", row.id),), values))
        retired = [("end_reason", MERGED_REASON), ("message_count", 0), ("parent_session_id", None)]
        if "archived" in case.columns["sessions"]:
            retired.append(("archived", 1))
        edits.append(StoreEdit("sessions", (("id", session.id),), tuple(retired)))
    inherited: list[tuple[str, object]] = [("parent_session_id", chain.root.parent or None)]
    if chain.root.branched_from and not tip.branched_from:
        inherited.append(("model_config", json.dumps({**tip.config, "_branched_from": chain.root.branched_from})))
    for name, old, new in (
        ("session_key", tip.session_key, chain.root.session_key),
        ("user_id", tip.user_id, chain.root.user_id),
    ):
        if new and not old and name in case.columns["sessions"]:
            inherited.append((name, new))
    edits.append(StoreEdit("sessions", (("id", tip.id),), tuple(inherited)))
    silent = [s.id for s in chain.sessions[1:] if case.rows.get(s.id) and not s.api_calls and chain.root.api_calls]
    if silent:
        yield DoctorFinding(
            "no-calls",
            f"continuations with messages that no model answered: {len(silent)} ({', '.join(silent)})",
            where=tuple(silent),
            count=len(silent),
            lost="nothing, if the conversation continued elsewhere; the answers, if it did not",
            remedy="see id-changed: they are joined with what came before",
        )
    yield DoctorFinding(
        "id-changed",
        f"compressions changed a conversation's id: {' → '.join(chain.ids)}",
        where=tuple(chain.ids),
        count=len(chain.sessions) - 1,
        remedy=f"all its messages move to {tip.id}; summarised messages stay archived and searchable",
        edits=tuple(edits),
    )


def _check_duplicates(case: HermesInspection, read_chain: ReadChain) -> Iterator[DoctorFinding]:
    """Check for rows that are live twice in one session."""
    doubled: dict[str, list[int]] = {}
    standing = {(read_chain.digests[id].session, id) for id in read_chain.reading.first if read_chain.digests[id].live}
    for copy, original in sorted(read_chain.reading.copies.items()):
        row = read_chain.digests[copy]
        if not row.live:
            continue
        if (row.session, original) in standing:
            doubled.setdefault(row.session, []).append(copy)
        standing.add((row.session, original))
    for session, ids in doubled.items():
        yield DoctorFinding(
            "written-twice",
            f"messages that occur twice in session {session}: {len(ids)}",
            where=(session, f"rows {format_ranges(ids)}"),
            count=len(ids),
            remedy="the second of each is archived",
            edits=tuple(StoreEdit("messages", (("id", id),), _ARCHIVE_VALUES) for id in ids),
        )


def _check_unread(case: HermesInspection, read_chain: ReadChain) -> Iterator[DoctorFinding]:
    alive = {original for copy, original in read_chain.reading.copies.items() if read_chain.digests[copy].live}
    for compression in read_chain.reading.compressions:
        lost = [id for id in compression.unread if not read_chain.digests[id].live and id not in alive]
        if not lost:
            continue
        tip = read_chain.chain.tip.id
        edits = tuple(StoreEdit("messages", (("session_id", tip),), (("active", 1),), copies=id) for id in lost)
        yield DoctorFinding(
            "archived-unread",
            f"messages that arrived in session {compression.session} during a compression"
            f" and were archived unread: {len(lost)}",
            where=(compression.session, f"rows {format_ranges(lost)}"),
            count=len(lost),
            lost="no model has seen them: they are neither in the summary nor live",
            remedy="they are appended to the live messages; the archived rows stay",
            edits=edits,
        )


def _check_message_order(case: HermesInspection, read_chain: ReadChain) -> Iterator[DoctorFinding]:
    """Check for live messages whose order no model accepts."""
    session = read_chain.chain.tip.id
    pairs: list[int] = []
    results: list[int] = []
    calls: dict[int, None] = {}
    waiting: dict[str, int] = {}
    last = ""
    for row in case.iter_live_messages(session):
        if row.role == "session_meta":
            continue
        if row.is_summary:
            last = "summary"
            continue
        if row.role == "tool":
            if waiting.pop(row.tool_call_id, None) is None:
                results.append(row.id)
            continue
        calls |= dict.fromkeys(waiting.values())
        waiting = dict.fromkeys(read_tool_call_ids(row), row.id)
        if row.role == "user" and last == "user" and not row.observed:
            pairs.append(row.id)
        last = "observed" if row.observed else row.role
    if results:
        yield DoctorFinding(
            "result-without-call",
            f"tool results in session {session} that belong to no call: {len(results)}",
            where=(session, f"rows {format_ranges(results)}"),
            count=len(results),
            remedy="they are archived",
            edits=tuple(StoreEdit("messages", (("id", id),), _ARCHIVE_VALUES) for id in results),
        )
    if calls:
        yield DoctorFinding(
            "call-without-result",
            f"messages in session {session} that call tools whose results are missing: {len(calls)}",
            where=(session, f"rows {format_ranges(list(calls))}"),
            count=len(calls),
            lost="what those tools returned",
            remedy="the calls are removed from them; the texts stay",
            edits=tuple(StoreEdit("messages", (("id", id),), (("tool_calls", None),)) for id in calls),
        )
    if pairs:
        yield DoctorFinding(
            "unanswered",
            f"messages in session {session} that follow another unanswered message: {len(pairs)}",
            where=(session, f"rows {format_ranges(pairs)}"),
            count=len(pairs),
            lost="the answers, if there were any",
            remedy="hermes-agent merges them when it reads them; nothing needs to be done",
            level="note",
        )


def format_ranges(ids: list[int]) -> str:
    """Format ids as ranges, such as "1-3, 7"."""
    parts: list[list[int]] = []
    for id in sorted(ids):
        if parts and id == parts[-1][1] + 1:
            parts[-1][1] = id
        else:
            parts.append([id, id])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in parts[:8]]
    return ", ".join(shown) + (", …" if len(parts) > 8 else "")
