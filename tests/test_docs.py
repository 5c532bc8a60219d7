"""Links and file names in the documentation exist."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PICTURED = [
    ROOT / "docs" / name
    for name in (
        "explanation/whose-memory-is-it.md",
        "how-to/access-and-pairing.md",
        "how-to/forget-a-person.md",
        "how-to/move-from-hermes-agent.md",
    )
]
"""The pages about people, which share one picture."""
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
    assert [page.name[0] for page in PROMISES] == list("123456789")


def test_every_decision_is_in_the_list() -> None:
    pages = ROOT / "docs" / "adr"
    listed = LINK.findall((pages / "README.md").read_text())
    assert [page.name for page in sorted(pages.glob("0*.md")) if page.name not in listed] == []


@pytest.mark.parametrize("page", PICTURED, ids=lambda page: page.stem)
def test_a_page_about_people_shows_the_picture_and_names_existing_tests(page: Path) -> None:
    text = page.read_text()
    assert "(../images/people.svg)" in text
    rows = [line for line in text.partition("## Tests\n")[2].splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 8
    for row in rows:
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", row)
        assert named, f"no test: {row}"
        for file, test in named:
            there = [it for it in ROOT.glob(f"tests/**/{file}") if f"def {test}(" in it.read_text()]
            assert there, f"{file}::{test}"


def test_every_attacker_and_known_mistake_names_existing_tests() -> None:
    text = (ROOT / "docs" / "explanation" / "security.md").read_text()
    attackers, signatures, mistakes = (
        [line for line in part.splitlines() if line.startswith("| ")][1:]
        for part in re.split("## Signatures and interactions|## Known mistakes", text)
    )
    assert (len(attackers), len(signatures), len(mistakes)) == (19, 8, 15)
    for row in (*attackers, *signatures, *mistakes):
        assert re.search(r"`test_\w+\.py::test_\w+`", row), f"no test: {row}"
    for row in attackers:
        planted = row.split("|")[-2]
        assert "::" in planted or "not covered" in planted, f"no planted vulnerability: {row}"
    named = set(re.findall(r"`(test_\w+\.py)::(test_\w+)`", text))
    assert [f"{file}::{test}" for file, test in sorted(named) if not _is_test(file, test)] == []
    assert not _is_test("test_docs.py", "test_that_does_not_exist"), "the check finds something"


def _is_test(file: str, test: str) -> bool:
    """Whether a file of this name has the test, as a function or as a name for one that is made."""
    made = re.compile(rf"^\s*(?:(?:async )?def {test}\(|{test} = )", re.MULTILINE)
    return any(made.search(it.read_text()) for it in ROOT.glob(f"tests/**/{file}"))


def test_the_picture_can_be_read_aloud() -> None:
    picture = ElementTree.parse(ROOT / "docs" / "images" / "people.svg").getroot()
    title, description = (picture.findtext(f"{{http://www.w3.org/2000/svg}}{name}") for name in ("title", "desc"))
    assert title
    assert description
    assert picture.get("aria-labelledby") == "t d"
