"""Checks the file of the search index for `everhold doctor`. Changes nothing."""

from __future__ import annotations

from pathlib import Path

import apsw


def find_index_damage(path: Path) -> str:
    """Why the index cannot be used; empty if it can, or if there is none."""
    if not path.exists():
        return ""
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            found = [str(row[0]) for row in db.execute("pragma quick_check(3)")]
        finally:
            db.close()
    except apsw.Error as error:
        found = [str(error)]
    return "" if found == ["ok"] else found[0]
