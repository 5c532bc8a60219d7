"""What memory providers must have in the end: every exchange and note, once, in order, as whoever it was then."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from everhold.core.consumers import memory_consumer
from everhold.core.entries import Began, Changed, Ended, Entry, Heard, Kind, Noted, OperationsUndone, Said, Took
from everhold.ports.memory import Exchange, Memory, Note
from everhold.ports.platform import Delivery
from everhold.ports.store import DeadLetter, Receipt
from everhold.testing.sim.farside import SimProvider

REMEMBERED = {"done", "stopped", "interrupted"}


class Place(Struct, frozen=True, kw_only=True):
    """Something memory must be handed, where it stands in the log."""

    key: str
    seq: int
    heard: tuple[Entry, ...] = ()
    said: tuple[Entry, ...] = ()
    erased: bool = False


def places(session: str, log: Sequence[Entry]) -> list[Place]:
    """What one session's log holds for memory, in order."""
    found: list[Place] = []
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
            case Ended(outcome=outcome) if entry.op is not None and began[entry.op] == "turn" and outcome in REMEMBERED:
                heard = tuple(log[seq - 1] for seq in takes[entry.op])
                said = tuple(e for e in log if e.op == entry.op and e.kind is Kind.SAID and e.seq < entry.seq)
                erased = any(e.body is None for e in (*heard, *said))
                found.append(Place(key=f"{session}:{entry.op}", seq=entry.seq, heard=heard, said=said, erased=erased))
            case Noted():
                found.append(Place(key=f"{session}:{entry.seq}:note", seq=entry.seq))
            case None if entry.kind is Kind.NOTED:
                found.append(Place(key=f"{session}:{entry.seq}:note", seq=entry.seq, erased=True))
            case Changed(change=OperationsUndone(ops=ops)) if any(began[op] == "turn" for op in ops):
                found.append(Place(key=f"{session}:{entry.seq}:retract", seq=entry.seq))
    return found


def remembered(
    logs: Mapping[str, Sequence[Entry]],
    providers: Mapping[str, SimProvider],
    parked: Sequence[DeadLetter],
    receipts: Mapping[str, Sequence[Receipt]],
    *,
    policy: str,
    at_rest: bool,
) -> Iterator[str]:
    """Every exchange and note reached every provider as often as it should, in order, under its own identity."""
    for name, provider in providers.items():
        reader = memory_consumer(name)
        doubtful = {r.key for found in receipts.values() for r in found if r.consumer == reader and r.in_doubt}
        doubtful |= {one.key for one in parked if one.consumer == reader and one.in_doubt}
        given_up = {one.key for one in parked if one.consumer == reader and one.state in ("dead", "dropped")}
        replayed = {one.key for one in parked if one.consumer == reader and one.state in ("replaying", "replayed")}
        for session, log in logs.items():
            expected = places(session, log)
            order = {place.key: number for number, place in enumerate(expected)}
            by_key = {place.key: place for place in expected}
            under = {where: items for where, items in provider.kept.items() if items[0].session == session}
            if len(under) > 1:
                yield f"{name} files {session} under {len(under)} names: {', '.join(sorted(under))}"
            kept = [item for items in under.values() for item in items]
            times = Counter(item.key for item in kept)
            for item in kept:
                if item.key not in by_key:
                    yield f"{name} keeps {item.key}, which the log does not hold for memory"
                else:
                    yield from (f"{name}: {why}" for why in _identity(item, by_key[item.key], log))
            # where nobody can tell what arrived, a whole batch may stand there twice, one behind the other; of one that
            # was given up in doubt, half of the last try may stand there behind the whole of an earlier one
            loose = replayed | (given_up & doubtful if provider.delivery is Delivery.BLIND else set())
            found = _last(order[item.key] for item in kept if item.key in order and item.key not in loose)
            if found != sorted(found):
                yield f"{name} has the memories of {session} out of order: {found}"
            if provider.delivery is Delivery.UPSERT:
                lasting = {key for key in order if key not in replayed and not by_key[key].erased}
                written = [order[key] for _, key in provider.writes if key in lasting]
                if _last(written) != sorted(set(written)):
                    yield f"{name} had an older memory of {session} written over a newer one: {written}"
            for key, count in times.items():
                bold = policy != "hold" or key in replayed
                if count > 1 and (provider.delivery is not Delivery.BLIND or not bold):
                    yield f"{name} keeps {key} {count} times"
                elif count > 1 and key not in doubtful:
                    yield f"{name} keeps {key} {count} times, and no doubt about it is on record"
            for one in parked:
                if (
                    (one.consumer, one.session) == (reader, session)
                    and not one.in_doubt
                    and one.key not in provider.blamed
                ):
                    yield f"{name} was never offered {one.key} by itself, and it was parked: {one.reason}"
            if at_rest:
                for place in expected:
                    if place.key not in times and place.key not in given_up and not place.erased:
                        yield f"{name} never got {place.key}"


def _last(numbers: Iterable[int]) -> list[int]:
    """The numbers in the order in which each came last."""
    return list(dict.fromkeys(reversed(list(numbers))))[::-1]


def _identity(item: Memory, place: Place, log: Sequence[Entry]) -> Iterator[str]:
    """Who said it, what and where: as stamped when it was said."""
    match item:
        case Note(stamp=stamp, text=text):
            body = log[place.seq - 1].body
            if isinstance(body, Noted) and (body.stamp, body.text) != (stamp, text):
                yield f"the note {item.key} is not filed as it was made"
        case Exchange(heard=heard, said=said) if not place.erased:
            then = [
                (entry.author, entry.body.text, entry.body.stamp)
                for entry in (*place.heard, *place.said)
                if isinstance(entry.body, Heard | Said)
            ]
            if [(one.author, one.text, one.stamp) for one in (*heard, *said)] != then:
                yield f"the exchange {item.key} is not filed as it was said"
        case _:
            pass
