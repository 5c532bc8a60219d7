"""A plug-in gives no receipt. What it shows in a search is confirmed; the rest is unknown."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from everhold.errors import Transient
from everhold.hermes.memory.readback import build_readback_query, is_evidence_shown
from everhold.ports.memory import SEEN_REMOTE_ID, MemoryCapability

from .harness import DIARY, HermesPluginHarness, make_batch, make_exchange, make_note, make_query

KEEPER = (
    DIARY
    + """
from agent.memory_provider import MemoryProvider
class Keeper(MemoryProvider):
    name = "keeper"
    kept = []
    def initialize(self, session_id, **kwargs): pass
    def sync_turn(self, user_content, assistant_content, *, session_id=""):
        write("sync_turn", user_content)
        if "dropped" not in user_content: self.kept.append(user_content)
    def get_tool_schemas(self):
        return [{"name": "keeper_write", "parameters": {"properties": {"text": {}}, "required": ["text"]}},
                {"name": "keeper_search", "parameters": {"properties": {"query": {}}, "required": ["query"]}}]
    def handle_tool_call(self, tool_name, args, **kwargs):
        write("tool", tool_name, args)
        return json.dumps({"query": args["query"], "results": [{"memory": text.upper()} for text in self.kept]})
    def prefetch(self, query, *, session_id=""): write("prefetch", query); return "\\n".join(self.kept)
"""
)
TOOLLESS = KEEPER.replace("def get_tool_schemas", "def other")
ECHO = KEEPER.replace('"results": [', '"again": args["query"], "results": [').replace(
    "self.kept.append(user_content)", "0"
)
HANGING = KEEPER.replace('write("tool", tool_name, args)\n', 'write("tool", tool_name); import time; time.sleep(60)\n')
RAISING = KEEPER.replace(
    'write("tool", tool_name, args)\n', 'write("tool", tool_name); raise RuntimeError("no index")\n'
)
AWAY = KEEPER.replace(
    'write("tool", tool_name, args)\n',
    'write("tool", tool_name)\n'
    '        if (get_hermes_home() / "away").exists(): return json.dumps({"error": "unavailable for the moment"})\n',
)
LONG = "my grey cat is called Mimi and sleeps under the stove"
OTHER = "the train to Vienna leaves at seven from platform nine"


async def test_only_items_that_the_plugin_shows_are_confirmed(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, KEEPER)
    async with harness.open() as plugin:
        sent = make_batch(
            make_exchange(LONG, key="1"), make_exchange(f"{OTHER}, dropped", key="2"), make_exchange("hi", key="3")
        )
        assert await plugin.store(sent) == {"1": SEEN_REMOTE_ID, "2": "", "3": ""}
        health = await plugin.health()
        assert "3 sent by this process, 1 confirmed, 2 unknown" in health.text
        assert [line[1] for line in harness.read_calls("tool")] == ["keeper_search"] * 2, (
            "a short text like `hi` identifies no item"
        )
        assert harness.read_calls("prefetch") == []
    async with harness.open() as plugin:
        assert MemoryCapability.PROBE in plugin.capabilities
        assert await plugin.probe(sent) == []
        await plugin.store(make_batch(make_exchange(LONG, key="1")))
        assert await plugin.probe(sent) == ["1"]


async def test_an_answer_that_repeats_the_question_confirms_nothing(tmp_path: Path) -> None:
    async with HermesPluginHarness(tmp_path, ECHO).open() as plugin:
        assert await plugin.store(make_batch(make_exchange(LONG))) == {"k": ""}


async def test_a_readback_does_not_consume_the_prefetch_of_the_next_turn(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, TOOLLESS)
    async with harness.open() as plugin:
        assert await plugin.store(make_batch(make_exchange(LONG))) == {"k": ""}
        assert harness.read_calls("prefetch") == []
        assert await plugin.probe(make_batch(make_exchange(LONG))) == ["k"], "a caller requested it"


@pytest.mark.parametrize("source", [HANGING, RAISING], ids=["hangs", "raises"])
async def test_a_failed_search_delays_nothing(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everhold.hermes.memory.provider.CHECK_SECONDS", 0.2)
    harness = HermesPluginHarness(tmp_path, source)
    async with harness.open() as plugin:
        for number in range(5):
            assert await plugin.store(make_batch(make_exchange(f"{LONG} {number}", key=str(number)))) == {
                str(number): ""
            }
        assert [it.text for it in await plugin.find(make_query("cat"))]
        assert len(harness.read_calls("sync_turn")) == 5
        assert len(harness.read_calls("tool")) <= 3, "then the readback is paused"
        assert (await plugin.health()).healthy


async def test_an_endless_search_does_not_stop_the_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A readback is optional, so it must not cause the loss of what the plug-in is processing."""
    monkeypatch.setattr("everhold.hermes.memory.provider.CHECK_SECONDS", 0.1)
    harness = HermesPluginHarness(tmp_path, HANGING)
    async with harness.open(deadline_seconds=3.0) as plugin:
        await plugin.store(make_batch(make_exchange(LONG, key="1")))
        pid = plugin.pid
        await asyncio.sleep(3.2)  # longer than a call may take
        await plugin.store(make_batch(make_exchange(OTHER, key="2")))
        with pytest.raises(Transient, match="earlier search"):
            await plugin.probe(make_batch(make_exchange(LONG, key="1")))
        assert plugin.pid == pid
        assert len(harness.read_calls("tool")) == 1


