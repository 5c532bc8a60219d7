"""What is asked of every memory provider, as checks that need nothing but Python: `everhold plugin test` runs them.

`everhold.testing.contracts.MemoryContract` is the same as a class for pytest.
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
