"""Maps the chats and senders of hermes-agent to addresses and identities as the platforms here have them.

An imported chat must have the address of its next live message, and its people the identities of their next messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from everhold.core.address import CHAT_KINDS, Address, derive_address
from everhold.core.entries import strip_surrogates
from everhold.core.people import LOCAL_IDENTITIES, build_identity
from everhold.hermes.reader.lineage import SessionChain

TERMINAL_PLATFORM: Final = "terminal"
IMPORTED_PLATFORM: Final = "imported"
"""The platform of a conversation that has no address of its own, and of people without an id."""
TERMINAL_SOURCES: Final = frozenset({"", "cli", "tui"})
_CHANNEL_PLATFORMS: Final = frozenset({"discord", "slack"})
"""Platforms whose groups are called channels here."""
_TELEGRAM_GENERAL_TOPIC: Final = "1"
"""hermes-agent's thread of the general topic. Messages there have no thread here."""


class HermesChat(NamedTuple):
    """Where a chain of sessions took place, and with whom."""

    address: Address
    user: str = ""
    """The id of a sender; empty if it is unknown."""
    alt: str = ""
    """Another id of the same account."""
    is_shared: bool = False
    """Several people speak in the session, and its rows do not say who said what."""
    is_terminal: bool = False
    is_general_topic: bool = False


def locate_chain(chain: SessionChain, *, agent: str, routing: Mapping[str, Any]) -> HermesChat:
    """Return the chat of a chain. `routing` is the entry that leads to it, or empty."""
    session = next((it for it in reversed(chain.sessions) if it.session_key or it.chat_id), None) or chain.root
    key = session.session_key or str(routing.get("session_key") or "")
    if not key:
        return _locate_unrouted(chain, agent)
    given = routing.get("origin")
    origin: Mapping[str, Any] = session.origin or (given if isinstance(given, dict) else {})
    parts = key.split(":")
    platform = session.source or _read_text(origin, "platform") or (parts[2] if len(parts) > 2 else IMPORTED_PLATFORM)
    kind = session.chat_type or _read_text(origin, "chat_type") or (parts[3] if len(parts) > 3 else "")
    chat = session.chat_id or _read_text(origin, "chat_id") or (parts[4] if len(parts) > 4 else chain.root.id)
    thread = session.thread_id or _read_text(origin, "thread_id")
    users = (it.user_id for it in (session, chain.root, chain.tip))
    user = next(filter(None, users), "") or _read_text(origin, "user_id")
    alt = _read_text(origin, "user_id_alt")
    if not user and platform == "telegram" and kind == "dm" and chat.isdigit():
        user = chat  # the id of a direct chat there is the id of the person
    general = platform == "telegram" and kind != "dm" and thread == _TELEGRAM_GENERAL_TOPIC
    if general:
        thread = ""
    if platform == "discord" and kind == "thread":  # there the thread is the chat; here it is a part of its channel
        chat, thread = _read_text(origin, "parent_chat_id") or chat, thread or chat
    is_own = kind == "dm" or (len(parts) > 5 and bool(user) and parts[-1] in (user, alt))
    sharing = "per-person" if is_own else "shared"
    address = derive_address(
        agent=agent,
        platform=_clean_id(platform),
        account="",
        kind=_convert_kind(platform, kind),
        chat=_clean_id(chat),
        thread=_clean_id(thread),
        sender=_clean_id(user),
        group=sharing,
        threads=sharing,
    )
    return HermesChat(address, _clean_id(user), _clean_id(alt), is_shared=not is_own, is_general_topic=general)


def build_chat_identity(chat: HermesChat, chain: SessionChain, *, agent: str, local: str) -> str:
    """Return whose words a chain is: the identity that the sender's next live message has. What several people said,
    and what somebody unknown said, is nobody's until it is linked.
    """
    if chat.is_terminal:
        return f"{LOCAL_IDENTITIES}:{local}"
    if chat.user and not chat.is_shared:
        return build_identity(chat.address.platform, chat.user)
    return f"{IMPORTED_PLATFORM}:{agent}/{_clean_id(chain.root.id)}"


def _locate_unrouted(chain: SessionChain, agent: str) -> HermesChat:
    """A session that no chat leads to: in a terminal, or of an older version that did not record the chat."""
    terminal = chain.root.source in TERMINAL_SOURCES
    platform = TERMINAL_PLATFORM if terminal else _clean_id(chain.root.source)
    address = derive_address(agent=agent, platform=platform, account="", kind="dm", chat=_clean_id(chain.root.id))
    user = "" if terminal else chain.root.user_id or chain.tip.user_id
    return HermesChat(address, _clean_id(user), is_terminal=terminal)


def _convert_kind(platform: str, kind: str) -> str:
    """Return the kind of a chat as the adapter of the platform has it."""
    if kind == "dm":
        return kind
    if platform in _CHANNEL_PLATFORMS:
        return "channel"
    if platform == "matrix":
        return "group"
    return kind if kind in CHAT_KINDS else "group"


def _read_text(origin: Mapping[str, Any], name: str) -> str:
    value = origin.get(name)
    return "" if value is None else str(value)


def _clean_id(text: str) -> str:
    """Return an id as it is stored: invalid code points are replaced as in a live message."""
    return strip_surrogates(text)[0]
