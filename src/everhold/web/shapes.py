"""What requests and answers of /api look like. The OpenAPI document and the reference page are made from these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
Label = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Words = Annotated[str, Meta(min_length=1, pattern=r"\S")]
Seq = Annotated[int, Meta(ge=0, le=2**53)]


# -- what is asked -----------------------------------------------------------------------------------------------------


class Message(Struct, forbid_unknown_fields=True):
    """A message to an agent."""

    chat: Annotated[Label, Meta(description="The conversation; you choose its name.")]
    text: Annotated[Words, Meta(description="What is said. A text such as `/new` is a command.")]
    agent: Annotated[Name | None, Meta(description="Who is spoken to; the default agent if not given.")] = None
    person: Annotated[Label | None, Meta(description="Who speaks. Only operators may speak for others.")] = None
    id: Annotated[Label | None, Meta(description="Your id for it: sent again, it is recognised.")] = None


class Undo(Struct, forbid_unknown_fields=True):
    """What to take back."""

    what: Literal["turn", "compress"] = "turn"
    count: Annotated[int, Meta(ge=1, le=1000, description="How many turns.")] = 1


class Compress(Struct, forbid_unknown_fields=True):
    """How to compress."""

    keep: Annotated[int, Meta(ge=0, le=1000, description="Exchanges that stay as they are.")] | None = None
    focus: Annotated[str, Meta(max_length=2000, description="What the summary pays special attention to.")] = ""
    preview: bool = False


class Note(Struct, forbid_unknown_fields=True):
    """A fact to remember."""

    session: Annotated[Label, Meta(description="The session it belongs to.")]
    text: Annotated[Words, Meta(description="The fact.")]


class Replay(Struct, forbid_unknown_fields=True):
    """Which parked items to send again."""

    ids: Annotated[list[Seq] | None, Meta(description="All of them if not given.")] = None


class HandOver(Struct, forbid_unknown_fields=True):
    """What a memory is to be handed again."""

    since: Annotated[float, Meta(description="What it was handed from then on, in seconds since 1970.")]
    agent: Annotated[str, Meta(description="Only this agent's sessions; all if not given.")] = ""
    dry_run: Annotated[bool, Meta(description="Only say how much that is.")] = False


# -- what is answered --------------------------------------------------------------------------------------------------


class Problem(Struct):
    type: str
    message: str
    remedy: str


class Error(Struct):
    """Every refusal looks like this."""

    error: Problem


class Accepted(Struct):
    """Where something was committed."""

    session: str
    seq: int


class Done(Struct):
    """What was done, in words."""

    session: str
    message: str


class MemoryView(Struct):
    """Something that was found, and where it came from."""

    text: str
    provider: str
    score: float
    session: str = ""
    seq: int = 0
    person: str = ""
    at: float = 0.0
    origin: str = ""


class FactView(Struct):
    """Something an agent keeps in mind. `until` is when it stopped holding."""

    id: str
    text: str
    target: str
    author: str
    session: str
    seq: int
    at: float
    until: float | None = None


class Memories(Struct):
    """What is remembered of a person. `silent` names memories that did not answer."""

    agent: str
    person: str
    facts: list[FactView]
    memories: list[MemoryView]
    silent: list[str]


class TraceView(Struct):
    """Where something that was recalled, or left out, came from. `why_not` says why it was left out."""

    provider: str
    text: str
    session: str = ""
    seq: int = 0
    person: str = ""
    at: float = 0.0
    origin: str = ""
    why_not: str = ""


class WhyView(Struct):
    """What a turn was shown from memory, and what it was not."""

    session: str
    op: int
    at: int
    asked: dict[str, Any]
    audience: list[str]
    facts: list[TraceView] = []
    shown: list[TraceView] = []
    left_out: list[TraceView] = []
    silent: list[str] = []
    budget: int = 0
    tokens: int = 0
    deadline: float = 0.0


class Replayed(Struct):
    replayed: int


class HandedOver(Struct):
    """What goes, or would go, to a memory again. `repeats` says what that does to what is there already."""

    memory: str
    begun: bool
    sessions: int
    items: int
    since: float | None
    until: float | None
    repeats: str


class SessionView(Struct):
    """A session. `pending` is how many messages no turn has taken up yet."""

    id: str
    address: str
    agent: str
    title: str
    last_seq: int
    pending: int
    state: str
    folded_upto: int


class EntryView(Struct):
    """One line of a session's log. `body` is null once erased."""

    pos: int
    seq: int
    kind: Literal[
        "heard", "began", "took", "thought", "called", "returned", "noted", "said", "notified", "ended", "compressed",
        "changed", "erased",
    ]  # fmt: skip
    op: int | None
    author: str
    at: float
    body: dict[str, Any] | None


class Sessions(Struct):
    sessions: list[SessionView]


class Entries(Struct):
    entries: list[EntryView]


class ContextView(Struct):
    """What a model was, or would be, shown. `exact`: whether it is what was recorded; null if nothing was."""

    session: str
    at: int
    exact: bool | None
    reason: str
    request: dict[str, Any]


class ParkedView(Struct):
    """Something that could not be delivered, and why."""

    id: int
    reader: str
    session: str
    seq: int
    part: int
    reason: str
    doubtful: bool
    at: float


class ParkedList(Struct):
    parked: list[ParkedView]


class Me(Struct):
    """Who the caller is. `local`: whoever sits at this machine."""

    name: str
    operator: bool
    local: bool


class Health(Struct):
    status: str
    version: str


class ModelView(Struct):
    id: str
    object: str
    created: int
    owned_by: str


class Models(Struct):
    """The agents, as models."""

    object: str
    data: list[ModelView]
