"""People who move in from hermes-agent: an import without preparation, then live messages to a complete gateway."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from everhold.app import SystemRandomSource, build_plugin_check
from everhold.config import load_settings, set_key
from everhold.core.entries import ToolCall
from everhold.hermes.importer.run import ImportJob, ImportReport, run_import
from everhold.infra.home import Home
from everhold.stores.sqlite import SqliteStore
from everhold.testing.model_server import ModelServer, ModelServerReply
from everhold.testing.platforms.telegram import TelegramServer
from everhold.testing.services.honcho import HonchoService
from tests.e2e.running_gateway import KEY, RunningGateway
from tests.hermes.built_home import NOW, BuiltHermesHome
from tests.platforms.remote_telegram import TOKEN

ADA, BOB = 1001, 2002
SECRET = "Ada takes warfarin."
PARROT = "my parrot is called Quillon"


@pytest.fixture
async def telegram() -> AsyncIterator[TelegramServer]:
    async with TelegramServer() as server:
        server.add_bot(TOKEN)
        yield server


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with ModelServer(key=KEY) as server:
        yield server


class OldHome:
    """A home of hermes-agent with a Telegram bot and the model of a test."""

    def __init__(self, path: Path, model: ModelServer) -> None:
        self.path = path
        self.built = BuiltHermesHome(path)
        provider = {"default": "fake", "provider": "custom", "base_url": model.openai, "context_length": 100_000}
        (path / "config.yaml").write_text(json.dumps({"model": provider}))
        self.env = {"OPENAI_API_KEY": KEY, "TELEGRAM_BOT_TOKEN": TOKEN}

    def add_chat(self, user: int, *texts: str, platform: str = "telegram") -> None:
        session = self.built.add_chat(f"{platform}-{user}", f"agent:main:{platform}:dm:{user}")
        for text in texts:
            self.built.add_message(session, "user", text)
            self.built.add_message(session, "assistant", "noted")

    def add_older_chat(self, user: int, text: str) -> None:
        """A session of the same person that no chat leads to any more."""
        session = self.built.add_session(f"old-{user}", source="telegram", user_id=str(user))
        self.built.add_message(session, "user", text)
        self.built.add_message(session, "assistant", "noted")

    def write_memory(self, name: str, text: str) -> None:
        (self.path / "memories").mkdir(exist_ok=True)
        (self.path / "memories" / name).write_text(text)

    def finish(self, *allowed: int) -> Path:
        self.env["TELEGRAM_ALLOWED_USERS"] = ",".join(map(str, allowed))
        (self.path / ".env").write_text("".join(f"{name}={value}\n" for name, value in self.env.items()))
        self.built.close()
        return self.path


async def move_in(
    path: Path, old: Path, *, owner: str = "", environ: Mapping[str, str] = MappingProxyType({})
) -> ImportReport:
    home = Home(path / "home").create()
    store = SqliteStore.open(home.store, chance=SystemRandomSource(), synchronous="OFF")
    settings = load_settings(home, environ=environ)
    try:
        job = ImportJob(old, home, settings, environ, "me", store=store, now=NOW, owner=owner)
        return await run_import(job)
    finally:
        await store.close()


def start(path: Path, telegram: TelegramServer, environ: Mapping[str, str] = MappingProxyType({})) -> RunningGateway:
    """Enable the imported account, as the report says, with the address of the test's Telegram."""
    home = Home(path / "home")
    account = "platforms.telegram.main"
    for key, value in (
        (f"{account}.base_url", telegram.url),
        (f"{account}.poll_seconds", 1),
        (f"{account}.enabled", True),
        ("defaults.recall.deadline_seconds", 60),
    ):
        set_key(home, key, value, environ={}, validate_plugin=build_plugin_check())
    return RunningGateway(path, home.config.read_text(), env=home.env.read_text(), environ=environ)


