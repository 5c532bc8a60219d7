"""The fetcher connects to public addresses only, resolves a name once, and limits the size of a body."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import AsyncIterator

import httpx2
import pytest

from everhold.errors import Refused, Transient
from everhold.infra import fetch as fetch_module
from everhold.infra.fetch import UrlFetcher, is_public
from everhold.testing.platforms.loopback import LoopbackRequest, LoopbackResponse, LoopbackServer
from tests.waiting import LIMIT_SECONDS, wait_until

HOSTILE = [
    # not the web
    "file:///etc/passwd", "ftp://example.com/x", "gopher://127.0.0.1:70/_x", "data:text/plain,hi",
    "javascript:alert(1)", "jar:http://example.com!/x", "ws://example.com/", "//example.com/x",
    "http:/example.com", "http://", "https://", "http://a..b/", f"http://{'a' * 64}.com/", "http://93.184.215.14/\ud800",
    "http://exa\ud800mple.com/",
    "", "not a url", "http://[::1", "http://exa mple.com/", "http://example.com/\r\nHost: evil", "http://example.com:99999/",
    "http://user:secret@93.184.215.14/", "http://user@93.184.215.14/", "\\\\server\\share\\x", "C:\\windows\\x",
    # this machine
    "http://127.0.0.1/", "http://127.0.0.1:8765/", "http://localhost/", "http://127.1/", "http://127.255.255.254/",
    "http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/", "http://0/", "http://0.0.0.0/", "http://[::]/",
    "http://[::1]/", "http://[0:0:0:0:0:0:0:1]/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]/",
    "http://127.0.0.1.:80/", "http://127.0.0.1#@example.com/",
    # its network
    "http://10.0.0.1/", "http://10.255.255.255/", "http://172.16.0.1/", "http://172.31.255.255/", "http://192.168.1.1/",
    "http://100.64.0.1/", "http://100.127.255.254/", "http://[fd00::1]/", "http://[fc00::1]/", "http://[fec0::1]/",
    "http://[fe80::1]/", "http://169.254.1.1/", "http://[::ffff:10.0.0.1]/", "http://[::ffff:192.168.0.1]/",
    # the cloud it runs in
    "http://169.254.169.254/latest/meta-data/", "http://[::ffff:169.254.169.254]/", "http://[fd00:ec2::254]/",
    "http://2852039166/", "http://0xa9fea9fe/", "http://192.0.0.192/", "http://168.63.129.16/machine?comp=goalstate",
    "http://[::ffff:168.63.129.16]/",
    # other notations of private addresses
    "http://[2002:7f00:1::]/", "http://[2002:a00:1::]/", "http://[64:ff9b::7f00:1]/", "http://[64:ff9b::a9fe:a9fe]/",
    "http://[64:ff9b:1::1]/", "http://[2001:0:7f00:1::]/",
    # no host
    "http://224.0.0.1/", "http://255.255.255.255/", "http://240.0.0.1/", "http://[ff02::1]/", "http://198.18.0.1/",
    "http://192.0.2.1/", "http://198.51.100.1/", "http://203.0.113.1/", "http://[2001:db8::1]/",
]  # fmt: skip


class Web(LoopbackServer):
    """A web server with fixed responses, which records requests."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[LoopbackRequest] = []
        self.pages: dict[str, LoopbackResponse] = {
            "/cat.png": LoopbackResponse(body=b"meow", media="image/png; charset=x")
        }

    def name_call(self, request: LoopbackRequest) -> str:
        return request.path

    async def answer_call(self, request: LoopbackRequest) -> LoopbackResponse:
        self.asked.append(request)
        return self.pages.get(request.path, LoopbackResponse(status=404))


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with Web() as server:
        yield server


