"""The orders to store a memory's session anew, because something in it was undone. An operator's task carries them out.

An order is recorded before the memory hears of the undo, and stays until the old session is confirmed as deleted. Until
then the memory's own words are withheld from everybody whom the session concerns.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from everhold.core.session_rebuild import SessionRebuild, merge_rebuilds
from everhold.engine.gates import Gates
from everhold.engine.state_updates import update_state_record
from everhold.ports.hosts import AccountClaim
from everhold.ports.store import StateNamespace, Step, Store


async def load_rebuilds(store: Store) -> list[SessionRebuild]:
    found = await store.list_state_records(StateNamespace.SESSION_REBUILD)
    return [_decode(it.value) for it in found]


async def order_rebuild(gates: Gates, rebuild: SessionRebuild) -> None:
    """Record an order, or add it to the one that the session has."""
    await _write(gates, rebuild.key, lambda known: rebuild if known is None else merge_rebuilds(known, rebuild))


async def save_rebuild(gates: Gates, rebuild: SessionRebuild, *, account: AccountClaim | None = None) -> SessionRebuild:
    """Record how far a rebuild has come, and return it with what was undone meanwhile. Raises LeaseLost unless
    `account` is still held."""
    saved = await _write(
        gates, rebuild.key, lambda known: merge_rebuilds(rebuild, known) if known else rebuild, account=account
    )
    assert saved is not None
    return saved


async def drop_rebuild(gates: Gates, rebuild: SessionRebuild) -> bool:
    """Remove a finished order, unless something was undone meanwhile. Return whether it was removed."""
    left = await _write(gates, rebuild.key, lambda known: None if known == rebuild else known)
    return left is None


async def _write(
    gates: Gates,
    key: str,
    decide: Callable[[SessionRebuild | None], SessionRebuild | None],
    *,
    account: AccountClaim | None = None,
) -> SessionRebuild | None:
    def decide_text(present: str | None) -> str | None:
        new = decide(None if present is None else _decode(present))
        return None if new is None else msgspec.json.encode(new).decode()

    at = gates.clock.now()
    space = StateNamespace.SESSION_REBUILD
    text = await update_state_record(
        gates.store, space, key, at=at, decide=decide_text, step=Step.ERASE, account=account
    )
    return None if text is None else _decode(text)


def _decode(text: str) -> SessionRebuild:
    return msgspec.json.decode(text, type=SessionRebuild)
