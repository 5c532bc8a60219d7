"""Its home on the disk: profiles, settings, memory files, who may speak. Shows names of secrets only."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from everhold.config.secrets import parse_env
from everhold.core import papers
from everhold.errors import Misuse
from everhold.secret import Secret

MAIN: Final = "main"
PROVIDERS: Final = {
    "honcho": "honcho.json",
    "hindsight": "hindsight/config.json",
    "mem0": "mem0.json",
    "supermemory": "supermemory.json",
}
_SHARED: Final = {"honcho": ".honcho/config.json", "hindsight": ".hindsight/config.json"}
"""Settings that several programs of one user share, beside the home."""
LARGEST: Final = 4 << 20
"""Bytes of the largest settings or memory file that is read."""


@dataclass(frozen=True)
class Profile:
    """One agent there: the home itself, or a folder below `profiles/`."""

    name: str
    """What the agent is called here."""
    path: Path
    home: Path | None = None
    """The home it is a profile of; None if nobody knows."""

    @property
    def database(self) -> Path:
        return self.path / "state.db"

    @property
    def log(self) -> Path:
        return self.path / "logs" / "agent.log"

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.yaml, empty if there is none or it does not read."""
        try:
            found = YAML(typ="safe").load(_read(self.path / "config.yaml") or "")
        except YAMLError:
            return {}
        return found if isinstance(found, dict) else {}

    @cached_property
    def env(self) -> dict[str, Secret]:
        lines, _ = parse_env((_read(self.path / ".env") or "").encode())
        return {line.name: line.value for line in lines}

    @cached_property
    def soul(self) -> str:
        return (_read(self.path / "SOUL.md") or "").strip()

    def memory(self, name: str) -> list[str]:
        """The entries of `MEMORY.md` or `USER.md`."""
        text = _read(self.path / "memories" / name) or _read(self.path / name) or ""
        return papers.entries(text)

    @property
    def memory_files(self) -> list[str]:
        """The files its own memory is in, and whatever else of that kind lies beside them."""
        folder = self.path / "memories"
        others = sorted(file.name for file in folder.glob("*.md")) if folder.is_dir() else []
        return list(dict.fromkeys(("MEMORY.md", "USER.md", *others)))

    def provider(self, name: str, *, in_use: bool) -> dict[str, Any]:
        """A memory service's own settings: this profile's; if it is `in_use`, else what it falls back to there."""
        folders = [self.path / PROVIDERS[name]]
        if in_use and self.home is not None and name in _SHARED:
            if name == "honcho":
                folders.append(self.home / PROVIDERS[name])
            folders.append(self.home.parent / _SHARED[name])
        return next((found for path in folders if (found := _object(_read(path)))), {})

    @cached_property
    def routing(self) -> dict[str, dict[str, Any]]:
        """Session key -> entry, from the mirror file; the table is asked first where there is one."""
        found = _object(_read(self.path / "sessions" / "sessions.json"))
        return {key: entry for key, entry in found.items() if not key.startswith("_") and isinstance(entry, dict)}

    def pairings(self) -> dict[str, list[str]]:
        """Platform -> ids of those who were let in by a code."""
        found: dict[str, list[str]] = {}
        for folder in (self.path / "platforms" / "pairing", self.path / "pairing"):
            for file in sorted(folder.glob("*-approved.json")) if folder.is_dir() else ():
                platform = file.name.removesuffix("-approved.json")
                ids = [str(id) for id in _object(_read(file))]
                found[platform] = list(dict.fromkeys([*found.get(platform, []), *ids]))
        return found


def profiles(path: Path) -> list[Profile]:
    """The agents at `path`: a home with its profiles, one profile, or a `state.db`."""
    path = path.expanduser().absolute()
    if path.is_file():
        return [Profile(_agent(path.parent), path.parent)]
    if not looks_like(path):
        raise Misuse(
            f"{path} is no home of hermes-agent's", remedy="it has neither state.db nor config.yaml nor memories/"
        )
    home = path.parent.parent if path.parent.name == "profiles" else path
    found = [Profile(_agent(path), path, home)]
    below = path / "profiles"
    for folder in sorted(below.iterdir()) if below.is_dir() else ():
        if folder.is_dir() and looks_like(folder):
            found.append(Profile(_agent(folder), folder, path))
    return found


def looks_like(path: Path) -> bool:
    """Whether a folder is a home of its: a `config.yaml` alone could be anybody's."""
    return path.is_dir() and (
        (path / "state.db").is_file() or (path / "memories").is_dir() or (path / "SOUL.md").is_file()
    )


def _agent(path: Path) -> str:
    if path.parent.name != "profiles":
        return MAIN
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.name).strip("-")
    return name if name[:1].isalpha() else f"agent-{name}".strip("-")


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST).decode("utf-8-sig", "replace")
    except OSError:
        return None


def _object(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
