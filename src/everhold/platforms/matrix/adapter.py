"""One Matrix account. Its own loop reads its rooms: commit first, then advance the offset. It sends, edits, shows
typing, and transfers files.

Every event that it sends carries a transaction id made from the reply's key. The homeserver recognises it, so a send
whose answer was lost is repeated and shown once.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from everhold.core.entries import Attachment, ChatLocation
from everhold.core.retry import retry_delay_seconds
from everhold.errors import EverholdError, InDoubt, Refused, Transient
from everhold.platforms.files import load_outgoing_file
from everhold.platforms.matrix import client, parsing
from everhold.platforms.matrix.parsing import EVERHOLD_CONTENT_KEY
from everhold.platforms.matrix.settings import NAME, MatrixSettings
from everhold.platforms.unparsed import PARSE_ERRORS, build_unparsed_message, check_incoming_message
from everhold.ports.platform import (
    AcceptMessage,
    AccountIntroduction,
    DeliveryGuarantee,
    IncomingMessage,
    OutgoingMessage,
    PlatformOffset,
    RemoteFile,
)
from everhold.ports.plugin import PluginContext

MAX_TEXT_UNITS: Final = 8_000
"""An event holds 64 KiB. An edit contains its text twice, and a unit may take three bytes."""
MAX_FILE_BYTES: Final = 50_000_000
"""The default file limit of homeservers."""
TYPING_SECONDS: Final = 6.0
MAX_FETCH_ATTEMPTS: Final = 3
MAX_REMEMBERED_SENDERS: Final = 5_000
INVITATION_RETRY_SECONDS: Final = 300.0
"""How often the adapter checks again whether it may accept an invitation, because access can change."""
SYNC_POSITION_KEY: Final = "since"
LOST_POSITION: Final = ""
"""Stands for a lost offset: about a day ago."""
MAX_HISTORY_PAGES: Final = 50
"""How many events of a room are read back then, where events do not have a time."""
SUCCESSOR_KEY_PREFIX: Final = "heir/"
MAX_ROOM_UPGRADES: Final = 20
"""How many replacements of a room are followed. Rooms may replace each other in a circle."""
MAX_GAP_BYTES: Final = 100_000_000
"""How much of what was missed in a room is held in memory, latest first. What is older is read forward page by page."""
MAX_FORWARD_PAGES: Final = 100_000
"""How many pages are read forward at most, so that a homeserver with endless history is left at some time."""
UNHEARD_KEY: Final = "unheard"
"""The record of the newest time at which messages could not be read back, and of their room."""
UNHEARD_SHOWN_SECONDS: Final = 7 * 86_400.0
"""How long the status of the account shows it."""
MIN_PAGE_BYTES: Final = 10_000
"""What a page counts at least, because its events take more memory than their text."""
MAX_SKIPPED_EVENTS: Final = 50
"""Events without a message, such as our own, that may be read again after a restart."""


class MatrixPlatform:
    """One account. Implements `Platform`, `SupportsDrafts`, `SupportsFiles`, `SupportsDownloads`, `SupportsTyping`,
    `SupportsPresence`, `SupportsIntroduction` and `SupportsClose`."""

    name = NAME
    delivery = DeliveryGuarantee.KEYED
    text_limit = MAX_TEXT_UNITS
    file_limit = MAX_FILE_BYTES
    visible_after = 0.0
    settle_seconds = 5.0

    def __init__(self, settings: MatrixSettings, context: PluginContext) -> None:
        assert context.account_context is not None, "a platform has an account context"
        self.account = context.instance
        self._settings = settings
        self._account_context = context.account_context
        self._context = context
        self._log = context.log
        self._client = client.MatrixClient(settings.homeserver, settings.token)
        self._me = ""
        self._skipped_events = 0
        self._rooms: dict[str, parsing.MatrixRoom] = {}
        self._senders: collections.OrderedDict[str, str] = collections.OrderedDict()
        """Event -> its sender, for recent events, so that a reply can mention the sender."""
        self._invites: dict[str, tuple[str, str]] = {}
        """Rooms with an open invitation: their kind, and who invited."""
        self._predecessors: dict[str, str] = {}
        """Rooms with an open invitation that replace another room -> that room."""
        self._successors: dict[str, str] = {}
        """Rooms that the account sent to -> the room that replaced them, or an empty text."""
        self._rate_limited_until: dict[str, float] = {}
        """Room -> the time until which the homeserver's rate limit holds."""
        self._unheard = -UNHEARD_SHOWN_SECONDS, ""
        """When messages could last not be read back, and of which room."""

    async def aclose(self) -> None:
        await self._client.aclose()

    async def introduce(self) -> AccountIntroduction:
        try:
            await self._connect()
        except InDoubt as error:
            raise Transient(error.message, remedy="check that this is the address of the homeserver") from error
        hello = f"open https://matrix.to/#/{self._me} and start a chat with it, without encryption"
        return AccountIntroduction(name=self._me, hello=hello)

    # -- receiving ---------------------------------------------------------------------------------------------------

    async def listen(self, accept: AcceptMessage) -> None:
        failures = 0
        if unheard := await self._account_context.offsets.read(UNHEARD_KEY):
            at, _, chat = unheard.partition(" ")
            self._unheard = float(at), chat
        since = await self._account_context.offsets.read(SYNC_POSITION_KEY)
        asked = self._context.clock.monotonic()
        known = since is None  # a first sync shows invitations anyway
        while True:
            try:
                await self._connect()
                if not known:
                    await self._handle_invitations(
                        (await self._client.sync(None, seconds=0, only=client.INVITES_FILTER)), accept
                    )
                    known = True
                if self._invites and self._context.clock.monotonic() - asked > INVITATION_RETRY_SECONDS:
                    asked = self._context.clock.monotonic()
                    await self._accept_invitations(dict(self._invites), accept)
                sync, begin = await self._sync(since)
                since = await self._accept_events(sync, begin, accept)
                failures = 0
            except (Transient, InDoubt, Refused) as error:
                failures += 1
                await self._report_failure(error, failures)

    async def _connect(self) -> None:
        if not self._me:
            me = await self._client.whoami()
            wanted = self._settings.user
            if wanted and wanted != me:
                raise Refused(f"the token belongs to {me}, not to {wanted}", remedy="set the token of that user")
            self._me = me

    async def _sync(self, since: str | None) -> tuple[dict[str, Any], str | None]:
        """Return what is new, and since when: LOST_POSITION if the homeserver no longer knows our offset."""
        seconds = 0 if since is None else self._settings.poll_seconds
        try:
            sync = await self._client.sync(since, seconds=seconds)
        except client.MatrixPositionUnknown as error:
            # the homeserver was restored from a backup, or replaced
            self._log.warning("offset.refused", error=error)
            sync = parsing.limit_to_recent(await self._client.sync(None, seconds=0))
            self._rooms.clear()
            self._account_context.report(
                error.message, "the last day is read again; older messages that were not heard are missing"
            )
            return sync, LOST_POSITION
        self._report_health()
        return sync, since

    def _report_health(self) -> None:
        """Report that the account works, and for some days what was missed for good, because a person should look."""
        at, chat = self._unheard
        if self._context.clock.now() - at < UNHEARD_SHOWN_SECONDS:
            self._account_context.report(
                f"{chat}: more was missed than can be read back",
                "older messages of this room are not heard: look there; this is shown for seven days",
            )
        else:
            self._account_context.report()

    async def _record_unheard(self, chat: str) -> None:
        self._unheard = self._context.clock.now(), chat
        await self._account_context.offsets.advance(UNHEARD_KEY, f"{self._unheard[0]} {chat}")
        self._report_health()

    async def _report_failure(self, error: EverholdError, failures: int) -> None:
        """Report the failure and wait, longer each time."""
        self._account_context.report(error.message, error.remedy or "no action needed: everhold tries again")
        wait = retry_delay_seconds(failures, jitter=self._account_context.chance.random()) or 300.0
        if isinstance(error, Transient) and error.retry_after is not None:
            wait = error.retry_after
        await self._account_context.sleep(wait)

    async def _accept_events(self, sync: Mapping[str, Any], since: str | None, accept: AcceptMessage) -> str:
        """Accept everything new and return the next offset, which is committed together with the last message."""
        next_offset = str(sync["next_batch"])
        await self._handle_invitations(sync, accept)
        last: IncomingMessage | None = None
        async for chat, raw, room in self._iterate_events(sync, since):
            self._skipped_events += 1
            heard = await self._parse_event(chat, raw, room)
            if heard is not None:
                if last is not None:
                    await accept(last)
                last = heard
        if last is not None:
            offset = PlatformOffset(key=SYNC_POSITION_KEY, value=next_offset)
            await accept(msgspec.structs.replace(last, offset=offset))
            self._skipped_events = 0
        elif self._skipped_events >= MAX_SKIPPED_EVENTS or since is None:
            await self._account_context.offsets.advance(SYNC_POSITION_KEY, next_offset)
            self._skipped_events = 0
        return next_offset

    async def _iterate_events(
        self, sync: Mapping[str, Any], since: str | None
    ) -> AsyncIterator[tuple[str, Any, parsing.MatrixRoom]]:
        """Yield every new event that may matter, and the members at that time; room by room, in each room's order."""
        rooms = sync.get("rooms") or {}
        for chat, room in [*(rooms.get("join") or {}).items(), *(rooms.get("leave") or {}).items()]:
            timeline = room.get("timeline") or {}
            events: list[Any] = list(timeline.get("events") or ())
            entered = parsing.find_join_index(events, self._me)
            if since is None:
                events = parsing.select_unanswered(events, self._me)
            elif entered is not None:
                events = events[entered:]  # messages from before the account joined are not for it
            elif timeline.get("limited") and timeline.get("prev_batch"):
                missed, rest = await self._fetch_missed_events(chat, str(timeline["prev_batch"]), since)
                if rest and since == LOST_POSITION:
                    await self._close_gap(chat, "there is no position to read forward from")
                elif rest:
                    async for raw, then in self._iterate_older_events(chat, since, rest):
                        yield chat, raw, then
                events = missed + events
            # a person may have joined in the missing part, so the room no longer counts as a direct chat
            if entered is not None or timeline.get("limited") or any(map(parsing.is_membership_event, events)):
                self._rooms.pop(chat, None)
                self._invites.pop(chat, None)
            if events:
                now = await self._load_room(chat, at=str(sync["next_batch"]))
                for raw, then in zip(events, parsing.iterate_rooms(now, events), strict=True):
                    yield chat, raw, then

    async def _fetch_missed_events(self, chat: str, start: str, end: str) -> tuple[list[Any], str]:
        """Return the events that a sync left out because there were too many, in order. If that is more than fits into
        memory, return the latest of them, and the position before which the others are."""
        found: list[Any] = []
        size, rest = 0, ""
        for _ in range(MAX_HISTORY_PAGES) if end == LOST_POSITION else itertools.count():
            try:
                page = await self._client.get_messages(chat, start=start, end=end)
            except Refused as error:  # the account may not read the room any more
                self._log.warning("gap.closed", chat=chat, found=len(found), error=error)
                break
            except client.MatrixAnswerTooLarge:
                rest = start
                break
            chunk = page.get("chunk") or []
            size += max(MIN_PAGE_BYTES, len(msgspec.json.encode(chunk)))
            if size > MAX_GAP_BYTES:
                rest = start
                break
            recent = parsing.filter_recent(chunk) if end == LOST_POSITION else chunk
            found += recent
            following = page.get("end")
            if not chunk or len(recent) < len(chunk) or not following or following == start:
                break
            start = str(following)
        found.reverse()
        # the gap reaches back to before the account joined, and older messages are not for it
        entered = parsing.find_join_index(found, self._me)
        self._log.info("gap.filled", chat=chat, events=len(found))
        return (found, rest) if entered is None else (found[entered:], "")

    async def _iterate_older_events(
        self, chat: str, start: str, end: str
    ) -> AsyncIterator[tuple[Any, parsing.MatrixRoom]]:
        """Yield the events between two positions in order, and the members at that time, with one page in memory."""
        room = await self._fetch_members(chat, at=start)
        count = 0
        for _ in range(MAX_FORWARD_PAGES):
            try:
                page = await self._client.get_messages(chat, start=start, end=end, forward=True)
            except (Refused, client.MatrixAnswerTooLarge) as error:
                await self._close_gap(chat, error.message)
                return
            chunk = page.get("chunk") or []
            if room is not None:
                room = parsing.add_changes(room, chunk)
            now = parsing.MatrixRoom(members={}) if room is None else room
            for raw, then in zip(chunk, parsing.iterate_rooms(now, chunk), strict=True):
                if room is None or self._me in then.members:  # what is older than our invitation is not for us
                    count += 1
                    yield raw, then
            following = page.get("end")
            if not chunk or not following or following == start:
                self._log.info("gap.filled", chat=chat, events=count)
                return
            start = str(following)
        await self._close_gap(chat, f"it has more than {MAX_FORWARD_PAGES:,} pages")

    async def _close_gap(self, chat: str, reason: str) -> None:
        """Report that messages of a room cannot be read. Newer ones are heard."""
        self._log.warning("gap.closed", chat=chat, error=reason)
        await self._record_unheard(chat)

    async def _parse_event(self, chat: str, raw: Any, room: parsing.MatrixRoom) -> IncomingMessage | None:
        try:
            if parsing.is_membership_event(raw) or raw.get("sender") == self._me:
                return None
            message = parsing.parse_event(
                raw,
                account=self.account,
                chat=chat,
                me=self._me,
                room=room,
                bots=self._settings.bots,
                commands=self._account_context.commands,
            )
            if message is None:
                return None
            heard = check_incoming_message(message.incoming)
        except PARSE_ERRORS as error:
            reason = f"{type(error).__name__}: {error}"
            self._log.warning("event.unparsed", chat=chat, error=reason)
            id = raw.get("event_id") if isinstance(raw, dict) else None
            id = str(id) if id else hashlib.sha256(repr(raw).encode("utf-8", "replace")).hexdigest()
            sent_by = parsing.find_sender(raw, chat=chat, room=room)
            return build_unparsed_message(
                raw, platform=NAME, account=self.account, id=id, reason=reason, sent_by=sent_by
            )
        self._remember_sender(heard)
        if (message.reply_to or message.thread) and await self._account_context.can_speak(heard):
            if not heard.addressed and await self._is_addressed_to_us(chat, message):
                heard = msgspec.structs.replace(heard, addressed=True)
            if message.reply_to:
                heard = await self._add_quote(heard, message.reply_to, room)
        return heard if message.file is None else msgspec.structs.replace(heard, remote_files=(message.file,))

    async def _add_quote(self, heard: IncomingMessage, id: str, room: parsing.MatrixRoom) -> IncomingMessage:
        """Return the message with a quote of the event that it replies to. A quote that cannot be read is left out."""
        try:
            raw = await self._client.get_event(heard.origin.chat, id)
        except EverholdError as error:
            self._log.info("quote.missing", chat=heard.origin.chat, error=error)
            return heard
        quote = parsing.parse_quote(raw, sender=heard.sender, me=self._me, room=room)
        return heard if quote is None else msgspec.structs.replace(heard, pieces=(*heard.pieces, quote))

    async def _load_room(self, chat: str, *, at: str = "") -> parsing.MatrixRoom:
        """Return the members of a room now, or at the time of a sync."""
        room = self._rooms.get(chat)
        if room is None:
            room = await self._fetch_members(chat, at=at)
            if room is None:  # so messages are treated as in a group
                return parsing.MatrixRoom(members={})
            self._rooms[chat] = room
        return room

    async def _fetch_members(self, chat: str, *, at: str) -> parsing.MatrixRoom | None:
        """Return the members, or None if the account was removed or there are too many members."""
        try:
            return parsing.MatrixRoom.from_events(await self._client.get_members(chat, at=at))
        except (Refused, client.MatrixAnswerTooLarge):
            return None

    def _remember_sender(self, heard: IncomingMessage) -> None:
        self._senders[heard.origin.message] = heard.sender
        while len(self._senders) > MAX_REMEMBERED_SENDERS:
            self._senders.popitem(last=False)

    async def _is_addressed_to_us(self, chat: str, message: parsing.MatrixMessage) -> bool:
        """Return whether an event replies to one of ours, or is in a thread below it."""
        for id in {message.reply_to, message.thread} - {""}:
            sender = self._senders.get(id)
            if sender is None:
                try:
                    sender = str((await self._client.get_event(chat, id)).get("sender"))
                except Refused:
                    continue
                except InDoubt as error:
                    # the homeserver fails at this event, possibly for ever, and other messages must not wait for it;
                    # an answer too many is better than a message that is not heard
                    self._log.warning("quote.missing", chat=chat, error=error)
                    return True
                self._senders[id] = sender
            if sender == self._me:
                return True
        return False

    # -- incoming files ----------------------------------------------------------------------------------------------

    async def download(self, file: RemoteFile) -> bytes:
        most = self._account_context.max_file_bytes
        server, id = parsing.split_reference(file.reference)
        if not id:
            raise Refused("the file is not stored at a homeserver")
        if file.size > most:
            raise Refused(f"it is larger than {most:,} bytes")
        for attempt in range(1, MAX_FETCH_ATTEMPTS + 1):
            try:
                return await self._client.download(server, id, most=most)
            except (Transient, InDoubt) as error:
                if attempt == MAX_FETCH_ATTEMPTS:
                    raise Refused(error.message) from error
                wait = error.retry_after if isinstance(error, Transient) else None
                await self._account_context.sleep(wait or float(attempt))
        raise AssertionError("the last attempt returns or raises")

    # -- invitations -------------------------------------------------------------------------------------------------

    async def _handle_invitations(self, sync: Mapping[str, Any], accept: AcceptMessage) -> None:
        fresh: dict[str, tuple[str, str]] = {}
        for chat, room in ((sync.get("rooms") or {}).get("invite") or {}).items():
            state = parsing.list_invitation_state(room)
            invitation = parsing.parse_invitation(state, self._me)
            if invitation is None:
                self._log.warning("invitation.unclear", chat=chat)
                continue
            await self._record_room_upgrade(chat, parsing.find_predecessor(state), invitation)
            fresh[chat] = self._invites[chat] = invitation
        await self._accept_invitations(fresh, accept)

    async def _record_room_upgrade(self, chat: str, former: str, invitation: tuple[str, str]) -> None:
        """Record the room that an upgraded room replaces; the conversation continues. The old room has to confirm it,
        because anyone can make a room that claims to replace another. It is asked only for people who may speak there
        or here."""
        places = (former, chat) if parsing.is_room_id(former) else ()
        for place in places:
            if await self._account_context.can_speak(self._build_invitation(place, *invitation)):
                break
        else:
            return
        try:
            tombstone = await self._client.get_tombstone(former)
        except Refused:
            return
        if tombstone.get("replacement_room") == chat:
            self._predecessors[chat] = former
            await self._account_context.add_chat_alias(former, chat)

    async def _accept_invitations(self, invites: Mapping[str, tuple[str, str]], accept: AcceptMessage) -> None:
        """Join the rooms of people who may speak there. The ingress decides, as it does for their messages."""
        for chat, (kind, by) in invites.items():
            result = await accept(self._build_invitation(chat, kind, by))
            if result.outcome in ("accepted", "duplicate", "ignored"):
                await self._join_room(chat)

    def _build_invitation(self, chat: str, kind: str, by: str) -> IncomingMessage:
        return IncomingMessage(
            origin=ChatLocation(platform=NAME, account=self.account, chat=chat, message=f"invitation by {by}"),
            text=f"[{by} invited you here]",
            sender=by,
            name=parsing.get_localpart(by),
            kind=kind,
            event="invite",
            addressed=False,
            can_change_owner=True,
        )

    async def _join_room(self, chat: str) -> None:
        try:
            await self._client.join_room(chat)
        except (Transient, InDoubt) as error:
            # a room whose homeserver is down must not delay the others, so it is tried again later
            self._log.warning("invitation.waiting", chat=chat, error=error)
            return
        except Refused as error:
            self._log.warning("invitation.expired", chat=chat, error=error)
        else:
            self._log.info("room.joined", chat=chat)
            if former := self._predecessors.pop(chat, ""):
                await self._account_context.offsets.advance(SUCCESSOR_KEY_PREFIX + former, chat)
                self._successors[former] = chat
        self._invites.pop(chat, None)

    # -- sending -----------------------------------------------------------------------------------------------------

    async def send(self, out: OutgoingMessage) -> str:
        if out.file is not None:
            return await self._send_file(out, out.file)
        return await self._send_event(out, await self._build_content(out), part="")

    async def probe(self, out: OutgoingMessage) -> str | None:
        raise Refused("delivery to Matrix is keyed, so it is never probed")

    async def draft(self, out: OutgoingMessage) -> str:
        return await self._send_event(out, await self._build_content(out, draft=True), part="")

    async def revise(self, remote: str, out: OutgoingMessage) -> None:
        revised = msgspec.structs.replace(out, edits=remote)
        await self._send_event(revised, await self._build_content(revised, draft=True), part=f"\n{out.text}")

    async def is_alone_with(self, to: ChatLocation, sender: str) -> bool:
        await self._connect()
        room = await self._load_room(await self._resolve_current_room(to.chat))
        return room.members.keys() <= {self._me, sender}

    async def send_typing(self, to: ChatLocation) -> None:
        await self._connect()
        await self._client.send_typing(await self._resolve_current_room(to.chat), self._me, seconds=TYPING_SECONDS)

    async def _send_event(self, out: OutgoingMessage, content: Mapping[str, Any], *, part: str) -> str:
        """Send an event to a room. A repeat with the same key has no effect."""
        chat = await self._resolve_current_room(out.to.chat)
        left = self._rate_limited_until.get(chat, 0.0) - self._context.clock.monotonic()
        if left > 0:
            raise Transient(f"the homeserver limits this room for another {left:.0f} s", retry_after=left)
        self._rate_limited_until.pop(chat, None)
        # an edit is a different event from the one it replaces, even if both come from one reply
        txn = hashlib.sha256(f"{out.key}\n{out.edits}{part}".encode("utf-8", "replace")).hexdigest()[:40]
        try:
            return await self._client.send_event(chat, content, txn=txn)
        except Refused:
            if chat not in self._invites:
                raise
            await self._join_room(
                chat
            )  # the account has to be a member to send, for example to give a stranger a pairing code
            return await self._client.send_event(chat, content, txn=txn)
        except Transient as error:
            if error.retry_after is not None:
                self._rate_limited_until[chat] = self._context.clock.monotonic() + error.retry_after
            raise

    async def _resolve_current_room(self, chat: str) -> str:
        """Return the room to send to: the replacement of a room that was upgraded."""
        for _ in range(MAX_ROOM_UPGRADES):
            if chat not in self._successors:
                self._successors[chat] = await self._account_context.offsets.read(SUCCESSOR_KEY_PREFIX + chat) or ""
            if not self._successors[chat]:
                break
            chat = self._successors[chat]
        return chat

    async def _build_content(self, out: OutgoingMessage, *, draft: bool = False) -> dict[str, Any]:
        content: dict[str, Any] = {"msgtype": "m.notice" if out.notice else "m.text", "body": out.text}
        content["m.mentions"] = {"user_ids": self._collect_mentions(out)} if not draft else {}
        relation = await self._build_relation(out.to)
        own_content = {"hops": out.hops, **({"draft": True} if draft else {})}
        if not out.edits:
            return {**content, **relation, EVERHOLD_CONTENT_KEY: own_content}
        return {
            **content,
            "body": f"* {out.text}",
            "m.new_content": {**content, **relation},
            "m.relates_to": {"rel_type": "m.replace", "event_id": out.edits},
            EVERHOLD_CONTENT_KEY: own_content,
        }

    def _collect_mentions(self, out: OutgoingMessage) -> list[str]:
        """Return the users to mention: those named in the text by id, and the sender of the replied-to event."""
        named = parsing.USER_ID_PATTERN.findall(out.text)
        answered = self._senders.get(out.to.message)
        room = self._rooms.get(out.to.chat)
        if answered and not out.notice and not (room is not None and room.is_direct):
            named.append(answered)
        return [user for user in dict.fromkeys(named) if user != self._me][:50]

    async def _build_relation(self, to: ChatLocation) -> dict[str, Any]:
        """Return the relation. In a group a reply refers to its message; in a direct chat it does not."""
        if not to.message.startswith("$"):
            return {}
        replies = {"m.in_reply_to": {"event_id": to.message}}
        if to.thread:
            return {"m.relates_to": {"rel_type": "m.thread", "event_id": to.thread, "is_falling_back": True, **replies}}
        try:
            direct = (await self._load_room(to.chat)).is_direct
        except (Transient, InDoubt):
            direct = False
        return {} if direct else {"m.relates_to": replies}

    async def _send_file(self, out: OutgoingMessage, file: Attachment) -> str:
        data = await load_outgoing_file(self._context, file, most=MAX_FILE_BYTES)
        name = file.name or "file"
        kind = file.media.partition("/")[0]
        event = {
            "msgtype": f"m.{kind}" if kind in ("image", "audio", "video") else "m.file",
            "body": name,
            "filename": name,
            "url": await self._client.upload(data, name=name, media=file.media),
            "info": {"size": len(data), "mimetype": file.media or "application/octet-stream"},
            "m.mentions": {},
            **await self._build_relation(out.to),
            EVERHOLD_CONTENT_KEY: {"hops": out.hops},
        }
        return await self._send_event(out, event, part="\nfile")
