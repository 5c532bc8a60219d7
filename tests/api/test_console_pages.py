"""The pages of the console beside the conversation, in a real browser. One gateway and one browser serve all tests."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from everhold.core.entries import ToolCall
from everhold.testing.model_server import HangingConnection, ModelServer, ModelServerReply
from tests.api.conftest import ADA, BOB, LOCAL, MODEL_KEY, ApiGateway, configuration
from tests.api.test_console import ConsoleTab, browser_only, run_browser
from tests.api.test_overview import add_dead_letters
from tests.waiting import wait_until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), *browser_only]

CONSOLE: Final = Path(__file__).parents[2] / "console" / "src"
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


# -- the pages of operators --------------------------------------------------------------------------------------------

PAGES = re.findall(r'for(?:All|Operators)\("(\w+)", "', (CONSOLE / "pages" / "index.ts").read_text())
OPERATOR_PAGES = re.findall(r'forOperators\("(\w+)"', (CONSOLE / "pages" / "index.ts").read_text())


@pytest.mark.parametrize("width, scheme, locale", [(1320, "light", "en"), (320, "dark", "de")])
async def test_every_page_opens_fits_the_window_and_has_no_accessibility_problem(
    office: Office, node: Path, width: int, scheme: str, locale: str
) -> None:
    await office.say("look", "hello", HOSTILE)
    context = await office.browser.new_context(
        viewport={"width": width, "height": 720}, color_scheme=scheme, locale=locale, bypass_csp=True
    )
    tab = ConsoleTab(await context.new_page())
    await tab.open(office.gateway.url)
    await tab.page.add_script_tag(path=node / "node_modules" / "axe-core" / "axe.min.js")
    assert len(PAGES) >= 17
    problems: list[str] = []
    for page in PAGES:
        await go(tab, office, page)
        await tab.until("document.querySelector('main.page h2')")
        await tab.until(
            "![...document.querySelectorAll('main.page [role=status]')]"
            ".some((it) => /Loading|geladen/.test(it.innerText))"
        )
        if not await tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"):
            problems.append(f"{page} is wider than the window")
        found = await tab.page.evaluate("axe.run().then((it) => it.violations)")
        problems += [f"{page}: {it['id']}: {it['nodes'][0]['html']} {it['nodes'][0]['failureSummary']}" for it in found]
    assert problems == []
    assert tab.complaints == []
    await context.close()


async def test_a_member_has_no_page_of_operators(office: Office, browser_tab_of: Any) -> None:
    tab = await browser_tab_of(ADA)
    await wait_for(tab, "Schedules", "nav.pages")
    links = await tab.page.eval_on_selector_all("nav.pages a", "(links) => links.map((link) => link.hash)")
    assert [name for name in OPERATOR_PAGES if f"#/{name}" in links] == []
    await go(tab, office, "people")
    await wait_for(tab, "Only operators see this page.")


async def test_dead_letters_are_found_from_the_inbox_and_sent_again_by_reason(office: Office, tab: ConsoleTab) -> None:
    session = await office.say("letters", "to be delivered")
    await add_dead_letters(office.gateway, session, ["too long"] * 3 + ["not allowed"] * 2)
    await go(tab, office, "inbox")
    await wait_for(tab, "5 items for")
    await press(tab, "Open", "link")
    await wait_for(tab, "too long")
    row = tab.page.locator("tr", has_text="too long").first
    await row.get_by_role("button", name="Drop").click()
    await wait_for(tab, "3 deliveries are never sent.")
    await row.get_by_role("button", name="Cancel").click()
    await row.get_by_role("button", name="Drop").click()
    await row.get_by_role("button", name="Drop").click()
    await wait_until(lambda: count_letters(office, 2))
    await tab.page.locator("tr", has_text="not allowed").first.get_by_role("button", name="Send again").click()
    await wait_until(lambda: count_letters(office, 0))
    await wait_for(tab, "There are none.")


async def count_letters(office: Office, expected: int) -> bool:
    async with office.gateway.client() as client:
        return len((await client.get("/api/dead-letters")).json()["dead_letters"]) == expected


async def test_a_person_is_named_linked_and_forgotten_after_a_plan(office: Office, tab: ConsoleTab) -> None:
    await office.say("bobs", "bob likes marzipan", token=BOB)
    await go(tab, office, "people")
    await wait_for(tab, "http:bob")
    await tab.page.get_by_label("Identity", exact=True).fill("telegram:77")
    await tab.page.get_by_label("to person").fill("bob")
    await press(tab, "Link an identity")
    await wait_for(tab, "telegram:77")
    await press(tab, "bob", "link")
    await press(tab, "Show what would be forgotten")
    await wait_for(tab, "What stays, and why")
    await wait_for(tab, "This cannot be undone.")
    await press(tab, "Forget this person")
    await wait_for(tab, "The log is erased.")
    async with office.gateway.client() as client:
        hits = (await client.get("/api/entries", params={"q": "marzipan"})).json()["hits"]
    assert hits == []
    await go(tab, office, "people")
    await wait_for(tab, "http:bob", "main.page details")


async def test_a_configuration_is_checked_written_and_restored(office: Office, tab: ConsoleTab) -> None:
    before = office.gateway.home.config.read_text()
    await go(tab, office, "configuration")
    field = tab.page.locator("textarea.code-field")
    await field.wait_for()
    assert await field.input_value() == before
    await field.fill(before + "agentz: {}\n")
    await press(tab, "Check")
    await wait_for(tab, "The text is invalid.")
    await wait_for(tab, "agentz")
    await field.fill(f"# mine\n{before}")
    await press(tab, "Check")
    await wait_for(tab, "+# mine")
    await press(tab, "Write")
    await press(tab, "Write")
    await tab.until("document.querySelectorAll('main.page table tbody tr').length === 1")
    assert office.gateway.home.config.read_text() == f"# mine\n{before}"
    office.gateway.home.config.write_text(before + "# another operator\n")
    await field.fill("# too late\n" + before)
    await press(tab, "Write")
    await press(tab, "Write")
    await tab.page.wait_for_selector("main.page .problem[role=alert]")
    assert "# too late" not in office.gateway.home.config.read_text()
    await tab.page.reload()
    await tab.page.get_by_role("button", name="Restore").first.click()
    await tab.page.get_by_role("button", name="Restore").first.click()
    await tab.until(f"document.querySelector('textarea.code-field')?.value === {json.dumps(before)}")
    assert office.gateway.home.config.read_text() == before
    tab.complaints[:] = [text for text in tab.complaints if "409" not in text]


async def test_the_audit_and_the_log_lines_arrive_live(office: Office, tab: ConsoleTab) -> None:
    await go(tab, office, "audit")
    await tab.until("document.querySelectorAll('.promises .holds').length === 9")
    await go(tab, office, "logs")
    await wait_for(tab, "live")
    await office.say("loud", "make a line")
    await tab.until("document.querySelectorAll('.lines li').length > 0")


async def test_a_gateway_that_dies_and_returns_is_said_and_nothing_is_lost(office: Office, tab: ConsoleTab) -> None:
    session = await office.say("away", "before")
    await go(tab, office, "health")
    await wait_for(tab, "Running since")
    await go(tab, office, f"session/{session}")
    await tab.replies(1)
    office.model.add_steps(HangingConnection())
    await tab.say("during")
    await wait_for(tab, "main is working", ".messages")
    await office.gateway.stop(seconds=0)
    await tab.is_("offline")
    await wait_for(tab, "Not connected since", ".messages")
    assert "is working" not in await tab.page.inner_text(".messages")
    assert await tab.page.get_by_role("button", name="Stop").count() == 0
    await go(tab, office, "health")
    await wait_for(tab, "everhold does not answer.")
    await office.gateway.start()
    await tab.is_("live")
    await wait_for(tab, "Running since")
    await go(tab, office, f"session/{session}")
    assert (await tab.replies(2))[1] == "You said: during"


async def test_messages_during_a_reply_stand_below_it(office: Office, tab: ConsoleTab) -> None:
    session = await office.say("queue", "first")
    await go(tab, office, f"session/{session}")
    await tab.replies(1)
    office.model.add_steps(HangingConnection())
    await tab.say("a long question")
    await wait_for(tab, "main is working", ".messages")
    await tab.say("/queue and then this")
    await wait_for(tab, "read next", ".messages")
    below = await tab.page.evaluate(
        "document.querySelector('.thinking').compareDocumentPosition(document.querySelector('.queued')) & 4"
    )
    assert below, "what the turn has not taken stands below it"
    await press(tab, "Stop")
    await wait_for(tab, "You said: and then this", ".messages")


async def test_a_file_is_attached_and_a_tool_call_is_a_card(office: Office, tab: ConsoleTab) -> None:
    session = await office.say("files", "hello")
    await go(tab, office, f"session/{session}")
    await tab.replies(1)
    await tab.page.set_input_files(
        ".attach input", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"the code is 4711"}
    )
    await wait_for(tab, "notes.txt", ".composer")
    office.model.add_steps(
        ModelServerReply(
            calls=(ToolCall(id="c1", tool="memory", arguments={"action": "add", "text": "the code is 4711"}),)
        ),
        ModelServerReply(text="kept"),
    )
    await tab.say("keep this")
    assert (await tab.replies(2))[1] == "kept"
    await wait_for(tab, "notes.txt", ".messages li.person .files")
    card = tab.page.locator("details.card")
    await card.locator("summary").click()
    shown = await card.inner_text()
    assert "memory" in shown
    assert "4711" in shown
    assert "Result" in shown
