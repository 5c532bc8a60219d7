"""The home: the directory of one gateway. Handles paths and file modes, not the content of files."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from everhold.config.errors import ConfigError, ConfigProblem
from everhold.errors import StoreError, StoreFull, StoreMissing

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
MAX_READ_BYTES: Final = 1 << 20
"""The size of the largest configuration file."""
MAX_LINES_BYTES: Final = 256 << 20
"""The size of the largest file of lines."""

_FULL_DISK_ERRNOS: Final = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)})
_HOME_ID: Final = re.compile(rb"[0-9a-f]{32}\n?")
_POSIX: Final = os.name == "posix"
_NOFOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_NONBLOCK: Final = getattr(os, "O_NONBLOCK", 0)
_CLOEXEC: Final = getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True, slots=True)
class Home:
    """The paths of a home, and checks that no other user can read or replace its files."""

    path: Path

    @classmethod
    def find(cls, given: str | os.PathLike[str] | None = None, *, environ: Mapping[str, str]) -> Home:
        """Return the home at `given` (from `--home`), else `$EVERHOLD_HOME`, else `~/.everhold`. Creates nothing."""
        text = os.fspath(given) if given else environ.get("EVERHOLD_HOME", "").strip() or "~/.everhold"
        try:
            path = Path(text).expanduser().absolute()
        except RuntimeError:
            raise ConfigError(
                [ConfigProblem(f"{text} needs a home directory", "set EVERHOLD_HOME or --home")]
            ) from None
        return cls(path)

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def last_good(self) -> Path:
        """The last valid configuration, for `up --last-good`."""
        return self.path / "config.last-good.yaml"

    @property
    def config_versions(self) -> Path:
        """Earlier texts of config.yaml that the API replaced."""
        return self.path / "config-versions"

    @property
    def env(self) -> Path:
        return self.path / ".env"

    @property
    def salt(self) -> Path:
        """Random bytes that key the digests of revisions, so that a digest reveals no secret."""
        return self.path / "revision.salt"

    @property
    def store(self) -> Path:
        return self.path / "everhold.db"

    @property
    def index(self) -> Path:
        return self.path / "index.db"

    @property
    def overview(self) -> Path:
        """What lists of sessions show, derived from the log."""
        return self.path / "overview.db"

    @property
    def models(self) -> Path:
        """The directory for models that run in this process. everhold never downloads into it."""
        return self.path / "models"

    @property
    def erasures(self) -> Path:
        return self.path / "erasures.log"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def id(self) -> Path:
        """A random name of this home. A copy has it, too. It exists as soon as the home has had a store."""
        return self.path / "home.id"

    @property
    def api_socket(self) -> Path:
        return self.path / "api.sock"

    @property
    def login_page(self) -> Path:
        """The page with the last login link, which `everhold open` gives to a browser."""
        return self.path / "login.html"

    @property
    def disk_reserve(self) -> Path:
        return self.path / "disk-reserve"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def backups(self) -> Path:
        return self.path / "backups"

    def create(self) -> Home:
        """Create missing directories, private to this user. Raises ConfigError if existing ones are not private."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for directory in (self.path, self.logs, self.backups):
                _make_directory(directory)
        except OSError as error:
            raise ConfigError(
                [
                    ConfigProblem(
                        f"{error.filename or self.path}: {error.strerror}", "choose another directory with --home"
                    )
                ]
            ) from error
        self.check_private()
        return self

    def check_private(self) -> None:
        """Raise ConfigError if other users can change this home. A home that does not exist yet is fine."""
        found = list(_find_trust_problems(self.path))
        for secret in (
            self.env,
            self.salt,
            self.lock,
            self.id,
            self.api_socket,
            self.store,
            self.index,
            self.overview,
            self.erasures,
        ):
            if secret.is_symlink():
                found.append(
                    ConfigProblem(
                        "is a symbolic link, which another user might redirect",
                        f"put the file itself there: cp --remove-destination {secret.resolve()} {secret}",
                        file=str(secret),
                    )
                )
        if found:
            raise ConfigError(found)


def ensure_home_id(home: Home, *, random_bytes: Callable[[int], bytes]) -> str:
    """Return the id of a home that has a store. Make it at the first time."""
    known = read_file(home.id)
    if known is not None and _HOME_ID.fullmatch(known):
        return known.decode().strip()
    made = random_bytes(16).hex()
    write_file(home.id, f"{made}\n".encode())
    return made


def require_store(home: Home) -> None:
    """Raise StoreMissing if this home had a store and has none. A new one would hide the loss."""
    if home.id.exists() and not home.store.exists():
        raise StoreMissing(
            f"{home.store} is gone, although this home had a store",
            remedy=f"bring the file back with everything beside it, or restore the last backup (`everhold restore`); "
            f"to begin with an empty store, delete {home.id}",
        )


def make_private_directory(path: Path) -> None:
    """Create a directory and its missing parents, private to this user. Existing ones keep their modes."""
    for directory in (*reversed(path.parents), path):
        _make_directory(directory)


