"""Turns a Slack event into an incoming message: what it is, who sent it, and whether it addresses the agent."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from everhold.core.entries import AGENT_ITSELF, ChatLocation, TextPiece
from everhold.core.provenance import shorten_piece
from everhold.platforms.slack import formatting
from everhold.platforms.slack.settings import NAME
from everhold.platforms.unparsed import UnparsedSender, find_id, require_id
from everhold.ports.platform import IncomingMessage

TEXT_MESSAGE_SUBTYPES: Final = frozenset({"", "file_share", "thread_broadcast", "me_message", "bot_message"})
"""The message subtypes that contain text of a sender. All others are system messages."""
METADATA_EVENT_TYPE: Final = "everhold_message"
OWN_COMMAND: Final = "/everhold"


class SlackIdentity(Struct, frozen=True, kw_only=True):
    """The identity of the app."""

    user: str
    bot: str
    name: str
    team: str = ""
    organization: str = ""


def is_for_app(payload: dict[str, Any], me: SlackIdentity | None) -> bool:
    """Return whether an event is for this installation of the app. Slack signs the events of all workspaces that
    installed the app with one secret, and a user's id is unique only within a workspace."""
    installations = payload.get("authorizations")
    bots = [it.get("user_id") for it in installations or () if isinstance(it, dict) and it.get("is_bot")]
    return me is None or not bots or me.user in bots


def is_foreign_command(payload: dict[str, Any], me: SlackIdentity | None) -> bool:
    """Return whether a command or a button was used in another workspace that installed the app."""
    team = payload.get("team_id") or find_id(payload, "team", "id") or None
    if me is None or not me.team or team in (None, me.team):
        return False
    organization = payload.get("enterprise_id") or find_id(payload, "enterprise", "id")
    return not me.organization or organization != me.organization


class SlackFile(Struct, frozen=True, kw_only=True):
    """A file that is stored at Slack and not downloaded yet."""

    id: str
    name: str
    media: str
    size: int
    url: str
    """Empty if Slack gives the URL only on request."""
    external: bool


def parse_message(event: dict[str, Any], *, account: str, me: SlackIdentity) -> IncomingMessage | None:
    """Return the message of an event, or None if it has none."""
    if event.get("type") not in ("message", "app_mention"):
        return None
    channel = require_id(event, "channel")
    edited = event.get("subtype") == "message_changed"
    message: dict[str, Any] = event["message"] if edited else event
    if (message.get("subtype") or "") not in TEXT_MESSAGE_SUBTYPES or is_own_message(message, me):
        return None
    if edited and not _is_edit(event, message):
        return None  # Slack added a link preview
    text = _extract_text(message, me)
    pieces = _extract_pieces(message, me)
    if not text and not pieces and not message.get("files"):
        return None
    ts, thread = require_id(message, "ts"), message.get("thread_ts") or ""
    if not is_message_ts(ts) or (thread and not is_message_ts(thread)):
        raise ValueError("the event has no timestamp")
    direct = channel.startswith("D")
    return IncomingMessage(
        origin=ChatLocation(
            platform=NAME, account=account, chat=channel, thread=thread if thread != ts else "", message=ts
        ),
        text=text,
        sender=require_id(message, "user") if message.get("user") else require_id(message, "bot_id"),
        name=str((message.get("user_profile") or message.get("bot_profile") or {}).get("name") or ""),
        kind="dm" if direct else "channel",
        event="edit" if edited else "message",
        revision=str(message["edited"]["ts"]) if edited else "",
        addressed=direct or f"<@{me.user}" in (message.get("text") or "") or message.get("parent_user_id") == me.user,
        bot=bool(message.get("bot_id")),
        hops=_get_hops(message),
        pieces=pieces,
    )


def parse_command(payload: dict[str, Any], *, account: str) -> IncomingMessage:
    """Return a slash command. `/everhold new` and `/new` are the same."""
    channel, name, given = (
        require_id(payload, "channel_id"),
        require_id(payload, "command"),
        str(payload.get("text") or "").strip(),
    )
    if name == OWN_COMMAND:
        name, _, given = (given or "help").partition(" ")
        name = f"/{name.lstrip('/')}"
    return IncomingMessage(
        origin=ChatLocation(platform=NAME, account=account, chat=channel, message=require_id(payload, "trigger_id")),
        text=f"{name} {given}".strip(),
        sender=require_id(payload, "user_id"),
        name=str(payload.get("user_name") or ""),
        kind="dm" if channel.startswith("D") else "channel",
        event="command",
        can_change_owner=True,  # the command may be used in a conversation where the app is not a member
    )


def parse_press(payload: dict[str, Any], *, account: str) -> IncomingMessage | None:
    """Return the command of a button, or None for something else than a button with a command."""
    actions = payload.get("actions") or ()
    pressed = str(actions[0].get("value") or "") if payload.get("type") == "block_actions" and actions else ""
    if not pressed.startswith("/"):
        return None
    channel, message = require_id(payload["channel"], "id"), payload.get("message") or {}
    thread = message.get("thread_ts") or ""
    return IncomingMessage(
        origin=ChatLocation(
            platform=NAME,
            account=account,
            chat=channel,
            thread=thread if thread != message.get("ts") and is_message_ts(thread) else "",
            message=require_id(payload, "trigger_id"),
        ),
        text=pressed,
        sender=require_id(payload["user"], "id"),
        name=str(payload["user"].get("username") or ""),
        kind="dm" if channel.startswith("D") else "channel",
        event="command",
    )


