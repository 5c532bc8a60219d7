"""What a compression costs besides its model call, what it makes a chat wait for, and how good it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import apsw

from bench.house import House, open_store, room
from bench.past import ENTRIES_A_TURN, Past
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
"""How much more an entry may cost in the longest than in the middle one: the work grows as what is folded does."""
SUMMARY = "They went through the list, one by one, and agreed on most of it. " * 8
MODEL_SECONDS = 0.4
ADDED_MS = 100.0
BUSY = 1.5


class Summing:
    """Writes its summary after a while, and remembers how long it was asked for."""

    name = "summing"
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


class Folding(House):
    """A house whose window and summaries are its own."""

    def __init__(self, directory: Path, *, summing: Summing, synchronous: str = "FULL", **settings: object) -> None:
        super().__init__(open_store(directory, synchronous=synchronous), context_tokens=10_000_000)
        self.summing = summing
        self._runtime = AgentRuntime(
            agent="main",
            system="You answer at once.",
            models=self._runtime.models,
            summariser=summing,
            **settings,  # type: ignore[arg-type]  # fields of a Runtime
        )

    async def want(self, session: Session) -> None:
        """What `/compress` commits."""
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
        self.bells.notify(session.id)

    async def folded(self, session: str) -> None:
        """Until there is a fold."""
        # nobody rings for those who look from outside
        while not await self.store.list_operations(session, types=("compression",), states=("done",)):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def fold_rows(rounds: int) -> list[Row]:
    return [*cost_rows(rounds), *wait_rows(rounds), *accept_rows(rounds)]


# -- what it costs -----------------------------------------------------------------------------------------------------


def cost_rows(rounds: int) -> list[Row]:
    found = interleave(max(3, rounds // 2), {str(size): lambda n=size: cost(n) for size in SIZES})  # type: ignore[misc]
    rows = []
    for before, size in zip((0, *SIZES), SIZES, strict=False):
        mine = found[str(size)]
        what = f"fold of {size:,} entries without its model call, CPU"
        if size != SIZES[-1]:
            rows.append(Row(what=what, value=median(mine), unit="ms"))
        else:
            each = [a / b for a, b in zip(mine, found[str(before)], strict=True)]
            share = median(each) / (size / before)
            beside = f"per entry, beside {before:,} entries"
            rows.append(at_most(what, median(mine), "ms", LINEAR, beside=beside, ratio=share))
    with room() as directory:
        grown = asyncio.run(_bytes(directory))
    rows.append(at_most("written for a fold of 2,000 entries", grown / 1024, "KiB", 16))
    return rows


class Plain(Past):
    """One that is answered where it asked."""

    def _place(self) -> ChatLocation:
        return ChatLocation(platform="table", account="main", chat=self.chat, message="m")


@contextlib.asynccontextmanager
async def aged(directory: Path, entries: int, **options: object) -> AsyncIterator[tuple[Folding, Session]]:
    store = open_store(directory, synchronous="OFF")
    await Plain(store, "s-old", chat="old").live(entries // ENTRIES_A_TURN)
    await store.close()
    async with Folding(directory, summing=Summing(), **options).open() as house:  # type: ignore[arg-type]
        assert isinstance(house, Folding)
        yield house, await house.store.get_session("s-old")


def cost(entries: int) -> float:
    """CPU milliseconds from the wish to the committed fold."""

    async def run(directory: Path) -> float:
        async with aged(directory, entries) as (house, session):
            await house.rest()
            started = time.process_time()
            await house.want(session)
            await house.folded(session.id)
            await house.rest()
            return (time.process_time() - started) * 1e3

    with room() as directory:
        return asyncio.run(run(directory))


async def _bytes(directory: Path) -> int:
    """Bytes of all that a fold puts into the log."""
    async with aged(directory, 2_000) as (house, session):
        await house.want(session)
        await house.folded(session.id)
        await house.rest()
        new = await house.store.list_entries(session.id, after=session.last_seq)
        assert any(isinstance(entry.body, Compressed) for entry in new)
        await house.store.close()
    db = apsw.Connection(str(directory / "log.db"))
    ((size,),) = db.execute(
        "select sum(length(body) + length(salt) + length(digest) + 64) from entries where session = ? and seq > ?",
        (session.id, session.last_seq),
    )
    db.close()
    assert isinstance(size, int)
    return size


# -- who waits ---------------------------------------------------------------------------------------------------------


def wait_rows(rounds: int) -> list[Row]:
    found = interleave(max(3, rounds), {"calm": lambda: beside(folding=False), "folding": lambda: beside(folding=True)})
    added = [blocking() for _ in range(max(3, rounds))]
    waits = [a - b for a, b in zip(found["folding"], found["calm"], strict=True)]
    return [
        at_most(
            f"a chat waits for a fold of {MODEL_SECONDS * 1e3:.0f} ms that is made ahead",
            max(0.0, median(waits)),
            "ms",
            MODEL_SECONDS * 1e3 / 10,
            beside=f"a turn: {median(found['folding']):.0f} ms, without a fold {median(found['calm']):.0f} ms",
        ),
        at_most("a blocking fold adds to its model call", median(added), "ms", ADDED_MS),
    ]


def beside(*, folding: bool) -> float:
    """Milliseconds of the median turn, while a summary is being made beside it or not."""

    async def run(directory: Path) -> float:
        summing = Summing(MODEL_SECONDS)
        settings: dict[str, object] = (
            {"soft": 0.00001, "hard": 9.0, "keep": 1} if folding else {"soft": 8.0, "hard": 9.0}
        )
        async with Folding(directory, summing=summing, **settings).open() as house:  # type: ignore[arg-type]
            assert isinstance(house, Folding)
            for _ in range(4):
                await house.turn("chat")
            took = []
            for _ in range(20):
                started = time.perf_counter()
                await house.turn("chat")
                took.append((time.perf_counter() - started) * 1e3)
            assert bool(summing.asked) is folding, "nothing was folded: this measures nothing"
            house.summing.seconds = 0.0
            return statistics.median(took)

    with room() as directory:
        return asyncio.run(run(directory))


def blocking() -> float:
    """Milliseconds from the message to its answer at the hard limit, besides the summary itself."""

    async def run(directory: Path) -> float:
        summing = Summing(MODEL_SECONDS)
        async with Folding(directory, summing=summing, soft=8.0, hard=9.0, keep=2).open() as house:
            assert isinstance(house, Folding)
            for _ in range(40):
                await house.turn("chat")
            house._runtime = AgentRuntime(
                agent="main",
                system="You answer at once.",
                models=house._runtime.models,
                summariser=summing,
                soft_share=0.00001,
                hard_share=0.00002,
                keep_turns=2,
                compress_in_background=False,
            )
            started = time.perf_counter()
            await house.turn("chat")
            whole = time.perf_counter() - started
            assert summing.asked == 1, summing.asked
            return (whole - summing.took) * 1e3

    with room() as directory:
        return asyncio.run(run(directory))


# -- everybody else ----------------------------------------------------------------------------------------------------


def accept_rows(rounds: int) -> list[Row]:
    rows = []
    for sessions in (9, 100):
        found = interleave(
            max(3, rounds),
            {"idle": lambda: accepting(0), "folding": lambda n=sessions: accepting(n)},  # type: ignore[misc]
        )
        share = ratio(found["folding"], found["idle"])
        rows.append(
            at_most(
                f"accept, p95, while {sessions} sessions fold",
                median(found["folding"]),
                "ms",
                BUSY,
                beside=f"idle {median(found['idle']):.2f} ms",
                ratio=share,
            )
        )
    return rows


def accepting(folding: int, *, messages: int = 300, spread: float = 2.0) -> float:
    """p95 milliseconds to accept a message, over `spread` seconds in which `folding` sessions fold."""

    async def run(directory: Path) -> float:
        store = open_store(directory, synchronous="OFF")
        for number in range(folding):
            await Plain(store, f"s-{number}", chat=f"old{number}").live(12)
        await store.close()
        async with Folding(directory, summing=Summing(0.2), keep=2).open() as house:
            assert isinstance(house, Folding)
            await house.hear("door")
            await house.rest()

            async def compress() -> None:
                for number in range(folding):
                    await house.want(await house.store.get_session(f"s-{number}"))
                    await asyncio.sleep(spread / 2 / folding)

            work = asyncio.create_task(compress())
            took = []
            for number in range(messages):
                started = time.perf_counter()
                await house.hear(f"door{number % 7}")
                took.append((time.perf_counter() - started) * 1e3)
                await asyncio.sleep(spread / messages)
            await work
            assert house.summing.asked == folding, (house.summing.asked, folding)
            return statistics.quantiles(took, n=20)[-1]

    with room() as directory:
        return asyncio.run(run(directory))


if __name__ == "__main__":
    from bench.table import render

    print(render(fold_rows(int(os.environ.get("ROUNDS", "3")))))
