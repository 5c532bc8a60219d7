"""What every built-in tool keeps to: its description, effect, reach and limits, and errors that help a model."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everhold.app import SystemClock, SystemRandomSource
from everhold.assembly.builtin_toolbox import BuiltinToolbox
from everhold.config import parse_settings
from everhold.core.builtin_tools import BUILTIN_TOOLS, DELEGABLE_TOOLS, find_builtin_tool
from everhold.core.entries import ChatLocation, Stamp
from everhold.core.policy import ToolReach
from everhold.engine.facts import FactCache
from everhold.errors import EverholdError
from everhold.infra.child_process import ChildProcesses
from everhold.ports.tool import SupportsAccess, SupportsReach, Tool, ToolContext, ToolEffect, ToolResult, get_reach
from everhold.tools.attach import AttachTool
from everhold.tools.delegate import DelegateTool
from everhold.tools.memory import build_memory_tools
from everhold.tools.schedule import ScheduleTool
from everhold.tools.search import SessionSearchTool
from everhold.tools.send import SendTool
from everhold.tools.web_search import WebSearchTool
from tests.memories.builtin.index_scenario import ADA, IndexScenario
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandboxes are for Linux")

PURE, PROBE, ONCE = ToolEffect.PURE, ToolEffect.PROBE, ToolEffect.ONCE
OWN, PUBLIC, PRIVATE, CHANGE, OUTSIDE = ToolReach
EXPECTED: dict[str, tuple[ToolEffect, ToolReach, dict[str, Any]]] = {
    "memory": (PURE, OWN, {"action": "add", "target": "memory", "content": "hello"}),
    "remember": (PURE, OWN, {"text": "tea"}),
    "conclude": (PURE, OWN, {"text": "tea"}),
    "session_search": (PURE, OWN, {"query": "tea"}),
    "attach": (PURE, OWN, {}),
    "send": (PURE, OWN, {"to": "agent:other", "text": "hello"}),
    "file_read": (PURE, PRIVATE, {"path": "a.txt"}),
    "file_list": (PURE, PRIVATE, {}),
    "file_search": (PURE, PRIVATE, {"pattern": "a"}),
    "file_write": (PROBE, CHANGE, {"path": "a.txt", "text": "a"}),
    "file_edit": (PROBE, CHANGE, {"path": "a.txt", "old": "a", "new": "b"}),
    "delegate": (PURE, PUBLIC, {"task": "look"}),
    "schedule": (PURE, OWN, {"action": "list"}),
    "skill": (PURE, OWN, {"name": "cook"}),
    "shell": (ONCE, CHANGE, {"command": "true"}),
    "web_fetch": (PURE, PUBLIC, {"url": "https://example.org/"}),
    "web_search": (PURE, PUBLIC, {"query": "tea"}),
}
"""Tool -> its effect, its reach, and arguments of a call that is right."""
MAX_RESULT_CHARS = 250_000
MAX_SPEC_BYTES = 20_000
CONTEXT = ToolContext(
    session="s",
    agent="main",
    op=1,
    key="s:1:1:c",
    stamp=Stamp(person="ada", audience=ADA, address="agent:main:fake:dm:1"),
    origin=ChatLocation(platform="fake", account="main", chat="1"),
    said=("hello",),
    speakers=("ada",),
)


class OwnSearch:
    name = "own"

    async def search(self, query: str, *, count: int) -> list[Any]:
        return []


async def fetch(url: str) -> Any:
    raise EverholdError("there is no network here", remedy="ask later")


@pytest.fixture
async def tools(tmp_path: Path) -> AsyncIterator[dict[str, Tool]]:
    index = IndexScenario(tmp_path / "index", embeddings="table")
    await index.say("tea is ready")
    home = tmp_path / "home"
    skill = home / "skills" / "cook" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: cook\ndescription: How to cook.\n---\nBoil.\n")
    settings = parse_settings("agents: {main: {tools: [files, shell, skill, delegate, web_fetch]}}")
    agent = settings.agents["main"]
    toolbox = BuiltinToolbox(
        home=home,
        store=index.log,
        clock=SystemClock(),
        children=ChildProcesses(home),
        environ=os.environ,
        fetch=fetch,
    )
    await toolbox.refresh_skills([agent])
    await toolbox.probe_machine([agent])
    found: dict[str, Tool] = {}
    for part in toolbox.build_tools(agent).values():
        found |= part
    found |= build_memory_tools(FactCache(index.log))
    found["session_search"] = SessionSearchTool(index.provider("main"), index.log)
    found["attach"] = AttachTool(index.log)
    found["send"] = SendTool("main", ("agent:other",))
    found["schedule"] = ScheduleTool(index.log, SystemClock(), SystemRandomSource(), lambda: datetime.UTC)
    found["web_search"] = WebSearchTool(OwnSearch())
    yield found
    await index.close()


async def run(tool: Tool, arguments: dict[str, Any]) -> ToolResult:
    async with asyncio.timeout(LIMIT_SECONDS):
        return await tool.run(arguments, CONTEXT)


async def test_every_tool_is_here_and_says_what_it_is(tools: dict[str, Tool]) -> None:
    if "shell" not in tools:
        pytest.skip("no sandbox works on this machine")
    parts = {tool.part_of for tool in BUILTIN_TOOLS if tool.part_of} - {"memory"}
    assert set(tools) == set(EXPECTED) == {tool.name for tool in BUILTIN_TOOLS} - parts
    for name, tool in tools.items():
        effect, reach, arguments = EXPECTED[name]
        assert tool.spec.name == name
        assert tool.effect is effect, name
        assert isinstance(tool, SupportsAccess), name
        assert isinstance(tool, SupportsReach) or reach is OWN, name
        assert get_reach(tool, arguments) is reach, name
        assert 0 < tool.deadline <= 660, name
        assert find_builtin_tool(name) is not None, name
    assert set(tools) >= DELEGABLE_TOOLS
    assert not DELEGABLE_TOOLS & {"memory", "remember", "conclude", "send", "schedule", "delegate", "session_search"}


async def test_every_description_is_complete_and_strict(tools: dict[str, Tool]) -> None:
    for name, tool in tools.items():
        spec = tool.spec
        assert len(spec.description) > 30, name
        assert len(json.dumps(spec.parameters)) + len(spec.description) < MAX_SPEC_BYTES, name
        assert spec.parameters["type"] == "object", name
        properties = spec.parameters["properties"]
        assert set(spec.parameters.get("required", ())) <= set(properties), name
        assert set(EXPECTED[name][2]) <= set(properties), name
        for key, value in properties.items():
            assert {"type", "enum", "anyOf"} & set(value), f"{name}.{key} has no type"
        assert spec.parameters.get("additionalProperties") is False, name


CROOKED: list[Any] = [
    None, 3, -1, 1.5, True, "", " ", "\0", "../../etc/passwd", "/", "x" * 300_000, [], {}, [None]
]  # fmt: skip
"""Half surrogate pairs are not among them, because they are taken out of every call before it is recorded."""


async def test_a_wrong_call_gets_an_error_that_says_what_to_do(tools: dict[str, Tool]) -> None:
    """Each argument in turn is wrong, missing, or of another type. Nothing raises anything but our own errors."""
    for name, tool in tools.items():
        right = EXPECTED[name][2]
        calls: list[dict[str, Any]] = [
            {},
            *({key: value for key, value in right.items() if key != left} for left in right),
        ]
        calls += [{**right, key: value} for key in tool.spec.parameters["properties"] for value in CROOKED]
        for arguments in calls:
            if name == "shell" and arguments.get("command") == right["command"] and len(arguments) == 1:
                continue
            shown = f"{name} {str(arguments)[:120]}"
            assert get_reach(tool, arguments) in ToolReach, shown
            answer = await try_call(tool, arguments)
            text = str(answer) if isinstance(answer, EverholdError) else answer.text
            assert text.strip(), shown
            assert len(text) < MAX_RESULT_CHARS, shown
            if isinstance(answer, EverholdError):
                assert answer.remedy or len(answer.message) > 20, f"{shown}: {answer}"
            if isinstance(answer, EverholdError) or answer.error:
                assert len(text) < 5_000, f"{shown}: an error does not repeat a long argument"


async def try_call(tool: Tool, arguments: dict[str, Any]) -> ToolResult | EverholdError:
    try:
        return await run(tool, arguments)
    except EverholdError as error:
        return error


async def test_a_right_call_is_bounded_and_a_pure_one_can_be_repeated(tools: dict[str, Tool]) -> None:
    for name, tool in sorted(tools.items(), key=lambda it: it[0] != "file_write"):
        if name in ("web_fetch", "remember"):
            continue  # the first has no network here, and the second makes a note each time
        first = await run(tool, EXPECTED[name][2])
        assert not first.error, f"{name}: {first.text}"
        assert 0 < len(first.text) < MAX_RESULT_CHARS, name
        if tool.effect is PURE:
            assert (await run(tool, EXPECTED[name][2])).text == first.text, name
        if tool.effect is PROBE:
            assert await tool.probe(CONTEXT) is not None, f"{name} knows that it was done"


class PlantedDelegateTool(DelegateTool):
    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(text=arguments["task"].strip())


async def test_a_planted_tool_that_trusts_its_arguments_is_found(tools: dict[str, Tool]) -> None:
    planted = {"delegate": PlantedDelegateTool(tools["delegate"]._store)}  # type: ignore[attr-defined]
    with pytest.raises((KeyError, AttributeError)):
        await test_a_wrong_call_gets_an_error_that_says_what_to_do(planted)  # type: ignore[arg-type]
