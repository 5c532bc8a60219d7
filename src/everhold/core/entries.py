"""The entries of a log: their kinds and bodies, and the people and chats they refer to. All types are frozen and
independent of the store.

An entry is written once. The store derives its tables (pending, operations, bindings) from the entries alone, so they
can always be rebuilt from the log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from everhold.core.roles import PersonRole

BODY_VERSION: Final = 1
"""The version of entry bodies that this build writes. It reads all versions up to this one."""

S = TypeVar("S", bound=Struct)

OWN_OPERATION: Final = -1
"""A draft's `op` if it belongs to the operation that a `began` in the same change opens."""


class StoredRecord(Struct, frozen=True, omit_defaults=True):
    """Base of everything that is stored as JSON inside an entry."""


# -- where and who ---------------------------------------------------------------------------------------------------


class Stamp(StoredRecord, frozen=True):
    """The identity under which an entry was made, fixed at commit. Memories store the entry under it, whatever changes
    later.
    """

    person: str = ""
    audience: tuple[str, ...] = ()
    address: str = ""
    title: str = ""
    directory: str = ""
    repo: str = ""


class ChatLocation(StoredRecord, frozen=True):
    """A location on a platform: where a message was heard, or where a reply goes. Fixed at commit."""

    platform: str
    account: str = ""
    chat: str = ""
    thread: str = ""
    message: str = ""
    """The platform's id of the message that was heard, or that is replied to."""


class Attachment(StoredRecord, frozen=True):
    """A file that is attached to a message, stored by content hash."""

    blob: str
    name: str = ""
    media: str = ""
    size: int = 0


class TextPiece(StoredRecord, frozen=True):
    """Text inside a message that is not the sender's own: forwarded, quoted, or embedded. It is never a command, a fact
    about the sender, or an approval.
    """

    source: Literal["forwarded", "quoted", "embedded"]
    by: str = ""
    """The author as the platform reports it: an identity (`platform:id`), else empty. `AGENT_ITSELF` if the agent wrote
    it. Never a display name, because anybody may choose a name that looks like one of these.
    """
    name: str = ""
    """The author's display name, if the platform reports one."""
    own: bool = False
    """A quote of the sender's own earlier words."""
    text: str = ""


AGENT_ITSELF: Final = "agent"
"""The author of a quoted text that this account wrote earlier."""


# -- bodies: one per kind ----------------------------------------------------------------------------------------------


class ChatCommand(StoredRecord, frozen=True):
    """A parsed chat command."""

    name: str
    argument: str = ""


class ApprovalReport(StoredRecord, frozen=True):
    """Which request a message of the gateway reports."""

    request: str
    tool: str
    origin: str = "chat"
    """What had started the turn that asked (`ScopeOrigin`). The turn that hears the report has the same rights."""


class Heard(StoredRecord, frozen=True):
    """A sender wrote a message. `asks`: it wants an answer. Group chatter and acknowledgements do not ask."""

    origin: ChatLocation
    text: str
    """The sender's own words only. Everything else in the message is in `pieces`."""
    asks: bool = True
    sender: str = ""
    speaker: str = ""
    """The platform's id of the sender."""
    bot: bool = False
    hops: int = 0
    revision: str = ""
    command: ChatCommand | None = None
    attachments: tuple[Attachment, ...] = ()
    mangled: bool = False
    """The text contained invalid code points. They were replaced, so that the rest could be stored."""
    scheduled: bool = False
    """A schedule produced this message; no sender wrote it at this time."""
    busy: str = ""
    """How a running turn treats this message (`/queue`, `/steer`); empty: as configured."""
    stamp: Stamp = Stamp()
    pieces: tuple[TextPiece, ...] = ()
    """Forwarded, quoted and embedded text. Empty: everything is the sender's own."""
    role: PersonRole = PersonRole.MEMBER
    """The sender's role in this chat when the message was accepted. When it is handled, the lower of this and the
    current role counts.
    """
    via: str = ""
    """The operator's token, or `api.sock`, that sent this for another person; empty: the sender sent it."""
    hook: str = ""
    """The webhook that produced this message. `text` is the task that the configuration gives; the rest is in `pieces`.
    """
    trace: str = ""
    """The span of the sender's program, as `traceparent` named it. The trace of the turn has a link to it."""
    approval: ApprovalReport | None = None
    """The gateway reports what became of a request. The words are not the sender's, who is whom it was asked for."""

    delegated: str = ""
    """The message is the result of a sub-agent. What had started the turn that gave it the task (`ScopeOrigin`); the
    turn that hears the result has the same rights. The words are not the sender's, who is whom the task was given for.
    """

    @property
    def is_automatic(self) -> bool:
        """A schedule, a webhook or a sub-agent produced it; no sender wrote it at this time."""
        return self.scheduled or bool(self.hook) or bool(self.delegated)


