"""Tools of MCP servers: one connection per server for all agents, through the official SDK (the extra `mcp`).

A tool is called `<server>_<tool>`, always: the name then neither changes nor clashes when another server comes along.
A server that does not start, dies, hangs or talks nonsense costs its own tools and nothing else. Whoever calls one gets
an error as the result; the server is started again, after a wait that grows.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from everhold.config.problems import Problem
from everhold.config.settings import AgentSettings, McpSettings
from everhold.core.attachments import attachment, label
from everhold.errors import InDoubt, Misuse, Transient
from everhold.infra.extras import describe_install
from everhold.ports.log import Log
from everhold.ports.model import ToolSpec
from everhold.ports.tool import Effect, File, Result, Tool, ToolContext
from everhold.secret import Secret
from everhold.tools.attach import shown
from everhold.tools.mcp_program import Program, usual

if TYPE_CHECKING:
    import mcp_types as types
    from mcp import Client

PREFIX: Final = "mcp:"
START_SECONDS: Final = 30.0
"""For a server to say what it can do. The first start of one that is downloaded takes longer; the next finds it."""
ANSWER_SECONDS: Final = 10.0
"""For a server in doubt to show that it is alive."""
COMING_SECONDS: Final = 15.0
"""How long a turn waits for a server that is just being started."""
LONGEST_RESULT: Final = 100_000
"""Characters of a result; the rest is cut, and the model is told so."""
LARGEST_FILE: Final = 20_000_000
"""Bytes of a file in a result; a larger one is named and left."""
LONGEST_DESCRIPTION: Final = 4_000
MOST_TOOLS: Final = 200
KEY: Final = "everhold/key"
"""Where a server that can tell repeats finds what to tell them by: in the call's `_meta`."""
REMEDY: Final = describe_install("mcp")

Keep: TypeAlias = Callable[[str, Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]]
"""Runs something for ever: starts it again, after a wait, whenever it falls."""


