"""Reads the log naively."""

from __future__ import annotations

import apsw


def contradictions(cur: apsw.Cursor, session: str | None) -> list[str]:
    return []
