"""Show the configuration in force. A secret is shown as the name of its variable, never as its value."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML

from everhold.config.errors import ConfigProblem, format_key_path
from everhold.config.settings import AgentSettings, PluginConfigSection, Settings, list_given_fields
from everhold.config.values import ConfigSection, thaw_value
from everhold.infra.secret import SecretString


def show_settings(settings: Settings) -> dict[str, Any]:
    """Return everything in force under the keys of config.yaml, as plain values.

    `defaults` are merged into the agents. The result is a valid configuration with the same effect.
    """
    models = {name: _show_section(model) for name, model in settings.models.items()}
    shown = _show_section(settings)
    del shown["defaults"]
    if not settings.store.is_server:
        shown["store"] = "sqlite"
    shown["models"] = {name: model for name, model in models.items() if "." not in name}
    shown["agents"] = {name: _show_agent(agent, models) for name, agent in settings.agents.items()}
    return shown


def to_yaml(value: Any) -> str:
    """Return `value` as YAML text."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.allow_unicode = True
    yaml.width = 120
    yaml.representer.sort_base_mapping_type_on_output = False
    stream = io.StringIO()
    yaml.dump(thaw_value(value), stream)
    return stream.getvalue()


def _show_agent(agent: AgentSettings, models: Mapping[str, Any]) -> dict[str, Any]:
    def model(name: str) -> Any:
        """Return an inline model as its mapping, and any other model as its name."""
        return models[name] if "." in name else name

    shown = _show_section(agent)
    if agent.persona_file:
        shown["persona"] = {"file": agent.persona_file}
    shown["model"] = model(agent.model)
    shown["fallback"] = [model(name) for name in agent.fallback]
    if agent.compression.model is not None:
        shown["compression"]["model"] = model(agent.compression.model)
    shown["tools"] = [
        {"name": tool, "needs": agent.tool_needs[tool]} if tool in agent.tool_needs else tool for tool in agent.tools
    ]
    shown["memories"] = [{"name": memory.name, **_show_section(memory)} for memory in agent.memories]
    return shown


def _show_section(part: ConfigSection) -> dict[str, Any]:
    shown = {name: _show_value(getattr(part, name)) for name in list_given_fields(type(part))}
    shown = {name: value for name, value in shown.items() if value is not None and value != ""}
    return shown | _show_plugin_keys(part.extra, part.env) if isinstance(part, PluginConfigSection) else shown


def _show_value(value: Any) -> Any:
    if isinstance(value, ConfigSection):
        return _show_section(value)
    if isinstance(value, Mapping):
        return {key: _show_value(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_show_value(item) for item in value]
    return str(value) if isinstance(value, SecretString) else value


def _show_plugin_keys(extra: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Return a plug-in's own keys as they were written: a secret as the name of its variable, also if it is not set."""
    shown: dict[str, Any] = {}

    def walk(value: Any, into: dict[str, Any], path: tuple[str | int, ...]) -> None:
        for key, item in value.items():
            place = (*path, key)
            if isinstance(item, SecretString):
                into[f"{key}_env"] = env.get(format_key_path(place), str(item))
            elif isinstance(item, Mapping):
                walk(item, into.setdefault(key, {}), place)
            else:
                into[key] = _show_value(item)

    walk(extra, shown, ())
    for key, name in env.items():
        if "." not in key and "[" not in key:
            shown.setdefault(f"{key}_env", name)
    return shown


def render_problem(problem: ConfigProblem) -> dict[str, Any]:
    """Return a problem as plain data."""
    return {
        "file": problem.file,
        "line": problem.line,
        "key": problem.key,
        "message": problem.message,
        "remedy": problem.remedy,
        "fatal": problem.fatal,
        "disables": problem.disables,
        "cause": problem.cause or "",
    }
