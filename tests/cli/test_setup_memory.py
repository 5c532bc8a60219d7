"""`everhold setup memory`: asks, tests the memory, writes the configuration, and never shows a key."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from everhold.testing.services.base import LoopbackService
from everhold.testing.services.hindsight import HindsightService
from everhold.testing.services.honcho import HonchoService
from everhold.testing.services.mem0 import Mem0Service
from everhold.testing.services.supermemory import SupermemoryService
from tests.cli.command_home import CONFIG, CommandHome, CommandResult, wait_until

KEY = "canary-0123456789abcdef"
SERVICES: dict[str, type[LoopbackService]] = {
    "hindsight": HindsightService,
    "honcho": HonchoService,
    "mem0": Mem0Service,
    "supermemory": SupermemoryService,
}
PLUGIN = """
import json, os
from agent.memory_provider import MemoryProvider
from hermes_constants import get_hermes_home

class Shy(MemoryProvider):
    name = "shy"
    def _config(self):
        path = get_hermes_home() / "shy.json"
        return json.loads(path.read_text()) if path.exists() else {}
    def is_available(self): return bool(os.environ.get("SHY_TOKEN")) and self._config().get("mode") == "cloud"
    def get_config_schema(self):
        return [{"key": "mode", "description": "Mode", "choices": ["local", "cloud"], "default": "local"},
                {"key": "token", "description": "Shy's token", "secret": True, "required": True, "env_var": "SHY_TOKEN",
                 "url": "https://shy.example/keys", "when": {"mode": "cloud"}},
                {"key": "depth", "description": "How deep", "default_from": {"field": "mode", "map": {"cloud": "3"}}}]
    def save_config(self, values, hermes_home):
        (get_hermes_home() / "shy.json").write_text(json.dumps(values))
    def get_tool_schemas(self): return []
    def initialize(self, session_id, **kwargs): self.session = session_id
    def sync_turn(self, user_content, assistant_content, *, session_id=""):
        with open(get_hermes_home() / "kept.jsonl", "a") as file:
            file.write(json.dumps([user_content, os.environ["SHY_TOKEN"], self._config()]) + "\\n")
"""


@pytest.fixture
def command_home(command_home: CommandHome) -> CommandHome:
    (command_home.path / "config.yaml").write_text("# mine, and it stays\n" + CONFIG)
    return command_home


@contextlib.contextmanager
def run_service(name: str) -> Iterator[LoopbackService]:
    with SERVICES[name](key=KEY).threaded() as service:
        yield service


def setup(command_home: CommandHome, *more: str, input: str = f"{KEY}\n") -> CommandResult:
    """Run the command in this process, because a new process for each would be slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO(input))
        done = command_home.run_in_process("setup", "memory", *more)
    assert KEY not in done.out + done.err
    return done


def config(command_home: CommandHome) -> str:
    return (command_home.path / "config.yaml").read_text()


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_is_tested_written_and_attached_with_next_steps(command_home: CommandHome, name: str) -> None:
    with run_service(name) as service:
        done = setup(command_home, name, "--no-input", "--stdin", "--set", f"base_url={service.url}").ok()
        assert f"{name} answers" in done.out
        assert "everhold up" in done.out
        assert f"everhold memory backfill {name}" in done.out
        assert "attached to: main" in done.out
        assert "the doctor finds no problem" in done.out
        assert "# mine, and it stays" in config(command_home)
        assert f"api_key_env: {name.upper()}_API_KEY" in config(command_home)
        assert f"{name.upper()}_API_KEY={KEY}" in (command_home.path / ".env").read_text()
        again = setup(command_home, name, "--no-input", "--set", "share_agents=true", input="").ok()
        assert f"{name} answers" in again.out, "the key and the address that are there will do"
        assert "share_agents: true" in config(command_home)
        assert config(command_home).count(f"{service.url}") == 1
    check = command_home.run_in_process("config", "get", "defaults.memories", "--json")
    assert json.loads(check.ok().out) == [name]