def parse_files(event: dict[str, Any]) -> tuple[SlackFile, ...]:
    """Return the files of a message, except deleted ones."""
    if event.get("subtype") == "message_changed":
        return ()  # the message already brought them
    return tuple(
        SlackFile(
            id=str(file.get("id") or ""),
            name=str(file.get("name") or file.get("title") or "file"),
            media=str(file.get("mimetype") or ""),
            size=int(file.get("size") or 0),
            url=str(file.get("url_private_download") or file.get("url_private") or ""),
            external=bool(file.get("is_external")),
        )
        for file in (*(event.get("files") or ()), *_list_shared_files(event))
        if file.get("mode") != "tombstone"
    )


def find_sender(raw: object) -> UnparsedSender | None:
    """Return who sent an event or a command that cannot be parsed, as far as it can be read."""
    sender = find_id(raw, "user") or find_id(raw, "message", "user") or find_id(raw, "user_id")
    sender = sender or find_id(raw, "user", "id")
    chat = find_id(raw, "channel") or find_id(raw, "channel_id") or find_id(raw, "channel", "id")
    return UnparsedSender(sender=sender, chat=chat, is_direct=chat.startswith("D")) if sender else None


def locate_envelope(type: str, payload: dict[str, Any]) -> tuple[str, str]:
    """Return the conversation of an envelope, and the ts of its message, which is empty if the history does not show
    what the envelope brings."""
    event = payload.get("event")
    is_message = type == "events_api" and find_id(event, "subtype") != "message_changed"
    chat = find_id(event, "channel") or find_id(payload, "channel_id") or find_id(payload, "channel", "id")
    return chat, find_id(event, "ts") if is_message else ""


def is_message_ts(text: str) -> bool:
    """Return whether a value is a Slack timestamp. Slack's message ids are timestamps too."""
    seconds, dot, rest = text.partition(".")
    return bool(dot) and seconds.isdecimal() and rest.isdecimal() and len(text) < 40


def _extract_text(message: dict[str, Any], me: SlackIdentity) -> str:
    text = str(message.get("text") or "")
    # "@app /status" is a command; alone, Slack would take the slash for its own command
    mention, _, rest = text.strip().partition(">")
    if mention.partition("|")[0] == f"<@{me.user}" and rest.strip().startswith("/"):
        text = rest.strip()
    return formatting.from_mrkdwn(text, names={me.user: me.name})


def _extract_pieces(message: dict[str, Any], me: SlackIdentity) -> tuple[TextPiece, ...]:
    """Return the text that the sender did not write: shared messages, messages that are linked to, and previews."""
    found = (_parse_attachment(it, message, me) for it in message.get("attachments") or ())
    return tuple(piece for piece in found if piece is not None)


def _parse_attachment(attachment: dict[str, Any], message: dict[str, Any], me: SlackIdentity) -> TextPiece | None:
    parts = [attachment.get("title"), attachment.get("text")]
    text = "\n".join(str(part) for part in parts if part) or str(attachment.get("fallback") or "")
    text = formatting.from_mrkdwn(text, names={me.user: me.name})
    shared = bool(attachment.get("is_share"))
    if not text and not (shared and attachment.get("files")):
        return None
    if not shared and not attachment.get("is_msg_unfurl"):
        name = str(attachment.get("service_name") or attachment.get("author_name") or attachment.get("from_url") or "")
        return TextPiece(source="embedded", name=name, text=shorten_piece(text))
    id, name = str(attachment.get("author_id") or ""), str(attachment.get("author_name") or "")
    by = AGENT_ITSELF if id == me.user else f"{NAME}:{id}" if id else ""
    if shared:
        return TextPiece(source="forwarded", by=f"{NAME}:{id}" if id else "", name=name, text=text)
    return TextPiece(
        source="quoted", by=by, name=name, own=bool(id) and id == message.get("user"), text=shorten_piece(text)
    )


def _list_shared_files(message: dict[str, Any]) -> list[Any]:
    """Return the files of shared messages."""
    shared = [it for it in message.get("attachments") or () if it.get("is_share")]
    return [file for it in shared for file in it.get("files") or ()]


def is_own_message(message: dict[str, Any], me: SlackIdentity) -> bool:
    return message.get("user") == me.user or (bool(me.bot) and message.get("bot_id") == me.bot)


def _is_edit(event: dict[str, Any], message: dict[str, Any]) -> bool:
    before = event.get("previous_message") or {}
    return bool(message.get("edited")) and before.get("text") != message.get("text")


def _get_hops(message: dict[str, Any]) -> int:
    metadata = message.get("metadata") or {}
    hops = metadata.get("event_payload", {}).get("hops") if metadata.get("event_type") == METADATA_EVENT_TYPE else 0
    return hops if isinstance(hops, int) and 0 <= hops <= 1_000 else 0
