"""A gateway is killed again and again while a slow model answers several chats: all are answered once it stays."""

from __future__ import annotations

import functools
from pathlib import Path

from everhold.core.entries import Ended, Notified
from everhold.testing.kill import verdict
from everhold.testing.kill.gateway import KillableGateway
from everhold.testing.kill.http_trial import ENV_FILE_TEXT, MODEL_API_KEY
from everhold.testing.model_server import (
    HangingConnection,
    ModelServer,
    ModelServerReply,
    ModelServerStep,
    ReceivedModelRequest,
)
from tests.waiting import LIMIT_SECONDS, wait_until

CHATS = 4
KILLS = 8

CONFIG = """\
models:
  fake: {{provider: openai, base_url: {model}, name: fake, api_key_env: MODEL_KEY}}
agents:
  main: {{persona: You are under test., memories: [], tools: []}}
"""


class SlowModelScript:
    """Answers nothing before it is `calm`. Counts the requests that arrive."""

    def __init__(self) -> None:
        self.calm = False
        self.arrived = 0

    def has_arrived(self, count: int) -> bool:
        return self.arrived >= count

    def __call__(self, received: ReceivedModelRequest) -> ModelServerStep:
        self.arrived += 1
        return ModelServerReply(text="yes") if self.calm else HangingConnection()


async def test_a_gateway_that_is_killed_again_and_again_answers_everything_once_it_stays(tmp_path: Path) -> None:
    async with ModelServer(key=MODEL_API_KEY) as model:
        model.default = script = SlowModelScript()
        gateway = KillableGateway(tmp_path / "home", CONFIG.format(model=model.openai), secrets=ENV_FILE_TEXT)
        try:
            await gateway.start()
            async with gateway.open_client(seconds=LIMIT_SECONDS) as client:
                for n in range(CHATS):
                    body = {"chat": f"chat-{n}", "text": f"m{n}", "id": "k"}
                    assert (await client.post("/api/messages", json=body)).status_code == 202
            await wait_until(lambda: script.arrived >= CHATS)
            for kill in range(KILLS):
                # the first start tries all of them, the later ones try one
                wanted = script.arrived + (CHATS if kill == 0 else 1)
                await gateway.kill()
                await gateway.start()
                await wait_until(functools.partial(script.has_arrived, wanted))
            assert script.arrived == 2 * CHATS + KILLS - 1, "one at a time"
            await gateway.kill()
            script.calm = True
            await gateway.start()
            async with gateway.open_client(seconds=LIMIT_SECONDS) as client:

                async def is_idle() -> bool:
                    return not (await client.get("/api/status")).json()["waiting"]

                await wait_until(is_idle)
            await gateway.kill()
        finally:
            await gateway.close()
    contents = await verdict.read_store(gateway.home.path, name="everhold.db")
    assert not contents.problems, contents.problems
    assert not list(verdict.check_answered(contents))
    bodies = [entry.body for log in contents.logs for entry in log.entries]
    assert [body.outcome for body in bodies if isinstance(body, Ended)] == ["done"] * CHATS
    assert not [body for body in bodies if isinstance(body, Notified)]
