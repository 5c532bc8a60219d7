"""Builds the built-in tools that touch this machine or the network, for the agents whose `tools` name them."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from everhold.assembly.agent_workspaces import AgentWorkspaces
from everhold.assembly.skill_library import SkillLibrary
from everhold.config import AgentSettings, ConfigProblem
from everhold.config.settings import SearchSettings
from everhold.infra.child_process import NO_SANDBOX_MEANING, ChildProcesses, SandboxKind
from everhold.infra.fetch import UrlFetcher
from everhold.infra.skills import InstalledSkill
from everhold.infra.workspace import WriteIntents
from everhold.ports.clock import Clock
from everhold.ports.store import Store
from everhold.ports.tool import Tool
from everhold.tools.delegate import DelegateTool
from everhold.tools.files import FindWorkspace, build_file_tools
from everhold.tools.shell import ShellLimits, ShellTool, find_shell_problem
from everhold.tools.skill import SkillTool
from everhold.tools.web_fetch import MAX_EXTRACTIONS, FetchUrl, WebFetchTool
from everhold.tools.web_search import WebSearchTool
from everhold.tools.web_search_services import SEARCH_SERVICES

DELEGATE: Final = "delegate"
FILES: Final = "files"
SKILL: Final = "skill"
SHELL: Final = "shell"
WEB_FETCH: Final = "web_fetch"
WEB_SEARCH: Final = "web_search"
MAX_PAGE_BYTES: Final = 5_000_000
FETCH_AGENT: Final = "everhold (an agent gateway)"


class BuiltinToolbox:
    """The built-in tools of all agents. A tool that cannot work on this machine is not offered, and `status` says
    why.
    """

    def __init__(
        self,
        *,
        home: Path,
        store: Store,
        clock: Clock,
        children: ChildProcesses,
        environ: Mapping[str, str],
        search: Callable[[], SearchSettings] = SearchSettings,
        host: str = "",
        fetch: FetchUrl | None = None,
    ) -> None:
        """`host` is the name of this host, for workspaces that are on one of several."""
        self._search = search
        self._store = store
        self._fetch = fetch or build_fetcher()
        self._extractions = asyncio.Semaphore(MAX_EXTRACTIONS)
        self.workspaces = AgentWorkspaces(home / "workspaces", home=home, store=store, host=host)
        self._intents = WriteIntents(home / "workspaces" / ".intents")
        self.skills = SkillLibrary(home)
        self._clock = clock
        self._children = children
        self._environ = environ
        self._shell_problems: dict[SandboxKind, tuple[str, str]] = {}
        self._tested: set[SandboxKind] = set()

    def build_tools(self, agent: AgentSettings) -> dict[str, dict[str, Tool]]:
        """Return the tools of an agent, by the name in `tools` that they come with."""
        find_workspace: FindWorkspace = functools.partial(self.workspaces.find_workspace, agent)
        builders: dict[str, Callable[[], dict[str, Tool]]] = {
            DELEGATE: lambda: {DELEGATE: DelegateTool(self._store)},
            FILES: lambda: build_file_tools(find_workspace, self._intents, self._clock),
            SHELL: lambda: self._build_shell(agent, find_workspace),
            SKILL: lambda: self._build_skill_tool(agent),
            WEB_FETCH: lambda: {WEB_FETCH: WebFetchTool(self._fetch, self._extractions)},
            WEB_SEARCH: self._build_search,
        }
        return {name: build() for name, build in builders.items() if name in agent.tools}

    def _build_shell(self, agent: AgentSettings, find_workspace: FindWorkspace) -> dict[str, Tool]:
        limits = build_shell_limits(agent)
        if limits.sandbox not in self._tested or limits.sandbox in self._shell_problems:
            return {}
        folders = tuple(dict.fromkeys(skill.source.root for skill in self._list_offered_skills(agent).values()))
        return {SHELL: ShellTool(find_workspace, self._children, limits, self._environ, folders)}

    def _build_search(self) -> dict[str, Tool]:
        settings = self._search()
        if not settings.is_ready or settings.provider is None:
            return {}
        service = SEARCH_SERVICES[settings.provider](settings.url or "", settings.api_key)
        return {WEB_SEARCH: WebSearchTool(service)}

    def _list_offered_skills(self, agent: AgentSettings) -> dict[str, InstalledSkill]:
        return self.skills.list_skills(agent) if SKILL in agent.tools else {}

    def _build_skill_tool(self, agent: AgentSettings) -> dict[str, Tool]:
        skills = self._list_offered_skills(agent)
        if not skills:
            return {}
        has_shell = SHELL in agent.tools and SandboxKind(agent.shell.sandbox) not in self._shell_problems
        return {SKILL: SkillTool(skills, has_shell=has_shell)}

    async def refresh_skills(self, agents: Iterable[AgentSettings]) -> bool:
        """Read the folders of skills again. Return whether the offered skills change."""
        return await asyncio.to_thread(self.skills.refresh, [agent.name for agent in agents if SKILL in agent.tools])

    async def probe_machine(self, agents: Iterable[AgentSettings]) -> bool:
        """Run a command in each kind of sandbox that a shell uses. Return whether the offered tools change."""
        before = (set(self._tested), dict(self._shell_problems))
        for kind in {SandboxKind(agent.shell.sandbox) for agent in agents if SHELL in agent.tools}:
            problem = await find_shell_problem(self._children, kind)
            self._tested.add(kind)
            if problem is None:
                self._shell_problems.pop(kind, None)
            else:
                self._shell_problems[kind] = problem
        return before != (self._tested, self._shell_problems)

    def list_problems(self, agents: Iterable[AgentSettings]) -> list[ConfigProblem]:
        """Return what keeps the tools of these agents from working on this machine."""
        found = [
            _make_problem(f"{problem.source}: {problem.path}: {problem.message}", problem.remedy, ("skills",))
            for problem in self.skills.list_problems()
        ]
        for agent in agents:
            path = ("agents", agent.name)
            if SHELL in agent.tools and (problem := self._shell_problems.get(SandboxKind(agent.shell.sandbox))):
                found.append(_make_problem(f"is not offered: {problem[0]}", problem[1], (*path, SHELL)))
            if {FILES, SHELL} & set(agent.tools) and agent.workspace.path is not None:
                place = Path(agent.workspace.path)
                if reason := self.workspaces.find_path_problem(place):
                    remedy = f"make the folder {place}, or name another one"
                    found.append(_make_problem(f"{place} {reason}", remedy, (*path, "workspace", "path")))
            if FILES in agent.tools and not is_file_tool_supported():
                found.append(_make_problem("works on Linux and macOS only", "remove it from tools", (*path, FILES)))
        return found

    def list_risks(self, agents: Iterable[AgentSettings]) -> list[ConfigProblem]:
        """Return what works as configured and is dangerous."""
        return [
            _make_problem(NO_SANDBOX_MEANING, "remove `sandbox: none`", ("agents", agent.name, SHELL))
            for agent in agents
            if SHELL in agent.tools and agent.shell.sandbox == "none"
        ]


def build_fetcher() -> UrlFetcher:
    return UrlFetcher(most_bytes=MAX_PAGE_BYTES, is_packed_allowed=True, agent=FETCH_AGENT)


def build_shell_limits(agent: AgentSettings) -> ShellLimits:
    """Return what commands of an agent may use."""
    settings = agent.shell
    return ShellLimits(
        sandbox=SandboxKind(settings.sandbox),
        network=settings.network,
        memory_bytes=settings.max_memory_bytes,
        processes=settings.max_processes,
        cpu_seconds=settings.max_cpu_seconds,
    )


def is_file_tool_supported() -> bool:
    """Return whether paths can be opened here without following links."""
    return sys.platform != "win32" and os.open in os.supports_dir_fd


def _make_problem(message: str, remedy: str, path: tuple[str, ...]) -> ConfigProblem:
    return ConfigProblem(message, remedy, path=path, fatal=False)
