"""Lanes: woken, claimed under a fence, updated, let go. It never knows what a lane does with what it reads.

Times are stored as (since, wait), so that a clock that jumps can be seen: something that began in the future is due.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from everhold.errors import LeaseLost, Misuse
from everhold.ports.store import LANE, Backlog, Claim, Flight, Lane, LaneUpdate, Wake
from everhold.stores.sqlite.read import rows
from everhold.stores.sqlite.sessions import Head, head_of

_WAKE: Final = (
    "insert into lanes(session, reader, position, since, wait, due, firm) values (?, ?, ?, ?, ?, ?, ?) "
    "on conflict(session, reader) do update set "
    "since = excluded.since, wait = excluded.wait, due = excluded.due, firm = excluded.firm "
    "where lanes.due is null or (lanes.firm = 0 and lanes.attempts = 0 and excluded.due < lanes.due)"
)
_ASK_ANOTHER: Final = (
    "update lanes set since = ?, wait = 0, due = ?, firm = 0, attempts = 0, error = '', whom = '' "
    "where session = ? and reader = ? and due is not null and whom not in ('', ?)"
)
_GUARD: Final = (
    "select l.position, l.flight, l.attempts, l.since, l.wait, l.due, l.firm, l.error, l.whom, l.owner, "
    "exists(select 1 from parked p where p.state = 'replaying' and p.session = l.session and p.reader = l.reader), "
    "l.fence, s.next_seq, s.generation, s.parent "
    "from lanes l join sessions s on s.id = l.session where l.session = ? and l.reader = ?"
)
_READERS: Final = (
    "with recursive readers(name) as ("
    "select min(reader) from lanes where due is not null "
    "union all select (select min(reader) from lanes where due is not null and reader > readers.name) "
    "from readers where readers.name is not null) "
    "select name from readers where name is not null"
)
_FREE: Final = "(owner = '' or :at >= lease_since + lease_wait or :at < lease_since)"
_COLUMNS: Final = "reader, session, position, flight, attempts, since, wait, firm, owner, fence, error, whom"
_TAKE: Final = (
    "update lanes set owner = ?, lease_since = ?, lease_wait = ?, fence = fence + 1 "
    "where session = ? and reader = ?{only} "
    f"returning {_COLUMNS}, (select agent from sessions where id = lanes.session)"
)
_TAKE_IDLE: Final = (
    "update lanes set since = ?, wait = ?, due = ?, firm = ?, "
    "owner = ?, lease_since = ?, lease_wait = ?, fence = fence + 1 "
    "where session = ? and reader = ? and due is null and owner = '' "
    f"returning {_COLUMNS}, (select agent from sessions where id = lanes.session)"
)
_TAKE_ANY: Final = _TAKE.format(only="")
_TAKE_FREE: Final = _TAKE.format(only=" and owner = '' and due <= ?")
_flights: Final = msgspec.json.Decoder(Flight)
_encoder: Final = msgspec.json.Encoder()


class Held(NamedTuple):
    """A claimed lane's row and its session's, as they stand when a change begins."""

    position: int
    flight: str | None
    attempts: int
    since: float | None
    wait: float
    due: float | None
    firm: int
    error: str
    whom: str
    owner: str
    replays: int
    """Whether somebody took something back for it from the parked ones."""
    head: Head


# -- conditions --------------------------------------------------------------------------------------------------------


def guard(cur: apsw.Cursor, claim: Claim) -> Held:
    """The lane's row, if it is still held under this claim's fence."""
    lane = claim.lane
    row: tuple[Any, ...] | None = cur.execute(_GUARD, (lane.session, lane.reader)).get
    if row is None or row[9] != lane.owner or row[11] != lane.fence:
        raise LeaseLost(f"lane {lane.reader} of session {lane.session} is no longer held under fence {lane.fence}")
    return Held._make((*row[:11], head_of(cur, *row[12:])))


# -- what a change does ------------------------------------------------------------------------------------------------


def wake(cur: apsw.Cursor, session: str, wakes: Iterable[Wake], *, before: int, at: float) -> tuple[Claim, ...]:
    """Make lanes due; a new one starts reading behind `before` unless it says where. Those that were taken at once."""
    claims: tuple[Claim, ...] = ()
    for one in wakes:
        wait = one.wait
        seconds = wait.seconds
        if one.whom:
            cur.execute(_ASK_ANOTHER, (at, at, session, one.reader, one.whom))
            continue
        if one.owner and not seconds:
            row = cur.execute(
                _TAKE_IDLE, (at, seconds, at, wait.firm, one.owner, at, one.lease, session, one.reader)
            ).get
            if row is not None:
                claims += (_taken(cur, row, taken_over=False),)
                continue
        start = before if one.start is None else one.start
        cur.execute(_WAKE, (session, one.reader, start, at, seconds, at + seconds, wait.firm))
        if one.owner:
            row = cur.execute(_TAKE_FREE, (one.owner, at, one.lease, session, one.reader, at)).get
            if row is not None:
                claims += (_taken(cur, row, taken_over=False),)
    return claims


def update(cur: apsw.Cursor, claim: Claim, held: Held, wanted: LaneUpdate, *, at: float, grown_to: int | None) -> bool:
    """Write what becomes of a claimed lane. `grown_to` is the last seq of its session that others appended.

    Whether it was let go of with nothing left to do.
    """
    lane = claim.lane
    key = (lane.session, lane.reader)
    since, wait, due, firm, whom = held.since, held.wait, held.due, held.firm, held.whom
    if wanted.wait is not None:
        since, wait, due, firm = at, wanted.wait.seconds, at + wanted.wait.seconds, int(wanted.wait.firm)
        whom = wanted.wait.whom
    if wanted.idle_at is not None:
        if grown_to is None:
            grown_to = held.head[0] - 1
        if grown_to > wanted.idle_at or (held.replays and _has_replays(cur, key)):
            since, wait, due, firm = at, 0.0, at, 0
        elif wanted.wait is None:
            since, wait, due, firm = None, 0.0, None, 0
    cur.execute(
        "update lanes set position = ?, flight = ?, attempts = ?, since = ?, wait = ?, due = ?, firm = ?, error = ?, "
        "whom = ?, owner = ? where session = ? and reader = ?",
        (
            held.position if wanted.position is None else wanted.position,
            _flight(held.flight, wanted),
            held.attempts if wanted.attempts is None else wanted.attempts,
            since,
            wait,
            due,
            firm,
            held.error if wanted.error is None else wanted.error,
            "" if due is None else whom,
            "" if wanted.release else held.owner,
            *key,
        ),
    )
    return wanted.release and due is None


def _flight(stored: str | None, wanted: LaneUpdate) -> str | None:
    if wanted.flight is None:
        return None if wanted.landed else stored
    if wanted.landed:
        raise Misuse("a lane's flight cannot land in the change that starts it")
    flight = wanted.flight
    if stored is not None and flight.state != "void":
        # Its holder may not have seen that part of it was erased meanwhile.
        before = _flights.decode(stored)
        if before.state == "void" and (before.items, before.digest) == (flight.items, flight.digest):
            flight = msgspec.structs.replace(flight, state="void")
    return _encoder.encode(flight).decode()


def void_flights(cur: apsw.Cursor, session: str, gone: set[int]) -> None:
    """Mark every flight of this session that carries one of the entries in `gone`."""
    flying = rows(cur, "select reader, flight from lanes where session = ? and flight is not null", (session,))
    for reader, text in flying:
        flight = _flights.decode(text)
        if flight.state != "void" and any(item.seq in gone for item in flight.items):
            void = _encoder.encode(msgspec.structs.replace(flight, state="void")).decode()
            cur.execute("update lanes set flight = ? where session = ? and reader = ?", (void, session, reader))


def has_flights(cur: apsw.Cursor, session: str) -> bool:
    return cur.execute("select 1 from lanes where session = ? and flight is not null", (session,)).get is not None


def _has_replays(cur: apsw.Cursor, key: tuple[str, str]) -> bool:
    found = cur.execute(
        "select 1 from parked where state = 'replaying' and session = ? and reader = ? limit 1", key
    ).get
    return found is not None


# -- claims ------------------------------------------------------------------------------------------------------------


def claim(
    cur: apsw.Cursor,
    *,
    owner: str,
    at: float,
    lease: float,
    limit: int,
    skip: Sequence[str],
    only: Sequence[str],
    back: bool = True,
) -> list[Claim]:
    """Take what is due. `back`: the clock may have gone back behind the moment at which something began to wait."""
    if back:
        _restamp(cur, at)
    readers = _readers(cur, skip=[name for name in skip if LANE not in name], only=only)
    due = _find_due(cur, at=at, limit=limit, readers=readers, back=back)
    if any(before == owner for *_, before in due):
        # the clock was set: whom `owner` has at work stays there, and takes no place from others
        due = _find_due(cur, at=at, limit=limit + len(skip), readers=readers, back=back)
        due = [it for it in due if it[3] != owner or f"{it[2]}{LANE}{it[1]}" not in skip][:limit]
    return [
        _taken(cur, cur.execute(_TAKE_ANY, (owner, at, lease, session, reader)).get, taken_over=before != "")
        for _, session, reader, before in due
    ]


def _taken(cur: apsw.Cursor, row: Sequence[Any], *, taken_over: bool) -> Claim:
    """The claim on a lane whose row says who has it now. What it left running goes on under the new fence."""
    lane = of(row[:-1])
    cur.execute(
        "update operations indexed by operations_running "
        "set fence = ?, attempts = attempts + 1 - paused, paused = 0 "
        "where session = ? and reader = ? and state = 'running'",
        (lane.fence, lane.session, lane.reader),
    )
    return Claim(lane=lane, agent=row[-1] or "", taken_over=taken_over)


def _readers(cur: apsw.Cursor, *, skip: Sequence[str], only: Sequence[str]) -> list[str]:
    """The readers that anything waits for; there are few of them, however many lanes they have."""
    return [
        name
        for (name,) in rows(cur, _READERS)
        if (not only or _named(name, only)) and not (skip and _named(name, skip))
    ]


def _named(reader: str, patterns: Sequence[str]) -> bool:
    return any(reader.startswith(pattern[:-1]) if pattern.endswith("*") else reader == pattern for pattern in patterns)


def _find_due(
    cur: apsw.Cursor, *, at: float, limit: int, readers: Sequence[str], back: bool
) -> list[tuple[float, str, str, str]]:
    """(due, session, reader, owner so far) of the lanes to claim, the longest due first."""
    found: set[tuple[float, str, str, str]] = set()
    for reader in readers:
        found.update(
            rows(
                cur,
                f"select due, session, reader, owner from lanes where reader = :reader and due <= :at and {_FREE} "
                "order by due, session limit :limit",
                {"reader": reader, "at": at, "limit": limit},
            )
        )
    if back:
        # The clock went back behind the moment these began to wait, and nobody knows how long they have (firm waits
        # were begun anew before).
        wanted = set(readers)
        early = f"select due, session, reader, owner from lanes where due is not null and since > :at and {_FREE}"
        found.update(row for row in rows(cur, early, {"at": at}) if row[2] in wanted)
    return sorted(found)[:limit]


def _restamp(cur: apsw.Cursor, at: float) -> None:
    """A firm wait is never shortened: when the clock went back, the whole of it begins again."""
    cur.execute(
        "update lanes set since = :at, due = :at + wait where due is not null and since > :at and firm = 1",
        {"at": at},
    )


def renew(cur: apsw.Cursor, held: Iterable[tuple[str, str]], *, owner: str, at: float, lease: float) -> int:
    still = 0
    for session, reader in held:
        cur.execute(
            "update lanes set lease_since = ?, lease_wait = ? where session = ? and reader = ? and owner = ?",
            (at, lease, session, reader, owner),
        )
        still += cur.connection.changes()
    return still


def hasten(cur: apsw.Cursor, *, at: float, held: Sequence[str] = ()) -> int:
    which, values = "attempts > 0", list[str]()
    if held:
        values = _readers(cur, skip=(), only=held)
        which = f"attempts = 0 and reader in ({', '.join('?' * len(values))})"
    cur.execute(
        f"update lanes set since = ?, wait = 0, due = ? where due is not null and due > ? and firm = 0 and {which}",
        (at, at, at, *values),
    )
    return cur.connection.changes()


def seize(cur: apsw.Cursor, *, owner: str, at: float) -> int:
    """End foreign leases, but keep the holders' names: whoever claims next has to know that somebody was there."""
    cur.execute("update lanes set lease_since = ?, lease_wait = 0 where owner <> '' and owner <> ?", (at, owner))
    return cur.connection.changes()


