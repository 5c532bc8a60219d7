"""What must be true when everything has come to rest. Reads the disk and the far sides; knows nothing of flow."""

from __future__ import annotations

from everhold.stores.sqlite import SqliteStore
from everhold.testing.sim.host import Surroundings
from everhold.testing.sim.witness import Witness
from everhold.testing.sim.world import World


async def check(
    store: SqliteStore, world: World, witness: Witness, surroundings: Surroundings, *, at_rest: bool
) -> list[str]:
    """Everything that is not as it must be."""
    return await store.verify()
