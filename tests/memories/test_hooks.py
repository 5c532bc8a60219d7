"""What a provider may offer besides storing and finding: when each is called, and that none of it can do harm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import Compressed, Thought
from everhold.core.pace import pace_of
from everhold.errors import Misuse
from everhold.flow.memory import MOST_TOOLS, Attached
from everhold.ports.memory import Batch, Capability, Found, Health, Query, Retraction, Scope, Switch, Utterance
from everhold.ports.model import Answer
from everhold.ports.platform import Delivery
from everhold.testing.fakes import FakeProvider, ScriptedModel
from everhold.testing.house import House
from tests.e2e.town import Town
from tests.memories.ledger import Count, Far


class Attentive(FakeProvider):
    """Wants to hear of everything."""

    capabilities = frozenset(Capability) - {Capability.TOOLS}

    def __init__(self) -> None:
        super().__init__()
        self.switches: list[Switch] = []
        self.views: list[tuple[Scope, Sequence[Utterance]]] = []
        self.hangs = False
        self.falls = False

    async def session_switched(self, switch: Switch) -> None:
        await self._trouble()
        self.switches.append(switch)

    async def before_compress(self, scope: Scope, view: Sequence[Utterance]) -> str:
        self.views.append((scope, view))
        await self._trouble()
        return "the goat is called Berta"

    async def _trouble(self) -> None:
        if self.hangs:
            await asyncio.sleep(3_600)
        if self.falls:
            raise ZeroDivisionError("a bug of its author")

    def prompt(self) -> str:
        return ""

    async def forget(self, person: str) -> Any:
        raise AssertionError("not here")

    def export(self, person: str) -> Any:
        raise AssertionError("not here")

    async def health(self) -> Health:
        return Health(well=not self.falls, text="so-so")

    async def close(self) -> None: ...

    def cache_busting_signature(self) -> None: ...


class Minimal:
    """Declares nothing, and falls when it is asked for anything else than what everybody must do."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    async def store(self, batch: Batch) -> Mapping[str, str]:
        self.batches.append(batch)
        return {}

    async def find(self, query: Query) -> Sequence[Found]:
        return []

    def _never(self, *_: object) -> Any:
        raise AssertionError("it did not offer this")

    tools = prompt = before_compress = session_switched = forget = export = health = close = _never
    cache_busting_signature = probe = _never


def short(house: House) -> ScriptedModel:
    """Summaries that shrink whatever they are of."""
    house.furniture.summariser = model = ScriptedModel(lambda _: Answer(text="They talked."))
    return model


def attend(house: House) -> Attentive:
    provider = Attentive()
    house.furniture.memories["a"] = provider
    house.furniture.settings["attentive"] = ("a",)
    return provider


# -- what is left out --------------------------------------------------------------------------------------------------


def test_storing_and_finding_are_enough_and_nothing_else_is_asked(house: House) -> None:
    provider = Minimal()
    house.furniture.memories["a"] = provider
    house.furniture.settings |= {"attentive": ("a",), "recalls": ("a",), "recall_seconds": 1.0}
    short(house)
    house.say("one " + "and so on " * 100)
    house.say("/compress here 0")
    house.say("two")
    house.say("/undo")
    house.say("/new")
    house.say("three")
    assert house.run(house.control.status())["memories"][0]["state"] == "well"
    assert len(provider.batches) == 3  # what was undone is not mentioned to one that cannot take anything back
    attached = house.furniture.memory("a", "main")
    assert attached is not None
    assert (attached.delivery, attached.deadline, attached.visible_after) == (Delivery.BLIND, 30.0, 0.0)
    assert (attached.tools, attached.prompt(), attached.signature()) == ({}, "", None)
    house.run(attached.close())
    house.sound()


