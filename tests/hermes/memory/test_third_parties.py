"""Plug-ins by other authors for hermes-agent, from PyPI, unmodified."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from .harness import HermesPluginHarness, make_batch, make_exchange, make_query

PACKAGES = ("luminary-memory", "harness-memory-hermes", "yantrikdb-hermes-plugin", "mnemosyne-hermes")
FOLDERS = ("harnessmemory", "yantrikdb_hermes_plugin")
"""Plug-ins that are a directory to be copied into hermes-agent's plug-ins; the others have an entry point."""

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("third-parties")
    venv.create(directory, with_pip=True)
    python = directory / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return python


def find_plugin(python: Path, name: str) -> str:
    code = f"import importlib.util as u; print(u.find_spec('{name}').submodule_search_locations[0])"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("name", ["luminary", "mnemosyne", *FOLDERS])
async def test_a_third_party_plugin_stores_a_turn_and_recalls_it(tmp_path: Path, python: Path, name: str) -> None:
    path = find_plugin(python, name) if name in FOLDERS else name
    async with HermesPluginHarness(tmp_path).open(path=path, python=str(python), deadline_seconds=120) as plugin:
        await plugin.store(make_batch(make_exchange("My cat is called Mimi and she is grey.")))
        found = await plugin.find(make_query("What is my cat called?"))
        assert plugin._description["tools"]
    if name != "mnemosyne":  # which recalls only what it has consolidated
        assert any("Mimi" in it.text for it in found)
