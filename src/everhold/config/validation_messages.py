"""Explain validation errors, with remedies. Never repeats a value, because it might be a secret."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from everhold.config.errors import ConfigProblem, KeyPath, find_nearest, join_with_or, suggest_name
from everhold.config.literals import is_secret_key, mask_secrets
from everhold.config.settings import PluginConfigSection, list_given_fields
from everhold.infra.secret import SecretString

UNKNOWN_KEY: Final = "unknown key"
_NO_SPACE: Final = re.compile(r"\w:\S")

_MAPPING: Final = ("must be a mapping", "write {key: value}, or indented lines of key: value")
_LIST: Final = ("must be a list", "write [a, b], or indented lines of - a")
_FLAG: Final = ("must be true or false", "write true or false, without quotes")
_FIXED: Final[Mapping[str, tuple[str, str]]] = {
    "bool_type": _FLAG,
    "bool_parsing": _FLAG,
    "string_too_short": ("must not be empty", "write a value, or remove the key"),
    "tuple_type": _LIST,
    "list_type": _LIST,
}
_MAPPING_ERRORS: Final = frozenset({"model_type", "model_attributes_type", "dict_type", "mapping_type"})
_NUMBER_ERRORS: Final[Mapping[str, str]] = {
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
}
_BOUNDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "greater_than": ("gt", "must be more than {}", "write a number above {}"),
    "greater_than_equal": ("ge", "must be at least {}", "write {} or more"),
    "less_than": ("lt", "must be less than {}", "write a number below {}"),
    "less_than_equal": ("le", "must be at most {}", "write {} or less"),
}
_UNITS: Final[Mapping[str, str]] = {
    "seconds": "seconds",
    "hours": "hours",
    "tokens": "tokens",
    "chars": "characters",
    "bytes": "bytes",
    "turns": "turns",
    "usd": "US dollars",
}
_SYNONYMS: Final[Mapping[str, str]] = {"model": "name", "url": "base_url", "endpoint": "base_url", "operator": "role"}
"""Keys of other programs, and the keys of everhold with the same meaning."""
_EXAMPLES: Final[Mapping[str, str]] = {
    "agents": "agents: {main: {persona: SOUL.md}}",
    "models": "models: {big: {provider: openai, name: …}}",
    "platforms": "platforms: {telegram: {main: {token_env: …}}}",
    "people": 'people: [{name: ada, identities: ["telegram:1001"]}]',
    "command": "command: [mcp-server-time]",
}
"""Keys whose shape is easier to show than to describe."""


def explain_validation_error(
    error: ValidationError, model: type[BaseModel], *, also: Iterable[str] = ()
) -> list[ConfigProblem]:
    """Explain each error of a validation by `model`, with relative paths. `also` are further known keys."""
    found: list[ConfigProblem] = []
    for item in error.errors(include_url=False):
        path: KeyPath = tuple(part for part in item["loc"] if part != "[key]")
        if any(isinstance(part, str) and part.startswith("=") for part in path):
            continue
        found.append(_explain_error(item, path, model, also))
    return found


def explain_empty_unknown_keys(value: object, model: type[BaseModel], path: KeyPath = ()) -> Iterator[ConfigProblem]:
    """Explain each unknown key without a value. Validation does not see it, because null means "not given".

    A section of a plug-in is left out, because only the plug-in knows its keys.
    """
    if isinstance(value, tuple):
        for place, item in enumerate(value):
            yield from explain_empty_unknown_keys(item, model, (*path, place))
    if not isinstance(value, dict):
        return
    section = find_model_at(model, path)
    for key, item in value.items():
        if item is not None:
            yield from explain_empty_unknown_keys(item, model, (*path, key))
        elif section is not None and not issubclass(section, PluginConfigSection):
            known = list_given_fields(section)
            if key not in known and key.removesuffix("_env") not in known:
                problem = _explain_unknown_key((*path, key), None, known)
                near = find_nearest(key, known)
                yield (
                    problem if near else replace(problem, remedy="remove it; a text that contains a comma needs quotes")
                )


def _explain_error(item: ErrorDetails, path: KeyPath, model: type[BaseModel], also: Iterable[str]) -> ConfigProblem:
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    key = str(path[-1]) if path else ""
    if kind == "extra_forbidden":
        known = [*list_known_keys(model, path[:-1]), *(also if len(path) == 1 else ())]
        return _explain_unknown_key(path, value, known)
    if kind == "missing":
        if is_secret_key(key):  # config.yaml has the name of the variable; the key itself would be refused
            path = (*path[:-1], key := f"{key}_env")
        remedy = "name the variable here, and set it in .env" if key.endswith("_env") else f"add `{key}: …`"
        return ConfigProblem("is missing", remedy, path=path)
    if kind in _FIXED:
        message, remedy = _FIXED[kind]
        return ConfigProblem(message, _EXAMPLES.get(key, remedy), path=path)
    if kind in _MAPPING_ERRORS:
        return ConfigProblem(_MAPPING[0], _suggest_mapping(path, value), path=path)
    if kind in _NUMBER_ERRORS:
        return ConfigProblem(_NUMBER_ERRORS[kind], _suggest_number(key, value), path=path)
    if kind == "string_type":
        message, remedy = _explain_not_text(value)
        return ConfigProblem(message, remedy, path=path)
    if kind in _BOUNDS:
        name, words, remedy = _BOUNDS[kind]
        bound = f"{context.get(name):g}" if isinstance(context.get(name), int | float) else str(context.get(name))
        if (name, bound) == ("le", "1"):
            remedy = "write a share such as 0.6"
        return ConfigProblem(words.format(bound), remedy.format(bound), path=path)
    if kind == "literal_error":
        options = str(context.get("expected", "")).split("'")[1::2]
        near = find_nearest(value, options) if isinstance(value, str) else ""
        example = options[0] if path and isinstance(path[-1], int) else f"{key}: {options[0]}"
        remedy = f"did you mean `{near}`?" if near else f"write one of them, such as {example}"
        return ConfigProblem(f"must be {join_with_or(options)}", remedy, path=path)
    if kind == "refused":
        return ConfigProblem(str(context["text"]), str(context.get("remedy", "")), path=path)
    if kind in ("value_error", "assertion_error"):  # the message of a plug-in's own check, without pydantic's prefix
        return ConfigProblem(mask_secrets(str(context.get("error") or item["msg"])), "", path=path)
    return ConfigProblem(mask_secrets(item["msg"]), "", path=path)


def _explain_unknown_key(path: KeyPath, value: object, known: Iterable[str]) -> ConfigProblem:
    """Explain an unknown key. Secrets are compared and named as they are written: with `_env`."""
    key = str(path[-1])
    if isinstance(value, SecretString):
        key = f"{key.removesuffix('_env')}_env"
    written = {name if name.endswith("_env") or not is_secret_key(name) else f"{name}_env" for name in known}
    meant = _SYNONYMS.get(key, "")
    if meant in written:
        remedy = f"did you mean `{meant}`?"
    elif "params" in written and not find_nearest(key, written):
        remedy = f"if the provider should get it with every request: params: {{{mask_secrets(key)}: …}}"
    else:
        remedy = suggest_name(key, written) or "remove it"
    return ConfigProblem(UNKNOWN_KEY, remedy, path=(*path[:-1], key))


def _suggest_mapping(path: KeyPath, value: object) -> str:
    if len(path) == 3 and path[0] == "platforms":
        return f"add the account between platform and keys: {path[1]}: {{main: {{{path[2]}: …}}}}"
    if isinstance(value, str) and _NO_SPACE.search(value):
        return "put a space after the colon: key: value"
    return _EXAMPLES.get(str(path[-1]), _MAPPING[1]) if path else _MAPPING[1]


def _suggest_number(key: str, value: object) -> str:
    if isinstance(value, str) and value.strip().endswith("%"):
        return "write a share such as 0.6"
    if isinstance(value, str) and value.strip().lstrip("+-").isdigit():
        return "write it without quotes"
    unit = next((words for part, words in _UNITS.items() if part in key.split("_")), "")
    return f"write the number alone, in {unit}" if unit else "write the number alone, such as 10"


def _explain_not_text(value: object) -> tuple[str, str]:
    if value is None:
        return "is empty", "write a value, or remove the dash"
    if isinstance(value, Mapping):
        return "must be text, not a mapping", "write the name alone, or put the text in quotes"
    if isinstance(value, list | tuple):
        return "must be text, not a list", "write the text alone"
    return "must be text", "put it in quotes"


def list_known_keys(model: type[BaseModel], path: KeyPath) -> list[str]:
    """Return the keys that are allowed in the section at `path`."""
    inner = find_model_at(model, path)
    return list_given_fields(inner) if inner is not None else []


def find_model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """Return the model that validates `path`, None where any value is allowed."""
    current: Any = model
    for part in path:
        current = _strip_annotation(current)
        if isinstance(current, type) and issubclass(current, BaseModel):
            if part not in current.model_fields:
                return None
            current = current.model_fields[str(part)].annotation
        else:
            arguments = get_args(current)
            if not arguments:
                return None
            current = arguments[0] if get_origin(current) is tuple else arguments[-1]
    current = _strip_annotation(current)
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _strip_annotation(annotation: Any) -> Any:
    """Return an annotation without its metadata and without `| None`."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, UnionType):
            options = [option for option in get_args(annotation) if option is not type(None)]
            if len(options) != 1:
                return None
            annotation = options[0]
        else:
            return annotation
