"""Plays a conversation in a house of its own, folds it, and looks at what is left. The flows are real, time is not."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.core import compression
from everhold.core.context import messages
from everhold.core.entries import Call, Compressed, Entry, Heard, Noted, Returned, Said, Thought, Usage
from everhold.errors import Overloaded
from everhold.evals.conversation import Act, Conversation, Turn
from everhold.evals.score import Score, invented, judge, normal
from everhold.flow.runtime import Runtime
from everhold.flow.view import view_at
from everhold.memories.builtin.index import Index
from everhold.ports.model import Answer, Message, Model, Request, ToolSpec
from everhold.ports.tool import Effect, Result, ToolContext
from everhold.testing.house import Furniture, House

KEEP: Final = 2
"""Exchanges that stay as they are. Few, so that the summary and not the tail is what is scored."""
PROBE: Final = "…"
"""What is said last, to see what the model is shown then. It gives nothing away."""
HITS: Final = 5
WINDOW_SHARE: Final = 0.9
"""Of a conversation's own size: the window it is squeezed into when it folds by itself."""
DEADLINE_SECONDS: Final = 170.0


class Player:
    """Answers as the conversation says, and keeps what it was shown."""

    name = "player"

    def __init__(self, context_tokens: int) -> None:
        self.context_tokens = context_tokens
        self.turn = Turn(who="", text="")
        self.shown: Request | None = None

    async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
        self.shown = request
        if self.turn.acts and request.messages[-1].role != "tool":
            calls = tuple(
                Call(id=f"c{n}", tool=act.tool, arguments=act.arguments) for n, act in enumerate(self.turn.acts)
            )
            return Answer(calls=calls, model=self.name)
        return Answer(text=self.turn.reply or "…", model=self.name)


class Prop:
    """A tool of the stage: gives back what the conversation says it gave back."""

    deadline = 30.0

    def __init__(self, act: Act, player: Player) -> None:
        self.spec = ToolSpec(name=act.tool, description="part of the conversation", parameters={"type": "object"})
        self.effect = Effect.ONCE if act.changes else Effect.PURE
        self.player = player

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        acts = [act for act in self.player.turn.acts if act.tool == self.spec.name and act.arguments == arguments]
        return Result(text=acts[0].result if acts else "")

    async def probe(self, context: ToolContext) -> Result | None:
        return None


