"""hermes-agent's own plug-ins from PyPI, in their own environment."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from msgspec import structs

from bench import peers
from everhold.errors import Transient
from everhold.ports.memory import MemoryCapability, MemoryScope, SessionSwitch
from everhold.ports.tool import ToolContext
from everhold.testing.services.base import LoopbackService
from everhold.testing.services.hindsight import HindsightService
from everhold.testing.services.honcho import HonchoService
from everhold.testing.services.mem0 import Mem0Service
from tests.waiting import wait_until

from .harness import NAME, STAMP, HermesPluginHarness, make_batch, make_exchange, make_note, make_query

BUNDLED = ("byterover", "hindsight", "holographic", "honcho", "mem0", "openviking", "retaindb", "supermemory")
pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]
PLUGIN_SECONDS = 600.0
"""A safety net. A plug-in loads its client in the background, which takes minutes on a busy machine."""


@pytest.fixture(scope="module")
def python() -> Path:
    """Return an interpreter with hermes-agent 0.19.0; EVERHOLD_HERMES_PYTHON may name one. It is installed once."""
    if given := os.environ.get("EVERHOLD_HERMES_PYTHON"):
        return Path(given)
    clients = ("honcho-ai", "hindsight-client", "mem0ai", "supermemory==3.50.0")
    return peers.install(peers.HERE / ".venv-hermes-clients", ("hermes-agent==0.19.0", *clients))


def find_plugin(python: Path, name: str) -> str:
    code = f"import importlib.util as u; print(u.find_spec('plugins.memory').submodule_search_locations[0] + '/{name}')"
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("name", BUNDLED)
async def test_each_bundled_plugin_loads_unmodified(tmp_path: Path, python: Path, name: str) -> None:
    """Without its key or service, a plug-in loads, reports that it is not available and receives nothing."""
    async with HermesPluginHarness(tmp_path).open(path=find_plugin(python, name), python=str(python)) as plugin:
        async with plugin._pool.borrow(tmp_path / "hermes") as host:
            with contextlib.suppress(Transient):
                await host.start()
            assert host.description["name"], host.problem
            assert host.description["tools"]


async def test_honcho_loses_nothing_while_it_initialises(tmp_path: Path, python: Path) -> None:
    """In hermes-agent it drops every turn until its session exists, which it creates in the background."""
    async with HonchoService() as service:
        harness = HermesPluginHarness(tmp_path)
        harness.home.mkdir()
        known = {"apiKey": "k", "baseUrl": service.url, "enabled": True, "workspace": "w", "peerName": "ada"}
        (harness.home / "honcho.json").write_text(json.dumps(known))
        async with harness.open(path=find_plugin(python, "honcho"), python=str(python), deadline_seconds=600) as plugin:
            for number in range(6):
                await plugin.store(make_batch(make_exchange(f"turn {number}", key=str(number))))
            # it sends in the background, and drops what is unsent some seconds after the shutdown
            await wait_until(lambda: len(list_said(service)) >= 6)
        assert list_said(service) == [f"turn {number}" for number in range(6)]


def list_said(service: HonchoService) -> list[str]:
    return [row["content"] for row in service.state.messages if row["content"] != "I see."]


async def test_hindsight_stores_what_it_receives(tmp_path: Path, python: Path) -> None:
    async with HindsightService() as service:
        harness = HermesPluginHarness(tmp_path)
        (harness.home / "hindsight").mkdir(parents=True)
        known = {"mode": "cloud", "api_url": service.url, "api_key": "k", "bank_id": "b"}
        (harness.home / "hindsight" / "config.json").write_text(json.dumps(known))
        async with harness.open(
            path=find_plugin(python, "hindsight"), python=str(python), deadline_seconds=600
        ) as plugin:
            for number in range(4):
                await plugin.store(make_batch(make_exchange(f"turn {number}", key=str(number))))

            def kept() -> bool:
                whole = "".join(row["text"] for row in service.state.documents.values())
                return all(f"turn {number}" in whole for number in range(4))

            # its writer loads its client first, and drops unsent items ten seconds after the shutdown
            await wait_until(kept)


def write_plugin_config(home: Path, name: str, service: LoopbackService) -> None:
    """The plug-in's own configuration, as in a home of hermes-agent."""
    (home / "hindsight").mkdir(parents=True)
    known = {
        "honcho": ("honcho.json", {"apiKey": "k", "baseUrl": service.url, "enabled": True, "workspace": "w"}),
        "hindsight": (
            "hindsight/config.json",
            # by default it recalls only what the server has consolidated, and the test service consolidates nothing
            {
                "mode": "cloud",
                "api_url": service.url,
                "api_key": "k",
                "bank_id": "b",
                "recall_types": ["world", "experience"],
            },
        ),
        "mem0": ("mem0.json", {"mode": "platform", "host": service.url, "api_key": "k"}),
    }
    file, given = known[name]
    (home / file).write_text(json.dumps(given))


