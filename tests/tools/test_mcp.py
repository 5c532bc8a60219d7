"""MCP servers and their tools. A failing server affects only its own tools, and only while it fails."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from everhold.app import SystemClock
from everhold.config import AgentSettings, McpSettings
from everhold.core.entries import INVALID_ARGUMENTS_KEY, Stamp, ToolCall
from everhold.core.tool_pins import ToolPins, confirm_waiting, review_tools
from everhold.core.turn import RunTool, ToolFinished
from everhold.engine import effects as engine_effects
from everhold.engine.gates import Gates
from everhold.errors import EverholdError
from everhold.infra.child_process import ChildProcesses
from everhold.infra.extras import describe_install
from everhold.infra.secret import SecretString
from everhold.ports.model import ToolSpec
from everhold.ports.tool import ToolContext, ToolEffect, ToolFile, ToolResult
from everhold.testing.gateway import RecordingLogger
from everhold.tools import mcp
from everhold.tools.mcp import McpServers
from tests.waiting import LIMIT_SECONDS, wait_until

CROOKED = (sys.executable, str(Path(__file__).with_name("crooked.py")))
CONTEXT = ToolContext(session="s", agent="main", op=7, key="s:7:1:c1", stamp=Stamp())


class ServerHarness:
    """Servers that are restarted at once; the restarts are counted."""

    def __init__(self, directory: Path, **servers: dict[str, Any]) -> None:
        self.settings = {name: McpSettings.model_validate({**given, "=name": name}) for name, given in servers.items()}
        self.logger = RecordingLogger()
        self.changes: list[str] = []
        self.falls: list[str] = []
        self.pins: dict[str, ToolPins] = {}
        self.servers = McpServers(
            environ={"PATH": os.environ["PATH"], "SOMEBODY_ELSES": "canary-of-somebody-else"},
            directory=directory / "home" / "mcp",
            children=ChildProcesses(directory / "home"),
            log=self.logger,
            keep=self._keep,
            changed=self.changes.append,
            review=self._review,
        )
        self.agent = AgentSettings(tools=tuple(f"mcp:{name}" for name in servers))
        self.gates = Gates(store=None, clock=SystemClock(), chance=None, log=self.logger, owner="")  # type: ignore[arg-type]

    async def _keep(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except EverholdError as error:
                self.falls.append(str(error))
            await asyncio.sleep(0.05)

    async def _review(self, server: str, entry: str, offered: Mapping[str, ToolSpec]) -> ToolPins:
        self.pins[server] = review_tools(self.pins.get(server), entry, offered)
        return self.pins[server]

    def confirm(self, server: str) -> None:
        self.pins[server] = confirm_waiting(self.pins[server])
        self.servers.recheck(server)

    def open(self, *agents: AgentSettings) -> None:
        self.servers.apply_settings(self.settings, agents or (self.agent,))

    async def ready(self) -> None:
        self.open()
        if (coming := self.servers.get_startup_wait(self.agent)) is not None:
            await coming()

    async def run(self, tool: str, **arguments: Any) -> ToolResult:
        """Run a tool as a turn does."""
        task = RunTool(call=ToolCall(id="c1", tool=tool, arguments=arguments), key=CONTEXT.key)
        event, result = await engine_effects.run_tool(
            self.gates, self.servers.get_tools(self.agent).get(tool), task, CONTEXT
        )
        assert isinstance(event, ToolFinished)
        return result

    def get_pid(self, server: str) -> int:
        return self.servers.get_server(server).pid

    def complaints(self) -> list[str]:
        return [str(problem) for problem in self.servers.list_problems()]


@contextlib.asynccontextmanager
async def run_servers(directory: Path, **servers: dict[str, Any]) -> AsyncIterator[ServerHarness]:
    made = ServerHarness(directory, **servers)
    try:
        yield made
    finally:
        await made.servers.close()


@pytest.fixture
async def crooked(tmp_path: Path) -> AsyncIterator[ServerHarness]:
    async with run_servers(tmp_path, odd={"command": CROOKED, "deadline_seconds": 60}) as made:
        await made.ready()
        yield made


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A starting server is waited for, however slow the machine is."""
    monkeypatch.setattr(mcp, "START_SECONDS", LIMIT_SECONDS)
    monkeypatch.setattr(mcp, "STARTUP_WAIT_SECONDS", LIMIT_SECONDS)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


# -- what works -------------------------------------------------------------------------------------------------------


