"""What a compression costs besides its model call, and how long chats wait because of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import apsw

from bench.history import ENTRIES_PER_TURN, SessionHistory
from bench.in_process import InProcessGateway, open_store, temporary_directory
from bench.table import Row, at_most, interleave, median, ratio
from everhold.core.entries import (
    OWN_OPERATION,
    Began,
    Changed,
    ChatLocation,
    Compressed,
    CompressionRequested,
    Ended,
    EntryDraft,
    ModelUsage,
)
from everhold.engine.agent_runtime import AgentRuntime
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.store import Change, Session, Step, Wakeup

SIZES = (200, 2_000, 20_000)
LINEAR = 1.5
"""How much more an entry may cost in the longest session than in the middle one. The work is linear in the entries."""
SUMMARY = "They went through the list, one by one, and agreed on most of it. " * 8
MODEL_SECONDS = 0.4
ADDED_MS = 100.0
BUSY = 1.5


class SlowSummariser:
    """A model that returns its summary after a delay, and measures how long its calls took."""

    name = "summariser"
    context_tokens = 10_000_000

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.asked = 0
        self.took = 0.0

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        self.asked += 1
        started = time.perf_counter()
        await asyncio.sleep(self.seconds)
        self.took += time.perf_counter() - started
        return ModelResponse(text=SUMMARY, model=self.name, usage=ModelUsage(input=9, output=9))


class CompressingGateway(InProcessGateway):
    """A gateway with its own context limits and its own summariser."""

    def __init__(
        self, directory: Path, *, summariser: SlowSummariser, synchronous: str = "FULL", **settings: object
    ) -> None:
        super().__init__(open_store(directory, synchronous=synchronous), context_tokens=10_000_000)
        self.summariser = summariser
        self._runtime = AgentRuntime(
            agent="main",
            system="You answer at once.",
            models=self._runtime.models,
            summariser=summariser,
            **settings,  # type: ignore[arg-type]  # fields of an AgentRuntime
        )

    async def request_compression(self, session: Session) -> None:
        """Commit what `/compress` commits."""
        bodies = (Began(type="command", consumer="commands"), Changed(change=CompressionRequested()), Ended())
        await self.store.commit(
            Change(
                step=Step.COMMAND,
                session=session.id,
                at=time.time(),
                entries=tuple(EntryDraft(body=body, author="operator", op=OWN_OPERATION) for body in bodies),
                wakeups=(Wakeup(consumer="compression"),),
            )
        )
        self.wakeups.notify(session.id)

    async def wait_until_compressed(self, session: str) -> None:
        """Wait until a compression has ended."""
        # a caller outside the engine gets no event
        while not await self.store.list_operations(session, types=("compression",), states=("done",)):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def compression_rows(rounds: int) -> list[Row]:
    return [*cost_rows(rounds), *wait_rows(rounds), *accept_rows(rounds)]


# -- what it costs -----------------------------------------------------------------------------------------------------


def cost_rows(rounds: int) -> list[Row]:
    found = interleave(max(3, rounds // 2), {str(size): lambda n=size: cost(n) for size in SIZES})  # type: ignore[misc]
    rows = []
    for before, size in zip((0, *SIZES), SIZES, strict=False):
        mine = found[str(size)]
        what = f"compression of {size:,} entries without its model call, CPU"
        if size != SIZES[-1]:
            rows.append(Row(what=what, value=median(mine), unit="ms"))
        else:
            each = [a / b for a, b in zip(mine, found[str(before)], strict=True)]
            share = median(each) / (size / before)
            beside = f"per entry, beside {before:,} entries"
            rows.append(at_most(what, median(mine), "ms", LINEAR, beside=beside, ratio=share))
    with temporary_directory() as directory:
        grown = asyncio.run(_bytes(directory))
    rows.append(at_most("written for a compression of 2,000 entries", grown / 1024, "KiB", 16))
    return rows


class FixedPlaceHistory(SessionHistory):
    """A history in which every reply goes to the same message."""

    def _place(self) -> ChatLocation:
        return ChatLocation(platform="table", account="main", chat=self.chat, message="m")


@contextlib.asynccontextmanager
async def aged(directory: Path, entries: int, **options: object) -> AsyncIterator[tuple[CompressingGateway, Session]]:
    store = open_store(directory, synchronous="OFF")
    await FixedPlaceHistory(store, "s-old", chat="old").live(entries // ENTRIES_PER_TURN)
    await store.close()
    async with CompressingGateway(directory, summariser=SlowSummariser(), **options).open() as gateway:  # type: ignore[arg-type]
        assert isinstance(gateway, CompressingGateway)
        yield gateway, await gateway.store.get_session("s-old")


def cost(entries: int) -> float:
    """CPU milliseconds from the request to the committed compression."""

    async def run(directory: Path) -> float:
        async with aged(directory, entries) as (gateway, session):
            await gateway.wait_until_idle()
            started = time.process_time()
            await gateway.request_compression(session)
            await gateway.wait_until_compressed(session.id)
            await gateway.wait_until_idle()
            return (time.process_time() - started) * 1e3

    with temporary_directory() as directory:
        return asyncio.run(run(directory))


async def _bytes(directory: Path) -> int:
    """Bytes that a compression adds to the log."""
    async with aged(directory, 2_000) as (gateway, session):
        await gateway.request_compression(session)
        await gateway.wait_until_compressed(session.id)
        await gateway.wait_until_idle()
        new = await gateway.store.list_entries(session.id, after=session.last_seq)
        assert any(isinstance(entry.body, Compressed) for entry in new)
    db = apsw.Connection(str(directory / "log.db"))
    ((size,),) = db.execute(
        "select sum(length(body) + length(salt) + length(digest) + 64) from entries where session = ? and seq > ?",
        (session.id, session.last_seq),
    )
    db.close()
    assert isinstance(size, int)
    return size


# -- how long a chat waits ---------------------------------------------------------------------------------------------


def wait_rows(rounds: int) -> list[Row]:
    found = interleave(
        max(3, rounds),
        {"calm": lambda: measure_turn(compressing=False), "busy": lambda: measure_turn(compressing=True)},
    )
    added = [blocking() for _ in range(max(3, rounds))]
    waits = [a - b for a, b in zip(found["busy"], found["calm"], strict=True)]
    return [
        at_most(
            f"a chat waits for a background compression of {MODEL_SECONDS * 1e3:.0f} ms",
            max(0.0, median(waits)),
            "ms",
            MODEL_SECONDS * 1e3 / 10,
            beside=f"a turn: {median(found['busy']):.0f} ms, without a compression {median(found['calm']):.0f} ms",
        ),
        at_most("a blocking compression adds to its model call", median(added), "ms", ADDED_MS),
    ]


def measure_turn(*, compressing: bool) -> float:
    """Milliseconds of the median turn, with or without a compression in the background."""

    async def run(directory: Path) -> float:
        summariser = SlowSummariser(MODEL_SECONDS)
        settings: dict[str, object] = (
            {"soft_share": 0.0003, "hard_share": 0.0009, "keep_turns": 1}
            if compressing
            else {"soft_share": 8.0, "hard_share": 9.0}
        )
        async with CompressingGateway(directory, summariser=summariser, **settings).open() as gateway:  # type: ignore[arg-type]
            assert isinstance(gateway, CompressingGateway)
            for _ in range(24):  # up to the soft limit, so that a compression starts
                await gateway.turn("chat")
            took = []
            for _ in range(20):
                started = time.perf_counter()
                await gateway.turn("chat")
                took.append((time.perf_counter() - started) * 1e3)
            assert bool(summariser.asked) is compressing, "the background compression did not run as planned"
            gateway.summariser.seconds = 0.0
            return statistics.median(took)

    with temporary_directory() as directory:
        return asyncio.run(run(directory))


def blocking() -> float:
    """Milliseconds from a message to its reply at the hard limit, without the summary's model call."""

    async def run(directory: Path) -> float:
        summariser = SlowSummariser(MODEL_SECONDS)
        async with CompressingGateway(
            directory, summariser=summariser, soft_share=8.0, hard_share=9.0, keep_turns=2
        ).open() as gateway:
            assert isinstance(gateway, CompressingGateway)
            for _ in range(40):
                await gateway.turn("chat")
            gateway._runtime = AgentRuntime(
                agent="main",
                system="You answer at once.",
                models=gateway._runtime.models,
                summariser=summariser,
                soft_share=0.00001,
                hard_share=0.00002,
                keep_turns=2,
                compress_in_background=False,
            )
            started = time.perf_counter()
            await gateway.turn("chat")
            whole = time.perf_counter() - started
            assert summariser.asked == 1, summariser.asked
            return (whole - summariser.took) * 1e3

    with temporary_directory() as directory:
        return asyncio.run(run(directory))


