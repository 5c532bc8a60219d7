"""Turns an update of the Bot API into an incoming message: what it is, who sent it, and whether it addresses the
agent."""

from __future__ import annotations

from typing import Any, Final

from telegram import (
    CallbackQuery,
    Chat,
    Message,
    MessageEntity,
    MessageOrigin,
    MessageOriginChannel,
    MessageOriginChat,
    MessageOriginHiddenUser,
    MessageOriginUser,
    Update,
    User,
)

from everhold.core.entries import AGENT_ITSELF, ChatLocation, TextPiece
from everhold.core.provenance import shorten_piece
from everhold.platforms.telegram.settings import NAME
from everhold.platforms.unparsed import UnparsedSender, find_id
from everhold.ports.platform import IncomingMessage, RemoteFile

MESSAGE_UPDATES: Final = ("message", "edited_message", "channel_post", "edited_channel_post")
"""The updates that contain messages of people."""
PRESS_UPDATE: Final = "callback_query"
"""Somebody pressed a button of the bot."""
ALLOWED_UPDATES: Final = (*MESSAGE_UPDATES, PRESS_UPDATE)
_OTHER_CONTENT_FIELDS: Final = ("location", "venue", "contact", "poll", "dice", "game")
"""Content that is neither text nor a file. The message names it, so that the agent knows of it."""


def is_wanted_update(raw: dict[str, Any]) -> bool:
    """Return whether the adapter reads updates of this kind."""
    return any(kind in raw for kind in ALLOWED_UPDATES)


def get_message(update: Update) -> Message | None:
    return update.message or update.edited_message or update.channel_post or update.edited_channel_post


