"""A model's promise: a request in, one answer out. Vendor formats exist only behind this door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from everhold.core.entries import Attachment, ModelUsage, ToolCall


class ModelMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a request. `call` ties a tool's result to the call it answers."""

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    name: str = ""
    calls: tuple[ToolCall, ...] = ()
    call: str = ""
    error: bool = False
    reasoning: str = ""
    attachments: tuple[Attachment, ...] = ()


class ToolSpec(Struct, frozen=True, kw_only=True):
    """What a model is told about a tool."""

    name: str
    description: str
    parameters: dict[str, Any]


class ModelRequest(Struct, frozen=True, kw_only=True):
    """Everything a model sees. The system text and the tools are byte-stable from turn to turn.

    `params` are wishes of whoever asks: `temperature`, `top_p`, `max_tokens`, `stop`, `seed`, and `tool_choice`
    (`auto`, `none`, `required`, or `{"name": NAME}`). A model's own settings stand behind them, and an adapter says
    them as its vendor does, or not at all where that knows no such wish.
    """

    system: str
    messages: tuple[ModelMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    params: dict[str, Any] = {}


class ModelResponse(Struct, frozen=True, kw_only=True):
    """What a model answered."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    model: str = ""
    usage: ModelUsage = ModelUsage()
    finish: str = ""
    """`length` if the answer was cut off at its limit; empty if it came to its own end."""


class Model(Protocol):
    """Answers requests. Raises Overloaded (down, slow, rate limited), TooLong, or Refused.

    Asking again has no side effect, so a lost answer is simply asked for once more.
    """

    name: str
    context_tokens: int

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        """`on_text` gets the text as it grows, piece by piece; it is lossy and never the record."""


@runtime_checkable
class SupportsOutputLimit(Protocol):
    """A model that knows how many tokens an answer of its own can have; None: nobody has said."""

    max_output_tokens: int | None


@runtime_checkable
class SupportsModelClose(Protocol):
    """A model that holds connections, which it lets go of when it is not needed any more."""

    async def aclose(self) -> None: ...
