"""The guard middleware: checks limits first, then identifies the caller. A refused request reads and writes no data.

It covers every route, including those that do not exist. Without a credential only the routes for anybody are open.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everhold.api.auth import (
    ANONYMOUS,
    KEY_HEADER,
    OPERATOR_SOCKET,
    ApiCaller,
    RequestHead,
    extract_login,
    extract_token,
    find_client_address,
    find_credential,
    identify_by_connection,
    is_browser_request,
    is_https_request,
    is_same_origin,
    parse_request_head,
)
from everhold.api.errors import ApiError, convert_error, format_retry_after
from everhold.api.logins import LoginRegistry
from everhold.api.rate_limits import RateLimit, RateLimitBuckets, SlotCounter, get_peer_network
from everhold.api.request import PERSON_HEADER
from everhold.api.scope_keys import BODY, CALLER, CORK, HEAD, OPERATOR_CONNECTION, RELEASES
from everhold.config.settings import HttpSettings, Settings, TokenQuotas
from everhold.errors import StoreError
from everhold.infra.arriving_bodies import ArrivingBodies
from everhold.infra.deadline import TaskDeadline
from everhold.ports.log import EventLogger

if TYPE_CHECKING:
    from everhold.api.http_protocol import CorkedTransport

MAX_BODY_BYTES: Final = 1 << 20
MAX_PATH_CHARS: Final = 8_192
MAX_HEADER_CHARS: Final = 16_384
"""The limit of one header, beside the limit of the whole head."""
OPERATOR_BODY_BYTES: Final = 16 << 20
"""The limit for a request through `api.sock`."""
PUBLIC_BODY_BYTES: Final = 16 << 10
"""The limit for a caller without a credential, who can only log in."""
BODY_SECONDS: Final = 5.0
MAX_ARRIVING: Final = 64
"""The limit of requests of operators whose body has not arrived yet. All other callers have as much together, and each
token a part of it."""
MAX_LARGE: Final = 8
"""The limit of bodies that are larger than usual, because they contain files. A token has half of them."""
LARGE_BODY_SECONDS: Final = 60.0
_BROWSER_MEDIA: Final = frozenset({"application/json", "application/octet-stream"})
"""Media types that a page of another origin cannot send without asking first."""
MAX_REQUESTS: Final = 400
"""The limit of requests of all callers except operators. The other connections are left for operators."""
ONCE_HEADERS: Final = frozenset(
    {"host", "authorization", "content-length", "origin", "cookie", KEY_HEADER, PERSON_HEADER}
)
"""Headers that decide who the caller is, or what the request is."""
DRAIN_BYTES: Final = 8 << 20
DRAIN_SECONDS: Final = 2.0
MAX_DRAINING: Final = 64
"""Limits for reading the body of a refused request, so that a client that still sends it receives the response."""

OPERATOR_RATE: Final = RateLimit(burst=5_000, per_second=2_000)
TOKEN_RATE: Final = RateLimit(burst=500, per_second=100)
ANONYMOUS_RATE: Final = RateLimit(burst=60, per_second=2)
"""The rate of refused requests and of failed logins."""
PUBLIC_RATE: Final = RateLimit(burst=600, per_second=50)
"""The rate of reading what anybody may read: the files of the console, and the health."""
GUESS_RATE: Final = RateLimit(burst=10, per_second=1 / 6)
"""The rate of wrong tokens of one peer. Above it they get 429."""
LOGIN_RATE: Final = RateLimit(burst=30, per_second=1 / 10)
"""The rate of logins with one token. A person logs in now and then, and each login is stored."""

RESPONSE_HEADERS: Final = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
        b"font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        b"require-trusted-types-for 'script'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)


class GuardMiddleware:
    """Wraps the routes. `settings` is called for each request, so a changed token takes effect at once."""

    def __init__(
        self,
        inner_app: ASGIApp,
        *,
        settings: Callable[[], Awaitable[Settings]],
        monotonic: Callable[[], float],
        log: EventLogger,
        local: str,
        logins: LoginRegistry,
        is_public: Callable[[str, str], bool],
        find_body_bytes: Callable[[str, str], int] = lambda method, path: 0,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        """`is_public` says whether anybody may call this method and path, `find_body_bytes` how large its body may be;
        0: as usual."""
        self.inner_app = inner_app
        self.logins = logins
        self.is_public = is_public
        self._find_body_bytes = find_body_bytes
        self.settings = settings
        self.log = log
        self.local = local
        """The user who runs this process: the sender of requests through `api.sock` and with the operator token."""
        self.body_seconds = body_seconds
        self.response_counts: Counter[int] = Counter()
        """The number of responses by status."""
        self.operator_bodies = SlotCounter(MAX_ARRIVING)
        self.bodies = SlotCounter(MAX_ARRIVING)
        self.public_bodies = ArrivingBodies(MAX_ARRIVING)
        self.large_bodies = SlotCounter(MAX_LARGE)
        self.requests = SlotCounter(MAX_REQUESTS)
        self.draining = 0
        self._operator_buckets = RateLimitBuckets(OPERATOR_RATE, monotonic=monotonic)
        self.token_buckets = RateLimitBuckets(TOKEN_RATE, monotonic=monotonic)
        self._anonymous_buckets = RateLimitBuckets(ANONYMOUS_RATE, monotonic=monotonic)
        self._public_buckets = RateLimitBuckets(PUBLIC_RATE, monotonic=monotonic)
        self._guess_buckets = RateLimitBuckets(GUESS_RATE, monotonic=monotonic)
        self._login_buckets = RateLimitBuckets(LOGIN_RATE, monotonic=monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        peer = scope["client"][0] if scope.get("client") else ""
        head = parse_request_head(
            scope["method"],
            scope["path"],
            peer,
            scope["http_version"],
            scope["headers"],
            is_operator_connection=scope.get(OPERATOR_CONNECTION, False),
        )
        send = self._wrap_send(send, scope.get(CORK))
        releases: list[Callable[[], None]] = []
        try:
            try:
                scope[CALLER], scope[BODY] = await self._admit_request(head, receive, scope.get(CORK), releases)
            except ApiError as refusal:
                await self._send_refusal(refusal, head, receive, send)
                return
            scope[HEAD], scope[RELEASES] = head, releases
            await self.inner_app(scope, receive, send)
        finally:
            for release in releases:
                release()

    @property
    def arriving(self) -> int:
        """How many requests have a body that has not arrived yet."""
        return self.bodies.used + self.operator_bodies.used + len(self.public_bodies)

    # -- requests ----------------------------------------------------------------------------------------------------

    async def _admit_request(
        self,
        head: RequestHead,
        receive: Receive,
        cork: CorkedTransport | None,
        releases: list[Callable[[], None]],
    ) -> tuple[ApiCaller, bytes]:
        _check_head_limits(head, self._find_body_bytes)
        settings = await self.settings()
        caller = await self._identify_caller(head, settings.http)
        if caller is not ANONYMOUS:  # the rate of callers without a credential was checked
            if cork is not None:
                cork.is_proven = True
            self._take_request(caller, settings.quotas.token, releases)
        if head.method in ("GET", "HEAD"):
            return caller, b""
        if caller is ANONYMOUS and (public_bytes := self._find_body_bytes(head.method, head.path)):
            return caller, await self._read_public_body(head, receive, public_bytes)
        most_bytes = PUBLIC_BODY_BYTES if caller is ANONYMOUS else _max_body_bytes(head)
        if (declared := int(head.get("content-length") or 0)) > most_bytes and caller is not ANONYMOUS:
            return caller, await self._read_large_body(caller, head, receive, declared)
        # The operator socket has its own limit of connections. A connection without a credential is closed if there
        # are too many, so slow bodies keep nobody from logging in.
        if caller.account == OPERATOR_SOCKET or caller is ANONYMOUS:
            return caller, await self._read_body(head, receive, most_bytes)
        slots = self.operator_bodies if caller.operator else self.bodies
        most = slots.total // 2 if caller.operator else settings.quotas.token.bodies_at_once
        if not slots.take(caller.account, most=most):
            raise _build_busy_error(slots, "too many requests are arriving")
        try:
            return caller, await self._read_body(head, receive, most_bytes)
        finally:
            slots.release(caller.account)

    async def _read_public_body(self, head: RequestHead, receive: Receive, most_bytes: int) -> bytes:
        """Read a body whose sender is proven by the body itself, such as a webhook."""
        try:
            async with self.public_bodies.read(self.body_seconds):
                return await self._read_body(head, receive, most_bytes)
        except TimeoutError:
            raise _build_too_slow_error(self.body_seconds) from None

    async def _read_large_body(self, caller: ApiCaller, head: RequestHead, receive: Receive, declared: int) -> bytes:
        """Read a body with files. Few arrive at once, because each of them is in memory as a whole."""
        if not self.large_bodies.take(caller.account, most=MAX_LARGE // 2):
            raise _build_busy_error(self.large_bodies, "too many files are arriving")
        try:
            return await self._read_body(head, receive, declared, seconds=LARGE_BODY_SECONDS)
        finally:
            self.large_bodies.release(caller.account)

    def _take_request(self, caller: ApiCaller, quotas: TokenQuotas, releases: list[Callable[[], None]]) -> None:
        """Count a request. The limits are those of the token, whatever address it comes from."""
        if caller.operator:
            wait = self._operator_buckets.take(caller.account)
        else:
            wait = self.token_buckets.take(caller.account, rate=_build_token_rate(quotas.requests_per_second))
        if wait:
            raise _build_rate_limit_error(wait)
        if not caller.operator:
            if not self.requests.take(caller.account, most=quotas.requests_at_once):
                raise _build_busy_error(self.requests, "too many requests are being answered")
            releases.append(functools.partial(self.requests.release, caller.account))

    async def _identify_caller(self, head: RequestHead, settings: HttpSettings) -> ApiCaller:
        if not is_same_origin(head):
            raise ApiError(
                403, "cross_origin", "a web page of another origin may not call the API", remedy="open the console"
            )
        here = identify_by_connection(head, self.local)
        where = get_peer_network(find_client_address(head, settings.trusted_proxies))
        token = extract_token(head)
        if token and (caller := self._check_token(token, where, head, settings, guess=here is None)):
            return caller
        if here is not None:
            return here
        if not token and (caller := await self._find_login(head, settings)):
            return caller
        is_public = self.is_public(head.method, head.path)
        if is_public and head.method not in ("GET", "HEAD"):
            return ANONYMOUS  # a login; `check_failed_login` and `check_login` limit the rate
        if wait := (self._public_buckets if is_public else self._anonymous_buckets).take(where):
            raise _build_rate_limit_error(wait)
        if is_public:
            return ANONYMOUS
        raise _build_unauthorized_error(head)

    async def _find_login(self, head: RequestHead, settings: HttpSettings) -> ApiCaller | None:
        id, cookie, key = extract_login(head, is_https=is_https_request(head, settings.trusted_proxies))
        try:
            return await self.logins.find_caller(id, cookie=cookie, key=key) if id else None
        except StoreError as error:
            raise convert_error(error) from error

    def check_failed_login(self, head: RequestHead, settings: HttpSettings) -> None:
        """Limit the rate of failed logins. As with tokens, those of others at the same address lock nobody out."""
        if wait := self._anonymous_buckets.take(get_peer_network(find_client_address(head, settings.trusted_proxies))):
            raise _build_rate_limit_error(wait)

    def check_login(self, token: str) -> None:
        """Limit the rate of logins with the token called `token`. A login with a code does not count: the request that
        made the code did."""
        if wait := self._login_buckets.take(token):
            raise _build_rate_limit_error(wait)

    async def confirm_caller(self, head: RequestHead) -> ApiCaller | None:
        """Return the caller of a request that is still being answered; None if its credential is not valid any more."""
        settings = (await self.settings()).http
        if token := extract_token(head):
            credential = find_credential(token, settings, local=self.local)
            if credential is not None:
                return credential.to_caller()
        return identify_by_connection(head, self.local) or await self._find_login(head, settings)

    def _check_token(
        self, token: str, where: str, head: RequestHead, settings: HttpSettings, *, guess: bool
    ) -> ApiCaller | None:
        """Return the caller whose token this is. The token is always compared, so that wrong tokens of others at the
        same address, such as a proxy, lock nobody out. The rate of wrong tokens only limits what they cost.

        What anybody may read needs no token, so a wrong one does not make it fail. After too many wrong tokens it is
        answered as to anybody, because its answer would tell whether the next one is right.
        """
        credential = find_credential(token, settings, local=self.local)
        if not guess or (credential is not None and self._guess_buckets.has_room(where)):
            return credential.to_caller() if credential is not None else None
        is_public = self.is_public(head.method, head.path)
        if credential is not None:
            return None if is_public else credential.to_caller()
        wait = self._guess_buckets.take(where)
        if wait and not is_public:
            raise _build_rate_limit_error(wait)
        if not wait:
            self.log.warning("http.denied", peer=where, reason="wrong token")
        return None

    async def _read_body(
        self, head: RequestHead, receive: Receive, most_bytes: int, *, seconds: float | None = None
    ) -> bytes:
        seconds = self.body_seconds if seconds is None else seconds
        media = head.get("content-type").partition(";")[0].strip().lower()
        if is_browser_request(head) and media not in _BROWSER_MEDIA:
            raise ApiError(415, "media_type", "a body must be JSON", remedy="send content-type: application/json")
        body = bytearray()
        try:
            with TaskDeadline(asyncio.get_running_loop().time() + seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(400, "gone", "the caller left before the request was complete")
                    body += message.get("body", b"")
                    if len(body) > most_bytes:
                        raise _build_too_large_error(most_bytes)
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise _build_too_slow_error(seconds) from None

    # -- responses ---------------------------------------------------------------------------------------------------

    async def _send_refusal(self, refusal: ApiError, head: RequestHead, receive: Receive, send: Send) -> None:
        """Send the refusal, and read some more of the body, because a connection reset would discard the response."""
        refusal.headers["connection"] = "close"
        response = refusal.to_response()
        await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
        body = b"" if head.method == "HEAD" else bytes(response.body)
        await send({"type": "http.response.body", "body": body, "more_body": True})
        if self.draining < MAX_DRAINING and ("content-length" in head.headers or "transfer-encoding" in head.headers):
            self.draining += 1
            try:
                await _drain_body(receive)
            finally:
                self.draining -= 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _wrap_send(self, send: Send, cork: CorkedTransport | None) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.response_counts[message["status"]] += 1
                headers = [*message.get("headers", ()), *RESPONSE_HEADERS]
                names = [name for name, _ in headers]
                if b"cache-control" not in names:
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
                if cork is not None and b"content-length" in names:
                    cork.hold()  # the body follows at once
                await send(message)
                return
            await send(message)
            if cork is not None:
                cork.flush_held()

        return send_with_headers


async def _drain_body(receive: Receive) -> None:
    swallowed = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while swallowed < DRAIN_BYTES:
                message = await receive()
                swallowed += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


def _check_head_limits(head: RequestHead, find_body_bytes: Callable[[str, str], int]) -> None:
    """Refuse a long path or header, repeated headers and a body that is too large, before the caller is identified."""
    if len(head.path) > MAX_PATH_CHARS:
        raise ApiError(414, "too_large", f"a path may have at most {MAX_PATH_CHARS:,} characters", remedy="shorten it")
    if any(len(value) > MAX_HEADER_CHARS for value in head.headers.values()):
        raise ApiError(
            431, "too_large", f"a header may have at most {MAX_HEADER_CHARS:,} characters", remedy="shorten it"
        )
    if ONCE_HEADERS & head.repeated_headers:
        raise ApiError(400, "malformed", "a header that may occur once occurs twice")
    length = head.get("content-length")
    if not length:
        return
    most = _max_body_bytes(head)
    # Python refuses to convert a very long number
    is_number = len(length) <= 20 and length.isascii() and length.isdigit()
    if not is_number or int(length) > most:
        most = max(most, find_body_bytes(head.method, head.path))
        if not is_number or int(length) > most:
            raise _build_too_large_error(most)


def _max_body_bytes(head: RequestHead) -> int:
    return OPERATOR_BODY_BYTES if head.is_operator_connection else MAX_BODY_BYTES


def _build_too_large_error(most: int) -> ApiError:
    return ApiError(413, "too_large", f"a request may have at most {most:,} bytes", remedy="send less, or in parts")


def _build_too_slow_error(seconds: float) -> ApiError:
    return ApiError(408, "too_slow", f"the request was not complete within {seconds:g} s")


def _build_rate_limit_error(wait: float) -> ApiError:
    remedy = f"try again in {format_retry_after(wait)} s"
    return ApiError(
        429, "too_often", "too many requests", remedy=remedy, headers={"retry-after": format_retry_after(wait)}
    )


def _build_busy_error(slots: SlotCounter, message: str) -> ApiError:
    """Return 503 if the gateway is busy, or 429 if only this token has too many."""
    headers = {"retry-after": "1"}
    if slots.is_full():
        return ApiError(503, "busy", message, remedy="try again", headers=headers)
    return ApiError(429, "quota", f"{message} for this token", remedy="wait for the others", headers=headers)


@functools.lru_cache(maxsize=16)
def _build_token_rate(per_second: int) -> RateLimit:
    return RateLimit(burst=5 * per_second, per_second=per_second)


def _build_unauthorized_error(head: RequestHead) -> ApiError:
    return ApiError(
        401,
        "unauthorized",
        "the login is not valid, or has ended" if head.get(KEY_HEADER) else "the request needs a credential",
        remedy="programs send `Authorization: Bearer …` with a token; for the console, `everhold open` makes a link",
        headers={"www-authenticate": 'Bearer realm="everhold"'},
    )
