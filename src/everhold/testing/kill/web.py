"""A gateway under kill -9, between callers who insist and a model that is ill, both of them outside of it.

The callers speak HTTP and know nothing but what they were answered. The model is a real server that hangs, breaks off,
repeats itself, talks nonsense and says 429. What both have seen is compared with the log in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import httpx2
from msgspec import Struct, field

from everhold.core.entries import Call, Heard
from everhold.testing.kill import verdict
from everhold.testing.kill.gateway import Gateway
from everhold.testing.kill.town import TOKEN
from everhold.testing.modelserver import Cut, Drop, Hang, ModelServer, Received, Reply, Status, Step, rate_limited

KEY: Final = "sk-of-the-town"
SECRETS: Final = f"MODEL_KEY={KEY}\n"
CALLERS: Final = 6
MANNERS: Final = ("post", "whole", "stream")
MOMENT_SECONDS: Final = 2.0
"""How long a kill at a chosen moment waits for that moment, where any other moment will do, too."""
PATIENCE_SECONDS: Final = 300.0
"""How long it may take until every caller has heard how it ended, once all is well."""

ILLS: Final[dict[str, Callable[[str], Step]]] = {
    "hangs": lambda text: Hang(),
    "hangs mid-stream": lambda text: Reply(text=text, cut=Cut(how="hang", after=3)),
    "closes": lambda text: Drop(),
    "dies mid-stream": lambda text: Reply(text=text, cut=Cut(how="reset", after=4)),
    "ends mid-stream": lambda text: Reply(text=text, cut=Cut(how="end", after=3)),
    "errs mid-stream": lambda text: Reply(text=text, cut=Cut(how="error", after=4)),
    "truncates": lambda text: Reply(text=text.partition(" and")[0], finish="length"),
    "repeats": lambda text: Reply(text=text, cut=Cut(how="repeat", after=4, times=30)),
    "says nothing": lambda text: Reply(text=""),
    "sends garbage": lambda text: Reply(text=text, cut=Cut(how="garbage", after=3)),
    "sends a page": lambda text: Status(status=200, body=b"<html>\xff</html>"),
    "calls no such tool": lambda text: Reply(calls=(Call(id="c1", tool="no_such_tool", arguments={}),)),
    "calls with no object": lambda text: Reply(
        calls=(Call(id="c1", tool="no_such_tool", arguments={}),), raw_arguments="[1, "
    ),
    "says 429": lambda text: rate_limited(None),
    "says 429 and when": lambda text: rate_limited("1"),
}
"""Everything that goes wrong with the model, in turn: what is added here is met by the next storm."""


def configuration(model: str) -> str:
    waits = "{first_byte: 0.4, idle: 0.4, total: 3}"
    return f"""\
models:
  fake: {{provider: openai, base_url: {model}, name: fake, api_key_env: MODEL_KEY, deadline_seconds: {waits}}}
agents:
  main: {{persona: You live in a town., memories: [], tools: []}}
"""


class Vendor:
    """What the model server does: names every message it answers, or falls ill, once for each of them."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(f"vendor/{seed}")
        self.calm = False
        self.ills: Counter[str] = Counter()
        self.all_met = asyncio.Event()
        order = list(ILLS)
        self.dice.shuffle(order)
        self._next = itertools.cycle(order)
        self._met: set[str] = set()

    def __call__(self, received: Received) -> Step:
        tokens: list[str] = []
        for message in received.json["messages"]:
            if message["role"] == "assistant" and not message.get("tool_calls"):
                tokens = []
            elif message["role"] == "user":
                tokens += TOKEN.findall(str(message["content"]))
        text = f"re {' '.join(tokens)} and that is all there is to say about it"
        if not self.calm and tokens and tokens[-1] not in self._met and self.dice.random() < 0.7:
            self._met.add(tokens[-1])
            ill = next(self._next)
            self.ills[ill] += 1
            if len(self.ills) == len(ILLS):
                self.all_met.set()
            return ILLS[ill](text)
        return Reply(text=text, pause=0.004)


