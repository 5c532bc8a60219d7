"""Reads the files of a home: profiles, settings, memory files, allowed people. Nothing is read through a symbolic
link.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from everhold.config.secrets import parse_env
from everhold.core import memory_files as core_memory_files
from everhold.core.memory_files import PERSONA_FILE
from everhold.errors import InvalidRequest
from everhold.infra.safe_folder import SafeFolder
from everhold.infra.safe_yaml import TooManyAliases, load_foreign_yaml
from everhold.infra.secret import SecretString

MAIN_AGENT: Final = "main"
PROVIDER_FILES: Final = {
    "honcho": "honcho.json",
    "hindsight": "hindsight/config.json",
    "mem0": "mem0.json",
    "supermemory": "supermemory.json",
}
_SHARED_PROVIDER_FILES: Final = {"honcho": ".honcho/config.json", "hindsight": ".hindsight/config.json"}
"""Settings beside the home that several programs of one user share. They are not part of an imported home."""
_PAIRING_SUFFIX: Final = "-approved.json"
DATABASE_NAME: Final = "state.db"
MAX_YAML_ALIASES: Final = 20
"""Aliases of aliases multiply what a small file contains."""
_DATABASE_SIDES: Final = ("", "-wal", "-shm")


@dataclass(frozen=True)
class HermesProfile:
    """One agent of hermes-agent: the home itself, or a directory below `profiles/`."""

    name: str
    """The agent's name in everhold."""
    path: Path
    home: Path | None = None
    """The home that it is a profile of; None if unknown."""
    is_alone: bool = False
    """Only the profile is imported, and not the rest of the home."""
    database_name: str = DATABASE_NAME

    @property
    def database(self) -> Path:
        return self.path / self.database_name

    @property
    def log(self) -> Path:
        return self.path / "logs" / "agent.log"

    @cached_property
    def files(self) -> SafeFolder:
        return SafeFolder(self.path)

    @cached_property
    def _shared_files(self) -> dict[Path, SafeFolder]:
        """Folders outside the profile that settings were read from."""
        return {}

    def list_refused(self) -> dict[str, str]:
        """Return the files that were not read so far, and the reasons."""
        found = dict(self.files.refused)
        for root, folder in self._shared_files.items():
            found |= {str(root / name): reason for name, reason in folder.refused.items()}
        return found

    def has_database(self) -> bool:
        """Whether there is a database that may be opened. SQLite opens the files beside it, too."""
        kinds = [self.files.find_kind(f"{self.database_name}{side}") for side in _DATABASE_SIDES]
        return kinds[0] == "file" and not any(self.database_name + side in self.refused for side in _DATABASE_SIDES)

    @property
    def refused(self) -> dict[str, str]:
        return self.files.refused

    @cached_property
    def config(self) -> dict[str, Any]:
        """Return config.yaml; empty if there is none or it cannot be read."""
        text = self.files.read_text("config.yaml") or ""
        try:
            found = load_foreign_yaml(text, most_aliases=MAX_YAML_ALIASES)
        except TooManyAliases as error:
            self.refused["config.yaml"] = str(error)
            return {}
        except ValueError as error:  # also for a date that does not exist
            self.refused["config.yaml"] = f"is not valid YAML ({error})"
            return {}
        return found if isinstance(found, dict) else {}

    @cached_property
    def env(self) -> dict[str, SecretString]:
        lines, _ = parse_env((self.files.read_text(".env") or "").encode())
        return {line.name: line.value for line in lines}

    @cached_property
    def soul(self) -> str:
        """Return the persona. It is never a memory, wherever the file is."""
        texts = (self.files.read_text(name) for name in (PERSONA_FILE, f"memories/{PERSONA_FILE}"))
        return next((text.strip() for text in texts if text and text.strip()), "")

    def read_memory_entries(self, name: str) -> list[str]:
        """Return the entries of `MEMORY.md` or `USER.md`."""
        text = self.files.read_text(f"memories/{name}") or self.files.read_text(name) or ""
        return core_memory_files.parse_memory_file(text)

    @property
    def memory_files(self) -> list[str]:
        """Return the memory files of the agent and other Markdown files beside them."""
        others = [name for name in self.files.list_names("memories") if name.endswith(".md")]
        found = dict.fromkeys((*core_memory_files.TARGET_BY_FILE, *others))
        return sorted(
            (name for name in found if name.lower() != PERSONA_FILE.lower()),
            key=lambda name: (name != "MEMORY.md", name != "USER.md", name),
        )

    def read_provider_settings(self, name: str, *, in_use: bool) -> dict[str, Any]:
        """Return a memory service's own settings: this profile's; if it is `in_use`, else the imported home's."""
        places = [(self.files, PROVIDER_FILES[name])]
        if in_use and self.home is not None and not self.is_alone and name == "honcho":
            places.append((self._get_shared(self.home), PROVIDER_FILES[name]))
        return next((found for folder, file in places if (found := _read_object(folder, file))), {})

    def list_outside_settings(self, name: str) -> list[Path]:
        """Return the files outside the imported home that hermes-agent falls back to. They are never read: they may
        contain a key of this user, and the imported home may say to which address it is sent.
        """
        if self.home is None or name not in _SHARED_PROVIDER_FILES:
            return []
        places = [(self.home.parent, _SHARED_PROVIDER_FILES[name])]
        if self.is_alone and name == "honcho":
            places.insert(0, (self.home, PROVIDER_FILES[name]))
        return [root / file for root, file in places if self._get_shared(root).has_file(file)]

    def _get_shared(self, root: Path) -> SafeFolder:
        if root == self.path:
            return self.files
        return self._shared_files.setdefault(root, SafeFolder(root))

    @cached_property
    def routing(self) -> dict[str, dict[str, Any]]:
        """Return session key -> entry from the mirror file. The table has precedence where it exists."""
        found = _read_object(self.files, "sessions/sessions.json")
        return {key: entry for key, entry in found.items() if not key.startswith("_") and isinstance(entry, dict)}

    def read_pairings(self) -> dict[str, list[str]]:
        """Return platform -> ids of paired people."""
        found: dict[str, list[str]] = {}
        for folder in ("platforms/pairing", "pairing"):
            for name in self.files.list_names(folder):
                if name.endswith(_PAIRING_SUFFIX):
                    platform = name.removesuffix(_PAIRING_SUFFIX)
                    ids = [str(id) for id in _read_object(self.files, f"{folder}/{name}")]
                    found[platform] = list(dict.fromkeys([*found.get(platform, []), *ids]))
        return found


