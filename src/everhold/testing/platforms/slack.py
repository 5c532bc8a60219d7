"""A Slack on loopback: socket mode and the part of the Web API that an app needs, with state and faults.

It reproduces what makes the real one difficult: an event that is not confirmed within seconds comes again, in another
envelope, three times and then never again; of several connections each gets a part of the events; threads are not in a
channel's history; long texts are cut off without an error, and edits have another limit than messages; a lost answer
looks the same whether the message was shown or not. Its minutes are shorter than real ones (`minute`). A test acts as
the people: `write_message`, `edit_message`, `use_command`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import json
import mimetypes
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

import httpx2

from everhold.testing.platforms.loopback import LoopbackRequest, LoopbackResponse
from everhold.testing.platforms.websocket import LoopbackSocket, LoopbackSocketServer

MAX_MESSAGE_CHARS: Final = 40_000
MAX_EDITED_CHARS: Final = 4_000
ACK_SECONDS: Final = 3.0


class SlackServerError(Exception):
    """The API's error answer."""

    def __init__(self, error: str, *, status: int = 200, **headers: str) -> None:
        super().__init__(error)
        self.error = error
        self.status = status
        self.headers = headers

    def make_response(self) -> LoopbackResponse:
        return LoopbackResponse.json({"ok": False, "error": self.error}, status=self.status, **self.headers)


@dataclass
class SlackServerApp:
    """One app in the workspace, and its connections."""

    bot_token: str
    app_token: str
    user: str
    bot: str
    name: str
    scopes: str = "chat:write,im:history,im:read,channels:history,files:read,files:write"
    sockets: list[LoopbackSocket] = field(default_factory=list)
    channels: list[str] = field(default_factory=list)
    sent_payloads: list[dict[str, Any]] = field(default_factory=list)
    """Every event for the app."""
    pending_acks: dict[str, asyncio.Event] = field(default_factory=dict)
    confirmed: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    """Events that Slack has given up."""
    signing_secret: str = ""
    """If set, the app is called at its request URL and has no socket."""
    request_url: Callable[[], str] = str


