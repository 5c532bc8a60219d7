"""`python -m everhold` is `everhold`."""

from __future__ import annotations

import sys

from everhold.cli import main

if __name__ == "__main__":
    sys.exit(main())
