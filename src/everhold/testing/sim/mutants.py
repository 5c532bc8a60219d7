"""Bugs planted on purpose, each in its own place at a seam. A simulator that does not find them proves nothing.

Nothing in production code knows of these: a mutant puts another object where a process is put together.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import apsw
import msgspec
from msgspec import Struct, structs

from everhold.control import Control
from everhold.core.entries import (
    VERSION,
    AddressBound,
    AddressUnbound,
    Changed,
    Compressed,
    Draft,
    Ended,
    Entry,
    Erased,
    Kind,
    Said,
    kind_of,
)
from everhold.errors import LeaseLost, Overloaded, Partial, Refused
from everhold.flow import voice
from everhold.flow.gates import Gates
from everhold.flow.lane import Courier, DeliveryOutcome, Lane, Leg, Load
from everhold.flow.memory import Attached
from everhold.flow.remember import Remember
from everhold.flow.runtime import Runtime, Runtimes
from everhold.flow.supervise import Supervisor
from everhold.flow.view import Seen, Views
from everhold.ports.model import Answer, Model, Request, ToolSpec
from everhold.ports.platform import Accept, Drafting, Incoming, Platform, Verdict
from everhold.ports.store import (
    CURSOR_SEPARATOR,
    Change,
    Claim,
    Committed,
    Glance,
    InFlightBatch,
    Now,
    Receipt,
    RetryDelay,
    Step,
    Store,
)
from everhold.ports.tool import Effect, Result, Tool, ToolContext
from everhold.stores.sqlite import commit, lanes
from everhold.testing.sim.farside import Ear
from everhold.testing.sim.host import Parts
from everhold.testing.sim.process import GatedStore, Process
from everhold.testing.sim.web import Door, Heard as Asked
from everhold.testing.sim.world import World


class Mutant(Struct, frozen=True, kw_only=True):
    """A planted bug."""

    about: str
    parts: Parts


# -- at the door -------------------------------------------------------------------------------------------------------


class AcknowledgesFirst(Ear):
    async def _take(self, accept: Accept, number: int, incoming: Incoming) -> int:
        self.far.seen_upto = max(self.far.seen_upto, number + 1)
        return await super()._take(accept, number, incoming)


class NoDedup(GatedStore):
    async def commit(self, change: Change) -> Committed:
        if change.step is Step.ACCEPT:
            change = _with(change, *(structs.replace(draft, dedup=None) for draft in change.entries))
        return await super().commit(change)


class DedupSwallowsEdits(GatedStore):
    async def commit(self, change: Change) -> Committed:
        if change.step is Step.ACCEPT:
            change = _with(change, *(structs.replace(d, dedup=_without_revision(d.dedup)) for d in change.entries))
        return await super().commit(change)


def _without_revision(dedup: str | None) -> str | None:
    return None if dedup is None else msgspec.json.encode(msgspec.json.decode(dedup)[:4]).decode()


class SaysKeptFirst(Door):
    """Answers 202 while the message is still on its way into the log."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.office.control = _Hasty(self.office.control, self.world)


class _Hasty(Control):
    def __init__(self, control: Control, world: World) -> None:
        self.__dict__.update(control.__dict__)
        self.world = world

    async def send(self, incoming: Incoming) -> Verdict:
        if not incoming.origin.message.startswith("key:"):
            self.world.loop.create_task(super().send(incoming))
            return Verdict(outcome="accepted", session="soon", seq=1)
        return await super().send(incoming)


class ForgetsKeys(Door):
    """Knows the names that callers gave their requests only as long as it lives."""

    async def ask(self, path: str, body: object, *, headers: Mapping[str, str], patience: float) -> Asked:
        if "idempotency-key" in headers:
            headers = {**headers, "idempotency-key": f"{headers['idempotency-key']}@{self.process.name}"}
        return await super().ask(path, body, headers=headers, patience=patience)


