"""Replay a conversation in an in-process gateway, compress it, and score what the next turn sees.

The engine is the real one. Time is virtual.
"""

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
from everhold.core.context import render_messages
from everhold.core.entries import Compressed, Entry, Heard, ModelUsage, Noted, Returned, Said, Thought, ToolCall
from everhold.core.provenance import join_all_text
from everhold.engine.agent_runtime import AgentRuntime
from everhold.engine.context_cache import load_context_at
from everhold.errors import Overloaded
from everhold.evals.conversation import EvalConversation, EvalToolCall, EvalTurn
from everhold.evals.score import CompressionScore, find_inventions, judge_answer, normalize_text
from everhold.memories.builtin.index import MemoryIndex
from everhold.ports.model import Model, ModelMessage, ModelRequest, ModelResponse, ToolSpec
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult
from everhold.testing.gateway import FakeRuntimes, InProcessGateway

KEPT_EXCHANGES: Final = 2
"""How many of the last exchanges stay verbatim. Few, so that the score measures the summary."""
PROBE_TEXT: Final = "…"
"""The last message of a replay. It triggers the turn whose context is scored, and contains no answer."""
MAX_HITS: Final = 5
WINDOW_SHARE: Final = 0.9
"""The model's window in automatic mode, as a share of the conversation's size."""
DEADLINE_SECONDS: Final = 170.0


class ReplayModel:
    """A model that answers as the conversation's file says, and records the last request."""

    name = "replay"

    def __init__(self, context_tokens: int) -> None:
        self.context_tokens = context_tokens
        self.turn = EvalTurn(who="", text="")
        self.last_request: ModelRequest | None = None
        self.request_tokens: list[int] = []
        """The size of the context in each request."""

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        self.last_request = request
        self.request_tokens.append(compression.estimate_message_tokens(request.messages))
        if self.turn.tool_calls and request.messages[-1].role != "tool":
            calls = tuple(
                ToolCall(id=f"c{n}", tool=act.tool, arguments=act.arguments)
                for n, act in enumerate(self.turn.tool_calls)
            )
            return ModelResponse(calls=calls, model=self.name)
        return ModelResponse(text=self.turn.reply or "…", model=self.name)


class ReplayTool:
    """A tool that returns the result which the conversation's file gives for the call."""

    deadline = 30.0

    def __init__(self, act: EvalToolCall, replay_model: ReplayModel) -> None:
        self.spec = ToolSpec(name=act.tool, description="part of the conversation", parameters={"type": "object"})
        self.effect = ToolEffect.ONCE if act.changes else ToolEffect.PURE
        self.replay_model = replay_model

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        acts = [
            act
            for act in self.replay_model.turn.tool_calls
            if act.tool == self.spec.name and act.arguments == arguments
        ]
        return ToolResult(text=acts[0].result if acts else "")

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None


