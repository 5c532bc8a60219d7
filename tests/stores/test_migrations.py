"""From one schema to the next: with a checked copy of what was there, in one step or not at all."""

from __future__ import annotations

import struct
from pathlib import Path

import apsw
import pytest

from everhold.core.entries import Noted
from everhold.errors import StoreError, StoreNewer
from everhold.ports.store import Flight, Item
from everhold.stores.sqlite import migrate
from everhold.stores.sqlite.migrate import Migration
from tests.stores.home import fingerprint, opened, run, staged

NOW = migrate.known()
NEXT = Migration(NOW[-1].number + 1, "moods", "alter table sessions add column mood text not null default 'calm';")
BROKEN = Migration(NOW[-1].number + 1, "broken", "create table fine(a); create table sessions(oops);")


COLUMNS = {5: ("lanes", "whom")}
"""What came with which schema that today's build cannot write without: an older home is lent it for a while."""


def older(schema: int) -> list[Migration]:
    """The steps up to a schema, with what it is lent."""
    lent = [f"alter table {table} add column {it} text not null default '';" for table, it in missing(schema)]
    return [*NOW[: schema - 1], NOW[schema - 1]._replace(sql=NOW[schema - 1].sql + "".join(lent))]


def given_back(path: Path, *, schema: int) -> None:
    """The home as a build of that time would have left it."""
    db = apsw.Connection(str(path))
    for table, it in missing(schema):
        db.execute(f"alter table {table} drop column {it}")
    db.close()


def missing(schema: int) -> list[tuple[str, str]]:
    return [column for number, column in COLUMNS.items() if number > schema]


async def lived_in(path: Path, *, schema: int = NOW[-1].number) -> None:
    """A home that was left in the middle of things: a running turn, a pending message, a flight."""
    store, scene = await staged(path, migrations=older(schema))
    await scene.hear("first")
    await scene.hear("second", wake="voice")
    claim = await scene.claim(at=1.0)
    await scene.begin(1, claim=claim)
    voice = await scene.claim("voice", at=1.0)
    await scene.update(voice, flight=Flight(items=(Item(seq=1, key="k"),), upto=1, digest="d"))
    await store.close()


def test_migrations_are_numbered_without_gaps() -> None:
    assert [one.number for one in NOW] == list(range(1, len(NOW) + 1))


def test_a_new_database_has_the_newest_schema_and_no_backup(tmp_path: Path) -> None:
    store = opened(tmp_path / "log.db")
    assert store.writer.db.pragma("user_version") == NOW[-1].number
    run(store.close())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log.db", "log.db.mark"]