class Began(StoredRecord, frozen=True):
    """An operation started and consumes the heard entries in `takes`. Its id is this entry's seq."""

    type: Literal["turn", "compression", "command", "job", "action"]
    takes: tuple[int, ...] = ()
    compression: int = 0
    """The compression in force for its context (an operation id, 0: none). It is pinned, so a resumed turn sees the
    same.
    """
    generation: int = 0
    blocking: bool = False
    consumer: str = ""
    """The consumer that works on it."""
    trigger: str = ""
    people: int = 0
    """The epoch of the people directory when it started: who was who then."""
    covers: int = 0
    """Of a compression: the last operation that it covers."""
    messages: int = 0
    """Of a compression: how many messages it covers."""
    model: str = ""
    """Of a compression: the summariser."""
    clock: str = ""
    """Of a turn: date, weekday, time and zone when it began, as the model reads them."""


class Took(StoredRecord, frozen=True):
    """A running turn took messages that arrived while it ran (steering), or had to pin another compression."""

    takes: tuple[int, ...] = ()
    compression: int | None = None
    clock: str = ""
    """Date, weekday, time and zone when the messages were taken, as the model reads them."""


INVALID_ARGUMENTS_KEY: Final = "__invalid__"
"""The only argument of a call whose arguments were not a JSON object. Its value is the model's text."""


class ToolCall(StoredRecord, frozen=True):
    """A tool call the model asked for."""

    id: str
    tool: str
    arguments: dict[str, Any] = {}

    @property
    def unparsed_arguments(self) -> str | None:
        """The model's text if its arguments are not a JSON object; else None."""
        written = self.arguments.get(INVALID_ARGUMENTS_KEY)
        return written if isinstance(written, str) and len(self.arguments) == 1 else None


class ModelUsage(StoredRecord, frozen=True):
    """What a model call cost."""

    input: int = 0
    cached: int = 0
    output: int = 0
    usd: float = 0.0

    def __add__(self, other: ModelUsage) -> ModelUsage:
        return ModelUsage(
            input=self.input + other.input,
            cached=self.cached + other.cached,
            output=self.output + other.output,
            usd=self.usd + other.usd,
        )


class Thought(StoredRecord, frozen=True):
    """The model's answer with the tool calls it asks for, recorded before any of them runs."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    model: str = ""
    params: dict[str, Any] = {}
    generation: int = 0
    request: str = ""
    """Digest of the request. The audit compares a rebuilt request with it."""
    prompt: str = ""
    tools: str = ""
    recall: str = ""
    why: str = ""
    """Content-addressed blobs. `why` records the sources of the recalled items, and which items were left out."""
    stubs: tuple[int, ...] = ()
    """Entries whose long texts were shown as stubs in the request."""
    usage: ModelUsage = ModelUsage()
    finish: str = ""
    """`length` if the answer was cut off at the model's limit; else empty."""


