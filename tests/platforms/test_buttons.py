"""Buttons on Telegram, Discord and Slack: a press is the command of whoever pressed it, and is stored before it is
confirmed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everhold.core.entries import Heard, NoticeChoice
from everhold.testing.contracts.platform import PlatformHarness
from tests.platforms.remote_discord import open_remote_discord
from tests.platforms.remote_slack import open_remote_slack
from tests.platforms.remote_telegram import open_remote_telegram
from tests.platforms.test_slack_events import open_remote_slack_over_http

CHOICES = (
    NoticeChoice(label="Allow once", command="/approve 7K2P4QXM"),
    NoticeChoice(label="Deny", command="/deny 7K2P4QXM"),
)
TEXT = "main asks to run shell\n```\n  command: echo **a** <b> [c](https://example.org)\n```\n"


@pytest.fixture(params=["telegram", "discord", "slack", "slack over HTTP"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PlatformHarness]:
    opens: dict[str, Any] = {
        "telegram": open_remote_telegram,
        "discord": open_remote_discord,
        "slack": open_remote_slack,
        "slack over HTTP": open_remote_slack_over_http,
    }
    async with opens[request.param]() as remote:
        harness = PlatformHarness(remote, tmp_path)
        yield harness
        await harness.close()


async def press(harness: PlatformHarness, label: str) -> Heard:
    """Send a message with buttons to Ada, and press one as Ada; return what was heard."""
    harness.start()
    remote: Any = harness.remote
    await remote.write("hello", to=harness.remote.chat)
    await harness.wait_until_heard("hello")
    text = TEXT * (harness.platform.text_limit // len(TEXT) - 1)
    sent = await harness.platform.send(harness.make_outgoing(text, notice=True, choices=CHOICES))
    await remote.press(label, message=sent, to=harness.remote.chat)

    async def met() -> bool:
        return len(await harness.read_heard()) == 2

    await harness.wait_until(met, what="hearing the press")
    return (await harness.read_heard())[-1]


async def test_a_press_is_the_command_of_whoever_pressed(harness: PlatformHarness) -> None:
    said = await press(harness, "Allow once")
    first = (await harness.read_heard())[0]
    assert said.command is not None
    assert (said.command.name, said.command.argument) == ("approve", "7K2P4QXM")
    assert (said.stamp.person, said.origin.chat) == (first.stamp.person, first.origin.chat)
    assert not said.bot


async def test_a_press_is_confirmed_after_it_is_stored(harness: PlatformHarness) -> None:
    await press(harness, "Deny")
    remote: Any = harness.remote

    async def met() -> bool:
        return bool(remote.count_confirmed_presses() == 1)

    await harness.wait_until(met, what="its being confirmed")


async def test_a_button_without_a_command_of_ours_is_no_message(harness: PlatformHarness) -> None:
    harness.start()
    remote: Any = harness.remote
    await remote.write("hello", to=harness.remote.chat)
    await harness.wait_until_heard("hello")
    odd = (NoticeChoice(label="Odd", command="approve everything"),)
    sent = await harness.platform.send(harness.make_outgoing("odd", choices=odd))
    await remote.press("Odd", message=sent, to=harness.remote.chat)
    await remote.write("behind", to=harness.remote.chat)
    await harness.wait_until_heard("behind")
    assert await harness.read_texts() == ["hello", "behind"]
