"""Where the talk goes elsewhere, rests or is cut off: what waited arrives once, under whom and where it was said."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from everhold.app import SystemClock
from everhold.core.entries import ChatLocation
from everhold.core.memory_pacing import SILENCE_SECONDS
from everhold.ports.platform import IncomingMessage
from everhold.testing.model_server import ModelServer
from tests.e2e.running_gateway import RunningGateway, make_model_section
from tests.memories.gateway_process import GatewayProcess
from tests.memories.services import NAMES, MemoryServices, one_write


class Ahead(SystemClock):
    """The machine's own time, put forward."""

    seconds = 0.0

    def now(self) -> float:
        return super().now() + self.seconds


def rows(services: MemoryServices, name: str) -> list[tuple[str, str]]:
    """(session, what was said) as a service has it, in its order; the session is the one in the key it came under."""
    match name:
        case "honcho":
            found = [(row["metadata"], row["content"]) for row in services.honcho.state.messages]
            found = [(about, text) for about, text in found if about["everhold_part"] == 0]
        case "hindsight":
            found = [(row["metadata"], row["text"]) for row in services.hindsight.state.documents.values()]
        case "mem0":
            found = [(row["metadata"], row["memory"]) for row in services.mem0.state.memories.values()]
        case _:
            found = [(row["metadata"], row["content"]) for row in services.supermemory.state.documents.values()]
    return [
        (about["everhold"].rsplit(":", 2)[0], text.partition("\n")[0].removeprefix("ada: ")) for about, text in found
    ]


async def only(t: RunningGateway, services: MemoryServices, wanted: list[tuple[str, str]]) -> None:
    """Until every service has exactly this; and then a while longer, so that whatever would come twice has come."""
    await t.wait_until(lambda: all(len(rows(services, name)) >= len(wanted) for name in NAMES))
    await t.wait_until(lambda: not t.app.supervisor.tasks)
    assert {name: rows(services, name) for name in NAMES} == dict.fromkeys(NAMES, wanted)
    for session in dict.fromkeys(session for session, _ in wanted):
        name = (await t.app.store.get_session(session)).names["honcho"]
        ours = [row for row in services.honcho.state.messages if row["metadata"]["everhold"].startswith(f"{session}:")]
        assert {row["session_id"] for row in ours} == {name}