class Called(StoredRecord, frozen=True):
    """A tool that is not pure is about to start."""

    call: str
    tool: str
    effect: str
    key: str
    because: str = ""
    """Why the policy let it run: `default`, `config:N` for the Nth rule, `rule:ID` for a remembered one, or
    `request:ID` for an approved request. Empty in the log of an earlier build."""
    digest: str = ""
    """Of an approved call: the digest of exactly what runs."""


class Returned(StoredRecord, frozen=True):
    """The result of a tool call. `unknown`: the call was started before a restart, and its outcome is unknown."""

    call: str
    text: str = ""
    error: bool = False
    unknown: bool = False
    files: tuple[Attachment, ...] = ()
    """Files that the tool returned, stored by content hash."""
    attached: tuple[Attachment, ...] = ()
    """Files that are sent with the turn's reply."""
    approval: str = ""
    """The request that the call waits for, or of an approved call, which request it was. The text of an approved call's
    result is in the message that reports it.
    """


class ApprovalRequested(StoredRecord, frozen=True):
    """A call of a turn waits for a person's approval. What would run is the call of this id in the newest thought of
    its operation; `digest` binds the answer to it. It contains no words of anybody.
    """

    id: str
    call: str
    tool: str
    agent: str
    effect: str
    reach: str
    digest: str
    spec: str
    """Digest of the tool's description, which is part of `digest`."""
    because: str
    """Why the policy asks, as in `called`."""
    expires: float
    approvers: tuple[str, ...]
    """Who may answer: `owner`, `self` for whoever asked, or names of people."""
    bound: str = ""
    """What else the call depends on, such as the content of a script, as a digest. It is part of `digest`."""
    remember: bool = False
    """Whether the answer may become a rule."""
    author: str = ""
    """The author of the message that asked."""
    speaker: str = ""
    origin: ChatLocation | None = None
    stamp: Stamp = Stamp()
    role: PersonRole = PersonRole.MEMBER
    place: str = ""
    via: str = ""
    """Role, place and origin of the turn, by which the policy judged (`PolicyScope`)."""
    foreign: bool = False
    """The model had read words of others."""
    hops: int = 0


class ApprovalDecided(StoredRecord, frozen=True):
    """A request was answered, or ended without an answer. There is one such entry for each request."""

    request: str
    digest: str
    outcome: Literal["allowed", "denied", "expired", "withdrawn"]
    by: str = ""
    """Who answered: `person:<identity>` or `operator:<name>`; empty if nobody did."""
    ground: str = ""
    """Why that person may answer: one of the request's `approvers`, or `operator`."""
    origin: ChatLocation | None = None
    """Where it was answered; None: through the API or the command line."""
    rule: str = ""
    """The remembered rule that the answer made."""


class Noted(StoredRecord, frozen=True):
    """A note to remember. `action` is add, replace or remove; `fact` names the curated fact that it is about."""

    text: str
    action: str = "add"
    fact: str = ""
    cites: tuple[int, ...] = ()
    supersedes: int = 0
    tags: tuple[str, ...] = ()
    origin: str = ""
    """The source of the text if no person present said it: `tool:<name>`, `bot:<name>`, `file:<name>`,
    `forward:<author>`, `quote:<author>`, `embed:<author>`. Such a note is never a fact.
    """
    stamp: Stamp = Stamp()


class Said(StoredRecord, frozen=True):
    """A reply, split once into the parts that are sent. Its destination is fixed."""

    text: str
    to: ChatLocation
    parts: tuple[str, ...] = ()
    hops: int = 0
    attachments: tuple[Attachment, ...] = ()
    """Files that are sent with it, each as a separate part after the parts of the text."""
    stamp: Stamp = Stamp()


OUTAGE_NOTICE: Final = "outage"
"""The `about` of a notice that no model could be asked. In older logs it is `model`."""


class NoticeChoice(StoredRecord, frozen=True):
    """A button under a notice. Whoever presses it gives the command, with the same rights as if they typed it."""

    label: str
    command: str


