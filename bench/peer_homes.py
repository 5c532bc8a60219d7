"""Fill a home with hermes-agent's own classes. Runs in its own venv, without everhold: `peer_homes.py HOME SCENARIO`.

Its gateway, agent and store write the data. Ours are only the two ends that would need a network: an adapter that
delivers messages in memory, and a model that answers immediately.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

home, scenario = Path(sys.argv[1]).absolute(), sys.argv[2]
SUMMARY = "## Goal\nto see what a summary keeps"
during: list[Any] = []
"""Called while a summary is being made."""


class Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def _send(self, told: Any) -> None:
        data = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "m", "object": "model", "context_length": 131072}]})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = "pong"
        if any("context checkpoint" in str(message.get("content"))[:200] for message in asked["messages"]):
            for act in during:
                act()
            during.clear()
            text = SUMMARY
        usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
        if not asked.get("stream"):
            message = {"role": "assistant", "content": text}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            self._send(
                {
                    "id": "c",
                    "object": "chat.completion",
                    "created": 1,
                    "model": "m",
                    "choices": [choice],
                    "usage": usage,
                }
            )
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        for choices, more in (
            ([{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}], {}),
            ([{"index": 0, "delta": {}, "finish_reason": "stop"}], {}),
            ([], {"usage": usage}),
        ):
            self.wfile.write(b"data: " + json.dumps({**base, "choices": choices, **more}).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True


server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_address[1]}/v1"


def configure(*, in_place: bool = True) -> None:
    model = f'{{default: m, provider: custom, base_url: "{url}", api_key: none, context_length: 131072}}'
    helper = f'{{provider: custom, model: m, base_url: "{url}", api_key: none, context_length: 131072}}'
    lines = [f"model: {model}", "auxiliary:", f"  compression: {helper}", "  title_generation: {enabled: false}"]
    lines += [
        "compression:",
        f"  in_place: {str(in_place).lower()}",
        "memory: {provider: honcho}",
        "busy_input_mode: queue",
    ]
    (home / "config.yaml").write_text("\n".join(lines) + "\n")


for name in list(os.environ):
    if name.startswith(("HERMES_", "HONCHO_", "OPENAI_", "ANTHROPIC_", "OPENROUTER_")):
        del os.environ[name]
home.mkdir(parents=True, exist_ok=True)
os.environ |= {"HERMES_HOME": str(home), "HOME": str(home), "HERMES_DISABLE_LAZY_DEPS": "1", "NO_PROXY": "*"}
os.environ["GATEWAY_ALLOW_ALL_USERS"] = "true"
os.chdir(home)
configure()

import run_agent  # noqa: E402
import tools.lazy_deps  # noqa: E402
from hermes_state import SessionDB  # noqa: E402

tools.lazy_deps.ensure = lambda *_a, **_k: None
lines_of = logging.getLogger("agent.conversation_compression")


def log_to_file() -> None:
    from hermes_logging import setup_logging

    setup_logging(hermes_home=home)


def agent(db: Any, session: str) -> Any:
    return run_agent.AIAgent(
        base_url=url,
        api_key="none",
        provider="custom",
        model="m",
        quiet_mode=True,
        max_iterations=4,
        enabled_toolsets=["memory"],
        session_db=db,
        session_id=session,
    )


def fill(db: Any, session: str, count: int, tag: str, chars: int = 300) -> None:
    """Exchanges, every third of them with a tool call."""
    for n in range(count):
        db.append_message(session, "user", f"{tag} question {n} " + "x" * chars)
        if n % 3 == 0:
            call = {
                "id": f"{tag}{n}",
                "type": "function",
                "function": {"name": "look", "arguments": json.dumps({"n": n})},
            }
            db.append_message(session, "assistant", "", tool_calls=[call], finish_reason="tool_calls")
            db.append_message(session, "tool", f"{tag} saw {n}", tool_call_id=f"{tag}{n}", tool_name="look")
        db.append_message(
            session, "assistant", f"{tag} answer {n} " + "y" * chars, finish_reason="stop", reasoning="so"
        )


def compress(db: Any, session: str) -> Any:
    worker = agent(db, session)
    worker._compress_context(db.get_messages_as_conversation(session), "", approx_tokens=100_000, force=True)
    return worker


# -- scenarios ---------------------------------------------------------------------------------------------------------


def plain() -> None:
    """A terminal session with tools, a multimodal message, an undone turn, a title, usage."""
    db = SessionDB(home / "state.db")
    db.create_session("20260101_100000_aaaaaa", source="cli", cwd="/srv/project")
    fill(db, "20260101_100000_aaaaaa", 6, "a")
    db.append_message("20260101_100000_aaaaaa", "user", [{"type": "text", "text": "look at this"}])
    db.append_message("20260101_100000_aaaaaa", "assistant", "a picture")
    gone = db.append_message("20260101_100000_aaaaaa", "user", "take this back")
    db.append_message("20260101_100000_aaaaaa", "assistant", "as you wish")
    db.rewind_to_message("20260101_100000_aaaaaa", gone)
    db.append_message("20260101_100000_aaaaaa", "user", "rather this")
    db.append_message("20260101_100000_aaaaaa", "assistant", "fine")
    db.set_session_title("20260101_100000_aaaaaa", "A plain talk")
    db.update_token_counts(
        "20260101_100000_aaaaaa", input_tokens=1000, output_tokens=200, model="m", estimated_cost_usd=0.25
    )
    (home / "memories").mkdir(exist_ok=True)
    (home / "memories" / "MEMORY.md").write_text("The server is called tin.\n§\nDeploys happen on Fridays.")
    (home / "memories" / "USER.md").write_text("Ada likes tea.")
    (home / "SOUL.md").write_text("You are calm.")


def compressed() -> None:
    """In place, twice, with a turn between."""
    db = SessionDB(home / "state.db")
    db.create_session("20260102_100000_bbbbbb", source="cli")
    fill(db, "20260102_100000_bbbbbb", 20, "b")
    compress(db, "20260102_100000_bbbbbb")
    fill(db, "20260102_100000_bbbbbb", 20, "c")
    compress(db, "20260102_100000_bbbbbb")
    fill(db, "20260102_100000_bbbbbb", 2, "d")


def unread() -> None:
    """A user writes while the summary is made. Those rows are archived and never read."""
    db = SessionDB(home / "state.db")
    session = "20260103_100000_cccccc"
    db.create_session(session, source="cli")
    fill(db, session, 20, "e")
    other = SessionDB(home / "state.db")

    def write() -> None:
        other.append_message(session, "user", "written meanwhile", observed=True)

    during.append(write)
    compress(db, session)
    fill(db, session, 2, "f")


def rotated() -> None:
    """The older method: each compression ends the session and continues under another id."""
    configure(in_place=False)
    db = SessionDB(home / "state.db")
    session = "20260104_100000_dddddd"
    db.create_session(session, source="cli")
    fill(db, session, 20, "g")
    for tag in ("h", "i"):
        session = compress(db, session).session_id
        fill(db, session, 20 if tag == "h" else 2, tag)
    configure()


def retried() -> None:
    """A compression, then a retry, which deletes everything that was archived."""
    db = SessionDB(home / "state.db")
    session = "20260105_100000_eeeeee"
    db.create_session(session, source="cli")
    fill(db, session, 20, "j")
    compress(db, session)
    fill(db, session, 1, "k")
    live = db.get_messages_as_conversation(session)
    db.replace_messages(session, live[:-1])
    db.append_message(session, "assistant", "k answer once more")


def raced() -> None:
    """Concurrent writers of one session, and concurrent compressions of one session with the older method."""
    configure(in_place=False)
    db = SessionDB(home / "state.db")
    db.create_session("20260106_100000_ffffff", source="cli")

    def write(tag: str) -> None:
        fill(SessionDB(home / "state.db"), "20260106_100000_ffffff", 5, tag)

    together([threading.Thread(target=write, args=(f"w{n}",)) for n in range(3)])
    session = "20260107_100000_abcdef"
    db.create_session(session, source="cli")
    fill(db, session, 20, "l")
    told = db.get_messages_as_conversation(session)

    def shrink() -> None:
        worker = agent(SessionDB(home / "state.db"), session)
        worker._compress_context([dict(m) for m in told], "", approx_tokens=100_000, force=True)

    together([threading.Thread(target=shrink) for _ in range(3)])
    configure()


def together(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def gateway() -> None:
    """Chats through its own gateway: a direct one with a title, a branch and an undo, and a group."""
    asyncio.run(_gateway())


@contextlib.asynccontextmanager
async def running_gateway(*names: str) -> Any:
    """Its gateway with adapters in memory. Yields a function that sends a message and waits for the answer."""
    import gateway.run as running
    from gateway.config import Platform, PlatformConfig, load_gateway_config
    from gateway.platforms.base import BasePlatformAdapter, MessageEvent, MessageType, SendResult
    from gateway.session import SessionSource

    class Adapter(BasePlatformAdapter):
        def __init__(self, platform: Any) -> None:
            super().__init__(PlatformConfig(enabled=True, typing_indicator=False), platform)
            self.sent = 0

        async def connect(self, *, is_reconnect: bool = False) -> bool:
            return True

        async def disconnect(self) -> None: ...

        async def send(self, chat_id: Any, content: Any, reply_to: Any = None, metadata: Any = None) -> Any:
            self.sent += 1
            return SendResult(success=True, message_id=str(self.sent))

        async def get_chat_info(self, chat_id: Any) -> Any:
            return {"name": str(chat_id), "type": "dm"}

    config = load_gateway_config()
    platforms = [Platform(name) for name in names or ("telegram",)]
    for platform in platforms:
        config.platforms[platform] = PlatformConfig(enabled=True, typing_indicator=False)
    runner = running.GatewayRunner(config)
    for platform in platforms:
        runner.adapters[platform] = adapter = Adapter(platform)
        adapter.set_message_handler(runner._handle_message)
        for name, value in (
            ("set_busy_session_handler", runner._handle_active_session_busy_message),
            ("set_session_store", runner.session_store),
        ):
            if hasattr(adapter, name):
                getattr(adapter, name)(value)
        adapter._busy_text_mode = runner._busy_text_mode
        adapter.gateway_runner = runner
    runner._running = True
    state = SimpleNamespace(message=0)

    async def say(
        text: str, *, chat: str = "1001", user: str = "1001", kind: str = "dm", on: str = platforms[0].value
    ) -> None:
        state.message += 1
        platform = Platform(on)
        adapter = runner.adapters[platform]
        source = SessionSource(platform=platform, chat_id=chat, chat_type=kind, user_id=user, user_name="Ada")
        event = MessageEvent(text=text, message_type=MessageType.TEXT, message_id=str(state.message), source=source)
        await adapter.handle_message(event)
        until = time.time() + 60
        while time.time() < until:
            if not (adapter._active_sessions or runner._running_agents or adapter._pending_messages):
                return
            await asyncio.sleep(0.02)
        raise TimeoutError(text)

    yield say
    await runner.stop()


async def _gateway() -> None:
    async with running_gateway() as say:
        for text in ("hello", "second", "/title My chat", "third", "/undo", "fourth", "/new", "after new"):
            await say(text)
        await say("in the group", chat="-100", user="1001", kind="group")
        await say("me too", chat="-100", user="2002", kind="group")
        await say("to branch from", chat="3003", user="3003")
        await say("/branch other", chat="3003", user="3003")
        await say("on the branch", chat="3003", user="3003")


def moving() -> None:
    """One person in a direct chat, with memory files, as a home is when its owner moves."""
    asyncio.run(_moving())
    (home / "memories").mkdir(exist_ok=True)
    (home / "memories" / "MEMORY.md").write_text("The server is called tin.\n§\nDeploys happen on Fridays.")
    (home / "memories" / "USER.md").write_text("Ada takes warfarin.")
    (home / "SOUL.md").write_text("You are calm.")
    (home / ".env").write_text("TELEGRAM_ALLOWED_USERS=1001\n")


async def _moving() -> None:
    async with running_gateway() as say:
        for text in ("my parrot is called Quillon", "the meeting is on Thursday"):
            await say(text)


def household() -> None:
    """Several people on two platforms, in direct chats and a group. Two of them have the same id. Files as in real
    homes: memory files, Honcho with an alias, a persona that is a symbolic link, settings and folders that stay behind.
    """
    asyncio.run(_household())
    write_household_files()


async def _household() -> None:
    async with running_gateway("telegram", "discord") as say:
        await say("my parrot is called Quillon")
        await say("/new")
        await say("the meeting is on Thursday")
        await say("my alarm code is 4711", chat="2002", user="2002")
        await say("who brings the cake?", chat="-100", user="1001", kind="group")
        await say("I bring the cake with plums", chat="-100", user="2002", kind="group")
        await say("I live in Trieste", chat="555", user="555")
        await say("I live in Bergen", chat="555", user="555", on="discord")


def write_household_files() -> None:
    for folder in ("memories", "skills/greeting", "cron"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    (home / "memories" / "MEMORY.md").write_text("The server is called tin.\n§\nDeploys happen on Fridays.")
    (home / "memories" / "USER.md").write_text("Ada takes warfarin.")
    (home / "skills" / "greeting" / "SKILL.md").write_text("# Greeting\nSay hello.")
    (home / "cron" / "jobs.json").write_text(json.dumps({"jobs": [{"id": "j1", "prompt": "Good morning"}]}))
    persona = home.parent / "persona.md"
    persona.write_text("You are calm.")
    (home / "SOUL.md").unlink(missing_ok=True)
    (home / "SOUL.md").symlink_to(persona)
    (home / ".env").write_text("TELEGRAM_ALLOWED_USERS=1001,2002,555\nDISCORD_ALLOWED_USERS=555\n")


def logged() -> None:
    """agent.log lines of compressions as they are written."""
    log_to_file()
    compressed()
    rotated()


SCENARIOS = {
    it.__name__: it for it in (plain, compressed, unread, rotated, retried, raced, gateway, moving, household, logged)
}
for word in scenario.split(","):
    SCENARIOS[word]()
sys.stdout.write("done\n")
sys.stdout.flush()
os._exit(0)
