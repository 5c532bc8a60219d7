"""Imports of homes that are broken or made to mislead: links, names, sizes. The rest of the home is imported."""

from __future__ import annotations

import gzip
import os
import random
import socket
from pathlib import Path

import apsw
import pytest

from everhold.core.entries import Heard, Noted
from everhold.hermes.reader import database
from everhold.hermes.reader.files import MAX_YAML_ALIASES, HermesProfile
from everhold.infra import safe_folder
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


# -- files that are no files, and files that grow ----------------------------------------------------------------------


def build_alias_bomb(*, merge: bool) -> str:
    lines = ["a0: &a0 {k: [lol, lol, lol, lol, lol, lol, lol, lol, lol]}"]
    for level in range(1, 30):
        aliases = ", ".join([f"*a{level - 1}"] * 9)
        lines.append(f"a{level}: &a{level} {{<<: [{aliases}]}}" if merge else f"a{level}: &a{level} [{aliases}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "name, data, reason",
    [
        ("config.yaml", build_alias_bomb(merge=False).encode(), f"has more than {MAX_YAML_ALIASES} aliases"),
        ("config.yaml", build_alias_bomb(merge=True).encode(), f"has more than {MAX_YAML_ALIASES} aliases"),
        ("config.yaml", b"a: &a [*a]\n" + b"b: *a\n" * 30, f"has more than {MAX_YAML_ALIASES} aliases"),
        ("memories/USER.md", gzip.compress(b"\0" * (64 << 20)), "is not a text"),
        ("SOUL.md", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\xff\xff\xff\xff\xff\xff\xff\xff", "is not a text"),
        ("honcho.json", b'{"a": ' * 50_000, "is not valid JSON"),
        ("honcho.json", b'{"a": ' + b"9" * 100_000 + b"}", "is not valid JSON"),
    ],
)
def test_a_bomb_is_refused_by_name_and_the_rest_comes(
    tmp_path: Path, place: ImportTarget, name: str, data: bytes, reason: str
) -> None:
    home = build_home(tmp_path / "there")
    (home / name).parent.mkdir(exist_ok=True)
    (home / name).write_bytes(data)
    report = place.run_import(home, owner="telegram:1001")
    assert any(line.startswith(f"main: {name}: {reason}") for line in report.troubles), report.troubles
    assert {"question a", "The server is tin."} <= set(list_texts(place))


def test_a_few_aliases_are_read(tmp_path: Path) -> None:
    build_home(tmp_path / "there")
    (tmp_path / "there" / "config.yaml").write_text("a: &a {b: 1}\nc: *a\n# " + "*" * 100)
    assert HermesProfile("main", tmp_path / "there").config["c"] == {"b": 1}


@pytest.mark.parametrize(
    "name", ["SOUL.md", "memories/USER.md", "config.yaml", ".env", "honcho.json", "cron/jobs.json"]
)
@pytest.mark.parametrize("kind", ["fifo", "socket", "folder"])
def test_what_is_no_file_is_refused_by_name(tmp_path: Path, place: ImportTarget, name: str, kind: str) -> None:
    """Opening a FIFO would wait for its writer without end."""
    home = build_home(tmp_path / "there")
    target = home / name
    target.parent.mkdir(exist_ok=True)
    if kind == "fifo":
        os.mkfifo(target)
    elif kind == "folder":
        target.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as server:
            here = os.open(target.parent, os.O_RDONLY)  # the path of a socket may only be short
            server.bind(f"/proc/self/fd/{here}/{target.name}")
            os.close(here)
    report = place.run_import(home, owner="telegram:1001")
    if kind != "folder":
        assert any(f"{name}: neither a file nor a folder" in line for line in report.troubles), report.troubles
    assert {"question a", "The server is tin."} <= set(list_texts(place))


def test_a_folder_of_too_many_or_too_deep_files_is_named(
    tmp_path: Path, place: ImportTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safe_folder, "MAX_FOLDER_NAMES", 20)
    folder = tmp_path / "notes"
    deep = folder
    for _ in range(safe_folder.MAX_FOLDER_DEPTH + 3):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "hidden.md").write_text("Ada likes coffee.")
    (folder / "many").mkdir()
    for number in range(21):
        (folder / "many" / f"{number}.md").write_text(f"Fact {number}.")
    (folder / "a.md").write_text("Ada likes tea.")
    report = place.run_import(folder)
    assert any("many: has more than 20 files" in line for line in report.troubles), report.troubles
    assert any("folders deep" in line for line in report.troubles), report.troubles
    assert list_texts(place) == ["Ada likes tea."]


@pytest.mark.parametrize("name", ["../outside", "memories/../../outside", "/etc/passwd"])
def test_a_name_that_leads_out_of_the_folder_is_not_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "outside").write_text(PRIVATE)
    (tmp_path / "there" / "memories").mkdir(parents=True)
    folder = safe_folder.SafeFolder(tmp_path / "there")
    assert folder.read_text(name) is None
    assert folder.refused == {name: "leads out of the folder"}


# -- hostile databases -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "create trigger t after insert on messages begin select load_extension('x'); end",
        "create view v as select load_extension('/tmp/x') as a",
        "alter table sessions add column evil text generated always as (hex(zeroblob(900000000))) virtual",
        "create view doctor as with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n",
        "pragma user_version = 2147483647",
    ],
)
def test_a_foreign_schema_does_nothing(tmp_path: Path, place: ImportTarget, sql: str) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    built.add_exchanges(built.add_chat("dm-1", DM), "a")
    built.run(sql)
    built.close()
    assert place.run_import(tmp_path / "there").is_complete
    assert "question a" in list_texts(place)


