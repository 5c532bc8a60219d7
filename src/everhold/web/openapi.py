"""The table of routes -> an OpenAPI 3.1 document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from everhold import __version__
from everhold.web import shapes
from everhold.web.call import Json
from everhold.web.routes import Body, Way

REF: Final = "#/components/schemas/{name}"
ALWAYS: Final = (401, 403, 408, 413, 415, 429, 503)
"""What any route may refuse with, before it is reached."""

REFUSALS: Final = {
    400: "What was asked makes no sense as it stands.",
    401: "A token is needed, and a right one.",
    403: "Not allowed.",
    404: "There is no such thing.",
    408: "The request did not come in time.",
    409: "It contradicts what came before under this id or key, or the turn was cut short.",
    410: "What it was about was erased.",
    413: "More than one request may hold.",
    415: "A browser must send JSON.",
    429: "Too often; `Retry-After` says how long to wait.",
    502: "The turn, or the model, failed.",
    503: "Not now. A message that was accepted is kept and will be answered.",
    504: "No answer yet. The message is kept and will be answered.",
    507: "The disk is full. Nothing was accepted.",
}

INTRODUCTION: Final = (
    "The gateway serves this API over TCP and on `api.sock` in the home. On `api.sock` every caller is an operator: "
    "only the home's own user and root can connect to it. Over TCP at this machine no token is needed. From anywhere "
    "else every route needs one from `http.tokens`, as `Authorization: Bearer …`. A token pins the speaker; an "
    "operator's may speak for others and see everything, any other sees its own sessions."
)


def document(table: Iterable[Way]) -> Json:
    """The document for these routes."""
    table = tuple(table)
    types = [way.takes for way in table if way.takes] + [
        body.shape for way in table for body in way.gives.values() if body.shape
    ]
    _, components = msgspec.json.schema_components([*types, shapes.Error], ref_template=REF)
    paths: dict[str, Json] = {}
    for way in table:
        paths.setdefault(way.path, {})[way.method.lower()] = _operation(way)
    return {
        "openapi": "3.1.0",
        "info": {"title": "everhold", "version": __version__, "description": INTRODUCTION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(way: Way) -> Json:
    about = " ".join(filter(None, (way.about, "Operators only." if way.operator else "")))
    found: Json = {"summary": way.summary, "operationId": _name(way)}
    if about:
        found["description"] = about
    if way.parameters:
        found["parameters"] = [
            {
                "name": parameter.name,
                "in": parameter.where,
                "description": parameter.about,
                "required": parameter.where == "path",
                "schema": parameter.schema,
            }
            for parameter in way.parameters
        ]
    if way.takes is not None:
        required = any(field.required for field in msgspec.structs.fields(way.takes))
        found["requestBody"] = {"required": required, "content": {"application/json": {"schema": _ref(way.takes)}}}
    answers = {str(status): _answer(body) for status, body in way.gives.items()}
    answers |= {str(status): _refusal(status) for status in sorted({*way.refuses, *ALWAYS})}
    found["responses"] = answers
    return found


def _answer(body: Body) -> Json:
    schema: Any = _ref(body.shape) if body.shape is not None else body.schema
    content = {body.media: {"schema": schema}}
    if body.streams:
        content["text/event-stream"] = {"schema": {}}
    return {"description": body.about, "content": content}


def _refusal(status: int) -> Json:
    return {
        "description": REFUSALS[status],
        "content": {"application/json": {"schema": _ref(shapes.Error)}},
    }


def _ref(shape: type) -> Json:
    return {"$ref": REF.format(name=shape.__name__)}


def _name(way: Way) -> str:
    words = [word.strip("{}") for word in way.path.split("/") if word]
    return "-".join([way.method.lower(), *words]) or "get"
