"""A crowd at the door is written as one, and nobody can tell: everything is as if they had come one by one."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from msgspec import structs

from everhold.core.entries import EntryDraft, Noted, SessionTitled, Thought
from everhold.errors import Conflict, Refused
from everhold.ports.store import (
    BudgetSpend,
    Change,
    Claim,
    CommitResult,
    ConsumerCursor,
    CursorUpdate,
    DeadLetter,
    Receipt,
    RetryDelay,
    SessionOpening,
    StateNamespace,
    StateWrite,
    Step,
    Wakeup,
)
from everhold.stores.sqlite import SqliteStore, bulk, commit, watermark
from everhold.testing.contracts.store_scenario import SeededRandom, StoreScenario, make_heard
from tests.stores.home import copy_crash_image, open_scenario, run_coroutine

ODD = 'agent:main:x:dm:"\\ \u00fc\n\U0001f600'
"""An address is whatever a platform calls a chat."""
PLACES = {"s": "test:s", "t": ODD, "u": "test:u", "branch": "test:branch"}


def message(
    session: str = "s",
    text: str = "hello",
    *,
    at: float = 10.0,
    title: str = "",
    address: str = "",
    dedup: str | None = None,
    asks: bool = True,
    wakes: tuple[Wakeup, ...] = (Wakeup(consumer="turn"),),
    **rest: Any,
) -> Change:
    draft = EntryDraft(body=make_heard(text, asks=asks), author="person:ada", dedup=dedup)
    bound = (address or PLACES[session], title)
    return Change(step=Step.ACCEPT, session=session, at=at, bound=bound, entries=(draft,), wakeups=wakes, **rest)


def crowd(store: SqliteStore, changes: Sequence[Change]) -> Any:
    """All at once: what became of each."""
    return asyncio.gather(*map(store.commit, changes), return_exceptions=True)


async def make_sessions(store: SqliteStore) -> StoreScenario:
    """Sessions in all the states that a message may find one in."""
    scene = StoreScenario(store)
    for session in ("s", "t", "u"):
        await scene.open_session(session, address=PLACES[session])
    await scene.commit_change(SessionTitled(title="hers"), session="u")
    secret = await scene.commit_heard("secret")
    await scene.open_session("branch", address=PLACES["branch"], parent="s", parent_at=secret)
    await scene.erase_entries(secret)
    await scene.commit_heard(session="t", wake="commands")
    await scene.commit_heard(session="t", at=2.0)
    for claim in await store.claim_cursors(owner="me", at=2.0, lease=60.0, limit=9, only=("turn",)):
        waits = RetryDelay(seconds=1.0, mandatory=True, waits_for="another" if claim.cursor.session == "t" else "")
        await scene.update_cursor(claim, session=claim.cursor.session, at=2.0, wait=waits, release=True)
    await scene.commit(
        session="u", at=2.0, wakeups=(Wakeup(consumer="turn", wait=RetryDelay(seconds=60.0, mandatory=True)),)
    )
    await scene.commit(session="branch", at=2.0, wakeups=(Wakeup(consumer="turn", wait=RetryDelay(seconds=60.0)),))
    return scene


def tables(path: Path) -> dict[str, list[Any]]:
    """All that is stored, but for what chance had a part in."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    names = [name for (name,) in db.execute("select name from sqlite_schema where type = 'table' order by name")]
    found = {name: db.execute(f"select * from {name}").fetchall() for name in names}
    found["entries"] = [
        tuple(value for value in row if not isinstance(value, bytes)) for row in sorted(found["entries"], key=str)
    ]
    db.close()
    return found


def told(outcome: Any) -> Any:
    return (type(outcome), str(outcome)) if isinstance(outcome, BaseException) else outcome


ANOTHER = (Wakeup(consumer="turn", waits_for="model"),)
wakes = st.sampled_from(
    [
        (),
        (Wakeup(consumer="turn"),),
        (Wakeup(consumer="turn"),),
        (Wakeup(consumer="commands"),),
        (Wakeup(consumer="turn", owner="me", lease=60.0),),
        (Wakeup(consumer="turn", wait=RetryDelay(seconds=5.0)),),
        ANOTHER,
        (Wakeup(consumer="turn"), Wakeup(consumer="commands", start=0)),
    ]
)
state_writes = st.lists(
    st.builds(
        StateWrite,
        namespace=st.just(StateNamespace.PLATFORM_OFFSET),
        key=st.sampled_from(["n", "m"]),
        value=st.sampled_from(["a", "b", None]),
        version=st.integers(0, 3),
    ),
    max_size=2,
).map(tuple)


