"""`everhold setup tools`: explains the built-in tools, tests those that an agent shall have, then writes config.yaml.

A tool is tested by a real call: a file is written and read, a command runs in the sandbox, a page is fetched, a search
is made. Nothing is written if a test fails.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

from everhold.app import SystemClock, load_home_settings
from everhold.assembly.agent_workspaces import find_path_problem
from everhold.assembly.builtin_toolbox import (
    FILES,
    SHELL,
    SKILL,
    WEB_FETCH,
    WEB_SEARCH,
    build_fetcher,
    build_shell_limits,
    is_file_tool_supported,
)
from everhold.assembly.skill_library import SkillLibrary
from everhold.cli.checkup import run_checkup
from everhold.cli.commands.setup import SetupPrompter, load_environment, set_value
from everhold.cli.connect import find_home, find_running_gateway
from everhold.cli.progress import show_waiting
from everhold.cli.render import CommandScreen, escape_control
from everhold.config import AgentSettings, Settings, set_secret
from everhold.config.secrets import SecretEnvironment
from everhold.config.settings import SearchSettings
from everhold.core.builtin_tools import SELECTABLE_TOOLS
from everhold.core.entries import Stamp
from everhold.errors import EverholdError, InvalidRequest, NotFound, Refused
from everhold.infra.child_process import ChildProcesses, SandboxKind
from everhold.infra.home import Home
from everhold.infra.secret import SecretString
from everhold.infra.workspace import WriteIntents
from everhold.ports.tool import Tool, ToolContext
from everhold.tools.files import build_file_tools
from everhold.tools.shell import ShellTool, find_shell_problem
from everhold.tools.web_fetch import WebFetchTool
from everhold.tools.web_search_services import SEARCH_SERVICES

TRIAL_SECONDS: Final = 60.0
TRIAL_PAGE: Final = "https://example.com/"
SEARCH_KEY: Final = "SEARCH_API_KEY"
SEARCH_CHOICES: Final = (
    ("searxng", "your own instance; `search.formats` in its settings.yml must contain `json`"),
    ("brave", "the Brave Search API, with a key"),
    ("tavily", "Tavily, with a key"),
)
TOOL_HELP: Final[Mapping[str, str]] = {
    "memory": "notes facts about people, and changes them (this conversation)",
    "session_search": "searches older conversations that the people present may know (this conversation)",
    "attach": "sends files with a reply (this conversation)",
    "send": "writes to the chats in send_to (this conversation)",
    "files": "reads, writes, edits, lists and searches files of a workspace (private, change)",
    "delegate": "gives tasks to sub-agents, which have the rights of the turn that asks (public)",
    "schedule": "makes reminders and repeated messages (this conversation; elsewhere: outside)",
    "skill": "loads instructions that you install with `everhold skills add` (this conversation)",
    "shell": "runs commands in a sandbox that sees the workspace only (change; with network: outside)",
    "web_fetch": "reads public web pages (public)",
    "web_search": "searches the web with a service of yours (public)",
}
"""Tool -> what it does, and what it reaches, by which the policy decides."""


class ToolSetup:
    """One run of the command: the agent, and what is written if every test succeeds."""

    def __init__(self, args: argparse.Namespace, screen: CommandScreen, home: Home, settings: Settings) -> None:
        self.args = args
        self.screen = screen
        self.home = home
        self.settings = settings
        self.agent: AgentSettings = settings.get_agent(args.agent or settings.default_agent)
        self.environment: SecretEnvironment = load_environment(home)
        self.search: SearchSettings = settings.search
        self.search_section: dict[str, Any] = {}
        """The section `search` to write; empty: as it is."""
        self.key: SecretString | None = None
        self.tested: dict[str, str] = {}
        """Tool -> what its test showed."""

    async def test_tool(self, name: str) -> str:
        """Make a real call of a tool. Return what it showed; raises what a call raises."""
        trials: dict[str, Callable[[], Awaitable[str]]] = {
            FILES: self._try_files,
            SHELL: self._try_shell,
            SKILL: self._try_skills,
            WEB_FETCH: self._try_fetch,
            WEB_SEARCH: self._try_search,
        }
        if name not in trials:
            return "needs nothing"
        async with show_waiting(self.screen, f"testing {name}"), asyncio.timeout(TRIAL_SECONDS):
            return await trials[name]()

    def _check_workspace(self) -> None:
        path = self.agent.workspace.path
        if path is not None and (problem := find_path_problem(Path(path), self.home.path)):
            raise InvalidRequest(f"the workspace {path} {problem}", remedy="name another folder in workspace.path")

    async def _try_files(self) -> str:
        if not is_file_tool_supported():
            raise Refused("works on Linux and macOS only", remedy="do not choose it here")
        self._check_workspace()
        with tempfile.TemporaryDirectory(dir=self.home.path) as folder:

            async def find_workspace(_: ToolContext) -> Path:
                return Path(folder, "workspace")

            tools = build_file_tools(find_workspace, WriteIntents(Path(folder, "intents")), SystemClock())
            await _call(tools["file_write"], {"path": "a.txt", "text": "ready\n"})
            shown = await _call(tools["file_read"], {"path": "a.txt"})
        if "ready" not in shown:
            raise Refused("a file that was written could not be read", remedy="everhold doctor")
        return "a file was written and read"

    async def _try_shell(self) -> str:
        self._check_workspace()
        kind = SandboxKind(self.agent.shell.sandbox)
        children = ChildProcesses(self.home.path)
        if (problem := await find_shell_problem(children, kind)) is not None:
            raise Refused(problem[0], remedy=problem[1])
        folder = self.home.path / "workspaces"
        folder.mkdir(exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".setup-") as root:

            async def find_workspace(_: ToolContext) -> Path:
                return Path(root)

            tool = ShellTool(find_workspace, children, build_shell_limits(self.agent), os.environ, ())
            shown = await _call(tool, {"command": "echo ready"})
        if "ready" not in shown:
            raise Refused(f"a command did not run: {shown[:200]}", remedy="everhold doctor")
        return f"a command ran in the sandbox ({(await children.choose_kind(kind)).value})"

    async def _try_skills(self) -> str:
        library = SkillLibrary(self.home.path)
        await asyncio.to_thread(library.refresh, [self.agent.name])
        found, problems = library.list_skills(self.agent), library.list_problems()
        refused = f", {len(problems)} refused (everhold skills check)" if problems else ""
        return f"{len(found)} offered{refused}; everhold skills add FOLDER installs one"

    async def _try_fetch(self) -> str:
        await _call(WebFetchTool(build_fetcher()), {"url": TRIAL_PAGE})
        return f"{TRIAL_PAGE} was read"

    async def _try_search(self) -> str:
        assert self.search.provider is not None
        key = self.key or self.search.api_key
        hits = await SEARCH_SERVICES[self.search.provider](self.search.url or "", key).search("weather", count=1)
        return f"{self.search.provider} found {hits[0].url}" if hits else f"{self.search.provider} answered"


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    home = find_home(args).create()
    settings = load_home_settings(home, environ=os.environ)
    if args.agent and args.agent not in settings.agents:
        raise InvalidRequest(f"there is no agent {args.agent!r}", remedy="`everhold agents` lists them")
    for name in args.tools:
        if name not in SELECTABLE_TOOLS:
            raise NotFound(
                f"there is no built-in tool {name[:40]!r}", remedy=f"there is: {', '.join(SELECTABLE_TOOLS)}"
            )
    setup = ToolSetup(args, screen, home, settings)
    names = _choose_tools(setup)
    if WEB_SEARCH in names and not args.off:
        _choose_search(setup)
    if not args.off:
        _test_tools(setup, names)
    if not args.tools and args.no_input:
        return _report(setup, names, running=False, is_written=False)
    return _write(setup, names)


def _choose_tools(setup: ToolSetup) -> list[str]:
    """Return the tools that the command is about: those that were named, else those that the person chooses."""
    args, screen = setup.args, setup.screen
    if args.tools:
        return list(dict.fromkeys(args.tools))
    if not screen.json:
        screen.print_line(f"The tools of {escape_control(setup.agent.name)}. In brackets: what a call reaches.")
        for name in SELECTABLE_TOOLS:
            mark = screen.paint("on ", "green") if name in setup.agent.tools else "off"
            screen.print_line(f"  {mark}  {screen.paint(name, 'bold')}  {TOOL_HELP[name]}")
        screen.print_line("docs/how-to/let-an-agent-act.md says who may use what. Rules under `policy` change that.")
    on = [name for name in SELECTABLE_TOOLS if name in setup.agent.tools]
    if args.no_input:
        return on
    asking = SetupPrompter(screen, sys.stdin)
    while True:
        words = asking.ask_line("Which ones shall it have? Names, or Enter to test those that are on", " ".join(on))
        names = list(dict.fromkeys(words.replace(",", " ").split()))
        if unknown := [name for name in names if name not in SELECTABLE_TOOLS]:
            screen.print_note(f"  there is no tool {unknown[0][:40]!r}")
            continue
        return names


def _choose_search(setup: ToolSetup) -> None:
    """Take the search service from options, from the configuration, or from answers."""
    args = setup.args
    provider = args.provider or ("" if args.url else setup.search.provider or "")
    if not provider:
        if args.no_input:
            raise InvalidRequest(
                "no search service is configured", remedy="--provider searxng --url http://localhost:8080"
            )
        provider = SetupPrompter(setup.screen, sys.stdin).ask_choice("Which search service?", SEARCH_CHOICES, "1")
    if (
        provider == setup.search.provider
        and not (args.provider or args.url or args.key_stdin)
        and setup.search.is_ready
    ):
        return
    url, needs_key = args.url or "", provider != "searxng"
    if provider == "searxng" and not url:
        if args.no_input:
            raise InvalidRequest("the address of SearXNG is missing", remedy="--url http://localhost:8080")
        url = SetupPrompter(setup.screen, sys.stdin).ask_line("Its address", "http://localhost:8080")
    if args.key_stdin:
        setup.key = SecretString(sys.stdin.readline().strip())
    elif needs_key and setup.environment.get(SEARCH_KEY) is not None:
        setup.key = setup.environment.get(SEARCH_KEY)
    elif needs_key and not args.no_input:
        setup.key = SetupPrompter(setup.screen, sys.stdin).ask_secret("Its key (not shown)")
    if needs_key and not setup.key:
        raise InvalidRequest(f"{provider} needs a key", remedy="--key-stdin reads it from standard input")
    section = {"provider": provider, "url": url or None, "api_key_env": SEARCH_KEY if setup.key else None}
    setup.search_section = {key: value for key, value in section.items() if value is not None}
    setup.search = SearchSettings.model_validate(setup.search_section)


def _test_tools(setup: ToolSetup, names: list[str]) -> None:
    """Test the tools. A failure ends the command before anything is written."""
    if setup.args.no_test:
        return
    for name in names:
        try:
            setup.tested[name] = asyncio.run(setup.test_tool(name))
        except TimeoutError:
            raise Refused(
                f"{name}: its test took longer than {TRIAL_SECONDS:g} s", remedy="--no-test writes it without a test"
            ) from None
        except EverholdError as error:
            raise Refused(
                f"{name}: {error.message}", remedy=error.remedy or "--no-test writes it without a test"
            ) from error


def _write(setup: ToolSetup, names: list[str]) -> int:
    home, agent = setup.home, setup.agent.name
    if setup.key is not None and setup.environment.get(SEARCH_KEY) != setup.key:
        set_secret(home, SEARCH_KEY, setup.key)
    if setup.search_section:
        set_value(home, "search", setup.search_section)
    written = (setup.settings.document.get("agents") or {}).get(agent) or {}
    before: list[Any] = (
        list(written["tools"]) if isinstance(written.get("tools"), list | tuple) else list(setup.agent.tools)
    )
    if setup.args.off:
        after = [tool for tool in before if _get_name(tool) not in names]
    else:
        known = {_get_name(tool) for tool in before}
        kept = (
            before
            if setup.args.tools
            else [tool for tool in before if _get_name(tool) in names or _get_name(tool) not in SELECTABLE_TOOLS]
        )
        after = [*kept, *(name for name in names if name not in known)]
    if after != before or "tools" not in written:
        set_value(home, f'agents."{agent}".tools' if "." in agent else f"agents.{agent}.tools", after)
    running = asyncio.run(find_running_gateway(home)) is not None
    return _report(setup, names, running=running, is_written=True)


def _get_name(tool: Any) -> str:
    return str(tool.get("name", "")) if isinstance(tool, Mapping) else str(tool)


def _report(setup: ToolSetup, names: list[str], *, running: bool, is_written: bool) -> int:
    screen, home = setup.screen, setup.home
    if screen.json:
        found = run_checkup(home, screen, "search", "agents")
        screen.print_json(
            {"agent": setup.agent.name, "tools": names, "off": setup.args.off, "tested": setup.tested, "doctor": found}
        )
        return 0
    for name, shown in setup.tested.items():
        screen.print_line(f"{screen.paint('ok', 'green')} · {name}: {escape_control(shown)}")
    if is_written:
        screen.print_line(f"written: {home.config}")
        run_checkup(home, screen, "search", "agents")
        when = "the gateway uses it from the next turn on" if running else "everhold up"
        screen.print_line(f"next: {when}; rules under `policy` say who may do what")
    return 0


async def _call(tool: Tool, arguments: dict[str, Any]) -> str:
    """Call a tool as a turn does. A result that is an error is raised."""
    context = ToolContext(session="setup", agent="setup", op=1, key="setup", stamp=Stamp())
    result = await tool.run(arguments, context)
    if result.error:
        raise Refused(result.text[:500])
    return result.text
