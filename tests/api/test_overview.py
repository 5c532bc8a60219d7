"""Lists of sessions by activity, timelines, parts of contexts, deliveries and dead letters, over HTTP."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import httpx2
import msgspec
import pytest

from everhold.admin.session_overview import SessionFilter, SessionOverview
from everhold.api import console_schemas
from everhold.core.context import fingerprint_request
from everhold.ports.model import ModelRequest
from everhold.ports.store import Change, DeadLetter, Step
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.api.conftest import ADA, BOB, ApiGateway
from tests.waiting import wait_until

As = Callable[[str], httpx2.AsyncClient]


async def say(gateway: ApiGateway, client: httpx2.AsyncClient, text: str, *, chat: str = "x", said: int = 1) -> str:
    session: str = (await client.post("/api/messages", json={"chat": chat, "text": text})).json()["session"]
    await gateway.wait_until_idle(session, said=said)
    return session


async def list_active(client: httpx2.AsyncClient, **query: str | int) -> dict[str, Any]:
    answer = await client.get("/api/sessions", params={"order": "active", **query})
    assert answer.status_code == 200, answer.text
    msgspec.convert(answer.json(), console_schemas.ActiveSessionsResponse)
    found: dict[str, Any] = answer.json()
    return found


async def list_titles(client: httpx2.AsyncClient, **query: str | int) -> list[str]:
    return [it["title"] or it["first"] for it in (await list_active(client, **query))["sessions"]]


# -- lists -------------------------------------------------------------------------------------------------------------


async def test_sessions_are_listed_by_their_last_activity(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    for chat in ("one", "two", "three"):
        await say(gateway, client, f"in {chat}", chat=chat)
    assert await list_titles(client) == ["in three", "in two", "in one"]
    await say(gateway, client, "again", chat="one", said=2)
    assert await list_titles(client) == ["in one", "in three", "in two"]
    pages, before = [], ""
    while True:
        page = await list_active(client, limit=1, **({"before": before} if before else {}))
        pages += [it["first"] for it in page["sessions"]]
        before = page["next"]
        if not before:
            break
    assert pages == ["in one", "in three", "in two"]


async def test_a_title_and_an_archived_session_survive_a_restart(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    kept, hidden = await say(gateway, client, "keep", chat="a"), await say(gateway, client, "hide", chat="b")
    assert (await client.post(f"/api/sessions/{kept}/title", json={"title": "Taxes"})).status_code == 200
    assert (await client.post(f"/api/sessions/{hidden}/archive", json={})).json()["archived"]
    for _ in range(2):
        assert await list_titles(client) == ["Taxes"]
        assert await list_titles(client, state="archived") == ["hide"]
        assert await list_titles(client, q="tax") == ["Taxes"]
        assert await list_titles(client, state="all", q="hide") == ["hide"], "the words are in the entry"
        await gateway.stop()
        await gateway.start()
    await client.post(f"/api/sessions/{hidden}/archive", json={"archived": False})
    assert await list_titles(client) == ["hide", "Taxes"]
    audit = (await client.get("/api/audit")).json()
    assert audit["holds"], audit


async def test_filters_restrict_the_list(gateway: ApiGateway, client: httpx2.AsyncClient, as_: As) -> None:
    await say(gateway, client, "mine", chat="m")
    await say(gateway, as_(ADA), "from ada", chat="a")
    posted = await client.post("/api/messages", json={"chat": "c", "text": "for the coder", "agent": "coder"})
    await gateway.wait_until_idle(posted.json()["session"])
    assert await list_titles(client, person="ada") == ["from ada"]
    assert await list_titles(client, agent="coder") == ["for the coder"]
    assert await list_titles(client, platform="telegram") == []
    assert await list_titles(client, q="100%_") == []
    for query in ({"state": "lost"}, {"before": "x"}, {"limit": 1_000}):
        assert (await client.get("/api/sessions", params={"order": "active", **query})).status_code == 400, query


async def test_a_member_lists_only_own_sessions(gateway: ApiGateway, client: httpx2.AsyncClient, as_: As) -> None:
    await say(gateway, client, "of the operator", chat="x")
    await say(gateway, as_(ADA), "of ada", chat="x")
    assert await list_titles(as_(ADA)) == ["of ada"]
    assert await list_titles(as_(BOB)) == []
    assert (await as_(ADA).get("/api/sessions", params={"order": "active", "person": "bob"})).status_code == 403
    assert await list_titles(as_(ADA), q="operator") == []


async def test_the_projection_forgets_what_is_erased(gateway: ApiGateway, client: httpx2.AsyncClient, as_: As) -> None:
    session = await say(gateway, as_(ADA), "the word is Rumpelstilzchen", chat="x")
    await as_(ADA).post(f"/api/sessions/{session}/title", json={"title": "Rumpelstilzchen"})
    assert await list_titles(client, person="ada") == ["Rumpelstilzchen"]
    plan = (await client.get(f"/api/sessions/{session}/erasure-plan")).json()
    assert 1 in plan["seqs"]
    done = await client.post(f"/api/sessions/{session}/erase", json={"seqs": plan["seqs"]})
    assert done.status_code == 200, done.text
    assert await list_titles(client, person="ada") == []
    await gateway.running.overview.wipe_erased(gateway.running.store)
    files = list(gateway.home.path.glob("overview.db*"))
    assert files
    for file in files:
        content = file.read_bytes()
        assert b"Rumpelstilzchen" not in content, file
        assert b"telegram:1001" not in content
        assert b"http:ada" not in content, file


async def test_the_projection_is_derived_again_for_another_log(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    await say(gateway, client, "hello")
    assert await list_titles(client) == ["hello"]
    overview = gateway.running.overview
    await gateway.stop()
    with overview._open() as db:
        db.execute("update sessions set title = 'of another log'")
        db.execute("update meta set value = 'x 1 00' where key = 'mark'")
    await gateway.start()
    assert await list_titles(client) == ["hello"]
    await gateway.stop()
    gateway.home.overview.write_bytes(b"no database")
    await gateway.start()
    assert await list_titles(client) == ["hello"]


async def test_the_projection_equals_one_that_is_derived_at_once(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    for number in range(6):
        await say(gateway, client, f"message {number}", chat=f"c{number % 2}", said=number // 2 + 1)
        await list_active(client)
    store = gateway.running.store
    fresh = SessionOverview(gateway.home.path / "fresh.db", get_day=gateway.running.overview._get_day)
    while await fresh.catch_up(store, limit=3):
        pass
    wanted = SessionFilter()
    assert await fresh.list_sessions(wanted) == await gateway.running.overview.list_sessions(wanted)
    assert await fresh.summarize_usage("person", since="", until="~") == await gateway.running.overview.summarize_usage(
        "person", since="", until="~"
    )
    await fresh.close()


async def test_usage_adds_up_to_the_costs_in_the_log(gateway: ApiGateway, client: httpx2.AsyncClient, as_: As) -> None:
    await say(gateway, client, "one", chat="a")
    await say(gateway, as_(ADA), "two", chat="b")
    await list_active(client)
    entries = [
        entry
        for row in (await list_active(client))["sessions"]
        for entry in await gateway.entries(row["id"])
        if entry["kind"] == "thought"
    ]
    spent = sum(it["body"]["usage"]["input"] for it in entries)
    for by in ("day", "agent", "model", "person"):
        rows = (await client.get("/api/usage", params={"by": by})).json()["rows"]
        assert sum(row["input"] for row in rows) == spent, by
        assert sum(row["calls"] for row in rows) == len(entries)
    people = {row["key"] for row in (await client.get("/api/usage?by=person")).json()["rows"]}
    assert "ada" in people
    assert (await client.get("/api/usage?since=2999-01-01")).json()["rows"] == []
    assert (await as_(ADA).get("/api/usage")).status_code == 403


# -- one session -------------------------------------------------------------------------------------------------------


async def test_the_timeline_has_a_row_per_operation(
    gateway: ApiGateway, client: httpx2.AsyncClient, model: ModelServer
) -> None:
    session = await say(gateway, client, "one")
    await say(gateway, client, "two", said=2)
    await client.post(f"/api/sessions/{session}/undo", json={})
    found = (await client.get(f"/api/sessions/{session}/timeline")).json()
    msgspec.convert(found, console_schemas.TimelineResponse)
    assert [row["type"] for row in found["operations"]] == ["command", "turn", "turn"]
    undone, kept = found["operations"][1:]
    assert undone["undone_at"]
    assert not kept["undone_at"]
    assert kept["took"] == [1]
    assert kept["usage"]["input"] > 0
    assert kept["asked_at"] <= kept["began_at"] <= kept["ended_at"]
    page = (await client.get(f"/api/sessions/{session}/timeline", params={"limit": 2})).json()
    rest = (await client.get(f"/api/sessions/{session}/timeline", params={"before": page["next"]})).json()
    assert page["operations"] + rest["operations"] == found["operations"]
    assert (found["next"], rest["next"]) == (None, None)


async def test_the_parts_of_a_context_cover_its_messages(
    gateway: ApiGateway, client: httpx2.AsyncClient, as_: As
) -> None:
    session = await say(gateway, as_(ADA), "one")
    for number in range(2, 5):
        await say(gateway, as_(ADA), f"message {number}", said=number)
    thoughts = [it["seq"] for it in await gateway.entries(session) if it["kind"] == "thought"]
    shown = (await client.get(f"/api/sessions/{session}/context", params={"at": thoughts[-1]})).json()
    assert shown["exact"] is True
    request = msgspec.convert(shown["request"], ModelRequest)
    assert fingerprint_request(request)
    ranges = [part["messages"] for part in shown["parts"] if part["messages"]]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == len(request.messages)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(ranges))
    assert shown["parts"][0]["kind"] == "system"
    hers = (await as_(ADA).get(f"/api/sessions/{session}/context", params={"at": thoughts[-1]})).json()
    assert {part["kind"] for part in hers["parts"]} == {"exchange"}


async def test_a_diff_names_what_a_compression_replaced(
    gateway: ApiGateway, client: httpx2.AsyncClient, model: ModelServer
) -> None:
    session = await say(gateway, client, "my dog is called Rex " * 40)
    for number in range(2, 7):
        await say(gateway, client, f"message {number} " * 40, said=number)
    first = [it["seq"] for it in await gateway.entries(session) if it["kind"] == "thought"][-1]
    model.add_steps(ModelServerReply(text="They talked about a dog called Rex."))
    done = (await client.post(f"/api/sessions/{session}/compress", json={"keep": 1})).json()
    assert done["done"], done
    await say(gateway, client, "and now?", said=7)
    second = [it["seq"] for it in await gateway.entries(session) if it["kind"] == "thought"][-1]
    found = (await client.get(f"/api/sessions/{session}/context/diff", params={"a": first, "b": second})).json()
    msgspec.convert(found, console_schemas.ContextDiffResponse)
    changes = [(it["change"], it["part"]["kind"]) for it in found["parts"]]
    assert ("added", "compression") in changes
    compression = next(it["part"] for it in found["parts"] if it["part"]["kind"] == "compression")
    replaced = [it for it in found["parts"] if it["change"] == "compressed"]
    assert replaced
    assert all(it["by"] == compression["op"] and it["part"]["op"] <= compression["covers"] for it in replaced)
    assert found["tokens_after"] == sum(it["tokens_after"] for it in found["parts"])
    contexts = [
        (await client.get(f"/api/sessions/{session}/context", params={"at": seq})).json() for seq in (first, second)
    ]
    sizes = [sum(part["tokens"] for part in shown["parts"]) for shown in contexts]
    assert [found["tokens_before"], found["tokens_after"]] == sizes


async def test_an_export_has_every_entry(gateway: ApiGateway, client: httpx2.AsyncClient, as_: As) -> None:
    session = await say(gateway, client, "one")
    lines = (await client.get(f"/api/sessions/{session}/export")).text.splitlines()
    assert [msgspec.json.decode(line).get("kind") for line in lines[1:]] == [
        entry["kind"] for entry in await gateway.entries(session)
    ]
    assert (await as_(ADA).get(f"/api/sessions/{session}/export")).status_code == 403


# -- deliveries and dead letters ---------------------------------------------------------------------------------------


async def add_dead_letters(gateway: ApiGateway, session: str, reasons: list[str]) -> None:
    letters = tuple(
        DeadLetter(consumer="memory:notes", session=session, seq=1, part=part, key=f"k{part}", reason=reason)
        for part, reason in enumerate(reasons)
    )
    await gateway.running.store.commit(Change(step=Step.DELIVERY_DONE, session=session, at=1.0, dead_letters=letters))


async def test_dead_letters_are_counted_replayed_and_dropped_by_reason(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    session = await say(gateway, client, "one")
    await add_dead_letters(gateway, session, ["too long"] * 3 + ["not allowed"] * 2)
    causes = (await client.get("/api/dead-letters/causes")).json()["causes"]
    assert [(it["reason"], it["count"]) for it in causes] == [("too long", 3), ("not allowed", 2)]
    shown = (await client.get("/api/dead-letters", params={"cause": "not allowed"})).json()["dead_letters"]
    assert {it["reason"] for it in shown} == {"not allowed"}
    assert (await client.post("/api/dead-letters/drop", json={})).status_code == 400, "a filter is needed"
    wanted = {"cause": "not allowed", "dry_run": True}
    assert (await client.post("/api/dead-letters/drop", json=wanted)).json() == {"dropped": 2}
    assert (await client.post("/api/dead-letters/drop", json={**wanted, "dry_run": False})).json() == {"dropped": 2}
    assert (await client.post("/api/dead-letters/replay", json={"dry_run": True})).json() == {"replayed": 3}
    assert len((await client.get("/api/dead-letters")).json()["dead_letters"]) == 3
    assert (await client.post("/api/dead-letters/replay", json={"cause": "other"})).json() == {"replayed": 0}
    (item,) = [it for it in (await client.get("/api/inbox")).json()["items"] if it["kind"] == "dead_letters"]
    assert item["data"] == {"consumer": "memory:notes", "count": 3}
    shown = (await client.get(f"/api/sessions/{session}/entries/1/deliveries")).json()
    assert {(it["consumer"], it["state"]) for it in shown["deliveries"]} >= {("memory:notes", "dead")}


async def test_the_inbox_names_what_waits_with_a_remedy(
    gateway: ApiGateway, client: httpx2.AsyncClient, as_: As
) -> None:
    answer = (await client.get("/api/inbox")).json()
    msgspec.convert(answer, console_schemas.InboxResponse)
    before = gateway.home.config.read_text()
    gateway.configure(before + "\nunknown_key: 1\n")

    async def is_refused() -> bool:
        items = (await client.get("/api/inbox")).json()["items"]
        return any(it["kind"] == "config" and it["remedy"] for it in items)

    await wait_until(is_refused)
    assert (await as_(ADA).get("/api/inbox")).status_code == 403


@pytest.mark.parametrize(
    "path", ["timeline?limit=0", "context/diff?a=1", "entries/x/deliveries", "entries/99/deliveries"]
)
async def test_a_wrong_parameter_is_refused(gateway: ApiGateway, client: httpx2.AsyncClient, path: str) -> None:
    session = await say(gateway, client, "one")
    assert (await client.get(f"/api/sessions/{session}/{path}")).status_code in (400, 404)
