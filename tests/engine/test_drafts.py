"""The first message of a growing reply is a delivery: stored before it is sent, and in doubt if its answer is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from everhold.core.entries import ChatLocation, Said, ToolCall
from everhold.errors import InDoubt, Refused, Transient
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.platform import DeliveryGuarantee, OutgoingMessage
from everhold.ports.store import Change, CommitResult, Step
from everhold.ports.tool import ToolEffect
from everhold.testing.fakes import FakeModel, FakePlatform, FakeTool
from everhold.testing.gateway import InProcessGateway

from .test_delivery import SlowModel

FULL = "piece by piece it grew"
HALF = "piece by piece piece by piece piece by piece piece by piece  …"
BLIND, PROBE, KEYED = DeliveryGuarantee.BLIND, DeliveryGuarantee.PROBE, DeliveryGuarantee.KEYED


class DraftingPlatform(FakePlatform):
    """A platform whose messages can be edited, and whose first answer to a draft can get lost."""

    def __init__(self, delivery: DeliveryGuarantee, *, fault: str = "") -> None:
        super().__init__(delivery)
        self.fault = fault
        """`answer lost`, `request lost`, `killed after it`, `killed before it`, `refused` or `later`."""
        self.visible: dict[str, str] = {}
        """remote id -> its present text."""
        self.first_drafts = 0
        self.typing = 0

    async def send_typing(self, to: ChatLocation) -> None:
        self.typing += 1

    async def draft(self, out: OutgoingMessage) -> str:
        self.first_drafts += 1
        fault, self.fault = self.fault, ""
        match fault:
            case "refused":
                raise Refused("no drafts here")
            case "later":
                raise Transient("not now")
            case "request lost":
                raise InDoubt("lost")
            case "killed before it":
                await asyncio.get_running_loop().create_future()
        remote = self.receive_sent(out)
        self.visible.setdefault(remote, out.text)
        if fault == "killed after it":
            await asyncio.get_running_loop().create_future()
        if fault == "answer lost":
            raise InDoubt("lost")
        return remote

    async def revise(self, remote: str, out: OutgoingMessage) -> None:
        self.visible[remote] = out.text

    async def send(self, out: OutgoingMessage) -> str:
        if not out.edits:
            remote = await super().send(out)
            self.visible[remote] = out.text
            return remote
        assert out.edits in self.visible
        self.visible[out.edits] = out.text
        self.arrived[out.key] = (out.edits, 0.0)
        return out.edits


def use_drafts(gateway: InProcessGateway, delivery: DeliveryGuarantee, *, fault: str = "") -> DraftingPlatform:
    platform = DraftingPlatform(delivery, fault=fault)
    gateway.platform = platform
    gateway.runtimes.platforms[("fake", "main")] = platform
    gateway.runtimes.drafts[("fake", "main")] = platform
    gateway.runtimes.model = SlowModel("piece by piece ")
    return platform


def answer_with_fault(gateway: InProcessGateway, delivery: DeliveryGuarantee, fault: str) -> DraftingPlatform:
    platform = use_drafts(gateway, delivery, fault=fault)
    gateway.send_message("write", rest=False)
    gateway.pass_time(5)
    if fault.startswith("killed"):
        gateway.crash()
        gateway.start()
    gateway.run_until_idle(120)
    gateway.assert_sound()
    return platform


def count_in_doubt(gateway: InProcessGateway) -> int:
    dead_letters = gateway.run(gateway.store.list_dead_letters())
    return sum(it.in_doubt for it in dead_letters) + gateway.run(gateway.store.count_receipts_in_doubt())


ARRIVED = ("answer lost", "killed after it")
MISSING = ("request lost", "killed before it")


@pytest.mark.parametrize("fault", [*ARRIVED, *MISSING])
@pytest.mark.parametrize("delivery", [KEYED, PROBE])
def test_a_lost_draft_becomes_the_reply_where_it_can_be_found(
    gateway: InProcessGateway, delivery: DeliveryGuarantee, fault: str
) -> None:
    platform = answer_with_fault(gateway, delivery, fault)
    assert list(platform.visible.values()) == [FULL]
    assert count_in_doubt(gateway) == 0


class HistoryPlatform(DraftingPlatform):
    """A platform that is probed in its history, like Slack: a message has one key, which an edit replaces, and a probe
    looks back to the message that is replied to."""

    def __init__(self, *, fault: str = "", lost_edits: int = 0) -> None:
        super().__init__(PROBE, fault=fault)
        self.lost_edits = lost_edits
        """How many edits are carried out without an answer."""
        self.newest = ""
        """The newest message that a person wrote."""
        self.shown_after: dict[str, str] = {}
        """remote id -> the newest message at that time."""

    def receive_sent(self, out: OutgoingMessage) -> str:
        remote = super().receive_sent(out)
        self.shown_after.setdefault(remote, self.newest)
        return remote

    async def send(self, out: OutgoingMessage) -> str:
        remote = await super().send(out)
        if out.edits:
            self.arrived = {key: it for key, it in self.arrived.items() if it[0] != remote or key == out.key}
            self.lost_edits -= 1
            if self.lost_edits >= 0:
                raise Transient("the answer to an edit was lost")
        return remote

    async def probe(self, out: OutgoingMessage) -> str | None:
        remote = await super().probe(out)
        return remote if remote is not None and self.shown_after[remote] >= out.to.message else None


def use_history(gateway: InProcessGateway, platform: HistoryPlatform) -> None:
    use_drafts(gateway, PROBE)
    gateway.platform = platform
    gateway.runtimes.platforms[("fake", "main")] = platform
    gateway.runtimes.drafts[("fake", "main")] = platform


def write_numbered(gateway: InProcessGateway, platform: HistoryPlatform, number: str) -> None:
    platform.newest = number
    gateway.send_message("write", rest=False, id=number)


@pytest.mark.parametrize("lost_edits", [1, 3])
def test_a_lost_draft_whose_edit_was_lost_is_not_sent_again(gateway: InProcessGateway, lost_edits: int) -> None:
    platform = HistoryPlatform(fault="answer lost", lost_edits=lost_edits)
    use_history(gateway, platform)
    write_numbered(gateway, platform, "1")
    gateway.run_until_idle(120)
    gateway.assert_sound()
    assert list(platform.visible.values()) == [FULL]
    assert count_in_doubt(gateway) == 0


class LookingModel(SlowModel):
    """Calls a tool in its first answer."""

    def __init__(self) -> None:
        super().__init__("piece by piece ")
        self.has_looked = False

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        answer = await super().answer(request, on_text=on_text)
        if self.has_looked:
            return answer
        self.has_looked = True
        return ModelResponse(text=answer.text, calls=(ToolCall("c1", "look"),))


def test_a_lost_draft_is_found_though_a_newer_message_joined_its_turn(gateway: InProcessGateway) -> None:
    platform = HistoryPlatform(fault="answer lost")
    use_history(gateway, platform)
    gateway.runtimes.model = LookingModel()
    gateway.runtimes.tools = {"look": FakeTool("look", ToolEffect.PURE)}
    gateway.runtimes.settings["busy_policy"] = "steer"
    write_numbered(gateway, platform, "1")
    gateway.pass_time(5)
    write_numbered(gateway, platform, "2")
    gateway.run_until_idle(120)
    gateway.assert_sound()
    (said,) = gateway.read_bodies(gateway.run(gateway.store.list_sessions())[0].id, Said)
    assert said.to.message == "2", "the reply goes to the newer message"
    assert list(platform.visible.values()) == [FULL]
    assert count_in_doubt(gateway) == 0


@pytest.mark.parametrize("fault", ARRIVED)
def test_a_partial_reply_that_cannot_be_found_is_counted(gateway: InProcessGateway, fault: str) -> None:
    platform = answer_with_fault(gateway, BLIND, fault)
    assert list(platform.visible.values()) == [HALF, FULL]
    assert count_in_doubt(gateway) == 1
    assert platform.first_drafts == 1, "nobody knows whether another draft would be a second one"


@pytest.mark.parametrize("fault", MISSING)
def test_a_draft_that_may_have_arrived_is_counted(gateway: InProcessGateway, fault: str) -> None:
    platform = answer_with_fault(gateway, BLIND, fault)
    assert list(platform.visible.values()) == [FULL]
    assert count_in_doubt(gateway) == 1


@pytest.mark.parametrize("fault", [*ARRIVED, *MISSING])
def test_with_hold_the_reply_is_not_sent_beside_its_lost_draft(gateway: InProcessGateway, fault: str) -> None:
    gateway.runtimes.in_doubt_policy = "hold"
    platform = answer_with_fault(gateway, BLIND, fault)
    assert FULL not in platform.visible.values()
    (dead_letter,) = gateway.run(gateway.store.list_dead_letters())
    assert dead_letter.in_doubt
    assert "growing" in dead_letter.reason
    assert count_in_doubt(gateway) == 1
    gateway.run(gateway.control.replay_dead_letters())
    gateway.run_until_idle(30)
    assert list(platform.visible.values())[-1] == FULL
    assert count_in_doubt(gateway) == 1, "the reply may be there twice"


@pytest.mark.parametrize("fault", ["refused", "later"])
@pytest.mark.parametrize("delivery", [KEYED, PROBE, BLIND])
def test_a_draft_that_was_not_sent_leaves_no_doubt(
    gateway: InProcessGateway, delivery: DeliveryGuarantee, fault: str
) -> None:
    gateway.runtimes.in_doubt_policy = "hold"
    platform = answer_with_fault(gateway, delivery, fault)
    assert list(platform.visible.values()) == [FULL]
    assert count_in_doubt(gateway) == 0


def test_a_lost_draft_is_counted_while_its_turn_runs(gateway: InProcessGateway) -> None:
    use_drafts(gateway, BLIND, fault="killed after it")
    gateway.send_message("write", rest=False)
    gateway.pass_time(5)
    gateway.crash()
    gateway.start()
    gateway.pass_time(15)
    assert count_in_doubt(gateway) == 1


@pytest.mark.parametrize("delivery", [KEYED, PROBE, BLIND])
def test_a_stopped_turn_does_not_leave_its_lost_draft_as_it_is(
    gateway: InProcessGateway, delivery: DeliveryGuarantee
) -> None:
    platform = use_drafts(gateway, delivery, fault="killed after it")
    gateway.send_message("write", rest=False)
    gateway.pass_time(5)
    gateway.crash()
    gateway.start()
    gateway.send_message("/stop", rest=False)
    gateway.run_until_idle(60)
    assert any(text.endswith("… (stopped)") for text in platform.visible.values())
    assert count_in_doubt(gateway) == (1 if delivery is BLIND else 0)


@pytest.mark.parametrize("delivery", [KEYED, PROBE, BLIND])
def test_a_kill_between_the_answer_and_its_record_is_a_lost_answer(
    gateway: InProcessGateway, delivery: DeliveryGuarantee
) -> None:
    platform = use_drafts(gateway, delivery)
    assert gateway.process is not None
    process, real = gateway.process, gateway.process.disk.commit

    async def commit(change: Change) -> CommitResult:
        if change.step is Step.DRAFT and change.receipts[0].remote:
            process.die()
            await asyncio.get_running_loop().create_future()
        return await real(change)

    process.disk.commit = commit  # type: ignore[method-assign]  # death strikes below every seam
    gateway.send_message("write", rest=False)
    gateway.pass_time(5)
    gateway.start()
    gateway.run_until_idle(120)
    assert list(platform.visible.values()) == ([HALF, FULL] if delivery is BLIND else [FULL])
    assert count_in_doubt(gateway) == (1 if delivery is BLIND else 0)


@pytest.mark.parametrize("delivery", [KEYED, PROBE, BLIND])
def test_a_draft_that_was_recorded_becomes_the_reply_after_a_kill(
    gateway: InProcessGateway, delivery: DeliveryGuarantee
) -> None:
    platform = use_drafts(gateway, delivery)
    gateway.send_message("write", rest=False)
    gateway.pass_time(5)
    gateway.crash()
    gateway.start()
    gateway.run_until_idle(120)
    assert list(platform.visible.values()) == [FULL]
    assert count_in_doubt(gateway) == 0


def test_a_streamed_reply_waits_for_the_disk_as_often_as_before(gateway: InProcessGateway) -> None:
    use_drafts(gateway, BLIND)
    assert gateway.process is not None
    disk, waits, steps = gateway.process.disk, Counter[Step](), Counter[Step]()
    real = disk.commit

    async def commit(change: Change) -> CommitResult:
        steps[change.step] += 1
        waits[change.step] += change.durable
        return await real(change)

    disk.commit = commit  # type: ignore[method-assign]  # a disk that loses nothing does not tell
    gateway.send_message("write", rest=False)
    gateway.run_until_idle(30)
    assert (steps[Step.DRAFT], waits[Step.DRAFT]) == (2, 1), "before it is sent, and the answer without waiting"
    assert waits[Step.BEGIN] == 0, "the commit before the draft waits for the disk, too"
    assert waits.total() == 5, "accept, draft, end, delivery.send and delivery.done"


class PacedModel(FakeModel):
    """Streams a long reply in two halves, and needs some seconds for each."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        assert on_text is not None
        for _ in range(2):
            on_text("a reply that is long enough to be shown before it is complete ")
            await asyncio.sleep(self.seconds)
        return ModelResponse(text="a reply")


@pytest.mark.parametrize("seconds, typing, drafts", [(0.0, 0, 0), (0.12, 0, 0), (0.2, 1, 0), (0.3, 1, 1)])
def test_a_reply_that_is_soon_complete_is_sent_once(
    gateway: InProcessGateway, seconds: float, typing: int, drafts: int
) -> None:
    platform = use_drafts(gateway, BLIND)
    gateway.runtimes.model = PacedModel(seconds)
    gateway.send_message("write", rest=False)
    gateway.run_until_idle(30)
    assert list(platform.visible.values()) == ["a reply"]
    assert (platform.typing, platform.first_drafts) == (typing, drafts)
    gateway.assert_sound()


def test_an_interval_passes_between_a_draft_and_its_first_edit(gateway: InProcessGateway) -> None:
    platform = use_drafts(gateway, BLIND)
    gateway.send_message("write", rest=False)
    gateway.pass_time(2.2)
    assert list(platform.visible.values()) == [HALF], "shown 0.5 s after it was long enough, which took 1.0 s"
    gateway.pass_time(0.6)
    assert list(platform.visible.values()) != [HALF]
    gateway.run_until_idle(30)
