"""`everhold` with a planted bug: a host that drains still says that it is ready."""

from __future__ import annotations

import sys

from everhold.app import GatewayApp
from everhold.cli import main


def _explain_nothing(app: GatewayApp) -> str:
    return ""


if __name__ == "__main__":
    GatewayApp._explain_not_accepting = _explain_nothing  # type: ignore[assignment, method-assign]
    sys.exit(main())