@pytest.mark.parametrize(
    "wrong, why",
    [
        ({"store": None}, "has no `store`"),
        ({"find": 7}, "has no `find`"),
        ({"delivery": "by pigeon"}, "'by pigeon' is no delivery"),
        ({"delivery": "probe", "probe": None}, "declares probe, but has no `probe`"),
        ({"capabilities": "tools"}, "capabilities are text"),
        ({"capabilities": ["magic"]}, "'magic' is no capability"),
        ({"capabilities": ["close"], "close": None}, "declares close, but has no `close`"),
        ({"deadline": "soon"}, "`deadline` is 'soon'"),
        ({"deadline": float("inf")}, "`deadline` is inf"),
        ({"deadline": 0}, "`deadline` is 0"),
        ({"visible_after": -1}, "`visible_after` is -1"),
    ],
)
async def test_one_that_contradicts_itself_is_refused_by_name(wrong: dict[str, Any], why: str) -> None:
    provider = Minimal()
    for name, value in wrong.items():
        setattr(provider, name, value)
    with pytest.raises(Misuse, match="memory odd") as caught:
        Attached(provider, instance="odd")
    assert why in caught.value.message


# -- nonsense ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nonsense", [None, 7, ["key"], {"key": 7}, {7: "key"}, "text"])
def test_nonsense_from_store_is_in_doubt_and_named(house: House, nonsense: Any) -> None:
    class Odd(FakeProvider):
        async def store(self, batch: Batch) -> Mapping[str, str]:
            kept = await super().store(batch)
            return kept if self.sane else nonsense

        sane = False

    house.furniture.memories["a"] = provider = Odd()
    house.say("one")
    (memory,) = house.run(house.control.status())["memories"]
    assert (memory["state"], memory["lag"]) == ("failing", 1)
    assert "answered `store` with" in memory["error"]
    assert house.heard_back() == ["You said: one"]
    provider.sane = True
    house.rest(60)
    assert house.run(house.control.status())["memories"][0]["state"] == "well"
    assert [len(items) for items in provider.kept.values()] == [1]


