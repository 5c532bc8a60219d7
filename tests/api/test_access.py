"""Who may call what: the table of routes and roles cell by cell, and the scope of tokens."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from hypothesis import given, strategies

from everhold.api.application import RouteDispatcher
from everhold.api.auth import ApiCaller
from everhold.api.errors import ApiError
from everhold.api.middleware import OPERATOR_RATE
from everhold.api.rate_limits import RateLimitBuckets
from everhold.api.reference import build_route_table
from everhold.api.route_types import ApiRoute
from everhold.config import ConfigError
from everhold.core.callers import CallerRole, CallerScope, can_call, find_token_weakness
from everhold.core.entries import ChatLocation, Heard
from everhold.ports.platform import IncomingMessage
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.api.conftest import ADA, BOB, LOCAL, OPERATOR, SECRETS, ApiGateway, configuration
from tests.waiting import wait_until

SERVICE = "service-token-0123456789abcdef0123456789abcdef"
METRICS = "metrics-token-0123456789abcdef0123456789abcdef"
READER = "reader-token-0123456789abcdef0123456789abcdef0"
CODER = "coder-token-0123456789abcdef0123456789abcdef01"
WATCHER = "watcher-token-0123456789abcdef0123456789abcdef"
TOKENS = """\
http:
  port: 0
  tokens:
    - {name: boss, token_env: TOKEN_BOSS, role: operator}
    - {name: laptop, token_env: TOKEN_ADA, person: ada}
    - {name: bob, token_env: TOKEN_BOB, person: bob}
    - {name: shop, token_env: TOKEN_SHOP, role: service}
    - {name: prometheus, token_env: TOKEN_METRICS, role: metrics}
    - {name: reader, token_env: TOKEN_READER, person: ada, read_only: true}
    - {name: coding, token_env: TOKEN_CODER, role: operator, agents: [coder]}
    - {name: watcher, token_env: TOKEN_WATCHER, role: operator, read_only: true}
people:
  - {name: ada, identities: ["telegram:1001"]}
  - {name: bob, identities: ["telegram:1002"]}
"""
ROLE_TOKENS = {
    CallerRole.OPERATOR: OPERATOR,
    CallerRole.MEMBER: ADA,
    CallerRole.SERVICE: SERVICE,
    CallerRole.METRICS: METRICS,
    CallerRole.ANYBODY: "",
}
MEMBER_ROUTES = """
    POST /api/messages, POST /api/files, GET /api/events, GET /api/me, GET /api/sessions, GET /api/sessions/{id},
    GET /api/sessions/{id}/entries, GET /api/sessions/{id}/context, GET /api/sessions/{id}/addresses,
    POST /api/sessions/{id}/undo, POST /api/sessions/{id}/stop, POST /api/sessions/{id}/compress, POST /api/notes,
    GET /api/sessions/{id}/pins, POST /api/sessions/{id}/pin, POST /api/sessions/{id}/unpin,
    GET /api/sessions/{id}/compressions, GET /api/sessions/{id}/compressions/{op}/diff, GET /api/sessions/{id}/why,
    GET /api/memory/search, GET /api/schedules, POST /api/schedules/{id}/delete, POST /v1/chat/completions,
    POST /v1/responses, GET /v1/models, GET /v1/models/{id}, GET /openapi.json, POST /api/logout, GET /api/logins,
    POST /api/logins/{id}/end, POST /api/login-codes, GET /api/me/export, POST /api/me/forget,
    GET /api/sessions/{id}/timeline, GET /api/sessions/{id}/context/diff, POST /api/sessions/{id}/title,
    POST /api/sessions/{id}/archive, POST /mcp, GET /api/approvals, GET /api/approvals/{id}, POST /api/approvals/{id},
    GET /api/rules, POST /api/rules/{id}/revoke
"""
SERVICE_ROUTES = """
    POST /api/messages, POST /api/files, GET /api/events, GET /api/me, GET /api/sessions, GET /api/sessions/{id},
    GET /api/sessions/{id}/entries, POST /api/sessions/{id}/undo, POST /api/sessions/{id}/stop, POST /api/notes,
    GET /api/memory/search, POST /v1/chat/completions, POST /v1/responses, GET /v1/models, GET /v1/models/{id},
    GET /openapi.json, GET /api/me/export, POST /api/me/forget, POST /mcp
