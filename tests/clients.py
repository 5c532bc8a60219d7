"""A client of the API for a gateway that runs in the test's own process."""

from __future__ import annotations

from everhold.app import GatewayApp
from everhold.cli.client import ApiClient
from everhold.cli.in_process import InProcessTransport


def client_of(app: GatewayApp) -> ApiClient:
    return ApiClient(InProcessTransport(app.api))
