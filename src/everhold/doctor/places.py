"""Checks on where a foreign store thinks it is: routing, chats, titles, locks, deliveries, indexes, the file itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import apsw

from everhold.core.naming import hermes_limited
from everhold.doctor.case import Case
from everhold.doctor.chains import MERGED, span
from everhold.doctor.finding import Edit, Finding
from everhold.hermes.database import RECOVER, Database

STALE_SECONDS: Final = 3600.0
RECOVERS: Final = frozenset({"agent_close", "ws_orphan_reap"})
"""Ends after which its gateway opens a session again by itself."""
_AGAINST_INDEX: Final = re.compile(
    r"^(?:row \d+ missing from|wrong # of entries in|non-unique entry in|NULL value in) index (\S+)"
    r"|^fts5: .* table \"(\w+)\""
)
_OTHER_WORDS: Final = re.compile(r"^malformed inverted index for FTS5 table")
"""Also said when another version of SQLite, which takes texts apart in its own way, filled a search index."""


def file_checks(db: Database) -> Iterator[Finding]:
    """Whether the file can be read at all."""
    found: list[str] = []
    try:
        for (line,) in db.db.execute("pragma integrity_check(100)"):
            found.append(" ".join(str(line).split()))
    except apsw.Error as error:
        found.append(str(error))
    indexes = _wrong_indexes(found)
    known = {"ok", *(line for lines in indexes.values() for line in lines)}
    pages = [line for line in found if line not in known and not _OTHER_WORDS.match(line)]
    if pages:
        yield Finding(
            "pages",
            f"the file is damaged: {pages[0]}",
            where=(str(db.path), *pages[1:6]),
            count=len(pages),
            lost="whatever stood on those pages",
            remedy=RECOVER,
        )
    else:
        yield from _index_damage(db, indexes)
    missing = {"sessions": {"id", "started_at"}, "messages": {"id", "session_id", "role", "content", "timestamp"}}
    for table, columns in missing.items():
        gone = columns - db.columns(table)
        if gone:
            yield Finding(
                "schema",
                f"{table} has no {', '.join(sorted(gone))}",
                where=(str(db.path),),
                remedy="this is no schema of hermes-agent's; is it the right file?",
            )


def _wrong_indexes(lines: list[str]) -> dict[str, list[str]]:
    """Index -> what SQLite says against it; the rows themselves are sound."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if named := _AGAINST_INDEX.search(line):
            found.setdefault(next(name for name in named.groups() if name), []).append(line)
    return found


def _index_damage(db: Database, indexes: dict[str, list[str]]) -> Iterator[Finding]:
    for name, lines in indexes.items():
        table = name if name in db.tables else ""
        writes = bool(writes_index(db, table)) if table else not any("non-unique" in line for line in lines)
        yield Finding(
            "index",
            f"the index {name} is damaged: {lines[0]}",
            where=(name, *lines[1:6]),
            count=len(lines),
            lost="whatever is looked up through it may not be found; the messages themselves are there",
            remedy="it is written anew; then look again, for what else is wrong shows only then"
            if writes
            else "two rows have what only one may have; nothing mends that by itself",
            edits=(Edit(table or name, index=name),) if writes else (),
        )


def checks(case: Case) -> Iterator[Finding]:
    yield from _routing(case)
    yield from _aliases(case)
    yield from _spread(case)
    yield from _empty(case)
    yield from _collisions(case)
    yield from _locks(case)
    yield from _deliveries(case)
    yield from _errands(case)
    yield from _flags(case)
    yield from _owners(case)
    yield from _titles(case)
    yield from _gaps(case)
    yield from _indexes(case)


def _repoint(case: Case, key: str, to: str | None) -> tuple[Edit, ...]:
    entry = case.routing[key]
    edits = []
    if "gateway_routing" in case.db.tables:
        for (scope,) in case.db.rows("select scope from gateway_routing where session_key = ?", (key,)):
            values = (("entry_json", json.dumps({**entry, "session_id": to})),) if to else ()
            edits.append(Edit("gateway_routing", (("scope", scope), ("session_key", key)), values))
    return (*edits, Edit("sessions.json", (("session_key", key),), (("session_id", to),) if to else ()))


