"""Planted bugs, which the simulator must find.

Production code does not know them. A mutant replaces one part when a process is built.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import apsw
import msgspec
from msgspec import Struct, structs

from everhold.admin.forgetting import PersonForgetter
from everhold.admin.provider_erasure import ProviderEraser
from everhold.admin.sessions import SessionAdmin
from everhold.core import erasure
from everhold.core.entries import (
    BODY_VERSION,
    AddressBound,
    AddressUnbound,
    Changed,
    Compressed,
    Ended,
    Entry,
    EntryDraft,
    EntryKind,
    Erased,
    Heard,
    Said,
    get_body_kind,
)
from everhold.core.erasure import PlaceErasure
from everhold.core.hosts import build_commit_hint
from everhold.core.inbox import PendingMessage
from everhold.core.people import PERSON_MEMBER, PeopleDirectory, PresentAudience, build_present
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes
from everhold.engine.context_cache import CachedContext, ContextCache
from everhold.engine.gates import Gates
from everhold.engine.memory.destination import MemoryDestination
from everhold.engine.memory.peers import PeerRegistry
from everhold.engine.memory_client import MemoryClient
from everhold.engine.outbox import platform as outbox_platform
from everhold.engine.outbox.delivery import DeliveryAttempt, DeliveryBatch, DeliveryOutcome, DeliveryWorker, Destination
from everhold.engine.supervisor import WorkerSupervisor
from everhold.errors import LeaseLost, NotFound, OutcomeUnknown, Overloaded, PartiallyDone, Refused, StoreBusy
from everhold.ingress.account_leadership import ACCOUNT_LEASE_SECONDS
from everhold.ports.hosts import AccountClaim, HostRecord, HostStatus
from everhold.ports.memory import ErasureState
from everhold.ports.model import Model, ModelRequest, ModelResponse, ToolSpec
from everhold.ports.platform import AcceptMessage, AcceptResult, IncomingMessage, Platform, SupportsDrafts
from everhold.ports.store import (
    Change,
    CitedEntry,
    Claim,
    CommitResult,
    EntryPage,
    InFlightBatch,
    Operation,
    PeerRecord,
    Receipt,
    RetryDelay,
    SessionSnapshot,
    StateNamespace,
    StateRecord,
    Step,
    Store,
)
from everhold.ports.tool import Tool, ToolContext, ToolEffect, ToolResult
from everhold.stores.sqlite import commit, cursors
from everhold.testing.sim.approval_mutants import APPROVAL_BUGS
from everhold.testing.sim.host import SimProcessParts
from everhold.testing.sim.http import CallerResponse, SimApi
from everhold.testing.sim.power_loss import record_next_commit
from everhold.testing.sim.process import GatedStore, SimProcess
from everhold.testing.sim.remote_services import SimListener
from everhold.testing.sim.world import SimWorld

P = TypeVar("P", Entry, PendingMessage)


class SimMutant(Struct, frozen=True, kw_only=True):
    """A planted bug."""

    description: str
    parts: SimProcessParts
    settings: dict[str, Any] = {}
    """What a schedule needs to find it soon, in place of what its seed draws: a bug that needs a power cut is not found
    without one."""
    hosts: bool = False
    """It needs several hosts on one store."""
    approvals: bool = False
    """It needs calls that need permission."""


# -- ingress -----------------------------------------------------------------------------------------------------------


class AcknowledgesBeforeAccept(SimListener):
    async def _accept_update(self, accept: AcceptMessage, number: int, incoming: IncomingMessage) -> int:
        self.platform.seen_upto = max(self.platform.seen_upto, number + 1)
        return await super()._accept_update(accept, number, incoming)


class NoDedup(GatedStore):
    async def commit(self, change: Change) -> CommitResult:
        if change.step is Step.ACCEPT:
            change = _copy_change(change, *(structs.replace(draft, dedup=None) for draft in change.entries))
        return await super().commit(change)


class DedupSwallowsEdits(GatedStore):
    async def commit(self, change: Change) -> CommitResult:
        if change.step is Step.ACCEPT:
            change = _copy_change(
                change, *(structs.replace(d, dedup=_without_revision(d.dedup)) for d in change.entries)
            )
        return await super().commit(change)


def _without_revision(dedup: str | None) -> str | None:
    return None if dedup is None else msgspec.json.encode(msgspec.json.decode(dedup)[:4]).decode()


class ConfirmsBeforeCommit(SimApi):
    """Answers 202 before the message is committed."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.context.control = ConfirmingAdmin(self.context.control, self.world)


class ConfirmingAdmin(SessionAdmin):
    def __init__(self, control: SessionAdmin, world: SimWorld) -> None:
        self.__dict__.update(control.__dict__)
        self.world = world

    async def send_message(self, incoming: IncomingMessage) -> AcceptResult:
        if not incoming.origin.message.startswith("key:"):
            self.world.loop.create_task(super().send_message(incoming))
            return AcceptResult(outcome="accepted", session="soon", seq=1)
        return await super().send_message(incoming)


class ForgetsKeys(SimApi):
    """Remembers idempotency keys only within one process."""

    async def send_request(
        self, path: str, body: object, *, headers: Mapping[str, str], patience: float
    ) -> CallerResponse:
        if "idempotency-key" in headers:
            headers = {**headers, "idempotency-key": f"{headers['idempotency-key']}@{self.process.name}"}
        return await super().send_request(path, body, headers=headers, patience=patience)


