"""Hosts of one store know each other, refuse distant versions, and name what differs in their configurations."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from everhold.app import SystemClock, SystemRandomSource
from everhold.assembly.host_membership import HostMembership, flatten_settings
from everhold.config import parse_settings
from everhold.config.secrets import SecretEnvironment
from everhold.errors import Refused
from everhold.ports.hosts import HostVersion
from everhold.ports.store import StateNamespace
from everhold.stores.sqlite import SqliteStore
from everhold.telemetry.logs import open_log


class ManualClock:
    def __init__(self) -> None:
        self.at = 1_000.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


class MembershipScene:
    """A store that several hosts share, and their log lines."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteStore.open(path / "log.db", chance=SystemRandomSource(), exclusive=False)
        self.log = io.StringIO()

    def make_host(self, name: str) -> HostMembership:
        clock = SystemClock()
        return HostMembership(
            self.store,
            owner=f"owner-{name}",
            name=name,
            clock=clock,
            chance=SystemRandomSource(),
            log=open_log(clock=clock, stream=self.log),
        )


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[MembershipScene]:
    scene = MembershipScene(tmp_path)
    yield scene
    await scene.store.close()


async def test_hosts_see_each_other_drain_and_leave(scene: MembershipScene) -> None:
    one, two = scene.make_host("one"), scene.make_host("two")
    await one.join()
    await two.join()
    await two.announce("http://two:8765")
    assert [it.host.name for it in await one.list_hosts()] == ["one", "two"]
    assert (await one.list_hosts())[1].host.url == "http://two:8765"
    await two.start_draining()
    await two.renew()
    assert [it.is_draining for it in await one.list_hosts()] == [False, True]
    await two.leave()
    assert [it.host.name for it in await one.list_hosts()] == ["one"]


async def test_a_host_whose_registration_was_forgotten_registers_again(scene: MembershipScene) -> None:
    one = scene.make_host("one")
    await one.join()
    await scene.store.remove_host("owner-one")
    await one.renew()
    assert [it.host.name for it in await one.list_hosts()] == ["one"]


async def test_a_host_whose_registration_ended_is_cut_off_until_the_store_answers(scene: MembershipScene) -> None:
    clock = ManualClock()
    host = HostMembership(
        scene.store,
        owner="owner-one",
        name="one",
        clock=clock,
        chance=SystemRandomSource(),
        log=open_log(clock=clock, stream=scene.log),
        lease_seconds=10.0,
    )
    await host.join()
    seen = [host.is_cut_off]
    clock.at += 10.5
    seen.append(host.is_cut_off)
    await host.renew()
    assert [*seen, host.is_cut_off] == [False, True, False]


async def test_a_host_refuses_to_start_beside_a_distant_version(scene: MembershipScene) -> None:
    old = scene.make_host("old").record
    version = HostVersion(program=old.version.program, schema=old.version.schema + 2)
    await scene.store.register_host(msgspec.structs.replace(old, version=version), lease=60.0)
    with pytest.raises(Refused, match="more than one version apart"):
        await scene.make_host("new").join()
    assert [it.host.name for it in await scene.store.list_hosts()] == ["old"]


async def test_differences_are_named_without_their_values(scene: MembershipScene) -> None:
    text = "models: {m: {provider: openai, name: a, api_key_env: KEY}}\ndefaults: {busy: queue}"
    other = "models: {m: {provider: openai, name: a, api_key_env: KEY}}\ndefaults: {busy: steer}\nhttp: {port: 1}"
    one, two = scene.make_host("one"), scene.make_host("two")
    for host, given, key in ((one, text, "sk-secret-of-one"), (two, other, "sk-secret-of-two")):
        await host.join()
        await host.publish_settings(parse_settings(given, environment=SecretEnvironment({"KEY": key})))
    await one.renew()
    for host, differing in ((one, "two"), (two, "one")):
        keys = host.differences[differing]
        assert set(keys) >= {"defaults.busy", "agents.main.busy", "models.m.api_key"}
        assert not any(key.startswith("http.port") for key in keys), "the port may differ"
    stored = await scene.store.list_state_records(StateNamespace.HOST_SETTINGS)
    shown = scene.log.getvalue() + "".join(it.value for it in stored)
    assert "host.settings_differ" in shown
    assert "secret-of" not in shown
    assert "steer" not in shown
    await two.publish_settings(parse_settings(text, environment=SecretEnvironment({"KEY": "sk-secret-of-one"})))
    await one.renew()
    assert not one.differences
    assert not two.differences


async def test_the_digests_of_a_killed_host_are_removed(scene: MembershipScene) -> None:
    one, two = scene.make_host("one"), scene.make_host("two")
    for host in (one, two):
        await host.join()
        await host.publish_settings(parse_settings(""))
    await scene.store.remove_host("owner-one")  # as if it had been forgotten after a kill
    await two.leave()
    assert await scene.store.list_state_records(StateNamespace.HOST_SETTINGS) == []


def test_a_secret_counts_as_a_value_and_the_store_does_not() -> None:
    settings = parse_settings(
        "store: {url: 'postgresql://db/x'}\nhttp: {tokens: [{name: me, token_env: T, role: operator}]}",
        environment=SecretEnvironment({"T": "0123456789abcdef" * 3}),
    )
    keys = dict(flatten_settings(settings))
    assert "http.tokens" in keys
    assert not any(key.startswith("store") for key in keys)