class RepliesFirst(GatedStore):
    """Shows the end of a turn to whoever waits for it, and then commits it."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self._early: dict[str, list[Entry]] = {}

    async def commit(self, change: Change) -> Committed:
        if change.step is not Step.END or not any(isinstance(draft.body, Said) for draft in change.entries):
            return await super().commit(change)
        last, _ = await self.disk.get_session_head(change.session)
        self._early[change.session] = [
            Entry(
                session=change.session,
                seq=last + number,
                pos=0,
                kind=kind_of(draft.body),
                op=draft.op,
                author=draft.author,
                at=change.at,
                version=VERSION,
                body=draft.body,
                digest=b"",
            )
            for number, draft in enumerate(change.entries, 1)
        ]
        self.process.on_commit(change)
        await asyncio.sleep(1.0)
        del self._early[change.session]
        return await super().commit(change)

    async def list_entries(self, session: str, **how: Any) -> list[Entry]:
        found = await super().list_entries(session, **how)
        web = asyncio.current_task() not in self.process.workers and not how.get("kinds")
        return found + (self._early.get(session, []) if web else [])


# -- turns -------------------------------------------------------------------------------------------------------------


class EndsInTwoCommits(GatedStore):
    async def commit(self, change: Change) -> Committed:
        said = [draft for draft in change.entries if isinstance(draft.body, Said)]
        if change.step is not Step.END or not said:
            return await super().commit(change)
        last = [draft for draft in change.entries if isinstance(draft.body, Ended)]
        first = [draft for draft in change.entries if draft not in last]
        done = await super().commit(structs.replace(_with(change, *first), cursor=None))
        rest = structs.replace(_with(change, *last), wakeups=(), spends=(), blobs=(), records=())
        return structs.replace(done, seqs=done.seqs + (await super().commit(rest)).seqs)


class CursorInsteadOfSet(GatedStore):
    async def list_pending(self, session: str, *, after: int = 0) -> list[Entry]:
        return await self._behind_cursor(session, await super().list_pending(session, after=after))

    async def get_session_snapshot(self, id: str) -> Glance:
        glance = await super().get_session_snapshot(id)
        return structs.replace(glance, pending=await self._behind_cursor(id, glance.pending))

    async def _behind_cursor(self, session: str, pending: list[Entry]) -> list[Entry]:
        waiting = {entry.seq for entry in pending}
        heard = await self.disk.list_entries(session, kinds=(Kind.HEARD,))
        cursor = max((entry.seq for entry in heard if entry.seq not in waiting), default=0)
        return [entry for entry in pending if entry.seq > cursor]


class FenceIgnored(GatedStore):
    async def commit(self, change: Change) -> Committed:
        if change.claim is not None:
            lane = await self.disk.get_cursor(change.claim.consumer, change.claim.session)
            if lane is not None:
                change = structs.replace(change, claim=structs.replace(change.claim, cursor=lane))
        return await super().commit(change)


class LateResult(GatedStore):
    """What comes back too late for its operation is written into whichever runs then."""

    async def commit(self, change: Change) -> Committed:
        try:
            return await super().commit(change)
        except LeaseLost:
            if change.step is Step.RETURN:
                self.world.loop.create_task(self._into_the_next(change))
            raise

    async def _into_the_next(self, change: Change) -> None:
        for _ in range(100):
            await asyncio.sleep(0.5)
            found = await self.disk.list_operations(change.session, types=("turn",), states=("running",))
            if found and found[0].op != change.op:
                op = found[0].op
                late = _with(change, *(structs.replace(draft, op=op) for draft in change.entries))
                await super().commit(structs.replace(late, claim=None, op=op, cursor=None))
                return


class OnceIsKeyed:
    """A tool that says it can be repeated, though it cannot."""

    effect = Effect.KEYED

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.spec: ToolSpec = tool.spec
        self.deadline = tool.deadline

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Result:
        return await self.tool.run(arguments, context)

    async def probe(self, context: ToolContext) -> Result | None:
        return await self.tool.probe(context)


class OtherRuntimes:
    """Runtimes as configured, but for what a mutant says."""

    def __init__(self, runtimes: Runtimes) -> None:
        self.inner = runtimes

    def runtime(self, agent: str, choices: Mapping[str, str]) -> Runtime:
        return self.inner.runtime(agent, choices)

    def platform(self, name: str, account: str) -> Platform | None:
        return self.inner.platform(name, account)

    def drafting(self, name: str, account: str) -> Drafting | None:
        return self.inner.drafting(name, account)

    def in_doubt(self, reader: str, agent: str) -> str:
        return self.inner.in_doubt(reader, agent)

    def memory(self, instance: str, agent: str) -> Attached | None:
        return self.inner.memory(instance, agent)

    def attached(self) -> Sequence[Attached]:
        return self.inner.attached()


class RerunsOnce(OtherRuntimes):
    def runtime(self, agent: str, choices: Mapping[str, str]) -> Runtime:
        runtime = self.inner.runtime(agent, choices)
        tools: dict[str, Tool] = dict(runtime.tools)
        for name, tool in runtime.tools.items():
            if tool.effect is Effect.ONCE:
                tools[name] = OnceIsKeyed(tool)
        object.__setattr__(runtime, "tools", tools)  # the process's own copy
        return runtime


class HalfIsEnough:
    """A model whose answer counts as complete when its stream breaks off."""

    def __init__(self, model: Model) -> None:
        self.inner = model
        self.name = model.name
        self.context_tokens = model.context_tokens

    async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
        heard: list[str] = []
        try:
            return await self.inner.answer(request, on_text=heard.append)
        except Overloaded:
            if not heard:
                raise
            return Answer(text="".join(heard), model=self.name)


class TakesHalves(OtherRuntimes):
    def runtime(self, agent: str, choices: Mapping[str, str]) -> Runtime:
        runtime = self.inner.runtime(agent, choices)
        return dataclasses.replace(runtime, models=tuple(HalfIsEnough(model) for model in runtime.models))


class ForgetsDrafts(GatedStore):
    """Nobody knows any more that the beginning of a reply is seen, so nothing ever takes its place."""

    async def list_receipts(self, session: str, *, seq: int | None = None, consumer: str = "") -> list[Receipt]:
        found = await super().list_receipts(session, seq=seq, consumer=consumer)
        return [receipt for receipt in found if receipt.part != voice.DRAFT]


# -- lanes -------------------------------------------------------------------------------------------------------------


class Reforming(Lane):
    """Takes up a flight by looking at what there is now, instead of repeating it."""

    async def _take_up(self, flight: InFlightBatch) -> Any:
        look = await self.courier.next(self.claim, after=self.claim.cursor.processed_seq)
        if look.load is not None and flight.state != "voided":
            load = look.load
            flight = structs.replace(flight, items=load.items, upto=load.upto, digest=load.digest)
        return await super()._take_up(flight)


class HurriedGates(Gates):
    """Gates that never wait; for lanes, which wait only to let a predecessor's request land."""

    def __init__(self, gates: Gates) -> None:
        super().__init__(store=gates.store, clock=gates.clock, chance=gates.chance, log=gates.log, owner=gates.owner)
        self.call = gates.call  # type: ignore[method-assign]  # calls stay what they are

    async def sleep(self, seconds: float, *, bell: asyncio.Event | None = None) -> None:
        await asyncio.sleep(0)


