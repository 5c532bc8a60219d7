"""Repairs a hermes-agent store: a verified copy first, then all changes in one transaction, with a journal to undo
them.

A repair changes rows, never the schema, and deletes no message. A problem that one change reveals (a session that is
linked again is part of a chain) is repaired in the same transaction, so that a second run finds nothing to do.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import apsw

from everhold.assembly import stores
from everhold.doctor.finding import DoctorFinding, StoreEdit
from everhold.errors import HomeBusy, InvalidRequest, Refused, StoreBusy, StoreDamaged, StoreError
from everhold.hermes.doctor import checks, routing
from everhold.hermes.doctor.case import HermesInspection
from everhold.hermes.reader.database import HermesDatabase
from everhold.infra.deep_json import load_json
from everhold.infra.home import check_disk_space, write_file
from everhold.infra.safe_folder import SafeFolder

MAX_ROUNDS: Final = 8
MAX_JOURNAL_BYTES: Final = 1 << 30
"""A repair of a very large store has millions of changes."""
_JOURNALED_TABLES: Final = {
    "sessions",
    "messages",
    "gateway_routing",
    "compression_locks",
    "delivery_obligations",
    "async_delegations",
}


@dataclass
class RepairResult:
    """What was done, and the journal that undoes it."""

    backup: Path | None = None
    journal: Path | None = None
    edits: list[str] = field(default_factory=list)
    remaining_findings: list[DoctorFinding] = field(default_factory=list)
    """What was found afterwards and cannot be repaired."""


def repair_store(path: Path, *, now: float) -> RepairResult:
    """Repair the store at `path`. If it raises, nothing was changed."""
    _refuse_if_in_use(path)
    before = checks.examine_store(path, now=now, mirror=_read_mirror(path))
    if any(finding.check in ("pages", "schema") for finding in before.findings):
        raise StoreDamaged(f"{path} is damaged: nothing in it can be repaired", remedy=before.findings[0].remedy)
    if not any(finding.is_fixable for finding in before.findings):
        return RepairResult(remaining_findings=before.findings)
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    backup = _copy_store(path, path.with_name(f"{path.name}.before-everhold-{stamp}"))
    journal: list[dict[str, Any]] = []
    done = RepairResult(backup=backup)
    with _open_transaction(path) as db:
        for edit in [edit for it in before.findings for edit in it.edits if edit.index]:
            _apply_edit(db, edit)  # indexes come first, because a wrong index gives wrong results
            done.edits.append(str(edit))
        for _ in range(MAX_ROUNDS):
            mirror = _read_mirror(path)
            _apply_to_mirror(mirror, journal)
            edits = [
                edit
                for it in checks.collect_findings(HermesInspection(db, now=now, mirror=mirror))
                for edit in it.edits
            ]
            if not edits:
                break
            for edit in edits:
                journal += _apply_edit(db, edit)
                done.edits.append(str(edit))
        else:
            raise StoreError(
                f"{path}: the repair did not come to an end", remedy="nothing was changed; please report this"
            )
        _update_message_counts(db, journal)
        _journal_mirror(path, journal)
        done.journal = path.with_name(f"{path.name}.everhold-fix-{stamp}.json")
        record = {"database": path.name, "at": now, "backup": backup.name, "changes": journal}
        write_file(done.journal, json.dumps(record, ensure_ascii=False, indent=1).encode())
    _write_mirror(path, journal, undo=False)
    done.remaining_findings = checks.examine_store(path, now=now, mirror=_read_mirror(path)).findings
    return done


def undo_repair(path: Path, journal: Path) -> int:
    """Undo a repair by its journal and return the number of changes. Refuses if a row was changed since."""
    _refuse_if_in_use(path)
    record = _read_journal(journal, path)
    if record.get("undone"):
        raise InvalidRequest(f"{journal} was undone already", remedy="there is nothing left to undo")
    with _open_transaction(path) as db:
        for change in record["changes"]:
            _check_change(db, change, journal)
        try:
            for change in reversed(record["changes"]):
                if not _undo_change(db, change):
                    raise _make_changed_error(change, record)
        except (apsw.Error, TypeError, OverflowError) as error:  # values that the table does not allow
            raise InvalidRequest(
                f"{journal} does not fit {path.name}: {error}", remedy="nothing was undone; name the journal of a fix"
            ) from error
        _check_mirror(path, record)
    _write_mirror(path, record["changes"], undo=True)
    write_file(journal, json.dumps({**record, "undone": True}, ensure_ascii=False, indent=1).encode())
    return len(record["changes"])


def _read_journal(journal: Path, path: Path) -> dict[str, Any]:
    """Read a journal. It may come from anywhere, so its form is checked before anything is changed."""
    folder = SafeFolder(journal.parent)
    text = folder.read_text(journal.name, max_bytes=MAX_JOURNAL_BYTES)
    try:
        record = load_json(text or "")
    except ValueError:
        record = None
    if not isinstance(record, dict) or record.get("database") != path.name or not _is_list_of_changes(record):
        why = folder.refused.get(journal.name, "")
        raise InvalidRequest(
            f"{journal} is not a journal of {path.name}" + (f": {why}" if why else ""),
            remedy="it is in the same directory as its database",
        )
    return record


def _is_list_of_changes(record: dict[str, Any]) -> bool:
    changes = record.get("changes")
    return isinstance(changes, list) and all(isinstance(change, dict) for change in changes)


def _check_change(db: HermesDatabase, change: dict[str, Any], journal: Path) -> None:
    """Refuse a change that no repair has written: of another table, of unknown columns, or without its parts."""
    table = change.get("table")
    wrong = InvalidRequest(f"{journal} has a change that no repair makes: {str(change)[:200]}", remedy="name another")
    if table == "sessions.json":
        if not isinstance(change.get("key"), dict) or "session_key" not in change["key"]:
            raise wrong
        if not isinstance(change.get("after"), dict) or not isinstance(change.get("before") or {}, dict):
            raise wrong
        return
    if not isinstance(table, str) or table not in _JOURNALED_TABLES:
        raise InvalidRequest(f"the journal names the table {table}", remedy="it was not written by everhold")
    parts = ("removed",) if "removed" in change else ("after",) if "appended" in change else ("key", "before", "after")
    names: set[str] = set()
    for part in parts:
        if not isinstance(change.get(part), dict):
            raise wrong
        names |= change[part].keys()
    if not names <= db.list_columns(table) or not all(change[part] for part in parts if part != "after"):
        raise wrong


def _make_changed_error(change: dict[str, Any], record: dict[str, Any]) -> Refused:
    which = change.get("key") or change.get("appended") or "a row that was removed"
    return Refused(
        f"{change['table']}: {which} was changed since",
        remedy=f"nothing was undone; {record.get('backup')}, in the same directory, is the copy from before the repair",
    )


# -- changes -----------------------------------------------------------------------------------------------------------


def _apply_edit(db: HermesDatabase, edit: StoreEdit) -> list[dict[str, Any]]:
    """Apply a change and return how to undo it."""
    if edit.index:
        _rebuild_index(db, edit.index)
        return []
    if edit.copies:
        return [_append_copy(db, edit)]
    where = " and ".join(f"{name} is ?" for name, _ in edit.key)
    keys = [value for _, value in edit.key]
    if edit.table == "sessions.json":
        return [{"table": edit.table, "key": dict(edit.key), "after": dict(edit.values)}]
    if not edit.values:
        names = sorted(db.list_columns(edit.table))
        rows = list(db.db.execute(f"select {_quote_names(names)} from {edit.table} where {where}", keys))
        db.db.execute(f"delete from {edit.table} where {where}", keys)
        return [{"table": edit.table, "removed": dict(zip(names, row, strict=True))} for row in rows]
    names = [name for name, _ in edit.values]
    before = db.db.execute(f"select {', '.join(names)} from {edit.table} where {where}", keys).fetchone()
    if before is None:
        return []
    values = [value for _, value in edit.values]
    if list(before) == values:
        return []
    setting = ", ".join(f"{name} = ?" for name in names)
    db.db.execute(f"update {edit.table} set {setting} where {where}", [*values, *keys])
    old = dict(zip(names, before, strict=True))
    return [{"table": edit.table, "key": dict(edit.key), "before": old, "after": dict(edit.values)}]


def _append_copy(db: HermesDatabase, edit: StoreEdit) -> dict[str, Any]:
    columns = sorted(db.list_columns("messages") - {"id"})
    new = {**dict(edit.key), **dict(edit.values)}
    if "compacted" in columns:
        new["compacted"] = 0
    chosen = ", ".join("?" if name in new else _quote_name(name) for name in columns)
    given = [new[name] for name in columns if name in new]
    sql = f"insert into messages({_quote_names(columns)}) select {chosen} from messages where id = ?"
    db.db.execute(sql, [*given, edit.copies])
    after = {name: new[name] for name in columns if name in new}
    return {"table": "messages", "appended": db.db.last_insert_rowid(), "copy_of": edit.copies, "after": after}


def _quote_names(names: Iterable[str]) -> str:
    return ", ".join(_quote_name(name) for name in names)


def _quote_name(name: str) -> str:
    """Quote a column's name. It comes from a foreign database or journal, and may contain SQL."""
    return '"' + name.replace('"', '""') + '"'


