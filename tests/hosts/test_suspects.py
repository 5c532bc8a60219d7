"""A turn that ends the hosts that take it over is tried alone, also by a host that has run for long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from everhold.engine.suspects import TurnSuspects
from everhold.ports.store import Claim, Operation, Store, name_cursor
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store_scenario import SeededRandom, StoreClock, StoreScenario

LEASE = 120.0
SESSIONS = ("s", "t", "u")
NAMES = [name_cursor(session, "turn") for session in SESSIONS]


class TwoHosts:
    """Three sessions with a running turn each, and the stores of the host that dies and of another one."""

    def __init__(self, path: Path) -> None:
        self.clock = StoreClock()
        self.stores = [
            SqliteStore.open(path / "log.db", chance=SeededRandom(seed), now=self.clock, exclusive=False)
            for seed in range(2)
        ]
        self.there: Store = self.stores[1]
        self.scenario = StoreScenario(self.stores[0], self.clock)

    async def begin_turns(self) -> None:
        for session in SESSIONS:
            await self.scenario.open_session(session)
            heard = await self.scenario.commit_heard(session=session)
            (claim,) = await self.claim("first", limit=1)
            await self.scenario.begin_operation(heard, claim=claim, session=session)

    async def claim(self, owner: str, *, limit: int = 9, held_back: list[str] | None = None) -> list[Claim]:
        self.scenario.clock = self.clock
        return await self.stores[0].claim_cursors(
            owner=owner, lease=LEASE, limit=limit, only=("turn",), held_back=held_back or []
        )


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[TwoHosts]:
    hosts = TwoHosts(tmp_path)
    await hosts.begin_turns()
    yield hosts
    for store in hosts.stores:
        await store.close()


async def test_a_running_host_learns_of_turns_that_ended_another(hosts: TwoHosts) -> None:
    suspects = await TurnSuspects.find(hosts.there, at=0.0)
    assert not suspects, "each turn was started once"
    hosts.clock.time += LEASE + 1
    assert len(await hosts.claim("second")) == 3
    await suspects.refresh(hosts.there)  # while the second host is dead, and its leases have not ended
    hosts.clock.time += LEASE + 1
    held_back = await suspects.list_held_back(hosts.there, at=1_000.0, running=())
    assert len(held_back) == 2
    taken = await hosts.claim("third", held_back=held_back)
    assert len(taken) == 1, "the turns are tried one at a time"


async def test_a_suspect_that_another_host_tries_does_not_hide_the_others(hosts: TwoHosts) -> None:
    hosts.clock.time += LEASE + 1
    await hosts.claim("second")
    hosts.clock.time += LEASE + 1
    taken = await hosts.claim("other", limit=1)
    suspects = await TurnSuspects.find(hosts.there, at=0.0)
    tried = []
    for _ in range(3):
        held_back = await suspects.list_held_back(hosts.there, at=1_000.0, running=())
        tried += await hosts.claim("third", held_back=held_back)
    assert sorted([*(it.name for it in tried), taken[0].name]) == sorted(NAMES)


async def test_a_turn_that_another_host_ended_is_no_suspect(hosts: TwoHosts) -> None:
    hosts.clock.time += LEASE + 1
    claims = await hosts.claim("second")
    suspects = await TurnSuspects.find(hosts.there, at=0.0)
    for claim in claims:
        (turn,) = await hosts.there.list_operations(claim.session, states=("running",))
        await hosts.scenario.end_operation(turn.op, claim=claim, session=claim.session)
    assert suspects
    await suspects.refresh(hosts.there)
    assert not suspects


async def test_a_suspect_whose_worker_ends_while_the_store_is_asked_is_no_suspect_any_more() -> None:
    """Found by the simulator: a read of a server takes a moment, in which its worker ended."""

    class SlowStore:
        async def get_time(self) -> float:
            return 0.0

        async def get_cursor(self, consumer: str, session: str) -> None:
            suspects.clear(NAMES[0])

    suspects = TurnSuspects([Operation(session="s", op=1, type="turn", state="running", first=1, last=0)])
    assert suspects
    assert await suspects.list_held_back(cast(Store, SlowStore()), at=1e9, running=()) == []
    assert not suspects
