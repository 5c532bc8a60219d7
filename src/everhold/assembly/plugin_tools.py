"""Builds the tools of plug-ins from the settings when they are first needed, one object per instance and agent.

Built-in tools are built in app.py, those of MCP servers in tools/mcp.py. A plug-in that cannot be built does not affect
anything else: the agent works without it, and `status` shows the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from everhold.config import AgentSettings, ConfigProblem, Settings, build_plugin_settings
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
"""The tool names that every model accepts. With another name, a model would refuse the whole request."""


def list_trusted_tools(settings: Settings) -> list[dict[str, Any]]:
    """Return the plug-in tools that agents use. They are not pinned, because their code runs in this process and could
    change the pins, too."""
    users: dict[str, list[str]] = {}
    for agent in settings.agents.values():
        for name in _list_plugin_names(agent):
            users.setdefault(name, []).append(agent.name)
    return [
        {"name": name, "package": settings.tools[name].provider if name in settings.tools else name, "agents": agents}
        for name, agents in sorted(users.items())
    ]


def _list_plugin_names(agent: AgentSettings) -> list[str]:
    return [name for name in agent.tools if name not in SELECTABLE_TOOLS and not name.startswith("mcp:")]


class PluginTools:
    """Every plug-in tool that an agent has needed so far. Plug-ins that are only installed are never loaded."""

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
        """The tools of this agent's plug-ins, by name. `taken` are the names of its other tools."""
        return {tool.spec.name: tool for _, tool in self.list_named_tools(agent, sections, taken=taken)}

    def list_named_tools(
        self, agent: AgentSettings, sections: Mapping[str, ToolSettings], *, taken: Collection[str]
    ) -> list[tuple[str, Tool]]:
        """The tools of this agent's plug-ins, each with its name in the configuration."""
        wanted = _list_plugin_names(agent)
        for key in [key for key in (*self._tools, *self._errors) if key[1] == agent.name and key[0] not in wanted]:
            self._tools.pop(key, None)
            self._errors.pop(key, None)
        found: dict[str, tuple[str, Tool]] = {}
        for name in wanted:
            settings = sections.get(name) or ToolSettings.model_construct(provider=name)
            if not settings.is_ready:
                continue  # the configuration reports what is missing
            try:
                factory = self._load(settings.provider)
            except (NotFound, InvalidRequest):
                continue  # the configuration reports this, too
            try:
                tool = self._get_tool(name, agent.name, settings, factory)
                if tool.spec.name in taken or tool.spec.name in found:
                    raise InvalidRequest(
                        f"another tool is already called {tool.spec.name}", remedy="remove one of them"
                    )
            except EverholdError as error:
                self._errors[name, agent.name] = error
                self._log.warning("tool.unavailable", tool=name, agent=agent.name, error=str(error))
            else:
                self._errors.pop((name, agent.name), None)
                found[tool.spec.name] = (name, tool)
        return list(found.values())

    def list_problems(self) -> list[ConfigProblem]:
        """The present problems of plug-in tools."""
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
                f"{name} is not a tool, because it lacks spec, effect, deadline or run",
                remedy="report this to the plug-in's author",
            )
        if not _TOOL_NAME.fullmatch(tool.spec.name):
            raise InvalidRequest(
                f"{tool.spec.name!r} is not a valid tool name", remedy="use letters, digits, _ and -, at most 64"
            )
        return tool
