"""The documentation about providers is correct: the 40 lines work, and every test it names exists."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from everhold.infra.plugins import MEMORY_PLUGINS
from everhold.ports.memory import MemoryCapability
from everhold.testing.conformance import CHECKS, run_checks_virtually
from everhold.testing.plugin_context import make_plugin_context

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to" / "write-a-provider.md"
REFERENCE = ROOT / "docs" / "reference" / "memory-providers.md"
EXPLANATION = ROOT / "docs" / "explanation" / "how-memory-works.md"
SKELETON = ROOT / "src" / "everhold" / "cli" / "skeleton" / "memory" / "provider.py.txt"


def test_the_provider_of_40_lines_passes_all_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    code = [line for line in blocks[0].splitlines() if line.strip()]
    body = [line for line in code if not line.startswith(("import", "from"))]
    assert len(body) <= 40
    (tmp_path / "forty_lines.py").write_text(blocks[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("forty_lines", None)
    from forty_lines import Notebook, Settings  # type: ignore[import-not-found]

    outcomes = run_checks_virtually(
        lambda agent, path: Notebook(Settings(), make_plugin_context(agent=agent, directory=path)), tmp_path
    )
    assert [(it.check, it.reason) for it in outcomes if it.state == "failed"] == []
    assert sum(it.state == "passed" for it in outcomes) == len(CHECKS) - 3


def test_the_page_states_the_number_of_checks() -> None:
    assert f"{len(CHECKS)} checks" in HOW_TO.read_text()


@pytest.mark.parametrize("page", [REFERENCE, EXPLANATION], ids=["reference", "explanation"])
def test_every_test_named_in_the_table_exists(page: Path) -> None:
    named = set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", page.read_text()))
    assert len(named) >= 12
    for file, test in sorted(named):
        there = [path for path in ROOT.glob(f"tests/**/{file}") if f"def {test}(" in path.read_text()]
        assert there, f"{file}::{test}"


def test_every_row_of_the_table_names_a_test() -> None:
    _, _, table = REFERENCE.read_text().partition("## When each is called")
    rows = [
        line for line in table.partition("\n## ")[0].splitlines() if line.startswith("| ") and "| when |" not in line
    ]
    assert len(rows) >= len(MemoryCapability)
    assert [row for row in rows if not re.search(r"`test_\w+\.py::test_\w+`", row)] == []


def test_every_capability_is_in_the_table() -> None:
    text = REFERENCE.read_text()
    assert [it for it in MemoryCapability if f"`{it}`" not in text and f"`{it}(" not in text] == []


@pytest.mark.parametrize("provider", ["honcho", "hindsight", "mem0", "supermemory"])
def test_a_provider_s_page_names_its_settings_with_their_defaults(provider: str) -> None:
    shared_settings = {"retain_every_n_turns": 1}
    fields = MEMORY_PLUGINS.load(provider).Settings.model_fields
    page = (ROOT / "docs" / "how-to" / f"memory-{provider}.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ([^|]*) \|[^|\n]*\|$", page, re.MULTILINE)
    named = 0
    for names, defaults in rows:
        settings = re.findall(r"`(\w+)`", names)
        shown_defaults = defaults.strip().strip("`").split(", ")
        for name, default in zip(settings, shown_defaults, strict=False):
            assert name in fields or name in shared_settings, f"{provider} has no setting {name}"
            actual = fields[name].default if name in fields else shared_settings[name]
            if default and default != "all":
                shown = f"{actual:g}" if isinstance(actual, float) else json.dumps(actual).strip('"')
                assert default == shown, f"{provider}.{name} is {shown}, and the page says {default}"
            named += 1
    assert named >= 5
