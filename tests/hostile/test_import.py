"""The attacker made the home that is imported. `tests/hermes/test_hostile_home.py` has the attacks one by one.

Here several come at once, and planted vulnerabilities are found.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from everhold.hermes.reader import files
from everhold.infra import safe_folder
from everhold.infra.safe_folder import SafeFolder
from tests.hermes.test_hostile_home import PRIVATE, build_alias_bomb, build_home, list_texts
from tests.hermes.test_import import ImportTarget

ALIASES: Final = "a: &a {b: 1}\n" + "c: *a\n" * 100
"""It is harmless, and has more aliases than may be read."""


def play_home(path: Path) -> set[str]:
    """Import a home with a link to a private key, and one with a bomb. Return what the attacker gained."""
    (path / "key").write_text(PRIVATE)
    gains = set()
    home = build_home(path / "there")
    (home / "memories" / "USER.md").symlink_to(path / "key")
    place = ImportTarget(path / "here")
    report = place.run_import(home, owner="telegram:1001")
    assert "question a" in list_texts(place), "the rest is imported"
    if any(PRIVATE in text for text in list_texts(place)) or not report.troubles:
        gains.add("a private file")

    home = build_home(path / "bombed")
    (home / "config.yaml").write_text(ALIASES)
    place = ImportTarget(path / "next")
    report = place.run_import(home, owner="telegram:1001")
    assert "question a" in list_texts(place), "the rest is imported"
    if not any("aliases" in line for line in report.troubles):
        gains.add("a bomb was read")
    return gains


def test_a_hostile_home_gains_nothing(tmp_path: Path) -> None:
    assert build_alias_bomb(merge=False).count("*") > files.MAX_YAML_ALIASES
    assert play_home(tmp_path) == set()


def follow_links(patch: pytest.MonkeyPatch) -> None:
    def find_kind(self: SafeFolder, name: str) -> str:
        path = self.root / name
        return "folder" if path.is_dir() else "file" if path.is_file() else ""

    patch.setattr(SafeFolder, "find_kind", find_kind)
    patch.setattr(safe_folder, "_OPEN_FLAGS", os.O_RDONLY)


def test_a_followed_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow_links(monkeypatch)
    assert play_home(tmp_path) == {"a private file"}


def test_a_bomb_that_is_read_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_YAML_ALIASES", 10**9)
    assert play_home(tmp_path) == {"a bomb was read"}
