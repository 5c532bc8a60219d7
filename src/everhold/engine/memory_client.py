"""The memory client: a provider as the engine sees it. Only this module knows which methods of a provider are optional.

Missing methods have defaults, only declared capabilities are used, and every answer of the provider is checked.

The client also records the liveness of the memory, as this process has seen it: the last success, since when it fails,
and the last error. A memory whose searches fail repeatedly is paused for a while, so that no turn waits for it; a call
now and then shows whether it is back. A memory in this process is not paused, because one slow search says nothing
about the next. Storing is not paused, because its retry delays are in its cursor.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import math
import operator
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from msgspec import structs

from everhold.core.entries import strip_surrogates, strip_surrogates_deep
from everhold.core.peers import PeerRule
from everhold.core.retry import retry_delay_seconds
from everhold.core.tool_pins import MAX_TOOL_BYTES, measure_tool
from everhold.engine.effects import call_plugin
from everhold.errors import EverholdError, InDoubt, InvalidRequest, PartiallyDone, Refused, Transient
from everhold.ports.clock import Clock
from everhold.ports.log import EventLogger
from everhold.ports.memory import (
    ErasureState,
    ErasureTarget,
    ExtendedMemoryProvider,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryProvider,
    MemoryQuery,
    MemoryRetraction,
    MemoryScope,
    MemoryUtterance,
    ProviderDeletion,
    ProviderHealth,
    SessionRenewal,
    SessionSwitch,
)
from everhold.ports.model import ToolSpec
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.tool import Tool, ToolEffect

DEFAULT_DEADLINE_SECONDS: Final = 30.0
MAX_DEADLINE_SECONDS: Final = 600.0
MAX_PROMPT_CHARS: Final = 8_000
"""Characters a provider may add to the system prompt."""
MAX_ADVICE_CHARS: Final = 8_000
"""Characters that a provider may add to the advice for a summary."""
MAX_TOOLS: Final = 32
MAX_FAILURES_IN_A_ROW: Final = 3
"""After so many failures in a row a memory is paused."""
MAX_REST_SECONDS: Final = 60.0
_METHOD_BY_CAPABILITY: Final = {MemoryCapability.RETRACT: "store", MemoryCapability.JOBS: "store"}
"""Capabilities whose method has another name."""


class MemoryClient:
    """One provider for one agent, with a default for every optional method."""

    def __init__(
        self, provider: MemoryProvider, *, instance: str = "", agent: str = "", liveness: MemoryLiveness | None = None
    ) -> None:
        """`liveness` records how calls went, and pauses calls to a failing provider."""
        self.instance = instance or type(provider).__name__
        self.agent = agent
        self.liveness = liveness
        self._provider = cast(ExtendedMemoryProvider, provider)
        for method in ("store", "find"):
            self._require_method(method, "is not a memory provider")
        self.delivery: DeliveryGuarantee = self._parse_enum(
            DeliveryGuarantee, self._get_optional("delivery", DeliveryGuarantee.BLIND), "delivery"
        )
        declared = self._get_optional("capabilities", ())
        if isinstance(declared, str):
            raise self._build_error("its capabilities are text, not a set of names")
        self.capabilities = frozenset(self._parse_enum(MemoryCapability, it, "capability") for it in declared)
        if self.delivery is DeliveryGuarantee.PROBE:
            self.capabilities |= {MemoryCapability.PROBE}
        if self.capabilities & {MemoryCapability.FORGET, MemoryCapability.RENEW_SESSION}:
            self._require_method("confirm_deletions", "deletes")
        for capability in sorted(self.capabilities):
            self._require_method(_METHOD_BY_CAPABILITY.get(capability, capability), f"declares {capability}")
        self.deadline = self._read_seconds("deadline", DEFAULT_DEADLINE_SECONDS, least=0.001)
        self.visible_after = self._read_seconds("visible_after", 0.0, least=0.0)
        self.is_in_process = self._get_optional("is_in_process", False) is True
        self.peer_rule = self._get_optional("peer_rule", None)
        if self.peer_rule is not None and not isinstance(self.peer_rule, PeerRule):
            raise self._build_error("its `peer_rule` is not a PeerRule")
        self._open_calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def has_capability(self, capability: MemoryCapability) -> bool:
        return capability in self.capabilities

    # -- required methods --------------------------------------------------------------------------------------------

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        """Send a batch without the items that this provider does not use. An empty batch is not sent."""
        wanted = self._select_wanted(batch)
        if not wanted.items and not wanted.jobs:
            return {}
        with self._track_call(self.liveness.store_calls if self.liveness else None, "store"):
            answer: object = await self._provider.store(wanted)
            if not isinstance(answer, Mapping) or not all(
                isinstance(key, str) and isinstance(remote, str) for key, remote in answer.items()
            ):
                raise InDoubt(
                    f"memory {self.instance} answered `store` with {_describe_type(answer)}",
                    remedy="its author should return a mapping of each key to its remote id",
                )
        return {key: strip_surrogates(remote)[0] for key, remote in answer.items()}

    def get_recall_pause(self) -> float:
        """Return for how many seconds the memory is not asked to recall."""
        if self.is_in_process or self.liveness is None:
            return 0.0
        return self.liveness.get_rest_seconds(self.liveness.find_calls)

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        if seconds := self.get_recall_pause():
            raise Transient(f"memory {self.instance} fails and is not asked for {seconds:.0f} s")
        with self._track_call(self.liveness.find_calls if self.liveness else None, "find"):
            answer: object = await self._provider.find(query)
            if not isinstance(answer, Sequence) or isinstance(answer, str | bytes):
                raise Transient(
                    f"memory {self.instance} answered `find` with {_describe_type(answer)}", remedy=_HIT_REMEDY
                )
            return [self._check_hit(item) for item in answer[: query.limit]]

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        """Return the keys that have arrived. Keys that are never sent to this provider count as arrived."""
        wanted = self._select_wanted(batch)
        there = (*wanted.items, *wanted.jobs)
        skipped = [item.key for item in (*batch.items, *batch.jobs) if item not in there]
        if not there:
            return skipped
        with self.hold_open():
            answer: object = await self._provider.probe(wanted)
        if not isinstance(answer, Sequence | frozenset | set) or isinstance(answer, str | bytes):
            raise Transient(f"memory {self.instance} answered `probe` with {_describe_type(answer)}")
        return [*skipped, *(item.key for item in there if item.key in answer)]

    async def remove(self, batch: MemoryBatch) -> Sequence[str]:
        """Delete the items of a batch, and return the keys that are still found."""
        with self.hold_open():
            left: object = await self._provider.remove(batch)
        if not isinstance(left, Sequence) or isinstance(left, str | bytes):
            raise InDoubt(f"memory {self.instance} answered `remove` with {_describe_type(left)}")
        return [str(key) for key in left]

    async def remove_session(self, name: str) -> str:
        """Delete a session, and return why it was kept, if it was."""
        with self.hold_open():
            return str(await self._provider.remove_session(name))

    # -- optional methods --------------------------------------------------------------------------------------------

    @functools.cached_property
    def tools(self) -> Mapping[str, Tool]:
        """The provider's tools for the agent's model, by name. The provider is asked once."""
        if not self.has_capability(MemoryCapability.TOOLS):
            return {}
        offered: object = call_plugin(f"tools of memory {self.instance}", self._provider.tools)
        if not isinstance(offered, Sequence) or not all(is_tool(tool) for tool in offered):
            raise self._build_error("its `tools` are not a list of tools")
        if len(offered) > MAX_TOOLS:
            raise self._build_error(f"it offers {len(offered)} tools, more than {MAX_TOOLS}")
        for tool in offered:
            if objection := _find_tool_objection(tool.spec):
                raise self._build_error(f"its tool {str(tool.spec.name)[:100]!r} cannot be offered: {objection}")
        return {tool.spec.name: tool for tool in offered}

    def prompt(self) -> str:
        """The provider's part of the system prompt; empty if it has none."""
        if not self.has_capability(MemoryCapability.PROMPT):
            return ""
        text: object = call_plugin(f"prompt of memory {self.instance}", self._provider.prompt)
        return self._check_text(text, "prompt", most=MAX_PROMPT_CHARS)

    def set_persona(self, persona: str) -> None:
        """Pass on the agent's persona if the provider has a place for it."""
        if self.has_capability(MemoryCapability.PERSONA):
            hook = self._provider.set_persona
            call_plugin(f"set_persona of memory {self.instance}", lambda: hook(persona))

    def signature(self) -> dict[str, str | int | float | bool | None] | None:
        """The values that require a new instance when they change. Raises InvalidRequest if the provider raised, or
        returned something else.
        """
        if not self.has_capability(MemoryCapability.SIGNATURE):
            return None
        hook = self._provider.cache_busting_signature
        signature: object = call_plugin(f"cache_busting_signature of memory {self.instance}", hook)
        if signature is None:
            return None
        if not isinstance(signature, dict) or not all(
            isinstance(key, str) and isinstance(value, str | int | float | None) for key, value in signature.items()
        ):
            raise self._build_error("its `cache_busting_signature` is not a flat dict of texts and numbers")
        return dict(signature)

    async def before_compress(self, scope: MemoryScope, view: Sequence[MemoryUtterance]) -> str:
        with self.hold_open():
            text: object = await self._provider.before_compress(scope, view)
        return self._check_text(text, "before_compress", most=MAX_ADVICE_CHARS)

    async def session_switched(self, switch: SessionSwitch) -> None:
        with self.hold_open():
            await self._provider.session_switched(switch)

    async def renew_session(self, renewal: SessionRenewal) -> Sequence[ProviderDeletion]:
        with self.hold_open():
            return self._check_deletions(await self._provider.renew_session(renewal), "renew_session")

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        with self.hold_open():
            return self._check_deletions(await self._provider.forget(target), "forget")

    def _check_deletions(self, answer: object, what: str) -> list[ProviderDeletion]:
        if not isinstance(answer, Sequence) or not all(isinstance(it, ProviderDeletion) for it in answer):
            raise InDoubt(f"memory {self.instance} answered `{what}` with {_describe_type(answer)}")
        return list(answer)

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> dict[str, ErasureState]:
        """Return the state of each deletion. A deletion that the provider does not name is still `asked`."""
        with self.hold_open():
            answer: object = await self._provider.confirm_deletions(deletions)
        if not isinstance(answer, Mapping):
            raise Transient(f"memory {self.instance} answered `confirm_deletions` with {_describe_type(answer)}")
        return {
            it.id: state if isinstance(state := answer.get(it.id), ErasureState) else ErasureState.ASKED
            for it in deletions
        }

    async def export(
        self, person: str, *, peers: Sequence[str] = (), shared_peers: Sequence[str] = ()
    ) -> AsyncIterator[MemoryHit]:
        options = {"peers": peers, "shared_peers": shared_peers} if self.peer_rule is not None else {}
        with self.hold_open():
            async for item in self._provider.export(person, **options):
                yield self._check_hit(item)

    async def health(self) -> ProviderHealth:
        with self.hold_open():
            health: object = await self._provider.health()
        if not isinstance(health, ProviderHealth):
            raise Transient(f"memory {self.instance} answered `health` with {_describe_type(health)}")
        return health

    async def close(self) -> None:
        """Close the provider's connections, after the running calls have ended."""
        await self._idle.wait()
        if self.has_capability(MemoryCapability.CLOSE):
            await self._provider.close()

    # -- helpers -----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def hold_open(self) -> Iterator[None]:
        """Keep the provider open while a call is running."""
        self._open_calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._open_calls -= 1
            if not self._open_calls:
                self._idle.set()

    def record_hook(self, name: str, problem: str) -> None:
        """Record the outcome of a hook."""
        if self.liveness is None:
            return
        self.liveness.hook_errors.pop(name, None)
        if problem:
            self.liveness.hook_errors[name] = problem

    @contextlib.contextmanager
    def _track_call(self, calls: CallLiveness | None, what: str) -> Iterator[None]:
        """Record the outcome of a call. A refusal does not count as a failure of the provider."""
        with self.hold_open():
            try:
                yield
            except (Refused, PartiallyDone):
                self._record_call(calls, "")
                raise
            except asyncio.CancelledError:
                self._record_call(calls, f"no answer to `{what}` in time")
                raise
            except BaseException as error:
                known = isinstance(error, EverholdError)
                self._record_call(calls, str(error) if known else f"{type(error).__name__}: {error}")
                raise
            self._record_call(calls, "")

    def _record_call(self, calls: CallLiveness | None, problem: str) -> None:
        if self.liveness is None or calls is None:
            return
        if problem:
            self.liveness.record_failure(calls, problem)
        else:
            self.liveness.record_success(calls)

    def _select_wanted(self, batch: MemoryBatch) -> MemoryBatch:
        if batch.jobs and not self.has_capability(MemoryCapability.JOBS):
            batch = structs.replace(batch, jobs=())
        if self.has_capability(MemoryCapability.RETRACT):
            return batch
        return structs.replace(batch, items=tuple(it for it in batch.items if not isinstance(it, MemoryRetraction)))

    def _check_hit(self, item: object) -> MemoryHit:
        if not isinstance(item, MemoryHit) or not _is_well_typed(item):
            raise Transient(f"memory {self.instance} found {_describe_type(item)}", remedy=_HIT_REMEDY)
        return strip_surrogates_deep(item)

    def _check_text(self, text: object, what: str, *, most: int) -> str:
        if text is None:
            return ""
        if not isinstance(text, str):
            raise self._build_error(f"its `{what}` is {_describe_type(text)}")
        return strip_surrogates(text)[0][:most]

    def _get_optional(self, name: str, default: Any) -> Any:
        return getattr(self._provider, name, default)

    def _require_method(self, method: str, why: str) -> None:
        if not callable(self._get_optional(method, None)):
            raise self._build_error(f"it {why}, but has no `{method}`")

    def _read_seconds(self, name: str, default: float, *, least: float) -> float:
        value = self._get_optional(name, default)
        if not _is_number(value) or not least <= value <= MAX_DEADLINE_SECONDS:
            raise self._build_error(
                f"its `{name}` is {value!r}, not a number of seconds up to {MAX_DEADLINE_SECONDS:g}"
            )
        return float(value)

    def _parse_enum(self, kind: Callable[[Any], Any], value: object, what: str) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise self._build_error(f"{value!r} is not a known {what}") from None

    def _build_error(self, what: str) -> InvalidRequest:
        return InvalidRequest(f"memory {self.instance}: {what}", remedy="`everhold plugin test` shows its author more")


