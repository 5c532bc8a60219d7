"""One host at a time receives for an account. Another one takes over when it leaves, loses its claim, or dies."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from everhold.app import SystemClock, SystemRandomSource, build_plugin_check
from everhold.assembly.accounts import PlatformAccounts
from everhold.config import parse_settings
from everhold.config.secrets import SecretEnvironment
from everhold.errors import LeaseLost
from everhold.ports.hosts import make_account_name
from everhold.ports.platform import AcceptResult, IncomingMessage
from everhold.stores.sqlite import SqliteStore
from everhold.telemetry.logs import open_log
from everhold.testing.platforms.telegram import TelegramServer
from tests.platforms.remote_telegram import TOKEN
from tests.waiting import wait_until

LEASE_SECONDS = 3.0


class AccountHosts:
    """A Telegram bot, and hosts that share a store."""

    def __init__(self, path: Path, telegram: TelegramServer) -> None:
        self.path = path
        self.store = SqliteStore.open(path / "log.db", chance=SystemRandomSource(), exclusive=False)
        self.telegram = telegram
        self.heard: list[tuple[str, str]] = []
        self.hosts: dict[str, PlatformAccounts] = {}

    def start_host(self, name: str) -> PlatformAccounts:
        async def accept(incoming: IncomingMessage) -> AcceptResult:
            self.heard.append((name, incoming.text))
            assert incoming.offset is None or incoming.offset.claim is not None
            return AcceptResult(outcome="accepted", session="s", seq=1)

        async def keep(what: str, work: Callable[[], Awaitable[None]]) -> None:
            await work()

        clock = SystemClock()
        locks = self.path / f"locks-{name}"  # as on another machine
        locks.mkdir(mode=0o700, exist_ok=True)
        hosts = PlatformAccounts(
            platforms={},
            accept=accept,
            can_speak=lambda _: _answer_yes(),
            store=self.store,
            log=open_log(clock=clock, stream=io.StringIO()),
            clock=clock,
            chance=SystemRandomSource(),
            directory=self.path / name,
            keep=keep,
            locks=lambda: locks,
            owner=name,
            lease_seconds=LEASE_SECONDS,
        )
        account: dict[str, Any] = {"token_env": "BOT", "base_url": self.telegram.url, "poll_seconds": 1}
        text = f"platforms: {{telegram: {{main: {account}}}}}"
        hosts.apply_settings(
            parse_settings(text, environment=SecretEnvironment({"BOT": TOKEN}), validate_plugin=build_plugin_check())
        )
        hosts.start_listening()
        self.hosts[name] = hosts
        return hosts

    async def get_holder(self) -> str:
        return next((it.owner for it in await self.store.list_account_leases() if it.seconds_left > 0), "")


async def _answer_yes() -> bool:
    return True


@pytest.fixture
async def accounts(tmp_path: Path) -> AsyncIterator[AccountHosts]:
    async with TelegramServer() as telegram:
        telegram.add_bot(TOKEN)
        scene = AccountHosts(tmp_path, telegram)
        yield scene
        for hosts in scene.hosts.values():
            await hosts.stop_listening()
            await hosts.close()
        await scene.store.close()


async def test_only_the_holder_receives_and_another_host_follows_it(accounts: AccountHosts) -> None:
    one = accounts.start_host("one")
    await wait_until(lambda: bool(one.list_held()))
    two = accounts.start_host("two")
    await wait_until(lambda: two.describe()[0]["elsewhere"])
    await accounts.telegram.write_message("first")
    await wait_until(lambda: ("one", "first") in accounts.heard)
    await one.stop_listening()
    await wait_until(lambda: two.list_held() == [make_account_name("telegram", "main")])
    await accounts.telegram.write_message("second")
    await wait_until(lambda: ("two", "second") in accounts.heard)
    assert [name for name, text in accounts.heard if text == "second"] == ["two"]


async def test_a_host_that_lost_its_claim_stops_to_receive(accounts: AccountHosts) -> None:
    one = accounts.start_host("one")
    await wait_until(lambda: bool(one.list_held()))
    claim = one.accounts[("telegram", "main")].claim
    assert claim is not None
    assert await accounts.store.release_account(claim)
    stolen = await accounts.store.claim_account(claim.account, owner="thief", lease=60.0)
    assert stolen is not None
    await wait_until(lambda: not one.list_held())
    await wait_until(lambda: one.describe()[0]["elsewhere"])
    assert await accounts.get_holder() == "thief"


async def test_an_offset_moves_only_under_the_claim(accounts: AccountHosts) -> None:
    one = accounts.start_host("one")
    await wait_until(lambda: bool(one.list_held()))
    account = one.accounts[("telegram", "main")]
    claim = account.claim
    assert claim is not None
    context = one._build_context(account).account_context
    assert context is not None
    await context.offsets.advance("updates", "7")
    await accounts.store.release_account(claim)
    assert await accounts.store.claim_account(claim.account, owner="thief", lease=60.0)
    account.claim = claim
    with pytest.raises(LeaseLost):
        await context.offsets.advance("updates", "9")
    await asyncio.sleep(0)
