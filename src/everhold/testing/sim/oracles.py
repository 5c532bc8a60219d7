"""Checks of the final state, when all work is done. They read the disk and the remote services, not the engine.

`check_all` collects the facts once, and each oracle yields a sentence for every violation of its promise.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from everhold.admin.sessions import SessionAdmin
from everhold.core.entries import (
    Began,
    Called,
    Changed,
    ChatLocation,
    Compressed,
    ContextReset,
    Ended,
    Entry,
    EntryKind,
    Erased,
    Heard,
    Noted,
    Notified,
    OperationsUndone,
    Returned,
    Said,
    Thought,
    Took,
    encode_body,
)
from everhold.core.people import PeopleEvent, build_directory, can_hear
from everhold.core.recall import list_traces
from everhold.core.recall_blobs import list_text_places, read_record
from everhold.engine.memory.tombstones import load_erasures
from everhold.engine.outbox.platform import DRAFT_PART
from everhold.ports.memory import ErasureState
from everhold.ports.platform import DeliveryGuarantee, IncomingMessage
from everhold.ports.store import DeadLetter, Receipt, StateNamespace, make_state_scope
from everhold.ports.tool import ToolEffect
from everhold.stores.sqlite import SqliteStore
from everhold.testing.sim import memories, reference
from everhold.testing.sim.approvals import check_approvals
from everhold.testing.sim.callers import SimCallerRequest
from everhold.testing.sim.host import SimEnvironment
from everhold.testing.sim.invariants import SECRET_PATTERN, TOKEN_PATTERN, InvariantWitness
from everhold.testing.sim.remote_services import SimPlatform
from everhold.testing.sim.world import SimWorld

ERASED_CALLS: Final[dict[str, int]] = {}
"""The calls of a thought that was erased later. Nobody knows them."""
CUT_SHORT_OUTCOMES: Final = {"failed", "stopped", "interrupted"}


class SimFacts(Struct, frozen=True, kw_only=True):
    """The final state of a schedule."""

    logs: dict[str, list[Entry]]
    dead_letters: list[DeadLetter]
    receipts: dict[str, list[Receipt]]
    blobs: dict[str, bytes]
    offsets: dict[tuple[str, str], str]
    """The stored platform offsets by scope and key."""
    world: SimWorld
    witness: InvariantWitness
    environment: SimEnvironment
    people_events: list[PeopleEvent]
    is_finished: bool
    """Whether all work is done. If not, a missing item may only be late."""


async def check_all(
    store: SqliteStore,
    control: SessionAdmin,
    world: SimWorld,
    witness: InvariantWitness,
    environment: SimEnvironment,
    *,
    is_finished: bool,
) -> list[str]:
    """Return all violations."""
    sessions = [session.id for session in await store.list_sessions(limit=1_000)]
    logs = {session: await store.list_entries(session) for session in sessions}
    thoughts = [e.body for log in logs.values() for e in log if isinstance(e.body, Thought)]
    recalled = {digest for it in thoughts for digest in (it.recall, it.why, it.tools) if digest}
    facts = SimFacts(
        logs=logs,
        blobs={digest: blob for digest in sorted(recalled) if (blob := await store.get_blob(digest)) is not None},
        dead_letters=await store.list_dead_letters(state=""),
        receipts={session: await store.list_receipts(session) for session in sessions},
        world=world,
        witness=witness,
        environment=environment,
        offsets={(it.scope, it.key): it.value for it in await store.list_state_records(StateNamespace.PLATFORM_OFFSET)},
        is_finished=is_finished,
        people_events=await store.list_people_events(limit=100_000),
    )
    people = await store.get_people()
    erasures = await load_erasures(store)
    for erasure in erasures:
        left = [it for it in witness.places_to_erase.get(erasure.id, ()) if logs[it[0]][it[1] - 1].body is not None]
        if erasure.log_erased and left:
            witness.report_problem(f"{list(erasure.identities)} were forgotten, but {sorted(left)} are in the log")
        for place in erasure.places:
            if place.state is ErasureState.CONFIRMED:
                witness.check_deleted(place.memory, erasure)
    report = await control.audit_store()
    problems = [
        f"the audit says: {finding.text}"
        for finding in report.broken_findings
        if is_finished or finding.promise == "P8"
    ]
    problems += await check_told_contexts(facts, control)
    problems += [
        f"the link of {it} to ada was confirmed and is not stored"
        for it in witness.linked
        if people.find_label(it) != "ada"
    ]
    for oracle in (
        check_gapless,
        check_heard_once,
        check_callers,
        check_answered,
        check_operation_bounds,
        check_compressions,
        check_model_requests,
        check_recalled_audiences,
        check_recall_records,
        check_deliveries,
        check_drafts,
        check_tool_runs,
        check_erasures,
    ):
        problems += oracle(facts)
    if environment.policy is not None:
        problems += check_approvals(logs, environment.tools, seed=world.seed, is_finished=is_finished)
    problems += memories.check_memories(
        facts.logs,
        environment.providers,
        facts.dead_letters,
        facts.receipts,
        peers=await store.list_peers(),
        policy=world.profile.policy,
        is_finished=is_finished,
    )
    return problems


def check_gapless(facts: SimFacts) -> Iterator[str]:
    """The seqs of a session are 1, 2, 3, …"""
    for session, log in facts.logs.items():
        if [entry.seq for entry in log] != list(range(1, len(log) + 1)):
            yield f"the log of {session} has gaps: {[entry.seq for entry in log]}"


def check_heard_once(facts: SimFacts) -> Iterator[str]:
    """Each confirmed update is in the log once, with its text. Updates of polled platforms are in order."""
    heard: dict[tuple[str, str, str, str], list[Entry]] = defaultdict(list)
    for log in facts.logs.values():
        for entry in log:
            if isinstance(entry.body, Heard):
                origin = entry.body.origin
                heard[origin.platform, origin.chat, origin.message, entry.body.revision].append(entry)
    for platform in facts.environment.platforms.values():
        places: list[int] = []
        for number, update in enumerate(platform.updates):
            origin = update.origin
            found = heard.get((origin.platform, origin.chat, origin.message, update.revision), [])
            kept = number < platform.seen_upto if platform.polled else number in platform.acknowledged
            yield from _kept(platform, update, found, facts, acknowledged=kept)
            places += [entry.pos for entry in found[:1]]
        if platform.polled and places != sorted(places):
            yield f"the log has the messages of {platform.name} in another order: {places}"


def _kept(
    platform: SimPlatform, update: IncomingMessage, found: Sequence[Entry], facts: SimFacts, *, acknowledged: bool
) -> Iterator[str]:
    """Yield the problems of one update."""
    session, seq = facts.witness.heard_places.get((update.origin, update.revision), ("", 0))
    erased = any(entry.seq == seq and entry.body is None for entry in facts.logs.get(session, ()))
    if update.offset is not None:
        if found:
            yield f"the ignored message {update.text!r} is in the log"
        scope = make_state_scope(update.origin.platform, update.origin.account)
        if acknowledged and facts.offsets.get((scope, update.offset.key)) != update.offset.value:
            yield f"the offset {update.offset.key} was confirmed to {platform.name} and is not stored"
    elif not found and acknowledged and not erased:
        yield f"{update.text!r} was confirmed to {platform.name} and is not in the log"
    if len(found) > 1:
        yield f"{update.text!r} is in the log {len(found)} times"
    for entry in found[:1]:
        assert isinstance(entry.body, Heard)
        if entry.body.text not in update.text:
            yield f"{update.text!r} is in the log as {entry.body.text!r}"
        identity = f"{update.origin.platform}:{update.sender}"
        if (entry.author, entry.body.stamp.person) != (f"person:{identity}", identity):
            yield f"{update.text!r} of {identity} is in the log as the words of {entry.author}"


def check_callers(facts: SimFacts) -> Iterator[str]:
    """Each message that was confirmed to a caller is in the log once, and each reply it received is in the log."""
    heard: dict[str, list[Entry]] = defaultdict(list)
    for log in facts.logs.values():
        for entry in log:
            if isinstance(entry.body, Heard) and entry.body.origin.platform == "http":
                heard[entry.body.origin.message.removeprefix("key:")].append(entry)
    for request in (request for caller in facts.environment.callers for request in caller.requests):
        found = heard[request.id]
        erased = any(secret in facts.witness.erased for secret in SECRET_PATTERN.findall(request.text))
        if request.style == "aside":
            if found:
                yield f"{request.id} has no session and is in the log"
            continue
        if len(found) > 1:
            yield f"{request.id} is in the log {len(found)} times"
        if request.acknowledged and not found and not erased:
            yield f"{request.id} was confirmed to its caller and is not in the log"
        if found and request.replies:
            yield from _check_replies(request, facts.logs[found[0].session], found[0].seq)


def _check_replies(request: SimCallerRequest, log: Sequence[Entry], seq: int) -> Iterator[str]:
    """Yield the replies of a caller that differ from the log."""
    owner = _MessageConsumption(log).owner.get(seq)
    said = [e.body for e in log if e.op == owner and e.kind is EntryKind.SAID]
    if not said or None in said:
        return  # erased later
    for reply in request.replies:
        if not any(isinstance(body, Said) and reply.endswith(body.text) for body in said):
            yield f"the caller of {request.id} received {reply!r}, which is not in the log"


class _MessageConsumption:
    """Which operation consumed which message, found by reading the log."""

    def __init__(self, log: Sequence[Entry]) -> None:
        self.log = log
        self.pending: dict[int, Entry] = {}
        self.owner: dict[int, int] = {}
        self.given_back: set[int] = set()
        self.began: dict[int, Began] = {}
        self.ended: dict[int, Ended] = {}
        self.problems: list[str] = []
        for entry in log:
            self._read_entry(entry)

    def _read_entry(self, entry: Entry) -> None:
        match entry.body:
            case Heard():
                self.pending[entry.seq] = entry
            case Began() as began:
                self.began[entry.seq] = began
                self._take_messages(entry.seq, began.takes)
            case Took(takes=takes):
                assert entry.op is not None
                self._take_messages(entry.op, takes)
            case Ended() as ended:
                assert entry.op is not None
                self.ended[entry.op] = ended
                if ended.outcome in ("released", "erased"):
                    self._release_messages(entry.op)
            case Changed(change=OperationsUndone(ops=ops, again=True)):
                for op in ops:
                    self._release_messages(op)
            case Erased(seqs=seqs):
                for seq in seqs:
                    self.pending.pop(seq, None)
            case _:
                pass

    def _take_messages(self, op: int, takes: Sequence[int]) -> None:
        for seq in takes:
            if seq not in self.pending and self.log[seq - 1].body is not None:
                self.problems.append(f"operation {op} takes message {seq}, which is not pending")
            self.pending.pop(seq, None)
            self.owner[seq] = op

    def _release_messages(self, op: int) -> None:
        for seq in [seq for seq, owner in self.owner.items() if owner == op]:
            del self.owner[seq]
            self.given_back.add(seq)
            if self.log[seq - 1].body is not None:
                self.pending[seq] = self.log[seq - 1]


def check_answered(facts: SimFacts) -> Iterator[str]:
    """Every message that asks is answered once and in order, or has another visible outcome."""
    for session, log in facts.logs.items():
        consumption = _MessageConsumption(log)
        yield from (f"{session}: {problem}" for problem in consumption.problems)
        by_op: dict[int, list[Entry]] = defaultdict(list)
        for entry in log:
            if entry.op is not None:
                by_op[entry.op].append(entry)
        last = 0
        for seq, op in sorted(consumption.owner.items(), key=lambda item: (item[1], item[0])):
            body = log[seq - 1].body
            if not isinstance(body, Heard):
                continue
            yield from (f"{session}: {why}" for why in _check_message_end(seq, body, op, consumption, by_op[op]))
            turn = consumption.began[op].type == "turn"
            if turn and body.asks and seq not in consumption.given_back:
                if seq < last:
                    yield f"{session}: message {seq} was answered after message {last}"
                last = seq
        if facts.is_finished:
            for seq, entry in consumption.pending.items():
                if isinstance(entry.body, Heard) and entry.body.asks:
                    yield f"{session}: no operation took message {seq}: {entry.body.text!r}"


def _check_message_end(
    seq: int, body: Heard, op: int, consumption: _MessageConsumption, steps: list[Entry]
) -> Iterator[str]:
    """Yield the problems of a consumed message's outcome."""
    ended = consumption.ended.get(op)
    if ended is None or not body.asks:
        return
    said = [entry.body for entry in steps if isinstance(entry.body, Said)]
    notices = [entry for entry in steps if entry.kind is EntryKind.NOTIFIED]  # some were erased later
    if consumption.began[op].type == "command":
        if not notices:
            yield f"the command in message {seq} ended without a notice"
        return
    if ended.outcome == "done":
        tokens = TOKEN_PATTERN.findall(body.text)
        answers = [one for one in said if one.to.chat == body.origin.chat and one.text.startswith("re ")]
        has_asked = any(
            entry.kind is EntryKind.APPROVAL_REQUESTED for entry in steps
        )  # the request says what it waits for
        if not answers and has_asked:
            return
        if len(answers) != 1 and not any(entry.kind is EntryKind.SAID and entry.body is None for entry in steps):
            yield f"message {seq} has {len(answers)} answers in operation {op}"
        elif answers and any(token not in TOKEN_PATTERN.findall(answers[0].text) for token in tokens):
            yield f"message {seq} ({body.text!r}) is not in the answer {answers[0].text!r}"
    elif ended.outcome == "failed":
        if not notices:
            yield f"message {seq} failed without a notice"
    elif ended.outcome not in CUT_SHORT_OUTCOMES:
        yield f"message {seq} ended as {ended.outcome}"


