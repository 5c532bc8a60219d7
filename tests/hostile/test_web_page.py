"""The attacker is a web page: the owner has the console open in a real browser, and opens a page of somebody else.

The page is served at another port of this machine, and under other names that lead to this machine, as after DNS
rebinding. The attack returns what the page gained. The same attack finds planted vulnerabilities.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from everhold.api import auth, middleware
from everhold.testing.model_server import ModelServer
from tests.api.conftest import MODEL_KEY, ApiGateway
from tests.api.test_console import ConsoleTab, browser_only, run_browser
from tests.hostile.test_planted import need_no_key, trust_loopback
from tests.waiting import wait_until

pytestmark = browser_only

SECRET: Final = "the words of the owner"
FORGED: Final = "words of the page"
EVIL: Final = "evil.example"
HOSTS: Final = ("127.0.0.1", "localhost", EVIL)

ATTACK: Final = """
async ([target, forged]) => {
  const gained = {};
  const attempt = async (name, run) => {
    try { gained[name] = String(await run()); } catch (error) { gained[name] = ""; }
  };
  const body = JSON.stringify({chat: "forged", text: forged});
  const own = {credentials: "include", cache: "no-store"};
  const json = {"content-type": "application/json"};
  for (const path of ["/api/sessions", "/api/me", "/api/entries?session=last", "/"])
    await attempt("read " + path, async () => (await fetch(target + path, own)).text());
  await attempt("read the console without cors", async () => (await fetch(target, {...own, mode: "no-cors"})).text());
  const post = (how) => fetch(target + "/api/messages", {...own, method: "POST", body, ...how});
  await attempt("post json", async () => (await post({headers: json})).text());
  await attempt("post text", async () => (await post({mode: "no-cors"})).text());
  await attempt("beacon", () => {
    navigator.sendBeacon(target + "/api/messages", new Blob([body], {type: "text/plain"}));
    return "";
  });
  await attempt("stream", () => new Promise((done) => {
    const stream = new EventSource(target + "/api/events", {withCredentials: true});
    stream.onopen = () => { stream.close(); done("a stream was opened"); };
    stream.onerror = () => { stream.close(); done(""); };
  }));
  await attempt("web socket", () => new Promise((done) => {
    const socket = new WebSocket(target.replace("http", "ws") + "/api/events");
    socket.onopen = () => done("a web socket was opened");
    socket.onerror = () => done("");
  }));
  await attempt("script", () => new Promise((done) => {
    const script = document.createElement("script");
    script.src = target + "/api/sessions";
    script.onload = () => done("a script was loaded");
    script.onerror = () => done("");
    document.body.append(script);
  }));
  await attempt("form", () => new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.name = "answer";
    document.body.append(frame);
    const form = document.createElement("form");
    Object.assign(form, {method: "POST", action: target + "/api/messages", enctype: "text/plain", target: "answer"});
    const field = document.createElement("input");
    field.name = body.slice(0, -2) + " of a form";
    field.value = '"}';
    form.append(field);
    document.body.append(form);
    frame.onload = () => done("");
    form.submit();
  }));
  await attempt("window", async () => {
    const opened = window.open(target);
    while (!opened.closed && opened.location.href === "about:blank") await new Promise((done) => setTimeout(done, 10));
    return opened.document.body.innerText + JSON.stringify(opened.localStorage);
  });
  await attempt("frame", () => new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.name = "framed";
    frame.onload = () => done("");
    frame.src = target + "/";
    document.body.append(frame);
  }));
  return gained;
}
"""


@contextlib.asynccontextmanager
async def serve_page() -> AsyncIterator[tuple[int, list[str]]]:
    """Serve the attacker's empty page. Yield its port, and the cookies that it receives."""
    cookies: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        cookies.extend(it.partition(": ")[2] for it in head.split("\r\n") if it.lower().startswith("cookie:"))
        page = b"<!doctype html><title>Kittens</title><body></body>"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(page) + page)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], cookies


OPTIONS: Final = ("--host-resolver-rules=MAP evil.example 127.0.0.1", "--disable-features=HttpsUpgrades")


