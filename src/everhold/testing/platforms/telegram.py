"""A Telegram on loopback: the part of the Bot API that an agent needs, with state and faults.

It reproduces what makes the real one difficult: updates come again until a later offset confirms them, a second poller
ends the first with 409, a chat that is written to too often answers 429, texts have at most 4,096 UTF-16 units, and a
lost answer looks the same whether the message was shown or not. A test acts as the people: `write_message`,
`edit_message`, `push_update`.
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

from everhold.testing.platforms.loopback import LoopbackRequest, LoopbackResponse, LoopbackServer

MAX_MESSAGE_UNITS: Final = 4096
MAX_CAPTION_UNITS: Final = 1024
MAX_FILE_BYTES: Final = 20_000_000
MAX_PHOTO_BYTES: Final = 10_000_000
_NOT_MODIFIED: Final = (
    "Bad Request: message is not modified: specified new message content and reply markup are exactly the same as a "
    "current content and reply markup of the message"
)


class TelegramServerError(Exception):
    """The API's error answer."""

    def __init__(self, code: int, description: str, **parameters: int) -> None:
        super().__init__(description)
        self.code = code
        self.description = description
        self.parameters = parameters

    def make_response(self) -> LoopbackResponse:
        body: dict[str, Any] = {"ok": False, "error_code": self.code, "description": self.description}
        if self.parameters:
            body["parameters"] = self.parameters
        return LoopbackResponse.json(body, status=self.code)


@dataclass
class TelegramServerBot:
    """One bot, and its unconfirmed updates."""

    token: str
    id: int
    username: str
    reads_all: bool = False
    """Without it a bot in a group sees only commands, mentions and replies to it."""
    updates: deque[dict[str, Any]] = field(default_factory=deque)
    all_updates: list[dict[str, Any]] = field(default_factory=list)
    redeliveries: list[dict[str, Any]] = field(default_factory=list)
    """Updates that are delivered again although they were confirmed, which the real one sometimes does."""
    confirmed: int = 0
    update_condition: asyncio.Condition = field(default_factory=asyncio.Condition)
    poll: int = 0
    commands: list[dict[str, str]] = field(default_factory=list)
    webhook: str = ""

    def take_updates(self, offset: int) -> list[dict[str, Any]]:
        """Return the updates for a poll with this offset, never one before it."""
        return [update for update in self.updates if update["update_id"] >= offset]

    def make_user(self) -> dict[str, Any]:
        return {"id": self.id, "is_bot": True, "first_name": self.username, "username": self.username}


@dataclass
class TelegramServerMessage:
    """A message as people in a chat see it."""

    id: int
    text: str
    sender_id: int
    thread: int | None = None
    reply_to: int | None = None
    edits: int = 0
    file: tuple[str, bytes] | None = None
    entities: list[dict[str, Any]] = field(default_factory=list)
    name: str = "somebody"
    origin: dict[str, Any] | None = None
    """Where it was forwarded from."""
    buttons: dict[str, str] = field(default_factory=dict)
    """Label -> what the bot gets if it is pressed."""


