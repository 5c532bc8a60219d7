"""The incident that began this project, as tests: agents on one host, all compressing while people and agents talk.

Each test passes with the real engine, and fails with a deliberately broken variant: a compression that rotates the id,
that fixes its last covered operation too late, that runs twice, that ignores changes of the context, that works for
the session that was used last, or that logs under the id of another session.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from everhold.core.compression import SUMMARY_PROMPT
from everhold.core.entries import (
    OWN_OPERATION,
    AddressBound,
    Began,
    Changed,
    ChatLocation,
    Compressed,
    ContextReset,
    Ended,
    EntryBody,
    EntryDraft,
    Heard,
)
from everhold.core.ids import make_session_id
from everhold.engine.compression import worker as compression_worker
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.platform import IncomingMessage
from everhold.ports.store import Change, Claim, SessionOpening, Step
from everhold.testing.fakes import FakeModel
from everhold.testing.gateway import InProcessGateway, RecordingLogger

TOKEN = re.compile(r"<[a-z0-9-]+>")


class TalkingModel(FakeModel):
    """Repeats the tokens it was shown last; summaries take their time."""

    def __init__(self, *, window: int, slow: float) -> None:
        super().__init__(context_tokens=window)
        self.slow = slow
        self.calls = 0

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        self.calls += 1
        if request.system.startswith(SUMMARY_PROMPT):
            await asyncio.sleep(self.slow * (1 + self.calls % 5) / 5)
            tokens = dict.fromkeys(TOKEN.findall(request.messages[0].text))
            return ModelResponse(text="they spoke of " + " ".join(tokens), model="summary")
        self.requests.append(request)
        await asyncio.sleep(0.2)
        return ModelResponse(text="heard " + " ".join(TOKEN.findall(request.messages[-1].text)), model="talk")


def add_agents(gateway: InProcessGateway, *, agents: int, window: int, slow: float = 55.0) -> TalkingModel:
    model = TalkingModel(window=window, slow=slow)
    gateway.runtimes.model = gateway.runtimes.summariser = model
    gateway.runtimes.settings.update(soft_share=0.5, hard_share=0.9, keep_turns=2)
    return model


def message(agent: int, number: int, *, size: int) -> IncomingMessage:
    origin = ChatLocation(platform="fake", account="main", chat=f"room-{agent}", message=f"{agent}-{number}")
    filler = "and so on " * (size // 10)
    return IncomingMessage(
        origin=origin, text=f"<a{agent}-n{number}> {filler}", sender="ada", name="ada", agent=f"agent{agent}"
    )


def send_messages(
    gateway: InProcessGateway, *, agents: int, rounds: int, size: int, within: float = 60.0
) -> dict[int, set[str]]:
    """Send messages to all agents for `within` seconds. Return the sessions of each agent's chat."""
    sessions: dict[int, set[str]] = defaultdict(set)

    async def talk(agent: int) -> None:
        assert gateway.process is not None
        for number in range(rounds):
            await asyncio.sleep(within / rounds)
            verdict = await gateway.process.accept(message(agent, number, size=size))
            sessions[agent].add(verdict.session)

    async def everybody() -> None:
        await asyncio.gather(*(talk(agent) for agent in range(agents)))

    gateway.run(everybody())
    gateway.run_until_idle(400)
    return sessions


# -- what must hold ----------------------------------------------------------------------------------------------------


def ids_are_stable(gateway: InProcessGateway, sessions: dict[int, set[str]]) -> None:
    assert all(len(ids) == 1 for ids in sessions.values()), "a chat changed its session"
    assert len(gateway.run(gateway.store.list_sessions(limit=1_000))) == len(sessions), (
        "a session without messages appeared"
    )


