"""`everhold backup` and `everhold restore` on a real home, with a gateway and without."""

from __future__ import annotations

import asyncio
import datetime
import io
import json
import shutil
from pathlib import Path

import pytest

from everhold.admin.backups import StoreBackups
from everhold.app import GatewayApp, SystemClock
from everhold.config import parse_settings
from everhold.infra.backup_files import list_backups, list_increments
from everhold.infra.home import Home
from everhold.ports.store_files import CopyEnd, StoreCopy, StoreIncrement
from everhold.telemetry.logs import open_log
from tests.cli.command_home import CommandHome, wait_until


def texts(command_home: CommandHome) -> list[str]:
    shown = command_home.run_in_process("sessions", "export", "last").ok().out
    heard = [json.loads(line) for line in shown.splitlines()]
    return [entry["body"]["text"] for entry in heard if entry["kind"] == "heard" and entry["body"]]


def test_a_running_gateway_is_backed_up_and_the_backup_can_be_restored(command_home: CommandHome) -> None:
    gateway = command_home.start_gateway()
    command_home.run_in_process("send", "one").ok()
    made = command_home.run_in_process("backup", "--json").ok().json
    assert made["sound"]
    assert made["wrong"] == made["broken"] == []
    assert Path(made["path"]).stat().st_mode & 0o777 == 0o600
    command_home.run_in_process("send", "two").ok()
    assert (refused := command_home.run_in_process("restore", "--yes")).code == 1
    assert "stop the gateway" in refused.err
    gateway.process.terminate()
    gateway.wait_until_ended()

    told = command_home.run_in_process("restore", "--json").ok().json
    assert told["restored"] is False
    assert told["takes_back"] > 0
    assert texts(command_home) == ["one", "two"]

    done = command_home.run_in_process("restore", "--yes", "--json").ok().json
    assert Path(done["set_aside"]).is_file()
    assert texts(command_home) == ["one"]
    command_home.run_in_process("audit").ok()
    command_home.run("send", "three").ok()
    assert texts(command_home) == ["one", "three"]

    back = command_home.run_in_process("restore", "--at", str(done["pos"] - 1)).ok().out
    assert "schedules and platform offsets would stay as they are now" in back
    assert "would stay" not in command_home.run_in_process("restore").ok().out, "a copy brings its own"

    plan = command_home.run_in_process("memory", "forget", "ada").ok().out
    assert f"{done['set_aside']}: it was set aside; remove it" in plan

    command_home.run_in_process("restore", done["set_aside"], "--yes").ok()
    assert texts(command_home) == ["one", "two"]
    command_home.run_in_process("audit").ok()


def test_restore_at_accepts_a_position_and_a_time(command_home: CommandHome) -> None:
    for word in ("one", "two", "three"):
        command_home.run("send", word).ok()
    entries = [
        json.loads(line) for line in command_home.run_in_process("sessions", "export", "last").ok().out.splitlines()
    ]
    second = next(e for e in entries if e["kind"] == "heard" and e["body"]["text"] == "two")
    ended = [e for e in entries if e["kind"] == "ended"]
    done = command_home.run_in_process("restore", "--at", str(ended[1]["pos"]), "--yes", "--json").ok().json
    assert texts(command_home) == ["one", "two"]
    assert done["numbers_left_out"] > 0
    moment = datetime.datetime.fromtimestamp(second["at"] - 0.001, datetime.UTC).isoformat()
    command_home.run_in_process("restore", "--at", moment, "--yes").ok()
    assert texts(command_home) == ["one"]
    command_home.run_in_process("audit").ok()
    command_home.run("send", "four").ok()
    assert texts(command_home) == ["one", "four"]


@pytest.mark.parametrize("at", ["99999", "2001-01-01"])
def test_a_restore_to_a_time_outside_the_log_is_refused(command_home: CommandHome, at: str) -> None:
    command_home.run("send", "one").ok()
    done = command_home.run_in_process("restore", "--at", at, "--yes")
    assert done.code == 1
    assert texts(command_home) == ["one"]


