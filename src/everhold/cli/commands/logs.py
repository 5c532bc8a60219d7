"""`everhold logs`: shows the gateway's log lines, as text or JSON. Reads the file; needs no gateway."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

from everhold.cli.connect import find_home
from everhold.cli.render import CommandScreen, escape_control
from everhold.errors import NotFound
from everhold.telemetry.log_file import LOG_LEVELS, parse_line
from everhold.telemetry.logs import LogLevel, LogLine, render_text

POLL_SECONDS: Final = 0.2
_STYLES: Final = {"warning": ("yellow",), "error": ("red",), "debug": ("dim",)}


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    path = find_home(args).logs / "everhold.log"
    if not path.exists() and not args.follow:
        raise NotFound(f"there is no {path}", remedy="`everhold up` writes it")
    try:
        for text in _follow_lines(path, last=args.lines, follow=args.follow):
            _print_line(screen, text, as_json=screen.json or args.log == "json")
    except KeyboardInterrupt:
        if not args.follow:
            raise
    return 0


def _print_line(screen: CommandScreen, text: str, *, as_json: bool) -> None:
    line = parse_line(text)
    if as_json:
        print(json.dumps(line, ensure_ascii=False, separators=(",", ":")), file=screen.out, flush=True)
        return
    level = str(line.get("level", ""))
    if text.startswith("{"):
        rest = {key: value for key, value in line.items() if key not in ("at", "level", "event", "trace")}
        known: LogLevel = level if level in LOG_LEVELS else "info"
        text = render_text(
            LogLine(str(line.get("at")), known, str(line.get("event")), rest, str(line.get("trace") or ""))
        )
    print(screen.paint(escape_control(text), *_STYLES.get(level, ())), file=screen.out, flush=True)


def _follow_lines(path: Path, *, last: int, follow: bool) -> Iterator[str]:
    """Yield the last lines of the file and, with `follow`, new lines, also after the file was rotated."""
    file: TextIO | None = None
    try:
        if path.exists():
            file = path.open(encoding="utf-8", errors="backslashreplace")
            yield from (line.rstrip("\n") for line in deque(file, maxlen=last))
        rest = ""
        while follow:
            piece = file.readline() if file is not None else ""
            if piece.endswith("\n"):
                yield rest + piece.rstrip("\n")
                rest = ""
                continue
            rest += piece
            if piece:
                continue
            if path.exists() and (file is None or not os.path.samestat(os.fstat(file.fileno()), path.stat())):
                if file is not None:
                    file.close()
                file = path.open(encoding="utf-8", errors="backslashreplace")
                continue
            time.sleep(POLL_SECONDS)
    finally:
        if file is not None:
            file.close()
