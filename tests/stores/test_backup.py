"""Copies of the store: made while in use, inspected, restored, rolled back. Each check is shown to find its damage."""

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
from everhold.infra.home import check_disk_space
from everhold.ports.store import DeliveryItem, InFlightBatch, SessionOpening, Step
from everhold.stores.sqlite import SqliteStore, backup, connect, rebuild
from everhold.testing.contracts.store_scenario import SeededRandom, StoreScenario
from tests.stores.home import open_scenario, open_store, run_coroutine


async def talked(path: Path, *, turns: int = 5) -> tuple[SqliteStore, StoreScenario, list[int]]:
    """Return a store with some turns, and the position after each turn."""
    store, scenario = await open_scenario(path)
    marks = []
    for n in range(turns):
        op = await scenario.begin_operation(
            await scenario.commit_heard(f"message {n}", wake="", at=n * 10.0), at=n * 10.0 + 1
        )
        await scenario.end_operation(op, at=n * 10.0 + 2)
        marks.append(await store.last_pos())
    return store, scenario, marks


def cut(source: Path, pos: int, *, at: float = 1e6) -> rebuild.RollbackResult:
    db = connect.open_for_writing(source, synchronous="FULL")
    done = rebuild.roll_back(db, pos, at=at, chance=SeededRandom(9))
    db.close()
    return done


