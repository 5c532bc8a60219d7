"""Logins: a cookie and a key from a code or a token, their end, and what a copy of the store reveals."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everhold.api import request
from everhold.api.auth import find_credential_by_name
from everhold.api.logins import MAX_CODES, MAX_LOGINS, MAX_TOKEN_CODES, MAX_TOKEN_LOGINS
from everhold.app import GatewayApp, SystemClock, load_home_settings
from everhold.cli.client import ApiClient
from everhold.cli.transport import SocketTransport
from everhold.core.callers import CODE_SECONDS, FRESH_SECONDS, LOGIN_SECONDS
from everhold.errors import StoreError, StoreFull
from everhold.ports.store import StateNamespace
from everhold.telemetry.logs import open_log
from everhold.testing.model_server import ModelServer
from tests.api.conftest import (
    ADA,
    BOB,
    LOCAL,
    OPERATOR,
    SECRETS,
    TOKENS,
    ApiGateway,
    configuration,
    events_of,
)
from tests.waiting import LIMIT_SECONDS, wait_until

SENSITIVE = {
    "POST /api/login-codes": {},
    "GET /api/sessions/last/export": None,
    "POST /api/sessions/last/erase": {"seqs": [1]},
    "POST /api/memory/forget": {"person": "nobody", "dry_run": True},
    "GET /api/memory/export?person=ada": None,
    "GET /api/memory/files?person=ada": None,
    "GET /api/config": None,
    "GET /api/config/versions": None,
    "POST /api/config": {"text": "", "base": "0" * 64},
    "POST /api/config/undo": {"id": 1, "base": "0" * 64},
    "POST /api/setup/model": {},
    "POST /api/setup/account": {},
    "POST /api/invitations": {},
    "POST /api/backups": {},
    "POST /api/drain": {},
    "GET /api/me/export": None,
    "POST /api/me/forget": {},
    "POST /api/config/check": {"text": ""},
}
REFUSED_LATER = {
    "POST /api/config": (409,),
    "POST /api/setup/model": (400,),
    "POST /api/setup/account": (400,),
    "POST /api/invitations": (400,),
}
"""Calls that are refused for their contents, once the login is fresh enough, and how."""


class SettableClock(SystemClock):
    """The machine's clock, moved by a number of seconds."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return SystemClock.now() + self.ahead


class LoginGateway(ApiGateway):
    """A gateway whose clock can be set."""

    def __init__(self, path: Path, model: ModelServer) -> None:
        super().__init__(path, model)
        self.clock = SettableClock()

    async def start(self) -> LoginGateway:
        log = open_log(clock=SystemClock(), home=self.home.path, stream=self.log)
        settings = load_home_settings(self.home, environ={})
        self.app = GatewayApp(self.home, settings, log=log, environ={}, clock=self.clock)
        await self.app.start()
        self.port = int((await self.app.serve(port=self.port)).rpartition(":")[2])
        return self

    async def make_code(self, **given: str) -> str:
        """Make a code as `everhold open` does, through the socket."""
        return str((await ApiClient(SocketTransport(self.home.api_socket)).create_login_code(**given))["code"])

    async def log_in(self, **proof: Any) -> Browser:
        made = Browser(self)
        answer = await made.log_in(**proof)
        assert answer.status_code == 200, answer.text
        return made


