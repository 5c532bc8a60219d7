"""Between a section of the configuration and the plug-in that reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from everhold.config.errors import ConfigProblem
from everhold.config.settings import (
    AccountSettings,
    MemorySettings,
    ModelSettings,
    PluginConfigSection,
    ToolSettings,
    ValidatePlugin,
    list_given_fields,
)
from everhold.config.validation_messages import explain_validation_error
from everhold.config.values import thaw_value
from everhold.errors import InvalidRequest, NotFound
from everhold.infra.secret import SecretString

_SECTION_TYPES: Final[Mapping[str, type[PluginConfigSection]]] = {
    "models": ModelSettings,
    "memories": MemorySettings,
    "platforms": AccountSettings,
    "tools": ToolSettings,
}


def build_plugin_settings(section: PluginConfigSection, model: type[BaseModel]) -> BaseModel:
    """A section as the plug-in's own `Settings`. Raises pydantic's ValidationError; loading has checked it before."""
    values = dict(section.extra)
    for name in list_given_fields(type(section)):
        bare = name.removesuffix("_env")
        if bare in section.model_fields_set or name in section.model_fields_set:
            values[bare] = getattr(section, bare)
    return model.model_validate(_select_plugin_values(values, model, type(section)))


def find_plugin_problems(group: str, model: type[BaseModel], raw: Mapping[str, Any]) -> list[ConfigProblem]:
    """What a plug-in's own `Settings` finds wrong with a section; typing errors are compared with our keys, too."""
    part = _SECTION_TYPES.get(group)
    try:
        model.model_validate(_select_plugin_values(raw, model, part))
    except ValidationError as error:
        return explain_validation_error(error, model, also=list_given_fields(part) if part else ())
    return []


def make_plugin_validator(settings_of: Callable[[str, str], type[BaseModel]]) -> ValidatePlugin:
    """For `load`: asks each plug-in's own model. One that is not installed disables only its section."""

    def validate(group: str, name: str, raw: Mapping[str, Any]) -> list[ConfigProblem]:
        try:
            model = settings_of(group, name)
        except (NotFound, InvalidRequest) as error:
            return [ConfigProblem(error.message, error.remedy, fatal=False, disables=f"{group}.{name}")]
        return find_plugin_problems(group, model, raw)

    return validate


def _select_plugin_values(
    values: Mapping[str, Any], model: type[BaseModel], part: type[PluginConfigSection] | None
) -> dict[str, Any]:
    """What a plug-in gets: its own keys, and of ours those it declares. It may call a secret X or X_env."""
    ours = {name.removesuffix("_env") for name in list_given_fields(part)} if part else set()
    fitting: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{key}_env" if isinstance(value, SecretString) and key not in model.model_fields else key
        if name not in model.model_fields and isinstance(value, SecretString):
            name = key
        if key in ours and name not in model.model_fields:
            continue
        fitting[name] = _to_plain(value)
    return fitting


def _to_plain(value: Any) -> Any:
    if isinstance(value, PluginConfigSection | BaseModel):
        return value.model_dump(exclude_unset=True)
    return thaw_value(value)
