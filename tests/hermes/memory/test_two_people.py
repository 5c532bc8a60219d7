"""Two people use each of hermes-agent's own plug-ins. Nothing that one of them said is shown to the other."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from everhold.core.entries import Stamp
from everhold.errors import Refused, Transient
from everhold.hermes.memory import homes
from everhold.hermes.memory.provider import HermesMemory
from everhold.ports.memory import MemoryCapability, MemoryQuery
from everhold.ports.tool import ToolContext
from tests.waiting import wait_until

from .harness import HermesPluginHarness, make_batch, make_exchange, make_note
from .plugin_services import serve_plugin
from .test_bundled import find_plugin, python as python

HERMES_AGENT = "hermes-agent==0.19.0"
ADA = Stamp(person="ada", audience=("person:ada",), address="agent:main:http:dm:ada")
BOB = Stamp(person="bob", audience=("person:bob",), address="agent:main:http:dm:bob")
GROUP = Stamp(person="bob", audience=("chat:agent:main:telegram:group:g",), address="agent:main:telegram:group:g")
PIN = "zq4711zq"


READING: dict[str, list[dict[str, Any]]] = {
    "fact_store": [{"action": "list"}, {"action": "search", "query": "pin"}],
    "honcho_search": [{"query": "what is the pin"}],
    "honcho_context": [{}],
    "honcho_profile": [{}],
    "honcho_reasoning": [{"query": "what is the pin"}],
    "honcho_conclude": [{"list": True}],
    "hindsight_recall": [{"query": "what is the pin"}],
    "hindsight_reflect": [{"query": "what is the pin"}],
    "mem0_search": [{"query": "what is the pin"}],
    "supermemory_search": [{"query": "what is the pin"}],
    "supermemory_profile": [{}],
    "brv_query": [{"query": "what is the pin"}],
    "brv_status": [{}],
    "retaindb_search": [{"query": "what is the pin"}],
    "retaindb_context": [{"query": "what is the pin"}],
    "retaindb_profile": [{}],
    "retaindb_list_files": [{}],
    "viking_search": [{"query": "what is the pin"}],
    "viking_browse": [{"action": "list", "path": "viking://"}, {"action": "tree", "path": "viking://"}],
}


@pytest.fixture(scope="module")
def holographic(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the directory of the plug-in, from the wheel on a package index. It needs no other package."""
    assert pytestconfig.cache is not None
    kept = pytestconfig.cache.mkdir("hermes-agent-0.19.0") / "holographic"
    if not kept.exists():
        folder = tmp_path_factory.mktemp("wheel")
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), HERMES_AGENT]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        wheels = list(folder.glob("*.whl"))
        if not wheels:
            pytest.skip(f"{HERMES_AGENT} cannot be downloaded: {done.stderr[-200:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            wheel.extractall(folder, [it for it in wheel.namelist() if it.startswith("plugins/memory/holographic/")])
        with contextlib.suppress(OSError):  # another worker was faster
            (folder / "plugins" / "memory" / "holographic").rename(kept)
    return str(kept)


async def tell(plugin: HermesMemory, stamp: Stamp, text: str) -> None:
    name = stamp.address.replace(":", "-")
    note = structs.replace(make_note(f"Noted: {text}", key=f"n{name}"), stamp=stamp, session=stamp.address)
    item = make_exchange(text, stamp=stamp, session=stamp.address, key=f"k{name}")
    while True:
        try:
            await plugin.store(make_batch(item, note, name=name))
        except Transient as error:  # on a busy machine the canary takes longer than a call waits for it
            if "being tested" not in str(error):
                raise
        else:
            return


async def show(plugin: HermesMemory, stamp: Stamp) -> str:
    """Return what the plug-in shows to a person: recall, search without a session, tools, prompt block.

    A plug-in has no export, so `everhold memory export` asks it for nothing.
    """
    assert MemoryCapability.EXPORT not in plugin.capabilities
    name = stamp.address.replace(":", "-")
    query = MemoryQuery(
        text="what is the pin?", agent="main", session=stamp.address, name=name, audience=stamp.audience,
        person=stamp.person, stamp=stamp,
    )  # fmt: skip
    found = [it.text for _ in range(2) for it in await plugin.find(query)]
    found += [it.text for it in await plugin.find(structs.replace(query, name="", session="", stamp=Stamp()))]
    context = ToolContext(session=stamp.address, agent="main", op=1, key="k", stamp=stamp)
    for tool in plugin.tools():
        for arguments in READING.get(tool.spec.name, ()):
            found.append((await tool.run(arguments, context)).text)
    return "\n".join((*found, plugin.prompt()))


async def check_two_people(harness: HermesPluginHarness, **settings: Any) -> bool:
    """Let two people and a group use a plug-in. Return whether others than the owner are served."""
    settings = {"serves": "checked", "deadline_seconds": 120, **settings}
    async with harness.open("ada", **settings) as plugin:
        await tell(plugin, ADA, f"My pin for the alarm is {PIN}, please keep it")
        served = True
        for stamp in (BOB, GROUP):
            try:
                await tell(plugin, stamp, "I would like to know what the pin is")
            except Refused:
                served = False
    async with harness.open("ada", **settings) as plugin:  # its tools and prompt block are known by now
        assert plugin.tools()

        async def does_the_owner_see_it() -> bool:
            return PIN in await show(plugin, ADA)

        await wait_until(does_the_owner_see_it)  # a service may need some time until it shows anything
        for _ in range(2):
            for stamp in (BOB, GROUP):
                assert PIN not in await show(plugin, stamp)
        health = await plugin.health()
        assert health.healthy == served, health.text
        assert served or "in a test it showed one person's words to another" in health.text, health.text
    return served


async def test_holographic_keeps_two_people_apart(tmp_path: Path, holographic: str) -> None:
    """It ignores users and keeps one SQLite file per home."""
    assert await check_two_people(HermesPluginHarness(tmp_path), path=holographic)


async def test_a_database_that_all_homes_share_is_found(tmp_path: Path, holographic: str) -> None:
    """The plug-in's own settings may name one file for all homes."""
    pytest.importorskip("yaml", reason="the plug-in reads its settings with pyyaml")
    harness = HermesPluginHarness(tmp_path)
    harness.home.mkdir()
    shared = {"plugins": {"hermes-memory-store": {"db_path": str(tmp_path / "all.db")}}}
    (harness.home / "config.yaml").write_text(json.dumps(shared))
    # only without a sandbox it can write outside of its home
    assert not await check_two_people(harness, path=holographic, sandbox="none")


async def test_a_shared_home_of_holographic_is_noticed(
    tmp_path: Path, holographic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: one home for everybody."""
    monkeypatch.setattr(homes, "choose_home_key", lambda stamp: "shared")
    with pytest.raises(AssertionError):
        await check_two_people(HermesPluginHarness(tmp_path), path=holographic, hermes_home="")


CASES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "honcho": ("honcho", {}, True),
    "honcho, one peer": ("honcho", {"pinUserPeer": True, "peerName": "ada"}, False),
    "hindsight, one bank": ("hindsight", {"bank_id": "b"}, False),
    "hindsight, a bank per user": ("hindsight", {"bank_id_template": "b-{user}"}, True),
    "mem0": ("mem0", {}, True),
    "supermemory": ("supermemory", {}, False),
    "retaindb": ("retaindb", {}, True),
    "openviking": ("openviking", {}, False),
    "byterover": ("byterover", {}, True),
}
"""Name, the plug-in's own configuration, and whether others than the owner are served."""


@pytest.mark.prove
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
async def test_a_bundled_plugin_keeps_two_people_apart_or_serves_one(tmp_path: Path, python: Path, case: str) -> None:
    name, given, served = CASES[case]
    harness = HermesPluginHarness(tmp_path)
    async with serve_plugin(harness.home, name, **given) as more:
        settings = {"path": find_plugin(python, name), "python": str(python), **more}
        assert await check_two_people(harness, **settings) == served


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_two_people_use_every_plugin_that_hermes_agent_has(python: Path) -> None:
    """Holographic has tests of its own, above."""
    folder = Path(find_plugin(python, ""))
    bundled = {it.parent.name for it in folder.glob("*/plugin.yaml")}
    assert bundled == {"holographic", *(name for name, _, _ in CASES.values())}
