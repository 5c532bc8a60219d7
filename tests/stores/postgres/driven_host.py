"""A host in a process of its own that does what a test tells it, one line of JSON at a time.

`python -m tests.stores.postgres.driven_host URL` reads `["accept", session, text]`, `["claim", session]`,
`["begin", session]` or `["where", ""]` (where its source is) and answers each with what came of it.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from typing import Any

from everhold.core.entries import Began, EntryDraft
from everhold.errors import EverholdError
from everhold.ports.store import Change, Claim, Step
from everhold.stores.postgres import PostgresStore
from everhold.testing.seeded_random import SeededRandom
from tests.stores.postgres.scenario import make_message

LEASE_SECONDS = 1.5


class DrivenHost:
    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.claims: dict[str, Claim] = {}

    async def do(self, what: str, session: str, text: str = "") -> Any:
        if what == "accept":
            done = await self.store.commit(make_message(session, text, dedup=text, wake="turn"))
            return {"seqs": done.seqs, "duplicate": done.duplicate}
        if what == "claim":
            for claim in await self.store.claim_cursors(owner=f"host-{os.getpid()}", lease=LEASE_SECONDS, limit=8):
                self.claims[claim.session] = claim
            return {"fence": self.claims[session].fence} if session in self.claims else {}
        if what == "where":
            return {"source": inspect.getfile(PostgresStore)}
        assert what == "begin"
        return {"seqs": (await self.store.commit(make_begin(self.claims[session]))).seqs}


def make_begin(claim: Claim) -> Change:
    draft = EntryDraft(body=Began(type="turn", takes=(1,), consumer="turn"), author="agent:main")
    return Change(step=Step.BEGIN, session=claim.session, at=2.0, entries=(draft,), claim=claim)


async def serve(url: str) -> None:
    store = await PostgresStore.open(url, chance=SeededRandom(os.getpid()))
    host = DrivenHost(store)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            answer = await host.do(*json.loads(line))
        except EverholdError as error:
            answer = {"error": type(error).__name__, "message": error.message}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    await store.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
