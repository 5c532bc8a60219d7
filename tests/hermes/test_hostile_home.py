"""Imports of homes that are broken or made to mislead: links, names, sizes. The rest of the home is imported."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest

from everhold.core.entries import Heard, Noted
from everhold.hermes.reader import database
from everhold.infra.safe_folder import LINK_REASON, MAX_FILE_BYTES
from tests.hermes.built_home import BuiltHermesHome
from tests.hermes.test_doctor import DM
from tests.hermes.test_import import ImportTarget, place, settings_of

__all__ = ["place"]  # a fixture

PRIVATE = "-----BEGIN OPENSSH PRIVATE KEY-----"


def build_home(path: Path) -> Path:
    built = BuiltHermesHome(path)
    built.add_exchanges(built.add_chat("dm-1", DM), "a")
    built.close()
    (path / "memories").mkdir()
    (path / "memories" / "MEMORY.md").write_text("The server is tin.")
    return path


def list_texts(place: ImportTarget) -> list[str]:
    return [body.text for *_, body, _ in place.read_all_entries() if isinstance(body, Heard | Noted)]


# -- links -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["SOUL.md", "memories/USER.md", "memories", "config.yaml", ".env", "honcho.json", "profiles/coder", "state.db-wal",
     "platforms/pairing", "sessions/sessions.json", "hindsight", "cron/jobs.json", "skills"],
)  # fmt: skip
@pytest.mark.parametrize("dry", [True, False])
def test_a_link_is_refused_by_name_and_the_rest_comes(
    tmp_path: Path, place: ImportTarget, name: str, dry: bool
) -> None:
    home = build_home(tmp_path / "there")
    outside = tmp_path / "outside"
    if name in ("memories", "profiles/coder", "platforms/pairing", "hindsight", "skills"):
        build_home(outside)
        (outside / "SOUL.md").write_text(PRIVATE)
        (outside / "memories" / "USER.md").write_text(PRIVATE)
    else:
        outside.write_text(PRIVATE)
    target = home / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if name == "memories":
        (target / "MEMORY.md").unlink()
        target.rmdir()
    if name == "state.db-wal" and target.exists():
        target.unlink()
    target.symlink_to(outside)
    report = place.run_import(home, dry=dry)
    assert not report.is_complete
    assert any(f"{name}: {LINK_REASON}" in line for line in report.troubles), report.troubles
    if not dry:
        texts = list_texts(place)
        assert not any("PRIVATE KEY" in text for text in texts)
        assert ("question a" in texts) is (name != "state.db-wal")
        assert ("The server is tin." in texts) is (name != "memories")
        assert set(settings_of(place).agents) == {"main"}
    everything = b"".join(file.read_bytes() for file in place.home.path.rglob("*") if file.is_file())
    assert PRIVATE.encode() not in everything


def test_a_linked_database_is_not_opened(tmp_path: Path, place: ImportTarget) -> None:
    home = build_home(tmp_path / "there")
    (home / "state.db").rename(tmp_path / "elsewhere.db")
    (home / "state.db").symlink_to(tmp_path / "elsewhere.db")
    report = place.run_import(home)
    assert any(f"state.db: {LINK_REASON}" in line for line in report.troubles)
    assert list_texts(place) == ["The server is tin."]
    (tmp_path / "named.db").symlink_to(tmp_path / "elsewhere.db")
    named = ImportTarget(tmp_path / "other").run_import(tmp_path / "named.db")
    assert any(f"named.db: {LINK_REASON}" in line for line in named.troubles)


def test_a_home_behind_a_link_is_imported(tmp_path: Path, place: ImportTarget) -> None:
    """The user names the home, so the way to it may be a link. Many have theirs on another disk."""
    build_home(tmp_path / "disk")
    (tmp_path / "there").symlink_to(tmp_path / "disk")
    assert place.run_import(tmp_path / "there").is_complete
    assert "question a" in list_texts(place)


def test_links_in_a_folder_of_markdown_are_refused(tmp_path: Path, place: ImportTarget) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (tmp_path / "key").write_text(PRIVATE)
    (folder / "a.md").write_text("Ada likes tea.")
    (folder / "b.md").symlink_to(tmp_path / "key")
    report = place.run_import(folder)
    assert report.troubles == [f"b.md: {LINK_REASON}"]
    assert list_texts(place) == ["Ada likes tea."]


# -- sizes, names, damage ----------------------------------------------------------------------------------------------


def test_what_is_too_large_is_named(tmp_path: Path, place: ImportTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MAX_VALUE_BYTES", 10_000)
    built = BuiltHermesHome(tmp_path / "there")
    built.add_chat("dm-1", DM)
    row = built.add_message("dm-1", "user", "x" * 10_001)
    built.add_message("dm-1", "assistant", "fine")
    built.close()
    (tmp_path / "there" / "memories").mkdir()
    (tmp_path / "there" / "memories" / "USER.md").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    report = place.run_import(tmp_path / "there")
    assert [line for line in report.troubles if f"message {row} of session dm-1" in line and "10,001 bytes" in line]
    assert any("memories/USER.md: larger than 4 MiB" in line for line in report.troubles)
    assert [text for _, text in place.read_context(DM)] == ["[10,001 bytes were too large to read]", "fine"]


@pytest.mark.parametrize("damage", ["text", "empty", "foreign", "unreadable"])
def test_a_profile_with_a_broken_database_does_not_stop_the_others(
    tmp_path: Path, place: ImportTarget, damage: str
) -> None:
    home = build_home(tmp_path / "there")
    broken = home / "profiles" / "coder"
    broken.mkdir(parents=True)
    match damage:
        case "text":
            (broken / "state.db").write_text("nothing at all")
        case "empty":
            (broken / "state.db").touch()
        case "foreign":
            apsw.Connection(str(broken / "state.db")).execute("create table other (id)")
        case _:
            os.mkfifo(broken / "state.db")
    report = place.run_import(home)
    assert any(line.startswith("coder: ") for line in report.troubles), report.troubles
    assert "question a" in list_texts(place)


def test_names_that_lead_elsewhere_stay_names(tmp_path: Path, place: ImportTarget) -> None:
    home = build_home(tmp_path / "there")
    built = BuiltHermesHome(home / "profiles" / "..evil")
    key = "agent:main:telegram:dm:../../etc/passwd"
    built.add_exchanges(
        built.add_session("../../up", source="telegram", session_key=key, chat_id="../../etc/passwd", chat_type="dm"),
        "a",
    )
    built.close()
    (home / "profiles" / "..evil" / "SOUL.md").write_text("You are elsewhere.")
    (home / "platforms" / "pairing").mkdir(parents=True)
    (home / "platforms" / "pairing" / "..-approved.json").write_text('{"1": {}}')
    before = sorted(path.name for path in tmp_path.iterdir())
    report = place.run_import(home)
    assert set(report.agents) == {"main", "evil"}
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert (place.home.path / "SOUL-evil.md").read_text() == "You are elsewhere.\n"
    assert place.read_context("agent:evil:telegram:dm:..%2F..%2Fetc%2Fpasswd")


def test_two_folders_for_one_agent_are_named(tmp_path: Path, place: ImportTarget) -> None:
    home = build_home(tmp_path / "there")
    for name in ("a b", "a-b"):
        BuiltHermesHome(home / "profiles" / name).close()
    report = place.run_import(home)
    assert any("same agent" in line for line in report.troubles)
    assert "question a" in list_texts(place)


# -- odd values --------------------------------------------------------------------------------------------------------

DEEP = 200_000


@pytest.mark.parametrize(
    "name, text, named",
    [
        ("cron/jobs.json", '{"jobs": 5}', "cron/jobs.json: has no list of jobs"),
        ("cron/jobs.json", "[" * DEEP, "cron/jobs.json: is not valid JSON"),
        ("config.yaml", "a: " + "[" * 5_000, "config.yaml: is not valid YAML"),
        ("config.yaml", "a: 2026-99-99", "config.yaml: is not valid YAML"),
        ("config.yaml", "memory: honcho", "config.yaml: memory: it is not a section"),
        ("honcho.json", '{"workspace": "w", "hosts": {"hermes": "x"}}', "honcho.json: hosts: hermes is not a section"),
    ],
)
def test_an_odd_value_in_a_file_is_named_and_the_rest_comes(
    tmp_path: Path, place: ImportTarget, name: str, text: str, named: str
) -> None:
    home = build_home(tmp_path / "there")
    (home / name).parent.mkdir(exist_ok=True)
    (home / name).write_text(text)
    report = place.run_import(home, owner="telegram:1001")
    lines = [*report.settings.unknown, *report.left_behind, *report.troubles]
    assert any(line.startswith(f"main: {named}") for line in lines), lines
    assert {"question a", "The server is tin."} <= set(list_texts(place))


@pytest.mark.parametrize(
    "sql, named",
    [
        ("update messages set timestamp = 'yesterday' where id = 1", "the times of 1 messages"),
        ("update messages set timestamp = 9e999 where id = 1", "the times of 1 messages"),
        ("update sessions set input_tokens = 9e999, ended_at = 9e999", ""),
        (f"update sessions set model_config = replace(hex(zeroblob({DEEP})), '00', '[')", ""),
        (f"update messages set tool_calls = replace(hex(zeroblob({DEEP})), '00', '[')", ""),
    ],
)
def test_an_odd_value_in_the_database_causes_no_error(
    tmp_path: Path, place: ImportTarget, sql: str, named: str
) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    built.add_exchanges(built.add_chat("dm-1", DM), "a")
    built.run(sql)
    built.close()
    report = place.run_import(tmp_path / "there")
    assert "question a" in list_texts(place)
    assert any(named in line for line in [*report.left_behind, ""])
