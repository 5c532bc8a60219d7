"""Settings: everything a configuration can say, frozen. Read at the door, handed down; reads no file and no variable.

A key of config.yaml is a field here, and its docstring is its line in docs/reference/configuration.md. Fields that the
loader fills in (a resolved secret, a persona's text) are marked `derived`: nobody can write them in YAML.
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
    ConfigSection,
    EffectName,
    EnvName,
    Fraction,
    FreeMapping,
    FrozenTable,
    IdentityText,
    InDoubtPolicy,
    ModelName,
    ModelTable,
    Name,
    NamedTable,
    SessionSharing,
    StoreKind,
    Text,
    TimezoneName,
    Url,
    Usd,
    WritePolicy,
    build_value_error,
    make_empty_mapping,
    parse_timezone,
)
from everhold.errors import NotFound
from everhold.infra.secret import SecretString

OFFLINE_MODEL: Final = "offline"
BUILTIN_MEMORY: Final = "builtin"
DEFAULT_AGENT: Final = "main"

RESTART_KEYS: Final = ("store", "http.host", "http.port")
"""Keys that are read when everhold starts, and not again: changing one of them takes a restart."""


# -- the whole house ---------------------------------------------------------------------------------------------------


class TokenSettings(ConfigSection):
    name: Name
    """What the token is called in logs."""
    token_env: EnvName
    """The variable with the token. At least 32 random characters: `openssl rand -hex 32`."""
    person: Name | None = None
    """Who speaks when this token is used, a name from `people`. Without it: whoever is called like the token."""
    operator: bool = False
    """May do everything, and speak for others."""
    token: SecretString | None = Field(default=None, validation_alias="=token")
    missing: tuple[str, ...] = Field(default=(), validation_alias="=missing")


class HttpSettings(ConfigSection):
    host: Text = "127.0.0.1"
    """The address to listen on. Any other than loopback needs a token."""
    port: int = Field(default=8765, ge=0, le=65535)
    """The port to listen on; 0 takes a free one."""
    tokens: tuple[TokenSettings, ...] = ()
    """Who may come in from elsewhere."""

    @model_validator(mode="after")
    def _require_token(self) -> HttpSettings:
        if not self.is_loopback and not self.tokens:
            raise build_value_error(
                "listens beyond this machine without a token",
                "add tokens: [{name: me, token_env: EVERHOLD_TOKEN, operator: true}], or host: 127.0.0.1",
            )
        return self

    @property
    def is_loopback(self) -> bool:
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


class PriceSettings(ConfigSection):
    input: Usd
    """Per million tokens the model reads."""
    cached: Usd | None = None
    """Per million tokens it has read before; as `input` if not given."""
    cache_write: Usd | None = None
    """Per million tokens it keeps for reading again; as `input` if not given."""
    output: Usd
    """Per million tokens it writes."""


class PluginConfigSection(ConfigSection):
    """A section that a plug-in reads: what it alone understands stands in `extra`, secrets resolved."""

    extra: FreeMapping = Field(default_factory=make_empty_mapping, validation_alias="=extra")
    env: FrozenTable[str] = Field(default_factory=make_empty_mapping, validation_alias="=env")
    """Where each secret of `extra` comes from: key path -> variable."""
    missing: tuple[str, ...] = Field(default=(), validation_alias="=missing")
    """Variables this needs that are not set: it is disabled until they are."""

    @property
    def is_ready(self) -> bool:
        return not self.missing


class ModelSettings(PluginConfigSection):
    provider: Name
    """`openai` (and everything compatible), `anthropic`, `offline`, or an installed plug-in."""
    name: Text = ""
    """The model's name at the provider."""
    base_url: Url | None = None
    """Where the provider answers, if not at its usual place."""
    api_key_env: EnvName | None = None
    """The variable with the key."""
    context_tokens: int | None = Field(default=None, ge=256)
    """How much the model can read at once."""
    price: PriceSettings | None = None
    """US dollars per million tokens. A budget in dollars needs it."""
    params: FreeMapping = Field(default_factory=make_empty_mapping)
    """Passed on with every request, such as `temperature`."""
    key: str = Field(default="", validation_alias="=key")
    """The name it has in `models`, or the place it was written at."""
    api_key: SecretString | None = Field(default=None, validation_alias="=api_key")


