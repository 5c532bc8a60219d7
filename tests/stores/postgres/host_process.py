"""Runs `driven_host` in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).parents[3]
NOTHING_ELSE: Mapping[str, str] = MappingProxyType({})


class HostProcess:
    """A host in its own process."""

    def __init__(self, url: str, *, prefix: Sequence[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.stores.postgres.driven_host", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment},
        )

    def tell(self, *what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def read_answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        assert isinstance(answer, dict)
        return answer

    def ask(self, *what: str) -> dict[str, Any]:
        self.tell(*what)
        return self.read_answer()

    def end(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0


@contextmanager
def run_host(
    url: str, *, prefix: Sequence[str] = (), environment: Mapping[str, str] = NOTHING_ELSE
) -> Iterator[HostProcess]:
    """Run a host. `prefix` is what starts its Python, and `environment` is added to ours."""
    host = HostProcess(url, prefix=prefix, environment=environment)
    try:
        yield host
        host.end()
    finally:
        host.process.kill()
        host.process.wait()
