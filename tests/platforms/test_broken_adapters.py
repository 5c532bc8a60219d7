"""The contract can fail: each adapter here has one fault that adapters really have, and one promise finds it."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from telegram.error import TelegramError

from everhold.core.entries import Attachment, ChatLocation
from everhold.errors import InDoubt, Refused, TooLong, Transient
from everhold.platforms.telegram.adapter import TelegramPlatform
from everhold.ports.platform import AcceptMessage, IncomingMessage, OutgoingMessage
from everhold.testing.contracts.platform import PlatformContract, RemotePlatform
from tests.platforms.remote_telegram import open_remote_telegram


class ConfirmsFirst(TelegramPlatform):
    """Confirms what it was told, then hands it over: what stock receive loops do."""

    async def _accept_update(self, raw: Any, accept: AcceptMessage) -> int:
        await self._bot.get_updates(offset=raw["update_id"] + 1, timeout=0)
        return await super()._accept_update(raw, accept)


class StartsAfresh(TelegramPlatform):
    """Throws away what was written while it was down."""

    async def _connect(self) -> None:
        if not self._ready:
            await super()._connect()
            await self._bot.delete_webhook(drop_pending_updates=True)


class Altered(TelegramPlatform):
    """Hands over something else than what it read."""

    def alter(self, heard: IncomingMessage) -> IncomingMessage:
        return heard

    async def _parse_update(self, raw: Any) -> IncomingMessage | None:
        heard = await super()._parse_update(raw)
        return None if heard is None else self.alter(heard)


class EditsAreOne(Altered):
    def alter(self, heard: IncomingMessage) -> IncomingMessage:
        return msgspec.structs.replace(heard, revision="", event="message")


class ForgetsIds(Altered):
    def alter(self, heard: IncomingMessage) -> IncomingMessage:
        return msgspec.structs.replace(heard, origin=msgspec.structs.replace(heard.origin, message=""))


class GoesByNames(Altered):
    def alter(self, heard: IncomingMessage) -> IncomingMessage:
        return msgspec.structs.replace(heard, sender=heard.name)


class TakesAllForItself(Altered):
    def alter(self, heard: IncomingMessage) -> IncomingMessage:
        return msgspec.structs.replace(heard, addressed=True)


class BelievesPaths(Altered):
    def alter(self, heard: IncomingMessage) -> IncomingMessage:
        files = tuple(msgspec.structs.replace(it, name=f"../{it.name}") for it in heard.attachments)
        return msgspec.structs.replace(heard, attachments=files)


class ChokesOnCharacters(Altered):
    def alter(self, heard: IncomingMessage) -> IncomingMessage:
        heard.text.encode()
        return heard


class DropsFiles(Altered):
    def alter(self, heard: IncomingMessage) -> IncomingMessage:
        return msgspec.structs.replace(heard, attachments=(), files=())


class StopsAtPoison(TelegramPlatform):
    async def _parse_update(self, raw: Any) -> IncomingMessage | None:
        heard = await super()._parse_update(raw)
        if heard is not None and heard.origin.chat == "unreadable":
            raise ValueError("what is this?")
        return heard


class SkipsPoison(TelegramPlatform):
    async def _parse_update(self, raw: Any) -> IncomingMessage | None:
        heard = await super()._parse_update(raw)
        return None if heard is not None and heard.origin.chat == "unreadable" else heard


class ChokesOnNews(TelegramPlatform):
    async def _parse_update(self, raw: Any) -> IncomingMessage | None:
        if not {"message", "edited_message"} & set(raw):
            raise KeyError("message")
        return await super()._parse_update(raw)


class Hammers(TelegramPlatform):
    async def _report_failure(self, error: TelegramError, failures: int) -> None:
        self._account_context.report("trouble")
        await self._account_context.sleep(5.0)


class SuffersInSilence(TelegramPlatform):
    async def _report_failure(self, error: TelegramError, failures: int) -> None:
        await self._account_context.sleep(60.0)


class NeverWell(TelegramPlatform):
    async def _fetch_updates(self, offset: int | None) -> list[Any]:
        self._account_context = msgspec.structs.replace(
            self._account_context, report=lambda trouble="", remedy="": None
        )
        return await super()._fetch_updates(offset)


class CallsItDone(TelegramPlatform):
    async def send(self, out: OutgoingMessage) -> str:
        try:
            return await super().send(out)
        except (InDoubt, Transient):
            return ""


class CallsItUnsent(TelegramPlatform):
    async def send(self, out: OutgoingMessage) -> str:
        try:
            return await super().send(out)
        except InDoubt as error:
            raise Transient(error.message) from error


class Impatient(TelegramPlatform):
    async def send(self, out: OutgoingMessage) -> str:
        try:
            return await super().send(out)
        except Transient as error:
            raise Transient(error.message, retry_after=1.0) from error


class CutsShort(TelegramPlatform):
    async def send(self, out: OutgoingMessage) -> str:
        return await super().send(msgspec.structs.replace(out, text=out.text[: self.text_limit]))


class NeverGivesUp(TelegramPlatform):
    async def send(self, out: OutgoingMessage) -> str:
        try:
            return await super().send(out)
        except Refused as error:
            raise Transient(error.message) from error


class OneAtATime(TelegramPlatform):
    def __init__(self, settings: Any, context: Any) -> None:
        super().__init__(settings, context)
        self.line = asyncio.Lock()

    async def send(self, out: OutgoingMessage) -> str:
        async with self.line:
            return await super().send(out)


class SaysItTwice(TelegramPlatform):
    async def _finalize_draft(self, out: OutgoingMessage, text: str) -> str:
        return await self._send_message(out, text)


class LeavesFilesBehind(TelegramPlatform):
    async def _send_file(self, out: OutgoingMessage, file: Attachment) -> str:
        return await self._send_message(out, file.name)


class OpensPaths(TelegramPlatform):
    async def _send_file(self, out: OutgoingMessage, file: Attachment) -> str:
        return await self._send_message(out, f"what is in {file.name}")


class TakesTooMuchForLost(TelegramPlatform):
    async def _send_file(self, out: OutgoingMessage, file: Attachment) -> str:
        try:
            return await super()._send_file(out, file)
        except TooLong as error:
            raise InDoubt(error.message) from error


class BelievesInFiles(TelegramPlatform):
    async def _send_file(self, out: OutgoingMessage, file: Attachment) -> str:
        try:
            return await super()._send_file(out, file)
        except InDoubt as error:
            raise Transient(error.message) from error


class CannotType(TelegramPlatform):
    async def send_typing(self, to: ChatLocation) -> None:
        raise InDoubt("typing is not for me")


BROKEN = [
    (ConfirmsFirst, "nothing_is_confirmed_before_it_is_kept"),
    (StartsAfresh, "what_was_written_while_nobody_listened_is_heard"),
    (EditsAreOne, "an_edit_is_heard_as_a_new_one_and_once"),
    (ForgetsIds, "what_was_kept_and_not_confirmed_is_not_heard_twice"),
    (ForgetsIds, "what_arrives_again_and_in_any_order_is_heard_once"),
    (GoesByNames, "what_is_written_is_heard_once_and_in_order"),
    (GoesByNames, "whoever_takes_a_name_is_not_whose_name_it_was"),
    (TakesAllForItself, "in_a_group_it_is_told_what_is_meant_for_the_agent"),
    (BelievesPaths, "a_file_is_kept_by_what_is_in_it_and_its_name_is_no_path"),
    (DropsFiles, "a_file_that_is_too_large_is_named_and_left"),
    (OpensPaths, "a_file_that_is_not_kept_is_looked_for_nowhere_else"),
    (TakesTooMuchForLost, "a_file_that_is_too_large_there_is_refused_as_such"),
    (BelievesInFiles, "a_lost_answer_about_a_file_is_no_answer"),
    (LeavesFilesBehind, "a_picture_goes_out_as_it_is"),
    (ChokesOnCharacters, "odd_characters_harm_nobody"),
    (StopsAtPoison, "what_nobody_can_read_is_kept_and_its_neighbours_are_heard"),
    (SkipsPoison, "what_nobody_can_read_is_kept_and_its_neighbours_are_heard"),
    (ChokesOnNews, "kinds_that_nobody_has_heard_of_are_passed_by"),
    (Hammers, "an_hour_without_a_connection_loses_nothing"),
    (SuffersInSilence, "an_hour_without_a_connection_loses_nothing"),
    (SuffersInSilence, "two_that_listen_to_one_account_lose_nothing_and_say_so_where_they_can_know"),
    (StopsAtPoison, "bytes_that_are_no_text_keep_nothing_from_being_heard"),
    (NeverWell, "a_connection_that_stands_is_reported"),
    (CallsItDone, "a_lost_answer_is_no_answer"),
    (CallsItUnsent, "a_lost_answer_is_no_answer"),
    (CallsItDone, "a_request_that_was_lost_is_never_taken_for_done"),
    (CallsItDone, "an_error_of_theirs_is_never_taken_for_done"),
    (CallsItDone, "who_cannot_be_reached_was_not_sent_to"),
    (Impatient, "a_wait_that_is_asked_for_is_passed_on"),
    (CutsShort, "a_text_at_the_limit_is_shown_whole_and_a_longer_one_is_refused"),
    (NeverGivesUp, "a_chat_that_is_gone_is_given_up"),
    (OneAtATime, "a_slow_chat_keeps_no_other_waiting"),
    (SaysItTwice, "the_final_text_takes_the_draft_s_place"),
    (LeavesFilesBehind, "a_file_goes_out_with_its_message"),
    (CannotType, "typing_is_shown"),
]


@pytest.mark.parametrize("adapter, promise", BROKEN, ids=lambda it: it if isinstance(it, str) else it.__name__)
def test_a_broken_adapter_is_found(adapter: type[TelegramPlatform], promise: str, tmp_path: Path) -> None:
    class Broken(PlatformContract):
        patience = 1.0

        def open_remote(self) -> AbstractAsyncContextManager[RemotePlatform]:
            return open_remote_telegram(adapter)

    with pytest.raises((AssertionError, ValueError, KeyError, TimeoutError, InDoubt)):
        getattr(Broken(), f"test_{promise}")(tmp_path)


def test_every_promise_has_somebody_who_breaks_it() -> None:
    promises = {name.removeprefix("test_") for name in vars(PlatformContract) if name.startswith("test_")}
    # a text that is shown is shown: nobody was found who gets that wrong and anything else right
    assert promises - {promise for _, promise in BROKEN} == {"what_is_said_is_shown_once"}
