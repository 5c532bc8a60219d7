"""`everhold import`: brings another agent's past in, or a folder of Markdown. Exits 1 if not everything was read."""

from __future__ import annotations

import argparse
import asyncio
import io
import os
from pathlib import Path
from typing import Final

from everhold.app import App, SystemClock, local_user, settings_of
from everhold.cli.commands import memory
from everhold.cli.reach import home_of, tell_upgrade
from everhold.cli.render import Screen, count, one_line, safe
from everhold.errors import HomeBusy, Misuse
from everhold.imports.run import Job, Report, foreign, report_json, run as bring
from everhold.logs import open_log

SHOWN: Final = 20
EVERY: Final = 500
"""Messages between two looks at the progress."""


def run(args: argparse.Namespace, screen: Screen) -> int:
    if args.session:
        return _into_session(args, screen)
    report = asyncio.run(_run(args, screen))
    if screen.json:
        screen.show(report_json(report))
    else:
        _show(screen, report)
    return 0 if report.complete else 1


def _into_session(args: argparse.Namespace, screen: Screen) -> int:
    """Markdown for those who are in one conversation, and the memories it has: that is a command to a gateway."""
    if foreign(Path(args.path).expanduser()):
        raise Misuse("a home is imported with all its sessions", remedy="leave --session out")
    args.action = "import"
    return memory.run(args, screen)


async def _run(args: argparse.Namespace, screen: Screen) -> Report:
    home = home_of(args)
    source = Path(args.path).expanduser()  # noqa: ASYNC240  # no file is touched
    progress = _Progress(screen)
    if args.dry_run:
        settings = settings_of(home, environ=os.environ)
        job = Job(source, home, settings, os.environ, local_user(), agent=args.agent)
        try:
            return await bring(job, progress=progress)
        finally:
            progress.end()
    home.create()
    settings = settings_of(home, environ=os.environ)
    log = open_log(clock=SystemClock(), stream=io.StringIO())
    try:
        app = App(home, settings, log=log, environ=os.environ)
    except HomeBusy as error:
        raise HomeBusy(
            error.message,
            remedy="stop the gateway first; what it is told meanwhile waits at its platform"
            + ("" if foreign(source) else " (or --session ID: Markdown, told to the gateway)"),
        ) from None
    tell_upgrade(app, screen)
    try:
        job = Job(
            source, home, settings, os.environ, local_user(), agent=args.agent, store=app.store, now=app.clock.now()
        )
        return await bring(job, progress=progress)
    except asyncio.CancelledError:
        progress.end()
        screen.note("interrupted; the same command goes on from here")
        raise
    finally:
        progress.end()
        await app.stop(seconds=0)


class _Progress:
    """A line that goes away again, on terminals only."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.last = 0

    def __call__(self, done: int, of: int) -> None:
        if self.screen.err.isatty() and done - self.last >= EVERY:
            self.last = done
            self.screen.err.write(f"\r{done:,} of {of:,} messages ")
            self.screen.err.flush()

    def end(self) -> None:
        if self.last:
            self.screen.err.write("\r\x1b[K")
            self.screen.err.flush()


def _show(screen: Screen, report: Report) -> None:
    would = "would import" if report.dry else "imported"
    screen.say(screen.paint(f"{would} {safe(report.source)}", "bold"))
    for name, tally in report.agents.items():
        rows = report.rows.get(name, 0)
        if rows:
            screen.say(
                f"  {screen.paint(one_line(name), 'bold')}: {count(tally.messages, 'message')} in "
                f"{count(tally.conversations, 'conversation')}, from {count(tally.sessions, 'session')} there"
            )
            more = (
                (tally.known, "known already"),
                (tally.copies, "copies left out"),
                (tally.summaries, "summaries"),
                (tally.marks, "marks left out"),
                (tally.undone, "undone"),
                (tally.branches, "branched off"),
                (tally.restored, "archived unread there, back in the conversation here"),
            )
            screen.say("    " + ", ".join(f"{number:,} {what}" for number, what in more if number))
            sure = tally.accounted == rows
            mark = screen.paint("✓", "green") if sure else screen.paint("!", "red", "bold")
            screen.say(f"    {mark} {tally.accounted:,} of {rows:,} rows accounted for")
        for remark in tally.remarks[:SHOWN]:
            screen.say(f"    {one_line(remark)}")
    for name, number in report.facts.items():
        if number:
            verb = "would be remembered" if report.dry else "remembered"
            screen.say(f"  {one_line(name)}: {count(number, 'entry', 'entries')} {verb}")
    _list(screen, "settings", report.settings.written)
    _list(screen, "kept as they are here", report.settings.kept)
    _list(screen, "not written", report.settings.refused)
    _list(screen, "not understood, look at them yourself", report.settings.unknown)
    for trouble in report.troubles:
        screen.say(f"{screen.paint('!', 'red', 'bold')} {one_line(trouble)}")
    if report.dry:
        screen.say("nothing was changed; without --dry-run it is done")
        return
    accounts = [key for key in report.settings.written if key.startswith("platforms.")]
    if accounts:
        screen.say(
            "platform accounts are off: two that listen with one token take each other's messages. Once the other"
        )
        screen.say(f"gateway has stopped: everhold config set {one_line(accounts[0])}.enabled true")
    if report.before:
        screen.say(f"`everhold restore --at {report.before} --yes` takes it back")
    screen.say("next: everhold audit, then everhold up")


def _list(screen: Screen, title: str, lines: list[str]) -> None:
    if lines:
        screen.say(f"  {title}:")
        for line in lines[:SHOWN]:
            screen.say(f"    {one_line(line)}")
        if len(lines) > SHOWN:
            screen.say(f"    and {len(lines) - SHOWN} more; --json lists them")
