"""Send one of four bursts to hermes-agent's gateway. Runs in its own venv, without everhold.

    python peer_bursts.py DIRECTORY MODEL-URL follow-ups | compression | stop | kill

It drives hermes-agent's unmodified gateway class with an adapter that delivers messages in memory. It prints a line of
JSON: how many messages the gateway accepted, and which of them its database has in the end. `kill` prints `ready` when
all messages are queued, and waits to be killed; `look` then reports what the database has.
"""

import asyncio
import json
import logging
import os
import sqlite3
import sys
import time
import urllib.request
from pathlib import Path

directory, url, burst = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
HOME = directory / "hermes"
BUSY = "queue" if burst in ("stop", "kill") else "interrupt"
CONFIG = f"""\
model: {{default: held, provider: custom, base_url: "{url}/v1", api_key: none, context_length: 128000}}
auxiliary:
  compression: {{provider: custom, model: summary, base_url: "{url}/v1", api_key: none, context_length: 128000}}
  title_generation: {{enabled: false}}
display: {{busy_input_mode: {BUSY}}}
"""


def settle_in() -> None:
    """A home of its own, and nothing that looks outside of it."""
    for name in list(os.environ):
        if name.startswith(("HERMES_", "OPENAI_", "OPENROUTER_", "ANTHROPIC_")):
            del os.environ[name]
    HOME.mkdir(exist_ok=True)
    (HOME / "config.yaml").write_text(CONFIG)
    os.environ |= {
        "HOME": str(directory),
        "HERMES_HOME": str(HOME),
        "HERMES_DISABLE_LAZY_DEPS": "1",
        "GATEWAY_ALLOW_ALL_USERS": "true",
        "NO_PROXY": "*",
    }
    os.chdir(directory)
    logging.disable(logging.CRITICAL)


def kept(names: list[str]) -> list[str]:
    """Return the messages that its database has as user messages."""
    with sqlite3.connect(HOME / "state.db") as db:
        rows = db.execute("select content from messages where role = 'user'").fetchall()
    words = set(" ".join(str(row[0]) for row in rows).split())
    return [name for name in names if name in words]


def report(names: list[str]) -> None:
    print(json.dumps({"sent": len(names), "kept": kept(names)}), flush=True)


if burst == "look":
    report(sys.argv[4].split())
    sys.exit()

settle_in()  # it reads its environment when it is imported

import gateway.run  # noqa: E402
import tools.lazy_deps  # noqa: E402
from gateway.config import Platform, PlatformConfig, load_gateway_config  # noqa: E402
from gateway.platforms.base import BasePlatformAdapter, MessageEvent, MessageType, SendResult  # noqa: E402
from gateway.session import SessionSource  # noqa: E402

tools.lazy_deps.ensure = lambda *_args, **_options: None
PLATFORM = Platform("telegram")


class Adapter(BasePlatformAdapter):
    def __init__(self) -> None:
        super().__init__(PlatformConfig(enabled=True, typing_indicator=False), PLATFORM)
        self.sent = 0
        self.answered = asyncio.Event()

    async def connect(self, *, is_reconnect: bool = False) -> bool:
        return True

    async def disconnect(self) -> None: ...

    async def send(self, chat_id, content, reply_to=None, metadata=None):
        self.sent += 1
        if "Certainly" in content:
            self.answered.set()
        return SendResult(success=True, message_id=str(self.sent))

    async def get_chat_info(self, chat_id: str) -> dict[str, str]:
        return {"name": chat_id, "type": "dm"}


class Peer:
    def __init__(self) -> None:
        settings = load_gateway_config()
        settings.platforms[PLATFORM] = PlatformConfig(enabled=True, typing_indicator=False)
        self.runner = gateway.run.GatewayRunner(settings)
        self.adapter = adapter = Adapter()
        self.runner.adapters[PLATFORM] = adapter
        adapter.set_message_handler(self.runner._handle_message)
        adapter.set_busy_session_handler(self.runner._handle_active_session_busy_message)
        adapter.set_session_store(self.runner.session_store)
        adapter._busy_text_mode = self.runner._busy_text_mode
        adapter.gateway_runner = self.runner
        self.runner._running = True
        self.count = 0

    async def hear(self, text: str) -> None:
        self.count += 1
        event = MessageEvent(text=text, message_type=MessageType.TEXT, message_id=str(self.count), source=self.source())
        await self.adapter.handle_message(event)

    def source(self) -> SessionSource:
        return SessionSource(platform=PLATFORM, chat_id="c", chat_type="dm", user_id="ada", user_name="ada")

    def age(self) -> None:
        """Add so many messages that the next one needs a compression first."""
        store = self.runner.session_store
        session = store.get_or_create_session(self.source()).session_id
        for number in range(150):
            store._db.append_message(session, ("user", "assistant")[number % 2], f"f{number} " + "x" * 2800)

    async def idle(self) -> None:
        """Wait until no work has run for half a second."""
        adapter, deadline, since = self.adapter, time.monotonic() + 120, time.monotonic()
        while time.monotonic() < deadline and time.monotonic() - since < 0.5:
            if adapter._active_sessions or self.runner._running_agents or adapter._pending_messages:
                since = time.monotonic()
            await asyncio.sleep(0.02)


async def asked(what: str) -> None:
    """Send an instruction to the model server and wait for its response."""
    await asyncio.get_running_loop().run_in_executor(None, lambda: urllib.request.urlopen(f"{url}/{what}").read())


async def main() -> None:
    peer = Peer()
    count = {"follow-ups": 5, "compression": 40, "stop": 3, "kill": 10}[burst]
    names = [f"message-{number}" for number in range(count)]
    await peer.hear("hello")
    await peer.adapter.answered.wait()
    await peer.idle()
    if burst == "compression":
        peer.age()
    await asked("hold/summary" if burst == "compression" else "hold/turn")
    await peer.hear("first")
    await asked("held")
    for name in names:
        await peer.hear(name)
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.5)  # hermes-agent merges messages that arrive within a second
    if burst == "kill":
        print("ready", flush=True)
        await asyncio.sleep(600)
    if burst == "stop":
        asyncio.get_running_loop().call_later(
            2.0, lambda: asyncio.get_running_loop().run_in_executor(None, urllib.request.urlopen, f"{url}/release")
        )
        await asyncio.wait_for(peer.runner.stop(), 120)
    else:
        await asked("release")
        await peer.idle()
    report(names)
    os._exit(0)  # do not wait for its threads


asyncio.run(main())
