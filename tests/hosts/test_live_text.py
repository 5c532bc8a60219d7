"""A reply that grows on one host reaches a page that is connected to another one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx2

from everhold.testing.kill import http_trial
from everhold.testing.kill.hosts_trial import KillableHosts
from everhold.testing.model_server import ModelServer, ModelServerReply
from everhold.testing.platforms.telegram import TelegramServer

WORDS = "a reply that grows for a good while on the first host"


async def read_text_until_end(client: httpx2.AsyncClient, connected: asyncio.Event) -> tuple[str, str]:
    """Follow the events of a host. Return the growing text and the committed reply."""
    grown = ""
    event = ""
    async with client.stream("GET", "/api/events") as response:
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
                if event == "hello":
                    connected.set()
            elif line.startswith("data: ") and event == "delta":
                grown += json.loads(line.removeprefix("data: "))["text"]
            elif line.startswith("data: ") and event == "entry":
                entry = json.loads(line.removeprefix("data: "))
                if entry["kind"] == "said":
                    return grown, entry["body"]["text"]
    raise AssertionError("the stream of events has ended")


async def test_a_growing_reply_reaches_a_page_at_another_host(tmp_path: Path, postgres_url: str) -> None:
    async with ModelServer(key=http_trial.MODEL_API_KEY) as model, TelegramServer() as telegram:
        model.default = lambda received: ModelServerReply(text=WORDS, pause_seconds=0.1)
        pool = KillableHosts(tmp_path, count=2, store_url=postgres_url, model=model.openai, telegram=telegram.url)
        try:
            for host in pool.hosts:
                await host.start()
            answering, showing = pool.hosts
            async with answering.open_client(seconds=60) as client, showing.open_client(seconds=60) as page:
                connected, grown = asyncio.Event(), ""
                following = asyncio.create_task(read_text_until_end(page, connected))
                await connected.wait()
                body = {"model": "main", "messages": [{"role": "user", "content": "hello"}], "stream": False}
                for number in range(3):  # the hosts may not know each other yet, and hints may be lost
                    response = await client.post(
                        "/v1/chat/completions", json=body, headers={"X-Everhold-Session": f"chat-{number}"}
                    )
                    assert response.status_code == 200, response.text
                    grown, said = await following
                    assert said == WORDS
                    if grown:
                        break
                    following = asyncio.create_task(read_text_until_end(page, connected))
                assert grown
                assert WORDS.endswith(grown) or WORDS.startswith(grown)
                hosts = (await page.get("/api/hosts")).json()
                assert hosts["hints"] is True
        finally:
            await pool.close()
