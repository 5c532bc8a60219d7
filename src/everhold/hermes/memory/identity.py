"""Builds the keywords about person and place that plug-ins expect at `initialize`."""

from __future__ import annotations

from everhold.core.address import parse_address
from everhold.core.entries import Stamp
from everhold.errors import InvalidRequest


def is_private(audience: tuple[str, ...], person: str) -> bool:
    return audience in ((), (f"person:{person}",))


def build_identity(stamp: Stamp, *, agent: str) -> dict[str, str]:
    """Return the keywords that are known; unknown ones are left out, as hermes-agent does.

    A plug-in knows one user per conversation. In a group chat that user is the group, because what is said there
    belongs to no single person.
    """
    user = stamp.person if is_private(stamp.audience, stamp.person) else "+".join(sorted(stamp.audience))
    found = {
        "agent_identity": agent,
        "agent_workspace": "hermes",
        "user_id": user,
        "user_name": user,
        "session_title": stamp.title,
    }
    try:
        address = parse_address(stamp.address) if stamp.address else None
    except InvalidRequest:
        address = None
    if address is not None and address.platform not in ("terminal", "http"):
        found |= {
            "platform": address.platform,
            "chat_id": address.chat,
            "chat_type": address.kind,
            "thread_id": address.thread,
            "gateway_session_key": stamp.address,
        }
    return {name: value for name, value in found.items() if value}
