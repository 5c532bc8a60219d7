"""Quotas: what is refused, that it is answered once, and that nothing which was accepted is lost or counted twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everhold.core.quotas import QuotaName, compute_seconds_left
from everhold.engine.gates import Gates, Wakeups
from everhold.ingress.accept import MessageAcceptor
from everhold.ingress.quotas import MessageQuotas
from everhold.ports.platform import SCHEDULED_EVENT, PlatformOffset
from everhold.ports.store import StateNamespace
from tests.ingress.harness import CONFIG, IngressHarness


class QuotaHarness(IngressHarness):
    """An ingress with quotas. `restart` makes the objects of another process on the same store."""

    def __init__(self, path: Path, quotas: str, **how: Any) -> None:
        super().__init__(path, CONFIG + f"quotas: {quotas}\n", **how)
        self.today = "2026-11-18"
        self.restart()

    def restart(self) -> None:
        gates = Gates(store=self.store, clock=self.clock, chance=self.chance, log=self.log, owner=self.owner)
        self.quotas = MessageQuotas(
            self.store,
            settings=lambda: self.settings.quotas,
            clock=self.clock,
            log=self.log,
            get_today=lambda: self.today,
            get_seconds_left=lambda: 3_600.0,
        )
        self.accept = MessageAcceptor(
            gates,
            admit=lambda incoming: self.admission(incoming),
            wakeups=Wakeups(),
            quotas=self.quotas,
            shared_records=self.admission.shared_records,
            tell=self.admission.send_outside_session,
        )

    async def list_outcomes(self, count: int, **how: Any) -> list[str]:
        return [(await self.send_message(f"message {n}", **how)).outcome for n in range(count)]

    async def read_use(self, subject: str) -> str:
        record = await self.store.get_state_record(StateNamespace.QUOTA, subject)
        return "" if record is None else record.value


@pytest.fixture
async def make_ingress(tmp_path: Path) -> AsyncIterator[Any]:
    made: list[QuotaHarness] = []

    def make(quotas: str) -> QuotaHarness:
        made.append(QuotaHarness(tmp_path, quotas))
        return made[-1]

    yield make
    for harness in made:
        await harness.store.close()


# -- rates -------------------------------------------------------------------------------------------------------------


async def test_a_sender_above_the_rate_is_refused_and_told_once_per_minute(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {messages_per_minute: 3}}")
    assert await ingress.list_outcomes(6) == ["accepted"] * 3 + ["limited"] * 3
    told = await ingress.read_notices()
    assert told == [
        "Your message was not stored: there are too many messages. The limit for you is 3 per minute. "
        "Please send it again in a minute."
    ]
    ingress.clock.at += 20
    assert await ingress.list_outcomes(2) == ["accepted", "limited"]
    assert len(await ingress.read_notices()) == 1, "still within the minute"
    ingress.clock.at += 60
    assert await ingress.list_outcomes(4) == ["accepted"] * 3 + ["limited"]
    assert len(await ingress.read_notices()) == 2


async def test_a_refused_message_is_not_stored_and_is_confirmed_to_the_platform(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {messages_per_minute: 1}}")
    await ingress.send_message("first")
    refused = await ingress.send_message("second", offset=PlatformOffset(key="since", value="7"))
    assert (refused.outcome, refused.session) == ("limited", "")
    assert refused.retry_after == pytest.approx(60.0)
    assert len(await ingress.store.read_feed()) == 1
    record = await ingress.store.get_state_record(StateNamespace.PLATFORM_OFFSET, "since", scope="fake:main")
    assert record.value == "7"
    assert dict(ingress.quotas.refused) == {QuotaName.MESSAGES: 1}
    assert ingress.quotas.describe() == [
        {"subject": "sender:fake:1001", "quota": "messages_per_minute", "count": 1, "limit": 1, "at": ingress.clock.at}
    ]


async def test_a_rate_belongs_to_one_sender(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {messages_per_minute: 1}}")
    assert await ingress.list_outcomes(2) == ["accepted", "limited"]
    assert await ingress.list_outcomes(2, sender="7") == ["accepted", "limited"]


async def test_a_chat_and_an_account_have_rates_of_their_own(make_ingress: Any) -> None:
    ingress = make_ingress("{chat: {messages_per_minute: 2}, account: {messages_per_minute: 4}}")
    assert await ingress.list_outcomes(1, chat="room") == ["accepted"]
    assert await ingress.list_outcomes(2, chat="room", sender="7") == ["accepted", "limited"]
    assert await ingress.list_outcomes(3, chat="open", sender="9") == ["accepted", "accepted", "limited"]
    assert await ingress.list_outcomes(1, chat="room") == ["limited"]
    assert await ingress.list_outcomes(1) == ["limited"], "the account is full"
    http = {"platform": "http", "agent": "main", "kind": "dm", "sender": "ada"}
    assert await ingress.list_outcomes(1, **http) == ["accepted"], "another account is not"


async def test_owners_operators_and_schedules_have_no_quotas(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {messages_per_minute: 1}, account: {messages_per_minute: 1}}")
    await ingress.send_message("the only one")
    assert await ingress.list_outcomes(3, sender="1") == ["accepted"] * 3
    assert await ingress.list_outcomes(3, by_operator=True) == ["accepted"] * 3
    assert await ingress.list_outcomes(2, event=SCHEDULED_EVENT, agent="main") == ["accepted"] * 2
    assert await ingress.list_outcomes(1) == ["limited"]


async def test_strangers_have_quotas_of_their_own(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {messages_per_minute: 3}, stranger: {messages_per_minute: 1}}")
    assert await ingress.list_outcomes(2, chat="open", sender="9") == ["accepted", "limited"]
    assert await ingress.list_outcomes(2, chat="open") == ["accepted", "accepted"]


async def test_zero_means_unlimited(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {messages_per_minute: 0, waiting_messages: 0}, chat: {messages_per_minute: 0}}")
    assert await ingress.list_outcomes(700) == ["accepted"] * 500 + ["limited"] * 200


async def test_a_repeated_message_is_not_refused_and_not_counted(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {messages_per_minute: 2}}")
    assert (await ingress.send_message("a", id="x")).outcome == "accepted"
    for _ in range(5):
        assert (await ingress.send_message("a", id="x")).outcome == "duplicate"
    assert (await ingress.send_message("b")).outcome == "accepted"
    assert (await ingress.send_message("a", id="x")).outcome == "duplicate", "also above the limit"
    assert (await ingress.send_message("c")).outcome == "limited"


async def test_bots_and_messages_that_are_only_observed_get_no_answer(make_ingress: Any) -> None:
    ingress = make_ingress("{stranger: {messages_per_minute: 1}}")
    await ingress.list_outcomes(3, chat="open", sender="9", bot=True)
    assert await ingress.read_notices() == []


# -- waiting messages --------------------------------------------------------------------------------------------------


async def answer_everything(ingress: QuotaHarness) -> None:
    """Mark all messages as taken by a turn, as its first commit does."""
    from everhold.core.entries import Began, Ended, EntryDraft
    from everhold.ports.store import Change, Step

    for session in await ingress.store.list_sessions(limit=100):
        seqs = tuple(entry.seq for entry in await ingress.store.list_pending(session.id))
        began = EntryDraft(body=Began(type="turn", takes=seqs), author="system")
        done = await ingress.store.commit(
            Change(step=Step.BEGIN, session=session.id, at=ingress.clock.now(), entries=(began,))
        )
        ended = EntryDraft(body=Ended(outcome="done"), author="system", op=done.seqs[0])
        await ingress.store.commit(
            Change(step=Step.END, session=session.id, at=ingress.clock.now(), entries=(ended,), op=done.seqs[0])
        )


async def test_waiting_messages_are_limited_until_they_are_answered(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {waiting_messages: 3}}")
    assert await ingress.list_outcomes(5) == ["accepted"] * 3 + ["limited"] * 2
    assert (await ingress.read_notices())[0].startswith("Your message was not stored: too many messages wait")
    await answer_everything(ingress)
    ingress.clock.at += 1
    assert await ingress.list_outcomes(4) == ["accepted"] * 3 + ["limited"]


async def test_waiting_messages_are_counted_after_a_restart(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {waiting_messages: 3}}")
    await ingress.list_outcomes(2)
    ingress.restart()
    assert await ingress.list_outcomes(2) == ["accepted", "limited"]


async def test_many_answered_messages_do_not_add_up(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {waiting_messages: 3}}")
    for _ in range(5):
        assert await ingress.list_outcomes(3) == ["accepted"] * 3
        await answer_everything(ingress)  # within one second


async def test_the_text_that_waits_is_limited_but_one_message_always_fits(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {waiting_bytes: 1000}}")
    assert (await ingress.send_message("x" * 5_000)).outcome == "accepted"
    assert (await ingress.send_message("x")).outcome == "limited"
    await answer_everything(ingress)
    ingress.clock.at += 1
    assert (await ingress.send_message("x" * 900)).outcome == "accepted"
    assert (await ingress.send_message("x" * 900)).outcome == "limited"


# -- daily amounts -----------------------------------------------------------------------------------------------------


async def test_bytes_per_day_survive_a_restart_and_end_with_the_day(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {bytes_per_day: 1000}}")
    assert (await ingress.send_message("x" * 600)).outcome == "accepted"
    await ingress.quotas.close()
    ingress.restart()
    refused = await ingress.send_message("x" * 600)
    assert (refused.outcome, refused.retry_after) == ("limited", 3_600.0)
    assert (await ingress.send_message("x" * 300)).outcome == "accepted"
    ingress.today = "2026-11-19"
    assert (await ingress.send_message("x" * 900)).outcome == "accepted"


async def test_a_crash_loses_at_most_a_block(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {bytes_per_day: 25600}}")
    for _ in range(20):
        assert (await ingress.send_message("x" * 10)).outcome == "accepted"
        ingress.restart()  # without returning the rest of the block
    assert '"bytes":2000' in await ingress.read_use("sender:fake:1001")


async def test_files_count_in_the_daily_bytes(make_ingress: Any) -> None:
    from everhold.core.attachments import build_attachment

    ingress = make_ingress("{member: {bytes_per_day: 1000}}")
    data = b"x" * 900
    sent = await ingress.send_message("look", files=(data,), attachments=(build_attachment(data, name="a"),))
    assert sent.outcome == "accepted"
    assert (await ingress.send_message("x" * 200)).outcome == "limited"


async def test_bytes_are_not_counted_twice_on_redelivery(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {bytes_per_day: 1000}}")
    for _ in range(4):
        await ingress.send_message("x" * 400, id="same")
    assert (await ingress.send_message("x" * 500)).outcome == "accepted"


async def test_the_daily_answer_is_given_once_even_after_a_restart(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {bytes_per_day: 100}}")
    await ingress.send_message("x" * 200)
    ingress.clock.at += 7_200
    ingress.restart()
    await ingress.send_message("x" * 200)
    assert len(await ingress.read_notices()) == 1
    ingress.today = "2026-11-19"
    ingress.clock.at += 80_000
    await ingress.send_message("x" * 200)
    assert len(await ingress.read_notices()) == 2


async def test_two_processes_share_the_daily_bytes(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {bytes_per_day: 1000}}")
    first = ingress.accept
    ingress.restart()
    second = ingress.accept
    outcomes = []
    for accept in (first, second, first, second):
        ingress.accept = accept
        outcomes.append((await ingress.send_message("x" * 300)).outcome)
    assert outcomes == ["accepted", "accepted", "accepted", "limited"]


async def test_concurrent_messages_reserve_one_block(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {bytes_per_day: 256000}}")
    results = await asyncio.gather(*(ingress.send_message("x" * 10) for _ in range(64)))
    assert {it.outcome for it in results} == {"accepted"}
    assert '"bytes":1000' in await ingress.read_use("sender:fake:1001")


async def test_records_of_former_days_are_deleted(make_ingress: Any) -> None:
    ingress = make_ingress(
        "{member: {bytes_per_day: 1000}, chat: {bytes_per_day: null}, account: {bytes_per_day: null}}"
    )
    await ingress.send_message("one")
    await ingress.send_message("two", sender="7")
    ingress.today = "2026-11-19"
    await ingress.send_message("three")
    kept = await ingress.store.list_state_records(StateNamespace.QUOTA)
    assert [(it.key, '"day":"2026-11-19"' in it.value) for it in kept if "sender" in it.key] == [
        ("sender:fake:1001", True)
    ]


async def test_new_conversations_are_limited_and_old_ones_continue(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {conversations_per_day: 2}}")
    how = {"platform": "http", "agent": "main", "kind": "dm"}
    for number in range(2):
        origin = {"sender": "ada", "chat": f"chat {number}"}
        assert (await ingress.send_message("hello", **origin, **how)).outcome == "accepted"
    refused = await ingress.send_message("hello", sender="ada", chat="chat 2", **how)
    assert refused.outcome == "limited"
    assert refused.reason.startswith("Your message was not stored: too many conversations")
    assert (await ingress.send_message("again", sender="ada", chat="chat 1", **how)).outcome == "accepted"
    ingress.restart()
    assert (await ingress.send_message("hello", sender="ada", chat="chat 3", **how)).outcome == "limited"
    assert await ingress.read_notices() == [], "the response of a request is the answer"


def test_a_day_ends_at_midnight_of_its_time_zone() -> None:
    import datetime

    zone = datetime.timezone(datetime.timedelta(hours=2))
    late = datetime.datetime(2026, 11, 18, 23, 59, 0, tzinfo=zone).timestamp()
    assert compute_seconds_left(late, zone) == 60.0
