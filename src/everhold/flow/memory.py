"""A memory provider as the flows see it: the one place that knows which of its parts are optional.

What a provider leaves out has a default, only what it declares is asked of it, and what it answers is looked at before
anybody believes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from msgspec import structs

from everhold.core.entries import clean, cleansed
from everhold.errors import EverholdError, InDoubt, Misuse, Partial, Refused, Transient
from everhold.flow.perform import foreign
from everhold.flow.pulse import Beat, Pulse
from everhold.ports.memory import (
    Batch,
    Capability,
    Capable,
    Forgotten,
    Found,
    Health,
    MemoryProvider,
    Query,
    Retraction,
    Scope,
    Switch,
    Utterance,
)
from everhold.ports.model import ToolSpec
from everhold.ports.platform import Delivery
from everhold.ports.tool import Effect, Tool

DEADLINE_SECONDS: Final = 30.0
LONGEST_DEADLINE_SECONDS: Final = 600.0
LONGEST_PROMPT: Final = 8_000
"""Characters a provider may add to the system prompt."""
LONGEST_ADVICE: Final = 8_000
"""Characters a provider may add to what a summary should not lose."""
MOST_TOOLS: Final = 32
_METHODS: Final = {Capability.RETRACT: "store", Capability.JOBS: "store"}
"""Capabilities that are no method of their own name."""


class Attached:
    """One provider for one agent, with every part there is."""

    def __init__(
        self, provider: MemoryProvider, *, instance: str = "", agent: str = "", pulse: Pulse | None = None
    ) -> None:
        """`pulse` is where it is written down how calls went, and who is left alone for a while."""
        self.instance = instance or type(provider).__name__
        self.agent = agent
        self.pulse = pulse
        self._provider = cast(Capable, provider)
        for method in ("store", "find"):
            self._must_have(method, "is no memory provider")
        self.delivery: Delivery = self._one_of(Delivery, self._part("delivery", Delivery.BLIND), "delivery")
        declared = self._part("capabilities", ())
        if isinstance(declared, str):
            raise self._wrong("its capabilities are text, not a set of names")
        self.capabilities = frozenset(self._one_of(Capability, it, "capability") for it in declared)
        if self.delivery is Delivery.PROBE:
            self.capabilities |= {Capability.PROBE}
        for capability in sorted(self.capabilities):
            self._must_have(_METHODS.get(capability, capability), f"declares {capability}")
        self.deadline = self._seconds("deadline", DEADLINE_SECONDS, least=0.001)
        self.visible_after = self._seconds("visible_after", 0.0, least=0.0)
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def can(self, capability: Capability) -> bool:
        return capability in self.capabilities

    # -- what every provider does ------------------------------------------------------------------------------------

    async def store(self, batch: Batch) -> Mapping[str, str]:
        """Hand a batch over, without what this provider has no use for. An empty one is not handed over."""
        wanted = self._wanted(batch)
        if not wanted.items and not wanted.jobs:
            return {}
        with self._counted(self.pulse.storing if self.pulse else None, "store"):
            answer: object = await self._provider.store(wanted)
            if not isinstance(answer, Mapping) or not all(
                isinstance(key, str) and isinstance(remote, str) for key, remote in answer.items()
            ):
                raise InDoubt(
                    f"memory {self.instance} answered `store` with {_kind(answer)}",
                    remedy="its author should give back a mapping of each key to the id it has there",
                )
        return {key: clean(remote)[0] for key, remote in answer.items()}

    async def find(self, query: Query) -> Sequence[Found]:
        if self.pulse and (seconds := self.pulse.resting(self.pulse.finding)):
            raise Transient(f"memory {self.instance} fails, and is not asked for another {seconds:.0f} s")
        with self._counted(self.pulse.finding if self.pulse else None, "find"):
            answer: object = await self._provider.find(query)
            if not isinstance(answer, Sequence) or isinstance(answer, str | bytes):
                raise Transient(f"memory {self.instance} answered `find` with {_kind(answer)}", remedy=_FOUND)
            return [self._found(item) for item in answer[: query.limit]]

    async def probe(self, batch: Batch) -> Sequence[str]:
        """Those keys that have arrived; what is never handed over is nothing to wait for."""
        wanted = self._wanted(batch)
        there = (*wanted.items, *wanted.jobs)
        skipped = [item.key for item in (*batch.items, *batch.jobs) if item not in there]
        if not there:
            return skipped
        with self.busy():
            answer: object = await self._provider.probe(wanted)
        if not isinstance(answer, Sequence | frozenset | set) or isinstance(answer, str | bytes):
            raise Transient(f"memory {self.instance} answered `probe` with {_kind(answer)}")
        return [*skipped, *(item.key for item in there if item.key in answer)]

    # -- what only some do -------------------------------------------------------------------------------------------

    @functools.cached_property
    def tools(self) -> Mapping[str, Tool]:
        """What the agent's model may call, by name. Asked once."""
        if not self.can(Capability.TOOLS):
            return {}
        offered: object = foreign(f"tools of memory {self.instance}", self._provider.tools)
        if not isinstance(offered, Sequence) or not all(is_tool(tool) for tool in offered):
            raise self._wrong("its `tools` are no list of tools")
        if len(offered) > MOST_TOOLS:
            raise self._wrong(f"it offers {len(offered)} tools, more than {MOST_TOOLS}")
        return {tool.spec.name: tool for tool in offered}

    def prompt(self) -> str:
        """Its block of the system prompt, or nothing."""
        if not self.can(Capability.PROMPT):
            return ""
        text: object = foreign(f"prompt of memory {self.instance}", self._provider.prompt)
        return self._text(text, "prompt", most=LONGEST_PROMPT)

    def signature(self) -> dict[str, str | int | float | bool | None] | None:
        """What, when it changes, calls for a new instance. Raises Misuse if the provider raised, or talks nonsense."""
        if not self.can(Capability.SIGNATURE):
            return None
        hook = self._provider.cache_busting_signature
        signature: object = foreign(f"cache_busting_signature of memory {self.instance}", hook)
        if signature is None:
            return None
        if not isinstance(signature, dict) or not all(
            isinstance(key, str) and isinstance(value, str | int | float | None) for key, value in signature.items()
        ):
            raise self._wrong("its `cache_busting_signature` is no flat dict of texts and numbers")
        return dict(signature)

    async def before_compress(self, scope: Scope, view: Sequence[Utterance]) -> str:
        with self.busy():
            text: object = await self._provider.before_compress(scope, view)
        return self._text(text, "before_compress", most=LONGEST_ADVICE)

    async def session_switched(self, switch: Switch) -> None:
        with self.busy():
            await self._provider.session_switched(switch)

    async def forget(self, person: str) -> Forgotten:
        with self.busy():
            forgotten: object = await self._provider.forget(person)
        if not isinstance(forgotten, Forgotten):
            raise InDoubt(f"memory {self.instance} answered `forget` with {_kind(forgotten)}")
        return forgotten

    async def export(self, person: str) -> AsyncIterator[Found]:
        with self.busy():
            async for item in self._provider.export(person):
                yield self._found(item)

    async def health(self) -> Health:
        with self.busy():
            health: object = await self._provider.health()
        if not isinstance(health, Health):
            raise Transient(f"memory {self.instance} answered `health` with {_kind(health)}")
        return health

    async def close(self) -> None:
        """Let its connections go, once nobody is asking it any more."""
        await self._idle.wait()
        if self.can(Capability.CLOSE):
            await self._provider.close()

    # -- small things ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Somebody is asking it: it is not closed meanwhile."""
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    def hook(self, name: str, problem: str) -> None:
        """How a hook went that concerns nobody else."""
        if self.pulse is None:
            return
        self.pulse.hooks.pop(name, None)
        if problem:
            self.pulse.hooks[name] = problem

    @contextlib.contextmanager
    def _counted(self, beat: Beat | None, what: str) -> Iterator[None]:
        """A call whose outcome says how the provider is doing. That it refuses something is no sign of illness."""
        with self.busy():
            try:
                yield
            except (Refused, Partial):
                self._beats(beat, "")
                raise
            except asyncio.CancelledError:
                self._beats(beat, f"no answer to `{what}` in time")
                raise
            except BaseException as error:
                known = isinstance(error, EverholdError)
                self._beats(beat, str(error) if known else f"{type(error).__name__}: {error}")
                raise
            self._beats(beat, "")

    def _beats(self, beat: Beat | None, problem: str) -> None:
        if self.pulse is None or beat is None:
            return
        if problem:
            self.pulse.ill(beat, problem)
        else:
            self.pulse.well(beat)

    def _wanted(self, batch: Batch) -> Batch:
        if batch.jobs and not self.can(Capability.JOBS):
            batch = structs.replace(batch, jobs=())
        if self.can(Capability.RETRACT):
            return batch
        return structs.replace(batch, items=tuple(it for it in batch.items if not isinstance(it, Retraction)))

    def _found(self, item: object) -> Found:
        if not isinstance(item, Found) or not _is_whole(item):
            raise Transient(f"memory {self.instance} found {_kind(item)}", remedy=_FOUND)
        return cleansed(item)

    def _text(self, text: object, what: str, *, most: int) -> str:
        if text is None:
            return ""
        if not isinstance(text, str):
            raise self._wrong(f"its `{what}` is {_kind(text)}")
        return clean(text)[0][:most]

    def _part(self, name: str, default: Any) -> Any:
        return getattr(self._provider, name, default)

    def _must_have(self, method: str, why: str) -> None:
        if not callable(self._part(method, None)):
            raise self._wrong(f"it {why}, but has no `{method}`")

    def _seconds(self, name: str, default: float, *, least: float) -> float:
        value = self._part(name, default)
        if not _is_number(value) or not least <= value <= LONGEST_DEADLINE_SECONDS:
            raise self._wrong(f"its `{name}` is {value!r}, not a number of seconds up to {LONGEST_DEADLINE_SECONDS:g}")
        return float(value)

    def _one_of(self, kind: Callable[[Any], Any], value: object, what: str) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise self._wrong(f"{value!r} is no {what} known here") from None

    def _wrong(self, what: str) -> Misuse:
        return Misuse(f"memory {self.instance}: {what}", remedy="`everhold plugin test` shows its author more")


_FOUND: Final = "its author should give back a list of Found"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(item: Found) -> bool:
    """Whether everything in it is of the kind it should be."""
    texts: tuple[object, ...] = (item.text, item.session, item.person, item.key, item.author, item.kind, item.origin)
    for text in texts:
        if not isinstance(text, str):
            return False
    return _is_number(item.score) and _is_number(item.at) and _is_number(item.seq)


def is_tool(thing: object) -> bool:
    """Whether somebody's object is what a model may call."""
    parts = [getattr(thing, name, None) for name in ("spec", "effect", "deadline", "run")]
    spec, effect, deadline, run = parts
    return isinstance(spec, ToolSpec) and isinstance(effect, Effect) and _is_number(deadline) and callable(run)


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}, which is not what was asked for"
