"""A complete gateway with Discord and Slack: a long reply grows, is split, and is delivered once and completely."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from everhold.platforms.slack.formatting import from_mrkdwn
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.e2e.running_gateway import KEY, RunningGateway, make_model_section
from tests.platforms.remote_discord import TOKEN, open_remote_discord
from tests.platforms.remote_slack import APP_TOKEN, BOT_TOKEN, open_remote_slack
from tests.waiting import LIMIT_SECONDS

LONG = "\n\n".join(f"Paragraph {number}: " + "all about a < b & c. " * 20 for number in range(14)).strip()


@asynccontextmanager
async def run_gateway(
    path: Path, platform: str, account: dict[str, Any], model: ModelServer, env: str
) -> AsyncIterator[RunningGateway]:
    config = {
        "models": {"m": make_model_section(model.openai)},
        "defaults": {"memories": [], "tools": []},
        "platforms": {platform: {"main": account}},
    }
    async with RunningGateway(path, json.dumps(config), env=f"MODEL_KEY={KEY}\n{env}") as running:
        yield running


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer(key=KEY) as server:
        pieces = tuple(LONG[at : at + 60] for at in range(0, len(LONG), 60))
        server.add_steps(ModelServerReply(text=LONG, pieces=pieces, pause_seconds=0.03))
        yield server


async def test_a_long_reply_on_discord_is_delivered_once(tmp_path: Path, model: ModelServer) -> None:
    async with open_remote_discord() as remote:
        server = remote.server
        access = {"direct": ["discord:1001"], "groups": {remote.group: ["discord:1001"]}}
        account = {"token_env": "BOT", "base_url": server.api, "access": access}
        async with run_gateway(tmp_path, "discord", account, model, f"BOT={TOKEN}") as running:
            await server.write_message(f"<@{server.bots[TOKEN].id}> tell me all", channel=remote.group)
            await running.wait_until(
                lambda: "Paragraph 13" in "".join(it.text for it in remote.list_shown(remote.group))
            )
            await running.wait_until_idle()
            shown = remote.list_shown(remote.group)
            assert len(shown) >= 4
            assert max(len(it.text) for it in shown) <= 2000
            assert "".join("".join(it.text for it in shown).split()) == "".join(LONG.split())
            assert server.messages[remote.group][shown[0].id]["edited_timestamp"], "it was seen growing"
            assert remote.group in server.typing
            await server.use_command("status", channel=remote.group)
            await running.wait_until(lambda: len(remote.list_shown(remote.group)) > len(shown))
            await running.assert_sound()


async def test_a_long_reply_on_slack_is_delivered_once(tmp_path: Path, model: ModelServer) -> None:
    async with open_remote_slack() as remote:
        server = remote.server
        url = f"{server.url}/api/"
        access = {"direct": ["slack:UADA"], "groups": {remote.group: ["slack:UADA"]}}
        account = {"bot_token_env": "BOT", "app_token_env": "APP", "base_url": url, "access": access}
        async with run_gateway(tmp_path, "slack", account, model, f"BOT={BOT_TOKEN}\nAPP={APP_TOKEN}") as running:
            released = model.hold()
            server.ack_seconds = LIMIT_SECONDS
            parent = await server.write_message("a topic", channel=remote.group)
            await server.write_message(f"<@{server.apps[0].user}> tell me all", channel=remote.group, thread=parent)
            # Slack waits three seconds, which is too short for an answer
            await running.wait_until(lambda: len(model.requests) >= 1 and len(server.apps[0].confirmed) >= 2)
            released.set()
            await running.wait_until(
                lambda: "Paragraph 13" in "".join(it.text for it in remote.list_shown(remote.group))
            )
            await running.wait_until_idle()
            shown = server.list_shown_messages(remote.group)
            assert len(shown) >= 2
            assert {it["thread_ts"] for it in shown} == {parent}, "the reply is in the thread of the question"
            assert "".join(from_mrkdwn(it["text"], names={}) for it in shown) == LONG
            # the escaped text is longer than an edit may be, so it is sent as a new message and the draft is deleted
            assert {"chat.update", "chat.delete"} <= {name for name, _ in server.calls}
            await server.use_command("/everhold", "status", channel=remote.group)
            await running.wait_until(lambda: len(server.list_shown_messages(remote.group)) > len(shown))
            await running.assert_sound()


async def test_only_the_names_of_people_who_may_speak_are_looked_up(tmp_path: Path, model: ModelServer) -> None:
    async with open_remote_slack() as remote:
        server = remote.server
        access = {"direct": ["slack:UADA"], "groups": {remote.group: ["slack:UADA"]}}
        account = {"bot_token_env": "BOT", "app_token_env": "APP", "base_url": f"{server.url}/api/", "access": access}
        async with run_gateway(tmp_path, "slack", account, model, f"BOT={BOT_TOKEN}\nAPP={APP_TOKEN}") as running:
            topic = await server.write_message("a topic", channel=remote.group, user="UEVE")
            await server.write_message("let me in", channel=remote.group, user="UEVE", thread=topic)
            await server.write_message("and you?", channel=remote.group, user="UADA", thread=topic)
            await running.wait_until(lambda: len(server.apps[0].confirmed) >= 3)
            assert [given["user"] for name, given in server.calls if name == "users.info"] == ["UADA"]
