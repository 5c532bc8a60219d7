"""Fetch URLs that come from outside: public addresses only, with a limited size and time.

A name is resolved once, and the connection goes to the address that was checked, so a name cannot change its address in
between. Each redirect is checked like the first URL.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias
from urllib.parse import urljoin, urlsplit

import httpx2

from everhold.errors import Refused, Transient
from everhold.ports.plugin import FetchedContent

MAX_BODY_BYTES: Final = 20_000_000
FETCH_DEADLINE_SECONDS: Final = 15.0
MAX_REDIRECTS: Final = 3
_PACKED_ENCODINGS: Final = frozenset({"gzip", "x-gzip", "deflate"})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_NAT64_NETWORK: Final = ipaddress.ip_network("64:ff9b::/96")
_LOCAL_NAT64_NETWORK: Final = ipaddress.ip_network("64:ff9b:1::/48")
_MACHINE_ADDRESS: Final = ipaddress.ip_address("168.63.129.16")
"""Looks public. On the machines of one cloud it leads to the host they run on, which knows their secrets."""
_PROTOCOL_NETWORK: Final = ipaddress.ip_network("192.0.0.0/24")
"""Reserved for protocols; some clouds serve internal data there."""

MAX_LOOKUPS: Final = 16
"""How many names one fetcher looks up at once. A name server that does not answer holds a thread for a minute."""

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
ResolveHost: TypeAlias = Callable[[str, int], Awaitable[list[str]]]


def is_public(ip: IpAddress) -> bool:
    """Whether an address is on the public internet, not on this machine or its network."""
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(ip.ipv4_mapped)
        # contains an IPv4 address, and a gateway decides where packets go
        if ip.sixtofour is not None or ip.teredo is not None or ip in _NAT64_NETWORK or ip in _LOCAL_NAT64_NETWORK:
            return False
        if ip.is_site_local or ip.scope_id is not None:
            return False
    elif ip in _PROTOCOL_NETWORK or ip == _MACHINE_ADDRESS:
        return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved and not ip.is_unspecified


class HostResolver:
    """Looks names up with the system's resolver, each on a thread of its own.

    Whoever names a host may also run its name server, which need not answer. So no lookup uses the few threads of the
    event loop, which the store needs, and no stop of the process waits for one.
    """

    def __init__(self) -> None:
        self.running = 0
        """Lookups that have not ended, also those that nobody waits for any more."""

    async def __call__(self, host: str, port: int) -> list[str]:
        """Return the addresses of a name."""
        if self.running >= MAX_LOOKUPS:
            raise Transient("too many names are being looked up", remedy="try again in a minute")
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[str]] = loop.create_future()

        def finish(addresses: list[str], error: Exception | None) -> None:
            self.running -= 1
            if found.done():
                return
            if error is None:
                found.set_result(addresses)
            else:
                found.set_exception(Transient(f"{host[:100]} cannot be resolved: {error}"))

        def work() -> None:
            addresses: list[str] = []
            failure: Exception | None = None
            try:
                answer = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                addresses = list(dict.fromkeys(str(address[4][0]) for address in answer))
            except (OSError, UnicodeError) as error:
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(finish, addresses, failure)

        self.running += 1
        threading.Thread(target=work, name="everhold-lookup", daemon=True).start()
        return await found


class UrlFetcher:
    """Fetches URLs. `allows` decides about addresses; tests replace it, because they use loopback."""

    def __init__(
        self,
        *,
        allows: Callable[[IpAddress], bool] = is_public,
        resolve: ResolveHost | None = None,
        most_bytes: int = MAX_BODY_BYTES,
        deadline: float = FETCH_DEADLINE_SECONDS,
        is_packed_allowed: bool = False,
        agent: str = "",
        transport: Callable[[], httpx2.AsyncBaseTransport] = lambda: httpx2.AsyncHTTPTransport(trust_env=False),
    ) -> None:
        """`is_packed_allowed` asks for gzip and deflate, unpacks at most `most_bytes`. `agent` is our User-Agent."""
        self._is_packed_allowed = is_packed_allowed
        self._agent_header = {"User-Agent": agent} if agent else {}
        self._is_allowed = allows
        self._resolve = resolve or HostResolver()
        self._max_bytes = most_bytes
        self._deadline = deadline
        self._transport = transport

    async def __call__(self, url: str, *, headers: Mapping[str, str] | None = None) -> FetchedContent:
        """Return the content at `url`. `headers` are sent to its own host only, not to redirect targets."""
        try:
            async with asyncio.timeout(self._deadline):
                return await self._follow_redirects(url, dict(headers or {}))
        except TimeoutError as error:
            raise Transient(f"{_format_url(url)} did not answer within {self._deadline:g} s") from error
        except httpx2.HTTPError as error:
            raise Transient(f"{_format_url(url)} cannot be fetched: {type(error).__name__}") from error

    async def _follow_redirects(self, url: str, headers: dict[str, str]) -> FetchedContent:
        first = self._parse_url(url)[:2]
        for _ in range(MAX_REDIRECTS + 1):
            given = headers if self._parse_url(url)[:2] == first else {}
            found = await self._get_url(url, given)
            if isinstance(found, FetchedContent):
                return found
            url = urljoin(url, found)
        raise Refused(f"{_format_url(url)} redirects too often")

    async def _get_url(self, url: str, headers: dict[str, str]) -> FetchedContent | str:
        """Return the content, or the target of a redirect."""
        host, port, target = self._parse_url(url)
        address = await self._choose_address(host, port)
        there = f"[{address}]" if ":" in address else address
        request = httpx2.Request(
            "GET",
            f"{urlsplit(url).scheme}://{there}:{port}{target}",
            headers={
                **self._agent_header,
                **headers,
                "Host": _format_host(host, urlsplit(url).port),
                "Accept-Encoding": "gzip, deflate" if self._is_packed_allowed else "identity",
            },
            extensions={"sni_hostname": host, "timeout": httpx2.Timeout(self._deadline).as_dict()},
        )
        async with self._transport() as transport:
            response = await transport.handle_async_request(request)
            try:
                return await self._read_body(url, response)
            finally:
                await response.aclose()

    async def _read_body(self, url: str, response: httpx2.Response) -> FetchedContent | str:
        status = response.status_code
        if 300 <= status < 400 and "location" in response.headers:
            return str(response.headers["location"])
        if status >= 500 or status in (408, 429):
            raise Transient(f"{_format_url(url)} answered {status}")
        if status != 200:
            raise Refused(f"{_format_url(url)} answered {status}")
        encoding = response.headers.get("content-encoding", "").strip().lower()
        if encoding and not (self._is_packed_allowed and encoding in _PACKED_ENCODINGS):
            raise Refused(
                f"{_format_url(url)} answers with a content encoding, which was not requested"
            )  # a small compressed body may expand to a very large one
        declared = response.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            raise Refused(f"{_format_url(url)} is larger than {self._max_bytes:,} bytes")
        data = bytearray()
        async for piece in response.aiter_raw():
            data += piece
            if len(data) > self._max_bytes:
                raise Refused(f"{_format_url(url)} is larger than {self._max_bytes:,} bytes")
        if encoding:
            data = bytearray(self._unpack(url, bytes(data), encoding))
        return FetchedContent(
            data=bytes(data), media=response.headers.get("content-type", "").partition(";")[0].strip()
        )

    def _unpack(self, url: str, data: bytes, encoding: str) -> bytes:
        """Return what was packed. Raises Refused if it is larger than allowed, before it takes the memory."""
        # some servers send deflate without its header
        is_raw = encoding == "deflate" and data[:1] and data[0] & 0x0F != 8
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS if is_raw else zlib.MAX_WBITS | 32)
        try:
            unpacked = unpacker.decompress(data, self._max_bytes + 1)
        except zlib.error as error:
            raise Refused(f"{_format_url(url)} answers with damaged {encoding} data") from error
        if len(unpacked) > self._max_bytes:
            raise Refused(f"{_format_url(url)} is larger than {self._max_bytes:,} bytes")
        return unpacked

    def _parse_url(self, url: str) -> tuple[str, int, str]:
        try:
            url.encode()  # a lone surrogate can be sent nowhere
            parts = urlsplit(url)
            host, port = _encode_host(parts.hostname or ""), parts.port
        except ValueError as error:
            raise Refused(f"{_format_url(url)} is no URL: {error}") from error
        if parts.scheme not in _DEFAULT_PORTS:
            raise Refused(f"{_format_url(url)} is neither http nor https")
        if not host or parts.username is not None or parts.password is not None or any(c <= " " for c in url):
            raise Refused(f"{_format_url(url)} is no URL to fetch from")
        target = parts.path or "/"
        return host, port or _DEFAULT_PORTS[parts.scheme], f"{target}?{parts.query}" if parts.query else target

    async def _choose_address(self, host: str, port: int) -> str:
        """Return the address to connect to. A name with any private address is refused."""
        addresses = await self._resolve(host, port)
        for text in addresses:
            try:
                ip = ipaddress.ip_address(text)
            except ValueError as error:
                raise Refused(f"{host[:100]} has no address") from error
            if not self._is_allowed(ip):
                raise Refused(f"{host[:100]} has no public address")  # names of a network inside stay unknown
        if not addresses:
            raise Transient(f"{host[:100]} has no address")
        return addresses[0]


def _encode_host(host: str) -> str:
    """Return a host as it is resolved and sent: a name in other letters in its ASCII form. Raises ValueError."""
    return host if ":" in host else host.encode("idna").decode()


def _format_host(host: str, port: int | None) -> str:
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"


def _format_url(url: str) -> str:
    """Return a URL for an error message, without its query, which may contain secrets."""
    return url.partition("?")[0][:200].encode("utf-8", "replace").decode()