def nothing_is_missed(gateway: InProcessGateway, sessions: dict[int, set[str]], model: TalkingModel) -> None:
    """Each message was consumed once, in order, and stood in the request that answered it or in one after it."""
    shown: dict[str, list[str]] = defaultdict(list)
    for request in model.requests:
        text = "\n".join(m.text for m in request.messages)
        for token in dict.fromkeys(TOKEN.findall(text)):
            shown[token].append(text)
    for ids in sessions.values():
        for session in ids:
            heard = [b for b in gateway.read_bodies(session, Heard) if b.origin.platform == "fake"]
            tokens = [TOKEN.findall(body.text)[0] for body in heard]
            assert tokens == sorted(tokens, key=lambda t: int(t[:-1].rpartition("n")[2])), "out of order"
            for token in tokens:
                assert shown[token], f"{token} was never shown to a model"
            last = next(r for r in reversed(model.requests) if tokens[-1] in r.messages[-1].text)
            everything = "\n".join(m.text for m in last.messages)
            missing = [token for token in tokens if token not in everything]
            assert not missing, f"{missing[:3]} are in neither the summary nor the conversation"


def one_at_a_time(gateway: InProcessGateway, sessions: dict[int, set[str]]) -> None:
    for ids in sessions.values():
        for session in ids:
            running: set[int] = set()
            for entry in gateway.read_log(session):
                if isinstance(entry.body, Began) and entry.body.type == "compression":
                    assert not running, f"two compressions of {session} at once"
                    running.add(entry.seq)
                elif isinstance(entry.body, Ended) and entry.op in running:
                    running.discard(entry.op or 0)


def lines_pair_up(gateway: InProcessGateway) -> None:
    """A start and its end name the same session and operation, and what they name is in that session's log."""
    started = {(line["session"], line["op"]): line for line in gateway.logger.find_events("compression.started")}
    assert started, "nothing was compressed: this proves nothing"
    ends = gateway.logger.find_events("compression.completed") + gateway.logger.find_events("compression.refused")
    assert {(line["session"], line["op"]) for line in ends} == set(started)
    for (session, op), line in started.items():
        entries = {entry.seq: entry for entry in gateway.read_log(str(session))}
        body = entries[int(str(op))].body
        assert isinstance(body, Began)
        assert body.type == "compression"
        own = {seq for seq, entry in entries.items() if isinstance(entry.body, Began) and entry.body.type == "turn"}
        assert int(str(line["mark"])) in own, "the mark is another session's"


def everything_holds(gateway: InProcessGateway, sessions: dict[int, set[str]], model: TalkingModel) -> None:
    ids_are_stable(gateway, sessions)
    nothing_is_missed(gateway, sessions, model)
    one_at_a_time(gateway, sessions)
    lines_pair_up(gateway)
    gateway.assert_sound()


# -- the real flows ----------------------------------------------------------------------------------------------------


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[InProcessGateway]:
    gateway = InProcessGateway(tmp_path)
    with gateway.run_started():
        yield gateway


@pytest.mark.parametrize("agents", [5, 9, 13])
def test_agents_that_compress_at_the_same_time_lose_nothing(gateway: InProcessGateway, agents: int) -> None:
    model = add_agents(gateway, agents=agents, window=8_000)
    sessions = send_messages(gateway, agents=agents, rounds=12, size=3_000)
    everything_holds(gateway, sessions, model)


def test_a_hundred_agents_compress_within_a_minute(gateway: InProcessGateway) -> None:
    model = add_agents(gateway, agents=100, window=3_000)
    sessions = send_messages(gateway, agents=100, rounds=5, size=2_000)
    everything_holds(gateway, sessions, model)


def test_a_session_of_145_thousand_tokens_is_compressed(gateway: InProcessGateway) -> None:
    model = add_agents(gateway, agents=2, window=145_000)
    sessions = send_messages(gateway, agents=2, rounds=16, size=40_000)
    everything_holds(gateway, sessions, model)


def test_a_session_keeps_its_id_over_two_hundred_messages(gateway: InProcessGateway) -> None:
    model = add_agents(gateway, agents=1, window=8_000, slow=5.0)
    sessions = send_messages(gateway, agents=1, rounds=200, size=1_500, within=600.0)
    everything_holds(gateway, sessions, model)


