"""A scripted model completes a whole task on a real gateway that is killed before and after every commit of it: it gets
a page, writes and edits a file, runs tests in the sandbox, gives a part to a sub-agent, makes a reminder, and asks a
person before it uses the network.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from everhold.app import SystemRandomSource
from everhold.core.entries import ApprovalDecided, Changed, Heard, Returned, Said, TaskRequested, ToolCall
from everhold.core.schedule import Schedule
from everhold.infra.child_process import ChildProcesses, SandboxKind
from everhold.ports.store import StateNamespace
from everhold.stores.sqlite.store import SqliteStore
from everhold.testing.http_listener import HttpListener, RawHttpRequest, write_response
from everhold.testing.kill import verdict
from everhold.testing.kill.gateway import KillableGateway
from everhold.testing.model_server import ModelServer, ModelServerReply, ModelServerStep, ReceivedModelRequest
from everhold.tools.shell import find_shell_problem
from tests.kill.task_gateway import AGAIN, LIST_VARIABLE

PATIENCE_SECONDS = 1_800.0
"""For all kills together, on a machine that does other things, too."""
TASK = "Do the task, and begin with the page {url}"


class PageServer(HttpListener):
    """One page, and how often it was read."""

    reads = 0

    async def serve_request(
        self, received: RawHttpRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        self.reads += 1
        await write_response(writer, 200, {"content-type": "text/plain"}, b"The answer has to be 42.")
        return True


class TaskScript:
    """The model: the next call follows from the results that it is shown. A call whose outcome is unknown is made again
    under another id, as a careful model does after it was told so.
    """

    def __init__(self, page: str) -> None:
        self.page = page

    def __call__(self, received: ReceivedModelRequest) -> ModelServerStep:
        messages = received.json["messages"]
        if "You are a sub-agent" in str(messages[0]["content"]):
            return self._work_as_sub_agent(messages)
        last_user = max(n for n, message in enumerate(messages) if message["role"] == "user")
        if "Result of sub-agent" in str(messages[last_user]["content"]):
            return ModelServerReply(text="the sub-agent has answered")
        if "Do the task" not in str(messages[last_user]["content"]):
            return ModelServerReply(text="the outcome was heard")
        results = [str(message["content"]) for message in messages[last_user:] if message["role"] == "tool"]
        steps = self._list_steps()
        for number, result in enumerate(results):
            if "unknown whether it was completed" in result:
                again = steps[number]
                steps.insert(number + 1, ToolCall(id=f"{again.id}{AGAIN}", tool=again.tool, arguments=again.arguments))
        if len(results) < len(steps):
            call = steps[len(results)]
            arguments = dict(call.arguments)
            if call.tool == "shell":
                arguments["command"] = f"echo {call.id} >> runs.txt; {arguments['command']}"
            return ModelServerReply(calls=(ToolCall(id=call.id, tool=call.tool, arguments=arguments),))
        passed = any("all tests passed" in result for result in results)
        return ModelServerReply(text="done, the tests passed" if passed else f"done, but {results}")

    def _list_steps(self) -> list[ToolCall]:
        test = "test \"$(cat answer.txt)\" = 'answer 42' && echo all tests passed"
        return [
            ToolCall(id="fetch", tool="web_fetch", arguments={"url": self.page}),
            ToolCall(id="write", tool="file_write", arguments={"path": "answer.txt", "text": "answer 4"}),
            # A second edit would find its text again, so a repeated one shows.
            ToolCall(id="edit", tool="file_edit", arguments={"path": "answer.txt", "old": "4", "new": "42"}),
            ToolCall(id="tests", tool="shell", arguments={"command": test}),
            ToolCall(id="part", tool="delegate", arguments={"task": "count the words of answer.txt"}),
            ToolCall(
                id="later", tool="schedule", arguments={"action": "create", "when": "in 3h", "text": "look again"}
            ),
            ToolCall(id="publish", tool="shell", arguments={"command": "true", "network": True}),
        ]

    def _work_as_sub_agent(self, messages: list[dict[str, Any]]) -> ModelServerStep:
        if not any(message["role"] == "tool" for message in messages):
            return ModelServerReply(calls=(ToolCall(id="look", tool="file_read", arguments={"path": "answer.txt"}),))
        return ModelServerReply(text=f"two words: {messages[-1]['content']}")


def make_config(model: str) -> str:
    return f"""\
models:
  fake: {{provider: openai, base_url: {model}, name: fake, api_key_env: MODEL_KEY}}
agents:
  main:
    persona: You are under test.
    memories: []
    tools: [files, shell, web_fetch, delegate, schedule]
    shell: {{network: true}}
