"""Reads `state.db`: sessions, messages and routing, with the columns that its version has. Opens it read-only."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from everhold.errors import InvalidRequest, StoreDamaged, StoreError

PAGE_ROWS: Final = 500
MAX_VALUE_BYTES: Final = 16 << 20
"""The largest text of a row that is read."""
MAX_FIELD_CHARS: Final = 1 << 20
"""The longest value of any other column that is read."""
MAX_ID_CHARS: Final = 1_000
MAX_LOADED_BYTES: Final = 256 << 20
"""The largest value that SQLite may load or make."""
MULTIMODAL_PREFIX: Final = "\0json:"
"""The prefix of content that is a JSON list of parts."""
SUMMARY_PREFIXES: Final = ("[CONTEXT COMPACTION", "[CONTEXT SUMMARY]:")
MERGED_START: Final = "[PRIOR CONTEXT — for reference only; not a new message]"
MERGED_END: Final = "[END OF PRIOR CONTEXT — COMPACTION SUMMARY BELOW]"
RECOVERY_REMEDY: Final = "copy the file, run `sqlite3 state.db .recover | sqlite3 recovered.db`, then use recovered.db"

_FOREIGN_SCHEMA_OPTIONS: Final = (
    (apsw.SQLITE_DBCONFIG_DEFENSIVE, 1),
    (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0),
)

_SESSION: Final = {
    "id": "''", "source": "''", "user_id": "null", "session_key": "null", "chat_id": "null", "chat_type": "null",
    "thread_id": "null", "origin_json": "null", "model": "null", "model_config": "null",
    "parent_session_id": "null", "started_at": "0", "ended_at": "null", "end_reason": "null", "title": "null",
    "cwd": "null", "git_repo_root": "null",
    "api_call_count": "0", "input_tokens": "0", "output_tokens": "0", "cache_read_tokens": "0",
    "estimated_cost_usd": "null", "actual_cost_usd": "null",
}  # fmt: skip
_MESSAGE: Final = {
    "id": "0", "session_id": "''", "role": "''", "content": "null", "tool_call_id": "null", "tool_calls": "null",
    "timestamp": "0", "reasoning": "null", "reasoning_content": "null", "platform_message_id": "null",
    "observed": "0", "active": "1", "compacted": "0",
}  # fmt: skip
_TEXTS: Final = frozenset({"content", "tool_calls", "reasoning", "reasoning_content"})
_TEXT_PLACES: Final = tuple(place for place, name in enumerate(_MESSAGE) if name in _TEXTS)


class HermesSession(NamedTuple):
    """A row of `sessions`. Columns that the version does not have are empty."""

    id: str
    source: str
    user_id: str
    session_key: str
    chat_id: str
    chat_type: str
    thread_id: str
    origin: dict[str, Any]
    model: str
    config: dict[str, Any]
    parent: str
    started_at: float
    ended_at: float | None
    end_reason: str
    title: str
    cwd: str
    repo: str
    api_calls: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    usd: float

    @property
    def branched_from(self) -> str:
        return str(self.config.get("_branched_from") or "")

    @property
    def is_delegated(self) -> bool:
        return bool(self.config.get("_delegate_from")) or self.source == "tool"


class HermesMessage(NamedTuple):
    """A row of `messages`, with its texts as stored."""

    id: int
    session: str
    role: str
    content: str | None
    tool_call_id: str
    tool_calls: str
    timestamp: float
    reasoning: str
    platform_message_id: str
    observed: bool
    active: bool
    compacted: bool

    @property
    def is_undone(self) -> bool:
        return not self.active and not self.compacted

    @property
    def is_summary(self) -> bool:
        return is_summary(self.content)


def is_summary(content: str | None) -> bool:
    """Whether a message is a summary of earlier messages, or has one at its end."""
    text = (content or "").lstrip()
    return text.startswith(SUMMARY_PREFIXES) or (text.startswith(MERGED_START) and MERGED_END in text)


_IS_TIME: Final = "typeof(timestamp) in ('integer', 'real') and abs(timestamp) < 1e300"
"""SQLite orders text after numbers, so a text would be the newest time."""


class HermesDatabase:
    """One `state.db`."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise InvalidRequest(f"there is no {path}", remedy="name a hermes-agent home, or its state.db")
        self.path = path
        self.oversized: dict[int, tuple[str, int]] = {}
        """Row -> its session and the size of a value that was too large to read."""
        self.undecodable: dict[str, None] = {}
        """The rows that were left out because a field that must be exact is not UTF-8."""
        with path.open("rb") as file:
            if not file.read(16).startswith(b"SQLite format 3"):
                raise StoreDamaged(
                    f"{path} is not an SQLite database: page 1 does not begin like one", remedy=RECOVERY_REMEDY
                )
        try:
            self.db = apsw.Connection(_make_uri(path), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
            self.db.set_busy_timeout(5000)
            # The schema is foreign, too: no view, trigger or function of it may do anything.
            for option, value in _FOREIGN_SCHEMA_OPTIONS:
                self.db.config(option, value)
            self.db.limit(apsw.SQLITE_LIMIT_LENGTH, MAX_LOADED_BYTES)
            self.db.execute("begin")  # one read transaction, so that all reads see the same state while others write
            self.tables = {
                str(name) for (name,) in self.db.execute("select name from sqlite_master where type = 'table'")
            }
        except (apsw.Error, UnicodeDecodeError) as error:
            raise StoreDamaged(f"{path} cannot be opened: {error}", remedy=RECOVERY_REMEDY) from error
        if not {"sessions", "messages"} <= self.tables:
            raise InvalidRequest(
                f"{path} is not a database of hermes-agent", remedy="it has neither sessions nor messages"
            )

    def close(self) -> None:
        self.db.close()

    def list_columns(self, table: str) -> set[str]:
        return {str(row[1]) for row in self.query_rows(f"pragma table_info({table})")}

    def query_rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run a query; raise its errors as ours."""
        try:
            return list(self.db.execute(sql, values))
        except (apsw.Error, UnicodeDecodeError) as error:
            raise _make_damage_error(self.path, error) from error

    @property
    def schema_version(self) -> int:
        if "schema_version" not in self.tables:
            return 0
        found = self.query_rows("select max(version) from schema_version")
        return int(_convert_float(found[0][0]) or 0)

    # -- sessions ----------------------------------------------------------------------------------------------------

    def read_sessions(self) -> list[HermesSession]:
        """Return every session, by start time."""
        sql = (
            f"select {self._make_select('sessions', _SESSION)} from sessions "
            f"where length(id) <= {MAX_ID_CHARS} order by started_at, id"
        )
        rows = (self._decode_fields(row, _SESSION, "session") for row in self.query_rows(sql))
        return [_parse_session(row) for row in rows if row is not None]

    def _decode_fields(self, row: Any, names: Iterable[str], what: str) -> list[Any] | None:
        """Return a row with its fields as text; None if one of them is not UTF-8. Texts of messages stay bytes."""
        found: list[Any] = []
        for name, value in zip(names, row, strict=True):
            try:
                found.append(value.decode() if isinstance(value, bytes) and name not in _TEXTS else value)
            except UnicodeDecodeError:
                id = row[0].decode("utf-8", "replace") if isinstance(row[0], bytes) else row[0]
                self.undecodable[f"{what} {id}: its {name} is not UTF-8, so it was left out"] = None
                return None
        return found

    def list_unreadable(self) -> list[str]:
        """Describe the rows and values that are left out, because they are too long, have no usable id, or belong to a
        row that could not be read so far."""
        found = []
        [[count]] = self.query_rows(f"select count(*) from sessions where length(id) > {MAX_ID_CHARS} or id is null")
        if count:
            found.append(f"{count} sessions: their ids are empty or longer than {MAX_ID_CHARS:,} characters")
        for name in sorted(self.list_columns("sessions") & _SESSION.keys() - {"id"}):
            rows = self.query_rows(
                f"select cast(id as blob) from sessions where length({name}) > {MAX_FIELD_CHARS} "
                f"and length(id) <= {MAX_ID_CHARS}"
            )
            ids = [id.decode("utf-8", "replace") for (id,) in rows]
            found += [f"session {id}: {name} is longer than {MAX_FIELD_CHARS:,} characters" for id in ids]
        if not self._has_integer_ids():
            [[count]] = self.query_rows("select count(*) from messages where typeof(id) != 'integer'")
            if count:
                found.append(f"{count} messages: their ids are not whole numbers")
        return [*found, *self.undecodable]

    def _has_integer_ids(self) -> bool:
        """Whether the table itself guarantees that the ids of messages are whole numbers."""
        rows = self.query_rows("pragma table_info(messages)")
        return any((row[1], str(row[2]).upper(), row[5]) == ("id", "INTEGER", 1) for row in rows)

    def read_routing(self) -> dict[str, dict[str, Any]]:
        """Return session key -> routing entry, from the table."""
        if "gateway_routing" not in self.tables:
            return {}
        short = f"length(session_key) <= {MAX_ID_CHARS} and length(entry_json) <= {MAX_FIELD_CHARS}"
        found = self.query_rows(
            f"select {_select_field('session_key')}, {_select_field('entry_json')} from gateway_routing "
            f"where {short} order by updated_at"
        )
        rows = (self._decode_fields(row, ("session_key", "entry_json"), "routing of") for row in found)
        return {str(row[0]): _parse_object(row[1]) for row in rows if row is not None}

    # -- messages ----------------------------------------------------------------------------------------------------

    def count_messages(self) -> int:
        """Count the messages in the table itself; if the table is damaged, in its indexes."""
        try:
            return int(self.query_rows("select count(*) from messages not indexed")[0][0])
        except StoreDamaged:
            return int(self.query_rows("select count(*) from messages")[0][0])

    def iter_messages(self, session: str, *, after: int = 0) -> Iterator[HermesMessage]:
        """Yield a session's rows in the order they were written, page by page: by id, because times may be out of
        order.
        """
        select = self._make_select("messages", _MESSAGE)
        while True:
            sql = f"select {select} from messages where session_id = ? and id > ? and typeof(id) = 'integer' "
            sql += f"order by id limit {PAGE_ROWS}"
            page = self.query_rows(sql, (session, after))
            for row in page:
                decoded = self._decode_fields(row, _MESSAGE, "message")
                if decoded is not None:
                    self._note_oversized(decoded)
                    yield _parse_message(decoded)
            if len(page) < PAGE_ROWS:
                return
            after = int(page[-1][0])

    def read_newest_times(self) -> dict[str, float]:
        """Return session -> the time of its newest message; 0 if no message has one."""
        id = _select_field("session_id")
        rows = self.query_rows(f"select {id}, max(iif({_IS_TIME}, timestamp, 0)) from messages group by 1")
        decoded = (self._decode_fields(row, ("session_id", "timestamp"), "messages of session") for row in rows)
        return {str(row[0]): _convert_float(row[1]) or 0.0 for row in decoded if row is not None}

    def count_undated(self) -> int:
        """Return the number of messages whose time is not a number."""
        sql = f"select count(*) from messages where timestamp is not null and not ({_IS_TIME})"
        return int(self.query_rows(sql)[0][0])

    def find_message(self, id: int) -> HermesMessage | None:
        found = self.query_rows(f"select {self._make_select('messages', _MESSAGE)} from messages where id = ?", (id,))
        row = self._decode_fields(found[0], _MESSAGE, "message") if found else None
        return _parse_message(row) if row is not None else None

    def _make_select(self, table: str, wanted: dict[str, str]) -> str:
        there = self.list_columns(table)
        parts = []
        for name, missing in wanted.items():
            column = name if name in there else missing
            if name in _TEXTS:
                parts.append(_select_text(column))
            else:
                value = _select_field(column)
                parts.append(value if name == "id" else f"iif(length({column}) > {MAX_FIELD_CHARS}, null, {value})")
        return ", ".join(parts)

    def _note_oversized(self, row: Any) -> None:
        sizes = [int(row[place]) for place in _TEXT_PLACES if isinstance(row[place], int)]
        if sizes:
            self.oversized[int(row[0])] = str(row[1]), max(sizes)


def _select_text(column: str) -> str:
    """Select a text as bytes; its size instead if it is too large."""
    value = f"cast({column} as blob)"
    return f"case when length({value}) > {MAX_VALUE_BYTES} then length({value}) else {value} end"


def _select_field(column: str) -> str:
    """Select a text as bytes, because one that is not UTF-8 must not make the whole query fail."""
    return f"iif(typeof({column}) = 'text', cast({column} as blob), {column})"


def _make_uri(path: Path) -> str:
    """Return the URI to open. A file that no process has open and that has no WAL is opened as immutable."""
    quiet = not any(path.with_name(path.name + side).exists() for side in ("-wal", "-shm"))
    return f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if quiet else ''}"


def _make_damage_error(path: Path, error: apsw.Error | UnicodeDecodeError) -> StoreError:
    if isinstance(error, apsw.CorruptError | apsw.NotADBError | UnicodeDecodeError):
        return StoreDamaged(f"{path} is damaged: {error}", remedy=f"everhold doctor {path} shows where")
    return StoreError(f"{path}: {error}")


def _parse_session(row: Any) -> HermesSession:
    columns = dict(zip(_SESSION, row, strict=True))
    return HermesSession(
        id=str(columns["id"]),
        source=str(columns["source"] or ""),
        user_id=_convert_str(columns["user_id"]),
        session_key=_convert_str(columns["session_key"]),
        chat_id=_convert_str(columns["chat_id"]),
        chat_type=_convert_str(columns["chat_type"]),
        thread_id=_convert_str(columns["thread_id"]),
        origin=_parse_object(columns["origin_json"]),
        model=_convert_str(columns["model"]),
        config=_parse_object(columns["model_config"]),
        parent=_convert_str(columns["parent_session_id"]),
        started_at=_convert_float(columns["started_at"]) or 0.0,
        ended_at=_convert_float(columns["ended_at"]),
        end_reason=_convert_str(columns["end_reason"]),
        title=_convert_str(columns["title"]),
        cwd=_convert_str(columns["cwd"]),
        repo=_convert_str(columns["git_repo_root"]),
        api_calls=int(_convert_float(columns["api_call_count"]) or 0),
        input_tokens=int(_convert_float(columns["input_tokens"]) or 0),
        output_tokens=int(_convert_float(columns["output_tokens"]) or 0),
        cache_read_tokens=int(_convert_float(columns["cache_read_tokens"]) or 0),
        usd=_convert_float(columns["actual_cost_usd"]) or _convert_float(columns["estimated_cost_usd"]) or 0.0,
    )


def _parse_message(row: Any) -> HermesMessage:
    columns = dict(zip(_MESSAGE, row, strict=True))
    active = columns["active"]
    return HermesMessage(
        id=int(columns["id"]),
        session=str(columns["session_id"]),
        role=str(columns["role"] or ""),
        content=_decode_text(columns["content"]),
        tool_call_id=_convert_str(columns["tool_call_id"]),
        tool_calls=_decode_text(columns["tool_calls"]) or "",
        timestamp=_convert_float(columns["timestamp"]) or 0.0,
        reasoning=_decode_text(columns["reasoning"]) or _decode_text(columns["reasoning_content"]) or "",
        platform_message_id=_convert_str(columns["platform_message_id"]),
        observed=bool(columns["observed"]),
        active=active is None or bool(active),  # empty in older files
        compacted=bool(columns["compacted"]),
    )


def _convert_str(value: Any) -> str:
    return "" if value is None else str(value)


def _convert_float(value: Any) -> float | None:
    """Return a number; None for anything else, also for infinity, which is no time and no count."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _decode_text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return f"[{value:,} bytes were too large to read]" if isinstance(value, int) else None


def _parse_object(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str | bytes) and text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
