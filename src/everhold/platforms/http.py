"""Chat over HTTP: turns a request into an incoming message. The server decides who may send one.

A local user chooses the names of chats freely. The chats of any other person are threads of a direct chat with that
person, so two people who choose the same name get separate conversations.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from everhold.core.address import derive_address
from everhold.core.entries import ChatLocation
from everhold.ports.platform import IncomingMessage

NAME: Final = "http"


def locate_chat(*, chat: str, sender: str, local: bool, id: str = "") -> ChatLocation:
    """Return the location of the conversation that `sender` calls `chat`. `local` is a user on this machine."""
    if local:
        return ChatLocation(platform=NAME, chat=chat, message=id)
    return ChatLocation(platform=NAME, chat=sender, thread=chat, message=id)


def build_incoming_message(
    *, agent: str, text: str, sender: str, origin: ChatLocation, via: str = "", trace: str = ""
) -> IncomingMessage:
    """Return the message. If its origin has an id, a repeat to the same agent in the same chat is recognised."""
    # the conversation in which the id is unique; agent names contain no spaces
    event = f"message to {agent} in {origin.thread}"
    return IncomingMessage(origin=origin, text=text, sender=sender, event=event, agent=agent, via=via, trace=trace)


def with_message_id(message: IncomingMessage, id: str) -> IncomingMessage:
    return structs.replace(message, origin=structs.replace(message.origin, message=id))


def format_address(place: ChatLocation, *, agent: str) -> str:
    """Return the address of the conversation with `agent` at a location."""
    return str(
        derive_address(
            agent=agent, platform=NAME, account=place.account, kind="dm", chat=place.chat, thread=place.thread
        )
    )
