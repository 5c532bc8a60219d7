"""What every chat platform promises, as a suite. An adapter earns it by a stage: its far side, played by a test.

class TestMyPlatform(PlatformContract):
    @asynccontextmanager
    async def stage(self) -> AsyncIterator[Stage]:
        async with MyServer() as server:
            yield MyStage(server)

The far side is a real server, or a stateful fake that the vendor's own client talks to.
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

from everhold.core.attachments import attachment
from everhold.core.entries import Attachment
from everhold.errors import InDoubt, Refused, TooLong, Transient
from everhold.ports.platform import Delivery, Drafting, Leaving, Outgoing, Typing
from everhold.testing.contracts.platform_desk import HOUR, PATIENCE_SECONDS, Desk, Seen, Stage

__all__ = ["Desk", "PlatformContract", "Seen", "Stage"]


PICTURE: Final = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154789c63606060000000040001f61738550000000049454e44ae426082"
)
"""A black dot, as a PNG."""


class Stages(Protocol):
    patience: float

    def stage(self) -> AbstractAsyncContextManager[Stage]: ...


def promise(*needs: str) -> Callable[[Callable[[Any, Desk], Awaitable[None]]], Callable[[Any, Path], None]]:
    """A promise of platforms that offer all of `needs`. Plays it on a stage and a desk of its own."""

    def mark(test: Callable[[Any, Desk], Awaitable[None]]) -> Callable[[Any, Path], None]:
        def run(self: Stages, tmp_path: Path) -> None:
            async def play() -> None:
                async with self.stage() as stage:
                    if missing := set(needs) - stage.offers:
                        pytest.skip(f"{stage.platform} has no {', '.join(sorted(missing))}")
                    desk = Desk(stage, tmp_path, patience=self.patience)
                    try:
                        await test(self, desk)
                        assert await desk.store.verify() == []
                    finally:
                        await desk.close()

            asyncio.run(play())

        functools.update_wrapper(run, test)
        del run.__dict__["__wrapped__"]  # the runner would ask for the inner test's arguments
        return run

    return mark


class PlatformContract:
    patience = PATIENCE_SECONDS

    def stage(self) -> AbstractAsyncContextManager[Stage]:
        """A far side of its own for one promise."""
        raise NotImplementedError

    # -- hearing

    @promise()
    async def test_what_is_written_is_heard_once_and_in_order(self, desk: Desk) -> None:
        desk.start()
        for number in range(5):
            await desk.stage.write(f"hello {number}", to=desk.stage.chat)
        await desk.until_heard("hello 4")
        assert await desk.texts() == [f"hello {number}" for number in range(5)]
        first = (await desk.heard())[0]
        assert (first.origin.platform, first.origin.account) == (desk.stage.platform, "main")
        assert first.origin.chat == desk.stage.chat
        assert first.stamp.person == desk.stage.sender, "a sender is a stable id"
        assert ":dm:" in first.stamp.address
        assert first.asks

    @promise()
    async def test_a_connection_that_stands_is_reported(self, desk: Desk) -> None:
        desk.start()
        await desk.stage.write("hello", to=desk.stage.chat)
        await desk.until_heard("hello")
        assert desk.well, "status has to know that it is well"

    @promise()
    async def test_what_was_written_while_nobody_listened_is_heard(self, desk: Desk) -> None:
        desk.start()
        await desk.stage.write("before", to=desk.stage.chat)
        await desk.until_heard("before")
        await desk.stop()
        for number in range(3):
            await desk.stage.write(f"meanwhile {number}", to=desk.stage.chat)
        await desk.restart()
        await desk.until_heard("meanwhile 2")
        assert await desk.texts() == ["before", "meanwhile 0", "meanwhile 1", "meanwhile 2"]

    @promise()
    async def test_nothing_is_confirmed_before_it_is_kept(self, desk: Desk) -> None:
        desk.dies = "before"
        desk.start()
        await desk.stage.write("one", to=desk.stage.chat)
        await desk.stage.write("two", to=desk.stage.chat)
        await desk.killed()
        assert await desk.texts() == []
        await desk.restart()
        await desk.until_heard("two")
        assert await desk.texts() == ["one", "two"]

    @promise()
    async def test_what_was_kept_and_not_confirmed_is_not_heard_twice(self, desk: Desk) -> None:
        desk.dies = "after"
        desk.start()
        await desk.stage.write("one", to=desk.stage.chat)
        await desk.killed()
        await desk.restart()
        await desk.stage.write("two", to=desk.stage.chat)
        await desk.until_heard("two")
        assert await desk.texts() == ["one", "two"]

    @promise("redelivery")
    async def test_what_arrives_again_and_in_any_order_is_heard_once(self, desk: Desk) -> None:
        desk.start()
        for number in range(6):
            await desk.stage.write(f"hello {number}", to=desk.stage.chat)
        await desk.until_heard("hello 5")
        await desk.stage.redeliver(random.Random(7))
        await desk.stage.write("after all", to=desk.stage.chat)
        await desk.until_heard("after all")
        assert await desk.texts() == [*(f"hello {number}" for number in range(6)), "after all"]

    @promise("edits")
    async def test_an_edit_is_heard_as_a_new_one_and_once(self, desk: Desk) -> None:
        desk.start()
        id = await desk.stage.write("helo", to=desk.stage.chat)
        await desk.until_heard("helo")
        await desk.stage.edit(id, "hello", to=desk.stage.chat)
        await desk.stage.edit(id, "hello!", to=desk.stage.chat)
        await desk.until_heard("hello!")
        if "redelivery" in desk.stage.offers:
            await desk.stage.redeliver(random.Random(3))
        await desk.stage.write("done", to=desk.stage.chat)
        await desk.until_heard("done")
        assert await desk.texts() == ["helo", "hello", "hello!", "done"]
        edited = (await desk.heard())[1]
        assert edited.origin.message == id
        assert edited.revision

    @promise("poison")
    async def test_what_nobody_can_read_is_kept_and_its_neighbours_are_heard(self, desk: Desk) -> None:
        await desk.stage.write("before", to=desk.stage.chat)
        await desk.stage.poison()
        await desk.stage.write("behind", to=desk.stage.chat)
        desk.start()
        await desk.until_heard("before", "behind")
        kept = [body for body in await desk.heard() if body.text not in ("before", "behind")]
        assert len(kept) == 1, "it is kept as it came"
        assert not kept[0].asks
        await desk.restart()
        await desk.stage.write("later", to=desk.stage.chat)
        await desk.until_heard("later")
        assert len(await desk.heard()) == 4, "and it is behind us"

    @promise()
    async def test_kinds_that_nobody_has_heard_of_are_passed_by(self, desk: Desk) -> None:
        desk.start()
        await desk.stage.write("before", to=desk.stage.chat)
        await desk.stage.oddity()
        await desk.stage.write("behind", to=desk.stage.chat)
        await desk.until_heard("behind")
        assert [text for text in await desk.texts() if text in ("before", "behind")] == ["before", "behind"]

    @promise()
    async def test_odd_characters_harm_nobody(self, desk: Desk) -> None:
        desk.start()
        odd = [
            "NUL \x00 inside",
            "\u202eright to left",
            "zero\u200bwidth",
            "😀" * 500,
            "a\u0301 combined",
            "lone \ud83d half",
        ]
        for text in odd:
            await desk.stage.write(text, to=desk.stage.chat)
        await desk.stage.write("the end", to=desk.stage.chat)
        await desk.until_heard("the end")
        heard = await desk.texts()
        assert len(heard) == len(odd) + 1
        assert heard[3] == "😀" * 500

    @promise()
    async def test_bytes_that_are_no_text_keep_nothing_from_being_heard(self, desk: Desk) -> None:
        desk.start()
        await desk.stage.write("before", to=desk.stage.chat)
        await desk.until_heard("before")
        await desk.stage.garble()
        await desk.stage.write("behind", to=desk.stage.chat)
        await desk.until_heard("behind")
        assert [text for text in await desk.texts() if text in ("before", "behind")] == ["before", "behind"]

    @promise()
    async def test_an_hour_without_a_connection_loses_nothing(self, desk: Desk) -> None:
        desk.start()
        await desk.stage.write("before", to=desk.stage.chat)
        await desk.until_heard("before")
        desk.stage.cut()
        desk.waits.clear()

        async def an_hour_passed() -> bool:
            return sum(desk.waits) >= HOUR

        await desk.until(an_hour_passed, what="an hour of waiting to connect")
        assert len(desk.waits) < 600, "it hammers at the door"
        assert desk.troubles, "status has to know"
        desk.stage.mend()
        for number in range(3):
            await desk.stage.write(f"meanwhile {number}", to=desk.stage.chat)
        await desk.until_heard("meanwhile 2")
        assert await desk.texts() == ["before", *(f"meanwhile {number}" for number in range(3))]

    @promise()
    async def test_two_that_listen_to_one_account_lose_nothing_and_say_so_where_they_can_know(self, desk: Desk) -> None:
        desk.start()
        await desk.stage.write("before", to=desk.stage.chat)
        await desk.until_heard("before")
        rival = desk.stage.build(desk.context())
        listening = asyncio.get_running_loop().create_task(rival.listen(desk._accept))

        async def noticed() -> bool:
            return bool(desk.troubles)

        try:
            if "rivals" in desk.stage.offers:
                await desk.until(noticed, what="one of them noticing the other")
            await desk.stage.write("between", to=desk.stage.chat)
            await desk.until_heard("between")
        finally:
            await _end(listening)
            if isinstance(rival, Leaving):
                await rival.aclose()
        assert await desk.texts() == ["before", "between"]

    @promise("groups")
    async def test_in_a_group_it_is_told_what_is_meant_for_the_agent(self, desk: Desk) -> None:
        desk.start()
        await desk.stage.write("just talking", to=desk.stage.group)
        await desk.stage.mention("what do you think?", to=desk.stage.group)

        async def met() -> bool:
            return any("what do you think?" in text for text in await desk.texts())

        await desk.until(met, what="hearing a mention")
        by_text = {body.text: body for body in await desk.heard()}
        meant = next(body for text, body in by_text.items() if "what do you think?" in text)
        assert meant.asks
        assert meant.origin.chat == desk.stage.group
        assert ":dm:" not in meant.stamp.address
        assert not any(body.asks for text, body in by_text.items() if text == "just talking")

    @promise("groups")
    async def test_whoever_takes_a_name_is_not_whose_name_it_was(self, desk: Desk) -> None:
        desk.start()
        await desk.stage.write("it is me", to=desk.stage.group)
        await desk.stage.pretend("no, I am", to=desk.stage.group)
        await desk.until_heard("it is me", "no, I am")
        persons = {body.text: body.stamp.person for body in await desk.heard()}
        assert persons["it is me"] == desk.stage.sender
        assert persons["no, I am"] != desk.stage.sender, "a name was believed"

    # -- saying

    @promise()
    async def test_what_is_said_is_shown_once(self, desk: Desk) -> None:
        remote = await desk.within(desk.platform.send(desk.out("hello there")))
        (seen,) = desk.stage.shown(desk.stage.chat)
        assert (seen.text, seen.id) == ("hello there", remote)

    @promise()
    async def test_a_text_at_the_limit_is_shown_whole_and_a_longer_one_is_refused(self, desk: Desk) -> None:
        limit = desk.platform.text_limit
        await desk.within(desk.platform.send(desk.out("x" * limit)))
        (seen,) = desk.stage.shown(desk.stage.chat)
        assert seen.text == "x" * limit
        try:
            await desk.within(desk.platform.send(desk.out("y" * (limit * 12), key="s:2:0")))
        except Refused:
            pass
        else:
            raise AssertionError("nobody is told that it does not fit")
        assert len(desk.stage.shown(desk.stage.chat)) == 1, "a part of it was shown"

    @promise()
    async def test_a_lost_answer_is_no_answer(self, desk: Desk) -> None:
        desk.stage.fail("drop after")
        out = desk.out("did it arrive?")
        error = await self._failure(desk, out)
        assert len(desk.stage.shown(desk.stage.chat)) == 1, "the far side did it"
        match desk.platform.delivery:
            case Delivery.KEYED | Delivery.UPSERT:
                assert isinstance(error, InDoubt | Transient)
                await desk.within(desk.platform.send(out))
                assert len(desk.stage.shown(desk.stage.chat)) == 1, "the key is not recognised"
            case Delivery.PROBE:
                assert isinstance(error, InDoubt), "it may have arrived, and nobody says so"
                await asyncio.sleep(desk.platform.visible_after)
                assert await desk.within(desk.platform.probe(out)) == desk.stage.shown(desk.stage.chat)[0].id
                other = desk.out("never sent", key="s:9:0")
                assert await desk.within(desk.platform.probe(other)) is None
            case _:
                assert isinstance(error, InDoubt), "it may have arrived, and nobody says so"

    @promise()
    async def test_a_request_that_was_lost_is_never_taken_for_done(self, desk: Desk) -> None:
        desk.stage.fail("drop before")
        error = await self._failure(desk, desk.out("hello"))
        assert isinstance(error, Transient | InDoubt)
        assert desk.stage.shown(desk.stage.chat) == []

    @promise()
    async def test_an_error_of_theirs_is_never_taken_for_done(self, desk: Desk) -> None:
        desk.stage.fail("broken")
        assert isinstance(await self._failure(desk, desk.out("hello")), Transient | InDoubt)

    @promise()
    async def test_who_cannot_be_reached_was_not_sent_to(self, desk: Desk) -> None:
        await desk.within(desk.platform.send(desk.out("connect")))
        desk.stage.cut()
        error = await self._failure(desk, desk.out("hello", key="s:2:0"))
        assert isinstance(error, Transient | InDoubt)
        desk.stage.mend()
        assert [seen.text for seen in desk.stage.shown(desk.stage.chat)] == ["connect"]

    @promise()
    async def test_a_wait_that_is_asked_for_is_passed_on(self, desk: Desk) -> None:
        desk.stage.fail("limit")
        error = await self._failure(desk, desk.out("hello"))
        assert isinstance(error, Transient), "it is known not to be done"
        assert error.retry_after is not None
        assert 6 <= error.retry_after <= 8, "their word is neither shortened nor stretched"
        assert desk.stage.shown(desk.stage.chat) == []

    @promise()
    async def test_a_chat_that_is_gone_is_given_up(self, desk: Desk) -> None:
        desk.stage.fail("dead")
        assert isinstance(await self._failure(desk, desk.out("hello")), Refused)

    @promise()
    async def test_a_slow_chat_keeps_no_other_waiting(self, desk: Desk) -> None:
        await desk.within(desk.platform.send(desk.out("connect")))
        desk.stage.fail("hang")
        loop = asyncio.get_running_loop()
        both = {loop.create_task(desk.platform.send(desk.out(f"to {n}", key=f"s:{n}:0"))): f"to {n}" for n in (2, 3)}
        try:
            done, _ = await asyncio.wait(both, timeout=desk.patience, return_when=asyncio.FIRST_COMPLETED)
            assert done, "one hangs, and the other waits for it"
            arrived = [both[task] for task in done if task.result()]
            assert arrived == [seen.text for seen in desk.stage.shown(desk.stage.chat)][1:]
        finally:
            await _end(*both)

    @promise("drafts")
    async def test_the_final_text_takes_the_draft_s_place(self, desk: Desk) -> None:
        assert isinstance(desk.platform, Drafting)
        remote = await desk.within(desk.platform.draft(desk.out("I th …", key="s:1:draft")))
        await desk.within(desk.platform.revise(remote, desk.out("I think th …", key="s:1:draft")))
        await desk.within(desk.platform.send(desk.out("I think that", edits=remote)))
        await desk.within(desk.platform.send(desk.out("I think that", edits=remote)))
        assert [seen.text for seen in desk.stage.shown(desk.stage.chat)] == ["I think that"]

    @promise("typing")
    async def test_typing_is_shown(self, desk: Desk) -> None:
        assert isinstance(desk.platform, Typing)
        await desk.within(desk.platform.typing(desk.place()))

    # -- files

    @promise("files")
    async def test_a_file_is_kept_by_what_is_in_it_and_its_name_is_no_path(self, desk: Desk) -> None:
        desk.start()
        await desk.stage.attach("look", "../../etc/passwd", b"some bytes", to=desk.stage.chat)
        await desk.until_heard("look")
        (body,) = await desk.heard()
        (file,) = body.attachments
        assert (file.name, file.size) == ("passwd", 10)
        assert file.blob == attachment(b"some bytes").blob
        assert await desk.store.get_blob(file.blob) == b"some bytes"

    @promise("files")
    async def test_a_file_that_is_too_large_is_named_and_left(self, desk: Desk) -> None:
        desk.start()
        await desk.stage.attach("huge", "huge.bin", b"x" * 150_000, to=desk.stage.chat)
        await desk.stage.write("next", to=desk.stage.chat)
        await desk.until_heard("next")
        body = (await desk.heard())[0]
        assert body.text.startswith("huge")
        (file,) = body.attachments
        assert (file.blob, file.name) == ("", "huge.bin")

    @promise("files")
    async def test_a_file_goes_out_with_its_message(self, desk: Desk) -> None:
        file = attachment(b"a report", name="report.txt", media="text/plain")
        await desk.keep(b"a report")
        await desk.within(desk.platform.send(desk.out("here it is")))
        await desk.within(desk.platform.send(desk.out("", key="s:1:1", file=file)))
        seen = desk.stage.shown(desk.stage.chat)
        assert [data for it in seen for data in it.files] == [b"a report"]
        assert [it.text for it in seen if it.text] == ["here it is"]

    @promise("files")
    async def test_a_picture_goes_out_as_it_is(self, desk: Desk) -> None:
        file = attachment(PICTURE, name="dot.png", media="image/png")
        await desk.keep(PICTURE)
        await desk.within(desk.platform.send(desk.out("", file=file)))
        assert [data for it in desk.stage.shown(desk.stage.chat) for data in it.files] == [PICTURE]

    @promise("files")
    async def test_a_lost_answer_about_a_file_is_no_answer(self, desk: Desk) -> None:
        file = attachment(b"a report", name="report.txt", media="text/plain")
        await desk.keep(b"a report")
        desk.stage.fail("drop file after")
        out = desk.out("", file=file)
        error = await self._failure(desk, out)
        match desk.platform.delivery:
            case Delivery.KEYED | Delivery.UPSERT:
                assert isinstance(error, InDoubt | Transient)
                await desk.within(desk.platform.send(out))
            case Delivery.PROBE:
                assert isinstance(error, InDoubt), "it may have arrived, and nobody says so"
                await asyncio.sleep(desk.platform.visible_after)
                assert await desk.within(desk.platform.probe(out)) is not None
                other = desk.out("", file=attachment(b"another", name="other.txt"), key="s:9:0")
                assert await desk.within(desk.platform.probe(other)) is None
            case _:
                assert isinstance(error, InDoubt), "it may have arrived, and nobody says so"
        shown = [data for it in desk.stage.shown(desk.stage.chat) for data in it.files]
        assert shown == [b"a report"], "it is there, and once"

    @promise("files")
    async def test_a_file_that_is_too_large_there_is_refused_as_such(self, desk: Desk) -> None:
        file = attachment(b"a report", name="report.txt", media="text/plain")
        await desk.keep(b"a report")
        desk.stage.fail("file too large")
        error = await self._failure(desk, desk.out("", file=file))
        assert isinstance(error, TooLong), "whoever sends it can say so instead"
        await desk.within(desk.platform.send(desk.out("it was too large")))
        assert [it.text for it in desk.stage.shown(desk.stage.chat)] == ["it was too large"]

    @promise("files")
    async def test_a_file_that_is_not_kept_is_looked_for_nowhere_else(self, desk: Desk) -> None:
        for name in ("/etc/hostname", "../../etc/hostname", "C:\\boot.ini"):
            file = Attachment(blob=name, name=name, media="text/plain", size=1)
            assert isinstance(await self._failure(desk, desk.out("", file=file)), Refused)
        assert desk.stage.shown(desk.stage.chat) == []

    async def _failure(self, desk: Desk, out: Outgoing) -> Exception:
        try:
            await desk.within(desk.platform.send(out))
        except (Transient, Refused, InDoubt) as error:
            return error
        raise AssertionError("it went wrong, and nobody was told")


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
