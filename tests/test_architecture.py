"""Check docs/ARCHITECTURE.md against the code: its files exist, and each of its functions is defined in such a file."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "ARCHITECTURE.md"
SOURCES = (ROOT / "src" / "everhold", ROOT)
FILE = re.compile(r"`((?:\w+/)*\w+\.(?:py|sql))`")
FUNCTION = re.compile(r"`((?:\w+\.)?\w+)\(\)`")


def split_blocks(text: str) -> list[str]:
    """Return the paragraphs, list items and table rows of a page. Files and functions of one block belong together."""
    return [block for block in re.split(r"\n(?=\n|[-|] ?|\d+\. )", text) if block.strip()]


def find_file(name: str) -> Path | None:
    return next((folder / name for folder in SOURCES if (folder / name).is_file()), None)


def find_functions(source: str) -> Iterator[str]:
    """Yield the functions of a module as `name`, and its methods as `Class.name`."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{part.name}"


def find_missing_names(block: str) -> list[str]:
    """List the files of a block that do not exist, and the functions that no file of the block defines."""
    missing: list[str] = []
    defined: set[str] = set()
    for name in FILE.findall(block):
        if (path := find_file(name)) is None:
            missing.append(name)
        elif path.suffix == ".py":
            defined.update(find_functions(path.read_text()))
    return missing + [f"{name}()" for name in FUNCTION.findall(block) if name not in defined]


@pytest.mark.parametrize(
    "block, missing",
    [
        ("`core/retry.py` `retry_delay_seconds()`", []),
        ("`core/retry.py` `retry_never()`", ["retry_never()"]),
        ("`core/no_such_module.py`", ["core/no_such_module.py"]),
        ("`ingress/accept.py` `MessageAcceptor._commit()`", []),
        ("`core/retry.py` `MessageAcceptor._commit()`", ["MessageAcceptor._commit()"]),
    ],
)
def test_a_missing_name_is_found(block: str, missing: list[str]) -> None:
    assert find_missing_names(block) == missing


def test_every_file_and_function_of_the_page_exists() -> None:
    blocks = split_blocks(PAGE.read_text())
    assert [missing for block in blocks for missing in find_missing_names(block)] == []
    assert sum(len(FUNCTION.findall(block)) for block in blocks) >= 60


def test_the_page_locates_at_least_20_things() -> None:
    rows = [line for line in PAGE.read_text().partition("## Where is")[2].splitlines() if line.startswith("| ")]
    assert len(rows) >= 21
    assert [row for row in rows[1:] if not re.search(r"`[^`]+`", row)] == []