def find_sender(raw: object) -> UnparsedSender | None:
    """Return who sent an update that cannot be parsed, as far as it can be read."""
    fields: dict[str, Any] = raw if isinstance(raw, dict) else {}
    message: dict[str, Any] = next((fields[kind] for kind in MESSAGE_UPDATES if isinstance(fields.get(kind), dict)), {})
    if not message and isinstance(press := fields.get(PRESS_UPDATE), dict):
        shown = press.get("message")
        message = {**(shown if isinstance(shown, dict) else {}), "from": press.get("from")}
    chat = message.get("chat")
    sender = find_id(message, "sender_chat", "id") or find_id(message, "from", "id")
    if not sender:
        return None
    direct = isinstance(chat, dict) and chat.get("type") == "private"
    return UnparsedSender(sender=sender, chat=find_id(message, "chat", "id"), is_direct=direct)


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
    if update.callback_query is not None:
        return _parse_press(update.callback_query, account=account)
    message = get_message(update)
    if message is None:
        return None
    text = "" if message.forward_origin is not None else _extract_text(message, me)
    pieces = _extract_pieces(message, me)
    if not text and not pieces and parse_file(message) is None:
        return None
    direct = message.chat.type == "private"
    thread = str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else ""
    edited = update.edited_message is not None or update.edited_channel_post is not None
    return IncomingMessage(
        origin=ChatLocation(
            platform=NAME,
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
        pieces=pieces,
    )


def _parse_press(query: CallbackQuery, *, account: str) -> IncomingMessage | None:
    """Return the command of a button; None if it has none, such as a button of a message sent for somebody else."""
    shown = query.message
    if shown is None or not (query.data or "").startswith("/"):
        return None
    is_topic = isinstance(shown, Message) and shown.is_topic_message and shown.message_thread_id
    return IncomingMessage(
        origin=ChatLocation(
            platform=NAME,
            account=account,
            chat=str(shown.chat.id),
            thread=str(shown.message_thread_id) if isinstance(shown, Message) and is_topic else "",
            message=f"press:{query.id}",
        ),
        text=query.data or "",
        sender=str(query.from_user.id),
        name=query.from_user.full_name,
        kind="dm" if shown.chat.type == "private" else "channel" if shown.chat.type == "channel" else "group",
        event="command",
        bot=query.from_user.is_bot,
    )


def parse_file(message: Message) -> RemoteFile | None:
    """Return the file of a message."""
    if message.photo:
        photo = message.photo[-1]  # the sizes are in ascending order
        size = int(photo.file_size or 0)
        return RemoteFile(reference=str(photo.file_id), name="photo.jpg", media="image/jpeg", size=size)
    kinds = {"document": "file", "voice": "voice.ogg", "audio": "audio", "video": "video.mp4", "animation": "animation"}
    for kind, name in (*kinds.items(), ("video_note", "video.mp4"), ("sticker", "sticker.webp")):
        found: Any = getattr(message, kind)  # the library has one field per kind of file, and no common one
        if found is not None:
            return RemoteFile(
                reference=str(found.file_id),
                name=str(getattr(found, "file_name", None) or name),
                media=str(getattr(found, "mime_type", None) or ("image/webp" if kind == "sticker" else "")),
                size=int(found.file_size or 0),
            )
    return None


def _extract_text(message: Message, me: User) -> str:
    text = _get_content(message)
    if not text:
        return ""
    # "@bot /status" is a command too, because people write it that way
    words = text.split(maxsplit=1)
    if me.username and words[0].lower() == f"@{me.username.lower()}" and len(words) > 1 and words[1].startswith("/"):
        return words[1]
    return text


def _extract_pieces(message: Message, me: User) -> tuple[TextPiece, ...]:
    """Return the text that the sender did not write: the whole of a forwarded message, or the message replied to."""
    if message.forward_origin is not None:
        by, name = _identify_origin(message.forward_origin)
        return (TextPiece(source="forwarded", by=by, name=name, text=_get_content(message)),)
    quote = _extract_quote(message, me)
    return () if quote is None else (quote,)


def _extract_quote(message: Message, me: User) -> TextPiece | None:
    """Return the quote of the message replied to, so that "yes, that one" can be understood."""
    quoted = message.quote.text if message.quote is not None else ""
    replied, external = message.reply_to_message, message.external_reply
    if replied is not None and replied.forum_topic_created is None:
        text = quoted or _get_content(replied)
        if replied.forward_origin is not None:  # the sender of that message did not write it
            by, name = _identify_origin(replied.forward_origin)
            own = False
        else:
            by, name = f"{NAME}:{_get_sender_id(replied)}", _get_sender_name(replied)
            own = _get_sender_id(replied) == _get_sender_id(message)
            by = AGENT_ITSELF if by == f"{NAME}:{me.id}" else by
    elif external is not None:
        text, own = quoted, False
        by, name = _identify_origin(external.origin)
    else:
        return None
    return TextPiece(source="quoted", by=by, name=name, own=own, text=shorten_piece(text)) if text else None


def _identify_origin(origin: MessageOrigin) -> tuple[str, str]:
    """Return the identity of an author, as far as Telegram reports it, and the display name."""
    match origin:
        case MessageOriginUser(sender_user=user):
            return f"{NAME}:{user.id}", user.full_name
        case MessageOriginHiddenUser(sender_user_name=name):
            return "", name  # the account does not allow a link to it
        case MessageOriginChat(sender_chat=chat, author_signature=signature):
            return f"{NAME}:{chat.id}", _name_chat(chat, signature)
        case MessageOriginChannel(chat=chat, author_signature=signature):
            return f"{NAME}:{chat.id}", _name_chat(chat, signature)
        case _:
            return "", ""


def _name_chat(chat: Chat, signature: str | None) -> str:
    return ", ".join(part for part in (chat.title, signature) if part)


def _get_content(message: Message) -> str:
    """Return the text or caption of a message, or the name of what it contains instead."""
    text = message.text or message.caption or ""
    return text or next((f"[{thing}]" for thing in _OTHER_CONTENT_FIELDS if getattr(message, thing) is not None), "")


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
    """Return whether the message mentions the bot, replies to it, or is a command for it. A mention in a forwarded text
    is not the sender's."""
    if message.forward_origin is not None:
        return False
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
