"""`everhold skills …`: its arguments, help and examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everhold.cli.parser import _CommandGroup


def add_skill_commands(commands: _CommandGroup) -> None:
    skills = commands.add_group(
        "skills", "list, install, show and check skills in the Agent Skills format", module="skills", default="list"
    )
    skills.add_command("list", "list the skills with the agents that are offered them")
    add = skills.add_command(
        "add",
        "install a skill from a folder",
        ("everhold skills add ./pdf-forms", "for all agents"),
        ("everhold skills add ./pdf-forms --agent coder", "for one agent"),
        about="Checks the folder and copies it into the home. A skill is instructions that an agent follows, so read\n"
        "it first. Links, files over 100,000 bytes and a skill of the same name are refused.",
    )
    add.add_argument("folder", metavar="FOLDER", help="the folder with the SKILL.md")
    add.add_argument("--agent", default="", metavar="NAME", help="install it for this agent only")
    add.add_argument("--replace", action="store_true", help="replace the installed skill of this name")
    show = skills.add_command("show", "show a skill: its instructions, files and digest")
    show.add_argument("name", metavar="NAME", help="a name from `everhold skills list`")
    skills.add_command("check", "check all installed skills; exit 1 if one is not offered")
