"""The `skill` tool: loads the instructions of a skill, and its files, on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from everhold.core.policy import ToolReach
from everhold.core.roles import ToolAccess
from everhold.errors import InvalidRequest, NotFound
from everhold.infra.skills import SKILL_FILE, InstalledSkill, compute_digest, list_skill_files, read_skill_file
from everhold.ports.model import ToolSpec
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult

MAX_CATALOGUE_CHARS: Final = 12_000
MAX_LISTED_FILES: Final = 100


class SkillTool:
    """A repeated call returns the same files. It reads only what an operator installed."""

    effect = ToolEffect.PURE
    access = ToolAccess.READ
    deadline = 30.0

    def __init__(self, skills: Mapping[str, InstalledSkill], *, has_shell: bool = False) -> None:
        self._skills = skills
        self._has_shell = has_shell
        self.spec = ToolSpec(
            name="skill",
            description=(
                "Load the instructions of a skill before you do what it is for. With `path`, load one of its files. "
                f"The skills:\n{render_catalogue(skills)}"
            ),
            parameters={
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "path": {"type": "string", "description": f"A file of the skill; {SKILL_FILE} if not given."},
                },
                "required": ["name"],
                "additionalProperties": False,
            },
        )

    def find_reach(self, arguments: dict[str, Any]) -> ToolReach:
        return ToolReach.OWN

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        name, path = arguments.get("name"), arguments.get("path", SKILL_FILE)
        if not isinstance(name, str) or not isinstance(path, str):
            raise InvalidRequest("`name` and `path` must be texts", remedy="call it again with the name of a skill")
        skill = self._skills.get(name)
        if skill is None:
            near = ", ".join(sorted(self._skills)[:20])
            raise NotFound(f"there is no skill {name[:64]!r}", remedy=f"the skills are: {near}")
        return await asyncio.to_thread(self._load, skill, path)

    def _load(self, skill: InstalledSkill, path: str) -> ToolResult:
        data = read_skill_file(skill, path)
        text = data.decode("utf-8", "replace")
        lines = [f"Skill {skill.name}, {path}, sha256 {compute_digest(data)}."]
        if path == SKILL_FILE:
            if skill.allowed_tools:
                lines.append(f"It names these tools, which grants nothing: {skill.allowed_tools}")
            files = list_skill_files(skill)
            if files:
                more = f" and {len(files) - MAX_LISTED_FILES} more" if len(files) > MAX_LISTED_FILES else ""
                lines.append(f"Its other files: {', '.join(files[:MAX_LISTED_FILES])}{more}.")
                if self._has_shell:
                    lines.append(f"The tool shell can read and run them in {skill.source.root / skill.folder}")
                else:
                    lines.append("Scripts run in the tool shell only, which you do not have here.")
        return ToolResult(text="\n".join((*lines, "", text)))


def render_catalogue(skills: Mapping[str, InstalledSkill]) -> str:
    """Return names and descriptions within the limit. If they do not fit, descriptions are cut; then names are left
    out, and the text says how many.
    """
    lines: list[str] = []
    for most in (1_024, 400, 150, 60, 0):
        lines = [_render_line(skills[name], most) for name in sorted(skills)]
        if sum(map(len, lines)) + len(lines) <= MAX_CATALOGUE_CHARS:
            return "\n".join(lines)
    kept: list[str] = []
    left = MAX_CATALOGUE_CHARS - 100
    for line in lines:
        left -= len(line) + 1
        if left < 0:
            break
        kept.append(line)
    return "\n".join((*kept, f"… and {len(lines) - len(kept)} more skills, which are not named here"))


def _render_line(skill: InstalledSkill, most: int) -> str:
    text = skill.description
    if len(text) > most:
        text = f"{text[: most - 1]}…" if most else ""
    return f"- {skill.name}: {text}" if text else f"- {skill.name}"
