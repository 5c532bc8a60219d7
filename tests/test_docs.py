"""Links and file names in the documentation exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PROMISES = sorted((ROOT / "docs" / "promises").glob("*.md"))
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    linked = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in linked if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PROMISES, ids=lambda page: page.stem)
def test_every_promise_names_existing_tests(page: Path) -> None:
    named = re.findall(r"`(tests/[^`]+)`", page.read_text().partition("## Tests")[2])
    assert named
    for path in named:
        target = ROOT / path
        tests = [target] if target.is_file() else list(target.rglob("test_*.py"))
        assert tests, path
        assert all("def test_" in test.read_text() for test in tests), path


def test_there_is_a_page_for_every_promise() -> None:
    assert [page.name[0] for page in PROMISES] == list("12345678")


def test_every_decision_is_in_the_list() -> None:
    pages = ROOT / "docs" / "adr"
    listed = LINK.findall((pages / "README.md").read_text())
    assert [page.name for page in sorted(pages.glob("0*.md")) if page.name not in listed] == []
