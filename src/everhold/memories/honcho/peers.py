"""Maps persons, agents and groups to Honcho's peers."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from everhold.core.peers import MAX_PEERS, PeerRule, make_safe_id
from everhold.core.people import PresentAudience
from everhold.memories.settings import fill_agent_name
from everhold.ports.memory import MemoryUtterance

if TYPE_CHECKING:
    from everhold.memories.honcho.settings import HonchoSettings

_PEER_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


class HonchoPeers:
    """Names peers: pinned, aliased, prefixed, or by the person's name. A peer id never stands for both a person and an
    agent or group.
    """

    def __init__(self, settings: HonchoSettings, agent: str) -> None:
        self._settings = settings
        self.agent_peer = make_safe_id(fill_agent_name(settings.ai_peer, agent))
        self.rule = PeerRule(
            pinned=_make_explicit_id(settings.peer_name) if settings.pin_peer_name and settings.peer_name else "",
            aliases={name: _make_explicit_id(peer) for name, peer in settings.user_peer_aliases.items() if peer},
            prefix=settings.runtime_peer_prefix,
            unknown=settings.peer_name or "user",
            reserved=(self.agent_peer,),
        )

    def get_person_peer(self, name: str) -> str:
        """Return the peer of a person for whom none was recorded."""
        settings = self._settings
        if settings.pin_peer_name and settings.peer_name:
            return _make_explicit_id(settings.peer_name)
        if alias := settings.user_peer_aliases.get(name):
            return _make_explicit_id(alias)
        if not name:
            return make_safe_id(settings.peer_name or "user")
        peer = make_safe_id(f"{settings.runtime_peer_prefix}{name}")
        # A person whose name equals the agent's name or another person's alias gets a different peer.
        taken = {self.agent_peer, *(_make_explicit_id(it) for it in settings.user_peer_aliases.values())}
        return make_safe_id(f"{peer}\0person") if peer in taken else peer

    def is_shared(self, name: str, *, besides: Collection[str] = ()) -> bool:
        """Whether a person's peer also stands for others: it is pinned, an alias of several people, or the peer of
        unknown people. `besides` are other names of the same person.
        """
        settings = self._settings
        others = {"", *settings.user_peer_aliases} - {name, *besides}
        pinned = settings.pin_peer_name and bool(settings.peer_name)
        return pinned or any(self.get_person_peer(other) == self.get_person_peer(name) for other in others)

    def is_group_peer(self, peer: str) -> bool:
        """Whether a peer stands for a group and not for a person."""
        return peer.startswith("room-")

    def get_speaker_peer(self, utterance: MemoryUtterance) -> str:
        """Return the peer that an utterance belongs to."""
        kind, _, name = utterance.author.partition(":")
        if kind == "agent":
            return self.agent_peer
        return utterance.peer or self.get_person_peer(utterance.stamp.person or name)

    def list_audience_peers(
        self, audience: Sequence[str], peers: Mapping[str, str] = MappingProxyType({})
    ) -> list[str]:
        """Return the peers of an audience: the person, the group, or both.

        A conclusion is about them. Conclusions have no audience at Honcho, so each audience has its own peer. What is
        concluded in a group belongs to the group's peer and never becomes part of what is known about a person in
        private, or vice versa.
        """
        found = []
        for one in sorted(audience):
            kind, _, name = one.partition(":")
            own = (peers.get(name) or self.get_person_peer(name)) if kind == "person" else make_safe_id(f"room|{one}")
            found.append(own)
        return list(dict.fromkeys(found))

    def list_present_peers(
        self, present: PresentAudience, peers: Mapping[str, Sequence[str]]
    ) -> list[list[tuple[str, float]]]:
        """Return, for each of the people present, all peers that stand for them, each with the time from which on."""
        return [
            list(
                dict.fromkeys((peer, one.since) for one in group for peer in self._list_member_peers(one.member, peers))
            )[:MAX_PEERS]
            for group in present.groups
        ]

    def _list_member_peers(self, member: str, peers: Mapping[str, Sequence[str]]) -> Sequence[str]:
        kind, _, name = member.partition(":")
        if kind != "person":
            return (make_safe_id(f"room|{member}"),)
        return peers.get(name) or (self.get_person_peer(name),)


def _make_explicit_id(name: str) -> str:
    """Return a configured name as it is if Honcho accepts it. Other programs have peers such as `-ada-example-org`."""
    return name if _PEER_ID.fullmatch(name) else make_safe_id(name)
