"""`everhold pairing`, `people` and `schedules`, with and without a gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from everhold.app import GatewayApp, SystemClock, load_home_settings
from everhold.cli.commands.status import list_problems
from everhold.core.entries import ChatLocation
from everhold.core.erasure import DeletionRecord, PersonErasure, PlaceErasure
from everhold.core.session_rebuild import SessionRebuild
from everhold.infra.home import Home
from everhold.ports.memory import ErasureState, ProviderDeletion
from everhold.ports.store import Change, StateNamespace, StateWrite, Step
from everhold.telemetry.logs import open_log
from tests.cli.command_home import CommandHome
from tests.clients import client_of

CONFIG = """
models: {m: {provider: obedient}}
defaults: {model: m, memories: [], tools: []}
people: [{name: ada, identities: ["telegram:1001"]}, {name: bob}]
access: {owners: [ada]}
"""


@pytest.fixture
def codes(command_home: CommandHome) -> list[str]:
    """Make two strangers request pairing, and return their codes."""
    (command_home.path / "config.yaml").write_text(CONFIG)

    async def request_pairing() -> list[str]:
        home = Home(command_home.path).create()
        log = open_log(clock=SystemClock(), level="error")
        app = GatewayApp(home, load_home_settings(home, environ={}), log=log, environ={})
        pairing = app.admission.pairing
        told = [
            await pairing.request_pairing("telegram", "main", id, name=f"Eve {id}\x1b[31m", chat=id)
            for id in ("666", "667")
        ]
        await app.stop(seconds=0)
        return told

    return asyncio.run(request_pairing())


def test_a_stranger_is_listed_approved_and_revoked(command_home: CommandHome, codes: list[str]) -> None:
    shown = command_home.run_in_process("pairing", "list").ok().out
    assert "telegram:666" in shown
    assert "min left" in shown
    assert "\x1b" not in shown, "a name does not steer the terminal"
    assert not any(code in shown for code in codes)
    assert command_home.run_in_process("pairing", "approve", "AAAA-AAAA").code == 1
    done = command_home.run_in_process("pairing", "approve", codes[0].lower(), "--as", "bob").ok().out
    assert "telegram:666" in done
    assert "as bob" in done
    found = command_home.run_in_process("pairing", "list", "--json").ok().json
    assert [it["id"] for it in found["waiting"]] == ["667"]
    assert [it["id"] for it in found["granted"]] == ["666"]
    people = {it["name"]: it for it in command_home.run_in_process("people", "list", "--json").ok().json["people"]}
    assert {"identity": "telegram:666", "proof": "paired"}.items() <= people["bob"]["identities"][-1].items()
    assert people["ada"]["owner"]
    assert "is revoked" in command_home.run_in_process("pairing", "revoke", "telegram:666").ok().out
    people = {it["name"]: it for it in command_home.run_in_process("people", "list", "--json").ok().json["people"]}
    assert "telegram:666" not in [it["identity"] for it in people["bob"]["identities"]]
    again = command_home.run_in_process("pairing", "revoke", "telegram:666")
    assert (again.code, "everhold pairing list" in again.err) == (1, True)


def test_a_revoked_identity_that_is_still_linked_is_reported(command_home: CommandHome, codes: list[str]) -> None:
    command_home.run_in_process("pairing", "approve", codes[0]).ok()
    command_home.run_in_process("people", "link", "telegram:666", "bob").ok()
    said = command_home.run_in_process("pairing", "revoke", "telegram:666").ok().out
    assert "still has the access of bob" in said
    assert "everhold people unlink telegram:666" in said


def test_an_unconfigured_person_is_refused(command_home: CommandHome, codes: list[str]) -> None:
    done = command_home.run_in_process("pairing", "approve", codes[0], "--as", "mallory")
    assert done.code == 1
    assert "add it under people" in done.err
    assert command_home.run_in_process("pairing", "list", "--json").ok().json["granted"] == []


def test_a_link_of_a_nick_says_since_when_it_counts(command_home: CommandHome, codes: list[str]) -> None:
    always = command_home.run_in_process("people", "link", "telegram:666", "bob").ok().out
    assert always.splitlines()[0].endswith("with everything said under it.")
    dated = command_home.run_in_process("people", "link", "irc:eve", "bob").ok().out
    assert "with everything said under it since 20" in dated


def test_identities_are_linked_and_unlinked(command_home: CommandHome, codes: list[str]) -> None:
    command_home.run_in_process("people", "link", "discord:2002", "bob").ok()
    assert "discord:2002" in command_home.run_in_process("people", "list").ok().out
    assert "config.yaml" in command_home.run_in_process("people", "link", "telegram:1001", "bob").err, (
        "a configured identity stays"
    )
    assert command_home.run_in_process("people", "link", "bob", "bob").code == 2
    command_home.run_in_process("people", "unlink", "discord:2002").ok()
    people = {it["name"]: it for it in command_home.run_in_process("people", "list", "--json").ok().json["people"]}
    assert "discord:2002" not in [it["identity"] for it in people["bob"]["identities"]]
    command_home.run_in_process("people", "name", "discord:2002", "grace").ok()
    assert "grace" in command_home.run_in_process("people", "list").ok().out
    assert "unlinked" in command_home.run_in_process("people", "events").ok().out


def test_schedules_are_listed_and_deleted_through_a_running_gateway(command_home: CommandHome) -> None:
    command_home.start_gateway()
    told = command_home.run_in_process("send", "/schedule daily 08:30 good morning").ok().out
    id = told.partition("(")[2].partition(")")[0]
    (listed,) = command_home.run_in_process("schedules", "list", "--json").ok().json["schedules"]
    assert (listed["id"], listed["when"], listed["text"]) == (id, "daily 08:30", "good morning")
    assert "good morning" in command_home.run_in_process("schedules", "list").ok().out
    command_home.run_in_process("schedules", "remove", id).ok()
    assert command_home.run_in_process("schedules", "remove", id).code == 1
    assert command_home.run_in_process("schedules", "list", "--json").ok().json["schedules"] == []


def test_status_names_failing_accounts(command_home: CommandHome) -> None:
    (command_home.path / "config.yaml").write_text(
        CONFIG + "platforms: {telegram: {main: {token_env: BOT, access: {direct: [ada]}}}}\n"
    )
    command_home.start_gateway()
    done = command_home.run_in_process("status")
    assert done.code == 1
    assert "BOT is not set" in done.out


def test_status_shows_rebuilds_and_the_forgettings_that_block_them(command_home: CommandHome) -> None:
    (command_home.path / "config.yaml").write_text(CONFIG)
    deletion = ProviderDeletion(id="1", what="a session", state=ErasureState.UNCONFIRMED)
    place = PlaceErasure(
        agent="main", memory="honcho", asked_at=1.0, deletions=(DeletionRecord(deletion=deletion, asked_at=1.0),)
    )
    erasure = PersonErasure(identities=("telegram:1",), at=1.0, log_erased_at=1.0, places=(place,))
    waiting = PlaceErasure(agent="main", memory="honcho", problem="a forgetting or a rekey is under way")
    rebuild = SessionRebuild(place=waiting, name="n", keys=("s:1", "s:4"), members=("person:a",), since=1.0)
    records = {
        (StateNamespace.ERASURE, erasure.id): erasure,
        (StateNamespace.SESSION_REBUILD, rebuild.key): rebuild,
    }

    async def store_records() -> None:
        home = Home(command_home.path).create()
        app = GatewayApp(
            home, load_home_settings(home, environ={}), log=open_log(clock=SystemClock(), level="error"), environ={}
        )
        await client_of(app).show_status()
        writes = tuple(
            StateWrite(namespace=namespace, key=key, value=msgspec.json.encode(it).decode(), version=0)
            for (namespace, key), it in records.items()
        )
        await app.store.commit(Change(step=Step.STATE, session="", at=1.0, state_writes=writes))
        await app.stop(seconds=0)

    asyncio.run(store_records())
    done = command_home.run("status")
    assert done.code == 1
    assert f"rebuild   honcho of main · planned · 2 items undone · waits for the forgetting {erasure.id}" in done.out
    assert f"forget    {erasure.id} · unconfirmed · began" in done.out
    assert f"forgetting {erasure.id} is not confirmed after a day: honcho of main" in done.out
    assert "everhold memory erasures" in done.out
    assert "telegram:1" not in done.out


def test_status_names_halted_chats_and_agent_loops(command_home: CommandHome) -> None:
    (command_home.path / "config.yaml").write_text(CONFIG)

    async def trouble() -> dict[str, Any]:
        home = Home(command_home.path).create()
        app = GatewayApp(
            home, load_home_settings(home, environ={}), log=open_log(clock=SystemClock(), level="error"), environ={}
        )
        origin = ChatLocation(platform="telegram", account="main", chat="-100")
        app.admission._record_broken_loop("main", origin, 8)
        found: dict[str, Any] = await client_of(app).show_status()
        halt = StateWrite(
            namespace=StateNamespace.CHAT_HALT,
            scope="telegram:",
            key="-200",
            value='{"by": "ada", "at": 1}',
            version=0,
        )
        await app.store.commit(Change(step=Step.STATE, session="", at=1.0, state_writes=(halt,)))
        await app.stop(seconds=0)
        return found

    assert (
        "agents answered each other too often in telegram:-100 (main)",
        "a message from a person there lets them continue",
    ) in (list_problems(asyncio.run(trouble())))
    done = command_home.run("status")
    assert done.code == 1
    assert "telegram:-200 was halted by ada" in done.out
    assert "/wake" in done.out


def test_a_group_command_without_a_verb_lists_its_items(command_home: CommandHome, codes: list[str]) -> None:
    assert len(command_home.run("pairing", "--json").ok().json["waiting"]) == len(codes)
    assert "ada" in command_home.run("people").ok().out
    assert "There are no schedules" in command_home.run("schedules").ok().err
