"""The process that is killed: the real store, flows and lock of a home, with hands that reach outside of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from everhold.control import Control
from everhold.core.access import Admission
from everhold.core.consumers import PLATFORM, parse_consumer
from everhold.core.entries import Entry, Kind, Place
from everhold.errors import HomeBusy, Refused
from everhold.flow.accept import Accept
from everhold.flow.gates import Bells, Gates
from everhold.flow.memory import Attached
from everhold.flow.runtime import Runtime
from everhold.flow.state import update_state_record
from everhold.flow.supervise import LEASE_SECONDS, Supervisor
from everhold.logs import open_log
from everhold.ports.platform import Drafting, Incoming, Platform
from everhold.ports.store import Change, ConsumerCursor, Spend, StateNamespace, Step, Store, make_state_scope
from everhold.stores.sqlite import HomeLock
from everhold.testing.kill import town
from everhold.testing.kill.adapters import WireMemory, WireModel, WirePlatform, WireTool
from everhold.testing.kill.gates import DeadlyStore, Doom, Gate
from everhold.testing.kill.wire import Far

DRAIN_SECONDS: Final = 1.0


class Terms(Struct, frozen=True, kw_only=True):
    """What a process is told when it starts."""

    home: str
    socket: str
    gate: Gate | None = None
    lease: float = LEASE_SECONDS
    mutant: str = ""
    """The name of a planted bug."""


class Clock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class Chance:
    def bytes(self, n: int, /) -> bytes:
        return os.urandom(n)

    def random(self) -> float:
        return random.random()


class Parts(Struct, frozen=True, kw_only=True):
    """What a process is built of. Planted bugs put something else into one of these places."""

    platform: type[WirePlatform] = WirePlatform
    accept: type[Accept] = Accept
    runtime: type[Runtime] = Runtime
    policy: Callable[[str], str] = lambda platform: town.PLATFORMS[platform][1]


class Hands:
    """What the flows work with. Implements `flow.runtime.Runtimes`."""

    def __init__(self, far: Far, parts: Parts) -> None:
        self.parts = parts
        self.platforms = {name: parts.platform(far, name, delivery) for name, (delivery, _) in town.PLATFORMS.items()}
        self.memories = {
            name: Attached(WireMemory(far, name, delivery), instance=name) for name, delivery in town.MEMORIES.items()
        }
        model = WireModel(far)
        self._runtime = parts.runtime(
            agent="main",
            system="You live in a town.",
            models=(model,),
            summariser=model,
            tools={name: WireTool(far, name, effect) for name, effect in town.TOOLS.items()},
            memories=tuple(self.memories),
            soft=0.5,
            keep=1,
            model_deadline=5.0,
            text_limit=self._limit,
        )

    def _limit(self, place: Place) -> int:
        return town.TEXT_LIMIT

    def runtime(self, agent: str, choices: Mapping[str, str]) -> Runtime:
        return self._runtime

    def platform(self, name: str, account: str) -> Platform | None:
        return self.platforms.get(name)

    def drafting(self, name: str, account: str) -> Drafting | None:
        return self.platforms[name] if name == "keyed" else None

    def in_doubt(self, reader: str, agent: str) -> str:
        consumer = parse_consumer(reader)
        return self.parts.policy(consumer.platform) if consumer.kind == PLATFORM else "resend"

    def memory(self, instance: str, agent: str) -> Attached | None:
        return self.memories.get(instance)

    def attached(self) -> list[Attached]:
        return list(self.memories.values())


class Clerk:
    """Does what the office orders, and reports it only when it is done."""

    def __init__(self, far: Far, control: Control, store: Store) -> None:
        self.far = far
        self.control = control
        self.store = store

    async def work(self) -> None:
        while True:
            told = await self.far.ask("office", "next")
            if told is not None:
                order = msgspec.convert(told, town.Order)
                result = await self._obey(order)
                await self.far.ask("office", "done", {"id": order.id, "result": result})

    async def _obey(self, order: town.Order) -> object:
        given = order.given
        match order.do:
            case "note":
                heard = await self._heard(given["message"])
                return await self.control.note(heard.session, given["text"], by="person:ada")
            case "erase":
                heard = await self._heard(given["message"])
                if heard.body is None:
                    return None  # whoever began this had done it
                return await self.control.erase(heard.session, [heard.seq], why="the office wants it")
            case "replay":
                return await self._replay()
            case "link":
                await self.store.link_identity(given["identity"], given["person"], at=time.time())
                return None
            case "pay":
                await self._aside(Step.SPEND, spends=(Spend(budget=given["purse"], day=town.DAY, tokens=1),))
                return None
            case "mark":
                await update_state_record(
                    self.store,
                    StateNamespace.PLATFORM_OFFSET,
                    given["name"],
                    scope=make_state_scope("office", "main"),
                    at=time.time(),
                    decide=lambda _: "read",
                )
                return None
            case "quiet":
                return await self._unrest()
            case other:
                raise Refused(f"nobody here can {other}")

    async def _aside(self, step: Step, **what: Any) -> None:
        """Commit something that belongs to no session."""
        await self.store.commit(Change(step=step, session="", at=time.time(), **what))

    async def _replay(self) -> int:
        """Send again what was given up, as soon as something was; whoever began this may have done it."""
        for _ in range(2_000):
            if count := await self.control.replay():
                return count
            await asyncio.sleep(0.02)
        return 0

    async def _heard(self, message: str) -> Entry:
        """A message's place in the log, as soon as it has one; its words may be gone."""
        after = 0
        while True:
            page = await self.store.read_feed(after=after)
            for entry in page:
                if entry.kind is Kind.HEARD and entry.dedup is not None and town.named(entry.dedup) == message:
                    return entry
            if page:
                after = page[-1].pos
            else:
                await asyncio.sleep(0.02)

    async def _unrest(self) -> str:
        """What is still to be done, in a few words; empty when all is quiet."""
        waiting = await self.store.count_waiting()
        lanes = [_lane(lane) for lane in await self.store.list_cursors(waiting=True)]
        return f"{waiting} messages wait, and {', '.join(lanes[:5])}" if waiting or lanes else ""


