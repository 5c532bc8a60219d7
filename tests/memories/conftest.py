from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from everhold.testing.gateway import InProcessGateway
from tests.memories import ledger
from tests.memories.services import MemoryServices


@pytest.fixture
def ledger_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ledger.LedgerService:
    """A package with the provider `ledger` is installed, and one that must not be imported; nothing happened yet."""
    info = tmp_path / "site" / "everhold_ledger-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: everhold-ledger\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[everhold.memories]\nledger = tests.memories.ledger:factory\nsilent = must_not_be_imported:factory\n"
    )
    (tmp_path / "site" / "must_not_be_imported.py").write_text("raise SystemExit('imported all the same')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    ledger.ledger_service.__init__()  # type: ignore[misc]  # the module's own one is what the provider knows
    return ledger.ledger_service


@pytest.fixture
async def services() -> AsyncIterator[MemoryServices]:
    async with MemoryServices().run() as services:
        yield services


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[InProcessGateway]:
    """A house that has been awake for a second."""
    gateway = InProcessGateway(tmp_path)
    with gateway.run_started():
        gateway.pass_time(1)
        yield gateway
