"""The store of a running gateway is deleted, moved or replaced: nothing is acknowledged into files nobody can open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everhold.testing.kill.gateway import KillableGateway
from everhold.testing.kill.http_trial import ENV_FILE_TEXT, MODEL_API_KEY, make_config
from everhold.testing.kill.missing_store import STORE_FAULTS, run_store_fault
from everhold.testing.model_server import ModelServer, ModelServerReply

BLIND_PROGRAM = """
import sys
from everhold.stores.sqlite.files import StoreFiles
StoreFiles.find_change = lambda self: ""
from everhold.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer(key=MODEL_API_KEY) as server:
        server.default = lambda received: ModelServerReply(text="yes")
        yield server


def make_gateway(path: Path, model: ModelServer, *program: str) -> KillableGateway:
    chosen = program or ("-m", "everhold")
    return KillableGateway(path / "home", make_config(model.openai), secrets=ENV_FILE_TEXT, program=chosen)


@pytest.mark.parametrize("fault", STORE_FAULTS)
async def test_nothing_is_acknowledged_without_its_store(tmp_path: Path, model: ModelServer, fault: str) -> None:
    gateway = make_gateway(tmp_path, model)
    try:
        outcome = await run_store_fault(gateway, STORE_FAULTS[fault])
    finally:
        await gateway.close()
    assert not outcome.failures, str(outcome)


@pytest.mark.parametrize("fault", ["home moved", "store deleted", "lock replaced"])
async def test_an_idle_gateway_notices_it_too(tmp_path: Path, model: ModelServer, fault: str) -> None:
    gateway = make_gateway(tmp_path, model)
    try:
        outcome = await run_store_fault(gateway, STORE_FAULTS[fault], talks=False)
    finally:
        await gateway.close()
    assert not outcome.failures, str(outcome)


async def test_a_gateway_that_does_not_look_is_found(tmp_path: Path, model: ModelServer) -> None:
    gateway = make_gateway(tmp_path, model, "-c", BLIND_PROGRAM)
    try:
        outcome = await run_store_fault(gateway, STORE_FAULTS["store deleted"], exit_seconds=5.0)
    finally:
        await gateway.close()
    assert any("was sent after the fault and acknowledged" in text for text in outcome.failures), str(outcome)
    assert any("still ran" in text for text in outcome.failures), str(outcome)
