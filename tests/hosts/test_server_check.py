"""What is wrong with the address of a database, or with its server, is named with a remedy and without a password."""

from __future__ import annotations

import psycopg
import pytest

from everhold.app import SystemRandomSource
from everhold.config import parse_settings
from everhold.config.secrets import SecretEnvironment
from everhold.doctor.server import list_local_paths, list_server_findings
from everhold.errors import StoreError, StoreNewer
from everhold.stores.postgres.server_check import examine_server
from everhold.stores.postgres.shared_store import open_shared_store
from everhold.testing.postgres_server import PostgresTestServer


async def open_at(url: str) -> None:
    store = await open_shared_store(url, connections=3, chance=SystemRandomSource())
    await store.close()


async def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    with pytest.raises(StoreError, match="cannot be reached") as raised:
        await open_at("postgresql://ada:hunter22@127.0.0.1:1/everhold")
    assert "everhold at ada@127.0.0.1" in str(raised.value)
    assert "hunter22" not in str(raised.value)
    assert raised.value.remedy


async def test_a_missing_and_a_foreign_database_are_named(postgres_server: PostgresTestServer) -> None:
    with pytest.raises(StoreError, match="there is no database nowhere"):
        await open_at(postgres_server.build_dsn("nowhere"))
    with postgres_server.lend_database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create table sessions (id int)")
        with pytest.raises(StoreError, match="belongs to another program"):
            await open_at(url)


async def test_a_schema_that_is_too_new_is_refused(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("update store_info set schema_version = 99, oldest_version = 99")
    assert (await examine_server(postgres_url)).is_schema_too_new
    with pytest.raises(StoreNewer, match="needs a program"):
        await open_at(postgres_url)


async def test_what_a_server_can_lose_is_said(postgres_url: str) -> None:
    found = await examine_server(postgres_url, now=lambda: 0.0)
    texts = " ".join(it.text for it in list_server_findings(found))
    assert "acknowledges commits before they are on its disk" in texts, "the test server runs without fsync"
    assert "promises 1 and 2" in texts
    assert "clock differs" in texts
    safer = found._replace(is_durable=True, clock_difference_seconds=0.0)
    (note,) = list_server_findings(safer)
    assert "no synchronous standby" in note.text
    assert note.level == "note"
    assert not list(list_server_findings(safer._replace(has_synchronous_standby=True)))
    assert "hints" in "".join(it.text for it in list_server_findings(safer._replace(is_pooled=True)))


def test_a_folder_of_one_host_is_refused_unless_it_is_shared() -> None:
    server = "mcp: {files: {command: [x], write_paths: [/srv/work]}}"
    url = "url: 'postgresql://db/x'"
    alone = parse_settings(server, environment=SecretEnvironment({}))
    assert not list(list_local_paths(alone)), "a home with a file has one host"
    (problem,) = list_local_paths(parse_settings(f"store: {{{url}}}\n{server}"))
    assert problem.key == "mcp.files.write_paths"
    shared = parse_settings(f"store: {{{url}, shared_paths: [/srv]}}\n{server}")
    assert not list(list_local_paths(shared))
