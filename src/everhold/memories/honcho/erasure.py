"""Erases a person at Honcho, and reads back.

Honcho deletes messages only with their session, and does so later: it answers 202, hides the session from lists, and
still finds its text until a worker has done the work. So a session counts as deleted only when searches, conclusions
and its queue show nothing of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from everhold.memories.honcho.client import PAGE_SIZE
from everhold.memories.honcho.renewal import is_same_session
from everhold.memories.remote import ErasureScope, read_time
from everhold.ports.memory import SEARCH_PROBE_TEXT, ErasureState, ErasureTarget, ProviderDeletion

if TYPE_CHECKING:
    from everhold.memories.honcho.provider import HonchoMemory

SESSION: Final = "session"
CONCLUSIONS: Final = "conclusions"
CONCLUSION_IDS: Final = "conclusion-ids"
CARD: Final = "card"
_REBUILD_HINT: Final = (
    "`everhold memory forget PERSON --yes --rebuild` stores the words of the others anew without them"
)


class SpokenSession(Struct, frozen=True):
    """A session at Honcho: the messages that go, and those that stay."""

    name: str
    own: list[Any]
    """The person's messages up to the erasure."""
    others: list[Any]
    """Messages of other people, of other agents, of the person since, and the agent's messages to them."""
    has_other_speakers: bool
    """Somebody else speaks there: another person, or the person to another agent."""
    has_returned: bool
    """The person has spoken there since."""


