"""A network namespace that is connected to this machine by one cable, which a test can pull out. It needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE, THERE = "10.213.77.1", "10.213.77.2"


def find_obstacle() -> str:
    if os.getuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and the program ip (iproute2)"
    tried = subprocess.run(["ip", "netns", "add", "everhold-try"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", "everhold-try"], capture_output=True)
    return f"network namespaces cannot be made here: {tried.stderr.strip()}" if tried.returncode else ""


class NetworkNamespace:
    """`HERE` is the address of this machine, seen from inside."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.prefix = ["ip", "netns", "exec", name]
        """What runs a program inside."""
        self._cable = f"ev{os.getpid() % 1_000_000}"

    def open(self) -> None:
        inner = f"{self._cable}i"
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", inner, "netns", self.name)
        _run("ip", "addr", "add", f"{HERE}/30", "dev", self._cable)
        _run("ip", "link", "set", self._cable, "up")
        _run(*self.prefix, "ip", "addr", "add", f"{THERE}/30", "dev", inner)
        _run(*self.prefix, "ip", "link", "set", inner, "up")

    def cut(self) -> None:
        """Lose every packet in both directions. Nobody is told."""
        _run("ip", "link", "set", self._cable, "down")

    def heal(self) -> None:
        _run("ip", "link", "set", self._cable, "up")

    def close(self) -> None:
        subprocess.run(["ip", "link", "del", self._cable], capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)


@contextmanager
def open_namespace() -> Iterator[NetworkNamespace]:
    space = NetworkNamespace(f"everhold-{os.getpid()}")
    try:
        space.open()
        yield space
    finally:
        space.close()


def admit_namespace(data: Path) -> None:
    """Let the server with this data directory accept connections from the namespace."""
    with (data / "pg_hba.conf").open("a") as file:
        file.write(f"host all all {THERE}/32 trust\n")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
