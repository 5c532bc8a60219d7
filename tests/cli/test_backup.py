"""`everhold backup` and `everhold restore` on a real home, with a gateway and without."""

from __future__ import annotations

import asyncio
import datetime
import io
import json
import shutil
from pathlib import Path

import pytest

from everhold.app import App, SystemClock
from everhold.backups import Backups, kept
from everhold.config import parse
from everhold.home import Home
from everhold.logs import open_log
from everhold.stores.sqlite.backup import Copy
from tests.cli.house import House, until


def texts(house: House) -> list[str]:
    shown = house.ask("sessions", "export", "last").ok().out
    heard = [json.loads(line) for line in shown.splitlines()]
    return [entry["body"]["text"] for entry in heard if entry["kind"] == "heard" and entry["body"]]


def test_a_running_gateway_is_copied_and_the_copy_can_be_put_back(house: House) -> None:
    gateway = house.up()
    house.ask("send", "one").ok()
    made = house.ask("backup", "--json").ok().json
    assert made["sound"]
    assert made["wrong"] == made["broken"] == []
    assert Path(made["path"]).stat().st_mode & 0o777 == 0o600
    house.ask("send", "two").ok()
    assert (refused := house.ask("restore", "--yes")).code == 1
    assert "stop the gateway" in refused.err
    gateway.process.terminate()
    gateway.end()

    told = house.ask("restore", "--json").ok().json
    assert told["restored"] is False
    assert told["takes_back"] > 0
    assert texts(house) == ["one", "two"]

    done = house.ask("restore", "--yes", "--json").ok().json
    assert Path(done["set_aside"]).is_file()
    assert texts(house) == ["one"]
    house.ask("audit").ok()
    house.run("send", "three").ok()
    assert texts(house) == ["one", "three"]

    back = house.ask("restore", "--at", str(done["position"] - 1)).ok().out
    assert "schedules, and how far platforms were read, would stay as they are now" in back
    assert "would stay" not in house.ask("restore").ok().out, "a copy brings its own"

    plan = house.ask("memory", "forget", "ada").ok().out
    assert f"{done['set_aside']}, which was set aside, holds it" in plan

    house.ask("restore", done["set_aside"], "--yes").ok()
    assert texts(house) == ["one", "two"]
    house.ask("audit").ok()


def test_going_back_to_a_position_and_to_a_time(house: House) -> None:
    for word in ("one", "two", "three"):
        house.run("send", word).ok()
    entries = [json.loads(line) for line in house.ask("sessions", "export", "last").ok().out.splitlines()]
    second = next(e for e in entries if e["kind"] == "heard" and e["body"]["text"] == "two")
    ended = [e for e in entries if e["kind"] == "ended"]
    done = house.ask("restore", "--at", str(ended[1]["pos"]), "--yes", "--json").ok().json
    assert texts(house) == ["one", "two"]
    assert done["numbers_left_out"] > 0
    moment = datetime.datetime.fromtimestamp(second["at"] - 0.001, datetime.UTC).isoformat()
    house.ask("restore", "--at", moment, "--yes").ok()
    assert texts(house) == ["one"]
    house.ask("audit").ok()
    house.run("send", "four").ok()
    assert texts(house) == ["one", "four"]


@pytest.mark.parametrize("at", ["99999", "2001-01-01"])
def test_a_moment_that_is_not_there_is_refused(house: House, at: str) -> None:
    house.run("send", "one").ok()
    done = house.ask("restore", "--at", at, "--yes")
    assert done.code == 1
    assert texts(house) == ["one"]


def test_nonsense_is_no_moment(house: House) -> None:
    house.run("send", "one").ok()
    done = house.ask("restore", "--at", "yesterday", "--yes")
    assert done.code == 2
    assert "no position and no time" in done.err


def test_a_damaged_store_is_kept_and_replaced_by_the_last_copy(house: House) -> None:
    house.run("send", "one").ok()
    house.ask("backup").ok()
    house.run("send", "two").ok()
    store = house.path / "everhold.db"
    data = bytearray(store.read_bytes())
    data[4096 * 2 :] = bytes(byte ^ 0x5A for byte in data[4096 * 2 :])
    store.write_bytes(data)
    refused = house.ask("status")
    assert refused.code == 1
    assert "everhold restore" in refused.err
    done = house.ask("restore", "--yes", "--json").ok().json
    assert "damaged" in done["damage"]
    assert (Path(done["set_aside"]) / "everhold.db").read_bytes() == bytes(data)
    assert texts(house) == ["one"]
    house.ask("audit").ok()


