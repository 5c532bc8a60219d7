"""`everhold up` whose checks can be replaced by constants while it runs: `python -m bench.unchecked --home HOME up`.

A line on stdin names the checks that are left out from then on, for example `roles,quotas`; an empty line puts all of
them back, and `count` counts their calls. It is answered with the counts so far and `switched`. Nothing is wrapped
except to count, so a check that is in force costs what it costs without this program.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from everhold.api.auth import ApiCaller, RequestHead
from everhold.api.context import ApiContext
from everhold.api.middleware import GuardMiddleware
from everhold.api.request import ApiCall
from everhold.cli import main
from everhold.core.callers import CallerRole, CallerScope
from everhold.core.roles import PersonRole
from everhold.engine.roles import RoleStanding
from everhold.ingress.quotas import MessageQuotas
from everhold.ingress.roles import RoleFinder
from everhold.stores.sqlite.files import StoreFiles
from everhold.telemetry.logs import SecretRedaction

MEMBER_NAME: Final = "member"
COUNT: Final = "count"
SWITCHED: Final = "switched"
_CALLER: Final = ApiCaller(
    account=f"token:{MEMBER_NAME}", sender=MEMBER_NAME, scope=CallerScope(token=MEMBER_NAME, role=CallerRole.MEMBER)
)
_STANDING: Final = RoleStanding(role=PersonRole.MEMBER)


async def _get_caller(_guard: Any, head: RequestHead, receive: Any, _cork: Any, _releases: Any) -> Any:
    """Read the body of a request; the caller is always the same."""
    if head.method == "GET":
        return _CALLER, b""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return _CALLER, bytes(body)


async def _get_role(*_: Any) -> PersonRole:
    return PersonRole.MEMBER


async def _get_standing(*_: Any) -> RoleStanding:
    return _STANDING


async def _say_yes(*_: Any) -> bool:
    return True


def _charge_nothing(*_: Any) -> None:
    return None


def _find_nothing(*_: Any) -> str:
    return ""


def _keep_text(_redaction: Any, text: str, **_: Any) -> str:
    return text


def _keep_value(_redaction: Any, value: object, **_: Any) -> object:
    return value


CONSTANTS: Final[Mapping[str, tuple[tuple[type, str, Any], ...]]] = {
    "requests": (
        (GuardMiddleware, "_admit_request", _get_caller),
        (ApiCall, "check_access", _charge_nothing),
        (ApiCall, "is_still_allowed", _say_yes),
        (ApiContext, "can_see", _say_yes),
    ),
    "roles": ((RoleFinder, "compute_role", _get_role), (RoleFinder, "find_role", _get_standing)),
    "quotas": ((MessageQuotas, "find_charge", _charge_nothing),),
    "store files": ((StoreFiles, "find_change", _find_nothing),),
    "redaction": (
        (SecretRedaction, "scrub_text", _keep_text),
        (SecretRedaction, "render_plain", _keep_value),
    ),
}
"""The checks of a turn, and what replaces each of them."""
_CHECKS: Final = {(owner, name): getattr(owner, name) for replaced in CONSTANTS.values() for owner, name, _ in replaced}


def leave_out(names: set[str]) -> None:
    """Replace these checks by constants, and put the others back."""
    for check, replaced in CONSTANTS.items():
        for owner, attribute, constant in replaced:
            setattr(owner, attribute, constant if check in names else _CHECKS[owner, attribute])


def count_calls(calls: Counter[str]) -> None:
    """Count the calls of all checks, until the next order."""

    def count(check: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            calls[check] += 1
            return call(*args, **named)

        return counted

    for check, replaced in CONSTANTS.items():
        for owner, attribute, _ in replaced:
            setattr(owner, attribute, count(check, _CHECKS[owner, attribute]))


def _follow_orders() -> None:
    calls: Counter[str] = Counter()
    for line in sys.stdin:
        order = line.rstrip("\n")
        print(json.dumps(calls), flush=True)
        calls.clear()
        if order == COUNT:
            count_calls(calls)
        else:
            leave_out({name for name in order.split(",") if name})
        print(SWITCHED, flush=True)


if __name__ == "__main__":
    threading.Thread(target=_follow_orders, daemon=True).start()
    sys.exit(main())
