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
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from everhold.api import unix_socket
from everhold.cli.client import ApiClient
from everhold.cli.connect import wait_for_answer
from everhold.cli.errors import get_exit_code, get_type_name, read_error, show_error
from everhold.cli.message import make_message
from everhold.cli.transport import ApiResponse, ApiTransport, GatewayGone, SocketTransport
from everhold.config import ConfigError
from everhold.core.entries import strip_surrogates
from everhold.errors import (
    Conflict,
    EverholdError,
    HomeBusy,
    InvalidRequest,
    NotFound,
    Refused,
    StoreBusy,
    StoreFull,
    Transient,
)
from everhold.infra.home import Home
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


def test_a_socket_caller_is_an_operator_unless_a_proxy_forwards_the_request(busy: CommandHome) -> None:
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

# -- faulty clients ----------------------------------------------------------------------------------------------------


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
        ("POST", "/api/people/link", b'{"identity": "telegram:1", "person": "nobody-known"}', 404),
        ("POST", "/api/schedules/nothing/delete", b"{}", 404),
        ("GET", "/api/memory/export", b"", 400),
        ("GET", "/api/sessions/last/compressions/x/diff", b"", 400),
    ],
)  # fmt: skip
def test_an_invalid_request_is_refused_and_the_connection_stays_open(
    busy: CommandHome, method: str, target: str, body: bytes, status: int
) -> None:
    with connected(busy) as sock:
        found, content = ask(sock, target, method=method, body=body)
        assert (found, set(content["error"])) == (status, {"type", "message", "remedy"})
        assert ask(sock)[1]["role"] == "gateway"


def test_an_endless_request_head_is_cut_off(busy: CommandHome) -> None:
    with connected(busy) as sock:
        with contextlib.suppress(OSError):
            for _ in range(20):
                sock.sendall(b"x-more: " + b"x" * (1 << 14))
        assert answer(sock)[0] in (0, 400)
    busy.run_in_process("agents").ok()


def test_a_body_may_be_large_but_not_endless(busy: CommandHome) -> None:
    with connected(busy) as sock:
        status, content = ask(sock, "/api/notes", method="POST", head="content-length: 99999999\r\n")
        assert (status, content["error"]["type"]) == (413, "too_large")
    kept = busy.run_in_process("send", "x" * 2_000_000, "--session", "large", "--json").json
    assert (kept["seq"], kept["outcome"]) == (1, "failed"), "the message is stored, although it fits into no window"
    done = busy.run_in_process("send", "x" * 20_000_000, "--session", "large")
    assert (done.code, "16,777,216 bytes" in done.err) == (2, True)


def test_clients_that_hang_or_die_do_not_affect_others(busy: CommandHome) -> None:
    session = busy.run_in_process("sessions", "show", "agent:main:terminal:dm:me", "--json").json["session"]["id"]
    follow = f"GET /api/events?session={session}&after_seq=0 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            sock = stack.enter_context(connected(busy))
            sock.sendall(follow)  # and never reads the response
        for _ in range(20):
            with connected(busy) as sock:
                sock.sendall(follow[:20])  # and disconnects
        big = "x" * 300_000
        assert busy.run_in_process("send", big, "--json").ok().json["outcome"] == "done"
    with connected(busy) as sock:
        assert ask(sock)[1]["role"] == "gateway"


def test_too_many_clients_are_told_to_try_again(busy: CommandHome) -> None:
    with contextlib.ExitStack() as stack:
        held: list[socket.socket] = []

        def hold() -> bool:
            with contextlib.suppress(BlockingIOError):  # the gateway must accept some connections first
                held.append(stack.enter_context(unix_socket.connect_to(busy.path / "api.sock")))
            return len(held) == 128

        wait_until(hold)

        def refused() -> bool:
            done = busy.run_in_process("agents")
            return done.code == 75 and "too many commands at once" in done.err

        wait_until(refused)
    wait_until(lambda: busy.run_in_process("agents").code == 0)


