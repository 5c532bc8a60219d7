"""PgBouncer in transaction mode before a test server. It is a program of Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from everhold.testing.postgres_server import UNPRIVILEGED_UID, PostgresTestServer, build_server_user

SERVER_CONNECTIONS = 3
"""Fewer than two hosts open, so that transactions of both share server processes."""
START_SECONDS = 60.0


def find_pgbouncer() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def run_pooler(server: PostgresTestServer) -> Iterator[Path]:
    """Run a pooler before a server. Return the directory of its socket."""
    program = find_pgbouncer()
    assert program is not None
    home = Path(tempfile.mkdtemp(prefix="everhold-pb-"))
    config = home / "pgbouncer.ini"
    config.write_text(
        f"""[databases]
* = host={server.home} user=postgres
[pgbouncer]
unix_socket_dir = {home}
listen_port = 5432
auth_type = any
pool_mode = transaction
default_pool_size = {SERVER_CONNECTIONS}
max_client_conn = 200
logfile = {home}/log
"""
    )
    if os.getuid() == 0:  # it refuses to run as root
        for path in (home, config):
            os.chown(path, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    process = subprocess.Popen([program, "-q", str(config)], cwd=home, **build_server_user())
    try:
        ends = time.monotonic() + START_SECONDS
        while not (home / ".s.PGSQL.5432").exists():
            assert process.poll() is None, (home / "log").read_text()
            assert time.monotonic() < ends, (home / "log").read_text()
            time.sleep(0.02)
        yield home
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


def build_pooled_url(home: Path, url: str) -> str:
    """Return the address of the same database through a pooler."""
    return f"postgresql://postgres@/{psycopg.conninfo.conninfo_to_dict(url)['dbname']}?host={home}"
