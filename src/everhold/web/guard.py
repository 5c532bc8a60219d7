"""The door of the server: bounds first, then who calls. What is refused here has read nothing and written nothing.

Every route lies behind it, also those that do not exist. Nothing is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everhold.config.settings import HttpSettings, Settings
from everhold.limit import Limit
from everhold.ports.log import Log
from everhold.web.answers import Refusal, seconds
from everhold.web.caller import (
    LOOPBACK,
    OPERATOR_SOCKET,
    Caller,
    Head,
    by_loopback,
    by_token,
    head_of,
    identify_by_connection,
    is_browser,
    presented,
    same_origin,
)
from everhold.web.limits import Buckets, Rate, neighbourhood
from everhold.web.scope_keys import BODY, CALLER, CORK, HEAD, OPERATOR_CONNECTION

if TYPE_CHECKING:
    from everhold.web.protocol import Cork

BODY_BYTES: Final = 1 << 20
OPERATOR_BODY_BYTES: Final = 16 << 20
"""What a request through `api.sock` may hold."""
BODY_SECONDS: Final = 5.0
MOST_ARRIVING: Final = 64
"""Requests whose body is not there yet."""
LINGER_BYTES: Final = 8 << 20
LINGER_SECONDS: Final = 2.0
MOST_LINGERING: Final = 64
"""What is swallowed of a refused body, so that whoever still sends it gets to read why."""

AT_THIS_MACHINE: Final = Rate(burst=5_000, per_second=2_000)
WITH_A_TOKEN: Final = Rate(burst=500, per_second=100)
WITHOUT: Final = Rate(burst=60, per_second=2)
GUESSES: Final = Rate(burst=10, per_second=1 / 6)
"""Wrong tokens. Once they are used up, no further one is even looked at."""
MOST_PROVEN: Final = 1_000

HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'self'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        b"object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


class Guard:
    """Wraps the routes. `settings` gives those in force at this very request, so a changed token counts at once."""

    def __init__(
        self,
        inner: ASGIApp,
        *,
        settings: Callable[[], Awaitable[Settings]],
        monotonic: Callable[[], float],
        log: Log,
        local: str,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self.inner = inner
        self.settings = settings
        self.log = log
        self.local = local
        """Who sits at this machine."""
        self.body_seconds = body_seconds
        self.answers: Counter[int] = Counter()
        """How many requests were answered with which status."""
        self.arriving = 0
        self.lingering = 0
        self._local = Buckets(AT_THIS_MACHINE, monotonic=monotonic)
        self.tokens = Buckets(WITH_A_TOKEN, monotonic=monotonic)
        self._nobody = Buckets(WITHOUT, monotonic=monotonic)
        self._guesses = Buckets(GUESSES, monotonic=monotonic)
        self._proven: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        peer = scope["client"][0] if scope.get("client") else ""
        head = head_of(
            scope["method"],
            scope["path"],
            peer,
            scope["http_version"],
            scope["headers"],
            is_operator_connection=scope.get(OPERATOR_CONNECTION, False),
        )
        send = self._dressed(send, scope.get(CORK))
        try:
            scope[CALLER], scope[BODY] = await self._arrive(head, receive)
        except Refusal as refusal:
            await self._refuse(refusal, head, receive, send)
            return
        scope[HEAD] = head
        await self.inner(scope, receive, send)

    # -- coming in ---------------------------------------------------------------------------------------------------

    async def _arrive(self, head: Head, receive: Receive) -> tuple[Caller, bytes]:
        if self.arriving >= MOST_ARRIVING and not head.is_operator_connection:  # those have a bound of their own
            raise Refusal(
                503, "busy", "too many requests are arriving", remedy="try again", headers={"retry-after": "1"}
            )
        self.arriving += 1
        try:
            return await self._admit(head, receive)
        finally:
            self.arriving -= 1

    async def _admit(self, head: Head, receive: Receive) -> tuple[Caller, bytes]:
        _bound(head)
        settings = await self.settings()
        caller = self._identify(head, settings.http)
        buckets = self._local if caller.account in (LOOPBACK, OPERATOR_SOCKET) else self.tokens
        if wait := buckets.take(neighbourhood(head.peer), caller.account):
            raise _too_often(wait)
        if head.method in ("GET", "HEAD"):
            return caller, b""
        return caller, await self._body(head, receive)

    def _identify(self, head: Head, settings: HttpSettings) -> Caller:
        if not same_origin(head):
            raise Refusal(
                403, "cross_origin", "a page of another origin may not ask this", remedy="open everhold's own"
            )
        here = identify_by_connection(head, self.local) or by_loopback(head, self.local)
        token, where = presented(head), neighbourhood(head.peer)
        if token and (caller := self._by_token(token, where, settings, guess=here is None)):
            return caller
        if here is not None:
            return here
        if wait := self._nobody.take(where):
            raise _too_often(wait)
        raise _unknown(head)

    def _by_token(self, token: str, where: str, settings: HttpSettings, *, guess: bool) -> Caller | None:
        mark = (where, hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest())
        if guess and mark not in self._proven and (wait := self._guesses.empty(where)):
            raise _too_often(wait)
        caller = by_token(token, settings)
        if caller is not None:
            self._proven[mark] = None
            self._proven.move_to_end(mark)
            if len(self._proven) > MOST_PROVEN:
                self._proven.popitem(last=False)
        else:
            self._proven.pop(mark, None)
            if guess:
                self._guesses.take(where)
                self.log.warning("http.denied", peer=where, reason="wrong token")
        return caller

    async def _body(self, head: Head, receive: Receive) -> bytes:
        if is_browser(head) and head.get("content-type").partition(";")[0].strip().lower() != "application/json":
            raise Refusal(415, "media_type", "a body must be JSON", remedy="send content-type: application/json")
        body = bytearray()
        try:
            with Limit(asyncio.get_running_loop().time() + self.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "gone", "the caller left before the request was complete")
                    body += message.get("body", b"")
                    if len(body) > _max_body_bytes(head):
                        raise _too_large(head)
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise Refusal(408, "too_slow", f"the request was not complete within {self.body_seconds:g} s") from None

    # -- going out ---------------------------------------------------------------------------------------------------

    async def _refuse(self, refusal: Refusal, head: Head, receive: Receive, send: Send) -> None:
        """Say no, and swallow a little of what is still being sent: a connection reset would eat the answer."""
        refusal.headers["connection"] = "close"
        response = refusal.response()
        await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
        body = b"" if head.method == "HEAD" else bytes(response.body)
        await send({"type": "http.response.body", "body": body, "more_body": True})
        if self.lingering < MOST_LINGERING and (
            "content-length" in head.headers or "transfer-encoding" in head.headers
        ):
            self.lingering += 1
            try:
                await _swallow(receive)
            finally:
                self.lingering -= 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _dressed(self, send: Send, cork: Cork | None) -> Send:
        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.answers[message["status"]] += 1
                headers = [*message.get("headers", ()), *HEADERS]
                names = [name for name, _ in headers]
                if b"cache-control" not in names:
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
                if cork is not None and b"content-length" in names:
                    cork.hold()  # its body follows at once
                await send(message)
                return
            await send(message)
            if cork is not None:
                cork.let_go()

        return dressed


async def _swallow(receive: Receive) -> None:
    swallowed = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            while swallowed < LINGER_BYTES:
                message = await receive()
                swallowed += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


def _bound(head: Head) -> None:
    """What can be said before anything is looked at."""
    if {"host", "authorization", "content-length", "origin"} & head.repeated:
        raise Refusal(400, "malformed", "a header that may be there once is there twice")
    length = head.get("content-length")
    # very many digits cannot be made a number of, whatever they mean
    if length and (
        len(length) > 20 or not length.isascii() or not length.isdigit() or int(length) > _max_body_bytes(head)
    ):
        raise _too_large(head)


def _max_body_bytes(head: Head) -> int:
    return OPERATOR_BODY_BYTES if head.is_operator_connection else BODY_BYTES


def _too_large(head: Head) -> Refusal:
    most = _max_body_bytes(head)
    return Refusal(413, "too_large", f"a request may hold {most:,} bytes", remedy="send less, or in parts")


def _too_often(wait: float) -> Refusal:
    remedy = f"try again in {seconds(wait)} s"
    return Refusal(429, "too_often", "too many requests", remedy=remedy, headers={"retry-after": seconds(wait)})


def _unknown(head: Head) -> Refusal:
    browsing = "text/html" in head.get("accept")
    scheme = 'Basic realm="everhold", charset="UTF-8"' if browsing else 'Bearer realm="everhold"'
    return Refusal(
        401,
        "unauthorized",
        "this needs a token",
        remedy="send `Authorization: Bearer …` with a token from `http.tokens`; at this machine use http://127.0.0.1",
        headers={"www-authenticate": scheme},
    )
