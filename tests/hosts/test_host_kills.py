"""Real hosts on one PostgreSQL database are killed and drained: nothing is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx2
import pytest

from everhold.testing.kill import http_trial
from everhold.testing.kill.hosts_trial import HostKillResult, KillableHosts, run_host_kills
from everhold.testing.model_server import ModelServer, ModelServerReply
from everhold.testing.platforms.telegram import TelegramServer
from everhold.testing.postgres_server import PostgresTestServer
from tests.hosts.trial_table import prove
from tests.waiting import wait_until

KILLS = int(os.environ.get("EVERHOLD_HOST_KILLS", "300"))
KILLS_PER_RUN = 10


def assert_nothing_wrong(found: HostKillResult) -> None:
    assert not found.failures, str(found)
    assert (found.lost, found.doubled, found.reordered) == (0, 0, 0), str(found)
    assert found.acknowledged > 10, str(found)


async def test_two_hosts_lose_double_and_reorder_nothing(tmp_path: Path, postgres_url: str) -> None:
    found = await run_host_kills(tmp_path, store_url=postgres_url, hosts=2, kills=2, seed=1)
    assert_nothing_wrong(found)
    assert found.kills == 2


async def test_a_draining_host_refuses_no_request_and_says_at_once_that_it_is_not_ready(
    tmp_path: Path, postgres_url: str
) -> None:
    async with ModelServer(key=http_trial.MODEL_API_KEY) as model, TelegramServer() as telegram:
        model.default = lambda received: ModelServerReply(text="a long answer to this", pause_seconds=0.3)
        pool = KillableHosts(tmp_path, count=2, store_url=postgres_url, model=model.openai, telegram=telegram.url)
        try:
            for host in pool.hosts:
                await host.start()
            leaving, staying = pool.hosts
            async with leaving.open_client(seconds=60) as client, staying.open_client(seconds=60) as other:
                first = asyncio.create_task(ask(client, "one"))
                await wait_until(lambda: model.requests)
                assert leaving.process is not None
                leaving.process.send_signal(signal.SIGTERM)
                await wait_until(lambda: is_unready(client))
                late = asyncio.create_task(ask(client, "two"))
                assert (await first).endswith("a long answer to this"), "a running turn ends"
                assert (await late).endswith("a long answer to this"), "what came later is answered by the other host"
                hosts = (await other.get("/api/hosts")).json()["hosts"]
                assert [it["draining"] for it in hosts if not it["own"]] in ([True], [])
            assert await leaving.wait_until_ended(60) == 0
        finally:
            await pool.close()


async def ask(client: httpx2.AsyncClient, chat: str) -> str:
    body = {"model": "main", "messages": [{"role": "user", "content": "hello"}]}
    response = await client.post(
        "/v1/chat/completions", json=body, headers={"X-Everhold-Session": chat, "Idempotency-Key": chat}
    )
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


async def is_unready(client: httpx2.AsyncClient) -> bool:
    return (await client.get("/ready")).status_code == 503


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(100, 100 + -(-KILLS // KILLS_PER_RUN)))
async def test_many_kills_over_three_hosts(tmp_path: Path, postgres_server: PostgresTestServer, seed: int) -> None:
    async def run() -> HostKillResult:
        with postgres_server.lend_store_database() as url:
            return await run_host_kills(tmp_path, store_url=url, hosts=3, kills=KILLS_PER_RUN, seed=seed)

    await prove("three hosts, killed", seed, run)
