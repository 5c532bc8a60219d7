"""Turns a room event into an incoming message: what it is, who sent it, and whether it addresses the agent."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, TypeGuard

from msgspec import Struct
from nio import (
    BadEvent,
    Event,
    MegolmEvent,
    RoomMessage,
    RoomMessageEmote,
    RoomMessageMedia,
    RoomMessageNotice,
    StickerEvent,
    UnknownBadEvent,
    UnknownEncryptedEvent,
)

from everhold.core.entries import AGENT_ITSELF, ChatLocation, TextPiece
from everhold.core.provenance import shorten_piece
from everhold.platforms.unparsed import UnparsedSender, find_id
from everhold.ports.platform import IncomingMessage, RemoteFile

EVERHOLD_CONTENT_KEY: Final = "org.everhold"
"""The key in an event's content that only everhold writes: the number of hops, and whether it is a draft. It
distinguishes agents from people, which Matrix itself does not."""
MAX_MATRIX_ID_BYTES: Final = 255
"""The longest id of a user, a room or an event."""
RECENT_AGE_MS: Final = 86_400_000
"""At the first sync of a room, events older than a day are not for the agent."""
USER_ID_PATTERN: Final = re.compile(r"@[a-z0-9._=/+-]+:[A-Za-z0-9.-]+(?::\d{1,5})?(?<![.:-])")
_MXC: Final = re.compile(r"mxc://([A-Za-z0-9.:\[\]-]{1,255})/([A-Za-z0-9_-]{1,255})")
_QUOTE: Final = re.compile(r"> <@[^\n]*\n(?:> [^\n]*\n|>\n)*\n")
"""The quote that old clients put before a reply."""
ENCRYPTED_NOTICE: Final = "[an encrypted message, which I cannot read: please write in a room without encryption]"


class MatrixEventInvalid(ValueError):
    """An event with inconsistent content."""


class MatrixRoom(Struct, frozen=True, kw_only=True):
    """Member id -> display name, invited members included. A room with two members is a direct chat."""

    members: Mapping[str, str]

    @property
    def is_direct(self) -> bool:
        return len(self.members) == 2

    @classmethod
    def from_events(cls, events: Sequence[Mapping[str, Any]]) -> MatrixRoom:
        found = {}
        for event in events:
            content = _as_mapping(event.get("content"))
            if content.get("membership") in ("join", "invite"):
                id = str(event.get("state_key", ""))
                found[id] = str(content.get("displayname") or get_localpart(id))
        return cls(members=found)


class MatrixMessage(Struct, frozen=True, kw_only=True):
    """A parsed event. `replies` and `thread` are ids of other events that were not read yet."""

    incoming: IncomingMessage
    file: RemoteFile | None = None
    reply_to: str = ""
    thread: str = ""


def split_reference(reference: str) -> tuple[str, str]:
    """Return the homeserver and the id of a file."""
    server, _, id = reference.partition("/")
    return server, id


def find_sender(raw: object, *, chat: str, room: MatrixRoom) -> UnparsedSender | None:
    """Return who sent an event that cannot be parsed. The homeserver checked the sender."""
    sender = find_id(raw, "sender")
    return UnparsedSender(sender=sender, chat=chat, is_direct=room.is_direct) if sender else None


def get_localpart(user: str) -> str:
    """Return the part of an id that people use as a name."""
    return user.removeprefix("@").partition(":")[0]


def is_membership_event(raw: object) -> bool:
    return isinstance(raw, dict) and raw.get("type") == "m.room.member"


def find_join_index(events: Sequence[Any], me: str) -> int | None:
    """Return the index in a room's events at which our membership begins: after our invitation, or else after our
    joining."""
    invited = joined = None
    for place, raw in enumerate(events):
        if not is_membership_event(raw) or raw.get("state_key") != me:
            continue
        membership = _as_mapping(raw.get("content")).get("membership")
        before = _as_mapping(_as_mapping(raw.get("unsigned")).get("prev_content")).get("membership")
        if membership == "invite":
            invited = place + 1
        elif membership == "join" and before != "join":
            joined, invited = (invited if invited is not None else place + 1), None
    return joined


def iterate_rooms(now: MatrixRoom, events: Sequence[Any]) -> Iterator[MatrixRoom]:
    """Yield the members at each of a room's latest events, computed from the current members, because a message that
    is read late was meant for the members of its time.

    A room is valid until the next one is taken. They share one table, because a copy for each event would let the
    members of a large room use up the memory with changes of their names.
    """
    members = dict(now.members)
    then = MatrixRoom(members=members)
    changes = [_undo_membership(members, raw) for raw in reversed(events)]
    for change in reversed(changes):
        match change:
            case (id, str(name)):
                members[id] = name
            case (id, None):
                members.pop(id, None)
        yield then


def add_changes(room: MatrixRoom, events: Sequence[Any]) -> MatrixRoom:
    """Return the members of a room after its next events."""
    changes = [raw for raw in events if is_membership_event(raw)]
    if not changes:
        return room
    members = dict(room.members)
    for raw in changes:
        members.pop(str(raw.get("state_key", "")), None)
        members.update(MatrixRoom.from_events([raw]).members)
    return MatrixRoom(members=members)


def _undo_membership(members: dict[str, str], raw: Any) -> tuple[str, str | None] | None:
    """Make `members` those before an event. Return whom the event concerns, and their name after it, which is None if
    they were no member then; None if it concerns nobody."""
    if not is_membership_event(raw):
        return None
    id = str(raw.get("state_key", ""))
    past, name = _as_mapping(_as_mapping(raw.get("unsigned")).get("prev_content")), members.pop(id, None)
    if past.get("membership") in ("join", "invite"):
        members[id] = str(past.get("displayname") or get_localpart(id))
    return id, name


def list_invitation_state(room: object) -> list[Any]:
    """Return the state that a sync shows of a room with an open invitation. Another homeserver may have written it."""
    events = _as_mapping(_as_mapping(room).get("invite_state")).get("events")
    return events if isinstance(events, list) else []


def find_predecessor(events: Sequence[Any]) -> str:
    """Return the room that a room claims to replace."""
    for raw in events:
        if isinstance(raw, dict) and raw.get("type") == "m.room.create":
            return str(_as_mapping(_as_mapping(raw.get("content")).get("predecessor")).get("room_id") or "")
    return ""


def parse_invitation(events: Sequence[Any], me: str) -> tuple[str, str] | None:
    """Return the kind of a room with an open invitation, as far as it is visible, and who invited.

    The inviting homeserver writes the state of the room, and only the invitation itself is checked. So an invitation
    whose sender is not clear, because the state contains another one, is none.
    """
    state = [raw for raw in events if isinstance(raw, dict)]
    named = any(raw.get("type") in ("m.room.name", "m.room.canonical_alias") for raw in state)
    found = [raw for raw in state if is_membership_event(raw) and raw.get("state_key") == me]
    senders = {raw.get("sender") if isinstance(raw.get("sender"), str) else "" for raw in found}
    by = senders.pop() if len(senders) == 1 else ""
    if not by or not is_user_id(by):
        return None
    direct = any(_as_mapping(raw.get("content")).get("is_direct") is True for raw in found) or not named
    return "dm" if direct else "group", by


def is_user_id(text: str) -> bool:
    """Return whether a text has the form of a user's id. Ids from other homeservers are not checked otherwise."""
    return text.startswith("@") and ":" in text and len(text.encode("utf-8", "replace")) <= MAX_MATRIX_ID_BYTES