def list_stored_texts(service: LoopbackService) -> list[str]:
    match service:
        case HonchoService():
            return [row["content"] for row in service.state.messages]
        case HindsightService():
            return [row["text"] for row in service.state.documents.values()]
        case _:
            return [row["memory"] for row in service.state.memories.values()]


SERVICES = {"honcho": HonchoService, "hindsight": HindsightService, "mem0": Mem0Service}
ASKS = {
    "honcho": ("honcho_search", {"query": "grey cat Mimi"}),
    "hindsight": ("hindsight_recall", {"query": "grey cat Mimi"}),
    "mem0": ("mem0_search", {"query": "grey cat Mimi"}),
}
TALK = (
    "My grey cat is called Mimi and sleeps under the stove",
    "The train to Vienna leaves at seven from platform nine",
    "My sister Greta keeps bees on the roof of her house",
)


@pytest.mark.parametrize("name", sorted(SERVICES))
async def test_a_plugin_runs_through_its_whole_life_cycle(tmp_path: Path, python: Path, name: str) -> None:
    """Turns, a search by the model, recall, a switch, a note and the shutdown, against the plug-in's own service."""
    # on loopback honcho's plug-in sends no key
    async with SERVICES[name](key=None if name == "honcho" else "k") as service:
        harness = HermesPluginHarness(tmp_path)
        write_plugin_config(harness.home, name, service)
        here = MemoryScope(agent="main", session="s", name=NAME, person="ada")
        there = MemoryScope(agent="main", session="t", name="agent-main-telegram-dm-43", person="ada")
        context = ToolContext(session="s", agent="main", op=1, key="k", stamp=STAMP)

        def kept(count: int) -> bool:
            return all(any(text in one for one in list_stored_texts(service)) for text in TALK[:count])

        settings = {"path": find_plugin(python, name), "python": str(python), "deadline_seconds": 600}
        async with harness.open(**settings) as plugin:
            for number, text in enumerate(TALK[:2]):
                await plugin.store(make_batch(make_exchange(text, key=str(number))))
            await wait_until(lambda: kept(2), seconds=PLUGIN_SECONDS)

            async def is_recalled() -> bool:  # most prepare it after the previous turn
                found = await plugin.find(make_query("When does the train leave?"))
                return any("Vienna" in it.text for it in found)

            if name != "honcho":  # which recalls what it derived, and derives nothing here
                await wait_until(is_recalled, seconds=PLUGIN_SECONDS)
        async with harness.open(**settings) as plugin:  # its capabilities are known by now
            tools = {tool.spec.name: tool for tool in plugin.tools()}
            tool, arguments = ASKS[name]

            async def is_found() -> bool:  # honcho's refuses until it has its session
                answer = await tools[tool].run(arguments, context)
                return not answer.error and "Mimi" in answer.text

            await wait_until(is_found, seconds=PLUGIN_SECONDS)
            if MemoryCapability.SESSION_SWITCHED in plugin.capabilities:
                await plugin.session_switched(SessionSwitch(how="new", before=here, after=there))
            elsewhere = structs.replace(STAMP, address="agent:main:telegram:dm:43")
            await plugin.store(
                make_batch(make_exchange(TALK[2], key="2", session="t", stamp=elsewhere), name=there.name)
            )
            await wait_until(lambda: kept(3), seconds=PLUGIN_SECONDS)
            pid = plugin.pid
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        whole = "\n".join(list_stored_texts(service))
        assert [whole.count(text) for text in TALK] == [1, 1, 1]
        if isinstance(service, HonchoService):
            sessions = [next(r["session_id"] for r in service.state.messages if r["content"] == it) for it in TALK]
            assert sessions == [here.name, here.name, there.name], "each under the name of its own session"


async def test_holographic_works_on_its_own_store(tmp_path: Path, python: Path) -> None:
    harness = HermesPluginHarness(tmp_path)
    context = ToolContext(session="s", agent="main", op=1, key="k", stamp=STAMP)
    async with harness.open(path=find_plugin(python, "holographic"), python=str(python)) as plugin:
        await plugin.store(make_batch(make_exchange("My cat is called Mimi."), make_note("Ada's cat is called Mimi")))
    async with harness.open(path=find_plugin(python, "holographic"), python=str(python)) as plugin:
        tools = {tool.spec.name: tool for tool in plugin.tools()}
        fact = {"action": "add", "content": "Mimi is a grey cat", "category": "general"}
        added = await tools["fact_store"].run(fact, context)
        assert not added.error, added.text
        found = await tools["fact_store"].run({"action": "search", "query": "Mimi"}, context)
        assert "grey cat" in found.text
        assert any("Mimi" in it.text for it in await plugin.find(make_query("Mimi")))
