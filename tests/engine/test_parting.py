"""Two identities of one person that part again share nothing afterwards, however they part."""

from __future__ import annotations

from everhold.admin.memory import MemoryAdmin
from everhold.testing.gateway import InProcessGateway

from .test_isolation import WORD
from .test_people import DISCORD, TELEGRAM, PeopleScenario


def lead_both_into_one_session(gateway: InProcessGateway, scenario: PeopleScenario) -> str:
    """Return the session of the Telegram chat, to which the Discord chat of the same person leads, too."""
    scenario.link(TELEGRAM, DISCORD)
    theirs = gateway.send_message("hello", who=TELEGRAM, chat="t").session
    gateway.send_message("hello", who=DISCORD, chat="d")
    gateway.send_message(f"/resume {theirs}", who=DISCORD, chat="d")
    assert gateway.send_message("hello", who=DISCORD, chat="d").session == theirs
    return theirs


def test_an_unlinked_chat_leaves_a_session_whose_first_message_was_erased(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    theirs = lead_both_into_one_session(gateway, scenario)
    gateway.send_message(f"the word for zanzibar is {WORD}", who=TELEGRAM, chat="t")
    first = next(entry.seq for entry in gateway.read_log(theirs) if entry.author == f"person:{TELEGRAM}")
    gateway.run(gateway.control.erase_entries(theirs, (first,), by="operator", why="a test"))
    scenario.unlink(DISCORD)
    asked = len(gateway.runtimes.model.requests)
    assert gateway.send_message("what do you know?", who=DISCORD, chat="d").session != theirs
    assert WORD not in str(gateway.runtimes.model.requests[asked:])
    assert gateway.send_message("still me", who=TELEGRAM, chat="t").session == theirs
    gateway.assert_sound()


def test_identities_that_speak_again_after_a_forgetting_share_no_session(gateway: InProcessGateway) -> None:
    """Each is a new person then, and nobody has linked the two."""
    scenario = PeopleScenario(gateway)
    theirs = lead_both_into_one_session(gateway, scenario)
    gateway.run(MemoryAdmin(gateway.control, agents=lambda: ("main",)).forget_person(TELEGRAM))
    gateway.send_message(f"the word for zanzibar is {WORD}", who=TELEGRAM, chat="t")
    asked = len(gateway.runtimes.model.requests)
    gateway.send_message("what do you know?", who=DISCORD, chat="d")
    assert WORD not in str(gateway.runtimes.model.requests[asked:])
    assert theirs
    gateway.assert_sound()
