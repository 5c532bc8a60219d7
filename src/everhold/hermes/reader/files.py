"""Reads the files of a home: profiles, settings, memory files, allowed people. It returns only the names of secrets."""

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
from everhold.core import memory_files as core_memory_files
from everhold.errors import InvalidRequest
from everhold.infra.secret import SecretString

MAIN_AGENT: Final = "main"
PROVIDER_FILES: Final = {
    "honcho": "honcho.json",
    "hindsight": "hindsight/config.json",
    "mem0": "mem0.json",
    "supermemory": "supermemory.json",
}
_SHARED_PROVIDER_FILES: Final = {"honcho": ".honcho/config.json", "hindsight": ".hindsight/config.json"}
"""Settings beside the home that several programs of one user share."""
MAX_FILE_BYTES: Final = 4 << 20
"""Maximum size of a settings or memory file."""


@dataclass(frozen=True)
class HermesProfile:
    """One agent of hermes-agent: the home itself, or a directory below `profiles/`."""

    name: str
    """The agent's name in everhold."""
    path: Path
    home: Path | None = None
    """The home that it is a profile of; None if unknown."""

    @property
    def database(self) -> Path:
        return self.path / "state.db"

    @property
    def log(self) -> Path:
        return self.path / "logs" / "agent.log"

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return config.yaml; empty if there is none or it cannot be read."""
        try:
            found = YAML(typ="safe").load(_read_text(self.path / "config.yaml") or "")
        except YAMLError:
            return {}
        return found if isinstance(found, dict) else {}

    @cached_property
    def env(self) -> dict[str, SecretString]:
        lines, _ = parse_env((_read_text(self.path / ".env") or "").encode())
        return {line.name: line.value for line in lines}

    @cached_property
    def soul(self) -> str:
        return (_read_text(self.path / "SOUL.md") or "").strip()

    def read_memory_entries(self, name: str) -> list[str]:
        """Return the entries of `MEMORY.md` or `USER.md`."""
        text = _read_text(self.path / "memories" / name) or _read_text(self.path / name) or ""
        return core_memory_files.parse_memory_file(text)

    @property
    def memory_files(self) -> list[str]:
        """Return the memory files of the agent and other Markdown files beside them."""
        folder = self.path / "memories"
        others = sorted(file.name for file in folder.glob("*.md")) if folder.is_dir() else []
        return list(dict.fromkeys(("MEMORY.md", "USER.md", *others)))

    def read_provider_settings(self, name: str, *, in_use: bool) -> dict[str, Any]:
        """Return a memory service's own settings: this profile's; if it is `in_use`, else the ones it falls back to."""
        folders = [self.path / PROVIDER_FILES[name]]
        if in_use and self.home is not None and name in _SHARED_PROVIDER_FILES:
            if name == "honcho":
                folders.append(self.home / PROVIDER_FILES[name])
            folders.append(self.home.parent / _SHARED_PROVIDER_FILES[name])
        return next((found for path in folders if (found := _parse_object(_read_text(path)))), {})

    @cached_property
    def routing(self) -> dict[str, dict[str, Any]]:
        """Return session key -> entry from the mirror file. The table has precedence where it exists."""
        found = _parse_object(_read_text(self.path / "sessions" / "sessions.json"))
        return {key: entry for key, entry in found.items() if not key.startswith("_") and isinstance(entry, dict)}

    def read_pairings(self) -> dict[str, list[str]]:
        """Return platform -> ids of paired people."""
        found: dict[str, list[str]] = {}
        for folder in (self.path / "platforms" / "pairing", self.path / "pairing"):
            for file in sorted(folder.glob("*-approved.json")) if folder.is_dir() else ():
                platform = file.name.removesuffix("-approved.json")
                ids = [str(id) for id in _parse_object(_read_text(file))]
                found[platform] = list(dict.fromkeys([*found.get(platform, []), *ids]))
        return found


def find_profiles(path: Path) -> list[HermesProfile]:
    """Return the agents at `path`: a home with its profiles, one profile, or a `state.db`."""
    path = path.expanduser().absolute()
    if path.is_file():
        return [HermesProfile(_derive_agent_name(path.parent), path.parent)]
    if not is_hermes_home(path):
        raise InvalidRequest(
            f"{path} is not a home of hermes-agent", remedy="it has neither state.db nor config.yaml nor memories/"
        )
    home = path.parent.parent if path.parent.name == "profiles" else path
    found = [HermesProfile(_derive_agent_name(path), path, home)]
    below = path / "profiles"
    for folder in sorted(below.iterdir()) if below.is_dir() else ():
        if folder.is_dir() and is_hermes_home(folder):
            found.append(HermesProfile(_derive_agent_name(folder), folder, path))
    return found


def is_hermes_home(path: Path) -> bool:
    """Whether a directory is a home of hermes-agent. A `config.yaml` alone is not enough, because other programs have
    one, too.
    """
    return path.is_dir() and (
        (path / "state.db").is_file() or (path / "memories").is_dir() or (path / "SOUL.md").is_file()
    )


def _derive_agent_name(path: Path) -> str:
    if path.parent.name != "profiles":
        return MAIN_AGENT
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.name).strip("-")
    return name if name[:1].isalpha() else f"agent-{name}".strip("-")


def _read_text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode("utf-8-sig", "replace")
    except OSError:
        return None


def _parse_object(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
