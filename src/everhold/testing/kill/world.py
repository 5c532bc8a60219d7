"""The services outside the killed process: platforms, a model, tools, memory providers. They record what happened.

They are slow, sometimes refuse a request, and sometimes lose the answer after the work was done. Words in a message
(`busy`, `later`, `refuse`, ...) select a fault, so a trial can request it.
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
from everhold.core.entries import ModelUsage, ToolCall
from everhold.core.tokens import weigh_request
from everhold.errors import InDoubt, Overloaded, Refused, TooLong, Transient
from everhold.ports.memory import Exchange, MemoryItem, MemoryNote, MemoryRetraction
from everhold.ports.model import ModelMessage, ModelRequest, ModelResponse
from everhold.ports.platform import DeliveryGuarantee, IncomingMessage, OutgoingMessage
from everhold.ports.tool import ToolEffect
from everhold.testing.kill.json_lines import KillRequest, SendPiece

DEADLINE_SECONDS: Final = 0.6
GROWTH_SECONDS: Final = 0.04
"""Between two pieces of a growing reply. All of them take longer than the delay of the first draft."""
"""Seconds that a call may take; after that its caller has given up."""
MAX_TRANSIT_SECONDS: Final = 0.45
"""Seconds after which a request has no effect any more. Deadlines depend on this."""
VISIBLE_AFTER_SECONDS: Final = 0.1
CONTEXT_TOKENS: Final = 6_000
TEXT_LIMIT_CHARS: Final = 120
SPENDING_DAY: Final = "today"
"""The day of all spends."""
LONG_POLL_SECONDS: Final = 0.5

TOKEN_PATTERN: Final = re.compile(r"\b[a-z]+-\d+\.m\d+\b")
"""The name of a message, in any text."""
EDITED_SUFFIX: Final = "000"
"""The suffix of an edited message's name."""
_PLAN_PATTERN: Final = re.compile(r"\[([^\]]*)\]")

TOOL_EFFECTS: Final = {
    "look": ToolEffect.PURE,
    "wait": ToolEffect.PURE,
    "note": ToolEffect.PURE,
    "tell": ToolEffect.PURE,
    "file": ToolEffect.KEYED,
    "book": ToolEffect.PROBE,
    "pay": ToolEffect.ONCE,
}
MEMORY_GUARANTEES: Final = {
    "keyed": DeliveryGuarantee.KEYED,
    "upsert": DeliveryGuarantee.UPSERT,
    "probe": DeliveryGuarantee.PROBE,
}
PLATFORM_GUARANTEES: Final = {
    "keyed": (DeliveryGuarantee.KEYED, "resend"),
    "probe": (DeliveryGuarantee.PROBE, "resend"),
    "blind": (DeliveryGuarantee.BLIND, "resend"),
    "hold": (DeliveryGuarantee.BLIND, "hold"),
}
"""name -> delivery guarantee, and the policy for repeats in doubt."""


def parse_message_name(dedup: str) -> str:
    """Return the name of the message with a dedup key, or an empty string if no user wrote it."""
    if not dedup.startswith("["):
        return ""
    _, _, chat, message, _, revision = msgspec.json.decode(dedup)
    return f"{chat}.m{message}{EDITED_SUFFIX if revision else ''}"


