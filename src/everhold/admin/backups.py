"""Backups of a store in a file: made while it is in use, listed and pruned. They contain neither the configuration nor
secrets, nor the search index, which is rebuilt from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from everhold.errors import Refused
from everhold.infra.backup_files import find_chain, format_time, identify_file, list_backups, list_increments
from everhold.infra.home import publish_file
from everhold.ports.store_files import CopyEnd, IncrementFile, RestorePlan, StoreCopy, SupportsFileCopies

MAX_CHECKED_FILES: Final = 1_000


class StoreBackups:
    """Makes backups of a store in a file, and removes old ones."""

    def __init__(self, directory: Path, *, files: SupportsFileCopies | None, now: Callable[[], float]) -> None:
        self.directory = directory
        self._files = files
        self._now = now
        self._checked: dict[Path, tuple[tuple[int, ...], CopyEnd | None]] = {}
        """What is known of the files that have the names of copies. A file that changed is looked at again."""

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
        """Delete all but the newest `keep` sound backups. Unsound ones stay, so that an operator can examine them.

        A name with a future time neither counts nor is deleted, because otherwise such files would replace all others.
        """
        old = [it.path for it in list_backups(self.directory) if it.is_sound and it.at <= self._now()][:-keep]
        for path in old:
            path.unlink(missing_ok=True)
        oldest = min((backup.pos for backup in list_backups(self.directory) if backup.is_sound), default=0)
        for it in list_increments(self.directory):
            if it.after_pos < oldest:  # nothing is left that it continues
                it.path.unlink(missing_ok=True)
        return old

    async def make_increment(self) -> IncrementFile | None:
        """Copy what was committed after the last copy; None if nothing was, or there is no backup to continue."""
        if self._files is None:
            return None
        earlier = list_increments(self.directory)
        last = await self._find_last_copy(earlier)
        if last is None:
            return None
        partial = self.directory / "increment.partial"
        made = await self._files.write_increment(
            partial,
            after_pos=last.pos,
            recent_pos=max((it.after_pos for it in earlier if it.upto_pos <= last.pos), default=last.pos),
            blob_row=last.blob_row,
        )
        if made is None:
            partial.unlink(missing_ok=True)
            return None
        at = self._now()
        name = f"increment-{made.after_pos}-{made.upto_pos}-{made.blob_row}-{format_time(at)}.db"
        path = publish_file(partial, self.directory / name)
        return IncrementFile(path, made.after_pos, made.upto_pos, made.blob_row, at)

    async def _find_last_copy(self, earlier: Sequence[IncrementFile]) -> CopyEnd | None:
        """Return where the newest backup of this store ends, with its increments. Files that only have the name of one
        are left out, so that a name cannot stop new increments.
        """
        ends = [await self._find_copy_end(it.path) for it in list_backups(self.directory) if it.is_sound]
        base = max((end for end in ends if end is not None), default=None)
        usable = list(earlier)
        while base is not None and (chain := find_chain(usable, base.pos)):
            end = await self._find_copy_end(chain[-1].path)
            if end is not None and end.pos == chain[-1].upto_pos:
                return CopyEnd(end.pos, chain[-1].blob_row)
            usable.remove(chain[-1])
        return base

    async def _find_copy_end(self, path: Path) -> CopyEnd | None:
        """Return where a copy of this store ends. A file is read again when it has changed."""
        assert self._files is not None
        identity = identify_file(path)
        known = self._checked.get(path)
        if known is None or known[0] != identity:
            if len(self._checked) >= MAX_CHECKED_FILES:
                self._checked.clear()
            known = self._checked[path] = identity, await self._files.find_copy_end(path)
        return known[1]

    def find_newest_pos(self) -> int:
        """The last pos of the newest sound backup, -1 if there is none."""
        return max((backup.pos for backup in list_backups(self.directory) if backup.is_sound), default=-1)

    def get_seconds_until_due(self, every_hours: float) -> float:
        """Seconds until the next backup is due."""
        now = self._now()
        # a time in the future is of another clock, or anybody's
        newest = max((it.at for it in list_backups(self.directory) if it.at <= now), default=None)
        return 0.0 if newest is None else max(0.0, newest + every_hours * 3600 - now)


def list_copies(directory: Path) -> list[dict[str, Any]]:
    """The backups in `directory` as users see them, oldest first."""
    return [
        {
            "path": str(backup.path),
            "at": backup.at,
            "pos": backup.pos,
            "bytes": backup.path.lstat().st_size,
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
