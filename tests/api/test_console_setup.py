"""The first run in the browser: from a home without a configuration to a model, a bot and a first answer."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from everhold.testing.model_server import ModelServer
from everhold.testing.platforms.telegram import TelegramServer
from tests.api.conftest import MODEL_KEY, ApiGateway
from tests.api.test_console import ConsoleTab, browser_only, run_browser
from tests.platforms.remote_telegram import TOKEN
from tests.waiting import wait_until

pytestmark = browser_only


LINK_MODULES: Final = "206b94556ec3bd1860f28ce06df64c248185d2b4539078ce5b29d02bc0ed712d"


async def wait_for(tab: ConsoleTab, text: str) -> None:
    await tab.until(f"document.querySelector('main').innerText.includes({text!r})")


async def test_a_newcomer_sets_up_a_model_and_a_bot_without_editing_a_file(tmp_path: Path, model: ModelServer) -> None:
    model.models = ("clever",)
    gateway = ApiGateway(tmp_path, model)
    async with TelegramServer() as telegram, run_browser() as browser:
        telegram.add_bot(TOKEN, username="my_bot")
        # only the address of the fake service is there before
        account = f"{{base_url: '{telegram.url}', token_env: TELEGRAM_MAIN_TOKEN}}"
        gateway.configure(f"http: {{port: 0}}\nplatforms: {{telegram: {{main: {account}}}}}\n")
        await gateway.start()
        tab = ConsoleTab(await browser.new_page())
        await tab.open(gateway.url)
        await tab.page.get_by_role("link", name="Set up a language model").click()
        await wait_for(tab, "small built-in program")
        await tab.page.get_by_label("Address").fill(model.openai)
        await tab.page.get_by_label("Name there").fill("clever")
        await tab.page.get_by_label("Key").fill("sk-wrong")
        await tab.page.get_by_role("button", name="Test and use").click()
        await wait_for(tab, "Incorrect API key")
        await wait_for(tab, "put a valid key")
        await tab.page.get_by_label("Key").fill(MODEL_KEY)
        await tab.page.get_by_label("Name there").fill("stupid")
        await tab.page.get_by_role("button", name="Test and use").click()
        await wait_for(tab, "does not exist")
        await tab.page.get_by_label("Name there").fill("clever")
        await tab.page.get_by_role("button", name="Test and use").click()
        await wait_for(tab, "The agents use it from the next message on.")
        await tab.page.get_by_label("The token that @BotFather gave you for the bot").fill(TOKEN)
        await tab.page.get_by_role("button", name="Test and connect").click()
        await wait_for(tab, "Connected to telegram as @my_bot.")
        await tab.page.get_by_role("button", name="Make an invitation").click()
        link = await tab.page.locator(".invitation a").inner_text()
        assert await tab.page.locator("svg.qr path").count() == 1
        await check_qr_code(tab)
        await telegram.write_message(f"/start {link.partition('?start=')[2]}", user=77, chat=77)
        await wait_until(lambda: telegram.list_bot_texts(77))
        assert "You have access now" in telegram.list_bot_texts(77)[0]
        await tab.page.get_by_role("link", name="Open the conversation").click()
        await tab.say("good morning")
        assert await tab.replies(1) == ["You said: good morning"]
        assert len(model.requests) >= 4
        assert MODEL_KEY not in gateway.home.config.read_text()
        assert tab.complaints == []
        await gateway.stop()


async def check_qr_code(tab: ConsoleTab) -> None:
    """Another encoder made the same modules of a link that fills its version."""
    link = f"https://t.me/{'a' * 32}?start={'B' * 32}"
    answer = {"link": link, "name": "@my_bot", "until": 1.0}
    await tab.page.route("**/api/invitations", lambda route: route.fulfill(json=answer))
    await tab.page.get_by_role("button", name="Make an invitation").click()
    await tab.until(f"document.querySelector('.invitation a')?.innerText === '{link}'")
    drawn = await tab.page.locator("svg.qr path").get_attribute("d")
    assert hashlib.sha256(drawn.encode()).hexdigest() == LINK_MODULES