# -- following ---------------------------------------------------------------------------------------------------------


def test_several_followers_see_every_entry_in_order(busy: CommandHome) -> None:
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


def test_a_growing_reply_is_sent_in_deltas_that_add_up(busy: CommandHome) -> None:
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


def test_a_late_follower_sees_the_text_so_far(busy: CommandHome, tmp_path: Path) -> None:
    async def watch() -> str:
        client = client_at(busy.path)
        location = await client.find_chat_location("late")
        sent = await client.send_message(make_message(location, f"hold {tmp_path / 'late'}"))
        text = ""
        for _ in range(2):  # the second follower connects once the first has seen a delta
            async with contextlib.aclosing(client.follow_session(sent["session"], after=sent["seq"])) as events:
                async for event in events:
                    if "delta" in event:
                        text = event["delta"]["text"]
                        break
        (tmp_path / "late").touch()
        return text

    assert asyncio.run(asyncio.wait_for(watch(), 30)) == "Holding "


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_follower_is_told_when_the_gateway_stops(command_home: CommandHome, number: int) -> None:
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
    assert (command_home.path / "api.sock").exists() is (number == signal.SIGKILL), "a killed process leaves its socket"
    assert command_home.run("send", "alone").ok().out == "You said: alone\n", "a stale socket is ignored"