class Notified(StoredRecord, frozen=True):
    """A notice of the gateway to a person. It is delivered like a reply and is never part of the model's context."""

    text: str
    about: str
    """What the notice is about. For a reply to a command this is the command."""
    to: ChatLocation | None = None
    parts: tuple[str, ...] = ()
    choices: tuple[NoticeChoice, ...] = ()
    """Buttons under the last part. The text names their commands, for platforms without buttons."""


RELEASING_OUTCOMES: Final = frozenset({"released", "erased"})
"""Outcomes after which the messages that an operation consumed are pending again, unless they were erased."""


class Ended(StoredRecord, frozen=True):
    """An operation ended. `released`: it did nothing. `erased`: it had read entries that were erased."""

    outcome: Literal["done", "failed", "stopped", "interrupted", "released", "refused", "erased"] = "done"
    reason: str = ""
    usage: ModelUsage = ModelUsage()
    stubs: tuple[int, ...] = ()
    """Messages it took that do not fit the model by themselves. Later turns show them as stubs."""


VerbatimReason: TypeAlias = Literal["said", "aside", "question", "rule", "correction"]
"""How a message that stays verbatim was used: it asked the agent, it did not ask, or it asked and was not answered.
Earlier builds wrote `rule` and `correction`.
"""


class VerbatimMessage(StoredRecord, frozen=True):
    """A message that stays verbatim when the operations around it are compressed."""

    seq: int
    text: str
    who: str = ""
    why: VerbatimReason = "rule"
    answer_tokens: int = 0
    """The size of the answer it got."""


class Compressed(StoredRecord, frozen=True):
    """A summary that replaces every whole operation up to `covers`."""

    summary: str
    covers: int
    kept: tuple[VerbatimMessage, ...] = ()
    effects: tuple[str, ...] = ()
    """External effects with their outcomes, one line each."""
    based_on: int = 0
    """The earlier compression whose summary is part of this one (its operation id)."""
    generation: int = 0
    model: str = ""
    trigger: str = ""
    messages: int = 0
    tokens_before: int = 0
    tokens_after: int = 0


def snake_case(name: str) -> str:
    """`AddressBound` -> `address_bound`."""
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


class SessionChange(StoredRecord, frozen=True, tag_field="type", tag=snake_case):
    """Base of all changes to a session. The stored tag of a change is its class name in snake_case."""


class ContextReset(SessionChange, frozen=True):
    """The context starts empty: operations that began before this entry leave it."""


class SessionTitled(SessionChange, frozen=True):
    """A display name. With `memory`, providers also see the new name from now on."""

    title: str
    memory: bool = False


class OperationsUndone(SessionChange, frozen=True):
    """These operations (turns or compressions) leave the context. `again`: their messages are pending again."""

    ops: tuple[int, ...]
    again: bool = False


class EntryPinned(SessionChange, frozen=True):
    """The entry `seq` stays verbatim in the context until this pin is undone. It is listed among the operations under
    the seq of this entry.
    """

    seq: int
    session: str = ""
    """The session of the entry, if a branch took the pin over from its parent."""
    by: str = ""


class AddressBound(SessionChange, frozen=True):
    """An address leads to this session from now on; `previous` is where it led before."""

    address: str
    previous: str = ""
    by: str = ""


class AddressUnbound(SessionChange, frozen=True):
    """The backlink of an `AddressBound`: this session lost an address to `session`."""

    address: str
    session: str


class BranchedFrom(SessionChange, frozen=True):
    """This session starts as a branch of `parent` as it was at `at`."""

    parent: str
    at: int
    by: str = ""


class BranchCreated(SessionChange, frozen=True):
    """The backlink of a `BranchedFrom`, in the parent."""

    session: str
    at: int


class StopRequested(SessionChange, frozen=True):
    """A person asked to end the running operation `op`. The worker that holds it ends it."""

    op: int


class CompressionRequested(SessionChange, frozen=True):
    """A person asked for a compression. The compression worker makes it when no turn is running."""

    keep: int | None = None
    """Exchanges to keep verbatim; None: as configured."""
    focus: str = ""
    tell: ChatLocation | None = None


