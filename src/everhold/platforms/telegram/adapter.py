"""One Telegram bot. Its own loop reads updates: commit first, then confirm. It sends, edits, shows typing, and
transfers files.

Telegram has no idempotency key. After a lost answer the message may be there or not, so the send is in doubt and
follows the account's policy. An edit may be repeated, so a reply that replaces a draft is safe.
"""

from __future__ import annotations

import asyncio
import collections
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from telegram import (
    Bot,
    BotCommand,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    InputFile,
    Message,
    MessageEntity,
    ReplyParameters,
    Update,
)
from telegram.error import BadRequest, ChatMigrated, Conflict, InvalidToken, RetryAfter, TelegramError
from telegram.request import HTTPXRequest

from everhold.core.access import NOTICE_PREFIX
from everhold.core.entries import Attachment, ChatLocation
from everhold.core.message_split import count_units
from everhold.core.retry import retry_delay_seconds
from everhold.errors import InDoubt, Refused, Transient
from everhold.infra.secret import SecretString
from everhold.platforms.files import load_outgoing_file
from everhold.platforms.telegram import errors as telegram_errors, parsing
from everhold.platforms.telegram.formatting import format_markdown
from everhold.platforms.telegram.settings import NAME, TelegramSettings, TelegramWebhookSettings
from everhold.platforms.unparsed import PARSE_ERRORS, build_unparsed_message, check_incoming_message, find_id
from everhold.platforms.webhook import WebhookServer
from everhold.ports.platform import (
    AcceptMessage,
    AccountIntroduction,
    DeliveryGuarantee,
    IncomingMessage,
    OutgoingMessage,
    RemoteFile,
)
from everhold.ports.plugin import PluginContext

API_BASE_URL: Final = "https://api.telegram.org"
MAX_TEXT_UNITS: Final = 4096
MAX_FILE_BYTES: Final = 50_000_000
MAX_PHOTO_BYTES: Final = 10_000_000
PHOTO_MEDIA_TYPES: Final = frozenset({"image/jpeg", "image/png"})
"""Media types that Telegram shows as a photo. Other files are sent as documents."""
MAX_COMMANDS: Final = 100
MAX_BUTTON_BYTES: Final = 64
MAX_FETCH_ATTEMPTS: Final = 3
MAX_UNCONFIRMED_MIGRATIONS: Final = 1_000
OFFSET_EXPIRY_SECONDS: Final = 5 * 86_400.0
"""After a week without updates Telegram starts new update numbers, so the adapter drops its offset before that."""


class TelegramPollingRequest(HTTPXRequest):
    """The connection for updates. It keeps them unparsed, because one malformed update must not discard the others."""

    def __init__(self, *, read_timeout: float) -> None:
        super().__init__(connection_pool_size=1, read_timeout=read_timeout)
        self.raw_updates: list[Any] = []

    def parse_json_payload(self, payload: bytes) -> dict[str, Any]:  # type: ignore[override]  # a method will do
        found: dict[str, Any] = HTTPXRequest.parse_json_payload(payload)
        if isinstance(found.get("result"), list):
            self.raw_updates, found["result"] = found["result"], []
        return found


