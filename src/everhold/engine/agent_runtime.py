"""What an agent brings to its turns: models, tools, prompt, memories. Built elsewhere, read here, never changed."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from everhold.core.attachments import drop_oversized_files
from everhold.core.consumers import get_reply_parts, memory_consumer, place_consumer
from everhold.core.entries import Attachment, ChatLocation, EntryBody, ModelUsage, Said, Stamp, Thought
from everhold.core.inbox import BusyPolicy
from everhold.core.memory_naming import SessionOrigin
from everhold.core.memory_pacing import MemoryPacing
from everhold.core.message_split import split_text
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
from everhold.ports.tool import Tool, ToolEffect

DEFAULT_MAX_OUTPUT_TOKENS: Final = 4_096
"""Tokens an answer is taken to have at most, where nobody has said."""


class TokenMeter:
    """What a model's reports teach about its tokens. Shared by all who ask it, and never stored: it relearns."""

    def __init__(self) -> None:
        self.calibration = UNCALIBRATED

    def estimate_tokens(self, weight: int) -> int:
        return estimate_tokens(weight, self.calibration)

    def estimate_max_tokens(self, weight: int) -> int:
        return estimate_max_tokens(weight, self.calibration)

    def learn(self, weight: int, usage: ModelUsage) -> None:
        self.calibration = update_calibration(self.calibration, weight=weight, tokens=usage.input)


class RequestBlob:
    """What every request of an agent carries, as it is filed: the same turn after turn."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.digest = hashlib.sha256(data).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentRuntime:
    """One agent as configured now."""

    agent: str
    system: str
    models: tuple[Model, ...]
    """The first is asked; the others when it cannot be."""
    summariser: Model
    model: str = ""
    """The name of the first one in the configuration."""
    waits_for: str = ""
    """Stands for all of them: another word, if anybody else is asked. Empty: nobody keeps count."""
    model_choices: tuple[str, ...] = ()
    """The names of those that a session may choose from."""
    tools: Mapping[str, Tool] = dataclasses.field(default_factory=dict)
    wait_for_tools: Callable[[], Awaitable[None]] | None = None
    """Tools that are on their way: wait for them, but not for ever, then ask for the runtime again."""
    memories: tuple[str, ...] = ()
    pacing: Mapping[str, MemoryPacing] = dataclasses.field(default_factory=dict)
    """When a memory is handed what was said, if not after every turn."""
    switch_memories: tuple[str, ...] = ()
    """Memories that want to hear where the talk takes a turn."""
    job_memories: tuple[str, ...] = ()
    """Memories that want to hear what came of a job, as far as anybody knows."""
    busy_policy: BusyPolicy = "queue"
    soft_share: float = 0.6
    hard_share: float = 0.85
    keep_turns: int = 6
    compress_in_background: bool = True
    model_deadline_seconds: float = 600.0
    meter: TokenMeter = dataclasses.field(default_factory=TokenMeter)
    limits: Callable[[Stamp], Sequence[BudgetLimit]] = lambda _: ()
    """The purses a turn for somebody draws on."""
    job_limits: Callable[[], Sequence[BudgetLimit]] = lambda: ()
    """The purses that work beside the conversation draws on."""
    choose_memory_name: Callable[[str, SessionOrigin], str] = lambda _memory, origin: origin.session
    """(memory instance, what is known of a session) -> the name that instance files it under."""
    recall_memories: tuple[str, ...] = ()
    """Memories that are asked about every message, the one with precedence first."""
    search_memories: tuple[str, ...] = ()
    """Memories besides those, which are looked into when somebody searches."""
    recall_seconds: float = 0.0
    """How long a turn waits for them; 0: nothing is recalled."""
    recall_tokens: int = 1_700
    fact_cache: FactCache | None = None
    """Where the facts are that an agent keeps in mind; None: it keeps none."""
    note_cache: FactCache | None = None
    """Who knows which notes still hold, whether the agent keeps facts or not; None: all of them are taken to."""
    memory_notices: bool = False
    """Say in the chat when something was remembered."""
    review_every_turns: int = 0
    """Turns after which what was said is looked through for what to remember; 0: never."""
    price_usd: Callable[[int, int], float] = lambda _input, _output: 0.0
    """US dollars for so many tokens in and out, of the dearest model that may be asked."""
    explain_unfit_model: Callable[[str], str] = lambda _name: ""
    """Why a model cannot be chosen for this agent; nothing if it can."""
    zone: datetime.tzinfo = datetime.UTC
    """Where a schedule's times are meant."""
    max_output_tokens: int = DEFAULT_MAX_OUTPUT_TOKENS
    """Tokens an answer may have, as far as a budget is concerned."""
    text_limit: Callable[[ChatLocation], int] = lambda _: 4_000
    file_limit: Callable[[ChatLocation], int] = lambda _: 0
    """The largest file that a place takes, in bytes; 0: it takes none."""
    is_pull_location: Callable[[ChatLocation], bool] = lambda _: False
    """Whether whoever is there reads the log itself, so that a committed reply is a delivered one."""

    @functools.cached_property
    def all_memories(self) -> tuple[str, ...]:
        """Every memory there is: those that are asked, those that are only told, and those that are only searched."""
        return tuple(dict.fromkeys((*self.recall_memories, *self.memories, *self.search_memories)))

    @functools.cached_property
    def tool_effects(self) -> dict[str, ToolEffect]:
        return {name: tool.effect for name, tool in self.tools.items()}

    @functools.cached_property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """What a model is told about the tools."""
        return tuple(tool.spec for tool in self.tools.values())

    @functools.cached_property
    def tools_blob(self) -> RequestBlob:
        return RequestBlob(msgspec.json.encode(self.tool_specs))

    @functools.cached_property
    def prompt_blob(self) -> RequestBlob:
        return RequestBlob(self.system.encode())

    @functools.cached_property
    def overhead_weight(self) -> int:
        """The weight of what every request carries besides messages."""
        return weigh_text(self.system) + weigh_tools(self.tool_specs)

    def weigh_request(self, request: ModelRequest) -> int:
        return weigh_request(request)

    def estimate_abandoned_usage(self, weight: int, words: str) -> ModelUsage:
        """About what a call has cost that was given up: all that was to be read, and what came of the answer."""
        reading, writing = self.meter.estimate_tokens(weight), self.meter.estimate_tokens(weigh_text(words))
        return ModelUsage(input=reading, output=writing, usd=self.price_usd(reading, writing))

    @functools.cached_property
    def author(self) -> str:
        return f"agent:{self.agent}"

    def build_said(
        self, text: str, to: ChatLocation, *, hops: int, stamp: Stamp, files: Sequence[Attachment] = ()
    ) -> Said:
        """A reply as its place takes it: in parts, and with those of its files that fit."""
        text, fit = drop_oversized_files(text, files, most=self.file_limit(to))
        return Said(
            text=text, to=to, parts=split_text(text, self.text_limit(to)), hops=hops, attachments=fit, stamp=stamp
        )

    def list_platform_wakeups(self, bodies: Iterable[EntryBody]) -> tuple[Wakeup, ...]:
        """The voice lanes that have something to deliver once these bodies are committed."""
        places = [place for body in bodies if (place := get_reply_parts(body)[0]) is not None]
        consumers = dict.fromkeys(place_consumer(place) for place in places if not self.is_pull_location(place))
        return tuple(Wakeup(consumer=consumer) for consumer in consumers)

    def list_memory_wakeups(self) -> tuple[Wakeup, ...]:
        """The lanes of this agent's memories."""
        return tuple(Wakeup(consumer=memory_consumer(memory)) for memory in self.memories)

    def list_job_wakeups(self) -> tuple[Wakeup, ...]:
        """The lanes of those memories that want to hear what came of a job."""
        return tuple(
            Wakeup(consumer=memory_consumer(memory)) for memory in self.memories if memory in self.job_memories
        )

    def list_switch_wakeups(self) -> tuple[Wakeup, ...]:
        """The lanes of those memories that hold something back, or want to hear that the talk takes a turn."""
        hear = {*self.pacing, *self.switch_memories}
        return tuple(Wakeup(consumer=memory_consumer(memory)) for memory in self.memories if memory in hear)


