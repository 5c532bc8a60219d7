"""Fetches all rows of a query at once, so that no statement stays open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apsw


def fetch_rows(cur: apsw.Cursor, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
    found: list[Any] = cur.execute(sql, values).fetchall()
    return found