class Browser:
    """What a browser keeps: the cookies of a host, and the key of the page."""

    def __init__(self, gateway: ApiGateway, **headers: str) -> None:
        self.http = gateway.client("", **headers)
        self.cookies: dict[str, str] = {}
        self.key = ""

    async def log_in(self, **proof: Any) -> httpx2.Response:
        answer = await self.request("POST", "/api/login", json=proof)
        if answer.status_code == 200:
            self.key = answer.json()["key"]
        return answer

    async def request(self, method: str, path: str, **more: Any) -> httpx2.Response:
        answer = await self.http.request(method, path, headers=self.headers(), **more)
        self.http.cookies.clear()  # the jar of the client must not add what a test leaves out
        for line in answer.headers.get_list("set-cookie"):
            name, value = line.partition(";")[0].split("=", 1)
            self.cookies[name] = value
            if "Max-Age=0" in line:
                del self.cookies[name]
        return answer

    def headers(self, *, cookie: bool = True, key: bool = True) -> dict[str, str]:
        found = {"origin": f"http://{self.http.base_url.host}:{self.http.base_url.port}"}
        if cookie and self.cookies:
            found["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if key and self.key:
            found["x-everhold-key"] = self.key
        return found

    async def get(self, path: str) -> httpx2.Response:
        return await self.request("GET", path)

    async def is_in(self) -> bool:
        return (await self.get("/api/me")).status_code == 200


@pytest.fixture
async def gateway(tmp_path: Path, model: ModelServer) -> AsyncIterator[LoginGateway]:
    made = LoginGateway(tmp_path, model)
    try:
        yield await made.start()
    finally:
        await made.stop()


# -- both halves -------------------------------------------------------------------------------------------------------


async def test_a_login_needs_its_cookie_and_its_key(gateway: LoginGateway) -> None:
    page = await gateway.log_in(code=await gateway.make_code())
    me = (await page.get("/api/me")).json()
    assert (me["role"], me["local"], me["login"]) == ("operator", True, page.key.partition(".")[0])
    for half in ({"cookie": False}, {"key": False}, {"cookie": False, "key": False}):
        answer = await page.http.get("/api/me", headers=page.headers(**half))
        assert answer.status_code == 401, half
    other = await gateway.log_in(token=LOCAL)
    for headers in (
        {**page.headers(), "x-everhold-key": other.key},
        {**page.headers(), "cookie": other.headers()["cookie"]},
        {**page.headers(), "x-everhold-key": page.key[:-1]},
        {**page.headers(), "x-everhold-key": page.key.partition(".")[0] + "."},
        {**page.headers(), "x-everhold-key": page.key.partition(".")[0] + "." + other.key.partition(".")[2]},
        {**page.headers(), "cookie": page.headers()["cookie"][:-1]},
        {**page.headers(), "cookie": page.headers()["cookie"].partition("=")[0] + "="},
        {**page.headers(), "x-everhold-key": "../x.y"},
    ):
        assert (await page.http.get("/api/me", headers=headers)).status_code == 401, headers
    assert await page.is_in()


async def test_the_cookie_is_for_this_host_and_no_script(gateway: LoginGateway) -> None:
    page = Browser(gateway)
    answer = await page.log_in(token=LOCAL)
    (line,) = answer.headers.get_list("set-cookie")
    assert re.fullmatch(
        r"everhold_[0-9a-f]{16}=[0-9a-f]{64}; Path=/; Max-Age=34560000; HttpOnly; SameSite=Strict", line
    )
    assert next(iter(page.cookies.values())) not in answer.text
    assert page.key.partition(".")[2] not in line


async def test_two_gateways_on_one_host_keep_each_other_s_logins(
    gateway: LoginGateway, tmp_path: Path, model: ModelServer
) -> None:
    second = await LoginGateway(tmp_path / "second", model).start()
    try:
        first_page, second_page = await gateway.log_in(token=LOCAL), await second.log_in(token=LOCAL)
        jar = {**first_page.cookies, **second_page.cookies}  # browsers send the cookies of a host to all its ports
        first_page.cookies = second_page.cookies = jar
        assert len(jar) == 2
        assert await first_page.is_in()
        assert await second_page.is_in()
        second_page.key = first_page.key
        assert not await second_page.is_in()
    finally:
        await second.stop()


async def test_a_page_of_another_origin_cannot_use_a_login(gateway: LoginGateway) -> None:
    page = await gateway.log_in(token=LOCAL)
    for foreign in (
        {"origin": "https://evil.example"},
        {"origin": f"http://127.0.0.1:{gateway.port + 1}"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        headers = {**page.headers(), **foreign}
        for method, path in (("GET", "/api/sessions"), ("POST", "/api/messages"), ("POST", "/api/login")):
            answer = await page.http.request(method, path, headers=headers, json={"chat": "x", "text": "y"})
            assert answer.status_code == 403, (method, path, foreign)
    assert await gateway.running.store.read_feed() == []


async def test_https_is_believed_from_a_trusted_proxy_only(tmp_path: Path, model: ModelServer) -> None:
    gateway = LoginGateway(tmp_path, model)
    await gateway.start()
    told = {"x-forwarded-proto": "https"}
    try:
        plain = Browser(gateway, **told)
        answer = await plain.log_in(token=LOCAL)
        assert "Secure" not in answer.headers["set-cookie"]
        gateway.configure(
            configuration(model.openai, more=TOKENS.replace("port: 0", "port: 0\n  trusted_proxies: [127.0.0.1]"))
        )
        page = Browser(gateway, **told)
        answer = await page.log_in(token=LOCAL)
        assert answer.headers["set-cookie"].startswith("__Host-everhold_")
        assert answer.headers["set-cookie"].endswith("; Secure")
        page.http.headers["origin"] = gateway.url
        assert await page.is_in()
        name, value = next(iter(page.cookies.items()))
        page.cookies = {name.removeprefix("__Host-"): value}  # a cookie that any page of the domain could set
        assert not await page.is_in()
    finally:
        await gateway.stop()


# -- codes -------------------------------------------------------------------------------------------------------------


async def test_a_code_works_once(gateway: LoginGateway) -> None:
    code = await gateway.make_code()
    assert re.fullmatch("[0-9a-f]{32}", code)
    assert (await Browser(gateway).log_in(code=code)).status_code == 200
    assert (await Browser(gateway).log_in(code=code)).status_code == 401


async def test_of_many_simultaneous_uses_of_a_code_one_succeeds(gateway: LoginGateway) -> None:
    code = await gateway.make_code()
    answers = await asyncio.gather(*(Browser(gateway).log_in(code=code) for _ in range(12)))
    assert sorted(answer.status_code for answer in answers) == [200] + [401] * 11


@pytest.mark.parametrize("seconds, works", [(CODE_SECONDS - 60, True), (CODE_SECONDS + 1, False), (-3_600.0, False)])
async def test_a_code_works_for_ten_minutes(gateway: LoginGateway, seconds: float, works: bool) -> None:
    code = await gateway.make_code()
    gateway.clock.ahead = seconds
    assert (await Browser(gateway).log_in(code=code)).status_code == (200 if works else 401)


@pytest.mark.parametrize(
    "proof", [{"code": "0" * 32}, {"token": "x" * 40}, {"token": LOCAL[:-1]}, {"token": f"{LOCAL} "}]
)
async def test_a_wrong_proof_makes_no_login(gateway: LoginGateway, proof: dict[str, str]) -> None:
    page = Browser(gateway)
    answer = await page.log_in(**proof)
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert await gateway.running.store.list_state_records(StateNamespace.LOGIN) == []


async def test_login_attempts_are_limited_per_client(gateway: LoginGateway) -> None:
    page = Browser(gateway)
    seen = [(await page.log_in(token=f"guess-{number}-{'x' * 32}")).status_code for number in range(100)]
    assert set(seen) == {401, 429}
    assert seen.count(401) < 90


async def test_logins_with_one_token_are_limited_and_keep_nobody_else_out(gateway: LoginGateway) -> None:
    """Whoever has a token, or a program in a loop, does not fill the store and the log with logins."""
    code = await gateway.make_code(token="laptop")
    page = Browser(gateway)
    seen = [(await page.http.post("/api/login", json={"token": ADA})).status_code for _ in range(100)]
    assert (set(seen), seen[0], seen[-1]) == ({200, 429}, 200, 429)
    assert seen.count(200) < 90
    assert (await page.http.post("/api/login", json={"token": f"{ADA}x"})).status_code == 401
    await gateway.log_in(token=OPERATOR)
    await gateway.log_in(code=code, replace=True)


# -- the end -----------------------------------------------------------------------------------------------------------


async def test_a_login_that_was_ended_is_refused_at_once(gateway: LoginGateway) -> None:
    page, other = await gateway.log_in(token=LOCAL), await gateway.log_in(token=LOCAL)
    listed = (await page.get("/api/logins")).json()["logins"]
    assert [it["current"] for it in listed].count(True) == 1
    id = other.key.partition(".")[0]
    assert (await page.request("POST", f"/api/logins/{id}/end", json={})).status_code == 200
    assert not await other.is_in()
    assert await page.is_in()
    assert (await page.request("POST", f"/api/logins/{id}/end", json={})).status_code == 404
    assert (await page.request("POST", "/api/logout", json={})).status_code == 200
    assert page.cookies == {}
    assert not await page.is_in()


async def test_a_login_ends_with_its_token_and_no_other_does(gateway: LoginGateway) -> None:
    ada, boss = await gateway.log_in(token=ADA), await gateway.log_in(token=OPERATOR)
    code = await gateway.make_code(token="boss")
    gateway.home.env.write_text(SECRETS.replace(OPERATOR, "rotated-token-" + "0123456789abcdef" * 2))
    assert not await boss.is_in()
    assert await ada.is_in()
    assert (await Browser(gateway).log_in(code=code)).status_code == 401, "nor does a code for it work"
    assert [it["token"] for it in (await ada.get("/api/logins")).json()["logins"]] == ["laptop"]


async def test_a_login_has_the_rights_that_its_token_has_now(gateway: LoginGateway, model: ModelServer) -> None:
    page = await gateway.log_in(token=OPERATOR)
    assert (await page.get("/api/status")).status_code == 200
    gateway.configure(configuration(model.openai, more=TOKENS.replace(", role: operator", ", role: member")))
    assert (await page.get("/api/status")).status_code == 403
    gateway.configure(configuration(model.openai, more=TOKENS.replace("- {name: boss", "# - {name: boss")))
    assert not await page.is_in()


async def test_a_login_ends_thirty_days_after_its_last_use(gateway: LoginGateway) -> None:
    used, unused = await gateway.log_in(token=LOCAL), await gateway.log_in(token=LOCAL)
    for _ in range(3):
        gateway.clock.ahead += LOGIN_SECONDS * 0.6
        assert await used.is_in(), "each use moves the end"
    assert not await unused.is_in()
    gateway.clock.ahead += LOGIN_SECONDS + 1
    assert not await used.is_in()
    await gateway.log_in(token=LOCAL)
    assert len(await gateway.running.store.list_state_records(StateNamespace.LOGIN)) == 1, "dead logins are removed"


async def test_a_clock_that_was_set_back_makes_no_login_last_longer(gateway: LoginGateway) -> None:
    gateway.clock.ahead = 400 * 86_400.0
    page = await gateway.log_in(token=LOCAL)
    gateway.clock.ahead = 0.0
    assert not await page.is_in()


async def test_a_login_survives_a_restart(gateway: LoginGateway) -> None:
    page = await gateway.log_in(token=LOCAL)
    await gateway.stop()
    await gateway.start()
    assert await page.is_in()


async def test_a_new_login_replaces_the_one_of_the_same_page(gateway: LoginGateway) -> None:
    page = await gateway.log_in(token=LOCAL)
    old_key, old_cookies = page.key, dict(page.cookies)
    assert (await page.log_in(token=LOCAL)).status_code == 200
    assert len(page.cookies) == 1
    assert await page.is_in()
    page.key, page.cookies = old_key, old_cookies
    assert not await page.is_in()


@pytest.mark.parametrize("how", ["ended", "token changed", "role changed"])
async def test_an_open_stream_ends_with_its_login(gateway: LoginGateway, how: str) -> None:
    page = await gateway.log_in(token=OPERATOR)
    async with page.http.stream("GET", "/api/events", headers=page.headers()) as response:
        assert response.status_code == 200
        events = events_of(response)
        assert (await anext(events)).event == "hello"
        if how == "ended":
            await gateway.running.api_context.logins.end_login(page.key.partition(".")[0])
        elif how == "role changed":
            gateway.configure(
                configuration(gateway.model.openai, more=TOKENS.replace(", role: operator", ", role: member"))
            )
        else:
            gateway.home.env.write_text(SECRETS.replace(OPERATOR, "rotated-token-" + "0123456789abcdef" * 2))
        async with asyncio.timeout(LIMIT_SECONDS):
            with contextlib.suppress(StopAsyncIteration, httpx2.TransportError):
                while True:
                    await anext(events)
    await wait_until(lambda: not gateway.running.tail.watchers)


async def test_the_logins_and_codes_of_one_token_push_out_no_others(gateway: LoginGateway) -> None:
    """A member who logs in again and again ends their own oldest logins, and not those of an operator."""
    page, code = await gateway.log_in(token=OPERATOR), await gateway.make_code(token="boss")
    first, first_code = await gateway.log_in(token=ADA), await gateway.make_code(token="laptop")
    context = gateway.running.api_context
    credential = find_credential_by_name("laptop", context.agents.settings.http, local=context.local_person)
    assert credential is not None
    for number in range(max(MAX_LOGINS, MAX_CODES) + 1):
        gateway.clock.ahead += 0.01
        if number <= MAX_CODES:
            await context.logins.create_code(credential)
        await context.logins.create_login(credential, browser="")
    assert await page.is_in()
    assert not await first.is_in()
    found = [login.token for _, login in await context.logins.list_logins()]
    assert (found.count("boss"), found.count("laptop")) == (1, MAX_TOKEN_LOGINS)
    assert len(await context.store.list_state_records(StateNamespace.LOGIN_CODE)) == 1 + MAX_TOKEN_CODES
    assert (await Browser(gateway).log_in(code=first_code)).status_code == 401
    await gateway.log_in(code=code, replace=True)


@pytest.mark.parametrize("is_ended", [True, False])
async def test_an_export_ends_with_its_login_and_is_visibly_incomplete(
    gateway: LoginGateway, monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    """Whoever ends a login ends what it is still being sent."""
    go_on = asyncio.Event()

    async def export_slowly(person: str) -> AsyncIterator[dict[str, Any]]:
        yield {"text": "before"}
        await go_on.wait()
        yield {"text": "after"}

    monkeypatch.setattr(request, "CONFIRM_SECONDS", 0.0)
    monkeypatch.setattr(gateway.running.api_context.memory, "export_person", export_slowly)
    page = await gateway.log_in(token=ADA)
    async with page.http.stream("GET", "/api/me/export", headers=page.headers()) as response:
        lines = response.aiter_lines()
        assert "before" in await anext(lines)
        if is_ended:
            await gateway.running.api_context.logins.end_login(page.key.partition(".")[0])
        go_on.set()
        if is_ended:
            with pytest.raises(httpx2.TransportError):
                await anext(lines)
        else:
            assert "after" in await anext(lines)
    assert "Exception in ASGI application" not in gateway.log.getvalue()


async def test_an_open_stream_of_a_login_shows_new_entries(gateway: LoginGateway) -> None:
    page = await gateway.log_in(token=LOCAL)
    async with page.http.stream("GET", "/api/events", headers=page.headers()) as response:
        events = events_of(response)
        await anext(events)
        assert (await page.request("POST", "/api/messages", json={"chat": "x", "text": "hi"})).status_code == 202
        async with asyncio.timeout(LIMIT_SECONDS):
            async for event in events:
                if event.get("kind") == "said":
                    break


# -- sensitive operations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", SENSITIVE)
async def test_a_sensitive_operation_needs_a_fresh_login(gateway: LoginGateway, call: str) -> None:
    method, path = call.split(" ", 1)
    page = await gateway.log_in(token=LOCAL)
    posted = await page.request("POST", "/api/messages", json={"chat": "x", "text": "hi"})
    await gateway.wait_until_idle(posted.json()["session"])

    async def ask() -> httpx2.Response:
        return await page.request(method, path, **({} if method == "GET" else {"json": SENSITIVE[call]}))

    gateway.clock.ahead = FRESH_SECONDS + 1
    refused = await ask()
    assert refused.status_code == 403
    assert refused.json()["error"]["type"] == "login_too_old"
    assert (await page.get("/api/sessions")).status_code == 200, "the rest goes on"
    gateway.clock.ahead += 86_400.0
    assert (await page.log_in(token=LOCAL)).status_code == 200
    assert (await ask()).status_code in REFUSED_LATER.get(call, (200, 202, 404)), "a new login is enough"


async def test_every_sensitive_route_is_in_this_table(gateway: LoginGateway) -> None:
    from everhold.api.reference import build_route_table

    paths = {it.call.replace("{id}", "last") for it in build_route_table() if it.fresh}
    assert paths == {call.partition("?")[0] for call in SENSITIVE}


async def test_a_rule_for_always_needs_a_fresh_login(gateway: LoginGateway) -> None:
    page = await gateway.log_in(token=LOCAL)
    gateway.clock.ahead = FRESH_SECONDS + 1
    answers = {
        decision: (await page.request("POST", "/api/approvals/nosuch", json={"decision": decision})).status_code
        for decision in ("once", "always", "deny")
    }
    assert answers == {"once": 404, "always": 403, "deny": 404}


async def test_a_token_needs_no_fresh_login(gateway: LoginGateway) -> None:
    gateway.clock.ahead = 86_400.0
    async with gateway.client(LOCAL) as client:
        assert (await client.get("/api/memory/files?person=ada")).status_code == 200


# -- who may log in as whom --------------------------------------------------------------------------------------------


async def test_a_member_s_login_sees_what_the_member_sees(gateway: LoginGateway) -> None:
    ada, bob = await gateway.log_in(token=ADA), await gateway.log_in(token=BOB)
    session = (await ada.request("POST", "/api/messages", json={"chat": "x", "text": "secret"})).json()["session"]
    assert (await ada.get(f"/api/sessions/{session}")).status_code == 200
    assert (await bob.get(f"/api/sessions/{session}")).status_code == 404
    assert (await ada.get("/api/status")).status_code == 403
    assert [it["token"] for it in (await bob.get("/api/logins")).json()["logins"]] == ["bob"]
    id = ada.key.partition(".")[0]
    assert (await bob.request("POST", f"/api/logins/{id}/end", json={})).status_code == 404
    assert await ada.is_in()


async def test_a_link_can_be_made_for_another_token(gateway: LoginGateway) -> None:
    page = await gateway.log_in(code=await gateway.make_code(token="laptop"), replace=True)
    me = (await page.get("/api/me")).json()
    assert (me["name"], me["role"]) == ("ada", "member")


@pytest.mark.parametrize("name", ["laptop", "boss"])
async def test_a_page_without_a_login_asks_before_it_uses_a_link_for_another_token_than_the_operators(
    gateway: LoginGateway, name: str
) -> None:
    """The holder of a token can send its link to somebody, who would then write into conversations of the holder."""
    code = await gateway.make_code(token=name)
    page = Browser(gateway)
    answer = await page.log_in(code=code)
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "other_login")
    assert f"the link is for {name}" in answer.json()["error"]["message"]
    assert "set-cookie" not in answer.headers
    assert (await page.log_in(code=code, replace=True)).status_code == 200, "the code was not used up"
    assert (await Browser(gateway).log_in(code=await gateway.make_code())).status_code == 200, "`make run` asks nothing"


# -- what is stored and logged -----------------------------------------------------------------------------------------


def list_texts(path: Path) -> Iterator[str]:
    for file in path.rglob("*"):
        if file.is_file() and file.name != ".env":
            yield file.read_bytes().decode("latin-1")


async def test_no_half_code_or_token_is_stored_or_logged(gateway: LoginGateway) -> None:
    code, unused = await gateway.make_code(), await gateway.make_code()
    page = await gateway.log_in(code=code)
    again = await gateway.log_in(token=ADA)
    await Browser(gateway).log_in(token="a-wrong-token-0123456789abcdef0123456789")
    await page.get("/api/logins")
    await gateway.running.backups.make_backup()
    shown = gateway.log.getvalue()
    await gateway.stop()
    secrets = [code, unused, LOCAL, ADA, "a-wrong-token-0123456789abcdef0123456789"]
    for one in (page, again):
        secrets += [*one.cookies.values(), one.key.partition(".")[2]]
    texts = [shown, *list_texts(gateway.home.path)]
    assert f"login.created login={page.key.partition('.')[0]} token_name=operator" in shown, "which token it was"
    assert f"login.created login={again.key.partition('.')[0]} token_name=laptop" in shown
    assert any(page.key.partition(".")[0] in text for text in texts), "the search would find something"
    for secret in secrets:
        assert not [text for text in texts if secret in text]


# -- a store in trouble ------------------------------------------------------------------------------------------------


async def test_a_login_works_while_the_disk_is_full(gateway: LoginGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    page = await gateway.log_in(token=LOCAL)
    gateway.clock.ahead = 7_200.0  # the use would be recorded now

    async def refuse(change: object) -> None:
        raise StoreFull("the disk is full", remedy="free some space")

    monkeypatch.setattr(gateway.running.store, "commit", refuse)
    assert await page.is_in()
    refused = await Browser(gateway).log_in(token=LOCAL)
    assert (refused.status_code, refused.json()["error"]["type"]) == (507, "store_full")


async def test_a_store_that_cannot_be_read_refuses_a_login_with_a_reason(
    gateway: LoginGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await gateway.log_in(token=LOCAL)

    async def fail(*given: object, **more: object) -> None:
        raise StoreError("the database is locked")

    monkeypatch.setattr(gateway.running.store, "get_state_record", fail)
    answer = await page.get("/api/me")
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "store_error")
    async with gateway.client(LOCAL) as client:
        assert (await client.get("/api/me")).status_code == 200, "a token needs no record"
