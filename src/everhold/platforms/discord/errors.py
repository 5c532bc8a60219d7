"""Converts Discord's errors to everhold's, which say what to do next."""

from __future__ import annotations

import asyncio
from typing import Final, TypeAlias

import aiohttp
import discord
from discord.gateway import ReconnectWebSocket, WebSocketClosure

from everhold.errors import EverholdError, InDoubt, Refused, TooLong, Transient
from everhold.infra.http_transport import BodyUndecodable, TransportBroken, TransportTimeout, TransportUnreachable
from everhold.platforms.discord.http_client import DiscordRateLimited

DiscordFailure: TypeAlias = (
    discord.DiscordException
    | ReconnectWebSocket
    | WebSocketClosure
    | DiscordRateLimited
    | aiohttp.ClientError
    | asyncio.TimeoutError
    | OSError
    | TransportUnreachable
    | TransportTimeout
    | TransportBroken
    | BodyUndecodable
)
DISCORD_ERRORS: Final = (
    discord.DiscordException,
    ReconnectWebSocket,
    WebSocketClosure,
    DiscordRateLimited,
    aiohttp.ClientError,
    asyncio.TimeoutError,
    OSError,
    TransportUnreachable,
    TransportTimeout,
    TransportBroken,
    BodyUndecodable,
)
"""All errors that a call to Discord, or its gateway, raises."""

UNKNOWN_MESSAGE: Final = 10008
NOT_OUR_MESSAGE: Final = 50005
UNKNOWN_TOKEN: Final = (
    "Discord does not know this token",
    "get a new token in the developer portal and put it into .env",
)
MISSING_INTENT: Final = (
    "the bot may not read messages",
    "switch on the Message Content Intent in the developer portal, under Bot",
)
_FATAL_CLOSE_CODES: Final = {
    4004: UNKNOWN_TOKEN,
    4013: ("Discord does not accept our intents", "update everhold"),
    4014: MISSING_INTENT,
}
"""Close codes after which Discord's gateway does not accept the same connection again."""


def convert_error(error: DiscordFailure, *, what: str) -> EverholdError:
    """Return the error to raise for a failed call."""
    if isinstance(error, TransportTimeout) and error.phase == "connection":
        error = TransportUnreachable(str(error))
    match error:
        case DiscordRateLimited(status=429):
            return Transient(f"Discord limits the rate of {what}", retry_after=error.wait_seconds)
        case discord.RateLimited():
            return Transient(f"Discord limits the rate of {what}", retry_after=error.retry_after)
        case discord.LoginFailure() | discord.HTTPException(status=401):
            message, remedy = UNKNOWN_TOKEN
            return Transient(message, remedy=remedy)  # a problem of the account, not of the message
        case discord.HTTPException(status=413) | discord.HTTPException(code=40005):
            return TooLong(f"Discord refuses {what}: it is too large")
        case discord.HTTPException(code=50035) if "BASE_TYPE_MAX_LENGTH" in str(error) or "or fewer" in str(error):
            return TooLong(f"Discord refuses {what}: it is too long")
        case discord.HTTPException(status=status) if 400 <= status < 500:
            return Refused(f"Discord refuses {what}: {error.text or status} ({error.code})")
        case aiohttp.ClientConnectorError() | TransportUnreachable():
            return Transient(f"Discord cannot be reached: {type(error).__name__}")
        case _:
            return InDoubt(f"{what}: {type(error).__name__}")


def find_permanent_refusal(error: DiscordFailure) -> Refused | None:
    """Return the problem that the operator has to fix before connecting again makes sense, if there is one."""
    problem = UNKNOWN_TOKEN if isinstance(error, discord.LoginFailure) else None
    if isinstance(error, discord.ConnectionClosed):
        problem = _FATAL_CLOSE_CODES.get(error.code or 0)
    return build_refused(problem) if problem is not None else None


def build_refused(problem: tuple[str, str]) -> Refused:
    message, remedy = problem
    return Refused(message, remedy=remedy)


def get_error_code(error: BaseException | None) -> int:
    """Return Discord's error code, or 0 if there is none."""
    return error.code if isinstance(error, discord.HTTPException) else 0
