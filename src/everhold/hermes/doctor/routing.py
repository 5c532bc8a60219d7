"""Checks routing, chats, titles, locks, deliveries, indexes and the file of a store."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final

import apsw

from everhold.core.memory_naming import limit_hermes_name
from everhold.doctor.finding import DoctorFinding, StoreEdit
from everhold.hermes.doctor.case import HermesInspection
from everhold.hermes.doctor.chains import MERGED_REASON, format_ranges
from everhold.hermes.reader.database import RECOVERY_REMEDY, HermesDatabase

STALE_SECONDS: Final = 3600.0
RECOVERABLE_END_REASONS: Final = frozenset({"agent_close", "ws_orphan_reap"})
"""End reasons after which the gateway of hermes-agent reopens a session by itself."""
_INDEX_DAMAGE_PATTERN: Final = re.compile(
    r"^(?:row \d+ missing from|wrong # of entries in|non-unique entry in|NULL value in) index (\S+)"
    r"|^fts5: .* table \"(\w+)\""
)
_SEARCH_INDEX_PATTERN: Final = re.compile(r"^malformed inverted index for FTS5 table")
"""Also reported when another version of SQLite, with a different tokenizer, filled a search index."""


def check_file(db: HermesDatabase) -> Iterator[DoctorFinding]:
    """Check that the file can be read."""
    found: list[str] = []
    try:
        for (line,) in db.db.execute("pragma integrity_check(100)"):
            found.append(" ".join(str(line).split()))
    except apsw.Error as error:
        found.append(str(error))
    indexes = _find_damaged_indexes(found)
    known = {"ok", *(line for lines in indexes.values() for line in lines)}
    pages = [line for line in found if line not in known and not _SEARCH_INDEX_PATTERN.match(line)]
    if pages:
        yield DoctorFinding(
            "pages",
            f"the file is damaged: {pages[0]}",
            where=(str(db.path), *pages[1:6]),
            count=len(pages),
            lost="everything on those pages",
            remedy=RECOVERY_REMEDY,
        )
    else:
        yield from _report_index_damage(db, indexes)
    missing = {"sessions": {"id", "started_at"}, "messages": {"id", "session_id", "role", "content", "timestamp"}}
    for table, columns in missing.items():
        gone = columns - db.list_columns(table)
        if gone:
            yield DoctorFinding(
                "schema",
                f"{table} has no {', '.join(sorted(gone))}",
                where=(str(db.path),),
                remedy="this is not a schema of hermes-agent; check the path",
            )


def _find_damaged_indexes(lines: list[str]) -> dict[str, list[str]]:
    """Return index -> the problems that SQLite reports. The rows themselves are intact."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if named := _INDEX_DAMAGE_PATTERN.search(line):
            found.setdefault(next(name for name in named.groups() if name), []).append(line)
    return found


def _report_index_damage(db: HermesDatabase, indexes: dict[str, list[str]]) -> Iterator[DoctorFinding]:
    for name, lines in indexes.items():
        table = name if name in db.tables else ""
        writes = bool(read_index_expression(db, table)) if table else not any("non-unique" in line for line in lines)
        yield DoctorFinding(
            "index",
            f"the index {name} is damaged: {lines[0]}",
            where=(name, *lines[1:6]),
            count=len(lines),
            lost="lookups through it may find nothing; the messages themselves are there",
            remedy="it is rebuilt; then run the check again, because other problems show only then"
            if writes
            else "two rows have a value that must be unique; it cannot be repaired automatically",
            edits=(StoreEdit(table or name, index=name),) if writes else (),
        )


def check_places(case: HermesInspection) -> Iterator[DoctorFinding]:
    yield from _check_routing(case)
    yield from _check_aliases(case)
    yield from _check_split_chats(case)
    yield from _check_empty_sessions(case)
    yield from _check_collisions(case)
    yield from _check_locks(case)
    yield from _check_deliveries(case)
    yield from _check_delegations(case)
    yield from _check_flags(case)
    yield from _check_owners(case)
    yield from _check_titles(case)
    yield from _check_gaps(case)
    yield from _check_indexes(case)


def _make_repoint_edits(case: HermesInspection, key: str, to: str | None) -> tuple[StoreEdit, ...]:
    entry = case.routing[key]
    values = (("entry_json", json.dumps({**entry, "session_id": to})),) if to else ()
    edits = [
        StoreEdit("gateway_routing", (("scope", scope), ("session_key", key)), values)
        for scope in case.scopes_by_chat.get(key, ())
    ]
    return (*edits, StoreEdit("sessions.json", (("session_key", key),), (("session_id", to),) if to else ()))


