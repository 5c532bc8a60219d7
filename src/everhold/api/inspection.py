"""Handlers that show how a session came to be as it is: its operations, contexts, and deliveries."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from everhold.admin.timeline import TimelineRow
from everhold.api.errors import ApiError, build_json_response
from everhold.api.request import ApiCall

MAX_OPERATIONS: Final = 200
DEFAULT_OPERATIONS: Final = 50
OWN_SETUP_KINDS: Final = frozenset({"system", "tools"})
"""Parts of a context that show how the agent is set up, which is no part of a person's conversation."""


async def list_timeline(call: ApiCall) -> Response:
    """Return the newest operations of a session, newest first."""
    before = call.get_number("before", least=1)
    limit = call.get_number("limit", least=1, most=MAX_OPERATIONS) or DEFAULT_OPERATIONS
    session = await call.context.find_session(call.caller, call.path["id"])
    rows = await call.context.control.list_timeline(session.id, before=before, limit=limit)
    shown = msgspec.to_builtins(rows)
    return build_json_response(
        {"session": session.id, "operations": shown, "next": await _find_next_page(call, session.id, rows)}
    )


async def _find_next_page(call: ApiCall, session: str, rows: list[TimelineRow]) -> int | None:
    """Return the `before` of the next page; None if this is the last. A page may be short without being the last."""
    if not rows:
        return None
    older = await call.context.store.list_operations(session, before=rows[-1].op, newest_first=True, limit=1)
    return rows[-1].op if older else None


async def compare_contexts(call: ApiCall) -> Response:
    """Return what became of each part of the context between two model calls."""
    before, after = _require_seq(call, "a"), _require_seq(call, "b")
    session = await call.context.find_session(call.caller, call.path["id"])
    found = await call.context.control.compare_contexts(session.id, before=before, after=after)
    shown: list[dict[str, Any]] = [
        msgspec.to_builtins(it) for it in found if call.caller.operator or it.part.kind not in OWN_SETUP_KINDS
    ]
    return build_json_response(
        {
            "session": session.id,
            "parts": shown,
            "tokens_before": sum(it["tokens_before"] for it in shown),
            "tokens_after": sum(it["tokens_after"] for it in shown),
        }
    )


def _require_seq(call: ApiCall, name: str) -> int:
    found = call.get_number(name, least=1)
    if found is None:
        raise ApiError(
            400, "invalid_request", f"`{name}` is missing", remedy="give the seqs of two model calls as `a` and `b`"
        )
    return found


async def list_deliveries(call: ApiCall) -> Response:
    """Return where an entry is on its way to each platform account and memory."""
    seq = call.path["seq"]
    if len(seq) > 16 or not seq.isascii() or not seq.isdigit():
        raise ApiError(400, "invalid_request", f"{seq[:40]!r} is not the number of an entry", remedy="use its `seq`")
    session = await call.context.find_session(call.caller, call.path["id"])
    found = await call.context.control.list_deliveries(session.id, int(seq))
    return build_json_response({"session": session.id, "seq": int(seq), "deliveries": msgspec.to_builtins(found)})
