"""A gateway that is killed at any time hears and answers each message once, and clients miss no event."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everhold.testing.kill import http_trial
from everhold.testing.kill.gateway import KillableGateway
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.api import planted_bugs
from tests.api.conftest import configuration, events_of
from tests.api.gateway_process import GatewayProcess
from tests.api.planted_bugs import BUGS
from tests.waiting import LIMIT_SECONDS, wait_until

TEXT = "one two three four five six seven eight nine ten"


async def ask(gateway: GatewayProcess, key: str, *, stream: bool) -> str:
    """Repeat a request with the same key until it is answered."""
    body = {"model": "main", "stream": stream, "messages": [{"role": "user", "content": f"count {key}"}]}
    headers = {"X-Everhold-Session": "x", "Idempotency-Key": key}
    async with gateway.open_client(seconds=LIMIT_SECONDS) as client:
        while True:
            try:
                async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
                    if response.status_code == 200 and not stream:
                        answer = json.loads(await response.aread())
                        return str(answer["choices"][0]["message"]["content"])
                    if response.status_code == 200:
                        text, finished = "", False
                        async for event in events_of(response):
                            for choice in event.get("choices", ()):
                                text += choice["delta"].get("content") or ""
                                finished = finished or choice["finish_reason"] == "stop"
                        if finished:
                            return text
            except httpx2.TransportError:
                pass
            await asyncio.sleep(0.05)


class EventReader:
    """A client that reads the events through every restart."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self.seen: list[dict[str, Any]] = []

    async def read(self) -> None:
        async with self.gateway.open_client(seconds=LIMIT_SECONDS) as client:
            while True:
                after = self.seen[-1]["pos"] if self.seen else 0
                try:
                    async with client.stream("GET", "/api/events", headers={"last-event-id": str(after)}) as response:
                        async for event in events_of(response):
                            if event.event == "entry":
                                self.seen.append(event)
                except httpx2.TransportError:
                    await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_repeated_kills_during_streams_lose_and_double_nothing(tmp_path: Path, model: ModelServer) -> None:
    model.default = ModelServerReply(text=TEXT, pause_seconds=0.01)
    gateway = GatewayProcess(tmp_path, configuration(model.openai))
    await gateway.start()
    reader = EventReader(gateway)
    reading = asyncio.ensure_future(reader.read())
    try:
        for life, wait in enumerate((0.0, 0.02, 0.05, 0.08, 0.12)):
            callers = [
                asyncio.ensure_future(ask(gateway, f"{life}-{number}", stream=bool(number))) for number in range(2)
            ]
            before = len(model.requests)
            await wait_until(lambda before=before: len(model.requests) > before)  # type: ignore[misc]
            await asyncio.sleep(wait)
            await gateway.kill()
            await gateway.start()
            async with asyncio.timeout(LIMIT_SECONDS):
                answers = await asyncio.gather(*callers)
            assert all(answer.endswith(TEXT) for answer in answers), answers
        async with gateway.open_client(seconds=LIMIT_SECONDS) as client:
            session = (await client.get("/api/sessions")).json()["sessions"][0]["id"]
            log = (await client.get(f"/api/sessions/{session}/entries")).json()["entries"]
        heard = [entry["body"]["text"] for entry in log if entry["kind"] == "heard"]
        assert sorted(heard) == sorted(f"count {life}-{number}" for life in range(5) for number in range(2))
        taken = [seq for entry in log if entry["kind"] == "began" for seq in entry["body"].get("takes", ())]
        released = {entry["op"] for entry in log if entry["kind"] == "ended" and entry["body"].get("outcome")}
        turns = [entry["op"] for entry in log if entry["kind"] == "began" and entry["op"] not in released]
        said = [entry for entry in log if entry["kind"] == "said"]
        assert len(said) == len(turns), "every turn that was not released has one reply"
        assert sorted(set(taken)) == [entry["seq"] for entry in log if entry["kind"] == "heard"]
        await wait_until(lambda: len(reader.seen) >= log[-1]["pos"])
        places = [event["pos"] for event in reader.seen]
        assert places == list(range(1, len(places) + 1)), "a gap, or a repeat"
    finally:
        reading.cancel()
        await gateway.close()


async def run_kills(
    path: Path, *, seed: int, kills: int, mutant: str = "", at: str = ""
) -> http_trial.GatewayKillResult:
    async with ModelServer(key=http_trial.MODEL_API_KEY) as vendor:
        configuration = http_trial.make_config(vendor.openai)
        program = (planted_bugs.__file__, mutant) if mutant else ("-m", "everhold")
        gateway = KillableGateway(path / "home", configuration, secrets=http_trial.ENV_FILE_TEXT, program=program)
        try:
            return await http_trial.run_kills(gateway, vendor, seed=seed, kills=kills, at=at, ill=not mutant)
        finally:
            await gateway.close()


@pytest.mark.slow
async def test_kills_with_retrying_callers_and_model_faults_lose_and_double_nothing(tmp_path: Path) -> None:
    outcome = await run_kills(tmp_path, seed=1, kills=6)
    assert not outcome.failures, str(outcome)
    assert set(outcome.fault_counts) == set(http_trial.MODEL_FAULTS), str(outcome)
    assert outcome.answered > 10, str(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_is_found(tmp_path: Path, bug: str) -> None:
    _, at, found_by = BUGS[bug]
    outcome = await run_kills(tmp_path, seed=2, kills=1 if at else 0, mutant=bug, at=at)
    assert any(found_by in failure for failure in outcome.failures), str(outcome)


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 100 + max(1, int(os.environ.get("EVERHOLD_KILLS", "1000")) // 50)))
async def test_many_kills_with_retrying_callers_and_model_faults_lose_and_double_nothing(
    tmp_path: Path, seed: int
) -> None:
    outcome = await run_kills(tmp_path, seed=seed, kills=50)
    assert not outcome.failures, str(outcome)
