"""What every store promises about people: links, unlinks, merges, first messages and peers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from everhold.core.people import (
    IdentityProof,
    PeopleAction,
    PeopleDirectory,
    PeopleEvent,
    PeoplePlanner,
    build_directory,
)
from everhold.errors import Conflict, InvalidRequest
from everhold.ports.store import FROM_COMMIT, Change, FirstSeen, PeerRecord, Step
from everhold.testing.contracts.store_scenario import StoreScenario, store_promise

_NUMBERS = itertools.count(1)


async def change_people(
    scenario: StoreScenario, plan: Callable[[PeoplePlanner], None], *, at: float = 1.0
) -> PeopleDirectory:
    """Commit what `plan` adds, and return the directory after it."""
    directory = await scenario.store.get_people()
    planner = PeoplePlanner(directory, new_id=lambda: f"p_{next(_NUMBERS):010d}", at=at, by="operator")
    plan(planner)
    await scenario.store.commit(
        Change(step=Step.PEOPLE, session="", at=at, people=tuple(planner.events), people_epoch=directory.epoch)
    )
    return await scenario.store.get_people()


class PeopleStoreContract:
    """Links and what follows from them."""

    @store_promise
    async def test_a_link_moves_an_identity_and_an_unlink_takes_it_back(self, scenario: StoreScenario) -> None:
        await change_people(
            scenario, lambda it: it.link_identity("telegram:1", it.get_labelled("ada"), IdentityProof.OPERATOR)
        )
        people = await change_people(
            scenario, lambda it: it.link_identity("slack:U1", it.get_labelled("ada"), IdentityProof.OPERATOR)
        )
        assert people.is_same_person("telegram:1", "slack:U1")
        people = await change_people(
            scenario, lambda it: it.link_identity("telegram:1", it.get_labelled("bob"), IdentityProof.OPERATOR)
        )
        assert (people.find_label("telegram:1"), people.find_label("slack:U1")) == ("bob", "ada")
        assert people.find_person("slack:U2") is None
        people = await change_people(scenario, lambda it: it.unlink_identity("telegram:1"))
        assert people.find_label("telegram:1") == ""
        assert people.find_label("slack:U1") == "ada"

    @store_promise
    async def test_the_directory_follows_from_the_people_log(self, scenario: StoreScenario) -> None:
        await change_people(
            scenario, lambda it: it.link_identity("telegram:1", it.get_labelled("ada"), IdentityProof.CONFIG)
        )
        await scenario.store.commit(
            Change(
                step=Step.PEOPLE,
                session="",
                at=2.0,
                first_seen=(FirstSeen(identity="slack:U1", person="p_seenseen00"),),
            )
        )
        await change_people(
            scenario,
            lambda it: it.join_people(it.get_person("telegram:1"), it.get_person("slack:U1"), IdentityProof.LINKED),
            at=3.0,
        )
        people = await change_people(scenario, lambda it: it.unlink_identity("slack:U1"), at=4.0)
        derived = build_directory(await scenario.store.list_people_events(limit=1_000))
        assert (derived.persons, derived.identities, derived.epoch) == (people.persons, people.identities, people.epoch)
        assert people.identities["slack:U1"].person == "p_seenseen00", "an unlinked identity is who it was before"
        assert not people.persons["p_seenseen00"].merged_into
        assert await scenario.store.verify() == []

    @store_promise
    async def test_a_change_planned_on_older_people_is_refused(self, scenario: StoreScenario) -> None:
        before = await scenario.store.get_people()
        await change_people(
            scenario, lambda it: it.link_identity("telegram:1", it.get_labelled("ada"), IdentityProof.CONFIG)
        )
        late = PeoplePlanner(before, new_id=lambda: "p_late000000", at=2.0, by="operator")
        late.link_identity("telegram:1", late.get_labelled("bob"), IdentityProof.OPERATOR)
        change = Change(step=Step.PEOPLE, session="", at=2.0, people=tuple(late.events), people_epoch=before.epoch)
        with pytest.raises(Conflict):
            await scenario.store.commit(change)
        assert (await scenario.store.get_people()).find_label("telegram:1") == "ada"
        with pytest.raises(InvalidRequest):
            await scenario.store.commit(Change(step=Step.PEOPLE, session="", at=2.0, people=tuple(late.events)))

    @store_promise
    async def test_the_first_message_makes_a_person_once(self, scenario: StoreScenario) -> None:
        for person in ("p_first00000", "p_second0000"):
            seen = (FirstSeen(identity="telegram:5", person=person),)
            await scenario.store.commit(Change(step=Step.PEOPLE, session="", at=1.0, first_seen=seen))
        people = await scenario.store.get_people()
        assert people.identities["telegram:5"].person == "p_first00000"
        assert people.identities["telegram:5"].proof == IdentityProof.SEEN
        assert set(people.persons) == {"p_first00000"}

    @store_promise
    async def test_the_same_directory_is_returned_until_something_changes(self, scenario: StoreScenario) -> None:
        first = await scenario.store.get_people()
        assert await scenario.store.get_people() is first
        second = await change_people(
            scenario, lambda it: it.link_identity("telegram:1", it.get_labelled("ada"), IdentityProof.CONFIG)
        )
        assert second is not first
        assert second.epoch > first.epoch

    @store_promise
    async def test_a_snapshot_of_a_session_has_the_people_of_now(self, scenario: StoreScenario) -> None:
        assert (await scenario.store.get_session_snapshot("s")).people.epoch == 0
        await change_people(
            scenario, lambda it: it.link_identity("telegram:1", it.get_labelled("ada"), IdentityProof.CONFIG)
        )
        await scenario.store.commit(
            Change(
                step=Step.PEOPLE,
                session="",
                at=1.0,
                people=(PeopleEvent(action=PeopleAction.UNLINKED, person="p", identity="telegram:2"),),
                people_epoch=(await scenario.store.get_people()).epoch,
            )
        )
        people = (await scenario.store.get_session_snapshot("s")).people  # before anything else reads them
        assert people.has_parted_since("telegram:2")
        assert people is await scenario.store.get_people()

    @store_promise
    async def test_a_change_can_be_refused_if_the_people_changed_since_they_were_read(
        self, scenario: StoreScenario
    ) -> None:
        people = await change_people(
            scenario, lambda it: it.link_identity("telegram:1", it.get_labelled("ada"), IdentityProof.CONFIG)
        )
        seen, stranger = people.epoch, FirstSeen(identity="telegram:5", person="p_stranger00")
        await scenario.store.commit(Change(step=Step.PEOPLE, session="", at=1.0, first_seen=(stranger,)))
        await scenario.commit_heard("one", people_seen=seen)  # nobody has become another person
        await change_people(scenario, lambda it: it.unlink_identity("telegram:1"))
        with pytest.raises(Conflict):
            await scenario.commit_heard("two", people_seen=seen)
        now = (await scenario.store.get_people()).epoch
        await scenario.commit_heard("three", people_seen=now)
        await change_people(
            scenario, lambda it: it.link_identity("telegram:1", it.get_labelled("bob"), IdentityProof.OPERATOR)
        )
        with pytest.raises(Conflict):
            await scenario.commit_heard("four", people_seen=now)
        assert await scenario.read_texts() == ["one", "three"]

    @store_promise
    async def test_a_label_may_move_in_one_change(self, scenario: StoreScenario) -> None:
        await change_people(
            scenario, lambda it: it.link_identity("telegram:1", it.get_labelled("ada"), IdentityProof.CONFIG)
        )
        old = (await scenario.store.get_people()).resolve_name("ada")
        assert old is not None

        def swap(planner: PeoplePlanner) -> None:
            planner.name_person(old.id, "")
            planner.link_identity("telegram:2", planner.get_labelled("ada"), IdentityProof.CONFIG)

        people = await change_people(scenario, swap, at=2.0)
        assert (people.find_label("telegram:1"), people.find_label("telegram:2")) == ("", "ada")

    @store_promise
    async def test_the_name_of_a_forgotten_person_is_gone_from_the_people_log(self, scenario: StoreScenario) -> None:
        people = await change_people(
            scenario, lambda it: it.link_identity("telegram:1", it.get_labelled("ada"), IdentityProof.OPERATOR)
        )
        person = people.resolve_name("ada")
        assert person is not None
        people = await change_people(scenario, lambda it: it.forget_person(person.id), at=2.0)
        assert people.resolve_name("ada") is None
        events = await scenario.store.list_people_events()
        assert [it.action for it in events][-1] is PeopleAction.FORGOTTEN
        assert "ada" not in [it.note for it in events]

    @store_promise
    async def test_a_recorded_peer_stays(self, scenario: StoreScenario) -> None:
        first = PeerRecord(memory="honcho", agent="main", identity="telegram:1", peer="ada", source="label")
        other = PeerRecord(memory="honcho", agent="main", identity="telegram:1", peer="x", from_pos=7, source="alias")
        await scenario.store.commit(Change(step=Step.PEOPLE, session="", at=1.0, peers=(first, other)))
        await scenario.store.commit(Change(step=Step.PEOPLE, session="", at=1.0, peers=(first,)))
        changed = PeerRecord(memory="honcho", agent="main", identity="telegram:1", peer="bob")
        with pytest.raises(Conflict):
            await scenario.store.commit(Change(step=Step.PEOPLE, session="", at=1.0, peers=(changed,)))
        assert await scenario.store.list_peers(memory="honcho", agent="main") == [first, other]
        assert await scenario.store.list_peers(memory="mem0") == []

    @store_promise
    async def test_a_peer_from_its_commit_on_applies_to_no_earlier_entry(self, scenario: StoreScenario) -> None:
        store = scenario.store

        async def record(peer: str) -> None:
            row = PeerRecord(memory="m", agent="main", identity="telegram:1", peer=peer, from_pos=FROM_COMMIT)
            await store.commit(Change(step=Step.PEOPLE, session="", at=1.0, peers=(row,)))

        async def list_rows() -> list[tuple[int, str]]:
            rows = await store.list_peers(memory="m", agent="main", identities=("telegram:1",))
            return [(row.from_pos, row.peer) for row in rows]

        await scenario.commit_heard("before")
        earlier = await store.last_pos()
        await record("first")
        seq = await scenario.commit_heard("hello")
        said = (await store.get_entry("s", seq)).pos
        await record("first")
        ((begins, peer),) = await list_rows()
        assert earlier < begins <= said, "it applies to the next entry and to none before"
        assert peer == "first", "it is in force already"
        await record("second")
        await record("third")
        later = (await store.get_entry("s", await scenario.commit_heard("again"))).pos
        rows = await list_rows()
        assert [row for row in rows if row[0] <= said] == [(begins, "first")]
        assert said < rows[-1][0] <= later
        assert rows[-1][1] == "third", "the second one applied to nothing"
        assert await store.list_peers(memory="m", agent="main", identities=()) == []
