"""A turn that has read an erased entry stops at once, and makes no summary of that entry."""

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


def erase(gateway: InProcessGateway, session: str, seq: int) -> None:
    gateway.run(gateway.control.erase_entries(session, [seq]))


def erase_and_fall(gateway: InProcessGateway, session: str, seq: int) -> None:
    """Make only the commit that erases, and crash before the branches are done."""

    async def work() -> None:
        plan = await session_changes.plan_erasure(
            gateway.store, await gateway.store.get_session(session), [seq], by="operator", why=""
        )
        drafts = tuple(EntryDraft(body=body, author="operator") for body in plan.bodies)
        await gateway.store.commit(
            Change(step=Step.ERASE, session=session, at=gateway.clock.now(), entries=drafts, erase=plan.seqs)
        )

    gateway.run(work())


@pytest.mark.parametrize(
    "branched, forget",
    [(False, erase), (True, erase), (True, erase_and_fall)],
    ids=["same session", "branch", "branch after a crash"],
)
def test_a_waiting_compression_covers_only_the_remaining_entries(
    gateway: InProcessGateway, branched: bool, forget: Callable[[InProcessGateway, str, int], None]
) -> None:
    gateway.runtimes.model = FakeModel(lambda request: ModelResponse(text="ok"))
    first = gateway.send_message(f"the key is under {CANARY}")
    gateway.send_message("and so on " * 100)
    if branched:
        gateway.send_message("/branch")
    held = Overwhelmed()
    gateway.runtimes.model = held
    gateway.runtimes.summariser = FakeModel(summary)
    session = gateway.send_message("where is it?", rest=False).session
    gateway.pass_time(1)
    assert (session != first.session) is branched
    assert CANARY in "".join(message.text for message in held.requests[-1].messages)
    forget(gateway, first.session, first.seq)
    held.free = True
    gateway.pass_time(30)
    assert CANARY not in str(gateway.read_bodies(session, Compressed))
    assert all(CANARY not in str(request) for request in gateway.runtimes.summariser.requests)
    assert everywhere(gateway.path, CANARY) == []


def test_an_erasure_does_not_wait_for_a_turn_that_read_the_entry(gateway: InProcessGateway) -> None:
    first = gateway.send_message(f"the key is under {CANARY}")
    held = HeldModel()
    gateway.runtimes.model = held
    session = gateway.send_message("where is it?", rest=False).session
    gateway.pass_time(1)
    erase(gateway, session, first.seq)
    gateway.pass_time(3)
    seen, again = ["".join(message.text for message in request.messages) for request in held.requests]
    assert CANARY in seen
    assert CANARY not in again.replace(f"You said: the key is under {CANARY}", "")
    held.free = True
    gateway.run_until_idle()
    assert gateway.list_shown_texts()[-1] == "at last"
    gateway.assert_sound()
