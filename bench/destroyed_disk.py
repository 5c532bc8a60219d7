"""Destroy the disk with the home under traffic, restore from another disk, and measure what is lost."""

from __future__ import annotations

import http.client
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import apsw

from bench.gateway import CREDENTIAL, Gateway
from bench.in_process import temporary_directory
from bench.table import Row, at_most, median
from everhold.infra.backup_files import list_backups
from everhold.infra.home import Home

INTERVAL_SECONDS = 6.0
SLACK_SECONDS = 2.0
"""The time to write an increment, on a busy machine."""
PAUSE_SECONDS = 0.01
CONFIG = """\
backup: {{directory: {disk}, increment_minutes: {minutes}}}
quotas: {{member: {{messages_per_minute: 1000000}}, chat: {{messages_per_minute: 1000000}}}}
"""


def destroyed_disk_rows(rounds: int) -> list[Row]:
    chance = random.Random(7)
    found = [lose_disk(chance.uniform(1.0, 2.5) * INTERVAL_SECONDS) for _ in range(rounds)]
    lost, sent, oldest = (list(column) for column in zip(*found, strict=True))
    beside = f"{sum(lost)} of {sum(sent)} messages lost in {rounds} trials, median {median(lost):g} each"
    what = f"disk destroyed, an increment every {INTERVAL_SECONDS:g} s: age of the oldest lost message"
    return [at_most(what, max(oldest), "s", INTERVAL_SECONDS + SLACK_SECONDS, beside=beside)]


def lose_disk(after_seconds: float) -> tuple[int, int, float]:
    """Return the number of lost messages, of acknowledged ones, and the age of the oldest lost one in seconds."""
    with temporary_directory() as directory, temporary_directory() as disk:
        config = CONFIG.format(disk=disk, minutes=INTERVAL_SECONDS / 60)
        gateway = Gateway(directory, config=config)
        acknowledged = talk(gateway, disk, after_seconds)
        gateway.process.kill()
        destroyed_at = time.monotonic()
        gateway.process.wait()
        shutil.rmtree(directory)
        home = Home(directory).create()
        home.config.write_text(config)
        home.config.chmod(0o600)
        command = [sys.executable, "-m", "everhold", "--home", str(directory), "restore", "--yes"]
        subprocess.run(command, check=True, capture_output=True)
        kept = read_texts(home.store)
        lost = [at for text, at in acknowledged.items() if text not in kept]
        return len(lost), len(acknowledged), destroyed_at - min(lost) if lost else 0.0


def talk(gateway: Gateway, disk: Path, seconds: float) -> dict[str, float]:
    """Send messages for so many seconds after the first backup. Return when each was acknowledged."""
    acknowledged: dict[str, float] = {}
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port)
    headers = {"content-type": "application/json", "authorization": CREDENTIAL}
    ends: float | None = None
    while ends is None or time.monotonic() < ends:
        text = f"message {len(acknowledged)}"
        connection.request("POST", "/api/messages", json.dumps({"chat": "disk", "text": text}), headers)
        response = connection.getresponse()
        said = response.read()
        assert response.status == 202, (response.status, said)
        acknowledged[text] = time.monotonic()
        if ends is None and any(backup.is_sound for backup in list_backups(disk)):
            ends = time.monotonic() + seconds
        time.sleep(PAUSE_SECONDS)
    connection.close()
    return acknowledged


def read_texts(store: Path) -> set[str]:
    db = apsw.Connection(str(store), flags=apsw.SQLITE_OPEN_READONLY)
    rows = db.execute("select body ->> 'text' from entries where kind = 'heard'").fetchall()
    db.close()
    return {text for (text,) in rows}
