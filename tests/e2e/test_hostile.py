"""A complete gateway with hostile input: no secret leaks, all files are private, and no foreign code runs."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everhold.testing.model_server import ModelServer, ModelServerReply
from everhold.testing.platforms.loopback import LoopbackResponse, LoopbackServer
from everhold.testing.platforms.telegram import TelegramServer
from tests.e2e.running_gateway import KEY, RunningGateway, make_model_section
from tests.platforms import remote_discord as discord, remote_slack as slack, remote_telegram as telegram
from tests.waiting import LIMIT_SECONDS

CANARIES = (telegram.TOKEN, discord.TOKEN, slack.BOT_TOKEN, slack.APP_TOKEN, KEY)
NAMES = ("TELEGRAM", "DISCORD", "BOT", "APP", "MODEL_KEY")
ENV = "".join(f"{name}={value}\n" for name, value in zip(NAMES, CANARIES, strict=True))


def refuse_with_echo(server: LoopbackServer, call: str, status: int, *tokens: str) -> None:
    """Refuse the next such call with an error that repeats the secrets it received."""
    words = f"what is {' '.join(tokens)} to me?"
    told = {"ok": False, "error_code": status, "error": words, "description": words, "message": words, "code": 1}
    server.plan_fault(call, "answer", answer=LoopbackResponse.json(told, status=status))


async def _write(
    text: str, telegram_server: TelegramServer, discord_server: discord.RemoteDiscord, slack_server: slack.RemoteSlack
) -> None:
    await telegram_server.write_message(text)
    await discord_server.write(text, to=discord_server.chat)
    await slack_server.write(text, to=slack_server.chat)


async def test_no_token_is_in_any_file_and_every_file_is_private(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        m = await stack.enter_async_context(ModelServer(key=KEY))
        telegram_server = (await stack.enter_async_context(telegram.open_remote_telegram())).server
        discord_server = await stack.enter_async_context(discord.open_remote_discord())
        slack_server = await stack.enter_async_context(slack.open_remote_slack())
        accounts: dict[str, dict[str, Any]] = {
            "telegram": {"token_env": "TELEGRAM", "base_url": telegram_server.url, "poll_seconds": 1},
            "discord": {"token_env": "DISCORD", "base_url": discord_server.server.api},
            "slack": {"bot_token_env": "BOT", "app_token_env": "APP", "base_url": f"{slack_server.server.url}/api/"},
        }
        platforms = {name: {"main": {**it, "access": {"direct": ["*"]}}} for name, it in accounts.items()}
        config = json.dumps({"models": {"m": make_model_section(m.openai)}, "platforms": platforms})
        m.default = lambda _: ModelServerReply(text="short", stream=False)
        async with RunningGateway(tmp_path, config, env=ENV) as gateway:
            await gateway.wait_until(
                lambda: discord_server.server.identified == 1
            )  # Discord would not deliver an earlier message
            await _write("hello", telegram_server, discord_server, slack_server)
            await gateway.wait_until(
                lambda: bool(
                    telegram_server.list_bot_texts(1001)
                    and discord_server.list_shown(discord_server.chat)
                    and slack_server.list_shown(slack_server.chat)
                )
            )
            await gateway.wait_until_idle()
            refuse_with_echo(telegram_server, "sendMessage", 400, telegram.TOKEN)
            refuse_with_echo(telegram_server, "getUpdates", 502, telegram.TOKEN)
            refuse_with_echo(discord_server.server, "POST messages", 400, discord.TOKEN)
            refuse_with_echo(slack_server.server, "chat.postMessage", 200, slack.BOT_TOKEN, slack.APP_TOKEN)
            await _write("once more", telegram_server, discord_server, slack_server)

            async def refused() -> bool:
                return len(await gateway.app.store.list_dead_letters()) == 3

            await gateway.wait_until(refused)
            await gateway.wait_until_idle()
            about = str(gateway.app.describe())
        assert not [canary for canary in CANARIES if canary in about + gateway.log.getvalue()]
        files = [path for path in gateway.home.path.rglob("*") if path.is_file() and path.name != ".env"]
        assert {"everhold.db", "config.yaml"} <= {path.name for path in files}
        found = [(path.name, canary) for path in files for canary in CANARIES if canary.encode() in path.read_bytes()]
        assert found == []
        modes = {
            path: stat.S_IMODE(path.lstat().st_mode) for path in [gateway.home.path, *gateway.home.path.rglob("*")]
        }
        made = {
            path: oct(mode) for path, mode in modes.items() if path.name != "config.yaml"
        }  # the test wrote that one
        assert {path: mode for path, mode in made.items() if int(mode, 8) & 0o077} == {}


@pytest.mark.parametrize("name", ["sitecustomize.py", "plugins/evil.py", "evil.py", "everhold_evil.py", "yaml.py"])
def test_code_in_a_home_is_not_run(tmp_path: Path, name: str) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / name).parent.mkdir(exist_ok=True, mode=0o700)
    (home / name).write_text(f"open({str(tmp_path / 'run')!r}, 'w').close()\n")
    everhold = Path(sys.executable).with_name("everhold")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    for command in (["config", "check"], ["plugin", "list"], ["send", "hello", "--session", "me"]):
        subprocess.run(
            [everhold, "--home", home, *command],
            cwd=home,
            env=environ,
            capture_output=True,
            timeout=LIMIT_SECONDS,
            check=True,
        )
    assert not (tmp_path / "run").exists()
