"""The skills that each agent is offered: from the home, from the agent's own folder, and from installed packages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from everhold.config import AgentSettings
from everhold.core.policy import does_pattern_fit
from everhold.infra.skills import InstalledSkill, SkillProblem, SkillScan, SkillSource, scan_skills

SKILLS: Final = "skills"
AGENTS: Final = "agents"
SKILL_GROUP: Final = "everhold.skills"
"""The group of entry points by which a package offers a folder of skills: name = "package.folder"."""


class SkillLibrary:
    """The skills of a home. `refresh` reads the folders; everything else uses what it read."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._scans: dict[str, SkillScan] = {}

    def refresh(self, agents: Iterable[str]) -> bool:
        """Read the folders again. Return whether a skill or a problem changed. Blocks."""
        common = tuple(self.list_common_sources())
        scans = {name: scan_skills((self.get_agent_source(name), *common)) for name in agents}
        changed = scans != self._scans
        self._scans = scans
        return changed

    def list_skills(self, agent: AgentSettings) -> dict[str, InstalledSkill]:
        """Return the skills that an agent is offered, by name."""
        scan = self._scans.get(agent.name)
        if scan is None:
            return {}
        return {
            name: skill
            for name, skill in sorted(scan.skills.items())
            if any(does_pattern_fit(pattern, name) for pattern in agent.skills)
        }

    def list_problems(self) -> list[SkillProblem]:
        """Return what was refused, each once."""
        return list(dict.fromkeys(problem for scan in self._scans.values() for problem in scan.problems))

    def list_common_sources(self) -> Iterator[SkillSource]:
        """Yield the sources of all agents. The home comes first, so an operator can replace a package's skill."""
        yield self.get_home_source()
        for entry in sorted(entry_points(group=SKILL_GROUP), key=lambda it: it.name):
            if (root := _find_package_folder(entry)) is not None:
                yield SkillSource(name=f"package {entry.name}", root=root, is_package=True)

    def get_home_source(self) -> SkillSource:
        return SkillSource(name="home", root=self._home / SKILLS)

    def get_agent_source(self, agent: str) -> SkillSource:
        return SkillSource(name=f"agent {agent}", root=self._home / AGENTS / agent / SKILLS, agent=agent)


def _find_package_folder(entry: EntryPoint) -> Path | None:
    """Return the folder that an entry point names, without importing the package."""
    package, *below = entry.value.split(".")
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)), os.sep.join(below) or ".")
