"""Switching the primary memory is an edit of the configuration with a backfill, and loses nothing."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2

from everhold.testing.model_server import ModelServer
from tests.e2e.running_gateway import make_model_section
from tests.memories.gateway_process import GatewayProcess
from tests.memories.services import MemoryServices
from tests.waiting import LIMIT_SECONDS, wait_until


def build_config(services: MemoryServices, model: ModelServer, *memories: object) -> str:
    given = json.loads(services.config("mem0", "hindsight", agent={"memories": list(memories)}))
    return json.dumps(given | {"models": {"fake": make_model_section(model.openai)}})


async def say(gateway: GatewayProcess, text: str) -> None:
    sent = await gateway.http.post("/api/messages", json={"chat": "x", "text": text, "person": "ada"})
    assert sent.status_code == 202, sent.text


async def ask_json(gateway: GatewayProcess, method: str, path: str, **more: object) -> dict[str, object]:
    answer = await gateway.http.request(method, path, json=more or None, timeout=LIMIT_SECONDS)
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found


async def test_the_primary_memory_is_switched_while_people_write(tmp_path: Path, services: MemoryServices) -> None:
    texts = [f"note number {number}: the shelf {number} is oak" for number in range(6)]
    async with ModelServer(key="a-key-for-everybody-0123") as model:
        gateway = GatewayProcess(tmp_path, build_config(services, model, "mem0"))
        await gateway.start()
        try:
            await wait_until(lambda: is_ready(gateway))
            for text in texts[:2]:
                await say(gateway, text)
            await wait_until(lambda: len(services.said_texts("mem0")) == 2)
            edit(gateway, "mem0", {"name": "hindsight", "shadow": True})
            await wait_until(lambda: is_attached(gateway, "hindsight"))
            for text in texts[2:4]:
                await say(gateway, text)
            plan = await ask_json(gateway, "POST", "/api/memory/providers/hindsight/backfill", dry_run=False)
            assert plan["items"] == 2
            await wait_until(lambda: len(services.said_texts("hindsight")) == 4)
            edit(gateway, "hindsight", {"name": "mem0", "shadow": True})
            await say(gateway, texts[4])
            await wait_until(lambda: len(services.said_texts("mem0")) == 5)
            edit(gateway, "hindsight")
            await say(gateway, texts[5])
            await wait_until(lambda: sorted(services.said_texts("hindsight")) == texts)
            left = await ask_json(gateway, "POST", "/api/memory/providers/hindsight/backfill", dry_run=True)
            assert left["items"] == 0
            found = await ask_json(gateway, "POST", "/api/memory/compare")
            assert [(row["memory"], row["mode"]) for row in found["memories"]] == [("hindsight", "primary")]  # type: ignore[attr-defined]
        finally:
            await gateway.kill()
            await gateway.http.aclose()


def edit(gateway: GatewayProcess, *memories: object) -> None:
    path = gateway.home / "config.yaml"
    given = json.loads(path.read_text())
    given["agents"]["main"]["memories"] = list(memories)
    path.write_text(json.dumps(given))


async def is_ready(gateway: GatewayProcess) -> bool:
    try:
        return (await gateway.http.get("/ready")).status_code == 200
    except httpx2.TransportError:
        return False


async def is_attached(gateway: GatewayProcess, memory: str) -> bool:
    rows = (await gateway.http.get("/api/memory/status")).json()["memories"]
    return memory in [row["memory"] for row in rows]
