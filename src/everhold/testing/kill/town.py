"""What lives outside the process and outlives it: platforms, a model, tools, memory providers. It keeps the truth.

Everything here takes its time, sometimes says no, and sometimes does what it was asked without anybody hearing of it.
What it is told in a message decides what goes wrong (`busy`, `later`, `refuse`, ...), so a trial can ask for it.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from everhold.core import compression
from everhold.core.entries import Call, Usage
from everhold.core.tokens import weigh_request
from everhold.errors import InDoubt, Overloaded, Refused, TooLong, Transient
from everhold.ports.memory import Exchange, Memory, Note, Retraction
from everhold.ports.model import Answer, Message, Request
from everhold.ports.platform import Delivery, Incoming, Outgoing
from everhold.ports.tool import Effect
from everhold.testing.kill.wire import Pieces, Question

DEADLINE: Final = 0.6
"""Seconds a call may take; whoever made it has given up after that."""
LATEST: Final = 0.45
"""Seconds after which a request is not carried out any more: deadlines promise nothing without this."""
VISIBLE_AFTER: Final = 0.1
CONTEXT_TOKENS: Final = 6_000
TEXT_LIMIT: Final = 120
DAY: Final = "today"
"""On which everything is paid."""
LONG_POLL: Final = 0.5

TOKEN: Final = re.compile(r"\b[a-z]+-\d+\.m\d+\b")
"""What a message is called, wherever it turns up."""
EDITED: Final = "000"
"""What an edited message's name ends with."""
_PLAN: Final = re.compile(r"\[([^\]]*)\]")

TOOLS: Final = {
    "look": Effect.PURE,
    "wait": Effect.PURE,
    "note": Effect.PURE,
    "tell": Effect.PURE,
    "file": Effect.KEYED,
    "book": Effect.PROBE,
    "pay": Effect.ONCE,
}
MEMORIES: Final = {"keyed": Delivery.KEYED, "upsert": Delivery.UPSERT, "probe": Delivery.PROBE}
PLATFORMS: Final = {
    "keyed": (Delivery.KEYED, "resend"),
    "probe": (Delivery.PROBE, "resend"),
    "blind": (Delivery.BLIND, "resend"),
    "hold": (Delivery.BLIND, "hold"),
}
"""name -> how a repeat stays safe, and the policy where it does not."""


def named(dedup: str) -> str:
    """The name of the message behind a dedup key; what no person wrote has none."""
    if not dedup.startswith("["):
        return ""
    _, _, chat, message, _, revision = msgspec.json.decode(dedup)
    return f"{chat}.m{message}{EDITED if revision else ''}"


class Luck:
    """How late and how unreliable the town is. Calm: as little as possible, so that a trial comes to an end."""

    def __init__(self, seed: str) -> None:
        self.dice = random.Random(seed)
        self.calm = False

    async def arrive(self, question: Question) -> None:
        """The way here. A request that was too long under way is not carried out any more; a question can be."""
        roll = self.dice.random()
        if roll < 0.04 and not self.calm:
            await asyncio.sleep(self.dice.random() * LATEST * 0.8)
        elif roll < 0.3:
            await asyncio.sleep(self.dice.random() * 0.015)
        if time.time() - question.sent > LATEST and question.do != "answer":
            raise InDoubt("it came too late to be carried out")

    async def leave(self) -> None:
        """The way back, on which an answer may be lost."""
        roll = self.dice.random()
        if roll < 0.02 and not self.calm:
            raise InDoubt("the answer was lost")
        if roll < 0.3:
            await asyncio.sleep(self.dice.random() * 0.015)


# -- platforms ---------------------------------------------------------------------------------------------------------


class Shown(Struct, frozen=True, kw_only=True):
    """Something people got to see."""

    chat: str
    key: str
    text: str


