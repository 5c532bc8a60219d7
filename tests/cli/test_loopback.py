"""Control on a machine, or a disk, without sockets in files: everything works, and for nobody else."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from everhold.config import ConfigError
from everhold.remote import loopback, place
from everhold.remote.client import Gone, RemoteControl
from tests.cli.house import House, make_plugin

NO_SOCKETS = """
import errno, socket

class Socket(socket.socket):
    def bind(self, address):
        if self.family == socket.AF_UNIX and self.type == socket.SOCK_STREAM:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        super().bind(address)

socket.socket = Socket
"""
"""What a file system without sockets says, in every process that is started with this on its path."""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    root = tmp_path_factory.mktemp("loopback")
    plugin = make_plugin(root / "plugin")
    (plugin / "sitecustomize.py").write_text(NO_SOCKETS)
    made = House(root / "home", plugin)
    yield made
    made.close()


def test_commands_reach_the_gateway_and_what_it_leaves_behind_misleads_nobody(house: House) -> None:
    gateway = house.up()
    door = house.path / "control.sock"
    assert stat.S_IMODE(door.stat().st_mode) == 0o600
    assert stat.S_ISREG(door.stat().st_mode)
    assert any("control.loopback" in line for line in gateway.log)
    assert house.ask("send", "hello").ok().out.strip() == "You said: hello"
    assert house.ask("send", "x" * 300_000, "--json").ok().json["outcome"] == "done"
    assert house.ask("status", "--json").ok().json["running"]
    token = json.loads(door.read_text())["token"]
    assert not any(token in line for line in gateway.log)
    gateway.kill()

    assert door.exists(), "it had no time to clean up"
    assert house.run("send", "alone").ok().out.strip() == "You said: alone", "nobody is there, so it works by itself"
    second = house.up()
    assert json.loads(door.read_text())["token"] != token
    second.signal(signal.SIGTERM)
    assert second.end() == 0
    assert not door.exists()


# -- who may speak -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def gateway(path: Path) -> AsyncIterator[tuple[loopback.Door, list[bool]]]:
    """The listening side, and whom it let in."""
    sock, door = loopback.listen(path)
    admitted: list[bool] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        admitted.append(await loopback.admit(reader, writer, door))
        if admitted[-1] and await reader.readline():
            writer.write(b'{"id":1,"result":{"role":"gateway"}}\n')
        writer.close()

    server = await asyncio.start_server(serve, sock=sock)
    async with server:
        yield door, admitted


async def test_whoever_reads_the_home_is_let_in(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    async with gateway(path) as (door, admitted):
        assert loopback.find(path) == door
        assert (await RemoteControl(path).ping())["role"] == "gateway"
    assert admitted == [True]


@pytest.mark.parametrize("said", [b"", b'{"id": 1, "method": "ping", "params": {}}\n' * 3, b"\0" * 64, b"x" * 4096])
async def test_a_stranger_is_not(tmp_path: Path, said: bytes) -> None:
    async with gateway(tmp_path / "control.sock") as (door, admitted):
        reader, writer = await asyncio.open_connection(loopback.HOST, door.port)
        writer.write(said)
        writer.write_eof()
        heard = await reader.read()
        assert len(heard) in (0, 2 * loopback.SIZE)
        assert door.token not in heard
        writer.close()
    assert admitted == [False]


async def test_what_one_proved_opens_no_second_door(tmp_path: Path) -> None:
    """Somebody repeats what they saw a command say."""
    async with gateway(tmp_path / "control.sock") as (door, admitted):
        mine = b"m" * loopback.SIZE
        reader, writer = await asyncio.open_connection(loopback.HOST, door.port)
        writer.write(mine)
        theirs = (await reader.readexactly(2 * loopback.SIZE))[: loopback.SIZE]
        proof = loopback._proof(door, b"command", mine, theirs)
        for _ in range(2):
            writer.write(proof if admitted == [] else mine + proof)
            writer.write_eof()
            await reader.read()
            writer.close()
            reader, writer = await asyncio.open_connection(loopback.HOST, door.port)
        writer.close()
    assert admitted[:2] == [True, False]


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64])
async def test_another_program_at_a_port_that_became_free_learns_nothing(tmp_path: Path, says: bytes) -> None:
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
    path = tmp_path / "control.sock"
    path.touch(0o600)
    path.write_text(json.dumps({"port": port, "token": "ab" * loopback.SIZE}))
    async with server:
        with pytest.raises(Gone):
            await RemoteControl(path).send({"text": "my secret is 4711"})
        await asyncio.wait_for(left.wait(), 100)
    assert len(heard) == loopback.SIZE, "a question, and nothing else"


@pytest.mark.parametrize(
    "text", ["", "{}", "nonsense", '{"port": 0, "token": "00"}', '{"port": "x", "token": 7}', "[1]", '{"port": 99999}']
)
async def test_a_broken_file_is_nobody(tmp_path: Path, text: str) -> None:
    path = tmp_path / "control.sock"
    path.touch(0o600)
    path.write_text(text)
    assert loopback.find(path) is None
    with pytest.raises(Gone):
        await RemoteControl(path).ping()


def test_a_file_that_others_can_read_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    path.write_text(json.dumps({"port": 7, "token": "ab" * loopback.SIZE}))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="others may read"):
        loopback.find(path)


def test_a_socket_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with place.listen(path):
        assert loopback.find(path) is None
    assert loopback.find(tmp_path / "nothing") is None


async def test_only_this_machine_is_listened_to(tmp_path: Path) -> None:
    async with gateway(tmp_path / "control.sock") as (door, _):
        with socket.socket() as probe:
            probe.bind(("127.0.0.2", door.port))  # would be taken if it listened everywhere
    assert os.listdir(tmp_path) == ["control.sock"]
