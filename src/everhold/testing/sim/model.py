"""The model of the simulated world: it answers by what it is asked alone, and falls ill as the real ones do."""

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
from everhold.core.consumers import COMPRESSION
from everhold.core.entries import INVALID, Call, Usage
from everhold.core.tokens import weigh_request
from everhold.errors import Overloaded, TooLong, Transient
from everhold.ports.model import Answer, Message, Request
from everhold.testing.sim.farside import LONG_WAITS, FarSide
from everhold.testing.sim.witness import SECRET, TOKEN, BusyModel, Told, Witness
from everhold.testing.sim.world import LISTENING, World

MODEL: Final = "mind"
NOTICE: Final = "everhold"
MEMORY: Final = "memory"
PIECE: Final = 25
NO_TEXT: Final = "\x00\ud83d <|im_end|>\u202e"
"""Half a character, and other things that nobody wants to read."""


class Ill(enum.StrEnum):
    """What goes wrong with an answer. Each is drawn as often as the others, and counted by its name."""

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


class SimModel(FarSide):
    """In good health the same question gets the same answer, whoever asks and however often."""

    name = "sim"

    def __init__(self, world: World, witness: Witness) -> None:
        super().__init__(world, witness)
        self.context_tokens = world.profile.context_tokens
        self.dice = random.Random(f"{world.seed}/model")

    async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
        # what memories tell is theirs to forget
        text = "\n".join(message.text for message in request.messages if message.name != MEMORY)
        tokens, rounds = _current(request.messages)
        session = self.witness.session_of.get(tokens[-1], "") if tokens else ""
        if request.system.startswith(compression.ASK):
            lane, answer = COMPRESSION, await self._summary(text)
        elif request.system.startswith(review.ASK):
            lane, answer = "review", await self._review(text)
        else:
            lane, answer = MODEL, await self._reply(request, text, session, tokens, rounds)
        ill = self._ill()
        match ill:
            case Ill.HANGS:
                await self.world.never()
            case Ill.LIMITED:
                raise Overloaded("too many requests")
            case Ill.LIMITED_FOR:
                raise BusyModel(Told(lane, session, self.dice.choice(LONG_WAITS)))
            case Ill():
                answer = _spoiled(answer, ill)
        await self._stream(answer.text, ill, on_text)
        return answer

    def _ill(self) -> Ill | None:
        """What is wrong with it this time, if anything."""
        if self.world.calm or self.dice.random() >= self.world.profile.ill:
            return None
        ill = self.dice.choice(tuple(Ill))
        self.world.stats[ill] += 1
        self.world.tell("model", ill)
        return ill

    async def _stream(self, text: str, ill: Ill | None, on_text: Callable[[str], None] | None) -> None:
        """Let the text be heard as it grows, by whoever still listens."""
        broken = ill in (Ill.DIES, Ill.STALLS)
        if broken:
            text = text[: self.dice.randrange(len(text) + 1)]
        if on_text is not None:
            hears = LISTENING.get()
            for start in range(0, len(text), PIECE):
                if hears():
                    on_text(text[start : start + PIECE])
                await asyncio.sleep(1.0 if start else 0.0)
        if ill is Ill.STALLS:
            await self.world.never()
        if ill is Ill.DIES:
            raise Overloaded("the answer broke off before its end")

    async def _think(self, least: float, most: float) -> None:
        if self.world.chance(self.world.profile.slow):
            await asyncio.sleep(self.world.pick(least, most))

    async def _reply(self, request: Request, text: str, session: str, tokens: list[str], rounds: int) -> Answer:
        self.witness.arrives(MODEL, session, text)
        self.trouble(MODEL, session, BusyModel)
        used = weigh_request(request)
        if used > self.context_tokens:
            raise TooLong(f"{used} tokens are more than {self.context_tokens}")
        await self._think(5, 40)
        return self._answer(request, tokens, rounds)

    async def _summary(self, text: str) -> Answer:
        """Names and secrets of all that was said, which is short and would tell if it outlived an erasure."""
        self.witness.arrives(COMPRESSION, "", text)
        self.trouble(COMPRESSION, "", lambda told: Transient("too busy to summarise"))
        await asyncio.sleep(self.world.pick(0, 8))
        await self._think(5, 100)
        kept = dict.fromkeys([*TOKEN.findall(text), *SECRET.findall(text)])
        return Answer(text="so far: " + " ".join(kept), model=self.name, usage=Usage(input=len(text) // 4, output=5))

    async def _review(self, text: str) -> Answer:
        """A note about some of the lines, citing them."""
        self.witness.arrives("review", "", text)
        self.trouble("review", "", lambda told: Transient("too busy to review"))
        await self._think(5, 60)
        lines = [
            json.dumps({"note": f"remember {match[2]}", "cites": [int(match[1])]})
            for match in re.finditer(r"^#(\d+) \w+: (.*\bm?\d*[02468]\b.*)$", text, re.MULTILINE)
        ]
        return Answer(text="\n".join(lines), model=self.name, usage=Usage(input=len(text) // 4, output=5))

    def _answer(self, request: Request, tokens: list[str], rounds: int) -> Answer:
        number = int.from_bytes(hashlib.blake2b(msgspec.json.encode(request.messages), digest_size=6).digest())
        usage = Usage(input=weigh_request(request), output=3)
        pick, number = number % 10, number // 10
        names = [tool.name for tool in request.tools]
        if rounds < 3 and pick < (5 if rounds == 0 else 3) and names:
            chosen = [names[number % len(names)]]
            if number % 3 == 0:
                chosen.append(names[number // 3 % len(names)])
            calls = tuple(
                # some models give ids that are not unique from round to round
                Call(id=f"call-{index}", tool=tool, arguments={"n": number % 1_000})
                for index, tool in enumerate(chosen)
            )
            return Answer(calls=calls, text="let me see" if number % 2 else "", model=self.name, usage=usage)
        words = "so it is, " * (number % 12 if number % 4 == 0 else 0)
        return Answer(text=f"re {' '.join(tokens)} {words}#{number % 997}", model=self.name, usage=usage)


def _current(messages: tuple[Message, ...]) -> tuple[list[str], int]:
    """The names of the messages the model is to answer, and how often it was asked for them already."""
    tokens: list[str] = []
    rounds = 0
    for message in reversed(messages):
        if (message.role == "assistant" and not message.calls) or (message.role == "user" and message.name == NOTICE):
            break
        if message.role == "assistant":
            rounds += 1
        elif message.role == "user" and message.name != MEMORY:
            tokens[:0] = TOKEN.findall(message.text)
    return tokens, rounds


def _spoiled(answer: Answer, ill: Ill) -> Answer:
    """What becomes of an answer. The names it answers to stay in it, so that it can be told whose answer it is."""
    match ill:
        case Ill.REPEATS:
            return structs.replace(answer, text=answer.text * 9, calls=answer.calls * 2)
        case Ill.NOTHING:
            return structs.replace(answer, text=" \n", calls=())
        case Ill.GARBLES:
            return structs.replace(answer, text=answer.text + NO_TEXT)
        case Ill.NO_SUCH_TOOL:
            return structs.replace(answer, calls=(*answer.calls, Call(id="", tool="no such/tool", arguments={})))
        case Ill.NO_OBJECT:
            tool = answer.calls[0].tool if answer.calls else "look"
            return structs.replace(answer, calls=(Call(id="call-0", tool=tool, arguments={INVALID: "[1, "}),))
        case Ill.ENDLESS:
            return structs.replace(answer, text=answer.text + " and so on" * 200)
        case Ill.CUT_OFF:
            return structs.replace(answer, text=answer.text.partition(" #")[0], finish="length")
        case Ill.HANGS | Ill.STALLS | Ill.DIES | Ill.LIMITED | Ill.LIMITED_FOR:
            return answer  # if it comes at all
        case _:
            assert_never(ill)
