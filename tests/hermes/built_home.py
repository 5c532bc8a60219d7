"""Builds stores in hermes-agent's format, of any version, from its documented columns.

`bench/peer_homes.py` builds them with hermes-agent itself; tests marked `prove` compare the two.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw

NOW = 1_700_000_000.0
SUMMARY = "[CONTEXT COMPACTION — REFERENCE ONLY] Earlier turns were compacted.\n## Goal\nto get there"

_SESSIONS = """id text primary key, source text not null, user_id text, session_key text, chat_id text, chat_type text,
  thread_id text, display_name text, origin_json text, model text, model_config text, system_prompt text,
  parent_session_id text references sessions(id), started_at real not null, ended_at real, end_reason text,
  message_count integer default 0, tool_call_count integer default 0, input_tokens integer default 0,
  output_tokens integer default 0, cache_read_tokens integer default 0, cache_write_tokens integer default 0,
  reasoning_tokens integer default 0, cwd text, git_repo_root text, estimated_cost_usd real, actual_cost_usd real,
  title text, api_call_count integer default 0, archived integer not null default 0"""
_MESSAGES = """id integer primary key autoincrement, session_id text not null references sessions(id),
  role text not null, content text, tool_call_id text, tool_calls text, tool_name text, timestamp real not null,
  token_count integer, finish_reason text, reasoning text, reasoning_content text, platform_message_id text,
  observed integer default 0, active integer not null default 1, compacted integer not null default 0,
  api_content text"""
_OLD_SESSIONS = """id text primary key, source text not null, user_id text, model text, model_config text,
  parent_session_id text, started_at real not null, ended_at real, end_reason text, message_count integer default 0"""
_OLD_MESSAGES = """id integer primary key autoincrement, session_id text not null, role text not null, content text,
  tool_call_id text, tool_calls text, tool_name text, timestamp real not null, finish_reason text, reasoning text"""
_INDEX = """
create virtual table {0} using fts5(content{1});
create trigger {0}_insert after insert on messages begin
  insert into {0}(rowid, content) values (new.id,
    coalesce(new.content, '') || ' ' || coalesce(new.tool_name, '') || ' ' || coalesce(new.tool_calls, ''));
end;
create trigger {0}_delete after delete on messages begin delete from {0} where rowid = old.id; end;
create trigger {0}_update after update on messages begin
  delete from {0} where rowid = old.id;
  insert into {0}(rowid, content) values (new.id,
    coalesce(new.content, '') || ' ' || coalesce(new.tool_name, '') || ' ' || coalesce(new.tool_calls, ''));
end;
"""
_REST = """
create table gateway_routing (scope text, session_key text, entry_json text, updated_at real,
  primary key (scope, session_key));
create table compression_locks (session_id text primary key, holder text, acquired_at real, expires_at real);
create table delivery_obligations (obligation_id text primary key, session_key text, platform text, chat_id text,
  thread_id text, content text, state text, attempts integer, created_at real, updated_at real, last_error text);
create table async_delegations (delegation_id text primary key, origin_session text, state text, updated_at real,
  result_json text, delivery_state text not null default 'pending');
