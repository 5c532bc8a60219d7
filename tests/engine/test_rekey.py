"""`memory rekey`: every item ends once under the new peer and not under the old one, or as a dead letter, whenever the
process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from everhold.admin.memory import MemoryAdmin
from everhold.core.consumers import rekey_consumer
from everhold.core.peers import PeerRule, make_safe_id
from everhold.errors import InvalidRequest, Refused
from everhold.ports.memory import MemoryBatch
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import Change
from everhold.testing.gateway import InProcessGateway

from .peer_memory import PeerMemory
from .test_peers import ADA, BOB, PeerTrial

OLD = make_safe_id(ADA)
GUARANTEES = (DeliveryGuarantee.PROBE, DeliveryGuarantee.KEYED, DeliveryGuarantee.UPSERT)


class RekeyTrial(PeerTrial):
    """Ada has said something under her old peer, and Bob something of his own."""

    def prepare(self) -> None:
        self.texts = [self.say() for _ in range(3)]
        self.bob = self.say(BOB)
        self.set_rule(PeerRule(aliases={ADA: "ada"}))
        self.texts.append(self.say())

    @property
    def admin(self) -> MemoryAdmin:
        return MemoryAdmin(self.gateway.control, agents=lambda: ("main",))

    def rekey(self, *, really: bool = True, person: str = ADA) -> dict[str, Any]:
        return self.gateway.run(self.admin.rekey_memory("m", person=person, really=really))

    def count_dead_letters(self) -> int:
        return len(self.gateway.run(self.gateway.store.list_dead_letters(consumer=rekey_consumer("m"))))

    def check_moved(self) -> None:
        assert sorted(self.service.list_texts("ada")) == sorted(self.texts)
        assert self.service.list_texts(OLD) == []
        assert self.service.list_texts(make_safe_id(BOB)) == [self.bob]
        assert not self.count_dead_letters()
        self.gateway.assert_sound()


@pytest.fixture(params=GUARANTEES)
def trial(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RekeyTrial]:
    gateway = InProcessGateway(tmp_path)
    with gateway.run_started():
        made = RekeyTrial(gateway, request.param)
        made.prepare()
        yield made


def test_the_plan_changes_nothing(trial: RekeyTrial) -> None:
    before = list(trial.service.items)
    plan = trial.rekey(really=False)
    trial.finish()
    assert (plan["begun"], plan["items"], plan["sessions"]) == (False, 3, 1)
    assert (plan["old_peers"], plan["new_peers"]) == ([OLD], {ADA: "ada"})
    assert trial.service.items == before


def test_items_are_moved_once(trial: RekeyTrial) -> None:
    assert trial.rekey()["begun"]
    trial.finish()
    trial.check_moved()
    assert {key.partition("@")[2] for _, peer, key, _ in trial.service.items if peer == "ada"} == {"", "ada"}
    assert trial.rekey(really=False)["items"] == 0


def test_later_moves_start_from_where_the_items_are(trial: RekeyTrial) -> None:
    trial.rekey()
    trial.finish()
    for peer in ("lovelace", "ada", "lovelace"):
        trial.set_rule(PeerRule(aliases={ADA: peer}))
        assert trial.rekey()["begun"]
        trial.finish()
        assert sorted(trial.service.list_texts(peer)) == sorted(trial.texts)
        assert len(trial.service.items) == len(trial.texts) + 1, "nothing is left elsewhere"
    trial.gateway.assert_sound()


def test_an_undo_and_a_resend_find_the_moved_item(trial: RekeyTrial) -> None:
    trial.rekey()
    trial.finish()
    trial.gateway.run(trial.admin.resend_memory("m", since=0.0))
    trial.finish()
    trial.check_moved()
    for _ in range(2):
        trial.gateway.send_message("/undo", who=ADA, chat=ADA, kind="dm")
    trial.finish()
    assert sorted(trial.service.list_texts("ada")) == sorted(trial.texts[:2])


def test_what_waits_for_the_old_peer_is_moved_after_it_has_arrived(trial: RekeyTrial) -> None:
    trial.set_rule(PeerRule())
    trial.service.is_down = True
    late = trial.say()
    trial.set_rule(PeerRule(aliases={ADA: "ada"}))
    trial.say(BOB)
    trial.rekey()
    trial.finish()
    trial.rekey()  # what was not stored when it was ordered is not part of the order
    trial.finish()
    assert late in trial.service.list_texts("ada")
    assert trial.service.list_texts(OLD) == []


def run_killed(trial: RekeyTrial, kill: Callable[[int], None], number: int) -> bool:
    """Move everything, and let the process die at one place. Return whether it came to that place."""
    kill(number)
    first = trial.gateway.process
    with contextlib.suppress(TimeoutError):
        trial.gateway.run(asyncio.wait_for(trial.admin.rekey_memory("m", person=ADA, really=True), 100.0))
    trial.gateway.pass_time(120.0)
    assert first is not None
    died = first.gates.dead
    trial.service.on_call = lambda _number, _when: None
    if not died:
        return False
    trial.gateway.start()
    trial.rekey()  # the operator asks again, which continues
    trial.finish()
    trial.check_moved()
    return True


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 14))
def test_a_death_at_every_call_of_the_memory(trial: RekeyTrial, number: int, when: str) -> None:
    calls = trial.service.calls

    def kill(number: int) -> None:
        def die(call: int, at: str) -> None:
            if call == calls + number and at == when:
                assert trial.gateway.process is not None
                trial.gateway.process.die()

        trial.service.on_call = die

    died = run_killed(trial, kill, number)
    assert died == (number <= 12), "three items need four calls each"


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(1, 8))
def test_a_death_at_every_commit(trial: RekeyTrial, number: int, after: bool) -> None:
    def kill(number: int) -> None:
        process = trial.gateway.process
        assert process is not None
        real, seen = process.disk.commit, 0

        async def commit(change: Change) -> Any:
            nonlocal seen
            seen += 1
            if seen == number:
                if after:
                    await real(change)
                process.die()
                await asyncio.get_running_loop().create_future()
            return await real(change)

        process.disk.commit = commit  # type: ignore[method-assign]  # death strikes below every seam

    run_killed(trial, kill, number)


def test_a_refused_item_becomes_a_dead_letter_that_can_be_replayed(trial: RekeyTrial) -> None:
    class PickyMemory(PeerMemory):
        async def store(self, batch: MemoryBatch) -> Any:
            raise Refused("it does not like this item")

    rule = PeerRule(aliases={ADA: "ada"})
    trial.gateway.runtimes.memories["m"] = PickyMemory(trial.service, rule, trial.delivery)
    trial.rekey()
    trial.finish()
    assert trial.count_dead_letters() == 3
    assert len(trial.service.list_texts(OLD)) == 3, "nothing is deleted that was not moved"
    status = trial.gateway.run(trial.admin.collect_status())
    assert [row["dead_letters"] for row in status["memories"] if row["memory"] == "m"] == [3]
    trial.set_rule(rule)
    dead = trial.gateway.run(trial.gateway.store.list_dead_letters())
    trial.gateway.run(trial.gateway.store.replay_dead_letters([it.id for it in dead]))
    trial.finish()
    trial.check_moved()


def test_a_memory_that_cannot_delete_is_refused(trial: RekeyTrial) -> None:
    class FixedMemory(PeerMemory):
        capabilities = frozenset()

    trial.gateway.runtimes.memories["m"] = FixedMemory(trial.service)
    with pytest.raises(InvalidRequest, match="cannot move"):
        trial.rekey(really=False)
