"""The attacker made an increment in the directory of the backups. It is refused by name, and nothing is changed."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw
import pytest

from everhold.admin.backups import list_copies
from everhold.errors import EverholdError
from everhold.infra.backup_files import list_backups, list_increments
from everhold.ports.store_files import IncrementFile
from everhold.stores.sqlite import connect, migrate, restore
from tests.hostile.test_restore import ATTACKS, run_sql
from tests.stores.home import fingerprint_files
from tests.stores.test_increments import CopiedHome
from tests.waiting import LIMIT_SECONDS

HARMLESS: Final = {"no session", "name that is no UTF-8", "cursor of another session"}
"""What a restore takes from the copy, or leaves out."""
BOMB: Final = "with recursive n(i) as (select 1 union all select i + 1 from n) select i from n"


def rename(path: Path, name: str) -> None:
    path.rename(path.with_name(name))


def lie_about_end(path: Path) -> None:
    """The name promises positions that are not there, one for each of which somebody might look."""
    after, _, blob, at = path.stem.removeprefix("increment-").split("-")
    rename(path, f"increment-{after}-{10**15}-{blob}-{at}.db")


def stretch_positions(path: Path) -> None:
    """The same, and the last entry is really there."""
    run_sql(f"update entries set pos = {10**15} where pos = (select max(pos) from entries)")(path)
    lie_about_end(path)


OWN_ATTACKS: dict[str, Callable[[Path], object]] = {
    "end that is not there": lie_about_end,
    "positions without an end": stretch_positions,
    "view for the entries": run_sql(
        f"alter table entries rename to e; create view entries as select e.* from e, ({BOMB})"
    ),
    "number for a body": run_sql("update entries set body = 7"),
    "session begins nowhere": run_sql("update entries set seq = seq + 1000000"),
    "cursor of another session": run_sql("update cursors set session = x'ff'"),
}
TRIED: Final = {
    **{name: attack for name, attack in ATTACKS.items() if name != "missing"},
    **OWN_ATTACKS,
}


async def build_home(path: Path) -> tuple[CopiedHome, Path]:
    """Return a home that was lost, and the increment of its backup."""
    copied = CopiedHome(path)
    await copied.scenario.open_session("s")
    await copied.write("one")
    await copied.backups.make_backup()
    await copied.write("two", "three", "four")
    made = await copied.backups.make_increment()
    assert made is not None
    await copied.lose_disk()
    return copied, made.path


def play(path: Path, attack: Callable[[Path], object]) -> tuple[CopiedHome, Exception | None]:
    """Restore with a hostile increment. Return what was raised."""
    copied, increment = asyncio.run(build_home(path))
    attack(increment)
    before = fingerprint_files(copied.home.path)
    raised: list[Exception] = []

    def run() -> None:
        try:
            copied.restore()
        except Exception as error:  # noqa: BLE001  # the caller judges it
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_SECONDS)
    assert not thread.is_alive(), "it has no end"
    assert fingerprint_files(copied.home.path) == before or not raised
    return copied, raised[0] if raised else None


@pytest.mark.parametrize("attack", TRIED)
def test_a_hostile_increment_is_refused_and_the_rest_can_be_restored(tmp_path: Path, attack: str) -> None:
    copied, raised = play(tmp_path, TRIED[attack])
    if raised is None and attack in HARMLESS:
        assert asyncio.run(copied.read_texts()) == ["one", "two", "three", "four"]
        return
    assert isinstance(raised, EverholdError), raised
    assert str(raised)
    assert "increment" in str(raised)
    assert not copied.home.store.exists()
    for found in copied.disk.glob("increment-*"):
        shutil.rmtree(found) if found.is_dir() and not found.is_symlink() else found.unlink()
    copied.restore()
    assert asyncio.run(copied.read_texts()) == ["one"]


@pytest.mark.parametrize("name", ["increment-1-2-0-99999999T999999Z.db", "increment-2-99-0-20260231T000000Z.db"])
def test_a_name_with_an_impossible_time_is_no_increment(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    (tmp_path / "everhold-99999999T999999Z-5.db").touch()
    assert list_increments(tmp_path) == []
    assert list_backups(tmp_path) == []
    copied, raised = play(tmp_path / "there", lambda path: (path.parent / name).touch())
    assert raised is None
    assert asyncio.run(copied.read_texts()) == ["one", "two", "three", "four"]


def test_a_chain_that_is_opened_unseen_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plants the restore that looked at nothing but the header."""

    def open_unseen(it: IncrementFile) -> apsw.Connection:
        migrate.inspect_header(it.path)
        return connect.open_for_reading(it.path)

    monkeypatch.setattr(restore, "open_increment", open_unseen)
    _, raised = play(tmp_path, TRIED["trigger"])
    assert not isinstance(raised, EverholdError)


# -- names in the directory --------------------------------------------------------------------------------------------


def forge_bomb(path: Path) -> None:
    shutil.copy(next(path.parent.glob("everhold-*.db")), path)
    run_sql(f"alter table entries rename to e; create view entries as select e.* from e, ({BOMB})")(path)


FORGERIES: Final[dict[str, Callable[[Path], object]]] = {
    "empty": Path.touch,
    "pipe": os.mkfifo,
    "link to nothing": lambda path: path.symlink_to(path.with_name("nothing")),
    "folder": Path.mkdir,
    "database without an end": forge_bomb,
}
FORGED_NAMES: Final = (
    "increment-1-999999999999-0-20200101T000000Z.db",
    "increment-1-2-0-20200101T000000Z.db",
    "everhold-19700101T000000Z-999999999999.db",
    "everhold-19700101T000000Z-3.db",
)


@pytest.mark.parametrize("name", FORGED_NAMES)
@pytest.mark.parametrize("kind", FORGERIES)
def test_a_name_in_the_directory_stops_no_increment(tmp_path: Path, name: str, kind: str) -> None:
    async def play_forgery() -> None:
        copied = CopiedHome(tmp_path)
        await copied.scenario.open_session("s")
        await copied.write("one")
        await copied.backups.make_backup()
        forged = copied.disk / name
        FORGERIES[kind](forged)
        for texts in (("two", "three"), ("four",)):
            await copied.write(*texts)
            assert await asyncio.wait_for(copied.backups.make_increment(), LIMIT_SECONDS) is not None
        shutil.rmtree(forged) if forged.is_dir() else forged.unlink()
        await copied.lose_disk()
        copied.restore()
        assert await copied.read_texts() == ["one", "two", "three", "four"]

    asyncio.run(play_forgery())


async def test_names_with_a_future_time_delete_no_backup_and_order_none(tmp_path: Path) -> None:
    copied = CopiedHome(tmp_path)
    await copied.scenario.open_session("s")
    for number in range(3):
        (copied.disk / f"everhold-20990101T00000{number}Z-{number}.db").touch()
    await copied.write("one")
    assert copied.backups.get_seconds_until_due(1) == 0
    made = await copied.backups.make_backup()
    copied.backups.prune(2)
    assert made.path.exists()
    assert copied.backups.get_seconds_until_due(1) > 0


async def test_a_link_to_nothing_is_listed(tmp_path: Path) -> None:
    (tmp_path / "everhold-19700101T000000Z-3.db").symlink_to(tmp_path / "nothing")
    assert [it["pos"] for it in list_copies(tmp_path)] == [3]
