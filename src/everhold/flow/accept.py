"""platform -> log: commit, then acknowledge. A message is kept before anybody is told that it is."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec import structs

from everhold.core.access import Admission, audience, bare, is_notice, label
from everhold.core.address import derive
from everhold.core.commands import TALK, parse
from everhold.core.consumers import COMMANDS, TURN
from everhold.core.entries import Draft, Heard, Place, Stamp, clean, cleansed
from everhold.core.ids import session_id
from everhold.errors import Conflict
from everhold.flow.gates import Bells, Gates
from everhold.flow.state import update_state_record
from everhold.ports.platform import SCHEDULED, UNREADABLE, Incoming, Verdict
from everhold.ports.store import (
    Change,
    Committed,
    Opening,
    StateNamespace,
    StateWrite,
    Step,
    Wakeup,
    make_state_scope,
)

Reception: TypeAlias = Callable[[Incoming], Awaitable[Admission]]
"""Who is this, and may they speak? Configuration and people are behind it."""

MOST_KNOWN: Final = 10_000
MOST_CONFLICTS: Final = 1_000
"""How often in a row other writers may come before one message. Of those that collide, one always gets through."""
_WAKES: Final = {reader: (Wakeup(consumer=reader),) for reader in (TURN, COMMANDS)}


class Known(NamedTuple):
    """Where a conversation led when somebody last spoke in it. A shortcut: a commit refuses what is no longer so."""

    session: str
    stamp: Stamp
    author: str
    bound: tuple[str, str]


class OffsetVersion:
    """The version of a platform offset once everything that was begun with it is committed."""

    def __init__(self, version: int) -> None:
        self.version = version


class Accept:
    """The door. One commit per message; a repeated delivery is recognised, an edit is new."""

    def __init__(self, gates: Gates, *, reception: Reception, bells: Bells) -> None:
        self.gates = gates
        self.reception = reception
        self.bells = bells
        self._known: dict[tuple[object, ...], Known] = {}
        """By all that an address and a stamp are made of."""
        self._offsets: dict[tuple[str, str], OffsetVersion] = {}
        """By scope and key."""

    async def __call__(self, incoming: Incoming) -> Verdict:
        incoming = presentable(incoming)
        admission = await self.reception(incoming)
        if admission.refusal:
            origin = incoming.origin
            self.gates.log.info(
                "message.denied",
                platform=origin.platform,
                account=origin.account,
                chat=origin.chat,
                reason=admission.refusal,
            )
            await self._pass_by(incoming)
            return Verdict(outcome="denied", reason=admission.refusal)
        if admission.ignored:
            await self._pass_by(incoming)
            return Verdict(outcome="ignored")
        for attempt in range(MOST_CONFLICTS):
            try:
                return await self._commit(incoming, admission)
            except Conflict:
                # Another writer came first: it opened the session, or moved the offset. What it wrote is there now.
                if attempt == MOST_CONFLICTS - 1 or not await self._still_holds(incoming.state_write):
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _pass_by(self, incoming: Incoming) -> None:
        """Nothing of it is kept, but how far the platform was read is."""
        at = self.gates.clock.now()
        if incoming.state_write is not None:
            writes = (incoming.state_write,)
            await self.gates.store.commit(Change(step=Step.STATE, session="", at=at, state_writes=writes))
        if (offset := incoming.offset) is not None:
            await update_state_record(
                self.gates.store,
                StateNamespace.PLATFORM_OFFSET,
                offset.key,
                scope=make_state_scope(incoming.origin.platform, incoming.origin.account),
                at=at,
                decide=lambda _: offset.value,
            )

    async def _still_holds(self, write: StateWrite | None) -> bool:
        """Whether the record has the version that `write` names. If it has not, trying again would not help."""
        if write is None:
            return True
        record = await self.gates.store.get_state_record(write.namespace, write.key, scope=write.scope)
        return (0 if record is None else record.version) == write.version

    async def _move_offset(self, incoming: Incoming) -> tuple[tuple[StateWrite, ...], OffsetVersion | None]:
        """The write that goes with a message (how far the account was read by it), and what it was based on."""
        if incoming.offset is None:
            return (), None
        key = _get_offset_place(incoming)
        known = self._offsets.get(key)
        if known is None:
            record = await self.gates.store.get_state_record(StateNamespace.PLATFORM_OFFSET, key[1], scope=key[0])
            # several may have read it at once: the first of them says what the others go on from
            known = self._offsets.get(key) or OffsetVersion(0 if record is None else record.version)
            if known.version:
                if len(self._offsets) >= MOST_KNOWN:
                    self._offsets.clear()
                self._offsets[key] = known
        write = StateWrite(
            namespace=StateNamespace.PLATFORM_OFFSET,
            key=key[1],
            scope=key[0],
            value=incoming.offset.value,
            version=known.version,
        )
        # The store commits in order, so the next message can name the version that this one makes.
        known.version += 1
        return (write,), known

    def _forget_offset(self, incoming: Incoming, known: OffsetVersion | None) -> None:
        """Another writer moved the offset: read it again, unless that was done since."""
        if known is not None:
            key = _get_offset_place(incoming)
            if self._offsets.get(key) is known:
                del self._offsets[key]

    async def _commit(self, incoming: Incoming, admission: Admission) -> Verdict:
        gates, origin = self.gates, incoming.origin
        at = gates.clock.now()
        whereabouts = (
            admission,
            incoming.kind,
            origin.platform,
            origin.account,
            origin.chat,
            origin.thread,
            incoming.sender,
            incoming.directory,
            incoming.repo,
        )
        known = self._known.get(whereabouts)
        opens: Opening | None = None
        new = False
        if known is None:
            known, opens = await self._look_up(incoming, admission, at)
            new = True
        session, stamp, author, bound = known
        body = heard(incoming, stamp, admission)
        wake = COMMANDS if body.command else TURN
        entries = (Draft(body=body, author=author, dedup=dedup_key(incoming)),)
        state_writes, known_offset = await self._move_offset(incoming)
        if incoming.state_write is not None:
            state_writes += (incoming.state_write,)
        # a hand that is offered is kept free from here on: nothing may go wrong before the commit
        wakes = self.bells.offer(_WAKES[wake]) if body.asks else ()
        change = Change(
            step=Step.ACCEPT,
            session=session,
            at=at,
            opens=opens,
            bound=bound if opens is None else None,
            entries=entries,
            wakeups=wakes,
            state_writes=state_writes,
            blobs=incoming.files,
        )
        try:
            done = await (self._keep(change) if wakes and wakes[0].owner else gates.store.commit(change))
        except Conflict:
            self._known.pop(whereabouts, None)
            self._forget_offset(incoming, known_offset)
            raise
        if new:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[whereabouts] = known
        if done.duplicate:
            outcome = "differs" if done.differs else "duplicate"
            if done.differs:
                gates.log.warning("message.differs", session=done.session, seq=done.seqs[0])
            return Verdict(outcome=outcome, session=done.session, seq=done.seqs[0])
        if opens is not None:
            gates.log.info("session.bound", session=session, address=stamp.address)
        gates.log.info("message.accepted", session=session, seq=done.seqs[0], asks=body.asks)
        if wake != TURN or not done.claims:  # else the session's turn begins only now, and reads it then
            self.bells.ring(session, work=body.asks and not done.claims)
        return Verdict(outcome="accepted", session=session, seq=done.seqs[0])

    async def _look_up(self, incoming: Incoming, admission: Admission, at: float) -> tuple[Known, Opening | None]:
        """Where the message belongs, and the session that is to be opened for it if there is none yet."""
        gates, origin = self.gates, incoming.origin
        place = derive(
            agent=admission.agent,
            platform=origin.platform,
            account=origin.account,
            kind=incoming.kind,
            chat=admission.chat or origin.chat,
            thread=origin.thread,
            sender=incoming.sender,
            group=admission.group,
            threads=admission.threads,
            apart=admission.apart,
        )
        address = str(place)
        found = await gates.store.get_bound_session(address)
        session, title = found or (session_id(at, gates.chance.bytes(10)), "")
        stamp = Stamp(
            person=admission.person,
            audience=audience(place, admission.person),
            address=address,
            title=title,
            directory=incoming.directory,
            repo=incoming.repo,
        )
        known = Known(session, stamp, f"person:{admission.person}", (address, title))
        return known, None if found else Opening(agent=admission.agent, address=address)

    async def _keep(self, change: Change) -> Committed:
        """Commit, and have lanes worked on that were taken with it, even if whoever brought the message is gone."""
        task = asyncio.get_running_loop().create_task(self.gates.store.commit(change))
        task.add_done_callback(functools.partial(self._taken, change.wakeups))
        return await asyncio.shield(task)

    def _taken(self, wakes: tuple[Wakeup, ...], task: asyncio.Task[Committed]) -> None:
        failed = task.cancelled() or task.exception() is not None
        self.bells.hand_over(wakes, () if failed else task.result().claims)


def _get_offset_place(incoming: Incoming) -> tuple[str, str]:
    """The scope and the key of the record that says how far the account was read."""
    assert incoming.offset is not None
    return make_state_scope(incoming.origin.platform, incoming.origin.account), incoming.offset.key


def heard(incoming: Incoming, stamp: Stamp, admission: Admission) -> Heard:
    """The entry a message becomes."""
    text, mangled = clean(incoming.text)
    sender, bot, attachments = incoming.sender, incoming.bot, incoming.attachments
    name = label(clean(incoming.name)[0], sender=sender) if incoming.name else ""
    # whoever is not spoken to stays silent; bots do not thank each other for ever, nor for their errors
    idle = incoming.notice or (bot and (bare(text) or is_notice(text)))
    command = admission.command
    ordered = command is not None
    meant = ordered or incoming.addressed or admission.always
    asks = meant and admission.asks and (ordered or not idle) and incoming.event != UNREADABLE
    if asks and not ordered and not bot:
        command = parse(text)
    busy = ""
    if command is not None and command.name in TALK and (command.argument or attachments):
        busy, text, command = command.name, command.argument, None
    return Heard(
        origin=incoming.origin,
        text=text,
        asks=asks,
        sender=name,
        speaker=sender if sender != stamp.person else "",
        bot=bot,
        hops=max(incoming.hops, admission.hops),
        revision=incoming.revision,
        command=command,
        attachments=tuple(map(cleansed, attachments)) if attachments else (),
        mangled=mangled,
        scheduled=incoming.event == SCHEDULED,
        busy=busy,
        stamp=stamp,
    )


def presentable(incoming: Incoming) -> Incoming:
    """The message with ids that can be stored: what is no character in them is replaced, the same way every time."""
    origin = incoming.origin
    parts = (origin.platform, origin.account, origin.chat, origin.thread, origin.message, incoming.sender)
    if "".join(parts).isascii() or not any(clean(part)[1] for part in parts):
        return incoming
    place = Place(*(clean(part)[0] for part in parts[:5]))
    return structs.replace(incoming, origin=place, sender=clean(incoming.sender)[0])


def dedup_key(incoming: Incoming) -> str | None:
    """What makes a repeated delivery recognisable. A source that gives no message id cannot repeat itself."""
    origin = incoming.origin
    if not origin.message:
        return None
    parts = (origin.platform, origin.account, origin.chat, origin.message, incoming.event, incoming.revision)
    return msgspec.json.encode(parts).decode()