def latest(cur: apsw.Cursor) -> float:
    """When the last of those that wait began to: a clock that is not behind that has not gone back on anybody."""
    since: float | None = cur.execute("select max(since) from lanes where due is not null").get
    return float("-inf") if since is None else since


def next_due(
    cur: apsw.Cursor, *, at: float, skip: Sequence[str], only: Sequence[str], back: bool = True
) -> float | None:
    soonest: float | None = None
    for reader in _readers(cur, skip=skip, only=only):
        row = cur.execute(
            f"select due from lanes where reader = :reader and due is not null and {_FREE} order by due limit 1",
            {"reader": reader, "at": at},
        ).get
        if row is not None and (soonest is None or row < soonest):
            soonest = row
    waits = [] if soonest is None else [max(0.0, soonest - at)]
    if back:
        # where the clock went back, `due` lies further ahead than the wait is long
        early = f"select reader, wait, firm from lanes where due is not null and since > :at and {_FREE}"
        for reader, wait, firm in rows(cur, early, {"at": at}):
            if (not only or _named(reader, only)) and not (skip and _named(reader, skip)):
                waits.append(wait if firm else 0.0)
    return min(waits, default=None)


# -- reading -----------------------------------------------------------------------------------------------------------


def query(*, reader: str = "", session: str = "", waiting: bool = False) -> tuple[str, list[Any]]:
    where = ["true"]
    values: list[Any] = []
    if session:
        where.append("session = ?")
        values.append(session)
    if reader:
        where.append("reader = ?")
        values.append(reader)
    if waiting:
        where.append("due is not null")
    return f"select {_COLUMNS} from lanes where {' and '.join(where)} order by session, reader", values


