"""The session name in a memory: resolved with the first item, recorded once, and then kept."""

from __future__ import annotations

from everhold.core.entries import Changed, MemoryNameSet, Noted, ToolCall
from everhold.core.memory_naming import NamingRule, SessionOrigin, choose_memory_name
from everhold.errors import Transient
from everhold.ports.model import ModelResponse
from everhold.ports.tool import ToolEffect, ToolResult
from everhold.testing.fakes import FakeMemoryProvider, FakeModel, FakeTool
from everhold.testing.gateway import InProcessGateway


def remembering(gateway: InProcessGateway, *instances: str) -> dict[str, FakeMemoryProvider]:
    providers = {instance: FakeMemoryProvider() for instance in instances}
    gateway.runtimes.memories = dict(providers)
    gateway.runtimes.settings["choose_memory_name"] = lambda memory, origin: (
        f"{memory}-{choose_memory_name(origin, NamingRule()).text}"
    )
    return providers


def named(gateway: InProcessGateway, session: str) -> list[MemoryNameSet]:
    return [body.change for body in gateway.read_bodies(session, Changed) if isinstance(body.change, MemoryNameSet)]


def test_all_turns_of_a_chat_use_one_memory_session(gateway: InProcessGateway) -> None:
    provider = remembering(gateway, "a")["a"]
    session = gateway.send_message("one", chat="77").session
    gateway.send_message("/new", chat="77")
    gateway.send_message("two", chat="77")
    gateway.send_message("/title My Plans", chat="77")
    gateway.send_message("three", chat="77")
    gateway.crash()
    gateway.start()
    gateway.send_message("four", chat="77")
    assert list(provider.kept) == ["a-agent-main-fake-dm-77"]
    assert len(provider.kept["a-agent-main-fake-dm-77"]) == 4
    assert named(gateway, session) == [MemoryNameSet(memory="a", name="a-agent-main-fake-dm-77")]
    gateway.assert_sound()


def test_the_name_stays_after_the_naming_rule_changes(gateway: InProcessGateway) -> None:
    provider = remembering(gateway, "a")["a"]
    gateway.send_message("one", chat="77")
    gateway.runtimes.settings["choose_memory_name"] = lambda memory, origin: "something-else"
    gateway.send_message("two", chat="77")
    assert list(provider.kept) == ["a-agent-main-fake-dm-77"]


def test_a_title_that_names_the_memory_applies_from_then_on(gateway: InProcessGateway) -> None:
    provider = remembering(gateway, "a")["a"]
    session = gateway.send_message("before", chat="77").session
    gateway.send_message("/title The Garden --memory", chat="77")
    gateway.send_message("after", chat="77")
    first, second = provider.kept
    assert first == "a-agent-main-fake-dm-77"
    assert second.startswith("a-The-Garden-")
    assert [len(items) for items in provider.kept.values()] == [1, 1]
    assert len(named(gateway, session)) == 2


def test_pending_items_keep_the_name_of_their_time(gateway: InProcessGateway) -> None:
    provider = remembering(gateway, "a")["a"]
    gateway.send_message("first", chat="77")
    provider.faults.fail_next(Transient("down"), times=3)
    gateway.send_message("pending", chat="77", rest=False)
    gateway.pass_time(0.5)
    gateway.send_message("/title Elsewhere --memory", chat="77", rest=False)
    gateway.pass_time(0.5)
    gateway.send_message("later", chat="77", rest=False)
    gateway.run_until_idle(60)
    kept = {key: [item.heard[0].text for item in items] for key, items in provider.kept.items()}  # type: ignore[union-attr]
    assert list(kept.values()) == [["first", "pending"], ["later"]]


def test_each_memory_has_its_own_name_for_a_session(gateway: InProcessGateway) -> None:
    providers = remembering(gateway, "a", "b")
    gateway.send_message("one", chat="77")
    assert [next(iter(provider.kept)) for provider in providers.values()] == [
        "a-agent-main-fake-dm-77",
        "b-agent-main-fake-dm-77",
    ]


def test_an_unused_agent_appears_in_no_memory(gateway: InProcessGateway) -> None:
    provider = remembering(gateway, "a")["a"]
    gateway.send_message("chatter", addressed=False, kind="group")
    gateway.send_message("/status", chat="other")
    gateway.crash()
    gateway.start()
    gateway.run_until_idle(10)
    assert provider.kept == {}


def test_a_terminal_session_is_named_by_the_strategy(gateway: InProcessGateway) -> None:
    origins: list[SessionOrigin] = []
    provider = remembering(gateway, "a")["a"]

    def naming(memory: str, origin: SessionOrigin) -> str:
        origins.append(origin)
        return choose_memory_name(origin, NamingRule(strategy="per-directory")).text

    gateway.runtimes.settings["choose_memory_name"] = naming
    gateway.send_message("hello", directory="/home/ada/garden", repo="/home/ada/garden")
    assert origins[0].address == ""
    assert next(iter(provider.kept)).startswith("garden-")


def test_a_replacing_note_contains_the_replaced_text(gateway: InProcessGateway) -> None:
    provider = remembering(gateway, "a")["a"]
    gateway.runtimes.tools["memory"] = FakeTool(
        "memory", ToolEffect.PURE, act=lambda arguments, _: ToolResult(text="noted", notes=(Noted(**arguments),))
    )

    def asks(text: str, arguments: dict[str, object]) -> list[ModelResponse]:
        return [
            ModelResponse(text="", calls=(ToolCall(id=text, tool="memory", arguments=arguments),)),
            ModelResponse(text="done"),
        ]

    gateway.runtimes.model = FakeModel(asks("a", {"text": "lives in Rome"}))
    session = gateway.send_message("I live in Rome").session
    first = next(entry for entry in gateway.read_log(session) if isinstance(entry.body, Noted))
    moved = {"text": "lives in Oslo", "action": "replace", "supersedes": first.seq}
    gateway.runtimes.model = FakeModel(asks("b", moved))
    gateway.send_message("I moved to Oslo")
    assert provider.replaced == {f"{session}:{first.seq}:note": "lives in Rome"}
    assert provider.heard_by == {f"{session}:{first.seq}:note": ("person:ada",)}


def test_a_fact_from_another_session_is_replaced_by_its_id(gateway: InProcessGateway) -> None:
    provider = remembering(gateway, "a")["a"]
    gateway.runtimes.tools["memory"] = FakeTool(
        "memory", ToolEffect.PURE, act=lambda arguments, _: ToolResult(text="noted", notes=(Noted(**arguments),))
    )
    for chat, arguments in (
        ("1", {"text": "lives in Rome", "fact": "f1"}),
        ("2", {"text": "lives in Oslo", "fact": "f1", "action": "replace"}),
    ):
        call = ToolCall(id="c", tool="memory", arguments=arguments)
        gateway.runtimes.model = FakeModel([ModelResponse(text="", calls=(call,)), ModelResponse(text="done")])
        gateway.send_message(arguments["text"], chat=chat)
    assert provider.replaced == {"f1": "lives in Rome"}
    assert provider.heard_by == {"f1": ("person:ada",)}


def test_a_retraction_contains_its_audience(gateway: InProcessGateway) -> None:
    provider = remembering(gateway, "a")["a"]
    gateway.send_message("a slip of the tongue", chat="77")
    gateway.send_message("/undo", chat="77")
    (heard_by,) = provider.heard_by.values()
    assert heard_by == ("person:ada",)
