"""Agents in one room of a real Synapse are killed, compressed and written to; they miss and repeat nothing."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everhold.testing.model_server import ModelServer
from everhold.testing.platforms.synapse import SynapseServer
from tests.platforms.matrix_room import AgentRoom


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer() as server:
        yield server


async def run_rounds(room: AgentRoom, *, kills: int) -> None:
    """Rounds of tasks. Then all agents compress in the middle of one, are killed, and are written to while they are
    down."""
    try:
        await room.open()
        await room.wait_until_joined()
        for kill in range(kills):
            await room.round(f"k{kill}first")
            await room.wait_until_done()
            await room.round(f"k{kill}second")
            compressing = asyncio.create_task(room.compress())
            await room.round(f"k{kill}third")
            await room.summarising.wait()
            await room.kill()
            await compressing
            await room.round(f"k{kill}away")
            await room.start()
        await room.wait_until_done()
        await room.call_everybody("final")
        await halt(room)
        await room.kill(signal.SIGTERM)
        await room.check(call="final")
    finally:
        await room.close()


async def halt(room: AgentRoom) -> None:
    """A person's message stops everything until another message lifts it."""
    await room.round("halted", counts=False)  # the agents at work are stopped
    await room.say("!halt")
    await room.wait_until_obeyed("Halted.", 1)
    before = await room.agent_texts()
    await room.say("<call-halted>", *range(room.count))
    await room.say("!halt")  # an agent that answers this has heard the call
    await room.wait_until_obeyed("Halted.", 2)
    after = await room.agent_texts()
    assert after == before, f"an agent answered: {Counter(after) - Counter(before)}"
    await room.say("!wake")
    await room.wait_until_obeyed("The agents in this chat answer again.", 1)
    await room.call_everybody("again")
    await room.wait_until_settled()


async def test_three_agents_survive_one_kill(tmp_path: Path, synapse: SynapseServer, model: ModelServer) -> None:
    await run_rounds(AgentRoom(tmp_path, synapse, model, agents=3), kills=1)


@pytest.mark.prove
@pytest.mark.timeout(900)
@pytest.mark.parametrize("apart", [False, True], ids=["one process", "nine processes"])
async def test_nine_agents_survive_many_kills(
    tmp_path: Path, synapse: SynapseServer, model: ModelServer, apart: bool
) -> None:
    room = AgentRoom(tmp_path, synapse, model, agents=9, apart=apart)
    await run_rounds(room, kills=3)


@pytest.mark.prove
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "fault, found",
    [
        ("DropsPendingUpdates", r"are missing|missed"),
        ("SaysItTwice", r"everybody hearing everything|Counter"),
        ("Wanders", r"changed its session"),
    ],
)
async def test_a_planted_fault_is_found(
    tmp_path: Path, synapse: SynapseServer, model: ModelServer, fault: str, found: str
) -> None:
    room = AgentRoom(tmp_path, synapse, model, agents=2, fault=fault)
    room.patience = 30.0
    with pytest.raises(AssertionError, match=found):
        await run_rounds(room, kills=1)