def find_profiles(path: Path) -> list[HermesProfile]:
    """Return the agents at `path`: a home with its profiles, one profile, or a `state.db`."""
    path = path.expanduser().absolute()
    if path.is_file():
        return [HermesProfile(_derive_agent_name(path.parent), path.parent, database_name=path.name)]
    if not is_hermes_home(path):
        raise InvalidRequest(
            f"{path} is not a home of hermes-agent", remedy="it has neither state.db nor memories/ nor a configuration"
        )
    is_alone = path.parent.name == "profiles"
    home = path.parent.parent if is_alone else path
    main = HermesProfile(_derive_agent_name(path), path, home, is_alone=is_alone)
    found = [main]
    for name in main.files.list_names("profiles"):
        folder = path / "profiles" / name
        if main.files.has_folder(f"profiles/{name}") and is_hermes_home(folder):
            found.append(HermesProfile(_derive_agent_name(folder), folder, path))
    return found


def is_hermes_home(path: Path) -> bool:
    """Whether a directory is a home of hermes-agent. A `config.yaml` or a `SOUL.md` alone is not enough, because other
    programs have one, too.
    """
    if not path.is_dir():
        return False
    files = SafeFolder(path)
    if files.has_file(DATABASE_NAME) or files.has_folder("memories"):
        return True
    # A link in their place also shows a home, whose import refuses the link.
    return bool(files.refused) or (files.has_file(PERSONA_FILE) and files.has_file("config.yaml"))


def _derive_agent_name(path: Path) -> str:
    if path.parent.name != "profiles":
        return MAIN_AGENT
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.name).strip("-")
    return name if name[:1].isalpha() else f"agent-{name}".strip("-")


def _read_object(folder: SafeFolder, name: str) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is none. A file that holds something else is refused."""
    text = folder.read_text(name)
    if not text or not text.strip():
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        folder.refused[name] = "is not valid JSON"
        return {}
    return found
