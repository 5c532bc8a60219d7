"""docs/reference/http.md, made from the OpenAPI document. `python -m everhold.web.reference` prints it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from everhold.web.call import Call, Json
from everhold.web.openapi import document
from everhold.web.operations import Metrics
from everhold.web.page import Page
from everhold.web.routes import Way, ways

HEAD: Final = """\
# HTTP

<!-- Written by `python -m everhold.web.reference`; change src/everhold/web/routes.py and shapes.py instead. -->

"""
ERRORS: Final = """\
Every refusal is `{"error": {"type", "message", "remedy"}}`. Besides what a route lists, any request may be refused with
401 (no token, or a wrong one), 403 (not allowed, or asked for by a page of another origin), 408 (too slow), 413 (more
than 1 MB, on `api.sock` more than 16 MB), 429 (too often; `Retry-After` says how long) and 503 (busy).
"""
_GENERAL: Final = frozenset({"401", "403", "408", "413", "415", "429", "503"})


def render() -> str:
    """The page."""
    described = document(table())
    parts = [HEAD, _wrapped(described["info"]["description"]), "\n\n", ERRORS, "\n", *_index(described)]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            parts += _route(described, f"{method.upper()} {path}", operation)
    return "".join(parts).rstrip() + "\n"


def table() -> tuple[Way, ...]:
    """The routes, without a house behind them."""

    async def nothing(call: Call) -> Any:
        raise NotImplementedError

    return ways(files=Page(), metrics=Metrics(), document=nothing)


def _index(described: Json) -> Iterator[str]:
    yield "| route | does |\n|---|---|\n"
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield f"| `{method.upper()} {path}` | {operation['summary']} |\n"
    yield "\n"


def _route(described: Json, title: str, operation: Json) -> Iterator[str]:
    stop = "" if operation["summary"].endswith("?") else "."
    yield f"## {title}\n\n"
    yield _wrapped(f"{operation['summary']}{stop} {operation.get('description', '')}".strip()) + "\n\n"
    if parameters := operation.get("parameters"):
        yield "| parameter | in | |\n|---|---|---|\n"
        for parameter in parameters:
            yield f"| `{parameter['name']}` | {parameter['in']} | {parameter['description']} |\n"
        yield "\n"
    if body := operation.get("requestBody"):
        yield from _shape(described, body["content"]["application/json"]["schema"])
    yield "| status | answer |\n|---|---|\n"
    for status, answer in operation["responses"].items():
        if status not in _GENERAL:
            yield f"| {status} | {_answer(described, answer)} |\n"
    yield "\n"


def _shape(described: Json, schema: Json) -> Iterator[str]:
    """The keys of a body."""
    found = _resolved(described, schema)
    required = set(found.get("required", ()))
    yield "| key | type | |\n|---|---|---|\n"
    for name, field in found["properties"].items():
        about = field.get("description", "")
        if name in required:
            about = f"{about} Required.".strip()
        elif field.get("default") not in (None, ""):
            default = msgspec.json.encode(field["default"]).decode()
            about = f"{about} `{default}` if not given.".strip()
        yield f"| `{name}` | {_type(described, field)} | {about} |\n"
    yield "\n"


def _answer(described: Json, answer: Json) -> str:
    media, content = next(iter(answer["content"].items()))
    schema = _resolved(described, content["schema"])
    if schema.get("title") == "Error":
        return str(answer["description"])
    keys = ", ".join(f"`{name}`" for name in schema.get("properties", ()))
    inside = keys or (f"`{media}`" if media != "application/json" else "")
    return f"{answer['description']} {inside}".strip()


def _wrapped(text: str) -> str:
    return textwrap.fill(text, width=119, break_long_words=False, break_on_hyphens=False)


def _type(described: Json, field: Json) -> str:
    options = field.get("anyOf", [field])
    return " or ".join(filter(None, (_plain(described, option) for option in options)))


def _plain(described: Json, option: Json) -> str:
    if "$ref" in option:
        return "object"
    if "enum" in option:
        return ", ".join(f"`{value}`" for value in option["enum"])
    kind = option.get("type", "")
    if kind == "array":
        return f"list of {_plain(described, option.get('items', {})) or 'anything'}s"
    return {"null": "", "string": "text", "boolean": "true or false"}.get(kind, str(kind))


def _resolved(described: Json, schema: Json) -> Json:
    if "$ref" not in schema:
        return schema
    found: Json = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


if __name__ == "__main__":
    sys.stdout.write(render())
