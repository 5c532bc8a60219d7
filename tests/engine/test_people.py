"""A person is resolved when something is read: links and unlinks apply to the past, in every order of events."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from everhold.admin.memory import MemoryAdmin
from everhold.core import people as core_people
from everhold.core.access import AdmissionDecision
from everhold.core.entries import Began, Changed, Ended, EntryKind, Heard, ModelUsage, Noted, Said, ToolCall
from everhold.core.people import IdentityProof, PeopleDirectory, PeoplePlanner
from everhold.engine import state_updates
from everhold.engine.state_updates import update_people
from everhold.errors import Transient
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.testing.fakes import FakeModel
from everhold.testing.gateway import InProcessGateway

from .test_delivery import growing
from .test_isolation import GROUP, WORD, LeakScenario, plant

TELEGRAM, DISCORD = "telegram:1", "discord:77"


class PeopleScenario(LeakScenario):
    """The scenario of leaks, with links in the store. A sender's name is the identity."""

    def __init__(self, gateway: InProcessGateway, *, group: str = "per-person") -> None:
        super().__init__(gateway, group=group)
        gateway.runtimes.tools["session_search"].notes = gateway.runtimes.notes  # type: ignore[attr-defined]

        def people() -> int:
            assert gateway.process is not None
            return gateway.process.disk._load_people().version

        def admit(incoming: Any) -> AdmissionDecision:
            return AdmissionDecision(
                agent=incoming.agent or "main",
                identity=incoming.sender,
                group=group,
                people_version=people(),
            )

        gateway.admit = admit

    def change(self, plan: Callable[[PeoplePlanner], None]) -> None:
        self.gateway.run(
            update_people(
                self.gateway.store,
                chance=self.gateway.control.gates.chance,
                at=self.gateway.clock.now(),
                by="operator",
                plan=plan,
            )
        )

    def link(self, identity: str, other: str) -> None:
        self.change(lambda it: it.join_people(it.get_person(identity), it.get_person(other), IdentityProof.OPERATOR))

    def unlink(self, identity: str) -> None:
        def plan(planner: PeoplePlanner) -> None:
            planner.get_person(identity)
            planner.unlink_identity(identity)

        self.change(plan)


def read_rows(gateway: InProcessGateway) -> list[Any]:
    assert gateway.process is not None
    return gateway.process.disk._fetch_rows("select * from entries order by pos", ())