class RepliesFirst(GatedStore):
    """Shows the end of a turn to waiting callers before it commits it."""

    def __init__(self, process: SimProcess) -> None:
        super().__init__(process)
        self._early: dict[str, list[Entry]] = {}

    async def commit(self, change: Change) -> CommitResult:
        if change.step is not Step.END or not any(isinstance(draft.body, Said) for draft in change.entries):
            return await super().commit(change)
        last, _ = await self.disk.get_session_head(change.session)
        self._early[change.session] = [
            Entry(
                session=change.session,
                seq=last + number,
                pos=0,
                kind=get_body_kind(draft.body),
                op=draft.op,
                author=draft.author,
                at=change.at,
                version=BODY_VERSION,
                body=draft.body,
                digest=b"",
            )
            for number, draft in enumerate(change.entries, 1)
        ]
        self.process.on_commit(build_commit_hint(change, ()))
        await asyncio.sleep(1.0)
        self._early.pop(change.session, None)
        return await super().commit(change)

    async def read_log(self, session: str, **how: Any) -> EntryPage:
        """Return what a waiting caller reads."""
        page = await super().read_log(session, **how)
        page += [entry for entry in self._early.get(session, ()) if entry.seq > how.get("after", 0)]
        return page


# -- turns -------------------------------------------------------------------------------------------------------------


class EndsInTwoCommits(GatedStore):
    async def commit(self, change: Change) -> CommitResult:
        said = [draft for draft in change.entries if isinstance(draft.body, Said)]
        if change.step is not Step.END or not said:
            return await super().commit(change)
        last = [draft for draft in change.entries if isinstance(draft.body, Ended)]
        first = [draft for draft in change.entries if draft not in last]
        done = await super().commit(structs.replace(_copy_change(change, *first), cursor=None))
        rest = structs.replace(_copy_change(change, *last), wakeups=(), spends=(), blobs=(), records=())
        return structs.replace(done, seqs=done.seqs + (await super().commit(rest)).seqs)


class CursorInsteadOfSet(GatedStore):
    async def scan_pending(self, session: str, *, after: int = 0) -> list[PendingMessage]:
        return await self._skip_before_cursor(session, await super().scan_pending(session, after=after))

    async def get_session_snapshot(self, id: str) -> SessionSnapshot:
        glance = await super().get_session_snapshot(id)
        return structs.replace(glance, pending=await self._skip_before_cursor(id, glance.pending))

    async def _skip_before_cursor(self, session: str, pending: list[P]) -> list[P]:
        waiting = {entry.seq for entry in pending}
        heard = await self.disk.list_entries(session, kinds=(EntryKind.HEARD,))
        cursor = max((entry.seq for entry in heard if entry.seq not in waiting), default=0)
        return [entry for entry in pending if entry.seq > cursor]


class FenceIgnored(GatedStore):
    async def commit(self, change: Change) -> CommitResult:
        if change.claim is not None:
            update = await self.disk.get_cursor(change.claim.consumer, change.claim.session)
            if update is not None:
                change = structs.replace(change, claim=structs.replace(change.claim, cursor=update))
        return await super().commit(change)


class LateResult(GatedStore):
    """Writes a late result into the operation that runs at that time."""

    async def commit(self, change: Change) -> CommitResult:
        try:
            return await super().commit(change)
        except LeaseLost:
            if change.step is Step.RETURN:
                self.world.loop.create_task(self._move_to_running_operation(change))
            raise

    async def _move_to_running_operation(self, change: Change) -> None:
        for _ in range(100):
            await asyncio.sleep(0.5)
            found = await self.disk.list_operations(change.session, types=("turn",), states=("running",))
            if found and found[0].op != change.op:
                op = found[0].op
                late = _copy_change(change, *(structs.replace(draft, op=op) for draft in change.entries))
                await super().commit(structs.replace(late, claim=None, op=op, cursor=None))
                return


class OnceIsKeyed:
    """A tool that declares itself keyed, though its effect is once."""

    effect = ToolEffect.KEYED

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.spec: ToolSpec = tool.spec
        self.deadline = tool.deadline

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return await self.tool.run(arguments, context)

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return await self.tool.probe(context)


class DelegatingRuntimes:
    """The configured runtimes, of which a mutant overrides some methods."""

    def __init__(self, runtimes: AgentRuntimes) -> None:
        self.inner = runtimes

    def get_runtime(self, agent: str, choices: Mapping[str, str]) -> AgentRuntime:
        return self.inner.get_runtime(agent, choices)

    def find_platform(self, name: str, account: str) -> Platform | None:
        return self.inner.find_platform(name, account)

    def find_draft_platform(self, name: str, account: str) -> SupportsDrafts | None:
        return self.inner.find_draft_platform(name, account)

    def get_in_doubt_policy(self, consumer: str, agent: str) -> str:
        return self.inner.get_in_doubt_policy(consumer, agent)

    def find_memory(self, instance: str, agent: str) -> MemoryClient | None:
        return self.inner.find_memory(instance, agent)

    def list_memories(self) -> Sequence[MemoryClient]:
        return self.inner.list_memories()


