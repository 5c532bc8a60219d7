"""What requests and answers of /api look like. The OpenAPI document and the reference page are made from these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
Label = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
NonEmptyText = Annotated[str, Meta(min_length=1, pattern=r"\S")]
Seq = Annotated[int, Meta(ge=0, le=2**53)]


# -- what is asked -----------------------------------------------------------------------------------------------------


class LocationOrigin(Struct, forbid_unknown_fields=True):
    """A chat of a platform whose replies are read in the log."""

    platform: Literal["terminal", "http"]
    chat: Annotated[str, Meta(min_length=1, max_length=4096)]
    account: Annotated[str, Meta(max_length=200)] = ""
    thread: Annotated[str, Meta(max_length=4096)] = ""


class TerminalLocation(Struct, forbid_unknown_fields=True):
    """Where a terminal speaks."""

    origin: LocationOrigin
    kind: Literal["dm"] = "dm"


class MessageRequest(Struct, forbid_unknown_fields=True):
    """A message to an agent."""

    text: Annotated[NonEmptyText, Meta(description="What is said. A text such as `/new` is a command.")]
    chat: Annotated[
        Label | None, Meta(description="The conversation; you choose its name. Needed unless `location` is given.")
    ] = None
    agent: Annotated[Name | None, Meta(description="Who is spoken to; the default agent if not given.")] = None
    person: Annotated[Label | None, Meta(description="Who speaks. Only operators may speak for others.")] = None
    id: Annotated[Label | None, Meta(description="Your id for it: sent again, it is recognised.")] = None
    location: Annotated[
        TerminalLocation | None,
        Meta(description="Instead of `chat`: where a terminal speaks, from `/api/chat-locations`. Operators only."),
    ] = None
    directory: Annotated[str, Meta(max_length=4096, description="With `location`: the terminal's directory.")] = ""
    repo: Annotated[str, Meta(max_length=4096, description="With `location`: the repository around it.")] = ""


class UndoRequest(Struct, forbid_unknown_fields=True):
    """What to take back."""

    what: Literal["turn", "compress"] = "turn"
    count: Annotated[int, Meta(ge=1, le=1000, description="How many turns.")] = 1


class CompressRequest(Struct, forbid_unknown_fields=True):
    """How to compress."""

    keep: Annotated[int, Meta(ge=0, le=1000, description="Exchanges that stay as they are.")] | None = None
    focus: Annotated[str, Meta(max_length=2000, description="What the summary pays special attention to.")] = ""
    preview: bool = False


class NoteRequest(Struct, forbid_unknown_fields=True):
    """A fact to remember."""

    session: Annotated[Label, Meta(description="The session it belongs to.")]
    text: Annotated[NonEmptyText, Meta(description="The fact.")]


class EraseRequest(Struct, forbid_unknown_fields=True):
    """Which entries lose their bodies."""

    seqs: Annotated[list[Seq], Meta(min_length=1, max_length=10_000, description="Their numbers in the session.")]
    why: Annotated[str, Meta(max_length=2000, description="The reason, which stays in the log.")] = ""


class DeadLetterReplayRequest(Struct, forbid_unknown_fields=True):
    """Which dead letters to send again."""

    ids: Annotated[list[Seq] | None, Meta(description="All of them if not given.")] = None


class MemoryResendRequest(Struct, forbid_unknown_fields=True):
    """What a memory is to receive again."""

    since: Annotated[float, Meta(description="What it received from then on, in seconds since 1970.")]
    agent: Annotated[str, Meta(description="Only this agent's sessions; all if not given.")] = ""
    dry_run: Annotated[bool, Meta(description="Only say how much that is.")] = False


class MemoryBackfillRequest(Struct, forbid_unknown_fields=True):
    """Which older history a memory is to receive."""

    agent: Annotated[str, Meta(description="Only this agent's sessions; all if not given.")] = ""
    since: Annotated[float, Meta(description="Only what was said from then on, in seconds since 1970.")] = 0.0
    until: Annotated[float | None, Meta(description="Only what was said before.")] = None
    per_minute: Annotated[int, Meta(ge=1, le=100_000, description="Exchanges and notes per minute.")] = 60
    dry_run: Annotated[bool, Meta(description="Only say what that takes.")] = False


class ForgetRequest(Struct, forbid_unknown_fields=True):
    """Whom to forget."""

    person: Annotated[Label, Meta(description="A name, or an identity such as `telegram:1001`.")]
    dry_run: Annotated[bool, Meta(description="Only say what would be erased.")] = False


class MemoryImportRequest(Struct, forbid_unknown_fields=True):
    """Markdown to note in a session."""

    session: Annotated[Label, Meta(description="The session it belongs to.")]
    files: Annotated[dict[str, str], Meta(description="Text by file name, for example `MEMORY.md`.")]
    dry_run: Annotated[bool, Meta(description="Only say what would be noted.")] = False


class BackupRequest(Struct, forbid_unknown_fields=True):
    """Where the copy goes."""

    to: Annotated[
        str,
        Meta(max_length=4096, description="A file by its whole path; only on `api.sock`. Else `backups/` in the home."),
    ] = ""


class IdentityLinkRequest(Struct, forbid_unknown_fields=True):
    """Who an identity is."""

    identity: Annotated[Label, Meta(description="`platform:id`, for example `telegram:1001`.")]
    person: Annotated[Label, Meta(description="A name from `people`.")]


class IdentityRequest(Struct, forbid_unknown_fields=True):
    """An identity."""

    identity: Annotated[Label, Meta(description="`platform:id`, for example `telegram:1001`.")]


class PairingApprovalRequest(Struct, forbid_unknown_fields=True):
    """Whom to let in."""

    code: Annotated[Label, Meta(description="The code that the sender was told.")]
    person: Annotated[str, Meta(max_length=200, description="Who it is, a name from `people`.")] = ""


# -- what is answered --------------------------------------------------------------------------------------------------


class ErrorDetail(Struct):
    type: str
    message: str
    remedy: str


class ErrorResponse(Struct):
    """Every refusal looks like this."""

    error: ErrorDetail


class AcceptedResponse(Struct):
    """Where something was committed."""

    session: str
    seq: int


class ActionResponse(Struct):
    """What was done, in words. `done` is false if nothing was changed."""

    session: str
    message: str
    done: bool


class MemoryHitView(Struct):
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


class MemorySearchResponse(Struct):
    """What is remembered of a person. `unavailable` names memories that did not answer."""

    agent: str
    person: str
    facts: list[FactView]
    memories: list[MemoryHitView]
    unavailable: list[str]


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


class ExplanationView(Struct):
    """What a turn was shown from memory, and what it was not."""

    session: str
    op: int
    at: int
    asked: dict[str, Any]
    audience: list[str]
    facts: list[TraceView] = []
    shown: list[TraceView] = []
    left_out: list[TraceView] = []
    unavailable: list[str] = []
    budget: int = 0
    tokens: int = 0
    deadline: float = 0.0


class ReplayResponse(Struct):
    replayed: int


class MemoryResendResponse(Struct):
    """What goes, or would go, to a memory again. `repeats` says what that does to what is there already."""

    memory: str
    begun: bool
    sessions: int
    items: int
    since: float | None
    until: float | None
    repeats: str


class MemoryBackfillResponse(Struct):
    """What goes, or would go, to a memory that was attached later."""

    memory: str
    begun: bool
    sessions: int
    items: int
    requests: int
    tokens: int
    minutes: float
    since: float | None
    until: float | None


class MemoryStatusRow(Struct):
    """One memory of one agent. `there` is false if its provider could not be made."""

    agent: str
    memory: str
    there: bool
    waiting: int
    since: float | None
    in_doubt: int
    dead_letters: int
    replaying: int
    delivery: str
    handed_over: int | None
    says: str
    error: str
    confirmed: int = 0
    unknown: int = 0


class MemoryStatusResponse(Struct):
    """`forgetting` lists the names of people who are not forgotten everywhere yet."""

    memories: list[MemoryStatusRow]
    forgetting: list[list[str]]


class ForgetResponse(Struct):
    """What is, or would be, erased. `remains` says what is not, and why."""

    person: str
    names: list[str]
    done: bool
    sessions: list[dict[str, Any]]
    entries: int
    recalls: int
    dead_letters: int
    schedules: int
    providers: list[dict[str, Any]]
    remains: list[str]


class MemoryFileView(Struct):
    agent: str
    name: str
    text: str


class MemoryFileListResponse(Struct):
    files: list[MemoryFileView]


class MemoryImportResponse(Struct):
    """What the files hold, and how much of it was new."""

    session: str
    agent: str
    files: list[str]
    facts: int
    notes: int
    noted: int
    done: bool


class SessionView(Struct):
    """A session. `pending` is how many messages no turn has taken up yet; `at` is when it was last written to."""

    id: str
    address: str
    agent: str
    title: str
    last_seq: int
    pending: int
    state: str
    compressed_upto: int
    at: float


class EntryView(Struct):
    """One line of a session's log. `body` is null once erased."""

    pos: int
    seq: int
    kind: Literal[
        "heard",
        "began",
        "took",
        "thought",
        "called",
        "returned",
        "noted",
        "said",
        "notified",
        "ended",
        "compressed",
        "changed",
        "erased",
    ]
    op: int | None
    author: str
    at: float
    body: dict[str, Any] | None


