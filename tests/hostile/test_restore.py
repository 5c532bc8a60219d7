"""The attacker made the file that is restored, or swaps it. It is refused by name, and the present store stays."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from everhold.app import SystemRandomSource
from everhold.assembly.stores import plan_restore, restore_store
from everhold.errors import EverholdError, StoreError
from everhold.infra.home import Home
from everhold.stores.sqlite import migrate
from tests.stores.home import fingerprint_files, open_scenario, run_coroutine


async def fill_store(path: Path, texts: list[str]) -> None:
    store, scenario = await open_scenario(path, synchronous="OFF")
    for text in texts:
        await scenario.commit_heard(text)
    await store.close()


def build_home(path: Path) -> tuple[Home, Path]:
    """Return a home with a store, and a sound copy of another store beside it."""
    home = Home(path / "home").create()
    run_coroutine(fill_store(home.store, ["one", "two"]))
    copy = path / "copy.db"
    run_coroutine(fill_store(copy, ["one", "two", "three"]))
    return home, copy


def restore(home: Home, source: Path) -> None:
    plan = plan_restore(home, source=str(source))
    if not plan.source_copy.is_sound:
        raise StoreError(plan.source_copy.contradictions[0])
    restore_store(home, plan, now=1.0, chance=SystemRandomSource())


def run_sql(sql: str) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        db = sqlite3.connect(path)
        db.executescript(sql)
        db.commit()
        db.close()

    return change


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def make_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def make_sparse(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 1 << 40)


def grow_sparse(path: Path) -> None:
    """The header says that the file has a terabyte of pages, and it has, without content."""
    data = bytearray(path.read_bytes()[:4096])
    data[28:32] = (1 << 28).to_bytes(4, "big")
    path.write_bytes(bytes(data))
    os.truncate(path, 1 << 40)


def make_foreign(path: Path) -> None:
    path.unlink()
    run_sql("create table entries(pos integer, body text); insert into entries values (1, 'x')")(path)


ATTACKS: dict[str, Callable[[Path], object]] = {
    "fifo": make_fifo,
    "folder": make_folder,
    "device": make_device,
    "loop": make_loop,
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b"") and None,
    "header only": lambda path: path.write_bytes(path.read_bytes()[:100]) and None,
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "text": lambda path: path.write_bytes(b"\xff\xfe not a database" * 500) and None,
    "archive": lambda path: path.write_bytes(b"PK\x03\x04" + b"\0" * 5000) and None,
    "sparse": make_sparse,
    "sparse with a header": grow_sparse,
    "another program's": make_foreign,
    "trigger": run_sql("create trigger t after insert on entries begin delete from sessions; end"),
    "temporary name": run_sql("create trigger \"x'); --\" before delete on entries begin select raise(ignore); end"),
    "view": run_sql("create view spy as with recursive n(i) as (select 1 union all select i+1 from n) select i from n"),
    "view for a table": run_sql("alter table receipts rename to r; create view receipts as select * from r"),
    "virtual table": run_sql("create virtual table f using fts5(x)"),
    "missing table": run_sql("drop table receipts"),
    "missing index": run_sql("drop index entries_dedup"),
    "text that is no UTF-8": run_sql("update entries set body = cast(x'ff7b22' as text) where pos = 2"),
    "name that is no UTF-8": run_sql("update sessions set title = cast(x'ff7b22' as text)"),
    "blob for a text": run_sql("update entries set kind = x'00' where pos = 2"),
    "text for a number": run_sql("update entries set at = 'yesterday' where pos = 2"),
    "deep body": lambda path: run_sql(f"update entries set body = '{'[' * 50_000}' where pos = 2")(path),
    "altered body": run_sql("update entries set body = '{}' where pos = 2"),
    "no session": run_sql("delete from sessions"),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_backup_is_refused_and_the_store_stays(tmp_path: Path, attack: str) -> None:
    home, copy = build_home(tmp_path)
    ATTACKS[attack](copy)
    before = fingerprint_files(home.path)
    with pytest.raises(EverholdError) as refused:
        restore(home, copy)
    assert str(refused.value)
    assert fingerprint_files(home.path) == before


@pytest.mark.parametrize("seed", range(20))
def test_a_backup_with_random_damage_is_refused_or_sound(tmp_path: Path, seed: int) -> None:
    home, copy = build_home(tmp_path)
    chance = random.Random(seed)
    data = bytearray(copy.read_bytes())
    for _ in range(chance.choice([1, 5, 50])):
        data[chance.randrange(100, len(data))] = chance.randrange(256)
    copy.write_bytes(bytes(data))
    before = fingerprint_files(home.path)
    try:
        restore(home, copy)
    except EverholdError:
        assert fingerprint_files(home.path) == before
    else:
        assert plan_restore(home, source=str(home.store)).source_copy.is_sound


def test_a_sound_backup_is_restored_through_a_link(tmp_path: Path) -> None:
    home, copy = build_home(tmp_path)
    (tmp_path / "link.db").symlink_to(copy)
    restore(home, tmp_path / "link.db")
    assert plan_restore(home, source=str(home.store)).source_copy.entries == 3


def test_a_backup_that_is_swapped_after_it_was_checked_is_refused(tmp_path: Path) -> None:
    home, copy = build_home(tmp_path)
    plan = plan_restore(home, source=str(copy))
    run_coroutine(fill_store(tmp_path / "other.db", ["something else", "two", "three"]))
    os.replace(tmp_path / "other.db", copy)
    before = (home.store.stat().st_size, plan_restore(home, source=str(home.store)).source_copy.pos)
    with pytest.raises(StoreError, match="changed while"):
        restore_store(home, plan, now=1.0, chance=SystemRandomSource())
    assert (home.store.stat().st_size, plan_restore(home, source=str(home.store)).source_copy.pos) == before


def test_a_planted_trigger_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check of the schema the trigger would be in the restored store."""
    monkeypatch.setattr(migrate, "refuse_foreign_schema", lambda db, path: None)
    home, copy = build_home(tmp_path)
    ATTACKS["trigger"](copy)
    restore(home, copy)
    db = sqlite3.connect(home.store)
    assert db.execute("select count(*) from sqlite_master where type = 'trigger'").fetchone() == (1,)
    db.close()


