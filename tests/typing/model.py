"""A model as a stranger would write it: a name, a window, one method. Checked by mypy, run by test_typing.py."""

from __future__ import annotations

from collections.abc import Callable

from everhold import Model, ModelMessage, ModelRequest, ModelResponse, ModelUsage, Overloaded, ToolCall, TooLong


class Parrot:
    """Says again what was said last."""

    name = "parrot"
    context_tokens = 1_000

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        if not request.messages:
            raise Overloaded("nobody spoke yet", retry_after=1.0)
        if len(request.messages) > self.context_tokens:
            raise TooLong("too much to repeat")
        last: ModelMessage = request.messages[-1]
        if on_text is not None:
            on_text(last.text)
        wanted = tuple(
            ToolCall(id="1", tool=tool.name, arguments={}) for tool in request.tools if last.text == tool.name
        )
        return ModelResponse(text=last.text, calls=wanted, model=self.name, usage=ModelUsage(input=1, output=1))


class Mute:
    """Has no window: nobody could tell what fits."""

    name = "mute"

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        return ModelResponse()


class Blocking:
    name = "blocking"
    context_tokens = 1_000

    def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        return ModelResponse()


class Positional:
    """Knows nothing of growing text."""

    name = "positional"
    context_tokens = 1_000

    async def answer(self, request: ModelRequest) -> ModelResponse:
        return ModelResponse()


good: Model = Parrot()
no_window: Model = Mute()  # type: ignore[assignment]
not_async: Model = Blocking()  # type: ignore[assignment]
no_text: Model = Positional()  # type: ignore[assignment]


def frozen(answer: ModelResponse) -> None:
    answer.text = "another"  # type: ignore[misc]  # an answer is never changed after it was given
