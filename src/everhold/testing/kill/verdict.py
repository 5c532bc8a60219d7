"""Compare the records of the services with the log after the last process has ended. Every sentence is a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

import apsw
import msgspec
from msgspec import Struct

from everhold.core.consumers import memory_consumer, platform_consumer
from everhold.core.entries import (
    Began,
    Called,
    Changed,
    Ended,
    Entry,
    EntryKind,
    Heard,
    Noted,
    Notified,
    OperationsUndone,
    Returned,
    Said,
    TaskRequested,
    Thought,
    Took,
)
from everhold.errors import EverholdError
from everhold.ports.memory import Exchange
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import DeadLetter, Operation, Receipt, StateNamespace, make_state_scope
from everhold.ports.tool import ToolEffect
from everhold.testing.kill.child import ChildProcessRandom, open_trial_store
from everhold.testing.kill.people import KillPeople
from everhold.testing.kill.world import (
    SPENDING_DAY,
    TOKEN_PATTERN,
    TOOL_EFFECTS,
    KillMemory,
    KillPlatform,
    KillWorld,
    parse_message_name,
)


class SessionHistory:
    """One session's log with its operations."""

    def __init__(self, session: str, entries: list[Entry], operations: list[Operation]) -> None:
        self.session = session
        self.entries = entries
        self.operations = operations
        self.operation_types: dict[int, str] = {}
        self.ended: dict[int, Ended] = {}
        self.taken: dict[int, list[int]] = {}
        """heard seq -> operations that took it and did not release it."""
        self.retried: Counter[int] = Counter()
        """heard seq -> how often a retry was requested."""
        self.said: dict[int, list[str]] = {}
        self.notified: Counter[int] = Counter()
        self.undone: set[int] = set()
        self.erased = {entry.seq for entry in entries if entry.body is None}
        for entry in entries:
            self._read_entry(entry, entry.op or 0)

    def _read_entry(self, entry: Entry, op: int) -> None:
        match entry.body:
            case Began(type=what, takes=takes):
                self.operation_types[entry.seq] = what
                for seq in takes:
                    self.taken.setdefault(seq, []).append(entry.seq)
            case Took(takes=takes):
                for seq in takes:
                    self.taken.setdefault(seq, []).append(op)
            case Said(text=text):
                self.said.setdefault(op, []).append(text)
            case Notified():
                self.notified[op] += 1
            case Ended() as ended:
                self.ended[op] = ended
                if ended.outcome == "released":
                    self._release_messages({op})
            case Changed(change=OperationsUndone(ops=ops, again=again)):
                self.undone |= set(ops)
                if again:
                    self.retried.update(seq for seq, taken in self.taken.items() if set(taken) & set(ops))
                    self._release_messages(set(ops))

    def _release_messages(self, ops: set[int]) -> None:
        for taken in self.taken.values():
            taken[:] = [op for op in taken if op not in ops]

    def list_expected_parts(self, platform: str) -> list[tuple[str, str, bool]]:
        """Return (key, text, may be missing) of everything to be delivered to a platform, in order."""
        found = []
        for entry in self.entries:
            if (
                isinstance(entry.body, Said | Notified)
                and entry.body.to is not None
                and entry.body.to.platform == platform
            ):
                cancelled = isinstance(entry.body, Said) and entry.op in self.undone
                for part, text in enumerate(entry.body.parts or (entry.body.text,)):
                    found.append((f"{self.session}:{entry.seq}:{part}", text, cancelled))
        return found

    def list_expected_memory_keys(self) -> list[str]:
        """Return the keys that a provider must have, in order."""
        keys = []
        for entry in self.entries:
            match entry.body:
                case Ended(outcome=outcome) if self.operation_types.get(entry.op or 0) == "turn":
                    if outcome in ("done", "stopped", "interrupted"):
                        keys.append(f"{self.session}:{entry.op}")
                case Noted():
                    keys.append(f"{self.session}:{entry.seq}:note")
                case Changed(change=OperationsUndone(ops=ops)) if any(
                    self.operation_types.get(op) == "turn" for op in ops
                ):
                    keys.append(f"{self.session}:{entry.seq}:retract")
        return keys


