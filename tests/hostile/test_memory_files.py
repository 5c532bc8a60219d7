"""The attacker made the folder of memory files that is imported, for example in place of one that everhold exported."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from everhold.admin import memory_files
from everhold.admin.memory_files import read_memory_files
from everhold.infra import safe_folder
from everhold.infra.safe_folder import LINK_REASON, SafeFolder

SECRET = "-----BEGIN OPENSSH PRIVATE KEY-----"


def make_link(path: Path) -> None:
    (path.parent.parent / "key").write_text(SECRET)
    path.symlink_to(path.parent.parent / "key")


def make_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


ATTACKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "link": (make_link, LINK_REASON),
    "link to a folder": (lambda path: path.symlink_to("/"), LINK_REASON),
    "loop": (lambda path: path.symlink_to(path), LINK_REASON),
    "pipe": (os.mkfifo, "neither a file nor a folder"),
    "device": (lambda path: path.symlink_to("/dev/zero"), LINK_REASON),
    "too large": (lambda path: path.write_text("x" * (memory_files.MAX_FILE_BYTES + 1)) and None, "larger than 1 MiB"),
    "sparse": (make_sparse, "larger than 1 MiB"),
    "binary": (lambda path: path.write_bytes(b"\x1f\x8b\0\0") and None, "is not a text"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_file_is_refused_by_name_and_the_rest_comes(tmp_path: Path, attack: str) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "USER.md").write_text("likes tea")
    make, reason = ATTACKS[attack]
    make(folder / "notes.md")
    assert read_memory_files(folder) == ({"USER.md": "likes tea"}, {"notes.md": reason})
    if (folder / "notes.md").exists() and attack != "link to a folder":
        assert read_memory_files(folder / "notes.md")[0] == {}


def test_bytes_that_are_no_utf8_become_marks(tmp_path: Path) -> None:
    (tmp_path / "USER.md").write_bytes(b"\xff likes \xc3 tea \xed\xa0\x80")
    assert read_memory_files(tmp_path)[0] == {"USER.md": "\ufffd likes \ufffd tea \ufffd\ufffd\ufffd"}


def test_more_files_than_are_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_files, "MAX_FILES", 3)
    for number in range(5):
        (tmp_path / f"{number}.md").write_text("x")
    found, refused = read_memory_files(tmp_path)
    assert (sorted(found), list(refused)) == (["0.md", "1.md", "2.md"], ["3.md"])


def test_a_tree_of_many_folders_is_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each folder has few names, and all together have too many."""
    monkeypatch.setattr(safe_folder, "MAX_TREE_NAMES", 50)
    for one in range(10):
        for two in range(10):
            (tmp_path / f"{one}" / f"{two}").mkdir(parents=True)
    folder = SafeFolder(tmp_path)
    assert folder.list_files(".md") == []
    assert any("more than 50 files" in reason for reason in folder.refused.values())


def test_a_file_swapped_for_a_pipe_or_a_link_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is replaced between the look at it and the opening."""
    look = SafeFolder.find_kind
    for make in (make_link, os.mkfifo):
        folder = tmp_path / make.__name__
        folder.mkdir()
        (folder / "USER.md").write_text("likes tea")

        def swap(self: SafeFolder, name: str, make: Callable[[Path], object] = make) -> str:
            kind = look(self, name)
            if name == "USER.md" and (self.root / name).is_file() and not (self.root / name).is_symlink():
                (self.root / name).unlink()
                make(self.root / name)
            return kind

        monkeypatch.setattr(SafeFolder, "find_kind", swap)
        safe = SafeFolder(folder)
        assert safe.read_text("USER.md") is None
        assert list(safe.refused) == ["USER.md"]
