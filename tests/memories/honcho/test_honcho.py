"""Honcho's adapter over the unmodified SDK: items are stored once, under the right peers, also when
the service fails.
"""

from __future__ import annotations

import pytest
from msgspec import structs
from msgspec.structs import replace

from everhold.core.entries import Stamp
from everhold.errors import EverholdError, InDoubt, PartiallyDone, Refused, Transient
from everhold.memories.honcho.provider import MAX_MESSAGE_CHARS, HonchoMemory
from everhold.ports.memory import ErasureTarget, MemoryRetraction
from everhold.testing.services.honcho import HonchoService
from tests.memories.honcho.conftest import Make
from tests.memories.memory_items import (
    confirm,
    deliver,
    forget,
    make_batch,
    make_exchange,
    make_note,
    make_query,
    make_retraction,
    make_tool_context,
    read_tool,
)
from tests.memories.service_failures import check_outage, check_refusal

HERE = "agent-main-fake-dm-1"


# -- stored messages and their peers -----------------------------------------------------------------------------------


async def test_an_exchange_becomes_its_speakers_messages(memory: HonchoMemory, service: HonchoService) -> None:
    remotes = await memory.store(make_batch(make_exchange(4, "I grow tea", "Which kind?")))
    theirs, ours = service.state.messages
    assert (theirs["peer_id"], theirs["content"]) == ("ada", "I grow tea")
    assert (ours["peer_id"], ours["content"]) == ("main", "Which kind?")
    assert remotes == {"s1:4": theirs["id"]}
    assert theirs["metadata"]["everhold"] == ours["metadata"]["everhold"] == "s1:4"
    assert service.state.created == [HERE]


async def test_a_batch_is_one_request_and_keeps_its_order(memory: HonchoMemory, service: HonchoService) -> None:
    await memory.store(make_batch(*(make_exchange(op, f"say {op}", f"hear {op}") for op in range(1, 21))))
    assert service.texts(HERE) == [f"{verb} {op}" for op in range(1, 21) for verb in ("say", "hear")]
    assert len(service.find_requests("/messages$", "POST")) == 1


async def test_a_text_too_long_for_one_message_arrives_complete(memory: HonchoMemory, service: HonchoService) -> None:
    text = "word " * 30_000
    await memory.store(make_batch(make_exchange(1, text, "long")))
    assert max(len(part) for part in service.texts(HERE)) <= MAX_MESSAGE_CHARS
    assert "".join(service.texts(HERE)[:-1]) == text
    assert set(await memory.probe(make_batch(make_exchange(1, text, "long")))) == {"s1:1"}


async def test_an_exchange_larger_than_a_request_is_completed_and_not_repeated(
    memory: HonchoMemory, service: HonchoService
) -> None:
    whole = make_batch(make_exchange(1, "word " * 600_000, "done"))
    service.plan_fault("refuse", "/messages$", skip=1, status=429)
    assert await deliver(memory, whole) == 2
    assert "".join(service.texts(HERE)[:-1]) == "word " * 600_000


async def test_a_silent_batch_sends_nothing(memory: HonchoMemory, service: HonchoService) -> None:
    silent = make_batch(make_exchange(1, " ", ""))
    assert await memory.store(silent) == {"s1:1": ""}
    assert await memory.probe(silent) == ["s1:1"]
    assert service.state.created == []


async def test_two_people_in_one_thread_are_two_peers(memory: HonchoMemory, service: HonchoService) -> None:
    turns = [make_exchange(op, f"turn {op}", "yes", who=("ada", "bob")[op % 2], group="club") for op in range(1, 7)]
    await memory.store(make_batch(*turns[:3]))
    await memory.close()
    await memory.store(make_batch(*turns[3:]))
    spoken = [(row["peer_id"], row["content"]) for row in service.state.messages if row["peer_id"] != "main"]
    assert spoken == [(("ada", "bob")[op % 2], f"turn {op}") for op in range(1, 7)]


