"""Backups of a store in a file: made while it is in use, listed and pruned. They contain neither the configuration nor
secrets, nor the search index, which is rebuilt from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from everhold.errors import Refused
from everhold.infra.backup_files import find_chain, format_time, list_backups, list_increments
from everhold.infra.home import publish_file
from everhold.ports.store_files import IncrementFile, RestorePlan, StoreCopy, SupportsFileCopies


class StoreBackups:
    """Makes backups of a store in a file, and removes old ones."""

    def __init__(self, directory: Path, *, files: SupportsFileCopies | None, now: Callable[[], float]) -> None:
        self.directory = directory
        self._files = files
        self._now = now

    async def make_backup(self, *, to: Path | None = None) -> StoreCopy:
        """Back up everything committed. A copy with contradictions is kept, too, and its name contains `.unsound`."""
        at = self._now()
        if self._files is None:
            raise Refused(
                "the store is on a PostgreSQL server, whose own tools make its backups",
                remedy="use pg_dump or the server's archive; see the guide `Run on PostgreSQL`",
            )
        made = await self._files.make_copy(to or self.directory / f"everhold-{format_time(at)}-0.db")
        if to is not None:
            return made
        end = ".db" if made.is_sound else ".unsound.db"
        name = made.path.name.removesuffix(".db").replace("-0", f"-{made.pos}", 1)
        return made._replace(path=made.path.rename(made.path.with_name(name + end)))

    def prune(self, keep: int) -> list[Path]:
        """Delete all but the newest `keep` sound backups. Unsound ones stay, so that an operator can examine them."""
        old = [backup.path for backup in list_backups(self.directory) if backup.is_sound][:-keep]
        for path in old:
            path.unlink(missing_ok=True)
        oldest = min((backup.pos for backup in list_backups(self.directory) if backup.is_sound), default=0)
        for it in list_increments(self.directory):
            if it.after_pos < oldest:  # nothing is left that it continues
                it.path.unlink(missing_ok=True)
        return old

    async def make_increment(self) -> IncrementFile | None:
        """Copy what was committed after the last copy; None if nothing was, or there is no backup to continue."""
        backups = [backup for backup in list_backups(self.directory) if backup.is_sound]
        if self._files is None or not backups:
            return None
        base = max(backups, key=lambda backup: backup.pos)
        earlier, chain = list_increments(self.directory), find_chain(self.directory, base.pos)
        after = chain[-1].upto_pos if chain else base.pos
        rows = chain[-1].blob_row if chain else self._files.read_last_blob_row(base.path)
        partial = self.directory / "increment.partial"
        made = await self._files.write_increment(
            partial, after_pos=after, recent_pos=earlier[-1].after_pos if earlier else after, blob_row=rows
        )
        if made is None:
            partial.unlink(missing_ok=True)
            return None
        at = self._now()
        name = f"increment-{made.after_pos}-{made.upto_pos}-{made.blob_row}-{format_time(at)}.db"
        path = publish_file(partial, self.directory / name)
        return IncrementFile(path, made.after_pos, made.upto_pos, made.blob_row, at)

    def find_newest_pos(self) -> int:
        """The last pos of the newest sound backup, -1 if there is none."""
        return max((backup.pos for backup in list_backups(self.directory) if backup.is_sound), default=-1)

    def get_seconds_until_due(self, every_hours: float) -> float:
        """Seconds until the next backup is due."""
        newest = max((backup.at for backup in list_backups(self.directory)), default=None)
        now = self._now()
        if newest is None or newest > now:  # there is none yet, or the clock jumped
            return 0.0
        return max(0.0, newest + every_hours * 3600 - now)


def list_copies(directory: Path) -> list[dict[str, Any]]:
    """The backups in `directory` as users see them, oldest first."""
    return [
        {
            "path": str(backup.path),
            "at": backup.at,
            "pos": backup.pos,
            "bytes": backup.path.stat().st_size,
            "sound": backup.is_sound,
        }
        for backup in list_backups(directory)
    ]


def render_copy(made: StoreCopy, gone: Sequence[Path] = ()) -> dict[str, Any]:
    return {
        "path": str(made.path),
        "bytes": made.size_bytes,
        "pos": made.pos,
        "sessions": made.sessions,
        "entries": made.entries,
        "sound": made.is_sound,
        "wrong": made.contradictions,
        "broken": made.broken_promises,
        "removed": [str(path) for path in gone],
    }


def render_restore_plan(what: RestorePlan) -> dict[str, Any]:
    return {
        "source": str(what.source),
        "pos": what.upto_pos or what.last_pos,
        "increments": len(what.chain),
        "newest": what.source_copy.newest_at,
        "sessions": what.source_copy.sessions,
        "entries": what.source_copy.entries,
        "sound": what.source_copy.is_sound,
        "wrong": what.source_copy.contradictions,
        "broken": what.source_copy.broken_promises,
        "takes_back": what.lost_entries,
        "stays": ["schedules", "platform positions"] if what.is_rollback else [],
        "damage": what.damage,
    }