class TelegramPlatform:
    """One account. Implements `Platform`, `SupportsDrafts`, `SupportsFiles`, `SupportsDownloads`, `SupportsTyping`,
    `SupportsIntroduction` and `SupportsClose`."""

    name = NAME
    delivery = DeliveryGuarantee.BLIND
    text_limit = MAX_TEXT_UNITS
    file_limit = MAX_FILE_BYTES
    visible_after = 0.0
    settle_seconds = 5.0

    def __init__(self, settings: TelegramSettings, context: PluginContext) -> None:
        assert context.account_context is not None, "a platform has an account context"
        self.account = context.instance
        self._settings = settings
        self._account_context = context.account_context
        self._context = context
        self._log = context.log
        self._token = settings.token
        base = (settings.base_url or API_BASE_URL).rstrip("/")
        self._files = f"{base}/file/bot{settings.token.reveal()}/"
        self._polling = TelegramPollingRequest(read_timeout=10.0)
        for noisy in ("httpx", "httpcore"):  # they log URLs, and the URLs of this API contain the token
            logging.getLogger(noisy).setLevel(logging.WARNING)
        self._bot = Bot(
            settings.token.reveal(),
            base_url=f"{base}/bot",
            base_file_url=f"{base}/file/bot",
            request=HTTPXRequest(connection_pool_size=64, read_timeout=20.0, connect_timeout=10.0, pool_timeout=5.0),
            get_updates_request=self._polling,
        )
        self._ready = False
        self.port = 0
        """The port of the webhook server, once it listens."""
        self._unconfirmed_migrations: collections.OrderedDict[str, str] = collections.OrderedDict()
        """New id -> old id of groups in which nobody who may speak has written since. Such a group is followed by its
        next failing send, too, if the process ends meanwhile."""
        self._rate_limited_until: dict[str, float] = {}
        """Chat -> the time until which Telegram's rate limit holds."""

    async def aclose(self) -> None:
        await self._bot.shutdown()

    async def introduce(self) -> AccountIntroduction:
        try:
            me = await self._bot.get_me()
        except TelegramError as error:
            raise telegram_errors.convert_error(error, what="the bot", token=self._token) from error
        chat = f"https://t.me/{me.username}"
        return AccountIntroduction(
            name=f"@{me.username}", hello=f"open {chat} and say hello", invitation=f"{chat}?start={{code}}"
        )

    # -- receiving ---------------------------------------------------------------------------------------------------

    async def listen(self, accept: AcceptMessage) -> None:
        webhook, secret = self._settings.webhook, self._settings.webhook_secret
        if webhook is not None and secret is not None:
            await self._serve_webhook(webhook, secret, accept)
        else:
            await self._poll_updates(accept)

    async def _serve_webhook(
        self, webhook: TelegramWebhookSettings, shared: SecretString, accept: AcceptMessage
    ) -> None:
        """Accept the updates that Telegram posts. Telegram gets 200 only after the commit; otherwise it posts the
        update again."""
        secret = shared.reveal().encode()

        def proof(headers: Mapping[str, str], body: bytes = b"") -> bool:
            given = headers.get("x-telegram-bot-api-secret-token", "").encode("latin-1", "replace")
            return hmac.compare_digest(given, secret)

        async def accept_body(body: bytes) -> None:
            try:
                raw = HTTPXRequest.parse_json_payload(body)
            except TelegramError:
                number = int.from_bytes(hashlib.sha256(body).digest()[:6])
                raw = {"update_id": number, "message": body.decode("utf-8", "replace")}
            await self._accept_update(raw, accept)

        async def announce() -> None:
            failures = 0
            while True:
                try:
                    await self._connect()
                    await self._bot.set_webhook(
                        webhook.url, secret_token=shared.reveal(), allowed_updates=parsing.ALLOWED_UPDATES
                    )
                    await self._register_commands()
                    self._account_context.report()
                    return
                except TelegramError as error:
                    failures += 1
                    await self._report_failure(error, failures)

        loop = asyncio.get_running_loop()
        port: asyncio.Future[int] = loop.create_future()
        path = urlsplit(webhook.url).path or "/"
        server = WebhookServer(path=path, proof=proof, head_proof=proof, accept_body=accept_body)
        serving = loop.create_task(server.serve(host=webhook.host, port=webhook.port, ready=port.set_result))
        try:
            either: list[asyncio.Future[Any]] = [serving, port]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if port.done():
                self.port = port.result()
                await announce()
            await serving
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    async def _poll_updates(self, accept: AcceptMessage) -> None:
        failures = 0
        offset: int | None = None
        heard_at = self._context.clock.monotonic()
        announced = False
        while True:
            try:
                if not announced:
                    await self._connect()
                    await self._bot.delete_webhook(drop_pending_updates=False)
                    await self._register_commands()
                    announced = True
                updates = await self._fetch_updates(offset)
            except TelegramError as error:
                failures += 1
                await self._report_failure(error, failures)
                continue
            self._account_context.report()
            failures = 0
            for raw in updates:
                # not the maximum: Telegram may start new numbers, and then lower numbers follow higher ones
                offset = await self._accept_update(raw, accept) or offset
            now = self._context.clock.monotonic()
            if updates:
                heard_at = now
            elif now - heard_at > OFFSET_EXPIRY_SECONDS:
                offset, heard_at = None, now

    async def _connect(self) -> None:
        if not self._ready:
            await self._bot.initialize()
            self._ready = True

    async def _register_commands(self) -> None:
        """Announce the commands in Telegram's menu."""
        commands = [BotCommand(name, help_text[:256]) for name, help_text in self._account_context.commands.items()]
        try:
            await self._bot.set_my_commands(commands[:MAX_COMMANDS])
        except TelegramError as error:
            self._log.warning(
                "command_menu.failed",
                error=telegram_errors.convert_error(error, what="a list of commands", token=self._token),
            )

    async def _fetch_updates(self, offset: int | None) -> list[Any]:
        self._polling.raw_updates = []
        await self._bot.get_updates(
            offset=offset, timeout=self._settings.poll_seconds, limit=100, allowed_updates=parsing.ALLOWED_UPDATES
        )
        return self._polling.raw_updates

    async def _report_failure(self, error: TelegramError, failures: int) -> None:
        """Report the failure and wait, longer each time. Raises if the token is invalid, because only the operator can
        fix that."""
        found = telegram_errors.convert_error(error, what="the bot", token=self._token)
        if isinstance(error, InvalidToken):
            raise found
        trouble = found.message if not isinstance(found, InDoubt) else f"Telegram does not answer: {found.message}"
        remedy = found.remedy or "no action needed: everhold tries again"
        self._account_context.report(trouble, remedy)
        wait = retry_delay_seconds(failures, jitter=self._account_context.chance.random()) or 300.0
        if isinstance(error, RetryAfter):
            wait = telegram_errors.get_retry_after_seconds(error)
        elif isinstance(error, Conflict):
            wait = max(wait, 10.0)  # two processes that poll one bot would take messages from each other
        await self._account_context.sleep(wait)

    async def _accept_update(self, raw: Any, accept: AcceptMessage) -> int:
        """Accept one update and return the next offset. Returns after the commit, so nothing is confirmed too early."""
        next_offset = _compute_next_offset(raw)
        heard = await self._parse_update(raw)
        if heard is not None:
            outcome = (await accept(heard)).outcome
            if outcome != "denied" and isinstance(raw, dict) and (press := find_id(raw, parsing.PRESS_UPDATE, "id")):
                await self._confirm_press(press)
        return next_offset

    async def _confirm_press(self, press: str) -> None:
        """End the animation of a button. Its command is stored, and is answered with a message."""
        try:
            await self._bot.answer_callback_query(press)
        except TelegramError as error:
            self._log.info(
                "command.unconfirmed",
                error=telegram_errors.convert_error(error, what="a press", token=self._token),
            )

    async def _parse_update(self, raw: Any) -> IncomingMessage | None:
        if isinstance(raw, dict) and not parsing.is_wanted_update(raw):
            return None
        try:
            update = Update.de_json(raw, self._bot)
            heard = parsing.parse_update(update, account=self.account, me=self._bot.bot)
            message = parsing.get_message(update)
            file = parsing.parse_file(message) if message is not None else None
            heard = check_incoming_message(heard) if heard is not None else None
        except PARSE_ERRORS as error:
            reason = f"{type(error).__name__}: {error}"
            self._log.warning("update.unparsed", error=reason)
            id = str(raw.get("update_id") if isinstance(raw, dict) else _compute_next_offset(raw))
            return build_unparsed_message(
                raw, platform=NAME, account=self.account, id=id, reason=reason, sent_by=parsing.find_sender(raw)
            )
        if message is not None and (moved := parsing.parse_migration(message)) is not None:
            await self._record_migration(*moved)
        if heard is None:
            return None
        await self._confirm_migration(heard)
        return heard if file is None else msgspec.structs.replace(heard, remote_files=(file,))

    async def _record_migration(self, old: str, new: str) -> None:
        """Store that a group has another id, if the configuration names the group. Strangers can make groups and add
        the bot, so the id of another group is stored only once somebody who may speak writes there."""
        if self._account_context.is_configured_chat(old) or self._account_context.is_configured_chat(new):
            await self._account_context.add_chat_alias(old, new)
            return
        self._unconfirmed_migrations[new] = old
        while len(self._unconfirmed_migrations) > MAX_UNCONFIRMED_MIGRATIONS:
            self._unconfirmed_migrations.popitem(last=False)

    async def _confirm_migration(self, heard: IncomingMessage) -> None:
        new = heard.origin.chat
        if new in self._unconfirmed_migrations and await self._account_context.can_speak(heard):
            await self._account_context.add_chat_alias(self._unconfirmed_migrations.pop(new), new)

    async def download(self, file: RemoteFile) -> bytes:
        await self._connect()
        most = self._account_context.max_file_bytes
        if file.size > most:
            raise Refused(f"it is larger than {most:,} bytes")
        for attempt in range(1, MAX_FETCH_ATTEMPTS + 1):
            try:
                found = await self._bot.get_file(file.reference)
                if not (found.file_path or "").startswith(self._files):
                    raise Refused("Telegram returned a path outside its file server")  # never open a local path
                if (found.file_size or 0) > most:
                    raise Refused(f"it is larger than {most:,} bytes")
                data = await self._bot.request.retrieve(found.file_path or "")
            except TelegramError as error:
                problem = telegram_errors.convert_error(error, what="the file", token=self._token)
                if isinstance(problem, Refused) or attempt == MAX_FETCH_ATTEMPTS:
                    raise Refused(problem.message) from error
                await self._account_context.sleep(getattr(problem, "retry_after", None) or float(attempt))
            else:
                if len(data) > most:
                    raise Refused(f"it is larger than {most:,} bytes")
                return bytes(data)
        raise AssertionError("the last attempt returns or raises")

    # -- sending -----------------------------------------------------------------------------------------------------

    async def send(self, out: OutgoingMessage) -> str:
        if out.file is not None:
            return await self._send_file(out, out.file)
        text = self._mark_notice(out)
        return await (self._finalize_draft(out, text) if out.edits else self._send_message(out, text))

    async def probe(self, out: OutgoingMessage) -> str | None:
        raise Refused("Telegram cannot tell what was sent")

    async def draft(self, out: OutgoingMessage) -> str:
        return await self._send_message(out, out.text)

    async def revise(self, remote: str, out: OutgoingMessage) -> None:
        await self._edit_message(out.to, remote, out.text)

    async def send_typing(self, to: ChatLocation) -> None:
        async with self._guard_call("typing", to):
            await self._bot.send_chat_action(_get_chat_id(to), "typing", message_thread_id=_parse_id(to.thread))

    def _mark_notice(self, out: OutgoingMessage) -> str:
        """Return the text. In a group a notice is marked, so that other bots do not answer it."""
        marked = (
            out.notice
            and out.to.chat.startswith("-")
            and count_units(out.text) + count_units(NOTICE_PREFIX) <= MAX_TEXT_UNITS
        )
        return NOTICE_PREFIX + out.text if marked else out.text

    def _format_text(self, text: str) -> tuple[str, list[MessageEntity]]:
        return format_markdown(text) if self._settings.format == "markdown" else (text, [])

    async def _finalize_draft(self, out: OutgoingMessage, text: str) -> str:
        """Replace a draft with the final text. A repeat changes nothing, so a lost answer leaves no doubt."""
        try:
            await self._edit_message(out.to, out.edits, text)
        except InDoubt as error:
            raise Transient(error.message) from error
        except TelegramMessageNotFound:
            return await self._send_message(out, text)
        return out.edits

    async def _edit_message(self, to: ChatLocation, remote: str, text: str) -> None:
        try:
            async with self._guard_call("an edit", to):
                plain, entities = self._format_text(text)
                await self._bot.edit_message_text(
                    plain, chat_id=_get_chat_id(to), message_id=int(remote), entities=entities
                )
        except Refused as error:
            cause = error.__cause__
            assert isinstance(cause, TelegramError | None)
            if isinstance(cause, ChatMigrated) or (
                cause is not None and telegram_errors.has_message_text(cause, *telegram_errors.MESSAGE_GONE_PHRASES)
            ):
                raise TelegramMessageNotFound(error.message) from cause
            if cause is None or not telegram_errors.has_message_text(cause, telegram_errors.NOT_MODIFIED):
                raise

    async def _send_message(self, out: OutgoingMessage, text: str) -> str:
        plain, entities = self._format_text(text)

        async def say(chat: int | str) -> Message:
            return await self._bot.send_message(
                chat,
                plain,
                entities=entities,
                message_thread_id=_parse_id(out.to.thread),
                reply_parameters=_build_reply_parameters(out.to),
                reply_markup=_build_buttons(out),
            )

        return await self._send_to_chat(out.to, "a message", say)

    async def _send_file(self, out: OutgoingMessage, file: Attachment) -> str:
        data = await load_outgoing_file(self._context, file, most=MAX_FILE_BYTES)
        thread, reply = _parse_id(out.to.thread), _build_reply_parameters(out.to)

        async def picture(chat: int | str) -> Message:
            shown = InputFile(data, filename=file.name or "picture")
            return await self._bot.send_photo(chat, shown, message_thread_id=thread, reply_parameters=reply)

        async def document(chat: int | str) -> Message:
            sent = InputFile(data, filename=file.name or "file")
            return await self._bot.send_document(chat, sent, message_thread_id=thread, reply_parameters=reply)

        if file.media in PHOTO_MEDIA_TYPES and len(data) <= MAX_PHOTO_BYTES:
            try:
                return await self._send_to_chat(out.to, "a picture", picture)
            except Refused as error:
                if not isinstance(error.__cause__, BadRequest):
                    raise
                # not acceptable as a photo, so send it as a document
        return await self._send_to_chat(out.to, "a file", document)

    async def _send_to_chat(self, to: ChatLocation, what: str, show: Callable[[int | str], Awaitable[Message]]) -> str:
        """Send something to a chat and return its id there."""
        async with self._guard_call(what, to):
            try:
                return str((await show(_get_chat_id(to))).message_id)
            except ChatMigrated as moved:
                await self._account_context.add_chat_alias(to.chat, str(moved.new_chat_id))
                return str((await show(moved.new_chat_id)).message_id)

    def _guard_call(self, what: str, to: ChatLocation) -> TelegramCallGuard:
        return TelegramCallGuard(self, what, to)