@pytest.mark.parametrize(
    "settings, peer",
    [
        ({}, "ada"),
        ({"user_peer_aliases": {"ada": "countess"}}, "countess"),
        ({"runtime_peer_prefix": "tg_"}, "tg_ada"),
        ({"peer_name": "me", "pin_peer_name": True}, "me"),
        ({"peer_name": "me"}, "ada"),
        ({"peer_name": "me", "pin_peer_name": True, "user_peer_aliases": {"ada": "countess"}}, "me"),
    ],
)
async def test_peers_are_named_by_the_settings(
    make: Make, service: HonchoService, settings: dict[str, object], peer: str
) -> None:
    await make(**settings).store(make_batch(make_exchange(1, "hello")))
    assert service.state.messages[0]["peer_id"] == peer


async def test_no_person_gets_the_peer_of_the_agent_or_of_an_alias(make: Make, service: HonchoService) -> None:
    memory = make(user_peer_aliases={"1001": "ada"})
    await memory.store(
        make_batch(make_exchange(1, "I am called main", who="main"), make_exchange(2, "and I ada", who="ada"))
    )
    peers = [row["peer_id"] for row in service.state.messages]
    assert len(set(peers)) == 2
    assert not {"main", "ada"} & set(peers)


# -- conclusions -------------------------------------------------------------------------------------------------------


async def test_notes_become_conclusions_about_the_people_present(memory: HonchoMemory, service: HonchoService) -> None:
    remotes = await memory.store(make_batch(make_note(3, "likes oolong"), make_note(5, "is shy")))
    rows = service.state.conclusions
    assert [(row["observer_id"], row["observed_id"], row["session_id"]) for row in rows] == [("main", "ada", HERE)] * 2
    assert remotes == {"s1:3:note": rows[0]["id"], "s1:5:note": rows[1]["id"]}


async def test_replacements_and_removals_follow_the_note(memory: HonchoMemory, service: HonchoService) -> None:
    await memory.store(make_batch(make_note(1, "lives in Rome"), make_note(2, "has a cat")))
    moved = make_batch(
        make_note(3, "lives in Oslo", action="replace", supersedes="s1:1:note"), replaced={"s1:1:note": "lives in Rome"}
    )
    assert await memory.probe(moved) == []
    await memory.store(moved)
    await memory.store(moved)
    assert sorted(service.list_conclusion_texts()) == ["has a cat", "lives in Oslo"]
    gone = make_batch(make_note(4, "has a cat", action="remove", fact="f2"))
    await memory.store(gone)
    assert service.list_conclusion_texts() == ["lives in Oslo"]
    assert await memory.probe(gone) == ["s1:4:note"]


async def test_a_half_finished_replacement_is_completed(memory: HonchoMemory, service: HonchoService) -> None:
    await memory.store(make_batch(make_note(1, "lives in Rome")))
    moved = make_batch(
        make_note(3, "lives in Oslo", action="replace", supersedes="s1:1:note"), replaced={"s1:1:note": "lives in Rome"}
    )
    service.plan_fault("refuse", "/conclusions/", method="DELETE")
    await deliver(memory, moved)
    assert service.list_conclusion_texts() == ["lives in Oslo"]


async def test_removing_a_note_keeps_equal_notes_of_others(memory: HonchoMemory, service: HonchoService) -> None:
    for who, group in (("ada", ""), ("bob", ""), ("bob", "club")):
        await memory.store(
            make_batch(make_note(2, "likes tea", who=who, group=group, session=f"{who}{group}"), name=f"{who}{group}")
        )
    gone = make_batch(make_note(4, "likes tea", action="remove", who="bob", session="bob"), name="bob")
    assert await memory.probe(gone) == []
    await memory.store(gone)
    assert await memory.probe(gone) == ["bob:4:note"]
    club = memory.peers.list_audience_peers(["chat:club"])[0]
    assert [row["observed_id"] for row in service.state.conclusions] == ["ada", club]
    undone = MemoryRetraction(key="ada:9:retract", session="ada", agent="main", keys=("ada:2:note",))
    await memory.store(make_batch(undone, name="ada"))
    assert [row["observed_id"] for row in service.state.conclusions] == [club]


