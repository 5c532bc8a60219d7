"""One request on its way to a route: who asks, and what for, already checked."""

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
from everhold.api.scope_keys import BODY, CALLER, HEAD
from everhold.errors import NotFound

T = TypeVar("T")

MAX_INTEGER: int = 2**53


class ApiCall:
    """A request the guard has let in."""

    def __init__(self, context: ApiContext, scope: Scope, receive: Receive) -> None:
        self.context = context
        self.caller: ApiCaller = scope[CALLER]
        self.raw_body: bytes = scope[BODY]
        self.receive = receive
        self._scope = scope
        self.headers: Mapping[str, str] = scope[HEAD].headers
        """By their names in lower case, the first of each."""
        self.is_operator_connection: bool = scope[HEAD].is_operator_connection
        """It came through `api.sock`, or from inside this process."""
        self.path: dict[str, str] = scope.get("path_params", {})

    @cached_property
    def query(self) -> QueryParams:
        return QueryParams(self._scope["query_string"])

    def decode_body(self, type: type[T]) -> T:
        """The body as `type`. An empty one is an empty object."""
        try:
            return msgspec.json.decode(self.raw_body or b"{}", type=type)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiError(400, "misuse", f"the body cannot be read: {error}", remedy="see /openapi.json") from error
        except RecursionError:
            raise ApiError(400, "misuse", "the body is nested too deeply") from None

    def get_number(self, name: str, *, least: int = 0, most: int = MAX_INTEGER) -> int | None:
        """A whole number from the query, None if it is not there."""
        found = self.query.getlist(name)
        if not found:
            return None
        text = found[-1]
        if len(text) > 20 or not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise ApiError(400, "misuse", f"{name} must be a whole number from {least} to {most}")
        return int(text)

    def resolve_agent(self, name: str) -> str:
        """The agent called `name`, or the default one."""
        settings = self.context.agents.settings
        if name and name not in settings.agents:
            known = ", ".join(sorted(settings.agents))
            raise NotFound(f"there is no agent {name!r}", remedy=f"there is {known}")
        return name or settings.default_agent

    async def person(self) -> str:
        """Who the caller is to the agents. Commands on this machine speak from a terminal."""
        platform = "terminal" if self.is_operator_connection else "http"
        return await self.context.resolve_person(self.caller.sender, platform=platform)

    def require_operator(self) -> None:
        if not self.caller.operator:
            raise ApiError(403, "denied", "only an operator may do this", remedy="use a token with operator: true")

    def needs_operator_connection(self, what: str) -> None:
        """Refuse `what` to callers from outside: it names a file of this machine."""
        if not self.is_operator_connection:
            raise ApiError(403, "denied", f"`{what}` names a file, which only commands on this machine may do")

    async def wait_for_disconnect(self) -> None:
        """Returns when the caller is gone."""
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                return


RouteHandler: TypeAlias = Callable[[ApiCall], Awaitable[Response]]
JsonObject: TypeAlias = dict[str, Any]
