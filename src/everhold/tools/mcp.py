"""Tools of MCP servers: one connection per server for all agents, through the official SDK (the extra `mcp`).

A tool is always called `<server>_<tool>`. If two servers of an agent get the same name that way, or a built-in tool or
a memory has it, the tool is not offered, and `status` says why. Neither is a tool that is too large, or that changed
after the owner has seen it (core/tool_pins.py). A server is an untrusted program (infra/child_process.py). If it
does not start, dies, hangs or sends invalid data, only its own tools are affected. A call then returns an error as its
result, and the server is started again after a wait that grows.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from everhold.config.errors import ConfigProblem
from everhold.config.settings import AgentSettings, McpSettings
from everhold.core.attachments import build_attachment, sanitize_file_name
from everhold.core.tool_pins import (
    MAX_DESCRIPTION_CHARS,
    MAX_TOOLS,
    RESERVED_TOOL_NAMES,
    ToolPins,
    compute_entry_digest,
    find_clashes,
    find_unfit_tools,
    measure_tool,
)
from everhold.errors import InDoubt, InvalidRequest, Transient
from everhold.infra.child_process import (
    NO_SANDBOX_MEANING,
    ChildLimits,
    ChildPolicy,
    ChildProcesses,
    SandboxKind,
    select_environment,
)
from everhold.infra.extras import describe_install
from everhold.infra.secret import SecretString
from everhold.ports.log import EventLogger
from everhold.ports.model import ToolSpec
from everhold.ports.tool import ToolContext, ToolEffect, ToolFile, ToolResult
from everhold.tools.attach import format_file
from everhold.tools.mcp_program import McpProgram

if TYPE_CHECKING:
    import mcp_types as types
    from mcp import Client

    from everhold.tools.mcp_http import McpAnswers

MCP_PREFIX: Final = "mcp:"
START_SECONDS: Final = 30.0
"""Time limit for a server to list its tools. The first start of a downloaded server takes longer; the next start is
fast."""
LIVENESS_SECONDS: Final = 10.0
"""Time limit for a server that may hang to answer."""
STARTUP_WAIT_SECONDS: Final = 15.0
"""How long a turn waits for a server that is starting."""
MAX_RESULT_CHARS: Final = 100_000
"""Maximum characters of a result. The rest is cut off, and the result says so."""
MAX_FILE_BYTES: Final = 20_000_000
"""Maximum bytes of a file in a result. A larger file is named and not stored."""
MAX_FILES: Final = 20
"""Maximum files of a result. Further ones are named and not stored."""
MAX_LIST_BYTES: Final = 16 * 1024 * 1024
"""After this many bytes of descriptions and parameters no further tools are listed."""
SHORTEST_RELIST_SECONDS: Final = 0.5
"""How long a server that announced other tools waits for the next list. Each further announcement doubles it."""
LONGEST_RELIST_SECONDS: Final = 300.0
"""The longest such wait. A call of one of its tools, or so long a time without an announcement, ends it."""
MAX_SHOWN_CHARS: Final = 100
"""Maximum characters of an unfit name in a message."""
CALL_KEY_META: Final = "everhold/key"
"""The key of the idempotency key in the call's `_meta`, for servers that recognise repeats."""
REMEDY: Final = describe_install("mcp")

KeepRunning: TypeAlias = Callable[[str, Callable[[], Awaitable[None]]], Coroutine[Any, Any, None]]
"""Keeps a task running: starts it again, after a wait, whenever it ends."""
ReviewTools: TypeAlias = Callable[[str, str, Mapping[str, ToolSpec]], Awaitable[ToolPins]]
"""(server, digest of its entry, its tools) -> what the owner has seen of them."""


def _list_reserved_names(agent: AgentSettings) -> Collection[str]:
    return RESERVED_TOOL_NAMES