class HonchoErasure:
    """What one person has at Honcho under all their identities and peers."""

    def __init__(self, memory: HonchoMemory, target: ErasureTarget) -> None:
        self.memory = memory
        self.client = memory.client
        self.target = target
        self.scope = ErasureScope(target)
        made = [memory.peers.get_person_peer(identity) for identity in target.identities]
        self.shared = {
            peer
            for identity, peer in zip(target.identities, made, strict=True)
            if memory.peers.is_shared(identity, besides=target.identities)
        } | set(target.shared_peers)
        self.peers = tuple(dict.fromkeys((*target.peers, *target.shared_peers, *made)))

    async def ask(self) -> list[ProviderDeletion]:
        """Delete conclusions and cards, and ask for the deletion of sessions in which nobody else speaks."""
        spoken = await self.list_sessions()
        deletions = await self._delete_conclusions(spoken)
        for peer in self.peers:
            deletions += await self._clear_card(peer)
        for session in spoken:
            if session.own:
                deletions.append(await self._delete_session(session))
        deletions += await self._list_group_conclusions({it.name for it in spoken if it.own})
        return deletions

    def is_own(self, message: Any) -> bool:
        """Whether the person said a message. Under a shared peer only its metadata tells."""
        about = message.metadata
        if about.get("everhold_person") in self.target.identities and message.peer_id != self._agent_peer:
            return True
        return message.peer_id in self.peers and message.peer_id not in self.shared

    async def list_sessions(self) -> list[SpokenSession]:
        """Return the sessions of the workspace. Words to another agent are not among the own ones here, because that
        agent's conversations have to leave their sessions first. It is asked for them itself.
        """
        names = await self.memory.list_sessions()
        return [self._divide_session(name, await self.client.list_messages(name)) for name in names]

    def _divide_session(self, name: str, said: Sequence[Any]) -> SpokenSession:
        """Divide the messages of a session into those that go and those that stay."""
        personal = [it for it in said if self.is_own(it) and not self._is_of_another_agent(it)]
        own = [it for it in personal if self._is_taken(it)]
        keys = {it.metadata.get("everhold") for it in own} | set(self.target.keys)
        own_ids, personal_ids = {it.id for it in own}, {it.id for it in personal}
        others = [
            it
            for it in said
            if it.id not in own_ids and (self._is_of_another_agent(it) or it.metadata.get("everhold") not in keys)
        ]
        speaking = any(it.peer_id != self._agent_peer and it.id not in personal_ids for it in others)
        return SpokenSession(name, own, others, speaking, len(own) < len(personal))

    def _is_of_another_agent(self, message: Any) -> bool:
        return bool(message.metadata.get("everhold_agent", self.memory.agent) != self.memory.agent)

    def _is_taken(self, message: Any) -> bool:
        # everhold stores its own time as Honcho's
        return self.scope.takes_item(str(message.metadata.get("everhold", "")), at=read_time(message.created_at))

    async def list_conclusions(self, spoken: Sequence[SpokenSession]) -> tuple[list[Any], int]:
        """Return the conclusions about the person, and how many under a shared peer cannot be assigned. There only the
        session shows whom a conclusion is about, and only if one person spoke there.
        """
        drawn: list[Any] = []
        going = {it.name for it in spoken if it.own and not it.has_other_speakers and not it.has_returned}
        for peer in self.peers:
            for one in await self.client.list_conclusions({"observed_id": peer}):
                # a conclusion has no key, and may be drawn from old words later
                if one.session_id in going or self.scope.takes_item("", stored_at=read_time(one.created_at)):
                    drawn.append(one)
        alone_in = {it.name for it in spoken if it.own and not it.has_other_speakers}
        without = {it.name for it in spoken if it.has_other_speakers and not it.own}
        clear = [it for it in drawn if it.observed_id not in self.shared or it.session_id in alone_in]
        unclear = [it for it in drawn if it not in clear and it.session_id not in without]
        return clear, len(unclear)

    @property
    def _agent_peer(self) -> str:
        return self.memory.peers.agent_peer

    async def _delete_conclusions(self, spoken: Sequence[SpokenSession]) -> list[ProviderDeletion]:
        drawn, unclear = await self.list_conclusions(spoken)
        for one in drawn:
            await self.client.delete_conclusion(one.id, observer=one.observer_id, about=one.observed_id)
        found = []
        for peer in self.peers:
            mine = [it for it in drawn if it.observed_id == peer]
            if mine:
                found.append(self._record_conclusions(peer, mine))
        if unclear:
            what = f"{unclear} conclusions about {', '.join(sorted(self.shared))}"
            reason = "the peer also stands for other people, so it is unknown whose they are; delete them by hand"
            found.append(_build_remainder("unclear-conclusions", what, unclear, reason))
        return found

    def _record_conclusions(self, peer: str, mine: Sequence[Any]) -> ProviderDeletion:
        """Return the deletion of conclusions. Under a shared peer others remain, so it names each."""
        upto = max(read_time(it.created_at) for it in mine)
        what = f"{len(mine)} conclusions about peer {peer}"
        ids = ",".join(it.id for it in mine)
        id = f"{CONCLUSION_IDS}:{peer}:{ids}" if peer in self.shared else f"{CONCLUSIONS}:{peer}"
        return ProviderDeletion(id=id, what=what, count=len(mine), upto=upto)

    async def _clear_card(self, peer: str) -> list[ProviderDeletion]:
        card = await self._read_card(peer)
        if not card:
            return []
        if peer in self.shared:
            reason = "the peer also stands for other people; edit the card by hand"
            return [_build_remainder(f"{CARD}:{peer}", f"the card of {peer}", 1, reason)]
        await self.client.call(
            "clearing the card",
            lambda sdk: self.client.get_peer(sdk, self._agent_peer).aio.set_card([], target=peer),
        )
        return [ProviderDeletion(id=f"{CARD}:{peer}:{_hash_card(card)}", what=f"the card of {peer}", count=1)]

    async def _read_card(self, peer: str) -> list[str]:
        card = await self.client.call(
            "reading the card", lambda sdk: self.client.get_peer(sdk, self._agent_peer).aio.get_card(peer)
        )
        return list(card or ())

    async def _delete_session(self, session: SpokenSession) -> ProviderDeletion:
        """Ask for the deletion of a session, after its conversations write to another one."""
        name, moved = session.name, self.target.moved_sessions
        id, count = f"{SESSION}:{name}", len(session.own)
        what = f"{count} messages in a session"
        if session.has_other_speakers and not self.target.rebuild:
            whose = f"other people speak in session {name}, or the person speaks there to another agent"
            reason = f"{whose}, and Honcho cannot delete single messages; {_REBUILD_HINT}"
            return _build_remainder(id, what, count, reason)
        if name not in moved:
            return ProviderDeletion(id=id, what=what, count=count, state=ErasureState.PLANNED, session=name)
        if session.has_other_speakers or session.has_returned:
            await self._rebuild_session(session, moved[name])
        await self.client.delete_session(name)
        return ProviderDeletion(id=id, what=what, count=count, session=name)

    async def _rebuild_session(self, session: SpokenSession, name: str) -> None:
        """Store the words of the others under a new name. Safe to repeat: messages that are there are skipped."""
        there = {_get_identity(it) for it in await self.client.list_messages(name)}
        missing = [it for it in session.others if _get_identity(it) not in there]
        peers = [self._agent_peer, *(it.peer_id for it in missing)]
        for at in range(0, len(missing), PAGE_SIZE):
            some = missing[at : at + PAGE_SIZE]
            await self.memory.ensure_session(name, peers)
            await self.client.add_messages(name, [_copy_message(it) for it in some])
        for one in await self.client.list_conclusions({"session_id": session.name}):
            if one.observed_id not in self.peers or one.observed_id in self.shared:
                await self._copy_conclusion(one, name)

    async def _copy_conclusion(self, one: Any, name: str) -> None:
        same = {"observer_id": one.observer_id, "observed_id": one.observed_id, "session_id": name}
        if any(it.content == one.content for it in await self.client.list_conclusions(same)):
            return
        await self.memory.ensure_session(name, [one.observer_id, one.observed_id])
        await self.client.add_conclusions([one.content], observer=one.observer_id, about=one.observed_id, name=name)

    async def _list_group_conclusions(self, sessions: Collection[str]) -> list[ProviderDeletion]:
        """Conclusions from notes in groups where the person spoke, which nobody can assign."""
        every = await self.client.list_conclusions({"observer_id": self._agent_peer})
        count = sum(self.memory.peers.is_group_peer(it.observed_id) and it.session_id in sessions for it in every)
        if not count:
            return []
        reason = "it is unknown whose notes they were; `honcho_conclude` lists and deletes them in the group"
        return [_build_remainder("group-conclusions", f"{count} conclusions from notes in groups", count, reason)]


