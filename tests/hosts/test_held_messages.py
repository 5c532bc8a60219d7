"""Messages whose files are being downloaded, at two hosts of one store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from everhold.ports.hosts import HostRecord, HostVersion
from everhold.ports.store import StateNamespace
from tests.ingress.test_held_messages import FileHarness

Hosts = tuple[FileHarness, FileHarness]


def open_host(path: Path, seed: int) -> FileHarness:
    host = FileHarness(path, seed=seed, exclusive=False)
    host.said = 1_000 * seed
    return host


@pytest.fixture
async def hosts(tmp_path: Path) -> AsyncIterator[Hosts]:
    here, there = open_host(tmp_path, 0), open_host(tmp_path, 1)
    yield here, there
    for host in (here, there):
        await host.held.close()
        await host.store.close()


async def register(host: FileHarness, *, lease: float = 600.0) -> None:
    id = host.held._gates.owner
    await host.store.register_host(HostRecord(id=id, name=id, version=HostVersion("1", 1)), lease=lease)


async def test_two_hosts_hold_messages_under_different_numbers(hosts: Hosts) -> None:
    here, there = hosts
    for host in hosts:
        host.files.hang("a")
        assert await host.send_file("look", "a") == "held"
    records = await here.store.list_state_records(StateNamespace.HELD_MESSAGE)
    assert len({it.key for it in records}) == 2
    for host in hosts:
        host.files.gates["a"].set()
        await host.wait_until_released()
    assert await there.read_texts() == ["look", "look"]


async def test_the_messages_of_a_living_host_are_left_to_it(hosts: Hosts) -> None:
    here, there = hosts
    await register(here)
    here.files.hang("a")
    await here.send_file("look", "a")
    assert await there.held.resume() == 0
    here.files.gates["a"].set()
    await here.wait_until_released()
    assert await there.read_texts() == ["look"]


async def test_the_messages_of_a_dead_host_are_taken_over_once_and_in_order(hosts: Hosts) -> None:
    here, there = hosts
    here.files.hang("a")
    await here.send_file("first", "a")
    await here.send_file("second", "b")
    assert await there.held.resume() == 2, "it is not registered"
    assert await there.held.resume() == 0
    await there.wait_until_released()
    assert await there.read_texts() == ["first", "second"]
    here.files.gates["a"].set()  # it was only slow
    await here.wait_until_released()
    assert await there.read_texts() == ["first", "second"], "each is accepted once"
