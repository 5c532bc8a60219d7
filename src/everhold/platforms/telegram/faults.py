"""What went wrong at Telegram, in our words: what to do next. No error text carries the token."""

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
from everhold.secret import Secret

_NEVER_LEFT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
"""What happens before a request is on its way. Anything later, and nobody can tell whether it was carried out."""
# the library announces another type for this one, and both are understood here
warnings.filterwarnings("ignore", message=".*retry_after.*", category=PTBDeprecationWarning)

TOO_MUCH: Final = ("too long", "too_long", "too large", "too big")
NOT_MODIFIED: Final = "message is not modified"
GONE: Final = ("message to edit not found", "message can't be edited", "message_id_invalid")


def ours(error: TelegramError, *, what: str, token: Secret) -> EverholdError:
    """The error to raise for a call that failed."""
    match error:
        case RetryAfter():
            return Transient(f"Telegram wants {what} to wait", retry_after=seconds_of(error))
        case InvalidToken() | EndPointNotFound():
            # the library's text quotes the token
            return Refused("Telegram does not know this token", remedy="@BotFather gives a new one; put it into .env")
        case Conflict():
            return Transient("another program reads this bot's messages", remedy="stop it, or take another bot")
        case Forbidden():
            return Refused(f"Telegram refuses {what}: {token.hide(error.message)}")
        case ChatMigrated():
            return Refused(f"the group has a new id: {error.new_chat_id}")
        case BadRequest() | NetworkError() if any(word in error.message.lower() for word in TOO_MUCH):
            return TooLong(f"Telegram refuses {what}: {token.hide(error.message)}")
        case BadRequest():
            return Refused(f"Telegram refuses {what}: {token.hide(error.message)}")
        case TimedOut() | NetworkError() if isinstance(error.__cause__, _NEVER_LEFT):
            return Transient(f"Telegram cannot be reached: {type(error.__cause__).__name__}")
        case _:
            return InDoubt(f"{what}: {token.hide(error.message)}")


def seconds_of(error: RetryAfter) -> float:
    wait = error.retry_after
    return wait.total_seconds() if isinstance(wait, datetime.timedelta) else float(wait)


def says(error: TelegramError, *texts: str) -> bool:
    return isinstance(error, BadRequest) and any(text in error.message.lower() for text in texts)
