"""The HTTP server's start and stop in the gateway's event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from everhold.api.http_protocol import CorkedTransport
from everhold.errors import InvalidRequest
from everhold.ports.store import BudgetSpend, Change, DeadLetter, RetryDelay, Step, Wakeup
from everhold.testing.contracts.store_scenario import StoreScenario
from everhold.testing.model_server import ModelServer
from tests.api.conftest import ApiGateway, configuration
from tests.waiting import wait_until


async def test_a_busy_port_is_reported_with_a_remedy(tmp_path: Path, gateway: ApiGateway, model: ModelServer) -> None:
    other = ApiGateway(tmp_path / "other", model)
    other.port = gateway.port
    with pytest.raises(InvalidRequest, match="in use") as told:
        await other.start()
    assert "--port" in told.value.remedy
    await other.stop()


@pytest.mark.parametrize("host", ["localhost", "::1", "127.0.0.2"])
async def test_the_server_listens_at_the_configured_address(tmp_path: Path, model: ModelServer, host: str) -> None:
    gateway = ApiGateway(tmp_path, model)
    gateway.configure(configuration(model.openai, more=f'http: {{host: "{host}", port: 0}}\n'))
    try:
        await gateway.start()
    except InvalidRequest:
        pytest.skip(f"this machine has no {host}")
    async with gateway.client() as client:
        assert (await client.get(f"{gateway.running.url}/health")).status_code == 200
    await gateway.stop()


async def test_an_address_that_is_not_local_is_refused(tmp_path: Path, model: ModelServer) -> None:
    gateway = ApiGateway(tmp_path, model)
    gateway.configure(configuration(model.openai).replace("port: 0", "port: 0\n  host: 192.0.2.7", 1))
    with pytest.raises(InvalidRequest, match="cannot listen"):
        await gateway.start()
    await gateway.stop()


async def test_the_ready_route_fails_when_no_message_can_be_accepted(gateway: ApiGateway) -> None:
    async with gateway.client() as client:
        assert (await client.get("/ready")).status_code == 200
        gateway.running.disk_guard.reserve.size_bytes = 1 << 60  # the disk never has that much free space
        gateway.running.disk_guard.report_full()
        answer = await client.get("/ready")
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "the disk is full")
        assert "everhold_ready 0" in (await client.get("/metrics")).text
        assert (await client.get("/health")).status_code == 200


async def test_a_channel_a_model_and_a_memory_that_are_broken_leave_the_gateway_ready(
    gateway: ApiGateway,
) -> None:
    await gateway.stop()
    nowhere = "http://127.0.0.1:9"
    gateway.configure(
        configuration(nowhere).replace("persona: You are a test., memories: []", "memories: [far]")
        + f"platforms: {{telegram: {{main: {{token_env: TOKEN_ADA, base_url: '{nowhere}', agent: main}}}}}}\n"
        + f"memories: {{far: {{provider: hindsight, base_url: '{nowhere}'}}}}\n"
    )
    await gateway.start()
    async with gateway.client() as client:
        posted = await client.post("/api/messages", json={"chat": "x", "text": "hello"})
        assert posted.status_code == 202

        async def is_failing() -> bool:
            page = (await client.get("/metrics")).text
            return 'cursors_failing{consumer="turn"} 1' in page and 'platform="telegram",account="main"} 0' in page

        await wait_until(is_failing)
        assert (await client.get("/ready")).status_code == 200
        assert (await client.get("/health")).status_code == 200


async def test_metrics_follow_the_gateway(gateway: ApiGateway) -> None:
    async with gateway.client() as client:
        posted = await client.post("/api/messages", json={"chat": "x", "text": "hello"})
        await gateway.wait_until_idle(posted.json()["session"])
        text = (await client.get("/metrics")).text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines["everhold_turns_total"] == "1"
    assert lines["everhold_messages_pending"] == "0"
    assert int(lines['everhold_spend_today_tokens{agent="main"}']) > 0
    assert lines['everhold_spend_today_usd{agent="main"}'] == "0"
    assert lines["everhold_dead_letters_in_doubt"] == "0"
    assert lines['everhold_commits_total{step="accept"}'] == "1"
    assert int(lines['everhold_http_responses_total{status="202"}']) == 1


async def test_what_is_due_what_fails_and_what_is_given_up_are_counted_by_consumer(gateway: ApiGateway) -> None:
    scenario, delay = StoreScenario(gateway.running.store), RetryDelay(seconds=1e6)
    await scenario.open_session("s")
    await scenario.wake_consumer("platform:p:q", delay.seconds)
    # claimed at once, because the gateway looks for due cursors, too
    (claim,) = (await scenario.commit(wakeups=(Wakeup(consumer="memory:a", owner="me", lease=60.0),))).claims
    await scenario.update_cursor(claim, error="down", attempts=1, wait=delay, release=True)
    letters = [DeadLetter(consumer="platform:p:q", session="s", seq=1, in_doubt=in_doubt) for in_doubt in (True, False)]
    await scenario.commit(dead_letters=tuple(letters))
    async with gateway.client() as client:
        lines = (await client.get("/metrics")).text.splitlines()
    assert [line for line in lines if line.startswith(("everhold_cursors", "everhold_dead", "everhold_memory_f"))] == [
        'everhold_cursors_due{consumer="memory:a"} 1',
        'everhold_cursors_due{consumer="platform:p:q"} 1',
        'everhold_cursors_failing{consumer="memory:a"} 1',
        'everhold_dead_letters{consumer="platform:p:q"} 2',
        "everhold_dead_letters_in_doubt 1",
        'everhold_memory_failing{memory="a"} 1',
    ]


async def test_a_large_metric_is_printed_with_all_digits(gateway: ApiGateway) -> None:
    spends = (
        BudgetSpend(budget="agent:main", day=gateway.running.agents.get_today(), usd=1234.56789, tokens=12_345_678),
    )
    await gateway.running.store.commit(Change(step=Step.SPEND, session="", at=1.0, spends=spends))
    gateway.running.tail.commits["end"] = 1_000_001
    async with gateway.client() as client:
        lines = (await client.get("/metrics")).text.splitlines()
    assert 'everhold_spend_today_tokens{agent="main"} 12345678' in lines
    assert 'everhold_spend_today_usd{agent="main"} 1234.56789' in lines
    assert "everhold_turns_total 1000001" in lines


def test_no_server_module_is_loaded_when_http_is_off() -> None:
    script = "import sys, everhold.app; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"starlette", "uvicorn", "anyio"} & set(loaded)


class RecordingTransport:
    """A transport that records each write."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.pieces.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> str:
        return f"the {name}"


def test_a_response_head_and_body_are_written_together() -> None:
    written = RecordingTransport()
    cork = CorkedTransport(cast(asyncio.Transport, written))
    cork.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    cork.hold()
    cork.write(b"head")
    cork.write(b"body")
    assert len(written.pieces) == 1
    cork.flush_held()
    cork.write(b"more")
    assert written.pieces[1:] == [b"headbody", b"more"]
    cork.hold()
    cork.write(b"a head whose body never came")
    cork.close()
    assert (written.pieces[3:], cork.is_closing()) == ([b"a head whose body never came"], True)
    assert cork.get_extra_info("peername") == "the peername"