async def test_an_undone_exchange_of_several_people_is_deleted_for_all_of_them(
    memory: HonchoMemory, service: HonchoService
) -> None:
    both = ("person:ada", "person:bob")
    await memory.store(make_batch(replace(make_note(2, "is in Rome", fact="f1"), stamp=Stamp(audience=both))))
    gone = make_batch(make_note(4, "", action="remove", fact="f1"), replaced={"f1": "is in Rome"})
    await memory.store(replace(gone, heard_by={"f1": both}))
    assert service.list_conclusion_texts() == []


async def test_an_undone_exchange_is_not_found(memory: HonchoMemory, service: HonchoService) -> None:
    await memory.store(
        make_batch(make_exchange(1, "the code is 1234", "ok"), make_exchange(4, "the code is secret", "ok"))
    )
    undone = make_batch(make_retraction(9, 1))
    assert await memory.probe(undone) == []
    await memory.store(undone)
    assert await memory.probe(undone) == ["s1:9:retract"]
    assert [found.text for found in await memory.find(make_query("the code"))] == ["the code is secret", "ok"]


# -- failures ----------------------------------------------------------------------------------------------------------

FAULTS = ["after", "lose", "drop", "refuse", "hollow", "garbage", "empty"]


@pytest.mark.parametrize("how", FAULTS)
@pytest.mark.parametrize("path", ["/messages$", "/conclusions$"])
async def test_an_item_is_stored_once_even_if_the_answer_is_lost(
    memory: HonchoMemory, service: HonchoService, how: str, path: str
) -> None:
    service.plan_fault(how, path, method="POST", times=2)  # type: ignore[arg-type]
    await deliver(memory, make_batch(make_exchange(1, "one", "two"), make_note(2, "three"), make_exchange(4, "four")))
    assert service.texts(HERE) == ["one", "two", "four"]
    assert service.list_conclusion_texts() == ["three"]


@pytest.mark.parametrize("how", FAULTS)
async def test_a_session_is_created_once_even_if_the_answer_is_lost(
    memory: HonchoMemory, service: HonchoService, how: str
) -> None:
    service.plan_fault(how, "/sessions$", times=2)  # type: ignore[arg-type]
    service.plan_fault(how, "/workspaces$", times=1)  # type: ignore[arg-type]
    await deliver(memory, make_batch(make_note(1, "kept"), make_exchange(2, "said")))
    assert service.state.created == [HERE]
    assert (service.texts(HERE), service.list_conclusion_texts()) == (["said"], ["kept"])


async def test_the_sdk_does_not_retry(memory: HonchoMemory, service: HonchoService) -> None:
    service.plan_fault("after", "/messages$", times=None)
    with pytest.raises(InDoubt):
        await memory.store(make_batch(make_exchange(1, "once")))
    assert service.texts(HERE) == ["once"]


@pytest.mark.parametrize(
    "status, expected",
    [(401, Transient), (403, Transient), (402, Transient), (429, Transient), (422, Refused), (500, InDoubt)],
)
async def test_each_http_status_maps_to_its_error(
    memory: HonchoMemory, service: HonchoService, status: int, expected: type[EverholdError]
) -> None:
    await check_refusal(memory, service, "/messages$", status, expected)


async def test_an_unreachable_service_received_nothing(memory: HonchoMemory, service: HonchoService) -> None:
    await check_outage(memory, service)
    assert service.texts(HERE) == ["hello"]


async def test_a_refusal_after_a_partial_write_is_in_doubt(memory: HonchoMemory, service: HonchoService) -> None:
    service.plan_fault("refuse", "/conclusions$", status=422)
    with pytest.raises(PartiallyDone):
        await memory.store(make_batch(make_exchange(1, "stored"), make_note(2, "not wanted")))
    assert await memory.probe(make_batch(make_exchange(1, "stored"), make_note(2, "not wanted"))) == ["s1:1"]


async def test_a_connection_reset_while_idle_loses_no_message(memory: HonchoMemory, service: HonchoService) -> None:
    for op in range(1, 8):
        service.plan_fault("idle", times=1)
        await deliver(memory, make_batch(make_exchange(op, f"turn {op}")))
    assert service.texts(HERE) == [f"turn {op}" for op in range(1, 8)]


async def test_a_deleted_session_is_created_again(memory: HonchoMemory, service: HonchoService) -> None:
    await memory.store(make_batch(make_note(1, "before")))
    service.state.sessions.clear()
    service.state.peers.clear()
    await deliver(memory, make_batch(make_note(2, "after")))
    assert service.list_conclusion_texts() == ["before", "after"]


async def test_a_key_in_an_error_is_masked(make: Make, service: HonchoService) -> None:
    memory = make(api_key="sk-very-secret")
    service.key = "another"
    with pytest.raises(Transient) as caught:
        await memory.store(make_batch(make_exchange(1, "hello")))
    assert "sk-very-secret" not in str(caught.value)
    assert caught.value.remedy


# -- search ------------------------------------------------------------------------------------------------------------


async def test_messages_and_conclusions_are_found_with_their_source(memory: HonchoMemory) -> None:
    await memory.store(make_batch(make_exchange(4, "my tea garden is in Assam"), make_note(6, "has a tea garden")))
    concluded, said = await memory.find(make_query("where is the tea garden"))
    assert concluded.text == "has a tea garden"
    assert (said.text, said.session, said.seq, said.person, said.key) == (
        "my tea garden is in Assam",
        "s1",
        3,
        "ada",
        "s1:4",
    )


async def test_recall_stays_within_its_audience(memory: HonchoMemory) -> None:
    await memory.store(make_batch(make_exchange(1, "my secret garden"), make_note(2, "a secret garden"), name="dm-ada"))
    await memory.store(
        make_batch(
            make_exchange(1, "our secret garden", group="club", session="s2"),
            make_note(2, "the club's secret", group="club", session="s2"),
            name="club",
        )
    )
    assert {it.text for it in await memory.find(make_query("secret garden", name="dm-ada"))} == {
        "my secret garden",
        "a secret garden",
    }
    assert {it.text for it in await memory.find(make_query("secret garden", group="club", name="club"))} == {
        "our secret garden",
        "the club's secret",
    }
    assert await memory.find(make_query("secret garden", who="bob", name="dm-bob")) == []
    assert await memory.find(make_query("secret garden", group="elsewhere", name="elsewhere")) == []


async def test_another_agent_recalls_nothing_unless_allowed(make: Make) -> None:
    await make().store(make_batch(make_exchange(1, "for your ears")))
    other, sharing = make(agent="coder"), make(agent="coder", share_agents=True)
    assert await other.find(make_query("ears", agent="coder", name="x")) == []
    assert len(await sharing.find(make_query("ears", agent="coder", name="x"))) == 1
    assert await sharing.find(make_query("ears", agent="main", name="x")) == ()


async def test_a_search_creates_nothing(memory: HonchoMemory, service: HonchoService) -> None:
    await memory.find(make_query("anything"))
    await memory.probe(make_batch(make_exchange(1, "x"), make_note(2, "y")))
    await memory.health()
    for tool in memory.tools():
        if tool.spec.name != "honcho_conclude":
            await tool.run({"query": "x"}, make_tool_context())
    assert service.state.created == []


# -- tools, forgetting, changes ----------------------------------------------------------------------------------------


async def test_the_tools_have_the_vendor_s_names(memory: HonchoMemory) -> None:
    assert [tool.spec.name for tool in memory.tools()] == [
        "honcho_profile",
        "honcho_search",
        "honcho_reasoning",
        "honcho_context",
        "honcho_conclude",
    ]


async def test_a_conclusion_is_noted_even_if_the_service_is_down(memory: HonchoMemory, service: HonchoService) -> None:
    await service.stop()
    conclude = {tool.spec.name: tool for tool in memory.tools()}["honcho_conclude"]
    result = await conclude.run({"conclusion": "likes tea"}, make_tool_context())
    assert not result.error
    assert [it.text for it in result.notes] == ["likes tea"]
    assert (await conclude.run({}, make_tool_context())).error
    assert (await conclude.run({"conclusion": "a", "list": True}, make_tool_context())).error


