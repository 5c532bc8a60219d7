"""Planted bugs: processes that break one promise each. A harness that does not find them proves nothing."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Struct, structs

from everhold.flow.accept import Accept as Door
from everhold.flow.runtime import Runtime
from everhold.ports.platform import Accept, Incoming, Outgoing, Verdict
from everhold.ports.store import Step
from everhold.ports.tool import Effect
from everhold.testing.kill.adapters import WirePlatform
from everhold.testing.kill.child import Parts
from everhold.testing.kill.gates import Gate


class Mutant(Struct, frozen=True, kw_only=True):
    """A planted bug, what to say and where to die so that it shows, and what it must be found by."""

    parts: Parts
    gate: Gate
    found_by: str
    platform: str = "keyed"
    says: str = ""


class AcknowledgesFirst(WirePlatform):
    """Confirms what it was handed before it is committed."""

    async def listen(self, accept: Accept) -> None:
        offset = 0
        while True:
            for number, incoming in await self.news(offset):
                offset = number + 1
                await self.far.ask(f"platform/{self.name}", "poll", {"offset": offset})
                await accept(incoming)


class NewKeys(WirePlatform):
    """Gives every send a key of its own."""

    async def send(self, out: Outgoing) -> str:
        now = asyncio.get_running_loop().time()
        return await super().send(structs.replace(out, key=f"{out.key}@{now}"))


class Forgets(Door):
    """Does not recognise what it has heard before."""

    async def __call__(self, incoming: Incoming) -> Verdict:
        return await super().__call__(structs.replace(incoming, origin=structs.replace(incoming.origin, message="")))


class RunsAgain(Runtime):
    """Takes every tool for one that can be repeated."""

    @property
    def effects(self) -> dict[str, Effect]:
        return dict.fromkeys(self.tools, Effect.KEYED)


MUTANTS: Final = {
    "acknowledges before commit": Mutant(
        parts=Parts(platform=AcknowledgesFirst), gate=Gate(Step.ACCEPT, "before"), found_by="lost"
    ),
    "has no dedup": Mutant(parts=Parts(accept=Forgets), gate=Gate(Step.ACCEPT, "after"), found_by="dedup key"),
    "runs once-tools again": Mutant(
        parts=Parts(runtime=RunsAgain),
        gate=Gate(Step.RETURN, "before"),
        says="[pay]",
        found_by="pay (once) was done 2 times",
    ),
    "changes its keys": Mutant(
        parts=Parts(platform=NewKeys), gate=Gate(Step.DELIVERY_DONE, "before"), found_by="saw answers"
    ),
    "resends what must be held": Mutant(
        parts=Parts(policy=lambda _: "resend"),
        gate=Gate(Step.DELIVERY_DONE, "before"),
        platform="hold",
        found_by="had to be held",
    ),
}
