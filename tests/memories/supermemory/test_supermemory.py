"""Supermemory's adapter over the unmodified SDK: one document per item, stored once, also when the service fails."""

from __future__ import annotations

import pytest
from msgspec import structs

from everhold.errors import EverholdError, InDoubt, Refused, Transient
from everhold.memories.scope import make_document_id
from everhold.memories.supermemory.provider import SupermemoryMemory
from everhold.ports.memory import MemoryBatch
from everhold.testing.services.supermemory import SupermemoryService
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
from tests.memories.supermemory.conftest import Make


async def test_every_exchange_and_note_is_one_document(memory: SupermemoryMemory, service: SupermemoryService) -> None:
    whole = make_batch(make_exchange(1, "I grow tea", "Which?", parent="s0"), make_note(5, "likes oolong", fact="f1"))
    remotes = await memory.store(whole)
    first, second = service.state.documents.values()
    assert first["content"] == "ada: I grow tea\n\nmain: Which?"
    assert first["metadata"]["everhold"] == "s1:1"
    assert first["metadata"]["everhold_parent"] == "s0"
    assert second["content"] == "likes oolong"
    assert remotes == {"s1:1": first["id"], "s1:5:note": second["id"]}
    assert {ns for ns, _ in service.state.documents} == {"main"}
    assert list(await memory.probe(whole)) == ["s1:1", "s1:5:note"]


async def test_what_another_program_stored_for_a_nick_is_its_persons_from_the_link_on(
    make: Make, service: SupermemoryService
) -> None:
    memory = make(namespace="{person}")
    await memory.store(make_batch(make_exchange(1, "I grow tea", who="irc:ada")))
    (document,) = service.state.documents.values()
    document["metadata"] = {}  # as if another program had stored it
    whole = memory.list_present_namespaces
    for since, shown in ((0.0, True), (AT * 2, False)):
        present = make_linked_present("irc:ada", since)
        found = await memory.find(make_query("tea", present=present))
        assert any("tea" in hit.text for hit in found) is shown
        context = structs.replace(make_tool_context(), present=present)
        assert (len(whole(context)) == 2) is shown, "a profile does not say how old it is"


@pytest.mark.parametrize("how", ["after", "lose", "drop", "refuse", "hollow", "garbage", "empty", "twice"])
async def test_an_item_is_stored_once_even_if_the_answer_is_lost(
    memory: SupermemoryMemory, service: SupermemoryService, how: str
) -> None:
    service.plan_fault(how, "/document$", times=2)  # type: ignore[arg-type]
    await deliver(memory, make_batch(make_exchange(1, "one"), make_note(2, "two"), make_exchange(3, "three")))
    assert service.texts() == ["ada: one", "two", "ada: three"]
    assert service.state.writes == [make_document_id(key) for key in ("s1:1", "s1:2:note", "s1:3")]


async def test_the_sdk_does_not_retry(memory: SupermemoryMemory, service: SupermemoryService) -> None:
    service.plan_fault("after", "/document$", times=None)
    with pytest.raises(InDoubt):
        await memory.store(make_batch(make_exchange(1, "once")))
    assert len(service.find_requests("/document$", "POST")) == 1


async def test_an_accepted_item_is_not_yet_stored(memory: SupermemoryMemory, service: SupermemoryService) -> None:
    service.holds_documents = True
    with pytest.raises(InDoubt, match="not stored it yet"):
        await memory.store(make_batch(make_exchange(1, "slow")))
    service.process_documents()
    await memory.store(make_batch(make_exchange(1, "slow")))
    assert service.texts() == ["ada: slow"]


async def test_a_document_with_failed_processing_is_sent_again(
    memory: SupermemoryMemory, service: SupermemoryService
) -> None:
    service.failures_left = 2
    assert await deliver(memory, make_batch(make_exchange(1, "in the end"))) == 3
    assert service.texts() == ["ada: in the end"]


