"""Measurements as rows of a table, each with its comparison and its target."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement. `limit`: the most `value` may be, or the least where more is better."""

    what: str
    value: float
    unit: str
    beside: str = ""
    """What it is compared with, and that measurement."""
    ratio: float | None = None
    target: str = ""
    holds: bool | None = None


def at_most(what: str, value: float, unit: str, limit: float, *, beside: str = "", ratio: float | None = None) -> Row:
    judged = value if ratio is None else ratio
    target = f"≤ {limit:g} {unit}" if ratio is None else f"≤ {limit:g} x"
    return Row(what=what, value=value, unit=unit, beside=beside, ratio=ratio, target=target, holds=judged <= limit)


def at_least(what: str, value: float, unit: str, share: float, *, beside: str, ratio: float) -> Row:
    return Row(
        what=what, value=value, unit=unit, beside=beside, ratio=ratio, target=f"≥ {share:g} x", holds=ratio >= share
    )


def interleave(rounds: int, works: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Run each work once per round, so that a disturbance of the machine affects all of them."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            found[name].append(work())
    return found


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the rounds' ratios. A disturbance of one round affects both of its numbers."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


median = statistics.median


def render(rows: Sequence[Row]) -> str:
    """Render an aligned Markdown table."""
    head = ("what", "everhold", "beside", "ratio", "promised", "")
    lines = [head] + [
        (
            row.what,
            f"{_number(row.value)} {row.unit}",
            row.beside,
            "" if row.ratio is None else f"{row.ratio:.2f} x",
            row.target,
            "" if row.holds is None else "holds" if row.holds else "MISSED",
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    text = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"
