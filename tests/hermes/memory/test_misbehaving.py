"""A plug-in that raises, blocks, prints, exits or floods delays no turn."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from everhold.errors import InDoubt, Refused, Transient
from tests.waiting import LIMIT_SECONDS, wait_until

from .harness import RECORDER, HermesPluginHarness, make_batch, make_exchange, make_query


def make_plugin(how: str) -> str:
    return RECORDER.replace(
        "    def on_turn_start",
        f"    def bad(self, text):\n        import os, sys, threading, time\n{how}\n    def on_turn_start",
    ).replace('write("sync_turn", user_content', 'self.bad(user_content); write("sync_turn", user_content')


RAISES = make_plugin("        raise RuntimeError('I would rather not') if 'bad' in text else SystemExit\n").replace(
    "raise RuntimeError('I would rather not') if 'bad' in text else SystemExit",
    "\n        if 'bad' in text: raise RuntimeError('I would rather not')",
)
BLOCKS = make_plugin("        while 'bad' in text: time.sleep(1)")
SHOUTS = make_plugin(
    '        print(\'{"id": 1, "result": "a lie"}\'); os.write(1, b\'garbage\\n\' * 50000); sys.stdout.flush()'
)
LEAVES = make_plugin("        if 'bad' in text: os._exit(7)")
LEAKS = make_plugin("        [threading.Thread(target=time.sleep, args=(3600,)).start() for _ in range(5)]")
FLOODS = RECORDER.replace('return "recalled: " + query', 'return "x" * 10_000_000')


async def test_the_error_of_a_plugin_is_quoted_and_it_keeps_running(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, RAISES)
    async with harness.open() as plugin:
        with pytest.raises(Refused, match="I would rather not"):
            await plugin.store(make_batch(make_exchange("bad")))
        await plugin.store(make_batch(make_exchange("good")))
    assert [line[1] for line in harness.read_calls("sync_turn")] == ["good"]


async def test_a_plugin_that_blocks_is_killed_and_restarted(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, BLOCKS)
    async with harness.open(deadline_seconds=3.0) as plugin:
        await plugin.find(make_query("warm up"))
        with pytest.raises(InDoubt, match="did not return within 3 s"):
            async with asyncio.timeout(LIMIT_SECONDS):
                await plugin.store(make_batch(make_exchange("bad")))
        with pytest.raises(Transient, match="started again in"):
            await plugin.store(make_batch(make_exchange("too soon")))
        assert "did not return" in (await plugin.health()).text
        await wait_until(lambda: not plugin._pool.list_hosts()[0].is_waiting)
        await plugin.store(make_batch(make_exchange("good")))
        assert (await plugin.health()).healthy
    assert [line[1] for line in harness.read_calls("sync_turn")] == ["good"]


async def test_printed_output_is_not_taken_for_a_response(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, SHOUTS)
    async with harness.open() as plugin:
        assert await plugin.store(make_batch(make_exchange("hello"))) == {"k": ""}
        assert [it.text for it in await plugin.find(make_query("and?"))] == ["recalled: and?"]
    printed = [fields for _, event, fields in harness.log.lines if event == "memory.printed"]
    assert 0 < len(printed) <= 202, "its output is logged, up to a limit"


async def test_a_call_to_a_plugin_that_exits_is_in_doubt(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, LEAVES)
    async with harness.open() as plugin:
        with pytest.raises(InDoubt, match="ended with 7"):
            await plugin.store(make_batch(make_exchange("bad")))
        await wait_until(lambda: not plugin._pool.list_hosts()[0].is_waiting)
        await plugin.store(make_batch(make_exchange("good")))


async def test_threads_of_a_plugin_stay_in_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = HermesPluginHarness(tmp_path, LEAKS)
    async with harness.open(deadline_seconds=6 * LIMIT_SECONDS) as plugin:
        await plugin.store(make_batch(make_exchange("hello")))
        began = time.monotonic()
    assert time.monotonic() - began < LIMIT_SECONDS


async def test_an_answer_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with HermesPluginHarness(tmp_path, FLOODS).open() as plugin:
        with pytest.raises(Refused, match="too many"):
            await plugin.find(make_query("hello"))
        await plugin.store(make_batch(make_exchange("still here")))