class RecallSettings(ConfigSection):
    deadline_seconds: float = Field(default=0.8, ge=0)
    """How long a turn waits for memories. Later answers are left out. 0 recalls nothing."""
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
    """From this share of the model's context on, a summary is made ahead of need."""
    hard: Fraction = 0.85
    """From this share on, the chat waits for it."""
    keep_exchanges: int = Field(default=6, ge=0)
    """How many of the last exchanges always stay word for word."""
    in_background: bool = True
    """Make summaries in the background, before they are needed."""
    model: ModelName | None = None
    """Which model writes them; the agent's own if not given."""

    @model_validator(mode="after")
    def _check_order(self) -> CompressionSettings:
        if self.soft > self.hard:
            raise build_value_error("soft lies above hard", "soft: 0.6, hard: 0.85")
        return self


class SessionSettings(ConfigSection):
    group: SessionSharing = "per-person"
    """In a group, does everybody talk in their own session, or all in one?"""
    thread: SessionSharing = "shared"
    """The same for a thread."""


class LimitSettings(ConfigSection):
    usd_per_day: Usd | None = None
    """US dollars per day."""
    tokens_per_day: int | None = Field(default=None, ge=0)
    """Tokens per day, read and written."""


class BudgetSettings(LimitSettings):
    per_person: LimitSettings = LimitSettings()
    """What one person may have caused, with all agents together, for this one to answer them."""
    per_chat: LimitSettings = LimitSettings()
    """What one conversation may cause."""
    background: LimitSettings = LimitSettings()
    """What summaries, reviews and schedules may cost."""

    def list_limits(self) -> Iterator[LimitSettings]:
        yield from (self, self.per_person, self.per_chat, self.background)


class MemorySettings(PluginConfigSection):
    provider: Name
    """`builtin`, or an installed plug-in."""
    write: WritePolicy = "turn"
    """When exchanges go to the provider: after every `turn`, `async`, at the end of a `session`, or every N turns."""
    retain_every_n_turns: int | None = Field(default=None, ge=1)
    """The same as `write: N`, under the name some providers' users know."""
    in_doubt: InDoubtPolicy = "resend"
    """What happens to a write nobody can tell the fate of: `resend` risks a double, `hold` waits for a person."""
    naming: Literal["everhold", "hermes"] = "everhold"
    """How sessions are named at the provider; `hermes` keeps the names hermes-agent gave."""
    session_strategy: Literal["per-session", "per-directory", "per-repo", "global"] = "per-directory"
    """What a session without a chat (a terminal) is filed under."""
    session_peer_prefix: bool = False
    """Put the person's name before the session's."""
    name: str = Field(default="", validation_alias="=name")
    """The instance: its key in `memories`."""


class ToolSettings(PluginConfigSection):
    provider: Name
    """An installed plug-in."""
    name: str = Field(default="", validation_alias="=name")
    """The instance: its key in `tools`."""


# -- agents ------------------------------------------------------------------------------------------------------------


class AgentSettings(ConfigSection):
    persona: str = ""
    """Who the agent is: text, or a file relative to the home (`SOUL.md`); `{file: …}` and `{text: …}` say which."""
    model: ModelName = OFFLINE_MODEL
    """A name from `models`, or a mapping with the same keys. With one model in `models`, that one."""
    fallback: tuple[ModelName, ...] = ()
    """Models to try, in this order, when the model is down."""
    memories: tuple[MemorySettings, ...] = ()
    """Which memories a turn asks: names from `memories`, or mappings `{name: …}` whose other keys override what stands
    there. Without `builtin` it is not asked in a turn, but still takes everything in and can be searched."""
    recall: RecallSettings = RecallSettings()
    """How much is remembered in each turn."""
    facts: FactSettings = FactSettings()
    """How much an agent with the `memory` tool keeps in mind in every turn, for each person or group."""
    busy: Literal["queue", "steer", "interrupt"] = "queue"
    """What a message does that arrives during a turn: wait for the next, join at the next tool, or end it."""
    compression: CompressionSettings = CompressionSettings()
    """How a conversation that grows too long is summed up."""
    sessions: SessionSettings = SessionSettings()
    """Who shares a session with whom."""
    budget: BudgetSettings = BudgetSettings()
    """What may be spent per day. A call that could exceed it is not made."""
    tools: tuple[Text, ...] = ("memory", "session_search", "attach")
    """What the agent can use: `memory`, `session_search`, `attach`, an installed plug-in, or a name from `tools`;
    `mcp:NAME` for a server from `mcp`."""
    send_to: tuple[Text, ...] = ()
    """Whom the agent may write to of its own accord: `agent:NAME`, or the address of a chat. Nobody if not given."""
    review_every_turns: int = Field(default=10, ge=0)
    """After how many turns a review looks through them for what to remember. 0 for never."""
    memory_notices: bool = True
    """Say in the chat when something was remembered."""
    name: str = Field(default="", validation_alias="=name")
    persona_file: str = Field(default="", validation_alias="=persona_file")
    """Where `persona` was read from."""

    def list_models(self) -> Iterator[str]:
        """Every model it may ask."""
        yield self.model
        yield from self.fallback
        if self.compression.model is not None:
            yield self.compression.model


