"""The unix socket of the API in the home. Its file mode and the peer's user id decide who may use it.

A socket's name may have about 100 bytes, but a home's path may be longer. On Linux the name then goes through the
directory's file descriptor (`/proc/self/fd/N/api.sock`). Other systems change into the directory for the duration of
the call. So the socket is always in its home. Where a home cannot hold a socket, `loopback.py` is used instead.
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

MAX_NAME_BYTES: Final = 100
"""Every system takes a name of this length (Linux 107, macOS 103), the temporary suffix included."""
BACKLOG: Final = 128
CONNECT_SECONDS: Final = 5.0
_DESCRIPTORS: Final = Path("/proc/self/fd")
_changing_directory: Final = Lock()


def listen_at(path: Path, *, descriptors: Path = _DESCRIPTORS) -> socket.socket:
    """Return a listening socket at `path` with mode 0600. A stale one is replaced, so only the holder of the home's
    lock may call this.

    The socket gets its mode under another name first, so no client ever finds one that is open to others or that does
    not answer.
    """
    new = path.with_name(path.name + ".new")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    sock = _make_socket()
    try:
        with _short_name(new, descriptors) as name:
            sock.bind(name)
        os.chmod(new, 0o600)
        sock.listen(BACKLOG)
        sock.setblocking(False)
        os.replace(new, path)
    except BaseException:
        sock.close()
        raise
    return sock


def connect_to(path: Path, *, timeout: float = CONNECT_SECONDS, descriptors: Path = _DESCRIPTORS) -> socket.socket:
    """Return a socket connected to the process that listens at `path`. Raises OSError."""
    sock = _make_socket()
    try:
        sock.settimeout(timeout)
        with _short_name(path, descriptors) as name:
            sock.connect(name)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def is_trusted_peer(sock: socket.socket) -> bool:
    """Whether the peer is this user or root. Where the system cannot tell, the file mode has decided already."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    _pid, uid, _gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("3i")))
    return uid in (0, os.geteuid())


def _make_socket() -> socket.socket:
    family = getattr(socket, "AF_UNIX", None)
    if family is None:
        raise OSError(errno.EAFNOSUPPORT, "this system has no unix sockets")
    return socket.socket(family, socket.SOCK_STREAM)


@contextlib.contextmanager
def _short_name(path: Path, descriptors: Path) -> Iterator[str]:
    """A name for `path` that is short enough. It is valid inside the block only."""
    if len(os.fsencode(path)) <= MAX_NAME_BYTES:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if descriptors.is_dir():
            yield str(descriptors / str(directory) / path.name)
            return
        with _changing_directory:
            before = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fchdir(directory)
                yield path.name
            finally:
                os.fchdir(before)
                os.close(before)
    finally:
        os.close(directory)
