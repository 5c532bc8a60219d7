"""The homes of a plug-in: one for each person and each room, so that what one person said is in no other's home.

A home that the configuration names belongs to the owner alone. Other homes lie in the instance's own directory. They
get copies of the plug-in's settings from the configured home, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from everhold.core.entries import Stamp
from everhold.hermes.memory.identity import build_person_key, choose_home_key, find_private_person, is_at_terminal

SETTINGS_NAMES: Final = ("config.yaml", "config.yml", ".env")
"""Files of hermes-agent's home with settings for any plug-in."""
SETTINGS_SUFFIXES: Final = ("json", "yaml", "yml", "toml")
MAX_SEED_BYTES: Final = 1_000_000
"""A larger file is no file of settings."""
MAX_PEOPLE_PER_HOME: Final = 1_000


class PluginHome(Struct, frozen=True, kw_only=True):
    """The home of a person or a room."""

    key: str
    path: Path
    is_owner: bool = False
    """Whether it is the owner's."""
    is_seeded: bool = True
    """Whether it gets copies of the settings. A home that the configuration names has its own."""


class PluginHomes:
    """All homes of one instance, and who spoke in which."""

    def __init__(
        self,
        directory: Path,
        *,
        configured: Path | None,
        plugin_names: Callable[[], Collection[str]],
        is_owner: Callable[[str], bool | None],
    ) -> None:
        """`plugin_names` are the names that the plug-in's files of settings may have. `is_owner` returns None if no
        owner is configured.
        """
        self.directory = directory
        self.configured = configured
        self._plugin_names = plugin_names
        self._is_configured_owner = is_owner
        self._state_file = directory / "homes.json"
        state = read_json(self._state_file)
        self._acting_owner = str(state.get("acting_owner", ""))
        """The first person at the terminal. They are the owner if none is configured."""
        self._people: dict[str, list[str]] = state.get("people", {})
        """Key of a home -> the people who spoke there."""
        self._made: dict[str, float] = state.get("made", {})
        """Key of a home -> when somebody first spoke there."""
        self.data_files: frozenset[str] = frozenset()
        """Names among the files of settings that the plug-in writes itself, so they contain data."""

    def choose_home(self, stamp: Stamp) -> PluginHome:
        key, person = choose_home_key(stamp), find_private_person(stamp)
        owner = bool(person) and self.is_owner(person, at_terminal=is_at_terminal(stamp))
        if owner and self.configured is not None:
            return PluginHome(key=key, path=self.configured, is_owner=True, is_seeded=False)
        return PluginHome(key=key, path=self.directory / "homes" / key, is_owner=owner)

    def is_owner(self, person: str, *, at_terminal: bool = False) -> bool:
        """Return whether a person is the owner. Without a configured one, it is the first person at the terminal."""
        configured = self._is_configured_owner(person)
        if configured is not None:
            return configured
        if at_terminal and not self._acting_owner:
            self._acting_owner = person
            self._save()
        return person == self._acting_owner

    def record_people(self, home: PluginHome, people: Iterable[str], *, at: float) -> None:
        """Record who spoke in a home, before anything is sent there."""
        known = self._people.get(home.key)
        merged = list(dict.fromkeys([*(known or ()), *people]))[:MAX_PEOPLE_PER_HOME]
        if merged != known:
            if not home.path.exists():
                self._made[home.key] = at
            self._people[home.key] = merged
            self._save()

    def is_only_home(self, home: PluginHome) -> bool:
        """Return whether nothing was sent to another home so far."""
        folder = self.directory / "homes"
        there = {it.name for it in folder.iterdir()} if folder.is_dir() else set()
        return not {*self._people, *there} - {home.key}

    @property
    def has_configured_owner(self) -> bool:
        return self._is_configured_owner("") is not None

    # -- settings ------------------------------------------------------------------------------------------------------

    def list_seed_files(self) -> list[Path]:
        """Return the files of settings in the configured home, whether or not they exist, without those with data."""
        if self.configured is None:
            return []
        names = sorted(self._plugin_names())
        files = [f"{name}.{suffix}" for name in names for suffix in SETTINGS_SUFFIXES]
        files += [f"{name}/config.{suffix}" for name in names for suffix in SETTINGS_SUFFIXES]
        return [self.configured / file for file in (*SETTINGS_NAMES, *files) if file not in self.data_files]

    def prepare(self, path: Path) -> None:
        """Make a home and copy the settings into it. A setting that was removed from the configured home is removed."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.configured is None:
            return
        for source in self.list_seed_files():
            target = path / source.relative_to(self.configured)
            content = _read_small_file(source)
            if content is None:
                target.unlink(missing_ok=True)
            elif not target.exists() or target.read_bytes() != content:
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                target.write_bytes(content)
                target.chmod(0o600)
        for name in self.data_files:
            # copied before it was known that it contains data of the configured home's owner
            copied, original = path / name, self.configured / name
            if copied.exists() and original.exists() and copied.read_bytes() == original.read_bytes():
                copied.unlink()

    def find_changed_seeds(self, path: Path) -> list[str]:
        """Return the copies in a home that differ from the configured home's, because the plug-in wrote to them."""
        if self.configured is None:
            return []
        files = [source.relative_to(self.configured) for source in self.list_seed_files()]
        return [str(it) for it in files if _read_small_file(path / it) != _read_small_file(self.configured / it)]

    def make_throwaway(self) -> Path:
        """Return a new directory for the homes of a test. Like the real ones, they have one parent."""
        return self.directory / "throwaway" / secrets.token_hex(8)

    def remove_throwaways(self, *, before: float) -> None:
        """Remove the directories that a killed process left."""
        folder = self.directory / "throwaway"
        for path in folder.iterdir() if folder.is_dir() else ():
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < before:
                    shutil.rmtree(path, ignore_errors=True)

    # -- forgetting ----------------------------------------------------------------------------------------------------

    def has_home(self, key: str) -> bool:
        """Return whether there is a home with this key."""
        return (self.directory / "homes" / key).exists()

    def get_made_at(self, key: str) -> float:
        """Return when a home was made; 0 if unknown. A person who comes back after an erasure gets a new one."""
        return self._made.get(key, 0.0)

    def list_homes_of(self, person: str) -> tuple[list[PluginHome], list[PluginHome]]:
        """Return the homes in which only this person spoke, and those in which others spoke, too."""
        key = build_person_key(person)
        alone: list[PluginHome] = []
        shared: list[PluginHome] = []
        for home_key in {key, *(it for it, people in self._people.items() if person in people)}:
            path = self.directory / "homes" / home_key
            home = PluginHome(key=home_key, path=path)
            if home_key == key and self.configured is not None and self.is_owner(person):
                home = PluginHome(key=home_key, path=self.configured, is_owner=True, is_seeded=False)
            elif home_key not in self._people and not path.exists():
                continue
            others = set(self._people.get(home_key, ())) - {person}
            (shared if others else alone).append(home)
        return sorted(alone, key=lambda it: it.key), sorted(shared, key=lambda it: it.key)

    def remove(self, home: PluginHome, person: str) -> bool:
        """Remove a home with everything in it. Return whether it is gone. The configured home is never removed."""
        if home.path != self.configured:
            shutil.rmtree(home.path, ignore_errors=True)
        if not home.path.exists():
            self._made.pop(home.key, None)
        self.drop_person(home, person)
        return not home.path.exists()

    def drop_person(self, home: PluginHome, person: str) -> None:
        left = [it for it in self._people.get(home.key, ()) if it != person]
        if left:
            self._people[home.key] = left
        else:
            self._people.pop(home.key, None)
        if self._acting_owner == person:
            self._acting_owner = ""
        self._save()

    def _save(self) -> None:
        write_json(self._state_file, {"acting_owner": self._acting_owner, "people": self._people, "made": self._made})


def _read_small_file(path: Path) -> bytes | None:
    """Return the content of a file; None if there is none, or it is too large for settings."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_SEED_BYTES:
            return None
        return path.read_bytes()
    except OSError:
        return None


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a file that may be lost, because its content can be determined again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = path.with_suffix(".new")
        scratch.write_text(json.dumps(value, sort_keys=True))
        scratch.chmod(0o600)
        scratch.replace(path)
