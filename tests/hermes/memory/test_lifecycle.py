"""The calls that a plug-in receives, driven from the log, with the identity at the time of the message."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec import structs

from everhold.core.entries import Stamp
from everhold.errors import Transient
from everhold.hermes.memory.provider import HermesMemory
from everhold.hermes.memory.settings import HermesSettings
from everhold.ports.memory import SEEN_REMOTE_ID, MemoryCapability, MemoryScope, SessionSwitch
from everhold.ports.plugin import PluginContext
from everhold.ports.tool import ToolContext, ToolEffect
from everhold.testing.conformance import isolation
from everhold.testing.conformance.scenario import ProviderScenario
from tests.waiting import wait_until

from .harness import (
    NAME,
    RECORDER,
    REGISTERED,
    STAMP,
    HermesPluginHarness,
    WallClock,
    make_batch,
    make_exchange,
    make_note,
    make_query,
    make_utterance,
)
from .test_readback import KEEPER

GROUP = Stamp(person="bob", audience=("chat:agent:main:telegram:group:-100",), address="agent:main:telegram:group:-100")
SLOW_START = RECORDER.replace(
    'def initialize(self, session_id, **kwargs): write("initialize", session_id, kwargs)',
    """def initialize(self, session_id, **kwargs):
        import threading, time
        self.ready = False
        def get_ready():
            time.sleep(0.5)
            self.ready = True
        threading.Thread(target=get_ready, daemon=True).start()""",
).replace(
    "def sync_turn(self, user_content",
    "def sync_turn(self, *a, **k):\n        if self.ready: self.really(*a, **k)\n    def really(self, user_content",
)


def make_tool_context(**more: object) -> ToolContext:
    return structs.replace(ToolContext(session="s", agent="main", op=1, key="k", stamp=STAMP), **more)


async def test_the_plugin_receives_person_and_place(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path)
    async with harness.open() as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
    ((_, session, kwargs),) = harness.read_calls("initialize")
    assert session == NAME
    assert kwargs == {
        "hermes_home": str(harness.home),
        "agent_context": "primary",
        "platform": "telegram",
        "agent_identity": "main",
        "agent_workspace": "hermes",
        "user_id": "ada",
        "user_name": "ada",
        "session_title": "Plans",
        "chat_id": "42",
        "chat_type": "dm",
        "gateway_session_key": "agent:main:telegram:dm:42",
    }


async def test_a_plugin_receives_one_turn_per_turn(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path)
    async with harness.open() as plugin:
        found = await plugin.find(make_query("where is the cat?"))
        assert [it.text for it in found] == ["recalled: where is the cat?"]
        await plugin.store(
            make_batch(make_exchange("where is the cat?", key="1"), make_exchange("and the dog?", key="2"))
        )
        await plugin.store(make_batch(make_note("likes cats"), make_note("no dogs", key="m", action="replace")))
    assert [line[0] for line in harness.read_calls()] == [
        "initialize",
        "on_turn_start",
        "prefetch",
        "sync_turn",
        "queue_prefetch",
        "sync_turn",
        "queue_prefetch",
        "on_memory_write",
        "on_memory_write",
        "on_session_end",
        "shutdown",
    ]
    assert [line[4] for line in harness.read_calls("sync_turn")] == [2, 4], "with the messages so far"
    assert harness.read_calls("on_memory_write") == [
        ["on_memory_write", "add", "user", "likes cats"],
        ["on_memory_write", "replace", "user", "no dogs"],
    ]
    assert harness.read_calls("on_session_end") == [["on_session_end", 4]]


async def test_every_session_has_its_own_provider(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path)
    async with harness.open() as plugin:
        await plugin.store(make_batch(make_exchange("in private")))
        await plugin.store(make_batch(make_exchange("in company", stamp=GROUP, session="g"), name="group"))
        await plugin.store(make_batch(make_exchange("in private again", key="3")))
    there = harness.find_home(GROUP)
    assert [(line[1], line[2]["user_id"]) for line in harness.read_calls("initialize")] == [(NAME, "ada")]
    assert [(line[1], line[2]["user_id"]) for line in harness.read_calls("initialize", home=there)] == [
        ("group", "chat:agent:main:telegram:group:-100")
    ]
    assert [line[3] for line in harness.read_calls("sync_turn")] == [NAME, NAME]
    assert [line[3] for line in harness.read_calls("sync_turn", home=there)] == ["group"]


async def test_in_a_group_the_author_of_each_utterance_is_named(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path)
    both = structs.replace(
        make_exchange("hi", stamp=GROUP),
        heard=(make_utterance("tea", "person:ada", GROUP), make_utterance("coffee", "person:bob", GROUP)),
    )
    async with harness.open() as plugin:
        await plugin.store(make_batch(both, name="group"))
    assert harness.read_calls("sync_turn", home=harness.find_home(GROUP))[0][1] == "ada: tea\n\nbob: coffee"


async def test_session_switches_are_reported(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path)
    async with harness.open() as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
    async with harness.open() as plugin:
        assert {
            MemoryCapability.SESSION_SWITCHED,
            MemoryCapability.BEFORE_COMPRESS,
            MemoryCapability.PROMPT,
        } <= plugin.capabilities
        assert plugin.prompt() == "I am a recorder."
        here = MemoryScope(agent="main", session="s", name=NAME, person="ada")
        view = [make_utterance("hello"), make_utterance("hi", "agent:main")]
        assert await plugin.before_compress(here, view) == "keep the cat"
        await plugin.session_switched(SessionSwitch(how="new", before=here, after=here))
    assert harness.read_calls("on_pre_compress") == [
        ["on_pre_compress", [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]]
    ]
    assert harness.read_calls("on_session_switch") == [["on_session_switch", NAME, NAME, True]]


@pytest.mark.parametrize("how", ["new", "compression", "branch", "resume"])
async def test_a_session_ends_before_the_switch_is_reported(tmp_path: Path, how: str) -> None:
    """A reset and a compression end the session for the plug-in; a branch does not."""
    harness = HermesPluginHarness(tmp_path)
    here = MemoryScope(agent="main", session="s", name=NAME, person="ada")
    there = (
        MemoryScope(agent="main", session="t", name="elsewhere", person="ada") if how in ("branch", "resume") else here
    )
    async with harness.open() as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
        await plugin.session_switched(SessionSwitch(how=how, before=here, after=there))
        await plugin.session_switched(SessionSwitch(how=how, before=here, after=there))
        calls = harness.read_calls("on_session_end", "on_session_switch")
        switched = ["on_session_switch", there.name, NAME, how == "new"]
        assert calls == [["on_session_end", 2]] * (there is here) + [switched] * (0 if how == "resume" else 2)
        elsewhere = structs.replace(STAMP, address="agent:main:telegram:dm:43") if how == "resume" else STAMP
        await plugin.store(make_batch(make_exchange("and now", stamp=elsewhere), name=there.name))
        if how == "resume":  # its session is known by now
            await plugin.session_switched(SessionSwitch(how=how, before=here, after=there))
            assert harness.read_calls("on_session_switch") == [switched]
    chats = {"branch": ["42", "42"], "resume": ["42", "43"]}.get(how, ["42"])
    assert [line[2]["chat_id"] for line in harness.read_calls("initialize")] == chats
    assert harness.read_calls("on_session_end")[-1] == ["on_session_end", 2], "each part once"


async def test_a_replaced_note_carries_its_old_text(tmp_path: Path) -> None:
    source = REGISTERED.replace('write("on_memory_write", action, target, content)', 'write("note", content, metadata)')
    harness = HermesPluginHarness(tmp_path, source)
    changed = structs.replace(make_note("likes cats", action="replace"), supersedes="s:1:note")
    async with harness.open() as plugin:
        await plugin.store(structs.replace(make_batch(changed), replaced={"s:1:note": "likes dogs"}))
    ((_, content, metadata),) = harness.read_calls("note")
    assert (content, metadata["old_text"], metadata["session_id"]) == ("likes cats", "likes dogs", NAME)


async def test_a_job_or_a_switch_alone_initialises_nothing(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path)
    async with harness.open() as plugin:
        scope = MemoryScope(agent="main", session="s", name=NAME, person="ada")
        assert await plugin.before_compress(scope, [make_utterance("hello")]) == ""
        await plugin.session_switched(SessionSwitch(how="resume", before=scope, after=scope))
    assert harness.read_calls() == []


async def test_hooks_and_tools_are_known_before_the_plugin_is_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test whether it keeps people apart takes long. A session switch meanwhile is sent all the same."""
    tested = asyncio.Event()

    async def wait_forever(*_: object, **__: object) -> None:
        await tested.wait()

    monkeypatch.setattr("everhold.hermes.memory.isolation.run_canary", wait_forever)
    monkeypatch.setattr("everhold.hermes.memory.provider.LEARNING_SECONDS", 0.0)
    harness = HermesPluginHarness(tmp_path)
    async with harness.open(serves="checked") as plugin:
        before = plugin.cache_busting_signature()
        await plugin.store(make_batch(make_exchange("hello")))
        assert plugin.cache_busting_signature() != before, "the gateway must rebuild it"
    async with harness.open(serves="checked") as plugin:
        assert MemoryCapability.SESSION_SWITCHED in plugin.capabilities


