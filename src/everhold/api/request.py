"""A request that the guard has admitted, as handlers receive it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope

from everhold.api.auth import ApiCaller
from everhold.api.context import ApiContext
from everhold.api.errors import ApiError
from everhold.api.scope_keys import BODY, CALLER, HEAD, RELEASES
from everhold.core.people import build_identity
from everhold.errors import NotFound

T = TypeVar("T")

MAX_INTEGER: int = 2**53


class ApiCall:
    """A request that the guard has admitted, with its caller and parameters."""

    def __init__(self, context: ApiContext, scope: Scope, receive: Receive) -> None:
        self.context = context
        self.caller: ApiCaller = scope[CALLER]
        self.raw_body: bytes = scope[BODY]
        self.receive = receive
        self._scope = scope
        self.headers: Mapping[str, str] = scope[HEAD].headers
        """By name in lower case; the first value if a name is repeated."""
        self.is_operator_connection: bool = scope[HEAD].is_operator_connection
        """The request came through `api.sock`, or from inside this process."""
        self.path: dict[str, str] = scope.get("path_params", {})

    @cached_property
    def query(self) -> QueryParams:
        return QueryParams(self._scope["query_string"])

    def on_end(self, release: Callable[[], None]) -> None:
        """Call `release` when the request has ended, however it ends."""
        self._scope[RELEASES].append(release)

    def decode_body(self, type: type[T]) -> T:
        """Return the body as `type`. An empty body means an empty object."""
        try:
            return msgspec.json.decode(self.raw_body or b"{}", type=type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiError(
                400, "invalid_request", f"the body is invalid: {error}", remedy="see /openapi.json"
            ) from error
        except RecursionError:
            raise ApiError(
                400, "invalid_request", "the body is nested too deeply", remedy="send a flat object"
            ) from None

    def get_number(self, name: str, *, least: int = 0, most: int = MAX_INTEGER) -> int | None:
        """Return an integer from the query, or None if it is missing. Raises ApiError if it is out of range."""
        found = self.query.getlist(name)
        if not found:
            return None
        text = found[-1]
        if len(text) > 20 or not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise ApiError(
                400,
                "invalid_request",
                f"`{name}` is not a whole number from {least} to {most}",
                remedy="write such a number, or leave it out",
            )
        return int(text)

    def resolve_agent(self, name: str) -> str:
        """Return the agent called `name`, or the default agent. Raises NotFound."""
        settings = self.context.agents.settings
        if name and name not in settings.agents:
            known = ", ".join(sorted(settings.agents))
            raise NotFound(f"there is no agent {name!r}", remedy=f"use one of: {known}")
        return name or settings.default_agent

    @property
    def identity(self) -> str:
        """The caller's identity. The identity of commands on this machine is that of a terminal."""
        return build_identity("terminal" if self.is_operator_connection else "http", self.caller.sender)

    def require_operator(self) -> None:
        if not self.caller.operator:
            raise ApiError(403, "denied", "only an operator may do this", remedy="use a token with operator: true")

    def require_operator_connection(self, what: str) -> None:
        """Refuse the parameter `what` to other callers than commands on this machine, because it names a local file."""
        if not self.is_operator_connection:
            raise ApiError(403, "denied", f"`{what}` names a file, so only commands on this machine may use it")

    async def wait_for_disconnect(self) -> None:
        """Return when the caller has disconnected."""
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                return


RouteHandler: TypeAlias = Callable[[ApiCall], Awaitable[Response]]
JsonObject: TypeAlias = dict[str, Any]
