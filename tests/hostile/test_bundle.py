"""The attacker made the logs and the store that a bundle for a bug report describes, or the place it is written to."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everhold.doctor import bundle
from everhold.doctor.bundle import BundleScrubber, collect_bundle_parts, write_bundle
from everhold.infra import safe_folder

SECRET = "the canary sings at noon"


def collect(logs: list[Path], stores: list[Path]) -> dict[str, str]:
    return collect_bundle_parts({"findings": []}, logs, stores, BundleScrubber())


def make_store(path: Path, *sql: str) -> dict[str, Any]:
    db = sqlite3.connect(path)
    for one in sql:
        db.executescript(one)
    db.close()
    described: dict[str, Any] = json.loads(collect([], [path])["store-1.json"])
    return described


# -- logs --------------------------------------------------------------------------------------------------------------


def make_link(path: Path) -> None:
    (path.parent / "private").write_text(f"ERROR {SECRET}\n")
    path.symlink_to(path.parent / "private")


@pytest.mark.parametrize(
    "make", [make_link, os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: None]
)
def test_what_is_no_log_is_not_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "agent.log"
    make(path)
    parts = collect([path], [])
    assert parts["log-1-agent.log"].startswith("not read: ")
    assert SECRET not in "".join(parts.values())


def test_a_log_without_lines_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_folder, "MAX_LOG_BYTES", 1 << 20)
    path = tmp_path / "agent.log"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
        file.seek(0, os.SEEK_END)
        file.write(b"ERROR " + b"x" * 200_000 + b"\nERROR the newest line\n")
    assert collect([path], [])["log-1-agent.log"] == "ERROR the newest line\n"
    assert max(map(len, safe_folder.iter_log_lines(path, newest=True))) < safe_folder.MAX_LINE_BYTES
    assert sum(1 for _ in safe_folder.iter_log_lines(path)) == 0, "only the beginning was read, which has no line"


def test_foreign_bytes_and_many_lines_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "agent\n..log"
    path.write_bytes(b"ERROR \xff\xfe\0 \x1b[2J\n" * 5_000)
    parts = collect([path], [])
    (name,) = [name for name in parts if name.startswith("log-1-")]
    assert name == "log-1-agent-..log"
    assert parts[name].count("\n") == bundle.MAX_LINES


def test_a_line_of_many_session_ids_is_scrubbed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "ERROR " + "20260528_155201_68dc5996 " * 2_000 + "\x000\x00 \x00999999\x00"
    assert BundleScrubber().scrub_line(line).count("20260528_155201_68dc5996") == 2_001


# -- stores ------------------------------------------------------------------------------------------------------------


def test_a_foreign_schema_runs_nothing_and_reveals_no_text(tmp_path: Path) -> None:
    told = make_store(
        tmp_path / "state.db",
        "create table \"x; attach database 'y' as y; --\" (a)",
        f"create table t (a text default '{SECRET}')",
        "create view messages as with recursive n(i) as (select 1 union all select i + 1 from n) "
        "select i as id, i as session_id, i as role, i as timestamp, i as content, 1 as active, 1 as compacted from n",
    )
    assert "shape" not in told, "a view that never ends was not read"
    assert SECRET not in json.dumps(told)
    assert set(told["rows"].values()) == {0}
    assert not (Path.cwd() / "y").exists()


def test_values_that_are_no_words_are_not_shown(tmp_path: Path) -> None:
    told = make_store(
        tmp_path / "state.db",
        "create table messages (session_id, id, role, timestamp, content, active, compacted)",
        f"insert into messages values ('{SECRET}', 1, '{SECRET}', '{SECRET}', x'ff', 1, 0)",
        "insert into messages values (cast(x'ff41' as text), 2, cast(x'ff' as text), 1.5, 'hello', 1, 0)",
        "insert into messages values (x'00', 3, 'user', 2, null, null, null)",
    )
    assert SECRET not in json.dumps(told)
    assert [row[1:] for row in told["shape"]] == [
        [3, "user", 2, None, None, None],
        [2, "<1 characters>", 1.5, 5, 1, 0],
        [1, f"<{len(SECRET)} characters>", f"<{len(SECRET)} characters>", 1, 1, 0],
    ]


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"\xff" * 5_000, b"\xff" * 5_000])
def test_a_damaged_store_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(content)
    assert "store-1.json" in collect([], [path])


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: None])
def test_what_is_no_store_is_not_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "state.db"
    make(path)
    assert json.loads(collect([], [path])["store-1.json"]) == {"error": "there is no such file"}


# -- the bundle itself -------------------------------------------------------------------------------------------------


def test_a_link_at_the_place_of_the_bundle_is_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("mine")
    target = tmp_path / "bundle.tar.gz"
    target.symlink_to(kept)
    write_bundle(target, {"report.json": "{}"})
    assert kept.read_text() == "mine"
    assert not target.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_an_older_bundle_that_others_may_read_is_replaced_by_a_private_one(tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    target.write_bytes(b"old")
    target.chmod(0o644)
    write_bundle(target, {"report.json": "{}"})
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_no_name_in_a_bundle_leads_out_of_its_folder(tmp_path: Path) -> None:
    logs = [tmp_path / name for name in ("..", "a\\..\\b", "…/etc/passwd".replace("/", ":"))]
    target = write_bundle(tmp_path / "bundle.tar.gz", collect(logs, []))
    with tarfile.open(target) as tar:
        for member in tar.getmembers():
            assert member.isfile()
            folder, _, name = member.name.partition("/")
            assert (folder, "/" in name, "\\" in name) == ("everhold-bundle", False, False)