class Servers:
    """Every tool server that an agent uses."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        directory: PurePath,
        log: Log,
        keep: Keep,
        changed: Callable[[str], None],
    ) -> None:
        """`changed` hears which server offers something new; `directory` is where programs are started."""
        self._environ = environ
        self._directory = directory
        self._log = log
        self._keep = keep
        self._changed = changed
        self._servers: dict[str, Server] = {}
        self._tasks: dict[Server, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def adopt(self, servers: Mapping[str, McpSettings], agents: Iterable[AgentSettings]) -> None:
        """Run what these agents use, as it is configured now; let go of what nobody uses any more."""
        used = {name for agent in agents for name in servers_of(agent)}
        wanted = {name: servers[name] for name in sorted(used) if name in servers and servers[name].ready}
        for name, server in list(self._servers.items()):
            if wanted.get(name) != server.settings:
                del self._servers[name]
                self._let_go(self._tasks.pop(server))
                self._changed(name)
        for name, settings in wanted.items():
            if name not in self._servers:
                server = Server(
                    name,
                    settings,
                    environ=self._environ,
                    directory=self._directory,
                    log=self._log.bind(mcp=name),
                    changed=lambda name=name: self._changed(name),  # type: ignore[misc]
                )
                self._servers[name] = server
                self._tasks[server] = asyncio.create_task(self._keep(f"mcp/{name}", server.run), name=f"mcp {name}")

    def tools(self, agent: AgentSettings) -> dict[str, Tool]:
        """What the servers of this agent are known to offer. A server that fell keeps its tools: they may be back."""
        found: dict[str, Tool] = {}
        for name in servers_of(agent):
            server = self._servers.get(name)
            for offer in server.offers if server else ():
                tool = McpTool(self, server=name, offer=offer)
                found[tool.spec.name] = tool
        return found

    def coming(self, agent: AgentSettings) -> Callable[[], Awaitable[None]] | None:
        """Something to wait for if a server of this agent is being started for the first time."""
        new = [self._servers[name] for name in servers_of(agent) if name in self._servers]
        new = [server for server in new if not server.tried.is_set()]
        if not new:
            return None

        async def wait() -> None:
            for server in new:
                await server.tried.wait()

        return wait

    def problems(self) -> list[Problem]:
        """What does not work now, and why."""
        return [
            Problem(
                f"is not working: {server.reason}",
                server.remedy or "it is tried again and again; `everhold logs` shows more",
                path=("mcp", name),
                fatal=False,
                disables=f"mcp.{name}",
            )
            for name, server in self._servers.items()
            if server.reason
        ]

    def server(self, name: str) -> Server:
        server = self._servers.get(name)
        if server is None:
            raise Misuse(f"the tool server {name} is not configured any more: nothing was done")
        return server

    async def close(self) -> None:
        """End every server, and wait until they have ended."""
        for task in self._tasks.values():
            self._let_go(task)
        self._tasks.clear()
        self._servers.clear()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _let_go(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


def servers_of(agent: AgentSettings) -> tuple[str, ...]:
    """The tool servers an agent names."""
    return tuple(tool.removeprefix(PREFIX) for tool in agent.tools if tool.startswith(PREFIX))


class Offer:
    """One tool as its server describes it."""

    def __init__(self, server: str, settings: McpSettings, tool: types.Tool) -> None:
        self.name = tool.name
        self.deadline = settings.deadline_seconds
        declared = Effect(settings.effects.get(tool.name, Effect.ONCE))
        # nobody can ask an MCP server whether something was done
        self.effect: Effect = Effect.ONCE if declared is Effect.PROBE else declared
        self.spec = ToolSpec(
            name=f"{server}_{tool.name}",
            description=(tool.description or tool.title or "")[:LONGEST_DESCRIPTION],
            parameters=dict(tool.input_schema),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Offer) and (self.spec, self.effect) == (other.spec, other.effect)

    __hash__ = None  # type: ignore[assignment]


class Server:
    """One server: its connection while there is one, what it offers, and what is wrong with it."""

    def __init__(
        self,
        name: str,
        settings: McpSettings,
        *,
        environ: Mapping[str, str],
        directory: PurePath,
        log: Log,
        changed: Callable[[], None],
    ) -> None:
        self.name = name
        self.settings = settings
        self.offers: tuple[Offer, ...] = ()
        self.reason = ""
        """Why it does not work, empty while it does or is on its way."""
        self.remedy = ""
        self.tried = asyncio.Event()
        """It has been up, or failed to be."""
        self.starts = 0
        self.pid = 0
        self._environ = environ
        self._directory = directory
        self._log = log
        self._changed = changed
        self._client: Client | None = None
        self._up = asyncio.Event()
        self._bell = asyncio.Event()

    async def run(self) -> None:
        """Be connected until that ends; then raise why. Whoever keeps it starts it again."""
        self.starts += 1
        program: list[Program] = []
        # a task of its own: the SDK's cancel scopes end with it, and what it raises is looked at, not let through
        work = asyncio.create_task(self._run(program), name=f"mcp {self.name}")
        try:
            await asyncio.wait({work})
        finally:
            work.cancel()
            await asyncio.wait({work})
            self._client = None
            self._up.clear()
            if not work.cancelled() and (error := work.exception()) is not None:
                self.reason = self._hide((program[0].reason if program else "") or _why(error))
            if not self.tried.is_set():
                self.tried.set()
                self._changed()
        raise Transient(f"tool server {self.name}: {self.reason or 'it is gone'}", remedy=self.remedy)

    async def client(self) -> Client:
        """The connection. Raises Transient, before anything was done, if there is none."""
        if self._client is None and not self.reason:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COMING_SECONDS):
                    await self._up.wait()
        if self._client is None:
            reason = self.reason or "it is still being started"
            raise Transient(f"the tool server {self.name} is not working now ({reason}): nothing was done")
        return self._client

    def doubt(self) -> None:
        """Something took too long, or broke: is it still alive?"""
        self._bell.set()

    def shown(self, result: types.CallToolResult) -> Result:
        files = files_of(result)
        return Result(text=cut(self._hide(text_of(result))), error=bool(result.is_error), files=files)

    def hide(self, text: str) -> str:
        return self._hide(text)

    # -- a connection ------------------------------------------------------------------------------------------------

    async def _run(self, program: list[Program]) -> None:
        await asyncio.to_thread(self._import)  # seconds of work, in which others want to be answered
        limit = asyncio.timeout(START_SECONDS)
        try:
            async with limit, self._connected(program) as client:
                await self._look(client)
                limit.reschedule(None)
                self._client, self.reason = client, ""
                self._log.info("mcp.up", tools=len(self.offers), protocol=client.protocol_version)
                self._up.set()
                self.tried.set()
                await self._watch(client, program)
        except TimeoutError:
            raise Transient(f"it said nothing of use within {START_SECONDS:g} s") from None

    def _import(self) -> None:
        try:
            import mcp  # noqa: F401  # it is an extra, and not cheap
        except ImportError as error:
            self.remedy = REMEDY
            raise Misuse(f"the package for MCP servers cannot be imported: {error}", remedy=REMEDY) from None
        self.remedy = ""

    @contextlib.asynccontextmanager
    async def _connected(self, program: list[Program]) -> AsyncIterator[Client]:
        import httpx2
        import mcp_types as types
        from mcp import Client
        from mcp.client.streamable_http import streamable_http_client

        from everhold import __version__

        about = types.Implementation(name="everhold", version=__version__)
        settings = self.settings
        if settings.url is None:
            env = usual(self._environ) | {name: value.reveal() for name, value in settings.variables.items()}
            started = Program(settings.command, env=env, directory=self._directory, log=self._log)
            program.append(started)
            async with Client(started.running(), client_info=about, message_handler=self._told) as client:
                self.pid = started.pid
                yield client
            return
        headers = {"authorization": f"Bearer {settings.token.reveal().strip()}"} if settings.token else {}
        timeout = httpx2.Timeout(ANSWER_SECONDS, read=settings.deadline_seconds + ANSWER_SECONDS)
        async with httpx2.AsyncClient(headers=headers, timeout=timeout) as http:
            over = streamable_http_client(settings.url, http_client=http)
            async with Client(over, client_info=about, message_handler=self._told) as client:
                yield client

    async def _watch(self, client: Client, program: list[Program]) -> None:
        """Until it is gone. In doubt it is asked for its tools: an answer is a sign of life, and may be news."""
        ended = asyncio.create_task(program[0].ended.wait()) if program else None
        if ended is not None:
            ended.add_done_callback(lambda _: self._bell.set())
        try:
            while True:
                await self._bell.wait()
                self._bell.clear()
                if ended is not None and ended.done():
                    raise Transient(program[0].reason or "it is gone")
                try:
                    async with asyncio.timeout(ANSWER_SECONDS):
                        await self._look(client)
                except TimeoutError:
                    raise Transient("it does not answer any more") from None
        finally:
            if ended is not None:
                ended.cancel()

    async def _look(self, client: Client) -> None:
        """What does it offer?"""
        offers: list[Offer] = []
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor, cache_mode="bypass")
            offers += [Offer(self.name, self.settings, tool) for tool in page.tools]
            cursor = page.next_cursor
            if not cursor or not page.tools or len(offers) > MOST_TOOLS:
                break
        if len(offers) > MOST_TOOLS:
            self._log.warning("mcp.too_many_tools", offered=len(offers), used=MOST_TOOLS)
        before, self.offers = self.offers, tuple(offers[:MOST_TOOLS])
        if before != self.offers:
            self._changed()

    async def _told(self, message: object) -> None:
        """Something the server says unasked: that its tools changed, for example."""
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self._bell.set()

    def _hide(self, text: str) -> str:
        """A server may repeat what it was given: errors love to."""
        for secret in (*self.settings.variables.values(), self.settings.token or Secret("")):
            text = secret.hide(text)
        return text


class McpTool:
    """A server's tool as a turn uses it. Finds the server when it runs: it may have been started anew since."""

    def __init__(self, servers: Servers, *, server: str, offer: Offer) -> None:
        self._servers = servers
        self._server = server
        self._name = offer.name
        self.spec = offer.spec
        self.effect: Effect = offer.effect
        self.deadline = offer.deadline

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        server = self._servers.server(self._server)
        client = await server.client()
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        meta: Any = {KEY: context.key}
        try:
            result = await client.call_tool(self._name, arguments, meta=meta)
        except asyncio.CancelledError:  # it took too long, or is not wanted any more
            server.doubt()
            raise
        except MCPError as error:
            if error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                server.doubt()
                raise InDoubt(f"the tool server {self._server} fell during the call") from None
            return Result(text=cut(server.hide(f"Error: {error.message}")), error=True)
        except OSError as error:
            server.doubt()
            raise InDoubt(f"the connection to the tool server {self._server} broke: {error}") from None
        return server.shown(result)

    async def probe(self, context: ToolContext) -> Result | None:
        return None


