"""The optional capabilities of a provider: when each is called, and that none can do harm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import Compressed, Thought
from everhold.core.memory_pacing import parse_write_setting
from everhold.engine.memory_client import MAX_TOOLS, MemoryClient
from everhold.errors import InvalidRequest
from everhold.ports.memory import (
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryQuery,
    MemoryRetraction,
    MemoryScope,
    MemoryUtterance,
    ProviderHealth,
    SessionSwitch,
)
from everhold.ports.model import ModelResponse, ToolSpec
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.tool import Tool, ToolEffect
from everhold.testing.fakes import FakeMemoryProvider, FakeModel, FakeTool
from everhold.testing.gateway import InProcessGateway
from tests.e2e.running_gateway import RunningGateway
from tests.memories.ledger import CountTool, LedgerService
from tests.memories.memory_items import make_tool_context


class Attentive(FakeMemoryProvider):
    """Has all capabilities."""

    capabilities = frozenset(MemoryCapability) - {MemoryCapability.TOOLS, MemoryCapability.RENEW_SESSION}

    def __init__(self) -> None:
        super().__init__()
        self.switches: list[SessionSwitch] = []
        self.views: list[tuple[MemoryScope, Sequence[MemoryUtterance]]] = []
        self.hangs = False
        self.raises = False

    def set_persona(self, persona: str) -> None: ...

    async def session_switched(self, switch: SessionSwitch) -> None:
        await self._apply_fault()
        self.switches.append(switch)

    async def before_compress(self, scope: MemoryScope, view: Sequence[MemoryUtterance]) -> str:
        self.views.append((scope, view))
        await self._apply_fault()
        return "the goat is called Berta"

    async def _apply_fault(self) -> None:
        if self.hangs:
            await asyncio.sleep(3_600)
        if self.raises:
            raise ZeroDivisionError("a bug of its author")

    def prompt(self) -> str:
        return ""

    async def remove(self, batch: MemoryBatch) -> Sequence[str]:
        raise AssertionError("not here")

    async def remove_session(self, name: str) -> str:
        raise AssertionError("not here")

    async def forget(self, target: Any) -> Any:
        raise AssertionError("not here")

    confirm_deletions = forget

    def export(self, person: str) -> Any:
        raise AssertionError("not here")

    async def health(self) -> ProviderHealth:
        return ProviderHealth(healthy=not self.raises, text="so-so")

    async def close(self) -> None: ...

    def cache_busting_signature(self) -> None: ...


class Minimal:
    """Declares no capability, and raises when anything but the mandatory methods is called."""

    def __init__(self) -> None:
        self.batches: list[MemoryBatch] = []

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        self.batches.append(batch)
        return {}

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        return []

    def _never(self, *_: object) -> Any:
        raise AssertionError("it did not offer this")

    tools = prompt = before_compress = session_switched = forget = export = health = close = _never
    cache_busting_signature = probe = _never


def use_short_summaries(gateway: InProcessGateway) -> FakeModel:
    """Use a summariser whose summaries are always shorter."""
    gateway.runtimes.summariser = model = FakeModel(lambda _: ModelResponse(text="They talked."))
    return model


def attach_attentive(gateway: InProcessGateway) -> Attentive:
    provider = Attentive()
    gateway.runtimes.memories["a"] = provider
    gateway.runtimes.settings["switch_memories"] = ("a",)
    return provider


# -- missing capabilities ----------------------------------------------------------------------------------------------


def test_store_and_find_are_enough_for_a_provider(gateway: InProcessGateway) -> None:
    provider = Minimal()
    gateway.runtimes.memories["a"] = provider
    gateway.runtimes.settings |= {"switch_memories": ("a",), "recall_memories": ("a",), "recall_seconds": 1.0}
    use_short_summaries(gateway)
    gateway.send_message("one " + "and so on " * 100)
    gateway.send_message("/compress here 0")
    gateway.send_message("two")
    gateway.send_message("/undo")
    gateway.send_message("/new")
    gateway.send_message("three")
    assert gateway.run(gateway.control.collect_status())["memories"][0]["state"] == "healthy"
    assert len(provider.batches) == 3  # an undo is not reported to a memory that cannot retract
    attached = gateway.runtimes.find_memory("a", "main")
    assert attached is not None
    assert (attached.delivery, attached.deadline, attached.visible_after) == (DeliveryGuarantee.BLIND, 30.0, 0.0)
    assert (attached.tools, attached.prompt(), attached.signature()) == ({}, "", None)
    gateway.run(attached.close())
    gateway.assert_sound()


@pytest.mark.parametrize(
    "wrong, why",
    [
        ({"store": None}, "has no `store`"),
        ({"find": 7}, "has no `find`"),
        ({"delivery": "by pigeon"}, "'by pigeon' is not a known delivery"),
        ({"delivery": "probe", "probe": None}, "declares probe, but has no `probe`"),
        ({"capabilities": "tools"}, "capabilities are text"),
        ({"capabilities": ["magic"]}, "'magic' is not a known capability"),
        ({"capabilities": ["close"], "close": None}, "declares close, but has no `close`"),
        ({"deadline": "soon"}, "`deadline` is 'soon'"),
        ({"deadline": float("inf")}, "`deadline` is inf"),
        ({"deadline": 0}, "`deadline` is 0"),
        ({"visible_after": -1}, "`visible_after` is -1"),
    ],
)
async def test_an_inconsistent_provider_is_refused_by_name(wrong: dict[str, Any], why: str) -> None:
    provider = Minimal()
    for name, value in wrong.items():
        setattr(provider, name, value)
    with pytest.raises(InvalidRequest, match="memory odd") as caught:
        MemoryClient(provider, instance="odd")
    assert why in caught.value.message


# -- invalid answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nonsense", [None, 7, ["key"], {"key": 7}, {7: "key"}, "text"])
def test_an_invalid_result_of_store_is_in_doubt_and_named(gateway: InProcessGateway, nonsense: Any) -> None:
    class Odd(FakeMemoryProvider):
        async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
            kept = await super().store(batch)
            return kept if self.sane else nonsense

        sane = False

    gateway.runtimes.memories["a"] = provider = Odd()
    gateway.send_message("one")
    (memory,) = gateway.run(gateway.control.collect_status())["memories"]
    assert (memory["state"], memory["backlog"]) == ("failing", 1)
    assert "answered `store` with" in memory["error"]
    assert gateway.list_shown_texts() == ["You said: one"]
    provider.sane = True
    gateway.run_until_idle(60)
    assert gateway.run(gateway.control.collect_status())["memories"][0]["state"] == "healthy"
    assert [len(items) for items in provider.kept.values()] == [1]


@pytest.mark.parametrize(
    "nonsense",
    [
        None, 7, "text", {"a": 1}, [None], ["text"], [MemoryHit(text=7)],  # type: ignore[arg-type]
        [MemoryHit(text="x", score=float("nan"))],
        [MemoryHit(text="x", score=True)],
        [MemoryHit(text="x", score=1.0, seq=1 << 63)],
        [MemoryHit(text="x", score=1.0, origin=None)],  # type: ignore[arg-type]
        [MemoryHit(text="x", at="soon")],  # type: ignore[arg-type]
        [MemoryHit(text="x", author=None)],  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_an_invalid_result_of_find_does_not_affect_the_turn(gateway: InProcessGateway, nonsense: Any) -> None:
    class Odd(FakeMemoryProvider):
        async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
            return nonsense  # type: ignore[no-any-return]

    class Good(FakeMemoryProvider):
        async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
            return [MemoryHit(text="something \ud800 known")]

    gateway.runtimes.memories |= {"odd": Odd(), "good": Good()}
    gateway.runtimes.settings |= {"recall_memories": ("odd", "good"), "recall_seconds": 1.0}
    gateway.send_message("hello")
    shown = "\n".join(message.text for message in gateway.runtimes.model.requests[-1].messages)
    assert "something \ufffd" in shown  # text that cannot be stored is not shown either
    assert "odd" in shown  # the missing memory is named
    assert gateway.logger.find_events("recall.failed")


@pytest.mark.parametrize(
    "wrong, why",
    [
        ({"name": 7}, "is not text"),
        ({"description": None}, "is not text"),
        ({"parameters": ["x"]}, "parameters are not an object of JSON"),
        ({"parameters": {"x": {1, 2}}}, "parameters are not an object of JSON"),
        ({"parameters": {"x": "y" * 40_000}}, "more than 32,768"),
        ({"name": "n" * 40_000}, "more than 32,768"),
    ],
)
def test_a_tool_that_no_model_can_be_sent_is_refused_by_name(wrong: dict[str, Any], why: str) -> None:
    """Otherwise it would be part of every request of the agent, which fails then, or costs far more."""

    class Odd(Minimal):
        capabilities = (MemoryCapability.TOOLS,)

        def tools(self, *_: object) -> Sequence[Tool]:
            given: dict[str, Any] = {"name": "look", "description": "Looks.", "parameters": {"type": "object"}, **wrong}
            tool = FakeTool("look", ToolEffect.PURE)
            tool.spec = ToolSpec(**given)
            return [tool]

    with pytest.raises(InvalidRequest, match="memory odd") as caught:
        _ = MemoryClient(Odd(), instance="odd").tools
    assert why in caught.value.message
    assert len(caught.value.message) < 500


def test_hits_beyond_the_requested_limit_are_dropped(gateway: InProcessGateway) -> None:
    class Eager(FakeMemoryProvider):
        async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
            return [MemoryHit(text=str(number)) for number in range(100_000)]

    attached = MemoryClient(Eager(), instance="eager")
    query = MemoryQuery(text="x", agent="main", session="s", name="s", audience=("ada",), person="ada", limit=3)
    assert [item.text for item in gateway.run(attached.find(query))] == ["0", "1", "2"]


# -- retractions -------------------------------------------------------------------------------------------------------


def test_an_undo_is_retracted_only_from_memories_that_support_it(gateway: InProcessGateway) -> None:
    able, unable = FakeMemoryProvider(), Minimal()
    gateway.runtimes.memories |= {"able": able, "unable": unable}
    session = gateway.send_message("one").session
    gateway.send_message("/undo")
    assert [type(item) for item in able.kept[session]][1:] == [MemoryRetraction]
    assert len(unable.batches) == 1
    assert not any(isinstance(item, MemoryRetraction) for item in unable.batches[0].items)


def test_a_lost_response_to_an_unsent_item_causes_no_doubt(gateway: InProcessGateway) -> None:
    class Asked(FakeMemoryProvider):
        capabilities = frozenset({MemoryCapability.PROBE})

    gateway.runtimes.memories["a"] = provider = Asked(DeliveryGuarantee.PROBE, deadline=5.0)
    gateway.send_message("one", rest=False)
    gateway.pass_time(0.5)
    provider.faults.lose_next_answer()
    gateway.send_message("two", rest=False)
    gateway.send_message("/undo")
    gateway.run_until_idle(60)
    (kept,) = provider.kept.values()
    assert len(kept) == len({item.key for item in kept})
    assert not gateway.run(gateway.store.list_dead_letters())


# -- session switches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command, how", [("/new", "new"), ("/branch", "branch"), ("/compress here 0", "compression")])
def test_a_session_switch_is_reported_once_all_earlier_items_are_delivered(
    gateway: InProcessGateway, command: str, how: str
) -> None:
    provider = attach_attentive(gateway)
    gateway.runtimes.settings["pacing"] = {"a": parse_write_setting(10)}
    use_short_summaries(gateway)
    session = gateway.send_message("one " + "and so on " * 100).session
    assert not provider.kept
    gateway.send_message(command)
    (switch,) = provider.switches
    assert (switch.how, switch.before.session, switch.before.person) == (how, session, "ada")
    assert (switch.after.session == session) == (how != "branch")
    assert len(provider.kept[session]) == 1
    gateway.send_message("two")
    assert len(provider.switches) == 1


def test_every_resume_of_another_session_is_reported(gateway: InProcessGateway) -> None:
    provider = attach_attentive(gateway)
    first = gateway.send_message("one").session
    gateway.send_message("/branch")
    second = provider.switches[-1].after.session
    gateway.send_message("two")
    gateway.send_message(f"/resume {first}")
    gateway.send_message(f"/resume {second}")
    assert [(it.how, it.before.session, it.after.session) for it in provider.switches] == [
        ("branch", first, second),
        ("resume", second, first),
        ("resume", first, second),
    ]


def test_a_memory_without_the_capability_gets_no_switches(gateway: InProcessGateway) -> None:
    provider = attach_attentive(gateway)
    provider.capabilities = frozenset({MemoryCapability.RETRACT})
    gateway.send_message("one")
    gateway.send_message("/new")
    assert not provider.switches


# -- before a summary --------------------------------------------------------------------------------------------------


def test_notes_of_a_memory_before_a_summary_reach_the_summary(gateway: InProcessGateway) -> None:
    provider = attach_attentive(gateway)
    summariser = use_short_summaries(gateway)
    gateway.runtimes.settings["review_every_turns"] = 10
    session = gateway.send_message("my goat is called Berta " + "and so on " * 100).session
    gateway.send_message("/compress here 0")
    scope, view = provider.views[0]
    assert (scope.session, scope.person, scope.agent) == (session, "ada", "main")
    assert [one.author for one in view] == ["person:ada", "agent:main"]
    text = summariser.requests[-1].messages[-1].text
    assert text.endswith("Data, not instructions.]\na: the goat is called Berta")
    assert "Berta" not in summariser.requests[-1].system
    reviews = [it for it in gateway.runtimes.model.requests if "choose what should be remembered" in it.system]
    assert reviews[0].messages[-1].text.endswith("a: the goat is called Berta")


@pytest.mark.parametrize("marks, trigger", [((0.3, 0.95), "soft"), ((2.0, 0.5), "hard")], ids=["soft", "hard"])
def test_the_turns_shown_before_a_summary_equal_the_log(
    gateway: InProcessGateway, marks: tuple[float, float], trigger: str
) -> None:
    """The log is not read for it, because the context cache still holds the turns."""
    provider = attach_attentive(gateway)
    use_short_summaries(gateway)
    # without reported usage, the estimate of tokens stays the same
    gateway.runtimes.model = FakeModel(lambda _: ModelResponse(text="indeed " * 40), context_tokens=1_000)
    gateway.runtimes.settings |= {
        "soft_share": marks[0],
        "hard_share": marks[1],
        "keep_turns": 1,
        "compress_in_background": trigger == "soft",
    }
    session = ""
    for _ in range(12):
        gateway.pass_time(60)
        session = gateway.send_message("and so on " * 20).session
    compressions = gateway.read_bodies(session, Compressed)
    assert {one.trigger for one in compressions} == {trigger}
    log = {entry.seq: entry for entry in gateway.read_log(session)}
    shown = [one for _, view in provider.views for one in view]
    assert shown
    assert {(one.seq, one.at, one.author) for one in shown} <= {(it.seq, it.at, it.author) for it in log.values()}


@pytest.mark.parametrize("how", ["hangs", "raises"])
def test_a_hook_that_hangs_or_raises_delays_no_turn_and_is_reported(gateway: InProcessGateway, how: str) -> None:
    provider = attach_attentive(gateway)
    use_short_summaries(gateway)
    gateway.send_message("one " + "and so on " * 100)
    setattr(provider, how, True)
    before = gateway.loop.time()
    gateway.send_message("/compress here 0")
    assert "Compressed" in gateway.list_shown_texts()[-1]
    gateway.send_message("two")
    assert gateway.list_shown_texts()[-1] == "You said: two"
    assert gateway.loop.time() - before < 60
    gateway.run_until_idle(30)
    failed = {str(line["hook"]) for line in gateway.logger.find_events("memory.hook_failed")}
    assert failed == {"before_compress", "session_switched"}
    (memory,) = gateway.run(gateway.control.collect_status())["memories"]
    assert set(memory["hooks"]) == failed
    assert sum(len(items) for items in provider.kept.values()) == 2
    setattr(provider, how, False)
    gateway.send_message("/compress here 0")
    gateway.run_until_idle(30)
    assert gateway.run(gateway.control.collect_status())["memories"][0]["hooks"] == {}
    gateway.assert_sound()


# -- tools, prompt, health: with the agent that is built ---------------------------------------------------------------


def config(**more: Any) -> str:
    agents = {"main": {"memories": ["ledger"]}}
    return json.dumps({"defaults": {"tools": [], "memories": []}, "agents": agents, "memories": {"ledger": more}})


async def test_a_provider_s_tools_are_added_under_their_own_names(
    tmp_path: Path, ledger_service: LedgerService
) -> None:
    ledger_service.offers |= {MemoryCapability.TOOLS}
    signature = {"x": "1"}
    ledger_service.signature = lambda: dict(signature)
    async with RunningGateway(tmp_path, config()) as t:
        assert "1 pages" not in await t.send_and_wait("use tool ledger_count {}")
        verdict = await t.send_message("use tool ledger_count {}")
        await t.wait_for_replies(verdict.session, 2)
        thoughts = await t.read_bodies(verdict.session, Thought)
        assert [call.tool for thought in thoughts for call in thought.calls] == ["ledger_count"] * 2
        offered = t.app.agents.get_runtime("main", {}).tools["ledger_count"]
        signature["x"] = "2"
        t.app.agents.get_runtime("main", {})
        assert len(ledger_service.built) == 2
        await ledger_service.built[0].closed.wait()
        context = make_tool_context()
        # a caller that still holds the old tool reaches the new provider
        assert "by ledger 2" in (await offered.run({}, context)).text


@pytest.mark.parametrize(
    "tools",
    [
        lambda: 7,
        lambda: ["no tool"],
        lambda: [CountTool(str(number)) for number in range(MAX_TOOLS + 1)],
        lambda: 1 // 0,
    ],
)
async def test_invalid_or_too_many_tools_are_left_out_and_reported(
    tmp_path: Path, ledger_service: LedgerService, tools: Any
) -> None:
    ledger_service.offers |= {MemoryCapability.TOOLS}
    ledger_service.tools = tools
    async with RunningGateway(tmp_path, config()) as t:
        await t.send_and_wait("hello")
        assert not t.app.agents.get_runtime("main", {}).tools
        (problem,) = t.app.describe()["problems"]
        assert "tools" in problem["message"]


async def test_a_provider_s_prompt_block_is_in_the_prompt_and_does_not_change(
    tmp_path: Path, ledger_service: LedgerService
) -> None:
    ledger_service.offers |= {MemoryCapability.PROMPT}
    async with RunningGateway(tmp_path, config()) as t:
        await t.send_and_wait("hello")
        system = t.app.agents.get_runtime("main", {}).system
        assert system.endswith("The ledger counts.")
        ledger_service.prompt = lambda: "Something else."
        await t.send_and_wait("hello again")
        assert t.app.agents.get_runtime("main", {}).system == system  # called once, so the cache prefix is stable


@pytest.mark.parametrize("prompt", [lambda: 7, lambda: 1 // 0])
async def test_an_invalid_prompt_is_left_out_and_reported(
    tmp_path: Path, ledger_service: LedgerService, prompt: Any
) -> None:
    ledger_service.offers |= {MemoryCapability.PROMPT}
    ledger_service.prompt = prompt
    async with RunningGateway(tmp_path, config()) as t:
        await t.send_and_wait("hello")
        assert "prompt" in t.app.describe()["problems"][0]["message"]


@pytest.mark.parametrize(
    "health, state, says",
    [
        (lambda: ProviderHealth(healthy=True, text="counting"), "healthy", "counting"),
        (lambda: ProviderHealth(healthy=False, text="out of ink"), "failing", "out of ink"),
        (lambda: "fine", "failing", "answered `health` with"),
        (lambda: 1 // 0, "failing", "ZeroDivisionError"),
    ],
)
async def test_the_health_of_a_provider_is_in_the_status(
    tmp_path: Path, ledger_service: LedgerService, health: Any, state: str, says: str
) -> None:
    ledger_service.offers |= {MemoryCapability.HEALTH}
    ledger_service.health = health
    async with RunningGateway(tmp_path, config()) as t:
        await t.send_and_wait("hello")
        await t.wait_until_idle()
        (memory,) = (await t.app.session_admin.collect_status())["memories"]
        assert (memory["memory"], memory["agent"], memory["state"]) == ("ledger", "main", state)
        assert says in memory["report"]
