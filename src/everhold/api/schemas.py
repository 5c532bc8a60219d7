"""The bodies of requests and responses of /api. The OpenAPI document and the reference page are made from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
Label = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
NonEmptyText = Annotated[str, Meta(min_length=1, pattern=r"\S")]
Seq = Annotated[int, Meta(ge=0, le=2**53)]


# -- requests ----------------------------------------------------------------------------------------------------------


class LocationOrigin(Struct, forbid_unknown_fields=True):
    """A chat of a platform whose replies are read from the log."""

    platform: Literal["terminal", "http"]
    chat: Annotated[str, Meta(min_length=1, max_length=4096)]
    account: Annotated[str, Meta(max_length=200)] = ""
    thread: Annotated[str, Meta(max_length=4096)] = ""


class TerminalLocation(Struct, forbid_unknown_fields=True):
    """The chat location to which a terminal sends."""

    origin: LocationOrigin
    kind: Literal["dm"] = "dm"


class MessageRequest(Struct, forbid_unknown_fields=True):
    """A message to an agent."""

    text: Annotated[NonEmptyText, Meta(description="The text. A text such as `/new` is a command.")]
    chat: Annotated[
        Label | None,
        Meta(description="The name of the conversation, which you choose. Required unless `location` is given."),
    ] = None
    agent: Annotated[Name | None, Meta(description="The agent; the default agent if not given.")] = None
    person: Annotated[Label | None, Meta(description="The sender. Only operators may name another person.")] = None
    id: Annotated[Label | None, Meta(description="Your id for the message, by which a repeat is recognised.")] = None
    files: Annotated[
        list[str],
        Meta(max_length=100, description="The ids of files from `POST /api/files`, uploaded by the same caller."),
    ] = []
    location: Annotated[
        TerminalLocation | None,
        Meta(description="Instead of `chat`: a terminal's location, from `/api/chat-locations`. Operators only."),
    ] = None
    directory: Annotated[str, Meta(max_length=4096, description="With `location`: the terminal's directory.")] = ""
    repo: Annotated[str, Meta(max_length=4096, description="With `location`: the repository around it.")] = ""


class UploadResponse(Struct):
    """An uploaded file. Its id counts for its uploader, for an hour."""

    id: str
    name: str
    media: str
    size: int


class UndoRequest(Struct, forbid_unknown_fields=True):
    """What to undo."""

    what: Literal["turn", "compress"] = "turn"
    count: Annotated[int, Meta(ge=1, le=1000, description="The number of turns.")] = 1


class PinRequest(Struct, forbid_unknown_fields=True):
    """Which entry to pin."""

    seq: Annotated[int, Meta(ge=1, description="The entry's `seq`.")]


class UnpinRequest(Struct, forbid_unknown_fields=True):
    """Which pin to remove."""

    seq: Annotated[int, Meta(ge=1, description="The pinned entry's `seq`; without it, all pins.")] | None = None


class CompressRequest(Struct, forbid_unknown_fields=True):
    """How to compress a session."""

    keep: Annotated[int, Meta(ge=0, le=1000, description="The number of exchanges that stay unchanged.")] | None = None
    focus: Annotated[str, Meta(max_length=2000, description="The topic that the summary covers in detail.")] = ""
    preview: bool = False


class NoteRequest(Struct, forbid_unknown_fields=True):
    """A note to keep."""

    session: Annotated[Label, Meta(description="The session it belongs to.")]
    text: Annotated[NonEmptyText, Meta(description="The note.")]


class McpMessage(Struct):
    """A JSON-RPC message of an MCP client. Without `id` it is a notification, without `method` an answer."""

    jsonrpc: Literal["2.0"]
    method: Annotated[str, Meta(max_length=128)] | None = None
    id: int | Annotated[str, Meta(max_length=256)] | UnsetType = UNSET
    params: dict[str, Any] = {}


class McpAnswer(Struct, omit_defaults=True):
    """The answer to a request: its result, or an error of JSON-RPC."""

    jsonrpc: str
    id: int | str
    result: dict[str, Any] = {}
    error: dict[str, Any] = {}


class EraseRequest(Struct, forbid_unknown_fields=True):
    """Which entries to erase."""

    seqs: Annotated[list[Seq], Meta(min_length=1, max_length=10_000, description="The seqs of the entries.")]
    why: Annotated[str, Meta(max_length=2000, description="The reason, which stays in the log.")] = ""


class DeadLetterReplayRequest(Struct, forbid_unknown_fields=True):
    """Which dead letters to replay."""

    ids: Annotated[list[Seq] | None, Meta(description="All that match if not given.")] = None
    consumer: Annotated[str, Meta(description="Only those of this consumer.", max_length=200)] = ""
    cause: Annotated[str, Meta(description="Only those with this reason.", max_length=4_000)] = ""
    session: Annotated[str, Meta(description="Only those of this session.", max_length=200)] = ""
    dry_run: Annotated[bool, Meta(description="Only report how many.")] = False


class MemoryResendRequest(Struct, forbid_unknown_fields=True):
    """What to resend to a memory."""

    since: Annotated[float, Meta(description="Everything it received since then, in seconds since 1970.")]
    agent: Annotated[str, Meta(description="Only this agent's sessions; all if not given.")] = ""
    dry_run: Annotated[bool, Meta(description="Only report how much that is.")] = False


class MemoryBackfillRequest(Struct, forbid_unknown_fields=True):
    """Which older history to send to a memory."""

    agent: Annotated[str, Meta(description="Only this agent's sessions; all if not given.")] = ""
    since: Annotated[float, Meta(description="Only history since then, in seconds since 1970.")] = 0.0
    until: Annotated[float | None, Meta(description="Only history before then.")] = None
    per_minute: Annotated[int, Meta(ge=1, le=100_000, description="Exchanges and notes per minute.")] = 60
    dry_run: Annotated[bool, Meta(description="Only report how much that is.")] = False


class MemoryCompareRequest(Struct, forbid_unknown_fields=True):
    """Which questions to compare the memories by."""

    agent: Annotated[str, Meta(max_length=64, description="The agent; the default agent if not given.")] = ""
    person: Annotated[str, Meta(max_length=4096, description="Only questions of this person.")] = ""
    limit: Annotated[int, Meta(ge=1, le=500, description="The maximum number of questions, the newest first.")] = 50


class MemoryRekeyRequest(Struct, forbid_unknown_fields=True):
    """Whose items to move to the peer that the person has now."""

    person: Annotated[Label, Meta(description="A person's name, one of their identities, or their id.")]
    agent: Annotated[str, Meta(description="Only this agent's sessions; all if not given.")] = ""
    dry_run: Annotated[bool, Meta(description="Only report how much that is.")] = False


class PeerAssignmentRequest(Struct, forbid_unknown_fields=True):
    """Whose a peer is that several people used."""

    memory: Annotated[Label, Meta(description="The memory.")]
    peer: Annotated[Label, Meta(description="The peer, as `GET /api/people/peers` lists it.")]
    identity: Annotated[Label, Meta(description="`platform:id`, for example `telegram:1001`.")]


class ForgetRequest(Struct, forbid_unknown_fields=True):
    """Which person to forget."""

    person: Annotated[Label, Meta(description="A name, or an identity such as `telegram:1001`.")]
    dry_run: Annotated[bool, Meta(description="Only report what would be erased.")] = False
    rebuild: Annotated[
        bool,
        Meta(description="Store the words of others anew where a memory can delete only whole sessions."),
    ] = False


class OwnForgetRequest(Struct, forbid_unknown_fields=True):
    """The confirmation of a person who wants to be forgotten."""

    confirm: Annotated[
        str, Meta(max_length=300, description="Your name, as `confirm` of the plan shows it. Without it: only a plan.")
    ] = ""


class MemoryImportRequest(Struct, forbid_unknown_fields=True):
    """Markdown files to import."""

    session: Annotated[Label, Meta(description="The session to which the notes belong.")]
    files: Annotated[dict[str, str], Meta(description="Text by file name, for example `MEMORY.md`.")]
    dry_run: Annotated[bool, Meta(description="Only report what would be imported.")] = False


class BackupRequest(Struct, forbid_unknown_fields=True):
    """Where to put the copy."""

    to: Annotated[
        str,
        Meta(
            max_length=4096,
            description="The absolute path of a file; only on `api.sock`. `backups/` in the home if not given.",
        ),
    ] = ""


class IdentityLinkRequest(Struct, forbid_unknown_fields=True):
    """An identity, and the person to link it to."""

    identity: Annotated[Label, Meta(description="`platform:id`, for example `telegram:1001`.")]
    person: Annotated[Label, Meta(description="A person's name, one of their identities, or their id.")]
    since: Annotated[
        float | None,
        Meta(
            description="From when on the identity is this person's, in seconds; 0: always. By default always, "
            "except on platforms where an id can change hands."
        ),
    ] = None


class PersonNameRequest(Struct, forbid_unknown_fields=True):
    """A person, and the name to give them."""

    person: Annotated[Label, Meta(description="A person's name, one of their identities, or their id.")]
    name: Annotated[Name, Meta(description="The new name. It belongs to one person at a time.")]


class IdentityRequest(Struct, forbid_unknown_fields=True):
    """An identity."""

    identity: Annotated[Label, Meta(description="`platform:id`, for example `telegram:1001`.")]


class PairingApprovalRequest(Struct, forbid_unknown_fields=True):
    """The pairing code to approve."""

    code: Annotated[Label, Meta(description="The code that the sender received.")]
    person: Annotated[str, Meta(max_length=200, description="The person to link, a name from `people`.")] = ""


class ToolConfirmationRequest(Struct, forbid_unknown_fields=True):
    """The tools of a server to offer from now on."""

    digest: Annotated[Label, Meta(description="`digest` of the server in `GET /api/tools`.")]


# -- responses ---------------------------------------------------------------------------------------------------------


class ErrorDetail(Struct):
    type: str
    message: str
    remedy: str


class ErrorResponse(Struct):
    """The body of every error."""

    error: ErrorDetail


class AcceptedResponse(Struct):
    """The committed entry."""

    session: str
    seq: int


class ActionResponse(Struct):
    """The result of an action as text. `done` is false if nothing was changed."""

    session: str
    message: str
    done: bool


class MemoryHitView(Struct):
    """A hit of a memory, and where it came from."""

    text: str
    provider: str
    score: float
    session: str = ""
    seq: int = 0
    person: str = ""
    at: float = 0.0
    origin: str = ""
    until: float = 0.0
    replaced_by: str = ""


class FactView(Struct):
    """A fact. `at` is since when it holds, `until` when it was replaced or removed, and `replaced_by` the note that
    replaced it, as `session:seq`.
    """

    id: str
    text: str
    target: str
    author: str
    session: str
    seq: int
    at: float
    until: float | None = None
    replaced_by: str = ""


class MemorySearchResponse(Struct):
    """Facts and hits about a person. `unavailable` names memories that did not answer."""

    agent: str
    person: str
    facts: list[FactView]
    memories: list[MemoryHitView]
    unavailable: list[str]


class TraceView(Struct):
    """A fact or hit that was recalled or left out, and where it came from. `why_not` says why it was left out, `until`
    since when it no longer holds, and `replaced_by` the later entry that says something else.
    """

    provider: str
    text: str
    session: str = ""
    seq: int = 0
    person: str = ""
    at: float = 0.0
    origin: str = ""
    why_not: str = ""
    until: float = 0.0
    replaced_by: str = ""


class ExplanationView(Struct):
    """What a turn's context contained from memory, and what was left out."""

    session: str
    op: int
    at: int
    asked: dict[str, Any]
    audience: list[str]
    facts: list[TraceView] = []
    shown: list[TraceView] = []
    left_out: list[TraceView] = []
    shadow: list[TraceView] = []
    answers: dict[str, Any] = {}
    unavailable: list[str] = []
    budget: int = 0
    tokens: int = 0
    deadline: float = 0.0