class RerunsOnce(DelegatingRuntimes):
    def get_runtime(self, agent: str, choices: Mapping[str, str]) -> AgentRuntime:
        runtime = self.inner.get_runtime(agent, choices)
        tools: dict[str, Tool] = dict(runtime.tools)
        for name, tool in runtime.tools.items():
            if tool.effect is ToolEffect.ONCE:
                tools[name] = OnceIsKeyed(tool)
        object.__setattr__(runtime, "tools", tools)  # each process has its own copy
        return runtime


class TruncatingModel:
    """A model whose answer counts as complete when its stream breaks."""

    def __init__(self, model: Model) -> None:
        self.inner = model
        self.name = model.name
        self.context_tokens = model.context_tokens

    async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        received: list[str] = []
        try:
            return await self.inner.answer(request, on_text=received.append)
        except Overloaded:
            if not received:
                raise
            return ModelResponse(text="".join(received), model=self.name)


class AcceptsTruncatedAnswers(DelegatingRuntimes):
    def get_runtime(self, agent: str, choices: Mapping[str, str]) -> AgentRuntime:
        runtime = self.inner.get_runtime(agent, choices)
        return dataclasses.replace(runtime, models=tuple(TruncatingModel(model) for model in runtime.models))


class ForgetsDrafts(GatedStore):
    """Loses the receipts of drafts, so that the reply never replaces its draft."""

    async def list_receipts(self, session: str, *, seq: int | None = None, consumer: str = "") -> list[Receipt]:
        found = await super().list_receipts(session, seq=seq, consumer=consumer)
        return [receipt for receipt in found if receipt.part != outbox_platform.DRAFT_PART]


class RecordsDraftsLate(GatedStore):
    """Stores the receipt of a draft when its answer arrives, and not before it is sent."""

    async def commit(self, change: Change) -> CommitResult:
        if change.step is Step.DRAFT and not any(receipt.remote for receipt in change.receipts):
            change = structs.replace(change, receipts=())
        return await super().commit(change)


# -- delivery ----------------------------------------------------------------------------------------------------------


class ReformingDeliveryWorker(DeliveryWorker):
    """Builds a new batch from the log instead of repeating the batch in flight."""

    async def _resume_in_flight_batch(self, in_flight: InFlightBatch) -> Any:
        look = await self.destination.next_batch(self.claim, after=self.claim.cursor.processed_seq)
        if look.batch is not None and in_flight.state != "voided":
            batch = look.batch
            in_flight = structs.replace(
                in_flight, items=batch.items, upto=batch.processed_upto_seq, digest=batch.digest
            )
        return await super()._resume_in_flight_batch(in_flight)


class HurriedGates(Gates):
    """Gates that never wait. Delivery workers wait only until a predecessor's request can no longer arrive."""

    def __init__(self, gates: Gates) -> None:
        super().__init__(store=gates.store, clock=gates.clock, chance=gates.chance, log=gates.log, owner=gates.owner)
        self.call = gates.call  # type: ignore[method-assign]  # calls are not changed

    async def sleep(self, seconds: float, *, wakeup: asyncio.Event | None = None) -> None:
        await asyncio.sleep(0)


class UnmarkedDeliveryWorker(DeliveryWorker):
    """Resends a batch that is still stored as unsent."""

    async def _begin_attempt(
        self, batch: DeliveryBatch, in_flight: InFlightBatch, *, in_doubt: bool = False, **more: Any
    ) -> DeliveryAttempt:
        if in_flight.state == "unsent":
            return DeliveryAttempt(
                batch=batch, in_flight=in_flight, started_at=self.gates.clock.monotonic(), in_doubt=in_doubt
            )
        return await super()._begin_attempt(batch, in_flight, in_doubt=in_doubt, **more)


class SweepingDeliveryWorker(DeliveryWorker):
    """Gives up a whole batch because of one refused item."""

    async def _settle_refusal(self, attempt: DeliveryAttempt, error: Refused | PartiallyDone) -> DeliveryAttempt | None:
        dead_letters = self._build_dead_letters(attempt.batch.items, str(error), in_doubt=attempt.in_doubt)
        return await self._finish_batch(
            attempt.batch.processed_upto_seq,
            attempt.batch.items,
            in_flight=attempt.in_flight,
            dead_letters=dead_letters,
        )


class ForgetfulDeliveryWorker(DeliveryWorker):
    """Keeps the rest of a refused batch in memory only."""

    def __init__(self, gates: Gates, claim: Claim, destination: Destination) -> None:
        super().__init__(gates, claim, destination)
        self.remaining_items: InFlightBatch | None = None

    async def _begin_next_single(self, remaining: InFlightBatch, outcome: DeliveryOutcome) -> DeliveryAttempt | None:
        self.remaining_items = remaining if len(remaining.items) > 1 else None
        single = structs.replace(remaining, items=remaining.items[:1])
        return await super()._begin_next_single(single, outcome)

    async def _finish_batch(
        self, upto: int, done: Any = (), *, in_flight: InFlightBatch | None = None, **rest: Any
    ) -> DeliveryAttempt | None:
        if in_flight is not None and in_flight.remaining is None and self.remaining_items is not None:
            in_flight = structs.replace(
                in_flight, remaining=structs.replace(self.remaining_items, items=self.remaining_items.items[1:])
            )
        return await super()._finish_batch(upto, done, in_flight=in_flight, **rest)


class DeadLettersWholeBatches(WorkerSupervisor):
    def build_delivery_worker(self, claim: Claim, destination: Destination) -> DeliveryWorker:
        return SweepingDeliveryWorker(self.gates, claim, destination)


