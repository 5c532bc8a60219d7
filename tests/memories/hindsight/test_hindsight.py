"""Hindsight's adapter over the unmodified SDK: a document each, stored once, whatever the service does about it."""

from __future__ import annotations

import pytest
from msgspec import structs

from everhold.errors import EverholdError, InDoubt, Refused, Transient
from everhold.memories.hindsight.provider import HindsightMemory, make_document_id, make_operation_id
from everhold.testing.gateway import RecordingLogger
from everhold.testing.services.hindsight import HindsightService
from tests.memories.hindsight.conftest import Make
from tests.memories.memory_items import (
    deliver,
    make_batch,
    make_exchange,
    make_note,
    make_query,
    make_retraction,
    make_tool_context,
)


async def test_every_exchange_and_note_is_a_document_of_its_own(
    memory: HindsightMemory, service: HindsightService
) -> None:
    whole = make_batch(
        make_exchange(1, "I grow tea", "Which?", parent="s0", tags=("garden",)), make_note(5, "likes oolong")
    )
    remotes = await memory.store(whole)
    first, second = service.state.documents.values()
    assert first["text"] == "ada: I grow tea\n\nmain: Which?"
    assert {"agent:main", "session:s1", "person:ada", "parent:s0", "garden"} <= set(first["tags"])
    assert first["metadata"]["everhold"] == "s1:1"
    assert second["text"] == "likes oolong"
    assert remotes == {"s1:1": first["id"], "s1:5:note": second["id"]}
    assert len(service.find_requests("/memories$")) == 1
    assert set(await memory.probe(whole)) == {"s1:1", "s1:5:note"}


async def test_other_content_is_another_operation(memory: HindsightMemory) -> None:
    one = [{"document_id": "d", "content": "a"}]
    assert make_operation_id("b", one) == make_operation_id("b", one)
    assert make_operation_id("b", one) != make_operation_id("b", [{"document_id": "d", "content": "b"}])
    assert make_operation_id("b", one) != make_operation_id("c", one)


@pytest.mark.parametrize("how", ["after", "lose", "drop", "refuse", "hollow", "garbage", "empty", "twice"])
async def test_whatever_becomes_of_the_answer_it_is_stored_once(
    memory: HindsightMemory, service: HindsightService, how: str
) -> None:
    service.plan_fault(how, "/memories$", times=2)  # type: ignore[arg-type]
    await deliver(memory, make_batch(make_exchange(1, "one"), make_note(2, "two"), make_exchange(3, "three")))
    assert service.texts("main") == ["ada: one", "two", "ada: three"]
    assert service.state.order == [make_document_id(key) for key in ("s1:1", "s1:2:note", "s1:3")]
    assert service.state.loose == 0


async def test_accepted_is_not_stored(memory: HindsightMemory, service: HindsightService) -> None:
    service.holds_operations = True
    with pytest.raises(InDoubt, match="not stored it yet"):
        await memory.store(make_batch(make_exchange(1, "slow")))
    service.process_operations()
    await memory.store(make_batch(make_exchange(1, "slow")))
    assert service.texts("main") == ["ada: slow"]
    assert len(service.state.operations) == 1


async def test_an_operation_that_failed_is_tried_again(memory: HindsightMemory, service: HindsightService) -> None:
    service.failures_left = 2
    assert await deliver(memory, make_batch(make_exchange(1, "in the end"))) == 3
    assert service.texts("main") == ["ada: in the end"]


async def test_facts_dropped_in_silence_are_said_aloud(memory: HindsightMemory, service: HindsightService) -> None:
    service.loses_operations = True
    await memory.store(make_batch(make_exchange(1, "hello")))
    assert isinstance(memory.log, RecordingLogger)
    assert memory.log.find_events("memory.incomplete")


async def test_replacing_removing_and_undoing_follow_the_log(
    memory: HindsightMemory, service: HindsightService
) -> None:
    await memory.store(
        make_batch(make_note(1, "lives in Rome", fact="f1"), make_note(2, "has a cat"), make_exchange(4, "secret"))
    )
    await memory.store(make_batch(make_note(5, "lives in Oslo", action="replace", supersedes="s1:1:note", fact="f1")))
    await memory.store(
        make_batch(make_note(6, "has a cat", action="remove", supersedes="s1:2:note"), make_retraction(7, 4))
    )
    assert service.texts("main") == ["lives in Oslo"]
    elsewhere = make_note(3, "lives in Kyoto", action="replace", fact="f1", session="s2")
    await memory.store(make_batch(elsewhere, name="other"))
    await memory.store(make_batch(elsewhere, name="other"))
    assert service.texts("main") == ["lives in Kyoto"]


