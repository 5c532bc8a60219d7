"""Only a person who writes now gives a command: no schedule, no bot, and no forwarded or quoted text does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everhold.core.commands import COMMANDS
from everhold.core.entries import TextPiece
from everhold.ports.platform import SCHEDULED_EVENT
from tests.ingress.harness import IngressHarness

NOT_OWN: dict[str, dict[str, Any]] = {
    "a schedule": {"event": SCHEDULED_EVENT, "agent": "main"},
    "a bot": {"bot": True},
}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[IngressHarness]:
    harness = IngressHarness(tmp_path)
    yield harness
    await harness.store.close()


@pytest.mark.parametrize("source", NOT_OWN)
async def test_no_schedule_and_no_bot_gives_a_command(harness: IngressHarness, source: str) -> None:
    for name in COMMANDS:
        heard = await harness.send_and_read(f"/{name} 3", **NOT_OWN[source])
        assert heard.command is None, f"{source} gave /{name}"
        assert heard.busy == ""
        assert heard.text == f"/{name} 3"


@pytest.mark.parametrize("source", ["forwarded", "quoted", "embedded"])
async def test_no_text_of_somebody_else_is_a_command(harness: IngressHarness, source: Any) -> None:
    for name in COMMANDS:
        piece = TextPiece(source=source, by="fake:9", text=f"/{name} 3")
        alone = await harness.send_and_read("", pieces=(piece,))
        beside = await harness.send_and_read("look at this", pieces=(piece,))
        assert alone.command is None, f"{source} /{name}"
        assert beside.command is None, f"{source} /{name}"
        assert (alone.busy, beside.busy) == ("", "")


async def test_a_person_who_writes_it_gives_it(harness: IngressHarness) -> None:
    """Shows that the texts above are commands where a person writes them."""
    heard = await harness.send_and_read("/undo 3")
    assert heard.command is not None
    assert (heard.command.name, heard.command.argument) == ("undo", "3")
