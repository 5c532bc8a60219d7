"""Schema upgrades: with a checked copy of the old store, completely or not at all."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import apsw
import pytest

from everhold.core.entries import Noted
from everhold.core.people import can_hear
from everhold.errors import StoreError, StoreNewer
from everhold.ports.hosts import HostRecord, HostVersion
from everhold.ports.store import DeliveryItem, InFlightBatch, StateNamespace, StateWrite, Step
from everhold.stores.sqlite import migrate
from everhold.stores.sqlite.migrate import SchemaMigration
from everhold.stores.sqlite.snapshot import SqliteSnapshot
from everhold.stores.verify import find_people_contradictions
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
"""A migration as in a later version: it extends the schema and fills the new column from existing rows."""


async def leave_home_in_use(path: Path, **options: Any) -> None:
    """Leave a store with a running turn, a pending message and a batch in flight."""
    store, scenario = await open_scenario(path, **options)
    await scenario.commit_heard("first")
    await scenario.commit_heard("second", wake="platform")
    claim = await scenario.claim_cursor(at=1.0)
    await scenario.begin_operation(1, claim=claim)
    delivery = await scenario.claim_cursor("platform", at=1.0)
    await scenario.update_cursor(
        delivery, in_flight=InFlightBatch(items=(DeliveryItem(seq=1, key="k"),), upto=1, digest="d")
    )
    await store.close()


def test_migrations_are_numbered_without_gaps() -> None:
    assert [one.number for one in NOW] == list(range(1, len(NOW) + 1))


def test_a_new_database_has_the_newest_schema_and_no_backup(tmp_path: Path) -> None:
    store = open_store(tmp_path / "log.db")
    assert store.writer.db.pragma("user_version") == NOW[-1].number
    run_coroutine(store.close())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log.db", "log.db.mark"]


def test_an_upgrade_continues_from_the_older_schema(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "log.db"
        await leave_home_in_use(path)
        before = path.read_bytes()
        store, scenario = await open_scenario(path, migrations=[*NOW, MOODS], backups=tmp_path / "kept")
        assert await scenario.read_texts() == ["first", "second"]
        assert await scenario.list_pending_seqs() == [2]
        claims = await scenario.at(1000.0).claim_cursors(owner="new", lease=60.0, limit=9)
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

        # a downgrade is refused, and changes nothing
        files = fingerprint_files(tmp_path)
        with pytest.raises(StoreNewer):
            open_store(path)
        assert fingerprint_files(tmp_path) == files

    run_coroutine(play())


def test_a_store_of_schema_3_gets_the_tables_of_hosts(tmp_path: Path) -> None:
    """Schema 3 knew neither hosts nor account leases."""

    async def play() -> None:
        path = tmp_path / "log.db"
        await leave_home_in_use(path, migrations=NOW[:3])
        store, scenario = await open_scenario(path)
        assert store.upgrade_backup is not None
        assert await scenario.read_texts() == ["first", "second"]
        claim = await store.claim_account("telegram:main", owner="me", lease=30.0)
        assert claim is not None
        await scenario.commit_heard("third", account=claim)
        assert (
            await store.register_host(HostRecord(id="me", name="a", version=HostVersion("0.1.0", 4)), lease=9.0) == []
        )
        (status,) = await store.list_hosts()
        assert status.accounts == ("telegram:main",)
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_work_in_progress_continues_after_an_upgrade(tmp_path: Path) -> None:
    """Upgrade a store with a running turn, a pending message, a batch, a note, a summary, a delay and a state
    record.
    """

    async def play() -> None:
        path = tmp_path / "log.db"
        await leave_home_in_use(path)
        store, scenario = await open_scenario(path)
        assert store.writer.db.pragma("user_version") == NOW[-1].number
        await scenario.commit(Noted(text="tea"))
        compression = await scenario.commit_compression(covers=0)
        await scenario.wake_consumer("memory:a", 500.0, at=1.0, mandatory=True)
        write = StateWrite(namespace=StateNamespace.SCHEDULE, key="k", value="v", version=0)
        await scenario.commit(session="", step=Step.STATE, state_writes=(write,))
        (record,) = await store.list_state_records()
        await store.close()

        store, scenario = await open_scenario(path, migrations=[*NOW, MOODS])
        db = store.writer.db
        assert db.pragma("user_version") == MOODS.number
        assert db.execute("select mood from sessions").get == "busy"
        assert store.upgrade_backup is not None
        assert await scenario.read_texts() == ["first", "second"]
        assert [entry.seq for entry in await store.list_notes()] == [4]
        assert [entry.op for entry in await store.list_compressions(limit=9)] == [compression]
        assert await store.list_state_records() == [record]
        found = await scenario.at(400.0).claim_cursors(owner="new", lease=60.0, limit=9)
        claims = {claim.consumer: claim for claim in found}
        assert claims.keys() == {"turn", "platform"}, "a delay is as long as it was"
        assert claims["platform"].cursor.in_flight is not None
        (running,) = await store.list_operations("s", states=("running",))
        await scenario.end_operation(running.op, claim=claims["turn"])
        await scenario.begin_operation(2, claim=claims["turn"])
        await scenario.update_cursor(claims["platform"], clear_in_flight=True, processed_seq=1, release=True)
        assert (await scenario.read_cursor("platform")).in_flight is None
        assert (await scenario.claim_cursor("memory:a", at=600.0)).cursor.mandatory
        await scenario.commit(session="", step=Step.STATE, state_writes=(record.replace_with("w"),))
        assert await store.verify() == []
        await store.close()

        files = fingerprint_files(tmp_path)
        with pytest.raises(StoreNewer):
            open_store(path)
        assert fingerprint_files(tmp_path) == files

    run_coroutine(play())


def test_a_home_of_a_development_version_is_refused_and_not_changed(tmp_path: Path) -> None:
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
def test_an_incomplete_frame_of_a_killed_process_is_not_a_newer_schema(tmp_path: Path, page: bytes) -> None:
    """SQLite writes a frame's header before its page. If the process is killed in between, older data follows it."""

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.commit_heard("first")
        left = tmp_path / "left"
        left.mkdir()
        for name in ("log.db", "log.db-wal", "log.db.mark"):
            (left / name).write_bytes((tmp_path / name).read_bytes())
        await store.close()
        with (left / "log.db-wal").open("r+b") as wal:
            salts = wal.read(32)[16:24]
            wal.seek(0, 2)
            wal.write(struct.pack(">II", 1, 9) + salts + bytes(8) + page)
        store, scenario = await open_scenario(left / "log.db")
        assert await scenario.read_texts() == ["first"]
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_the_older_build_can_open_the_backup(tmp_path: Path) -> None:
    async def play() -> None:
        await leave_home_in_use(tmp_path / "log.db")
        await open_store(tmp_path / "log.db", migrations=[*NOW, MOODS]).close()
        (backup,) = (tmp_path / "backups").iterdir()
        store, scenario = await open_scenario(backup)
        assert await scenario.read_texts() == ["first", "second"]
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_a_failed_migration_leaves_the_schema_unchanged(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "log.db"
        await leave_home_in_use(path)
        with pytest.raises(StoreError, match="sessions"):
            open_store(path, migrations=[*NOW, BROKEN])
        store, scenario = await open_scenario(path)
        assert await scenario.read_texts() == ["first", "second"]
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


def test_an_incomplete_database_is_created_again(tmp_path: Path) -> None:
    async def play() -> None:
        (tmp_path / "log.db.new").write_bytes(b"a process died while making this")
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.commit_heard()
        await store.close()
        assert not (tmp_path / "log.db.new").exists()

    run_coroutine(play())


def test_names_of_the_first_schema_become_identities_of_their_person(tmp_path: Path) -> None:
    """Schema 1 stamped entries with a person's name if an identity was linked, and on local platforms."""

    async def play() -> None:
        path = tmp_path / "log.db"
        migrate.open_database(path, migrations=NOW[:1], backups=tmp_path, synchronous="OFF").close()
        db = apsw.Connection(str(path))
        for number, author in enumerate(("person:ada", "person:root", "person:telegram:55", "agent:main"), start=1):
            db.execute(
                "insert into entries(pos, session, seq, kind, author, at, version, digest)"
                " values (?, 's', ?, 'heard', ?, 1, 1, x'00')",
                (number, number, author),
            )
        db.execute("insert into identities values ('telegram:1001', 'ada', 5.0)")
        db.execute("insert into identities values ('discord:2', 'telegram:1001', 6.0)")  # before it had a name
        db.execute("insert into identities values ('http:root', 'ada', 7.0)")
        db.execute("insert into identities values ('slack:U1', 'telegram:9', 8.0)")
        before = db.execute("select * from entries").fetchall()
        db.close()
        store = open_store(path)
        people = await store.get_people()
        ada = people.resolve_name("ada")
        assert ada is not None
        assert {it.identity for it in people.list_identities(ada.id)} == {
            "ada",
            "local:ada",
            "http:ada",
            "telegram:1001",
            "discord:2",
            "http:root",
        }
        assert people.find_proven_label("telegram:1001") == "ada"
        assert people.is_same_person("root", "local:root")
        assert people.is_same_person("slack:U1", "telegram:9")
        assert people.find_label("slack:U1") == ""
        assert people.find_person("telegram:55") is None, "it becomes a person with its next message"
        present = people.expand_audience(("person:telegram:1001",))
        assert can_hear(present, ("person:ada",), at=0.0), "what was said before belongs to the person"
        assert store.writer.db.execute("select * from entries").fetchall() == before
        assert find_people_contradictions(SqliteSnapshot(store.writer.db)) == []
        await store.close()

    run_coroutine(play())