class ForgetsTheRest(WorkerSupervisor):
    def build_delivery_worker(self, claim: Claim, destination: Destination) -> DeliveryWorker:
        return ForgetfulDeliveryWorker(self.gates, claim, destination)


class SendsUnmarked(WorkerSupervisor):
    def build_delivery_worker(self, claim: Claim, destination: Destination) -> DeliveryWorker:
        return UnmarkedDeliveryWorker(self.gates, claim, destination)


class ReformsBatches(WorkerSupervisor):
    def build_delivery_worker(self, claim: Claim, destination: Destination) -> DeliveryWorker:
        return ReformingDeliveryWorker(self.gates, claim, destination)


class KeepsItsClient(WorkerSupervisor):
    """A delivery worker keeps its first client, even if another has replaced it."""

    def build_delivery_worker(self, claim: Claim, destination: Destination) -> DeliveryWorker:
        if isinstance(destination, MemoryDestination):
            first = destination.provider
            destination.current_provider = lambda: first
        return super().build_delivery_worker(claim, destination)


class HoldsNothing(WorkerSupervisor):
    def build_delivery_worker(self, claim: Claim, destination: Destination) -> DeliveryWorker:
        return DeliveryWorker(HurriedGates(self.gates), claim, destination)


class ResendsUnderHold(DelegatingRuntimes):
    def get_in_doubt_policy(self, consumer: str, agent: str) -> str:
        return "resend"


class IgnoresClockGoingBack(GatedStore):
    """Ignores that the clock went back, and waits for a time that began in the future."""

    async def claim_cursors(self, **wanted: Any) -> list[Claim]:
        def job(cur: apsw.Cursor) -> list[Claim]:
            return cursors.claim_cursors(cur, **wanted, at=self.world.now(), back=False)

        await self._before(Step.CLAIM)
        record_next_commit(self.disk, functools.partial(self.witness.record_claims, self.process))
        claims = await self.disk.writer.write(job)
        await self._after(Step.CLAIM)
        return claims

    async def get_next_due(self, *, skip: Any = (), only: Any = ()) -> float | None:
        now = self.world.now()
        return cursors.find_next_due(self.disk.writer.cursor, at=now, skip=skip, only=only, back=False)


class TakesFromItself(GatedStore):
    """Claims a cursor whose lease seems to be over, even if a worker of the same process holds it."""

    async def claim_cursors(self, **wanted: Any) -> list[Claim]:
        return await super().claim_cursors(**{**wanted, "list_held": list})


class ShortensWaits(GatedStore):
    async def commit(self, change: Change) -> CommitResult:
        update = change.cursor
        if update is not None and update.wait is not None and update.wait.seconds > 30:
            change = structs.replace(
                change, cursor=structs.replace(update, wait=RetryDelay(seconds=30.0, mandatory=update.wait.mandatory))
            )
        return await super().commit(change)


# -- compressions, erasures, sessions ----------------------------------------------------------------------------------


class StaleContextCache(ContextCache):
    """Reuses a cached context of an older generation."""

    async def load_current(self, store: Store, glance: SessionSnapshot) -> CachedContext:
        seen = self._contexts.get(glance.session.id)
        if seen is not None and seen.newest_turn == glance.newest_turn:
            return structs.replace(seen, generation=glance.session.generation)
        return await super().load_current(store, glance)


class KeepsStaleContexts(WorkerSupervisor):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.contexts = StaleContextCache()


class CompressesAnything(GatedStore):
    async def commit(self, change: Change) -> CommitResult:
        if any(isinstance(draft.body, Compressed) for draft in change.entries):
            change = structs.replace(change, generation=None)
        return await super().commit(change)


class ForgetsRecords(GatedStore):
    """Erases entries and keeps the records of recalled text that contain them."""

    async def commit(self, change: Change) -> CommitResult:
        return await super().commit(structs.replace(change, drop_blobs=(), read=None))


class KeepsLateRecords(GatedStore):
    """Stores the recalled text of a turn, even if a part of it was erased in the meantime."""

    async def commit(self, change: Change) -> CommitResult:
        return await super().commit(structs.replace(change, blobs=change.blobs + change.records, records=()))


class ForgetsSummaries(GatedStore):
    """Erases entries and keeps the summaries that repeat them."""

    async def commit(self, change: Change) -> CommitResult:
        if change.erase:
            kinds = {seq: (await self.disk.get_entry(change.session, seq)).kind for seq in change.erase}
            gone = tuple(seq for seq in change.erase if kinds[seq] is not EntryKind.COMPRESSED)
            if not gone:
                return CommitResult(session=change.session)
            drafts = [
                structs.replace(draft, body=structs.replace(draft.body, seqs=gone, compressions=()))
                if isinstance(draft.body, Erased)
                else draft
                for draft in change.entries
            ]
            change = structs.replace(_copy_change(change, *drafts), erase=gone)
        return await super().commit(change)


class BulkGatedStore(GatedStore):
    """A store whose writer handles several messages at once in another way."""

    def __init__(self, process: SimProcess) -> None:
        super().__init__(process)
        writer = process.disk.writer
        if writer.bulk_writer is not None:
            self._write = writer.bulk_writer
            writer.bulk_writer = self.write_messages

    def write_messages(self, cur: apsw.Cursor, changes: list[Any]) -> list[Any]:
        return self._write(cur, changes)


