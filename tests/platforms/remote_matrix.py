"""The remote Matrix for the platform contract: a real Synapse behind a proxy that fails on request."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

import httpx2

from everhold.infra.secret import SecretString
from everhold.platforms.matrix.adapter import MatrixPlatform
from everhold.platforms.matrix.settings import MatrixSettings
from everhold.ports.platform import Platform
from everhold.ports.plugin import PluginContext
from everhold.testing.contracts.platform import ShownMessage
from everhold.testing.platforms.loopback import LoopbackRequest, LoopbackResponse, LoopbackServer
from everhold.testing.platforms.synapse import CLIENT_API_PATH, MatrixTestMember, SynapseServer, render_timeline
from tests.waiting import LIMIT_SECONDS


class FaultyProxy(LoopbackServer):
    """Forwards everything to a homeserver, and fails on request."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._http = httpx2.AsyncClient(base_url=url, timeout=60.0)
        self.first = ""
        """The first sync token that was requested."""
        self.again = 0
        """How often everything is delivered again."""
        self.cap = 0
        """The most events per answer, as small servers limit them; 0: as many as requested."""
        self.over = asyncio.Event()
        self.chance = random.Random(0)

    async def stop(self) -> None:
        await super().stop()
        await self._http.aclose()

    def name_call(self, request: LoopbackRequest) -> str:
        path = request.path
        return next(
            (word for word in ("sync", "send", "typing", "upload", "download", "messages") if f"/{word}" in path), path
        )

    async def answer_call(self, request: LoopbackRequest) -> LoopbackResponse:
        query, replaying = dict(request.query), False
        if self.name_call(request) == "sync" and "since" in query:
            self.first = self.first or query["since"]
            replaying = self.again > 0
            query["since"] = self.first if replaying else query["since"]
        if self.cap and "/messages" in request.path:
            query["limit"] = str(self.cap)
        if self.cap and "filter" in query:
            wanted = json.loads(query["filter"])
            wanted["room"]["timeline"]["limit"] = self.cap
            query["filter"] = json.dumps(wanted)
        headers = {k: v for k, v in request.headers.items() if k in ("authorization", "content-type")}
        target = f"{quote(request.path)}?{urlencode(query)}"
        found = await self._http.request(request.method, target, content=request.body, headers=headers)
        body = found.content
        if replaying:
            self.again -= 1
            body = self._shuffled(json.loads(body), at=request.query["since"])
            if not self.again:
                self.over.set()
        return LoopbackResponse(found.status_code, body, found.headers.get("content-type", ""))

    def _shuffled(self, news: dict[str, Any], *, at: str) -> bytes:
        for room in news.get("rooms", {}).get("join", {}).values():
            self.chance.shuffle(room["timeline"]["events"])
        return json.dumps({**news, "next_batch": at}).encode()