async def test_replacements_removals_and_undos_are_applied(
    memory: SupermemoryMemory, service: SupermemoryService
) -> None:
    await memory.store(
        make_batch(make_note(1, "lives in Rome", fact="f1"), make_note(2, "has a cat"), make_exchange(4, "secret"))
    )
    await memory.store(make_batch(make_note(5, "lives in Oslo", action="replace", supersedes="s1:1:note", fact="f1")))
    gone = make_batch(make_note(6, "has a cat", action="remove", supersedes="s1:2:note"), make_retraction(7, 4))
    assert await memory.probe(gone) == []
    await memory.store(gone)
    assert list(await memory.probe(gone)) == ["s1:6:note", "s1:7:retract"]
    assert service.texts() == ["lives in Oslo"]
    await memory.store(
        make_batch(make_note(3, "lives in Kyoto", action="replace", fact="f1", session="s2"), name="other")
    )
    assert service.texts() == ["lives in Kyoto"]


@pytest.mark.parametrize(
    "status, expected",
    [(401, Transient), (402, Transient), (429, Transient), (422, Refused), (400, Refused), (503, InDoubt)],
)
async def test_each_http_status_maps_to_its_error(
    memory: SupermemoryMemory, service: SupermemoryService, status: int, expected: type[EverholdError]
) -> None:
    await check_refusal(memory, service, "/document$", status, expected)


async def test_an_unreachable_service_received_nothing(memory: SupermemoryMemory, service: SupermemoryService) -> None:
    await check_outage(memory, service)
    assert service.texts() == ["ada: hello"]


async def test_a_wrong_key_is_retried_and_not_printed(make: Make, service: SupermemoryService) -> None:
    service.key = "right-key"
    with pytest.raises(Transient) as caught:
        await make(api_key="wrong-key-here").store(make_batch(make_exchange(1, "hello")))
    assert "wrong-key-here" not in str(caught.value)
    await make(api_key="right-key").store(make_batch(make_exchange(1, "hello")))
    assert service.texts() == ["ada: hello"]


@pytest.mark.parametrize("namespace", ["{agent}-{person}", "everybody"])
async def test_recall_stays_within_its_audience(make: Make, namespace: str) -> None:
    memory = make(namespace=namespace)
    await memory.store(make_batch(make_exchange(4, "my secret garden"), name="dm"))
    await memory.store(make_batch(make_exchange(1, "our secret garden", group="club", session="s2"), name="club"))
    (mine,) = await memory.find(make_query("secret garden"))
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
    assert await make(namespace=namespace, agent="coder").find(make_query("secret garden", agent="coder")) == []


async def test_the_tools_have_the_vendor_s_names_and_work(make: Make) -> None:
    assert [tool.spec.name for tool in make().tools()] == ["supermemory_store", "supermemory_search"]
    memory = make(namespace="{agent}-{person}")
    run = {tool.spec.name: tool.run for tool in memory.tools()}
    assert list(run) == ["supermemory_store", "supermemory_search", "supermemory_profile"]
    kept = await run["supermemory_store"]({"content": "likes tea"}, make_tool_context())
    assert [it.text for it in kept.notes] == ["likes tea"]
    await memory.store(make_batch(make_exchange(1, "I grow tea")))
    for name in ("supermemory_search", "supermemory_profile"):
        assert "I grow tea" in read_tool(await run[name]({"query": "tea"}, make_tool_context()))
        assert "grow" not in read_tool(await run[name]({"query": "tea"}, make_tool_context("bob")))
    assert (await run["supermemory_search"]({}, make_tool_context())).error


async def test_forgetting_deletes_private_exchanges_and_keeps_group_exchanges(
    memory: SupermemoryMemory, service: SupermemoryService
) -> None:
    await memory.store(make_batch(make_exchange(1, "mine"), make_exchange(3, "ours", group="club")))
    assert [found.text async for found in memory.export("ada")] == ["ada: mine"]
    assert (await forget(memory, "ada")).deleted == 1
    assert service.texts() == ["ada: ours"]
    forgotten = await forget(memory, "ada", keys=("s1:3",), groups=("club",))
    assert (forgotten.deleted, service.texts()) == (1, [])
    assert set(await confirm(memory, forgotten)) == {"confirmed"}


async def test_a_deletion_that_is_refused_with_status_200_is_unconfirmed(
    memory: SupermemoryMemory, service: SupermemoryService
) -> None:
    remotes = await memory.store(make_batch(make_exchange(1, "mine"), make_exchange(3, "too")))
    service.undeletable = {remotes["s1:3"]}
    forgotten = await forget(memory, "ada")
    (refused,) = [it for it in forgotten.deletions if it.state == "unconfirmed"]
    assert "being processed" in refused.reason
    assert await confirm(memory, forgotten) == ["asked", "asked"]
    assert "too" in "".join(service.texts())
    service.undeletable = set()
    assert set(await confirm(memory, await forget(memory, "ada"))) == {"confirmed"}


