"""Who an identity belongs to: planning changes, the configuration, and what the people present may hear."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from everhold.core.people import (
    ConfiguredPerson,
    IdentityProof,
    PeopleAction,
    PeopleDirectory,
    PeopleEvent,
    PeoplePlanner,
    build_directory,
    build_identity,
    build_present,
    can_change_hands,
    can_hear,
    make_person_id,
    plan_configured_people,
)
from everhold.errors import InvalidRequest, NotFound

ADA = ConfiguredPerson("ada", ("telegram:1001", "local:ada"))
BOB = ConfiguredPerson("bob", ("telegram:7",))


class PeopleBook:
    """A people log in memory."""

    def __init__(self) -> None:
        self.events: list[PeopleEvent] = []
        self.ids = (f"p_{number:010d}" for number in itertools.count(1))
        self.at = 0.0

    @property
    def directory(self) -> PeopleDirectory:
        return build_directory(self.events)

    def plan(self) -> PeoplePlanner:
        self.at += 1.0
        return PeoplePlanner(self.directory, new_id=lambda: next(self.ids), at=self.at, by="operator")

    def keep(self, planner: PeoplePlanner) -> PeopleDirectory:
        return self.add(planner.events)

    def add(self, events: list[PeopleEvent]) -> PeopleDirectory:
        for event in events:
            self.events.append(
                PeopleEvent(
                    action=event.action,
                    person=event.person,
                    identity=event.identity,
                    proof=event.proof,
                    since=event.since,
                    note=event.note,
                    n=len(self.events) + 1,
                    at=event.at,
                )
            )
        return self.directory

    def configure(self, *people: ConfiguredPerson) -> PeopleDirectory:
        self.at += 1.0
        return self.add(plan_configured_people(self.directory, people, new_id=lambda: next(self.ids), at=self.at))

    def see(self, identity: str) -> PeopleDirectory:
        planner = self.plan()
        planner.get_person(identity)
        return self.keep(planner)


def test_an_identity_has_the_platform_of_its_sender() -> None:
    assert build_identity("telegram", "1001") == "telegram:1001"
    assert build_identity("terminal", "ada") == "local:ada"
    assert build_identity("http", "ada") == "http:ada"


@given(st.binary(min_size=7, max_size=7))
def test_a_person_id_has_ten_readable_characters(random: bytes) -> None:
    id = make_person_id(random)
    assert id.startswith("p_")
    assert len(id) == 12
    assert id[2:].islower() or id[2:].isdigit() or id[2:].isalnum()


def test_the_configuration_names_the_person_that_has_spoken_before() -> None:
    book = PeopleBook()
    before = book.see("telegram:1001").identities["telegram:1001"].person
    after = book.configure(ADA)
    assert after.identities["telegram:1001"].person == before
    assert after.find_label("telegram:1001") == after.find_label("local:ada") == "ada"
    assert after.identities["telegram:1001"].proof == IdentityProof.CONFIG
    assert book.configure(ADA).epoch == after.epoch, "the same configuration changes nothing"


def test_an_identity_taken_out_of_the_configuration_is_unlinked() -> None:
    book = PeopleBook()
    book.configure(ADA)
    after = book.configure(ConfiguredPerson("ada", ("local:ada",)))
    assert after.find_label("telegram:1001") == ""
    assert after.identities["telegram:1001"].proof == IdentityProof.SEEN
    assert book.configure(ADA).find_label("telegram:1001") == "ada"


def test_a_renamed_person_stays_the_same_person() -> None:
    book = PeopleBook()
    before = book.configure(ADA).identities["telegram:1001"].person
    after = book.configure(ConfiguredPerson("lovelace", ADA.identities))
    assert after.identities["telegram:1001"].person == before
    assert after.resolve_name("lovelace") == after.persons[before]
    assert after.resolve_name("ada") is None


def test_a_name_that_an_operator_gave_the_local_user_stays() -> None:
    book = PeopleBook()
    local = ConfiguredPerson("root", (), ("local:root", "http:root"))
    person = book.configure(local).identities["local:root"].person
    planner = book.plan()
    planner.name_person(person, "ada")
    book.keep(planner)
    after = book.configure(local)
    assert after.find_label("local:root") == after.find_label("http:root") == "ada"
    assert after.identities["local:root"].person == person


def test_two_configured_people_never_become_one() -> None:
    book = PeopleBook()
    planner = book.plan()
    planner.join_people(planner.get_person("telegram:1001"), planner.get_person("telegram:7"), IdentityProof.LINKED)
    book.keep(planner)
    after = book.configure(ADA, BOB)
    assert not after.is_same_person("telegram:1001", "telegram:7")
    assert (after.find_label("telegram:1001"), after.find_label("telegram:7")) == ("ada", "bob")


def test_the_configuration_wins_over_a_link() -> None:
    book = PeopleBook()
    book.configure(ADA, BOB)
    planner = book.plan()
    planner.link_identity("discord:5", planner.get_labelled("bob"), IdentityProof.LINKED)
    book.keep(planner)
    after = book.configure(ConfiguredPerson("ada", (*ADA.identities, "discord:5")), BOB)
    assert after.find_label("discord:5") == "ada"


def test_a_label_belongs_to_one_person() -> None:
    book = PeopleBook()
    book.configure(ADA)
    planner = book.plan()
    with pytest.raises(InvalidRequest):
        planner.name_person(planner.get_person("telegram:7"), "ada")
    with pytest.raises(NotFound):
        planner.link_identity("telegram:7", "p_unknown000", IdentityProof.OPERATOR)


def test_an_unlinked_identity_is_the_person_that_it_was_before() -> None:
    book = PeopleBook()
    before = book.see("discord:5").identities["discord:5"].person
    book.configure(ADA)
    planner = book.plan()
    planner.link_identity("discord:5", planner.get_labelled("ada"), IdentityProof.OPERATOR)
    linked = book.keep(planner)
    assert linked.persons[before].merged_into == linked.identities["telegram:1001"].person
    assert linked.follow_merges(before) == linked.identities["telegram:1001"].person
    planner = book.plan()
    planner.unlink_identity("discord:5")
    after = book.keep(planner)
    assert after.identities["discord:5"].person == before
    assert not after.persons[before].merged_into
    assert after.has_parted_since("discord:5")
    assert after.has_parted_since("telegram:1001"), "its person lost an identity"
    assert not after.has_parted_since("discord:5", after.epoch)
    assert not linked.has_parted_since("telegram:1001")


def test_a_forgotten_person_has_no_label_and_no_identities() -> None:
    book = PeopleBook()
    person = book.configure(ADA).identities["telegram:1001"].person
    planner = book.plan()
    planner.forget_person(person)
    after = book.keep(planner)
    assert after.find_person("telegram:1001") is None
    assert after.resolve_name("ada") is None
    assert book.see("telegram:1001").identities["telegram:1001"].person != person


def test_a_proof_by_import_or_by_speaking_grants_no_name() -> None:
    book = PeopleBook()
    book.configure(ADA)
    planner = book.plan()
    planner.link_identity("signal:+1", planner.get_labelled("ada"), IdentityProof.IMPORT)
    after = book.keep(planner)
    assert after.find_label("signal:+1") == "ada"
    assert after.find_proven_label("signal:+1") == ""
    assert after.find_proven_label("telegram:1001") == "ada"


def test_an_unlinked_identity_of_its_own_is_not_proven_any_more() -> None:
    book = PeopleBook()
    planner = book.plan()
    planner.link_identity("telegram:9", planner.get_person("telegram:9"), IdentityProof.PAIRED)
    assert book.keep(planner).identities["telegram:9"].is_proven
    planner = book.plan()
    planner.unlink_identity("telegram:9")
    assert not book.keep(planner).identities["telegram:9"].is_proven


def test_a_link_proves_only_the_identity_that_took_part() -> None:
    book = PeopleBook()
    planner = book.plan()
    planner.link_identity("signal:+1", planner.get_person("irc:eve"), IdentityProof.IMPORT)
    book.keep(planner)
    book.configure(ADA)
    planner = book.plan()
    planner.join_people(
        planner.get_labelled("ada"), planner.get_person("irc:eve"), IdentityProof.LINKED, proven=("irc:eve",)
    )
    after = book.keep(planner)
    assert after.find_proven_label("irc:eve") == "ada"
    assert after.find_proven_label("signal:+1") == ""
    present = after.expand_audience(("person:telegram:1001",))
    assert not can_hear(present, ("person:irc:eve",), at=book.at - 0.5), "the nick may have been another's before"


def test_ids_that_change_hands_count_from_the_link_on() -> None:
    assert can_change_hands("irc:ada")
    assert can_change_hands("http:service/ada")
    assert not can_change_hands("telegram:1001")
    assert not can_change_hands("http:ada")
    book = PeopleBook()
    book.configure(ADA)
    planner = book.plan()
    planner.link_identity("irc:ada", planner.get_labelled("ada"), IdentityProof.OPERATOR)
    after = book.keep(planner)
    present = after.expand_audience(("person:telegram:1001",))
    assert not can_hear(present, ("person:irc:ada",), at=book.at - 0.5)
    assert can_hear(present, ("person:irc:ada",), at=book.at)


def test_everybody_present_must_have_heard_it() -> None:
    book = PeopleBook()
    people = book.configure(ADA, BOB)
    both = people.expand_audience(("person:telegram:1001", "person:telegram:7"))
    assert can_hear(both, ("person:local:ada", "person:telegram:7"), at=1.0)
    assert not can_hear(both, ("person:local:ada",), at=1.0)
    assert not can_hear(people.expand_audience(()), ("person:local:ada",), at=1.0)
    room = people.expand_audience(("chat:room",))
    assert can_hear(room, ("chat:room", "person:telegram:7"), at=1.0)
    assert not can_hear(room, ("person:telegram:7",), at=1.0)


def test_an_audience_without_links_is_heard_as_it_is() -> None:
    present = build_present(("chat:room", "person:a:1"))
    assert can_hear(present, ("person:a:1", "chat:room"), at=0.0)
    assert not can_hear(present, ("chat:room",), at=0.0)


def test_new_identities_are_added_without_a_new_directory() -> None:
    directory = PeopleBook().configure(ADA)
    version = directory.version
    made = PeopleEvent(action=PeopleAction.MADE, person="p_x", n=50, at=1.0)
    linked = PeopleEvent(action=PeopleAction.LINKED, person="p_x", identity="telegram:9", proof="seen", n=51, at=1.0)
    assert directory.add_first_seen([made, linked])
    assert (directory.epoch, directory.version) == (51, version)
    assert directory.list_same_person("telegram:9") == ("telegram:9",)
    other = PeopleEvent(action=PeopleAction.LINKED, person="p_x", identity="telegram:10", proof="linked", n=52)
    again = PeopleEvent(action=PeopleAction.LINKED, person="p_x", identity="telegram:11", proof="seen", n=52)
    renamed = PeopleEvent(action=PeopleAction.NAMED, person="p_x", note="x", n=52)
    for event in (other, again, renamed):
        assert not directory.add_first_seen([event])
    assert directory.epoch == 51


names = st.sampled_from(["telegram:1", "telegram:2", "discord:1", "discord:2", "irc:x"])
steps = st.one_of(
    st.tuples(st.just("see"), names, names),
    st.tuples(st.just("join"), names, names),
    st.tuples(st.just("move"), names, names),
    st.tuples(st.just("unlink"), names, names),
    st.tuples(st.just("forget"), names, names),
)


@given(st.lists(steps, max_size=20))
def test_every_identity_has_one_person_and_every_person_is_reached(story: list[tuple[str, str, str]]) -> None:
    book = PeopleBook()
    for action, one, other in story:
        planner = book.plan()
        first, second = planner.get_person(one), planner.get_person(other)
        match action:
            case "join":
                planner.join_people(first, second, IdentityProof.LINKED)
            case "move":
                planner.link_identity(other, first, IdentityProof.OPERATOR)
            case "unlink":
                planner.unlink_identity(one)
            case "forget":
                planner.forget_person(first)
        people = book.keep(planner)
        if action in ("join", "move"):
            assert people.is_same_person(one, other)
        if action == "unlink":
            assert people.list_same_person(one) == (one,)
        for identity, record in people.identities.items():
            person = people.persons[record.person]
            assert not person.merged_into, "an identity belongs to a person who exists"
            assert not person.forgotten_at
            assert people.follow_merges(record.person) == record.person
            assert people.resolve_name(identity) == person
        for person in people.persons.values():
            if person.merged_into:
                assert not people.list_identities(person.id)


# -- ids that change hands ---------------------------------------------------------------------------------------------


def test_applying_the_same_configuration_again_does_not_move_the_start_of_a_link() -> None:
    """Otherwise each restart would hide what was said since the link."""
    book = PeopleBook()
    linked = book.configure(ConfiguredPerson("ada", ("telegram:1001", "irc:ada")))
    again = book.configure(ConfiguredPerson("ada", ("telegram:1001", "irc:ada")))
    assert again.identities["irc:ada"].since == linked.identities["irc:ada"].since > 0
    assert again.epoch == linked.epoch


@pytest.mark.parametrize("way", ["join", "link"])
def test_the_identity_that_stays_counts_from_the_link_on_too(way: str) -> None:
    """It does not matter which of two identities is linked to which."""
    book = PeopleBook()
    book.see("irc:ada")
    book.see("telegram:1001")
    planner = book.plan()
    person, other = planner.get_person("irc:ada"), planner.get_person("telegram:1001")
    if way == "join":
        planner.join_people(person, other, IdentityProof.LINKED)
    else:
        planner.link_identity("telegram:1001", person, IdentityProof.OPERATOR)
    after = book.keep(planner)
    present = after.expand_audience(("person:telegram:1001",))
    assert not can_hear(present, ("person:irc:ada",), at=book.at - 0.5)
    assert can_hear(present, ("person:irc:ada",), at=book.at)
    nick = after.expand_audience(("person:irc:ada",))
    assert can_hear(nick, ("person:irc:ada",), at=0.5), "the nick itself keeps its history"


def test_a_start_that_an_operator_gave_stays_when_people_are_joined() -> None:
    book = PeopleBook()
    book.configure(ADA)
    planner = book.plan()
    planner.link_identity("irc:ada", planner.get_labelled("ada"), IdentityProof.OPERATOR, since=0.0)
    book.keep(planner)
    planner = book.plan()
    planner.join_people(planner.get_person("discord:5"), planner.get_labelled("ada"), IdentityProof.LINKED, proven=())
    after = book.keep(planner)
    assert after.identities["irc:ada"].since == 0.0
    assert can_hear(after.expand_audience(("person:discord:5",)), ("person:irc:ada",), at=0.5)


def test_a_later_start_takes_away_like_an_unlink() -> None:
    """Running turns end, and direct chats leave sessions that are not theirs any more."""
    book = PeopleBook()
    book.configure(ADA)
    planner = book.plan()
    planner.link_identity("irc:ada", planner.get_labelled("ada"), IdentityProof.OPERATOR, since=0.0)
    before = book.keep(planner)
    planner = book.plan()
    planner.link_identity("irc:ada", planner.get_labelled("ada"), IdentityProof.OPERATOR, since=book.at)
    after = book.keep(planner)
    assert after.has_parted_since("telegram:1001", before.epoch)
    assert after.is_same_person("irc:ada", "telegram:1001")


def test_what_an_identity_said_belongs_to_its_person_from_the_link_on() -> None:
    book = PeopleBook()
    book.configure(ADA)
    planner = book.plan()
    planner.link_identity("irc:ada", planner.get_labelled("ada"), IdentityProof.OPERATOR)
    people = book.keep(planner)
    early, late = book.at - 0.5, book.at
    assert people.belongs_to("irc:ada", "telegram:1001", at=late)
    assert not people.belongs_to("irc:ada", "telegram:1001", at=early)
    assert people.belongs_to("irc:ada", "irc:ada", at=early)
    assert people.belongs_to("telegram:1001", "irc:ada", at=early)
    assert not people.belongs_to("telegram:7", "irc:ada", at=late)
    assert dict(people.list_name_starts("ada"))["irc:ada"] == late
    assert dict(people.list_name_starts("irc:ada"))["irc:ada"] == 0.0
    assert people.list_name_starts("irc:nobody") == (("irc:nobody", 0.0),)


def test_two_audiences_are_the_same_only_from_the_link_on() -> None:
    book = PeopleBook()
    book.configure(ADA)
    planner = book.plan()
    planner.link_identity("irc:ada", planner.get_labelled("ada"), IdentityProof.OPERATOR)
    people = book.keep(planner)
    nick, own = ("person:irc:ada",), ("person:telegram:1001",)
    late = people.identify_audience(nick, book.at)
    early = people.identify_audience(nick, book.at - 0.5)
    assert late == people.identify_audience(own, 0.5)
    assert early != people.identify_audience(own, book.at)
    assert early != late, "what the former owner knew and what the person knows are two things"
    assert people.identify_audience(("chat:room", *own), book.at) != late
