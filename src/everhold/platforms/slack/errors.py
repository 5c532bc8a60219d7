"""What went wrong at Slack, in our words: what to do next. No error text carries a token."""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias

import aiohttp
from slack_sdk.errors import SlackApiError

from everhold.errors import EverholdError, InDoubt, Refused, TooLong, Transient

SlackFailure: TypeAlias = SlackApiError | aiohttp.ClientError | asyncio.TimeoutError | OSError
SLACK_ERRORS: Final = (SlackApiError, aiohttp.ClientError, asyncio.TimeoutError, OSError)
"""Everything that a call to Slack fails with."""

TOKEN_ERROR_CODES: Final = frozenset(
    "invalid_auth not_authed account_inactive token_revoked token_expired not_allowed_token_type".split()
)
"""The account's trouble, not the message's: somebody mends it, and then it goes on."""
MESSAGE_GONE_CODES: Final = frozenset("message_not_found cant_update_message edit_window_closed".split())
_TOO_LONG_CODES: Final = frozenset("msg_too_long msg_blocks_too_long file_upload_size_restricted".split())
_IN_DOUBT_CODES: Final = frozenset("internal_error fatal_error service_unavailable request_timeout".split())
"""Slack says of these that some of it may have been done all the same."""
_RATE_LIMIT_CODES: Final = frozenset("ratelimited rate_limited message_limit_exceeded".split())


def convert_error(error: SlackFailure, *, what: str) -> EverholdError:
    """The error to raise for a call that failed."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.InvalidURL):
        return Transient(f"Slack cannot be reached: {type(error).__name__}")
    if not isinstance(error, SlackApiError):
        return InDoubt(f"{what}: {type(error).__name__}")
    name, status = get_error_code(error), _get_status(error)
    if status == 429 or name in _RATE_LIMIT_CODES:
        return Transient(f"Slack wants {what} to wait", retry_after=get_retry_after_seconds(error))
    if name in TOKEN_ERROR_CODES:
        return Transient(f"Slack does not take this token: {name}", remedy="put the app's token into .env")
    if status >= 500 or name in _IN_DOUBT_CODES or not name:
        return InDoubt(f"{what}: Slack answered {status} {name}".rstrip())
    if name in _TOO_LONG_CODES:
        return TooLong(f"Slack refuses {what}: {name}")
    remedy = ""
    if name == "missing_scope":
        remedy = f"the app needs the scope {_get_field(error, 'needed') or '?'}: add it, and install the app again"
    elif name in ("not_in_channel", "channel_not_found"):
        remedy = "invite the app into the channel"
    return Refused(f"Slack refuses {what}: {name}", remedy=remedy)


def get_error_code(error: BaseException | None) -> str:
    """What Slack calls the error; nothing if it did not say."""
    return _get_field(error, "error") if isinstance(error, SlackApiError) else ""


def is_permanent(error: SlackFailure) -> bool:
    """Whether somebody has to mend something before it makes sense to connect again."""
    return get_error_code(error) in TOKEN_ERROR_CODES | {"missing_scope"}


def get_retry_after_seconds(error: SlackApiError) -> float:
    headers = {key.lower(): value for key, value in dict(getattr(error.response, "headers", {})).items()}
    try:
        return float(headers.get("retry-after", ""))
    except ValueError:
        return 30.0


def _get_status(error: SlackApiError) -> int:
    # an answer that is no JSON comes as the HTTP library's response, which has another word for it
    found: int = getattr(error.response, "status_code", 0) or getattr(error.response, "status", 0)
    return found


def _get_field(error: SlackApiError, key: str) -> str:
    data = getattr(error.response, "data", error.response)
    value = data.get(key) if isinstance(data, dict) else ""
    return value if isinstance(value, str) else ""
