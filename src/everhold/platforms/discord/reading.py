"""A message of Discord's -> a message at the door: what it is, who says it, and whether it is meant for us."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct

from everhold.core.entries import Place
from everhold.platforms.discord.settings import NAME
from everhold.ports.platform import Incoming

WORDS: Final = frozenset({0, 19, 20})
"""The types of messages that carry somebody's words: said, replied, or answered by a bot that was commanded."""
THREADS: Final = frozenset({10, 11, 12})
DIRECT: Final = frozenset({1, 3})
COMMAND: Final = 2
EPOCH_MS: Final = 1_420_070_400_000
_MENTION: Final = re.compile(r"<@!?(\d+)>")


class Channel(Struct, frozen=True, kw_only=True):
    """Where a message stands: alone with somebody, in a channel of a server, or in a thread of one."""

    id: str
    direct: bool = False
    parent: str = ""
    """The channel of a thread."""

    def place(self, account: str, message: str) -> Place:
        chat, thread = (self.parent, self.id) if self.parent else (self.id, "")
        return Place(platform=NAME, account=account, chat=chat, thread=thread, message=message)

    @property
    def kind(self) -> str:
        return "dm" if self.direct else "channel"


class File(Struct, frozen=True, kw_only=True):
    """A file at Discord's, not fetched yet."""

    name: str
    media: str
    size: int
    url: str


def channel(told: dict[str, Any]) -> Channel:
    """A channel as Discord describes it."""
    parent = str(told.get("parent_id") or "") if told.get("type") in THREADS else ""
    return Channel(id=str(told["id"]), direct=told.get("type") in DIRECT, parent=parent)


def incoming(
    message: dict[str, Any], *, where: Channel, account: str, me: int, roles: frozenset[str], edited: bool = False
) -> Incoming | None:
    """What a message says, or None for what is nothing to hear: somebody joined, a message was pinned."""
    id = _id(message, "id")
    author = message["author"]
    sender = _id(author, "id")
    if message.get("type", 0) not in WORDS or sender == str(me):
        return None
    if edited and not message.get("edited_timestamp"):
        return None  # Discord put a preview of a link there
    text = _text(message, me)
    if not text and not message.get("attachments"):
        return None
    return Incoming(
        origin=where.place(account, id),
        text=text,
        sender=sender,
        name=str(author.get("global_name") or author.get("username") or ""),
        kind=where.kind,
        event="edit" if edited else "message",
        revision=str(message["edited_timestamp"]) if edited else "",
        addressed=where.direct or _is_meant(message, me, roles),
        bot=bool(author.get("bot") or message.get("webhook_id")),
    )


def command(interaction: dict[str, Any], *, where: Channel, account: str) -> Incoming | None:
    """A slash command, or None for another kind of interaction."""
    if interaction.get("type") != COMMAND:
        return None
    user = (interaction.get("member") or interaction)["user"]
    given = " ".join(str(option.get("value", "")) for option in interaction["data"].get("options") or ())
    return Incoming(
        origin=where.place(account, _id(interaction, "id")),
        text=f"/{_id(interaction['data'], 'name')} {given}".strip(),
        sender=_id(user, "id"),
        name=str(user.get("global_name") or user.get("username") or ""),
        kind=where.kind,
        event="command",
        changes_hands=True,  # it may be used where others talk to each other
    )


def files_of(message: dict[str, Any]) -> tuple[File, ...]:
    return tuple(
        File(
            name=str(it.get("filename") or "file"),
            media=str(it.get("content_type") or "").partition(";")[0],
            size=int(it.get("size") or 0),
            url=str(it.get("url") or ""),
        )
        for it in message.get("attachments") or ()
    )


def snowflake(seconds: float) -> int:
    """The id that a message of that time would have at least."""
    return max(0, int(seconds * 1000) - EPOCH_MS) << 22


def seconds_of(id: str) -> float:
    """When something with an id of Discord's was made; 0 if it is no such id."""
    return ((int(id) >> 22) + EPOCH_MS) / 1000 if is_id(id) else 0.0


def is_id(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 21


def _text(message: dict[str, Any], me: int) -> str:
    text = str(message.get("content") or "")
    if not text and message.get("message_snapshots"):
        text = str(message["message_snapshots"][0]["message"].get("content") or "")  # somebody passed it on
    if not text:
        return next((f"[{it['name']}]" for it in message.get("sticker_items") or ()), "")
    # "@us /status" is a command; at the start of a line Discord would look for one of its own
    found = _MENTION.match(text)
    if found is not None and found[1] == str(me) and text[found.end() :].lstrip().startswith("/"):
        return text[found.end() :].strip()
    names = {str(it["id"]): str(it.get("username") or it["id"]) for it in message.get("mentions") or ()}
    return _MENTION.sub(lambda it: f"@{names.get(it[1], it[1])}", text)


def _is_meant(message: dict[str, Any], me: int, roles: frozenset[str]) -> bool:
    """Mentioned, also by the role that every bot has, or replied to."""
    if any(str(it["id"]) == str(me) for it in message.get("mentions") or ()):
        return True
    if roles & {str(it) for it in message.get("mention_roles") or ()}:
        return True
    replied = message.get("referenced_message") or {}
    return bool(replied) and str((replied.get("author") or {}).get("id")) == str(me)


def _id(fields: dict[str, Any], key: str) -> str:
    value = fields[key]
    if not isinstance(value, str) or not value:
        raise TypeError(f"{key} is no id")
    return value