async def play_page(gateway: ApiGateway, browser: Any, hosts: tuple[str, ...] = HOSTS) -> set[str]:
    gains: set[str] = set()
    async with serve_page() as (port, cookies):
        context = await browser.new_context()
        console = ConsoleTab(await context.new_page())
        await console.open(gateway.url)
        await console.say(SECRET)
        assert await console.replies(1) == [f"You said: {SECRET}"]
        for host in hosts:
            page = await context.new_page()
            await page.goto(f"http://{host}:{port}/")
            told: dict[str, str] = await page.evaluate(ATTACK, [gateway.url, FORGED])
            assert len(told) == 14, "every attack ran"
            gains |= {f"{name} from {host}" for name, text in told.items() if text}
            # its name is not known yet if its document is still being refused, so it is found by its element
            framed = await (await page.wait_for_selector("[name=framed]", state="attached")).content_frame()
            if await framed.title() == await console.page.title():
                gains.add(f"the console in a frame of {host}")
            await page.close()
        rebound = await context.new_page()
        await rebound.goto(f"http://{EVIL}:{gateway.port}/")
        seen = await rebound.evaluate("fetch('/api/sessions').then((it) => it.text())")
        if "forged" in seen or "sessions" in seen:
            gains.add("sessions after rebinding")
        await console.say("still here")
        await console.replies(2)
        assert await console.page.evaluate("window.notReloaded") is True
        await context.close()
    assert cookies, "browsers send the cookies of a host to all its ports"
    for cookie in set(cookies):
        async with gateway.client("", cookie=cookie) as thief:
            if (await thief.get("/api/sessions")).status_code != 401:
                gains.add("the cookie is enough")
    await wait_until(lambda: gateway.web.guard.arriving == 0)
    if FORGED in str(await gateway.running.store.read_feed()):
        gains.add("a message in the name of the owner")
    return gains


@contextlib.asynccontextmanager
async def run_gateway(path: Path) -> AsyncIterator[ApiGateway]:
    async with ModelServer(key=MODEL_KEY) as model:
        gateway = await ApiGateway(path, model).start()
        try:
            yield gateway
        finally:
            await gateway.stop()


async def test_a_page_of_another_origin_gains_nothing(tmp_path: Path) -> None:
    async with run_gateway(tmp_path) as gateway, run_browser(*OPTIONS) as browser:
        assert await play_page(gateway, browser) == set()


def serve_every_origin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(middleware, "is_same_origin", lambda head: True)


def accept_forged_requests(patch: pytest.MonkeyPatch) -> None:
    """Plant what CSRF needs here: the cookie alone suffices, from every origin, with a body of every type."""
    need_no_key(patch)
    serve_every_origin(patch)
    patch.setattr(middleware, "is_browser_request", lambda head: False)


def allow_frames(patch: pytest.MonkeyPatch) -> None:
    serve_every_origin(patch)
    kept = [(name, value) for name, value in middleware.RESPONSE_HEADERS if not name.endswith(b"frame-options")]
    policy = [(name, value.replace(b"frame-ancestors 'none'; ", b"")) for name, value in kept]
    patch.setattr(middleware, "RESPONSE_HEADERS", policy)


def allow_reading(patch: pytest.MonkeyPatch) -> None:
    """Plant a permission for all origins."""
    serve_every_origin(patch)
    parse = auth.parse_request_head

    def remember_origin(*given: Any, **more: Any) -> auth.RequestHead:
        head = parse(*given, **more)
        kept = [it for it in middleware.RESPONSE_HEADERS if not it[0].startswith(b"access-control")]
        allowed = (b"access-control-allow-origin", head.get("origin").encode())
        headers = [*kept, allowed, (b"access-control-allow-credentials", b"true")]
        patch.setattr(middleware, "RESPONSE_HEADERS", headers)
        return head

    patch.setattr(middleware, "parse_request_head", remember_origin)


def open_every_door(patch: pytest.MonkeyPatch) -> None:
    allow_reading(patch)
    allow_frames(patch)
    trust_loopback(patch)


PLANTED: Final[dict[str, tuple[Callable[[pytest.MonkeyPatch], None], set[str]]]] = {
    "forged requests are accepted": (
        accept_forged_requests,
        {"a message in the name of the owner", "the cookie is enough"},
    ),
    "every origin may read and frame, and loopback is trusted": (
        open_every_door,
        {"read / from 127.0.0.1", "the console in a frame of 127.0.0.1", "sessions after rebinding"},
    ),
}
"""Two runs of the browser for five vulnerabilities. Each gain has one cause."""


async def test_each_planted_vulnerability_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with run_browser(*OPTIONS) as browser:
        for number, (plant, gains) in enumerate(PLANTED.values()):
            async with run_gateway(tmp_path / str(number)) as gateway:
                with monkeypatch.context() as planted:
                    plant(planted)
                    found = await play_page(gateway, browser, ("127.0.0.1",))
            assert gains <= found, gains - found
