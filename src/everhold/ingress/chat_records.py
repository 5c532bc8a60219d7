"""The state records of chats: chat aliases and DM owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from everhold.core.entries import EntryKind, Heard
from everhold.engine.state_updates import MOST_CONFLICTS, update_state_record
from everhold.errors import Conflict
from everhold.ingress.shared_records import UNKNOWN_VERSION, SharedRecords
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger
from everhold.ports.store import Change, StateNamespace, StateWrite, Step, Store, make_state_scope

MAX_ENTRIES_READ: Final = 200
"""How many of a session's first messages are searched for one from the chat."""
MAX_KNOWN_OWNERS: Final = 20_000


class ChatAliases:
    """Maps the ids of chats to their first ids, so that a chat whose platform gave it another id keeps its
    conversations.

    A chat is identified by its first id. Sessions, memories, allow lists, chat settings and halts use that id; only
    outgoing messages use the present id.
    """

    def __init__(
        self, store: Store, *, clock: Clock, log: EventLogger, shared_records: SharedRecords | None = None
    ) -> None:
        """`shared_records` has the aliases."""
        self._store = store
        self._clock = clock
        self._log = log
        self.shared_records = shared_records or SharedRecords(store)

    async def add_alias(self, platform: str, old: str, new: str) -> None:
        """Record that a chat has another id from now on. A platform may report this more than once."""
        known, scope = self.shared_records, make_state_scope(platform)
        for attempt in range(MOST_CONFLICTS):
            await known.refresh()
            version, first = known.version, known.find_first_id(platform, old)
            record = await self._store.get_state_record(StateNamespace.CHAT_ALIAS, new, scope=scope)
            if new in ("", first) or (record is not None and record.value == first):
                return
            # The latest report of the platform counts, so it replaces the present value.
            write = StateWrite(
                namespace=StateNamespace.CHAT_ALIAS,
                key=new,
                scope=scope,
                value=first,
                version=0 if record is None else record.version,
            )
            change = Change(
                step=Step.STATE, session="", at=self._clock.now(), state_writes=(write,), state_seen=version
            )
            try:
                await self._store.commit(change)
                break
            except Conflict:  # another host reported an alias, perhaps of `old`
                if attempt == MOST_CONFLICTS - 1:
                    raise
        await known.refresh()
        self._log.info("chat.alias_added", platform=platform, old=old, new=new)


class DmOwners:
    """The persons to whom direct chats belong, on platforms where another person can take a place in them.

    A direct chat belongs to the person who was heard there first, even if that person leaves and comes back. Another
    person who is alone with the agent there later gets a separate conversation.
    """

    def __init__(self, store: Store, *, clock: Clock, shared_records: SharedRecords | None = None) -> None:
        self._store = store
        self._clock = clock
        self._shared_records = shared_records or SharedRecords(store)
        self._owners: dict[tuple[str, str, str], str] = {}
        """The owners that were read at this version, or nothing for a chat without one. The commit of a message notices
        if they are outdated."""
        self._version = UNKNOWN_VERSION

    async def find_owner(self, platform: str, account: str, chat: str) -> str:
        """Return the owner of a chat, if one was recorded."""
        version = await self._shared_records.load()
        if version != self._version or len(self._owners) >= MAX_KNOWN_OWNERS:
            self._owners, self._version = {}, version
        key = (platform, account, chat)
        known = self._owners.get(key)
        if known is None:
            scope = make_state_scope(platform, account)
            record = await self._store.get_state_record(StateNamespace.DM_OWNER, chat, scope=scope)
            known = "" if record is None else record.value
            if self._version == version:
                self._owners[key] = known
        return known

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
        await self._shared_records.refresh()
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
