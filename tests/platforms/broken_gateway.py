"""`everhold` with a fault in its Matrix adapter: `python -m tests.platforms.broken_gateway FAULT up …`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from everhold.cli import main
from everhold.platforms.matrix import adapter, parsing
from everhold.ports.platform import AcceptMessage, IncomingMessage, OutgoingMessage


class DropsPendingUpdates(adapter.MatrixPlatform):
    """Drops messages that were written while it was down."""

    looked = False

    async def _accept_events(self, news: Mapping[str, Any], since: str | None, accept: AcceptMessage) -> str:
        first, self.looked = not self.looked, True
        if since is None or not first:
            return await super()._accept_events(news, since, accept)
        # a homeserver may repeat the answer for the previous process; more comes after it
        while (later := await self._client.sync(str(news["next_batch"]), seconds=0)).get("rooms"):
            news = later
        next_batch = str(news["next_batch"])
        await self._account_context.offsets.advance(adapter.SYNC_POSITION_KEY, next_batch)
        return next_batch


class SaysItTwice(adapter.MatrixPlatform):
    """Repeats what it has sent, with another transaction id."""

    async def _send_event(self, out: OutgoingMessage, content: Mapping[str, Any], *, part: str) -> str:
        await super()._send_event(out, content, part=f"{part} again")
        return await super()._send_event(out, content, part=part)


class MovesConversation(adapter.MatrixPlatform):
    """Uses another conversation after a restart."""

    kind = "group"

    async def listen(self, accept: AcceptMessage) -> None:
        self.kind = "channel" if await self._account_context.offsets.read("lived") else "group"
        await self._account_context.offsets.advance("lived", "yes")
        await super().listen(accept)

    async def _parse_event(self, chat: str, raw: Any, room: parsing.MatrixRoom) -> IncomingMessage | None:
        heard = await super()._parse_event(chat, raw, room)
        return None if heard is None else msgspec.structs.replace(heard, kind=self.kind)


if __name__ == "__main__":
    adapter.MatrixPlatform = globals()[sys.argv.pop(1)]  # type: ignore[misc]  # looked up when an account is built
    sys.exit(main())