async def test_the_time_server_from_pypi_returns_the_time(tmp_path: Path) -> None:
    effects = {"get_current_time": "pure"}
    async with run_servers(tmp_path, time={"command": ("mcp-server-time",), "effects": effects}) as made:
        await made.ready()
        tools = made.servers.get_tools(made.agent)
        assert list(tools) == ["time_get_current_time", "time_convert_time"]
        assert tools["time_get_current_time"].effect is ToolEffect.PURE
        assert tools["time_convert_time"].effect is ToolEffect.ONCE
        assert tools["time_get_current_time"].spec.parameters["required"] == ["timezone"]
        told = await made.run("time_get_current_time", timezone="UTC")
        assert json.loads(told.text)["timezone"] == "UTC"
        refused = await made.run("time_get_current_time", timezone="Middle Earth")
        assert refused.error
        assert "Middle Earth" in refused.text


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is missing: apt install npm runs this")
async def test_the_filesystem_server_from_npm_reads_a_file(tmp_path: Path) -> None:
    box = Path(os.environ.get("TMPDIR", "/tmp")) / f"everhold-npm-{os.getuid()}"
    script = box / "node_modules" / "@modelcontextprotocol" / "server-filesystem" / "dist" / "index.js"
    if not script.exists():
        box.mkdir(exist_ok=True)
        install = [
            "npm",
            "install",
            "--prefix",
            str(box),
            "--no-audit",
            "--no-fund",
            "@modelcontextprotocol/server-filesystem",
        ]
        done = await asyncio.to_thread(
            subprocess.run, install, capture_output=True, text=True, timeout=6 * LIMIT_SECONDS
        )
        if done.returncode:
            pytest.skip(f"npm cannot install the filesystem server: {done.stderr.strip().splitlines()[-1:]}")
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "note.txt").write_text("the dentist is on tuesday")
    command = {"command": ("node", str(script), str(notes)), "read_paths": (str(box), str(notes))}
    async with run_servers(tmp_path, files=command) as made:
        await made.ready()
        assert not made.complaints()
        assert "files_read_text_file" in made.servers.get_tools(made.agent)
        told = await made.run("files_read_text_file", path=str(notes / "note.txt"))
        assert told.text == "the dentist is on tuesday"
        refused = await made.run("files_read_text_file", path="/etc/passwd")
        assert refused.error


async def test_a_server_over_http_gets_its_token(tmp_path: Path) -> None:
    import socket

    import uvicorn
    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

    class Guarded:
        def __init__(self, app: ASGIApp) -> None:
            self.app = app

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            headers = dict(scope.get("headers", ()))
            if scope["type"] == "http" and headers.get(b"authorization") != b"Bearer canary-token":
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
            await self.app(scope, receive, send)

    def double(number: int) -> int:
        return 2 * number

    app = MCPServer("sums")
    app.add_tool(double)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(Guarded(app.streamable_http_app()), log_level="error"))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        token = {"=token": SecretString("canary-token"), "token_env": "SUMS_TOKEN"}
        async with run_servers(tmp_path, sums={"url": url, **token}, locked={"url": url}) as made:
            await made.ready()
            assert (await made.run("sums_double", number=21)).text == "42"
            assert [p.key for p in made.servers.list_problems()] == ["mcp.locked"]
    finally:
        server.should_exit = True
        await serving


async def test_one_server_process_serves_every_agent_and_ends_with_the_gateway(tmp_path: Path) -> None:
    async with run_servers(tmp_path, odd={"command": CROOKED}) as made:
        made.open(made.agent, AgentSettings(tools=("mcp:odd",)), AgentSettings())
        await made.ready()
        assert len({(await made.run("odd_token")).text for _ in range(3)}) == 1
        pid = made.get_pid("odd")
        assert not is_gone(pid)
    assert is_gone(pid)


async def test_an_unused_server_is_not_started(tmp_path: Path) -> None:
    async with run_servers(tmp_path, odd={"command": CROOKED}) as made:
        made.open(AgentSettings(tools=("send",)))
        await asyncio.sleep(0.05)
        assert made.servers.get_startup_wait(made.agent) is None
        assert not made.servers.get_tools(made.agent)


async def test_new_tools_of_a_server_reach_the_agents(crooked: ServerHarness) -> None:
    crooked.changes.clear()
    await crooked.run("odd_news")
    await wait_until(crooked.complaints)
    assert "odd_late" not in crooked.servers.get_tools(crooked.agent)
    crooked.confirm("odd")
    await wait_until(lambda: crooked.changes)
    assert "odd_late" in crooked.servers.get_tools(crooked.agent)
    assert not crooked.complaints()


async def test_structured_content_is_shown(crooked: ServerHarness) -> None:
    assert json.loads((await crooked.run("odd_structured")).text) == {"answer": 42}


