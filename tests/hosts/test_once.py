"""What must happen once happens once, whichever hosts are asked: keys, codes, logins, schedules, held messages."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from everhold.api.auth import find_credential_by_name
from everhold.api.idempotency import KEEP_SECONDS, TaskKey
from everhold.api.logins import LoginRegistry
from everhold.api.reply_wait import FinalReply
from everhold.api.shared_answers import ANSWER_LEASE_SECONDS, SharedAnswers
from everhold.config import parse_settings
from everhold.config.secrets import SecretEnvironment
from everhold.core.entries import ChatLocation, ModelUsage
from everhold.core.forgetting import is_record_of
from everhold.core.schedule import Schedule, parse_rule
from everhold.engine.gates import Gates
from everhold.engine.memory.backfill import SharedBackfillRateLimit
from everhold.errors import Conflict, NotFound, Refused
from everhold.ingress.schedules import ScheduleRunner
from everhold.ports.store import Change, StateNamespace, StateRecord, StateWrite, Step
from tests.hosts.test_work import SimulatedHosts
from tests.ingress.harness import IngressHarness, ManualClock

KEY = TaskKey("token:ada", "ada", "k1")
DIGEST = b"digest"


@pytest.fixture
def hosts(tmp_path: Path) -> SimulatedHosts:
    return SimulatedHosts(tmp_path)


def make_reply(text: str) -> FinalReply:
    return FinalReply(id="1", text=text, usage=ModelUsage(input=1, output=2))


class SlowAnswers:
    """Counts the answers that are made."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.count = 0

    async def __call__(self) -> FinalReply:
        self.count += 1
        number = self.count
        await asyncio.sleep(self.seconds)
        return make_reply(f"answer {number}")


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [1.0, 3 * ANSWER_LEASE_SECONDS])
def test_a_key_that_two_hosts_receive_runs_once(hosts: SimulatedHosts, seconds: float) -> None:
    model = SlowAnswers(seconds)

    async def play() -> list[FinalReply]:
        answers = [SharedAnswers(hosts.open()) for _ in range(2)]
        first = await asyncio.gather(*(it.answer_once(KEY, DIGEST, model) for it in (*answers, *answers)))
        return [*first, await answers[1].answer_once(KEY, DIGEST, model)]

    assert hosts.loop.run(play()) == [make_reply("answer 1")] * 5
    assert model.count == 1


def test_a_key_of_another_request_is_refused_at_every_host(hosts: SimulatedHosts) -> None:
    async def play() -> None:
        here, there = (SharedAnswers(hosts.open()) for _ in range(2))
        await here.answer_once(KEY, DIGEST, SlowAnswers(0.0))
        with pytest.raises(Conflict):
            await there.answer_once(KEY, b"another", SlowAnswers(0.0))
        other = SlowAnswers(0.0)
        await there.answer_once(TaskKey("token:bob", "bob", "k1"), b"another", other)
        assert other.count == 1, "everybody chooses their own keys"

    hosts.loop.run(play())


def test_a_failed_answer_and_that_of_a_dead_host_are_made_again(hosts: SimulatedHosts) -> None:
    model = SlowAnswers(1.0)

    async def fail() -> FinalReply:
        raise Refused("no")

    async def play() -> float:
        here, there = (SharedAnswers(hosts.open()) for _ in range(2))
        with pytest.raises(Refused):
            await here.answer_once(KEY, DIGEST, fail)
        found = await here._begin("other", KEY, DIGEST.hex())  # and here the host dies
        assert found.reply is None
        assert (await there.answer_once(KEY, DIGEST, model)).text == "answer 1"
        began = hosts.clock.now()
        await there._begin("other", KEY, DIGEST.hex())
        return hosts.clock.now() - began

    assert ANSWER_LEASE_SECONDS - 2 <= hosts.loop.run(play()) <= ANSWER_LEASE_SECONDS


def test_answers_are_deleted_after_a_while_and_with_their_person(hosts: SimulatedHosts) -> None:
    async def play() -> None:
        gates = hosts.open()
        answers = SharedAnswers(gates)
        await answers.answer_once(KEY, DIGEST, SlowAnswers(0.0))
        (record,) = await gates.store.list_state_records(StateNamespace.API_ANSWER)
        assert is_record_of(record, ["http:ada"])
        await asyncio.sleep(KEEP_SECONDS + 1)
        await answers.answer_once(TaskKey("token:bob", "bob", "k2"), DIGEST, SlowAnswers(0.0))
        (record,) = await gates.store.list_state_records(StateNamespace.API_ANSWER)
        assert is_record_of(record, ["http:bob"])

    hosts.loop.run(play())


# -- logins ------------------------------------------------------------------------------------------------------------