class ReplayResponse(Struct):
    replayed: int


class MemoryResendResponse(Struct):
    """What is or would be sent to a memory again. `repeats` says how the memory handles items it already has."""

    memory: str
    begun: bool
    sessions: int
    items: int
    since: float | None
    until: float | None
    repeats: str


class MemoryBackfillResponse(Struct):
    """The older history that is or would be sent to a memory."""

    memory: str
    begun: bool
    sessions: int
    items: int
    requests: int
    tokens: int
    minutes: float
    since: float | None
    until: float | None


class MemoryFindingsView(Struct):
    """What one memory found for one question. `used` counts hits that the answer used."""

    memory: str
    answered: bool
    found: int
    seconds: float
    tokens: int
    used: int


class ComparedQuestionView(Struct):
    """A question, and the texts that its answer used."""

    session: str
    seq: int
    at: float
    question: str
    memories: list[MemoryFindingsView]
    used: list[str]


class ComparedMemoryView(Struct):
    """One memory over all questions. `mode` is `primary`, `shown` or `shadow`. `alone` counts answers that used a hit
    of this memory only. `tokens` and `usd` are the cost of showing all its hits, per question.
    """

    memory: str
    mode: str
    asked: int
    answered: int
    found_nothing: int
    found: float
    used: float
    helped: int
    alone: int
    seconds_p50: float
    seconds_p95: float
    tokens: float
    usd: float


