"""Hindsight's adapter over the unmodified SDK: one document per item, stored once, also when the service fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from msgspec import structs

from everhold.errors import EverholdError, InDoubt, Refused, Transient
from everhold.memories.hindsight.client import find_environment_proxy
from everhold.memories.hindsight.provider import HindsightMemory, make_operation_id
from everhold.memories.scope import make_document_id
from everhold.testing.gateway import RecordingLogger
from everhold.testing.services.hindsight import HindsightService
from tests.memories.hindsight.conftest import Make
from tests.memories.memory_items import (
    AT,
    confirm,
    deliver,
    forget,
    make_batch,
    make_exchange,
    make_linked_present,
    make_note,
    make_query,
    make_retraction,
    make_tool_context,
    read_tool,
)
from tests.memories.service_failures import check_outage, check_refusal


async def test_every_exchange_and_note_is_one_document(memory: HindsightMemory, service: HindsightService) -> None:
    whole = make_batch(
        make_exchange(1, "I grow tea", "Which?", parent="s0", tags=("garden",)), make_note(5, "likes oolong")
    )
    remotes = await memory.store(whole)
    first, second = service.state.documents.values()
    assert first["text"] == "ada: I grow tea\n\nmain: Which?"
    assert {"agent:main", "session:s1", "person:ada", "parent:s0", "garden"} <= set(first["tags"])
    assert {"key:s1:1", "speaker:ada"} <= set(first["tags"])
    assert not first["metadata"], "Hindsight would show it to its language model"
    assert second["text"] == "likes oolong"
    assert remotes == {"s1:1": first["id"], "s1:5:note": second["id"]}
    assert len(service.find_requests("/memories$")) == 1
    assert set(await memory.probe(whole)) == {"s1:1", "s1:5:note"}


async def test_another_content_is_another_operation(memory: HindsightMemory) -> None:
    one = [{"document_id": "d", "content": "a"}]
    assert make_operation_id("b", one) == make_operation_id("b", one)
    assert make_operation_id("b", one) != make_operation_id("b", [{"document_id": "d", "content": "b"}])
    assert make_operation_id("b", one) != make_operation_id("c", one)


@pytest.mark.parametrize("how", ["after", "lose", "drop", "refuse", "hollow", "garbage", "empty", "twice"])
async def test_an_item_is_stored_once_even_if_the_answer_is_lost(
    memory: HindsightMemory, service: HindsightService, how: str
) -> None:
    service.plan_fault(how, "/memories$", times=2)  # type: ignore[arg-type]
    await deliver(memory, make_batch(make_exchange(1, "one"), make_note(2, "two"), make_exchange(3, "three")))
    assert service.texts("main") == ["ada: one", "two", "ada: three"]
    assert service.state.order == [make_document_id(key) for key in ("s1:1", "s1:2:note", "s1:3")]
    assert service.state.loose == 0


async def test_an_accepted_item_is_not_yet_stored(memory: HindsightMemory, service: HindsightService) -> None:
    service.holds_operations = True
    with pytest.raises(InDoubt, match="not stored it yet"):
        await memory.store(make_batch(make_exchange(1, "slow")))
    service.process_operations()
    await memory.store(make_batch(make_exchange(1, "slow")))
    assert service.texts("main") == ["ada: slow"]
    assert len(service.state.operations) == 1


async def test_a_failed_operation_is_retried(memory: HindsightMemory, service: HindsightService) -> None:
    service.failures_left = 2
    assert await deliver(memory, make_batch(make_exchange(1, "in the end"))) == 3
    assert service.texts("main") == ["ada: in the end"]


async def test_facts_that_were_silently_dropped_are_reported(
    memory: HindsightMemory, service: HindsightService
) -> None:
    service.loses_operations = True
    await memory.store(make_batch(make_exchange(1, "hello")))
    assert isinstance(memory.log, RecordingLogger)
    assert memory.log.find_events("memory.incomplete")


async def test_replacements_removals_and_undos_are_applied(memory: HindsightMemory, service: HindsightService) -> None:
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


async def test_a_silent_batch_sends_nothing(memory: HindsightMemory, service: HindsightService) -> None:
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
async def test_banks_are_named_by_the_template(
    make: Make, service: HindsightService, template: str, banks: set[str]
) -> None:
    memory = make(bank=template)
    await memory.store(make_batch(make_exchange(1, "hers"), make_exchange(3, "his", who="bob")))
    assert set(service.state.banks) == banks
    assert [found.text for found in await memory.find(make_query("hers"))] == ["ada: hers"]
    await memory.store(make_batch(make_retraction(9, 1)))
    assert [text for bank in banks for text in service.texts(bank)] == ["bob: his"]


async def test_a_bank_gets_its_mission(make: Make, service: HindsightService) -> None:
    memory = make(mission="know the garden", template={"version": "1"})
    service.plan_fault("lose", "/import$")
    await deliver(memory, make_batch(make_exchange(1, "hello")))
    assert service.state.banks["main"]["mission"] == "know the garden"
    assert service.state.banks["main"]["template"]["version"] == "1"


@pytest.mark.parametrize(
    "status, expected",
    [(401, Transient), (402, Transient), (429, Transient), (422, Refused), (400, Refused), (503, InDoubt)],
)
async def test_each_http_status_maps_to_its_error(
    memory: HindsightMemory, service: HindsightService, status: int, expected: type[EverholdError]
) -> None:
    await check_refusal(memory, service, "/memories$", status, expected)


async def test_the_sdk_does_not_retry(memory: HindsightMemory, service: HindsightService) -> None:
    """The SDK would retry a search by default. The caller has a deadline, and retries if there is time."""
    await memory.store(make_batch(make_exchange(1, "I grow tea")))
    service.plan_fault("refuse", "/memories/recall$", status=503)
    before = len(service.find_requests("/memories/recall$"))
    with pytest.raises(Transient):
        await memory.find(make_query("tea"))
    assert len(service.find_requests("/memories/recall$")) == before + 1


async def test_an_unreachable_service_received_nothing(memory: HindsightMemory, service: HindsightService) -> None:
    await check_outage(memory, service)
    assert service.texts("main") == ["ada: hello"]


async def test_recall_stays_within_its_audience(memory: HindsightMemory, service: HindsightService) -> None:
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
    # untagged documents that others put into the bank are shown to no one
    service.state.documents["main", "loose"] = {**service.state.documents["main", make_document_id("s1:4")], "tags": []}
    assert len(await memory.find(make_query("secret garden", name="dm"))) == 1


async def test_another_agent_in_the_same_bank_recalls_nothing_unless_allowed(make: Make) -> None:
    await make(bank="all").store(make_batch(make_exchange(1, "for your ears")))
    assert await make(bank="all", agent="coder").find(make_query("ears", agent="coder")) == []
    assert len(await make(bank="all", agent="coder", share_agents=True).find(make_query("ears", agent="coder"))) == 1


async def test_the_tools_have_the_vendor_s_names_and_work(memory: HindsightMemory, service: HindsightService) -> None:
    run = {tool.spec.name: tool.run for tool in memory.tools()}
    assert list(run) == ["hindsight_retain", "hindsight_recall", "hindsight_reflect"]
    kept = await run["hindsight_retain"]({"content": "likes tea", "tags": ["Tea time"]}, make_tool_context())
    assert [it.text for it in kept.notes] == ["likes tea"]
    await memory.store(make_batch(make_exchange(1, "I grow tea")))
    assert "I grow tea" in read_tool(await run["hindsight_recall"]({"query": "tea"}, make_tool_context()))
    assert "I grow tea" in read_tool(await run["hindsight_reflect"]({"query": "tea"}, make_tool_context()))
    for who, group in (("bob", ""), ("ada", "club")):
        for name in ("hindsight_recall", "hindsight_reflect"):
            assert "grow" not in read_tool(await run[name]({"query": "tea"}, make_tool_context(who, group)))
    assert (await run["hindsight_recall"]({}, make_tool_context())).error


@pytest.mark.parametrize("since, shown", [(0.0, True), (AT * 2, False)])
async def test_a_reflection_uses_nothing_of_a_nick_that_was_somebody_elses_before(
    make: Make, since: float, shown: bool
) -> None:
    memory = make(bank="all")
    run = {tool.spec.name: tool.run for tool in memory.tools()}
    await memory.store(make_batch(make_exchange(1, "I grow tea", who="irc:ada")))
    context = structs.replace(make_tool_context(), present=make_linked_present("irc:ada", since))
    assert ("grow" in read_tool(await run["hindsight_reflect"]({"query": "tea"}, context))) is shown


async def test_forgetting_deletes_documents_and_names_the_rest(
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
    forgotten = await forget(memory, "ada")
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
    forgotten = await forget(memory, "ada")
    assert (forgotten.deleted, forgotten.kept) == (2, [])
    assert sorted(row["text"] for row in service.state.documents.values()) == ["ada: to another", "bob: not mine"]


async def test_forgetting_deletes_the_operations_that_keep_the_text_and_names_the_request_log(
    memory: HindsightMemory, service: HindsightService
) -> None:
    await memory.store(make_batch(make_exchange(1, "mine")))
    await memory.store(make_batch(make_exchange(3, "not mine", who="bob", session="s2")))
    forgotten = await forget(memory, "ada")
    assert [row["items"][0]["content"] for row in service.state.operations.values()] == ["bob: not mine"]
    assert set(await confirm(memory, forgotten)) == {"confirmed"}
    (log,) = [it for it in forgotten.deletions if it.state == "cannot"]
    assert log.hidden
    assert "llm_requests" in log.reason
    assert [row["text"] for row in service.state.llm_requests] == ["ada: mine", "bob: not mine"]


async def test_a_document_that_comes_back_is_not_confirmed(memory: HindsightMemory, service: HindsightService) -> None:
    await memory.store(make_batch(make_exchange(1, "mine")))
    before = dict(service.state.documents)
    forgotten = await forget(memory, "ada")
    service.state.documents.update(before)
    assert "asked" in await confirm(memory, forgotten)
    service.state.documents.clear()
    await memory.store(make_batch(make_exchange(5, "said afterwards")))
    assert set(await confirm(memory, forgotten)) == {"confirmed"}


async def test_what_was_consolidated_of_deleted_documents_is_read_back_as_recall_reads(
    memory: HindsightMemory, service: HindsightService
) -> None:
    """It has the tags of the audience, and neither a document nor the tag of a person."""
    await memory.store(make_batch(make_exchange(1, "I live in zanzibar")))
    (row,) = service.state.documents.values()
    scope = {"bank": "main", "text": "somebody lives in zanzibar", "tags": row["scopes"][0], "at": row["at"]}
    service.state.observations.append(scope)
    forgotten = await forget(memory, "ada")
    assert "zanzibar" in (await memory.find(make_query("where")))[0].text
    assert "asked" in await confirm(memory, forgotten)
    await memory.store(make_batch(make_exchange(5, "said afterwards")))
    assert "asked" in await confirm(memory, forgotten), "it is older than what was deleted"
    service.state.observations.clear()
    assert set(await confirm(memory, forgotten)) == {"confirmed"}


async def test_what_hindsight_is_still_storing_is_waited_for(
    memory: HindsightMemory, service: HindsightService
) -> None:
    service.holds_operations = True
    with pytest.raises(InDoubt):
        await memory.store(make_batch(make_exchange(1, "mine")))
    with pytest.raises(Transient, match="has not finished storing"):
        await forget(memory, "ada")
    service.process_operations()
    forgotten = await forget(memory, "ada")
    assert forgotten.deleted == 1
    assert service.state.documents == {}


async def test_a_document_with_erased_words_goes_though_others_speak_in_it(
    memory: HindsightMemory, service: HindsightService
) -> None:
    hers, his = make_exchange(3, "ours", group="club"), make_exchange(3, "and mine", who="bob", group="club")
    await memory.store(make_batch(structs.replace(hers, heard=(*hers.heard, *his.heard))))
    forgotten = await forget(memory, "ada", keys=(hers.key,))
    assert (forgotten.kept, service.texts("main")) == ([], [])
    assert set(await confirm(memory, forgotten)) == {"confirmed"}


async def test_banks_that_a_server_does_not_list_are_named(make: Make, service: HindsightService) -> None:
    await make(bank="{agent}-{session}").store(make_batch(make_exchange(1, "mine"), name="dm-ada"))
    service.plan_fault("refuse", "/banks$", method="GET", status=404)
    forgotten = await forget(make(bank="{agent}-{session}"), "ada")
    assert forgotten.deleted == 0
    assert "{agent}-{session}" in forgotten.kept[0]


async def test_any_changed_setting_changes_the_signature_and_shows_no_key(make: Make) -> None:
    first = make(api_key="sk-one").cache_busting_signature()
    assert first == make(api_key="sk-one").cache_busting_signature()
    for change in ({"api_key": "sk-two"}, {"bank": "other"}, {"tags": ["x"]}):
        assert make(**{"api_key": "sk-one", **change}).cache_busting_signature() != first
    assert "sk-one" not in str(first)


@pytest.mark.parametrize("mission, background", [("", "You are brief."), ("to help", None)])
async def test_a_persona_is_the_background_of_a_bank_without_a_mission(
    make: Make, service: HindsightService, mission: str, background: str | None
) -> None:
    memory = make(mission=mission)
    memory.set_persona("You are calm.\n")
    await memory.store(make_batch(make_exchange(1, "hi", "hello")))
    (bank,) = service.state.banks.values()
    assert bank.get("background") == (None if mission else "You are calm.")
    memory.set_persona("You are brief.")
    await memory.store(make_batch(make_exchange(2, "hi", "hello")))
    (bank,) = service.state.banks.values()
    assert bank.get("background") == background
    assert not any("You are" in text for text in service.texts(next(iter(service.state.banks))))


# -- the environment ---------------------------------------------------------------------------------------------------

_OPENED: list[str] = []
sys.addaudithook(lambda event, args: _OPENED.append(str(args[0])) if event == "open" else None)


async def test_no_message_opens_the_password_file_or_sends_its_password(
    make: Make, service: HindsightService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the SDK's own call that describes a new bank opens it, once for each bank."""
    passwords = tmp_path / "passwords"
    passwords.write_text("machine 127.0.0.1 login ada password hunter2\n")
    memory = make()
    await memory.store(make_batch(make_exchange(1, "I grow tea", "Which?")))
    monkeypatch.setenv("NETRC", str(passwords))
    service.requests.clear()
    _OPENED.clear()
    await memory.store(make_batch(make_exchange(5, "It is oolong", "I see")))
    await memory.find(make_query("tea"))
    assert str(passwords) not in _OPENED
    assert service.find_requests("/memories")
    assert not any("basic" in str(request.headers).lower() for request in service.requests)


async def test_the_proxy_of_the_environment_is_still_used(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    memory = make(base_url="http://hindsight.invalid")
    with pytest.raises(Transient, match=r"127\.0\.0\.1:9"):
        await memory.store(make_batch(make_exchange(1, "I grow tea", "Which?")))


@pytest.mark.parametrize(
    "url, excepted, expected",
    [
        ("http://there.example", "", "http://proxy.example:1"),
        ("https://there.example", "", None),
        ("http://there.example", "there.example", None),
        ("http://there.example:8080/v1", "other.example, .example", None),
        ("http://user@there.example", "*", None),
    ],
)
def test_the_environment_names_a_proxy(
    monkeypatch: pytest.MonkeyPatch, url: str, excepted: str, expected: str | None
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.example:1")
    monkeypatch.delenv("https_proxy", raising=False)
    monkeypatch.setenv("no_proxy", excepted)
    assert find_environment_proxy(url) == expected
