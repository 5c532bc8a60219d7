"""Matrix adapters with one fault each that real adapters have, and the test that finds it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from everhold.errors import InDoubt
from everhold.platforms.matrix.adapter import SYNC_POSITION_KEY, MatrixPlatform
from everhold.platforms.matrix.parsing import MatrixRoom
from everhold.ports.platform import AcceptMessage, OutgoingMessage
from everhold.testing.contracts.platform import PlatformContract, PlatformHarness, RemotePlatform, platform_promise
from everhold.testing.platforms.synapse import SynapseServer
from tests.platforms.remote_matrix import RemoteMatrix, open_remote_matrix


class MovesFirst(MatrixPlatform):
    """Commits the new offset before it accepts the messages, as the sync loops of libraries do."""

    async def _accept_events(self, news: Mapping[str, Any], since: str | None, accept: AcceptMessage) -> str:
        await self._account_context.offsets.advance(SYNC_POSITION_KEY, str(news["next_batch"]))
        return await super()._accept_events(news, since, accept)


class AnotherEachTime(MatrixPlatform):
    """Uses a new transaction id for every attempt."""

    async def _send_event(self, out: OutgoingMessage, content: Mapping[str, Any], *, part: str) -> str:
        return await super()._send_event(out, content, part=part + os.urandom(4).hex())


class LeavesGaps(MatrixPlatform):
    """Ignores that a sync may be incomplete."""

    async def _fetch_missed_events(self, chat: str, start: str, end: str) -> tuple[list[Any], str]:
        return [], ""


class HearsItself(MatrixPlatform):
    async def _connect(self) -> None:
        self._me = "@somebody:else"


class EditsAreOne(MatrixPlatform):
    async def _parse_event(self, chat: str, raw: Any, room: MatrixRoom) -> Any:
        heard = await super()._parse_event(chat, raw, room)
        return heard and msgspec.structs.replace(heard, event="message", revision="")


class MatrixPromises:
    """Promises about features that only Matrix has."""

    patience = 20.0

    @platform_promise()
    async def test_a_gap_is_filled(self, harness: PlatformHarness) -> None:
        assert isinstance(harness.remote, RemoteMatrix)
        harness.remote.proxy.cap = 3
        harness.start()
        await harness.remote.write("before", to=harness.remote.chat)
        await harness.wait_until_heard("before")
        await harness.stop()
        for number in range(8):
            await harness.remote.write(f"meanwhile {number}", to=harness.remote.chat)
        await harness.restart()
        await harness.wait_until_heard("meanwhile 7")
        assert len(await harness.read_texts()) == 9

    @platform_promise()
    async def test_own_messages_are_not_heard(self, harness: PlatformHarness) -> None:
        harness.start()
        await harness.platform.send(harness.make_outgoing("from here"))
        await harness.remote.write("hello", to=harness.remote.chat)
        await harness.wait_until_heard("hello")
        assert await harness.read_texts() == ["hello"]


BROKEN: list[tuple[type[MatrixPlatform], str]] = [
    (MovesFirst, "nothing_is_confirmed_before_the_commit"),
    (AnotherEachTime, "a_lost_answer_is_reported_as_in_doubt"),
    (LeavesGaps, "a_gap_is_filled"),
    (HearsItself, "own_words_are_not_heard"),
    (EditsAreOne, "an_edit_is_heard_as_a_new_message_and_once"),
]


class TestMatrixPromises(MatrixPromises):
    """The adapter without a fault keeps these promises too."""

    @pytest.fixture(autouse=True)
    def _server(self, synapse: SynapseServer) -> None:
        self.synapse = synapse

    def open_remote(self) -> AbstractAsyncContextManager[RemotePlatform]:
        return open_remote_matrix(self.synapse)


@pytest.mark.prove
@pytest.mark.parametrize("adapter, broken", BROKEN, ids=lambda it: it if isinstance(it, str) else it.__name__)
def test_a_broken_adapter_is_found(
    adapter: type[MatrixPlatform], broken: str, synapse: SynapseServer, tmp_path: Path
) -> None:
    class Broken(MatrixPromises, PlatformContract):
        patience = 4.0

        def open_remote(self) -> AbstractAsyncContextManager[RemotePlatform]:
            return open_remote_matrix(synapse, adapter)

    with pytest.raises((AssertionError, TimeoutError, InDoubt)):
        getattr(Broken(), f"test_{broken}")(tmp_path)
