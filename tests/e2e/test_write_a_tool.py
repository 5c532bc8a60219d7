"""The package of docs/how-to/write-a-tool.md, installed as the page says, answers a call and explains a wrong one."""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from pathlib import Path

import pytest

from everhold.core.entries import Returned, ToolCall
from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.e2e.running_gateway import KEY, RunningGateway, make_model_section

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-tool.md"


def install_package(folder: Path) -> None:
    """Write the files of the page, and what pip would add."""
    blocks = dict(re.findall(r"```(toml|python)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    project = tomllib.loads(blocks["toml"])["project"]
    (folder / "everhold_weather.py").write_text(blocks["python"])
    info = folder / "everhold_weather-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = [f"{name} = {target}" for name, target in project["entry-points"]["everhold.tools"].items()]
    (info / "entry_points.txt").write_text("[everhold.tools]\n" + "\n".join(lines) + "\n")


async def test_the_tool_of_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    package.mkdir()
    install_package(package)
    monkeypatch.syspath_prepend(str(package))
    importlib.invalidate_caches()
    calls = (
        ToolCall(id="a", tool="weather", arguments={"place": "Rome"}),
        ToolCall(id="b", tool="weather", arguments={"place": 7}),
    )
    async with ModelServer(key=KEY) as model:
        model.add_steps(ModelServerReply(calls=calls), ModelServerReply(text="It is sunny."))
        config = {
            "models": {"m": make_model_section(model.openai)},
            "defaults": {"memories": [], "model": "m"},
            "agents": {"main": {"tools": ["memory", "weather"]}},
            "tools": {"weather": {"unit": "°C"}},
        }
        async with RunningGateway(tmp_path / "home", json.dumps(config), env=f"MODEL_KEY={KEY}\n") as running:
            verdict = await running.send_message("how is the weather in Rome?")
            assert await running.wait_for_replies(verdict.session) == ["It is sunny."]
            right, wrong = await running.read_bodies(verdict.session, Returned)
            await running.assert_sound()
    assert (right.text, right.error) == ("sun, 19 °C", False)
    assert (wrong.text, wrong.error) == ("there is no weather of '7' (ask for Oslo or Rome)", True)
