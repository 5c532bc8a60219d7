"""Damaged files are refused or reported with their location, and never overwritten."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import apsw
import pytest

from everhold.core.entries import BODY_VERSION, EntryKind
from everhold.errors import Poisoned, StoreDamaged, StoreError, StoreNewer
from everhold.stores.sqlite import migrate
from tests.stores.home import copy_crash_image, fingerprint_files, open_scenario, open_store, run_coroutine


def written(home: Path, *, messages: int = 50, crash: bool = False) -> Path:
    """Make a database with some messages; with `crash`, as it is while its process still runs."""

    async def play() -> Path:
        store, scenario = await open_scenario(home / "live" / "log.db")
        for n in range(messages):
            await scenario.commit_heard(f"message {n} " + "m" * 500)
        image = copy_crash_image(home / "live" / "log.db", home / "crashed")
        await store.close()
        return image

    image = run_coroutine(play())
    return image if crash else home / "live" / "log.db"


def refused(path: Path, why: str) -> None:
    before = fingerprint_files(path.parent)
    size = path.stat().st_size if path.exists() else None
    with pytest.raises(StoreDamaged, match=why) as damage:
        open_store(path)
    assert str(path) in str(damage.value)
    assert "restore" in damage.value.remedy
    assert fingerprint_files(path.parent) == before
    assert (path.stat().st_size if path.exists() else None) == size


def test_a_damaged_page_is_refused_and_named(tmp_path: Path) -> None:
    path = written(tmp_path)
    data = bytearray(path.read_bytes())
    for at in range(4096 * 6, 4096 * 9):
        data[at] ^= 0x5A
    path.write_bytes(data)
    refused(path, "(?i)page")


def test_a_damaged_page_names_its_session_and_counts_the_sound_ones(tmp_path: Path) -> None:
    """SQLite stops in the middle of its own check; the errors until then are used."""

    async def play() -> None:
        store, scenario = await open_scenario(tmp_path / "log.db")
        await scenario.open_session("other")
        for n in range(20):
            await scenario.commit_heard(f"message {n} " + "m" * 500)
            await scenario.commit_heard(f"elsewhere {n} " + "m" * 500, session="other")
        await scenario.commit_heard("the last of all " + "m" * 3000)
        await store.close()

    run_coroutine(play())
    path = tmp_path / "log.db"
    data = bytearray(path.read_bytes())
    at = data.index(b"the last of all") // 4096 * 4096
    data[at : at + 4096] = bytes(byte ^ 0x5A for byte in data[at : at + 4096])
    path.write_bytes(data)
    refused(path, rf"page {at // 4096 + 1}\b.*cannot be read completely: session s.*1 others can be read")


def test_the_sound_part_of_a_large_file_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not checked when it is opened. A read of a damaged session names it, and the others can be read."""
    monkeypatch.setattr(migrate, "QUICK_CHECK_BYTES", 0)
    path = tmp_path / "log.db"

    async def play() -> None:
        store, scenario = await open_scenario(path)
        await scenario.open_session("other")
        for n in range(20):
            await scenario.commit_heard(f"elsewhere {n} " + "m" * 500, session="other")
        for n in range(20):
            await scenario.commit_heard(f"message {n} " + "m" * 500)
        await store.close()
        data = bytearray(path.read_bytes())
        at = data.index(b"message 12 ") // 4096 * 4096
        data[at : at + 4096] = bytes(byte ^ 0x5A for byte in data[at : at + 4096])
        path.write_bytes(data)
        store, scenario = await open_scenario(path)
        assert len(await store.list_entries("other")) == 20
        with pytest.raises(StoreDamaged, match="session s cannot be read completely") as caught:
            await store.list_entries("s")
        assert "everhold restore" in caught.value.remedy
        await store.close()

    run_coroutine(play())


def test_refusing_a_damaged_database_keeps_its_write_ahead_log(tmp_path: Path) -> None:
    path = written(tmp_path)

    async def play() -> Path:
        store, scenario = await open_scenario(path)
        await scenario.commit_heard("in the log only")
        image = copy_crash_image(path, tmp_path / "crashed")
        await store.close()
        return image

    image = run_coroutine(play())
    data = bytearray(image.read_bytes())
    for at in range(4096 * 8, 4096 * 9):
        data[at] ^= 0x5A
    image.write_bytes(data)
    assert image.with_name("log.db-wal").stat().st_size > 0
    refused(image, "damaged")