def test_a_restore_time_that_cannot_be_parsed_is_refused(command_home: CommandHome) -> None:
    command_home.run("send", "one").ok()
    done = command_home.run_in_process("restore", "--at", "yesterday", "--yes")
    assert done.code == 2
    assert "neither a pos nor a time" in done.err


def test_a_damaged_store_is_kept_and_replaced_by_the_last_backup(command_home: CommandHome) -> None:
    command_home.run("send", "one").ok()
    command_home.run_in_process("backup").ok()
    command_home.run("send", "two").ok()
    store = command_home.path / "everhold.db"
    data = bytearray(store.read_bytes())
    data[4096 * 2 :] = bytes(byte ^ 0x5A for byte in data[4096 * 2 :])
    store.write_bytes(data)
    refused = command_home.run_in_process("status")
    assert refused.code == 1
    assert "everhold restore" in refused.err
    done = command_home.run_in_process("restore", "--yes", "--json").ok().json
    assert "damaged" in done["damage"]
    assert (Path(done["set_aside"]) / "everhold.db").read_bytes() == bytes(data)
    assert texts(command_home) == ["one"]
    command_home.run_in_process("audit").ok()


def test_a_log_that_lost_its_last_entries_can_be_restored(command_home: CommandHome) -> None:
    command_home.run("send", "one").ok()
    command_home.run_in_process("backup").ok()
    (command_home.path / "everhold.db").unlink()
    assert command_home.run_in_process("status").code == 1
    command_home.run_in_process("restore", "--yes").ok()
    assert texts(command_home) == ["one"]


def test_an_erased_entry_stays_erased_after_a_restore_of_an_older_backup(command_home: CommandHome) -> None:
    command_home.run("send", "my secret is 4711").ok()
    before = command_home.run_in_process("backup", "--json").ok().json["path"]
    erase(command_home, "4711")
    assert b"4711" not in (command_home.path / "everhold.db").read_bytes()
    assert b"4711" in Path(before).read_bytes()
    done = command_home.run_in_process("restore", before, "--yes", "--json").ok().json
    assert done["erased_again"] > 0
    assert b"4711" not in (command_home.path / "everhold.db").read_bytes()
    assert b"4711" not in b"".join(file.read_bytes() for file in command_home.path.glob("everhold.db*"))
    command_home.run("send", "something else").ok()
    command_home.run_in_process("audit").ok()
    assert texts(command_home) == ["something else"]


def test_an_erasure_is_not_applied_to_another_entry_of_the_same_seq(command_home: CommandHome) -> None:
    command_home.run("send", "one").ok()
    before = command_home.run_in_process("backup", "--json").ok().json["path"]
    command_home.run("send", "forget 4711").ok()
    erase(command_home, "4711")
    log = (command_home.path / "erasures.log").read_bytes()
    # a new machine, so the seqs used since the backup are unknown
    for file in command_home.path.glob("everhold.db*"):
        file.unlink()
    command_home.run_in_process("restore", before, "--yes").ok()
    command_home.run("send", "keep this").ok()
    assert (command_home.path / "erasures.log").read_bytes() == log
    command_home.run("send", "and this").ok()
    assert texts(command_home) == ["one", "keep this", "and this"]


def test_a_manually_restored_backup_is_erased_again_when_it_is_served(command_home: CommandHome) -> None:
    command_home.run("send", "forget 4711").ok()
    before = command_home.run_in_process("backup", "--json").ok().json["path"]
    erase(command_home, "4711")
    for file in command_home.path.glob("everhold.db*"):
        file.unlink()
    shutil.copy(before, command_home.path / "everhold.db")
    assert b"4711" in (command_home.path / "everhold.db").read_bytes()

    async def play() -> None:
        app = GatewayApp(
            Home(command_home.path),
            parse_settings(b""),
            log=open_log(clock=SystemClock(), stream=io.StringIO()),
            environ={},
        )
        await app.start(listen=False)
        (session,) = await app.session_admin.list_sessions(limit=2)
        assert not [e.seq async for e in app.session_admin.read_entries(session.id) if "4711" in str(e.body)]
        await app.stop(seconds=0)

    asyncio.run(play())
    assert not [file.name for file in command_home.path.glob("everhold.db*") if b"4711" in file.read_bytes()]


