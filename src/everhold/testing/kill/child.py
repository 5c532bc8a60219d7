"""The process that is killed: the real store, engine and lock of a home, with adapters to services outside of it."""

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

from everhold.admin.forgetting import PersonForgetter
from everhold.admin.sessions import SessionAdmin
from everhold.core.access import AdmissionDecision
from everhold.core.consumers import PLATFORM, parse_consumer
from everhold.core.entries import ChatLocation, Entry, EntryKind
from everhold.core.erasure import list_unread
from everhold.core.people import IdentityProof, PeoplePlanner
from everhold.engine.agent_runtime import AgentRuntime
from everhold.engine.gates import Gates, Wakeups
from everhold.engine.memory.tombstones import load_erasures
from everhold.engine.memory_client import MemoryClient
from everhold.engine.state_updates import update_people, update_state_record
from everhold.engine.supervisor import LEASE_SECONDS, WorkerSupervisor
from everhold.errors import HomeBusy, Refused
from everhold.ingress.accept import MessageAcceptor
from everhold.ports.clock import RandomSource
from everhold.ports.platform import IncomingMessage, Platform, SupportsDrafts
from everhold.ports.store import BudgetSpend, Change, ConsumerCursor, StateNamespace, Step, Store, make_state_scope
from everhold.stores.sqlite import HomeLock, SqliteStore
from everhold.telemetry.logs import open_log
from everhold.testing.kill import world
from everhold.testing.kill.adapters import KillMemoryAdapter, KillModelAdapter, KillPlatformAdapter, KillToolAdapter
from everhold.testing.kill.gates import KillGate, KillSwitch, add_kill_points
from everhold.testing.kill.json_lines import KillClient
from everhold.testing.timed_waits import TimedWaits

DRAIN_SECONDS: Final = 1.0


class ChildProcessTerms(Struct, frozen=True, kw_only=True):
    """The start options of a process."""

    home: str
    socket: str
    store_url: str = ""
    """The address of a PostgreSQL database; empty: a SQLite file in the home."""
    gate: KillGate | None = None
    lease: float = LEASE_SECONDS
    mutant: str = ""
    """The name of a mutant."""


class ChildProcessClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class ChildProcessRandom:
    def bytes(self, n: int, /) -> bytes:
        return os.urandom(n)

    def random(self) -> float:
        return random.random()


class ChildProcessParts(Struct, frozen=True, kw_only=True):
    """The parts of a process. A mutant replaces one of them."""

    platform: type[KillPlatformAdapter] = KillPlatformAdapter
    accept: type[MessageAcceptor] = MessageAcceptor
    runtime: type[AgentRuntime] = AgentRuntime
    policy: Callable[[str], str] = lambda platform: world.PLATFORM_GUARANTEES[platform][1]


class ChildProcessRuntimes:
    """What the workers use. Implements `engine.agent_runtime.AgentRuntimes`."""

    def __init__(self, remote: KillClient, parts: ChildProcessParts) -> None:
        self.parts = parts
        self.platforms = {
            name: parts.platform(remote, name, delivery) for name, (delivery, _) in world.PLATFORM_GUARANTEES.items()
        }
        self.memories = {
            name: MemoryClient(KillMemoryAdapter(remote, name, delivery), instance=name)
            for name, delivery in world.MEMORY_GUARANTEES.items()
        }
        model = KillModelAdapter(remote)
        self._runtime = parts.runtime(
            agent="main",
            system="You are under test.",
            models=(model,),
            summariser=model,
            tools={name: KillToolAdapter(remote, name, effect) for name, effect in world.TOOL_EFFECTS.items()},
            memories=tuple(self.memories),
            soft_share=0.5,
            keep_turns=1,
            model_deadline_seconds=5.0,
            text_limit=self._get_text_limit,
        )

    def _get_text_limit(self, place: ChatLocation) -> int:
        return world.TEXT_LIMIT_CHARS

    def get_runtime(self, agent: str, choices: Mapping[str, str]) -> AgentRuntime:
        return self._runtime

    def find_platform(self, name: str, account: str) -> Platform | None:
        return self.platforms.get(name)

    def find_draft_platform(self, name: str, account: str) -> SupportsDrafts | None:
        return self.platforms.get(name)

    def get_in_doubt_policy(self, reader: str, agent: str) -> str:
        consumer = parse_consumer(reader)
        return self.parts.policy(consumer.platform) if consumer.kind == PLATFORM else "resend"

    def find_memory(self, instance: str, agent: str) -> MemoryClient | None:
        return self.memories.get(instance)

    def list_memories(self) -> list[MemoryClient]:
        return list(self.memories.values())


