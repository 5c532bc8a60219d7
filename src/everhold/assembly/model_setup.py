"""What is needed to set up a model, for the command line and the console: a choice, its test, and the keys to write."""

from __future__ import annotations

import asyncio
import io
import ipaddress
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from everhold.config import Settings
from everhold.config.edit import split_key
from everhold.config.secrets import SecretEnvironment
from everhold.errors import InvalidRequest, Refused
from everhold.infra.plugins import MODEL_PLUGINS
from everhold.infra.secret import SecretString
from everhold.ports.clock import Clock
from everhold.ports.model import Model, ModelMessage, ModelRequest, ModelResponse, SupportsModelClose
from everhold.ports.plugin import PluginContext
from everhold.telemetry.logs import open_log

OFFLINE_PROVIDER: Final = "offline"
PROVIDER_URLS: Final = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
EXAMPLE_MODELS: Final = {"openai": "gpt-5-mini", "anthropic": "claude-sonnet-5"}
PROVIDER_CHOICES: Final = (
    ("openai", "an OpenAI-compatible endpoint: OpenAI, OpenRouter, Ollama, vLLM, llama.cpp, …"),
    ("anthropic", "Anthropic's messages API"),
    (OFFLINE_PROVIDER, "no language model: a small built-in program that needs no network"),
)
TRIAL_REQUEST: Final = ModelRequest(
    system="",
    messages=(ModelMessage(role="user", text="Reply with the single word: ready"),),
    params={"max_tokens": 1024},
)
"""A small request, but with enough tokens for a reasoning model."""
TRIAL_SECONDS: Final = 90.0
NO_SECRET: Final = SecretString("")


@dataclass(frozen=True)
class ModelChoice:
    """The chosen model. Empty values are not chosen yet."""

    provider: str = ""
    url: str = ""
    name: str = ""
    variable: str = ""
    key: SecretString = NO_SECRET
    """A new key for `.env`; empty if there is one already, or none is needed."""
    alias: str = ""

    def make_config_section(self) -> dict[str, Any]:
        """Return its entry in `models`."""
        keys = {"provider": self.provider, "name": self.name, "base_url": self.url, "api_key_env": self.variable}
        return {key: value for key, value in keys.items() if value}


def parse_url(text: str) -> str:
    """Return a normalised URL. The error does not repeat the text, because it may be a key pasted by mistake."""
    text = text.strip().rstrip("/")
    if "://" not in text and text:
        text = f"{'http' if is_local(urlsplit(f'//{text}').hostname or '') else 'https'}://{text}"
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"\s", text):
        raise InvalidRequest("the base URL is not an http(s) URL", remedy="for example https://api.openai.com/v1")
    if parts.username or parts.password:
        raise InvalidRequest("the base URL contains a password", remedy="leave it out; the key is asked for separately")
    return text


def is_local(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return host == "localhost" or "." not in host


def guess_key_variable(provider: str, url: str) -> str:
    """Return the usual name of the variable with the key for this endpoint."""
    host = (urlsplit(url).hostname or "").lower()
    if provider == "anthropic" and host.endswith("anthropic.com"):
        return "ANTHROPIC_API_KEY"
    labels = [] if is_local(host) else host.split(".")
    word = re.sub(r"[^A-Z0-9]", "_", labels[-2].upper()) if len(labels) >= 2 else "LOCAL"
    return f"{word if word[:1].isalpha() else 'MODEL'}_API_KEY"


def choose_key_variable(provider: str, url: str, before: Settings) -> str:
    """Return the variable for the key. Local machines share the usual name, so each gets its own."""
    usual, here = guess_key_variable(provider, url), urlsplit(url)
    users = {urlsplit(model.base_url or "").netloc for model in before.models.values() if model.api_key_env == usual}
    if not is_local(here.hostname or "") or not users or here.netloc in users:
        return usual
    return f"LOCAL_{re.sub(r'[^A-Z0-9]+', '_', here.netloc.upper()).strip('_')}_API_KEY"


@dataclass(frozen=True)
class ModelTrial:
    """The result of the test request."""

    answer: ModelResponse
    seconds: float
    pieces: int


async def try_model(choice: ModelChoice, known: SecretEnvironment, *, directory: Path, clock: Clock) -> ModelTrial:
    """Send one small request, streamed like all requests. Raises the adapter's error."""
    model = _build_model(choice, known, directory=directory, clock=clock)
    try:
        return await ask_model(model, choice.name or OFFLINE_PROVIDER)
    finally:
        if isinstance(model, SupportsModelClose):
            await model.aclose()


async def ask_model(model: Model, name: str) -> ModelTrial:
    """Send one small request to a model."""
    pieces: list[str] = []
    began = time.monotonic()
    try:
        async with asyncio.timeout(TRIAL_SECONDS):
            answer = await model.answer(TRIAL_REQUEST, on_text=pieces.append)
    except TimeoutError:
        raise Refused(
            f"{name} did not answer within {TRIAL_SECONDS:g} s", remedy="is this the right address?"
        ) from None
    return ModelTrial(answer=answer, seconds=time.monotonic() - began, pieces=len(pieces))


def _build_model(choice: ModelChoice, known: SecretEnvironment, *, directory: Path, clock: Clock) -> Model:
    factory = MODEL_PLUGINS.load(choice.provider)
    given: dict[str, Any] = {
        key: value for key, value in choice.make_config_section().items() if key not in ("provider", "api_key_env")
    }
    key = choice.key or (known.get(choice.variable) if choice.variable else None)
    if key:
        given["api_key"] = key
    log = open_log(clock=clock, stream=io.StringIO())  # errors are raised, so log lines are not needed
    context = PluginContext(agent="", instance=choice.alias, directory=directory, log=log, clock=clock)
    return factory(factory.Settings.model_validate(given), context)


def list_model_values(choice: ModelChoice, before: Settings) -> dict[str, Any]:
    """Return what to write in config.yaml, by key. An entry of the same provider keeps its other keys and comments."""
    if choice.provider == OFFLINE_PROVIDER:
        return {"defaults.model": OFFLINE_PROVIDER}
    section, path = choice.make_config_section(), f"models.{quote_key(choice.alias)}"
    old, written = before.models.get(choice.alias), before.document.get("models", {})
    if old is None or old.provider != choice.provider or not isinstance(written.get(choice.alias), Mapping):
        return {path: section, "defaults.model": choice.alias}
    changes = {
        f"{path}.{key}": section.get(key)
        for key in ("name", "base_url", "api_key_env")
        if key in section or key in written[choice.alias]
    }
    return {**changes, "defaults.model": choice.alias}


def is_alias(name: str) -> bool:
    """Whether a name can be a key of `models`. `offline` is always there."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name) is not None and name != OFFLINE_PROVIDER


def quote_key(name: str) -> str:
    """Return a name as a part of a dotted key."""
    return f'"{name}"' if split_key(name) != (name,) else name
