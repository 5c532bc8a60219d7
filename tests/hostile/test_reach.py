"""Whoever reaches the port without a credential gets nothing: through proxies, forwarded ports, as any user."""

from __future__ import annotations

import contextlib
import json
import shutil
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest

from everhold.api.reference import build_route_table
from everhold.core.callers import CallerRole
from everhold.testing.kill.gateway import KillableGateway
from tests.hostile.reaching_programs import (
    CADDY_LINES,
    NGINX_LINES,
    make_certificate,
    run_as_nobody,
    run_caddy,
    run_nginx,
    run_socat,
    run_ssh,
)
from tests.waiting import LIMIT_SECONDS

HOSTS = ("", "localhost", "127.0.0.1", "evil.example")
TRICKS: tuple[dict[str, str], ...] = (
    {},
    {"x-forwarded-for": "127.0.0.1"},
    {"forwarded": "for=127.0.0.1;host=localhost;proto=http"},
    {"x-real-ip": "127.0.0.1", "x-forwarded-host": "localhost", "x-forwarded-proto": "https"},
    {"cookie": "everhold_0123456789abcdef=0", "x-everhold-key": "0123456789abcdef.0"},
)


@pytest.fixture(scope="module")
def reachable_directory() -> Iterator[Path]:
    """A directory that every user of this machine can enter."""
    path = make_reachable()
    yield path
    shutil.rmtree(path)


def make_reachable(directory: Path | None = None) -> Path:
    path = Path(tempfile.mkdtemp(prefix="everhold-hostile-", dir=directory))
    path.chmod(0o755)
    return path


@pytest.fixture
async def gateway(reachable_directory: Path) -> AsyncIterator[KillableGateway]:
    made = KillableGateway(make_reachable(reachable_directory) / "home", "agents: {main: {}}\n")
    await made.start()
    yield made
    await made.close()


@contextlib.contextmanager
def reach(how: str, directory: Path, target: int) -> Iterator[int]:
    """Yield a port that leads to the gateway."""
    program, _, lines = how.partition(" ")
    with contextlib.ExitStack() as stack:
        match program:
            case "nginx":
                yield stack.enter_context(run_nginx(directory, target, NGINX_LINES[lines]))
            case "caddy":
                yield stack.enter_context(run_caddy(directory, target, CADDY_LINES[lines]))
            case "socat":
                yield stack.enter_context(run_socat(target))
            case "ssh":
                yield stack.enter_context(run_ssh(directory, target))
            case _:
                yield target


WAYS = ["directly", "socat", "ssh -R", *(f"nginx {it}" for it in NGINX_LINES), *(f"caddy {it}" for it in CADDY_LINES)]


@pytest.mark.parametrize("how", WAYS)
async def test_without_a_credential_nothing_answers(gateway: KillableGateway, tmp_path: Path, how: str) -> None:
    async with gateway.open_client(seconds=LIMIT_SECONDS) as client:
        sent = await client.post("/api/messages", json={"chat": "x", "text": "the secret"})
        assert sent.status_code == 202
    closed = [it for it in build_route_table() if it.least is not CallerRole.ANYBODY]
    with reach(how, tmp_path / "proxy", gateway.port) as port:
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=LIMIT_SECONDS
        ) as client:
            assert (await client.get("/health")).json() == {"status": "ok"}, "the way leads to the gateway"
            seen = set()
            for host in HOSTS:
                for trick in TRICKS:
                    headers = {**trick, **({"host": host} if host else {})}
                    answer = await client.get("/api/sessions", headers=headers)
                    seen.add(answer.status_code)
                    assert answer.status_code == 401 or is_foreign_to_caddy(how, host, answer), (headers, answer.text)
                    assert "secret" not in answer.text
            assert 401 in seen
            for route in closed:
                path = route.path.replace("{id}", "last").replace("{name}", "builtin").replace("{op}", "1")
                answer = await client.request(route.method, path)
                assert answer.status_code in (401, 429), (route.call, answer.status_code)
            token = {"authorization": f"Bearer {gateway.token}"}
            assert (await client.get("/api/sessions", headers=token)).status_code == 200, "a credential is enough"
    async with gateway.open_client(seconds=LIMIT_SECONDS) as client:
        assert len((await client.get("/api/sessions")).json()["sessions"]) == 1


