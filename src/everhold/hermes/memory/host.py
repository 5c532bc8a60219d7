"""Our end of a host process: starts it, calls it, kills it when it stalls, and restarts it after a delay."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.core.retry import retry_delay_seconds
from everhold.errors import InDoubt, InvalidRequest, Refused, Transient
from everhold.infra import child_process
from everhold.infra.child_process import ChildPolicy, ChildProcesses, kill_child
from everhold.infra.secret import SecretString
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger

PLUGIN_PROCESS_DIRECTORY: Final = Path(__file__).parent / "plugin_process"
START_CODE: Final = (
    # Our directory is removed from the path again, because plug-ins import modules with very general names.
    "import sys, runpy; sys.path[:1] = [sys.argv.pop()]; "
    "import plugin_process.conversations, plugin_process.discovery, plugin_process.hermes_modules; "
    "import plugin_process.examination, plugin_process.known_searches, plugin_process.search; "
    "import plugin_process.settings_watch; "
    "del sys.path[0]; runpy._run_module_as_main('plugin_process')"
)
MAX_LINE_BYTES: Final = 8 * 1024 * 1024
"""Maximum length of a line from the host. It is more than the host may send, so a longer line means
a broken protocol.
"""
_ERROR_PATTERN: Final = re.compile(
    r"\b(error|exception|fail(ed|ure)?|traceback|warning|cannot|refused)\b", re.IGNORECASE
)
MAX_LOGGED_LINES: Final = 200
"""Lines printed by a plug-in that are logged; further lines are only counted."""
START_SECONDS: Final = 60.0
SHUTDOWN_SECONDS: Final = 10.0
PASSED_VARIABLES: Final = (*child_process.PASSED_VARIABLES, "HOME", "SSL_CERT_FILE")
"""Variables that a plug-in gets. Many look for their settings below HOME; what they may read there is not decided by
it."""


class HermesHostProcess:
    """One plug-in's process. The first call starts it, and the next call after a crash restarts it."""

    def __init__(
        self,
        *,
        what: str,
        python: str,
        home: Path,
        environ: dict[str, str],
        log: EventLogger,
        clock: Clock,
        changed: Callable[[str], None],
        patience: float,
        children: ChildProcesses,
        policy: ChildPolicy,
        watched: tuple[Path, ...] = (),
        secrets: tuple[SecretString, ...] = (),
    ) -> None:
        """`patience` is how long a call may wait in the host for work that the plug-in continues in threads. `watched`
        are files with its settings outside its home.
        """
        self._secrets = secrets
        self._children = children
        self._policy = policy
        self._watched = watched
        self._max_wait_seconds = patience
        self._plugin_name = what
        self._python = python or sys.executable
        self.home = home
        self._environ = environ
        self._log = log
        self._clock = clock
        self._on_config_changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._starting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = itertools.count(1)
        self._pending_calls: dict[int, asyncio.Future[Any]] = {}
        self._pending_look: asyncio.Future[Any] | None = None
        self._restart_after = 0.0
        self.crash_count = 0
        """Number of unexpected exits since the last successful call."""
        self.problem = ""
        self._last_output_line = ""
        self.description: dict[str, Any] = {}
        """What the plug-in reports about itself."""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def has_open_calls(self) -> bool:
        return bool(self._pending_calls)

    @property
    def is_waiting(self) -> bool:
        """Whether the process crashed and may not be started again yet."""
        return self._restart_after > self._clock.monotonic()

    @property
    def pid(self) -> int | None:
        """The pid of the running process, else None."""
        return self._process.pid if self._process is not None and self.is_running else None

    async def call(self, method: str, /, *, deadline: float, **params: Any) -> Any:
        """Call once. Raises Transient if nothing was done, InDoubt if that is unknown, Refused if
        the plug-in raised.
        """
        await self.start()
        return await self._send_call(method, params, deadline=deadline)

    async def start(self) -> None:
        """Start the process once, even if several callers wait for it. A caller that stops waiting does not stop the
        start: recall has less time than some plug-ins need to load, and a plug-in that runs without having described
        itself would count as one without capabilities.
        """
        if self._starting is None or self._starting.done():
            if self.is_running:
                return
            if (wait := self._restart_after - self._clock.monotonic()) > 0:
                raise Transient(f"the plug-in died, and is started again in {wait:.0f} s: {self.problem}")
            self._starting = self._start_task(self._start_plugin())
            self._starting.add_done_callback(_consume_task_error)
        await asyncio.shield(self._starting)

    async def describe_plugin(self) -> dict[str, Any]:
        """Return what the plug-in reports about itself, even if it cannot be used: its setup questions, for example."""
        if not self.is_running:
            await self._spawn_process()
        return self.description

    async def save_settings(self, values: dict[str, str]) -> bool:
        """Let the plug-in save its own settings; return whether it supports that."""
        return bool(await self._send_call("save", {"values": values, "home": str(self.home)}, deadline=START_SECONDS))

    async def close(self) -> None:
        """Let the plug-in shut down in its own way, for a limited time."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(Transient, InDoubt, Refused):
                problems = await self._send_call("close", {}, deadline=SHUTDOWN_SECONDS)
                for problem in problems or ():
                    self._log.warning("memory.closing", problem=problem)
            await self._end_process(process)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- internals -----------------------------------------------------------------------------------------------------

    async def _start_plugin(self) -> None:
        process = await self._spawn_process()
        if not self.description.get("available"):
            await self._end_process(process)
            self._record_crash(
                "the plug-in reports that it is not available: a package or one of its settings is missing"
            )
            wants = ", ".join(_list_required_settings(self.description.get("settings")))
            asks = f"it needs {wants}: use `everhold setup memory`, `environ`, or" if wants else "look into"
            raise Transient(self.problem, remedy=f"{asks} its settings in {self.home}")

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _spawn_process(self) -> asyncio.subprocess.Process:
        environ = {name: value for name, value in os.environ.items() if name in PASSED_VARIABLES}
        environ |= {**self._environ, "HERMES_HOME": str(self.home), "PYTHONUNBUFFERED": "1"}
        try:
            process = await self._children.start(
                (self._python, "-c", START_CODE, str(PLUGIN_PROCESS_DIRECTORY.parent)),
                directory=self.home,
                environ=environ,
                policy=self._policy,
                also_read=(
                    PLUGIN_PROCESS_DIRECTORY.parent,
                    self.home / "plugins",  # often a link
                    *list_code_paths(self._plugin_name),
                    *self._watched,
                ),
                limit=MAX_LINE_BYTES,
            )
        except InvalidRequest as error:
            self._record_crash(error.message)
            raise Transient(error.message, remedy=error.remedy) from error
        except OSError as error:
            self._record_crash(f"{self._python} cannot be run: {error}")
            raise Transient(
                f"{self._python} cannot be run: {error}",
                remedy="set `python` to the interpreter in which the plug-in is installed",
            ) from error
        self._process = process
        for work in (self._read_answers(process), self._drain_output(process)):
            self._start_task(work)
        try:
            about = {
                "what": self._plugin_name,
                "home": str(self.home),
                "patience": self._max_wait_seconds,
                "watched": [str(path) for path in self._watched],
            }
            self.description = await self._send_call("load", about, deadline=START_SECONDS)
        except (Refused, InDoubt) as error:
            await self._end_process(process)
            self._record_crash(str(error))
            raise Transient(f"the plug-in does not load: {error}") from error
        return process

    async def _send_call(self, method: str, params: dict[str, Any], *, deadline: float) -> Any:
        process = self._process
        if process is None or process.stdin is None or process.returncode is not None:
            raise Transient(f"the plug-in's host is not running: {self.problem}")
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if method == "look":
            # A search is optional. So it never causes the process to be killed, which may be storing something, and it
            # is not repeated while one is running.
            if self._pending_look is not None and not self._pending_look.done():
                raise Transient("it is still busy with an earlier search")
            self._pending_look = answer
        else:
            # A caller may stop waiting, but the call stays open. If it is never answered, the host is killed.
            guard = asyncio.get_running_loop().call_later(
                deadline, self._kill_stalled_process, process, method, deadline
            )
            answer.add_done_callback(lambda _: guard.cancel())
        self._pending_calls[number] = answer
        try:
            process.stdin.write(msgspec.json.encode({"id": number, "method": method, "params": params}) + b"\n")
            await process.stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            self._pending_calls.pop(number, None)
            answer.cancel()
            raise Transient(f"the plug-in's host is gone: {error}") from error
        return await asyncio.shield(answer)

    def _kill_stalled_process(self, process: asyncio.subprocess.Process, method: str, deadline: float) -> None:
        self.problem = f"`{method}` did not return within {deadline:g} s"
        kill_child(process)

    async def _read_answers(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                self._receive_answer(msgspec.json.decode(line))
        except (ValueError, msgspec.DecodeError) as error:
            self.problem = f"its host sent an invalid message: {error}"
            kill_child(process)
        code = await process.wait()
        said = f", last output: {self._last_output_line}" if self._last_output_line else ""
        self._record_crash(self.problem or f"its process ended with {code}{said}")

    def _receive_answer(self, message: Any) -> None:
        if not isinstance(message, dict):
            raise ValueError("an answer is not an object")
        if message.get("event") == "changed":
            self._on_config_changed(str(message.get("files")))
            return
        answer = self._pending_calls.pop(message.get("id", 0), None)
        if answer is None or answer.done():
            return  # no caller waits for it any more
        if "error" in message:
            answer.set_exception(Refused(f"the plug-in failed: {self._mask_secrets(str(message['error']))}"))
            answer.exception()  # mark it as retrieved, because no caller may be waiting
        else:
            self.crash_count, self.problem = 0, ""
            answer.set_result(message.get("result"))

    async def _drain_output(self, process: asyncio.subprocess.Process) -> None:
        """Log what the plug-in prints, up to a limit, so that it cannot fill our memory."""
        assert process.stderr is not None
        printed = 0
        while chunk := await process.stderr.read(4096):
            for line in chunk.decode("utf-8", "replace").splitlines():
                printed += 1
                self._last_output_line = self._mask_secrets(line.strip())[:300] or self._last_output_line
                if printed <= MAX_LOGGED_LINES and line.strip():
                    # a plug-in has no other way to report a problem
                    say = self._log.warning if _ERROR_PATTERN.search(line) else self._log.debug
                    say("memory.printed", text=line[:500])
        if printed > MAX_LOGGED_LINES:
            self._log.debug("memory.printed", text=f"… {printed - MAX_LOGGED_LINES} more lines")

    def _mask_secrets(self, text: str) -> str:
        """Return the text without the plug-in's own secrets, which its errors may contain."""
        for secret in self._secrets:
            text = secret.mask_in(text)
        return text

    def _record_crash(self, why: str) -> None:
        self.crash_count += 1
        self.problem = why
        wait = retry_delay_seconds(self.crash_count, jitter=0.5) or 300.0
        self._restart_after = self._clock.monotonic() + wait
        asked, self._pending_calls = self._pending_calls, {}
        for answer in asked.values():
            if not answer.done():
                answer.set_exception(InDoubt(f"the plug-in died: {why}"))
                answer.exception()
        if asked or self.crash_count > 1:
            self._log.warning("memory.crashed", reason=why, again_in=round(wait))

    async def _end_process(self, process: asyncio.subprocess.Process) -> None:
        """Close the pipe and wait for the process to end; kill it if it does not."""
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await process.wait()
        except TimeoutError:
            kill_child(process)
            await process.wait()


def list_code_paths(what: str) -> list[Path]:
    """Return where the code of a plug-in is; nothing for one that is installed as a package."""
    path = Path(what).expanduser()
    if not path.exists():
        return []
    folder = path.resolve()
    # bundled plug-ins import helper modules that are beside them
    return [folder.parent if folder.parent.name in ("memory", "plugins") else folder]


def _list_required_settings(schema: Any) -> list[str]:
    """Return the names of the variables that a plug-in requires."""
    fields = [it for it in schema if isinstance(it, dict)] if isinstance(schema, list) else []
    return [str(it.get("env_var") or it.get("key")) for it in fields if it.get("required") or it.get("secret")]


def _consume_task_error(task: asyncio.Task[None]) -> None:
    """Mark the task's error as retrieved, because no caller may be waiting."""
    if not task.cancelled():
        task.exception()
