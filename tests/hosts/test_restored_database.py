"""After a restore of the database, hosts erase again what was erased since the dump was made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from everhold.core.entries import Heard
from everhold.ports.memory import ErasureState
from everhold.testing.postgres_server import PostgresTestServer
from tests.e2e.running_gateway import RunningGateway
from tests.waiting import wait_until

SECRET, OTHER, KEPT = "the code is 4711", "my shoe size is 43", "good morning"


def open_gateway(path: Path, url: str, *, directory: str = "") -> RunningGateway:
    config = f"store: {{url: '{url}'}}\nbackup: {{directory: '{directory}'}}\n"
    return RunningGateway(path, config)


@contextmanager
def restore_dump(server: PostgresTestServer, url: str, dump: Path) -> Iterator[str]:
    """Replace the database by one from a dump, as an operator does."""
    with server.lend_database(template="template0") as restored:
        server.run_program("pg_restore", "--no-owner", "--dbname", restored, str(dump))
        yield restored


def make_dump(server: PostgresTestServer, url: str) -> Path:
    dump = server.home / "everhold.dump"
    server.run_program("pg_dump", "--format=custom", "--file", str(dump), url)
    return dump


def read_messages(url: str) -> str:
    with psycopg.connect(url) as connection:
        rows = connection.execute("select body from entries where kind = 'heard' and body is not null")
        return "\n".join(row[0] for row in rows)


async def erase_by_two_means(one: RunningGateway) -> None:
    """Erase an entry, and forget a person."""
    sessions = await one.app.store.list_sessions()
    entries = [entry for it in sessions for entry in await one.app.store.list_entries(it.id)]
    said = {entry.body.text: entry for entry in entries if isinstance(entry.body, Heard)}
    found = said[SECRET]
    await one.app.session_admin.erase_entries(found.session, [found.seq], by="operator", why="a secret")
    report = await one.app.memory_admin.forget_person(said[OTHER].author.removeprefix("person:"), by="operator")
    assert report.entry_count


@pytest.mark.parametrize("survivor", ["directory", pytest.param("home", marks=pytest.mark.prove)])
async def test_what_was_erased_is_erased_again_by_a_host_that_did_not_erase_it(
    tmp_path: Path, postgres_server: PostgresTestServer, survivor: str
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    directory = str(shared) if survivor == "directory" else ""
    with postgres_server.lend_store_database() as url:
        async with open_gateway(tmp_path / "one", url, directory=directory) as one:
            await one.send_and_wait(SECRET, chat="a", who="ada")
            await one.send_and_wait(KEPT, chat="a", who="ada")
            await one.send_and_wait(OTHER, chat="b", who="bob")
            await one.wait_until_idle()
            dump = make_dump(postgres_server, url)
            async with open_gateway(tmp_path / "two", url, directory=directory) as two:
                await erase_by_two_means(one)
                await two.app.erasure_follower.catch_up()
                lines = two.home.erasures.read_text()
                assert (lines.count('"forget"') > 0, lines.count('"seals"') > 0) == (True, True)
                await two.app.erasure_follower.catch_up()
                assert two.home.erasures.read_text() == lines, "nothing comes twice"
        assert SECRET not in read_messages(url)
        with restore_dump(postgres_server, url, dump) as restored:
            found = read_messages(restored)
            assert all(text in found for text in (SECRET, OTHER, KEPT))
            home = tmp_path / ("two" if survivor == "home" else "new")
            async with open_gateway(home, restored, directory=directory) as again:
                left = read_messages(restored)
                assert SECRET not in left
                assert OTHER not in left
                assert KEPT in left
                await wait_until(lambda: is_forgotten(again))
                assert not (await again.app.store.audit()).contradictions
            async with open_gateway(home, restored, directory=directory) as later:
                assert await later.app.reapply_erasures() == 0


async def is_forgotten(gateway: RunningGateway) -> bool:
    (report,) = await gateway.app.memory_admin.list_erasures()
    return report.state in (ErasureState.CONFIRMED, ErasureState.CANNOT)
