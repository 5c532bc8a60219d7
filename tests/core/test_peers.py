"""How memories call people: the order of the choice, aliases, and that two people never share a name by accident."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings, strategies as st

from everhold.core.peers import (
    PeerBook,
    PeerRule,
    choose_peer,
    find_peer_at,
    list_ambiguous_aliases,
    make_safe_id,
    plan_peer_changes,
)
from everhold.core.people import (
    IdentityProof,
    PeopleDirectory,
    PeopleEvent,
    PeoplePlanner,
    build_directory,
)
from everhold.ports.store import PeerRecord

TELEGRAM, DISCORD, LOCAL = "telegram:1001", "discord:5", "local:ada"


class PeerWorld:
    """People and peers of one memory, changed step by step."""

    def __init__(self, rule: PeerRule | None = None) -> None:
        self.rule = rule or PeerRule()
        self.events: list[PeopleEvent] = []
        self.records: list[PeerRecord] = []
        self.pos = 0
        self._ids = 0

    @property
    def people(self) -> PeopleDirectory:
        return build_directory(self.events)

    @property
    def book(self) -> PeerBook:
        return PeerBook(self.records)

    def plan(self) -> PeoplePlanner:
        return PeoplePlanner(self.people, new_id=self._make_id, at=float(self.pos), by="test")

    def _make_id(self) -> str:
        self._ids += 1
        return f"p_{self._ids}"

    def commit(self, planner: PeoplePlanner) -> None:
        for event in planner.events:
            numbered = PeopleEvent(
                action=event.action,
                person=event.person,
                identity=event.identity,
                proof=event.proof,
                since=event.since,
                note=event.note,
                at=event.at,
                n=len(self.events) + 1,
            )
            self.events.append(numbered)
        self.settle()

    def settle(self) -> None:
        changed = plan_peer_changes(self.rule, memory="m", agent="main", people=self.people, book=self.book)
        for row in changed:
            self.add(row.identity, row.peer, row.source, self.pos + 1)

    def add(self, identity: str, peer: str, source: str, from_pos: int, *, shared: bool = False) -> None:
        self.records = [it for it in self.records if (it.identity, it.from_pos) != (identity, from_pos)]
        self.records.append(
            PeerRecord(
                memory="m", agent="main", identity=identity, peer=peer, source=source, from_pos=from_pos, shared=shared
            )
        )

    def speak(self, identity: str) -> str:
        """Return the peer under which a message is stored."""
        planner = self.plan()
        planner.get_person(identity)
        self.commit(planner)
        self.pos += 1
        if self.book.find_latest(identity) is None:
            choice = choose_peer(self.rule, identity, people=self.people, book=self.book)
            self.add(identity, choice.peer, choice.source, self.pos)
        return self.find(identity, self.pos)

    def find(self, identity: str, pos: int) -> str:
        record = find_peer_at(self.book.list_records(identity), pos)
        assert record is not None
        return record.peer

    def has_alias(self, peer: str) -> bool:
        """Whether an alias ever led to a peer."""
        return any(record.source == "alias" for record in self.book._by_peer[peer])

    def link(self, identity: str, to: str) -> None:
        planner = self.plan()
        planner.link_identity(identity, planner.get_person(to), IdentityProof.OPERATOR)
        self.commit(planner)

    def unlink(self, identity: str) -> None:
        planner = self.plan()
        planner.get_person(identity)
        planner.unlink_identity(identity)
        self.commit(planner)

    def name(self, identity: str, label: str) -> None:
        planner = self.plan()
        planner.name_person(planner.get_person(identity), label)
        self.commit(planner)


def test_the_order_of_the_choice() -> None:
    world = PeerWorld()
    assert world.speak(TELEGRAM) == make_safe_id(TELEGRAM)
    world.name(TELEGRAM, "ada")
    assert world.speak(TELEGRAM) == make_safe_id(TELEGRAM), "a peer is chosen once"
    world.link(LOCAL, TELEGRAM)
    assert world.speak(LOCAL) == make_safe_id(TELEGRAM), "the peer of the person's oldest identity"
    named = PeerWorld()
    named.name(LOCAL, "ada")
    assert named.speak(LOCAL) == "ada"
    named.rule = PeerRule(aliases={"ada": "lovelace"})
    named.settle()
    assert named.speak(LOCAL) == "lovelace"
    named.rule = PeerRule(aliases={"ada": "lovelace", LOCAL: "countess"})
    named.settle()
    assert named.speak(LOCAL) == "countess"
    named.rule = PeerRule(pinned="everybody")
    named.settle()
    assert named.speak(LOCAL) == "everybody"
    named.rule = PeerRule()
    named.settle()
    assert named.speak(LOCAL) == "ada", "without the alias, it is as it was before"


def test_a_bare_id_means_the_only_identity_with_that_id() -> None:
    world = PeerWorld(PeerRule(aliases={"1001": "ada"}))
    assert world.speak(TELEGRAM) == "ada"
    assert not list_ambiguous_aliases(world.rule, people=world.people, book=world.book)


def test_a_bare_id_of_two_people_has_no_effect() -> None:
    world = PeerWorld()
    world.speak(TELEGRAM)
    world.speak("discord:1001")
    world.rule = PeerRule(aliases={"1001": "ada"})
    world.settle()
    assert {world.speak(TELEGRAM), world.speak("discord:1001")} == {
        make_safe_id(TELEGRAM),
        make_safe_id("discord:1001"),
    }
    assert list_ambiguous_aliases(world.rule, people=world.people, book=world.book) == [
        ("1001", ("discord:1001", TELEGRAM))
    ]
    world.link("discord:1001", TELEGRAM)
    assert not list_ambiguous_aliases(world.rule, people=world.people, book=world.book), "it is one person"
    assert world.speak(TELEGRAM) == "ada"


def test_an_alias_that_applied_is_not_ended_by_a_stranger_with_the_same_id() -> None:
    world = PeerWorld(PeerRule(aliases={"1001": "ada"}))
    assert world.speak(TELEGRAM) == "ada"
    assert world.speak("discord:1001") == make_safe_id("discord:1001")
    world.link(LOCAL, TELEGRAM)  # everything is chosen again
    assert world.speak(TELEGRAM) == "ada"


def test_a_link_moves_later_entries_only_and_an_unlink_separates_both() -> None:
    world = PeerWorld()
    mine, theirs = world.speak(TELEGRAM), world.speak(DISCORD)
    before = world.pos
    world.link(DISCORD, TELEGRAM)
    assert world.speak(DISCORD) == mine
    assert world.find(DISCORD, before) == theirs
    world.unlink(DISCORD)
    assert world.speak(DISCORD) == theirs
    alone = world.speak(TELEGRAM)
    assert alone not in (mine, theirs), "the peer that both used stands for nobody"
    assert world.book.list_recalled_peers(TELEGRAM, world.people) == (alone,)
    assert world.book.list_recalled_peers(DISCORD, world.people) == (theirs,)
    world.link(DISCORD, TELEGRAM)
    assert set(world.book.list_recalled_peers(TELEGRAM, world.people)) == {alone, mine}


def test_a_shared_peer_is_recalled_for_nobody_until_it_is_assigned() -> None:
    world = PeerWorld()
    for identity in ("telegram:555", "discord:555"):
        world.add(identity, "555", "hermes", 0, shared=True)
        assert world.speak(identity) == make_safe_id(identity)
        assert "555" not in world.book.list_recalled_peers(identity, world.people)
    world.add("telegram:555", "555", "operator", world.pos + 1)
    world.settle()
    assert "555" in world.book.list_recalled_peers("telegram:555", world.people)
    assert "555" not in world.book.list_recalled_peers("discord:555", world.people)
    assert world.speak("telegram:555") == "555"
    assert world.speak("discord:555") == make_safe_id("discord:555")


def test_an_imported_peer_goes_on() -> None:
    world = PeerWorld()
    world.add(TELEGRAM, "1001", "hermes", 0)
    assert world.speak(TELEGRAM) == "1001"
    world.link(LOCAL, TELEGRAM)
    assert world.speak(LOCAL) == "1001"


IDENTITIES = ("telegram:1", "telegram:2", "discord:1", "local:ada")
STEPS = st.one_of(
    st.tuples(st.just("speak"), st.sampled_from(IDENTITIES)),
    st.tuples(st.just("link"), st.sampled_from(IDENTITIES), st.sampled_from(IDENTITIES)),
    st.tuples(st.just("unlink"), st.sampled_from(IDENTITIES)),
    st.tuples(
        st.just("alias"), st.sampled_from(("1", "2", "telegram:1", "local:ada")), st.sampled_from(("x", "y", ""))
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_what_was_said_keeps_its_peer_and_two_people_share_only_aliases(steps: Sequence[tuple[str, ...]]) -> None:
    world = PeerWorld()
    said: list[tuple[str, int, str]] = []
    for step in steps:
        match step:
            case ("speak", identity):
                peer = world.speak(identity)
                said.append((identity, world.pos, peer))
            case ("link", identity, other):
                if identity != other:
                    world.link(identity, other)
            case ("unlink", identity):
                world.unlink(identity)
            case ("alias", key, alias):
                aliases = {name: to for name, to in world.rule.aliases.items() if name != key}
                world.rule = PeerRule(aliases={**aliases, **({key: alias} if alias else {})})
                world.settle()
        for identity, pos, peer in said:
            assert world.find(identity, pos) == peer
        present = {it: world.book.find_latest(it) for it in world.book.list_identities()}
        for one, first in present.items():
            for other, second in present.items():
                if first and second and first.peer == second.peer and not world.people.is_same_person(one, other):
                    # an identity of the person may have inherited it from the one that the alias names
                    assert world.has_alias(first.peer), (one, other, first, second)


def test_a_nick_that_was_somebody_elses_does_not_give_its_peer_to_the_person() -> None:
    world = PeerWorld()
    world.add("irc:ada", "irc-ada", "identity", 1)
    world.pos = 5
    planner = world.plan()
    planner.join_people(planner.get_person(TELEGRAM), planner.get_person("irc:ada"), IdentityProof.LINKED)
    world.commit(planner)
    choice = choose_peer(world.rule, TELEGRAM, people=world.people, book=world.book)
    assert choice.peer != "irc-ada", "the service knows the former owner under it"
    assert choose_peer(world.rule, "irc:ada", people=world.people, book=world.book).peer == "irc-ada"
