"""`everhold skills`: lists, installs, shows and checks skills. Works on the files; a running gateway sees changes."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from everhold.app import load_home_settings
from everhold.assembly.skill_library import SkillLibrary
from everhold.cli import errors
from everhold.cli.connect import find_home
from everhold.cli.render import CommandScreen, escape_control, format_count, format_one_line
from everhold.config import Settings
from everhold.errors import NotFound
from everhold.infra.home import Home
from everhold.infra.skills import (
    InstalledSkill,
    SkillScan,
    check_skill_folder,
    find_skill,
    install_skill,
    list_skill_files,
    read_skill_file,
    scan_skills,
)


def run(args: argparse.Namespace, screen: CommandScreen) -> int:
    home = find_home(args)
    settings = load_home_settings(home, environ=os.environ)
    match args.action or "list":
        case "add":
            return _add_skill(args, screen, home, settings)
        case "show":
            return _show_skill(args, screen, scan_all_skills(home, settings))
        case "check":
            return _check_skills(screen, scan_all_skills(home, settings))
        case _:
            return _list_skills(screen, home, settings)


def scan_all_skills(home: Home, settings: Settings) -> SkillScan:
    """Return the skills of all sources. Agents may have skills of the same name, so each agent's own come last."""
    library = SkillLibrary(home.path)
    own = (library.get_agent_source(name) for name in settings.agents)
    return scan_skills((*library.list_common_sources(), *own))


def _list_skills(screen: CommandScreen, home: Home, settings: Settings) -> int:
    library = SkillLibrary(home.path)
    library.refresh(settings.agents)
    offered: dict[tuple[str, str], tuple[InstalledSkill, list[str]]] = {}
    for agent in settings.agents.values():
        for skill in library.list_skills(agent).values() if "skill" in agent.tools else ():
            offered.setdefault((skill.name, skill.source.name), (skill, []))[1].append(agent.name)
    rows = [{**render_skill(skill), "agents": agents} for skill, agents in offered.values()]
    problems = [str(problem) for problem in library.list_problems()]
    if screen.json:
        screen.print_json({"skills": rows, "problems": problems})
        return errors.DONE
    if not rows:
        screen.print_note(f"No skill is offered. Put folders with a SKILL.md into {home.path / 'skills'}.")
    else:
        table = [
            (row["name"], row["source"], ", ".join(row["agents"]), row["digest"], row["description"]) for row in rows
        ]
        lines = [tuple(format_one_line(cell, most=80) for cell in line) for line in table]
        screen.print_table(("skill", "from", "agents", "digest", "description"), lines, styles=("bold",))
    for text in problems:
        screen.print_line(f"{screen.paint('!', 'red')} {escape_control(text)}")
    return errors.DONE


def render_skill(skill: InstalledSkill) -> dict[str, Any]:
    return {
        "name": skill.name,
        "description": skill.description,
        "source": skill.source.name,
        "path": str(skill.source.root / skill.folder),
        "digest": skill.digest,
        "allowed_tools": skill.allowed_tools,
        "license": skill.license,
    }


def _show_skill(args: argparse.Namespace, screen: CommandScreen, scan: SkillScan) -> int:
    skill = find_skill(scan.skills, args.name)
    text, files = read_skill_file(skill).decode("utf-8", "replace"), list_skill_files(skill)
    if screen.json:
        screen.print_json({**render_skill(skill), "files": files, "text": text})
        return errors.DONE
    screen.print_line(
        f"{skill.name} · {skill.source.name} · {skill.source.root / skill.folder} · sha256 {skill.digest}"
    )
    if skill.allowed_tools:
        screen.print_line(f"allowed-tools (grants nothing): {escape_control(skill.allowed_tools)}")
    for name in files:
        screen.print_line(f"  {escape_control(name)}")
    screen.print_line(escape_control(text))
    return errors.DONE


def _check_skills(screen: CommandScreen, scan: SkillScan) -> int:
    code = errors.WRONG if scan.problems else errors.DONE
    if screen.json:
        rows = [
            {"source": it.source, "path": it.path, "message": it.message, "remedy": it.remedy} for it in scan.problems
        ]
        screen.print_json({"ok": not rows, "skills": sorted(scan.skills), "problems": rows})
        return code
    screen.print_line(f"{format_count(len(scan.skills), 'skill')} can be offered")
    for problem in scan.problems:
        screen.print_line(f"{screen.paint('!', 'red')} {escape_control(str(problem))}")
    return code


def _add_skill(args: argparse.Namespace, screen: CommandScreen, home: Home, settings: Settings) -> int:
    if args.agent and args.agent not in settings.agents:
        raise NotFound(f"there is no agent {args.agent!r}", remedy=f"use one of {', '.join(settings.agents)}")
    given = Path(args.folder).expanduser().absolute()
    skill = check_skill_folder(given)
    library = SkillLibrary(home.create().path)
    source = library.get_agent_source(args.agent) if args.agent else library.get_home_source()
    target = source.root / skill.name
    install_skill(given, source, target, replace=args.replace)
    library.refresh(settings.agents)
    if screen.json:
        screen.print_json({**render_skill(skill), "source": source.name, "path": str(target)})
    else:
        screen.print_line(f"installed {skill.name} in {target}; it is offered from the next turn on")
    return errors.DONE