class StoreContents(Struct, kw_only=True):
    """The final contents of the store."""

    logs: list[SessionHistory]
    dead_letters: list[DeadLetter]
    receipts: dict[str, Receipt]
    problems: list[str]
    people: dict[str, str]
    """The name of the person of each identity that the operator linked or unlinked."""
    identities: set[str]
    """All identities that are known."""
    paid: set[str]
    """Budgets with a spend."""
    marked: set[str]
    """The offsets that the operator ordered to store."""


async def read_store(
    home: Path, *, name: str = "log.db", url: str = "", identities: Sequence[str] = (), budgets: Sequence[str] = ()
) -> StoreContents:
    """Open the store of the last process and verify it. `url` is the address of a PostgreSQL database."""
    # a store on a server records that it was opened
    store = await open_trial_store(home, url, chance=ChildProcessRandom() if url else _NoRandomSource(), name=name)
    try:
        audited = await store.audit()
        problems = [f"the store is inconsistent: {text}" for text in audited.contradictions]
        problems += [f"audit, {f.promise}: {f.text} ({f.session})" for f in audited.findings if f.level == "broken"]
        logs: list[SessionHistory] = []
        receipts: dict[str, Receipt] = {}
        after = ""
        while page := await store.list_sessions(limit=500, after=after):
            for session in page:
                entries = await store.list_entries(session.id)
                logs.append(SessionHistory(session.id, entries, await store.list_operations(session.id)))
                receipts |= {f"{r.consumer} {r.key}": r for r in await store.list_receipts(session.id)}
            after = page[-1].id
        dead_letters = await store.list_dead_letters(state="")
        directory = await store.get_people()
        people = {identity: directory.find_label(identity) for identity in identities}
        paid = {budget for budget in budgets if (await store.get_spend(budget, SPENDING_DAY)).tokens}
        operator = make_state_scope("operator", "main")
        marked = {it.key for it in await store.list_state_records(StateNamespace.PLATFORM_OFFSET, scope=operator)}
    finally:
        await store.close()
    if not url:
        problems += _check_file(home / name)
    return StoreContents(
        logs=logs,
        dead_letters=dead_letters,
        receipts=receipts,
        problems=problems,
        people=people,
        identities=set(directory.identities),
        paid=paid,
        marked=marked,
    )


def _check_file(path: Path) -> list[str]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return [f"integrity_check: {row[0]}" for row in db.execute("pragma integrity_check") if row[0] != "ok"]
    finally:
        db.close()


class _NoRandomSource:
    """A random source that must not be used, because this module only reads."""

    def bytes(self, n: int, /) -> bytes:
        raise EverholdError("nothing is written here")

    def random(self) -> float:
        raise EverholdError("nothing is written here")


def find_failures(world: KillWorld, people: KillPeople, contents: StoreContents, home: Path) -> list[str]:
    """Return all violations of a promise."""
    found = list(contents.problems)
    found += _check_heard(world, contents)
    found += check_answered(contents)
    found += _check_tasks(contents)
    for platform in world.platforms.values():
        found += _check_shown(platform, contents)
        found += _check_drafts(platform, contents)
        found += _check_answer_order(platform, people, contents)
    found += _check_tools(world, contents)
    for archive in world.memories.values():
        found += _check_memory(archive, contents)
    found += _check_orders(people, contents, home)
    found += _check_forgotten(world, people)
    return found


# -- incoming messages -------------------------------------------------------------------------------------------------


def _check_heard(world: KillWorld, contents: StoreContents) -> Iterator[str]:
    """Every message is in the log once, in the order of writing. An erased message keeps its place."""
    log: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for entry in (entry for log_ in contents.logs for entry in log_.entries if entry.kind is EntryKind.HEARD):
        if entry.dedup is not None and not parse_message_name(entry.dedup):
            continue  # the result of a job
        if entry.dedup is None:
            yield f"{entry.session} {entry.seq}: a message without a dedup key"
            chat = entry.body.origin.chat if isinstance(entry.body, Heard) else ""
            platform, message = chat.partition("-")[0], f"?{entry.seq}"
        else:
            platform, _, chat, message, _, revision = msgspec.json.decode(entry.dedup)
            message = f"{message}/{revision}"
        log.setdefault((platform, chat), []).append((entry.pos, message))
    for kill_platform in world.platforms.values():
        written: dict[str, list[str]] = {}
        for update in kill_platform.incoming_messages:
            written.setdefault(update.origin.chat, []).append(f"{update.origin.message}/{update.revision}")
        for chat, messages in written.items():
            kept = [message for _, message in sorted(log.get((kill_platform.name, chat), []))]
            if lost := [message for message in messages if message not in kept]:
                yield f"{chat}: lost {lost}"
            if twice := [message for message, count in Counter(kept).items() if count > 1]:
                yield f"{chat}: heard twice {twice}"
            if not lost and not twice and kept != messages:
                yield f"{chat}: reordered, written {messages}, in the log {kept}"