def _find_own_session(case: HermesInspection, key: str, not_this: str) -> str | None:
    """Return the newest open session of a chat."""
    return next((it.id for it in reversed(case.open_sessions.get(key, [])) if it.id != not_this), None)


def _find_better_session(case: HermesInspection, key: str, not_this: str) -> str | None:
    """Return where a chat should lead: the end of its chain, else its newest open session."""
    chain = case.lineage.chain_by_session.get(not_this)
    if chain is not None and chain.tip.id != not_this and chain.tip.ended_at is None:
        return chain.tip.id
    return _find_own_session(case, key, not_this)


def _check_routing(case: HermesInspection) -> Iterator[DoctorFinding]:
    for key, entry in case.routing.items():
        id = str(entry.get("session_id") or "")
        session = case.sessions.get(id)
        if session is not None and (session.ended_at is None or session.end_reason in RECOVERABLE_END_REASONS):
            continue
        owner = case.chat_by_session.get(id, "")
        if owner and owner != key:
            yield _report_foreign_route(case, key, id, owner=owner)
            continue
        to = _find_better_session(case, key, id)
        why = "does not exist" if session is None else f"was ended ({session.end_reason or 'no reason given'})"
        yield DoctorFinding(
            "routed-to-ended",
            f"{key} leads to session {id}, which {why}",
            where=(key, id),
            lost="the next message there begins without the earlier messages",
            remedy=f"it will lead to {to}" if to else "the entry is removed; the next message begins a new session",
            edits=_make_repoint_edits(case, key, to),
        )


def _report_foreign_route(case: HermesInspection, key: str, id: str, *, owner: str) -> DoctorFinding:
    """Report a chat that leads to an ended session of another chat. What follows that session belongs to the other
    chat, too, so this chat is never led there.
    """
    to = _find_own_session(case, key, id)
    remedy = f"it will lead to {to}, its own session" if to else "the entry is removed"
    return DoctorFinding(
        "routed-to-ended",
        f"{key} leads to session {id}, which belongs to another chat, {owner}, and was ended "
        f"({case.sessions[id].end_reason or 'no reason given'})",
        where=(key, id, owner),
        lost=f"the next message there begins without the messages of {to}"
        if to
        else "nothing that is still open: this chat has no open session of its own",
        remedy=f"{remedy}; {owner} keeps {id}" + ("" if to else ", and the next message here begins a new session"),
        edits=_make_repoint_edits(case, key, to),
    )


def _check_aliases(case: HermesInspection) -> Iterator[DoctorFinding]:
    for id, keys in case.chats_by_session.items():
        if len(keys) < 2:
            continue
        session = case.sessions.get(id)
        keeps = session.session_key if session and session.session_key in keys else keys[0]
        edits: list[StoreEdit] = []
        for key in keys:
            if key != keeps:
                edits += _make_repoint_edits(case, key, _find_own_session(case, key, id))
        yield DoctorFinding(
            "aliased",
            f"{len(keys)} chats lead to one session, {id}: {', '.join(keys)}",
            where=(id, *keys),
            count=len(keys) - 1,
            lost="each of them can read the messages of the others",
            remedy=f"{keeps} keeps it; the others return to their own session, or get a new one",
            edits=tuple(edits),
        )


def _check_split_chats(case: HermesInspection) -> Iterator[DoctorFinding]:
    for key, there in sorted(case.open_sessions.items()):
        if len(there) < 2:
            continue
        routed = str(case.routing.get(key, {}).get("session_id") or "")
        keeps = routed if any(session.id == routed for session in there) else there[-1].id
        others = [session for session in there if session.id != keeps]
        yield DoctorFinding(
            "spread",
            f"{key} has {len(there)} open sessions; {keeps} is in use",
            where=(key, *(session.id for session in there)),
            count=len(others),
            remedy="the others are ended, and can be resumed",
            edits=tuple(
                StoreEdit(
                    "sessions",
                    (("id", session.id),),
                    (("ended_at", case.newest.get(session.id, session.started_at)), ("end_reason", "session_switch")),
                )
                for session in others
            ),
        )


def _check_empty_sessions(case: HermesInspection) -> Iterator[DoctorFinding]:
    parents = {session.parent for session in case.sessions.values()}
    found = [
        session
        for session in case.sessions.values()
        if not case.rows.get(session.id)
        and session.ended_at is None
        and session.id not in case.archived
        and session.id not in case.chats_by_session
        and session.id not in parents
        and session.started_at < case.now - STALE_SECONDS
    ]
    if found:
        archived = (("archived", 1),) if "archived" in case.columns["sessions"] else ()
        yield DoctorFinding(
            "empty",
            f"sessions without messages: {len(found)}",
            where=tuple(session.id for session in found[:20]),
            count=len(found),
            remedy="they are ended and archived",
            edits=tuple(
                StoreEdit(
                    "sessions", (("id", s.id),), (("ended_at", s.started_at), ("end_reason", MERGED_REASON), *archived)
                )
                for s in found
            ),
        )


