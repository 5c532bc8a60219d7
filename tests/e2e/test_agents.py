"""Many agents in one process: they are isolated, and their messages to each other cannot loop without end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import Heard, Returned, Said, ToolCall
from everhold.testing.model_server import ModelServer, ModelServerReply, ModelServerStep, ReceivedModelRequest
from tests.e2e.running_gateway import KEY, RunningGateway, make_model_section

NAMES = (
    "main",
    "coder",
    "cook",
    "poet",
    "nurse",
    "judge",
    "pilot",
    "baker",
    "actor",
    "miner",
    "diver",
    "clerk",
    "guard",
)


def config(server: ModelServer, agents: dict[str, Any], **more: Any) -> str:
    defaults = {"memories": [], "tools": [], "model": "m"}
    return json.dumps(
        {"models": {"m": make_model_section(server.openai)}, "defaults": defaults, "agents": agents, **more}
    )


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(key=KEY) as running:
        yield running


def speaker(received: ReceivedModelRequest) -> str:
    """Return the agent whose persona this request contains."""
    system = received.json["messages"][0]["content"]
    return str(system.split("You are the ")[1].split(".")[0])


def personas(*names: str, **settings: Any) -> dict[str, Any]:
    return {name: {"persona": f"You are the {name}.", **settings} for name in names}


async def test_thirteen_agents_answer_at_once_and_see_nothing_of_each_other(
    tmp_path: Path, server: ModelServer
) -> None:
    server.default = lambda received: ModelServerReply(text=f"The {speaker(received)} heard you.")
    async with RunningGateway(tmp_path, config(server, personas(*NAMES))) as t:
        assert len(t.app.agents.settings.agents) == 13
        for round_ in range(3):
            words = {name: f"secret-of-{name}-{round_}" for name in NAMES}
            asked = [t.send_and_wait(words[name], agent=name, who="ada") for name in NAMES]
            assert await asyncio.gather(*asked) == [f"The {name} heard you." for name in NAMES]
        assert len(server.requests) == 39
        for received in server.requests:
            own, text = speaker(received), received.body.decode()
            assert f"secret-of-{own}-" in text
            for other in NAMES:
                if other != own:
                    assert f"secret-of-{other}-" not in text
                    assert f"You are the {other}" not in text
        sessions = await t.app.store.list_sessions()
        assert len(sessions) == 13
        assert {session.agent for session in sessions} == set(NAMES)
        for session in sessions:
            heard = await t.read_heard(session.id)
            assert heard == [f"secret-of-{session.agent}-{round_}" for round_ in range(3)]
        await t.assert_sound()


async def test_each_agent_spends_its_own_budget(tmp_path: Path, server: ModelServer) -> None:
    agents = personas("main", "coder")
    agents["coder"]["budget"] = {"tokens_per_day": 0}
    async with RunningGateway(tmp_path, config(server, agents)) as t:
        assert "budget of agent:coder" in await t.send_and_wait("hello", agent="coder")
        assert not server.requests
        assert await t.send_and_wait("hello") == "You said: hello"


async def test_changing_one_agent_does_not_change_the_others(tmp_path: Path, server: ModelServer) -> None:
    async with RunningGateway(tmp_path, config(server, personas("main", "coder"))) as t:
        await t.send_and_wait("hello", agent="coder")
        before = t.app.agents.get_runtime("coder", {})
        changed = personas("main", "coder")
        changed["main"]["persona"] = "You are the master."
        t.configure(config(server, changed))
        await t.send_and_wait("hello")
        assert speaker(server.last_request) == "master"
        assert t.app.agents.get_runtime("coder", {}) is before


async def test_one_agent_writes_to_another_and_gets_an_answer(tmp_path: Path, server: ModelServer) -> None:
    agents = personas("main", "coder")
    agents["main"]["send_to"] = ["agent:coder"]

    def converse(received: ReceivedModelRequest) -> ModelServerStep:
        if speaker(received) == "coder":
            return ModelServerReply(text="Forty-two, says the coder.")
        last = received.json["messages"][-1]
        if last["role"] == "user" and "ask the coder" in last["content"]:
            sending = {"to": "agent:coder", "text": "What is it?"}
            return ModelServerReply(calls=(ToolCall(id="c1", tool="send", arguments=sending),))
        return (
            ModelServerReply(text="Thanks.")
            if "Forty-two" in str(last["content"])
            else ModelServerReply(text="I have asked.")
        )

    server.default = converse
    async with RunningGateway(tmp_path, config(server, agents)) as t:
        verdict = await t.send_message("ask the coder")
        assert await t.wait_for_replies(verdict.session, 2) == ["What is it?", "I have asked."]
        await t.wait_until_idle()
        sessions = await t.app.store.list_sessions()
        assert len(sessions) == 3
        theirs = next(session.id for session in sessions if session.agent == "coder")
        question, thanks = await t.read_bodies(theirs, Heard)
        assert (question.text, question.bot, question.hops, question.asks) == ("What is it?", True, 1, True)
        assert (thanks.text, thanks.hops, thanks.asks) == ("Thanks.", 3, False), "stored, but thanks are not answered"
        # the answer arrives in main's conversation with the coder, not in Ada's
        mine = next(session.id for session in sessions if session.id not in (theirs, verdict.session))
        assert (await t.read_heard(mine))[0] == "Forty-two, says the coder."
        assert "Forty-two" not in str(await t.read_bodies(verdict.session, Said))
        hops = [heard.hops for heard in await t.read_bodies(mine, Heard)]
        assert hops[0] == 2
        await t.assert_sound()


async def test_an_agent_may_write_to_other_agents_only_if_configured(tmp_path: Path, server: ModelServer) -> None:
    agents = personas("main", "coder", "cook")
    agents["main"]["send_to"] = ["agent:coder"]
    server.add_steps(
        ModelServerReply(calls=(ToolCall(id="c1", tool="send", arguments={"to": "agent:cook", "text": "psst"}),)),
        ModelServerReply(text="No."),
    )
    async with RunningGateway(tmp_path, config(server, agents)) as t:
        verdict = await t.send_message("tell the cook")
        assert await t.wait_for_replies(verdict.session) == ["No."]
        (returned,) = await t.read_bodies(verdict.session, Returned)
        assert returned.error
        assert "You may not write to 'agent:cook'" in returned.text
        await t.send_and_wait("hello", agent="cook")
        assert "tools" not in server.last_request.json
        assert len(await t.app.store.list_sessions()) == 2


async def test_agents_that_keep_answering_each_other_are_stopped(tmp_path: Path, server: ModelServer) -> None:
    agents = personas("main", "coder")
    agents["main"]["send_to"] = ["agent:coder"]

    def chatter(received: ReceivedModelRequest) -> ModelServerStep:
        if "talk to the coder" in str(received.json["messages"][-1]["content"]):
            return ModelServerReply(
                calls=(ToolCall(id="c1", tool="send", arguments={"to": "agent:coder", "text": "And you?"}),)
            )
        return ModelServerReply(text="And what do you think about that?")

    server.default = chatter
    async with RunningGateway(tmp_path, config(server, agents, loops={"max_hops": 5})) as t:
        session = (await t.send_message("talk to the coder")).session
        await t.wait_for_replies(session, 2)
        await t.wait_until(lambda: "loop.stopped" in t.log.getvalue())
        await t.wait_until_idle()
        silent = len(server.requests)
        await asyncio.sleep(0.5)
        assert len(server.requests) == silent
        sessions = [it.id for it in await t.app.store.list_sessions() if it.id != session]
        hops = sorted([h.hops for it in sessions for h in await t.read_bodies(it, Heard)])
        assert hops == [1, 2, 3, 4, 5], "every message is one hop further, and the fifth is kept but not answered"
        # a human may speak again at any time
        assert await t.send_and_wait("hello", chat="new") == "And what do you think about that?"
        await t.assert_sound()


async def test_bots_do_not_answer_each_others_thanks(tmp_path: Path, server: ModelServer) -> None:
    agents = personas("main", "coder")
    agents["main"]["send_to"] = ["agent:coder"]

    def polite(received: ReceivedModelRequest) -> ModelServerStep:
        if "thank the coder" in str(received.json["messages"][-1]["content"]):
            return ModelServerReply(
                calls=(ToolCall(id="c1", tool="send", arguments={"to": "agent:coder", "text": "Thanks!"}),)
            )
        return ModelServerReply(text="You're welcome!")

    server.default = polite
    async with RunningGateway(tmp_path, config(server, agents)) as t:
        session = (await t.send_message("thank the coder")).session
        await t.wait_for_replies(session, 2)
        await t.wait_until_idle()
        assert {speaker(received) for received in server.requests} == {"main"}
