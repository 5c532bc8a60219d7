"""The command line. The installed `everhold` runs `main`."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. Only the modules that the command needs are imported."""
    import sys

    from everhold.cli.main import run_command

    return run_command(sys.argv[1:] if argv is None else argv)
