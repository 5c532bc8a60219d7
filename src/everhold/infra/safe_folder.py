"""Reads a folder that another program made, without following symbolic links. What it refuses is listed with a reason.

A link in an imported home could lead to any file of this user, and the import would make a persona or a fact of it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, TypeAlias

MAX_FILE_BYTES: Final = 4 << 20
"""Maximum size of a settings or memory file."""
MAX_FOLDER_NAMES: Final = 10_000
MAX_TREE_NAMES: Final = 50_000
"""The maximum in a folder and all folders below it."""
MAX_FOLDER_DEPTH: Final = 20
LINK_REASON: Final = "a symbolic link, which an import does not follow; replace it by a copy, and import again"
_OPEN_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
)

MAX_LINE_BYTES: Final = 1 << 16
"""Longer lines of a log are left out."""
MAX_LOG_BYTES: Final = 256 << 20

PathKind: TypeAlias = Literal["file", "folder", ""]


class SafeFolder:
    """A folder, and the names below it that were refused. The folder itself may be reached through a link."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.refused: dict[str, str] = {}
        """Name -> why it was not read."""

    def find_kind(self, name: str) -> PathKind:
        """Return what a name below the folder is; empty if there is nothing, or nothing that may be read."""
        here = self.root
        mode = stat.S_IFDIR
        parts = Path(name).parts
        if ".." in parts or Path(name).is_absolute():
            self.refused[name] = "leads out of the folder"
            return ""
        for number, part in enumerate(parts):
            here = here / part
            try:
                mode = here.lstat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                return ""
            except OSError as error:
                self.refused[name] = f"cannot be read ({error.strerror})"
                return ""
            if stat.S_ISLNK(mode):
                self.refused["/".join(parts[: number + 1])] = LINK_REASON
                return ""
        if stat.S_ISDIR(mode):
            return "folder"
        if stat.S_ISREG(mode):
            return "file"
        self.refused[name] = "neither a file nor a folder"
        return ""

    def has_file(self, name: str) -> bool:
        return self.find_kind(name) == "file"

    def has_folder(self, name: str) -> bool:
        return self.find_kind(name) == "folder"

    def list_names(self, name: str = ".") -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""
        if not self.has_folder(name):
            return []
        try:
            found = os.listdir(self.root / name)
        except OSError as error:
            self.refused[name] = f"cannot be read ({error.strerror})"
            return []
        if len(found) > MAX_FOLDER_NAMES:
            self.refused[name] = f"has more than {MAX_FOLDER_NAMES:,} files"
            return []
        return sorted(found)

    def read_text(self, name: str, *, max_bytes: int = MAX_FILE_BYTES) -> str | None:
        """Return the text of a file; None if there is none, or it may not or cannot be read."""
        if not self.has_file(name):
            return None
        try:
            descriptor = os.open(self.root / name, _OPEN_FLAGS)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # it was replaced since it was looked at
                    self.refused[name] = "neither a file nor a folder"
                    return None
                data = file.read(max_bytes + 1)
        except OSError as error:
            self.refused[name] = f"cannot be read ({error.strerror})"
            return None
        if len(data) > max_bytes:
            self.refused[name] = f"larger than {max_bytes >> 20} MiB"
            return None
        if b"\0" in data:
            self.refused[name] = "is not a text"
            return None
        return data.decode("utf-8-sig", "replace")

    def list_files(self, suffix: str) -> list[str]:
        """Return the files with a suffix, in this folder and the folders in it, sorted."""
        names: list[str] = []
        folders, seen = ["."], 0
        while folders:
            below = folders.pop()
            here = self.list_names(below)
            seen += len(here)
            if seen > MAX_TREE_NAMES:
                self.refused[below] = f"is left out: the folders have more than {MAX_TREE_NAMES:,} files"
                break
            for part in here:
                name = part if below == "." else f"{below}/{part}"
                kind = self.find_kind(name)
                if kind == "folder" and name.count("/") >= MAX_FOLDER_DEPTH:
                    self.refused[name] = f"is more than {MAX_FOLDER_DEPTH} folders deep"
                elif kind == "folder":
                    folders.append(name)
                elif kind == "file" and part.endswith(suffix):
                    names.append(name)
        return sorted(names)


def open_markdown(path: Path) -> tuple[SafeFolder, list[str]]:
    """Return the folder of Markdown at `path`, and its files; the folder of a file, and that file."""
    if path.is_file() or (path.is_symlink() and not path.is_dir()):
        return SafeFolder(path.parent), [path.name]
    folder = SafeFolder(path)
    return folder, folder.list_files(".md")


def iter_log_lines(path: Path, *, newest: bool = False, follow: bool = False) -> Iterator[str]:
    """Yield the lines of a log, at most MAX_LOG_BYTES of it: from its beginning, or with `newest` up to its end.

    Raises OSError if it is no file, or a link and `follow` is not set. A line that is too long is an empty line, so the
    numbers of the others are right.
    """
    flags = _OPEN_FLAGS & ~getattr(os, "O_NOFOLLOW", 0) if follow else _OPEN_FLAGS
    descriptor = os.open(path, flags)
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        if newest and state.st_size > MAX_LOG_BYTES:
            file.seek(state.st_size - MAX_LOG_BYTES)
            file.readline(MAX_LINE_BYTES)  # it may be the end of a line
        left, is_continued = MAX_LOG_BYTES, False
        while left > 0 and (piece := file.readline(MAX_LINE_BYTES)):
            left -= len(piece)
            is_whole = piece.endswith(b"\n") or len(piece) < MAX_LINE_BYTES
            if is_whole:
                yield "" if is_continued else piece.decode("utf-8", "replace").rstrip("\r\n")
            is_continued = not is_whole
