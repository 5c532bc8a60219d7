"""The agent runtime: the models, tools, prompt and memories of one agent. `assembly` builds it, and the engine only
reads it.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from everhold.core.attachments import drop_oversized_files
from everhold.core.budget import name_person_budget
from everhold.core.consumers import get_reply_parts, memory_consumer, place_consumer
from everhold.core.entries import Attachment, ChatLocation, EntryBody, ModelUsage, Said, Stamp, Thought
from everhold.core.inbox import BusyPolicy
from everhold.core.memory_naming import SessionOrigin
from everhold.core.memory_pacing import MemoryPacing
from everhold.core.message_split import split_text
from everhold.core.policy import ToolPolicy
from everhold.core.roles import PersonRole, ToolRule
from everhold.core.tokens import (
    UNCALIBRATED,
    estimate_max_tokens,
    estimate_tokens,
    update_calibration,
    weigh_request,
    weigh_text,
    weigh_tools,
)
from everhold.engine.budgets import BudgetLimit
from everhold.engine.facts import FactCache
from everhold.engine.memory_client import MemoryClient
from everhold.ports.model import Model, ModelRequest, ToolSpec
from everhold.ports.platform import Platform, SupportsDrafts
from everhold.ports.store import BudgetSpend, Wakeup
from everhold.ports.tool import Tool, ToolEffect, get_access

DEFAULT_MAX_OUTPUT_TOKENS: Final = 4_096
"""The assumed limit of an answer in tokens, if the configuration gives none."""


class TokenMeter:
    """The token calibration of a model. All callers of the model share it. It is not stored, because it is learned
    again quickly.
    """

    def __init__(self) -> None:
        self.calibration = UNCALIBRATED

    def estimate_tokens(self, weight: int) -> int:
        return estimate_tokens(weight, self.calibration)

    def estimate_max_tokens(self, weight: int) -> int:
        return estimate_max_tokens(weight, self.calibration)

    def learn(self, weight: int, usage: ModelUsage) -> None:
        self.calibration = update_calibration(self.calibration, weight=weight, tokens=usage.input)


class RequestBlob:
    """A part of every request of an agent, as it is stored: the same in each turn."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.digest = hashlib.sha256(data).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolOffer:
    """The tools that a turn may call, and how they are stored."""

    specs: tuple[ToolSpec, ...]
    blob: RequestBlob