class MemoryOverlapView(Struct):
    """The share of hits that two memories have in common, of all hits of both."""

    first: str
    second: str
    share: float


class MemoryCompareResponse(Struct):
    """A comparison of memories by real questions."""

    agent: str
    questions: list[ComparedQuestionView]
    memories: list[ComparedMemoryView]
    overlaps: list[MemoryOverlapView]


class MemoryRekeyResponse(Struct):
    """What is or would be moved to other peers. `new_peers` maps each identity of the person to its present peer."""

    memory: str
    person: str
    begun: bool
    sessions: int
    items: int
    requests: int
    old_peers: list[str]
    new_peers: dict[str, str]


class PeerAssignmentResponse(Struct):
    memory: str
    peer: str
    identity: str


class PeerRow(Struct):
    """How a memory calls an identity, in the entries from `from_pos` on. A shared peer is recalled for nobody."""

    memory: str
    agent: str
    identity: str
    peer: str
    from_pos: int
    source: str
    shared: bool


class PeerListResponse(Struct):
    peers: list[PeerRow]


class MemoryStatusRow(Struct):
    """One memory of one agent. `available` is false if its provider could not be created."""

    agent: str
    memory: str
    available: bool
    backlog: int
    backlog_since: float | None
    in_doubt: int
    dead_letters: int
    replaying: int
    delivery: str
    sent: int | None
    report: str
    remedy: str
    error: str
    confirmed: int = 0
    unknown: int = 0
    rekeying: int = 0