def test_a_backup_made_during_writes_is_one_snapshot(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario, _ = await talked(tmp_path / "log.db")
        made = await store.make_copy(tmp_path / "copy.db")
        await scenario.commit_heard("later")
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
def test_a_backup_reports_inconsistencies(tmp_path: Path, damage: str, said: str) -> None:
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


def test_a_backup_with_damaged_bytes_is_refused_with_page_and_session(tmp_path: Path) -> None:
    async def play() -> Path:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.open_session("t")
        for n in range(40):
            await scenario.commit_heard(f"m {n} " + "x" * 900, session="t" if n % 2 else "s")
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


def test_a_backup_of_a_newer_build_is_refused(tmp_path: Path) -> None:
    async def play() -> None:
        store, _, _ = await talked(tmp_path / "log.db")
        await store.close()

    run_coroutine(play())
    db = apsw.Connection(str(tmp_path / "log.db"))
    db.pragma("user_version", 99)
    db.close()
    with pytest.raises(StoreNewer):
        backup.inspect_copy(tmp_path / "log.db")


def test_a_backup_needs_enough_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs_result((4096, 4096, 100, 10, 10, 10, 10, 10, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    with pytest.raises(StoreFull, match="0 MB of free space"):
        check_disk_space(tmp_path, 5 << 20)


# -- rollback ----------------------------------------------------------------------------------------------------------


def test_a_rollback_to_any_pos_leaves_a_valid_log(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "log.db"
        store, scenario = await open_scenario(path)
        first = await scenario.commit_turn("one")
        await scenario.commit_change(SessionTitled(title="early"))
        second = await scenario.commit_turn("two")
        await scenario.commit_compression(first)
        await scenario.commit_change(SessionTitled(title="late"))
        await scenario.open_session("t", address="there")
        await scenario.commit_turn("three", session="t")
        running = await scenario.begin_operation(await scenario.commit_heard("four"))
        await scenario.take_messages(running, await scenario.commit_heard("five"))
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


def test_a_rollback_to_before_an_erasure_says_that_it_was_erased(tmp_path: Path) -> None:
    """The erasure stays, whatever the pos, and the log has an entry that says so."""

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        first = await scenario.commit_turn("my secret")
        compression = await scenario.commit_compression(first)
        waiting = await scenario.commit_heard("my other secret")
        running = await scenario.begin_operation(await scenario.commit_heard("three"))
        await scenario.open_session("t", address="there")
        await scenario.commit_turn("of another", session="t")
        entries = await store.list_entries("s")
        gone = [it.seq for it in entries if it.kind in (EntryKind.HEARD, EntryKind.COMPRESSED)]
        await scenario.end_operation(running)
        await scenario.erase_entries(*gone, compressions=(compression,))
        await scenario.erase_entries(1, session="t")
        copy = await store.make_copy(tmp_path / "copy.db")
        assert copy.contradictions == []
        await store.close()
        assert waiting in gone
        for pos in range(1, copy.pos + 1):
            target = tmp_path / f"at-{pos}.db"
            target.write_bytes(copy.path.read_bytes())
            cut(target, pos)
            assert backup.inspect_copy(target).contradictions == [], f"at {pos}"
            store, scenario = await open_scenario(target)
            assert not [it for it in await scenario.list_pending_seqs() if it in gone]
            assert not [it for it in await store.list_entries("s") if it.seq in gone and it.body is not None]
            await store.close()

    run_coroutine(play())


def test_a_rollback_removes_titles_compressions_and_sessions(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "log.db"
        store, scenario = await open_scenario(path)
        op = await scenario.commit_turn("one")
        await scenario.commit_change(SessionTitled(title="early"), at=2.0)
        pos = await store.last_pos()
        await scenario.commit_compression(op)
        await scenario.commit_change(SessionTitled(title="late"))
        await scenario.open_session("t", address="there")
        await scenario.commit_heard("three", session="t")
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


def test_a_rollback_ends_the_running_turn_and_makes_waiting_work_due(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "log.db"
        store, scenario = await open_scenario(path)
        op = await scenario.begin_operation(await scenario.commit_heard("one"), at=5.0)
        waits = await scenario.commit_heard("two", at=6.0)
        pos = await store.last_pos()
        await scenario.end_operation(op, at=7.0)
        later = await scenario.begin_operation(waits, at=8.0)
        await scenario.end_operation(later, at=9.0)
        copy = await store.make_copy(tmp_path / "copy.db")
        await store.close()
        assert cut(copy.path, pos).stopped_operations == 1
        store, scenario = await open_scenario(copy.path)
        (ended,) = await store.list_operations("s")
        assert (ended.op, ended.state) == (op, "interrupted")
        assert await scenario.list_pending_seqs() == [waits]
        assert await scenario.claim_consumers(at=1e7) == ["turn"]
        await store.close()

    run_coroutine(play())


def test_a_turn_ended_by_a_rollback_has_a_result_for_each_call(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        op = await scenario.begin_operation(await scenario.commit_heard("one"), at=5.0)
        calls = (ToolCall(id="a", tool="look"), ToolCall(id="b", tool="send"))
        await scenario.commit(EntryDraft(body=Thought(calls=calls), author="agent:main", op=op), op=op, at=6.0)
        await scenario.commit(
            EntryDraft(body=Returned(call="a", text="seen"), author="tool:look", op=op), op=op, at=7.0
        )
        pos = await store.last_pos()
        await scenario.commit(
            EntryDraft(body=Returned(call="b", text="sent"), author="tool:send", op=op), op=op, at=8.0
        )
        await scenario.end_operation(op, at=9.0)
        copy = await store.make_copy(tmp_path / "copy.db")
        await store.close()
        assert cut(copy.path, pos).stopped_operations == 1
        assert not [it for it in backup.inspect_copy(copy.path).broken_promises if "P2" in it]
        store, scenario = await open_scenario(copy.path)
        results = [
            e.body for e in await store.list_entries("s", kinds=(EntryKind.RETURNED,)) if isinstance(e.body, Returned)
        ]
        assert [(it.call, it.unknown) for it in results] == [("a", False), ("b", True)]
        await store.close()

    run_coroutine(play())


def test_a_session_whose_first_entry_binds_its_address_survives_a_rollback(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario, _ = await talked(tmp_path / "log.db")
        opens = SessionOpening(agent="main", address="test:brought", bind=False)
        bound = Changed(change=AddressBound(address="test:brought"))
        await scenario.commit(bound, session="b", at=1.0, step=Step.ACCEPT, opens=opens)
        pos = await store.last_pos()
        await scenario.commit_heard("later", at=99.0)
        copy = await store.make_copy(tmp_path / "copy.db")
        await store.close()
        assert cut(copy.path, pos).entries == 1
        assert backup.inspect_copy(copy.path).contradictions == []
        store, _ = await open_scenario(copy.path)
        assert await store.resolve_address("test:brought") == "b"
        await store.close()

    run_coroutine(play())


def test_a_batch_in_flight_after_the_rollback_pos_is_not_sent_again(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.commit_heard("one", wake="platform", at=1.0)
        pos = await store.last_pos()
        last = await scenario.commit_heard("two", wake="platform", at=2.0)
        claim = await scenario.claim_cursor("platform", at=3.0)
        batch = InFlightBatch(items=(DeliveryItem(seq=last, key="k"),), upto=last, digest="d")
        await scenario.update_cursor(claim, processed_seq=last, in_flight=batch)
        copy = await store.make_copy(tmp_path / "copy.db")
        await store.close()
        cut(copy.path, pos)
        store, scenario = await open_scenario(copy.path)
        cursor = await scenario.read_cursor("platform")
        assert (cursor.in_flight, cursor.processed_seq, cursor.owner) == (None, 1, "")
        await store.close()

    run_coroutine(play())


def test_a_time_selects_the_last_pos_written_by_then(tmp_path: Path) -> None:
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


def test_used_seqs_are_not_used_again(tmp_path: Path) -> None:
    """Platforms and memories know items by session and seq, so the next entry must get another seq."""

    async def play() -> None:
        store, scenario, marks = await talked(tmp_path / "log.db")
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
        store, scenario = await open_scenario(copy.path)
        assert await scenario.commit_heard("next") == last + 2
        (gone,) = [e.body for e in await store.list_entries("s", kinds=(EntryKind.ERASED,))]
        assert isinstance(gone, Erased)
        assert gone.seqs == tuple(range(7, last + 1))
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_a_rollback_works_although_structural_entries_were_erased(tmp_path: Path) -> None:
    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        op = await scenario.commit_turn("one")
        await scenario.commit_change(SessionTitled(title="secret"))
        compression = await scenario.commit_compression(op)
        compressed = next(e.seq for e in await store.list_entries("s", kinds=(EntryKind.COMPRESSED,)))
        titled = next(e.seq for e in await store.list_entries("s", kinds=(EntryKind.CHANGED,)))
        await scenario.erase_entries(compressed, titled, compressions=(compression,))
        pos = await store.last_pos()
        await scenario.commit_turn("two")
        copy = await store.make_copy(tmp_path / "copy.db")
        await store.close()
        cut(copy.path, pos)
        assert backup.inspect_copy(copy.path).contradictions == []
        db = apsw.Connection(str(copy.path))
        assert db.execute("select title from sessions").get == ""
        db.close()

    run_coroutine(play())