_HIT_REMEDY: Final = "its author should return a list of MemoryHit"


MAX_INTEGER: Final = (1 << 63) - 1
"""A larger one cannot be stored."""


def _is_number(value: object) -> bool:
    kind = type(value)
    if kind is int:
        return -MAX_INTEGER <= value <= MAX_INTEGER  # type: ignore[operator]  # it is one
    if kind is not float and (kind is bool or not isinstance(value, int | float)):
        return False
    return math.isfinite(value)  # type: ignore[arg-type]  # it is one


_read_hit_texts: Final[Callable[[MemoryHit], tuple[object, ...]]] = operator.attrgetter(
    "text", "session", "person", "key", "author", "kind", "origin", "remote_id"
)
HIT_TEXT_TYPES: Final = [str] * 8


def _is_well_typed(item: MemoryHit) -> bool:
    """Return whether all fields have the declared types."""
    # one comparison for the usual case, because a search has many hits
    if list(map(type, _read_hit_texts(item))) != HIT_TEXT_TYPES and not all(
        isinstance(text, str) for text in _read_hit_texts(item)
    ):
        return False
    return _is_number(item.score) and _is_number(item.at) and _is_number(item.seq)


def is_tool(thing: object) -> bool:
    """Return whether a plug-in's object can be called by a model."""
    parts = [getattr(thing, name, None) for name in ("spec", "effect", "deadline", "run")]
    spec, effect, deadline, run = parts
    return isinstance(spec, ToolSpec) and isinstance(effect, ToolEffect) and _is_number(deadline) and callable(run)