class McpServers:
    """Every tool server that an agent uses."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        directory: Path,
        children: ChildProcesses,
        log: EventLogger,
        keep: KeepRunning,
        changed: Callable[[str], None],
        review: ReviewTools,
        list_taken: Callable[[AgentSettings], Collection[str]] = _list_reserved_names,
    ) -> None:
        """`changed` is called with the name of a server whose tools changed. Each program gets its own directory in
        `directory`. `list_taken` returns the names that other tools of an agent have.
        """
        self._environ = environ
        self._directory = directory
        self._children = children
        self._log = log
        self._keep_running = keep
        self._on_changed = changed
        self._review = review
        self._list_taken = list_taken
        self._agents: tuple[AgentSettings, ...] = ()
        self._servers: dict[str, McpServer] = {}
        self._tasks: dict[McpServer, asyncio.Task[None]] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    def apply_settings(self, servers: Mapping[str, McpSettings], agents: Iterable[AgentSettings]) -> None:
        """Run the servers that these agents use, as configured now, and stop the others."""
        self._agents = tuple(agents)
        used = {name for agent in self._agents for name in list_server_names(agent)}
        wanted = {name: servers[name] for name in sorted(used) if name in servers and servers[name].is_ready}
        for name, server in list(self._servers.items()):
            if wanted.get(name) != server.settings:
                del self._servers[name]
                self._cancel_task(self._tasks.pop(server))
                self._on_changed(name)
        for name, settings in wanted.items():
            if name not in self._servers:
                server = McpServer(
                    name,
                    settings,
                    environ=self._environ,
                    directory=self._directory / name,
                    children=self._children,
                    log=self._log.bind(mcp=name),
                    changed=lambda name=name: self._on_changed(name),  # type: ignore[misc]
                    review=self._review,
                )
                self._servers[name] = server
                self._tasks[server] = asyncio.create_task(
                    self._keep_running(f"mcp/{name}", server.run), name=f"mcp {name}"
                )

    def get_tools(self, agent: AgentSettings) -> dict[str, McpTool]:
        """Return the known tools of this agent's servers. A server that failed keeps its tools, because it may
        recover."""
        clashes = self._find_clashes(agent)
        found: dict[str, McpTool] = {}
        for name in list_server_names(agent):
            server = self._servers.get(name)
            for offer in server.offers if server else ():
                if (name, offer.spec.name) not in clashes:
                    found[offer.spec.name] = McpTool(self, server=name, offer=offer)
        return found

    def _find_clashes(self, agent: AgentSettings) -> dict[tuple[str, str], str]:
        servers = {name: self._servers[name] for name in list_server_names(agent) if name in self._servers}
        offered = {name: [offer.spec.name for offer in server.offers] for name, server in servers.items()}
        return find_clashes(offered, self._list_taken(agent))

    def recheck(self, name: str) -> None:
        """List the tools of a server again, because the owner confirmed them."""
        if name in self._servers:
            self._servers[name].request_liveness_check()

    def get_startup_wait(self, agent: AgentSettings) -> Callable[[], Awaitable[None]] | None:
        """Return an awaitable if a server of this agent is starting for the first time."""
        new = [self._servers[name] for name in list_server_names(agent) if name in self._servers]
        new = [server for server in new if not server.first_attempt_done.is_set()]
        if not new:
            return None

        async def wait() -> None:
            for server in new:
                await server.first_attempt_done.wait()

        return wait

    def list_problems(self) -> list[ConfigProblem]:
        """Return the servers that do not work now, the tools that are not offered, and why."""
        return [
            *(problem for server in self._servers.values() for problem in server.list_problems()),
            *self._list_clash_problems(),
        ]

    def list_risks(self) -> list[ConfigProblem]:
        """Return what the settings of the servers allow that the owner should know."""
        return [
            ConfigProblem(
                NO_SANDBOX_MEANING,
                "remove `sandbox: none` if the server works without it",
                path=("mcp", name),
                fatal=False,
            )
            for name, server in self._servers.items()
            if server.settings.command and server.settings.sandbox == "none"
        ]

    def _list_clash_problems(self) -> list[ConfigProblem]:
        found: dict[tuple[str, str], str] = {}
        for agent in self._agents:
            found |= self._find_clashes(agent)
        return [
            _build_problem(
                server,
                f"its tool {name} is not offered, because {other} has a tool of this name, too",
                "give the server another name under mcp, or take one of them out of the agent's tools",
            )
            for (server, name), other in found.items()
        ]

    def get_server(self, name: str) -> McpServer:
        server = self._servers.get(name)
        if server is None:
            raise InvalidRequest(f"the tool server {name} is no longer configured: nothing was done")
        return server

    async def close(self) -> None:
        """Stop every server, and wait until all have ended."""
        for task in self._tasks.values():
            self._cancel_task(task)
        self._tasks.clear()
        self._servers.clear()
        await asyncio.gather(*self._stopping, return_exceptions=True)

    def _cancel_task(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)


def _build_problem(server: str, message: str, remedy: str) -> ConfigProblem:
    return ConfigProblem(message, remedy, path=("mcp", server), fatal=False, disables=f"mcp.{server}")


def list_server_names(agent: AgentSettings) -> tuple[str, ...]:
    """Return the tool servers that an agent names."""
    return tuple(tool.removeprefix(MCP_PREFIX) for tool in agent.tools if tool.startswith(MCP_PREFIX))


class McpToolOffer:
    """One tool as its server describes it."""

    def __init__(
        self, server: str, settings: McpSettings, tool: types.Tool, *, redact: Callable[[str], str] = str
    ) -> None:
        """`redact` removes the server's secrets, because a description is stored and sent to models."""
        self.name = tool.name
        self.deadline = settings.deadline_seconds
        declared = ToolEffect(settings.effects.get(tool.name, ToolEffect.ONCE))
        # an MCP server cannot be asked whether a call was done
        self.effect: ToolEffect = ToolEffect.ONCE if declared is ToolEffect.PROBE else declared
        self.spec = ToolSpec(
            name=f"{server}_{tool.name}",
            description=redact(tool.description or tool.title or "")[:MAX_DESCRIPTION_CHARS],
            parameters=json.loads(redact(json.dumps(tool.input_schema, ensure_ascii=False))),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, McpToolOffer) and (self.spec, self.effect) == (other.spec, other.effect)

    __hash__ = None  # type: ignore[assignment]


