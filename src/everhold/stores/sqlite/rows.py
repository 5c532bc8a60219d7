"""Reads rows to the end, so that no statement stays open behind its reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apsw


def fetch_rows(cur: apsw.Cursor, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
    found: list[Any] = cur.execute(sql, values).fetchall()
    return found
