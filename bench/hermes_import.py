"""The time and memory that the import of a hermes-agent home takes: `python -m bench.hermes_import [MB]`.

The source is generated here from the documented columns, with compressed and uncompressed chats. The import runs in its
own process, and the operating system reports that process's peak size.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import apsw

from bench.in_process import temporary_directory
from bench.table import Row
from tests.hermes.built_home import BuiltHermesHome

CHATS = 40
WORDS = "the release plan, the dentist on tuesday, a bug in the parser and what came of it; " * 12


def make(home: Path, megabytes: int) -> Path:
    """Generate a home of about `megabytes` MB."""
    built = BuiltHermesHome(home)
    built.db.pragma("wal_autocheckpoint", 4000)
    sessions = [built.add_chat(f"chat-{n}", f"agent:main:telegram:dm:{n}") for n in range(CHATS)]
    row = (
        "insert into messages(session_id, role, content, timestamp, tool_calls, tool_call_id) values (?, ?, ?, ?, ?, ?)"
    )
    at, turn = 1_700_000_000.0, 0
    while built.path.stat().st_size < megabytes << 20:
        rows = []
        for session in sessions:
            for _ in range(50):
                turn, at = turn + 1, at + 4
                calls = json.dumps(
                    [{"id": f"c{turn}", "function": {"name": "look", "arguments": json.dumps({"n": turn})}}]
                )
                rows += [
                    (session, "user", f"question {turn}: {WORDS}", at, None, None),
                    (session, "assistant", "", at + 1, calls, None),
                    (session, "tool", f"saw {turn}: {WORDS}", at + 2, None, f"c{turn}"),
                    (session, "assistant", f"answer {turn}: {WORDS}", at + 3, None, None),
                ]
        with built.db:
            built.db.executemany(row, rows)
            for session in sessions[::2]:
                built.compress_in_place(session, head=(), tail=_tail(built.db, session))
        built.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    return built.close()


def _tail(db: apsw.Connection, session: str) -> list[int]:
    sql = "select id from messages where session_id = ? and active = 1 order by id desc limit 8"
    return sorted(id for (id,) in db.execute(sql, (session,)))


def measure(megabytes: int) -> list[Row]:
    with temporary_directory() as directory:
        source = make(directory / "there", megabytes)
        size = source.stat().st_size / (1 << 20)
        started = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "everhold",
            "--home",
            str(directory / "here"),
            "import",
            str(source.parent),
            "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        told = json.loads(done.stdout)["agents"]["main"]
        again = time.perf_counter()
        subprocess.run(command, capture_output=True, text=True, check=True)
        repeat = time.perf_counter() - again
    what = f"import {size:,.0f} MB, {told['rows']:,} messages"
    return [
        Row(what=f"{what}: peak size of the process", value=peak, unit="MB", target="< 300 MB", holds=peak < 300),
        Row(what=f"{what}: time", value=seconds, unit="s", beside=f"{told['rows'] / seconds:,.0f} messages/s"),
        Row(what=f"{what}: again, with nothing new", value=repeat, unit="s"),
    ]


def hermes_import_rows(rounds: int) -> list[Row]:
    """Import one gigabyte, once, because it takes minutes."""
    return measure(1024)


if __name__ == "__main__":
    for line in measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1024):
        print(f"{line.what}: {line.value:,.1f} {line.unit}  {line.beside}")