class Errand(Struct):
    """A message of a caller, and everything the caller was told about it."""

    id: str
    text: str
    manner: str
    kept: list[tuple[str, int]] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    failed: str = ""

    @property
    def over(self) -> bool:
        return bool(self.replies or self.failed or (self.manner == "post" and self.kept))


class Caller:
    """One conversation, one message after the other, each asked for under the same name until it is over."""

    def __init__(self, url: str, name: str, dice: random.Random, *, tell: Callable[[str], None], manner: str) -> None:
        self.tell = tell
        """Whom to tell that something was heard: `kept`, or `words`."""
        self.manner = manner
        """What the first errand is."""
        self.url = url
        self.name = name
        self.dice = dice
        self.errands: list[Errand] = []
        self.stop = False

    async def live(self) -> None:
        async with httpx2.AsyncClient(base_url=self.url, timeout=5.0, trust_env=False) as client:
            while not self.stop:
                number = len(self.errands) + 1
                manner = self.dice.choice(MANNERS) if self.errands else self.manner
                errand = Errand(id=f"k{number}", text=f"{self.name}.m{number}", manner=manner)
                self.errands.append(errand)
                while not errand.over:
                    await self._try(client, errand)
                if self.dice.random() < 0.3:
                    await self._try(client, errand)

    async def _try(self, client: httpx2.AsyncClient, errand: Errand) -> None:
        try:
            if errand.manner == "post":
                await self._post(client, errand)
            else:
                await self._ask(client, errand)
        except httpx2.TransportError:
            await asyncio.sleep(0.05)

    async def _post(self, client: httpx2.AsyncClient, errand: Errand) -> None:
        answer = await client.post("/api/messages", json={"chat": self.name, "text": errand.text, "id": errand.id})
        if answer.status_code in (200, 202):
            told = answer.json()
            errand.kept.append((told["session"], told["seq"]))
            self.tell("kept")
        else:
            await asyncio.sleep(0.1)

    async def _ask(self, client: httpx2.AsyncClient, errand: Errand) -> None:
        stream = errand.manner == "stream"
        body = {"model": "main", "stream": stream, "messages": [{"role": "user", "content": errand.text}]}
        headers = {"X-Everhold-Session": self.name, "Idempotency-Key": errand.id}
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            if response.status_code == 200 and stream:
                text, failed = "", ""
                async for line in response.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    event = json.loads(line.removeprefix("data: "))
                    failed = _final(event) or failed
                    for choice in event.get("choices", ()):
                        text += choice["delta"].get("content") or ""
                        self.tell("words")
                        if choice["finish_reason"] is not None:
                            errand.replies.append(text)
                errand.failed = failed or errand.failed
                return
            whole = json.loads(await response.aread())
            if response.status_code == 200:
                errand.replies.append(str(whole["choices"][0]["message"]["content"]))
            elif response.headers.get("x-should-retry") == "false":
                errand.failed = str(whole["error"])
            else:
                await asyncio.sleep(0.1)


def _final(event: Any) -> str:
    """Why there will be no answer, if a stream says so; what may pass is asked for again."""
    error = event.get("error") or {}
    return "" if error.get("type") in (None, "overloaded", "timeout", "closing") else str(error)


class Outcome(Struct, kw_only=True):
    """What a storm found, and how much there was to find it in."""

    failures: list[str]
    kills: int
    ills: Counter[str]
    errands: int
    answered: int

    def __str__(self) -> str:
        told = f"{self.kills} kills, {self.errands} messages, {self.answered} answered, {dict(self.ills)}"
        return "\n".join([told, *(f"  FAILED {text}" for text in self.failures)])


class Ear:
    """Hears when a caller is told something: the worst moment for whoever said it to die."""

    def __init__(self) -> None:
        self._what = ""
        self._heard = asyncio.Event()

    def __call__(self, what: str) -> None:
        if what == self._what:
            self._heard.set()

    async def hear(self, what: str, *, seconds: float) -> None:
        self._what = what
        self._heard.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._heard.wait(), seconds)