class TelegramServer(LoopbackServer):
    """`async with TelegramServer() as server:`, then `server.add_bot(token)` and point a client at `server.url`."""

    def __init__(self) -> None:
        super().__init__()
        self.bots: dict[str, TelegramServerBot] = {}
        self.chats: dict[int, list[TelegramServerMessage]] = {}
        self.chat_errors: dict[int, TelegramServerError] = {}
        """Chats that cannot be written to -> the error."""
        self.retry_after_seconds: dict[int, int] = {}
        """Chats that answer 429 to the next call, with the seconds to wait."""
        self.max_file_bytes = 50_000_000
        """The largest file that bots may send."""
        self.typing: list[int] = []
        self.confirmed_presses: list[str] = []
        self.files: dict[str, tuple[str, bytes]] = {}
        self._messages = itertools.count(1)
        self._updates = itertools.count(1000)
        self._ids = itertools.count(900_001)

    def add_bot(self, token: str, *, username: str = "everhold_bot", reads_all: bool = False) -> TelegramServerBot:
        self.bots[token] = TelegramServerBot(token, next(self._ids), username, reads_all)
        return self.bots[token]

    # -- people ------------------------------------------------------------------------------------------------------

    async def write_message(
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
        quote: str = "",
        **more: Any,
    ) -> int:
        """Write as a person to a bot, or to a group (a negative chat), and return the message's id. `quote` is the
        quoted part of the message replied to."""
        chat = chat or user
        id = next(self._messages)
        message = self._make_message(
            id, chat, text, {"id": user, "is_bot": is_bot, "first_name": name}, thread, reply_to
        )
        if file is not None:
            message["caption"] = message.pop("text", "")
            message |= self._make_attachment(file, kind)
        if quote:
            message["quote"] = {"text": quote, "position": 0, "is_manual": True}
        message |= more
        self.chats.setdefault(chat, []).append(
            TelegramServerMessage(id, text, user, thread, reply_to, name=name, origin=more.get("forward_origin"))
        )
        await self._push_to_bots("message", chat, message)
        return id

    async def forward_message(self, text: str, *, origin: dict[str, Any], **how: Any) -> int:
        """Forward a message as a person. The text and its entities are those of the original. `origin` says who wrote
        it, as far as the author allows it: `make_user_origin` and its siblings make one."""
        return await self.write_message(text, forward_origin=origin, **how)

    async def edit_message(self, id: int, text: str, *, user: int = 1001, chat: int = 0) -> None:
        """Edit a person's message."""
        chat = chat or user
        shown = self._find_message(chat, id)
        shown.text = text
        message = self._make_message(
            id, chat, text, {"id": user, "is_bot": False, "first_name": "Ada"}, shown.thread, None
        )
        await self._push_to_bots("edited_message", chat, {**message, "edit_date": int(time.time())})

    async def press_button(self, label: str, *, message: int, user: int = 1001, chat: int = 0) -> str:
        """Press a button under a bot's message, and return the id of the press."""
        shown = self._find_message(chat or user, message)
        id = str(next(self._updates) << 40)
        author = {"id": shown.sender_id, "is_bot": True, "first_name": "bot"}
        raw = self._make_message(message, chat or user, shown.text, author, shown.thread, None)
        presser = {"id": user, "is_bot": False, "first_name": "Ada"}
        press = {"id": id, "from": presser, "message": raw, "chat_instance": "1", "data": shown.buttons[label]}
        await self.push_update({"callback_query": press})
        return id

    async def push_update(self, update: dict[str, Any]) -> int:
        """Push any other update with exactly this data, and return its id."""
        id = next(self._updates)
        for bot in self.bots.values():
            await self._queue_update(bot, {"update_id": id, **update})
        return id

    async def upgrade_group(self, old: int, new: int) -> None:
        """Turn a group into a supergroup with another id. Both report it, and the old one accepts nothing any more."""
        description = "Bad Request: group chat was upgraded to a supergroup chat"
        self.chat_errors[old] = TelegramServerError(400, description, migrate_to_chat_id=new)
        anonymous = {"id": 1087968824, "is_bot": True, "first_name": "Group", "username": "GroupAnonymousBot"}
        for chat, about in ((old, {"migrate_to_chat_id": new}), (new, {"migrate_from_chat_id": old})):
            message = self._make_message(next(self._messages), chat, "", anonymous, None, None)
            await self.push_update({"message": {**message, **about}})

    async def redeliver(self, *, times: int = 1, chance: random.Random | None = None) -> None:
        """Deliver everything again, in random order."""
        for bot in self.bots.values():
            again = [update for _ in range(times) for update in bot.all_updates]
            if chance is not None:
                chance.shuffle(again)
            async with bot.update_condition:
                bot.redeliveries.extend(again)
                bot.update_condition.notify_all()

    def list_shown_messages(self, chat: int) -> list[TelegramServerMessage]:
        return self.chats.get(chat, [])

    def list_bot_texts(self, chat: int) -> list[str]:
        """Return the bots' messages in a chat, in their current form."""
        bots = {bot.id for bot in self.bots.values()}
        return [shown.text for shown in self.list_shown_messages(chat) if shown.sender_id in bots]

    def renumber_updates(self, first: int) -> None:
        """Start new update numbers, as the real one does after a week without updates."""
        self._updates = itertools.count(first)

    async def wait_until_confirmed(self, token: str) -> None:
        """Wait until a bot has confirmed all its updates."""
        bot = self.bots[token]
        async with bot.update_condition:
            await bot.update_condition.wait_for(lambda: not bot.updates)

    # -- the Bot API -------------------------------------------------------------------------------------------------

    def name_call(self, request: LoopbackRequest) -> str:
        return request.path.rpartition("/")[2] if request.path.startswith("/bot") else "file"

    async def answer_call(self, request: LoopbackRequest) -> LoopbackResponse:
        place, _, name = request.path.rpartition("/")
        try:
            if place.startswith("/file/bot"):
                return self._download(request)
            bot = self.bots.get(place.removeprefix("/bot"))
            if bot is None:
                raise TelegramServerError(401, "Unauthorized")
            method = getattr(self, f"_{name}", None)
            if method is None:
                raise TelegramServerError(404, "Not Found")
            return LoopbackResponse.json(
                {"ok": True, "result": await method(bot, {**request.query, **request.fields}, request)}
            )
        except TelegramServerError as failed:
            return failed.make_response()

    async def _getMe(self, bot: TelegramServerBot, given: dict[str, Any], request: LoopbackRequest) -> Any:
        return {**bot.make_user(), "can_join_groups": True, "can_read_all_group_messages": bot.reads_all}

    async def _getUpdates(self, bot: TelegramServerBot, given: dict[str, Any], request: LoopbackRequest) -> Any:
        if bot.webhook:
            raise TelegramServerError(
                409,
                "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete it first",
            )
        offset, limit = int(given.get("offset") or 0), int(given.get("limit") or 100)
        until = time.monotonic() + float(given.get("timeout") or 0)
        bot.poll += 1
        own_poll = bot.poll
        async with bot.update_condition:
            # everything before the offset is confirmed; the newer poller ends the older one
            bot.confirmed += len(bot.updates)
            bot.updates = deque(it for it in bot.updates if it["update_id"] >= offset)
            bot.confirmed -= len(bot.updates)
            bot.update_condition.notify_all()
            while not bot.take_updates(offset) and not bot.redeliveries and (left := until - time.monotonic()) > 0:
                try:
                    await asyncio.wait_for(bot.update_condition.wait(), left)
                except TimeoutError:
                    break
                if own_poll != bot.poll:
                    raise TelegramServerError(
                        409,
                        "Conflict: terminated by other getUpdates request; "
                        "make sure that only one bot instance is running",
                    )
            if bot.redeliveries:
                updates, bot.redeliveries = bot.redeliveries[:limit], bot.redeliveries[limit:]
                return updates
            return bot.take_updates(offset)[:limit]

    async def _sendMessage(self, bot: TelegramServerBot, given: dict[str, Any], request: LoopbackRequest) -> Any:
        text = _check_text(given.get("text"))
        chat = self._check_writable(given)
        message = self._post_from_bot(bot, chat, text, given)
        self.chats[chat][-1].buttons = _check_buttons(given.get("reply_markup"))
        return message

    async def _answerCallbackQuery(
        self, bot: TelegramServerBot, given: dict[str, Any], request: LoopbackRequest
    ) -> Any:
        self.confirmed_presses.append(str(given["callback_query_id"]))
        return True

    async def _sendDocument(self, bot: TelegramServerBot, given: dict[str, Any], request: LoopbackRequest) -> Any:
        if _count_utf16_units(str(given.get("caption") or "")) > MAX_CAPTION_UNITS:
            raise TelegramServerError(400, "Bad Request: message caption is too long")
        chat = self._check_writable(given)
        return self._post_from_bot(
            bot, chat, str(given.get("caption") or ""), given, file=self._read_upload(request, "document")
        )

    async def _sendPhoto(self, bot: TelegramServerBot, given: dict[str, Any], request: LoopbackRequest) -> Any:
        chat = self._check_writable(given)
        name, data = self._read_upload(request, "photo")
        if not data.startswith((b"\x89PNG", b"\xff\xd8\xff")):
            raise TelegramServerError(400, "Bad Request: IMAGE_PROCESS_FAILED")
        if len(data) > MAX_PHOTO_BYTES:
            raise TelegramServerError(400, "Bad Request: file is too big")
        return self._post_from_bot(bot, chat, str(given.get("caption") or ""), given, file=(name, data))

    async def _editMessageText(self, bot: TelegramServerBot, given: dict[str, Any], request: LoopbackRequest) -> Any:
        text = _check_text(given.get("text"))
        chat = self._check_writable(given)
        found = next((it for it in self.list_shown_messages(chat) if it.id == int(given["message_id"])), None)
        if found is None:
            raise TelegramServerError(400, "Bad Request: message to edit not found")
        if found.sender_id != bot.id:
            raise TelegramServerError(400, "Bad Request: message can't be edited")
        if found.text == text:
            raise TelegramServerError(400, _NOT_MODIFIED)
        found.text = text
        found.entities = _check_entities(given.get("entities"), text)
        found.edits += 1
        return self._make_message(found.id, chat, text, bot.make_user(), found.thread, None)

    async def _sendChatAction(self, bot: TelegramServerBot, given: dict[str, Any], request: LoopbackRequest) -> Any:
        self.typing.append(self._check_writable(given))
        return True

    async def _setMyCommands(self, bot: TelegramServerBot, given: dict[str, Any], request: LoopbackRequest) -> Any:
        commands = json.loads(given["commands"])
        for command in commands:
            if not 1 <= len(command["command"]) <= 32 or not 1 <= len(command["description"]) <= 256:
                raise TelegramServerError(400, "Bad Request: BOT_COMMAND_DESCRIPTION_INVALID")
        bot.commands = commands
        return True

    async def _setWebhook(self, bot: TelegramServerBot, given: dict[str, Any], request: LoopbackRequest) -> Any:
        bot.webhook = given.get("url", "")
        return True

    async def _deleteWebhook(self, bot: TelegramServerBot, given: dict[str, Any], request: LoopbackRequest) -> Any:
        bot.webhook = ""
        if str(given.get("drop_pending_updates")).lower() == "true":
            bot.updates.clear()
        return True

    async def _getFile(self, bot: TelegramServerBot, given: dict[str, Any], request: LoopbackRequest) -> Any:
        id = str(given["file_id"])
        if id not in self.files:
            raise TelegramServerError(400, "Bad Request: wrong file_id or the file is temporarily unavailable")
        if len(self.files[id][1]) > MAX_FILE_BYTES:
            raise TelegramServerError(400, "Bad Request: file is too big")
        size = len(self.files[id][1])
        return {"file_id": id, "file_unique_id": id, "file_size": size, "file_path": f"documents/{id}"}

    def _download(self, request: LoopbackRequest) -> LoopbackResponse:
        id = request.path.rpartition("/")[2]
        if id not in self.files:
            raise TelegramServerError(404, "Not Found")
        return LoopbackResponse(body=self.files[id][1], media="application/octet-stream")

    def _read_upload(self, request: LoopbackRequest, what: str) -> tuple[str, bytes]:
        if not request.files:
            raise TelegramServerError(400, f"Bad Request: there is no {what} in the request")
        name, data = next(iter(request.files.values()))
        if len(data) > self.max_file_bytes:
            raise TelegramServerError(413, "Request Entity Too Large")
        return name, data

    # -- internal ----------------------------------------------------------------------------------------------------

    def _check_writable(self, given: dict[str, Any]) -> int:
        """Return the chat of a call, unless it cannot be written to."""
        try:
            chat = int(given["chat_id"])
        except (KeyError, ValueError):
            raise TelegramServerError(400, "Bad Request: chat not found") from None
        if chat in self.chat_errors:
            raise self.chat_errors[chat]
        if wait := self.retry_after_seconds.pop(chat, 0):
            raise TelegramServerError(429, f"Too Many Requests: retry after {wait}", retry_after=wait)
        return chat

    def _post_from_bot(
        self,
        bot: TelegramServerBot,
        chat: int,
        text: str,
        given: dict[str, Any],
        *,
        file: tuple[str, bytes] | None = None,
    ) -> dict[str, Any]:
        thread = int(given["message_thread_id"]) if given.get("message_thread_id") else None
        reply = json.loads(given["reply_parameters"])["message_id"] if given.get("reply_parameters") else None
        entities = _check_entities(given.get("entities") or given.get("caption_entities"), text)
        id = next(self._messages)
        self.chats.setdefault(chat, []).append(
            TelegramServerMessage(id, text, bot.id, thread, reply, file=file, entities=entities)
        )
        message = self._make_message(id, chat, text, bot.make_user(), thread, None)
        if file is not None:
            message["document"] = {"file_id": f"out-{id}", "file_unique_id": f"out-{id}", "file_name": file[0]}
        return message

    def _make_message(
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
            "entities": _find_entities(text),
        }
        if thread is not None:
            message |= {"message_thread_id": thread, "is_topic_message": True}
        if reply_to is not None:
            shown = self._find_message(chat, reply_to)
            bot = next((bot for bot in self.bots.values() if bot.id == shown.sender_id), None)
            by = bot.make_user() if bot else {"id": shown.sender_id, "is_bot": False, "first_name": shown.name}
            replied = self._make_message(shown.id, chat, shown.text, by, thread, None)
            message["reply_to_message"] = replied | ({"forward_origin": shown.origin} if shown.origin else {})
        return message

    def _make_attachment(self, file: tuple[str, bytes], kind: str) -> dict[str, Any]:
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

    def _find_message(self, chat: int, id: int) -> TelegramServerMessage:
        return next(shown for shown in self.list_shown_messages(chat) if shown.id == id)

    async def _push_to_bots(self, what: str, chat: int, message: dict[str, Any]) -> None:
        for bot in self.bots.values():
            if bot.id != message["from"]["id"] and self._can_see(bot, chat, message):
                await self._queue_update(bot, {"update_id": next(self._updates), what: message})

    def _can_see(self, bot: TelegramServerBot, chat: int, message: dict[str, Any]) -> bool:
        if message["from"]["is_bot"] and not bot.reads_all:
            return False
        text = message.get("text") or message.get("caption") or ""
        replied = message.get("reply_to_message", {}).get("from", {}).get("id") == bot.id
        return chat > 0 or bot.reads_all or text.startswith("/") or f"@{bot.username}" in text or replied

    async def _queue_update(self, bot: TelegramServerBot, update: dict[str, Any]) -> None:
        async with bot.update_condition:
            bot.updates.append(update)
            bot.all_updates.append(update)
            bot.update_condition.notify_all()


