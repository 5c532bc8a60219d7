"""One connection of Slack's socket mode. It yields envelopes in order. The adapter confirms each one after it has
committed its event; nothing is confirmed automatically."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import aiohttp
from msgspec import Struct

from everhold.errors import Refused
from everhold.infra.deep_json import load_json

T = TypeVar("T")

HELLO_SECONDS: Final = 15.0
HEARTBEAT_SECONDS: Final = 15.0
CLOSE_SECONDS: Final = 1.0
MAX_FRAME_BYTES: Final = 16 << 20
"""Far more than the largest event of Slack."""
RECONNECT_SECONDS: Final = 30.0


class SlackHello(Struct, frozen=True):
    """Slack's first message on a connection."""

    connections: int
    """How many connections this app has, ours included."""


class SlackEnvelope(Struct, frozen=True, kw_only=True):
    """An event from Slack."""

    id: str
    type: str
    payload: dict[str, Any]

    @property
    def event_id(self) -> str:
        """The event's id: the same in every envelope that brings it."""
        return str(self.payload.get("event_id") or self.id)


class SlackSocketConnection:
    """Use `async with` a connection, then `hello()`, then iterate."""

    port = 0
    """The port, for a connection that receives calls."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, proxy: str | None) -> None:
        self._session = session
        self._url = url
        self._proxy = proxy
        self._inbox: asyncio.Queue[SlackEnvelope | BaseException | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.asked_to_leave = False
        """Slack asks for a new connection, which it does from time to time."""

    async def __aenter__(self) -> SlackSocketConnection:
        self._socket = await self._session.ws_connect(
            self._url,
            heartbeat=HEARTBEAT_SECONDS,
            proxy=self._proxy,
            max_msg_size=MAX_FRAME_BYTES,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._socket.close()

    async def receive_hello(self) -> SlackHello:
        async with asyncio.timeout(HELLO_SECONDS):
            first = await self._socket.receive()
        if first.type is not aiohttp.WSMsgType.TEXT:
            raise aiohttp.ClientConnectionError("closed before the hello message")
        self.reader_task = self.start_task(self._read_socket())
        connections = _parse_frame(first.data).get("num_connections")
        return SlackHello(connections if isinstance(connections, int) and connections > 0 else 1)

    async def acknowledge(self, id: str) -> None:
        """Confirm an envelope. Slack repeats an envelope that is not confirmed."""
        with contextlib.suppress(ConnectionError):
            await self._socket.send_json({"envelope_id": id})

    def start_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that ends with the connection at the latest. If it fails, the iteration fails."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def close_after_delay(self, sleep: Callable[[float], Awaitable[None]]) -> None:
        """End the connection after a while."""

        async def leave() -> None:
            await sleep(RECONNECT_SECONDS)
            self.asked_to_leave = True
            self._inbox.put_nowait(None)

        self.start_task(leave())

    async def __aiter__(self) -> AsyncIterator[SlackEnvelope]:
        while (found := await self._inbox.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found

    async def _read_socket(self) -> None:
        async for frame in self._socket:
            if frame.type is not aiohttp.WSMsgType.TEXT:
                continue
            message = _parse_frame(frame.data)
            if message.get("type") == "disconnect":
                if message.get("reason") == "link_disabled":
                    raise Refused("socket mode is switched off", remedy="switch it on in the app's settings")
                self.asked_to_leave = True
                break
            if message.get("envelope_id"):
                payload = message.get("payload")
                envelope = SlackEnvelope(
                    id=str(message["envelope_id"]),
                    type=str(message.get("type")),
                    payload=payload if isinstance(payload, dict) else {"event": payload},
                )
                self._inbox.put_nowait(envelope)
        self._inbox.put_nowait(None)

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._inbox.put_nowait(error)


def _parse_frame(text: str) -> dict[str, Any]:
    """Return the message of a frame; an empty one if the frame has another form. It cannot be confirmed then."""
    try:
        message = load_json(text)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
