"""A gateway under kill -9 between HTTP callers that retry and a faulty model server, both outside of it.

The callers know only the responses they received. The model server hangs, breaks connections, repeats text, returns
garbage and answers 429. At the end, what both received is compared with the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import httpx2
from msgspec import Struct, field

from everhold.core.entries import Heard, ToolCall
from everhold.testing.kill import verdict
from everhold.testing.kill.gateway import KillableGateway
from everhold.testing.kill.world import TOKEN_PATTERN
from everhold.testing.model_server import (
    DroppedConnection,
    HangingConnection,
    ModelServer,
    ModelServerReply,
    ModelServerStatus,
    ModelServerStep,
    ReceivedModelRequest,
    StreamFault,
    make_rate_limit_failure,
)

MODEL_API_KEY: Final = "sk-of-the-world"
ENV_FILE_TEXT: Final = f"MODEL_KEY={MODEL_API_KEY}\n"
CALLER_COUNT: Final = 6
REQUEST_STYLES: Final = ("post", "whole", "stream")
MAX_TRIGGER_SECONDS: Final = 2.0
"""How long a kill waits for its chosen moment before it happens anyway."""
PATIENCE_SECONDS: Final = 300.0
"""How long the callers may wait for their outcomes after the last fault."""

MODEL_FAULTS: Final[dict[str, Callable[[str], ModelServerStep]]] = {
    "hangs": lambda text: HangingConnection(),
    "hangs mid-stream": lambda text: ModelServerReply(text=text, cut=StreamFault(kind="hang", after=3)),
    "closes": lambda text: DroppedConnection(),
    "dies mid-stream": lambda text: ModelServerReply(text=text, cut=StreamFault(kind="reset", after=4)),
    "ends mid-stream": lambda text: ModelServerReply(text=text, cut=StreamFault(kind="end", after=3)),
    "errs mid-stream": lambda text: ModelServerReply(text=text, cut=StreamFault(kind="error", after=4)),
    "truncates": lambda text: ModelServerReply(text=text.partition(" and")[0], finish="length"),
    "repeats": lambda text: ModelServerReply(text=text, cut=StreamFault(kind="repeat", after=4, times=30)),
    "says nothing": lambda text: ModelServerReply(text=""),
    "sends garbage": lambda text: ModelServerReply(text=text, cut=StreamFault(kind="garbage", after=3)),
    "sends a page": lambda text: ModelServerStatus(status=200, body=b"<html>\xff</html>"),
    "calls no such tool": lambda text: ModelServerReply(calls=(ToolCall(id="c1", tool="no_such_tool", arguments={}),)),
    "calls with no object": lambda text: ModelServerReply(
        calls=(ToolCall(id="c1", tool="no_such_tool", arguments={}),), raw_arguments="[1, "
    ),
    "says 429": lambda text: make_rate_limit_failure(None),
    "says 429 and when": lambda text: make_rate_limit_failure("1"),
}
"""The faults of the model server, used in turn."""


def make_config(model: str) -> str:
    waits = "{first_byte: 0.4, idle: 0.4, total: 3}"
    return f"""\
models:
  fake: {{provider: openai, base_url: {model}, name: fake, api_key_env: MODEL_KEY, deadline_seconds: {waits}}}
agents:
  main: {{persona: You are under test., memories: [], tools: []}}
"""


class FaultyModelScript:
    """The script of the model server: it repeats the names of the messages, or has each fault once."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"vendor/{seed}")
        self.calm = False
        self.fault_counts: Counter[str] = Counter()
        self.all_faults_met = asyncio.Event()
        order = list(MODEL_FAULTS)
        self.rng.shuffle(order)
        self._next = itertools.cycle(order)
        self._faulted_tokens: set[str] = set()

    def __call__(self, received: ReceivedModelRequest) -> ModelServerStep:
        tokens: list[str] = []
        for message in received.json["messages"]:
            if message["role"] == "assistant" and not message.get("tool_calls"):
                tokens = []
            elif message["role"] == "user":
                tokens += TOKEN_PATTERN.findall(str(message["content"]))
        text = f"re {' '.join(tokens)} and that is all there is to say about it"
        if not self.calm and tokens and tokens[-1] not in self._faulted_tokens and self.rng.random() < 0.7:
            self._faulted_tokens.add(tokens[-1])
            ill = next(self._next)
            self.fault_counts[ill] += 1
            if len(self.fault_counts) == len(MODEL_FAULTS):
                self.all_faults_met.set()
            return MODEL_FAULTS[ill](text)
        return ModelServerReply(text=text, pause_seconds=0.004)


