"""A foreign store, looked through once: what the checks of it ask about. Holds no message texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from everhold.hermes.database import Database, Row, Session
from everhold.hermes.lineage import Chain, Lineage, lineage
from everhold.hermes.transcript import Light, Reading, light, read


class Told(NamedTuple):
    """A chain as it reads, with what is needed of its rows."""

    chain: Chain
    reading: Reading
    lights: dict[int, Light]


class Case:
    """One `state.db` at one moment."""

    def __init__(self, db: Database, *, now: float, mirror: Mapping[str, dict[str, Any]] | None = None) -> None:
        self.db = db
        self.now = now
        self.sessions: dict[str, Session] = {session.id: session for session in db.sessions()}
        self.columns = {table: db.columns(table) for table in db.tables}
        self.newest: dict[str, float] = {}
        self.rows: dict[str, int] = {}
        for session, at, count in db.rows("select session_id, max(timestamp), count(*) from messages group by 1"):
            self.newest[str(session)] = float(at or 0)
            self.rows[str(session)] = int(count)
        self.lineage: Lineage = lineage(self.sessions.values(), self.newest)
        self.routing = db.routing() or dict(mirror or {})
        self.archived = self._archived()

    def _archived(self) -> set[str]:
        if "archived" not in self.columns["sessions"]:
            return set()
        return {str(id) for (id,) in self.db.rows("select id from sessions where archived = 1")}

    @cached_property
    def routed(self) -> dict[str, list[str]]:
        """Session id -> the chats that lead to it."""
        found: dict[str, list[str]] = {}
        for key, entry in self.routing.items():
            found.setdefault(str(entry.get("session_id") or ""), []).append(key)
        return found

    def told(self) -> Iterator[Told]:
        """Every chain, one at a time: a large store does not fit into memory."""
        for chain in self.lineage.chains:
            lights = {row.id: light(row) for id in chain.ids for row in self.db.messages(id)}
            yield Told(chain, read(lights.values()), lights)

    def live(self, session: str) -> Iterator[Row]:
        """What the next turn of a session would be made of, there."""
        return (row for row in self.db.messages(session) if row.active)

    def open_of(self, key: str) -> list[Session]:
        """The sessions of a chat that were not ended, newest last."""
        return [
            session
            for session in self.sessions.values()
            if session.session_key == key and session.ended_at is None and session.id not in self.archived
        ]


def calls_of(row: Row) -> list[str]:
    """The ids of the tool calls in a message."""
    try:
        calls = json.loads(row.tool_calls) if row.tool_calls else []
    except ValueError:
        return []
    found = calls if isinstance(calls, list) else [calls]
    return [str(call.get("id") or call.get("call_id") or "") for call in found if isinstance(call, dict)]
