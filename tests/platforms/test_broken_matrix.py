"""Matrix with one fault each that adapters really have: the promise that is broken is the one that finds it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from everhold.errors import InDoubt
from everhold.platforms.matrix.adapter import SINCE, Matrix
from everhold.platforms.matrix.reading import Room
from everhold.ports.platform import Accept, Outgoing
from everhold.testing.contracts.platform import Desk, PlatformContract, Stage, promise
from everhold.testing.platforms.synapse import Synapse
from tests.platforms.matrix_stage import MatrixStage, matrix_stage


class MovesFirst(Matrix):
    """Keeps the new position, then hands over: what stock sync loops do."""

    async def _hear(self, news: Mapping[str, Any], since: str | None, accept: Accept) -> str:
        await self._station.positions.move(SINCE, str(news["next_batch"]))
        return await super()._hear(news, since, accept)


class AnotherEachTime(Matrix):
    """Makes up a new transaction for every attempt."""

    async def _put(self, out: Outgoing, content: Mapping[str, Any], *, part: str) -> str:
        return await super()._put(out, content, part=part + os.urandom(4).hex())


class LeavesGaps(Matrix):
    """Takes what a look brings for all there is."""

    async def _missed(self, chat: str, start: str, end: str) -> list[Any]:
        return []


class HearsItself(Matrix):
    async def _connect(self) -> None:
        self._me = "@somebody:else"


class EditsAreOne(Matrix):
    async def _read(self, chat: str, raw: Any, room: Room) -> Any:
        heard = await super()._read(chat, raw, room)
        return heard and msgspec.structs.replace(heard, event="message", revision="")


class More:
    """Promises about things that only Matrix has."""

    patience = 20.0

    @promise()
    async def test_a_gap_is_filled(self, desk: Desk) -> None:
        assert isinstance(desk.stage, MatrixStage)
        desk.stage.door.cap = 3
        desk.start()
        await desk.stage.write("before", to=desk.stage.chat)
        await desk.until_heard("before")
        await desk.stop()
        for number in range(8):
            await desk.stage.write(f"meanwhile {number}", to=desk.stage.chat)
        await desk.restart()
        await desk.until_heard("meanwhile 7")
        assert len(await desk.texts()) == 9

    @promise()
    async def test_own_words_are_not_heard(self, desk: Desk) -> None:
        desk.start()
        await desk.platform.send(desk.out("from here"))
        await desk.stage.write("hello", to=desk.stage.chat)
        await desk.until_heard("hello")
        assert await desk.texts() == ["hello"]


BROKEN: list[tuple[type[Matrix], str]] = [
    (MovesFirst, "nothing_is_confirmed_before_it_is_kept"),
    (AnotherEachTime, "a_lost_answer_is_no_answer"),
    (LeavesGaps, "a_gap_is_filled"),
    (HearsItself, "own_words_are_not_heard"),
    (EditsAreOne, "an_edit_is_heard_as_a_new_one_and_once"),
]


class TestMore(More):
    """The adapter as it is keeps these, too."""

    @pytest.fixture(autouse=True)
    def _server(self, synapse: Synapse) -> None:
        self.synapse = synapse

    def stage(self) -> AbstractAsyncContextManager[Stage]:
        return matrix_stage(self.synapse)


@pytest.mark.prove
@pytest.mark.parametrize("adapter, broken", BROKEN, ids=lambda it: it if isinstance(it, str) else it.__name__)
def test_a_broken_adapter_is_found(adapter: type[Matrix], broken: str, synapse: Synapse, tmp_path: Path) -> None:
    class Broken(More, PlatformContract):
        patience = 4.0

        def stage(self) -> AbstractAsyncContextManager[Stage]:
            return matrix_stage(synapse, adapter)

    with pytest.raises((AssertionError, TimeoutError, InDoubt)):
        getattr(Broken(), f"test_{broken}")(tmp_path)
