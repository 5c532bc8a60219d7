"""Optional dependencies (extras), and how to install them."""

from __future__ import annotations


def describe_install(extra: str) -> str:
    """Return how to install `extra`. There is no release, so everhold is installed from a clone."""
    return f"in your clone of everhold, run: .venv/bin/pip install -e '.[{extra}]'"
