"""Its `state.db`: sessions, messages and routing, whatever columns this version of it has. Opened for reading only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from everhold.errors import Misuse, StoreDamaged, StoreError

PAGE: Final = 500
MULTIMODAL: Final = "\0json:"
"""What a content that is a JSON list of parts begins with."""
SUMMARIES: Final = ("[CONTEXT COMPACTION", "[CONTEXT SUMMARY]:")
MERGED: Final = "[PRIOR CONTEXT — for reference only; not a new message]"
MERGED_END: Final = "[END OF PRIOR CONTEXT — COMPACTION SUMMARY BELOW]"
RECOVER: Final = "copy the file away, then `sqlite3 state.db .recover | sqlite3 recovered.db`, then look at that one"

_SESSION: Final = {
    "id": "''", "source": "''", "user_id": "null", "session_key": "null", "chat_id": "null", "chat_type": "null",
    "thread_id": "null", "display_name": "null", "origin_json": "null", "model": "null", "model_config": "null",
    "parent_session_id": "null", "started_at": "0", "ended_at": "null", "end_reason": "null", "title": "null",
    "cwd": "null", "git_repo_root": "null", "message_count": "0", "api_call_count": "0", "input_tokens": "0",
    "output_tokens": "0", "cache_read_tokens": "0", "cache_write_tokens": "0", "reasoning_tokens": "0",
    "estimated_cost_usd": "null", "actual_cost_usd": "null",
}  # fmt: skip
_MESSAGE: Final = {
    "id": "0", "session_id": "''", "role": "''", "content": "null", "tool_call_id": "null", "tool_calls": "null",
    "tool_name": "null", "timestamp": "0", "finish_reason": "null", "reasoning": "null", "reasoning_content": "null",
    "platform_message_id": "null", "observed": "0", "active": "1", "compacted": "0", "api_content": "null",
}  # fmt: skip
_TEXTS: Final = frozenset({"content", "tool_calls", "reasoning", "reasoning_content", "api_content"})


class Session(NamedTuple):
    """A row of `sessions`; what a version does not have yet is empty."""

    id: str
    source: str
    user_id: str
    session_key: str
    chat_id: str
    chat_type: str
    thread_id: str
    display_name: str
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
    message_count: int
    api_calls: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    usd: float

    @property
    def branched_from(self) -> str:
        return str(self.config.get("_branched_from") or "")

    @property
    def delegated(self) -> bool:
        return bool(self.config.get("_delegate_from")) or self.source == "tool"


class Row(NamedTuple):
    """A row of `messages`, its texts as they are stored."""

    id: int
    session: str
    role: str
    content: str | None
    tool_call_id: str
    tool_calls: str
    tool_name: str
    timestamp: float
    finish_reason: str
    reasoning: str
    platform_message_id: str
    observed: bool
    active: bool
    compacted: bool
    api_content: str | None

    @property
    def undone(self) -> bool:
        return not self.active and not self.compacted

    @property
    def is_summary(self) -> bool:
        return is_summary(self.content)


def is_summary(content: str | None) -> bool:
    """Whether a message is a summary of what came before it, or has one at its end."""
    text = (content or "").lstrip()
    return text.startswith(SUMMARIES) or (text.startswith(MERGED) and MERGED_END in text)


class Database:
    """One `state.db`."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise Misuse(f"there is no {path}", remedy="name a hermes-agent home, or its state.db")
        self.path = path
        with path.open("rb") as file:
            if not file.read(16).startswith(b"SQLite format 3"):
                raise StoreDamaged(f"{path} is no SQLite database: page 1 does not begin like one", remedy=RECOVER)
        try:
            self.db = apsw.Connection(_uri(path), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
            self.db.set_busy_timeout(5000)
            self.db.execute("begin")  # everything that is read is of one moment, whoever writes meanwhile
            self.tables = {
                str(name) for (name,) in self.db.execute("select name from sqlite_master where type = 'table'")
            }
        except apsw.Error as error:
            raise StoreDamaged(f"{path} cannot be opened: {error}", remedy=RECOVER) from error
        if not {"sessions", "messages"} <= self.tables:
            raise Misuse(f"{path} is no database of hermes-agent's", remedy="it has neither sessions nor messages")

    def close(self) -> None:
        self.db.close()

    def columns(self, table: str) -> set[str]:
        return {str(row[1]) for row in self.db.execute(f"pragma table_info({table})")}

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """What a query gives, or the error as one of ours."""
        try:
            return list(self.db.execute(sql, values))
        except apsw.Error as error:
            raise _damage(self.path, error) from error

    @property
    def version(self) -> int:
        if "schema_version" not in self.tables:
            return 0
        found = self.rows("select max(version) from schema_version")
        return int(found[0][0] or 0)

    # -- sessions ----------------------------------------------------------------------------------------------------

    def sessions(self) -> list[Session]:
        """Every session, in the order they began."""
        sql = f"select {self._select('sessions', _SESSION)} from sessions order by started_at, id"
        return [_session(row) for row in self.rows(sql)]

    def routing(self) -> dict[str, dict[str, Any]]:
        """Session key -> its routing entry, from the table."""
        if "gateway_routing" not in self.tables:
            return {}
        found = self.rows("select session_key, entry_json from gateway_routing order by updated_at")
        return {str(key): _object(text) for key, text in found}

    # -- messages ----------------------------------------------------------------------------------------------------

    def count(self) -> int:
        """How many messages there are in the table itself, whatever its indexes say; if it is damaged, as they say."""
        try:
            return int(self.rows("select count(*) from messages not indexed")[0][0])
        except StoreDamaged:
            return int(self.rows("select count(*) from messages")[0][0])

    def messages(self, session: str, *, after: int = 0) -> Iterator[Row]:
        """A session's rows in the order they were written, page by page. That is the order of ids, never of times."""
        select = self._select("messages", _MESSAGE)
        while True:
            sql = f"select {select} from messages where session_id = ? and id > ? order by id limit {PAGE}"
            page = self.rows(sql, (session, after))
            for row in page:
                yield _row(row)
            if len(page) < PAGE:
                return
            after = int(page[-1][0])

    def message(self, id: int) -> Row | None:
        found = self.rows(f"select {self._select('messages', _MESSAGE)} from messages where id = ?", (id,))
        return _row(found[0]) if found else None

    def _select(self, table: str, wanted: dict[str, str]) -> str:
        there = self.columns(table)
        parts = []
        for name, missing in wanted.items():
            column = name if name in there else missing
            parts.append(f"cast({column} as blob)" if name in _TEXTS else column)
        return ", ".join(parts)


def _uri(path: Path) -> str:
    """A file that nobody has open or left a log beside is read as it is; else SQLite has to look at the log, too."""
    quiet = not any(path.with_name(path.name + side).exists() for side in ("-wal", "-shm"))
    return f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if quiet else ''}"