class TelegramMessageNotFound(Refused):
    """The message to edit no longer exists."""


class TelegramCallGuard:
    """Guard a call for a chat: respect Telegram's rate limit, and convert its errors to ours."""

    def __init__(self, telegram: TelegramPlatform, what: str, to: ChatLocation) -> None:
        self._telegram = telegram
        self._what = what
        self._chat = to.chat

    async def __aenter__(self) -> None:
        telegram = self._telegram
        left = telegram._rate_limited_until.get(self._chat, 0.0) - telegram._context.clock.monotonic()
        if left > 0:
            raise Transient(f"Telegram limits this chat for another {left:.0f} s", retry_after=left)
        telegram._rate_limited_until.pop(self._chat, None)
        try:
            await telegram._connect()
        except TelegramError as error:
            problem = telegram_errors.convert_error(error, what="the bot", token=telegram._token)
            # the request was not sent
            raise Transient(problem.message, remedy=problem.remedy) from error

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, TelegramError):
            return
        telegram = self._telegram
        problem = telegram_errors.convert_error(error, what=self._what, token=telegram._token)
        if isinstance(problem, Transient) and problem.retry_after is not None:
            telegram._rate_limited_until[self._chat] = telegram._context.clock.monotonic() + problem.retry_after
        raise problem from error


def _compute_next_offset(raw: Any) -> int:
    """Return the offset that confirms an update. An update without a number is confirmed by the next one."""
    id = raw.get("update_id") if isinstance(raw, dict) else None
    return id + 1 if isinstance(id, int) and not isinstance(id, bool) else 0


def _get_chat_id(to: ChatLocation) -> int | str:
    return _parse_id(to.chat) or to.chat


def _parse_id(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def _build_buttons(out: OutgoingMessage) -> InlineKeyboardMarkup | None:
    """Return the buttons of a message. One whose command is too long for Telegram is left out."""
    row = [
        InlineKeyboardButton(it.label, callback_data=it.command)
        for it in out.choices
        if len(it.command.encode()) <= MAX_BUTTON_BYTES
    ]
    return InlineKeyboardMarkup([row]) if row else None


def _build_reply_parameters(to: ChatLocation) -> ReplyParameters | None:
    """Return the reply parameters. In a group a reply refers to its message; in a direct chat it does not."""
    id = _parse_id(to.message)
    if id is None or not to.chat.startswith("-"):
        return None
    return ReplyParameters(message_id=id, allow_sending_without_reply=True)