class SlackServer(LoopbackSocketServer):
    """`async with SlackServer() as server:`, then `server.add_app(…)` and point a client at `server.url + "/api/"`."""

    def __init__(self, *, minute_seconds: float = 1.0, ack_seconds: float = ACK_SECONDS) -> None:
        super().__init__()
        self.minute_seconds = minute_seconds
        self.ack_seconds = ack_seconds
        self.apps: list[SlackServerApp] = []
        self.messages: dict[str, dict[str, dict[str, Any]]] = {}
        """channel -> ts -> message, as in the history."""
        self.channel_errors: dict[str, str] = {}
        """Channels that cannot be written to -> the error."""
        self.now: Callable[[], float] = time.time
        """The time that signatures carry."""
        self.names: dict[str, str] = {}
        """Display names of people, if they differ from their ids."""
        self.max_file_bytes = 1_000_000_000
        """The largest accepted file."""
        self.retry_after_seconds: dict[str, int] = {}
        """Channels that answer 429 to the next call, with the seconds to wait."""
        self.files: dict[str, dict[str, Any]] = {}
        self.contents: dict[str, bytes] = {}
        self.edits: dict[tuple[str, str], int] = {}
        self._count = itertools.count(1)
        self._turn = itertools.count()
        self._last = 0.0
        self._deliveries: set[asyncio.Task[None]] = set()

    def add_app(self, bot_token: str, app_token: str, *, name: str = "everhold") -> SlackServerApp:
        number = len(self.apps) + 1
        self.apps.append(SlackServerApp(bot_token, app_token, f"UBOT{number}", f"BBOT{number}", name))
        return self.apps[-1]

    def invite_app(self, app: SlackServerApp, channel: str) -> None:
        if channel not in app.channels:
            app.channels.append(channel)

    async def stop(self) -> None:
        for task in list(self._deliveries):
            task.cancel()
        await asyncio.gather(*self._deliveries, return_exceptions=True)
        await super().stop()

    # -- people ------------------------------------------------------------------------------------------------------

    async def write_message(
        self,
        text: str,
        *,
        channel: str,
        user: str = "UADA",
        thread: str = "",
        files: Sequence[tuple[str, bytes]] = (),
        **more: Any,
    ) -> str:
        """Write as a person in a channel of an app, and return the message's ts."""
        if channel.startswith("D"):
            self.invite_app(self.apps[0], channel)  # a direct chat opens by itself
        ts = str(more.pop("ts", "")) or self._next_ts()
        message: dict[str, Any] = {"type": "message", "user": user, "text": text, "ts": ts}
        if thread:
            message |= {"thread_ts": thread, "parent_user_id": self.messages[channel][thread].get("user")}
        if files:
            message |= {"subtype": "file_share", "files": [self._store_file(name, data) for name, data in files]}
        message |= more
        self._add_message(channel, message)
        await self._send_channel_event(
            channel, {**message, "channel": channel, "event_ts": ts, **_make_channel_type_fields(channel)}
        )
        return ts

    async def share_message(self, ts: str, *, source: str, channel: str, comment: str = "", **how: Any) -> str:
        """Share a message of another channel as a person, with or without a comment."""
        shared = {**self._make_message_attachment(source, ts), "is_share": True}
        return await self.write_message(comment, channel=channel, attachments=[shared], **how)

    async def link_message(self, ts: str, *, source: str, channel: str, text: str, **how: Any) -> str:
        """Write a message with the link of another message, which Slack shows below it."""
        return await self.write_message(
            text, channel=channel, attachments=[self._make_message_attachment(source, ts)], **how
        )

    def _make_message_attachment(self, channel: str, ts: str) -> dict[str, Any]:
        original = self.messages[channel][ts]
        url = f"https://example.slack.com/archives/{channel}/p{ts.replace('.', '')}"
        name = self.names.get(original["user"], original["user"])
        return {
            "id": 1,
            "ts": ts,
            "channel_id": channel,
            "author_id": original["user"],
            "author_name": name,
            "author_subname": name,
            "author_link": f"https://example.slack.com/team/{original['user']}",
            "from_url": url,
            "original_url": url,
            "is_msg_unfurl": True,
            "text": original["text"],
            "fallback": f"[November 18th, 2026 3:33 AM] {name}: {original['text']}",
            "mrkdwn_in": ["text"],
            "footer": "Posted in #a-channel",
            **({"files": original["files"]} if original.get("files") else {}),
        }

    async def edit_message(self, ts: str, text: str, *, channel: str) -> None:
        """Edit a person's message."""
        before = dict(self.messages[channel][ts])
        self.messages[channel][ts] |= {"text": text, "edited": {"user": before["user"], "ts": self._next_ts()}}
        await self._send_message_change(channel, self.messages[channel][ts], before)

    async def use_command(self, command: str, text: str, *, channel: str, user: str = "UADA") -> None:
        """Use a slash command that the app has registered. Slack does not repeat commands."""
        payload = {
            "token": "t",
            "team_id": "T1",
            "channel_id": channel,
            "channel_name": "general",
            "user_id": user,
            "user_name": "ada",
            "command": command,
            "text": text,
            "trigger_id": f"1334.{next(self._count)}.8fbd46",
            "response_url": f"{self.url}/response",
            "api_app_id": "A1",
        }
        for app in self.apps:
            await self._send_envelope(app, "slash_commands", payload, attempt=0)

    async def press_button(
        self, label: str, *, message: str, channel: str, user: str = "UADA", team: str = "T1"
    ) -> int:
        """Press a button under an app's message; return how many apps confirmed that."""
        shown = self.messages[channel][message]
        buttons = [it for block in shown["blocks"] for it in block.get("elements", ())]
        pressed = next(it for it in buttons if it["text"]["text"] == label)
        payload = {
            "type": "block_actions",
            "team": {"id": team, "domain": "t"},
            "user": {"id": user, "username": "ada", "team_id": team},
            "channel": {"id": channel, "name": "general"},
            "message": shown,
            "trigger_id": f"1334.{next(self._count)}.8fbd46",
            "actions": [{"type": "button", "action_id": pressed["action_id"], "value": pressed["value"]}],
        }
        return sum([await self._send_envelope(app, "interactive", payload, attempt=0) for app in self.apps])

    async def send_event(self, event: Any, *, type: str = "events_api") -> None:
        """Send any other event with exactly this data."""
        for app in self.apps:
            self._deliver_event(app, event, type=type)

    async def redeliver(self, *, times: int = 1, chance: random.Random | None = None) -> None:
        """Deliver everything again, in random order. Returns when all of it was confirmed."""
        for app in self.apps:
            again = [payload for _ in range(times) for payload in app.sent_payloads]
            if chance is not None:
                chance.shuffle(again)
            for payload in again:
                await self._deliver_with_retries(app, payload, type="events_api")

    async def disconnect_sockets(self, reason: str = "refresh_requested") -> None:
        """Ask for new connections, as Slack does from time to time, or disable them, and close the existing ones."""
        for app in self.apps:
            for socket in list(app.sockets):
                await socket.send_json({"type": "disconnect", "reason": reason, "debug_info": {}})
                await socket.close()

    def list_shown_messages(self, channel: str) -> list[dict[str, Any]]:
        """Return the apps' messages in a channel, threads included, in their current form."""
        bots = {app.user for app in self.apps}
        return [it for it in self.messages.get(channel, {}).values() if it.get("user") in bots]

    # -- events ------------------------------------------------------------------------------------------------------

    async def _send_channel_event(self, channel: str, event: dict[str, Any]) -> None:
        for app in self.apps:
            if channel in app.channels:
                self._deliver_event(app, event)
                if f"<@{app.user}>" in (event.get("text") or "") and not channel.startswith("D"):
                    # an app that subscribed to both gets a mention twice, as two events
                    mention = {key: value for key, value in event.items() if key not in ("channel_type", "subtype")}
                    self._deliver_event(app, {**mention, "type": "app_mention"})
        await asyncio.sleep(0)

    async def _send_message_change(self, channel: str, message: dict[str, Any], before: dict[str, Any]) -> None:
        event = {
            "type": "message",
            "subtype": "message_changed",
            "hidden": True,
            "channel": channel,
            "message": message,
            "previous_message": before,
            "ts": self._next_ts(),
            "event_ts": self._next_ts(),
            **_make_channel_type_fields(channel),
        }
        await self._send_channel_event(channel, json.loads(json.dumps(event)))

    def _deliver_event(self, app: SlackServerApp, event: Any, *, type: str = "events_api") -> None:
        id = f"Ev{next(self._count):08d}"
        payload = {
            "token": "t",
            "team_id": "T1",
            "api_app_id": "A1",
            "type": "event_callback",
            "event": event,
            "event_id": id,
            "event_time": int(time.time()),
            "authorizations": [{"team_id": "T1", "user_id": app.user, "is_bot": True}],
        }
        app.sent_payloads.append(payload)
        task = asyncio.get_running_loop().create_task(self._deliver_with_retries(app, payload, type=type))
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)

    async def _deliver_with_retries(self, app: SlackServerApp, payload: dict[str, Any], *, type: str) -> None:
        for attempt, pause in enumerate(
            (0.0, 0.15, 1.0, 5.0)
        ):  # at once, nearly at once, after a minute, after five minutes
            await asyncio.sleep(pause * self.minute_seconds)
            if await self._send_envelope(app, type, payload, attempt=attempt):
                app.confirmed.append(payload["event_id"])
                return
        app.forgotten.append(payload["event_id"])

    async def post_event(self, app: SlackServerApp, body: bytes, *, attempt: int = 0) -> int:
        """Call the app's request URL with Slack's signature. Returns the status, 0 if there was no answer."""
        stamp = str(int(self.now()))
        signature = hmac.new(app.signing_secret.encode(), f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
        headers = {"x-slack-request-timestamp": stamp, "x-slack-signature": f"v0={signature}"}
        headers |= {"content-type": "application/json"} if body.startswith(b"{") else {}
        headers |= {"x-slack-retry-num": str(attempt), "x-slack-retry-reason": "http_error"} if attempt else {}
        if self.is_down:
            return 0
        try:
            # certificates take longer to load than the call
            async with httpx2.AsyncClient(trust_env=False, verify=False, timeout=self.ack_seconds) as client:  # nosec B501
                return (await client.post(app.request_url(), content=body, headers=headers)).status_code
        except (httpx2.HTTPError, OSError):
            return 0

    async def _send_envelope(self, app: SlackServerApp, type: str, payload: dict[str, Any], *, attempt: int) -> bool:
        if app.signing_secret:
            body = json.dumps(payload).encode()
            if type == "slash_commands":
                body = urlencode(payload).encode()
            elif type == "interactive":
                body = urlencode({"payload": json.dumps(payload)}).encode()
            return await self.post_event(app, body, attempt=attempt) == 200
        sockets = [socket for socket in app.sockets if not socket.closed]
        if not sockets:
            return False
        socket = sockets[next(self._turn) % len(sockets)]
        id = f"envelope-{next(self._count)}"
        app.pending_acks[id] = asyncio.Event()
        envelope = {"envelope_id": id, "type": type, "payload": payload, "accepts_response_payload": False}
        await socket.send_json({**envelope, "retry_attempt": attempt, "retry_reason": "timeout" if attempt else ""})
        try:
            async with asyncio.timeout(self.ack_seconds):
                await app.pending_acks[id].wait()
        except TimeoutError:
            return False
        finally:
            del app.pending_acks[id]
        return not socket.closed

    async def serve_socket(self, request: LoopbackRequest, socket: LoopbackSocket) -> None:
        app = next(it for it in self.apps if it.name == request.query["app"])
        app.sockets.append(socket)
        try:
            info = {"host": "applink", "approximate_connection_time": 18060}
            count = sum(not open_socket.closed for open_socket in app.sockets)
            await socket.send_json(
                {"type": "hello", "num_connections": count, "debug_info": info, "connection_info": {}}
            )
            while (message := await socket.receive_json()) is not None:
                if (waiting := app.pending_acks.get(message.get("envelope_id"))) is not None:
                    waiting.set()
        finally:
            app.sockets.remove(socket)
            for waiting in app.pending_acks.values():
                waiting.set() if not app.sockets else None

    # -- the Web API -------------------------------------------------------------------------------------------------

    def name_call(self, request: LoopbackRequest) -> str:
        return request.path.removeprefix("/api/") if request.path.startswith("/api/") else request.path.split("/")[1]

    async def answer_call(self, request: LoopbackRequest) -> LoopbackResponse:
        try:
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            if request.path.startswith("/upload/"):
                self.contents[request.path.rpartition("/")[2]] = request.body
                return LoopbackResponse(body=b"OK", media="text/plain")
            if request.path.startswith("/files/"):
                return self._download(request, token)
            given = {**request.query, **request.fields}
            if self.name_call(request) == "apps.connections.open":
                return self._open_connection(given.get("token") or token)
            app = next((app for app in self.apps if app.bot_token == token), None)
            if app is None:
                raise SlackServerError("invalid_auth")
            method = getattr(self, "_" + self.name_call(request).replace(".", "_"), None)
            if method is None:
                raise SlackServerError("unknown_method")
            answer = {"ok": True, **await method(app, given)}
            return LoopbackResponse(body=json.dumps(answer).encode(), headers={"x-oauth-scopes": app.scopes})
        except SlackServerError as failed:
            return failed.make_response()

    def _open_connection(self, token: str) -> LoopbackResponse:
        app = next((app for app in self.apps if app.app_token == token), None)
        if app is None:
            raise SlackServerError("invalid_auth")
        return LoopbackResponse.json({"ok": True, "url": f"ws://127.0.0.1:{self.port}/link?app={app.name}"})

    async def _auth_test(self, app: SlackServerApp, given: dict[str, Any]) -> dict[str, Any]:
        return {"url": self.url, "team": "T", "user": app.name, "team_id": "T1", "user_id": app.user, "bot_id": app.bot}

    async def _users_info(self, app: SlackServerApp, given: dict[str, Any]) -> dict[str, Any]:
        name = self.names.get(given["user"]) or str(given["user"]).removeprefix("U").lower()
        return {
            "user": {"id": given["user"], "name": name, "real_name": name.title(), "profile": {"display_name": name}}
        }

    async def _users_conversations(self, app: SlackServerApp, given: dict[str, Any]) -> dict[str, Any]:
        if not given.get("types"):
            raise SlackServerError("invalid_types")
        return self._make_page([{"id": channel} for channel in app.channels], "channels", given)

    async def _chat_postMessage(self, app: SlackServerApp, given: dict[str, Any]) -> dict[str, Any]:
        channel = self._check_writable(app, given)
        if not given.get("text"):
            raise SlackServerError("no_text")
        message: dict[str, Any] = {
            "type": "message",
            "user": app.user,
            "bot_id": app.bot,
            "bot_profile": {"name": app.name},
            "text": given["text"][:MAX_MESSAGE_CHARS],
            "ts": self._next_ts(),
        }
        if given.get("thread_ts"):
            message["thread_ts"] = given["thread_ts"]
        if given.get("metadata"):
            message["metadata"] = json.loads(given["metadata"])
        if given.get("blocks"):
            message["blocks"] = _check_blocks(json.loads(given["blocks"]))
        self._add_message(channel, message)
        event = {key: value for key, value in message.items() if key != "metadata"}
        await self._send_channel_event(
            channel, {**event, "channel": channel, "event_ts": message["ts"], **_make_channel_type_fields(channel)}
        )
        return {"channel": channel, "ts": message["ts"], "message": message}

    async def _chat_update(self, app: SlackServerApp, given: dict[str, Any]) -> dict[str, Any]:
        channel = self._check_writable(app, given)
        message = self.messages.get(channel, {}).get(given["ts"])
        if message is None:
            raise SlackServerError("message_not_found")
        if message.get("user") != app.user:
            raise SlackServerError("cant_update_message")
        if not given.get("text"):
            raise SlackServerError("no_text")
        if len(given["text"]) > MAX_EDITED_CHARS:
            raise SlackServerError("msg_too_long")
        before = dict(message)
        message["text"] = given["text"]
        if given.get("metadata"):
            message["metadata"] = json.loads(given["metadata"])
        self.edits[(channel, given["ts"])] = self.edits.get((channel, given["ts"]), 0) + 1
        await self._send_message_change(
            channel, {**message, "edited": {"user": app.user, "ts": self._next_ts()}}, before
        )
        return {"channel": channel, "ts": given["ts"], "text": given["text"]}

    async def _chat_delete(self, app: SlackServerApp, given: dict[str, Any]) -> dict[str, Any]:
        if self.messages.get(given["channel"], {}).pop(given["ts"], None) is None:
            raise SlackServerError("message_not_found")
        return {"channel": given["channel"], "ts": given["ts"]}

    async def _conversations_history(self, app: SlackServerApp, given: dict[str, Any]) -> dict[str, Any]:
        channel = self._check_member(app, given)
        found = [
            self._make_history_message(channel, it, given)
            for it in self.messages.get(channel, {}).values()
            if it.get("thread_ts", it["ts"]) == it["ts"] or it.get("subtype") == "thread_broadcast"
        ]
        return self._make_page([it for it in reversed(found) if _is_within_range(it, given)], "messages", given)

    async def _conversations_replies(self, app: SlackServerApp, given: dict[str, Any]) -> dict[str, Any]:
        channel, thread = self._check_member(app, given), given["ts"]
        if thread not in self.messages.get(channel, {}):
            raise SlackServerError("thread_not_found")
        found = [
            self._make_history_message(channel, it, given)
            for it in self.messages[channel].values()
            if it["ts"] == thread or (it.get("thread_ts") == thread and _is_within_range(it, given))
        ]
        return self._make_page(found, "messages", given)

    async def _files_getUploadURLExternal(self, app: SlackServerApp, given: dict[str, Any]) -> dict[str, Any]:
        if int(given["length"]) > self.max_file_bytes:
            raise SlackServerError("file_upload_size_restricted")
        id = f"F{next(self._count)}"
        self.files[id] = {"id": id, "name": given["filename"], "size": int(given["length"]), "mode": "hosted"}
        return {"upload_url": f"{self.url}/upload/{id}", "file_id": id}

    async def _files_completeUploadExternal(self, app: SlackServerApp, given: dict[str, Any]) -> dict[str, Any]:
        channel = self._check_writable(app, {"channel": given["channel_id"]})
        ids = [it["id"] for it in json.loads(given["files"])]
        if any(len(self.contents.get(id, b"")) != self.files[id]["size"] for id in ids):
            raise SlackServerError("file_not_found")
        message = {"type": "message", "user": app.user, "bot_id": app.bot, "text": given.get("initial_comment") or ""}
        message |= {"ts": self._next_ts(), "files": [self.files[id] for id in ids]}
        if given.get("thread_ts"):
            message["thread_ts"] = given["thread_ts"]
        self._add_message(channel, message)
        return {"files": [self.files[id] for id in ids]}

    async def _files_info(self, app: SlackServerApp, given: dict[str, Any]) -> dict[str, Any]:
        if given["file"] not in self.files:
            raise SlackServerError("file_not_found")
        return {"file": self.files[given["file"]]}

    def _download(self, request: LoopbackRequest, token: str) -> LoopbackResponse:
        if token not in {app.bot_token for app in self.apps}:
            return LoopbackResponse(body=b"<html>Sign in</html>", media="text/html")  # as the real one does
        return LoopbackResponse(body=self.contents[request.path.split("/")[2]], media="application/octet-stream")

    # -- internal ----------------------------------------------------------------------------------------------------

    def _next_ts(self) -> str:
        self._last = max(time.time(), self._last + 0.000_002)
        return f"{self._last:.6f}"

    def _add_message(self, channel: str, message: dict[str, Any]) -> None:
        self.messages.setdefault(channel, {})[message["ts"]] = message

    def _check_member(self, app: SlackServerApp, given: dict[str, Any]) -> str:
        channel = str(given.get("channel") or "")
        if channel not in app.channels:
            raise SlackServerError("not_in_channel" if channel in self.messages else "channel_not_found")
        if channel in self.channel_errors:
            raise SlackServerError(self.channel_errors[channel])
        return channel

    def _check_writable(self, app: SlackServerApp, given: dict[str, Any]) -> str:
        """Return the channel of a call that writes, unless it cannot be written to."""
        channel = self._check_member(app, given)
        if wait := self.retry_after_seconds.pop(channel, 0):
            raise SlackServerError("ratelimited", status=429, **{"Retry-After": str(wait)})
        return channel

    def _make_history_message(self, channel: str, message: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        """Return a message as a history shows it, which differs from an event."""
        shown = dict(message)
        if given.get("include_all_metadata") not in ("true", "1"):
            shown.pop("metadata", None)
        replies = [
            it["ts"] for it in self.messages[channel].values() if it.get("thread_ts") == message["ts"] != it["ts"]
        ]
        if replies:
            shown |= {"thread_ts": message["ts"], "reply_count": len(replies), "latest_reply": replies[-1]}
        return shown

    def _make_page(self, found: list[dict[str, Any]], what: str, given: dict[str, Any]) -> dict[str, Any]:
        start, limit = int(given.get("cursor") or 0), int(given.get("limit") or 100)
        following = str(start + limit) if len(found) > start + limit else ""
        return {
            what: found[start : start + limit],
            "has_more": bool(following),
            "response_metadata": {"next_cursor": following},
        }

    def _store_file(self, name: str, data: bytes) -> dict[str, Any]:
        id = f"F{next(self._count)}"
        self.contents[id] = data
        self.files[id] = {
            "id": id,
            "name": name,
            "mimetype": mimetypes.guess_type(name)[0] or "text/plain",
            "size": len(data),
            "mode": "hosted",
            "is_external": False,
            "url_private": f"{self.url}/files/{id}/x",
            "url_private_download": f"{self.url}/files/{id}/x",
        }
        return self.files[id]


def _is_within_range(message: dict[str, Any], given: dict[str, Any]) -> bool:
    return float(given.get("oldest") or 0) < float(message["ts"])


def _make_channel_type_fields(channel: str) -> dict[str, str]:
    return {"channel_type": "im" if channel.startswith("D") else "channel"}


def _check_blocks(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Refuse blocks that Slack refuses: more than 50, or a section of more than 3,000 characters."""
    texts = [block["text"]["text"] for block in blocks if block["type"] == "section"]
    if len(blocks) > 50 or any(not 0 < len(text) <= 3_000 for text in texts):
        raise SlackServerError("invalid_blocks")
    return blocks