# -- platforms and people ----------------------------------------------------------------------------------------------


class AccountAccess(ConfigSection):
    direct: tuple[Text, ...] = ()
    """Who may write to it directly: names from `people`, or ids such as `telegram:1001`."""
    groups: FrozenTable[tuple[Text, ...]] = Field(default_factory=make_empty_mapping)
    """Who may speak in which group: group id to names."""


class AccountGroups(ConfigSection):
    answer: Literal["mentioned", "always"] = "mentioned"
    """Answer when mentioned, replied to or commanded, or always."""
    observe: bool = False
    """Keep what others say in the group, too."""


class ChatSettings(ConfigSection):
    agent: Name | None = None
    """Another agent for this chat."""
    sessions: SessionSettings | None = None
    """Other sessions for this chat; laid over the agent's."""
    groups: AccountGroups | None = None
    """Another way to behave in this group; laid over the account's."""


class AccountSettings(PluginConfigSection):
    agent: Name
    """Who answers. If not given: the agent with the account's name, else the main one."""
    enabled: bool = True
    """Whether the account is used."""
    in_doubt: InDoubtPolicy = "resend"
    """What happens to a reply nobody can tell the fate of: `resend` risks a double, `hold` waits for a person."""
    access: AccountAccess = Field(default_factory=AccountAccess)
    """Who may speak. Nobody if not given, except the owners."""
    groups: AccountGroups = AccountGroups()
    """How to behave in groups."""
    chats: FrozenTable[ChatSettings] = Field(default_factory=make_empty_mapping)
    """Exceptions for single chats, by their id."""
    platform: str = Field(default="", validation_alias="=platform")
    account: str = Field(default="", validation_alias="=account")


class PersonSettings(ConfigSection):
    name: Name
    """What the person is called here."""
    identities: tuple[IdentityText, ...] = ()
    """How to recognise them: `platform:id`, ids that cannot be changed."""


class AccessSettings(ConfigSection):
    owners: tuple[Name, ...] = ()
    """Who may do everything, everywhere."""
    pairing: bool = True
    """Strangers get a code that somebody in charge can approve."""


# -- the rest ----------------------------------------------------------------------------------------------------------


class McpSettings(ConfigSection):
    command: tuple[Text, ...] = ()
    """The program to start, and its arguments."""
    url: Url | None = None
    """A server that runs already."""
    token_env: EnvName | None = None
    """The variable with the bearer token for `url`."""
    env: tuple[EnvName, ...] = ()
    """Variables the program gets besides the usual ones; their values come from `.env` or the environment."""
    effects: FrozenTable[EffectName] = Field(default_factory=make_empty_mapping)
    """What running a tool twice would do: `pure` nothing, `keyed`, `probe`, or `once` for harm. `once` if not given."""
    deadline_seconds: float = Field(default=60.0, gt=0)
    """When a call is given up."""
    token: SecretString | None = Field(default=None, validation_alias="=token")
    variables: FrozenTable[SecretString] = Field(default_factory=make_empty_mapping, validation_alias="=variables")
    missing: tuple[str, ...] = Field(default=(), validation_alias="=missing")
    name: str = Field(default="", validation_alias="=name")

    @model_validator(mode="after")
    def _check_command_or_url(self) -> McpSettings:
        if bool(self.command) == bool(self.url):
            raise build_value_error("needs either a command or a url", "command: [mcp-server-time]")
        return self

    @property
    def is_ready(self) -> bool:
        return not self.missing


class LoopSettings(ConfigSection):
    max_hops: int = Field(default=8, ge=1)
    """How often agents may answer each other before a human has to speak."""
    halt_word: Text = "!halt"
    """Stops the agents of a conversation, whoever of the allowed says it. `/halt` does the same."""
    wake_word: Text = "!wake"
    """Lets them speak again. `/wake` does the same."""


class BackupSettings(ConfigSection):
    every_hours: float = Field(default=24.0, ge=0)
    """How often the store is copied to `backups/`; 0 for never."""
    keep: int = Field(default=7, ge=1)
    """How many copies are kept."""