class Unmarked(Lane):
    """Sends again what is still stored as unsent."""

    async def _fly(self, load: Load, flight: InFlightBatch, *, doubtful: bool = False, **more: Any) -> Leg:
        if flight.state == "unsent":
            return Leg(load=load, flight=flight, since=self.gates.clock.monotonic(), doubtful=doubtful)
        return await super()._fly(load, flight, doubtful=doubtful, **more)


class Sweeping(Lane):
    """Gives up a whole batch for one bad item."""

    async def _refused(self, leg: Leg, error: Refused | Partial) -> Leg | None:
        parks = self._parks(leg.load.items, str(error), doubtful=leg.doubtful)
        return await self._land(leg.load.upto, leg.load.items, flight=leg.flight, parks=parks)


class Forgetful(Lane):
    """Keeps what is left of a refused batch in its head."""

    def __init__(self, gates: Gates, claim: Claim, courier: Courier) -> None:
        super().__init__(gates, claim, courier)
        self.left: InFlightBatch | None = None

    async def _next_alone(self, behind: InFlightBatch, outcome: DeliveryOutcome) -> Leg | None:
        self.left = behind if len(behind.items) > 1 else None
        alone = structs.replace(behind, items=behind.items[:1])
        return await super()._next_alone(alone, outcome)

    async def _land(self, upto: int, done: Any = (), *, flight: InFlightBatch | None = None, **rest: Any) -> Leg | None:
        if flight is not None and flight.remaining is None and self.left is not None:
            flight = structs.replace(flight, remaining=structs.replace(self.left, items=self.left.items[1:]))
        return await super()._land(upto, done, flight=flight, **rest)


