"""The reference page matches the settings, and importing the configuration imports no heavy package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from everhold.config.reference import render_reference

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def test_the_reference_page_is_current() -> None:
    remedy = "python -m everhold.config.reference > docs/reference/configuration.md"
    assert PAGE.read_text(encoding="utf-8") == render_reference(), remedy


def test_every_key_is_explained() -> None:
    rows = [line for line in render_reference().splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert all(line.split(" | ")[-1].strip(" |").endswith((".", "?")) for line in rows)


def test_importing_the_configuration_imports_neither_pydantic_nor_yaml() -> None:
    script = "import sys, everhold.config, everhold.infra.home; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pydantic", "ruamel", "ruamel.yaml"} & set(loaded)


def test_every_exported_name_exists() -> None:
    import everhold.config

    for name in everhold.config.__all__:
        assert getattr(everhold.config, name) is not None
    assert callable(everhold.config.load_settings)
    assert callable(everhold.config.show_settings)
