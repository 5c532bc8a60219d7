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
        self.received_jobs: list[JobResult] = []
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
            if self.delivery is not DeliveryGuarantee.KEYED or job.key not in {one.key for one in self.received_jobs}:
                self.received_jobs.append(job)
                self.line.append(job.task)


def answer(request: ModelRequest) -> ModelResponse:
    return ModelResponse(text="forty-two") if "The task:" in request.messages[-1].text else echo_last_message(request)


def oversee(gateway: InProcessGateway, delivery: DeliveryGuarantee = DeliveryGuarantee.KEYED) -> Overseer:
    provider = Overseer(delivery)
    gateway.runtimes.memories["a"] = provider
    gateway.runtimes.settings["job_memories"] = ("a",)
    gateway.runtimes.model = FakeModel(answer)
    return provider


def test_it_is_told_what_was_asked_and_what_came_of_it_under_the_name_of_the_session(gateway: InProcessGateway) -> None:
    provider = oversee(gateway)
    session = gateway.send_message("hello").session
    gateway.send_message("/background what is the answer?")
    (job,) = provider.received_jobs
    assert (job.task, job.result) == ("what is the answer?", "forty-two")
    assert (job.session, job.agent, job.stamp.person) == (session, "main", "ada")
    gateway.send_message("thanks")
    assert provider.line == ["hello", "what is the answer?", "thanks"]
    assert len(provider.received_jobs) == 1
    gateway.assert_sound()


def test_nobody_else_hears_of_it_or_is_woken_for_it(gateway: InProcessGateway) -> None:
    provider = FakeMemoryProvider()
    gateway.runtimes.memories["a"] = provider
    gateway.runtimes.model = FakeModel(answer)
    session = gateway.send_message("hello").session
    before = gateway.run(gateway.store.get_cursor(memory_consumer("a"), session))
    gateway.send_message("/background what is the answer?")
    after = gateway.run(gateway.store.get_cursor(memory_consumer("a"), session))
    assert (len(provider.writes), after) == (1, before)
    gateway.runtimes.settings["job_memories"] = ("a",)  # nobody knew better: its lane is woken, and finds nothing
    gateway.send_message("/background and once more?")
    assert len(provider.writes) == 1
    assert len(gateway.run(gateway.store.list_receipts(session, consumer=memory_consumer("a")))) == 1
    gateway.assert_sound()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", [Step.JOB, Step.DELIVERY_SEND, Step.DELIVERY_DONE])
def test_a_crash_anywhere_around_it_loses_nothing_and_doubles_nothing(
    gateway: InProcessGateway, step: Step, after: bool
) -> None:
    provider = oversee(gateway)
    gateway.send_message("hello")
    crash_at_step(gateway, step, after=after)
    gateway.send_message("/background what is the answer?", rest=False)
    gateway.pass_time(5)
    gateway.start()
    gateway.run_until_idle(60)
    assert [job.result for job in provider.received_jobs] == ["forty-two"]
    gateway.assert_sound()


def test_while_it_is_away_it_waits_in_order(gateway: InProcessGateway) -> None:
    provider = oversee(gateway)
    gateway.send_message("hello")
    provider.faults.fail_next(Transient("away"), times=3)
    gateway.send_message("/background what is the answer?")
    gateway.send_message("thanks")
    gateway.crash()
    gateway.start()
    gateway.run_until_idle(600)
    assert provider.line == ["hello", "what is the answer?", "thanks"]


def test_one_that_collects_turns_hears_of_a_job_at_once_like_of_a_note(gateway: InProcessGateway) -> None:
    provider = oversee(gateway)
    gateway.runtimes.settings["pacing"] = {"a": parse_write_setting(3)}
    gateway.send_message("hello")
    gateway.send_message("/background what is the answer?")
    assert provider.line == ["hello", "what is the answer?"]
    gateway.send_message("thanks")
    gateway.send_message("you are welcome")
    assert len(provider.line) == 2
    gateway.send_message("good night")
    assert provider.line[2:] == ["thanks", "you are welcome", "good night"]


def test_a_lost_answer_and_a_replay_tell_the_same_again(gateway: InProcessGateway) -> None:
    provider = oversee(gateway, DeliveryGuarantee.UNACKNOWLEDGED)
    gateway.send_message("/background what is the answer?", rest=False)
    provider.faults.lose_next_answer()
    gateway.run_until_idle(60)
    assert len(provider.received_jobs) == 2
    assert provider.received_jobs[0] == provider.received_jobs[1]
    memory = MemoryAdmin(gateway.control, agents=lambda: ["main"])
    assert gateway.run(memory.resend_memory("a", since=0.0))["items"] == 1
    gateway.run_until_idle(60)
    assert len(provider.received_jobs) == 3
    assert provider.received_jobs[2] == provider.received_jobs[0]
    gateway.assert_sound()


def test_what_was_erased_on_its_way_is_not_told_again_and_the_rest_is(gateway: InProcessGateway) -> None:
    provider = oversee(gateway, DeliveryGuarantee.UNACKNOWLEDGED)
    session = gateway.send_message("hello").session
    gateway.runtimes.memories = {}
    gateway.send_message("/background what is the answer?")
    gateway.send_message("/background and the question?")
    gateway.runtimes.memories = {"a": provider}
    provider.faults.lose_next_answer()
    provider.faults.fail_next(Transient("it cannot be searched"), times=3)
    gateway.send_message("thanks", rest=False)
    gateway.pass_time(8)
    assert len(provider.received_jobs) == 2, "both are on their way: nobody knows whether they arrived"
    first = provider.received_jobs[0].seq
    gateway.run(gateway.control.erase_entries(session, [first], by="person:ada", why="a slip"))
    gateway.run_until_idle(600)
    assert [job.task for job in provider.received_jobs[2:]] == ["and the question?"]
    assert provider.line[-1] == "thanks"
    gateway.assert_sound()


def test_reviews_are_nobody_s_jobs(gateway: InProcessGateway) -> None:
    provider = oversee(gateway)
    reviewing(gateway, every=1)
    gateway.runtimes.settings["pacing"] = {"a": parse_write_setting(3)}
    gateway.send_message("I like tea")
    gateway.send_message("and cake")
    gateway.run_until_idle(60)
    assert provider.line == [], "nor do they hurry anything"


def test_a_task_that_could_not_be_done_says_why(gateway: InProcessGateway) -> None:
    provider = oversee(gateway)
    gateway.runtimes.model = FakeModel(lambda request: ModelResponse(text=""))
    gateway.send_message("/background what “is”] the answer?\nReally?")
    (job,) = provider.received_jobs
    assert (job.task, job.result) == ("what “is”] the answer?\nReally?", "(nothing)")
    (heard,) = [body for body in gateway.read_bodies(job.session, Heard) if body.origin.platform == "job"]
    assert heard.text == render_task_report(job.task, job.result)