class CallerRequest(Struct):
    """A message of a caller, and all responses about it."""

    id: str
    text: str
    style: str
    acknowledged: list[tuple[str, int]] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    failed: str = ""

    @property
    def is_finished(self) -> bool:
        return bool(self.replies or self.failed or (self.style == "post" and self.acknowledged))


class GatewayCaller:
    """One conversation with sequential messages. Each request is repeated with the same key until it has an outcome."""

    def __init__(
        self,
        gateway: KillableGateway,
        name: str,
        rng: random.Random,
        *,
        on_heard: Callable[[str], None],
        first_style: str,
    ) -> None:
        self.on_heard = on_heard
        """Called when something arrives: `kept` for a confirmation, `words` for text."""
        self.first_style = first_style
        """The style of the first request."""
        self.gateway = gateway
        self.name = name
        self.rng = rng
        self.requests: list[CallerRequest] = []
        self.stop = False

    async def run(self) -> None:
        async with self.gateway.open_client(seconds=5.0) as client:
            while not self.stop:
                number = len(self.requests) + 1
                manner = self.rng.choice(REQUEST_STYLES) if self.requests else self.first_style
                request = CallerRequest(id=f"k{number}", text=f"{self.name}.m{number}", style=manner)
                self.requests.append(request)
                while not request.is_finished:
                    await self._try_request(client, request)
                if self.rng.random() < 0.3:
                    await self._try_request(client, request)

    async def _try_request(self, client: httpx2.AsyncClient, request: CallerRequest) -> None:
        try:
            if request.style == "post":
                await self._post_message(client, request)
            else:
                await self._request_completion(client, request)
        except httpx2.TransportError:
            await asyncio.sleep(0.05)

    async def _post_message(self, client: httpx2.AsyncClient, request: CallerRequest) -> None:
        answer = await client.post("/api/messages", json={"chat": self.name, "text": request.text, "id": request.id})
        if answer.status_code in (200, 202):
            told = answer.json()
            request.acknowledged.append((told["session"], told["seq"]))
            self.on_heard("kept")
        else:
            await asyncio.sleep(0.1)

    async def _request_completion(self, client: httpx2.AsyncClient, request: CallerRequest) -> None:
        stream = request.style == "stream"
        body = {"model": "main", "stream": stream, "messages": [{"role": "user", "content": request.text}]}
        headers = {"X-Everhold-Session": self.name, "Idempotency-Key": request.id}
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            if response.status_code == 200 and stream:
                text, failed = "", ""
                async for line in response.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    event = json.loads(line.removeprefix("data: "))
                    failed = _find_final_error(event) or failed
                    for choice in event.get("choices", ()):
                        text += choice["delta"].get("content") or ""
                        self.on_heard("words")
                        if choice["finish_reason"] is not None:
                            request.replies.append(text)
                request.failed = failed or request.failed
                return
            whole = json.loads(await response.aread())
            if response.status_code == 200:
                request.replies.append(str(whole["choices"][0]["message"]["content"]))
            elif response.headers.get("x-should-retry") == "false":
                request.failed = str(whole["error"])
            else:
                await asyncio.sleep(0.1)


def _find_final_error(event: Any) -> str:
    """Return the final error of a stream. A temporary error is retried instead."""
    error = event.get("error") or {}
    return "" if error.get("type") in (None, "overloaded", "timeout", "closing") else str(error)


class GatewayKillResult(Struct, kw_only=True):
    """The failures of a trial, and the numbers of its events."""

    failures: list[str]
    kills: int
    fault_counts: Counter[str]
    requests: int
    answered: int

    def __str__(self) -> str:
        told = f"{self.kills} kills, {self.requests} messages, {self.answered} answered, {dict(self.fault_counts)}"
        return "\n".join([told, *(f"  FAILED {text}" for text in self.failures)])


class CallerTrigger:
    """Signals when a caller receives something, which is the worst moment for a kill."""

    def __init__(self) -> None:
        self._awaited = ""
        self._triggered = asyncio.Event()

    def __call__(self, what: str) -> None:
        if what == self._awaited:
            self._triggered.set()

    async def wait_for(self, what: str, *, seconds: float) -> None:
        self._awaited = what
        self._triggered.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._triggered.wait(), seconds)


