"""What came of a task reaches those memories that want to hear of it: once, in order, whatever falls; nobody else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from everhold.admin.memory import MemoryAdmin
from everhold.core.consumers import memory_consumer
from everhold.core.entries import Heard
from everhold.core.exchange import render_task_report
from everhold.core.memory_pacing import parse_write_setting
from everhold.errors import InDoubt, Transient
from everhold.ports.memory import Exchange, JobResult, MemoryBatch, MemoryCapability
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import Step
from everhold.testing.fakes import FakeMemoryProvider, FakeModel, echo_last_message
from everhold.testing.gateway import InProcessGateway
from tests.engine.test_jobs import reviewing
from tests.engine.test_operations import crash_at_step


class Overseer(FakeMemoryProvider):
    """Wants to hear of jobs, and keeps them in line with the rest."""

    capabilities = frozenset({MemoryCapability.JOBS, MemoryCapability.PROBE})

    def __init__(self, delivery: DeliveryGuarantee = DeliveryGuarantee.KEYED) -> None:
        super().__init__(delivery, deadline=5.0)
        self.told: list[JobResult] = []
        self.line: list[str] = []
        """What came, by what it was about."""

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        assert not (batch.items and batch.jobs), "never together"
        try:
            found = await super().store(batch)
        except InDoubt:
            self._hear(batch)
            raise
        self._hear(batch)
        return {**found, **{job.key: f"job-{job.key}" for job in batch.jobs}}

    def _hear(self, batch: MemoryBatch) -> None:
        self.line += [item.heard[-1].text for item in batch.items if isinstance(item, Exchange)]
        for job in batch.jobs:
            if self.delivery is not DeliveryGuarantee.KEYED or job.key not in {one.key for one in self.told}:
                self.told.append(job)
                self.line.append(job.task)


def answer(request: ModelRequest) -> ModelResponse:
    return ModelResponse(text="forty-two") if "The task:" in request.messages[-1].text else echo_last_message(request)


def oversee(house: InProcessGateway, delivery: DeliveryGuarantee = DeliveryGuarantee.KEYED) -> Overseer:
    provider = Overseer(delivery)
    house.runtimes.memories["a"] = provider
    house.runtimes.settings["job_memories"] = ("a",)
    house.runtimes.model = FakeModel(answer)
    return provider


def test_it_is_told_what_was_asked_and_what_came_of_it_under_the_name_of_the_session(house: InProcessGateway) -> None:
    provider = oversee(house)
    session = house.send_message("hello").session
    house.send_message("/background what is the answer?")
    (job,) = provider.told
    assert (job.task, job.result) == ("what is the answer?", "forty-two")
    assert (job.session, job.agent, job.stamp.person) == (session, "main", "ada")
    house.send_message("thanks")
    assert provider.line == ["hello", "what is the answer?", "thanks"]
    assert len(provider.told) == 1
    house.assert_sound()


def test_nobody_else_hears_of_it_or_is_woken_for_it(house: InProcessGateway) -> None:
    provider = FakeMemoryProvider()
    house.runtimes.memories["a"] = provider
    house.runtimes.model = FakeModel(answer)
    session = house.send_message("hello").session
    before = house.run(house.store.get_cursor(memory_consumer("a"), session))
    house.send_message("/background what is the answer?")
    after = house.run(house.store.get_cursor(memory_consumer("a"), session))
    assert (len(provider.writes), after) == (1, before)
    house.runtimes.settings["job_memories"] = ("a",)  # nobody knew better: its lane is woken, and finds nothing
    house.send_message("/background and once more?")
    assert len(provider.writes) == 1
    assert len(house.run(house.store.list_receipts(session, consumer=memory_consumer("a")))) == 1
    house.assert_sound()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", [Step.JOB, Step.DELIVERY_SEND, Step.DELIVERY_DONE])
def test_a_crash_anywhere_around_it_loses_nothing_and_doubles_nothing(
    house: InProcessGateway, step: Step, after: bool
) -> None:
    provider = oversee(house)
    house.send_message("hello")
    crash_at_step(house, step, after=after)
    house.send_message("/background what is the answer?", rest=False)
    house.pass_time(5)
    house.start()
    house.run_until_idle(60)
    assert [job.result for job in provider.told] == ["forty-two"]
    house.assert_sound()


def test_while_it_is_away_it_waits_in_order(house: InProcessGateway) -> None:
    provider = oversee(house)
    house.send_message("hello")
    provider.faults.fail_next(Transient("away"), times=3)
    house.send_message("/background what is the answer?")
    house.send_message("thanks")
    house.crash()
    house.start()
    house.run_until_idle(600)
    assert provider.line == ["hello", "what is the answer?", "thanks"]


def test_one_that_collects_turns_hears_of_a_job_at_once_like_of_a_note(house: InProcessGateway) -> None:
    provider = oversee(house)
    house.runtimes.settings["pacing"] = {"a": parse_write_setting(3)}
    house.send_message("hello")
    house.send_message("/background what is the answer?")
    assert provider.line == ["hello", "what is the answer?"]
    house.send_message("thanks")
    house.send_message("you are welcome")
    assert len(provider.line) == 2
    house.send_message("good night")
    assert provider.line[2:] == ["thanks", "you are welcome", "good night"]


def test_a_lost_answer_and_a_replay_tell_the_same_again(house: InProcessGateway) -> None:
    provider = oversee(house, DeliveryGuarantee.UNACKNOWLEDGED)
    house.send_message("/background what is the answer?", rest=False)
    provider.faults.lose_next_answer()
    house.run_until_idle(60)
    assert len(provider.told) == 2
    assert provider.told[0] == provider.told[1]
    memory = MemoryAdmin(house.control, agents=lambda: ["main"])
    assert house.run(memory.resend_memory("a", since=0.0))["items"] == 1
    house.run_until_idle(60)
    assert len(provider.told) == 3
    assert provider.told[2] == provider.told[0]
    house.assert_sound()


def test_what_was_erased_on_its_way_is_not_told_again_and_the_rest_is(house: InProcessGateway) -> None:
    provider = oversee(house, DeliveryGuarantee.UNACKNOWLEDGED)
    session = house.send_message("hello").session
    house.runtimes.memories = {}
    house.send_message("/background what is the answer?")
    house.send_message("/background and the question?")
    house.runtimes.memories = {"a": provider}
    provider.faults.lose_next_answer()
    provider.faults.fail_next(Transient("it cannot be searched"), times=3)
    house.send_message("thanks", rest=False)
    house.pass_time(8)
    assert len(provider.told) == 2, "both are on their way: nobody knows whether they arrived"
    first = provider.told[0].seq
    house.run(house.control.erase_entries(session, [first], by="person:ada", why="a slip"))
    house.run_until_idle(600)
    assert [job.task for job in provider.told[2:]] == ["and the question?"]
    assert provider.line[-1] == "thanks"
    house.assert_sound()


def test_reviews_are_nobody_s_jobs(house: InProcessGateway) -> None:
    provider = oversee(house)
    reviewing(house, every=1)
    house.runtimes.settings["pacing"] = {"a": parse_write_setting(3)}
    house.send_message("I like tea")
    house.send_message("and cake")
    house.run_until_idle(60)
    assert provider.line == [], "nor do they hurry anything"


def test_a_task_that_could_not_be_done_says_why(house: InProcessGateway) -> None:
    provider = oversee(house)
    house.runtimes.model = FakeModel(lambda request: ModelResponse(text=""))
    house.send_message("/background what “is”] the answer?\nReally?")
    (job,) = provider.told
    assert (job.task, job.result) == ("what “is”] the answer?\nReally?", "(nothing)")
    (heard,) = [body for body in house.read_bodies(job.session, Heard) if body.origin.platform == "job"]
    assert heard.text == render_task_report(job.task, job.result)
