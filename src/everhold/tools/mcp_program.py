"""A tool server as a program: started, spoken to line by line, ended. Knows pipes; what the lines mean is the SDK's.

The SDK could start it, too, but would hand the program our standard error (where nobody hides secrets), write a trace
per line that is no message, and keep a line without an end in memory for as long as it grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from everhold.ports.log import EventLogger

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of one message."""
MAX_INVALID_LINES: Final = 50
"""Lines in a row that are no messages, after which the program is not what it was taken for."""
GRACE_SECONDS: Final = 1.0
"""For the program to end by itself once its input is closed, and again once it was asked to."""

PASSED_VARIABLES: Final = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TEMP", "TERM", "TMPDIR", "TZ", "USER")
"""Variables a program gets from our environment. Everything else may be a secret of somebody else."""


def select_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: environ[name] for name in PASSED_VARIABLES if name in environ}


class McpProgram:
    """One run of a program. `ended` is set once it can no longer be talked to, `reason` then says why."""

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], directory: PurePath, log: EventLogger
    ) -> None:
        self.command = tuple(command)
        self.env = dict(env)
        self.directory = directory
        self.log = log
        self.ended = asyncio.Event()
        self.reason = ""
        self.last_stderr_line = ""
        self._stderr_closed = asyncio.Event()
        """All that it will ever write to standard error was read."""
        self.pid = 0
        self._stopping = False
        """We are ending it: how it ends now is our doing."""

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[TransportStreams]:
        """The program's streams of messages, as the SDK takes them. Leaving ends the program and all it started."""
        import anyio
        from mcp.shared.message import SessionMessage

        # what stands beside our own Python is found, too: that is where pip puts a server
        path = os.pathsep.join([self.env.get("PATH", os.defpath), os.path.dirname(sys.executable)])
        found = shutil.which(self.command[0], path=path)
        if found is None:
            raise FileNotFoundError(2, "there is no such program", self.command[0])
        process = await asyncio.create_subprocess_exec(
            found,
            *self.command[1:],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.env,
            cwd=self.directory,
            start_new_session=True,  # Ctrl-C in our terminal is for us to deal with
            limit=MAX_LINE_BYTES,
        )
        self.pid = process.pid
        incoming, theirs = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        ours, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        pumps = [
            asyncio.create_task(self._read_messages(process, incoming)),
            asyncio.create_task(self._write_messages(process, outgoing)),
            asyncio.create_task(self._log_stderr(process)),
        ]
        try:
            yield theirs, ours
        finally:
            self._stopping = True
            try:
                await _end_process(process)
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
            finally:
                _kill_process_group(process, hard=True)
                for stream in (incoming, theirs, ours, outgoing):
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
                if not line.strip():
                    continue
                try:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    strange += 1
                    self.log.debug("mcp.unexpected", line=line[:200].decode("utf-8", "replace"))
                    continue
                strange = 0
                await incoming.send(SessionMessage(message))
            self.reason = "it prints something else than MCP messages"
        except ValueError:  # what readline raises for a line beyond the limit
            self.reason = f"it sent a message of more than {MAX_LINE_BYTES} bytes"
        except (BrokenResourceError, ClosedResourceError):
            pass  # nobody listens any more
        finally:
            incoming.close()
            self.ended.set()

    async def _on_output_closed(self, process: asyncio.subprocess.Process) -> None:
        """It closed its output: most likely it is gone, and its last words say why."""
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
        with contextlib.suppress(ConnectionError):  # that it is gone is noticed where it is heard
            async for wrapped in outgoing:
                text: str = wrapped.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode("utf-8", "replace") + b"\n")
                await process.stdin.drain()

    async def _log_stderr(self, process: asyncio.subprocess.Process) -> None:
        """What it writes to standard error is a remark for whoever looks for the reason of something."""
        assert process.stderr is not None
        while chunk := await process.stderr.read(64 * 1024):
            for line in chunk.decode("utf-8", "replace").splitlines():
                if line.strip():
                    self.last_stderr_line = line.strip()[:300]
                    self.log.debug("mcp.logged", text=self.last_stderr_line)
        self._stderr_closed.set()


async def _end_process(process: asyncio.subprocess.Process) -> None:
    """Close its input, which ends a server in order; then ask; then insist."""
    if process.stdin is not None:
        process.stdin.close()
    for hard in (False, True):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await process.wait()
                break
        _kill_process_group(process, hard=hard)
    await process.wait()


def _kill_process_group(process: asyncio.subprocess.Process, *, hard: bool) -> None:
    """The program and whatever it started: they are a group of their own, but on Windows."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL if hard else signal.SIGTERM)
