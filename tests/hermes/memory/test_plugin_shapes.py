"""Plug-ins are directories or packages, with `register` or as a bare class. All load unmodified."""

from __future__ import annotations

from pathlib import Path

import pytest

from everhold.errors import Transient

from .harness import DIARY, RECORDER, REGISTERED, HermesPluginHarness, make_batch, make_exchange, make_note, make_query

DUCK = (
    DIARY
    + """
class Duck:
    def initialize(self, session_id): write("initialize", session_id)
    def sync_turn(self, user, assistant, **kw): write("sync_turn", user, assistant, sorted(kw))
    def prefetch(self, q): return "quack " + q
"""
)
ODD = (
    DIARY
    + """
from agent.memory_provider import MemoryProvider
class Odd(MemoryProvider):
    @property
    def name(self): return "odd"
    def initialize(self, session_id, hermes_home, platform, user_id=None):
        write("initialize", session_id, platform, user_id)
    def sync_turn(self, user_message, assistant_response): write("sync_turn", user_message, assistant_response)
    def on_memory_write(self, action, target, content): write("on_memory_write", action, content)
"""
)
RELATIVE = (
    "from .inner import Recorder\nfrom . import inner\ndef register(ctx): ctx.register_memory_provider(Recorder())\n"
)


@pytest.mark.parametrize("source", [REGISTERED, RECORDER], ids=["register", "bare class"])
async def test_a_directory_loads(tmp_path: Path, source: str) -> None:
    harness = HermesPluginHarness(tmp_path, source)
    async with harness.open() as plugin:
        assert await plugin.store(make_batch(make_exchange("my cat is Mimi"))) == {"k": ""}
    assert harness.read_calls("sync_turn")[0][1:3] == ["my cat is Mimi", "I see."]


async def test_a_plugin_that_is_not_a_subclass_loads(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, DUCK)
    async with harness.open() as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
        assert [found.text for found in await plugin.find(make_query("who?"))] == ["quack who?"]
    assert harness.read_calls("sync_turn") == [["sync_turn", "hello", "I see.", ["messages", "session_id"]]]


async def test_hooks_are_called_with_the_arguments_they_accept(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, ODD)
    async with harness.open() as plugin:
        await plugin.store(make_batch(make_exchange("hello"), make_note("likes tea")))
    assert harness.read_calls() == [
        ["initialize", "agent-main-telegram-dm-42", "telegram", "ada"],
        ["sync_turn", "hello", "I see."],
        ["on_memory_write", "add", "likes tea"],
    ]


async def test_a_directory_may_have_more_than_one_file(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, RELATIVE, name="with-dash")
    (harness.plugin / "inner.py").write_text(RECORDER)
    async with harness.open() as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
    assert len(harness.read_calls("sync_turn")) == 1


RE_EXPORTED = "from .inner import Recorder\n"
LAZY = """
def __getattr__(name):
    if name != "Recorder": raise AttributeError(name)
    from .inner import Recorder
    return Recorder
"""
WITH_BASE = """
from .inner import Recorder
class Abstract(Recorder):
    def __init__(self): raise TypeError("abstract")
"""
REGISTERS_NOTHING = RE_EXPORTED + "def register(ctx): ctx.register_tool('t')\n"
REGISTER_FAILS = RE_EXPORTED + "def register(ctx): raise RuntimeError('not today')\n"


@pytest.mark.parametrize(
    "source",
    [
        RE_EXPORTED,
        LAZY + "def __dir__(): return ['Recorder']\n",
        LAZY + "__all__ = ['Recorder']\n",
        WITH_BASE,
        REGISTERS_NOTHING,
        REGISTER_FAILS,
    ],
    ids=["re-exported", "lazy, in dir", "lazy, in __all__", "base class", "registers nothing", "register fails"],
)
async def test_what_hermes_agent_finds_in_a_package_loads(tmp_path: Path, source: str) -> None:
    harness = HermesPluginHarness(tmp_path, source, name="gbrain-memory")
    (harness.plugin / "inner.py").write_text(RECORDER)
    async with harness.open() as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
    assert len(harness.read_calls("sync_turn")) == 1


