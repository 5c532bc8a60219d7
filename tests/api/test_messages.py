"""/api/messages and the views of the log."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from everhold.core.entries import Heard, ToolCall
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store_scenario import SeededRandom
from everhold.testing.model_server import HangingConnection, ModelServer, ModelServerReply
from tests.api.conftest import ADA, BOB, MODEL_KEY, OPERATOR, ApiGateway, configuration
from tests.api.gateway_process import GatewayProcess
from tests.waiting import wait_until

As = Callable[[str], httpx2.AsyncClient]


async def test_a_message_is_committed_before_it_is_acknowledged(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    answer = await client.post("/api/messages", json={"chat": "x", "text": "hello", "id": "m1"})
    assert answer.status_code == 202
    where = answer.json()
    assert set(where) == {"session", "seq"}
    entry = await gateway.running.store.get_entry(where["session"], where["seq"])
    assert entry.kind == "heard"
    session = (await client.get(f"/api/sessions/{where['session']}")).json()
    assert set(session) == {
        "id", "address", "agent", "title", "last_seq", "pending", "state", "waiting", "compressed_upto",
        "archived", "at",
    }  # fmt: skip
    assert session["address"] == "agent:main:http:dm:x"


async def test_a_repeated_message_is_recognised_and_a_changed_text_is_refused(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    message = {"chat": "x", "text": "hello", "id": "m1"}
    first = await client.post("/api/messages", json=message)
    again = await client.post("/api/messages", json=message)
    assert (again.status_code, again.json()) == (200, first.json())
    other = await client.post("/api/messages", json={**message, "text": "something else"})
    assert other.status_code == 409
    assert set(other.json()["error"]) == {"type", "message", "remedy"}
    log = await gateway.wait_until_idle(first.json()["session"])
    assert [entry["body"]["text"] for entry in log if entry["kind"] == "heard"] == ["hello"]


async def test_a_message_id_is_unique_within_chat_person_and_agent(client: httpx2.AsyncClient) -> None:
    message = {"chat": "x", "text": "hello", "id": "m1"}
    places = [message, {**message, "chat": "y"}, {**message, "person": "ada"}, {**message, "agent": "coder"}]
    places += [{**message, "chat": "y", "person": "ada"}, {**message, "chat": "x", "person": "bob"}]
    answers = [await client.post("/api/messages", json=place) for place in places]
    assert [answer.status_code for answer in answers] == [202] * len(places)
    assert len({answer.json()["session"] for answer in answers}) == len(places)


async def test_messages_without_an_id_are_not_duplicates(client: httpx2.AsyncClient) -> None:
    answers = [await client.post("/api/messages", json={"chat": "x", "text": "same"}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 202]
    assert len({answer.json()["seq"] for answer in answers}) == 3


@pytest.mark.parametrize(
    "body, status",
    [
        (b'{"chat": "x", "text": "hello", "id": "m1"', 400),
        (b"[]", 400),
        (b"", 400),
        (b'{"chat": "x"}', 400),
        (b'{"chat": "x", "text": ""}', 400),
        (b'{"chat": "x", "text": " \\n\\u00a0"}', 400),
        (b'{"chat": "", "text": "hello"}', 400),
        (b'{"chat": "x", "text": "hello", "txet": 1}', 400),
        (b'{"chat": "x\\u0000", "text": "hello"}', 400),
        (b'{"chat": "x", "text": "\\ud800"}', 400),
        (b'{"chat": "x", "text": "hello", "agent": "nobody"}', 404),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
    ],
)
async def test_an_invalid_message_is_refused_and_leaves_no_entry(
    gateway: ApiGateway, client: httpx2.AsyncClient, body: bytes, status: int
) -> None:
    answer = await client.post("/api/messages", content=body)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"type", "message", "remedy"}
    assert await gateway.running.store.read_feed() == []


async def test_the_log_can_be_read_from_any_seq(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    where = (await client.post("/api/messages", json={"chat": "x", "text": "hello"})).json()
    log = await gateway.wait_until_idle(where["session"])
    assert [entry["seq"] for entry in log] == list(range(1, len(log) + 1))
    assert set(log[0]) == {"pos", "seq", "kind", "op", "author", "at", "body"}
    path = f"/api/sessions/{where['session']}/entries"
    assert (await client.get(path, params={"after": 2})).json() == {"entries": log[2:]}
    assert (await client.get(path, params={"after": 1, "limit": 2})).json() == {"entries": log[1:3]}
    assert (await client.get(path, params={"after": 999})).json() == {"entries": []}
    assert (await client.get(path, params={"after": "x"})).status_code == 400


async def test_a_long_log_is_read_whole(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    where = (await client.post("/api/messages", json={"chat": "x", "text": "hello"})).json()
    await gateway.wait_until_idle(where["session"])
    for number in range(1_200):
        await gateway.running.session_admin.add_note(where["session"], f"fact {number}")
    log = await gateway.entries(where["session"])
    assert [entry["seq"] for entry in log] == list(range(1, len(log) + 1))
    assert len(log) > 1_200


async def test_the_context_route_shows_exactly_what_the_model_got(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    where = (await client.post("/api/messages", json={"chat": "x", "text": "hello"})).json()
    log = await gateway.wait_until_idle(where["session"])
    thought = next(entry for entry in log if entry["kind"] == "thought")
    path = f"/api/sessions/{where['session']}/context"
    shown = (await client.get(path, params={"at": thought["seq"]})).json()
    assert shown["exact"] is True
    assert shown["request"]["messages"][-1]["text"] == "hello"
    upcoming = (await client.get(path)).json()
    assert upcoming["exact"] is None
    assert (await client.get(path, params={"at": 99})).status_code == 404


async def test_a_note_is_for_the_last_speaker_after_many_entries(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    session = (await client.post("/api/messages", json={"chat": "x", "text": "hello", "person": "bob"})).json()[
        "session"
    ]
    await gateway.wait_until_idle(session)
    control = gateway.running.session_admin
    for number in range(210):
        await control.add_note(session, f"fact {number}")
    await client.post("/api/messages", json={"chat": "x", "text": "/branch", "person": "bob"})
    found: list[str] = []

    async def branched() -> bool:
        found[:] = [it["id"] for it in (await client.get("/api/sessions")).json()["sessions"]]
        return len(found) == 2

    await wait_until(branched)
    for where in found:
        seq = (await client.post("/api/notes", json={"session": where, "text": "likes tea"})).json()["seq"]
        noted = (await gateway.entries(where))[seq - 1]["body"]
        assert (noted["text"], noted["stamp"]["person"], noted["stamp"]["audience"]) == (
            "likes tea",
            "http:bob",
            ["person:http:bob"],
        )


async def test_undo_stop_and_notes_are_in_the_log(
    gateway: ApiGateway, client: httpx2.AsyncClient, model: ModelServer
) -> None:
    session = (await client.post("/api/messages", json={"chat": "x", "text": "hello"})).json()["session"]
    await gateway.wait_until_idle(session)
    undone = await client.post(f"/api/sessions/{session}/undo", json={"what": "turn"})
    assert (undone.status_code, undone.json()["message"]) == (200, "Took back 1 turn.")
    assert (await client.post("/api/notes", json={"session": session, "text": " \n"})).status_code == 400
    noted = await client.post("/api/notes", json={"session": session, "text": "likes tea"})
    assert noted.status_code == 202
    assert (await client.post(f"/api/sessions/{session}/stop")).json()["message"] == "Nothing is running."
    kinds = [entry["kind"] for entry in await gateway.entries(session)]
    assert kinds.count("changed") == 1
    assert kinds.count("noted") == 1
    model.add_steps(HangingConnection())
    await client.post("/api/messages", json={"chat": "x", "text": "think for ever"})

    async def is_(state: str) -> bool:
        shown: str = (await client.get(f"/api/sessions/{session}")).json()["state"]
        return shown == state

    await wait_until(lambda: is_("turn"))
    assert (await client.post(f"/api/sessions/{session}/stop")).json()["message"] == "Stopping."
    await wait_until(lambda: is_("idle"))


async def test_chat_commands_work_over_http(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    session = (await client.post("/api/messages", json={"chat": "x", "text": "/whoami"})).json()["session"]

    async def told() -> bool:
        return any(entry["kind"] == "notified" for entry in await gateway.entries(session))

    await wait_until(told)


async def test_dead_letters_are_listed_and_replayed(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/api/dead-letters")).json() == {"dead_letters": [], "next": None}
    assert (await client.post("/api/dead-letters/replay", json={})).json() == {"replayed": 0}
    assert (await client.post("/api/dead-letters/replay", json={"ids": [7]})).json() == {"replayed": 0}


async def test_a_tool_call_of_the_model_is_in_the_log(
    gateway: ApiGateway, client: httpx2.AsyncClient, model: ModelServer
) -> None:
    model.add_steps(
        ModelServerReply(calls=(ToolCall(id="c1", tool="nothing", arguments={}),)), ModelServerReply(text="done")
    )
    session = (await client.post("/api/messages", json={"chat": "x", "text": "do"})).json()["session"]
    log = await gateway.wait_until_idle(session)
    assert [entry["kind"] for entry in log if entry["kind"] in ("thought", "returned", "said")] == [
        "thought",
        "returned",
        "thought",
        "said",
    ]


# -- people ------------------------------------------------------------------------------------------------------------


async def test_a_token_determines_the_speaker(gateway: ApiGateway, as_: As) -> None:
    where = (await as_(ADA).post("/api/messages", json={"chat": "x", "text": "hello"})).json()
    heard = (await gateway.wait_until_idle(where["session"]))[0]
    assert heard["author"] == "person:http:ada"
    assert heard["body"]["stamp"]["audience"] == ["person:http:ada"]
    other = await as_(ADA).post("/api/messages", json={"chat": "x", "text": "hello", "person": "bob"})
    assert other.status_code == 403
    own = await as_(ADA).post("/api/messages", json={"chat": "x", "text": "hello", "person": "ada"})
    assert own.json()["session"] == where["session"]
    on_behalf = await as_(OPERATOR).post("/api/messages", json={"chat": "x", "text": "hello", "person": "ada"})
    assert on_behalf.json()["session"] == where["session"]


async def test_two_people_with_the_same_chat_name_have_separate_sessions(gateway: ApiGateway, as_: As) -> None:
    ada, bob, boss = as_(ADA), as_(BOB), as_(OPERATOR)
    hers = (await ada.post("/api/messages", json={"chat": "x", "text": "mine"})).json()["session"]
    his = (await bob.post("/api/messages", json={"chat": "x", "text": "mine"})).json()["session"]
    assert hers != his
    await gateway.wait_until_idle(hers)
    await gateway.wait_until_idle(his)
    assert [session["id"] for session in (await ada.get("/api/sessions")).json()["sessions"]] == [hers]
    assert {session["id"] for session in (await boss.get("/api/sessions")).json()["sessions"]} == {hers, his}
    for path in ("", "/entries", "/context"):
        assert (await ada.get(f"/api/sessions/{hers}{path}")).status_code == 200
        assert (await ada.get(f"/api/sessions/{his}{path}")).status_code == 404
    for path, body in (("undo", {"what": "turn"}), ("stop", {})):
        assert (await ada.post(f"/api/sessions/{his}/{path}", json=body)).status_code == 404
    assert (await ada.post("/api/notes", json={"session": his, "text": "x"})).status_code == 404
    assert (await ada.get(f"/api/events?session={his}")).status_code == 404
    before = await gateway.entries(his)
    assert [entry["seq"] for entry in before] == list(range(1, len(before) + 1))
    for name in ("last", his[:6]):
        assert (await ada.get(f"/api/sessions/{name}")).status_code == 404
    absent = (await ada.get("/api/sessions/nothing")).json()["error"]
    foreign = (await ada.get(f"/api/sessions/{his}")).json()["error"]
    assert foreign == {**absent, "message": absent["message"].replace("nothing", his)}, "as if it were not there"


@pytest.mark.prove
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="nobody here says how much memory a process has")
@pytest.mark.parametrize("chats", [1, 10_000])
async def test_ten_thousand_waiting_messages_are_answered_in_bounded_memory(tmp_path: Path, chats: int) -> None:
    """Many messages, in one chat or in one chat each, wait in the log and not in memory."""
    model = ModelServer(key=MODEL_KEY)
    released = model.hold()
    async with model:
        long = configuration(model.openai).replace("context_tokens: 100000", "context_tokens: 10000000")
        gateway = GatewayProcess(tmp_path, long)
        await gateway.start()
        async with gateway.open_client(seconds=60) as client:

            async def numbers() -> dict[str, float]:
                lines = (await client.get("/metrics")).text.splitlines()
                return {name: float(value) for name, _, value in (it.rpartition(" ") for it in lines if it[:1] != "#")}

            async def write(first: int) -> None:
                for n in range(first, 10_000, 16):
                    sent = await client.post("/api/messages", json={"chat": f"c{n % chats}", "text": f"m{n}"})
                    assert sent.status_code == 202, sent.text

            await asyncio.gather(*map(write, range(16)))
            assert (await numbers())["everhold_messages_pending"] > 9_000
            released.set()

            async def answered() -> bool:
                await asyncio.sleep(0.5)
                seen = await numbers()
                return not seen["everhold_messages_pending"] and seen["everhold_turns_total"] >= min(chats, 2)

            await wait_until(answered, seconds=600)
            peak = gateway.peak_bytes()
        assert await gateway.kill(signal.SIGTERM) == 0
        store = SqliteStore.open(gateway.home.store, chance=SeededRandom())
        heard = [e.body.text for e in await store.read_feed(limit=200_000) if isinstance(e.body, Heard)]
        assert sorted(heard) == sorted(f"m{n}" for n in range(10_000))
        assert await store.verify() == []
        await store.close()
        assert peak < 200_000_000
