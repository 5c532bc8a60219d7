"""The tools `file_read`, `file_list`, `file_search`, `file_write` and `file_edit`: files of the workspace."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from everhold.core.policy import ToolReach, does_pattern_fit
from everhold.core.roles import ToolAccess
from everhold.errors import EverholdError, InvalidRequest, NotFound
from everhold.infra.workspace import WorkspaceFolder, WriteIntent, WriteIntents, compute_file_digest, explain_os_error
from everhold.ports.clock import Clock
from everhold.ports.model import ToolSpec
from everhold.ports.tool import Tool, ToolContext, ToolEffect, ToolResult

T = TypeVar("T")

MAX_READ_BYTES: Final = 5_000_000
MAX_WRITE_BYTES: Final = 5_000_000
MAX_LINES: Final = 2_000
MAX_LINE_CHARS: Final = 2_000
MAX_SHOWN_CHARS: Final = 60_000
"""Characters of a result. The rest is read with another call."""
MAX_NAMES: Final = 1_000
MAX_HITS: Final = 200
MAX_SEARCHED_BYTES: Final = 50_000_000
SEARCH_SECONDS: Final = 10.0
"""After this time a search is ended. A regular expression may need more time than there is."""
SEARCH_FILE: Final = Path(__file__).with_name("search_process.py")
DIGEST_CHARS: Final = 12
"""Characters of a file's digest that are shown, and accepted as `expect`."""

FindWorkspace = Callable[[ToolContext], Awaitable[Path]]
"""Returns the folder of the workspace for a call."""


class FileTool:
    """Base of the tools. A failure is a result that names the remedy."""

    access = ToolAccess.READ
    effect = ToolEffect.PURE
    deadline = 30.0
    reach: ClassVar[ToolReach] = ToolReach.PRIVATE
    spec: ToolSpec

    def __init__(self, find_workspace: FindWorkspace, intents: WriteIntents, clock: Clock) -> None:
        self._find_workspace = find_workspace
        self._intents = intents
        self._clock = clock

    def find_reach(self, arguments: dict[str, Any]) -> ToolReach:
        return self.reach

    async def bind(self, arguments: dict[str, Any], context: ToolContext) -> str:
        """Return the workspace. With `expect` the content is bound, too."""
        return str(await self._find_workspace(context))

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        try:
            folder = WorkspaceFolder(await self._find_workspace(context))
            await asyncio.to_thread(folder.create)
            return await self._work(folder, arguments, context)
        except OSError as error:
            raise explain_os_error(error, "the file") from error

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None

    async def _work(self, folder: WorkspaceFolder, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        raise NotImplementedError


class FileReadTool(FileTool):
    """Reads the lines of a text file."""

    spec = ToolSpec(
        name="file_read",
        description=(
            f"Read a text file of your workspace, at most {MAX_LINES:,} lines at once. The first line of the result "
            "names the file's digest; file_write and file_edit accept it as `expect`."
        ),
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Relative to the workspace."},
                "offset": {"type": "integer", "minimum": 1, "description": "The first line; 1 if not given."},
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LINES},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
    )

    async def _work(self, folder: WorkspaceFolder, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        path = get_text(arguments, "path")
        first = max(1, get_number(arguments, "offset", 1))
        most = min(MAX_LINES, max(1, get_number(arguments, "limit", MAX_LINES)))
        data = await asyncio.to_thread(folder.read_file, path, max_bytes=MAX_READ_BYTES)
        lines = decode_text(data, path).splitlines()
        if first > max(1, len(lines)):
            raise InvalidRequest(f"{path} has {len(lines):,} lines", remedy="use a smaller offset")
        shown: list[str] = []
        used = 0
        for line in lines[first - 1 : first - 1 + most]:
            line = line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}… ({len(line):,} characters)"
            used += len(line)
            if shown and used > MAX_SHOWN_CHARS:
                break
            shown.append(line)
        last = first - 1 + len(shown)
        more = f"; continue with offset {last + 1}" if last < len(lines) else ""
        head = f"{path} · {len(lines):,} lines, shown {first} to {last}{more} · digest {shorten_digest(data)}"
        return ToolResult(text="\n".join([head, *shown]))


