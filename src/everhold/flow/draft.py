"""A reply that is seen while it is made: lossy, never the record.

The first visible piece has a committed receipt, so that the final text edits it even after a restart. Everything else
about a draft may be lost at any time: whatever happens to it, the turn's end is committed and delivered by voice.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

from everhold.core.consumers import place_consumer
from everhold.core.entries import Ended, Place
from everhold.errors import EverholdError, InDoubt, LeaseLost
from everhold.flow import voice
from everhold.flow.gates import Gates
from everhold.flow.perform import hand_over
from everhold.flow.runtime import Runtimes
from everhold.ports.platform import Drafting, Outgoing, can_type
from everhold.ports.store import Change, Claim, Receipt, Step, Store

T = TypeVar("T")

DEADLINE_SECONDS: Final = 10.0
PACE_SECONDS: Final = 1.0
"""How often a visible draft is brought up to date: platforms limit edits."""
FIRST_CHARACTERS: Final = 40

PART: Final = voice.DRAFT

CUT: Final = frozenset({"stopped", "interrupted"})
"""How a turn ends that leaves its draft as it is. One that fails says so in its place."""
STOPPED: Final = " … (stopped)"


TYPING_SECONDS: Final = 4.0
"""How often it is shown that somebody is at work: platforms show it for about five seconds."""


@contextlib.contextmanager
def typing(gates: Gates, runtimes: Runtimes, place: Place | None) -> Iterator[None]:
    """Show at `place` that a reply is being made, for as long as the block lasts, if its platform can show that."""
    platform: object = None if place is None else runtimes.platform(place.platform, place.account)
    if place is None or not can_type(platform):
        yield
        return
    shown = functools.partial(platform.typing, place)

    async def show() -> None:
        while True:
            with contextlib.suppress(EverholdError):
                await hand_over("typing", shown, gates, deadline=TYPING_SECONDS)
            await gates.sleep(TYPING_SECONDS)

    task = asyncio.get_running_loop().create_task(show())
    try:
        yield
    finally:
        task.cancel()


class Sketch:
    """One reply as it grows. Collects text at once, shows it at its own pace."""

    def __init__(
        self,
        gates: Gates,
        claim: Claim,
        *,
        op: int,
        place: Place,
        platform: Drafting,
        limit: int,
        deadline: float = DEADLINE_SECONDS,
    ) -> None:
        self.gates = gates
        self.claim = claim
        self.op = op
        self.place = place
        self.platform = platform
        self.limit = limit
        self.deadline = deadline
        self.text = ""
        self.remote = ""
        self._anew = False
        self._closing = False
        self._bell = asyncio.Event()
        """Rings when the pace is over, too: that it rang does not say that the reply is made."""
        self._grown = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, piece: str | None) -> None:
        """More of the text; None: it begins anew with the next piece, and until then what is seen may stay.

        Never waits and never fails: it is called from inside a model's answer.
        """
        if piece is None:
            self._anew = True
            return
        self.text = piece if self._anew else self.text + piece
        self._anew = False
        self._grown.set()
        if self._task is None and len(self.text) >= FIRST_CHARACTERS:
            self._task = asyncio.get_running_loop().create_task(self._show())

    async def close(self) -> None:
        """The reply is made: show nothing more, and wait for what is on its way, or it would land on the final text."""
        self._closing = True
        self._bell.set()
        self._grown.set()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def abandon(self) -> None:
        """There will be no reply: stop at once."""
        if self._task is not None:
            self._task.cancel()

    async def _show(self) -> None:
        try:
            # what is being delivered comes first: a draft never stands above an earlier reply
            lane = await self.gates.store.get_cursor(place_consumer(self.place), self.claim.session)
            if lane is not None and (lane.since is not None or lane.in_flight is not None):
                return
            self.remote = await left_behind(self.gates.store, self.claim.session, self.op, self.place)
            if not self.remote:
                self.remote = await self._draw(self.platform.draft)
                await self.gates.commit(self._receipt())
            while not self._closing:
                self._grown.clear()
                await self.gates.sleep(PACE_SECONDS, bell=self._bell)
                self._bell.clear()
                await self._grown.wait()
                if not self._closing:
                    await self._draw(functools.partial(self.platform.revise, self.remote))
        except EverholdError as error:
            self.gates.log.debug("draft.lost", session=self.claim.session, op=self.op, error=error)

    async def _draw(self, how: Callable[[Outgoing], Awaitable[T]]) -> T:
        """Show something, if the turn is still ours: a successor waits only so long before it shows the final text."""
        out = self._out()
        ends = self.gates.clock.monotonic() + self.deadline
        lane = await self.gates.store.get_cursor(self.claim.consumer, self.claim.session)
        if lane is None or lane.fence != self.claim.fence:
            raise LeaseLost(f"session {self.claim.session}: operation {self.op} is in other hands")
        left = ends - self.gates.clock.monotonic()
        try:
            return await hand_over("draft", lambda: how(out), self.gates, deadline=left)
        except InDoubt:
            # it may land until its deadline, and must not do so on the final text
            await self.gates.sleep(max(0.0, ends - self.gates.clock.monotonic()))
            raise

    def _out(self) -> Outgoing:
        return Outgoing(to=self.place, text=self.text[: self.limit - 2] + " …", key=key_of(self.claim.session, self.op))

    def _receipt(self) -> Change:
        return Change(
            step=Step.DRAFT,
            session=self.claim.session,
            at=self.gates.clock.now(),
            claim=self.claim,
            op=self.op,
            receipts=(
                Receipt(
                    consumer=place_consumer(self.place),
                    session=self.claim.session,
                    seq=self.op,
                    part=PART,
                    key=key_of(self.claim.session, self.op),
                    remote=self.remote,
                ),
            ),
        )


async def left_behind(store: Store, session: str, op: int, place: Place) -> str:
    """The draft that an earlier hand showed for this turn, if one did."""
    shown = await store.list_receipts(session, seq=op, consumer=place_consumer(place))
    return next((receipt.remote for receipt in shown if receipt.part == PART), "")


async def cut_off(ended: Ended, sketch: Sketch | None) -> str:
    """What has to stand where a draft is seen that nobody will finish; nothing if none is seen."""
    if sketch is None or ended.outcome not in CUT:
        return ""
    if not await left_behind(sketch.gates.store, sketch.claim.session, sketch.op, sketch.place):
        return ""
    return f"{sketch.text[: sketch.limit - len(STOPPED)].rstrip()}{STOPPED}".strip()


def key_of(session: str, op: int) -> str:
    return f"{session}:{op}:draft"
