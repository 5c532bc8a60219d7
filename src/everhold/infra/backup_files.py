"""The names of the files in a backup directory. Nothing here opens one of them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from everhold.infra.home import Home
from everhold.ports.store_files import BackupFile, IncrementFile

_BACKUP_NAME: Final = re.compile(r"everhold-(\d{8}T\d{6}Z)-(\d+)(?:-\d+)?(\.unsound)?\.db")
_INCREMENT_NAME: Final = re.compile(r"increment-(\d+)-(\d+)-(\d+)-(\d{8}T\d{6}Z)\.db")
_TIME_FORMAT: Final = "%Y%m%dT%H%M%SZ"


def choose_directory(home: Home, directory: str) -> Path:
    """The directory of the backups. A configured one must exist, because an unmounted disk must not be created anew."""
    if not directory:
        return home.backups
    path = Path(directory).expanduser()
    return path if path.is_absolute() else home.path / path


def list_increments(directory: Path) -> list[IncrementFile]:
    """The increments in `directory`, in the order of the log."""
    found = []
    for path in directory.glob("increment-*.db"):
        named = _INCREMENT_NAME.fullmatch(path.name)
        if named is not None and (at := _find_time(named[4])) is not None:
            found.append(IncrementFile(path, int(named[1]), int(named[2]), int(named[3]), at))
    return sorted(found, key=lambda it: (it.after_pos, it.upto_pos))


def find_chain(increments: Iterable[IncrementFile], pos: int) -> list[IncrementFile]:
    """Those of the `increments`, in the order of the log, that continue a copy which ends at `pos`, without a gap."""
    chain: list[IncrementFile] = []
    for it in increments:
        if it.after_pos <= pos < it.upto_pos:
            chain.append(it)
            pos = it.upto_pos
    return chain


def list_backups(directory: Path) -> list[BackupFile]:
    """The backups in `directory`, oldest first. Copies that an upgrade or a restore set aside are not among them."""
    found = []
    for path in directory.glob("everhold-*.db"):
        named = _BACKUP_NAME.fullmatch(path.name)
        if named is not None and (at := _find_time(named[1])) is not None:
            found.append(BackupFile(path, at, int(named[2]), not named[3]))
    return sorted(found, key=lambda backup: (backup.at, backup.path.name))


def identify_file(path: Path) -> tuple[int, ...]:
    """Return values that change when a file is replaced or written to; none if there is no file."""
    try:
        state = path.stat()
    except OSError:
        return ()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


def list_set_aside(directory: Path) -> list[Path]:
    """The copies of replaced stores that restores and upgrades left in `directory`. Only a person removes them."""
    found = (
        directory.glob(pattern)
        for pattern in ("before-restore-*.db", "before-move-*.db", "*-before-[0-9]*.db", "damaged-*")
    )
    return sorted(path for paths in found for path in paths)


def _find_time(text: str) -> float | None:
    """Return the time in a name; None if there is no such time, because anybody can name a file."""
    try:
        return parse_time(text)
    except ValueError:
        return None


def parse_time(text: str) -> float:
    return datetime.datetime.strptime(text, _TIME_FORMAT).replace(tzinfo=datetime.UTC).timestamp()


def format_time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime(_TIME_FORMAT)
