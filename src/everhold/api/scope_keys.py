"""Keys that everhold adds to the ASGI scope of a request."""

from __future__ import annotations

from typing import Final

HEAD: Final = "everhold.head"
"""The request's head, set by the guard."""
CALLER: Final = "everhold.caller"
"""The caller, set by the guard."""
BODY: Final = "everhold.body"
"""The complete body, set by the guard."""
RELEASES: Final = "everhold.releases"
"""Functions that the guard calls when the request has ended, set by the guard."""
CORK: Final = "everhold.cork"
"""The connection's CorkedTransport; see `http_protocol.py`."""
OPERATOR_CONNECTION: Final = "everhold.operator_connection"
"""Set for requests from `api.sock` and from inside this process. Their caller is an operator. No client can set it."""
