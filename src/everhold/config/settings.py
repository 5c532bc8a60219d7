"""The frozen settings of a configuration. This module reads no file and no environment variable.

Each key of config.yaml is a field here. Its docstring is its line in docs/reference/configuration.md. Fields that the
loader fills in (a resolved secret, a persona's text) have an alias that starts with `=`, which YAML keys cannot have.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from pydantic import BaseModel, Field, model_validator

from everhold.config.errors import ConfigProblem, suggest_name
from everhold.config.file_stamp import SeenFile
from everhold.config.values import (
    AbsolutePath,
    ConfigSection,
    EffectName,
    EnvName,
    Fraction,
    FreeMapping,
    FrozenTable,
    HookSchemeName,
    IdentityText,
    InDoubtPolicy,
    ModelName,
    ModelTable,
    Name,
    NamedTable,
    NetworkText,
    PolicyAction,
    PolicyOriginName,
    PolicyPlace,
    RoleName,
    SandboxName,
    SearchProviderName,
    SessionSharing,
    StoreUrl,
    Text,
    TimezoneName,
    TokenRole,
    Url,
    Usd,
    WritePolicy,
    build_value_error,
    find_url_problem,
    insert_password,
    is_postgres_url,
    make_empty_mapping,
    parse_timezone,
)
from everhold.errors import NotFound
from everhold.infra.secret import SecretString

OFFLINE_MODEL: Final = "offline"
BUILTIN_MEMORY: Final = "builtin"
DEFAULT_AGENT: Final = "main"
OPERATOR_TOKEN_NAME: Final = "operator"
"""The name of the token that `up` makes."""
OPERATOR_TOKEN_ENV: Final = "EVERHOLD_OPERATOR_TOKEN"
"""The variable with the token that `up` makes."""

RESTART_KEYS: Final = ("store", "http.host", "http.port")
"""Keys that are read only when everhold starts, so a change needs a restart."""


# -- the store ---------------------------------------------------------------------------------------------------------


class StoreSettings(ConfigSection):
    url: StoreUrl = ""
    """The address of a PostgreSQL database, without its password: `postgresql://everhold@db.example/everhold`. If not
    given, the log is a SQLite file in the home."""
    url_env: EnvName | None = None
    """The variable with the address, in place of `url`. The address in it may contain the password."""
    password_env: EnvName | None = None
    """The variable with the password, if `url` needs one."""
    poll_seconds: float = Field(default=0.5, ge=0.05, le=60)
    """How often a host looks for work that another host accepted. Hints of the database make it faster."""
    lease_seconds: float = Field(default=30.0, ge=3, le=600)
    """How long after the death of a host another one continues its turns; its accounts move after half of that."""
    connections: int = Field(default=8, ge=6, le=100)
    """How many connections this host opens to the database."""
    host_name: Text | None = None
    """What this host is called in `everhold hosts`; the machine's name if not given."""
    shared_paths: tuple[AbsolutePath, ...] = ()
    """Folders that every host sees, such as a network file system. A plug-in may keep its files there."""
    secret_url: SecretString | None = Field(default=None, validation_alias="=url")
    password: SecretString | None = Field(default=None, validation_alias="=password")
    missing: tuple[str, ...] = Field(default=(), validation_alias="=missing")

    @model_validator(mode="after")
    def _check_url(self) -> StoreSettings:
        if self.url and self.url_env:
            raise build_value_error("has both url and url_env", "remove one of them")
        if self.password_env and not self.url:
            raise build_value_error("has a password_env without a url", "add the url, or remove password_env")
        if not self.is_server and (unused := sorted(self.model_fields_set & _SERVER_KEYS)):
            raise build_value_error(
                f"{unused[0]} has no effect without a url, because a file in the home has one host",
                f"add url: postgresql://…, or remove {unused[0]}",
            )
        if self.secret_url is not None and not is_postgres_url(self.secret_url.reveal().strip()):
            raise build_value_error(
                f"the value of {self.url_env} is not the address of a PostgreSQL database",
                "for example postgresql://everhold:PASSWORD@db.example/everhold",
            )
        if self.secret_url is not None and (problem := find_url_problem(self.secret_url.reveal().strip())):
            raise build_value_error(
                f"the value of {self.url_env} {problem}",
                "write % as %25, / as %2F and @ as %40; or use url and password_env",
            )
        return self

    @property
    def is_server(self) -> bool:
        """Whether the store is on a database server."""
        return bool(self.url or self.url_env)

    def build_dsn(self) -> SecretString:
        """Return the address of the database with its password."""
        if self.secret_url is not None:
            return SecretString(self.secret_url.reveal().strip())
        return SecretString(insert_password(self.url, self.password.reveal() if self.password else ""))


_SERVER_KEYS: Final = frozenset({"poll_seconds", "lease_seconds", "connections", "host_name", "shared_paths"})


# -- HTTP, models, memories --------------------------------------------------------------------------------------------


