"""The tool `skill`: a catalogue within its limit, and files with their digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from everhold.core.entries import Stamp
from everhold.core.policy import ToolReach
from everhold.errors import EverholdError, NotFound
from everhold.infra.skills import InstalledSkill, SkillSource, scan_skills
from everhold.ports.tool import ToolContext, ToolEffect, get_reach
from everhold.tools.skill import MAX_CATALOGUE_CHARS, SkillTool, render_catalogue
from tests.infra.test_skills import make_skill

CONTEXT = ToolContext(session="s", agent="main", op=1, key="k", stamp=Stamp())


def make_tool(root: Path, *, has_shell: bool = False) -> SkillTool:
    return SkillTool(scan_skills([SkillSource(name="home", root=root)]).skills, has_shell=has_shell)


def make_many(count: int, description: str) -> dict[str, InstalledSkill]:
    source = SkillSource(name="home", root=Path("/nowhere"))
    names = [f"skill-{number}" for number in range(count)]
    return {
        name: InstalledSkill(name=name, description=description, source=source, folder=name, digest="0")
        for name in names
    }


async def test_the_instructions_name_their_digest_and_files(tmp_path: Path) -> None:
    place = make_skill(
        tmp_path, "one", "---\nname: one\ndescription: Does one.\nallowed-tools: shell\n---\nDo it.\n", script="x"
    )
    result = await make_tool(tmp_path, has_shell=True).run({"name": "one"}, CONTEXT)
    digest = hashlib.sha256((place / "SKILL.md").read_bytes()).hexdigest()[:12]
    assert f"Skill one, SKILL.md, sha256 {digest}." in result.text
    assert "which grants nothing: shell" in result.text
    assert "script.txt" in result.text
    assert str(place) in result.text
    assert result.text.endswith("Do it.\n")
    without = await make_tool(tmp_path).run({"name": "one"}, CONTEXT)
    assert "which you do not have here" in without.text
    assert (await make_tool(tmp_path).run({"name": "one", "path": "script.txt"}, CONTEXT)).text.endswith("x")


async def test_a_missing_skill_or_file_names_the_remedy(tmp_path: Path) -> None:
    make_skill(tmp_path, "one")
    tool = make_tool(tmp_path)
    with pytest.raises(NotFound) as caught:
        await tool.run({"name": "two"}, CONTEXT)
    assert caught.value.remedy == "the skills are: one"
    for path in ("nothing.md", "../one/SKILL.md", "/etc/passwd"):
        with pytest.raises(EverholdError):
            await tool.run({"name": "one", "path": path}, CONTEXT)


def test_it_reads_what_an_operator_installed_and_may_be_repeated(tmp_path: Path) -> None:
    tool = make_tool(tmp_path)
    assert (get_reach(tool, {"name": "x"}), tool.effect) == (ToolReach.OWN, ToolEffect.PURE)


@pytest.mark.parametrize("count, length", [(1, 1_024), (20, 1_024), (100, 300), (500, 1_024), (2_000, 10)])
def test_the_catalogue_keeps_within_its_limit_and_says_what_is_left_out(count: int, length: int) -> None:
    text = render_catalogue(make_many(count, "d" * length))
    assert len(text) <= MAX_CATALOGUE_CHARS
    named = text.count("- skill-")
    assert named == count or f"{count - named} more skills" in text
