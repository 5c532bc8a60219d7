"""Messages whose files are still at their platform. Such a message is stored first, and its files are downloaded then.

The listener of a platform does not wait for a download. The message is committed as a state record, after the access
check and together with the platform's offset, so the platform may forget it. A queue per chat downloads its files and
then accepts it, in the commit that deletes the record. Later messages of the same chat wait in the same queue, so their
order is kept. After a restart the queues continue with the records.
"""

from __future__ import annotations

import asyncio
import collections
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import structs

from everhold.config.settings import FileQuotas
from everhold.core.access import AdmissionDecision
from everhold.core.address import derive_address
from everhold.core.attachments import build_attachment, build_missing_attachment
from everhold.core.entries import StoredRecord, strip_surrogates_deep
from everhold.core.people import PERSON_MEMBER
from everhold.core.quotas import WaitingCount
from everhold.core.retry import retry_delay_seconds
from everhold.engine.gates import Gates
from everhold.errors import Conflict, EverholdError, Refused
from everhold.ingress.accept import DecisionOutdated, MessageAcceptor, build_dedup_key
from everhold.ports.platform import (
    AcceptMessage,
    AcceptResult,
    IncomingMessage,
    Platform,
    RemoteFile,
    SupportsDownloads,
)
from everhold.ports.store import StateNamespace, StateRecord, StateWrite, make_state_scope

ADAPTER_ERRORS: Final = (AttributeError, LookupError, TypeError, ValueError, RuntimeError, OSError)
"""Errors of an adapter that concern only the file. The chat must not wait for it for ever."""
LONGEST_WAIT_SECONDS: Final = 60.0
MOST_NUMBER_CONFLICTS: Final = 100
TAKE_OVER_SECONDS: Final = 5.0
"""How often a host looks for messages that a dead host held."""
ChatKey = tuple[str, str, str]


class HeldMessage(StoredRecord, frozen=True, kw_only=True):
    """A message that was admitted and waits for its files, or for an earlier message of its chat."""

    at: float
    identity: str
    """Whose message it is, for forgetting."""
    incoming: IncomingMessage
    decision: AdmissionDecision
    host: str = ""
    """The process that downloads its files."""


class _QueuedMessage:
    """A held message in its queue."""

    def __init__(self, held: HeldMessage, record: StateRecord) -> None:
        self.held = held
        self.record = record
        self.dedup = build_dedup_key(held.incoming)


class _ChatQueue:
    """The held messages of one chat, in order."""

    def __init__(self) -> None:
        self.messages: collections.deque[_QueuedMessage] = collections.deque()
        self.keys: set[str] = set()
        """The dedup keys of the messages."""
        self.task: asyncio.Task[None] | None = None


