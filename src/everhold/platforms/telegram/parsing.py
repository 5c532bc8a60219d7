"""Turns an update of the Bot API into an incoming message: what it is, who sent it, and whether it addresses the
agent."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct
from telegram import Message, MessageEntity, Update, User

from everhold.core.entries import ChatLocation
from everhold.ports.platform import IncomingMessage

ALLOWED_UPDATES: Final = ("message", "edited_message", "channel_post", "edited_channel_post")
"""The updates that contain messages of people."""
_OTHER_CONTENT_FIELDS: Final = ("location", "venue", "contact", "poll", "dice", "game")
"""Content that is neither text nor a file. The message names it, so that the agent knows of it."""


MAX_QUOTE_CHARS: Final = 200
"""How much of the replied-to message is quoted."""


class TelegramFile(Struct, frozen=True, kw_only=True):
    """A file that is stored at Telegram and not downloaded yet."""

    id: str
    name: str
    media: str
    size: int


def is_wanted_update(raw: dict[str, Any]) -> bool:
    """Return whether the adapter reads updates of this kind."""
    return any(kind in raw for kind in ALLOWED_UPDATES)


def get_message(update: Update) -> Message | None:
    return update.message or update.edited_message or update.channel_post or update.edited_channel_post


def parse_migration(message: Message) -> tuple[str, str] | None:
    """Return the old and the new id of a group that became a supergroup. Both groups report the change."""
    here = str(message.chat.id)
    if message.migrate_to_chat_id is not None:
        return here, str(message.migrate_to_chat_id)
    if message.migrate_from_chat_id is not None:
        return str(message.migrate_from_chat_id), here
    return None


def parse_update(update: Update, *, account: str, me: User) -> IncomingMessage | None:
    """Return the message of an update, or None for a service message, such as a new member or a pinned message."""
    message = get_message(update)
    if message is None:
        return None
    text = _extract_text(message, me)
    if not text and parse_file(message) is None:
        return None
    direct = message.chat.type == "private"
    thread = str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else ""
    edited = update.edited_message is not None or update.edited_channel_post is not None
    return IncomingMessage(
        origin=ChatLocation(
            platform="telegram",
            account=account,
            chat=str(message.chat.id),
            thread=thread,
            message=str(message.message_id),
        ),
        text=text,
        sender=_get_sender_id(message),
        name=_get_sender_name(message),
        kind="dm" if direct else "channel" if message.chat.type == "channel" else "group",
        event="edit" if edited else "message",
        # Telegram gives the time of an edit in seconds, so two edits within one second would look the same
        revision=str(update.update_id) if edited else "",
        addressed=direct or _is_addressed_to_us(message, me),
        bot=message.sender_chat is None and message.from_user is not None and message.from_user.is_bot,
    )


def parse_file(message: Message) -> TelegramFile | None:
    """Return the file of a message."""
    if message.photo:
        photo = message.photo[-1]  # the sizes are in ascending order
        return TelegramFile(id=str(photo.file_id), name="photo.jpg", media="image/jpeg", size=int(photo.file_size or 0))
    kinds = {"document": "file", "voice": "voice.ogg", "audio": "audio", "video": "video.mp4", "animation": "animation"}
    for kind, name in (*kinds.items(), ("video_note", "video.mp4"), ("sticker", "sticker.webp")):
        found: Any = getattr(message, kind)  # the library has one field per kind of file, and no common one
        if found is not None:
            return TelegramFile(
                id=str(found.file_id),
                name=str(getattr(found, "file_name", None) or name),
                media=str(getattr(found, "mime_type", None) or ("image/webp" if kind == "sticker" else "")),
                size=int(found.file_size or 0),
            )
    return None


def _extract_text(message: Message, me: User) -> str:
    text = message.text or message.caption or ""
    if not text:
        return next((f"[{thing}]" for thing in _OTHER_CONTENT_FIELDS if getattr(message, thing) is not None), "")
    # "@bot /status" is a command too, because people write it that way
    words = text.split(maxsplit=1)
    if me.username and words[0].lower() == f"@{me.username.lower()}" and len(words) > 1 and words[1].startswith("/"):
        return words[1]
    return text if text.startswith("/") else _extract_quote(message) + text


def _extract_quote(message: Message) -> str:
    """Return a quote of the replied-to message, so that "yes, that one" can be understood. The preceding message is not
    quoted."""
    said = message.quote.text if message.quote is not None else ""
    answered = message.reply_to_message
    if not said and answered is not None and answered.forum_topic_created is None:
        said = answered.text or answered.caption or ""
    if not said:
        return ""
    line = " ".join(said.split())
    return f"> {line[:MAX_QUOTE_CHARS]}{'…' if len(line) > MAX_QUOTE_CHARS else ''}\n"


def _get_sender_id(message: Message) -> str:
    """Return the stable id of the sender. A channel, or an admin who writes as the group, is not a person."""
    if message.sender_chat is not None:
        return str(message.sender_chat.id)
    return str(message.from_user.id) if message.from_user is not None else str(message.chat.id)


def _get_sender_name(message: Message) -> str:
    if message.sender_chat is not None:
        return message.sender_chat.title or ""
    return message.from_user.full_name if message.from_user is not None else ""


def _is_addressed_to_us(message: Message, me: User) -> bool:
    """Return whether the message mentions the bot, replies to it, or is a command for it."""
    replied = message.reply_to_message
    if replied is not None and replied.from_user is not None and replied.from_user.id == me.id:
        return True
    handle = f"@{(me.username or '').lower()}"
    found = message.parse_entities() if message.text else message.parse_caption_entities()
    for entity, words in found.items():
        match entity.type:
            case MessageEntity.MENTION if words.lower() == handle:
                return True
            case MessageEntity.TEXT_MENTION if entity.user is not None and entity.user.id == me.id:
                return True
            case MessageEntity.BOT_COMMAND if entity.offset == 0:
                _, at, addressee = words.partition("@")
                return not at or f"@{addressee.lower()}" == handle
            case _:
                pass
    return False
