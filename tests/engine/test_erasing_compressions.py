"""A turn that has seen what is erased stops at once; one that does not know yet makes no summary of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everhold.core.entries import Compressed, EntryDraft
from everhold.engine import session_changes
from everhold.errors import TooLong
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.store import Change, Step
from everhold.testing.fakes import FakeModel
from everhold.testing.gateway import InProcessGateway

from .conftest import HeldModel
from .test_forgetting import CANARY, everywhere


class Overwhelmed(HeldModel):
    """Thinks for a while before it finds that it is too much."""

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        await super().answer(request, on_text=on_text)
        raise TooLong("too many tokens")


def summary(request: ModelRequest) -> ModelResponse:
    told = "".join(message.text for message in request.messages)
    return ModelResponse(text=f"the key is under {CANARY}" if CANARY in told else "there is a key")


def erase(house: InProcessGateway, session: str, seq: int) -> None:
    house.run(house.control.erase_entries(session, [seq]))


def erase_and_fall(house: InProcessGateway, session: str, seq: int) -> None:
    """Only the commit that erases; whoever made it falls before the branches are done."""

    async def work() -> None:
        plan = await session_changes.plan_erasure(
            house.store, await house.store.get_session(session), [seq], by="operator", why=""
        )
        drafts = tuple(EntryDraft(body=body, author="operator") for body in plan.bodies)
        await house.store.commit(
            Change(step=Step.ERASE, session=session, at=house.clock.now(), entries=drafts, erase=plan.seqs)
        )

    house.run(work())


@pytest.mark.parametrize(
    "branched, forget",
    [(False, erase), (True, erase), (True, erase_and_fall)],
    ids=["itself", "branch", "left half done"],
)
def test_it_folds_what_is_there_now(
    house: InProcessGateway, branched: bool, forget: Callable[[InProcessGateway, str, int], None]
) -> None:
    house.runtimes.model = FakeModel(lambda request: ModelResponse(text="ok"))
    first = house.send_message(f"the key is under {CANARY}")
    house.send_message("and so on " * 100)
    if branched:
        house.send_message("/branch")
    held = Overwhelmed()
    house.runtimes.model = held
    house.runtimes.summariser = FakeModel(summary)
    session = house.send_message("where is it?", rest=False).session
    house.pass_time(1)
    assert (session != first.session) is branched
    assert CANARY in "".join(message.text for message in held.requests[-1].messages)
    forget(house, first.session, first.seq)
    held.free = True
    house.pass_time(30)
    assert CANARY not in str(house.read_bodies(session, Compressed))
    assert all(CANARY not in str(request) for request in house.runtimes.summariser.requests)
    assert everywhere(house.path, CANARY) == []


def test_a_turn_that_has_seen_it_is_not_waited_for(house: InProcessGateway) -> None:
    first = house.send_message(f"the key is under {CANARY}")
    held = HeldModel()
    house.runtimes.model = held
    session = house.send_message("where is it?", rest=False).session
    house.pass_time(1)
    erase(house, session, first.seq)
    house.pass_time(3)
    seen, again = ["".join(message.text for message in request.messages) for request in held.requests]
    assert CANARY in seen
    assert CANARY not in again.replace(f"You said: the key is under {CANARY}", "")
    held.free = True
    house.run_until_idle()
    assert house.list_shown_texts()[-1] == "at last"
    house.assert_sound()
