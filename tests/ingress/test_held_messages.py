"""Messages with files: stored before the download, in order, once, and without a file that does not come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everhold.config.settings import FileQuotas
from everhold.core.entries import Heard
from everhold.engine.gates import Gates
from everhold.errors import Conflict, StoreBusy
from everhold.ingress.held_messages import HeldMessages
from everhold.ports.platform import UNPARSED_EVENT, RemoteFile
from everhold.ports.store import Change, StateNamespace, StateWrite, Step
from everhold.testing.fakes import FakePlatform
from tests.ingress.test_quotas import QuotaHarness
from tests.waiting import wait_until


class FilePlatform(FakePlatform):
    """A platform whose files arrive when a test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[str, asyncio.Event] = {}
        self.started: list[str] = []
        self.running = self.most_running = 0

    def hang(self, name: str) -> None:
        self.gates[name] = asyncio.Event()

    async def download(self, file: RemoteFile) -> bytes:
        self.started.append(file.name)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if file.name in self.gates:
                await self.gates[file.name].wait()
            if file.name == "broken":
                raise KeyError("a bug of the adapter")
            return file.reference.encode()
        finally:
            self.running -= 1


class FileHarness(QuotaHarness):
    def __init__(self, path: Path, quotas: str = "{}", **how: Any) -> None:
        self.files = FilePlatform()
        super().__init__(path, quotas, **how)

    def restart(self) -> None:
        super().restart()
        self.acceptor = self.accept
        gates = Gates(store=self.store, clock=self.clock, chance=self.chance, log=self.log, owner=self.owner)
        self.held = HeldMessages(
            gates,
            acceptor=self.acceptor,
            accept=self.acceptor,
            platforms={("fake", "main"): self.files},
            settings=lambda: self.settings.quotas.files,
            is_halted=lambda platform, chat: self.admission.is_halted(platform, chat),
            prepare=self._prepare,
        )
        self.accept = self.held  # type: ignore[assignment]  # it is called in the same way

    async def _prepare(self) -> None:
        """Do nothing."""

    async def send_file(self, text: str, *names: str, size: int = 3, content: str = "abc", **how: Any) -> str:
        files = tuple(RemoteFile(name=name, size=size, reference=content) for name in names)
        return (await self.send_message(text, remote_files=files, **how)).outcome

    async def read_heard(self) -> list[Heard]:
        return [entry.body for entry in await self.store.read_feed() if isinstance(entry.body, Heard)]

    async def read_texts(self) -> list[str]:
        return [body.text for body in await self.read_heard()]

    async def wait_until_released(self) -> None:
        await wait_until(lambda: self.held.count() == 0)


@pytest.fixture
async def make_ingress(tmp_path: Path) -> AsyncIterator[Any]:
    made: list[FileHarness] = []

    def make(quotas: str = "{}") -> FileHarness:
        made.append(FileHarness(tmp_path, quotas))
        return made[-1]

    yield make
    for harness in made:
        await harness.held.close()
        await harness.store.close()


async def test_a_file_is_downloaded_after_the_message_is_stored(make_ingress: Any) -> None:
    ingress = make_ingress()
    ingress.files.hang("a")
    assert await ingress.send_file("look", "a") == "held"
    assert len(await ingress.store.list_state_records(StateNamespace.HELD_MESSAGE)) == 1
    ingress.files.gates["a"].set()
    await ingress.wait_until_released()
    (body,) = await ingress.read_heard()
    assert (body.text, [it.size for it in body.attachments]) == ("look", [3])
    assert await ingress.store.get_blob(body.attachments[0].blob) == b"abc"
    assert await ingress.store.list_state_records(StateNamespace.HELD_MESSAGE) == []


async def test_a_strangers_file_is_neither_requested_nor_stored(make_ingress: Any) -> None:
    ingress = make_ingress()
    assert await ingress.send_file("look", "a", sender="666") == "denied"
    assert ingress.files.started == []
    assert await ingress.store.list_state_records(StateNamespace.HELD_MESSAGE) == []
    assert await ingress.store.read_feed() == []


