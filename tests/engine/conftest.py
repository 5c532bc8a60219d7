"""A house for every test, awake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from everhold.errors import StoreError
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.store import Change, Step
from everhold.testing.fakes import FakeModel
from everhold.testing.gateway import InProcessGateway


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[InProcessGateway]:
    gateway = InProcessGateway(tmp_path)
    with gateway.run_started():
        yield gateway


class FailingStore:
    """A store that cannot do what is asked of it, until it is `over`."""

    def __init__(self, gateway: InProcessGateway, error: StoreError) -> None:
        assert gateway.process is not None
        self.disk = gateway.process.disk
        self.error = error
        self.over = False
        self.met = 0

    def with_commits(self, *steps: Step) -> FailingStore:
        real = self.disk.commit

        async def commit(change: Change) -> Any:
            if change.step in steps:
                self.meet()
            return await real(change)

        self.disk.commit = commit  # type: ignore[method-assign]  # trouble is below every seam
        return self

    def with_all(self, *methods: str) -> FailingStore:
        for name in methods:
            setattr(self.disk, name, self._failing(getattr(self.disk, name)))
        return self

    def meet(self) -> None:
        if not self.over:
            self.met += 1
            raise self.error

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        async def method(*args: Any, **options: Any) -> Any:
            self.meet()
            return await real(*args, **options)

        return method


class HeldModel(FakeModel):
    """A model that answers when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self._free = asyncio.Event()
        self.text = "at last"

    @property
    def free(self) -> bool:
        return self._free.is_set()

    @free.setter
    def free(self, value: bool) -> None:
        (self._free.set if value else self._free.clear)()

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        self.requests.append(request)
        await self._free.wait()
        return ModelResponse(text=self.text)
