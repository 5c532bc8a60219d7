"""A restore takes from a damaged store what was written after the copy and is right, and reports the rest."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from everhold.admin.backups import StoreBackups
from everhold.assembly.stores import plan_restore, restore_store
from everhold.core.entries import EntryDraft, Heard
from everhold.infra.home import Home
from everhold.ports.store_files import RestoreResult
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store_scenario import SeededRandom, StoreScenario, make_heard
from tests.stores.home import open_store, run_coroutine

BEFORE, AFTER = 30, 40


async def write_messages(store: SqliteStore, scenario: StoreScenario, name: str, count: int) -> None:
    for n in range(count):
        text = f"{name}-{n} " + "m" * 300
        done = await scenario.commit(EntryDraft(body=make_heard(text), author="person:ada", dedup=f"{name}-{n}"))
        assert not done.duplicate


def build_home(path: Path) -> Home:
    """A home with a backup and messages after it, in a session of the copy and in a new one."""

    async def play() -> Home:
        home = Home(path / "home").create()
        store = open_store(home.store)
        scenario = StoreScenario(store)
        await scenario.open_session("s")
        await write_messages(store, scenario, "before", BEFORE)
        await StoreBackups(home.backups, files=store, now=lambda: 1e9).make_backup()
        await write_messages(store, scenario, "after", AFTER)
        other = StoreScenario(store)
        await other.open_session("new")
        await scenario.commit(
            EntryDraft(body=make_heard("in a new session"), author="person:bob"), session="new", blobs=(b"a file",)
        )
        await store.close()
        return home

    return run_coroutine(play())


def damage_page_with(home: Home, text: bytes) -> None:
    data = bytearray(home.store.read_bytes())
    at = data.index(text) // 4096 * 4096
    data[at : at + 4096] = bytes(byte ^ 0x5A for byte in data[at : at + 4096])
    home.store.write_bytes(data)


def restore(home: Home) -> RestoreResult:
    plan = plan_restore(home)
    assert plan.damage
    return restore_store(home, plan, now=2e9, chance=SeededRandom())


def list_texts(home: Home) -> list[str]:
    async def play() -> list[str]:
        store = open_store(home.store)
        entries = await store.read_feed(limit=1_000)
        assert await store.verify() == []
        await store.close()
        return [entry.body.text.split(" m")[0] for entry in entries if isinstance(entry.body, Heard)]

    return run_coroutine(play())


EVERYTHING = [
    *(f"before-{n}" for n in range(BEFORE)),
    *(f"after-{n}" for n in range(AFTER)),
    "in a new session",
]


def test_damage_in_what_the_copy_has_loses_nothing(tmp_path: Path) -> None:
    home = build_home(tmp_path)
    damage_page_with(home, b"before-11 ")
    done = restore(home)
    assert list_texts(home) == EVERYTHING
    assert (done.left_out, done.salvaged >= AFTER + 1) == ([], True)
    assert apsw.Connection(str(home.store)).execute("select data from blobs").get == b"a file"


def test_damage_after_the_copy_loses_only_the_entries_of_that_page(tmp_path: Path) -> None:
    home = build_home(tmp_path)
    damage_page_with(home, b"after-20 ")
    done = restore(home)
    kept = list_texts(home)
    assert set(EVERYTHING) - set(kept) <= {f"after-{n}" for n in range(5, 35)}
    assert 1 <= len(EVERYTHING) - len(kept) <= 12, "one page"
    assert {"after-0", f"after-{AFTER - 1}", "in a new session"} <= set(kept)
    assert any("cannot be read" in line for line in done.left_out)
    assert any("session s: entries" in line for line in done.left_out)


def test_an_entry_with_a_wrong_digest_is_not_taken(tmp_path: Path) -> None:
    home = build_home(tmp_path)
    damage_page_with(home, b"before-11 ")
    data = home.store.read_bytes()
    home.store.write_bytes(data.replace(b"after-20 ", b"after-XX "))
    done = restore(home)
    assert list_texts(home) == [text for text in EVERYTHING if text != "after-20"]
    assert any("wrong digests" in line for line in done.left_out)


def test_a_file_with_a_wrong_digest_is_not_taken(tmp_path: Path) -> None:
    home = build_home(tmp_path)
    damage_page_with(home, b"before-11 ")
    data = home.store.read_bytes()
    assert data.count(b"a file") == 1
    home.store.write_bytes(data.replace(b"a file", b"a fake"))
    done = restore(home)
    assert list_texts(home) == EVERYTHING
    assert apsw.Connection(str(home.store)).execute("select data from blobs").get is None
    assert "1 files" in done.left_out


def test_what_was_erased_after_the_copy_stays_erased(tmp_path: Path) -> None:
    home = build_home(tmp_path)

    async def erase() -> None:
        store = open_store(home.store)
        gone = [
            it.seq
            for it in await store.read_feed(limit=1_000)
            if isinstance(it.body, Heard) and it.body.text.startswith(("before-3 ", "after-3 "))
        ]
        assert len(gone) == 2
        await StoreScenario(store).erase_entries(*gone)
        await store.close()

    run_coroutine(erase())
    damage_page_with(home, b"before-11 ")
    restore(home)
    assert list_texts(home) == [text for text in EVERYTHING if text not in ("before-3", "after-3")]
    assert b"before-3 " not in home.store.read_bytes()


def test_a_file_of_which_nothing_can_be_read_is_replaced_by_the_copy(tmp_path: Path) -> None:
    home = build_home(tmp_path)
    home.store.write_bytes(b"\0" * home.store.stat().st_size)
    done = restore(home)
    assert list_texts(home) == EVERYTHING[:BEFORE]
    assert done.salvaged == 0
    assert done.left_out


@pytest.mark.parametrize("seed", range(12))
def test_a_salvaged_store_is_sound_whatever_page_was_damaged(tmp_path: Path, seed: int) -> None:
    home = build_home(tmp_path)
    data = bytearray(home.store.read_bytes())
    pages = len(data) // 4096
    at = (1 + (seed * 7919) % (pages - 1)) * 4096
    data[at : at + 4096] = bytes(byte ^ 0xA5 for byte in data[at : at + 4096])
    home.store.write_bytes(data)
    plan = plan_restore(home)
    done = restore_store(home, plan, now=2e9, chance=SeededRandom())
    kept = list_texts(home)
    assert kept[:BEFORE] == EVERYTHING[:BEFORE]
    lost = len(EVERYTHING) - len(kept)
    assert not plan.damage or lost <= 12 or done.left_out, "what is lost is reported"
