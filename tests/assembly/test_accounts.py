"""Accounts come, go and change one by one: what happens to one is felt by no other, and a token has one listener."""

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
    """An adapter that remembers what was done with it."""

    class Settings(BaseModel):
        model_config = ConfigDict(extra="forbid")
        token: SecretString
        colour: str = "red"

    name = "toy"
    delivery = DeliveryGuarantee.KEYED
    text_limit = 100
    visible_after = 0.0

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
        self.falls = 0

    async def listen(self, accept: AcceptMessage) -> None:
        assert self.context.account_context is not None
        if self.settings.colour == "falling" and self.falls < 2:
            self.falls += 1
            raise Refused("the far side hung up", remedy="wait")
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
async def place(tmp_path: Path) -> AsyncIterator[Callable[..., PlatformAccounts]]:
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

    def build(token_retry_seconds: float = 0.001) -> PlatformAccounts:
        accounts = PlatformAccounts(
            platforms={},
            accept=accept,
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


async def test_what_changes_one_account_does_not_disturb_the_other(place: Any) -> None:
    accounts = place()
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
    assert not b.listening.is_set(), "the former listener is gone before the new one begins"
    assert a.listening.is_set()
    accounts.apply_settings(settings("platforms: {toy: {a: {token_env: A}}}", A="1"))
    assert list(toys(accounts)) == ["a"]
    assert toys(accounts)["a"] is a


async def test_a_new_listener_waits_for_the_old_one_to_be_gone(place: Any) -> None:
    accounts = place()
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
async def test_a_token_that_goes_to_another_name_is_listened_to_at_once(place: Any, between: str) -> None:
    """Renamed, or switched off and on: it waits for its own listener, and blames nobody for it."""
    accounts = place(token_retry_seconds=3600.0)
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


async def test_who_may_speak_is_nothing_an_adapter_is_built_anew_for(place: Any) -> None:
    accounts = place()
    accounts.apply_settings(settings(TWO, A="1", B="2"))
    before = toys(accounts)
    text = "platforms: {toy: {a: {token_env: A, access: {direct: ['toy:7']}}, b: {token_env: B, agent: main}}}"
    accounts.apply_settings(settings(text, A="1", B="2"))
    assert toys(accounts) == before


async def test_a_missing_token_or_package_disables_one_account(place: Any) -> None:
    accounts = place()
    found = settings(TWO, A="1")
    accounts.apply_settings(found)
    assert list(toys(accounts)) == ["a"]
    assert [problem.disables for problem in found.problems] == ["platforms.toy.b"]
    accounts.apply_settings(settings("platforms: {toy: {a: {token_env: A}}, missing: {x: {token_env: A}}}", A="1"))
    (problem,) = accounts.list_problems()
    assert (problem.disables, problem.remedy) == ("platforms.missing.x", describe_install("missing"))
    assert list(toys(accounts)) == ["a"]


def test_a_secret_that_nobody_named_is_asked_for_as_it_can_be_written() -> None:
    (problem,) = find_plugin_problems("platforms", ToyPlatform.Settings, {})
    assert (problem.key, problem.remedy) == ("token_env", "name the variable here, and set it in .env")


async def test_an_account_that_cannot_be_built_anew_goes_on_as_it_was(place: Any) -> None:
    accounts = place()
    accounts.apply_settings(settings(TWO, A="1", B="2"))
    before = toys(accounts)
    text = "platforms: {toy: {a: {token_env: A, colour: broken}, b: {token_env: B}}}"
    accounts.apply_settings(settings(text, A="1", B="2"))
    assert toys(accounts) == before
    assert [problem.message for problem in accounts.list_problems()] == ["there is no such colour"]
    accounts.apply_settings(settings(TWO, A="1", B="2"))
    assert not list(accounts.list_problems())


async def test_an_adapter_s_own_bug_is_its_account_s_alone(place: Any) -> None:
    accounts = place()
    accounts.apply_settings(
        settings("platforms: {toy: {a: {token_env: A, colour: buggy}, b: {token_env: B}}}", A="1", B="2")
    )
    assert list(toys(accounts)) == ["b"]
    (problem,) = accounts.list_problems()
    assert "KeyError" in problem.message


async def test_a_listener_that_falls_is_started_again_and_says_what_was_wrong(place: Any) -> None:
    accounts = place()
    accounts.apply_settings(settings("platforms: {toy: {a: {token_env: A, colour: falling}}}", A="1"))
    toy = toys(accounts)["a"]
    accounts.start_listening()
    while not toy.falls:  # noqa: ASYNC110  # it falls before anything of it could be waited for
        await asyncio.sleep(0)
    assert [(it.message, it.remedy) for it in accounts.list_problems()] == [("the far side hung up", "wait")]
    await toy.listening.wait()
    assert toy.falls == 2
    assert not list(accounts.list_problems())


async def test_one_token_has_one_listener_whatever_home_it_works_for(place: Any) -> None:
    first, second = place(), place()
    for accounts in (first, second):
        accounts.apply_settings(settings("platforms: {toy: {a: {token_env: A}}}", A="same"))
    first.start_listening()
    await toys(first)["a"].listening.wait()
    second.start_listening()
    while not list(second.list_problems()):  # noqa: ASYNC110  # as above: a problem is looked up, never announced
        await asyncio.sleep(0.001)
    (problem,) = second.list_problems()
    assert "listened to already" in problem.message
    assert "same" not in problem.message
    assert not toys(second)["a"].listening.is_set()
    await first.stop_listening()
    await toys(second)["a"].listening.wait()
    assert not list(second.list_problems())


async def test_positions_are_an_account_s_own(place: Any) -> None:
    accounts = place()
    accounts.apply_settings(settings(TWO, A="1", B="2"))
    a, b = (toys(accounts)[name].context.account_context for name in ("a", "b"))
    assert a is not None
    assert b is not None
    await a.offsets.advance("offset", "7")
    assert (await a.offsets.read("offset"), await b.offsets.read("offset")) == ("7", None)


async def test_what_was_left_is_closed(place: Any) -> None:
    accounts = place()
    accounts.apply_settings(settings(TWO, A="1", B="2"))
    before = toys(accounts)
    await accounts.close()
    assert all(toy.closed.is_set() for toy in before.values())


def test_a_shell_and_a_service_look_for_locks_in_one_place(tmp_path: Path) -> None:
    """What they are told differs; who they run as does not."""
    environs: tuple[dict[str, str], ...] = (
        {},
        {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "HOME": "/a", "TMPDIR": str(tmp_path)},
        {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": "/b"},
    )
    places = {find_locks_directory(environ, user_home=lambda: tmp_path / "me") for environ in environs}
    assert len(places) == 1, "no home there: all of them fall back to the same"
    (tmp_path / "me").mkdir()
    places |= {find_locks_directory(environ, user_home=lambda: tmp_path / "me") for environ in environs}
    assert tmp_path / "me/.local/state/everhold" in places
    assert len(places) == 2
    assert {find_locks_directory(environ, user_home=lambda: None) for environ in environs} < places
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd/.local").write_text("somebody's file")
    assert {find_locks_directory(environ, user_home=lambda: tmp_path / "odd") for environ in environs} < places
    assert find_locks_directory({"EVERHOLD_LOCKS": str(tmp_path / "named")}) == tmp_path / "named"


def test_the_locks_are_in_a_directory_nobody_else_can_write_to(tmp_path: Path) -> None:
    path = find_locks_directory({}, user_home=lambda: tmp_path)
    assert path.is_relative_to(tmp_path)
    path.chmod(0o777)
    with pytest.raises(Refused, match="a private directory of this user"):
        find_locks_directory({}, user_home=lambda: tmp_path)
    path.rmdir()
    path.symlink_to(tmp_path)
    with pytest.raises(Refused):
        find_locks_directory({}, user_home=lambda: tmp_path)