def _check_collisions(case: HermesInspection) -> Iterator[DoctorFinding]:
    """Check for chats with the same name in memory services, and for keys that stand for two chats."""
    names: dict[str, set[str]] = {}
    chats: dict[str, set[tuple[str, str, str]]] = {}
    for session in case.sessions.values():
        if not session.session_key:
            continue
        names.setdefault(limit_hermes_name(session.session_key), set()).add(session.session_key)
        who = "" if session.chat_type == "dm" or session.thread_id else session.user_id
        if session.chat_id:
            chats.setdefault(session.session_key, set()).add((session.chat_id, session.thread_id, who))
    for key in case.routing:
        names.setdefault(limit_hermes_name(key), set()).add(key)
    for name, keys in names.items():
        if len(keys) > 1:
            yield DoctorFinding(
                "colliding-names",
                f"{len(keys)} chats have one name in memory services, {name}: {', '.join(sorted(keys))}",
                where=tuple(sorted(keys)),
                count=len(keys) - 1,
                lost="what is remembered of one is recalled in the other",
                remedy="this store cannot be repaired; after an import each has its own name",
            )
    for key, places in chats.items():
        if len(places) > 1:
            yield DoctorFinding(
                "colliding-keys",
                f"{key} stands for {len(places)} different chats: {', '.join(str(place) for place in sorted(places))}",
                where=(key,),
                count=len(places) - 1,
                lost="they share one conversation",
                remedy="this store cannot be repaired; after an import new messages are kept apart",
            )


def _check_locks(case: HermesInspection) -> Iterator[DoctorFinding]:
    if "compression_locks" not in case.db.tables:
        return
    held = case.db.query_rows("select session_id, holder from compression_locks where expires_at < ?", (case.now,))
    if held:
        yield DoctorFinding(
            "expired-locks",
            f"compression locks that were never released: {len(held)}",
            where=tuple(str(session) for session, _ in held),
            count=len(held),
            remedy="they are removed",
            edits=tuple(StoreEdit("compression_locks", (("session_id", session),)) for session, _ in held),
        )


def _check_deliveries(case: HermesInspection) -> Iterator[DoctorFinding]:
    if "delivery_obligations" not in case.db.tables:
        return
    stuck = case.db.query_rows(
        "select obligation_id, platform, chat_id, state from delivery_obligations "
        "where state in ('pending', 'attempting') and updated_at < ?",
        (case.now - STALE_SECONDS,),
    )
    if stuck:
        values = (("state", "abandoned"), ("last_error", "given up by everhold doctor"))
        yield DoctorFinding(
            "stuck-deliveries",
            f"replies that were not delivered, or whose delivery is in doubt: {len(stuck)}",
            where=tuple(f"{platform} {chat} ({state})" for _, platform, chat, state in stuck[:20]),
            count=len(stuck),
            lost="those replies, for the people in the chat; their texts are in the transcripts",
            remedy="they are marked as given up, so that they are not sent days later",
            edits=tuple(StoreEdit("delivery_obligations", (("obligation_id", id),), values) for id, *_ in stuck),
        )


def _check_delegations(case: HermesInspection) -> Iterator[DoctorFinding]:
    """Check for results of delegations that were never delivered. A later session would receive them."""
    if not {"delivery_state", "state", "updated_at"} <= case.columns.get("async_delegations", set()):
        return
    stuck = case.db.query_rows(
        "select delegation_id, origin_session from async_delegations "
        "where delivery_state = 'pending' and state not in ('running', 'finalizing') and updated_at < ?",
        (case.now - STALE_SECONDS,),
    )
    if stuck:
        yield DoctorFinding(
            "stuck-deliveries",
            f"results of delegations that were never delivered to their session: {len(stuck)}",
            where=tuple(f"{id} of {origin}" for id, origin in stuck[:20]),
            count=len(stuck),
            lost="the session continued without them; the results themselves stay in the store",
            remedy="they are marked as delivered, so that no other session receives them",
            edits=tuple(
                StoreEdit("async_delegations", (("delegation_id", id),), (("delivery_state", "delivered"),))
                for id, _ in stuck
            ),
        )