"""
ANYBODY_ROUTES = "GET /health, GET /ready, GET /, GET /static/{name}, POST /api/login, POST /hooks/{name}"


def split_calls(text: str) -> set[str]:
    return {" ".join(call.split()) for call in text.split(",")}


WRITTEN_TABLE = {
    CallerRole.ANYBODY: split_calls(ANYBODY_ROUTES),
    CallerRole.METRICS: split_calls(ANYBODY_ROUTES) | {"GET /metrics"},
    CallerRole.SERVICE: split_calls(ANYBODY_ROUTES) | split_calls(SERVICE_ROUTES),
    CallerRole.MEMBER: split_calls(ANYBODY_ROUTES) | split_calls(MEMBER_ROUTES),
}
"""What each role may call, written down a second time. An operator may call everything."""
BODIES: dict[str, Any] = {
    "POST /api/messages": {"chat": "x", "text": "hello", "person": None},
    "POST /api/memory/forget": {"person": "nobody", "dry_run": True},
}


def make_gateway(path: Path, model: ModelServer) -> ApiGateway:
    """Return a gateway with a token of each role."""
    made = ApiGateway(path, model)
    made.configure(configuration(model.openai, more=TOKENS))
    made.home.env.write_text(
        f"{SECRETS}TOKEN_SHOP={SERVICE}\nTOKEN_METRICS={METRICS}\nTOKEN_READER={READER}\nTOKEN_CODER={CODER}\n"
        f"TOKEN_WATCHER={WATCHER}\n"
    )
    return made


@pytest.fixture
async def gateway(tmp_path: Path, model: ModelServer) -> AsyncIterator[ApiGateway]:
    made = make_gateway(tmp_path, model)
    try:
        yield await made.start()
    finally:
        await made.stop()


def list_routes(gateway: ApiGateway) -> tuple[ApiRoute, ...]:
    routes = gateway.web.guard.inner_app
    assert isinstance(routes, RouteDispatcher)
    return routes.table


async def ask(client: httpx2.AsyncClient, route: ApiRoute, **headers: str) -> tuple[int, str]:
    """Call a route with parameters that name nothing, and return the status and the type of an error."""
    path = route.path.replace("{op}", "1").replace("{name}", "nothing").replace("{id}", "nothing")
    if route.path == "/api/events":
        async with client.stream("GET", path, headers=headers) as stream:
            if stream.status_code == 200:
                return 200, ""
            return stream.status_code, str(msgspec.json.decode(await stream.aread())["error"]["type"])
    body = {} if route.method == "GET" else {"json": BODIES.get(route.call, {})}
    answer = await client.request(route.method, path, headers=headers, **body)
    is_error = answer.status_code >= 400
    return answer.status_code, answer.json()["error"]["type"] if is_error else ""


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLE_TOKENS)
async def test_every_cell_of_the_table_of_routes_and_roles_holds(gateway: ApiGateway, role: CallerRole) -> None:
    routes = list_routes(gateway)
    assert len(routes) > 60
    guard = gateway.web.guard
    guard._anonymous_buckets = RateLimitBuckets(OPERATOR_RATE, monotonic=time.monotonic)
    wrong = []
    async with gateway.client(ROLE_TOKENS[role]) as client:
        for route in routes:
            status, kind = await ask(client, route)
            refused = status == 401 if role is CallerRole.ANYBODY else (status, kind) == (403, "denied")
            if role is CallerRole.ANYBODY and route.call == "POST /api/login":
                refused = False
            if refused == can_call(role, route.least):
                wrong.append((route.call, status, kind))
    assert wrong == []


def test_the_table_is_the_one_that_was_decided() -> None:
    table = build_route_table()
    for role, calls in WRITTEN_TABLE.items():
        assert {route.call for route in table if can_call(role, route.least)} == calls, role
    assert all(can_call(CallerRole.OPERATOR, route.least) for route in table)


def test_the_reference_shows_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
    for route in build_route_table():
        cells = ["yes" if can_call(role, route.least) else "" for role in reversed(CallerRole)]
        assert f"| `{route.call}` | {' | '.join(cells)} |\n" in page


# -- read-only tokens --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [READER, WATCHER])
async def test_a_read_only_token_changes_nothing(gateway: ApiGateway, token: str) -> None:
    async with gateway.client(token) as client:
        role = CallerRole((await client.get("/api/me")).json()["role"])
        for route in list_routes(gateway):
            if not can_call(role, route.least) or route.least is CallerRole.ANYBODY or route.call == "POST /api/logout":
                continue
            status, kind = await ask(client, route)
            if not route.changes:
                assert kind != "read_only", route.call
            else:
                assert (status, kind) == (403, "read_only"), route.call
    assert await gateway.running.store.read_feed() == []


# -- agents ------------------------------------------------------------------------------------------------------------


async def test_a_token_for_one_agent_reaches_no_other(gateway: ApiGateway) -> None:
    sessions = {}
    async with gateway.client(LOCAL) as client:
        for agent in ("main", "coder"):
            posted = await client.post("/api/messages", json={"chat": agent, "agent": agent, "text": f"for {agent}"})
            sessions[agent] = posted.json()["session"]
            await gateway.wait_until_idle(sessions[agent])
    async with gateway.client(CODER) as client:
        assert [it["id"] for it in (await client.get("/api/sessions")).json()["sessions"]] == [sessions["coder"]]
        assert [it["id"] for it in (await client.get("/v1/models")).json()["data"]] == ["coder"]
        assert (await client.get(f"/api/sessions/{sessions['coder']}/entries")).status_code == 200
        for name in (sessions["main"], sessions["main"][:12], "agent:main:http:dm:main"):
            assert (await client.get(f"/api/sessions/{name}/entries")).status_code == 404, name
            erase = await client.post(f"/api/sessions/{name}/erase", json={"seqs": [1]})
            assert erase.status_code == 404
        sent = {"chat": "x", "agent": "main", "text": "hello"}
        assert (await client.post("/api/messages", json=sent)).status_code == 404
        assert (
            await client.post("/v1/chat/completions", json={"model": "main", "messages": [{"role": "user"}]})
        ).status_code in (400, 404)
        assert (await client.get("/api/memory/search?agent=main")).status_code == 404
        assert (await client.post("/api/messages", json={"chat": "x", "text": "hello"})).status_code == 202
        async with client.stream("GET", "/api/events?after=0") as stream:
            seen = ""
            async for line in stream.aiter_lines():
                seen += line
                if "for coder" in seen:
                    break
        assert "for main" not in seen
        for route in list_routes(gateway):
            if route.least is CallerRole.OPERATOR and not route.is_agent_scoped:
                assert (await ask(client, route))[0] == 403, route.call


# -- members -----------------------------------------------------------------------------------------------------------


async def test_a_member_sees_their_sessions_from_every_platform_and_nobody_else_s(gateway: ApiGateway) -> None:
    found = {}
    for name, number in (("ada", "1001"), ("bob", "1002")):
        place = ChatLocation(platform="telegram", account="main", chat=number, message="m1")
        incoming = IncomingMessage(origin=place, text=f"the secret of {name}", sender=number, agent="main")
        found[name] = await accept_from_telegram(gateway, incoming)
    for token, own, other in ((ADA, "ada", "bob"), (BOB, "bob", "ada")):
        async with gateway.client(token) as client:
            listed = [it["id"] for it in (await client.get("/api/sessions")).json()["sessions"]]
            assert listed == [found[own]]
            read = await client.get(f"/api/sessions/{found[own]}/entries")
            assert f"the secret of {own}" in read.text
            for rest in ("", "/entries", "/context", "/addresses", "/compressions", "/why"):
                assert (await client.get(f"/api/sessions/{found[other]}{rest}")).status_code == 404
            for action in ("undo", "stop", "compress"):
                assert (await client.post(f"/api/sessions/{found[other]}/{action}", json={})).status_code == 404
            stream = await client.get(f"/api/events?session={found[other]}")
            assert stream.status_code == 404
            assert (await client.get(f"/api/memory/search?person={other}")).status_code == 403


async def accept_from_telegram(gateway: ApiGateway, incoming: IncomingMessage) -> str:
    """Bring a direct message of a Telegram account into the log. The account itself needs no connection here."""
    gateway.configure(
        configuration(
            gateway.model.openai,
            more=TOKENS + "platforms: {telegram: {main: {token_env: BOT, access: {direct: [ada, bob]}}}}\n",
        )
    )
    verdict = await gateway.running.accept(incoming)
    assert verdict.outcome == "accepted", verdict
    await wait_until(lambda: is_answered(gateway, verdict.session))
    return verdict.session


async def is_answered(gateway: ApiGateway, session: str) -> bool:
    return (await gateway.running.store.list_entries(session))[-1].kind in ("ended", "said", "notified")


async def test_a_member_sees_neither_persona_nor_tools(gateway: ApiGateway) -> None:
    async with gateway.client(ADA) as client:
        session = (await client.post("/api/messages", json={"chat": "x", "text": "hello"})).json()["session"]
        await gateway.wait_until_idle(session)
        shown = (await client.get(f"/api/sessions/{session}/context")).json()["request"]
        assert (shown["system"], shown["tools"]) == ("", [])
        assert "hello" in str(shown["messages"])
    async with gateway.client(OPERATOR) as client:
        shown = (await client.get(f"/api/sessions/{session}/context")).json()["request"]
        assert "You are a test." in shown["system"]


async def test_a_member_sees_and_deletes_their_own_schedules(gateway: ApiGateway) -> None:
    async with gateway.client(ADA) as ada, gateway.client(BOB) as bob, gateway.client(OPERATOR) as boss:
        for client in (ada, bob):
            told = await client.post("/api/messages", json={"chat": "x", "text": "/schedule daily 08:30 stretch"})
            await gateway.wait_until_idle(told.json()["session"], said=0)
        (own,) = (await ada.get("/api/schedules")).json()["schedules"]
        (other,) = (await bob.get("/api/schedules")).json()["schedules"]
        assert {it["id"] for it in (await boss.get("/api/schedules")).json()["schedules"]} == {own["id"], other["id"]}
        assert (await ada.post(f"/api/schedules/{other['id']}/delete", json={})).status_code == 404
        async with gateway.client(CODER) as coding:  # an operator of another agent
            assert (await coding.get("/api/schedules")).json()["schedules"] == []
            assert (await coding.post(f"/api/schedules/{own['id']}/delete", json={})).status_code == 404
        assert (await ada.post(f"/api/schedules/{own['id']}/delete", json={})).status_code == 200
        assert (await ada.get("/api/schedules")).json()["schedules"] == []
        assert len((await boss.get("/api/schedules")).json()["schedules"]) == 1


async def test_only_an_operator_speaks_for_somebody_and_it_is_recorded(gateway: ApiGateway) -> None:
    sent = {"chat": "x", "text": "hello", "person": "ada"}
    async with gateway.client(BOB) as client:
        assert (await client.post("/api/messages", json=sent)).status_code == 403
        headers = {"x-everhold-session": "x", "x-everhold-person": "ada"}
        asked = {"model": "main", "messages": [{"role": "user", "content": "hello"}]}
        assert (await client.post("/v1/chat/completions", json=asked, headers=headers)).status_code == 403
    async with gateway.client(OPERATOR) as client:
        assert (await client.post("/api/messages", json=sent)).status_code == 202
        assert (await client.post("/api/messages", json={**sent, "person": "boss"})).status_code == 202
    async with gateway.client(ADA) as client:
        assert (await client.post("/api/messages", json={"chat": "x", "text": "it is me"})).status_code == 202
    heard = {e.body.text: (e.author, e.body.via) for e in await read_heard(gateway)}
    assert heard["it is me"] == ("person:http:ada", "")
    speakers = [(e.author, e.body.via) for e in await read_heard(gateway) if e.body.text == "hello"]
    assert sorted(speakers) == [("person:http:ada", "token:boss"), ("person:http:boss", "")]


async def test_a_member_pins_no_words_of_another_person(gateway: ApiGateway) -> None:
    """A pin keeps words in every later request to the model."""
    async with gateway.client(ADA) as ada, gateway.client(OPERATOR) as boss:
        made = (await ada.post("/api/messages", json={"chat": "x", "text": "mine"})).json()["session"]
        await gateway.wait_until_idle(made)
        place = {"origin": {"platform": "http", "chat": "ada", "thread": "x"}}
        spoken = await boss.post("/api/messages", json={"location": place, "text": "not yours", "person": "eve"})
        assert spoken.json()["session"] == made, spoken.text
        entries = await gateway.wait_until_idle(made, said=2)
        seqs = {entry["body"]["text"]: entry["seq"] for entry in entries if entry["kind"] in ("heard", "said")}
        foreign = seqs.pop("not yours")
        refused = await ada.post(f"/api/sessions/{made}/pin", json={"seq": foreign})
        assert (refused.status_code, refused.json()["error"]["type"]) == (403, "denied")
        for seq in seqs.values():
            assert (await ada.post(f"/api/sessions/{made}/pin", json={"seq": seq})).json()["done"]
        assert (await boss.post(f"/api/sessions/{made}/pin", json={"seq": foreign})).json()["done"]


async def read_heard(gateway: ApiGateway) -> list[Any]:
    return [entry for entry in await gateway.running.store.read_feed() if isinstance(entry.body, Heard)]


# -- a proxy before the socket -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [ADA, BOB])
async def test_a_token_that_a_proxy_forwards_to_the_socket_is_no_command_of_this_machine(
    gateway: ApiGateway, tmp_path: Path, token: str
) -> None:
    socket = httpx2.AsyncHTTPTransport(uds=str(gateway.home.api_socket))
    headers = {"authorization": f"Bearer {token}", "x-forwarded-for": "203.0.113.9"}
    async with httpx2.AsyncClient(transport=socket, base_url="http://x", headers=headers) as client:
        made = (await client.post("/api/messages", json={"chat": "x", "text": "hello"})).json()["session"]
        await gateway.wait_until_idle(made)
        assert (await client.post("/api/notes", json={"session": made, "text": "a note"})).status_code == 202
        authors = {entry["author"] for entry in await gateway.entries(made) if entry["kind"] in ("heard", "noted")}
        assert len(authors) == 1, "the note has the author of the message"
        client.headers["authorization"] = f"Bearer {OPERATOR}"
        assert (await client.post("/api/backups", json={"to": str(tmp_path / "copy.db")})).status_code == 403


# -- services ----------------------------------------------------------------------------------------------------------


async def test_a_service_s_user_is_nobody_that_the_gateway_knows(gateway: ApiGateway) -> None:
    async with gateway.client(ADA) as client:
        secret = (await client.post("/api/messages", json={"chat": "x", "text": "my secret"})).json()["session"]
        await gateway.wait_until_idle(secret)
    async with gateway.client(SERVICE) as client:
        assert (await client.post("/api/messages", json={"chat": "x", "text": "hello"})).status_code == 400
        named = {"chat": "x", "text": "hello", "person": "ada"}
        made = (await client.post("/api/messages", json=named)).json()["session"]
        await gateway.wait_until_idle(made)
        assert made != secret
        assert (await client.get(f"/api/sessions/{secret}")).status_code == 404
        ada = {"x-everhold-person": "ada"}
        assert [it["id"] for it in (await client.get("/api/sessions", headers=ada)).json()["sessions"]] == [made]
        assert (await client.get("/api/sessions", headers={"x-everhold-person": "eve"})).json()["sessions"] == []
        for other in ("eve", "ad", "adam", "ADA"):
            as_other = {"x-everhold-person": other}
            assert (await client.get(f"/api/sessions/{made}", headers=as_other)).status_code == 404
        assert (await client.get(f"/api/sessions/{made}", headers=ada)).status_code == 200
        assert (await client.get(f"/api/sessions/{made}")).status_code == 200
        assert (await client.get("/api/sessions")).status_code == 400
        assert (await client.get("/api/memory/search?person=ada", headers=ada)).status_code == 403
        assert (await client.get("/api/memory/search", headers=ada)).status_code == 200
        for name in ("", " ada", "a\tb", "x" * 129):
            assert (await client.post("/api/messages", json={**named, "person": name})).status_code == 400
    async with gateway.client(ADA) as client:
        assert [it["id"] for it in (await client.get("/api/sessions")).json()["sessions"]] == [secret]
        assert (await client.get(f"/api/sessions/{made}")).status_code == 404
    authors = {entry.author for entry in await read_heard(gateway)}
    assert authors == {"person:http:ada", "person:http:shop/ada"}
    people = await gateway.running.store.get_people()
    assert people.find_label("http:shop/ada") == ""
    assert people.find_label("http:shop") == "", "the token itself is no person either"


async def test_every_route_reads_the_name_of_a_service_s_user_alike(gateway: ApiGateway) -> None:
    headers = {b"x-everhold-person": "Zoë".encode()}
    asked = {"model": "main", "messages": [{"role": "user", "content": "hello"}]}
    async with gateway.client(SERVICE) as client:
        named = {"chat": "x", "text": "hello", "person": "Zoë"}
        made = (await client.post("/api/messages", json=named)).json()["session"]
        again = {**headers, b"x-everhold-session": b"x"}
        assert (await client.post("/v1/chat/completions", json=asked, headers=again)).status_code == 200
        assert [it["id"] for it in (await client.get("/api/sessions", headers=headers)).json()["sessions"]] == [made]
        misread = {**named, "person": "ZoÃ«"}
        other = (await client.post("/api/messages", json=misread)).json()["session"]
        assert (await client.get(f"/api/sessions/{other}", headers=headers)).status_code == 404


async def test_a_request_names_one_user_of_a_service(gateway: ApiGateway) -> None:
    async with gateway.client(SERVICE) as client:
        twice = [("x-everhold-person", "eve"), ("x-everhold-person", "ada")]
        assert (await client.get("/api/sessions", headers=twice)).status_code == 400


def has_more_requests(model: ModelServer, asked: int) -> bool:
    return len(model.requests) > asked


@pytest.mark.parametrize("quota", ["messages_per_minute", "waiting_messages", "conversations_per_day"])
async def test_a_service_cannot_use_up_the_quotas_of_others_with_invented_users(
    tmp_path: Path, model: ModelServer, quota: str
) -> None:
    gateway = make_gateway(tmp_path, model)
    quotas = f"quotas: {{service: {{{quota}: 3}}, account: {{{quota}: 4}}}}\n"
    gateway.configure(configuration(model.openai, more=f"{TOKENS}{quotas}"))
    answer = model.hold()  # so that all messages wait
    try:
        await gateway.start()
        async with gateway.client(SERVICE) as shop, gateway.client(ADA) as ada:
            named = [{"chat": "x", "text": "a", "person": f"user{number}"} for number in range(6)]
            if quota == "waiting_messages":  # a message that is being answered does not wait
                for it in named:
                    asked = len(model.requests)
                    assert (await shop.post("/api/messages", json=it)).status_code == 202
                    await wait_until(functools.partial(has_more_requests, model, asked))
            sent = [(await shop.post("/api/messages", json=it)).status_code for it in named]
            assert sent == [202] * 3 + [429] * 3
            assert (await ada.post("/api/messages", json={"chat": "x", "text": "a"})).status_code == 202
    finally:
        answer.set()
        await gateway.stop()


async def test_each_user_of_a_service_has_limits_of_its_own(tmp_path: Path, model: ModelServer) -> None:
    gateway = make_gateway(tmp_path, model)
    own = "{messages_per_minute: 2}"
    quotas = f"quotas: {{member: {own}, stranger: {own}, service: {{messages_per_minute: 5}}}}\n"
    gateway.configure(configuration(model.openai, more=f"{TOKENS}{quotas}"))
    try:
        await gateway.start()
        async with gateway.client(SERVICE) as shop:

            async def send(user: str) -> httpx2.Response:
                return await shop.post("/api/messages", json={"chat": "x", "text": "a", "person": user})

            assert [(await send("ada")).status_code for _ in range(4)] == [202, 202, 429, 429]
            assert [(await send("bob")).status_code for _ in range(2)] == [202, 202], "ada's use is not bob's"
            assert (await send("eve")).status_code == 202
            refused = await send("eve")
            assert refused.status_code == 429
            assert "The limit for all users of this service together is 5 per minute." in refused.text
    finally:
        await gateway.stop()


@pytest.mark.parametrize("session", [{}, {"x-everhold-session": "x"}], ids=["without-session", "in-session"])
async def test_two_users_of_a_service_can_use_the_same_idempotency_key(
    gateway: ApiGateway, model: ModelServer, session: dict[str, str]
) -> None:
    model.add_steps(ModelServerReply(text="for ada only"), ModelServerReply(text="for bob"))
    asked = {"model": "main", "messages": [{"role": "user", "content": "what is my number?"}]}
    async with gateway.client(SERVICE) as shop:
        answers = []
        for user in ("ada", "bob", "ada"):
            headers = {"idempotency-key": "k1", "x-everhold-person": user, **session}
            answer = await shop.post("/v1/chat/completions", json=asked, headers=headers)
            answers.append(answer.json()["choices"][0]["message"]["content"])
    assert answers == ["for ada only", "for bob", "for ada only"]


async def test_services_and_metrics_cannot_log_in(gateway: ApiGateway) -> None:
    async with gateway.client("") as client:
        for token in (SERVICE, METRICS):
            answer = await client.post("/api/login", json={"token": token})
            assert answer.status_code == 403
            assert "set-cookie" not in answer.headers


# -- minting -----------------------------------------------------------------------------------------------------------

SCOPES = strategies.builds(
    CallerScope,
    token=strategies.sampled_from(["a", "b", "c"]),
    role=strategies.sampled_from(list(CallerRole)),
    agents=strategies.sampled_from([(), ("x",), ("y",), ("x", "y")]),
    read_only=strategies.booleans(),
)


@given(SCOPES, SCOPES)
def test_what_is_minted_has_no_right_that_the_minter_lacks(minter: CallerScope, minted: CallerScope) -> None:
    if not minter.covers(minted):
        return
    for agent, least in product(("x", "y", "z"), CallerRole):
        if can_call(minted.role, least) and minted.token != minter.token:
            assert can_call(minter.role, least)
        if minted.can_use(agent):
            assert minter.can_use(agent)
    assert minted.read_only or not minter.read_only
    assert minted.token == minter.token or minter.role is CallerRole.OPERATOR, "another person's data is no subset"


async def test_a_token_makes_links_for_no_more_than_its_own_rights(gateway: ApiGateway) -> None:
    for token, name, status in (
        (OPERATOR, "laptop", 200),
        (OPERATOR, "operator", 200),
        (OPERATOR, "coding", 200),
        (OPERATOR, "shop", 403),
        (ADA, "", 200),
        (ADA, "laptop", 200),
        (ADA, "bob", 403),
        (ADA, "boss", 403),
        (CODER, "coding", 200),
        (CODER, "boss", 403),
        (CODER, "laptop", 403),
        (WATCHER, "watcher", 403),
        (OPERATOR, "nobody", 404),
    ):
        async with gateway.client(token) as client:
            answer = await client.post("/api/login-codes", json={"token": name})
            assert answer.status_code == status, (token, name, answer.text)


def test_the_caller_cannot_choose_its_own_rights() -> None:
    caller = ApiCaller(account="token:a", sender="ada", scope=CallerScope(token="a", role=CallerRole.MEMBER))
    with pytest.raises(ApiError):
        caller.resolve_sender("bob")
    service = msgspec.structs.replace(caller, scope=CallerScope(token="a", role=CallerRole.SERVICE))
    assert service.resolve_sender("ada") == "a/ada"
    assert service.resolve_sender("../ada") == "a/../ada"


# -- the strength of tokens --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weak", ["a", "password", "x" * 64, "0123456789abcdef", "ab" * 20])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("variable", ["TOKEN_BOSS", "EVERHOLD_OPERATOR_TOKEN"])
async def test_a_weak_token_is_refused_at_the_start(
    tmp_path: Path, model: ModelServer, weak: str, host: str, variable: str
) -> None:
    assert find_token_weakness(weak)
    gateway = ApiGateway(tmp_path, model)
    more = f"http:\n  host: {host}\n  port: 0\n  tokens: [{{name: boss, token_env: TOKEN_BOSS, role: operator}}]\n"
    gateway.configure(configuration(model.openai, more=more))
    right = {"TOKEN_BOSS": OPERATOR, "EVERHOLD_OPERATOR_TOKEN": LOCAL, variable: weak}
    gateway.home.env.write_text("".join(f"{name}={value}\n" for name, value in right.items()) + "MODEL_KEY=k\n")
    with pytest.raises(ConfigError, match=f"{variable} has .* a token needs at least") as refused:
        await gateway.start()
    assert weak not in str(refused.value) or len(weak) < 4
