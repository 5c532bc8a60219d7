"""A restore that is killed at any time leaves the old store, the new one, or one that asks to repeat the restore."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.command_home import CommandHome, build_command
from tests.cli.test_backup import texts

pytestmark = pytest.mark.prove


@pytest.mark.parametrize("seed", range(max(2, int(os.environ.get("EVERHOLD_KILLS", "20")) // 50)))
def test_a_restore_killed_at_any_time_can_be_repeated(
    command_home: CommandHome, tmp_path: Path, plugin: Path, seed: int
) -> None:
    command_home.run("send", "one").ok()
    command_home.run("backup").ok()
    command_home.run("send", "two").ok()
    chance = random.Random(seed)
    ended = 0
    for round in range(5):
        home = CommandHome(tmp_path / f"copy-{round}", plugin)
        shutil.copytree(command_home.path, home.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("api.sock"))
        process = subprocess.Popen(
            build_command("restore", "--yes"), env=home.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(chance.uniform(0.2, 1.2))
        process.kill()
        ended += process.wait() == 0
        looked = home.run_in_process("status")
        if looked.code not in (0, 1) or "is damaged" in looked.err or "acknowledged" in looked.err:
            assert "restore" in looked.err or "delete" in looked.err
        else:
            assert texts(home) in (["one"], ["one", "two"])
        home.run_in_process("restore", "--yes").ok()
        assert texts(home) == ["one"]
        home.run_in_process("audit").ok()
    assert ended < 5