def check_operation_bounds(facts: SimFacts) -> Iterator[str]:
    """Entries of an operation are between its beginning and its end, and results belong to its own calls."""
    for session, log in facts.logs.items():
        running: dict[int, Began] = {}
        calls: dict[int, dict[str, int]] = {}
        for entry in log:
            if entry.op is None:
                continue
            where = f"{session}: entry {entry.seq} ({entry.kind})"
            if isinstance(entry.body, Began):
                if entry.body.type == "turn" and any(began.type == "turn" for began in running.values()):
                    yield f"{where} begins a turn while another one runs"
                running[entry.seq] = entry.body
            elif entry.op not in running:
                yield f"{where} belongs to operation {entry.op}, which is not running"
            if entry.op not in running or running[entry.op].type != "action":  # the call is in the turn that asked
                yield from (f"{where} {why}" for why in _calls(entry, calls))
            if isinstance(entry.body, Ended):
                running.pop(entry.op, None)
        if facts.is_finished and running:
            yield f"{session}: operations {sorted(running)} still run"


def _calls(entry: Entry, calls: dict[int, dict[str, int]]) -> Iterator[str]:
    """Yield the problems of an entry about a tool call. Counts results in `calls`: operation -> call -> results."""
    assert entry.op is not None
    asked = calls.get(entry.op, {})
    if entry.kind is EntryKind.THOUGHT and entry.body is None:
        calls[entry.op] = ERASED_CALLS
    if asked is ERASED_CALLS and not isinstance(entry.body, Thought):
        return
    match entry.body:
        case Thought(calls=made):
            calls[entry.op] = {call.id: 0 for call in made}
        case Called(call=call) if call not in asked:
            yield "starts a call that the operation never asked for"
        case Returned(call=call) if call not in asked:
            yield "is the result of a call that its operation never asked for"
        case Returned(call=call):
            asked[call] += 1
            if asked[call] > 1:
                yield "is the second result of one call"


