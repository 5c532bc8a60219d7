"""`everhold audit`: the eight promises, each with what was looked at and what was found. Exits 1 if one is broken."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any, Final

from everhold.cli.progress import waiting
from everhold.cli.reach import looking
from everhold.cli.render import Screen, count, one_line

_IN_THE_LOG: Final = ("P1", "P2", "P3", "P4", "P5", "P6", "P8")
"""What can be seen in a log. That a change needs no restart (P7) cannot."""


def run(args: argparse.Namespace, screen: Screen) -> int:
    return asyncio.run(_run(args, screen))


async def _run(args: argparse.Namespace, screen: Screen) -> int:
    async with looking(args, screen) as calls, waiting(screen, "checking every entry"):
        report = await calls.run_audit(args.id)
    if screen.json:
        screen.show(report)
    else:
        _show(screen, report)
    return 0 if report["holds"] else 1


def _show(screen: Screen, report: dict[str, Any]) -> None:
    checked = report["checked"]
    looked = [count(checked["entries"], "entry", "entries"), count(checked["heard"], "message")]
    looked += [count(checked["turns"], "turn"), count(checked["compressions"], "compression")]
    screen.say(f"looked at {count(report['sessions'], 'session')}: {', '.join(looked)}")
    for line in report["promises"]:
        found = [finding for finding in report["findings"] if finding["promise"] == line["promise"]]
        broken = [finding for finding in found if finding["level"] == "broken"]
        mark = screen.paint("holds ", "green") if line["holds"] else screen.paint("BROKEN", "red", "bold")
        if line["promise"] not in _IN_THE_LOG:
            mark = screen.paint("unseen", "dim")
        doubts = screen.paint(f" · {count(line['doubts'], 'doubt')}", "yellow") if line["doubts"] else ""
        screen.say(f"{screen.paint(line['promise'], 'bold')}  {mark}  {line['text']}{doubts}")
        screen.say(screen.paint(f"      {line['evidence']}", "dim"))
        for finding in broken + [finding for finding in found if finding["level"] != "broken"]:
            where = f"{finding['session']}:{finding['seq']}" if finding["seq"] else finding["session"] or "the store"
            style = "red" if finding["level"] == "broken" else "yellow"
            screen.say(f"      {screen.paint(finding['level'], style)}  {where}  {one_line(finding['text'])}")