def mostly(usual: Any, *rare: Any) -> st.SearchStrategy[Any]:
    return st.integers(0, 15).map(lambda n: rare[n - 1] if 0 < n <= len(rare) else usual)


@st.composite
def messages(draw: st.DrawFn) -> Change:
    session = draw(st.sampled_from([*PLACES, "s", "t"]))
    return message(
        session,
        draw(mostly("hello", "again", "\ud800")),
        at=draw(st.sampled_from([1.0, 10.0, 10.0, 100.0])),
        title=draw(mostly("hers" if session == "u" else "", "theirs")),
        address=draw(mostly("", "test:s", "test:nowhere")),
        dedup=draw(st.one_of(st.none(), st.integers(0, 60).map(str))),
        wakes=draw(wakes),
        state_writes=draw(state_writes),
        asks=draw(st.booleans()),
    )


others = st.sampled_from(
    [
        Change(step=Step.NOTE, session="s", at=10.0, entries=(EntryDraft(body=Noted(text="x"), author="agent:main"),)),
        Change(step=Step.NOTE, session="t", at=10.0, generation=99),
    ]
)


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("furnished") / "log.db"

    async def make() -> None:
        store = SqliteStore.open(path, chance=SeededRandom(), synchronous="OFF")
        await make_sessions(store)
        await store.close()

    run_coroutine(make())
    return path


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    batches=st.lists(
        st.lists(st.one_of(messages(), messages(), messages(), others), min_size=2, max_size=8), max_size=4
    )
)
@example(batches=[[message("t", wakes=ANOTHER), message("s")]])
@example(batches=[[message("t", wakes=ANOTHER, at=100.0), message("t")]])
@example(batches=[[message("s", wakes=(Wakeup(consumer="commands"),)), message("s")]])
@example(batches=[[message("s", wakes=(Wakeup(consumer="turn", owner="me", lease=60.0),)), message("s")]])
def test_a_crowd_leaves_what_they_would_have_left_one_by_one(
    furnished: Path, tmp_path_factory: pytest.TempPathFactory, batches: list[list[Change]]
) -> None:
    async def play(path: Path, *, at_once: bool) -> list[Any]:
        shutil.copy(furnished, path)
        store = SqliteStore.open(path, chance=SeededRandom(), synchronous="OFF")
        if not at_once:
            store.writer.bulk_writer = None
        outcomes = [told(one) for batch in batches for one in await crowd(store, batch)]
        assert await store.verify() == []
        await store.close()
        return outcomes

    home = tmp_path_factory.mktemp("crowd")
    one_by_one = run_coroutine(play(home / "one.db", at_once=False))
    together = run_coroutine(play(home / "many.db", at_once=True))
    assert together == one_by_one
    assert tables(home / "many.db") == tables(home / "one.db")
    shutil.rmtree(home)


def test_what_a_crowd_says_is_written_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom())
        await make_sessions(store)
        with monkeypatch.context() as patched:
            patched.setattr(commit, "apply_change", None)
            done = await crowd(store, [message("s", dedup="1"), message("t", dedup="2"), message("s", dedup="3")])
        assert [(one.session, one.seqs) for one in done] == [("s", (3,)), ("t", (3,)), ("s", (4,))]
        assert [one.pos for one in done] == list(range(done[0].pos, done[0].pos + 3))
        assert [entry.pos for entry in await store.list_entries("s")][-2:] == [done[0].pos, done[2].pos]
        assert (await store.get_session("s")).last_seq == 4
        ((salts,),) = store.writer.db.execute("select count(distinct salt) from entries where pos >= ?", (done[0].pos,))
        assert salts == 3
        await store.close()

    run_coroutine(play())


def test_one_repeated_message_in_a_crowd_is_recognised(tmp_path: Path) -> None:
    async def play() -> None:
        store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom())
        await make_sessions(store)
        first = await store.commit(message("s", dedup="1"))
        done = await crowd(store, [message("t", dedup="2"), message("s", dedup="1"), message("s", "new", dedup="3")])
        assert [one.duplicate for one in done] == [False, True, False]
        assert (done[1].seqs, done[1].pos) == (first.seqs, first.pos)
        assert done[2].seqs == (first.seqs[0] + 1,)
        await store.close()

    run_coroutine(play())


