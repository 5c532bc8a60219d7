"""The durable state of forgettings: a state record for each, and lines in the erasures file beside the store.

The store is restored from backups, and the file is not. So the file says which forgettings there were, and the record
in the store says how far each has come. A forgetting that only the file knows is begun again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from everhold.admin.sessions import SessionAdmin
from everhold.core.erasure import PersonErasure
from everhold.engine.memory.tombstones import load_erasures
from everhold.engine.state_updates import update_state_record
from everhold.engine.work_lock import WorkLock
from everhold.infra.home import append_line
from everhold.ports.store import StateNamespace, Step


class FiledErasure(Struct, frozen=True, kw_only=True):
    """A forgetting as the erasures file knows it."""

    identities: tuple[str, ...]
    at: float
    upto_pos: int = 0
    """The last entry of the log when it began; 0: unknown."""
    starts: Mapping[str, float] = {}
    rebuild: bool = False
    is_done: bool = False
    is_merged: bool = False
    """A later forgetting of the same person has taken its place."""


class ErasureRecords:
    """The records of one store."""

    def __init__(self, control: SessionAdmin, *, lock: WorkLock) -> None:
        """`lock` is held by whoever writes a record, except to make a new one."""
        self.control = control
        self.lock = lock
        self.store = control.store
        self.clock = control.gates.clock

    async def load_all(self) -> list[PersonErasure]:
        return await load_erasures(self.store)

    async def find(self, id: str) -> PersonErasure | None:
        kept = await self.store.get_state_record(StateNamespace.ERASURE, id)
        return None if kept is None else msgspec.json.decode(kept.value, type=PersonErasure)

    async def save(self, erasure: PersonErasure) -> None:
        text = msgspec.json.encode(erasure).decode()
        await self._write(erasure.id, lambda _: text)

    async def drop(self, erasure: PersonErasure) -> None:
        await self._write(erasure.id, lambda _: None)

    async def _write(self, id: str, decide: Callable[[str | None], str | None]) -> None:
        now = self.clock.now()
        await update_state_record(
            self.store,
            StateNamespace.ERASURE,
            id,
            at=now,
            decide=decide,
            step=Step.ERASE,
            account=self.lock.claim,
        )

    # -- the file ------------------------------------------------------------------------------------------------------

    def file_begin(self, erasure: PersonErasure) -> None:
        """Record in the file that a forgetting begins, before anything is erased."""
        self._file(erasure, done=False, merged=False)

    def file_end(self, erasure: PersonErasure, *, merged: bool = False) -> None:
        self._file(erasure, done=True, merged=merged)

    def _file(self, erasure: PersonErasure, *, done: bool, merged: bool) -> None:
        if self.control.erasures is None:
            return
        line = {"session": "", "seqs": [], "forget": list(erasure.identities), "at": erasure.at, "done": done}
        line |= {"pos": erasure.upto_pos} if erasure.upto_pos else {}
        line |= {"since": erasure.starts} if erasure.starts else {}
        line |= {"rebuild": True} if erasure.rebuild else {}
        line |= {"merged": True} if merged else {}
        append_line(self.control.erasures, msgspec.json.encode(line))

    def read_file(self) -> list[FiledErasure]:
        """Every forgetting that the file knows, in order."""
        found: dict[tuple[tuple[str, ...], float], FiledErasure] = {}
        for line in self.control.read_erasures(about=b'"forget"'):
            if names := tuple(line.get("forget", ())):
                before = found.get((names, line["at"]))
                found[names, line["at"]] = FiledErasure(
                    identities=names,
                    at=line["at"],
                    upto_pos=line.get("pos", 0),
                    starts=line.get("since", {}),
                    rebuild=bool(line.get("rebuild")),
                    is_done=line["done"] or (before is not None and before.is_done),
                    is_merged=bool(line.get("merged")) or (before is not None and before.is_merged),
                )
        return list(found.values())
