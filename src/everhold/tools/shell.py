"""The `shell` tool: runs a command in the workspace, in a sandbox that shows it nothing else of this machine.

The command may read the system's programs and change the workspace, and nothing else: not the home, not the files of
this user, not `api.sock`. It has no network unless the call asks for it and the configuration allows it. Everything
that it started ends with the call.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from everhold.core.policy import ToolReach
from everhold.core.roles import ToolAccess
from everhold.errors import EverholdError, InvalidRequest
from everhold.infra.child_process import (
    EXIT_NOT_STARTED,
    EXIT_OVER_LIMIT,
    ChildLimits,
    ChildPolicy,
    ChildProcesses,
    SandboxKind,
    can_limit_processes,
    close_pipes,
    end_child,
    select_environment,
)
from everhold.infra.workspace import WorkspaceFolder, compute_file_digest, explain_os_error, split_path
from everhold.ports.model import ToolSpec
from everhold.ports.tool import ToolContext, ToolEffect, ToolFile, ToolResult
from everhold.tools.files import FindWorkspace, get_number, get_text

DEFAULT_SECONDS: Final = 60
MAX_SECONDS: Final = 600
MAX_COMMAND_CHARS: Final = 20_000
MAX_SHOWN_BYTES: Final = 20_000
"""How much of the output is shown: its beginning and its end."""
MAX_OUTPUT_BYTES: Final = 5_000_000
"""A command that writes more is ended."""
PIPE_BYTES: Final = 1 << 16
DEADLINE_MARGIN_SECONDS: Final = 30.0
MAX_BOUND_FILES: Final = 50
MAX_BOUND_BYTES: Final = 20_000_000
_WORD_BREAK: Final = re.compile(r"[;&|<>()=]+")
SHELL_PATH: Final = "/bin/sh"
DEFAULT_SEARCH_PATH: Final = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, kw_only=True)
class ShellLimits:
    """What the configuration allows the shell of an agent."""

    sandbox: SandboxKind = SandboxKind.AUTO
    network: bool = False
    memory_bytes: int = 1 << 30
    processes: int = 64
    cpu_seconds: int = 300


class ShellTool:
    """A repeated command may do harm, so a command whose outcome is unknown is never run again."""

    access = ToolAccess.ACT
    effect = ToolEffect.ONCE
    deadline = MAX_SECONDS + DEADLINE_MARGIN_SECONDS

    def __init__(
        self,
        find_workspace: FindWorkspace,
        children: ChildProcesses,
        limits: ShellLimits,
        environ: Mapping[str, str],
        skill_folders: tuple[Path, ...] = (),
    ) -> None:
        """`skill_folders` are shown to commands, so that they can run the scripts of skills."""
        self._skill_folders = skill_folders
        self._find_workspace = find_workspace
        self._children = children
        self._limits = limits
        self._environ = environ
        network = "Set `network` if the command needs the network. " if limits.network else "There is no network. "
        properties: dict[str, Any] = {
            "command": {"type": "string", "maxLength": MAX_COMMAND_CHARS},
            "cwd": {"type": "string", "description": "A folder of the workspace; the workspace itself if not given."},
            "seconds": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_SECONDS,
                "description": f"After this time it is ended; {DEFAULT_SECONDS} if not given.",
            },
        }
        if limits.network:
            properties["network"] = {"type": "boolean"}
        self.spec = ToolSpec(
            name="shell",
            description=(
                "Run a command with /bin/sh in your workspace. It sees the system's programs and the workspace, and no "
                f"other files. {network}Everything that it starts ends with it, so nothing can run in the background."
            ),
            parameters={
                "type": "object",
                "properties": properties,
                "required": ["command"],
                "additionalProperties": False,
            },
        )

    def find_reach(self, arguments: dict[str, Any]) -> ToolReach:
        return ToolReach.OUTSIDE if arguments.get("network") else ToolReach.CHANGE

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        command = get_text(arguments, "command")
        if len(command) > MAX_COMMAND_CHARS or "\0" in command:
            raise InvalidRequest(
                f"the command has more than {MAX_COMMAND_CHARS:,} characters or a zero byte",
                remedy="write a script with file_write, and run it",
            )
        network = arguments.get("network", False)
        if network and not self._limits.network:
            raise InvalidRequest(
                "the shell has no network", remedy="the operator can set `shell: {network: true}` for this agent"
            )
        seconds = min(MAX_SECONDS, max(1, get_number(arguments, "seconds", DEFAULT_SECONDS)))
        workspace = await self._find_workspace(context)
        inner = split_path(get_text(arguments, "cwd", "."))
        await asyncio.to_thread(_check_folder, workspace, "/".join(inner))
        return await self._run_command(command, workspace, inner, seconds=seconds, network=bool(network))

    async def bind(self, arguments: dict[str, Any], context: ToolContext) -> str:
        """Return the workspace, and the content of the files that the command names. A file that a command opens
        without naming it is not among them.
        """
        workspace = await self._find_workspace(context)
        command, cwd = get_text(arguments, "command"), get_text(arguments, "cwd", ".")
        files = await asyncio.to_thread(_read_named_files, workspace, command, cwd)
        return json.dumps([str(workspace), files], sort_keys=True)

    async def _run_command(
        self, command: str, workspace: Path, inner: tuple[str, ...], *, seconds: int, network: bool
    ) -> ToolResult:
        # `cd` inside the sandbox, where a folder that was replaced by a link meanwhile leads nowhere
        script = 'cd -- "$1" && shift && exec /bin/sh -c "$1"'
        words = [SHELL_PATH, "-c", script, "sh", "/".join(inner) or ".", command]
        environ = {"PATH": DEFAULT_SEARCH_PATH, **select_environment(self._environ)}
        settings = self._limits
        policy = ChildPolicy(
            sandbox=settings.sandbox,
            network=network,
            home_paths=self._skill_folders,
            limits=ChildLimits(
                memory_bytes=settings.memory_bytes, processes=settings.processes, cpu_seconds=settings.cpu_seconds
            ),
        )
        try:
            process = await self._children.start(
                words, directory=workspace, environ=environ, policy=policy, limit=PIPE_BYTES
            )
        except OSError as error:
            raise explain_os_error(error, SHELL_PATH) from error
        output = CommandOutput()
        ended = ""
        try:
            assert process.stdin is not None
            process.stdin.close()
            async with asyncio.timeout(seconds):
                await output.read(process)
                await process.wait()
        except TimeoutError:
            ended = f"It was ended after {seconds} s, and may have done a part of its work."
        except OutputTooLarge:
            ended = f"It was ended because it wrote more than {MAX_OUTPUT_BYTES:,} bytes."
        finally:
            await end_child(process)
            close_pipes(process)
        return output.build_result(process.returncode or 0, ended)


class OutputTooLarge(Exception):
    """A command wrote more than is kept."""


class CommandOutput:
    """What a command wrote to standard output and standard error, in the order of arrival."""

    def __init__(self) -> None:
        self.data = bytearray()

    async def read(self, process: asyncio.subprocess.Process) -> None:
        """Read everything up to the end. Raises OutputTooLarge at the limit."""
        assert process.stdout is not None
        assert process.stderr is not None
        tasks = [asyncio.ensure_future(self._read_stream(it)) for it in (process.stdout, process.stderr)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _read_stream(self, stream: asyncio.StreamReader) -> None:
        while piece := await stream.read(PIPE_BYTES):
            self.data += piece[: MAX_OUTPUT_BYTES - len(self.data)]
            if len(self.data) >= MAX_OUTPUT_BYTES:
                raise OutputTooLarge

    def build_result(self, status: int, ended: str) -> ToolResult:
        text = self.data.decode("utf-8", "replace")
        files: tuple[ToolFile, ...] = ()
        head = ended or _explain_status(status)
        if len(self.data) > MAX_SHOWN_BYTES:
            half = MAX_SHOWN_BYTES // 2
            beginning = self.data[:half].decode("utf-8", "replace")
            end = self.data[-half:].decode("utf-8", "replace")
            left = len(self.data) - 2 * half
            text = f"{beginning}\n… {left:,} bytes are left out; the whole output is the file output.txt …\n{end}"
            files = (ToolFile(data=bytes(self.data), name="output.txt", media="text/plain"),)
        return ToolResult(text=f"{head}\n{text}".rstrip(), error=bool(ended) or status != 0, files=files)


def _explain_status(status: int) -> str:
    if status == EXIT_OVER_LIMIT:
        return "It was ended because it used too much; the last line says what."
    if status == EXIT_NOT_STARTED:
        return "It was not started; the last line says why."
    if status > 128:
        return f"It was ended by signal {status - 128}."
    return f"Exit status {status}."


def _read_named_files(workspace: Path, command: str, cwd: str) -> dict[str, str]:
    """Return the digest of each file of the workspace that a word of the command names."""
    try:
        words = shlex.split(command, comments=True)
    except ValueError:  # a quote without its end
        words = command.split()
    folder, found = WorkspaceFolder(workspace), dict[str, str]()
    parts = [part for word in words for part in (word, *_WORD_BREAK.split(word))]
    for word in dict.fromkeys(parts):
        if len(found) == MAX_BOUND_FILES:
            break
        try:
            data = folder.read_file(f"{cwd}/{word}", max_bytes=MAX_BOUND_BYTES)
        except (EverholdError, OSError, ValueError):
            continue  # it names no file, or one that the command cannot be approved with
        found[word] = compute_file_digest(data)
    return found


def _check_folder(workspace: Path, inner: str) -> None:
    """Raise an error that the model understands if a folder of the workspace is missing or a link."""
    folder = WorkspaceFolder(workspace).create()
    next(iter(folder.list_files(inner or ".")), None)


async def find_shell_problem(children: ChildProcesses, sandbox: SandboxKind) -> tuple[str, str] | None:
    """Return why no shell can run on this machine, and the remedy; None if one can."""
    if not await asyncio.to_thread(os.access, SHELL_PATH, os.X_OK) or not shutil.which("sh"):
        return "there is no /bin/sh", "install a shell, or remove `shell` from `tools`"
    if not await asyncio.to_thread(can_limit_processes):
        return (
            "the gateway runs as root and can make no cgroup, so nothing limits how many processes a command starts",
            "run the gateway as another user",
        )
    try:
        await children.choose_kind(sandbox)
    except EverholdError as error:
        return error.message, error.remedy or "everhold doctor"
    return None
