"""Formats output for a terminal: colours, tables and times. Control characters in texts are escaped."""

from __future__ import annotations

import json as json_
import os
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TextIO

from everhold.core.wording import describe_count

_COLOUR_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}
_UNSAFE_PATTERN: Final = {
    code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
} | {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""Characters that control a terminal or change the writing direction, with their escaped form."""


def escape_control(text: str) -> str:
    """Return `text` with its control characters escaped. A prefix of `text` gives a prefix of the result."""
    return text.translate(_UNSAFE_PATTERN)


def format_one_line(text: str, *, most: int = 0) -> str:
    """Return `text` on one line, cut to `most` columns if given."""
    text = " ".join(escape_control(text).split())
    return truncate_to_columns(text, most) if most else text


def measure_width(text: str) -> int:
    """Return the number of columns that a terminal needs for `text`."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) != 0 for char in text)


def truncate_to_columns(text: str, columns: int) -> str:
    if measure_width(text) <= columns:
        return text
    while text and measure_width(text) > columns - 1:
        text = text[:-1]
    return text + "…"


def format_time(at: float) -> str:
    """Return a time of the log in the local time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def format_duration(seconds: float) -> str:
    """Return a duration in its largest unit."""
    seconds = max(0.0, seconds)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


format_count = describe_count


@dataclass(frozen=True)
class TextPainter:
    """Adds colours to text, if enabled."""

    enabled: bool

    def __call__(self, text: str, *styles: str) -> str:
        if not self.enabled or not styles or not text:
            return text
        return f"\x1b[{';'.join(_COLOUR_CODES[style] for style in styles)}m{text}\x1b[0m"


@dataclass(frozen=True)
class CommandScreen:
    """The output of a command: results go to `out`, remarks to `err`."""

    out: TextIO
    err: TextIO
    json: bool
    paint: TextPainter
    paint_err: TextPainter
    dumb: bool = False
    """The terminal does not interpret control sequences."""

    @classmethod
    def from_streams(cls, out: TextIO, err: TextIO, *, environ: Mapping[str, str], json: bool) -> CommandScreen:
        dumb = environ.get("TERM") == "dumb"
        plain = bool(environ.get("NO_COLOR")) or dumb
        for stream in (out, err):
            reconfigure: Callable[..., None] | None = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")
        return cls(
            out=out,
            err=err,
            json=json,
            paint=TextPainter(not plain and out.isatty()),
            paint_err=TextPainter(not plain and err.isatty()),
            dumb=dumb,
        )

    @property
    def columns(self) -> int:
        """The width of the terminal; 0 if the output is not a terminal, so that nothing is cut."""
        if not self.out.isatty():
            return 0
        try:
            return os.get_terminal_size(self.out.fileno()).columns
        except OSError:
            return 80

    def print_line(self, text: str = "") -> None:
        print(text, file=self.out)

    def print_note(self, text: str) -> None:
        print(text, file=self.err)

    def print_json(self, value: Any) -> None:
        """Print a result as JSON."""
        print(json_.dumps(value, ensure_ascii=False, indent=2), file=self.out)

    def print_failure(self, what: str, remedy: str) -> None:
        """Print what failed, and the remedy."""
        self.out.flush()
        print(f"{self.paint_err('everhold:', 'red', 'bold')} {escape_control(what)}", file=self.err)
        if remedy:
            print(f"  → {escape_control(remedy)}", file=self.err)

    def print_table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], *, styles: Sequence[str] = ()) -> None:
        """Print a table. Its last column is cut at the terminal's edge."""
        widths = [max(measure_width(row[i]) for row in (headers, *rows)) for i in range(len(headers))]
        last_width = self.columns - sum(widths[:-1]) - 2 * (len(widths) - 1)
        self._print_row([header.upper() for header in headers], widths, last_width, ["dim"] * len(headers))
        for row in rows:
            self._print_row(row, widths, last_width, styles)

    def _print_row(self, row: Sequence[str], widths: Sequence[int], last_width: int, styles: Sequence[str]) -> None:
        cells = []
        for index, (cell, wide) in enumerate(zip(row, widths, strict=True)):
            style = [styles[index]] if index < len(styles) and styles[index] else []
            if index == len(row) - 1:
                text = truncate_to_columns(cell, max(last_width, 20)) if self.columns else cell
                cells.append(self.paint(text, *style))
            else:
                cells.append(self.paint(cell, *style) + " " * (wide - measure_width(cell)))
        self.print_line("  ".join(cells).rstrip())