def _find_tool_objection(spec: ToolSpec) -> str:
    """Return why a tool cannot be sent to a model; empty if it can. A plug-in made it, so its fields may be anything,
    and it would be part of every request."""
    name: object = spec.name
    description: object = spec.description
    parameters: object = spec.parameters
    if not isinstance(name, str) or not isinstance(description, str):
        return "its name or description is not text"
    try:
        size = measure_tool(spec) if isinstance(parameters, dict) else None
    except (TypeError, ValueError, RecursionError):
        size = None
    if size is None:
        return "its parameters are not an object of JSON"
    if size > MAX_TOOL_BYTES:
        return f"its name, description and parameters have {size:,} bytes, more than {MAX_TOOL_BYTES:,}"
    return ""


def _describe_type(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}, which is not what was asked for"


# -- liveness ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class CallLiveness:
    """The outcomes of one kind of call: storing, or finding. Times are wall-clock times."""

    last_success_at: float | None = None
    failures: int = 0
    """Failures in a row."""
    failing_since: float | None = None
    """The time of the first of them."""
    error: str = ""
    """The last error. It stays readable after a recovery."""
    last_failure_at: float | None = None
    rests_until: float = 0.0
    """Until when no call is made."""

    @property
    def is_failing(self) -> bool:
        return self.failures > 0