def erase(command_home: CommandHome, word: str) -> None:
    """Erase the entries that contain `word`."""

    async def play() -> None:
        home = Home(command_home.path)
        log = open_log(clock=SystemClock(), stream=io.StringIO())
        app = GatewayApp(home, parse_settings(b""), log=log, environ={})
        (session,) = await app.session_admin.list_sessions(limit=2)
        seqs = [e.seq async for e in app.session_admin.read_entries(session.id) if word in str(e.body)]
        await app.session_admin.erase_entries(session.id, seqs)
        await app.stop(seconds=0)

    asyncio.run(play())


# -- keeping -----------------------------------------------------------------------------------------------------------


async def test_the_oldest_sound_backups_are_deleted_and_damaged_ones_stay(tmp_path: Path) -> None:
    clock = iter(range(0, 10_000, 1000))
    now = [0.0]
    wrong: list[str] = []

    class SmallFiles:
        async def make_copy(self, target: Path) -> StoreCopy:
            target.write_bytes(b"x")  # noqa: ASYNC240  # one byte
            return StoreCopy(target, 1, int(now[0]), 1, 1, 0.0, list(wrong), [])

        async def write_increment(
            self, target: Path, *, after_pos: int, recent_pos: int, blob_row: int
        ) -> StoreIncrement | None:
            raise NotImplementedError

        async def find_copy_end(self, copy: Path) -> CopyEnd | None:
            raise NotImplementedError

    backups = StoreBackups(tmp_path, files=SmallFiles(), now=lambda: now[0])
    assert backups.get_seconds_until_due(24) == 0
    for at in (*range(5), "bad"):
        now[0] = float(next(clock))
        wrong[:] = ["oh"] if at == "bad" else []
        await backups.make_backup()
    assert len(list_backups(tmp_path)) == 6
    assert backups.get_seconds_until_due(1) == 3600
    now[0] += 3000
    assert backups.get_seconds_until_due(1) == 600
    backups.prune(2)
    assert [(it.pos, it.is_sound) for it in list_backups(tmp_path)] == [(3000, True), (4000, True), (5000, False)]
    assert backups.find_newest_pos() == 4000


def test_a_gateway_makes_backups_automatically(command_home: CommandHome) -> None:
    (command_home.path / "config.yaml").write_text(
        (command_home.path / "config.yaml").read_text() + "backup: {every_hours: 1, keep: 2}\n"
    )
    command_home.run("send", "one").ok()
    gateway = command_home.start_gateway()
    wait_until(lambda: list_backups(command_home.path / "backups"))
    gateway.process.terminate()
    gateway.wait_until_ended()
    assert "POS" in command_home.run_in_process("backup", "--list").ok().out


