"""`everhold setup tools`: explains the tools, tests them with real calls, and writes nothing if a test fails."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from everhold.cli.commands.setup_tools import TOOL_HELP
from everhold.config import load_settings
from everhold.core.builtin_tools import SELECTABLE_TOOLS
from everhold.infra.home import Home
from everhold.tools import shell
from tests.cli.command_home import CONFIG, CommandHome, CommandResult
from tests.tools.search_services import KEY, SearchServices
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandboxes are for Linux")


@pytest.fixture
def command_home(command_home: CommandHome) -> CommandHome:
    (command_home.path / "config.yaml").write_text("# mine, and it stays\n" + CONFIG)
    return command_home


def list_tools(home: CommandHome) -> list[str]:
    return list(load_settings(Home(home.path), environ=os.environ).agents["main"].tools)


def setup(command_home: CommandHome, *more: str, input: str = "") -> CommandResult:
    """Run the command in this process, because a new process for each would be slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO(input))
        patch.setenv("PYTHONPATH", str(command_home.plugin))
        patch.syspath_prepend(str(command_home.plugin))
        return command_home.run_in_process("setup", "tools", *more)


@contextlib.contextmanager
def run_services() -> Iterator[SearchServices]:
    services, loop = SearchServices(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(services.start(), loop).result(LIMIT_SECONDS)
        yield services
        asyncio.run_coroutine_threadsafe(services.stop(), loop).result(LIMIT_SECONDS)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def test_every_tool_is_explained(command_home: CommandHome) -> None:
    assert set(TOOL_HELP) == set(SELECTABLE_TOOLS)
    before = (command_home.path / "config.yaml").read_bytes()
    done = setup(command_home, "--no-input").ok()
    assert all(f"{name}  {text}" in done.out for name, text in TOOL_HELP.items())
    assert (command_home.path / "config.yaml").read_bytes() == before


def test_tools_are_tested_and_added_and_taken_away(command_home: CommandHome) -> None:
    before = list_tools(command_home)
    done = setup(command_home, "files", "delegate", "--no-input").ok()
    assert "files: a file was written and read" in done.out
    assert list_tools(command_home) == [*before, "files", "delegate"]
    setup(command_home, "files", "--off").ok()
    assert list_tools(command_home) == [*before, "delegate"]
    assert (command_home.path / "config.yaml").read_text().startswith("# mine, and it stays\n")
    setup(command_home, input="memory files\n").ok()
    assert list_tools(command_home) == ["memory", "files"]


def test_a_tool_that_cannot_work_here_is_not_written(
    command_home: CommandHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (command_home.path / "config.yaml").read_bytes()
    monkeypatch.setattr(shell, "SHELL_PATH", "/nowhere/sh")
    done = setup(command_home, "files", "shell", "--no-input")
    assert done.code != 0
    assert "shell: there is no /bin/sh" in done.err
    assert (command_home.path / "config.yaml").read_bytes() == before
    unknown = setup(command_home, "wbe")
    assert unknown.code != 0
    assert "there is: memory" in unknown.err


def test_a_search_service_is_asked_before_its_key_is_written(command_home: CommandHome) -> None:
    with run_services() as services:
        assert "--provider searxng" in setup(command_home, "web_search", "--no-input").err
        brave = ("web_search", "--provider", "brave", "--url", services.url, "--key-stdin")
        assert setup(command_home, *brave, input="wrong-key-0123\n").code != 0
        assert not (command_home.path / ".env").exists()
        done = setup(command_home, *brave, input=f"{KEY}\n").ok()
    assert "brave found https://example.org/1" in done.out
    assert KEY not in done.out + done.err + (command_home.path / "config.yaml").read_text()
    assert f"SEARCH_API_KEY={KEY}" in (command_home.path / ".env").read_text()
    assert "web_search" in list_tools(command_home)
