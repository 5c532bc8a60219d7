"""A PostgreSQL primary with a synchronous standby, which takes over when the primary is killed.

A server ends with the thread that starts it, so all methods that start one belong to the main thread.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from everhold.testing.postgres_server import DURABLE_SETTINGS, START_SECONDS, PostgresTestServer

PAIR_SETTINGS: Final[Mapping[str, str]] = {
    **DURABLE_SETTINGS,
    "fsync": "off",  # a kill of the processes loses nothing that was written, and the tests are faster
    "wal_retrieve_retry_interval": "100ms",
}


class PostgresPair:
    """Two servers. Every commit that is acknowledged is on both, as long as both run."""

    def __init__(self) -> None:
        self.primary = PostgresTestServer(PAIR_SETTINGS)
        self.standby = PostgresTestServer(PAIR_SETTINGS)

    def start(self) -> None:
        self.primary.start()
        self.attach_standby()

    def build_dsn(self, database: str) -> str:
        """Return the DSN of a database. It names both servers; the driver uses the one that accepts writes."""
        hosts = f"{self.primary.home},{self.standby.home}"
        return f"postgresql://postgres@/{database}?host={hosts}&target_session_attrs=read-write"

    def attach_standby(self) -> None:
        """Copy the primary to the other server, start it, and wait until commits wait for it."""
        standby = self.standby
        standby.kill_hard()
        shutil.rmtree(standby.data, ignore_errors=True)
        standby.run_program(
            "pg_basebackup",
            *("-h", str(self.primary.home), "-U", "postgres", "-D", str(standby.data)),
            *("-R", "-X", "stream", "-c", "fast"),
        )
        standby.start()
        # Both statements write no transaction, so they do not wait for a standby.
        self.primary.run_sql("alter system set synchronous_standby_names = '*'")
        self.primary.run_sql("select pg_reload_conf()")
        self.wait_for_standby()

    def wait_for_standby(self) -> None:
        """Wait until the standby is synchronous."""
        self._wait_for(self.has_standby)

    def has_standby(self) -> bool:
        return self.primary.run_sql("select sync_state from pg_stat_replication") == "sync"

    def fail_over(self) -> None:
        """Kill the primary, and let the standby take over. There is no standby until one is attached."""
        self.primary.kill_hard()
        self.promote()

    def promote(self) -> None:
        self.standby.run_sql("select pg_promote()")
        self.primary, self.standby = self.standby, self.primary
        # Without a standby it would wait for ever.
        self.primary.run_sql("alter system reset synchronous_standby_names")
        self.primary.run_sql("select pg_reload_conf()")

    def wait_for_waiting_commit(self) -> int:
        """Wait until a commit waits for the standby. Return the id of its server process."""
        found = ""

        def look() -> bool:
            nonlocal found
            found = self.primary.run_sql("select pid from pg_stat_activity where wait_event = 'SyncRep' limit 1")
            return bool(found)

        self._wait_for(look)
        return int(found)

    def stop(self) -> None:
        self.primary.stop()
        self.standby.stop()

    @staticmethod
    def _wait_for(condition: Callable[[], bool]) -> None:
        ends = time.monotonic() + START_SECONDS
        while not condition():
            if time.monotonic() > ends:
                raise RuntimeError("the pair of servers did not get there in time")
            time.sleep(0.05)


@contextmanager
def run_postgres_pair() -> Iterator[PostgresPair]:
    pair = PostgresPair()
    try:
        pair.start()
        yield pair
    finally:
        pair.stop()
