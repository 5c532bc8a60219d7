"""docs/reference/http.md, made from the OpenAPI document. `python -m everhold.api.reference` prints it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from everhold.api.console import ConsoleFiles
from everhold.api.health import MetricsEndpoint
from everhold.api.openapi import build_document
from everhold.api.request import ApiCall, JsonObject
from everhold.api.route_types import ApiRoute
from everhold.api.routes import build_routes
from everhold.core.callers import CallerRole, can_call

PAGE_HEAD: Final = """\
# HTTP

<!-- Written by `python -m everhold.api.reference`; change src/everhold/api/routes.py and schemas.py instead. -->

"""
ERRORS_SECTION: Final = """\
Every error is `{"error": {"type", "message", "remedy"}}`. Besides the statuses that a route lists, any request may be
refused with 401 (the credential is missing or wrong), 403 (not allowed, or sent by a web page of another origin), 408
(too slow), 413 (more than 1 MB, on `api.sock` more than 16 MB), 429 (too many requests; `Retry-After` says how long to
wait) and 503 (busy).
"""
ACCESS_TEXT: Final = (
    "A token with `read_only: true` may call the routes of its role that are GET. A token with `agents` sees these "
    "agents and their sessions only; as an operator it may call no route that concerns the whole gateway. A session, "
    "schedule or login of somebody else is answered with 404."
)
_COMMON_STATUSES: Final = frozenset({"401", "403", "408", "413", "415", "429", "503"})


def render_reference() -> str:
    """Return the reference page."""
    described = build_document(build_route_table())
    parts = [
        PAGE_HEAD,
        _wrap_text(described["info"]["description"]),
        "\n\n",
        ERRORS_SECTION,
        "\n",
        *_render_index(described),
        *_render_access_table(build_route_table()),
    ]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            parts += _render_route(described, f"{method.upper()} {path}", operation)
    return "".join(parts).rstrip() + "\n"


def build_route_table() -> tuple[ApiRoute, ...]:
    """Return the routes without a gateway."""

    async def raise_unavailable(call: ApiCall) -> Any:
        raise NotImplementedError

    return build_routes(files=ConsoleFiles(), metrics=MetricsEndpoint(), document=raise_unavailable)


def _render_index(described: JsonObject) -> Iterator[str]:
    yield "| route | does |\n|---|---|\n"
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield f"| `{method.upper()} {path}` | {operation['summary']} |\n"
    yield "\n"


def _render_access_table(table: tuple[ApiRoute, ...]) -> Iterator[str]:
    """Render which role may call which route."""
    roles = [role for role in reversed(CallerRole) if role is not CallerRole.ANYBODY]
    yield "## Who may call what\n\n"
    yield _wrap_text(ACCESS_TEXT) + "\n\n"
    yield f"| route | {' | '.join(roles)} | no credential |\n|---|{'---|' * (len(roles) + 1)}\n"
    for route in table:
        cells = ["yes" if can_call(role, route.least) else "" for role in (*roles, CallerRole.ANYBODY)]
        yield f"| `{route.call}` | {' | '.join(cells)} |\n"
    yield "\n"


def _render_route(described: JsonObject, title: str, operation: JsonObject) -> Iterator[str]:
    stop = "" if operation["summary"].endswith("?") else "."
    yield f"## {title}\n\n"
    yield _wrap_text(f"{operation['summary']}{stop} {operation.get('description', '')}".strip()) + "\n\n"
    if parameters := operation.get("parameters"):
        yield "| parameter | in | |\n|---|---|---|\n"
        for parameter in parameters:
            needed = " Required." if parameter["required"] and parameter["in"] != "path" else ""
            yield f"| `{parameter['name']}` | {parameter['in']} | {parameter['description']}{needed} |\n"
        yield "\n"
    if body := operation.get("requestBody"):
        yield from _render_schema(described, body["content"]["application/json"]["schema"])
    yield "| status | answer |\n|---|---|\n"
    for status, answer in operation["responses"].items():
        if status not in _COMMON_STATUSES:
            yield f"| {status} | {_describe_response(described, answer)} |\n"
    yield "\n"


def _render_schema(described: JsonObject, schema: JsonObject) -> Iterator[str]:
    """Render the keys of a body as a table."""
    found = _resolve_schema(described, schema)
    required = set(found.get("required", ()))
    yield "| key | type | |\n|---|---|---|\n"
    for name, field in found["properties"].items():
        about = field.get("description", "")
        if name in required:
            about = f"{about} Required.".strip()
        elif field.get("default") not in (None, ""):
            default = msgspec.json.encode(field["default"]).decode()
            about = f"{about} `{default}` if not given.".strip()
        yield f"| `{name}` | {_describe_type(described, field)} | {about} |\n"
    yield "\n"


def _describe_response(described: JsonObject, answer: JsonObject) -> str:
    if "content" not in answer:
        return str(answer["description"])
    media, content = next(iter(answer["content"].items()))
    schema = _resolve_schema(described, content["schema"])
    if schema.get("title") == "ErrorResponse":
        return str(answer["description"])
    keys = ", ".join(f"`{name}`" for name in schema.get("properties", ()))
    inside = keys or (f"`{media}`" if media != "application/json" else "")
    return f"{answer['description']} {inside}".strip()


def _wrap_text(text: str) -> str:
    return textwrap.fill(text, width=119, break_long_words=False, break_on_hyphens=False)


def _describe_type(described: JsonObject, field: JsonObject) -> str:
    options = field.get("anyOf", [field])
    return " or ".join(filter(None, (_describe_option(described, option) for option in options)))


def _describe_option(described: JsonObject, option: JsonObject) -> str:
    if "$ref" in option:
        return "object"
    if "enum" in option:
        return ", ".join(f"`{value}`" for value in option["enum"])
    kind = option.get("type", "")
    if kind == "array":
        return f"list of {_describe_option(described, option.get('items', {})) or 'anything'}s"
    return {"null": "", "string": "text", "boolean": "true or false"}.get(kind, str(kind))


def _resolve_schema(described: JsonObject, schema: JsonObject) -> JsonObject:
    if "$ref" not in schema:
        return schema
    found: JsonObject = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


if __name__ == "__main__":
    sys.stdout.write(render_reference())