def test_an_upgrade_goes_on_where_the_older_build_stopped(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "log.db"
        await lived_in(path)
        before = path.read_bytes()
        store, scene = await staged(path, migrations=[*NOW, NEXT], backups=tmp_path / "kept")
        assert await scene.texts() == ["first", "second"]
        assert await scene.pending() == [2]
        claims = await store.claim(owner="new", at=1000.0, lease=60.0, limit=9)
        assert {claim.reader: claim.taken_over for claim in claims} == {"mind": True, "voice": True}
        assert {claim.reader: claim.lane.flight is not None for claim in claims} == {"mind": False, "voice": True}
        (running,) = await store.operations("s", states=("running",))
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
        files = fingerprint(tmp_path)
        with pytest.raises(StoreNewer):
            opened(path)
        assert fingerprint(tmp_path) == files

    run(play())


@pytest.mark.parametrize("schema", [one.number for one in NOW[:-1]])
def test_whoever_was_at_work_under_an_older_schema_goes_on_under_this_one(tmp_path: Path, schema: int) -> None:
    """The real steps, on a home with a turn, a message and a flight in the middle, a note, a summary, and a wait."""

    async def play() -> None:
        path = tmp_path / "log.db"
        await lived_in(path, schema=schema)
        store, scene = await staged(path, migrations=older(schema))
        assert store.writer.db.pragma("user_version") == schema
        await scene.commit(Noted(text="tea"))
        fold = await scene.fold(covers=0)
        await scene.wake("memory:a", 500.0, at=1.0, firm=True)
        await store.close()
        given_back(path, schema=schema)

        store, scene = await staged(path)
        assert store.writer.db.pragma("user_version") == NOW[-1].number
        assert store.saved is not None
        assert await scene.texts() == ["first", "second"]
        assert [entry.seq for entry in await store.notes()] == [4]
        assert [entry.op for entry in await store.folds(limit=9)] == [fold]
        claims = {claim.reader: claim for claim in await store.claim(owner="new", at=400.0, lease=60.0, limit=9)}
        assert claims.keys() == {"mind", "voice"}, "a wait is as long as it was"
        assert claims["voice"].lane.flight is not None
        (running,) = await store.operations("s", states=("running",))
        await scene.end(running.op, claim=claims["mind"])
        await scene.begin(2, claim=claims["mind"])
        await scene.update(claims["voice"], landed=True, position=1, release=True)
        assert (await scene.lane("voice")).flight is None
        assert (await scene.claim("memory:a", at=600.0)).lane.firm
        assert await store.verify() == []
        await store.close()

        files = fingerprint(tmp_path)
        with pytest.raises(StoreNewer):
            opened(path, migrations=NOW[:schema])
        assert fingerprint(tmp_path) == files

    run(play())


@pytest.mark.parametrize("page", [b"\x02\xd3\x02\xb1" * 1024, b"SQLite format 3\0" + b"\x7f" * 4080])
def test_a_frame_that_was_begun_when_the_process_died_is_no_newer_schema(tmp_path: Path, page: bytes) -> None:
    """SQLite writes a frame's header before its page: what a kill leaves between the two is from another time."""

    async def play() -> None:
        store, scene = await staged(tmp_path / "log.db")
        await scene.hear("first")
        left = tmp_path / "left"
        left.mkdir()
        for name in ("log.db", "log.db-wal", "log.db.mark"):
            (left / name).write_bytes((tmp_path / name).read_bytes())
        await store.close()
        with (left / "log.db-wal").open("r+b") as wal:
            salts = wal.read(32)[16:24]
            wal.seek(0, 2)
            wal.write(struct.pack(">II", 1, 9) + salts + bytes(8) + page)
        store, scene = await staged(left / "log.db")
        assert await scene.texts() == ["first"]
        assert await store.verify() == []
        await store.close()

    run(play())


def test_the_backup_is_itself_a_home_for_the_older_build(tmp_path: Path) -> None:
    async def play() -> None:
        await lived_in(tmp_path / "log.db")
        await opened(tmp_path / "log.db", migrations=[*NOW, NEXT]).close()
        (backup,) = (tmp_path / "backups").iterdir()
        store, scene = await staged(backup)
        assert await scene.texts() == ["first", "second"]
        assert await store.verify() == []
        await store.close()

    run(play())


def test_a_migration_that_fails_leaves_the_schema_as_it_was(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "log.db"
        await lived_in(path)
        with pytest.raises(StoreError, match="sessions"):
            opened(path, migrations=[*NOW, BROKEN])
        store, scene = await staged(path)
        assert await scene.texts() == ["first", "second"]
        assert store.writer.db.execute("select 1 from sqlite_schema where name = 'fine'").get is None
        await store.close()

    run(play())


def test_a_second_upgrade_keeps_the_first_backup(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "log.db"
        await lived_in(path)
        for _ in range(2):
            with pytest.raises(StoreError):
                opened(path, migrations=[*NOW, BROKEN])
        assert len(list((tmp_path / "backups").iterdir())) == 2

    run(play())


def test_a_half_made_database_is_made_anew(tmp_path: Path) -> None:
    async def play() -> None:
        (tmp_path / "log.db.new").write_bytes(b"a process died while making this")
        store, scene = await staged(tmp_path / "log.db")
        await scene.hear()
        await store.close()
        assert not (tmp_path / "log.db.new").exists()

    run(play())