class OrderExecutor:
    """Carries out the operator's orders and reports each when it is done."""

    def __init__(self, remote: KillClient, control: SessionAdmin, forgetter: PersonForgetter, store: Store) -> None:
        self.remote = remote
        self.control = control
        self.forgetter = forgetter
        self.store = store

    async def run(self) -> None:
        while True:
            told = await self.remote.call("operator", "next")
            if told is not None:
                order = msgspec.convert(told, world.OperatorOrder)
                result = await self._execute_order(order)
                await self.remote.call("operator", "done", {"id": order.id, "result": result})

    async def _execute_order(self, order: world.OperatorOrder) -> object:
        given = order.given
        match order.action:
            case "note":
                heard = await self._find_heard_entry(given["message"])
                return await self.control.add_note(heard.session, given["text"], by="person:ada")
            case "erase":
                heard = await self._find_heard_entry(given["message"])
                if heard.body is None:
                    return None  # an earlier process had done it
                return await self.control.erase_entries(heard.session, [heard.seq], why="the operator wants it")
            case "replay":
                return await self._replay_dead_letters()
            case "link":
                await self._plan_people(
                    lambda planner: planner.link_identity(
                        given["identity"], planner.get_labelled(given["person"]), IdentityProof.OPERATOR
                    )
                )
                return None
            case "unlink":
                await self._plan_people(lambda planner: planner.unlink_identity(given["identity"]))
                return None
            case "join":
                for message in (given["message"], given["other_message"]):
                    await self._find_heard_entry(message)
                await self._plan_people(functools.partial(_join_people, given["identity"], given["other"]))
                return None
            case "forget":
                await self.forgetter.forget_person(given["identity"])
                return None
            case "pay":
                await self._commit_without_session(
                    Step.SPEND, spends=(BudgetSpend(budget=given["budget"], day=world.SPENDING_DAY, tokens=1),)
                )
                return None
            case "mark":
                await update_state_record(
                    self.store,
                    StateNamespace.PLATFORM_OFFSET,
                    given["name"],
                    scope=make_state_scope("operator", "main"),
                    at=time.time(),
                    decide=lambda _: "read",
                )
                return None
            case "quiet":
                return await self._describe_remaining_work()
            case other:
                raise Refused(f"unknown order {other}")

    async def _plan_people(self, plan: Callable[[PeoplePlanner], None]) -> None:
        chance = self.control.gates.chance
        await update_people(self.store, chance=chance, at=time.time(), by="operator", plan=plan)

    async def _commit_without_session(self, step: Step, **what: Any) -> None:
        """Commit a change without a session."""
        await self.store.commit(Change(step=step, session="", at=time.time(), **what))

    async def _replay_dead_letters(self) -> int:
        """Replay the dead letters as soon as there are any. An earlier process may have done it."""
        for _ in range(2_000):
            if count := await self.control.replay_dead_letters():
                return count
            await asyncio.sleep(0.02)
        return 0

    async def _find_heard_entry(self, message: str) -> Entry:
        """Wait until a message is in the log and return its place. Its body may be erased."""
        after = 0
        while True:
            page = await self.store.read_feed(after=after)
            for entry in page:
                if (
                    entry.kind is EntryKind.HEARD
                    and entry.dedup is not None
                    and world.parse_message_name(entry.dedup) == message
                ):
                    return entry
            if page:
                after = page[-1].pos
            else:
                await asyncio.sleep(0.02)

    async def _describe_remaining_work(self) -> str:
        """Describe the remaining work; empty when there is none."""
        waiting = await self.store.count_waiting()
        cursors = [_describe_cursor(cursor) for cursor in await self.store.list_cursors(waiting=True)]
        if waiting or cursors:
            return f"{waiting} messages wait, and {', '.join(cursors[:5])}"
        # what an interrupted request may have deleted is asked for again a day later
        places = [place for it in await load_erasures(self.store) for place in it.places]
        unread = [place.memory for place in places if not place.asked_at or list_unread(place)]
        return f"{', '.join(unread)} has not confirmed a deletion" if unread else ""


