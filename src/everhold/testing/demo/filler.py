"""Plays the month in a real gateway whose clock begins in the past. A model server on loopback answers as scripted."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Mapping
from typing import Any, Final

from everhold.app import GatewayApp, load_home_settings
from everhold.core.entries import ChatLocation, ToolCall
from everhold.errors import Conflict, Refused
from everhold.infra.home import Home
from everhold.platforms import http
from everhold.ports.platform import IncomingMessage, OutgoingMessage
from everhold.telemetry.logs import open_log
from everhold.testing.demo.month import (
    FORGETTABLE,
    PEOPLE,
    REFUSED_WORD,
    SMALL_TALK,
    SUMMARY,
    TALKS,
    TOPICS,
    DemoTalk,
    DemoTurn,
)
from everhold.testing.fakes import FakePlatform
from everhold.testing.model_dialects import ReceivedModelRequest
from everhold.testing.model_server import ModelServer, ModelServerReply

PLATFORM: Final = "telegram"
DAY_SECONDS: Final = 86_400.0
BETWEEN_TURNS_SECONDS: Final = 70.0
IDLE_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.01
AWAITED: Final = ("turn", "commands", "compression", "platform:", "memory:")
"""The consumers that have to be done before the next message."""
STRANGER: Final = "5005"

CONFIG: Final = """\
# A home for trying the console. `everhold demo` made it; all people and messages in it are invented.
models:
  assistant:
    provider: openai
    name: assistant-large
    base_url: {url}
    context_tokens: 100000
    price: {{input: 2.5, output: 10}}
agents:
  main: {{persona: You help a small team in Kiel., model: {model}, recall: {{deadline_seconds: 20}}}}
  coder: {{persona: You write shell and Python., model: {model}}}
policy:
  rules:
    - {{tool: schedule, do: ask}}
people:
  - {{name: ada, identities: ["{platform}:1001", "http:ada"]}}
platforms:
  {platform}:
    main: {{token_env: DEMO_TOKEN, enabled: false, access: {{direct: [{direct}]}}}}
