"""Describes a SQLite file for a bug report: its schema and its rows without their text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import apsw

MAX_LINES: Final = 2_000
MAX_SCHEMA_CHARS: Final = 4_000
_WORD: Final = re.compile(r"[a-z_]{1,20}")
_SELECT_SCHEMA: Final = (
    "select cast(name as blob), cast(sql as blob) from sqlite_master where type in ('table', 'index', 'trigger') "
    "limit 500"
)
_SESSION: Final = re.compile(r"\d{8}_\d{6}_[0-9a-f]{6,8}")


class TextScrubber(Protocol):
    """Replaces secrets, ids and quoted text."""

    def scrub_line(self, text: str) -> str: ...

    def make_alias(self, text: str, kind: str = "id") -> str:
        """Return an alias that is equal for equal texts and does not reveal them."""


def describe_file(path: Path, scrub: TextScrubber) -> dict[str, Any]:
    """Return a store's schema, its row counts, and its messages without their text."""
    if not path.is_file():  # opening a pipe would wait for its writer
        return {"error": "there is no such file"}
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.Error as error:
        return {"error": str(error)}
    found: dict[str, Any] = {"pages": _query_or_error(lambda: db.pragma("page_count"))}
    try:
        # The store may be foreign: no view or function of its schema may do anything.
        db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
        schema = list(db.execute(_SELECT_SCHEMA))
        found["schema"] = {
            scrub.scrub_line(_read_text(name)): scrub.scrub_line(_read_text(sql)[:MAX_SCHEMA_CHARS])
            for name, sql in schema
            if b"fts_" not in name
        }
        tables = [
            _read_text(name)
            for name, sql in schema
            if _read_text(sql).upper().startswith("CREATE TABLE") and b"_fts" not in name
        ]
        found["rows"] = {scrub.scrub_line(name): _count_rows(db, name) for name in tables}
        if query := _build_shape_query(set(tables)):
            found["shape"] = _query_or_error(lambda: [_scrub_shape_row(row, scrub) for row in db.execute(query)])
    except apsw.Error as error:
        found["error"] = scrub.scrub_line(str(error))
    finally:
        db.close()
    return found


def _read_text(value: bytes | str | None) -> str:
    """Return a foreign text. It is selected as bytes, because it need not be UTF-8."""
    return value if isinstance(value, str) else (value or b"").decode("utf-8", "replace")


def _build_shape_query(tables: set[str]) -> str:
    """Return the query for messages without their text; empty if there are none. It selects nothing but numbers and
    known words, and ids, which are replaced."""
    if "entries" in tables:
        return (
            "select cast(session as blob), seq, cast(kind as blob), op, length(body), body is null from entries "
            f"order by pos desc limit {MAX_LINES}"
        )
    if "messages" in tables:
        return (
            "select cast(session_id as blob), id, cast(role as blob), timestamp, length(content), active, compacted "
            f"from messages order by id desc limit {MAX_LINES}"
        )
    return ""


def _scrub_shape_row(row: tuple[Any, ...], scrub: TextScrubber) -> list[Any]:
    session, *rest = row
    name = _read_text(session)
    return [
        name if _SESSION.fullmatch(name) else scrub.make_alias(name, "session"),
        *(it if it is None or isinstance(it, int | float) else _scrub_word(_read_text(it)) for it in rest),
    ]


def _scrub_word(word: str) -> str:
    """Return a kind or role, and nothing that another program may have stored in its place."""
    return word if _WORD.fullmatch(word) else f"<{len(word)} characters>"


def _count_rows(db: apsw.Connection, table: str) -> Any:
    quoted = table.replace('"', '""')
    return _query_or_error(lambda: db.execute(f'select count(*) from "{quoted}"').get)


def _query_or_error(query: Callable[[], Any]) -> Any:
    try:
        return query()
    except (apsw.Error, UnicodeDecodeError) as error:
        return f"({type(error).__name__})"
