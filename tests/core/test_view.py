"""The view through the real store: pages and a cache between it and the log change nothing of what is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from everhold.core.context import View, assemble, choose, messages
from everhold.core.entries import Call, Compressed, Ended, Heard, Kind
from everhold.errors import TooLong
from everhold.flow.view import Seen, Views, view_at
from everhold.ports.model import Answer, Request
from everhold.ports.tool import Effect, Result, ToolContext
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.scene import Dice
from everhold.testing.fakes import FakeTool, ScriptedModel
from everhold.testing.house import House
from tests.core.chronicle import Chronicle, story_of
from tests.core.naive import Reader, gist, reader
from tests.core.test_context import pins


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    with house.awake():
        yield house


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore.open(tmp_path / "log.db", chance=Dice(), inline=True, synchronous="OFF")
    yield store
    asyncio.run(store.close())


async def made(store: SqliteStore, chronicle: Chronicle) -> None:
    """The same history, committed."""
    for change in chronicle.changes:
        await store.commit(change)
    for chapter in chronicle.chapters.values():
        entries = await store.list_entries(chapter.id)
        assert [(e.seq, e.kind, e.op, e.body) for e in entries] == [(e.seq, e.kind, e.op, e.body) for e in chapter.log]


def test_the_view_of_a_store_is_what_a_patient_reader_sees(store: SqliteStore) -> None:
    async def look(seed: int) -> None:
        chronicle = Chronicle(f"h{seed}s").tell(story_of(seed))
        await made(store, chronicle)
        logs = chronicle.logs()
        for chapter in chronicle.chapters.values():
            session = await store.get_session(chapter.id)
            assert session.generation == chronicle.generation(chapter)
            now = await view_at(store, session, at=session.last_seq + 1)
            assert gist(messages(now)) == reader(logs, chapter.id).show()
            for turn in chapter.turns.values():
                for pin in pins(chapter.log, turn.op):
                    before = await view_at(store, session, at=turn.op, fold=pin)
                    assert gist(messages(before)) == Reader(logs, chapter.id, turn.op).show(pin)
            for mark in chapter.marks[::5]:
                over = await view_at(store, session, at=mark + 1, over=True)
                assert gist(messages(over)) == Reader(logs, chapter.id, mark + 1, ended=True).show()

    async def all_() -> None:
        for seed in range(60):
            await look(seed)
        assert await store.verify() == []

    asyncio.run(all_())


def test_a_kept_view_is_the_view_that_would_be_read(store: SqliteStore) -> None:
    """As the mind uses it: kept when a turn begins, grown when it ends, read anew when anything else happened."""
    views = Views(most=2)
    grown = 0

    async def begin(name: str) -> Seen:
        glance = await store.get_session_snapshot(name)
        seen = await views.now(store, glance)
        read = await view_at(store, glance.session, at=glance.session.last_seq + 1)
        assert seen.messages == messages(read)
        assert seen.view == read
        return seen

    async def end(name: str, op: int, seen: Seen) -> None:
        nonlocal grown
        session = await store.get_session(name)
        if seen.generation != session.generation:
            return
        operation = next(it for it in await store.list_operations(name, after=op - 1, before=op + 1))
        if operation.state in ("released", "erased"):
            return
        alone = assemble(choose([operation], at=session.last_seq + 1), await store.list_entries(name))
        views.keep(name, seen.plus(alone.exchanges[0]))
        grown += 1

    async def play(seed: int) -> None:
        chronicle = Chronicle(f"k{seed}s").tell(story_of(seed, 45))
        seen: dict[str, tuple[int, Seen]] = {}
        known: set[str] = set()
        for change in chronicle.changes:
            begins = any(draft.kind is Kind.BEGAN for draft in change.entries) and change.session in known
            before = await begin(change.session) if begins and change.session not in seen else None
            done = await store.commit(change)
            known.add(change.session)
            for draft, seq in zip(change.entries, done.seqs, strict=True):
                if draft.kind is Kind.BEGAN and before is not None and draft.op is None and _turn(draft.body):
                    seen[change.session] = (seq, before)
                running = seen.get(change.session)
                if running is not None and isinstance(draft.body, Ended) and draft.op == running[0]:
                    await end(change.session, *seen.pop(change.session))
        for chapter in chronicle.chapters.values():
            if chapter.running is None:
                await begin(chapter.id)

    async def all_() -> None:
        for seed in range(40):
            await play(seed)

    asyncio.run(all_())
    assert grown > 50, "hardly a view was ever grown"


def _turn(body: object) -> bool:
    return getattr(body, "type", "") == "turn"


# -- in a whole house --------------------------------------------------------------------------------------------------


def shown(house: House, session: str) -> list[str]:
    async def look() -> View:
        found = await house.store.get_session(session)
        return await view_at(house.store, found, at=found.last_seq + 1)

    return [message.text for message in messages(house.run(look()))]


def test_a_turn_that_outlives_its_context_leaves_no_summary_in_the_next(house: House) -> None:
    """/new while a turn runs, which then does not fit and folds what came before it: a fold of the old context."""
    session = ""
    for n in range(3):
        session = house.say(f"old {n}").session

    def answer(request: Request) -> Answer:
        if any(message.text == "old 0" for message in request.messages):
            if request.messages[-1].role == "tool":
                raise TooLong("too many tokens")
            return Answer(calls=(Call(id="c", tool="slow"),))
        return Answer(text="done")

    class Slow(FakeTool):
        async def run(self, arguments: dict[str, object], context: ToolContext) -> Result:
            await asyncio.sleep(5)
            return await super().run(arguments, context)

    house.furniture.tools = {"slow": Slow("slow", Effect.KEYED)}
    house.furniture.model = ScriptedModel(answer)
    house.furniture.summariser = ScriptedModel(lambda request: Answer(text="all the old things"))
    house.say("go on", rest=False)
    house.tick(1)
    house.say("/new", rest=False)
    house.tick(30)
    assert house.bodies(session, Compressed), "the turn must have folded after the fresh start"
    assert house.heard_back()[-1] == "done"
    assert shown(house, session) == []
    house.say("something new")
    assert shown(house, session) == ["something new", "done"]
    house.sound()


def folding(house: House, text: Callable[[], str] = lambda: "the story so far") -> None:
    house.furniture.model = ScriptedModel(lambda request: Answer(text="I see"), context_tokens=600)
    house.furniture.summariser = ScriptedModel(lambda request: Answer(text=text()))
    house.furniture.settings.update(soft=0.3, hard=0.9, keep=1, ahead=True)


def test_a_branch_of_a_parent_whose_summary_was_erased_sees_the_originals(house: House) -> None:
    folding(house)
    session = ""
    for n in range(4):
        session = house.say(f"message {n} {'x' * 200}").session
    assert house.bodies(session, Compressed)
    house.furniture.settings.update(ahead=False, hard=9.0)
    house.say("/branch")
    branch = house.say("in the branch").session
    assert branch != session
    assert "the story so far" in shown(house, branch)[0]
    first = next(entry.seq for entry in house.log(session) if isinstance(entry.body, Heard))
    house.run(house.control.erase(session, [first]))
    seen = shown(house, branch)
    assert not any("the story so far" in text for text in seen)
    assert not any(text.startswith("message 0") for text in seen)
    assert [text[:9] for text in seen if text.startswith("message")] == ["message 1", "message 2", "message 3"]
    house.sound()


def test_every_question_asked_is_the_one_the_log_tells_of(house: House) -> None:
    """Through folds, undo, fresh starts and branches the model was asked what a patient reader would have asked."""
    numbers = iter(range(10_000))
    folding(house, lambda: f"fold-x-{next(numbers)}")
    house.furniture.tools = {"t": FakeTool("t", Effect.PURE)}

    def answer(request: Request) -> Answer:
        last = request.messages[-1]
        if last.role == "user" and last.text.startswith("look"):
            return Answer(calls=(Call(id="c", tool="t"), Call(id="c", tool="t")))
        return Answer(text=f"answer {next(numbers)}")

    house.furniture.model = model = ScriptedModel(answer, context_tokens=600)
    for n in range(40):
        command = {9: "/undo", 14: "/new", 19: "/branch", 24: "/retry", 29: "/undo compress", 34: "/new"}.get(n, "")
        house.say(command or f"{'look' if n % 4 == 1 else 'say'} {n} {'x' * 60}")
    logs = {session.id: house.log(session.id) for session in house.run(house.store.list_sessions())}
    thoughts = [entry for log in logs.values() for entry in log if entry.kind is Kind.THOUGHT]
    asked = list(model.asked)
    assert len(thoughts) == len(asked) > 40
    for thought, request in zip(sorted(thoughts, key=lambda entry: entry.pos), asked, strict=True):
        assert thought.op is not None
        until = {**logs, thought.session: logs[thought.session][: thought.seq - 1]}
        patient = Reader(until, thought.session, thought.op)
        folds = pins(until[thought.session], thought.op)
        assert gist(request.messages) == patient.show(folds[-1]) + patient.turn(thought.op)
        context = house.run(house.control.context(thought.session, at=thought.seq))
        assert context.exact is True
        assert context.request.messages == request.messages
    house.sound()
