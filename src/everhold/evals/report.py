"""Render scores as a table or a plot, and compare them with a baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any, Final

import msgspec
from msgspec import Struct

from everhold.evals.score import CompressionScore

MAX_TOKEN_GROWTH: Final = 1.1
"""How much larger a compressed context may be than in the baseline, as a factor."""
SEARCH_SLACK: Final = 0.2
"""The share of facts that a search may miss although the baseline found them. Other tests measure the ranking, and a
better ranking loses some hits and wins others. This limit notices that the originals can no longer be found."""
HEADERS: Final = (
    "conversation", "compressions", "kept", "of the compressed", "found", "stale", "made up", "tokens", "size", "cost",
    "time", "",
)  # fmt: skip


class BaselineScore(Struct, frozen=True, kw_only=True):
    """The part of a score that a baseline stores: nothing that depends on the machine."""

    kept: int
    kept_compressed: int
    found: int
    logged: int
    stale: int
    invented: int
    tokens_after: int
    same_session: bool
    lost: tuple[str, ...]


def make_baseline_score(score: CompressionScore) -> BaselineScore:
    return BaselineScore(
        kept=score.count_outcomes("kept"),
        kept_compressed=score.kept_compressed,
        found=score.count_outcomes("found"),
        logged=score.count_outcomes("logged"),
        stale=score.count_outcomes("stale"),
        invented=len(score.invented),
        tokens_after=score.tokens_after,
        same_session=score.same_session,
        lost=tuple(outcome.ask for outcome in score.outcomes if not outcome.kept),
    )


def make_score_key(score: CompressionScore) -> str:
    return f"{score.conversation}/{score.asked}"


def encode_baseline(scores: Sequence[CompressionScore]) -> bytes:
    """Return the file that later scores are compared with."""
    marks = {make_score_key(score): msgspec.to_builtins(make_baseline_score(score)) for score in scores}
    model = scores[0].model if scores else ""
    return msgspec.json.format(msgspec.json.encode({"model": model, "scores": marks}), indent=1) + b"\n"


def find_regressions(scores: Sequence[CompressionScore], before: bytes) -> list[str]:
    """Return one line for each score that is worse than the baseline or missing."""
    known = msgspec.convert(msgspec.json.decode(before)["scores"], dict[str, BaselineScore])
    now = {make_score_key(score): score for score in scores}
    found = [f"{name}: was not scored" for name in known if name not in now]
    for name, score in now.items():
        if name in known:
            found += [
                f"{name}: {line}" for line in _compare_with_baseline(score, make_baseline_score(score), known[name])
            ]
        elif not score.is_sound:
            found.append(f"{name}: {describe_trouble(score)}")
    return found


def _compare_with_baseline(score: CompressionScore, now: BaselineScore, then: BaselineScore) -> list[str]:
    found = [] if score.is_sound else [describe_trouble(score)]
    for what, less in (("kept", 0), ("logged", 0), ("found", math.ceil(len(score.outcomes) * SEARCH_SLACK))):
        if getattr(now, what) < getattr(then, what) - less:
            found.append(f"{what} {getattr(now, what)} facts, it was {getattr(then, what)}")
    if lost := sorted(set(now.lost) - set(then.lost)):
        if now.kept < then.kept:
            found.append(f"lost: {'; '.join(lost)}")
    if now.stale > then.stale:
        found.append(f"{now.stale} facts are out of date, it was {then.stale}")
    if now.invented > then.invented:
        found.append(f"made up: {', '.join(score.invented)}")
    if now.tokens_after > then.tokens_after * MAX_TOKEN_GROWTH:
        found.append(f"{now.tokens_after} tokens are left, it was {then.tokens_after}")
    return found


def describe_trouble(score: CompressionScore) -> str:
    """Describe what is wrong with a score apart from lost facts. Empty if nothing is."""
    if not score.same_session:
        return "THE SESSION CHANGED"
    if score.broken:
        return f"the audit says {score.broken[0]}"
    if not score.is_sound:
        return f"compressed {score.compressions} times" + (f": {score.refused[-1]}" if score.refused else "")
    return ""


# -- a table -----------------------------------------------------------------------------------------------------------


def format_score_rows(scores: Sequence[CompressionScore]) -> list[tuple[str, ...]]:
    """Return a row for each score, and one for all scores with the same number of compressions."""
    lines = [_format_row(score.conversation, score.asked, [score]) for score in scores]
    for asked in dict.fromkeys(score.asked for score in scores):
        same = [score for score in scores if score.asked == asked]
        if len(same) > 1:
            lines.append(_format_row("together", asked, same))
    return lines


def format_kind_rows(scores: Sequence[CompressionScore]) -> list[tuple[str, ...]]:
    """Return how many facts of each kind were kept, for each number of compressions."""
    kinds = sorted({outcome.kind for score in scores for outcome in score.outcomes})
    columns = list(dict.fromkeys(score.asked for score in scores))
    lines = []
    for kind in kinds:
        cells = []
        for asked in columns:
            these = [o for s in scores if s.asked == asked for o in s.outcomes if o.kind == kind]
            cells.append(_format_share(sum(o.kept for o in these), len(these)))
        lines.append((kind, *cells))
    return lines


def _format_row(name: str, asked: str, scores: Sequence[CompressionScore]) -> tuple[str, ...]:
    facts = sum(len(score.outcomes) for score in scores)
    before, after = sum(s.tokens_before for s in scores), sum(s.tokens_after for s in scores)
    invented = sum(len(score.invented) for score in scores)
    usd = sum(score.usd for score in scores)
    cost = f"${usd:.4f}" if usd else f"{sum(s.read + s.written for s in scores):,} tok"
    return (
        name,
        asked if asked != "auto" else f"auto ({sum(score.compressions for score in scores)})",
        _format_share(sum(score.count_outcomes("kept") for score in scores), facts),
        _format_share(sum(score.kept_compressed for score in scores), sum(score.compressed for score in scores)),
        _format_share(sum(score.count_outcomes("found") for score in scores), facts),
        str(sum(score.count_outcomes("stale") for score in scores) or "-"),
        str(invented or "-"),
        f"{before:,} → {after:,}",
        f"{after / before:.0%}" if before else "-",
        cost,
        f"{sum(score.seconds for score in scores):.2f} s",
        next((text for score in scores if (text := describe_trouble(score))), ""),
    )


def _format_share(part: int, whole: int) -> str:
    return f"{part}/{whole} {part / whole:.0%}" if whole else "-"


def convert_to_json(scores: Sequence[CompressionScore]) -> list[dict[str, Any]]:
    """Return every field of the scores for the JSON output."""
    return [
        {
            **msgspec.to_builtins(score),
            **msgspec.to_builtins(make_baseline_score(score)),
            "made_up": score.invented,
            "sound": score.is_sound,
        }
        for score in scores
    ]


# -- a plot ------------------------------------------------------------------------------------------------------------

_PLOT_COLOURS: Final = ("#2f6f8f", "#c2703d", "#6b8f47", "#7a5c99")
_LEFT, _WIDE, _BAR = 210, 420, 14


def render_plot(scores: Sequence[CompressionScore]) -> str:
    """Return an SVG: for each conversation the share of facts kept (bars) and the size that is left (ticks)."""
    series = list(dict.fromkeys(score.asked for score in scores))
    names = list(dict.fromkeys(score.conversation for score in scores))
    height = 70 + len(names) * (len(series) * _BAR + 12)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDE + 80}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="12" y="20" font-size="14">Facts kept after '
        f"compression by {escape(scores[0].model if scores else '')}; the tick is the size that is left</text>",
    ]
    for n, asked in enumerate(series):
        colour = _PLOT_COLOURS[n % len(_PLOT_COLOURS)]
        x = _LEFT + n * 130
        label = "auto" if asked == "auto" else f"{asked} compression{'s' if asked != '1' else ''}"
        parts.append(f'<rect x="{x}" y="30" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 15}" y="40">{label}</text>')
    y = 56
    for name in names:
        parts.append(f'<text x="{_LEFT - 8}" y="{y + _BAR}" text-anchor="end">{escape(name[:32])}</text>')
        for score in scores:
            if score.conversation == name:
                parts.append(_render_bar(score, y, _PLOT_COLOURS[series.index(score.asked) % len(_PLOT_COLOURS)]))
                y += _BAR
        y += 12
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _render_bar(score: CompressionScore, y: int, colour: str) -> str:
    kept = score.count_outcomes("kept") / max(1, len(score.outcomes))
    left = score.tokens_after / max(1, score.tokens_before)
    tick = _LEFT + min(1.0, left) * _WIDE
    return (
        f'<rect x="{_LEFT}" y="{y}" width="{kept * _WIDE:.1f}" height="{_BAR - 3}" fill="{colour}"/>'
        f'<line x1="{tick:.1f}" x2="{tick:.1f}" y1="{y - 1}" y2="{y + _BAR - 2}" stroke="black" stroke-width="2"/>'
        f'<text x="{_LEFT + _WIDE + 8}" y="{y + _BAR - 4}">{kept:.0%}</text>'
    )