class ParksBatches(Supervisor):
    def lane(self, claim: Claim, courier: Courier) -> Lane:
        return Sweeping(self.gates, claim, courier)


class ForgetsTheRest(Supervisor):
    def lane(self, claim: Claim, courier: Courier) -> Lane:
        return Forgetful(self.gates, claim, courier)


class SendsUnmarked(Supervisor):
    def lane(self, claim: Claim, courier: Courier) -> Lane:
        return Unmarked(self.gates, claim, courier)


class ReformsBatches(Supervisor):
    def lane(self, claim: Claim, courier: Courier) -> Lane:
        return Reforming(self.gates, claim, courier)


class KeepsItsClient(Supervisor):
    """A lane goes on with the provider it began with, whatever took its place."""

    def lane(self, claim: Claim, courier: Courier) -> Lane:
        if isinstance(courier, Remember):
            first = courier.provider
            courier.now = lambda: first
        return super().lane(claim, courier)


class HoldsNothing(Supervisor):
    def lane(self, claim: Claim, courier: Courier) -> Lane:
        return Lane(HurriedGates(self.gates), claim, courier)


class ResendsUnderHold(OtherRuntimes):
    def in_doubt(self, reader: str, agent: str) -> str:
        return "resend"


class NoClamp(GatedStore):
    """Never sees that the clock went back: a wait that began in the future is simply waited for."""

    async def claim_cursors(
        self, *, owner: str, at: Now, lease: float, limit: int, skip: Any = (), only: Any = ()
    ) -> list[Claim]:
        def job(cur: apsw.Cursor) -> list[Claim]:
            now = at() if callable(at) else at
            return lanes.claim(cur, owner=owner, at=now, lease=lease, limit=limit, skip=skip, only=only, back=False)

        await self._before(Step.CLAIM)
        claims = await self.disk.writer.write(job)
        self.witness.claimed(self.process, claims)
        await self._after(Step.CLAIM)
        return claims

    async def get_next_due(self, *, at: float, skip: Any = (), only: Any = ()) -> float | None:
        return lanes.next_due(self.disk.writer.cursor, at=at, skip=skip, only=only, back=False)


class TakesFromItself(GatedStore):
    """A lease that looks as if it were over is over, whoever knows better."""

    async def claim_cursors(
        self, *, owner: str, at: Now, lease: float, limit: int, skip: Any = (), only: Any = ()
    ) -> list[Claim]:
        readers = [name for name in skip if CURSOR_SEPARATOR not in name]
        return await super().claim_cursors(owner=owner, at=at, lease=lease, limit=limit, skip=readers, only=only)


