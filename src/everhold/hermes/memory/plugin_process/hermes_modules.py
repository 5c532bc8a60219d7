"""Provides the modules that memory plug-ins import, written from their documented contract. Used in the host process
only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sqlite3
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any

MEMORY_CONTEXT_TAG = re.compile(r"<(/?)memory-context>", re.IGNORECASE)
TRUE_VALUES = ("1", "true", "yes", "on")


class HermesMemoryProvider:
    """The base class. All but the first four methods are optional."""

    @property
    def name(self) -> str:
        return type(self).__name__

    def is_available(self) -> bool:
        return True

    def initialize(self, session_id: str, **kwargs: Any) -> None: ...

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return []

    def system_prompt_block(self) -> str:
        return ""

    def prefetch(self, query: str, *, session_id: str = "") -> str:
        return ""

    def queue_prefetch(self, query: str, *, session_id: str = "") -> None: ...

    def sync_turn(
        self, user_content: str, assistant_content: str, *, session_id: str = "", messages: Any = None
    ) -> None: ...

    def handle_tool_call(self, tool_name: str, args: dict[str, Any], **kwargs: Any) -> str:
        return tool_error(f"{self.name} has no tool {tool_name}")

    def shutdown(self) -> None: ...

    def on_turn_start(self, turn_number: int, message: str, **kwargs: Any) -> None: ...

    def on_session_end(self, messages: list[dict[str, Any]]) -> None: ...

    def on_session_switch(
        self,
        new_session_id: str,
        *,
        parent_session_id: str = "",
        reset: bool = False,
        rewound: bool = False,
        **kwargs: Any,
    ) -> None: ...

    def on_pre_compress(self, messages: list[dict[str, Any]]) -> str:
        return ""

    def on_delegation(self, task: str, result: str, *, child_session_id: str = "", **kwargs: Any) -> None: ...

    def on_memory_write(
        self, action: str, target: str, content: str, metadata: dict[str, Any] | None = None
    ) -> None: ...

    def get_config_schema(self) -> list[dict[str, Any]]:
        return []

    def save_config(self, values: dict[str, Any], hermes_home: str) -> None: ...

    def backup_paths(self) -> list[str]:
        return []


# -- functions that plug-ins call --------------------------------------------------------------------------------------


def tool_error(message: object, **extra: Any) -> str:
    return json.dumps({"error": str(message), **extra}, ensure_ascii=False)


def tool_result(data: object = None, **extra: Any) -> str:
    return json.dumps({**data, **extra} if isinstance(data, dict) else extra if data is None else data, default=str)


def get_hermes_home() -> Path:
    return Path(os.environ["HERMES_HOME"])


def display_hermes_home() -> str:
    return str(get_hermes_home())


def config_value(config: object, *keys: str, default: Any = None) -> Any:
    for key in keys:
        if not isinstance(config, dict) or key not in config:
            return default
        config = config[key]
    return default if config is None else config


def load_config() -> dict[str, Any]:
    path = get_hermes_home() / "config.yaml"
    if not path.exists():
        return {}
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]  # the plug-in's interpreter may have it
    except ImportError:
        sys.stderr.write(f"{path} is not read: install pyyaml in the plug-in's Python\n")
        return {}
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}


def save_config(config: dict[str, Any]) -> None:
    sys.stderr.write("the plug-in tried to change config.yaml of hermes-agent; only its owner changes that file\n")


def atomic_json_write(path: object, data: object, *, mode: int | None = None, indent: int = 2, **_: Any) -> None:
    target = Path(str(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(data, file, indent=indent, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o600 if mode is None else mode)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def env_var_enabled(name: str, default: str = "") -> bool:
    return os.environ.get(name, default).strip().lower() in TRUE_VALUES


def sanitize_context(text: str) -> str:
    """Return a text without the recalled context in it."""
    kept: list[str] = []
    at, opened = 0, -1
    for tag in MEMORY_CONTEXT_TAG.finditer(text):
        if not tag[1] and opened < 0:
            opened = tag.start()
        elif tag[1] and opened >= 0:
            kept.append(text[at:opened])
            at, opened = tag.end(), -1
    return "".join([*kept, text[at:]])


def flatten_message_text(content: object) -> str:
    if isinstance(content, list):
        parts = [part.get("text", "") if isinstance(part, dict) else str(part) for part in content]
        return "\n".join(part for part in parts if part)
    return "" if content is None else str(content)


def raise_if_read_blocked(path: str) -> None:
    """Refuse to read a path outside the plug-in's home, because a path from a conversation may name any file."""
    home = get_hermes_home().resolve()
    if home not in (Path(path).resolve(), *Path(path).resolve().parents):
        raise PermissionError(f"{path} lies outside of {home}")


