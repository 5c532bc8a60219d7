"""`on_delegation`: the plug-in of whoever asked for a task hears what came of it, whoever is killed meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

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


def job(task: str = "count the cats", result: str = "There are three cats in the house by now.") -> JobResult:
    return JobResult(key="s:9:job", session="s", agent="main", seq=9, task=task, result=result, at=1.0, stamp=STAMP)


def jobs(*found: JobResult) -> MemoryBatch:
    return MemoryBatch(name=NAME, items=(), jobs=found)


async def test_it_hears_what_was_asked_and_what_came_of_it_as_the_one_who_asked(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, OVERSEER)
    async with harness.open() as plugin:
        assert MemoryCapability.JOBS in plugin.capabilities, "nobody knows yet"
        assert await plugin.store(jobs(job())) == {"s:9:job": ""}
    async with harness.open() as plugin:
        assert MemoryCapability.JOBS in plugin.capabilities
    received = ["on_delegation", "count the cats", "There are three cats in the house by now.", "s:9:job"]
    assert harness.read_calls("on_delegation") == [received]
    ((_, session, kwargs),) = harness.read_calls("initialize")
    assert (session, kwargs["user_id"], kwargs["gateway_session_key"]) == (NAME, "ada", STAMP.address)
    assert harness.read_calls("sync_turn") == []


@pytest.mark.parametrize("takes", ["task, result", "what, outcome, child_session_id=''", "*args, child_session_id"])
async def test_however_it_takes_it(tmp_path: Path, takes: str) -> None:
    source = f"{RECORDER}\n    def on_delegation(self, {takes}): write('on_delegation', *list(locals().values())[1:])\n"
    harness = HermesPluginHarness(tmp_path, source)
    async with harness.open() as plugin:
        await plugin.store(jobs(job("tea", "drunk")))
    ((_, *received),) = harness.read_calls("on_delegation")
    assert ("tea" in received and "drunk" in received) or ["tea", "drunk"] in received
    assert ("s:9:job" in received) == ("child_session_id" in takes)


async def test_one_without_it_is_not_even_made_ready(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, RECORDER)  # its base has the hook, and nothing happens there
    async with harness.open() as plugin:
        await plugin.store(jobs(job()))
        assert harness.read_calls() == []
        await plugin.store(make_batch(make_exchange("hello")))  # with its first turn it is known
    async with harness.open() as plugin:
        assert MemoryCapability.JOBS not in plugin.capabilities


async def test_what_it_shows_of_a_job_is_confirmed(tmp_path: Path) -> None:
    keeps = "\n    def on_delegation(self, task, result, **kwargs): self.kept.append(f'{task}: {result}')\n"
    async with HermesPluginHarness(tmp_path, KEEPER + keeps).open() as plugin:
        assert await plugin.probe(jobs(job())) == []
        assert await plugin.store(jobs(job())) == {"s:9:job": SEEN_REMOTE_ID}
        assert await plugin.probe(jobs(job())) == ["s:9:job"], "so a replay does not tell it again"


async def test_one_that_raises_there_has_it_parked_like_a_turn(tmp_path: Path) -> None:
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
async def test_its_host_or_the_gateway_killed_in_the_middle_of_it_and_it_is_told_again(tmp_path: Path) -> None:
    harness = HermesPluginHarness(tmp_path, OVERSEER)
    hang = harness.home / "hang"
    harness.home.mkdir()
    where: dict[str, Any] = {"path": str(harness.plugin), "hermes_home": str(harness.home), "deadline_seconds": 10.0}
    memories = {"it": {"provider": "hermes-plugin", **where}}
    config = json.dumps({"agents": {"main": {"memories": ["it"], "tools": []}}, "memories": memories})
    gateway = GatewayProcess(tmp_path, config)

    async def say(text: str) -> None:
        answer = await gateway.http.post("/api/messages", json={"chat": "one", "text": text})
        assert answer.status_code == 202, answer.text

    def received() -> list[str]:
        return [line[1] for line in harness.read_calls("on_delegation")]

    await gateway.start()
    try:
        await gateway.wait_until_ready()
        await say("hello")
        await wait_until(lambda: len(harness.read_calls("sync_turn")) == 1)
        # the host dies with the call in it
        hang.touch()
        await say("/background count the cats")
        await wait_until(lambda: len(harness.read_calls("begun")) == 1)
        os.kill(harness.read_calls("begun")[0][1], signal.SIGKILL)
        hang.unlink()
        await wait_until(lambda: received() == ["count the cats"])
        # the gateway dies, and its host with it
        hang.touch()
        await say("/background count the dogs")
        await wait_until(lambda: len(harness.read_calls("begun")) == 3)
        host = harness.read_calls("begun")[2][1]
        await gateway.kill()
        await wait_until(lambda: not Path(f"/proc/{host}").exists())
        hang.unlink()
        await gateway.start()
        await gateway.wait_until_ready()
        await wait_until(lambda: received() == ["count the cats", "count the dogs"])
        # both are dead while it is worked on, or before anybody was told: nobody is told twice either
        await say("/background count the birds")
        await gateway.kill()
        await gateway.start()
        await gateway.wait_until_ready()
        await wait_until(lambda: received()[2:3] == ["count the birds"])
        await say("thanks")
        await wait_until(lambda: len(harness.read_calls("sync_turn")) >= 2)
        await asyncio.sleep(1)
        assert received()[:2] == ["count the cats", "count the dogs"]
        assert set(received()[2:]) == {"count the birds"}
        assert len(received()) <= 4, "at most the one that was on its way comes twice"
        children = [line[3] for line in harness.read_calls("on_delegation")]
        assert len(set(children)) == 3, "under a name that is always the same"
        assert {line[1] for line in harness.read_calls("initialize")} == {harness.read_calls("initialize")[0][1]}
    finally:
        await gateway.kill()
        await gateway.http.aclose()
