"""Configuration: `config.yaml` and `.env` become one frozen Settings. Nobody else reads either.

    settings = load(home, environ=os.environ)          # or ConfigError, with everything that is wrong
    settings.agent("coder").budget.usd_per_day

The names below are imported when they are first used: a command that needs no configuration does not pay for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from everhold.config.display import show as show, to_yaml as to_yaml
    from everhold.config.edit import get_key as get_key, set_key as set_key, set_secret as set_secret
    from everhold.config.fit import (
        plugin_problems as plugin_problems,
        plugin_settings as plugin_settings,
        plugin_validator as plugin_validator,
    )
    from everhold.config.loader import keep_last_good as keep_last_good, load as load, parse as parse
    from everhold.config.problems import ConfigError as ConfigError, Problem as Problem
    from everhold.config.settings import (
        AccountSettings as AccountSettings,
        AgentSettings as AgentSettings,
        McpSettings as McpSettings,
        MemorySettings as MemorySettings,
        ModelSettings as ModelSettings,
        Settings as Settings,
    )
    from everhold.config.watch import Watcher as Watcher

_HOMES: Final = {
    "edit": ("get_key", "set_key", "set_secret"),
    "fit": ("plugin_problems", "plugin_settings", "plugin_validator"),
    "loader": ("keep_last_good", "load", "parse"),
    "problems": ("ConfigError", "Problem"),
    "settings": (
        "AccountSettings", "AgentSettings", "McpSettings", "MemorySettings", "ModelSettings", "Settings",
    ),
    "display": ("show", "to_yaml"),
    "watch": ("Watcher",),
}  # fmt: skip
_MODULE_OF: Final = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605  # the table above is the list


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