def test_two_agents_that_talk_during_compressions_hear_each_other_and_stop(
    gateway: InProcessGateway,
) -> None:
    """Each agent hears the other during compressions, and the exchange of bare `.` ends."""
    from everhold.platforms.agent import AgentPlatform

    assert gateway.process is not None
    for name in ("one", "two"):
        gateway.runtimes.platforms[("agent", name)] = AgentPlatform(name, gateway.process.accept)
    compressed = 0

    def answer(request: ModelRequest) -> ModelResponse:
        if request.system.startswith(SUMMARY_PROMPT):
            return ModelResponse(
                text="they spoke of " + " ".join(dict.fromkeys(TOKEN.findall(request.messages[0].text)))
            )
        said = request.messages[-1].text
        number = int((re.findall(r"<turn-(\d+)>", said) or ["0"])[-1])
        return ModelResponse(text="." if number >= 12 else f"<turn-{number + 1}> " + "words " * 200)

    gateway.runtimes.model = gateway.runtimes.summariser = FakeModel(answer, context_tokens=1_500)
    gateway.runtimes.settings.update(soft_share=0.4, hard_share=0.8, keep_turns=1)
    start = ChatLocation(platform="agent", account="two", chat="one", message="start")
    gateway.accept_message(IncomingMessage(origin=start, text="<turn-0> begin", sender="one", name="one", agent="two"))
    gateway.run_until_idle(60)
    for session in gateway.run(gateway.store.list_sessions()):
        heard = [int(n) for b in gateway.read_bodies(session.id, Heard) for n in re.findall(r"^<turn-(\d+)>", b.text)]
        assert heard == sorted(heard)
        compressed += len(gateway.read_bodies(session.id, Compressed))
        dots = [b for b in gateway.read_bodies(session.id, Heard) if b.text == "."]
        assert all(not b.asks for b in dots), "a bare acknowledgement asks for nothing"
    assert compressed >= 2
    assert len(gateway.run(gateway.store.list_sessions())) == 2
    gateway.assert_sound()


# -- broken on purpose -------------------------------------------------------------------------------------------------


def rotate_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compression moves the chat to a new session."""
    real = compression_worker.SessionCompressor._commit

    async def commit(
        self: compression_worker.SessionCompressor, step: Step, bodies: tuple[EntryBody, ...], **options: Any
    ) -> int:
        seq = await real(self, step, bodies, **options)
        if any(isinstance(body, Compressed) for body in bodies):
            old = await self.store.get_session(self.claim.session)
            bound = AddressBound(address=old.address, previous=old.id)
            await self.store.commit(
                Change(
                    step=Step.BACKLINK,
                    session=make_session_id(self.gates.clock.now(), self.gates.chance.bytes(10)),
                    at=self.gates.clock.now(),
                    opens=SessionOpening(agent=old.agent, address=old.address, bind=False),
                    entries=(EntryDraft(body=Changed(change=bound), author="system"),),
                )
            )
        return seq

    monkeypatch.setattr(compression_worker.SessionCompressor, "_commit", commit)


def late_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark is taken when the summary is there, and covers what the summary never saw."""
    real = compression_worker.SessionCompressor._commit

    async def commit(
        self: compression_worker.SessionCompressor, step: Step, bodies: tuple[EntryBody, ...], **options: Any
    ) -> int:
        turns = await self.store.list_operations(
            self.claim.session, types=("turn",), states=("done",), newest_first=True
        )
        late = tuple(structs.replace(b, covers=turns[0].op) if isinstance(b, Compressed) else b for b in bodies)
        return await real(self, step, late, **options)

    monkeypatch.setattr(compression_worker.SessionCompressor, "_commit", commit)