def make_user_origin(id: int, name: str) -> dict[str, Any]:
    """The origin of a forwarded message of a user who allows the link."""
    user = {"id": id, "is_bot": False, "first_name": name}
    return {"type": "user", "date": 1_700_000_000, "sender_user": user}


def make_hidden_origin(name: str) -> dict[str, Any]:
    """The origin of a forwarded message of a user who does not allow the link."""
    return {"type": "hidden_user", "date": 1_700_000_000, "sender_user_name": name}


def make_chat_origin(id: int, title: str, *, signature: str = "") -> dict[str, Any]:
    """The origin of a forwarded message that somebody wrote as a group."""
    chat = {"id": id, "type": "supergroup", "title": title}
    found = {"type": "chat", "date": 1_700_000_000, "sender_chat": chat}
    return {**found, "author_signature": signature} if signature else found


def make_channel_origin(id: int, title: str, *, signature: str = "") -> dict[str, Any]:
    """The origin of a forwarded channel post."""
    chat = {"id": id, "type": "channel", "title": title}
    found = {"type": "channel", "date": 1_700_000_000, "chat": chat, "message_id": 7}
    return {**found, "author_signature": signature} if signature else found


def _count_utf16_units(text: str) -> int:
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _check_text(text: str | None) -> str:
    if not text or not text.strip():
        raise TelegramServerError(400, "Bad Request: message text is empty")
    if _count_utf16_units(text) > MAX_MESSAGE_UNITS:
        raise TelegramServerError(400, "Bad Request: message is too long")
    return text


def _check_entities(entities: str | None, text: str) -> list[dict[str, Any]]:
    """Return the entities of a text, if they are within its bounds."""
    found: list[dict[str, Any]] = json.loads(entities or "[]")
    for it in found:
        if it["offset"] < 0 or it["length"] < 1 or it["offset"] + it["length"] > _count_utf16_units(text):
            raise TelegramServerError(400, "Bad Request: ENTITY_BOUNDS_INVALID")
    return found


def _find_entities(text: str) -> list[dict[str, Any]]:
    """Return the entities that the server adds to a text: commands and mentions, counted in UTF-16 units."""
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
            found.append({"type": kind, "offset": offset, "length": _count_utf16_units(word)})
        offset += _count_utf16_units(word) + 1
    return found


def _check_buttons(given: Any) -> dict[str, str]:
    """Return the buttons of a message. Telegram refuses data of more than 64 bytes."""
    markup = json.loads(given) if isinstance(given, str) else given or {}
    buttons = {it["text"]: it["callback_data"] for row in markup.get("inline_keyboard", ()) for it in row}
    if any(not 0 < len(data.encode()) <= 64 for data in buttons.values()):
        raise TelegramServerError(400, "Bad Request: BUTTON_DATA_INVALID")
    return buttons
