"""Builds memory providers from the settings when they are first needed, one object per instance and agent.

A provider that cannot be built does not affect anything else: its items wait in the log, and `status` shows the reason.
When its settings or its signature change, the next call goes to a new object. The old one is closed after its last
running call.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from everhold.config import ConfigProblem, MemorySettings, Settings, build_plugin_settings
from everhold.core.entries import Stamp
from everhold.core.policy import ToolReach
from everhold.core.roles import ToolAccess
from everhold.core.tool_pins import RESERVED_TOOL_NAMES
from everhold.engine.effects import call_plugin, close_within
from everhold.engine.memory.peers import PeerRegistry
from everhold.engine.memory.recall import HitJudge
from everhold.engine.memory.tombstones import is_withheld
from everhold.engine.memory_client import MemoryClient, MemoryLiveness
from everhold.errors import EverholdError, InvalidRequest
from everhold.infra.child_process import NO_SANDBOX_MEANING, SandboxKind
from everhold.infra.plugins import MEMORY_PLUGINS, PluginFactory
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger
from everhold.ports.memory import MemoryHit, MemoryProvider
from everhold.ports.model import ToolSpec
from everhold.ports.plugin import PluginContext
from everhold.ports.tool import Tool, ToolContext, ToolEffect, ToolResult, get_access

REBUILD_RETRY_SECONDS: Final = 60.0
"""How long after a failure building an instance is retried, because a missing package may have been installed."""
CLOSE_DEADLINE_SECONDS: Final = 10.0


@dataclasses.dataclass
class ProviderSlot:
    """One memory of one agent: its settings, and its client or the reason why there is none."""

    instance: str
    agent: str
    settings: MemorySettings
    client: MemoryClient | None = None
    signature: Mapping[str, Any] | None = None
    reason: str = ""
    """Why there is no client."""
    remedy: str = ""
    warnings: dict[str, str] = dataclasses.field(default_factory=dict)
    """Problems of a working client, by subject."""
    last_tried_at: float = float("-inf")


class MemoryProviders:
    """Every memory of every agent that was needed so far. Providers that are only installed are never loaded."""

    def __init__(
        self,
        settings: Settings,
        *,
        log: EventLogger,
        clock: Clock,
        directory: Path,
        home: Path | None = None,
        own_factories: Mapping[str, Callable[[str], MemoryProvider]] | None = None,
        load: Callable[[str], PluginFactory[MemoryProvider]] = MEMORY_PLUGINS.load,
        has_no_memories: bool = False,
    ) -> None:
        """`own_factories` build the gateway's own instances, by name, for an agent."""
        self.settings = settings
        self.log = log
        self.clock = clock
        self.directory = directory
        self.home = home
        self.own_factories = own_factories or {}
        self.load = load
        self.has_no_memories = has_no_memories
        self.peers: PeerRegistry | None = None
        """The peers of the people present, for the tools of memories."""
        self.on_change: Callable[[str], None] = lambda _agent: None
        """Called with an agent when one of its memories becomes available."""
        self.make_judge: Callable[[str, Stamp], HitJudge] | None = None
        """(agent, stamp) -> judges what tools find. Without it no tool shows anything that was found."""
        self._slots: dict[tuple[str, str], ProviderSlot] = {}
        self._liveness: dict[tuple[str, str], MemoryLiveness] = {}
        self._closing_tasks: set[asyncio.Task[None]] = set()

    # -- finding -----------------------------------------------------------------------------------------------------

    def find_client(self, instance: str, agent: str) -> MemoryClient | None:
        """The client of an agent's memory; None if there is none, or it cannot be built."""
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
        """The clients of an agent's working memories, in the order of the configuration."""
        for memory in self.settings.get_agent(agent).memories:
            if (client := self.find_client(memory.name, agent)) is not None:
                yield client

    def list_clients(self) -> list[MemoryClient]:
        """All clients that are in use now, of all agents."""
        return [slot.client for slot in self._slots.values() if slot.client is not None]

    def list_shown_clients(self, agent: str) -> Iterator[MemoryClient]:
        """The clients of an agent's memories but those that are only compared."""
        hidden = {memory.name for memory in self.settings.get_agent(agent).memories if memory.shadow}
        return (client for client in self.list_agent_clients(agent) if client.instance not in hidden)

    def list_tools(self, agent: str) -> dict[str, Tool]:
        """The tools of an agent's memories, by name. If two memories use a name, the first one's tool is used. No
        memory gets the name of a built-in tool.
        """
        found: dict[str, Tool] = {}
        for client in self.list_shown_clients(agent):
            try:
                tools = client.tools
            except EverholdError as error:
                self._warn_once(client, "tools", str(error))
                continue
            for name, tool in tools.items():
                if name in found or name in RESERVED_TOOL_NAMES:
                    owner = "everhold" if name in RESERVED_TOOL_NAMES else "another memory"
                    self._warn_once(client, "tools", f"its tool {name} is not used, because {owner} has one")
                else:
                    found[name] = MemoryTool(self, client.instance, tool, agent=agent)
        return found

    def list_prompts(self, agent: str) -> Sequence[str]:
        """The prompt blocks of an agent's memories."""
        blocks = []
        for client in self.list_shown_clients(agent):
            try:
                blocks.append(client.prompt().strip())
            except EverholdError as error:
                self._warn_once(client, "prompt", str(error))
        return [block for block in blocks if block]

    def rebuild_changed(self, agent: str) -> bool:
        """Rebuild the memories of an agent whose signature changed. Return whether there was any. No I/O."""
        rebuilt = False
        for slot in [slot for slot in self._slots.values() if slot.agent == agent and slot.client is not None]:
            signature = self._read_signature(slot)
            if signature != slot.signature:
                rebuilt |= self._rebuild_client(slot)
        return rebuilt

    def list_problems(self) -> list[ConfigProblem]:
        """The present problems of memories. Missing variables and packages are reported by the configuration."""
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

    def list_risks(self) -> list[ConfigProblem]:
        """Return the memories whose program runs without a sandbox."""
        remedy = "remove `sandbox: none` if the plug-in works without it"
        found = {slot.instance: slot.settings.extra.get("sandbox") for slot in self._slots.values()}
        return [
            ConfigProblem(NO_SANDBOX_MEANING, remedy, path=("memories", name), fatal=False)
            for name, sandbox in found.items()
            if sandbox == SandboxKind.NONE
        ]

    # -- changing ----------------------------------------------------------------------------------------------------

    def apply_settings(self, settings: Settings) -> None:
        """Apply a new revision of the settings. Changed memories are rebuilt when they are next needed."""
        former, self.settings = self.settings, settings
        for key, slot in list(self._slots.items()):
            wanted = self._find_settings(*key)
            if wanted != slot.settings:
                del self._slots[key]
                if slot.client is not None:
                    self._schedule_close(slot.client)
                    self.log.info("memory.replaced" if wanted else "memory.detached", memory=key[0], agent=key[1])
            elif slot.client is not None and _get_persona(former, slot.agent) != _get_persona(settings, slot.agent):
                self._pass_persona(slot)

    async def close(self) -> None:
        """Close all clients."""
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
        # the gateway's own instances exist whether or not an agent lists them
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
        self._pass_persona(slot)
        return True

    def _rebuild_client(self, slot: ProviderSlot) -> bool:
        """Replace a client whose signature changed. If the new one cannot be built, the old one stays."""
        assert slot.client is not None
        old = slot.client
        try:
            slot.client = self._build_client(slot)
        except EverholdError as error:
            self._warn_once(old, "building", f"its signature changed, but it cannot be rebuilt: {error}")
            return False
        slot.warnings.clear()
        slot.signature = self._read_signature(slot)
        self._pass_persona(slot)
        self._schedule_close(old)
        self.log.info("memory.replaced", memory=slot.instance, agent=slot.agent)
        return True

    def _build_client(self, slot: ProviderSlot) -> MemoryClient:
        instance, agent, settings = slot.instance, slot.agent, slot.settings
        liveness = self._get_liveness(instance, agent)
        if instance in self.own_factories:
            return MemoryClient(self.own_factories[instance](agent), instance=instance, agent=agent, liveness=liveness)
        if not settings.is_ready:
            raise InvalidRequest(f"memory {instance} needs {', '.join(settings.missing)}", remedy="set it in .env")
        factory = self.load(settings.provider)
        directory = self.directory / instance / agent
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        context = PluginContext(
            agent=agent,
            instance=instance,
            directory=directory,
            home=self.home,
            log=self.log.bind(memory=instance, agent=agent),
            clock=self.clock,
            is_owner=self._is_owner,
        )

        def build() -> MemoryProvider:
            return factory(build_plugin_settings(settings, factory.Settings), context)

        return MemoryClient(
            call_plugin(f"building memory {instance}", build), instance=instance, agent=agent, liveness=liveness
        )

    def _is_owner(self, identity: str) -> bool | None:
        """Return whether an identity is the first owner's; None if none is configured.

        Only the configuration counts, and the names that only this machine's user and its tokens can use. A link may be
        taken back, and what was said meanwhile would stay with the owner.
        """
        owners = self.settings.access.owners
        if not owners:
            return None
        if identity in self.settings.identities:
            return self.settings.identities[identity] == owners[0]
        return identity in (owners[0], f"local:{owners[0]}", f"http:{owners[0]}")

    def _pass_persona(self, slot: ProviderSlot) -> None:
        assert slot.client is not None
        try:
            slot.client.set_persona(_get_persona(self.settings, slot.agent))
        except EverholdError as error:
            self._warn_once(slot.client, "persona", str(error))

    def _get_liveness(self, instance: str, agent: str) -> MemoryLiveness:
        """The liveness record of a memory, which survives a rebuild. A rebuilt memory may be searched at once."""
        key = (instance, agent)
        if key not in self._liveness:
            self._liveness[key] = MemoryLiveness(clock=self.clock, log=self.log.bind(memory=instance, agent=agent))
        self._liveness[key].find_calls.rests_until = 0.0
        return self._liveness[key]

    def _read_signature(self, slot: ProviderSlot) -> Mapping[str, Any] | None:
        """The signature of the slot's provider, or the former one if it cannot be read."""
        assert slot.client is not None
        try:
            signature = slot.client.signature()
        except EverholdError as error:
            self._warn_once(slot.client, "signature", f"{error.message}; the present client stays in use")
            return slot.signature
        slot.warnings.pop("signature", None)
        return signature

    def _schedule_close(self, client: MemoryClient) -> None:
        task = asyncio.get_running_loop().create_task(self._close_client(client))
        self._closing_tasks.add(task)
        task.add_done_callback(self._closing_tasks.discard)

    async def _close_client(self, client: MemoryClient) -> None:
        problem = await close_within(client.close(), seconds=client.deadline + CLOSE_DEADLINE_SECONDS)
        if problem:
            self.log.warning("memory.close_failed", memory=client.instance, agent=client.agent, error=problem)

    def _warn_once(self, client: MemoryClient, about: str, what: str) -> None:
        """Log a problem once, and show it in `status` while it lasts."""
        slot = self._slots[client.instance, client.agent]
        if slot.warnings.get(about) != what:
            slot.warnings[about] = what
            self._log_slot(slot, "memory.warned", error=what)

    def _log_slot(self, slot: ProviderSlot, event: str, **fields: object) -> None:
        self.log.warning(event, memory=slot.instance, agent=slot.agent, **fields)