def run_two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers compress one session, each as if it were alone."""
    real = compression_worker.CompressionWorker.run

    async def run(self: compression_worker.CompressionWorker) -> None:
        rows = self.gates.store
        await rows._store.writer.write(  # type: ignore[attr-defined]  # below every seam: the guard itself goes
            lambda cur: cur.execute("drop index if exists operations_one_compression")
        )
        twin = compression_worker.CompressionWorker(
            self.gates, self.claim, runtimes=self.runtimes, wakeups=self.wakeups, budgets=self.budgets
        )
        await asyncio.gather(real(self), real(twin), return_exceptions=True)

    monkeypatch.setattr(compression_worker.CompressionWorker, "run", run)


def ambient_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker asks a global which session it works for, and the global has moved on."""
    current: list[Claim] = []
    init = compression_worker.SessionCompressor.__init__

    def drift(self: compression_worker.SessionCompressor, gates: Any, claim: Claim, *args: Any, **options: Any) -> None:
        current.append(claim)
        init(self, gates, claim, *args, **options)
        self.log = _AmbientLogger(gates.log, current)  # type: ignore[assignment]

    monkeypatch.setattr(compression_worker.SessionCompressor, "__init__", drift)


class _AmbientLogger:
    """A logger bound to the session that was used last."""

    def __init__(self, log: RecordingLogger, current: list[Claim], **bound: object) -> None:
        self.log, self.current, self.bound = log, current, bound

    def bind(self, **fields: object) -> _AmbientLogger:
        return _AmbientLogger(self.log, self.current, **{**self.bound, **fields})

    def info(self, event: str, /, **fields: object) -> None:
        self.log.info(event, session=self.current[-1].session, **{**self.bound, **fields})

    warning = info


BROKEN: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[..., None]]] = {
    "the id rotates on a compression": (rotate_id, lambda gateway, sessions, model: ids_are_stable(gateway, sessions)),
    "the mark is taken after the call": (late_mark, nothing_is_missed),
    "two workers compress one session": (
        run_two_workers,
        lambda gateway, sessions, model: one_at_a_time(gateway, sessions),
    ),
    "a line is logged from another context": (ambient_session, lambda gateway, sessions, model: lines_pair_up(gateway)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_checks_find_each_planted_bug(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    breaking, check = BROKEN[name]
    breaking(monkeypatch)
    gateway = InProcessGateway(tmp_path)
    with gateway.run_started():
        model = add_agents(gateway, agents=5, window=8_000)
        sessions = send_messages(gateway, agents=5, rounds=12, size=3_000)
        with pytest.raises(AssertionError):
            check(gateway, sessions, model)


@pytest.mark.parametrize("broken", [False, True])
def test_a_compression_of_an_outdated_context_is_never_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """/new while a summary is made: without the generation the old conversation would come back as a summary."""
    if broken:
        real = compression_worker.SessionCompressor._commit

        async def commit(
            self: compression_worker.SessionCompressor, step: Step, bodies: tuple[EntryBody, ...], **options: Any
        ) -> int:
            return await real(self, step, bodies, **{**options, "generation": None})

        monkeypatch.setattr(compression_worker.SessionCompressor, "_commit", commit)
    gateway = InProcessGateway(tmp_path)
    with gateway.run_started():
        add_agents(gateway, agents=1, window=8_000, slow=50.0)
        for number in range(8):
            gateway.accept_message(message(0, number, size=3_000))
            gateway.pass_time(2)
        session = gateway.run(gateway.store.list_sessions())[0].id
        assert gateway.run(gateway.store.get_session(session)).running == "compression"
        gateway.run(gateway.store.commit(_fresh(session, gateway.clock.now())))
        gateway.run_until_idle(200)
        stale = [compression for compression in gateway.read_bodies(session, Compressed) if compression.generation == 0]
        assert bool(stale) is broken


def _fresh(session: str, at: float) -> Change:
    bodies: tuple[EntryBody, ...] = (
        Began(type="command", consumer="commands"),
        Changed(change=ContextReset()),
        Ended(),
    )
    return Change(
        step=Step.COMMAND,
        session=session,
        at=at,
        entries=tuple(EntryDraft(body=body, author="person:ada", op=OWN_OPERATION) for body in bodies),
    )
