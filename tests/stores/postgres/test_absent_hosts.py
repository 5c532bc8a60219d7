"""A host that stops, or that is cut off from the database, loses its leases. When it is back, it can commit nothing
under them, and what it was told to accept meanwhile is in the log once."""

from __future__ import annotations

import signal
from collections.abc import Callable

import psycopg
import pytest

from everhold.ports.store import Claim
from everhold.stores.postgres import PostgresStore
from everhold.testing.postgres_server import DURABLE_SETTINGS, run_postgres_server
from tests.stores.postgres import network_namespace
from tests.stores.postgres.driven_host import make_begin
from tests.stores.postgres.host_process import HostProcess, run_host
from tests.stores.postgres.scenario import open_hosts, open_session, read_texts
from tests.waiting import wait_until


async def check_absence(
    here: PostgresStore, host: HostProcess, *, leave: Callable[[], None], come_back: Callable[[], None]
) -> None:
    """Let a host leave while it holds a session, and come back after another host took over."""
    await open_session(here, "s")
    assert host.ask("accept", "s", "first") == {"seqs": [1], "duplicate": False}
    fence = host.ask("claim", "s")["fence"]
    leave()
    host.tell("accept", "s", "meanwhile")
    host.tell("begin", "s")
    taken: list[Claim] = []

    async def take_over() -> bool:
        taken.extend(await here.claim_cursors(owner="other", lease=60.0, limit=8))
        return bool(taken)

    await wait_until(take_over)
    assert taken[0].fence > fence
    begun = await here.commit(make_begin(taken[0]))
    come_back()
    accepted, refused = host.read_answer(), host.read_answer()
    assert accepted["duplicate"] is False
    assert refused["error"] == "LeaseLost"
    assert host.ask("accept", "s", "meanwhile")["duplicate"] is True
    assert sorted(await read_texts(here, "s")) == ["first", "meanwhile"]
    assert [one.op for one in (await here.get_session_snapshot("s")).running] == list(begun.seqs)
    assert await here.verify() == []


async def test_a_stopped_host_is_fenced_when_it_goes_on(postgres_url: str) -> None:
    async with open_hosts(postgres_url) as (here,):
        with run_host(postgres_url) as host:
            await check_absence(
                here,
                host,
                leave=lambda: host.process.send_signal(signal.SIGSTOP),
                come_back=lambda: host.process.send_signal(signal.SIGCONT),
            )


@pytest.mark.prove
async def test_a_host_behind_a_cut_network_is_fenced_when_it_heals() -> None:
    if obstacle := network_namespace.find_obstacle():
        pytest.skip(obstacle)
    with network_namespace.open_namespace() as space:
        settings = {**DURABLE_SETTINGS, "listen_addresses": network_namespace.HERE}
        with run_postgres_server(settings) as server, server.lend_store_database() as url:
            network_namespace.admit_namespace(server.data)
            server.run_sql("select pg_reload_conf()")
            database = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
            distant = f"postgresql://postgres@{network_namespace.HERE}/{database}"
            async with open_hosts(url) as (here,):
                with run_host(distant, prefix=space.prefix) as host:
                    await check_absence(here, host, leave=space.cut, come_back=space.heal)
