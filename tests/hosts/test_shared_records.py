"""Two hosts with one store: what one of them is told about a chat counts at the other before its next message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everhold.core.access import AdmissionDecision
from everhold.core.consumers import COMMANDS, TURN
from everhold.ports.platform import IncomingMessage
from everhold.ports.store import Change, CursorUpdate, StateNamespace, Step
from tests.ingress.harness import IngressHarness


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[tuple[IngressHarness, IngressHarness]]:
    here, there = IngressHarness(tmp_path), IngressHarness(tmp_path, seed=1)
    there.said = 1_000
    yield here, there
    await here.store.close()
    await there.store.close()


Hosts = tuple[IngressHarness, IngressHarness]


async def test_a_halt_at_one_host_silences_the_chat_at_the_other(hosts: Hosts) -> None:
    here, there = hosts
    assert (await there.send_and_read("hello", chat="room")).asks, "it has read that nothing is halted"
    await here.send_and_read("!halt", chat="room")
    assert not (await there.send_and_read("hello?", chat="room")).asks
    assert not (await there.send_and_read("and me?", chat="room", sender="7")).asks
    await there.send_and_read("!wake", chat="room")
    assert (await here.send_and_read("hello?", chat="room")).asks
    assert (await there.send_and_read("hello?", chat="open")).asks


async def test_a_halt_reaches_what_the_other_host_has_accepted(hosts: Hosts) -> None:
    here, there = hosts
    bob = await there.send_message("do something long", chat="room", sender="7")
    await there.store.claim_cursors(owner="there", lease=60.0, limit=1, only=(TURN,))
    await here.send_and_read("!halt", chat="room")
    assert await there.store.get_cursor(COMMANDS, bob.session) is not None, "its turn is told to stop"


async def test_a_message_that_was_admitted_before_a_halt_and_commits_after_it_is_silenced(hosts: Hosts) -> None:
    here, there = hosts
    await there.send_message("hello", chat="room", sender="7")
    (claim,) = await there.store.claim_cursors(owner="there", lease=60.0, limit=1, only=(TURN,))
    done = CursorUpdate(idle_at=99, release=True)
    await there.store.commit(Change(step=Step.CURSOR_SETTLE, session=claim.session, at=1.0, claim=claim, cursor=done))

    async def admit_slowly(incoming: IncomingMessage) -> AdmissionDecision:
        decision = await there.admission(incoming)
        if not await here.admission.is_halted("fake", "room"):
            await here.send_message("!halt", chat="room")  # it finds no session to send the halt to
        return decision

    there.accept.admit = admit_slowly
    assert not (await there.send_and_read("go on", chat="room", sender="7")).asks


async def test_a_chat_that_moved_keeps_its_conversation_at_every_host(hosts: Hosts) -> None:
    here, there = hosts
    before = await there.send_message("hello", chat="room")
    assert (await there.send_message("hello", chat="hall")).outcome == "denied"
    await here.chat_aliases.add_alias("fake", "room", "hall")
    after = await there.send_message("hello", chat="hall")
    assert (after.outcome, after.session) == ("accepted", before.session)


async def test_aliases_that_two_hosts_report_at_once_lead_to_the_first_id(hosts: Hosts) -> None:
    here, there = hosts
    await asyncio.gather(
        here.chat_aliases.add_alias("fake", "room", "hall"), there.chat_aliases.add_alias("fake", "room", "castle")
    )
    await asyncio.gather(
        there.chat_aliases.add_alias("fake", "hall", "tower"), here.chat_aliases.add_alias("fake", "castle", "gate")
    )
    records = await here.store.list_state_records(StateNamespace.CHAT_ALIAS)
    assert {it.key: it.value for it in records} == dict.fromkeys(("hall", "castle", "tower", "gate"), "room")


async def test_a_direct_chat_has_one_owner_at_both_hosts(hosts: Hosts) -> None:
    here, there = hosts
    assert await there.admission._dm_owners.find_owner("fake", "main", "!room") == ""
    mine = await here.send_message("hello", chat="!room", kind="dm", can_change_owner=True)
    hers = await there.send_message("hello", chat="!room", kind="dm", sender="7")
    assert hers.session != mine.session, "another person gets a separate conversation"
    assert (await there.send_message("again", chat="!room", kind="dm")).session == mine.session


async def test_an_owner_who_was_forgotten_is_not_remembered_by_another_host(hosts: Hosts) -> None:
    here, there = hosts
    await here.send_message("hello", chat="!room", kind="dm", can_change_owner=True)
    await there.send_message("hello", chat="!room", kind="dm", sender="7")
    (record,) = await here.store.list_state_records(StateNamespace.DM_OWNER)
    await here.store.commit(Change(step=Step.STATE, session="", at=1.0, state_writes=(record.replace_with(None),)))
    await there.send_message("hello", chat="!room", kind="dm", sender="7", can_change_owner=True)
    (record,) = await here.store.list_state_records(StateNamespace.DM_OWNER)
    assert record.value == "1001", "the log tells who spoke there first"


async def test_a_person_admitted_at_one_host_may_speak_at_the_other(hosts: Hosts) -> None:
    here, there = hosts
    assert (await there.send_message("hello", sender="666")).outcome == "denied"
    (notice,) = await there.read_notices()
    code = notice.split("agent: ")[1].split(" ")[0]
    await here.admission.pairing.approve_code(code)
    assert (await there.send_message("hello", sender="666")).outcome == "accepted"
    await there.admission.pairing.revoke_identity("fake:666")
    assert (await here.send_message("hello", sender="666")).outcome == "denied"


async def test_a_pairing_code_is_used_once_by_both_hosts(hosts: Hosts) -> None:
    here, there = hosts
    await there.send_message("hello", sender="666")
    (notice,) = await there.read_notices()
    code = notice.split("agent: ")[1].split(" ")[0]
    approvals = (host.admission.pairing.approve_code(code) for host in hosts)
    done = await asyncio.gather(*approvals, return_exceptions=True)
    assert sorted(isinstance(it, Exception) for it in done) == [False, True]
    assert len(await here.admission.pairing.list_grants()) == 1