class MemoryTool:
    """A provider's tool. A call goes to the client that is in use now, not to the one that described the tool."""

    def __init__(self, providers: MemoryProviders, instance: str, tool: Tool, *, agent: str) -> None:
        self.spec: ToolSpec = tool.spec
        self.effect: ToolEffect = tool.effect
        self.access: ToolAccess = get_access(tool)
        self.deadline: float = tool.deadline
        self._providers = providers
        self._instance = instance
        self._agent = agent

    def find_reach(self, arguments: dict[str, Any]) -> ToolReach:
        return (
            ToolReach.OWN
        )  # the memory receives this conversation anyway; the table of roles limits who may change it

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        client, tool = self._find_current()
        if not getattr(tool, "shows_hits", False) and await self._is_withheld(context):
            return ToolResult(
                text=f"{self.spec.name} is not available here now: {self._instance} has not confirmed that it deleted "
                "erased or undone text, and its answers cannot be checked. Tools that search still work.",
                error=True,
            )
        registry = self._providers.peers
        if registry is not None and client.peer_rule is not None:
            people = await registry.store.get_people()
            present = people.expand_audience(context.stamp.audience)
            peers = await registry.list_present_peers(self._instance, self._agent, present)
            context = structs.replace(context, present=present, peers=peers)
        with client.hold_open():
            result: object = await tool.run(arguments, context)
        if not isinstance(result, ToolResult):
            raise InvalidRequest(
                f"{self.spec.name} of memory {self._instance} returned a {type(result).__name__}, not a ToolResult"
            )
        return await self._render_hits(result, context)

    async def _is_withheld(self, context: ToolContext) -> bool:
        """Whether the memory may reason from something that is being erased or was undone, for the people present."""
        if self._providers.make_judge is None:
            return False
        store = self._providers.make_judge(self._agent, context.stamp).store
        return await is_withheld(store, self._instance, agent=self._agent, audience=context.stamp.audience)

    async def _render_hits(self, result: ToolResult, context: ToolContext) -> ToolResult:
        """Return the result with the hits that may be shown as text. A tool never renders what it found."""
        if not result.hits:
            return result
        make_judge = self._providers.make_judge
        judge = make_judge(self._agent, context.stamp) if make_judge is not None else None
        shown = await judge.select_visible(self._instance, result.hits) if judge is not None else []
        text = "\n\n".join(render_tool_hit(it) for it in shown)
        return structs.replace(result, text=text or result.text, hits=())

    async def probe(self, context: ToolContext) -> ToolResult | None:
        client, tool = self._find_current()
        with client.hold_open():
            return await tool.probe(context)

    def _find_current(self) -> tuple[MemoryClient, Tool]:
        client = self._providers.find_client(self._instance, self._agent)
        tool = client.tools.get(self.spec.name) if client is not None else None
        if client is None or tool is None:
            raise InvalidRequest(f"memory {self._instance} no longer offers {self.spec.name}, so nothing was done")
        return client, tool


def _get_persona(settings: Settings, agent: str) -> str:
    return settings.agents[agent].persona if agent in settings.agents else ""


def render_tool_hit(hit: MemoryHit) -> str:
    """Return a hit as a model reads it: its id if the tool can take it, its person, its text."""
    about = hit.remote_id or hit.person
    return f"[{about}] {hit.text}" if about else hit.text
