"""What one person said to a plug-in is shown to nobody else, whatever the plug-in does with its users."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec import structs

from everhold.core.entries import Stamp
from everhold.errors import Refused
from everhold.hermes.memory import homes, isolation
from everhold.hermes.memory.canary import run_canary
from everhold.hermes.memory.identity import build_identity, build_person_key, choose_home_key
from everhold.hermes.memory.provider import HermesMemory
from everhold.ports.memory import ErasureState, ErasureTarget, MemoryCapability
from everhold.ports.tool import ToolContext
from tests.waiting import wait_until

from .harness import DIARY, HermesPluginHarness, make_batch, make_exchange, make_query

ADA = Stamp(person="ada", audience=("person:ada",), address="agent:main:telegram:dm:1")
BOB = Stamp(person="bob", audience=("person:bob",), address="agent:main:telegram:dm:2")
CAROL = Stamp(person="carol", audience=("person:carol",), address="agent:main:telegram:dm:3")
GROUP = Stamp(person="bob", audience=("chat:agent:main:telegram:group:g",), address="agent:main:telegram:group:g")

NOTEBOOK = (
    DIARY
    + """
from agent.memory_provider import MemoryProvider
def find_file(): return get_hermes_home() / "kept.txt"
class Notebook(MemoryProvider):
    name = "notebook"
    def initialize(self, session_id, **kwargs): write("initialize", session_id, kwargs)
    def sync_turn(self, user_content, assistant_content, **kwargs):
        write("sync_turn", user_content)
        with open(find_file(), "a") as file: file.write(user_content + "\\n")
    def read(self): return find_file().read_text() if find_file().exists() else ""
    def get_tool_schemas(self):
        return [{"name": "notebook_search", "parameters": {"properties": {"query": {}}, "required": ["query"]}},
                {"name": "notebook_clear", "parameters": {"properties": {}}}]
    def handle_tool_call(self, tool_name, args, **kwargs):
        write("tool", tool_name)
        return json.dumps({"results": self.read()})
    def prefetch(self, query, **kwargs): return self.read()
    def system_prompt_block(self): return "Notebook. It contains: " + self.read()
"""
)
"""Knows no users: everything in its home is for everybody who uses this home."""
LEAKING = NOTEBOOK.replace('get_hermes_home() / "kept.txt"', '__import__("pathlib").Path(os.environ["KEPT"])')
"""Keeps everything outside its home."""


def stamp_of(who: str) -> Stamp:
    return {"ada": ADA, "bob": BOB, "carol": CAROL, "group": GROUP}[who]


async def tell(plugin: HermesMemory, stamp: Stamp, text: str, *, key: str = "k") -> None:
    item = make_exchange(text, stamp=stamp, session=stamp.address, key=key)
    author = structs.replace(item.heard[0], author=f"person:{stamp.person}")
    await plugin.store(make_batch(structs.replace(item, heard=(author,)), name=stamp.address.replace(":", "-")))


async def look(plugin: HermesMemory, stamp: Stamp) -> str:
    """Return everything that a plug-in shows to a person: recall, every tool, the prompt block."""
    name = stamp.address.replace(":", "-")
    found = [it.text for it in await plugin.find(make_query("what do you know?", stamp=stamp, name=name))]
    found += [it.text for it in await plugin.find(structs.replace(make_query("", stamp=stamp, name=""), stamp=Stamp()))]
    context = ToolContext(session=stamp.address, agent="main", op=1, key="k", stamp=stamp)
    for tool in plugin.tools():
        if "search" in tool.spec.name:
            found.append((await tool.run({"query": "what do you know?"}, context)).text)
    return "\n".join((*found, plugin.prompt()))


async def assert_kept_apart(plugin: HermesMemory, people: Sequence[Stamp]) -> None:
    """Let everybody tell something, and check that everybody sees only their own words."""
    words = {choose_word(it): it for it in people}
    for word, stamp in words.items():
        await tell(plugin, stamp, f"the pin of mine is {word}", key=word)
    for word, stamp in words.items():
        shown = await look(plugin, stamp)
        assert word in shown, f"{stamp.person} sees their own words"
        for other in words.keys() - {word}:
            assert other not in shown, f"{stamp.person} sees what {words[other].person} said"


def read_all(path: Path) -> str:
    return "".join(it.read_text(errors="replace") for it in path.rglob("*") if it.is_file() and it.suffix != ".py")


def choose_word(stamp: Stamp) -> str:
    return f"pin{abs(hash(stamp.address)) % 10**8}"


async def test_the_home_of_an_identity_that_changed_hands_is_not_removed(tmp_path: Path) -> None:
    """Its former owner spoke there, too. The report names it."""
    async with HermesPluginHarness(tmp_path, NOTEBOOK).open(None, hermes_home="") as plugin:
        await tell(plugin, BOB, "the pin of mine is 4711")
        target = ErasureTarget(identities=("bob",), reused_identities=frozenset({"bob"}))
        states = {it.what: it.state for it in await plugin.forget(target)}
        assert states["the plug-in's home homes/bob"] is ErasureState.CANNOT
        assert "4711" in read_all(tmp_path)
        await plugin.forget(ErasureTarget(identities=("bob",)))
        assert not (tmp_path / "data" / "homes" / "bob").exists()


# -- homes -------------------------------------------------------------------------------------------------------------


async def test_people_and_rooms_have_homes_of_their_own(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, NOTEBOOK)
    async with harness.open() as plugin:
        await plugin.store(make_batch(make_exchange("hello")))  # so that its tools are known
    async with harness.open() as plugin:
        await assert_kept_apart(plugin, (ADA, BOB, CAROL, GROUP))
    assert (harness.home / "kept.txt").exists(), "the configured home is the owner's"
    assert sorted(it.name for it in (tmp_path / "data" / "homes").iterdir()) == ["bob", "carol", choose_home_key(GROUP)]


async def test_a_shared_home_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: one home for everybody."""
    monkeypatch.setattr(homes, "choose_home_key", lambda stamp: "shared")
    async with HermesPluginHarness(tmp_path, NOTEBOOK).open(None, hermes_home="") as plugin:
        with pytest.raises(AssertionError, match="sees what"):
            await assert_kept_apart(plugin, (ADA, BOB))