class McpServer:
    """One server: its connection if there is one, its tools, and its failure."""

    def __init__(
        self,
        name: str,
        settings: McpSettings,
        *,
        environ: Mapping[str, str],
        directory: Path,
        children: ChildProcesses,
        log: EventLogger,
        changed: Callable[[], None],
        review: ReviewTools,
    ) -> None:
        self.name = name
        self.settings = settings
        self.offers: tuple[McpToolOffer, ...] = ()
        self.unfit: Mapping[str, str] = {}
        """The tools that exceed a limit, and which."""
        self.pins: ToolPins | None = None
        """What the owner has seen of its tools, and what waits for a confirmation."""
        self.reason = ""
        """Why it does not work; empty while it works or is starting."""
        self.remedy = ""
        self.first_attempt_done = asyncio.Event()
        """Set once it has started or failed to start."""
        self.starts = 0
        self.pid = 0
        self._environ = environ
        self._directory = directory
        self._children = children
        self._log = log
        self._on_changed = changed
        self._review = review
        self._client: Client | None = None
        self._connected_event = asyncio.Event()
        self._check_requested = asyncio.Event()
        self._change_announced = asyncio.Event()
        self._called = asyncio.Event()
        """One of its tools was called since the last announcement."""
        self._answers: McpAnswers | None = None
        """What a server at a URL sends."""
        self._relist_seconds = 0.0
        """How long the next announcement waits after the last one; 0 if it need not wait."""

    async def run(self) -> None:
        """Stay connected until the connection ends, then raise the reason. The caller starts it again."""
        self.starts += 1
        links: list[McpProgram | McpAnswers] = []
        # a separate task, because the SDK's cancel scopes end with it and its errors have to be inspected
        work = asyncio.create_task(self._run_connection(links), name=f"mcp {self.name}")
        try:
            await asyncio.wait({work})
        finally:
            work.cancel()
            await asyncio.wait({work})
            self._client = self._answers = None
            self._connected_event.clear()
            self._change_announced.clear()
            if not work.cancelled() and (error := work.exception()) is not None:
                self.remedy = error.remedy if isinstance(error, InvalidRequest) else self._explain_sandbox()
                self.reason = self._redact_text((links[0].reason if links else "") or _describe_error(error))
            if not self.first_attempt_done.is_set():
                self.first_attempt_done.set()
                self._on_changed()
        raise Transient(f"tool server {self.name}: {self.reason or 'it is gone'}", remedy=self.remedy)

    async def get_client(self) -> Client:
        """Return the connection. Raises Transient if there is none; nothing was done then."""
        if self._client is None and not self.reason:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STARTUP_WAIT_SECONDS):
                    await self._connected_event.wait()
        if self._client is None:
            reason = self.reason or "it is still starting"
            raise Transient(f"the tool server {self.name} is not working now ({reason}): nothing was done")
        return self._client

    def list_problems(self) -> list[ConfigProblem]:
        """Return why it, or some of its tools, cannot be used."""
        found = []
        if self.reason:
            remedy = self.remedy or "everhold tries again; `everhold logs` shows more"
            found.append(_build_problem(self.name, f"is not working: {self.reason}", remedy))
        found += [
            _build_problem(
                self.name,
                f"its tool {name[:MAX_SHOWN_CHARS]} is not offered: {reason}",
                "ask the server's author for less",
            )
            for name, reason in self.unfit.items()
        ]
        if self.pins is not None and self.pins.waiting:
            names, digest = ", ".join(sorted(self.pins.waiting)), self.pins.waiting_digest
            found.append(
                _build_problem(
                    self.name,
                    f"its tools changed since you saw them; these are not offered: {names}",
                    f"look at them with `everhold tools`, then: everhold tools confirm {self.name} {digest}",
                )
            )
        return found

    def request_liveness_check(self) -> None:
        """Request a liveness check after a timeout or an error."""
        self._check_requested.set()

    def note_call(self) -> None:
        """Let the server send more, and announce other tools at once, because we ask it for something."""
        self._called.set()
        if self._answers is not None:
            self._answers.allow_more()

    def convert_result(self, result: types.CallToolResult) -> ToolResult:
        files = extract_files(result)
        return ToolResult(
            text=truncate_text(self._redact_text(extract_text(result))), error=bool(result.is_error), files=files
        )

    def redact_text(self, text: str) -> str:
        return self._redact_text(text)

    # -- a connection ------------------------------------------------------------------------------------------------

    async def _run_connection(self, links: list[McpProgram | McpAnswers]) -> None:
        await asyncio.to_thread(self._import_sdk)  # this takes seconds, in which other calls must be served
        limit = asyncio.timeout(START_SECONDS)
        try:
            async with limit, self._connect(links) as client:
                await self._refresh_offers(client)
                limit.reschedule(None)
                self._client, self.reason = client, ""
                self._log.info("mcp.connected", tools=len(self.offers), protocol=client.protocol_version)
                self._connected_event.set()
                self.first_attempt_done.set()
                await self._watch_connection(client, links)
        except TimeoutError:
            raise Transient(f"it did not answer within {START_SECONDS:g} s") from None

    def _import_sdk(self) -> None:
        try:
            import mcp  # noqa: F401  # it is an extra, and not cheap
        except ImportError as error:
            raise InvalidRequest(f"the package for MCP servers cannot be imported: {error}", remedy=REMEDY) from None

    def _explain_sandbox(self) -> str:
        """Return what a program that fails in its sandbox may lack; nothing without a sandbox."""
        if not self.settings.command or self.settings.sandbox == "none":
            return ""
        return (
            "everhold tries again. The program runs in a sandbox: if it lacks a file or the network, see read_paths, "
            "write_paths and network in the configuration"
        )

    @contextlib.asynccontextmanager
    async def _connect(self, links: list[McpProgram | McpAnswers]) -> AsyncIterator[Client]:
        import httpx2
        import mcp_types as types
        from mcp import Client
        from mcp.client.streamable_http import streamable_http_client

        from everhold import __version__
        from everhold.tools.mcp_http import McpAnswers

        about = types.Implementation(name="everhold", version=__version__)
        settings = self.settings
        if settings.url is None:
            env = select_environment(self._environ) | {
                name: value.reveal() for name, value in settings.variables.items()
            }
            started = McpProgram(
                settings.command,
                env=env,
                directory=self._directory,
                policy=build_policy(settings),
                children=self._children,
                log=self._log,
            )
            links.append(started)
            async with Client(started.run(), client_info=about, message_handler=self._on_message) as client:
                self.pid = started.pid
                yield client
            return
        headers = {"authorization": f"Bearer {settings.token.reveal().strip()}"} if settings.token else {}
        timeout = httpx2.Timeout(LIVENESS_SECONDS, read=settings.deadline_seconds + LIVENESS_SECONDS)
        answers = McpAnswers(most_seconds=settings.deadline_seconds + LIVENESS_SECONDS)
        links.append(answers)
        self._answers = answers
        async with httpx2.AsyncClient(headers=headers, timeout=timeout, event_hooks=answers.hooks) as http:
            over = streamable_http_client(settings.url, http_client=http)
            async with Client(over, client_info=about, message_handler=self._on_message) as client:
                yield client

    async def _watch_connection(self, client: Client, links: list[McpProgram | McpAnswers]) -> None:
        """Wait until the server is gone. A liveness check lists its tools, so it also finds changes."""
        ended = asyncio.create_task(links[0].ended.wait()) if links else None
        if ended is not None:
            ended.add_done_callback(lambda _: self._check_requested.set())
        announcements = asyncio.create_task(self._follow_announcements())
        try:
            while True:
                await self._check_requested.wait()
                self._check_requested.clear()
                if ended is not None and ended.done():
                    raise Transient(links[0].reason or "it is gone")
                try:
                    async with asyncio.timeout(LIVENESS_SECONDS):
                        await self._refresh_offers(client)
                except TimeoutError:
                    raise Transient("it no longer answers") from None
        finally:
            announcements.cancel()
            if ended is not None:
                ended.cancel()

    async def _follow_announcements(self) -> None:
        """Check the server when it announces other tools. A server may announce without end, and each list costs a
        commit, so each announcement waits longer than the one before."""
        time = asyncio.get_running_loop().time
        last = -LONGEST_RELIST_SECONDS
        while True:
            await self._change_announced.wait()
            wait = last + self._relist_seconds - time()
            if wait > 0 and time() - last < LONGEST_RELIST_SECONDS:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._called.wait()
            if self._called.is_set() or time() - last >= LONGEST_RELIST_SECONDS:
                self._relist_seconds = 0.0
            self._called.clear()
            self._change_announced.clear()
            self._check_requested.set()
            last = time()
            self._relist_seconds = min(2 * self._relist_seconds or SHORTEST_RELIST_SECONDS, LONGEST_RELIST_SECONDS)

    async def _refresh_offers(self, client: Client) -> None:
        """List the server's tools, and offer those that are within the limits and as the owner has seen them."""
        offers = await self._list_offers(client)
        self.unfit = find_unfit_tools([offer.spec for offer in offers])
        if self.unfit:
            self._log.warning("mcp.tools_dropped", offered=len(offers), used=len(offers) - len(self.unfit))
        fit = {offer.spec.name: offer for offer in offers if offer.spec.name not in self.unfit}
        entry = compute_entry_digest(self.settings.command, self.settings.url or "")
        pins = await self._review(self.name, entry, {name: offer.spec for name, offer in fit.items()})
        before = self.offers
        self.pins = pins
        self.offers = tuple(offer for name, offer in fit.items() if name not in pins.waiting)
        if before != self.offers:
            self._on_changed()

    async def _list_offers(self, client: Client) -> list[McpToolOffer]:
        """Return what the server offers, until it is too much. The server decides how many pages there are, and how
        large each is."""
        offers: list[McpToolOffer] = []
        size = 0
        cursor: str | None = None
        while True:
            if self._answers is not None:
                self._answers.allow_more()
            page = await client.list_tools(cursor=cursor, cache_mode="bypass")
            for tool in page.tools[: MAX_TOOLS + 1 - len(offers)]:
                offers.append(McpToolOffer(self.name, self.settings, tool, redact=self._redact_text))
                size += measure_tool(offers[-1].spec)
            cursor = page.next_cursor
            if not cursor or not page.tools or len(offers) > MAX_TOOLS or size > MAX_LIST_BYTES:
                return offers

    async def _on_message(self, message: object) -> None:
        """Handle a notification, for example that the tools changed."""
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self._change_announced.set()

    def _redact_text(self, text: str) -> str:
        """Return the text without secrets, because a server's errors may contain what it was sent."""
        for secret in (*self.settings.variables.values(), self.settings.token or SecretString("")):
            text = secret.mask_in(text)
        return text


