"""After an undo, a memory that deletes items only with their session stores it anew: everything else once, the undone
item nowhere, whenever the process dies.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec import structs

from everhold.admin.memory import MemoryAdmin
from everhold.core.exchange import get_original_key
from everhold.engine.memory import destination
from everhold.engine.memory.rebuilds import load_rebuilds
from everhold.engine.memory.tombstones import is_withheld
from everhold.ports.memory import (
    ErasureState,
    MemoryBatch,
    MemoryCapability,
    MemoryRetraction,
    ProviderDeletion,
    SessionRenewal,
)
from everhold.ports.store import Change
from everhold.testing.gateway import InProcessGateway

from .peer_memory import PeerMemory
from .test_peers import ADA, PeerTrial


class RenewingMemory(PeerMemory):
    """It cannot delete an item, only a session."""

    capabilities: ClassVar = PeerMemory.capabilities - {MemoryCapability.REMOVE} | {MemoryCapability.RENEW_SESSION}

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        kept = tuple(it for it in batch.items if not isinstance(it, MemoryRetraction))
        await super().store(structs.replace(batch, items=kept))
        return {item.key: "" for item in batch.items}

    async def renew_session(self, renewal: SessionRenewal) -> Sequence[ProviderDeletion]:
        await self._begin()
        rows = [row for row in self.service.items if row[0] == renewal.name]
        kept = [row for row in rows if get_original_key(row[2]) not in renewal.keys]
        if len(kept) == len(rows):
            return []
        copies = [(renewal.new_name, *row[1:]) for row in kept]
        self.service.items += [row for row in copies if row not in self.service.items]
        state = ErasureState.PLANNED
        if renewal.is_left:
            self.service.items = [row for row in self.service.items if row[0] != renewal.name]
            state = ErasureState.ASKED
        await self._end()
        return [ProviderDeletion(id=renewal.name, what="a session", session=renewal.name, state=state)]

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        await self._begin()
        names = {row[0] for row in self.service.items}
        await self._end()
        return {it.id: ErasureState.ASKED if it.id in names else ErasureState.CONFIRMED for it in deletions}


class RebuildTrial(PeerTrial):
    """Ada said three things, and takes the last one back."""

    def prepare(self) -> None:
        self.gateway.runtimes.memories["m"] = RenewingMemory(self.service)
        self.texts = [self.say() for _ in range(3)]
        self.undone = self.texts.pop()

    def undo(self) -> None:
        self.gateway.send_message("/undo", who=ADA, chat=ADA, kind="dm")

    def rebuild(self) -> None:
        """Let the background task run, as the gateway does."""
        for _ in range(4):
            rebuilder = MemoryAdmin(self.gateway.control, agents=lambda: ("main",)).rebuilder
            with contextlib.suppress(TimeoutError):
                self.gateway.run(asyncio.wait_for(rebuilder.finish_rebuilds(), 100.0))
            self.gateway.pass_time(30.0)

    def is_withheld(self) -> bool:
        audience = (f"person:{ADA}",)
        return self.gateway.run(is_withheld(self.gateway.store, "m", agent="main", audience=audience))

    def check_rebuilt(self) -> None:
        assert self.gateway.run(load_rebuilds(self.gateway.store)) == []
        assert [text for _, _, _, text in self.service.items] == self.texts
        self.texts.append(self.say())
        self.gateway.run_until_idle()
        assert sorted(text for _, _, _, text in self.service.items) == sorted(self.texts)
        assert len({row[0] for row in self.service.items}) == 1, "the conversation goes on in the new session"
        assert not self.is_withheld()
        self.gateway.assert_sound()


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[RebuildTrial]:
    gateway = InProcessGateway(tmp_path)
    with gateway.run_started():
        made = RebuildTrial(gateway)
        made.prepare()
        yield made


def test_the_session_is_stored_anew(trial: RebuildTrial) -> None:
    trial.undo()
    assert trial.is_withheld(), "until the old session is gone"
    trial.rebuild()
    trial.check_rebuilt()


def test_status_says_for_which_forgetting_a_rebuild_waits(trial: RebuildTrial) -> None:
    admin = MemoryAdmin(trial.gateway.control, agents=lambda: ("main",))
    erasure = trial.gateway.run(admin._begin_erasure({"bob": 0.0}, by="operator", rebuild=False))
    trial.undo()
    trial.rebuild()
    status = trial.gateway.run(trial.gateway.control.collect_status())
    (waiting,) = status["rebuilds"]
    assert (waiting["memory"], waiting["agent"], waiting["items"]) == ("m", "main", 1)
    assert waiting["waits_for"] == [erasure.id]
    (open_erasure,) = status["erasures"]
    assert (open_erasure["id"], [it["memory"] for it in open_erasure["places"]]) == (erasure.id, ["m"])
    assert "bob" not in str(status["erasures"]), "a status is no place for names of people"
    trial.gateway.run(admin.records.drop(erasure))
    trial.rebuild()
    status = trial.gateway.run(trial.gateway.control.collect_status())
    assert (status["rebuilds"], status["erasures"]) == ([], [])
    trial.check_rebuilt()


def test_several_undos_in_turn(trial: RebuildTrial) -> None:
    for _ in range(2):
        trial.undo()
        trial.rebuild()
        trial.texts = trial.texts[:1]
    trial.check_rebuilt()


def test_an_undo_while_the_session_is_copied(trial: RebuildTrial) -> None:
    trial.undo()
    undone, tasks = False, list[asyncio.Task[Any]]()

    def undo_again(number: int, when: str) -> None:
        nonlocal undone
        if when == "after" and not undone:
            undone = True
            assert trial.gateway.process is not None
            again = trial.gateway.make_message("/undo", who=ADA, chat=ADA, kind="dm")
            tasks.append(trial.gateway.loop.create_task(_await(trial.gateway.process.accept(again))))

    trial.service.on_call = undo_again
    trial.rebuild()
    assert [it.result().outcome for it in tasks] == ["accepted"]
    trial.gateway.run_until_idle()
    trial.rebuild()
    trial.texts = trial.texts[:1]
    trial.check_rebuilt()


async def _await(work: Awaitable[Any]) -> Any:
    return await work


def run_killed(trial: RebuildTrial) -> None:
    first = trial.gateway.process
    assert first is not None
    with contextlib.suppress(Exception):
        trial.undo()
    trial.rebuild()
    trial.service.on_call = lambda _number, _when: None
    if first.gates.dead:
        trial.gateway.start()
        trial.gateway.run_until_idle()
        trial.finish()
    was_undone = trial.undone not in [text for _, _, _, text in trial.service.items] or trial.is_withheld()
    if not was_undone:
        trial.undo()  # it died before the command was accepted
        trial.finish()
    trial.rebuild()
    trial.check_rebuilt()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 6))
def test_a_death_at_every_call_of_the_memory(trial: RebuildTrial, number: int, when: str) -> None:
    calls = trial.service.calls

    def die(call: int, at: str) -> None:
        if call == calls + number and at == when:
            assert trial.gateway.process is not None
            trial.gateway.process.die()

    trial.service.on_call = die
    run_killed(trial)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(3, 15))
def test_a_death_at_every_commit(trial: RebuildTrial, number: int, after: bool) -> None:
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
    run_killed(trial)


def test_the_planted_bug_that_no_rebuild_is_ordered_is_found(
    trial: RebuildTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def order_nothing(*_: object) -> None:
        return None

    monkeypatch.setattr(destination, "order_rebuild", order_nothing)
    trial.undo()
    trial.rebuild()
    with pytest.raises(AssertionError):
        trial.check_rebuilt()
