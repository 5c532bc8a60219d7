"""Keys under which the parts of the server leave things for each other in a request's ASGI scope."""

from __future__ import annotations

from typing import Final

HEAD: Final = "everhold.head"
"""The request's head, once the guard has read it."""
CALLER: Final = "everhold.caller"
"""Who calls, once the guard has let them in."""
BODY: Final = "everhold.body"
"""The whole body."""
CORK: Final = "everhold.cork"
"""The connection's cork; see `protocol.py`."""
OPERATOR_CONNECTION: Final = "everhold.operator_connection"
"""Set for requests from `api.sock` and from inside this process. Their caller is an operator. No client can set it."""