class SessionListResponse(Struct):
    """`next` is the `after` of the next page, null on the last."""

    sessions: list[SessionView]
    next: str | None


class LocatedSessionView(Struct):
    id: str
    address: str
    agent: str
    title: str
    last_seq: int
    pending: int
    state: str
    compressed_upto: int


class ChatLocationResponse(Struct):
    """Where to speak. `session` is null if the chat is new."""

    agent: str
    origin: LocationOrigin
    kind: str
    session: LocatedSessionView | None


class SearchHitView(EntryView):
    session: str


class SearchResponse(Struct):
    hits: list[SearchHitView]


class CompressionView(EntryView):
    """A compression: the entry with its summary. `undone_at` is the entry that undid it, 0 if none did."""

    state: str
    undone_at: int


class CompressionListResponse(Struct):
    session: str
    compressions: list[CompressionView]


class CompressionDiffResponse(Struct):
    """The messages that a compression replaced, and what stands for them."""

    session: str
    compression: int
    replaced: list[dict[str, Any]]
    by: list[dict[str, Any]]


class AddressListResponse(Struct):
    session: str
    addresses: list[str]


class EraseResponse(Struct):
    session: str
    erased: list[int]


class EntryListResponse(Struct):
    entries: list[EntryView]


class ContextView(Struct):
    """What a model was, or would be, shown. `exact`: whether it is what was recorded; null if nothing was."""

    session: str
    at: int
    exact: bool | None
    reason: str
    request: dict[str, Any]