class MemoryStatusResponse(Struct):
    """`forgetting` lists the names of people whom a memory has not yet confirmed as forgotten."""

    memories: list[MemoryStatusRow]
    forgetting: list[list[str]]


class ErasurePart(Struct):
    """One thing that a place deletes, or cannot delete."""

    id: str
    what: str
    state: str
    count: int
    reason: str
    upto: float
    session: str
    hidden: bool


class ErasurePlace(Struct):
    """A place that holds data of the person: `log`, `backups`, or a memory. `until` is when it is gone by itself."""

    place: str
    agent: str
    state: str
    asked_at: float
    until: float
    problem: str
    parts: list[ErasurePart]
    accepted_at: Annotated[float, Meta(description="When an operator accepted what it cannot delete; 0: not yet.")]


class ErasureView(Struct):
    id: str
    identities: list[str]
    at: float
    by: str
    state: str
    places: list[ErasurePlace]


class ErasureListResponse(Struct):
    erasures: list[ErasureView]


class OwnPlaceView(Struct):
    """A place that holds data of the person. `until`: when it loses the data by itself, at the earliest; else 0."""

    place: str
    state: str
    until: float


class OwnForgetResponse(Struct):
    """What is or would be erased. `confirm` of a plan confirms it; `remains` says what stays, and why."""

    confirm: str
    names: list[str]
    state: str
    done: bool
    entries: int
    schedules: int
    records: int
    places: list[OwnPlaceView]
    remains: list[str]


