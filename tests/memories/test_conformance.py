"""Every service passes the conformance suite, with the vendors' clients, in real time.

`EVERHOLD_HINDSIGHT_URL=http://localhost:8888 pytest -m "" tests/memories/test_conformance.py -k Hindsight` uses a real
server instead, with the key in `EVERHOLD_HINDSIGHT_KEY` if it needs one. The other services have corresponding names.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from everhold.infra.plugins import MEMORY_PLUGINS
from everhold.ports.memory import MemoryProvider
from everhold.testing.conformance import CheckOutcome, ProviderScenario
from everhold.testing.conformance.run import run_check
from everhold.testing.contracts.memory import MemoryContract
from everhold.testing.services.base import LoopbackService
from everhold.testing.services.hindsight import HindsightService
from everhold.testing.services.honcho import HonchoService
from everhold.testing.services.mem0 import Mem0Service
from everhold.testing.services.supermemory import SupermemoryService
from tests.memories.memory_items import make_context

IN_PROPORTION = ("lost-answer", "late-answer", "slowness", "hanging", "switch", "kill")
"""Checks whose duration depends on the deadline of a call."""


class ThreadedServiceHarness:
    """Injects faults into a service that runs in its own thread."""

    def __init__(self, service: Any, settings: Mapping[str, Any]) -> None:
        self.service = service
        self.settings = settings

    async def disconnect(self) -> None:
        await self._there(self.service.stop())

    async def reconnect(self) -> None:
        await self._there(self.service.start())

    async def list_stored_texts(self) -> Sequence[str]:
        service = self.service
        if isinstance(service, HonchoService):
            return [*(row["content"] for row in service.state.messages), *service.list_conclusion_texts()]
        if isinstance(service, HindsightService):
            return [row["text"] for row in service.state.documents.values()]
        texts: list[str] = service.texts()
        return texts

    async def _there(self, work: Any) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.service.loop))


@pytest.mark.slow
class _ServiceContract(MemoryContract):
    provider: ClassVar[str]
    service: ClassVar[type[LoopbackService]]
    more: ClassVar[dict[str, Any]] = {}

    module: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _serve(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setenv("MEM0_TELEMETRY", "False")
        monkeypatch.setenv("MEM0_DIR", str(tmp_path))
        importlib.import_module(self.module)  # the first import takes seconds, which is not tested here
        real = os.environ.get(f"EVERHOLD_{self.provider.upper()}_URL")
        if real:
            key = os.environ.get(f"EVERHOLD_{self.provider.upper()}_KEY", "none")
            self.breaking = ThreadedServiceHarness(None, {"base_url": real, "api_key": key})
            yield
            return
        with self.service().threaded() as service:
            settings = {"base_url": service.url, "api_key": "a-key", "deadline_seconds": 60.0, **self.more}
            self.breaking = ThreadedServiceHarness(service, settings)
            yield

    def make(self, agent: str, directory: Path) -> MemoryProvider:
        factory = MEMORY_PLUGINS.load(self.provider)
        return factory(factory.Settings.model_validate(self.breaking.settings), make_context(directory, agent=agent))

    def harness(self) -> ThreadedServiceHarness | None:
        return self.breaking if self.breaking.service is not None else None

    def _run_check(self, name: str, path: Path) -> CheckOutcome:
        # calls are slow on a busy machine, and a real server may need some time for each item
        seconds = 60.0 if self.breaking.service is None else 4.0 if name in IN_PROPORTION else 30.0
        scenario = ProviderScenario(path, self.make, harness=self.harness(), seconds=seconds, patience=60.0)
        return asyncio.run(run_check(name, scenario, most=600.0))


class TestHoncho(_ServiceContract):
    provider = "honcho"
    module = "honcho"
    service = HonchoService
    more: ClassVar = {"visible_seconds": 1.0}


@pytest.mark.prove
class TestHindsight(_ServiceContract):
    provider = "hindsight"
    module = "hindsight_client"
    service = HindsightService
    more: ClassVar = {"confirm_seconds": 0.5}


@pytest.mark.prove
class TestMem0(_ServiceContract):
    provider = "mem0"
    module = "mem0"
    service = Mem0Service
    more: ClassVar = {"visible_seconds": 1.0, "confirm_seconds": 0.5}


@pytest.mark.prove
class TestSupermemory(_ServiceContract):
    provider = "supermemory"
    module = "supermemory"
    service = SupermemoryService
    more: ClassVar = {"visible_seconds": 1.0, "confirm_seconds": 0.5}
