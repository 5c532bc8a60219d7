"""Planted bugs: processes that break one promise each. The kill tests must find them."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import Struct, structs

from everhold.engine.agent_runtime import AgentRuntime
from everhold.ingress.accept import MessageAcceptor
from everhold.ports.platform import AcceptMessage, AcceptResult, IncomingMessage, OutgoingMessage
from everhold.ports.store import Step
from everhold.ports.tool import ToolEffect
from everhold.testing.kill.adapters import KillPlatformAdapter
from everhold.testing.kill.child import ChildProcessParts
from everhold.testing.kill.gates import KillGate


class KillMutant(Struct, frozen=True, kw_only=True):
    """A planted bug, the message and the gate that reveal it, and the failure that must be found."""

    parts: ChildProcessParts
    gate: KillGate
    found_by: str
    platform: str = "keyed"
    says: str = ""


class AcknowledgingFirstPlatform(KillPlatformAdapter):
    """Confirms updates before their commit."""

    async def listen(self, accept: AcceptMessage) -> None:
        offset = 0
        while True:
            for number, incoming in await self.fetch_updates(offset):
                offset = number + 1
                await self.remote.call(f"platform/{self.name}", "poll", {"offset": offset})
                await accept(incoming)


class ChangingKeysPlatform(KillPlatformAdapter):
    """Gives every attempt a new key."""

    async def send(self, out: OutgoingMessage) -> str:
        now = asyncio.get_running_loop().time()
        return await super().send(structs.replace(out, key=f"{out.key}@{now}"))


class ForgettingAccept(MessageAcceptor):
    """Does not recognise duplicates."""

    async def __call__(self, incoming: IncomingMessage) -> AcceptResult:
        return await super().__call__(structs.replace(incoming, origin=structs.replace(incoming.origin, message="")))


class RerunningRuntime(AgentRuntime):
    """Treats every tool as repeatable."""

    @property
    def tool_effects(self) -> dict[str, ToolEffect]:
        return dict.fromkeys(self.tools, ToolEffect.KEYED)


MUTANTS: Final = {
    "acknowledges before commit": KillMutant(
        parts=ChildProcessParts(platform=AcknowledgingFirstPlatform),
        gate=KillGate(Step.ACCEPT, "before"),
        found_by="lost",
    ),
    "has no dedup": KillMutant(
        parts=ChildProcessParts(accept=ForgettingAccept), gate=KillGate(Step.ACCEPT, "after"), found_by="dedup key"
    ),
    "runs once-tools again": KillMutant(
        parts=ChildProcessParts(runtime=RerunningRuntime),
        gate=KillGate(Step.RETURN, "before"),
        says="[pay]",
        found_by="pay (once) was done 2 times",
    ),
    "changes its keys": KillMutant(
        parts=ChildProcessParts(platform=ChangingKeysPlatform),
        gate=KillGate(Step.DELIVERY_DONE, "before"),
        found_by="saw answers",
    ),
    "resends what must be held": KillMutant(
        parts=ChildProcessParts(policy=lambda _: "resend"),
        gate=KillGate(Step.DELIVERY_DONE, "before"),
        platform="hold",
        found_by="under the hold policy",
    ),
}
