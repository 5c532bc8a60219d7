"""A model by another author: a name, a context window, one method. Checked by mypy and run by test_typing.py."""

from __future__ import annotations

from collections.abc import Callable

from everhold import Model, ModelMessage, ModelRequest, ModelResponse, ModelUsage, Overloaded, ToolCall, TooLong


class EchoModel:
    """Answers with the last message."""

    name = "echo"
    context_tokens = 1_000

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        if not request.messages:
            raise Overloaded("there is no message", retry_after=1.0)
        if len(request.messages) > self.context_tokens:
            raise TooLong("too much to repeat")
        last: ModelMessage = request.messages[-1]
        if on_text is not None:
            on_text(last.text)
        wanted = tuple(
            ToolCall(id="1", tool=tool.name, arguments={}) for tool in request.tools if last.text == tool.name
        )
        return ModelResponse(text=last.text, calls=wanted, model=self.name, usage=ModelUsage(input=1, output=1))


class NoWindowModel:
    """Has no context window."""

    name = "no-window"

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        return ModelResponse()


class BlockingModel:
    name = "blocking"
    context_tokens = 1_000

    def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        return ModelResponse()


class PositionalModel:
    """Does not take `on_text`."""

    name = "positional"
    context_tokens = 1_000

    async def answer(self, request: ModelRequest) -> ModelResponse:
        return ModelResponse()


good: Model = EchoModel()
no_window: Model = NoWindowModel()  # type: ignore[assignment]
not_async: Model = BlockingModel()  # type: ignore[assignment]
no_text: Model = PositionalModel()  # type: ignore[assignment]


def frozen(answer: ModelResponse) -> None:
    answer.text = "another"  # type: ignore[misc]  # a response is immutable