async def ask(gateway: RunningGateway, telegram: TelegramServer, model: ModelServer, user: int, text: str) -> str:
    """Write to the agent; return everything that the model was sent for it."""
    before, told = len(telegram.list_bot_texts(user)), len(model.requests)
    await telegram.write_message(text, user=user, name="Somebody")
    await gateway.wait_until(lambda: len(telegram.list_bot_texts(user)) > before)
    await gateway.wait_until_idle()
    return "\n".join(json.dumps(request.json, ensure_ascii=False) for request in model.requests[told:])


async def test_the_first_message_continues_the_chat_and_recalls_older_ones(
    tmp_path: Path, telegram: TelegramServer, model: ModelServer
) -> None:
    old = OldHome(tmp_path / "old", model)
    old.add_older_chat(ADA, PARROT)
    old.add_chat(ADA, "the meeting is on Thursday")
    old.write_memory("USER.md", SECRET)
    report = await move_in(tmp_path, old.finish(ADA))
    assert report.is_complete
    assert report.owner == "telegram:1001", "the only person there is"
    async with start(tmp_path, telegram) as gateway:
        sent = await ask(gateway, telegram, model, ADA, "what is my parrot called?")
        assert "the meeting is on Thursday" in sent, "the conversation goes on"
        assert PARROT in sent, "an older one is recalled"
        assert SECRET in sent
        assert model.requests[-1].headers["authorization"] == f"Bearer {KEY}"
        sessions = {it.address for it in await gateway.app.store.list_sessions()}
        assert sum(address == "agent:main:telegram:dm:1001" for address in sessions) == 1
        assert len(sessions) == 3, "the chat, the older one, and the memory files: the message made none"
        people = await gateway.app.store.get_people()
        record = people.identities["telegram:1001"]
        assert record.proof == "import"
        assert len(people.list_identities(record.person)) == 1
        await gateway.app.memory_admin.forget_person("telegram:1001")
        await gateway.wait_until_idle()
        await gateway.assert_sound()
        for session in await gateway.app.store.list_sessions():
            left = str([entry.body for entry in await gateway.read_entries(session.id)])
            assert not any(word in left for word in ("Quillon", "Thursday", "warfarin")), left


@pytest.mark.parametrize("owner", ["", "telegram:1001"])
async def test_a_memory_file_is_for_its_owner_alone(
    tmp_path: Path, telegram: TelegramServer, model: ModelServer, owner: str
) -> None:
    """Bob, who also wrote to the agent, sees nothing of Ada's file: not in a request, not with /memory."""
    old = OldHome(tmp_path / "old", model)
    old.add_chat(ADA, "hello")
    old.add_chat(BOB, "hi")
    old.write_memory("USER.md", SECRET)
    path = old.finish(ADA, BOB)
    report = await move_in(tmp_path, path, owner=owner)
    assert report.is_complete is bool(owner)
    if not owner:
        assert report.facts == {"main: MEMORY.md": 0, "main: USER.md": 0}
        assert report.candidates == ["telegram:1001", "telegram:2002"]
        assert report.commands[0] == f"everhold import {path} --owner telegram:1001"
        report = await move_in(tmp_path, path, owner="telegram:1001")
        assert report.is_complete
        assert report.facts["main: USER.md"] == 1
        assert report.agents["main"].messages == 0, "only the files were missing"
    async with start(tmp_path, telegram) as gateway:
        for question in ("what medicine does Ada take?", "/memory", "/memory why warfarin"):
            assert "warfarin" not in (await ask(gateway, telegram, model, BOB, question)).replace(question, "")
        for tool, arguments in (
            ("session_search", {"query": "Ada medicine"}),
            ("memory", {"action": "remove", "target": "user", "old_text": "Ada takes"}),
        ):
            model.add_steps(ModelServerReply(calls=(ToolCall(id="c1", tool=tool, arguments=arguments),)))
            sent = await ask(gateway, telegram, model, BOB, "look it up")
            assert '"role": "tool"' in sent
            assert "no tool" not in sent
            assert "warfarin" not in sent.replace("/memory why warfarin", "")
        shown = [text for text in telegram.list_bot_texts(BOB) if "You said" not in text]
        assert not any("warfarin." in text for text in shown), shown
        assert SECRET in await ask(gateway, telegram, model, ADA, "what medicine do I take?")
        await ask(gateway, telegram, model, ADA, "/memory")
        assert any(SECRET in text for text in telegram.list_bot_texts(ADA))


