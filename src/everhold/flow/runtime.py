"""What an agent brings to its turns: models, tools, prompt, memories. Built elsewhere, read here, never changed."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from everhold.core.attachments import fitting
from everhold.core.consumers import get_reply_parts, memory_consumer, place_consumer
from everhold.core.entries import Attachment, Body, Place, Said, Stamp, Thought, Usage
from everhold.core.mailbox import Busy
from everhold.core.naming import Origin
from everhold.core.pace import Pace
from everhold.core.split import split
from everhold.core.tokens import UNCALIBRATED, ceiling, expected, observe, weigh, weigh_request, weigh_tools
from everhold.flow.facts import Facts
from everhold.flow.memory import Attached
from everhold.flow.purse import Limit
from everhold.ports.model import Model, Request, ToolSpec
from everhold.ports.platform import Drafting, Platform
from everhold.ports.store import Spend, Wakeup
from everhold.ports.tool import Effect, Tool

MOST_OUTPUT: Final = 4_096
"""Tokens an answer is taken to have at most, where nobody has said."""


class Meter:
    """What a model's reports teach about its tokens. Shared by all who ask it, and never stored: it relearns."""

    def __init__(self) -> None:
        self.calibration = UNCALIBRATED

    def tokens(self, weight: int) -> int:
        return expected(weight, self.calibration)

    def most(self, weight: int) -> int:
        return ceiling(weight, self.calibration)

    def learn(self, weight: int, usage: Usage) -> None:
        self.calibration = observe(self.calibration, weight=weight, tokens=usage.input)


class Sheet:
    """What every request of an agent carries, as it is filed: the same turn after turn."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.digest = hashlib.sha256(data).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Runtime:
    """One agent as configured now."""

    agent: str
    system: str
    models: tuple[Model, ...]
    """The first is asked; the others when it cannot be."""
    summariser: Model
    model: str = ""
    """The name of the first one in the configuration."""
    whom: str = ""
    """Stands for all of them: another word, if anybody else is asked. Empty: nobody keeps count."""
    choices: tuple[str, ...] = ()
    """The names of those that a session may choose from."""
    tools: Mapping[str, Tool] = dataclasses.field(default_factory=dict)
    coming: Callable[[], Awaitable[None]] | None = None
    """Tools that are on their way: wait for them, but not for ever, then ask for the runtime again."""
    memories: tuple[str, ...] = ()
    paces: Mapping[str, Pace] = dataclasses.field(default_factory=dict)
    """When a memory is handed what was said, if not after every turn."""
    attentive: tuple[str, ...] = ()
    """Memories that want to hear where the talk takes a turn."""
    overseeing: tuple[str, ...] = ()
    """Memories that want to hear what came of a job, as far as anybody knows."""
    busy: Busy = "queue"
    soft: float = 0.6
    hard: float = 0.85
    keep: int = 6
    ahead: bool = True
    model_deadline: float = 600.0
    meter: Meter = dataclasses.field(default_factory=Meter)
    limits: Callable[[Stamp], Sequence[Limit]] = lambda _: ()
    """The purses a turn for somebody draws on."""
    job_limits: Callable[[], Sequence[Limit]] = lambda: ()
    """The purses that work beside the conversation draws on."""
    naming: Callable[[str, Origin], str] = lambda _memory, origin: origin.session
    """(memory instance, what is known of a session) -> the name that instance files it under."""
    recalls: tuple[str, ...] = ()
    """Memories that are asked about every message, the one with precedence first."""
    searches: tuple[str, ...] = ()
    """Memories besides those, which are looked into when somebody searches."""
    recall_seconds: float = 0.0
    """How long a turn waits for them; 0: nothing is recalled."""
    recall_tokens: int = 1_700
    facts: Facts | None = None
    """Where the facts are that an agent keeps in mind; None: it keeps none."""
    notes: Facts | None = None
    """Who knows which notes still hold, whether the agent keeps facts or not; None: all of them are taken to."""
    memory_notices: bool = False
    """Say in the chat when something was remembered."""
    review_every: int = 0
    """Turns after which what was said is looked through for what to remember; 0: never."""
    price: Callable[[int, int], float] = lambda _input, _output: 0.0
    """US dollars for so many tokens in and out, of the dearest model that may be asked."""
    unfit: Callable[[str], str] = lambda _name: ""
    """Why a model cannot be chosen for this agent; nothing if it can."""
    zone: datetime.tzinfo = datetime.UTC
    """Where a schedule's times are meant."""
    most_output: int = MOST_OUTPUT
    """Tokens an answer may have, as far as a budget is concerned."""
    text_limit: Callable[[Place], int] = lambda _: 4_000
    file_limit: Callable[[Place], int] = lambda _: 0
    """The largest file that a place takes, in bytes; 0: it takes none."""
    pulls: Callable[[Place], bool] = lambda _: False
    """Whether whoever is there reads the log itself, so that a committed reply is a delivered one."""

    @functools.cached_property
    def known(self) -> tuple[str, ...]:
        """Every memory there is: those that are asked, those that are only told, and those that are only searched."""
        return tuple(dict.fromkeys((*self.recalls, *self.memories, *self.searches)))

    @functools.cached_property
    def effects(self) -> dict[str, Effect]:
        return {name: tool.effect for name, tool in self.tools.items()}

    @functools.cached_property
    def offers(self) -> tuple[ToolSpec, ...]:
        """What a model is told about the tools."""
        return tuple(tool.spec for tool in self.tools.values())

    @functools.cached_property
    def offered(self) -> Sheet:
        return Sheet(msgspec.json.encode(self.offers))

    @functools.cached_property
    def prompt(self) -> Sheet:
        return Sheet(self.system.encode())

    @functools.cached_property
    def overhead(self) -> int:
        """The weight of what every request carries besides messages."""
        return weigh(self.system) + weigh_tools(self.offers)

    def weigh(self, request: Request) -> int:
        return weigh_request(request)

    def given_up(self, weight: int, words: str) -> Usage:
        """About what a call has cost that was given up: all that was to be read, and what came of the answer."""
        reading, writing = self.meter.tokens(weight), self.meter.tokens(weigh(words))
        return Usage(input=reading, output=writing, usd=self.price(reading, writing))

    @functools.cached_property
    def author(self) -> str:
        return f"agent:{self.agent}"

    def said(self, text: str, to: Place, *, hops: int, stamp: Stamp, files: Sequence[Attachment] = ()) -> Said:
        """A reply as its place takes it: in parts, and with those of its files that fit."""
        text, fit = fitting(text, files, most=self.file_limit(to))
        return Said(text=text, to=to, parts=split(text, self.text_limit(to)), hops=hops, attachments=fit, stamp=stamp)

    def voices(self, bodies: Iterable[Body]) -> tuple[Wakeup, ...]:
        """The voice lanes that have something to deliver once these bodies are committed."""
        places = [place for body in bodies if (place := get_reply_parts(body)[0]) is not None]
        readers = dict.fromkeys(place_consumer(place) for place in places if not self.pulls(place))
        return tuple(Wakeup(consumer=reader) for reader in readers)

    def remembers(self) -> tuple[Wakeup, ...]:
        """The lanes of this agent's memories."""
        return tuple(Wakeup(consumer=memory_consumer(memory)) for memory in self.memories)

    def overseers(self) -> tuple[Wakeup, ...]:
        """The lanes of those memories that want to hear what came of a job."""
        return tuple(Wakeup(consumer=memory_consumer(memory)) for memory in self.memories if memory in self.overseeing)

    def turning(self) -> tuple[Wakeup, ...]:
        """The lanes of those memories that hold something back, or want to hear that the talk takes a turn."""
        hear = {*self.paces, *self.attentive}
        return tuple(Wakeup(consumer=memory_consumer(memory)) for memory in self.memories if memory in hear)


