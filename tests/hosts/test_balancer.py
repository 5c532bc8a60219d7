"""A host that ends behind a balancer: `/ready` changes first, no request fails, and each message is answered once."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx2

from everhold.core.entries import Heard, Said
from everhold.stores.postgres import PostgresStore
from everhold.testing.kill import http_trial
from everhold.testing.kill.gateway import KillableGateway
from everhold.testing.model_server import ModelServer, ModelServerReply, ReceivedModelRequest
from everhold.testing.seeded_random import SeededRandom
from tests.hosts.balancer import ProbingBalancer, open_balancer
from tests.waiting import wait_until

CALLERS = 4
SETTLE_SECONDS = 3.0
"""Many times the balancer's interval, so that it has noticed on a busy machine, too."""


def make_host(
    directory: Path, name: str, model: ModelServer, *, store_url: str = "", program: Sequence[str] = ("-m", "everhold")
) -> KillableGateway:
    lines = [
        f"models: {{fake: {{provider: openai, base_url: '{model.openai}', name: fake, api_key_env: MODEL_KEY}}}}",
        "agents: {main: {persona: You are under test., memories: [], tools: []}}",
        f"drain: {{settle_seconds: {SETTLE_SECONDS}}}",
    ]
    if store_url:
        lines.append(f"store: {{url: '{store_url}', poll_seconds: 0.2}}")
    return KillableGateway(directory / name, "\n".join(lines) + "\n", secrets=http_trial.ENV_FILE_TEXT, program=program)


def echo(received: ReceivedModelRequest) -> ModelServerReply:
    return ModelServerReply(text=f"answer to {received.json['messages'][-1]['content'].split()[-1]}")


class BalancedCallers:
    """Callers that send one request after the other through the balancer, each once."""

    def __init__(self, balancer: ProbingBalancer, token: str) -> None:
        self.balancer = balancer
        self.token = token
        self.stop = False
        self.answered: list[str] = []
        self.failures: list[str] = []

    async def call(self, name: str) -> None:
        headers = {"authorization": f"Bearer {self.token}", "connection": "close"}
        async with httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as client:
            number = 0
            while not self.stop:
                number += 1
                await self._ask(client, name, f"{name}.m{number}")

    async def _ask(self, client: httpx2.AsyncClient, name: str, text: str) -> None:
        body = {"model": "main", "messages": [{"role": "user", "content": text}]}
        headers = {"X-Everhold-Session": name, "Idempotency-Key": text}
        try:
            answer = await client.post(f"{self.balancer.url}/v1/chat/completions", json=body, headers=headers)
        except httpx2.TransportError as error:
            self.failures.append(f"{text}: {error!r}")
            await asyncio.sleep(0.05)
            return
        if answer.status_code != 200:
            self.failures.append(f"{text}: {answer.status_code} {answer.text[:200]}")
        elif answer.json()["choices"][0]["message"]["content"] != f"answer to {text}":
            self.failures.append(f"{text}: {answer.text[:200]}")
        else:
            self.answered.append(text)


async def end_one_of_two(tmp_path: Path, url: str, *, program: Sequence[str] = ("-m", "everhold")) -> BalancedCallers:
    async with ModelServer(key=http_trial.MODEL_API_KEY) as model:
        model.default = echo
        hosts = [make_host(tmp_path, name, model, store_url=url, program=program) for name in ("one", "two")]
        try:
            for host in hosts:
                await host.start()
            leaving, staying = hosts
            async with open_balancer(hosts) as balancer:
                callers = BalancedCallers(balancer, leaving.token)
                calling = [asyncio.create_task(callers.call(f"caller{number}")) for number in range(CALLERS)]
                await wait_until(lambda: len(callers.answered) > 2 * CALLERS and all(balancer.passed.values()))
                assert leaving.process is not None
                leaving.process.send_signal(signal.SIGTERM)
                assert await leaving.wait_until_ended(120) == 0
                enough = len(callers.answered) + 2 * CALLERS
                await wait_until(lambda: len(callers.answered) > enough or bool(callers.failures))
                callers.stop = True
                await asyncio.gather(*calling)
            assert staying.process is not None
            return callers
        finally:
            for host in hosts:
                await host.close()


async def test_a_host_ends_behind_a_balancer_and_no_request_fails(tmp_path: Path, postgres_url: str) -> None:
    callers = await end_one_of_two(tmp_path, postgres_url)
    assert callers.failures == []
    heard, said = await count_messages(postgres_url)
    assert set(heard.values()) == {1}
    assert set(said.values()) == {1}
    assert {f"answer to {it}" for it in callers.answered} == set(said)
    assert set(callers.answered) == set(heard)


async def test_a_host_that_says_ready_while_it_drains_is_found(tmp_path: Path, postgres_url: str) -> None:
    """The planted bug: the balancer sends requests to it until its end, and some of them fail."""
    callers = await end_one_of_two(tmp_path, postgres_url, program=("-m", "tests.hosts.ready_while_draining"))
    assert callers.failures


async def count_messages(url: str) -> tuple[Counter[str], Counter[str]]:
    """How often each message was heard, and each answer was said."""
    heard: Counter[str] = Counter()
    said: Counter[str] = Counter()
    store = await PostgresStore.open(url, chance=SeededRandom(7))
    after = 0
    while page := await store.read_feed(after=after):
        after = page[-1].pos
        heard.update(entry.body.text for entry in page if isinstance(entry.body, Heard))
        said.update(entry.body.text for entry in page if isinstance(entry.body, Said))
    await store.close()
    return heard, said


async def test_a_host_on_sqlite_is_unready_at_once_and_answers_until_it_has_settled(tmp_path: Path) -> None:
    async with ModelServer(key=http_trial.MODEL_API_KEY) as model:
        model.default = echo
        host = make_host(tmp_path, "one", model)
        await host.start()
        try:
            async with open_balancer([host]) as balancer:
                callers = BalancedCallers(balancer, host.token)
                calling = [asyncio.create_task(callers.call(f"caller{number}")) for number in range(CALLERS)]
                await wait_until(lambda: len(callers.answered) > CALLERS)
                assert host.process is not None
                host.process.send_signal(signal.SIGTERM)
                await wait_until(lambda: not balancer.ready)
                before = len(callers.answered)
                async with host.open_client(seconds=60) as client:
                    assert (await client.get("/health")).status_code == 200
                    posted = await client.post("/api/messages", json={"chat": "late", "text": "late"})
                    assert posted.status_code == 202, "it accepts until it has settled"
                    assert "everhold_draining 1" in (await client.get("/metrics")).text
                callers.stop = True
                await asyncio.gather(*calling)
            assert await host.wait_until_ended(120) == 0
            assert before > 0
            await host.start()
            async with host.open_client(seconds=60) as client:
                session = posted.json()["session"]

                async def is_answered() -> bool:
                    entries = (await client.get(f"/api/sessions/{session}/entries")).json()["entries"]
                    return [entry["kind"] for entry in entries].count("said") == 1

                await wait_until(is_answered)
        finally:
            await host.close()
