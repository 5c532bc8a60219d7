"""While no model can be asked: the chat hears when the next try is, and what can be done meanwhile."""

from __future__ import annotations

import pytest

from everhold.core.wording import describe_duration
from everhold.errors import Overloaded
from everhold.testing.gateway import InProcessGateway


def lose_model(house: InProcessGateway, *, seconds: float = 600.0) -> None:
    house.runtimes.model.faults.fail_next(Overloaded("down", retry_after=seconds), times=3)
    house.send_message("are you there?", rest=False)
    house.pass_time(1.0)


def test_the_notice_says_when_it_is_tried_again_and_how_to_stop(house: InProcessGateway) -> None:
    lose_model(house)
    (notice,) = house.list_shown_texts()
    assert "I try again in about 10 minutes; /stop puts the message aside." in notice


def test_stop_puts_the_waiting_message_aside_and_counts_it_well(house: InProcessGateway) -> None:
    lose_model(house)
    house.send_message("/stop", rest=False)
    house.pass_time(1.0)
    assert house.list_shown_texts()[-1] == "Nothing is running. 1 waiting message put aside."


@pytest.mark.parametrize(
    "command, said",
    [
        ("/undo", "Your message has no answer yet that could be undone. /stop puts the message aside."),
        ("/retry", "Your message is kept, and it is tried again without being asked."),
    ],
)
def test_undo_and_retry_know_of_the_message_that_waits(house: InProcessGateway, command: str, said: str) -> None:
    lose_model(house)
    house.send_message(command, rest=False)
    house.pass_time(1.0)
    assert house.list_shown_texts()[-1] == said


@pytest.mark.parametrize(
    "seconds, said",
    [(0.0, "1 second"), (7.2, "8 seconds"), (60, "60 seconds"), (61, "2 minutes"), (7_200, "2 hours")],
)
def test_a_duration_is_rounded_up_to_one_unit(seconds: float, said: str) -> None:
    assert describe_duration(seconds) == said
