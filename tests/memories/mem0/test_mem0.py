"""Mem0's adapter over the unmodified package, against its platform on loopback and in process."""

from __future__ import annotations

from pathlib import Path

import pytest

from everhold.errors import EverholdError, InDoubt, Refused, Transient
from everhold.memories.mem0.plugin import factory
from everhold.memories.mem0.provider import Mem0Memory
from everhold.ports.memory import ErasureState, ErasureTarget
from everhold.ports.platform import DeliveryGuarantee
from everhold.testing.gateway import RecordingLogger
from everhold.testing.services.embeddings import EmbeddingsService
from everhold.testing.services.mem0 import Mem0Service
from tests.memories.mem0.conftest import Make
from tests.memories.memory_items import (
    AT,
    confirm,
    deliver,
    forget,
    make_batch,
    make_context,
    make_exchange,
    make_linked_present,
    make_note,
    make_query,
    make_retraction,
    make_tool_context,
    read_tool,
    run_real_check,
)
from tests.memories.service_failures import check_outage, check_refusal


async def test_every_exchange_and_note_is_one_memory_with_its_key(memory: Mem0Memory, service: Mem0Service) -> None:
    whole = make_batch(make_exchange(1, "I grow tea", "Which?"), make_note(5, "likes oolong", fact="f1"))
    remotes = await memory.store(whole)
    first, second = service.state.memories.values()
    assert (first["memory"], first["user_id"]) == ("ada: I grow tea\n\nmain: Which?", "main")
    assert first["metadata"]["everhold"] == "s1:1"
    assert second["memory"] == "likes oolong"
    assert remotes == {"s1:1": first["id"], "s1:5:note": second["id"]}
    assert list(await memory.probe(whole)) == ["s1:1", "s1:5:note"]


@pytest.mark.parametrize("how", ["after", "lose", "drop", "refuse", "hollow", "garbage", "empty"])
async def test_an_item_is_stored_once_even_if_the_answer_is_lost(
    memory: Mem0Memory, service: Mem0Service, how: str
) -> None:
    service.plan_fault(how, "/v3/memories/add/", times=2)  # type: ignore[arg-type]
    await deliver(memory, make_batch(make_exchange(1, "one"), make_note(2, "two"), make_exchange(3, "three")))
    assert service.texts() == ["ada: one", "two", "ada: three"]


async def test_a_duplicate_write_is_deleted_when_it_is_found(memory: Mem0Memory, service: Mem0Service) -> None:
    service.plan_fault("twice", "/v3/memories/add/")
    await memory.store(make_batch(make_exchange(1, "once")))
    assert service.texts() == ["ada: once"]
    assert isinstance(memory.log, RecordingLogger)
    assert memory.log.find_events("memory.duplicated")


async def test_an_accepted_item_is_not_yet_stored(memory: Mem0Memory, service: Mem0Service) -> None:
    service.holds_events = True
    with pytest.raises(InDoubt, match="not stored it yet"):
        await memory.store(make_batch(make_exchange(1, "slow")))
    service.process_events()
    assert list(await memory.probe(make_batch(make_exchange(1, "slow")))) == ["s1:1"]


async def test_a_failed_event_is_sent_again(memory: Mem0Memory, service: Mem0Service) -> None:
    service.failures_left = 2
    assert await deliver(memory, make_batch(make_exchange(1, "in the end"))) == 3
    assert service.texts() == ["ada: in the end"]


async def test_with_inference_a_write_cannot_be_probed(make: Make) -> None:
    assert make(infer=True).delivery is DeliveryGuarantee.BLIND
    assert make().delivery is DeliveryGuarantee.PROBE


async def test_replacements_removals_and_undos_are_applied(memory: Mem0Memory, service: Mem0Service) -> None:
    await memory.store(
        make_batch(make_note(1, "lives in Rome", fact="f1"), make_note(2, "has a cat"), make_exchange(4, "secret"))
    )
    moved = make_batch(make_note(5, "lives in Oslo", action="replace", supersedes="s1:1:note", fact="f1"))
    await memory.store(moved)
    await memory.store(moved)
    await memory.store(
        make_batch(make_note(6, "has a cat", action="remove", supersedes="s1:2:note"), make_retraction(7, 4))
    )
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
    memory: Mem0Memory, service: Mem0Service, status: int, expected: type[EverholdError]
) -> None:
    await check_refusal(memory, service, "/v3/memories/add/", status, expected)


async def test_an_unreachable_service_received_nothing(memory: Mem0Memory, service: Mem0Service) -> None:
    await check_outage(memory, service)
    assert service.texts() == ["ada: hello"]


async def test_a_wrong_key_is_retried_and_not_printed(make: Make, service: Mem0Service) -> None:
    service.key = "right-key"
    with pytest.raises(Transient) as caught:
        await make(api_key="wrong-key-here").store(make_batch(make_exchange(1, "hello")))
    assert "wrong-key-here" not in str(caught.value)
    await make(api_key="right-key").store(make_batch(make_exchange(1, "hello")))
    assert service.texts() == ["ada: hello"]