# -- results -----------------------------------------------------------------------------------------------------------


def text_of(result: types.CallToolResult) -> str:
    """Everything in a result that can be read; what cannot is named."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(parts) or "(nothing)"


def files_of(result: types.CallToolResult) -> tuple[File, ...]:
    """Everything in a result that is a file. None that is too large, or no file after all."""
    return tuple(file for block in result.content if (file := _file(block)) is not None)


def _part(block: types.ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "resource_link":
            return f"[{block.name}: {block.uri}]"
        case "resource" if isinstance(text := getattr(block.resource, "text", None), str):
            return text
        case _:
            file = _file(block)
            if file is None:
                return f"[{_media(block) or 'something'}, which is too large to keep or cannot be read]"
            return f"[{shown(attachment(file.data, name=file.name, media=file.media))}: `attach` sends it]"


def _file(block: types.ContentBlock) -> File | None:
    name, data = "", ""
    match block.type:
        case "image" | "audio":
            name, data = str(block.type), block.data
        case "resource":
            name, data = label(str(block.resource.uri)), getattr(block.resource, "blob", None) or ""
        case _:
            pass
    if not data or len(data) > LARGEST_FILE * 4 // 3 + 4:
        return None
    try:
        found = base64.b64decode(data, validate=True)
    except ValueError:
        return None
    media = _media(block)
    if "." not in name:
        name += mimetypes.guess_extension(media) or ""
    return File(data=found, name=name, media=media)


def _media(block: types.ContentBlock) -> str:
    about = block.resource if block.type == "resource" else block
    return getattr(about, "mime_type", None) or ""


def cut(text: str) -> str:
    """At most LONGEST_RESULT characters, saying what is missing."""
    if len(text) <= LONGEST_RESULT:
        return text
    left = len(text) - LONGEST_RESULT
    return (
        f"{text[:LONGEST_RESULT]}\n\n[cut: {left:,} of {len(text):,} characters are missing here. "
        "Ask for less at a time to see them.]"
    )


def _why(error: BaseException) -> str:
    """The first thing that went wrong, in a line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, FileNotFoundError):
        return f"there is no program {error.filename!r}"
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:300]
