"""One test suite per port, shipped for other implementations of the port. The gateway never imports it."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from everhold.testing.contracts.memory import MemoryContract as MemoryContract

for suite in (
    "memory",
    "platform",
    "platform_harness",
    "store_scenario",
    "store",
    "store_cursors",
    "store_log",
    "store_operations",
    "store_state",
):
    pytest.register_assert_rewrite(f"{__name__}.{suite}")


def __getattr__(name: str) -> object:
    if name == "MemoryContract":
        from everhold.testing.contracts.memory import MemoryContract  # not before its asserts are rewritten

        return MemoryContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