def check_compressions(facts: SimFacts) -> Iterator[str]:
    """A compression is committed only if its context did not change while it ran, and it covers whole turns."""
    for session, log in facts.logs.items():
        for entry in log:
            if not isinstance(entry.body, Compressed):
                continue
            assert entry.op is not None
            between = [e for e in log if entry.op < e.seq < entry.seq]
            for other in between:
                if isinstance(other.body, Compressed | Erased) or (
                    isinstance(other.body, Changed) and isinstance(other.body.change, ContextReset | OperationsUndone)
                ):
                    yield f"{session}: compression {entry.op} used a context that entry {other.seq} changed"
            ended = {e.op for e in log[: entry.op] if e.kind is EntryKind.ENDED}
            for began in log[: entry.body.covers]:
                if isinstance(began.body, Began) and began.body.type == "turn" and began.seq not in ended:
                    yield f"{session}: compression {entry.op} covers turn {began.seq}, which had not ended"


def check_model_requests(facts: SimFacts) -> Iterator[str]:
    """Every request to a model equals the request that the reference reading of the log produces."""
    runtime = facts.environment.make_runtime()
    tools = [tool.spec for tool in runtime.tools.values()]
    for session, log in facts.logs.items():
        for entry in log:
            if isinstance(entry.body, Began) and entry.body.type == "turn":
                with contextlib.suppress(reference.InexactReading):
                    newest = reference.ReferenceReading(
                        facts.logs, session, entry.seq, entry.pos
                    ).find_newest_compression()
                    if entry.body.compression != newest:
                        pinned = entry.body.compression
                        yield f"{session}: turn {entry.seq} pins compression {pinned}, but {newest} is valid"
            if not isinstance(entry.body, Thought) or not entry.body.request:
                continue
            # the roles of the senders decide which of the tools are offered
            offered = {tool["name"] for tool in msgspec.json.decode(facts.blobs.get(entry.body.tools, b"[]"))}
            try:
                request = reference.reconstruct_request(
                    facts.logs,
                    entry,
                    system=runtime.system,
                    tools=[it for it in tools if it.name in offered],
                    blobs=facts.blobs,
                )
            except reference.InexactReading:
                continue
            if reference.fingerprint_request(request) != entry.body.request:
                facts.world.record("oracle", f"{session} {entry.seq} should have been asked {request.messages}")
                yield f"{session}: the request of entry {entry.seq} differs from the log"