def _rebuild_index(db: HermesDatabase, table: str) -> None:
    """Rebuild an index; fill a search index as its own trigger does."""
    if table not in db.tables:
        db.db.execute(f'reindex "{table}"')
        return
    values = routing.read_index_expression(db, table).replace("new.", "messages.")
    if not values:
        raise Refused(f"the trigger of {table} is not one of hermes-agent", remedy="rebuild it with hermes-agent")
    db.db.execute(f"insert into {table}({table}) values ('rebuild')")  # a damaged index cannot be emptied
    db.db.execute(f"delete from {table}")
    db.db.execute(f"insert into {table}(rowid, content) select messages.id, {values} from messages")


def _undo_change(db: HermesDatabase, change: dict[str, Any]) -> bool:
    """Undo one change; return whether the row was as the repair had left it."""
    table = change["table"]
    if table == "sessions.json":
        return True
    if "removed" in change:
        row = change["removed"]
        marks = ", ".join("?" * len(row))
        try:
            db.db.execute(f"insert into {table}({_quote_names(row)}) values ({marks})", list(row.values()))
        except apsw.ConstraintError:
            return False  # one exists again
        return True
    now = {"id": change["appended"]} if "appended" in change else dict(change["key"])
    now |= change.get("after", {})
    where = " and ".join(f"{_quote_name(name)} is ?" for name in now)
    if "appended" in change:
        db.db.execute(f"delete from messages where {where}", list(now.values()))
    else:
        names = ", ".join(f"{_quote_name(name)} = ?" for name in change["before"])
        db.db.execute(f"update {table} set {names} where {where}", [*change["before"].values(), *now.values()])
    return db.db.changes() == 1


