"""Control in this very process, asked the same way as one behind the socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from everhold.remote.client import Calls
from everhold.remote.methods import Methods


class NearControl(Calls):
    def __init__(self, methods: Methods) -> None:
        self.methods = methods

    async def call(self, method: str, /, **params: Any) -> Any:
        return await self.methods.call(method, params)

    async def follow(self, session: str, *, after: int = 0) -> AsyncGenerator[dict[str, Any], None]:
        async for event in self.methods.follow("follow", {"session": session, "after": after}):
            yield event
