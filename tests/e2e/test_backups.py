"""What a gateway copies by itself while something fails."""

from __future__ import annotations

import json
from pathlib import Path

from everhold.errors import StoreFull
from everhold.infra.backup_files import list_backups, list_increments
from everhold.ports.store_files import StoreCopy, SupportsFileCopies
from tests.e2e.running_gateway import RunningGateway

CONFIG = json.dumps(
    {
        "models": {"m": {"provider": "offline"}},
        "defaults": {"model": "m", "memories": []},
        "backup": {"every_hours": 1e-6, "increment_minutes": 0.01},
    }
)


class FilesWithoutRoom:
    """Increments of a store whose disk has no room for a copy."""

    def __init__(self, files: SupportsFileCopies | None) -> None:
        assert files is not None
        self.files = files
        self.write_increment = files.write_increment
        self.find_copy_end = files.find_copy_end

    async def make_copy(self, target: Path) -> StoreCopy:
        raise StoreFull("there is no room for a whole copy")


async def test_increments_go_on_while_full_backups_fail(tmp_path: Path) -> None:
    async with RunningGateway(tmp_path, CONFIG) as t:
        copies = t.app.backups.directory
        await t.send_and_wait("before")
        await t.wait_until(lambda: any(it.is_sound for it in list_backups(copies)))
        t.app.backups = type(t.app.backups)(copies, files=FilesWithoutRoom(t.app.store.files), now=t.app.clock.now)
        await t.send_and_wait("after")
        last = await t.app.store.last_pos()
        await t.wait_until(lambda: any(it.upto_pos >= last for it in list_increments(copies)))
        await t.wait_until(lambda: "no room for a whole copy" in t.app.backup_problem)
        assert max(it.pos for it in list_backups(copies)) < last
