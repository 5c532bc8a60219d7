"""Finds and reads skills: folders with a `SKILL.md` in the Agent Skills format. Links are refused, not followed.

A skill is instructions that an operator installed. Nothing in it grants a right: `allowed-tools` is shown and has no
effect.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from everhold.errors import EverholdError, InvalidRequest, NotFound
from everhold.infra.safe_yaml import load_foreign_yaml
from everhold.infra.workspace import WorkspaceFolder, split_path

SKILL_FILE: Final = "SKILL.md"
MAX_SKILL_DEPTH: Final = 4
"""How many folders below a source a skill may lie."""
MAX_SKILLS: Final = 500
PARTIAL_SUFFIX: Final = ".partial"
MAX_FILES: Final = 500
"""How many files of a skill are listed."""
MAX_SCANNED_NAMES: Final = 5_000
"""How many names of one source are looked at."""
MAX_FILE_BYTES: Final = 100_000
MAX_HEAD_CHARS: Final = 8_000
MAX_NAME_CHARS: Final = 64
MAX_DESCRIPTION_CHARS: Final = 1_024
DIGEST_CHARS: Final = 12
_NAME_PATTERN: Final = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_LINE_PATTERN: Final = re.compile(r"([A-Za-z][A-Za-z-]{0,40}):[ \t]*(.*)")


@dataclass(frozen=True, kw_only=True)
class SkillSource:
    """A folder that holds skills."""

    name: str
    """What people are told: `home`, `agent coder`, `package tools-of-ada`."""
    root: Path
    agent: str = ""
    """The only agent that gets these skills; empty for all."""
    is_package: bool = False
    """An installed package brings them."""


@dataclass(frozen=True, kw_only=True)
class InstalledSkill:
    """One skill, as its front matter describes it."""

    name: str
    description: str
    source: SkillSource
    folder: str
    """Its path below the source."""
    digest: str
    """Of `SKILL.md`."""
    allowed_tools: str = ""
    license: str = ""


@dataclass(frozen=True, kw_only=True)
class SkillProblem:
    """Why something in a source is no skill that is offered."""

    source: str
    path: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.source}: {self.path}: {self.message}" + (f" → {self.remedy}" if self.remedy else "")


@dataclass(kw_only=True)
class SkillScan:
    """The skills of several sources, and what was refused. The first source that has a name wins."""

    skills: dict[str, InstalledSkill] = field(default_factory=dict)
    problems: list[SkillProblem] = field(default_factory=list)


def scan_skills(sources: Iterable[SkillSource]) -> SkillScan:
    """Read the front matter of all skills. Blocks."""
    scan = SkillScan()
    for source in sources:
        if source.root.is_symlink():
            _report(scan, source, "", "is a symbolic link", remedy="replace it by a folder with copies")
        elif source.root.is_dir():
            _scan_source(source, scan)
    return scan


def _scan_source(source: SkillSource, scan: SkillScan) -> None:
    waiting, seen = [""], 0
    while waiting:
        folder = waiting.pop()
        names = _list_folder(source, folder, scan)
        seen += len(names)
        if seen > MAX_SCANNED_NAMES or len(scan.skills) >= MAX_SKILLS:
            text = (
                f"the rest is left out, because there are more than {MAX_SCANNED_NAMES:,} names or {MAX_SKILLS} skills"
            )
            _report(scan, source, folder, text)
            return
        if SKILL_FILE in names:
            _add_skill(source, folder, scan)
        elif folder.count("/") + bool(folder) < MAX_SKILL_DEPTH:
            waiting += [f"{folder}/{name}".lstrip("/") for name in reversed(names) if not name.startswith(".")]


def _list_folder(source: SkillSource, folder: str, scan: SkillScan) -> list[str]:
    """Return the names in a folder: the folders in it, and `SKILL.md`. Links are reported."""
    found: list[str] = []
    try:
        entries = sorted(os.scandir(source.root / folder), key=lambda it: it.name)
    except OSError as error:  # it may also have been removed since its name was read
        _report(scan, source, folder, f"cannot be read ({error.strerror})")
        return found
    for entry in entries:
        if entry.is_symlink():
            path = f"{folder}/{entry.name}".lstrip("/")
            _report(scan, source, path, "is a symbolic link", remedy="replace it by a copy of what it leads to")
        elif entry.is_dir(follow_symlinks=False) or entry.name == SKILL_FILE:
            found.append(entry.name)
    return found


def _report(scan: SkillScan, source: SkillSource, path: str, message: str, *, remedy: str = "") -> None:
    """Add a problem. A path that is no text is shown with a question mark for each of its bytes."""
    shown = path.encode("utf-8", "replace").decode() or "."
    scan.problems.append(SkillProblem(source=source.name, path=shown, message=message, remedy=remedy))


def _add_skill(source: SkillSource, folder: str, scan: SkillScan) -> None:
    path = f"{folder}/{SKILL_FILE}".lstrip("/")
    try:
        skill = read_skill(source, folder)
    except EverholdError as error:
        _report(scan, source, path, error.message, remedy=error.remedy)
        return
    other = scan.skills.get(skill.name)
    if other is not None and _is_replacement(other.source, source):
        return
    if other is not None:
        message = f"the skill {skill.name} is also in {other.source.name}, which counts"
        _report(scan, source, path, message, remedy="rename one of them")
        return
    scan.skills[skill.name] = skill


def _is_replacement(first: SkillSource, other: SkillSource) -> bool:
    """Return whether a skill of one source stands in for one of another as people mean it: an agent's own for one of
    all agents, and one of the home for one of a package. Of one source, or of two packages, nobody chose.
    """
    return first.name != other.name and not (first.is_package and other.is_package)


def read_skill(source: SkillSource, folder: str) -> InstalledSkill:
    """Read the front matter of one skill. Raises InvalidRequest or NotFound with what is wrong."""
    data = WorkspaceFolder(source.root).read_file(f"{folder}/{SKILL_FILE}", max_bytes=MAX_FILE_BYTES)
    head, _ = split_front_matter(_decode(data))
    name, description = _get_text(head, "name"), _get_text(head, "description")
    if not _NAME_PATTERN.fullmatch(name) or len(name) > MAX_NAME_CHARS:
        raise InvalidRequest(
            f"its name is {name[:80]!r}" if name else "it has no name",
            remedy=f"write `name:` with small letters, digits and single hyphens, at most {MAX_NAME_CHARS} characters",
        )
    if not description or len(description) > MAX_DESCRIPTION_CHARS:
        raise InvalidRequest(
            f"its description has {len(description):,} characters",
            remedy=f"write `description:` with 1 to {MAX_DESCRIPTION_CHARS:,} characters",
        )
    return InstalledSkill(
        name=name,
        description=" ".join(description.split()),
        source=source,
        folder=folder,
        digest=compute_digest(data),
        allowed_tools=_get_text(head, "allowed-tools")[:MAX_DESCRIPTION_CHARS],
        license=_get_text(head, "license")[:200],
    )


def read_skill_file(skill: InstalledSkill, path: str = SKILL_FILE) -> bytes:
    """Return a file of a skill. Raises InvalidRequest or NotFound if it is no file in it, or too large."""
    parts = split_path(path)
    return WorkspaceFolder(skill.source.root).read_file(
        "/".join((skill.folder, *parts)).lstrip("/"), max_bytes=MAX_FILE_BYTES
    )


def list_skill_files(skill: InstalledSkill) -> list[str]:
    """Return the files of a skill besides `SKILL.md`, sorted, at most `MAX_FILES`."""
    found: list[str] = []
    for file in WorkspaceFolder(skill.source.root).list_files(skill.folder or "."):
        name = file.path.removeprefix(f"{skill.folder}/")
        if not file.is_folder and name != SKILL_FILE:
            found.append(name)
        if len(found) >= MAX_FILES:
            break
    return found


def check_skill_folder(root: Path) -> InstalledSkill:
    """Check a folder before it is installed: its front matter, links in it, and the size of its files."""
    source = SkillSource(name=str(root), root=root.parent)
    if root.is_symlink() or not root.is_dir():
        raise InvalidRequest(f"{root} is no folder", remedy=f"name the folder with the {SKILL_FILE}")
    skill = read_skill(source, root.name)
    count = 0
    for here, folders, files in os.walk(root):
        for name in (*folders, *files):
            count += 1
            path = Path(here, name)
            state = path.lstat()
            inner = path.relative_to(root)
            if stat.S_ISLNK(state.st_mode):
                raise InvalidRequest(f"{inner} is a symbolic link", remedy="replace it by a copy of what it leads to")
            if not stat.S_ISDIR(state.st_mode) and not stat.S_ISREG(state.st_mode):
                raise InvalidRequest(f"{inner} is no ordinary file", remedy="remove it")
            if stat.S_ISREG(state.st_mode) and state.st_size > MAX_FILE_BYTES:
                raise InvalidRequest(
                    f"{inner} has {state.st_size:,} bytes, and a file of a skill may have {MAX_FILE_BYTES:,}",
                    remedy="make it smaller, or leave it out",
                )
            if count > MAX_FILES:
                raise InvalidRequest(f"it has more than {MAX_FILES} files", remedy="leave some out")
    return skill


def install_skill(given: Path, source: SkillSource, target: Path, *, replace: bool) -> None:
    """Copy a checked folder beside its place, check the copy, and rename it, so that no half of a skill is offered."""
    if target.exists() and not replace:
        raise InvalidRequest(f"{target} exists already", remedy="--replace replaces it")
    source.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = source.root / f".{target.name}{PARTIAL_SUFFIX}"
    if partial.exists():
        shutil.rmtree(partial)
    shutil.copytree(given, partial, symlinks=True)
    try:
        check_skill_folder(partial)  # what was copied counts, not what was looked at before
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def compute_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]


# -- front matter ------------------------------------------------------------------------------------------------------


def split_front_matter(text: str) -> tuple[Mapping[str, Any], str]:
    """Return the keys between the lines `---`, and the text after them. Raises InvalidRequest if there are none."""
    lines = text.splitlines(keepends=True)
    if not lines or lines[0].strip() != "---":
        raise InvalidRequest("it does not begin with front matter", remedy="begin with ---, name:, description:, ---")
    end = next((number for number, line in enumerate(lines[1:], 1) if line.strip() == "---"), None)
    if end is None:
        raise InvalidRequest("its front matter has no end", remedy="write --- after the last key")
    head = "".join(lines[1:end])
    if len(head) > MAX_HEAD_CHARS:
        raise InvalidRequest(
            f"its front matter has {len(head):,} characters, and may have {MAX_HEAD_CHARS:,}", remedy="shorten it"
        )
    return _parse_head(head), "".join(lines[end + 1 :]).strip()


def _parse_head(head: str) -> Mapping[str, Any]:
    """Parse YAML, and lines `key: value` if it is none: many skills have a colon in an unquoted description."""
    try:
        found = load_foreign_yaml(head, most_aliases=0)
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    lines = (_LINE_PATTERN.fullmatch(line.rstrip()) for line in head.splitlines())
    return {match[1]: match[2] for match in lines if match is not None}


def _get_text(head: Mapping[str, Any], key: str) -> str:
    value = head.get(key)
    if isinstance(value, list):
        value = " ".join(it for it in value if isinstance(it, str))
    return value.strip() if isinstance(value, str) else ""


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidRequest("it is not UTF-8 text", remedy="save it as UTF-8") from None


def find_skill(skills: Mapping[str, InstalledSkill], name: str) -> InstalledSkill:
    """Return a skill by its name. Raises NotFound."""
    if (skill := skills.get(name)) is None:
        raise NotFound(f"there is no skill {name[:MAX_NAME_CHARS]!r}", remedy="`everhold skills list` shows the skills")
    return skill
