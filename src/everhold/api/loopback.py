"""The API on a port of 127.0.0.1, for homes that cannot contain a unix socket (Windows, some network disks).

A file at the socket's path names the port and a token that is new at every start. Every user of the machine can connect
to a port, or listen on one that became free. So both sides prove that they can read the file before HTTP begins. The
token itself never crosses the connection:

    client → server   32 random bytes
    server → client   32 random bytes, HMAC(token, "gateway" + both)
    client → server   HMAC(token, "command" + both), then HTTP on the same connection
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

from everhold.infra.home import read_file, write_file

HOST: Final = "127.0.0.1"
BACKLOG: Final = 128
SIZE: Final = 32
"""Bytes of a token, of a side's random bytes, and of a proof."""
HANDSHAKE_SECONDS: Final = 5.0


@dataclass(frozen=True)
class LoopbackEndpoint:
    """The port a gateway listens on, and the token that both sides must know."""

    port: int
    token: bytes


def listen_at(path: Path) -> tuple[socket.socket, LoopbackEndpoint]:
    """Return a listening socket, and write its endpoint to `path`. Raises OSError where others could read that file."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        exclusive = getattr(socket, "SO_EXCLUSIVEADDRUSE", None)
        if exclusive is not None:  # Windows would let another program listen on the same port
            sock.setsockopt(socket.SOL_SOCKET, exclusive, 1)
        sock.bind((HOST, 0))
        sock.listen(BACKLOG)
        sock.setblocking(False)
        endpoint = LoopbackEndpoint(sock.getsockname()[1], secrets.token_bytes(SIZE))
        write_file(path, json.dumps({"port": endpoint.port, "token": endpoint.token.hex()}).encode())
        if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.unlink()
            raise PermissionError(f"other users could read {path}")
    except BaseException:
        sock.close()
        raise
    return sock, endpoint


def read_endpoint(path: Path) -> LoopbackEndpoint | None:
    """The endpoint in the file at `path`; None if there is no such file. Raises ConfigError if others can read it."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return None
        content = json.loads(read_file(path, private=True) or b"{}")
        endpoint = LoopbackEndpoint(int(content["port"]), bytes.fromhex(content["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return endpoint if 0 < endpoint.port < 65536 and len(endpoint.token) == SIZE else None


def connect_to(endpoint: LoopbackEndpoint, *, timeout: float = HANDSHAKE_SECONDS) -> socket.socket:
    """Return a connected socket. `prove_to_gateway` finds out who listens there. Raises OSError."""
    sock = socket.create_connection((HOST, endpoint.port), timeout=timeout)
    sock.setblocking(False)
    return sock


async def prove_to_gateway(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, endpoint: LoopbackEndpoint
) -> None:
    """The client's side of the handshake. Raises ConnectionError if the other side is not this home's gateway."""
    own_nonce = secrets.token_bytes(SIZE)
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            writer.write(own_nonce)
            await writer.drain()
            server_nonce, proof = await reader.readexactly(SIZE), await reader.readexactly(SIZE)
            if not hmac.compare_digest(proof, _make_proof(endpoint, b"gateway", own_nonce, server_nonce)):
                raise ConnectionRefusedError("another program listens there")
            writer.write(_make_proof(endpoint, b"command", own_nonce, server_nonce))
            await writer.drain()
    except (TimeoutError, asyncio.IncompleteReadError) as error:
        raise ConnectionAbortedError("the program that listens there is no gateway") from error


class ServerHandshake:
    """The server's side of the handshake, fed with the connection's bytes. It never waits and never writes."""

    def __init__(self, endpoint: LoopbackEndpoint) -> None:
        self.is_proven = False
        self.is_refused = False
        self._endpoint = endpoint
        self._mine = secrets.token_bytes(SIZE)
        self._theirs = b""
        self._received = b""

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the client; returns the bytes to send back. Look at `is_proven` and `is_refused` after it."""
        self._received += data
        reply = b""
        if not self._theirs and len(self._received) >= SIZE:
            self._theirs, self._received = self._received[:SIZE], self._received[SIZE:]
            reply = self._mine + _make_proof(self._endpoint, b"gateway", self._theirs, self._mine)
        if self._theirs and len(self._received) >= SIZE:
            proof, self._received = self._received[:SIZE], self._received[SIZE:]
            expected = _make_proof(self._endpoint, b"command", self._theirs, self._mine)
            self.is_proven = hmac.compare_digest(proof, expected)
            self.is_refused = not self.is_proven
        return reply

    def take_rest(self) -> bytes:
        """The bytes that followed the client's proof: where HTTP begins."""
        rest, self._received = self._received, b""
        return rest


def _make_proof(endpoint: LoopbackEndpoint, side: bytes, command: bytes, gateway: bytes) -> bytes:
    return hmac.digest(endpoint.token, side + command + gateway, "sha256")
