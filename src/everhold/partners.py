"""Whose a direct chat is, where a platform lets somebody else take the place of the other one in it.

A direct chat is its person's for good: whoever is heard first in one keeps it, however often they leave and come back.
Whoever is alone with the agent there later has a conversation of their own in the same chat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from everhold.core.entries import Heard, Kind
from everhold.ports.clock import Clock
from everhold.ports.store import Change, Position, Step, Store

WHOSE: Final = "whose/"
LOOK: Final = 200
"""How many of a session's first messages are looked through for one that was said in the chat in question."""


class Partners:
    """Who was first in direct chats that can change hands. Read from the store once, and kept up to date."""

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._first: dict[tuple[str, str, str], str] | None = None

    async def known(self, platform: str, account: str, chat: str) -> str:
        """Who was first in a chat, if that was ever asked."""
        if self._first is None:
            found = await self._store.positions(prefix=WHOSE)
            self._first = {(it.platform, it.account, it.name.removeprefix(WHOSE)): it.value for it in found}
        return self._first.get((platform, account, chat), "")

    async def first(self, platform: str, account: str, chat: str, *, addresses: Sequence[str], sender: str) -> str:
        """Who was first in a chat: by what was kept, by the log, or else `sender`, who keeps it from now on."""
        found = await self.known(platform, account, chat)
        if found:
            return found
        spoke = [await self._spoke(address, platform) for address in addresses]
        found = next(filter(None, spoke), sender)
        position = Position(platform=platform, account=account, name=WHOSE + chat, value=found)
        await self._store.commit(Change(step=Step.POSITION, session="", at=self._clock.now(), position=position))
        assert self._first is not None, "`known` has read them"
        self._first[platform, account, chat] = found
        return found

    async def _spoke(self, address: str, platform: str) -> str:
        """Who spoke first at an address, for chats that are older than what is kept about them."""
        led = await self._store.whereto(address)
        if led is None:
            return ""
        heard = await self._store.entries(led[0], kinds=(Kind.HEARD,), limit=LOOK)
        for entry in heard:
            if isinstance(entry.body, Heard) and entry.body.stamp.address == address:
                return entry.body.speaker or entry.body.stamp.person.removeprefix(f"{platform}:")
        # erased, or resumed from elsewhere, which only its owner can do
        return heard[0].author.removeprefix("person:").removeprefix(f"{platform}:") if heard else ""
