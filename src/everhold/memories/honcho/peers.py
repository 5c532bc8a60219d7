"""Persons, agents and rooms -> Honcho's peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from everhold.core.entries import Stamp
from everhold.memories.scope import handle
from everhold.memories.settings import filled

if TYPE_CHECKING:
    from everhold.memories.honcho.settings import HonchoSettings


class Peers:
    """Who is who: pinned, aliased, prefixed, or as they are called. An id never means two of them."""

    def __init__(self, settings: HonchoSettings, agent: str) -> None:
        self._settings = settings
        self.ai = handle(filled(settings.ai_peer, agent))

    def person(self, name: str) -> str:
        """A person's peer."""
        settings = self._settings
        if settings.pin_peer_name and settings.peer_name:
            return handle(settings.peer_name)
        if alias := settings.user_peer_aliases.get(name):
            return handle(alias)
        if not name:
            return handle(settings.peer_name or "user")
        peer = handle(f"{settings.runtime_peer_prefix}{name}")
        # somebody who merely happens to be called like the agent, or like somebody's alias, is neither
        taken = {self.ai, *(handle(it) for it in settings.user_peer_aliases.values())}
        return handle(f"{peer}\0person") if peer in taken else peer

    def shared(self, name: str) -> bool:
        """Whether a person's peer stands for others, too: pinned, the alias of several, or whoever nobody knows."""
        settings = self._settings
        others = {"", *settings.user_peer_aliases} - {name}
        pinned = settings.pin_peer_name and bool(settings.peer_name)
        return pinned or any(self.person(other) == self.person(name) for other in others)

    def is_room(self, peer: str) -> bool:
        """Whether a peer stands for a company, not for a person."""
        return peer.startswith("room-")

    def speaker(self, author: str, stamp: Stamp) -> str:
        """Whose words an utterance is."""
        kind, _, name = author.partition(":")
        return self.ai if kind == "agent" else self.person(stamp.person or name)

    def about(self, audience: Sequence[str]) -> list[str]:
        """Whom a conclusion is about: the person it was drawn with, the room it was drawn in, or both.

        Conclusions carry no audience. So each who heard one has it under a peer of their own: what is concluded in
        company is the room's, and never becomes part of what is known of a person in private, or the other way round.
        """
        return [self._listener(one) for one in sorted(audience)]

    def heard_by(self, audience: Sequence[str]) -> tuple[str, ...]:
        """An audience as it is marked on messages: two names of one peer are the same person."""
        return tuple(self.about(audience))

    def _listener(self, one: str) -> str:
        kind, _, name = one.partition(":")
        return self.person(name) if kind == "person" else handle(f"room|{one}")