class TokenSettings(ConfigSection):
    name: Name
    """What the token is called in logs and in `everhold logins`."""
    token_env: EnvName
    """The variable with the token. At least 32 characters, chosen at random: `openssl rand -hex 32`."""
    role: TokenRole = "member"
    """What the token may do. `operator`: everything, also to speak for others. `member`: the sessions, the memory and
    the schedules of one person. `service`: to speak for its own users, whom it names. `metrics`: to read `/metrics`."""
    person: Name | None = None
    """The person who speaks with this token, a name from `people`. If not given, the person has the token's name."""
    agents: tuple[Name, ...] = ()
    """The agents that the token may use; all of them if not given."""
    read_only: bool = False
    """Refuses every request that changes something."""
    token: SecretString | None = Field(default=None, validation_alias="=token")
    missing: tuple[str, ...] = Field(default=(), validation_alias="=missing")


class HttpSettings(ConfigSection):
    host: Text = "127.0.0.1"
    """The address to listen on. Any address other than loopback needs a token."""
    port: int = Field(default=8765, ge=0, le=65535)
    """The port to listen on; 0 chooses a free one."""
    tokens: tuple[TokenSettings, ...] = ()
    """The tokens of callers. `up` makes one more, for operators: `EVERHOLD_OPERATOR_TOKEN` in `.env`."""
    trusted_proxies: tuple[NetworkText, ...] = ()
    """The addresses or networks of your reverse proxies, such as `127.0.0.1`. `X-Forwarded-For` and `X-Forwarded-Proto`
    of other callers have no effect."""
    operator_token: SecretString | None = Field(default=None, validation_alias="=operator_token")
    """The token in `EVERHOLD_OPERATOR_TOKEN`."""

    @model_validator(mode="after")
    def _require_token(self) -> HttpSettings:
        if not self.is_loopback and not self.tokens and not self.operator_token:
            raise build_value_error(
                "accepts connections from other machines without a token",
                f"add the line {OPERATOR_TOKEN_ENV}=… to .env (`everhold up` adds one at its first start), "
                "or host: 127.0.0.1",
            )
        return self

    @property
    def is_loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


class PriceSettings(ConfigSection):
    input: Usd
    """Per million input tokens."""
    cached: Usd | None = None
    """Per million input tokens read from the provider's cache; the price of `input` if not given."""
    cache_write: Usd | None = None
    """Per million input tokens written to the provider's cache; the price of `input` if not given."""
    output: Usd
    """Per million output tokens."""


class PluginConfigSection(ConfigSection):
    """A section of a plug-in. The plug-in's own keys are in `extra`, with their secrets resolved."""

    extra: FreeMapping = Field(default_factory=make_empty_mapping, validation_alias="=extra")
    env: FrozenTable[str] = Field(default_factory=make_empty_mapping, validation_alias="=env")
    """The variable of each secret in `extra`, by key path."""
    missing: tuple[str, ...] = Field(default=(), validation_alias="=missing")
    """Variables that are needed and not set. The section is disabled until they are set."""

    @property
    def is_ready(self) -> bool:
        return not self.missing


class ModelSettings(PluginConfigSection):
    provider: Name
    """`openai` (and compatible servers), `anthropic`, `ollama`, `lmstudio`, `vllm`, `llamacpp`, `offline`, or an
    installed plug-in."""
    name: Text = ""
    """The model's name at the provider."""
    base_url: Url | None = None
    """The provider's address, if it is not the usual one."""
    api_key_env: EnvName | None = None
    """The variable with the API key."""
    context_tokens: int | None = Field(default=None, ge=256)
    """The size of the model's context window."""
    price: PriceSettings | None = None
    """US dollars per million tokens. A budget in dollars needs it."""
    params: FreeMapping = Field(default_factory=make_empty_mapping)
    """Parameters sent with every request, such as `temperature`."""
    key: str = Field(default="", validation_alias="=key")
    """Its name in `models`, or the key path of an inline model."""
    api_key: SecretString | None = Field(default=None, validation_alias="=api_key")


class RecallSettings(ConfigSection):
    deadline_seconds: float = Field(default=0.8, ge=0)
    """How long a turn waits for memories. Results that arrive later are left out. 0 recalls nothing."""
    max_tokens: int = Field(default=1700, ge=0)
    """How many tokens of the context recalled memories may take."""


class FactSettings(ConfigSection):
    person_chars: int = Field(default=2_000, ge=0)
    """How many characters the facts about the person may take."""
    other_chars: int = Field(default=3_000, ge=0)
    """How many characters all other facts may take."""

    @property
    def limits(self) -> dict[str, int]:
        return {"user": self.person_chars, "memory": self.other_chars}


class CompressionSettings(ConfigSection):
    soft: Fraction = 0.6
    """When the context exceeds this share of the model's window, a compression starts in the background."""
    hard: Fraction = 0.85
    """When it exceeds this share, the next turn waits for the compression."""
    keep_exchanges: int = Field(default=6, ge=0)
    """How many of the last exchanges are never compressed."""
    in_background: bool = True
    """Whether summaries are made in the background, before they are needed."""
    model: ModelName | None = None
    """The model that writes summaries; the agent's own if not given."""

    @model_validator(mode="after")
    def _check_order(self) -> CompressionSettings:
        if self.soft > self.hard:
            raise build_value_error("soft is greater than hard", "soft: 0.6, hard: 0.85")
        return self


