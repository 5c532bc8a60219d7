"""After switches, pauses and kills, pending items arrive once, under the person and session they belong to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from everhold.app import SystemClock
from everhold.core.entries import ChatLocation, Said
from everhold.core.memory_pacing import SILENCE_SECONDS
from everhold.engine.memory_client import MAX_FAILURES_IN_A_ROW
from everhold.ports.platform import AcceptResult, IncomingMessage
from everhold.testing.model_server import ModelServer
from tests.e2e.running_gateway import RunningGateway, make_model_section
from tests.memories.gateway_process import GatewayProcess
from tests.memories.services import NAMES, MemoryServices, one_write


class Ahead(SystemClock):
    """The system clock with an offset."""

    seconds = 0.0

    def now(self) -> float:
        return super().now() + self.seconds


def list_stored(services: MemoryServices, name: str) -> list[tuple[str, str]]:
    """Return (session, message) as a service stored it, in order. The session is the one in the key."""
    match name:
        case "honcho":
            found = [(row["metadata"], row["content"]) for row in services.honcho.state.messages]
            found = [(about, text) for about, text in found if about["everhold_part"] == 0]
        case "hindsight":
            found = [
                ({"everhold": _read_tag(row["tags"], "key:")}, row["text"])
                for row in services.hindsight.state.documents.values()
            ]
        case "mem0":
            found = [(row["metadata"], row["memory"]) for row in services.mem0.state.memories.values()]
        case _:
            found = [(row["metadata"], row["content"]) for row in services.supermemory.state.documents.values()]
    return [
        (about["everhold"].rsplit(":", 2)[0], text.partition("\n")[0].removeprefix("ada: ")) for about, text in found
    ]


def _read_tag(tags: Sequence[str], prefix: str) -> str:
    return next(tag.removeprefix(prefix) for tag in tags if tag.startswith(prefix))


async def wait_for_exactly(t: RunningGateway, services: MemoryServices, wanted: list[tuple[str, str]]) -> None:
    """Wait until every service has exactly this, and then some time longer for anything that would arrive twice."""
    await t.wait_until(lambda: all(len(list_stored(services, name)) >= len(wanted) for name in NAMES))
    await t.wait_until(lambda: not t.app.supervisor.tasks)
    assert {name: list_stored(services, name) for name in NAMES} == dict.fromkeys(NAMES, wanted)
    for session in dict.fromkeys(session for session, _ in wanted):
        name = (await t.app.store.get_session(session)).names["honcho"]
        ours = [row for row in services.honcho.state.messages if row["metadata"]["everhold"].startswith(f"{session}:")]
        assert {row["session_id"] for row in ours} == {name}


# -- an incomplete batch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", ["/resume", "/branch", "/new", "/compress here 0", "rest"])
@pytest.mark.parametrize("write", [4, pytest.param("session", marks=pytest.mark.prove)])
async def test_a_held_batch_is_sent_once_under_its_own_session(
    tmp_path: Path, services: MemoryServices, write: str | int, switch: str
) -> None:
    clock = Ahead()
    async with RunningGateway(tmp_path, services.config(write=write), clock=clock) as t:
        other = (await t.send_message("elsewhere", chat="other")).session
        await t.wait_for_replies(other)
        session = (await t.send_message("one")).session
        await t.wait_for_replies(session)
        await t.send_and_wait("two")
        await t.wait_until(lambda: not t.app.supervisor.tasks)
        assert not any(list_stored(services, name) for name in NAMES)
        match switch:
            case "rest":
                clock.seconds = SILENCE_SECONDS + 1
                t.app.wakeups.work_available.set()  # as a running clock would do
                wanted = [(other, "elsewhere"), (session, "one"), (session, "two")]
            case "/resume":
                await t.send_and_wait(f"/resume {other}")
                wanted = [(session, "one"), (session, "two")]
            case _:
                await t.send_and_wait(switch)
                wanted = [(session, "one"), (session, "two")]
        if switch == "rest":  # two sessions, each in order
            await t.wait_until(lambda: all(len(list_stored(services, name)) >= len(wanted) for name in NAMES))
            await t.wait_until(lambda: not t.app.supervisor.tasks)
            assert {name: sorted(list_stored(services, name)) for name in NAMES} == dict.fromkeys(NAMES, sorted(wanted))
        else:
            await wait_for_exactly(t, services, wanted)
            # later messages belong to their own session and wait for their own batch
            there = (await t.send_message("three")).session
            if switch == "/branch":
                assert (await t.app.store.get_session(there)).parent == session
            else:
                assert there == (other if switch == "/resume" else session)
            await t.wait_for_replies(there, {"/resume": 2, "/branch": 1}.get(switch, 3))
            await t.wait_until(lambda: not t.app.supervisor.tasks)
            await wait_for_exactly(t, services, wanted)
            await t.send_and_wait("/new")
            left = ["elsewhere", "three"] if switch == "/resume" else ["three"]
            await wait_for_exactly(t, services, [*wanted, *((there, word) for word in left)])
            if switch == "/branch":
                lineage = [f"parent:{session}" in row["tags"] for row in services.hindsight.state.documents.values()]
                assert lineage == [False, False, True]
        await t.assert_sound()


@pytest.mark.prove
async def test_a_held_batch_survives_a_kill(tmp_path: Path, services: MemoryServices) -> None:
    gateway = GatewayProcess(tmp_path, services.config(write=3))
    try:
        await gateway.start()
        await gateway.wait_until_ready()
        await gateway.send_message("here", "one", id="m1")
        await gateway.send_message("here", "two", id="m2")
        await gateway.send_message("there", "three", id="m3")
        await gateway.wait_for_replies(3)
        assert not any(list_stored(services, name) for name in NAMES)
        await gateway.kill()
        await gateway.start()
        await gateway.wait_until_ready()
        async with asyncio.timeout(60):
            while any(len(list_stored(services, name)) < 3 for name in NAMES):  # noqa: ASYNC110  # a service sends no notification
                await asyncio.sleep(0.05)
        await gateway.send_message("here", "four", id="m4")  # after the delivered items, in a new batch
        await gateway.wait_for_replies(4)
    finally:
        await gateway.close()
    for name in NAMES:
        by: dict[str, list[str]] = {}
        for session, text in list_stored(services, name):
            by.setdefault(session, []).append(text)
        assert sorted(by.values()) == [["one", "two"], ["three"]], name


# -- two people in one chat --------------------------------------------------------------------------------------------


@one_write
async def test_two_people_in_one_thread_stay_two_peers_after_rebuilds(
    tmp_path: Path, services: MemoryServices, write: str | int
) -> None:
    config = services.config(write=write)
    t = RunningGateway(tmp_path, config)
    said: list[tuple[str, str]] = []
    sessions: set[str] = set()

    async def speak(who: str) -> None:
        said.append((who, f"word {len(said)}"))
        place = ChatLocation(platform="terminal", chat="room", thread="t1", message=f"t{len(said)}")
        verdict = await t.app.accept(
            IncomingMessage(origin=place, text=said[-1][1], sender=who, name=who, kind="thread")
        )
        assert verdict.outcome == "accepted", verdict
        sessions.add(verdict.session)
        await t.wait_for_replies(verdict.session, len(said))

    def heard() -> list[tuple[str, str]]:
        return [(row["peer_id"], row["content"]) for row in services.honcho.state.messages if row["peer_id"] != "main"]

    async with t:
        for who in ("ada", "bob", "ada"):
            await speak(who)
        # a new persona rebuilds the agent, and a new deadline rebuilds its memories
        t.configure(config.replace('"tools": []', '"tools": [], "persona": {"text": "Be brief."}'))
        for who in ("bob", "ada"):
            await speak(who)
        t.configure(config.replace('"deadline_seconds": 8.0', '"deadline_seconds": 8.5'))
        for who in ("bob", "ada"):
            await speak(who)
    async with t:
        for who in ("bob", "ada"):
            await speak(who)
    async with t:  # a start does not wait for it
        await t.wait_until(lambda: len(heard()) >= len(said))
        await t.wait_until(lambda: all(len(list_stored(services, name)) >= len(said) for name in NAMES))
        await t.wait_until(lambda: not t.app.supervisor.tasks)
        await t.assert_sound()
    assert len(sessions) == 1
    assert heard() == said
    wanted = [f"{who}: {word}" for who, word in said]
    documents = services.hindsight.state.documents.values()
    assert [row["text"].partition("\n")[0] for row in documents] == wanted
    assert [text.partition("\n")[0] for text in services.mem0.texts()] == wanted
    assert [text.partition("\n")[0] for text in services.supermemory.texts()] == wanted
    assert len(services.honcho.state.created) == 1


# -- late recall -------------------------------------------------------------------------------------------------------


async def ask_until(t: RunningGateway, true: Callable[[], bool], text: str) -> None:
    """Ask until it is true. A machine that stalls longer than the deadline of recall has sent no search: ask again."""
    for _ in range(MAX_FAILURES_IN_A_ROW):  # after that many failures recall pauses
        asked = await t.send_message(text)

        async def is_over(asked: AcceptResult = asked) -> bool:
            entries = await t.read_entries(asked.session)
            return true() or any(e.seq > asked.seq and isinstance(e.body, Said) for e in entries)

        await t.wait_until(is_over)
        if true():
            return
    raise AssertionError(f"it did not happen; the log says:\n{t.log.getvalue()[-4_000:]}")


@pytest.mark.parametrize("deadline_seconds", [0.5, 60], ids=["given-up", "waited-for"])
@pytest.mark.parametrize("switch", ["/resume", "/new", "elsewhere"])
@one_write
async def test_text_recalled_for_one_session_never_reaches_another(
    tmp_path: Path, services: MemoryServices, write: str | int, switch: str, deadline_seconds: float
) -> None:
    async with ModelServer() as server:

        def config(deadline_seconds: float) -> str:
            recall = {"deadline_seconds": deadline_seconds}
            given = json.loads(services.config(write=write, agent={"recall": recall, "model": "m"}))
            given["models"] = {"m": make_model_section(server.openai)}
            return json.dumps(given)

        def shown(word: str) -> bool:
            return any(word in json.dumps(request.json) for request in server.requests)

        async with RunningGateway(tmp_path, config(60)) as t:
            other = (await t.send_message("good morning", chat="other")).session
            await t.wait_for_replies(other)
            await t.send_and_wait("the garden lies in Assam", chat="past")
            if write != "turn":
                for chat in ("other", "past"):
                    await t.send_message("/new", chat=chat)  # a session switch sends pending items
            await t.wait_until(lambda: all(len(services.said_texts(name)) == 2 for name in NAMES))
            asked = len(server.requests)
            # a hit must show which question was asked
            for it in (services.honcho, services.hindsight, services.supermemory):
                it.finds_neighbours = False
            t.configure(config(deadline_seconds))
            slow = [services[name].plan_fault("wait", "search|query|recall|context", times=None) for name in NAMES]
            await ask_until(t, lambda: all(fault.waiting for fault in slow), "where does the garden lie?")
            for name in NAMES:
                services[name].clear_faults()  # running calls stay slow
            chat = "other" if switch == "elsewhere" else "me"
            if switch != "elsewhere":
                await t.send_message(f"/resume {other}" if switch == "/resume" else "/new")
            await t.send_message("coffee?", chat=chat)
            if switch == "elsewhere":  # turns of one session run one after another
                await t.wait_until(lambda: shown("coffee?"))
            if deadline_seconds < 1:  # the caller has given up, and its turn goes on without the slow answers
                await t.wait_until(lambda: shown("where does the garden lie?"))
            for fault in slow:
                fault.released.set()
            await t.wait_until(lambda: not any(fault.waiting for fault in slow))
            await t.wait_until(lambda: shown("coffee?"))
            # unlike `wait_until_idle`, which also waits for items that the next session switch sends
            await t.wait_until(lambda: not t.app.supervisor.tasks)
            await t.send_and_wait("cocoa?", chat=chat)
            sent = [json.dumps(request.json) for request in server.requests[asked:]]
    for drink in ("coffee?", "cocoa?"):
        (asking,) = [text for text in sent if text.count(drink) and not ("cocoa?" in text and drink == "coffee?")]
        assert "Assam" not in asking, asking
    if deadline_seconds > 1 and switch == "elsewhere":
        assert any("Assam" in text for text in sent), "it is shown to the person who asked"