# -- the erasures file beside the copy ---------------------------------------------------------------------------------

USABLE_LINES = (
    b'{"session":"s","seqs":[1],"seals":["00"],"at":1.0}',
    b'{"session":"","seqs":[],"forget":["telegram:1"],"at":1.0,"done":true}',
)
UNUSABLE_LINES = (
    b"\x00\xff", b"[]", b"{}", b'{"session":"s"}', b'{"session":"s","seqs":[0],"at":1.0}',
    b'{"session":1,"seqs":[1],"at":1}',
    b'{"session":"s","seqs":[1,2],"seals":["00"],"at":1.0}', b'{"session":"","seqs":[],"forget":["a:1"],"at":1.0}',
    b'{"session":"","seqs":[],"forget":"a:1","at":1.0,"done":true}', b'{"session":"s","seqs":[-1],"at":1.0}',
    b'{"session":"","seqs":[],"forget":["a:1"],"since":{"a:1":"x"},"at":1.0,"done":false}', b"[" * 100_000,
)  # fmt: skip


def test_only_usable_lines_of_an_erasures_file_are_taken_over(tmp_path: Path) -> None:
    home, copy = build_home(tmp_path)
    home.erasures.write_bytes(USABLE_LINES[0])  # without an end of line, as a power cut leaves it
    (tmp_path / "erasures.log").write_bytes(b"\n".join((*UNUSABLE_LINES, *USABLE_LINES, *USABLE_LINES)))
    restore(home, copy)
    assert home.erasures.read_bytes().splitlines() == list(USABLE_LINES)


@pytest.mark.parametrize("make", [make_fifo, make_folder])
def test_an_erasures_file_that_is_no_file_is_refused_by_name(tmp_path: Path, make: Callable[[Path], None]) -> None:
    home, copy = build_home(tmp_path)
    before = fingerprint_files(home.path)
    (tmp_path / "erasures.log").touch()
    make(tmp_path / "erasures.log")
    with pytest.raises(StoreError, match=r"erasures.log is not a file"):
        restore(home, copy)
    assert fingerprint_files(home.path) == before