@pytest.mark.parametrize("keyless", [False, True])
@pytest.mark.parametrize("namespace", ["{agent}", "{agent}-{person}"])
async def test_what_was_learned_from_a_deleted_document_is_read_back(
    make: Make, service: SupermemoryService, namespace: str, keyless: bool
) -> None:
    """Searches, the list of memories and the profile may show it although the document is gone."""
    memory = make(namespace=namespace)
    service.keeps_learned = True
    await memory.store(make_batch(make_exchange(1, "mine")))
    forgotten = await forget(memory, "ada")
    assert service.texts() == []
    if keyless:
        for row in service.state.learned.values():
            row["metadata"] = {}
    assert await confirm(memory, forgotten) == ["asked"]
    await memory.store(make_batch(make_exchange(5, "said afterwards")))
    assert await confirm(memory, forgotten) == ["asked"]
    service.state.learned.clear()
    assert await confirm(memory, forgotten) == ["confirmed"]


async def test_a_profile_that_outlives_everything_else_is_read_back(make: Make, service: SupermemoryService) -> None:
    """A summary of several facts is made later, and does not say of what."""
    memory = make(namespace="{agent}-{person}")
    service.keeps_learned = True
    await memory.store(make_batch(make_exchange(1, "mine")))
    forgotten = await forget(memory, "ada")
    for row in service.state.learned.values():
        row.update(metadata={}, at="2099-01-01T00:00:00+00:00")
    assert await confirm(memory, forgotten) == ["asked"]
    service.state.learned.clear()
    assert await confirm(memory, forgotten) == ["confirmed"]


async def test_an_undo_whose_deletion_is_refused_is_tried_again(
    memory: SupermemoryMemory, service: SupermemoryService
) -> None:
    remotes = await memory.store(make_batch(make_exchange(1, "a slip")))
    service.undeletable = set(remotes.values())
    undone = MemoryBatch(name="dm", items=(make_retraction(9, 1),), heard_by={"s1:1": ("person:ada",)})
    with pytest.raises(Transient, match="refused to delete"):
        await memory.store(undone)
    service.undeletable = set()
    await memory.store(undone)
    assert service.texts() == []


async def test_an_agent_and_a_person_with_ambiguous_names_are_kept_apart(
    make: Make, service: SupermemoryService
) -> None:
    hers, his = make(agent="a-b", namespace="{agent}-{person}"), make(agent="a", namespace="{agent}-{person}")
    assert hers.get_namespace(("person:c",)) == "a-b-c"
    assert his.get_namespace(("person:b-c",)) != "a-b-c"
    await hers.store(make_batch(make_exchange(1, "hers", who="c", agent="a-b")))
    await his.store(make_batch(make_exchange(1, "his", who="b-c", agent="a", session="s2")))
    # as early versions stored it, when both had one namespace
    before = make_exchange(3, "his from before", who="b-c", agent="a", session="s2")
    earlier = make(agent="a", namespace="a-{person}")
    await earlier.store(make_batch(before))
    assert list(await his.probe(make_batch(before))) == ["s2:3"]
    found = await his.find(make_query("his from before", who="b-c", agent="a"))
    assert sorted(it.text for it in found) == ["b-c: his", "b-c: his from before"]
    assert sorted([it.text async for it in his.export("b-c")]) == ["b-c: his", "b-c: his from before"]
    assert (await forget(his, "b-c")).deleted == 2
    assert service.texts() == ["c: hers"]
    await earlier.store(make_batch(before))
    assert (await forget(hers, "c")).deleted == 1
    assert service.texts() == ["b-c: his from before"]


async def test_any_changed_setting_changes_the_signature_and_shows_no_key(make: Make) -> None:
    first = make(api_key="sm-one").cache_busting_signature()
    assert first == make(api_key="sm-one").cache_busting_signature()
    for change in ({"api_key": "sm-two"}, {"namespace": "other"}, {"task": "superrag"}):
        assert make(**{"api_key": "sm-one", **change}).cache_busting_signature() != first
    assert "sm-one" not in str(first)