class SessionSettings(ConfigSection):
    group: SessionSharing = "per-person"
    """Whether each member of a group has a session of their own, or all share one."""
    thread: SessionSharing = "shared"
    """The same for threads."""


class LimitSettings(ConfigSection):
    usd_per_day: Usd | None = None
    """US dollars per day."""
    tokens_per_day: int | None = Field(default=None, ge=0)
    """Input and output tokens per day."""


class BudgetSettings(LimitSettings):
    per_person: LimitSettings = LimitSettings()
    """What one person may spend with all agents together. Above it, this agent does not answer the person."""
    per_chat: LimitSettings = LimitSettings()
    """What one conversation may spend."""
    background: LimitSettings = LimitSettings()
    """What summaries, reviews and schedules may spend."""

    def list_limits(self) -> Iterator[LimitSettings]:
        yield from (self, self.per_person, self.per_chat, self.background)


class MemorySettings(PluginConfigSection):
    provider: Name
    """`builtin`, or an installed plug-in."""
    write: WritePolicy = "turn"
    """When exchanges are sent: after every `turn`, `async`, at the end of a `session`, or every N turns."""
    retain_every_n_turns: int | None = Field(default=None, ge=1)
    """The same as `write: N`, under the name that some providers use."""
    shadow: bool = False
    """Whether the memory is only compared: it is written, and asked at each turn, but the model never sees its hits,
    tools and prompt. `everhold memory compare` shows what it would contribute."""
    in_doubt: InDoubtPolicy = "resend"
    """What happens to a write in doubt: `resend` may store it twice, `hold` makes it a dead letter."""
    naming: Literal["everhold", "hermes"] = "everhold"
    """How sessions are named at the provider; `hermes` uses the names that hermes-agent gave them."""
    session_strategy: Literal["per-session", "per-directory", "per-repo", "global"] = "per-directory"
    """How a session without a chat (in a terminal) is named at the provider."""
    session_peer_prefix: bool = False
    """Whether the person's name is put before the session's."""
    name: str = Field(default="", validation_alias="=name")
    """The memory's key in `memories`."""


class ToolSettings(PluginConfigSection):
    provider: Name
    """An installed plug-in."""
    name: str = Field(default="", validation_alias="=name")
    """The tool's key in `tools`."""


# -- agents ------------------------------------------------------------------------------------------------------------


class WorkspaceSettings(ConfigSection):
    path: AbsolutePath | None = None
    """The folder that turns of owners work in, such as `~/projects/x`. All others have a folder of their own in the
    home: each person, and each group."""
    host: Text | None = None
    """Where the folders are, if several hosts share a store: the name of a host in `everhold hosts`. Not needed for a
    `path` in `store.shared_paths`."""


class ShellSettings(ConfigSection):
    sandbox: SandboxName = "auto"
    """What keeps commands from the home: `bubblewrap`, `landlock`, the first of them that works (`auto`), or `none`, if
    you trust every command with all secrets. Without a working sandbox the shell is not offered."""
    network: bool = False
    """Whether a command may ask for the network. Such a call reaches outside."""
    max_memory_bytes: int = Field(default=1_073_741_824, ge=64_000_000)
    """The memory of a command and all that it starts. Linux only, as the next two limits."""
    max_processes: int = Field(default=64, ge=1, le=10_000)
    """How many processes a command may start."""
    max_cpu_seconds: int = Field(default=300, ge=1)
    """The processor time of a command and all that it starts."""


class DelegateSettings(ConfigSection):
    max_rounds: int = Field(default=30, ge=1, le=50)
    """How often a sub-agent may ask its model. Then it answers with what it has, and so with the next two limits."""
    max_minutes: float = Field(default=30.0, gt=0)
    """How long a sub-agent may work, downtime included."""
    max_tokens: int = Field(default=500_000, ge=1_000)
    """What its model may read and write."""