def _better(case: Case, key: str, not_this: str) -> str | None:
    """Where a chat should lead: the end of the chain it leads into, else its newest session that is open."""
    chain = case.lineage.of.get(not_this)
    if chain is not None and chain.tip.id != not_this and chain.tip.ended_at is None:
        return chain.tip.id
    return next((session.id for session in reversed(case.open_of(key)) if session.id != not_this), None)


def _routing(case: Case) -> Iterator[Finding]:
    for key, entry in case.routing.items():
        id = str(entry.get("session_id") or "")
        session = case.sessions.get(id)
        if session is not None and (session.ended_at is None or session.end_reason in RECOVERS):
            continue
        to = _better(case, key, id)
        why = "does not exist" if session is None else f"was ended ({session.end_reason or 'nobody says why'})"
        yield Finding(
            "routed-to-ended",
            f"{key} leads to session {id}, which {why}",
            where=(key, id),
            lost="the next message there begins without what was said before",
            remedy=f"it will lead to {to}" if to else "the entry goes; the next message begins a new session",
            edits=_repoint(case, key, to),
        )


def _aliases(case: Case) -> Iterator[Finding]:
    for id, keys in case.routed.items():
        if len(keys) < 2:
            continue
        session = case.sessions.get(id)
        keeps = session.session_key if session and session.session_key in keys else keys[0]
        edits: list[Edit] = []
        for key in keys:
            if key != keeps:
                edits += _repoint(case, key, next((s.id for s in reversed(case.open_of(key)) if s.id != id), None))
        yield Finding(
            "aliased",
            f"{len(keys)} chats lead to one session, {id}: {', '.join(keys)}",
            where=(id, *keys),
            count=len(keys) - 1,
            lost="each of them can read what was said in the others",
            remedy=f"{keeps} keeps it; the others get their own back, or a new one",
            edits=tuple(edits),
        )


def _spread(case: Case) -> Iterator[Finding]:
    keys = {session.session_key for session in case.sessions.values() if session.session_key}
    for key in sorted(keys):
        there = case.open_of(key)
        if len(there) < 2:
            continue
        routed = str(case.routing.get(key, {}).get("session_id") or "")
        keeps = routed if any(session.id == routed for session in there) else there[-1].id
        others = [session for session in there if session.id != keeps]
        yield Finding(
            "spread",
            f"{key} has {len(there)} sessions that were never ended; {keeps} is in use",
            where=(key, *(session.id for session in there)),
            count=len(others),
            remedy="the others are ended, and can be resumed",
            edits=tuple(
                Edit(
                    "sessions",
                    (("id", session.id),),
                    (("ended_at", case.newest.get(session.id, session.started_at)), ("end_reason", "session_switch")),
                )
                for session in others
            ),
        )


def _empty(case: Case) -> Iterator[Finding]:
    parents = {session.parent for session in case.sessions.values()}
    found = [
        session
        for session in case.sessions.values()
        if not case.rows.get(session.id)
        and session.ended_at is None
        and session.id not in case.archived
        and session.id not in case.routed
        and session.id not in parents
        and session.started_at < case.now - STALE_SECONDS
    ]
    if found:
        archived = (("archived", 1),) if "archived" in case.columns["sessions"] else ()
        yield Finding(
            "empty",
            f"sessions that were begun and nobody ever wrote to: {len(found)}",
            where=tuple(session.id for session in found[:20]),
            count=len(found),
            remedy="they are ended and put away",
            edits=tuple(
                Edit("sessions", (("id", s.id),), (("ended_at", s.started_at), ("end_reason", MERGED), *archived))
                for s in found
            ),
        )


