"""Names in a foreign database or journal are names, and never SQL, when doctor repairs and undoes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import apsw
import pytest

from everhold.errors import EverholdError, InvalidRequest
from everhold.hermes.doctor import repair
from tests.hermes.built_home import NOW, BuiltHermesHome, dump_tables
from tests.hermes.test_doctor import checks, locked, routed_nowhere, stuck, unread

HOSTILE_NAMES = (
    'x"); delete from messages; --',
    "x) select 1; delete from messages; --",
    "(select group_concat(content) from messages)",
    "id, content) values (1, 'planted'); --",
    "a b'c",
)


def build_home(path: Path, names: tuple[str, ...] = HOSTILE_NAMES) -> Path:
    """Return a damaged store whose tables have columns with these names. The repairs copy and remove whole rows."""
    built = BuiltHermesHome(path)
    for damage in (unread, locked, routed_nowhere, stuck):
        damage(built)
    for table in ("messages", "compression_locks", "gateway_routing"):
        for name in names:
            quoted = name.replace('"', '""')
            built.db.execute(f"alter table {table} add column \"{quoted}\" text default 'kept'")
    return built.close()


def read_rows(path: Path, sql: str) -> list[Any]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return list(db.execute(sql))
    finally:
        db.close()


def count_messages(path: Path) -> int:
    return int(read_rows(path, "select count(*) from messages")[0][0])


def test_a_repair_and_its_undo_quote_the_names_of_columns(tmp_path: Path) -> None:
    path = build_home(tmp_path)
    before, count = dump_tables(path), count_messages(path)
    found = checks(path)
    assert {"archived-unread", "expired-locks", "routed-to-ended"} <= found
    done = repair.repair_store(path, now=NOW)
    assert done.journal is not None
    assert not checks(path) & {"archived-unread", "expired-locks", "routed-to-ended"}
    assert count_messages(path) == count + 2, "the unread messages are appended, and none is gone"
    quoted = HOSTILE_NAMES[0].replace('"', '""')
    assert set(read_rows(path, f'select "{quoted}" from messages')) == {("kept",)}, "a copied row has every column"
    assert repair.undo_repair(path, done.journal) > 0
    assert dump_tables(path) == before


INJECTIONS = {
    "removed": "session_id, role, timestamp, content) select ?1, 'user', 0, 'planted' where ?2 is not 1; --",
    "key": "0 or id = (select max(id) from messages) or 1",
    "before": "content = 'planted', role",
    "after": "0 or id = (select max(id) from messages) or 1",
    "appended": "0 or id = (select max(id) from messages) or 1",
}
"""Names that change another row, or another column, if they are used as SQL. None of them causes an error."""


@pytest.mark.parametrize("place", INJECTIONS)
@pytest.mark.parametrize("name", ["", *HOSTILE_NAMES])
def test_a_name_in_a_foreign_journal_is_no_sql(tmp_path: Path, place: str, name: str) -> None:
    """The journal names a column that the table does not have. It is refused, and nothing is undone."""
    path = build_home(tmp_path, names=())
    journal = tmp_path / "journal.json"
    (row,) = read_rows(path, "select id, session_id from messages order by id limit 1")
    name = name or INJECTIONS[place]
    changes: dict[str, dict[str, Any]] = {
        "removed": {"table": "messages", "removed": {name: row[1], "role": "x"}},
        "key": {"table": "messages", "key": {"id": row[0], name: None}, "before": {"role": "x"}, "after": {}},
        "before": {"table": "messages", "key": {"id": row[0]}, "before": {name: "x"}, "after": {}},
        "after": {"table": "messages", "key": {"id": row[0]}, "before": {"role": "x"}, "after": {name: None}},
        "appended": {"table": "messages", "appended": row[0], "after": {name: None}},
    }
    journal.write_text(json.dumps({"database": path.name, "changes": [changes[place]]}))
    before = dump_tables(path)
    with pytest.raises(EverholdError):
        repair.undo_repair(path, journal)
    assert dump_tables(path) == before


@pytest.mark.parametrize("table", ["messages; drop table messages; --", "sqlite_master", "messages_fts", 'x"', 7, None])
def test_a_journal_names_only_tables_that_a_repair_changes(tmp_path: Path, table: Any) -> None:
    path = build_home(tmp_path, names=())
    journal = tmp_path / "journal.json"
    change = {"table": table, "key": {"id": 1}, "before": {"role": "x"}, "after": {}}
    journal.write_text(json.dumps({"database": path.name, "changes": [change]}))
    before = dump_tables(path)
    with pytest.raises(InvalidRequest, match="names the table"):
        repair.undo_repair(path, journal)
    assert dump_tables(path) == before


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"database": "state.db"}', b'{"database": "state.db", "changes": [1]}',
     b'{"database": "state.db", "changes": [{}]}', b'{"database": "state.db", "changes": [{"table": "messages"}]}',
     b'{"database": "state.db", "changes": [{"table": "messages", "key": 1, "before": 2}]}',
     b'{"database": "state.db", "changes": [{"table": "messages", "key": {"id": [1]}, "before": {"role": {}}}]}',
     b'{"database": "state.db", "changes": [{"table": "messages", "key": {}, "before": {}}]}',
     b'{"database": "state.db", "changes": [{"table": "messages", "removed": {}}]}',
     b'{"database": "state.db", "changes": [{"table": "sessions.json"}]}', b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_journal_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = build_home(tmp_path, names=())
    journal = tmp_path / "journal.json"
    journal.write_bytes(content)
    before = dump_tables(path)
    with pytest.raises(EverholdError):
        repair.undo_repair(path, journal)
    assert dump_tables(path) == before


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_a_journal_that_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = build_home(tmp_path, names=())
    journal = tmp_path / "journal.json"
    if kind == "link":
        (tmp_path / "there").write_text(json.dumps({"database": path.name, "changes": []}))
        journal.symlink_to(tmp_path / "there")
    elif kind == "fifo":
        os.mkfifo(journal)
    else:
        journal.mkdir()
    with pytest.raises(InvalidRequest, match="is not a journal of"):
        repair.undo_repair(path, journal)