@pytest.mark.parametrize("group", ["hermes_agent.plugins", "hermes_agent.memory_providers"])
@pytest.mark.parametrize("target", ["their_memory:register", "their_memory"])
async def test_an_installed_package_loads_by_its_name(tmp_path: Path, group: str, target: str) -> None:
    harness = HermesPluginHarness(tmp_path)
    site = tmp_path / "site"
    info = site / "their_memory-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "their_memory.py").write_text(REGISTERED)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-memory\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\ntheirs = {target}\n")
    async with harness.open(path="theirs", environ={"PYTHONPATH": str(site)}, read_paths=(str(site),)) as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
    assert len(harness.read_calls("sync_turn")) == 1


@pytest.mark.parametrize(
    "source, words",
    [
        ("import nowhere_to_be_found", "nowhere_to_be_found"),
        ("x = 1", "neither `register` nor"),
        ("def register(ctx): pass", "registers no memory provider"),
        ("raise RuntimeError('not today')", "not today"),
        (RECORDER + "    def __init__(self): raise ValueError('no engine')\n", "Recorder: ValueError: no engine"),
    ],
)
async def test_a_plugin_that_does_not_load_reports_why_and_nothing_is_lost(
    tmp_path: Path, source: str, words: str
) -> None:
    async with HermesPluginHarness(tmp_path, source).open() as plugin:
        with pytest.raises(Transient, match=words):
            await plugin.store(make_batch(make_exchange("hello")))
        assert not (await plugin.health()).healthy


async def test_a_plugin_in_the_home_s_directory_loads_by_its_name(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path)
    (harness.home / "notes").mkdir(parents=True)  # the directory of its settings, not of its code
    (harness.home / "plugins").symlink_to(harness.plugin.parent)
    harness.plugin.rename(harness.plugin.with_name("notes"))
    async with harness.open(path="notes") as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
    assert len(harness.read_calls("sync_turn")) == 1
    async with harness.open(path="others") as plugin:
        with pytest.raises(Transient, match=r"installed: .*notes"):
            await plugin.store(make_batch(make_exchange("hello")))


async def test_a_relative_path_is_resolved_from_our_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = HermesPluginHarness(tmp_path)
    monkeypatch.chdir(tmp_path)
    async with harness.open(path="plugins/recorder") as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
    assert len(harness.read_calls("sync_turn")) == 1


async def test_tools_with_an_invalid_schema_are_left_out(tmp_path: Path) -> None:
    """With one invalid tool every model request would be refused."""
    odd = "[{'name': 'a tool!'}, {'name': 'x' * 65}, {'name': 'list', 'parameters': ['q']}, None, {'name': 7}]"
    harness = HermesPluginHarness(tmp_path, REGISTERED.replace("        return [{", f"        return {odd} + [{{", 1))
    async with harness.open() as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
    async with harness.open() as plugin:
        assert [tool.spec.name for tool in plugin.tools()] == ["flat", "wrapped"]
    assert "'a tool!' cannot be offered" in str(harness.log.lines)


async def test_a_missing_plugin_is_named(tmp_path: Path) -> None:
    async with HermesPluginHarness(tmp_path).open(path="nobody") as plugin:
        with pytest.raises(Transient, match="nobody is neither a path nor"):
            await plugin.find(make_query("hello"))


async def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    async with HermesPluginHarness(tmp_path).open(python="/no/such/python") as plugin:
        with pytest.raises(Transient, match="/no/such/python cannot be run"):
            await plugin.store(make_batch(make_exchange("hello")))


async def test_an_unavailable_plugin_reports_what_it_needs(tmp_path: Path) -> None:
    wants = "lambda self: [{'key': 'token', 'secret': True, 'env_var': 'THEIR_TOKEN'}, {'key': 'colour'}]"
    source = RECORDER.replace(
        "name =", f"is_available = lambda self: False\n    get_config_schema = {wants}\n    name ="
    )
    async with HermesPluginHarness(tmp_path, source).open() as plugin:
        with pytest.raises(Transient) as raised:
            await plugin.store(make_batch(make_exchange("hello")))
    assert "it needs THEIR_TOKEN: " in raised.value.remedy


async def test_an_unavailable_plugin_receives_nothing(tmp_path: Path) -> None:
    """hermes-agent skips it silently; here the items wait for it."""
    harness = HermesPluginHarness(tmp_path, RECORDER.replace("name =", "is_available = lambda self: False\n    name ="))
    async with harness.open() as plugin:
        with pytest.raises(Transient, match="not available"):
            await plugin.store(make_batch(make_exchange("hello")))
    assert harness.read_calls("sync_turn", "initialize") == []
