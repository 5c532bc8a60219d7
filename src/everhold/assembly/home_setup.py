"""Setting up a home while its gateway runs: a model or an account is tested, then written to config.yaml and `.env`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from everhold.assembly import account_setup, model_setup
from everhold.assembly.model_setup import (
    EXAMPLE_MODELS,
    NO_SECRET,
    OFFLINE_PROVIDER,
    PROVIDER_CHOICES,
    PROVIDER_URLS,
    ModelChoice,
    ModelTrial,
)
from everhold.config import Settings, build_plugin_settings, set_secret
from everhold.config.errors import ConfigError
from everhold.config.literals import is_secret_key, suggest_env_name
from everhold.config.secrets import SecretEnvironment, parse_env
from everhold.config.whole_text import ConfigText
from everhold.errors import EverholdError, InvalidRequest, NotFound
from everhold.infra.home import Home, read_file
from everhold.infra.plugins import PLATFORM_PLUGINS
from everhold.infra.secret import SecretString
from everhold.ports.clock import Clock, RandomSource
from everhold.ports.platform import AccountIntroduction

MAX_SECRET_CHARS: Final = 4_000


class AskedSetting(Struct, frozen=True, kw_only=True):
    """A setting of an account that a person has to give."""

    name: str
    question: str
    is_secret: bool


class PlatformOffer(Struct, frozen=True, kw_only=True):
    """A chat platform that can be set up."""

    name: str
    settings: tuple[AskedSetting, ...] = ()
    problem: str = ""
    """Why it cannot be used here."""
    remedy: str = ""


class HomeSetup:
    """Sets up models and accounts in one home."""

    def __init__(
        self, home: Home, *, environ: Mapping[str, str], config: ConfigText, clock: Clock, chance: RandomSource
    ) -> None:
        self._home = home
        self._environ = environ
        self._config = config
        self._clock = clock
        self._chance = chance

    # -- models ------------------------------------------------------------------------------------------------------

    def list_providers(self) -> list[dict[str, str]]:
        """Return the kinds of models with their usual addresses and an example of a name."""
        return [
            {"name": name, "about": about, "url": PROVIDER_URLS.get(name, ""), "example": EXAMPLE_MODELS.get(name, "")}
            for name, about in PROVIDER_CHOICES
        ]

    def choose_model(
        self, settings: Settings, *, provider: str, url: str, name: str, key: str, alias: str
    ) -> ModelChoice:
        """Return what a person chose, complete. The address decides which variable holds the key, so the key of one
        service is never sent to another.
        """
        if provider == OFFLINE_PROVIDER:
            return ModelChoice(provider=OFFLINE_PROVIDER, alias=OFFLINE_PROVIDER)
        if provider not in PROVIDER_URLS:
            raise InvalidRequest(f"{provider!r} is not a kind of model", remedy=f"use {', '.join(PROVIDER_URLS)}")
        if not name.strip():
            raise InvalidRequest("the model's name is missing", remedy=f"for example {EXAMPLE_MODELS[provider]}")
        secret, alias = _read_secret(key), alias.strip() or provider
        if not model_setup.is_alias(alias):
            raise InvalidRequest("this name is not valid in `models`", remedy="use letters, digits, - and _")
        address = model_setup.parse_url(url or PROVIDER_URLS[provider])
        variable = model_setup.choose_key_variable(provider, address, settings)
        needed = bool(secret) or self._load_environment().get(variable) is not None
        return ModelChoice(
            provider=provider,
            url=address,
            name=name.strip(),
            variable=variable if needed else "",
            key=secret,
            alias=alias,
        )

    async def try_model(self, choice: ModelChoice) -> ModelTrial:
        """Send one small request. Raises the adapter's error."""
        known = await asyncio.to_thread(self._load_environment)
        return await model_setup.try_model(choice, known, directory=self._home.path, clock=self._clock)

    async def write_model(self, choice: ModelChoice, settings: Settings, *, by: str) -> None:
        """Make it the model of all agents that name none."""
        secrets = {choice.variable: choice.key} if choice.key else {}
        await asyncio.to_thread(self._write, model_setup.list_model_values(choice, settings), secrets, by)

    # -- accounts ----------------------------------------------------------------------------------------------------

    def list_platforms(self) -> list[PlatformOffer]:
        """Return the chat platforms with the settings that a person has to give. It imports their adapters."""
        return [self._describe_platform(name) for name in sorted({it.name for it in PLATFORM_PLUGINS.list_plugins()})]

    def _describe_platform(self, name: str) -> PlatformOffer:
        try:
            asked = account_setup.list_asked_settings(PLATFORM_PLUGINS.load(name).Settings)
        except EverholdError as error:
            return PlatformOffer(name=name, problem=error.message, remedy=error.remedy)
        settings = tuple(
            AskedSetting(name=key, question=question, is_secret=is_secret_key(key)) for key, question in asked.items()
        )
        return PlatformOffer(name=name, settings=settings)

    async def try_account(
        self, platform: str, account: str, given: Mapping[str, str], settings: Settings
    ) -> AccountIntroduction | None:
        """Connect once with these settings. Raises the adapter's error.

        What is not given is taken from the present account: its settings, and its secrets in `.env`.
        """
        model = PLATFORM_PLUGINS.load(platform).Settings
        section = settings.platforms.get(platform, {}).get(account)
        present = {} if section is None else {key: it for key, it in section.extra.items() if not is_secret_key(key)}
        known = await asyncio.to_thread(self._load_environment)
        values: dict[str, Any] = {**present, **_clean(given)}
        for name in account_setup.list_asked_settings(model):
            if is_secret_key(name):
                variable = suggest_env_name(("platforms", platform, account, name))
                values[name] = _read_secret(given.get(name, "")) or known.get(variable)
            if not values.get(name):
                raise InvalidRequest(f"{name} is not given", remedy="fill in all fields")
        account_setup.check_account_settings(model, values)
        return await account_setup.introduce_account(
            platform,
            account,
            model.model_validate(values),
            directory=self._home.path,
            clock=self._clock,
            chance=self._chance,
        )

    async def write_account(
        self, platform: str, account: str, given: Mapping[str, str], settings: Settings, *, agent: str, by: str
    ) -> None:
        """Connect the gateway with this account from now on."""
        values = _clean(given)
        secrets = {name: _read_secret(value) for name, value in values.items() if is_secret_key(name)}
        asked = account_setup.list_asked_settings(PLATFORM_PLUGINS.load(platform).Settings)
        values |= {name: "" for name in asked if is_secret_key(name)}  # only its variable is written
        written = account_setup.list_account_values(platform, account, values, settings, agent=agent)
        named = {suggest_env_name(("platforms", platform, account, name)): it for name, it in secrets.items()}
        await asyncio.to_thread(self._write, written, named, by)

    async def introduce(self, platform: str, account: str, settings: Settings) -> AccountIntroduction | None:
        """Return how an account that is configured is called on its platform."""
        section = settings.platforms.get(platform, {}).get(account)
        if section is None:
            raise NotFound(f"{platform}/{account} is not configured", remedy="GET /api/status lists the accounts")
        model = build_plugin_settings(section, PLATFORM_PLUGINS.load(platform).Settings)
        return await account_setup.introduce_account(
            platform, account, model, directory=self._home.path, clock=self._clock, chance=self._chance
        )

    # -- writing -----------------------------------------------------------------------------------------------------

    def _load_environment(self) -> SecretEnvironment:
        lines, _ = parse_env(read_file(self._home.env, private=True) or b"", file=str(self._home.env))
        return SecretEnvironment(self._environ, lines)

    def _write(self, values: Mapping[str, Any], secrets: Mapping[str, SecretString], by: str) -> None:
        _, base = self._config.read()
        text = self._config.apply_values(values)
        checked = self._config.check(text)
        if not checked.is_valid:  # nothing is written, and no secret either
            raise ConfigError(list(checked.problems))
        for name, secret in secrets.items():
            set_secret(self._home, name, secret)
        self._config.replace(text, base=base, by=by)


def _read_secret(text: str) -> SecretString:
    text = text.strip()
    if len(text) > MAX_SECRET_CHARS or any(not char.isprintable() for char in text):
        raise InvalidRequest("this is not a key", remedy="copy it again")
    return SecretString(text) if text else NO_SECRET


def _clean(given: Mapping[str, str]) -> dict[str, str]:
    return {name: value.strip() for name, value in given.items() if value.strip()}
