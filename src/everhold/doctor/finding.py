"""What a check found: what, where, how many, what was lost, and what would mend it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Level: TypeAlias = Literal["wrong", "note"]


@dataclass(frozen=True)
class Edit:
    """One change to a foreign store. `values` empty: the row goes; `copies` set: a copy of that message is appended;
    `index` set: that search index is written anew."""

    table: str
    key: tuple[tuple[str, Any], ...] = ()
    values: tuple[tuple[str, Any], ...] = ()
    copies: int = 0
    index: str = ""

    def __str__(self) -> str:
        where = ", ".join(f"{name} {value}" for name, value in self.key)
        if self.index:
            return f"write {self.index} anew"
        if self.copies:
            return f"{self.table}: append message {self.copies} once more, as a live one"
        if not self.values:
            return f"{self.table}: remove {where}"
        return f"{self.table}: {where}: " + ", ".join(f"{name} = {_short(value)}" for name, value in self.values)


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "…"


@dataclass(frozen=True)
class Finding:
    """`check` names what was looked at. A note is worth knowing, and nothing to mend."""

    check: str
    text: str
    where: tuple[str, ...] = ()
    count: int = 1
    lost: str = ""
    remedy: str = ""
    level: Level = "wrong"
    edits: tuple[Edit, ...] = ()
    """What `--fix` would change."""

    @property
    def fixable(self) -> bool:
        return bool(self.edits)


def finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "level": finding.level,
        "text": finding.text,
        "where": list(finding.where),
        "count": finding.count,
        "lost": finding.lost,
        "remedy": finding.remedy,
        "fixable": finding.fixable,
        "edits": [str(edit) for edit in finding.edits],
    }
