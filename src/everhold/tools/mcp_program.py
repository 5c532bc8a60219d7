"""A tool server as a program: starts it, exchanges lines with it, ends it. The SDK interprets the lines.

The SDK could also start the program. But it would give it our standard error, which may show secrets, log a traceback
per invalid line, and buffer a line without an end without limit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from everhold.infra.child_process import GRACE_SECONDS, ChildPolicy, ChildProcesses, close_pipes, end_child, kill_child
from everhold.ports.log import EventLogger

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of one message."""
MAX_INVALID_LINES: Final = 50
"""After this many invalid lines in a row the program is not an MCP server."""
MAX_UNASKED_MESSAGES: Final = 10_000
"""After this many messages since the last call of a tool the program floods us."""
MAX_UNASKED_BYTES: Final = 4 * MAX_LINE_BYTES
"""The same for the bytes of these messages. Several calls at once may return a message of the largest size each."""
MAX_LOGGED_LINES: Final = 200
"""Lines on standard error that are logged; of further lines only the last one is kept."""


class McpProgram:
    """One run of a program. `ended` is set once it can no longer be used; `reason` then says why."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        directory: Path,
        policy: ChildPolicy,
        children: ChildProcesses,
        log: EventLogger,
    ) -> None:
        self.command = tuple(command)
        self.env = dict(env)
        self.directory = directory
        self.policy = policy
        self._children = children
        self.log = log
        self.ended = asyncio.Event()
        self.reason = ""
        self.last_stderr_line = ""
        self._stderr_closed = asyncio.Event()
        """Its standard error was read to the end."""
        self.pid = 0
        self._unasked = 0
        """Messages received since the last call of a tool."""
        self._unasked_bytes = 0
        self._stopping = False
        """We are stopping it, so its exit is not a failure."""

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[TransportStreams]:
        """Yield the program's message streams for the SDK. Leaving the context ends the program and all its child
        processes."""
        import anyio
        from mcp.shared.message import SessionMessage

        process = await self._children.start(
            self.command, directory=self.directory, environ=self.env, policy=self.policy, limit=MAX_LINE_BYTES
        )
        self.pid = process.pid
        incoming, sdk_receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sdk_send, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        pumps = [
            asyncio.create_task(self._read_messages(process, incoming)),
            asyncio.create_task(self._write_messages(process, outgoing)),
            asyncio.create_task(self._log_stderr(process)),
        ]
        try:
            yield sdk_receive, sdk_send
        finally:
            self._stopping = True
            try:
                await end_child(process)
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
            finally:
                kill_child(process)
                close_pipes(process)
                for stream in (incoming, sdk_receive, sdk_send, outgoing):
                    stream.close()

    async def _read_messages(self, process: asyncio.subprocess.Process, incoming: object) -> None:
        import mcp_types as types
        from anyio import BrokenResourceError, ClosedResourceError
        from anyio.streams.memory import MemoryObjectSendStream
        from mcp.shared.message import SessionMessage

        assert process.stdout is not None
        assert isinstance(incoming, MemoryObjectSendStream)
        strange = 0
        try:
            while strange < MAX_INVALID_LINES:
                line = await process.stdout.readline()
                if not line:
                    if not self._stopping:
                        await self._on_output_closed(process)
                    return
                self._unasked_bytes += len(line)
                if self._unasked_bytes > MAX_UNASKED_BYTES:
                    self.reason = f"it sent more than {MAX_UNASKED_BYTES} bytes without a call"
                    return
                if not line.strip():
                    continue
                try:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    strange += 1
                    self.log.debug("mcp.unexpected", line=line[:200].decode("utf-8", "replace"))
                    continue
                strange = 0
                self._unasked += 1
                if self._unasked > MAX_UNASKED_MESSAGES:
                    self.reason = f"it sent more than {MAX_UNASKED_MESSAGES} messages without a call"
                    return
                await incoming.send(SessionMessage(message))
            self.reason = "it prints something other than MCP messages"
        except ValueError:  # readline raises this for a line beyond the limit
            self.reason = f"it sent a message of more than {MAX_LINE_BYTES} bytes"
        except (BrokenResourceError, ClosedResourceError):
            pass  # the stream is closed
        finally:
            incoming.close()
            self.ended.set()

    async def _on_output_closed(self, process: asyncio.subprocess.Process) -> None:
        """Record the end of its output. It has most likely exited, and its last line on standard error says why."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await process.wait()
                await self._stderr_closed.wait()
        if self._stopping:
            return
        how = "it closed its output" if process.returncode is None else f"it ended with status {process.returncode}"
        self.reason = f"{how}: {self.last_stderr_line}" if self.last_stderr_line else how

    async def _write_messages(self, process: asyncio.subprocess.Process, outgoing: object) -> None:
        from anyio.streams.memory import MemoryObjectReceiveStream

        assert process.stdin is not None
        assert isinstance(outgoing, MemoryObjectReceiveStream)
        with contextlib.suppress(ConnectionError):  # the exit is noticed where its output is read
            async for wrapped in outgoing:
                text: str = wrapped.message.model_dump_json(by_alias=True, exclude_unset=True)
                if getattr(wrapped.message, "method", "") == "tools/call":
                    self._unasked = self._unasked_bytes = 0
                process.stdin.write(text.encode("utf-8", "replace") + b"\n")
                await process.stdin.drain()

    async def _log_stderr(self, process: asyncio.subprocess.Process) -> None:
        """Log the beginning of its standard error, which helps to find the reason of a failure."""
        assert process.stderr is not None
        logged = 0
        while chunk := await process.stderr.read(64 * 1024):
            lines = chunk.decode("utf-8", "replace").splitlines()
            # A program that writes without an end must not keep us busy.
            for line in lines if logged < MAX_LOGGED_LINES else lines[-1:]:
                if line.strip():
                    self.last_stderr_line = line.strip()[:300]
                    logged += 1
                    if logged <= MAX_LOGGED_LINES:
                        self.log.debug("mcp.logged", text=self.last_stderr_line)
        self._stderr_closed.set()
