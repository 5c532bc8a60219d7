"""The simulated model. Its answer depends only on the request, and it has the faults of real models."""

from __future__ import annotations

import asyncio
import enum
import hashlib
import json
import random
import re
from collections.abc import Callable
from typing import Final, assert_never

import msgspec
from msgspec import structs

from everhold.core import compression, review
from everhold.core.consumers import COMPRESSION, TURN
from everhold.core.entries import INVALID_ARGUMENTS_KEY, ModelUsage, ToolCall
from everhold.core.tokens import weigh_request
from everhold.errors import Overloaded, TooLong, Transient
from everhold.ports.model import ModelMessage, ModelRequest, ModelResponse
from everhold.testing.sim.invariants import SECRET_PATTERN, TOKEN_PATTERN, BusyModel, InvariantWitness, WaitRequest
from everhold.testing.sim.remote_services import LONG_WAIT_SECONDS, SimRemoteService
from everhold.testing.sim.world import CALLER_LISTENING, SimWorld

NOTICE_AUTHOR: Final = "everhold"
MEMORY_AUTHOR: Final = "memory"
REPORT_START: Final = "Request "
"""How the gateway reports what became of a request. It is a message to answer like others."""
PIECE_CHARS: Final = 25
GARBLED_TEXT: Final = "\x00\ud83d <|im_end|>\u202e"
"""A lone surrogate and control characters."""


class ModelFault(enum.StrEnum):
    """Faults of an answer. All are equally likely, and counted by their value."""

    HANGS = "model hangs"
    LIMITED = "model says 429"
    LIMITED_FOR = "model says 429 and when to come back"
    DIES = "model dies mid-stream"
    STALLS = "model hangs mid-stream"
    REPEATS = "model repeats itself"
    NOTHING = "model says nothing"
    GARBLES = "model garbles its text"
    NO_SUCH_TOOL = "model calls no such tool"
    NO_OBJECT = "model calls with no object"
    ENDLESS = "model talks endlessly"
    CUT_OFF = "model is cut off"


