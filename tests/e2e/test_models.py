"""Models in a complete gateway: requests, cost and outages."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everhold.assembly.agents import ConfiguredAgents, RetirableModel
from everhold.core import context as context_rules
from everhold.core.entries import Began, Called, Compressed, Ended, Notified, Returned, Said, Thought, ToolCall
from everhold.engine.turn import execution
from everhold.models.openai import OpenAIModel
from everhold.ports.model import ModelRequest
from everhold.ports.store import Change, CommitResult
from everhold.testing.model_rules import count_prompt_tokens
from everhold.testing.model_server import (
    HangingConnection,
    ModelServer,
    ModelServerReply,
    ModelServerStatus,
    ModelServerStep,
    ReceivedModelRequest,
    StreamFault,
    VendorFailure,
    make_rate_limit_failure,
)
from tests.cli.command_home import CommandHome, wait_until
from tests.e2e.running_gateway import KEY, RunningGateway, make_model_section
from tests.waiting import LIMIT_SECONDS

CROOKED = [sys.executable, str(Path(__file__).parents[1] / "tools" / "crooked.py")]


def config(models: dict[str, Any], **defaults: Any) -> str:
    """Return a configuration as JSON, which is valid YAML."""
    more = {key: defaults.pop(key) for key in ("mcp", "agents", "http", "memories", "timezone") if key in defaults}
    given = {"memories": [], "tools": [], "model": next(iter(models)), **defaults}
    policy = {"rules": [{"tool": "odd_*", "do": "allow"}], "after_foreign": "allow"}
    return json.dumps({"models": models, "defaults": given, "backup": {"every_hours": 0}, "policy": policy, **more})


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(key=KEY) as running:
        yield running


@contextlib.asynccontextmanager
async def run_gateway(path: Path, server: ModelServer, **defaults: Any) -> AsyncIterator[RunningGateway]:
    models = defaults.pop("models", None) or {"m": make_model_section(server.openai, **defaults.pop("entry", {}))}
    async with RunningGateway(path, config(models, **defaults)) as made:
        yield made


# -- a turn ------------------------------------------------------------------------------------------------------------


async def test_a_reply_is_streamed_and_committed_once(tmp_path: Path, server: ModelServer) -> None:
    server.add_steps(ModelServerReply(text="Good morning, Ada. How did you sleep?"))
    async with run_gateway(tmp_path, server) as t:
        verdict = await t.send_message("hello")
        assert await t.wait_for_replies(verdict.session) == ["Good morning, Ada. How did you sleep?"]
        assert len(t.pieces) > 3
        assert "".join(t.pieces) == "Good morning, Ada. How did you sleep?"
        await t.assert_sound()


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_a_tool_is_called_and_its_result_reaches_the_model(
    tmp_path: Path, server: ModelServer, dialect: str
) -> None:
    server.add_steps(
        ModelServerReply(text="Let me see.", calls=(ToolCall(id="call_1", tool="odd_echo", arguments={"size": 3}),)),
        ModelServerReply(text="It is three."),
    )
    url = server.openai if dialect == "openai" else server.anthropic
    models = {"m": make_model_section(url, provider=dialect)}
    async with run_gateway(tmp_path, server, models=models, tools=["mcp:odd"], mcp={"odd": {"command": CROOKED}}) as t:
        verdict = await t.send_message("how big?")
        # the tool server was still starting at this call, and the turn waited for it
        assert await t.wait_for_replies(verdict.session) == ["It is three."]
        (called,) = await t.read_bodies(verdict.session, Called)
        (returned,) = await t.read_bodies(verdict.session, Returned)
        assert (called.tool, called.effect, returned.text, returned.error) == ("odd_echo", "once", '{"size": 3}', False)
        assert '{\\"size\\": 3}' in server.requests[1].body.decode()
        assert len(server.requests) == 2
        await t.assert_sound()


async def test_a_failed_tool_gives_a_result_and_the_turn_continues(tmp_path: Path, server: ModelServer) -> None:
    calls = tuple(ToolCall(id=f"c{n}", tool=tool) for n, tool in enumerate(("odd_refuse", "odd_die", "nobody_knows")))
    server.add_steps(ModelServerReply(calls=calls), ModelServerReply(text="None of that worked."))
    async with run_gateway(tmp_path, server, tools=["mcp:odd"], mcp={"odd": {"command": CROOKED}}) as t:
        assert await t.wait_for_replies((await t.send_message("try")).session) == ["None of that worked."]
        told = server.requests[1].body.decode()
        assert "that is not possible" in told
        assert "may have been done" in told
        assert "There is no tool" in told
        assert any(problem["key"] == "mcp.odd" for problem in t.app.describe()["problems"])
        await t.assert_sound()


async def test_a_tool_server_that_cannot_start_is_named_and_the_agent_answers(
    tmp_path: Path, server: ModelServer
) -> None:
    async with run_gateway(tmp_path, server, tools=["mcp:odd"], mcp={"odd": {"command": ["/nowhere"]}}) as t:
        assert await t.send_and_wait("hello") == "You said: hello"
        (problem,) = [problem for problem in t.app.describe()["problems"] if problem["key"] == "mcp.odd"]
        assert (problem["disables"], "there is no program" in problem["message"]) == ("mcp.odd", True)


async def test_the_beginning_of_a_request_stays_byte_identical(tmp_path: Path, server: ModelServer) -> None:
    """A cached prompt costs a tenth, so its bytes must not change."""
    async with run_gateway(tmp_path, server, tools=["mcp:odd"], mcp={"odd": {"command": CROOKED}}) as t:
        for number in range(4):
            if number == 2:
                server.add_steps(
                    ModelServerReply(calls=(ToolCall(id="c", tool="odd_echo", arguments={"b": 1, "a": 2}),))
                )
            await t.send_and_wait(f"message {number}")
        await t.wait_until_idle()
        bodies = [request.body for request in server.requests]
        assert len(bodies) == 5
        for shorter, longer in itertools.pairwise(bodies):
            assert shorter.endswith(b"]}")
            assert longer.startswith(shorter[:-2])


# -- outages and broken streams ----------------------------------------------------------------------------------------


async def test_retry_after_is_respected(tmp_path: Path, server: ModelServer) -> None:
    asked: list[float] = []

    def limited(received: ReceivedModelRequest) -> ModelServerStep:
        asked.append(time.monotonic())
        return make_rate_limit_failure("2") if len(asked) == 1 else ModelServerReply(text="now")

    server.default = limited
    async with run_gateway(tmp_path, server) as t:
        verdict = await t.send_message("hello")
        assert await t.wait_for_replies(verdict.session) == ["now"]
    assert len(asked) == 2
    assert asked[1] - asked[0] >= 2.0


async def test_a_fallback_answers_when_the_model_is_down(tmp_path: Path, server: ModelServer) -> None:
    def by_name(received: ReceivedModelRequest) -> ModelServerStep:
        return (
            VendorFailure(kind="server_error")
            if received.json["model"] == "first"
            else ModelServerReply(text="I stand in.")
        )

    server.default = by_name
    models = {"a": make_model_section(server.openai, "first"), "b": make_model_section(server.openai, "second")}
    async with run_gateway(tmp_path, server, models=models, fallback=["b"]) as t:
        verdict = await t.send_message("hello")
        assert await t.wait_for_replies(verdict.session) == ["I stand in."]
        assert [r.json["model"] for r in server.requests] == ["first", "second"]
        (thought,) = await t.read_bodies(verdict.session, Thought)
        assert thought.model == "second"


async def test_while_every_model_is_down_messages_are_kept_and_one_turn_answers_them(
    tmp_path: Path, server: ModelServer
) -> None:
    """E4: fallbacks are tried, one notice says that the message is kept, and one turn answers after the outage."""
    down = True

    def outage(received: ReceivedModelRequest) -> ModelServerStep:
        return VendorFailure(kind="overloaded") if down else ModelServerReply(text="Back again, with all of it.")

    server.default = outage
    models = {"a": make_model_section(server.openai, "first"), "b": make_model_section(server.openai, "second")}
    async with run_gateway(tmp_path, server, models=models, fallback=["b"]) as t:
        session = (await t.send_message("one")).session
        await t.wait_until(lambda: len(server.requests) >= 4)
        assert {r.json["model"] for r in server.requests} == {"first", "second"}
        await t.send_message("two")
        await t.wait_until(lambda: len(server.requests) >= 6)

        async def both_wait() -> bool:
            found = await t.app.store.list_pending(session)
            return [getattr(entry.body, "text", "") for entry in found] == ["one", "two"]

        await t.wait_until(both_wait)  # pending between two attempts; during an attempt the turn has them
        (told,) = await t.read_bodies(session, Notified)
        assert "Your message is kept" in told.text
        assert not await t.read_bodies(session, Said)
        down = False
        assert await t.wait_for_replies(session) == ["Back again, with all of it."]
        await t.wait_until_idle()
        assert len(await t.read_bodies(session, Notified)) == 1
        outcomes = [ended.outcome for ended in await t.read_bodies(session, Ended)]
        assert outcomes.count("done") == 1
        assert set(outcomes) == {"done", "released"}
        assert len((await t.read_bodies(session, Began))[-1].takes) == 2
        sent = server.last_request.body.decode()
        assert "one" in sent
        assert "two" in sent
        await t.assert_sound()


async def test_a_request_that_is_too_long_is_compressed_and_answered(tmp_path: Path, server: ModelServer) -> None:
    server.context_tokens = 2_500
    server.default = ModelServerReply(text="Noted.")
    compression = {"model": "offline", "keep_exchanges": 1}
    async with run_gateway(tmp_path, server, compression=compression) as t:
        session = ""
        for number in range(12):
            verdict = await t.send_message(f"fact {number}: " + "word " * 200)
            session = verdict.session
            assert len(await t.wait_for_replies(session, number + 1)) == number + 1
        await t.wait_until_idle()
        assert await t.read_bodies(session, Compressed)
        assert any(count_prompt_tokens(request.json) > 2_500 for request in server.requests), "nothing was too long"
        assert not [ended for ended in await t.read_bodies(session, Ended) if ended.outcome == "failed"]
        assert len(await t.read_bodies(session, Said)) == 12
        await t.assert_sound()


async def test_a_message_larger_than_every_window_fails_and_later_ones_are_answered(
    tmp_path: Path, server: ModelServer
) -> None:
    server.context_tokens = 2_500  # less than the configuration says, and the same for summaries
    server.default = ModelServerReply(text="Noted.")
    async with run_gateway(tmp_path, server) as t:
        session = (await t.send_message("word " * 20_000)).session
        await t.wait_until(lambda: _told(t, session))
        assert "/undo removes it" in (await t.read_bodies(session, Notified))[0].text
        for number in range(3):
            await t.send_message(f"short {number}")
            assert len(await t.wait_for_replies(session, number + 1)) == number + 1
        await t.wait_until_idle()
        assert [ended.outcome for ended in await t.read_bodies(session, Ended)] == ["failed", "done", "done", "done"]
        await t.assert_sound()


async def _told(t: RunningGateway, session: str) -> bool:
    return bool(await t.read_bodies(session, Notified))


@pytest.mark.parametrize("how", ["drop", "reset", "end", "garbage", "error", "done"])
async def test_a_stream_broken_at_any_byte_still_gives_one_reply(tmp_path: Path, server: ModelServer, how: Any) -> None:
    text = "one two three four five"
    async with run_gateway(tmp_path, server) as t:
        for number, after in enumerate((0, 1, 3, 5)):
            server.add_steps(ModelServerReply(text=text, cut=StreamFault(kind=how, after=after)))
            server.default = ModelServerReply(text=text)
            session = (await t.send_message(f"again {number}", chat=f"chat{number}")).session
            assert await t.wait_for_replies(session) == [text]
        await t.wait_until_idle()
        await t.assert_sound()


async def test_a_client_that_disconnects_at_any_byte_gets_one_reply(tmp_path: Path, server: ModelServer) -> None:
    server.default = ModelServerReply(text="one two three four five six seven eight", pause_seconds=0.02)
    async with run_gateway(tmp_path, server) as t:
        url = await t.app.serve(port=0)
        async with t.open_client(url) as client:
            for most in (0, 1, 150, 700, 1_500):
                asked = {"model": "main", "stream": True, "messages": [{"role": "user", "content": "count"}]}
                headers = {"x-everhold-session": f"left-{most}"}
                async with client.stream("POST", "/v1/chat/completions", json=asked, headers=headers) as response:
                    seen = 0
                    async for chunk in response.aiter_raw(1):
                        seen += len(chunk)
                        if seen >= most:
                            break
            found = (await client.get("/api/sessions")).json()["sessions"]
            assert len(found) == 5
            for session in found:
                assert await t.wait_for_replies(session["id"]) == ["one two three four five six seven eight"]
        await t.wait_until_idle()
        for session in found:
            assert len(await t.read_bodies(session["id"], Said)) == 1
        await t.assert_sound()


@pytest.mark.parametrize(
    "words", [pytest.param(0, marks=pytest.mark.prove), 2, pytest.param(6, marks=pytest.mark.prove)]
)
def test_a_gateway_killed_in_the_middle_of_a_stream_replies_once(tmp_path: Path, plugin: Path, words: int) -> None:
    server = ModelServer(key=KEY)
    text = "one two three four five six seven eight"
    server.default = ModelServerReply(text=text, pause_seconds=0.05)
    with server.threaded():
        command_home = CommandHome(tmp_path / "home", plugin)
        (command_home.path / "config.yaml").write_text(config({"m": make_model_section(server.openai)}))
        (command_home.path / ".env").touch(mode=0o600)
        (command_home.path / ".env").write_text(f"MODEL_KEY={KEY}\n")
        try:
            gateway = command_home.start_gateway()
            sending = command_home.start_command("send", "count", "--timeout", "300")
            wait_until(lambda: server.requests)
            time.sleep(0.05 * words)
            gateway.kill()
            command_home.start_gateway()
            sending.wait(timeout=LIMIT_SECONDS)
            wait_until(lambda: command_home.run("sessions", "list", "--json").json["sessions"][0]["pending"] == 0)

            def said() -> list[str]:
                shown = command_home.run("sessions", "show", "last", "--json").ok().json["entries"]
                return [entry["body"]["text"] for entry in shown if entry["kind"] == "said"]

            wait_until(said)
            assert said() == [text]
            command_home.run("audit").ok()
        finally:
            command_home.close()


# -- cost and budgets --------------------------------------------------------------------------------------------------


async def test_usage_and_cost_are_stored_per_turn_agent_person_and_day(tmp_path: Path, server: ModelServer) -> None:
    price = {"input": 2.0, "output": 10.0}
    async with run_gateway(tmp_path, server, entry={"price": price}, agents={"main": {}, "other": {}}) as t:
        await t.send_and_wait("hello", who="ada")
        await t.send_and_wait("hello", who="bob", chat="bobs")
        await t.send_and_wait("hello", who="ada", agent="other")
        await t.wait_until_idle()
        usages = []
        for address in [s.id for s in await t.app.store.list_sessions()]:
            thoughts = await t.read_bodies(address, Thought)
            (ended,) = await t.read_bodies(address, Ended)
            assert ended.usage == thoughts[0].usage
            usages.append(thoughts[0].usage)
        day = t.app.agents.get_today()
        for usage in usages:
            assert usage.usd == pytest.approx((usage.input * 2 + usage.output * 10) / 1e6)
            assert usage.input > 0
        spent = {
            budget: await t.app.store.get_spend(budget, day)
            for budget in ("agent:main", "agent:other", "person:local:ada")
        }
        total = sum(usage.usd for usage in usages)
        assert spent["agent:main"].usd + spent["agent:other"].usd == pytest.approx(total)
        bob = await t.app.store.get_spend("person:local:bob", day)
        assert spent["person:local:ada"].usd + bob.usd == pytest.approx(total)
        assert bob.tokens > 0
        assert (await t.app.store.get_spend("agent:main", "2001-01-01")).tokens == 0


async def test_a_budget_refuses_before_the_call(tmp_path: Path, server: ModelServer) -> None:
    budget = {"usd_per_day": 0.0441}
    async with run_gateway(tmp_path, server, entry={"price": {"input": 2.0, "output": 10.0}}, budget=budget) as t:
        assert await t.send_and_wait("hello") == "You said: hello"
        told, before = "", 0
        while "budget" not in told:
            await t.wait_until_idle()
            before = len(server.requests)
            assert before < 20
            told = await t.send_and_wait("more, please")
        assert "budget of agent:main" in told
        assert "Your message is kept" in told
        assert len(server.requests) == before, "refused after it was paid for"
        spent = await t.app.store.get_spend("agent:main", t.app.agents.get_today())
        assert spent.usd <= 0.0441


@pytest.mark.parametrize("unit", ["usd", "tokens"])
async def test_concurrent_calls_cannot_both_spend_the_rest_of_a_budget(
    tmp_path: Path, server: ModelServer, unit: str
) -> None:
    models = {"m": make_model_section(server.openai, price={"input": 2.0, "output": 10.0})}
    async with run_gateway(tmp_path, server, models=models, budget={f"{unit}_per_day": 1_000_000}) as t:
        released = server.hold()
        await t.send_message("hello", chat="first")
        await t.wait_until(lambda: len(server.requests) == 1)
        worst = getattr(t.app.supervisor.budgets.get_reserved("agent:main"), unit)
        released.set()
        await t.wait_until_idle()
        spent = getattr(await t.app.store.get_spend("agent:main", t.app.agents.get_today()), unit)
        enough_for_one = spent + worst * 3 / 2
        limit = enough_for_one if unit == "usd" else int(enough_for_one)
        t.configure(config(models, budget={f"{unit}_per_day": limit}))
        released = server.hold()
        sessions = [(await t.send_message("hello", chat=chat)).session for chat in ("second", "third")]

        async def answers() -> list[str]:
            entries = [entry for session in sessions for entry in await t.read_entries(session)]
            return [entry.body.text for entry in entries if isinstance(entry.body, Said | Notified)]

        async def one_is_refused() -> bool:
            return any("budget of agent:main" in text for text in await answers())

        await t.wait_until(lambda: one_is_refused() if len(server.requests) < 3 else True)
        assert len(server.requests) == 2, "only the other one is being answered"
        released.set()
        await t.wait_until_idle()
        assert sorted("budget" in text for text in await answers()) == [False, True]
        assert len(server.requests) == 2


async def test_a_reservation_covers_the_longest_possible_answer(tmp_path: Path, server: ModelServer) -> None:
    short = {"m": make_model_section(server.openai, max_tokens=100)}
    async with run_gateway(tmp_path / "short", server, models=short, budget={"tokens_per_day": 4_000}) as t:
        assert await t.send_and_wait("hello") == "You said: hello"
    long, asked = {"m": make_model_section(server.anthropic, provider="anthropic")}, len(server.requests)
    async with run_gateway(tmp_path / "long", server, models=long, budget={"tokens_per_day": 8_000}) as t:
        told = await t.send_and_wait("hello")
        assert "tokens, 8,000 are left" in told
        assert len(server.requests) == asked, "the answer may have 8,192 tokens"


async def test_a_person_without_budget_does_not_block_other_people(tmp_path: Path, server: ModelServer) -> None:
    budget = {"per_person": {"tokens_per_day": 5_000}}
    server.default = ModelServerReply(text="word " * 600)
    async with run_gateway(tmp_path, server, budget=budget) as t:
        assert (await t.send_and_wait("hello", who="ada")).startswith("word")
        assert "budget of person:local:ada" in await t.send_and_wait("again", who="ada")
        asked = len(server.requests)
        assert (await t.send_and_wait("hello", who="bob", chat="bobs")).startswith("word")
        assert len(server.requests) == asked + 1


async def test_a_model_without_a_price_does_not_bypass_a_budget(tmp_path: Path, server: ModelServer) -> None:
    models = {
        "m": make_model_section(server.openai, price={"input": 2.0, "output": 10.0}),
        "free": make_model_section(server.openai, "f"),
    }
    async with run_gateway(tmp_path, server, models=models) as t:
        assert "There is no model 'fee'" in await t.send_and_wait("/model fee")
        assert await t.send_and_wait("/model free") == "Model for this session: free."
        await t.send_and_wait("hello")
        assert server.requests[-1].json["model"] == "f"
        t.configure(config(models, budget={"per_person": {"usd_per_day": 5}}))
        # the earlier choice is void, and it cannot be chosen again
        await t.send_and_wait("hello")
        assert server.requests[-1].json["model"] == "fake"
        assert "free has no price" in await t.send_and_wait("/model free")
        assert await t.send_and_wait("/model offline") == "Model for this session: offline."
        models["free"]["price"] = {"input": 1, "output": 1}
        t.configure(config(models, budget={"per_person": {"usd_per_day": 5}}))
        assert await t.send_and_wait("/model free") == "Model for this session: free."
        await t.send_and_wait("hello")
        assert server.requests[-1].json["model"] == "f"


async def test_a_stopped_call_is_charged(tmp_path: Path, server: ModelServer) -> None:
    server.add_steps(ModelServerReply(text="one two three four", cut=StreamFault(kind="hang", after=3)))
    async with run_gateway(tmp_path, server, entry={"price": {"input": 2.0, "output": 10.0}}) as t:
        verdict = await t.send_message("tell me a long story")
        await t.wait_until(lambda: len(t.pieces) >= 2)
        await t.send_and_wait("/stop")
        await t.wait_until_idle()
        (ended,) = [it for it in await t.read_bodies(verdict.session, Ended) if it.outcome == "stopped"]
        assert ended.usage.input > 20
        assert 0 < ended.usage.output < 20
        spent = await t.app.store.get_spend("person:local:ada", t.app.agents.get_today())
        assert spent.tokens == ended.usage.input + ended.usage.output
        assert spent.usd == pytest.approx(ended.usage.usd)
        assert spent.usd > 0


async def test_a_reservation_is_held_until_the_cost_is_committed(tmp_path: Path, server: ModelServer) -> None:
    calls = (ToolCall(id="c", tool="nobody_knows"),)
    server.add_steps(ModelServerReply(calls=calls), ModelServerReply(text="Well."), ModelServerReply(text="So."))
    budget = {"tokens_per_day": 1_000_000, "background": {"tokens_per_day": 1_000_000}}
    async with run_gateway(tmp_path, server, budget=budget) as t:
        held: list[int] = []
        store, budgets = t.app.store, t.app.supervisor.budgets
        commit = store.commit

        async def commit_and_look(change: Change) -> CommitResult:
            done = await commit(change)
            held.extend([budgets.get_reserved("agent:main").tokens] if change.spends else [])
            return done

        store.commit = commit_and_look  # type: ignore[method-assign]
        assert await t.send_and_wait("hello") == "Well."
        await t.send_and_wait("/background think")
        await t.wait_until(lambda: len(held) >= 3)
        await t.wait_until_idle()
        assert all(tokens > 4_000 for tokens in held)
        assert budgets.get_reserved("agent:main").tokens == 0


# -- the configuration -------------------------------------------------------------------------------------------------


async def test_an_edit_is_in_force_at_the_next_message(tmp_path: Path, server: ModelServer) -> None:
    async with ModelServer(key="another-key-0123456789", default=ModelServerReply(text="I am the other one.")) as other:
        async with run_gateway(tmp_path, server) as t:
            assert await t.send_and_wait("hello") == "You said: hello"
            held = next(iter(t.app.agents._models.values()))
            t.configure(config({"m": make_model_section(other.openai, "fine")}))
            t.write_secrets("MODEL_KEY=another-key-0123456789\n")
            assert await t.send_and_wait("hello") == "I am the other one."
            assert other.last_request.json["model"] == "fine"
            assert other.last_request.headers["authorization"] == "Bearer another-key-0123456789"
            await t.wait_until(lambda: not server._tasks)  # the connection to the previous model is closed
            assert isinstance(held, RetirableModel)
            # only the key changes
            other.key = "third-key-0123456789"
            t.write_secrets("MODEL_KEY=third-key-0123456789\n")
            assert await t.send_and_wait("hello") == "I am the other one."


async def test_a_model_replaced_during_an_answer_is_closed_after_it(tmp_path: Path, server: ModelServer) -> None:
    server.add_steps(ModelServerReply(text="a long story comes to its end", pause_seconds=0.1))
    async with run_gateway(tmp_path, server) as t:
        session = (await t.send_message("tell me")).session
        await t.wait_until(lambda: bool(t.pieces))
        t.configure(config({"m": make_model_section(server.openai, "newer")}))
        assert await t.send_and_wait("hello", chat="other") == "You said: hello"
        assert await t.wait_for_replies(session) == ["a long story comes to its end"]
        await t.wait_until(lambda: len(server._tasks) == 1)


async def test_a_replaced_model_that_was_called_again_is_closed(server: ModelServer) -> None:
    class Clock:
        def now(self) -> float:
            return time.time()

        def monotonic(self) -> float:
            return time.monotonic()

    from everhold.models.settings import OpenAISettings

    model = OpenAIModel(OpenAISettings.model_validate({"name": "x", "base_url": server.openai}), clock=Clock())
    held = RetirableModel(model)
    server.key = None
    server.strict = False
    await held.retire()
    await held.answer(ModelRequest(system="s", messages=()))
    assert model._http_client._transport is None


async def test_an_invalid_edit_keeps_the_last_valid_configuration_and_is_reported(
    tmp_path: Path, server: ModelServer
) -> None:
    async with run_gateway(tmp_path, server) as t:
        await t.send_and_wait("hello")
        t.configure("models: {m: {provider: openai, nmae: x}}\n")
        assert await t.send_and_wait("hello again") == "You said: hello again"
        assert "models.m.nmae" in [problem["key"] for problem in t.app.describe()["refused"]]
        assert "config.refused" in t.log.getvalue()
        t.configure(config({"m": make_model_section(server.openai, "newer")}))
        await t.send_and_wait("and now")
        assert server.last_request.json["model"] == "newer"
        assert t.app.describe()["refused"] == []


async def test_a_missing_secret_disables_only_what_needs_it(tmp_path: Path, server: ModelServer) -> None:
    models = {"m": make_model_section(server.openai), "n": make_model_section(server.openai, api_key_env="OTHER_KEY")}
    agents = {"main": {"model": "m"}, "coder": {"model": "n"}}
    async with run_gateway(tmp_path, server, models=models, agents=agents) as t:
        assert await t.send_and_wait("hello") == "You said: hello"
        session = (await t.send_message("hello coder", agent="coder")).session
        (problem,) = [p for p in t.app.describe()["problems"] if "OTHER_KEY" in str(p)]
        assert problem["fatal"] is False
        await t.wait_until(lambda: "turn.waiting" in t.log.getvalue())
        assert len(server.requests) == 1
        t.write_secrets(f"MODEL_KEY={KEY}\nOTHER_KEY={KEY}\n")
        await t.send_and_wait("hello")
        assert await t.wait_for_replies(session) == ["You said: hello coder"]
        assert not [p for p in t.app.describe()["problems"] if "OTHER_KEY" in str(p)]


_OPENED: list[str] | None = None


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if _OPENED is not None and event == "open":
        _OPENED.append(str(args[0]))


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Record every file that this process opens. An audit hook cannot be removed, only disabled."""
    global _OPENED
    sys.addaudithook(_hook)
    _OPENED = []
    yield _OPENED
    _OPENED = None


