from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command_home import make_plugin


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_plugin(tmp_path_factory.mktemp("plugin"))
