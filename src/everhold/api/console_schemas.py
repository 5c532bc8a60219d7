"""The bodies of the requests and responses that the console needs beside `schemas.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from everhold.api.schemas import Label, Seq, SessionView

# -- sessions ----------------------------------------------------------------------------------------------------------


class TitleRequest(Struct, forbid_unknown_fields=True):
    """A title."""

    title: Annotated[Label, Meta(description="The new title.")]


class TitleResponse(Struct):
    session: str
    title: str


class ArchiveRequest(Struct, forbid_unknown_fields=True):
    """Whether a session is hidden from lists."""

    archived: bool = True


class ArchiveResponse(Struct):
    session: str
    archived: bool


class ActiveSessionView(SessionView, kw_only=True):
    """A session in a list. `first` are its first words, `outcome` says how its last turn ended."""

    first: str
    person: str
    outcome: str
    turns: int
    tokens: int
    usd: float


class ActiveSessionsResponse(Struct):
    """`next` is the `before` of the next page, null on the last. `behind` is how many entries the list does not
    consider yet."""

    sessions: list[ActiveSessionView]
    next: str | None
    behind: int


class ErasurePlanResponse(Struct):
    """What an erasure includes. `delivered` counts the entries that each platform account or memory has received."""

    session: str
    seqs: list[int]
    ends: list[int]
    records: int
    branches: list[str]
    delivered: dict[str, int]


class RetryResponse(Struct):
    retried: int


# -- operations --------------------------------------------------------------------------------------------------------


class UsageView(Struct):
    """What model calls used."""

    input: int = 0
    cached: int = 0
    output: int = 0
    usd: float = 0.0


class TimelineCallView(Struct):
    """A tool call."""

    seq: int
    tool: str
    began_at: float
    ended_at: float | None
    state: Literal["running", "done", "failed", "unknown"]


class TimelineRowView(Struct):
    """An operation. `took` are the messages that it consumed, `thoughts` its model calls."""

    op: int
    type: str
    state: str
    first: int
    last: int
    attempts: int
    undone_at: int
    covers: int
    took: list[int]
    asked_at: float | None
    began_at: float
    ended_at: float | None
    reason: str
    trigger: str
    model: str
    usage: UsageView
    thoughts: list[int]
    calls: list[TimelineCallView]
    notes: int
    tokens_before: int
    tokens_after: int
    messages: int


class TimelineResponse(Struct):
    """`next` is the `before` of the next page, null on the last."""

    session: str
    operations: list[TimelineRowView]
    next: int | None


class ContextPartView(Struct):
    """A part of a context: the entries it comes from, its size, and the range of its messages in the request."""

    kind: Literal["system", "tools", "compression", "pins", "exchange", "recall"]
    op: int
    seqs: list[int]
    tokens: int
    digest: str
    covers: int
    messages: tuple[int, int] | None


class PartDifferenceView(Struct):
    """What became of a part. `by` is the compression that replaces it."""

    change: Literal["same", "added", "dropped", "compressed", "changed"]
    part: ContextPartView
    tokens_before: int
    tokens_after: int
    by: int


class ContextDiffResponse(Struct):
    session: str
    parts: list[PartDifferenceView]
    tokens_before: int
    tokens_after: int


class EntryDeliveryView(Struct):
    """Where an entry is. `passed`: the consumer has read it and had nothing to send for it."""

    consumer: str
    state: Literal["waiting", "in_flight", "delivered", "in_doubt", "dead", "replaying", "passed"]
    remote: str
    at: float
    attempts: int
    error: str
    reason: str


class EntryDeliveriesResponse(Struct):
    session: str
    seq: int
    deliveries: list[EntryDeliveryView]


# -- dead letters ------------------------------------------------------------------------------------------------------


class DeadLetterCauseView(Struct):
    """Dead letters of one consumer with one reason."""

    consumer: str
    reason: str
    count: int
    in_doubt: int
    first_at: float
    last_at: float


class DeadLetterCausesResponse(Struct):
    causes: list[DeadLetterCauseView]


class DeadLetterDropRequest(Struct, forbid_unknown_fields=True):
    """Which dead letters to drop: those of `ids`, or all that match the other fields, of which one is needed."""

    ids: Annotated[list[Seq] | None, Meta(description="These dead letters.")] = None
    consumer: Annotated[str, Meta(description="Only those of this consumer.", max_length=200)] = ""
    cause: Annotated[str, Meta(description="Only those with this reason.", max_length=4_000)] = ""
    session: Annotated[str, Meta(description="Only those of this session.", max_length=200)] = ""
    dry_run: Annotated[bool, Meta(description="Only report how many.")] = False


class DeadLetterDropResponse(Struct):
    dropped: int


# -- use of models -----------------------------------------------------------------------------------------------------


class UsageRowView(Struct):
    """The use of models with this `key`."""

    key: str
    calls: int
    input: int
    cached: int
    output: int
    usd: float


class UsageResponse(Struct):
    by: Literal["day", "agent", "model", "person"]
    rows: list[UsageRowView]


# -- configuration -----------------------------------------------------------------------------------------------------


class ConfigProblemView(Struct):
    """Something wrong with the configuration. `disables` is the key of what does not work because of it; a `fatal` one
    keeps the whole text from being used."""

    file: str
    line: int
    key: str
    message: str
    remedy: str
    fatal: bool
    disables: str
    cause: str


class ConfigResponse(Struct):
    """The text of config.yaml. `digest` names it when it is changed, `values` are in force, `restart` lists keys that
    take effect with the next start."""

    text: str
    digest: str
    revision: str
    values: dict[str, Any]
    problems: list[ConfigProblemView]
    in_force: bool
    restart: list[str]


class ConfigDraft(Struct, forbid_unknown_fields=True):
    """A whole text, or new values by key (`agents.main.model`); null unsets a key. Comments stay."""

    text: str | None = None
    values: dict[str, Any] | None = None


class ConfigWriteRequest(ConfigDraft, kw_only=True):
    """A change. `base` is the digest of the text that it starts from."""

    base: str


class ConfigUndoRequest(Struct, forbid_unknown_fields=True):
    """Which earlier text to write again. `base` is the digest of the present one."""

    id: int
    base: str


class ConfigCheckResponse(Struct):
    valid: bool
    text: str
    diff: str
    problems: list[ConfigProblemView]
    restart: list[str]
    revision: str


class ConfigWriteResponse(ConfigCheckResponse, kw_only=True):
    digest: str


class ConfigVersionView(Struct):
    """A text that was replaced at `at`."""

    id: int
    at: float
    by: str
    text: str


class ConfigVersionsResponse(Struct):
    versions: list[ConfigVersionView]


# -- logs --------------------------------------------------------------------------------------------------------------


class LogLinesResponse(Struct):
    lines: list[dict[str, Any]]
    """Each with `at`, `level`, `event` and its fields; a line of a program has only `text`."""


# -- setup -------------------------------------------------------------------------------------------------------------


class ModelProviderView(Struct):
    """A kind of model, with its usual address and an example of a name."""

    name: str
    about: str
    url: str
    example: str


class AskedSettingView(Struct):
    """A setting of an account that a person has to give."""

    name: str
    question: str
    is_secret: bool


class PlatformOfferView(Struct):
    """A chat platform. `problem` says why it cannot be used here."""

    name: str
    settings: list[AskedSettingView]
    accounts: list[str]
    problem: str
    remedy: str


class SetupResponse(Struct):
    """`is_offline`: the default agent has no language model yet."""

    is_offline: bool
    providers: list[ModelProviderView]
    platforms: list[PlatformOfferView]


class ConfiguredModelView(Struct):
    """A configured model. `missing` are variables without a value."""

    name: str
    provider: str
    model: str
    url: str
    key_env: str
    missing: list[str]
    agents: list[str]


class ModelsResponse(Struct):
    models: list[ConfiguredModelView]


class ModelSetupRequest(Struct, forbid_unknown_fields=True):
    """A model to test. An empty key is the one that `.env` has for this address."""

    provider: Annotated[str, Meta(description="`openai`, `anthropic` or `offline`.")]
    url: Annotated[str, Meta(description="Its address; the usual one if empty.", max_length=2_000)] = ""
    name: Annotated[str, Meta(description="Its name there.", max_length=200)] = ""
    key: Annotated[str, Meta(description="Its key. It is never shown again.", max_length=4_000)] = ""
    alias: Annotated[str, Meta(description="Its name in config.yaml; the provider if empty.", max_length=100)] = ""
    write: Annotated[bool, Meta(description="Make it the agents' model if it works.")] = False


class ModelTestResponse(Struct):
    """What a model answered, or why it did not, with a remedy."""

    works: bool
    reply: str
    seconds: float
    tokens: int
    message: str
    remedy: str
    written: bool


class AccountSetupRequest(Struct, forbid_unknown_fields=True):
    """An account to test. An empty secret is the one that `.env` has for it."""

    platform: Label
    account: Annotated[str, Meta(description="Its name here; that of the default agent if empty.", max_length=100)] = ""
    agent: Annotated[str, Meta(description="The agent that answers there.", max_length=200)] = ""
    values: Annotated[dict[str, str], Meta(description="Its settings, by name.")] = {}
    write: Annotated[bool, Meta(description="Connect it if it works.")] = False


class AccountTestResponse(Struct):
    """The account's name on its platform and how to say hello to it, or why it does not work, with a remedy."""

    works: bool
    account: str
    name: str
    hello: str
    message: str
    remedy: str
    written: bool


class InvitationRequest(Struct, forbid_unknown_fields=True):
    """Who may have access to an account: the person of this name, or anybody."""

    platform: Label
    account: Label
    person: Annotated[str, Meta(description="A name, an identity or an id.", max_length=200)] = ""


class InvitationResponse(Struct):
    """`link` is valid once, until `until`. `name` is that of the account on its platform."""

    link: str
    name: str
    until: float


# -- inbox -------------------------------------------------------------------------------------------------------------


class InboxItemView(Struct):
    """Something that waits for a person. `about` is the place in the console where it is settled."""

    id: str
    kind: Literal[
        "pairing", "tools", "dead_letters", "in_doubt", "config", "problem", "given_up", "failing", "erasure", "budget"
    ]
    title: str
    remedy: str
    at: float | None
    about: str
    data: dict[str, Any]


class InboxResponse(Struct):
    items: list[InboxItemView]