BACKLOG: Final = """
with behind as (
  select lanes.reader, sessions.agent, lanes.attempts, lanes.error, lanes.due,
    (select count(*) from operations as turn where turn.session = lanes.session and turn.what = 'turn'
      and turn.state in ('done', 'stopped', 'interrupted') and turn.last > lanes.position)
    + (select count(*) from entries where session = lanes.session and seq > lanes.position and kind = 'noted') as items,
    (select min(entries.at) from entries where session = lanes.session and seq > lanes.position
      and (kind = 'noted' or kind = 'ended' and op in (
        select turn.op from operations as turn where turn.session = lanes.session and turn.what = 'turn'
        and turn.state in ('done', 'stopped', 'interrupted')))) as oldest
  from lanes join sessions on sessions.id = lanes.session
  where lanes.due is not null and lanes.reader >= :readers and lanes.reader < :beyond
)
select reader, agent, count(*), sum(items), min(oldest), max(attempts), max(error), min(due)
from behind group by reader, agent order by reader, agent
"""


def backlog_of(row: Sequence[Any]) -> Backlog:
    reader, agent, lanes, items, oldest, attempts, error, due = row
    return Backlog(
        reader=reader, agent=agent, lanes=lanes, items=items, oldest=oldest, attempts=attempts, error=error, due=due
    )


def of(row: Sequence[Any]) -> Lane:
    reader, session, position, flight, attempts, since, wait, firm, owner, fence, error, whom = row
    return Lane(
        reader=reader, session=session, position=position, flight=None if flight is None else _flights.decode(flight),
        attempts=attempts, since=since, wait=wait, firm=bool(firm), owner=owner, fence=fence, error=error,
        whom=whom,
    )  # fmt: skip
