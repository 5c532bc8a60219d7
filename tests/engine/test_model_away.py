"""During a model outage, the chat shows the time of the next attempt and the available commands."""

from __future__ import annotations

import pytest

from everhold.core.wording import describe_duration
from everhold.errors import OperatorNeeded, Overloaded
from everhold.testing.fakes import FakeModel
from everhold.testing.gateway import InProcessGateway


def lose_model(gateway: InProcessGateway, *, seconds: float = 600.0) -> None:
    gateway.runtimes.model.faults.fail_next(Overloaded("down", retry_after=seconds), times=3)
    gateway.send_message("are you there?", rest=False)
    gateway.pass_time(1.0)


def test_the_notice_names_the_next_attempt_and_the_stop_command(gateway: InProcessGateway) -> None:
    lose_model(gateway)
    (notice,) = gateway.list_shown_texts()
    assert "I retry in about 10 minutes; /stop puts the message aside." in notice


def test_stop_drops_the_waiting_messages_and_counts_them(gateway: InProcessGateway) -> None:
    lose_model(gateway)
    gateway.send_message("/stop", rest=False)
    gateway.pass_time(1.0)
    assert gateway.list_shown_texts()[-1] == "Nothing is running. 1 waiting message put aside."


@pytest.mark.parametrize(
    "command, said",
    [
        ("/undo", "Your message has no answer yet, so there is nothing to undo. /stop puts the message aside."),
        ("/retry", "Your message is kept, and I retry it automatically."),
    ],
)
def test_undo_and_retry_apply_to_the_waiting_message(gateway: InProcessGateway, command: str, said: str) -> None:
    lose_model(gateway)
    gateway.send_message(command, rest=False)
    gateway.pass_time(1.0)
    assert gateway.list_shown_texts()[-1] == said


@pytest.mark.parametrize(
    "seconds, said",
    [(0.0, "1 second"), (7.2, "8 seconds"), (60, "60 seconds"), (61, "2 minutes"), (7_200, "2 hours")],
)
def test_a_duration_is_rounded_up_to_one_unit(seconds: float, said: str) -> None:
    assert describe_duration(seconds) == said


def test_a_wrong_key_is_no_outage_and_the_message_is_answered_when_it_is_right(gateway: InProcessGateway) -> None:
    model = gateway.runtimes.model
    model.faults.fail_next(
        OperatorNeeded("m at host refused the request (HTTP 401)", remedy="put a valid key"), times=1
    )
    gateway.send_message("are you there?", rest=False)
    gateway.pass_time(1.0)
    notice = gateway.list_shown_texts()[0]
    assert "my model is not set up correctly" in notice
    assert "The operator of this gateway has to act" in notice
    assert "HTTP 401" not in notice, "a member does not hear the cause"
    assert "cannot be reached" not in notice
    assert gateway.process is not None
    gateway.run(gateway.store.retry_now())  # what a change of the configuration does
    gateway.pass_time(600.0)
    assert len(gateway.list_shown_texts()) == 2
    gateway.assert_sound()


def test_a_fallback_that_may_recover_by_itself_is_an_outage(gateway: InProcessGateway) -> None:
    gateway.runtimes.model.faults.fail_next(OperatorNeeded("wrong key", remedy="put a valid key"), times=1)
    spare = FakeModel()
    spare.faults.fail_next(Overloaded("down", retry_after=600.0), times=1)
    gateway.runtimes.fallbacks = (spare,)
    gateway.send_message("are you there?", rest=False)
    gateway.pass_time(1.0)
    assert "cannot be reached right now" in gateway.list_shown_texts()[0]
