"""Checks that every memory provider must pass. They need only Python; `everhold plugin test` runs them.

`everhold.testing.contracts.MemoryContract` has the same checks as a class for pytest.
"""

from everhold.testing.conformance.checks import CHECKS as CHECKS
from everhold.testing.conformance.run import (
    CheckOutcome as CheckOutcome,
    run_checks as run_checks,
    run_checks_virtually as run_checks_virtually,
)
from everhold.testing.conformance.scenario import (
    CheckSkipped as CheckSkipped,
    MakeProvider as MakeProvider,
    ProviderScenario as ProviderScenario,
    ServiceHarness as ServiceHarness,
)
