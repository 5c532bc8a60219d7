"""The attacker writes what the owner reads in the console: names, titles, files, tools, logs. None becomes markup.

The console runs in a real browser. The attack returns what happened there. The same attack finds planted
vulnerabilities.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from everhold.api import console, middleware
from everhold.api.console import ConsoleFiles
from everhold.core.entries import ToolCall
from everhold.testing.model_server import ModelServer, ModelServerReply
from everhold.testing.platforms.telegram import TelegramServer, make_hidden_origin
from tests.api.test_console import ConsoleTab, browser_only, run_browser
from tests.e2e.running_gateway import KEY, TOKEN as OPERATOR, RunningGateway, make_model_section
from tests.platforms.remote_telegram import TOKEN
from tests.waiting import LIMIT_SECONDS, wait_until

pytestmark = browser_only

ADA: Final = 1001
EVE_TOKEN: Final = "eve-token-0123456789abcdef0123456789abcdef0123"
MARK: Final = "window.wasRun"
"""What a script of the attacker sets."""
FRAME_MARK: Final = "parent.wasRun"


def build_payloads(sink: str) -> list[str]:
    """Return texts that run a script, or load something from the attacker, where a text becomes markup."""
    return [
        # The newest session is shown first. A base address breaks the page, so it has to be the last one shown.
        f"<base href={sink}/><form action={sink}/form><object data={sink}/object></object>",
        f"<script>{MARK} = 1</script>",
        f"<img src={sink}/image onerror={MARK}=1>",
        f'"><svg onload={MARK}=1><a href="javascript:{MARK}=1" ping={sink}/ping>x</a>',
        f"'-{MARK}=1-'${{{MARK}=1}}{{{{{MARK}=1}}}}",
        f"</pre></code></title></textarea><iframe srcdoc='<script>{FRAME_MARK}=1</script>'></iframe>",
        f"<link rel=stylesheet href={sink}/style><style>@import '{sink}/import';</style>",
        f"![x]({sink}/picture) [x](javascript:{MARK}=1) [x](data:text/html,<script>{MARK}=1</script>)",
    ]


@contextlib.asynccontextmanager
async def serve_sink() -> AsyncIterator[tuple[str, list[str]]]:
    """Serve the attacker's host. Yield its address, and what it is asked for."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            asked.append((await reader.readuntil(b"\r\n")).decode().strip())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


@contextlib.asynccontextmanager
async def open_gateway(path: Path) -> AsyncIterator[tuple[RunningGateway, TelegramServer, ModelServer, str]]:
    async with TelegramServer() as telegram, ModelServer(key=KEY) as model:
        telegram.add_bot(TOKEN)
        account = {"token_env": "BOT", "base_url": telegram.url, "poll_seconds": 1, "access": {"direct": ["*"]}}
        config = {
            "models": {"m": make_model_section(model.openai)},
            "platforms": {"telegram": {"main": account}},
            "agents": {"main": {"tools": ["session_search"]}},
        }
        async with RunningGateway(path, json.dumps(config), env=f"MODEL_KEY={KEY}\nBOT={TOKEN}\n") as gateway:
            yield gateway, telegram, model, await gateway.app.serve(port=0)


async def wait_for_texts(gateway: RunningGateway, telegram: TelegramServer, user: int, count: int) -> None:
    await gateway.wait_until(lambda: len(telegram.list_bot_texts(user)) >= count)


async def write_everywhere(
    gateway: RunningGateway, telegram: TelegramServer, model: ModelServer, payloads: list[str]
) -> int:
    """Write each payload wherever somebody can write. Return how many sessions were begun."""
    for number, payload in enumerate(payloads):
        user = ADA + number
        model.add_steps(
            ModelServerReply(calls=(ToolCall(id="c1", tool=payload[:60], arguments={payload: payload}),)),
            ModelServerReply(calls=(ToolCall(id="c2", tool="session_search", arguments={"query": payload}),)),
            ModelServerReply(text=f"{payload}\n\n* {payload}\n\n`{payload}`\n\n```{payload}\n{payload}\n```"),
        )
        how: dict[str, Any] = {"user": user, "name": payload}
        await telegram.write_message(payload, file=(payload, payload.encode()), **how)
        await wait_for_texts(gateway, telegram, user, 1)
        await telegram.write_message(f"/title {payload}", **how)
        await wait_for_texts(gateway, telegram, user, 2)
        await telegram.forward_message(payload, origin=make_hidden_origin(payload), **how)
        await wait_for_texts(gateway, telegram, user, 3)
    await gateway.wait_until_idle()
    return len(payloads)


async def show_everything(tab: ConsoleTab) -> None:
    """Wait until a session is shown, and unfold its log. Gives up if the browser complains."""

    async def is_shown() -> bool:
        if tab.complaints:
            return True
        await tab.page.evaluate("document.querySelectorAll('.log details').forEach((it) => (it.open = true))")
        return bool(
            await tab.page.evaluate(
                "document.querySelectorAll('li.agent:not(.draft)').length > 0"
                " && document.querySelectorAll('.log pre').length >= 10"
            )
        )

    await wait_until(is_shown)