def build_policy(settings: McpSettings) -> ChildPolicy:
    return ChildPolicy(
        sandbox=SandboxKind(settings.sandbox),
        network=settings.network,
        read_paths=tuple(Path(path) for path in settings.read_paths),
        write_paths=tuple(Path(path) for path in settings.write_paths),
        limits=ChildLimits(
            memory_bytes=settings.max_memory_bytes,
            processes=settings.max_processes,
            cpu_seconds=settings.max_cpu_seconds,
        ),
    )


class McpTool:
    """A server's tool in a turn. It looks the server up when it runs, because the server may have been restarted."""

    def __init__(self, servers: McpServers, *, server: str, offer: McpToolOffer) -> None:
        self._servers = servers
        self.server = server
        self._name = offer.name
        self.spec = offer.spec
        self.effect: ToolEffect = offer.effect
        self.deadline = offer.deadline

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        server = self._servers.get_server(self.server)
        client = await server.get_client()
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        meta: Any = {CALL_KEY_META: context.key}
        server.note_call()
        try:
            result = await client.call_tool(self._name, arguments, meta=meta)
        except asyncio.CancelledError:  # it took too long, or was cancelled
            server.request_liveness_check()
            raise
        except MCPError as error:
            if error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                server.request_liveness_check()
                raise InDoubt(f"the tool server {self.server} failed during the call") from None
            return ToolResult(text=truncate_text(server.redact_text(f"Error: {error.message}")), error=True)
        except OSError as error:
            server.request_liveness_check()
            raise InDoubt(f"the connection to the tool server {self.server} broke: {error}") from None
        return server.convert_result(result)

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None