def test_an_unfinished_request_at_a_stopping_gateway_is_not_reported_as_done(
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


def test_a_follower_of_a_quiet_session_uses_almost_no_cpu(busy: CommandHome) -> None:
    session = busy.run_in_process("sessions", "show", "agent:main:terminal:dm:me", "--json").json["session"]
    gateway = busy.started[0].pid
    target = f"/api/events?session={session['id']}&after_seq={session['last_seq']}"
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            sock = stack.enter_context(connected(busy))
            sock.sendall(f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        # a gateway that has just started uses CPU for other work
        assert any(spent(gateway) < 0.2 for _ in range(8))


def spent(pid: int) -> float:
    before = cpu_seconds(pid)
    time.sleep(1.0)
    return cpu_seconds(pid) - before


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- errors over HTTP --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [NotFound("no", remedy="look"), InvalidRequest("what?"), StoreFull("full", remedy="room")]
)
def test_an_error_keeps_its_type_message_and_remedy_over_http(error: EverholdError) -> None:
    arrived = read_error(500, json.loads(json.dumps({"error": show_error(error)})))
    assert (type(arrived), arrived.message, arrived.remedy) == (type(error), error.message, error.remedy)
    assert get_exit_code(arrived) == get_exit_code(error)


@pytest.mark.parametrize(
    "error, code",
    [
        (InvalidRequest("what?"), 2),
        (NotFound("no"), 1),
        (Refused("no"), 1),
        (HomeBusy("in use"), 1),
        (Transient("later"), 75),
        (Conflict("changed"), 75),
        (StoreBusy("locked"), 75),
        (StoreFull("full"), 75),
        (ConfigError([]), 78),
    ],
)
def test_each_error_has_the_exit_code_of_the_reference(error: EverholdError, code: int) -> None:
    assert get_exit_code(error) == code


@pytest.mark.parametrize("status, code", [(400, 2), (413, 2), (403, 1), (500, 1), (429, 75), (503, 75), (507, 75)])
def test_an_unknown_error_keeps_its_message_and_gets_an_exit_code_by_status(status: int, code: int) -> None:
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


class Scripted(Canned):
    """Answers each request with the next of its contents."""

    def __init__(self, *contents: object) -> None:
        super().__init__(200)
        self.contents = list(contents)

    @contextlib.asynccontextmanager
    async def open(self, method: str, target: str, body: bytes | None) -> AsyncIterator[ApiResponse]:
        self.pieces = (json.dumps(self.contents.pop(0)).encode(),)
        async with super().open(method, target, body) as response:
            yield response


async def test_dead_letters_are_read_from_all_pages() -> None:
    transport = Scripted(
        {"dead_letters": [{"id": 3}], "next": 3},
        {"dead_letters": [], "next": 9},
        {"dead_letters": [{"id": 12}], "next": None},
    )
    assert await ApiClient(transport).list_dead_letters() == {"dead_letters": [{"id": 3}, {"id": 12}]}
    assert [target.partition("after=")[2].partition("&")[0] for _, target, _ in transport.asked] == ["0", "3", "9"]


async def test_an_import_in_several_requests_reports_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everhold.cli.client.IMPORT_BYTES", 10)
    one, two = ({"files": [name], "facts": 2, "notes": 1, "noted": 3, "done": True} for name in ("a.md", "b.md"))
    transport = Scripted({"sessions": [{"id": "s"}], "next": None}, one, two)
    done = await ApiClient(transport).import_memory_files("last", {"a.md": "x" * 9, "b.md": "y" * 9}, dry_run=False)
    assert done == {"files": ["a.md", "b.md"], "facts": 4, "notes": 2, "noted": 6, "done": True}
    sent = [json.loads(body or b"") for _, _, body in transport.asked[1:]]
    assert [list(request["files"]) for request in sent] == [["a.md"], ["b.md"]]


async def test_a_follower_gets_entries_deltas_and_resets_and_nothing_else() -> None:
    events = ("hello", "delta", "reset", "entry", "later")
    stream = "".join(f'event: {name}\ndata: {{"n": {number}}}\n\n' for number, name in enumerate(events))
    found = []
    with contextlib.suppress(GatewayGone):  # which the end of a stream means
        async for event in ApiClient(Canned(200, stream.encode())).follow_session("s"):
            found.append(event)
    assert found == [{"delta": {"n": 1}}, {"reset": {"n": 2}}, {"entry": {"n": 3}}]


@pytest.mark.parametrize("status, kind", [(503, Transient), (500, GatewayGone)])
async def test_plain_text_errors_of_the_server_are_understood(status: int, kind: type[EverholdError]) -> None:
    with pytest.raises(kind):
        await ApiClient(Canned(status, b"Service Unavailable", is_json=False)).show_status()


async def test_events_are_parsed_however_they_are_split() -> None:
    sent = 'id: 1\nevent: hello\ndata: {}\n\n: heartbeat\n\nevent: entry\ndata: {"seq": 1, "text": "ä"}\n\n'.encode()
    for size in (1, 2, 7, len(sent)):
        pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
        seen = []
        with contextlib.suppress(GatewayGone):  # the end of a stream means this
            async for event in ApiClient(Canned(200, *pieces)).follow_session("s"):
                seen.append(event)
        assert seen == [{"entry": {"seq": 1, "text": "ä"}}]


async def test_text_is_sent_unchanged_except_for_invalid_characters() -> None:
    canned = Canned(202, b'{"session": "s", "seq": 1}')
    await ApiClient(canned).send_message({"text": "a\udcffb ä\u2028", "id": "1"})
    ((_, _, body),) = canned.asked
    assert json.loads(body or b"")["text"] == strip_surrogates("a\udcffb ä\u2028")[0]
    with pytest.raises(InvalidRequest, match="invalid characters"):
        await ApiClient(canned).find_session("\udcff")


async def test_session_names_are_quoted_and_an_empty_name_finds_no_session() -> None:
    canned = Canned(200, b'{"sessions": [{"id": "a/b?c"}]}')
    with contextlib.suppress(KeyError):
        await ApiClient(canned).list_compressions("x & y/entries#1")
    assert [target for _, target, _ in canned.asked] == [
        "/api/sessions?name=x+%26+y%2Fentries%231",
        "/api/sessions/a%2Fb%3Fc/compressions",
    ]
    with pytest.raises(NotFound):
        await ApiClient(canned).find_session("")


# -- paths of homes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "descriptors", [Path("/proc/self/fd"), Path("/nowhere")], ids=["by file descriptor", "by changing directory"]
)
def test_a_home_path_may_be_longer_than_a_socket_path(tmp_path: Path, descriptors: Path) -> None:
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


