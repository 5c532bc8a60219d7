"""The console in a real browser. It shows the log through kills and restarts without a reload."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from everhold.api.console import CONSOLE_DIRECTORY, ConsoleFiles
from everhold.api.reference import build_route_table
from everhold.testing.model_server import HangingConnection, ModelServer, ModelServerReply
from tests.api.conftest import ADA, BOB, LOCAL, OPERATOR, ApiGateway, configuration
from tests.api.gateway_process import GatewayProcess
from tests.waiting import LIMIT_SECONDS, wait_until

playwright_api = pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: pip install playwright"
)

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PREACT: Final = "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7"

CONSOLE_SOURCES: Final = [
    path for path in sorted((Path(__file__).parents[2] / "console" / "src").rglob("*.ts*")) if path.stem != "generated"
]

browser_only = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine: apt-get install chromium"),
]


# -- without a browser -------------------------------------------------------------------------------------------------


def test_the_console_needs_no_exception_in_the_content_security_policy() -> None:
    text = (CONSOLE_DIRECTORY / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=|https?:", text)
    for path in CONSOLE_SOURCES:
        source = path.read_text()
        assert not re.search(r"innerHTML|\beval\b|new Function|document\.write|setAttribute", source), path
        # it has no server address: every request goes to the page's own origin
        assert not re.findall(r"fetch\(\s*[\"'`](?!/)", source), path


def test_every_route_that_the_console_calls_exists() -> None:
    known = {f"{route.method} {route.path}" for route in build_route_table()}
    called = {
        (path.name, name)
        for path in CONSOLE_SOURCES
        for name in re.findall(r"\"((?:GET|POST|PUT|DELETE) /[^\"]*)\"", path.read_text())
    }
    assert len(called) > 5
    assert [it for it in sorted(called) if it[1] not in known] == []


def test_the_pages_are_small() -> None:
    """The conversation needs all files that `index.html` and its scripts load at once, every other page its own."""
    loaded = find_loaded_files("index.html")
    assert {"index.js", "style.css", "preact.js"} <= loaded
    assert measure_files(loaded) <= 90_000
    for path in CONSOLE_DIRECTORY.glob("*.js"):
        assert measure_files(find_loaded_files(path.name) - loaded) <= 40_000, path.name


def find_loaded_files(name: str) -> set[str]:
    """Return a file of the console and all files that it loads at once."""
    found, left = set[str](), {name}
    while left:
        found.add(name := left.pop())
        text = (CONSOLE_DIRECTORY / name).read_text()
        imports = re.findall(r'(?:from |import )"\./([^"]+)"|(?:src|href)="/static/([^"]+)"', text)
        left |= {script or file for script, file in imports} - found
    return found


def measure_files(names: set[str]) -> int:
    return sum(len(gzip.compress((CONSOLE_DIRECTORY / name).read_bytes())) for name in names)


async def test_a_console_file_is_sent_once_and_then_revalidated(client: httpx2.AsyncClient) -> None:
    for name in ConsoleFiles().files:
        first = await client.get("/" if name == "index.html" else f"/static/{name}")
        assert first.status_code == 200, name
        again = await client.get(first.url.path, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for name in ("licenses.txt", "%2e%2e%2fserver.py", "server.py"):
        assert (await client.get(f"/static/{name}")).status_code == 404


# -- in the browser ----------------------------------------------------------------------------------------------------


class ConsoleTab:
    """A browser tab that collects the errors of its console."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._said)
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))

    def _said(self, message: Any) -> None:
        # a refused connection while the gateway is down is not an error of the page
        if message.type == "error" and "net::ERR_" not in message.text:
            self.complaints.append(message.text)

    async def open(self, url: str, token: str = LOCAL) -> None:
        await self.page.goto(url)
        await self.log_in(token)
        await self.page.evaluate("window.notReloaded = true")
        await self.is_("live")

    async def log_in(self, token: str) -> None:
        await self.page.fill("#token", token)
        await self.page.keyboard.press("Enter")

    async def is_(self, state: str) -> None:
        await self.page.wait_for_selector(f".state.{state}", timeout=LIMIT_SECONDS * 1000)

    async def say(self, text: str) -> None:
        await self.page.fill("textarea", text)
        await self.page.keyboard.press("Enter")

    async def until(self, script: str) -> None:
        """Wait until a script returns true. It is polled, because the security policy forbids `eval`."""

        async def look() -> bool:
            return bool(await self.page.evaluate(f"Boolean({script})"))

        await wait_until(look)

    async def texts(self, selector: str) -> list[str]:
        found: list[str] = await self.page.locator(selector).all_inner_texts()
        return [text.strip() for text in found]

    async def replies(self, count: int) -> list[str]:
        await self.until(f"document.querySelectorAll('li.agent:not(.draft) .text').length >= {count}")
        return await self.texts("li.agent:not(.draft) .text")

    async def seqs(self) -> list[int]:
        return [int(text) for text in await self.texts(".log .seq")]

    async def session(self) -> str:
        id: str = await self.page.locator("[data-session]").get_attribute("data-session", timeout=LIMIT_SECONDS * 1000)
        return id


