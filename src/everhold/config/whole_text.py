"""Read, check and replace the whole text of config.yaml, and keep the texts that were replaced.

A writer names the text that it started from, so two writers cannot overwrite each other unnoticed. A text that is not
valid is never written. Any earlier text can be written again, byte for byte.
"""

from __future__ import annotations

import difflib
import hashlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from everhold.config.edit import edit_text, split_key
from everhold.config.errors import ConfigError, ConfigProblem
from everhold.config.loader import load_settings
from everhold.config.settings import Settings, ValidatePlugin, list_keys_awaiting_restart
from everhold.errors import Conflict, NotFound
from everhold.infra.home import DIRECTORY_MODE, MAX_READ_BYTES, Home, read_file, write_file

MAX_VERSIONS: Final = 50
DIGEST_CHARS: Final = 16


class ConfigVersion(Struct, frozen=True, kw_only=True):
    """A text of config.yaml that another one replaced at `at`."""

    id: int
    at: float
    by: str
    """Who replaced it."""
    text: str


class ConfigCheck(Struct, frozen=True, kw_only=True):
    """What a text would change."""

    text: str
    diff: str
    problems: tuple[ConfigProblem, ...] = ()
    is_valid: bool = True
    restart: tuple[str, ...] = ()
    """Keys that take effect with the next start."""
    revision: str = ""


def compute_text_digest(data: bytes) -> str:
    """Return the digest by which a writer names the text that it started from."""
    return hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]


class ConfigText:
    """The text of one home's config.yaml. Its methods read files, so they run on a thread."""

    def __init__(
        self,
        home: Home,
        *,
        environ: Mapping[str, str],
        validate_plugin: ValidatePlugin,
        get_start_settings: Callable[[], Settings],
        now: Callable[[], float],
    ) -> None:
        """`get_start_settings`: those at the start of this process, because some stay in force until the next one."""
        self._home = home
        self._environ = environ
        self._validate_plugin = validate_plugin
        self._get_start_settings = get_start_settings
        self._now = now
        self._lock = threading.Lock()

    def read(self) -> tuple[str, str]:
        """Return the text and its digest."""
        data = read_file(self._home.config) or b""
        return _decode(data), compute_text_digest(data)

    def apply_values(self, values: Mapping[str, Any]) -> str:
        """Return the present text with other values at some keys, and nothing else changed. None unsets a key."""
        text, _ = self.read()
        for key, value in values.items():
            text = edit_text(text, split_key(key), value)
        return text

    def check(self, text: str) -> ConfigCheck:
        """Return what `text` would change, and what is wrong with it."""
        old, _ = self.read()
        diff = "".join(
            difflib.unified_diff(old.splitlines(True), text.splitlines(True), "config.yaml", "config.yaml (new)", n=2)
        )
        try:
            settings = self._load(text)
        except ConfigError as error:
            return ConfigCheck(text=text, diff=diff, problems=error.problems, is_valid=False)
        return ConfigCheck(
            text=text,
            diff=diff,
            problems=settings.problems,
            restart=tuple(list_keys_awaiting_restart(self._get_start_settings(), settings)),
            revision=settings.revision,
        )

    def replace(self, text: str, *, base: str, by: str) -> str:
        """Write `text` unless it is invalid, and return its digest. `base` is the digest of the text that it changes.

        Raises Conflict if the file has another text by now, ConfigError if the text is invalid.
        """
        with self._lock:
            old = read_file(self._home.config) or b""
            if compute_text_digest(old) != base:
                raise Conflict(
                    "config.yaml was changed since it was read", remedy="read it again, and repeat your change"
                )
            self._load(text)
            new = text.encode()
            if new != old:
                self._keep_version(_decode(old), by)
                write_file(self._home.config.resolve(), new, mode=None)
            return compute_text_digest(new)

    def list_versions(self) -> list[ConfigVersion]:
        """Return the replaced texts, the last one first."""
        found = [msgspec.json.decode(path.read_bytes(), type=ConfigVersion) for path in self._list_files()]
        return sorted(found, key=lambda it: it.id, reverse=True)

    def get_version(self, id: int) -> ConfigVersion:
        for version in self.list_versions():
            if version.id == id:
                return version
        raise NotFound(f"there is no earlier text {id}", remedy="GET /api/config/versions lists them")

    def _load(self, text: str) -> Settings:
        data = text.encode("utf-8", "surrogatepass")
        if len(data) > MAX_READ_BYTES:
            problem = ConfigProblem("is too large", f"use at most {MAX_READ_BYTES:,} bytes", file="config.yaml")
            raise ConfigError([problem])
        return load_settings(self._home, environ=self._environ, validate_plugin=self._validate_plugin, text=data)

    def _keep_version(self, text: str, by: str) -> None:
        directory = self._home.config_versions
        directory.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        files = self._list_files()
        id = int(files[-1].stem) + 1 if files else 1
        version = ConfigVersion(id=id, at=self._now(), by=by, text=text)
        write_file(directory / f"{id:08}.json", msgspec.json.encode(version))
        for path in files[: max(0, len(files) + 1 - MAX_VERSIONS)]:
            path.unlink()

    def _list_files(self) -> list[Path]:
        """Return the files of the versions, the oldest first."""
        directory = self._home.config_versions
        return sorted(path for path in directory.glob("*.json") if path.stem.isdecimal())


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        problem = ConfigProblem("is not UTF-8 text", "save the file as UTF-8", file="config.yaml")
        raise ConfigError([problem]) from None