def _update_message_counts(db: HermesDatabase, journal: list[dict[str, Any]]) -> None:
    """Update `message_count`, the number of live messages, of changed sessions."""
    if "message_count" not in db.list_columns("sessions") or "active" not in db.list_columns("messages"):
        return
    touched: set[str] = set()
    for change in journal:
        id = change.get("appended") or change.get("key", {}).get("id")
        if change["table"] == "sessions" and id:
            touched.add(str(id))
        elif change["table"] == "messages":
            touched.add(str(db.db.execute("select session_id from messages where id = ?", (id,)).get))
    for session in sorted(touched):
        live = db.db.execute("select count(*) from messages where session_id = ? and active = 1", (session,)).get
        journal += _apply_edit(db, StoreEdit("sessions", (("id", session),), (("message_count", live),)))


# -- files -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _open_transaction(path: Path) -> Iterator[HermesDatabase]:
    """Open the database in one transaction that commits at the end of the block, or changes nothing."""
    db = HermesDatabase(path)
    db.close()
    try:
        db.db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        db.db.set_busy_timeout(2000)
        db.db.execute("begin immediate")
    except apsw.BusyError as error:
        raise StoreBusy(f"{path} is in use", remedy="stop hermes-agent first") from error
    try:
        yield db
        db.db.execute("commit")
    except BaseException:
        if db.db.in_transaction:
            db.db.execute("rollback")
        raise
    finally:
        db.close()