# -- results -----------------------------------------------------------------------------------------------------------


def extract_text(result: types.CallToolResult) -> str:
    """Return the text of a result. Content without text is named."""
    parts = [_describe_block(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(parts) or "(nothing)"


def extract_files(result: types.CallToolResult) -> tuple[ToolFile, ...]:
    """Return the files of a result, without those that are too large or invalid."""
    files = (file for block in result.content if (file := _extract_file(block)) is not None)
    return tuple(itertools.islice(files, MAX_FILES))


def _describe_block(block: types.ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "resource_link":
            return f"[{block.name}: {block.uri}]"
        case "resource" if isinstance(text := getattr(block.resource, "text", None), str):
            return text
        case _:
            file = _extract_file(block)
            if file is None:
                return f"[{_get_media_type(block) or 'something'}, which is too large to keep or cannot be read]"
            return f"[{format_file(build_attachment(file.data, name=file.name, media=file.media))}: `attach` sends it]"


def _extract_file(block: types.ContentBlock) -> ToolFile | None:
    name, data = "", ""
    match block.type:
        case "image" | "audio":
            name, data = str(block.type), block.data
        case "resource":
            name, data = sanitize_file_name(str(block.resource.uri)), getattr(block.resource, "blob", None) or ""
        case _:
            pass
    if not data or len(data) > MAX_FILE_BYTES * 4 // 3 + 4:
        return None
    try:
        found = base64.b64decode(data, validate=True)
    except ValueError:
        return None
    media = _get_media_type(block)
    if "." not in name:
        name += mimetypes.guess_extension(media) or ""
    return ToolFile(data=found, name=name, media=media)


def _get_media_type(block: types.ContentBlock) -> str:
    about = block.resource if block.type == "resource" else block
    return getattr(about, "mime_type", None) or ""


def truncate_text(text: str) -> str:
    """Return at most MAX_RESULT_CHARS characters, with a note about the missing part."""
    if len(text) <= MAX_RESULT_CHARS:
        return text
    left = len(text) - MAX_RESULT_CHARS
    return (
        f"{text[:MAX_RESULT_CHARS]}\n\n[cut: {left:,} of {len(text):,} characters are missing here. "
        "Ask for less at a time to see them.]"
    )


def _describe_error(error: BaseException) -> str:
    """Return the first error of a group, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, FileNotFoundError):
        return f"there is no program {error.filename!r}"
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:300]