# -- a process that is not a gateway, or does not answer ---------------------------------------------------------------


@contextlib.contextmanager
def answering(path: Path, reply: bytes | None) -> Iterator[None]:
    """A process at api.sock that sends the same bytes to everyone; None: it never answers."""

    def serve() -> None:
        with contextlib.suppress(OSError):  # the listening socket was shut down
            while True:
                sock, _ = listening.accept()
                with sock, contextlib.suppress(ConnectionError):
                    sock.recv(65536)
                    if reply is None:
                        sock.recv(1)  # returns when the client gives up
                    else:
                        sock.sendall(reply)

    with unix_socket.listen_at(path / "api.sock") as listening:
        listening.setblocking(True)
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    "reply",
    [
        b"220 mail ready\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 fine\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n[1]",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
@pytest.mark.parametrize("command", [("status",), ("send", "hi")])
def test_a_foreign_process_at_the_socket_is_named_and_is_not_a_bug(
    command_home: CommandHome, reply: bytes, command: tuple[str, ...]
) -> None:
    (command_home.path / "everhold.db").touch()
    with answering(command_home.path, reply):
        told = command_home.run_in_process(*command)
    assert told.code == 1
    assert "is not an everhold gateway\n  → end it, delete api.sock" in told.err


@pytest.mark.parametrize("command", [("status",), ("sessions", "list"), ("send", "--timeout", "1", "hi")])
def test_a_command_does_not_wait_forever_for_a_gateway_that_hangs(
    command_home: CommandHome, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    (command_home.path / "everhold.db").touch()
    monkeypatch.setattr("everhold.cli.connect.HEALTH_SECONDS", 0.05)
    with answering(command_home.path, None):
        told = command_home.run_in_process(*command)
    assert told.code == 75
    assert "accepts connections, but did not answer within 0.05 seconds" in told.err


def test_status_says_that_a_gateway_is_frozen(command_home: CommandHome) -> None:
    gateway = command_home.start_gateway()
    pid = gateway.process.pid
    gateway.signal(signal.SIGSTOP)
    try:
        for command in (("status",), ("status", "--json"), ("doctor",)):
            told = command_home.run_in_process(*command)
            assert told.code == 75, told
            assert f"(process {pid}) is frozen: a signal stopped it, so messages wait" in told.err
            assert f"kill -CONT {pid} lets it continue" in told.err
    finally:
        gateway.signal(signal.SIGCONT)
    assert command_home.run_in_process("status").code == 0


def test_a_gateway_that_freezes_while_it_answers_is_named(command_home: CommandHome) -> None:
    """The answer never comes, and the process in the lock is stopped."""
    child = subprocess.Popen(["sleep", "600"])
    try:
        (command_home.path / "lock").write_text(f"{child.pid}\n")
        child.send_signal(signal.SIGSTOP)
        with pytest.raises(Transient, match=rf"process {child.pid}\) is frozen"):
            asyncio.run(wait_for_answer(Home(command_home.path), asyncio.sleep(3600)))
    finally:
        child.kill()
        child.wait()


def test_a_gateway_whose_socket_was_deleted_is_named(
    command_home: CommandHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = command_home.start_gateway()
    monkeypatch.setattr("everhold.cli.connect.BUSY_SECONDS", 0.0)
    (command_home.path / "api.sock").unlink()
    told = command_home.run_in_process("status")
    assert told.code == 1
    assert f"(process {gateway.process.pid}) is using" in told.err
    assert f"but does not answer at {command_home.path / 'api.sock'}\n  → if it is a gateway, restart it" in told.err
