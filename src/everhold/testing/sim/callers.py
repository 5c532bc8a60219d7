"""Those who talk to the simulated house over HTTP: they ask, leave in the middle, and come back under the same name."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct, field

from everhold.testing.sim.web import Door, Heard
from everhold.testing.sim.witness import Witness
from everhold.testing.sim.world import World

MANNERS: Final = ("post", "whole", "stream", "stream", "aside")
"""Posts a message and goes; waits for the reply; reads it as it grows; asks without a conversation."""
PATIENCE: Final = (0.5, 5.0, 40.0, 200.0)
MOST_TRIES_ASIDE: Final = 3
ERRANDS: Final = 4


class Errand(Struct):
    """One thing somebody wants to have answered, and what came of it."""

    id: str
    chat: str
    text: str
    manner: str
    kept: bool = False
    """Whether somebody said that it is kept."""
    replies: list[str] = field(default_factory=list)
    """Every time it was answered."""
    refused: str = ""
    """Why it will not be answered."""


class Caller:
    """A program with a conversation of its own. What it wants it asks for until it has heard how that ended."""

    def __init__(self, world: World, witness: Witness, number: int) -> None:
        self.world = world
        self.witness = witness
        self.name = f"c{number}"
        self.dice = random.Random(f"{world.seed}/{self.name}")
        self.errands: list[Errand] = []
        self.open = 0
        """Errands that are not over."""
        self.finished = False
        self.answering: Callable[[], Door | None] = lambda: None

    async def live(self) -> None:
        await asyncio.sleep(self.dice.random() * 5)
        for number in range(1, ERRANDS + 1):
            text = f"{self.name}.m{number} hush-{self.dice.randbytes(4).hex()}"
            errand = Errand(id=f"{self.name}-{number}", chat=self.name, text=text, manner=self.dice.choice(MANNERS))
            self.errands.append(errand)
            self.open += 1
            task = self.world.loop.create_task(self._run(errand))
            if self.dice.random() < 0.5:
                await asyncio.wait((task,))
            await asyncio.sleep(self.dice.choice((0.3, 3.0, 30.0)) * self.dice.random())
        self.finished = True

    async def _run(self, errand: Errand) -> None:
        tries = 0
        while not errand.replies and not errand.refused and not (errand.kept and errand.manner == "post"):
            tries += 1
            if errand.manner == "aside" and tries > MOST_TRIES_ASIDE:
                break
            await self._try(errand)
            await asyncio.sleep(self.world.pick(0.1, 3))
        if self.dice.random() < 0.4 and errand.manner != "aside":
            await self._try(errand)  # the same once more is the same
        self.open -= 1

    async def _try(self, errand: Errand) -> None:
        door = self.answering()
        if door is None:
            return
        patience = PATIENCE[-1] if self.world.calm else self.dice.choice(PATIENCE)
        if errand.manner == "post":
            body: object = {"chat": errand.chat, "text": errand.text, "id": errand.id}
            heard = await door.ask("/api/messages", body, headers={}, patience=patience)
            errand.kept = errand.kept or (heard.whole and heard.status in (200, 202))
            return
        headers = {"idempotency-key": errand.id}
        if errand.manner != "aside":
            headers["x-everhold-session"] = errand.chat
        said = [{"role": "user", "content": errand.text}]
        body = {"model": "main", "messages": said, "stream": errand.manner == "stream"}
        heard = await door.ask("/v1/chat/completions", body, headers=headers, patience=patience)
        if not heard.whole:
            self.world.stats["callers who left"] += 1
        elif heard.status == 200:
            self._understand(errand, heard)
        elif heard.headers.get("x-should-retry") == "false":
            errand.refused = str(heard.json["error"])

    def _understand(self, errand: Errand, heard: Heard) -> None:
        if errand.manner != "stream":
            self._answered(errand, heard.json["choices"][0]["message"]["content"] or "")
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
            self._answered(errand, text)

    def _answered(self, errand: Errand, text: str) -> None:
        self.world.tell(self.name, f"hears {text!r}")
        self.world.stats["callers answered"] += 1
        errand.replies.append(text)
        if errand.manner != "aside":
            errand.kept = True
            self.witness.heard(errand.id, text)
