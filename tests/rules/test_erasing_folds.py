"""A turn that has seen what is erased stops at once; one that does not know yet makes no summary of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everhold.core.entries import Compressed, Draft
from everhold.errors import TooLong
from everhold.flow import amend
from everhold.ports.model import Answer, Request
from everhold.ports.store import Change, Step
from everhold.testing.fakes import ScriptedModel
from everhold.testing.house import House

from .conftest import HeldModel
from .test_forgetting import CANARY, everywhere


class Overwhelmed(HeldModel):
    """Thinks for a while before it finds that it is too much."""

    async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
        await super().answer(request, on_text=on_text)
        raise TooLong("too many tokens")


def summary(request: Request) -> Answer:
    told = "".join(message.text for message in request.messages)
    return Answer(text=f"the key is under {CANARY}" if CANARY in told else "there is a key")


def erase(house: House, session: str, seq: int) -> None:
    house.run(house.control.erase(session, [seq]))


def erase_and_fall(house: House, session: str, seq: int) -> None:
    """Only the commit that erases; whoever made it falls before the branches are done."""

    async def work() -> None:
        plan = await amend.erasure(house.store, await house.store.get_session(session), [seq], by="operator", why="")
        drafts = tuple(Draft(body=body, author="operator") for body in plan.bodies)
        await house.store.commit(
            Change(step=Step.ERASE, session=session, at=house.clock.now(), entries=drafts, erase=plan.seqs)
        )

    house.run(work())


@pytest.mark.parametrize(
    "branched, forget",
    [(False, erase), (True, erase), (True, erase_and_fall)],
    ids=["itself", "branch", "left half done"],
)
def test_it_folds_what_is_there_now(house: House, branched: bool, forget: Callable[[House, str, int], None]) -> None:
    house.furniture.model = ScriptedModel(lambda request: Answer(text="ok"))
    first = house.say(f"the key is under {CANARY}")
    house.say("and so on " * 100)
    if branched:
        house.say("/branch")
    held = Overwhelmed()
    house.furniture.model = held
    house.furniture.summariser = ScriptedModel(summary)
    session = house.say("where is it?", rest=False).session
    house.tick(1)
    assert (session != first.session) is branched
    assert CANARY in "".join(message.text for message in held.asked[-1].messages)
    forget(house, first.session, first.seq)
    held.free = True
    house.tick(30)
    assert CANARY not in str(house.bodies(session, Compressed))
    assert all(CANARY not in str(request) for request in house.furniture.summariser.asked)
    assert everywhere(house.path, CANARY) == []


def test_a_turn_that_has_seen_it_is_not_waited_for(house: House) -> None:
    first = house.say(f"the key is under {CANARY}")
    held = HeldModel()
    house.furniture.model = held
    session = house.say("where is it?", rest=False).session
    house.tick(1)
    erase(house, session, first.seq)
    house.tick(3)
    seen, again = ["".join(message.text for message in request.messages) for request in held.asked]
    assert CANARY in seen
    assert CANARY not in again.replace(f"You said: the key is under {CANARY}", "")
    held.free = True
    house.rest()
    assert house.heard_back()[-1] == "at last"
    house.sound()