class NetworkFaults:
    """The delays and losses of the network. Calm: as few as possible, so that a trial can end."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.calm = False

    async def delay_request(self, question: KillRequest) -> float:
        """Delay a request, and return when it arrived. One that took too long has no effect any more, unless it only
        reads. Its effect counts from its arrival on, because a busy machine may carry it out later.
        """
        roll = self.rng.random()
        if roll < 0.04 and not self.calm:
            await asyncio.sleep(self.rng.random() * MAX_TRANSIT_SECONDS * 0.8)
        elif roll < 0.3:
            await asyncio.sleep(self.rng.random() * 0.015)
        now = time.time()
        if now - question.sent_at > MAX_TRANSIT_SECONDS and question.action != "answer":
            raise InDoubt("the request arrived after its deadline")
        return now

    async def delay_response(self) -> None:
        """Delay an answer, or lose it."""
        roll = self.rng.random()
        if roll < 0.02 and not self.calm:
            raise InDoubt("the answer was lost")
        if roll < 0.3:
            await asyncio.sleep(self.rng.random() * 0.015)


# -- platforms ---------------------------------------------------------------------------------------------------------


class KillShownMessage(Struct, frozen=True, kw_only=True):
    """A message that users saw."""

    chat: str
    key: str
    text: str


class KillPlatform:
    """One platform account. A poll with an offset confirms all earlier updates."""

    def __init__(self, name: str, delivery: DeliveryGuarantee, network: NetworkFaults) -> None:
        self.name = name
        self.delivery = delivery
        self.network = network
        self.incoming_messages: list[IncomingMessage] = []
        self.confirmed = 0
        self.shown: list[KillShownMessage] = []
        self.arrived: dict[str, float] = {}
        self.refused: set[str] = set()
        self.repeats = 0
        self.drafts: dict[str, str] = {}
        self.edited = 0
        self._postponed: set[str] = set()
        self._news = asyncio.Event()

    def write_message(self, incoming: IncomingMessage) -> None:
        self.incoming_messages.append(incoming)
        self._news.set()

    async def answer(self, question: KillRequest) -> object:
        given = question.arguments
        if question.action == "poll":
            return await self._poll_updates(given["offset"])
        arrived_at = await self.network.delay_request(question)
        out = msgspec.convert(given["out"], OutgoingMessage)
        result = await self._execute(question.action, out, given, arrived_at)
        await self.network.delay_response()
        return result

    async def _execute(self, do: str, out: OutgoingMessage, given: dict[str, Any], arrived_at: float) -> str | None:
        match do:
            case "send":
                return self._show_message(out, arrived_at)
            case "draft":
                remote = f"draft-{0 if self.delivery is DeliveryGuarantee.KEYED else len(self.drafts)}-{out.key}"
                self.drafts.setdefault(remote, out.text)
                self.arrived.setdefault(out.key, time.time())
                return remote
            case "revise":
                self.drafts[given["remote"]] = out.text
                return None
            case "probe":
                seen = self.arrived.get(out.key, time.time())
                remote = next((it for it in self.drafts if it.endswith(f"-{out.key}")), out.key)
                return remote if seen <= time.time() - VISIBLE_AFTER_SECONDS else None
            case other:
                raise Refused(f"{self.name} cannot {other}")

    async def _poll_updates(self, offset: int) -> list[tuple[int, IncomingMessage]]:
        self.confirmed = max(self.confirmed, offset)
        if self.confirmed >= len(self.incoming_messages):
            self._news.clear()
            try:
                async with asyncio.timeout(LONG_POLL_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                return []
        first = self.confirmed
        if self.network.rng.random() < 0.1:
            first = max(0, first - 2)  # some confirmed updates are delivered again
        return list(enumerate(self.incoming_messages[first : self.confirmed + 3], first))

    def _show_message(self, out: OutgoingMessage, arrived_at: float) -> str:
        if "later" in out.text and out.key not in self._postponed:
            self._postponed.add(out.key)
            raise Transient("not now", retry_after=0.05)
        if "refuse" in out.text and out.key not in self.refused:
            self.refused.add(out.key)
            raise Refused("not that")
        if out.key in self.arrived:
            self.repeats += 1
            if self.delivery is DeliveryGuarantee.KEYED:
                return out.key
        self.arrived.setdefault(out.key, arrived_at)
        self.shown.append(KillShownMessage(chat=out.to.chat, key=out.key, text=out.text))
        if out.edits:
            self.edited += 1
            self.drafts.pop(out.edits, None)
        return out.key


# -- memory ------------------------------------------------------------------------------------------------------------


_MEMORY_TYPES: Final[dict[str, type[MemoryItem]]] = {
    kind.__name__: kind for kind in (Exchange, MemoryNote, MemoryRetraction)
}


class KillMemory:
    """One memory provider."""

    def __init__(self, name: str, delivery: DeliveryGuarantee, network: NetworkFaults) -> None:
        self.name = name
        self.delivery = delivery
        self.network = network
        self.kept: dict[str, list[MemoryItem]] = {}
        self.writes: list[tuple[str, MemoryItem]] = []
        """(session name, item) of every write, repeats included."""
        self.arrived: dict[str, float] = {}

    async def answer(self, question: KillRequest) -> object:
        arrived_at = await self.network.delay_request(question)
        items = [msgspec.convert(item, _MEMORY_TYPES[kind]) for kind, item in question.arguments["items"]]
        result: object
        if question.action == "store":
            for item in items:
                self._store_item(question.arguments["name"], item, arrived_at)
            result = {item.key: f"{self.name}/{item.key}" for item in items}
        elif question.action in ("forget", "list"):
            there = {item.key for kept in self.kept.values() for item in kept}
            result = [key for key in question.arguments["keys"] if key in there]
            if question.action == "forget":
                # the answer comes before the deletion
                asyncio.get_running_loop().call_later(self._deletion_delay(), self._delete_items, frozenset(result))
        else:
            latest = time.time() - VISIBLE_AFTER_SECONDS
            result = [item.key for item in items if self.arrived.get(item.key, latest + 1) <= latest]
        await self.network.delay_response()
        return result

    def _deletion_delay(self) -> float:
        return self.network.rng.choice((0.0, 0.0, MAX_TRANSIT_SECONDS))

    def _delete_items(self, keys: frozenset[str]) -> None:
        for name, kept in self.kept.items():
            self.kept[name] = [item for item in kept if item.key not in keys]

    def _store_item(self, name: str, item: MemoryItem, arrived_at: float) -> None:
        self.writes.append((name, item))
        kept = self.kept.setdefault(name, [])
        if item.key in self.arrived:
            if self.delivery is DeliveryGuarantee.UPSERT:
                kept[:] = [item if one.key == item.key else one for one in kept]
            elif self.delivery is not DeliveryGuarantee.KEYED:
                kept.append(item)
            return
        self.arrived[item.key] = arrived_at
        kept.append(item)


# -- tools -------------------------------------------------------------------------------------------------------------


class KillToolbox:
    """Tools of all four effects. Counts the effects by message and key."""

    def __init__(self, network: NetworkFaults) -> None:
        self.network = network
        self.done: Counter[tuple[str, str]] = Counter()
        """(tool, message) -> how often it had an effect."""
        self.runs: Counter[str] = Counter()
        self.steer: Callable[[str], Callable[[], bool]] | None = None
        """Writes a steering message in the chat of a token; returns whether it was confirmed."""
        self._keys: set[str] = set()
        self._waited: set[str] = set()

    async def answer(self, question: KillRequest, tool: str) -> object:
        key, message = question.arguments["key"], question.arguments["message"]
        await self.network.delay_request(question)
        if question.action == "probe":
            return "done before" if key in self._keys else None
        self.runs[tool] += 1
        if tool == "wait":
            await self._run_wait_tool(message)
        elif not (TOOL_EFFECTS[tool] is ToolEffect.KEYED and key in self._keys):
            self._keys.add(key)
            self.done[tool, message] += 1
        await self.network.delay_response()
        return f"{tool} for {message}"

    async def _run_wait_tool(self, message: str) -> None:
        """Sleep long enough for concurrent events."""
        confirmed: Callable[[], bool] = lambda: False  # noqa: E731
        if self.steer is not None and message not in self._waited:
            self._waited.add(message)
            confirmed = self.steer(message)
        for _ in range(50):
            if confirmed():
                return
            await asyncio.sleep(0.01)


# -- the model ---------------------------------------------------------------------------------------------------------


class KillModel:
    """A model whose answer depends only on the request: it calls the requested tools, then repeats the messages'
    names."""

    def __init__(self, network: NetworkFaults) -> None:
        self.network = network
        self.asked = 0
        self._overloaded: set[tuple[str, str]] = set()

    async def answer(self, question: KillRequest, piece: SendPiece) -> ModelResponse:
        request = msgspec.convert(question.arguments["request"], ModelRequest)
        await self.network.delay_request(question)
        self.asked += 1
        if request.system.startswith(compression.SUMMARY_PROMPT):
            return ModelResponse(text="what was said so far", model="world", usage=ModelUsage(input=3, output=1))
        if compression.estimate_message_tokens(request.messages) > CONTEXT_TOKENS:
            raise TooLong(f"more than {CONTEXT_TOKENS} tokens")
        texts, rounds = find_unanswered_texts(request.messages)
        self._raise_planned_overload(texts, rounds)
        usage = ModelUsage(input=weigh_request(request), output=2)
        steps = [(TOKEN_PATTERN.findall(text)[0], group.split()) for text in texts for group in parse_tool_rounds(text)]
        if rounds < len(steps):
            message, tools = steps[rounds]
            # some models repeat ids from round to round
            calls = tuple(ToolCall(id=f"c{i}", tool=tool, arguments={"for": message}) for i, tool in enumerate(tools))
            return ModelResponse(calls=calls, model="world", usage=usage)
        text = "re " + " ".join(token for each in texts for token in TOKEN_PATTERN.findall(each))
        for word in ("later", "refuse"):
            text += f" {word}" if any(word in each for each in texts) else ""
        if any("long" in each for each in texts):
            text += " and on it goes" * 25
            for start in range(0, len(text), 20):
                await piece(text[start : start + 20])
                await asyncio.sleep(GROWTH_SECONDS)
        await self.network.delay_response()
        return ModelResponse(text=text, model="world", usage=usage)

    def _raise_planned_overload(self, texts: list[str], rounds: int) -> None:
        """Fail once for each message that requests it: before the answer, or in its middle."""
        for text in texts:
            for word, due in (("faint", rounds == 0), ("busy", rounds > 0)):
                name = (TOKEN_PATTERN.findall(text)[0], word)
                if word in text and due and name not in self._overloaded:
                    self._overloaded.add(name)
                    raise Overloaded("too much to do", retry_after=0.05)


def parse_tool_rounds(text: str) -> list[str]:
    """Return the tools that a message requests: `[pay file | look]` is two rounds."""
    found = _PLAN_PATTERN.search(text)
    return [group.strip() for group in found[1].split("|")] if found else []


def find_unanswered_texts(messages: tuple[ModelMessage, ...]) -> tuple[list[str], int]:
    """Return the messages to answer, and the number of model calls for them so far."""
    texts: list[str] = []
    rounds = 0
    for message in reversed(messages):
        if (message.role == "assistant" and not message.calls) or (
            message.role == "user" and message.name == _NOTICE_AUTHOR
        ):
            break
        if message.role == "assistant":
            rounds += 1
        elif message.role == "user" and TOKEN_PATTERN.search(message.text):
            texts.insert(0, message.text)
    return texts, rounds


_NOTICE_AUTHOR: Final = "everhold"


# -- the operator ------------------------------------------------------------------------------------------------------


class OperatorOrder(Struct, frozen=True, kw_only=True):
    """An order of the operator."""

    id: int
    action: str
    given: dict[str, str] = {}


class OperatorOrders:
    """Gives the operator's orders to the process, one at a time, until each is reported as done."""

    def __init__(self) -> None:
        self._orders: list[tuple[OperatorOrder, asyncio.Future[Any]]] = []
        self._news = asyncio.Event()
        self._count = 0

    def request(self, do: str, **given: str) -> asyncio.Future[Any]:
        """Queue an order and return its result when a process has carried it out."""
        self._count += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._orders.append((OperatorOrder(id=self._count, action=do, given=given), future))
        self._news.set()
        return future

    async def answer(self, question: KillRequest) -> object:
        if question.action == "done":
            if self._orders and self._orders[0][0].id == question.arguments["id"]:
                _, future = self._orders.pop(0)
                if not future.done():
                    future.set_result(question.arguments["result"])
            return None
        if not self._orders:
            self._news.clear()
            try:
                async with asyncio.timeout(LONG_POLL_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                return None
        return self._orders[0][0] if self._orders else None


# -- all services ------------------------------------------------------------------------------------------------------


class KillWorld:
    """All services of the process. `answer` handles every request."""

    def __init__(self, seed: int) -> None:
        self.network = NetworkFaults(f"town/{seed}")
        self.platforms = {
            name: KillPlatform(name, delivery, self.network) for name, (delivery, _) in PLATFORM_GUARANTEES.items()
        }
        self.memories = {name: KillMemory(name, delivery, self.network) for name, delivery in MEMORY_GUARANTEES.items()}
        self.toolbox = KillToolbox(self.network)
        self.model = KillModel(self.network)
        self.operator_orders = OperatorOrders()
        self.ready: dict[int, tuple[float, float, float]] = {}
        """process -> when it became ready, its CPU seconds until then, and the seconds that it waited for timers."""
        self.stopped: dict[int, float] = {}
        """process -> the seconds that it waited for timers from SIGTERM to its end."""
        self.process_ready = asyncio.Event()

    async def answer(self, question: KillRequest, piece: SendPiece) -> object:
        kind, _, name = question.service.partition("/")
        match kind:
            case "platform":
                return await self.platforms[name].answer(question)
            case "memory":
                return await self.memories[name].answer(question)
            case "tool":
                return await self.toolbox.answer(question, name)
            case "model":
                return await self.model.answer(question, piece)
            case "operator":
                return await self.operator_orders.answer(question)
            case "ready":
                used = question.arguments
                self.ready[used["pid"]] = time.monotonic(), used["computed"], used["waited"]
                self.process_ready.set()
                return None
            case "stopped":
                self.stopped[question.arguments["pid"]] = question.arguments["waited"]
                return None
            case other:
                raise Refused(f"there is no service {other}")