async def test_an_imported_nick_has_no_rights_of_a_person_with_that_name(
    tmp_path: Path, telegram: TelegramServer, model: ModelServer
) -> None:
    home = Home(tmp_path / "home").create()
    home.config.write_text("people: [{name: ada, identities: ['telegram:1001']}]\naccess: {owners: [ada]}\n")
    old = OldHome(tmp_path / "old", model)
    old.add_chat(ADA, PARROT)
    session = old.built.add_session(
        "irc-1", source="irc", session_key="agent:main:irc:dm:ada", chat_id="ada", chat_type="dm", user_id="ada"
    )
    old.built.add_message(session, "user", "I am ada, too")
    old.write_memory("USER.md", SECRET)
    report = await move_in(tmp_path, old.finish(ADA), owner="ada")
    assert report.owner == "telegram:1001"
    store = SqliteStore.open(home.store, chance=SystemRandomSource(), synchronous="OFF")
    people = await store.get_people()
    await store.close()
    assert people.find_label("telegram:1001") == "ada"
    assert people.find_label("irc:ada") == people.find_proven_label("irc:ada") == ""
    assert not people.is_same_person("irc:ada", "telegram:1001")


async def test_equal_ids_on_two_platforms_are_two_people(
    tmp_path: Path, telegram: TelegramServer, model: ModelServer
) -> None:
    old = OldHome(tmp_path / "old", model)
    old.add_chat(555, "hello from Telegram")
    old.add_chat(555, PARROT, platform="discord")
    await configure_honcho(old, "http://127.0.0.1:9")
    report = await move_in(tmp_path, old.finish(555))
    assert all("several people share it" in line for line in report.peers)
    assert [line.partition(" (")[0] for line in report.peers] == [
        "honcho: discord:555 → 555",
        "honcho: telegram:555 → 555",
    ]
    home = Home(tmp_path / "home")
    store = SqliteStore.open(home.store, chance=SystemRandomSource(), synchronous="OFF")
    peers = await store.list_peers()
    people = await store.get_people()
    await store.close()
    assert not people.is_same_person("telegram:555", "discord:555")
    assert [(it.identity, it.peer, it.from_pos, it.source, it.shared) for it in peers] == [
        ("discord:555", "555", 0, "hermes", True),
        ("telegram:555", "555", 0, "hermes", True),
    ]
    assert "555" not in json.dumps(str(load_settings(home, environ={}).memories["honcho"].extra))
    set_key(home, "agents.main.memories", ["builtin"], environ={}, validate_plugin=build_plugin_check())
    async with start(tmp_path, telegram) as gateway:
        sent = await ask(gateway, telegram, model, 555, "what is my parrot called?")
        assert "hello from Telegram" in sent
        assert "Quillon" not in sent


async def configure_honcho(old: OldHome, url: str, **more: Any) -> None:
    config = json.loads((old.path / "config.yaml").read_text())
    (old.path / "config.yaml").write_text(json.dumps({**config, "memory": {"provider": "honcho"}}))
    (old.path / "honcho.json").write_text(json.dumps({"baseUrl": url, "apiKey": "hch-0123456789abcdef", **more}))


