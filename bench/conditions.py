"""The conditions of a measurement."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path

import apsw

ROOT = Path(__file__).parent.parent


def conditions() -> str:
    """Describe the machine, the versions and the load, without which the numbers mean little."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC · {os.cpu_count()} CPUs ({_processor()}) · "
        f"{platform.system()} {platform.release()} · Python {platform.python_version()} · "
        f"SQLite {apsw.sqlite_lib_version()} · commit {commit or 'unknown'} · load {load}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
