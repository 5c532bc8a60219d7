"""Honcho with people who have several identities and peers: what is found for whom, and what is derived."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from everhold.core.people import AudienceMember, PresentAudience
from everhold.memories import scope
from everhold.memories.honcho import provider as honcho_provider
from everhold.memories.honcho.provider import HonchoMemory
from everhold.ports.memory import MemoryQuery
from everhold.ports.tool import ToolContext
from everhold.testing.services.honcho import HonchoService
from tests.memories.memory_items import make_batch, make_exchange, make_note, make_query, make_stamp

from .conftest import Make

TELEGRAM, DISCORD = "telegram:1001", "discord:77"


def make_present(*identities: str) -> PresentAudience:
    """Return one person with these identities, who is present with the first of them."""
    members = tuple(AudienceMember(f"person:{it}") for it in identities)
    return PresentAudience((f"person:{identities[0]}",), (members,))


def ask(text: str, *identities: str, **peers: tuple[str, ...]) -> MemoryQuery:
    named = {{"telegram": TELEGRAM, "discord": DISCORD}[name]: known for name, known in peers.items()}
    return make_query(text, who=identities[0], present=make_present(*identities), peers=named)


def spoken_by(identity: str, peer: str, text: str, op: int = 1) -> Any:
    made = make_exchange(op, text, "noted", who=identity, session=f"s-{op}")
    return structs.replace(
        made, heard=tuple(structs.replace(it, peer=peer) for it in made.heard), peers={identity: peer}
    )


async def test_what_honcho_derives_is_found(memory: HonchoMemory, service: HonchoService) -> None:
    """Honcho derives for observing peers only, and everhold reads what the agent's peer observed."""
    service.derives = True
    await memory.store(make_batch(spoken_by(TELEGRAM, "ada", "my telescope stands on the roof")))
    found = await memory.find(ask("telescope", TELEGRAM, telegram=("ada",)))
    assert "ada said: my telescope stands on the roof" in [it.text for it in found]
    tool = next(it for it in memory.tools() if it.spec.name == "honcho_conclude")
    context = ToolContext(
        session="s-1",
        agent="main",
        op=1,
        key="k",
        stamp=make_stamp(TELEGRAM),
        present=make_present(TELEGRAM),
        peers={TELEGRAM: ("ada",)},
    )
    listed = await tool.run({"list": True}, context)
    assert "telescope" in str(listed.hits), "the gateway judges the conclusions and renders them"


async def test_an_existing_session_gets_the_configuration_too(make: Make, service: HonchoService) -> None:
    service.derives = True
    memory = make()
    batch = make_batch(spoken_by(TELEGRAM, "ada", "my telescope is old"))
    service.state.sessions["home", batch.name] = {
        "id": batch.name,
        "workspace_id": "home",
        "is_active": True,
        "metadata": {},
        "configuration": {},
        "peers": {"main": {}, "ada": {}},
        "created_at": "2026-01-01T00:00:00+00:00",
    }
    await memory.store(batch)
    assert service.state.sessions["home", batch.name]["peers"]["main"]["observe_others"] is True
    assert {row["observer_id"] for row in service.state.conclusions if row["observed_id"] == "ada"} == {"ada", "main"}


async def test_all_peers_and_identities_of_a_person_are_asked_for(memory: HonchoMemory) -> None:
    await memory.store(make_batch(spoken_by(TELEGRAM, "1001", "my telescope is old", 1)))
    await memory.store(make_batch(spoken_by(DISCORD, "ada", "my telescope is new", 2)))
    await memory.store(make_batch(make_note(5, "owns a telescope", who=TELEGRAM, peers={TELEGRAM: "1001"})))
    found = [
        it.text for it in await memory.find(ask("telescope", DISCORD, TELEGRAM, telegram=("1001",), discord=("ada",)))
    ]
    assert {"my telescope is old", "my telescope is new", "owns a telescope"} <= set(found)
    alone = [it.text for it in await memory.find(ask("telescope", DISCORD, discord=("ada",)))]
    assert {"my telescope is old", "owns a telescope"}.isdisjoint(alone)


async def test_what_hermes_agent_stored_under_a_bare_id_is_found(memory: HonchoMemory, service: HonchoService) -> None:
    """PEOPLE scenario 5: the conclusion is recalled, and the next message goes there."""
    await memory.store(make_batch(make_note(1, "grows tea", who=TELEGRAM, peers={TELEGRAM: "1001"})))
    assert {row["observed_id"] for row in service.state.conclusions} == {"1001"}
    assert [it.text for it in await memory.find(ask("tea", TELEGRAM, telegram=("1001",)))] == ["grows tea"]
    assert not await memory.find(ask("tea", TELEGRAM))


async def leak_between_people_of_one_peer(memory: HonchoMemory) -> list[str]:
    """Two people have the same peer by alias. Return what Bob finds of what Ada said in private."""
    await memory.store(make_batch(spoken_by(TELEGRAM, "both", "my telescope is secret", 1)))
    found = await memory.find(ask("telescope", DISCORD, discord=("both",)))
    return [it.text for it in found]


async def test_two_people_with_one_peer_do_not_find_each_other_s_messages(memory: HonchoMemory) -> None:
    assert await leak_between_people_of_one_peer(memory) == []


async def test_the_planted_bug_marks_from_peers_is_noticed(
    memory: HonchoMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = scope.build_audience_marks
    monkeypatch.setattr(honcho_provider, "build_audience_marks", lambda audience: real(["both" for _ in audience]))
    assert "my telescope is secret" in await leak_between_people_of_one_peer(memory)


async def test_a_moved_session_leaves_nothing_behind(memory: HonchoMemory, service: HonchoService) -> None:
    said = spoken_by(TELEGRAM, "1001", "my telescope is old")
    note = make_note(5, "owns a telescope", who=TELEGRAM, session="s-1", peers={TELEGRAM: "1001"})
    old = make_batch(said, note, name="before")
    await memory.store(old)
    assert await memory.remove_session("before"), "a session with items that were not moved is kept"
    moved = structs.replace(spoken_by(TELEGRAM, "ada", "my telescope is old"), key="s-1:1@ada")
    noted = structs.replace(note, key="s-1:5:note@ada", peers={TELEGRAM: "ada"})
    new = structs.replace(make_batch(moved, noted, name="after"), is_moved=True)
    assert await memory.probe(new) == []
    await memory.store(new)
    assert set(await memory.probe(new)) == {"s-1:1@ada", "s-1:5:note@ada"}
    assert await memory.remove(old) == ()
    assert await memory.remove_session("before") == ""
    service.work()  # Honcho deletes a session some time after it has answered
    assert {row["session_id"] for row in (*service.state.messages, *service.state.conclusions)} == {"after"}
    assert {row["peer_id"] for row in service.state.messages} == {"ada", "main"}
    assert {row["observed_id"] for row in service.state.conclusions} == {"ada"}
