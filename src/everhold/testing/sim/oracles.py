"""What must be true when everything has come to rest. Reads the disk and the far sides; knows nothing of flow.

`check` gathers the facts once, and each oracle yields what contradicts its promise, in words.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from everhold.control import Control
from everhold.core.entries import (
    Began,
    Called,
    Changed,
    Compressed,
    ContextReset,
    Ended,
    Entry,
    Erased,
    Heard,
    Kind,
    Notified,
    OperationsUndone,
    Place,
    Returned,
    Said,
    Thought,
    Took,
    encode,
)
from everhold.flow.voice import DRAFT
from everhold.ports.platform import Delivery
from everhold.ports.store import DeadLetter, Receipt, StateNamespace, make_state_scope
from everhold.ports.tool import Effect
from everhold.stores.sqlite import SqliteStore
from everhold.testing.sim import memories, reference
from everhold.testing.sim.callers import Errand
from everhold.testing.sim.host import Surroundings
from everhold.testing.sim.witness import SECRET, TOKEN, Witness
from everhold.testing.sim.world import World

CUT_SHORT: Final = {"failed", "stopped", "interrupted"}


class Facts(Struct, frozen=True, kw_only=True):
    """Everything there is to look at, once nothing moves any more."""

    logs: dict[str, list[Entry]]
    parked: list[DeadLetter]
    receipts: dict[str, list[Receipt]]
    blobs: dict[str, bytes]
    offsets: dict[tuple[str, str], str]
    """What platforms were read, by scope and key."""
    world: World
    witness: Witness
    surroundings: Surroundings
    at_rest: bool
    """Whether everything came to an end; if not, what is missing may only be late."""


async def check(
    store: SqliteStore, control: Control, world: World, witness: Witness, surroundings: Surroundings, *, at_rest: bool
) -> list[str]:
    """Everything that is not as it must be."""
    sessions = [session.id for session in await store.list_sessions(limit=1_000)]
    logs = {session: await store.list_entries(session) for session in sessions}
    recalled = {e.body.recall for log in logs.values() for e in log if isinstance(e.body, Thought) and e.body.recall}
    facts = Facts(
        logs=logs,
        blobs={digest: blob for digest in sorted(recalled) if (blob := await store.get_blob(digest)) is not None},
        parked=await store.list_dead_letters(state=""),
        receipts={session: await store.list_receipts(session) for session in sessions},
        world=world,
        witness=witness,
        surroundings=surroundings,
        offsets={(it.scope, it.key): it.value for it in await store.list_state_records(StateNamespace.PLATFORM_OFFSET)},
        at_rest=at_rest,
    )
    links = dict(await store.list_identity_links())
    report = await control.audit()
    problems = [f"the audit says: {finding.text}" for finding in report.broken if at_rest or finding.promise == "P8"]
    problems += await retold(facts, control)
    problems += [f"{it} was said to be ada, and is not" for it in witness.linked if links.get(it) != "ada"]
    for oracle in (
        gapless,
        heard_once,
        called,
        answered,
        within_operations,
        folded,
        thought_of,
        delivered,
        finished,
        ran,
        hushed,
    ):
        problems += oracle(facts)
    problems += memories.remembered(
        facts.logs,
        surroundings.providers,
        facts.parked,
        facts.receipts,
        policy=world.profile.policy,
        at_rest=at_rest,
    )
    return problems


def gapless(facts: Facts) -> Iterator[str]:
    """A session's log counts 1, 2, 3."""
    for session, log in facts.logs.items():
        if [entry.seq for entry in log] != list(range(1, len(log) + 1)):
            yield f"the log of {session} has gaps: {[entry.seq for entry in log]}"


def heard_once(facts: Facts) -> Iterator[str]:
    """What a platform handed over stands in the log, once and as it was; polled platforms' in their order."""
    heard: dict[tuple[str, str, str, str], list[Entry]] = defaultdict(list)
    for log in facts.logs.values():
        for entry in log:
            if isinstance(entry.body, Heard):
                origin = entry.body.origin
                heard[origin.platform, origin.chat, origin.message, entry.body.revision].append(entry)
    for platform in facts.surroundings.platforms.values():
        places: list[int] = []
        for number, update in enumerate(platform.updates):
            origin = update.origin
            found = heard.get((origin.platform, origin.chat, origin.message, update.revision), [])
            kept = number < platform.seen_upto if platform.polled else number in platform.acknowledged
            if update.offset is not None:
                if found:
                    yield f"{update.text!r} of somebody nobody wants to hear is in the log"
                scope = make_state_scope(origin.platform, origin.account)
                if kept and facts.offsets.get((scope, update.offset.key)) != update.offset.value:
                    yield f"{platform.name} was told that {update.offset.key} was read, and it is not on record"
            elif (
                not found and kept and not any(secret in facts.witness.erased for secret in SECRET.findall(update.text))
            ):
                yield f"{platform.name} was told that {update.text!r} is kept, and it is not in the log"
            if len(found) > 1:
                yield f"{update.text!r} stands in the log {len(found)} times"
            for entry in found[:1]:
                assert isinstance(entry.body, Heard)
                if entry.body.text not in update.text:
                    yield f"{update.text!r} was kept as {entry.body.text!r}"
                places.append(entry.pos)
        if platform.polled and places != sorted(places):
            yield f"the log has the messages of {platform.name} in another order: {places}"


