"""Two identities of one person that part again share nothing afterwards, however they part."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize("kept", ["turn", "compression", "pin"])
def test_words_of_an_identity_that_left_are_in_no_later_request(gateway: InProcessGateway, kept: str) -> None:
    """Both wrote into one session while they were linked. Afterwards neither reads there what the other said."""
    scenario = PeopleScenario(gateway)
    theirs = lead_both_into_one_session(gateway, scenario)
    said = gateway.send_message(f"Always remember: the word for zanzibar is {WORD}", who=DISCORD, chat="d")
    gateway.send_message("my own word is papaya4712", who=TELEGRAM, chat="t")
    if kept == "pin":
        gateway.send_message(f"/pin {said.seq}", who=TELEGRAM, chat="t")
    if kept != "turn":
        gateway.send_message("/compress here 0", who=TELEGRAM, chat="t")
    asked = len(gateway.runtimes.model.requests)
    gateway.send_message("what do you know?", who=TELEGRAM, chat="t")
    assert WORD in str(gateway.runtimes.model.requests[asked:]), "they are one person"
    scenario.unlink(DISCORD)
    asked = len(gateway.runtimes.model.requests)
    for text in ("what do you know?", "/retry", "and now?"):
        assert gateway.send_message(text, who=TELEGRAM, chat="t").session == theirs
    assert WORD not in str(gateway.runtimes.model.requests[asked:])
    assert "papaya4712" in str(gateway.read_log(theirs))
    assert sum("ContextReset" in str(entry.body) for entry in gateway.read_log(theirs)) == 1
    gateway.assert_sound()


def test_pins_of_an_identity_that_left_are_not_listed(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    lead_both_into_one_session(gateway, scenario)
    said = gateway.send_message(f"the word for zanzibar is {WORD}", who=DISCORD, chat="d")
    own = gateway.send_message("my own word is papaya4712", who=TELEGRAM, chat="t")
    for seq in (said.seq, own.seq):
        gateway.send_message(f"/pin {seq}", who=TELEGRAM, chat="t")
    scenario.unlink(DISCORD)
    gateway.send_message("/pins", who=TELEGRAM, chat="t")
    (listed,) = gateway.list_shown_texts()[-1].splitlines()
    assert listed.startswith(f"{own.seq} of ")
    gateway.send_message(f"/pin {said.seq}", who=TELEGRAM, chat="t")
    assert "has no entry" in gateway.list_shown_texts()[-1]


def test_a_summary_that_is_made_after_an_unlink_shows_nothing_of_the_other(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    theirs = lead_both_into_one_session(gateway, scenario)
    gateway.send_message(f"Always remember: the word for zanzibar is {WORD}", who=DISCORD, chat="d")
    scenario.unlink(DISCORD)
    gateway.send_message("/compress here 0", who=TELEGRAM, chat="t")
    asked = len(gateway.runtimes.model.requests)
    assert gateway.send_message("what do you know?", who=TELEGRAM, chat="t").session == theirs
    assert gateway.send_message("and now?", who=TELEGRAM, chat="t").session == theirs
    gateway.send_message("/compress here 0", who=TELEGRAM, chat="t")
    gateway.send_message("still there?", who=TELEGRAM, chat="t")
    assert WORD not in str(gateway.runtimes.model.requests[asked:])
    assert sum("ContextReset" in str(entry.body) for entry in gateway.read_log(theirs)) == 1, "one reset is enough"
    gateway.assert_sound()


def test_a_task_after_an_unlink_sees_nothing_of_the_other(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    lead_both_into_one_session(gateway, scenario)
    gateway.send_message(f"the word for zanzibar is {WORD}", who=DISCORD, chat="d")
    asked = len(gateway.runtimes.model.requests)
    gateway.send_message("/background look into zanzibar", who=TELEGRAM, chat="t")
    assert WORD in str(gateway.runtimes.model.requests[asked:]), "they are one person"
    scenario.unlink(DISCORD)
    asked = len(gateway.runtimes.model.requests)
    gateway.send_message("/background look into zanzibar again", who=TELEGRAM, chat="t")
    assert len(gateway.runtimes.model.requests) > asked
    assert WORD not in str(gateway.runtimes.model.requests[asked:])
    gateway.assert_sound()


def test_a_message_that_was_not_answered_because_of_an_unlink_is_not_shown_to_the_other(
    gateway: InProcessGateway,
) -> None:
    scenario = PeopleScenario(gateway)
    theirs = lead_both_into_one_session(gateway, scenario)
    message = gateway.make_message(f"the word for zanzibar is {WORD}", who=DISCORD, chat="d")
    gateway.accept_message(message)  # it waits while the unlink is committed
    scenario.unlink(DISCORD)
    gateway.run_until_idle()
    asked = len(gateway.runtimes.model.requests)
    assert gateway.send_message("what do you know?", who=TELEGRAM, chat="t").session == theirs
    assert WORD not in str(gateway.runtimes.model.requests[asked:])


def test_a_message_that_was_held_during_an_unlink_goes_to_its_own_session(gateway: InProcessGateway) -> None:
    """Its files were downloaded meanwhile. It was admitted before the unlink, and is accepted after it."""
    scenario = PeopleScenario(gateway)
    theirs = lead_both_into_one_session(gateway, scenario)
    held = gateway.make_message("see the picture", who=DISCORD, chat="d")
    decision = gateway.admit(held)
    scenario.unlink(DISCORD)
    assert gateway.process is not None
    assert gateway.run(gateway.process.accept.release(held, decision)).session != theirs


def test_a_link_and_an_unlink_of_others_leave_the_context_alone(gateway: InProcessGateway) -> None:
    scenario = PeopleScenario(gateway)
    session = gateway.send_message("my own word is papaya4712", who=TELEGRAM, chat="t").session
    scenario.link(TELEGRAM, DISCORD)
    gateway.send_message("hello", who=DISCORD, chat="d")
    scenario.unlink(DISCORD)
    gateway.send_message("what do you know?", who=TELEGRAM, chat="t")
    assert "papaya4712" in str(gateway.runtimes.model.requests[-1])
    assert "ContextReset" not in str(gateway.read_log(session))