# -- other sessions ----------------------------------------------------------------------------------------------------


def accept_rows(rounds: int) -> list[Row]:
    rows = []
    for sessions in (9, 100):
        found = interleave(
            max(3, rounds),
            {"idle": lambda: accepting(0), "busy": lambda n=sessions: accepting(n)},  # type: ignore[misc]
        )
        share = ratio(found["busy"], found["idle"])
        rows.append(
            at_most(
                f"accept, p95, while {sessions} sessions are compressed",
                median(found["busy"]),
                "ms",
                BUSY,
                beside=f"idle {median(found['idle']):.2f} ms",
                ratio=share,
            )
        )
    return rows


def accepting(compressing: int, *, messages: int = 300, spread: float = 2.0) -> float:
    """p95 milliseconds to accept a message, over `spread` seconds in which `compressing` sessions are compressed."""

    async def run(directory: Path) -> float:
        store = open_store(directory, synchronous="OFF")
        for number in range(compressing):
            await FixedPlaceHistory(store, f"s-{number}", chat=f"old{number}").live(12)
        await store.close()
        async with CompressingGateway(directory, summariser=SlowSummariser(0.2), keep_turns=2).open() as gateway:
            assert isinstance(gateway, CompressingGateway)
            await gateway.accept_message("new")
            await gateway.wait_until_idle()

            async def compress() -> None:
                for number in range(compressing):
                    await gateway.request_compression(await gateway.store.get_session(f"s-{number}"))
                    await asyncio.sleep(spread / 2 / compressing)

            work = asyncio.create_task(compress())
            took = []
            for number in range(messages):
                started = time.perf_counter()
                await gateway.accept_message(f"new{number % 7}")
                took.append((time.perf_counter() - started) * 1e3)
                await asyncio.sleep(spread / messages)
            await work
            assert gateway.summariser.asked == compressing, (gateway.summariser.asked, compressing)
            return statistics.quantiles(took, n=20)[-1]

    with temporary_directory() as directory:
        return asyncio.run(run(directory))


if __name__ == "__main__":
    from bench.table import render

    print(render(compression_rows(int(os.environ.get("ROUNDS", "3")))))