@dataclasses.dataclass(frozen=True, kw_only=True)
class DelegateLimits:
    """What one sub-agent may use. Beyond that it answers with what it has."""

    rounds: int = 30
    minutes: float = 30.0
    tokens: int = 500_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentRuntime:
    """One agent as it is configured now."""

    agent: str
    system: str
    models: tuple[Model, ...]
    """The first one is asked; the others if it cannot answer."""
    summariser: Model
    model: str = ""
    """The configured name of the first model."""
    waits_for: str = ""
    """Identifies the list of models: another list has another value. Empty: waits are not tied to models."""
    model_choices: tuple[str, ...] = ()
    """The names of the models that a session may choose."""
    tools: Mapping[str, Tool] = dataclasses.field(default_factory=dict)
    tool_needs: Mapping[str, PersonRole] = dataclasses.field(default_factory=dict)
    """Tool -> a role that it needs in addition to what the table of roles says."""
    get_policy: Callable[[], ToolPolicy | None] = lambda: None
    """Returns the policy in force, which judges every call; None: every call that the roles allow runs."""
    is_operator: Callable[[str], bool] = lambda _identity: False
    """Whether an identity is that of an operator of this gateway."""
    wait_for_tools: Callable[[], Awaitable[None]] | None = None
    """Waits, for a limited time, for tools that are starting. Ask for the runtime again afterwards."""
    delegate_limits: DelegateLimits = DelegateLimits()
    """What each of its sub-agents may use."""
    send_to: tuple[str, ...] = ()
    """The addresses that the agent may write to, and where its schedules may deliver."""
    memories: tuple[str, ...] = ()
    pacing: Mapping[str, MemoryPacing] = dataclasses.field(default_factory=dict)
    """Memory -> when it receives exchanges, if not after every turn."""
    switch_memories: tuple[str, ...] = ()
    """Memories that are notified of session switches."""
    job_memories: tuple[str, ...] = ()
    """Memories that receive the results of jobs."""
    busy_policy: BusyPolicy = "queue"
    soft_share: float = 0.6
    hard_share: float = 0.85
    keep_turns: int = 6
    compress_in_background: bool = True
    model_deadline_seconds: float = 600.0
    meter: TokenMeter = dataclasses.field(default_factory=TokenMeter)
    limits: Callable[[Stamp, PersonRole], Sequence[BudgetLimit]] = lambda _stamp, _role: ()
    """The budgets that pay for a turn with this stamp, if its person has this role."""
    job_limits: Callable[[], Sequence[BudgetLimit]] = lambda: ()
    """The budgets that pay for jobs."""
    choose_memory_name: Callable[[str, SessionOrigin], str] = lambda _memory, origin: origin.session
    """(memory, what is known of a session) -> the name under which the memory stores the session."""
    recall_memories: tuple[str, ...] = ()
    """Memories that are asked about every message, in order of precedence."""
    shadow_memories: tuple[str, ...] = ()
    """Memories that are asked about every message for comparison. What they find is recorded and never shown."""
    search_memories: tuple[str, ...] = ()
    """Further memories, which are asked only if a person searches."""
    recall_seconds: float = 0.0
    """How long a turn waits for recall; 0: no recall."""
    recall_tokens: int = 1_700
    fact_cache: FactCache | None = None
    """The facts of the agent; None: the agent has no facts."""
    note_cache: FactCache | None = None
    """Tells which notes are still valid, for agents without facts, too; None: all notes count as valid."""
    memory_notices: bool = False
    """Show a notice in the chat when something was noted."""
    review_every_turns: int = 0
    """A review runs after so many turns; 0: never."""
    price_usd: Callable[[int, int], float] = lambda _input, _output: 0.0
    """The price in US dollars of so many input and output tokens, for the most expensive model that may be asked."""
    explain_unfit_model: Callable[[str], str] = lambda _name: ""
    """Returns why a model cannot be chosen for this agent; empty if it can."""
    describe_time: Callable[[Stamp], str] = lambda _stamp: ""
    """Returns date, weekday, time and zone for the person of a stamp; empty: turns are not told the time."""
    zone: datetime.tzinfo = datetime.UTC
    """The time zone of schedules."""
    max_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS
    """The limit of an answer in tokens, for budgets."""
    text_limit: Callable[[ChatLocation], int] = lambda _: 4_000
    file_limit: Callable[[ChatLocation], int] = lambda _: 0
    """The largest file in bytes that a chat accepts; 0: it accepts none."""
    is_pull_location: Callable[[ChatLocation], bool] = lambda _: False
    """Whether the client at this location reads the log itself, so that a committed reply counts as delivered."""

    def list_asked_job_limits(self, stamp: Stamp, role: PersonRole) -> tuple[BudgetLimit, ...]:
        """The budgets that pay for work beside the conversation that a person asked for: the person's, too. Otherwise
        nobody's limit would hold for what is done later or by a sub-agent."""
        own = name_person_budget(stamp)
        return (*self.job_limits(), *(limit for limit in self.limits(stamp, role) if limit.budget == own))

    @property
    def hard_limit_tokens(self) -> int:
        """Above this size of the context, a turn waits for a compression."""
        return int(self.models[0].context_tokens * self.hard_share)

    @functools.cached_property
    def all_memories(self) -> tuple[str, ...]:
        """All memories: those that are asked, those that only receive, and those that are only searched."""
        return tuple(dict.fromkeys((*self.recall_memories, *self.memories, *self.search_memories)))

    @functools.cached_property
    def shown_memories(self) -> tuple[str, ...]:
        """All memories but those that are only compared."""
        return tuple(name for name in self.all_memories if name not in self.shadow_memories)

    @functools.cached_property
    def tool_effects(self) -> dict[str, ToolEffect]:
        return {name: tool.effect for name, tool in self.tools.items()}

    @functools.cached_property
    def tool_rules(self) -> dict[str, ToolRule]:
        """What the table of roles and the configuration say about each tool."""
        lowest = PersonRole.STRANGER
        return {
            name: ToolRule(get_access(tool), self.tool_needs.get(name, lowest)) for name, tool in self.tools.items()
        }

    @functools.cached_property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The descriptions of the tools for the model."""
        return tuple(tool.spec for tool in self.tools.values())

    @functools.cached_property
    def tools_blob(self) -> RequestBlob:
        return RequestBlob(msgspec.json.encode(self.tool_specs))

    @functools.cached_property
    def offers(self) -> dict[frozenset[str], ToolOffer]:
        """The tools that turns were offered, by those that were refused to them."""
        return {}

    def offer_tools(self, refused: Collection[str] = ()) -> ToolOffer:
        """Return the tools that a turn is offered: all except `refused`."""
        if not refused:
            return ToolOffer(specs=self.tool_specs, blob=self.tools_blob)
        key = frozenset(refused)
        if key not in self.offers:
            specs = tuple(tool.spec for name, tool in self.tools.items() if name not in key)
            self.offers[key] = ToolOffer(specs=specs, blob=RequestBlob(msgspec.json.encode(specs)))
        return self.offers[key]

    @functools.cached_property
    def prompt_blob(self) -> RequestBlob:
        return RequestBlob(self.system.encode())

    @functools.cached_property
    def overhead_weight(self) -> int:
        """The weight of the parts of a request that are not messages."""
        return weigh_text(self.system) + weigh_tools(self.tool_specs)

    def weigh_request(self, request: ModelRequest) -> int:
        return weigh_request(request)

    def estimate_abandoned_usage(self, weight: int, words: str) -> ModelUsage:
        """Estimate the cost of an abandoned call: the whole input, and the output so far."""
        reading, writing = self.meter.estimate_tokens(weight), self.meter.estimate_tokens(weigh_text(words))
        return ModelUsage(input=reading, output=writing, usd=self.price_usd(reading, writing))

    @functools.cached_property
    def author(self) -> str:
        return f"agent:{self.agent}"

    def build_said(
        self, text: str, to: ChatLocation, *, hops: int, stamp: Stamp, files: Sequence[Attachment] = ()
    ) -> Said:
        """Return a reply as its chat accepts it: in parts, and with the files that fit."""
        text, fit = drop_oversized_files(text, files, most=self.file_limit(to))
        return Said(
            text=text, to=to, parts=split_text(text, self.text_limit(to)), hops=hops, attachments=fit, stamp=stamp
        )

    def list_platform_wakeups(self, bodies: Iterable[EntryBody]) -> tuple[Wakeup, ...]:
        """Return wakeups of the platform consumers that deliver these bodies."""
        places = [place for body in bodies if (place := get_reply_parts(body)[0]) is not None]
        consumers = dict.fromkeys(place_consumer(place) for place in places if not self.is_pull_location(place))
        return tuple(Wakeup(consumer=consumer) for consumer in consumers)

    def list_memory_wakeups(self) -> tuple[Wakeup, ...]:
        """Return wakeups of the consumers of this agent's memories."""
        return tuple(Wakeup(consumer=memory_consumer(memory)) for memory in self.memories)

    def list_job_wakeups(self) -> tuple[Wakeup, ...]:
        """Return wakeups of the memories that receive the results of jobs."""
        return tuple(
            Wakeup(consumer=memory_consumer(memory)) for memory in self.memories if memory in self.job_memories
        )

    def list_switch_wakeups(self) -> tuple[Wakeup, ...]:
        """Return wakeups of the memories that hold items back, or that are notified of session switches."""
        hear = {*self.pacing, *self.switch_memories}
        return tuple(Wakeup(consumer=memory_consumer(memory)) for memory in self.memories if memory in hear)