@contextlib.asynccontextmanager
async def run_browser(*more: str) -> AsyncIterator[Any]:
    """Run chromium with these options."""
    async with playwright_api.async_playwright() as playwright:
        running = await playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                *more,
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ],
        )
        yield running
        await running.close()


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    async with run_browser() as running:
        yield running


@pytest.fixture
async def screen(browser: Any) -> AsyncIterator[ConsoleTab]:
    made = ConsoleTab(await browser.new_page(viewport={"width": 1320, "height": 820}))
    yield made
    assert made.complaints == [], "the browser complained"


class TestInABrowser:
    pytestmark = browser_only

    async def test_the_console_sends_messages_and_shows_new_entries(
        self, gateway: ApiGateway, screen: ConsoleTab, model: ModelServer
    ) -> None:
        await screen.open(gateway.url)
        model.add_steps(ModelServerReply(text="one two three four five six seven eight", pause_seconds=0.08))
        await screen.say("count to eight")
        await screen.page.wait_for_selector("li.draft", timeout=LIMIT_SECONDS * 1000)
        growing = (await screen.texts("li.draft .text"))[0]
        assert growing.startswith("one")
        assert await screen.replies(1) == ["one two three four five six seven eight"]
        session = await screen.session()
        await screen.until("document.querySelectorAll('.log .seq').length === 5")
        log = await gateway.wait_until_idle(session)
        assert await screen.seqs() == [entry["seq"] for entry in log]
        assert await screen.texts(".log .kind") == [entry["kind"] for entry in log]
        assert screen.page.url.endswith(f"#/session/{session}")
        await screen.say("and again")
        assert (await screen.replies(2))[1] == "You said: and again"
        assert await screen.session() == session
        assert len(await screen.texts(".sessions li")) == 1

    async def test_a_button_pins_a_message_and_removes_the_pin(self, gateway: ApiGateway, screen: ConsoleTab) -> None:
        await screen.open(gateway.url)
        await screen.say("prices without tax, please")
        await screen.replies(1)
        session = await screen.session()

        async def list_pinned() -> list[str]:
            async with gateway.client() as client:
                pins = (await client.get(f"/api/sessions/{session}/pins")).json()["pins"]
            return [pin["body"]["text"] for pin in pins]

        await screen.page.click("li.person button.pin")
        await screen.until("document.querySelector('li.person .by').innerText.includes('pinned')")
        assert await list_pinned() == ["prices without tax, please"]
        await screen.page.click("li.person button.pin[aria-label^=Unpin]")
        await screen.until("!document.querySelector('li.person .by').innerText.includes('pinned')")
        assert await list_pinned() == []
        async with gateway.client() as client:  # another person was faster
            await client.post(f"/api/sessions/{session}/pin", json={"seq": 4})
        await screen.until("document.querySelector('li.agent .by').innerText.includes('pinned')")

    async def test_a_kill_and_a_restart_leave_no_gap_and_need_no_reload(
        self, tmp_path: Path, screen: ConsoleTab, model: ModelServer
    ) -> None:
        gateway = GatewayProcess(tmp_path, configuration(model.openai))
        await gateway.start()
        try:
            await screen.open(gateway.url)
            await screen.say("before")
            assert await screen.replies(1) == ["You said: before"]
            session = await screen.session()
            model.add_steps(HangingConnection())
            await screen.say("during")
            await screen.until("document.querySelector('.log ol').innerText.includes('takes 6')")
            await gateway.kill()
            await screen.is_("offline")
            await screen.say("meanwhile")
            await screen.page.wait_for_selector("li.waiting")
            await gateway.start()
            await screen.is_("live")
            assert await screen.replies(3) == ["You said: before", "You said: during", "You said: meanwhile"]
            assert await screen.session() == session
            async with gateway.open_client(seconds=LIMIT_SECONDS) as client:
                log = (await client.get(f"/api/sessions/{session}/entries")).json()["entries"]
            await screen.until(f"document.querySelectorAll('.log .seq').length === {len(log)}")
            assert await screen.seqs() == list(range(1, len(log) + 1)), "a gap, or a repeat"
            assert [e["body"]["text"] for e in log if e["kind"] == "heard"] == ["before", "during", "meanwhile"]
            assert await screen.texts("li.waiting") == []
            assert await screen.page.evaluate("window.notReloaded") is True
        finally:
            await gateway.close()

    async def test_typed_text_survives_a_reload_and_is_sent_once(
        self, tmp_path: Path, screen: ConsoleTab, model: ModelServer
    ) -> None:
        gateway = ApiGateway(tmp_path, model)
        await gateway.start()
        await screen.open(gateway.url)
        await screen.say("first")
        await screen.replies(1)
        await gateway.stop()
        await screen.is_("offline")
        await screen.say("typed while away")
        await screen.page.wait_for_selector("li.waiting")
        await gateway.start()
        await screen.page.reload()
        assert await screen.replies(2) == ["You said: first", "You said: typed while away"]
        log = await gateway.entries(await screen.session())
        assert [e["body"]["text"] for e in log if e["kind"] == "heard"] == ["first", "typed while away"]
        await gateway.stop()

    async def test_sessions_are_listed_and_opened(self, gateway: ApiGateway, screen: ConsoleTab) -> None:
        async with gateway.client() as client:
            for chat in ("one", "two"):
                posted = await client.post("/api/messages", json={"chat": chat, "text": f"in {chat}"})
                await gateway.wait_until_idle(posted.json()["session"])
            await screen.open(gateway.url)
            await screen.until("document.querySelectorAll('.sessions li').length === 2")
            await screen.page.click(".sessions li:last-child button")
            await screen.until("document.querySelector('li.person')?.innerText.includes('in one')")
            # a session of another client appears without a reload
            await client.post("/api/messages", json={"chat": "three", "text": "elsewhere"})
            await screen.until("document.querySelectorAll('.sessions li').length === 3")
            assert "in one" in (await screen.texts("li.person"))[0]
        await screen.page.click("text=New conversation")
        await screen.say("hello")
        assert await screen.replies(1) == ["You said: hello"]
        await screen.until("document.querySelectorAll('.sessions li').length === 4")

    async def test_text_is_never_markup(self, gateway: ApiGateway, screen: ConsoleTab, model: ModelServer) -> None:
        evil = "<img src=x onerror=alert(1)><script>alert(2)</script> [x](javascript:alert(3)) **bold**"
        model.add_steps(ModelServerReply(text=evil))
        await screen.open(gateway.url)
        await screen.say(evil)
        shown = (await screen.replies(1))[0]
        assert shown.startswith("<img src=x onerror=alert(1)><script>")
        assert await screen.page.locator("main img, main script, main .text a").count() == 0
        assert await screen.page.locator("main strong").count() == 1

    async def test_a_running_turn_can_be_stopped(
        self, gateway: ApiGateway, screen: ConsoleTab, model: ModelServer
    ) -> None:
        model.add_steps(HangingConnection())
        await screen.open(gateway.url)
        await screen.say("think for ever")
        await wait_until(lambda: len(model.requests) == 1)  # a stop before the turn has begun finds nothing to stop
        await screen.page.click("text=Stop")
        await screen.until("document.querySelector('.messages').innerText.includes('stopped')")

    @pytest.mark.prove
    async def test_a_long_log_opens_at_its_end(self, gateway: ApiGateway, screen: ConsoleTab) -> None:
        async with gateway.client() as client:
            session = (await client.post("/api/messages", json={"chat": "x", "text": "first words"})).json()["session"]
        await gateway.wait_until_idle(session)
        for number in range(900):
            await gateway.running.session_admin.add_note(session, f"fact {number}")
        await screen.open(f"{gateway.url}/#{session}")
        await screen.until("document.querySelector('.messages').innerText.includes('fact 899')")
        assert "first words" not in await screen.page.inner_text(".messages")
        for _ in range(2):
            await screen.page.click("text=Show earlier")
        await screen.until("document.querySelector('.messages').innerText.includes('fact 1\\n')")
        await screen.until("!document.querySelector('.messages').innerText.includes('Show earlier')")

    async def test_each_token_opens_the_console_of_its_person(self, browser: Any, gateway: ApiGateway) -> None:
        for token, name in ((ADA, "ada"), (BOB, "bob"), (OPERATOR, "boss")):
            context = await browser.new_context(extra_http_headers={"x-forwarded-for": "203.0.113.9"})
            screen = ConsoleTab(await context.new_page())
            await screen.open(gateway.url, token)
            await screen.say(f"I am {name}")
            assert await screen.replies(1) == [f"You said: I am {name}"]
            assert (await screen.texts("li.person .by"))[0] == name
            if name != "boss":
                assert len(await screen.texts(".sessions li")) == 1, "others' sessions are not there"
            assert screen.complaints == []
            await context.close()

    async def test_a_login_link_opens_the_console_once_and_leaves_no_trace(
        self, browser: Any, gateway: ApiGateway
    ) -> None:
        link = await gateway.running.create_login_link()
        context = await browser.new_context()
        screen = ConsoleTab(await context.new_page())
        asked: list[str] = []
        screen.page.on("request", lambda request: asked.append(request.url))
        await screen.page.goto(link)
        await screen.is_("live")
        await screen.say("hello")
        assert await screen.replies(1) == ["You said: hello"]
        code = link.partition("#code=")[2]
        assert code not in screen.page.url
        assert not [url for url in asked if code in url]
        kept = await screen.page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
        assert code not in kept
        assert LOCAL not in kept
        assert "everhold_" not in kept, "no script can read the cookie"
        await screen.page.reload()
        await screen.is_("live")
        assert screen.complaints == []
        other = ConsoleTab(await (await browser.new_context()).new_page())
        await other.page.goto(link)
        await other.page.wait_for_selector("[role=alert]:not(:empty)", timeout=LIMIT_SECONDS * 1000)
        assert await other.texts("[role=alert]") == ["the code is wrong, was used, or is older than ten minutes"]
        await context.close()

    async def test_a_page_whose_login_has_ended_asks_for_a_new_one_and_loses_nothing(
        self, browser: Any, gateway: ApiGateway
    ) -> None:
        context = await browser.new_context()
        screen = ConsoleTab(await context.new_page())
        await screen.open(gateway.url)
        await screen.say("before")
        await screen.replies(1)
        session = await screen.session()
        async with gateway.client() as client:
            (login,) = (await client.get("/api/logins")).json()["logins"]
            await client.post(f"/api/logins/{login['id']}/end", json={})
        await screen.page.wait_for_selector("form[aria-label='Log in']", timeout=LIMIT_SECONDS * 1000)
        assert "Your login has ended." in await screen.page.inner_text("form")
        assert await screen.page.locator("li.person").count() == 0, "nothing of the conversation is shown"
        await screen.log_in("a wrong token")
        await screen.page.wait_for_selector("[role=alert]:not(:empty)", timeout=LIMIT_SECONDS * 1000)
        assert await screen.texts("[role=alert]") == ["the token is wrong"]
        await screen.log_in(LOCAL)
        await screen.is_("live")
        assert await screen.replies(1) == ["You said: before"]
        assert await screen.session() == session
        assert all("401" in text for text in screen.complaints), screen.complaints
        await context.close()

    async def test_logging_out_shows_nothing_to_the_next_person(self, browser: Any, gateway: ApiGateway) -> None:
        context = await browser.new_context()
        screen = ConsoleTab(await context.new_page())
        await screen.open(gateway.url, ADA)
        await screen.say("a secret of ada")
        await screen.replies(1)
        await screen.page.click("text=Log out")
        await screen.page.wait_for_selector("form[aria-label='Log in']")
        assert await context.cookies() == []
        assert await screen.page.evaluate("localStorage.length") == 0
        await screen.log_in(BOB)
        await screen.is_("live")
        await screen.say("I am bob")
        assert await screen.replies(1) == ["You said: I am bob"]
        assert "secret" not in await screen.page.inner_text("body")
        assert (await screen.texts("li.person .by"))[0] == "bob"
        await context.close()

    async def test_another_server_on_this_host_gets_the_cookie_and_cannot_use_it(
        self, browser: Any, gateway: ApiGateway
    ) -> None:
        """Browsers send the cookies of a host to all its ports. So the cookie alone must open nothing."""
        context = await browser.new_context()
        screen = ConsoleTab(await context.new_page())
        await screen.open(gateway.url)
        received: list[str] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            received.append(next((it for it in head.split("\r\n") if it.lower().startswith("cookie:")), ""))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi")
            await writer.drain()
            writer.close()

        other = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with other:
            page = await context.new_page()
            await page.goto(f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}/")
            stolen = next(it for it in received if "everhold_" in it).partition(": ")[2]
            assert await page.evaluate("localStorage.length") == 0
            blocked = await page.evaluate(
                f"fetch('{gateway.url}/api/sessions', {{credentials: 'include'}}).then(() => 'read', () => 'blocked')"
            )
            assert blocked == "blocked"
        async with gateway.client("", cookie=stolen) as thief:
            assert (await thief.get("/api/sessions")).status_code == 401
        await context.close()

    @pytest.mark.parametrize("width, scheme", [(360, "dark"), (800, "light"), (1320, "dark")])
    async def test_the_console_fits_the_window_and_follows_the_color_scheme(
        self, browser: Any, gateway: ApiGateway, width: int, scheme: str
    ) -> None:
        context = await browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 700})
        screen = ConsoleTab(await context.new_page())
        await screen.open(gateway.url)
        await screen.say("a word that is quite long: " + "x" * 300)
        await screen.replies(1)
        assert await screen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        ground = await screen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        bright = sum(int(value) for value in re.findall(r"\d+", ground)[:3]) > 380
        assert bright == (scheme == "light")
        assert await screen.page.locator("[data-session]").is_visible()
        if width < 1080:
            await screen.page.click(".parts button:last-child")
        assert await screen.page.locator(".log").is_visible()
        await context.close()

    async def test_the_console_works_with_a_keyboard_and_a_screen_reader(
        self, gateway: ApiGateway, screen: ConsoleTab
    ) -> None:
        await screen.open(gateway.url)
        await screen.until("document.activeElement?.tagName === 'TEXTAREA'")
        await screen.page.keyboard.type("typed")
        await screen.page.keyboard.press("Shift+Enter")
        await screen.page.keyboard.type("two lines")
        await screen.page.keyboard.press("Enter")
        assert await screen.replies(1) == ["You said: typed\ntwo lines"]
        unnamed = await screen.page.evaluate(
            """[...document.querySelectorAll("button, textarea, select, nav, aside, section")]
               .filter((it) => !(it.innerText || it.ariaLabel || it.labels?.length)).map((it) => it.outerHTML)"""
        )
        assert unnamed == []
        for role in ("main", "log", "status", "navigation", "complementary"):
            assert await screen.page.get_by_role(role).count() >= 1, role