def sync_path(path: Path) -> None:
    """Sync `path` to disk. Windows cannot sync directories, so nothing is done there."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_disk_space(directory: Path, size: int) -> None:
    """Raise StoreFull if `directory` has no space for `size` bytes."""
    if os.name == "nt":
        return
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    needed = int(size * 1.05) + (1 << 20)
    if free < needed:
        raise StoreFull(
            f"{directory} has {free >> 20} MB of free space, but {needed >> 20} MB are needed",
            remedy="free some space there",
        )


def publish_file(partial: Path, target: Path) -> Path:
    """Make a complete file visible under its name, on disk."""
    sync_path(partial)
    os.replace(partial, target)
    sync_path(target.parent)
    if not target.is_file():
        raise StoreError(f"{target} was not written")
    return target


def _make_directory(path: Path) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, DIRECTORY_MODE)


def _find_trust_problems(path: Path) -> list[ConfigProblem]:
    """Return why a home must not be used."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return []
    except OSError as error:
        return [
            ConfigProblem(f"cannot be used as a home: {error.strerror}", "name another with --home", file=str(path))
        ]
    if not stat.S_ISDIR(state.st_mode):
        return [ConfigProblem("is not a directory", "name another home with --home", file=str(path))]
    if not _POSIX:
        return []
    found = []
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        found.append(ConfigProblem("others may write to this home", f"chmod 700 {path}", file=str(path)))
    if os.geteuid() not in (0, state.st_uid):
        found.append(
            ConfigProblem(
                "this home belongs to another user", f"chown -R {os.geteuid()} {path}, or --home", file=str(path)
            )
        )
    return found


def read_file(path: Path, *, private: bool = False, limit: int = MAX_READ_BYTES) -> bytes | None:
    """Return the bytes of a regular file, None if there is none. `private` refuses links and files readable by others.

    Raises ConfigError. Never blocks on a pipe or a device in place of a file.
    """
    try:
        handle = os.open(path, os.O_RDONLY | _NONBLOCK | _CLOEXEC | (_NOFOLLOW if private else 0))
    except FileNotFoundError:
        if path.is_symlink():
            raise ConfigError([ConfigProblem("is a link without a target", f"rm {path}", file=str(path))]) from None
        return None
    except OSError as error:
        if private and path.is_symlink():
            raise ConfigError(
                [
                    ConfigProblem(
                        "is a symbolic link; secrets are read from regular files only",
                        f"cp --remove-destination {path.resolve()} {path}",
                        file=str(path),
                    )
                ]
            ) from None
        raise ConfigError(
            [ConfigProblem(f"cannot be read: {error.strerror}", f"ls -l {path}", file=str(path))]
        ) from error
    try:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            raise ConfigError([ConfigProblem("is not a file", f"ls -ld {path}", file=str(path))])
        if private and _POSIX and state.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError([ConfigProblem("others may read these secrets", f"chmod 600 {path}", file=str(path))])
        with open(handle, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(
            [ConfigProblem(f"cannot be read: {error.strerror}", f"ls -l {path}", file=str(path))]
        ) from error
    finally:
        os.close(handle)
    if len(data) > limit:
        raise ConfigError([ConfigProblem(f"is larger than {limit >> 10} KiB", "make it smaller", file=str(path))])
    return data


def write_file(path: Path, data: bytes, *, mode: int | None = FILE_MODE) -> None:
    """Replace a file atomically and durably. With `mode` None, the file keeps its mode."""
    if mode is None:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except FileNotFoundError:
            mode = FILE_MODE
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if _POSIX:
                os.fchmod(handle, mode)
            os.fsync(handle)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    if _POSIX:
        directory = os.open(path.parent, os.O_RDONLY | _CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def add_missing_lines(source: Path, target: Path, *, is_valid: Callable[[bytes], bool] = bool) -> int:
    """Add to a file those valid lines of another one that it does not have. Return how many were added."""
    if source == target:
        return 0
    present = set(_read_lines(target))
    missing = [it for it in dict.fromkeys(_read_lines(source)) if it.strip() and it not in present and is_valid(it)]
    if missing:
        known = target.read_bytes() if target.exists() else b""
        ended = known if not known or known.endswith(b"\n") else known + b"\n"
        write_file(target, ended + b"".join(line + b"\n" for line in missing))
    return len(missing)


def _read_lines(path: Path) -> list[bytes]:
    try:
        return (read_file(path, limit=MAX_LINES_BYTES) or b"").splitlines()
    except ConfigError as error:
        reason = "; ".join(problem.message for problem in error.problems)
        raise StoreError(f"{path} {reason}", remedy="nothing was changed; move it away, then try again") from error


def append_line(path: Path, data: bytes) -> None:
    """Append a line to a file with mode 0600, completely or not at all. The line is on disk when this returns."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, FILE_MODE)
        try:
            end = os.lseek(handle, 0, os.SEEK_END)
            # start a new line if a power failure left an incomplete one
            torn = end > 0 and os.lseek(handle, end - 1, os.SEEK_SET) == end - 1 and os.read(handle, 1) != b"\n"
            try:
                left = (b"\n" if torn else b"") + data + b"\n"
                while left:  # a nearly full disk may accept only a part
                    left = left[os.write(handle, left) :]
                os.fsync(handle)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, end)
                raise
        finally:
            os.close(handle)
    except OSError as error:
        kind = StoreFull if error.errno in _FULL_DISK_ERRNOS else StoreError
        raise kind(f"{path} cannot be written: {error.strerror}", remedy=f"free some space, or ls -l {path}") from error
