"""Extras: the product names only those that exist, and each brings a package that something imports."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from everhold.infra.extras import describe_install

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_the_install_command_works_in_a_clone() -> None:
    assert describe_install("mcp") == "in your clone of everhold, run: .venv/bin/pip install -e '.[mcp]'"


def test_code_and_documents_name_only_extras_that_exist() -> None:
    for file in (*ROOT.glob("src/everhold/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"):
        text = file.read_text()
        named = [*re.findall(r"describe_install\([\"'](\w+)[\"']\)", text), *re.findall(r"'\.\[(\w+)\]'", text)]
        assert set(named) <= set(EXTRAS), file


def test_no_document_installs_a_release_that_does_not_exist() -> None:
    for file in (*ROOT.glob("src/everhold/**/*.py"), *ROOT.glob("docs/**/*.md"), ROOT / "README.md"):
        assert "install 'everhold[" not in file.read_text(), file


def test_every_extra_is_used_by_a_module() -> None:
    source = "\n".join(file.read_text() for file in ROOT.glob("src/everhold/**/*.py"))
    for extra in EXTRAS.keys() - {"dev", "testing", "embeddings"}:
        assert re.search(rf"describe_install\([\"']{extra}[\"']\)|extra=\"{extra}\"", source), extra
    assert "import onnxruntime" in source