class Square:
    """One platform account: asked for news with an offset, which confirms everything before it."""

    def __init__(self, name: str, delivery: Delivery, luck: Luck) -> None:
        self.name = name
        self.delivery = delivery
        self.luck = luck
        self.updates: list[Incoming] = []
        self.confirmed = 0
        self.shown: list[Shown] = []
        self.arrived: dict[str, float] = {}
        self.refused: set[str] = set()
        self.repeats = 0
        self.drafts: dict[str, str] = {}
        self.edited = 0
        self._postponed: set[str] = set()
        self._news = asyncio.Event()

    def write(self, incoming: Incoming) -> None:
        self.updates.append(incoming)
        self._news.set()

    async def answer(self, question: Question) -> object:
        given = question.given
        if question.do == "poll":
            return await self._poll(given["offset"])
        await self.luck.arrive(question)
        out = msgspec.convert(given["out"], Outgoing)
        result = await self._do(question.do, out, given)
        await self.luck.leave()
        return result

    async def _do(self, do: str, out: Outgoing, given: dict[str, Any]) -> str | None:
        match do:
            case "send":
                return self._show(out)
            case "draft":
                remote = f"draft-{len(self.drafts)}-{out.key}"
                self.drafts[remote] = out.text
                return remote
            case "revise":
                self.drafts[given["remote"]] = out.text
                return None
            case "probe":
                seen = self.arrived.get(out.key, time.time())
                return out.key if seen <= time.time() - VISIBLE_AFTER else None
            case other:
                raise Refused(f"{self.name} cannot {other}")

    async def _poll(self, offset: int) -> list[tuple[int, Incoming]]:
        self.confirmed = max(self.confirmed, offset)
        if self.confirmed >= len(self.updates):
            self._news.clear()
            try:
                async with asyncio.timeout(LONG_POLL):
                    await self._news.wait()
            except TimeoutError:
                return []
        first = self.confirmed
        if self.luck.dice.random() < 0.1:
            first = max(0, first - 2)  # some of what was confirmed comes once more
        return list(enumerate(self.updates[first : self.confirmed + 3], first))

    def _show(self, out: Outgoing) -> str:
        if "later" in out.text and out.key not in self._postponed:
            self._postponed.add(out.key)
            raise Transient("not now", retry_after=0.05)
        if "refuse" in out.text and out.key not in self.refused:
            self.refused.add(out.key)
            raise Refused("not that")
        if out.key in self.arrived:
            self.repeats += 1
            if self.delivery is Delivery.KEYED:
                return out.key
        self.arrived.setdefault(out.key, time.time())
        self.shown.append(Shown(chat=out.to.chat, key=out.key, text=out.text))
        if out.edits:
            self.edited += 1
            self.drafts.pop(out.edits, None)
        return out.key


# -- memory ------------------------------------------------------------------------------------------------------------


_KINDS: Final[dict[str, type[Memory]]] = {kind.__name__: kind for kind in (Exchange, Note, Retraction)}


class Archive:
    """One memory provider."""

    def __init__(self, name: str, delivery: Delivery, luck: Luck) -> None:
        self.name = name
        self.delivery = delivery
        self.luck = luck
        self.kept: dict[str, list[Memory]] = {}
        self.writes: list[tuple[str, Memory]] = []
        """(session name, item) of every write there was, repeats too."""
        self.arrived: dict[str, float] = {}

    async def answer(self, question: Question) -> object:
        await self.luck.arrive(question)
        items = [msgspec.convert(item, _KINDS[kind]) for kind, item in question.given["items"]]
        result: object
        if question.do == "store":
            for item in items:
                self._keep(question.given["name"], item)
            result = {item.key: f"{self.name}/{item.key}" for item in items}
        else:
            latest = time.time() - VISIBLE_AFTER
            result = [item.key for item in items if self.arrived.get(item.key, latest + 1) <= latest]
        await self.luck.leave()
        return result

    def _keep(self, name: str, item: Memory) -> None:
        self.writes.append((name, item))
        kept = self.kept.setdefault(name, [])
        if item.key in self.arrived:
            if self.delivery is Delivery.UPSERT:
                kept[:] = [item if one.key == item.key else one for one in kept]
            elif self.delivery is not Delivery.KEYED:
                kept.append(item)
            return
        self.arrived[item.key] = time.time()
        kept.append(item)


# -- tools -------------------------------------------------------------------------------------------------------------


class Workshop:
    """Tools of all four effects. Counts what was really done, for which message and under which key."""

    def __init__(self, luck: Luck) -> None:
        self.luck = luck
        self.done: Counter[tuple[str, str]] = Counter()
        """(tool, message) -> how often something changed."""
        self.runs: Counter[str] = Counter()
        self.steer: Callable[[str], Callable[[], bool]] | None = None
        """Writes a steering message for the chat of a token; the result says whether it was confirmed."""
        self._keys: set[str] = set()
        self._waited: set[str] = set()

    async def answer(self, question: Question, tool: str) -> object:
        key, message = question.given["key"], question.given["message"]
        await self.luck.arrive(question)
        if question.do == "probe":
            return "done before" if key in self._keys else None
        self.runs[tool] += 1
        if tool == "wait":
            await self._wait(message)
        elif not (TOOLS[tool] is Effect.KEYED and key in self._keys):
            self._keys.add(key)
            self.done[tool, message] += 1
        await self.luck.leave()
        return f"{tool} for {message}"

    async def _wait(self, message: str) -> None:
        """Long enough for something else to happen meanwhile."""
        confirmed: Callable[[], bool] = lambda: False  # noqa: E731
        if self.steer is not None and message not in self._waited:
            self._waited.add(message)
            confirmed = self.steer(message)
        for _ in range(50):
            if confirmed():
                return
            await asyncio.sleep(0.01)


# -- the model ---------------------------------------------------------------------------------------------------------


