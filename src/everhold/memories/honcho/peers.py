"""Persons, agents and rooms -> Honcho's peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from everhold.core.entries import Stamp
from everhold.memories.scope import make_safe_id
from everhold.memories.settings import fill_agent_name

if TYPE_CHECKING:
    from everhold.memories.honcho.settings import HonchoSettings


class HonchoPeers:
    """Who is who: pinned, aliased, prefixed, or as they are called. An id never means two of them."""

    def __init__(self, settings: HonchoSettings, agent: str) -> None:
        self._settings = settings
        self.agent_peer = make_safe_id(fill_agent_name(settings.ai_peer, agent))

    def get_person_peer(self, name: str) -> str:
        """A person's peer."""
        settings = self._settings
        if settings.pin_peer_name and settings.peer_name:
            return make_safe_id(settings.peer_name)
        if alias := settings.user_peer_aliases.get(name):
            return make_safe_id(alias)
        if not name:
            return make_safe_id(settings.peer_name or "user")
        peer = make_safe_id(f"{settings.runtime_peer_prefix}{name}")
        # somebody who merely happens to be called like the agent, or like somebody's alias, is neither
        taken = {self.agent_peer, *(make_safe_id(it) for it in settings.user_peer_aliases.values())}
        return make_safe_id(f"{peer}\0person") if peer in taken else peer

    def is_shared(self, name: str) -> bool:
        """Whether a person's peer stands for others, too: pinned, the alias of several, or whoever nobody knows."""
        settings = self._settings
        others = {"", *settings.user_peer_aliases} - {name}
        pinned = settings.pin_peer_name and bool(settings.peer_name)
        return pinned or any(self.get_person_peer(other) == self.get_person_peer(name) for other in others)

    def is_group_peer(self, peer: str) -> bool:
        """Whether a peer stands for a company, not for a person."""
        return peer.startswith("room-")

    def get_speaker_peer(self, author: str, stamp: Stamp) -> str:
        """Whose words an utterance is."""
        kind, _, name = author.partition(":")
        return self.agent_peer if kind == "agent" else self.get_person_peer(stamp.person or name)

    def list_subject_peers(self, audience: Sequence[str]) -> list[str]:
        """Whom a conclusion is about: the person it was drawn with, the room it was drawn in, or both.

        Conclusions carry no audience. So each who heard one has it under a peer of their own: what is concluded in
        company is the room's, and never becomes part of what is known of a person in private, or the other way round.
        """
        return [self._get_listener_peer(one) for one in sorted(audience)]

    def list_audience_peers(self, audience: Sequence[str]) -> tuple[str, ...]:
        """An audience as it is marked on messages: two names of one peer are the same person."""
        return tuple(self.list_subject_peers(audience))

    def _get_listener_peer(self, one: str) -> str:
        kind, _, name = one.partition(":")
        return self.get_person_peer(name) if kind == "person" else make_safe_id(f"room|{one}")
