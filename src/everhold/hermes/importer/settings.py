"""Converts settings of hermes-agent: personas, models, memory services, platform accounts and access. Settings that are
not understood are listed, and existing settings are kept. Platform accounts are imported disabled, because two programs
that listen with one token take each other's messages.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from everhold.config import ConfigError, Settings, set_key, set_secret
from everhold.config.edit import split_key
from everhold.config.secrets import parse_env
from everhold.config.settings import ValidatePlugin
from everhold.config.values import thaw_value
from everhold.errors import EverholdError
from everhold.hermes.importer import access, services
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

_IMPORTED_KEYS: Final = frozenset({"model", "memory", "busy_input_mode", "display_name"})
_IGNORED_KEYS: Final = frozenset({"onboarding", "auxiliary", "_config_version"})


@dataclass
class SettingsImportResult:
    """What was or would be written, what was kept as it is here, and what was not understood."""

    written: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


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
        lines, _ = parse_env(read_file(home.env, private=True) or b"") if home.env.exists() else ([], [])
        self.secrets: dict[str, str] = {line.name: line.value.reveal() for line in lines}

    def import_profile(self, profile: HermesProfile, groups: Mapping[str, Collection[str]]) -> None:
        """Convert everything about one agent that has a place here. `groups` are the groups it was in, by platform."""
        agent = profile.name
        self._import_model(
            profile
        )  # models come first, because an existing agent with several models would have to name one
        self._import_persona(profile)
        self._import_memory(profile)
        busy = profile.config.get("busy_input_mode")
        if busy in ("queue", "steer", "interrupt"):
            self._write_value(f"agents.{agent}.busy", busy)
        if agent not in (self.document.get("agents") or {}) and agent != MAIN_AGENT:
            self._write_value(f"agents.{agent}", {})
        self._import_accounts(profile, groups)
        for key in sorted(set(profile.config) - _IMPORTED_KEYS - _IGNORED_KEYS):
            self.done.unknown.append(f"{agent}: config.yaml: {key}")

    # -- sections ----------------------------------------------------------------------------------------------------

    def _import_persona(self, profile: HermesProfile) -> None:
        if not profile.soul:
            return
        name = "SOUL.md" if profile.name == MAIN_AGENT else f"SOUL-{profile.name}.md"
        target = self.home.path / name
        text = profile.soul + "\n"
        if self.personas.get(profile.name) == name and target.exists():
            return  # it was imported before and may have been edited since
        if target.exists() and target.read_text("utf-8", "replace") != text:
            name = f"SOUL-{profile.name}-imported.md"
            target = self.home.path / name
        if not self.dry and not target.exists():
            write_file(target, text.encode())
        self._write_value(f"agents.{profile.name}.persona", {"file": name})

    def _import_model(self, profile: HermesProfile) -> None:
        given = profile.config.get("model")
        if not isinstance(given, dict) or not given.get("default"):
            return
        provider = str(given.get("provider") or "custom")
        if provider not in MODEL_PROVIDERS:
            self.done.unknown.append(f"{profile.name}: model provider {provider}")
            return
        ours, url, variable = MODEL_PROVIDERS[provider]
        section: dict[str, Any] = {"provider": ours, "name": str(given["default"])}
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
            section["api_key_env"] = self._import_secret(variable, secret, profile.name, known_as=known_as)
        if isinstance(given.get("context_length"), int):
            section["context_tokens"] = given["context_length"]
        known = self._read_value("models", alias)
        alias = used or (alias if known in (None, section) else f"{alias}-{profile.name}")
        if self._write_value(f"models.{alias}", section):
            self._write_value(f"agents.{profile.name}.model", alias)

    def _import_memory(self, profile: HermesProfile) -> None:
        """Convert the memory service in use. Its sessions keep their names, so that its data is found."""
        chosen = str((profile.config.get("memory") or {}).get("provider") or "")
        for name in PROVIDER_FILES:
            given = profile.read_provider_settings(name, in_use=name == chosen)
            if name == chosen or (given and not chosen):
                self._import_service(profile, name, given)
            elif given:
                self.done.unknown.append(f"{profile.name}: {PROVIDER_FILES[name]} exists, but {chosen} is in use")
        if chosen and chosen not in PROVIDER_FILES and chosen != "builtin":
            self.done.unknown.append(f"{profile.name}: memory provider {chosen}")

    def _import_service(self, profile: HermesProfile, name: str, given: dict[str, Any]) -> None:
        found = services.convert_service(profile, name, given)
        self.done.unknown += [f"{profile.name}: {line}" for line in found.unknown]
        section = found.section
        for problem in self.validate("memories", name, {"provider": name, **section}):
            if problem.fatal and problem.path and problem.path[0] in section:  # skip only the invalid value
                del section[str(problem.path[0])]
                self.done.unknown.append(f"{profile.name}: {PROVIDER_FILES[name]}: {problem.path[0]} {problem.message}")
        used = self._find_used_section(
            profile, "memories", name, *(self._read_value("agents", profile.name, "memories") or ())
        )
        if found.key is not None and found.key.reveal().strip():
            known_as = self._read_value("memories", used, "api_key_env")
            section["api_key_env"] = self._import_secret(found.variable, found.key, profile.name, known_as=known_as)
        known = self._read_value("memories", name)
        instance = used or (name if known in (None, section) else f"{name}-{profile.name}")
        if instance != name:
            section = {"provider": name, **section}
        if self._write_value(f"memories.{instance}", section):
            self._write_value(f"agents.{profile.name}.memories", ["builtin", instance])
            if name in services.SERVICES_NAMED_BY_CHAT:
                self.named_memories.setdefault(profile.name, []).append(instance)

    def _import_accounts(self, profile: HermesProfile, groups: Mapping[str, Collection[str]]) -> None:
        paired = profile.read_pairings()
        known = {variable for _, _, variable in MODEL_PROVIDERS.values()} | set(services.SECRET_VARIABLES.values())
        known |= {variable for listed in services.SETTING_VARIABLES.values() for variable in listed}
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
                        f"{profile.name}: {platform}: people may speak there, but there is no token"
                    )
                continue
            section: dict[str, Any] = {"agent": profile.name, "enabled": False}
            for key, value in values.items():
                if value is not None and value.reveal().strip():
                    variable = keys[key]
                    named = key.endswith("_env")
                    known_as = self._read_value("platforms", platform, profile.name, key)
                    section[key] = (
                        self._import_secret(variable, value, profile.name, known_as=known_as)
                        if named
                        else value.reveal()
                    )
            if allowed:
                section["access"] = allowed
            self._write_value(f"platforms.{platform}.{profile.name}", section)
        self.done.unknown += [
            f"{profile.name}: {platform}: {len(ids)} people were paired" for platform, ids in paired.items()
        ]
        self.done.unknown += [f"{profile.name}: .env: {name}" for name in sorted(set(profile.env) - known)]

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

    def _import_secret(self, variable: str, value: SecretString, agent: str, *, known_as: Any) -> str:
        """Return the variable for a secret: its own name, or a name with the agent's if another agent has that one.

        A variable that the configuration names already may have been changed since, so it is kept.
        """
        if isinstance(known_as, str) and known_as in self.secrets:
            return known_as
        for name in (variable, f"{re.sub('[^A-Z0-9]', '_', agent.upper())}_{variable}"):
            there = self.secrets.get(name)
            if there is None or there == value.reveal():
                if there is None:
                    self.secrets[name] = value.reveal()
                    if not self.dry:
                        set_secret(self.home, name, value)
                    self.done.written.append(f".env: {name}")
                return name
        self.done.kept.append(f".env: {variable} of {agent} exists with another value")
        return variable

    def _write_value(self, key: str, value: Any) -> bool:
        """Write one value unless one exists; return whether the value is there now."""
        path = split_key(key)
        here = self._read_value(*map(str, path))
        if here is not None:
            if here != value:
                self.done.kept.append(f"{key} is kept as it is here")
            return True
        if not self.dry:
            try:
                set_key(self.home, key, value, environ=self.environ, validate_plugin=self.validate)
            except ConfigError as error:
                self.done.refused.append(f"{key}: {error.problems[0].message} ({error.problems[0].remedy})")
                return False
            except EverholdError as error:
                self.done.refused.append(f"{key}: {error}")
                return False
        _put_value(self.document, path, value)
        self.done.written.append(key)
        return True


def _put_value(document: dict[str, Any], path: tuple[str | int, ...], value: Any) -> None:
    for part in path[:-1]:
        document = document.setdefault(str(part), {})
    document[str(path[-1])] = value
