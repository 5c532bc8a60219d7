"""A model with scripted answers, for tests."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import TypeAlias

from everhold.ports.model import ModelRequest, ModelResponse

ScriptedAnswer: TypeAlias = ModelResponse | str | BaseException
"""An answer, its text alone, or an error to raise."""
AnswerScript: TypeAlias = (
    Iterable[ScriptedAnswer] | Callable[[ModelRequest], ScriptedAnswer | Awaitable[ScriptedAnswer]]
)


class ScriptedModel:
    """Answers from a list or with a function of the request, and keeps every request in `requests`.

    When the list is used up, the model raises an error, because the test is wrong. Text is streamed word by word.
    """

    def __init__(self, script: AnswerScript, *, name: str = "scripted", context_tokens: int = 100_000) -> None:
        self.name = name
        self.context_tokens = context_tokens
        self.requests: list[ModelRequest] = []
        self._function = script if callable(script) else None
        self._list: deque[ScriptedAnswer] = deque() if callable(script) else deque(script)

    def add_answers(self, *answers: ScriptedAnswer) -> None:
        """Append answers to the list."""
        assert self._function is None, "this model answers from a function"
        self._list.extend(answers)

    @property
    def answers_left(self) -> int:
        return len(self._list)

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        self.requests.append(request)
        if self._function is not None:
            made = self._function(request)
            scripted = await made if isawaitable(made) else made
        else:
            if not self._list:
                raise AssertionError(
                    f"{self.name} was asked {len(self.requests)} times, more often than it has answers"
                )
            scripted = self._list.popleft()
        if isinstance(scripted, BaseException):
            raise scripted
        answer = ModelResponse(text=scripted, model=self.name) if isinstance(scripted, str) else scripted
        if on_text is not None:
            for word in re.findall(r"\s*\S+\s*", answer.text):
                on_text(word)
        return answer