class SimModel(SimRemoteService):
    """Without a fault, equal requests get equal answers."""

    name = "sim"

    def __init__(self, world: SimWorld, witness: InvariantWitness) -> None:
        super().__init__(world, witness)
        self.context_tokens = world.profile.context_tokens
        self.rng = random.Random(f"{world.seed}/model")

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        text = "\n".join(message.text for message in request.messages)
        tokens, rounds = _find_unanswered(request.messages)
        session = self.witness.session_of.get(tokens[-1], "") if tokens else ""
        if request.system.startswith(compression.SUMMARY_PROMPT):
            cursor, answer = COMPRESSION, await self._make_summary(text)
        elif request.system.startswith(review.REVIEW_PROMPT):
            cursor, answer = "review", await self._make_review(text)
        else:
            cursor, answer = TURN, await self._make_reply(request, text, session, tokens, rounds)
        fault = self._pick_fault()
        match fault:
            case ModelFault.HANGS:
                await self.world.wait_forever()
            case ModelFault.LIMITED:
                raise Overloaded("too many requests")
            case ModelFault.LIMITED_FOR:
                raise BusyModel(WaitRequest(cursor, session, self.rng.choice(LONG_WAIT_SECONDS)))
            case ModelFault():
                answer = _spoil_answer(answer, fault)
        await self._stream_text(answer.text, fault, on_text)
        return answer

    def _pick_fault(self) -> ModelFault | None:
        """Draw the fault of this answer, or None."""
        if self.world.calm or self.rng.random() >= self.world.profile.model_fault:
            return None
        fault = self.rng.choice(tuple(ModelFault))
        self.world.stats[fault] += 1
        self.world.record("model", fault)
        return fault

    async def _stream_text(self, text: str, fault: ModelFault | None, on_text: Callable[[str], None] | None) -> None:
        """Stream the text while the caller listens."""
        broken = fault in (ModelFault.DIES, ModelFault.STALLS)
        if broken:
            text = text[: self.rng.randrange(len(text) + 1)]
        if on_text is not None:
            is_listening = CALLER_LISTENING.get()
            for start in range(0, len(text), PIECE_CHARS):
                if is_listening():
                    on_text(text[start : start + PIECE_CHARS])
                await asyncio.sleep(1.0 if start else 0.0)
        if fault is ModelFault.STALLS:
            await self.world.wait_forever()
        if fault is ModelFault.DIES:
            raise Overloaded("the answer broke off before its end")

    async def _pause(self, least: float, most: float) -> None:
        if self.world.draw_chance(self.world.profile.slow):
            await asyncio.sleep(self.world.draw_between(least, most))

    async def _make_reply(
        self, request: ModelRequest, text: str, session: str, tokens: list[str], rounds: int
    ) -> ModelResponse:
        self.witness.check_arrival(TURN, session, text)
        self.refuse_sometimes(TURN, session, BusyModel)
        used = weigh_request(request)
        if used > self.context_tokens:
            raise TooLong(f"{used} tokens are more than {self.context_tokens}")
        await self._pause(5, 40)
        return self._make_answer(request, tokens, rounds)

    async def _make_summary(self, text: str) -> ModelResponse:
        """Summarise as the names and secrets of all messages, so that a summary that outlives an erasure is found."""
        self.witness.check_arrival(COMPRESSION, "", text)
        self.refuse_sometimes(COMPRESSION, "", lambda _: Transient("too busy to summarise"))
        await asyncio.sleep(self.world.draw_between(0, 8))
        await self._pause(5, 100)
        kept = dict.fromkeys([*TOKEN_PATTERN.findall(text), *SECRET_PATTERN.findall(text)])
        return ModelResponse(
            text="so far: " + " ".join(kept), model=self.name, usage=ModelUsage(input=len(text) // 4, output=5)
        )

    async def _make_review(self, text: str) -> ModelResponse:
        """Write a note about some of the lines, and cite them."""
        self.witness.check_arrival("review", "", text)
        self.refuse_sometimes("review", "", lambda _: Transient("too busy to review"))
        await self._pause(5, 60)
        lines = [
            json.dumps({"note": f"remember {match[2]}", "cites": [int(match[1])]})
            for match in re.finditer(r"^#(\d+) \w+: (.*\bm?\d*[02468]\b.*)$", text, re.MULTILINE)
        ]
        return ModelResponse(text="\n".join(lines), model=self.name, usage=ModelUsage(input=len(text) // 4, output=5))

    def _make_answer(self, request: ModelRequest, tokens: list[str], rounds: int) -> ModelResponse:
        number = int.from_bytes(hashlib.blake2b(msgspec.json.encode(request.messages), digest_size=6).digest())
        usage = ModelUsage(input=weigh_request(request), output=3)
        pick, number = number % 10, number // 10
        names = [tool.name for tool in request.tools]
        if rounds < 3 and pick < (5 if rounds == 0 else 3) and names:
            chosen = [names[number % len(names)]]
            if number % 3 == 0:
                chosen.append(names[number // 3 % len(names)])
            calls = tuple(
                # some models repeat ids from round to round
                ToolCall(id=f"call-{index}", tool=tool, arguments={"n": number % 1_000})
                for index, tool in enumerate(chosen)
            )
            return ModelResponse(calls=calls, text="let me see" if number % 2 else "", model=self.name, usage=usage)
        words = "so it is, " * (number % 12 if number % 4 == 0 else 0)
        return ModelResponse(text=f"re {' '.join(tokens)} {words}#{number % 997}", model=self.name, usage=usage)


def _find_unanswered(messages: tuple[ModelMessage, ...]) -> tuple[list[str], int]:
    """Return the names of the messages to answer, and the number of model calls for them so far."""
    tokens: list[str] = []
    rounds = 0
    for message in reversed(messages):
        if (message.role == "assistant" and not message.calls) or (
            message.role == "user" and message.name == NOTICE_AUTHOR and not message.text.startswith(REPORT_START)
        ):
            break
        if message.role == "assistant":
            rounds += 1
        elif message.role == "user" and message.name != MEMORY_AUTHOR:
            tokens[:0] = TOKEN_PATTERN.findall(message.text)
    return tokens, rounds


def _spoil_answer(answer: ModelResponse, fault: ModelFault) -> ModelResponse:
    """Apply a fault to an answer. The names of the answered messages stay in it, so that the oracles can assign it."""
    match fault:
        case ModelFault.REPEATS:
            return structs.replace(answer, text=answer.text * 9, calls=answer.calls * 2)
        case ModelFault.NOTHING:
            return structs.replace(answer, text=" \n", calls=())
        case ModelFault.GARBLES:
            return structs.replace(answer, text=answer.text + GARBLED_TEXT)
        case ModelFault.NO_SUCH_TOOL:
            return structs.replace(answer, calls=(*answer.calls, ToolCall(id="", tool="no such/tool", arguments={})))
        case ModelFault.NO_OBJECT:
            tool = answer.calls[0].tool if answer.calls else "look"
            return structs.replace(
                answer, calls=(ToolCall(id="call-0", tool=tool, arguments={INVALID_ARGUMENTS_KEY: "[1, "}),)
            )
        case ModelFault.ENDLESS:
            return structs.replace(answer, text=answer.text + " and so on" * 200)
        case ModelFault.CUT_OFF:
            return structs.replace(answer, text=answer.text.partition(" #")[0], finish="length")
        case ModelFault.HANGS | ModelFault.STALLS | ModelFault.DIES | ModelFault.LIMITED | ModelFault.LIMITED_FOR:
            return answer  # these faults stop the answer elsewhere
        case _:
            assert_never(fault)