async def play_author(path: Path, browser: Any) -> set[str]:
    """Let the owner look at everything that the attacker wrote. Return what happened."""
    gains: set[str] = set()
    async with open_gateway(path) as (gateway, telegram, model, url), serve_sink() as (sink, asked):
        payloads = build_payloads(sink)
        count = await write_everywhere(gateway, telegram, model, payloads)
        context = await browser.new_context()
        tab = ConsoleTab(await context.new_page())
        requests: list[str] = []
        tab.page.on("request", lambda request: requests.append(request.url))
        await tab.open(url, OPERATOR)
        await tab.until(f"document.querySelectorAll('.sessions li').length >= {count}")
        for number in range(count):
            await tab.page.click(f".sessions li:nth-child({number + 1}) button")
            await show_everything(tab)
            shown = await tab.page.evaluate("document.body.innerText")
            if not any(payload[:20] in shown for payload in payloads):
                gains.add("a payload was not shown, so nothing was tested")
            found = await tab.page.evaluate(
                "[...document.querySelectorAll('main *, aside *, nav *')].filter((it) => /^(img|script|iframe|svg|"
                "style|link|meta|base|object|embed|form)$/i.test(it.tagName) && !it.classList.contains('composer'))"
                ".map((it) => it.outerHTML)"
            )
            if found:
                gains.add("markup")
            links = await tab.page.evaluate(
                "[...document.querySelectorAll('a')].filter((it) => it.origin !== location.origin)"
                ".map((it) => it.protocol + it.rel)"
            )
            if any(not link.startswith(("http:", "https:")) or "noopener" not in link for link in links):
                gains.add("a link with a script")
            if await tab.page.evaluate(f"Boolean({MARK})"):
                gains.add("a script ran")
        if "markup" in gains:  # its handlers run later
            with contextlib.suppress(TimeoutError):
                await wait_until(lambda: tab.page.evaluate(f"Boolean({MARK})"), seconds=30)
                gains.add("a script ran")
        if any(not request.startswith((url, "blob:")) for request in requests) or asked:
            gains.add("something was loaded from elsewhere")
        if tab.complaints:
            gains.add("the browser complained")
        await context.close()
    return gains


async def test_no_text_becomes_markup_or_loads_anything(tmp_path: Path) -> None:
    async with run_browser() as browser:
        assert await play_author(tmp_path, browser) == set()


def change_script(patch: pytest.MonkeyPatch, name: str, old: str, new: str) -> None:
    """Let the gateway serve a changed file of the console."""
    init = ConsoleFiles.__init__

    def serve_changed(self: ConsoleFiles, *given: Any) -> None:
        init(self, *given)
        file = self.files[name]
        changed = file.content.replace(old.encode(), new.encode())
        assert changed != file.content, name
        self.files[name] = console.ConsoleFile(changed, file.type, '"changed"')

    patch.setattr(ConsoleFiles, "__init__", serve_changed)


def allow_all_sources(patch: pytest.MonkeyPatch) -> None:
    kept = [it for it in middleware.RESPONSE_HEADERS if it[0] != b"content-security-policy"]
    patch.setattr(middleware, "RESPONSE_HEADERS", kept)


def render_markup(patch: pytest.MonkeyPatch) -> None:
    """Plant a text that is markup, which the policy of the page still has to stop."""
    change_script(
        patch,
        "shared.js",
        "children: row.text",
        "dangerouslySetInnerHTML: { __html: row.text }",
    )


def render_markup_without_policy(patch: pytest.MonkeyPatch) -> None:
    render_markup(patch)
    allow_all_sources(patch)


def link_to_anything(patch: pytest.MonkeyPatch) -> None:
    change_script(patch, "shared.js", r"\((https?:\/\/[^\s)]+)\)", r"\(((?:https?|javascript|data):[^\s)]+)\)")


PLANTED: Final[dict[str, tuple[Callable[[pytest.MonkeyPatch], None], set[str]]]] = {
    "a message is markup": (render_markup, {"the browser complained"}),
    "a message is markup, and there is no policy": (
        render_markup_without_policy,
        {"markup", "a script ran", "something was loaded from elsewhere"},
    ),
    "a link may have every scheme": (link_to_anything, {"a link with a script"}),
}


@pytest.mark.parametrize("bug", PLANTED)
async def test_a_planted_vulnerability_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    plant, gains = PLANTED[bug]
    plant(monkeypatch)
    async with run_browser() as browser:
        assert gains <= await play_author(tmp_path, browser)


# -- the login page ----------------------------------------------------------------------------------------------------


FRAGMENTS: Final = (
    "%",
    "%E0%A4%A",
    "__proto__",
    "<img src=x onerror=window.wasRun=1>",
    "code=",
    "code=%",
    "code=<b>x</b>",
)