def list_turn_budgets(agent: str, stamp: Stamp, *, scheduled: bool = False) -> tuple[str, ...]:
    """The purses that pay for a turn: the agent's, the person's, the conversation's. Schedules are background work."""
    if scheduled:
        return f"background:{agent}", f"agent:{agent}"
    return f"agent:{agent}", f"person:{stamp.person}", f"chat:{stamp.address}"


def build_job_spends(runtime: AgentRuntime, thoughts: Iterable[Thought], *, day: str) -> tuple[BudgetSpend, ...]:
    """What work beside the conversation has cost, and who pays for it."""
    return tuple(
        BudgetSpend(budget=budget, day=day, usd=thought.usage.usd, tokens=thought.usage.input + thought.usage.output)
        for thought in thoughts
        for budget in (f"background:{runtime.agent}", runtime.author)
        if thought.usage.input or thought.usage.output
    )


class AgentRuntimes(Protocol):
    """Where the flows find what they work with. May hand out something new after every change of configuration."""

    def get_runtime(self, agent: str, choices: Mapping[str, str]) -> AgentRuntime: ...

    def find_platform(self, name: str, account: str) -> Platform | None: ...

    def find_draft_platform(self, name: str, account: str) -> SupportsDrafts | None:
        """The platform as one that can show growing replies, if it can."""

    def get_in_doubt_policy(self, consumer: str, agent: str) -> str:
        """`resend` or `hold`: what to do about something unkeyed of an agent whose answer was lost."""

    def find_memory(self, instance: str, agent: str) -> MemoryClient | None:
        """The memory in use now: the next call may have to go to another one, so nobody keeps it."""

    def list_memories(self) -> Sequence[MemoryClient]:
        """Every memory that is in use now."""
