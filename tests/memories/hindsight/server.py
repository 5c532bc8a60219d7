"""Hindsight's own server from PyPI on loopback, with its own PostgreSQL, and without a language model or with one that
derives a fact from each line.

`EVERHOLD_HINDSIGHT` names the program. Otherwise it is searched where `make prove HINDSIGHT=1` installs it and on the
PATH.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from tests.memories.deriving_model import DerivingModelService

INSTALLED = Path(__file__).parents[3] / ".hindsight" / "bin" / "hindsight-api"
DIMENSIONS = 384
DUMP = """
import json, sys
import psycopg2
with psycopg2.connect(sys.argv[1]) as connection, connection.cursor() as cursor:
    cursor.execute("select table_schema, table_name from information_schema.tables where table_type = 'BASE TABLE'"
                   " and table_schema not in ('pg_catalog', 'information_schema')")
    found = {}
    for schema, table in cursor.fetchall():
        cursor.execute(f'select t::text from "{schema}"."{table}" t')
        found[table] = "\\n".join(row for (row,) in cursor.fetchall())
    print(json.dumps(found))
"""
START_SECONDS = 900.0
"""A safety net for a program that never starts. A busy machine needs minutes."""
HOW = "`make prove HINDSIGHT=1` installs it, 1.4 GB; or name it in EVERHOLD_HINDSIGHT"


def program() -> Path | None:
    """Return Hindsight's server on this machine and the PostgreSQL it needs."""
    candidates = [os.environ.get("EVERHOLD_HINDSIGHT", ""), str(INSTALLED), shutil.which("hindsight-api") or ""]
    return next((path for it in candidates if it and (path := Path(it)).exists() and postgres(path)), None)


def postgres(server: Path) -> Path | None:
    return next(server.parent.parent.glob("lib/python*/site-packages/pg0/bin/pg0"), None)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


class Database:
    """PostgreSQL in its own directory. It refuses to run as root, so root runs it as the user nobody."""

    def __init__(self, program: Path, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.url = f"postgresql://postgres:postgres@127.0.0.1:{self.port}/postgres"
        self._program = home / "pg0"
        shutil.copy2(program, self._program)  # the user nobody may not read the installation directory
        self._program.chmod(0o755)
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:
            self._as = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(home, "nobody", "nogroup")

    def run(self, *words: str) -> None:
        environ = {"PATH": os.defpath, "HOME": str(self.home)}
        subprocess.run(
            [self._program, *words, "--name", "hindsight"],
            env=environ,
            cwd=self.home,
            check=True,
            capture_output=True,
            timeout=START_SECONDS,
            **self._as,
        )


class Server:
    """The real server, to be killed and restarted."""

    def __init__(
        self, program: Path, home: Path, *, database: str, model: DerivingModelService, derives: bool = False
    ) -> None:
        self.program = program
        self.database = database
        self.model = model
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = home / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._environ = {
            "PATH": os.defpath,
            "HOME": str(home),
            "HINDSIGHT_API_HOST": "127.0.0.1",
            "HINDSIGHT_API_PORT": str(self.port),
            "HINDSIGHT_API_DATABASE_URL": database,
            "HINDSIGHT_API_LLM_PROVIDER": "none",
            "HINDSIGHT_API_EMBEDDINGS_PROVIDER": "openai",
            "HINDSIGHT_API_EMBEDDINGS_OPENAI_API_KEY": "none",
            "HINDSIGHT_API_EMBEDDINGS_OPENAI_BASE_URL": f"{model.url}/v1",
            "HINDSIGHT_API_EMBEDDINGS_OPENAI_MODEL": "words",
            "HINDSIGHT_API_EMBEDDINGS_OPENAI_DIMENSIONS": str(DIMENSIONS),
            "HINDSIGHT_API_RERANKER_PROVIDER": "rrf",
            "HINDSIGHT_API_WORKER_ID": "everhold-test",
        }
        if derives:
            self._environ |= {
                "HINDSIGHT_API_LLM_PROVIDER": "openai",
                "HINDSIGHT_API_LLM_API_KEY": "none",
                "HINDSIGHT_API_LLM_MODEL": "words",
                "HINDSIGHT_API_LLM_BASE_URL": f"{model.url}/v1",
                "HINDSIGHT_API_AUDIT_LOG_ENABLED": "true",
                "HINDSIGHT_API_LLM_TRACE_ENABLED": "true",
            }

    def start(self, *, seconds: float = START_SECONDS) -> None:
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [self.program], env=self._environ, cwd=self.home, stdout=output, stderr=output, start_new_session=True
            )
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(httpx2.HTTPError):
                if httpx2.get(f"{self.url}/health", timeout=5.0).status_code == 200:
                    return
            time.sleep(0.2)
        raise AssertionError(f"Hindsight did not start:\n{self.output.read_text()[-4_000:]}")

    def dump_rows(self) -> dict[str, str]:
        """Return every row of its database as text, by table."""
        python = self.program.parent / "python"
        done = subprocess.run(
            [python, "-c", DUMP, self.database], check=True, capture_output=True, text=True, timeout=START_SECONDS
        )
        found: dict[str, str] = json.loads(done.stdout)
        return found

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


@contextlib.contextmanager
def running(program: Path, *, derives: bool = False) -> Iterator[Server]:
    """Run the server. If it derives, its language model is ours; otherwise it has none and keeps texts as they are."""
    pg0 = postgres(program)
    assert pg0 is not None
    home = Path(tempfile.mkdtemp(prefix="everhold-hindsight-"))
    try:
        database = Database(pg0, home)
        database.run("start", "--port", str(database.port))
        try:
            with DerivingModelService(dimensions=DIMENSIONS).threaded() as model:
                server = Server(program, home, database=database.url, model=model, derives=derives)
                try:
                    server.start()
                    yield server
                finally:
                    server.kill()
        finally:
            database.run("stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