def test_a_flipped_bit_in_a_message_is_found_and_named(tmp_path: Path) -> None:
    path = written(tmp_path)
    data = path.read_bytes()
    at = data.index(b"message 7 ") + 8
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])

    async def play() -> None:
        store = open_store(path)  # no page is wrong: SQLite cannot see it
        assert await store.verify() == ["s: entry 8 (heard) is not what was written: its digest does not match"]
        assert await store.verify("s") == await store.verify()
        await store.close()

    run_coroutine(play())


def test_reading_a_body_that_cannot_be_decoded_raises_an_error(tmp_path: Path) -> None:
    path = written(tmp_path)
    db = apsw.Connection(str(path))
    db.execute("update entries set body = replace(body, '{', '[') where seq = 3")
    db.close()

    async def play() -> None:
        store = open_store(path)
        with pytest.raises(StoreDamaged, match="session s: entry 3"):
            await store.list_entries("s")
        assert len(await store.list_entries("s", after=3)) == 47
        assert any("entry 3" in line for line in await store.verify())
        await store.close()

    run_coroutine(play())


def test_an_empty_file_is_not_taken_for_a_new_database(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(b"")
    refused(path, "empty")


def test_an_empty_file_beside_its_log_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, crash=True)
    assert path.with_name("log.db-wal").stat().st_size > 0
    path.write_bytes(b"")
    refused(path, "write-ahead log")


def test_a_missing_file_beside_its_log_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, crash=True)
    path.with_name("log.db.mark").unlink()
    path.unlink()
    refused(path, "gone")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.write_bytes(b"a letter to my aunt " * 1000)
    refused(path, "page 1")


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    db = apsw.Connection(str(path))
    db.execute("create table aunts(name)")
    db.close()
    before = fingerprint_files(tmp_path)
    with pytest.raises(StoreDamaged, match="not an everhold database"):
        open_store(path)
    assert fingerprint_files(tmp_path) == before


def test_a_crashed_store_opens_with_all_acknowledged_commits(tmp_path: Path) -> None:
    path = written(tmp_path, crash=True)

    async def play() -> None:
        store, scenario = await open_scenario(path)
        assert len(await scenario.read_texts()) == 50
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_a_database_that_vanished_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.unlink()
    before = fingerprint_files(path.parent)
    with pytest.raises(StoreDamaged, match="everything up to 50 was acknowledged"):
        open_store(path)
    assert fingerprint_files(path.parent) == before
    assert not path.exists()


@pytest.mark.parametrize("left", [0.5, 0.0])
def test_a_write_ahead_log_that_lost_its_end_is_refused(tmp_path: Path, left: float) -> None:
    path = written(tmp_path, crash=True)
    wal = path.with_name("log.db-wal")
    wal.write_bytes(wal.read_bytes()[: int(wal.stat().st_size * left)])
    if not left:
        wal.unlink()
    before = fingerprint_files(path.parent)
    with pytest.raises(StoreDamaged, match="everything up to 50 was acknowledged") as damage:
        open_store(path)
    assert "log.db.mark" in damage.value.remedy
    assert "everhold restore" in damage.value.remedy
    assert fingerprint_files(path.parent) == before


