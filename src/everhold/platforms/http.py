"""Chat over HTTP: how a request becomes a message at the door. Who may send one is decided by whoever serves it.

Whoever sits at this machine names chats as they like. Anybody else's chats are threads of a direct chat with them: two
people who choose the same name never meet in one conversation.
"""

from __future__ import annotations

from typing import Final

from msgspec import structs

from everhold.core.address import derive
from everhold.core.entries import Place
from everhold.ports.platform import Incoming

NAME: Final = "http"


def place(*, chat: str, sender: str, local: bool, id: str = "") -> Place:
    """Where a conversation called `chat` by `sender` happens; `local` is whoever sits at this machine."""
    if local:
        return Place(platform=NAME, chat=chat, message=id)
    return Place(platform=NAME, chat=sender, thread=chat, message=id)


def incoming(*, agent: str, text: str, sender: str, origin: Place) -> Incoming:
    """A message. With an id in its origin it is recognised when it comes again, to the same agent in the same chat."""
    # which conversation an id counts in: agent names hold no spaces
    event = f"message to {agent} in {origin.thread}"
    return Incoming(origin=origin, text=text, sender=sender, event=event, agent=agent)


def with_id(message: Incoming, id: str) -> Incoming:
    return structs.replace(message, origin=structs.replace(message.origin, message=id))


def address(place: Place, *, agent: str) -> str:
    """The conversation with `agent` at a place."""
    return str(
        derive(agent=agent, platform=NAME, account=place.account, kind="dm", chat=place.chat, thread=place.thread)
    )
