"""Handlers of webhooks: other services deliver events, and operators look at what is configured."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from everhold.api import schemas
from everhold.api.auth import ANONYMOUS
from everhold.api.errors import ApiError, build_json_response, build_limited_error
from everhold.api.request import ApiCall
from everhold.config import Settings
from everhold.errors import NotFound
from everhold.ingress.hooks import UNPROVEN, UNWANTED, find_hook_address

MAX_DELIVERY_BYTES: Final = 256 * 1024
"""The limit of a delivery, because anybody can send one that has to be read before its signature is known."""


async def receive_delivery(call: ApiCall) -> Response:
    """Commit the message of a delivery. The response is sent after the commit."""
    settings = await call.context.load_fresh_settings()
    if len(call.raw_body) > MAX_DELIVERY_BYTES:
        raise ApiError(413, "too_large", f"a delivery may have at most {MAX_DELIVERY_BYTES:,} bytes")
    try:
        result = await call.context.gateway.hooks.receive(call.path["name"], call.headers, call.raw_body)
    except NotFound:  # guessing names is limited like guessing secrets
        _count_failure(call, settings)
        raise
    match result.outcome:
        case "accepted":
            return build_json_response(
                {"outcome": "accepted", "session": result.session, "seq": result.seq}, status=202
            )
        case "duplicate" | "differs":
            return build_json_response({"outcome": "duplicate", "session": result.session, "seq": result.seq})
        case "limited":
            raise build_limited_error(result)
        case _ if result.outcome == UNWANTED:
            return build_json_response({"outcome": UNWANTED, "session": "", "seq": 0})
        case _ if result.outcome == UNPROVEN:
            _count_failure(call, settings)
            raise ApiError(401, "unauthorized", result.reason, remedy="sign with the secret of this hook")
        case _:
            raise ApiError(403, "denied", result.reason or "the message was not accepted")


def _count_failure(call: ApiCall, settings: Settings) -> None:
    """Limit the rate of deliveries that prove nothing. Raises ApiError."""
    if call.caller.account == ANONYMOUS.account:
        call.context.check_failed_login(call.head, settings.http)


async def list_hooks(call: ApiCall) -> Response:
    """Return the configured hooks."""
    settings = await call.context.load_fresh_settings()
    shown = [
        {
            "name": hook.name,
            "path": f"/hooks/{hook.name}",
            "scheme": hook.scheme,
            "address": find_hook_address(hook),
            "missing": list(hook.missing),
        }
        for hook in settings.hooks.values()
    ]
    return build_json_response({"hooks": shown})


async def try_hook(call: ApiCall) -> Response:
    """Show what would be heard of a delivery, or sign it and deliver it to this gateway."""
    given, name, hooks = call.decode_body(schemas.HookTestRequest), call.path["name"], call.context.gateway.hooks
    await call.context.load_fresh_settings()
    headers = {key.lower(): value for key, value in given.headers.items()}
    preview = hooks.preview(name, headers, given.body.encode())
    outcome, session = "", ""
    if given.send:
        signed = hooks.sign(name, headers, given.body.encode())
        result = await hooks.receive(name, signed, given.body.encode())
        if result.outcome == "limited":
            raise build_limited_error(result)
        if result.outcome == "denied":
            raise ApiError(403, "denied", result.reason)
        outcome, session = result.outcome, result.session
    return build_json_response(
        {
            "address": preview.address,
            "task": preview.task,
            "text": preview.text,
            "id": preview.id,
            "wanted": preview.is_wanted,
            "outcome": outcome,
            "session": session,
        }
    )