def _check_tasks(contents: StoreContents) -> Iterator[str]:
    """Every background task has one result."""
    for log in contents.logs:
        tasks = [e.seq for e in log.entries if isinstance(e.body, Changed) and isinstance(e.body.change, TaskRequested)]
        results = [e.dedup for e in log.entries if e.kind is EntryKind.HEARD and (e.dedup or "").startswith("job:")]
        if results != [f"job:{log.session}:{seq}" for seq in tasks]:
            yield f"{log.session}: the tasks {tasks} have the results {results}"


def check_answered(contents: StoreContents) -> Iterator[str]:
    """Every message that asks was answered by one turn, or its turn has another visible outcome."""
    for log in contents.logs:
        for entry in log.entries:
            if not isinstance(entry.body, Heard) or not entry.body.asks:
                continue
            ops = log.taken.get(entry.seq, [])
            where = f"{log.session}: message {entry.seq} ({entry.body.text[:30]!r})"
            if len(ops) != 1:
                yield f"{where} was taken by operations {ops}"
                continue
            ended = log.ended.get(ops[0])
            if ended is None:
                yield f"{where} was taken by operation {ops[0]}, which never ended"
            elif entry.body.command is None and log.operation_types[ops[0]] == "turn":
                said = " ".join(log.said.get(ops[0], []))
                if ended.outcome == "done" and not set(TOKEN_PATTERN.findall(entry.body.text)) <= set(
                    TOKEN_PATTERN.findall(said)
                ):
                    yield f"{where} is not in the answer {said[:60]!r}"
                if ended.outcome == "failed" and not log.notified[ops[0]]:
                    yield f"{where} failed without a notice"


# -- replies -----------------------------------------------------------------------------------------------------------


def _check_shown(platform: KillPlatform, contents: StoreContents) -> Iterator[str]:
    """Every part of every reply arrived once and in order. A blind repeat is recorded as in doubt."""
    consumer = platform_consumer(platform.name, "main")
    dead_letters = {item.key: item for item in contents.dead_letters if item.consumer == consumer}
    arrived: dict[str, list[tuple[str, str]]] = {}
    for shown in platform.shown:
        arrived.setdefault(shown.key.partition(":")[0], []).append((shown.key, shown.text))
    for log in contents.logs:
        expected = log.list_expected_parts(platform.name)
        erased = {f"{log.session}:{seq}" for seq in log.erased}
        got = [(key, text) for key, text in arrived.get(log.session, []) if key.rpartition(":")[0] not in erased]
        texts = {key: text for key, text, _ in expected}
        for key, text in got:
            if texts.get(key) != text:
                yield f"{platform.name}: {key} shows {text[:40]!r}, the log has {(texts.get(key) or 'nothing')[:40]!r}"
        keys = [key for key, _ in got]
        # a part that was undone or given up and replayed later may arrive later
        free = {key for key, _, cancelled in expected if cancelled} | set(dead_letters)
        for key in [key for key in texts if key not in keys and key not in free]:
            yield f"{platform.name}: {key} {texts[key][:40]!r} was never shown"
        yield from _check_repeats(platform, keys, contents, consumer, dead_letters)
        once = [key for key, _ in groupby(key for key in keys if key not in free)]
        order = [key for key, _, _ in expected if key in set(once)]
        if once != order:
            yield f"{platform.name}: shown out of order in {log.session}: {once}, the log has {order}"


