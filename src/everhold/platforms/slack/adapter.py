"""One Slack app. It receives through a socket or HTTP calls: commit first, then confirm. It sends, edits, and transfers
files.

Slack has no idempotency key, but it can be probed: every message carries our key in its metadata, and after a lost
answer the history shows whether it was sent. An edit may be repeated, so a reply that replaces a draft is safe.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import aiohttp
import msgspec
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from everhold.core.access import NOTICE_PREFIX
from everhold.core.entries import Attachment, ChatLocation, strip_surrogates_deep
from everhold.core.message_split import split_text
from everhold.core.retry import retry_delay_seconds
from everhold.errors import EverholdError, InDoubt, Refused, TooLong, Transient
from everhold.infra.deep_json import load_json
from everhold.infra.http1 import Http1Transport
from everhold.platforms.catch_up import LiveEventQueues
from everhold.platforms.files import fetch_file, load_outgoing_file
from everhold.platforms.slack import errors as slack_errors, formatting, parsing
from everhold.platforms.slack.catch_up import SlackCatchUp, parse_ts
from everhold.platforms.slack.events import SlackEventsConnection
from everhold.platforms.slack.settings import NAME, SlackSettings
from everhold.platforms.slack.socket_mode import SlackEnvelope, SlackSocketConnection
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

API_BASE_URL: Final = "https://slack.com/api/"
MAX_TEXT_UNITS: Final = 3_900
"""Slack accepts longer messages, but no edits over 4,000 characters, and it collapses long messages."""
MAX_MESSAGE_CHARS: Final = 40_000
"""Slack cuts longer texts off without an error."""
LOOKUP_SECONDS: Final = 1.5
"""How long a message waits for the name of its sender, because an event must be confirmed within three seconds."""
MAX_FILE_BYTES: Final = 1_000_000_000
MAX_SECTION_CHARS: Final = 3_000
CALL_SECONDS: Final = 20.0
REQUIRED_SCOPES: Final = frozenset({"chat:write", "im:history", "im:read"})
"""Scopes without which not even a direct chat works."""
STABLE_CONNECTION_SECONDS: Final = 60.0
MAX_PROBED_MESSAGES: Final = 1_000
DRAFT_EDIT_INTERVAL_SECONDS: Final = 3.0
MAX_TRACKED_DRAFTS: Final = 1_000


class SlackAnswer(msgspec.Struct, frozen=True):
    """An answer that is no success, with the attributes that `slack_errors` reads."""

    status_code: int
    headers: Mapping[str, str]
    data: Any


class SlackPlatform:
    """One account. Implements `Platform`, `SupportsDrafts`, `SupportsFiles`, `SupportsDownloads`,
    `SupportsIntroduction` and `SupportsClose`."""

    name = NAME
    delivery = DeliveryGuarantee.PROBE
    text_limit = MAX_TEXT_UNITS
    file_limit = MAX_FILE_BYTES
    visible_after = 2.0
    settle_seconds = 5.0

    def __init__(self, settings: SlackSettings, context: PluginContext) -> None:
        assert context.account_context is not None, "a platform has an account context"
        self.account = context.instance
        self._settings = settings
        self._account_context = context.account_context
        self._context = context
        self._log = context.log
        self._api_base_url = (settings.base_url or API_BASE_URL).rstrip("/") + "/"
        self._session: aiohttp.ClientSession | None = None
        self._client: AsyncWebClient | None = None
        self._web_api: Http1Transport | None = None
        self._me: parsing.SlackIdentity | None = None
        self._scopes: frozenset[str] = frozenset()
        self._names: dict[str, str] = {}
        self._backlog = SlackCatchUp(self._call_api, self._account_context, self._log)
        self._rate_limited_until: dict[str, float] = {}
        """Channel -> the time until which Slack's rate limit holds."""
        self._alive_recorded_at = 0.0
        self._admitted_positions: set[str] = set()
        """The offsets of direct chats in which somebody who may speak wrote."""
        self.port = 0
        """The port of the Events API server, once it listens."""
        self._draft_edited_at: dict[str, float] = {}
        """Draft -> when it was last updated."""

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._web_api is not None:
            await self._web_api.close()

    async def introduce(self) -> AccountIntroduction:
        try:
            me = await self._identify()
            await self._open_connection()
        except slack_errors.SLACK_ERRORS as error:
            problem = slack_errors.convert_error(error, what="the app")
            raise (
                Refused(problem.message, remedy=problem.remedy) if slack_errors.is_permanent(error) else problem
            ) from error
        if missing := REQUIRED_SCOPES - self._scopes:
            names = ", ".join(sorted(missing))
            raise Refused(f"the app lacks {names}", remedy="add them under OAuth & Permissions and reinstall the app")
        return AccountIntroduction(name=f"@{me.name}", hello=f"find @{me.name} under Apps in Slack and say hello")

    # -- receiving ---------------------------------------------------------------------------------------------------

    async def listen(self, accept: AcceptMessage) -> None:
        failures = crowded = 0
        while True:
            began = self._context.clock.monotonic()
            try:
                await self._identify()
                assert self._session is not None
                async with await self._open_connection() as connection:
                    self.port = connection.port
                    hello = await connection.receive_hello()
                    if hello.connections > 1 and crowded == 0:
                        # possibly our own last connection, which Slack still counts
                        crowded = 1
                        connection.close_after_delay(self._account_context.sleep)
                    elif hello.connections > 1:
                        self._account_context.report(
                            "another program listens to this app, and Slack gives each program a part of the messages",
                            "stop that program, or give it its own app",
                        )
                    else:
                        crowded = 0
                        self._account_context.report()
                    await self._serve_connection(connection, accept)
                if connection.asked_to_leave or self._context.clock.monotonic() - began > STABLE_CONNECTION_SECONDS:
                    failures = 0
                    continue
                problem: EverholdError = Transient("Slack ended the connection")
            except slack_errors.SLACK_ERRORS as error:
                problem = slack_errors.convert_error(error, what="the connection")
                if slack_errors.is_permanent(error):
                    raise Refused(problem.message, remedy=problem.remedy or "put the app's tokens into .env") from error
            failures += 1
            self._account_context.report(problem.message, problem.remedy or "no action needed: everhold tries again")
            asked = problem.retry_after if isinstance(problem, Transient) else None
            wait = (
                asked
                if asked is not None
                else retry_delay_seconds(failures, jitter=self._account_context.chance.random())
            )
            await self._account_context.sleep(wait or 300.0)

    async def _identify(self) -> parsing.SlackIdentity:
        """Return the app's identity. Connects if necessary. Raises the library's errors."""
        if self._client is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CALL_SECONDS))
            self._client = AsyncWebClient(
                self._settings.bot_token.reveal(),
                base_url=self._api_base_url,
                session=self._session,
                retry_handlers=[],  # the adapter decides whether a call may be repeated
            )
            if self._settings.base_url:
                self._client.proxy = None  # base_url names the exact URL
        if self._me is None:
            identity = await self._client.auth_test()
            self._scopes = frozenset(str(identity.headers.get("x-oauth-scopes") or "").replace(" ", "").split(","))
            self._me = parsing.SlackIdentity(
                user=identity["user_id"],
                bot=identity.get("bot_id") or "",
                name=identity["user"],
                team=identity.get("team_id") or "",
                organization=identity.get("enterprise_id") or "",
            )
        return self._me

    async def _open_connection(self) -> SlackSocketConnection:
        assert self._client is not None
        assert self._session is not None
        settings = self._settings
        if settings.events is not None:
            assert settings.signing_secret is not None, "settings do not pass without"
            return SlackEventsConnection(settings.events, settings.signing_secret, now=self._context.clock.now)
        assert settings.app_token is not None, "settings do not pass without"
        opened = await self._client.apps_connections_open(app_token=settings.app_token.reveal())
        return SlackSocketConnection(self._session, str(opened["url"]), proxy=self._client.proxy)

    async def _serve_connection(self, connection: SlackSocketConnection, accept: AcceptMessage) -> None:
        """Receive from one connection until it ends, and read missed messages at the same time."""

        async def missed(event: dict[str, Any]) -> None:
            heard = await self._parse_event(event, id=str(event["ts"]))
            offset = PlatformOffset(key=f"history/{event['channel']}", value=str(event["ts"]))
            await self._accept_message(heard, accept, at=offset)

        async def accept_live(envelope: SlackEnvelope) -> None:
            await self._accept_envelope(envelope, connection, accept)

        async def skip(envelope: SlackEnvelope) -> None:
            await connection.acknowledge(envelope.id)

        queues = LiveEventQueues(accept_live, skip=skip)
        queues.begin_gap()
        caught_up = connection.start_task(self._backlog.run(missed, queues, now=self._context.clock.now()))
        async for envelope in connection:
            chat, ts = parsing.locate_envelope(envelope.type, envelope.payload)
            await queues.add_event(chat, envelope, id=ts)
            if (
                caught_up.done()
                and self._context.clock.monotonic() - self._alive_recorded_at > STABLE_CONNECTION_SECONDS
            ):
                self._alive_recorded_at = self._context.clock.monotonic()
                await self._backlog.record_alive(self._context.clock.now())

    async def _accept_envelope(
        self, envelope: SlackEnvelope, connection: SlackSocketConnection, accept: AcceptMessage
    ) -> None:
        """Accept an envelope, then confirm it."""
        await self._accept_message(await self._parse_envelope(envelope), accept)
        await connection.acknowledge(envelope.id)

    async def _parse_envelope(self, envelope: SlackEnvelope) -> IncomingMessage | None:
        match envelope.type:
            case "events_api":
                if not parsing.is_for_app(envelope.payload, self._me):
                    self._log.warning("event.foreign")
                    return None
                event = envelope.payload.get("event")
                return await self._parse_event(event, id=envelope.event_id)
            case "slash_commands" | "interactive":
                if parsing.is_foreign_command(envelope.payload, self._me):
                    self._log.warning("event.foreign")
                    return None
                parse = parsing.parse_press if envelope.type == "interactive" else parsing.parse_command
                try:
                    heard = parse(envelope.payload, account=self.account)
                    return check_incoming_message(heard) if heard is not None else None
                except PARSE_ERRORS as error:
                    return self._build_unparsed_message(envelope.payload, id=envelope.id, error=error)
            case _:
                return None  # kinds that Slack may add

    async def _accept_message(
        self, heard: IncomingMessage | None, accept: AcceptMessage, *, at: PlatformOffset | None = None
    ) -> None:
        """Accept a message, together with the offset of its conversation."""
        if heard is None:
            return
        origin = heard.origin
        if origin.thread and not await self._backlog.has_thread(origin.chat, origin.thread):
            if await self._account_context.can_speak(heard):
                await self._backlog.add_thread(origin.chat, origin.thread)
        if at is None and heard.event == "message":
            name = self._backlog.advance_position(origin.chat, origin.message)
            at = PlatformOffset(key=name, value=origin.message) if name else None
        if at is not None and not await self._may_store_position(at.key, heard):
            at = None
        await accept(msgspec.structs.replace(heard, offset=at))

    async def _may_store_position(self, key: str, heard: IncomingMessage) -> bool:
        """Return whether the offset of a conversation may be stored: of a direct chat only once somebody who may speak
        writes there, because strangers could fill the store."""
        if heard.kind != "dm" and not heard.unparsed_direct:
            return True
        if key not in self._admitted_positions and await self._account_context.can_speak(heard):
            self._admitted_positions.add(key)
        return key in self._admitted_positions

    async def _parse_event(self, event: Any, *, id: str) -> IncomingMessage | None:
        me = self._me
        assert me is not None
        try:
            heard = parsing.parse_message(event, account=self.account, me=me)
            files = parsing.parse_files(event) if heard is not None else ()
            heard = check_incoming_message(heard) if heard is not None else None
        except PARSE_ERRORS as error:
            ts = event.get("ts") if isinstance(event, dict) else None
            return self._build_unparsed_message(event, id=ts if isinstance(ts, str) else id, error=error)
        if heard is None:
            return None
        if not heard.name and not heard.bot:
            heard = msgspec.structs.replace(heard, name=await self._find_sender_name(heard))
        remote_files = tuple(
            RemoteFile(name=file.name, media=file.media, size=file.size, reference=msgspec.json.encode(file).decode())
            for file in map(strip_surrogates_deep, files)
        )
        return msgspec.structs.replace(heard, remote_files=remote_files) if files else heard

    def _build_unparsed_message(self, raw: Any, *, id: str, error: Exception) -> IncomingMessage:
        reason = f"{type(error).__name__}: {error}"
        self._log.warning("update.unparsed", error=reason)
        return build_unparsed_message(
            raw, platform=NAME, account=self.account, id=id, reason=reason, sent_by=parsing.find_sender(raw)
        )

    async def _find_sender_name(self, heard: IncomingMessage) -> str:
        """Return the display name of a sender who may speak. The id identifies the sender."""
        user = heard.sender
        if user not in self._names:
            if not await self._account_context.can_speak(heard):
                return ""  # a stranger must not cause calls
            try:
                async with asyncio.timeout(LOOKUP_SECONDS):
                    info = (await self._call_api("users.info", user=user)).get("user") or {}
            except TimeoutError:
                return ""
            except Refused as error:
                self._log.info("name.unknown", error=error)
                info = {}  # and will not be known later
            except EverholdError as error:
                self._log.debug("name.unknown", error=error)
                return ""
            profile = info.get("profile") or {}
            self._names[user] = str(profile.get("display_name") or info.get("real_name") or info.get("name") or "")
        return self._names[user]

    async def download(self, file: RemoteFile) -> bytes:
        await self._identify()
        return await self._download_file(msgspec.json.decode(file.reference, type=parsing.SlackFile))

    async def _download_file(self, file: parsing.SlackFile) -> bytes:
        if file.external:
            raise Refused("the file is stored elsewhere")
        if not file.url:
            info = (await self._call_api("files.info", file=file.id)).get("file") or {}
            (file,) = parsing.parse_files({"files": [info]}) or (file,)
        if not self._is_slack_url(file.url):
            raise Refused("Slack returned a URL outside its file server")  # the token is sent only to Slack
        bearer = {"Authorization": f"Bearer {self._settings.bot_token.reveal()}"}
        found = await fetch_file(self._account_context, file.url, size=file.size, headers=bearer)
        if found.media == "text/html" and file.media != "text/html":
            raise Refused("Slack returned its login page", remedy="the app needs the scope files:read")
        return found.data

    def _is_slack_url(self, url: str) -> bool:
        parts = urlsplit(url)
        if self._settings.base_url:
            return parts.netloc == urlsplit(self._settings.base_url).netloc
        return parts.scheme == "https" and (parts.hostname or "").endswith(".slack.com")

    # -- sending -----------------------------------------------------------------------------------------------------

    async def send(self, out: OutgoingMessage) -> str:
        if out.file is not None:
            return await self._send_file(out, out.file)
        return await (self._finalize_draft(out) if out.edits else self._send_message(out))

    async def probe(self, out: OutgoingMessage) -> str | None:
        me = await self._identify()
        async for message in self._fetch_recent_messages(out.to):
            if not parsing.is_own_message(message, me):
                continue  # other apps see our keys and could forge them
            metadata = message.get("metadata") or {}
            if metadata.get("event_type") == parsing.METADATA_EVENT_TYPE:
                if metadata.get("event_payload", {}).get("key") == out.key:
                    return str(message["ts"])
            elif out.file is not None:
                for it in message.get(
                    "files", ()
                ):  # Slack carries no key with a file, so its name and size identify it
                    if (it.get("name"), it.get("size")) == (out.file.name or "file", out.file.size):
                        return str(it.get("id"))
        return None

    async def draft(self, out: OutgoingMessage) -> str:
        return await self._send_message(out)

    async def revise(self, remote: str, out: OutgoingMessage) -> None:
        # Slack accepts fewer edits per minute than a reply takes seconds, and the final edit must not have to wait
        now = self._context.clock.monotonic()
        if now - self._draft_edited_at.get(remote, 0.0) < DRAFT_EDIT_INTERVAL_SECONDS:
            return
        if len(self._draft_edited_at) > MAX_TRACKED_DRAFTS:
            self._draft_edited_at.clear()
        self._draft_edited_at[remote] = now
        await self._edit_message(remote, out)

    async def _send_message(self, out: OutgoingMessage) -> str:
        sent = await self._post_text(out, "chat.postMessage", "a message", channel=out.to.chat, thread_ts=out.to.thread)
        return str(sent["ts"])

    async def _edit_message(self, remote: str, out: OutgoingMessage) -> None:
        await self._post_text(out, "chat.update", "an edit", channel=out.to.chat, ts=remote)

    async def _finalize_draft(self, out: OutgoingMessage) -> str:
        """Replace a draft with the final text. A repeat changes nothing, so a lost answer leaves no doubt."""
        try:
            await self._edit_message(out.edits, out)
        except InDoubt as error:
            raise Transient(error.message) from error
        except Refused as error:
            if isinstance(error, TooLong):  # the text can be sent, but not as an edit
                remote = await self._send_message(out)
                await self._delete_draft(out)
                return remote
            if slack_errors.get_error_code(error.__cause__) not in slack_errors.MESSAGE_GONE_CODES:
                raise
            return await self._send_message(out)
        return out.edits

    async def _delete_draft(self, out: OutgoingMessage) -> None:
        """Delete a draft. If that fails, the draft stays, because reporting the failure would repeat the whole
        reply."""
        try:
            await self._call_api("chat.delete", quiet=out.to.chat, channel=out.to.chat, ts=out.edits)
        except EverholdError as error:
            self._log.info("draft.abandoned", error=error)

    async def _post_text(self, out: OutgoingMessage, method: str, what: str, **given: str) -> dict[str, Any]:
        text = formatting.to_mrkdwn(out.text)
        if out.notice and not out.to.chat.startswith("D"):
            text = NOTICE_PREFIX + text  # so that other bots do not answer it
        if len(text) > MAX_MESSAGE_CHARS:
            raise TooLong(f"Slack refuses {what}: it has {len(text):,} characters")
        payload = {"key": out.key, "hops": out.hops}
        return await self._call_api(
            method,
            what=what,
            quiet=out.to.chat,
            **{name: value for name, value in given.items() if value},
            **_build_blocks(text, out),
            text=text,
            unfurl_links="false",
            metadata=msgspec.json.encode(
                {"event_type": parsing.METADATA_EVENT_TYPE, "event_payload": payload}
            ).decode(),
        )

    async def _send_file(self, out: OutgoingMessage, file: Attachment) -> str:
        data = await load_outgoing_file(self._context, file, most=MAX_FILE_BYTES)
        name, to = file.name or "file", out.to
        place = await self._call_api(
            "files.getUploadURLExternal", what="a file", quiet=to.chat, filename=name, length=str(len(data))
        )
        if not self._is_slack_url(str(place["upload_url"])):
            raise Refused("Slack returned an upload URL outside its file server")
        assert self._session is not None
        try:
            async with self._session.post(str(place["upload_url"]), data=data) as answer:
                if answer.status != 200:
                    raise Transient(f"Slack does not accept the file: {answer.status}")
        except slack_errors.SLACK_ERRORS as error:
            # the file is not visible before the upload is completed
            raise Transient(f"Slack does not accept the file: {type(error).__name__}") from error
        given = {"channel_id": to.chat, "thread_ts": to.thread}
        await self._call_api(
            "files.completeUploadExternal",
            what="a file",
            quiet=to.chat,
            files=msgspec.json.encode([{"id": place["file_id"], "title": name}]).decode(),
            **{name: value for name, value in given.items() if value},
        )
        return str(place["file_id"])

    async def _fetch_recent_messages(self, to: ChatLocation) -> Any:
        """Return the messages of a conversation, back to the replied-to message, or the last ones."""
        oldest = to.message if parsing.is_message_ts(to.message) else ""
        given = {"channel": to.chat, "oldest": oldest, "ts": to.thread, "include_all_metadata": "true"}
        method = "conversations.replies" if to.thread else "conversations.history"
        cursor, seen = "", 0
        while True:
            asked = {name: value for name, value in {**given, "cursor": cursor}.items() if value}
            page = await self._call_api(method, what="a look", quiet=to.chat, limit="200", **asked)
            for message in sorted(page.get("messages") or (), key=lambda it: parse_ts(it.get("ts"))):
                seen += 1
                yield message
            cursor = (page.get("response_metadata") or {}).get("next_cursor") or ""
            if not cursor or (seen >= MAX_PROBED_MESSAGES and not oldest):
                return

    # -- calling -----------------------------------------------------------------------------------------------------

    async def _call_api(self, method: str, *, what: str = "a call", quiet: str = "", **given: str) -> dict[str, Any]:
        """Call a method of the Web API. Respects Slack's rate limit, and converts its errors to ours."""
        left = self._rate_limited_until.get(quiet, 0.0) - self._context.clock.monotonic()
        if left > 0:
            raise Transient(f"Slack limits this channel for another {left:.0f} s", retry_after=left)
        self._rate_limited_until.pop(quiet, None)
        try:
            await self._identify()
        except slack_errors.SLACK_ERRORS as error:
            problem = slack_errors.convert_error(error, what="the app")
            # the request was not sent
            raise Transient(problem.message, remedy=problem.remedy) from error
        assert self._client is not None
        try:
            data = await self._call_web_api(method, given)
        except slack_errors.SLACK_ERRORS as error:
            problem = slack_errors.convert_error(error, what=what)
            for token in filter(None, (self._settings.bot_token, self._settings.app_token)):
                problem.message = token.mask_in(problem.message)  # the error text may contain what was sent
            if quiet and isinstance(problem, Transient) and problem.retry_after is not None:
                self._rate_limited_until[quiet] = self._context.clock.monotonic() + problem.retry_after
            raise problem from error
        if not isinstance(data, dict):
            raise InDoubt(f"{what}: Slack gave an unexpected answer")
        return data

    async def _call_web_api(self, method: str, given: dict[str, str]) -> Any:
        """Call the method and return what Slack answers. Raises the errors of `slack_errors.SLACK_ERRORS`.

        The vendor's client takes three times as long for a call. Only it can use a proxy.
        """
        assert self._client is not None
        if self._client.proxy:
            return (await self._client.api_call(method, data=given)).data
        if self._web_api is None:
            self._web_api = self._connect_web_api()
        found = await self._web_api.fetch("POST", method, urlencode(given).encode(), seconds=CALL_SECONDS)
        try:
            data: Any = load_json(found.body.decode())
        except ValueError:
            data = None
        if found.status != 200 or not (isinstance(data, dict) and data.get("ok")):
            answer = SlackAnswer(found.status, found.headers, data)
            raise SlackApiError("Slack refused the call", answer)  # type: ignore[no-untyped-call]  # the library's
        return data

    def _connect_web_api(self) -> Http1Transport:
        return Http1Transport(
            self._api_base_url,
            headers={
                "authorization": f"Bearer {self._settings.bot_token.reveal()}",
                "content-type": "application/x-www-form-urlencoded",
                "user-agent": "everhold",
            },
            connect_seconds=CALL_SECONDS,
            send_seconds=CALL_SECONDS,
            trust=ssl.create_default_context() if self._api_base_url.startswith("https:") else None,
        )


def _build_blocks(text: str, out: OutgoingMessage) -> dict[str, str]:
    """Return the blocks of a message with buttons. Slack shows them instead of the text."""
    if not out.choices:
        return {}
    blocks: list[dict[str, Any]] = [
        {"type": "section", "text": {"type": "mrkdwn", "text": part}} for part in split_text(text, MAX_SECTION_CHARS)
    ]
    buttons = [
        {
            "type": "button",
            "action_id": f"choice-{number}",
            "text": {"type": "plain_text", "text": it.label},
            "value": it.command,
        }
        for number, it in enumerate(out.choices)
    ]
    blocks.append({"type": "actions", "elements": buttons})
    return {"blocks": msgspec.json.encode(blocks).decode()}
