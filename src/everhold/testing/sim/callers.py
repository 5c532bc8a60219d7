"""Simulated HTTP callers. They send requests, disconnect before the end, and repeat a request with the same key."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct, field

from everhold.testing.sim.http import CallerResponse, SimApi
from everhold.testing.sim.invariants import InvariantWitness
from everhold.testing.sim.world import SimWorld

REQUEST_STYLES: Final = ("post", "whole", "stream", "stream", "aside")
"""`post`: send a message and leave; `whole`: wait for the reply; `stream`: read its deltas; `aside`: no session."""
PATIENCE_SECONDS: Final = (0.5, 5.0, 40.0, 200.0)
MAX_STATELESS_TRIES: Final = 3
REQUESTS_PER_CALLER: Final = 4


class SimCallerRequest(Struct):
    """One message of a caller, and its results."""

    id: str
    chat: str
    text: str
    style: str
    acknowledged: bool = False
    """Whether a response said that the message is stored."""
    replies: list[str] = field(default_factory=list)
    """The reply of each complete response."""
    refused: str = ""
    """Why the message will not be answered."""


class SimCaller:
    """A program with its own session. It repeats each request until it has received the outcome."""

    def __init__(self, world: SimWorld, witness: InvariantWitness, number: int) -> None:
        self.world = world
        self.witness = witness
        self.name = f"c{number}"
        self.rng = random.Random(f"{world.seed}/{self.name}")
        self.requests: list[SimCallerRequest] = []
        self.open_requests = 0
        """Requests without an outcome."""
        self.finished = False
        self.find_api: Callable[[], SimApi | None] = lambda: None

    async def run(self) -> None:
        await asyncio.sleep(self.rng.random() * 5)
        for number in range(1, REQUESTS_PER_CALLER + 1):
            text = f"{self.name}.m{number} hush-{self.rng.randbytes(4).hex()}"
            request = SimCallerRequest(
                id=f"{self.name}-{number}", chat=self.name, text=text, style=self.rng.choice(REQUEST_STYLES)
            )
            self.requests.append(request)
            self.open_requests += 1
            task = self.world.loop.create_task(self._run_request(request))
            if self.rng.random() < 0.5:
                await asyncio.wait((task,))
            await asyncio.sleep(self.rng.choice((0.3, 3.0, 30.0)) * self.rng.random())
        self.finished = True

    async def _run_request(self, request: SimCallerRequest) -> None:
        tries = 0
        while not request.replies and not request.refused and not (request.acknowledged and request.style == "post"):
            tries += 1
            if request.style == "aside" and tries > MAX_STATELESS_TRIES:
                break
            await self._try_request(request)
            await asyncio.sleep(self.world.draw_between(0.1, 3))
        if self.rng.random() < 0.4 and request.style != "aside":
            await self._try_request(request)  # a repeated request must have the same result
        self.open_requests -= 1

    async def _try_request(self, request: SimCallerRequest) -> None:
        api = self.find_api()
        if api is None:
            return
        patience = PATIENCE_SECONDS[-1] if self.world.calm else self.rng.choice(PATIENCE_SECONDS)
        if request.style == "post":
            body: object = {"chat": request.chat, "text": request.text, "id": request.id}
            heard = await api.send_request("/api/messages", body, headers={}, patience=patience)
            request.acknowledged = request.acknowledged or (heard.is_complete and heard.status in (200, 202))
            return
        headers = {"idempotency-key": request.id}
        if request.style != "aside":
            headers["x-everhold-session"] = request.chat
        said = [{"role": "user", "content": request.text}]
        body = {"model": "main", "messages": said, "stream": request.style == "stream"}
        heard = await api.send_request("/v1/chat/completions", body, headers=headers, patience=patience)
        if not heard.is_complete:
            self.world.stats["callers disconnected"] += 1
        elif heard.status == 200:
            self._read_response(request, heard)
        elif heard.headers.get("x-should-retry") == "false":
            request.refused = str(heard.json["error"])

    def _read_response(self, request: SimCallerRequest, heard: CallerResponse) -> None:
        if request.style != "stream":
            self._record_reply(request, heard.json["choices"][0]["message"]["content"] or "")
            return
        text, over = "", False
        for line in heard.body.decode().splitlines():
            if not line.startswith("data: {"):
                continue
            event = msgspec.json.decode(line.removeprefix("data: "))
            for choice in event.get("choices", ()):
                text += choice["delta"].get("content") or ""
                over = over or choice["finish_reason"] is not None
        if over:
            self._record_reply(request, text)

    def _record_reply(self, request: SimCallerRequest, text: str) -> None:
        self.world.record(self.name, f"receives {text!r}")
        self.world.stats["callers answered"] += 1
        request.replies.append(text)
        if request.style != "aside":
            request.acknowledged = True
            self.witness.check_reply(request.id, text)