class ForgetResponse(Struct):
    """What is or would be erased. `state` is that of the least advanced place; `remains` says what stays, and why."""

    person: str
    names: list[str]
    former: list[str]
    state: str
    done: bool
    sessions: list[dict[str, Any]]
    entries: int
    recalls: int
    dead_letters: int
    schedules: int
    records: int
    places: list[ErasurePlace]
    remains: list[str]


class MemoryFileView(Struct):
    agent: str
    name: str
    text: str


class MemoryFileListResponse(Struct):
    files: list[MemoryFileView]


class MemoryImportResponse(Struct):
    """What the files contain. `noted` is how much of it was new, or would be in a dry run. `personas` are files that
    describe the agent, and were left out.
    """

    session: str
    agent: str
    files: list[str]
    personas: list[str]
    facts: int
    notes: int
    noted: int
    done: bool


class TurnWaitView(Struct):
    """A turn that waits after a failure. It is tried again at `retry_at`."""

    reason: str
    attempts: int
    retry_at: float | None


class SessionView(Struct):
    """A session. `pending` is the number of messages that no turn has taken yet; `at` is the time of the last entry."""

    id: str
    address: str
    agent: str
    title: str
    last_seq: int
    pending: int
    state: str
    archived: bool
    compressed_upto: int
    at: float
    waiting: Annotated[
        TurnWaitView | None, Meta(description="Why its turn waits. Only `GET /api/sessions/{id}` says so.")
    ] = None


class EntryView(Struct):
    """An entry of a session's log. `body` is null if it was erased."""

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
        "approval_requested",
        "approval_decided",
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
    """The location of a chat. `session` is null if the chat is new."""

    agent: str
    origin: LocationOrigin
    kind: str
    session: LocatedSessionView | None


class SearchHitView(EntryView):
    session: str


class SearchResponse(Struct):
    hits: list[SearchHitView]


class PinView(EntryView):
    """A pinned entry. `by` is who pinned it."""

    session: str
    by: str


class PinListResponse(Struct):
    session: str
    pins: list[PinView]


class CompressionView(EntryView):
    """A compression: the entry with its summary. `undone_at` is the entry that undid it, 0 if none did."""

    state: str
    undone_at: int


class CompressionListResponse(Struct):
    session: str
    compressions: list[CompressionView]


class CompressionDiffResponse(Struct):
    """The messages that a compression replaced, and their replacement."""

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
    """The context that a model received or would receive. `exact`: it matches the recorded digest; null if none was."""

    session: str
    at: int
    exact: bool | None
    reason: str
    request: dict[str, Any]
    parts: list[dict[str, Any]]


class DeadLetterView(Struct):
    """An item that was given up, and why. `in_doubt`: it may have arrived."""

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


class GivenUpTurnView(Struct):
    """A turn whose processes ended too often. It is tried again once a gateway has run for `after_seconds`."""

    session: str
    starts: int
    after_seconds: float


class OpenPlaceView(Struct):
    """A memory that may still have something of a person who is forgotten."""

    memory: str
    agent: str
    state: str
    problem: str


class OpenErasureView(Struct):
    """A forgetting that is not finished, by its id. `GET /api/memory/erasures` has the rest."""

    id: str
    at: float
    state: str
    places: list[OpenPlaceView]


class SessionRebuildView(Struct):
    """A session that a memory stores anew because `items` of it were undone. `waits_for` has the ids of the forgettings
    that have to be finished first."""

    memory: str
    agent: str
    items: int
    state: str
    problem: str
    waits_for: list[str]


