"""Skills are found in folders, and whatever is linked, huge or malformed is refused by its name."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from everhold.errors import EverholdError
from everhold.infra import skills, workspace
from everhold.infra.skills import (
    MAX_FILE_BYTES,
    SkillScan,
    SkillSource,
    check_skill_folder,
    list_skill_files,
    read_skill_file,
    scan_skills,
    split_front_matter,
)
from tests.hermes.test_hostile_home import build_alias_bomb

GOOD = "---\nname: {name}\ndescription: Does {name}.\n---\nDo it like this.\n"


def make_skill(root: Path, folder: str, text: str = "", **files: str) -> Path:
    place = root / folder
    place.mkdir(parents=True)
    (place / "SKILL.md").write_text(text or GOOD.format(name=place.name))
    for name, content in files.items():
        (place / f"{name}.txt").write_text(content)
    return place


def scan(root: Path) -> SkillScan:
    return scan_skills([SkillSource(name="home", root=root)])


def test_skills_are_found_up_to_a_depth_and_not_inside_each_other(tmp_path: Path) -> None:
    make_skill(tmp_path, "one", note="a note")
    make_skill(tmp_path, "a/b/c/deep")
    make_skill(tmp_path, "a/b/c/d/deeper")
    make_skill(tmp_path, "one/inner")
    found = scan(tmp_path)
    assert sorted(found.skills) == ["deep", "one"]
    assert found.problems == []
    assert "note.txt" in list_skill_files(found.skills["one"])
    assert found.skills["one"].description == "Does one."


@pytest.mark.parametrize("merge", [False, True], ids=["lists", "merges"])
def test_a_front_matter_whose_aliases_multiply_it_is_not_expanded(tmp_path: Path, merge: bool) -> None:
    """Expanded, its last line would have 9 to the power of 30 values. The lines `key: value` in it are read."""
    make_skill(
        tmp_path, "bomb", f"---\nname: bomb\ndescription: Grows.\n{build_alias_bomb(merge=merge)}\n---\nDo it.\n"
    )
    found = scan(tmp_path)
    assert [skill.description for skill in found.skills.values()] == ["Grows."]


def test_a_folder_that_vanishes_or_has_a_strange_name_keeps_nothing_else_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_skill(tmp_path, "good")
    make_skill(tmp_path, "gone/inner")
    (tmp_path / os.fsdecode(b"strange-\xff")).symlink_to(tmp_path)
    list_folder = os.scandir

    def scan_or_fail(path: Path) -> Any:
        if Path(path).name == "gone":
            raise PermissionError(errno.EACCES, "Permission denied")
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", scan_or_fail)
    found = scan(tmp_path)
    assert list(found.skills) == ["good"]
    assert [(problem.path, problem.message) for problem in found.problems] == [
        ("strange-?", "is a symbolic link"),
        ("gone", "cannot be read (Permission denied)"),
    ]
    json.dumps([str(problem) for problem in found.problems], ensure_ascii=False).encode()


def test_a_link_is_refused_by_its_name_wherever_it_is(tmp_path: Path) -> None:
    outside = make_skill(tmp_path / "outside", "evil")
    root = tmp_path / "skills"
    place = make_skill(root, "good")
    (root / "linked").symlink_to(outside)
    (root / "half").mkdir()
    (root / "half" / "SKILL.md").symlink_to(outside / "SKILL.md")
    (tmp_path / "secret").write_text("secret")
    (place / "leak.txt").symlink_to(tmp_path / "secret")
    found = scan(root)
    assert sorted(found.skills) == ["good"]
    assert {(it.path, it.message) for it in found.problems} == {
        ("linked", "is a symbolic link"),
        ("good/leak.txt", "is a symbolic link"),
        ("half/SKILL.md", "is a symbolic link"),
    }
    with pytest.raises(EverholdError, match=r"leak\.txt is a symbolic link"):
        read_skill_file(found.skills["good"], "leak.txt")
    with pytest.raises(EverholdError, match="symbolic link"):
        check_skill_folder(place)


def test_a_link_that_is_followed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FOLDER_FLAGS", "_FILE_FLAGS"):
        monkeypatch.setattr(workspace, name, getattr(workspace, name) & ~os.O_NOFOLLOW)
    monkeypatch.setattr(skills, "_list_folder", lambda source, folder, scan: os.listdir(source.root / folder))
    with pytest.raises(AssertionError):
        test_a_link_is_refused_by_its_name_wherever_it_is(tmp_path)


def test_a_source_that_is_a_link_is_refused(tmp_path: Path) -> None:
    make_skill(tmp_path / "real", "one")
    (tmp_path / "skills").symlink_to(tmp_path / "real")
    found = scan(tmp_path / "skills")
    assert (found.skills, [it.message for it in found.problems]) == ({}, ["is a symbolic link"])


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../secret", "~/x", "nul\0", "x" * 5_000])
def test_a_path_that_leads_out_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret").write_text("secret")
    make_skill(tmp_path, "one")
    with pytest.raises(EverholdError):
        read_skill_file(scan(tmp_path).skills["one"], path)


def test_a_huge_file_is_refused_with_its_limit(tmp_path: Path) -> None:
    place = make_skill(tmp_path, "one", big="x" * (MAX_FILE_BYTES + 1))
    skill = scan(tmp_path).skills["one"]
    with pytest.raises(EverholdError, match="more than 100,000 bytes"):
        read_skill_file(skill, "big.txt")
    with pytest.raises(EverholdError, match=r"big\.txt has 100,001 bytes"):
        check_skill_folder(place)
    (place / "SKILL.md").write_text(GOOD.format(name="one") + "x" * MAX_FILE_BYTES)
    (problem,) = scan(tmp_path).problems
    assert "more than 100,000 bytes" in problem.message


@pytest.mark.parametrize(
    "text, words",
    [
        ("no front matter", "does not begin with front matter"),
        ("---\nname: a\n", "has no end"),
        ("---\ndescription: x\n---\n", "it has no name"),
        ("---\nname: Bad Name\ndescription: x\n---\n", "its name is 'Bad Name'"),
        ("---\nname: ../evil\ndescription: x\n---\n", "its name is '../evil'"),
        ("---\nname: a\n---\n", "description has 0 characters"),
        (f"---\nname: a\ndescription: {'x' * 1_025}\n---\n", "description has 1,025 characters"),
        (f"---\nname: a\nx: {'[' * 9_000}\n---\n", "front matter has"),
    ],
)
def test_what_is_no_skill_is_named(tmp_path: Path, text: str, words: str) -> None:
    make_skill(tmp_path, "one", text)
    found = scan(tmp_path)
    assert found.skills == {}
    assert words in found.problems[0].message
    assert found.problems[0].remedy


def test_a_colon_in_an_unquoted_description_is_accepted(tmp_path: Path) -> None:
    make_skill(
        tmp_path, "one", "---\nname: one\ndescription: Use this: it works: well\nallowed-tools: [Bash, Read]\n---\n"
    )
    assert scan(tmp_path).skills["one"].description == "Use this: it works: well"


@pytest.mark.parametrize(
    "first, second, is_problem",
    [
        (("agent main", False), ("home", False), False),
        (("home", False), ("package x", True), False),
        (("package x", True), ("package y", True), True),
        (("home", False), ("home", False), True),
    ],
)
def test_the_first_source_of_a_name_counts_and_a_clash_that_nobody_chose_is_named(
    tmp_path: Path, first: tuple[str, bool], second: tuple[str, bool], is_problem: bool
) -> None:
    make_skill(tmp_path / "a", "one")
    make_skill(tmp_path / "b", "one")
    sources = [
        SkillSource(name=name, root=tmp_path / folder, is_package=is_package)
        for folder, (name, is_package) in zip("ab", (first, second), strict=True)
    ]
    found = scan_skills(sources)
    assert found.skills["one"].source == sources[0]
    assert ["is also in" in problem.message for problem in found.problems] == ([True] if is_problem else [])


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_front_matter_or_a_named_error(text: str) -> None:
    for whole in (text, f"---\n{text}\n---\nbody"):
        with contextlib.suppress(EverholdError):
            split_front_matter(whole)


@pytest.mark.parametrize("text", ["[" * 3_900, "a: &a [*a]\n", "&a [&b [&c []]]", "- " * 3_000, "? " * 3_000])
def test_a_hostile_front_matter_ends_only_itself(text: str) -> None:
    split_front_matter(f"---\n{text}\n---\n")
