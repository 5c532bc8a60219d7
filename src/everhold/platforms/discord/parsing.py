"""Turns a Discord message into an incoming message: what it is, who sent it, and whether it addresses the agent."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct

from everhold.core.entries import AGENT_ITSELF, ChatLocation, TextPiece
from everhold.core.provenance import shorten_piece
from everhold.platforms.discord.settings import NAME
from everhold.platforms.unparsed import UnparsedSender, find_id, require_id
from everhold.ports.platform import IncomingMessage, RemoteFile

TEXT_MESSAGE_TYPES: Final = frozenset({0, 19, 20})
"""The message types that contain text of a sender: messages, replies, and answers of bots to commands."""
THREAD_CHANNEL_TYPES: Final = frozenset({10, 11, 12})
DIRECT_CHANNEL_TYPES: Final = frozenset({1, 3})
COMMAND_INTERACTION_TYPE: Final = 2
PRESS_INTERACTION_TYPE: Final = 3
PRIVATE_CHANNEL_CONTEXT: Final = 2
"""The context of an interaction in a direct chat or group of other people."""
DISCORD_EPOCH_MS: Final = 1_420_070_400_000
_MENTION: Final = re.compile(r"<@!?(\d+)>")


class DiscordChannel(Struct, frozen=True, kw_only=True):
    """Where a message is: in a direct chat, a channel of a server, or a thread."""

    id: str
    is_direct: bool = False
    parent: str = ""
    """The channel of a thread."""

    def locate(self, account: str, message: str) -> ChatLocation:
        chat, thread = (self.parent, self.id) if self.parent else (self.id, "")
        return ChatLocation(platform=NAME, account=account, chat=chat, thread=thread, message=message)

    @property
    def chat_kind(self) -> str:
        return "dm" if self.is_direct else "channel"


def find_sender(raw: object, channel: DiscordChannel) -> UnparsedSender | None:
    """Return who sent an event that cannot be parsed, as far as it can be read."""
    sender = find_id(raw, "author", "id") or find_id(raw, "member", "user", "id") or find_id(raw, "user", "id")
    chat = channel.parent or channel.id or find_id(raw, "channel_id")
    return UnparsedSender(sender=sender, chat=chat, is_direct=channel.is_direct) if sender else None


def parse_channel(description: dict[str, Any]) -> DiscordChannel:
    """A channel as Discord describes it."""
    parent = str(description.get("parent_id") or "") if description.get("type") in THREAD_CHANNEL_TYPES else ""
    return DiscordChannel(
        id=str(description["id"]), is_direct=description.get("type") in DIRECT_CHANNEL_TYPES, parent=parent
    )


def list_described_channels(guild: object) -> list[Any]:
    """Return the channels and threads in the description of a server."""
    parts = [guild.get(key) for key in ("channels", "threads")] if isinstance(guild, dict) else []
    return [it for part in parts if isinstance(part, list) for it in part]


def list_own_roles(guild: object, me: str) -> frozenset[str]:
    """Return the ids of the roles that belong to the bot itself."""
    roles = guild.get("roles") if isinstance(guild, dict) else None
    found = (it for it in roles or () if find_id(it, "tags", "bot_id") == me) if isinstance(roles, list) else ()
    return frozenset(filter(None, (find_id(it, "id") for it in found)))


def parse_message(
    message: dict[str, Any],
    *,
    channel: DiscordChannel,
    account: str,
    me: int,
    roles: frozenset[str],
    edited: bool = False,
) -> IncomingMessage | None:
    """Return the message, or None for a system message, such as a new member or a pinned message."""
    id = require_id(message, "id")
    author = message["author"]
    sender = require_id(author, "id")
    if message.get("type", 0) not in TEXT_MESSAGE_TYPES or sender == str(me):
        return None
    if edited and not message.get("edited_timestamp"):
        return None  # Discord added a link preview
    text = _extract_text(message, me)
    pieces = _extract_pieces(message, sender=sender, me=me)
    if not text and not pieces and not message.get("attachments"):
        return None
    return IncomingMessage(
        origin=channel.locate(account, id),
        text=text,
        sender=sender,
        name=str(author.get("global_name") or author.get("username") or ""),
        kind=channel.chat_kind,
        event="edit" if edited else "message",
        revision=str(message["edited_timestamp"]) if edited else "",
        addressed=channel.is_direct or _is_addressed_to_us(message, me, roles),
        bot=bool(author.get("bot") or message.get("webhook_id")),
        pieces=pieces,
    )


def parse_command(interaction: dict[str, Any], *, channel: DiscordChannel, account: str) -> IncomingMessage | None:
    """Return a slash command or the command of a button, or None for another kind of interaction."""
    text = _extract_command(interaction)
    if not text:
        return None
    user = (interaction.get("member") or interaction)["user"]
    return IncomingMessage(
        origin=channel.locate(account, require_id(interaction, "id")),
        text=text,
        sender=require_id(user, "id"),
        name=str(user.get("global_name") or user.get("username") or ""),
        kind=channel.chat_kind,
        event="command",
        can_change_owner=True,  # the command may be used in a channel where the bot is not a member
    )


def _extract_command(interaction: dict[str, Any]) -> str:
    data = interaction.get("data") or {}
    if interaction.get("type") == COMMAND_INTERACTION_TYPE:
        given = " ".join(str(option.get("value", "")) for option in data.get("options") or ())
        return f"/{require_id(data, 'name')} {given}".strip()
    if interaction.get("type") == PRESS_INTERACTION_TYPE:
        pressed = require_id(data, "custom_id")
        return pressed if pressed.startswith("/") else ""
    return ""


def parse_files(message: dict[str, Any]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(
            name=str(it.get("filename") or "file"),
            media=str(it.get("content_type") or "").partition(";")[0],
            size=int(it.get("size") or 0),
            reference=str(it.get("url") or ""),
        )
        for it in (*(message.get("attachments") or ()), *_list_forwarded(message, "attachments"))
    )


def make_snowflake(seconds: float) -> int:
    """Return the smallest id that a message of this time can have."""
    return max(0, int(seconds * 1000) - DISCORD_EPOCH_MS) << 22


def parse_snowflake_seconds(id: str) -> float:
    """Return when the object with this id was made, or 0 if it is not a Discord id."""
    return ((int(id) >> 22) + DISCORD_EPOCH_MS) / 1000 if is_snowflake(id) else 0.0


def is_snowflake(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 21


def _extract_text(message: dict[str, Any], me: int) -> str:
    text = str(message.get("content") or "")
    if not text:
        return next((f"[{it['name']}]" for it in message.get("sticker_items") or ()), "")
    # "@bot /status" is a command; at the start of a line Discord would look for its own command
    found = _MENTION.match(text)
    if found is not None and found[1] == str(me) and text[found.end() :].lstrip().startswith("/"):
        return text[found.end() :].strip()
    return _name_mentions(text, message)


def _name_mentions(text: str, message: dict[str, Any]) -> str:
    names = {str(it["id"]): str(it.get("username") or it["id"]) for it in message.get("mentions") or ()}
    return _MENTION.sub(lambda it: f"@{names.get(it[1], it[1])}", text)


def _extract_pieces(message: dict[str, Any], *, sender: str, me: int) -> tuple[TextPiece, ...]:
    """Return the text that the sender did not write: forwarded messages, the message replied to, and embeds."""
    pieces = [
        # Discord does not say who wrote a forwarded message.
        TextPiece(source="forwarded", text=_get_content(snapshot))
        for snapshot in _list_snapshots(message)
    ]
    replied = message.get("referenced_message")
    if replied and not pieces and (text := _get_content(replied)):
        author = replied.get("author") or {}
        id = str(author.get("id") or "")
        forwarded = bool(_list_snapshots(replied)) and not replied.get("content")
        pieces.append(
            TextPiece(
                source="quoted",
                by="" if forwarded or not id else AGENT_ITSELF if id == str(me) else f"{NAME}:{id}",
                name="" if forwarded else str(author.get("global_name") or author.get("username") or ""),
                own=id == sender and not forwarded,
                text=shorten_piece(text),
            )
        )
    return (*pieces, *(piece for it in message.get("embeds") or () if (piece := _parse_embed(it)) is not None))


def _list_snapshots(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages that a message forwards, as they were at that time."""
    return [it["message"] for it in message.get("message_snapshots") or ()]


