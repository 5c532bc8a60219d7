"""The API without unix sockets: commands work, and other users have no access."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import stat
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from everhold.api import loopback, unix_socket
from everhold.api.local_server import LocalServer
from everhold.api.loopback import LoopbackEndpoint
from everhold.api.middleware import GuardMiddleware
from everhold.api.scope_keys import OPERATOR_CONNECTION
from everhold.app import SystemClock
from everhold.cli.client import ApiClient
from everhold.cli.transport import GatewayGone, SocketTransport
from everhold.config import ConfigError
from everhold.telemetry.logs import open_log
from tests.cli.command_home import CommandHome, make_plugin, wait_until

NO_SOCKETS = """
import errno, socket

class Socket(socket.socket):
    def bind(self, address):
        if self.family == socket.AF_UNIX and self.type == socket.SOCK_STREAM:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        super().bind(address)

socket.socket = Socket
"""
"""Simulates a file system without sockets in every process that has it on its path."""


@pytest.fixture(scope="module")
def command_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandHome]:
    root = tmp_path_factory.mktemp("loopback")
    plugin = make_plugin(root / "plugin")
    (plugin / "sitecustomize.py").write_text(NO_SOCKETS)
    made = CommandHome(root / "home", plugin)
    yield made
    made.close()


def test_commands_reach_the_gateway_and_a_stale_endpoint_file_is_ignored(command_home: CommandHome) -> None:
    gateway = command_home.start_gateway()
    endpoint_file = command_home.path / "api.sock"
    assert stat.S_IMODE(endpoint_file.stat().st_mode) == 0o600
    assert stat.S_ISREG(endpoint_file.stat().st_mode)
    wait_until(lambda: any("api_socket.opened" in line for line in gateway.log))
    assert command_home.run_in_process("send", "hello").ok().out.strip() == "You said: hello"
    assert command_home.run_in_process("send", "x" * 300_000, "--json").ok().json["outcome"] == "done"
    assert command_home.run_in_process("status", "--json").ok().json["running"]
    token = json.loads(endpoint_file.read_text())["token"]
    assert not any(token in line for line in gateway.log)
    gateway.kill()

    assert endpoint_file.exists(), "it had no time to clean up"
    assert command_home.run("send", "alone").ok().out.strip() == "You said: alone", (
        "without a gateway the command works in process"
    )
    second = command_home.start_gateway()
    assert json.loads(endpoint_file.read_text())["token"] != token
    second.signal(signal.SIGTERM)
    assert second.wait_until_ended() == 0
    assert not endpoint_file.exists()


# -- who may speak -----------------------------------------------------------------------------------------------------


class LoopbackServer(LocalServer):
    """The real server on a system without unix sockets."""

    endpoint: LoopbackEndpoint

    def _listen(self) -> tuple[socket.socket, LoopbackEndpoint | None]:
        sock, self.endpoint = loopback.listen_at(self.path)
        return sock, self.endpoint


@asynccontextmanager
async def gateway(path: Path) -> AsyncIterator[tuple[LoopbackEndpoint, list[str]]]:
    """A listening server that records the requests of trusted clients."""
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope[OPERATOR_CONNECTION]
        asked.append(scope["path"])
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"role": "gateway"}'})

    log = open_log(clock=SystemClock(), stream=io.StringIO())
    server = LoopbackServer(cast(GuardMiddleware, app), path, monotonic=time.monotonic, log=log)
    await server.open()
    try:
        yield server.endpoint, asked
    finally:
        await server.close()


def client_at(path: Path) -> ApiClient:
    return ApiClient(SocketTransport(path))


async def test_a_client_that_can_read_the_home_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    async with gateway(path) as (endpoint, asked):
        assert loopback.read_endpoint(path) == endpoint
        assert (await client_at(path).show_health())["role"] == "gateway"
    assert asked == ["/health"]
    assert not path.exists()


@pytest.mark.parametrize("said", [b"", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n" * 3, b"\0" * 64, b"x" * 4096])
async def test_a_client_without_the_token_is_refused(tmp_path: Path, said: bytes) -> None:
    async with gateway(tmp_path / "api.sock") as (endpoint, asked):
        reader, writer = await asyncio.open_connection(loopback.HOST, endpoint.port)
        writer.write(said)
        writer.write_eof()
        heard = await asyncio.wait_for(reader.read(), 20)
        assert len(heard) in (0, 2 * loopback.SIZE)
        assert endpoint.token not in heard
        writer.close()
    assert asked == []


async def test_a_proof_is_valid_for_one_connection(tmp_path: Path) -> None:
    """A replayed handshake is refused."""
    async with gateway(tmp_path / "api.sock") as (endpoint, asked):
        mine = b"m" * loopback.SIZE
        request = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        reader, writer = await asyncio.open_connection(loopback.HOST, endpoint.port)
        writer.write(mine)
        theirs = (await reader.readexactly(2 * loopback.SIZE))[: loopback.SIZE]
        proof = loopback._make_proof(endpoint, b"command", mine, theirs)
        writer.write(proof + request)
        assert b"gateway" in await asyncio.wait_for(reader.read(), 20)
        writer.close()
        reader, writer = await asyncio.open_connection(loopback.HOST, endpoint.port)
        writer.write(mine + proof + request)
        heard = await asyncio.wait_for(reader.read(), 20)
        assert len(heard) == 2 * loopback.SIZE
        writer.close()
    assert asked == ["/health"]


async def test_a_proof_may_come_in_pieces_and_with_the_request(tmp_path: Path) -> None:
    endpoint = LoopbackEndpoint(1, b"t" * loopback.SIZE)
    handshake = loopback.ServerHandshake(endpoint)
    mine = bytes(range(loopback.SIZE))
    assert handshake.receive(mine[:7]) == b""
    reply = handshake.receive(mine[7:])
    theirs = reply[: loopback.SIZE]
    assert reply[loopback.SIZE :] == loopback._make_proof(endpoint, b"gateway", mine, theirs)
    proof = loopback._make_proof(endpoint, b"command", mine, theirs)
    assert handshake.receive(proof[:31]) == b""
    assert not handshake.is_proven
    handshake.receive(proof[31:] + b"GET /")
    assert (handshake.is_proven, handshake.is_refused, handshake.take_rest()) == (True, False, b"GET /")


async def test_a_client_cannot_use_the_servers_proof(tmp_path: Path) -> None:
    endpoint = LoopbackEndpoint(1, b"t" * loopback.SIZE)
    handshake = loopback.ServerHandshake(endpoint)
    reply = handshake.receive(b"m" * loopback.SIZE)
    handshake.receive(reply[loopback.SIZE :])
    assert (handshake.is_proven, handshake.is_refused) == (False, True)


async def test_a_connection_without_a_proof_is_closed(tmp_path: Path) -> None:
    log = open_log(clock=SystemClock(), stream=io.StringIO())
    server = LoopbackServer(cast(GuardMiddleware, None), tmp_path / "api.sock", monotonic=time.monotonic, log=log)
    server.idle_seconds = server.sweep_seconds = 0.05
    await server.open()
    reader, writer = await asyncio.open_connection(loopback.HOST, server.endpoint.port)
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()
    await server.close()


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64])
async def test_another_program_at_a_reused_port_learns_no_secret(tmp_path: Path, says: bytes) -> None:
    heard = bytearray()
    left = asyncio.Event()

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.read(loopback.SIZE))
        writer.write(says)
        writer.write_eof()
        heard.extend(await reader.read())
        writer.close()
        left.set()

    server = await asyncio.start_server(impostor, loopback.HOST, 0)
    port = server.sockets[0].getsockname()[1]
    path = tmp_path / "api.sock"
    path.touch(0o600)
    path.write_text(json.dumps({"port": port, "token": "ab" * loopback.SIZE}))
    async with server:
        with pytest.raises(GatewayGone):
            await client_at(path).send_message({"text": "my secret is 4711"})
        await asyncio.wait_for(left.wait(), 100)
    assert len(heard) == loopback.SIZE, "a question, and nothing else"


@pytest.mark.parametrize(
    "text", ["", "{}", "nonsense", '{"port": 0, "token": "00"}', '{"port": "x", "token": 7}', "[1]", '{"port": 99999}']
)
async def test_a_broken_endpoint_file_means_no_gateway(tmp_path: Path, text: str) -> None:
    path = tmp_path / "api.sock"
    path.touch(0o600)
    path.write_text(text)
    assert loopback.read_endpoint(path) is None
    with pytest.raises(GatewayGone):
        await client_at(path).show_health()


def test_an_endpoint_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    path.write_text(json.dumps({"port": 7, "token": "ab" * loopback.SIZE}))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others may read"):
        loopback.read_endpoint(path)


def test_a_unix_socket_is_not_an_endpoint_file(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with unix_socket.listen_at(path):
        assert loopback.read_endpoint(path) is None
    assert loopback.read_endpoint(tmp_path / "nothing") is None


async def test_the_gateway_listens_on_loopback_only(tmp_path: Path) -> None:
    async with gateway(tmp_path / "api.sock") as (endpoint, _):
        with socket.socket() as probe:
            probe.bind(("127.0.0.2", endpoint.port))  # would be in use if the gateway listened on all interfaces
        assert os.listdir(tmp_path) == ["api.sock"]