HTTP = parse_settings(
    "http: {tokens: [{name: ops, role: operator, token_env: OPS}]}",
    environment=SecretEnvironment({"OPS": "0123456789abcdef" * 3}),
).http


def slow_down_reads(gates: Gates) -> None:
    """Let time pass between a read of a state record and what follows from it."""
    read = gates.store.get_state_record

    async def read_slowly(*where: Any, **more: Any) -> StateRecord | None:
        found = await read(*where, **more)
        await asyncio.sleep(1.0)
        return found

    gates.store.get_state_record = read_slowly  # type: ignore[method-assign]


def open_logins(gates: Gates) -> LoginRegistry:
    return LoginRegistry(gates.store, clock=gates.clock, chance=gates.chance, local="me", settings=lambda: HTTP)


def test_a_login_code_is_used_once_by_two_hosts(hosts: SimulatedHosts) -> None:
    async def play() -> None:
        both = [hosts.open() for _ in range(2)]
        for gates in both:
            slow_down_reads(gates)
        here, there = map(open_logins, both)
        credential = find_credential_by_name("ops", HTTP, local="me")
        assert credential is not None
        code, _ = await here.create_code(credential)
        found = await asyncio.gather(*(it.redeem_code(code) for it in (here, there)))
        assert sorted(it is not None for it in found) == [False, True]
        assert await there.redeem_code(code) is None

    hosts.loop.run(play())


def test_a_login_counts_at_every_host_until_one_of_them_ends_it(hosts: SimulatedHosts) -> None:
    async def play() -> None:
        here, there = (open_logins(hosts.open()) for _ in range(2))
        credential = find_credential_by_name("ops", HTTP, local="me")
        assert credential is not None
        login = await here.create_login(credential, browser="a browser")
        halves = {"cookie": login.cookie, "key": login.key.partition(".")[2]}
        assert await there.find_caller(login.id, **halves) is not None
        await here.end_login(login.id)
        assert await there.find_caller(login.id, **halves) is None
        with pytest.raises(NotFound):
            await there.end_login(login.id)

    hosts.loop.run(play())


# -- schedules ---------------------------------------------------------------------------------------------------------


def run_schedules(host: IngressHarness) -> ScheduleRunner:
    return ScheduleRunner(host.store, accept=host.accept, clock=host.clock, zone=lambda: datetime.UTC, log=host.log)


async def keep_schedule(host: IngressHarness) -> None:
    found = parse_rule("every 10m good morning")
    assert found is not None
    schedule = Schedule(
        id="s1",
        rule=found[0],
        words=found[1],
        text=found[2],
        place=ChatLocation(platform="fake", account="main", chat="1001"),
        sender="1001",
        kind="dm",
        made=host.clock.at,
        agent="main",
    )
    value = msgspec.json.encode(schedule).decode()
    write = StateWrite(namespace=StateNamespace.SCHEDULE, key="s1", value=value, version=0)
    await host.store.commit(Change(step=Step.STATE, session="", at=host.clock.at, state_writes=(write,)))


async def test_a_schedule_fires_once_at_two_hosts_by_the_clock_of_the_store(tmp_path: Path) -> None:
    clock = ManualClock()
    hosts = [IngressHarness(tmp_path, seed=seed, exclusive=False, now=clock.now) for seed in range(2)]
    hosts[0].clock.at += 10.0  # the hosts' clocks differ
    hosts[1].clock.at -= 10.0
    await keep_schedule(hosts[1])
    runners = [run_schedules(host) for host in hosts]

    async def count_fired() -> int:
        await asyncio.gather(*(runner.fire_due() for runner in (*runners, *runners)))
        return len([it for it in await hosts[0].store.read_feed() if it.author == "person:fake:1001"])

    try:
        clock.at = hosts[1].clock.at + 600.0 - 1.0
        hosts[0].clock.at += 600.0
        assert await count_fired() == 0, "by one host's clock it is due, but not by the store's"
        clock.at += 1.0
        assert await count_fired() == 1
        assert await count_fired() == 1
        clock.at += 600.0
        assert await count_fired() == 2
    finally:
        for host in hosts:
            await host.store.close()


# -- backfill ----------------------------------------------------------------------------------------------------------


def test_two_hosts_keep_to_one_rate_of_a_backfill(hosts: SimulatedHosts) -> None:
    sent: list[float] = []

    async def send(limit: SharedBackfillRateLimit) -> None:
        while hosts.loop.time() < 600.0:
            if (wait := await limit.get_wait_seconds()) > 0:
                await asyncio.sleep(wait)
                continue
            await limit.count_items(10, 60)
            sent.append(hosts.loop.time())

    async def play() -> None:
        await asyncio.gather(*(send(SharedBackfillRateLimit(hosts.open(), "honcho")) for _ in range(2)))

    hosts.loop.run(play())
    assert 58 <= len(sent) <= 62, "ten items each, sixty a minute"