class LosesLastOfSeveral(BulkGatedStore):
    """Acknowledges the last of several messages without storing it."""

    def write_messages(self, cur: apsw.Cursor, changes: list[Any]) -> list[Any]:
        if len(changes) == 1:
            return self._write(cur, changes)
        done = self._write(cur, changes[:-1])
        return [*done, structs.replace(done[-1], session=changes[-1].session)]


class WakesForFirstOfSeveral(BulkGatedStore):
    """Makes work due only for the first of several messages."""

    def write_messages(self, cur: apsw.Cursor, changes: list[Any]) -> list[Any]:
        return self._write(cur, [changes[0], *(structs.replace(change, wakeups=()) for change in changes[1:])])


class TwoSessionsAtOnce(GatedStore):
    """Writes both halves of a binding in one commit."""

    async def commit(self, change: Change) -> CommitResult:
        other = self._make_other_half(change)
        if change.step is not Step.BACKLINK or other is None:
            return await super().commit(change)

        def job(cur: apsw.Cursor) -> CommitResult:
            done = commit.apply_change(cur, change, self.process.chance, now=self.world.now())
            if not done.duplicate:
                commit.apply_change(cur, other, self.process.chance, now=self.world.now())
            return done

        await self._before(change.step)
        record_next_commit(self.disk, functools.partial(self.witness.record_commit, self.process, change))
        done = await self.disk.writer.write(job)
        await self._after(change.step)
        return done

    def _make_other_half(self, change: Change) -> Change | None:
        for draft in change.entries:
            if (
                isinstance(draft.body, Changed)
                and isinstance(draft.body.change, AddressBound)
                and draft.body.change.previous
            ):
                bound = draft.body.change
                unbound = Changed(change=AddressUnbound(address=bound.address, session=change.session))
                entry = EntryDraft(body=unbound, author=draft.author)
                return Change(step=Step.BACKLINK, session=bound.previous, at=change.at, entries=(entry,))
        return None


# -- people ------------------------------------------------------------------------------------------------------------


class OldIdentityDirectory(PeopleDirectory):
    """Takes every identity for a person of its own when it is asked who is present."""

    def expand_audience(self, audience: Collection[str]) -> PresentAudience:
        return build_present(tuple(audience))


class NeverPartedDirectory(PeopleDirectory):
    """Does not know who was unlinked."""

    def has_parted_since(self, identity: str, epoch: int = 0) -> bool:
        return False


class MisreadsPeople(GatedStore):
    """Gives out a directory of another kind."""

    kind: type[PeopleDirectory] = PeopleDirectory

    async def get_people(self) -> PeopleDirectory:
        return self._misread(await super().get_people())

    async def get_session_snapshot(self, id: str) -> SessionSnapshot:
        glance = await super().get_session_snapshot(id)
        return structs.replace(glance, people=self._misread(glance.people))

    def _misread(self, people: PeopleDirectory) -> PeopleDirectory:
        view = copy.copy(people)
        view.__class__ = self.kind
        return view


class ReadsOldIdentities(MisreadsPeople):
    """Decides by the identity that was recorded, and not by the person it belongs to."""

    kind = OldIdentityDirectory


class IgnoresUnlinks(MisreadsPeople):
    """Lets running turns answer after an unlink."""

    kind = NeverPartedDirectory


class ResolvesAtWrite(GatedStore):
    """Writes a message as the words of the first identity of its person."""

    async def commit(self, change: Change) -> CommitResult:
        if change.step is Step.ACCEPT:
            people = await self.disk.get_people()
            change = _copy_change(change, *(_resolve_author(draft, people) for draft in change.entries))
        return await super().commit(change)


def _resolve_author(draft: EntryDraft, people: PeopleDirectory) -> EntryDraft:
    person = people.find_person(draft.author.removeprefix(PERSON_MEMBER))
    if person is None or not isinstance(draft.body, Heard):
        return draft
    identity = people.list_identities(person.id)[0].identity
    stamp = structs.replace(draft.body.stamp, person=identity)
    return structs.replace(draft, author=f"{PERSON_MEMBER}{identity}", body=structs.replace(draft.body, stamp=stamp))


class PresentPeers(PeerRegistry):
    """Knows only the peers of now."""

    async def load_records(self, memory: str, agent: str, first_use: Mapping[str, int]) -> dict[str, list[PeerRecord]]:
        found = await super().load_records(memory, agent, first_use)
        return {identity: [structs.replace(rows[-1], from_pos=0)] for identity, rows in found.items()}


class WritesUnderPresentPeers(WorkerSupervisor):
    """Sends a message under the peer that its sender has now, and not under the recorded one."""

    def __init__(self, gates: Gates, *, runtimes: AgentRuntimes, **options: Any) -> None:
        super().__init__(gates, runtimes=runtimes, **options)
        self.peers = PresentPeers(
            gates,
            find_client=runtimes.find_memory,
            list_memories=lambda agent: runtimes.get_runtime(agent, {}).memories,
            get_revision=object,
        )


class TrustingEraser(ProviderEraser):
    """Takes an accepted deletion, status 202, for a finished one."""

    async def read_back(self, place: PlaceErasure) -> PlaceErasure:
        states = dict.fromkeys((it.id for it in erasure.list_unread(place)), ErasureState.CONFIRMED)
        now = self.gates.clock.now()
        for _ in range(2):
            place = erasure.record_readback(place, states, visible_after=0.0, now=now)
        return place