def _damage(path: Path, error: apsw.Error) -> StoreError:
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return StoreDamaged(f"{path} is damaged: {error}", remedy=f"everhold doctor {path} says where")
    return StoreError(f"{path}: {error}")


def _session(row: Any) -> Session:
    (
        id,
        source,
        user,
        key,
        chat,
        chat_type,
        thread,
        display,
        origin,
        model,
        config,
        parent,
        started,
        ended,
        reason,
        title,
        cwd,
        repo,
        messages,
        calls,
        used_in,
        used_out,
        read,
        written,
        reasoned,
        guess,
        actual,
    ) = row
    return Session(
        id=str(id),
        source=str(source or ""),
        user_id=_word(user),
        session_key=_word(key),
        chat_id=_word(chat),
        chat_type=_word(chat_type),
        thread_id=_word(thread),
        display_name=_word(display),
        origin=_object(origin),
        model=_word(model),
        config=_object(config),
        parent=_word(parent),
        started_at=_number(started) or 0.0,
        ended_at=_number(ended),
        end_reason=_word(reason),
        title=_word(title),
        cwd=_word(cwd),
        repo=_word(repo),
        message_count=int(_number(messages) or 0),
        api_calls=int(_number(calls) or 0),
        input_tokens=int(_number(used_in) or 0),
        output_tokens=int(_number(used_out) or 0),
        cache_read_tokens=int(_number(read) or 0),
        cache_write_tokens=int(_number(written) or 0),
        reasoning_tokens=int(_number(reasoned) or 0),
        usd=_number(actual) or _number(guess) or 0.0,
    )


def _row(row: Any) -> Row:
    (
        id,
        session,
        role,
        content,
        call,
        calls,
        tool,
        timestamp,
        finish,
        reasoning,
        reasoned,
        platform,
        observed,
        active,
        compacted,
        sent,
    ) = row
    return Row(
        id=int(id),
        session=str(session),
        role=str(role or ""),
        content=_text(content),
        tool_call_id=_word(call),
        tool_calls=_text(calls) or "",
        tool_name=_word(tool),
        timestamp=_number(timestamp) or 0.0,
        finish_reason=_word(finish),
        reasoning=_text(reasoning) or _text(reasoned) or "",
        platform_message_id=_word(platform),
        observed=bool(observed),
        active=active is None or bool(active),  # older files have nothing there
        compacted=bool(compacted),
        api_content=_text(sent),
    )


def _word(value: Any) -> str:
    return "" if value is None else str(value)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if value is None else str(value)


def _object(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text) if isinstance(text, str | bytes) and text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
