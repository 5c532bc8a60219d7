"""What came of a task reaches those memories that want to hear of it: once, in order, whatever falls; nobody else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from everhold.core.consumers import memory_consumer
from everhold.core.entries import Heard
from everhold.core.exchange import report
from everhold.core.pace import pace_of
from everhold.errors import InDoubt, Transient
from everhold.memory import Memory
from everhold.ports.memory import Batch, Capability, Exchange, Job
from everhold.ports.model import Answer, Request
from everhold.ports.platform import Delivery
from everhold.ports.store import Step
from everhold.testing.fakes import FakeProvider, ScriptedModel, echo
from everhold.testing.house import House
from tests.rules.test_jobs import reviewing
from tests.rules.test_working import die_at


class Overseer(FakeProvider):
    """Wants to hear of jobs, and keeps them in line with the rest."""

    capabilities = frozenset({Capability.JOBS, Capability.PROBE})

    def __init__(self, delivery: Delivery = Delivery.KEYED) -> None:
        super().__init__(delivery, deadline=5.0)
        self.told: list[Job] = []
        self.line: list[str] = []
        """What came, by what it was about."""

    async def store(self, batch: Batch) -> Mapping[str, str]:
        assert not (batch.items and batch.jobs), "never together"
        try:
            found = await super().store(batch)
        except InDoubt:
            self._hear(batch)
            raise
        self._hear(batch)
        return {**found, **{job.key: f"job-{job.key}" for job in batch.jobs}}

    def _hear(self, batch: Batch) -> None:
        self.line += [item.heard[-1].text for item in batch.items if isinstance(item, Exchange)]
        for job in batch.jobs:
            if self.delivery is not Delivery.KEYED or job.key not in {one.key for one in self.told}:
                self.told.append(job)
                self.line.append(job.task)


def answer(request: Request) -> Answer:
    return Answer(text="forty-two") if "The task:" in request.messages[-1].text else echo(request)


def oversee(house: House, delivery: Delivery = Delivery.KEYED) -> Overseer:
    provider = Overseer(delivery)
    house.furniture.memories["a"] = provider
    house.furniture.settings["overseeing"] = ("a",)
    house.furniture.model = ScriptedModel(answer)
    return provider


def test_it_is_told_what_was_asked_and_what_came_of_it_under_the_name_of_the_session(house: House) -> None:
    provider = oversee(house)
    session = house.say("hello").session
    house.say("/background what is the answer?")
    (job,) = provider.told
    assert (job.task, job.result) == ("what is the answer?", "forty-two")
    assert (job.session, job.agent, job.stamp.person) == (session, "main", "ada")
    house.say("thanks")
    assert provider.line == ["hello", "what is the answer?", "thanks"]
    assert len(provider.told) == 1
    house.sound()


def test_nobody_else_hears_of_it_or_is_woken_for_it(house: House) -> None:
    provider = FakeProvider()
    house.furniture.memories["a"] = provider
    house.furniture.model = ScriptedModel(answer)
    session = house.say("hello").session
    before = house.run(house.store.get_cursor(memory_consumer("a"), session))
    house.say("/background what is the answer?")
    after = house.run(house.store.get_cursor(memory_consumer("a"), session))
    assert (len(provider.writes), after) == (1, before)
    house.furniture.settings["overseeing"] = ("a",)  # nobody knew better: its lane is woken, and finds nothing
    house.say("/background and once more?")
    assert len(provider.writes) == 1
    assert len(house.run(house.store.list_receipts(session, consumer=memory_consumer("a")))) == 1
    house.sound()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", [Step.JOB, Step.DELIVERY_SEND, Step.DELIVERY_DONE])
def test_a_crash_anywhere_around_it_loses_nothing_and_doubles_nothing(house: House, step: Step, after: bool) -> None:
    provider = oversee(house)
    house.say("hello")
    die_at(house, step, after=after)
    house.say("/background what is the answer?", rest=False)
    house.tick(5)
    house.start()
    house.rest(60)
    assert [job.result for job in provider.told] == ["forty-two"]
    house.sound()


def test_while_it_is_away_it_waits_in_order(house: House) -> None:
    provider = oversee(house)
    house.say("hello")
    provider.faults.fail(Transient("away"), times=3)
    house.say("/background what is the answer?")
    house.say("thanks")
    house.crash()
    house.start()
    house.rest(600)
    assert provider.line == ["hello", "what is the answer?", "thanks"]


def test_one_that_collects_turns_hears_of_a_job_at_once_like_of_a_note(house: House) -> None:
    provider = oversee(house)
    house.furniture.settings["paces"] = {"a": pace_of(3)}
    house.say("hello")
    house.say("/background what is the answer?")
    assert provider.line == ["hello", "what is the answer?"]
    house.say("thanks")
    house.say("you are welcome")
    assert len(provider.line) == 2
    house.say("good night")
    assert provider.line[2:] == ["thanks", "you are welcome", "good night"]


def test_a_lost_answer_and_a_replay_tell_the_same_again(house: House) -> None:
    provider = oversee(house, Delivery.UNACKNOWLEDGED)
    house.say("/background what is the answer?", rest=False)
    provider.faults.lose()
    house.rest(60)
    assert len(provider.told) == 2
    assert provider.told[0] == provider.told[1]
    memory = Memory(house.control, agents=lambda: ["main"])
    assert house.run(memory.replay("a", since=0.0))["items"] == 1
    house.rest(60)
    assert len(provider.told) == 3
    assert provider.told[2] == provider.told[0]
    house.sound()


def test_what_was_erased_on_its_way_is_not_told_again_and_the_rest_is(house: House) -> None:
    provider = oversee(house, Delivery.UNACKNOWLEDGED)
    session = house.say("hello").session
    house.furniture.memories = {}
    house.say("/background what is the answer?")
    house.say("/background and the question?")
    house.furniture.memories = {"a": provider}
    provider.faults.lose()
    provider.faults.fail(Transient("it cannot be searched"), times=3)
    house.say("thanks", rest=False)
    house.tick(8)
    assert len(provider.told) == 2, "both are on their way: nobody knows whether they arrived"
    first = provider.told[0].seq
    house.run(house.control.erase(session, [first], by="person:ada", why="a slip"))
    house.rest(600)
    assert [job.task for job in provider.told[2:]] == ["and the question?"]
    assert provider.line[-1] == "thanks"
    house.sound()


def test_reviews_are_nobody_s_jobs(house: House) -> None:
    provider = oversee(house)
    reviewing(house, every=1)
    house.furniture.settings["paces"] = {"a": pace_of(3)}
    house.say("I like tea")
    house.say("and cake")
    house.rest(60)
    assert provider.line == [], "nor do they hurry anything"


def test_a_task_that_could_not_be_done_says_why(house: House) -> None:
    provider = oversee(house)
    house.furniture.model = ScriptedModel(lambda request: Answer(text=""))
    house.say("/background what “is”] the answer?\nReally?")
    (job,) = provider.told
    assert (job.task, job.result) == ("what “is”] the answer?\nReally?", "(nothing)")
    (heard,) = [body for body in house.bodies(job.session, Heard) if body.origin.platform == "job"]
    assert heard.text == report(job.task, job.result)
