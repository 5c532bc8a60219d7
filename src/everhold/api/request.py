"""A request that the guard has admitted, as handlers receive it."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.types import Receive, Scope

from everhold.api.auth import OPERATOR_SOCKET, ApiCaller, RequestHead
from everhold.api.context import ApiContext
from everhold.api.errors import ApiError
from everhold.api.scope_keys import BODY, CALLER, CORK, HEAD, RELEASES
from everhold.core.callers import CallerRole, can_call, is_login_fresh
from everhold.core.people import build_identity
from everhold.core.trace_ids import parse_traceparent
from everhold.errors import NotFound

T = TypeVar("T")

MAX_INTEGER: int = 2**53
PERSON_HEADER: Final = "x-everhold-person"
CONFIRM_SECONDS: Final = 1.0
"""How long an open stream may go on after its credential has ended."""


class RouteAccess(Protocol):
    """What a route demands of its callers."""

    @property
    def least(self) -> CallerRole: ...
    @property
    def fresh(self) -> bool: ...
    @property
    def is_agent_scoped(self) -> bool: ...
    @property
    def changes(self) -> bool: ...


class ApiCall:
    """A request that the guard has admitted, with its caller and parameters."""

    def __init__(self, context: ApiContext, scope: Scope, receive: Receive) -> None:
        self.context = context
        self.head: RequestHead = scope[HEAD]
        self.caller = _name_service_user(scope[CALLER], self.head)
        self.raw_body: bytes = scope[BODY]
        self.receive = receive
        self._scope = scope
        self.headers: Mapping[str, str] = scope[HEAD].headers
        """By name in lower case; the first value if a name is repeated."""
        self.is_operator_connection: bool = scope[CALLER].account == OPERATOR_SOCKET
        """The connection identified the caller: `api.sock`, or a connection inside this process. A request that a proxy
        forwards to `api.sock`, or that has a token, is not that of a command."""
        self.path: dict[str, str] = scope.get("path_params", {})
        self._confirmed_at = context.control.gates.clock.monotonic()

    @cached_property
    def query(self) -> QueryParams:
        return QueryParams(self._scope["query_string"])

    @property
    def traceparent(self) -> str:
        """The span of the caller's program, of which nothing but its ids is kept; empty if the request names none."""
        caller = parse_traceparent(self.headers.get("traceparent", ""))
        return caller.traceparent if caller is not None else ""

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
        """Return the agent called `name`, or the default agent. Raises NotFound, also if the caller may not use it."""
        settings, scope = self.context.agents.settings, self.caller.scope
        agent = name or settings.default_agent
        if not name and not scope.can_use(agent):
            agent = next(iter(scope.agents), agent)
        if agent not in settings.agents or not scope.can_use(agent):
            known = ", ".join(self.list_agents())
            raise NotFound(f"there is no agent {agent!r}", remedy=f"use one of: {known}")
        return agent

    def list_agents(self) -> list[str]:
        """Return the names of the agents that the caller may use."""
        return [name for name in sorted(self.context.agents.settings.agents) if self.caller.scope.can_use(name)]

    @property
    def identity(self) -> str:
        """The caller's identity. The identity of commands on this machine is that of a terminal."""
        sender = self.caller.resolve_sender("")
        return build_identity("terminal" if self.is_operator_connection else "http", sender)

    @property
    def author(self) -> str:
        """The author of a change: the operator for commands on this machine, else the caller."""
        return "operator" if self.is_operator_connection else f"person:{self.identity}"

    def check_access(self, route: RouteAccess) -> None:
        """Refuse the route unless the caller's role, scope and login permit it. Raises ApiError."""
        scope = self.caller.scope
        if not can_call(scope.role, route.least):
            if route.least is CallerRole.OPERATOR:
                raise _build_operator_error()
            raise ApiError(
                403,
                "denied",
                f"a token with role {scope.role} may not do this",
                remedy=f"use a token with role: {route.least}",
            )
        if route.least is CallerRole.OPERATOR and scope.agents and not route.is_agent_scoped:
            raise ApiError(
                403, "denied", "this token is for some agents only", remedy="use an operator token without `agents`"
            )
        if scope.read_only and route.changes and route.least is not CallerRole.ANYBODY:
            raise ApiError(403, "read_only", "this token may only read", remedy="use a token without read_only")
        if route.fresh:
            self.require_fresh_login()

    def require_fresh_login(self) -> None:
        """Refuse a login that is not from the last minutes. Raises ApiError."""
        caller = self.caller
        if caller.login and not is_login_fresh(created_at=caller.login_at, now=self.context.now()):
            raise ApiError(
                403,
                "login_too_old",
                "this needs a login from the last fifteen minutes",
                remedy="log in again: `everhold open` makes a link",
            )

    async def is_still_allowed(self) -> bool:
        """Return whether the credential of this request has the rights it had, checked about once a second."""
        now = self.context.control.gates.clock.monotonic()
        if now - self._confirmed_at < CONFIRM_SECONDS:
            return True
        self._confirmed_at = now
        try:
            caller = await self.context.confirm_caller(self.head)
            return caller is not None and _name_service_user(caller, self.head) == self.caller
        except ApiError:  # the store cannot be read now, or the token speaks for other people now
            return False

    async def guard_stream(self, parts: AsyncIterable[Any]) -> AsyncIterator[Any]:
        """Yield the parts of a response while the credential is valid. Then the connection is closed in the middle of
        the response, so the client knows that it is incomplete."""
        async for part in parts:
            if not await self.is_still_allowed():
                if (transport := self._scope.get(CORK)) is not None:
                    transport.abort()
                return
            yield part

    def require_operator(self) -> None:
        if not self.caller.operator:
            raise _build_operator_error()

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


def decode_header(raw: str) -> str:
    """Return the text of a header, which arrives as Latin-1, decoded as UTF-8 if possible."""
    try:
        return raw.strip().encode("latin-1").decode()
    except UnicodeError:
        return raw.strip()


def _name_service_user(caller: ApiCaller, head: RequestHead) -> ApiCaller:
    """Return a service's caller as the user that the header names."""
    if caller.owned_senders and (name := decode_header(head.get(PERSON_HEADER))):
        return msgspec.structs.replace(caller, sender=caller.resolve_sender(name))
    return caller


def _build_operator_error() -> ApiError:
    return ApiError(403, "denied", "only an operator may do this", remedy="use a token with role: operator")


RouteHandler: TypeAlias = Callable[[ApiCall], Awaitable[Response]]
JsonObject: TypeAlias = dict[str, Any]
