"""A real Synapse on loopback, and people in its rooms. It needs `matrix-synapse`, and no network."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import fcntl
import hashlib
import hmac
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import httpx2

SERVER_NAME: Final = "localhost"
START_SECONDS: Final = 90.0
"""Time limit for its start on a busy machine; it needs about six seconds of CPU time."""
UNLIMITED_RATE: Final = {"per_second": 100_000, "burst_count": 100_000}
CLIENT_API_PATH: Final = "/_matrix/client/v3"


def find_free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class SynapseServer:
    """One homeserver in its own directory, for one process or for several that share it.

    It ends with the last of them, also if they are killed.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._residents: dict[str, MatrixTestMember] = {}
        self._secret = directory / "registration"
        self._state = directory / "state.json"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, or join a running one, and wait until it answers."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._hold_lock():
            known = self._read_state()
            if _filter_running(known.users):
                self.port, pid = known.port, known.pid
            else:
                self.port = known.port or find_free_port()
                pid = self._start_process()
            self._write_state(SynapseServerState(self.port, pid, [*_filter_running(known.users), os.getpid()]))
            ends = time.monotonic() + START_SECONDS
            while not self._is_answering():
                ended = self._process is not None and self._process.poll() is not None
                if ended or time.monotonic() > ends:
                    raise RuntimeError(f"Synapse did not start:\n{(self.directory / 'stderr').read_text()[-3000:]}")
                time.sleep(0.1)

    def stop(self) -> None:
        """Leave it. The last process ends it."""
        with self._hold_lock():
            known = self._read_state()
            users = [pid for pid in _filter_running(known.users) if pid != os.getpid()]
            self._write_state(SynapseServerState(known.port, known.pid, users))
            if not users and known.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(known.pid, signal.SIGKILL)  # its data is discarded
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(known.pid, 0)  # unless another process started it

    def _start_process(self) -> int:
        config = self.directory / "homeserver.json"
        config.write_text(json.dumps(self._make_config()))  # JSON is valid YAML
        # the watching process must not consider it abandoned before this process is registered
        self._write_state(SynapseServerState(self.port, 0, [os.getpid()]))
        with (self.directory / "stderr").open("ab") as said:
            command = [sys.executable, "-m", __spec__.name, str(self.directory)]
            self._process = subprocess.Popen(
                command, cwd=self.directory, stdout=said, stderr=said, start_new_session=True
            )
        return self._process.pid

    def _read_state(self) -> SynapseServerState:
        return (
            SynapseServerState(**json.loads(self._state.read_text())) if self._state.exists() else SynapseServerState()
        )

    def _write_state(self, state: SynapseServerState) -> None:
        new = self._state.with_suffix(".new")
        new.write_text(json.dumps(dataclasses.asdict(state)))
        new.replace(self._state)

    @contextlib.contextmanager
    def _hold_lock(self) -> Iterator[None]:
        with (self.directory / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _is_answering(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/_matrix/client/versions", timeout=5.0).status_code == 200
        except httpx2.HTTPError:
            return False

    def _make_config(self) -> dict[str, Any]:
        if not self._secret.exists():
            self._secret.write_text(os.urandom(16).hex())
            seed = base64.b64encode(os.urandom(32)).decode().rstrip("=")
            (self.directory / "signing.key").write_text(f"ed25519 a_test {seed}\n")
        return {
            "server_name": SERVER_NAME,
            "pid_file": str(self.directory / "pid"),
            "listeners": [
                {
                    "port": self.port,
                    "type": "http",
                    "bind_addresses": ["127.0.0.1"],
                    "resources": [{"names": ["client"], "compress": False}],
                }
            ],
            "database": {"name": "sqlite3", "args": {"database": str(self.directory / "homeserver.db")}},
            "media_store_path": str(self.directory / "media"),
            "signing_key_path": str(self.directory / "signing.key"),
            "registration_shared_secret": self._secret.read_text(),
            "macaroon_secret_key": self._secret.read_text(),
            "form_secret": self._secret.read_text(),
            "report_stats": False,
            "trusted_key_servers": [],
            "suppress_key_server_warning": True,
            "federation_domain_whitelist": [],
            "presence": {"enabled": False},
            "url_preview_enabled": False,
            "bcrypt_rounds": 4,
            "rc_message": UNLIMITED_RATE,
            "rc_registration": UNLIMITED_RATE,
            "rc_login": {"address": UNLIMITED_RATE, "account": UNLIMITED_RATE, "failed_attempts": UNLIMITED_RATE},
            "rc_joins": {"local": UNLIMITED_RATE, "remote": UNLIMITED_RATE},
            "rc_joins_per_room": UNLIMITED_RATE,
            "rc_room_creation": UNLIMITED_RATE,
            "rc_invites": {"per_room": UNLIMITED_RATE, "per_user": UNLIMITED_RATE, "per_issuer": UNLIMITED_RATE},
            "rc_media_create": UNLIMITED_RATE,
        }

    # -- people ------------------------------------------------------------------------------------------------------

    async def find_or_register(self, name: str) -> MatrixTestMember:
        """Return the account with this name. It is the same account for every call."""
        if name not in self._residents:
            self._residents[name] = await self.register_member(name)
        known = self._residents[name]
        return MatrixTestMember(known.url, known.id, known.token)  # a connection belongs to one event loop

    async def register_member(self, name: str) -> MatrixTestMember:
        """Register a new account with an unused name, so that tests do not affect each other."""
        name = f"{name}-{os.urandom(4).hex()}"
        async with httpx2.AsyncClient(base_url=self.url, timeout=60.0) as http:
            nonce = (await http.get("/_synapse/admin/v1/register")).json()["nonce"]
            parts = (nonce, name, "not a secret", "notadmin")
            key = self._secret.read_text().encode()
            mac = hmac.new(key, "\0".join(parts).encode(), hashlib.sha1).hexdigest()
            given = {"nonce": nonce, "username": name, "password": parts[2], "mac": mac, "admin": False}
            answer = await http.post("/_synapse/admin/v1/register", json=given)
            assert answer.status_code == 200, answer.text
            registered = answer.json()
        return MatrixTestMember(self.url, registered["user_id"], registered["access_token"])


@dataclass
class SynapseServerState:
    """The processes that use a server, and its URL."""

    port: int = 0
    pid: int = 0
    users: list[int] = field(default_factory=list)


@dataclass
class MatrixTimelineMessage:
    """A message in a room's timeline, with its edits applied."""

    id: str
    sender: str
    text: str
    content: dict[str, Any]
    edits: int = 0
    url: str = ""
    last: dict[str, Any] = field(default_factory=dict)
    """The content of the event that it shows: the last edit, or the message itself."""


@dataclass
class MatrixTestMember:
    """A person with an account and a client. It uses no code of everhold."""

    url: str
    id: str
    token: str
    http: httpx2.AsyncClient = field(init=False)
    _count: int = 0

    def __post_init__(self) -> None:
        self.http = httpx2.AsyncClient(
            base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, timeout=60.0
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.http.aclose()

    async def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = await self.http.request(method, path, json=body if body is not None or method == "GET" else {})
        assert answer.status_code == 200, f"{method} {path}: {answer.status_code} {answer.text}"
        found: dict[str, Any] = answer.json()
        return found

    async def create_room(self, *invited: str, name: str = "", direct: bool = False) -> str:
        """Create a room and return its id."""
        given = {"preset": "private_chat", "invite": list(invited), "is_direct": direct}
        room: str = (
            await self.call("POST", f"{CLIENT_API_PATH}/createRoom", {**given, **({"name": name} if name else {})})
        )["room_id"]
        return room

    async def join_room(self, room: str) -> None:
        await self.call("POST", f"{CLIENT_API_PATH}/join/{quote(room)}")

    async def send_event(self, room: str, content: dict[str, Any], *, kind: str = "m.room.message") -> str:
        self._count += 1
        path = f"{CLIENT_API_PATH}/rooms/{quote(room)}/send/{kind}/t{self._count}-{os.urandom(4).hex()}"
        id: str = (await self.call("PUT", path, content))["event_id"]
        return id

    async def send_text(self, room: str, text: str, **more: Any) -> str:
        return await self.send_event(room, {"msgtype": "m.text", "body": text, **more})

    async def upload(self, data: bytes) -> str:
        answer = await self.http.post("/_matrix/media/v3/upload", content=data)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["content_uri"])

    async def read_events(self, room: str) -> list[dict[str, Any]]:
        """Return every event of a room, in order."""
        found: list[dict[str, Any]] = []
        start = ""
        while True:
            path = f"{CLIENT_API_PATH}/rooms/{quote(room)}/messages?dir=f&limit=500{f'&from={start}' if start else ''}"
            page = await self.call("GET", path)
            found += page["chunk"]
            if not page.get("end") or not page["chunk"]:
                return found
            start = page["end"]

    async def read_timeline(self, room: str) -> list[MatrixTimelineMessage]:
        """Return the messages of a room as its members see them."""
        return render_timeline(await self.read_events(room))

    async def wait_for_message(self, room: str, text: str, *, seconds: float = 60.0) -> MatrixTimelineMessage:
        """Wait for a message that contains a text."""
        async with asyncio.timeout(seconds):
            while True:
                found = next((seen for seen in await self.read_timeline(room) if text in seen.text), None)
                if found is not None:
                    return found
                await asyncio.sleep(0.1)


def render_timeline(events: list[dict[str, Any]]) -> list[MatrixTimelineMessage]:
    """Return events as a client shows them: an edit replaces its original."""
    found: dict[str, MatrixTimelineMessage] = {}
    for event in events:
        content = event["content"]
        if event["type"] != "m.room.message" or "body" not in content:
            continue
        relation = content.get("m.relates_to") or {}
        if relation.get("rel_type") == "m.replace":
            original = found.get(relation["event_id"])
            if original is not None and original.sender == event["sender"]:
                original.text, original.edits = content["m.new_content"]["body"], original.edits + 1
                original.last = content
        else:
            body, url = content["body"], content.get("url", "")
            found[event["event_id"]] = MatrixTimelineMessage(
                event["event_id"], event["sender"], body, content, url=url, last=content
            )
    return list(found.values())


def _filter_running(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            found.append(pid)
    return found


def _run_while_used(directory: Path) -> None:
    """Run a server as long as any process uses it."""
    command = [sys.executable, "-m", "synapse.app.homeserver", "--config-path", str(directory / "homeserver.json")]
    server = subprocess.Popen(command, cwd=directory)
    while server.poll() is None:
        if not _filter_running(json.loads((directory / "state.json").read_text())["users"]):
            server.kill()
        time.sleep(1.0)


if __name__ == "__main__":
    _run_while_used(Path(sys.argv[1]))
