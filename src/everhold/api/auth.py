"""Identifies the caller of a request by its connection, its token or its login. Keeps no state.

An address proves nothing: a proxy, another user of this machine and a forwarded port all come from 127.0.0.1. So a
request over TCP needs a credential, whatever its address and headers are.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from msgspec import Struct

from everhold.api.errors import ApiError
from everhold.config.settings import OPERATOR_TOKEN_NAME, HttpSettings
from everhold.core.callers import CallerRole, CallerScope, find_user_objection

OPERATOR_SOCKET: Final = "api.sock"
ANONYMOUS_ACCOUNT: Final = "anonymous"
KEY_HEADER: Final = "x-everhold-key"
"""The half of a login that the page keeps. The other half is a cookie."""
COOKIE_PREFIX: Final = "everhold_"
HTTPS_COOKIE_PREFIX: Final = "__Host-everhold_"
"""Browsers accept a cookie of this name over https only, for this host only."""

_FORWARDING_HEADERS: Final = frozenset(
    """
    forwarded via x-real-ip x-client-ip x-cluster-client-ip x-originating-ip x-remote-ip x-remote-addr true-client-ip
    client-ip cf-connecting-ip cf-connecting-ipv6 cf-ray cf-ipcountry fastly-client-ip fly-client-ip x-azure-clientip
    x-appengine-user-ip x-amzn-trace-id x-original-url x-original-host x-rewrite-url x-host proxy-connection
    """.split()
)
_FORWARDING_PREFIXES: Final = ("x-forwarded", "x-envoy-", "cf-", "x-arr-", "x-vercel-", "x-proxy")


class ApiCaller(Struct, frozen=True, kw_only=True):
    """The caller of a request. `sender` is the default author of the caller's messages."""

    account: str
    sender: str
    scope: CallerScope
    login: str = ""
    """The id of the login; empty if the caller has none."""
    login_at: float = 0.0
    """When the caller logged in."""

    @property
    def role(self) -> CallerRole:
        return self.scope.role

    @property
    def operator(self) -> bool:
        return self.scope.role is CallerRole.OPERATOR

    @property
    def owned_senders(self) -> str:
        """The beginning of the names of a service's users; empty for other callers."""
        return f"{self.scope.token}/" if self.scope.role is CallerRole.SERVICE else ""

    def resolve_sender(self, person: str) -> str:
        """Return the author of a message: `person` if this caller may speak for that person. Raises ApiError.

        The users of a service have names of their own, so none of them is a person that the gateway knows.
        """
        if self.owned_senders:
            if self.sender.startswith(self.owned_senders) and not person:
                return self.sender
            if objection := find_user_objection(person):
                raise ApiError(
                    400,
                    "invalid_request",
                    f"the name of the user {objection}",
                    remedy="a service names its user in `person`, or in the header X-Everhold-Person",
                )
            return self.owned_senders + person
        if not person or person == self.sender:
            return self.sender
        if not self.operator:
            raise ApiError(
                403,
                "denied",
                f"this token speaks for {self.sender} only",
                remedy="leave `person` out, or use a token with role: operator",
            )
        return person


ANONYMOUS: Final = ApiCaller(
    account=ANONYMOUS_ACCOUNT, sender="", scope=CallerScope(role=CallerRole.ANYBODY, read_only=True)
)
"""A caller without a credential."""


class TokenCredential(Struct, frozen=True):
    """A token of the configuration with its rights."""

    secret: str
    sender: str
    scope: CallerScope

    def to_caller(self, *, login: str = "", login_at: float = 0.0) -> ApiCaller:
        return ApiCaller(
            account=f"token:{self.scope.token}",
            sender=self.sender,
            scope=self.scope,
            login=login,
            login_at=login_at,
        )


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
    """Return the request's bearer token; else ""."""
    if "authorization" not in head.headers:
        return ""
    scheme, _, value = head.get("authorization").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""


