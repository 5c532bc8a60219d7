"""Chats that their platform gave another id: they stay the conversations they were.

A chat is known for good by the id it had first. Sessions, memories, allow lists, chat settings and a halt hold on to
that one; only what is sent goes to the id of the day.
"""

from __future__ import annotations

from everhold.engine.state_updates import update_state_record
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger
from everhold.ports.store import StateNamespace, Store, make_state_scope, split_state_scope


class ChatAliases:
    """Which chats were known by another id first. Read from the store once, and kept up to date."""

    def __init__(self, store: Store, *, clock: Clock, log: EventLogger) -> None:
        self._store = store
        self._clock = clock
        self._log = log
        self._first_ids: dict[tuple[str, str], str] | None = None

    async def find_first_id(self, platform: str, chat: str) -> str:
        """The id that a chat was first known by."""
        return (await self._load_aliases()).get((platform, chat), chat)

    async def add_alias(self, platform: str, old: str, new: str) -> None:
        """A platform says that a chat has another id from now on. It may say so more than once."""
        known = await self._load_aliases()
        first = known.get((platform, old), old)
        if new in ("", first) or known.get((platform, new)) == first:
            return
        # the platform's newest word counts, so what is there is replaced, whoever wrote it
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