async def test_the_tools_return_answers(memory: HonchoMemory, service: HonchoService) -> None:
    await memory.store(make_batch(make_exchange(1, "I grow tea", "nice"), make_note(2, "grows tea")))
    run = {tool.spec.name: tool.run for tool in memory.tools()}
    assert "grows tea" in read_tool(await run["honcho_search"]({"query": "tea"}, make_tool_context()))
    assert "grows tea" in read_tool(await run["honcho_reasoning"]({"query": "who?"}, make_tool_context()))
    assert "I grow tea" in read_tool(await run["honcho_context"]({}, make_tool_context()))
    await run["honcho_profile"]({"card": ["tea"]}, make_tool_context())
    assert read_tool(await run["honcho_profile"]({}, make_tool_context())) == "tea"
    (listed,) = (await run["honcho_conclude"]({"list": True}, make_tool_context())).hits
    id_ = listed.remote_id
    assert (await run["honcho_conclude"]({"delete_id": id_}, make_tool_context(who="bob"))).error
    forwarded = structs.replace(make_tool_context(), sources=("forward:irc:bob",))
    assert "own words" in (await run["honcho_conclude"]({"delete_id": id_}, forwarded)).text
    assert "own words" in (await run["honcho_profile"]({"card": ["pays Bob"]}, forwarded)).text
    assert not (await run["honcho_conclude"]({"delete_id": id_}, make_tool_context())).error
    assert service.list_conclusion_texts() == []


async def test_the_tools_do_not_show_messages_of_another_audience(memory: HonchoMemory) -> None:
    await memory.store(make_batch(make_exchange(1, "my tea secret"), make_note(2, "a tea secret"), name="dm"))
    for who, group in (("ada", "club"), ("bob", "")):
        for tool in memory.tools():
            if tool.spec.name != "honcho_conclude":
                result = await tool.run({"query": "tea"}, make_tool_context(who, group, session="s9"))
                assert "secret" not in read_tool(result)


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("honcho_profile", {"card": ["ada expects a child"]}),
        ("honcho_profile", {}),
        ("honcho_context", {}),
        ("honcho_reasoning", {"query": "news?"}),
        ("honcho_conclude", {"list": True}),
    ],
)
async def test_the_agent_s_own_card_is_not_shown_in_any_chat(
    memory: HonchoMemory, service: HonchoService, name: str, arguments: dict[str, object]
) -> None:
    service.state.cards["home", "main", "main"] = ["ada told a secret"]
    await memory.store(make_batch(make_exchange(1, "hi", who="bob", session="s2"), name="dm-bob"))
    run = {tool.spec.name: tool.run for tool in memory.tools()}[name]
    for who, group in (("bob", ""), ("bob", "club")):
        result = await run({"peer": "ai", **arguments}, make_tool_context(who, group, session="s2"))
        assert result.error
        assert "one record about yourself" in result.text
        assert "secret" not in result.text
    assert service.state.cards == {("home", "main", "main"): ["ada told a secret"]}


async def test_forgetting_deletes_messages_and_names_the_rest(memory: HonchoMemory, service: HonchoService) -> None:
    await memory.store(make_batch(make_exchange(1, "mine"), make_note(2, "a fact"), name="dm"))
    await memory.store(make_batch(make_exchange(1, "ours", group="club", session="s2"), name="club"))
    await memory.store(make_batch(make_exchange(3, "bob's", who="bob", group="club", session="s2"), name="club"))
    exported = [found.text async for found in memory.export("ada")]
    assert exported == ["a fact", "mine", "ours"]
    forgotten = await forget(memory, "ada")
    assert forgotten.deleted == 2
    assert len(forgotten.kept) == 1
    assert "club" in forgotten.kept[0]
    assert service.list_conclusion_texts() == []
    service.work()
    assert (service.texts("dm"), service.texts("club")) == ([], ["ours", "bob's"])


