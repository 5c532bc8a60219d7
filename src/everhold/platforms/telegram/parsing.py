"""An update of the Bot API -> a message at the door: what it is, who says it, and whether it is meant for us."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct
from telegram import Message, MessageEntity, Update, User

from everhold.core.entries import ChatLocation
from everhold.ports.platform import IncomingMessage

ALLOWED_UPDATES: Final = ("message", "edited_message", "channel_post", "edited_channel_post")
"""The updates that carry somebody's words."""
_OTHER_CONTENT_FIELDS: Final = ("location", "venue", "contact", "poll", "dice", "game")
"""What people send that is neither text nor a file: it is named, so that the agent knows of it."""


MAX_QUOTE_CHARS: Final = 200
"""How much of a message that is answered is quoted."""


class TelegramFile(Struct, frozen=True, kw_only=True):
    """A file at Telegram's, not fetched yet."""

    id: str
    name: str
    media: str
    size: int


def is_wanted_update(raw: dict[str, Any]) -> bool:
    """Whether an update is of a kind that we read at all."""
    return any(kind in raw for kind in ALLOWED_UPDATES)


def get_message(update: Update) -> Message | None:
    return update.message or update.edited_message or update.channel_post or update.edited_channel_post


def parse_migration(message: Message) -> tuple[str, str] | None:
    """What a group was called and what it is called now, if it just became a supergroup. Both of them say so."""
    here = str(message.chat.id)
    if message.migrate_to_chat_id is not None:
        return here, str(message.migrate_to_chat_id)
    if message.migrate_from_chat_id is not None:
        return str(message.migrate_from_chat_id), here
    return None


def parse_update(update: Update, *, account: str, me: User) -> IncomingMessage | None:
    """What an update says, or None for what is nothing to hear: somebody joined, a message was pinned."""
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
        # Telegram dates edits to the second only: two within one would look like one
        revision=str(update.update_id) if edited else "",
        addressed=direct or _is_addressed_to_us(message, me),
        bot=message.sender_chat is None and message.from_user is not None and message.from_user.is_bot,
    )


def parse_file(message: Message) -> TelegramFile | None:
    """The file a message carries."""
    if message.photo:
        photo = message.photo[-1]  # the sizes are in order
        return TelegramFile(id=str(photo.file_id), name="photo.jpg", media="image/jpeg", size=int(photo.file_size or 0))
    kinds = {"document": "file", "voice": "voice.ogg", "audio": "audio", "video": "video.mp4", "animation": "animation"}
    for kind, name in (*kinds.items(), ("video_note", "video.mp4"), ("sticker", "sticker.webp")):
        found: Any = getattr(message, kind)  # the library has a field for each kind, and no common one
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
    # "@us /status" is a command, however people got used to saying it
    words = text.split(maxsplit=1)
    if me.username and words[0].lower() == f"@{me.username.lower()}" and len(words) > 1 and words[1].startswith("/"):
        return words[1]
    return text if text.startswith("/") else _extract_quote(message) + text


def _extract_quote(message: Message) -> str:
    """What a message answers, so that "yes, that one" can be understood. What is just above needs no quote."""
    said = message.quote.text if message.quote is not None else ""
    answered = message.reply_to_message
    if not said and answered is not None and answered.forum_topic_created is None:
        said = answered.text or answered.caption or ""
    if not said:
        return ""
    line = " ".join(said.split())
    return f"> {line[:MAX_QUOTE_CHARS]}{'…' if len(line) > MAX_QUOTE_CHARS else ''}\n"


def _get_sender_id(message: Message) -> str:
    """The stable id of whoever speaks. A channel, or an admin who speaks as the group, is not a person."""
    if message.sender_chat is not None:
        return str(message.sender_chat.id)
    return str(message.from_user.id) if message.from_user is not None else str(message.chat.id)


def _get_sender_name(message: Message) -> str:
    if message.sender_chat is not None:
        return message.sender_chat.title or ""
    return message.from_user.full_name if message.from_user is not None else ""


def _is_addressed_to_us(message: Message, me: User) -> bool:
    """Mentioned, replied to, or commanded."""
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