def is_trivial_prompt(text: str) -> bool:
    return len(text.split()) < 2


def spawn_context_thread(target: Any, *args: Any, name: str | None = None, daemon: bool = True, **kwargs: Any) -> Any:
    thread = threading.Thread(target=target, args=args, kwargs=kwargs, name=name, daemon=daemon)
    thread.start()
    return thread


def safe_schedule_threadsafe(coroutine: Any, loop: Any, **_: Any) -> Any:
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        return None


def apply_wal_with_fallback(connection: sqlite3.Connection, **_: Any) -> str:
    for mode in ("wal", "delete"):
        try:
            found = connection.execute(f"pragma journal_mode={mode}").fetchone()
        except sqlite3.OperationalError:
            continue
        if found and str(found[0]).lower() == mode:
            return mode
    return ""


class SingletonSlot:
    """Holds one object of a plug-in, created on first use."""

    def __init__(self, factory: Any = None) -> None:
        self._factory = factory
        self._lock = threading.RLock()
        self._value: Any = None

    def get(self, factory: Any = None, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            make = factory or self._factory
            if self._value is None and make is not None:
                self._value = make(*args, **kwargs)
            return self._value

    get_or_create = get

    def peek(self) -> Any:
        return self._value

    def set(self, value: Any) -> None:
        with self._lock:
            self._value = value

    def reset(self) -> None:
        self.set(None)

    clear = reset


class FeatureUnavailable(ImportError):
    """A package that the plug-in needs is missing. Packages are never installed automatically."""


def ensure(feature: str, **_: Any) -> None:
    """Do nothing: a missing package shows when it is imported, and the owner of the plug-in installs it."""


class RecallStatus(str):
    """The result of a recall, in one word."""


# -- modules -----------------------------------------------------------------------------------------------------------


def _make_missing_member(module: str, member: str) -> Any:
    """Return a function that raises when it is called, so that unsupported members can be imported. Most are for setup
    only.
    """
    if member.startswith("__"):
        raise AttributeError(member)

    def missing(*_: Any, **__: Any) -> Any:
        raise FeatureUnavailable(f"{module}.{member} is not available to plug-ins here")

    return missing


def _create_module(name: str, **members: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []  # so that submodules can be found
    module.__getattr__ = lambda member: _make_missing_member(name, member)  # type: ignore[method-assign]
    for key, value in members.items():
        setattr(module, key, value)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    return module


def install_modules() -> None:
    """Make the modules importable. Their names are as general as `utils`, which is why plug-ins run in their own
    process.
    """

    def secret(name: str, default: Any = None) -> Any:
        return os.environ.get(name, default)

    _create_module("agent")
    _create_module(
        "agent.memory_provider",
        MemoryProvider=HermesMemoryProvider,
        RecallStatus=RecallStatus,
        is_trivial_prompt=is_trivial_prompt,
        spawn_context_thread=spawn_context_thread,
    )
    _create_module("agent.memory_manager", sanitize_context=sanitize_context)
    _create_module("agent.file_safety", raise_if_read_blocked=raise_if_read_blocked)
    _create_module("agent.message_content", flatten_message_text=flatten_message_text)
    _create_module("agent.skill_commands", extract_user_instruction_from_skill_message=lambda text: text)
    _create_module("agent.async_utils", safe_schedule_threadsafe=safe_schedule_threadsafe)
    _create_module("agent.secret_scope", get_secret=secret, is_multiplex_active=lambda: False)
    _create_module("tools")
    _create_module("tools.registry", tool_error=tool_error, tool_result=tool_result)
    _create_module("tools.lazy_deps", ensure=ensure, FeatureUnavailable=FeatureUnavailable)
    _create_module(
        "hermes_constants",
        get_hermes_home=get_hermes_home,
        display_hermes_home=display_hermes_home,
        hermes_home_key=lambda home=None: str(home or get_hermes_home()),
    )
    _create_module("hermes_cli", __version__="0.19.0")
    _create_module(
        "hermes_cli.config",
        cfg_get=config_value,
        load_config=load_config,
        load_config_readonly=load_config,
        save_config=save_config,
    )
    _create_module("hermes_cli.profiles", _get_default_hermes_home=get_hermes_home)
    _create_module("hermes_state", apply_wal_with_fallback=apply_wal_with_fallback)
    _create_module(
        "utils",
        atomic_json_write=atomic_json_write,
        env_var_enabled=env_var_enabled,
        is_truthy_value=lambda value, default=False: (
            default if value is None else str(value).strip().lower() in TRUE_VALUES
        ),
    )
    _create_module("plugins")
    _create_module("plugins.plugin_utils", SingletonSlot=SingletonSlot)
    _create_module("plugins.memory")