class AgentSettings(ConfigSection):
    persona: str = ""
    """The agent's instructions: text, or a file relative to the home (`SOUL.md`). `{file: …}` and `{text: …}` are
    explicit."""
    model: ModelName = OFFLINE_MODEL
    """A name from `models`, or a mapping with the same keys. If `models` has one model, that is the default."""
    fallback: tuple[ModelName, ...] = ()
    """Models to try, in this order, when the model is unavailable."""
    memories: tuple[MemorySettings, ...] = ()
    """The memories that a turn recalls from: names from `memories`, or mappings `{name: …}` whose other keys override
    that section. `builtin` always stores everything and can be searched. A turn recalls from it only if it is
    listed."""
    recall: RecallSettings = RecallSettings()
    """The limits of recall in each turn."""
    facts: FactSettings = FactSettings()
    """The limits of the facts in every prompt of an agent with the `memory` tool, for each person or group."""
    busy: Literal["queue", "steer", "interrupt"] = "queue"
    """What a message does that arrives during a turn: wait for the next turn, join after the next tool call, or end the
    turn."""
    compression: CompressionSettings = CompressionSettings()
    """How a long conversation is compressed."""
    sessions: SessionSettings = SessionSettings()
    """Which people share a session."""
    budget: BudgetSettings = BudgetSettings()
    """What may be spent per day. A call that could exceed it is not made."""
    tools: tuple[Text, ...] = ("memory", "session_search", "attach", "schedule", "skill")
    """The agent's tools: `memory`, `session_search`, `attach`, `schedule`, `skill`, `files`, `shell`, `web_fetch`,
    `web_search`, `delegate`, an installed plug-in, or a name from `tools`; `mcp:NAME` for a server from `mcp`. `{name:
    …, needs: owner}` refuses a tool to turns below that role."""
    workspace: WorkspaceSettings = WorkspaceSettings()
    """The folder of the tools `files` and `shell`."""
    shell: ShellSettings = ShellSettings()
    """What commands of the tool `shell` may use."""
    delegate: DelegateSettings = DelegateSettings()
    """The limits of each sub-agent that the tool `delegate` starts. `budget.background` pays for them."""
    skills: tuple[Text, ...] = ("*",)
    """Names of the skills that the tool `skill` offers, in which `*` stands for any characters."""
    send_to: tuple[Text, ...] = ()
    """To whom the `send` tool may write: `agent:NAME`, or the address of a chat. No one if not given."""
    review_every_turns: int = Field(default=10, ge=0)
    """After how many turns a review writes facts from them. 0 for never."""
    memory_notices: bool = True
    """Whether the chat shows a notice when a fact was written."""
    owners: tuple[Name, ...] = ()
    """Names from `people` who are owners wherever this agent answers."""
    tool_needs: FrozenTable[str] = Field(default_factory=make_empty_mapping, validation_alias="=tool_needs")
    """The role that `needs` asks for, by the name in `tools`."""
    name: str = Field(default="", validation_alias="=name")
    persona_file: str = Field(default="", validation_alias="=persona_file")
    """The file that `persona` was read from."""

    def list_models(self) -> Iterator[str]:
        """Yield the name of each model that the agent may use."""
        yield self.model
        yield from self.fallback
        if self.compression.model is not None:
            yield self.compression.model


# -- platforms and people ----------------------------------------------------------------------------------------------


class AccountAccess(ConfigSection):
    direct: tuple[Text, ...] = ()
    """Who may send direct messages: names from `people`, or identities such as `telegram:1001`; `"*"` for
    everybody."""
    groups: FrozenTable[tuple[Text, ...]] = Field(default_factory=make_empty_mapping)
    """Who may speak in which group: group id, then names; `"*"` for everybody there."""


class AccountGroups(ConfigSection):
    answer: Literal["mentioned", "always"] = "mentioned"
    """Whether to answer only mentions, replies and commands, or every message."""
    observe: bool = False
    """Whether messages that are not answered are stored, too."""


class ChatSettings(ConfigSection):
    agent: Name | None = None
    """The agent of this chat, in place of the account's."""
    owners: tuple[Name, ...] = ()
    """Names from `people` who are owners in this chat."""
    sessions: SessionSettings | None = None
    """Overrides the agent's `sessions` in this chat."""
    groups: AccountGroups | None = None
    """Overrides the account's `groups` in this chat."""


class AccountSettings(PluginConfigSection):
    agent: Name
    """The agent that answers. If not given: the agent with the account's name, else the main one."""
    enabled: bool = True
    """Whether the account is used."""
    in_doubt: InDoubtPolicy = "resend"
    """What happens to a reply in doubt: `resend` may deliver it twice, `hold` makes it a dead letter."""
    access: AccountAccess = Field(default_factory=AccountAccess)
    """Who may speak. Only the owners if not given."""
    owners: tuple[Name, ...] = ()
    """Names from `people` who are owners in every chat of this account."""
    groups: AccountGroups = AccountGroups()
    """What the account does in groups."""
    chats: FrozenTable[ChatSettings] = Field(default_factory=make_empty_mapping)
    """Settings of single chats, by their id."""
    platform: str = Field(default="", validation_alias="=platform")
    account: str = Field(default="", validation_alias="=account")


class PersonSettings(ConfigSection):
    name: Name
    """The person's name in everhold."""
    identities: tuple[IdentityText, ...] = ()
    """The person's identities: `platform:id`, with ids that cannot be changed."""
    timezone: TimezoneName | None = None
    """The person's time zone, in which the agent is told the time; `timezone` if not given."""


class AccessSettings(ConfigSection):
    owners: tuple[Name, ...] = ()
    """Names from `people` who are owners in every chat. An owner may speak there and use every command."""
    pairing: bool = True
    """Whether an unknown sender gets a code that an owner or operator can approve."""


# -- the rest ----------------------------------------------------------------------------------------------------------


_SANDBOX_KEYS: Final = frozenset({"sandbox", "network", "read_paths", "write_paths"})
_LIMIT_KEYS: Final = frozenset({"max_memory_bytes", "max_processes", "max_cpu_seconds"})


