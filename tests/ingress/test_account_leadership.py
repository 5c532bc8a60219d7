"""Of several hosts on one store, one receives for an account at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from everhold.errors import LeaseLost, Refused, StoreBusy
from everhold.ingress.account_leadership import AccountLeadership
from everhold.ports.hosts import AccountClaim
from everhold.stores.sqlite import SqliteStore
from everhold.testing.seeded_random import SeededRandom
from everhold.testing.sim.loop import SimLoop

ACCOUNT = "telegram:main"
LEASE = 15.0


class LoopClock:
    """The clock of a virtual event loop."""

    def now(self) -> float:
        return 1_000_000.0 + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class QuietLogger:
    def debug(self, event: str, /, **fields: object) -> None: ...

    info = warning = error = debug

    def bind(self, **fields: object) -> QuietLogger:
        return self


class UnreachableStore(SqliteStore):
    """A store whose renewals fail while `is_away`."""

    is_away = False

    async def renew_accounts(self, *args: object, **options: object) -> list[AccountClaim]:
        if self.is_away:
            raise StoreBusy("the store cannot be reached")
        return await super().renew_accounts(*args, **options)  # type: ignore[arg-type]


def open_host(path: Path, owner: str) -> tuple[UnreachableStore, AccountLeadership]:
    store = UnreachableStore.open(
        path / "log.db", chance=SeededRandom(), now=LoopClock().now, inline=True, synchronous="OFF", exclusive=False
    )
    return store, AccountLeadership(store, owner=owner, clock=LoopClock(), log=QuietLogger(), lease_seconds=LEASE)


def run_in_virtual_time(play: object) -> None:
    SimLoop(1, shuffle=0.0).run(play)  # type: ignore[abstract, arg-type]


async def hold(claim: AccountClaim, seen: list[str]) -> None:
    seen.append(claim.owner)
    await asyncio.sleep(10_000)


def test_a_second_host_takes_over_when_the_first_one_ends(tmp_path: Path) -> None:
    async def play() -> None:
        (_, one), (_, two), seen = open_host(tmp_path, "one"), open_host(tmp_path, "two"), list[str]()
        first = asyncio.ensure_future(one.listen_while_held(ACCOUNT, lambda claim: hold(claim, seen)))
        await asyncio.sleep(100.0)
        assert not await two.listen_while_held(ACCOUNT, lambda claim: hold(claim, seen))
        assert seen == ["one"]
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.ensure_future(two.listen_while_held(ACCOUNT, lambda claim: hold(claim, seen)))
        await asyncio.sleep(1.0)
        assert seen == ["one", "two"], "the first host released the account"
        second.cancel()
        await asyncio.wait([second])

    run_in_virtual_time(play())


def test_a_host_that_cannot_renew_stops_before_its_lease_ends(tmp_path: Path) -> None:
    async def play() -> None:
        (store, one), (_, two), seen = open_host(tmp_path, "one"), open_host(tmp_path, "two"), list[str]()
        first = asyncio.ensure_future(one.listen_while_held(ACCOUNT, lambda claim: hold(claim, seen)))
        await asyncio.sleep(LEASE)
        store.is_away = True
        began = asyncio.get_running_loop().time()
        assert await first is False
        assert asyncio.get_running_loop().time() - began < LEASE
        assert await store.claim_account(ACCOUNT, owner="two", lease=LEASE) is not None
        assert await two.listen_while_held("telegram:other", lambda _: _end()) is True
        assert seen == ["one"]

    run_in_virtual_time(play())


async def _end() -> None: ...


def test_a_host_whose_account_was_taken_stops(tmp_path: Path) -> None:
    async def play() -> None:
        (store, one), seen = open_host(tmp_path, "one"), list[str]()
        first = asyncio.ensure_future(one.listen_while_held(ACCOUNT, lambda claim: hold(claim, seen)))
        await asyncio.sleep(1.0)
        await store.writer.write(lambda cur: cur.execute("update account_leases set owner = 'two', fence = fence + 1"))
        assert await first is False
        (lease,) = await store.list_account_leases()
        assert lease.owner == "two", "the claim of the new holder stays"

    run_in_virtual_time(play())


@pytest.mark.parametrize("error", [LeaseLost("taken"), Refused("a wrong token")])
def test_an_error_of_the_listener_is_raised_unless_the_account_was_lost(tmp_path: Path, error: Exception) -> None:
    async def play() -> None:
        store, one = open_host(tmp_path, "one")

        async def fail(_: AccountClaim) -> None:
            await asyncio.sleep(1.0)
            raise error

        if isinstance(error, LeaseLost):
            assert await one.listen_while_held(ACCOUNT, fail) is False
        else:
            with pytest.raises(Refused):
                await one.listen_while_held(ACCOUNT, fail)
        assert await store.list_account_leases() == []

    run_in_virtual_time(play())


def test_a_listener_that_ends_by_itself_releases_the_account(tmp_path: Path) -> None:
    async def play() -> None:
        store, one = open_host(tmp_path, "one")
        assert await one.listen_while_held(ACCOUNT, lambda _: _end()) is True
        assert await store.list_account_leases() == []

    run_in_virtual_time(play())
