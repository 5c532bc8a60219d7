"""A session at Honcho is stored anew without messages that were undone, and without what was concluded from them."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from msgspec import structs

from everhold.memories.honcho import renewal as honcho_renewal
from everhold.memories.honcho.provider import HonchoMemory
from everhold.ports.memory import ErasureState, MemoryBatch, MemoryRetraction, ProviderDeletion, SessionRenewal
from everhold.testing.services.honcho import HonchoService
from tests.memories.memory_items import make_batch, make_exchange, make_note

DAY = 24 * 3_600.0
NOW = 1_790_000_000.0
SECRET = "my telescope is secret"


class ServiceClock:
    """The clock of the service, which a test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(service: HonchoService) -> ServiceClock:
    made = ServiceClock()
    service.derives, service.clock = True, made
    return made


def said_at(op: int, text: str, at: float, **more: Any) -> Any:
    made = make_exchange(op, text, f"answer {op}", session="s", **more)
    return structs.replace(
        made,
        heard=tuple(structs.replace(it, at=at) for it in made.heard),
        said=tuple(structs.replace(it, at=at) for it in made.said),
    )


async def tell(memory: HonchoMemory, clock: ServiceClock, op: int, text: str, at: float) -> None:
    """Say something, which the service stores and reasons about at once."""
    clock.now = at
    await memory.store(make_batch(said_at(op, text, at), name="old"))


def renew(**more: Any) -> SessionRenewal:
    made = SessionRenewal(name="old", new_name="new", is_left=True, keys=frozenset({"s:3"}), since=NOW)
    return structs.replace(made, **more)


async def tell_story(memory: HonchoMemory, clock: ServiceClock) -> None:
    await tell(memory, clock, 1, "I live in Rome", NOW - 10 * DAY)
    await tell(memory, clock, 2, "I like tea", NOW - 3_600)
    await tell(memory, clock, 3, SECRET, NOW)
    await tell(memory, clock, 4, "I have a cat", NOW + 60)
    clock.now = NOW + 120


async def renew_whole(memory: HonchoMemory, service: HonchoService, **more: Any) -> list[ProviderDeletion]:
    await memory.renew_session(renew(is_left=False, **more))
    deletions = list(await memory.renew_session(renew(**more)))
    service.work()
    return deletions


async def test_the_new_session_has_everything_else(
    memory: HonchoMemory, service: HonchoService, clock: ServiceClock
) -> None:
    await tell_story(memory, clock)
    (planned,) = await memory.renew_session(renew(is_left=False))
    assert planned.state is ErasureState.PLANNED
    assert SECRET in service.texts("old")
    (asked,) = await memory.renew_session(renew())
    assert asked.state is ErasureState.ASKED
    assert asked.id == planned.id
    assert await memory.confirm_deletions([asked]) == {asked.id: ErasureState.CONFIRMED}
    texts = service.texts("new")
    assert texts == ["I live in Rome", "answer 1", "I like tea", "answer 2", "I have a cat", "answer 4"]
    everything = [*service.texts("old"), *texts, *service.list_conclusion_texts()]
    assert SECRET not in str(everything)
    assert {row["session_id"] for row in service.state.conclusions} == {"new"}
    concluded = [row["content"] for row in service.state.conclusions if row["observer_id"] == "main"]
    for text in ("I live in Rome", "I like tea", "I have a cat"):
        assert any(text in it for it in concluded), text
    assert sum("I live in Rome" in it for it in concluded) == 1, "old messages are not reasoned about again"


async def test_copies_keep_their_time_key_and_audience(
    memory: HonchoMemory, service: HonchoService, clock: ServiceClock
) -> None:
    await tell_story(memory, clock)
    before = {row["content"]: row for row in service.state.messages}
    await renew_whole(memory, service)
    for row in service.state.messages:
        old = before[row["content"]]
        assert row["created_at"][:19] == old["created_at"][:19]
        assert old["metadata"].items() <= row["metadata"].items()


@pytest.mark.parametrize("how", ["lose", "refuse"])
@pytest.mark.parametrize("at", [1, 2])
async def test_a_repeat_stores_nothing_twice(
    memory: HonchoMemory, service: HonchoService, clock: ServiceClock, how: Literal["lose", "refuse"], at: int
) -> None:
    """A crash or a lost answer at a write leaves nothing that a repeat does not finish."""
    await tell_story(memory, clock)
    path = "/messages$" if at == 1 else "/conclusions$"
    service.plan_fault(how, method="POST", path=path, status=503, times=1)
    with pytest.raises(Exception, match="Honcho"):
        await renew_whole(memory, service)
    await renew_whole(memory, service)
    assert len(service.texts("new")) == len(set(service.texts("new"))) == 6
    mine = [row["content"] for row in service.state.conclusions if row["observer_id"] == "main"]
    assert sum("I live in Rome" in it for it in mine) == 1


