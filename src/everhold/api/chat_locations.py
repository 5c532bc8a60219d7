"""Finds the chat location to which a terminal must send so that its message reaches a named chat or session."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from everhold.admin.sessions import render_session
from everhold.api.errors import build_json_response
from everhold.api.request import ApiCall
from everhold.core.address import Address, derive_address, parse_address
from everhold.errors import InvalidRequest, NotFound
from everhold.ports.store import Session

MIN_PREFIX_CHARS: Final = 8
"""A prefix of a session id must have this length. A shorter word names a new chat."""
TERMINAL: Final = "terminal"
_READABLE: Final = (TERMINAL, "http")
"""Platforms without delivery: their replies are read from the log, so a terminal can show them."""


async def find_chat_location(call: ApiCall) -> Response:
    """Return the location for the chat or session called `name`, or a new chat if there is none."""
    name, agent = call.query.get("name", ""), call.query.get("agent", "")
    if not name.strip():
        raise InvalidRequest("the chat's name is empty", remedy="name it: --session NAME, or `name` in the query")
    chat = derive_address(agent=call.resolve_agent(agent), platform=TERMINAL, account="", kind="dm", chat=name)
    store, control = call.context.store, call.context.control
    bound = await store.resolve_address(str(chat))
    if bound is not None:
        return build_json_response(_show_location(chat, await store.get_session(bound)))
    session = await _find_session(call, name)
    if session is None:
        return build_json_response(_show_location(chat, None))
    if agent and session.agent != agent:
        raise InvalidRequest(
            f"session {session.id} is {session.agent}'s, not {agent}'s", remedy=f"--agent {session.agent}"
        )
    for text in sorted(await control.list_addresses(session), key=_rank_address):
        address = parse_address(text)
        if address.platform in _READABLE and address.kind == "dm":
            return build_json_response(_show_location(address, session))
    raise InvalidRequest(
        f"a terminal cannot reach session {session.id}: no address of a terminal leads to it",
        remedy=f"in a chat of yours, `/resume {session.id}` continues it",
    )


async def _find_session(call: ApiCall, name: str) -> Session | None:
    found = await call.context.store.find_sessions(name)
    if name == "last" and not found:
        raise NotFound("there is no session yet", remedy="everhold chat")
    found = [id for id in found if len(name) >= MIN_PREFIX_CHARS or not id.startswith(name)]
    return await call.context.control.find_session(name) if found else None


def _rank_address(address: str) -> int:
    return 0 if f":{TERMINAL}:" in address else 1


def _show_location(address: Address, session: Session | None) -> dict[str, Any]:
    return {
        "agent": address.agent,
        "origin": {
            "platform": address.platform,
            "account": address.account,
            "chat": address.chat,
            "thread": address.thread,
        },
        "kind": address.kind,
        "session": render_session(session) if session else None,
    }
