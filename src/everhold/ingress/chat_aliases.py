"""Chat aliases: a chat whose platform gave it another id keeps its conversations.

A chat is identified by its first id. Sessions, memories, allow lists, chat settings and halts use that id; only
outgoing messages use the present id.
"""

from __future__ import annotations

from everhold.engine.state_updates import update_state_record
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger
from everhold.ports.store import StateNamespace, Store, make_state_scope, split_state_scope


class ChatAliases:
    """Maps the ids of chats to their first ids. It is loaded from the store once, and kept up to date."""

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
