"""What is asked of every memory provider, as checks that need nothing but Python: `everhold plugin test` runs them.

`everhold.testing.contracts.MemoryContract` is the same as a class for pytest.
"""

from everhold.testing.conformance.checks import CHECKS as CHECKS
from everhold.testing.conformance.run import Outcome as Outcome, run as run, run_virtually as run_virtually
from everhold.testing.conformance.scene import Harness as Harness, Make as Make, Scene as Scene, Skipped as Skipped