class RemoteMatrix:
    platform = "matrix"
    offers = frozenset("edits groups drafts typing files redelivery poison history".split())

    def __init__(
        self,
        proxy: FaultyProxy,
        *,
        chat: str,
        group: str,
        people: tuple[MatrixTestMember, MatrixTestMember, MatrixTestMember],
        adapter: type[MatrixPlatform],
    ) -> None:
        self.proxy = proxy
        self.chat = chat
        self.group = group
        self.ada, self.eve, self.bot = people
        self.sender = self.ada.id
        self.adapter = adapter

    def build_adapter(self, context: PluginContext) -> Platform:
        settings = MatrixSettings(homeserver=self.proxy.url, token=SecretString(self.bot.token), poll_seconds=1)
        return self.adapter(settings, context)

    async def write(self, text: str, *, to: str) -> str:
        # a homeserver refuses lone surrogates, so clients replace them
        return await self.ada.send_text(to, text.encode("utf-8", "replace").decode())

    async def edit(self, id: str, text: str, *, to: str) -> None:
        new = {"msgtype": "m.text", "body": text}
        relation = {"rel_type": "m.replace", "event_id": id}
        await self.ada.send_event(to, {**new, "body": f"* {text}", "m.new_content": new, "m.relates_to": relation})

    async def mention(self, text: str, *, to: str) -> str:
        return await self.ada.send_text(to, f"@{self.bot.id}: {text}", **{"m.mentions": {"user_ids": [self.bot.id]}})

    async def write_as_impostor(self, text: str, *, to: str) -> str:
        await self.eve.join_room(to)
        await self.eve.call(
            "PUT", f"{CLIENT_API_PATH}/profile/{quote(self.eve.id)}/displayname", {"displayname": self.sender}
        )
        return await self.eve.send_text(to, text)

    async def reply(self, text: str, *, to: str, id: str) -> str:
        relation = {"rel_type": "m.thread", "event_id": id, "m.in_reply_to": {"event_id": id}}
        return await self.ada.send_text(to, text, **{"m.relates_to": relation})

    def list_calls(self) -> list[str]:
        receiving = ("sync", "whoami", "members", "messages")
        return [name for name, _ in self.proxy.calls if name.rpartition("/")[2] not in receiving]

    async def attach(self, text: str, name: str, data: bytes, *, to: str) -> str:
        content = {"msgtype": "m.file", "body": text, "filename": name, "url": await self.ada.upload(data)}
        return await self.ada.send_event(to, {**content, "info": {"size": len(data)}})

    async def send_unparsable_update(self) -> None:
        await self.ada.send_event(self.chat, {"msgtype": "m.image", "body": "a picture", "url": 5})

    def hang_files(self) -> None:
        self.proxy.hang_calls("download")

    def release_files(self) -> None:
        self.proxy.release_calls("download")

    async def send_unknown_update(self) -> None:
        await self.ada.send_event(self.chat, {"depth": [1, {"more": None}]}, kind="org.example.hologram")

    async def send_invalid_utf8(self) -> None:
        self.proxy.plan_fault(
            "sync", "answer", answer=LoopbackResponse(200, b'{"next_batch": "\xff\xfe\xc3("', "application/json")
        )

    async def redeliver(self, chance: random.Random) -> None:
        self.proxy.chance, self.proxy.again = chance, 3
        async with asyncio.timeout(LIMIT_SECONDS):
            await self.proxy.over.wait()

    def list_shown(self, chat: str) -> list[ShownMessage]:
        events = self._now(self.ada, "GET", f"{CLIENT_API_PATH}/rooms/{quote(chat)}/messages?dir=f&limit=500")["chunk"]
        return [
            ShownMessage(id=it.id, text="" if it.url else it.text, files=(self._file(it.url),) if it.url else ())
            for it in render_timeline(events)
            if it.sender == self.bot.id
        ]

    def _file(self, url: str) -> bytes:
        path = url.removeprefix("mxc://")
        headers = {"Authorization": f"Bearer {self.ada.token}"}
        return httpx2.get(f"{self.ada.url}/_matrix/client/v1/media/download/{path}", headers=headers).content

    def _now(self, who: MatrixTestMember, method: str, path: str, body: Any = None) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {who.token}"}
        answer = httpx2.request(method, who.url + path, json=body, headers=headers, timeout=60.0)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def fail_next_send(self, how: str) -> None:
        match how:
            case "limit":
                told: dict[str, Any] = {"errcode": "M_LIMIT_EXCEEDED", "error": "Too Many", "retry_after_ms": 7000}
                self.proxy.plan_fault("send", "answer", answer=LoopbackResponse.json(told, status=429))
            case "dead":
                told = {"errcode": "M_FORBIDDEN", "error": f"User {self.bot.id} not in room"}
                self.proxy.plan_fault("send", "answer", answer=LoopbackResponse.json(told, status=403))
            case "broken":
                self.proxy.plan_fault(
                    "send", "answer", answer=LoopbackResponse(502, b"<html>Bad Gateway</html>", "text/html")
                )
            case "hang":
                self.proxy.plan_fault("send", how)
            case "drop file after":
                self.proxy.plan_fault("send", "drop after", times=2)
            case "file too large":
                told = {"errcode": "M_TOO_LARGE", "error": "Cannot upload files larger than 4 bytes"}
                self.proxy.plan_fault("upload", "answer", answer=LoopbackResponse.json(told, status=413))
            case "drop before" | "drop after":
                self.proxy.plan_fault("send", how, times=2)  # the library repeats a PUT once
            case _:
                raise AssertionError(how)

    async def open_chats(self, count: int) -> list[str]:
        rooms = [await self.ada.create_room(self.bot.id, self.eve.id) for _ in range(count)]
        for room in rooms:
            await self.bot.join_room(room)
        return rooms

    def hang_history(self) -> None:
        # A sync then leaves events out, which are read from the history. An account's first sync has no history.
        self.proxy.cap = 1
        self.proxy.held.clear()
        self.proxy.hang_calls("messages")

    async def wait_for_history(self) -> None:
        await self.proxy.held.wait()

    def release_history(self) -> None:
        self.proxy.release_calls("messages")

    def disconnect(self) -> None:
        self.proxy.disconnect()

    def reconnect(self) -> None:
        self.proxy.reconnect()


@asynccontextmanager
async def open_remote_matrix(
    synapse: SynapseServer, adapter: type[MatrixPlatform] = MatrixPlatform
) -> AsyncIterator[RemoteMatrix]:
    """Ada and the agent in a direct chat, and both with Eve in a group."""
    ada, eve, bot = (
        await synapse.find_or_register("ada"),
        await synapse.find_or_register("eve"),
        await synapse.register_member("bot"),
    )
    async with ada, bot, eve, FaultyProxy(synapse.url) as proxy:
        chat, group = await asyncio.gather(ada.create_room(bot.id, direct=True), ada.create_room(bot.id, eve.id))
        await asyncio.gather(bot.join_room(chat), bot.join_room(group))  # an invited member counts too
        yield RemoteMatrix(proxy, chat=chat, group=group, people=(ada, eve, bot), adapter=adapter)