class FileListTool(FileTool):
    """Lists the files below a folder."""

    spec = ToolSpec(
        name="file_list",
        description=f"List the files of your workspace with their sizes, at most {MAX_NAMES:,}. `*` in `glob` matches "
        "any characters.",
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "A folder; the whole workspace if not given."},
                "glob": {"type": "string", "description": "Only paths that match, such as *.py."},
            },
            "additionalProperties": False,
        },
    )

    async def _work(self, folder: WorkspaceFolder, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        path, glob = get_text(arguments, "path", "."), get_text(arguments, "glob", "")
        return ToolResult(text=await asyncio.to_thread(self._list, folder, path, glob))

    def _list(self, folder: WorkspaceFolder, path: str, glob: str) -> str:
        lines: list[str] = []
        for file in folder.list_files(path):
            if glob and (file.is_folder or not does_glob_fit(file.path, glob)):
                continue
            if len(lines) == MAX_NAMES:
                lines.append(f"… more than {MAX_NAMES:,} names; name a folder or a glob")
                break
            lines.append(f"{file.path}/" if file.is_folder else f"{file.path} ({file.size:,} bytes)")
        return "\n".join(lines) or "There is no such file in the workspace."


class FileSearchTool(FileTool):
    """Searches the lines of files with a regular expression, in a process that is ended after a while."""

    deadline = SEARCH_SECONDS + 20.0
    spec = ToolSpec(
        name="file_search",
        description=(
            "Search the lines of the text files in your workspace with a regular expression of Python. Shows at most "
            f"{MAX_HITS} lines."
        ),
        parameters={
            "type": "object",
            "properties": {
                "pattern": {"type": "string"},
                "path": {"type": "string", "description": "A folder; the whole workspace if not given."},
                "glob": {"type": "string", "description": "Only files that match, such as *.py."},
            },
            "required": ["pattern"],
            "additionalProperties": False,
        },
    )

    async def _work(self, folder: WorkspaceFolder, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        pattern = get_text(arguments, "pattern")
        path, glob = get_text(arguments, "path", "."), get_text(arguments, "glob", "")
        texts, is_whole = await asyncio.to_thread(self._read_texts, folder, path, glob)
        found = await self._search(pattern, texts)
        if "error" in found:
            raise InvalidRequest(f"the pattern is no regular expression: {found['error']}", remedy="correct it")
        hits: list[list[Any]] = found["hits"]
        lines = [f"{name}:{number}: {line}" for name, number, line in hits]
        if len(hits) >= MAX_HITS:
            lines.append(f"… more than {MAX_HITS} lines; name a folder, a glob or a longer pattern")
        if not is_whole:
            lines.append(f"… only the first {MAX_SEARCHED_BYTES:,} bytes were searched; name a folder or a glob")
        return ToolResult(text="\n".join(lines) or "Nothing was found.")

    def _read_texts(self, folder: WorkspaceFolder, path: str, glob: str) -> tuple[list[tuple[str, str]], bool]:
        texts: list[tuple[str, str]] = []
        left = MAX_SEARCHED_BYTES
        for file in folder.list_files(path):
            if file.is_folder or file.size > MAX_READ_BYTES or (glob and not does_glob_fit(file.path, glob)):
                continue
            if file.size > left:
                return texts, False
            try:
                data = folder.read_file(file.path, max_bytes=MAX_READ_BYTES)
            except EverholdError:
                continue  # it was replaced or removed meanwhile
            left -= len(data)
            if b"\0" not in data:
                texts.append((file.path, data.decode("utf-8", "replace")))
        return texts, True

    async def _search(self, pattern: str, texts: list[tuple[str, str]]) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(SEARCH_FILE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
            limit=1 << 24,
        )
        given = json.dumps([pattern, MAX_HITS, texts]).encode()
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                out, _ = await process.communicate(given)
        except TimeoutError:
            raise InvalidRequest(
                f"the search took {SEARCH_SECONDS:g} s and was ended",
                remedy="use a simpler pattern, or a glob",
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise InvalidRequest("the search used too much memory and was ended", remedy="use a simpler pattern")
        found: dict[str, Any] = json.loads(out)
        return found


class WritingTool(FileTool):
    """Base of the tools that write. The intent is stored before the file, so a call after a crash knows what is
    done."""

    access = ToolAccess.ACT
    effect = ToolEffect.PROBE
    reach = ToolReach.CHANGE

    async def probe(self, context: ToolContext) -> ToolResult | None:
        intent = await asyncio.to_thread(self._intents.find, context.key)
        if intent is None:
            return None
        folder = WorkspaceFolder(await self._find_workspace(context))
        digest = await asyncio.to_thread(find_digest, folder, intent.path)
        if digest == intent.after:
            return ToolResult(text=f"{intent.path} was written before a restart · digest {digest[:DIGEST_CHARS]}")
        if digest == intent.before:
            return None
        text = f"{intent.path} was changed since by something else. Read it before you write it again."
        return ToolResult(text=text, error=True)

    async def _write(
        self, folder: WorkspaceFolder, path: str, data: bytes, before: bytes | None, context: ToolContext
    ) -> str:
        if len(data) > MAX_WRITE_BYTES:
            raise InvalidRequest(
                f"the text has {len(data):,} bytes, and a file may have {MAX_WRITE_BYTES:,}", remedy="split it"
            )
        digest = compute_file_digest(data)
        intent = WriteIntent(
            path=path,
            before="" if before is None else compute_file_digest(before),
            after=digest,
            at=self._clock.now(),
        )
        await asyncio.to_thread(self._intents.record, context.key, intent)
        await asyncio.to_thread(folder.write_file, path, data)
        return digest[:DIGEST_CHARS]


class FileWriteTool(WritingTool):
    """Writes a whole file."""

    spec = ToolSpec(
        name="file_write",
        description=(
            "Write a whole text file in your workspace. With `expect` (the digest that file_read named; empty: there "
            "must be no such file) it is written only if nobody changed it since."
        ),
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Relative to the workspace. Missing folders are made."},
                "text": {"type": "string", "maxLength": MAX_WRITE_BYTES},
                "expect": {"type": "string"},
            },
            "required": ["path", "text"],
            "additionalProperties": False,
        },
    )

    async def _work(self, folder: WorkspaceFolder, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        path, text, expect = get_text(arguments, "path"), get_any_text(arguments, "text"), arguments.get("expect")
        before = await asyncio.to_thread(read_if_any, folder, path)
        if isinstance(expect, str):
            check_expected(path, before, expect)
        digest = await self._write(folder, path, text.encode("utf-8", "replace"), before, context)
        how = "Wrote" if before is None else "Replaced"
        return ToolResult(text=f"{how} {path}, {len(text):,} characters · digest {digest}")


class FileEditTool(WritingTool):
    """Replaces a text in a file."""

    spec = ToolSpec(
        name="file_edit",
        description=(
            "Replace a text in a file of your workspace. `old` must occur exactly once, or set `all`. `expect` as in "
            "file_write."
        ),
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "old": {"type": "string"},
                "new": {"type": "string"},
                "all": {"type": "boolean"},
                "expect": {"type": "string"},
            },
            "required": ["path", "old", "new"],
            "additionalProperties": False,
        },
    )

    async def _work(self, folder: WorkspaceFolder, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        path, old, new = get_text(arguments, "path"), get_text(arguments, "old"), get_any_text(arguments, "new")
        before = await asyncio.to_thread(read_if_any, folder, path)
        if before is None:
            raise NotFound(f"there is no file {path}", remedy="file_write makes a new one")
        if isinstance(expect := arguments.get("expect"), str):
            check_expected(path, before, expect)
        try:
            text = before.decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"{path} is not a text in UTF-8", remedy="use the shell to change it") from None
        count = text.count(old)
        if not count:
            raise InvalidRequest(f"`old` does not occur in {path}", remedy="read the file, and copy the text exactly")
        if count > 1 and arguments.get("all") is not True:
            raise InvalidRequest(f"`old` occurs {count} times in {path}", remedy="give more of the text, or set `all`")
        if len(text) + count * (len(new) - len(old)) > MAX_WRITE_BYTES:
            raise InvalidRequest(f"{path} would have more than {MAX_WRITE_BYTES:,} characters", remedy="use less text")
        digest = await self._write(folder, path, text.replace(old, new).encode("utf-8", "replace"), before, context)
        return ToolResult(text=f"Replaced {count} of {count} in {path} · digest {digest}")


