"""Convert a section of the configuration into the settings of its plug-in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from everhold.config.errors import ConfigProblem, ProblemCause
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
    """Return a section as the plug-in's `Settings`. Raises ValidationError, which loading has ruled out before."""
    values = dict(section.extra)
    for name in list_given_fields(type(section)):
        bare = name.removesuffix("_env")
        if bare in section.model_fields_set or name in section.model_fields_set:
            values[bare] = getattr(section, bare)
    return model.model_validate(_select_plugin_values(values, model, type(section)))


def find_plugin_problems(group: str, model: type[BaseModel], raw: Mapping[str, Any]) -> list[ConfigProblem]:
    """Return the problems that a plug-in's `Settings` finds in a section. Suggestions include everhold's own keys."""
    part = _SECTION_TYPES.get(group)
    try:
        model.model_validate(_select_plugin_values(raw, model, part))
    except ValidationError as error:
        return explain_validation_error(error, model, also=list_given_fields(part) if part else ())
    return []


def make_plugin_validator(
    settings_of: Callable[[str, str], type[BaseModel]],
    check_package: Callable[[str, str], None] = lambda _group, _name: None,
) -> ValidatePlugin:
    """Return a validator that uses each plug-in's `Settings`. A plug-in that is not installed disables its section, and
    so does one whose package `check_package` misses; it raises InvalidRequest then.
    """

    def validate(group: str, name: str, raw: Mapping[str, Any]) -> list[ConfigProblem]:
        try:
            model = settings_of(group, name)
        except (NotFound, InvalidRequest) as error:
            cause: ProblemCause | None = ProblemCause.MISSING_PACKAGE
            if isinstance(error, NotFound):
                cause = None if group == "tools" else ProblemCause.UNKNOWN_PROVIDER
            return [ConfigProblem(error.message, error.remedy, fatal=False, disables=f"{group}.{name}", cause=cause)]
        return [*find_plugin_problems(group, model, raw), *find_missing_package(group, name)]

    def find_missing_package(group: str, name: str) -> list[ConfigProblem]:
        try:
            check_package(group, name)
        except InvalidRequest as error:
            cause = ProblemCause.MISSING_PACKAGE
            return [ConfigProblem(error.message, error.remedy, fatal=False, disables=f"{group}.{name}", cause=cause)]
        return []

    return validate


def _select_plugin_values(
    values: Mapping[str, Any], model: type[BaseModel], part: type[PluginConfigSection] | None
) -> dict[str, Any]:
    """Select the plug-in's own keys, and those of everhold's keys that it declares. It may name a secret X or X_env."""
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
