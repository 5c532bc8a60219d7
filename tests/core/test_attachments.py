"""The content identifies a file; its name is only a label."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, strategies as st

from everhold.core.attachments import MAX_NAME_CHARS, build_attachment, build_missing_attachment, sanitize_file_name


def test_the_same_content_is_the_same_file() -> None:
    one, two = build_attachment(b"data", name="a.txt"), build_attachment(b"data", name="b.txt")
    assert one.blob == two.blob == hashlib.sha256(b"data").hexdigest()
    assert (one.size, one.name) == (4, "a.txt")
    assert build_attachment(b"other").blob != one.blob


def test_an_omitted_file_has_a_name_and_no_content() -> None:
    assert (
        build_missing_attachment(name="x.bin", size=9).blob,
        build_missing_attachment(name="x.bin", size=9).size,
    ) == ("", 9)


@pytest.mark.parametrize(
    "name, shown",
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("/etc/shadow", "shadow"),
        ("..", ""),
        ("C:\\windows\\system32\\x.dll", "x.dll"),
        ("\\\\server\\share\\x", "x"),
        ("a\x00b.txt", "ab.txt"),
        ("\x1b[31mred.txt", "[31mred.txt"),
        ("\u202etxt.exe", "txt.exe"),
        (".bashrc", "bashrc"),
        ("x" * 300, "x" * MAX_NAME_CHARS),
    ],
)
def test_a_file_name_contains_no_path_and_no_control_characters(name: str, shown: str) -> None:
    assert sanitize_file_name(name) == shown


@given(st.text())
def test_any_file_name_stays_inside_its_directory(name: str) -> None:
    shown = sanitize_file_name(name)
    assert "/" not in shown
    assert "\\" not in shown
    assert shown not in (".", "..")
    assert len(shown) <= MAX_NAME_CHARS
