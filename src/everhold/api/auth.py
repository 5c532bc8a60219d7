"""Identifies the caller of a request: a user of this machine, or the holder of a token. Keeps no state."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from msgspec import Struct

from everhold.api.errors import ApiError
from everhold.config.settings import HttpSettings

LOOPBACK_ACCOUNT: Final = "loopback"
OPERATOR_SOCKET: Final = "api.sock"

_FORWARDING_HEADERS: Final = frozenset(
    """
    forwarded via x-real-ip x-client-ip x-cluster-client-ip x-originating-ip x-remote-ip x-remote-addr true-client-ip
    client-ip cf-connecting-ip cf-connecting-ipv6 cf-ray cf-ipcountry fastly-client-ip fly-client-ip x-azure-clientip
    x-appengine-user-ip x-amzn-trace-id x-original-url x-original-host x-rewrite-url x-host proxy-connection
    """.split()
)
_FORWARDING_PREFIXES: Final = ("x-forwarded", "x-envoy-", "cf-", "x-arr-", "x-vercel-", "x-proxy")


class ApiCaller(Struct, frozen=True, kw_only=True):
    """An authenticated caller. `sender` is the default author of the caller's messages."""

    account: str
    sender: str
    operator: bool

    def resolve_sender(self, person: str) -> str:
        """Return the author of a message: `person` if this caller may speak for that person. Raises ApiError."""
        if not person or person == self.sender:
            return self.sender
        if not self.operator:
            raise ApiError(
                403,
                "denied",
                f"this token speaks for {self.sender} only",
                remedy="leave `person` out, or use a token with operator: true",
            )
        return person


class RequestHead(Struct, frozen=True):
    """The method, path and headers of a request, and the connection it came from."""

    method: str
    path: str
    peer: str
    version: str
    headers: dict[str, str]
    """By name in lower case; the first value if a name is repeated."""
    repeated_headers: frozenset[str]
    is_operator_connection: bool = False
    """The request came through `api.sock`, or from inside this process."""

    def get(self, name: str) -> str:
        return self.headers.get(name, "")


def parse_request_head(
    method: str,
    path: str,
    peer: str,
    version: str,
    raw: Iterable[tuple[bytes, bytes]],
    *,
    is_operator_connection: bool = False,
) -> RequestHead:
    headers: dict[str, str] = {}
    repeated = set()
    for name, value in raw:
        key = name.decode("latin-1").lower()
        if key in headers:
            repeated.add(key)
        else:
            headers[key] = value.decode("latin-1")
    return RequestHead(method, path, peer, version, headers, frozenset(repeated), is_operator_connection)


# -- tokens ------------------------------------------------------------------------------------------------------------


def extract_token(head: RequestHead) -> str:
    """Return the request's token, from a bearer header or from the password of basic authentication; else ""."""
    if "authorization" not in head.headers:
        return ""
    scheme, _, value = head.get("authorization").partition(" ")
    match scheme.lower():
        case "bearer":
            return value.strip()
        case "basic":
            try:
                return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return ""
        case _:
            return ""


def find_caller_by_token(token: str, settings: HttpSettings) -> ApiCaller | None:
    """Return the caller whose token this is. All tokens are compared, so the duration does not reveal which fits."""
    given = token.encode("utf-8", "surrogatepass")
    found: ApiCaller | None = None
    for known in settings.tokens:
        secret = known.token.reveal() if known.token else ""
        if secret and hmac.compare_digest(given, secret.encode("utf-8", "surrogatepass")):
            found = ApiCaller(account=f"token:{known.name}", sender=known.person or known.name, operator=known.operator)
    return found


# -- this machine ------------------------------------------------------------------------------------------------------


def find_loopback_caller(head: RequestHead, name: str) -> ApiCaller | None:
    """Return the operator called `name` if the request certainly comes from this machine, without a proxy."""
    if is_loopback_host(head.peer) and is_loopback_host(get_host_name(head)) and not is_forwarded(head):
        return ApiCaller(account=LOOPBACK_ACCOUNT, sender=name, operator=True)
    return None


def identify_by_connection(head: RequestHead, name: str) -> ApiCaller | None:
    """Return the operator called `name` if the request came through `api.sock` and no proxy forwarded it."""
    if head.is_operator_connection and not is_forwarded(head):
        return ApiCaller(account=OPERATOR_SOCKET, sender=name, operator=True)
    return None


def get_host_name(head: RequestHead) -> str:
    """Return the host name of the Host header, without its port."""
    host = head.get("host").strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


@lru_cache(maxsize=256)
def is_loopback_host(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def is_forwarded(head: RequestHead) -> bool:
    """Whether a proxy forwarded the request. A proxy that adds no header usually speaks HTTP/1.0."""
    if head.version == "1.0":
        return True
    return any(map(_is_forwarding_header, head.headers))


@lru_cache(maxsize=256)
def _is_forwarding_header(header: str) -> bool:
    return header in _FORWARDING_HEADERS or header.startswith(_FORWARDING_PREFIXES)


# -- other origins -----------------------------------------------------------------------------------------------------


def is_same_origin(head: RequestHead) -> bool:
    """Whether no web page of another origin made this request. Only browsers send the headers that tell."""
    if not is_browser_request(head):
        return True
    origin = head.get("origin").lower()
    if origin:
        scheme, _, rest = origin.partition("://")
        if scheme not in ("http", "https") or rest != head.get("host").strip().lower():
            return False
    site = head.get("sec-fetch-site").lower()
    if site in ("", "same-origin", "none"):
        return True
    # following a link to the console is harmless because its files contain code and no data
    opened = head.get("sec-fetch-mode").lower() == "navigate" and head.get("sec-fetch-dest").lower() == "document"
    return opened and head.method == "GET" and head.path == "/"


def is_browser_request(head: RequestHead) -> bool:
    given = head.headers
    return bool(given.get("origin") or given.get("sec-fetch-site") or given.get("sec-fetch-mode"))