# -- a batch that is not full ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", ["/resume", "/branch", "/new", "/compress here 0", "rest"])
@pytest.mark.parametrize("write", [4, pytest.param("session", marks=pytest.mark.prove)])
async def test_what_waits_for_more_goes_out_once_where_it_was_said(
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
        assert not any(rows(services, name) for name in NAMES)
        match switch:
            case "rest":
                clock.seconds = SILENCE_SECONDS + 1
                t.app.wakeups.work_available.set()  # as a clock that goes by itself would have
                wanted = [(other, "elsewhere"), (session, "one"), (session, "two")]
            case "/resume":
                await t.send_and_wait(f"/resume {other}")
                wanted = [(session, "one"), (session, "two")]
            case _:
                await t.send_and_wait(switch)
                wanted = [(session, "one"), (session, "two")]
        if switch == "rest":  # two sessions, each in its own order
            await t.wait_until(lambda: all(len(rows(services, name)) >= len(wanted) for name in NAMES))
            await t.wait_until(lambda: not t.app.supervisor.tasks)
            assert {name: sorted(rows(services, name)) for name in NAMES} == dict.fromkeys(NAMES, sorted(wanted))
        else:
            await only(t, services, wanted)
            # what is said from here on belongs to where it is said, and waits for its own batch
            there = (await t.send_message("three")).session
            if switch == "/branch":
                assert (await t.app.store.get_session(there)).parent == session
            else:
                assert there == (other if switch == "/resume" else session)
            await t.wait_for_replies(there, {"/resume": 2, "/branch": 1}.get(switch, 3))
            await t.wait_until(lambda: not t.app.supervisor.tasks)
            await only(t, services, wanted)
            await t.send_and_wait("/new")
            left = ["elsewhere", "three"] if switch == "/resume" else ["three"]
            await only(t, services, [*wanted, *((there, word) for word in left)])
            if switch == "/branch":
                lineage = [f"parent:{session}" in row["tags"] for row in services.hindsight.state.documents.values()]
                assert lineage == [False, False, True]
        await t.assert_sound()


@pytest.mark.prove
async def test_what_waits_for_more_outlives_a_kill(tmp_path: Path, services: MemoryServices) -> None:
    gateway = GatewayProcess(tmp_path, services.config(write=3))
    try:
        await gateway.start()
        await gateway.wait_until_ready()
        await gateway.send_message("here", "one", id="m1")
        await gateway.send_message("here", "two", id="m2")
        await gateway.send_message("there", "three", id="m3")
        await gateway.wait_for_replies(3)
        assert not any(rows(services, name) for name in NAMES)
        await gateway.kill()
        await gateway.start()
        await gateway.wait_until_ready()
        async with asyncio.timeout(60):
            while any(len(rows(services, name)) < 3 for name in NAMES):  # noqa: ASYNC110  # a service rings no bell
                await asyncio.sleep(0.05)
        await gateway.send_message("here", "four", id="m4")  # behind what is delivered, and a batch of its own
        await gateway.wait_for_replies(4)
    finally:
        await gateway.close()
    for name in NAMES:
        by: dict[str, list[str]] = {}
        for session, text in rows(services, name):
            by.setdefault(session, []).append(text)
        assert sorted(by.values()) == [["one", "two"], ["three"]], name


# -- two people in one place -------------------------------------------------------------------------------------------


@one_write
async def test_two_people_in_one_thread_are_two_peers_whatever_is_rebuilt(
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
        # another persona builds the agent anew, another deadline its memories
        t.configure(config.replace('"tools": []', '"tools": [], "persona": {"text": "Be brief."}'))
        for who in ("bob", "ada"):
            await speak(who)
        t.configure(config.replace('"deadline_seconds": 8.0', '"deadline_seconds": 8.5'))
        for who in ("bob", "ada"):
            await speak(who)
    async with t:
        for who in ("bob", "ada"):
            await speak(who)
    async with t:  # who starts waits for nobody
        await t.wait_until(lambda: len(heard()) >= len(said))
        await t.wait_until(lambda: all(len(rows(services, name)) >= len(said) for name in NAMES))
        await t.wait_until(lambda: not t.app.supervisor.tasks)
        await t.assert_sound()
    assert len(sessions) == 1
    assert heard() == said
    wanted = [f"{who}: {word}" for who, word in said]
    documents = services.hindsight.state.documents.values()
    assert [(row["metadata"]["person"], row["text"].partition("\n")[0]) for row in documents] == [
        (who, f"{who}: {word}") for who, word in said
    ]
    assert [text.partition("\n")[0] for text in services.mem0.texts()] == wanted
    assert [text.partition("\n")[0] for text in services.supermemory.texts()] == wanted
    assert len(services.honcho.state.created) == 1


# -- recall that comes late --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deadline_seconds", [0.3, 60], ids=["given-up", "waited-for"])
@pytest.mark.parametrize("switch", ["/resume", "/new", "elsewhere"])
@one_write
async def test_what_was_recalled_for_one_session_never_reaches_another(
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
                    await t.send_message("/new", chat=chat)  # where the talk takes a turn, nothing is held back
            await t.wait_until(lambda: all(len(services.said_texts(name)) == 2 for name in NAMES))
            asked = len(server.requests)
            t.configure(config(deadline_seconds))
            slow = [services[name].plan_fault("wait", "search|query|recall|context", times=None) for name in NAMES]
            await t.send_message("where does the garden lie?")
            await t.wait_until(lambda: all(fault.waiting for fault in slow))
            for name in NAMES:
                services[name].clear_faults()  # those under way stay as slow as they are
            chat = "other" if switch == "elsewhere" else "me"
            if switch != "elsewhere":
                await t.send_message(f"/resume {other}" if switch == "/resume" else "/new")
            await t.send_message("coffee?", chat=chat)
            if switch == "elsewhere":  # in one session, one turn comes after the other
                await t.wait_until(lambda: shown("coffee?"))
            for fault in slow:  # the slow answers come, to whoever is still there to hear them
                fault.released.set()
            await t.wait_until(lambda: not any(fault.waiting for fault in slow))
            await t.wait_until(lambda: shown("coffee?"))
            await t.wait_until_idle()
            await t.send_and_wait("cocoa?", chat=chat)
            sent = [json.dumps(request.json) for request in server.requests[asked:]]
    for drink in ("coffee?", "cocoa?"):
        (asking,) = [text for text in sent if text.count(drink) and not ("cocoa?" in text and drink == "coffee?")]
        assert "Assam" not in asking, asking
    if deadline_seconds > 1 and switch == "elsewhere":
        assert any("Assam" in text for text in sent), "the one who asked is shown it"
