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

from everhold.config import MemorySettings, Problem, Settings, plugin_settings
from everhold.errors import EverholdError, Misuse
from everhold.flow.memory import Attached
from everhold.flow.perform import foreign, let_go
from everhold.flow.pulse import Pulse
from everhold.plugins import MEMORIES, Factory
from everhold.ports.clock import Clock
from everhold.ports.log import Log
from everhold.ports.memory import MemoryProvider
from everhold.ports.model import ToolSpec
from everhold.ports.plugin import Context
from everhold.ports.tool import Effect, Result, Tool, ToolContext

AGAIN_SECONDS: Final = 60.0
"""How long after a failure nobody tries to build an instance: a package may have been installed meanwhile."""
CLOSE_SECONDS: Final = 10.0


@dataclasses.dataclass
class Slot:
    """One instance of one agent: what it is built from, and what came of it."""

    instance: str
    agent: str
    settings: MemorySettings
    attached: Attached | None = None
    signature: Mapping[str, Any] | None = None
    reason: str = ""
    """Why there is none."""
    remedy: str = ""
    complaints: dict[str, str] = dataclasses.field(default_factory=dict)
    """What is wrong with one that works all the same, by what it is about."""
    tried: float = float("-inf")


class Instances:
    """Every memory of every agent that somebody has needed so far. What is merely installed is never touched."""

    def __init__(
        self,
        settings: Settings,
        *,
        log: Log,
        clock: Clock,
        directory: Path,
        own: Mapping[str, Callable[[str], MemoryProvider]] | None = None,
        load: Callable[[str], Factory[MemoryProvider]] = MEMORIES.load,
        idle: bool = False,
    ) -> None:
        """`own` are instances that the gateway itself makes, by name, for an agent. `idle`: there are none at all."""
        self.settings = settings
        self.log = log
        self.clock = clock
        self.directory = directory
        self.own = own or {}
        self.load = load
        self.idle = idle
        self.changed: Callable[[str], None] = lambda _agent: None
        """Hears which agent has a memory that it did not have before."""
        self._slots: dict[tuple[str, str], Slot] = {}
        self._pulses: dict[tuple[str, str], Pulse] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    # -- asking ------------------------------------------------------------------------------------------------------

    def get(self, instance: str, agent: str) -> Attached | None:
        """The memory an agent knows under this name; None if there is none, or none that works."""
        key = (instance, agent)
        slot = self._slots.get(key)
        if slot is None:
            settings = self._configured(instance, agent)
            if settings is None:
                return None
            slot = self._slots[key] = Slot(instance, agent, settings)
        if slot.attached is None and self.clock.monotonic() - slot.tried >= AGAIN_SECONDS:
            late = bool(slot.reason)
            if self._built(slot) and late:
                self.changed(agent)
        return slot.attached

    def of(self, agent: str) -> Iterator[Attached]:
        """Every memory of an agent that works, in the order they are configured."""
        for memory in self.settings.agent(agent).memories:
            if (attached := self.get(memory.name, agent)) is not None:
                yield attached

    def attached(self) -> list[Attached]:
        """Those that are in use now, whoever's they are."""
        return [slot.attached for slot in self._slots.values() if slot.attached is not None]

    def tools(self, agent: str) -> dict[str, Tool]:
        """What an agent's memories let its model call, under the names they give; the first to use a name has it."""
        found: dict[str, Tool] = {}
        for attached in self.of(agent):
            try:
                offers = attached.tools
            except EverholdError as error:
                self._complain(attached, "tools", str(error))
                continue
            for name, offered in offers.items():
                if name in found:
                    self._complain(attached, "tools", f"its tool {name} is not used: another memory has one")
                else:
                    found[name] = MemoryTool(self, attached.instance, offered, agent=agent)
        return found

    def prompts(self, agent: str) -> Sequence[str]:
        """What the memories of an agent want said in its prompt."""
        blocks = []
        for attached in self.of(agent):
            try:
                blocks.append(attached.prompt().strip())
            except EverholdError as error:
                self._complain(attached, "prompt", str(error))
        return [block for block in blocks if block]

    def renewed(self, agent: str) -> bool:
        """Ask the memories of an agent whether they want to be built anew, and do it. Whether any was. No I/O."""
        any_ = False
        for slot in [slot for slot in self._slots.values() if slot.agent == agent and slot.attached is not None]:
            signature = self._signature(slot)
            if signature != slot.signature:
                any_ |= self._rebuild(slot)
        return any_

    def problems(self) -> list[Problem]:
        """What does not work now, and why. A missing variable or package is the configuration's to tell."""
        found = []
        for slot in self._slots.values():
            path, remedy = ("memories", slot.instance), slot.remedy or "`everhold logs` shows more"
            if slot.reason and slot.settings.ready:
                message = f"is not working for {slot.agent}: {slot.reason}"
                found.append(Problem(message, remedy, path=path, fatal=False, disables=f"memories.{slot.instance}"))
            found += [Problem(what, remedy, path=path, fatal=False) for what in slot.complaints.values()]
        return found

    # -- changing ----------------------------------------------------------------------------------------------------

    def adopt(self, settings: Settings) -> None:
        """Another revision is in force: what it changes is built anew when it is next needed."""
        self.settings = settings
        for key, slot in list(self._slots.items()):
            wanted = self._configured(*key)
            if wanted != slot.settings:
                del self._slots[key]
                if slot.attached is not None:
                    self._let_go(slot.attached)
                    self.log.info("memory.replaced" if wanted else "memory.detached", memory=key[0], agent=key[1])

    async def close(self) -> None:
        """Let go of all of them."""
        for slot in self._slots.values():
            if slot.attached is not None:
                self._let_go(slot.attached)
        self._slots.clear()
        if self._leaving:
            _, late = await asyncio.wait(self._leaving, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()

    # -- building ----------------------------------------------------------------------------------------------------

    def _configured(self, instance: str, agent: str) -> MemorySettings | None:
        if self.idle or agent not in self.settings.agents:
            return None
        listed = next((it for it in self.settings.agents[agent].memories if it.name == instance), None)
        # what the gateway makes itself is there whether or not an agent lists it
        return listed or (self.settings.memories.get(instance) if instance in self.own else None)

    def _built(self, slot: Slot) -> bool:
        slot.tried = self.clock.monotonic()
        before = slot.reason
        try:
            slot.attached = self._make(slot)
        except EverholdError as error:
            slot.reason, slot.remedy = error.message, error.remedy
            if slot.reason != before:
                self._say(slot, "memory.unavailable", error=slot.reason, remedy=slot.remedy)
            return False
        slot.reason = slot.remedy = ""
        slot.complaints.clear()
        slot.signature = self._signature(slot)
        return True

    def _rebuild(self, slot: Slot) -> bool:
        """Another object in place of one that wants to be replaced; if there is none to be had, the old one stays."""
        assert slot.attached is not None
        old = slot.attached
        try:
            slot.attached = self._make(slot)
        except EverholdError as error:
            self._complain(old, "building", f"it asked to be built anew, and cannot be: {error}")
            return False
        slot.complaints.clear()
        slot.signature = self._signature(slot)
        self._let_go(old)
        self.log.info("memory.replaced", memory=slot.instance, agent=slot.agent)
        return True

    def _make(self, slot: Slot) -> Attached:
        instance, agent, settings = slot.instance, slot.agent, slot.settings
        pulse = self._pulse(instance, agent)
        if instance in self.own:
            return Attached(self.own[instance](agent), instance=instance, agent=agent, pulse=pulse)
        if not settings.ready:
            raise Misuse(f"memory {instance} needs {', '.join(settings.missing)}", remedy="set it in .env")
        factory = self.load(settings.provider)
        directory = self.directory / instance / agent
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        context = Context(
            agent=agent,
            instance=instance,
            directory=directory,
            log=self.log.bind(memory=instance, agent=agent),
            clock=self.clock,
        )

        def build() -> MemoryProvider:
            return factory(plugin_settings(settings, factory.Settings), context)

        return Attached(foreign(f"building memory {instance}", build), instance=instance, agent=agent, pulse=pulse)

    def _pulse(self, instance: str, agent: str) -> Pulse:
        """How it has been doing under this name; whoever takes its place is asked at once."""
        key = (instance, agent)
        if key not in self._pulses:
            self._pulses[key] = Pulse(clock=self.clock, log=self.log.bind(memory=instance, agent=agent))
        self._pulses[key].finding.rests = 0.0
        return self._pulses[key]

    def _signature(self, slot: Slot) -> Mapping[str, Any] | None:
        """What the slot's provider says; what it said before if it does not say it properly."""
        assert slot.attached is not None
        try:
            signature = slot.attached.signature()
        except EverholdError as error:
            self._complain(slot.attached, "signature", f"{error.message}; what there is stays in use")
            return slot.signature
        slot.complaints.pop("signature", None)
        return signature

    def _let_go(self, attached: Attached) -> None:
        task = asyncio.get_running_loop().create_task(self._close(attached))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _close(self, attached: Attached) -> None:
        problem = await let_go(attached.close(), seconds=attached.deadline + CLOSE_SECONDS)
        if problem:
            self.log.warning("memory.not_closed", memory=attached.instance, agent=attached.agent, error=problem)

    def _complain(self, attached: Attached, about: str, what: str) -> None:
        """Say something once, and show it for as long as it is so."""
        slot = self._slots[attached.instance, attached.agent]
        if slot.complaints.get(about) != what:
            slot.complaints[about] = what
            self._say(slot, "memory.complaint", error=what)

    def _say(self, slot: Slot, event: str, **fields: object) -> None:
        self.log.warning(event, memory=slot.instance, agent=slot.agent, **fields)


class MemoryTool:
    """A provider's tool. Whoever calls it reaches the object in use now, not the one that described it."""

    def __init__(self, instances: Instances, instance: str, offered: Tool, *, agent: str) -> None:
        self.spec: ToolSpec = offered.spec
        self.effect: Effect = offered.effect
        self.deadline: float = offered.deadline
        self._instances = instances
        self._instance = instance
        self._agent = agent

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        attached, tool = self._now()
        with attached.busy():
            answer: object = await tool.run(arguments, context)
        if not isinstance(answer, Result):
            raise Misuse(f"{self.spec.name} of memory {self._instance} gave back a {type(answer).__name__}, no Result")
        return answer

    async def probe(self, context: ToolContext) -> Result | None:
        attached, tool = self._now()
        with attached.busy():
            return await tool.probe(context)

    def _now(self) -> tuple[Attached, Tool]:
        attached = self._instances.get(self._instance, self._agent)
        tool = attached.tools.get(self.spec.name) if attached is not None else None
        if attached is None or tool is None:
            raise Misuse(f"memory {self._instance} offers no {self.spec.name} any more: nothing was done")
        return attached, tool