class McpSettings(ConfigSection):
    command: tuple[Text, ...] = ()
    """The program to start, and its arguments."""
    url: Url | None = None
    """The address of a running server."""
    token_env: EnvName | None = None
    """The variable with the bearer token for `url`."""
    env: tuple[EnvName, ...] = ()
    """Variables that the program gets in addition; their values come from `.env` or the environment."""
    effects: FrozenTable[EffectName] = Field(default_factory=make_empty_mapping)
    """Each tool's effect: `pure`, `keyed`, `probe`, or `once` if a repeated call does harm. `once` if not given."""
    deadline_seconds: float = Field(default=60.0, gt=0)
    """After how many seconds a call fails."""
    sandbox: SandboxName = "auto"
    """What keeps the program from the home: `bubblewrap`, `landlock`, the first of them that works (`auto`), or `none`,
    if you trust the program with all secrets. Without a working sandbox the program is not started."""
    network: bool = False
    """Whether the program may use the network, this machine's own ports included. Not with `sandbox: none`."""
    read_paths: tuple[AbsolutePath, ...] = ()
    """Files and folders that the program may read, besides the system, its installation and the files in `command`."""
    write_paths: tuple[AbsolutePath, ...] = ()
    """Files and folders that the program may read and change, besides its own folder `mcp/NAME` in the home."""
    max_memory_bytes: int = Field(default=2_000_000_000, ge=64_000_000)
    """The memory of the program and all that it starts. Beyond it, or one of the next two limits, it is ended and
    started again. Linux only."""
    max_processes: int = Field(default=200, ge=1, le=10_000)
    """How many processes the program may start."""
    max_cpu_seconds: int = Field(default=600, ge=1)
    """The processor time of the program and all that it starts, within a quarter of an hour."""
    token: SecretString | None = Field(default=None, validation_alias="=token")
    variables: FrozenTable[SecretString] = Field(default_factory=make_empty_mapping, validation_alias="=variables")
    missing: tuple[str, ...] = Field(default=(), validation_alias="=missing")
    name: str = Field(default="", validation_alias="=name")

    @model_validator(mode="after")
    def _check_command_or_url(self) -> McpSettings:
        if bool(self.command) == bool(self.url):
            raise build_value_error("needs either a command or a url", "command: [mcp-server-time]")
        limits = sorted(self.model_fields_set & (_SANDBOX_KEYS | _LIMIT_KEYS))
        if limits and self.url:
            raise build_value_error(f"{limits[0]} is for a command, and a url starts no program", f"remove {limits[0]}")
        if self.sandbox == "none" and (unused := [it for it in limits if it in _SANDBOX_KEYS - {"sandbox"}]):
            raise build_value_error(
                f"{unused[0]} has no effect with sandbox: none, which allows everything", f"remove {unused[0]}"
            )
        return self

    @property
    def is_ready(self) -> bool:
        return not self.missing


class SearchSettings(ConfigSection):
    provider: SearchProviderName | None = None
    """The search service of the tool `web_search`: `searxng` (your own instance, whose `search.formats` contain
    `json`), `brave` or `tavily`."""
    url: Url | None = None
    """The address of the service: required for `searxng`; the usual one for the others."""
    api_key_env: EnvName | None = None
    """The variable with the key: required for `brave` and `tavily`."""
    api_key: SecretString | None = Field(default=None, validation_alias="=api_key")
    missing: tuple[str, ...] = Field(default=(), validation_alias="=missing")

    @model_validator(mode="after")
    def _check_provider(self) -> SearchSettings:
        if self.provider == "searxng" and self.url is None:
            raise build_value_error("needs the url of your SearXNG", "url: http://localhost:8080")
        if self.provider in ("brave", "tavily") and self.api_key_env is None:
            raise build_value_error(f"needs a key for {self.provider}", "api_key_env: SEARCH_API_KEY")
        return self

    @property
    def is_ready(self) -> bool:
        return self.provider is not None and not self.missing


class HookSettings(ConfigSection):
    secret_env: EnvName
    """The variable with the secret that the sender and everhold share. At least 16 characters."""
    scheme: HookSchemeName = "hmac"
    """How the sender proves itself: `hmac` (the header has the SHA-256 HMAC of the body in hex), `secret` (the header
    has the secret itself), or as `github`, `gitlab`, `slack`, `stripe` or `standard` (standardwebhooks.com) do it."""
    header: Text | None = None
    """For `hmac` and `secret`: the header; `X-Signature` and `X-Hook-Secret` if not given."""
    delivery_id: Text | None = None
    """A template of the delivery's id: `{headers.x-request-id}` or `{event.id}`. Deliveries with the same id are
    accepted once. Without an id, the same body within ten minutes is the same delivery."""
    to: Text | None = None
    """The address of the chat in which it is heard and answered, from `everhold sessions list`. If not given, the hook
    has a conversation of its own with `agent`."""
    agent: Name
    """The agent that hears it, if `to` is not given. If not given: the main one."""
    task: Text = "A webhook has delivered an event. Tell in a few words what happened."
    """What the agent is told to do. Nothing from the delivery is put in here, because that is not to be trusted."""
    text: Text = "{body}"
    """A template of what the agent reads of the delivery. `{a.b.0.c}` is a value of its JSON body, `{body}` the whole
    of it, `{headers.x-event}` a header."""
    when: FrozenTable[tuple[Text, ...]] = Field(default_factory=make_empty_mapping)
    """Which deliveries are heard: path, then the values that it may have. All if not given."""
    secret: SecretString | None = Field(default=None, validation_alias="=secret")
    missing: tuple[str, ...] = Field(default=(), validation_alias="=missing")
    name: str = Field(default="", validation_alias="=name")

    @model_validator(mode="after")
    def _check_header(self) -> HookSettings:
        if self.header is not None and self.scheme not in ("hmac", "secret"):
            raise build_value_error(f"has a header, and {self.scheme} always uses its own", "remove header")
        return self


