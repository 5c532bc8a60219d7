"""Calls to a homeserver: one attempt each, with a deadline. Converts errors to everhold's.

The library builds the requests and holds the connections. Its own retries are not used, because the delivery worker
decides about waits and repeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import aiohttp
from nio import Api, AsyncClient, AsyncClientConfig, MessageDirection

from everhold.errors import EverholdError, InDoubt, Refused, TooLong, Transient
from everhold.infra.deep_json import load_json
from everhold.infra.secret import SecretString

CLIENT_API_PATH: Final = "/_matrix/client/v3"
DEADLINE_SECONDS: Final = 25.0
"""Shorter than the outbox's limit for a send, because a late answer is better than none."""
UPLOAD_SECONDS: Final = 120.0
PAGE_SIZE: Final = 100
UNSENT_ERRORS: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
"""Errors that occur before the request is sent. After any other one the request may have been carried out."""
TIMELINE_LIMIT: Final = 1000
"""How many events of a room one sync may return. Servers cap it; the rest is fetched page by page."""
SMALLER_TIMELINE_LIMITS: Final = (20, 1)
"""What a sync asks for instead if its answer is too large."""
MAX_ANSWER_BYTES: Final = 50_000_000
MAX_ERROR_BYTES: Final = 65_536
"""How much of an error's answer is read. It is a code and a sentence."""
SYNC_FILTER: Final[Mapping[str, Any]] = {
    "presence": {"types": []},
    "account_data": {"types": []},
    "room": {
        "timeline": {"limit": TIMELINE_LIMIT},
        "state": {"types": []},
        "ephemeral": {"types": []},
        "account_data": {"types": []},
    },
}
INVITES_FILTER: Final[Mapping[str, Any]] = {
    **SYNC_FILTER,
    "room": {**SYNC_FILTER["room"], "timeline": {"limit": 1, "types": []}},
}
"""A filter for open invitations, without any room's events."""

UNKNOWN_POSITION_CODES: Final = frozenset({"M_UNKNOWN", "M_INVALID_PARAM", "M_BAD_JSON", "M_UNKNOWN_POS"})
"""Error codes for an unknown sync token. After any other error the token is still valid."""


