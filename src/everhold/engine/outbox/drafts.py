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
from everhold.core.entries import ChatLocation, Ended
from everhold.engine.agent_runtime import AgentRuntimes
from everhold.engine.effects import deliver_outside
from everhold.engine.gates import Gates
from everhold.engine.outbox import platform as outbox_platform
from everhold.errors import EverholdError, InDoubt, LeaseLost
from everhold.ports.platform import OutgoingMessage, SupportsDrafts, can_type
from everhold.ports.store import Change, Claim, Receipt, Step, Store

T = TypeVar("T")

DRAFT_DEADLINE_SECONDS: Final = 10.0
EDIT_INTERVAL_SECONDS: Final = 1.0
"""How often a visible draft is brought up to date: platforms limit edits."""
MIN_FIRST_CHARS: Final = 40

DRAFT_PART: Final = outbox_platform.DRAFT_PART

CUT_OUTCOMES: Final = frozenset({"stopped", "interrupted"})
"""How a turn ends that leaves its draft as it is. One that fails says so in its place."""
STOPPED_SUFFIX: Final = " … (stopped)"


TYPING_INTERVAL_SECONDS: Final = 4.0
"""How often it is shown that somebody is at work: platforms show it for about five seconds."""


@contextlib.contextmanager
def show_typing(gates: Gates, runtimes: AgentRuntimes, place: ChatLocation | None) -> Iterator[None]:
    """Show at `place` that a reply is being made, for as long as the block lasts, if its platform can show that."""
    platform: object = None if place is None else runtimes.find_platform(place.platform, place.account)
    if place is None or not can_type(platform):
        yield
        return
    shown = functools.partial(platform.send_typing, place)

    async def show() -> None:
        while True:
            with contextlib.suppress(EverholdError):
                await deliver_outside("typing", shown, gates, deadline=TYPING_INTERVAL_SECONDS)
            await gates.sleep(TYPING_INTERVAL_SECONDS)

    task = asyncio.get_running_loop().create_task(show())
    try:
        yield
    finally:
        task.cancel()


class ReplyDraft:
    """One reply as it grows. Collects text at once, shows it at its own pace."""

    def __init__(
        self,
        gates: Gates,
        claim: Claim,
        *,
        op: int,
        place: ChatLocation,
        platform: SupportsDrafts,
        limit: int,
        deadline: float = DRAFT_DEADLINE_SECONDS,
    ) -> None:
        self.gates = gates
        self.claim = claim
        self.op = op
        self.place = place
        self.platform = platform
        self.limit = limit
        self.deadline = deadline
        self.text = ""
        self.remote_id = ""
        self._restart_text = False
        self._closing = False
        self._wakeup = asyncio.Event()
        """Rings when the pace is over, too: that it rang does not say that the reply is made."""
        self._grown = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add_text(self, piece: str | None) -> None:
        """More of the text; None: it begins anew with the next piece, and until then what is seen may stay.

        Never waits and never fails: it is called from inside a model's answer.
        """
        if piece is None:
            self._restart_text = True
            return
        self.text = piece if self._restart_text else self.text + piece
        self._restart_text = False
        self._grown.set()
        if self._task is None and len(self.text) >= MIN_FIRST_CHARS:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """The reply is made: show nothing more, and wait for what is on its way, or it would land on the final text."""
        self._closing = True
        self._wakeup.set()
        self._grown.set()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def abandon(self) -> None:
        """There will be no reply: stop at once."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            # what is being delivered comes first: a draft never stands above an earlier reply
            cursor = await self.gates.store.get_cursor(place_consumer(self.place), self.claim.session)
            if cursor is not None and (cursor.since is not None or cursor.in_flight is not None):
                return
            self.remote_id = await find_left_draft(self.gates.store, self.claim.session, self.op, self.place)
            if not self.remote_id:
                self.remote_id = await self._show_while_owned(self.platform.draft)
                await self.gates.commit(self._build_receipt())
            while not self._closing:
                self._grown.clear()
                await self.gates.sleep(EDIT_INTERVAL_SECONDS, wakeup=self._wakeup)
                self._wakeup.clear()
                await self._grown.wait()
                if not self._closing:
                    await self._show_while_owned(functools.partial(self.platform.revise, self.remote_id))
        except EverholdError as error:
            self.gates.log.debug("draft.failed", session=self.claim.session, op=self.op, error=error)

    async def _show_while_owned(self, how: Callable[[OutgoingMessage], Awaitable[T]]) -> T:
        """Show something, if the turn is still ours: a successor waits only so long before it shows the final text."""
        out = self._build_message()
        ends = self.gates.clock.monotonic() + self.deadline
        cursor = await self.gates.store.get_cursor(self.claim.consumer, self.claim.session)
        if cursor is None or cursor.fence != self.claim.fence:
            raise LeaseLost(f"session {self.claim.session}: operation {self.op} is in other hands")
        left = ends - self.gates.clock.monotonic()
        try:
            return await deliver_outside("draft", lambda: how(out), self.gates, deadline=left)
        except InDoubt:
            # it may land until its deadline, and must not do so on the final text
            await self.gates.sleep(max(0.0, ends - self.gates.clock.monotonic()))
            raise

    def _build_message(self) -> OutgoingMessage:
        return OutgoingMessage(
            to=self.place, text=self.text[: self.limit - 2] + " …", key=build_draft_key(self.claim.session, self.op)
        )

    def _build_receipt(self) -> Change:
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
                    part=DRAFT_PART,
                    key=build_draft_key(self.claim.session, self.op),
                    remote=self.remote_id,
                ),
            ),
        )


async def find_left_draft(store: Store, session: str, op: int, place: ChatLocation) -> str:
    """The draft that an earlier hand showed for this turn, if one did."""
    shown = await store.list_receipts(session, seq=op, consumer=place_consumer(place))
    return next((receipt.remote for receipt in shown if receipt.part == DRAFT_PART), "")


async def render_cut_off_notice(ended: Ended, sketch: ReplyDraft | None) -> str:
    """What has to stand where a draft is seen that nobody will finish; nothing if none is seen."""
    if sketch is None or ended.outcome not in CUT_OUTCOMES:
        return ""
    if not await find_left_draft(sketch.gates.store, sketch.claim.session, sketch.op, sketch.place):
        return ""
    return f"{sketch.text[: sketch.limit - len(STOPPED_SUFFIX)].rstrip()}{STOPPED_SUFFIX}".strip()


def build_draft_key(session: str, op: int) -> str:
    return f"{session}:{op}:draft"
