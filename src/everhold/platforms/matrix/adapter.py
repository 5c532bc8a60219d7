"""One account. Reads its rooms in a loop of its own: commit, then move the position; sends, edits, types, and brings
files both ways.

Everything that is put into a room carries a transaction id made from the reply's key. The homeserver recognises it, so
a send whose answer was lost is simply repeated: it is seen once.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from everhold.core.attachments import absent, attachment
from everhold.core.entries import Attachment, Place
from everhold.core.retry import wait_seconds
from everhold.errors import EverholdError, InDoubt, Refused, Transient
from everhold.platforms.files import contents
from everhold.platforms.matrix import client, reading
from everhold.platforms.matrix.reading import OURS
from everhold.platforms.matrix.settings import NAME, MatrixSettings
from everhold.platforms.unreadable import BROKEN, readable, unreadable
from everhold.ports.platform import Accept, Delivery, Incoming, Introduction, Outgoing, PlatformOffset
from everhold.ports.plugin import Context

TEXT_UNITS: Final = 8_000
"""An event holds 64 KiB; an edit says its text twice, and a unit may take three bytes."""
FILE_BYTES: Final = 50_000_000
"""What homeservers take if they are not told otherwise."""
TYPING_SECONDS: Final = 6.0
FETCH_TRIES: Final = 3
MOST_SENDERS: Final = 5_000
ASK_AGAIN_SECONDS: Final = 300.0
"""How often it is asked again whether an invitation may be followed: who may speak can change."""
SINCE: Final = "since"
LATELY: Final = ""
"""Stands for a position that was lost: about a day ago."""
MOST_PAGES: Final = 50
"""How far a room is read back then, where events do not tell their age."""
HEIR: Final = "heir/"
MOST_HEIRS: Final = 20
"""How often a room may have been replaced. Rooms that replace each other in a circle lead somewhere, too."""
MOST_PASSED: Final = 50
"""Events with nothing to hear, such as our own words, that may be looked at again after a restart."""


class Matrix:
    """One account. Implements `Platform`, `Drafting`, `Carrying`, `Typing`, `Attended`, `Introducing` and `Leaving`."""

    name = NAME
    delivery = Delivery.KEYED
    text_limit = TEXT_UNITS
    file_limit = FILE_BYTES
    visible_after = 0.0

    def __init__(self, settings: MatrixSettings, context: Context) -> None:
        assert context.station is not None, "a platform has a station"
        self.account = context.instance
        self._settings = settings
        self._station = context.station
        self._context = context
        self._log = context.log
        self._client = client.Client(settings.homeserver, settings.token)
        self._me = ""
        self._passed = 0
        self._rooms: dict[str, reading.Room] = {}
        self._senders: collections.OrderedDict[str, str] = collections.OrderedDict()
        """Who said what was heard lately: whom a reply is for."""
        self._invites: dict[str, tuple[str, str]] = {}
        """Rooms we are asked into and have not entered: of what kind, and by whom."""
        self._former: dict[str, str] = {}
        """Rooms we are asked into that took the place of another: of which one."""
        self._heirs: dict[str, str] = {}
        """Rooms that we spoke in, and what took their place; nothing if they are as they were."""
        self._quiet: dict[str, float] = {}
        """Rooms that the homeserver wants left alone, and until when."""

    async def aclose(self) -> None:
        await self._client.aclose()

    async def introduce(self) -> Introduction:
        try:
            await self._connect()
        except InDoubt as error:
            raise Transient(error.message, remedy="is this the homeserver's address?") from error
        hello = f"open https://matrix.to/#/{self._me} and start a chat with it, without encryption"
        return Introduction(name=self._me, hello=hello)

    # -- hearing -----------------------------------------------------------------------------------------------------

    async def listen(self, accept: Accept) -> None:
        failures = 0
        since = await self._station.positions.read(SINCE)
        asked = self._context.clock.monotonic()
        known = since is None  # a first look shows invitations by itself
        while True:
            try:
                await self._connect()
                if not known:
                    await self._greet((await self._client.sync(None, seconds=0, only=client.INVITES)), accept)
                    known = True
                if self._invites and self._context.clock.monotonic() - asked > ASK_AGAIN_SECONDS:
                    asked = self._context.clock.monotonic()
                    await self._follow(dict(self._invites), accept)
                news, begin = await self._news(since)
                since = await self._hear(news, begin, accept)
                failures = 0
            except (Transient, InDoubt, Refused) as error:
                failures += 1
                await self._trouble(error, failures)

    async def _connect(self) -> None:
        if not self._me:
            me = await self._client.whoami()
            wanted = self._settings.user
            if wanted and wanted != me:
                raise Refused(f"the token is {me}'s, not {wanted}'s", remedy="give it the token of its own user")
            self._me = me

    async def _news(self, since: str | None) -> tuple[dict[str, Any], str | None]:
        """What is new, and since when: that is LATELY where our position is good for nothing any more."""
        seconds = 0 if since is None else self._settings.poll_seconds
        try:
            news = await self._client.sync(since, seconds=seconds)
        except client.Misplaced as error:
            # the homeserver was set back, or is another one
            self._log.warning("position.refused", error=error)
            news = reading.lately(await self._client.sync(None, seconds=0))
            self._rooms.clear()
            self._station.report(
                error.message, "the last day is read again; what is older and was not heard is missing"
            )
            return news, LATELY
        self._station.report()
        return news, since

    async def _trouble(self, error: EverholdError, failures: int) -> None:
        """Say what is wrong and wait, longer each time."""
        self._station.report(error.message, error.remedy or "it is tried again by itself")
        wait = wait_seconds(failures, jitter=self._station.chance.random()) or 300.0
        if isinstance(error, Transient) and error.retry_after is not None:
            wait = error.retry_after
        await self._station.sleep(wait)

    async def _hear(self, news: Mapping[str, Any], since: str | None, accept: Accept) -> str:
        """Hand over everything new; the position behind it, which is kept together with the last of it."""
        behind = str(news["next_batch"])
        await self._greet(news, accept)
        last: Incoming | None = None
        async for chat, raw, room in self._events(news, since):
            self._passed += 1
            heard = await self._read(chat, raw, room)
            if heard is not None:
                if last is not None:
                    await accept(last)
                last = heard
        if last is not None:
            offset = PlatformOffset(key=SINCE, value=behind)
            await accept(msgspec.structs.replace(last, offset=offset))
            self._passed = 0
        elif self._passed >= MOST_PASSED or since is None:
            await self._station.positions.move(SINCE, behind)
            self._passed = 0
        return behind

    async def _events(self, news: Mapping[str, Any], since: str | None) -> AsyncIterator[tuple[str, Any, reading.Room]]:
        """Every new event that may concern us, and who was there; room by room, each room's in their order."""
        rooms = news.get("rooms") or {}
        for chat, room in [*(rooms.get("join") or {}).items(), *(rooms.get("leave") or {}).items()]:
            timeline = room.get("timeline") or {}
            events: list[Any] = list(timeline.get("events") or ())
            entered = reading.arrived(events, self._me)
            if since is None:
                events = reading.unanswered(events, self._me)
            elif entered is not None:
                events = events[entered:]  # what was said before we came was not said to us
            elif timeline.get("limited") and timeline.get("prev_batch"):
                events = await self._missed(chat, str(timeline["prev_batch"]), since) + events
            # in what could not be had, too, somebody may have come: then nobody is alone there any more
            if entered is not None or timeline.get("limited") or any(map(reading.is_membership, events)):
                self._rooms.pop(chat, None)
                self._invites.pop(chat, None)
            if events:
                now = await self._room(chat, at=str(news["next_batch"]))
                for raw, then in zip(events, reading.rooms(now, events), strict=True):
                    yield chat, raw, then

    async def _missed(self, chat: str, start: str, end: str) -> list[Any]:
        """What a look left out because it was too much, in its order."""
        found: list[Any] = []
        for _ in range(MOST_PAGES) if end == LATELY else itertools.count():
            try:
                page = await self._client.page(chat, start=start, end=end)
            except Refused as error:
                self._log.warning("gap.closed", chat=chat, found=len(found), error=error)
                break
            chunk = page.get("chunk") or []
            recent = reading.young(chunk) if end == LATELY else chunk
            found += recent
            following = page.get("end")
            if not chunk or len(recent) < len(chunk) or not following or following == start:
                break
            start = str(following)
        found.reverse()
        # a gap that we came through: what was said before is none of ours
        entered = reading.arrived(found, self._me)
        found = found[entered:] if entered is not None else found
        self._log.info("gap.filled", chat=chat, events=len(found))
        return found

    async def _read(self, chat: str, raw: Any, room: reading.Room) -> Incoming | None:
        try:
            if reading.is_membership(raw) or raw.get("sender") == self._me:
                return None
            message = reading.read(
                raw,
                account=self.account,
                chat=chat,
                me=self._me,
                room=room,
                bots=self._settings.bots,
                commands=self._station.commands,
            )
            if message is None:
                return None
            heard = readable(message.incoming)
        except BROKEN as error:
            reason = f"{type(error).__name__}: {error}"
            self._log.warning("event.unreadable", chat=chat, error=reason)
            id = raw.get("event_id") if isinstance(raw, dict) else None
            id = str(id) if id else hashlib.sha256(repr(raw).encode("utf-8", "replace")).hexdigest()
            return unreadable(raw, platform=NAME, account=self.account, id=id, reason=reason)
        self._remember(heard)
        if not heard.addressed and await self._concerns_us(chat, message):
            heard = msgspec.structs.replace(heard, addressed=True)
        return heard if message.file is None else await self._with_file(heard, message.file)

    async def _room(self, chat: str, *, at: str = "") -> reading.Room:
        """Who is in a room now, or was when it was looked at."""
        room = self._rooms.get(chat)
        if room is None:
            try:
                room = reading.Room.of(await self._client.members(chat, at=at))
            except Refused:
                return reading.Room(members={})  # we were thrown out: what was said before is heard as in any group
            self._rooms[chat] = room
        return room

    def _remember(self, heard: Incoming) -> None:
        self._senders[heard.origin.message] = heard.sender
        while len(self._senders) > MOST_SENDERS:
            self._senders.popitem(last=False)

    async def _concerns_us(self, chat: str, message: reading.Message) -> bool:
        """Whether it answers something of ours, or stands in a thread below it."""
        for id in {message.replies, message.thread} - {""}:
            sender = self._senders.get(id)
            if sender is None:
                try:
                    sender = str((await self._client.event(chat, id)).get("sender"))
                except Refused:
                    continue
                self._senders[id] = sender
            if sender == self._me:
                return True
        return False

    # -- files that come in ------------------------------------------------------------------------------------------

    async def _with_file(self, heard: Incoming, file: reading.File) -> Incoming:
        """The message with its file, or with the word that there was one."""
        try:
            data = await self._download(file)
        except Refused as error:
            self._log.warning("file.missing", name=file.name, size=file.size, error=error)
            note = f"[{file.name} was not taken in: {error.message}]"
            text = f"{heard.text}\n{note}" if heard.text else note
            missing = absent(name=file.name, media=file.media, size=file.size)
            return msgspec.structs.replace(heard, text=text, attachments=(missing,))
        kept = attachment(data, name=file.name, media=file.media)
        return msgspec.structs.replace(heard, attachments=(kept,), files=(data,))

    async def _download(self, file: reading.File) -> bytes:
        most = self._station.most_bytes
        if not file.id:
            raise Refused("it does not lie at a homeserver")
        if file.size > most:
            raise Refused(f"it is larger than {most:,} bytes")
        for attempt in range(1, FETCH_TRIES + 1):
            try:
                return await self._client.download(file.server, file.id, most=most)
            except (Transient, InDoubt) as error:
                if attempt == FETCH_TRIES:
                    raise Refused(error.message) from error
                wait = error.retry_after if isinstance(error, Transient) else None
                await self._station.sleep(wait or float(attempt))
        raise AssertionError("the last try returns or raises")

    # -- invitations -------------------------------------------------------------------------------------------------

    async def _greet(self, news: Mapping[str, Any], accept: Accept) -> None:
        fresh: dict[str, tuple[str, str]] = {}
        for chat, room in ((news.get("rooms") or {}).get("invite") or {}).items():
            state = (room.get("invite_state") or {}).get("events") or ()
            invitation = reading.invitation(state, self._me)
            if invitation is not None:
                await self._replaces(chat, reading.predecessor(state))
                fresh[chat] = self._invites[chat] = invitation
        await self._follow(fresh, accept)

    async def _replaces(self, chat: str, former: str) -> None:
        """A room that was upgraded stays the conversation it was. The old one has to say so: anybody can make a room
        that claims to replace another."""
        if not former:
            return
        try:
            told = await self._client.tombstone(former)
        except Refused:
            return
        if told.get("replacement_room") == chat:
            self._former[chat] = former
            await self._station.moved(former, chat)

    async def _follow(self, invites: Mapping[str, tuple[str, str]], accept: Accept) -> None:
        """Enter the rooms of people who may speak there. The door decides, as it does about what they say."""
        for chat, (kind, by) in invites.items():
            verdict = await accept(
                Incoming(
                    origin=Place(platform=NAME, account=self.account, chat=chat, message=f"invitation by {by}"),
                    text=f"[{by} invited you here]",
                    sender=by,
                    name=reading.local(by),
                    kind=kind,
                    event="invite",
                    addressed=False,
                    changes_hands=True,
                )
            )
            if verdict.outcome in ("accepted", "duplicate", "ignored"):
                await self._enter(chat)

    async def _enter(self, chat: str) -> None:
        try:
            await self._client.join(chat)
        except (Transient, InDoubt) as error:
            # a room whose homeserver is away must not keep the others waiting: it is tried again by and by
            self._log.warning("invitation.waits", chat=chat, error=error)
            return
        except Refused as error:
            self._log.warning("invitation.void", chat=chat, error=error)
        else:
            self._log.info("room.joined", chat=chat)
            if former := self._former.pop(chat, ""):
                await self._station.positions.move(HEIR + former, chat)
                self._heirs[former] = chat
        self._invites.pop(chat, None)

    # -- saying ------------------------------------------------------------------------------------------------------

    async def send(self, out: Outgoing) -> str:
        if out.file is not None:
            return await self._attach(out, out.file)
        return await self._put(out, await self._content(out), part="")

    async def probe(self, out: Outgoing) -> str | None:
        raise Refused("Matrix recognises what is sent twice: nobody has to ask")

    async def draft(self, out: Outgoing) -> str:
        return await self._put(out, await self._content(out, draft=True), part="")

    async def revise(self, remote: str, out: Outgoing) -> None:
        revised = msgspec.structs.replace(out, edits=remote)
        await self._put(revised, await self._content(revised, draft=True), part=f"\n{out.text}")

    async def alone_with(self, to: Place, sender: str) -> bool:
        await self._connect()
        room = await self._room(await self._today(to.chat))
        return room.members.keys() <= {self._me, sender}

    async def typing(self, to: Place) -> None:
        await self._connect()
        await self._client.typing(await self._today(to.chat), self._me, seconds=TYPING_SECONDS)

    async def _put(self, out: Outgoing, content: Mapping[str, Any], *, part: str) -> str:
        """Put something into a room, once however often it is asked for."""
        chat = await self._today(out.to.chat)
        left = self._quiet.get(chat, 0.0) - self._context.clock.monotonic()
        if left > 0:
            raise Transient(f"the homeserver wants this room left alone for {left:.0f} s", retry_after=left)
        self._quiet.pop(chat, None)
        # an edit is another event than what it replaces, also when one reply begot both
        txn = hashlib.sha256(f"{out.key}\n{out.edits}{part}".encode("utf-8", "replace")).hexdigest()[:40]
        try:
            return await self._client.put(chat, content, txn=txn)
        except Refused:
            if chat not in self._invites:
                raise
            await self._enter(chat)  # who speaks has to be there: a stranger is told how to be let in
            return await self._client.put(chat, content, txn=txn)
        except Transient as error:
            if error.retry_after is not None:
                self._quiet[chat] = self._context.clock.monotonic() + error.retry_after
            raise

    async def _today(self, chat: str) -> str:
        """Where to speak now: in the room that took another's place, and not in the one that everybody has left."""
        for _ in range(MOST_HEIRS):
            if chat not in self._heirs:
                self._heirs[chat] = await self._station.positions.read(HEIR + chat) or ""
            if not self._heirs[chat]:
                break
            chat = self._heirs[chat]
        return chat

    async def _content(self, out: Outgoing, *, draft: bool = False) -> dict[str, Any]:
        content: dict[str, Any] = {"msgtype": "m.notice" if out.notice else "m.text", "body": out.text}
        content["m.mentions"] = {"user_ids": self._whom(out)} if not draft else {}
        relation = await self._relation(out.to)
        ours = {"hops": out.hops, **({"draft": True} if draft else {})}
        if not out.edits:
            return {**content, **relation, OURS: ours}
        return {
            **content,
            "body": f"* {out.text}",
            "m.new_content": {**content, **relation},
            "m.relates_to": {"rel_type": "m.replace", "event_id": out.edits},
            OURS: ours,
        }

    def _whom(self, out: Outgoing) -> list[str]:
        """Whom it calls: who is named in it by id, and who is answered."""
        named = reading.USER.findall(out.text)
        answered = self._senders.get(out.to.message)
        room = self._rooms.get(out.to.chat)
        if answered and not out.notice and not (room is not None and room.direct):
            named.append(answered)
        return [user for user in dict.fromkeys(named) if user != self._me][:50]

    async def _relation(self, to: Place) -> dict[str, Any]:
        """In a room an answer hangs on what it answers; alone with somebody that says nothing."""
        if not to.message.startswith("$"):
            return {}
        replies = {"m.in_reply_to": {"event_id": to.message}}
        if to.thread:
            return {"m.relates_to": {"rel_type": "m.thread", "event_id": to.thread, "is_falling_back": True, **replies}}
        try:
            direct = (await self._room(to.chat)).direct
        except (Transient, InDoubt):
            direct = False
        return {} if direct else {"m.relates_to": replies}

    async def _attach(self, out: Outgoing, file: Attachment) -> str:
        data = await contents(self._context, file, most=FILE_BYTES)
        name = file.name or "file"
        kind = file.media.partition("/")[0]
        event = {
            "msgtype": f"m.{kind}" if kind in ("image", "audio", "video") else "m.file",
            "body": name,
            "filename": name,
            "url": await self._client.upload(data, name=name, media=file.media),
            "info": {"size": len(data), "mimetype": file.media or "application/octet-stream"},
            "m.mentions": {},
            **await self._relation(out.to),
            OURS: {"hops": out.hops},
        }
        return await self._put(out, event, part="\nfile")
