"""The API as an ASGI application: the guard in front, the routes after it. Needs no server to be called."""

from __future__ import annotations

from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from everhold.api import openapi
from everhold.api.console import ConsoleFiles
from everhold.api.context import ApiContext
from everhold.api.errors import ApiError, build_json_response, convert_error
from everhold.api.health import MetricsEndpoint
from everhold.api.middleware import GuardMiddleware
from everhold.api.request import ApiCall
from everhold.api.routes import ApiRoute, build_routes
from everhold.errors import EverholdError


def application(office: ApiContext) -> GuardMiddleware:
    """Everything behind the guard."""
    metrics = MetricsEndpoint()

    async def document(call: ApiCall) -> Response:
        """What can be asked of this server."""
        return build_json_response(openapi.build_document(table))

    table = build_routes(files=ConsoleFiles(), metrics=metrics, document=document)
    guard = GuardMiddleware(
        Routes(table, office),
        settings=office.load_fresh_settings,
        monotonic=office.control.gates.clock.monotonic,
        log=office.log,
        local=office.local_person,
    )
    metrics.guard = guard
    return guard


class Routes:
    """Finds the route and turns whatever it raises into an answer."""

    def __init__(self, table: tuple[ApiRoute, ...], office: ApiContext) -> None:
        self.table = table
        self.office = office
        self._routes = [(Route(way.path, way.handler, methods=[way.method]), way) for way in table]
        self._plain = {(way.method, way.path): way for way in table if "{" not in way.path}
        self._safe = ServerErrorMiddleware(self.serve, handler=self._broken)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._safe(scope, receive, send)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Without the net: what breaks is raised."""
        try:
            route, call = self._find(scope), ApiCall(self.office, scope, receive)
            if route.operator:
                call.require_operator()
            response = await route.handler(call)
        except ApiError as refusal:
            response = refusal.to_response()
        except EverholdError as error:
            refused = convert_error(error)
            scrub = self.office.redact_text
            refused.message, refused.remedy = scrub(refused.message), scrub(refused.remedy)
            response = refused.to_response()
        await response(scope, receive, send)

    def _find(self, scope: Scope) -> ApiRoute:
        if plain := self._plain.get((scope["method"], scope["path"])):
            scope["path_params"] = {}
            return plain
        allowed: set[str] = set()
        for route, way in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                return way
            if match is Match.PARTIAL:
                allowed |= route.methods or set()
        path, method = scope["path"], scope["method"]
        if not allowed:
            raise ApiError(404, "not_found", f"there is nothing at {path}", remedy="/openapi.json lists what there is")
        names = ", ".join(sorted(allowed))
        raise ApiError(405, "method", f"{path} does not know {method}", remedy=f"use {names}", headers={"allow": names})

    def _broken(self, request: Request, error: Exception) -> Response:
        return ApiError(
            500, "internal", "something in everhold broke", remedy="`everhold logs` says what"
        ).to_response()