async def test_files_are_stored_and_their_names_are_not_paths(crooked: ServerHarness) -> None:
    picture = await crooked.run("odd_picture")
    assert picture.text == "[image.png (image/png, 5 bytes, id 2cf24dba5fb0): `attach` sends it]"
    assert picture.files == (ToolFile(data=b"hello", name="image.png", media="image/png"),)
    document = await crooked.run("odd_files", blob="aGVsbG8=")
    assert document.files == (ToolFile(data=b"hello", name="report.pdf", media="application/pdf"),)


async def test_a_file_that_is_too_large_or_empty_is_named(
    crooked: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "MAX_FILE_BYTES", 3)
    for blob in ("aGVsbG8gdGhlcmU=", "*** no base64 ***", ""):
        document = await crooked.run("odd_files", blob=blob)
        assert document.files == ()
        assert document.text == "[application/pdf, which is too large to keep or cannot be read]"


async def test_a_call_whose_arguments_cannot_be_read_is_not_made(crooked: ServerHarness) -> None:
    assert len((await crooked.run("odd_token")).text) == 32
    told = await crooked.run("odd_token", **{INVALID_ARGUMENTS_KEY: '{"dry_run": true, "path": "/no'})
    assert told.error
    assert told.text.startswith("odd_token was not run")
    assert '{"dry_run": true' in told.text


async def test_the_key_of_a_call_is_sent_with_it(crooked: ServerHarness) -> None:
    assert (await crooked.run("odd_key")).text == CONTEXT.key


async def test_a_tool_without_a_probe_has_the_effect_once(tmp_path: Path) -> None:
    effects = {"echo": "probe", "key": "keyed"}
    async with run_servers(tmp_path, odd={"command": CROOKED, "effects": effects}) as made:
        await made.ready()
        tools = made.servers.get_tools(made.agent)
        assert (tools["odd_echo"].effect, tools["odd_key"].effect) == (ToolEffect.ONCE, ToolEffect.KEYED)


# -- what goes wrong --------------------------------------------------------------------------------------------------


async def test_a_truncated_result_states_how_much_is_missing(crooked: ServerHarness) -> None:
    told = await crooked.run("odd_big", size=mcp.MAX_RESULT_CHARS + 5_000)
    assert told.text.startswith("x" * mcp.MAX_RESULT_CHARS)
    assert "5,000 of 105,000 characters are missing" in told.text
    assert len(told.text) < mcp.MAX_RESULT_CHARS + 200
    assert (await crooked.run("odd_big", size=1_000)).text == "x" * 1_000


async def test_an_error_of_a_tool_is_its_result(crooked: ServerHarness) -> None:
    refused = await crooked.run("odd_refuse")
    assert (refused.text, refused.error) == ("that is not possible", True)


async def test_a_line_that_is_not_a_message_is_skipped(crooked: ServerHarness) -> None:
    assert (await crooked.run("odd_nonsense")).text == "done"
    assert crooked.logger.find_events("mcp.unexpected")


async def test_a_dead_server_is_restarted_and_the_call_is_in_doubt(crooked: ServerHarness) -> None:
    fell = await crooked.run("odd_die")
    assert fell.error
    assert "may have been done" in fell.text
    await wait_until(lambda: crooked.falls)
    assert "it ended with status 3" in crooked.falls[0]
    assert "odd_echo" in crooked.servers.get_tools(crooked.agent), "a prompt must not change because a server failed"
    await wait_until(lambda: not crooked.complaints())
    assert (await crooked.run("odd_echo", size=1)).text == '{"size": 1}'


async def test_a_hanging_server_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "LIVENESS_SECONDS", 2.0)
    async with run_servers(tmp_path, odd={"command": CROOKED, "deadline_seconds": 2.0}) as made:
        await made.ready()
        pid = made.get_pid("odd")
        hung = await made.run("odd_hang")
        assert hung.error
        assert "gave no answer within" in hung.text
        await wait_until(lambda: made.falls)
        assert "no longer answers" in made.falls[0]
        assert is_gone(pid)
        await wait_until(lambda: not made.complaints())
        assert (await made.run("odd_echo")).text == "{}"
        assert made.get_pid("odd") != pid


