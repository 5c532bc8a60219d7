"""`on_delegation`: the requester's plug-in receives the result of a task, also after kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from everhold.app import get_local_user
from everhold.ports.memory import SEEN_REMOTE_ID, JobResult, MemoryBatch, MemoryCapability
from tests.e2e.running_gateway import RunningGateway
from tests.memories.gateway_process import GatewayProcess
from tests.waiting import wait_until

from .harness import NAME, RECORDER, STAMP, HermesPluginHarness, make_batch, make_exchange
from .test_readback import KEEPER

HOOK = """
    def on_delegation(self, task, result, *, child_session_id="", **kwargs):
        write("begun", os.getpid())
        import time
        while (get_hermes_home() / "hang").exists(): time.sleep(0.02)
        write("on_delegation", task, result, child_session_id)
"""
OVERSEER = RECORDER + HOOK


def make_job(task: str = "count the cats", result: str = "There are three cats in the house by now.") -> JobResult:
    return JobResult(key="s:9:job", session="s", agent="main", seq=9, task=task, result=result, at=1.0, stamp=STAMP)


def make_job_batch(*found: JobResult) -> MemoryBatch:
    return MemoryBatch(name=NAME, items=(), jobs=found)


async def test_the_plugin_receives_task_and_result_under_the_requester_s_identity(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, OVERSEER)
    async with harness.open() as plugin:
        assert MemoryCapability.JOBS in plugin.capabilities, "before the first run the hook is assumed"
        assert await plugin.store(make_job_batch(make_job())) == {"s:9:job": ""}
    async with harness.open() as plugin:
        assert MemoryCapability.JOBS in plugin.capabilities
    received = ["on_delegation", "count the cats", "There are three cats in the house by now.", "s:9:job"]
    assert harness.read_calls("on_delegation") == [received]
    ((_, session, kwargs),) = harness.read_calls("initialize")
    assert (session, kwargs["user_id"], kwargs["gateway_session_key"]) == (NAME, "ada", STAMP.address)
    assert harness.read_calls("sync_turn") == []


@pytest.mark.parametrize("takes", ["task, result", "what, outcome, child_session_id=''", "*args, child_session_id"])
async def test_the_hook_is_called_with_the_arguments_it_accepts(tmp_path: Path, takes: str) -> None:
    source = f"{RECORDER}\n    def on_delegation(self, {takes}): write('on_delegation', *list(locals().values())[1:])\n"
    harness = HermesPluginHarness(tmp_path, source)
    async with harness.open() as plugin:
        await plugin.store(make_job_batch(make_job("tea", "drunk")))
    ((_, *received),) = harness.read_calls("on_delegation")
    assert ("tea" in received and "drunk" in received) or ["tea", "drunk"] in received
    assert ("s:9:job" in received) == ("child_session_id" in takes)


async def test_a_plugin_without_the_hook_is_not_initialised(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, RECORDER)  # its base class has the hook, which does nothing
    async with harness.open() as plugin:
        await plugin.store(make_job_batch(make_job()))
        assert harness.read_calls() == []
        await plugin.store(make_batch(make_exchange("hello")))  # known after its first turn
    async with harness.open() as plugin:
        assert MemoryCapability.JOBS not in plugin.capabilities


async def test_a_job_that_the_plugin_shows_is_confirmed(tmp_path: Path) -> None:
    keeps = "\n    def on_delegation(self, task, result, **kwargs): self.kept.append(f'{task}: {result}')\n"
    async with HermesPluginHarness(tmp_path, KEEPER + keeps).open() as plugin:
        assert await plugin.probe(make_job_batch(make_job())) == []
        assert await plugin.store(make_job_batch(make_job())) == {"s:9:job": SEEN_REMOTE_ID}
        assert await plugin.probe(make_job_batch(make_job())) == ["s:9:job"], "so a resend does not repeat it"


async def test_a_plugin_that_raises_makes_the_job_a_dead_letter(tmp_path: Path) -> None:
    raises = "\n    def on_delegation(self, *args, **kwargs): raise ValueError('no helpers here')\n"
    harness = HermesPluginHarness(tmp_path, RECORDER + raises)
    memories = {"it": {"provider": "hermes-plugin", "path": str(harness.plugin), "hermes_home": str(harness.home)}}
    main = {"memories": ["it"], "tools": []}
    async with RunningGateway(tmp_path, json.dumps({"agents": {"main": main}, "memories": memories})) as t:
        session = (await t.send_message("/background count the cats")).session

        async def dead_letters() -> bool:
            return any("no helpers here" in it.reason for it in await t.app.store.list_dead_letters(session=session))

        await t.wait_until(dead_letters)
        await t.send_and_wait("hello")
        await t.wait_until(lambda: [line[1] for line in harness.read_calls("sync_turn")] != [])
        await t.assert_sound()


@pytest.mark.prove
async def test_after_a_kill_of_host_or_gateway_the_result_is_sent_again(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, OVERSEER)
    hang = harness.home / "hang"
    harness.home.mkdir()
    where: dict[str, Any] = {"path": str(harness.plugin), "hermes_home": str(harness.home), "deadline_seconds": 10.0}
    # in a sandbox the process has another pid than it knows, and this test kills it
    memories = {"it": {"provider": "hermes-plugin", "serves": "everybody", "sandbox": "none", **where}}
    owner = {"people": [{"name": get_local_user()}], "access": {"owners": [get_local_user()]}}
    config = json.dumps({"agents": {"main": {"memories": ["it"], "tools": []}}, "memories": memories, **owner})
    gateway = GatewayProcess(tmp_path, config)

    async def say(text: str) -> None:
        answer = await gateway.http.post("/api/messages", json={"chat": "one", "text": text})
        assert answer.status_code == 202, answer.text

    def list_received() -> list[str]:
        return [line[1] for line in harness.read_calls("on_delegation")]

    await gateway.start()
    try:
        await gateway.wait_until_ready()
        await say("hello")
        await wait_until(lambda: len(harness.read_calls("sync_turn")) == 1)
        # the host dies during the call
        hang.touch()
        await say("/background count the cats")
        await wait_until(lambda: len(harness.read_calls("begun")) == 1)
        os.kill(harness.read_calls("begun")[0][1], signal.SIGKILL)
        hang.unlink()
        await wait_until(lambda: list_received() == ["count the cats"])
        # the gateway dies with the host
        hang.touch()
        await say("/background count the dogs")
        await wait_until(lambda: len(harness.read_calls("begun")) == 3)
        host = harness.read_calls("begun")[2][1]
        await gateway.kill()
        await wait_until(lambda: not Path(f"/proc/{host}").exists())
        hang.unlink()
        await gateway.start()
        await gateway.wait_until_ready()
        await wait_until(lambda: list_received() == ["count the cats", "count the dogs"])
        # both die during the work or before the delivery; the result is still not delivered more than twice
        await say("/background count the birds")
        await gateway.kill()
        await gateway.start()
        await gateway.wait_until_ready()
        await wait_until(lambda: list_received()[2:3] == ["count the birds"])
        await say("thanks")
        await wait_until(lambda: len(harness.read_calls("sync_turn")) >= 2)
        await asyncio.sleep(1)
        assert list_received()[:2] == ["count the cats", "count the dogs"]
        assert set(list_received()[2:]) == {"count the birds"}
        assert len(list_received()) <= 4, "at most the job in flight is delivered twice"
        children = [line[3] for line in harness.read_calls("on_delegation")]
        assert len(set(children)) == 3, "under a stable name"
        assert {line[1] for line in harness.read_calls("initialize")} == {harness.read_calls("initialize")[0][1]}
    finally:
        await gateway.kill()
        await gateway.http.aclose()