class PolicyConditions(ConfigSection):
    command: Text | None = None
    """Of `shell`: the command, in which `*` stands for any characters. A rule with `do: allow` fits one simple command
    only: without operators, substitution, redirection or a line break."""


class PolicyRuleSettings(ConfigSection):
    tool: Text
    """The name of a tool as the model sees it, in which `*` stands for any characters: `github_*`."""
    do: PolicyAction
    """`allow` runs the call, `ask` needs a person's approval, `deny` refuses it."""
    who: tuple[RoleName, ...] = ()
    """The roles that it is about: `owner`, `member`, `known`, `stranger`. That of the least trusted person whose words
    the turn takes counts. All if not given."""
    where: tuple[PolicyPlace, ...] = ()
    """Where the turn answers: `dm`, `group`, `cli`, `api` (the console and the HTTP API). Everywhere if not given."""
    via: tuple[PolicyOriginName, ...] = ()
    """What started the turn: `chat`, `schedule`, `background`, `agent` (another agent or bot), `webhook`. Anything if
    not given."""
    agent: Name | None = None
    """The agent; all agents if not given."""
    when: PolicyConditions = PolicyConditions()
    """Conditions on the arguments."""
    remember: bool = True
    """Of a rule with `do: ask`: whether a person may answer `always`. With `false` every call is asked about."""

    @model_validator(mode="after")
    def _check_command(self) -> PolicyRuleSettings:
        if self.when.command is not None and self.tool != "shell":
            raise build_value_error("has a command, and only `shell` runs commands", "tool: shell, or remove when")
        return self


class ApprovalSettings(ConfigSection):
    by: tuple[Text, ...] = Field(default=("owner",), min_length=1)
    """Who may answer a request: `owner` (of the chat that asks), `self` (whoever asked), or names from `people`. The
    operators of this gateway always may."""
    to: tuple[Text, ...] = ()
    """Addresses of chats where a request is shown too, unless an owner asks by themselves. Name chats of owners: the
    whole call is shown there."""
    expire_hours: float = Field(default=72.0, gt=0, le=24 * 90)
    """After so many hours without an answer a request expires, and its call does not run."""
    most_pending: int = Field(default=10, ge=1, le=100)
    """How many requests of one conversation may wait at once. Further calls are refused."""


class PolicySettings(ConfigSection):
    approvals: ApprovalSettings = ApprovalSettings()
    """How a person is asked about a call that needs permission."""
    rules: tuple[PolicyRuleSettings, ...] = ()
    """Rules about tool calls. Those that fit a call replace the default. All of them count: `deny` is stronger than
    `ask`, and `ask` is stronger than `allow`. Their order means nothing."""
    after_foreign: Literal["ask", "allow"] = "ask"
    """What happens to a call that a rule allows and that reaches outside, after the model read words that do not come
    from the person who asks: results of tools, files, forwarded text, other senders."""


class LoopSettings(ConfigSection):
    max_hops: int = Field(default=8, ge=1)
    """How often agents may answer each other before a person has to speak."""
    halt_word: Text = "!halt"
    """Halts the agents of a chat, from anyone who may speak there. `/halt` does the same."""
    wake_word: Text = "!wake"
    """Ends the halt. `/wake` does the same."""

    @model_validator(mode="after")
    def _check_words_differ(self) -> LoopSettings:
        if self.halt_word == self.wake_word:
            raise build_value_error("halt_word and wake_word are the same", "halt_word: '!halt', wake_word: '!wake'")
        return self


class SubjectQuotas(ConfigSection):
    messages_per_minute: int = Field(default=0, ge=0)
    """Messages per minute; as many may come at once."""
    waiting_messages: int = Field(default=0, ge=0)
    """Messages that wait for an answer."""
    waiting_bytes: int = Field(default=0, ge=0)
    """The text of the messages that wait for an answer. One message is always accepted."""
    bytes_per_day: int = Field(default=0, ge=0)
    """Texts and files per day."""
    conversations_per_day: int = Field(default=0, ge=0)
    """New conversations per day."""


class MemberQuotas(SubjectQuotas):
    messages_per_minute: int = Field(default=120, ge=0)
    waiting_messages: int = Field(default=200, ge=0)
    waiting_bytes: int = Field(default=4_000_000, ge=0)
    bytes_per_day: int = Field(default=500_000_000, ge=0)
    conversations_per_day: int = Field(default=500, ge=0)


class StrangerQuotas(SubjectQuotas):
    messages_per_minute: int = Field(default=30, ge=0)
    waiting_messages: int = Field(default=50, ge=0)
    waiting_bytes: int = Field(default=1_000_000, ge=0)
    bytes_per_day: int = Field(default=50_000_000, ge=0)
    conversations_per_day: int = Field(default=50, ge=0)