async def test_recall_stays_within_its_audience(make: Make, service: Mem0Service) -> None:
    memory = make()
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
    assert await make(agent="coder").find(make_query("secret garden", agent="coder")) == []
    # with one user_id per person, foreign memories belong to that person only
    each = make(user="{person}")
    await each.store(make_batch(make_exchange(6, "a new secret", who="bob", session="s3")))
    service.state.memories["theirs"] = {
        "id": "theirs",
        "memory": "an old secret",
        "user_id": "bob",
        "metadata": {},
        "created_at": None,
    }
    assert [it.text for it in await each.find(make_query("secret", who="bob"))] == [
        "bob: a new secret",
        "an old secret",
    ]
    assert await each.find(make_query("secret")) == []


@pytest.mark.parametrize("since, count", [(0.0, 1), (AT * 2, 0)])
async def test_what_another_program_stored_for_a_nick_is_its_persons_from_the_link_on(
    make: Make, service: Mem0Service, since: float, count: int
) -> None:
    service.state.memories["theirs"] = {
        "id": "theirs",
        "memory": "an old secret",
        "user_id": "irc-ada",
        "metadata": {},
        "created_at": None,
    }
    present = make_linked_present("irc:ada", since)
    query = make_query("secret", present=present, peers={"irc:ada": ("irc-ada",)})
    assert len(await make(user="{person}").find(query)) == count


async def test_the_tools_have_the_vendor_s_names_and_work(memory: Mem0Memory) -> None:
    run = {tool.spec.name: tool.run for tool in memory.tools()}
    assert list(run) == ["mem0_search", "mem0_add"]
    kept = await run["mem0_add"]({"content": "likes tea"}, make_tool_context())
    assert [it.text for it in kept.notes] == ["likes tea"]
    await memory.store(make_batch(make_exchange(1, "I grow tea")))
    assert "I grow tea" in read_tool(await run["mem0_search"]({"query": "tea"}, make_tool_context()))
    assert "grow" not in read_tool(await run["mem0_search"]({"query": "tea"}, make_tool_context("bob")))
    assert (await run["mem0_search"]({}, make_tool_context())).error


async def test_forgetting_deletes_private_exchanges_and_keeps_group_exchanges(
    memory: Mem0Memory, service: Mem0Service
) -> None:
    await memory.store(make_batch(make_exchange(1, "mine"), make_exchange(3, "ours", group="club")))
    assert [found.text async for found in memory.export("ada")] == ["ada: mine"]
    assert (await forget(memory, "ada")).deleted == 1
    assert service.texts() == ["ada: ours"]
    forgotten = await forget(memory, "ada", keys=("s1:3",), groups=("club",))
    assert (forgotten.deleted, service.texts()) == (1, [])
    assert set(await confirm(memory, forgotten)) == {"confirmed"}


async def test_an_agent_and_a_person_with_ambiguous_names_are_kept_apart(make: Make, service: Mem0Service) -> None:
    hers, his = make(agent="a-b", user="{agent}-{person}"), make(agent="a", user="{agent}-{person}")
    assert hers.get_user_id(("person:c",)) == "a-b-c"
    assert his.get_user_id(("person:b-c",)) != "a-b-c"
    await hers.store(make_batch(make_exchange(1, "hers", who="c", agent="a-b")))
    await his.store(make_batch(make_exchange(1, "his", who="b-c", agent="a", session="s2")))
    # as early versions stored it, when both had one id
    before = make_exchange(3, "his from before", who="b-c", agent="a", session="s2")
    earlier = make(agent="a", user="a-{person}")
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
    first = make(api_key="m0-one").cache_busting_signature()
    assert first == make(api_key="m0-one").cache_busting_signature()
    for change in ({"api_key": "m0-two"}, {"user": "other"}, {"mode": "local"}):
        assert make(**{"api_key": "m0-one", **change}).cache_busting_signature() != first
    assert "m0-one" not in str(first)


# -- in this process --------------------------------------------------------------------------------------------------


async def test_the_in_process_library_stores_finds_and_forgets(
    local: Mem0Memory, embeddings: EmbeddingsService, tmp_path: Path
) -> None:
    whole = make_batch(
        make_exchange(4, "I grow tea in Assam"), make_note(6, "likes oolong"), make_exchange(8, "a slip")
    )
    remotes = await local.store(whole)
    assert all(remotes.values())
    assert list(await local.probe(whole)) == [item.key for item in whole.items]
    best = (await local.find(make_query("who grows tea")))[0]
    assert (best.text, best.key, best.seq) == ("ada: I grow tea in Assam", "s1:4", 3)
    assert await local.find(make_query("tea", who="bob")) == []
    await local.store(make_batch(make_retraction(9, 8)))
    assert list(await local.probe(make_batch(make_exchange(8, "a slip")))) == []
    forgotten = await forget(local, "ada")
    assert forgotten.deleted == 2
    assert set(await confirm(local, forgotten)) == {"confirmed"}
    assert (tmp_path / "vectors").exists()
    await local.close()
    assert b"Assam" not in (tmp_path / "history.db").read_bytes()


