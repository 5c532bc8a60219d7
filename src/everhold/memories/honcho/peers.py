"""Maps persons, agents and groups to Honcho's peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from everhold.core.entries import Stamp
from everhold.memories.scope import make_safe_id
from everhold.memories.settings import fill_agent_name

if TYPE_CHECKING:
    from everhold.memories.honcho.settings import HonchoSettings


class HonchoPeers:
    """Names peers: pinned, aliased, prefixed, or by the person's name. A peer id never stands for both a person and an
    agent or group.
    """

    def __init__(self, settings: HonchoSettings, agent: str) -> None:
        self._settings = settings
        self.agent_peer = make_safe_id(fill_agent_name(settings.ai_peer, agent))

    def get_person_peer(self, name: str) -> str:
        """Return a person's peer."""
        settings = self._settings
        if settings.pin_peer_name and settings.peer_name:
            return make_safe_id(settings.peer_name)
        if alias := settings.user_peer_aliases.get(name):
            return make_safe_id(alias)
        if not name:
            return make_safe_id(settings.peer_name or "user")
        peer = make_safe_id(f"{settings.runtime_peer_prefix}{name}")
        # A person whose name equals the agent's name or another person's alias gets a different peer.
        taken = {self.agent_peer, *(make_safe_id(it) for it in settings.user_peer_aliases.values())}
        return make_safe_id(f"{peer}\0person") if peer in taken else peer

    def is_shared(self, name: str) -> bool:
        """Whether a person's peer also stands for others: it is pinned, an alias of several people, or the peer of
        unknown people.
        """
        settings = self._settings
        others = {"", *settings.user_peer_aliases} - {name}
        pinned = settings.pin_peer_name and bool(settings.peer_name)
        return pinned or any(self.get_person_peer(other) == self.get_person_peer(name) for other in others)

    def is_group_peer(self, peer: str) -> bool:
        """Whether a peer stands for a group and not for a person."""
        return peer.startswith("room-")

    def get_speaker_peer(self, author: str, stamp: Stamp) -> str:
        """Return the peer that an utterance belongs to."""
        kind, _, name = author.partition(":")
        return self.agent_peer if kind == "agent" else self.get_person_peer(stamp.person or name)

    def list_subject_peers(self, audience: Sequence[str]) -> list[str]:
        """Return the peers that a conclusion is about: the person, the group, or both.

        Conclusions have no audience at Honcho, so each audience has its own peer. What is concluded in a group belongs
        to the group's peer and never becomes part of what is known about a person in private, or vice versa.
        """
        return [self._get_listener_peer(one) for one in sorted(audience)]

    def list_audience_peers(self, audience: Sequence[str]) -> tuple[str, ...]:
        """Return an audience as it is marked on messages. Two names of one peer count as the same person."""
        return tuple(self.list_subject_peers(audience))

    def _get_listener_peer(self, one: str) -> str:
        kind, _, name = one.partition(":")
        return self.get_person_peer(name) if kind == "person" else make_safe_id(f"room|{one}")
