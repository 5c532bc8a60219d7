"""Settings -> the tools of plug-ins that are in use, one object per instance and agent, built when first needed.

What everhold brings itself is made in app.py, what tool servers offer in tools/mcp.py. A plug-in that cannot be built
costs itself and nothing else: the agent goes on without it, and `status` says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from everhold.config import AgentSettings, Problem, plugin_settings
from everhold.config.settings import ToolSettings
from everhold.core.builtin_tools import SELECTABLE_TOOLS
from everhold.errors import EverholdError, Misuse, NotFound
from everhold.flow.memory import is_tool
from everhold.flow.perform import foreign
from everhold.plugins import TOOLS, Factory
from everhold.ports.clock import Clock
from everhold.ports.log import Log
from everhold.ports.plugin import Context
from everhold.ports.tool import Tool

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every model takes as the name of a tool: with another one it would refuse the whole request."""


class Toolbox:
    """Every plug-in's tool that an agent has needed so far. What is merely installed is never touched."""

    def __init__(
        self, *, log: Log, clock: Clock, directory: Path, load: Callable[[str], Factory[Tool]] = TOOLS.load
    ) -> None:
        self._log = log
        self._clock = clock
        self._directory = directory
        self._load = load
        self._made: dict[tuple[str, str], tuple[ToolSettings, Tool]] = {}
        self._wrong: dict[tuple[str, str], EverholdError] = {}

    def tools(
        self, agent: AgentSettings, sections: Mapping[str, ToolSettings], *, taken: Collection[str]
    ) -> dict[str, Tool]:
        """What this agent's plug-ins let its model call, under the names they give. `taken` are others' names."""
        wanted = [name for name in agent.tools if name not in SELECTABLE_TOOLS and not name.startswith("mcp:")]
        for key in [key for key in (*self._made, *self._wrong) if key[1] == agent.name and key[0] not in wanted]:
            self._made.pop(key, None)
            self._wrong.pop(key, None)
        found: dict[str, Tool] = {}
        for name in wanted:
            settings = sections.get(name) or ToolSettings.model_construct(provider=name)
            if not settings.ready:
                continue  # the configuration says what is missing
            try:
                factory = self._load(settings.provider)
            except (NotFound, Misuse):
                continue  # the configuration says this, too
            try:
                tool = self._get(name, agent.name, settings, factory)
                if tool.spec.name in taken or tool.spec.name in found:
                    raise Misuse(f"another tool is called {tool.spec.name} already", remedy="leave one of them out")
            except EverholdError as error:
                self._wrong[name, agent.name] = error
                self._log.warning("tool.unavailable", tool=name, agent=agent.name, error=str(error))
            else:
                self._wrong.pop((name, agent.name), None)
                found[tool.spec.name] = tool
        return found

    def problems(self) -> list[Problem]:
        """What does not work now, and why."""
        return [
            Problem(
                f"is not working for {agent}: {error.message}",
                error.remedy or "`everhold logs` shows more",
                path=("tools", name),
                fatal=False,
                disables=f"tools.{name}",
            )
            for (name, agent), error in self._wrong.items()
        ]

    def _get(self, name: str, agent: str, settings: ToolSettings, factory: Factory[Tool]) -> Tool:
        made = self._made.get((name, agent))
        if made is None or made[0] != settings:
            made = self._made[name, agent] = settings, self._make(name, agent, settings, factory)
        return made[1]

    def _make(self, name: str, agent: str, settings: ToolSettings, factory: Factory[Tool]) -> Tool:
        directory = self._directory / name.replace(":", "-") / agent
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        context = Context(
            agent=agent,
            instance=name,
            directory=directory,
            log=self._log.bind(tool=name, agent=agent),
            clock=self._clock,
        )
        tool = foreign(f"building tool {name}", lambda: factory(plugin_settings(settings, factory.Settings), context))
        if not is_tool(tool):
            raise Misuse(f"{name} is no tool: it wants spec, effect, deadline and run", remedy="tell its author")
        if not _NAME.fullmatch(tool.spec.name):
            raise Misuse(f"{tool.spec.name!r} is no name for a tool", remedy="letters, digits, _ and -, at most 64")
        return tool
