"""From one schema to the next: with a checked copy of what was there, in one step or not at all."""

from __future__ import annotations

import struct
from pathlib import Path

import apsw
import pytest

from everhold.core.entries import Noted
from everhold.errors import StoreError, StoreNewer
from everhold.ports.store import DeliveryItem, InFlightBatch, StateNamespace, StateWrite, Step
from everhold.stores.sqlite import migrate
from everhold.stores.sqlite.migrate import SchemaMigration
from tests.stores.home import fingerprint_files, open_scenario, open_store, run_coroutine

NOW = migrate.list_migrations()
BROKEN = SchemaMigration(NOW[-1].number + 1, "broken", "create table fine(a); create table sessions(oops);")


MOODS = SchemaMigration(
    NOW[-1].number + 1,
    "moods",
    "alter table sessions add column mood text not null default 'calm';"
    "update sessions set mood = 'busy' where id in (select session from pending);"
    "create index entries_by_author on entries(author);",
)
"""A step as a later version brings one: it adds to the schema, and fills it from what is there."""


async def leave_home_in_use(path: Path) -> None:
    """A home that was left in the middle of things: a running turn, a pending message, a batch in flight."""
    store, scene = await open_scenario(path)
    await scene.commit_heard("first")
    await scene.commit_heard("second", wake="platform")
    claim = await scene.claim_cursor(at=1.0)
    await scene.begin_operation(1, claim=claim)
    voice = await scene.claim_cursor("platform", at=1.0)
    await scene.update_cursor(voice, in_flight=InFlightBatch(items=(DeliveryItem(seq=1, key="k"),), upto=1, digest="d"))
    await store.close()


def test_migrations_are_numbered_without_gaps() -> None:
    assert [one.number for one in NOW] == list(range(1, len(NOW) + 1))


def test_a_new_database_has_the_newest_schema_and_no_backup(tmp_path: Path) -> None:
    store = open_store(tmp_path / "log.db")
    assert store.writer.db.pragma("user_version") == NOW[-1].number
    run_coroutine(store.close())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log.db", "log.db.mark"]