@pytest.mark.parametrize(
    "command, reason",
    [
        (("/nowhere/to/be/found",), "there is no program '/nowhere/to/be/found'"),
        ((*CROOKED, "grumpy", "/no/file"), "it ended with status 7: I want my file"),
        ((*CROOKED, "garbage"), "it prints something other than MCP messages"),
        ((*CROOKED, "silent"), "it did not answer within 0.5 s"),
    ],
)
async def test_a_server_that_does_not_start_affects_only_its_own_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], reason: str
) -> None:
    async with run_servers(tmp_path, odd={"command": CROOKED}, bad={"command": command}) as made:
        made.open(AgentSettings(tools=("mcp:odd",)))
        await wait_until(lambda: made.servers.get_tools(made.agent))
        if command[-1] == "silent":
            monkeypatch.setattr(mcp, "START_SECONDS", 0.5)
        await made.ready()
        await wait_until(made.complaints)
        assert f"mcp.bad: is not working: {reason}" in made.complaints()[0]
        assert [p.disables for p in made.servers.list_problems()] == ["mcp.bad"]
        assert (await made.run("odd_echo")).text == "{}"
        assert not any(name.startswith("bad_") for name in made.servers.get_tools(made.agent))


async def test_a_call_to_a_server_that_is_down_reports_that_nothing_was_done(tmp_path: Path) -> None:
    file = tmp_path / "wanted"
    file.touch()
    async with run_servers(tmp_path, odd={"command": (*CROOKED, "grumpy", str(file))}) as made:
        await made.ready()
        assert not made.complaints()
        file.unlink()
        await made.run("odd_die")
        await wait_until(lambda: "status 7" in " ".join(made.complaints()))
        down = await made.run("odd_echo")
        assert down.error
        assert "nothing was done" in down.text
        file.touch()
        await wait_until(lambda: not made.complaints())
        assert (await made.run("odd_echo")).text == "{}"


async def test_a_changed_server_is_replaced_and_a_removed_one_ends(crooked: ServerHarness) -> None:
    before, token = crooked.get_pid("odd"), (await crooked.run("odd_token")).text
    tools = crooked.servers.get_tools(crooked.agent)
    crooked.settings["odd"] = crooked.settings["odd"].model_copy(update={"deadline_seconds": 9.0})
    await crooked.ready()
    after = await tools["odd_token"].run({}, CONTEXT)  # a turn that began earlier continues with the new server
    assert after.text != token
    now = crooked.get_pid("odd")
    crooked.settings.clear()
    crooked.open()
    await wait_until(lambda: is_gone(before) and is_gone(now))
    assert "no longer configured" in (await _failure(tools["odd_token"].run({}, CONTEXT)))


async def _failure(work: Awaitable[object]) -> str:
    with pytest.raises(EverholdError) as failed:
        await work
    return str(failed.value)


async def test_a_server_gets_its_own_secrets_and_they_are_not_shown(tmp_path: Path) -> None:
    secret = {"env": ("CANARY",), "=variables": {"CANARY": SecretString("canary-of-this-server")}}
    async with run_servers(tmp_path, odd={"command": CROOKED, **secret}) as made:
        await made.ready()
        told = await made.run("odd_secret")
        assert told.text.startswith("*** ")
        assert "'CANARY'" in told.text
        assert "SOMEBODY_ELSES" not in told.text
        assert "canary" not in " ".join(made.complaints())


async def test_without_the_extra_everything_else_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    async with run_servers(tmp_path, odd={"command": CROOKED}) as made:
        await made.ready()
        (problem,) = made.servers.list_problems()
        assert problem.remedy == describe_install("mcp")
        assert not made.servers.get_tools(made.agent)


def test_importing_the_app_does_not_import_the_sdk() -> None:
    script = (
        "import sys, everhold.app; print([name for name in sys.modules if name.split('.')[0] in ('mcp', 'mcp_types')])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"


async def test_the_event_loop_is_not_blocked_by_the_import(tmp_path: Path) -> None:
    """The SDK takes more than a second to import, and turns must not wait for it."""
    script = f"""
import asyncio, time
from pathlib import Path
from tests.tools.test_mcp import run_servers, CROOKED
async def main():
    worst = 0.0
    async with run_servers(Path({str(tmp_path)!r}), odd={{"command": CROOKED}}) as made:
        made.open()
        while not made.servers.get_tools(made.agent):
            began = time.process_time()  # the time of other processes does not count
            await asyncio.sleep(0.005)
            worst = max(worst, time.process_time() - began)
    print(worst)
asyncio.run(main())
"""
    root = Path(__file__).parents[2]
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root
    )
    assert float(done.stdout) < 0.5


def test_a_server_is_closed_without_waiting_for_the_sdk_s_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # how long the SDK waits for a server that does not end
    monkeypatch.setattr("mcp.client.stdio.PROCESS_TERMINATION_TIMEOUT", LIMIT_SECONDS)

    async def main() -> float:
        async with run_servers(tmp_path, odd={"command": CROOKED}) as made:
            await made.ready()
            began = time.monotonic()
        return time.monotonic() - began

    assert asyncio.run(main()) < LIMIT_SECONDS
