"""JSON responses, and errors in one format: `{"error": {"type", "message", "remedy"}}`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

from everhold.errors import (
    Conflict,
    EverholdError,
    InDoubt,
    InvalidRequest,
    NotFound,
    Refused,
    StoreError,
    StoreFull,
    TooLong,
    Transient,
)
from everhold.ports.platform import AcceptResult

MAX_MESSAGE_CHARS: Final = 2_000
"""An error's text may quote what the caller sent."""
JSON_MEDIA_TYPE: Final = "application/json"

_ERROR_STATUSES: Final[tuple[tuple[type[EverholdError], int], ...]] = (
    (NotFound, 404),
    (InvalidRequest, 400),
    (Conflict, 409),
    (StoreFull, 507),
    (StoreError, 503),
    (Transient, 503),
    (TooLong, 400),
    (Refused, 502),
    (InDoubt, 504),
)
"""The first matching row applies."""


class ApiError(Exception):
    """A refused request, with the response that the caller gets."""

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        *,
        remedy: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = message if len(message) <= MAX_MESSAGE_CHARS else f"{message[:MAX_MESSAGE_CHARS]}…"
        super().__init__(message)
        self.status = status
        self.type = type
        self.message = message
        self.remedy = remedy
        self.headers = dict(headers or {})

    def to_json(self) -> dict[str, Any]:
        return {"error": {"type": self.type, "message": self.message, "remedy": self.remedy}}

    def to_response(self) -> Response:
        return build_json_response(self.to_json(), status=self.status, headers=self.headers)


def build_json_response(content: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status_code=status, headers=headers, media_type=JSON_MEDIA_TYPE)


def convert_error(error: EverholdError) -> ApiError:
    """Return the response error for one of everhold's errors."""
    status = next((status for kind, status in _ERROR_STATUSES if isinstance(error, kind)), 500)
    headers = {}
    if isinstance(error, Transient) and error.retry_after is not None:
        headers["retry-after"] = format_retry_after(error.retry_after)
    return ApiError(status, get_error_type(error), error.message, remedy=error.remedy, headers=headers)


def build_limited_error(result: AcceptResult) -> ApiError:
    """Return the response for a message that a quota refused."""
    headers = {"retry-after": format_retry_after(result.retry_after)}
    remedy = f"try again in {format_retry_after(result.retry_after)} s, or ask the operator to raise `quotas`"
    return ApiError(429, "quota", result.reason, remedy=remedy, headers=headers)


def get_error_type(error: EverholdError) -> str:
    """`StoreFull` -> `store_full`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()


def format_retry_after(wait: float) -> str:
    """Return a wait for the `Retry-After` header: whole seconds, rounded up."""
    return str(max(1, math.ceil(wait)))