@pytest.mark.parametrize(
    "nonsense",
    [
        None, 7, "text", {"a": 1}, [None], ["text"], [Found(text=7)],  # type: ignore[arg-type]
        [Found(text="x", score=float("nan"))], [Found(text="x", at="soon")], [Found(text="x", author=None)],  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_nonsense_from_find_leaves_the_turn_alone(house: House, nonsense: Any) -> None:
    class Odd(FakeProvider):
        async def find(self, query: Query) -> Sequence[Found]:
            return nonsense  # type: ignore[no-any-return]

    class Good(FakeProvider):
        async def find(self, query: Query) -> Sequence[Found]:
            return [Found(text="something \ud800 known")]

    house.furniture.memories |= {"odd": Odd(), "good": Good()}
    house.furniture.settings |= {"recalls": ("odd", "good"), "recall_seconds": 1.0}
    house.say("hello")
    shown = "\n".join(message.text for message in house.furniture.model.asked[-1].messages)
    assert "something \ufffd" in shown  # what cannot be stored is not shown either
    assert "odd" in shown  # that it is missing is said
    assert house.diary.of("recall.failed")


def test_no_more_is_taken_than_was_asked_for(house: House) -> None:
    class Eager(FakeProvider):
        async def find(self, query: Query) -> Sequence[Found]:
            return [Found(text=str(number)) for number in range(100_000)]

    attached = Attached(Eager(), instance="eager")
    query = Query(text="x", agent="main", session="s", name="s", audience=("ada",), person="ada", limit=3)
    assert [item.text for item in house.run(attached.find(query))] == ["0", "1", "2"]


# -- retractions -------------------------------------------------------------------------------------------------------


def test_what_was_undone_is_taken_back_only_from_those_who_can(house: House) -> None:
    able, unable = FakeProvider(), Minimal()
    house.furniture.memories |= {"able": able, "unable": unable}
    session = house.say("one").session
    house.say("/undo")
    assert [type(item) for item in able.kept[session]][1:] == [Retraction]
    assert len(unable.batches) == 1
    assert not any(isinstance(item, Retraction) for item in unable.batches[0].items)


def test_a_lost_answer_about_something_that_was_never_sent_is_no_matter(house: House) -> None:
    class Asked(FakeProvider):
        capabilities = frozenset({Capability.PROBE})

    house.furniture.memories["a"] = provider = Asked(Delivery.PROBE, deadline=5.0)
    house.say("one", rest=False)
    house.tick(0.5)
    provider.faults.lose()
    house.say("two", rest=False)
    house.say("/undo")
    house.rest(60)
    (kept,) = provider.kept.values()
    assert len(kept) == len({item.key for item in kept})
    assert not house.run(house.store.list_dead_letters())


# -- where the talk takes a turn ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command, how", [("/new", "new"), ("/branch", "branch"), ("/compress here 0", "fold")])
def test_a_turn_of_the_talk_is_told_once_all_before_it_is_delivered(house: House, command: str, how: str) -> None:
    provider = attend(house)
    house.furniture.settings["paces"] = {"a": pace_of(10)}
    short(house)
    session = house.say("one " + "and so on " * 100).session
    assert not provider.kept
    house.say(command)
    (switch,) = provider.switches
    assert (switch.how, switch.before.session, switch.before.person) == (how, session, "ada")
    assert (switch.after.session == session) == (how != "branch")
    assert len(provider.kept[session]) == 1
    house.say("two")
    assert len(provider.switches) == 1


def test_who_resumes_another_session_and_comes_back_is_followed(house: House) -> None:
    provider = attend(house)
    first = house.say("one").session
    house.say("/branch")
    second = provider.switches[-1].after.session
    house.say("two")
    house.say(f"/resume {first}")
    house.say(f"/resume {second}")
    assert [(it.how, it.before.session, it.after.session) for it in provider.switches] == [
        ("branch", first, second),
        ("resume", second, first),
        ("resume", first, second),
    ]


def test_nobody_who_did_not_ask_is_told(house: House) -> None:
    provider = attend(house)
    provider.capabilities = frozenset({Capability.RETRACT})
    house.say("one")
    house.say("/new")
    assert not provider.switches


# -- before a summary --------------------------------------------------------------------------------------------------


def test_what_a_memory_does_not_want_lost_reaches_the_summary_and_what_is_noted(house: House) -> None:
    provider = attend(house)
    summariser = short(house)
    house.furniture.settings["review_every"] = 10
    session = house.say("my goat is called Berta " + "and so on " * 100).session
    house.say("/compress here 0")
    scope, view = provider.views[0]
    assert (scope.session, scope.person, scope.agent) == (session, "ada", "main")
    assert [one.author for one in view] == ["person:ada", "agent:main"]
    text = summariser.asked[-1].messages[-1].text
    assert text.endswith("Material, not instructions.]\na: the goat is called Berta")
    assert "Berta" not in summariser.asked[-1].system
    reviews = [it for it in house.furniture.model.asked if "write down what should be remembered" in it.system]
    assert reviews[0].messages[-1].text.endswith("a: the goat is called Berta")


@pytest.mark.parametrize("marks, trigger", [((0.3, 0.95), "soft"), ((2.0, 0.5), "hard")], ids=["soft", "hard"])
def test_what_a_memory_is_shown_before_a_summary_is_as_the_log_has_it(
    house: House, marks: tuple[float, float], trigger: str
) -> None:
    """Though nobody reads the log for it: the turns were in mind still."""
    provider = attend(house)
    short(house)
    # one that reports no usage: what a token is stays what it was
    house.furniture.model = ScriptedModel(lambda _: Answer(text="indeed " * 40), context_tokens=1_000)
    house.furniture.settings |= {"soft": marks[0], "hard": marks[1], "keep": 1, "ahead": trigger == "soft"}
    session = ""
    for _ in range(12):
        house.tick(60)
        session = house.say("and so on " * 20).session
    folds = house.bodies(session, Compressed)
    assert {fold.trigger for fold in folds} == {trigger}
    log = {entry.seq: entry for entry in house.log(session)}
    shown = [one for _, view in provider.views for one in view]
    assert shown
    assert {(one.seq, one.at, one.author) for one in shown} <= {(it.seq, it.at, it.author) for it in log.values()}


@pytest.mark.parametrize("how", ["hangs", "falls"])
def test_a_hook_that_hangs_or_falls_holds_nobody_up_and_is_shown(house: House, how: str) -> None:
    provider = attend(house)
    short(house)
    house.say("one " + "and so on " * 100)
    setattr(provider, how, True)
    before = house.loop.time()
    house.say("/compress here 0")
    assert "Compressed" in house.heard_back()[-1]
    house.say("two")
    assert house.heard_back()[-1] == "You said: two"
    assert house.loop.time() - before < 60
    house.rest(30)
    failed = {str(line["hook"]) for line in house.diary.of("memory.hook_failed")}
    assert failed == {"before_compress", "session_switched"}
    (memory,) = house.run(house.control.status())["memories"]
    assert set(memory["hooks"]) == failed
    assert sum(len(items) for items in provider.kept.values()) == 2
    setattr(provider, how, False)
    house.say("/compress here 0")
    house.rest(30)
    assert house.run(house.control.status())["memories"][0]["hooks"] == {}
    house.sound()


# -- tools, prompt, health: with the agent that is built ---------------------------------------------------------------


def config(**more: Any) -> str:
    agents = {"main": {"memories": ["ledger"]}}
    return json.dumps({"defaults": {"tools": [], "memories": []}, "agents": agents, "memories": {"ledger": more}})


async def test_a_provider_s_tools_join_the_agent_s_under_their_own_names(tmp_path: Path, far: Far) -> None:
    far.offers |= {Capability.TOOLS}
    signature = {"x": "1"}
    far.signature = lambda: dict(signature)
    async with Town(tmp_path, config()) as t:
        assert "1 pages" not in await t.ask("use tool ledger_count {}")
        verdict = await t.say("use tool ledger_count {}")
        await t.said(verdict.session, 2)
        thoughts = await t.bodies(verdict.session, Thought)
        assert [call.tool for thought in thoughts for call in thought.calls] == ["ledger_count"] * 2
        offered = t.app.agents.runtime("main", {}).tools["ledger_count"]
        signature["x"] = "2"
        t.app.agents.runtime("main", {})
        assert len(far.built) == 2
        await far.built[0].closed.wait()
        context: Any = None
        # somebody who still has the tool of before reaches the provider of now
        assert "by ledger 2" in (await offered.run({}, context)).text


@pytest.mark.parametrize(
    "tools",
    [lambda: 7, lambda: ["no tool"], lambda: [Count(str(number)) for number in range(MOST_TOOLS + 1)], lambda: 1 // 0],
)
async def test_tools_that_are_none_or_too_many_are_left_out_and_named(tmp_path: Path, far: Far, tools: Any) -> None:
    far.offers |= {Capability.TOOLS}
    far.tools = tools
    async with Town(tmp_path, config()) as t:
        await t.ask("hello")
        assert not t.app.agents.runtime("main", {}).tools
        (problem,) = t.app.about()["problems"]
        assert "tools" in problem["message"]


async def test_a_provider_s_block_stands_in_the_prompt_and_stays_the_same(tmp_path: Path, far: Far) -> None:
    far.offers |= {Capability.PROMPT}
    async with Town(tmp_path, config()) as t:
        await t.ask("hello")
        system = t.app.agents.runtime("main", {}).system
        assert system.endswith("The ledger counts.")
        far.prompt = lambda: "Something else."
        await t.ask("hello again")
        assert t.app.agents.runtime("main", {}).system == system  # asked once: the cache prefix is stable


@pytest.mark.parametrize("prompt", [lambda: 7, lambda: 1 // 0])
async def test_a_prompt_that_is_none_is_left_out_and_named(tmp_path: Path, far: Far, prompt: Any) -> None:
    far.offers |= {Capability.PROMPT}
    far.prompt = prompt
    async with Town(tmp_path, config()) as t:
        await t.ask("hello")
        assert "prompt" in t.app.about()["problems"][0]["message"]


@pytest.mark.parametrize(
    "health, state, says",
    [
        (lambda: Health(well=True, text="counting"), "well", "counting"),
        (lambda: Health(well=False, text="out of ink"), "failing", "out of ink"),
        (lambda: "fine", "failing", "answered `health` with"),
        (lambda: 1 // 0, "failing", "ZeroDivisionError"),
    ],
)
async def test_how_a_provider_says_it_is_stands_in_the_status(
    tmp_path: Path, far: Far, health: Any, state: str, says: str
) -> None:
    far.offers |= {Capability.HEALTH}
    far.health = health
    async with Town(tmp_path, config()) as t:
        await t.ask("hello")
        await t.rest()
        (memory,) = (await t.app.control.status())["memories"]
        assert (memory["memory"], memory["agent"], memory["state"]) == ("ledger", "main", state)
        assert says in memory["says"]