class ChatQuotas(SubjectQuotas):
    messages_per_minute: int = Field(default=600, ge=0)
    waiting_messages: int = Field(default=500, ge=0)
    waiting_bytes: int = Field(default=8_000_000, ge=0)
    bytes_per_day: int = Field(default=2_000_000_000, ge=0)
    conversations_per_day: int = Field(default=1_000, ge=0)


class ServiceQuotas(SubjectQuotas):
    messages_per_minute: int = Field(default=3_000, ge=0)
    waiting_messages: int = Field(default=2_500, ge=0)
    waiting_bytes: int = Field(default=32_000_000, ge=0)
    bytes_per_day: int = Field(default=10_000_000_000, ge=0)
    conversations_per_day: int = Field(default=5_000, ge=0)


class AccountQuotas(SubjectQuotas):
    messages_per_minute: int = Field(default=6_000, ge=0)
    waiting_messages: int = Field(default=5_000, ge=0)
    waiting_bytes: int = Field(default=64_000_000, ge=0)
    bytes_per_day: int = Field(default=20_000_000_000, ge=0)
    conversations_per_day: int = Field(default=10_000, ge=0)


class TokenQuotas(ConfigSection):
    requests_per_second: int = Field(default=100, ge=1)
    """Requests per second in the long run; five times as many may come at once."""
    requests_at_once: int = Field(default=64, ge=1)
    """Requests that are answered at the same time, streams included."""
    bodies_at_once: int = Field(default=8, ge=1)
    """Requests whose body is still arriving."""
    event_streams: int = Field(default=32, ge=1)
    """Open streams of `/api/events`."""


class FileQuotas(ConfigSection):
    per_message: int = Field(default=20, ge=0)
    """How many files of one message are downloaded."""
    at_once: int = Field(default=8, ge=1)
    """How many files an account downloads at the same time. One chat downloads one file at a time."""
    deadline_seconds: float = Field(default=60.0, gt=0)
    """After this time the message is accepted without the file, with a note about it."""


class SpendQuotas(ConfigSection):
    usd_per_day: Usd = 20.0
    """US dollars per day, with models that have a price."""
    tokens_per_day: int = Field(default=20_000_000, ge=0)
    """Input and output tokens per day."""


class QuotaSettings(ConfigSection):
    """How much one sender, chat, account or token may use. Owners and operators have no quotas."""

    member: MemberQuotas = MemberQuotas()
    """One sender with the role member. 0 stands for unlimited, here and in the sections below."""
    stranger: StrangerQuotas = StrangerQuotas()
    """One sender with the role known or stranger, whom only a `"*"` admits to a group."""
    chat: ChatQuotas = ChatQuotas()
    """All senders of one chat together."""
    service: ServiceQuotas = ServiceQuotas()
    """All users of one token with the role service together. Each of them also has the limits of a sender."""
    account: AccountQuotas = AccountQuotas()
    """All senders of one account together; also all callers of the API."""
    token: TokenQuotas = TokenQuotas()
    """The HTTP requests of one token without `operator`."""
    files: FileQuotas = FileQuotas()
    """Files that come with messages."""
    spend: SpendQuotas = SpendQuotas()
    """What the turns, tasks, sub-agents and schedules of one person who is not an owner may spend with all agents
    together."""


class BackupSettings(ConfigSection):
    every_hours: float = Field(default=24.0, ge=0)
    """How often the store is backed up to `backups/`; 0 for never."""
    keep: int = Field(default=7, ge=1)
    """How many backups are kept."""
    increment_minutes: float = Field(default=5.0, ge=0)
    """How often what was committed since then is copied, too; 0 for never."""
    directory: str = ""
    """Where backups go: an existing directory, perhaps on another disk; empty for `backups/` in the home. With a store
    on a server, hosts keep there the list of what was erased."""


class DrainSettings(ConfigSection):
    settle_seconds: float = Field(default=0.0, ge=0, le=300)
    """How long a gateway that ends works on unchanged while `/ready` answers 503, so that proxies notice it. 5 behind a
    balancer."""