def check_recalled_audiences(facts: SimFacts) -> Iterator[str]:
    """Everybody present could read what was recalled for a turn, as the people were at some moment of the turn."""
    for session, log in facts.logs.items():
        epochs = {e.seq: e.body.people for e in log if isinstance(e.body, Began)}
        for entry in log:
            body = entry.body
            blob = facts.blobs.get(body.why) if isinstance(body, Thought) and body.why else None
            if blob is None or entry.op is None:
                continue
            why = read_record(blob)
            since = epochs.get(entry.op, 0)
            moments = [since, *(it.n for it in facts.people_events if it.n > since and it.at <= entry.at)]
            directories = [build_directory(it for it in facts.people_events if it.n <= n) for n in moments]
            for trace in (*why.shown, *why.shadow):
                cited = next((e for e in facts.logs.get(trace.session, ()) if e.seq == trace.seq), None)
                if cited is None or not isinstance(cited.body, Heard | Said | Noted):
                    continue
                heard_by = cited.body.stamp.audience
                if not any(can_hear(it.expand_audience(why.audience), heard_by, cited.at) for it in directories):
                    yield f"{session}: {why.audience} was shown entry {trace.seq} of {trace.session}, for {heard_by}"


def check_recall_records(facts: SimFacts) -> Iterator[str]:
    """No stored recall refers to an erased entry, because it would still tell who said something and when."""
    if not facts.is_finished:
        return
    erased = {(session, entry.seq) for session, log in facts.logs.items() for entry in log if entry.body is None}
    for session, log in facts.logs.items():
        for entry in log:
            body = entry.body
            if not isinstance(body, Thought):
                continue
            text, record = facts.blobs.get(body.recall), facts.blobs.get(body.why)
            places = list_text_places(text) if text is not None else set()
            if record is not None:
                why = read_record(record)
                places |= {(it.session, it.seq) for it in list_traces(why)}
            for place in sorted(places & erased):
                yield f"entry {entry.seq} of {session} keeps a recall of {place}, which was erased"