class MemoryLiveness:
    """The liveness of one memory of one agent. It outlives the client, because a new client does not mean that the
    service is back.
    """

    def __init__(self, *, clock: Clock, log: EventLogger) -> None:
        self.clock = clock
        self.log = log
        self.store_calls = CallLiveness()
        self.find_calls = CallLiveness()
        self.hook_errors: dict[str, str] = {}
        """Hook -> the error of its last call."""

    @property
    def is_failing(self) -> bool:
        return self.store_calls.is_failing or self.find_calls.is_failing

    def record_success(self, calls: CallLiveness) -> None:
        if calls.is_failing:
            what = "storing" if calls is self.store_calls else "finding"
            self.log.info("memory.recovered", what=what, failures=calls.failures, since=calls.failing_since)
        calls.last_success_at, calls.failures, calls.failing_since, calls.rests_until = self.clock.now(), 0, None, 0.0

    def record_failure(self, calls: CallLiveness, error: str) -> None:
        now = self.clock.now()
        calls.failures += 1
        calls.error, calls.last_failure_at = error, now
        if calls.failing_since is None:
            calls.failing_since = now
            what = "storing" if calls is self.store_calls else "finding"
            self.log.warning("memory.failing", what=what, error=error)
        tries = calls.failures - MAX_FAILURES_IN_A_ROW
        if tries >= 0:
            wait = retry_delay_seconds(tries + 3, jitter=0.0)
            calls.rests_until = now + min(MAX_REST_SECONDS, wait or MAX_REST_SECONDS)

    def get_rest_seconds(self, calls: CallLiveness) -> float:
        """Return for how many seconds no call should be made. A clock that went back ends the pause."""
        left = calls.rests_until - self.clock.now()
        return left if 0 < left <= MAX_REST_SECONDS else 0.0
