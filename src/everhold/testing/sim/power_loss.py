"""A power cut: all processes end, and the disk has the state of the last durable commit.

A commit with `durable=False` is written and visible to all processes, but it may not be on the disk yet. The simulator
checks that its loss breaks no promise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import apsw

from everhold.stores.sqlite import SqliteStore
from everhold.stores.sqlite.writer import (
    InlineWriter,
    QueuedJob,
    T,
    WriteJob,
    any_durable,
    build_outcomes,
    settle_futures,
)

if TYPE_CHECKING:
    from everhold.testing.sim.process import SimProcess

STALL_CHECK_SECONDS: Final = 0.05


class DiskPower:
    """The contents of the disk after a power cut at this moment."""

    def __init__(self, disk: Path, *, fails: bool) -> None:
        self.files = (disk, disk.with_name(disk.name + "-wal"))
        self.index = disk.with_name(disk.name + "-shm")
        self.fails = fails
        """Whether this seed has power cuts. If not, no copy of the files is needed."""
        self._synced_contents: list[bytes] | None = None

    def mark_unsynced(self) -> None:
        """Copy the files before the first write that is not synced."""
        if self.fails and self._synced_contents is None:
            self._synced_contents = [file.read_bytes() if file.exists() else b"" for file in self.files]

    def mark_synced(self) -> None:
        """Drop the copy, because a sync wrote everything to the disk."""
        self._synced_contents = None

    def cut(self) -> bool:
        """Restore the synced contents; return whether anything was lost. The files must be closed."""
        kept, self._synced_contents = self._synced_contents, None
        if kept is None:
            return False
        self.index.unlink(missing_ok=True)
        for file, content in zip(self.files, kept, strict=True):
            file.write_bytes(content)
        return True


class PowerCutWriter(InlineWriter):
    """Writes to a disk that may lose its power. With `batch_seconds` it collects jobs for so long and commits them at
    once, as the real writer does while a commit runs.
    """

    def __init__(
        self,
        db: apsw.Connection,
        path: Path,
        power: DiskPower,
        *,
        batch_seconds: float,
        on_batch: Callable[[], None],
    ) -> None:
        super().__init__(db, path)
        self._power = power
        self._batch_seconds = batch_seconds
        self._on_batch = on_batch
        """Called after each commit, when all its jobs are recorded."""
        self._queue: list[QueuedJob] = []
        self._recorders: list[Callable[[Any], None]] = []
        """What to do with the result of each queued job, at the moment of its commit."""
        self.next_recorder: Callable[[Any], None] = ignore_result
        """What to do with the result of the job that is queued next."""
        self.process: SimProcess | None = None
        """The process that uses the connection now."""

    def pass_to(self, process: SimProcess) -> None:
        """Let another process use the connection. What a dead one had queued is gone."""
        self._queue, self._recorders, self.process = [], [], process

    async def write(
        self, job: WriteJob[T], *, urgent: bool = False, light: bool = False, durable: bool = True, alike: object = None
    ) -> T:
        if self.broken is not None:
            raise self.build_refusal()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.append((job, future, urgent, light, durable, alike))
        self._recorders.append(self.next_recorder)
        self.next_recorder = ignore_result
        if not self._batch_seconds:
            self._commit_queue()
        elif len(self._queue) == 1:
            loop.call_later(self._batch_seconds, self._flush, self.process)
        return await future

    async def close(self) -> None:
        self._queue, self._recorders, self.process = [], [], None
        await super().close()

    def _flush(self, process: SimProcess | None) -> None:
        if process is None or process is not self.process or process.dead:
            return
        if process.stalled is not None:
            process.world.loop.call_later(STALL_CHECK_SECONDS, self._flush, process)
            return
        if len(self._queue) > 1:
            process.world.stats["batches of several commits"] += 1
        self._commit_queue()

    def _commit_queue(self) -> None:
        batch, self._queue = self._queue, []
        recorders, self._recorders = self._recorders, []
        is_durable = any_durable(batch)
        if not is_durable:
            self._power.mark_unsynced()
        try:
            results = self.run_batch_in_transaction(batch)
            if results is None:
                outcomes = self.run_batch_in_savepoints(batch)
            else:
                self.cursor.execute("commit")
                outcomes = build_outcomes(batch, results)
        except apsw.Error as error:
            fault = self.roll_back(error)
            outcomes = [(future, urgent, None, fault) for _, future, urgent, _, _, _ in batch]
        if is_durable:
            self._power.mark_synced()
        self.batches += 1
        self.jobs += len(batch)
        self.checkpoint_wal()
        for record, (_, _, result, failure) in zip(recorders, outcomes, strict=True):
            if failure is None:
                record(result)
        self._on_batch()
        settle_futures(outcomes)


def ignore_result(_: Any) -> None: ...


def record_next_commit(store: SqliteStore, record: Callable[[Any], None]) -> None:
    """Call `record` with the result of the job that is queued next, at the moment of its commit. Its caller may be
    cancelled before it gets the result.
    """
    if isinstance(store.writer, PowerCutWriter):
        store.writer.next_recorder = record