async def test_no_address_breaks_the_console_or_the_login_page(tmp_path: Path) -> None:
    """A page of somebody else can link to the console with any fragment."""
    async with open_gateway(tmp_path) as (_, _, _, url), run_browser() as browser:
        context = await browser.new_context()
        for is_logged_in in (False, True):
            tab = ConsoleTab(await context.new_page())
            if is_logged_in:
                await tab.open(url, OPERATOR)
                await tab.page.wait_for_selector("textarea", timeout=LIMIT_SECONDS * 1000)
            for fragment in FRAGMENTS:
                await tab.page.goto("about:blank")
                await tab.page.goto(f"{url}/#{fragment}")
                awaited = "textarea" if is_logged_in else "#token"
                await tab.page.wait_for_selector(awaited, timeout=LIMIT_SECONDS * 1000)
                assert not await tab.page.evaluate(f"Boolean({MARK})")
            assert [it for it in tab.complaints if "401" not in it] == []
            await tab.page.close()
        await context.close()


async def test_a_link_of_somebody_else_does_not_change_who_is_logged_in(tmp_path: Path) -> None:
    """Otherwise the owner would write into a conversation of the attacker, who made the link."""
    async with open_gateway(tmp_path) as (gateway, _, _, url), run_browser() as browser:
        gateway.configure(
            json.dumps({"http": {"tokens": [{"name": "eve", "token_env": "EVE"}]}, "agents": {"main": {}}})
        )
        gateway.write_secrets(f"EVE={EVE_TOKEN}")
        eve = {"authorization": f"Bearer {EVE_TOKEN}"}
        async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=LIMIT_SECONDS) as client:
            made = await client.post("/api/login-codes", json={}, headers=eve)
            assert made.status_code == 200, made.text
        context = await browser.new_context()
        tab = ConsoleTab(await context.new_page())
        await tab.open(url, OPERATOR)
        for how in ("a new page", "the open page"):
            if how == "a new page":
                await tab.page.goto("about:blank")
            await tab.page.goto(f"{url}/#code={made.json()['code']}")
            await tab.page.wait_for_selector("[role=alertdialog]", timeout=LIMIT_SECONDS * 1000)
            assert "eve" in await tab.page.inner_text("[role=alertdialog]")
            await tab.page.click("text=Stay logged in")
            await tab.is_("live")
            me = await tab.page.evaluate(READ_ME)
            assert (me["role"], "eve" in me["name"]) == ("operator", False)
        await tab.page.goto("about:blank")
        await tab.page.goto(f"{url}/#code={made.json()['code']}")
        await tab.page.click("text=Use the link")
        await tab.is_("live")
        await tab.until("!document.querySelector('[role=alertdialog]')")
        assert (await tab.page.evaluate(READ_ME))["role"] == "member", "who really wants to can use it"
        await context.close()


async def test_a_link_of_somebody_else_logs_nobody_in_unasked(tmp_path: Path) -> None:
    """A person without a login opens a link of the attacker. The operator's own link asks nothing."""
    async with open_gateway(tmp_path) as (gateway, _, _, url), run_browser() as browser:
        gateway.configure(
            json.dumps({"http": {"tokens": [{"name": "eve", "token_env": "EVE"}]}, "agents": {"main": {}}})
        )
        gateway.write_secrets(f"EVE={EVE_TOKEN}")
        eve = {"authorization": f"Bearer {EVE_TOKEN}"}
        async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=LIMIT_SECONDS) as client:
            code = (await client.post("/api/login-codes", json={}, headers=eve)).json()["code"]
        context = await browser.new_context()
        tab = ConsoleTab(await context.new_page())
        await tab.page.goto(f"{url}/#code={code}")
        await tab.page.wait_for_selector("[role=alertdialog]", timeout=LIMIT_SECONDS * 1000)
        assert "eve" in await tab.page.inner_text("[role=alertdialog]")
        assert await tab.page.evaluate("[localStorage.length, document.querySelectorAll('textarea').length]") == [0, 0]
        await tab.page.click("text=Do not log in")
        await tab.until("!document.querySelector('[role=alertdialog]')")
        assert await tab.page.evaluate("localStorage.length") == 0
        await tab.page.goto("about:blank")
        await tab.page.goto(await gateway.app.create_login_link())
        await tab.is_("live")
        assert (await tab.page.evaluate(READ_ME))["role"] == "operator"
        await tab.page.goto("about:blank")
        await context.clear_cookies()
        await tab.page.goto(f"{url}/#code={code}")
        await tab.page.click("text=Use the link")
        await tab.is_("live")
        assert (await tab.page.evaluate(READ_ME))["role"] == "member", "who really wants to can use it"
        await context.close()


READ_ME: Final = (
    "fetch('/api/me', {headers: {'x-everhold-key': localStorage.getItem('everhold.key')}}).then((it) => it.json())"
)
