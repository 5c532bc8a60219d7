"""Handlers for lists: sessions by their last activity, use of models, and what waits for a person's decision."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, cast

import msgspec
from starlette.responses import Response, StreamingResponse

from everhold.admin.session_overview import OverviewRow, SessionFilter, SessionFilterState, make_cursor
from everhold.admin.sessions import render_entry, render_session
from everhold.api import console_schemas
from everhold.api.errors import build_json_response
from everhold.api.memory import NDJSON
from everhold.api.request import ApiCall
from everhold.core.entries import Heard
from everhold.core.people import PERSON_MEMBER, PeopleDirectory
from everhold.core.provenance import join_all_text
from everhold.errors import NotFound
from everhold.ports.store import Session

MAX_ACTIVE: Final = 200
DEFAULT_ACTIVE: Final = 50
MAX_HITS: Final = 500
"""Entries with the words of a search whose sessions are listed."""
CATCH_UP_PAGES: Final = 4
"""How far a list follows the log before it answers. The gateway follows the rest in the background."""
MAX_LOOKED_AT: Final = 2_000
"""Sessions that are looked at to find those that a member may see."""
FIRST_WORDS: Final = 160
STATES: Final = ("current", "archived", "failed", "all")
USAGE_KEYS: Final = ("day", "agent", "model", "person")


async def list_active_sessions(call: ApiCall) -> Response:
    """Return sessions, the one with the latest entry first."""
    limit = call.get_number("limit", least=1, most=MAX_ACTIVE) or DEFAULT_ACTIVE
    for _ in range(CATCH_UP_PAGES):
        if not await call.context.overview.catch_up(call.context.store):
            break
    wanted = await _build_filter(call, limit)
    found: list[OverviewRow] = []
    looked_at = 0
    rows: list[OverviewRow] = []
    while len(found) < limit and looked_at < MAX_LOOKED_AT:
        rows = await call.context.overview.list_sessions(wanted)
        for row in rows:
            if len(found) < limit and await _can_list(call, row):
                found.append(row)
        looked_at += len(rows)
        if len(rows) < wanted.limit:
            break
        wanted = msgspec.structs.replace(wanted, before=make_cursor(rows[-1]))
    has_more = bool(rows) and (len(rows) == wanted.limit or len(found) == limit)
    last = found[-1] if len(found) == limit else (rows[-1] if rows else None)
    people = await call.context.store.get_people()
    return build_json_response(
        {
            "sessions": [await _show_row(call, row, people) for row in found],
            "next": make_cursor(last) if has_more and last is not None else None,
            "behind": max(0, await call.context.store.last_pos() - await call.context.overview.find_position()),
        }
    )


async def _can_list(call: ApiCall, row: OverviewRow) -> bool:
    try:
        return await call.context.can_see(call.caller, row.session)
    except NotFound:  # the projection follows another log until its next page
        return False


async def _build_filter(call: ApiCall, limit: int) -> SessionFilter:
    query, people = call.query, await call.context.store.get_people()
    words = query.get("q", "").strip()
    authors: tuple[str, ...] | None = None
    if person := query.get("person", ""):
        call.require_operator()
        authors = tuple(f"{PERSON_MEMBER}{name}" for name in people.list_names(person))
    if not call.caller.operator:
        authors = await call.context.list_authors(call.caller)
    agent = query.get("agent", "")
    return SessionFilter(
        agents=(call.resolve_agent(agent),) if agent else tuple(call.caller.scope.agents),
        platform=query.get("platform", ""),
        authors=authors,
        title=words,
        hits=await _find_sessions_with(call, words) if words else (),
        state=cast("SessionFilterState", query.get("state", "current")),
        before=query.get("before", ""),
        limit=limit,
    )


async def _find_sessions_with(call: ApiCall, words: str) -> tuple[str, ...]:
    hits = await call.context.control.search_entries(words, limit=MAX_HITS)
    return tuple({entry.session for entry in hits})


async def _show_row(call: ApiCall, row: OverviewRow, people: PeopleDirectory) -> dict[str, Any]:
    session = await call.context.store.get_session(row.session)
    return {
        **render_session(session),
        "at": row.at,
        **await _describe_start(call, session, people),
        "outcome": row.outcome,
        "turns": row.turns,
        "tokens": row.tokens,
        "usd": row.usd,
    }


async def _describe_start(call: ApiCall, session: Session, people: PeopleDirectory) -> dict[str, Any]:
    """Return the first words of a session, and who said them."""
    if not session.last_seq:
        return {"first": "", "person": ""}
    entry = await call.context.store.get_entry(session.id, 1)
    text = join_all_text(entry.body) if isinstance(entry.body, Heard) else ""
    return {"first": text[:FIRST_WORDS], "person": _name_author(people, entry.author)}


def _name_author(people: PeopleDirectory, author: str) -> str:
    """Return the name of an author, empty if it is no person."""
    if not author.startswith(PERSON_MEMBER):
        return ""
    return people.describe_identity(author.removeprefix(PERSON_MEMBER))


# -- changes -----------------------------------------------------------------------------------------------------------


async def rename_session(call: ApiCall) -> Response:
    """Give a session a title."""
    given = call.decode_body(console_schemas.TitleRequest)
    session = await call.context.find_session(call.caller, call.path["id"])
    await call.context.control.rename_session(session.id, given.title, by=call.author)
    return build_json_response({"session": session.id, "title": given.title})


async def archive_session(call: ApiCall) -> Response:
    """Hide a session from lists, or show it again."""
    given = call.decode_body(console_schemas.ArchiveRequest)
    session = await call.context.find_session(call.caller, call.path["id"])
    await call.context.control.archive_session(session.id, archived=given.archived, by=call.author)
    return build_json_response({"session": session.id, "archived": given.archived})


async def export_session(call: ApiCall) -> Response:
    """Stream a session and its log as JSON lines."""
    session = await call.context.find_session(call.caller, call.path["id"])
    headers = {"content-disposition": f'attachment; filename="session-{session.id}.ndjson"'}
    return StreamingResponse(_stream_export(call, session), media_type=NDJSON, headers=headers)


async def _stream_export(call: ApiCall, session: Session) -> AsyncIterator[bytes]:
    yield msgspec.json.encode(render_session(session)) + b"\n"
    async for entry in call.context.control.read_entries(session.id):
        yield msgspec.json.encode(render_entry(entry)) + b"\n"


async def plan_erasure(call: ApiCall) -> Response:
    """Return what the erasure of all words of a session includes."""
    session = await call.context.find_session(call.caller, call.path["id"])
    plan = await call.context.control.plan_session_erasure(session.id)
    branches = await call.context.store.list_branches(session.id)
    deliveries = await _count_delivered(call, session, plan.seqs)
    return build_json_response(
        {
            "session": session.id,
            "seqs": plan.seqs,
            "ends": plan.ops_to_end,
            "records": len(plan.blobs),
            "branches": [branch.id for branch in branches],
            "delivered": deliveries,
        }
    )


async def _count_delivered(call: ApiCall, session: Session, seqs: Iterable[int]) -> dict[str, int]:
    """Return how many of the entries each platform account or memory has received. They stay there."""
    gone, counts = set(seqs), dict[str, int]()
    for receipt in await call.context.store.list_receipts(session.id):
        if receipt.seq in gone:
            counts[receipt.consumer] = counts.get(receipt.consumer, 0) + 1
    return counts


# -- use of models -----------------------------------------------------------------------------------------------------


async def show_usage(call: ApiCall) -> Response:
    """Return tokens and cost of model calls by day, agent, model or person."""
    by, since, until = call.query.get("by", "day"), call.query.get("since", ""), call.query.get("until", "~")
    agents = tuple(call.caller.scope.agents)
    rows = await call.context.overview.summarize_usage(
        by,  # type: ignore[arg-type]  # one of USAGE_KEYS, as the route says
        since=since,
        until=until,
        agents=agents,
    )
    people = await call.context.store.get_people()
    shown: list[dict[str, Any]] = [msgspec.to_builtins(row) for row in rows]
    if by == "person":
        for row in shown:
            row["key"] = _name_author(people, row["key"])
    return build_json_response({"by": by, "rows": shown})