def list_credentials(settings: HttpSettings, *, local: str) -> Iterator[TokenCredential]:
    """Yield the tokens in force. The operator token speaks for the user who runs the gateway, who is called `local`."""
    if settings.operator_token:
        scope = CallerScope(token=OPERATOR_TOKEN_NAME, role=CallerRole.OPERATOR)
        yield TokenCredential(settings.operator_token.reveal(), local, scope)
    for known in settings.tokens:
        if known.token:
            scope = CallerScope(
                token=known.name, role=CallerRole(known.role), agents=known.agents, read_only=known.read_only
            )
            yield TokenCredential(known.token.reveal(), known.person or known.name, scope)


def find_credential(token: str, settings: HttpSettings, *, local: str) -> TokenCredential | None:
    """Return the credential with this token. All are compared, so the duration does not reveal which fits."""
    given = token.encode("utf-8", "surrogatepass")
    found: TokenCredential | None = None
    for known in list_credentials(settings, local=local):
        if known.secret and hmac.compare_digest(given, known.secret.encode("utf-8", "surrogatepass")):
            found = known
    return found


def find_credential_by_name(name: str, settings: HttpSettings, *, local: str) -> TokenCredential | None:
    """Return the credential of the token called `name`."""
    return next((it for it in list_credentials(settings, local=local) if it.scope.token == name), None)


# -- logins ------------------------------------------------------------------------------------------------------------


def extract_login(head: RequestHead, *, is_https: bool) -> tuple[str, str, str]:
    """Return the id of a login and both of its halves, from the key and the cookie that the key names; else empty.

    The cookie's name contains the id, because browsers send the cookies of one host to all its ports, and each gateway
    needs its own.
    """
    id, _, key = head.get(KEY_HEADER).partition(".")
    if not id or not key or not id.isalnum():
        return "", "", ""
    wanted = make_cookie_name(id, is_https=is_https)
    for part in head.get("cookie").split(";"):
        name, _, value = part.strip().partition("=")
        if name == wanted:
            return id, value, key
    return "", "", ""


def make_cookie_name(login: str, *, is_https: bool) -> str:
    return f"{HTTPS_COOKIE_PREFIX if is_https else COOKIE_PREFIX}{login}"


# -- the connection ----------------------------------------------------------------------------------------------------


def identify_by_connection(head: RequestHead, name: str) -> ApiCaller | None:
    """Return the operator called `name` if the request came through `api.sock` and no proxy forwarded it."""
    if head.is_operator_connection and not is_forwarded(head):
        scope = CallerScope(role=CallerRole.OPERATOR)
        return ApiCaller(account=OPERATOR_SOCKET, sender=name, scope=scope)
    return None


def is_forwarded(head: RequestHead) -> bool:
    """Whether a proxy forwarded the request. A proxy that adds no header usually speaks HTTP/1.0."""
    if head.version == "1.0":
        return True
    return any(map(_is_forwarding_header, head.headers))


@lru_cache(maxsize=256)
def _is_forwarding_header(header: str) -> bool:
    return header in _FORWARDING_HEADERS or header.startswith(_FORWARDING_PREFIXES)


def find_client_address(head: RequestHead, trusted: tuple[str, ...]) -> str:
    """Return the address of the client: the peer, or what a trusted proxy says about it.

    Each proxy adds the address of its own peer at the end, so the last address that is no trusted proxy is the client.
    What stands before it was written by the client.
    """
    if not trusted or not is_trusted_proxy(head.peer, trusted) or "x-forwarded-for" in head.repeated_headers:
        return head.peer
    for address in reversed(head.get("x-forwarded-for").split(",")):
        address = address.strip()
        if not _is_address(address):
            return head.peer
        if not is_trusted_proxy(address, trusted):
            return address
    return head.peer


def is_https_request(head: RequestHead, trusted: tuple[str, ...]) -> bool:
    """Whether the client uses https, as a trusted proxy says. The gateway itself speaks http."""
    return (
        bool(trusted)
        and is_trusted_proxy(head.peer, trusted)
        and "x-forwarded-proto" not in head.repeated_headers
        and head.get("x-forwarded-proto").rpartition(",")[2].strip().lower() == "https"
    )


@lru_cache(maxsize=1_024)
def is_trusted_proxy(address: str, trusted: tuple[str, ...]) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in ipaddress.ip_network(network, strict=False) for network in trusted)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


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
