"""Accounts are added, removed and changed one by one without an effect on others, and a token has one listener."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel, ConfigDict

from everhold.assembly.accounts import PlatformAccounts, find_locks_directory
from everhold.config import Settings, find_plugin_problems, parse_settings
from everhold.config.secrets import SecretEnvironment
from everhold.errors import InvalidRequest, Refused
from everhold.infra.extras import describe_install
from everhold.infra.plugins import PluginCatalogue, PluginFactory
from everhold.infra.secret import SecretString
from everhold.ports.platform import (
    AcceptMessage,
    AcceptResult,
    DeliveryGuarantee,
    IncomingMessage,
    OutgoingMessage,
    Platform,
)
from everhold.ports.plugin import PluginContext
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store import SeededRandom
from everhold.testing.gateway import RecordingLogger
from tests.waiting import LIMIT_SECONDS


class Clock:
    def now(self) -> float:
        return 1_700_000_000.0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class ToyPlatform:
    """An adapter that records how it is used."""

    class Settings(BaseModel):
        model_config = ConfigDict(extra="forbid")
        token: SecretString
        colour: str = "red"

    name = "toy"
    delivery = DeliveryGuarantee.KEYED
    text_limit = 100
    visible_after = 0.0
    settle_seconds = 0.0

    def __init__(self, settings: Any, context: PluginContext) -> None:
        if settings.colour == "broken":
            raise InvalidRequest("there is no such colour", remedy="take red")
        if settings.colour == "buggy":
            raise KeyError("oops")
        self.settings, self.context = settings, context
        self.account = context.instance
        self.listening = asyncio.Event()
        self.closed = asyncio.Event()
        self.let_go = asyncio.Event()
        self.failures = 0

    async def listen(self, accept: AcceptMessage) -> None:
        assert self.context.account_context is not None
        if self.settings.colour == "falling" and self.failures < 2:
            self.failures += 1
            raise Refused("the platform closed the connection", remedy="wait")
        self.accept = accept
        self.context.account_context.report()
        self.listening.set()
        try:
            await asyncio.Event().wait()
        finally:
            if self.settings.colour == "clinging":
                await self.let_go.wait()
            self.listening.clear()

    async def send(self, out: OutgoingMessage) -> str:
        return out.key

    async def probe(self, out: OutgoingMessage) -> str | None:
        return None

    async def aclose(self) -> None:
        self.closed.set()


class ToyCatalogue(PluginCatalogue[Platform]):
    def load(self, name: str) -> PluginFactory[Platform]:
        if name != "toy":
            raise InvalidRequest(f"there is no {name}", remedy=describe_install(name))
        return cast(PluginFactory[Platform], ToyPlatform)


def settings(text: str, **environ: str) -> Settings:
    return parse_settings(text, environment=SecretEnvironment(environ))


@pytest.fixture
async def build_accounts(tmp_path: Path) -> AsyncIterator[Callable[..., PlatformAccounts]]:
    store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom())
    built: list[PlatformAccounts] = []

    async def keep(what: str, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            with contextlib.suppress(Refused):
                await work()
                return
            await asyncio.sleep(0)

    async def accept(incoming: IncomingMessage) -> AcceptResult:
        return AcceptResult(outcome="accepted")

    async def can_speak(incoming: IncomingMessage) -> bool:
        return True

    def build(token_retry_seconds: float = 0.001) -> PlatformAccounts:
        accounts = PlatformAccounts(
            platforms={},
            accept=accept,
            can_speak=can_speak,
            store=store,
            log=RecordingLogger(),
            clock=Clock(),
            chance=SeededRandom(),
            directory=tmp_path,
            keep=keep,
            catalogue=ToyCatalogue("platforms"),
            locks=lambda: tmp_path,
            token_retry_seconds=token_retry_seconds,
        )
        built.append(accounts)
        return accounts

    yield build
    for accounts in built:
        await accounts.stop_listening()
        await accounts.close()
    await store.close()


TWO = "platforms: {toy: {a: {token_env: A}, b: {token_env: B}}}"


def toys(accounts: PlatformAccounts) -> dict[str, ToyPlatform]:
    return {name: account.platform for (_, name), account in accounts.accounts.items()}  # type: ignore[misc]


async def test_a_change_of_one_account_does_not_affect_the_other(build_accounts: Any) -> None:
    accounts = build_accounts()
    accounts.apply_settings(settings(TWO, A="1", B="2"))
    accounts.start_listening()
    a, b = toys(accounts)["a"], toys(accounts)["b"]
    await a.listening.wait()
    await b.listening.wait()
    accounts.apply_settings(settings(TWO, A="1", B="other"))
    assert toys(accounts)["a"] is a
    new = toys(accounts)["b"]
    assert new is not b
    await new.listening.wait()
    assert not b.listening.is_set(), "the former listener ends before the new one begins"
    assert a.listening.is_set()
    accounts.apply_settings(settings("platforms: {toy: {a: {token_env: A}}}", A="1"))
    assert list(toys(accounts)) == ["a"]
    assert toys(accounts)["a"] is a


async def test_a_new_listener_waits_for_the_old_one_to_be_gone(build_accounts: Any) -> None:
    accounts = build_accounts()
    text = "platforms: {toy: {a: {token_env: A, colour: clinging}}}"
    accounts.apply_settings(settings(text, A="1"))
    accounts.start_listening()
    old = toys(accounts)["a"]
    await old.listening.wait()
    accounts.apply_settings(settings(text, A="2"))
    new = toys(accounts)["a"]
    for _ in range(20):
        await asyncio.sleep(0)
    beside_the_old = new.listening.is_set()
    for toy in (old, new):
        toy.let_go.set()
    assert not beside_the_old, "two would take each other's messages"
    await new.listening.wait()
    assert not old.listening.is_set()


@pytest.mark.parametrize("between", ["", "platforms: {toy: {a: {token_env: A, enabled: false}}}"])
async def test_an_account_with_the_token_of_a_former_one_listens_at_once(build_accounts: Any, between: str) -> None:
    """After a rename, or after it was disabled and enabled: it waits for its own former listener without a problem."""
    accounts = build_accounts(token_retry_seconds=3600.0)
    accounts.apply_settings(settings("platforms: {toy: {a: {token_env: A}}}", A="1"))
    accounts.start_listening()
    await toys(accounts)["a"].listening.wait()
    if between:
        accounts.apply_settings(settings(between, A="1"))
    name = "a" if between else "b"
    accounts.apply_settings(settings(f"platforms: {{toy: {{{name}: {{token_env: A}}}}}}", A="1"))
    async with asyncio.timeout(LIMIT_SECONDS):
        await toys(accounts)[name].listening.wait()
    assert not list(accounts.list_problems())


async def test_a_change_of_admission_does_not_rebuild_the_adapter(build_accounts: Any) -> None:
    accounts = build_accounts()
    accounts.apply_settings(settings(TWO, A="1", B="2"))
    before = toys(accounts)
    text = "platforms: {toy: {a: {token_env: A, access: {direct: ['toy:7']}}, b: {token_env: B, agent: main}}}"
    accounts.apply_settings(settings(text, A="1", B="2"))
    assert toys(accounts) == before


async def test_a_missing_token_or_package_disables_one_account(build_accounts: Any) -> None:
    accounts = build_accounts()
    found = settings(TWO, A="1")
    accounts.apply_settings(found)
    assert list(toys(accounts)) == ["a"]
    assert [problem.disables for problem in found.problems] == ["platforms.toy.b"]
    accounts.apply_settings(settings("platforms: {toy: {a: {token_env: A}}, missing: {x: {token_env: A}}}", A="1"))
    (problem,) = accounts.list_problems()
    assert (problem.disables, problem.remedy) == ("platforms.missing.x", describe_install("missing"))
    assert list(toys(accounts)) == ["a"]


def test_the_problem_of_a_missing_secret_names_its_key() -> None:
    (problem,) = find_plugin_problems("platforms", ToyPlatform.Settings, {})
    assert (problem.key, problem.remedy) == ("token_env", "name the variable here, and set it in .env")


async def test_an_account_that_cannot_be_rebuilt_keeps_its_adapter(build_accounts: Any) -> None:
    accounts = build_accounts()
    accounts.apply_settings(settings(TWO, A="1", B="2"))
    before = toys(accounts)
    text = "platforms: {toy: {a: {token_env: A, colour: broken}, b: {token_env: B}}}"
    accounts.apply_settings(settings(text, A="1", B="2"))
    assert toys(accounts) == before
    assert [problem.message for problem in accounts.list_problems()] == ["there is no such colour"]
    accounts.apply_settings(settings(TWO, A="1", B="2"))
    assert not list(accounts.list_problems())


async def test_an_adapters_bug_disables_only_its_account(build_accounts: Any) -> None:
    accounts = build_accounts()
    accounts.apply_settings(
        settings("platforms: {toy: {a: {token_env: A, colour: buggy}, b: {token_env: B}}}", A="1", B="2")
    )
    assert list(toys(accounts)) == ["b"]
    (problem,) = accounts.list_problems()
    assert "KeyError" in problem.message


async def test_a_failed_listener_is_restarted_and_reports_its_error(build_accounts: Any) -> None:
    accounts = build_accounts()
    accounts.apply_settings(settings("platforms: {toy: {a: {token_env: A, colour: falling}}}", A="1"))
    toy = toys(accounts)["a"]
    accounts.start_listening()
    while not toy.failures:  # noqa: ASYNC110  # it fails before it sets any event
        await asyncio.sleep(0)
    assert [(it.message, it.remedy) for it in accounts.list_problems()] == [
        ("the platform closed the connection", "wait")
    ]
    await toy.listening.wait()
    assert toy.failures == 2
    assert not list(accounts.list_problems())


async def test_one_token_has_one_listener_in_all_homes(build_accounts: Any) -> None:
    first, second = build_accounts(), build_accounts()
    for accounts in (first, second):
        accounts.apply_settings(settings("platforms: {toy: {a: {token_env: A}}}", A="same"))
    first.start_listening()
    await toys(first)["a"].listening.wait()
    second.start_listening()
    while not list(second.list_problems()):  # noqa: ASYNC110  # a problem sets no event
        await asyncio.sleep(0.001)
    (problem,) = second.list_problems()
    assert "listened to already" in problem.message
    assert "same" not in problem.message
    assert not toys(second)["a"].listening.is_set()
    await first.stop_listening()
    await toys(second)["a"].listening.wait()
    assert not list(second.list_problems())


async def test_each_account_has_its_own_offsets(build_accounts: Any) -> None:
    accounts = build_accounts()
    accounts.apply_settings(settings(TWO, A="1", B="2"))
    a, b = (toys(accounts)[name].context.account_context for name in ("a", "b"))
    assert a is not None
    assert b is not None
    await a.offsets.advance("offset", "7")
    assert (await a.offsets.read("offset"), await b.offsets.read("offset")) == ("7", None)


async def test_close_closes_all_adapters(build_accounts: Any) -> None:
    accounts = build_accounts()
    accounts.apply_settings(settings(TWO, A="1", B="2"))
    before = toys(accounts)
    await accounts.close()
    assert all(toy.closed.is_set() for toy in before.values())


def test_a_shell_and_a_service_use_the_same_directory_for_locks(tmp_path: Path) -> None:
    """Their environments differ, but their user is the same."""
    environs: tuple[dict[str, str], ...] = (
        {},
        {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": "/a", "TMPDIR": str(tmp_path)},
        {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": "/b"},
    )
    places = {find_locks_directory(environ, user_home=lambda: tmp_path / "me") for environ in environs}
    assert len(places) == 1, "without a home directory all of them use the same fallback"
    (tmp_path / "me").mkdir()
    places |= {find_locks_directory(environ, user_home=lambda: tmp_path / "me") for environ in environs}
    assert tmp_path / "me/.local/state/everhold" in places
    assert len(places) == 2
    assert {find_locks_directory(environ, user_home=lambda: None) for environ in environs} < places
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/.local").write_text("another file")
    assert {find_locks_directory(environ, user_home=lambda: tmp_path / "odd") for environ in environs} < places
    assert find_locks_directory({"EVERHOLD_LOCKS": str(tmp_path / "named")}) == tmp_path / "named"


def test_only_the_user_can_write_to_the_directory_of_locks(tmp_path: Path) -> None:
    path = find_locks_directory({}, user_home=lambda: tmp_path)
    assert path.is_relative_to(tmp_path)
    path.chmod(0o777)
    with pytest.raises(Refused, match="a private directory of this user"):
        find_locks_directory({}, user_home=lambda: tmp_path)
    path.rmdir()
    path.symlink_to(tmp_path)
    with pytest.raises(Refused):
        find_locks_directory({}, user_home=lambda: tmp_path)