async def run_kills(
    gateway: KillableGateway, model: ModelServer, *, seed: int, kills: int, at: str = "", ill: bool = True
) -> GatewayKillResult:
    """Kill the gateway repeatedly while callers retry and the model has faults; then finish all work and compare.

    `at`: kill when a caller receives a confirmation (`kept`) or text (`words`); otherwise at these and random moments.
    """
    rng = random.Random(f"web/{seed}")
    vendor, trigger = FaultyModelScript(seed), CallerTrigger()
    model.default = vendor
    vendor.calm = not ill
    callers = [
        GatewayCaller(
            gateway,
            f"http-{n}",
            random.Random(f"{seed}/{n}"),
            on_heard=trigger,
            first_style=REQUEST_STYLES[n % len(REQUEST_STYLES)],
        )
        for n in range(CALLER_COUNT)
    ]
    talking = [asyncio.create_task(caller.run()) for caller in callers]
    failures: list[str] = []
    try:
        for _ in range(kills):
            await gateway.start()
            if moment := at or rng.choice(("", "kept", "words")):
                await trigger.wait_for(moment, seconds=PATIENCE_SECONDS if at else MAX_TRIGGER_SECONDS)
            else:
                await asyncio.sleep(0.02 + rng.random() * rng.choice((0.2, 0.8, 1.6)))
            await gateway.kill()
        await gateway.start()
        if ill:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(vendor.all_faults_met.wait(), PATIENCE_SECONDS)
        vendor.calm = True
        for caller in callers:
            caller.stop = True
        await asyncio.wait(talking, timeout=PATIENCE_SECONDS)
        failures += [
            f"{caller.name} has no outcome of {caller.requests[-1].text}"
            for caller, task in zip(callers, talking, strict=True)
            if not task.done()
        ]
        await _wait_until_idle(gateway)
        await gateway.kill()
    finally:
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
    contents = await verdict.read_store(gateway.home.path, name="everhold.db")
    failures += [*contents.problems, *verdict.check_answered(contents), *check_callers(callers, contents)]
    requests = [request for caller in callers for request in caller.requests]
    answered = sum(bool(request.replies) for request in requests)
    return GatewayKillResult(
        failures=failures, kills=kills, fault_counts=vendor.fault_counts, requests=len(requests), answered=answered
    )


async def _wait_until_idle(gateway: KillableGateway) -> None:
    """Wait until no message is pending."""
    until = time.monotonic() + PATIENCE_SECONDS
    async with gateway.open_client(seconds=PATIENCE_SECONDS) as client:
        while time.monotonic() < until:
            sessions = (await client.get("/api/sessions")).json()["sessions"]
            if not any(session["pending"] or session["state"] != "idle" for session in sessions):
                return
            await asyncio.sleep(0.05)


def check_callers(callers: Sequence[GatewayCaller], contents: verdict.StoreContents) -> Iterator[str]:
    """Yield the differences between the callers' responses and the log, the order included."""
    for caller in callers:
        places: list[int] = []
        for request in caller.requests:
            found = [
                (log, entry)
                for log in contents.logs
                for entry in log.entries
                if isinstance(entry.body, Heard) and TOKEN_PATTERN.findall(entry.body.text) == [request.text]
            ]
            if len(found) > 1:
                yield f"{request.text} is in the log {len(found)} times"
            if not found:
                if request.acknowledged or request.replies or request.failed:
                    yield f"{request.text} was confirmed to its caller and is not in the log"
                continue
            log, entry = found[0]
            places.append(entry.pos)
            if any(place != (log.session, entry.seq) for place in request.acknowledged):
                yield f"{request.text} is entry {entry.seq}, but its caller received {request.acknowledged}"
            yield from _check_reply(request, log, log.taken.get(entry.seq, [0])[-1])
        if places != sorted(places):
            yield f"the log has the messages of {caller.name} in another order: {places}"


def _check_reply(request: CallerRequest, log: verdict.SessionHistory, op: int) -> Iterator[str]:
    said = log.said.get(op, [])
    for reply in request.replies:
        if len(said) != 1 or not reply.endswith(said[0]) or (request.style == "whole" and reply != said[0]):
            yield f"the caller of {request.text} received {reply!r}, the log has {said}"
    if request.failed and (said or not log.notified[op]):
        yield f"the caller of {request.text} received {request.failed!r}, the log has {said}"
