"""Settings -> the tools of plug-ins that are in use, one object per instance and agent, built when first needed.

What everhold brings itself is made in app.py, what tool servers offer in tools/mcp.py. A plug-in that cannot be built
costs itself and nothing else: the agent goes on without it, and `status` says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from everhold.config import AgentSettings, ConfigProblem, build_plugin_settings
from everhold.config.settings import ToolSettings
from everhold.core.builtin_tools import SELECTABLE_TOOLS
from everhold.engine.effects import call_plugin
from everhold.engine.memory_client import is_tool
from everhold.errors import EverholdError, InvalidRequest, NotFound
from everhold.infra.plugins import TOOL_PLUGINS, PluginFactory
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger
from everhold.ports.plugin import PluginContext
from everhold.ports.tool import Tool

_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every model takes as the name of a tool: with another one it would refuse the whole request."""


class PluginTools:
    """Every plug-in's tool that an agent has needed so far. What is merely installed is never touched."""

    def __init__(
        self,
        *,
        log: EventLogger,
        clock: Clock,
        directory: Path,
        load: Callable[[str], PluginFactory[Tool]] = TOOL_PLUGINS.load,
    ) -> None:
        self._log = log
        self._clock = clock
        self._directory = directory
        self._load = load
        self._tools: dict[tuple[str, str], tuple[ToolSettings, Tool]] = {}
        self._errors: dict[tuple[str, str], EverholdError] = {}

    def list_tools(
        self, agent: AgentSettings, sections: Mapping[str, ToolSettings], *, taken: Collection[str]
    ) -> dict[str, Tool]:
        """What this agent's plug-ins let its model call, under the names they give. `taken` are others' names."""
        wanted = [name for name in agent.tools if name not in SELECTABLE_TOOLS and not name.startswith("mcp:")]
        for key in [key for key in (*self._tools, *self._errors) if key[1] == agent.name and key[0] not in wanted]:
            self._tools.pop(key, None)
            self._errors.pop(key, None)
        found: dict[str, Tool] = {}
        for name in wanted:
            settings = sections.get(name) or ToolSettings.model_construct(provider=name)
            if not settings.is_ready:
                continue  # the configuration says what is missing
            try:
                factory = self._load(settings.provider)
            except (NotFound, InvalidRequest):
                continue  # the configuration says this, too
            try:
                tool = self._get_tool(name, agent.name, settings, factory)
                if tool.spec.name in taken or tool.spec.name in found:
                    raise InvalidRequest(
                        f"another tool is called {tool.spec.name} already", remedy="leave one of them out"
                    )
            except EverholdError as error:
                self._errors[name, agent.name] = error
                self._log.warning("tool.unavailable", tool=name, agent=agent.name, error=str(error))
            else:
                self._errors.pop((name, agent.name), None)
                found[tool.spec.name] = tool
        return found

    def list_problems(self) -> list[ConfigProblem]:
        """What does not work now, and why."""
        return [
            ConfigProblem(
                f"is not working for {agent}: {error.message}",
                error.remedy or "`everhold logs` shows more",
                path=("tools", name),
                fatal=False,
                disables=f"tools.{name}",
            )
            for (name, agent), error in self._errors.items()
        ]

    def _get_tool(self, name: str, agent: str, settings: ToolSettings, factory: PluginFactory[Tool]) -> Tool:
        made = self._tools.get((name, agent))
        if made is None or made[0] != settings:
            made = self._tools[name, agent] = settings, self._build_tool(name, agent, settings, factory)
        return made[1]

    def _build_tool(self, name: str, agent: str, settings: ToolSettings, factory: PluginFactory[Tool]) -> Tool:
        directory = self._directory / name.replace(":", "-") / agent
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        context = PluginContext(
            agent=agent,
            instance=name,
            directory=directory,
            log=self._log.bind(tool=name, agent=agent),
            clock=self._clock,
        )
        tool = call_plugin(
            f"building tool {name}", lambda: factory(build_plugin_settings(settings, factory.Settings), context)
        )
        if not is_tool(tool):
            raise InvalidRequest(
                f"{name} is no tool: it wants spec, effect, deadline and run", remedy="tell its author"
            )
        if not _TOOL_NAME.fullmatch(tool.spec.name):
            raise InvalidRequest(
                f"{tool.spec.name!r} is no name for a tool", remedy="letters, digits, _ and -, at most 64"
            )
        return tool
