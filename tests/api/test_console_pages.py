"""The pages of the console beside the conversation, in a real browser. One gateway and one browser serve all tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from everhold.testing.model_server import ModelServer, ModelServerReply
from tests.api.conftest import ADA, LOCAL, MODEL_KEY, ApiGateway, configuration
from tests.api.test_console import ConsoleTab, browser_only, run_browser

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *browser_only]

HOSTILE = "<img src=x onerror=alert(1)> [x](javascript:alert(2)) \u202eevil"
LONG = "The harbour of Kiel has a long quay with many ships. " * 60


class Office:
    """A running gateway with sessions to look at, and a browser."""

    def __init__(self, gateway: ApiGateway, model: ModelServer, browser: Any) -> None:
        self.gateway, self.model, self.browser = gateway, model, browser

    async def say(self, chat: str, *texts: str, token: str = LOCAL) -> str:
        """Hold a conversation and return its session."""
        session = ""
        async with self.gateway.client(token) as client:
            for said, text in enumerate(texts, 1):
                session = (await client.post("/api/messages", json={"chat": chat, "text": text})).json()["session"]
                await self.gateway.wait_until_idle(session, said=said)
        return session

    async def list_seqs(self, session: str, kind: str) -> list[int]:
        return [entry["seq"] for entry in await self.gateway.entries(session) if entry["kind"] == kind]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def office(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Office]:
    async with ModelServer(key=MODEL_KEY) as model, run_browser() as browser:
        gateway = ApiGateway(tmp_path_factory.mktemp("office"), model)
        gateway.configure(configuration(model.openai).replace("memories: []", "memories: [builtin]"))
        await gateway.start()
        yield Office(gateway, model, browser)
        await gateway.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def tab(office: Office) -> AsyncIterator[ConsoleTab]:
    context = await office.browser.new_context(viewport={"width": 1320, "height": 820}, accept_downloads=True)
    made = ConsoleTab(await context.new_page())
    await made.open(office.gateway.url)
    yield made
    assert made.complaints == [], "the browser complained"
    await context.close()


async def go(tab: ConsoleTab, office: Office, place: str) -> None:
    await tab.page.goto(f"{office.gateway.url}/#/{place}")


async def wait_for(tab: ConsoleTab, text: str, selector: str = "main.page") -> None:
    await tab.until(f"document.querySelector({json.dumps(selector)})?.innerText.includes({json.dumps(text)})")


async def press(tab: ConsoleTab, name: str, role: str = "button") -> None:
    await tab.page.get_by_role(role, name=name, exact=True).first.click()


async def test_sessions_are_found_by_title_and_words_and_can_be_renamed_and_archived(
    office: Office, tab: ConsoleTab
) -> None:
    session = await office.say("harbour", "where is the quay with the zeppelin?")
    await office.say("evil", HOSTILE)
    await go(tab, office, "sessions")
    await wait_for(tab, HOSTILE.split()[1])
    assert await tab.page.locator("main.page img, main.page script").count() == 0
    await tab.page.get_by_label("Search titles and words").fill("zeppelin")
    await tab.until("document.querySelectorAll('.session-row').length === 1")
    assert "q=zeppelin" in tab.page.url
    await press(tab, "Details", "link")
    await press(tab, "Manage", "link")
    await tab.page.get_by_label("Title").fill("Ships")
    await press(tab, "Rename")
    await wait_for(tab, "Ships", "main.page h2")
    await press(tab, "Archive")
    await wait_for(tab, "Show again")
    await go(tab, office, "sessions?state=archived")
    await wait_for(tab, "Ships")
    await go(tab, office, f"inspect/{session}/manage")
    await press(tab, "Show again")
    await wait_for(tab, "Archive")
    await tab.page.reload()
    await wait_for(tab, "Ships", "main.page h2")


async def test_a_compression_is_shown_with_what_it_replaced_and_can_be_undone(office: Office, tab: ConsoleTab) -> None:
    session = await office.say("kiel", *(f"{number}: {LONG}" for number in range(4)))
    office.model.add_steps(ModelServerReply(text="They spoke about the harbour of Kiel."))
    async with office.gateway.client() as client:
        done = (await client.post(f"/api/sessions/{session}/compress", json={"keep": 1})).json()
    assert done["done"], done
    await go(tab, office, f"inspect/{session}")
    await tab.page.get_by_label("Show", exact=True).select_option("compressions")
    await tab.until("document.querySelectorAll('.operation').length === 1")
    await tab.page.click(".operation summary")
    await press(tab, "Show what it replaced")
    await wait_for(tab, "They spoke about the harbour of Kiel.")
    await wait_for(tab, f"0: {LONG.strip()}")
    await press(tab, "Undo")
    await wait_for(tab, "return to the context")
    await press(tab, "Undo")
    await wait_for(tab, "undone", ".operation")
    async with office.gateway.client() as client:
        (compression,) = (await client.get(f"/api/sessions/{session}/compressions")).json()["compressions"]
    assert compression["undone_at"] > 0


async def test_an_answer_leads_to_its_exact_context_its_reasons_and_the_difference(
    office: Office, tab: ConsoleTab
) -> None:
    session = await office.say("cat", "my cat is called Momo", "what is my cat called?")
    first, second = await office.list_seqs(session, "thought")
    await go(tab, office, f"session/{session}")
    await tab.replies(2)
    await tab.page.locator("li.agent").last.get_by_role("link", name="Context").click()
    await wait_for(tab, "it matches the recorded digest")
    assert f"at={second}" in tab.page.url
    await wait_for(tab, "what is my cat called?")
    await tab.page.get_by_label("Compare with").select_option(str(first))
    await wait_for(tab, "tokens before,")
    assert "added" in await tab.page.inner_text("main.page table") or "dropped" in await tab.page.inner_text(
        "main.page"
    )
    await go(tab, office, f"inspect/{session}/why?at={second}")
    await wait_for(tab, "Present")
    await wait_for(tab, "http:root")
    await go(tab, office, f"inspect/{session}/entry?at=1")
    await wait_for(tab, "my cat is called Momo")
    await wait_for(tab, "Deliveries")


async def test_a_session_is_exported_and_erased_after_a_plan(office: Office, tab: ConsoleTab) -> None:
    session = await office.say("gone", "the secret word is krokodil")
    await go(tab, office, f"inspect/{session}/manage")
    async with tab.page.expect_download() as started:
        await press(tab, "Export")
    path = Path(await (await started.value).path())
    records = [json.loads(line) for line in (await asyncio.to_thread(path.read_text)).splitlines()]
    assert len(records) == 1 + len(await office.gateway.entries(session))
    await press(tab, "Show what would be erased")
    await press(tab, "Erase this session")
    await wait_for(tab, "This cannot be undone.", ".confirm")
    assert "krokodil" in json.dumps(await office.gateway.entries(session)), "nothing is erased before the confirmation"
    await press(tab, "Erase this session")
    await wait_for(tab, "entries erased")
    assert "krokodil" not in json.dumps(await office.gateway.entries(session))


async def test_a_member_sees_own_sessions_and_nothing_for_operators(office: Office, browser_tab_of: Any) -> None:
    await office.say("root-only", "nobody else may read this")
    own = await office.say("mine", "a note of ada", token=ADA)
    tab = await browser_tab_of(ADA)
    await go(tab, office, "sessions")
    await wait_for(tab, "a note of ada")
    assert len(await tab.texts(".session-row")) == 1
    assert await tab.page.get_by_label("Person").count() == 0
    await go(tab, office, f"inspect/{own}/manage")
    await wait_for(tab, "Rename")
    for name in ("Export", "Show what would be erased"):
        assert await tab.page.get_by_role("button", name=name).count() == 0
    await go(tab, office, f"inspect/{own}/context")
    await wait_for(tab, "What the model would be shown now.")
    assert "You are a test." not in await tab.page.inner_text("main.page")


@pytest_asyncio.fixture(loop_scope="module")
async def browser_tab_of(office: Office) -> AsyncIterator[Any]:
    """Return a function that opens the console with a token."""
    made: list[tuple[Any, ConsoleTab]] = []

    async def open_tab(token: str) -> ConsoleTab:
        context = await office.browser.new_context()
        tab = ConsoleTab(await context.new_page())
        made.append((context, tab))
        await tab.open(office.gateway.url, token)
        return tab

    yield open_tab
    for context, tab in made:
        assert tab.complaints == [], "the browser complained"
        await context.close()


async def test_ten_thousand_sessions_are_a_short_document(office: Office, tab: ConsoleTab) -> None:
    """The server is asked page by page, and only visible rows are in the document."""
    row = {
        "address": "agent:main:http:dm:x", "agent": "main", "title": "", "last_seq": 5, "pending": 0, "state": "idle",
        "archived": False, "compressed_upto": 0, "at": 1.0, "first": "words", "person": "", "outcome": "done",
        "turns": 1, "tokens": 5, "usd": 0.0,
    }  # fmt: skip
    asked: list[str] = []

    async def answer(route: Any) -> None:
        asked.append(route.request.url)
        start = int(asked[-1].partition("before=")[2].partition("&")[0] or 0)
        rows = [{**row, "id": f"{number:026}", "title": f"number {number}"} for number in range(start, start + 100)]
        after = start + 100 if start < 10_000 else None
        await route.fulfill(json={"sessions": rows, "next": after and str(after), "behind": 0})

    await tab.page.route("**/api/sessions?order=active&limit=100**", answer)
    await go(tab, office, "sessions")
    await wait_for(tab, "number 0")
    for target in (99, 199, 299):
        list_ = "document.querySelector('.virtual')"
        await tab.until(f"({list_}.scrollTop = 1e9, {list_}.innerText.includes('number {target}'))")
    assert len(asked) >= 3
    assert await tab.page.evaluate("document.querySelectorAll('*').length") < 3000
    await tab.page.unroute_all(behavior="wait")