class ShortensWaits(GatedStore):
    async def commit(self, change: Change) -> Committed:
        lane = change.cursor
        if lane is not None and lane.wait is not None and lane.wait.seconds > 30:
            change = structs.replace(
                change, cursor=structs.replace(lane, wait=RetryDelay(seconds=30.0, mandatory=lane.wait.mandatory))
            )
        return await super().commit(change)


# -- folds, erasures, sessions -----------------------------------------------------------------------------------------


class StaleViews(Views):
    """Believes that a view it has seen is still the view."""

    async def now(self, store: Store, glance: Glance) -> Seen:
        seen = self._seen.get(glance.session.id)
        if seen is not None and seen.newest == glance.newest_turn:
            return structs.replace(seen, generation=glance.session.generation)
        return await super().now(store, glance)


class KeepsViews(Supervisor):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.views = StaleViews()


class FoldsAnything(GatedStore):
    async def commit(self, change: Change) -> Committed:
        if any(isinstance(draft.body, Compressed) for draft in change.entries):
            change = structs.replace(change, generation=None)
        return await super().commit(change)


class ForgetsRecords(GatedStore):
    """Erases what was said and leaves on record that others were shown it."""

    async def commit(self, change: Change) -> Committed:
        return await super().commit(structs.replace(change, drop_blobs=(), read=None))


class KeepsLateRecords(GatedStore):
    """What a turn was shown is kept with it, whatever was erased meanwhile."""

    async def commit(self, change: Change) -> Committed:
        return await super().commit(structs.replace(change, blobs=change.blobs + change.records, records=()))


class ForgetsSummaries(GatedStore):
    """Erases what was said and leaves what repeats it."""

    async def commit(self, change: Change) -> Committed:
        if change.erase:
            kinds = {seq: (await self.disk.get_entry(change.session, seq)).kind for seq in change.erase}
            gone = tuple(seq for seq in change.erase if kinds[seq] is not Kind.COMPRESSED)
            if not gone:
                return Committed(session=change.session)
            drafts = [
                structs.replace(draft, body=structs.replace(draft.body, seqs=gone, compressions=()))
                if isinstance(draft.body, Erased)
                else draft
                for draft in change.entries
            ]
            change = structs.replace(_with(change, *drafts), erase=gone)
        return await super().commit(change)


class TwoSessionsAtOnce(GatedStore):
    """Writes both halves of a binding in one commit."""

    async def commit(self, change: Change) -> Committed:
        other = self._other_half(change)
        if change.step is not Step.BACKLINK or other is None:
            return await super().commit(change)

        def job(cur: apsw.Cursor) -> Committed:
            done = commit.perform(cur, change, self.process.chance)
            if not done.duplicate:
                commit.perform(cur, other, self.process.chance)
            return done

        await self._before(change.step)
        done = await self.disk.writer.write(job)
        self.witness.committed(self.process, change, done)
        await self._after(change.step)
        return done

    def _other_half(self, change: Change) -> Change | None:
        for draft in change.entries:
            if (
                isinstance(draft.body, Changed)
                and isinstance(draft.body.change, AddressBound)
                and draft.body.change.previous
            ):
                bound = draft.body.change
                unbound = Changed(change=AddressUnbound(address=bound.address, session=change.session))
                entry = Draft(body=unbound, author=draft.author)
                return Change(step=Step.BACKLINK, session=bound.previous, at=change.at, entries=(entry,))
        return None


class AnswersTooSoon(GatedStore):
    """Does not wait for the disk where something outside follows from a commit."""

    def __init__(self, process: Process, step: Step) -> None:
        super().__init__(process)
        self._step = step

    async def commit(self, change: Change) -> Committed:
        if change.step is self._step:
            change = structs.replace(change, durable=False)
        return await super().commit(change)


def _too_soon(step: Step) -> Parts:
    return _store(lambda process: AnswersTooSoon(process, step))


