"""Read `config.yaml` and `.env` into one frozen Settings. No other package reads these files.

    settings = load_settings(home, environ=os.environ)  # raises ConfigError, which lists every problem
    settings.get_agent("coder").budget.usd_per_day

The names below are imported on first use, so that a command without configuration starts faster.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from everhold.config.display import show_settings as show_settings, to_yaml as to_yaml
    from everhold.config.edit import get_key as get_key, set_key as set_key, set_secret as set_secret
    from everhold.config.errors import ConfigError as ConfigError, ConfigProblem as ConfigProblem
    from everhold.config.loader import (
        load_settings as load_settings,
        parse_settings as parse_settings,
        store_last_good as store_last_good,
    )
    from everhold.config.plugin_sections import (
        build_plugin_settings as build_plugin_settings,
        find_plugin_problems as find_plugin_problems,
        make_plugin_validator as make_plugin_validator,
    )
    from everhold.config.settings import (
        AccountSettings as AccountSettings,
        AgentSettings as AgentSettings,
        McpSettings as McpSettings,
        MemorySettings as MemorySettings,
        ModelSettings as ModelSettings,
        Settings as Settings,
    )
    from everhold.config.watch import ConfigWatcher as ConfigWatcher

_NAMES_BY_MODULE: Final = {
    "display": ("show_settings", "to_yaml"),
    "edit": ("get_key", "set_key", "set_secret"),
    "errors": ("ConfigError", "ConfigProblem"),
    "loader": ("load_settings", "parse_settings", "store_last_good"),
    "plugin_sections": ("build_plugin_settings", "find_plugin_problems", "make_plugin_validator"),
    "settings": (
        "AccountSettings", "AgentSettings", "McpSettings", "MemorySettings", "ModelSettings", "Settings",
    ),
    "watch": ("ConfigWatcher",),
}  # fmt: skip
_MODULE_BY_NAME: Final = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = sorted(_MODULE_BY_NAME)  # noqa: PLE0605  # the table above is the list


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_BY_NAME[name]}"), name)
