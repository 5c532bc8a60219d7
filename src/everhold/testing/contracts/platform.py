"""The promises of every chat platform, as a test suite. An adapter's tests provide the remote platform.

class TestMyPlatform(PlatformContract):
    @asynccontextmanager
    async def open_remote(self) -> AsyncIterator[RemotePlatform]:
        async with MyServer() as server:
            yield RemoteMyPlatform(server)

The remote platform is a real server, or a fake with state that the vendor's own client calls.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from everhold.core.attachments import build_attachment
from everhold.core.entries import Attachment
from everhold.errors import InDoubt, Refused, TooLong, Transient
from everhold.ports.platform import DeliveryGuarantee, OutgoingMessage, SupportsClose, SupportsDrafts, SupportsTyping
from everhold.ports.store import StateNamespace
from everhold.testing.contracts.platform_harness import (
    HOUR_SECONDS,
    PATIENCE_SECONDS,
    PlatformHarness,
    RemoteHistory,
    RemotePlatform,
    ShownMessage,
)

__all__ = ["PlatformContract", "PlatformHarness", "RemotePlatform", "ShownMessage"]


PNG_BYTES: Final = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154789c63606060000000040001f61738550000000049454e44ae426082"
)
"""A black pixel as a PNG."""


class PlatformSuite(Protocol):
    patience: float

    def open_remote(self) -> AbstractAsyncContextManager[RemotePlatform]: ...


def platform_promise(
    *needs: str,
) -> Callable[[Callable[[Any, PlatformHarness], Awaitable[None]]], Callable[[Any, Path], None]]:
    """Mark a promise of platforms that offer all of `needs`. Each test gets its own remote platform and harness."""

    def mark(test: Callable[[Any, PlatformHarness], Awaitable[None]]) -> Callable[[Any, Path], None]:
        def run(self: PlatformSuite, tmp_path: Path) -> None:
            async def play() -> None:
                async with self.open_remote() as remote:
                    if missing := set(needs) - remote.offers:
                        pytest.skip(f"{remote.platform} has no {', '.join(sorted(missing))}")
                    harness = PlatformHarness(remote, tmp_path, patience=self.patience)
                    try:
                        await test(self, harness)
                        assert await harness.store.verify() == []
                    finally:
                        await harness.close()

            asyncio.run(play())

        functools.update_wrapper(run, test)
        del run.__dict__["__wrapped__"]  # pytest would use the inner test's signature
        return run

    return mark


class PlatformContract:
    patience = PATIENCE_SECONDS

    def open_remote(self) -> AbstractAsyncContextManager[RemotePlatform]:
        """Open a new remote platform for one test."""
        raise NotImplementedError

    # -- receiving

    @platform_promise()
    async def test_messages_are_heard_once_and_in_order(self, harness: PlatformHarness) -> None:
        harness.start()
        for number in range(5):
            await harness.remote.write(f"hello {number}", to=harness.remote.chat)
        await harness.wait_until_heard("hello 4")
        assert await harness.read_texts() == [f"hello {number}" for number in range(5)]
        first = (await harness.read_heard())[0]
        assert (first.origin.platform, first.origin.account) == (harness.remote.platform, "main")
        assert first.origin.chat == harness.remote.chat
        assert first.stamp.person == harness.remote.sender, "a sender is a stable id"
        assert ":dm:" in first.stamp.address
        assert first.asks

    @platform_promise()
    async def test_a_working_connection_is_reported(self, harness: PlatformHarness) -> None:
        harness.start()
        await harness.remote.write("hello", to=harness.remote.chat)
        await harness.wait_until_heard("hello")
        assert harness.healthy_reports, "the working connection was not reported"

    @platform_promise()
    async def test_messages_written_while_it_was_down_are_heard(self, harness: PlatformHarness) -> None:
        harness.start()
        await harness.remote.write("before", to=harness.remote.chat)
        await harness.wait_until_heard("before")
        await harness.stop()
        for number in range(3):
            await harness.remote.write(f"meanwhile {number}", to=harness.remote.chat)
        await harness.restart()
        await harness.wait_until_heard("meanwhile 2")
        assert await harness.read_texts() == ["before", "meanwhile 0", "meanwhile 1", "meanwhile 2"]

    @platform_promise("history")
    async def test_missed_messages_are_heard_before_newer_ones_in_each_chat(self, harness: PlatformHarness) -> None:
        remote, history = harness.remote, harness.remote
        assert isinstance(history, RemoteHistory)
        chats = [remote.chat, remote.group, *await history.open_chats(4)]
        written: dict[str, list[str]] = {chat: [] for chat in chats}
        ids: dict[str, str] = {}

        async def write_everywhere(count: int) -> None:
            for _ in range(count):
                for chat in chats:
                    text = f"{chat} {len(written[chat])}"
                    written[chat].append(text)
                    ids[chat] = await remote.write(text, to=chat)

        async def wait_until_all_are_heard() -> None:
            await harness.wait_until_heard(*(text for texts in written.values() for text in texts))

        harness.start()
        await write_everywhere(1)
        await wait_until_all_are_heard()
        for number, dies_at in enumerate(("", "before", "after", "after")):
            await harness.stop()
            await write_everywhere(3)
            history.hang_history()
            await harness.restart()
            await harness.run_within_patience(history.wait_for_history())
            await write_everywhere(2)
            for message in range(3):  # meanwhile the adapter receives the new messages
                place = harness.make_location(message=ids[remote.chat])
                outgoing = harness.make_outgoing("on the way", key=f"s:{number}:{message}", to=place)
                await harness.run_within_patience(harness.platform.send(outgoing))
            harness.dies_at = dies_at
            history.release_history()
            if dies_at:
                await harness.wait_until_killed()
                await write_everywhere(1)
                await harness.restart()
            await wait_until_all_are_heard()
        heard = [(body.origin.chat, body.text) for body in await harness.read_heard()]
        assert {chat: [text for where, text in heard if where == chat] for chat in chats} == written

    @platform_promise()
    async def test_nothing_is_confirmed_before_the_commit(self, harness: PlatformHarness) -> None:
        harness.dies_at = "before"
        harness.start()
        await harness.remote.write("one", to=harness.remote.chat)
        await harness.remote.write("two", to=harness.remote.chat)
        await harness.wait_until_killed()
        assert await harness.read_texts() == []
        await harness.restart()
        await harness.wait_until_heard("two")
        assert await harness.read_texts() == ["one", "two"]

    @platform_promise()
    async def test_a_committed_message_that_was_not_confirmed_is_heard_once(self, harness: PlatformHarness) -> None:
        harness.dies_at = "after"
        harness.start()
        await harness.remote.write("one", to=harness.remote.chat)
        await harness.wait_until_killed()
        await harness.restart()
        await harness.remote.write("two", to=harness.remote.chat)
        await harness.wait_until_heard("two")
        assert await harness.read_texts() == ["one", "two"]

    @platform_promise("redelivery")
    async def test_redelivered_messages_are_heard_once(self, harness: PlatformHarness) -> None:
        harness.start()
        for number in range(6):
            await harness.remote.write(f"hello {number}", to=harness.remote.chat)
        await harness.wait_until_heard("hello 5")
        await harness.remote.redeliver(random.Random(7))
        await harness.remote.write("after all", to=harness.remote.chat)
        await harness.wait_until_heard("after all")
        assert await harness.read_texts() == [*(f"hello {number}" for number in range(6)), "after all"]

    @platform_promise("edits")
    async def test_an_edit_is_heard_as_a_new_message_and_once(self, harness: PlatformHarness) -> None:
        harness.start()
        id = await harness.remote.write("helo", to=harness.remote.chat)
        await harness.wait_until_heard("helo")
        await harness.remote.edit(id, "hello", to=harness.remote.chat)
        await harness.remote.edit(id, "hello!", to=harness.remote.chat)
        await harness.wait_until_heard("hello!")
        if "redelivery" in harness.remote.offers:
            await harness.remote.redeliver(random.Random(3))
        await harness.remote.write("done", to=harness.remote.chat)
        await harness.wait_until_heard("done")
        assert await harness.read_texts() == ["helo", "hello", "hello!", "done"]
        edited = (await harness.read_heard())[1]
        assert edited.origin.message == id
        assert edited.revision

    @platform_promise("poison")
    async def test_an_unparsable_update_is_stored_and_the_others_are_heard(self, harness: PlatformHarness) -> None:
        await harness.remote.write("before", to=harness.remote.chat)
        await harness.remote.send_unparsable_update()
        await harness.remote.write("behind", to=harness.remote.chat)
        harness.start()
        await harness.wait_until_heard("before", "behind")
        kept = [body for body in await harness.read_heard() if body.text not in ("before", "behind")]
        assert len(kept) == 1, "the update is stored unparsed"
        assert not kept[0].asks
        await harness.restart()
        await harness.remote.write("later", to=harness.remote.chat)
        await harness.wait_until_heard("later")
        assert len(await harness.read_heard()) == 4, "the update was read again"

    @platform_promise("poison")
    async def test_an_unparsable_update_of_a_denied_sender_is_not_stored(self, harness: PlatformHarness) -> None:
        harness.denied.add(harness.remote.sender)
        await harness.remote.send_unparsable_update()
        harness.start()

        async def met() -> bool:
            return bool(harness.results)

        await harness.wait_until(met, what="the update")
        assert [result.outcome for result in harness.results] == ["denied"]
        assert await harness.read_heard() == []

    @platform_promise()
    async def test_a_denied_sender_causes_no_calls(self, harness: PlatformHarness) -> None:
        remote = harness.remote
        harness.denied.add(remote.sender)
        harness.start()
        for place in (remote.chat, remote.group) if "groups" in remote.offers else (remote.chat,):
            known = len(harness.results)
            id = await remote.write("let me in", to=place)
            await remote.reply("and me", to=place, id=id)

            async def both_denied(known: int = known) -> bool:
                return len(harness.results) >= known + 2

            await harness.wait_until(both_denied, what="two messages of a denied sender")
        assert {result.outcome for result in harness.results} == {"denied"}
        assert remote.list_calls() == [], "a stranger made the adapter call the platform"

    @platform_promise()
    async def test_nothing_of_a_denied_sender_is_stored(self, harness: PlatformHarness) -> None:
        """Only the position in the stream of updates is, because the platform must not send them again. The chat of
        somebody who could speak before may stay known."""
        remote = harness.remote
        harness.denied.add(remote.sender)
        harness.start()

        async def is_connected() -> bool:
            return harness.healthy_reports > 0

        await harness.wait_until(is_connected, what="a connection")
        known = await _list_offsets(harness, remote.chat)
        id = await remote.write("let me in", to=remote.chat)
        await remote.reply("and me", to=remote.chat, id=id)
        count = 2
        if "files" in remote.offers:
            await remote.attach("look", "secret.txt", b"content", to=remote.chat)
            count += 1
        if "poison" in remote.offers:
            await remote.send_unparsable_update()
            count += 1
        if "groups" in remote.offers:
            await remote.mention("and here", to=remote.group)
            count += 1
        await harness.wait_until_results(count)
        await harness.stop()
        assert {result.outcome for result in harness.results} == {"denied"}
        assert harness.downloads == []
        assert harness.chat_moves == []
        assert await harness.store.list_sessions() == []
        for namespace in StateNamespace:
            if namespace is not StateNamespace.PLATFORM_OFFSET:
                assert await harness.store.list_state_records(namespace) == []
        assert known or not await _list_offsets(harness, remote.chat), "a stranger's chat is stored"

    @platform_promise()
    async def test_unknown_kinds_of_updates_are_skipped(self, harness: PlatformHarness) -> None:
        harness.start()
        await harness.remote.write("before", to=harness.remote.chat)
        await harness.remote.send_unknown_update()
        await harness.remote.write("behind", to=harness.remote.chat)
        await harness.wait_until_heard("behind")
        assert [text for text in await harness.read_texts() if text in ("before", "behind")] == ["before", "behind"]

    @platform_promise()
    async def test_unusual_characters_are_heard(self, harness: PlatformHarness) -> None:
        harness.start()
        odd = [
            "NUL \x00 inside",
            "\u202eright to left",
            "zero\u200bwidth",
            "😀" * 500,
            "a\u0301 combined",
            "lone \ud83d half",
        ]
        for text in odd:
            await harness.remote.write(text, to=harness.remote.chat)
        await harness.remote.write("the end", to=harness.remote.chat)
        await harness.wait_until_heard("the end")
        heard = await harness.read_texts()
        assert len(heard) == len(odd) + 1
        assert heard[3] == "😀" * 500

    @platform_promise()
    async def test_invalid_utf8_does_not_stop_other_messages(self, harness: PlatformHarness) -> None:
        harness.start()
        await harness.remote.write("before", to=harness.remote.chat)
        await harness.wait_until_heard("before")
        await harness.remote.send_invalid_utf8()
        await harness.remote.write("behind", to=harness.remote.chat)
        await harness.wait_until_heard("behind")
        assert [text for text in await harness.read_texts() if text in ("before", "behind")] == ["before", "behind"]

    @platform_promise()
    async def test_an_hour_without_a_connection_loses_nothing(self, harness: PlatformHarness) -> None:
        harness.start()
        await harness.remote.write("before", to=harness.remote.chat)
        await harness.wait_until_heard("before")
        harness.remote.disconnect()
        harness.sleeps.clear()

        async def an_hour_passed() -> bool:
            return sum(harness.sleeps) >= HOUR_SECONDS

        await harness.wait_until(an_hour_passed, what="an hour of waiting to connect")
        assert len(harness.sleeps) < 600, "it tries to connect too often"
        assert harness.troubles, "the failure was not reported"
        harness.remote.reconnect()
        for number in range(3):
            await harness.remote.write(f"meanwhile {number}", to=harness.remote.chat)
        await harness.wait_until_heard("meanwhile 2")
        assert await harness.read_texts() == ["before", *(f"meanwhile {number}" for number in range(3))]

    @platform_promise()
    async def test_two_listeners_of_one_account_lose_nothing_and_report_it(self, harness: PlatformHarness) -> None:
        harness.start()
        await harness.remote.write("before", to=harness.remote.chat)
        await harness.wait_until_heard("before")
        rival = harness.remote.build_adapter(harness.make_context())
        listening = asyncio.get_running_loop().create_task(rival.listen(harness._accept))

        async def noticed() -> bool:
            return bool(harness.troubles)

        try:
            if "rivals" in harness.remote.offers:
                await harness.wait_until(noticed, what="one listener noticing the other")
            await harness.remote.write("between", to=harness.remote.chat)
            await harness.wait_until_heard("between")
        finally:
            await _drain_loop(listening)
            if isinstance(rival, SupportsClose):
                await rival.aclose()
        assert await harness.read_texts() == ["before", "between"]

    @platform_promise("groups")
    async def test_in_a_group_a_mention_addresses_the_agent(self, harness: PlatformHarness) -> None:
        harness.start()
        await harness.remote.write("just talking", to=harness.remote.group)
        await harness.remote.mention("what do you think?", to=harness.remote.group)

        async def met() -> bool:
            return any("what do you think?" in text for text in await harness.read_texts())

        await harness.wait_until(met, what="hearing a mention")
        by_text = {body.text: body for body in await harness.read_heard()}
        meant = next(body for text, body in by_text.items() if "what do you think?" in text)
        assert meant.asks
        assert meant.origin.chat == harness.remote.group
        assert ":dm:" not in meant.stamp.address
        assert not any(body.asks for text, body in by_text.items() if text == "just talking")

    @platform_promise("groups")
    async def test_a_person_with_the_same_name_is_another_person(self, harness: PlatformHarness) -> None:
        harness.start()
        await harness.remote.write("it is me", to=harness.remote.group)
        await harness.remote.write_as_impostor("no, I am", to=harness.remote.group)
        await harness.wait_until_heard("it is me", "no, I am")
        persons = {body.text: body.stamp.person for body in await harness.read_heard()}
        assert persons["it is me"] == harness.remote.sender
        assert persons["no, I am"] != harness.remote.sender, "the sender was identified by name"

    # -- sending

    @platform_promise()
    async def test_a_sent_message_is_shown_once(self, harness: PlatformHarness) -> None:
        remote = await harness.run_within_patience(harness.platform.send(harness.make_outgoing("hello there")))
        (seen,) = harness.remote.list_shown(harness.remote.chat)
        assert (seen.text, seen.id) == ("hello there", remote)

    @platform_promise()
    async def test_a_text_at_the_limit_is_shown_whole_and_a_longer_one_is_refused(
        self, harness: PlatformHarness
    ) -> None:
        limit = harness.platform.text_limit
        await harness.run_within_patience(harness.platform.send(harness.make_outgoing("x" * limit)))
        (seen,) = harness.remote.list_shown(harness.remote.chat)
        assert seen.text == "x" * limit
        try:
            await harness.run_within_patience(
                harness.platform.send(harness.make_outgoing("y" * (limit * 12), key="s:2:0"))
            )
        except Refused:
            pass
        else:
            raise AssertionError("a text that does not fit was not refused")
        assert len(harness.remote.list_shown(harness.remote.chat)) == 1, "a part of it was shown"

    @platform_promise()
    async def test_a_lost_answer_is_reported_as_in_doubt(self, harness: PlatformHarness) -> None:
        harness.remote.fail_next_send("drop after")
        out = harness.make_outgoing("did it arrive?")
        error = await self._send_failure(harness, out)
        assert len(harness.remote.list_shown(harness.remote.chat)) == 1, "the platform carried it out"
        match harness.platform.delivery:
            case DeliveryGuarantee.KEYED | DeliveryGuarantee.UPSERT:
                assert isinstance(error, InDoubt | Transient)
                await harness.run_within_patience(harness.platform.send(out))
                assert len(harness.remote.list_shown(harness.remote.chat)) == 1, "the key is not recognised"
            case DeliveryGuarantee.PROBE:
                assert isinstance(error, InDoubt), "it may have arrived, and InDoubt was not raised"
                await asyncio.sleep(harness.platform.visible_after)
                assert (
                    await harness.run_within_patience(harness.platform.probe(out))
                    == harness.remote.list_shown(harness.remote.chat)[0].id
                )
                other = harness.make_outgoing("never sent", key="s:9:0")
                assert await harness.run_within_patience(harness.platform.probe(other)) is None
            case _:
                assert isinstance(error, InDoubt), "it may have arrived, and InDoubt was not raised"

    @platform_promise()
    async def test_a_lost_request_is_never_reported_as_sent(self, harness: PlatformHarness) -> None:
        harness.remote.fail_next_send("drop before")
        error = await self._send_failure(harness, harness.make_outgoing("hello"))
        assert isinstance(error, Transient | InDoubt)
        assert harness.remote.list_shown(harness.remote.chat) == []

    @platform_promise()
    async def test_a_server_error_is_never_reported_as_sent(self, harness: PlatformHarness) -> None:
        harness.remote.fail_next_send("broken")
        assert isinstance(await self._send_failure(harness, harness.make_outgoing("hello")), Transient | InDoubt)

    @platform_promise()
    async def test_an_unreachable_platform_is_never_reported_as_sent(self, harness: PlatformHarness) -> None:
        await harness.run_within_patience(harness.platform.send(harness.make_outgoing("connect")))
        harness.remote.disconnect()
        error = await self._send_failure(harness, harness.make_outgoing("hello", key="s:2:0"))
        assert isinstance(error, Transient | InDoubt)
        harness.remote.reconnect()
        assert [seen.text for seen in harness.remote.list_shown(harness.remote.chat)] == ["connect"]

    @platform_promise()
    async def test_a_requested_wait_is_passed_on(self, harness: PlatformHarness) -> None:
        harness.remote.fail_next_send("limit")
        error = await self._send_failure(harness, harness.make_outgoing("hello"))
        assert isinstance(error, Transient), "it is known not to be done"
        assert error.retry_after is not None
        assert 6 <= error.retry_after <= 8, "the requested wait was changed"
        assert harness.remote.list_shown(harness.remote.chat) == []

    @platform_promise()
    async def test_a_deleted_chat_is_refused(self, harness: PlatformHarness) -> None:
        harness.remote.fail_next_send("dead")
        assert isinstance(await self._send_failure(harness, harness.make_outgoing("hello")), Refused)

    @platform_promise()
    async def test_a_slow_send_does_not_delay_others(self, harness: PlatformHarness) -> None:
        await harness.run_within_patience(harness.platform.send(harness.make_outgoing("connect")))
        harness.remote.fail_next_send("hang")
        loop = asyncio.get_running_loop()
        both = {
            loop.create_task(harness.platform.send(harness.make_outgoing(f"to {n}", key=f"s:{n}:0"))): f"to {n}"
            for n in (2, 3)
        }
        try:
            done, _ = await asyncio.wait(both, timeout=harness.patience, return_when=asyncio.FIRST_COMPLETED)
            assert done, "one send hangs, and the other waits for it"
            arrived = [both[task] for task in done if task.result()]
            assert arrived == [seen.text for seen in harness.remote.list_shown(harness.remote.chat)][1:]
        finally:
            await _drain_loop(*both)

    @platform_promise("drafts")
    async def test_the_final_text_replaces_the_draft(self, harness: PlatformHarness) -> None:
        assert isinstance(harness.platform, SupportsDrafts)
        remote = await harness.run_within_patience(
            harness.platform.draft(harness.make_outgoing("I th …", key="s:1:draft"))
        )
        await harness.run_within_patience(
            harness.platform.revise(remote, harness.make_outgoing("I think th …", key="s:1:draft"))
        )
        await harness.run_within_patience(harness.platform.send(harness.make_outgoing("I think that", edits=remote)))
        await harness.run_within_patience(harness.platform.send(harness.make_outgoing("I think that", edits=remote)))
        assert [seen.text for seen in harness.remote.list_shown(harness.remote.chat)] == ["I think that"]

    @platform_promise("typing")
    async def test_typing_is_shown(self, harness: PlatformHarness) -> None:
        assert isinstance(harness.platform, SupportsTyping)
        await harness.run_within_patience(harness.platform.send_typing(harness.make_location()))

    # -- files

    @platform_promise("files")
    async def test_a_file_is_stored_by_content_and_its_name_is_not_a_path(self, harness: PlatformHarness) -> None:
        harness.start()
        await harness.remote.attach("look", "../../etc/passwd", b"some bytes", to=harness.remote.chat)
        await harness.wait_until_heard("look")
        (body,) = await harness.read_heard()
        (file,) = body.attachments
        assert (file.name, file.size) == ("passwd", 10)
        assert file.blob == build_attachment(b"some bytes").blob
        assert await harness.store.get_blob(file.blob) == b"some bytes"

    @platform_promise("files")
    async def test_a_file_that_is_too_large_is_named_and_not_stored(self, harness: PlatformHarness) -> None:
        harness.start()
        await harness.remote.attach("huge", "huge.bin", b"x" * 150_000, to=harness.remote.chat)
        await harness.remote.write("next", to=harness.remote.chat)
        await harness.wait_until_heard("next")
        body = (await harness.read_heard())[0]
        assert body.text.startswith("huge")
        (file,) = body.attachments
        assert (file.blob, file.name) == ("", "huge.bin")

    @platform_promise("files", "groups")
    async def test_a_hanging_file_delays_only_its_own_chat_and_keeps_the_order(self, harness: PlatformHarness) -> None:
        harness.start()
        harness.remote.hang_files()
        await harness.remote.attach("look", "a.txt", b"some bytes", to=harness.remote.chat)
        await harness.remote.write("and this", to=harness.remote.chat)
        await harness.remote.write("elsewhere", to=harness.remote.group)
        await harness.wait_until_heard("elsewhere")

        async def both_held() -> bool:
            return harness.held_messages.count() == 2

        await harness.wait_until(both_held, what="two held messages")
        assert await harness.read_texts() == ["elsewhere"]
        harness.remote.release_files()
        await harness.wait_until_heard("and this")
        assert await harness.read_texts() == ["elsewhere", "look", "and this"]
        assert [len(body.attachments) for body in await harness.read_heard()] == [0, 1, 0]
        assert await harness.store.list_state_records(StateNamespace.HELD_MESSAGE) == []

    @platform_promise("files")
    async def test_a_message_with_a_hanging_file_survives_a_restart(self, harness: PlatformHarness) -> None:
        harness.start()
        harness.remote.hang_files()
        await harness.remote.attach("look", "a.txt", b"some bytes", to=harness.remote.chat)
        await harness.remote.write("and this", to=harness.remote.chat)

        async def both_held() -> bool:
            return harness.held_messages.count() == 2

        await harness.wait_until(both_held, what="two held messages")
        await harness.stop()
        harness.remote.release_files()
        await harness.restart()
        await harness.wait_until_heard("look", "and this")
        assert await harness.read_texts() == ["look", "and this"]
        assert [len(body.attachments) for body in await harness.read_heard()] == [1, 0]

    @platform_promise("files")
    async def test_a_file_of_a_denied_sender_is_not_downloaded(self, harness: PlatformHarness) -> None:
        harness.start()
        harness.denied.add(harness.remote.sender)
        await harness.remote.attach("look", "a.txt", b"some bytes", to=harness.remote.chat)

        async def met() -> bool:
            return bool(harness.results)

        await harness.wait_until(met, what="the message")
        assert [result.outcome for result in harness.results] == ["denied"]
        assert harness.downloads == []
        assert await harness.store.list_state_records(StateNamespace.HELD_MESSAGE) == []

    @platform_promise("files")
    async def test_a_file_is_sent_with_its_message(self, harness: PlatformHarness) -> None:
        file = build_attachment(b"a report", name="report.txt", media="text/plain")
        await harness.store_blob(b"a report")
        await harness.run_within_patience(harness.platform.send(harness.make_outgoing("here it is")))
        await harness.run_within_patience(harness.platform.send(harness.make_outgoing("", key="s:1:1", file=file)))
        seen = harness.remote.list_shown(harness.remote.chat)
        assert [data for it in seen for data in it.files] == [b"a report"]
        assert [it.text for it in seen if it.text] == ["here it is"]

    @platform_promise("files")
    async def test_a_picture_is_sent_unchanged(self, harness: PlatformHarness) -> None:
        file = build_attachment(PNG_BYTES, name="dot.png", media="image/png")
        await harness.store_blob(PNG_BYTES)
        await harness.run_within_patience(harness.platform.send(harness.make_outgoing("", file=file)))
        assert [data for it in harness.remote.list_shown(harness.remote.chat) for data in it.files] == [PNG_BYTES]

    @platform_promise("files")
    async def test_a_lost_answer_about_a_file_is_reported_as_in_doubt(self, harness: PlatformHarness) -> None:
        file = build_attachment(b"a report", name="report.txt", media="text/plain")
        await harness.store_blob(b"a report")
        harness.remote.fail_next_send("drop file after")
        out = harness.make_outgoing("", file=file)
        error = await self._send_failure(harness, out)
        match harness.platform.delivery:
            case DeliveryGuarantee.KEYED | DeliveryGuarantee.UPSERT:
                assert isinstance(error, InDoubt | Transient)
                await harness.run_within_patience(harness.platform.send(out))
            case DeliveryGuarantee.PROBE:
                assert isinstance(error, InDoubt), "it may have arrived, and InDoubt was not raised"
                await asyncio.sleep(harness.platform.visible_after)
                assert await harness.run_within_patience(harness.platform.probe(out)) is not None
                other = harness.make_outgoing("", file=build_attachment(b"another", name="other.txt"), key="s:9:0")
                assert await harness.run_within_patience(harness.platform.probe(other)) is None
            case _:
                assert isinstance(error, InDoubt), "it may have arrived, and InDoubt was not raised"
        shown = [data for it in harness.remote.list_shown(harness.remote.chat) for data in it.files]
        assert shown == [b"a report"], "it is shown exactly once"

    @platform_promise("files")
    async def test_a_file_that_is_too_large_to_send_raises_too_long(self, harness: PlatformHarness) -> None:
        file = build_attachment(b"a report", name="report.txt", media="text/plain")
        await harness.store_blob(b"a report")
        harness.remote.fail_next_send("file too large")
        error = await self._send_failure(harness, harness.make_outgoing("", file=file))
        assert isinstance(error, TooLong), "TooLong lets the caller send a notice instead"
        await harness.run_within_patience(harness.platform.send(harness.make_outgoing("it was too large")))
        assert [it.text for it in harness.remote.list_shown(harness.remote.chat)] == ["it was too large"]

    @platform_promise("files")
    async def test_a_file_that_is_not_stored_is_never_read_from_disk(self, harness: PlatformHarness) -> None:
        for name in ("/etc/hostname", "../../etc/hostname", "C:\\boot.ini"):
            file = Attachment(blob=name, name=name, media="text/plain", size=1)
            assert isinstance(await self._send_failure(harness, harness.make_outgoing("", file=file)), Refused)
        assert harness.remote.list_shown(harness.remote.chat) == []

    async def _send_failure(self, harness: PlatformHarness, out: OutgoingMessage) -> Exception:
        try:
            await harness.run_within_patience(harness.platform.send(out))
        except (Transient, Refused, InDoubt) as error:
            return error
        raise AssertionError("the send failed, and no error was raised")


async def _drain_loop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _list_offsets(harness: PlatformHarness, chat: str) -> list[str]:
    """Return the names of the stored offsets that mention a chat."""
    records = await harness.store.list_state_records(StateNamespace.PLATFORM_OFFSET)
    return [it.key for it in records if chat in it.key or chat in it.value]
