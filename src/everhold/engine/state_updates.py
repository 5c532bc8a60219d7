"""Update state records: read, decide, write under the version that was read, and decide again after a conflict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from everhold.errors import Conflict
from everhold.ports.store import Change, StateNamespace, StateWrite, Step, Store

MOST_CONFLICTS: Final = 8
"""How often in a row another writer may come first before the update is given up."""


async def update_state_record(
    store: Store,
    namespace: StateNamespace,
    key: str,
    *,
    at: float,
    decide: Callable[[str | None], str | None],
    scope: str = "",
    step: Step = Step.STATE,
) -> str | None:
    """Write what `decide` returns for the present value, and return it; None stands for no record.

    If another writer comes first, the record is read again and `decide` is called again. Raises Conflict if that
    happens too often.
    """
    conflicts = 0
    while True:
        record = await store.get_state_record(namespace, key, scope=scope)
        present = None if record is None else record.value
        value = decide(present)
        if value == present:
            return value
        version = 0 if record is None else record.version
        write = StateWrite(namespace=namespace, key=key, scope=scope, value=value, version=version)
        try:
            await store.commit(Change(step=step, session="", at=at, state_writes=(write,)))
        except Conflict:
            conflicts += 1
            if conflicts == MOST_CONFLICTS:
                raise
        else:
            return value
