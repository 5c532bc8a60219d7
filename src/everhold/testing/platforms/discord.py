"""A Discord on loopback: the gateway and the part of the API that a bot needs, with state and faults.

It reproduces what makes the real one difficult: events are not acknowledged; a connection that resumes its session gets
the missed events, any other connection gets none; sessions expire; direct chats cannot be listed; texts have at most
2,000 characters and are trimmed; rate limit buckets run empty; a nonce is known for some minutes only and may be
missing in the history; a lost answer looks the same whether the message was shown or not. A test acts as the people:
`write_message`, `edit_message`, `use_command`.
"""

from __future__ import annotations

import datetime
import itertools
import json
import mimetypes
import random
import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from everhold.testing.platforms.loopback import LoopbackRequest, LoopbackResponse
from everhold.testing.platforms.websocket import LoopbackSocket, LoopbackSocketServer

MAX_MESSAGE_CHARS: Final = 2_000
MAX_FILE_BYTES: Final = 10_000_000
EPOCH_MS: Final = 1_420_070_400_000
API_PATH: Final = "/api/v10"
_PERMISSIONS: Final = "2248473465835073"


class DiscordServerError(Exception):
    """The API's error answer."""

    def __init__(self, status: int, code: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.response_body = {"message": message, "code": code, **more}
        self.headers: dict[str, str] = {}

    def make_response(self) -> LoopbackResponse:
        return LoopbackResponse.json(self.response_body, status=self.status, **self.headers)


@dataclass
class DiscordServerSession:
    """The events of one connection and of those that resume it."""

    id: str
    bot: DiscordServerBot
    sent_events: list[dict[str, Any]] = field(default_factory=list)
    socket: LoopbackSocket | None = None


@dataclass
class DiscordServerBot:
    token: str
    id: str
    username: str
    sessions: dict[str, DiscordServerSession] = field(default_factory=dict)
    commands: list[dict[str, Any]] = field(default_factory=list)
    reads_messages: bool = True
    """Whether the bot may read message content. If not, the gateway refuses it with that intent."""

    def make_user(self) -> dict[str, Any]:
        return _make_user(self.id, self.username, bot=True)


class DiscordServer(LoopbackSocketServer):
    """`async with DiscordServer() as server:`, then `server.add_bot(token)` and point a client at `server.api`."""

    def __init__(
        self, *, nonce_seconds: float = 180.0, tells_nonces: bool = True, bucket: int = 50, window: float = 1.0
    ) -> None:
        super().__init__()
        self.bucket = bucket
        """How many messages a channel accepts within `window` seconds."""
        self.window = window
        self.rate_limited_count = 0
        self._recent_posts: dict[str, deque[float]] = {}
        self.nonce_seconds = nonce_seconds
        self.tells_nonces = tells_nonces
        """Whether a history contains the nonces of messages."""
        self.bots: dict[str, DiscordServerBot] = {}
        self.guilds: dict[str, list[str]] = {}
        """guild -> its channels and threads."""
        self.channels: dict[str, dict[str, Any]] = {}
        self.messages: dict[str, dict[str, dict[str, Any]]] = {}
        self.channel_errors: dict[str, DiscordServerError] = {}
        self.max_file_bytes = MAX_FILE_BYTES
        """The largest accepted file."""
        self.retry_after_seconds: dict[str, float] = {}
        """Channels that answer 429 to the next call, with the seconds to wait."""
        self.typing: list[str] = []
        self.interaction_responses: list[tuple[str, dict[str, Any]]] = []
        """How interactions were confirmed."""
        self.contents: dict[str, bytes] = {}
        self.identified = 0
        self.resumed = 0
        self.nonces: dict[tuple[str, str], tuple[float, str]] = {}
        self._count = itertools.count(1)
        self._last = 0

    @property
    def api(self) -> str:
        return self.url + API_PATH

    def add_bot(self, token: str, *, username: str = "everhold") -> DiscordServerBot:
        self.bots[token] = DiscordServerBot(token, str(900 + len(self.bots)), username)
        return self.bots[token]

    def add_guild(self, id: str = "100") -> str:
        self.guilds.setdefault(id, [])
        return id

    def add_channel(self, id: str, *, guild: str = "100", parent: str = "") -> str:
        """Add a channel of a server, or a thread of one."""
        self.guilds[self.add_guild(guild)].append(id)
        kind = (
            {"type": 11, "parent_id": parent, "thread_metadata": _THREAD_METADATA}
            if parent
            else {"type": 0, "parent_id": None}
        )
        self.channels[id] = {"id": id, "guild_id": guild, "name": f"c{id}", "last_message_id": None, **kind}
        self.channels[id] |= {"position": 0, "permission_overwrites": [], "nsfw": False, "topic": None}
        self.channels[id] |= {"rate_limit_per_user": 0, "owner_id": "1001", "member_count": 1, "message_count": 0}
        return id

    async def create_thread(self, id: str, *, parent: str) -> str:
        """Open a thread as a person. The bots in the server hear of it."""
        self.add_channel(id, guild=str(self.channels[parent]["guild_id"]), parent=parent)
        await self.dispatch_event("THREAD_CREATE", {**self.channels[id], "newly_created": True})
        return id

    def add_direct_channel(self, id: str, user: str = "1001") -> str:
        self.channels[id] = {"id": id, "type": 1, "recipients": [_make_user(user, "ada")], "last_message_id": None}
        return id

    # -- people ------------------------------------------------------------------------------------------------------

    async def write_message(
        self,
        text: str,
        *,
        channel: str,
        user: str = "1001",
        name: str = "ada",
        reply_to: str = "",
        files: Sequence[tuple[str, bytes]] = (),
        **more: Any,
    ) -> str:
        """Write as a person in a channel that a bot can read, and return the message's id."""
        message = self._make_message(channel, _make_user(user, name), text, reply_to=reply_to)
        message["attachments"] = [self._store_file(name, data) for name, data in files]
        message |= more
        await self._add_message(channel, message)
        return str(message["id"])

    async def forward_message(self, id: str, *, source: str, channel: str, **how: Any) -> str:
        """Forward a message of another channel as a person. Discord copies the message and does not name its author."""
        original = self.messages[source][id]
        copied = ("type", "content", "embeds", "attachments", "timestamp", "edited_timestamp", "flags", "mentions")
        snapshot = {key: original[key] for key in (*copied, "mention_roles", "components")}
        reference = {"type": 1, "message_id": id, "channel_id": source}
        return await self.write_message(
            "", channel=channel, message_reference=reference, message_snapshots=[{"message": snapshot}], flags=1 << 14,
            **how,
        )  # fmt: skip

    async def edit_message(self, id: str, text: str, *, channel: str) -> None:
        """Edit a person's message."""
        self.messages[channel][id] |= {"content": text, "edited_timestamp": _format_now()}
        await self._dispatch_message("MESSAGE_UPDATE", channel, self.messages[channel][id])

    async def use_command(self, name: str, text: str = "", *, channel: str, user: str = "1001") -> str:
        """Use a command that the bot has registered."""
        data = {
            "id": self._next_id(),
            "name": name,
            "type": 1,
            "options": [{"name": "text", "type": 3, "value": text}] if text else [],
        }
        return await self._interact(2, data, channel=channel, user=user)

    async def press_button(self, label: str, *, message: str, channel: str, user: str = "1001") -> str:
        """Press a button under a bot's message."""
        shown = self.messages[channel][message]
        buttons = {it["label"]: it["custom_id"] for row in shown["components"] for it in row["components"]}
        data = {"component_type": 2, "custom_id": buttons[label]}
        return await self._interact(3, data, channel=channel, user=user, message=shown)

    async def _interact(self, type: int, data: dict[str, Any], *, channel: str, user: str, **more: Any) -> str:
        id = self._next_id()
        interaction = {
            "id": id,
            "application_id": "900",
            "type": type,
            "token": f"interaction-{id}",
            "version": 1,
            "locale": "en-US",
            "channel_id": channel,
            "channel": self.channels[channel],
            "entitlements": [],
            "app_permissions": "0",
            "data": data,
            **more,
        }
        guild = self.channels[channel].get("guild_id")
        interaction |= (
            {"guild_id": guild, "member": {"user": _make_user(user, "ada"), **_MEMBER_FIELDS}}
            if guild
            else {"user": _make_user(user, "ada")}
        )
        for session in self._list_sessions():
            await self._dispatch(session, "INTERACTION_CREATE", interaction)
        return id

    async def dispatch_event(self, event: str, data: Any) -> None:
        """Dispatch any other event with exactly this data."""
        for session in self._list_sessions():
            await self._dispatch(session, event, data)

    async def redeliver(self, *, times: int = 1, chance: random.Random | None = None) -> None:
        """Dispatch every message again, in random order."""
        for session in self._list_sessions():
            again = [it for it in session.sent_events if str(it["t"]).startswith("MESSAGE_")] * times
            if chance is not None:
                chance.shuffle(again)
            for it in again:
                await self._dispatch(session, it["t"], it["d"])

    async def request_reconnect(self) -> None:
        for session in self._list_sessions():
            if session.socket is not None:
                await session.socket.send_json({"op": 7, "d": None, "s": None, "t": None})

    def forget_sessions(self) -> None:
        """Forget all sessions, so that no connection can resume."""
        for bot in self.bots.values():
            bot.sessions.clear()

    def list_shown_messages(self, channel: str) -> list[dict[str, Any]]:
        """Return the bots' messages in a channel, in their current form."""
        bots = {bot.id for bot in self.bots.values()}
        return [it for it in self.messages.get(channel, {}).values() if (it.get("author") or {}).get("id") in bots]

    # -- the gateway -------------------------------------------------------------------------------------------------

    async def serve_socket(self, request: LoopbackRequest, socket: LoopbackSocket) -> None:
        await socket.send_json({"op": 10, "d": {"heartbeat_interval": 41_250}, "s": None, "t": None})
        session: DiscordServerSession | None = None
        while (message := await socket.receive_json()) is not None:
            match message["op"]:
                case 1:
                    await socket.send_json({"op": 11, "d": None, "s": None, "t": None})
                case 2:
                    session = await self._identify(message["d"], socket)
                    if session is None:
                        return
                case 6:
                    session = await self._resume(message["d"], socket)
                case _:
                    pass
        if session is not None and session.socket is socket:
            session.socket = None

    async def _identify(self, data: dict[str, Any], socket: LoopbackSocket) -> DiscordServerSession | None:
        bot = self.bots.get(data["token"])
        if bot is None:
            await socket.close(4004)
            return None
        if data.get("intents", 0) & (1 << 15) and not bot.reads_messages:
            await socket.close(4014)
            return None
        self.identified += 1
        session = DiscordServerSession(f"session-{next(self._count)}", bot, socket=socket)
        bot.sessions[session.id] = session
        ready = {
            "v": 10,
            "user": bot.make_user(),
            "guilds": [{"id": id, "unavailable": True} for id in self.guilds],
            "session_id": session.id,
            "resume_gateway_url": f"ws://127.0.0.1:{self.port}/gateway",
            "application": {"id": bot.id, "flags": 0},
            "private_channels": [],
            "relationships": [],
        }
        await self._dispatch(session, "READY", ready)
        for id in self.guilds:
            await self._dispatch(session, "GUILD_CREATE", self._describe_guild(id, bot))
        return session

    async def _resume(self, data: dict[str, Any], socket: LoopbackSocket) -> DiscordServerSession | None:
        bot = self.bots.get(data["token"])
        session = bot.sessions.get(data["session_id"]) if bot is not None else None
        if session is None:
            await socket.send_json({"op": 9, "d": False, "s": None, "t": None})
            return None
        self.resumed += 1
        for it in [it for it in session.sent_events if it["s"] > data["seq"]]:
            await socket.send_json(it)
        session.socket = socket
        await self._dispatch(session, "RESUMED", {"_trace": []})
        return session

    async def _dispatch(self, session: DiscordServerSession, event: str, data: Any) -> None:
        message = {"op": 0, "t": event, "s": len(session.sent_events) + 1, "d": json.loads(json.dumps(data))}
        session.sent_events.append(message)
        if session.socket is not None:
            await session.socket.send_json(message)

    def _list_sessions(self) -> list[DiscordServerSession]:
        return [session for bot in self.bots.values() for session in bot.sessions.values()]

    # -- the API -----------------------------------------------------------------------------------------------------

    def name_call(self, request: LoopbackRequest) -> str:
        """`POST message`, `GET messages`, …"""
        return f"{request.method} {_name_endpoint(request.path)}"

    async def answer_call(self, request: LoopbackRequest) -> LoopbackResponse:
        try:
            if request.path.startswith("/files/"):
                return LoopbackResponse(body=self.contents[request.path.split("/")[2]], media="text/plain")
            path = request.path.removeprefix(API_PATH).strip("/").split("/")
            if path[0] == "interactions":
                self.interaction_responses.append((path[1], request.fields))
                return LoopbackResponse(status=204, media="text/plain")
            bot = self.bots.get(request.headers.get("authorization", "").removeprefix("Bot "))
            if bot is None:
                raise DiscordServerError(401, 0, "401: Unauthorized")
            return await self._route_call(bot, request, path)
        except DiscordServerError as failed:
            return failed.make_response()

    async def _route_call(self, bot: DiscordServerBot, request: LoopbackRequest, path: list[str]) -> LoopbackResponse:
        match request.method, *path:
            case "GET", "users", "@me":
                return LoopbackResponse.json(
                    {**bot.make_user(), "verified": True, "mfa_enabled": False, "locale": "en-US", "flags": 0}
                )
            case ("GET", "oauth2", "applications", "@me") | ("GET", "applications", "@me"):
                about: dict[str, Any] = {
                    "id": bot.id,
                    "name": bot.username,
                    "icon": None,
                    "description": "",
                    "bot_public": True,
                }
                about |= {"bot_require_code_grant": False, "verify_key": "", "team": None, "summary": ""}
                flags = (1 << 19) if bot.reads_messages else 0
                return LoopbackResponse.json({**about, "owner": _make_user("1001", "ada"), "flags": flags})
            case "GET", "gateway", "bot":
                limit = {"total": 1000, "remaining": 999, "reset_after": 0, "max_concurrency": 1}
                url = f"ws://127.0.0.1:{self.port}/gateway"
                return LoopbackResponse.json({"url": url, "shards": 1, "session_start_limit": limit})
            case "GET", "users", "@me", "guilds":
                after = int(request.query.get("after") or 0)
                return LoopbackResponse.json([{"id": id, "name": "a server"} for id in self.guilds if int(id) > after])
            case "POST", "users", "@me", "channels":
                return LoopbackResponse.json(self._open_direct_channel(str(request.fields["recipient_id"])))
            case "GET", "guilds", guild, "channels":
                return LoopbackResponse.json(
                    [self.channels[id] for id in self.guilds[guild] if self.channels[id]["type"] == 0]
                )
            case "GET", "guilds", guild, "threads", "active":
                threads = [self.channels[id] for id in self.guilds[guild] if self.channels[id]["type"] == 11]
                return LoopbackResponse.json({"threads": threads, "members": [], "has_more": False})
            case "PUT", "applications", _, "commands":
                bot.commands = _check_commands(json.loads(request.body))
                return LoopbackResponse.json(bot.commands)
            case method, "channels", channel, *rest:
                self._check_writable(channel, reading=method == "GET")
                return await self._route_channel_call(bot, request, channel, rest)
            case _:
                raise DiscordServerError(404, 0, "404: Not Found")

    def _open_direct_channel(self, user: str) -> dict[str, Any]:
        direct = (it for it in self.channels.values() if it["type"] == 1)
        found = next((it for it in direct if it["recipients"][0]["id"] == user), None)
        return found or self.channels[self.add_direct_channel(self._next_id(), user)]

    async def _route_channel_call(
        self, bot: DiscordServerBot, request: LoopbackRequest, channel: str, rest: list[str]
    ) -> LoopbackResponse:
        match request.method, *rest:
            case ("GET",):
                return LoopbackResponse.json(self.channels[channel])
            case "POST", "typing":
                self.typing.append(channel)
                return LoopbackResponse(status=204, media="text/plain")
            case "GET", "messages":
                return LoopbackResponse.json(self._read_history(channel, request.query))
            case "POST", "messages":
                headers = self._take_from_bucket(channel)
                return _make_metered_response(await self._post_from_bot(bot, channel, request), headers)
            case "PATCH", "messages", id:
                headers = self._take_from_bucket(channel)
                return _make_metered_response(await self._edit_from_bot(bot, channel, id, request), headers)
            case _:
                raise DiscordServerError(404, 0, "404: Not Found")

    async def _post_from_bot(self, bot: DiscordServerBot, channel: str, request: LoopbackRequest) -> dict[str, Any]:
        given = _read_fields(request)
        text = _check_text(given)
        if not text and not request.files:
            raise DiscordServerError(400, 50006, "Cannot send an empty message")
        nonce = str(given.get("nonce") or "")
        since, former = self.nonces.get((bot.id, nonce), (0.0, ""))
        if given.get("enforce_nonce") and former and time.monotonic() - since < self.nonce_seconds:
            return self.messages[channel][former]
        message = self._make_message(
            channel, bot.make_user(), text, reply_to=str((given.get("message_reference") or {}).get("message_id") or "")
        )
        message["attachments"] = self._store_uploads(request)
        message["components"] = given.get("components") or []
        if nonce:
            message["nonce"] = nonce
            self.nonces[bot.id, nonce] = (time.monotonic(), message["id"])
        await self._add_message(channel, message)
        return message

    async def _edit_from_bot(
        self, bot: DiscordServerBot, channel: str, id: str, request: LoopbackRequest
    ) -> dict[str, Any]:
        given = _read_fields(request)
        message = self.messages.get(channel, {}).get(id)
        if message is None:
            raise DiscordServerError(404, 10008, "Unknown Message")
        if message["author"]["id"] != bot.id:
            raise DiscordServerError(403, 50005, "Cannot edit a message authored by another user")
        message |= {"content": _check_text(given), "edited_timestamp": _format_now()}
        # omitted files are removed, new ones are added
        message["attachments"] = self._store_uploads(request)
        await self._dispatch_message("MESSAGE_UPDATE", channel, message)
        return message

    def _read_history(self, channel: str, query: dict[str, str]) -> list[dict[str, Any]]:
        limit, after = int(query.get("limit") or 50), query.get("after")
        if not 1 <= limit <= 100:
            raise DiscordServerError(400, 50035, "Invalid Form Body")
        found = sorted(self.messages.get(channel, {}).values(), key=lambda it: int(it["id"]))
        # `after` gives the first messages after it, otherwise the last ones; the newest comes first in both cases
        page = [it for it in found if int(it["id"]) > int(after)][:limit] if after is not None else found[-limit:]
        hidden = set() if self.tells_nonces else {"nonce"}
        return [{key: value for key, value in it.items() if key not in hidden} for it in reversed(page)]

    # -- internal ----------------------------------------------------------------------------------------------------

    def _check_writable(self, channel: str, *, reading: bool) -> None:
        if channel in self.channel_errors:
            raise self.channel_errors[channel]
        if channel not in self.channels:
            raise DiscordServerError(404, 10003, "Unknown Channel")
        if not reading and (wait := self.retry_after_seconds.pop(channel, 0)):
            raise self._make_rate_limit_error(wait, {"X-RateLimit-Scope": "shared"})

    def _make_rate_limit_error(self, wait: float, headers: dict[str, str]) -> DiscordServerError:
        self.rate_limited_count += 1
        failed = DiscordServerError(429, 0, "You are being rate limited.", retry_after=wait, **{"global": False})
        failed.headers = {"Retry-After": f"{wait:g}", "Via": "1.1 google", **headers}
        return failed

    def _take_from_bucket(self, channel: str) -> dict[str, str]:
        """Take one from the channel's bucket, and return the rate limit headers."""
        now = time.monotonic()
        poured = self._recent_posts.setdefault(channel, deque())
        while poured and poured[0] <= now - self.window:
            poured.popleft()
        headers = {"X-RateLimit-Bucket": "messages", "X-RateLimit-Limit": str(self.bucket)}
        if len(poured) >= self.bucket:
            raise self._make_rate_limit_error(poured[0] + self.window - now, {**headers, "X-RateLimit-Remaining": "0"})
        poured.append(now)
        left, reset = self.bucket - len(poured), poured[0] + self.window - now
        return {**headers, "X-RateLimit-Remaining": str(left), "X-RateLimit-Reset-After": f"{reset:.3f}"}

    def _next_id(self) -> str:
        self._last = max(((int(time.time() * 1000) - EPOCH_MS) << 22), self._last + 1)
        return str(self._last)

    def _make_message(self, channel: str, author: dict[str, Any], text: str, *, reply_to: str = "") -> dict[str, Any]:
        mentioned = set(re.findall(r"<@!?(\d+)>", text))
        bots = [bot.make_user() for bot in self.bots.values() if bot.id in mentioned]
        message: dict[str, Any] = {
            "id": self._next_id(),
            "type": 19 if reply_to else 0,
            "channel_id": channel,
            "author": author,
            "content": text,
            "timestamp": _format_now(),
            "edited_timestamp": None,
            "tts": False,
            "mention_everyone": False,
            "mentions": bots,
            "mention_roles": re.findall(r"<@&(\d+)>", text),
            "attachments": [],
            "embeds": [],
            "pinned": False,
            "flags": 0,
            "components": [],
        }
        if reply_to:
            message["message_reference"] = {"type": 0, "message_id": reply_to, "channel_id": channel}
            message["referenced_message"] = self.messages.get(channel, {}).get(reply_to)
        return message

    async def _add_message(self, channel: str, message: dict[str, Any]) -> None:
        self.messages.setdefault(channel, {})[message["id"]] = message
        self.channels[channel]["last_message_id"] = message["id"]
        await self._dispatch_message("MESSAGE_CREATE", channel, message)

    async def _dispatch_message(self, event: str, channel: str, message: dict[str, Any]) -> None:
        guild = self.channels[channel].get("guild_id")
        data = {**message, "guild_id": guild, "member": _MEMBER_FIELDS} if guild else message
        for session in self._list_sessions():
            await self._dispatch(session, event, data)

    def _store_file(self, name: str, data: bytes) -> dict[str, Any]:
        id = self._next_id()
        self.contents[id] = data
        url = f"{self.url}/files/{id}/x"
        return {
            "id": id,
            "filename": name,
            "size": len(data),
            "url": url,
            "proxy_url": url,
            "content_type": mimetypes.guess_type(name)[0] or "text/plain",
        }

    def _store_uploads(self, request: LoopbackRequest) -> list[dict[str, Any]]:
        if sum(len(data) for _, data in request.files.values()) > self.max_file_bytes:
            raise DiscordServerError(413, 40005, "Request entity too large")
        return [self._store_file(name, data) for name, data in request.files.values()]

    def _describe_guild(self, id: str, bot: DiscordServerBot) -> dict[str, Any]:
        colors = {"primary_color": 0, "secondary_color": None, "tertiary_color": None}
        role = {"color": 0, "colors": colors, "hoist": False, "position": 0, "permissions": _PERMISSIONS}
        role |= {"managed": False, "mentionable": False, "flags": 0}
        own = {**role, "id": f"{bot.id}1", "name": bot.username, "managed": True, "tags": {"bot_id": bot.id}}
        return {
            "id": id,
            "name": "a server",
            "icon": None,
            "splash": None,
            "discovery_splash": None,
            "owner_id": "1001",
            "afk_channel_id": None,
            "afk_timeout": 300,
            "verification_level": 0,
            "default_message_notifications": 0,
            "explicit_content_filter": 0,
            "roles": [{**role, "id": id, "name": "@everyone"}, own],
            "emojis": [],
            "features": [],
            "mfa_level": 0,
            "application_id": None,
            "system_channel_id": None,
            "system_channel_flags": 0,
            "rules_channel_id": None,
            "vanity_url_code": None,
            "description": None,
            "banner": None,
            "premium_tier": 0,
            "preferred_locale": "en-US",
            "public_updates_channel_id": None,
            "nsfw_level": 0,
            "stickers": [],
            "premium_progress_bar_enabled": False,
            "safety_alerts_channel_id": None,
            "joined_at": _format_now(),
            "large": False,
            "unavailable": False,
            "member_count": 2,
            "members": [{"user": bot.make_user(), **_MEMBER_FIELDS}],
            "channels": [self.channels[it] for it in self.guilds[id] if self.channels[it]["type"] == 0],
            "threads": [self.channels[it] for it in self.guilds[id] if self.channels[it]["type"] == 11],
            "voice_states": [],
            "presences": [],
            "stage_instances": [],
            "guild_scheduled_events": [],
            "soundboard_sounds": [],
        }


_MEMBER_FIELDS: Final = {
    "roles": [],
    "joined_at": "2024-01-01T00:00:00+00:00",
    "deaf": False,
    "mute": False,
    "flags": 0,
}
_THREAD_METADATA: Final = {
    "archived": False,
    "auto_archive_duration": 1440,
    "archive_timestamp": "2024-01-01T00:00:00+00:00",
    "locked": False,
}


def _make_user(id: str, name: str, *, bot: bool = False) -> dict[str, Any]:
    return {"id": id, "username": name, "discriminator": "0", "global_name": None, "avatar": None, "bot": bot}


def _make_metered_response(value: dict[str, Any], headers: dict[str, str]) -> LoopbackResponse:
    return LoopbackResponse(body=json.dumps(value).encode(), headers=headers)


def _format_now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat()


def _name_endpoint(path: str) -> str:
    parts = path.removeprefix(API_PATH).strip("/").split("/")
    if parts[0] == "channels":
        return "channel" if len(parts) == 2 else "message" if len(parts) == 4 else parts[2]
    return parts[0]


def _read_fields(request: LoopbackRequest) -> dict[str, Any]:
    given: dict[str, Any] = json.loads(request.fields["payload_json"]) if request.files else request.fields
    return given


def _check_text(given: dict[str, Any]) -> str:
    text = str(given.get("content") or "").strip()
    if len(text) > MAX_MESSAGE_CHARS:
        problem = {"code": "BASE_TYPE_MAX_LENGTH", "message": "Must be 2000 or fewer in length."}
        raise DiscordServerError(400, 50035, "Invalid Form Body", errors={"content": {"_errors": [problem]}})
    return text


def _check_commands(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for it in given:
        if not re.fullmatch(r"[-_a-z0-9]{1,32}", it["name"]) or not 1 <= len(it["description"]) <= 100:
            raise DiscordServerError(400, 50035, "Invalid Form Body")
    return given
