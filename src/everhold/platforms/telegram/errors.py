"""Converts Telegram's errors to everhold's, which say what to do next. No error text contains the token."""

from __future__ import annotations

import datetime
import warnings
from typing import Final

import httpx
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    EndPointNotFound,
    Forbidden,
    InvalidToken,
    NetworkError,
    RetryAfter,
    TelegramError,
    TimedOut,
)
from telegram.warnings import PTBDeprecationWarning

from everhold.errors import EverholdError, InDoubt, Refused, TooLong, Transient
from everhold.infra.secret import SecretString

_UNSENT_ERRORS: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
"""Errors that occur before the request is sent. After any other one the request may have been carried out."""
# the library announces that the type will change; both types are handled
warnings.filterwarnings("ignore", message=".*retry_after.*", category=PTBDeprecationWarning)

TOO_LONG_PHRASES: Final = ("too long", "too_long", "too large", "too big")
NOT_MODIFIED: Final = "message is not modified"
MESSAGE_GONE_PHRASES: Final = ("message to edit not found", "message can't be edited", "message_id_invalid")


def convert_error(error: TelegramError, *, what: str, token: SecretString) -> EverholdError:
    """Return the error to raise for a failed call."""
    match error:
        case RetryAfter():
            return Transient(f"Telegram limits the rate of {what}", retry_after=get_retry_after_seconds(error))
        case InvalidToken() | EndPointNotFound():
            # the library's text contains the token
            return Refused(
                "Telegram does not know this token", remedy="get a new token from @BotFather and put it into .env"
            )
        case Conflict():
            return Transient(
                "another program reads this bot's messages", remedy="stop that program, or use another bot"
            )
        case Forbidden():
            return Refused(f"Telegram refuses {what}: {token.mask_in(error.message)}")
        case ChatMigrated():
            return Refused(f"the group has a new id: {error.new_chat_id}")
        case BadRequest() | NetworkError() if any(word in error.message.lower() for word in TOO_LONG_PHRASES):
            return TooLong(f"Telegram refuses {what}: {token.mask_in(error.message)}")
        case BadRequest():
            return Refused(f"Telegram refuses {what}: {token.mask_in(error.message)}")
        case TimedOut() | NetworkError() if isinstance(error.__cause__, _UNSENT_ERRORS):
            return Transient(f"Telegram cannot be reached: {type(error.__cause__).__name__}")
        case _:
            return InDoubt(f"{what}: {token.mask_in(error.message)}")


def get_retry_after_seconds(error: RetryAfter) -> float:
    wait = error.retry_after
    return wait.total_seconds() if isinstance(wait, datetime.timedelta) else float(wait)


def has_message_text(error: TelegramError, *texts: str) -> bool:
    return isinstance(error, BadRequest) and any(text in error.message.lower() for text in texts)
