"""A validation's errors in words a person can act on. Never repeats a value: it might be a secret."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from everhold.config.literals import is_secret_key, mask
from everhold.config.problems import KeyPath, Problem, did_you_mean
from everhold.config.settings import given_fields

_WORDS: Final[Mapping[str, tuple[str, str]]] = {
    "missing": ("is missing", "add it"),
    "int_type": ("must be a whole number", ""),
    "int_parsing": ("must be a whole number", ""),
    "int_from_float": ("must be a whole number", ""),
    "float_type": ("must be a number", ""),
    "float_parsing": ("must be a number", ""),
    "bool_type": ("must be true or false", "write true or false, without quotes"),
    "bool_parsing": ("must be true or false", "write true or false, without quotes"),
    "string_type": ("must be text", "put it in quotes"),
    "string_too_short": ("must not be empty", ""),
    "model_type": ("must be a mapping", "write {key: value}, or indented lines of key: value"),
    "model_attributes_type": ("must be a mapping", "write {key: value}, or indented lines of key: value"),
    "dict_type": ("must be a mapping", "write {key: value}, or indented lines of key: value"),
    "mapping_type": ("must be a mapping", "write {key: value}, or indented lines of key: value"),
    "tuple_type": ("must be a list", "write [a, b], or indented lines of - a"),
    "list_type": ("must be a list", "write [a, b], or indented lines of - a"),
}
_BOUNDS: Final = {
    "greater_than": ("gt", "must be more than {}"),
    "greater_than_equal": ("ge", "must be at least {}"),
    "less_than": ("lt", "must be less than {}"),
    "less_than_equal": ("le", "must be at most {}"),
}


def problems_of(error: ValidationError, model: type[BaseModel], *, also: Iterable[str] = ()) -> list[Problem]:
    """Every error of a validation by `model`, with paths relative to it. `also` are keys known outside of it."""
    found: list[Problem] = []
    for item in error.errors(include_url=False):
        path: KeyPath = tuple(part for part in item["loc"] if part != "[key]")
        if any(isinstance(part, str) and part.startswith("=") for part in path):
            continue
        context = item.get("ctx", {})
        kind, value = item["type"], item["input"]
        if kind == "extra_forbidden":
            known = [*known_keys(model, path[:-1]), *(also if len(path) == 1 else ())]
            message, remedy = "unknown key", did_you_mean(str(path[-1]), known)
        elif kind == "missing" and is_secret_key(str(path[-1])):
            # a secret is named here and kept elsewhere: adding the key itself would be refused
            path = (*path[:-1], f"{path[-1]}_env")
            message, remedy = "is missing", "name the variable here, and set it in .env"
        elif kind in _WORDS:
            message, remedy = _WORDS[kind]
        elif kind in _BOUNDS:
            name, words = _BOUNDS[kind]
            message, remedy = words.format(context.get(name)), ""
        elif kind == "literal_error":
            message, remedy = f"must be {str(context.get('expected', '')).replace(chr(39), '`')}", ""
            if isinstance(value, str):
                near = did_you_mean(value, str(context.get("expected", "")).split("'")[1::2])
                remedy = near if near.startswith("did") else ""
        elif kind == "refused":
            message, remedy = str(context["text"]), str(context.get("remedy", ""))
        elif kind in (
            "value_error",
            "assertion_error",
        ):  # what a plug-in's own check said, without what comes before it
            message, remedy = mask(str(context.get("error") or item["msg"])), ""
        else:
            message, remedy = mask(item["msg"]), ""
        found.append(Problem(message, remedy, path=path))
    return found


def known_keys(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The keys that can stand in the section at `path`."""
    inner = model_at(model, path)
    return given_fields(inner) if inner is not None else []


def model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The model that validates `path`, None where values are free."""
    current: Any = model
    for part in path:
        current = _bare(current)
        if isinstance(current, type) and issubclass(current, BaseModel):
            if part not in current.model_fields:
                return None
            current = current.model_fields[str(part)].annotation
        else:
            arguments = get_args(current)
            if not arguments:
                return None
            current = arguments[0] if get_origin(current) is tuple else arguments[-1]
    current = _bare(current)
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _bare(annotation: Any) -> Any:
    """An annotation without its metadata and without `| None`."""
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