FILE_TOOLS: Final = (FileReadTool, FileListTool, FileSearchTool, FileWriteTool, FileEditTool)


def build_file_tools(find_workspace: FindWorkspace, intents: WriteIntents, clock: Clock) -> dict[str, Tool]:
    """Return the file tools of an agent, by name."""
    return {kind.spec.name: kind(find_workspace, intents, clock) for kind in FILE_TOOLS}


# -- arguments and texts -----------------------------------------------------------------------------------------------


def get_any_text(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"`{name}` must be a text", remedy=f"call it again with `{name}`")
    return value


def get_text(arguments: dict[str, Any], name: str, default: str | None = None) -> str:
    value = arguments.get(name, default)
    if not isinstance(value, str) or (not value and default is None):
        raise InvalidRequest(f"`{name}` must be a text that is not empty", remedy=f"call it again with `{name}`")
    return value


def get_number(arguments: dict[str, Any], name: str, default: int) -> int:
    value = arguments.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest(f"`{name}` must be a whole number", remedy=f"call it again with another `{name}`")
    return value


def decode_text(data: bytes, path: str) -> str:
    if b"\0" in data:
        raise InvalidRequest(f"{path} is not a text", remedy="use attach or the shell for other files")
    return data.decode("utf-8-sig", "replace")


def shorten_digest(data: bytes) -> str:
    return compute_file_digest(data)[:DIGEST_CHARS]


def read_if_any(folder: WorkspaceFolder, path: str) -> bytes | None:
    try:
        return folder.read_file(path, max_bytes=MAX_READ_BYTES)
    except NotFound:
        return None


def find_digest(folder: WorkspaceFolder, path: str) -> str:
    data = read_if_any(folder, path)
    return "" if data is None else compute_file_digest(data)


def check_expected(path: str, before: bytes | None, expect: str) -> None:
    """Raise InvalidRequest if a file is not as the model saw it."""
    digest = "" if before is None else compute_file_digest(before)
    fits = digest.startswith(expect) if len(expect) >= DIGEST_CHARS else digest == expect
    if not fits:
        state = "does not exist" if before is None else f"has the digest {digest[:DIGEST_CHARS]}"
        raise InvalidRequest(f"{path} changed since you read it: it {state}", remedy="read it again")


def does_glob_fit(path: str, glob: str) -> bool:
    """Return whether a path, or its last part, fits a pattern."""
    return does_pattern_fit(glob, path) or does_pattern_fit(glob, path.rpartition("/")[2])