def test_a_service_that_does_not_answer_is_not_written(command_home: CommandHome) -> None:
    with run_service("honcho") as service:
        before = config(command_home)
        wrong = setup(
            command_home, "honcho", "--no-input", "--stdin", "--set", f"base_url={service.url}", input="nonsense\n"
        )
        assert wrong.code == 1
        gone = setup(command_home, "honcho", "--no-input", "--stdin", "--set", "base_url=http://127.0.0.1:9")
        assert gone.code != 0
        assert (config(command_home), (command_home.path / ".env").exists()) == (before, False)
        asked = setup(
            command_home, "honcho", input=f"nonsense\n{service.url}\n\nyes\n{KEY}\n{service.url}\nhome\n"
        ).ok()
        assert "honcho answers" in asked.out, "and one may try again"
        assert "workspace: home" in config(command_home)
    untried = setup(command_home, "other", "--provider", "honcho", "--no-input", "--no-test", "--no-attach").ok()
    assert "no agent" in untried.out


def test_a_plugin_asks_its_own_questions_and_gets_the_answers(command_home: CommandHome, tmp_path: Path) -> None:
    plugin = tmp_path / "shy"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(PLUGIN)
    flags = ("shy", "--provider", f"hermes-plugin:{plugin}", "--no-input")
    local = setup(command_home, *flags, input="")
    assert local.code != 0
    assert "not available" in local.err, "it was asked whether it can be used"
    assert "hermes-plugin" not in config(command_home)
    assert "one of local, cloud" in setup(command_home, *flags, "--set", "mode=moon").err
    assert "has no setting 'colour'" in setup(command_home, *flags, "--set", "colour=red").err
    assert "token is not given" in setup(command_home, *flags, "--set", "mode=cloud", input="").err
    done = setup(command_home, "shy", "--provider", f"hermes-plugin:{plugin}", input=f"cloud\n{KEY}\n\n").ok()
    assert "https://shy.example/keys" in done.err
    assert "SHY_TOKEN_env: SHY_TOKEN" in config(command_home)
    assert f"SHY_TOKEN={KEY}" in (command_home.path / ".env").read_text()

    command_home.start_gateway()
    command_home.run_in_process("send", "hello").ok()
    (kept,) = [
        *command_home.path.glob("memories/shy/*/kept.jsonl"),
        command_home.path / "memories" / "shy" / "hermes" / "kept.jsonl",
    ][:1]
    wait_until(lambda: kept.exists() and kept.read_text())  # the file exists before its first line
    assert json.loads(kept.read_text()) == ["hello", KEY, {"mode": "cloud", "depth": "3"}]


@pytest.mark.parametrize(
    "more, told",
    [
        (["notes", "--no-input"], "--provider"),
        (["honcho", "--no-input", "--set", "api_key=x"], "cannot be set like this"),
        (["honcho", "--no-input", "--agent", "nobody"], "no agent 'nobody'"),
        (["honcho", "--no-input", "--set", "colour=red"], "colour"),
        (["nothing", "--provider", "nothing", "--no-input"], "nothing"),
        (["notes", "--provider", "hermes-plugin", "--no-input"], "--set path="),
    ],
)
def test_invalid_arguments_are_refused(command_home: CommandHome, more: list[str], told: str) -> None:
    before = config(command_home)
    done = setup(command_home, *more)
    assert done.code != 0
    assert told in done.err
    assert config(command_home) == before


def test_a_memory_can_be_attached_to_one_agent(command_home: CommandHome) -> None:
    with (command_home.path / "config.yaml").open("a") as file:
        file.write("agents: {main: {}, coder: {persona: You write code.}}\n")
    with run_service("hindsight") as service:
        done = setup(
            command_home,
            "work",
            "--provider",
            "hindsight",
            "--agent",
            "coder",
            "--no-input",
            "--stdin",
            "--set",
            f"base_url={service.url}",
            "--json",
        ).ok()
    assert (done.json["agents"], done.json["provider"]) == (["coder"], "hindsight")
    assert "WORK_API_KEY" in done.json["variables"]