def _collisions(case: Case) -> Iterator[Finding]:
    """Chats whose memory is filed under one name, and keys that stand for two chats."""
    names: dict[str, set[str]] = {}
    chats: dict[str, set[tuple[str, str, str]]] = {}
    for session in case.sessions.values():
        if not session.session_key:
            continue
        names.setdefault(hermes_limited(session.session_key), set()).add(session.session_key)
        who = "" if session.chat_type == "dm" or session.thread_id else session.user_id
        if session.chat_id:
            chats.setdefault(session.session_key, set()).add((session.chat_id, session.thread_id, who))
    for key in case.routing:
        names.setdefault(hermes_limited(key), set()).add(key)
    for name, keys in names.items():
        if len(keys) > 1:
            yield Finding(
                "colliding-names",
                f"{len(keys)} chats are filed under one name in memory services, {name}: {', '.join(sorted(keys))}",
                where=tuple(sorted(keys)),
                count=len(keys) - 1,
                lost="what is remembered of one is recalled in the other",
                remedy="nothing in this store can mend it; imported, each has a name of its own",
            )
    for key, places in chats.items():
        if len(places) > 1:
            yield Finding(
                "colliding-keys",
                f"{key} stands for {len(places)} different chats: {', '.join(str(place) for place in sorted(places))}",
                where=(key,),
                count=len(places) - 1,
                lost="they share one conversation",
                remedy="nothing in this store can mend it; imported, new messages are kept apart",
            )


def _locks(case: Case) -> Iterator[Finding]:
    if "compression_locks" not in case.db.tables:
        return
    held = case.db.rows("select session_id, holder from compression_locks where expires_at < ?", (case.now,))
    if held:
        yield Finding(
            "expired-locks",
            f"locks of compressions that were never given back: {len(held)}",
            where=tuple(str(session) for session, _ in held),
            count=len(held),
            remedy="they are removed",
            edits=tuple(Edit("compression_locks", (("session_id", session),)) for session, _ in held),
        )


def _deliveries(case: Case) -> Iterator[Finding]:
    if "delivery_obligations" not in case.db.tables:
        return
    stuck = case.db.rows(
        "select obligation_id, platform, chat_id, state from delivery_obligations "
        "where state in ('pending', 'attempting') and updated_at < ?",
        (case.now - STALE_SECONDS,),
    )
    if stuck:
        values = (("state", "abandoned"), ("last_error", "given up by everhold doctor"))
        yield Finding(
            "stuck-deliveries",
            f"replies that were never delivered, or nobody knows whether they were: {len(stuck)}",
            where=tuple(f"{platform} {chat} ({state})" for _, platform, chat, state in stuck[:20]),
            count=len(stuck),
            lost="those replies, as far as people are concerned; their texts are in the transcripts",
            remedy="they are given up, so that nobody gets them days later",
            edits=tuple(Edit("delivery_obligations", (("obligation_id", id),), values) for id, *_ in stuck),
        )


def _errands(case: Case) -> Iterator[Finding]:
    """What errands brought back, and nobody was told. A session that begins later would be told it."""
    if not {"delivery_state", "state", "updated_at"} <= case.columns.get("async_delegations", set()):
        return
    stuck = case.db.rows(
        "select delegation_id, origin_session from async_delegations "
        "where delivery_state = 'pending' and state not in ('running', 'finalizing') and updated_at < ?",
        (case.now - STALE_SECONDS,),
    )
    if stuck:
        yield Finding(
            "stuck-deliveries",
            f"results of errands that were never handed to the session that asked for them: {len(stuck)}",
            where=tuple(f"{id} of {origin}" for id, origin in stuck[:20]),
            count=len(stuck),
            lost="the session went on without them; the results themselves stay in the store",
            remedy="they are settled, so that no other session is handed them",
            edits=tuple(
                Edit("async_delegations", (("delegation_id", id),), (("delivery_state", "delivered"),))
                for id, _ in stuck
            ),
        )


