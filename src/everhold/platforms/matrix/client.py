"""Calls to a homeserver: one attempt each, within a deadline, and what went wrong in our words.

The library builds the requests and holds the connections. Its own retries are left out: they would acknowledge, wait
and repeat on their own account, and here the lanes decide about that.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import aiohttp
from nio import Api, AsyncClient, AsyncClientConfig, MessageDirection

from everhold.errors import EverholdError, InDoubt, Refused, TooLong, Transient
from everhold.infra.secret import SecretString

CLIENT_API_PATH: Final = "/_matrix/client/v3"
DEADLINE_SECONDS: Final = 25.0
"""Less than voice waits for a send: a late answer is better than none."""
UPLOAD_SECONDS: Final = 120.0
PAGE_SIZE: Final = 100
UNSENT_ERRORS: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
"""What happens before a request is on its way. Anything later, and nobody can tell whether it was carried out."""
TIMELINE_LIMIT: Final = 1000
"""How much of a room one look may bring. Servers cap it; what is missing is fetched page by page."""
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
"""No room's news, but the invitations that wait."""

UNKNOWN_POSITION_CODES: Final = frozenset({"M_UNKNOWN", "M_INVALID_PARAM", "M_BAD_JSON", "M_UNKNOWN_POS"})
"""What homeservers call a position that is none of theirs. If they refuse news for another reason, it still holds."""


class MatrixRefused(Refused):
    """A homeserver said no, and by its code why."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class MatrixPositionUnknown(Refused):
    """The position that news were asked for from is unknown there."""


class MatrixClient:
    """One account's connection."""

    def __init__(self, homeserver: str, token: SecretString) -> None:
        logging.getLogger("nio").setLevel(logging.CRITICAL + 1)  # it quotes events that it cannot read
        self.homeserver = homeserver
        self._token = token
        self._nio = AsyncClient(homeserver, config=AsyncClientConfig(request_timeout=DEADLINE_SECONDS))

    async def aclose(self) -> None:
        await self._nio.close()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def whoami(self) -> str:
        """Whose token this is."""
        return str((await self._call("the account", *Api.whoami("")))["user_id"])

    async def sync(self, since: str | None, *, seconds: float, only: Mapping[str, Any] = SYNC_FILTER) -> dict[str, Any]:
        """What is new since a position, at once or within `seconds`."""
        call = Api.sync("", since=since, timeout=int(seconds * 1000), filter=dict(only), set_presence="offline")
        try:
            return await self._call("news", *call, deadline=seconds + DEADLINE_SECONDS)
        except MatrixRefused as error:
            if since is None or error.code not in UNKNOWN_POSITION_CODES:
                raise
            raise MatrixPositionUnknown(
                f"{self.homeserver} does not know the position we were at: {error.message}"
            ) from error

    async def get_messages(self, room: str, *, start: str, end: str) -> dict[str, Any]:
        """What was said in a room before `start`, the latest first, down to `end` if that is known."""
        call = Api.room_messages(
            "", room, start=start, end=end or None, direction=MessageDirection.back, limit=PAGE_SIZE
        )
        return await self._call("what was said meanwhile", *call)

    async def get_members(self, room: str, *, at: str = "") -> list[dict[str, Any]]:
        """Who is in a room or invited, or was when a look ended at `at`: their membership events."""
        query = urlencode({"not_membership": "leave", **({"at": at} if at else {})})
        path = f"{CLIENT_API_PATH}/rooms/{quote(room, safe='')}/members?{query}"
        try:
            found: list[dict[str, Any]] = (await self._call("a room's members", "GET", path))["chunk"]
        except Refused:
            if not at:
                raise
            return await self.get_members(room)  # not every homeserver can look back
        return found

    async def get_tombstone(self, room: str) -> dict[str, Any]:
        """What a room says about the one that takes its place."""
        return await self._call("a room's end", *Api.room_get_state_event("", room, "m.room.tombstone"))

    async def get_event(self, room: str, id: str) -> dict[str, Any]:
        return await self._call("an event", *Api.room_get_event("", room, id))

    async def download(self, server: str, media: str, *, most: int) -> bytes:
        """A file at the homeserver's. Raises Refused for one that is larger than `most`."""
        path = f"/_matrix/client/v1/media/download/{quote(server, safe='')}/{quote(media, safe='')}"
        try:
            async with asyncio.timeout(UPLOAD_SECONDS):
                response = await self._request("GET", path, None, None, UPLOAD_SECONDS)
                async with response:
                    if response.status != 200:
                        raise self._convert_error("the file", response.status, await response.read(), response.headers)
                    data = bytearray()
                    async for piece in response.content.iter_chunked(65_536):
                        data += piece
                        if len(data) > most:
                            raise Refused(f"it is larger than {most:,} bytes")
                    return bytes(data)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Transient(f"the file did not come: {type(error).__name__}") from error

    # -- doing -------------------------------------------------------------------------------------------------------

    async def send_event(self, room: str, content: Mapping[str, Any], *, txn: str, kind: str = "m.room.message") -> str:
        """Put an event into a room; its id. The same `txn` again gives the same event."""
        method, path, body = Api.room_send("", room, kind, dict(content), txn)
        return str((await self._call("a message", method, path, body.encode("utf-8", "replace")))["event_id"])

    async def upload(self, data: bytes, *, name: str, media: str) -> str:
        """Bring a file to the homeserver; its address there."""
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

    # -- how ---------------------------------------------------------------------------------------------------------

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
                    status, body, headers = response.status, await response.read(), response.headers
        except UNSENT_ERRORS as error:
            raise Transient(f"{self.homeserver} cannot be reached: {type(error).__name__}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise InDoubt(f"{self.homeserver} did not answer about {what}: {type(error).__name__}") from error
        if status != 200:
            raise self._convert_error(what, status, body, headers)
        found = _decode_json(body)
        if found is None:
            raise InDoubt(f"{self.homeserver} answered something else than Matrix about {what}")
        return found

    async def _request(
        self, method: str, path: str, data: bytes | None, media: str | None, deadline: float
    ) -> aiohttp.ClientResponse:
        parts = urlsplit(path)
        # the library writes tokens into addresses, where logs would keep them
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
        told = _decode_json(body) or {}
        code = told.get("errcode", "")
        text = self._token.mask_in(f"{self.homeserver} refuses {what}: {told.get('error') or status}"[:300])
        match status, code:
            case 429, _:
                return Transient(
                    f"{self.homeserver} wants {what} to wait", retry_after=_parse_retry_after(told, headers)
                )
            case 401, _:
                # replies wait for a token that works; they are not given up
                return Transient(text, remedy="log in again and put the new access token into .env")
            case _, "M_TOO_LARGE":
                return TooLong(text)
            case 413, _:
                return Refused(text)
            case 400 | 403 | 404 | 405 | 410, str() if code:  # without a code it is not the homeserver that speaks
                return MatrixRefused(text, code)
            case _:
                return InDoubt(f"{self.homeserver} failed at {what}: {status}")


def _decode_json(body: bytes) -> dict[str, Any] | None:
    try:
        # the tolerant reader: half a character in one event must not take the rest of the news along
        found = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _parse_retry_after(told: Mapping[str, Any], headers: Mapping[str, str]) -> float:
    """The wait that is asked for, by the header or, as older servers do, in the answer."""
    seconds = headers.get("Retry-After", "")
    if seconds.isdecimal():
        return float(seconds)
    wait = told.get("retry_after_ms")
    return wait / 1000 if isinstance(wait, int | float) and wait >= 0 else 5.0
