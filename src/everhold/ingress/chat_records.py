"""The state records of chats: chat aliases and DM owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from everhold.core.entries import EntryKind, Heard
from everhold.engine.state_updates import update_state_record
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger
from everhold.ports.store import StateNamespace, Store, make_state_scope, split_state_scope

MAX_ENTRIES_READ: Final = 200
"""How many of a session's first messages are searched for one from the chat."""


class ChatAliases:
    """Maps the ids of chats to their first ids, so that a chat whose platform gave it another id keeps its
    conversations.

    A chat is identified by its first id. Sessions, memories, allow lists, chat settings and halts use that id; only
    outgoing messages use the present id. The map is loaded from the store once, and kept up to date.
    """

    def __init__(self, store: Store, *, clock: Clock, log: EventLogger) -> None:
        self._store = store
        self._clock = clock
        self._log = log
        self._first_ids: dict[tuple[str, str], str] | None = None

    async def find_first_id(self, platform: str, chat: str) -> str:
        """Return the first id of a chat."""
        return (await self._load_aliases()).get((platform, chat), chat)

    async def add_alias(self, platform: str, old: str, new: str) -> None:
        """Record that a chat has another id from now on. A platform may report this more than once."""
        known = await self._load_aliases()
        first = known.get((platform, old), old)
        if new in ("", first) or known.get((platform, new)) == first:
            return
        # The latest report of the platform counts, so it replaces the present value.
        await update_state_record(
            self._store,
            StateNamespace.CHAT_ALIAS,
            new,
            scope=make_state_scope(platform),
            at=self._clock.now(),
            decide=lambda _: first,
        )
        known[platform, new] = first
        self._log.info("chat.alias_added", platform=platform, old=old, new=new)

    async def _load_aliases(self) -> dict[tuple[str, str], str]:
        if self._first_ids is None:
            found = await self._store.list_state_records(StateNamespace.CHAT_ALIAS)
            self._first_ids = {(split_state_scope(it.scope)[0], it.key): it.value for it in found}
        return self._first_ids


class DmOwners:
    """The persons to whom direct chats belong, on platforms where another person can take a place in them.

    A direct chat belongs to the person who was heard there first, even if that person leaves and comes back. Another
    person who is alone with the agent there later gets a separate conversation. The owners are loaded from the store
    once, and kept up to date.
    """

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._owners: dict[tuple[str, str, str], str] | None = None

    async def find_owner(self, platform: str, account: str, chat: str) -> str:
        """Return the owner of a chat, if one was recorded."""
        if self._owners is None:
            found = await self._store.list_state_records(StateNamespace.DM_OWNER)
            self._owners = {(*split_state_scope(it.scope), it.key): it.value for it in found}
        return self._owners.get((platform, account, chat), "")

    async def find_or_set_owner(
        self, platform: str, account: str, chat: str, *, addresses: Sequence[str], sender: str
    ) -> str:
        """Return the owner of a chat: by the record, by the log, or else `sender`, who is recorded now."""
        found = await self.find_owner(platform, account, chat)
        if found:
            return found
        spoke = [await self._find_first_speaker(address, platform) for address in addresses]
        first = next(filter(None, spoke), sender)
        kept = await update_state_record(
            self._store,
            StateNamespace.DM_OWNER,
            chat,
            scope=make_state_scope(platform, account),
            at=self._clock.now(),
            decide=lambda owner: owner or first,  # the first record wins
        )
        assert self._owners is not None, "`find_owner` has read them"
        self._owners[platform, account, chat] = kept or first
        return kept or first

    async def _find_first_speaker(self, address: str, platform: str) -> str:
        """Return who spoke first at an address, for chats that are older than these records."""
        led = await self._store.get_bound_session(address)
        if led is None:
            return ""
        heard = await self._store.list_entries(led[0], kinds=(EntryKind.HEARD,), limit=MAX_ENTRIES_READ)
        for entry in heard:
            if isinstance(entry.body, Heard) and entry.body.stamp.address == address:
                return entry.body.speaker or entry.body.stamp.person.removeprefix(f"{platform}:")
        # The first message was erased, or the session was resumed from another chat, which only its owner can do.
        return heard[0].author.removeprefix("person:").removeprefix(f"{platform}:") if heard else ""
