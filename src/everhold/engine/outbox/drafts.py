"""Drafts: a reply that is shown while it is made. A draft is never the record.

The first message of a draft is a delivery. Its receipt is committed before it is sent, without a remote id, and is
completed when its answer arrives. So the final text edits it even after a restart. If its answer was lost, the delivery
of the reply settles it. The edits of a draft may be lost at any time, because the reply is committed at the turn's end.
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
from everhold.errors import EverholdError, InDoubt, LeaseLost, Refused, Transient
from everhold.ports.platform import OutgoingMessage, SupportsDrafts, can_type
from everhold.ports.store import Change, Claim, Receipt, Step, Store

T = TypeVar("T")

DRAFT_DEADLINE_SECONDS: Final = 10.0
EDIT_INTERVAL_SECONDS: Final = 1.0
"""How often a visible draft is updated, because platforms limit edits."""
MIN_FIRST_CHARS: Final = 40
FIRST_DRAFT_DELAY_SECONDS: Final = 0.5
"""How long a reply grows before it is shown. A reply that is complete by then is sent once instead of sent and edited.
"""

CUT_OUTCOMES: Final = frozenset({"stopped", "interrupted"})
"""Outcomes after which the draft stays as it is. A failed turn replaces it by a notice."""
STOPPED_SUFFIX: Final = " … (stopped)"


TYPING_INTERVAL_SECONDS: Final = 4.0
"""How often the typing indicator is sent. Platforms show it for about five seconds."""
TYPING_DELAY_SECONDS: Final = 0.3
"""How long a turn runs before it is shown. The reply of a shorter turn needs no announcement."""


@contextlib.contextmanager
def show_typing(gates: Gates, runtimes: AgentRuntimes, place: ChatLocation | None) -> Iterator[None]:
    """Show a typing indicator at `place` while the block runs, if the platform supports it."""
    platform: object = None if place is None else runtimes.find_platform(place.platform, place.account)
    if place is None or not can_type(platform):
        yield
        return
    shown = functools.partial(platform.send_typing, place)

    async def show() -> None:
        await gates.sleep(TYPING_DELAY_SECONDS)
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
    """One reply as it grows. It collects text at once and shows it at intervals."""

    def __init__(
        self,
        gates: Gates,
        claim: Claim,
        *,
        op: int,
        place: ChatLocation,
        platform: SupportsDrafts,
        limit: int,
        is_keyed: bool,
        visible_after: float = 0.0,
        deadline: float = DRAFT_DEADLINE_SECONDS,
    ) -> None:
        """`is_keyed`: the platform recognises a draft that is sent again. `visible_after`: as in `Platform`."""
        self.gates = gates
        self.claim = claim
        self.op = op
        self.place = place
        self.platform = platform
        self.limit = limit
        self.is_keyed = is_keyed
        self.visible_after = visible_after
        self.deadline = deadline
        self.text = ""
        self.remote_id = ""
        self._restart_text = False
        self._closing = False
        self._wakeup = asyncio.Event()
        """Also set at the end of an interval, so it does not mean that the reply is complete."""
        self._grown = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add_text(self, piece: str | None) -> None:
        """Add text; None: the reply starts again with the next piece, and the shown text may stay until then.

        It never waits and never raises, because it is called while a model answers.
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
        """Show nothing more, and wait for the edit in progress, because it would overwrite the final text."""
        self._closing = True
        self._wakeup.set()
        self._grown.set()
        if self._task is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def abandon(self) -> None:
        """Stop at once, because there will be no reply."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            await self.gates.sleep(FIRST_DRAFT_DELAY_SECONDS, wakeup=self._wakeup)
            if self._closing:
                return
            self._wakeup.clear()
            # Deliver earlier replies first, because a draft must not appear above an earlier reply.
            cursor = await self.gates.store.get_cursor(place_consumer(self.place), self.claim.session)
            if cursor is not None and (cursor.since is not None or cursor.in_flight is not None):
                return
            left = await find_left_draft(self.gates.store, self.claim.session, self.op, self.place)
            if left is not None and not left.remote and not self.is_keyed:
                return  # it may be visible already, and another one would be a second
            self.remote_id = left.remote if left is not None else ""
            if not self.remote_id:
                self.remote_id = await self._send_first(is_recorded=left is not None)
            while not self._closing:
                self._grown.clear()
                await self.gates.sleep(EDIT_INTERVAL_SECONDS, wakeup=self._wakeup)
                self._wakeup.clear()
                await self._grown.wait()
                if not self._closing:
                    await self._show_while_owned(functools.partial(self.platform.revise, self.remote_id))
        except EverholdError as error:
            self.gates.log.debug("draft.failed", session=self.claim.session, op=self.op, error=error)

    async def _send_first(self, *, is_recorded: bool) -> str:
        """Send the first message, which is stored before, and return its remote id."""
        if not is_recorded:
            await self._commit_receipt()
        try:
            remote = await self._show_while_owned(self.platform.draft)
        except InDoubt:
            await self._commit_receipt(in_doubt=not self.is_keyed)
            raise
        except (Transient, Refused):
            await self._commit_receipt(remote=outbox_platform.UNSENT_REMOTE_ID, durable=False)
            raise
        # If the disk loses this commit, the answer counts as lost.
        await self._commit_receipt(remote=remote, durable=False)
        return remote

    async def _show_while_owned(self, how: Callable[[OutgoingMessage], Awaitable[T]]) -> T:
        """Show something if the turn is still ours. Another worker waits only for the deadline before it shows the
        final text.
        """
        out = self._build_message()
        ends = self.gates.clock.monotonic() + self.deadline
        cursor = await self.gates.store.get_cursor(self.claim.consumer, self.claim.session)
        if cursor is None or cursor.fence != self.claim.fence:
            raise LeaseLost(f"session {self.claim.session}: another worker holds operation {self.op}")
        left = ends - self.gates.clock.monotonic()
        try:
            return await deliver_outside("draft", lambda: how(out), self.gates, deadline=left)
        except InDoubt:
            # It may arrive until its deadline. It must not overwrite the final text, and a probe must see it.
            await self.gates.sleep(max(0.0, ends - self.gates.clock.monotonic()) + self.visible_after)
            raise

    def _build_message(self) -> OutgoingMessage:
        return OutgoingMessage(
            to=self.place, text=self.text[: self.limit - 2] + " …", key=build_draft_key(self.claim.session, self.op)
        )

    async def _commit_receipt(self, *, remote: str = "", in_doubt: bool = False, durable: bool = True) -> None:
        receipt = Receipt(
            consumer=place_consumer(self.place),
            session=self.claim.session,
            seq=self.op,
            part=outbox_platform.DRAFT_PART,
            key=build_draft_key(self.claim.session, self.op),
            remote=remote,
            in_doubt=in_doubt,
        )
        await self.gates.commit(build_draft_change(self.gates, self.claim, receipt, durable=durable))


def build_draft_change(gates: Gates, claim: Claim, receipt: Receipt, *, durable: bool = True) -> Change:
    """Return the change that stores the receipt of a draft."""
    return Change(
        step=Step.DRAFT,
        session=claim.session,
        at=gates.clock.now(),
        claim=claim,
        op=receipt.seq,
        receipts=(receipt,),
        durable=durable,
    )


async def find_left_draft(store: Store, session: str, op: int, place: ChatLocation) -> Receipt | None:
    """Return the receipt of the draft that an earlier worker sent for this turn, if there is one."""
    return await outbox_platform.find_draft_receipt(store, session, op, place_consumer(place))


async def render_cut_off_notice(ended: Ended, draft: ReplyDraft | None) -> str:
    """Return the notice that replaces a draft that will not be finished; empty if no draft was sent."""
    if draft is None or ended.outcome not in CUT_OUTCOMES:
        return ""
    if await find_left_draft(draft.gates.store, draft.claim.session, draft.op, draft.place) is None:
        return ""
    return f"{draft.text[: draft.limit - len(STOPPED_SUFFIX)].rstrip()}{STOPPED_SUFFIX}".strip()


def build_draft_key(session: str, op: int) -> str:
    return f"{session}:{op}:draft"