def test_without_its_watermark_a_shortened_log_is_not_recognised(tmp_path: Path) -> None:
    """Without the watermark, SQLite drops the incomplete end, and the rest is sound."""
    path = written(tmp_path, crash=True)
    wal = path.with_name("log.db-wal")
    wal.write_bytes(wal.read_bytes()[: wal.stat().st_size // 2])
    path.with_name("log.db.mark").unlink()

    async def play() -> None:
        store, scenario = await open_scenario(path)
        texts = await scenario.read_texts()
        assert 0 < len(texts) < 50
        assert [text.split()[1] for text in texts] == [str(n) for n in range(len(texts))]
        assert await store.verify() == []
        await store.close()

    run_coroutine(play())


def test_restoring_a_backup_by_hand_requires_deleting_the_watermark(tmp_path: Path) -> None:
    async def play() -> None:
        path = tmp_path / "log.db"
        store, scenario = await open_scenario(path)
        await scenario.commit_heard("kept")
        copy = await store.make_backup(tmp_path / "backup.db")
        await scenario.commit_heard("later")
        await store.close()
        shutil.copy(copy, path)
        with pytest.raises(StoreDamaged):
            open_store(path)
        (tmp_path / "log.db.mark").unlink()
        store, scenario = await open_scenario(path)
        assert await scenario.read_texts() == ["kept"]
        await store.close()

    run_coroutine(play())


# -- random damage


def describe_file(path: Path) -> object:
    """Open, read and check a file. Return its entries, or what is wrong with it."""

    async def play() -> object:
        store = open_store(path)
        try:
            if found := await store.verify():
                return found
            sessions = await store.list_sessions(limit=100)
            entries = [(e.seq, e.kind, e.at, e.body) for s in sessions for e in await store.list_entries(s.id)]
            return [(s.id, s.address, s.last_seq, s.title) for s in sessions], entries
        finally:
            await store.close()

    try:
        return run_coroutine(play())
    except (StoreError, apsw.Error) as error:
        return str(error)


@pytest.mark.parametrize("seed", range(25))
def test_any_damage_is_refused_or_named_or_harmless(tmp_path: Path, seed: int) -> None:
    look_for_silent_damage(tmp_path, seed)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(1000, 1000 + int(os.environ.get("EVERHOLD_SEEDS", "300")) // 10))
def test_no_damage_is_served_as_valid_data(tmp_path: Path, seed: int) -> None:
    look_for_silent_damage(tmp_path, seed)


def look_for_silent_damage(directory: Path, seed: int) -> None:
    """Flip bits, fill pages with noise or zeroes, or truncate the file, at random places."""
    chance = random.Random(seed)
    path = written(directory, messages=30)
    sound = describe_file(path)
    data = bytearray(path.read_bytes())
    how = chance.choice(("flip", "flip", "flip", "noise", "zero", "cut", "swap"))
    at = chance.randrange(len(data))
    page = at // 4096 * 4096
    if how == "flip":
        data[at] ^= 1 << chance.randrange(8)
    elif how == "noise":
        data[page : page + 4096] = chance.randbytes(4096)
    elif how == "zero":
        data[page : page + 4096] = bytes(4096)
    elif how == "cut":
        del data[page:]
    else:
        other = chance.randrange(len(data)) // 4096 * 4096
        data[page : page + 4096], data[other : other + 4096] = data[other : other + 4096], data[page : page + 4096]
    path.write_bytes(data)
    after = describe_file(path)
    assert after == sound or isinstance(after, str | list), (how, at)


# -- what a newer build wrote


def newer_in_file(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.pragma("user_version", 99)
    db.close()


def newer_in_log_only(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    db.pragma("user_version", 99)
    db.close()
    assert int.from_bytes(path.read_bytes()[60:64]) == migrate.list_migrations()[-1].number


@pytest.mark.parametrize("upgrade", [newer_in_file, newer_in_log_only])
def test_a_newer_schema_is_refused_without_changing_a_byte(tmp_path: Path, upgrade: object) -> None:
    path = written(tmp_path)
    assert callable(upgrade)
    upgrade(path)
    before = fingerprint_files(path.parent)
    with pytest.raises(StoreNewer, match="schema 99") as newer:
        open_store(path)
    assert "newer everhold" in newer.value.remedy
    assert fingerprint_files(path.parent) == before


@pytest.mark.parametrize("change", ["kind = 'dreamed'", f"version = {BODY_VERSION + 1}"])
def test_an_entry_of_a_later_build_is_not_skipped(tmp_path: Path, change: str) -> None:
    path = written(tmp_path)
    db = apsw.Connection(str(path))
    db.execute(f"update entries set {change} where seq = 10")
    db.close()

    async def play() -> None:
        store = open_store(path)
        with pytest.raises(Poisoned, match="entry 10"):
            await store.list_entries("s")
        with pytest.raises(Poisoned):
            await store.list_entries("s", kinds=(EntryKind.SAID,))
        with pytest.raises(Poisoned):
            await store.get_entry("s", 10)
        with pytest.raises(Poisoned):
            await store.read_feed()
        with pytest.raises(Poisoned):
            await store.list_pending("s")
        assert len(await store.list_entries("s", upto=9)) == 9
        assert await store.list_entries("s", after=10, kinds=(EntryKind.SAID,)) == []
        assert any("newer everhold" in line for line in await store.verify())
        await store.close()

    run_coroutine(play())
