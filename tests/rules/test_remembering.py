"""The name a memory files a session under: resolved with its first memory, recorded once, and then kept."""

from __future__ import annotations

from everhold.core.entries import Call, Changed, MemoryNameSet, Noted
from everhold.core.naming import Origin, Rule, name
from everhold.errors import Transient
from everhold.ports.model import Answer
from everhold.ports.tool import Effect, Result
from everhold.testing.fakes import FakeProvider, FakeTool, ScriptedModel
from everhold.testing.house import House


def remembering(house: House, *instances: str) -> dict[str, FakeProvider]:
    providers = {instance: FakeProvider() for instance in instances}
    house.furniture.memories = dict(providers)
    house.furniture.settings["naming"] = lambda memory, origin: f"{memory}-{name(origin, Rule()).text}"
    return providers


def named(house: House, session: str) -> list[MemoryNameSet]:
    return [body.change for body in house.bodies(session, Changed) if isinstance(body.change, MemoryNameSet)]


def test_all_turns_of_a_chat_go_on_in_one_memory_session(house: House) -> None:
    provider = remembering(house, "a")["a"]
    session = house.say("one", chat="77").session
    house.say("/new", chat="77")
    house.say("two", chat="77")
    house.say("/title My Plans", chat="77")
    house.say("three", chat="77")
    house.crash()
    house.start()
    house.say("four", chat="77")
    assert list(provider.kept) == ["a-agent-main-fake-dm-77"]
    assert len(provider.kept["a-agent-main-fake-dm-77"]) == 4
    assert named(house, session) == [MemoryNameSet(memory="a", name="a-agent-main-fake-dm-77")]
    house.sound()


def test_the_name_stays_although_the_rule_was_changed(house: House) -> None:
    provider = remembering(house, "a")["a"]
    house.say("one", chat="77")
    house.furniture.settings["naming"] = lambda memory, origin: "something-else"
    house.say("two", chat="77")
    assert list(provider.kept) == ["a-agent-main-fake-dm-77"]


def test_a_title_with_memory_moves_the_name_from_there_on(house: House) -> None:
    provider = remembering(house, "a")["a"]
    session = house.say("before", chat="77").session
    house.say("/title The Garden --memory", chat="77")
    house.say("after", chat="77")
    first, second = provider.kept
    assert first == "a-agent-main-fake-dm-77"
    assert second.startswith("a-The-Garden-")
    assert [len(items) for items in provider.kept.values()] == [1, 1]
    assert len(named(house, session)) == 2


def test_what_was_pending_goes_under_the_name_of_its_time(house: House) -> None:
    provider = remembering(house, "a")["a"]
    house.say("first", chat="77")
    provider.faults.fail(Transient("down"), times=3)
    house.say("pending", chat="77", rest=False)
    house.tick(0.5)
    house.say("/title Elsewhere --memory", chat="77", rest=False)
    house.tick(0.5)
    house.say("later", chat="77", rest=False)
    house.rest(60)
    kept = {key: [item.heard[0].text for item in items] for key, items in provider.kept.items()}  # type: ignore[union-attr]
    assert list(kept.values()) == [["first", "pending"], ["later"]]


def test_each_instance_has_a_name_of_its_own(house: House) -> None:
    providers = remembering(house, "a", "b")
    house.say("one", chat="77")
    assert [next(iter(provider.kept)) for provider in providers.values()] == [
        "a-agent-main-fake-dm-77",
        "b-agent-main-fake-dm-77",
    ]


def test_an_agent_nobody_spoke_to_appears_in_no_memory(house: House) -> None:
    provider = remembering(house, "a")["a"]
    house.say("chatter", addressed=False, kind="group")
    house.say("/status", chat="other")
    house.crash()
    house.start()
    house.rest(10)
    assert provider.kept == {}


def test_a_terminal_is_named_by_the_strategy(house: House) -> None:
    origins: list[Origin] = []
    provider = remembering(house, "a")["a"]

    def naming(memory: str, origin: Origin) -> str:
        origins.append(origin)
        return name(origin, Rule(strategy="per-directory")).text

    house.furniture.settings["naming"] = naming
    house.say("hello", directory="/home/ada/garden", repo="/home/ada/garden")
    assert origins[0].address == ""
    assert next(iter(provider.kept)).startswith("garden-")


def test_a_note_that_replaces_another_brings_what_that_said(house: House) -> None:
    provider = remembering(house, "a")["a"]
    house.furniture.tools["memory"] = FakeTool(
        "memory", Effect.PURE, act=lambda arguments, _: Result(text="noted", notes=(Noted(**arguments),))
    )

    def asks(text: str, arguments: dict[str, object]) -> list[Answer]:
        return [Answer(text="", calls=(Call(id=text, tool="memory", arguments=arguments),)), Answer(text="done")]

    house.furniture.model = ScriptedModel(asks("a", {"text": "lives in Rome"}))
    session = house.say("I live in Rome").session
    first = next(entry for entry in house.log(session) if isinstance(entry.body, Noted))
    moved = {"text": "lives in Oslo", "action": "replace", "supersedes": first.seq}
    house.furniture.model = ScriptedModel(asks("b", moved))
    house.say("I moved to Oslo")
    assert provider.replaced == {f"{session}:{first.seq}:note": "lives in Rome"}
    assert provider.heard_by == {f"{session}:{first.seq}:note": ("person:ada",)}


def test_a_fact_that_was_noted_elsewhere_is_known_by_its_id(house: House) -> None:
    provider = remembering(house, "a")["a"]
    house.furniture.tools["memory"] = FakeTool(
        "memory", Effect.PURE, act=lambda arguments, _: Result(text="noted", notes=(Noted(**arguments),))
    )
    for chat, arguments in (
        ("1", {"text": "lives in Rome", "fact": "f1"}),
        ("2", {"text": "lives in Oslo", "fact": "f1", "action": "replace"}),
    ):
        call = Call(id="c", tool="memory", arguments=arguments)
        house.furniture.model = ScriptedModel([Answer(text="", calls=(call,)), Answer(text="done")])
        house.say(arguments["text"], chat=chat)
    assert provider.replaced == {"f1": "lives in Rome"}
    assert provider.heard_by == {"f1": ("person:ada",)}


def test_what_is_undone_says_who_heard_it(house: House) -> None:
    provider = remembering(house, "a")["a"]
    house.say("a slip of the tongue", chat="77")
    house.say("/undo", chat="77")
    (heard_by,) = provider.heard_by.values()
    assert heard_by == ("person:ada",)