async def test_a_message_causes_no_file_read(tmp_path: Path, server: ModelServer, opened: list[str]) -> None:
    async with run_gateway(tmp_path, server) as t:
        await t.send_and_wait("hello")
        await t.send_and_wait("hello", agent="main", chat="other")
        await t.wait_until(
            lambda: t.app.watcher.compared
        )  # once, a while after they were read, the files are read again
        while await t.app.index.catch_up(t.app.store):  # the first run loads the embeddings
            pass
        assert any(str(t.home.path) in name for name in opened), "the hook sees nothing"
        opened.clear()
        for number in range(5):
            await t.send_and_wait(f"hello {number}")
        assert opened == []


# -- secrets -----------------------------------------------------------------------------------------------------------


async def test_no_secret_is_found_anywhere_in_the_home_or_the_logs(tmp_path: Path, server: ModelServer) -> None:
    """Put a canary in every place for a secret, then cause everything that could repeat it."""
    names = ("MODEL_KEY", "HEADER", "HTTP", "CANARY", "TOOL_URL", "MEMORY", "BOT", "FALLBACK")
    canaries = {name: f"canary-{name.lower()}-0123456789abcdef01234567" for name in names}
    server.key = canaries["MODEL_KEY"]
    models = {
        "m": make_model_section(server.openai, headers={"x-org_env": "HEADER"}),
        "f": make_model_section(server.openai, "second", api_key_env="FALLBACK"),
    }
    settings: dict[str, Any] = {
        "models": models,
        "defaults": {"memories": ["honcho"], "tools": ["mcp:odd", "mcp:far"], "model": "m", "fallback": ["f"]},
        "http": {"port": 0, "tokens": [{"name": "me", "token_env": "HTTP", "role": "operator"}]},
        "mcp": {
            "odd": {"command": CROOKED, "env": ["CANARY"]},
            "far": {"url": server.url + "/mcp", "token_env": "TOOL_URL"},
        },
        "memories": {"honcho": {"provider": "honcho", "api_key_env": "MEMORY"}},
        "platforms": {"telegram": {"main": {"token_env": "BOT"}}},
        "policy": {"rules": [{"tool": "odd_*", "do": "allow"}], "after_foreign": "allow"},
    }
    env = "".join(f"{name}={value}\n" for name, value in canaries.items())

    def chatty(received: ReceivedModelRequest) -> ModelServerStep:
        shown = json.dumps(dict(received.headers)) + " ".join(canaries.values())
        if "trouble" in received.body.decode():
            return ModelServerStatus(status=400, body={"error": {"message": f"you sent {shown}", "type": "x"}})
        return VendorFailure(kind="server_error") if "late" in received.body.decode() else ModelServerReply(text="fine")

    server.default = chatty
    async with RunningGateway(tmp_path, json.dumps(settings), env=env) as t:
        url = await t.app.serve(port=0)
        server.add_steps(ModelServerReply(calls=(ToolCall(id="c", tool="odd_secret"),)))
        first = await t.send_message("hello")
        await t.wait_for_replies(first.session)
        # each secret was sent to its own service; otherwise its absence below would prove nothing
        # the last request may be one of the MCP client, because it retries its connection to this server
        to_model = [r for r in server.requests if r.path.endswith("/chat/completions")][-1]
        assert to_model.headers["authorization"] == f"Bearer {canaries['MODEL_KEY']}"
        assert canaries["HEADER"] in to_model.headers.values()
        assert any(canaries["TOOL_URL"] in r.headers.get("authorization", "") for r in server.requests)
        (returned,) = await t.read_bodies(first.session, Returned)
        assert returned.text.startswith("*** ["), "the tool was not run, or does not know its secret"
        await t.send_and_wait("trouble", chat="two")
        await t.send_message("late", chat="three")
        async with httpx2.AsyncClient(base_url=url, trust_env=False) as client:
            headers = {"x-forwarded-for": "203.0.113.9"}
            wrong = await client.get("/api/sessions", headers={**headers, "authorization": f"Bearer {canaries['BOT']}"})
            right = await client.get(
                "/api/sessions", headers={**headers, "authorization": f"Bearer {canaries['HTTP']}"}
            )
            shown = await client.get(f"/metrics?token={canaries['HTTP']}")
        assert (wrong.status_code, right.status_code) == (401, 200)
        t.configure(json.dumps(settings).replace('"fallback"', '"fallbakc"'))
        await t.send_message("again", chat="four")
        about = json.dumps(t.app.describe()) + wrong.text + right.text + shown.text
    hits = [
        f"{path.name}: {name}"
        for path in sorted(t.home.path.rglob("*"))
        if path.is_file() and path != t.home.env
        for name, value in canaries.items()
        if value.encode() in path.read_bytes()
    ]
    hits += [f"log: {name}" for name, value in canaries.items() if value in t.log.getvalue() + about]
    assert hits == []