def _check_drafts(platform: KillPlatform, contents: StoreContents) -> Iterator[str]:
    """A part of a reply remains visible only if the reply was given up, undone or erased, or if nothing can tell that
    the part arrived. Then it is counted."""
    consumer = platform_consumer(platform.name, "main")
    given_up = {item.key.rpartition(":")[0] for item in contents.dead_letters if item.consumer == consumer}
    logs = {log.session: log for log in contents.logs}
    for remote, text in platform.drafts.items():
        key = remote.split("-", 2)[2]
        session, op = key.split(":")[0], int(key.split(":")[1])
        log, receipt = logs[session], contents.receipts.get(f"{consumer} {key}")
        of_turn = {f"{session}:{entry.seq}" for entry in log.entries if entry.op == op}
        is_over = op in log.undone or op in log.erased or (op in log.ended and log.ended[op].outcome == "erased")
        counted = platform.delivery is DeliveryGuarantee.BLIND and receipt is not None and receipt.in_doubt
        if not is_over and not counted and not of_turn & given_up:
            yield f"{platform.name}: a part of the reply of {session}:{op} is still shown: {text[:40]!r}"


def _check_repeats(
    platform: KillPlatform, keys: list[str], contents: StoreContents, consumer: str, dead_letters: dict[str, DeadLetter]
) -> Iterator[str]:
    for key, count in Counter(keys).items():
        if count == 1:
            continue
        receipt = contents.receipts.get(f"{consumer} {key}")
        known = (receipt is not None and receipt.in_doubt) or (key in dead_letters and dead_letters[key].in_doubt)
        if platform.delivery is not DeliveryGuarantee.BLIND or not known:
            yield f"{platform.name}: {key} was shown {count} times"
        elif platform.name == "hold" and dead_letters.get(key) is None:
            yield f"{platform.name}: {key} was resent under the hold policy"


def _check_answer_order(platform: KillPlatform, people: KillPeople, contents: StoreContents) -> Iterator[str]:
    """Users see one answer to each message, in the order of writing."""
    excused = _find_excused_messages(contents, platform_consumer(platform.name, "main"))
    for chat in people.chats.values():
        if chat.platform is not platform or chat.sends_commands:
            continue
        texts = [shown.text for shown in platform.shown if shown.chat == chat.name]
        if platform.delivery is DeliveryGuarantee.BLIND:
            texts = [text for text, _ in groupby(texts)]  # repeats are checked elsewhere
        seen = [token for text in texts for token in TOKEN_PATTERN.findall(text)]
        wanted = [token for token in chat.tokens if token not in excused]
        if [token for token in seen if token not in excused] != wanted:
            yield f"{chat.name}: users wrote {wanted} and saw answers to {seen}"


def _find_excused_messages(contents: StoreContents, consumer: str) -> set[str]:
    """Return the messages whose answer may be missing: their turn failed, or the reply was given up or undone."""
    given_up = {item.key.rpartition(":")[0] for item in contents.dead_letters if item.consumer == consumer}
    excused: set[str] = set()
    for log in contents.logs:
        for entry in log.entries:
            match entry.body:
                case Said(text=text) if f"{log.session}:{entry.seq}" in given_up or entry.op in log.undone:
                    excused |= set(TOKEN_PATTERN.findall(text))
                case Heard(text=text) if _is_unanswered(log, entry.seq):
                    excused |= set(TOKEN_PATTERN.findall(text))
                case None if entry.dedup is not None:
                    excused.add(parse_message_name(entry.dedup))
    return excused


def _is_unanswered(log: SessionHistory, seq: int) -> bool:
    ops = log.taken.get(seq, [])
    return not ops or any(
        log.ended.get(op, Ended()).outcome != "done" or log.operation_types[op] != "turn" for op in ops
    )


# -- tools and memories ------------------------------------------------------------------------------------------------


_CHANGING_EFFECTS: Final = (ToolEffect.KEYED, ToolEffect.PROBE, ToolEffect.ONCE)


def _count_requested_answers(contents: StoreContents) -> Counter[str]:
    """Return how often a message should be answered: once, and once more per retry."""
    asked: Counter[str] = Counter()
    for log in contents.logs:
        for entry in log.entries:
            if isinstance(entry.body, Heard):
                for token in TOKEN_PATTERN.findall(entry.body.text):
                    asked[token] += 1 + log.retried[entry.seq]
    return asked