class ConfirmsUnread(PersonForgetter):
    def __init__(self, control: SessionAdmin, **options: Any) -> None:
        super().__init__(control, **options)
        self.eraser = TrustingEraser(control.gates, control.runtimes)


class ForgetsOneIdentity(PersonForgetter):
    """Forgets only the identity that was named."""

    async def _list_names(self, person: str) -> tuple[str, ...]:
        return (person,)


class KnowsNoTombstones(GatedStore):
    """Recalls what a memory still has of erased entries."""

    async def get_cited_entries(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], CitedEntry]:
        found = await super().get_cited_entries(places)
        return {place: it for place, it in found.items() if it.entry.body is not None}

    async def list_entries(self, session: str, **how: Any) -> list[Entry]:
        found = await super().list_entries(session, **how)
        return [] if how.get("kinds") == (EntryKind.ERASED,) and how.get("limit") == 1 else found

    async def list_state_records(
        self, namespace: StateNamespace | None = None, *, scope: str | None = None
    ) -> list[StateRecord]:
        return [] if namespace is StateNamespace.ERASURE else await super().list_state_records(namespace, scope=scope)


class TrustsHostClock(GatedStore):
    """Leases and due times are those of the host's clock."""

    def __init__(self, process: SimProcess) -> None:
        super().__init__(process)
        process.disk._now = process.clock.now


class EndsLeasesOfOthers(GatedStore):
    """Ends the leases of other hosts when it starts."""

    async def register_host(self, host: HostRecord, *, lease: float) -> list[HostStatus]:
        def job(cur: apsw.Cursor) -> int:
            return cursors.revoke_leases(cur, owner=host.id, at=self.world.now())

        await self.disk.writer.write(job)
        return await super().register_host(host, lease=lease)


class OffsetsWithoutFence(GatedStore):
    """Moves the offset of an account that another host may hold."""

    async def commit(self, change: Change) -> CommitResult:
        return await super().commit(structs.replace(change, account=None))


class SharesAccounts(GatedStore):
    """Receives for an account that another host holds, under the claim of that host."""

    async def claim_account(self, account: str, *, owner: str, lease: float) -> AccountClaim | None:
        claim = await super().claim_account(account, owner=owner, lease=lease)
        held = [it for it in await self.disk.list_account_leases() if it.account == account]
        return claim or AccountClaim(account, held[0].owner, held[0].fence) if held else claim


class TakesAccountsEarly(GatedStore):
    """Takes an account from a host whose lease has not ended."""

    async def claim_account(self, account: str, *, owner: str, lease: float) -> AccountClaim | None:
        for held in await self.disk.list_account_leases():
            if held.account == account and held.seconds_left < ACCOUNT_LEASE_SECONDS / 2:
                await self.disk.release_account(AccountClaim(account, held.owner, held.fence))
        return await super().claim_account(account, owner=owner, lease=lease)


class LooseUnsyncedCommits(GatedStore):
    """Does not check the claim of a commit that nobody waits for."""

    async def commit(self, change: Change) -> CommitResult:
        if not change.durable and change.claim is not None:
            held = await self.disk.get_cursor(change.claim.consumer, change.claim.session)
            if held is not None:
                change = structs.replace(change, claim=structs.replace(change.claim, cursor=held))
        return await super().commit(change)


class RepeatsUnknownOutcomes(GatedStore):
    """Takes a commit of unknown outcome for one that was not applied, and repeats it."""

    async def commit(self, change: Change) -> CommitResult:
        try:
            return await super().commit(change)
        except OutcomeUnknown as error:
            raise StoreBusy(error.message) from error


class TrustsUnknownOutcomes(GatedStore):
    """Takes a commit of unknown outcome for one that was applied."""

    async def commit(self, change: Change) -> CommitResult:
        try:
            return await super().commit(change)
        except OutcomeUnknown:
            if not change.session:
                return CommitResult(session="")
            try:
                last, generation = await self.disk.get_session_head(change.session)
            except NotFound:
                last, generation = 0, 0
            seqs = tuple(range(last + 1, last + 1 + len(change.entries)))
            return CommitResult(session=change.session, seqs=seqs, generation=generation)


class CompressesPins(GatedStore):
    """Loses the pins that are older than the newest compression."""

    async def list_operations(self, session: str, **how: Any) -> list[Operation]:
        found = await super().list_operations(session, **how)
        if how.get("types") != ("pin",):
            return found
        made = await super().list_operations(session, types=("compression",), states=("done",))
        return [pin for pin in found if all(pin.op > compression.op for compression in made)]


class KeepsRemovedPins(GatedStore):
    """Shows pins that were removed."""

    async def list_operations(self, session: str, **how: Any) -> list[Operation]:
        found = await super().list_operations(session, **how)
        is_pins = how.get("types") == ("pin",)
        return [structs.replace(it, undone_at=0) for it in found] if is_pins else found


class AnswersTooSoon(GatedStore):
    """Does not sync a commit that has an effect outside."""

    def __init__(self, process: SimProcess, step: Step) -> None:
        super().__init__(process)
        self._step = step

    async def commit(self, change: Change) -> CommitResult:
        if change.step is self._step:
            change = structs.replace(change, durable=False)
        return await super().commit(change)


def _make_early_answer_parts(step: Step) -> SimProcessParts:
    return _make_store_parts(lambda process: AnswersTooSoon(process, step))


