"""Control where a home cannot hold a socket (Windows, some network and shared disks): a port of loopback, and beside it
a file in the home that says which, with a token that changes at every start.

Any user of the machine can connect to a port, or listen at one that became free. So both sides prove that they can read
the file before anything else is said, and the token itself never leaves it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from everhold.home import read_file, write_file

HOST: Final = "127.0.0.1"
BACKLOG: Final = 128
SIZE: Final = 32
"""Bytes of a token, of what either side throws in, and of a proof."""
PATIENCE_SECONDS: Final = 5.0


@dataclass(frozen=True)
class Door:
    """Where a gateway listens, and what whoever may speak to it knows."""

    port: int
    token: bytes


def listen(path: Path) -> tuple[socket.socket, Door]:
    """A listening socket, and the door at `path`. Raises OSError where that file could not be kept from others."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        alone = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
        if alone is not None:  # Windows would let another program listen at the same port
            sock.setsockopt(socket.SOL_SOCKET, alone, 1)
        sock.bind((HOST, 0))
        sock.listen(BACKLOG)
        sock.setblocking(False)
        door = Door(sock.getsockname()[1], secrets.token_bytes(SIZE))
        write_file(path, json.dumps({"port": door.port, "token": door.token.hex()}).encode())
        if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.unlink()
            raise PermissionError(f"{path} could be read by others there")
    except BaseException:
        sock.close()
        raise
    return sock, door


def find(path: Path) -> Door | None:
    """The door at `path`; None if there is none, or a socket. Raises ConfigError if others can read it."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return None
        told = json.loads(read_file(path, private=True) or b"{}")
        door = Door(int(told["port"]), bytes.fromhex(told["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return door if 0 < door.port < 65536 and len(door.token) == SIZE else None


def connect(door: Door, *, timeout: float = PATIENCE_SECONDS) -> socket.socket:
    """A socket connected to whoever listens there now; `enter` finds out who that is. Raises OSError."""
    sock = socket.create_connection((HOST, door.port), timeout=timeout)
    sock.setblocking(False)
    return sock


async def enter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, door: Door) -> None:
    """Prove who we are to whoever proves to be the gateway of this home. Raises ConnectionError."""
    mine = secrets.token_bytes(SIZE)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            writer.write(mine)
            await writer.drain()
            theirs, proof = await reader.readexactly(SIZE), await reader.readexactly(SIZE)
            if not hmac.compare_digest(proof, _proof(door, b"gateway", mine, theirs)):
                raise ConnectionRefusedError("another program listens there")
            writer.write(_proof(door, b"command", mine, theirs))
            await writer.drain()
    except (TimeoutError, asyncio.IncompleteReadError) as error:
        raise ConnectionAbortedError("whoever listens there is no gateway") from error


async def admit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, door: Door) -> bool:
    """Whether the other side can read the file in the home. Raises OSError and TimeoutError."""
    mine = secrets.token_bytes(SIZE)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            theirs = await reader.readexactly(SIZE)
            writer.write(mine + _proof(door, b"gateway", theirs, mine))
            await writer.drain()
            proof = await reader.readexactly(SIZE)
    except asyncio.IncompleteReadError:
        return False
    return hmac.compare_digest(proof, _proof(door, b"command", theirs, mine))


def _proof(door: Door, side: bytes, command: bytes, gateway: bytes) -> bytes:
    return hmac.digest(door.token, side + command + gateway, "sha256")
