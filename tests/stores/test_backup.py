"""Copies of the store: made in use, checked, put back, cut at any moment. Each check is shown the damage it is for."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest

from everhold.core.entries import (
    AddressBound,
    Changed,
    EntryDraft,
    EntryKind,
    Erased,
    Returned,
    SessionTitled,
    Thought,
    ToolCall,
)
from everhold.errors import StoreDamaged, StoreFull, StoreNewer
from everhold.ports.store import DeliveryItem, InFlightBatch, SessionOpening, Step
from everhold.stores.sqlite import SqliteStore, backup, connect, migrate, rebuild
from everhold.testing.contracts.store_scenario import SeededRandom, StoreScenario
from tests.stores.home import open_scenario, open_store, run_coroutine


async def talked(path: Path, *, turns: int = 5) -> tuple[SqliteStore, StoreScenario, list[int]]:
    """A store with some turns in it; the position behind each turn."""
    store, scene = await open_scenario(path)
    marks = []
    for n in range(turns):
        op = await scene.begin_operation(
            await scene.commit_heard(f"message {n}", wake="", at=n * 10.0), at=n * 10.0 + 1
        )
        await scene.end_operation(op, at=n * 10.0 + 2)
        marks.append(await store.last_pos())
    return store, scene, marks


def cut(source: Path, pos: int, *, at: float = 1e6) -> rebuild.RollbackResult:
    db = connect.open_for_writing(source, synchronous="FULL")
    done = rebuild.roll_back(db, pos, at=at, chance=SeededRandom(9))
    db.close()
    return done


def test_a_copy_is_made_while_others_write_and_holds_one_moment(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene, _ = await talked(tmp_path / "log.db")
        made = await store.make_copy(tmp_path / "copy.db")
        await scene.commit_heard("later")
        assert made.is_sound
        assert (made.sessions, made.entries, made.pos) == (1, 15, 15)
        assert backup.inspect_copy(made.path) == made
        assert made.path.stat().st_mode & 0o777 == 0o600
        assert not [name for name in os.listdir(tmp_path) if name.startswith("copy.db-")]
        await store.close()

    run_coroutine(play())


@pytest.mark.parametrize(
    "damage, said",
    [
        ("update entries set body = replace(body, 'message 2', 'message X') where seq = 7", "digest does not match"),
        ("delete from entries where seq = 8", "missing"),
        ("update operations set state = 'done', last = 99 where op = 2", "operation 2"),
        ("update sessions set title = 'mine'", "title"),
    ],
)
def test_a_copy_of_what_contradicts_itself_says_so(tmp_path: Path, damage: str, said: str) -> None:
    async def play() -> None:
        store, _, _ = await talked(tmp_path / "log.db")
        await store.close()
        db = apsw.Connection(str(tmp_path / "log.db"))
        db.execute(damage)
        db.close()
        store = open_store(tmp_path / "log.db")
        made = await store.make_copy(tmp_path / "copy.db")
        assert not made.is_sound
        assert any(said in line for line in made.contradictions), made.contradictions
        await store.close()

    run_coroutine(play())


def test_a_copy_with_noise_in_it_is_refused_with_page_and_session(tmp_path: Path) -> None:
    async def play() -> Path:
        store, scene = await open_scenario(tmp_path / "log.db")
        await scene.open_session("t")
        for n in range(40):
            await scene.commit_heard(f"m {n} " + "x" * 900, session="t" if n % 2 else "s")
        made = await store.make_copy(tmp_path / "copy.db")
        await store.close()
        return made.path

    path = run_coroutine(play())
    data = bytearray(path.read_bytes())
    at = data.index(b"m 20 ") // 4096 * 4096
    data[at : at + 4096] = bytes(byte ^ 0x5A for byte in data[at : at + 4096])
    path.write_bytes(data)
    with pytest.raises(StoreDamaged, match=r"(?i)page") as damage:
        backup.inspect_copy(path)
    assert "session s" in str(damage.value)
    assert "everhold restore" in damage.value.remedy


def test_a_copy_of_a_newer_build_is_refused(tmp_path: Path) -> None:
    async def play() -> None:
        store, _, _ = await talked(tmp_path / "log.db")
        await store.close()

    run_coroutine(play())
    db = apsw.Connection(str(tmp_path / "log.db"))
    db.pragma("user_version", 99)
    db.close()
    with pytest.raises(StoreNewer):
        backup.inspect_copy(tmp_path / "log.db")


def test_no_copy_is_begun_where_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs_result((4096, 4096, 100, 10, 10, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(StoreFull, match="0 MB of free space"):
        migrate.check_disk_space(tmp_path, 5 << 20)


# -- going back --------------------------------------------------------------------------------------------------------


def test_going_back_leaves_a_log_that_is_whole_at_every_position(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "log.db"
        store, scene = await open_scenario(path)
        first = await scene.commit_turn("one")
        await scene.commit_change(SessionTitled(title="early"))
        second = await scene.commit_turn("two")
        await scene.commit_compression(first)
        await scene.commit_change(SessionTitled(title="late"))
        await scene.open_session("t", address="there")
        await scene.commit_turn("three", session="t")
        running = await scene.begin_operation(await scene.commit_heard("four"))
        await scene.take_messages(running, await scene.commit_heard("five"))
        assert second
        copy = await store.make_copy(tmp_path / "copy.db")
        await store.close()
        for pos in range(1, copy.pos + 1):
            target = tmp_path / f"at-{pos}.db"
            target.write_bytes(copy.path.read_bytes())
            done = cut(target, pos)
            found = backup.inspect_copy(target)
            assert found.contradictions == [], f"at {pos}"
            assert found.pos >= min(done.kept_upto_pos, copy.pos)
            store = open_store(target)
            assert [e.pos for e in await store.read_feed()] == list(range(1, found.pos + 1))
            await store.close()

    run_coroutine(play())


def test_going_back_takes_titles_folds_and_sessions_back(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "log.db"
        store, scene = await open_scenario(path)
        op = await scene.commit_turn("one")
        await scene.commit_change(SessionTitled(title="early"), at=2.0)
        pos = await store.last_pos()
        await scene.commit_compression(op)
        await scene.commit_change(SessionTitled(title="late"))
        await scene.open_session("t", address="there")
        await scene.commit_heard("three", session="t")
        copy = await store.make_copy(tmp_path / "copy.db")
        await store.close()
        done = cut(copy.path, pos)
        assert (done.entries, done.sessions, done.stopped_operations) == (copy.pos - pos, 1, 0)
        store = open_store(copy.path)
        (session,) = await store.list_sessions()
        assert (session.id, session.title, session.compressed_upto) == ("s", "early", 0)
        assert await store.resolve_address("there") is None
        await store.close()

    run_coroutine(play())


def test_a_turn_that_ran_at_that_moment_ends_there_and_what_waits_is_due(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "log.db"
        store, scene = await open_scenario(path)
        op = await scene.begin_operation(await scene.commit_heard("one"), at=5.0)
        waits = await scene.commit_heard("two", at=6.0)
        pos = await store.last_pos()
        await scene.end_operation(op, at=7.0)
        later = await scene.begin_operation(waits, at=8.0)
        await scene.end_operation(later, at=9.0)
        copy = await store.make_copy(tmp_path / "copy.db")
        await store.close()
        assert cut(copy.path, pos).stopped_operations == 1
        store, scene = await open_scenario(copy.path)
        (ended,) = await store.list_operations("s")
        assert (ended.op, ended.state) == (op, "interrupted")
        assert await scene.list_pending_seqs() == [waits]
        assert await scene.claim_consumers(at=1e7) == ["turn"]
        await store.close()

    run_coroutine(play())


def test_calls_of_a_turn_that_ends_there_have_results(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        op = await scene.begin_operation(await scene.commit_heard("one"), at=5.0)
        calls = (ToolCall(id="a", tool="look"), ToolCall(id="b", tool="send"))
        await scene.commit(EntryDraft(body=Thought(calls=calls), author="agent:main", op=op), op=op, at=6.0)
        await scene.commit(EntryDraft(body=Returned(call="a", text="seen"), author="tool:look", op=op), op=op, at=7.0)
        pos = await store.last_pos()
        await scene.commit(EntryDraft(body=Returned(call="b", text="sent"), author="tool:send", op=op), op=op, at=8.0)
        await scene.end_operation(op, at=9.0)
        copy = await store.make_copy(tmp_path / "copy.db")
        await store.close()
        assert cut(copy.path, pos).stopped_operations == 1
        assert not [it for it in backup.inspect_copy(copy.path).broken_promises if "P2" in it]
        store, scene = await open_scenario(copy.path)
        results = [
            e.body for e in await store.list_entries("s", kinds=(EntryKind.RETURNED,)) if isinstance(e.body, Returned)
        ]
        assert [(it.call, it.unknown) for it in results] == [("a", False), ("b", True)]
        await store.close()

    run_coroutine(play())


def test_a_session_that_was_led_to_by_an_entry_of_its_own_is_there_afterwards(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene, _ = await talked(tmp_path / "log.db")
        opens = SessionOpening(agent="main", address="test:brought", bind=False)
        bound = Changed(change=AddressBound(address="test:brought"))
        await scene.commit(bound, session="b", at=1.0, step=Step.ACCEPT, opens=opens)
        pos = await store.last_pos()
        await scene.commit_heard("later", at=99.0)
        copy = await store.make_copy(tmp_path / "copy.db")
        await store.close()
        assert cut(copy.path, pos).entries == 1
        assert backup.inspect_copy(copy.path).contradictions == []
        store, _ = await open_scenario(copy.path)
        assert await store.resolve_address("test:brought") == "b"
        await store.close()

    run_coroutine(play())


def test_what_a_lane_had_in_the_air_behind_that_moment_is_not_sent_again(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        await scene.commit_heard("one", wake="platform", at=1.0)
        pos = await store.last_pos()
        last = await scene.commit_heard("two", wake="platform", at=2.0)
        claim = await scene.claim_cursor("platform", at=3.0)
        flight = InFlightBatch(items=(DeliveryItem(seq=last, key="k"),), upto=last, digest="d")
        await scene.update_cursor(claim, processed_seq=last, in_flight=flight)
        copy = await store.make_copy(tmp_path / "copy.db")
        await store.close()
        cut(copy.path, pos)
        store, scene = await open_scenario(copy.path)
        lane = await scene.read_cursor("platform")
        assert (lane.in_flight, lane.processed_seq, lane.owner) == (None, 1, "")
        await store.close()

    run_coroutine(play())


def test_a_time_means_the_last_position_written_by_then(tmp_path: Path) -> None:
    async def play() -> None:
        store, _, marks = await talked(tmp_path / "log.db")
        await store.close()
        db = connect.open_for_reading(tmp_path / "log.db")
        assert rebuild.find_pos_at(db, 12.0) == marks[1]
        assert rebuild.find_pos_at(db, 12.5) == marks[1]
        assert rebuild.find_pos_at(db, -1.0) == 0
        assert rebuild.find_pos_at(db, 1e9) == marks[-1]
        db.close()

    run_coroutine(play())


def test_numbers_that_were_used_are_not_given_out_again(tmp_path: Path) -> None:
    """A platform or a memory service knows items by session and number: the next one must be another."""

    async def play() -> None:
        store, scene, marks = await talked(tmp_path / "log.db")
        copy = await store.make_copy(tmp_path / "copy.db")
        last = (await store.get_session("s")).last_seq
        await store.close()
        cut(copy.path, marks[1])
        db = connect.open_for_writing(copy.path, synchronous="FULL")
        assert (
            rebuild.skip_used_seqs(
                db, backup.read_last_seqs(tmp_path / "log.db"), at=1e6, chance=SeededRandom(3), why="because"
            )
            == 9
        )
        assert (
            rebuild.skip_used_seqs(
                db, backup.read_last_seqs(tmp_path / "log.db"), at=1e6, chance=SeededRandom(3), why="because"
            )
            == 0
        )
        db.close()
        assert backup.inspect_copy(copy.path).contradictions == []
        store, scene = await open_scenario(copy.path)
        assert await scene.commit_heard("next") == last + 2
        (gone,) = [e.body for e in await store.list_entries("s", kinds=(EntryKind.ERASED,))]
        assert isinstance(gone, Erased)
        assert gone.seqs == tuple(range(7, last + 1))
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_an_erased_structure_does_not_keep_anybody_from_going_back(tmp_path: Path) -> None:
    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        op = await scene.commit_turn("one")
        await scene.commit_change(SessionTitled(title="secret"))
        fold = await scene.commit_compression(op)
        folded = next(e.seq for e in await store.list_entries("s", kinds=(EntryKind.COMPRESSED,)))
        titled = next(e.seq for e in await store.list_entries("s", kinds=(EntryKind.CHANGED,)))
        await scene.erase_entries(folded, titled, compressions=(fold,))
        pos = await store.last_pos()
        await scene.commit_turn("two")
        copy = await store.make_copy(tmp_path / "copy.db")
        await store.close()
        cut(copy.path, pos)
        assert backup.inspect_copy(copy.path).contradictions == []
        db = apsw.Connection(str(copy.path))
        assert db.execute("select title from sessions").get == ""
        db.close()

    run_coroutine(play())
