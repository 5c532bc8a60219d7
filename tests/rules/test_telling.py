"""The log lines that users grep for are written when what they tell of has happened, and say where."""

from __future__ import annotations

from pathlib import Path

import pytest

from everhold.config.loader import load
from everhold.config.watch import Watcher
from everhold.core.entries import BranchCreated, Changed
from everhold.errors import InDoubt, Refused
from everhold.home import Home
from everhold.ports.model import Answer
from everhold.ports.platform import Delivery
from everhold.testing.fakes import FakeProvider, ScriptedModel
from everhold.testing.house import House

from .test_delivering import use

EVENTS = (
    "message.accepted turn.started turn.done compression.started compression.done compression.refused delivery.done "
    "delivery.in_doubt memory.stored memory.parked config.revision session.bound session.branched"
).split()
OF_AN_OPERATION = {event for event in EVENTS if event.startswith(("turn.", "compression."))}


def drive(house: House, home: Home) -> str:
    """Through everything that is told of; the session it began in."""
    house.furniture.memories = {"a": (provider := FakeProvider())}
    provider.faults.work()
    provider.faults.fail(Refused("too strange"))
    session = house.say("hello").session
    house.say("parked")
    house.platform.faults.fail(InDoubt("no answer"))
    house.say("in doubt", rest=False)
    house.rest(600)
    house.furniture.summariser = ScriptedModel([Answer(text=""), Answer(text="short")])
    house.say("/compress here 0")
    house.say("/compress here 0")
    house.say("/branch")
    house.say("in the branch")
    house.say(f"/resume {session}")
    house.say("and back")
    assert house.process is not None
    watcher = Watcher(
        home,
        load(home, environ={}),
        load=lambda: load(home, environ={}),
        swap=lambda settings: None,
        log=house.diary,
        monotonic=house.clock.monotonic,
        sleep=house.process.gates.sleep,
    )
    home.config.write_text("timezone: Europe/Berlin\n")
    house.run(watcher.fresh())
    return session


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def test_every_event_that_users_grep_for_is_told_with_its_session_and_operation(house: House, home: Home) -> None:
    use(house, Delivery.KEYED)
    session = drive(house, home)
    told = {event: house.diary.of(event) for event in EVENTS}
    assert not [event for event, lines in told.items() if not lines]
    sessions = {
        session,
        *(b.change.session for b in house.bodies(session, Changed) if isinstance(b.change, BranchCreated)),
    }
    assert len(sessions) == 2
    for event, lines in told.items():
        for line in lines:
            if event != "config.revision":
                assert line["session"] in sessions, (event, line)
            assert ("op" in line) == (event in OF_AN_OPERATION), (event, line)
    house.sound()


def test_what_binds_an_address_is_told_every_time(house: House, home: Home) -> None:
    session = drive(house, home)
    (branched,) = house.diary.of("session.branched")
    assert (branched["session"], branched["parent"]) == (session, session)
    bound = [(line["session"], line.get("previous")) for line in house.diary.of("session.bound")]
    assert bound == [(session, None), (branched["branch"], session), (session, branched["branch"])]


def test_a_memory_and_a_reply_that_are_given_up_are_told_apart(house: House) -> None:
    house.furniture.memories = {"a": (provider := FakeProvider())}
    provider.faults.fail(Refused("too strange"))
    platform = use(house, Delivery.KEYED)
    platform.faults.fail(Refused("blocked"))
    house.say("hello")
    (reply,), (memory,) = house.diary.of("delivery.parked"), house.diary.of("memory.parked")
    assert (reply["reader"], reply["reason"]) == ("platform:fake:main", "blocked")
    assert (memory["reader"], memory["reason"]) == ("memory:a", "too strange")
    assert not house.diary.of("delivery.done")
    assert not house.diary.of("memory.stored")


def test_what_is_found_to_have_arrived_is_told_like_what_was_answered(house: House) -> None:
    platform = use(house, Delivery.PROBE)
    platform.faults.lose()
    house.say("hello", rest=False)
    house.rest(600)
    assert house.heard_back() == ["You said: hello"]
    (done,) = house.diary.of("delivery.done")
    assert done["found"] is True


def test_what_is_held_because_nobody_can_tell_is_told_as_given_up(house: House) -> None:
    platform = use(house, Delivery.BLIND)
    house.furniture.policy = "hold"
    platform.faults.lose()
    house.say("hello", rest=False)
    house.rest(600)
    (parked,) = house.diary.of("delivery.parked")
    assert parked["doubtful"] is True