@pytest.mark.slow
@pytest.mark.browser
@browser_only[1]
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.prove)])
async def test_axe_reports_no_accessibility_problem(browser: Any, gateway: ApiGateway, node: Path, scheme: str) -> None:
    context = await browser.new_context(color_scheme=scheme, bypass_csp=True, viewport={"width": 1320, "height": 820})
    screen = ConsoleTab(await context.new_page())
    await screen.open(gateway.url)
    await screen.say("hello")
    await screen.replies(1)
    await screen.say("/help")
    await screen.page.wait_for_selector("li.notice")
    axe = node / "node_modules" / "axe-core" / "axe.min.js"
    await screen.page.add_script_tag(path=axe)
    found = await screen.page.evaluate("axe.run().then((it) => it.violations)")
    await screen.page.click("text=Log out")
    await screen.page.wait_for_selector("form[aria-label='Log in']")
    found += await screen.page.evaluate("axe.run().then((it) => it.violations)")
    assert [f"{it['id']}: {it['nodes'][0]['html']} {it['nodes'][0]['failureSummary']}" for it in found] == []
    await context.close()


def test_a_missing_browser_is_reported_with_a_remedy() -> None:
    for mark in browser_only:
        assert mark.name == "browser" or "apt-get install chromium" in mark.kwargs["reason"]
