"""`everhold store move`: moves the whole store to a PostgreSQL database, or back into a file."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from everhold.app import SystemRandomSource, load_home_settings
from everhold.assembly.stores import move_store_to_file, move_store_to_server
from everhold.cli.connect import find_home
from everhold.cli.render import CommandScreen, escape_control, format_count
from everhold.config.literals import has_url_password
from everhold.config.values import insert_password, is_postgres_url
from everhold.errors import HomeBusy, InvalidRequest
from everhold.infra.home import Home
from everhold.infra.home_lock import HomeLock

PASSWORD_ENV = "EVERHOLD_STORE_PASSWORD"


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    home = find_home(args).create()
    progress = _MoveProgressLine(screen)
    try:
        with _lock_home(home):
            result = _move(home, args.to, progress)
    finally:
        progress.clear_line()
    if screen.json:
        screen.print_json({**result, "set_aside": str(result["set_aside"] or "")})
        return 0
    moved = f"{format_count(result['sessions'], 'session')}, {format_count(result['entries'], 'entry', 'entries')}"
    screen.print_line(f"moved {moved} to {escape_control(result['target'])}, compared and audited")
    if result["set_aside"]:
        screen.print_line(f"  the previous file: {escape_control(str(result['set_aside']))}")
        screen.print_line("  → write `store: {url: …}` into config.yaml, then start the gateways")
    else:
        screen.print_line("  → remove `store` from config.yaml if this is the file of the home, then start the gateway")
    return 0


def _move(home: Home, to: str, progress: _MoveProgressLine) -> dict[str, Any]:
    settings, chance = load_home_settings(home, environ=os.environ).store, SystemRandomSource()
    if is_postgres_url(to):
        if has_url_password(to) or "password=" in to:
            raise InvalidRequest(
                "the address contains a password, which other users of this machine can see",
                remedy=f"leave it out, and set {PASSWORD_ENV}",
            )
        if settings.is_server:
            raise InvalidRequest("the store is on a server already", remedy="--to PATH moves it into a file")
        set_aside = home.backups / f"before-move-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.db"
        url = insert_password(to, os.environ.get(PASSWORD_ENV, ""))
        return move_store_to_server(home, url, set_aside=set_aside, chance=chance, report=progress)
    if not settings.is_server:
        raise InvalidRequest(
            f"{to!r} is not the address of a PostgreSQL database, and the store is a file already",
            remedy="for example --to postgresql://everhold@db.example/everhold",
        )
    return move_store_to_file(settings, Path(to).expanduser().absolute(), chance=chance, report=progress)


def _lock_home(home: Home) -> HomeLock:
    try:
        return HomeLock(home.lock).acquire()
    except HomeBusy as error:
        raise HomeBusy(error.message, remedy="end the gateway first: `everhold drain`; messages wait") from None


class _MoveProgressLine:
    """A temporary line that shows the progress, on terminals only."""

    def __init__(self, screen: CommandScreen) -> None:
        self.screen = screen

    def __call__(self, table: str, rows: int) -> None:
        if self.screen.err.isatty():
            self.screen.err.write(f"\r\x1b[K{table}: {rows:,} rows ")
            self.screen.err.flush()

    def clear_line(self) -> None:
        if self.screen.err.isatty():
            self.screen.err.write("\r\x1b[K")
