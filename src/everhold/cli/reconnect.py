"""Keeps a command connected to the process that holds the home, across restarts."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, TypeVar

from everhold.cli.client import ApiClient
from everhold.cli.connect import DRAIN_SECONDS, GatewayConnection, connect_gateway, find_home, find_running_gateway
from everhold.cli.render import CommandScreen
from everhold.cli.transport import GatewayGone
from everhold.errors import HomeBusy, Transient

RETRY_SECONDS: Final = 0.2
T = TypeVar("T")


class ReconnectingClient:
    """A client that reconnects and repeats its request until it gets an answer.

    If a gateway ends, the client waits for its restart and leaves the home free for it. If a `chat` or `send` without
    a gateway ends, nothing restarts it, so this process opens the home itself.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Awaitable[GatewayConnection]],
        wait: Callable[[], Awaitable[GatewayConnection | None]],
        remark: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.connect = connect
        self.wait = wait
        self.remark = remark
        self.connection: GatewayConnection | None = None
        self._reconnecting = asyncio.Lock()

    async def open(self) -> ApiClient:
        self.connection = await self.connect()
        return self.connection.calls

    async def close(self, *, seconds: float = DRAIN_SECONDS) -> None:
        if self.connection is not None:
            await self.connection.close(seconds=seconds)

    async def call(self, question: Callable[[ApiClient], Awaitable[T]]) -> T:
        """Return the answer to `question`. It may be asked twice, so a repeat must be harmless."""
        while True:
            reached = self.connection
            assert reached is not None
            try:
                return await question(reached.calls)
            except GatewayGone:
                await self._reconnect(reached)

    async def follow_session(self, session: str, *, after: int) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of a session without end and without a gap."""
        while True:
            reached = self.connection
            assert reached is not None
            try:
                async with aclosing(reached.calls.follow_session(session, after=after)) as events:
                    async for event in events:
                        if "entry" in event:
                            after = event["entry"]["seq"]
                        yield event
            except GatewayGone:
                await self._reconnect(reached)

    async def _reconnect(self, lost: GatewayConnection) -> None:
        async with self._reconnecting:
            if self.connection is not lost:
                return  # another task has reconnected
            gateway = lost.role == "gateway"
            if gateway:
                self.remark("the gateway does not answer; waiting for its restart")
            found: GatewayConnection | None = None
            while found is None:
                try:
                    found = await self.wait() if gateway else await self.connect()
                except (HomeBusy, Transient):
                    found = None
                if found is None:
                    await asyncio.sleep(RETRY_SECONDS)
            self.connection = found
            self.remark("connected again" if found.app is None else "continuing without a gateway")


def make_reconnecting_client(
    args: argparse.Namespace, screen: CommandScreen, *, role: str, remark: Callable[[str], None] = lambda _: None
) -> ReconnectingClient:
    """Return a client for a command that sends messages: through a running gateway, or in this process."""

    async def connect_any() -> GatewayConnection:
        return await connect_gateway(args, screen, role=role, starts=True)

    async def connect_to_gateway() -> GatewayConnection | None:
        return await find_running_gateway(find_home(args))

    return ReconnectingClient(connect=connect_any, wait=connect_to_gateway, remark=remark)