"""


class ShiftedClock:
    """A clock that begins in the past and is moved forward."""

    def __init__(self, at: float) -> None:
        self._shift = at - time.time()

    def now(self) -> float:
        return time.time() + self._shift

    def monotonic(self) -> float:
        return time.monotonic()

    def move_to(self, at: float) -> None:
        """Let it be `at`, unless it is later already."""
        self._shift = max(self._shift, at - time.time())


class DemoPlatform(FakePlatform):
    """A chat platform that refuses some replies for good."""

    async def send(self, out: OutgoingMessage) -> str:
        if REFUSED_WORD in out.text:
            raise Refused("the message has a word that this chat does not allow", remedy="change the word")
        return await super().send(out)


async def fill_home(home: Home, *, environ: Mapping[str, str]) -> dict[str, int]:
    """Fill a new home. Return how much there is of what."""
    if home.store.exists() or home.config.exists():
        raise Conflict(f"{home.path} is in use", remedy="--home names a directory for the demo")
    direct = ", ".join(f'"{PLATFORM}:{id}"' for id in PEOPLE.values())
    async with ModelServer(default=_answer) as server:
        _write_config(home, CONFIG.format(url=server.openai, model="assistant", platform=PLATFORM, direct=direct))
        clock = ShiftedClock(time.time() - 31 * DAY_SECONDS)
        log = open_log(clock=clock, stream=io.StringIO())
        app = GatewayApp(home, load_home_settings(home, environ=environ), log=log, environ=environ, clock=clock)
        app.platforms[PLATFORM, "main"] = DemoPlatform(name=PLATFORM)
        try:
            await app.start()
            counts = await _DemoMonth(app, clock).play()
        finally:
            await app.stop()
    _write_config(home, CONFIG.format(url="http://127.0.0.1:9/v1", model="offline", platform=PLATFORM, direct=direct))
    return counts


def _write_config(home: Home, text: str) -> None:
    home.config.write_text(text)
    home.config.chmod(0o600)


class _DemoMonth:
    def __init__(self, app: GatewayApp, clock: ShiftedClock) -> None:
        self._app = app
        self._clock = clock
        self._now = time.time()

    async def play(self) -> dict[str, int]:
        talks = sorted((*TALKS, *_make_small_talk()), key=lambda it: -it.day)
        for number, talk in enumerate(talks):
            hour = 8 + number % 9
            self._clock.move_to(self._now - talk.day * DAY_SECONDS - (17 - hour) * 3600 + number * 40)
            await self._play_talk(talk)
        self._clock.move_to(self._now)
        await self._app.admission.pairing.request_pairing(PLATFORM, "main", STRANGER, name="Noor", chat=STRANGER)
        await self._app.overview.catch_up_to_end(self._app.store)
        sessions = await self._app.store.list_sessions(limit=1_000)
        entries = sum(session.last_seq for session in sessions)
        return {"sessions": len(sessions), "entries": entries, "days": 31}

    async def _play_talk(self, talk: DemoTalk) -> None:
        session = ""
        for turn in talk.turns:
            session = await self._say(talk, turn.text)
            self._clock.move_to(self._clock.now() + BETWEEN_TURNS_SECONDS)
        if len(talk.turns) > 4 and talk.title:
            await self._say(talk, "/compress here 2")
        if talk.title:
            await self._app.session_admin.rename_session(session, talk.title, by="operator")
        if talk.archived:
            await self._app.session_admin.archive_session(session, archived=True, by="operator")

    async def _say(self, talk: DemoTalk, text: str) -> str:
        incoming = _build_message(talk, text, id=f"{self._clock.now():.3f}")
        accepted = await self._app.accept(incoming)
        session = accepted.session
        assert session, f"the demo's message was not accepted: {accepted}"
        await asyncio.wait_for(self._wait_until_idle(session), IDLE_SECONDS)
        return session

    async def _wait_until_idle(self, session: str) -> None:
        while not await self._is_idle(session):  # noqa: ASYNC110  # only a demo waits here
            await asyncio.sleep(LOOK_SECONDS)

    async def _is_idle(self, session: str) -> bool:
        found = await self._app.store.get_session(session)
        cursors = await self._app.store.list_cursors(session=session, waiting=True)
        return not (found.running or found.pending or any(it.consumer.startswith(AWAITED) for it in cursors))


def _build_message(talk: DemoTalk, text: str, *, id: str) -> IncomingMessage:
    if talk.platform == http.NAME:
        origin = http.locate_chat(chat=talk.chat, sender=talk.person, local=False, id=id)
        return http.build_incoming_message(agent=talk.agent, text=text, sender=talk.person, origin=origin)
    origin = ChatLocation(platform=talk.platform, account="main", chat=talk.chat, message=id)
    name = talk.person.title()
    return IncomingMessage(origin=origin, text=text, sender=PEOPLE[talk.person], name=name, agent=talk.agent)


def _make_small_talk() -> list[DemoTalk]:
    """Return short conversations for every day, so that lists and sums have a month to show."""
    people = [name for name in PEOPLE if name != FORGETTABLE]
    talks = []
    for day in range(1, 31):
        topic, (question, answer) = TOPICS[day % len(TOPICS)], SMALL_TALK[day % len(SMALL_TALK)]
        turn = DemoTurn(question.format(topic=topic), answer.format(topic=topic))
        talks.append(DemoTalk(day, people[day % len(people)], f"day-{day}", (turn,)))
    return talks


_TURNS: Final = {
    turn.text: turn for talk in (*TALKS, *_make_small_talk()) for turn in talk.turns if not turn.text.startswith("/")
}


def _answer(request: ReceivedModelRequest) -> ModelServerReply:
    """Answer the last message of a person as the month says."""
    messages = request.json["messages"]
    asked = [_read_text(it) for it in messages if it["role"] == "user"]
    turn = next((_TURNS[text] for text in _TURNS if asked and asked[-1].strip().endswith(text)), None)
    if turn is None:
        return ModelServerReply(text=SUMMARY)
    if turn.calls and messages[-1]["role"] != "tool":
        calls = tuple(ToolCall(id=f"c{at}", tool=tool, arguments=given) for at, (tool, given) in enumerate(turn.calls))
        return ModelServerReply(calls=calls)
    return ModelServerReply(text=turn.answer)


def _read_text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
