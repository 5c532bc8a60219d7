"""Builds the OpenAPI 3.1 document from the table of routes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from everhold import __version__
from everhold.api import schemas
from everhold.api.request import JsonObject
from everhold.api.route_types import ApiRoute, ResponseBody
from everhold.core.callers import CallerRole, can_call

REF_TEMPLATE: Final = "#/components/schemas/{name}"
COMMON_REFUSALS: Final = (401, 403, 408, 413, 415, 429, 503)
"""Statuses with which the guard may refuse a request to any route."""

REFUSAL_TEXTS: Final = {
    400: "The request is invalid.",
    401: "The credential is missing or wrong.",
    403: "The caller may not do this.",
    404: "The requested object does not exist.",
    408: "The request did not arrive in time.",
    409: "An earlier request used this id or key with another content, or the turn was interrupted.",
    410: "The message was erased.",
    413: "The request is too large.",
    415: "A browser must send JSON.",
    429: "Too many requests. `Retry-After` says how long to wait.",
    502: "The turn or the model failed.",
    503: "Not available now. An accepted message is stored and will be answered.",
    504: "No answer yet. The message is stored and will be answered.",
    507: "The disk is full. Nothing was accepted.",
}

INTRODUCTION: Final = (
    "The gateway serves this API over TCP and on `api.sock` in the home. On `api.sock` every caller is an operator: "
    "only the home's own user and root can connect to it. Over TCP every route needs a credential, also from this "
    "machine; the routes for anybody are the exception. Programs send a token as `Authorization: Bearer …`. The "
    "console logs in and sends a cookie and the header `X-Everhold-Key`. A token has a role. An `operator` may do "
    "everything and speak for others. A `member` sees the sessions, the memory and the schedules of one person. "
    "A `service` names its users in `person` or `X-Everhold-Person`, and sees their sessions. A token "
    "for `metrics` reads `/metrics`."
)


def build_document(table: Iterable[ApiRoute]) -> JsonObject:
    """Return the document for these routes."""
    table = tuple(table)
    types = [route.request_type for route in table if route.request_type] + [
        shape
        for route in table
        for body in route.response_bodies.values()
        for shape in (body.shape, *body.variants)
        if shape
    ]
    _, components = msgspec.json.schema_components([*types, schemas.ErrorResponse], ref_template=REF_TEMPLATE)
    paths: dict[str, JsonObject] = {}
    for route in table:
        paths.setdefault(route.path, {})[route.method.lower()] = _build_operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "everhold", "version": __version__, "description": INTRODUCTION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "login": {"type": "apiKey", "in": "header", "name": "X-Everhold-Key"},
            },
        },
        "security": [{"token": []}, {"login": []}],
    }


def _build_operation(route: ApiRoute) -> JsonObject:
    about = " ".join(filter(None, (route.about, _describe_access(route))))
    found: JsonObject = {"summary": route.summary, "operationId": _build_operation_id(route)}
    if about:
        found["description"] = about
    if route.least is CallerRole.ANYBODY:
        found["security"] = []
    if route.parameters:
        found["parameters"] = [
            {
                "name": parameter.name,
                "in": parameter.where,
                "description": parameter.about,
                "required": parameter.required or parameter.where == "path",
                "schema": parameter.schema,
            }
            for parameter in route.parameters
        ]
    if route.request_type is not None:
        required = any(field.required for field in msgspec.structs.fields(route.request_type))
        found["requestBody"] = {
            "required": required,
            "content": {"application/json": {"schema": _build_ref(route.request_type)}},
        }
    answers = {str(status): _build_response(body) for status, body in route.response_bodies.items()}
    answers |= {str(status): _build_refusal(status) for status in sorted({*route.refusal_statuses, *COMMON_REFUSALS})}
    found["responses"] = answers
    return found


def _describe_access(route: ApiRoute) -> str:
    roles = list_roles(route)
    parts = ["Anybody may call it." if CallerRole.ANYBODY in roles else f"Roles: {', '.join(roles)}."]
    if route.fresh:
        parts.append("A login must be younger than fifteen minutes.")
    return " ".join(parts)


def list_roles(route: ApiRoute) -> list[CallerRole]:
    """Return the roles that may call a route."""
    return [role for role in reversed(CallerRole) if can_call(role, route.least)]


def _build_response(body: ResponseBody) -> JsonObject:
    schema: Any = _build_ref(body.shape) if body.shape is not None else body.schema
    if schema is None:
        return {"description": body.about}
    if body.variants:
        schema = {"anyOf": [schema, *map(_build_ref, body.variants)]}
    content = {body.media: {"schema": schema}}
    if body.streams:
        content["text/event-stream"] = {"schema": {}}
    return {"description": body.about, "content": content}


def _build_refusal(status: int) -> JsonObject:
    return {
        "description": REFUSAL_TEXTS[status],
        "content": {"application/json": {"schema": _build_ref(schemas.ErrorResponse)}},
    }


def _build_ref(shape: type) -> JsonObject:
    return {"$ref": REF_TEMPLATE.format(name=shape.__name__)}


def _build_operation_id(route: ApiRoute) -> str:
    words = [word.strip("{}") for word in route.path.split("/") if word]
    return "-".join([route.method.lower(), *words]) or "get"


def main() -> None:
    """Print the document without a gateway, from which the types of the console are made."""
    from everhold.api.reference import build_route_table  # it imports this module

    sys.stdout.write(json.dumps(build_document(build_route_table()), indent=1) + "\n")


if __name__ == "__main__":
    main()
