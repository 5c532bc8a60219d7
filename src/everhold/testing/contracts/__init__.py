"""One suite per port, shipped so that a second keeper of a promise can be held to it. Never imported by the gateway."""

import pytest

for suite in ("platform", "platform_desk", "scene", "store", "store_lanes", "store_log", "store_operations"):
    pytest.register_assert_rewrite(f"{__name__}.{suite}")
