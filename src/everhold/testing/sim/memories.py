"""Checks of the memory providers at the end: every exchange and note, once, in order, with its stamp."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from everhold.core.consumers import memory_consumer
from everhold.core.entries import Began, Changed, Ended, Entry, EntryKind, Heard, Noted, OperationsUndone, Said, Took
from everhold.ports.memory import Exchange, MemoryItem, MemoryNote
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import DeadLetter, PeerRecord, Receipt
from everhold.testing.sim.remote_services import SimMemoryProvider

REMEMBERED_OUTCOMES = {"done", "stopped", "interrupted"}


class ExpectedMemory(Struct, frozen=True, kw_only=True):
    """An item that memories must receive, and its place in the log."""

    key: str
    seq: int
    heard: tuple[Entry, ...] = ()
    said: tuple[Entry, ...] = ()
    erased: bool = False


def collect_expected_memories(session: str, log: Sequence[Entry]) -> list[ExpectedMemory]:
    """Collect the items of one session's log that memories must receive, in order."""
    found: list[ExpectedMemory] = []
    began: dict[int, str] = {}
    takes: dict[int, list[int]] = defaultdict(list)
    for entry in log:
        match entry.body:
            case Began(type=what):
                began[entry.seq] = what
                takes[entry.seq] += entry.body.takes
            case Took():
                assert entry.op is not None
                takes[entry.op] += entry.body.takes
            case Ended(outcome=outcome) if (
                entry.op is not None and began[entry.op] == "turn" and outcome in REMEMBERED_OUTCOMES
            ):
                heard = tuple(log[seq - 1] for seq in takes[entry.op])
                said = tuple(e for e in log if e.op == entry.op and e.kind is EntryKind.SAID and e.seq < entry.seq)
                erased = any(e.body is None for e in (*heard, *said))
                found.append(
                    ExpectedMemory(
                        key=f"{session}:{entry.op}",
                        seq=entry.seq,
                        heard=tuple(it for it in heard if not is_report(it)),
                        said=said,
                        erased=erased or not (said or any(not is_report(it) for it in heard)),
                    )
                )
            case Noted():
                found.append(ExpectedMemory(key=f"{session}:{entry.seq}:note", seq=entry.seq))
            case None if entry.kind is EntryKind.NOTED:
                found.append(ExpectedMemory(key=f"{session}:{entry.seq}:note", seq=entry.seq, erased=True))
            case Changed(change=OperationsUndone(ops=ops)) if any(began.get(op) == "turn" for op in ops):
                found.append(ExpectedMemory(key=f"{session}:{entry.seq}:retract", seq=entry.seq))
    return found


def is_report(entry: Entry) -> bool:
    """Return whether the gateway reports what became of a request. Nobody said that."""
    return isinstance(entry.body, Heard) and entry.body.approval is not None


def check_memories(
    logs: Mapping[str, Sequence[Entry]],
    providers: Mapping[str, SimMemoryProvider],
    dead_letters: Sequence[DeadLetter],
    receipts: Mapping[str, Sequence[Receipt]],
    *,
    peers: Sequence[PeerRecord],
    policy: str,
    is_finished: bool,
) -> Iterator[str]:
    """Check that every exchange and note reached every provider once, in order, with its stamp."""
    for name, provider in providers.items():
        consumer = memory_consumer(name)
        dead = [one for one in dead_letters if one.consumer == consumer]
        known = DeliveryRecord(
            in_doubt={r.key for found in receipts.values() for r in found if r.consumer == consumer and r.in_doubt}
            | {one.key for one in dead if one.in_doubt},
            given_up={one.key for one in dead if one.state in ("dead", "dropped")},
            replayed={one.key for one in dead if one.state in ("replaying", "replayed")},
        )
        for session, log in logs.items():
            expected = collect_expected_memories(session, log)
            under = {where: items for where, items in provider.kept.items() if items[0].session == session}
            if len(under) > 1:
                yield f"{name} files {session} under {len(under)} names: {', '.join(sorted(under))}"
            kept = [item for items in under.values() for item in items]
            yield from _kept_as_said(name, kept, expected, log)
            yield from _kept_under_peers(name, kept, expected, [row for row in peers if row.memory == name])
            yield from _kept_in_order(name, provider, session, kept, expected, known)
            yield from _kept_once(name, provider, kept, known, policy=policy)
            for one in dead:
                if one.session == session and not one.in_doubt and one.key not in provider.blamed:
                    yield f"{name} never received {one.key} alone, and it became a dead letter: {one.reason}"
            there = {item.key for item in kept}
            for place in expected if is_finished else ():
                if place.key not in there and place.key not in known.given_up and not place.erased:
                    yield f"{name} never got {place.key}"