async def test_a_model_that_hangs_does_not_delay_others(tmp_path: Path, server: ModelServer) -> None:
    def by_name(received: ReceivedModelRequest) -> ModelServerStep:
        return HangingConnection() if received.json["model"] == "slow" else ModelServerReply(text="quick")

    server.default = by_name
    models = {"slow": make_model_section(server.openai, "slow"), "quick": make_model_section(server.openai, "quick")}
    agents = {"main": {"model": "slow"}, "coder": {"model": "quick"}}
    async with run_gateway(tmp_path, server, models=models, agents=agents) as t:
        for number in range(5):
            await t.send_message("hello", chat=f"c{number}")
        assert await t.send_and_wait("hello", agent="coder") == "quick"


@pytest.mark.parametrize("is_planted", [False, True])
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_the_time_of_each_turn_leaves_the_cache_of_the_earlier_ones(
    tmp_path: Path, server: ModelServer, monkeypatch: pytest.MonkeyPatch, dialect: str, is_planted: bool
) -> None:
    """Each turn is told another time, and reads all but its newest text from the vendor's cache. With the time in the
    instructions, as planted, nothing is read from it.
    """
    minutes = itertools.count(1)
    monkeypatch.setattr(ConfiguredAgents, "_describe_time", lambda *_: f"2026-11-17 Tue 16:{next(minutes):02} UTC")
    if is_planted:
        plain = context_rules.build_model_request
        monkeypatch.setattr(
            execution,
            "build_model_request",
            lambda shown, *, system, **more: plain(shown, system=f"It is {next(minutes)}. {system}", **more),
        )
    url = server.openai if dialect == "openai" else server.anthropic
    models = {"m": make_model_section(url, provider=dialect)}
    agents = {"main": {"persona": "You keep notes. " * 800}}
    async with run_gateway(tmp_path, server, models=models, agents=agents) as t:
        verdict = await t.send_message("message 1")
        for number in range(2, 5):
            await t.wait_for_replies(verdict.session, number - 1)
            await t.send_message(f"message {number}")
        await t.wait_until_idle()
        thoughts = await t.read_bodies(verdict.session, Thought)
        times = {body.clock for body in await t.read_bodies(verdict.session, Began) if body.type == "turn"}
        assert len(times) == 4
    shares = [thought.usage.cached / thought.usage.input for thought in thoughts[1:]]
    assert len(shares) == 3
    assert all(share < 0.1 for share in shares) if is_planted else min(shares) > 0.9, shares
