"""A round of hermes-agent's gateway turns for every line on stdin. Runs in a venv of its own, without everhold.

It drives hermes-agent's gateway class with an adapter that delivers messages in memory, so its turns cost less than
in use, where HTTP is added. The home, the model and the history are made here. hermes-agent itself is unmodified.
"""

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path

directory, size, url, turns = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
NOTE = "What about the other one? I have thought about it for a while and came to no conclusion yet."
CONFIG = f"""\
model: {{default: instant, provider: custom, base_url: "{url}", api_key: none, context_length: 2000000}}
auxiliary:
  compression: {{provider: custom, model: instant, base_url: "{url}", api_key: none, context_length: 2000000}}
  title_generation: {{enabled: false}}
"""


def prepare_environment() -> None:
    """Use a separate home, and remove settings that point outside of it."""
    for name in list(os.environ):
        if name.startswith(("HERMES_", "OPENAI_", "OPENROUTER_", "ANTHROPIC_")):
            del os.environ[name]
    home = directory / "hermes"
    home.mkdir()
    (home / "config.yaml").write_text(CONFIG)
    os.environ |= {
        "HOME": str(directory),
        "HERMES_HOME": str(home),
        "HERMES_DISABLE_LAZY_DEPS": "1",
        "GATEWAY_ALLOW_ALL_USERS": "true",
        "NO_PROXY": "*",
    }
    os.chdir(directory)
    logging.disable(logging.CRITICAL)


prepare_environment()  # hermes-agent reads its environment at import

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
        self.sent: list[str] = []

    async def connect(self, *, is_reconnect: bool = False) -> bool:
        return True

    async def disconnect(self) -> None: ...

    async def send(self, chat_id, content, reply_to=None, metadata=None):
        self.sent.append(content)
        return SendResult(success=True, message_id=str(len(self.sent)))

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

    def event(self) -> MessageEvent:
        self.count += 1
        source = SessionSource(platform=PLATFORM, chat_id="c", chat_type="dm", user_id="ada", user_name="ada")
        return MessageEvent(text=NOTE, message_type=MessageType.TEXT, message_id=str(self.count), source=source)

    async def turn(self) -> None:
        """Send an event and wait for the reply and for the end of all work."""
        before = len(self.adapter.sent)
        await self.adapter.handle_message(self.event())
        deadline = time.monotonic() + 60
        while not any("Certainly" in text for text in self.adapter.sent[before:]) or self.busy():
            assert time.monotonic() < deadline, self.adapter.sent[before:]
            await asyncio.sleep(0.002)

    def busy(self) -> bool:
        adapter = self.adapter
        return bool(adapter._active_sessions or self.runner._running_agents or adapter._pending_messages)

    def age(self) -> None:
        """Add `size` messages to the session."""
        store = self.runner.session_store
        session = store.get_or_create_session(self.event().source).session_id
        roles = ("user", "assistant")
        rows = [{"role": roles[number % 2], "content": f"{number} {NOTE}"} for number in range(size)]
        database = store._db
        database._execute_write(lambda cursor: database._insert_message_rows(cursor, session, rows))


async def main() -> None:
    peer = Peer()
    await peer.turn()
    peer.age()
    for _ in range(2):
        await peer.turn()
    told = sys.stdout
    print("[]", file=told, flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        started = time.process_time()
        for _ in range(turns):
            await peer.turn()
        print(json.dumps([(time.process_time() - started) / turns * 1e3]), file=told, flush=True)
    os._exit(0)  # do not wait for its threads


asyncio.run(main())