@pytest.mark.parametrize("table", ["sessions", "messages"])
def test_a_view_in_place_of_a_table_is_refused(tmp_path: Path, place: ImportTarget, table: str) -> None:
    home = build_home(tmp_path / "there")
    broken = BuiltHermesHome(home / "profiles" / "coder", version=5)
    broken.run(f"alter table {table} rename to other")
    broken.run(
        f"create view {table} as with recursive n(i) as (select 1 union all select i + 1 from n) select i as id from n"
    )
    broken.close()
    report = place.run_import(home)
    assert any(line.startswith("coder: ") and "not a database of hermes-agent" in line for line in report.troubles)
    assert "question a" in list_texts(place)


@pytest.mark.parametrize(
    "sql, named",
    [
        ("update sessions set title = replace(hex(zeroblob(600000)), '00', 'xx')", "session dm-1: title"),
        ("insert into sessions (id, source, started_at) values (hex(zeroblob(999)), 'cli', 1)", "1 sessions: "),
        ("update sessions set origin_json = replace(hex(zeroblob(600000)), '00', '[[')", "session dm-1: origin_json"),
    ],
)  # fmt: skip
def test_an_oversized_field_is_named(tmp_path: Path, place: ImportTarget, sql: str, named: str) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    built.add_exchanges(built.add_chat("dm-1", DM), "a")
    built.run(sql)
    built.close()
    report = place.run_import(tmp_path / "there")
    assert any(named in line for line in report.troubles), report.troubles
    assert "question a" in list_texts(place)


@pytest.mark.parametrize(
    "sql, named",
    [
        ("update sessions set title = {bad} where id = 'dm-2'", "session dm-2: its title"),
        ("update sessions set id = {bad} where id = 'dm-2'", "session a\ufffd: its id"),
        ("update messages set role = {bad} where session_id = 'dm-2'", "its role"),
        ("update messages set platform_message_id = {bad} where session_id = 'dm-2'", "its platform_message_id"),
        ("update messages set session_id = {bad} where session_id = 'dm-2'", "messages of session a\ufffd"),
        ("insert into gateway_routing (session_key, entry_json) values ({bad}, '1')", "routing of a\ufffd"),
    ],
)
def test_a_row_that_is_not_utf_8_is_left_out_and_named(
    tmp_path: Path, place: ImportTarget, sql: str, named: str
) -> None:
    """The other rows of the file are imported."""
    built = BuiltHermesHome(tmp_path / "there")
    built.add_exchanges(built.add_chat("dm-1", DM), "a")
    built.add_exchanges(built.add_chat("dm-2", "agent:main:telegram:dm:77"), "b")
    built.run("pragma foreign_keys = off")
    built.run(sql.format(bad="cast(x'61ff' as text)"))
    built.close()
    report = place.run_import(tmp_path / "there")
    assert "question a" in list_texts(place)
    assert report.troubles
    assert all("not UTF-8" in line and named in line for line in report.troubles), report.troubles


@pytest.mark.parametrize("value", ["'text'", "x'00ff'", "null", "9e999", "-1", "1.5", "''", "zeroblob(70000)"])
@pytest.mark.parametrize("table", ["sessions", "messages", "gateway_routing", "schema_version"])
def test_a_value_of_another_type_causes_no_error(tmp_path: Path, place: ImportTarget, table: str, value: str) -> None:
    """No column has the type that it should have, and no id is a number."""
    home = build_home(tmp_path / "there")
    source, path = apsw.Connection(str(home / "state.db")), home / "profiles" / "coder" / "state.db"
    path.parent.mkdir(parents=True)
    target = apsw.Connection(str(path))
    target.execute("create table gateway_routing (a); drop table gateway_routing")
    for name in ("sessions", "messages", "gateway_routing", "schema_version"):
        columns = [str(row[1]) for row in source.execute(f"pragma table_info({name})")]
        target.execute(f"create table {name} ({', '.join(columns)})")
        for column in columns if name == table else ():
            row = [
                value if other == column else "'dm-1'" if other in ("id", "session_id") else "1" for other in columns
            ]
            target.execute(f"insert into {name} values ({', '.join(row)})")
    source.close()
    target.close()
    place.run_import(home)
    assert "question a" in list_texts(place)


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_database_is_named_and_the_rest_comes(tmp_path: Path, place: ImportTarget, seed: int) -> None:
    home = build_home(tmp_path / "there")
    broken = BuiltHermesHome(home / "profiles" / "coder")
    for number in range(8):
        broken.add_exchanges(broken.add_chat(f"c-{number}", f"agent:main:telegram:dm:{number}"), "b" * 400, "c")
    broken.run("pragma wal_checkpoint(truncate)")
    broken.close()
    damage_file(home / "profiles" / "coder" / "state.db", random.Random(seed))
    report = place.run_import(home, owner="telegram:1001")
    assert {"question a", "The server is tin."} <= set(list_texts(place))
    assert all(line.startswith("coder: ") for line in report.troubles)


def damage_file(path: Path, chance: random.Random) -> None:
    """Write noise over pages, or cut the file."""
    data = bytearray(path.read_bytes())
    match chance.randrange(3):
        case 0:
            data = data[: chance.randrange(100, len(data))]
        case 1:
            for _ in range(chance.randrange(1, 5)):
                at = chance.randrange(1, len(data) // 4096) * 4096
                data[at : at + 4096] = chance.randbytes(4096)
        case _:
            for _ in range(200):
                data[chance.randrange(100, len(data))] = chance.randrange(256)
    path.write_bytes(data)
