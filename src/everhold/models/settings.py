"""The settings of a model in config.yaml. They are validated when they are loaded; the adapters use them as they
are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from everhold.core.entries import ModelUsage
from everhold.infra.secret import SecretString
from everhold.models.http_client import ModelDeadlines

RESERVED_PARAMS: Final = frozenset({"model", "messages", "system", "tools", "stream", "stream_options"})
"""Parameters that the adapter sets itself."""
OUTPUT_LIMIT_PARAMS: Final = ("max_tokens", "max_completion_tokens")
"""The servers' names for the limit of an answer."""


def _reject_reserved_params(params: dict[str, Any]) -> dict[str, Any]:
    if taken := sorted(RESERVED_PARAMS & params.keys()):
        raise ValueError(f"{', '.join(taken)} cannot be set here: everhold decides it for every request")
    return params


class _ModelSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelPrice(_ModelSection):
    """USD per million tokens. A missing price equals the input price; writing to a vendor's cache may cost more."""

    input: float = Field(default=0.0, ge=0, description="USD per million input tokens")
    cached: float | None = Field(default=None, ge=0, description="USD per million input tokens read from the cache")
    cache_write: float | None = Field(default=None, ge=0, description="USD per million input tokens put into the cache")
    output: float = Field(default=0.0, ge=0, description="USD per million output tokens")

    def compute_usd(self, usage: ModelUsage, *, written: int = 0) -> float:
        """Return the cost of `usage`; `written` of its input tokens went into the cache."""
        plain = max(0, usage.input - usage.cached - written)
        return (
            plain * self.input
            + usage.cached * (self.input if self.cached is None else self.cached)
            + written * (self.input if self.cache_write is None else self.cache_write)
            + usage.output * self.output
        ) / 1_000_000


class ModelDeadlineSettings(_ModelSection):
    """Seconds after which a request is given up."""

    connect: float = Field(default=10.0, gt=0, description="until the connection is made")
    first_byte: float = Field(
        default=120.0, gt=0, description="until the answer begins; without streaming, until it is complete"
    )
    idle: float = Field(default=60.0, gt=0, description="between two pieces of the answer")
    total: float = Field(default=600.0, gt=0, description="for the whole answer")
    tail: float = Field(default=5.0, gt=0, description="for data after a complete answer; no failure")

    def to_deadlines(self) -> ModelDeadlines:
        return ModelDeadlines(**self.model_dump())


class OfflineSettings(_ModelSection):
    """The model without a network."""

    name: str = Field(default="offline", min_length=1)
    context_tokens: int = Field(default=16_000, ge=256, description="tokens a request may have")
    seconds_per_word: float = Field(default=0.0, ge=0, le=10, description="seconds between two words")
    price: ModelPrice | None = None


class _RemoteModelSettings(_ModelSection):
    name: str = Field(min_length=1, description="the model's name at the provider")
    api_key: SecretString | None = Field(default=None, description="write `api_key_env`: the variable that holds it")
    context_tokens: int = Field(default=128_000, ge=256, description="tokens its context window holds")
    max_tokens: int | None = Field(default=None, ge=1, description="tokens one answer may have")
    price: ModelPrice | None = Field(default=None, description="needed for budgets in USD")
    stream: bool = Field(default=True, description="false for servers that cannot stream")
    images: bool = Field(default=True, description="false for models that cannot see")
    max_image_bytes: int = Field(default=5_000_000, ge=0)
    pdf: bool = Field(default=False, description="true for models that can read PDF files")
    params: Annotated[dict[str, Any], AfterValidator(_reject_reserved_params)] = Field(
        default_factory=dict, description="sent with every request, such as temperature"
    )
    headers: dict[str, SecretString] = Field(default_factory=dict, description="sent with every request")
    deadline_seconds: ModelDeadlineSettings = ModelDeadlineSettings()

    @property
    def output_token_limit(self) -> Any:
        """Return the limit of an answer under any of its names, or None if it is not set."""
        return (
            next((self.params[name] for name in OUTPUT_LIMIT_PARAMS if self.params.get(name)), None) or self.max_tokens
        )

    def merge_params(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return these settings merged with the request's parameters, which take precedence; the limit is
        `max_tokens`."""
        own = {name: value for name, value in self.params.items() if name not in OUTPUT_LIMIT_PARAMS}
        return {"max_tokens": self.output_token_limit, **own, **asked}


class OpenAISettings(_RemoteModelSettings):
    """Any server with chat completions."""

    base_url: str = "https://api.openai.com/v1"
    auth: Literal["bearer", "api-key", "none"] = Field(default="bearer", description="api-key for Azure")
    limit_key: Literal["max_tokens", "max_completion_tokens", ""] = Field(
        default="", description="the server's name for the limit of an answer; empty: by its address"
    )
    stream_usage: bool = Field(default=True, description="false for servers that refuse stream_options")
    alternate: bool = Field(default=False, description="true for templates that require user, assistant, user")
    reasoning: Literal["", "reasoning_content", "reasoning", "none"] = Field(
        default="", description="the field that returns reasoning with a tool call; empty: by its address"
    )
    call_ids: Literal["", "any", "nine"] = Field(
        default="", description="nine: letters and digits, as Mistral requires; empty: by its address"
    )


class OllamaSettings(OpenAISettings):
    """An Ollama server on this machine, unless `base_url` names another one."""

    base_url: str = "http://127.0.0.1:11434/v1"
    auth: Literal["bearer", "api-key", "none"] = Field(default="none", description="bearer if the server wants a key")


class LmStudioSettings(OllamaSettings):
    """LM Studio's server."""

    base_url: str = "http://127.0.0.1:1234/v1"


class VllmSettings(OllamaSettings):
    """A vLLM server."""

    base_url: str = "http://127.0.0.1:8000/v1"


class LlamaCppSettings(OllamaSettings):
    """llama.cpp's server."""

    base_url: str = "http://127.0.0.1:8080/v1"


class AnthropicSettings(_RemoteModelSettings):
    """Anthropic's messages API, and servers that implement it."""

    base_url: str = "https://api.anthropic.com"
    context_tokens: int = Field(default=200_000, ge=256, description="tokens its context window holds")
    pdf: bool = Field(default=True, description="false for models that cannot read PDF files")
    auth: Literal["x-api-key", "bearer", "none"] = "x-api-key"
    max_tokens: int = Field(default=8_192, ge=1, description="tokens one answer may have; the API requires it")
    version: str = "2023-06-01"
    cache: Literal["5m", "1h", "off"] = Field(default="5m", description="how long the provider caches the prompt")