def called(facts: Facts) -> Iterator[str]:
    """What callers were told is kept stands in the log once, and what they were given as its reply is what it says."""
    heard: dict[str, list[Entry]] = defaultdict(list)
    for log in facts.logs.values():
        for entry in log:
            if isinstance(entry.body, Heard) and entry.body.origin.platform == "http":
                heard[entry.body.origin.message.removeprefix("key:")].append(entry)
    for errand in (errand for caller in facts.surroundings.callers for errand in caller.errands):
        found = heard[errand.id]
        erased = any(secret in facts.witness.erased for secret in SECRET.findall(errand.text))
        if errand.manner == "aside":
            if found:
                yield f"{errand.id} was kept, and nobody asked for that"
            continue
        if len(found) > 1:
            yield f"{errand.id} stands in the log {len(found)} times"
        if errand.kept and not found and not erased:
            yield f"the caller of {errand.id} was told that it is kept, and it is not in the log"
        if found and errand.replies:
            yield from _same(errand, facts.logs[found[0].session], found[0].seq)


def _same(errand: Errand, log: Sequence[Entry], seq: int) -> Iterator[str]:
    """What is wrong with what a caller was given, every time it asked."""
    owner = _Consumption(log).owner.get(seq)
    said = [e.body for e in log if e.op == owner and e.kind is Kind.SAID]
    if not said or None in said:
        return  # erased since
    for reply in errand.replies:
        if not any(isinstance(body, Said) and reply.endswith(body.text) for body in said):
            yield f"the caller of {errand.id} was told {reply!r}, and the log says otherwise"


class _Consumption:
    """Which operation has which message, by reading on."""

    def __init__(self, log: Sequence[Entry]) -> None:
        self.log = log
        self.pending: dict[int, Entry] = {}
        self.owner: dict[int, int] = {}
        self.given_back: set[int] = set()
        self.began: dict[int, Began] = {}
        self.ended: dict[int, Ended] = {}
        self.problems: list[str] = []
        for entry in log:
            self._read(entry)

    def _read(self, entry: Entry) -> None:
        match entry.body:
            case Heard():
                self.pending[entry.seq] = entry
            case Began() as began:
                self.began[entry.seq] = began
                self._take(entry.seq, began.takes)
            case Took(takes=takes):
                assert entry.op is not None
                self._take(entry.op, takes)
            case Ended() as ended:
                assert entry.op is not None
                self.ended[entry.op] = ended
                if ended.outcome in ("released", "erased"):
                    self._give_back(entry.op)
            case Changed(change=OperationsUndone(ops=ops, again=True)):
                for op in ops:
                    self._give_back(op)
            case Erased(seqs=seqs):
                for seq in seqs:
                    self.pending.pop(seq, None)
            case _:
                pass

    def _take(self, op: int, takes: Sequence[int]) -> None:
        for seq in takes:
            if seq not in self.pending and self.log[seq - 1].body is not None:
                self.problems.append(f"operation {op} takes message {seq}, which is not pending")
            self.pending.pop(seq, None)
            self.owner[seq] = op

    def _give_back(self, op: int) -> None:
        for seq in [seq for seq, owner in self.owner.items() if owner == op]:
            del self.owner[seq]
            self.given_back.add(seq)
            if self.log[seq - 1].body is not None:
                self.pending[seq] = self.log[seq - 1]


def answered(facts: Facts) -> Iterator[str]:
    """Every message that asks is answered once and in order, or its end is there to be seen."""
    for session, log in facts.logs.items():
        consumption = _Consumption(log)
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
            yield from (f"{session}: {why}" for why in _end_of(seq, body, op, consumption, by_op[op]))
            turn = consumption.began[op].type == "turn"
            if turn and body.asks and seq not in consumption.given_back:
                if seq < last:
                    yield f"{session}: message {seq} was answered after message {last}"
                last = seq
        if facts.at_rest:
            for seq, entry in consumption.pending.items():
                if isinstance(entry.body, Heard) and entry.body.asks:
                    yield f"{session}: nobody took message {seq}: {entry.body.text!r}"