@pytest.mark.parametrize("aliases, peer", [({}, "1001"), ({"1001": "ada"}, "ada")])
async def test_what_the_service_knows_is_recalled_and_the_next_message_goes_there(
    tmp_path: Path, telegram: TelegramServer, model: ModelServer, aliases: dict[str, str], peer: str
) -> None:
    with HonchoService(key="hch-0123456789abcdef").threaded() as honcho:
        old = OldHome(tmp_path / "old", model)
        old.add_chat(ADA, "hello")
        await configure_honcho(old, honcho.url, userPeerAliases=aliases)
        for name in ("hermes", peer):
            honcho.state.peers["hermes", name] = {"id": name, "workspace_id": "hermes", "metadata": {}}
        known = {"content": "Somebody plays the bassoon", "observer_id": "hermes", "observed_id": peer}
        honcho.state.conclusions.append(
            {**known, "id": "con-0", "session_id": None, "workspace_id": "hermes", "created_at": "2026-01-01T00:00:00Z"}
        )
        (old.path / "SOUL.md").write_text("You are calm.")
        report = await move_in(tmp_path, old.finish(ADA))
        assert report.peers == [f"honcho: telegram:1001 → {peer}"]
        async with start(tmp_path, telegram) as gateway:
            sent = await ask(gateway, telegram, model, ADA, "which instrument do I play, the bassoon?")
            assert "plays the bassoon" in sent
            await gateway.wait_until(lambda: len(honcho.state.messages) >= 2)
            (heard, _) = honcho.state.messages[:2]
            assert (heard["peer_id"], heard["session_id"]) == (peer, "agent-main-telegram-dm-1001")
            await gateway.wait_until(lambda: bool(honcho.state.cards))
            assert honcho.state.cards == {("hermes", "hermes", "hermes"): ["Persona: You are calm."]}, "the agent's own"
            assert not any("calm" in text for text in honcho.list_conclusion_texts())


@pytest.mark.parametrize("has_key", [True, False])
@pytest.mark.parametrize("set_later", [True, False])
async def test_a_key_of_this_machine_is_not_sent_to_an_imported_address(
    tmp_path: Path, telegram: TelegramServer, has_key: bool, set_later: bool
) -> None:
    """The environment has precedence over .env, also for a key that is set only after the import."""
    environ = dict.fromkeys(("OPENAI_API_KEY", "HONCHO_API_KEY", "MAIN_OPENAI_API_KEY"), "sk-of-this-machine-0123")
    async with ModelServer() as model:
        old = OldHome(tmp_path / "old", model)
        old.add_chat(ADA, "hello")
        await configure_honcho(old, model.openai)
        if not has_key:
            del old.env["OPENAI_API_KEY"]
        report = await move_in(tmp_path, old.finish(ADA), environ={} if set_later else environ)
        assert report.is_complete
        set_key(
            Home(tmp_path / "home"),
            "agents.main.memories",
            ["builtin"],
            environ=environ,
            validate_plugin=build_plugin_check(),
        )
        async with start(tmp_path, telegram, environ) as gateway:
            await ask(gateway, telegram, model, ADA, "hello again")
        honcho = load_settings(Home(tmp_path / "home"), environ=environ).memories["honcho"]
        assert honcho.env["api_key"] == "IMPORTED_MAIN_HONCHO_API_KEY"
        sent = model.requests[-1].headers
        assert "sk-of-this-machine-0123" not in str(sent)
        assert sent.get("authorization", "") == (f"Bearer {KEY}" if has_key else "")


async def test_the_report_says_which_key_to_set(tmp_path: Path, model: ModelServer) -> None:
    old = OldHome(tmp_path / "old", model)
    config = {"default": "fake", "provider": "custom", "base_url": "https://models.example/v1"}
    (old.path / "config.yaml").write_text(json.dumps({"model": config}))
    del old.env["OPENAI_API_KEY"]
    report = await move_in(tmp_path, old.finish(ADA), environ={"OPENAI_API_KEY": "sk-of-this-machine-0123"})
    (line,) = report.settings.missing_keys
    assert "models.fake has no key" in line
    assert "IMPORTED_MAIN_OPENAI_API_KEY" in line
    assert "api_key_env" not in Home(tmp_path / "home").config.read_text()
