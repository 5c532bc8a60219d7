"""hermes-agent's own plug-ins, as they come from PyPI, in an environment of their own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from everhold.errors import Transient
from everhold.ports.tool import ToolContext
from everhold.testing.services.hindsight import HindsightService
from everhold.testing.services.honcho import HonchoService

from .stage import STAMP, Stage, batch, eventually, exchange, note, query

BUNDLED = ("byterover", "hindsight", "holographic", "honcho", "mem0", "openviking", "retaindb", "supermemory")
pytestmark = [pytest.mark.prove, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with hermes-agent 0.19.0."""
    directory = tmp_path_factory.mktemp("hermes-agent")
    venv.create(directory, with_pip=True)
    python = directory / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "hermes-agent==0.19.0", "honcho-ai", "hindsight-client"],
        check=True,
        timeout=800,
    )
    return python


def at(python: Path, name: str) -> str:
    code = f"import importlib.util as u; print(u.find_spec('plugins.memory').submodule_search_locations[0] + '/{name}')"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("name", BUNDLED)
async def test_each_of_them_loads_unmodified(tmp_path: Path, python: Path, name: str) -> None:
    """Without its key or its service one says that it is not available, and gets nothing; but it is there."""
    async with Stage(tmp_path).open(path=at(python, name), python=str(python)) as plugin:
        with contextlib.suppress(Transient):
            await plugin._host.start()
        assert plugin._host.card["name"], plugin._host.problem
        assert plugin._host.card["tools"]


async def test_honcho_loses_nothing_that_is_said_while_it_gets_ready(tmp_path: Path, python: Path) -> None:
    """Alone it drops every turn until its session is made in the background."""
    async with HonchoService() as service:
        stage = Stage(tmp_path)
        stage.home.mkdir()
        known = {"apiKey": "k", "baseUrl": service.url, "enabled": True, "workspace": "w", "peerName": "ada"}
        (stage.home / "honcho.json").write_text(json.dumps(known))
        async with stage.open(path=at(python, "honcho"), python=str(python)) as plugin:
            for number in range(6):
                await plugin.store(batch(exchange(f"turn {number}", key=str(number))))
        said = [row["content"] for row in service.state.messages if row["content"] != "I see."]
    assert said == [f"turn {number}" for number in range(6)]


async def test_hindsight_keeps_what_it_is_told(tmp_path: Path, python: Path) -> None:
    async with HindsightService() as service:
        stage = Stage(tmp_path)
        (stage.home / "hindsight").mkdir(parents=True)
        known = {"mode": "cloud", "api_url": service.url, "api_key": "k", "bank_id": "b"}
        (stage.home / "hindsight" / "config.json").write_text(json.dumps(known))
        async with stage.open(path=at(python, "hindsight"), python=str(python)) as plugin:
            for number in range(4):
                await plugin.store(batch(exchange(f"turn {number}", key=str(number))))

            def kept() -> bool:
                whole = "".join(row["text"] for row in service.state.documents.values())
                return all(f"turn {number}" in whole for number in range(4))

            # its writer loads its client first, and gives up what it has not sent ten seconds after it is shut down
            await eventually(kept, seconds=120)


async def test_holographic_works_on_its_own_store(tmp_path: Path, python: Path) -> None:
    stage = Stage(tmp_path)
    context = ToolContext(session="s", agent="main", op=1, key="k", stamp=STAMP)
    async with stage.open(path=at(python, "holographic"), python=str(python)) as plugin:
        await plugin.store(batch(exchange("My cat is called Mimi."), note("Ada's cat is called Mimi")))
    async with stage.open(path=at(python, "holographic"), python=str(python)) as plugin:
        tools = {tool.spec.name: tool for tool in plugin.tools()}
        fact = {"action": "add", "content": "Mimi is a grey cat", "category": "general"}
        added = await tools["fact_store"].run(fact, context)
        assert not added.error, added.text
        found = await tools["fact_store"].run({"action": "search", "query": "Mimi"}, context)
        assert "grey cat" in found.text
        assert any("Mimi" in it.text for it in await plugin.find(query("Mimi")))
