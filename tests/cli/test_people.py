"""`pairing`, `people` and `schedules`: what whoever is in charge sees and decides, with a gateway and without."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everhold.app import App, SystemClock, settings_of
from everhold.cli.commands.status import complaints
from everhold.core.entries import Place
from everhold.home import Home
from everhold.logs import open_log
from everhold.ports.store import Change, StateNamespace, StateWrite, Step
from tests.cli.house import House
from tests.clients import client_of

CONFIG = """
models: {m: {provider: obedient}}
defaults: {model: m, memories: [], tools: []}
people: [{name: ada, identities: ["telegram:1001"]}, {name: bob}]
access: {owners: [ada]}
"""


@pytest.fixture
def codes(house: House) -> list[str]:
    """A home where two strangers have knocked; what they were told."""
    (house.path / "config.yaml").write_text(CONFIG)

    async def knock() -> list[str]:
        home = Home(house.path).create()
        log = open_log(clock=SystemClock(), level="error")
        app = App(home, settings_of(home, environ={}), log=log, environ={})
        pairing = app.reception.pairing
        told = [await pairing.knock("telegram", "main", id, name=f"Eve {id}\x1b[31m", chat=id) for id in ("666", "667")]
        await app.stop(seconds=0)
        return told

    return asyncio.run(knock())


def test_a_stranger_is_seen_approved_and_revoked(house: House, codes: list[str]) -> None:
    shown = house.ask("pairing", "list").ok().out
    assert "telegram:666" in shown
    assert "min left" in shown
    assert "\x1b" not in shown, "a name does not steer the terminal"
    assert not any(code in shown for code in codes)
    assert house.ask("pairing", "approve", "AAAA-AAAA").code == 1
    done = house.ask("pairing", "approve", codes[0].lower(), "--as", "bob").ok().out
    assert "telegram:666" in done
    assert "as bob" in done
    found = house.ask("pairing", "list", "--json").ok().json
    assert [it["id"] for it in found["waiting"]] == ["667"]
    assert [it["id"] for it in found["granted"]] == ["666"]
    people = {it["name"]: it for it in house.ask("people", "list", "--json").ok().json["people"]}
    assert people["bob"]["linked"] == ["telegram:666"]
    assert people["ada"]["owner"]
    assert "a stranger again" in house.ask("pairing", "revoke", "telegram:666").ok().out
    people = {it["name"]: it for it in house.ask("people", "list", "--json").ok().json["people"]}
    assert people["bob"]["linked"] == []
    again = house.ask("pairing", "revoke", "telegram:666")
    assert (again.code, "everhold pairing list" in again.err) == (1, True)


def test_it_is_said_who_is_still_let_in_as_somebody(house: House, codes: list[str]) -> None:
    house.ask("pairing", "approve", codes[0]).ok()
    house.ask("people", "link", "telegram:666", "bob").ok()
    said = house.ask("pairing", "revoke", "telegram:666").ok().out
    assert "still as bob" in said
    assert "everhold people unlink telegram:666" in said


def test_a_person_who_is_not_configured_is_nobody(house: House, codes: list[str]) -> None:
    done = house.ask("pairing", "approve", codes[0], "--as", "mallory")
    assert done.code == 2
    assert "add them under people" in done.err
    assert house.ask("pairing", "list", "--json").ok().json["granted"] == []


def test_people_are_linked_and_unlinked_by_hand(house: House, codes: list[str]) -> None:
    house.ask("people", "link", "discord:2002", "bob").ok()
    assert "discord:2002" in house.ask("people", "list").ok().out
    assert "config.yaml" in house.ask("people", "link", "telegram:1001", "bob").err, "what is configured stays"
    assert house.ask("people", "link", "bob", "bob").code == 2
    house.ask("people", "unlink", "discord:2002").ok()
    assert "discord:2002" not in house.ask("people", "list").ok().out


def test_schedules_are_listed_and_removed_through_a_running_gateway(house: House) -> None:
    house.up()
    told = house.ask("send", "/schedule daily 08:30 good morning").ok().out
    id = told.partition("(")[2].partition(")")[0]
    (listed,) = house.ask("schedules", "list", "--json").ok().json["schedules"]
    assert (listed["id"], listed["when"], listed["text"]) == (id, "daily 08:30", "good morning")
    assert "good morning" in house.ask("schedules", "list").ok().out
    house.ask("schedules", "remove", id).ok()
    assert house.ask("schedules", "remove", id).code == 1
    assert house.ask("schedules", "list", "--json").ok().json["schedules"] == []


def test_status_names_accounts_that_do_not_work(house: House) -> None:
    (house.path / "config.yaml").write_text(
        CONFIG + "platforms: {telegram: {main: {token_env: BOT, access: {direct: [ada]}}}}\n"
    )
    house.up()
    done = house.ask("status")
    assert done.code == 1
    assert "BOT is not set" in done.out


def test_status_names_chats_where_agents_were_silenced_or_talked_too_much(house: House) -> None:
    (house.path / "config.yaml").write_text(CONFIG)

    async def trouble() -> dict[str, Any]:
        home = Home(house.path).create()
        app = App(home, settings_of(home, environ={}), log=open_log(clock=SystemClock(), level="error"), environ={})
        origin = Place(platform="telegram", account="main", chat="-100")
        app.reception._broken("main", origin, 8)
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

    assert ("agents answered each other too often in telegram:-100 (main)", "a human's word there lets them go on") in (
        complaints(asyncio.run(trouble()))
    )
    done = house.run("status")
    assert done.code == 1
    assert "telegram:-200 was silenced by ada" in done.out
    assert "/wake" in done.out


def test_a_word_alone_shows_what_there_is(house: House, codes: list[str]) -> None:
    assert len(house.run("pairing", "--json").ok().json["waiting"]) == len(codes)
    assert "ada" in house.run("people").ok().out
    assert "Nothing is scheduled" in house.run("schedules").ok().err