def _with(change: Change, *drafts: Draft) -> Change:
    return structs.replace(change, entries=drafts)


def _store(kind: Callable[[Process], Store]) -> Parts:
    return Parts(store=kind)


MUTANTS: Final[dict[str, Mutant]] = {
    "ack-first": Mutant(about="acknowledge before commit", parts=Parts(ear=AcknowledgesFirst)),
    "kept-first": Mutant(about="a caller is told that it is kept before", parts=Parts(door=SaysKeptFirst)),
    "forgets-keys": Mutant(about="a caller's key counts until a restart", parts=Parts(door=ForgetsKeys)),
    "reply-first": Mutant(about="a caller has its reply before the log", parts=_store(RepliesFirst)),
    "no-dedup": Mutant(about="no dedup", parts=_store(NoDedup)),
    "dedup-edits": Mutant(about="dedup swallows edits", parts=_store(DedupSwallowsEdits)),
    "split-end": Mutant(about="a turn's end in two commits", parts=_store(EndsInTwoCommits)),
    "cursor": Mutant(about="a cursor instead of the consumed set", parts=_store(CursorInsteadOfSet)),
    "reform": Mutant(about="a batch formed anew on retry", parts=Parts(supervisor=ReformsBatches)),
    "no-fence": Mutant(about="the fence is ignored", parts=_store(FenceIgnored)),
    "late-result": Mutant(about="a late result goes into the next operation", parts=_store(LateResult)),
    "no-hold": Mutant(about="no hold after a take-over", parts=Parts(supervisor=HoldsNothing)),
    "rerun-once": Mutant(about="a once tool is run again", parts=Parts(runtimes=RerunsOnce)),
    "half-answer": Mutant(about="what broke off counts as an answer", parts=Parts(runtimes=TakesHalves)),
    "half-shown": Mutant(about="the beginning of a reply stays to be seen", parts=_store(ForgetsDrafts)),
    "resend-held": Mutant(about="blind resend under hold", parts=Parts(runtimes=ResendsUnderHold)),
    "no-clamp": Mutant(about="the clock clamp is missing", parts=_store(NoClamp)),
    "own-lease": Mutant(about="a process takes over from itself", parts=_store(TakesFromItself)),
    "fold-anyway": Mutant(about="a fold against a changed generation", parts=_store(FoldsAnything)),
    "erased-back": Mutant(about="an erased text comes back", parts=_store(ForgetsSummaries)),
    "shown-stays": Mutant(about="a record of what was recalled stays", parts=_store(ForgetsRecords)),
    "shown-back": Mutant(about="such a record comes back", parts=_store(KeepsLateRecords)),
    "short-wait": Mutant(about="a long server-given wait is shortened", parts=_store(ShortensWaits)),
    "unmarked": Mutant(about="sent again while stored as unsent", parts=Parts(supervisor=SendsUnmarked)),
    "park-batch": Mutant(about="a batch parked for one bad item", parts=Parts(supervisor=ParksBatches)),
    "rest-in-head": Mutant(about="the rest of a refused batch is not stored", parts=Parts(supervisor=ForgetsTheRest)),
    "stale-view": Mutant(about="a view kept across generations", parts=Parts(supervisor=KeepsViews)),
    "two-sessions": Mutant(about="two sessions in one commit", parts=_store(TwoSessionsAtOnce)),
    "accept-unsynced": Mutant(about="acknowledged before the disk has it", parts=_too_soon(Step.ACCEPT)),
    "end-unsynced": Mutant(about="a reply is sent before the disk has it", parts=_too_soon(Step.END)),
    "call-unsynced": Mutant(about="a once tool runs before the disk knows", parts=_too_soon(Step.CALL)),
    "flight-unsynced": Mutant(about="a blind send before the disk knows", parts=_too_soon(Step.DELIVERY_SEND)),
    "old-client": Mutant(about="a client that was replaced is asked on", parts=Parts(supervisor=KeepsItsClient)),
}