def _join_people(identity: str, other: str, planner: PeoplePlanner) -> None:
    """Make one person of two identities."""
    planner.join_people(planner.get_person(identity), planner.get_person(other), IdentityProof.OPERATOR)


def _describe_cursor(cursor: ConsumerCursor) -> str:
    left = (cursor.since or 0.0) + cursor.wait - time.time()
    state = f"due in {left:.1f} s, {cursor.owner or 'free'}, {cursor.error or 'no error'}"
    return f"{cursor.consumer} of {cursor.session} ({state})"


async def open_trial_store(home: Path, url: str, *, chance: RandomSource, name: str = "log.db") -> Store:
    """Open the store of a trial: a SQLite file in the home, or a PostgreSQL database."""
    if not url:
        return SqliteStore.open(home / name, chance=chance)
    from everhold.stores.postgres import PostgresStore  # its driver is an extra

    return await PostgresStore.open(url, chance=chance)


async def serve_home(terms: ChildProcessTerms, parts: ChildProcessParts) -> None:
    """Serve a home from taking its lock until SIGTERM or a kill."""
    remote = KillClient(Path(terms.socket))
    home = Path(terms.home)
    clock, chance = ChildProcessClock(), ChildProcessRandom()
    log = open_log(clock=clock, form="json", level="warning")
    with TimedWaits() as waits, HomeLock(home / "lock"):
        store = await open_trial_store(home, terms.store_url, chance=chance)
        add_kill_points(store, KillSwitch(terms.gate))
        gates = Gates(store=store, clock=clock, chance=chance, log=log, owner=f"{os.getpid()}-{chance.bytes(4).hex()}")
        wakeups = Wakeups()
        runtimes = ChildProcessRuntimes(remote, parts)
        accept = parts.accept(gates, admit=_admit_message, wakeups=wakeups)
        supervisor = WorkerSupervisor(
            gates,
            runtimes=runtimes,
            wakeups=wakeups,
            lease_seconds=terms.lease,
            send_deadline=world.DEADLINE_SECONDS,
            draft_deadline=world.DEADLINE_SECONDS,
        )
        control = SessionAdmin(gates, wakeups=wakeups, accept=accept, runtimes=runtimes, erasures=home / "erasures.log")
        forgetter = PersonForgetter(control, agents=lambda: ("main",))
        executor = OrderExecutor(remote, control, forgetter, store)
        if store.is_exclusive:
            await store.revoke_leases(owner=gates.owner)
        await forgetter.resume_erasures(restored=await control.reapply_erasures() > 0)
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        work: dict[str, Callable[[], Any]] = {
            "dispatch": supervisor.dispatch,
            "renew": supervisor.keep_renewing_leases,
            "forgetting": forgetter.keep_finishing_unfinished,
            "operator": executor.run,
        }
        for name, platform in runtimes.platforms.items():
            work[f"listen {name}"] = functools.partial(platform.listen, accept)
        tasks = [asyncio.create_task(supervisor.keep_running(name, each), name=name) for name, each in work.items()]
        used = {"pid": os.getpid(), "computed": time.process_time(), "waited": waits.total_seconds}
        await remote.call("ready", "", used)
        await stop.wait()
        waits.reset()
        await supervisor.drain(DRAIN_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()
        await remote.call("stopped", "", {"pid": os.getpid(), "waited": waits.longest_seconds})


async def _admit_message(incoming: IncomingMessage) -> AdmissionDecision:
    return AdmissionDecision(agent="main", identity=incoming.sender)


def main() -> None:
    terms = msgspec.json.decode(sys.argv[1], type=ChildProcessTerms)
    parts = ChildProcessParts()
    if terms.mutant:
        from everhold.testing.kill.mutants import MUTANTS  # imported only for a mutant

        parts = MUTANTS[terms.mutant].parts
    with contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(serve_home(terms, parts))
        except HomeBusy as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