def _end_of(seq: int, body: Heard, op: int, consumption: _Consumption, steps: list[Entry]) -> Iterator[str]:
    """What is wrong with how a consumed message ended."""
    ended = consumption.ended.get(op)
    if ended is None or not body.asks:
        return
    said = [entry.body for entry in steps if isinstance(entry.body, Said)]
    told = [entry.body for entry in steps if isinstance(entry.body, Notified)]
    if consumption.began[op].type == "command":
        if not told:
            yield f"the command with message {seq} ended without a word"
        return
    if ended.outcome == "done":
        tokens = TOKEN.findall(body.text)
        answers = [one for one in said if one.to.chat == body.origin.chat and one.text.startswith("re ")]
        if len(answers) != 1 and not any(entry.kind is Kind.SAID and entry.body is None for entry in steps):
            yield f"message {seq} has {len(answers)} answers in operation {op}"
        elif answers and any(token not in TOKEN.findall(answers[0].text) for token in tokens):
            yield f"message {seq} ({body.text!r}) is not in the answer {answers[0].text!r}"
    elif ended.outcome == "failed":
        if not told:
            yield f"message {seq} failed without a word"
    elif ended.outcome not in CUT_SHORT:
        yield f"message {seq} ended as {ended.outcome}"


def within_operations(facts: Facts) -> Iterator[str]:
    """What belongs to an operation stands between its beginning and its end, and results answer its own calls."""
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
            match entry.body:
                case Thought(calls=asked):
                    calls[entry.op] = {call.id: 0 for call in asked}
                case Called(call=call) if call not in calls.get(entry.op, {}):
                    yield f"{where} starts a call that the operation never asked for"
                case Returned(call=call):
                    if call not in calls.get(entry.op, {}):
                        yield f"{where} is the result of a call that its operation never asked for"
                    else:
                        calls[entry.op][call] += 1
                        if calls[entry.op][call] > 1:
                            yield f"{where} is the second result of one call"
                case Ended():
                    running.pop(entry.op, None)
        if facts.at_rest and running:
            yield f"{session}: operations {sorted(running)} still run"


def folded(facts: Facts) -> Iterator[str]:
    """A summary stands only if the view it was made of did not change meanwhile, and it covers whole turns."""
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
                    yield f"{session}: the fold {entry.op} was made of a view that entry {other.seq} changed"
            ended = {e.op for e in log[: entry.op] if e.kind is Kind.ENDED}
            for began in log[: entry.body.covers]:
                if isinstance(began.body, Began) and began.body.type == "turn" and began.seq not in ended:
                    yield f"{session}: the fold {entry.op} covers turn {began.seq}, which was not over"


def thought_of(facts: Facts) -> Iterator[str]:
    """Every request a model answered is the one that a naive reader of the log arrives at."""
    runtime = facts.surroundings.configure()
    tools = [tool.spec for tool in runtime.tools.values()]
    for session, log in facts.logs.items():
        for entry in log:
            if isinstance(entry.body, Began) and entry.body.type == "turn":
                with contextlib.suppress(reference.Inexact):
                    newest = reference.Reading(facts.logs, session, entry.seq, entry.pos).newest_fold()
                    if entry.body.compression != newest:
                        yield f"{session}: turn {entry.seq} pins {entry.body.compression}, but {newest} is in force"
            if not isinstance(entry.body, Thought) or not entry.body.request:
                continue
            try:
                request = reference.request_of(facts.logs, entry, system=runtime.system, tools=tools, blobs=facts.blobs)
            except reference.Inexact:
                continue
            if reference.fingerprint(request) != entry.body.request:
                facts.world.tell("oracle", f"{session} {entry.seq} should have been asked {request.messages}")
                yield f"{session}: the request behind entry {entry.seq} is not what the log says"


async def retold(facts: Facts, control: Control) -> list[str]:
    """Whoever asks what a model was shown is told exactly that, or that it cannot be told any more."""
    found = []
    for session, log in facts.logs.items():
        erased = any(isinstance(entry.body, Erased) for each in facts.logs.values() for entry in each)
        thoughts = [e.seq for e in log if isinstance(e.body, Thought) and e.body.request]
        for seq in thoughts[-2:]:
            context = await control.context(session, at=seq)
            if not context.exact and not erased:
                found.append(f"{session}: the context of entry {seq} is told otherwise than it was")
    return found