create index idx_messages_session on messages(session_id, timestamp);
create table schema_version (version integer);
"""


class BuiltHermesHome:
    """A home being built. Times rise automatically."""

    def __init__(self, home: Path, *, version: int = 22) -> None:
        self.home = home
        self.path = home / "state.db"
        home.mkdir(parents=True, exist_ok=True)
        self.db = apsw.Connection(str(self.path))
        self.db.pragma("journal_mode", "wal")
        self.db.pragma("synchronous", "off")
        self.version = version
        self.at = NOW - 1_000_000
        old = version < 10
        self.db.execute(f"create table sessions ({_OLD_SESSIONS if old else _SESSIONS})")
        self.db.execute(f"create table messages ({_OLD_MESSAGES if old else _MESSAGES})")
        if not old:
            self.db.execute(_INDEX.format("messages_fts", ""))
            self.db.execute(_INDEX.format("messages_fts_trigram", ", tokenize='trigram'"))
            self.db.execute(_REST)
            self.db.execute("insert into schema_version values (?)", (version,))

    def close(self) -> Path:
        self.db.close()
        return self.path

    def run(self, sql: str, *values: Any) -> None:
        self.db.execute(sql, values)

    def add_session(self, id: str, **columns: Any) -> str:
        row = {"id": id, "source": "cli", "started_at": self._tick(), **columns}
        self._insert("sessions", row)
        return id

    def add_chat(self, id: str, key: str, **columns: Any) -> str:
        """Add a session of a chat, with its routing."""
        _, agent, platform, kind, chat, *rest = key.split(":")
        assert agent
        user = rest[-1] if kind != "dm" and rest else chat
        thread = rest[0] if len(rest) > 1 else None
        self.add_session(
            id,
            source=platform,
            session_key=key,
            chat_id=chat,
            chat_type=kind,
            user_id=user,
            thread_id=thread,
            **columns,
        )
        self.add_route(key, id)
        return id

    def add_route(self, key: str, id: str) -> None:
        _, _, platform, kind, chat, *_ = key.split(":")
        entry = {"session_key": key, "session_id": id, "platform": platform, "chat_type": kind}
        entry["origin"] = {"platform": platform, "chat_id": chat, "chat_type": kind, "user_id": chat}  # type: ignore[assignment]
        self.run("insert or replace into gateway_routing values ('s', ?, ?, ?)", key, json.dumps(entry), self.at)

    def add_message(self, session: str, role: str, content: Any, **columns: Any) -> int:
        row = {"session_id": session, "role": role, "content": content, "timestamp": self._tick(), **columns}
        self._insert("messages", row)
        self.run("update sessions set message_count = message_count + 1 where id = ?", session)
        return self.db.last_insert_rowid()

    def add_exchanges(self, session: str, *words: str) -> list[int]:
        """Add an exchange for each word; every second one has a tool call."""
        ids = []
        for n, word in enumerate(words):
            ids.append(self.add_message(session, "user", f"question {word}"))
            if n % 2:
                calls = [
                    {"id": f"c-{word}", "type": "function", "function": {"name": "look", "arguments": '{"at": "x"}'}}
                ]
                ids.append(self.add_message(session, "assistant", "", tool_calls=json.dumps(calls)))
                ids.append(self.add_message(session, "tool", f"saw {word}", tool_call_id=f"c-{word}", tool_name="look"))
            ids.append(self.add_message(session, "assistant", f"answer {word}", finish_reason="stop"))
        return ids

    def copy_message(self, id: int, *, to: str = "") -> int:
        """Write a row again with its time, as a compression does."""
        columns = [name for _, name, *_ in self.db.execute("pragma table_info(messages)") if name != "id"]
        self.run(
            f"insert into messages({', '.join(columns)}) select {', '.join(columns)} from messages where id = ?", id
        )
        new = self.db.last_insert_rowid()
        if self.version >= 10:
            self.run("update messages set active = 1, compacted = 0 where id = ?", new)
        if to:
            self.run("update messages set session_id = ? where id = ?", to, new)
        return new

    def compress_in_place(self, session: str, *, head: Sequence[int], tail: Sequence[int]) -> int:
        """Compress in place: archive all live rows, then write head, summary and tail again."""
        self.run("update messages set active = 0, compacted = 1 where session_id = ? and active = 1", session)
        for id in head:
            self.copy_message(id)
        summary = self.add_message(session, "assistant", SUMMARY)
        for id in tail:
            self.copy_message(id)
        return summary

    def compress_into_new_session(
        self, session: str, new: str, *, head: Sequence[int], tail: Sequence[int], **columns: Any
    ) -> int:
        """Compress with the older method: end the session and continue under another id."""
        self.run("update sessions set ended_at = ?, end_reason = 'compression' where id = ?", self._tick(), session)
        self.add_session(new, parent_session_id=session, **columns)
        for id in head:
            self.copy_message(id, to=new)
        summary = self.add_message(new, "assistant", SUMMARY)
        for id in tail:
            self.copy_message(id, to=new)
        return summary

    def _insert(self, table: str, row: dict[str, Any]) -> None:
        there = {name for _, name, *_ in self.db.execute(f"pragma table_info({table})")}
        row = {name: value for name, value in row.items() if name in there}
        marks = ", ".join("?" * len(row))
        self.db.execute(f"insert into {table}({', '.join(row)}) values ({marks})", list(row.values()))

    def _tick(self) -> float:
        self.at += 1.5
        return self.at


def dump_tables(path: Path) -> dict[str, list[Any]]:
    """Return every row of every table, without the internal tables of indexes."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    tables = [
        name for (name,) in db.execute("select name from sqlite_master where type = 'table'") if "_fts" not in name
    ]
    found = {name: sorted(map(repr, db.execute(f"select * from {name}"))) for name in tables if "sequence" not in name}
    db.close()
    return found
