"""What a check found: what, where, how many, what was lost, and the remedy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

FindingLevel: TypeAlias = Literal["wrong", "note"]


@dataclass(frozen=True)
class StoreEdit:
    """One change to a store of hermes-agent.

    Without `values`, the row is removed. With `copies`, a copy of that message is appended. With `index`, that search
    index is rebuilt.
    """

    table: str
    key: tuple[tuple[str, Any], ...] = ()
    values: tuple[tuple[str, Any], ...] = ()
    copies: int = 0
    index: str = ""

    def __str__(self) -> str:
        where = ", ".join(f"{name} {value}" for name, value in self.key)
        if self.index:
            return f"rebuild {self.index}"
        if self.copies:
            return f"{self.table}: append an active copy of message {self.copies}"
        if not self.values:
            return f"{self.table}: remove {where}"
        return f"{self.table}: {where}: " + ", ".join(
            f"{name} = {_shorten_value(value)}" for name, value in self.values
        )


def describe_edits(edits: Sequence[StoreEdit]) -> list[str]:
    """Describe the changes. Consecutive rows with the same change share a line."""
    lines: list[str] = []
    for _, group in itertools.groupby(edits, lambda edit: (edit.table, edit.values, edit.index, bool(edit.copies))):
        run: list[StoreEdit] = []
        for edit in group:
            if run and not _is_consecutive(run[-1], edit):
                lines.append(_format_run(run))
                run = []
            run.append(edit)
        lines.append(_format_run(run))
    return lines


def _is_consecutive(before: StoreEdit, edit: StoreEdit) -> bool:
    ids = [dict(it.key).get("id") for it in (before, edit)]
    return len(edit.key) == 1 and isinstance(ids[0], int) and isinstance(ids[1], int) and ids[1] > ids[0]


def _format_run(run: Sequence[StoreEdit]) -> str:
    if len(run) == 1:
        return str(run[0])
    first, last = (dict(edit.key)["id"] for edit in (run[0], run[-1]))
    return str(replace(run[0], key=(("id", f"{first} to {last} ({len(run)} rows)"),)))


def _shorten_value(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "…"


@dataclass(frozen=True)
class DoctorFinding:
    """One finding. `check` names the check. A finding with level `note` needs no repair."""

    check: str
    text: str
    where: tuple[str, ...] = ()
    count: int = 1
    lost: str = ""
    remedy: str = ""
    level: FindingLevel = "wrong"
    edits: tuple[StoreEdit, ...] = ()
    """What `--fix` would change."""

    @property
    def is_fixable(self) -> bool:
        return bool(self.edits)


def convert_finding_to_json(finding: DoctorFinding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "level": finding.level,
        "text": finding.text,
        "where": list(finding.where),
        "count": finding.count,
        "lost": finding.lost,
        "remedy": finding.remedy,
        "fixable": finding.is_fixable,
        "edits": [str(edit) for edit in finding.edits],
    }