def _check_tools(world: KillWorld, contents: StoreContents) -> Iterator[str]:
    """No tool had its effect twice, and every recorded result has its effect."""
    asked = _count_requested_answers(contents)
    for (tool, message), count in world.toolbox.done.items():
        if count > max(1, asked[message]) and TOOL_EFFECTS[tool] in _CHANGING_EFFECTS:
            yield f"{tool} ({TOOL_EFFECTS[tool]}) was done {count} times for {message}"
    for log in contents.logs:
        started: dict[str, str] = {}
        wants: dict[str, str] = {}
        for entry in log.entries:
            match entry.body:
                case Thought(calls=calls):
                    started = {}
                    wants = {call.id: str(call.arguments.get("for")) for call in calls}
                case Called(call=call, tool=tool):
                    started[call] = tool
                case Returned(call=call, error=False) if TOOL_EFFECTS.get(started.get(call, "")) in _CHANGING_EFFECTS:
                    if not world.toolbox.done[started[call], wants[call]]:
                        yield f"{log.session} {entry.seq}: {started[call]} for {wants[call]} was never done"


def _check_memory(archive: KillMemory, contents: StoreContents) -> Iterator[str]:
    """The provider has every exchange and note once, in order, with the text of the log."""
    dead_letters = {item.key for item in contents.dead_letters if item.consumer == memory_consumer(archive.name)}
    for log in contents.logs:
        kept = archive.kept.get(log.session, [])
        keys = [item.key for item in kept]
        wanted = log.list_expected_memory_keys()
        if log.erased:
            # an exchange without any text is not delivered; the others are in order
            wanted = [key for key in wanted if key in keys]
        if [key for key in keys if key not in dead_letters] != [key for key in wanted if key not in dead_letters]:
            yield f"memory {archive.name}: has {keys} of {log.session}, the log has {wanted}"
        for item in kept:
            if (
                isinstance(item, Exchange)
                and not log.erased
                and list(_iter_operation_texts(log, item.op)) != _list_exchange_texts(item)
            ):
                yield f"memory {archive.name}: the text of {item.key} differs from the log"


def _iter_operation_texts(log: SessionHistory, op: int) -> Iterator[str]:
    taken = [seq for e in log.entries if e.seq == op or e.op == op for seq in getattr(e.body, "takes", ())]
    by_seq = {entry.seq: entry.body for entry in log.entries}
    for seq in taken:
        body = by_seq[seq]
        if isinstance(body, Heard):
            yield body.text
    yield from log.said.get(op, [])


def _list_exchange_texts(exchange: Exchange) -> list[str]:
    return [utterance.text for utterance in (*exchange.heard, *exchange.said)]


# -- orders of the operator --------------------------------------------------------------------------------------------


def _check_forgotten(world: KillWorld, people: KillPeople) -> Iterator[str]:
    """No memory has a word of a person who was forgotten."""
    for archive in world.memories.values():
        for item in (item for kept in archive.kept.values() for item in kept if isinstance(item, Exchange)):
            if any(one.author.removeprefix("person:") in people.forgotten for one in item.heard):
                yield f"memory {archive.name}: has {item.key} of a person who was forgotten"


def _check_orders(people: KillPeople, contents: StoreContents, home: Path) -> Iterator[str]:
    noted = {e.body.text for log in contents.logs for e in log.entries if isinstance(e.body, Noted)}
    for text in people.notes:
        if text not in noted:
            yield f"the note {text!r} is lost"
    for identity in people.linked:
        if contents.people.get(identity) != "ada":
            yield f"the link of {identity} is lost"
    for identity in people.unlinked:
        if contents.people.get(identity):
            yield f"the unlink of {identity} is lost"
    yield from (f"{it} was forgotten and is still known" for it in people.forgotten if it in contents.identities)
    yield from (f"the spend of {budget} is lost" for budget in people.budgets if budget not in contents.paid)
    yield from (f"the offset {name} is lost" for name in people.bookmarks if name not in contents.marked)
    for path in sorted(home.iterdir()):
        if path.is_file():
            content = path.read_bytes()
            for secret in people.secrets:
                if secret.encode() in content:
                    yield f"{secret} was erased and is still in {path.name}"