def test_a_log_that_lost_its_tail_can_be_replaced_too(house: House) -> None:
    house.run("send", "one").ok()
    house.ask("backup").ok()
    (house.path / "everhold.db").unlink()
    assert house.ask("status").code == 1
    house.ask("restore", "--yes").ok()
    assert texts(house) == ["one"]


def test_what_was_erased_stays_erased_when_a_copy_from_before_is_put_back(house: House) -> None:
    house.run("send", "my secret is 4711").ok()
    before = house.ask("backup", "--json").ok().json["path"]
    erase(house, "4711")
    assert b"4711" not in (house.path / "everhold.db").read_bytes()
    assert b"4711" in Path(before).read_bytes()
    done = house.ask("restore", before, "--yes", "--json").ok().json
    assert done["erased_again"] > 0
    assert b"4711" not in (house.path / "everhold.db").read_bytes()
    assert b"4711" not in b"".join(file.read_bytes() for file in house.path.glob("everhold.db*"))
    house.run("send", "something else").ok()
    house.ask("audit").ok()
    assert texts(house) == ["something else"]


def test_an_erasure_is_not_applied_to_another_entry_of_the_same_number(house: House) -> None:
    house.run("send", "one").ok()
    before = house.ask("backup", "--json").ok().json["path"]
    house.run("send", "forget 4711").ok()
    erase(house, "4711")
    log = (house.path / "erasures.log").read_bytes()
    # a new machine: nothing is known of the numbers that were used since the copy was made
    for file in house.path.glob("everhold.db*"):
        file.unlink()
    house.ask("restore", before, "--yes").ok()
    house.run("send", "keep this").ok()
    assert (house.path / "erasures.log").read_bytes() == log
    house.run("send", "and this").ok()
    assert texts(house) == ["one", "keep this", "and this"]


def test_a_copy_that_was_put_back_by_hand_forgets_again_when_it_is_served(house: House) -> None:
    house.run("send", "forget 4711").ok()
    before = house.ask("backup", "--json").ok().json["path"]
    erase(house, "4711")
    for file in house.path.glob("everhold.db*"):
        file.unlink()
    shutil.copy(before, house.path / "everhold.db")
    assert b"4711" in (house.path / "everhold.db").read_bytes()

    async def play() -> None:
        app = App(Home(house.path), parse(b""), log=open_log(clock=SystemClock(), stream=io.StringIO()), environ={})
        await app.start(listen=False)
        (session,) = await app.control.sessions(limit=2)
        assert not [e.seq async for e in app.control.entries(session.id) if "4711" in str(e.body)]
        await app.stop(seconds=0)

    asyncio.run(play())
    assert not [file.name for file in house.path.glob("everhold.db*") if b"4711" in file.read_bytes()]


def erase(house: House, word: str) -> None:
    """Erase whatever says `word`, as control does it."""

    async def play() -> None:
        home = Home(house.path)
        log = open_log(clock=SystemClock(), stream=io.StringIO())
        app = App(home, parse(b""), log=log, environ={})
        (session,) = await app.control.sessions(limit=2)
        seqs = [e.seq async for e in app.control.entries(session.id) if word in str(e.body)]
        await app.control.erase(session.id, seqs)
        await app.stop(seconds=0)

    asyncio.run(play())


# -- keeping -----------------------------------------------------------------------------------------------------------


async def test_the_oldest_sound_copies_go_and_those_that_are_not_sound_stay(tmp_path: Path) -> None:
    clock = iter(range(0, 10_000, 1000))
    now = [0.0]
    wrong: list[str] = []

    async def copy(target: Path) -> Copy:
        target.write_bytes(b"x")  # noqa: ASYNC240  # one byte
        return Copy(target, 1, int(now[0]), 1, 1, 0.0, list(wrong), [])

    backups = Backups(tmp_path, copy=copy, now=lambda: now[0])
    assert backups.wait(24) == 0
    for at in (*range(5), "bad"):
        now[0] = float(next(clock))
        wrong[:] = ["oh"] if at == "bad" else []
        await backups.take()
    assert len(kept(tmp_path)) == 6
    assert backups.wait(1) == 3600
    now[0] += 3000
    assert backups.wait(1) == 600
    backups.prune(2)
    assert [(it.pos, it.sound) for it in kept(tmp_path)] == [(3000, True), (4000, True), (5000, False)]
    assert backups.newest_pos() == 4000


def test_a_gateway_makes_copies_by_itself(house: House) -> None:
    (house.path / "config.yaml").write_text(
        (house.path / "config.yaml").read_text() + "backup: {every_hours: 1, keep: 2}\n"
    )
    house.run("send", "one").ok()
    gateway = house.up()
    until(lambda: kept(house.path / "backups"))
    gateway.process.terminate()
    gateway.end()
    assert "position" in house.ask("backup", "--list").ok().out.lower()