async def test_later_messages_of_the_chat_wait_and_other_chats_do_not(make_ingress: Any) -> None:
    ingress = make_ingress()
    ingress.files.hang("a")
    await ingress.send_file("one", "a")
    assert (await ingress.send_message("two")).outcome == "held"
    assert (await ingress.send_message("elsewhere", sender="7")).outcome == "accepted"
    ingress.files.gates["a"].set()
    await ingress.wait_until_released()
    assert await ingress.read_texts() == ["elsewhere", "one", "two"]
    assert (await ingress.send_message("three")).outcome == "accepted"


async def test_status_says_what_an_account_waits_for(make_ingress: Any) -> None:
    ingress = make_ingress()
    assert ingress.held.describe() == {}
    ingress.files.hang("a")
    ingress.files.hang("b")
    await ingress.send_file("one", "a")
    await ingress.send_message("two")
    await ingress.send_file("three", "b", sender="7")
    waits = ingress.held.describe()
    assert set(waits) == {("fake", "main")}
    assert {**waits["fake", "main"], "since": 0} == {"messages": 3, "chats": 2, "since": 0, "file": "a"}
    ingress.files.gates["a"].set()
    await wait_until(lambda: ingress.held.count() == 1)
    assert ingress.held.describe()["fake", "main"]["file"] == "b"
    ingress.files.gates["b"].set()
    await ingress.wait_until_released()
    assert ingress.held.describe() == {}


async def test_a_redelivered_message_is_held_and_heard_once(make_ingress: Any) -> None:
    ingress = make_ingress()
    ingress.files.hang("a")
    assert [await ingress.send_file("look", "a", id="x") for _ in range(3)] == ["held", "duplicate", "duplicate"]
    ingress.files.gates["a"].set()
    await ingress.wait_until_released()
    assert await ingress.send_file("look", "a", id="x") == "duplicate"
    assert (await ingress.read_texts(), ingress.files.started) == (["look"], ["a"])


async def test_a_restart_continues_in_order_and_recognises_repeats(make_ingress: Any) -> None:
    ingress = make_ingress()
    ingress.files.hang("a")
    await ingress.send_file("one", "a", id="x")
    await ingress.send_message("two")
    await ingress.held.close()
    ingress.restart()
    assert await ingress.held.resume() == 2
    assert await ingress.send_file("one", "a", id="x") == "duplicate"
    await ingress.send_message("three")
    ingress.files.gates["a"].set()
    await ingress.wait_until_released()
    assert await ingress.read_texts() == ["one", "two", "three"]


async def test_a_file_that_does_not_arrive_in_time_is_named(make_ingress: Any) -> None:
    ingress = make_ingress("{files: {deadline_seconds: 0.01}}")
    ingress.files.hang("a")
    await ingress.send_file("look", "a")
    await ingress.wait_until_released()
    assert await ingress.read_texts() == ["look\n[a was not stored: it did not arrive within 0.01 s]"]


async def test_a_bug_of_an_adapter_does_not_block_the_chat(make_ingress: Any) -> None:
    ingress = make_ingress()
    await ingress.send_file("look", "broken")
    await ingress.send_message("two")
    await ingress.wait_until_released()
    assert await ingress.read_texts() == ["look\n[broken was not stored: the adapter failed: KeyError]", "two"]


async def test_only_some_files_of_a_message_are_downloaded(make_ingress: Any) -> None:
    ingress = make_ingress("{files: {per_message: 2}}")
    await ingress.send_file("look", "a", "b", "c")
    await ingress.wait_until_released()
    assert ingress.files.started == ["a", "b"]
    (body,) = await ingress.read_heard()
    assert body.text == "look\n[c was not stored: at most 2 files of a message are stored]"


async def test_an_account_downloads_some_files_at_once(make_ingress: Any) -> None:
    ingress = make_ingress("{files: {at_once: 2}}")
    for sender, chat in (("1001", ""), ("7", ""), ("1", ""), ("1001", "room")):
        ingress.files.hang(chat or sender)
        await ingress.send_file("look", chat or sender, sender=sender, chat=chat)
    await wait_until(lambda: ingress.files.running == 2)
    for gate in ingress.files.gates.values():
        gate.set()
    await ingress.wait_until_released()
    assert (ingress.files.most_running, len(ingress.files.started)) == (2, 4)


async def test_a_forgotten_senders_message_is_not_accepted_later(make_ingress: Any) -> None:
    ingress = make_ingress()
    ingress.files.hang("a")
    await ingress.send_file("look", "a")
    (record,) = await ingress.store.list_state_records(StateNamespace.HELD_MESSAGE)
    await ingress.store.commit(Change(step=Step.ERASE, session="", at=1.0, state_writes=(record.replace_with(None),)))
    ingress.files.gates["a"].set()
    await ingress.wait_until_released()
    assert await ingress.store.read_feed() == []


