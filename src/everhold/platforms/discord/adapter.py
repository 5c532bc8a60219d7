"""One Discord bot. Its own loop reads Discord's gateway. It sends, edits, shows typing, and transfers files.

Discord has no acknowledgements and repeats little, so the last message heard in each channel is stored together with
the messages. A sent message carries a nonce that Discord recognises for some minutes, so a repeat within that time is
shown once. For a reply to an older message, the adapter searches the channel before it sends.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NoReturn, TypeVar

import discord
import msgspec
from discord.http import MultipartParameters, Route, handle_message_parameters

from everhold.core.access import NOTICE_PREFIX
from everhold.core.entries import ChatLocation, strip_surrogates
from everhold.core.retry import retry_delay_seconds
from everhold.errors import EverholdError, InDoubt, Refused, Transient
from everhold.platforms.catch_up import LiveEventQueues
from everhold.platforms.discord import errors as discord_errors, parsing
from everhold.platforms.discord.catch_up import DiscordCatchUp
from everhold.platforms.discord.client import DiscordClient, DiscordResumePoint
from everhold.platforms.discord.http_client import DiscordHttpClient, DiscordRateLimited
from everhold.platforms.discord.parsing import DiscordChannel
from everhold.platforms.discord.settings import NAME, DiscordSettings
from everhold.platforms.files import fetch_file, load_outgoing_file
from everhold.platforms.unparsed import PARSE_ERRORS, build_unparsed_message, check_incoming_message, find_id
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

T = TypeVar("T")
MAX_TEXT_CHARS: Final = 2_000
MAX_FILE_BYTES: Final = 10 * 1024 * 1024
"""The file limit of a server without a paid plan."""
MAX_COMMANDS: Final = 100
STABLE_CONNECTION_SECONDS: Final = 60.0
NONCE_LIFETIME_SECONDS: Final = 120.0
"""For at least this long Discord recognises a nonce. Its documentation says a few minutes."""
IDENTIFY_INTERVAL_SECONDS: Final = 5.0
PERMISSIONS: Final = discord.Permissions(
    view_channel=True,
    send_messages=True,
    send_messages_in_threads=True,
    read_message_history=True,
    attach_files=True,
    embed_links=True,
)
EPHEMERAL_MESSAGE_FLAG: Final = 64
INTERACTION_REPLY_TYPE: Final = 4
GLOBAL_RATE_LIMIT_KEY: Final = "*"
BUTTON_ROW_TYPE: Final = 1
BUTTON_TYPE: Final = 2
SECONDARY_STYLE: Final = 2
MAX_BUTTON_CHARS: Final = 100
TEXT_OPTION: Final = {"type": 3, "name": "text", "description": "what goes with it", "required": False}


class DiscordPlatform:
    """One account. Implements `Platform`, `SupportsDrafts`, `SupportsFiles`, `SupportsDownloads`, `SupportsTyping`,
    `SupportsIntroduction` and `SupportsClose`."""

    name = NAME
    delivery = DeliveryGuarantee.KEYED
    text_limit = MAX_TEXT_CHARS
    file_limit = MAX_FILE_BYTES
    visible_after = 0.0
    settle_seconds = 5.0

    def __init__(self, settings: DiscordSettings, context: PluginContext) -> None:
        assert context.account_context is not None, "a platform has an account context"
        self.account = context.instance
        self._settings = settings
        self._account_context = context.account_context
        self._context = context
        self._log = context.log
        self._client: DiscordClient | None = None
        self._connecting = asyncio.Lock()
        self._events: asyncio.Queue[tuple[str, Any] | BaseException] = asyncio.Queue()
        """Events from Discord's gateway, and a marker at each place where events may be missing."""
        self._resume: DiscordResumePoint | None = None
        self._roles: frozenset[str] = frozenset()
        self._backlog = DiscordCatchUp(self._call_api, self._account_context, self._log)
        self._rate_limited_until: dict[str, float] = {}
        """Channel -> the time until which Discord's rate limit holds."""
        self._alive_recorded_at = 0.0

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def introduce(self) -> AccountIntroduction:
        try:
            client = await self._connect()
        except discord_errors.DISCORD_ERRORS as error:
            raise discord_errors.find_permanent_refusal(error) or discord_errors.convert_error(
                error, what="the bot"
            ) from error
        flags = client.application_flags
        if not (flags.gateway_message_content or flags.gateway_message_content_limited):
            raise discord_errors.build_refused(discord_errors.MISSING_INTENT)
        assert client.application_id is not None
        link = discord.utils.oauth_url(
            client.application_id, permissions=PERMISSIONS, scopes=("bot", "applications.commands")
        )
        return AccountIntroduction(
            name=client.me.name, hello=f"open {link} to add it to your server, and mention it there"
        )

    # -- receiving ---------------------------------------------------------------------------------------------------

    async def listen(self, accept: AcceptMessage) -> None:
        self._events = asyncio.Queue()
        self._resume = None
        queues = LiveEventQueues(functools.partial(self._accept_event, accept=accept), skip=_skip_event)
        receiver = self._start_task(self._receive_events())
        catching_up: asyncio.Task[None] | None = None
        try:
            while True:
                event = await self._events.get()
                if isinstance(event, BaseException):
                    raise event
                if event[0] == "gap":
                    await _cancel_task(catching_up)
                    queues.begin_gap()
                    catching_up = self._start_task(self._catch_up(queues, accept))
                    continue
                id = find_id(event[1], "id") if event[0] == "MESSAGE_CREATE" else ""
                await queues.add_event(_find_channel_id(event[1]), event, id=id)
                now = self._context.clock.monotonic()
                if (
                    now - self._alive_recorded_at > STABLE_CONNECTION_SECONDS
                    and self._events.empty()
                    and catching_up is not None
                    and catching_up.done()
                ):
                    self._alive_recorded_at = now
                    await self._backlog.record_alive(self._context.clock.now())
        finally:
            await _cancel_task(receiver)
            await _cancel_task(catching_up)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a part of `listen`, which fails if its part fails."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.put_nowait(error)

    async def _catch_up(self, queues: LiveEventQueues[tuple[str, Any]], accept: AcceptMessage) -> None:
        handle = functools.partial(self._accept_message, accept=accept)
        await self._backlog.run(handle, queues, now=self._context.clock.now())

    async def _receive_events(self) -> None:
        """Read Discord's gateway in a loop. Resume the last session if possible, otherwise start a new one."""
        failures = 0
        announced = False
        while True:
            began = self._context.clock.monotonic()
            try:
                client = await self._connect()
                if not announced:
                    announced = await self._register_commands(client)
                await self._read_connection(client)
            except discord_errors.DISCORD_ERRORS as error:
                if (mend := discord_errors.find_permanent_refusal(error)) is not None:
                    raise mend from error
                problem = discord_errors.convert_error(error, what="the connection")
            failures = 1 if self._context.clock.monotonic() - began > STABLE_CONNECTION_SECONDS else failures + 1
            if failures > 1:  # Discord moves connections regularly; a connection that can be resumed is not a failure
                self._account_context.report(
                    f"Discord does not answer: {problem.message}", "no action needed: everhold tries again"
                )
            asked = problem.retry_after if isinstance(problem, Transient) else None
            wait = (
                asked
                if asked is not None
                else retry_delay_seconds(failures, jitter=self._account_context.chance.random())
            )
            # a session that cannot be resumed has to identify again, which is allowed every five seconds
            await self._account_context.sleep(max(wait or 300.0, 0.0 if self._resume else IDENTIFY_INTERVAL_SECONDS))

    async def _read_connection(self, client: DiscordClient) -> NoReturn:
        """Read one connection until it ends."""
        socket = await client.open_socket(self._resume)
        try:
            while True:
                await socket.read()
        finally:
            self._resume = socket.resume_point()
            await socket.close()

    async def _connect(self) -> DiscordClient:
        """Return the client, logged in. Raises the library's errors."""
        async with self._connecting:
            if self._client is None:
                client = DiscordClient(base=(self._settings.base_url or "").rstrip("/"), on_event=self._enqueue_event)
                try:
                    await client.login(self._settings.token.reveal())
                except BaseException:
                    await client.close()
                    raise
                self._client = client
            return self._client

    async def _register_commands(self, client: DiscordClient) -> bool:
        """Announce the commands in Discord's menu."""
        commands = [
            {"name": name, "description": help_text[:100], "type": 1, "options": [TEXT_OPTION]}
            for name, help_text in self._account_context.commands.items()
        ]
        assert client.application_id is not None
        try:
            await client.rest.bulk_upsert_global_commands(client.application_id, commands[:MAX_COMMANDS])
        except discord_errors.DISCORD_ERRORS as error:
            self._log.warning(
                "command_menu.failed", error=discord_errors.convert_error(error, what="a list of commands")
            )
            return isinstance(error, discord.HTTPException)  # other failures may succeed the next time
        return True

    def _enqueue_event(self, event: str, data: Any) -> None:
        """Queue an event from Discord's gateway. It is not processed here, because the connection must not wait."""
        match event:
            case "READY" | "RESUMED":
                self._account_context.report()
                if event == "READY":
                    self._events.put_nowait(("gap", None))
            case "GUILD_CREATE":
                me = str(self._client.me.id) if self._client is not None else ""
                self._roles |= parsing.list_own_roles(data, me)
                self._backlog.learn_channels(parsing.list_described_channels(data))
            case "CHANNEL_CREATE" | "THREAD_CREATE":
                # otherwise the first message in it, which may be a stranger's, would have to ask for it
                self._backlog.learn_channels([data])
            case _:
                self._events.put_nowait((event, data))

    async def _accept_event(self, received: tuple[str, Any], *, accept: AcceptMessage) -> None:
        event, data = received
        if event == "INTERACTION_CREATE":
            await self._accept_command(data, accept)
        else:
            channel = await self._resolve_channel(data)
            await self._accept_message(channel, data, accept=accept, edited=event == "MESSAGE_UPDATE")

    async def _resolve_channel(self, data: Any) -> DiscordChannel:
        id = _find_channel_id(data)
        if not id:
            return DiscordChannel(id="")  # the rest of it cannot be parsed either
        if not data.get("guild_id"):
            # in a private channel of other people, a command reaches the bot, and the bot cannot read it
            return DiscordChannel(id=id, is_direct=data.get("context") != parsing.PRIVATE_CHANNEL_CONTEXT)
        return await self._backlog.get_channel(id)

    async def _accept_message(
        self, channel: DiscordChannel, data: Any, *, accept: AcceptMessage, edited: bool = False
    ) -> None:
        heard = await self._parse_message(channel, data, edited=edited)
        if heard is None:
            return
        is_known = await self._remember_direct_chat(channel, heard)
        id = data.get("id") if isinstance(data, dict) else None
        if is_known and not edited and isinstance(id, str) and parsing.is_snowflake(id) and channel.id:
            name = self._backlog.advance_position(channel, id)
            offset = PlatformOffset(key=name, value=id) if name else None
            heard = msgspec.structs.replace(heard, offset=offset)
        await accept(heard)

    async def _remember_direct_chat(self, channel: DiscordChannel, heard: IncomingMessage) -> bool:
        """Store a direct chat before anything in it is accepted. Return False for the chat of a stranger, which is not
        stored: strangers could fill the list, and the chats of known people would be dropped from it."""
        if channel.is_direct and not await self._backlog.has_direct_chat(channel.id):
            if not await self._account_context.can_speak(heard):
                return False
            await self._backlog.add_direct_chat(channel.id)
        return True

    async def _parse_message(self, channel: DiscordChannel, data: Any, *, edited: bool) -> IncomingMessage | None:
        assert self._client is not None
        me = self._client.me.id
        try:
            heard = parsing.parse_message(
                data, channel=channel, account=self.account, me=me, roles=self._roles, edited=edited
            )
            files = parsing.parse_files(data) if heard is not None and not edited else ()
            heard = check_incoming_message(heard) if heard is not None else None
        except PARSE_ERRORS as error:
            return self._build_unparsed_message(data, error, channel)
        return heard if heard is None or not files else msgspec.structs.replace(heard, remote_files=files)

    def _build_unparsed_message(self, raw: Any, error: Exception, channel: DiscordChannel) -> IncomingMessage:
        reason = f"{type(error).__name__}: {error}"
        self._log.warning("update.unparsed", error=reason)
        id = raw.get("id") if isinstance(raw, dict) else None
        if not isinstance(id, str):
            id = hashlib.sha256(repr(raw).encode("utf-8", "replace")).hexdigest()[:16]
        sent_by = parsing.find_sender(raw, channel)
        return build_unparsed_message(raw, platform=NAME, account=self.account, id=id, reason=reason, sent_by=sent_by)

    async def download(self, file: RemoteFile) -> bytes:
        return (await fetch_file(self._account_context, file.reference, size=file.size)).data

    async def _accept_command(self, data: Any, accept: AcceptMessage) -> None:
        """Accept a slash command or the command of a button, then confirm it. The reply is sent as a message."""
        channel = await self._resolve_channel(data)
        try:
            heard = parsing.parse_command(data, channel=channel, account=self.account)
            id, token = str(data["id"]), str(data["token"])
            heard = check_incoming_message(heard) if heard is not None else None
            token.encode()
        except PARSE_ERRORS as error:
            await accept(self._build_unparsed_message(data, error, channel))
            return
        if heard is None:
            return
        await self._remember_direct_chat(channel, heard)
        if (await accept(heard)).outcome == "denied":
            return  # a stranger must not cause calls
        route = Route(
            "POST",
            "/interactions/{interaction_id}/{interaction_token}/callback",
            interaction_id=id,
            interaction_token=token,
        )
        answer = {
            "type": INTERACTION_REPLY_TYPE,
            "data": {"content": f"`{strip_surrogates(heard.text[:100])[0]}`", "flags": EPHEMERAL_MESSAGE_FLAG},
        }
        try:
            await self._call_api(lambda rest: rest.request(route, json=answer))
        except EverholdError as error:
            self._log.info("command.unconfirmed", error=error)

    # -- sending -----------------------------------------------------------------------------------------------------

    async def send(self, out: OutgoingMessage) -> str:
        if out.edits:
            return await self._finalize_draft(out)
        return await self._find_sent_message(out) or await self._send_message(out)

    async def probe(self, out: OutgoingMessage) -> str | None:
        return await self._find_sent_message(out, always=True) or None

    async def draft(self, out: OutgoingMessage) -> str:
        return await self._send_message(out)

    async def revise(self, remote: str, out: OutgoingMessage) -> None:
        await self._edit_message(remote, out)

    async def send_typing(self, to: ChatLocation) -> None:
        await self._call_api(lambda rest: rest.send_typing(_get_channel_id(to)), what="typing", to=to)

    async def _send_message(self, out: OutgoingMessage) -> str:
        reference: Any = discord.utils.MISSING
        if parsing.is_snowflake(out.to.message) and (
            self._is_late(out) or not (await self._find_channel(out.to)).is_direct
        ):
            # in a server a reply refers to its message; in a direct chat only a late reply does, so that it can be
            # found again
            reference = {
                "message_id": out.to.message,
                "channel_id": _get_channel_id(out.to),
                "fail_if_not_exists": False,
            }

        text, file = await self._mark_notice(out), await self._load_file(out)
        with _build_message_parameters(text, file, nonce=make_nonce(out.key), message_reference=reference) as params:
            if out.choices and params.payload is not None:
                params.payload["components"] = _build_buttons(out)
            sent = await self._call_api(
                lambda rest: rest.send_message(_get_channel_id(out.to), params=params),
                what="a file" if file else "a message",
                to=out.to,
            )
        return str(sent["id"])

    async def _edit_message(self, remote: str, out: OutgoingMessage) -> None:
        with _build_message_parameters(await self._mark_notice(out), None) as params:
            await self._call_api(
                lambda rest: rest.edit_message(_get_channel_id(out.to), remote, params=params),
                what="an edit",
                to=out.to,
            )

    async def _finalize_draft(self, out: OutgoingMessage) -> str:
        """Replace a draft with the final text. A repeat changes nothing, so a lost answer leaves no doubt."""
        try:
            await self._edit_message(out.edits, out)
        except InDoubt as error:
            raise Transient(error.message) from error
        except Refused as error:
            if discord_errors.get_error_code(error.__cause__) not in (
                discord_errors.UNKNOWN_MESSAGE,
                discord_errors.NOT_OUR_MESSAGE,
            ):
                raise
            return await self._send_message(out)
        return out.edits

    async def _mark_notice(self, out: OutgoingMessage) -> str:
        """Return the text. In a server a notice is marked, so that other bots do not answer it."""
        marked = out.notice and not (await self._find_channel(out.to)).is_direct
        return NOTICE_PREFIX + out.text if marked and len(out.text) + len(NOTICE_PREFIX) <= MAX_TEXT_CHARS else out.text

    async def _load_file(self, out: OutgoingMessage) -> tuple[str, bytes] | None:
        if out.file is None:
            return None
        return out.file.name or "file", await load_outgoing_file(self._context, out.file, most=MAX_FILE_BYTES)

    async def _find_sent_message(self, out: OutgoingMessage, *, always: bool = False) -> str:
        """Return the id of the message if it was sent before Discord forgot its nonce. A reply is never older than its
        message."""
        asked = parsing.parse_snowflake_seconds(out.to.message)
        if asked and not always and not self._is_late(out):
            return ""
        after = int(out.to.message) if asked else None
        page: list[Any] = await self._call_api(
            lambda rest: rest.logs_from(_get_channel_id(out.to), 100, after=after), what="a look", to=out.to
        )
        text = (await self._mark_notice(out)).strip()
        client = self._client
        assert client is not None
        # in a direct chat a reply that was sent in time refers to no message
        hangs = {out.to.message, ""} if (await self._find_channel(out.to)).is_direct else {out.to.message}
        for message in page:
            if str(message["author"]["id"]) != str(client.me.id):
                continue
            known = message.get("nonce")
            reference = str((message.get("message_reference") or {}).get("message_id") or "")
            same = asked and reference in hangs and message.get("content") == text and _has_same_file(message, out)
            if known == make_nonce(out.key) or (known is None and same):
                return str(message["id"])
        return ""

    def _is_late(self, out: OutgoingMessage) -> bool:
        """Return whether the replied-to message is so old that Discord may have forgotten the nonce of a first
        attempt."""
        return self._context.clock.now() - parsing.parse_snowflake_seconds(out.to.message) >= NONCE_LIFETIME_SECONDS

    async def _find_channel(self, to: ChatLocation) -> DiscordChannel:
        """Return the kind of chat, as far as it is known without a call."""
        id = _get_channel_id(to)
        if id not in self._backlog.channels:
            description: Any = await self._call_api(lambda rest: rest.get_channel(id), what="a message", to=to)
            self._backlog.channels[id] = parsing.parse_channel(description)
        return self._backlog.channels[id]

    # -- calling -----------------------------------------------------------------------------------------------------

    async def _call_api(
        self, ask: Callable[[DiscordHttpClient], Awaitable[T]], *, what: str = "a call", to: ChatLocation | None = None
    ) -> T:
        """Call the API. Respects Discord's rate limit, and converts its errors to ours."""
        chat = _get_channel_id(to) if to is not None else ""
        for key in (chat, GLOBAL_RATE_LIMIT_KEY):
            left = self._rate_limited_until.get(key, 0.0) - self._context.clock.monotonic()
            if left > 0:
                raise Transient(f"Discord limits requests for another {left:.0f} s", retry_after=left)
            self._rate_limited_until.pop(key, None)
        try:
            client = await self._connect()
        except discord_errors.DISCORD_ERRORS as error:
            problem = discord_errors.convert_error(error, what="the bot")
            # the request was not sent
            raise Transient(problem.message, remedy=problem.remedy) from error
        try:
            return await ask(client.rest)
        except discord_errors.DISCORD_ERRORS as error:
            problem = discord_errors.convert_error(error, what=what)
            problem.message = self._settings.token.mask_in(problem.message)  # the error text may contain what was sent
            if isinstance(problem, Transient) and problem.retry_after is not None:
                key = GLOBAL_RATE_LIMIT_KEY if isinstance(error, DiscordRateLimited) and error.is_global else chat
                if key:
                    self._rate_limited_until[key] = self._context.clock.monotonic() + problem.retry_after
            raise problem from error


