"""Settings -> the memory providers that are in use, one object per instance and agent, built when first needed.

A provider that cannot be built costs itself and nothing else: its lane goes on queueing, and `status` says why. When a
setting changes, or what the provider calls its signature, the next call goes to a new object; the old one is closed
once nobody is asking it any more.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from everhold.config import ConfigProblem, MemorySettings, Settings, build_plugin_settings
from everhold.engine.effects import call_plugin, close_within
from everhold.engine.memory_client import MemoryClient
from everhold.engine.memory_liveness import MemoryLiveness
from everhold.errors import EverholdError, InvalidRequest
from everhold.infra.plugins import MEMORY_PLUGINS, PluginFactory
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger
from everhold.ports.memory import MemoryProvider
from everhold.ports.model import ToolSpec
from everhold.ports.plugin import PluginContext
from everhold.ports.tool import Tool, ToolContext, ToolEffect, ToolResult

REBUILD_RETRY_SECONDS: Final = 60.0
"""How long after a failure nobody tries to build an instance: a package may have been installed meanwhile."""
CLOSE_DEADLINE_SECONDS: Final = 10.0


@dataclasses.dataclass
class ProviderSlot:
    """One instance of one agent: what it is built from, and what came of it."""

    instance: str
    agent: str
    settings: MemorySettings
    client: MemoryClient | None = None
    signature: Mapping[str, Any] | None = None
    reason: str = ""
    """Why there is none."""
    remedy: str = ""
    warnings: dict[str, str] = dataclasses.field(default_factory=dict)
    """What is wrong with one that works all the same, by what it is about."""
    last_tried_at: float = float("-inf")


class MemoryProviders:
    """Every memory of every agent that somebody has needed so far. What is merely installed is never touched."""

    def __init__(
        self,
        settings: Settings,
        *,
        log: EventLogger,
        clock: Clock,
        directory: Path,
        own_factories: Mapping[str, Callable[[str], MemoryProvider]] | None = None,
        load: Callable[[str], PluginFactory[MemoryProvider]] = MEMORY_PLUGINS.load,
        has_no_memories: bool = False,
    ) -> None:
        """`own` are instances that the gateway itself makes, by name, for an agent. `idle`: there are none at all."""
        self.settings = settings
        self.log = log
        self.clock = clock
        self.directory = directory
        self.own_factories = own_factories or {}
        self.load = load
        self.has_no_memories = has_no_memories
        self.on_change: Callable[[str], None] = lambda _agent: None
        """Hears which agent has a memory that it did not have before."""
        self._slots: dict[tuple[str, str], ProviderSlot] = {}
        self._liveness: dict[tuple[str, str], MemoryLiveness] = {}
        self._closing_tasks: set[asyncio.Task[None]] = set()

    # -- asking ------------------------------------------------------------------------------------------------------

    def find_client(self, instance: str, agent: str) -> MemoryClient | None:
        """The memory an agent knows under this name; None if there is none, or none that works."""
        key = (instance, agent)
        slot = self._slots.get(key)
        if slot is None:
            settings = self._find_settings(instance, agent)
            if settings is None:
                return None
            slot = self._slots[key] = ProviderSlot(instance, agent, settings)
        if slot.client is None and self.clock.monotonic() - slot.last_tried_at >= REBUILD_RETRY_SECONDS:
            late = bool(slot.reason)
            if self._try_build(slot) and late:
                self.on_change(agent)
        return slot.client

    def list_agent_clients(self, agent: str) -> Iterator[MemoryClient]:
        """Every memory of an agent that works, in the order they are configured."""
        for memory in self.settings.get_agent(agent).memories:
            if (attached := self.find_client(memory.name, agent)) is not None:
                yield attached

    def list_clients(self) -> list[MemoryClient]:
        """Those that are in use now, whoever's they are."""
        return [slot.client for slot in self._slots.values() if slot.client is not None]

    def list_tools(self, agent: str) -> dict[str, Tool]:
        """What an agent's memories let its model call, under the names they give; the first to use a name has it."""
        found: dict[str, Tool] = {}
        for attached in self.list_agent_clients(agent):
            try:
                offers = attached.tools
            except EverholdError as error:
                self._warn_once(attached, "tools", str(error))
                continue
            for name, offered in offers.items():
                if name in found:
                    self._warn_once(attached, "tools", f"its tool {name} is not used: another memory has one")
                else:
                    found[name] = MemoryTool(self, attached.instance, offered, agent=agent)
        return found

    def list_prompts(self, agent: str) -> Sequence[str]:
        """What the memories of an agent want said in its prompt."""
        blocks = []
        for attached in self.list_agent_clients(agent):
            try:
                blocks.append(attached.prompt().strip())
            except EverholdError as error:
                self._warn_once(attached, "prompt", str(error))
        return [block for block in blocks if block]

    def rebuild_changed(self, agent: str) -> bool:
        """Ask the memories of an agent whether they want to be built anew, and do it. Whether any was. No I/O."""
        any_ = False
        for slot in [slot for slot in self._slots.values() if slot.agent == agent and slot.client is not None]:
            signature = self._read_signature(slot)
            if signature != slot.signature:
                any_ |= self._rebuild_client(slot)
        return any_

    def list_problems(self) -> list[ConfigProblem]:
        """What does not work now, and why. A missing variable or package is the configuration's to tell."""
        found = []
        for slot in self._slots.values():
            path, remedy = ("memories", slot.instance), slot.remedy or "`everhold logs` shows more"
            if slot.reason and slot.settings.is_ready:
                message = f"is not working for {slot.agent}: {slot.reason}"
                found.append(
                    ConfigProblem(message, remedy, path=path, fatal=False, disables=f"memories.{slot.instance}")
                )
            found += [ConfigProblem(what, remedy, path=path, fatal=False) for what in slot.warnings.values()]
        return found

    # -- changing ----------------------------------------------------------------------------------------------------

    def apply_settings(self, settings: Settings) -> None:
        """Another revision is in force: what it changes is built anew when it is next needed."""
        self.settings = settings
        for key, slot in list(self._slots.items()):
            wanted = self._find_settings(*key)
            if wanted != slot.settings:
                del self._slots[key]
                if slot.client is not None:
                    self._schedule_close(slot.client)
                    self.log.info("memory.replaced" if wanted else "memory.detached", memory=key[0], agent=key[1])

    async def close(self) -> None:
        """Let go of all of them."""
        for slot in self._slots.values():
            if slot.client is not None:
                self._schedule_close(slot.client)
        self._slots.clear()
        if self._closing_tasks:
            _, late = await asyncio.wait(self._closing_tasks, timeout=CLOSE_DEADLINE_SECONDS)
            for task in late:
                task.cancel()

    # -- building ----------------------------------------------------------------------------------------------------

    def _find_settings(self, instance: str, agent: str) -> MemorySettings | None:
        if self.has_no_memories or agent not in self.settings.agents:
            return None
        listed = next((it for it in self.settings.agents[agent].memories if it.name == instance), None)
        # what the gateway makes itself is there whether or not an agent lists it
        return listed or (self.settings.memories.get(instance) if instance in self.own_factories else None)

    def _try_build(self, slot: ProviderSlot) -> bool:
        slot.last_tried_at = self.clock.monotonic()
        before = slot.reason
        try:
            slot.client = self._build_client(slot)
        except EverholdError as error:
            slot.reason, slot.remedy = error.message, error.remedy
            if slot.reason != before:
                self._log_slot(slot, "memory.unavailable", error=slot.reason, remedy=slot.remedy)
            return False
        slot.reason = slot.remedy = ""
        slot.warnings.clear()
        slot.signature = self._read_signature(slot)
        return True

    def _rebuild_client(self, slot: ProviderSlot) -> bool:
        """Another object in place of one that wants to be replaced; if there is none to be had, the old one stays."""
        assert slot.client is not None
        old = slot.client
        try:
            slot.client = self._build_client(slot)
        except EverholdError as error:
            self._warn_once(old, "building", f"it asked to be built anew, and cannot be: {error}")
            return False
        slot.warnings.clear()
        slot.signature = self._read_signature(slot)
        self._schedule_close(old)
        self.log.info("memory.replaced", memory=slot.instance, agent=slot.agent)
        return True

    def _build_client(self, slot: ProviderSlot) -> MemoryClient:
        instance, agent, settings = slot.instance, slot.agent, slot.settings
        pulse = self._get_liveness(instance, agent)
        if instance in self.own_factories:
            return MemoryClient(self.own_factories[instance](agent), instance=instance, agent=agent, liveness=pulse)
        if not settings.is_ready:
            raise InvalidRequest(f"memory {instance} needs {', '.join(settings.missing)}", remedy="set it in .env")
        factory = self.load(settings.provider)
        directory = self.directory / instance / agent
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        context = PluginContext(
            agent=agent,
            instance=instance,
            directory=directory,
            log=self.log.bind(memory=instance, agent=agent),
            clock=self.clock,
        )

        def build() -> MemoryProvider:
            return factory(build_plugin_settings(settings, factory.Settings), context)

        return MemoryClient(
            call_plugin(f"building memory {instance}", build), instance=instance, agent=agent, liveness=pulse
        )

    def _get_liveness(self, instance: str, agent: str) -> MemoryLiveness:
        """How it has been doing under this name; whoever takes its place is asked at once."""
        key = (instance, agent)
        if key not in self._liveness:
            self._liveness[key] = MemoryLiveness(clock=self.clock, log=self.log.bind(memory=instance, agent=agent))
        self._liveness[key].find_calls.rests_until = 0.0
        return self._liveness[key]

    def _read_signature(self, slot: ProviderSlot) -> Mapping[str, Any] | None:
        """What the slot's provider says; what it said before if it does not say it properly."""
        assert slot.client is not None
        try:
            signature = slot.client.signature()
        except EverholdError as error:
            self._warn_once(slot.client, "signature", f"{error.message}; what there is stays in use")
            return slot.signature
        slot.warnings.pop("signature", None)
        return signature

    def _schedule_close(self, attached: MemoryClient) -> None:
        task = asyncio.get_running_loop().create_task(self._close_client(attached))
        self._closing_tasks.add(task)
        task.add_done_callback(self._closing_tasks.discard)

    async def _close_client(self, attached: MemoryClient) -> None:
        problem = await close_within(attached.close(), seconds=attached.deadline + CLOSE_DEADLINE_SECONDS)
        if problem:
            self.log.warning("memory.close_failed", memory=attached.instance, agent=attached.agent, error=problem)

    def _warn_once(self, attached: MemoryClient, about: str, what: str) -> None:
        """Say something once, and show it for as long as it is so."""
        slot = self._slots[attached.instance, attached.agent]
        if slot.warnings.get(about) != what:
            slot.warnings[about] = what
            self._log_slot(slot, "memory.warned", error=what)

    def _log_slot(self, slot: ProviderSlot, event: str, **fields: object) -> None:
        self.log.warning(event, memory=slot.instance, agent=slot.agent, **fields)


class MemoryTool:
    """A provider's tool. Whoever calls it reaches the object in use now, not the one that described it."""

    def __init__(self, instances: MemoryProviders, instance: str, offered: Tool, *, agent: str) -> None:
        self.spec: ToolSpec = offered.spec
        self.effect: ToolEffect = offered.effect
        self.deadline: float = offered.deadline
        self._providers = instances
        self._instance = instance
        self._agent = agent

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        attached, tool = self._find_current()
        with attached.hold_open():
            answer: object = await tool.run(arguments, context)
        if not isinstance(answer, ToolResult):
            raise InvalidRequest(
                f"{self.spec.name} of memory {self._instance} gave back a {type(answer).__name__}, no Result"
            )
        return answer

    async def probe(self, context: ToolContext) -> ToolResult | None:
        attached, tool = self._find_current()
        with attached.hold_open():
            return await tool.probe(context)

    def _find_current(self) -> tuple[MemoryClient, Tool]:
        attached = self._providers.find_client(self._instance, self._agent)
        tool = attached.tools.get(self.spec.name) if attached is not None else None
        if attached is None or tool is None:
            raise InvalidRequest(f"memory {self._instance} offers no {self.spec.name} any more: nothing was done")
        return attached, tool