async def test_tools_are_offered_once_they_are_known(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path)
    async with harness.open() as plugin:
        assert MemoryCapability.TOOLS not in plugin.capabilities
        before = plugin.cache_busting_signature()
        await plugin.store(make_batch(make_exchange("hello")))
        assert plugin.cache_busting_signature() != before, "the gateway must rebuild it"
    async with harness.open() as plugin:
        flat, wrapped = plugin.tools()
        assert [tool.spec.name for tool in (flat, wrapped)] == ["flat", "wrapped"]
        assert flat.effect is ToolEffect.ONCE
        assert (await flat.run({"a": 1}, make_tool_context())).text == '{"ok": "flat"}'
        failed = await wrapped.run({"fail": True}, make_tool_context())
        assert failed.error
        assert plugin.cache_busting_signature() == plugin.cache_busting_signature()
    assert [line[1:] for line in harness.read_calls("tool")] == [["flat", {"a": 1}], ["wrapped", {"fail": True}]]


async def test_tools_are_limited_in_number_and_by_configuration(tmp_path: Path) -> None:
    many = RECORDER.replace(
        "def get_tool_schemas(self):",
        "def get_tool_schemas(self):\n        return [{'name': f't{n}'} for n in range(118)]",
    )
    harness = HermesPluginHarness(tmp_path, many)
    async with harness.open() as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
    async with harness.open() as plugin:
        assert len(plugin.tools()) == 16
        assert any(event == "memory.tools_loaded" for _, event, _ in harness.log.lines)
    async with harness.open(tools=("t117", "t3")) as plugin:
        assert [tool.spec.name for tool in plugin.tools()] == ["t3", "t117"]


