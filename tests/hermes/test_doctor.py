"""The doctor on hermes-agent's stores: no findings in a healthy store; every kind of damage is found, repaired and
undone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from everhold.errors import HomeBusy, InvalidRequest, Refused, StoreBusy, StoreDamaged
from everhold.hermes.doctor import checks as doctor_checks, repair
from everhold.hermes.reader.database import HermesDatabase
from tests.hermes.built_home import NOW, BuiltHermesHome, dump_tables

DM = "agent:main:telegram:dm:1001"


def healthy(home: Path, *, version: int = 22) -> BuiltHermesHome:
    """A terminal session, two chats, one of them compressed in place twice, an undone turn, a branch."""
    built = BuiltHermesHome(home, version=version)
    built.add_session("cli-1", title="plain")
    built.add_exchanges("cli-1", "a", "b", "c")
    if version < 10:
        return built
    gone = built.add_exchanges("cli-1", "oops")
    built.run(f"update messages set active = 0 where id >= {gone[0]} and session_id = 'cli-1'")
    built.add_chat("dm-1", DM, title="direct")
    said = built.add_exchanges("dm-1", *"abcdef")
    built.compress_in_place("dm-1", head=said[:3], tail=said[-4:])
    more = built.add_exchanges("dm-1", *"ghijkl")
    built.compress_in_place("dm-1", head=said[:3], tail=more[-4:])
    built.add_exchanges("dm-1", "m")
    built.add_chat("group-1", "agent:main:telegram:group:-100:1001")
    built.add_exchanges("group-1", "x")
    built.add_message("group-1", "user", "chatter", observed=1)
    built.add_message("group-1", "user", "more chatter", observed=1)
    built.add_message("group-1", "session_meta", None)
    built.add_chat("parent", "agent:main:telegram:dm:3003")
    first = built.add_exchanges("parent", "p")
    built.run("update sessions set ended_at = started_at + 9, end_reason = 'session_switch' where id = 'parent'")
    built.add_chat(
        "branch", "agent:main:telegram:dm:3003", parent_session_id="parent", model_config='{"_branched_from": "parent"}'
    )
    for id in first:
        built.copy_message(id, to="branch")
    built.add_exchanges("branch", "q")
    built.add_session("errand", source="tool", parent_session_id="dm-1", model_config='{"_delegate_from": "dm-1"}')
    built.add_exchanges("errand", "r")
    return built


def checks(path: Path) -> set[str]:
    return {finding.check for finding in doctor_checks.examine_store(path, now=NOW).findings}


@pytest.mark.parametrize("version", [22, 5])
def test_a_healthy_store_has_no_findings(tmp_path: Path, version: int) -> None:
    path = healthy(tmp_path, version=version).close()
    report = doctor_checks.examine_store(path, now=NOW)
    assert report.findings == []
    assert report.messages >= 8
    before = path.read_bytes()
    assert repair.repair_store(path, now=NOW).backup is None
    assert path.read_bytes() == before


# -- damages -----------------------------------------------------------------------------------------------------------


def renamed(built: BuiltHermesHome) -> None:
    said = built.add_exchanges(built.add_session("r-1", api_call_count=3), *"abcd")
    built.compress_into_new_session("r-1", "r-2", head=said[:3], tail=said[-4:])
    more = built.add_exchanges("r-2", *"efgh")
    built.compress_into_new_session("r-2", "r-3", head=said[:3], tail=more[-4:])
    built.add_exchanges("r-3", "i")


def forked(built: BuiltHermesHome) -> None:
    said = built.add_exchanges(built.add_session("f-1"), *"abcd")
    built.compress_into_new_session("f-1", "f-2", head=said[:3], tail=said[-4:])
    built.add_exchanges("f-2", "left")
    built.compress_into_new_session("f-1", "f-3", head=said[:3], tail=said[-4:])
    built.add_exchanges("f-3", "right")


def orphaned(built: BuiltHermesHome) -> None:
    built.add_exchanges(built.add_session("o-1"), "a")
    built.run("update sessions set ended_at = started_at + 5, end_reason = 'compression' where id = 'o-1'")


def torn(built: BuiltHermesHome) -> None:
    """A chat whose session was ended by a compression, and which continued in a session without a parent."""
    key = "agent:main:telegram:dm:7007"
    built.add_exchanges(built.add_chat("t-1", key), "a")
    built.run("update sessions set ended_at = started_at + 5, end_reason = 'compression' where id = 't-1'")
    built.add_exchanges(built.add_chat("t-2", key), "b")


def twice(built: BuiltHermesHome) -> None:
    for id in built.add_exchanges(built.add_session("w-1"), "a", "b"):
        built.copy_message(id)


def unread(built: BuiltHermesHome) -> None:
    said = built.add_exchanges(built.add_session("u-1"), *"abcd")
    built.add_message("u-1", "user", "written meanwhile")
    built.add_message("u-1", "assistant", "and answered")
    built.compress_in_place("u-1", head=said[:3], tail=said[-4:])
    built.add_exchanges("u-1", "e")


def deleted(built: BuiltHermesHome) -> None:
    ids = built.add_exchanges(built.add_session("d-1"), *"abc")
    built.run(f"delete from messages where id in ({ids[2]}, {ids[3]})")
    built.run("delete from messages where session_id = 'd-1' and role = 'tool'")
    built.run("update messages set tool_calls = null where session_id = 'd-1'")


def routed_to_ended(built: BuiltHermesHome) -> None:
    key = "agent:main:telegram:dm:8008"
    built.add_exchanges(built.add_chat("e-1", key), "a")
    built.add_exchanges(built.add_chat("e-2", key), "b")
    built.run("update sessions set ended_at = started_at + 5, end_reason = 'session_reset' where id = 'e-1'")
    built.add_route(key, "e-1")


def routed_nowhere(built: BuiltHermesHome) -> None:
    built.add_route("agent:main:telegram:dm:8009", "never-was")


def routed_to_an_ended_session_of_another_chat(built: BuiltHermesHome) -> None:
    """The other chat continued after its session, which a compression ended, and its new session has lost its chat."""
    other = "agent:main:telegram:dm:8010"
    said = built.add_exchanges(built.add_chat("other-1", other), *"abcd")
    built.compress_into_new_session("other-1", "other-2", head=said[:3], tail=said[-4:])
    built.add_exchanges("other-2", "e")
    built.add_route(other, "other-2")
    built.add_exchanges(built.add_chat("other-3", "agent:main:telegram:dm:8011"), "f")
    built.add_route("agent:main:telegram:dm:8011", "other-1")
    built.add_route("agent:main:telegram:dm:8012", "other-1")


def aliased(built: BuiltHermesHome) -> None:
    built.add_exchanges(built.add_chat("a-1", "agent:main:telegram:dm:9001"), "a")
    built.add_route("agent:main:telegram:dm:9002", "a-1")


def spread(built: BuiltHermesHome) -> None:
    for n in range(3):
        built.add_exchanges(built.add_chat(f"s-{n}", "agent:main:telegram:dm:6006"), "a")


def empty(built: BuiltHermesHome) -> None:
    built.add_session("nobody-1")
    built.add_session("nobody-2")


def colliding_names(built: BuiltHermesHome) -> None:
    built.add_exchanges(built.add_chat("n-1", "agent:main:matrix:dm:!a.b"), "a")
    built.add_exchanges(built.add_chat("n-2", "agent:main:matrix:dm:!a-b"), "b")


def colliding_keys(built: BuiltHermesHome) -> None:
    key = "agent:main:telegram:group:-5:42"
    built.add_exchanges(built.add_session("k-1", session_key=key, chat_id="-5", chat_type="group", user_id="42"), "a")
    built.run("update sessions set ended_at = 1, end_reason = 'session_reset' where id = 'k-1'")
    built.add_exchanges(
        built.add_session("k-2", session_key=key, chat_id="-5", chat_type="group", thread_id="42", user_id="7"), "b"
    )


def locked(built: BuiltHermesHome) -> None:
    built.run("insert into compression_locks values ('dm-1', 'pid:1', ?, ?)", NOW - 900, NOW - 600)


def stuck(built: BuiltHermesHome) -> None:
    values = ("o", DM, "telegram", "1001", "a reply", "attempting", 2, NOW - 9000, NOW - 9000)
    built.run(
        "insert into delivery_obligations(obligation_id, session_key, platform, chat_id, content, state, attempts, "
        "created_at, updated_at) values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *values,
    )


def untold(built: BuiltHermesHome) -> None:
    built.run("insert into async_delegations values ('e', 'dm-1', 'completed', ?, '{}', 'pending')", NOW - 9000)
    built.run("insert into async_delegations values ('f', 'dm-1', 'running', ?, '{}', 'pending')", NOW - 9000)


def result_without_call(built: BuiltHermesHome) -> None:
    built.add_exchanges(built.add_session("x-1"), "a")
    built.add_message("x-1", "tool", "from nowhere", tool_call_id="gone")
    built.add_message("x-1", "assistant", "well")


def call_without_result(built: BuiltHermesHome) -> None:
    built.add_exchanges(built.add_session("y-1"), "a")
    built.add_message("y-1", "assistant", "let me look", tool_calls='[{"id": "z", "function": {"name": "look"}}]')
    built.add_message("y-1", "user", "and?")


def unanswered(built: BuiltHermesHome) -> None:
    built.add_session("v-1")
    built.add_message("v-1", "user", "hello?")
    built.add_message("v-1", "user", "anybody?")


def unindexed(built: BuiltHermesHome) -> None:
    built.run("delete from messages_fts where rowid in (select id from messages limit 3)")


def unowned(built: BuiltHermesHome) -> None:
    said = built.add_exchanges(built.add_chat("q-1", "agent:main:telegram:dm:4004"), *"abcd")
    built.compress_into_new_session(
        "q-1", "q-2", head=said[:3], tail=said[-4:], session_key="agent:main:telegram:dm:4004"
    )
    built.add_route("agent:main:telegram:dm:4004", "q-2")


def same_title(built: BuiltHermesHome) -> None:
    built.add_exchanges(built.add_session("title-1", title="plain"), "a")


DAMAGES: dict[Callable[[BuiltHermesHome], None], tuple[str, bool]] = {
    renamed: ("id-changed", True),
    forked: ("fork", True),
    orphaned: ("ended-by-compression", True),
    torn: ("ended-by-compression", True),
    twice: ("written-twice", True),
    unread: ("archived-unread", True),
    deleted: ("deleted", False),
    routed_to_ended: ("routed-to-ended", True),
    routed_nowhere: ("routed-to-ended", True),
    routed_to_an_ended_session_of_another_chat: ("routed-to-ended", True),
    aliased: ("aliased", True),
    spread: ("spread", True),
    empty: ("empty", True),
    colliding_names: ("colliding-names", False),
    colliding_keys: ("colliding-keys", False),
    locked: ("expired-locks", True),
    stuck: ("stuck-deliveries", True),
    untold: ("stuck-deliveries", True),
    result_without_call: ("result-without-call", True),
    call_without_result: ("call-without-result", True),
    unanswered: ("unanswered", False),
    unindexed: ("index", True),
    unowned: ("without-owner", True),
    same_title: ("same-title", False),
}


LOSSES = {
    "fork", "ended-by-compression", "archived-unread", "deleted", "routed-to-ended", "aliased", "colliding-names",
    "colliding-keys", "stuck-deliveries", "call-without-result", "unanswered", "index",
}  # fmt: skip
"""Checks that report a loss."""


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda it: it.__name__)
def test_every_damage_is_found_repaired_once_and_undone(
    tmp_path: Path, damage: Callable[[BuiltHermesHome], None]
) -> None:
    check, fixable = DAMAGES[damage]
    built = healthy(tmp_path)
    assert checks(built.path) == set()
    damage(built)
    path = built.close()
    report = doctor_checks.examine_store(path, now=NOW)
    found = [finding for finding in report.findings if finding.check == check]
    assert found, report.findings
    assert all(finding.text and finding.count and finding.where for finding in found)
    assert all(finding.remedy for finding in found) or check == "deleted", "what a repair would do"
    assert all(finding.lost for finding in found) or check not in LOSSES
    if damage is renamed:
        assert "no-calls" in {finding.check for finding in report.findings}
    assert any(finding.is_fixable for finding in found) is fixable

    before, messages = dump_tables(path), _read_texts(path)
    done = repair.repair_store(path, now=NOW)
    assert not any(finding.is_fixable for finding in done.remaining_findings), done.remaining_findings
    if not fixable:
        return
    assert done.edits
    assert done.backup
    assert done.journal
    assert dump_tables(done.backup) == before
    assert check not in checks(path)
    assert messages <= _read_texts(path), "a message went away"
    after = dump_tables(path)
    assert repair.repair_store(path, now=NOW + 9).edits == []
    assert dump_tables(path) == after

    assert repair.undo_repair(path, done.journal) > 0 or damage is unindexed
    assert dump_tables(path) == before
    if damage is not unindexed:
        assert check in checks(path)


@pytest.mark.parametrize("damage", [it for it, (_, fixable) in DAMAGES.items() if fixable and it is not unindexed])
def test_a_row_changed_since_a_fix_is_not_undone(tmp_path: Path, damage: Callable[[BuiltHermesHome], None]) -> None:
    built = healthy(tmp_path)
    damage(built)
    path = built.close()
    done = repair.repair_store(path, now=NOW)
    assert done.journal
    changes = json.loads(done.journal.read_text())["changes"]
    db = apsw.Connection(str(path))
    # the first one that no later change overwrites
    assert any(_go_over(db, change) for change in changes if change["table"] != "sessions.json")
    db.close()
    since = dump_tables(path)
    with pytest.raises(Refused, match="was changed since"):
        repair.undo_repair(path, done.journal)
    assert dump_tables(path) == since


def test_a_chat_routed_to_an_ended_session_of_another_chat_is_not_led_into_that_conversation(tmp_path: Path) -> None:
    built = BuiltHermesHome(tmp_path)
    routed_to_an_ended_session_of_another_chat(built)
    path = built.close()
    report = doctor_checks.examine_store(path, now=NOW)
    own, none = [finding for finding in report.findings if finding.check == "routed-to-ended"]
    for finding in (own, none):
        assert "which belongs to another chat, agent:main:telegram:dm:8010, and was ended (compression)" in finding.text
        assert "earlier messages" not in finding.lost, "the ended session has none of this chat"
        assert "agent:main:telegram:dm:8010 keeps other-1" in finding.remedy
    assert (own.where[0], none.where[0]) == ("agent:main:telegram:dm:8011", "agent:main:telegram:dm:8012")
    assert "it will lead to other-3, its own session" in own.remedy
    assert "without the messages of other-3" in own.lost
    assert "the next message here begins a new session" in none.remedy
    assert "no open session of its own" in none.lost
    repair.repair_store(path, now=NOW)
    db = HermesDatabase(path)
    routes = {key: entry["session_id"] for key, entry in db.read_routing().items()}
    db.close()
    assert routes == {"agent:main:telegram:dm:8010": "other-2", "agent:main:telegram:dm:8011": "other-3"}


def _go_over(db: apsw.Connection, change: dict[str, Any]) -> bool:
    """Change a row that a repair has changed."""
    table = change["table"]
    if "removed" in change:
        row = change["removed"]
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        db.execute(f"insert into {table}({names}) values ({marks})", list(row.values()))
    else:
        key = {"id": change["appended"]} if "appended" in change else {**change["key"], **change["after"]}
        where = " and ".join(f"{name} is ?" for name in key)
        name = [name for name in change["after"] if name not in ("id", "session_id")][-1]
        db.execute(f"update {table} set {name} = 777777 where {where}", list(key.values()))
    return db.changes() == 1


def _read_texts(path: Path) -> set[tuple[int, str]]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    found = {(int(id), str(text)) for id, text in db.execute("select id, content from messages")}
    db.close()
    return found


def test_all_damage_at_once_is_repaired_in_one_run(tmp_path: Path) -> None:
    built = healthy(tmp_path)
    for damage in DAMAGES:
        damage(built)
    path = built.close()
    assert {check for check, _ in DAMAGES.values()} <= checks(path)
    done = repair.repair_store(path, now=NOW)
    assert not any(finding.is_fixable for finding in done.remaining_findings), done.remaining_findings
    left = {check for check, fixable in DAMAGES.values() if not fixable}
    assert {finding.check for finding in done.remaining_findings} <= left
    db = apsw.Connection(str(path))
    assert db.pragma("integrity_check") == "ok"
    db.close()


def test_a_chain_becomes_one_session_whose_live_messages_are_the_same(tmp_path: Path) -> None:
    built = BuiltHermesHome(tmp_path)
    renamed(built)
    path = built.close()
    live = "select role, content from messages where session_id = 'r-3' and active = 1 order by id"
    db = apsw.Connection(str(path))
    before = list(db.execute(live))
    db.close()
    repair.repair_store(path, now=NOW)
    db = apsw.Connection(str(path))
    assert list(db.execute(live)) == before
    assert db.execute("select count(*) from messages where session_id <> 'r-3'").get == 0
    assert db.execute("select parent_session_id from sessions where id = 'r-3'").get is None
    db.close()


def test_messages_archived_before_they_were_read_become_live_at_the_end(tmp_path: Path) -> None:
    built = BuiltHermesHome(tmp_path)
    unread(built)
    path = built.close()
    repair.repair_store(path, now=NOW)
    db = apsw.Connection(str(path))
    last = list(db.execute("select content from messages where active = 1 order by id desc limit 2"))
    assert last == [("and answered",), ("written meanwhile",)]
    db.close()


def test_the_routing_mirror_is_repaired_and_restored(tmp_path: Path) -> None:
    built = BuiltHermesHome(tmp_path)
    routed_to_ended(built)
    path = built.close()
    mirror = tmp_path / "sessions" / "sessions.json"
    mirror.parent.mkdir()
    mirror.write_text(json.dumps({"_README": "x", "agent:main:telegram:dm:8008": {"session_id": "e-1", "a": 1}}))
    done = repair.repair_store(path, now=NOW)
    routing = json.loads(mirror.read_text())
    assert routing == {"_README": "x", "agent:main:telegram:dm:8008": {"session_id": "e-2", "a": 1}}
    assert done.journal
    routing["agent:main:telegram:dm:8008"]["session_id"] = "e-3"
    mirror.write_text(json.dumps(routing))
    rows = dump_tables(path)
    with pytest.raises(Refused, match="was changed since"):
        repair.undo_repair(path, done.journal)
    assert dump_tables(path) == rows
    routing["agent:main:telegram:dm:8008"] = {"session_id": "e-2", "a": 2}
    mirror.write_text(json.dumps(routing))
    repair.undo_repair(path, done.journal)
    assert json.loads(mirror.read_text())["agent:main:telegram:dm:8008"] == {"session_id": "e-1", "a": 2}
    with pytest.raises(InvalidRequest, match="undone already"):
        repair.undo_repair(path, done.journal)


# -- the file itself ---------------------------------------------------------------------------------------------------


def _unhooked(path: Path, index: str, written: str) -> None:
    """Change rows so that an index does not match them."""
    row = _schema(path, "select type, name, tbl_name, rootpage, sql from sqlite_master where name = ?", (index,))
    _schema(path, "delete from sqlite_master where name = ?", (index,))
    _schema(path, written, ())
    _schema(path, "insert into sqlite_master(type, name, tbl_name, rootpage, sql) values (?, ?, ?, ?, ?)", row[0])


def _schema(path: Path, sql: str, values: Sequence[Any]) -> list[Any]:
    """On its own connection, because SQLite reads the schema once."""
    db = apsw.Connection(str(path))
    db.pragma("writable_schema", 1)
    found = list(db.execute(sql, values))
    db.pragma("schema_version", db.pragma("schema_version") + 1)
    db.close()
    return found


def test_an_index_with_missing_rows_is_found_first_and_rebuilt(tmp_path: Path) -> None:
    built = healthy(tmp_path)
    forked(built)
    path = built.close()
    _unhooked(
        path,
        "idx_messages_session",
        "insert into messages(session_id, role, content, timestamp) values ('cli-1', 'user', 'unheard', 1)",
    )
    (finding,) = doctor_checks.examine_store(path, now=NOW).findings
    assert (finding.check, finding.is_fixable, finding.where[0]) == ("index", True, "idx_messages_session")
    before = _read_texts(path)
    done = repair.repair_store(path, now=NOW)
    assert done.edits[0] == "rebuild idx_messages_session"
    assert len(done.edits) > 1, "what only a sound index shows is repaired in the same run"
    assert not any(finding.level == "wrong" for finding in done.remaining_findings), done.remaining_findings
    assert before <= _read_texts(path)
    assert repair.repair_store(path, now=NOW + 9).edits == []


def test_an_incomplete_search_index_is_rebuilt(tmp_path: Path) -> None:
    path = healthy(tmp_path).close()
    db = apsw.Connection(str(path))
    db.execute("delete from messages_fts_data where id > 10")
    db.close()
    (finding,) = doctor_checks.examine_store(path, now=NOW).findings
    assert (finding.check, finding.is_fixable, finding.where[0]) == ("index", True, "messages_fts")
    assert repair.repair_store(path, now=NOW).remaining_findings == []
    db = apsw.Connection(str(path))
    assert db.execute("select count(*) from messages_fts where messages_fts match 'question'").get > 5
    db.close()


def test_an_unreadable_schema_is_reported(tmp_path: Path) -> None:
    path = healthy(tmp_path).close()
    db = apsw.Connection(str(path))
    db.pragma("writable_schema", 1)
    db.execute("update sqlite_master set sql = 'create table sessions (id text,, )' where name = 'sessions'")
    db.close()
    (finding,) = doctor_checks.examine_store(path, now=NOW).findings
    assert finding.check == "schema"
    assert "malformed" in finding.text
    assert finding.remedy
    with pytest.raises(StoreDamaged):
        repair.repair_store(path, now=NOW)


OPTIONAL = [
    "sessions.title", "sessions.archived", "sessions.user_id", "sessions.session_key", "sessions.chat_type",
    "sessions.model_config", "sessions.api_call_count", "sessions.message_count", "messages.active",
    "messages.compacted", "messages.observed", "messages.api_content", "messages.tool_name",
]  # fmt: skip


@pytest.mark.parametrize("column", OPTIONAL)
def test_a_version_without_a_column_is_repaired_as_far_as_possible(tmp_path: Path, column: str) -> None:
    """The existing columns decide, not the version number: every column that was added later may be missing."""
    table, name = column.split(".")
    built = healthy(tmp_path)
    for damage in DAMAGES:
        damage(built)
    for index in ("messages_fts", "messages_fts_trigram"):
        for event in ("insert", "delete", "update"):
            built.run(f"drop trigger {index}_{event}")
        built.run(f"drop table {index}")
    built.run(f"alter table {table} drop column {name}")
    path = built.close()
    db = apsw.Connection(str(path))
    schema = list(db.execute("select sql from sqlite_master order by name"))
    db.close()
    assert doctor_checks.examine_store(path, now=NOW).has_problems
    before = _read_texts(path)
    done = repair.repair_store(path, now=NOW)
    assert done.edits
    assert not any(finding.is_fixable for finding in done.remaining_findings), done.remaining_findings
    assert before <= _read_texts(path)
    assert done.journal
    repair.undo_repair(path, done.journal)
    assert _read_texts(path) == before
    db = apsw.Connection(str(path))
    assert list(db.execute("select sql from sqlite_master order by name")) == schema
    db.close()


def test_a_damaged_page_is_reported_and_nothing_is_repaired(tmp_path: Path) -> None:
    built = healthy(tmp_path)
    built.add_exchanges(built.add_session("big"), *(f"word {n} " + "x" * 500 for n in range(40)))
    built.db.pragma("journal_mode", "delete")
    path = built.close()
    data = bytearray(path.read_bytes())
    at = data.index(b"word 20 ") // 4096 * 4096
    data[at : at + 4096] = bytes(byte ^ 0x5A for byte in data[at : at + 4096])
    path.write_bytes(data)
    report = doctor_checks.examine_store(path, now=NOW)
    assert {finding.check for finding in report.findings} == {"pages"}
    assert "age" in report.findings[0].text
    with pytest.raises(StoreDamaged):
        repair.repair_store(path, now=NOW)
    assert path.read_bytes() == bytes(data)


@pytest.mark.parametrize("data", [b"", b"a letter to my aunt" * 99, b"SQLite format 3\0" + b"\x5a" * 4080])
def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "state.db").write_bytes(data)
    report = doctor_checks.examine_store(tmp_path / "state.db", now=NOW)
    assert [finding.check for finding in report.findings] == ["pages"]


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    db = apsw.Connection(str(tmp_path / "state.db"))
    db.execute("create table aunts(name)")
    db.close()
    with pytest.raises(InvalidRequest, match="is not a database of hermes-agent"):
        doctor_checks.examine_store(tmp_path / "state.db", now=NOW)


def test_an_examination_changes_no_byte(tmp_path: Path) -> None:
    built = healthy(tmp_path)
    forked(built)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.endswith("-shm")}
    assert doctor_checks.examine_path(tmp_path, now=NOW)[0].has_problems
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if not p.name.endswith("-shm")} == before
    built.close()


@pytest.mark.parametrize("damage", [renamed, forked, orphaned, twice, result_without_call], ids=lambda it: it.__name__)
def test_an_older_schema_is_read_and_never_changed(tmp_path: Path, damage: Callable[[BuiltHermesHome], None]) -> None:
    """Findings whose repair needs missing columns are reported and left; the others are repaired."""
    built = healthy(tmp_path, version=5)
    damage(built)
    path = built.close()
    schema = "select sql from sqlite_master order by name"
    db = apsw.Connection(str(path))
    before = list(db.execute(schema))
    db.close()
    assert DAMAGES[damage][0] in checks(path)
    done = repair.repair_store(path, now=NOW)
    assert not any(finding.is_fixable for finding in done.remaining_findings)
    assert bool(done.edits) is (damage in (forked, orphaned))
    db = apsw.Connection(str(path))
    assert list(db.execute(schema)) == before
    db.close()


def test_all_reads_use_one_snapshot(tmp_path: Path) -> None:
    built = healthy(tmp_path)
    db = HermesDatabase(built.path)
    before = db.count_messages()
    built.add_exchanges("cli-1", "later")
    assert db.count_messages() == before
    assert len(list(db.iter_messages("cli-1"))) == 10
    db.close()
    assert doctor_checks.examine_store(built.path, now=NOW).messages == before + 2
    built.close()


def test_a_store_in_use_is_not_repaired(tmp_path: Path) -> None:
    built = BuiltHermesHome(tmp_path)
    forked(built)
    built.db.execute("begin immediate")
    before = dump_tables(built.path)
    with pytest.raises(StoreBusy):
        repair.repair_store(built.path, now=NOW)
    built.db.execute("rollback")
    assert dump_tables(built.path) == before
    built.close()


def test_a_repair_is_refused_while_the_gateway_runs(tmp_path: Path) -> None:
    built = BuiltHermesHome(tmp_path)
    forked(built)
    built.close()
    command = [sys.executable, "-c", "print('up', flush=True); input()", "hermes-gateway"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        (tmp_path / "gateway_state.json").write_text(json.dumps({"pid": process.pid, "gateway_state": "running"}))
        with pytest.raises(HomeBusy, match="running"):
            repair.repair_store(tmp_path / "state.db", now=NOW)
    finally:
        process.communicate(b"\n")
    assert repair.repair_store(tmp_path / "state.db", now=NOW).edits