@pytest.mark.parametrize(
    "settings", [{"peer_name": "we", "pin_peer_name": True}, {"user_peer_aliases": {"ada": "we", "bob": "we"}}]
)
async def test_forgetting_one_person_of_a_shared_peer_keeps_the_others(
    make: Make, service: HonchoService, settings: dict[str, object]
) -> None:
    memory = make(**settings)
    for who in ("ada", "bob"):
        mine = make_batch(
            make_exchange(1, f"{who}'s", who=who, session=who), make_note(2, f"fact of {who}", who=who), name=who
        )
        await memory.store(mine)
    both = (
        make_exchange(1, "hers", session="s3"),
        make_exchange(3, "his", who="bob", session="s3"),
        make_note(5, "one's"),
    )
    await memory.store(make_batch(*both, name="both"))
    service.state.cards["home", "main", "we"] = ["tea"]
    assert [found.text async for found in memory.export("bob")] == ["fact of bob", "bob's", "his"]
    forgotten = await forget(memory, "bob")
    assert forgotten.deleted == 2
    service.work()
    assert sorted(service.list_conclusion_texts()) == ["fact of ada", "one's"]
    assert (service.texts("ada"), service.texts("bob"), service.texts("both")) == (["ada's"], [], ["hers", "his"])
    unclear, card, mixed = forgotten.kept
    assert card.startswith("the card of we")
    assert unclear.startswith("1 conclusions about we")
    assert "other people speak in session both" in mixed
    assert service.state.cards["home", "main", "we"] == ["tea"]


async def test_a_deletion_that_is_done_later_is_only_asked_until_reading_back_finds_nothing(
    memory: HonchoMemory, service: HonchoService
) -> None:
    """The service answers 202, hides the session from its lists, and still finds the text."""
    service.deletes_sessions = False
    await memory.store(make_batch(make_exchange(1, "my secret"), make_note(2, "a fact"), name="dm"))
    forgotten = await forget(memory, "ada")
    states = dict(zip([it.id for it in forgotten.deletions], await confirm(memory, forgotten), strict=True))
    assert await memory.list_sessions() == {}
    assert states == {"conclusions:ada": "confirmed", "session:dm": "asked"}
    assert service.texts("dm") == ["my secret"]
    service.deletes_sessions = True
    service.work()
    assert set(await confirm(memory, forgotten)) == {"confirmed"}


async def test_a_session_is_not_deleted_before_its_conversation_has_left_it(
    memory: HonchoMemory, service: HonchoService
) -> None:
    await memory.store(make_batch(make_exchange(1, "mine"), name="dm"))
    (planned,) = await memory.forget(ErasureTarget(identities=("ada",)))
    assert (planned.state, planned.session) == ("planned", "dm")
    assert service.find_requests("/sessions/dm$", "DELETE") == []


async def test_an_agent_does_not_delete_the_sessions_of_another_agent(make: Make, service: HonchoService) -> None:
    """Both use one workspace. The conversation of the other agent has not left its session."""
    mine, other = make(), make(agent="second")
    await mine.store(make_batch(make_exchange(1, "to main"), name="dm"))
    await other.store(make_batch(make_exchange(1, "to second", agent="second", session="s2"), name="dm-second"))
    assert [it.text async for it in mine.export("ada")] == ["to main"]
    forgotten = await forget(mine, "ada")
    assert [it.session for it in forgotten.deletions if it.session] == ["dm"]
    service.work()
    assert (service.texts("dm"), service.texts("dm-second")) == ([], ["to second"])
    await forget(other, "ada")
    service.work()
    assert service.texts("dm-second") == []


async def test_a_session_that_two_agents_share_is_rebuilt_or_named(make: Make, service: HonchoService) -> None:
    mine, other = make(), make(agent="second")
    await mine.store(make_batch(make_exchange(1, "to main"), name="both"))
    await other.store(make_batch(make_exchange(1, "to second", agent="second", session="s2"), name="both"))
    forgotten = await forget(mine, "ada")
    assert "speaks there to another agent" in forgotten.kept[0]
    assert service.texts("both") == ["to main", "to second"]
    await forget(mine, "ada", rebuild=True)
    service.work()
    assert (service.texts("both"), service.texts("both-2")) == ([], ["to second"])


async def test_two_peers_of_one_person_are_not_other_people(make: Make, service: HonchoService) -> None:
    memory = make(user_peer_aliases={"telegram:1": "ada", "matrix:a": "lady"})
    for number, who in enumerate(("telegram:1", "matrix:a"), start=1):
        mine = (make_exchange(number, f"as {who}", who=who), make_note(number + 10, f"fact of {who}", who=who))
        await memory.store(make_batch(*mine, name="dm"))
    assert "other people" in (await forget(memory, "telegram:1")).kept[0]
    forgotten = await forget(memory, "telegram:1", "matrix:a")
    assert forgotten.kept == []
    assert service.list_conclusion_texts() == [], "under both peers, before the session is deleted"
    service.work()
    assert service.texts("dm") == []