class MeteredModel:
    """The model under test. Measures its usage and time."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.name = model.name
        self.context_tokens = model.context_tokens
        self.usage = ModelUsage()
        self.seconds = 0.0

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        started = time.perf_counter()
        try:
            answer = await self.model.answer(request)
        finally:
            self.seconds += time.perf_counter() - started
        self.usage += answer.usage
        return answer


class ThreadedModel:
    """Runs a model that needs a real event loop in a thread, while virtual time stands still."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.name = model.name
        self.context_tokens = model.context_tokens
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="evals-model", daemon=True)
        self._thread.start()

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        asked = asyncio.run_coroutine_threadsafe(self.model.answer(request), self._loop)
        try:
            return asked.result(timeout=DEADLINE_SECONDS)  # blocks the virtual loop on purpose
        except TimeoutError:
            asked.cancel()
            raise Overloaded(f"{self.name} gave no answer within {DEADLINE_SECONDS:g} s") from None

    def close(self, *, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run `last` on the loop, then stop the loop."""
        if last is not None:
            asyncio.run_coroutine_threadsafe(last(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()


class ReplayRuntimes(FakeRuntimes):
    """Runtimes in which a ReplayModel answers the turns and the model under test writes the summaries."""

    def __init__(self, conversation: EvalConversation, summariser: Model, *, window: int) -> None:
        super().__init__()
        self.replay_model = ReplayModel(window)
        self.tested_model = summariser
        acts = [act for turn in conversation.turns for act in turn.tool_calls]
        self.tools = {act.tool: ReplayTool(act, self.replay_model) for act in acts}

    def get_runtime(self, agent: str, choices: Mapping[str, str]) -> AgentRuntime:
        return dataclasses.replace(
            super().get_runtime(agent, choices), models=(self.replay_model,), summariser=self.tested_model
        )


@contextlib.contextmanager
def start_gateway(runtimes: ReplayRuntimes) -> Iterator[InProcessGateway]:
    with tempfile.TemporaryDirectory(prefix="everhold-eval-") as directory:
        gateway = InProcessGateway(Path(directory))
        runtimes.platforms[("fake", "main")] = gateway.platform
        gateway.runtimes = runtimes
        with gateway.run_started():
            yield gateway


def score_conversation(
    conversation: EvalConversation, summariser: Model, *, compressions: int, keep: int = KEPT_EXCHANGES
) -> CompressionScore:
    """Replay the conversation, compress it `compressions` times and score the context of the next turn.

    With 0, the gateway compresses by itself whenever the small window fills up.
    """
    watched = MeteredModel(summariser)
    size = compression.estimate_message_tokens(
        tuple(ModelMessage(role="user", text=turn.join_text()) for turn in conversation.turns)
    )
    runtimes = ReplayRuntimes(
        conversation, watched, window=10_000_000 if compressions else max(400, int(size * WINDOW_SHARE))
    )
    runtimes.settings.update(keep_turns=keep)
    with start_gateway(runtimes) as gateway:
        sessions = replay_conversation(gateway, runtimes, conversation, compressions=compressions, keep=keep)
        session = sessions[-1]
        shown = runtimes.replay_model.last_request
        assert shown is not None
        log = gateway.run(gateway.store.list_entries(session))
        compressed = [entry.body for entry in log if isinstance(entry.body, Compressed)]
        tail = [m for m in shown.messages if not (m.name == "everhold" and m.text.startswith("[Summary"))]
        seen, rest = (normalize_text("\n".join(map(_render_message, part))) for part in (shown.messages, tail))
        logged = normalize_text("\n".join(_render_entry(entry) for entry in log))
        hits = _search_answers(gateway, session, log, [question.ask for question in conversation.questions])
        before = gateway.run(
            load_context_at(
                gateway.store, gateway.run(gateway.store.get_session(session)), at=log[-1].seq + 1, compression=0
            )
        )
        report = gateway.run(gateway.control.audit_store())
        said = conversation.join_text()
        return CompressionScore(
            conversation=conversation.name,
            language=conversation.language,
            model=watched.name,
            asked=str(compressions) if compressions else "auto",
            compressions=len(compressed),
            same_session=len(set(sessions)) == 1 and len(gateway.run(gateway.store.list_sessions())) == 1,
            broken=tuple(f"{finding.promise}: {finding.text}" for finding in report.broken_findings),
            refused=tuple(str(line["reason"]) for line in gateway.logger.find_events("compression.refused")),
            outcomes=tuple(
                judge_answer(question, shown=seen, verbatim=rest, hits=hits[question.ask], log=logged)
                for question in conversation.questions
            ),
            invented=tuple(dict.fromkeys(it for body in compressed for it in find_inventions(body.summary, said))),
            tokens_before=compression.estimate_message_tokens(render_messages(before)),
            tokens_after=compression.estimate_message_tokens(shown.messages),
            read=watched.usage.input,
            written=watched.usage.output,
            usd=watched.usage.usd,
            seconds=watched.seconds,
        )


def replay_conversation(
    gateway: InProcessGateway, runtimes: ReplayRuntimes, conversation: EvalConversation, *, compressions: int, keep: int
) -> list[str]:
    """Send all messages. Returns the session that received each of them."""
    count = len(conversation.turns)
    marks = {keep + round((count - keep) * n / compressions) for n in range(1, compressions + 1)}
    kind = "group" if len({turn.who for turn in conversation.turns}) > 1 else "dm"
    sessions: list[str] = []
    for number, turn in enumerate(conversation.turns, start=1):
        runtimes.replay_model.turn = turn
        sessions.append(gateway.send_message(turn.text, who=turn.who, kind=kind).session)
        if number in marks:
            gateway.run(gateway.control.compress_session(sessions[-1], keep=keep))
            gateway.run_until_idle()
    runtimes.replay_model.turn = EvalTurn(who="", text=PROBE_TEXT)
    sessions.append(gateway.send_message(PROBE_TEXT, who=conversation.turns[-1].who, kind=kind).session)
    return sessions


def _search_answers(gateway: InProcessGateway, session: str, log: list[Entry], asks: list[str]) -> dict[str, list[str]]:
    """Search the log for each question. Returns the texts of the hits."""
    heard = next(entry.body for entry in log if isinstance(entry.body, Heard))
    index = MemoryIndex(gateway.path / "index.db", inline=True)

    async def look() -> dict[str, list[str]]:
        while await index.catch_up(gateway.store):
            pass
        found: dict[str, list[str]] = {}
        for ask in asks:
            hits = await index.search(
                gateway.store, ask, agent="main", audience=heard.stamp.audience, session=session, limit=MAX_HITS
            )
            found[ask] = [hit.text for hit in hits]
        return found

    return gateway.run(look())


def _render_message(message: ModelMessage) -> str:
    calls = "".join(f"\n{call.tool} {json.dumps(call.arguments, ensure_ascii=False)}" for call in message.calls)
    return f"{message.name}: {message.text}{calls}"


def _render_entry(entry: Entry) -> str:
    """Return the text of an entry that records a message, a tool call or a result. Summaries give an empty text."""
    match entry.body:
        case Heard():
            return join_all_text(entry.body)
        case Noted(text=text) | Said(text=text) | Returned(text=text):
            return text
        case Thought(text=text, calls=calls):
            return text + "".join(f"\n{call.tool} {msgspec.json.encode(call.arguments).decode()}" for call in calls)
        case _:
            return ""