async def test_nothing_said_sends_nothing(memory: HindsightMemory, service: HindsightService) -> None:
    assert await memory.store(make_batch(make_exchange(1, " ", ""))) == {"s1:1": make_document_id("s1:1")}
    assert await memory.probe(make_batch(make_exchange(1, " ", ""))) == ["s1:1"]
    assert service.state.banks == {}


@pytest.mark.parametrize(
    "template, banks",
    [
        ("{agent}", {"main"}),
        ("{agent}-{person}", {"main-ada", "main-bob"}),
        ("all", {"all"}),
        ("{session}", {"agent-main-fake-dm-1"}),
    ],
)
async def test_banks_are_named_by_their_template(
    make: Make, service: HindsightService, template: str, banks: set[str]
) -> None:
    memory = make(bank=template)
    await memory.store(make_batch(make_exchange(1, "hers"), make_exchange(3, "his", who="bob")))
    assert set(service.state.banks) == banks
    assert [found.text for found in await memory.find(make_query("hers"))] == ["ada: hers"]
    await memory.store(make_batch(make_retraction(9, 1)))
    assert [text for bank in banks for text in service.texts(bank)] == ["bob: his"]


async def test_a_bank_is_told_what_it_is_for(make: Make, service: HindsightService) -> None:
    memory = make(mission="know the garden", template={"version": "1"})
    service.plan_fault("lose", "/import$")
    await deliver(memory, make_batch(make_exchange(1, "hello")))
    assert service.state.banks["main"]["mission"] == "know the garden"
    assert service.state.banks["main"]["template"]["version"] == "1"


@pytest.mark.parametrize(
    "status, expected",
    [(401, Transient), (402, Transient), (429, Transient), (422, Refused), (400, Refused), (503, InDoubt)],
)
async def test_what_the_service_says_tells_what_to_do(
    memory: HindsightMemory, service: HindsightService, status: int, expected: type[EverholdError]
) -> None:
    service.plan_fault("refuse", "/memories$", status=status, retry_after=7.0 if status == 429 else None)
    with pytest.raises(expected) as caught:
        await memory.store(make_batch(make_exchange(1, "hello")))
    if isinstance(caught.value, Transient) and status == 429:
        assert caught.value.retry_after == 7.0


async def test_the_sdk_itself_repeats_nothing(memory: HindsightMemory, service: HindsightService) -> None:
    """It would, looking for something: whoever asks has a deadline, and asks again if there is time."""
    await memory.store(make_batch(make_exchange(1, "I grow tea")))
    service.plan_fault("refuse", "/memories/recall$", status=503)
    before = len(service.find_requests("/memories/recall$"))
    with pytest.raises(Transient):
        await memory.find(make_query("tea"))
    assert len(service.find_requests("/memories/recall$")) == before + 1


async def test_a_service_that_is_not_there_was_told_nothing(memory: HindsightMemory, service: HindsightService) -> None:
    await service.stop()
    with pytest.raises(Transient):
        await memory.store(make_batch(make_exchange(1, "hello")))
    with pytest.raises(Transient):
        await memory.find(make_query("hello"))
    assert not (await memory.health()).well
    await service.start()
    await deliver(memory, make_batch(make_exchange(1, "hello")))
    assert service.texts("main") == ["ada: hello"]
    assert (await memory.health()).well


async def test_recall_stays_within_its_company(memory: HindsightMemory, service: HindsightService) -> None:
    await memory.store(make_batch(make_exchange(4, "my secret garden"), name="dm"))
    await memory.store(make_batch(make_exchange(1, "our secret garden", group="club", session="s2"), name="club"))
    (mine,) = await memory.find(make_query("secret garden", name="dm"))
    assert (mine.text, mine.session, mine.seq, mine.person, mine.key) == (
        "ada: my secret garden",
        "s1",
        3,
        "ada",
        "s1:4",
    )
    assert [it.text for it in await memory.find(make_query("secret garden", group="club"))] == [
        "ada: our secret garden"
    ]
    assert await memory.find(make_query("secret garden", who="bob")) == []
    assert await memory.find(make_query("secret garden", agent="coder")) == ()
    # what somebody else put into the bank without a name on it is nobody's to hear
    service.state.documents["main", "loose"] = {**service.state.documents["main", make_document_id("s1:4")], "tags": []}
    assert len(await memory.find(make_query("secret garden", name="dm"))) == 1


