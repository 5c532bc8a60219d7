"""The command line: one mouth of control. `main` is what the installed `everhold` runs."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. What a command does not need is not imported."""
    import sys

    from everhold.cli.main import run_command

    return run_command(sys.argv[1:] if argv is None else argv)