class HeldMessages:
    """Accepts the messages of platform accounts. Those without files go straight to the acceptor."""

    def __init__(
        self,
        gates: Gates,
        *,
        acceptor: MessageAcceptor,
        accept: AcceptMessage,
        platforms: Mapping[tuple[str, str], Platform],
        settings: Callable[[], FileQuotas],
        is_halted: Callable[[str, str], Awaitable[bool]],
        prepare: Callable[[], Awaitable[None]],
    ) -> None:
        """`accept` is called for a message that needs no queue. `is_halted` returns whether a chat is silenced.
        `prepare` is called before a message is held; it raises if nothing can be stored."""
        self._gates = gates
        self._acceptor = acceptor
        self._accept = accept
        self._platforms = platforms
        self._settings = settings
        self._is_halted = is_halted
        self._prepare = prepare
        self._queues: dict[ChatKey, _ChatQueue] = {}
        self._slots: dict[tuple[str, str], tuple[int, asyncio.Semaphore]] = {}
        self._last_number = 0

    async def __call__(self, incoming: IncomingMessage) -> AcceptResult:
        origin = incoming.origin
        chat_queue = self._queues.get((origin.platform, origin.account, origin.chat))
        if chat_queue is None and not incoming.remote_files:
            return await self._accept(incoming)
        return await self._hold(incoming)

    async def resume(self) -> int:
        """Continue with the messages that an earlier process held, or a host that died. Return their number."""
        store, count = self._gates.store, 0
        alive = set() if store.is_exclusive else {it.host.id for it in await store.list_hosts() if it.is_alive}
        own = {(it.record.scope, it.record.key) for queue in self._queues.values() for it in queue.messages}
        records = await store.list_state_records(StateNamespace.HELD_MESSAGE)
        for record in sorted(records, key=lambda it: it.key):
            self._last_number = max(self._last_number, int(record.key))
            held = msgspec.json.decode(record.value, type=HeldMessage)
            if held.host not in alive and (record.scope, record.key) not in own:
                self._enqueue(held, record)
                count += 1
        return count

    async def keep_taking_over(self) -> None:
        """Continue with the messages of hosts that die. Two hosts that do so accept each of them once, in order."""
        while not self._gates.store.is_exclusive:
            await asyncio.sleep(TAKE_OVER_SECONDS)
            await self.resume()

    async def close(self) -> None:
        """Stop all downloads. The messages stay stored, and the next process continues."""
        tasks = [chat_queue.task for chat_queue in self._queues.values() if chat_queue.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._queues.clear()

    def list_waiting(self) -> Iterator[WaitingCount]:
        """Yield the held messages, for the quotas."""
        for chat_queue in self._queues.values():
            for queued in chat_queue.messages:
                held, origin = queued.held, queued.held.incoming.origin
                address = derive_address(
                    agent=held.decision.agent,
                    platform=origin.platform,
                    account=origin.account,
                    kind=held.incoming.kind,
                    chat=held.decision.chat or origin.chat,
                )
                yield WaitingCount(
                    author=f"{PERSON_MEMBER}{held.identity}",
                    address=str(address),
                    messages=1,
                    bytes=len(held.incoming.text),
                )

    def count(self) -> int:
        """Return how many messages are held."""
        return sum(len(chat_queue.messages) for chat_queue in self._queues.values())

    def describe(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return what each account waits for: in how many chats, how many messages, since when, and for which file."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for (platform, account, _), chat_queue in self._queues.items():
            if not chat_queue.messages:
                continue
            first = chat_queue.messages[0].held
            row = found.setdefault((platform, account), {"messages": 0, "chats": 0, "since": math.inf, "file": ""})
            row["messages"] += len(chat_queue.messages)
            row["chats"] += 1
            if first.at < row["since"]:
                row["since"] = first.at
                row["file"] = next((file.name for file in first.incoming.remote_files), "")
        return found

    # -- holding -----------------------------------------------------------------------------------------------------

    async def _hold(self, incoming: IncomingMessage) -> AcceptResult:
        """Store a message in the queue of its chat. Returns after the commit."""
        await self._prepare()
        origin = incoming.origin
        dedup = build_dedup_key(incoming)
        chat_queue = self._queues.get((origin.platform, origin.account, origin.chat))
        if dedup is not None and chat_queue is not None and dedup in chat_queue.keys:
            await self._acceptor.commit_offset_only(incoming)
            return AcceptResult(outcome="duplicate")
        result, write = await self._commit_held(incoming)
        if write is not None and write.value is not None:
            record = await self._gates.store.get_state_record(write.namespace, write.key, scope=write.scope)
            if record is not None:
                self._enqueue(msgspec.json.decode(write.value, type=HeldMessage), record)
        return result

    async def _commit_held(self, incoming: IncomingMessage) -> tuple[AcceptResult, StateWrite | None]:
        """Commit a message under the next number."""
        conflicts = 0
        while True:
            self._last_number += 1
            try:
                return await self._acceptor.hold(incoming, self._prepare_write(incoming))
            except Conflict:  # another host has used the number
                conflicts += 1
                if conflicts == MOST_NUMBER_CONFLICTS:
                    raise
                records = await self._gates.store.list_state_records(StateNamespace.HELD_MESSAGE)
                self._last_number = max((int(it.key) for it in records), default=self._last_number)

    def _prepare_write(self, incoming: IncomingMessage) -> Callable[[AdmissionDecision], StateWrite]:
        origin, number = incoming.origin, f"{self._last_number:020d}"

        def build_write(decision: AdmissionDecision) -> StateWrite:
            kept = strip_surrogates_deep(structs.replace(incoming, offset=None, state_write=None))
            held = HeldMessage(
                at=self._gates.clock.now(),
                identity=decision.identity,
                incoming=kept,
                decision=decision,
                host=self._gates.owner,
            )
            return StateWrite(
                namespace=StateNamespace.HELD_MESSAGE,
                scope=make_state_scope(origin.platform, origin.account),
                key=number,
                value=msgspec.json.encode(held).decode(),
                version=0,
            )

        return build_write

    def _enqueue(self, held: HeldMessage, record: StateRecord) -> None:
        origin = held.incoming.origin
        key = (origin.platform, origin.account, origin.chat)
        chat_queue = self._queues.get(key)
        if chat_queue is None:
            chat_queue = self._queues[key] = _ChatQueue()
        queued = _QueuedMessage(held, record)
        chat_queue.messages.append(queued)
        if queued.dedup is not None:
            chat_queue.keys.add(queued.dedup)
        if chat_queue.task is None:
            work = self._run_queue(key, chat_queue)
            chat_queue.task = asyncio.get_running_loop().create_task(work, name=f"files of {key[0]}")

    # -- releasing ---------------------------------------------------------------------------------------------------

    async def _run_queue(self, key: ChatKey, chat_queue: _ChatQueue) -> None:
        """Accept the messages of a chat, one after the other, until none is left."""
        while chat_queue.messages:
            queued = chat_queue.messages[0]
            complete = await self._download_files(queued.held.incoming)
            await self._release(queued, complete)
            chat_queue.messages.popleft()
            chat_queue.keys.discard(queued.dedup or "")
        del self._queues[key]

    async def _release(self, queued: _QueuedMessage, complete: IncomingMessage) -> None:
        """Accept a message and delete its record in one commit. Retries until the store allows it."""
        held, record, failures = queued.held, queued.record, 0
        while True:
            complete = structs.replace(complete, state_write=record.replace_with(None))
            version = await self._acceptor.load_state_version()
            decision, origin = structs.replace(held.decision, state_version=version), held.incoming.origin
            if decision.asks and await self._is_halted(origin.platform, decision.chat or origin.chat):
                decision = structs.replace(decision, asks=False)
            try:
                await self._acceptor.release(complete, decision, more_bytes=_count_undeclared(held.incoming, complete))
                return
            except DecisionOutdated:
                continue
            except EverholdError as error:
                if isinstance(error, Conflict):  # its record was deleted or rewritten, or others always came first
                    found = await self._find_again(record)
                    if found is None:
                        self._gates.log.info("message.forgotten", platform=origin.platform, account=origin.account)
                        return
                    record = found
                failures += 1
                self._gates.log.warning("message.held", platform=origin.platform, account=origin.account, error=error)
                wait = retry_delay_seconds(failures, jitter=self._gates.chance.random()) or LONGEST_WAIT_SECONDS
                await self._gates.sleep(min(wait, LONGEST_WAIT_SECONDS))

    async def _find_again(self, record: StateRecord) -> StateRecord | None:
        """Return the record as it is now; None if it was deleted, because its sender was forgotten."""
        try:
            return await self._gates.store.get_state_record(record.namespace, record.key, scope=record.scope)
        except EverholdError:
            return record  # the store cannot be read now

    async def _download_files(self, incoming: IncomingMessage) -> IncomingMessage:
        """Return the message with its files, and with a note for each that is missing."""
        most = self._settings().per_message
        complete = structs.replace(incoming, remote_files=())
        for number, file in enumerate(incoming.remote_files, start=1):
            try:
                if number > most:
                    raise Refused(f"at most {most} files of a message are stored")
                data = await self._download_file(incoming, file)
            except EverholdError as error:
                complete = self._note_missing(complete, file, error.message)
            else:
                kept = build_attachment(data, name=file.name, media=file.media)
                complete = structs.replace(
                    complete, attachments=(*complete.attachments, kept), files=(*complete.files, data)
                )
        return complete

    async def _download_file(self, incoming: IncomingMessage, file: RemoteFile) -> bytes:
        origin, settings = incoming.origin, self._settings()
        account = (origin.platform, origin.account)
        platform: object = self._platforms.get(account)
        if not isinstance(platform, SupportsDownloads):
            raise Refused(f"{origin.platform}/{origin.account} is not connected")
        slots = self._slots.get(account)
        if slots is None or slots[0] != settings.at_once:
            slots = self._slots[account] = (settings.at_once, asyncio.Semaphore(settings.at_once))
        async with slots[1]:
            try:
                async with asyncio.timeout(settings.deadline_seconds):
                    return await platform.download(file)
            except TimeoutError:
                raise Refused(f"it did not arrive within {settings.deadline_seconds:g} s") from None
            except ADAPTER_ERRORS as error:
                raise Refused(f"the adapter failed: {type(error).__name__}") from error

    def _note_missing(self, incoming: IncomingMessage, file: RemoteFile, reason: str) -> IncomingMessage:
        origin = incoming.origin
        self._gates.log.warning(
            "file.missing",
            platform=origin.platform,
            account=origin.account,
            name=file.name,
            size=file.size,
            error=reason,
        )
        missing = build_missing_attachment(name=file.name, media=file.media, size=file.size)
        noted = add_missing_note(incoming, f"[{file.name} was not stored: {reason}]")
        return structs.replace(noted, attachments=(*incoming.attachments, missing))


def _count_undeclared(held: IncomingMessage, complete: IncomingMessage) -> int:
    """Return by how many bytes the files are larger than the platform said."""
    return sum(map(len, complete.files)) - sum(file.size for file in held.remote_files)


def add_missing_note(heard: IncomingMessage, note: str) -> IncomingMessage:
    """Return the message with a note about a missing file: beside the sender's words, or in the forwarded text that the
    file belongs to, because a note must not count as the sender's words.
    """
    for place, piece in enumerate(heard.pieces):
        if piece.source == "forwarded":
            noted = structs.replace(piece, text=_append_line(piece.text, note))
            return structs.replace(heard, pieces=(*heard.pieces[:place], noted, *heard.pieces[place + 1 :]))
    return structs.replace(heard, text=_append_line(heard.text, note))


def _append_line(text: str, line: str) -> str:
    return f"{text}\n{line}" if text else line
