"""A client of the API for a gateway that runs in the test's own process."""

from __future__ import annotations

from everhold.app import App
from everhold.cli.client import ApiClient
from everhold.cli.in_process import InProcessTransport


def client_of(app: App) -> ApiClient:
    return ApiClient(InProcessTransport(app.api))
