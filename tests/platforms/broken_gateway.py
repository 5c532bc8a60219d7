"""`everhold` with a fault planted into its Matrix adapter: `python -m tests.platforms.broken_gateway FAULT up …`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from everhold.cli import main
from everhold.platforms.matrix import adapter, reading
from everhold.ports.platform import Accept, Incoming, Outgoing


class StartsAfresh(adapter.Matrix):
    """Throws away what was said while it was away."""

    looked = False

    async def _hear(self, news: Mapping[str, Any], since: str | None, accept: Accept) -> str:
        first, self.looked = not self.looked, True
        if since is None or not first:
            return await super()._hear(news, since, accept)
        # a homeserver may repeat the answer that our predecessor waited for: more is behind it
        while (later := await self._client.sync(str(news["next_batch"]), seconds=0)).get("rooms"):
            news = later
        behind = str(news["next_batch"])
        await self._station.positions.move(adapter.SINCE, behind)
        return behind


class SaysItTwice(adapter.Matrix):
    """Sends again what it has sent, as if it were something else."""

    async def _put(self, out: Outgoing, content: Mapping[str, Any], *, part: str) -> str:
        await super()._put(out, content, part=f"{part} again")
        return await super()._put(out, content, part=part)


class Wanders(adapter.Matrix):
    """Talks in another conversation in its second life."""

    kind = "group"

    async def listen(self, accept: Accept) -> None:
        self.kind = "channel" if await self._station.positions.read("lived") else "group"
        await self._station.positions.move("lived", "yes")
        await super().listen(accept)

    async def _read(self, chat: str, raw: Any, room: reading.Room) -> Incoming | None:
        heard = await super()._read(chat, raw, room)
        return None if heard is None else msgspec.structs.replace(heard, kind=self.kind)


if __name__ == "__main__":
    adapter.Matrix = globals()[sys.argv.pop(1)]  # type: ignore[misc]  # looked up when an account is built
    sys.exit(main())
