"""Converts Slack's errors to everhold's, which say what to do next. No error text contains a token."""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias

import aiohttp
from slack_sdk.errors import SlackApiError

from everhold.errors import EverholdError, InDoubt, Refused, TooLong, Transient
from everhold.infra.http_transport import BodyUndecodable, TransportBroken, TransportTimeout, TransportUnreachable

SlackFailure: TypeAlias = (
    SlackApiError
    | aiohttp.ClientError
    | asyncio.TimeoutError
    | OSError
    | TransportUnreachable
    | TransportTimeout
    | TransportBroken
    | BodyUndecodable
)
SLACK_ERRORS: Final = (
    SlackApiError,
    aiohttp.ClientError,
    asyncio.TimeoutError,
    OSError,
    TransportUnreachable,
    TransportTimeout,
    TransportBroken,
    BodyUndecodable,
)
"""All errors that a call to Slack raises."""

TOKEN_ERROR_CODES: Final = frozenset(
    "invalid_auth not_authed account_inactive token_revoked token_expired not_allowed_token_type".split()
)
"""Problems of the account, not of the message. After the operator has fixed them, delivery continues."""
MESSAGE_GONE_CODES: Final = frozenset("message_not_found cant_update_message edit_window_closed".split())
_TOO_LONG_CODES: Final = frozenset("msg_too_long msg_blocks_too_long file_upload_size_restricted".split())
_IN_DOUBT_CODES: Final = frozenset("internal_error fatal_error service_unavailable request_timeout".split())
"""Slack documents that the call may have been carried out in part after these."""
_RATE_LIMIT_CODES: Final = frozenset("ratelimited rate_limited message_limit_exceeded".split())


def convert_error(error: SlackFailure, *, what: str) -> EverholdError:
    """Return the error to raise for a failed call."""
    unreached = isinstance(error, TransportTimeout) and error.phase == "connection"
    if unreached or isinstance(error, aiohttp.ClientConnectorError | aiohttp.InvalidURL | TransportUnreachable):
        return Transient(f"Slack cannot be reached: {type(error).__name__}")
    if not isinstance(error, SlackApiError):
        return InDoubt(f"{what}: {type(error).__name__}")
    name, status = get_error_code(error), _get_status(error)
    if status == 429 or name in _RATE_LIMIT_CODES:
        return Transient(f"Slack limits the rate of {what}", retry_after=get_retry_after_seconds(error))
    if name in TOKEN_ERROR_CODES:
        return Transient(f"Slack does not accept this token: {name}", remedy="put the app's token into .env")
    if status >= 500 or name in _IN_DOUBT_CODES or not name:
        return InDoubt(f"{what}: Slack answered {status} {name}".rstrip())
    if name in _TOO_LONG_CODES:
        return TooLong(f"Slack refuses {what}: {name}")
    remedy = ""
    if name == "missing_scope":
        remedy = f"the app needs the scope {_get_field(error, 'needed') or '?'}: add it and reinstall the app"
    elif name in ("not_in_channel", "channel_not_found"):
        remedy = "invite the app into the channel"
    return Refused(f"Slack refuses {what}: {name}", remedy=remedy)


def get_error_code(error: BaseException | None) -> str:
    """Return Slack's name of the error, or an empty text if there is none."""
    return _get_field(error, "error") if isinstance(error, SlackApiError) else ""


def is_permanent(error: SlackFailure) -> bool:
    """Return whether the operator has to fix something before connecting again makes sense."""
    return get_error_code(error) in TOKEN_ERROR_CODES | {"missing_scope"}


def get_retry_after_seconds(error: SlackApiError) -> float:
    headers = {key.lower(): value for key, value in dict(getattr(error.response, "headers", {})).items()}
    try:
        return float(headers.get("retry-after", ""))
    except ValueError:
        return 30.0


def _get_status(error: SlackApiError) -> int:
    # an answer that is not JSON is the HTTP library's response, with another attribute
    found: int = getattr(error.response, "status_code", 0) or getattr(error.response, "status", 0)
    return found


def _get_field(error: SlackApiError, key: str) -> str:
    data = getattr(error.response, "data", error.response)
    value = data.get(key) if isinstance(data, dict) else ""
    return value if isinstance(value, str) else ""