def _find_channel_id(data: Any) -> str:
    """Return the channel of an event, or an empty text."""
    id = data.get("channel_id") if isinstance(data, dict) else None
    return id if isinstance(id, str) and parsing.is_snowflake(id) else ""


async def _skip_event(event: tuple[str, Any]) -> None:
    """Do nothing, because Discord needs no confirmation."""


async def _cancel_task(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def make_nonce(key: str) -> str:
    """Return a nonce for a key. Discord accepts at most 25 characters."""
    return hashlib.blake2b(key.encode(), digest_size=12).hexdigest()


def _has_same_file(message: Any, out: OutgoingMessage) -> bool:
    """Return whether a message carries the file, judged by its size, because Discord changes file names."""
    sizes = [it.get("size") for it in message.get("attachments") or ()]
    return sizes == ([out.file.size] if out.file is not None else [])


def _build_buttons(out: OutgoingMessage) -> list[dict[str, Any]]:
    """Return one row of buttons."""
    buttons = [
        {"type": BUTTON_TYPE, "style": SECONDARY_STYLE, "label": it.label, "custom_id": it.command}
        for it in out.choices
        if len(it.command) <= MAX_BUTTON_CHARS
    ]
    return [{"type": BUTTON_ROW_TYPE, "components": buttons}]


def _get_channel_id(to: ChatLocation) -> str:
    return to.thread or to.chat


def _build_message_parameters(text: str, file: tuple[str, bytes] | None, **more: Any) -> MultipartParameters:
    missing: Any = discord.utils.MISSING
    return handle_message_parameters(
        content=text or missing,
        file=discord.File(io.BytesIO(file[1]), filename=file[0]) if file else missing,
        # a model cannot be made to ping everyone
        allowed_mentions=discord.AllowedMentions(everyone=False, roles=False, users=True, replied_user=True),
        **more,
    )
