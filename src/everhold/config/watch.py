"""Watch config.yaml, `.env` and persona files, and apply valid edits.

The watcher compares the results of `stat` and reads a file only after a change, so a message needs no file read. An
edit is loaded when the files have not changed for a moment, because editors write in several steps. While the files are
invalid or missing, the last good revision stays in force. Time and sleep are arguments. There is no thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from everhold.config.errors import ConfigError, ConfigProblem
from everhold.config.file_stamp import FileMark, compute_file_digest, read_file_mark
from everhold.config.loader import store_last_good
from everhold.config.settings import Settings
from everhold.infra.home import Home, read_file
from everhold.ports.log import EventLogger

POLL_SECONDS: Final = 0.5
SETTLE_SECONDS: Final = 0.2
"""How long files must be unchanged before they are read."""
MAX_SETTLE_SECONDS: Final = 2.0
"""How long a message waits for files that keep changing."""
CLOCK_GRANULARITY_SECONDS: Final = 2.5
"""Some file systems store times in steps of two seconds. An edit within the same step is found by reading once more."""

_UNSEEN: Final[FileMark] = FileMark()


class ConfigWatcher:
    """Keeps `settings` equal to the files, as long as they are valid."""

    def __init__(
        self,
        home: Home,
        settings: Settings,
        *,
        load: Callable[[], Settings],
        swap: Callable[[Settings], None],
        log: EventLogger,
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        mark: Callable[[Path], FileMark | None] = read_file_mark,
    ) -> None:
        """Start from `settings`. `load` reads the home again. `swap` is called with every later revision."""
        self.settings = settings
        self.refused: ConfigError | None = None
        """Why the present files were refused; None if they are in force."""
        self._home = home
        self._load = load
        self._swap = swap
        self._log = log
        self._monotonic = monotonic
        self._sleep = sleep
        self._mark = mark
        self._seen: dict[Path, FileMark | None] = {}
        self._digests: dict[Path, bytes] = {}
        self._unsettled: tuple[dict[Path, FileMark | None], float] | None = None
        self._recheck_at: float | None = None
        self._record_seen_files(settings)
        self._store_last_good()

    @property
    def compared(self) -> bool:
        """Whether the files were read once more after loading. From then on, files are read only after a change."""
        return self._recheck_at is None

    async def run(self) -> None:
        """Check the files twice a second, until cancelled."""
        while True:
            await self._sleep(self.check_files() or POLL_SECONDS)
            self.recheck_contents()

    async def get_fresh_settings(self) -> Settings:
        """Return the settings for a message that arrives now. An edit made before the message counts."""
        if wait := self.check_files():
            until = self._monotonic() + MAX_SETTLE_SECONDS
            while wait > 0 and self._monotonic() < until:
                await self._sleep(wait)
                wait = self.check_files()
        return self.settings

    def check_files(self) -> float:
        """Compare the files and load a settled change. Returns the seconds until it may be settled, 0 if none waits."""
        for path, mark in self._seen.items():
            if self._mark(path) != mark:
                break
        else:
            self._unsettled = None
            return 0.0
        marks = {path: self._mark(path) for path in self._seen}
        now = self._monotonic()
        if self._unsettled is None or self._unsettled[0] != marks:
            self._unsettled = (marks, now)
        rested = now - self._unsettled[1]
        if rested < SETTLE_SECONDS:
            return SETTLE_SECONDS - rested
        self.reload()
        return 0.0

    def recheck_contents(self) -> None:
        """Read the files once more some time after loading, to find an edit within the same step of a coarse clock."""
        if self._recheck_at is None or self._unsettled is not None or self._monotonic() < self._recheck_at:
            return
        self._recheck_at = None
        if any(_read_digest(path) != digest for path, digest in self._digests.items()):
            self.reload()

    def reload(self) -> None:
        """Load now. Callers that have just written a file use this, too."""
        self._unsettled = None
        try:
            settings = self._load()
            self._record_seen_files(settings)
            self._refuse_missing_files(settings)
        except ConfigError as error:
            self._record_seen_files(error)
            self._record_refusal(error)
        else:
            self._adopt_settings(settings)

    def _record_seen_files(self, read: Settings | ConfigError) -> None:
        """Record the state of the files when they were read. A later difference is an edit."""
        unread = {self._home.config, self._home.env} - set(read.seen)
        self._seen = {path: seen.mark for path, seen in read.seen.items()} | dict.fromkeys(unread, _UNSEEN)
        self._digests = {path: seen.digest for path, seen in read.seen.items()}
        self._recheck_at = self._monotonic() + CLOCK_GRANULARITY_SECONDS

    def _refuse_missing_files(self, settings: Settings) -> None:
        """Refuse files that were removed or emptied under a running gateway, because that is probably a mistake."""
        gone = [
            path
            for path in (self._home.config, self._home.env)
            if _has_content(self.settings, path) and not _has_content(settings, path)
        ]
        if gone:
            raise ConfigError([_build_gone_problem(path) for path in gone], seen=settings.seen)

    def _record_refusal(self, error: ConfigError) -> None:
        if self.refused is not None and str(self.refused) == str(error):
            return
        self.refused = error
        self._log.warning(
            "config.refused",
            problems=[str(problem) for problem in error.problems],
            in_force=self.settings.revision,
            remedy="correct the file; until then the last good revision stays in force",
        )

    def _adopt_settings(self, settings: Settings) -> None:
        mended, before = self.refused is not None, self.settings.revision
        changed = settings.revision != before
        if changed:
            self._swap(settings)
        self.settings = settings
        self.refused = None
        self._store_last_good()
        if changed or mended:
            disabled = [problem.disables for problem in settings.problems if problem.disables]
            self._log.info(
                "config.loaded", revision=settings.revision, before=before, changed=changed, disabled=disabled
            )

    def _store_last_good(self) -> None:
        try:
            store_last_good(self._home, self.settings)
        except OSError as error:
            self._log.warning(
                "config.save_failed",
                error=error,
                remedy="free disk space; until then --last-good starts an older revision",
            )


def _has_content(settings: Settings, path: Path) -> bool:
    """Whether this file had content when these settings were read."""
    seen = settings.seen.get(path)
    return seen is not None and seen.mark is not None and seen.mark.size > 0


def _build_gone_problem(path: Path) -> ConfigProblem:
    return ConfigProblem(
        "is missing or empty; its previous content stays in force",
        "restore the file, or restart everhold to run without it",
        file=str(path),
    )


def _read_digest(path: Path) -> bytes:
    try:
        return compute_file_digest(read_file(path))
    except ConfigError:
        return b""
