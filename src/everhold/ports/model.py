"""The interface of a model: one request, one response. Vendor formats exist only in the adapters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from everhold.core.entries import Attachment, ModelUsage, TextPiece, ToolCall


class ModelMessage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a request. `call` is the id of the tool call that a tool result answers.

    An adapter sends a user's message as `core.provenance.render_user_text` renders it, with its speaker and its pieces.
    """

    role: Literal["user", "assistant", "tool"]
    text: str = ""
    """Of a user's message: the sender's own words only."""
    name: str = ""
    """The sender's display name. The gateway's own messages are named `everhold` and `memory`."""
    speaker: str = ""
    """The sender's identity, if the model is told who wrote the message."""
    pieces: tuple[TextPiece, ...] = ()
    """Forwarded, quoted and embedded text of the message."""
    calls: tuple[ToolCall, ...] = ()
    call: str = ""
    error: bool = False
    reasoning: str = ""
    attachments: tuple[Attachment, ...] = ()


class ToolSpec(Struct, frozen=True, kw_only=True):
    """The description of a tool for the model."""

    name: str
    description: str
    parameters: dict[str, Any]


class ModelRequest(Struct, frozen=True, kw_only=True):
    """Everything a model sees. The system text and the tools are byte-stable from turn to turn.

    `params` are optional parameters of the caller: `temperature`, `top_p`, `max_tokens`, `stop`, `seed`, and
    `tool_choice` (`auto`, `none`, `required`, or `{"name": NAME}`). They override the model's own settings. An adapter
    translates them for its vendor, and omits those that the vendor does not support.
    """

    system: str
    messages: tuple[ModelMessage, ...]
    tools: tuple[ToolSpec, ...] = ()
    params: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    """Contents of attachments that are not stored, by their hash."""


class ModelResponse(Struct, frozen=True, kw_only=True):
    """A model's answer."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    model: str = ""
    usage: ModelUsage = ModelUsage()
    finish: str = ""
    """`length` if the answer was cut off at its limit; empty if it is complete."""


class Model(Protocol):
    """Answers requests. Raises Overloaded (down, slow, rate limited), TooLong, or Refused.

    A request has no side effects, so the caller repeats it when the answer is lost.
    """

    name: str
    context_tokens: int

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        """Answer `request`. `on_text` receives the text while it is generated; it may miss parts."""


@runtime_checkable
class SupportsOutputLimit(Protocol):
    """A model that may know how many tokens its answers can have. None: unknown."""

    max_output_tokens: int | None


@runtime_checkable
class SupportsModelClose(Protocol):
    """A model that holds connections, which are closed when it is no longer needed."""

    async def aclose(self) -> None: ...