async def test_readbacks_of_several_sessions_run_one_after_another(tmp_path: Path) -> None:
    """A resend of many sessions probes all of them at once. None may get the error that the plug-in
    cannot be searched.
    """
    slow = KEEPER.replace('write("tool", tool_name, args)\n', "import time; time.sleep(0.15)\n")
    harness = HermesPluginHarness(tmp_path, slow)
    sent = [
        make_batch(make_exchange(f"{LONG} {number}", key=str(number)), name=f"chat-{number}") for number in range(4)
    ]
    async with harness.open() as plugin:
        receipts = await asyncio.gather(*(plugin.store(it) for it in sent))
        assert receipts == [{str(number): SEEN_REMOTE_ID} for number in range(4)]
        assert await asyncio.gather(*(plugin.probe(it) for it in sent)) == [[str(number)] for number in range(4)]


async def test_delivery_waits_for_a_plugin_that_cannot_be_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plug-in reports the failure in a normal answer, and drops what it receives in that time."""
    harness = HermesPluginHarness(tmp_path, AWAY)
    harness.home.mkdir()
    sent = make_batch(make_exchange(LONG, key="1"), make_exchange("another one that is dropped again", key="2"))
    async with harness.open() as plugin:
        assert await plugin.store(sent) == {"1": SEEN_REMOTE_ID, "2": ""}
        (harness.home / "away").touch()
        for number in range(5):
            assert await plugin.store(make_batch(make_exchange(f"{LONG} {number}", key=str(number)))) == {
                str(number): ""
            }
        assert len(harness.read_calls("tool")) == 5, "paused after three failures"
        with pytest.raises(Transient, match="unavailable for the moment"):
            await plugin.probe(sent)
        (harness.home / "away").unlink()
        assert await plugin.probe(sent) == ["1"]
        assert await plugin.store(make_batch(make_exchange(f"{LONG} later"))) == {"k": ""}, "still paused"
        monkeypatch.setattr("everhold.hermes.memory.provider.CHECK_PAUSE_SECONDS", 0.0)
        assert await plugin.store(make_batch(make_exchange(f"{LONG} much later"))) == {"k": SEEN_REMOTE_ID}
        (harness.home / "away").touch()
        monkeypatch.setattr("everhold.hermes.memory.provider.UNSEARCHABLE_WAIT_SECONDS", 0.0)
        assert await plugin.probe(sent) == [], "not for ever"


async def test_readback_can_be_disabled(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, KEEPER)
    async with harness.open(read_back=False) as plugin:
        assert await plugin.store(make_batch(make_exchange(LONG))) == {"k": ""}
        assert harness.read_calls("tool") == []


def test_the_readback_query_identifies_an_item() -> None:
    asked = build_readback_query(make_exchange(LONG))
    assert asked is not None
    assert (asked.words, asked.evidence) == ("my grey cat is called", LONG.lower())
    assert not is_evidence_shown(asked, [asked.words])
    assert is_evidence_shown(asked, ["nothing", "User said: My grey cat is called\n Mimi and  sleeps under the STOVE."])
    assert build_readback_query(make_exchange("hi", "I see.")) is None
    assert build_readback_query(make_note("Ada likes green tea in the morning")) is not None
    first, second = (
        build_readback_query(make_exchange("this is turn one of a long talk")),
        ["This is turn two of a long talk"],
    )
    assert first is not None
    assert not is_evidence_shown(first, second), "similar texts are not equal"
    reply = build_readback_query(make_exchange("hi", "Your train to Vienna leaves at seven from platform nine."))
    assert reply is not None
    assert "platform nine" in reply.evidence