def test_a_destroyed_disk_comes_back_from_another_one(command_home: CommandHome, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    config = (command_home.path / "config.yaml").read_text()
    config += f"backup: {{directory: {disk}, increment_minutes: 0.01}}\n"
    (command_home.path / "config.yaml").write_text(config)
    command_home.run("send", "before the backup").ok()
    gateway = command_home.start_gateway()
    wait_until(lambda: any(backup.is_sound for backup in list_backups(disk)))
    gateway.kill()
    gateway.wait_until_ended()
    command_home.run("send", "after the backup").ok()
    erase(command_home, "before the backup")
    covered = json.loads(command_home.run_in_process("sessions", "export", "last").ok().out.splitlines()[-1])["pos"]
    gateway = command_home.start_gateway()
    wait_until(lambda: any(it.upto_pos >= covered for it in list_increments(disk)) and (disk / "erasures.log").exists())
    gateway.kill()
    gateway.wait_until_ended()
    shutil.rmtree(command_home.path)
    command_home.path.mkdir(0o700)
    (command_home.path / "config.yaml").write_text(config)
    assert command_home.run_in_process("backup", "--list", "--json").ok().json["backups"]
    done = command_home.run_in_process("restore", "--yes", "--json").ok().json
    assert done["increments"] >= 1
    assert texts(command_home) == ["after the backup"]
    command_home.run_in_process("audit").ok()


def test_an_older_backup_on_another_disk_brings_back_nothing_that_was_erased(
    command_home: CommandHome, tmp_path: Path
) -> None:
    """The home is lost, and with it the only record that something was erased after that backup."""
    disk = tmp_path / "disk"
    disk.mkdir()
    config = (command_home.path / "config.yaml").read_text()
    config += f"backup: {{directory: {disk}, increment_minutes: 0}}\n"
    (command_home.path / "config.yaml").write_text(config)
    (disk / "erasures.log").write_bytes(b'{"session":"of an earlier home","seqs":[1],"seals":["x"],"at":1.0}\n')
    command_home.run("send", "my secret is 4711").ok()
    older = Path(command_home.run_in_process("backup", "--json").ok().json["path"])
    assert older.parent == disk
    erase(command_home, "4711")
    gateway = command_home.start_gateway()
    wait_until(lambda: (disk / "erasures.log").read_bytes().count(b"\n") == 2)
    gateway.kill()
    gateway.wait_until_ended()
    assert b"of an earlier home" in (disk / "erasures.log").read_bytes()
    shutil.rmtree(command_home.path)
    command_home.path.mkdir(0o700)
    (command_home.path / "config.yaml").write_text(config)
    assert b"4711" in older.read_bytes()
    done = command_home.run_in_process("restore", older.name, "--yes", "--json").ok().json
    assert done["erased_again"] > 0
    assert not [file.name for file in command_home.path.rglob("*") if file.is_file() and b"4711" in file.read_bytes()]
    assert texts(command_home) == []


def test_backups_in_a_former_directory_are_named_when_somebody_is_forgotten(
    command_home: CommandHome, tmp_path: Path
) -> None:
    command_home.run("send", "hello").ok()
    command_home.run_in_process("backup").ok()
    disk = tmp_path / "disk"
    disk.mkdir()
    with (command_home.path / "config.yaml").open("a") as file:
        file.write(f"backup: {{directory: {disk}}}\n")
    plan = command_home.run_in_process("memory", "forget", "ada").ok().out
    assert "1 backup contains it: no backup replaces them" in plan
    command_home.run_in_process("backup").ok()
    assert (
        "2 backups contain it: no backup replaces them"
        in command_home.run_in_process("memory", "forget", "ada").ok().out
    )


def test_a_backup_directory_that_is_not_there_is_reported_and_not_created(
    command_home: CommandHome, tmp_path: Path
) -> None:
    """The disk may be unmounted, and a copy on the same disk would be no backup."""
    missing = tmp_path / "mount" / "everhold"
    with (command_home.path / "config.yaml").open("a") as file:
        file.write(f"backup: {{directory: {missing}}}\n")
    command_home.run("send", "hello").ok()
    command_home.start_gateway()
    assert command_home.run_in_process("backup").code == 1
    wait_until(lambda: f"there is no directory {missing}" in command_home.run_in_process("status").out)
    assert not missing.exists()


def test_a_restore_takes_what_a_damaged_store_still_has(command_home: CommandHome) -> None:
    command_home.run("send", "first " + "m" * 3000).ok()
    command_home.run("backup").ok()
    for n in range(3):
        command_home.run("send", f"since {n}").ok()
    store = command_home.path / "everhold.db"
    data = bytearray(store.read_bytes())
    at = data.index(b"first mmm") // 4096 * 4096
    data[at : at + 4096] = bytes(byte ^ 0x5A for byte in data[at : at + 4096])
    store.write_bytes(data)
    done = command_home.run_in_process("restore", "--yes").ok().out
    assert "after the copy were taken from the damaged store" in done
    assert texts(command_home)[1:] == [f"since {n}" for n in range(3)]
    command_home.run_in_process("audit").ok()
    assert "You said: more" in command_home.run("send", "more").ok().out
