"""Hosts on a PostgreSQL primary with a synchronous standby. The primary is killed again and again, and the standby
takes over, between HTTP callers and Telegram users.

At the end, what callers and users received is compared with the log, as in `hosts_trial`.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from everhold.testing.kill import http_trial
from everhold.testing.kill.hosts_trial import HostKillResult, HostTrial, KillableHosts, own_locks
from everhold.testing.postgres_pair import PostgresPair

T = TypeVar("T")

DATABASE: Final = "everhold_trial"


class PairThread:
    """A pair of servers and the thread that starts them, because a server ends with its thread."""

    def __init__(self) -> None:
        self.pair = PostgresPair()
        self.thread = ThreadPoolExecutor(1)

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.thread, work)


@contextmanager
def run_pair_thread() -> Iterator[PairThread]:
    found = PairThread()
    try:
        found.thread.submit(found.pair.start).result()
        found.pair.primary.run_sql(f"create database {DATABASE}")
        yield found
    finally:
        found.pair.stop()
        found.thread.shutdown()


class FailoverTrial(HostTrial):
    """A trial whose hosts live, and whose server dies."""

    def __init__(self, directory: Path, *, servers: PairThread, hosts: int, seed: int) -> None:
        super().__init__(directory, store_url=servers.pair.build_dsn(DATABASE), hosts=hosts, seed=seed)
        self.servers = servers

    async def _break_things(self, pool: KillableHosts, trigger: http_trial.CallerTrigger, kills: int) -> None:
        """Let the standby take over so many times. Each time a new standby is attached before the next one."""
        while self.failovers < kills:
            if moment := self.rng.choice(("", "kept", "words")):
                await trigger.wait_for(moment, seconds=http_trial.MAX_TRIGGER_SECONDS)
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.2, 1.0, 3.0)))
            await self.servers.run(self.servers.pair.fail_over)
            self.failovers += 1
            await asyncio.sleep(self.rng.random())
            await self.servers.run(self.servers.pair.attach_standby)


async def run_failovers(
    directory: Path, servers: PairThread, *, hosts: int, failovers: int, seed: int
) -> HostKillResult:
    return await FailoverTrial(directory, servers=servers, hosts=hosts, seed=seed).run(kills=failovers)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m everhold.testing.kill.failover_trial", description=__doc__)
    parser.add_argument("--failovers", type=int, default=10)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with (
        run_pair_thread() as servers,
        tempfile.TemporaryDirectory(prefix="everhold-hosts-") as directory,
        own_locks(),
    ):
        run = functools.partial(run_failovers, hosts=given.hosts, failovers=given.failovers, seed=given.seed)
        found = asyncio.run(run(Path(directory), servers))
    sys.stdout.write(f"{found}\n")
    sys.exit(1 if found.failures else 0)


if __name__ == "__main__":
    main()
