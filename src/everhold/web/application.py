"""The API as an ASGI application: the guard in front, the routes after it. Needs no server to be called."""

from __future__ import annotations

from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from everhold.errors import EverholdError
from everhold.web import openapi
from everhold.web.answers import Refusal, answer, refusal_of
from everhold.web.call import Call
from everhold.web.guard import Guard
from everhold.web.office import Office
from everhold.web.operations import Metrics
from everhold.web.page import Page
from everhold.web.routes import Way, ways


def application(office: Office) -> Guard:
    """Everything behind the guard."""
    metrics = Metrics()

    async def document(call: Call) -> Response:
        """What can be asked of this server."""
        return answer(openapi.document(table))

    table = ways(files=Page(), metrics=metrics, document=document)
    guard = Guard(
        Routes(table, office),
        settings=office.fresh,
        monotonic=office.control.gates.clock.monotonic,
        log=office.log,
        local=office.local,
    )
    metrics.guard = guard
    return guard


class Routes:
    """Finds the route and turns whatever it raises into an answer."""

    def __init__(self, table: tuple[Way, ...], office: Office) -> None:
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
            route, call = self._find(scope), Call(self.office, scope, receive)
            if route.operator:
                call.needs_operator()
            response = await route.handler(call)
        except Refusal as refusal:
            response = refusal.response()
        except EverholdError as error:
            refused = refusal_of(error)
            scrub = self.office.scrub
            refused.message, refused.remedy = scrub(refused.message), scrub(refused.remedy)
            response = refused.response()
        await response(scope, receive, send)

    def _find(self, scope: Scope) -> Way:
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
            raise Refusal(404, "not_found", f"there is nothing at {path}", remedy="/openapi.json lists what there is")
        names = ", ".join(sorted(allowed))
        raise Refusal(405, "method", f"{path} does not know {method}", remedy=f"use {names}", headers={"allow": names})

    def _broken(self, request: Request, error: Exception) -> Response:
        return Refusal(500, "internal", "something in everhold broke", remedy="`everhold logs` says what").response()