async def test_a_rebuilt_session_has_the_words_of_the_others_only(memory: HonchoMemory, service: HonchoService) -> None:
    group = {"group": "club", "session": "s2"}
    mine, his = make_exchange(1, "ours", "yes, ada", **group), make_exchange(3, "bob's", "yes", who="bob", **group)
    note = make_note(5, "a note", who="bob", **group)
    await memory.store(make_batch(mine, his, note, name="club"))
    before = [dict(row) for row in service.state.messages if row["content"] in ("bob's", "yes")]
    forgotten = await forget(memory, "ada", keys=(mine.key,), rebuild=True)
    service.work()
    assert (service.texts("club"), service.texts("club-2")) == ([], ["bob's", "yes"])
    after = list(service.state.messages)
    kept = ("content", "peer_id", "metadata")
    assert [[row[it] for it in kept] for row in after] == [[row[it] for it in kept] for row in before]
    assert [(row["content"], row["session_id"]) for row in service.state.conclusions] == [("a note", "club-2")]
    assert set(await confirm(memory, forgotten)) == {"confirmed"}


async def test_forgetting_reports_notes_from_groups(memory: HonchoMemory, service: HonchoService) -> None:
    await memory.store(make_batch(make_note(2, "ours", group="club", session="s2"), name="club"))
    await memory.store(make_batch(make_exchange(4, "hello", group="club", session="s2"), name="club"))
    await memory.store(make_batch(make_exchange(6, "yes", who="bob", group="club", session="s2"), name="club"))
    forgotten = await forget(memory, "ada")
    assert service.list_conclusion_texts() == ["ours"]
    assert forgotten.kept[-1].startswith("1 conclusions from notes in groups: it is unknown whose notes they were")


async def test_any_changed_setting_changes_the_signature_and_shows_no_key(make: Make) -> None:
    first = make(api_key="sk-one").cache_busting_signature()
    assert first == make(api_key="sk-one").cache_busting_signature()
    for change in (
        {"api_key": "sk-two"},
        {"workspace": "other"},
        {"user_peer_aliases": {"a": "b"}},
        {"peer_name": "x"},
    ):
        assert make(**{"api_key": "sk-one", **change}).cache_busting_signature() != first
    assert "sk-one" not in str(first)


# -- the persona -------------------------------------------------------------------------------------------------------


async def test_a_persona_is_on_the_card_of_the_agent_and_on_nobody_elses(
    memory: HonchoMemory, service: HonchoService
) -> None:
    card = ("home", "main", "main")
    memory.set_persona("You are calm.\n")
    await memory.store(make_batch(make_exchange(1, "hi", "hello")))
    assert service.state.cards == {card: ["Persona: You are calm."]}
    assert service.state.conclusions == [], "it is nothing that is known about a person"
    service.state.cards[card].append("found out by the service")
    memory.set_persona("You are brief.")
    await memory.store(make_batch(make_exchange(2, "hi", "hello")))
    await memory.store(make_batch(make_exchange(3, "hi", "hello")))
    assert service.state.cards == {card: ["Persona: You are brief.", "found out by the service"]}
    assert len(service.find_requests("/card$", "PUT")) == 2
    memory.set_persona("")
    await memory.store(make_batch(make_exchange(4, "hi", "hello")))
    assert service.state.cards == {card: ["found out by the service"]}


async def test_a_persona_that_is_refused_delays_nothing(memory: HonchoMemory, service: HonchoService) -> None:
    memory.set_persona("You are calm.")
    service.plan_fault("refuse", "/card$", status=422)
    assert await memory.store(make_batch(make_exchange(1, "hi", "hello")))
    assert service.state.cards == {}
    await memory.store(make_batch(make_exchange(2, "hi", "hello")))
    assert len(service.state.cards) == 1


async def test_an_alias_is_the_name_that_another_program_gave(make: Make, service: HonchoService) -> None:
    memory = make(user_peer_aliases={"ada": "-ada-example-org"})
    await memory.store(make_batch(make_exchange(1, "hi", "hello")))
    assert service.state.messages[0]["peer_id"] == "-ada-example-org"