class Watched:
    """The model under test, with a look at what it costs."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.name = model.name
        self.context_tokens = model.context_tokens
        self.usage = Usage()
        self.seconds = 0.0

    async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
        started = time.perf_counter()
        try:
            answer = await self.model.answer(request)
        finally:
            self.seconds += time.perf_counter() - started
        self.usage += answer.usage
        return answer


class Distant:
    """A model that needs a real loop, for a world in which time stands still while it is asked."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.name = model.name
        self.context_tokens = model.context_tokens
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="evals-model", daemon=True)
        self._thread.start()

    async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
        asked = asyncio.run_coroutine_threadsafe(self.model.answer(request), self._loop)
        try:
            return asked.result(timeout=DEADLINE_SECONDS)  # the whole virtual world waits: that is the point
        except TimeoutError:
            asked.cancel()
            raise Overloaded(f"{self.name} gave no answer within {DEADLINE_SECONDS:g} s") from None

    def close(self, *, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Stop the loop, after `last` was run on it."""
        if last is not None:
            asyncio.run_coroutine_threadsafe(last(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()


class Scenery(Furniture):
    """The house's furniture, with a player for the conversation and the model under test for its summaries."""

    def __init__(self, conversation: Conversation, summariser: Model, *, window: int) -> None:
        super().__init__()
        self.player = Player(window)
        self.tested = summariser
        acts = [act for turn in conversation.turns for act in turn.acts]
        self.tools = {act.tool: Prop(act, self.player) for act in acts}

    def runtime(self, agent: str, choices: Mapping[str, str]) -> Runtime:
        return dataclasses.replace(super().runtime(agent, choices), models=(self.player,), summariser=self.tested)


@contextlib.contextmanager
def _house(scenery: Scenery) -> Iterator[House]:
    with tempfile.TemporaryDirectory(prefix="everhold-eval-") as directory:
        house = House(Path(directory))
        scenery.platforms[("fake", "main")] = house.platform
        house.furniture = scenery
        with house.awake():
            yield house


def play(conversation: Conversation, summariser: Model, *, folds: int, keep: int = KEEP) -> Score:
    """Replay, fold `folds` times (0: whenever the small window fills up) and score what the next turn is shown."""
    watched = Watched(summariser)
    size = compression.tokens(tuple(Message(role="user", text=turn.words()) for turn in conversation.turns))
    scenery = Scenery(conversation, watched, window=10_000_000 if folds else max(400, int(size * WINDOW_SHARE)))
    scenery.settings.update(keep=keep)
    with _house(scenery) as house:
        sessions = _talk(house, scenery, conversation, folds=folds, keep=keep)
        session = sessions[-1]
        shown = scenery.player.shown
        assert shown is not None
        log = house.run(house.store.list_entries(session))
        folded = [entry.body for entry in log if isinstance(entry.body, Compressed)]
        tail = [m for m in shown.messages if not (m.name == "everhold" and m.text.startswith("[Summary"))]
        seen, rest = (normal("\n".join(map(_words, part))) for part in (shown.messages, tail))
        told = normal("\n".join(_told(entry) for entry in log))
        hits = _search(house, session, log, [question.ask for question in conversation.questions])
        before = house.run(
            view_at(house.store, house.run(house.store.get_session(session)), at=log[-1].seq + 1, fold=0)
        )
        report = house.run(house.control.audit())
        said = conversation.words()
        return Score(
            conversation=conversation.name,
            language=conversation.language,
            model=watched.name,
            asked=str(folds) if folds else "auto",
            folds=len(folded),
            same_session=len(set(sessions)) == 1 and len(house.run(house.store.list_sessions())) == 1,
            broken=tuple(f"{finding.promise}: {finding.text}" for finding in report.broken),
            refused=tuple(str(line["reason"]) for line in house.diary.of("compression.refused")),
            outcomes=tuple(
                judge(question, shown=seen, verbatim=rest, hits=hits[question.ask], log=told)
                for question in conversation.questions
            ),
            invented=tuple(dict.fromkeys(it for body in folded for it in invented(body.summary, said))),
            tokens_before=compression.tokens(messages(before)),
            tokens_after=compression.tokens(shown.messages),
            read=watched.usage.input,
            written=watched.usage.output,
            usd=watched.usage.usd,
            seconds=watched.seconds,
        )


def _talk(house: House, scenery: Scenery, conversation: Conversation, *, folds: int, keep: int) -> list[str]:
    """Everything is said; the sessions it was heard in."""
    count = len(conversation.turns)
    marks = {keep + round((count - keep) * n / folds) for n in range(1, folds + 1)}
    kind = "group" if len({turn.who for turn in conversation.turns}) > 1 else "dm"
    sessions: list[str] = []
    for number, turn in enumerate(conversation.turns, start=1):
        scenery.player.turn = turn
        sessions.append(house.say(turn.text, who=turn.who, kind=kind).session)
        if number in marks:
            house.run(house.control.compress(sessions[-1], keep=keep))
            house.rest()
    scenery.player.turn = Turn(who="", text=PROBE)
    sessions.append(house.say(PROBE, who=conversation.turns[-1].who, kind=kind).session)
    return sessions


def _search(house: House, session: str, log: list[Entry], asks: list[str]) -> dict[str, list[str]]:
    """What a search for each question finds among the originals."""
    heard = next(entry.body for entry in log if isinstance(entry.body, Heard))
    index = Index(house.path / "index.db", inline=True)

    async def look() -> dict[str, list[str]]:
        while await index.catch_up(house.store):
            pass
        found: dict[str, list[str]] = {}
        for ask in asks:
            hits = await index.search(
                house.store, ask, agent="main", audience=heard.stamp.audience, session=session, limit=HITS
            )
            found[ask] = [hit.text for hit in hits]
        return found

    return house.run(look())


def _words(message: Message) -> str:
    calls = "".join(f"\n{call.tool} {json.dumps(call.arguments, ensure_ascii=False)}" for call in message.calls)
    return f"{message.name}: {message.text}{calls}"


def _told(entry: Entry) -> str:
    """What an entry says, as far as somebody said or did it; summaries are not originals."""
    match entry.body:
        case Heard(text=text) | Noted(text=text) | Said(text=text) | Returned(text=text):
            return text
        case Thought(text=text, calls=calls):
            return text + "".join(f"\n{call.tool} {msgspec.json.encode(call.arguments).decode()}" for call in calls)
        case _:
            return ""