def delivered(facts: Facts) -> Iterator[str]:
    """Every reply is shown once and in order; where nobody can tell, the doubt is on record."""
    doubtful = {r.key for found in facts.receipts.values() for r in found if r.in_doubt}
    doubtful |= {parked.key for parked in facts.parked if parked.in_doubt}
    given_up = {parked.key for parked in facts.parked if parked.state in ("dead", "dropped")}
    replayed = {parked.key for parked in facts.parked if parked.state in ("replaying", "replayed")}
    expected: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    optional: set[str] = set()
    erased: set[str] = set()
    for session, log in facts.logs.items():
        undone = {
            op
            for e in log
            if isinstance(e.body, Changed) and isinstance(e.body.change, OperationsUndone)
            for op in e.body.change.ops
        }
        for entry in log:
            if entry.kind in (Kind.SAID, Kind.NOTIFIED) and entry.body is None:
                erased.add(f"{session}:{entry.seq}")
            match entry.body:
                case Said(to=to, parts=parts) | Notified(to=Place() as to, parts=parts):
                    for number, part in enumerate(parts):
                        expected[to.platform, session][f"{session}:{entry.seq}:{number}"] = part
                    if isinstance(entry.body, Said) and entry.op in undone:
                        optional.update(f"{session}:{entry.seq}:{number}" for number in range(len(parts)))
    for platform in facts.surroundings.platforms.values():
        shown: dict[str, list[str]] = defaultdict(list)
        times = Counter(out.key for out in platform.shown)
        for out in platform.shown:
            session = out.key.partition(":")[0]
            shown[session].append(out.key)
            text = expected.get((platform.name, session), {}).get(out.key)
            if text is None and out.key.rpartition(":")[0] not in erased:
                yield f"{platform.name} shows {out.key}, which was never said"
            elif text is not None and text != out.text:
                yield f"{platform.name} shows {out.key} as {out.text!r} instead of {text!r}"
            if out.edits and platform.drafts[out.edits] != out.text:
                yield f"{platform.name} shows an unfinished {out.key} again: {platform.drafts[out.edits]!r}"
        for session, keys in shown.items():
            # what somebody sent again comes when it comes
            places = [tuple(map(int, key.split(":")[1:])) for key in keys if key not in replayed]
            if places != sorted(places):
                yield f"{platform.name} shows the replies of {session} out of order: {places}"
        for key, count in times.items():
            bold = facts.world.profile.policy != "hold" or key in replayed
            if count > 1 and (platform.delivery is not Delivery.BLIND or not bold):
                yield f"{platform.name} shows {key} {count} times"
            elif count > 1 and key not in doubtful:
                yield f"{platform.name} shows {key} {count} times, and no doubt about it is on record"
        for (name, _), parts_of in expected.items():
            if name != platform.name or not facts.at_rest:
                continue
            for key in parts_of:
                if key not in times and key not in optional and key not in given_up:
                    yield f"{platform.name} never showed {key}"


def finished(facts: Facts) -> Iterator[str]:
    """Nobody looks for ever at the beginning of a reply, unless what belongs there was given up, undone or erased."""
    given_up = {parked.key.rpartition(":")[0] for parked in facts.parked}
    for session, log in facts.logs.items():
        excused = {e.op for e in log if f"{session}:{e.seq}" in given_up}
        for entry in log:
            match entry.body:
                case Ended(outcome="erased"):
                    excused.add(entry.op)
                case Changed(change=OperationsUndone(ops=ops)):
                    excused |= set(ops)
        for platform in facts.surroundings.platforms.values():
            for receipt in facts.receipts[session]:
                text = platform.drafts.get(receipt.remote, "") if receipt.part == DRAFT else ""
                if text.endswith(" …") and receipt.seq not in excused and facts.at_rest:
                    yield f"{platform.name} still shows the beginning of what {session} said in {receipt.seq}: {text!r}"


def ran(facts: Facts) -> Iterator[str]:
    """A tool that must not run twice did not, and one that can be asked or knows its key changed things once."""
    for tool in facts.surroundings.tools.values():
        if tool.effect is Effect.PURE:
            continue
        for key, count in tool.done.items():
            if count > 1:
                yield f"the {tool.effect} tool {tool.spec.name} did {key} {count} times"


def hushed(facts: Facts) -> Iterator[str]:
    """What was erased is nowhere on the disk."""
    for session, log in facts.logs.items():
        for entry in log:
            if entry.body is not None and facts.witness.erased:
                for secret in SECRET.findall(encode(entry.body)):
                    if secret in facts.witness.erased:
                        yield f"{secret} was erased, and {session} says it in entry {entry.seq} ({entry.kind})"
    disk = facts.world.disk
    for path in (disk, disk.with_name(disk.name + "-wal")):
        data = path.read_bytes() if path.exists() else b""
        for secret in facts.witness.erased:
            if secret.encode() in data:
                yield f"{secret} was erased and is still in {path.name}"
