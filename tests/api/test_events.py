"""/api/events: entries without a gap, across restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from everhold.api.log_tail import LogTail
from everhold.core.entries import ChatLocation, Ended, EntryDraft, EntryKind, Heard, Stamp
from everhold.core.hosts import build_commit_hint
from everhold.ports.store import Change, SessionOpening, Step
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.api.conftest import ADA, BOB, ApiGateway, StreamEvent, listen_to_events, read_until
from tests.waiting import LIMIT_SECONDS

As = Callable[[str], httpx2.AsyncClient]


async def test_every_entry_is_sent_as_soon_as_it_is_committed(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    async with listen_to_events(client) as events:
        hello = await anext(events)
        assert (hello.event, hello.id) == ("hello", "0")
        where = (await client.post("/api/messages", json={"chat": "x", "text": "hello"})).json()
        found = await read_until(events, "ended")
    log = await gateway.entries(where["session"])
    assert [{k: v for k, v in event.items() if k != "session"} for event in found] == log
    assert [event.id for event in found] == [str(entry["pos"]) for entry in log]
    assert {event["session"] for event in found} == {where["session"]}


async def test_a_stream_without_a_last_event_id_starts_at_the_end(
    gateway: ApiGateway, client: httpx2.AsyncClient
) -> None:
    where = (await client.post("/api/messages", json={"chat": "x", "text": "before"})).json()
    log = await gateway.wait_until_idle(where["session"])
    async with listen_to_events(client) as events:
        assert (await anext(events)).id == str(log[-1]["pos"])
        await client.post("/api/messages", json={"chat": "x", "text": "after"})
        found = await read_until(events, "heard")
    assert [event["body"]["text"] for event in found] == ["after"]


async def test_a_reply_is_streamed_in_deltas_and_then_as_committed(
    gateway: ApiGateway, client: httpx2.AsyncClient, model: ModelServer
) -> None:
    model.add_steps(ModelServerReply(text="one two three four", pause_seconds=0.02))
    seen: list[StreamEvent] = []
    async with listen_to_events(client) as events, asyncio.timeout(LIMIT_SECONDS):
        await client.post("/api/messages", json={"chat": "x", "text": "count"})
        async for event in events:
            seen.append(event)
            if event.event == "entry" and event["kind"] == "ended":
                break
    pieces = [event for event in seen if event.event == "delta"]
    assert len(pieces) > 1
    assert all(not piece.id for piece in pieces), "a piece has no place in the log"
    assert "".join(piece["text"] for piece in pieces) == "one two three four"
    said = next(event for event in seen if event.event == "entry" and event["kind"] == "said")
    assert said["body"]["text"] == "one two three four"
    assert seen.index(pieces[-1]) < seen.index(said)


@pytest.mark.parametrize("how", ["header", "query"])
async def test_a_client_that_reconnects_after_a_restart_misses_nothing(
    tmp_path: Path, model: ModelServer, how: str
) -> None:
    gateway = ApiGateway(tmp_path, model)
    await gateway.start()
    try:
        async with gateway.client() as client:
            async with listen_to_events(client) as events:
                await client.post("/api/messages", json={"chat": "x", "text": "first"})
                before = await read_until(events, "began")
            await client.post("/api/messages", json={"chat": "x", "text": "unseen"})
        await gateway.stop()
        await gateway.start()
        last = before[-1].id
        path, headers = (
            ("/api/events", {"last-event-id": last}) if how == "header" else (f"/api/events?after={last}", {})
        )
        async with gateway.client() as client:
            await client.post("/api/messages", json={"chat": "y", "text": "marker"})
            async with listen_to_events(client, path, **headers) as events, asyncio.timeout(LIMIT_SECONDS):
                after: list[StreamEvent] = []
                async for event in events:
                    if event.event == "entry":
                        after.append(event)
                        if event["kind"] == "said" and event["body"]["text"] == "You said: marker":
                            break
        places = [int(event.id) for event in before + after]
        assert places == list(range(1, len(places) + 1)), "a gap, or a repeat"
    finally:
        await gateway.stop()


async def test_a_last_event_id_beyond_the_end_starts_at_the_end(client: httpx2.AsyncClient) -> None:
    async with listen_to_events(client, **{"last-event-id": "999999"}) as events:
        hello = await anext(events)
        assert (hello.id, hello["end"]) == ("0", 0)
        await client.post("/api/messages", json={"chat": "x", "text": "hello"})
        assert (await read_until(events, "heard"))[0]["body"]["text"] == "hello"


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 30])
async def test_an_invalid_last_event_id_is_refused(client: httpx2.AsyncClient, last: str) -> None:
    assert (await client.get("/api/events", headers={"last-event-id": last})).status_code == 400


async def test_the_events_of_one_session_can_be_followed(gateway: ApiGateway, client: httpx2.AsyncClient) -> None:
    wanted = (await client.post("/api/messages", json={"chat": "x", "text": "one"})).json()["session"]
    await gateway.wait_until_idle(wanted)
    async with listen_to_events(client, f"/api/events?session={wanted}") as events:
        await client.post("/api/messages", json={"chat": "other", "text": "not this"})
        await client.post("/api/messages", json={"chat": "x", "text": "two"})
        found = await read_until(events, "said")
    assert {event["session"] for event in found} == {wanted}
    assert found[0]["body"]["text"] == "two"


async def test_people_see_their_own_sessions_only(gateway: ApiGateway, as_: As, model: ModelServer) -> None:
    ada, bob = as_(ADA), as_(BOB)
    async with listen_to_events(ada) as events:
        his = (await bob.post("/api/messages", json={"chat": "x", "text": "a secret of bob"})).json()["session"]
        await gateway.wait_until_idle(his)
        hers = (await ada.post("/api/messages", json={"chat": "x", "text": "mine"})).json()["session"]
        seen: list[StreamEvent] = []
        async with asyncio.timeout(LIMIT_SECONDS):
            async for event in events:
                seen.append(event)
                if event.event == "entry" and event["kind"] == "said":
                    break
    assert {event["session"] for event in seen if "session" in event} == {hers}
    assert "secret" not in str(seen)


async def test_sessions_that_a_nick_had_before_its_link_are_not_its_persons(gateway: ApiGateway, as_: As) -> None:
    """Somebody else may have had the nick then."""
    store = gateway.running.store

    async def open_session(session: str, at: float) -> None:
        address = f"agent:main:irc:dm:{session}"
        stamp = Stamp(person="irc:ada", audience=("person:irc:ada",), address=address)
        heard = Heard(origin=ChatLocation(platform="irc", chat=session), text="x", asks=False, stamp=stamp)
        opens = SessionOpening(agent="main", address=address)
        drafts = (EntryDraft(body=heard, author="person:irc:ada", at=at),)
        await store.commit(Change(step=Step.ACCEPT, session=session, at=at, entries=drafts, opens=opens))

    now = gateway.running.clock.now()
    await open_session("0" * 26, now - 1_000)
    await open_session("1" * 26, now)
    linked = {"identity": "irc:ada", "person": "bob", "since": now - 500}
    async with gateway.client() as boss:
        assert (await boss.post("/api/people/link", json=linked)).status_code == 200
    bob = as_(BOB)
    assert [it["id"] for it in (await bob.get("/api/sessions")).json()["sessions"]] == ["1" * 26]
    assert (await bob.get(f"/api/sessions/{'1' * 26}")).status_code == 200
    assert (await bob.get(f"/api/sessions/{'0' * 26}")).status_code == 404
    assert (await as_(ADA).get(f"/api/sessions/{'1' * 26}")).status_code == 404


async def test_open_streams_do_not_delay_the_shutdown(tmp_path: Path, model: ModelServer) -> None:
    gateway = ApiGateway(tmp_path, model)
    await gateway.start()
    async with gateway.client() as client:
        async with listen_to_events(client) as one, listen_to_events(client) as two:
            await anext(one)
            await anext(two)
            began = time.monotonic()
            await gateway.stop(seconds=30)
            assert time.monotonic() - began < 30, "it waited for them as long as it may"
            assert [event async for event in one] == []


async def test_an_unread_stream_uses_no_memory_and_loses_no_entry() -> None:
    tail = LogTail()
    with tail.watch() as watch:
        for number in range(100_000):
            tail.on_reply_text("s", 1, f"{number} ")
        pieces = watch.take_pieces()
    assert len(pieces) <= 2_000
    assert pieces[-1].text == "99999 "


@pytest.mark.parametrize("query", ["", "&after_seq=0"])
async def test_an_open_stream_shows_nothing_more_after_an_unlink(gateway: ApiGateway, as_: As, query: str) -> None:
    store, session = gateway.running.store, "2" * 26
    address = f"agent:main:telegram:dm:{session}"
    stamp = Stamp(person="telegram:77", audience=("person:telegram:77",), address=address)
    opens = SessionOpening(agent="main", address=address)

    async def write(text: str, opens: SessionOpening | None = None) -> None:
        heard = Heard(origin=ChatLocation(platform="telegram", chat="x"), text=text, asks=False, stamp=stamp)
        drafts = (EntryDraft(body=heard, author="person:telegram:77"),)
        await store.commit(Change(step=Step.ACCEPT, session=session, at=1.0, entries=drafts, opens=opens))

    await write("first", opens)
    async with gateway.client() as boss:
        linked = {"identity": "telegram:77", "person": "ada"}
        assert (await boss.post("/api/people/link", json=linked)).status_code == 200
        async with listen_to_events(as_(ADA), f"/api/events?session={session}{query}") as events:
            await write("second")
            seen: list[StreamEvent] = []
            async with asyncio.timeout(LIMIT_SECONDS):
                while "second" not in str(seen):
                    seen.append(await anext(events))
            assert (await boss.post("/api/people/unlink", json={"identity": "telegram:77"})).status_code == 200
            await write("third, which is private")
            async with asyncio.timeout(LIMIT_SECONDS):
                seen += [event async for event in events]  # the stream ends
    assert "private" not in str(seen)


async def test_deltas_wake_watchers_of_growing_replies_without_reading_the_log() -> None:
    tail, heard = (
        LogTail(),
        EntryDraft(body=Heard(origin=ChatLocation(platform="http", chat="x"), text="x"), author="person:me"),
    )
    ended = EntryDraft(body=Ended(), author="system", op=1)
    with tail.watch("s") as growing, tail.watch("s", until=(EntryKind.ENDED,)) as patient, tail.watch("t") as other:
        tail.on_reply_text("s", 1, "so")
        assert (await growing.wait(0), growing.grown) == (True, False)
        tail.on_commit(build_commit_hint(Change(step=Step.ACCEPT, session="s", at=1.0, entries=(heard,)), ()))
        assert (await growing.wait(0), growing.grown) == (True, True)
        assert (await patient.wait(0), patient.take_pieces()) == (False, [])
        tail.on_commit(build_commit_hint(Change(step=Step.END, session="s", at=1.0, entries=(heard, ended)), ()))
        assert (await patient.wait(0), patient.grown) == (True, True)
        assert not await other.wait(0)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 40])
async def test_the_end_pos_of_the_log_is_found(gateway: ApiGateway, count: int) -> None:
    store, tail = gateway.running.store, LogTail()
    for number in range(count):
        session = f"{number % 3:026d}"
        place = ChatLocation(platform="http", chat="x")
        opens = SessionOpening(agent="main", address=f"agent:main:http:dm:{session}") if number < 3 else None
        drafts = (EntryDraft(body=Heard(origin=place, text="x", asks=False), author="person:me"),)
        await store.commit(Change(step=Step.ACCEPT, session=session, at=1.0, entries=drafts, opens=opens))
        if number == count // 2:
            assert await tail.find_end_pos(store) == number + 1
    assert await tail.find_end_pos(store) == count