def test_a_link_applies_to_what_was_said_before_and_rewrites_nothing(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    plant(scenario, who=TELEGRAM, chat="t")
    assert WORD not in scenario.told(who=DISCORD, chat="d")
    before = read_rows(gateway)
    scenario.link(TELEGRAM, DISCORD)
    assert read_rows(gateway) == before
    assert scenario.told(who=DISCORD, chat="d").count(WORD) >= 3
    assert WORD in scenario.searched(DISCORD)
    assert WORD in scenario.exported(DISCORD)


def test_an_unlink_takes_it_back_at_once_and_a_second_link_restores_it(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    scenario.link(TELEGRAM, DISCORD)
    plant(scenario, who=TELEGRAM, chat="t")
    gateway.send_message("/new", who=DISCORD, chat="d")
    scenario.unlink(DISCORD)
    assert WORD not in scenario.told(who=DISCORD, chat="d")
    assert WORD not in scenario.searched(DISCORD)
    assert WORD not in scenario.exported(DISCORD)
    assert WORD in scenario.searched(TELEGRAM)
    scenario.link(TELEGRAM, DISCORD)
    gateway.send_message("/new", who=DISCORD, chat="d")
    plant(scenario, who=TELEGRAM, chat="t")  # `told` has taken back the notes
    assert WORD in scenario.told(who=DISCORD, chat="d")


def test_a_fact_is_replaced_from_another_identity_of_its_person(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    gateway.send_message("keep zanzibar is warm", who=TELEGRAM, chat="t")
    scenario.link(TELEGRAM, DISCORD)
    gateway.send_message("/memory forget zanzibar", who=DISCORD, chat="d")
    notes = gateway.runtimes.notes
    assert notes is not None
    assert gateway.run(notes.list_valid("main", (f"person:{TELEGRAM}",))) == []
    scenario.unlink(DISCORD)
    facts = gateway.run(notes.list_valid("main", (f"person:{TELEGRAM}",)))
    assert [fact.text for fact in facts] == ["zanzibar is warm"], "somebody else cannot take back a fact"


def test_sessions_of_all_identities_of_a_person_can_be_resumed(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    first = gateway.send_message("hello", who=TELEGRAM, chat="t").session
    gateway.send_message("hello", who=DISCORD, chat="d")
    gateway.send_message(f"/resume {first}", who=DISCORD, chat="d")
    assert gateway.send_message("where?", who=DISCORD, chat="d").session != first
    scenario.link(TELEGRAM, DISCORD)
    gateway.send_message(f"/resume {first}", who=DISCORD, chat="d")
    assert gateway.send_message("here", who=DISCORD, chat="d").session == first


def test_an_unlinked_chat_leaves_the_session_of_the_other_person(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    scenario.link(TELEGRAM, DISCORD)
    theirs = gateway.send_message(f"the word for zanzibar is {WORD}", who=TELEGRAM, chat="t").session
    gateway.send_message("hello", who=DISCORD, chat="d")
    gateway.send_message(f"/resume {theirs}", who=DISCORD, chat="d")
    assert gateway.send_message("hello", who=DISCORD, chat="d").session == theirs
    scenario.unlink(DISCORD)
    asked = len(gateway.runtimes.model.requests)
    fresh = gateway.send_message("what do you know?", who=DISCORD, chat="d").session
    assert fresh != theirs
    assert WORD not in str(gateway.runtimes.model.requests[asked:])
    assert gateway.send_message("and now?", who=DISCORD, chat="d").session == fresh
    assert gateway.send_message("still me", who=TELEGRAM, chat="t").session == theirs
    changes = [entry for entry in gateway.read_log(theirs) if isinstance(entry.body, Changed)]
    assert any("address_unbound" in str(entry.body) or "AddressUnbound" in str(entry.body) for entry in changes)
    gateway.assert_sound()


@pytest.mark.parametrize("own", [True, False])
def test_an_unlink_ends_a_running_turn(gateway: InProcessGateway, own: bool) -> None:
    """In the sender's own session another turn answers. In a session of another person nothing is answered."""
    scenario = PeopleScenario(gateway)
    scenario.link(TELEGRAM, DISCORD)
    theirs = gateway.send_message(f"the word for zanzibar is {WORD}", who=TELEGRAM, chat="t").session
    session = gateway.send_message("hello", who=DISCORD, chat="d").session
    if not own:
        gateway.send_message(f"/resume {theirs}", who=DISCORD, chat="d")
        session = theirs
    unlinked: list[ModelRequest] = []

    def model(request: ModelRequest) -> ModelResponse:
        if "search" in str(request.messages[-1].text) and not unlinked:
            unlinked.append(request)
            return ModelResponse(calls=(ToolCall(id="1", tool="session_search", arguments={"query": "zanzibar"}),))
        return ModelResponse(text=f"seen {WORD}" if WORD in str(request) else "seen nothing")

    gateway.runtimes.model = FakeModel(model)
    real = gateway.runtimes.tools["session_search"].run

    async def run(arguments: dict[str, Any], context: Any) -> Any:
        done = await real(arguments, context)
        await update_people(
            gateway.store,
            chance=gateway.control.gates.chance,
            at=gateway.clock.now(),
            by="operator",
            plan=lambda it: it.unlink_identity(DISCORD) if len(unlinked) == 1 else None,
        )
        unlinked.append(unlinked[0])
        return done

    gateway.runtimes.tools["session_search"].run = run  # type: ignore[method-assign]
    shown = len(gateway.list_shown_texts())
    gateway.send_message("search, please", who=DISCORD, chat="d")
    assert unlinked
    replies = gateway.list_shown_texts()[shown:]
    assert WORD not in str(replies)
    outcomes = [e.body.outcome for e in gateway.read_log(session) if isinstance(e.body, Ended)]
    if own:
        assert outcomes[-2:] == ["released", "done"]
        assert replies == ["seen nothing"]
    else:
        assert outcomes[-1] == "stopped"
        assert "send your message again" in replies[-1]
    gateway.assert_sound()


def unlink_during_search(gateway: InProcessGateway, *, stop: bool = False) -> str:
    """A turn calls a tool twice. During the first call its sender is unlinked, and perhaps the turn is stopped."""
    scenario = PeopleScenario(gateway)
    scenario.link(TELEGRAM, DISCORD)
    session = gateway.send_message("hello", who=DISCORD, chat="d").session
    calls = tuple(ToolCall(id=id, tool="session_search", arguments={"query": "zanzibar"}) for id in ("1", "2"))
    answers = iter([ModelResponse(calls=calls), ModelResponse(text="the second turn answers")])
    gateway.runtimes.model = FakeModel(lambda request: next(answers))
    real, ran = gateway.runtimes.tools["session_search"].run, []

    async def run(arguments: dict[str, Any], context: Any) -> Any:
        ran.append(context.key)
        if len(ran) == 1:
            await update_people(
                gateway.store,
                chance=gateway.control.gates.chance,
                at=gateway.clock.now(),
                by="operator",
                plan=lambda it: it.unlink_identity(DISCORD),
            )
            if stop:
                await gateway.control.stop_turn(session)
        return await real(arguments, context)

    gateway.runtimes.tools["session_search"].run = run  # type: ignore[method-assign]
    gateway.send_message("search, please", who=DISCORD, chat="d")
    return session


def test_a_stopped_turn_stays_stopped_after_an_unlink(gateway: InProcessGateway) -> None:
    """Simulator seeds 3968 and 5857: the messages became pending again, and an open call had no result."""
    session = unlink_during_search(gateway, stop=True)
    outcomes = [e.body.outcome for e in gateway.read_log(session) if isinstance(e.body, Ended)]
    assert outcomes == ["done", "done", "stopped"]  # the second one is the command that stopped the turn
    gateway.assert_sound()


def test_the_context_of_a_released_turn_can_be_shown(gateway: InProcessGateway) -> None:
    """Simulator seed 2127."""
    session = unlink_during_search(gateway)
    log = gateway.read_log(session)
    released = next(e for e in log if isinstance(e.body, Ended) and e.body.outcome == "released")
    thought = next(e for e in log if e.op == released.op and e.kind is EntryKind.THOUGHT)
    shown = gateway.run(gateway.control.load_context(session, at=thought.seq))
    assert shown.exact
    assert shown.request.messages[-1].text == "search, please"
    gateway.assert_sound()


def test_the_cost_of_a_withheld_answer_is_counted(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    scenario.link(TELEGRAM, DISCORD)
    session = gateway.send_message("hello", who=DISCORD, chat="d").session
    usage, asked = ModelUsage(input=1_000, output=10), []

    async def answer(request: ModelRequest, **_: Any) -> ModelResponse:
        asked.append(request)
        if len(asked) == 1:
            await update_people(
                gateway.store,
                chance=gateway.control.gates.chance,
                at=gateway.clock.now(),
                by="operator",
                plan=lambda it: it.unlink_identity(DISCORD),
            )
        return ModelResponse(text="seen", usage=usage)

    gateway.runtimes.model = FakeModel()
    gateway.runtimes.model.answer = answer  # type: ignore[method-assign]

    def spent() -> int:
        return gateway.run(gateway.store.get_spend("agent:main", "")).tokens

    before = spent()
    gateway.send_message("what do you know?", who=DISCORD, chat="d")
    ended = [e.body for e in gateway.read_log(session) if isinstance(e.body, Ended)][-2:]
    assert [(it.outcome, it.usage) for it in ended] == [("released", usage), ("done", usage)]
    assert spent() == before + 2 * 1_010
    gateway.assert_sound()


@pytest.mark.parametrize("stops", [False, True])
def test_an_unlink_takes_back_the_draft_of_the_answer(gateway: InProcessGateway, stops: bool) -> None:
    """Simulator seed 935: the draft of a withheld answer stayed visible."""
    scenario = PeopleScenario(gateway)
    platform = growing(gateway)
    scenario.link(TELEGRAM, DISCORD)
    gateway.send_message("write", who=DISCORD, chat="d", rest=False)
    gateway.pass_time(3.2)
    assert platform.drafts == 1
    scenario.unlink(DISCORD)
    if stops:
        gateway.send_message("/stop", who=DISCORD, chat="d", rest=False)
    gateway.run_until_idle(60)
    (replaced,) = [out for out in platform.shown_messages if out.edits == "draft-1"]
    assert "unlinked" in replaced.text
    assert "piece" not in replaced.text
    replies = [out.text for out in platform.shown_messages if "piece" in out.text]
    assert replies == ([] if stops else ["piece by piece it grew"]), "the second turn answers"
    gateway.assert_sound()


@pytest.mark.parametrize("text", ["what do you know?", "/compress --preview", "/title mine"])
def test_a_message_that_waits_during_an_unlink_is_not_answered_from_another_session(
    gateway: InProcessGateway, text: str
) -> None:
    scenario = PeopleScenario(gateway)
    scenario.link(TELEGRAM, DISCORD)
    theirs = gateway.send_message(f"the word for zanzibar is {WORD}", who=TELEGRAM, chat="t").session
    gateway.send_message("hello", who=DISCORD, chat="d")
    gateway.send_message(f"/resume {theirs}", who=DISCORD, chat="d")
    assert gateway.process is not None
    supervisor = gateway.process.supervisor
    supervisor.max_workers = 0  # so the message waits
    asked, shown = len(gateway.runtimes.model.requests), len(gateway.list_shown_texts())
    assert gateway.send_message(text, who=DISCORD, chat="d", rest=False).session == theirs
    scenario.unlink(DISCORD)
    assert len(gateway.list_shown_texts()) == shown
    supervisor.max_workers = 256
    gateway.process.wakeups.work_available.set()
    gateway.run_until_idle()
    assert WORD not in str(gateway.runtimes.model.requests[asked:])
    assert "again" in gateway.list_shown_texts()[shown:][-1]
    gateway.assert_sound()


def test_the_person_who_stays_leaves_the_session_of_the_identity_that_left(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    scenario.link(TELEGRAM, DISCORD)
    theirs = gateway.send_message(f"the word for zanzibar is {WORD}", who=DISCORD, chat="d").session
    gateway.send_message("hello", who=TELEGRAM, chat="t")
    gateway.send_message(f"/resume {theirs}", who=TELEGRAM, chat="t")
    assert gateway.send_message("here?", who=TELEGRAM, chat="t").session == theirs
    scenario.unlink(DISCORD)
    asked = len(gateway.runtimes.model.requests)
    assert gateway.send_message("what do you know?", who=TELEGRAM, chat="t").session != theirs
    assert WORD not in str(gateway.runtimes.model.requests[asked:])
    assert gateway.send_message("still here", who=DISCORD, chat="d").session == theirs
    gateway.assert_sound()


def test_the_operation_of_a_turn_names_the_epoch_of_the_people(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    scenario.link(TELEGRAM, DISCORD)
    session = gateway.send_message("hello", who=TELEGRAM, chat="t").session
    (began,) = (e.body for e in gateway.read_log(session) if isinstance(e.body, Began) and e.body.type == "turn")
    assert began.people == gateway.run(gateway.store.get_people()).epoch > 0


def test_an_identity_of_another_time_shows_nothing_from_before(gateway: InProcessGateway) -> None:
    """A nick changed hands: what its former owner said belongs to nobody else."""
    scenario = PeopleScenario(gateway)
    plant(scenario, who="irc:ada", chat="i")
    gateway.pass_time(60)
    now = gateway.clock.now()
    scenario.change(lambda it: it.link_identity("irc:ada", it.get_person(TELEGRAM), IdentityProof.OPERATOR, since=now))
    assert WORD not in scenario.told(who=TELEGRAM, chat="t")
    plant(scenario, who="irc:ada", chat="i2")
    assert WORD in scenario.told(who=TELEGRAM, chat="t")


NICK = "irc:ada"


def take_over_nick(scenario: PeopleScenario) -> None:
    """The nick's former owner has spoken and noted something. Now it is linked to another person."""
    plant(scenario, who=NICK, chat="i")
    scenario.gateway.pass_time(60)
    scenario.link(TELEGRAM, NICK)
    scenario.change(lambda it: it.name_person(it.get_person(TELEGRAM), "grace"))
    scenario.gateway.pass_time(60)


@pytest.mark.parametrize("planted", [False, True], ids=["", "planted"])
def test_a_clock_that_was_set_back_gives_nobody_what_the_nick_said_before(
    gateway: InProcessGateway, planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link counts from after everything that was said before. Until the clock is there, new words are missing."""
    if planted:
        monkeypatch.setattr(state_updates, "date_links", lambda events, **_: tuple(events))
    scenario = PeopleScenario(gateway)
    gateway.clock.skew += 86_400.0
    plant(scenario, who=NICK, chat="i")
    gateway.clock.skew -= 86_400.0
    gateway.pass_time(60)
    scenario.link(TELEGRAM, NICK)
    gateway.pass_time(60)
    told = (scenario.searched(TELEGRAM), scenario.exported(TELEGRAM), scenario.told(who=TELEGRAM, chat="t"))
    assert (WORD in str(told)) is planted
    gateway.pass_time(86_400.0)
    plant(scenario, who=NICK, chat="i2")
    assert WORD in scenario.told(who=TELEGRAM, chat="t")


@pytest.mark.parametrize("name", [TELEGRAM, "grace"])
def test_no_way_to_read_a_person_shows_what_the_nick_said_before_the_link(gateway: InProcessGateway, name: str) -> None:
    scenario = PeopleScenario(gateway)
    take_over_nick(scenario)
    assert WORD not in scenario.searched(name)
    assert WORD not in scenario.exported(name)
    assert WORD not in scenario.told(who=TELEGRAM, chat="t")
    plant(scenario, who=NICK, chat="i2")
    gateway.send_message(f"keep {WORD} is another fact", who=NICK, chat="i2")
    assert scenario.searched(name).count(WORD) >= 3
    assert scenario.exported(name).count(WORD) >= 3


def test_a_fact_that_the_nick_had_before_does_not_hide_the_same_fact_of_its_person(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    take_over_nick(scenario)
    gateway.send_message(f"keep zanzibar {WORD} for later", who=TELEGRAM, chat="t")
    notes = gateway.runtimes.notes
    assert notes is not None
    facts = gateway.run(notes.list_valid("main", (f"person:{TELEGRAM}",)))
    assert [fact.text for fact in facts] == [f"zanzibar {WORD} for later"]


def test_notes_that_the_nick_made_before_the_link_are_another_persons(gateway: InProcessGateway) -> None:
    """In a shared group everybody hears the note, but only its maker may take it back."""
    scenario = PeopleScenario(gateway, group="shared")
    gateway.send_message("/memory note the door is red", who=NICK, **GROUP)
    gateway.pass_time(60)
    scenario.link(TELEGRAM, NICK)
    gateway.send_message("/memory forget the door", who=TELEGRAM, **GROUP)
    assert "Taken back" not in gateway.list_shown_texts()[-1]
    gateway.send_message("/memory note the roof is blue", who=NICK, **GROUP)
    gateway.send_message("/memory forget the roof", who=TELEGRAM, **GROUP)
    assert "Taken back" in gateway.list_shown_texts()[-1]


def test_a_later_start_leads_a_chat_out_of_the_session_of_the_former_owner(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    theirs = gateway.send_message(f"the word for zanzibar is {WORD}", who=NICK, chat="i").session
    gateway.pass_time(60)
    person = TELEGRAM
    scenario.change(lambda it: it.link_identity(NICK, it.get_person(person), IdentityProof.OPERATOR, since=0.0))
    gateway.send_message("hello", who=TELEGRAM, chat="t")
    gateway.send_message(f"/resume {theirs}", who=TELEGRAM, chat="t")
    assert gateway.send_message("here?", who=TELEGRAM, chat="t").session == theirs
    now = gateway.clock.now()
    scenario.change(lambda it: it.link_identity(NICK, it.get_person(person), IdentityProof.OPERATOR, since=now))
    assert gateway.send_message("and now?", who=TELEGRAM, chat="t").session != theirs


def make_admin(gateway: InProcessGateway) -> MemoryAdmin:
    gateway.control.erasures = gateway.path / "erasures.log"
    return MemoryAdmin(gateway.control, agents=lambda: ("main", "other"))


def list_heard(gateway: InProcessGateway) -> str:
    sessions = gateway.run(gateway.store.list_sessions(limit=100))
    return str([it.body for session in sessions for it in gateway.read_log(session.id) if it.body is not None])


def test_forgetting_a_person_leaves_what_a_former_owner_of_the_nick_said(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    take_over_nick(scenario)
    admin = make_admin(gateway)
    theirs = list_heard(gateway).count(WORD)
    assert theirs > 0
    gateway.send_message("the key is under the mango4711", who=NICK, chat="i")
    gateway.send_message("the other key is under the papaya4712", who=TELEGRAM, chat="t")
    plan = gateway.run(admin.plan_forgetting("grace"))
    assert any(NICK in it and "before the link" in it for it in plan.remains)
    gateway.run(admin.forget_person("grace"))
    assert list_heard(gateway).count(WORD) == theirs
    assert "mango4711" not in list_heard(gateway)
    assert "papaya4712" not in list_heard(gateway)
    gateway.run(admin.forget_person(NICK))
    assert WORD not in list_heard(gateway), "who names the nick means all of it"


@pytest.mark.parametrize("again", ["grace", TELEGRAM])
def test_an_unfinished_forgetting_still_knows_the_former_owner(gateway: InProcessGateway, again: str) -> None:
    """The links are gone by then. It is ordered again, and it is begun again after a restore."""
    scenario = PeopleScenario(gateway)
    take_over_nick(scenario)
    admin = make_admin(gateway)
    theirs = list_heard(gateway).count(WORD)
    gateway.send_message("the key is under the mango4711", who=NICK, chat="i")
    wipe, admin.wipe_index = admin.wipe_index, fail_to_wipe
    gateway.run(admin.forget_person("grace"))
    assert all(it.is_open for it in gateway.run(admin.records.load_all()))
    gateway.run(admin.forget_person(again))
    admin.wipe_index = wipe
    for erasure in gateway.run(admin.records.load_all()):
        gateway.run(admin.records.drop(erasure))
    gateway.run(admin.resume_erasures(restored=True))
    assert list_heard(gateway).count(WORD) == theirs
    assert "mango4711" not in list_heard(gateway)


async def fail_to_wipe() -> None:
    raise Transient("the index cannot be wiped")


# -- every order of events ---------------------------------------------------------------------------------------------

IDENTITIES = ("telegram:1", "discord:1", "telegram:2", "discord:2", "telegram:3", "discord:3")
PLACES = ("dm", "room-a", "room-b")
AGENTS = ("main", "other")

actions = st.one_of(
    st.tuples(st.just("say"), st.sampled_from(IDENTITIES), st.sampled_from(PLACES), st.sampled_from(AGENTS)),
    st.tuples(st.just("ask"), st.sampled_from(IDENTITIES), st.sampled_from(PLACES), st.sampled_from(AGENTS)),
    st.tuples(st.just("link"), st.sampled_from(IDENTITIES), st.sampled_from(IDENTITIES), st.just("")),
    st.tuples(st.just("unlink"), st.sampled_from(IDENTITIES), st.just(""), st.just("")),
    st.tuples(st.just("compress"), st.sampled_from(IDENTITIES), st.sampled_from(PLACES), st.sampled_from(AGENTS)),
)


class Canaries:
    """The reference: who is who now, and what was said to whom. Every canary is a word of its own."""

    def __init__(self) -> None:
        self.groups = {one: {one} for one in IDENTITIES}
        self.said: list[tuple[str, str, str, str]] = []
        """(word, agent, identity, place)."""

    def link(self, one: str, other: str) -> None:
        both = self.groups[one] | self.groups[other]
        for member in both:
            self.groups[member] = both

    def unlink(self, one: str) -> None:
        rest = self.groups[one] - {one}
        for member in rest:
            self.groups[member] = rest
        self.groups[one] = {one}

    def list_allowed(self, identity: str, place: str, agent: str) -> tuple[set[str], set[str]]:
        """Return the words that may be shown, and those that must be found."""
        may, must = set(), set()
        for word, said_to, who, where in self.said:
            if said_to != agent:
                continue
            if where == "dm" and place == "dm" and who in self.groups[identity]:
                may.add(word)
                must.add(word)
            elif where != "dm" and who in self.groups[identity] and place in ("dm", where):
                may.add(word)
        return may, must


def where(identity: str, place: str, agent: str) -> dict[str, Any]:
    if place == "dm":
        return {"who": identity, "chat": f"dm-{identity}-{agent}", "agent": agent}
    return {"who": identity, "chat": f"{place}-{agent}", "kind": "group", "agent": agent}


def play(gateway: InProcessGateway, story: list[tuple[str, str, str, str]]) -> None:
    scenario, canaries = PeopleScenario(gateway), Canaries()
    gateway.runtimes.settings.update(recall_tokens=20_000)
    for number, (action, identity, place, agent) in enumerate(story):
        match action:
            case "say":
                word = f"canary{number}x"
                canaries.said.append((word, agent, identity, place))
                gateway.send_message(f"zanzibar {word}", **where(identity, place, agent))
            case "link":
                scenario.link(identity, place)
                canaries.link(identity, place)
            case "unlink":
                scenario.unlink(identity)
                canaries.unlink(identity)
            case "compress":
                gateway.send_message("/compress here 0", **where(identity, place, agent))
            case "ask":
                may, must = canaries.list_allowed(identity, place, agent)
                asked, shown = len(gateway.runtimes.model.requests), len(gateway.list_shown_texts())
                for text in ("what about zanzibar", "/memory search zanzibar"):
                    gateway.send_message(text, **where(identity, place, agent))
                seen = str(gateway.runtimes.model.requests[asked:]) + str(gateway.list_shown_texts()[shown:])
                found = {word for word, *_ in canaries.said if word in seen}
                assert found <= may, f"{identity} saw {found - may} in {place}"
                assert must <= found, f"{identity} missed {must - found} in {place}"
    if any(action in ("say", "ask") for action, *_ in story):
        gateway.assert_sound()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(story=st.lists(actions, min_size=4, max_size=14))
def test_no_order_of_events_shows_a_canary_to_another_person(story: list[tuple[str, str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        gateway = InProcessGateway(Path(directory))
        with gateway.run_started():
            play(gateway, story)


STORY = [
    ("say", "telegram:1", "dm", "main"),
    ("link", "telegram:1", "discord:1", ""),
    ("ask", "discord:1", "dm", "main"),
    ("unlink", "discord:1", "", ""),
    ("ask", "discord:1", "dm", "main"),
]


def by_old_identity(self: PeopleDirectory, audience: Any) -> Any:
    return core_people.build_present(tuple(audience))


def test_a_planted_audience_by_old_identity_is_found(
    gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PeopleDirectory, "expand_audience", by_old_identity)
    with pytest.raises(AssertionError, match="missed"):
        play(gateway, STORY)


def test_a_planted_link_that_is_never_taken_back_is_found(
    gateway: InProcessGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PeoplePlanner, "unlink_identity", lambda self, identity: None)
    with pytest.raises(AssertionError, match="saw"):
        play(gateway, [*STORY[:1], *STORY[1:2], ("say", "telegram:1", "dm", "main"), *STORY[3:]])


def test_the_log_records_identities_and_no_persons(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    scenario.change(lambda it: it.name_person(it.get_person(TELEGRAM), "grace"))
    plant(scenario, who=TELEGRAM, chat="t")
    plant(scenario, who=TELEGRAM, **GROUP)
    for row in gateway.run(gateway.store.list_sessions()):
        for entry in gateway.read_log(row.id):
            assert "grace" not in entry.author
            if entry.kind in (EntryKind.HEARD, EntryKind.SAID, EntryKind.NOTED):
                assert isinstance(entry.body, Heard | Said | Noted)
                assert "grace" not in str(entry.body.stamp)
