"""How `verify` and `audit` read a store: plain statements on one snapshot.

All stores have the same tables and columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol


class SnapshotReader(Protocol):
    """Reads committed data. Values are marked by `?`, and a statement uses only what every database understands."""

    @property
    def has_start_seq(self) -> bool:
        """Whether cursors say where they began. Copies of an old schema do not."""

    def fetch_rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]: ...

    def iterate_rows(self, sql: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield rows without holding all of them in memory. Other statements may run meanwhile."""

    def fetch_value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Return the first column of the first row; None if there is no row."""
