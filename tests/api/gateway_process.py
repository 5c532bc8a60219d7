"""Runs a gateway in its own process, which tests can kill."""

from __future__ import annotations

from pathlib import Path

from everhold.testing.kill.gateway import KillableGateway
from tests.api.conftest import SECRETS


class GatewayProcess(KillableGateway):
    """Runs `everhold up` on one home and port, repeatedly."""

    def __init__(self, path: Path, configuration: str) -> None:
        super().__init__(path / "home", configuration, secrets=SECRETS)

    def peak_bytes(self) -> int:
        """Return the peak memory of the process."""
        assert self.process is not None
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
