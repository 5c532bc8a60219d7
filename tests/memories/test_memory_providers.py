"""Providers from the configuration in the real gateway: built when needed, replaced when changed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from everhold.app import SystemClock, load_home_settings
from everhold.assembly import memory_providers
from everhold.assembly.agents import ConfiguredAgents
from everhold.engine.memory import destination as memory_destination
from everhold.errors import InDoubt
from everhold.ports.memory import MemoryBatch, MemoryCapability
from everhold.stores.sqlite import SqliteStore
from everhold.testing.gateway import RecordingLogger
from everhold.testing.seeded_random import SeededRandom
from tests.e2e.running_gateway import RunningGateway
from tests.memories.ledger import LedgerProvider, LedgerService
from tests.waiting import LIMIT_SECONDS

KEY = "canary-key-of-the-ledger-0123456789"


def config(agents: dict[str, Any] | None = None, **memories: Any) -> str:
    agents = agents or {"main": {"memories": list(memories)}}
    return json.dumps({"defaults": {"tools": [], "memories": []}, "agents": agents, "memories": memories})


def list_said(ledger_service: LedgerService) -> list[str]:
    """Return what people said as the service stored it."""
    return [text.partition(" ")[0] for _, text in ledger_service.kept]


async def read_status(t: RunningGateway) -> dict[str, Any]:
    about = t.app.describe()
    return {**about, **await t.app.session_admin.collect_status()}


async def test_an_installed_provider_is_not_imported_and_an_unused_one_not_built(
    tmp_path: Path, ledger_service: LedgerService
) -> None:
    agents = {"main": {"memories": ["used"]}, "other": {"memories": ["used", "unused"]}}
    async with RunningGateway(
        tmp_path, config(agents, used={"provider": "ledger"}, unused={"provider": "ledger"})
    ) as t:
        assert not ledger_service.built  # no message was sent yet
        await t.send_and_wait("hello")
        await t.wait_until(lambda: list_said(ledger_service) == ["hello"])
        assert [(it.context.instance, it.context.agent) for it in ledger_service.built] == [("used", "main")]
    assert "must_not_be_imported" not in sys.modules


async def test_each_memory_and_agent_has_one_provider_object_with_its_settings(
    tmp_path: Path, ledger_service: LedgerService
) -> None:
    agents = {
        "main": {"memories": ["a", "b"]},
        "coder": {"memories": [{"name": "a", "account": "mine alone"}]},
    }
    memories = {"a": {"provider": "ledger", "account": "of {agent}"}, "b": {"provider": "ledger"}}
    async with RunningGateway(tmp_path, config(agents, **memories)) as t:
        for agent in ("main", "coder", "main"):
            await t.send_and_wait("hello", agent=agent)
        await t.wait_until_idle()
        built = {(it.context.instance, it.context.agent): it for it in ledger_service.built}
        assert len(built) == len(ledger_service.built) == 3
        accounts = {key: it.settings.account for key, it in built.items()}
        assert accounts == {("a", "main"): "of main", ("b", "main"): "shared", ("a", "coder"): "mine alone"}
        directories = {Path(it.context.directory) for it in ledger_service.built}
        assert len(directories) == 3
        assert all(directory.is_dir() for directory in directories)
    assert all(it.closed.is_set() for it in ledger_service.built)


async def test_a_missing_secret_disables_one_memory_and_its_items_wait(
    tmp_path: Path, ledger_service: LedgerService
) -> None:
    text = config(good={"provider": "ledger", "account": "good"}, ledger={"api_key_env": "LEDGER_KEY"})
    async with RunningGateway(tmp_path, text, env="") as t:
        for word in ("one", "two", "three"):
            await t.send_and_wait(word)
        await t.wait_until(lambda: list_said(ledger_service) == ["one", "two", "three"])
        assert {account for account, _ in ledger_service.kept} == {"good"}
        (problem,) = (await read_status(t))["problems"]
        assert problem["disables"] == "memories.ledger"
        assert "LEDGER_KEY is not set" in problem["message"]
        assert "LEDGER_KEY=" in problem["remedy"]
        ledger_service.kept.clear()
        t.write_secrets(f"LEDGER_KEY={KEY}\n")
        await t.send_and_wait("four")
        await t.wait_until(lambda: [text for account, text in ledger_service.kept if account == "shared"][3:] != [])
        assert [text.partition(" ")[0] for account, text in ledger_service.kept if account == "shared"] == [
            "one",
            "two",
            "three",
            "four",
        ]
        assert (await read_status(t))["problems"] == []


async def test_a_memory_that_cannot_be_built_is_named_and_the_others_work(
    tmp_path: Path, ledger_service: LedgerService
) -> None:
    def fail() -> None:
        if not ledger_service.built:  # `good` is built first
            return
        raise ImportError("no module named sdk")

    ledger_service.fails = fail
    async with RunningGateway(tmp_path, config(good={"provider": "ledger"}, bad={"provider": "ledger"})) as t:
        await t.send_and_wait("hello")
        await t.wait_until(lambda: list_said(ledger_service) == ["hello"])
        (problem,) = (await read_status(t))["problems"]
        assert "bad" in problem["disables"]
        assert "no module named sdk" in problem["message"]
        assert t.log.getvalue().count("memory.unavailable") == 1
        await t.send_and_wait("again")
        assert t.log.getvalue().count("memory.unavailable") == 1


async def test_a_missing_provider_is_named_and_affects_nothing_else(
    tmp_path: Path, ledger_service: LedgerService
) -> None:
    async with RunningGateway(tmp_path, config(good={"provider": "ledger"}, gone={"provider": "nowhere"})) as t:
        await t.send_and_wait("hello")
        await t.wait_until(lambda: list_said(ledger_service) == ["hello"])
        problems = (await read_status(t))["problems"]
        assert any("nowhere" in problem["message"] and problem["remedy"] for problem in problems)


async def test_after_a_change_the_running_call_ends_and_waiting_items_use_the_new_client(
    tmp_path: Path, ledger_service: LedgerService
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def hold(ledger: LedgerProvider, batch: MemoryBatch) -> None:
        if ledger is ledger_service.built[0]:
            begun.set()
            await go_on.wait()

    ledger_service.during = hold
    async with RunningGateway(tmp_path, config(ledger={"account": "old"})) as t:
        await t.send_and_wait("one")
        await begun.wait()
        await t.send_and_wait("two")
        t.configure(config(ledger={"account": "new"}))
        await t.send_and_wait("three")
        old = ledger_service.built[0]
        assert not old.closed.is_set()  # a call is still running
        go_on.set()
        await t.wait_until(lambda: len(ledger_service.kept) == 3)
        assert [(account, text.partition(" ")[0]) for account, text in ledger_service.kept] == [
            ("old", "one"),
            ("new", "two"),
            ("new", "three"),
        ]
        await asyncio.wait_for(old.closed.wait(), LIMIT_SECONDS)
        assert len(set(ledger_service.names)) == 1
        await t.assert_sound()


async def test_a_cursor_with_a_backlog_changes_to_the_new_client(
    tmp_path: Path, ledger_service: LedgerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_destination, "MAX_BATCH_ITEMS", 1)
    begun, go_on = asyncio.Event(), asyncio.Semaphore(0)

    async def hold(ledger: LedgerProvider, batch: MemoryBatch) -> None:
        if ledger is ledger_service.built[0]:
            begun.set()
            await go_on.acquire()

    ledger_service.during = hold
    async with RunningGateway(tmp_path, config(ledger={"account": "old"})) as t:
        for word in ("one", "two", "three"):
            await t.send_and_wait(word)
        await begun.wait()
        begun.clear()
        go_on.release()
        await begun.wait()  # `two` is in flight, and its cursor knows that `three` is next
        t.configure(config(ledger={"account": "new"}))
        await t.app.watcher.get_fresh_settings()
        go_on.release()
        await t.wait_until(lambda: len(ledger_service.kept) == 3)
        assert [account for account, _ in ledger_service.kept] == ["old", "old", "new"]
        assert "delivery.retrying" not in t.log.getvalue()  # no closed provider was called
        assert list_said(ledger_service) == ["one", "two", "three"]


async def test_a_corrected_key_takes_effect_although_the_old_client_cannot_finish(
    tmp_path: Path, ledger_service: LedgerService
) -> None:
    ledger_service.key = KEY
    async with RunningGateway(
        tmp_path, config(ledger={"api_key_env": "LEDGER_KEY"}), env="LEDGER_KEY=wrong-key-0123456789\n"
    ) as t:
        for word in ("one", "two"):
            await t.send_and_wait(word)

        async def failing() -> bool:
            return bool((await read_status(t))["failing"])

        await t.wait_until(failing)
        t.write_secrets(f"LEDGER_KEY={KEY}\n")
        await t.send_and_wait("three")
        await t.wait_until(lambda: len(ledger_service.kept) == 3)
        assert list_said(ledger_service) == ["one", "two", "three"]
        assert [it.key for it in ledger_service.built] == ["wrong-key-0123456789", KEY]
        await asyncio.wait_for(ledger_service.built[0].closed.wait(), LIMIT_SECONDS)


async def test_a_changed_signature_rebuilds_the_agent_before_the_next_message(
    tmp_path: Path, ledger_service: LedgerService
) -> None:
    signature = {"ledger.model": "a"}
    ledger_service.signature = lambda: dict(signature)
    async with RunningGateway(tmp_path, config(ledger={})) as t:
        await t.send_and_wait("one")
        await t.send_and_wait("two")
        before = t.app.agents.get_runtime("main", {})
        assert len(ledger_service.built) == 1
        signature["ledger.model"] = "b"
        await t.send_and_wait("three")
        assert t.app.agents.get_runtime("main", {}) is not before
        await t.wait_until(lambda: len(ledger_service.kept) == 3)
        assert len(ledger_service.built) == 2
        assert ledger_service.built[1].stored >= 1
        await asyncio.wait_for(ledger_service.built[0].closed.wait(), LIMIT_SECONDS)


async def test_a_signature_that_raises_keeps_the_memory_and_is_reported_once(
    tmp_path: Path, ledger_service: LedgerService
) -> None:
    def fall() -> dict[str, str]:
        raise RuntimeError("cannot tell")

    async with RunningGateway(tmp_path, config(ledger={})) as t:
        await t.send_and_wait("one")
        for nonsense in (fall, lambda: ["no dict"], lambda: {"deep": {"er": "one"}}):
            ledger_service.signature = nonsense
            before = t.log.getvalue().count("memory.warned")
            for word in ("two", "three"):
                await t.send_and_wait(word)
            assert t.log.getvalue().count("memory.warned") == before + 1
            (problem,) = (await read_status(t))["problems"]
            assert "cache_busting_signature" in problem["message"]
            ledger_service.signature = lambda: None
            await t.send_and_wait("four")
            assert (await read_status(t))["problems"] == []
        assert len(ledger_service.built) == 1
        assert not ledger_service.built[0].closed.is_set()
        await t.wait_until(lambda: len(ledger_service.kept) == 10)


async def test_a_memory_that_cannot_be_rebuilt_stays_in_use(tmp_path: Path, ledger_service: LedgerService) -> None:
    async with RunningGateway(tmp_path, config(ledger={})) as t:
        await t.send_and_wait("one")

        def fall() -> None:
            raise OSError("no room")

        ledger_service.fails, ledger_service.signature = fall, lambda: {"ledger.x": "y"}
        await t.send_and_wait("two")
        await t.send_and_wait("three")
        await t.wait_until(lambda: list_said(ledger_service) == ["one", "two", "three"])
        assert "no room" in (await read_status(t))["problems"][0]["message"]
        assert t.log.getvalue().count("memory.warned") == 1


async def test_a_message_reads_no_file(tmp_path: Path, ledger_service: LedgerService) -> None:
    ledger_service.signature = lambda: {"ledger.x": "y"}
    opened: list[str] = []
    watching = False

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if watching and event == "open" and isinstance(args[0], str) and args[1] != "a":
            opened.append(args[0])

    sys.addaudithook(hook)
    async with RunningGateway(tmp_path, config(ledger={})) as t:
        await t.send_and_wait("one")
        await t.wait_until(lambda: len(ledger_service.kept) == 1)
        watching = True
        await t.send_and_wait("two")
        await t.wait_until(lambda: len(ledger_service.kept) == 2)
        watching = False
    assert [path for path in opened if str(tmp_path) in path] == []


async def test_the_in_doubt_policy_of_an_agent_s_memory_is_applied(
    tmp_path: Path, ledger_service: LedgerService
) -> None:
    lost = {"main", "coder"}

    async def lose(ledger: LedgerProvider, batch: MemoryBatch) -> None:
        if ledger.context.agent in lost:
            lost.remove(ledger.context.agent)
            raise InDoubt("the answer was lost")

    ledger_service.during = lose
    agents = {"main": {"memories": ["ledger"]}, "coder": {"memories": [{"name": "ledger", "in_doubt": "hold"}]}}
    text = config(agents, ledger={"keyed": False})
    async with RunningGateway(tmp_path, text) as t:
        t.app.agents.memories.on_change("main")
        for agent in ("main", "coder"):
            await t.send_message("hello", agent=agent)
        await t.wait_until(lambda: len(ledger_service.built) == 2)
        for it in ledger_service.built:
            attached = t.app.agents.find_memory("ledger", it.context.agent)
            assert attached is not None
            attached.deadline = 0.2  # an attempt in doubt is probed after that time
        await t.wait_until(lambda: not lost)

        async def settled() -> bool:
            return bool(await t.app.store.list_dead_letters()) and len(ledger_service.kept) == 1

        await t.wait_until(settled)
        (dead_letters,) = await t.app.store.list_dead_letters()
        assert dead_letters.in_doubt
        assert (await t.app.store.get_session(dead_letters.session)).agent == "coder"


async def test_a_memory_that_does_not_close_delays_no_stop(
    tmp_path: Path, ledger_service: LedgerService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_providers, "CLOSE_DEADLINE_SECONDS", 0.2)

    async def never(self: LedgerProvider) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(LedgerProvider, "close", never)
    t = RunningGateway(tmp_path, config(ledger={}))
    async with t:
        await t.send_and_wait("one")
        await t.wait_until(lambda: list_said(ledger_service) == ["one"])
        async with asyncio.timeout(LIMIT_SECONDS):
            await t.app.agents.memories.close()


async def test_using_only_an_agent_s_model_builds_no_memory(tmp_path: Path, ledger_service: LedgerService) -> None:
    t = RunningGateway(tmp_path, config(ledger={}))
    settings = load_home_settings(t.home, environ={})
    diary = RecordingLogger()
    store = SqliteStore.open(tmp_path / "log.db", chance=SeededRandom())
    agents = ConfiguredAgents(settings, store=store, log=diary, clock=SystemClock(), directory=tmp_path, platforms={})
    assert agents.get_runtime("main", {}).models[0].name
    await store.close()
    assert not ledger_service.built
    assert not diary.lines


async def test_a_memory_is_told_who_the_agent_is_and_when_that_changes(
    tmp_path: Path, ledger_service: LedgerService
) -> None:
    ledger_service.offers = frozenset({MemoryCapability.PERSONA})

    def make_config(persona: str) -> str:
        return config({"main": {"memories": ["ledger"], "persona": {"text": persona}}}, ledger={})

    async with RunningGateway(tmp_path, make_config("You are calm.")) as t:
        await t.send_and_wait("one")
        t.configure(make_config("You are brief."))
        await t.send_and_wait("two")
        (built,) = ledger_service.built
        assert built.personas == ["You are calm.", "You are brief."]