async def test_items_during_the_initialisation_are_not_lost(tmp_path: Path) -> None:
    """In hermes-agent, a plug-in that initialises in the background drops what arrives before that."""
    harness = HermesPluginHarness(tmp_path, SLOW_START)
    async with harness.open() as plugin:
        await plugin.store(make_batch(make_exchange("the very first words")))
    assert [line[1] for line in harness.read_calls("sync_turn")] == ["the very first words"]


async def test_a_change_of_its_files_rebuilds_the_memory(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path)
    async with harness.open() as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
        before = plugin.cache_busting_signature()
        (harness.home / "honcho.json").write_text('{"apiKey": "new"}')
        await wait_until(lambda: plugin.cache_busting_signature() != before)


async def test_a_change_of_the_plugin_s_own_data_does_not_rebuild_it(tmp_path: Path) -> None:
    """Many plug-ins store data in a file among their settings, which must not rebuild them for every message."""
    kept = "json.dump([user_content], open(get_hermes_home() / 'kept.json', 'w')); write(\"sync_turn\", user_content"
    harness = HermesPluginHarness(tmp_path, REGISTERED.replace('write("sync_turn", user_content', kept))
    async with harness.open() as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
        before = plugin.cache_busting_signature()
        for number in range(3):
            await plugin.store(make_batch(make_exchange(f"and {'more ' * number}", key=str(number))))
            await asyncio.sleep(0.5)
        await asyncio.sleep(0.7)
        assert plugin.cache_busting_signature() == before
        (harness.home / "kept.json").unlink()  # a change from outside does
        await wait_until(lambda: plugin.cache_busting_signature() != before)