def _list_forwarded(message: dict[str, Any], what: str) -> list[Any]:
    return [it for snapshot in _list_snapshots(message) for it in snapshot.get(what) or ()]


def _get_content(message: dict[str, Any]) -> str:
    """Return the text of another message, with the texts of its embeds, or that of the message it forwards."""
    texts = [_name_mentions(str(message.get("content") or ""), message)]
    texts += [piece.text for it in message.get("embeds") or () if (piece := _parse_embed(it)) is not None]
    texts += [_get_content(snapshot) for snapshot in _list_snapshots(message)]
    return "\n".join(text for text in texts if text)


def _parse_embed(embed: dict[str, Any]) -> TextPiece | None:
    """Return the text of an embed, such as the preview of a link; None if it has none."""
    fields = [part for it in embed.get("fields") or () for part in (it.get("name"), it.get("value"))]
    text = "\n".join(str(part) for part in (embed.get("title"), embed.get("description"), *fields) if part)
    if not text:
        return None
    author, provider = embed.get("author") or {}, embed.get("provider") or {}
    name = author.get("name") or provider.get("name") or embed.get("url") or ""
    return TextPiece(source="embedded", name=str(name), text=shorten_piece(text))


def _is_addressed_to_us(message: dict[str, Any], me: int, roles: frozenset[str]) -> bool:
    """Return whether the message mentions the bot, also by its role, or replies to it."""
    if any(str(it["id"]) == str(me) for it in message.get("mentions") or ()):
        return True
    if roles & {str(it) for it in message.get("mention_roles") or ()}:
        return True
    replied = message.get("referenced_message") or {}
    return bool(replied) and str((replied.get("author") or {}).get("id")) == str(me)
