"""One app. Listens through a socket, or is called: commit, then confirm; sends, edits, brings files both ways.

Slack has no key for what is sent, but it can be asked: every message carries ours in its metadata, and after a lost
answer the history tells whether it is there. An edit may be repeated, so a reply that takes a draft's place is safe.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec
from slack_sdk.web.async_client import AsyncWebClient

from everhold.core.access import NOTICE
from everhold.core.entries import Attachment, Place
from everhold.core.retry import wait_seconds
from everhold.errors import EverholdError, InDoubt, Refused, TooLong, Transient
from everhold.platforms.files import contents, fetched, taken_in
from everhold.platforms.slack import faults, reading, wording
from everhold.platforms.slack.backlog import Backlog, key
from everhold.platforms.slack.events import Events
from everhold.platforms.slack.line import Envelope, Line
from everhold.platforms.slack.settings import NAME, SlackSettings
from everhold.platforms.unreadable import BROKEN, readable, unreadable
from everhold.ports.platform import Accept, Delivery, Incoming, Introduction, Outgoing, PlatformOffset
from everhold.ports.plugin import Context

API: Final = "https://slack.com/api/"
TEXT_UNITS: Final = 3_900
"""Slack takes far more, but edits no more than 4,000, and long messages are folded away."""
MOST_CHARACTERS: Final = 40_000
"""What is longer, Slack cuts off without a word."""
SLOW_SECONDS: Final = 1.5
"""After this what comes behind a message no longer waits for its files: an event is to be confirmed within three."""
FILE_BYTES: Final = 1_000_000_000
CALL_SECONDS: Final = 20.0
NEEDED: Final = frozenset({"chat:write", "im:history", "im:read"})
"""Without these even a direct chat does not work."""
LONG_SECONDS: Final = 60.0
MOST_PROBED: Final = 1_000
REVISE_SECONDS: Final = 3.0
MOST_REVISED: Final = 1_000


class Slack:
    """One account. Implements `Platform`, `Drafting`, `Carrying`, `Introducing` and `Leaving`."""

    name = NAME
    delivery = Delivery.PROBE
    text_limit = TEXT_UNITS
    file_limit = FILE_BYTES
    visible_after = 2.0

    def __init__(self, settings: SlackSettings, context: Context) -> None:
        assert context.station is not None, "a platform has a station"
        self.account = context.instance
        self._settings = settings
        self._station = context.station
        self._context = context
        self._log = context.log
        self._base = (settings.base_url or API).rstrip("/") + "/"
        self._session: aiohttp.ClientSession | None = None
        self._client: AsyncWebClient | None = None
        self._me: reading.Me | None = None
        self._scopes: frozenset[str] = frozenset()
        self._names: dict[str, str] = {}
        self._backlog = Backlog(self._call, self._station, self._log)
        self._quiet: dict[str, float] = {}
        """Channels that Slack wants left alone, and until when."""
        self._fetching: dict[str, list[str]] = {}
        """Events whose files are still on their way: their envelopes are confirmed when they are kept."""
        self._slow: dict[str, int] = {}
        """Channels with such events, and how many: no position moves past those."""
        self._lived = 0.0
        self.port = 0
        """Where Slack's calls are listened for, once they are."""
        self._revised: dict[str, float] = {}
        """Drafts, and when each was last brought up to date."""

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def introduce(self) -> Introduction:
        try:
            me = await self._who()
            await self._open()
        except faults.THEIRS as error:
            problem = faults.ours(error, what="the app")
            raise (Refused(problem.message, remedy=problem.remedy) if faults.is_for_good(error) else problem) from error
        if missing := NEEDED - self._scopes:
            names = ", ".join(sorted(missing))
            raise Refused(f"the app lacks {names}", remedy="add them under OAuth & Permissions, and install it again")
        return Introduction(name=f"@{me.name}", hello=f"find @{me.name} under Apps in Slack and say hello")

    # -- hearing -----------------------------------------------------------------------------------------------------

    async def listen(self, accept: Accept) -> None:
        failures = crowded = 0
        while True:
            began = self._context.clock.monotonic()
            try:
                await self._who()
                assert self._session is not None
                async with await self._open() as line:
                    self.port = line.port
                    hello = await line.hello()
                    if hello.connections > 1 and crowded == 0:
                        # perhaps only our own last connection, which Slack has not noticed to be gone
                        crowded = 1
                        line.look_again(self._station.sleep)
                    elif hello.connections > 1:
                        self._station.report(
                            "another program listens to this app: Slack gives each of them a part of the messages",
                            "stop it, or give it an app of its own",
                        )
                    else:
                        crowded = 0
                        self._station.report()
                    await self._attend(line, accept)
                if line.asked_to_leave or self._context.clock.monotonic() - began > LONG_SECONDS:
                    failures = 0
                    continue
                problem: EverholdError = Transient("Slack ended the connection")
            except faults.THEIRS as error:
                problem = faults.ours(error, what="the connection")
                if faults.is_for_good(error):
                    raise Refused(problem.message, remedy=problem.remedy or "put the app's tokens into .env") from error
            failures += 1
            self._station.report(problem.message, problem.remedy or "it is tried again by itself")
            asked = problem.retry_after if isinstance(problem, Transient) else None
            wait = asked if asked is not None else wait_seconds(failures, jitter=self._station.chance.random())
            await self._station.sleep(wait or 300.0)

    async def _who(self) -> reading.Me:
        """Who we are there; connects if need be. Raises what the library raises."""
        if self._client is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CALL_SECONDS))
            self._client = AsyncWebClient(
                self._settings.bot_token.reveal(),
                base_url=self._base,
                session=self._session,
                retry_handlers=[],  # whether something may be sent twice is for us to say
            )
            if self._settings.base_url:
                self._client.proxy = None  # somebody says exactly where it is
        if self._me is None:
            told = await self._client.auth_test()
            self._scopes = frozenset(str(told.headers.get("x-oauth-scopes") or "").replace(" ", "").split(","))
            self._me = reading.Me(user=told["user_id"], bot=told.get("bot_id") or "", name=told["user"])
        return self._me

    async def _open(self) -> Line:
        assert self._client is not None
        assert self._session is not None
        settings = self._settings
        if settings.events is not None:
            assert settings.signing_secret is not None, "settings do not pass without"
            return Events(settings.events, settings.signing_secret, now=self._context.clock.now)
        assert settings.app_token is not None, "settings do not pass without"
        told = await self._client.apps_connections_open(app_token=settings.app_token.reveal())
        return Line(self._session, str(told["url"]), proxy=self._client.proxy)

    async def _attend(self, line: Line, accept: Accept) -> None:
        """Hear what comes through one connection until it ends, and meanwhile what was missed before it."""

        async def missed(event: dict[str, Any]) -> None:
            heard = await self._read(event, id=str(event["ts"]))
            offset = PlatformOffset(key=f"history/{event['channel']}", value=str(event["ts"]))
            await self._keep(heard, accept, at=offset)

        self._fetching.clear()
        self._slow.clear()
        self._backlog.begin()
        caught_up = line.beside(self._backlog.run(missed, now=self._context.clock.now()))
        # what was missed comes first, unless it takes so long that what is new would not be confirmed in time
        await asyncio.wait([caught_up, line.reading], timeout=SLOW_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        async for envelope in line:
            await self._take(envelope, line, accept)
            if caught_up.done() and self._context.clock.monotonic() - self._lived > LONG_SECONDS:
                self._lived = self._context.clock.monotonic()
                await self._backlog.lived(self._context.clock.now())

    async def _take(self, envelope: Envelope, line: Line, accept: Accept) -> None:
        """Keep what an envelope tells, then confirm it. Slow files are waited for on the side."""
        if envelope.late is not None:
            heard = envelope.late.result()
            self._slow[envelope.channel] -= 1
            await self._keep(heard, accept)
            for id in self._fetching.pop(envelope.event):
                await line.confirm(id)
            return
        if envelope.event in self._fetching:
            self._fetching[envelope.event].append(envelope.id)
            return
        reader = line.beside(self._unpack(envelope))
        await asyncio.wait([reader], timeout=SLOW_SECONDS)
        if not reader.done():
            self._fetching[envelope.event] = [envelope.id]
            self._slow[envelope.channel] = self._slow.get(envelope.channel, 0) + 1
            line.put_back(envelope, reader)
            return
        await self._keep(reader.result(), accept)
        await line.confirm(envelope.id)

    async def _unpack(self, envelope: Envelope) -> Incoming | None:
        match envelope.type:
            case "events_api":
                event = envelope.payload.get("event")
                return await self._read(event, id=envelope.event)
            case "slash_commands":
                try:
                    return readable(reading.command(envelope.payload, account=self.account))
                except BROKEN as error:
                    return self._unreadable(envelope.payload, id=envelope.id, error=error)
            case _:
                return None  # buttons, and whatever Slack will think of

    async def _keep(self, heard: Incoming | None, accept: Accept, *, at: PlatformOffset | None = None) -> None:
        """Hand a message over, with how far its conversation is read by it."""
        if heard is None:
            return
        origin = heard.origin
        if origin.thread:
            await self._backlog.note_thread(origin.chat, origin.thread)
        if at is None and heard.event == "message" and not self._slow.get(origin.chat):
            name = self._backlog.position(origin.chat, origin.message)
            at = PlatformOffset(key=name, value=origin.message) if name else None
        await accept(msgspec.structs.replace(heard, offset=at))

    async def _read(self, event: Any, *, id: str) -> Incoming | None:
        me = self._me
        assert me is not None
        try:
            heard = reading.incoming(event, account=self.account, me=me)
            files = reading.files_of(event) if heard is not None else ()
            heard = readable(heard) if heard is not None else None
        except BROKEN as error:
            ts = event.get("ts") if isinstance(event, dict) else None
            return self._unreadable(event, id=ts if isinstance(ts, str) else id, error=error)
        if heard is None:
            return None
        if not heard.name and not heard.bot:
            heard = msgspec.structs.replace(heard, name=await self._name(heard.sender))
        for file in files:
            download = functools.partial(self._download, file)
            heard = await taken_in(heard, download, name=file.name, media=file.media, size=file.size, log=self._log)
        return heard

    def _unreadable(self, raw: Any, *, id: str, error: Exception) -> Incoming:
        reason = f"{type(error).__name__}: {error}"
        self._log.warning("update.unreadable", error=reason)
        return unreadable(raw, platform=NAME, account=self.account, id=id, reason=reason)

    async def _name(self, user: str) -> str:
        """What somebody is called, as a label. Who they are is their id."""
        if user not in self._names:
            try:
                told = (await self._call("users.info", user=user)).get("user") or {}
            except Refused as error:
                self._log.info("name.unknown", error=error)
                told = {}  # and will not be known later
            except EverholdError as error:
                self._log.debug("name.unknown", error=error)
                return ""
            profile = told.get("profile") or {}
            self._names[user] = str(profile.get("display_name") or told.get("real_name") or told.get("name") or "")
        return self._names[user]

    async def _download(self, file: reading.File) -> bytes:
        if file.external:
            raise Refused("it lies somewhere else")
        if not file.url:
            told = (await self._call("files.info", file=file.id)).get("file") or {}
            (file,) = reading.files_of({"files": [told]}) or (file,)
        if not self._is_theirs(file.url):
            raise Refused("Slack says it lies somewhere else")  # the token goes to nobody else
        bearer = {"Authorization": f"Bearer {self._settings.bot_token.reveal()}"}
        found = await fetched(self._station, file.url, size=file.size, headers=bearer)
        if found.media == "text/html" and file.media != "text/html":
            raise Refused("Slack shows a page to sign in instead", remedy="the app needs the scope files:read")
        return found.data

    def _is_theirs(self, url: str) -> bool:
        parts = urlsplit(url)
        if self._settings.base_url:
            return parts.netloc == urlsplit(self._settings.base_url).netloc
        return parts.scheme == "https" and (parts.hostname or "").endswith(".slack.com")

    # -- saying ------------------------------------------------------------------------------------------------------

    async def send(self, out: Outgoing) -> str:
        if out.file is not None:
            return await self._attach(out, out.file)
        return await (self._replace(out) if out.edits else self._say(out))

    async def probe(self, out: Outgoing) -> str | None:
        me = await self._who()
        async for message in self._recent(out.to):
            if not reading.is_ours(message, me):
                continue  # other apps see our keys, and might say that something is there which is not
            metadata = message.get("metadata") or {}
            if metadata.get("event_type") == reading.METADATA:
                if metadata.get("event_payload", {}).get("key") == out.key:
                    return str(message["ts"])
            elif out.file is not None:
                for it in message.get("files", ()):  # Slack carries no key with a file: its name and size have to do
                    if (it.get("name"), it.get("size")) == (out.file.name or "file", out.file.size):
                        return str(it.get("id"))
        return None

    async def draft(self, out: Outgoing) -> str:
        return await self._say(out)

    async def revise(self, remote: str, out: Outgoing) -> None:
        # Slack takes fewer edits a minute than a reply has seconds, and the last one must not have to wait
        now = self._context.clock.monotonic()
        if now - self._revised.get(remote, 0.0) < REVISE_SECONDS:
            return
        if len(self._revised) > MOST_REVISED:
            self._revised.clear()
        self._revised[remote] = now
        await self._edit(remote, out)

    async def _say(self, out: Outgoing) -> str:
        told = await self._tell(out, "chat.postMessage", "a message", channel=out.to.chat, thread_ts=out.to.thread)
        return str(told["ts"])

    async def _edit(self, remote: str, out: Outgoing) -> None:
        await self._tell(out, "chat.update", "an edit", channel=out.to.chat, ts=remote)

    async def _replace(self, out: Outgoing) -> str:
        """Put the final text in a draft's place. A repeat changes nothing, so a lost answer is no doubt."""
        try:
            await self._edit(out.edits, out)
        except InDoubt as error:
            raise Transient(error.message) from error
        except Refused as error:
            if isinstance(error, TooLong):  # it may be said, just not in the place of another
                remote = await self._say(out)
                await self._drop(out)
                return remote
            if faults.name_of(error.__cause__) not in faults.GONE:
                raise
            return await self._say(out)
        return out.edits

    async def _drop(self, out: Outgoing) -> None:
        """Take a draft away. If that fails it stays: to say so would be to say the whole again."""
        try:
            await self._call("chat.delete", quiet=out.to.chat, channel=out.to.chat, ts=out.edits)
        except EverholdError as error:
            self._log.info("draft.left", error=error)

    async def _tell(self, out: Outgoing, method: str, what: str, **given: str) -> dict[str, Any]:
        text = wording.outward(out.text)
        if out.notice and not out.to.chat.startswith("D"):
            text = NOTICE + text  # so that no other bot answers it
        if len(text) > MOST_CHARACTERS:
            raise TooLong(f"Slack refuses {what}: it has {len(text):,} characters")
        payload = {"key": out.key, "hops": out.hops}
        return await self._call(
            method,
            what=what,
            quiet=out.to.chat,
            **{name: value for name, value in given.items() if value},
            text=text,
            unfurl_links="false",
            metadata=msgspec.json.encode({"event_type": reading.METADATA, "event_payload": payload}).decode(),
        )

    async def _attach(self, out: Outgoing, file: Attachment) -> str:
        data = await contents(self._context, file, most=FILE_BYTES)
        name, to = file.name or "file", out.to
        place = await self._call(
            "files.getUploadURLExternal", what="a file", quiet=to.chat, filename=name, length=str(len(data))
        )
        if not self._is_theirs(str(place["upload_url"])):
            raise Refused("Slack wants the file brought somewhere else")
        assert self._session is not None
        try:
            async with self._session.post(str(place["upload_url"]), data=data) as answer:
                if answer.status != 200:
                    raise Transient(f"Slack does not take the file: {answer.status}")
        except faults.THEIRS as error:
            # nobody sees it before it is completed
            raise Transient(f"Slack does not take the file: {type(error).__name__}") from error
        given = {"channel_id": to.chat, "thread_ts": to.thread}
        await self._call(
            "files.completeUploadExternal",
            what="a file",
            quiet=to.chat,
            files=msgspec.json.encode([{"id": place["file_id"], "title": name}]).decode(),
            **{name: value for name, value in given.items() if value},
        )
        return str(place["file_id"])

    async def _recent(self, to: Place) -> Any:
        """What was said at a place, back to what is answered there, or else the last of it."""
        oldest = to.message if reading.is_ts(to.message) else ""
        given = {"channel": to.chat, "oldest": oldest, "ts": to.thread, "include_all_metadata": "true"}
        method = "conversations.replies" if to.thread else "conversations.history"
        cursor, seen = "", 0
        while True:
            asked = {name: value for name, value in {**given, "cursor": cursor}.items() if value}
            page = await self._call(method, what="a look", quiet=to.chat, limit="200", **asked)
            for message in sorted(page.get("messages") or (), key=lambda it: key(it.get("ts"))):
                seen += 1
                yield message
            cursor = (page.get("response_metadata") or {}).get("next_cursor") or ""
            if not cursor or (seen >= MOST_PROBED and not oldest):
                return

    # -- calling -----------------------------------------------------------------------------------------------------

    async def _call(self, method: str, *, what: str = "a call", quiet: str = "", **given: str) -> dict[str, Any]:
        """Call a method of the Web API. Waits that Slack asked for are kept, and its errors become ours."""
        left = self._quiet.get(quiet, 0.0) - self._context.clock.monotonic()
        if left > 0:
            raise Transient(f"Slack wants this channel left alone for {left:.0f} s", retry_after=left)
        self._quiet.pop(quiet, None)
        try:
            await self._who()
        except faults.THEIRS as error:
            problem = faults.ours(error, what="the app")
            # nothing of what was to be sent has left
            raise Transient(problem.message, remedy=problem.remedy) from error
        assert self._client is not None
        try:
            answer = await self._client.api_call(method, data=given)
        except faults.THEIRS as error:
            problem = faults.ours(error, what=what)
            for token in filter(None, (self._settings.bot_token, self._settings.app_token)):
                problem.message = token.hide(problem.message)  # whoever complains may repeat what they were given
            if quiet and isinstance(problem, Transient) and problem.retry_after is not None:
                self._quiet[quiet] = self._context.clock.monotonic() + problem.retry_after
            raise problem from error
        data = answer.data
        if not isinstance(data, dict):
            raise InDoubt(f"{what}: Slack answered something else")
        return data