def _check_flags(case: HermesInspection) -> Iterator[DoctorFinding]:
    if "active" not in case.columns["messages"]:
        return
    rows = [int(id) for (id,) in case.db.query_rows("select id from messages where active is null")]
    if rows:
        yield DoctorFinding(
            "unmarked",
            f"messages that are neither live nor archived: {len(rows)}",
            where=(f"rows {format_ranges(rows)}",),
            count=len(rows),
            remedy="they become live, which is how hermes-agent reads them",
            edits=tuple(StoreEdit("messages", (("id", id),), (("active", 1),)) for id in rows),
        )


def _check_owners(case: HermesInspection) -> Iterator[DoctorFinding]:
    found = []
    for session in case.sessions.values():
        parent = case.sessions.get(session.parent)
        if (
            parent is not None
            and parent.session_key
            and parent.user_id
            and not session.user_id
            and not session.is_delegated
        ):
            found.append((session, parent))
    if found and "user_id" in case.columns["sessions"]:
        yield DoctorFinding(
            "without-owner",
            f"sessions that lost their owner when they continued under another id: {len(found)}",
            where=tuple(session.id for session, _ in found),
            count=len(found),
            remedy="they get it from their parent session",
            edits=tuple(StoreEdit("sessions", (("id", s.id),), (("user_id", p.user_id),)) for s, p in found),
        )


def _check_titles(case: HermesInspection) -> Iterator[DoctorFinding]:
    titles: dict[str, list[str]] = {}
    for session in case.sessions.values():
        if session.title:
            titles.setdefault(session.title, []).append(session.id)
    for title, ids in titles.items():
        if len(ids) > 1:
            yield DoctorFinding(
                "same-title",
                f"{len(ids)} sessions have the title {title!r}, so `/resume` is ambiguous",
                where=tuple(ids),
                count=len(ids) - 1,
                remedy="give one of them another title",
                level="note",
            )


def _check_gaps(case: HermesInspection) -> Iterator[DoctorFinding]:
    (lowest, highest, count) = case.db.query_rows("select min(id), max(id), count(*) from messages")[0]
    missing_count = 0 if not count else int(highest) - int(lowest) + 1 - int(count) + int(lowest) - 1
    if missing_count > 0:
        ids = (
            [int(id) for (id,) in case.db.query_rows("select id from messages order by id")] if count < 200_000 else []
        )
        ranges: list[str] = []
        expected = 1
        for id in ids:
            if id > expected and len(ranges) < 20:
                ranges.append(f"{expected}-{id - 1}" if id - 1 > expected else str(expected))
            expected = id + 1
        yield DoctorFinding(
            "deleted",
            f"messages that were permanently deleted: {missing_count}",
            where=tuple(f"rows {one}" for one in ranges),
            count=missing_count,
            lost="those messages; a `/retry` or a cleanup removed them, and they cannot be restored",
            level="note",
        )


def _check_indexes(case: HermesInspection) -> Iterator[DoctorFinding]:
    for table in ("messages_fts", "messages_fts_trigram"):
        if table not in case.db.tables or f"{table}_docsize" not in case.db.tables:
            continue
        try:
            missing = _query_count(
                case, f"select count(*) from messages where id not in (select id from {table}_docsize)"
            )
            extra = _query_count(
                case, f"select count(*) from {table}_docsize where id not in (select id from messages)"
            )
        except apsw.Error:
            missing, extra = 1, 0
        if missing or extra:
            yield DoctorFinding(
                "index",
                f"the search index {table} misses {missing} messages and has {extra} that are gone",
                where=(table,),
                count=missing + extra,
                lost="search does not find them; the messages themselves are there",
                remedy="it is rebuilt",
                edits=(StoreEdit(table, index=table),) if read_index_expression(case.db, table) else (),
            )


def _query_count(case: HermesInspection, sql: str) -> int:
    return int(case.db.db.execute(sql).get)


_INDEX_EXPRESSION: Final = re.compile(r"(?:new\.\w++|coalesce|\|\||'[^']*'|[(),\s])++", re.IGNORECASE)


def read_index_expression(db: HermesDatabase, table: str) -> str:
    """Return the expression over `new` with which the trigger of this version fills its index; nothing for another.

    The trigger is text in a foreign file, and the expression becomes part of a statement of ours. So only columns,
    texts, `coalesce` and `||` are accepted.
    """
    found = db.query_rows("select sql from sqlite_master where type = 'trigger' and name = ?", (f"{table}_insert",))
    if not found:
        return ""
    sql = str(found[0][0])
    begin = re.search(r"values\s*\(\s*new\.id\s*,", sql, re.IGNORECASE)
    ends = [end.start() for end in re.finditer(r"\)\s*;", sql)]
    expression = sql[begin.end() : ends[-1]].strip() if begin and ends else ""
    return expression if _INDEX_EXPRESSION.fullmatch(expression) else ""