def build_job_spends(
    runtime: AgentRuntime, thoughts: Iterable[Thought], *, day: str, asked_by: Stamp | None = None
) -> tuple[BudgetSpend, ...]:
    """Return what a job has cost, and the budgets that pay for it. `asked_by` is who asked for it."""
    payers: tuple[str, ...] = (f"background:{runtime.agent}", runtime.author)
    if asked_by is not None and asked_by.person:
        payers += (name_person_budget(asked_by),)
    return tuple(
        BudgetSpend(budget=budget, day=day, usd=thought.usage.usd, tokens=thought.usage.input + thought.usage.output)
        for thought in thoughts
        for budget in payers
        if thought.usage.input or thought.usage.output
    )


class AgentRuntimes(Protocol):
    """Provides the runtimes of all agents. It may return a new runtime after every change of the configuration."""

    def get_runtime(self, agent: str, choices: Mapping[str, str]) -> AgentRuntime: ...

    def find_platform(self, name: str, account: str) -> Platform | None: ...

    def find_draft_platform(self, name: str, account: str) -> SupportsDrafts | None:
        """Return the platform if it can show drafts."""

    def get_in_doubt_policy(self, consumer: str, agent: str) -> str:
        """`resend` or `hold`: what to do with an item in doubt whose delivery is not keyed."""

    def find_memory(self, instance: str, agent: str) -> MemoryClient | None:
        """Return the memory in use now. Do not keep it, because the next call may need another one."""

    def list_memories(self) -> Sequence[MemoryClient]:
        """Return every memory in use now."""