async def check_told_contexts(facts: SimFacts, control: SessionAdmin) -> list[str]:
    """The admin shows exactly the context of a past model call, or says that it cannot be reconstructed."""
    found = []
    for session, log in facts.logs.items():
        erased = any(isinstance(entry.body, Erased) for each in facts.logs.values() for entry in each)
        # the recall of a turn may be deleted without an erasure in the log, when somebody who was present is forgotten
        thoughts = [
            e.seq
            for e in log
            if isinstance(e.body, Thought) and e.body.request and (not e.body.recall or e.body.recall in facts.blobs)
        ]
        for seq in thoughts[-2:]:
            context = await control.load_context(session, at=seq)
            if not context.exact and not erased:
                found.append(f"{session}: the shown context of entry {seq} is not exact")
    return found


class ExpectedReplies:
    """The replies that platforms must show, according to the logs."""

    def __init__(self, logs: Mapping[str, Sequence[Entry]]) -> None:
        self.parts: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        """(platform, session) -> key -> text"""
        self.optional: set[str] = set()
        """Keys of undone replies, which may be shown or not."""
        self.erased: set[str] = set()
        """Prefixes of keys whose text was erased."""
        for session, log in logs.items():
            self._read(session, log)

    def _read(self, session: str, log: Sequence[Entry]) -> None:
        undone = {
            op
            for e in log
            if isinstance(e.body, Changed) and isinstance(e.body.change, OperationsUndone)
            for op in e.body.change.ops
        }
        for entry in log:
            if entry.kind in (EntryKind.SAID, EntryKind.NOTIFIED) and entry.body is None:
                self.erased.add(f"{session}:{entry.seq}")
            match entry.body:
                case Said(to=to, parts=parts) | Notified(to=ChatLocation() as to, parts=parts):
                    keys = [f"{session}:{entry.seq}:{number}" for number in range(len(parts))]
                    self.parts[to.platform, session].update(zip(keys, parts, strict=True))
                    if isinstance(entry.body, Said) and entry.op in undone:
                        self.optional.update(keys)