def _flags(case: Case) -> Iterator[Finding]:
    if "active" not in case.columns["messages"]:
        return
    rows = [int(id) for (id,) in case.db.rows("select id from messages where active is null")]
    if rows:
        yield Finding(
            "unmarked",
            f"messages that are neither live nor archived: {len(rows)}",
            where=(f"rows {span(rows)}",),
            count=len(rows),
            remedy="they are live, as it reads them",
            edits=tuple(Edit("messages", (("id", id),), (("active", 1),)) for id in rows),
        )


def _owners(case: Case) -> Iterator[Finding]:
    found = []
    for session in case.sessions.values():
        parent = case.sessions.get(session.parent)
        if (
            parent is not None
            and parent.session_key
            and parent.user_id
            and not session.user_id
            and not session.delegated
        ):
            found.append((session, parent))
    if found and "user_id" in case.columns["sessions"]:
        yield Finding(
            "nobody-s",
            f"sessions that lost whose they are when they went on under another id: {len(found)}",
            where=tuple(session.id for session, _ in found),
            count=len(found),
            remedy="they get it from the session they came from",
            edits=tuple(Edit("sessions", (("id", s.id),), (("user_id", p.user_id),)) for s, p in found),
        )


def _titles(case: Case) -> Iterator[Finding]:
    titles: dict[str, list[str]] = {}
    for session in case.sessions.values():
        if session.title:
            titles.setdefault(session.title, []).append(session.id)
    for title, ids in titles.items():
        if len(ids) > 1:
            yield Finding(
                "same-title",
                f"{len(ids)} sessions are called {title!r}: which one `/resume` means nobody can say",
                where=tuple(ids),
                count=len(ids) - 1,
                remedy="give one of them another title",
                level="note",
            )


def _gaps(case: Case) -> Iterator[Finding]:
    (lowest, highest, count) = case.db.rows("select min(id), max(id), count(*) from messages")[0]
    gone = 0 if not count else int(highest) - int(lowest) + 1 - int(count) + int(lowest) - 1
    if gone > 0:
        ids = [int(id) for (id,) in case.db.rows("select id from messages order by id")] if count < 200_000 else []
        ranges: list[str] = []
        expected = 1
        for id in ids:
            if id > expected and len(ranges) < 20:
                ranges.append(f"{expected}-{id - 1}" if id - 1 > expected else str(expected))
            expected = id + 1
        yield Finding(
            "deleted",
            f"messages that were deleted for good: {gone}",
            where=tuple(f"rows {one}" for one in ranges),
            count=gone,
            lost="those messages; a `/retry` or a cleaning-up removed them, and nothing can bring them back",
            level="note",
        )


def _indexes(case: Case) -> Iterator[Finding]:
    for table in ("messages_fts", "messages_fts_trigram"):
        if table not in case.db.tables or f"{table}_docsize" not in case.db.tables:
            continue
        try:
            missing = _one(case, f"select count(*) from messages where id not in (select id from {table}_docsize)")
            extra = _one(case, f"select count(*) from {table}_docsize where id not in (select id from messages)")
        except apsw.Error:
            missing, extra = 1, 0
        if missing or extra:
            yield Finding(
                "index",
                f"the search index {table} misses {missing} messages and has {extra} that are gone",
                where=(table,),
                count=missing + extra,
                lost="search does not find them; the messages themselves are there",
                remedy="it is written anew",
                edits=(Edit(table, index=table),) if writes_index(case.db, table) else (),
            )


def _one(case: Case, sql: str) -> int:
    return int(case.db.db.execute(sql).get)


def writes_index(db: Database, table: str) -> str:
    """How this version of it fills its index, from its own trigger: the expression over `new`."""
    found = db.rows("select sql from sqlite_master where type = 'trigger' and name = ?", (f"{table}_insert",))
    if not found:
        return ""
    values: Any = re.search(r"values\s*\(\s*new\.id\s*,(.*)\)\s*;", str(found[0][0]), re.IGNORECASE | re.DOTALL)
    return str(values[1]).strip() if values else ""