async def test_a_probe_covers_more_than_the_library_s_default_limit(local: Mem0Memory) -> None:
    many = make_batch(*(make_exchange(op, f"turn {op}") for op in range(1, 31)))
    await local.store(many)
    assert len(await local.probe(many)) == 30
    assert len([found async for found in local.export("ada")]) == 30


async def test_a_closed_provider_can_be_used_again(local: Mem0Memory) -> None:
    await local.store(make_batch(make_exchange(1, "before")))
    await local.close()
    assert list(await local.probe(make_batch(make_exchange(1, "before")))) == ["s1:1"]


async def test_a_write_without_an_embedding_service_fails(local: Mem0Memory, embeddings: EmbeddingsService) -> None:
    await local.store(make_batch(make_exchange(1, "before")))
    await embeddings.stop()
    with pytest.raises(Exception):  # noqa: B017, PT011  # the library's own, or our doubt: never a success
        await local.store(make_batch(make_exchange(3, "lost?")))
    await embeddings.start()
    assert list(await local.probe(make_batch(make_exchange(1, "before"), make_exchange(3, "lost?")))) == ["s1:1"]


@pytest.mark.prove
@pytest.mark.parametrize("check", ["canary", "people", "capabilities"])
async def test_the_library_in_this_process_passes_the_checks(
    embeddings: EmbeddingsService, tmp_path: Path, check: str
) -> None:
    """Two people use Mem0's own library with its vectors on disk. One process may open them."""
    clients: dict[str, Mem0Memory] = {}
    model = {"openai_base_url": f"{embeddings.url}/v1", "api_key": "none"}
    config = {
        "embedder": {"provider": "openai", "config": {**model, "model": "words", "embedding_dims": 64}},
        "llm": {"provider": "openai", "config": {**model, "model": "none"}},
    }

    def make(agent: str, directory: Path) -> Mem0Memory:
        # the first call also loads the library, which may take minutes on a busy machine
        given = factory.Settings.model_validate({"mode": "local", "config": config, "deadline_seconds": 300.0})
        if agent not in clients:
            clients[agent] = factory(given, make_context(directory, agent=agent))
        return clients[agent]

    outcome = await run_real_check(check, tmp_path, make)
    assert outcome.state == "passed", outcome.reason


async def test_a_memory_that_no_list_shows_yet_is_forgotten_by_its_receipt(
    memory: Mem0Memory, service: Mem0Service
) -> None:
    """Mem0 shows a memory by its id while lists and searches do not have it."""
    receipts = await memory.store(make_batch(make_exchange(1, "the code is 7391", "noted")))
    (id,) = service.state.memories
    assert list(receipts.values()) == [id]
    service.drop_index()
    target = ErasureTarget(identities=("ada",), keys=tuple(receipts), remote_ids=(id,))
    (deletion,) = await memory.forget(target)
    assert deletion.count == 1
    assert service.texts() == []


async def test_a_memory_that_is_still_there_by_its_id_is_not_confirmed(
    memory: Mem0Memory, service: Mem0Service
) -> None:
    """The index forgets a memory before the store does."""
    await memory.store(make_batch(make_exchange(1, "the code is 7391", "noted")))
    service.indexes = False
    deletions = await memory.forget(ErasureTarget(identities=("ada",), keys=("s1:1",)))
    assert await memory.find(make_query("code")) == []
    assert set((await memory.confirm_deletions(deletions)).values()) == {ErasureState.ASKED}
    service.update_index()
    assert set((await memory.confirm_deletions(deletions)).values()) == {ErasureState.CONFIRMED}


@pytest.mark.parametrize("planted", ["forget", "confirm"])
async def test_without_the_request_by_id_both_are_missed(
    memory: Mem0Memory, service: Mem0Service, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    async def find_nothing(id: str) -> None:
        return None

    monkeypatch.setattr(memory.backend, "get", find_nothing)
    await memory.store(make_batch(make_exchange(1, "the code is 7391", "noted")))
    if planted == "forget":
        service.drop_index()
    else:
        service.indexes = False
    target = ErasureTarget(identities=("ada",), keys=("s1:1",), remote_ids=tuple(service.state.memories))
    deletions = await memory.forget(target)
    if planted == "forget":
        assert len(service.texts()) == 1
    else:
        assert set((await memory.confirm_deletions(deletions)).values()) == {ErasureState.CONFIRMED}
        assert len(service.texts()) == 1