def _copy_change(change: Change, *drafts: EntryDraft) -> Change:
    return structs.replace(change, entries=drafts)


def _make_store_parts(kind: Callable[[SimProcess], Store]) -> SimProcessParts:
    return SimProcessParts(store=kind)


_LONG_CHATS: Final = {"messages": 6, "chats": 3}
_UNKNOWN_OUTCOMES: Final = {"unknown_outcome": 0.05}
_MANY_ACTIONS: Final = {"operator_actions": 0.8}
_REACHABLE_SERVICES: Final = {"commands": 0.0, "trouble": 0.0, "lost": 0.0, "model_fault": 0.0}
_POWER_CUTS: Final = {
    "power": 1.0,
    "crash": 0.015,
    "most_faults": 30,
    "fault_seconds": 400.0,
    **_REACHABLE_SERVICES,
    **_LONG_CHATS,
}

MUTANTS: Final[dict[str, SimMutant]] = {
    "ack-first": SimMutant(
        description="acknowledge an update before its commit",
        parts=SimProcessParts(listener=AcknowledgesBeforeAccept),
        settings={"crash": 0.03, "most_faults": 14},
    ),
    "confirm-first": SimMutant(
        description="confirm a message to a caller before its commit",
        parts=SimProcessParts(api=ConfirmsBeforeCommit),
        settings={"callers": 1, "crash": 0.03, "most_faults": 14},
    ),
    "forgets-keys": SimMutant(
        description="forget idempotency keys at a restart", parts=SimProcessParts(api=ForgetsKeys)
    ),
    "reply-first": SimMutant(
        description="return a reply to a caller before its commit", parts=_make_store_parts(RepliesFirst)
    ),
    "no-dedup": SimMutant(description="accept duplicates", parts=_make_store_parts(NoDedup)),
    "dedup-edits": SimMutant(description="treat edits as duplicates", parts=_make_store_parts(DedupSwallowsEdits)),
    "split-end": SimMutant(description="end a turn in two commits", parts=_make_store_parts(EndsInTwoCommits)),
    "cursor": SimMutant(
        description="use a cursor instead of the consumed set", parts=_make_store_parts(CursorInsteadOfSet)
    ),
    "new-batch-on-retry": SimMutant(
        description="build a new batch on retry", parts=SimProcessParts(supervisor=ReformsBatches)
    ),
    "no-fence": SimMutant(description="ignore the fence", parts=_make_store_parts(FenceIgnored)),
    "late-result": SimMutant(
        description="write a late result into the next operation", parts=_make_store_parts(LateResult)
    ),
    "no-hold": SimMutant(description="do not wait after a take-over", parts=SimProcessParts(supervisor=HoldsNothing)),
    "rerun-once": SimMutant(description="rerun a once tool", parts=SimProcessParts(runtimes=RerunsOnce)),
    "truncated-answer": SimMutant(
        description="accept a truncated answer", parts=SimProcessParts(runtimes=AcceptsTruncatedAnswers)
    ),
    "draft-stays": SimMutant(
        description="leave a draft visible after the reply", parts=_make_store_parts(ForgetsDrafts)
    ),
    "draft-unrecorded": SimMutant(
        description="store a draft after it was sent", parts=_make_store_parts(RecordsDraftsLate)
    ),
    "resend-held": SimMutant(
        description="resend blindly under the hold policy", parts=SimProcessParts(runtimes=ResendsUnderHold)
    ),
    "no-clamp": SimMutant(
        description="ignore that the clock went back", parts=_make_store_parts(IgnoresClockGoingBack)
    ),
    "own-lease": SimMutant(
        description="take over a cursor from the own worker",
        parts=_make_store_parts(TakesFromItself),
        settings={"jump": 0.3, "slow": 0.3, **_LONG_CHATS},
    ),
    "stale-compression": SimMutant(
        description="commit a compression of an older generation",
        parts=_make_store_parts(CompressesAnything),
        settings={"context_tokens": 450, "mode": "peers", "stall": 0.015, "most_faults": 14},
    ),
    "erased-back": SimMutant(
        description="keep summaries of erased entries",
        parts=_make_store_parts(ForgetsSummaries),
        settings={"context_tokens": 450, **_MANY_ACTIONS},
    ),
    "recall-record-stays": SimMutant(
        description="keep recall records of erased entries",
        parts=_make_store_parts(ForgetsRecords),
        settings={"recall": True, **_MANY_ACTIONS},
    ),
    "recall-record-returns": SimMutant(
        description="store a recall record after an erasure",
        parts=_make_store_parts(KeepsLateRecords),
        settings={
            "recall": True,
            "slow": 0.5,
            "mode": "peers",
            "context_tokens": 100_000,
            **_LONG_CHATS,
            **_MANY_ACTIONS,
        },
    ),
    "host-clock": SimMutant(
        description="let the clock of a host decide leases and due times",
        parts=_make_store_parts(TrustsHostClock),
        settings={"clock_skew": 10.0, "mode": "peers", "trouble": 0.15, **_LONG_CHATS},
    ),
    "shared-host-clock": SimMutant(
        description="let the clock of a host decide leases on a shared store",
        parts=_make_store_parts(TrustsHostClock),
        settings={"clock_skew": 10.0},
        hosts=True,
    ),
    "shared-revoke": SimMutant(
        description="end the leases of other hosts at the start",
        parts=_make_store_parts(EndsLeasesOfOthers),
        hosts=True,
    ),
    "offset-unfenced": SimMutant(
        description="move the offset of an account that another host holds",
        parts=_make_store_parts(OffsetsWithoutFence),
        settings={"stall": 0.03, "most_faults": 30, **_LONG_CHATS},
        hosts=True,
    ),
    "two-pollers": SimMutant(
        description="receive on two hosts for one account", parts=_make_store_parts(SharesAccounts), hosts=True
    ),
    "account-early": SimMutant(
        description="take an account before its lease ends", parts=_make_store_parts(TakesAccountsEarly), hosts=True
    ),
    "unsynced-unguarded": SimMutant(
        description="check no claim for a commit that nobody waits for",
        parts=_make_store_parts(LooseUnsyncedCommits),
        settings={"stall": 0.015, "partition": 0.05, "most_faults": 14, **_LONG_CHATS},
        hosts=True,
    ),
    "unknown-repeated": SimMutant(
        description="take an unknown outcome for a failure",
        parts=_make_store_parts(RepeatsUnknownOutcomes),
        settings=_UNKNOWN_OUTCOMES,
        hosts=True,
    ),
    "unknown-trusted": SimMutant(
        description="take an unknown outcome for a success",
        parts=_make_store_parts(TrustsUnknownOutcomes),
        settings=_UNKNOWN_OUTCOMES,
        hosts=True,
    ),
    "pins-compressed": SimMutant(
        description="lose pins by a compression",
        parts=_make_store_parts(CompressesPins),
        settings={"context_tokens": 450, "pins": 0.6},
    ),
    "pins-stay": SimMutant(
        description="show pins that were removed", parts=_make_store_parts(KeepsRemovedPins), settings={"pins": 0.6}
    ),
    "short-wait": SimMutant(description="shorten a long requested wait", parts=_make_store_parts(ShortensWaits)),
    "unmarked": SimMutant(
        description="resend a batch that is stored as unsent", parts=SimProcessParts(supervisor=SendsUnmarked)
    ),
    "dead-letter-batch": SimMutant(
        description="give up a batch because of one item", parts=SimProcessParts(supervisor=DeadLettersWholeBatches)
    ),
    "rest-not-stored": SimMutant(
        description="do not store the rest of a refused batch", parts=SimProcessParts(supervisor=ForgetsTheRest)
    ),
    "stale-context": SimMutant(
        description="reuse a context of an older generation",
        parts=SimProcessParts(supervisor=KeepsStaleContexts),
        settings={**_LONG_CHATS, **_MANY_ACTIONS},
    ),
    "two-sessions": SimMutant(
        description="write two sessions in one commit", parts=_make_store_parts(TwoSessionsAtOnce)
    ),
    "bulk-loses": SimMutant(
        description="do not store the last of several messages",
        parts=_make_store_parts(LosesLastOfSeveral),
        settings={"batch_seconds": 0.5, "chats": 4},
    ),
    "bulk-asleep": SimMutant(
        description="make work due for the first of several messages only",
        parts=_make_store_parts(WakesForFirstOfSeveral),
        settings={"batch_seconds": 0.5, "chats": 4},
    ),
    "accept-unsynced": SimMutant(
        description="acknowledge an update before the sync", parts=_make_early_answer_parts(Step.ACCEPT)
    ),
    "end-unsynced": SimMutant(
        description="send a reply before the sync", parts=_make_early_answer_parts(Step.END), settings=_POWER_CUTS
    ),
    "call-unsynced": SimMutant(
        description="run a once tool before the sync",
        parts=_make_early_answer_parts(Step.CALL),
        settings=_POWER_CUTS,
    ),
    "send-unsynced": SimMutant(
        description="send blindly before the sync",
        parts=_make_early_answer_parts(Step.DELIVERY_SEND),
        settings=_POWER_CUTS,
    ),
    "old-identity": SimMutant(
        description="judge audiences by the old identity", parts=_make_store_parts(ReadsOldIdentities)
    ),
    "person-at-write": SimMutant(description="resolve the person at write", parts=_make_store_parts(ResolvesAtWrite)),
    "present-peer": SimMutant(
        description="write under the peer of now", parts=SimProcessParts(supervisor=WritesUnderPresentPeers)
    ),
    "unlink-ignored": SimMutant(
        description="answer after an unlink",
        parts=_make_store_parts(IgnoresUnlinks),
        settings={"slow": 0.3, **_LONG_CHATS, **_MANY_ACTIONS},
    ),
    "erasure-assumed": SimMutant(
        description="confirm a deletion without reading back", parts=SimProcessParts(forgetter=ConfirmsUnread)
    ),
    "one-identity": SimMutant(
        description="forget only one of several identities", parts=SimProcessParts(forgetter=ForgetsOneIdentity)
    ),
    "no-tombstones": SimMutant(
        description="recall erased text from a memory",
        parts=_make_store_parts(KnowsNoTombstones),
        settings={"recall": True, **_LONG_CHATS, **_MANY_ACTIONS},
    ),
    **{
        name: SimMutant(description=description, parts=parts, approvals=True)
        for name, (description, parts) in APPROVAL_BUGS.items()
    },
    "old-client": SimMutant(
        description="keep using a replaced client", parts=SimProcessParts(supervisor=KeepsItsClient)
    ),
}
