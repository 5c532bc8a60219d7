"""The workspace: one folder in which an agent reads and writes files for one person or one group.

A path is walked component by component, and no component may be a symbolic link, so a link in the folder leads nowhere,
also if a program replaces a folder by a link at that moment. Files are written to a temporary name and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from everhold.errors import InvalidRequest, NotFound

MAX_PATH_CHARS: Final = 1_000
MAX_PATH_PARTS: Final = 32
MAX_WALKED_NAMES: Final = 50_000
"""How many names one listing looks at."""
INTENT_SECONDS: Final = 30 * 86_400.0
"""How long an intent is kept. A turn is resumed long before that."""
TEMPORARY_PREFIX: Final = ".everhold-"
_FOLDER_FLAGS: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | os.O_CLOEXEC
_NEW_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC


@dataclass(frozen=True)
class WorkspaceFile:
    """A name in a workspace."""

    path: str
    size: int
    is_folder: bool


class WriteIntent(msgspec.Struct, frozen=True):
    """What a write is about to do, stored before it. After a crash it tells whether the write was done."""

    path: str
    before: str
    """The digest of the file before; empty if there was none."""
    after: str
    at: float


def compute_file_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class WorkspaceFolder:
    """Reads and writes the files of one folder. All methods block, so they run in a thread."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create(self) -> WorkspaceFolder:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self

    # -- reading -----------------------------------------------------------------------------------------------------

    def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Return the content of a file. Raises NotFound, and InvalidRequest if it is no file or too large."""
        parts = split_path(path)
        if not parts:
            raise InvalidRequest("the path names the workspace itself", remedy="name a file in it")
        with self._open_folder(parts[:-1]) as folder:
            data = _read_at(folder, parts[-1], path, max_bytes=max_bytes)
        if data is None:
            raise NotFound(f"there is no file {path}", remedy="file_list shows what is there")
        return data

    def list_files(self, path: str = ".") -> Iterator[WorkspaceFile]:
        """Yield everything below a folder, folders before what is in them, in the order of names. Links are left
        out."""
        seen = 0
        waiting = [split_path(path)]
        while waiting:
            parts = waiting.pop()
            with self._open_folder(parts) as folder:
                names = sorted(os.listdir(folder))
                below: list[tuple[str, ...]] = []
                for name in names:
                    seen += 1
                    if seen > MAX_WALKED_NAMES:
                        return
                    if name.startswith(TEMPORARY_PREFIX):
                        continue
                    try:
                        state = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    except OSError:
                        continue  # it was removed meanwhile
                    inner = (*parts, name)
                    if stat.S_ISDIR(state.st_mode):
                        below.append(inner)
                        yield WorkspaceFile("/".join(inner), 0, is_folder=True)
                    elif stat.S_ISREG(state.st_mode):
                        yield WorkspaceFile("/".join(inner), state.st_size, is_folder=False)
                waiting += reversed([inner for inner in below if len(inner) < MAX_PATH_PARTS])

    # -- writing -----------------------------------------------------------------------------------------------------

    def write_file(self, path: str, data: bytes) -> None:
        """Write a whole file, durably: the old content or the new is there after a crash, and nothing in between."""
        parts = split_path(path)
        if not parts:
            raise InvalidRequest("the path names the workspace itself", remedy="name a file in it")
        with self._open_folder(parts[:-1], create=True) as folder:
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_mode):
                    raise InvalidRequest(f"{path} is no ordinary file", remedy="choose another name")
            _replace_at(folder, parts[-1], data)

    @contextlib.contextmanager
    def _open_folder(self, parts: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        """Open a folder of the workspace without following a link."""
        here = os.open(self.root, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | os.O_CLOEXEC)
        try:
            for number, part in enumerate(parts):
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=here)
                try:
                    below = os.open(part, _FOLDER_FLAGS, dir_fd=here)
                except OSError as error:
                    raise explain_os_error(error, "/".join(parts[: number + 1])) from error
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)


class WriteIntents:
    """The intents of all workspaces of a home, by the key of the call. They lie outside of every workspace, so that no
    program in a workspace can change them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def record(self, key: str, intent: WriteIntent) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._remove_old(intent.at)
        folder = os.open(self.directory, _FOLDER_FLAGS)
        try:
            _replace_at(folder, _name_intent(key), msgspec.json.encode(intent))
        finally:
            os.close(folder)

    def find(self, key: str) -> WriteIntent | None:
        try:
            return msgspec.json.decode((self.directory / _name_intent(key)).read_bytes(), type=WriteIntent)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _remove_old(self, now: float) -> None:
        for file in self.directory.iterdir():
            with contextlib.suppress(OSError):
                if now - file.stat().st_mtime > INTENT_SECONDS:
                    file.unlink()


def _name_intent(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def split_path(path: str) -> tuple[str, ...]:
    """Return the components of a path below the workspace. Raises InvalidRequest if it leads out of it."""
    if "\0" in path or len(path) > MAX_PATH_CHARS:
        raise InvalidRequest("the path is too long or contains a zero byte", remedy="use a shorter path")
    if path.startswith(("/", "~")):
        raise InvalidRequest(f"{path} is not below the workspace", remedy="use a path relative to the workspace")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise InvalidRequest(f"{path} may lead out of the workspace", remedy="use a path without ..")
    if len(parts) > MAX_PATH_PARTS:
        raise InvalidRequest(f"{path} has more than {MAX_PATH_PARTS} folders", remedy="use fewer folders")
    return parts


def explain_os_error(error: OSError, path: str) -> InvalidRequest | NotFound:
    """Return the error that a model is told."""
    if error.errno == errno.ENOENT:
        return NotFound(f"there is no {path}", remedy="file_list shows what is there")
    if error.errno in (errno.ELOOP, errno.EMLINK):
        return InvalidRequest(f"{path} is a symbolic link, and links are not followed", remedy="name the target itself")
    if error.errno == errno.ENOTDIR:
        return InvalidRequest(f"{path} is a symbolic link or no folder", remedy="file_list shows what is there")
    if error.errno == errno.EISDIR:
        return InvalidRequest(f"{path} is a folder", remedy="name a file")
    return InvalidRequest(f"{path}: {error.strerror}", remedy="choose another path")


def _read_at(folder: int, name: str, path: str, *, max_bytes: int) -> bytes | None:
    try:
        handle = os.open(name, _FILE_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise explain_os_error(error, path) from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):  # opening a folder as a file would raise an error of its own
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise InvalidRequest(f"{path} is a folder", remedy="file_list shows what is in it")
        raise InvalidRequest(f"{path} is no ordinary file", remedy="file_list shows what is there")
    with os.fdopen(handle, "rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise InvalidRequest(f"{path} has more than {max_bytes:,} bytes", remedy="use the shell to read a part of it")
    return data


def _replace_at(folder: int, name: str, data: bytes) -> None:
    temporary = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
    mode = 0o600
    with contextlib.suppress(FileNotFoundError):
        mode = stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    try:
        handle = os.open(temporary, _NEW_FILE_FLAGS, mode, dir_fd=folder)
    except OSError as error:
        raise explain_os_error(error, name) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        if isinstance(error, OSError):
            raise explain_os_error(error, name) from error
        raise
    os.fsync(folder)
