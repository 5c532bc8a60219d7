"""hermes-agent's own plug-ins, as they come from PyPI, in an environment of their own."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from everhold.ports.tool import ToolContext

from .stage import STAMP, Stage, batch, exchange, note, query

BUNDLED = ("byterover", "hindsight", "holographic", "honcho", "mem0", "openviking", "retaindb", "supermemory")
THIRD_PARTIES = {
    "yantrikdb-hermes-plugin": "yantrikdb",
    "harness-memory-hermes": "harness",
    "mnemosyne-hermes": "mnemosyne",
    "luminary-memory": "luminary",
}
"""Packages that were tried; what each registers itself as is found by asking."""

pytestmark = [pytest.mark.prove, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with hermes-agent 0.19.0."""
    directory = tmp_path_factory.mktemp("hermes-agent")
    venv.create(directory, with_pip=True)
    python = directory / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "hermes-agent==0.19.0"], check=True, timeout=800)
    return python


def at(python: Path, name: str) -> str:
    code = f"import importlib.util as u; print(u.find_spec('plugins.memory').submodule_search_locations[0] + '/{name}')"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("name", BUNDLED)
async def test_each_of_them_loads_unmodified(tmp_path: Path, python: Path, name: str) -> None:
    from everhold.errors import Transient

    async with Stage(tmp_path).open(path=at(python, name), python=str(python)) as plugin:
        try:
            await plugin._host.start()
        except Transient as error:
            assert "not available" in str(error), "without its key or service it says so, and gets nothing"
        assert plugin._host.card["name"]
        assert plugin._host.card["tools"]


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
