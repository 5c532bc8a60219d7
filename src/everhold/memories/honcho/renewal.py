"""Stores a session at Honcho anew without some of its messages, and deletes the old one.

Honcho cannot delete single messages, and its conclusions name no messages. So what was concluded before the first of
these messages was said is copied, and the messages since then are reasoned about again, without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from everhold.core.exchange import get_original_key
from everhold.memories.honcho.client import PAGE_SIZE
from everhold.memories.remote import CLOCK_DIFFERENCE_SECONDS, read_time
from everhold.ports.memory import ErasureState, ProviderDeletion, SessionRenewal

if TYPE_CHECKING:
    from everhold.memories.honcho.provider import HonchoMemory

RENEWED: Final = "renewed"
REASON_AGAIN_SECONDS: Final = 24 * 3_600.0
"""How long before the first removed message Honcho may have left a message without a conclusion. Older messages are
copied without reasoning, because that costs a model call for each of them."""
SOURCE_FIELD: Final = "everhold_source"
"""The metadata field of a copy that names the copied message, so that a repeat copies nothing twice."""


class HonchoRenewal:
    """One renewal of one session."""

    def __init__(self, memory: HonchoMemory, renewal: SessionRenewal) -> None:
        self.memory = memory
        self.client = memory.client
        self.renewal = renewal
        self.cutoff = renewal.since - CLOCK_DIFFERENCE_SECONDS
        """What Honcho concluded up to then, by its own clock, does not come from a removed message."""

    async def ask(self) -> list[ProviderDeletion]:
        """Copy what stays. Once no conversation writes to the session, delete it."""
        name = self.renewal.name
        made = (await self.memory.list_sessions()).get(name)
        said = await self.client.list_messages(name) if made is not None else []
        count = sum(map(self._is_removed, said))
        if made is None or not count:
            return []
        await self._copy_messages(said)
        deletion = ProviderDeletion(
            id=f"{RENEWED}:{name}",
            what=f"a session with {count} messages that were taken back",
            count=count,
            upto=read_time(made),
            session=name,
            state=ErasureState.ASKED if self.renewal.is_left else ErasureState.PLANNED,
        )
        if self.renewal.is_left:
            await self._copy_conclusions()
            # somebody else may have written meanwhile
            await self._copy_messages(await self.client.list_messages(name))
            await self.client.delete_session(name)
        return [deletion]

    def _is_removed(self, message: Any) -> bool:
        about = message.metadata
        key = get_original_key(str(about.get("everhold", "")))
        return bool(about.get("everhold_retracted")) or key in self.renewal.keys

    async def _copy_messages(self, said: Sequence[Any]) -> None:
        new_name = self.renewal.new_name
        there = {it.metadata.get(SOURCE_FIELD) for it in await self.client.list_messages(new_name)}
        missing = [it for it in said if it.id not in there and not self._is_removed(it)]
        for at in range(0, len(missing), PAGE_SIZE):
            some = missing[at : at + PAGE_SIZE]
            await self.memory.ensure_session(new_name, [it.peer_id for it in some])
            await self.client.add_messages(new_name, [self._copy_message(it) for it in some])

    def _copy_message(self, message: Any) -> dict[str, Any]:
        return {
            "content": message.content,
            "peer_id": message.peer_id,
            "created_at": message.created_at,
            "metadata": {"everhold": "", **message.metadata, SOURCE_FIELD: message.id},
            "configuration": None if self._is_reasoned_again(message) else {"reasoning": {"enabled": False}},
        }

    def _is_reasoned_again(self, message: Any) -> bool:
        at = read_time(message.created_at)
        return at >= max(self.cutoff - REASON_AGAIN_SECONDS, self.renewal.starts.get(message.peer_id, 0.0))

    async def _copy_conclusions(self) -> None:
        """Copy the conclusions that do not come from a removed message, and delete those of other sessions that do."""
        every = await self.client.list_conclusions({"observer_id": self.memory.peers.agent_peer})
        drawn = await self.client.list_conclusions({"session_id": self.renewal.name})
        kept = [it for it in drawn if self._is_kept(it)]
        await self._add_conclusions(kept)
        kept_ids = {it.id for it in kept}
        for one in list_followers(every, [it.id for it in drawn if it.id not in kept_ids]):
            if one.session_id != self.renewal.name:
                await self.client.delete_conclusion(one.id, observer=one.observer_id, about=one.observed_id)

    def _is_kept(self, conclusion: Any) -> bool:
        made = read_time(conclusion.created_at)
        if made < self.renewal.starts.get(conclusion.observed_id, 0.0):
            return False  # a copy looks new, and would be shown to whoever has this peer now
        return conclusion.content in self.renewal.notes or made < self.cutoff

    async def _add_conclusions(self, kept: Sequence[Any]) -> None:
        new_name = self.renewal.new_name
        about: dict[tuple[str, str], dict[str, None]] = {}
        for one in reversed(kept):  # the oldest first
            about.setdefault((one.observer_id, one.observed_id), {})[one.content] = None
        for (observer, observed), contents in about.items():
            same = {"observer_id": observer, "observed_id": observed, "session_id": new_name}
            there = {it.content for it in await self.client.list_conclusions(same)}
            missing = [it for it in contents if it not in there]
            for at in range(0, len(missing), PAGE_SIZE):
                await self.memory.ensure_session(new_name, [observer, observed])
                some = missing[at : at + PAGE_SIZE]
                await self.client.add_conclusions(some, observer=observer, about=observed, name=new_name)


def list_followers(every: Sequence[Any], ids: Sequence[str]) -> list[Any]:
    """Return the conclusions that Honcho drew from others, directly or not."""
    gone, found = set(ids), dict[str, Any]()
    while more := [
        it for it in every if it.id not in found and not gone.isdisjoint(getattr(it, "source_ids", ()) or ())
    ]:
        found |= {it.id: it for it in more}
        gone |= {it.id for it in more}
    return list(found.values())


def is_same_session(deletion: ProviderDeletion, made: datetime) -> bool:
    """Whether a session is the one that was to be deleted, and not a later one with its name."""
    return read_time(made) <= deletion.upto