class DeliveryRecord(NamedTuple):
    """What the store records about the keys of one provider."""

    in_doubt: set[str]
    given_up: set[str]
    replayed: set[str]


def _kept_as_said(
    name: str, kept: Sequence[MemoryItem], expected: Sequence[ExpectedMemory], log: Sequence[Entry]
) -> Iterator[str]:
    by_key = {place.key: place for place in expected}
    for item in kept:
        if item.key not in by_key:
            yield f"{name} keeps {item.key}, which is no item of the log"
        else:
            yield from (f"{name}: {why}" for why in _check_identity(item, by_key[item.key], log))


def _kept_under_peers(
    name: str, kept: Sequence[MemoryItem], expected: Sequence[ExpectedMemory], rows: Sequence[PeerRecord]
) -> Iterator[str]:
    """Every message is stored under the peer that was recorded for its sender when it was committed."""
    heard = {place.key: {entry.seq: entry for entry in place.heard} for place in expected}
    for item in kept:
        for one in item.heard if isinstance(item, Exchange) else ():
            entry = heard.get(item.key, {}).get(one.seq)
            own = [row for row in rows if entry is not None and f"person:{row.identity}" == entry.author]
            if entry is None or not own:
                continue
            own.sort(key=lambda row: row.from_pos)
            then = [row for row in own if row.from_pos <= entry.pos] or own[:1]
            if one.peer != then[-1].peer:
                yield f"{name} has entry {entry.seq} of {item.key} under {one.peer!r} instead of {then[-1].peer!r}"


def _kept_in_order(
    name: str,
    provider: SimMemoryProvider,
    session: str,
    kept: Sequence[MemoryItem],
    expected: Sequence[ExpectedMemory],
    known: DeliveryRecord,
) -> Iterator[str]:
    order = {place.key: number for number, place in enumerate(expected)}
    # with blind delivery a whole batch may be there twice; if the batch was given up in doubt, a part of the last
    # attempt may come after the whole of an earlier one
    loose = known.replayed | (
        known.given_up & known.in_doubt if provider.delivery is DeliveryGuarantee.BLIND else set()
    )
    found = _order_by_last_occurrence(order[item.key] for item in kept if item.key in order and item.key not in loose)
    if found != sorted(found):
        yield f"{name} has the memories of {session} out of order: {found}"
    if provider.delivery is DeliveryGuarantee.UPSERT:
        lasting = {place.key for place in expected if place.key not in known.replayed and not place.erased}
        written = [order[key] for _, key in provider.writes if key in lasting]
        if _order_by_last_occurrence(written) != sorted(set(written)):
            yield f"{name} had an older memory of {session} written over a newer one: {written}"


def _kept_once(
    name: str, provider: SimMemoryProvider, kept: Sequence[MemoryItem], known: DeliveryRecord, *, policy: str
) -> Iterator[str]:
    for key, count in Counter(item.key for item in kept).items():
        bold = policy != "hold" or key in known.replayed
        if count > 1 and (provider.delivery is not DeliveryGuarantee.BLIND or not bold):
            yield f"{name} keeps {key} {count} times"
        elif count > 1 and key not in known.in_doubt:
            yield f"{name} keeps {key} {count} times, and no receipt or dead letter is in doubt"


def _order_by_last_occurrence(numbers: Iterable[int]) -> list[int]:
    """Return the distinct numbers in the order of their last occurrence."""
    return list(dict.fromkeys(reversed(list(numbers))))[::-1]


def _check_identity(item: MemoryItem, place: ExpectedMemory, log: Sequence[Entry]) -> Iterator[str]:
    """Check author, text and stamp of an item against the log."""
    match item:
        case MemoryNote(stamp=stamp, text=text):
            body = log[place.seq - 1].body
            if isinstance(body, Noted) and (body.stamp, body.text) != (stamp, text):
                yield f"the note {item.key} differs from the log"
        case Exchange(heard=heard, said=said) if not place.erased:
            then = [
                (entry.author, entry.body.text, entry.body.stamp)
                for entry in (*place.heard, *place.said)
                if isinstance(entry.body, Heard | Said)
            ]
            if [(one.author, one.text, one.stamp) for one in (*heard, *said)] != then:
                yield f"the exchange {item.key} differs from the log"
        case _:
            pass