class Oracle:
    """Answers by the request alone: calls the tools a message asks for, then repeats the names of what it answers."""

    def __init__(self, luck: Luck) -> None:
        self.luck = luck
        self.asked = 0
        self._fainted: set[tuple[str, str]] = set()

    async def answer(self, question: Question, piece: Pieces) -> Answer:
        request = msgspec.convert(question.given["request"], Request)
        await self.luck.arrive(question)
        self.asked += 1
        if request.system.startswith(compression.ASK):
            return Answer(text="what was said so far", model="town", usage=Usage(input=3, output=1))
        if compression.tokens(request.messages) > CONTEXT_TOKENS:
            raise TooLong(f"more than {CONTEXT_TOKENS} tokens")
        texts, rounds = current(request.messages)
        self._faint(texts, rounds)
        usage = Usage(input=weigh_request(request), output=2)
        steps = [(TOKEN.findall(text)[0], group.split()) for text in texts for group in plan(text)]
        if rounds < len(steps):
            message, tools = steps[rounds]
            # ids that are not unique from round to round, as some models give them
            calls = tuple(Call(id=f"c{i}", tool=tool, arguments={"for": message}) for i, tool in enumerate(tools))
            return Answer(calls=calls, model="town", usage=usage)
        text = "re " + " ".join(token for each in texts for token in TOKEN.findall(each))
        for word in ("later", "refuse"):
            text += f" {word}" if any(word in each for each in texts) else ""
        if any("long" in each for each in texts):
            text += " and on it goes" * 25
            for start in range(0, len(text), 20):
                await piece(text[start : start + 20])
                await asyncio.sleep(0.005)
        await self.luck.leave()
        return Answer(text=text, model="town", usage=usage)

    def _faint(self, texts: list[str], rounds: int) -> None:
        """Be overloaded, once for each message that asks for it: before anything was done, or in the middle."""
        for text in texts:
            for word, due in (("faint", rounds == 0), ("busy", rounds > 0)):
                name = (TOKEN.findall(text)[0], word)
                if word in text and due and name not in self._fainted:
                    self._fainted.add(name)
                    raise Overloaded("too much to do", retry_after=0.05)


def plan(text: str) -> list[str]:
    """The tools a message asks for: `[pay file | look]` is two rounds."""
    found = _PLAN.search(text)
    return [group.strip() for group in found[1].split("|")] if found else []


def current(messages: tuple[Message, ...]) -> tuple[list[str], int]:
    """What the model is to answer, and how often it was asked for it already."""
    texts: list[str] = []
    rounds = 0
    for message in reversed(messages):
        if (message.role == "assistant" and not message.calls) or (message.role == "user" and message.name == _NOTICE):
            break
        if message.role == "assistant":
            rounds += 1
        elif message.role == "user" and TOKEN.search(message.text):
            texts.insert(0, message.text)
    return texts, rounds


_NOTICE: Final = "everhold"


# -- whoever is in charge ----------------------------------------------------------------------------------------------


class Order(Struct, frozen=True, kw_only=True):
    """Something a person in charge wants done."""

    id: int
    do: str
    given: dict[str, str] = {}


class Office:
    """Hands out orders, one at a time, until they are reported as done. Whoever falls over one finds it again."""

    def __init__(self) -> None:
        self._orders: list[tuple[Order, asyncio.Future[Any]]] = []
        self._news = asyncio.Event()
        self._count = 0

    def order(self, do: str, **given: str) -> asyncio.Future[Any]:
        """What comes of it, once somebody has done it."""
        self._count += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._orders.append((Order(id=self._count, do=do, given=given), future))
        self._news.set()
        return future

    async def answer(self, question: Question) -> object:
        if question.do == "done":
            if self._orders and self._orders[0][0].id == question.given["id"]:
                _, future = self._orders.pop(0)
                if not future.done():
                    future.set_result(question.given["result"])
            return None
        if not self._orders:
            self._news.clear()
            try:
                async with asyncio.timeout(LONG_POLL):
                    await self._news.wait()
            except TimeoutError:
                return None
        return self._orders[0][0] if self._orders else None


# -- all of it ---------------------------------------------------------------------------------------------------------


class Town:
    """Everything the process talks to. `answer` is the one door."""

    def __init__(self, seed: int) -> None:
        self.luck = Luck(f"town/{seed}")
        self.squares = {name: Square(name, delivery, self.luck) for name, (delivery, _) in PLATFORMS.items()}
        self.archives = {name: Archive(name, delivery, self.luck) for name, delivery in MEMORIES.items()}
        self.workshop = Workshop(self.luck)
        self.oracle = Oracle(self.luck)
        self.office = Office()
        self.ready: dict[int, tuple[float, float]] = {}
        """When each process said that it serves, and how many seconds it had computed by then."""
        """process -> when it said that it serves."""
        self.news = asyncio.Event()

    async def answer(self, question: Question, piece: Pieces) -> object:
        kind, _, name = question.whom.partition("/")
        match kind:
            case "platform":
                return await self.squares[name].answer(question)
            case "memory":
                return await self.archives[name].answer(question)
            case "tool":
                return await self.workshop.answer(question, name)
            case "model":
                return await self.oracle.answer(question, piece)
            case "office":
                return await self.office.answer(question)
            case "ready":
                self.ready[question.given["pid"]] = time.monotonic(), question.given["computed"]
                self.news.set()
                return None
            case other:
                raise Refused(f"nobody here is called {other}")
