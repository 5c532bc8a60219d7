"""The version before the last migration of the PostgreSQL store, taken from the history of this repository."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
MIGRATIONS = "src/everhold/stores/postgres/migrations"


def find_previous_commit() -> str:
    """Return the newest commit before the last migration; empty if the history is not here."""
    newest = max(file.name for file in (ROOT / MIGRATIONS).glob("*.sql"))
    try:
        added = _run_git("log", "-1", "--diff-filter=A", "--format=%H", "--", f"{MIGRATIONS}/{newest}").decode().strip()
        return _run_git("rev-parse", "--verify", "--quiet", f"{added}^").decode().strip() if added else ""
    except (OSError, subprocess.CalledProcessError):
        return ""


def extract_source(commit: str, directory: Path) -> Path:
    """Write the source of a commit, and return the folder that Python imports from."""
    with tarfile.open(fileobj=io.BytesIO(_run_git("archive", commit, "src"))) as archive:
        archive.extractall(directory, filter="data")
    return directory / "src"


def build_program(source: Path) -> tuple[str, str]:
    """Return what Python is told to run to start everhold from another source."""
    start = "runpy.run_module('everhold', run_name='__main__', alter_sys=True)"
    return "-c", f"import runpy, sys; sys.path.insert(0, {str(source)!r}); {start}"


def _run_git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout
