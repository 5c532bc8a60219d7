"""Writes docs/reference/configuration.md from the settings themselves: `python -m everhold.config.reference`."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BeforeValidator, PlainValidator
from pydantic.fields import FieldInfo

from everhold.config import settings as source, values
from everhold.config.edit import format_inline
from everhold.config.settings import (
    AccountSettings,
    AgentSettings,
    MemorySettings,
    PluginConfigSection,
    Settings,
    ToolSettings,
    list_given_fields,
)
from everhold.config.values import ConfigSection, thaw_value

_INTRODUCTION: Final = """\
# Configuration

<!-- Written by `python -m everhold.config.reference`; change src/everhold/config/settings.py instead. -->

Everything below can stand in `config.yaml` in the home (`--home`, `$EVERHOLD_HOME` or `~/.everhold`). No file is
needed: without one there is an agent `main` with an offline model, a memory of its own, and a page at
http://127.0.0.1:8765.

- Edits are in force at the next message; only `store`, `http.host` and `http.port` wait for a restart, which
  `everhold status` reminds you of. An edit that cannot be understood is refused with file, line, key and remedy,
  and what was in force before stays so. `everhold config check` says the same without a running gateway, and
  `everhold up --last-good` starts with what was in force last.
- Secrets never stand in `config.yaml`. A key that ends in `_env` names a variable; its value comes from the environment
  of the process, or from a line `NAME=value` in `.env` beside `config.yaml` (mode 0600). A variable that is missing
  disables what needs it and nothing else.
- A key set to nothing (`null`) counts as not given.
- Models, memories, platform accounts and further tools are plug-ins: besides the keys below they take the plug-in's
  own, which it checks itself.
"""
_VALIDATOR_KINDS: Final[Mapping[str, str]] = {
    "_validate_name": "name",
    "_validate_model_name": "name of a model",
    "_validate_env_name": "name of a variable",
    "_validate_timezone": "time zone",
    "_validate_write": "`turn`, `async`, `session` or a number",
    "_validate_identity": "platform:id",
    "_validate_url": "URL",
}
_TYPE_KINDS: Final[Mapping[Any, str]] = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`"}
_PLURALS: Final[Mapping[str, str]] = {
    "text": "texts",
    "name": "names",
    "name of a model": "names of models",
    "name of a variable": "names of variables",
}
_LOADER_DEFAULTS: Final[Mapping[tuple[type[ConfigSection], str], str]] = {
    (AgentSettings, "memories"): "`[builtin]`",
    (MemorySettings, "provider"): "the key",
    (ToolSettings, "provider"): "the key",
    (AccountSettings, "agent"): "see there",
}
"""Where the loader knows better than the model."""
_SECTION_PREFIXES: Final[Mapping[str, str]] = {"platforms": "PLATFORM.ACCOUNT.", "people": "[]."}


def render_reference() -> str:
    """The page."""
    docs = _collect_docstrings()
    parts = [_INTRODUCTION]
    for name, info in Settings.model_fields.items():
        if name not in list_given_fields(Settings):
            continue
        parts.append(f"\n## {name}\n\n{docs['Settings', name]}\n")
        model = _find_section(info.annotation)
        if name == "defaults":
            parts.append("\nThe keys are those of an agent.\n")
        elif name == "store":
            parts.append(
                f"\n`{_format_default(info)}` if not given. A database server (`store: {{url: …}}`) is refused.\n"
            )
        elif model is None:
            parts.append(f"\nA {_describe_kind(_get_hints(Settings)[name])}; `{_format_default(info)}` if not given.\n")
        else:
            rows = "".join(_render_rows(model, _build_prefix(name, info.annotation), docs))
            parts.append(f"\n| key | value | if not given | meaning |\n|---|---|---|---|\n{rows}")
            if issubclass(model, PluginConfigSection):
                parts.append("\nFurther keys are the plug-in's own.\n")
    return "".join(parts)


def _render_rows(model: type[ConfigSection], prefix: str, docs: Mapping[tuple[str, str], str]) -> Iterator[str]:
    hints = _get_hints(model)
    for name in list_given_fields(model):
        info = model.model_fields[name]
        inner = None if (model, name) == (AgentSettings, "memories") else _find_section(info.annotation)
        doc = docs[next(owner.__name__ for owner in model.__mro__ if (owner.__name__, name) in docs), name]
        if inner is None:
            kind = _describe_kind(hints[name]) if (model, name) != (AgentSettings, "memories") else "list"
            default = _LOADER_DEFAULTS.get((model, name)) or _format_default_cell(info)
            yield f"| `{prefix}{name}` | {_escape_cell(kind)} | {_escape_cell(default)} | {_escape_cell(doc)} |\n"
        else:
            yield f"| `{prefix}{name}` | {_describe_shape(info.annotation)} | | {_escape_cell(doc)} |\n"
            yield from _render_rows(inner, prefix + _build_prefix(name, info.annotation, nested=True), docs)


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _build_prefix(name: str, annotation: Any, *, nested: bool = False) -> str:
    if not nested:
        if name in _SECTION_PREFIXES:
            return _SECTION_PREFIXES[name]
        return "NAME." if _describe_shape(annotation) == "mapping by name" else ""
    return name + {"list": "[].", "mapping by name": ".ID."}.get(_describe_shape(annotation), ".")


def _describe_shape(annotation: Any) -> str:
    annotation = _strip_annotation(annotation)
    if get_origin(annotation) is tuple:
        return "list"
    return "mapping" if isinstance(annotation, type) else "mapping by name"


def _find_section(annotation: Any) -> type[ConfigSection] | None:
    """The section an annotation is about, directly or as the items of a list or mapping."""
    annotation = _strip_annotation(annotation)
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, ConfigSection) else None
    arguments = [item for item in get_args(annotation) if item is not Ellipsis]
    return _find_section(arguments[-1]) if arguments else None


def _strip_annotation(annotation: Any) -> Any:
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, UnionType):
            options = [option for option in get_args(annotation) if option is not NoneType]
            if len(options) != 1:
                return None
            annotation = options[0]
        else:
            return annotation


def _get_hints(model: type[ConfigSection]) -> dict[str, Any]:
    return get_type_hints(model, globalns=vars(source) | vars(values), include_extras=True)


def _describe_kind(annotation: Any) -> str:
    """What a value is, in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        for extra in arguments[1:]:
            if isinstance(extra, AfterValidator | BeforeValidator | PlainValidator):
                name = getattr(extra.func, "__name__", "")
                if name in _VALIDATOR_KINDS:
                    return _VALIDATOR_KINDS[name]
        return _describe_kind(arguments[0])
    if origin in (Union, UnionType):
        return _describe_kind(next(option for option in arguments if option is not NoneType))
    if origin is Literal:
        return ", ".join(f"`{option}`" for option in arguments[:-1]) + f" or `{arguments[-1]}`"
    if origin is tuple:
        kind = _describe_kind(arguments[0])
        return f"list of {_PLURALS.get(kind, kind)}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "mapping"
    return _TYPE_KINDS.get(annotation, "mapping")


def _format_default_cell(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    text = _format_default(info)
    return f"`{text}`" if text else ""


def _format_default(info: FieldInfo) -> str:
    value = thaw_value(info.get_default(call_default_factory=True, validated_data={}))
    return "" if value in (None, "", {}) else format_inline(value)


def _collect_docstrings() -> dict[tuple[str, str], str]:
    """(class, field) -> the docstring below the field."""
    found: dict[tuple[str, str], str] = {}
    for node in ast.parse(inspect.getsource(source)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, text in zip(node.body, node.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                    found[node.name, name] = " ".join(doc.split())
    return found


if __name__ == "__main__":
    sys.stdout.write(render_reference())
