"""Chat over HTTP: how a request becomes a message at the door. Who may send one is decided by whoever serves it.

Whoever sits at this machine names chats as they like. Anybody else's chats are threads of a direct chat with them: two
people who choose the same name never meet in one conversation.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from everhold.core.address import derive_address
from everhold.core.entries import ChatLocation
from everhold.ports.platform import IncomingMessage

NAME: Final = "http"


def locate_chat(*, chat: str, sender: str, local: bool, id: str = "") -> ChatLocation:
    """Where a conversation called `chat` by `sender` happens; `local` is whoever sits at this machine."""
    if local:
        return ChatLocation(platform=NAME, chat=chat, message=id)
    return ChatLocation(platform=NAME, chat=sender, thread=chat, message=id)


def build_incoming_message(*, agent: str, text: str, sender: str, origin: ChatLocation) -> IncomingMessage:
    """A message. With an id in its origin it is recognised when it comes again, to the same agent in the same chat."""
    # which conversation an id counts in: agent names hold no spaces
    event = f"message to {agent} in {origin.thread}"
    return IncomingMessage(origin=origin, text=text, sender=sender, event=event, agent=agent)


def with_message_id(message: IncomingMessage, id: str) -> IncomingMessage:
    return structs.replace(message, origin=structs.replace(message.origin, message=id))


def format_address(place: ChatLocation, *, agent: str) -> str:
    """The conversation with `agent` at a place."""
    return str(
        derive_address(
            agent=agent, platform=NAME, account=place.account, kind="dm", chat=place.chat, thread=place.thread
        )
    )