class Settings(ConfigSection):
    """One revision of the configuration."""

    store: StoreSettings = StoreSettings()
    """Where the log is kept: in a SQLite file in the home, or in a PostgreSQL database that several hosts share."""
    timezone: TimezoneName = "UTC"
    """The time zone of budgets and schedules, and in which agents are told the time."""
    http: HttpSettings = HttpSettings()
    """The console, the API, and who may use them."""
    models: ModelTable[ModelSettings] = Field(default_factory=make_empty_mapping)
    """Models by the name you give them. `offline` always exists."""
    defaults: AgentSettings = Field(default_factory=AgentSettings)
    """Merged under every agent: mappings merge, lists replace."""
    agents: NamedTable[AgentSettings] = Field(default_factory=make_empty_mapping)
    """Agents by name; `main` if none is given."""
    memories: NamedTable[MemorySettings] = Field(default_factory=make_empty_mapping)
    """Memories by the name you give them. `builtin` always exists."""
    tools: NamedTable[ToolSettings] = Field(default_factory=make_empty_mapping)
    """Tools of plug-ins by the name you give them. A tool without settings needs no section."""
    platforms: NamedTable[NamedTable[AccountSettings]] = Field(default_factory=make_empty_mapping)
    """Chat platforms: platform, then account, then its settings."""
    people: tuple[PersonSettings, ...] = ()
    """People and their identities."""
    access: AccessSettings = AccessSettings()
    """Owners and pairing."""
    mcp: NamedTable[McpSettings] = Field(default_factory=make_empty_mapping)
    """MCP servers by the name you give them."""
    policy: PolicySettings = PolicySettings()
    """Which tool calls run, which need a person's approval, and which are refused."""
    search: SearchSettings = SearchSettings()
    """The search service of the tool `web_search`."""
    hooks: NamedTable[HookSettings] = Field(default_factory=make_empty_mapping)
    """Webhooks: what other services send to `POST /hooks/NAME`."""
    loops: LoopSettings = LoopSettings()
    """Limits that keep agents from answering each other endlessly."""
    quotas: QuotaSettings = QuotaSettings()
    """How much one sender, chat, account or token may use. Owners and operators have no quotas."""
    backup: BackupSettings = BackupSettings()
    """Backups of the store."""
    drain: DrainSettings = DrainSettings()
    """How the gateway ends, after SIGTERM or `everhold drain`."""

    default_agent: str = Field(default=DEFAULT_AGENT, validation_alias="=default_agent")
    """The agent that answers where no other is named."""
    revision: str = Field(default="", validation_alias="=revision")
    """A digest that changes if and only if something in force changes, secrets included."""
    signatures: Mapping[str, str] = Field(default_factory=make_empty_mapping, validation_alias="=signatures")
    """A digest per agent that changes only with what this agent depends on."""
    model_signatures: Mapping[str, str] = Field(
        default_factory=make_empty_mapping, validation_alias="=model_signatures"
    )
    """A digest per model that changes only with its provider, address, name or key."""
    problems: tuple[ConfigProblem, ...] = Field(default=(), validation_alias="=problems")
    """Problems that disable a part of the configuration."""
    seen: Mapping[Path, SeenFile] = Field(default_factory=make_empty_mapping, validation_alias="=seen", repr=False)
    """The files that were read, and their state then."""
    document: Mapping[str, Any] = Field(default_factory=make_empty_mapping, validation_alias="=document", repr=False)
    """The values as written, with personas and without secrets. Loading it restores this revision."""

    def get_agent(self, name: str = "") -> AgentSettings:
        """Return the agent called `name`, or the default agent."""
        try:
            return self.agents[name or self.default_agent]
        except KeyError:
            raise NotFound(f"there is no agent {name!r}", remedy=suggest_name(name, self.agents)) from None

    def list_accounts(self) -> Iterator[AccountSettings]:
        for accounts in self.platforms.values():
            yield from accounts.values()

    @cached_property
    def zone(self) -> datetime.tzinfo:
        return parse_timezone(self.timezone)

    @cached_property
    def identities(self) -> Mapping[str, str]:
        """The configured person of each `platform:id`."""
        return MappingProxyType({id: person.name for person in self.people for id in person.identities})

    @cached_property
    def person_zones(self) -> Mapping[str, str]:
        """The time zone of each `platform:id` whose person has one."""
        zones = {id: it.timezone for it in self.people if it.timezone for id in it.identities}
        return MappingProxyType(zones)

    def list_aliases(self, name: str) -> tuple[str, ...]:
        """Return the name and all identities of the person with this name or identity."""
        for person in self.people:
            if name == person.name or name in person.identities:
                return (person.name, *person.identities)
        return (name,)

    def list_secrets(self) -> tuple[SecretString, ...]:
        """Return every secret in force, for redaction."""
        return tuple(dict.fromkeys(_iterate_secrets(self)))


def _iterate_secrets(value: object) -> Iterator[SecretString]:
    if isinstance(value, SecretString):
        yield value
    elif isinstance(value, ConfigSection):
        for name in type(value).model_fields:
            yield from _iterate_secrets(getattr(value, name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _iterate_secrets(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _iterate_secrets(item)


def list_keys_awaiting_restart(running: Settings, settings: Settings) -> list[str]:
    """Return the keys of `settings` that a process started with `running` cannot apply without a restart."""

    def value(of: Settings, key: str) -> object:
        return reduce(getattr, key.split("."), of)

    return [key for key in RESTART_KEYS if value(running, key) != value(settings, key)]


def is_restart_required(key: str) -> bool:
    """Whether a change at `key` may affect a value that is read only at the start."""
    return any(f"{it}.".startswith(f"{key}.") or f"{key}.".startswith(f"{it}.") for it in RESTART_KEYS)


def is_derived_field(model: type[BaseModel], field: str) -> bool:
    """Whether the loader fills in this field. Such a field is not a key of config.yaml."""
    alias = model.model_fields[field].validation_alias
    return isinstance(alias, str) and alias.startswith("=")


def list_given_fields(model: type[BaseModel]) -> list[str]:
    """Return the keys of a section that can be written in YAML."""
    return [name for name in model.model_fields if not is_derived_field(model, name)]


ValidatePlugin: TypeAlias = Callable[[str, str, Mapping[str, Any]], list[ConfigProblem]]
"""(group, plug-in, its section with secrets resolved) -> the problems, with paths relative to the section."""
