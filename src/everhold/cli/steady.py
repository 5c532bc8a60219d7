"""Keeps a command in touch with whoever holds the home, over restarts and changes of hand."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, TypeVar

from everhold.cli.client import ApiClient
from everhold.cli.reach import DRAIN_SECONDS, Reached, answering, home_of, reach
from everhold.cli.render import Screen
from everhold.cli.transport import GatewayGone
from everhold.errors import HomeBusy

AGAIN_SECONDS: Final = 0.2
T = TypeVar("T")


class Steady:
    """Asks until somebody answers.

    A gateway that is gone is waited for: whoever looks after it starts it again, and must find the home free. After a
    passing `chat` or `send` has left, nobody comes back, and this process takes its place.
    """

    def __init__(
        self,
        *,
        reach: Callable[[], Awaitable[Reached]],
        wait: Callable[[], Awaitable[Reached | None]],
        remark: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.reach = reach
        self.wait = wait
        self.remark = remark
        self.reached: Reached | None = None
        self._mending = asyncio.Lock()

    async def open(self) -> ApiClient:
        self.reached = await self.reach()
        return self.reached.calls

    async def close(self, *, seconds: float = DRAIN_SECONDS) -> None:
        if self.reached is not None:
            await self.reached.close(seconds=seconds)

    async def ask(self, question: Callable[[ApiClient], Awaitable[T]]) -> T:
        """The answer. What is asked may be asked twice, so it has to be harmless then."""
        while True:
            reached = self.reached
            assert reached is not None
            try:
                return await question(reached.calls)
            except GatewayGone:
                await self._mend(reached)

    async def follow(self, session: str, *, after: int) -> AsyncGenerator[dict[str, Any], None]:
        """A session as it grows, for ever and without a gap."""
        while True:
            reached = self.reached
            assert reached is not None
            try:
                async with aclosing(reached.calls.follow_session(session, after=after)) as events:
                    async for event in events:
                        if "entry" in event:
                            after = event["entry"]["seq"]
                        yield event
            except GatewayGone:
                await self._mend(reached)

    async def _mend(self, lost: Reached) -> None:
        async with self._mending:
            if self.reached is not lost:
                return  # somebody has mended it meanwhile
            gateway = lost.role == "gateway"
            if gateway:
                self.remark("the gateway is gone; waiting for it to come back")
            found: Reached | None = None
            while found is None:
                try:
                    found = await self.wait() if gateway else await self.reach()
                except (HomeBusy, GatewayGone):
                    found = None
                if found is None:
                    await asyncio.sleep(AGAIN_SECONDS)
            self.reached = found
            self.remark("it is back" if found.app is None else "going on without a gateway")


def steady(
    args: argparse.Namespace, screen: Screen, *, role: str, remark: Callable[[str], None] = lambda _: None
) -> Steady:
    """For a command that talks: through a running gateway, or by itself for as long as it takes."""

    async def anybody() -> Reached:
        return await reach(args, screen, role=role, starts=True)

    async def gateway() -> Reached | None:
        return await answering(home_of(args))

    return Steady(reach=anybody, wait=gateway, remark=remark)
