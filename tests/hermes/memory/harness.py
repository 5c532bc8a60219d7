"""Plug-ins for tests, and the provider that runs them."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from everhold.core.entries import Stamp
from everhold.hermes.memory.identity import choose_home_key
from everhold.hermes.memory.provider import HermesMemory
from everhold.hermes.memory.settings import HermesSettings
from everhold.ports.log import EventLogger
from everhold.ports.memory import Exchange, MemoryBatch, MemoryNote, MemoryQuery, MemoryUtterance
from everhold.ports.plugin import PluginContext

NAME = "agent-main-telegram-dm-42"
STAMP = Stamp(person="ada", audience=("person:ada",), address="agent:main:telegram:dm:42", title="Plans")
DIARY = """
import json, os
from hermes_constants import get_hermes_home
def write(*what):
    with open(get_hermes_home() / "diary.jsonl", "a") as file:
        file.write(json.dumps(what, default=str) + "\\n")
"""
RECORDER = (
    "from agent.memory_provider import MemoryProvider\n"
    + DIARY
    + """
class Recorder(MemoryProvider):
    name = "recorder"
    def initialize(self, session_id, **kwargs): write("initialize", session_id, kwargs)
    def get_tool_schemas(self):
        return [{"name": "flat", "description": "Flat.", "parameters": {"type": "object", "properties": {}}},
                {"type": "function", "function": {"name": "wrapped", "parameters": {"type": "object"}}},
                {"description": "nameless"}]
    def system_prompt_block(self): return "I am a recorder."
    def prefetch(self, query, *, session_id=""): write("prefetch", query, session_id); return "recalled: " + query
    def queue_prefetch(self, query, *, session_id=""): write("queue_prefetch", query)
    def sync_turn(self, user_content, assistant_content, *, session_id="", messages=None):
        write("sync_turn", user_content, assistant_content, session_id, len(messages or []))
    def handle_tool_call(self, tool_name, args, **kwargs):
        write("tool", tool_name, args)
        return json.dumps({"error": "no"} if args.get("fail") else {"ok": tool_name})
    def on_turn_start(self, turn_number, message, **kwargs): write("on_turn_start", turn_number, message)
    def on_session_end(self, messages): write("on_session_end", len(messages))
    def on_session_switch(self, new_session_id, *, parent_session_id="", reset=False, **kwargs):
        write("on_session_switch", new_session_id, parent_session_id, reset)
    def on_pre_compress(self, messages): write("on_pre_compress", messages); return "keep the cat"
    def on_memory_write(self, action, target, content, metadata=None): write("on_memory_write", action, target, content)
    def shutdown(self): write("shutdown")
"""
)
REGISTERED = (
    RECORDER + "def register(ctx):\n    ctx.register_memory_provider(Recorder())\n    ctx.register_hook('x', print)\n"
)


class RecordingLogger:
    """A logger that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, object]]] = []

    def debug(self, event: str, /, **fields: object) -> None:
        self.lines.append(("debug", event, fields))

    def info(self, event: str, /, **fields: object) -> None:
        self.lines.append(("info", event, fields))

    def warning(self, event: str, /, **fields: object) -> None:
        self.lines.append(("warning", event, fields))

    def error(self, event: str, /, **fields: object) -> None:
        self.lines.append(("error", event, fields))

    def bind(self, **fields: object) -> EventLogger:
        return self


class WallClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class HermesPluginHarness:
    """One plug-in's directory, and providers that load it one after another."""

    def __init__(self, path: Path, source: str = REGISTERED, *, name: str = "recorder") -> None:
        self.path = path
        self.plugin = path / "plugins" / name
        self.plugin.mkdir(parents=True)
        (self.plugin / "__init__.py").write_text(source)
        self.home = path / "hermes"
        self.log = RecordingLogger()

    @asynccontextmanager
    async def open(self, owner: str | None = "ada", /, **settings: Any) -> AsyncIterator[HermesMemory]:
        """Open the provider. Most tests are about one person, the owner, so others are served without a test."""
        given = {
            "path": str(self.plugin),
            "hermes_home": str(self.home),
            "deadline_seconds": 60.0,
            "serves": "everybody",
            "network": settings.get("sandbox") != "none",  # services of the tests are on loopback
            **settings,
        }
        directory = self.path / "data"
        directory.mkdir(exist_ok=True)
        context = PluginContext(
            agent="main",
            instance="notes",
            directory=directory,
            log=self.log,
            clock=WallClock(),
            is_owner=lambda who: None if owner is None else who == owner,
        )
        provider = HermesMemory(HermesSettings.model_validate(given), context)
        try:
            yield provider
        finally:
            await provider.close()

    def find_home(self, stamp: Stamp) -> Path:
        """Return the home of a person or room that is not the owner."""
        return self.path / "data" / "homes" / choose_home_key(stamp)

    def read_calls(self, *kinds: str, home: Path | None = None) -> list[list[Any]]:
        """Return the calls that the plug-in recorded in a home; by default in the owner's."""
        file = (home or self.home) / "diary.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [line for line in lines if not kinds or line[0] in kinds]


def make_utterance(text: str, author: str = "person:ada", stamp: Stamp = STAMP) -> MemoryUtterance:
    return MemoryUtterance(author=author, text=text, at=1.0, stamp=stamp)


def make_exchange(
    text: str, reply: str = "I see.", *, key: str = "k", stamp: Stamp = STAMP, session: str = "s"
) -> Exchange:
    return Exchange(
        key=key,
        session=session,
        agent="main",
        op=1,
        heard=(make_utterance(text, stamp=stamp),),
        said=(make_utterance(reply, "agent:main", stamp),),
        stamp=stamp,
    )


def make_note(text: str, *, key: str = "n", action: str = "add") -> MemoryNote:
    return MemoryNote(
        key=key, session="s", agent="main", seq=1, text=text, author="person:ada", at=1.0, stamp=STAMP, action=action
    )


def make_batch(*items: Exchange | MemoryNote, name: str = NAME) -> MemoryBatch:
    return MemoryBatch(name=name, items=items)


def make_query(text: str, *, stamp: Stamp = STAMP, name: str = NAME) -> MemoryQuery:
    return MemoryQuery(
        text=text, agent="main", session="s", name=name, audience=stamp.audience, person=stamp.person, stamp=stamp
    )
