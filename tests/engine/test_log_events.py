"""The documented log events are written after their cause, with session and operation."""

from __future__ import annotations

from pathlib import Path

import pytest

from everhold.config.loader import load_settings
from everhold.config.watch import ConfigWatcher
from everhold.core.entries import BranchCreated, Changed
from everhold.errors import InDoubt, Refused
from everhold.infra.home import Home
from everhold.ports.model import ModelResponse
from everhold.ports.platform import DeliveryGuarantee
from everhold.testing.fakes import FakeMemoryProvider, FakeModel
from everhold.testing.gateway import InProcessGateway

from .test_delivery import use

EVENTS = (
    "message.accepted turn.started turn.completed compression.started compression.completed compression.refused "
    "delivery.done delivery.in_doubt memory.stored memory.dead_lettered config.loaded session.bound "
    "session.branched"
).split()
OF_AN_OPERATION = {event for event in EVENTS if event.startswith(("turn.", "compression."))}


def drive(gateway: InProcessGateway, home: Home) -> str:
    """Cause every logged event; return the session it began in."""
    gateway.runtimes.memories = {"a": (provider := FakeMemoryProvider())}
    provider.faults.succeed_next()
    provider.faults.fail_next(Refused("too strange"))
    session = gateway.send_message("hello").session
    gateway.send_message("refused")
    gateway.platform.faults.fail_next(InDoubt("no answer"))
    gateway.send_message("in doubt", rest=False)
    gateway.run_until_idle(600)
    gateway.runtimes.summariser = FakeModel([ModelResponse(text=""), ModelResponse(text="short")])
    gateway.send_message("/compress here 0")
    gateway.send_message("/compress here 0")
    gateway.send_message("/branch")
    gateway.send_message("in the branch")
    gateway.send_message(f"/resume {session}")
    gateway.send_message("and back")
    assert gateway.process is not None
    watcher = ConfigWatcher(
        home,
        load_settings(home, environ={}),
        load=lambda: load_settings(home, environ={}),
        swap=lambda settings: None,
        log=gateway.logger,
        monotonic=gateway.clock.monotonic,
        sleep=gateway.process.gates.sleep,
    )
    home.config.write_text("timezone: Europe/Berlin\n")
    gateway.run(watcher.get_fresh_settings())
    return session


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


def test_every_documented_event_is_logged_with_session_and_operation(gateway: InProcessGateway, home: Home) -> None:
    use(gateway, DeliveryGuarantee.KEYED)
    session = drive(gateway, home)
    told = {event: gateway.logger.find_events(event) for event in EVENTS}
    assert not [event for event, lines in told.items() if not lines]
    sessions = {
        session,
        *(b.change.session for b in gateway.read_bodies(session, Changed) if isinstance(b.change, BranchCreated)),
    }
    assert len(sessions) == 2
    for event, lines in told.items():
        for line in lines:
            if event != "config.loaded":
                assert line["session"] in sessions, (event, line)
            assert ("op" in line) == (event in OF_AN_OPERATION), (event, line)
    gateway.assert_sound()


def test_every_binding_of_an_address_is_logged(gateway: InProcessGateway, home: Home) -> None:
    session = drive(gateway, home)
    (branched,) = gateway.logger.find_events("session.branched")
    assert (branched["session"], branched["parent"]) == (session, session)
    bound = [(line["session"], line.get("previous")) for line in gateway.logger.find_events("session.bound")]
    assert bound == [(session, None), (branched["branch"], session), (session, branched["branch"])]


def test_dead_letters_of_memories_and_of_replies_have_different_events(gateway: InProcessGateway) -> None:
    gateway.runtimes.memories = {"a": (provider := FakeMemoryProvider())}
    provider.faults.fail_next(Refused("too strange"))
    platform = use(gateway, DeliveryGuarantee.KEYED)
    platform.faults.fail_next(Refused("blocked"))
    gateway.send_message("hello")
    (reply,), (memory,) = (
        gateway.logger.find_events("delivery.dead_lettered"),
        gateway.logger.find_events("memory.dead_lettered"),
    )
    assert (reply["consumer"], reply["reason"]) == ("platform:fake:main", "blocked")
    assert (memory["consumer"], memory["reason"]) == ("memory:a", "too strange")
    assert not gateway.logger.find_events("delivery.done")
    assert not gateway.logger.find_events("memory.stored")


def test_a_delivery_found_by_a_probe_is_logged_like_an_acknowledged_one(gateway: InProcessGateway) -> None:
    platform = use(gateway, DeliveryGuarantee.PROBE)
    platform.faults.lose_next_answer()
    gateway.send_message("hello", rest=False)
    gateway.run_until_idle(600)
    assert gateway.list_shown_texts() == ["You said: hello"]
    (done,) = gateway.logger.find_events("delivery.done")
    assert done["found"] is True


def test_a_held_in_doubt_item_is_logged_as_dead_lettered(gateway: InProcessGateway) -> None:
    platform = use(gateway, DeliveryGuarantee.BLIND)
    gateway.runtimes.in_doubt_policy = "hold"
    platform.faults.lose_next_answer()
    gateway.send_message("hello", rest=False)
    gateway.run_until_idle(600)
    (dead_letter,) = gateway.logger.find_events("delivery.dead_lettered")
    assert dead_letter["in_doubt"] is True
