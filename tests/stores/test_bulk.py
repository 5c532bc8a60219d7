"""Messages that arrive together are written in bulk, with the same result as if they were written one by one."""

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
from everhold.core.people import PeopleAction, PeopleEvent
from everhold.errors import Conflict, Refused
from everhold.ports.hosts import AccountClaim
from everhold.ports.store import (
    BudgetSpend,
    Change,
    Claim,
    CommitResult,
    ConsumerCursor,
    CursorUpdate,
    DeadLetter,
    FirstSeen,
    PeerRecord,
    Receipt,
    RetryDelay,
    SessionOpening,
    StateNamespace,
    StateWrite,
    Step,
    Wakeup,
)
from everhold.stores.sqlite import SqliteStore, commit, watermark
from everhold.testing.contracts.store_scenario import SeededRandom, StoreClock, StoreScenario, make_heard
from tests.stores.home import copy_crash_image, open_scenario, run_coroutine

ODD = 'agent:main:x:dm:"\\ \u00fc\n\U0001f600'
"""An address can be any string that a platform uses for a chat."""
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


def commit_together(store: SqliteStore, changes: Sequence[Change]) -> Any:
    """Commit all changes at once, and return the outcome of each."""
    return asyncio.gather(*map(store.commit, changes), return_exceptions=True)


async def make_sessions(store: SqliteStore, clock: StoreClock | None = None) -> StoreScenario:
    """Create sessions in every state in which a message can arrive."""
    scenario = StoreScenario(store, clock)
    for session in ("s", "t", "u"):
        await scenario.open_session(session, address=PLACES[session])
    await scenario.commit_change(SessionTitled(title="hers"), session="u")
    secret = await scenario.commit_heard("secret")
    await scenario.open_session("branch", address=PLACES["branch"], parent="s", parent_at=secret)
    await scenario.erase_entries(secret)
    await scenario.commit_heard(session="t", wake="commands")
    await scenario.commit_heard(session="t", at=2.0)
    for claim in await scenario.at(2.0).claim_cursors(owner="me", lease=60.0, limit=9, only=("turn",)):
        waits = RetryDelay(seconds=1.0, mandatory=True, waits_for="another" if claim.cursor.session == "t" else "")
        await scenario.update_cursor(claim, session=claim.cursor.session, at=2.0, wait=waits, release=True)
    await scenario.commit(
        session="u", at=2.0, wakeups=(Wakeup(consumer="turn", wait=RetryDelay(seconds=60.0, mandatory=True)),)
    )
    await scenario.commit(session="branch", at=2.0, wakeups=(Wakeup(consumer="turn", wait=RetryDelay(seconds=60.0)),))
    return scenario