def _lane(lane: ConsumerCursor) -> str:
    left = (lane.since or 0.0) + lane.wait - time.time()
    return (
        f"{lane.consumer} of {lane.session} (due in {left:.1f} s, {lane.owner or 'free'}, {lane.error or 'no error'})"
    )


async def live(terms: Terms, parts: Parts) -> None:
    """Serve a home from taking its lock to SIGTERM, or to a sudden end."""
    far = Far(Path(terms.socket))
    home = Path(terms.home)
    clock, chance = Clock(), Chance()
    log = open_log(clock=clock, form="json", level="warning")
    with HomeLock(home / "lock"):
        store = DeadlyStore.open(home / "log.db", chance=chance)
        store.doom = Doom(terms.gate)
        gates = Gates(store=store, clock=clock, chance=chance, log=log, owner=f"{os.getpid()}-{chance.bytes(4).hex()}")
        bells = Bells()
        hands = Hands(far, parts)
        accept = parts.accept(gates, reception=_reception, bells=bells)
        supervisor = Supervisor(
            gates,
            runtimes=hands,
            bells=bells,
            lease=terms.lease,
            send_deadline=town.DEADLINE,
            draft_deadline=town.DEADLINE,
        )
        control = Control(gates, bells=bells, accept=accept, runtimes=hands, erasures=home / "erasures.log")
        clerk = Clerk(far, control, store)
        await store.revoke_leases(owner=gates.owner, at=clock.now())
        await control.reapply_erasures()
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        work: dict[str, Callable[[], Any]] = {
            "dispatch": supervisor.dispatch,
            "renew": supervisor.renew,
            "office": clerk.work,
        }
        for name, platform in hands.platforms.items():
            work[f"listen {name}"] = functools.partial(platform.listen, accept)
        tasks = [asyncio.create_task(supervisor.keep(name, each), name=name) for name, each in work.items()]
        await far.ask("ready", "", {"pid": os.getpid(), "computed": time.process_time()})
        await stop.wait()
        await supervisor.drain(DRAIN_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()


async def _reception(incoming: Incoming) -> Admission:
    return Admission(agent="main", person=incoming.sender)


def main() -> None:
    terms = msgspec.json.decode(sys.argv[1], type=Terms)
    parts = Parts()
    if terms.mutant:
        from everhold.testing.kill.mutants import MUTANTS  # a healthy process knows nothing of them

        parts = MUTANTS[terms.mutant].parts
    with contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(live(terms, parts))
        except HomeBusy as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