def check_deliveries(facts: SimFacts) -> Iterator[str]:
    """Every reply is shown once and in order. A blind repeat is recorded as in doubt."""
    replies = ExpectedReplies(facts.logs)
    given_up = {dead_letter.key for dead_letter in facts.dead_letters if dead_letter.state in ("dead", "dropped")}
    for platform in facts.environment.platforms.values():
        yield from _shown_as_said(platform, replies)
        yield from _shown_in_order(platform, facts)
        yield from _shown_once(platform, facts)
        times = Counter(out.key for out in platform.shown_messages)
        for (name, _), parts in replies.parts.items():
            if name != platform.name or not facts.is_finished:
                continue
            for key in parts:
                if key not in times and key not in replies.optional and key not in given_up:
                    yield f"{platform.name} never showed {key}"


def _shown_as_said(platform: SimPlatform, replies: ExpectedReplies) -> Iterator[str]:
    for out in platform.shown_messages:
        text = replies.parts.get((platform.name, out.key.partition(":")[0]), {}).get(out.key)
        if text is None and out.key.rpartition(":")[0] not in replies.erased:
            yield f"{platform.name} shows {out.key}, which was never said"
        elif text is not None and text != out.text:
            yield f"{platform.name} shows {out.key} as {out.text!r} instead of {text!r}"
        if out.edits and platform.drafts[out.edits] != out.text:
            yield f"{platform.name} shows a draft again after {out.key}: {platform.drafts[out.edits]!r}"


