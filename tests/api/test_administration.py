"""The API's routes for operators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx2
import msgspec

from everhold.api import schemas
from everhold.api.reference import build_route_table
from everhold.cli.client import ApiClient
from everhold.cli.transport import SocketTransport
from everhold.ports.store import Change, DeadLetter, StateNamespace, StateWrite, Step, make_state_scope
from everhold.testing.model_server import ModelServer
from tests.api.conftest import ADA, OPERATOR, ApiGateway, listen_to_events
from tests.clients import client_of
from tests.waiting import wait_until

As = Callable[[str], httpx2.AsyncClient]
SHAPES: dict[str, type[msgspec.Struct]] = {
    "/api/status": schemas.StatusResponse,
    "/api/agents": schemas.AgentListResponse,
    "/api/people": schemas.PersonListResponse,
    "/api/pairing": schemas.PairingResponse,
    "/api/schedules": schemas.ScheduleListResponse,
    "/api/audit": schemas.AuditResponse,
    "/api/backups": schemas.BackupListResponse,
    "/api/dead-letters": schemas.DeadLetterListResponse,
    "/api/memory/status": schemas.MemoryStatusResponse,
    "/api/memory/search?q=hello": schemas.MemorySearchResponse,
    "/api/memory/files?person=ada": schemas.MemoryFileListResponse,
    "/api/entries?q=hello": schemas.SearchResponse,
    "/api/chat-locations?name=work": schemas.ChatLocationResponse,
    "/api/sessions/last/addresses": schemas.AddressListResponse,
    "/api/sessions/last/compressions": schemas.CompressionListResponse,
    "/api/sessions?name=last": schemas.SessionListResponse,
    "/health": schemas.HealthResponse,
}


async def say(gateway: ApiGateway, client: httpx2.AsyncClient, text: str, *, chat: str = "x", said: int = 1) -> str:
    session: str = (await client.post("/api/messages", json={"chat": chat, "text": text})).json()["session"]
    await gateway.wait_until_idle(session, said=said)
    return session


async def test_responses_match_the_schemas_in_the_openapi_document(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    await say(gateway, client, "hello")
    for path, shape in SHAPES.items():
        answer = await client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        msgspec.convert(answer.json(), shape)
        known = {field.encode_name for field in msgspec.structs.fields(shape)}
        assert set(answer.json()) <= known, (path, set(answer.json()) - known)


def test_every_admin_operation_has_a_route() -> None:
    described = {route.path for route in build_route_table()}
    for name in (
        "status agents audit backups people people/link people/unlink pairing pairing/approve pairing/revoke schedules "
        "schedules/{id}/delete dead-letters dead-letters/replay memory/status memory/search memory/forget "
        "memory/erasures "
        "memory/export memory/files memory/import memory/providers/{name}/resend memory/providers/{name}/backfill "
        "notes messages "
        "events entries chat-locations sessions sessions/{id} sessions/{id}/entries sessions/{id}/context "
        "sessions/{id}/why sessions/{id}/pins sessions/{id}/pin sessions/{id}/unpin "
        "sessions/{id}/undo sessions/{id}/stop sessions/{id}/compress sessions/{id}/compressions "
        "sessions/{id}/compressions/{op}/diff sessions/{id}/addresses sessions/{id}/erase "
        "logs config config/check config/versions config/undo"
    ).split():
        assert f"/api/{name}" in described


async def test_the_status_response_contains_counts(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    await say(gateway, client, "hello")
    found = (await client.get("/api/status")).json()
    assert (found["role"], found["running"], found["pending"], found["dead_letters"]) == ("gateway", True, 0, 0)
    assert [agent["name"] for agent in found["agents"]] == ["main", "coder"]
    assert {"usd", "tokens"} == set(found["agents"][0]["spent"])


# -- sessions ----------------------------------------------------------------------------------------------------------


async def test_sessions_are_listed_in_pages(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    made = [await say(gateway, client, "hello", chat=f"chat {number}") for number in range(5)]
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = (await client.get(f"/api/sessions?limit=2&after={after}")).json()
        assert len(page["sessions"]) <= 2
        seen += [session["id"] for session in page["sessions"]]
        after = page["next"]
    assert seen == sorted(made, reverse=True)
    assert [it["id"] for it in (await client_of(gateway.running).list_sessions(limit=4))["sessions"]] == seen[:4]


async def test_people_page_through_their_own_sessions(gateway: ApiGateway, as_: As, client: httpx2.AsyncClient) -> None:
    await say(gateway, client, "not hers")
    ada = as_(ADA)
    hers = []
    for number in range(3):
        hers.append((await ada.post("/api/messages", json={"chat": f"c{number}", "text": "x"})).json()["session"])
        await gateway.wait_until_idle(hers[-1])
    first = (await ada.get("/api/sessions?limit=2")).json()
    second = (await ada.get(f"/api/sessions?limit=2&after={first['next']}")).json()
    assert [it["id"] for it in first["sessions"] + second["sessions"]] == sorted(hers, reverse=True)
    assert second["next"] is None


async def test_a_session_is_found_by_a_name_with_slashes(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    session = await say(gateway, client, "hello")
    await say(gateway, client, "/title a/b?c#d & more", said=1)
    await wait_until(lambda: _has_title(gateway, session))
    assert (await client_of(gateway.running).find_session("a/b?c#d & more"))["id"] == session


async def _has_title(gateway: ApiGateway, session: str) -> bool:
    return bool((await gateway.running.store.get_session(session)).title)


async def test_erased_entries_are_not_returned(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    session = await say(gateway, client, "my secret")
    done = (await client.post(f"/api/sessions/{session}/erase", json={"seqs": [1], "why": "asked"})).json()
    assert 1 in done["erased"]
    assert (await gateway.entries(session))[0]["body"] is None


async def test_a_response_reports_whether_anything_was_done(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    session = await say(gateway, client, "hello")
    assert (await client.post(f"/api/sessions/{session}/stop")).json()["done"] is False
    assert (await client.post(f"/api/sessions/{session}/undo", json={})).json()["done"] is True
    assert (await client.post(f"/api/sessions/{session}/compress", json={"preview": True})).json()["done"] is False


# -- messages of a terminal --------------------------------------------------------------------------------------------


async def test_a_terminal_message_is_stored_under_its_address(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    location = (await client.get("/api/chat-locations?name=work&agent=coder")).json()
    assert (location["agent"], location["session"]) == ("coder", None)
    body = {
        "location": {"origin": location["origin"], "kind": location["kind"]},
        "agent": "coder",
        "text": "hello",
        "id": "1",
        "person": "ada",
        "directory": "/src/x",
        "repo": "/src",
    }
    first = await client.post("/api/messages", json=body)
    again = await client.post("/api/messages", json=body)
    assert (first.status_code, again.status_code, first.json()) == (202, 200, again.json())
    assert (await client.post("/api/messages", json={**body, "text": "other"})).status_code == 409
    entry = (await gateway.wait_until_idle(first.json()["session"]))[0]
    assert (entry["author"], entry["body"]["origin"]["platform"]) == ("person:local:ada", "terminal")
    found = (await client.get("/api/chat-locations?name=work&agent=coder")).json()
    assert found["session"]["id"] == first.json()["session"]


async def test_only_operators_may_send_as_a_terminal(as_: As) -> None:
    body = {"location": {"origin": {"platform": "terminal", "chat": "x"}}, "text": "hello"}
    assert (await as_(ADA).post("/api/messages", json=body)).status_code == 403


# -- dead letters, backups, memory -------------------------------------------------------------------------------------


async def test_dead_letters_are_listed_in_pages(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    session = await say(gateway, client, "hello")
    await give_up(gateway, session, 5)
    first = (await client.get("/api/dead-letters?limit=3")).json()
    second = (await client.get(f"/api/dead-letters?limit=3&after={first['next']}")).json()
    ids = [it["id"] for it in first["dead_letters"] + second["dead_letters"]]
    assert (len(ids), ids, second["next"]) == (5, sorted(set(ids)), None)
    assert (await client.get("/api/status")).json()["dead_letters"] == 5
    assert len((await client_of(gateway.running).list_dead_letters())["dead_letters"]) == 5


async def give_up(gateway: ApiGateway, session: str, count: int) -> None:
    """Create the dead letters that a memory leaves which refuses every write."""
    letters = [
        DeadLetter(consumer="memory:far", session=session, seq=1, part=part, key=str(part), reason="no", at=1.0)
        for part in range(count)
    ]
    change = Change(step=Step.REPLAY, session=session, at=1.0, dead_letters=tuple(letters))
    await gateway.running.store.commit(change)


async def test_only_commands_on_this_machine_may_choose_the_path_of_a_backup(
    gateway: ApiGateway, client: httpx2.AsyncClient, as_: As, tmp_path: Path
) -> None:
    await say(gateway, client, "hello")
    to = str(tmp_path / "copy.db")
    for outside in (client, as_(OPERATOR)):
        assert (await outside.post("/api/backups", json={"to": to})).status_code == 403
    made = (await as_(OPERATOR).post("/api/backups", json={})).json()
    assert made["sound"]
    listed = (await client.get("/api/backups")).json()["backups"]
    assert [it["path"] for it in listed] == [made["path"]]
    local = ApiClient(SocketTransport(gateway.home.api_socket))
    assert (await local.create_backup(to=to))["path"] == to


async def test_memory_is_exported_and_imported(gateway: ApiGateway, client: httpx2.AsyncClient, as_: As) -> None:
    hers = (await as_(ADA).post("/api/messages", json={"chat": "x", "text": "hello"})).json()["session"]
    await gateway.wait_until_idle(hers)
    answer = await client.get("/api/memory/export?person=ada")
    records = [msgspec.json.decode(line) for line in answer.text.splitlines()]
    assert [record["body"]["text"] for record in records if record["from"] == "log"][:1] == ["hello"]
    files = {"USER.md": "likes green tea", "MEMORY.md": "the house is blue"}
    plan = {"session": hers, "files": files, "dry_run": True}
    assert (await client.post("/api/memory/import", json=plan)).json()["noted"] == 2, "as many as would come"
    assert (await client.post("/api/memory/import", json={**plan, "dry_run": False})).json()["noted"] == 2
    assert (await client.post("/api/memory/import", json={**plan, "dry_run": False})).json()["noted"] == 0
    forgetting = (await client.post("/api/memory/forget", json={"person": "ada", "dry_run": True})).json()
    assert (forgetting["done"], forgetting["entries"] > 0) == (False, True)
    assert (await client.post("/api/memory/forget", json={"person": "ada"})).json()["entries"] > 0
    assert (await gateway.entries(hers))[0]["body"] is None


async def test_forgetting_deletes_held_messages_of_that_person_only(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    writes = tuple(
        StateWrite(
            namespace=StateNamespace.HELD_MESSAGE,
            scope=make_state_scope("telegram", "main"),
            key=f"{number:020d}",
            value=msgspec.json.encode({"at": 1.0, "identity": identity}).decode(),
            version=0,
        )
        for number, identity in enumerate(("telegram:1001", "telegram:10011", "discord:1001"))
    )
    store = gateway.running.store
    await store.commit(Change(step=Step.STATE, session="", at=1.0, state_writes=writes))
    assert (await client.post("/api/memory/forget", json={"person": "ada"})).status_code == 200
    left = await store.list_state_records(StateNamespace.HELD_MESSAGE)
    assert [msgspec.json.decode(it.value)["identity"] for it in left] == ["telegram:10011", "discord:1001"]


async def test_people_are_linked_and_unlinked(client: httpx2.AsyncClient) -> None:
    link = {"identity": "telegram:77", "person": "ada"}
    assert (await client.post("/api/people/link", json=link)).json() == {**link, "since": 0.0}
    people = {it["name"]: it for it in (await client.get("/api/people")).json()["people"]}
    proofs = {it["identity"]: it["proof"] for it in people["ada"]["identities"]}
    assert proofs == {
        "telegram:1001": "config",
        "local:ada": "config",
        "http:ada": "config",
        "telegram:77": "operator",
    }
    assert (await client.post("/api/people/unlink", json={"identity": "telegram:77"})).json() == link
    people = {it["name"]: it for it in (await client.get("/api/people")).json()["people"]}
    assert "telegram:77" not in {it["identity"] for it in people["ada"]["identities"]}
    assert (await client.post("/api/people/unlink", json={"identity": "telegram:78"})).status_code == 404
    assert (await client.post("/api/people/unlink", json={"identity": "telegram:1001"})).status_code == 400
    assert (await client.post("/api/people/link", json={**link, "person": "nobody"})).status_code == 404
    named = await client.post("/api/people/name", json={"person": "telegram:77", "name": "grace"})
    assert named.json()["name"] == "grace"
    assert (await client.post("/api/people/name", json={"person": "telegram:77", "name": "ada"})).status_code == 400
    events = (await client.get("/api/people/events?limit=1000")).json()["events"]
    assert [it["action"] for it in events if it["identity"] == "telegram:77"][-3:] == ["linked", "unlinked", "linked"]
    assert (await client.post("/api/pairing/approve", json={"code": "AAAA-BBBB"})).status_code == 404
    assert (await client.post("/api/pairing/revoke", json={"identity": "telegram:9"})).status_code == 404


# -- events ------------------------------------------------------------------------------------------------------------


async def test_the_events_of_one_session_are_numbered_by_its_seq(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    for number in range(3):
        await say(gateway, client, "other", chat=f"other {number}")
    session = await say(gateway, client, "one")
    log = await gateway.entries(session)
    async with listen_to_events(client, f"/api/events?session={session}&after_seq=2") as events:
        hello = await anext(events)
        assert hello.id == str(log[1]["pos"])
        seen = [await anext(events) for _ in log[2:]]
    assert [(event["seq"], event.id) for event in seen] == [(it["seq"], str(it["pos"])) for it in log[2:]]


async def test_a_reset_event_voids_the_deltas_before_it(
    gateway: ApiGateway, client: httpx2.AsyncClient, model: ModelServer
) -> None:
    tail = gateway.running.tail
    async with listen_to_events(client) as events:
        await anext(events)
        tail.on_reply_text("s", 7, "wrong ")
        assert await anext(events) == {"session": "s", "op": 7, "at": 0, "text": "wrong "}
        tail.on_reply_text("s", 7, None)
        tail.on_reply_text("s", 7, "right ")
        reset, delta = await anext(events), await anext(events)
    assert (reset.event, reset) == ("reset", {"session": "s", "op": 7})
    assert (delta.event, delta["at"], delta["text"]) == ("delta", 0, "right ")