async def test_another_agent_in_the_same_bank_recalls_nothing_unless_it_may(make: Make) -> None:
    await make(bank="all").store(make_batch(make_exchange(1, "for your ears")))
    assert await make(bank="all", agent="coder").find(make_query("ears", agent="coder")) == []
    assert len(await make(bank="all", agent="coder", share_agents=True).find(make_query("ears", agent="coder"))) == 1


async def test_the_tools_carry_the_names_people_know_and_answer(
    memory: HindsightMemory, service: HindsightService
) -> None:
    run = {tool.spec.name: tool.run for tool in memory.tools()}
    assert list(run) == ["hindsight_retain", "hindsight_recall", "hindsight_reflect"]
    kept = await run["hindsight_retain"]({"content": "likes tea", "tags": ["Tea time"]}, make_tool_context())
    assert [it.text for it in kept.notes] == ["likes tea"]
    await memory.store(make_batch(make_exchange(1, "I grow tea")))
    assert "I grow tea" in (await run["hindsight_recall"]({"query": "tea"}, make_tool_context())).text
    assert "I grow tea" in (await run["hindsight_reflect"]({"query": "tea"}, make_tool_context())).text
    for who, group in (("bob", ""), ("ada", "club")):
        for name in ("hindsight_recall", "hindsight_reflect"):
            assert "grow" not in (await run[name]({"query": "tea"}, make_tool_context(who, group))).text
    assert (await run["hindsight_recall"]({}, make_tool_context())).error


async def test_forgetting_deletes_what_can_be_and_names_what_cannot(
    memory: HindsightMemory, service: HindsightService
) -> None:
    await memory.store(make_batch(make_exchange(1, "mine"), make_note(2, "a fact")))
    hers, his = make_exchange(3, "ours", group="club"), make_exchange(3, "and mine", who="bob", group="club")
    await memory.store(make_batch(structs.replace(hers, heard=(*hers.heard, *his.heard))))
    assert sorted([found.text async for found in memory.export("ada")]) == [
        "a fact",
        "ada: mine",
        "ada: ours\n\nbob: and mine",
    ]
    forgotten = await memory.forget("ada")
    assert forgotten.deleted == 2
    assert len(forgotten.kept) == 1
    assert service.texts("main") == ["ada: ours\n\nbob: and mine"]


@pytest.mark.parametrize("bank", ["{agent}-{person}", "{agent}-{session}", "{person}"])
async def test_forgetting_reaches_every_bank_also_after_a_restart(
    make: Make, service: HindsightService, bank: str
) -> None:
    await make(bank=bank).store(make_batch(make_exchange(1, "mine alone"), name="dm-ada"))
    await make(bank=bank).store(
        make_batch(make_exchange(1, "mine in the club", group="club", session="s2"), name="club")
    )
    await make(bank=bank).store(make_batch(make_exchange(1, "not mine", who="bob", session="s3"), name="dm-bob"))
    await make(bank=bank, agent="main2").store(
        make_batch(make_exchange(1, "to another", agent="main2", session="s4"), name="x")
    )
    memory = make(bank=bank)
    assert sorted([found.text async for found in memory.export("ada")]) == ["ada: mine alone", "ada: mine in the club"]
    forgotten = await memory.forget("ada")
    assert (forgotten.deleted, forgotten.kept) == (2, ())
    assert sorted(row["text"] for row in service.state.documents.values()) == ["ada: to another", "bob: not mine"]


async def test_banks_that_a_server_does_not_list_are_named(make: Make, service: HindsightService) -> None:
    await make(bank="{agent}-{session}").store(make_batch(make_exchange(1, "mine"), name="dm-ada"))
    service.plan_fault("refuse", "/banks$", method="GET", status=404)
    forgotten = await make(bank="{agent}-{session}").forget("ada")
    assert forgotten.deleted == 0
    assert "{agent}-{session}" in forgotten.kept[0]


async def test_any_changed_setting_changes_the_signature_and_shows_no_key(make: Make) -> None:
    first = make(api_key="sk-one").cache_busting_signature()
    assert first == make(api_key="sk-one").cache_busting_signature()
    for change in ({"api_key": "sk-two"}, {"bank": "other"}, {"tags": ["x"]}):
        assert make(**{"api_key": "sk-one", **change}).cache_busting_signature() != first
    assert "sk-one" not in str(first)
