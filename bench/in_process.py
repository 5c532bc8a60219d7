"""A gateway in this process, with a model and a platform that cost nothing, so that only everhold is measured."""

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

from everhold.cli.commands.up import choose_loop_factory
from everhold.core.access import AdmissionDecision
from everhold.core.entries import ChatLocation, ModelUsage
from everhold.engine.agent_runtime import AgentRuntime
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.memory_client import MemoryClient
from everhold.engine.supervisor import WorkerSupervisor
from everhold.ingress.accept import MessageAcceptor
from everhold.ports.log import EventLogger
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.platform import (
    AcceptMessage,
    AcceptResult,
    DeliveryGuarantee,
    IncomingMessage,
    OutgoingMessage,
    Platform,
    SupportsDrafts,
)
from everhold.ports.store import Store
from everhold.stores.sqlite import SqliteStore

T = TypeVar("T")

REPLY = "Certainly. " + "That is how it was done before, and how it should be done again. " * 4
MESSAGE = "What about the other one? " + "I have thought about it for a while and came to no conclusion. " * 4
"""About 280 characters each, a usual length of messages and replies."""


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class SystemRandom:
    def bytes(self, n: int, /) -> bytes:
        return os.urandom(n)

    def random(self) -> float:
        return random.random()


class SilentLogger:
    """A logger that discards everything below errors and fails on an error."""

    def debug(self, event: str, /, **fields: object) -> None: ...

    def info(self, event: str, /, **fields: object) -> None: ...

    def warning(self, event: str, /, **fields: object) -> None: ...

    def error(self, event: str, /, **fields: object) -> None:
        raise AssertionError(f"{event}: {fields}")

    def bind(self, **fields: object) -> EventLogger:
        return self


class InstantModel:
    """A model that answers immediately."""

    name = "instant"

    def __init__(self, context_tokens: int = 100_000) -> None:
        self.context_tokens = context_tokens

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        return ModelResponse(text=REPLY, model=self.name, usage=ModelUsage(output=60))


class InstantPlatform:
    """A keyed platform in this process that delivers every message immediately."""

    name = "table"
    account = "main"
    delivery = DeliveryGuarantee.KEYED
    text_limit = 4_000
    visible_after = 0.0
    settle_seconds = 0.0

    def __init__(self) -> None:
        self.sent = 0
        self._delivered: dict[str, asyncio.Event] = {}

    async def listen(self, accept: AcceptMessage) -> None: ...

    async def send(self, out: OutgoingMessage) -> str:
        self.sent += 1
        self.get_delivered_event(out.to.chat).set()
        return out.key

    async def probe(self, out: OutgoingMessage) -> str | None:
        return None

    def get_delivered_event(self, chat: str) -> asyncio.Event:
        return self._delivered.setdefault(chat, asyncio.Event())


class InProcessGateway:
    """A store, ingress and the workers."""

    def __init__(self, store: Store, *, context_tokens: int = 100_000, model: InstantModel | None = None) -> None:
        self.store = store
        self.gates = Gates(
            store=store, clock=SystemClock(), chance=SystemRandom(), log=SilentLogger(), owner=os.urandom(4).hex()
        )
        self.wakeups = Wakeups()
        self.platform = InstantPlatform()
        model = model or InstantModel(context_tokens)
        self._runtime = AgentRuntime(agent="main", system="You answer at once.", models=(model,), summariser=model)
        self.supervisor = WorkerSupervisor(self.gates, runtimes=self, wakeups=self.wakeups)
        self.accept = MessageAcceptor(self.gates, admit=self._admit, wakeups=self.wakeups)
        self._numbers = iter(range(10**9))

    async def _admit(self, incoming: IncomingMessage) -> AdmissionDecision:
        return AdmissionDecision(agent="main", identity="ada")

    async def accept_message(self, chat: str, text: str = MESSAGE) -> AcceptResult:
        origin = ChatLocation(
            platform="table", account="main", chat=chat, message=f"{self.gates.owner}-{next(self._numbers)}"
        )
        return await self.accept(IncomingMessage(origin=origin, text=text, sender="ada"))

    async def turn(self, chat: str) -> None:
        """Accept a message and wait until its reply is delivered."""
        delivered = self.platform.get_delivered_event(chat)
        delivered.clear()
        await self.accept_message(chat)
        await delivered.wait()

    async def wait_until_idle(self) -> None:
        """Wait until no worker runs and no cursor is due."""
        # the supervisor sends no event when it becomes idle
        while self.supervisor.tasks or await self.store.get_next_due() is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[InProcessGateway]:
        if self.store.is_exclusive:
            await self.store.revoke_leases(owner=self.gates.owner)
        work = asyncio.create_task(self.supervisor.dispatch())
        yield self
        self.supervisor.is_stopping = True
        self.wakeups.work_available.set()
        await work
        await self.supervisor.drain(10.0)
        await self.store.close()

    # -- what the workers need

    def get_runtime(self, agent: str, choices: Mapping[str, str]) -> AgentRuntime:
        return self._runtime

    def find_platform(self, name: str, account: str) -> Platform | None:
        return self.platform

    def find_draft_platform(self, name: str, account: str) -> SupportsDrafts | None:
        return None

    def get_in_doubt_policy(self, consumer: str, agent: str) -> str:
        return "resend"

    def find_memory(self, instance: str, agent: str) -> MemoryClient | None:
        return None

    def list_memories(self) -> list[MemoryClient]:
        return []


def run_on_gateway_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the kind of event loop that `everhold up` uses."""
    with asyncio.Runner(loop_factory=choose_loop_factory()) as runner:
        return runner.run(work)


def open_store(directory: Path, *, synchronous: str = "FULL") -> SqliteStore:
    return SqliteStore.open(directory / "log.db", chance=SystemRandom(), synchronous=synchronous)


@contextlib.contextmanager
def temporary_directory() -> Iterator[Path]:
    """Make a directory on the disk that all measurements use, and delete it at the end."""
    directory = Path(tempfile.mkdtemp(prefix="everhold-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)