"""


class TaskGateway(KillableGateway):
    """A gateway that ends itself, and is started again until the task is done."""

    def __init__(self, home: Path, configuration: str) -> None:
        program = ("-m", "tests.kill.task_gateway")
        super().__init__(home, configuration, secrets="MODEL_KEY=model-key-0123456789\n", program=program)
        self.shown: dict[str, str] = {}
        """Request -> the arguments that the person saw."""

    async def run_until_done(self, text: str) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        is_accepted = False
        while time.monotonic() < until:
            try:
                if self.process is None or self.process.returncode is not None:
                    self.process = None
                    await self.start()
                async with self.open_client(seconds=5) as client:
                    if not is_accepted:
                        answer = await client.post("/api/messages", json={"chat": "task", "text": text, "id": "1"})
                        is_accepted = answer.status_code in (200, 202)
                        assert is_accepted or answer.status_code >= 500, answer.text
                    await self._approve_requests(client)
                    sessions = (await client.get("/api/sessions")).json()["sessions"]
                    is_busy = any(it["pending"] or it["state"] != "idle" for it in sessions)
                    if sessions and not is_busy and await self._has_answered(client, sessions[0]["id"]):
                        return
            except (httpx2.HTTPError, AssertionError) as error:
                if isinstance(error, AssertionError) and "the gateway ended with" not in str(error):
                    raise
                if self.process is not None:
                    await asyncio.wait_for(self.process.wait(), 60)
            await asyncio.sleep(0.05)
        raise AssertionError("the task was not completed in time")

    async def _approve_requests(self, client: httpx2.AsyncClient) -> None:
        """Allow what waits for a person, as two operators do who see it at the same time."""
        for request in (await client.get("/api/approvals")).json()["approvals"]:
            if request["can_answer"]:
                self.shown[request["id"]] = request["arguments"]
                answer = {"decision": "once", "digest": request["digest"]}
                for _ in range(2):
                    taken = await client.post(f"/api/approvals/{request['id']}", json=answer)
                    assert taken.status_code in (200, 404, 409) or taken.status_code >= 500, taken.text

    async def _has_answered(self, client: httpx2.AsyncClient, session: str) -> bool:
        context = await client.get(f"/api/sessions/{session}/context")
        return "the sub-agent has answered" in context.text and "the outcome was heard" in context.text


@pytest.mark.prove
async def test_a_whole_task_is_completed_while_being_killed_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if await find_shell_problem(ChildProcesses(tmp_path), SandboxKind.AUTO) is not None:
        pytest.skip("no sandbox works on this machine")
    record = tmp_path / "kills.txt"
    monkeypatch.setenv(LIST_VARIABLE, str(record))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in (str(Path.cwd()), *sys.path) if path))
    pages = PageServer()
    await pages.start()
    async with ModelServer() as model:
        model.default = TaskScript(f"{pages.url}/task")
        gateway = TaskGateway(tmp_path / "home", make_config(model.openai))
        await gateway.run_until_done(TASK.format(url=f"{pages.url}/task"))
        await gateway.kill()
    await pages.stop()
    kills = record.read_text().splitlines()
    contents = await verdict.read_store(gateway.home.path, name="everhold.db")
    assert contents.problems == []
    assert list(verdict.check_answered(contents)) == []
    (log,) = contents.logs
    bodies = [entry.body for entry in log.entries]
    first, *others = [body.text for body in bodies if isinstance(body, Said)]
    assert first == "done, the tests passed", kills
    assert sorted(others) == ["the outcome was heard", "the sub-agent has answered"], kills
    heard = [body for body in bodies if isinstance(body, Heard)]
    assert sum(not body.delegated and not body.approval for body in heard) == 1, "it was heard once"
    assert sum(body.approval is not None for body in heard) == 1, "one outcome"
    assert [body.outcome for body in bodies if isinstance(body, ApprovalDecided)] == ["allowed"], "one answer stands"
    (arguments,) = gateway.shown.values()
    assert "echo publish >> runs.txt; true" in arguments, "what runs was shown"
    assert sum(isinstance(body, Heard) and bool(body.delegated) for body in bodies) == 1, "one result"
    assert sum(isinstance(body, Changed) and isinstance(body.change, TaskRequested) for body in bodies) == 1
    assert pages.reads >= 1
    (workspace,) = [path.parent for path in (gateway.home.path / "workspaces").rglob("answer.txt")]
    assert (workspace / "answer.txt").read_text() == "answer 42", "the edit was made once"
    runs = (workspace / "runs.txt").read_text().split()
    assert len(runs) == len(set(runs)), "no call of the shell ran twice"
    unknown = [body.call for body in bodies if isinstance(body, Returned) and body.unknown]
    assert {call.rstrip(AGAIN) for call in unknown} <= {"tests", "publish"}, "only the shell cannot say if it was done"
    schedules = await read_schedules(gateway.home.store)
    assert [it.text for it in schedules] == ["look again"]
    for call in ("fetch", "write", "edit", "tests", "part", "later", "publish", "look"):
        assert any(re.search(rf"before .*returned {call}\b", kill) for kill in kills), f"{call} was not killed"
    assert len(kills) > 30, kills


async def read_schedules(path: Path) -> list[Schedule]:
    store = SqliteStore.open(path, chance=SystemRandomSource())
    try:
        records = await store.list_state_records(StateNamespace.SCHEDULE)
        return [msgspec.json.decode(record.value, type=Schedule) for record in records]
    finally:
        await store.close()
