"""The Telegram adapter against `crabline`, an independent implementation of the Bot API from npm.

Opt-in: `pytest -m prove tests/platforms/test_crabline.py`. It needs npm and a network to install from. A proxy adds the
faults that crabline does not have; features that it does not have are skipped.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everhold.infra.secret import SecretString
from everhold.platforms.telegram.adapter import TelegramPlatform
from everhold.platforms.telegram.settings import TelegramSettings
from everhold.ports.platform import Platform
from everhold.ports.plugin import PluginContext
from everhold.testing.contracts.platform import PlatformContract, ShownMessage
from everhold.testing.platforms.loopback import LoopbackRequest, LoopbackResponse, LoopbackServer

pytestmark = [pytest.mark.prove, pytest.mark.timeout(300)]

PACKAGE = "@openclaw/crabline@0.1.27"
BOT = "crabline_bot"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, installed in a directory of its own."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("there is no npm here")
    place = tmp_path_factory.mktemp("crabline")
    install = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(place), PACKAGE]
    done = subprocess.run(install, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        pytest.skip(f"{PACKAGE} cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    return place / "node_modules" / ".bin" / "crabline"


class Crabline:
    """Start a server for one test."""

    def __init__(self, program: Path, directory: Path) -> None:
        node = shutil.which("node") or "node"
        self.process = subprocess.Popen(
            [node, program, "serve", "telegram", "--json", "--port", "0", "--bot-username", BOT],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        told = ""
        for line in self.process.stdout:
            told += line
            if line.startswith("}"):
                break
        self.about: dict[str, Any] = json.loads(told)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class CrablineProxy(LoopbackServer):
    """Forwards everything to crabline, fails on request, and records the messages of bots."""

    def __init__(self, crabline: Crabline) -> None:
        super().__init__()
        self.about = crabline.about
        self.messages: dict[str, dict[str, str]] = {}
        self._http = httpx2.AsyncClient(base_url=self.about["baseUrl"], timeout=60.0, trust_env=False)

    async def stop(self) -> None:
        await super().stop()
        await self._http.aclose()

    def name_call(self, request: LoopbackRequest) -> str:
        return request.path.rpartition("/")[2]

    async def answer_call(self, request: LoopbackRequest) -> LoopbackResponse:
        headers = {"content-type": request.headers.get("content-type", "application/json")}
        told = await self._http.request(
            request.method, request.path, params=request.query, content=request.body, headers=headers
        )
        if self.name_call(request) in ("sendMessage", "editMessageText") and told.status_code == 200:
            message = told.json()["result"]
            self.messages.setdefault(str(message["chat"]["id"]), {})[str(message["message_id"])] = message["text"]
        return LoopbackResponse(told.status_code, told.content, told.headers.get("content-type", "application/json"))

    async def write(self, text: str, **more: Any) -> str:
        admin = {"authorization": f"Bearer {self.about['adminToken']}"}
        told = await self._http.post(
            self.about["endpoints"]["adminInboundUrl"], json={"text": text, **more}, headers=admin
        )
        assert told.status_code == 200, told.text
        return str(told.json()["update"]["message"]["message_id"])


class RemoteCrabline:
    platform = "telegram"
    chat = "1001"
    group = "-100123"
    sender = "1001"
    offers = frozenset("groups drafts typing rivals".split())

    def __init__(self, proxy: CrablineProxy) -> None:
        self.proxy = proxy

    def build_adapter(self, context: PluginContext) -> Platform:
        token = SecretString(self.proxy.about["botToken"])
        return TelegramPlatform(TelegramSettings(token=token, base_url=self.proxy.url, poll_seconds=1), context)

    async def write(self, text: str, *, to: str) -> str:
        if "\ud83d" in text:
            text = text.replace("\ud83d", "�")  # crabline refuses lone surrogates
        return await self.proxy.write(text, chatId=int(to), fromId=1001, fromName="Ada")

    async def mention(self, text: str, *, to: str) -> str:
        entity = {"type": "mention", "offset": 0, "length": len(BOT) + 1}
        return await self.proxy.write(f"@{BOT} {text}", chatId=int(to), fromId=1001, entities=[entity])

    async def write_as_impostor(self, text: str, *, to: str) -> str:
        return await self.proxy.write(text, chatId=int(to), fromId=666, fromName="Ada", fromUsername="ada_1001")

    async def edit(self, id: str, text: str, *, to: str) -> None:
        raise NotImplementedError

    async def reply(self, text: str, *, to: str, id: str) -> str:
        return await self.write(text, to=to)  # crabline's inbound messages cannot be replies

    def list_calls(self) -> list[str]:
        receiving = ("getMe", "getUpdates", "deleteWebhook", "setMyCommands")
        return [name for name, _ in self.proxy.calls if name not in receiving]

    async def attach(self, text: str, name: str, data: bytes, *, to: str) -> str:
        raise NotImplementedError

    def hang_files(self) -> None:
        raise NotImplementedError

    def release_files(self) -> None:
        raise NotImplementedError

    async def send_unparsable_update(self) -> None:
        raise NotImplementedError

    async def redeliver(self, chance: random.Random) -> None:
        raise NotImplementedError

    async def send_unknown_update(self) -> None:
        pytest.skip("crabline tells of nothing but messages")

    async def send_invalid_utf8(self) -> None:
        self.proxy.plan_fault(
            "getUpdates", "answer", answer=LoopbackResponse(200, b'{"ok": true, "result": ["\xff\xfe', "text/plain")
        )

    def list_shown(self, chat: str) -> list[ShownMessage]:
        return [ShownMessage(id=id, text=text) for id, text in self.proxy.messages.get(chat, {}).items()]

    def fail_next_send(self, how: str) -> None:
        told: dict[str, Any] = {"ok": False}
        match how:
            case "limit":
                told |= {"error_code": 429, "description": "Too Many Requests", "parameters": {"retry_after": 7}}
                self.proxy.plan_fault("sendMessage", "answer", answer=LoopbackResponse.json(told, status=429))
            case "dead":
                told |= {"error_code": 403, "description": "Forbidden: bot was blocked by the user"}
                self.proxy.plan_fault("sendMessage", "answer", answer=LoopbackResponse.json(told, status=403))
            case "broken":
                self.proxy.plan_fault("sendMessage", "answer", answer=LoopbackResponse(502, b"<html>", "text/html"))
            case "drop before" | "drop after" | "hang":
                self.proxy.plan_fault("sendMessage", how)
            case _:
                raise AssertionError(how)

    def disconnect(self) -> None:
        self.proxy.disconnect()

    def reconnect(self) -> None:
        self.proxy.reconnect()


class TestCrabline(PlatformContract):
    @pytest.fixture(autouse=True)
    def _installed(self, program: Path, tmp_path: Path) -> Iterator[None]:
        self.crabline = Crabline(program, tmp_path)
        yield
        self.crabline.close()

    @asynccontextmanager
    async def open_remote(self) -> AsyncIterator[RemoteCrabline]:
        async with CrablineProxy(self.crabline) as proxy:
            yield RemoteCrabline(proxy)
            await asyncio.sleep(0)
