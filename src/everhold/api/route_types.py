"""What a row of the table of routes consists of."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from everhold.api.request import RouteHandler
from everhold.core.callers import CallerRole


class RouteParameter(Struct, frozen=True):
    """A parameter of a route in its path, its query or a header."""

    name: str
    about: str
    where: Literal["path", "query", "header"] = "query"
    schema: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "string"})
    required: bool = False
    """A request without it is invalid. A path parameter is always required."""


class ResponseBody(Struct, frozen=True):
    """The body of a response: a schema class, or text of some media type. Without a schema there is no body."""

    about: str
    shape: type | None = None
    media: str = "application/json"
    schema: dict[str, Any] | None = None
    variants: tuple[type, ...] = ()
    """Other schema classes, which a parameter chooses."""
    streams: bool = False
    """The response may also be a stream of server-sent events."""


class ApiRoute(Struct, frozen=True):
    """A route with its handler, parameters and responses."""

    call: str
    """The method and the path."""
    handler: RouteHandler
    summary: str
    response_bodies: dict[int, ResponseBody]
    about: str = ""
    parameters: tuple[RouteParameter, ...] = ()
    request_type: type | None = None
    refusal_statuses: tuple[int, ...] = ()
    least: CallerRole = CallerRole.MEMBER
    """The least role that may call it; see `core/callers.py` `can_call()`."""
    fresh: bool = False
    """A login must be younger than fifteen minutes."""
    is_agent_scoped: bool = False
    """A route for operators that respects the agents of a token. A token with `agents` may call no other of them."""
    body_bytes: int = 0
    """How large a body may be; 0: as usual. A larger one than usual must declare its length."""
    is_write: bool | None = None
    """Whether it changes something; None: every method but GET does."""

    @property
    def method(self) -> str:
        return self.call.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.call.partition(" ")[2]

    @property
    def changes(self) -> bool:
        """Whether it changes something, so that a read-only token may not call it."""
        return self.method != "GET" if self.is_write is None else self.is_write