def purses_of(agent: str, stamp: Stamp, *, scheduled: bool = False) -> tuple[str, ...]:
    """The purses that pay for a turn: the agent's, the person's, the conversation's. Schedules are background work."""
    if scheduled:
        return f"background:{agent}", f"agent:{agent}"
    return f"agent:{agent}", f"person:{stamp.person}", f"chat:{stamp.address}"


def background(runtime: Runtime, thoughts: Iterable[Thought], *, day: str) -> tuple[Spend, ...]:
    """What work beside the conversation has cost, and who pays for it."""
    return tuple(
        Spend(budget=purse, day=day, usd=thought.usage.usd, tokens=thought.usage.input + thought.usage.output)
        for thought in thoughts
        for purse in (f"background:{runtime.agent}", runtime.author)
        if thought.usage.input or thought.usage.output
    )


class Runtimes(Protocol):
    """Where the flows find what they work with. May hand out something new after every change of configuration."""

    def runtime(self, agent: str, choices: Mapping[str, str]) -> Runtime: ...

    def platform(self, name: str, account: str) -> Platform | None: ...

    def drafting(self, name: str, account: str) -> Drafting | None:
        """The platform as one that can show growing replies, if it can."""

    def in_doubt(self, reader: str, agent: str) -> str:
        """`resend` or `hold`: what to do about something unkeyed of an agent whose answer was lost."""

    def memory(self, instance: str, agent: str) -> Attached | None:
        """The memory in use now: the next call may have to go to another one, so nobody keeps it."""

    def attached(self) -> Sequence[Attached]:
        """Every memory that is in use now."""