def test_one_who_is_refused_costs_the_crowd_nothing(tmp_path: Path) -> None:
    async def play() -> None:
        store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom())
        await make_sessions(store)
        elsewhere, broken = message("s", address="test:nowhere"), message("s", "\ud800")
        done = await crowd(store, [message("s"), elsewhere, message("t"), broken, message("s")])
        assert [type(one) for one in done] == [CommitResult, Conflict, CommitResult, Refused, CommitResult]
        assert done[4].seqs == (done[0].seqs[0] + 1,)
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_a_crowd_is_said_to_be_acknowledged_up_to_its_last(tmp_path: Path) -> None:
    async def play() -> None:
        store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom())
        await make_sessions(store)
        done = await crowd(store, [message("s"), message("t"), message("s")])
        assert (
            watermark.read_watermark(watermark.build_watermark_path(store.path))
            == done[-1].pos
            == await store.last_pos()
        )
        await store.close()

    run_coroutine(play())


def test_a_crowd_from_before_the_clock_went_back_is_due(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        await scene.open_session("u", address=PLACES["u"])
        await crowd(store, [message("s", at=1_000.0), message("u", at=1_000.0)])
        assert await store.get_next_due(at=400.0) == 0.0
        assert len(await store.claim_cursors(owner="me", at=400.0, lease=60.0, limit=8)) == 2
        await store.close()

    run_coroutine(play())


def test_after_a_power_cut_a_crowd_gets_no_position_that_somebody_may_have_seen(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        await scene.commit_heard("kept")
        found = copy_crash_image(store.path, tmp_path / "after")
        for n in range(20):
            await scene.commit_heard(f"lost {n}", durable=False)
        seen = await store.last_pos()
        await store.close()

        store, scene = await open_scenario(found)
        done = [one for _ in range(2) for one in await crowd(store, [message("s"), message("s"), message("s")])]
        assert all(one.pos > seen for one in done)
        assert [entry.pos for entry in await store.read_feed(after=seen)] == [one.pos for one in done]
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


CLAIM = Claim(cursor=ConsumerCursor(consumer="turn", session="s"), agent="main")
MORE: dict[str, Any] = {
    "opens": SessionOpening(agent="main", address="test:s"), "claim": CLAIM, "op": 1, "generation": 0, "seen": 0, "read": 0,
    "cursor": CursorUpdate(), "dead_letters": (DeadLetter(consumer="turn", session="s", seq=1, at=1.0),),
    "replayed": (1,), "receipts": (Receipt(session="s", seq=1, part=0, consumer="platform"),),
    "spends": (BudgetSpend(budget="p", day="2026-11-17", usd=1.0),), "blobs": (b"x",), "records": (b"x",), "erase": (1,),
    "drop_blobs": ("x",), "pause": True, "durable": False,
}  # fmt: skip


def test_every_condition_and_every_row_of_a_change_is_known_here() -> None:
    """Whoever gives `Change` another field has to say whether a crowd may have it."""
    assert MORE.keys() | bulk.HANDLED_FIELDS == set(Change.__struct_fields__)
    assert not MORE.keys() & bulk.HANDLED_FIELDS


@pytest.mark.parametrize("field", sorted(MORE))
def test_whatever_does_more_than_bring_a_message_is_not_written_with_a_crowd(field: str) -> None:
    assert bulk.is_plain_message(message())
    assert not bulk.is_plain_message(structs.replace(message(), **{field: MORE[field]}))


@pytest.mark.parametrize(
    "change",
    [
        structs.replace(message(), step=Step.NOTE),
        structs.replace(message(), bound=None),
        structs.replace(message(), entries=message().entries * 2),
        structs.replace(message(), entries=()),
        structs.replace(message(), entries=(EntryDraft(body=make_heard(), author="person:ada", op=1),)),
        structs.replace(message(), entries=(EntryDraft(body=Thought(text="x"), author="agent:main"),)),
    ],
)
def test_nor_what_brings_something_else(change: Change) -> None:
    assert not bulk.is_plain_message(change)
