"""api.sock in the home: who may use it, and that a bad client does not affect others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from everhold.api import unix_socket
from everhold.cli.client import ApiClient
from everhold.cli.errors import get_exit_code, get_type_name, read_error, show_error
from everhold.cli.message import make_message
from everhold.cli.transport import ApiResponse, ApiTransport, GatewayGone, SocketTransport
from everhold.core.entries import strip_surrogates
from everhold.errors import EverholdError, InvalidRequest, NotFound, Refused, StoreFull, Transient
from tests.cli.command_home import CommandHome, wait_until


@contextlib.contextmanager
def connected(command_home: CommandHome) -> Iterator[socket.socket]:
    with unix_socket.connect_to(command_home.path / "api.sock") as sock:
        sock.settimeout(20)
        yield sock


def client_at(path: Path) -> ApiClient:
    return ApiClient(SocketTransport(path / "api.sock"))


def ask(sock: socket.socket, target: str = "/health", *, method: str = "GET", body: bytes = b"", head: str = "") -> Any:
    """Return status and content of a response on a connection that stays open."""
    length = f"content-length: {len(body)}\r\n" if body else ""
    sock.sendall(f"{method} {target} HTTP/1.1\r\nhost: localhost\r\n{head}{length}\r\n".encode() + body)
    return answer(sock)


def answer(sock: socket.socket) -> tuple[int, Any]:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            return 0, None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])
    while len(body) < int(fields.get(b"content-length", 0)):
        body += sock.recv(65536)
    status = int(head.split(b" ")[1])
    return status, json.loads(body) if fields.get(b"content-type") == b"application/json" else body


def test_only_its_owner_may_open_the_socket(busy: CommandHome) -> None:
    state = (busy.path / "api.sock").stat()
    assert stat.S_ISSOCK(state.st_mode)
    assert stat.S_IMODE(state.st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as somebody else")
def test_another_user_gets_no_answer_even_if_the_file_mode_is_open(command_home: CommandHome) -> None:
    gateway = command_home.start_gateway()
    script = (
        "import os, socket, sys\n"
        "sock = socket.socket(socket.AF_UNIX); os.setuid(65534)\n"
        "sock.connect('api.sock')\n"
        "try:\n    sock.sendall(b'GET /health HTTP/1.1\\r\\nhost: localhost\\r\\n\\r\\n')\nexcept OSError:\n    pass\n"
        "try:\n    sys.exit(len(sock.recv(100)))\nexcept ConnectionResetError:\n    sys.exit(0)"
    )
    (command_home.path / "api.sock").chmod(0o666)
    command_home.path.chmod(0o711)
    stranger = subprocess.run(
        [sys.executable, "-c", script], cwd=command_home.path, capture_output=True, text=True, check=False
    )
    assert stranger.returncode == 0, stranger.stderr
    assert command_home.run_in_process("status", "--json").json["running"]
    wait_until(lambda: any("api_socket.refused" in line for line in gateway.log))


def test_a_caller_on_the_socket_is_an_operator_and_one_that_a_proxy_forwards_is_not(busy: CommandHome) -> None:
    with connected(busy) as sock:
        status, me = ask(sock, "/api/me")
        assert (status, me["operator"]) == (200, True)
    with connected(busy) as sock:
        status, _ = ask(sock, "/api/me", head="x-forwarded-for: 203.0.113.9\r\n")
        assert status == 401
    with connected(busy) as sock:
        status, _ = ask(sock, "/api/me", head="origin: http://evil.example\r\n")
        assert status == 403


BOTH = b'{"text": "x", "chat": "a", "location": {"origin": {"platform": "terminal", "chat": "1"}}}'

# -- what clients may do wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"\x00\xff\xfe garbage\r\n\r\n", b"[1, 2]\n\n", b"GET\r\n\r\n", b"GET /health HTTP/9.9\r\n\r\n"]
)
def test_garbage_is_refused_and_ends_only_that_connection(busy: CommandHome, data: bytes) -> None:
    with connected(busy) as sock, connected(busy) as other:
        sock.sendall(data)
        assert answer(sock)[0] in (0, 400)
        assert ask(other)[1]["role"] == "gateway"


@pytest.mark.parametrize(
    "method, target, body, status",
    [
        ("GET", "/nowhere", b"", 404),
        ("POST", "/health", b"{}", 405),
        ("GET", "/api/sessions?name=nothing", b"", 404),
        ("GET", "/api/events?session=nowhere&after_seq=0", b"", 404),
        ("GET", "/api/events?after_seq=0", b"", 400),
        ("POST", "/api/messages", b"nonsense", 400),
        ("POST", "/api/messages", b'{"text": "where?"}', 400),
        ("POST", "/api/messages", b'{"text": "x", "location": {"origin": {"platform": "telegram", "chat": "1"}}}', 400),
        ("POST", "/api/messages", BOTH, 400),
        ("POST", "/api/messages", b"[" * 100_000, 400),
        ("POST", "/api/backups", b'{"to": "relative.db"}', 400),
        ("POST", "/api/people/link", b'{"identity": "telegram:1", "person": "nobody-known"}', 400),
        ("POST", "/api/schedules/nothing/delete", b"{}", 404),
        ("GET", "/api/memory/export", b"", 400),
        ("GET", "/api/sessions/last/compressions/x/diff", b"", 400),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_and_the_connection_goes_on(
    busy: CommandHome, method: str, target: str, body: bytes, status: int
) -> None:
    with connected(busy) as sock:
        found, content = ask(sock, target, method=method, body=body)
        assert (found, set(content["error"])) == (status, {"type", "message", "remedy"})
        assert ask(sock)[1]["role"] == "gateway"


def test_a_head_that_does_not_end_is_cut_off(busy: CommandHome) -> None:
    with connected(busy) as sock:
        with contextlib.suppress(OSError):
            for _ in range(20):
                sock.sendall(b"x-more: " + b"x" * (1 << 14))
        assert answer(sock)[0] in (0, 400)
    busy.run_in_process("agents").ok()


def test_a_body_may_be_large_and_not_endless(busy: CommandHome) -> None:
    with connected(busy) as sock:
        status, content = ask(sock, "/api/notes", method="POST", head="content-length: 99999999\r\n")
        assert (status, content["error"]["type"]) == (413, "too_large")
    kept = busy.run_in_process("send", "x" * 2_000_000, "--session", "large", "--json").json
    assert (kept["seq"], kept["outcome"]) == (1, "failed"), "it is kept; no model has a window for it"
    done = busy.run_in_process("send", "x" * 20_000_000, "--session", "large")
    assert (done.code, "16,777,216 bytes" in done.err) == (2, True)


def test_clients_that_hang_or_die_do_not_affect_others(busy: CommandHome) -> None:
    session = busy.run_in_process("sessions", "show", "agent:main:terminal:dm:me", "--json").json["session"]["id"]
    follow = f"GET /api/events?session={session}&after_seq=0 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            sock = stack.enter_context(connected(busy))
            sock.sendall(follow)  # and never read
        for _ in range(20):
            with connected(busy) as sock:
                sock.sendall(follow[:20])  # and gone
        big = "x" * 300_000
        assert busy.run_in_process("send", big, "--json").ok().json["outcome"] == "done"
    with connected(busy) as sock:
        assert ask(sock)[1]["role"] == "gateway"


def test_too_many_clients_are_told_to_try_again(busy: CommandHome) -> None:
    with contextlib.ExitStack() as stack:
        held: list[socket.socket] = []

        def hold() -> bool:
            with contextlib.suppress(BlockingIOError):  # the gateway has to take some first
                held.append(stack.enter_context(unix_socket.connect_to(busy.path / "api.sock")))
            return len(held) == 128

        wait_until(hold)

        def refused() -> bool:
            done = busy.run_in_process("agents")
            return done.code == 75 and "too many commands at once" in done.err

        wait_until(refused)
    wait_until(lambda: busy.run_in_process("agents").code == 0)


# -- following ---------------------------------------------------------------------------------------------------------


def test_several_may_follow_and_see_everything_in_order(busy: CommandHome) -> None:
    async def follow(session: str, count: int) -> list[int]:
        seen: list[int] = []
        async with contextlib.aclosing(client_at(busy.path).follow_session(session)) as events:
            async for event in events:
                if "entry" in event:
                    seen.append(event["entry"]["seq"])
                if len(seen) >= count:
                    break
        return seen

    async def all_of_them() -> list[list[int]]:
        client = client_at(busy.path)
        location = await client.find_chat_location("followed")
        session = (await client.send_message(make_message(location, "slow 5")))["session"]
        followers = [asyncio.ensure_future(follow(session, 10)) for _ in range(4)]
        await follow(session, 5)
        await client.send_message(make_message(location, "more"))
        return await asyncio.wait_for(asyncio.gather(*followers), 30)

    assert asyncio.run(all_of_them()) == [list(range(1, 11))] * 4


def test_a_growing_reply_comes_in_deltas_that_add_up(busy: CommandHome) -> None:
    async def watch() -> tuple[str, str, int]:
        client = client_at(busy.path)
        location = await client.find_chat_location("growing")
        sent = await client.send_message(make_message(location, "slow 20"))
        grown, deltas = "", 0
        async with contextlib.aclosing(client.follow_session(sent["session"], after=sent["seq"])) as events:
            async for event in events:
                if "delta" in event:
                    grown = grown[: event["delta"]["at"]] + event["delta"]["text"]
                    deltas += 1
                elif "entry" in event and event["entry"]["kind"] == "said":
                    return grown, event["entry"]["body"]["text"], deltas
        raise AssertionError

    grown, said, deltas = asyncio.run(asyncio.wait_for(watch(), 30))
    assert said.startswith(grown.strip()[:20])
    assert deltas >= 3


def test_a_follower_that_comes_late_sees_what_has_grown(busy: CommandHome, tmp_path: Path) -> None:
    async def watch() -> str:
        client = client_at(busy.path)
        location = await client.find_chat_location("late")
        sent = await client.send_message(make_message(location, f"hold {tmp_path / 'late'}"))
        text = ""
        for _ in range(2):  # the second comes when the first has seen the reply begin
            async with contextlib.aclosing(client.follow_session(sent["session"], after=sent["seq"])) as events:
                async for event in events:
                    if "delta" in event:
                        text = event["delta"]["text"]
                        break
        (tmp_path / "late").touch()
        return text

    assert asyncio.run(asyncio.wait_for(watch(), 30)) == "Holding "


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_follower_is_told_when_the_gateway_ends(command_home: CommandHome, number: int) -> None:
    gateway = command_home.start_gateway()
    session = command_home.run_in_process("send", "hello", "--json").ok().json["session"]

    async def follow() -> None:
        async with contextlib.aclosing(client_at(command_home.path).follow_session(session)) as events:
            async for event in events:
                if "entry" in event and event["entry"]["kind"] == "ended":
                    gateway.signal(number)

    with pytest.raises(GatewayGone):
        asyncio.run(asyncio.wait_for(follow(), 30))
    gateway.wait_until_ended()
    assert (command_home.path / "api.sock").exists() is (number == signal.SIGKILL), "a killed process leaves it behind"
    assert command_home.run("send", "alone").ok().out == "You said: alone\n", "a stale socket misleads nobody"


def test_a_request_that_a_stopping_gateway_cannot_finish_is_not_taken_for_done(
    command_home: CommandHome, tmp_path: Path
) -> None:
    gateway = command_home.start_gateway()
    late = tmp_path / "late"
    asking = command_home.start_command("send", f"hold {late}", "--timeout", "1")
    wait_until(
        lambda: "Holding" in command_home.run_in_process("sessions", "show", "last").out or asking.poll() is not None
    )
    assert asking.wait(20) == 75
    gateway.signal(signal.SIGTERM)
    gateway.signal(signal.SIGTERM)
    assert gateway.wait_until_ended() == 0
    assert "Traceback" not in "\n".join(gateway.log)


def test_a_follower_of_a_quiet_session_costs_next_to_nothing(busy: CommandHome) -> None:
    session = busy.run_in_process("sessions", "show", "agent:main:terminal:dm:me", "--json").json["session"]
    gateway = busy.started[0].pid
    target = f"/api/events?session={session['id']}&after_seq={session['last_seq']}"
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            sock = stack.enter_context(connected(busy))
            sock.sendall(f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
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


@pytest.mark.parametrize(
    "error", [NotFound("no", remedy="look"), InvalidRequest("what?"), StoreFull("full", remedy="room")]
)
def test_an_error_arrives_as_what_it_was(error: EverholdError) -> None:
    arrived = read_error(500, json.loads(json.dumps({"error": show_error(error)})))
    assert (type(arrived), arrived.message, arrived.remedy) == (type(error), error.message, error.remedy)
    assert get_exit_code(arrived) == get_exit_code(error)


@pytest.mark.parametrize("status, code", [(400, 2), (413, 2), (403, 1), (500, 1), (429, 75), (503, 75), (507, 75)])
def test_an_error_of_a_newer_gateway_keeps_its_words_and_has_an_exit_code_by_its_status(status: int, code: int) -> None:
    arrived = read_error(status, {"error": {"type": "eclipse", "message": "dark", "remedy": "wait"}})
    assert (str(arrived), get_exit_code(arrived), get_type_name(arrived)) == ("dark (wait)", code, "eclipse")
    assert get_exit_code(read_error(status, "nonsense")) == 1


def test_a_denied_message_is_refused() -> None:
    assert isinstance(read_error(403, {"error": {"type": "denied", "message": "no", "remedy": ""}}), Refused)


class Canned(ApiTransport):
    """Answers every request with the same bytes."""

    def __init__(self, status: int, *pieces: bytes, is_json: bool = True) -> None:
        self.status, self.pieces, self.is_json = status, pieces, is_json
        self.asked: list[tuple[str, str, bytes | None]] = []

    @contextlib.asynccontextmanager
    async def open(self, method: str, target: str, body: bytes | None) -> AsyncIterator[ApiResponse]:
        self.asked.append((method, target, body))

        async def read() -> AsyncIterator[bytes]:
            for piece in self.pieces:
                yield piece

        yield ApiResponse(self.status, self.is_json, read())


@pytest.mark.parametrize("status, kind", [(503, Transient), (500, GatewayGone)])
async def test_the_servers_own_words_are_understood(status: int, kind: type[EverholdError]) -> None:
    with pytest.raises(kind):
        await ApiClient(Canned(status, b"Service Unavailable", is_json=False)).show_status()


async def test_events_are_read_however_they_are_cut_into_pieces() -> None:
    sent = 'id: 1\nevent: hello\ndata: {}\n\n: heartbeat\n\nevent: entry\ndata: {"seq": 1, "text": "ä"}\n\n'.encode()
    for size in (1, 2, 7, len(sent)):
        pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
        seen = []
        with contextlib.suppress(GatewayGone):  # which the end of a stream means
            async for event in ApiClient(Canned(200, *pieces)).follow_session("s"):
                seen.append(event)
        assert seen == [{"entry": {"seq": 1, "text": "ä"}}]


async def test_what_was_typed_arrives_and_what_is_no_text_becomes_a_replacement() -> None:
    canned = Canned(202, b'{"session": "s", "seq": 1}')
    await ApiClient(canned).send_message({"text": "a\udcffb ä\u2028", "id": "1"})
    ((_, _, body),) = canned.asked
    assert json.loads(body or b"")["text"] == strip_surrogates("a\udcffb ä\u2028")[0]
    with pytest.raises(InvalidRequest, match="invalid characters"):
        await ApiClient(canned).find_session("\udcff")


async def test_names_are_quoted_and_an_empty_one_means_no_session() -> None:
    canned = Canned(200, b'{"sessions": [{"id": "a/b?c"}]}')
    with contextlib.suppress(KeyError):
        await ApiClient(canned).list_compressions("x & y/entries#1")
    assert [target for _, target, _ in canned.asked] == [
        "/api/sessions?name=x+%26+y%2Fentries%231",
        "/api/sessions/a%2Fb%3Fc/compressions",
    ]
    with pytest.raises(NotFound):
        await ApiClient(canned).find_session("")


# -- where it is -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("descriptors", [Path("/proc/self/fd"), Path("/nowhere")], ids=["by handle", "by stepping in"])
def test_a_home_may_have_a_longer_path_than_a_socket(tmp_path: Path, descriptors: Path) -> None:
    if str(descriptors).startswith("/proc") and not descriptors.exists():
        pytest.skip("no /proc here")
    home = tmp_path / ("deep" * 20) / ("deeper" * 20)
    home.mkdir(parents=True)
    before = os.getcwd()
    path = home / "api.sock"
    with (
        unix_socket.listen_at(path, descriptors=descriptors) as server,
        unix_socket.connect_to(path, descriptors=descriptors) as client,
    ):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        server.setblocking(True)
        other, _ = server.accept()
        with other:
            assert unix_socket.is_trusted_peer(other)
            client.setblocking(True)
            client.sendall(b"hello")
            assert other.recv(5) == b"hello"
    assert os.getcwd() == before
    assert sorted(item.name for item in home.iterdir()) == ["api.sock"]


def test_a_gateway_in_a_home_with_a_long_path_is_reached(tmp_path: Path, plugin: Path) -> None:
    command_home = CommandHome(tmp_path / ("deep" * 20) / ("deeper" * 20), plugin)
    try:
        command_home.start_gateway()
        assert command_home.run("send", "hello").ok().out == "You said: hello\n"
        assert command_home.run_in_process("status", "--json").json["running"]
    finally:
        command_home.close()


def test_a_socket_without_a_listener_is_reported(tmp_path: Path) -> None:
    with pytest.raises(GatewayGone, match="no gateway answers"):
        asyncio.run(client_at(tmp_path).show_health())