def tables(path: Path) -> dict[str, list[Any]]:
    """All rows of all tables, without random values."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    names = [name for (name,) in db.execute("select name from sqlite_schema where type = 'table' order by name")]
    found = {name: db.execute(f"select * from {name}").fetchall() for name in names}
    found["entries"] = [
        tuple(value for value in row if not isinstance(value, bytes)) for row in sorted(found["entries"], key=str)
    ]
    db.close()
    return found


def describe_outcome(outcome: Any) -> Any:
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
        clock = StoreClock()
        store = SqliteStore.open(path, chance=SeededRandom(), now=clock, synchronous="OFF")
        await make_sessions(store, clock)
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
def test_a_bulk_write_stores_the_same_as_single_commits(
    furnished: Path, tmp_path_factory: pytest.TempPathFactory, batches: list[list[Change]]
) -> None:
    async def play(path: Path, *, at_once: bool) -> list[Any]:
        shutil.copy(furnished, path)
        clock = StoreClock()
        store = SqliteStore.open(path, chance=SeededRandom(), now=clock, synchronous="OFF")
        if not at_once:
            store.writer.bulk_writer = None
        outcomes = []
        for batch in batches:
            clock.time = batch[0].at
            outcomes += [describe_outcome(one) for one in await commit_together(store, batch)]
        assert await store.verify() == []
        await store.close()
        return outcomes

    home = tmp_path_factory.mktemp("bulk")
    one_by_one = run_coroutine(play(home / "one.db", at_once=False))
    together = run_coroutine(play(home / "many.db", at_once=True))
    assert together == one_by_one
    assert tables(home / "many.db") == tables(home / "one.db")
    shutil.rmtree(home)


def test_messages_that_arrive_together_are_written_in_bulk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom())
        await make_sessions(store)
        with monkeypatch.context() as patched:
            patched.setattr(commit, "apply_change", None)
            done = await commit_together(
                store, [message("s", dedup="1"), message("t", dedup="2"), message("s", dedup="3")]
            )
        assert [(one.session, one.seqs) for one in done] == [("s", (3,)), ("t", (3,)), ("s", (4,))]
        assert [one.pos for one in done] == list(range(done[0].pos, done[0].pos + 3))
        assert [entry.pos for entry in await store.list_entries("s")][-2:] == [done[0].pos, done[2].pos]
        assert (await store.get_session("s")).last_seq == 4
        ((salts,),) = store.writer.db.execute("select count(distinct salt) from entries where pos >= ?", (done[0].pos,))
        assert salts == 3
        await store.close()

    run_coroutine(play())


def test_a_repeated_message_in_a_bulk_write_is_recognised(tmp_path: Path) -> None:
    async def play() -> None:
        store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom())
        await make_sessions(store)
        first = await store.commit(message("s", dedup="1"))
        done = await commit_together(
            store, [message("t", dedup="2"), message("s", dedup="1"), message("s", "new", dedup="3")]
        )
        assert [one.duplicate for one in done] == [False, True, False]
        assert (done[1].seqs, done[1].pos) == (first.seqs, first.pos)
        assert done[2].seqs == (first.seqs[0] + 1,)
        await store.close()

    run_coroutine(play())


def test_a_refused_message_does_not_affect_the_others_of_a_bulk_write(tmp_path: Path) -> None:
    async def play() -> None:
        store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom())
        await make_sessions(store)
        elsewhere, broken = message("s", address="test:nowhere"), message("s", "\ud800")
        done = await commit_together(store, [message("s"), elsewhere, message("t"), broken, message("s")])
        assert [type(one) for one in done] == [CommitResult, Conflict, CommitResult, Refused, CommitResult]
        assert done[4].seqs == (done[0].seqs[0] + 1,)
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_the_watermark_covers_the_last_message_of_a_bulk_write(tmp_path: Path) -> None:
    async def play() -> None:
        store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom())
        await make_sessions(store)
        done = await commit_together(store, [message("s"), message("t"), message("s")])
        assert (
            watermark.read_watermark(watermark.build_watermark_path(store.path))
            == done[-1].pos
            == await store.last_pos()
        )
        await store.close()

    run_coroutine(play())


def test_messages_of_a_bulk_write_before_the_clock_went_back_are_due(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.open_session("u", address=PLACES["u"])
        scenario.at(1_000.0)
        await commit_together(store, [message("s", at=1_000.0), message("u", at=1_000.0)])
        assert await scenario.at(400.0).get_next_due() == 0.0
        assert len(await store.claim_cursors(owner="me", lease=60.0, limit=8)) == 2
        await store.close()

    run_coroutine(play())


def test_after_a_power_cut_a_bulk_write_uses_no_lost_position(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.commit_heard("kept")
        found = copy_crash_image(store.path, tmp_path / "after")
        for n in range(20):
            await scenario.commit_heard(f"lost {n}", durable=False)
        seen = await store.last_pos()
        await store.close()

        store, scenario = await open_scenario(found)
        done = [
            one for _ in range(2) for one in await commit_together(store, [message("s"), message("s"), message("s")])
        ]
        assert all(one.pos > seen for one in done)
        assert [entry.pos for entry in await store.read_feed(after=seen)] == [one.pos for one in done]
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


CLAIM = Claim(cursor=ConsumerCursor(consumer="turn", session="s"), agent="main")
MORE: dict[str, Any] = {
    "opens": SessionOpening(agent="main", address="test:s"), "claim": CLAIM, "op": 1, "generation": 0, "seen": 0,
    "read": 0, "cursor": CursorUpdate(), "dead_letters": (DeadLetter(consumer="turn", session="s", seq=1, at=1.0),),
    "replayed": (1,), "receipts": (Receipt(session="s", seq=1, part=0, consumer="platform"),),
    "spends": (BudgetSpend(budget="p", day="2026-11-17", usd=1.0),), "blobs": (b"x",), "records": (b"x",),
    "people": (PeopleEvent(action=PeopleAction.MADE, person="p_x"),), "people_epoch": 1, "people_seen": 1,
    "first_seen": (FirstSeen(identity="telegram:1", person="p_x"),),
    "peers": (PeerRecord(memory="honcho", agent="main", identity="telegram:1", peer="ada"),),
    "erase": (1,), "drop_blobs": ("x",), "pause": True, "durable": False,
    "account": AccountClaim("telegram:main", "me", 1),
}  # fmt: skip


def test_every_field_of_a_change_is_classified() -> None:
    """A new field of `Change` must be added to the handled fields or to the others."""
    assert MORE.keys() | commit.HANDLED_FIELDS == set(Change.__struct_fields__)
    assert not MORE.keys() & commit.HANDLED_FIELDS


@pytest.mark.parametrize("field", sorted(MORE))
def test_a_change_that_does_more_than_append_a_message_is_not_written_in_bulk(field: str) -> None:
    assert commit.is_plain_message(message())
    assert not commit.is_plain_message(structs.replace(message(), **{field: MORE[field]}))


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
def test_a_change_with_another_entry_is_not_written_in_bulk(change: Change) -> None:
    assert not commit.is_plain_message(change)
