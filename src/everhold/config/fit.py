"""Between a section of the configuration and the plug-in that reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from everhold.config.explain import problems_of
from everhold.config.problems import Problem
from everhold.config.settings import (
    AccountSettings,
    MemorySettings,
    ModelSettings,
    PluginPart,
    ToolSettings,
    ValidatePlugin,
    given_fields,
)
from everhold.config.values import thaw
from everhold.errors import Misuse, NotFound
from everhold.secret import Secret

_PARTS: Final[Mapping[str, type[PluginPart]]] = {
    "models": ModelSettings,
    "memories": MemorySettings,
    "platforms": AccountSettings,
    "tools": ToolSettings,
}


def plugin_settings(section: PluginPart, model: type[BaseModel]) -> BaseModel:
    """A section as the plug-in's own `Settings`. Raises pydantic's ValidationError; loading has checked it before."""
    values = dict(section.extra)
    for name in given_fields(type(section)):
        bare = name.removesuffix("_env")
        if bare in section.model_fields_set or name in section.model_fields_set:
            values[bare] = getattr(section, bare)
    return model.model_validate(_fitting(values, model, type(section)))


def plugin_problems(group: str, model: type[BaseModel], raw: Mapping[str, Any]) -> list[Problem]:
    """What a plug-in's own `Settings` finds wrong with a section; typing errors are compared with our keys, too."""
    part = _PARTS.get(group)
    try:
        model.model_validate(_fitting(raw, model, part))
    except ValidationError as error:
        return problems_of(error, model, also=given_fields(part) if part else ())
    return []


def plugin_validator(settings_of: Callable[[str, str], type[BaseModel]]) -> ValidatePlugin:
    """For `load`: asks each plug-in's own model. One that is not installed disables only its section."""

    def validate(group: str, name: str, raw: Mapping[str, Any]) -> list[Problem]:
        try:
            model = settings_of(group, name)
        except (NotFound, Misuse) as error:
            return [Problem(error.message, error.remedy, fatal=False, disables=f"{group}.{name}")]
        return plugin_problems(group, model, raw)

    return validate


def _fitting(values: Mapping[str, Any], model: type[BaseModel], part: type[PluginPart] | None) -> dict[str, Any]:
    """What a plug-in gets: its own keys, and of ours those it declares. It may call a secret X or X_env."""
    ours = {name.removesuffix("_env") for name in given_fields(part)} if part else set()
    fitting: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{key}_env" if isinstance(value, Secret) and key not in model.model_fields else key
        if name not in model.model_fields and isinstance(value, Secret):
            name = key
        if key in ours and name not in model.model_fields:
            continue
        fitting[name] = _plain(value)
    return fitting


def _plain(value: Any) -> Any:
    if isinstance(value, PluginPart | BaseModel):
        return value.model_dump(exclude_unset=True)
    return thaw(value)