def is_room_id(text: str) -> bool:
    return text.startswith("!") and text.isprintable() and len(text.encode("utf-8", "replace")) <= MAX_MATRIX_ID_BYTES


def is_event_id(text: object) -> TypeGuard[str]:
    """Return whether a value has the form of an event's id, so that the homeserver can be asked for the event."""
    return (
        isinstance(text, str)
        and text.startswith("$")
        and text.isprintable()
        and 1 < len(text.encode("utf-8", "replace")) <= MAX_MATRIX_ID_BYTES
    )


def select_unanswered(events: Sequence[Any], me: str) -> list[Any]:
    """Return the events of a first sync that are for the agent: since it joined, since its last message, and within a
    day."""
    begin = find_join_index(events, me)
    if begin is None:
        return []  # the agent was a member of the replaced room for longer
    own = [place for place, raw in enumerate(events) if _is_message_event(raw) and raw.get("sender") == me]
    begin = max(begin, own[-1] + 1 if own else 0)
    return [raw for raw in events[begin:] if _get_event_age_ms(raw) < RECENT_AGE_MS]


def limit_to_recent(sync: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sync without an offset as one from a day ago, because old messages shall not get a first reply now.

    If the day begins before the first returned event, there is a gap, as with an offset.
    """
    rooms = dict(sync.get("rooms") or {})
    for kind in ("join", "leave"):
        rooms[kind] = {
            chat: {**room, "timeline": _build_recent_timeline(room)} for chat, room in (rooms.get(kind) or {}).items()
        }
    return {**sync, "rooms": rooms}


def filter_recent(events: Sequence[Any]) -> list[Any]:
    """Return the events that are at most a day old."""
    return [raw for raw in events if _get_event_age_ms(raw) < RECENT_AGE_MS]


def _build_recent_timeline(room: Any) -> dict[str, Any]:
    events = _get_timeline_events(room)
    recent = filter_recent(events)
    if len(recent) < len(events):
        return {"events": recent}
    return {**_as_mapping(_as_mapping(room).get("timeline")), "events": recent}


def parse_event(
    raw: Mapping[str, Any],
    *,
    account: str,
    chat: str,
    me: str,
    room: MatrixRoom,
    bots: Collection[str],
    commands: Collection[str],
) -> MatrixMessage | None:
    """Return the message of an event, or None for events without one: our own messages, drafts, reactions, a new topic.

    Raises MatrixEventInvalid, or one of PARSE_ERRORS for an event of an unexpected form.
    """
    event = Event.parse_event(raw)
    if isinstance(event, BadEvent | UnknownBadEvent):
        if isinstance(raw, dict) and raw.get("type") not in ("m.room.message", "m.sticker"):
            return None  # the event has no sender
        raise MatrixEventInvalid(str(event) if isinstance(event, BadEvent) else "an event without its required fields")
    if event.sender == me:
        return None
    encrypted = isinstance(event, MegolmEvent | UnknownEncryptedEvent)
    if not isinstance(event, RoomMessage | StickerEvent) and not encrypted:
        return None
    return _parse_message(
        event, raw, encrypted, account=account, chat=chat, me=me, room=room, bots=bots, commands=commands
    )


def _parse_message(
    event: Any,
    raw: Mapping[str, Any],
    encrypted: bool,
    *,
    account: str,
    chat: str,
    me: str,
    room: MatrixRoom,
    bots: Collection[str],
    commands: Collection[str],
) -> MatrixMessage | None:
    outer: dict[str, Any] = raw["content"]
    own_content = outer.get(EVERHOLD_CONTENT_KEY)
    own_content = own_content if isinstance(own_content, dict) else None
    if own_content is not None and own_content.get("draft"):
        return None  # the final text follows
    relation = _get_relation(outer)
    content, id, edits = outer, str(event.event_id), ""
    if relation.get("rel_type") == "m.replace":
        content, edits = outer["m.new_content"], _require_event_id(relation)
        relation = _get_relation(content)
    name = room.members.get(event.sender) or get_localpart(event.sender)
    file = None if edits or encrypted else _parse_file(event, content)
    text = ENCRYPTED_NOTICE if encrypted else _extract_text(event, content, name, captioned=file is not None)
    finished = own_content is not None and edits
    thread = _require_event_id(relation) if relation.get("rel_type") == "m.thread" else ""
    replied = _as_mapping(relation.get("m.in_reply_to")).get("event_id")
    replies = replied if is_event_id(replied) and not relation.get("is_falling_back") else ""
    text, mentioned = _detect_mention(text, content, outer, me=me, called=room.members.get(me, ""), commands=commands)
    hops = own_content.get("hops", 0) if own_content is not None else 0
    notice = isinstance(event, RoomMessageNotice)
    return MatrixMessage(
        incoming=IncomingMessage(
            origin=ChatLocation(platform="matrix", account=account, chat=chat, thread=thread, message=edits or id),
            text=text,
            sender=str(event.sender),
            name=name,
            kind="dm" if room.is_direct else "group",
            can_change_owner=True,
            # an agent's message counts when its draft is finished
            event="edit" if edits and not finished else "message",
            # any user can claim to finish another's draft, which must not replace what its author sends later
            revision="" if not edits else str(event.sender) if finished else id,
            addressed=room.is_direct or mentioned,
            bot=own_content is not None or notice or event.sender in bots,
            notice=notice,
            hops=hops if isinstance(hops, int) and 0 <= hops < 1_000_000 else 0,
        ),
        file=file,
        reply_to=replies,
        thread=thread,
    )


def _extract_text(event: Any, content: Mapping[str, Any], name: str, *, captioned: bool) -> str:
    body = content["body"]
    if not isinstance(body, str):
        raise MatrixEventInvalid("the body is not a text")
    if captioned:
        # with a file, the body is its name, unless the name has its own field; then the body is a caption
        named = content.get("filename")
        return body if isinstance(named, str) and named != body else ""
    if _get_relation(content).get("m.in_reply_to"):
        body = _remove_quote(body)
    return f"* {name} {body}" if isinstance(event, RoomMessageEmote) else body


def _remove_quote(body: str) -> str:
    found = _QUOTE.match(body)
    return body[found.end() :] if found is not None else body


def parse_quote(raw: Mapping[str, Any], *, sender: str, me: str, room: MatrixRoom) -> TextPiece | None:
    """Return the quote of an event that `sender` replied to, as the homeserver returned it; None if it has no text. The
    quote inside the reply is not used, because the replying client writes it."""
    content = _as_mapping(raw.get("content"))
    content = _as_mapping(content.get("m.new_content")) or content
    body, by = content.get("body"), raw.get("sender")
    if raw.get("type") != "m.room.message" or not isinstance(body, str) or not isinstance(by, str):
        return None
    if _get_relation(content).get("m.in_reply_to"):
        body = _remove_quote(body)
    if not body:
        return None
    return TextPiece(
        source="quoted",
        by=AGENT_ITSELF if by == me else f"matrix:{by}",
        name=room.members.get(by) or get_localpart(by),
        own=by == sender,
        text=shorten_piece(body),
    )


def _parse_file(event: Any, content: Mapping[str, Any]) -> RemoteFile | None:
    if not isinstance(event, RoomMessageMedia | StickerEvent):
        return None
    info = content.get("info") or {}
    size, media = info.get("size", 0), info.get("mimetype", "")
    found = _MXC.fullmatch(str(event.url))
    name = content.get("filename") or content.get("body") or "file"
    return RemoteFile(
        reference=f"{found[1]}/{found[2]}" if found else "",
        name=str(name)[:300],
        media=str(media),
        size=size if isinstance(size, int) and size > 0 else 0,
    )


def _detect_mention(
    text: str, content: Mapping[str, Any], outer: Mapping[str, Any], *, me: str, called: str, commands: Collection[str]
) -> tuple[str, bool]:
    """Return the text, and whether it mentions us. `@user /status` is a command too, because people write it that
    way."""
    names = [me, f"@{get_localpart(me)}", *([called, f"@{called}"] if called else []), get_localpart(me)]
    first = re.match(rf"(?:{'|'.join(map(re.escape, names))})(?![\w.-]|:\w)[:,]?\s*", text, re.IGNORECASE)
    if first is not None and text[first.end() :].startswith("/"):
        return text[first.end() :], True
    if text.startswith("/") and text[1:].split(maxsplit=1)[:1] and text[1:].split(maxsplit=1)[0] in commands:
        return text, True
    mentions = content.get("m.mentions", outer.get("m.mentions"))
    if isinstance(mentions, dict):
        listed = mentions.get("user_ids", ())
        return text, isinstance(listed, list) and me in listed
    # clients without intentional mentions: search for a name in the text
    if first is not None:
        return text, True
    return text, re.search(rf"(?<![\w@.-]){re.escape(me)}(?![\w-])", text) is not None


def _get_relation(content: Mapping[str, Any]) -> Mapping[str, Any]:
    return _as_mapping(content.get("m.relates_to"))


def _require_event_id(relation: Mapping[str, Any]) -> str:
    id = relation["event_id"]
    if not is_event_id(id):
        raise MatrixEventInvalid("the related event has no id")
    return id


def _as_mapping(part: object) -> Mapping[str, Any]:
    """Return a part of an event's content, or an empty one if it has another type."""
    return part if isinstance(part, dict) else {}


def _get_timeline_events(room: Mapping[str, Any]) -> Sequence[Any]:
    return (room.get("timeline") or {}).get("events") or ()


def _is_message_event(raw: object) -> bool:
    return isinstance(raw, dict) and raw.get("type") in ("m.room.message", "m.sticker", "m.room.encrypted")


def _get_event_age_ms(raw: object) -> int:
    unsigned = raw.get("unsigned") if isinstance(raw, dict) else None
    age = unsigned.get("age", 0) if isinstance(unsigned, dict) else 0
    return age if isinstance(age, int) else 0