def is_foreign_to_caddy(how: str, host: str, answer: httpx2.Response) -> bool:
    """Whether Caddy itself answered, because it serves only the hosts in its configuration."""
    return how.startswith("caddy") and answer.status_code == 200 and not answer.content


CALL = """
found = {}
port = int(sys.argv[1])
for path in json.loads(sys.argv[2]):
    for headers in ({}, {"Host": "localhost"}, {"X-Forwarded-For": "127.0.0.1"}):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", path, headers=headers)
        found.setdefault(path, []).append(connection.getresponse().status)
print(json.dumps({"uid": os.getuid(), "found": found}))
"""
READ = """
found = {}
home = sys.argv[1]
for name in (".env", "api.sock", "everhold.db", "lock", "login.html", "logs"):
    try:
        if name == "api.sock":
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(os.path.join(home, name))
        elif name == "logs":
            os.listdir(os.path.join(home, name))
        else:
            open(os.path.join(home, name), "rb").read()
        found[name] = "open"
    except OSError as error:
        found[name] = type(error).__name__
print(json.dumps(found))
"""


async def test_another_unix_user_gets_nothing_over_tcp(gateway: KillableGateway) -> None:
    paths = ["/api/me", "/api/sessions", "/api/status", "/metrics", "/openapi.json", "/v1/models", "/health"]
    told = json.loads(run_as_nobody(CALL, str(gateway.port), json.dumps(paths)))
    assert told["uid"] == 65534
    assert told["found"].pop("/health") == [200, 200, 200]
    assert {status for statuses in told["found"].values() for status in statuses} == {401}


@pytest.mark.parametrize("mode", [0o700, 0o755])
async def test_another_unix_user_can_use_no_file_of_the_home(gateway: KillableGateway, mode: int) -> None:
    gateway.home.login_page.write_text("x")
    gateway.home.login_page.chmod(0o600)
    gateway.home.path.chmod(mode)
    found = json.loads(run_as_nobody(READ, str(gateway.home.path)))
    assert set(found.values()) == {"PermissionError"}, found


async def test_a_file_that_others_may_read_is_found(gateway: KillableGateway) -> None:
    """Plants the vulnerability for the test above."""
    gateway.home.path.chmod(0o755)
    gateway.home.env.chmod(0o644)
    found = json.loads(run_as_nobody(READ, str(gateway.home.path)))
    assert {name for name, how in found.items() if how == "open"} == {".env"}


async def test_behind_nginx_with_tls_the_login_has_a_secure_cookie(gateway: KillableGateway, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    with gateway.home.config.open("a") as config:
        config.write("http: {trusted_proxies: [127.0.0.1]}\n")
    trust = ssl.create_default_context(cafile=str(certificate))
    lines = NGINX_LINES["as documented"]
    with run_nginx(tmp_path / "proxy", gateway.port, lines, certificate=certificate) as port:
        url = f"https://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=url, verify=trust, trust_env=False, timeout=LIMIT_SECONDS) as client:
            own = {"origin": url, "sec-fetch-site": "same-origin"}
            answer = await client.post("/api/login", json={"token": gateway.token}, headers=own)
            assert answer.status_code == 200, answer.text
            cookie = answer.headers["set-cookie"]
            assert cookie.startswith("__Host-everhold_")
            assert cookie.endswith("; HttpOnly; SameSite=Strict; Secure")
            key = {"x-everhold-key": answer.json()["key"]}
            assert (await client.get("/api/sessions", headers={**own, **key})).status_code == 200
            async with client.stream("GET", "/api/events", headers={**own, **key}) as stream:
                assert (await anext(stream.aiter_lines())).startswith("retry:"), "nginx does not hold the stream back"
            client.cookies.clear()
            assert (await client.get("/api/sessions", headers={**own, **key})).status_code == 401
