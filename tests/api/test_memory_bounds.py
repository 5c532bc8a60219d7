"""Large messages of one token take a bounded amount of memory, however many there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.api.conftest import BOB, MODEL_KEY, configuration
from tests.api.gateway_process import GatewayProcess
from tests.waiting import LIMIT_SECONDS, wait_until

WORDS: Final = "the quick brown fox jumps over a lazy dog "
LARGE_TEXT: Final = (WORDS * (950_000 // len(WORDS))) + "\U0001f98a"
"""Nearly the largest message. Its last character makes Python keep four bytes for each of them."""
CONVERSATIONS: Final = 30
MESSAGES: Final = 20
FEW_CONVERSATIONS: Final = 100
MANY_CONVERSATIONS: Final = 150
MOST_LATE_GROWTH_BYTES: Final = 24 << 20
"""Half of the text of the last 50 conversations, which one byte per character would take 48 MB."""
MOST_GROWTH_BYTES: Final = 220 << 20
"""Usual are 100 to 160 MiB; with requests that stay after a failed model call it was 320."""


def open_model() -> ModelServer:
    """Return a model that refuses what is longer than its window, as real ones do."""
    return ModelServer(key=MODEL_KEY, default=ModelServerReply(text="Noted."), context_tokens=100_000)


def open_client(gateway: GatewayProcess, token: str) -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {token}"}
    return httpx2.AsyncClient(base_url=gateway.url, headers=headers, timeout=LIMIT_SECONDS, trust_env=False)


async def say(client: httpx2.AsyncClient, chat: str, text: str) -> str:
    """Send a message, wait for its answer, and return its session."""
    sent = await client.post("/api/messages", json={"chat": chat, "text": text})
    assert sent.status_code == 202, sent.text
    session, seq = sent.json()["session"], sent.json()["seq"]

    async def is_answered() -> bool:
        found: list[dict[str, Any]] = (
            await client.get(f"/api/sessions/{session}/entries", params={"after": seq})
        ).json()["entries"]
        return any(entry["kind"] == "ended" for entry in found)

    await wait_until(is_answered)
    return str(session)


async def read_all_events(gateway: GatewayProcess, session: str) -> int:
    """Read the log of a session as events, and return the number of its messages."""
    heard = 0
    async with (
        open_client(gateway, BOB) as client,
        client.stream("GET", "/api/events", params={"session": session, "after_seq": 0}) as stream,
    ):
        async for line in stream.aiter_lines():
            if line.startswith("data: ") and '"heard"' in line:
                heard += bool(json.loads(line.removeprefix("data: ")).get("kind") == "heard")
                if heard == MESSAGES:
                    return heard
    return heard


@pytest.mark.slow
async def test_large_messages_take_a_bounded_amount_of_memory(tmp_path: Path) -> None:
    async with open_model() as model:
        conversing = configuration(model.openai).replace(", memories: []", "")
        gateway = GatewayProcess(tmp_path, conversing)
        await gateway.start()
        try:
            async with open_client(gateway, BOB) as client:
                await say(client, "small", "hello")
                await say(client, "first", LARGE_TEXT)
                before = gateway.peak_bytes()
                for number in range(CONVERSATIONS):
                    await say(client, f"c{number}", LARGE_TEXT)
                    model.requests.clear()
                several = gateway.peak_bytes()
                session = ""
                for _ in range(MESSAGES):
                    session = await say(client, "long", LARGE_TEXT)
                    model.requests.clear()
                longer = gateway.peak_bytes()
                async with client.stream("GET", f"/api/sessions/{session}/entries") as response:
                    size = sum([len(part) async for part in response.aiter_bytes()])
                assert size > MESSAGES * len(LARGE_TEXT)
                assert await read_all_events(gateway, session) == MESSAGES
                after = gateway.peak_bytes()
        finally:
            await gateway.kill()
    shown = [count >> 20 for count in (before, several - before, longer - before, after - before)]
    assert after - before < MOST_GROWTH_BYTES, f"MiB before, and more after each step: {shown}"


@pytest.mark.slow
async def test_the_memory_of_many_large_conversations_reaches_a_plateau(tmp_path: Path) -> None:
    """Whatever is kept for each conversation grows with their number, however fast the machine is."""
    async with open_model() as model:
        gateway = GatewayProcess(tmp_path, configuration(model.openai))
        await gateway.start()
        try:
            async with open_client(gateway, BOB) as client:
                peaks = []
                for number in range(MANY_CONVERSATIONS):
                    if number in (1, FEW_CONVERSATIONS):
                        peaks.append(gateway.peak_bytes())
                    await say(client, f"c{number}", LARGE_TEXT)
                    model.requests.clear()
                peaks.append(gateway.peak_bytes())
        finally:
            await gateway.kill()
    shown = [peak >> 20 for peak in peaks]
    assert peaks[2] - peaks[1] < MOST_LATE_GROWTH_BYTES, f"MiB after 1, 100 and 150 conversations: {shown}"
