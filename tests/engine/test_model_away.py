"""While no model can be asked: the chat hears when the next try is, and what can be done meanwhile."""

from __future__ import annotations

import pytest

from everhold.core.wording import describe_duration
from everhold.errors import Overloaded
from everhold.testing.gateway import InProcessGateway


def lose_model(gateway: InProcessGateway, *, seconds: float = 600.0) -> None:
    gateway.runtimes.model.faults.fail_next(Overloaded("down", retry_after=seconds), times=3)
    gateway.send_message("are you there?", rest=False)
    gateway.pass_time(1.0)


def test_the_notice_says_when_it_is_tried_again_and_how_to_stop(gateway: InProcessGateway) -> None:
    lose_model(gateway)
    (notice,) = gateway.list_shown_texts()
    assert "I try again in about 10 minutes; /stop puts the message aside." in notice


def test_stop_puts_the_waiting_message_aside_and_counts_it_well(gateway: InProcessGateway) -> None:
    lose_model(gateway)
    gateway.send_message("/stop", rest=False)
    gateway.pass_time(1.0)
    assert gateway.list_shown_texts()[-1] == "Nothing is running. 1 waiting message put aside."


@pytest.mark.parametrize(
    "command, said",
    [
        ("/undo", "Your message has no answer yet that could be undone. /stop puts the message aside."),
        ("/retry", "Your message is kept, and it is tried again without being asked."),
    ],
)
def test_undo_and_retry_know_of_the_message_that_waits(gateway: InProcessGateway, command: str, said: str) -> None:
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
