"""A small balancer: it probes `/ready` of each host, and passes a connection to a host that was ready. It never repeats
a request, so a request to a host that does not take it fails."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx2

from everhold.testing.kill.gateway import KillableGateway

PROBE_SECONDS = 0.1


class ProbingBalancer:
    def __init__(self, hosts: Sequence[KillableGateway]) -> None:
        self.hosts = hosts
        self.ready: list[KillableGateway] = []
        self.url = ""
        self.passed: dict[int, int] = {host.port: 0 for host in hosts}
        """Port of a host -> the connections that it got."""
        self._turn = itertools.count()

    async def probe(self) -> None:
        """Look once which hosts are ready."""
        async with httpx2.AsyncClient(trust_env=False, timeout=30.0) as client:
            ready = []
            for host in self.hosts:
                with contextlib.suppress(httpx2.TransportError):
                    if (await client.get(f"{host.url}/ready")).status_code == 200:
                        ready.append(host)
            self.ready = ready

    async def keep_probing(self) -> None:
        while True:
            await self.probe()
            await asyncio.sleep(PROBE_SECONDS)

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.ready:
            writer.close()
            return
        host = self.ready[next(self._turn) % len(self.ready)]
        self.passed[host.port] += 1
        try:
            behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", host.port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, behind_writer), _copy(behind_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def open_balancer(hosts: Sequence[KillableGateway]) -> AsyncIterator[ProbingBalancer]:
    balancer = ProbingBalancer(hosts)
    await balancer.probe()
    server = await asyncio.start_server(balancer.pass_on, "127.0.0.1", 0)
    balancer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    probing = asyncio.create_task(balancer.keep_probing())
    try:
        yield balancer
    finally:
        probing.cancel()
        server.close()