@pytest.mark.parametrize("hook", ["cache_busting_signature", "identity_signature"])
async def test_a_plugin_that_reports_a_change_is_rebuilt(tmp_path: Path, hook: str) -> None:
    """A signature of the plug-in may depend on things that cannot be watched from outside."""
    elsewhere = tmp_path / "elsewhere" / "key"
    elsewhere.parent.mkdir()
    elsewhere.write_text("one")
    says = f"    def {hook}(self): return {{'key': open({str(elsewhere)!r}).read()}}\n    def shutdown"
    harness = HermesPluginHarness(tmp_path, REGISTERED.replace("    def shutdown", says))
    async with harness.open(read_paths=(str(elsewhere.parent),)) as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
        before = plugin.cache_busting_signature()
        elsewhere.write_text("two")
        await wait_until(lambda: plugin.cache_busting_signature() != before)


async def test_notes_reach_a_plugin_that_only_receives_turns(tmp_path: Path) -> None:
    start = RECORDER.index("    def on_memory_write")
    deaf = RECORDER[:start] + RECORDER[RECORDER.index("    def shutdown") :]
    harness = HermesPluginHarness(tmp_path, deaf)
    async with harness.open() as plugin:
        await plugin.store(make_batch(make_note("likes tea")))
    assert harness.read_calls("sync_turn")[0][1] == "Please remember: likes tea"


QUEUED = RECORDER.replace(
    'def initialize(self, session_id, **kwargs): write("initialize", session_id, kwargs)',
    """def initialize(self, session_id, **kwargs):
        import queue, threading, time
        self.queue = queue.Queue()
        def work():
            while True:
                self.really(*self.queue.get())
                time.sleep(0.3)
                write("sent")
        threading.Thread(target=work, daemon=True).start()""",
).replace(
    "def sync_turn(self, user_content",
    "def sync_turn(self, user, assistant): self.queue.put((user, assistant))\n    def really(self, user_content",
)


async def test_a_plugin_s_own_queue_is_waited_for(tmp_path: Path) -> None:
    """Its writer thread never ends, but it is idle when everything was sent."""
    harness = HermesPluginHarness(tmp_path, QUEUED)
    async with harness.open() as plugin:
        for number in range(3):
            await plugin.store(make_batch(make_exchange(f"turn {number}", key=str(number))))
            assert len(harness.read_calls("sent")) == number + 1


async def test_the_description_from_the_first_use_causes_one_rebuild_only(tmp_path: Path) -> None:
    """Its tools and hooks are known once its process has run. That causes one new instance, not one per turn."""
    harness = HermesPluginHarness(tmp_path)

    def make(agent: str, directory: Path) -> HermesMemory:
        settings = HermesSettings(path=str(harness.plugin), serves="everybody")
        context = PluginContext(agent=agent, instance="notes", directory=directory, log=harness.log, clock=WallClock())
        return HermesMemory(settings, context)

    scenario = ProviderScenario(tmp_path / "kit", make, seconds=20.0)
    try:
        await isolation.check_signature(scenario)
        assert scenario.build_client().has_capability(MemoryCapability.TOOLS)
    finally:
        await scenario.close()


