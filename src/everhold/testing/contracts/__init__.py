"""One suite per port, shipped so that a second keeper of a promise can be held to it. Never imported by the gateway."""

import pytest

pytest.register_assert_rewrite("everhold.testing.contracts")