def _shown_in_order(platform: SimPlatform, facts: SimFacts) -> Iterator[str]:
    # replayed dead letters may come later
    replayed = _replayed(facts)
    shown: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for out in platform.shown_messages:
        session, *place = out.key.split(":")
        if out.key not in replayed:
            shown[session].append(tuple(map(int, place)))
    for session, places in shown.items():
        if places != sorted(places):
            yield f"{platform.name} shows the replies of {session} out of order: {places}"


def _shown_once(platform: SimPlatform, facts: SimFacts) -> Iterator[str]:
    in_doubt = {r.key for found in facts.receipts.values() for r in found if r.in_doubt}
    in_doubt |= {letter.key for letter in facts.dead_letters if letter.in_doubt}
    replayed = _replayed(facts)
    for key, count in Counter(out.key for out in platform.shown_messages).items():
        bold = facts.world.profile.policy != "hold" or key in replayed
        if count > 1 and (platform.delivery is not DeliveryGuarantee.BLIND or not bold):
            yield f"{platform.name} shows {key} {count} times"
        elif count > 1 and key not in in_doubt:
            yield f"{platform.name} shows {key} {count} times, and no receipt or dead letter is in doubt"


def _replayed(facts: SimFacts) -> set[str]:
    return {letter.key for letter in facts.dead_letters if letter.state in ("replaying", "replayed")}


def check_drafts(facts: SimFacts) -> Iterator[str]:
    """No draft remains visible, unless its reply was given up, undone or erased, or it is counted as in doubt."""
    if not facts.is_finished:
        return
    given_up = {dead_letter.key.rpartition(":")[0] for dead_letter in facts.dead_letters}
    for session, log in facts.logs.items():
        excused = {e.op for e in log if f"{session}:{e.seq}" in given_up}
        # A reply that was delivered before it was erased has replaced its draft.
        delivered = {r.seq for r in facts.receipts[session] if r.part != DRAFT_PART}
        undelivered = {
            e.seq: e.op for e in log if e.kind in (EntryKind.SAID, EntryKind.NOTIFIED) and e.seq not in delivered
        }
        for entry in log:
            match entry.body:
                case Ended(outcome="erased"):
                    excused.add(entry.op)
                case Erased(seqs=seqs):
                    excused |= {undelivered[seq] for seq in seqs if seq in undelivered}
                case Changed(change=OperationsUndone(ops=ops)):
                    excused |= set(ops)
        in_doubt = {r.seq for r in facts.receipts[session] if r.part == DRAFT_PART and r.in_doubt}
        for platform in facts.environment.platforms.values():
            for op, text in platform.list_drafts(session):
                counted = platform.delivery is DeliveryGuarantee.BLIND and op in in_doubt
                if text.endswith(" …") and op not in excused and not counted:
                    yield f"{platform.name} still shows a draft of entry {op} of {session}: {text!r}"


def check_tool_runs(facts: SimFacts) -> Iterator[str]:
    """Every tool that is not pure had its effect once per key."""
    for tool in facts.environment.tools.values():
        if tool.effect is ToolEffect.PURE:
            continue
        for key, count in tool.done.items():
            if count > 1:
                yield f"the {tool.effect} tool {tool.spec.name} did {key} {count} times"


def check_erasures(facts: SimFacts) -> Iterator[str]:
    """No erased text is on the disk."""
    for session, log in facts.logs.items():
        for entry in log:
            if entry.body is not None and facts.witness.erased:
                for secret in SECRET_PATTERN.findall(encode_body(entry.body)):
                    if secret in facts.witness.erased:
                        yield f"{secret} was erased and is in entry {entry.seq} ({entry.kind}) of {session}"
    disk = facts.world.disk
    for path in (disk, disk.with_name(disk.name + "-wal")):
        data = path.read_bytes() if path.exists() else b""
        for secret in facts.witness.erased:
            if secret.encode() in data:
                yield f"{secret} was erased and is still in {path.name}"
