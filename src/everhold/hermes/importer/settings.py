"""Converts settings of hermes-agent: personas, models, memory services, platform accounts and access. Settings that are
not understood are listed, and existing settings are kept. Platform accounts are imported disabled, because two programs
that listen with one token take each other's messages.
"""

from __future__ import annotations

import hashlib
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from everhold.config import ConfigError, Settings, load_settings, set_key, set_secret
from everhold.config.edit import edit_text, split_key
from everhold.config.secrets import parse_env
from everhold.config.settings import ValidatePlugin
from everhold.config.values import thaw_value
from everhold.errors import EverholdError
from everhold.hermes.importer import access, mcp_servers, services
from everhold.hermes.importer.peers import ServiceUse, resolve_peers
from everhold.hermes.importer.people import ImportedSender, is_unknown
from everhold.hermes.reader.files import MAIN_AGENT, PROVIDER_FILES, HermesProfile
from everhold.infra.home import Home, read_file, write_file
from everhold.infra.secret import SecretString

ACCOUNT_VARIABLES: Final[dict[str, dict[str, str]]] = {
    "telegram": {"token_env": "TELEGRAM_BOT_TOKEN"},
    "discord": {"token_env": "DISCORD_BOT_TOKEN"},
    "slack": {"bot_token_env": "SLACK_BOT_TOKEN", "app_token_env": "SLACK_APP_TOKEN"},
    "matrix": {"token_env": "MATRIX_ACCESS_TOKEN", "homeserver": "MATRIX_HOMESERVER", "user": "MATRIX_USER_ID"},
}
"""Platform -> key of an account -> its variable in hermes-agent. Keys that end with `_env` are secrets."""

