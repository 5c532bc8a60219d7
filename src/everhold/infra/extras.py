"""Optional dependencies (extras), and the sentence that tells a person how to install one."""

from __future__ import annotations


def describe_install(extra: str) -> str:
    """How to install what `extra` brings. There is no release, so everhold is installed from a clone."""
    return f"in your clone of everhold, run: .venv/bin/pip install -e '.[{extra}]'"