class StatusResponse(Struct):
    """The state of the process, and what waits, fails or was given up in its home."""

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
    risks: list[dict[str, Any]]
    refused: list[dict[str, Any]]
    restart: list[str]
    store: str
    """Why nothing can be accepted; empty if messages are."""
    store_kind: Literal["sqlite", "postgresql"]
    host: str
    """The name of the host that answers."""
    draining: bool
    """Whether the host takes nothing new, and ends when its work is done or handed over."""
    held_accounts: list[str]
    """The accounts that the host receives for, if other hosts share the store."""
    loops: list[dict[str, Any]]
    halted: list[dict[str, Any]]
    limited: list[dict[str, Any]]
    held: int
    unparsed: dict[str, int]
    pending: int
    waiting: list[WaitingConsumerView]
    dead_letters: int
    in_doubt: int
    given_up: list[GivenUpTurnView]
    failing: list[str]
    compressions: list[dict[str, Any]]
    memories: list[dict[str, Any]]
    erasures: list[OpenErasureView]
    rebuilds: list[SessionRebuildView]


class AgentView(Struct):
    """An agent. `missing` names the variables that its models need and that are not set."""

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
    replies: int
    memory_items: int
    resent: int
    recalled: int
    choices: int


class AuditResponse(Struct):
    """Whether the promises hold, with the evidence."""

    holds: bool
    sessions: int
    checked: AuditCountsView
    promises: list[dict[str, Any]]
    findings: list[dict[str, Any]]


class BackupView(Struct):
    path: str
    at: float
    pos: int
    bytes: int
    sound: bool


class BackupListResponse(Struct):
    backups: list[BackupView]


class BackupResponse(Struct):
    """What the copy contains. `wrong` and `broken` say why it is not sound; `removed` lists deleted older copies."""

    path: str
    bytes: int
    pos: int
    sessions: int
    entries: int
    sound: bool
    wrong: list[str]
    broken: list[str]
    removed: list[str]


class HostView(Struct):
    """A host of a shared store, and what it holds: accounts, and cursors by consumer."""

    id: str
    name: str
    version: str
    schema: int
    url: str
    alive: bool
    draining: bool
    own: bool
    """Whether this is the host that answers."""
    started_seconds: float
    renewed_seconds: float
    accounts: list[str]
    cursors: dict[str, int]
    settings_differ: list[str]
    """The keys of the configuration that have another value there than on the host that answers."""


class HostListResponse(Struct):
    """The hosts of a shared store. Without one, `shared` is false and the list is empty."""

    shared: bool
    hosts: list[HostView]
    hints: bool
    """Whether hints of other hosts arrive. If not, only polling finds their commits."""
    clock_difference_seconds: float
    """How far the clock of the host that answers is ahead of the store's."""


class DrainResponse(Struct):
    """`draining`: the gateway takes nothing new and ends when its work is done or handed over."""

    draining: bool


class IdentityView(Struct):
    """An identity, and why it belongs to the person."""

    identity: str
    proof: str
    since: float
    at: float


class PersonView(Struct):
    """A person with their identities. A person whom only messages made known has no name."""

    id: str
    name: str
    owner: bool
    """Whether the person is an owner everywhere."""
    owner_of: list[str]
    """Where the person is an owner, as key paths of the configuration: `access` (everywhere), `agents.main`, …"""
    identities: list[IdentityView]


class PersonListResponse(Struct):
    people: list[PersonView]


class PersonNameResponse(Struct):
    id: str
    name: str


class PeopleEventsResponse(Struct):
    events: list[dict[str, Any]]
    next: int | None


class IdentityLinkResponse(Struct):
    identity: str
    person: str
    since: Annotated[float, Meta(description="From when on the identity is this person's, in seconds; 0: always.")] = (
        0.0
    )


class WaitingToolView(Struct):
    """A tool that is not offered: `new`, or `changed` since the owner saw it with the description `before`. The
    parameters are JSON as text."""

    name: str
    state: str
    description: str
    before: str
    parameters: str
    parameters_before: str


class ToolServerView(Struct):
    """A tool server. `tools` are the names that the owner has seen; `digest` names what waits, empty if nothing."""

    server: str
    tools: list[str]
    waiting: list[WaitingToolView]
    digest: str


class TrustedToolView(Struct):
    """A tool of an installed package. It runs in this process, so it is trusted code, and is not confirmed."""

    name: str
    package: str
    agents: list[str]


class ToolServersResponse(Struct):
    servers: list[ToolServerView]
    plugins: list[TrustedToolView]


class ToolConfirmationResponse(Struct):
    server: str
    confirmed: list[str]


class PairingResponse(Struct):
    """The open pairing requests, and the granted identities."""

    waiting: list[dict[str, Any]]
    granted: list[dict[str, Any]]


class PairingApprovalResponse(Struct):
    identity: str
    name: str
    platform: str
    account: str
    person: str


class PairingRevocationResponse(Struct):
    """The number of accounts. `still` is the person the identity still belongs to; `configured`: by config.yaml."""

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
    paused: bool
    missed: str
    """`latest`: the latest run that a downtime missed is made up for; `skip`: none is."""


class ScheduleListResponse(Struct):
    schedules: list[ScheduleView]


class ScheduleDeletionResponse(Struct):
    deleted: str


class HookView(Struct):
    name: str
    path: str
    scheme: str
    address: str
    """The conversation in which it is heard."""
    missing: list[str]
    """The variables that are not set, so that it accepts nothing."""


class HookListResponse(Struct):
    hooks: list[HookView]


class HookTestRequest(Struct, forbid_unknown_fields=True):
    body: Annotated[str, Meta(description="The body of the delivery.")]
    headers: dict[str, str] = {}
    send: bool = False


class HookTestResponse(Struct):
    """An empty `id`: the body is compared to recognise a repeat. `outcome` is empty if nothing was sent."""

    address: str
    task: str
    text: str
    id: str
    wanted: bool
    outcome: str
    session: str


class HookDeliveryResponse(Struct):
    outcome: Literal["accepted", "duplicate", "unwanted"]
    session: str
    seq: int


class CallerView(Struct):
    """The caller. `local`: the user who runs the gateway. An empty list of `agents` means all of them."""

    name: str
    role: str
    operator: bool
    local: bool
    agents: list[str]
    read_only: bool
    login: str


class LoginRequest(Struct, forbid_unknown_fields=True):
    """Either a code or a token."""

    code: Annotated[str, Meta(max_length=200, description="The code of a login link.")] = ""
    token: Annotated[str, Meta(max_length=1_000, description="A token of role `operator` or `member`.")] = ""
    replace: Annotated[
        bool,
        Meta(
            description="Use the code although it is for another token than that of the page's login, or of the home "
            "if the page has none. Ask the person first."
        ),
    ] = False


class LoginResponse(Struct):
    """The new login. `key` is its second half, for the header `X-Everhold-Key`; the cookie has the first."""

    key: str
    login: str
    name: str
    role: str


class LogoutResponse(Struct):
    ended: str


class LoginCodeRequest(Struct, forbid_unknown_fields=True):
    """Whose login the link makes."""

    token: Annotated[str, Meta(max_length=200, description="The name of a token; your own if not given.")] = ""


class LoginCodeResponse(Struct):
    """The link is `url` + `/#code=` + `code`. It works once, until `until`."""

    code: str
    until: float
    url: str


class LoginView(Struct):
    """A login. `browser` is what the browser says it is."""

    id: str
    token: str
    created_at: float
    used_at: float
    browser: str
    current: bool


class LoginListResponse(Struct):
    logins: list[LoginView]


class HealthResponse(Struct):
    """`role` is `gateway`, or the name of the command that works without one. Callers without a credential see the
    status only.
    """

    status: str
    version: str = ""
    role: str = ""


class ModelView(Struct):
    id: str
    object: str
    created: int
    owned_by: str


class ModelListResponse(Struct):
    """The agents, as models."""

    object: str
    data: list[ModelView]