def loopback(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return str(ip) == "127.0.0.1"


@pytest.mark.parametrize("url", HOSTILE)
async def test_a_url_that_is_not_public_is_refused(url: str) -> None:
    connected: list[str] = []

    class Nowhere(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            connected.append(str(request.url))
            return httpx2.Response(200)

    with pytest.raises((Refused, Transient)):
        await UrlFetcher(deadline=5.0, transport=Nowhere)(url)
    assert connected == []


@pytest.mark.parametrize("ip", ["93.184.215.14", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_a_public_url_is_accepted(ip: str) -> None:
    assert is_public(ipaddress.ip_address(ip))


async def test_content_is_fetched(web: Web) -> None:
    found = await UrlFetcher(allows=loopback)(f"{web.url}/cat.png?size=big")
    assert (found.data, found.media) == (b"meow", "image/png")
    assert web.asked[0].query == {"size": "big"}


async def test_a_name_is_resolved_once_and_that_address_is_used(web: Web) -> None:
    answers = [["127.0.0.1"], ["10.0.0.1"]]

    async def rebinding(host: str, port: int) -> list[str]:
        return answers.pop(0)

    found = await UrlFetcher(allows=loopback, resolve=rebinding)(f"http://cats.example:{web.port}/cat.png")
    assert found.data == b"meow"
    assert len(answers) == 1, "the name was resolved again"
    assert web.asked[0].headers["host"] == f"cats.example:{web.port}"


async def test_a_name_in_other_letters_is_resolved_and_sent_in_its_ascii_form(web: Web) -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    fetch = UrlFetcher(allows=loopback, resolve=resolve)
    assert (await fetch(f"http://kätzchen.example:{web.port}/cat.png")).data == b"meow"
    assert asked == ["xn--ktzchen-5wa.example"]
    assert web.asked[0].headers["host"] == f"xn--ktzchen-5wa.example:{web.port}"
    web.pages["/away"] = LoopbackResponse(
        status=302, headers={"location": f"http://kätzchen.example:{web.port}/cat.png"}
    )
    assert (await fetch(f"{web.url}/away")).data == b"meow"
    # letters that are the same to a resolver, and look different to a filter
    assert (await fetch(f"http://127。0。0。1:{web.port}/cat.png")).data == b"meow"
    with pytest.raises(Refused, match=r"^10\.0\.0\.1 has no public address$"):
        await UrlFetcher(allows=loopback)("http://10。0。0。1/")


async def test_a_name_with_any_private_address_is_refused() -> None:
    async def both(host: str, port: int) -> list[str]:
        return ["93.184.215.14", "10.0.0.1"]

    with pytest.raises(Refused, match=r"^cats\.example has no public address$"):
        await UrlFetcher(resolve=both)("http://cats.example/")


@pytest.mark.parametrize(
    "there", ["http://10.0.0.1/x", "file:///etc/passwd", "http://user:pw@127.0.0.1/x", "//10.0.0.1/x"]
)
async def test_a_redirect_is_checked_like_the_first_url(web: Web, there: str) -> None:
    web.pages["/away"] = LoopbackResponse(status=302, headers={"location": there})
    with pytest.raises(Refused):
        await UrlFetcher(allows=loopback, deadline=5.0)(f"{web.url}/away")


async def test_a_few_redirects_are_followed_and_many_are_refused(web: Web) -> None:
    for number in range(6):
        there = f"/{number + 1}" if number < 5 else "/cat.png"
        web.pages[f"/{number}"] = LoopbackResponse(status=302, headers={"location": there})
    assert (await UrlFetcher(allows=loopback)(f"{web.url}/4")).data == b"meow"
    with pytest.raises(Refused, match="redirects too often"):
        await UrlFetcher(allows=loopback)(f"{web.url}/0")


async def test_headers_are_not_sent_to_another_host(web: Web) -> None:
    async with Web() as other:
        web.pages["/away"] = LoopbackResponse(status=302, headers={"location": f"{other.url}/cat.png"})
        await UrlFetcher(allows=loopback)(f"{web.url}/away", headers={"Authorization": "Bearer canary"})
        assert web.asked[0].headers["authorization"] == "Bearer canary"
        assert "authorization" not in other.asked[0].headers


async def test_a_body_over_the_limit_is_refused(web: Web) -> None:
    web.pages["/big"] = LoopbackResponse(body=b"x" * 10_001)
    fetch = UrlFetcher(allows=loopback, most_bytes=10_000)
    with pytest.raises(Refused, match="larger"):
        await fetch(f"{web.url}/big")
    web.pages["/fits"] = LoopbackResponse(body=b"x" * 10_000)
    assert len((await fetch(f"{web.url}/fits")).data) == 10_000


async def test_an_endless_body_is_cut_off(web: Web) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * 4096)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(Refused, match="larger"):
        await UrlFetcher(allows=loopback, most_bytes=100_000)(f"http://127.0.0.1:{port}/")
    server.close()


async def test_a_response_with_a_content_encoding_is_refused(web: Web) -> None:
    web.pages["/bomb"] = LoopbackResponse(body=b"\x1f\x8b", headers={"content-encoding": "gzip"})
    with pytest.raises(Refused, match="content encoding"):
        await UrlFetcher(allows=loopback)(f"{web.url}/bomb")


async def test_a_server_that_does_not_answer_times_out(web: Web) -> None:
    web.plan_fault("/cat.png", "hang")
    with pytest.raises(Transient):
        await UrlFetcher(allows=loopback, deadline=0.2)(f"{web.url}/cat.png")
    web.plan_fault("/cat.png", "drop before")
    with pytest.raises(Transient):
        await UrlFetcher(allows=loopback)(f"{web.url}/cat.png")


@pytest.mark.parametrize("status, error", [(404, Refused), (403, Refused), (500, Transient), (429, Transient)])
async def test_the_status_decides_between_transient_and_refused(web: Web, status: int, error: type[Exception]) -> None:
    web.pages["/x"] = LoopbackResponse(status=status)
    with pytest.raises(error):
        await UrlFetcher(allows=loopback)(f"{web.url}/x?key=canary")


async def test_name_servers_that_do_not_answer_use_no_thread_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store reads with these threads, so whoever names a host could stop everything."""
    answered = threading.Event()

    def look_up(host: str, port: int, **_: object) -> list[object]:
        answered.wait()
        return [(0, 0, 0, "", ("10.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(fetch_module, "MAX_LOOKUPS", 40)
    fetch = UrlFetcher(deadline=LIMIT_SECONDS)
    asked = [asyncio.create_task(fetch(f"http://{number}.example/")) for number in range(40)]
    try:
        await wait_until(lambda: fetch._resolve.running == 40)  # type: ignore[attr-defined]
        async with asyncio.timeout(LIMIT_SECONDS):
            assert await asyncio.to_thread(lambda: "read") == "read"
        with pytest.raises(Transient, match="too many names"):
            await fetch("http://another.example/")
        asked[0].cancel()
        await asyncio.gather(asked[0], return_exceptions=True)
        assert fetch._resolve.running == 40, "the thread of a caller that left still counts"  # type: ignore[attr-defined]
    finally:
        answered.set()
    found = await asyncio.gather(*asked[1:], return_exceptions=True)
    assert {str(it) for it in found} == {f"{number}.example has no public address" for number in range(1, 40)}
    assert fetch._resolve.running == 0  # type: ignore[attr-defined]