class Settings(ConfigSection):
    """One revision of the configuration."""

    store: StoreKind = "sqlite"
    """Where the log is kept. `sqlite`, a file in the home, is the only store so far."""
    timezone: TimezoneName = "UTC"
    """When a day begins, for budgets and schedules."""
    http: HttpSettings = HttpSettings()
    """The page, the API, and who may use them."""
    models: ModelTable[ModelSettings] = Field(default_factory=make_empty_mapping)
    """Models by the name you give them. `offline` is always there."""
    defaults: AgentSettings = AgentSettings()
    """Merged under every agent: mappings merge, lists replace."""
    agents: NamedTable[AgentSettings] = Field(default_factory=make_empty_mapping)
    """Agents by name; `main` if none is given."""
    memories: NamedTable[MemorySettings] = Field(default_factory=make_empty_mapping)
    """Memory services by the name you give them. `builtin` is always there."""
    tools: NamedTable[ToolSettings] = Field(default_factory=make_empty_mapping)
    """Tools of plug-ins by the name you give them, for those that want settings; others need no section."""
    platforms: NamedTable[NamedTable[AccountSettings]] = Field(default_factory=make_empty_mapping)
    """Chat platforms: platform, then account, then its settings."""
    people: tuple[PersonSettings, ...] = ()
    """Who is who."""
    access: AccessSettings = AccessSettings()
    """Who is in charge."""
    mcp: NamedTable[McpSettings] = Field(default_factory=make_empty_mapping)
    """Tool servers by the name you give them."""
    loops: LoopSettings = LoopSettings()
    """What stops agents from talking to each other for ever."""
    backup: BackupSettings = BackupSettings()
    """Copies of the store."""

    default_agent: str = Field(default=DEFAULT_AGENT, validation_alias="=default_agent")
    """Who answers where nobody else was named."""
    revision: str = Field(default="", validation_alias="=revision")
    """Changes if and only if something in force changes, secrets included."""
    signatures: Mapping[str, str] = Field(default_factory=make_empty_mapping, validation_alias="=signatures")
    """Per agent: changes with what this agent depends on, and with nothing else."""
    model_signatures: Mapping[str, str] = Field(
        default_factory=make_empty_mapping, validation_alias="=model_signatures"
    )
    """Per model: changes with who is asked under its name, and with nothing else."""
    problems: tuple[ConfigProblem, ...] = Field(default=(), validation_alias="=problems")
    """What does not work for want of something, and the remedy."""
    seen: Mapping[Path, SeenFile] = Field(default_factory=make_empty_mapping, validation_alias="=seen", repr=False)
    """What was read for this revision, as it was then."""
    document: Mapping[str, Any] = Field(default_factory=make_empty_mapping, validation_alias="=document", repr=False)
    """What was written, personas included and secrets not: enough to bring this revision back."""

    def get_agent(self, name: str = "") -> AgentSettings:
        """The agent called `name`, or the default one."""
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
        """`platform:id` -> person, as configured."""
        return MappingProxyType({id: person.name for person in self.people for id in person.identities})

    def list_aliases(self, name: str) -> tuple[str, ...]:
        """Every name that somebody, called by any of them, is known under here."""
        for person in self.people:
            if name == person.name or name in person.identities:
                return (person.name, *person.identities)
        return (name,)

    def list_secrets(self) -> tuple[SecretString, ...]:
        """Every secret value in force, for redaction."""
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
    """The keys of `settings` that are not in force in a process that was started with `running`."""

    def value(of: Settings, key: str) -> object:
        return reduce(getattr, key.split("."), of)

    return [key for key in RESTART_KEYS if value(running, key) != value(settings, key)]


def is_restart_required(key: str) -> bool:
    """Whether a change at `key` may change something that is read only at a start."""
    return any(f"{it}.".startswith(f"{key}.") or f"{key}.".startswith(f"{it}.") for it in RESTART_KEYS)


def is_derived_field(model: type[BaseModel], field: str) -> bool:
    """Does the loader fill this field in, rather than whoever writes config.yaml?"""
    alias = model.model_fields[field].validation_alias
    return isinstance(alias, str) and alias.startswith("=")


def list_given_fields(model: type[BaseModel]) -> list[str]:
    """The keys of a section that can be written in YAML."""
    return [name for name in model.model_fields if not is_derived_field(model, name)]


ValidatePlugin: TypeAlias = Callable[[str, str, Mapping[str, Any]], list[ConfigProblem]]
"""(group, plug-in, its section with secrets resolved) -> what is wrong with it, with paths relative to the section."""
