"""The checks by name, in the order they are run: first what a provider does, then what it does when things go wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from everhold.testing.conformance import doing, failing, keeping
from everhold.testing.conformance.scene import Scene

Check: TypeAlias = Callable[[Scene], Awaitable[None]]

CHECKS: Final[dict[str, Check]] = {
    "basics": doing.basics,
    "duplicates": doing.duplicates,
    "order": doing.order,
    "unicode": doing.unicode,
    "large": doing.large,
    "people": keeping.people,
    "agents": keeping.agents,
    "sessions": keeping.sessions,
    "concurrent-notes": doing.concurrent_notes,
    "capabilities": doing.capabilities,
    "signature": keeping.signature,
    "lost-answer": failing.lost_answer,
    "late-answer": failing.late_answer,
    "outage": failing.outage,
    "slowness": failing.slowness,
    "hanging": failing.hanging,
    "cancellation": failing.cancellation,
    "switch": failing.switch,
    "close": keeping.close,
    "restart": keeping.restart,
    "kill": failing.kill,
    "far-side-outage": failing.far_side_outage,
}
"""The first line of each one's docstring is the promise it stands for."""