async def test_a_session_without_the_messages_is_left_alone(
    memory: HonchoMemory, service: HonchoService, clock: ServiceClock
) -> None:
    await tell(memory, clock, 1, "I live in Rome", NOW)
    assert await memory.renew_session(renew(is_left=False)) == []
    assert service.state.created == ["old"]


async def test_notes_are_kept_however_new(memory: HonchoMemory, service: HonchoService, clock: ServiceClock) -> None:
    await tell_story(memory, clock)
    await memory.store(make_batch(make_note(9, "is allergic to nuts", session="s"), name="old"))
    await renew_whole(memory, service, notes=frozenset({"is allergic to nuts"}))
    assert "is allergic to nuts" in service.list_conclusion_texts()


async def test_words_of_other_programs_are_kept(
    memory: HonchoMemory, service: HonchoService, clock: ServiceClock
) -> None:
    await tell_story(memory, clock)
    foreign = {"content": "said to another program", "peer_id": "ada", "metadata": {}}
    for _ in range(2):
        service.state.messages.append(
            {**service.state.messages[0], **foreign, "id": service._next_id("msg"), "created_at": service._next_time()}
        )
    await renew_whole(memory, service)
    assert service.texts("new").count("said to another program") == 2


async def test_what_honcho_made_of_a_conclusion_goes_with_it(
    memory: HonchoMemory, service: HonchoService, clock: ServiceClock
) -> None:
    """A dream draws conclusions from conclusions, and may store them in another session."""
    await tell_story(memory, clock)
    source = next(it for it in service.state.conclusions if SECRET in it["content"] and it["observer_id"] == "main")
    other = next(it for it in service.state.conclusions if "Rome" in it["content"] and it["observer_id"] == "main")
    for id, content, sources in (
        ("d1", "hides an instrument", [source["id"]]),
        ("d2", "is a shy astronomer", ["d1"]),
        ("d3", "is a Roman", [other["id"]]),
    ):
        dreamt = {"id": id, "content": content, "source_ids": sources, "level": "deductive", "session_id": "elsewhere"}
        service.state.conclusions.append({**source, **dreamt})
    await renew_whole(memory, service)
    left = service.list_conclusion_texts()
    assert "is a Roman" in left
    assert "hides an instrument" not in left
    assert "is a shy astronomer" not in left


async def test_a_former_owner_s_conclusions_do_not_become_new(
    memory: HonchoMemory, service: HonchoService, clock: ServiceClock
) -> None:
    """A peer stands for its person from a time on. A copy of an older conclusion would look newer than that."""
    await tell_story(memory, clock)
    (peer,) = {row["peer_id"] for row in service.state.messages} - {"main"}
    await renew_whole(memory, service, starts={peer: NOW - DAY})
    concluded = str(service.list_conclusion_texts())
    assert "Rome" not in concluded
    assert "tea" in concluded
    assert "I live in Rome" in service.texts("new"), "its time is kept, so it is judged by that"


async def test_a_later_session_of_the_same_name_is_not_the_deleted_one(
    memory: HonchoMemory, service: HonchoService, clock: ServiceClock
) -> None:
    await tell_story(memory, clock)
    service.deletes_sessions = False
    deletions = await renew_whole(memory, service)
    assert set((await memory.confirm_deletions(deletions)).values()) == {ErasureState.ASKED}
    service.deletes_sessions = True
    service.work()
    await tell(memory, clock, 7, "a new directory session", NOW + 200)
    assert set((await memory.confirm_deletions(deletions)).values()) == {ErasureState.CONFIRMED}


async def test_an_undo_finds_messages_under_the_name_of_their_time(
    memory: HonchoMemory, service: HonchoService, clock: ServiceClock
) -> None:
    await tell(memory, clock, 3, SECRET, NOW)
    gone = MemoryRetraction(key="s:9:retract", session="s", agent="main", keys=("s:3",))
    batch = MemoryBatch(name="titled since", items=(gone,), names_of={"s:3": "old"})
    assert await memory.probe(batch) == []
    await memory.store(batch)
    assert await memory.probe(batch) == ["s:9:retract"]
    assert all(row["metadata"].get("everhold_retracted") for row in service.state.messages)


async def test_the_planted_bug_copying_every_conclusion_is_found(
    memory: HonchoMemory, service: HonchoService, clock: ServiceClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(honcho_renewal.HonchoRenewal, "_is_kept", lambda self, one: True)
    await tell_story(memory, clock)
    await renew_whole(memory, service)
    assert SECRET in str(service.list_conclusion_texts())
