"""The person in charge of the simulated house: erases, notes, takes back, sends again, says who is who."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Coroutine
from typing import Any, Final

from everhold.control import Control
from everhold.errors import EverholdError
from everhold.testing.sim.witness import SECRET, Witness
from everhold.testing.sim.world import World

PACE_SECONDS: Final = 12.0
MEDDLING: Final = 0.2
DEEDS: Final = ("erase", "erase", "erase", "note", "undo", "stop", "replay", "replay", "link")


class Operator:
    """Somebody who does a thing now and then, with whichever process answers. Never tries twice."""

    def __init__(self, world: World, witness: Witness, answering: Callable[[], Control | None]) -> None:
        self.world = world
        self.witness = witness
        self.answering = answering
        self.dice = random.Random(f"{world.seed}/operator")

    async def live(self) -> None:
        while not self.world.calm:
            await asyncio.sleep(PACE_SECONDS * 2 * self.dice.random())
            if self.dice.random() < self.world.profile.deeds:
                self._start(self._deed)
        # what was given up goes out once more when the storm is over
        await asyncio.sleep(PACE_SECONDS)
        self._start(lambda control: control.replay())

    def meddle(self, recalled: str) -> None:
        """Erase what a turn was just told by a memory, now and then: it is at work, and has it in hand."""
        if self.dice.random() >= self.world.profile.deeds * MEDDLING:
            return
        places = [place for place, secret in self.witness.secrets.items() if secret in SECRET.findall(recalled)]
        for session, seq in places[:1]:
            self.world.tell("operator", f"erases what is recalled from {session}")
            work = functools.partial(_erase, session=session, seq=seq)
            self.world.loop.call_later(self.dice.random() * 5, self._start, work)

    def _start(self, deed: Callable[[Control], Coroutine[Any, Any, object] | None]) -> None:
        control = self.answering()
        if control is not None and (work := deed(control)) is not None:
            self.world.loop.create_task(self._try(work))

    async def _try(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except EverholdError as error:
            self.world.tell("operator", f"is told: {error}")

    def _deed(self, control: Control) -> Coroutine[Any, Any, object] | None:
        dice = self.dice
        deed = dice.choice(DEEDS)
        sessions = self.witness.sessions()
        if not sessions:
            return None
        session = dice.choice(sessions)
        self.world.tell("operator", f"{deed}s in {session}")
        match deed:
            case "erase":
                known = sorted(seq for where, seq in self.witness.secrets if where == session)
                if not known:
                    return None
                return _erase(control, session=session, seq=dice.choice(known))
            case "note":
                return control.note(session, f"note of the operator {dice.random():.6f}")
            case "undo":
                return control.undo(session, what=dice.choice(("turn", "compress")))
            case "stop":
                return control.stop(session)
            case "link":
                return self._link(control, f"{session}/{dice.random():.6f}")
            case _:
                return control.replay()

    async def _link(self, control: Control, identity: str) -> None:
        await control.store.link_identity(identity, "ada", at=self.world.now())
        self.witness.linked.append(identity)


def _erase(control: Control, *, session: str, seq: int) -> Coroutine[Any, Any, object]:
    return control.erase(session, [seq], why="somebody asked")
