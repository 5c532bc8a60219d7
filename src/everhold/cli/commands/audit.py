"""`everhold audit`: checks the nine promises and prints the evidence and findings. Exits 1 if one is broken."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Final

from everhold.cli.connect import connect_for_reading
from everhold.cli.progress import ProgressLine
from everhold.cli.render import CommandScreen, format_count, format_one_line

MAX_FINDINGS: Final = 20
"""How many findings of one promise are printed. JSON contains all of them, and their whole texts."""
MAX_TEXT_COLUMNS: Final = 240
MAX_PLACE_COLUMNS: Final = 120


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    return asyncio.run(_run_command(args, screen))


async def _run_command(args: argparse.Namespace, screen: CommandScreen) -> int:
    progress = ProgressLine(screen, "checking every entry")
    async with connect_for_reading(args, screen) as calls:
        try:
            report = await calls.run_audit(args.id, progress)
        finally:
            progress.clear()
    if screen.json:
        screen.print_json(report)
    else:
        _print_report(screen, report)
    return 0 if report["holds"] else 1


def _print_report(screen: CommandScreen, report: dict[str, Any]) -> None:
    checked = report["checked"]
    looked = [format_count(checked["entries"], "entry", "entries"), format_count(checked["heard"], "message")]
    looked += [format_count(checked["turns"], "turn"), format_count(checked["compressions"], "compression")]
    screen.print_line(f"checked {format_count(report['sessions'], 'session')}: {', '.join(looked)}")
    for line in report["promises"]:
        found = [finding for finding in report["findings"] if finding["promise"] == line["promise"]]
        broken = [finding for finding in found if finding["level"] == "broken"]
        mark = screen.paint("holds ", "green") if line["holds"] else screen.paint("BROKEN", "red", "bold")
        doubts = screen.paint(f" · {format_count(line['doubts'], 'doubt')}", "yellow") if line["doubts"] else ""
        screen.print_line(f"{screen.paint(line['promise'], 'bold')}  {mark}  {line['text']}{doubts}")
        screen.print_line(screen.paint(f"      {line['evidence']}", "dim"))
        listed = broken + [finding for finding in found if finding["level"] != "broken"]
        for finding in listed[:MAX_FINDINGS]:
            where = f"{finding['session']}:{finding['seq']}" if finding["seq"] else finding["session"] or "the store"
            style = "red" if finding["level"] == "broken" else "yellow"
            screen.print_line(
                f"      {screen.paint(finding['level'], style)}  {format_one_line(where, most=MAX_PLACE_COLUMNS)}  "
                f"{format_one_line(finding['text'], most=MAX_TEXT_COLUMNS)}"
            )
        if len(listed) > MAX_FINDINGS:
            more = format_count(len(listed) - MAX_FINDINGS, "more finding")
            screen.print_line(screen.paint(f"      … {more}; `everhold audit --json` lists all", "dim"))