async def test_a_cancelled_recall_does_not_stop_the_start_of_a_plugin(tmp_path: Path) -> None:
    """Recall has less time than some plug-ins need to load. The description must still arrive, or the plug-in would
    never be searched, offer no tools, and receive everything again by a resend.
    """
    loads = tmp_path / "plugins" / "loads"
    waits = f"import os, time\nwhile not os.path.exists({str(loads)!r}): time.sleep(0.02)\n"
    harness = HermesPluginHarness(tmp_path, waits + KEEPER)
    sent = make_batch(make_exchange("my grey cat is called Mimi and sleeps under the stove"))
    async with harness.open() as plugin:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await plugin.find(make_query("where is the cat?"))
        loads.touch()
        assert await plugin.store(sent) == {"k": SEEN_REMOTE_ID}
        assert await plugin.probe(sent) == ["k"]
    loads.unlink()
    async with harness.open() as plugin:
        assert MemoryCapability.TOOLS in plugin.capabilities
        for _ in range(2):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await plugin.find(make_query("where is the cat?"))
        loads.touch()
        assert await plugin.probe(sent) == [], "not in this process"
        assert await plugin.store(sent) == {"k": SEEN_REMOTE_ID}


async def test_an_unavailable_plugin_is_not_used_after_a_cancelled_start(tmp_path: Path) -> None:
    unavailable = REGISTERED.replace(
        "    def initialize", "    def is_available(self):\n        import time; time.sleep(0.5)\n    def initialize"
    )
    harness = HermesPluginHarness(tmp_path, unavailable)
    async with harness.open() as plugin:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await plugin.find(make_query("hello"))
        with pytest.raises(Transient, match="not available"):
            await plugin.store(make_batch(make_exchange("hello")))
    assert harness.read_calls() == []


async def test_recall_and_delivery_use_the_same_provider(tmp_path: Path) -> None:
    """However long the initialisation takes: of two providers for one conversation, one would be
    lost with its content.
    """
    slow = REGISTERED.replace(
        "def initialize(self, session_id, **kwargs):",
        "def initialize(self, session_id, **kwargs): import time; time.sleep(0.4);",
    )
    harness = HermesPluginHarness(tmp_path, slow)
    for life in (1, 2):  # known in its second run, in which nothing is requested first
        async with harness.open() as plugin:
            await asyncio.gather(
                plugin.find(make_query("where is the cat?")), plugin.store(make_batch(make_exchange("hello")))
            )
            await plugin.find(make_query("and the dog?"))
        assert len(harness.read_calls("initialize")) == len(harness.read_calls("shutdown")) == life
    assert [line[1] for line in harness.read_calls("on_turn_start")] == [1, 2, 1, 2]


async def test_the_least_recently_used_provider_is_shut_down_first(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path)
    async with harness.open() as plugin:
        for number in (*range(64), 0, 64):
            await plugin.store(make_batch(make_exchange("hello", key=str(number)), name=f"chat-{number}"))
        assert len(harness.read_calls("initialize")) == 65
        assert len(harness.read_calls("shutdown")) == len(harness.read_calls("on_session_end")) == 1
        await plugin.store(make_batch(make_exchange("hello again"), name="chat-0"))
        assert len(harness.read_calls("initialize")) == 65, "it was used recently"
        await plugin.store(make_batch(make_exchange("hello again"), name="chat-1"))
        assert [line[1] for line in harness.read_calls("initialize")][-1] == "chat-1"
    assert len(harness.read_calls("shutdown")) == len(harness.read_calls("initialize")) == 66


LOADS = RECORDER.replace(
    '    def sync_turn(self, user_content, assistant_content, *, session_id="", messages=None):\n',
    """    def sync_turn(self, user_content, assistant_content, *, session_id="", messages=None):
        import threading, time
        def work():
            import slow_to_load
            time.sleep(0.1)
            write("sent")
        threading.Thread(target=work, daemon=True).start()
""",
)


@pytest.mark.prove
async def test_a_writer_that_is_still_loading_is_waited_for(tmp_path: Path) -> None:
    """A stop would lose everything that it received in between."""
    harness = HermesPluginHarness(tmp_path, LOADS)
    site = tmp_path / "site"
    site.mkdir()
    (site / "slow_to_load.py").write_text("import time; time.sleep(5.5)")
    options = {"environ": {"PYTHONPATH": str(site)}, "read_paths": (str(site),), "deadline_seconds": 30}
    async with harness.open(**options) as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
        assert len(harness.read_calls("sent")) == 1
