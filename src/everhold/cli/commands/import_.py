"""`everhold import`: imports a hermes-agent home, or Markdown. Exits 1 if something could not be read, or if the
owner of the memory files is not clear.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
from pathlib import Path
from typing import Final

from everhold.app import GatewayApp, SystemClock, get_local_user, load_home_settings
from everhold.cli.commands import memory
from everhold.cli.connect import find_home, print_upgrade
from everhold.cli.render import CommandScreen, escape_control, format_count, format_one_line
from everhold.errors import HomeBusy, InvalidRequest
from everhold.hermes.importer.run import (
    ImportJob,
    ImportReport,
    convert_report_to_json,
    is_hermes_source,
    run_import,
)
from everhold.telemetry.logs import open_log

MAX_SHOWN_LINES: Final = 20
PROGRESS_EVERY_MESSAGES: Final = 500
"""The number of messages between two updates of the progress line."""


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    if args.session:
        return _import_into_session(args, screen)
    report = asyncio.run(_run_import(args, screen))
    if screen.json:
        screen.print_json(convert_report_to_json(report))
    else:
        _print_report(screen, report)
    return 0 if report.is_complete else 1


def _import_into_session(args: argparse.Namespace, screen: CommandScreen) -> int:
    """Import Markdown for the people and memories of one session, like `everhold memory import`."""
    if is_hermes_source(Path(args.path).expanduser()):
        raise InvalidRequest("a hermes-agent home is imported with all its sessions", remedy="leave --session out")
    if args.owner:
        raise InvalidRequest("--session already says whose memory it is", remedy="leave --owner or --session out")
    args.action = "import"
    return memory.run(args, screen)


async def _run_import(args: argparse.Namespace, screen: CommandScreen) -> ImportReport:
    home = find_home(args)
    source = Path(args.path).expanduser()  # noqa: ASYNC240  # no file is touched
    progress = _ImportProgressLine(screen)
    if args.dry_run:
        settings = load_home_settings(home, environ=os.environ)
        job = ImportJob(source, home, settings, os.environ, get_local_user(), agent=args.agent, owner=args.owner)
        try:
            return await run_import(job, progress=progress)
        finally:
            progress.clear_line()
    home.create()
    settings = load_home_settings(home, environ=os.environ)
    log = open_log(clock=SystemClock(), stream=io.StringIO())
    try:
        app = await GatewayApp.open(home, settings, log=log, environ=os.environ)
    except HomeBusy as error:
        raise HomeBusy(
            error.message,
            remedy="stop the gateway first; messages wait at their platforms"
            + ("" if is_hermes_source(source) else " (or import Markdown with --session ID through the gateway)"),
        ) from None
    print_upgrade(app, screen)
    try:
        job = ImportJob(
            source,
            home,
            settings,
            os.environ,
            get_local_user(),
            agent=args.agent,
            store=app.store,
            now=app.clock.now(),
            owner=args.owner,
        )
        return await run_import(job, progress=progress)
    except asyncio.CancelledError:
        progress.clear_line()
        screen.print_note("interrupted; the same command continues from here")
        raise
    finally:
        progress.clear_line()
        await app.stop(seconds=0)


class _ImportProgressLine:
    """A temporary line that shows the progress, on terminals only."""

    def __init__(self, screen: CommandScreen) -> None:
        self.screen = screen
        self.last = 0

    def __call__(self, done: int, of: int) -> None:
        if self.screen.err.isatty() and done - self.last >= PROGRESS_EVERY_MESSAGES:
            self.last = done
            self.screen.err.write(f"\r{done:,} of {of:,} messages ")
            self.screen.err.flush()

    def clear_line(self) -> None:
        if self.last:
            self.screen.err.write("\r\x1b[K")
            self.screen.err.flush()


def _print_report(screen: CommandScreen, report: ImportReport) -> None:
    would = "would import" if report.dry else "imported"
    screen.print_line(screen.paint(f"{would} {escape_control(report.source)}", "bold"))
    for name, tally in report.agents.items():
        rows = report.rows.get(name, 0)
        if rows:
            screen.print_line(
                f"  {screen.paint(format_one_line(name), 'bold')}: {format_count(tally.messages, 'message')} in "
                f"{format_count(tally.conversations, 'conversation')}, "
                f"from {format_count(tally.sessions, 'session')} there"
            )
            more = (
                (tally.known, "imported before"),
                (tally.copies, "copies left out"),
                (tally.summaries, "summaries"),
                (tally.marks, "marks left out"),
                (tally.undone, "undone"),
                (tally.branches, "branches"),
                (tally.restored, "archived unread there, restored to the conversation"),
            )
            screen.print_line("    " + ", ".join(f"{number:,} {what}" for number, what in more if number))
            sure = tally.accounted_rows == rows
            mark = screen.paint("✓", "green") if sure else screen.paint("!", "red", "bold")
            screen.print_line(f"    {mark} {tally.accounted_rows:,} of {rows:,} rows accounted for")
        for remark in tally.remarks[:MAX_SHOWN_LINES]:
            screen.print_line(f"    {format_one_line(remark)}")
    for name, number in report.facts.items():
        if number:
            verb = "would be remembered" if report.dry else "remembered"
            count = format_count(number, "entry", "entries")
            screen.print_line(f"  {format_one_line(name)}: {count} {verb} for {format_one_line(report.owner)} alone")
    if report.facts_moved:
        verb = "would be moved" if report.dry else "moved"
        count = format_count(report.facts_moved, "entry", "entries")
        screen.print_line(f"  {count} of memory files {verb} from another person to {format_one_line(report.owner)}")
    _print_list(screen, "people in memory services", report.peers)
    _print_list(screen, "skills", report.skills)
    _print_list(screen, "schedules, which are paused (everhold schedules list)", report.schedules)
    _print_list(screen, "settings", report.settings.written)
    _print_list(screen, "already set here, not changed", report.settings.kept)
    _print_list(screen, "not written", report.settings.refused, most=None)
    _print_list(screen, "to set", report.settings.missing_keys, most=None)
    _print_list(screen, "left behind", [*report.settings.unknown, *report.left_behind], most=None)
    for trouble in report.troubles:
        screen.print_line(f"{screen.paint('!', 'red', 'bold')} {format_one_line(trouble)}")
    for command in report.commands[:MAX_SHOWN_LINES]:
        screen.print_line(f"    {format_one_line(command)}")
    if report.dry:
        screen.print_line("nothing was changed; repeat it without --dry-run")
        return
    accounts = [key for key in report.settings.written if key.startswith("platforms.")]
    if accounts:
        screen.print_line(
            "platform accounts are disabled, because two gateways with one token take each other's messages."
        )
        screen.print_line("after the other gateway has stopped:")
        for key in accounts:
            screen.print_line(f"    everhold config set {format_one_line(key)}.enabled true")
    if report.before:
        screen.print_line(f"`everhold restore --at {report.before} --yes` undoes the import")
    screen.print_line("next: everhold audit, then everhold up")


def _print_list(screen: CommandScreen, title: str, lines: list[str], *, most: int | None = MAX_SHOWN_LINES) -> None:
    if lines:
        screen.print_line(f"  {title}:")
        for line in lines[:most]:
            screen.print_line(f"    {format_one_line(line)}")
        if most is not None and len(lines) > most:
            screen.print_line(f"    and {len(lines) - most} more; --json lists them")