async def storm(
    gateway: Gateway, model: ModelServer, *, seed: int, kills: int, at: str = "", ill: bool = True
) -> Outcome:
    """Kill the gateway so often, while callers insist and the model is ill; then let all come to rest and compare.

    `at`: when a caller is told that something is `kept`, or hears `words`; otherwise at these and at random moments.
    """
    dice = random.Random(f"web/{seed}")
    vendor, ear = Vendor(seed), Ear()
    model.default = vendor
    vendor.calm = not ill
    callers = [
        Caller(gateway.url, f"http-{n}", random.Random(f"{seed}/{n}"), tell=ear, manner=MANNERS[n % len(MANNERS)])
        for n in range(CALLERS)
    ]
    talking = [asyncio.create_task(caller.live()) for caller in callers]
    failures: list[str] = []
    try:
        for _ in range(kills):
            await gateway.start()
            if moment := at or dice.choice(("", "kept", "words")):
                await ear.hear(moment, seconds=PATIENCE_SECONDS if at else MOMENT_SECONDS)
            else:
                await asyncio.sleep(0.02 + dice.random() * dice.choice((0.2, 0.8, 1.6)))
            await gateway.kill()
        await gateway.start()
        if ill:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(vendor.all_met.wait(), PATIENCE_SECONDS)
        vendor.calm = True
        for caller in callers:
            caller.stop = True
        await asyncio.wait(talking, timeout=PATIENCE_SECONDS)
        failures += [
            f"{caller.name} never heard how {caller.errands[-1].text} ended"
            for caller, task in zip(callers, talking, strict=True)
            if not task.done()
        ]
        await _rest(gateway)
        await gateway.kill()
    finally:
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
    books = await verdict.read(gateway.home.path, name="everhold.db")
    failures += [*books.problems, *verdict.answered(books), *_told(callers, books)]
    errands = [errand for caller in callers for errand in caller.errands]
    answered = sum(bool(errand.replies) for errand in errands)
    return Outcome(failures=failures, kills=kills, ills=vendor.ills, errands=len(errands), answered=answered)


async def _rest(gateway: Gateway) -> None:
    """Wait until nobody has a message left to answer."""
    until = time.monotonic() + PATIENCE_SECONDS
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=PATIENCE_SECONDS, trust_env=False) as client:
        while time.monotonic() < until:
            sessions = (await client.get("/api/sessions")).json()["sessions"]
            if not any(session["pending"] or session["state"] != "idle" for session in sessions):
                return
            await asyncio.sleep(0.05)


def _told(callers: list[Caller], books: verdict.Books) -> Iterator[str]:
    """Whatever a caller was told is what the log says, however often it asked, and in the order it asked."""
    for caller in callers:
        places: list[int] = []
        for errand in caller.errands:
            found = [
                (log, entry)
                for log in books.logs
                for entry in log.entries
                if isinstance(entry.body, Heard) and TOKEN.findall(entry.body.text) == [errand.text]
            ]
            if len(found) > 1:
                yield f"{errand.text} stands in the log {len(found)} times"
            if not found:
                if errand.kept or errand.replies or errand.failed:
                    yield f"the caller of {errand.text} was told that it is kept, and it is not in the log"
                continue
            log, entry = found[0]
            places.append(entry.pos)
            if any(place != (log.session, entry.seq) for place in errand.kept):
                yield f"{errand.text} is entry {entry.seq}, and its caller was told {errand.kept}"
            yield from _same(errand, log, log.taken.get(entry.seq, [0])[-1])
        if places != sorted(places):
            yield f"{caller.name} wrote one after the other, and the log has it in another order: {places}"


def _same(errand: Errand, log: verdict.Log, op: int) -> Iterator[str]:
    said = log.said.get(op, [])
    for reply in errand.replies:
        if len(said) != 1 or not reply.endswith(said[0]) or (errand.manner == "whole" and reply != said[0]):
            yield f"the caller of {errand.text} was told {reply!r}, the log says {said}"
    if errand.failed and (said or not log.told[op]):
        yield f"the caller of {errand.text} was told {errand.failed!r}, the log says {said}"
