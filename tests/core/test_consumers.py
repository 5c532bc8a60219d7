"""Consumer names are made and parsed in one module, because the store keeps them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import everhold
from everhold.core import consumers
from everhold.core.consumers import (
    ConsumerName,
    backfill_consumer,
    get_reply_parts,
    memory_consumer,
    parse_consumer,
    place_consumer,
    platform_consumer,
)
from everhold.core.entries import Attachment, ChatLocation, Ended, Notified, Said

SINGLE = ("turn", "commands", "compression", "backlinks", "tasks", "review")


def test_stored_consumer_names_do_not_change() -> None:
    names = (consumers.TURN, consumers.COMMANDS, consumers.COMPRESSION, consumers.BACKLINKS, consumers.TASKS)
    assert (*names, consumers.REVIEW) == SINGLE
    assert memory_consumer("honcho") == "memory:honcho"
    assert backfill_consumer("honcho") == "backfill:honcho"
    assert platform_consumer("telegram", "main") == "platform:telegram:main"
    assert place_consumer(ChatLocation(platform="telegram", account="main", chat="7")) == "platform:telegram:main"


@pytest.mark.parametrize(
    "name, parsed",
    [
        *((name, ConsumerName(name)) for name in SINGLE),
        (memory_consumer("a:b"), ConsumerName(consumers.MEMORY, "a:b")),
        (backfill_consumer("a"), ConsumerName(consumers.BACKFILL, "a")),
        (platform_consumer("p", "a:b"), ConsumerName(consumers.PLATFORM, "p:a:b")),
    ],
)
def test_every_created_consumer_name_can_be_parsed(name: str, parsed: ConsumerName) -> None:
    assert parse_consumer(name) == parsed


def test_a_platform_consumer_names_its_account() -> None:
    parsed = parse_consumer(platform_consumer("telegram", "main:2"))
    assert (parsed.platform, parsed.account) == ("telegram", "main:2")


def test_only_replies_and_notices_have_parts() -> None:
    here, file = ChatLocation(platform="p"), Attachment(blob="b")
    assert get_reply_parts(Said(text="a b", to=here, parts=("a", "b"), attachments=(file,))) == (here, ("a", "b", file))
    assert get_reply_parts(Said(text="a", to=here)) == (here, ("a",))
    assert get_reply_parts(Notified(text="a", about="x", to=here)) == (here, ("a",))
    assert get_reply_parts(Notified(text="a", about="x")) == (None, ("a",))
    assert get_reply_parts(Ended()) == get_reply_parts(None) == (None, ())


def test_no_other_module_writes_a_consumer_name() -> None:
    root = Path(everhold.__file__).parent
    own = root / "core" / "consumers.py"
    found = []
    for file in sorted(root.rglob("*.py")):
        if file == own or "testing" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "consumer" and isinstance(node.value, ast.Constant):
                found.append((str(file.relative_to(root)), node.value.value))
            if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
                if str(node.values[0].value).startswith(("memory:", "backfill:", "platform:")):
                    found.append((str(file.relative_to(root)), str(node.values[0].value)))
    # an import wakes no consumer; the command line shows a failing memory by its name
    assert [it for it in found if it not in ALLOWED] == []


ALLOWED = [("hermes/importer/history.py", "import"), ("cli/commands/status.py", "memory:")]