def test_a_home_key_is_a_safe_and_unique_directory_name() -> None:
    people = [
        "ada",
        "Ada",
        "ADA",
        "telegram:1001",
        "telegram/1001",
        "telegram-1001",
        "..",
        ".",
        "",
        "room-x",
        "a" * 300,
    ]
    people += ["ä", "matrix:@ada:example.org", "con:", f"room-{'0' * 16}"]
    keys = [build_person_key(it) for it in people if it] + [choose_home_key(GROUP), choose_home_key(Stamp())]
    assert len({key.lower() for key in keys}) == len(keys)
    assert all(set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") and 0 < len(key) < 64 for key in keys)
    assert choose_home_key(ADA) == choose_home_key(structs.replace(ADA, person="bob")), "the audience decides"
    two = structs.replace(ADA, audience=("person:ada", "person:bob"))
    assert choose_home_key(two).startswith("room-")


async def test_other_people_get_the_settings_and_none_of_the_data(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, NOTEBOOK, name="notebook")
    (harness.home / "notebook").mkdir(parents=True)
    (harness.home / "memories").mkdir()
    for file in ("config.yaml", "notebook.json", "notebook/config.json", ".env"):
        (harness.home / file).write_text("{}")
    for file in ("state.db", "kept.txt", "memories/USER.md", "auth.json", "SOUL.md"):
        (harness.home / file).write_text("the owner's")
    async with harness.open() as plugin:
        await tell(plugin, BOB, "hello")
        there = harness.find_home(BOB)
        found = {str(it.relative_to(there)) for it in there.rglob("*") if it.is_file()}
        assert found == {"config.yaml", "notebook.json", "notebook/config.json", ".env", "kept.txt", "diary.jsonl"}
        assert (there / "kept.txt").read_text() == "hello\n"
        before = plugin.cache_busting_signature()
        (harness.home / "notebook.json").write_text('{"changed": true}')
        await wait_until(lambda: plugin.cache_busting_signature() != before)
    (harness.home / "config.yaml").unlink()
    async with harness.open() as plugin:
        await tell(plugin, BOB, "hello again")
    assert (there / "notebook.json").read_text() == '{"changed": true}'
    assert not (there / "config.yaml").exists()


async def test_a_file_of_settings_with_data_is_not_copied(tmp_path: Path) -> None:
    """It has a name of settings, but the plug-in writes to it."""
    source = NOTEBOOK.replace('"kept.txt"', '"notebook.json"')
    harness = HermesPluginHarness(tmp_path, source, name="notebook")
    async with harness.open(serves="checked") as plugin:
        await tell(plugin, ADA, "my pin is 4711")
        await tell(plugin, BOB, "hello")
        assert "4711" not in await look(plugin, BOB)
        assert "4711" not in plugin.prompt()
    assert (harness.home / "notebook.json").read_text() == "my pin is 4711\n"
    assert (harness.find_home(BOB) / "notebook.json").read_text() == "hello\n"


async def test_without_an_owner_the_first_person_at_the_terminal_has_the_configured_home(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, NOTEBOOK)
    terminal = structs.replace(CAROL, address="agent:main:terminal:dm:carol")
    async with harness.open(None) as plugin:
        await tell(plugin, BOB, "from afar")
        assert not (harness.home / "kept.txt").exists()
        await tell(plugin, terminal, "from here")
    async with harness.open(None) as plugin:
        await tell(plugin, structs.replace(ADA, address="agent:main:terminal:dm:ada"), "another one")
        await tell(plugin, CAROL, "from my phone", key="2")
    assert (harness.home / "kept.txt").read_text() == "from here\nfrom my phone\n"


# -- session keys ------------------------------------------------------------------------------------------------------


def test_every_conversation_outside_a_terminal_has_its_own_session_key() -> None:
    http = structs.replace(ADA, address="agent:main:http:dm:one")
    found = build_identity(http, agent="main")
    assert (found["gateway_session_key"], found["platform"], found["chat_id"]) == (http.address, "http", "one")
    assert build_identity(structs.replace(ADA, address=""), agent="main", name="n")["gateway_session_key"] == "n"


def test_at_a_terminal_only_the_owner_s_plugin_names_its_sessions_itself() -> None:
    terminal = structs.replace(ADA, person="local:ada", address="agent:main:terminal:dm:ada", title="Plans")
    own = build_identity(terminal, agent="main", names_itself=True)
    assert "gateway_session_key" not in own
    assert "platform" not in own, "hermes-agent calls it cli"
    assert build_identity(terminal, agent="main")["gateway_session_key"] == terminal.address
    assert "gateway_session_key" in build_identity(ADA, agent="main", names_itself=True), "elsewhere always"


async def test_two_people_at_a_terminal_do_not_share_a_session(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, NOTEBOOK)
    hers = structs.replace(ADA, address="agent:main:terminal:dm:one", title="Plans")
    his = structs.replace(BOB, address="agent:main:terminal:dm:two", title="Plans")
    async with harness.open() as plugin:
        await tell(plugin, hers, "hello")
        await tell(plugin, his, "hello")
    ((_, _, first),) = harness.read_calls("initialize")
    ((_, _, second),) = harness.read_calls("initialize", home=harness.find_home(his))
    assert "gateway_session_key" not in first
    assert second["gateway_session_key"] == his.address


# -- the prompt block --------------------------------------------------------------------------------------------------


async def test_the_prompt_block_is_asked_in_an_empty_home(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, NOTEBOOK)
    async with harness.open(serves="checked") as plugin:
        await tell(plugin, ADA, "my pin is 4711")
        await wait_until(lambda: "prompt" in plugin._description)
    async with harness.open(serves="checked") as plugin:
        assert MemoryCapability.PROMPT in plugin.capabilities
        assert plugin.prompt() == "Notebook. It contains: "
    assert "test word" not in read_all(tmp_path), "nothing remains of the tests"


# -- the canary --------------------------------------------------------------------------------------------------------


async def test_a_plugin_that_keeps_people_apart_serves_them_after_a_test(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, NOTEBOOK)
    async with harness.open(serves="checked") as plugin:
        await assert_kept_apart(plugin, (ADA, BOB, GROUP))
        health = await plugin.health()
        assert health.healthy, health.text
    assert "test word" not in read_all(tmp_path), "nothing of the canary remains in anybody's memory"


async def test_a_leaking_plugin_serves_only_the_owner_and_says_so(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, LEAKING)
    settings = {"serves": "checked", "sandbox": "none", "environ": {"KEPT": str(tmp_path / "everybody.txt")}}
    async with harness.open(**settings) as plugin:
        await tell(plugin, ADA, "my pin is 4711")
        with pytest.raises(Refused, match="serves only the owner, because in a test it showed"):
            await tell(plugin, BOB, "hello")
        await wait_until(lambda: "prompt" in plugin._description)
    async with harness.open(**settings) as plugin:
        assert "4711" in await look(plugin, ADA)
        for stamp in (BOB, GROUP):
            assert await plugin.find(make_query("what do you know?", stamp=stamp)) == []
            assert "4711" not in await look(plugin, stamp)
        assert plugin.prompt() == "", "the prompt block is shown to everybody"
        health = await plugin.health()
        assert not health.healthy
        assert "serves only the owner" in health.text
        assert "recall" in health.text
        assert "tool notebook_search" in health.text
    assert harness.read_calls("sync_turn", home=harness.find_home(BOB)) == []
    assert "hello" not in (tmp_path / "everybody.txt").read_text()


async def test_a_leak_by_the_prompt_block_alone_is_found(tmp_path: Path) -> None:
    kept = '__import__("pathlib").Path(os.environ["KEPT"])'
    source = NOTEBOOK.replace(
        'return "Notebook. It contains: " + self.read()', f"return {kept}.read_text() if {kept}.exists() else ''"
    ).replace('write("sync_turn", user_content)', f"open({kept}, 'a').write(user_content)")
    harness = HermesPluginHarness(tmp_path, source)
    environ = {"KEPT": str(tmp_path / "everybody.txt")}
    async with harness.open(serves="checked", sandbox="none", environ=environ) as plugin:
        with pytest.raises(Refused, match=r"\(prompt block\)"):
            await tell(plugin, BOB, "hello")


async def test_the_first_person_is_served_without_a_test_and_the_second_is_not(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, LEAKING.replace("def system_prompt_block", "def other"))
    environ = {"KEPT": str(tmp_path / "everybody.txt")}
    settings = {"serves": "checked", "hermes_home": "", "sandbox": "none", "environ": environ}
    async with harness.open(None, **settings) as plugin:
        await tell(plugin, ADA, "my pin is 4711")
        assert not (tmp_path / "data" / "isolation.json").exists()
        with pytest.raises(Refused, match="serves only the owner"):
            await tell(plugin, BOB, "hello")
        assert "4711" not in await look(plugin, BOB)


async def test_the_result_survives_a_restart_until_code_or_settings_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = HermesPluginHarness(tmp_path, NOTEBOOK, name="notebook")
    runs: list[int] = []

    async def count(*args: object, **kwargs: object) -> object:
        runs.append(1)
        return await run_canary(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(isolation, "run_canary", count)

    async def serve(**settings: object) -> int:
        runs.clear()
        async with harness.open(serves="checked", **settings) as plugin:
            await tell(plugin, BOB, "hello")
            await tell(plugin, CAROL, "hello")
        return len(runs)

    assert await serve() == 1
    assert await serve() == 0
    (harness.plugin / "__init__.py").write_text(NOTEBOOK + "# another version\n")
    assert await serve() == 1
    assert await serve(environ={"KEPT": "elsewhere"}) == 1
    harness.home.mkdir()
    (harness.home / "notebook.json").write_text("{}")
    assert await serve(environ={"KEPT": "elsewhere"}) == 1
    assert await serve(environ={"KEPT": "elsewhere"}) == 0


async def test_a_plugin_that_shows_nothing_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everhold.hermes.memory.canary.PATIENCE_SECONDS", 0.0)
    silent = NOTEBOOK.replace("def read(self): return ", "def read(self): return '' and ")
    harness = HermesPluginHarness(tmp_path, silent)
    async with harness.open(serves="checked") as plugin:
        with pytest.raises(Refused, match="unknown whether it keeps people apart") as raised:
            await tell(plugin, BOB, "hello")
        assert "serves: everybody" in raised.value.remedy
        assert "unknown whether it keeps people apart" in (await plugin.health()).text
        await tell(plugin, ADA, "the owner is served all the same")
    async with harness.open(serves="checked") as plugin:
        await tell(plugin, ADA, "nobody else is there")
        assert (await plugin.health()).healthy, "so there is no problem"
    async with harness.open(serves="everybody") as plugin:
        await tell(plugin, BOB, "hello")
    async with harness.open(serves="owner") as plugin:
        with pytest.raises(Refused, match="as its setting `serves` says"):
            await tell(plugin, BOB, "hello")


async def test_the_test_calls_no_tool_that_may_write(tmp_path: Path) -> None:
    shared = tmp_path / "calls.txt"
    source = NOTEBOOK.replace('write("tool", tool_name)', f"open({str(shared)!r}, 'a').write(tool_name + ' ')")
    async with HermesPluginHarness(tmp_path, source).open(serves="checked", sandbox="none") as plugin:
        await tell(plugin, BOB, "hello")
    assert set(shared.read_text().split()) == {"notebook_search"}


# -- forgetting --------------------------------------------------------------------------------------------------------


async def test_forgetting_removes_the_homes_in_which_nobody_else_spoke(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, NOTEBOOK)
    alone = structs.replace(GROUP, audience=("chat:alone",), address="agent:main:telegram:group:alone")
    async with harness.open() as plugin:
        assert MemoryCapability.FORGET in plugin.capabilities
        for stamp in (ADA, BOB, GROUP, structs.replace(GROUP, person="carol"), alone):
            await tell(plugin, stamp, f"{stamp.person} was here", key=stamp.address)
        found = await plugin.forget(ErasureTarget(identities=("bob",)))
        removed = [it for it in found if it.id.startswith("home:")]
        assert len(removed) == 2
        assert set((await plugin.confirm_deletions(removed)).values()) == {ErasureState.CONFIRMED}
        shared, elsewhere = (it.reason for it in found if it.state is ErasureState.CANNOT)
        assert "sent elsewhere" in elsewhere
        assert f"homes/{choose_home_key(GROUP)}" in shared
        assert "others spoke there, too" in shared
        assert not harness.find_home(BOB).exists()
        assert not harness.find_home(alone).exists()
        assert harness.find_home(GROUP).exists()
        assert "bob was here" not in await look(plugin, BOB)
        again = await plugin.forget(ErasureTarget(identities=("bob",)))
        assert [it.id.partition(":")[0] for it in again] == ["home", "shared", "elsewhere"]
        assert await plugin.forget(ErasureTarget(identities=("nobody",))) == []
    assert "bob" not in (tmp_path / "data" / "sessions.json").read_text()


async def test_a_repeated_forgetting_leaves_the_home_of_a_person_who_came_back(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, NOTEBOOK)
    async with harness.open() as plugin:
        clock = plugin._context.clock
        await tell(plugin, ADA, "hello")  # the owner
        await tell(plugin, BOB, "the old secret")
        before = clock.now()
        found = await plugin.forget(ErasureTarget(identities=("bob",), before=before))
        assert not harness.find_home(BOB).exists()
        await wait_until(lambda: clock.now() > before)
        await tell(plugin, BOB, "I am back")
        removed = [it for it in found if it.id.startswith("home:")]
        assert set((await plugin.confirm_deletions(removed)).values()) == {ErasureState.CONFIRMED}
        await plugin.forget(ErasureTarget(identities=("bob",), before=before))
        assert "I am back" in await look(plugin, BOB)
        await plugin.forget(ErasureTarget(identities=("bob",), before=clock.now()))
        assert not harness.find_home(BOB).exists()


async def test_forgetting_the_owner_leaves_the_configured_home_to_its_owner(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, NOTEBOOK)
    async with harness.open() as plugin:
        await tell(plugin, ADA, "my pin is 4711")
        found = await plugin.forget(ErasureTarget(identities=("ada",)))
        assert await plugin.forget(ErasureTarget(identities=("ada",))) == found, "the first answer may have been lost"
    assert all(it.state is ErasureState.CANNOT for it in found)
    assert any(str(harness.home) in it.reason and "delete" in it.reason for it in found)
    assert (harness.home / "kept.txt").exists()


# -- processes ---------------------------------------------------------------------------------------------------------


async def test_only_so_many_processes_run_and_nothing_is_lost(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, NOTEBOOK)
    people = [
        Stamp(person=f"p{n}", audience=(f"person:p{n}",), address=f"agent:main:telegram:dm:{n}") for n in range(6)
    ]
    async with harness.open(most_processes=2) as plugin:
        most = 0
        for turn in range(2):
            sent = [asyncio.ensure_future(tell(plugin, it, f"{it.person} {turn}", key=str(turn))) for it in people]
            while not all(it.done() for it in sent):
                most = max(most, plugin._pool.alive_count)
                await asyncio.sleep(0.005)
            await asyncio.gather(*sent)
        assert most == 2
    for stamp in people:
        kept = (harness.find_home(stamp) / "kept.txt").read_text()
        assert kept == f"{stamp.person} 0\n{stamp.person} 1\n"


async def test_an_idle_process_is_closed(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, NOTEBOOK)
    async with harness.open() as plugin:
        plugin._pool._idle_seconds = 0.2
        await tell(plugin, ADA, "hello")
        await wait_until(lambda: plugin._pool.alive_count == 0)
        await tell(plugin, ADA, "hello again")
    assert (harness.home / "kept.txt").read_text() == "hello\nhello again\n"