async def test_a_conflict_is_no_sign_that_the_sender_was_forgotten(
    make_ingress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingress = make_ingress()
    ingress.files.hang("a")
    await ingress.send_file("look", "a")
    (record,) = await ingress.store.list_state_records(StateNamespace.HELD_MESSAGE)
    rewritten = StateWrite(
        namespace=record.namespace, key=record.key, scope=record.scope, value=record.value, version=record.version
    )
    await ingress.store.commit(Change(step=Step.STATE, session="", at=1.0, state_writes=(rewritten,)))
    release, failures = ingress.acceptor.release, [Conflict("others came first"), Conflict("others came first")]

    async def fail_twice(*args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return await release(*args, **options)

    async def no_sleep(self: Gates, seconds: float, **_: Any) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(ingress.acceptor, "release", fail_twice)
    monkeypatch.setattr(Gates, "sleep", no_sleep)
    ingress.files.gates["a"].set()
    await ingress.wait_until_released()
    assert await ingress.read_texts() == ["look"]
    assert await ingress.store.list_state_records(StateNamespace.HELD_MESSAGE) == []


async def test_the_size_that_the_platform_did_not_report_is_charged(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {bytes_per_day: 1000}}")
    await ingress.send_file("look", "a", size=0, content="x" * 900)
    await ingress.wait_until_released()
    assert (await ingress.send_message("x" * 200)).outcome == "limited"


async def test_held_messages_count_as_waiting(make_ingress: Any) -> None:
    ingress = make_ingress("{member: {waiting_messages: 2}}")
    ingress.quotas.list_held = ingress.held.list_waiting
    ingress.files.hang("a")
    await ingress.send_file("look", "a")
    assert await ingress.list_outcomes(3) == ["held", "limited", "limited"]


async def test_a_busy_store_is_asked_again(make_ingress: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ingress = make_ingress()
    ingress.files.hang("a")
    await ingress.send_file("look", "a")
    release, failures = ingress.acceptor.release, [StoreBusy("another program"), StoreBusy("another program")]

    async def fail_twice(*args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return await release(*args, **options)

    async def no_sleep(self: Gates, seconds: float, **_: Any) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(ingress.acceptor, "release", fail_twice)
    monkeypatch.setattr(Gates, "sleep", no_sleep)
    ingress.files.gates["a"].set()
    await ingress.wait_until_released()
    assert await ingress.read_texts() == ["look"]


async def test_a_lone_surrogate_in_a_held_message_is_no_obstacle(make_ingress: Any) -> None:
    ingress = make_ingress()
    assert await ingress.send_file("look \ud800", "a\ud800") == "held"
    await ingress.wait_until_released()
    assert (await ingress.read_texts())[0].startswith("look")


def test_the_defaults_are_generous() -> None:
    assert (FileQuotas().per_message, FileQuotas().at_once, FileQuotas().deadline_seconds) == (20, 8, 60.0)


# -- updates that cannot be parsed -------------------------------------------------------------------------------------


async def send_unparsed(ingress: FileHarness, sender: str, **how: Any) -> str:
    sent = await ingress.send_message(
        "TypeError", sender=sender, chat="unreadable", kind="channel", event=UNPARSED_EVENT, addressed=False, **how
    )
    return sent.outcome


async def test_an_unparsed_update_is_stored_only_if_its_sender_may_speak_there(make_ingress: Any) -> None:
    ingress = make_ingress()
    assert await send_unparsed(ingress, "1001", unparsed_direct=True, unparsed_chat="1001") == "accepted"
    assert await send_unparsed(ingress, "666", unparsed_direct=True, unparsed_chat="666") == "denied"
    assert await send_unparsed(ingress, "666", unparsed_chat="room") == "denied"
    assert await send_unparsed(ingress, "666", unparsed_chat="open") == "accepted"
    assert await send_unparsed(ingress, "") == "denied"
    assert [body.asks for body in await ingress.read_heard()] == [False, False]
    assert dict(ingress.admission.unparsed) == {"read": 4, "unknown": 1}
    assert await ingress.read_notices() == [], "nobody is told a pairing code"