class TaskDelegation(StoredRecord, frozen=True, kw_only=True):
    """How a turn gave a task to a sub-agent: what it is told, and the rights that it has."""

    slot: int
    """Which of the sub-agents of the conversation does it. Each of them does one task after the other."""
    context: str = ""
    tools: tuple[str, ...] = ()
    """The tools that it may use; empty: all that a sub-agent may."""
    author: str = ""
    speaker: str = ""
    sender: str = ""
    """Who wrote the message for which the task was given, as its entry has them."""
    place: str = ""
    origin: str = ""
    """Place and origin of the turn, by which the policy judges (`PolicyScope`)."""
    foreign: bool = False
    """The model had read words of others."""
    hops: int = 0


class TaskRequested(SessionChange, frozen=True):
    """A person gave a task that runs beside the conversation, or a turn gave it to a sub-agent."""

    text: str
    tell: ChatLocation | None = None
    stamp: Stamp = Stamp()
    role: PersonRole = PersonRole.MEMBER
    """The role of the person when the task was accepted."""
    delegation: TaskDelegation | None = None
    """None: a person gave it."""


class MemoryNameSet(SessionChange, frozen=True):
    """The name that the memory `memory` uses for this session, from here on."""

    memory: str
    name: str
    replaces: str = ""
    """The earlier name whose session was stored anew under this one. No item goes there any more, however old."""


class RuleRevoked(SessionChange, frozen=True):
    """A remembered rule that an answer in this session made ends."""

    rule: str
    by: str = ""


class SettingChosen(SessionChange, frozen=True):
    """A setting of this session, such as its model. An empty value returns to the configuration."""

    setting: str
    value: str = ""


ChangeBody: TypeAlias = (
    ContextReset
    | SessionTitled
    | OperationsUndone
    | EntryPinned
    | AddressBound
    | AddressUnbound
    | BranchedFrom
    | BranchCreated
    | StopRequested
    | CompressionRequested
    | TaskRequested
    | MemoryNameSet
    | SettingChosen
    | RuleRevoked
)


class Changed(StoredRecord, frozen=True):
    """The session itself changed."""

    change: ChangeBody


class Erased(StoredRecord, frozen=True):
    """Bodies were removed irreversibly. Their seq, kind and digest remain."""

    seqs: tuple[int, ...]
    compressions: tuple[int, ...] = ()
    """Compressions (operation ids) whose summary contained an erased entry. They leave the context."""
    by: str = ""
    why: str = ""


EntryBody: TypeAlias = (
    Heard
    | Began
    | Took
    | Thought
    | Called
    | Returned
    | Noted
    | Said
    | Notified
    | Ended
    | Compressed
    | Changed
    | Erased
    | ApprovalRequested
    | ApprovalDecided
)


class EntryKind(StrEnum):
    HEARD = "heard"
    BEGAN = "began"
    TOOK = "took"
    THOUGHT = "thought"
    CALLED = "called"
    RETURNED = "returned"
    NOTED = "noted"
    SAID = "said"
    NOTIFIED = "notified"
    ENDED = "ended"
    COMPRESSED = "compressed"
    CHANGED = "changed"
    ERASED = "erased"
    APPROVAL_REQUESTED = "approval_requested"
    APPROVAL_DECIDED = "approval_decided"


BODY_TYPES: Final[dict[EntryKind, type[StoredRecord]]] = {
    EntryKind.HEARD: Heard,
    EntryKind.BEGAN: Began,
    EntryKind.TOOK: Took,
    EntryKind.THOUGHT: Thought,
    EntryKind.CALLED: Called,
    EntryKind.RETURNED: Returned,
    EntryKind.NOTED: Noted,
    EntryKind.SAID: Said,
    EntryKind.NOTIFIED: Notified,
    EntryKind.ENDED: Ended,
    EntryKind.COMPRESSED: Compressed,
    EntryKind.CHANGED: Changed,
    EntryKind.ERASED: Erased,
    EntryKind.APPROVAL_REQUESTED: ApprovalRequested,
    EntryKind.APPROVAL_DECIDED: ApprovalDecided,
}
_KIND_BY_BODY: Final = {body: kind for kind, body in BODY_TYPES.items()}
_ENCODER: Final = msgspec.json.Encoder()
_DECODERS: Final = {kind: msgspec.json.Decoder(body) for kind, body in BODY_TYPES.items()}