def _copy_store(path: Path, target: Path) -> Path:
    """Make a copy and verify it: it has as many messages, and no damage that the original does not have."""
    check_disk_space(target.parent, path.stat().st_size)
    source = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    copy = apsw.Connection(str(target))
    try:
        os.chmod(target, 0o600)
        with copy.backup("main", source, "main") as work:
            while not work.done:
                work.step(-1)
        copy.pragma("journal_mode", "delete")
        seen = [
            (db.execute("select count(*) from messages not indexed").get, list(db.execute("pragma integrity_check")))
            for db in (source, copy)
        ]
        if seen[0] != seen[1]:
            raise StoreDamaged(
                f"the copy at {target} differs from its original", remedy="check that the disk is healthy and not full"
            )
    except BaseException as error:
        copy.close()
        target.unlink(missing_ok=True)
        if isinstance(error, apsw.Error):
            raise stores.translate_file_error(error, target) from error
        raise
    finally:
        source.close()
        copy.close()
    return target


def _refuse_if_in_use(path: Path) -> None:
    """Refuse to write while the gateway of hermes-agent is running."""
    state = path.with_name("gateway_state.json")
    try:
        gateway_state = json.loads(state.read_text("utf-8"))
        pid = int(gateway_state["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if gateway_state.get("gateway_state") == "stopped" or not Path(f"/proc/{pid}").exists():
        return
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return
    if b"hermes" in words or b"gateway" in words:
        raise HomeBusy(f"its gateway (process {pid}) is running", remedy="stop it first: hermes gateway stop")


def _mirror_path(path: Path) -> Path:
    return path.parent / "sessions" / "sessions.json"


def _read_mirror(path: Path) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(_mirror_path(path).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: entry for key, entry in found.items() if not key.startswith("_") and isinstance(entry, dict)}


def _apply_to_mirror(mirror: dict[str, dict[str, Any]], journal: list[dict[str, Any]]) -> None:
    for change in journal:
        if change["table"] == "sessions.json":
            key, to = change["key"]["session_key"], change["after"].get("session_id")
            if to is None:
                mirror.pop(key, None)
            elif key in mirror:
                mirror[key] = {**mirror[key], "session_id": to}


def _journal_mirror(path: Path, journal: list[dict[str, Any]]) -> None:
    """Keep the content of the mirror file in the journal, so that it can be restored."""
    known = _read_mirror(path)
    for change in journal:
        if change["table"] == "sessions.json":
            change["before"] = known.get(change["key"]["session_key"])


def _check_mirror(path: Path, record: dict[str, Any]) -> None:
    """Refuse to restore the routing of chats that was changed since."""
    there, left = _read_mirror(path), {}
    changes = [change for change in record["changes"] if change["table"] == "sessions.json"]
    for change in changes:
        if change.get("before") is not None:
            left[change["key"]["session_key"]] = change["before"]
    _apply_to_mirror(left, changes)
    for change in changes if _mirror_path(path).is_file() else ():
        key = change["key"]["session_key"]
        led, expected = (entries.get(key, {}).get("session_id") for entries in (there, left))
        if change.get("before") is not None and led != expected:
            raise _make_changed_error(change, record)


def _write_mirror(path: Path, journal: list[dict[str, Any]], *, undo: bool) -> None:
    """Write the table's routing to the mirror file."""
    changes = [change for change in journal if change["table"] == "sessions.json"]
    file = _mirror_path(path)
    if not changes or not file.is_file():
        return
    found = json.loads(file.read_text("utf-8"))
    for change in reversed(changes) if undo else changes:
        key = change["key"]["session_key"]
        if undo:
            if (before := change.get("before")) is not None:
                found[key] = {**found[key], "session_id": before.get("session_id")} if key in found else before
        elif key in found:
            to = change["after"].get("session_id")
            if to is None:
                del found[key]
            else:
                found[key] = {**found[key], "session_id": to}
    write_file(file, json.dumps(found, ensure_ascii=False, indent=2).encode(), mode=None)
