"""The socket in the home: who may use it, and that nobody else suffers from what they do with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everhold.errors import EverholdError, Misuse, NotFound, StoreFull
from everhold.remote import place, wire
from everhold.remote.client import Gone, RemoteControl
from tests.cli.house import House, until
from tests.waiting import LIMIT_SECONDS


@contextlib.contextmanager
def line_to(house: House) -> Iterator[socket.socket]:
    with place.connect(house.path / "control.sock") as sock:
        sock.settimeout(LIMIT_SECONDS)
        yield sock


def answer_to(sock: socket.socket, data: bytes) -> dict[str, Any]:
    sock.sendall(data)
    return answer(sock)


def answer(sock: socket.socket) -> dict[str, Any]:
    data = b""
    while not data.endswith(b"\n"):
        piece = sock.recv(65536)
        if not piece:
            return {}
        data += piece
    found: dict[str, Any] = json.loads(data)
    return found


PING = b'{"id": 1, "method": "ping", "params": {}}\n'


def test_only_its_owner_may_open_the_socket(busy: House) -> None:
    state = (busy.path / "control.sock").stat()
    assert stat.S_ISSOCK(state.st_mode)
    assert stat.S_IMODE(state.st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as somebody else")
def test_another_user_gets_no_answer_even_through_an_open_door(house: House, tmp_path: Path) -> None:
    house.up()
    path = house.path / "control.sock"
    script = (
        "import os, socket, sys\n"
        "sock = socket.socket(socket.AF_UNIX); os.setuid(65534)\n"
        "sock.connect('control.sock'); sys.exit(len(sock.recv(100)))"
    )
    path.chmod(0o666)
    house.path.chmod(0o711)
    stranger = subprocess.run(
        [sys.executable, "-c", script], cwd=house.path, capture_output=True, text=True, check=False
    )
    assert stranger.returncode == 0, stranger.stderr
    assert house.ask("status", "--json").json["running"]


@pytest.mark.parametrize(
    "data, told",
    [
        (b"\x00\xff\xfe garbage\n", "no JSON"),
        (b"[1, 2]\n", "no object"),
        (b"[" * 100_000 + b"\n", "no JSON"),
        (b'{"method": "ping"}\n', "an id and a method"),
        (b'{"id": 1, "method": ["ping"]}\n', "an id and a method"),
    ],
)
def test_garbage_is_answered_and_ends_only_that_connection(busy: House, data: bytes, told: str) -> None:
    with line_to(busy) as sock, line_to(busy) as other:
        refused = answer_to(sock, data)["error"]
        assert told in refused["message"]
        assert refused["exit"] == 2
        assert answer(sock) == {}
        assert answer_to(other, PING)["result"]["role"] == "gateway"


@pytest.mark.parametrize(
    "method, params, told",
    [
        ("__class__", {}, "there is no method"),
        ("call", {}, "there is no method"),
        ("find", {"name": 7}, "find"),
        ("find", {"name": "x", "more": 1}, "find"),
        ("find", [], "find"),
        ("follow", {"session": "nowhere"}, "there is no session"),
        ("send", {"incoming": {"text": "no origin"}}, "send"),
    ],
)
def test_what_makes_no_sense_is_refused_and_the_connection_goes_on(
    busy: House, method: str, params: Any, told: str
) -> None:
    with line_to(busy) as sock:
        refused = answer_to(sock, json.dumps({"id": 5, "method": method, "params": params}).encode() + b"\n")
        assert refused["id"] == 5
        assert told in refused["error"]["message"]
        assert answer_to(sock, PING)["result"]["role"] == "gateway"


def test_a_line_that_does_not_end_is_cut_off(busy: House) -> None:
    with line_to(busy) as sock:
        with contextlib.suppress(OSError):
            for _ in range((wire.LIMIT >> 20) + 2):
                sock.sendall(b"x" * (1 << 20))
        assert "longer than 16 MB" in answer(sock)["error"]["message"]
    busy.ask("agents").ok()


def test_clients_that_hang_or_die_harm_nobody(busy: House) -> None:
    session = busy.ask("sessions", "show", "agent:main:terminal:dm:me", "--json").json["session"]["id"]
    follow = json.dumps({"id": 1, "method": "follow", "params": {"session": session}}).encode() + b"\n"
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            sock = stack.enter_context(line_to(busy))
            sock.sendall(follow)  # and never read
        for _ in range(20):
            with line_to(busy) as sock:
                sock.sendall(follow[:20])  # and gone
        big = "x" * 300_000
        assert busy.ask("send", big, "--json").ok().json["outcome"] == "done"
    with line_to(busy) as sock:
        assert answer_to(sock, PING)["result"]["role"] == "gateway"


def test_too_many_clients_are_told_to_try_again(busy: House) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(128):
            assert answer_to(stack.enter_context(line_to(busy)), PING)["result"]
        assert stack.enter_context(line_to(busy)).recv(1000).startswith(b'{"id":null,"error":{"type":"Transient"')
    until(lambda: busy.ask("agents").code == 0)


def test_several_may_follow_and_see_everything_in_order(busy: House) -> None:
    async def follow(path: Path, session: str, count: int) -> list[int]:
        seen: list[int] = []
        async for event in RemoteControl(path).follow(session, after=0):
            if "entry" in event:
                seen.append(event["entry"]["seq"])
            if len(seen) >= count:
                break
        return seen

    async def all_of_them() -> list[list[int]]:
        control = RemoteControl(busy.path / "control.sock")
        spot = await control.place("followed")
        origin = {**spot["origin"], "message": "first"}
        said = {"origin": origin, "text": "slow 5", "sender": "ada", "agent": "main"}
        session = (await control.send(said))["session"]
        followers = [asyncio.ensure_future(follow(control.path, session, 10)) for _ in range(4)]
        await follow(control.path, session, 5)
        await control.send({**said, "text": "more", "origin": {**origin, "message": "second"}})
        return await asyncio.wait_for(asyncio.gather(*followers), LIMIT_SECONDS)

    assert asyncio.run(all_of_them()) == [list(range(1, 11))] * 4


def test_a_growing_reply_comes_in_pieces_that_add_up(busy: House) -> None:
    async def watch() -> tuple[str, str, int]:
        control = RemoteControl(busy.path / "control.sock")
        spot = await control.place("growing")
        said = {"origin": {**spot["origin"], "message": "1"}, "text": "slow 20", "sender": "ada", "agent": "main"}
        verdict = await control.send(said)
        grown, pieces = "", 0
        async for event in control.follow(verdict["session"], after=verdict["seq"]):
            if "piece" in event:
                grown = grown[: event["piece"]["at"]] + event["piece"]["text"]
                pieces += 1
            elif event["entry"]["kind"] == "said":
                return grown, event["entry"]["body"]["text"], pieces
        raise AssertionError

    grown, said, pieces = asyncio.run(asyncio.wait_for(watch(), LIMIT_SECONDS))
    assert said.startswith(grown.strip()[:20])
    assert pieces >= 3


def test_a_follower_of_a_quiet_session_costs_next_to_nothing(busy: House) -> None:
    session = busy.ask("sessions", "show", "agent:main:terminal:dm:me", "--json").json["session"]
    gateway = busy.started[0].pid
    follow = {"id": 1, "method": "follow", "params": {"session": session["id"], "after": session["last_seq"]}}
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(line_to(busy)).sendall(json.dumps(follow).encode() + b"\n")
        # a gateway that has just started has other things to do, too
        assert any(spent(gateway) < 0.2 for _ in range(8))


def spent(pid: int) -> float:
    before = cpu_seconds(pid)
    time.sleep(1.0)
    return cpu_seconds(pid) - before


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- errors cross ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [NotFound("no", remedy="look"), Misuse("what?"), StoreFull("full", remedy="room")])
def test_an_error_arrives_as_what_it_was(error: EverholdError) -> None:
    arrived = wire.from_json(json.loads(json.dumps(wire.to_json(error))))
    assert (type(arrived), arrived.message, arrived.remedy) == (type(error), error.message, error.remedy)
    assert wire.exit_of(arrived) == wire.exit_of(error)


def test_an_error_of_a_newer_gateway_keeps_its_words_and_its_exit_code() -> None:
    arrived = wire.from_json({"type": "Eclipse", "message": "dark", "remedy": "wait", "exit": 75})
    assert (str(arrived), wire.exit_of(arrived), wire.to_json(arrived)["type"]) == ("dark (wait)", 75, "Eclipse")
    assert wire.exit_of(wire.from_json({"type": "Eclipse", "exit": "soon"})) == 1
    assert wire.exit_of(wire.from_json("nonsense")) == 1


def test_what_no_longer_fits_a_line_is_refused_not_sent() -> None:
    with pytest.raises(EverholdError, match="does not fit"):
        wire.encode({"text": "x" * wire.LIMIT})


def test_lone_surrogates_arrive_as_they_were_typed() -> None:
    assert wire.decode(wire.encode({"text": "a\udcffb"})) == {"text": "a\udcffb"}


# -- where it is -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handles", [Path("/proc/self/fd"), Path("/nowhere")], ids=["by handle", "by stepping in"])
def test_a_home_may_have_a_longer_path_than_a_socket(tmp_path: Path, handles: Path) -> None:
    if str(handles).startswith("/proc") and not handles.exists():
        pytest.skip("no /proc here")
    home = tmp_path / ("deep" * 20) / ("deeper" * 20)
    home.mkdir(parents=True)
    before = os.getcwd()
    path = home / "control.sock"
    with place.listen(path, handles=handles) as server, place.connect(path, handles=handles) as client:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        server.setblocking(True)
        other, _ = server.accept()
        with other:
            assert place.is_trusted(other)
            client.setblocking(True)
            client.sendall(b"hello")
            assert other.recv(5) == b"hello"
    assert os.getcwd() == before
    assert sorted(item.name for item in home.iterdir()) == ["control.sock"]


def test_a_gateway_in_a_home_with_a_long_path_is_reached(tmp_path: Path, plugin: Path) -> None:
    house = House(tmp_path / ("deep" * 20) / ("deeper" * 20), plugin)
    try:
        house.up()
        assert house.run("send", "hello").ok().out == "You said: hello\n"
        assert house.ask("status", "--json").json["running"]
    finally:
        house.close()


def test_nobody_at_the_socket_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(Gone, match="nobody answers"):
        asyncio.run(RemoteControl(tmp_path / "control.sock").ping())
