"""The checks by name, in the order of their run: first normal use, then failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from everhold.testing.conformance import canary, failures, isolation, storing
from everhold.testing.conformance.scenario import ProviderScenario

ConformanceCheck: TypeAlias = Callable[[ProviderScenario], Awaitable[None]]

CHECKS: Final[dict[str, ConformanceCheck]] = {
    "basics": storing.check_basics,
    "duplicates": storing.check_duplicates,
    "order": storing.check_order,
    "unicode": storing.check_unicode,
    "large": storing.check_large_items,
    "people": isolation.check_people_isolation,
    "canary": canary.check_canary,
    "agents": isolation.check_agent_isolation,
    "sessions": isolation.check_session_names,
    "concurrent-notes": storing.check_concurrent_notes,
    "capabilities": storing.check_capabilities,
    "signature": isolation.check_signature,
    "lost-answer": failures.check_lost_answer,
    "late-answer": failures.check_late_answer,
    "outage": failures.check_outage,
    "slowness": failures.check_slowness,
    "hanging": failures.check_hanging,
    "cancellation": failures.check_cancellation,
    "switch": failures.check_provider_switch,
    "close": isolation.check_close,
    "restart": isolation.check_restart,
    "kill": failures.check_kill,
    "service-outage": failures.check_service_outage,
}
"""The first line of each check's docstring is the promise that it checks."""
