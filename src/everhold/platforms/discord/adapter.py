"""One bot. Listens at the gateway in a loop of its own; sends, edits, types, and brings files both ways.

Discord confirms nothing and repeats little, so what was heard last is kept per channel, with the messages. What is
sent carries a nonce that Discord recognises for some minutes: sent again within those, it is shown once. A reply to
something older is looked for in the channel before it is sent.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn, TypeVar

import discord
import msgspec
from discord.http import MultipartParameters, Route, handle_message_parameters

from everhold.core.access import NOTICE
from everhold.core.entries import Place
from everhold.core.retry import wait_seconds
from everhold.errors import EverholdError, InDoubt, Refused, Transient
from everhold.platforms.discord import faults, reading
from everhold.platforms.discord.backlog import Backlog
from everhold.platforms.discord.client import Client, Halted, Rest, Resume
from everhold.platforms.discord.reading import Channel
from everhold.platforms.discord.settings import NAME, DiscordSettings
from everhold.platforms.files import contents, fetched, taken_in
from everhold.platforms.unreadable import BROKEN, readable, unreadable
from everhold.ports.platform import Accept, Delivery, Incoming, Introduction, Outgoing, PlatformOffset
from everhold.ports.plugin import Context

T = TypeVar("T")
TEXT_CHARACTERS: Final = 2_000
FILE_BYTES: Final = 10 * 1024 * 1024
"""What a server takes that nobody pays for."""
MOST_COMMANDS: Final = 100
LONG_SECONDS: Final = 60.0
NONCE_SECONDS: Final = 120.0
"""For at least so long Discord knows a nonce again: it speaks of a few minutes."""
IDENTIFY_SECONDS: Final = 5.0
PERMISSIONS: Final = discord.Permissions(
    view_channel=True,
    send_messages=True,
    send_messages_in_threads=True,
    read_message_history=True,
    attach_files=True,
    embed_links=True,
)
EPHEMERAL: Final = 64
ANSWER: Final = 4
EVERYWHERE: Final = "*"
TEXT_OPTION: Final = {"type": 3, "name": "text", "description": "what goes with it", "required": False}


class Discord:
    """One account. Implements `Platform`, `Drafting`, `Carrying`, `Typing`, `Introducing` and `Leaving`."""

    name = NAME
    delivery = Delivery.KEYED
    text_limit = TEXT_CHARACTERS
    file_limit = FILE_BYTES
    visible_after = 0.0

    def __init__(self, settings: DiscordSettings, context: Context) -> None:
        assert context.station is not None, "a platform has a station"
        self.account = context.instance
        self._settings = settings
        self._station = context.station
        self._context = context
        self._log = context.log
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._news: asyncio.Queue[tuple[str, Any] | BaseException] = asyncio.Queue()
        """What the gateway told, and a word at each place where something may be missing in between."""
        self._resume: Resume | None = None
        self._roles: frozenset[str] = frozenset()
        self._backlog = Backlog(self._ask, self._station, self._log)
        self._quiet: dict[str, float] = {}
        """Channels that Discord wants left alone, and until when."""
        self._lived = 0.0

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def introduce(self) -> Introduction:
        try:
            client = await self._connect()
        except faults.THEIRS as error:
            raise faults.for_good(error) or faults.ours(error, what="the bot") from error
        flags = client.application_flags
        if not (flags.gateway_message_content or flags.gateway_message_content_limited):
            raise faults.refused(faults.NO_INTENT)
        assert client.application_id is not None
        link = discord.utils.oauth_url(
            client.application_id, permissions=PERMISSIONS, scopes=("bot", "applications.commands")
        )
        return Introduction(name=client.me.name, hello=f"open {link} to bring it to your server, and mention it there")

    # -- hearing -----------------------------------------------------------------------------------------------------

    async def listen(self, accept: Accept) -> None:
        self._news = asyncio.Queue()
        self._resume = None
        receiver = asyncio.get_running_loop().create_task(self._receive())
        receiver.add_done_callback(self._ended)
        try:
            while True:
                told = await self._news.get()
                if isinstance(told, BaseException):
                    raise told
                await self._hear(*told, accept)
                now = self._context.clock.monotonic()
                if now - self._lived > LONG_SECONDS and self._news.empty():
                    self._lived = now
                    await self._backlog.lived(self._context.clock.now())
        finally:
            receiver.cancel()
            await asyncio.gather(receiver, return_exceptions=True)

    def _ended(self, receiver: asyncio.Task[None]) -> None:
        if not receiver.cancelled() and (error := receiver.exception()) is not None:
            self._news.put_nowait(error)

    async def _receive(self) -> None:
        """Read the gateway, again and again: where it was left if that is possible, or else from now on."""
        failures = 0
        announced = False
        while True:
            began = self._context.clock.monotonic()
            try:
                client = await self._connect()
                if not announced:
                    announced = await self._announce(client)
                await self._follow(client)
            except faults.THEIRS as error:
                if (mend := faults.for_good(error)) is not None:
                    raise mend from error
                problem = faults.ours(error, what="the connection")
            failures = 1 if self._context.clock.monotonic() - began > LONG_SECONDS else failures + 1
            if failures > 1:  # Discord moves its connections about; one that is had again is no trouble
                self._station.report(f"Discord does not answer: {problem.message}", "it is tried again by itself")
            asked = problem.retry_after if isinstance(problem, Transient) else None
            wait = asked if asked is not None else wait_seconds(failures, jitter=self._station.chance.random())
            # whoever cannot go on where they were has to introduce themselves, which is allowed every five seconds
            await self._station.sleep(max(wait or 300.0, 0.0 if self._resume else IDENTIFY_SECONDS))

    async def _follow(self, client: Client) -> NoReturn:
        """Read one connection until it ends."""
        socket = await client.open(self._resume)
        try:
            while True:
                await socket.read()
        finally:
            self._resume = socket.resume()
            await socket.close()

    async def _connect(self) -> Client:
        """The client, signed in. Raises what the library raises."""
        async with self._connecting:
            if self._client is None:
                client = Client(base=(self._settings.base_url or "").rstrip("/"), tell=self._told)
                try:
                    await client.login(self._settings.token.reveal())
                except BaseException:
                    await client.close()
                    raise
                self._client = client
            return self._client

    async def _announce(self, client: Client) -> bool:
        """Show the commands where people look for them."""
        commands = [
            {"name": name, "description": line[:100], "type": 1, "options": [TEXT_OPTION]}
            for name, line in self._station.commands.items()
        ]
        assert client.application_id is not None
        try:
            await client.rest.bulk_upsert_global_commands(client.application_id, commands[:MOST_COMMANDS])
        except faults.THEIRS as error:
            self._log.warning("commands.unannounced", error=faults.ours(error, what="a list of commands"))
            return isinstance(error, discord.HTTPException)  # what else went wrong may go right the next time
        return True

    def _told(self, event: str, data: Any) -> None:
        """The gateway tells something. Nothing is done about it here: the gateway waits for nobody."""
        match event:
            case "READY" | "RESUMED":
                self._station.report()
                if event == "READY":
                    self._news.put_nowait(("gap", None))
            case "GUILD_CREATE":
                me = str(self._client.me.id) if self._client is not None else ""
                roles = data.get("roles") or ()
                self._roles |= {str(it["id"]) for it in roles if str((it.get("tags") or {}).get("bot_id")) == me}
            case _:
                self._news.put_nowait((event, data))

    async def _hear(self, event: str, data: Any, accept: Accept) -> None:
        match event:
            case "gap":
                hear = functools.partial(self._message, accept=accept)
                await self._backlog.run(hear, now=self._context.clock.now())
            case "INTERACTION_CREATE":
                await self._command(data, accept)
            case _:
                where = await self._where(data)
                await self._message(where, data, accept=accept, edited=event == "MESSAGE_UPDATE")

    async def _where(self, data: Any) -> Channel:
        id = data.get("channel_id") if isinstance(data, dict) else None
        if not isinstance(id, str) or not reading.is_id(id):
            return Channel(id="")  # nobody can read the rest of it either
        if not data.get("guild_id"):
            await self._backlog.note_direct(id)
        return await self._backlog.channel(id)

    async def _message(self, where: Channel, data: Any, *, accept: Accept, edited: bool = False) -> None:
        heard = await self._read(where, data, edited=edited)
        if heard is None:
            return
        id = data.get("id") if isinstance(data, dict) else None
        if not edited and isinstance(id, str) and reading.is_id(id) and where.id:
            name = self._backlog.moves(where, id)
            offset = PlatformOffset(key=name, value=id) if name else None
            heard = msgspec.structs.replace(heard, offset=offset)
        await accept(heard)

    async def _read(self, where: Channel, data: Any, *, edited: bool) -> Incoming | None:
        assert self._client is not None
        me = self._client.me.id
        try:
            heard = reading.incoming(data, where=where, account=self.account, me=me, roles=self._roles, edited=edited)
            files = reading.files_of(data) if heard is not None and not edited else ()
            heard = readable(heard) if heard is not None else None
        except BROKEN as error:
            return self._unreadable(data, error)
        for file in files:
            assert heard is not None
            download = functools.partial(self._download, file)
            heard = await taken_in(heard, download, name=file.name, media=file.media, size=file.size, log=self._log)
        return heard

    def _unreadable(self, raw: Any, error: Exception) -> Incoming:
        reason = f"{type(error).__name__}: {error}"
        self._log.warning("update.unreadable", error=reason)
        id = raw.get("id") if isinstance(raw, dict) else None
        if not isinstance(id, str):
            id = hashlib.sha256(repr(raw).encode("utf-8", "replace")).hexdigest()[:16]
        return unreadable(raw, platform=NAME, account=self.account, id=id, reason=reason)

    async def _download(self, file: reading.File) -> bytes:
        return (await fetched(self._station, file.url, size=file.size)).data

    async def _command(self, data: Any, accept: Accept) -> None:
        """Keep a slash command, then confirm it; what there is to say is said as a message."""
        try:
            where = await self._where(data)
            heard = reading.command(data, where=where, account=self.account)
            id, token = str(data["id"]), str(data["token"])
            heard = readable(heard) if heard is not None else None
            token.encode()
        except BROKEN as error:
            await accept(self._unreadable(data, error))
            return
        if heard is None:
            return
        await accept(heard)
        route = Route(
            "POST",
            "/interactions/{interaction_id}/{interaction_token}/callback",
            interaction_id=id,
            interaction_token=token,
        )
        answer = {"type": ANSWER, "data": {"content": f"`{heard.text[:100]}`", "flags": EPHEMERAL}}
        try:
            await self._ask(lambda rest: rest.request(route, json=answer))
        except EverholdError as error:
            self._log.info("command.unconfirmed", error=error)

    # -- saying ------------------------------------------------------------------------------------------------------

    async def send(self, out: Outgoing) -> str:
        if out.edits:
            return await self._replace(out)
        return await self._found(out) or await self._say(out)

    async def probe(self, out: Outgoing) -> str | None:
        return await self._found(out, look=True) or None

    async def draft(self, out: Outgoing) -> str:
        return await self._say(out)

    async def revise(self, remote: str, out: Outgoing) -> None:
        await self._edit(remote, out)

    async def typing(self, to: Place) -> None:
        await self._ask(lambda rest: rest.send_typing(_channel(to)), what="typing", to=to)

    async def _say(self, out: Outgoing) -> str:
        reference: Any = discord.utils.MISSING
        if reading.is_id(out.to.message) and (self._is_late(out) or not (await self._kind(out.to)).direct):
            # in a server an answer hangs on what it answers; alone with somebody a late one does, to be found again
            reference = {"message_id": out.to.message, "channel_id": _channel(out.to), "fail_if_not_exists": False}

        text, file = await self._worded(out), await self._file(out)
        with _parameters(text, file, nonce=nonce(out.key), message_reference=reference) as params:
            told = await self._ask(
                lambda rest: rest.send_message(_channel(out.to), params=params),
                what="a file" if file else "a message",
                to=out.to,
            )
        return str(told["id"])

    async def _edit(self, remote: str, out: Outgoing) -> None:
        with _parameters(await self._worded(out), None) as params:
            await self._ask(
                lambda rest: rest.edit_message(_channel(out.to), remote, params=params), what="an edit", to=out.to
            )

    async def _replace(self, out: Outgoing) -> str:
        """Put the final text in a draft's place. A repeat changes nothing, so a lost answer is no doubt."""
        try:
            await self._edit(out.edits, out)
        except InDoubt as error:
            raise Transient(error.message) from error
        except Refused as error:
            if faults.code_of(error.__cause__) not in (faults.UNKNOWN_MESSAGE, faults.NOT_OURS):
                raise
            return await self._say(out)
        return out.edits

    async def _worded(self, out: Outgoing) -> str:
        """The text; in a server a notice is marked, so that no other bot answers it."""
        marked = out.notice and not (await self._kind(out.to)).direct
        return NOTICE + out.text if marked and len(out.text) + len(NOTICE) <= TEXT_CHARACTERS else out.text

    async def _file(self, out: Outgoing) -> tuple[str, bytes] | None:
        if out.file is None:
            return None
        return out.file.name or "file", await contents(self._context, out.file, most=FILE_BYTES)

    async def _found(self, out: Outgoing, *, look: bool = False) -> str:
        """The message, if it was sent before Discord forgot its nonce. No reply is older than what it answers."""
        asked = reading.seconds_of(out.to.message)
        if asked and not look and not self._is_late(out):
            return ""
        after = int(out.to.message) if asked else None
        page: list[Any] = await self._ask(
            lambda rest: rest.logs_from(_channel(out.to), 100, after=after), what="a look", to=out.to
        )
        text = (await self._worded(out)).strip()
        client = self._client
        assert client is not None
        # alone with somebody, what was said in time hangs on nothing
        hangs = {out.to.message, ""} if (await self._kind(out.to)).direct else {out.to.message}
        for message in page:
            if str(message["author"]["id"]) != str(client.me.id):
                continue
            known = message.get("nonce")
            reference = str((message.get("message_reference") or {}).get("message_id") or "")
            same = asked and reference in hangs and message.get("content") == text and _carries(message, out)
            if known == nonce(out.key) or (known is None and same):
                return str(message["id"])
        return ""

    def _is_late(self, out: Outgoing) -> bool:
        """Whether what is answered is so old that Discord may have forgotten the nonce of a first try."""
        return self._context.clock.now() - reading.seconds_of(out.to.message) >= NONCE_SECONDS

    async def _kind(self, to: Place) -> Channel:
        """What kind of place this is, as far as that can be found out at once."""
        id = _channel(to)
        if id not in self._backlog.channels:
            told: Any = await self._ask(lambda rest: rest.get_channel(id), what="a message", to=to)
            self._backlog.channels[id] = reading.channel(told)
        return self._backlog.channels[id]

    # -- calling -----------------------------------------------------------------------------------------------------

    async def _ask(self, ask: Callable[[Rest], Awaitable[T]], *, what: str = "a call", to: Place | None = None) -> T:
        """Call the API. Waits that Discord asked for are kept, and its errors become ours."""
        chat = _channel(to) if to is not None else ""
        for key in (chat, EVERYWHERE):
            left = self._quiet.get(key, 0.0) - self._context.clock.monotonic()
            if left > 0:
                raise Transient(f"Discord wants to be left alone for {left:.0f} s", retry_after=left)
            self._quiet.pop(key, None)
        try:
            client = await self._connect()
        except faults.THEIRS as error:
            problem = faults.ours(error, what="the bot")
            # nothing of what was to be sent has left
            raise Transient(problem.message, remedy=problem.remedy) from error
        try:
            return await ask(client.rest)
        except faults.THEIRS as error:
            problem = faults.ours(error, what=what)
            problem.message = self._settings.token.hide(
                problem.message
            )  # who complains may repeat what they were given
            if isinstance(problem, Transient) and problem.retry_after is not None:
                key = EVERYWHERE if isinstance(error, Halted) and error.everywhere else chat
                if key:
                    self._quiet[key] = self._context.clock.monotonic() + problem.retry_after
            raise problem from error


def nonce(key: str) -> str:
    """A key as Discord takes it: 25 characters at most."""
    return hashlib.blake2b(key.encode(), digest_size=12).hexdigest()


def _carries(message: Any, out: Outgoing) -> bool:
    """Whether a message carries the file that was to be sent, as far as its size tells: names are changed there."""
    sizes = [it.get("size") for it in message.get("attachments") or ()]
    return sizes == ([out.file.size] if out.file is not None else [])


def _channel(to: Place) -> str:
    return to.thread or to.chat


def _parameters(text: str, file: tuple[str, bytes] | None, **more: Any) -> MultipartParameters:
    missing: Any = discord.utils.MISSING
    return handle_message_parameters(
        content=text or missing,
        file=discord.File(io.BytesIO(file[1]), filename=file[0]) if file else missing,
        # a model that was talked into calling everybody calls nobody
        allowed_mentions=discord.AllowedMentions(everyone=False, roles=False, users=True, replied_user=True),
        **more,
    )