def test_an_upgrade_goes_on_where_the_older_build_stopped(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "log.db"
        await leave_home_in_use(path)
        before = path.read_bytes()
        store, scene = await open_scenario(path, migrations=[*NOW, MOODS], backups=tmp_path / "kept")
        assert await scene.read_texts() == ["first", "second"]
        assert await scene.list_pending_seqs() == [2]
        claims = await store.claim_cursors(owner="new", at=1000.0, lease=60.0, limit=9)
        assert {claim.consumer: claim.taken_over for claim in claims} == {"turn": True, "platform": True}
        assert {claim.consumer: claim.cursor.in_flight is not None for claim in claims} == {
            "turn": False,
            "platform": True,
        }
        (running,) = await store.list_operations("s", states=("running",))
        assert running.attempts == 2
        assert await store.verify() == []
        await store.close()

        (backup,) = (tmp_path / "kept").iterdir()
        assert backup.stat().st_mode & 0o777 == 0o600
        copy = apsw.Connection(str(backup), flags=apsw.SQLITE_OPEN_READONLY)
        assert copy.pragma("user_version") == NOW[-1].number
        assert copy.execute("select count(*) from entries").get == 3
        assert copy.pragma("integrity_check") == "ok"
        copy.close()
        assert len(before) > 0

        # nobody goes back, and trying to leaves everything as it is
        files = fingerprint_files(tmp_path)
        with pytest.raises(StoreNewer):
            open_store(path)
        assert fingerprint_files(tmp_path) == files

    run_coroutine(play())


def test_whoever_was_at_work_under_an_older_schema_goes_on_under_the_next(tmp_path: Path) -> None:
    """A step on a home with a turn, a message and a batch in the middle, a note, a summary, a delay and a record."""

    async def play() -> None:
        path = tmp_path / "log.db"
        await leave_home_in_use(path)
        store, scene = await open_scenario(path)
        assert store.writer.db.pragma("user_version") == NOW[-1].number
        await scene.commit(Noted(text="tea"))
        fold = await scene.commit_compression(covers=0)
        await scene.wake_consumer("memory:a", 500.0, at=1.0, mandatory=True)
        write = StateWrite(namespace=StateNamespace.SCHEDULE, key="k", value="v", version=0)
        await scene.commit(session="", step=Step.STATE, state_writes=(write,))
        (record,) = await store.list_state_records()
        await store.close()

        store, scene = await open_scenario(path, migrations=[*NOW, MOODS])
        db = store.writer.db
        assert db.pragma("user_version") == MOODS.number
        assert db.execute("select mood from sessions").get == "busy"
        assert store.upgrade_backup is not None
        assert await scene.read_texts() == ["first", "second"]
        assert [entry.seq for entry in await store.list_notes()] == [4]
        assert [entry.op for entry in await store.list_compressions(limit=9)] == [fold]
        assert await store.list_state_records() == [record]
        found = await store.claim_cursors(owner="new", at=400.0, lease=60.0, limit=9)
        claims = {claim.consumer: claim for claim in found}
        assert claims.keys() == {"turn", "platform"}, "a delay is as long as it was"
        assert claims["platform"].cursor.in_flight is not None
        (running,) = await store.list_operations("s", states=("running",))
        await scene.end_operation(running.op, claim=claims["turn"])
        await scene.begin_operation(2, claim=claims["turn"])
        await scene.update_cursor(claims["platform"], clear_in_flight=True, processed_seq=1, release=True)
        assert (await scene.read_cursor("platform")).in_flight is None
        assert (await scene.claim_cursor("memory:a", at=600.0)).cursor.mandatory
        await scene.commit(session="", step=Step.STATE, state_writes=(record.replace_with("w"),))
        assert await store.verify() == []
        await store.close()

        files = fingerprint_files(tmp_path)
        with pytest.raises(StoreNewer):
            open_store(path)
        assert fingerprint_files(tmp_path) == files

    run_coroutine(play())


def test_a_home_of_a_development_version_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    run_coroutine(leave_home_in_use(path))
    db = apsw.Connection(str(path))
    db.pragma("application_id", migrate.DEVELOPMENT_APPLICATION)
    db.close()
    files = fingerprint_files(tmp_path)
    with pytest.raises(StoreError) as refused:
        open_store(path)
    assert str(refused.value) == (
        "this home was created by a development version and cannot be opened (start with a new home (`--home`))"
    )
    assert fingerprint_files(tmp_path) == files


@pytest.mark.parametrize("page", [b"\x02\xd3\x02\xb1" * 1024, b"SQLite format 3\0" + b"\x7f" * 4080])
def test_a_frame_that_was_begun_when_the_process_died_is_no_newer_schema(tmp_path: Path, page: bytes) -> None:
    """SQLite writes a frame's header before its page: what a kill leaves between the two is from another time."""

    async def play() -> None:
        store, scene = await open_scenario(tmp_path / "log.db")
        await scene.commit_heard("first")
        left = tmp_path / "left"
        left.mkdir()
        for name in ("log.db", "log.db-wal", "log.db.mark"):
            (left / name).write_bytes((tmp_path / name).read_bytes())
        await store.close()
        with (left / "log.db-wal").open("r+b") as wal:
            salts = wal.read(32)[16:24]
            wal.seek(0, 2)
            wal.write(struct.pack(">II", 1, 9) + salts + bytes(8) + page)
        store, scene = await open_scenario(left / "log.db")
        assert await scene.read_texts() == ["first"]
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_the_backup_is_itself_a_home_for_the_older_build(tmp_path: Path) -> None:
    async def play() -> None:
        await leave_home_in_use(tmp_path / "log.db")
        await open_store(tmp_path / "log.db", migrations=[*NOW, MOODS]).close()
        (backup,) = (tmp_path / "backups").iterdir()
        store, scene = await open_scenario(backup)
        assert await scene.read_texts() == ["first", "second"]
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_a_migration_that_fails_leaves_the_schema_as_it_was(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "log.db"
        await leave_home_in_use(path)
        with pytest.raises(StoreError, match="sessions"):
            open_store(path, migrations=[*NOW, BROKEN])
        store, scene = await open_scenario(path)
        assert await scene.read_texts() == ["first", "second"]
        assert store.writer.db.execute("select 1 from sqlite_schema where name = 'fine'").get is None
        await store.close()

    run_coroutine(play())


def test_a_second_upgrade_keeps_the_first_backup(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "log.db"
        await leave_home_in_use(path)
        for _ in range(2):
            with pytest.raises(StoreError):
                open_store(path, migrations=[*NOW, BROKEN])
        assert len(list((tmp_path / "backups").iterdir())) == 2

    run_coroutine(play())


def test_a_half_made_database_is_made_anew(tmp_path: Path) -> None:
    async def play() -> None:
        (tmp_path / "log.db.new").write_bytes(b"a process died while making this")
        store, scene = await open_scenario(tmp_path / "log.db")
        await scene.commit_heard()
        await store.close()
        assert not (tmp_path / "log.db.new").exists()

    run_coroutine(play())
