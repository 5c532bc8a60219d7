"""A Telegram on loopback: the part of the Bot API that an agent needs, with its memory and its moods.

It is honest about what makes the real one hard: updates come again until a later offset confirms them, a second poller
ends the first with 409, a chat that is written to too often answers 429, texts have 4,096 UTF-16 units, and a lost
answer looks the same whether the message was shown or not. People are played by a test: `write`, `edit`, `press`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from everhold.testing.platforms.loopback import Answer, Loopback, Request

MOST_UNITS: Final = 4096
MOST_CAPTION: Final = 1024
MOST_FILE: Final = 20_000_000
MOST_PICTURE: Final = 10_000_000
_NOT_MODIFIED: Final = (
    "Bad Request: message is not modified: specified new message content and reply markup are exactly the same as a "
    "current content and reply markup of the message"
)


class Failed(Exception):
    """What the API answers instead of a result."""

    def __init__(self, code: int, description: str, **parameters: int) -> None:
        super().__init__(description)
        self.code = code
        self.description = description
        self.parameters = parameters

    def answer(self) -> Answer:
        told: dict[str, Any] = {"ok": False, "error_code": self.code, "description": self.description}
        if self.parameters:
            told["parameters"] = self.parameters
        return Answer.json(told, status=self.code)


@dataclass
class Bot:
    """One bot, and what it has not confirmed yet."""

    token: str
    id: int
    username: str
    reads_all: bool = False
    """Without it a bot in a group sees commands, mentions and replies to it, and nothing else."""
    updates: deque[dict[str, Any]] = field(default_factory=deque)
    past: list[dict[str, Any]] = field(default_factory=list)
    again: list[dict[str, Any]] = field(default_factory=list)
    """What is told once more whatever was confirmed: the real one does that, too, when it has had a bad day."""
    confirmed: int = 0
    news: asyncio.Condition = field(default_factory=asyncio.Condition)
    poll: int = 0
    commands: list[dict[str, str]] = field(default_factory=list)
    webhook: str = ""

    def fresh(self, offset: int) -> list[dict[str, Any]]:
        """What a poll with this offset is told: never anything before it."""
        return [update for update in self.updates if update["update_id"] >= offset]

    def user(self) -> dict[str, Any]:
        return {"id": self.id, "is_bot": True, "first_name": self.username, "username": self.username}


@dataclass
class Shown:
    """A message as people in a chat see it."""

    id: int
    text: str
    by: int
    thread: int | None = None
    reply_to: int | None = None
    edits: int = 0
    file: tuple[str, bytes] | None = None
    entities: list[dict[str, Any]] = field(default_factory=list)


class TelegramServer(Loopback):
    """`async with TelegramServer() as server:`, then `server.bot(token)` and point a client at `server.url`."""

    def __init__(self) -> None:
        super().__init__()
        self.bots: dict[str, Bot] = {}
        self.chats: dict[int, list[Shown]] = {}
        self.gone: dict[int, Failed] = {}
        """Chats that cannot be written to, and what is said about it."""
        self.busy: dict[int, int] = {}
        """Chats that answer 429 to the next call, with the seconds to wait."""
        self.most_bytes = 50_000_000
        """The largest file that bots may send."""
        self.typing: list[int] = []
        self.files: dict[str, tuple[str, bytes]] = {}
        self._messages = itertools.count(1)
        self._updates = itertools.count(1000)
        self._ids = itertools.count(900_001)

    def bot(self, token: str, *, username: str = "everhold_bot", reads_all: bool = False) -> Bot:
        self.bots[token] = Bot(token, next(self._ids), username, reads_all)
        return self.bots[token]

    # -- people ------------------------------------------------------------------------------------------------------

    async def write(
        self,
        text: str,
        *,
        user: int = 1001,
        chat: int = 0,
        name: str = "Ada",
        thread: int | None = None,
        reply_to: int | None = None,
        is_bot: bool = False,
        file: tuple[str, bytes] | None = None,
        kind: str = "document",
        **more: Any,
    ) -> int:
        """Somebody writes to a bot, or into a group (a negative chat); the message's id."""
        chat = chat or user
        id = next(self._messages)
        message = self._message(id, chat, text, {"id": user, "is_bot": is_bot, "first_name": name}, thread, reply_to)
        if file is not None:
            message["caption"] = message.pop("text", "")
            message |= self._attached(file, kind)
        message |= more
        self.chats.setdefault(chat, []).append(Shown(id, text, user, thread, reply_to))
        await self._tell("message", chat, message)
        return id

    async def edit(self, id: int, text: str, *, user: int = 1001, chat: int = 0) -> None:
        """Somebody changes what they wrote."""
        chat = chat or user
        shown = self._find(chat, id)
        shown.text = text
        message = self._message(id, chat, text, {"id": user, "is_bot": False, "first_name": "Ada"}, shown.thread, None)
        await self._tell("edited_message", chat, {**message, "edit_date": int(time.time())})

    async def press(self, update: dict[str, Any]) -> int:
        """Something else happens, told in exactly these words; the update's id."""
        id = next(self._updates)
        for bot in self.bots.values():
            await self._put(bot, {"update_id": id, **update})
        return id

    async def upgrade(self, old: int, new: int) -> None:
        """A group becomes a supergroup, with another id. Both say so, and the old one takes nothing any more."""
        told = "Bad Request: group chat was upgraded to a supergroup chat"
        self.gone[old] = Failed(400, told, migrate_to_chat_id=new)
        nobody = {"id": 1087968824, "is_bot": True, "first_name": "Group", "username": "GroupAnonymousBot"}
        for chat, about in ((old, {"migrate_to_chat_id": new}), (new, {"migrate_from_chat_id": old})):
            message = self._message(next(self._messages), chat, "", nobody, None, None)
            await self.press({"message": {**message, **about}})

    async def redeliver(self, *, times: int = 1, chance: random.Random | None = None) -> None:
        """Everything that ever was told is told again, in any order."""
        for bot in self.bots.values():
            again = [update for _ in range(times) for update in bot.past]
            if chance is not None:
                chance.shuffle(again)
            async with bot.news:
                bot.again.extend(again)
                bot.news.notify_all()

    def shown(self, chat: int) -> list[Shown]:
        return self.chats.get(chat, [])

    def said(self, chat: int) -> list[str]:
        """What bots said in a chat, as it stands now."""
        bots = {bot.id for bot in self.bots.values()}
        return [shown.text for shown in self.shown(chat) if shown.by in bots]

    def renumber(self, first: int) -> None:
        """Number what comes from here on anew, as the real one does after a week without news."""
        self._updates = itertools.count(first)

    async def quiet(self, token: str) -> None:
        """Wait until a bot has confirmed everything it was told."""
        bot = self.bots[token]
        async with bot.news:
            await bot.news.wait_for(lambda: not bot.updates)

    # -- the Bot API -------------------------------------------------------------------------------------------------

    def name(self, request: Request) -> str:
        return request.path.rpartition("/")[2] if request.path.startswith("/bot") else "file"

    async def answer(self, request: Request) -> Answer:
        place, _, name = request.path.rpartition("/")
        try:
            if place.startswith("/file/bot"):
                return self._download(request)
            bot = self.bots.get(place.removeprefix("/bot"))
            if bot is None:
                raise Failed(401, "Unauthorized")
            method = getattr(self, f"_{name}", None)
            if method is None:
                raise Failed(404, "Not Found")
            return Answer.json({"ok": True, "result": await method(bot, {**request.query, **request.fields}, request)})
        except Failed as failed:
            return failed.answer()

    async def _getMe(self, bot: Bot, given: dict[str, Any], request: Request) -> Any:
        return {**bot.user(), "can_join_groups": True, "can_read_all_group_messages": bot.reads_all}

    async def _getUpdates(self, bot: Bot, given: dict[str, Any], request: Request) -> Any:
        if bot.webhook:
            raise Failed(
                409,
                "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete it first",
            )
        offset, limit = int(given.get("offset") or 0), int(given.get("limit") or 100)
        until = time.monotonic() + float(given.get("timeout") or 0)
        bot.poll += 1
        mine = bot.poll
        async with bot.news:
            # what stands before the offset is confirmed, whatever it was; the newer poller ends the older
            bot.confirmed += len(bot.updates)
            bot.updates = deque(it for it in bot.updates if it["update_id"] >= offset)
            bot.confirmed -= len(bot.updates)
            bot.news.notify_all()
            while not bot.fresh(offset) and not bot.again and (left := until - time.monotonic()) > 0:
                try:
                    await asyncio.wait_for(bot.news.wait(), left)
                except TimeoutError:
                    break
                if mine != bot.poll:
                    raise Failed(
                        409,
                        "Conflict: terminated by other getUpdates request; "
                        "make sure that only one bot instance is running",
                    )
            if bot.again:
                told, bot.again = bot.again[:limit], bot.again[limit:]
                return told
            return bot.fresh(offset)[:limit]

    async def _sendMessage(self, bot: Bot, given: dict[str, Any], request: Request) -> Any:
        text = _text(given.get("text"))
        chat = self._open(given)
        return self._say(bot, chat, text, given)

    async def _sendDocument(self, bot: Bot, given: dict[str, Any], request: Request) -> Any:
        if _units(str(given.get("caption") or "")) > MOST_CAPTION:
            raise Failed(400, "Bad Request: message caption is too long")
        chat = self._open(given)
        return self._say(bot, chat, str(given.get("caption") or ""), given, file=self._sent(request, "document"))

    async def _sendPhoto(self, bot: Bot, given: dict[str, Any], request: Request) -> Any:
        chat = self._open(given)
        name, data = self._sent(request, "photo")
        if not data.startswith((b"\x89PNG", b"\xff\xd8\xff")):
            raise Failed(400, "Bad Request: IMAGE_PROCESS_FAILED")
        if len(data) > MOST_PICTURE:
            raise Failed(400, "Bad Request: file is too big")
        return self._say(bot, chat, str(given.get("caption") or ""), given, file=(name, data))

    async def _editMessageText(self, bot: Bot, given: dict[str, Any], request: Request) -> Any:
        text = _text(given.get("text"))
        chat = self._open(given)
        found = next((it for it in self.shown(chat) if it.id == int(given["message_id"])), None)
        if found is None:
            raise Failed(400, "Bad Request: message to edit not found")
        if found.by != bot.id:
            raise Failed(400, "Bad Request: message can't be edited")
        if found.text == text:
            raise Failed(400, _NOT_MODIFIED)
        found.text = text
        found.entities = _checked(given.get("entities"), text)
        found.edits += 1
        return self._message(found.id, chat, text, bot.user(), found.thread, None)

    async def _sendChatAction(self, bot: Bot, given: dict[str, Any], request: Request) -> Any:
        self.typing.append(self._open(given))
        return True

    async def _setMyCommands(self, bot: Bot, given: dict[str, Any], request: Request) -> Any:
        commands = json.loads(given["commands"])
        for command in commands:
            if not 1 <= len(command["command"]) <= 32 or not 1 <= len(command["description"]) <= 256:
                raise Failed(400, "Bad Request: BOT_COMMAND_DESCRIPTION_INVALID")
        bot.commands = commands
        return True

    async def _setWebhook(self, bot: Bot, given: dict[str, Any], request: Request) -> Any:
        bot.webhook = given.get("url", "")
        return True

    async def _deleteWebhook(self, bot: Bot, given: dict[str, Any], request: Request) -> Any:
        bot.webhook = ""
        if str(given.get("drop_pending_updates")).lower() == "true":
            bot.updates.clear()
        return True

    async def _getFile(self, bot: Bot, given: dict[str, Any], request: Request) -> Any:
        id = str(given["file_id"])
        if id not in self.files:
            raise Failed(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
        if len(self.files[id][1]) > MOST_FILE:
            raise Failed(400, "Bad Request: file is too big")
        size = len(self.files[id][1])
        return {"file_id": id, "file_unique_id": id, "file_size": size, "file_path": f"documents/{id}"}

    def _download(self, request: Request) -> Answer:
        id = request.path.rpartition("/")[2]
        if id not in self.files:
            raise Failed(404, "Not Found")
        return Answer(body=self.files[id][1], media="application/octet-stream")

    def _sent(self, request: Request, what: str) -> tuple[str, bytes]:
        if not request.files:
            raise Failed(400, f"Bad Request: there is no {what} in the request")
        name, data = next(iter(request.files.values()))
        if len(data) > self.most_bytes:
            raise Failed(413, "Request Entity Too Large")
        return name, data

    # -- within ------------------------------------------------------------------------------------------------------

    def _open(self, given: dict[str, Any]) -> int:
        """The chat of a call, unless it cannot be written to."""
        try:
            chat = int(given["chat_id"])
        except (KeyError, ValueError):
            raise Failed(400, "Bad Request: chat not found") from None
        if chat in self.gone:
            raise self.gone[chat]
        if wait := self.busy.pop(chat, 0):
            raise Failed(429, f"Too Many Requests: retry after {wait}", retry_after=wait)
        return chat

    def _say(
        self, bot: Bot, chat: int, text: str, given: dict[str, Any], *, file: tuple[str, bytes] | None = None
    ) -> dict[str, Any]:
        thread = int(given["message_thread_id"]) if given.get("message_thread_id") else None
        reply = json.loads(given["reply_parameters"])["message_id"] if given.get("reply_parameters") else None
        entities = _checked(given.get("entities") or given.get("caption_entities"), text)
        id = next(self._messages)
        self.chats.setdefault(chat, []).append(Shown(id, text, bot.id, thread, reply, file=file, entities=entities))
        message = self._message(id, chat, text, bot.user(), thread, None)
        if file is not None:
            message["document"] = {"file_id": f"out-{id}", "file_unique_id": f"out-{id}", "file_name": file[0]}
        return message

    def _message(
        self, id: int, chat: int, text: str, user: dict[str, Any], thread: int | None, reply_to: int | None
    ) -> dict[str, Any]:
        kind: dict[str, Any] = {"type": "private", "first_name": "Ada"}
        if chat < 0:
            kind = {"type": "supergroup", "title": "a group", "is_forum": thread is not None}
        message = {
            "message_id": id,
            "date": int(time.time()),
            "chat": {"id": chat, **kind},
            "from": user,
            "text": text,
            "entities": _entities(text),
        }
        if thread is not None:
            message |= {"message_thread_id": thread, "is_topic_message": True}
        if reply_to is not None:
            shown = self._find(chat, reply_to)
            bot = next((bot for bot in self.bots.values() if bot.id == shown.by), None)
            by = bot.user() if bot else {"id": shown.by, "is_bot": False, "first_name": "somebody"}
            message["reply_to_message"] = self._message(shown.id, chat, shown.text, by, thread, None)
        return message

    def _attached(self, file: tuple[str, bytes], kind: str) -> dict[str, Any]:
        id = f"file-{len(self.files)}"
        self.files[id] = file
        about: dict[str, Any] = {"file_id": id, "file_unique_id": id, "file_size": len(file[1])}
        match kind:
            case "photo":
                return {"photo": [{**about, "width": 90, "height": 90}, {**about, "width": 800, "height": 800}]}
            case "voice":
                return {"voice": {**about, "duration": 3, "mime_type": "audio/ogg"}}
            case _:
                return {kind: {**about, "file_name": file[0], "mime_type": "text/plain"}}

    def _find(self, chat: int, id: int) -> Shown:
        return next(shown for shown in self.shown(chat) if shown.id == id)

    async def _tell(self, what: str, chat: int, message: dict[str, Any]) -> None:
        for bot in self.bots.values():
            if bot.id != message["from"]["id"] and self._sees(bot, chat, message):
                await self._put(bot, {"update_id": next(self._updates), what: message})

    def _sees(self, bot: Bot, chat: int, message: dict[str, Any]) -> bool:
        if message["from"]["is_bot"] and not bot.reads_all:
            return False
        text = message.get("text") or message.get("caption") or ""
        replied = message.get("reply_to_message", {}).get("from", {}).get("id") == bot.id
        return chat > 0 or bot.reads_all or text.startswith("/") or f"@{bot.username}" in text or replied

    async def _put(self, bot: Bot, update: dict[str, Any]) -> None:
        async with bot.news:
            bot.updates.append(update)
            bot.past.append(update)
            bot.news.notify_all()


def _units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _text(text: str | None) -> str:
    if not text or not text.strip():
        raise Failed(400, "Bad Request: message text is empty")
    if _units(text) > MOST_UNITS:
        raise Failed(400, "Bad Request: message is too long")
    return text


def _checked(entities: str | None, text: str) -> list[dict[str, Any]]:
    """What is marked in a text, if it lies within it."""
    found: list[dict[str, Any]] = json.loads(entities or "[]")
    for it in found:
        if it["offset"] < 0 or it["length"] < 1 or it["offset"] + it["length"] > _units(text):
            raise Failed(400, "Bad Request: ENTITY_BOUNDS_INVALID")
    return found


def _entities(text: str) -> list[dict[str, Any]]:
    """What the server marks in a text: commands and mentions, counted in UTF-16 units."""
    found = []
    offset = 0
    for word in text.replace("\n", " ").split(" "):
        kind = (
            "bot_command"
            if word.startswith("/") and len(word) > 1
            else "mention"
            if word[:1] == "@" and len(word) > 1
            else ""
        )
        if kind:
            found.append({"type": kind, "offset": offset, "length": _units(word)})
        offset += _units(word) + 1
    return found