class MatrixRefused(Refused):
    """The homeserver refused a call; its code says why."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class MatrixPositionUnknown(Refused):
    """The homeserver does not know the sync token."""


class MatrixAnswerTooLarge(InDoubt):
    """The answer of the homeserver is larger than any that is read. The call may have been carried out."""


class MatrixClient:
    """One account's connection."""

    def __init__(self, homeserver: str, token: SecretString) -> None:
        logging.getLogger("nio").setLevel(logging.CRITICAL + 1)  # the library logs events that it cannot parse
        self.homeserver = homeserver
        self._token = token
        self._nio = AsyncClient(homeserver, config=AsyncClientConfig(request_timeout=DEADLINE_SECONDS))

    async def aclose(self) -> None:
        await self._nio.close()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def whoami(self) -> str:
        """Return the user of this token."""
        return str((await self._call("the account", *Api.whoami("")))["user_id"])

    async def sync(self, since: str | None, *, seconds: float, only: Mapping[str, Any] = SYNC_FILTER) -> dict[str, Any]:
        """Return what is new since an offset, at once or within `seconds`."""
        try:
            return await self._sync_once(since, seconds, only)
        except MatrixAnswerTooLarge:
            return await self._sync_in_part(since, seconds, only)
        except MatrixRefused as error:
            if since is None or error.code not in UNKNOWN_POSITION_CODES:
                raise
            raise MatrixPositionUnknown(f"{self.homeserver} does not know our sync token: {error.message}") from error

    async def _sync_once(self, since: str | None, seconds: float, only: Mapping[str, Any]) -> dict[str, Any]:
        call = Api.sync("", since=since, timeout=int(seconds * 1000), filter=dict(only), set_presence="offline")
        return await self._call("news", *call, deadline=seconds + DEADLINE_SECONDS)

    async def _sync_in_part(self, since: str | None, seconds: float, only: Mapping[str, Any]) -> dict[str, Any]:
        """Sync with fewer events of each room. The others are fetched page by page."""
        *larger, smallest = SMALLER_TIMELINE_LIMITS
        for limit in larger:
            with contextlib.suppress(MatrixAnswerTooLarge):
                return await self._sync_once(since, seconds, _limit_timeline(only, limit))
        return await self._sync_once(since, seconds, _limit_timeline(only, smallest))

    async def get_messages(self, room: str, *, start: str, end: str, forward: bool = False) -> dict[str, Any]:
        """Return the events of a room before `start`, latest first, or after it in order, as far as `end` if it is
        given."""
        direction = MessageDirection.front if forward else MessageDirection.back
        call = Api.room_messages("", room, start=start, end=end or None, direction=direction, limit=PAGE_SIZE)
        return await self._call("missed messages", *call)

    async def get_members(self, room: str, *, at: str = "") -> list[dict[str, Any]]:
        """Return the membership events of a room's joined and invited members, now or at `at`."""
        query = urlencode({"not_membership": "leave", **({"at": at} if at else {})})
        path = f"{CLIENT_API_PATH}/rooms/{quote(room, safe='')}/members?{query}"
        try:
            found: list[dict[str, Any]] = (await self._call("a room's members", "GET", path))["chunk"]
        except Refused:
            if not at:
                raise
            return await self.get_members(room)  # not every homeserver can return earlier members
        return found

    async def get_tombstone(self, room: str) -> dict[str, Any]:
        """Return the event that names the replacement of a room."""
        return await self._call("a room's replacement", *Api.room_get_state_event("", room, "m.room.tombstone"))

    async def get_event(self, room: str, id: str) -> dict[str, Any]:
        return await self._call("an event", *Api.room_get_event("", room, id))

    async def download(self, server: str, media: str, *, most: int) -> bytes:
        """Download a file from the homeserver. Raises Refused if it is larger than `most`."""
        path = f"/_matrix/client/v1/media/download/{quote(server, safe='')}/{quote(media, safe='')}"
        try:
            async with asyncio.timeout(UPLOAD_SECONDS):
                response = await self._request("GET", path, None, None, UPLOAD_SECONDS)
                async with response:
                    if response.status != 200:
                        body = await _read_body(response, most=MAX_ERROR_BYTES)
                        raise self._convert_error("the file", response.status, body, response.headers)
                    data = await _read_body(response, most=most + 1)
                    if len(data) > most:
                        raise Refused(f"it is larger than {most:,} bytes")
                    return data
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Transient(f"the file could not be downloaded: {type(error).__name__}") from error

    # -- writing -----------------------------------------------------------------------------------------------------

    async def send_event(self, room: str, content: Mapping[str, Any], *, txn: str, kind: str = "m.room.message") -> str:
        """Send an event to a room and return its id. The same `txn` gives the same event."""
        method, path, body = Api.room_send("", room, kind, dict(content), txn)
        return str((await self._call("a message", method, path, body.encode("utf-8", "replace")))["event_id"])

    async def upload(self, data: bytes, *, name: str, media: str) -> str:
        """Upload a file to the homeserver and return its URI."""
        path = f"/_matrix/media/v3/upload?{urlencode({'filename': name})}"
        given = media or "application/octet-stream"
        found = await self._call("a file", "POST", path, data, media=given, deadline=UPLOAD_SECONDS)
        return str(found["content_uri"])

    async def join_room(self, room: str) -> None:
        method, path = Api.join("", room)[:2]
        await self._call("joining", method, path, b"{}")

    async def send_typing(self, room: str, me: str, *, seconds: float) -> None:
        method, path, body = Api.room_typing("", room, me, True, int(seconds * 1000))
        await self._call("typing", method, path, body.encode())

    # -- transport ---------------------------------------------------------------------------------------------------

    async def _call(
        self,
        what: str,
        method: str,
        path: str,
        data: bytes | None = None,
        *,
        media: str = "application/json",
        deadline: float = DEADLINE_SECONDS,
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(deadline):
                response = await self._request(method, path, data, media, deadline)
                async with response:
                    status, headers = response.status, response.headers
                    most = MAX_ANSWER_BYTES + 1 if status == 200 else MAX_ERROR_BYTES
                    body = await _read_body(response, most=most)
        except UNSENT_ERRORS as error:
            raise Transient(f"{self.homeserver} cannot be reached: {type(error).__name__}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise InDoubt(f"{self.homeserver} did not answer about {what}: {type(error).__name__}") from error
        if status != 200:
            raise self._convert_error(what, status, body, headers)
        if len(body) > MAX_ANSWER_BYTES:
            raise MatrixAnswerTooLarge(
                f"{self.homeserver} gave an answer about {what} of more than {MAX_ANSWER_BYTES:,} bytes"
            )
        found = _decode_json(body)
        if found is None:
            raise InDoubt(f"{self.homeserver} gave an answer about {what} that is not Matrix")
        return found

    async def _request(
        self, method: str, path: str, data: bytes | None, media: str | None, deadline: float
    ) -> aiohttp.ClientResponse:
        parts = urlsplit(path)
        # the library puts tokens into URLs, which would appear in logs
        query = [(name, value) for name, value in parse_qsl(parts.query) if name != "access_token"]
        target = f"{parts.path}?{urlencode(query)}" if query else parts.path
        headers = {"Authorization": f"Bearer {self._token.reveal()}"}
        if media is not None:
            headers["Content-Type"] = media
        response: aiohttp.ClientResponse = await self._nio.send(
            method, target, data, headers, timeout=aiohttp.ClientTimeout(total=deadline, sock_connect=10.0)
        )
        return response

    def _convert_error(self, what: str, status: int, body: bytes, headers: Mapping[str, str]) -> EverholdError:
        answer = _decode_json(body) or {}
        code = answer.get("errcode", "")
        text = self._token.mask_in(f"{self.homeserver} refuses {what}: {answer.get('error') or status}"[:300])
        match status, code:
            case 429, _:
                return Transient(
                    f"{self.homeserver} limits the rate of {what}", retry_after=_parse_retry_after(answer, headers)
                )
            case 401, _:
                # replies wait for a valid token and are not given up
                return Transient(text, remedy="log in again and put the new access token into .env")
            case _, "M_TOO_LARGE":
                return TooLong(text)
            case 413, _:
                return Refused(text)
            case 400 | 403 | 404 | 405 | 410, str() if code:  # without a code the answer is not from the homeserver
                return MatrixRefused(text, code)
            case _:
                return InDoubt(f"{self.homeserver} failed at {what}: {status}")


def _limit_timeline(only: Mapping[str, Any], limit: int) -> dict[str, Any]:
    return {**only, "room": {**only["room"], "timeline": {**only["room"]["timeline"], "limit": limit}}}


async def _read_body(response: aiohttp.ClientResponse, *, most: int) -> bytes:
    """Return the body, or its first `most` bytes."""
    data = bytearray()
    async for piece in response.content.iter_chunked(65_536):
        data += piece
        if len(data) >= most:
            break
    return bytes(data[:most])


def _decode_json(body: bytes) -> dict[str, Any] | None:
    try:
        # decode leniently: a lone surrogate in one event must not discard the other events
        found = load_json(body.decode("utf-8", "replace"))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _parse_retry_after(answer: Mapping[str, Any], headers: Mapping[str, str]) -> float:
    """Return the wait in seconds, from the header or, as older servers do, from the body."""
    seconds = headers.get("Retry-After", "")
    if seconds.isdecimal():
        return float(seconds)
    wait = answer.get("retry_after_ms")
    return wait / 1000 if isinstance(wait, int | float) and wait >= 0 else 5.0
