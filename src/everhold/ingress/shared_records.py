"""This process's copy of the state records that every process decides by: silenced chats and chat aliases.

Reading them for every message would cost a store call. So a process decides by its copy, and the commit of the decision
names the version of the copy. The store refuses the commit if such a record was written since; then the copy is loaded
again, and the message is decided again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from everhold.ports.store import StateNamespace, Store, split_state_scope

UNKNOWN_VERSION: Final = -1


class SharedRecords:
    """The copy of one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.version = UNKNOWN_VERSION
        """The state version of the store when the copy was loaded."""
        self._halts: dict[tuple[str, str], str] = {}
        self._first_ids: dict[tuple[str, str], str] = {}

    async def load(self) -> int:
        """Load the records if that was not done yet. Return the version of the copy."""
        if self.version == UNKNOWN_VERSION:
            await self._load_at(await self._store.get_state_version())
        return self.version

    async def refresh(self) -> bool:
        """Load the records again if one was written since. Return whether that was so."""
        version = await self._store.get_state_version()
        if version == self.version:
            return False
        await self._load_at(version)
        return True

    async def _load_at(self, version: int) -> None:
        """Load the records. They are those of `version` or newer, so a commit that names it is refused if they are."""
        halts = await self._store.list_state_records(StateNamespace.CHAT_HALT)
        aliases = await self._store.list_state_records(StateNamespace.CHAT_ALIAS)
        if version < self.version:
            return  # another task has loaded newer ones meanwhile
        self._halts = {(split_state_scope(it.scope)[0], it.key): msgspec.json.decode(it.value)["by"] for it in halts}
        self._first_ids = {(split_state_scope(it.scope)[0], it.key): it.value for it in aliases}
        self.version = version

    # -- by the copy -------------------------------------------------------------------------------------------------

    def find_first_id(self, platform: str, chat: str) -> str:
        """Return the first id of a chat."""
        return self._first_ids.get((platform, chat), chat)

    def is_halted(self, platform: str, chat: str) -> bool:
        """Return whether the agents of a chat are silenced."""
        return (platform, chat) in self._halts

    def list_halts(self) -> list[tuple[str, str, str]]:
        """Return the silenced chats in order: platform, chat, and who silenced it."""
        return [(platform, chat, by) for (platform, chat), by in sorted(self._halts.items())]