MODEL_PROVIDERS: Final[dict[str, tuple[str, str, str]]] = {
    "openai": ("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openrouter": ("openai", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "anthropic": ("anthropic", "", "ANTHROPIC_API_KEY"),
    "custom": ("openai", "", "OPENAI_API_KEY"),
}
"""Supported providers -> our provider, the URL, the variable with the key."""

ALIASES: Final = "user_peer_aliases"
_IMPORTED_KEYS: Final = frozenset(
    {"model", "memory", "busy_input_mode", "group_sessions_per_user", "thread_sessions_per_user", "mcp_servers"}
)
_IMPORTED_PARTS: Final = {
    "model": frozenset({"default", "provider", "base_url", "api_key", "context_length"}),
    "memory": frozenset({"provider"}),
}
"""Section -> its keys that are imported."""
_HASH_DIGITS: Final = 8
NO_SETTING: Final = "everhold has no such setting"
_KEY_REASONS: Final = {
    "onboarding": "made by hermes-agent for itself",
    "_config_version": "made by hermes-agent for itself",
    "auxiliary": "models for single purposes; everhold has `compression.model`",
}


@dataclass
class SettingsImportResult:
    """What was or would be written, what was kept as it is here, and what was not understood."""

    written: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """What has no place here, and the reason."""
    missing_keys: list[str] = field(default_factory=list)
    """Sections without a key, and what to set."""


class SettingsImporter:
    """Converts the settings of several agents into one configuration."""

    def __init__(
        self, home: Home, settings: Settings, *, environ: Mapping[str, str], validate: ValidatePlugin, dry: bool
    ) -> None:
        self.home = home
        self.document: Any = thaw_value(settings.document)
        self.personas = {name: agent.persona_file for name, agent in settings.agents.items()}
        self.environ = environ
        self.validate = validate
        self.dry = dry
        self.done = SettingsImportResult()
        self.named_memories: dict[str, list[str]] = {}
        """Agent -> the memory instances that name its chats as hermes-agent did."""
        self.services: dict[str, list[ServiceUse]] = {}
        """Agent -> the memory services that it used."""
        self._used_variables: set[str] = set()
        """Variables of the present profile that an imported model or memory needs."""
        self._planned = (read_file(home.config) or b"").decode("utf-8", "replace") if dry else ""
        """In a dry run: config.yaml as it would be."""
        lines, _ = parse_env(read_file(home.env, private=True) or b"") if home.env.exists() else ([], [])
        self.secrets: dict[str, str] = {line.name: line.value.reveal() for line in lines}

    def import_profile(
        self,
        profile: HermesProfile,
        groups: Mapping[str, Collection[str]],
        *,
        senders: Sequence[ImportedSender] = (),
        is_same: Callable[[str, str], bool] = operator.eq,
    ) -> None:
        """Convert everything about one agent that has a place here. `groups` are the groups it was in, by platform."""
        agent = profile.name
        self._used_variables = set()
        self._import_model(
            profile
        )  # models come first, because an existing agent with several models would have to name one
        self.import_persona(agent, profile.soul)
        self._import_memory(profile, senders, is_same)
        busy = profile.config.get("busy_input_mode")
        if busy in ("queue", "steer", "interrupt"):
            self._write_value(f"agents.{agent}.busy", busy)
        self._import_sharing(profile)
        if agent not in (self.document.get("agents") or {}) and agent != MAIN_AGENT:
            self._write_value(f"agents.{agent}", {})
        self._import_servers(profile)
        self._import_accounts(profile, groups, _list_general_topics(senders))
        for key in sorted(map(str, set(profile.config) - _IMPORTED_KEYS)):
            self.done.unknown.append(f"{agent}: config.yaml: {key}: {_KEY_REASONS.get(key, NO_SETTING)}")
        for section, known in _IMPORTED_PARTS.items():
            given = profile.config.get(section)
            for key in sorted(map(str, set(given) - known)) if isinstance(given, dict) else ():
                self.done.unknown.append(f"{agent}: config.yaml: {section}.{key}: {NO_SETTING}")

    # -- sections ----------------------------------------------------------------------------------------------------

    def import_persona(self, agent: str, persona: str) -> None:
        """Make a `SOUL.md` the persona of an agent, unless the agent has one."""
        if not persona:
            return
        name = "SOUL.md" if agent == MAIN_AGENT else f"SOUL-{agent}.md"
        target = self.home.path / name
        text = persona + "\n"
        if self.personas.get(agent) == name and target.exists():
            return  # it was imported before and may have been edited since
        if target.exists() and target.read_text("utf-8", "replace") != text:
            name = f"SOUL-{agent}-imported.md"
            target = self.home.path / name
        key = f"agents.{agent}.persona"
        if self._read_value("agents", agent, "persona") is None and not self.dry and not target.exists():
            write_file(target, text.encode())
        self._write_value(key, {"file": name})

    def _import_sharing(self, profile: HermesProfile) -> None:
        """Convert who shares a session in groups and threads, because the addresses of the chats depend on it."""
        gateway = profile.config.get("gateway")
        levels = (profile.config, gateway if isinstance(gateway, dict) else {})
        for theirs, ours, default in (
            ("group_sessions_per_user", "group", True),
            ("thread_sessions_per_user", "thread", False),
        ):
            said = next((level[theirs] for level in levels if isinstance(level.get(theirs), bool)), default)
            if said is not default:
                self._write_value(f"agents.{profile.name}.sessions.{ours}", "per-person" if said else "shared")

    def _import_model(self, profile: HermesProfile) -> None:
        given = profile.config.get("model")
        if not isinstance(given, dict) or not given.get("default"):
            return
        provider = str(given.get("provider") or "custom")
        if provider not in MODEL_PROVIDERS:
            self.done.unknown.append(f"{profile.name}: config.yaml: model: everhold has no provider {provider}")
            return
        own_provider, url, variable = MODEL_PROVIDERS[provider]
        self._used_variables.add(variable)
        section: dict[str, Any] = {"provider": own_provider, "name": str(given["default"])}
        base = str(given.get("base_url") or url)
        if base and base != "https://api.openai.com/v1":
            section["base_url"] = base
        alias = re.sub(r"[^A-Za-z0-9_-]+", "-", str(given["default"])).strip("-").lower() or "imported"
        alias = alias if alias != "offline" else "imported"
        used = self._find_used_section(profile, "models", alias, self._read_value("agents", profile.name, "model"))
        key = str(given.get("api_key") or "")
        secret = SecretString(key) if len(key) >= 8 else profile.env.get(variable)
        if secret is not None and secret.reveal().strip():
            known_as = self._read_value("models", used, "api_key_env")
            name = self._import_secret(variable, secret, profile.name, known_as=known_as, is_own_address=base != url)
            section |= {"api_key_env": name} if name else {}
        if isinstance(given.get("context_length"), int):
            section["context_tokens"] = given["context_length"]
        known = self._read_value("models", alias)
        alias = used or (alias if known in (None, section) else f"{alias}-{profile.name}")
        if self._write_value(f"models.{alias}", section):
            self._write_value(f"agents.{profile.name}.model", alias)
        if not self._read_value("models", alias, "api_key_env") and not is_loopback_url(base):
            self._ask_for_key(f"models.{alias}", variable, profile.name, is_own_address=base != url)

    def _import_memory(
        self, profile: HermesProfile, senders: Sequence[ImportedSender], is_same: Callable[[str, str], bool]
    ) -> None:
        """Convert the memory service in use. Its sessions keep their names, so that its data is found."""
        memory = profile.config.get("memory") or {}
        if not isinstance(memory, dict):
            self.done.unknown.append(f"{profile.name}: config.yaml: memory: it is not a section")
            memory = {}
        chosen = str(memory.get("provider") or "")
        for name in PROVIDER_FILES:
            given = profile.read_provider_settings(name, in_use=name == chosen)
            if name == chosen and not given and self._is_set_outside(profile, name):
                continue
            if name == chosen or (given and not chosen):
                self._import_service(profile, name, given, senders, is_same)
            elif given:
                self.done.unknown.append(f"{profile.name}: {PROVIDER_FILES[name]} exists, but {chosen} is in use")
        if chosen and chosen not in PROVIDER_FILES and chosen != "builtin":
            self.done.unknown.append(
                f"{profile.name}: memory provider {chosen}: not converted; a plug-in can be used with hermes-plugin"
            )

    def _is_set_outside(self, profile: HermesProfile, name: str) -> bool:
        """Report settings outside the imported home. Return whether the service has no others: then it is not
        imported, because it would get another workspace or bank than it had.
        """
        outside = profile.list_outside_settings(name)
        self.done.unknown += [
            f"{profile.name}: {file}: it is outside the imported home, so it was not read; if it belongs to this "
            f"agent, copy it to {PROVIDER_FILES[name]} there and import again"
            for file in outside
        ]
        return bool(outside) and services.SETTING_VARIABLES[name].keys().isdisjoint(profile.env)

    def _import_service(
        self,
        profile: HermesProfile,
        name: str,
        given: dict[str, Any],
        senders: Sequence[ImportedSender],
        is_same: Callable[[str, str], bool],
    ) -> None:
        found = services.convert_service(profile, name, given)
        self._used_variables |= {found.variable, *services.SETTING_VARIABLES[name]}
        self.done.unknown += [f"{profile.name}: {line}" for line in found.unknown]
        section = found.section
        for problem in self.validate("memories", name, {"provider": name, **section}):
            if problem.fatal and problem.path and problem.path[0] in section:  # skip only the invalid value
                del section[str(problem.path[0])]
                self.done.unknown.append(f"{profile.name}: {PROVIDER_FILES[name]}: {problem.path[0]} {problem.message}")
        aliases = section.pop(ALIASES, {})
        used = self._find_used_section(
            profile, "memories", name, *(self._read_value("agents", profile.name, "memories") or ())
        )
        if found.key is not None and found.key.reveal().strip():
            known_as = self._read_value("memories", used, "api_key_env")
            own = self._import_secret(
                found.variable, found.key, profile.name, known_as=known_as, is_own_address=found.is_own_address
            )
            section |= {"api_key_env": own} if own else {}
        known = _drop_aliases(self._read_value("memories", name))
        instance = used or (name if known in (None, section) else f"{name}-{profile.name}")
        if instance != name:
            section = {"provider": name, **section}
        use = ServiceUse(
            memory=instance,
            provider=name,
            agent=profile.name,
            given=found.given,
            pinned=section.get("pin_peer_name") is True,
            profile=services.get_hermes_name(profile),
        )
        if not self._write_value(f"memories.{instance}", section):
            return
        self._write_value(f"agents.{profile.name}.memories", ["builtin", instance])
        self.services.setdefault(profile.name, []).append(use)
        if name in services.SERVICES_NAMED_BY_CHAT:
            self.named_memories.setdefault(profile.name, []).append(instance)
            self._write_aliases(use, {**aliases, **_build_aliases(use, senders, is_same)})
        if found.is_own_address and not is_loopback_url(str(section.get("base_url") or "")):
            if not self._read_value("memories", instance, "api_key_env"):
                self._ask_for_key(f"memories.{instance}", found.variable, profile.name, is_own_address=True)

    def _write_aliases(self, use: ServiceUse, wanted: Mapping[str, str]) -> None:
        """Write the peers that the service has for people, so that they can be seen. What is there is kept."""
        key = f"memories.{use.memory}.{ALIASES}"
        there = self._read_value("memories", use.memory, ALIASES) or {}
        merged = {**wanted, **there}
        if merged != there:
            self._write_value(key, merged, replaces=True)

    def _import_servers(self, profile: HermesProfile) -> None:
        """Convert tool servers. No agent uses one before `tools` of the agent names it, so nothing is started."""
        given = profile.config.get("mcp_servers")
        if given is None:
            return
        if not isinstance(given, dict):
            self.done.unknown.append(f"{profile.name}: config.yaml: mcp_servers: it is not a section")
            return
        for name, server in given.items():
            found = mcp_servers.convert_server(str(name), server, profile.env)
            place = f"{profile.name}: config.yaml: mcp_servers.{name}"
            self.done.unknown += [f"{place}{line}" for line in found.unknown]
            if found.section is None:
                continue
            self._used_variables |= found.used_variables
            section = dict(found.section)
            key = f"mcp.{found.name}"
            known = self._read_value("mcp", found.name)
            if known is None:
                section |= self._import_server_secrets(place, found)
            elif isinstance(known, dict):  # it was imported before, perhaps by another profile, and may be edited
                section |= {it: known[it] for it in ("env", "token_env") if it in known}
            if self._write_value(key, section):
                self.done.unknown.append(
                    f"{place}: it is at {key}; it runs after `mcp:{found.name}` is among tools of an agent"
                )

    def _import_server_secrets(self, place: str, found: mcp_servers.ConvertedServer) -> dict[str, Any]:
        """Write the variables of a server to `.env`. A program reads them by their names, so none gets another one."""
        names: list[str] = []
        for variable, value in found.variables.items():
            there = self.secrets.get(variable, self.environ.get(variable))
            if there is not None and there != value.reveal():
                self.done.unknown.append(f"{place}.env.{variable}: {variable} has another value here")
                continue
            if variable not in self.secrets:
                self._save_secret(variable, value)
            names.append(variable)
        section: dict[str, Any] = {"env": names} if names else {}
        if found.token is not None:
            name = _name_own_variable("MCP_TOKEN", found.name)
            if self.secrets.get(name, found.token.reveal()) == found.token.reveal():
                if name not in self.secrets:
                    self._save_secret(name, found.token)
                section["token_env"] = name
        return section

    def _save_secret(self, name: str, value: SecretString) -> None:
        self.secrets[name] = value.reveal()
        if not self.dry:
            set_secret(self.home, name, value)
        self.done.written.append(f".env: {name}")

    def _ask_for_key(self, section: str, variable: str, agent: str, *, is_own_address: bool) -> None:
        """Report a section without a key. A key of this machine's environment is never used for it."""
        name = _name_own_variable(variable, agent) if is_own_address else variable
        self.done.missing_keys.append(
            f"{section} has no key: write {name}=… to .env, then everhold config set {section}.api_key_env {name}"
        )

    def _import_accounts(
        self, profile: HermesProfile, groups: Mapping[str, Collection[str]], general: Mapping[str, Collection[str]]
    ) -> None:
        paired = profile.read_pairings()
        known = set(self._used_variables)
        for platform, keys in ACCOUNT_VARIABLES.items():
            known |= {*keys.values(), *access.list_access_variables(platform)}
            values = {key: profile.env.get(variable) for key, variable in keys.items()}
            allowed = access.convert_access(
                profile, platform, paired=paired.pop(platform, []), there=groups.get(platform, ())
            )
            if not any(values[key] for key in values if key.endswith("_env")):
                if allowed.get("direct") and (
                    access.list_access_variables(platform) - set(access.GLOBAL_VARIABLES)
                ) & set(profile.env):
                    self.done.unknown.append(
                        f"{profile.name}: {platform}: the allow list, because there is no token for an account"
                    )
                continue
            section: dict[str, Any] = {"agent": profile.name, "enabled": False}
            for key, value in values.items():
                if value is not None and value.reveal().strip():
                    variable = keys[key]
                    named = key.endswith("_env")
                    known_as = self._read_value("platforms", platform, profile.name, key)
                    own = any(not other.endswith("_env") for other in keys)  # the home says where the platform is
                    section[key] = (
                        self._import_secret(variable, value, profile.name, known_as=known_as, is_own_address=own)
                        if named
                        else value.reveal()
                    )
            if "" in section.values():
                continue  # a token is missing, and the account would use the one with the usual name
            if allowed:
                section["access"] = allowed
            if chats := general.get(platform):  # everybody shares the general topic there
                section["chats"] = {chat: {"sessions": {"group": "shared"}} for chat in sorted(chats)}
            self._write_value(f"platforms.{platform}.{profile.name}", section)
        self.done.unknown += [
            f"{profile.name}: {platform}: {len(ids)} paired people, because everhold has no such platform"
            for platform, ids in paired.items()
        ]
        self.done.unknown += [
            f"{profile.name}: .env: {name}: {_explain_variable(name)}" for name in sorted(set(profile.env) - known)
        ]

    # -- writing -----------------------------------------------------------------------------------------------------

    def _read_value(self, *path: str) -> Any:
        """Return the value at a path of the configuration, None if there is none."""
        here: Any = self.document
        for part in path:
            here = here.get(part) if isinstance(here, dict) else None
        return here

    def _find_used_section(self, profile: HermesProfile, room: str, name: str, *chosen: Any) -> str:
        """Return the section that an earlier import made for an agent, if the agent still uses it. It may have been
        edited, and is not imported again under another name.
        """
        ours = [
            it for it in (name, f"{name}-{profile.name}") if it in chosen and self._read_value(room, it) is not None
        ]
        return ours[-1] if ours else ""

    def _import_secret(
        self, variable: str, value: SecretString, agent: str, *, known_as: Any, is_own_address: bool = False
    ) -> str:
        """Return the variable for a secret: its own name, or a name with the agent's if another agent has that one;
        empty if every name has another value.

        A variable that the configuration names already may have been changed since, so it is kept. The environment of
        the process has precedence over `.env`. So a secret for an imported address never has the usual name, under
        which the environment may have a key for somebody else.
        """
        if isinstance(known_as, str) and known_as in self.secrets:
            return known_as
        own = _name_own_variable(variable, agent)
        names = (own,) if is_own_address else (variable, f"{_clean_name(agent)}_{variable}", own)
        for name in names:
            there = self.secrets.get(name)
            if self.environ.get(name, value.reveal()) != value.reveal():
                continue
            if there is None or there == value.reveal():
                if there is None:
                    self._save_secret(name, value)
                return name
        self.done.missing_keys.append(
            f"{variable} of {agent} was not imported, because {names[-1]} has another value here: write it to .env "
            "under another name, then set that name in config.yaml"
        )
        return ""

    def _write_value(self, key: str, value: Any, *, replaces: bool = False) -> bool:
        """Write one value unless one exists; return whether the value is there now."""
        path = split_key(key)
        here = self._read_value(*map(str, path))
        if path[0] == "memories" and len(path) == 2:
            here = _drop_aliases(here)
        if here is not None and not replaces:
            if here != value:
                self.done.kept.append(f"{key} is kept as it is here")
            return True
        try:
            self._save_value(key, value)
        except ConfigError as error:
            self.done.refused.append(f"{key}: {error.problems[0].message} ({error.problems[0].remedy})")
            return False
        except EverholdError as error:
            self.done.refused.append(f"{key}: {error}")
            return False
        _put_value(self.document, path, value)
        self.done.written.append(key)
        return True

    def _save_value(self, key: str, value: Any) -> None:
        """Write a value to config.yaml, or in a dry run check whether it could be written."""
        if not self.dry:
            set_key(self.home, key, value, environ=self.environ, validate_plugin=self.validate)
        elif not key.endswith(".persona"):  # its file is not written either
            planned = edit_text(self._planned, split_key(key), value)
            environ = {**self.secrets, **self.environ}
            load_settings(self.home, environ=environ, validate_plugin=self.validate, text=planned.encode())
            self._planned = planned


def _list_general_topics(senders: Iterable[ImportedSender]) -> dict[str, set[str]]:
    """Return platform -> the chats in which everybody shared the general topic."""
    found: dict[str, set[str]] = {}
    for sender in senders:
        if sender.chat.is_general_topic and sender.chat.is_shared:
            found.setdefault(sender.chat.address.platform, set()).add(sender.chat.address.chat)
    return found


def _build_aliases(
    use: ServiceUse, senders: Sequence[ImportedSender], is_same: Callable[[str, str], bool]
) -> dict[str, str]:
    """Return identity -> peer for the people whose peer is their own. A pinned peer needs no alias."""
    if use.pinned:
        return {}
    found = resolve_peers(use, senders, is_same=is_same)
    return {it.identity: it.peer for it in found if not it.shared and not is_unknown(it.identity)}


def _drop_aliases(section: Any) -> Any:
    """Return a memory's section without the aliases, which are written separately."""
    return {key: value for key, value in section.items() if key != ALIASES} if isinstance(section, dict) else section


def _explain_variable(name: str) -> str:
    keys = {variable for _, _, variable in MODEL_PROVIDERS.values()} | set(services.SECRET_VARIABLES.values())
    keys |= {variable for listed in services.SETTING_VARIABLES.values() for variable in listed}
    return "no imported model or memory needs it" if name in keys else "everhold does not use it"


def _name_own_variable(variable: str, agent: str) -> str:
    return f"IMPORTED_{_clean_name(agent)}_{variable}"


def _clean_name(agent: str) -> str:
    """Return an agent's name as a part of a variable's name. Two agents never have the same."""
    cleaned = re.sub("[^A-Z0-9]", "_", agent.upper())
    if cleaned.lower() == agent:
        return cleaned
    return f"{cleaned}_{hashlib.sha256(agent.encode()).hexdigest()[:_HASH_DIGITS].upper()}"


def is_loopback_url(url: str) -> bool:
    """Whether a URL leads to this machine, where services usually need no key."""
    try:
        return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")
    except ValueError:
        return False


def _put_value(document: dict[str, Any], path: tuple[str | int, ...], value: Any) -> None:
    for part in path[:-1]:
        document = document.setdefault(str(part), {})
    document[str(path[-1])] = value
