"""Copies the skills of a home of hermes-agent. Those that came with it unchanged are left behind, and so are links."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from everhold.assembly.skill_library import SKILLS, SkillLibrary
from everhold.errors import EverholdError
from everhold.hermes.reader.files import MAIN_AGENT, HermesProfile
from everhold.infra.skills import SKILL_FILE, check_skill_folder, install_skill

FOLDER: Final = "skills"
MANIFEST_FILE: Final = ".bundled_manifest"
MAX_SKILLS: Final = 1_000
MAX_DEPTH: Final = 6
_CACHE_NAMES: Final = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", "node_modules", ".venv"})


@dataclass
class SkillImport:
    """What was or would be copied, and what was left behind and why."""

    copied: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def import_skills(profile: HermesProfile, library: SkillLibrary, *, dry: bool) -> SkillImport:
    """Copy the skills of a profile: those of the main agent for all agents, those of another for that agent."""
    done = SkillImport()
    source = library.get_home_source() if profile.name == MAIN_AGENT else library.get_agent_source(profile.name)
    bundled = _read_manifest(profile)
    unchanged: list[str] = []
    copied: dict[Path, str] = {}
    for inner in _list_skill_folders(profile, done):
        folder = profile.path / inner
        try:
            skill = check_skill_folder(folder)
            origin, known = _compute_origin_hash(folder), {bundled.get(skill.name), bundled.get(folder.name)}
            if origin in known:
                unchanged.append(skill.name)
                continue
            target = source.root / skill.name
            if target in copied or target.exists():
                if origin != (copied.get(target) or _compute_origin_hash(target)):
                    done.left.append(f"{inner}: there is another {SKILLS}/{skill.name} here, which is kept")
                continue
            if not dry:
                install_skill(folder, source, target, replace=False)
            copied[target] = origin
            done.copied.append(f"{profile.name}: {skill.name}")
        except EverholdError as error:
            done.left.append(f"{inner}: {error}")
        except OSError as error:
            done.left.append(f"{inner}: cannot be read ({error.strerror})")
    if unchanged:
        done.left.append(f"skills/ ({', '.join(sorted(unchanged))}): came with hermes-agent and are unchanged")
    return done


def _list_skill_folders(profile: HermesProfile, done: SkillImport) -> Iterator[str]:
    """Yield the folders with a SKILL.md. Other files are named; links are among what the profile refused."""
    waiting, count = [FOLDER], 0
    while waiting:
        folder = waiting.pop()
        names = [name for name in profile.files.list_names(folder) if name not in _CACHE_NAMES and name[0] != "."]
        if SKILL_FILE in names and folder != FOLDER:
            count += 1
            if count > MAX_SKILLS:
                done.left.append(f"{FOLDER}/: there are more than {MAX_SKILLS} skills; the others were not read")
                return
            yield folder
            continue  # what is below belongs to this skill
        inside = [f"{folder}/{name}" for name in names]
        kinds = {path: profile.files.find_kind(path) for path in inside}
        done.left += [f"{path}: no part of a skill" for path in inside if kinds[path] == "file"]
        below = [path for path in inside if kinds[path] == "folder"]
        if folder.count("/") < MAX_DEPTH:
            waiting += reversed(below)
        else:
            done.left += [f"{path}: deeper than {MAX_DEPTH} folders" for path in below]


def _read_manifest(profile: HermesProfile) -> dict[str, str]:
    """Return the skills that hermes-agent installed, each with the hash of its folder then."""
    lines = (profile.files.read_text(f"{FOLDER}/{MANIFEST_FILE}") or "").splitlines()
    pairs = (line.strip().partition(":") for line in lines if line.strip())
    return {name.strip(): digest.strip() for name, _, digest in pairs}


def _compute_origin_hash(folder: Path) -> str:
    """Return the hash of a folder as hermes-agent computes it. It recognises a copy, and protects nothing."""
    digest = hashlib.md5(usedforsecurity=False)
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if path.is_file() and not _CACHE_NAMES & set(inner.parts) and path.suffix != ".pyc":
            digest.update(str(inner).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