class DeadLetterView(Struct):
    """Something that could not be delivered, and why. `in_doubt`: it may have arrived."""

    id: int
    consumer: str
    session: str
    seq: int
    part: int
    reason: str
    in_doubt: bool
    at: float


class DeadLetterListResponse(Struct):
    """`next` is the `after` of the next page, null on the last."""

    dead_letters: list[DeadLetterView]
    next: int | None


class WaitingConsumerView(Struct):
    """A consumer with work to do: in how many sessions, since when, and its last error."""

    consumer: str
    sessions: int
    since: float | None
    attempts: int
    error: str


class StatusResponse(Struct):
    """The process, and what waits, fails or was given up in its home."""

    version: str
    pid: int
    role: str
    running: bool
    since: float
    home: str
    url: str
    revision: str
    default_agent: str
    agents: list[dict[str, Any]]
    people: list[dict[str, Any]]
    accounts: list[dict[str, Any]]
    problems: list[dict[str, Any]]
    refused: list[dict[str, Any]]
    restart: list[str]
    store: str
    loops: list[dict[str, Any]]
    halted: list[dict[str, Any]]
    pending: int
    waiting: list[WaitingConsumerView]
    dead_letters: int
    in_doubt: int
    failing: list[str]
    compressions: list[dict[str, Any]]
    memories: list[dict[str, Any]]


class AgentView(Struct):
    """An agent. `missing` names the variables its models need."""

    name: str
    model: str
    fallback: list[str]
    memories: list[str]
    tools: list[str]
    missing: list[str]
    budget: dict[str, float | None]


class AgentListResponse(Struct):
    agents: list[AgentView]
    default: str


class AuditCountsView(Struct):
    entries: int
    heard: int
    turns: int
    compressions: int


class AuditResponse(Struct):
    """Whether the promises hold, and on what evidence."""

    holds: bool
    sessions: int
    checked: AuditCountsView
    promises: list[dict[str, Any]]
    findings: list[dict[str, Any]]


class BackupView(Struct):
    path: str
    at: float
    position: int
    bytes: int
    sound: bool


class BackupListResponse(Struct):
    backups: list[BackupView]


class BackupResponse(Struct):
    """What the copy holds. `wrong` and `broken` say why it is not sound; `removed` are older copies, now deleted."""

    path: str
    bytes: int
    position: int
    sessions: int
    entries: int
    sound: bool
    wrong: list[str]
    broken: list[str]
    removed: list[str]


class PersonView(Struct):
    """A person, and the identities that config.yaml and links give them."""

    name: str
    owner: bool
    configured: list[str]
    linked: list[str]


class PersonListResponse(Struct):
    people: list[PersonView]


class IdentityLinkResponse(Struct):
    identity: str
    person: str


class PairingResponse(Struct):
    """Who waits with a code, and who was let in by one."""

    waiting: list[dict[str, Any]]
    granted: list[dict[str, Any]]


class PairingApprovalResponse(Struct):
    identity: str
    name: str
    platform: str
    account: str
    person: str


class PairingRevocationResponse(Struct):
    """From how many accounts. `still` is the person the identity is still known as; `configured`: by config.yaml."""

    revoked: int
    still: str
    configured: bool


class ScheduleView(Struct):
    id: str
    when: str
    text: str
    platform: str
    chat: str
    agent: str
    last: float
    next: float | None
    next_local: str


class ScheduleListResponse(Struct):
    schedules: list[ScheduleView]


class ScheduleDeletionResponse(Struct):
    deleted: str


class CallerView(Struct):
    """Who the caller is. `local`: whoever sits at this machine."""

    name: str
    operator: bool
    local: bool


class HealthResponse(Struct):
    """`role` is what the process is for: `gateway`, or the command that works without one."""

    status: str
    version: str
    role: str


class ModelView(Struct):
    id: str
    object: str
    created: int
    owned_by: str


class ModelListResponse(Struct):
    """The agents, as models."""

    object: str
    data: list[ModelView]
