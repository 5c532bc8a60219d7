"""A hermes-agent store, read once for the checks. It holds no message texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from everhold.hermes.reader.database import HermesDatabase, HermesMessage, HermesSession
from everhold.hermes.reader.lineage import SessionChain, SessionLineage, trace_lineage
from everhold.hermes.reader.transcript import MessageDigest, TranscriptReading, digest_message, read_transcript


class ReadChain(NamedTuple):
    """A chain's transcript, with the needed data of its rows."""

    chain: SessionChain
    reading: TranscriptReading
    digests: dict[int, MessageDigest]


class HermesInspection:
    """One `state.db` at one moment."""

    def __init__(self, db: HermesDatabase, *, now: float, mirror: Mapping[str, dict[str, Any]] | None = None) -> None:
        self.db = db
        self.now = now
        self.sessions: dict[str, HermesSession] = {session.id: session for session in db.read_sessions()}
        self.columns = {table: db.list_columns(table) for table in db.tables}
        self.newest: dict[str, float] = {}
        self.rows: dict[str, int] = {}
        for session, at, count in db.query_rows("select session_id, max(timestamp), count(*) from messages group by 1"):
            self.newest[str(session)] = float(at or 0)
            self.rows[str(session)] = int(count)
        self.lineage: SessionLineage = trace_lineage(self.sessions.values(), self.newest)
        self.routing = db.read_routing() or dict(mirror or {})
        self.archived = self._find_archived()

    def _find_archived(self) -> set[str]:
        if "archived" not in self.columns["sessions"]:
            return set()
        return {str(id) for (id,) in self.db.query_rows("select id from sessions where archived = 1")}

    @cached_property
    def chats_by_session(self) -> dict[str, list[str]]:
        """Session id -> the chats that lead to it."""
        found: dict[str, list[str]] = {}
        for key, entry in self.routing.items():
            found.setdefault(str(entry.get("session_id") or ""), []).append(key)
        return found

    def read_chains(self) -> Iterator[ReadChain]:
        """Yield every chain, one at a time, because a large store does not fit into memory."""
        for chain in self.lineage.chains:
            lights = {row.id: digest_message(row) for id in chain.ids for row in self.db.iter_messages(id)}
            yield ReadChain(chain, read_transcript(lights.values()), lights)

    def iter_live_messages(self, session: str) -> Iterator[HermesMessage]:
        """Return what the next turn of a session would see in hermes-agent."""
        return (row for row in self.db.iter_messages(session) if row.active)

    @cached_property
    def open_sessions(self) -> dict[str, list[HermesSession]]:
        """Chat -> its open sessions, newest last."""
        found: dict[str, list[HermesSession]] = {}
        for session in self.sessions.values():
            if session.session_key and session.ended_at is None and session.id not in self.archived:
                found.setdefault(session.session_key, []).append(session)
        return found

    @cached_property
    def sessions_by_chat(self) -> dict[str, list[HermesSession]]:
        found: dict[str, list[HermesSession]] = {}
        for session in self.sessions.values():
            found.setdefault(session.session_key, []).append(session)
        return found

    @cached_property
    def chat_by_session(self) -> dict[str, str]:
        """Session id -> the chat it belongs to, empty if the store does not say. A continuation may have lost its
        chat, and then belongs to the chat of the sessions before it.
        """
        found: dict[str, str] = {}
        for chain in self.lineage.chains:
            chat = next((session.session_key for session in chain.sessions if session.session_key), "")
            found |= dict.fromkeys(chain.ids, chat)
        return found

    @cached_property
    def scopes_by_chat(self) -> dict[str, list[Any]]:
        """Chat -> the scopes of its rows in the routing table."""
        found: dict[str, list[Any]] = {}
        if "gateway_routing" in self.db.tables:
            for key, scope in self.db.query_rows("select session_key, scope from gateway_routing"):
                found.setdefault(str(key), []).append(scope)
        return found


def read_tool_call_ids(row: HermesMessage) -> list[str]:
    """Return the ids of the tool calls in a message."""
    try:
        calls = json.loads(row.tool_calls) if row.tool_calls else []
    except ValueError:
        return []
    found = calls if isinstance(calls, list) else [calls]
    return [str(call.get("id") or call.get("call_id") or "") for call in found if isinstance(call, dict)]