class EntryDraft(Struct, frozen=True, kw_only=True):
    """An entry that is not committed yet."""

    body: EntryBody
    author: str
    """`person:<id>`, `agent:<name>`, `tool:<name>` or `system`."""
    op: int | None = None
    """The operation it belongs to; OWN_OPERATION for the one that begins in the same change."""
    dedup: str | None = None
    at: float | None = None
    """When it happened, if that was before the commit: imported entries keep their time. None: now."""

    @property
    def kind(self) -> EntryKind:
        return get_body_kind(self.body)


class Entry(Struct, frozen=True, kw_only=True):
    """One record of a session's log. `body` is None after erasure."""

    session: str
    seq: int
    pos: int
    kind: EntryKind
    op: int | None
    author: str
    at: float
    version: int
    body: EntryBody | None
    digest: bytes
    dedup: str | None = None


def get_body_kind(body: EntryBody) -> EntryKind:
    return _KIND_BY_BODY[type(body)]


def encode_body(body: EntryBody) -> str:
    """Return the stored form of a body."""
    return _ENCODER.encode(body).decode()


def decode_body(kind: EntryKind, text: str | bytes) -> EntryBody:
    """Return the body of a stored form."""
    body: EntryBody = _DECODERS[kind].decode(text)  # type: ignore[assignment]  # the table pairs kinds with bodies
    return body


def compute_entry_digest(
    *, salt: bytes, session: str, seq: int, kind: str, op: int | None, author: str, at: float, body: str
) -> bytes:
    """Return the digest that reveals an altered entry. It is salted, so after body and salt are erased the body cannot
    be guessed from it.
    """
    return _hash_entry(salt, _ENCODER.encode((session, seq, kind, op, author, at)), body.encode())


def encode_with_digest(
    body: EntryBody, *, salt: bytes, session: str, seq: int, kind: str, op: int | None, author: str, at: float
) -> tuple[str, bytes]:
    """Return the stored form of a body, and the digest of its entry."""
    text = _ENCODER.encode(body)
    return text.decode(), _hash_entry(salt, _ENCODER.encode((session, seq, kind, op, author, at)), text)


def _hash_entry(salt: bytes, head: bytes, body: bytes) -> bytes:
    return hashlib.sha256(b"".join((salt, head, b"\n", body))).digest()


def strip_surrogates(text: str) -> tuple[str, bool]:
    """Return `text` without lone surrogates, which cannot be stored, and whether there were any."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace"), True
    return text, False


def strip_surrogates_deep(thing: S) -> S:
    """Return `thing` with lone surrogates removed from all its texts, because values from plug-ins must be storable."""
    try:
        _ENCODER.encode(thing)
    except UnicodeEncodeError:
        return msgspec.convert(_strip_value(msgspec.to_builtins(thing)), type(thing))
    return thing


def _strip_value(value: Any) -> Any:
    match value:
        case str():
            return strip_surrogates(value)[0]
        case list() | tuple():
            return [_strip_value(item) for item in value]
        case dict():
            return {_strip_value(key): _strip_value(item) for key, item in value.items()}
        case _:
            return value


_TAKING_BODIES: Final = (Began, Took)


def list_consumed_seqs(entries: Iterable[Entry]) -> tuple[int, ...]:
    """Return the heard entries that an operation's entries consumed, in the order of consumption."""
    taken: list[int] = []
    for entry in entries:
        if isinstance(entry.body, _TAKING_BODIES):
            taken.extend(entry.body.takes)
    return tuple(taken)
