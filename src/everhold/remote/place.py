"""Where the socket is, and who may use it: a file in the home that only its owner can open.

A socket's name may have about 100 bytes, a home's path may have more. Linux then goes by the directory's own handle
(`/proc/self/fd/N/control.sock`), other systems step into the directory for the moment of the call. So the socket is
always in its home, and nothing has to be recorded elsewhere or guessed. Where a home cannot hold one, loopback.py can.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Final

LONGEST: Final = 100
"""Bytes of a name that every system takes (Linux 107, macOS 103), with room for the temporary suffix."""
BACKLOG: Final = 128
_HANDLES: Final = Path("/proc/self/fd")
_stepping: Final = Lock()


def listen(path: Path, *, handles: Path = _HANDLES) -> socket.socket:
    """A listening socket at `path`, mode 0600. Whoever holds the home's lock may call this; a stale one is replaced.

    It gets its mode under another name first, so that nobody ever finds one that is open to others or does not answer.
    """
    new = path.with_name(path.name + ".new")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    sock = _socket()
    try:
        with _name(new, handles) as name:
            sock.bind(name)
        os.chmod(new, 0o600)
        sock.listen(BACKLOG)
        sock.setblocking(False)
        os.replace(new, path)
    except BaseException:
        sock.close()
        raise
    return sock


def connect(path: Path, *, timeout: float = 5.0, handles: Path = _HANDLES) -> socket.socket:
    """A socket connected to whoever listens at `path`. Raises OSError."""
    sock = _socket()
    try:
        sock.settimeout(timeout)
        with _name(path, handles) as name:
            sock.connect(name)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def _socket() -> socket.socket:
    family = getattr(socket, "AF_UNIX", None)
    if family is None:
        raise OSError(errno.EAFNOSUPPORT, "this system has no sockets in files")
    return socket.socket(family, socket.SOCK_STREAM)


def is_trusted(sock: socket.socket) -> bool:
    """Whether the other side is this user or root. Where the system cannot tell, the file's mode has decided."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    _pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    return uid in (0, os.geteuid())


@contextlib.contextmanager
def _name(path: Path, handles: Path) -> Iterator[str]:
    """A name for `path` that is short enough, good for as long as the block lasts."""
    if len(os.fsencode(path)) <= LONGEST:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if handles.is_dir():
            yield str(handles / str(directory) / path.name)
            return
        with _stepping:
            before = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fchdir(directory)
                yield path.name
            finally:
                os.fchdir(before)
                os.close(before)
    finally:
        os.close(directory)
