"""`everhold memory resend NAME --since`: sends items again to a plug-in that lost them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_home import CONFIG, CommandHome, wait_until

PLUGIN = """
import json
from agent.memory_provider import MemoryProvider
from hermes_constants import get_hermes_home

class Diary(MemoryProvider):
    name = "diary"
    def initialize(self, session_id, **kwargs): pass
    def get_tool_schemas(self): return []
    def sync_turn(self, user_content, assistant_content, *, session_id=""):
        with open(get_hermes_home() / "diary.jsonl", "a") as file:
            file.write(json.dumps([session_id, user_content]) + "\\n")
"""


@pytest.fixture
def diary(command_home: CommandHome, tmp_path: Path) -> Path:
    (tmp_path / "diary").mkdir()
    (tmp_path / "diary" / "__init__.py").write_text(PLUGIN)
    memories = f"memories: {{diary: {{provider: hermes-plugin, path: {tmp_path}/diary, hermes_home: {tmp_path}/h}}}}\n"
    (command_home.path / "config.yaml").write_text(CONFIG.replace("memories: []", "memories: [diary]") + memories)
    return tmp_path / "h" / "diary.jsonl"


def lines(diary: Path) -> list[list[str]]:
    return [json.loads(line) for line in diary.read_text().splitlines()] if diary.exists() else []


def account(command_home: CommandHome) -> dict[str, Any]:
    found: dict[str, Any] = command_home.run_in_process("memory", "status", "--json").json["memories"][0]
    return found


def test_resend_sends_lost_items_to_the_memory_again(command_home: CommandHome, diary: Path) -> None:
    command_home.start_gateway()
    for number in range(3):
        command_home.run_in_process("send", f"turn {number}").ok()
    wait_until(lambda: account(command_home)["sent"] == 3)
    status = account(command_home)
    assert (status["delivery"], status["confirmed"], status["unknown"]) == ("unacknowledged", 0, 3)
    assert "3 sent, 0 confirmed by reading back, 3 unknown" in command_home.run_in_process("memory", "status").out
    assert "unacknowledged: 3 sent" in command_home.run_in_process("status").out
    before = lines(diary)
    assert [text for _, text in before] == ["turn 0", "turn 1", "turn 2"]
    diary.unlink()

    dry = command_home.run_in_process("memory", "resend", "diary", "--since", "1h", "--dry-run").ok()
    assert "3 exchanges and notes of 1 session" in dry.out
    assert "may be stored twice" in dry.out
    assert not diary.exists()
    done = command_home.run_in_process("memory", "resend", "diary", "--since", "1h", "--json").ok().json
    assert (done["items"], done["begun"]) == (3, True)
    wait_until(lambda: len(lines(diary)) == 3)
    assert lines(diary) == before


def test_resend_without_a_time_or_a_name_is_refused(command_home: CommandHome, diary: Path) -> None:
    command_home.run("send", "hello").ok()
    assert "--since" in command_home.run_in_process("memory", "resend", "diary").err
    assert "NAME" in command_home.run_in_process("memory", "resend", "--since", "1h").err
    assert command_home.run_in_process("memory", "resend", "nowhere", "--since", "1h").code != 0
    assert "is not a date" in command_home.run("memory", "resend", "diary", "--since", "yesterday").err
    assert (
        command_home.run_in_process("memory", "resend", "diary", "--since", "2020-01-01", "--dry-run", "--json")
        .ok()
        .json["items"]
        <= 1
    )
