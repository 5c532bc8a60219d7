"""The result of a task reaches the memories with that capability once and in order, also after
crashes, and no others.
"""

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


class JobMemory(FakeMemoryProvider):
    """Has the capability for jobs, and records them in order with the exchanges."""

    capabilities = frozenset({MemoryCapability.JOBS, MemoryCapability.PROBE})

    def __init__(self, delivery: DeliveryGuarantee = DeliveryGuarantee.KEYED) -> None:
        super().__init__(delivery, deadline=5.0)
        self.received_jobs: list[JobResult] = []
        self.line: list[str] = []
        """The items in order of arrival."""

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        assert not (batch.items and batch.jobs), "never together"
        try:
            found = await super().store(batch)
        except InDoubt:
            self._record(batch)
            raise
        self._record(batch)
        return {**found, **{job.key: f"job-{job.key}" for job in batch.jobs}}

    def _record(self, batch: MemoryBatch) -> None:
        self.line += [item.heard[-1].text for item in batch.items if isinstance(item, Exchange)]
        for job in batch.jobs:
            if self.delivery is not DeliveryGuarantee.KEYED or job.key not in {one.key for one in self.received_jobs}:
                self.received_jobs.append(job)
                self.line.append(job.task)


def answer_task(request: ModelRequest) -> ModelResponse:
    return ModelResponse(text="forty-two") if "The task:" in request.messages[-1].text else echo_last_message(request)


def attach_job_memory(gateway: InProcessGateway, delivery: DeliveryGuarantee = DeliveryGuarantee.KEYED) -> JobMemory:
    provider = JobMemory(delivery)
    gateway.runtimes.memories["a"] = provider
    gateway.runtimes.settings["job_memories"] = ("a",)
    gateway.runtimes.model = FakeModel(answer_task)
    return provider


def test_the_memory_receives_task_and_result_under_the_session_s_name(gateway: InProcessGateway) -> None:
    provider = attach_job_memory(gateway)
    session = gateway.send_message("hello").session
    gateway.send_message("/background what is the answer?")
    (job,) = provider.received_jobs
    assert (job.task, job.result) == ("what is the answer?", "forty-two")
    assert (job.session, job.agent, job.stamp.person) == (session, "main", "ada")
    gateway.send_message("thanks")
    assert provider.line == ["hello", "what is the answer?", "thanks"]
    assert len(provider.received_jobs) == 1
    gateway.assert_sound()


def test_memories_without_the_capability_are_neither_called_nor_woken(gateway: InProcessGateway) -> None:
    provider = FakeMemoryProvider()
    gateway.runtimes.memories["a"] = provider
    gateway.runtimes.model = FakeModel(answer_task)
    session = gateway.send_message("hello").session
    before = gateway.run(gateway.store.get_cursor(memory_consumer("a"), session))
    gateway.send_message("/background what is the answer?")
    after = gateway.run(gateway.store.get_cursor(memory_consumer("a"), session))
    assert (len(provider.writes), after) == (1, before)
    gateway.runtimes.settings["job_memories"] = (
        "a",
    )  # its capabilities were unknown: its cursor is woken and finds nothing
    gateway.send_message("/background and once more?")
    assert len(provider.writes) == 1
    assert len(gateway.run(gateway.store.list_receipts(session, consumer=memory_consumer("a")))) == 1
    gateway.assert_sound()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", [Step.JOB, Step.DELIVERY_SEND, Step.DELIVERY_DONE])
def test_a_crash_at_any_step_loses_and_doubles_no_job(gateway: InProcessGateway, step: Step, after: bool) -> None:
    provider = attach_job_memory(gateway)
    gateway.send_message("hello")
    crash_at_step(gateway, step, after=after)
    gateway.send_message("/background what is the answer?", rest=False)
    gateway.pass_time(5)
    gateway.start()
    gateway.run_until_idle(60)
    assert [job.result for job in provider.received_jobs] == ["forty-two"]
    gateway.assert_sound()


def test_while_the_service_is_down_items_wait_in_order(gateway: InProcessGateway) -> None:
    provider = attach_job_memory(gateway)
    gateway.send_message("hello")
    provider.faults.fail_next(Transient("away"), times=3)
    gateway.send_message("/background what is the answer?")
    gateway.send_message("thanks")
    gateway.crash()
    gateway.start()
    gateway.run_until_idle(600)
    assert provider.line == ["hello", "what is the answer?", "thanks"]


def test_a_paced_memory_receives_a_job_at_once_like_a_note(gateway: InProcessGateway) -> None:
    provider = attach_job_memory(gateway)
    gateway.runtimes.settings["pacing"] = {"a": parse_write_setting(3)}
    gateway.send_message("hello")
    gateway.send_message("/background what is the answer?")
    assert provider.line == ["hello", "what is the answer?"]
    gateway.send_message("thanks")
    gateway.send_message("you are welcome")
    assert len(provider.line) == 2
    gateway.send_message("good night")
    assert provider.line[2:] == ["thanks", "you are welcome", "good night"]


def test_a_lost_response_and_a_replay_send_the_same_job_again(gateway: InProcessGateway) -> None:
    provider = attach_job_memory(gateway, DeliveryGuarantee.UNACKNOWLEDGED)
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


def test_an_erased_job_in_doubt_is_not_resent_and_the_others_are(gateway: InProcessGateway) -> None:
    provider = attach_job_memory(gateway, DeliveryGuarantee.UNACKNOWLEDGED)
    session = gateway.send_message("hello").session
    gateway.runtimes.memories = {}
    gateway.send_message("/background what is the answer?")
    gateway.send_message("/background and the question?")
    gateway.runtimes.memories = {"a": provider}
    provider.faults.lose_next_answer()
    provider.faults.fail_next(Transient("it cannot be searched"), times=3)
    gateway.send_message("thanks", rest=False)
    gateway.pass_time(8)
    assert len(provider.received_jobs) == 2, "both are in doubt"
    first = provider.received_jobs[0].seq
    gateway.run(gateway.control.erase_entries(session, [first], by="person:ada", why="a slip"))
    gateway.run_until_idle(600)
    assert [job.task for job in provider.received_jobs[2:]] == ["and the question?"]
    assert provider.line[-1] == "thanks"
    gateway.assert_sound()


def test_reviews_are_not_delivered_as_jobs(gateway: InProcessGateway) -> None:
    provider = attach_job_memory(gateway)
    reviewing(gateway, every=1)
    gateway.runtimes.settings["pacing"] = {"a": parse_write_setting(3)}
    gateway.send_message("I like tea")
    gateway.send_message("and cake")
    gateway.run_until_idle(60)
    assert provider.line == [], "nor do they cause an early delivery"


def test_a_task_without_a_result_is_reported(gateway: InProcessGateway) -> None:
    provider = attach_job_memory(gateway)
    gateway.runtimes.model = FakeModel(lambda request: ModelResponse(text=""))
    gateway.send_message("/background what “is”] the answer?\nReally?")
    (job,) = provider.received_jobs
    assert (job.task, job.result) == ("what “is”] the answer?\nReally?", "(nothing)")
    (heard,) = [body for body in gateway.read_bodies(job.session, Heard) if body.origin.platform == "job"]
    assert heard.text == render_task_report(job.task, job.result)
