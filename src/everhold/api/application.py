"""The API as an ASGI application: the guard middleware, then the routes. It can be called without a server."""

from __future__ import annotations

from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from everhold.api import openapi
from everhold.api.console import ConsoleFiles
from everhold.api.context import ApiContext
from everhold.api.errors import ApiError, build_json_response, convert_error
from everhold.api.health import MetricsEndpoint
from everhold.api.middleware import GuardMiddleware
from everhold.api.request import ApiCall
from everhold.api.route_types import ApiRoute
from everhold.api.routes import build_routes
from everhold.core.callers import CallerRole
from everhold.errors import EverholdError


def build_application(context: ApiContext) -> GuardMiddleware:
    """Build the ASGI application: the routes, wrapped in the guard."""
    metrics = MetricsEndpoint()

    async def show_document(call: ApiCall) -> Response:
        """Return the OpenAPI document of this server."""
        return build_json_response(openapi.build_document(table))

    table = build_routes(files=ConsoleFiles(), metrics=metrics, document=show_document)
    dispatcher = RouteDispatcher(table, context)
    guard = GuardMiddleware(
        dispatcher,
        settings=context.load_fresh_settings,
        monotonic=context.control.gates.clock.monotonic,
        log=context.log,
        local=context.local_person,
        logins=context.logins,
        is_public=dispatcher.is_public,
        find_body_bytes=dispatcher.find_body_bytes,
    )
    metrics.guard = guard
    context.confirm_caller = guard.confirm_caller
    context.check_failed_login = guard.check_failed_login
    context.check_login = guard.check_login
    return guard


class RouteDispatcher:
    """Calls the handler of the requested route and turns the errors it raises into responses."""

    def __init__(self, table: tuple[ApiRoute, ...], context: ApiContext) -> None:
        self.table = table
        self.context = context
        self._routes = [(Route(route.path, route.handler, methods=[route.method]), route) for route in table]
        self._plain = {(route.method, route.path): route for route in table if "{" not in route.path}
        self._guarded = ServerErrorMiddleware(self.serve_request, handler=self._handle_bug)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guarded(scope, receive, send)

    async def serve_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Unexpected exceptions propagate, so tests can see them."""
        try:
            route, call = self._find_route(scope), ApiCall(self.context, scope, receive)
            call.check_access(route)
            _check_choices(call, route)
            response = await route.handler(call)
            if isinstance(response, StreamingResponse):
                response.body_iterator = call.guard_stream(response.body_iterator)
        except ApiError as refusal:
            response = refusal.to_response()
        except EverholdError as error:
            refused = convert_error(error)
            scrub = self.context.redact_text
            refused.message, refused.remedy = scrub(refused.message), scrub(refused.remedy)
            response = refused.to_response()
        await response(scope, receive, send)

    def is_public(self, method: str, path: str) -> bool:
        """Whether anybody may call this method and path. A route that does not exist is not public."""
        if plain := self._plain.get((method, path)):
            return plain.least is CallerRole.ANYBODY
        scope: Scope = {"type": "http", "method": method, "path": path}
        return any(
            matcher.matches(scope)[0] is Match.FULL
            for matcher, route in self._routes
            if route.least is CallerRole.ANYBODY
        )

    def find_body_bytes(self, method: str, path: str) -> int:
        """Return how large a body may be by its route; 0: as usual."""
        scope: Scope = {"type": "http", "method": method, "path": path}
        return next(
            (
                it.body_bytes
                for matcher, it in self._routes
                if it.body_bytes and matcher.matches(scope)[0] is Match.FULL
            ),
            0,
        )

    def _find_route(self, scope: Scope) -> ApiRoute:
        if plain := self._plain.get((scope["method"], scope["path"])):
            scope["path_params"] = {}
            return plain
        allowed: set[str] = set()
        for matcher, route in self._routes:
            match, found = matcher.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                return route
            if match is Match.PARTIAL:
                allowed |= matcher.methods or set()
        path, method = scope["path"], scope["method"]
        if not allowed:
            raise ApiError(404, "not_found", f"there is no route {path}", remedy="/openapi.json lists the routes")
        names = ", ".join(sorted(allowed))
        remedy = f"use {names}"
        raise ApiError(405, "method", f"{path} does not support {method}", remedy=remedy, headers={"allow": names})

    def _handle_bug(self, request: Request, error: Exception) -> Response:
        return ApiError(
            500, "internal", "everhold failed with an internal error", remedy="`everhold logs` shows the details"
        ).to_response()


def _check_choices(call: ApiCall, route: ApiRoute) -> None:
    """Refuse a value that the document does not list, also where the handler would not look at it."""
    for parameter in route.parameters:
        choices = parameter.schema.get("enum")
        if not choices or parameter.where != "query":
            continue
        for given in call.query.getlist(parameter.name):
            if given not in choices:
                raise ApiError(
                    400,
                    "invalid_request",
                    f"`{parameter.name}` cannot be {given[:40]!r}",
                    remedy=f"use one of {', '.join(choices)}",
                )
