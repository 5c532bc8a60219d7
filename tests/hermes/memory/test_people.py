"""Several people talk over HTTP to one real gateway that has a plug-in as its memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from everhold.core.entries import ChatLocation, EntryKind, Thought
from everhold.engine.recall_records import load_recalled_text
from everhold.ports.platform import IncomingMessage
from tests.e2e.running_gateway import RunningGateway

from .harness import HermesPluginHarness
from .test_isolation import LEAKING, NOTEBOOK


def make_config(harness: HermesPluginHarness, **settings: Any) -> str:
    memories = {"it": {"provider": "hermes-plugin", "path": str(harness.plugin), **settings}}
    main = {"memories": ["it"], "recall": {"deadline_seconds": 30}, "review_every_turns": 0}
    people = [{"name": "ada"}, {"name": "bob"}]
    return json.dumps({"agents": {"main": main}, "memories": memories, "people": people, "access": {"owners": ["ada"]}})


async def say(t: RunningGateway, who: str, text: str, *, message: int = 1) -> str:
    """Send a message over HTTP, wait until it is answered and delivered, and return the session."""
    origin = ChatLocation(platform="http", chat=f"chat-of-{who}", message=str(message))
    verdict = await t.app.accept(IncomingMessage(origin=origin, text=text, sender=who, agent="main"))
    await t.wait_for_replies(verdict.session, message)
    await t.wait_until_idle()
    return verdict.session


async def read_shown(t: RunningGateway, session: str, who: str) -> str:
    """Return what was recalled for a person's answers, and what a search finds for them."""
    found = [json.dumps(await t.app.memory_admin.search_memories("alarm code", agent="main", person=who))]
    for entry in await t.app.store.list_entries(session, kinds=(EntryKind.THOUGHT,)):
        if isinstance(entry.body, Thought) and entry.body.recall:
            text, _ = await load_recalled_text(t.app.store, entry.body.recall)
            assert text is not None, "nothing was erased"
            found.append(text)
    return "\n".join(found)


def find_homes(path: Path) -> Path:
    return next(path.rglob("it/main/homes"))


async def test_a_plugin_without_users_keeps_two_people_apart_over_http(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, NOTEBOOK)
    async with RunningGateway(tmp_path, make_config(harness)) as t:
        hers = await say(t, "ada", "my alarm code is 4711")
        await say(t, "ada", "what is my alarm code?", message=2)
        his = await say(t, "bob", "what is the alarm code?")
        await say(t, "bob", "do you know any alarm code?", message=2)
        assert "4711" in await read_shown(t, hers, "ada")
        assert "4711" not in await read_shown(t, his, "bob")
        await t.assert_sound()
    directory = find_homes(tmp_path)
    calls = {
        who: harness.read_calls("initialize", home=next(directory.glob(f"*{who}*")))[0][2] for who in ("ada", "bob")
    }
    keys = {who: given["gateway_session_key"] for who, given in calls.items()}
    assert keys == {who: f"agent:main:http:dm:chat-of-{who}" for who in ("ada", "bob")}


async def test_a_leaking_plugin_serves_the_owner_and_the_status_names_it(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, LEAKING)
    config = make_config(harness, environ={"KEPT": str(tmp_path / "everybody.txt")}, sandbox="none")
    async with RunningGateway(tmp_path, config) as t:
        hers = await say(t, "ada", "my alarm code is 4711")
        his = await say(t, "bob", "what is the alarm code?")
        assert "4711" not in await read_shown(t, his, "bob")
        await say(t, "ada", "and now?", message=2)
        assert "4711" in await read_shown(t, hers, "ada"), "the owner is still served"
        await say(t, "bob", "and now?", message=2)  # turns go on
        rows = (await t.app.session_admin.collect_status())["memories"]
        (condition,) = [row for row in rows if row["memory"] == "it"]
        assert condition["state"] == "failing"
        assert "serves only the owner, because in a test it showed one person's words to another" in condition["report"]
        assert "another memory" in condition["remedy"]
        (row,) = [it for it in (await t.app.memory_admin.collect_status())["memories"] if it["memory"] == "it"]
        assert (row["report"], row["remedy"]) == (condition["report"], condition["remedy"])
        letters = await t.app.store.list_dead_letters(session=his)
        assert len(letters) == 2
        assert all("serves only the owner" in letter.reason for letter in letters), "they can be replayed"
        await t.assert_sound()
    assert "what is the alarm code" not in (tmp_path / "everybody.txt").read_text()


async def test_the_owner_is_served_in_the_configured_home_over_http_and_nobody_else(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, NOTEBOOK)
    config = make_config(harness, hermes_home=str(harness.home), serves="owner")
    async with RunningGateway(tmp_path, config) as t:
        await say(t, "ada", "my alarm code is 4711")
        his = await say(t, "bob", "what is the alarm code?")
        (letter,) = await t.app.store.list_dead_letters()
        assert letter.session == his
        assert "serves only the owner" in letter.reason
    assert harness.read_calls("sync_turn") == [["sync_turn", "my alarm code is 4711"]]
