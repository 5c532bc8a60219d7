"""A whole everhold in this process, with a model and a platform that cost nothing: what is left is everhold itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from everhold.cli.commands.up import loops
from everhold.core.access import Admission
from everhold.core.entries import Place, Usage
from everhold.flow.accept import Accept
from everhold.flow.gates import Bells, Gates
from everhold.flow.memory import Attached
from everhold.flow.runtime import Runtime
from everhold.flow.supervise import Supervisor
from everhold.ports.log import Log
from everhold.ports.model import Answer, Request
from everhold.ports.platform import Accept as Door, Delivery, Drafting, Incoming, Outgoing, Platform, Verdict
from everhold.stores.sqlite import SqliteStore

T = TypeVar("T")

REPLY = "Certainly. " + "That is how it was done before, and how it should be done again. " * 4
MESSAGE = "What about the other one? " + "I have thought about it for a while and came to no conclusion. " * 4
"""About 280 characters each: what people and models write."""


class Clock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class Chance:
    def bytes(self, n: int, /) -> bytes:
        return os.urandom(n)

    def random(self) -> float:
        return random.random()


class Silence:
    """A log whose level is off."""

    def debug(self, event: str, /, **fields: object) -> None: ...

    def info(self, event: str, /, **fields: object) -> None: ...

    def warning(self, event: str, /, **fields: object) -> None: ...

    def error(self, event: str, /, **fields: object) -> None:
        raise AssertionError(f"{event}: {fields}")

    def bind(self, **fields: object) -> Log:
        return self


class Instant:
    """A model that has its answer ready."""

    name = "instant"

    def __init__(self, context_tokens: int = 100_000) -> None:
        self.context_tokens = context_tokens

    async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
        return Answer(text=REPLY, model=self.name, usage=Usage(output=60))


class Table:
    """A keyed platform in this process: what is sent is delivered at once."""

    name = "table"
    account = "main"
    delivery = Delivery.KEYED
    text_limit = 4_000
    visible_after = 0.0

    def __init__(self) -> None:
        self.sent = 0
        self._waiting: dict[str, asyncio.Event] = {}

    async def listen(self, accept: Door) -> None: ...

    async def send(self, out: Outgoing) -> str:
        self.sent += 1
        self.served(out.to.chat).set()
        return out.key

    async def probe(self, out: Outgoing) -> str | None:
        return None

    def served(self, chat: str) -> asyncio.Event:
        return self._waiting.setdefault(chat, asyncio.Event())


class House:
    """Store, door and workers."""

    def __init__(self, store: SqliteStore, *, context_tokens: int = 100_000) -> None:
        self.store = store
        self.gates = Gates(store=store, clock=Clock(), chance=Chance(), log=Silence(), owner=os.urandom(4).hex())
        self.bells = Bells()
        self.table = Table()
        model = Instant(context_tokens)
        self._runtime = Runtime(agent="main", system="You answer at once.", models=(model,), summariser=model)
        self.supervisor = Supervisor(self.gates, runtimes=self, bells=self.bells)
        self.accept = Accept(self.gates, reception=self._admit, bells=self.bells)
        self._numbers = iter(range(10**9))

    async def _admit(self, incoming: Incoming) -> Admission:
        return Admission(agent="main", person="ada")

    async def hear(self, chat: str, text: str = MESSAGE) -> Verdict:
        origin = Place(platform="table", account="main", chat=chat, message=f"{self.gates.owner}-{next(self._numbers)}")
        return await self.accept(Incoming(origin=origin, text=text, sender="ada"))

    async def turn(self, chat: str) -> None:
        """From a message at the door to its answer on the table."""
        served = self.table.served(chat)
        served.clear()
        await self.hear(chat)
        await served.wait()

    async def rest(self) -> None:
        """Until everybody has put down what they were at."""
        # nobody rings when there is nothing left to do
        while self.supervisor.tasks or await self.store.get_next_due(at=time.time()) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[House]:
        await self.store.revoke_leases(owner=self.gates.owner, at=time.time())
        work = asyncio.create_task(self.supervisor.dispatch())
        yield self
        self.supervisor.stopping = True
        self.bells.work.set()
        await work
        await self.supervisor.drain(10.0)
        await self.store.close()

    # -- what the flows ask for

    def runtime(self, agent: str, choices: Mapping[str, str]) -> Runtime:
        return self._runtime

    def platform(self, name: str, account: str) -> Platform | None:
        return self.table

    def drafting(self, name: str, account: str) -> Drafting | None:
        return None

    def in_doubt(self, reader: str, agent: str) -> str:
        return "resend"

    def memory(self, instance: str, agent: str) -> Attached | None:
        return None

    def attached(self) -> list[Attached]:
        return []


def run_here(work: Coroutine[Any, Any, T]) -> T:
    """To its end, on the loop that `everhold up` runs on."""
    with asyncio.Runner(loop_factory=loops()) as runner:
        return runner.run(work)


def open_store(directory: Path, *, synchronous: str = "FULL") -> SqliteStore:
    return SqliteStore.open(directory / "log.db", chance=Chance(), synchronous=synchronous)


@contextlib.contextmanager
def room() -> Iterator[Path]:
    """A directory on the disk that everything is measured on."""
    directory = Path(tempfile.mkdtemp(prefix="everhold-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)