async def confirm_deletions(memory: HonchoMemory, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
    """Read back by list, by search and in the queue. A deletion is confirmed if none of them shows anything."""
    sessions = await memory.list_sessions()
    states = {}
    for it in deletions:
        kind, _, rest = it.id.partition(":")
        match kind:
            case "session":
                left = rest in sessions or await _is_session_left(memory, rest)
            case "renewed":
                made = sessions.get(rest)
                left = is_same_session(it, made) if made is not None else await _is_session_left(memory, rest)
            case "conclusions":
                left = any(read_time(one.created_at) <= it.upto for one in await _list_conclusions_about(memory, rest))
            case "conclusion-ids":
                peer, _, ids = rest.partition(":")
                left = any(one.id in ids.split(",") for one in await _list_conclusions_about(memory, peer))
            case "card":
                peer, _, digest = rest.rpartition(":")
                left = await _is_card_left(memory, peer, digest)
            case _:
                left = True
        states[it.id] = ErasureState.ASKED if left else ErasureState.CONFIRMED
    return states


async def _is_session_left(memory: HonchoMemory, name: str) -> bool:
    client = memory.client
    if await client.list_messages(name) or await client.list_conclusions({"session_id": name}):
        return True
    filters = {"session_id": name}
    if await client.call(
        "searching for what was deleted",
        lambda sdk: sdk.aio.search(SEARCH_PROBE_TEXT, filters=filters, limit=PAGE_SIZE),
        missing=[],
    ):
        return True
    queue = await client.call("reading the queue", lambda sdk: sdk.aio.queue_status(session=name))
    return bool(queue and (queue.pending_work_units or queue.in_progress_work_units))


async def _list_conclusions_about(memory: HonchoMemory, peer: str) -> list[Any]:
    """Return what a list and a search show about a peer."""
    listed = await memory.client.list_conclusions({"observed_id": peer})
    return [*listed, *await memory.search_conclusions(SEARCH_PROBE_TEXT, peer, PAGE_SIZE)]


async def _is_card_left(memory: HonchoMemory, peer: str, digest: str) -> bool:
    card = await memory.client.call(
        "reading the card", lambda sdk: memory.client.get_peer(sdk, memory.peers.agent_peer).aio.get_card(peer)
    )
    return bool(card) and _hash_card(card) == digest


def _build_remainder(id: str, what: str, count: int, reason: str) -> ProviderDeletion:
    return ProviderDeletion(id=id, what=what, count=count, state=ErasureState.CANNOT, reason=reason)


def _hash_card(card: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(card).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _get_identity(message: Any) -> tuple[str, str, str]:
    about = message.metadata
    return str(about.get("everhold", "")), str(about.get("everhold_part", "")), str(message.content)


def _copy_message(message: Any) -> dict[str, Any]:
    return {
        "content": message.content,
        "peer_id": message.peer_id,
        "created_at": message.created_at,
        "metadata": {**message.metadata, "everhold": message.metadata.get("everhold", "")},
    }
