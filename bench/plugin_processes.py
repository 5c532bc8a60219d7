"""The cost of a hermes-agent plug-in in its own process: CPU per turn, and memory.

The plug-ins are those of hermes-agent 0.19.0, unmodified, in its own venv, with services on loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from bench.gateway import cpu_seconds
from bench.in_process import MESSAGE, REPLY, SilentLogger, SystemClock, temporary_directory
from bench.losses import SERVICES, World, plugin_home, plugin_path, plugin_python
from bench.table import Row, median
from everhold.core.entries import Stamp
from everhold.hermes.memory.provider import HermesMemory
from everhold.hermes.memory.settings import HermesSettings
from everhold.ports.memory import Exchange, MemoryBatch, MemoryQuery, MemoryUtterance
from everhold.ports.plugin import PluginContext

TURNS = 200
STAMP = Stamp(person="ada", audience=("person:ada",), address="agent:main:telegram:dm:42")
EMPTY = """
from agent.memory_provider import MemoryProvider
class Empty(MemoryProvider):
    name = "empty"
    def is_available(self): return True
    def initialize(self, session_id, **kwargs): pass
    def get_tool_schemas(self): return []
    def prefetch(self, query, *, session_id=""): return ""
    def sync_turn(self, user_content, assistant_content, *, session_id="", messages=None): pass
"""


class ErrorTolerantLogger(SilentLogger):
    """Discards errors too, because a plug-in may log some."""

    def error(self, event: str, /, **fields: object) -> None: ...


def plugin_process_rows(rounds: int) -> list[Row]:
    costs = [asyncio.run(_turns()) for _ in range(rounds)]
    ours, theirs = median([it[0] for it in costs]), median([it[1] for it in costs])
    wall = median([it[2] for it in costs])
    rows = [
        Row(
            what="a turn with a plug-in process: recall and store, CPU of both processes",
            value=ours + theirs,
            unit="ms",
            beside=f"{ours:.2f} ms in the gateway, {theirs:.2f} ms in the plug-in process; {wall:.2f} ms wall",
        )
    ]
    rows += [
        Row(what=f"resident memory of a plug-in process with {name}", value=mb, unit="MB") for name, mb in _residents()
    ]
    return rows


async def _turns() -> tuple[float, float, float]:
    """CPU milliseconds of a turn in this process and in the plug-in process, and its wall time."""
    with temporary_directory() as directory:
        (directory / "empty").mkdir()
        (directory / "empty" / "__init__.py").write_text(EMPTY)
        async with _open(directory, path=str(directory / "empty")) as plugin:
            for number in range(10):
                await _turn(plugin, number)
            assert plugin.pid is not None
            mine, its, began = time.process_time(), cpu_seconds(plugin.pid), time.perf_counter()
            for number in range(TURNS):
                await _turn(plugin, number)
            spent = time.process_time() - mine, cpu_seconds(plugin.pid) - its, time.perf_counter() - began
    ours, theirs, wall = (it / TURNS * 1e3 for it in spent)
    return ours, theirs, wall


async def _turn(plugin: HermesMemory, number: int) -> None:
    """Recall for a turn, then store its exchange."""
    await plugin.find(
        MemoryQuery(
            text=MESSAGE, agent="main", session="s", name="n", audience=STAMP.audience, person="ada", stamp=STAMP
        )
    )
    heard = MemoryUtterance(author="person:ada", text=f"{MESSAGE} {number}", at=1.0, stamp=STAMP)
    said = MemoryUtterance(author="agent:main", text=REPLY, at=2.0, stamp=STAMP)
    item = Exchange(key=str(number), session="s", agent="main", op=1, heard=(heard,), said=(said,), stamp=STAMP)
    await plugin.store(MemoryBatch(name="n", items=(item,)))


def _residents() -> Iterator[tuple[str, float]]:
    """Yield the megabytes of each plug-in process after twenty turns."""
    with temporary_directory() as directory:
        (directory / "empty").mkdir()
        (directory / "empty" / "__init__.py").write_text(EMPTY)
        yield "an empty plug-in", asyncio.run(_measured(directory, path=str(directory / "empty")))
        settings = {"path": plugin_path("holographic"), "python": str(plugin_python())}
        yield "holographic", asyncio.run(_measured(directory / "holographic", **settings))
        for name, kind in SERVICES.items():
            with kind().threaded() as service:
                home = plugin_home(directory / name, name, World(name, service), batch=1)
                settings = {"path": plugin_path(name), "python": str(plugin_python()), "hermes_home": str(home)}
                yield name, asyncio.run(_measured(directory / name, **settings))


async def _measured(directory: Path, **settings: str) -> float:
    async with _open(directory, **settings) as plugin:
        for number in range(20):
            await _turn(plugin, number)
        return _resident_mb(plugin.pid or 0)


def _resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


@contextlib.asynccontextmanager
async def _open(directory: Path, **settings: str) -> AsyncIterator[HermesMemory]:
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    context = PluginContext(
        agent="main",
        instance="it",
        directory=data,
        log=ErrorTolerantLogger(),
        clock=SystemClock(),
        is_owner=lambda who: who == "ada",
    )
    plugin = HermesMemory(HermesSettings.model_validate({"serves": "everybody", **settings}), context)
    try:
        yield plugin
    finally:
        await plugin.close()


if __name__ == "__main__":
    for row in plugin_process_rows(3):
        print(json.dumps({"what": row.what, "value": round(row.value, 2), "unit": row.unit, "beside": row.beside}))
