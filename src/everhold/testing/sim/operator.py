"""The simulated operator: erases, notes, undoes, stops, replays dead letters, links identities, pins entries."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from everhold.admin.forgetting import PersonForgetter
from everhold.admin.sessions import SessionAdmin
from everhold.core.people import IdentityProof, PeoplePlanner
from everhold.engine.state_updates import update_people
from everhold.errors import EverholdError
from everhold.testing.sim.invariants import SECRET_PATTERN, InvariantWitness
from everhold.testing.sim.world import SimWorld

if TYPE_CHECKING:
    from everhold.testing.sim.host import SimEnvironment

ALIASES: Final = ("", "north", "south")
PACE_SECONDS: Final = 12.0
INTERFERENCE_PROBABILITY: Final = 0.2
UNPIN_PROBABILITY: Final = 0.25
OPERATOR_ACTIONS: Final = (
    "erase", "erase", "note", "undo", "stop", "replay", "replay", "link", "join", "join", "part", "part",
    "alias", "alias", "forget",
)  # fmt: skip


class SimOperator:
    """Starts an operation from time to time at a serving process. It never retries."""

    def __init__(
        self,
        world: SimWorld,
        witness: InvariantWitness,
        environment: SimEnvironment,
        find_control: Callable[[], SessionAdmin | None],
        find_forgetter: Callable[[], PersonForgetter | None],
    ) -> None:
        self.world = world
        self.witness = witness
        self.environment = environment
        self.find_control = find_control
        self.find_forgetter = find_forgetter
        self.rng = random.Random(f"{world.seed}/operator")
        self.pin_rng = random.Random(f"{world.seed}/pins")

    async def run(self) -> None:
        if self.world.profile.pins:
            self.world.loop.create_task(self._keep_pinning())
        while not self.world.calm:
            await asyncio.sleep(PACE_SECONDS * 2 * self.rng.random())
            if self.rng.random() < self.world.profile.operator_actions:
                self._start_action(self._pick_action)
        # replay the dead letters after the faults end
        await asyncio.sleep(PACE_SECONDS)
        self._start_action(lambda control: control.replay_dead_letters())

    async def _keep_pinning(self) -> None:
        """Pin entries and remove pins. It has its own chance, so that the schedules of other seeds stay as they are."""
        while not self.world.calm:
            await asyncio.sleep(PACE_SECONDS * 2 * self.pin_rng.random())
            if self.pin_rng.random() < self.world.profile.pins:
                self._start_action(self._pick_pin)

    def _pick_pin(self, control: SessionAdmin) -> Coroutine[Any, Any, object] | None:
        rng, known = self.pin_rng, sorted(self.witness.secrets)
        if not known:
            return None
        session, seq = rng.choice(known)
        if rng.random() < UNPIN_PROBABILITY:
            self.world.stats["pins removed"] += 1
            self.world.record("operator", f"unpins entry {seq} of {session}")
            return control.unpin_entry(session, rng.choice((seq, None)))
        self.world.stats["entries pinned"] += 1
        self.world.record("operator", f"pins entry {seq} of {session}")
        return control.pin_entry(session, seq)

    def interfere(self, recalled: str) -> None:
        """Sometimes erase what a memory just returned to a running turn."""
        if self.rng.random() >= self.world.profile.operator_actions * INTERFERENCE_PROBABILITY:
            return
        places = [place for place, secret in self.witness.secrets.items() if secret in SECRET_PATTERN.findall(recalled)]
        for session, seq in places[:1]:
            self.world.record("operator", f"erases what is recalled from {session}")
            work = functools.partial(_erase_entry, session=session, seq=seq)
            self.world.loop.call_later(self.rng.random() * 5, self._start_action, work)

    def _start_action(self, action: Callable[[SessionAdmin], Coroutine[Any, Any, object] | None]) -> None:
        control = self.find_control()
        if control is not None and (work := action(control)) is not None:
            self.world.loop.create_task(self._try_action(work))

    async def _try_action(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except EverholdError as error:
            self.world.record("operator", f"gets an error: {error}")

    def _pick_action(self, control: SessionAdmin) -> Coroutine[Any, Any, object] | None:
        rng = self.rng
        action = rng.choice(OPERATOR_ACTIONS)
        sessions = self.witness.list_sessions()
        if not sessions:
            return None
        session = rng.choice(sessions)
        self.world.record("operator", f"{action}s in {session}")
        match action:
            case "erase":
                known = sorted(seq for where, seq in self.witness.secrets if where == session)
                if not known:
                    return None
                return _erase_entry(control, session=session, seq=rng.choice(known))
            case "note":
                return control.add_note(session, f"note of the operator {rng.random():.6f}")
            case "undo":
                return control.undo_turns(session, what=rng.choice(("turn", "compress")))
            case "stop":
                return control.stop_turn(session)
            case "join" | "part":
                return self._change_people(control, action)
            case "alias":
                self._edit_alias()
                return None
            case "forget":
                return self._forget_person()
            case "link":
                return self._link_identity(control, f"{session}/{rng.random():.6f}")
            case _:
                return control.replay_dead_letters()

    async def _change_people(self, control: SessionAdmin, action: str) -> None:
        """Make one person of two identities that have spoken, or take an identity away from its person."""
        known = sorted(
            identity
            for identity, record in (await control.store.get_people()).identities.items()
            if record.proof in (IdentityProof.SEEN, IdentityProof.LINKED)
        )
        if len(known) < 2:
            return
        one, other = self.rng.sample(known, 2)

        def plan(planner: PeoplePlanner) -> None:
            if action == "part":
                planner.get_person(one)
                planner.unlink_identity(one)
            else:
                planner.join_people(planner.get_person(one), planner.get_person(other), IdentityProof.LINKED)

        await update_people(control.store, chance=control.gates.chance, at=self.world.now(), by="operator", plan=plan)
        self.world.stats[f"people {action}ed"] += 1

    def _list_known(self) -> list[str]:
        return sorted(it for it in self.witness.people.moments[-1].person_of if "/" not in it)

    def _edit_alias(self) -> None:
        """Edit the configuration of a memory: from the next message on, somebody has another name there."""
        rng, known = self.rng, self._list_known()
        if known:
            provider = self.environment.providers[rng.choice(sorted(self.environment.providers))]
            provider.set_alias(rng.choice(known), rng.choice(ALIASES))
            self.world.stats["aliases edited"] += 1

    def _forget_person(self) -> Coroutine[Any, Any, object] | None:
        forgetter, known = self.find_forgetter(), self._list_known()
        if forgetter is None or not known:
            return None
        self.world.stats["people forgotten"] += 1
        identity = self.rng.choice(known)
        self.world.record("operator", f"forgets {identity}")
        self.witness.record_forget_order(identity)
        return forgetter.forget_person(identity)

    async def _link_identity(self, control: SessionAdmin, identity: str) -> None:
        await update_people(
            control.store,
            chance=control.gates.chance,
            at=self.world.now(),
            by="operator",
            plan=lambda planner: planner.link_identity(identity, planner.get_labelled("ada"), IdentityProof.OPERATOR),
        )
        self.witness.linked.append(identity)


def _erase_entry(control: SessionAdmin, *, session: str, seq: int) -> Coroutine[Any, Any, object]:
    return control.erase_entries(session, [seq], why="requested")
