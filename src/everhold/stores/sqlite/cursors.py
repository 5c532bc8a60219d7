"""The table of cursors: wakeups, claims under a fence, updates, releases.

Times are stored as (since, wait), so that a jump of the clock can be detected: a delay that began in the future is due.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import apsw
import msgspec

from everhold.errors import InvalidRequest, LeaseLost
from everhold.ports.store import (
    Claim,
    ConsumerCursor,
    CursorUpdate,
    InFlightBatch,
    MemoryBacklog,
    Wakeup,
    name_cursor,
)
from everhold.stores.sqlite.connect import fetch_rows
from everhold.stores.sqlite.sessions import GENERATION, SessionHead

_UPSERT_WAKEUP: Final = (
    "insert into cursors(session, consumer, start_seq, processed_seq, since, wait, due, mandatory) "
    "values (?1, ?2, ?3, ?3, ?4, ?5, ?6, ?7) "
    "on conflict(session, consumer) do update set "
    "since = excluded.since, wait = excluded.wait, due = excluded.due, mandatory = excluded.mandatory "
    "where cursors.due is null or (cursors.mandatory = 0 and cursors.attempts = 0 and excluded.due < cursors.due)"
)
_END_MODEL_WAIT: Final = (
    "update cursors set since = ?, wait = 0, due = ?, mandatory = 0, attempts = 0, error = '', waits_for = '' "
    "where session = ? and consumer = ? and due is not null and waits_for not in ('', ?)"
)
_HAS_REPLAYS: Final = (
    "exists(select 1 from dead_letters d where d.state = 'replaying' and d.session = cursors.session "
    "and d.consumer = cursors.consumer)"
)
_SELECT_HELD: Final = (
    "select processed_seq, in_flight, attempts, since, wait, due, mandatory, error, waits_for, "
    f"owner, fence, {_HAS_REPLAYS}, s.next_seq, {GENERATION} "
    "from cursors join sessions s on s.id = session where session = ? and consumer = ?"
)
_CONSUMERS: Final = (
    "with recursive consumers(name) as ("
    "select min(consumer) from cursors where due is not null "
    "union all select (select min(consumer) from cursors where due is not null and consumer > consumers.name) "
    "from consumers where consumers.name is not null) "
    "select name from consumers where name is not null"
)
_IS_FREE: Final = "(owner = '' or :at >= lease_since + lease_wait or :at < lease_since)"
_COLUMNS: Final = (
    "consumer, session, processed_seq, in_flight, attempts, since, wait, mandatory, owner, fence, error, waits_for"
)
_CLAIM_COLUMNS: Final = (
    f"{_COLUMNS}, (select agent from sessions where id = cursors.session), {_HAS_REPLAYS}, "
    "exists(select 1 from operations o indexed by operations_running "
    "where o.session = cursors.session and o.consumer = cursors.consumer and o.state = 'running')"
)
_CLAIM: Final = (
    "update cursors set owner = ?, lease_since = ?, lease_wait = ?, fence = fence + 1 "
    f"where session = ? and consumer = ?{{only}} returning {_CLAIM_COLUMNS}"
)
_CLAIM_IDLE: Final = (
    "update cursors set since = ?, wait = ?, due = ?, mandatory = ?, "
    "owner = ?, lease_since = ?, lease_wait = ?, fence = fence + 1 "
    f"where session = ? and consumer = ? and due is null and owner = '' returning {_CLAIM_COLUMNS}"
)
_CLAIM_ANY: Final = _CLAIM.format(only="")
_CLAIM_FREE: Final = _CLAIM.format(only=" and owner = '' and due <= ?")
_batches: Final = msgspec.json.Decoder(InFlightBatch)
_encoder: Final = msgspec.json.Encoder()


class HeldCursor(NamedTuple):
    """The rows of a claimed cursor and its session at the beginning of a change."""

    processed_seq: int
    in_flight: str | None
    attempts: int
    since: float | None
    wait: float
    due: float | None
    mandatory: int
    error: str
    waits_for: str
    owner: str
    fence: int
    has_replays: int
    """Whether the cursor has dead letters to replay."""
    next_seq: int
    generation: int

    @property
    def head(self) -> SessionHead:
        return self.next_seq, self.generation


# -- conditions --------------------------------------------------------------------------------------------------------


def check_claim(cur: apsw.Cursor, claim: Claim) -> HeldCursor:
    """Return the cursor's row. Raises LeaseLost unless it is still held under this claim's fence."""
    cursor = claim.cursor
    row: tuple[Any, ...] | None = cur.execute(_SELECT_HELD, (cursor.session, cursor.consumer)).get
    held = None if row is None else HeldCursor(*row)
    if held is None or held.owner != cursor.owner or held.fence != cursor.fence:
        raise LeaseLost(
            f"cursor {cursor.consumer} of session {cursor.session} is no longer held under fence {cursor.fence}"
        )
    return held


# -- writing -----------------------------------------------------------------------------------------------------------


def apply_wakeups(
    cur: apsw.Cursor, session: str, wakeups: Iterable[Wakeup], *, before: int, at: float
) -> tuple[Claim, ...]:
    """Make cursors due. A new one starts after `before` unless its wakeup names a start. Return the claims made."""
    claims: tuple[Claim, ...] = ()
    for one in wakeups:
        wait = one.wait
        seconds = wait.seconds
        if one.waits_for:
            cur.execute(_END_MODEL_WAIT, (at, at, session, one.consumer, one.waits_for))
            continue
        if one.owner and not seconds:
            row = cur.execute(
                _CLAIM_IDLE, (at, seconds, at, wait.mandatory, one.owner, at, one.lease, session, one.consumer)
            ).get
            if row is not None:
                claims += (_build_claim(cur, row, taken_over=False),)
                continue
        start = before if one.start is None else one.start
        cur.execute(_UPSERT_WAKEUP, (session, one.consumer, start, at, seconds, at + seconds, wait.mandatory))
        if one.owner:
            row = cur.execute(_CLAIM_FREE, (one.owner, at, one.lease, session, one.consumer, at)).get
            if row is not None:
                claims += (_build_claim(cur, row, taken_over=False),)
    return claims


def update_cursor(
    cur: apsw.Cursor, claim: Claim, held: HeldCursor, wanted: CursorUpdate, *, at: float, grown_to: int | None
) -> bool:
    """Update a claimed cursor. `grown_to` is the last seq of its session that others appended.

    Return whether it was released with nothing left to do.
    """
    cursor = claim.cursor
    key = (cursor.session, cursor.consumer)
    since, wait, due, mandatory, waits_for = held.since, held.wait, held.due, held.mandatory, held.waits_for
    if wanted.wait is not None:
        since, wait, due, mandatory = at, wanted.wait.seconds, at + wanted.wait.seconds, int(wanted.wait.mandatory)
        waits_for = wanted.wait.waits_for
    if wanted.idle_at is not None:
        if grown_to is None:
            grown_to = held.next_seq - 1
        if grown_to > wanted.idle_at or (held.has_replays and _has_replays(cur, key)):
            since, wait, due, mandatory = at, 0.0, at, 0
        elif wanted.wait is None:
            since, wait, due, mandatory = None, 0.0, None, 0
    cur.execute(
        "update cursors set processed_seq = ?, in_flight = ?, attempts = ?, since = ?, wait = ?, due = ?, "
        "mandatory = ?, error = ?, waits_for = ?, owner = ? where session = ? and consumer = ?",
        (
            held.processed_seq if wanted.processed_seq is None else wanted.processed_seq,
            _encode_in_flight(held.in_flight, wanted),
            held.attempts if wanted.attempts is None else wanted.attempts,
            since,
            wait,
            due,
            mandatory,
            held.error if wanted.error is None else wanted.error,
            "" if due is None else waits_for,
            "" if wanted.release else held.owner,
            *key,
        ),
    )
    return wanted.release and due is None


def _encode_in_flight(stored: str | None, wanted: CursorUpdate) -> str | None:
    if wanted.in_flight is None:
        return None if wanted.clear_in_flight else stored
    if wanted.clear_in_flight:
        raise InvalidRequest("a batch cannot be cleared in the change that sends it")
    in_flight = wanted.in_flight
    if stored is not None and in_flight.state != "voided":
        # The holder may not know that part of the batch was erased since it read the cursor.
        before = _batches.decode(stored)
        if before.state == "voided" and (before.items, before.digest) == (in_flight.items, in_flight.digest):
            in_flight = msgspec.structs.replace(in_flight, state="voided")
    return _encoder.encode(in_flight).decode()


def void_in_flight(cur: apsw.Cursor, session: str, gone: set[int]) -> None:
    """Mark every batch in flight of this session that contains one of the entries in `gone`."""
    batches = fetch_rows(
        cur, "select consumer, in_flight from cursors where session = ? and in_flight is not null", (session,)
    )
    for consumer, text in batches:
        in_flight = _batches.decode(text)
        if in_flight.state != "voided" and any(item.seq in gone for item in in_flight.items):
            void = _encoder.encode(msgspec.structs.replace(in_flight, state="voided")).decode()
            cur.execute(
                "update cursors set in_flight = ? where session = ? and consumer = ?", (void, session, consumer)
            )


def has_in_flight(cur: apsw.Cursor, session: str) -> bool:
    return cur.execute("select 1 from cursors where session = ? and in_flight is not null", (session,)).get is not None


def _has_replays(cur: apsw.Cursor, key: tuple[str, str]) -> bool:
    found = cur.execute(
        "select 1 from dead_letters where state = 'replaying' and session = ? and consumer = ? limit 1", key
    ).get
    return found is not None


# -- claims ------------------------------------------------------------------------------------------------------------


def claim_cursors(
    cur: apsw.Cursor,
    *,
    owner: str,
    at: float,
    lease: float,
    limit: int,
    skip: Sequence[str],
    only: Sequence[str],
    held_back: Sequence[str] = (),
    list_held: Callable[[], Collection[str]] = list,
    back: bool = True,
) -> list[Claim]:
    """Claim due cursors. `back`: the clock may have gone back to before a delay began."""
    if back:
        _restart_mandatory_waits(cur, at)
    consumers = _list_consumers(cur, skip=skip, only=only)
    due = _find_due_cursors(cur, at=at, limit=limit, consumers=consumers, back=back)
    if held_back or any(before == owner for *_, before in due):
        # Cursors that are held back do not count against the limit. Nor do those that workers of `owner` hold: they
        # stay with them, although the clock was set.
        held = set(list_held())
        more = limit + len(held) + len(held_back)
        due = _find_due_cursors(cur, at=at, limit=more, consumers=consumers, back=back)
        due = [row for row in due if _name_row_cursor(row) not in (held if row[3] == owner else held_back)][:limit]
    return [
        _build_claim(cur, cur.execute(_CLAIM_ANY, (owner, at, lease, session, consumer)).get, taken_over=before != "")
        for _, session, consumer, before in due
    ]


def _name_row_cursor(row: Sequence[Any]) -> str:
    return name_cursor(row[1], row[2])


def _build_claim(cur: apsw.Cursor, row: Sequence[Any], *, taken_over: bool) -> Claim:
    """Build the claim from a claimed cursor's row. Operations that the cursor left running get the new fence."""
    *columns, agent, has_replays, has_running = row
    cursor = parse_cursor_row(columns)
    if has_running:
        cur.execute(
            "update operations indexed by operations_running "
            "set fence = ?, attempts = attempts + 1 - paused, paused = 0 "
            "where session = ? and consumer = ? and state = 'running'",
            (cursor.fence, cursor.session, cursor.consumer),
        )
    return Claim(cursor=cursor, agent=agent or "", taken_over=taken_over, has_replays=bool(has_replays))


def _list_consumers(cur: apsw.Cursor, *, skip: Sequence[str], only: Sequence[str]) -> list[str]:
    """The consumers with waiting cursors. They are few, however many cursors they have."""
    return [
        name
        for (name,) in fetch_rows(cur, _CONSUMERS)
        if (not only or _is_consumer_match(name, only)) and not (skip and _is_consumer_match(name, skip))
    ]


def _is_consumer_match(consumer: str, patterns: Sequence[str]) -> bool:
    return any(
        consumer.startswith(pattern[:-1]) if pattern.endswith("*") else consumer == pattern for pattern in patterns
    )


def _find_due_cursors(
    cur: apsw.Cursor, *, at: float, limit: int, consumers: Sequence[str], back: bool
) -> list[tuple[float, str, str, str]]:
    """(due, session, consumer, owner so far) of the cursors to claim, the longest due first."""
    found: set[tuple[float, str, str, str]] = set()
    for consumer in consumers:
        found.update(
            fetch_rows(
                cur,
                "select due, session, consumer, owner from cursors "
                f"where consumer = :consumer and due <= :at and {_IS_FREE} "
                "order by due, session limit :limit",
                {"consumer": consumer, "at": at, "limit": limit},
            )
        )
    if back:
        # The clock went back to before these delays began, so it is unknown how long they have lasted. Mandatory
        # delays were restarted before.
        wanted = set(consumers)
        early = (
            f"select due, session, consumer, owner from cursors where due is not null and since > :at and {_IS_FREE}"
        )
        found.update(row for row in fetch_rows(cur, early, {"at": at}) if row[2] in wanted)
    return sorted(found)[:limit]


def _restart_mandatory_waits(cur: apsw.Cursor, at: float) -> None:
    """Restart mandatory delays after the clock went back, because they must not be shortened."""
    cur.execute(
        "update cursors set since = :at, due = :at + wait where due is not null and since > :at and mandatory = 1",
        {"at": at},
    )


def renew_leases(cur: apsw.Cursor, held: Iterable[tuple[str, str]], *, owner: str, at: float, lease: float) -> int:
    still = 0
    for session, consumer in held:
        cur.execute(
            "update cursors set lease_since = ?, lease_wait = ? where session = ? and consumer = ? and owner = ?",
            (at, lease, session, consumer, owner),
        )
        still += cur.connection.changes()
    return still


def retry_now(cur: apsw.Cursor, *, at: float, held: Sequence[str] = ()) -> int:
    which, values = "attempts > 0", list[str]()
    if held:
        values = _list_consumers(cur, skip=(), only=held)
        which = f"attempts = 0 and consumer in ({', '.join('?' * len(values))})"
    cur.execute(
        "update cursors set since = ?, wait = 0, due = ? "
        f"where due is not null and due > ? and mandatory = 0 and {which}",
        (at, at, at, *values),
    )
    return cur.connection.changes()


def revoke_leases(cur: apsw.Cursor, *, owner: str, at: float) -> int:
    """End leases of other owners, but keep the owners' names, so that the next claim counts as a takeover."""
    cur.execute("update cursors set lease_since = ?, lease_wait = 0 where owner <> '' and owner <> ?", (at, owner))
    return cur.connection.changes()


def find_latest_wait_start(cur: apsw.Cursor) -> float:
    """The latest beginning of any delay. A clock at or after this time has not gone back for any cursor."""
    since: float | None = cur.execute("select max(since) from cursors where due is not null").get
    return float("-inf") if since is None else since


def find_next_due(
    cur: apsw.Cursor, *, at: float, skip: Sequence[str], only: Sequence[str], back: bool = True
) -> float | None:
    soonest: float | None = None
    for consumer in _list_consumers(cur, skip=skip, only=only):
        row = cur.execute(
            f"select due from cursors where consumer = :consumer and due is not null and {_IS_FREE} "
            "order by due limit 1",
            {"consumer": consumer, "at": at},
        ).get
        if row is not None and (soonest is None or row < soonest):
            soonest = row
    waits = [] if soonest is None else [max(0.0, soonest - at)]
    if back:
        # After the clock went back, `due` lies further ahead than the delay is long.
        early = f"select consumer, wait, mandatory from cursors where due is not null and since > :at and {_IS_FREE}"
        for consumer, wait, mandatory in fetch_rows(cur, early, {"at": at}):
            if (not only or _is_consumer_match(consumer, only)) and not (skip and _is_consumer_match(consumer, skip)):
                waits.append(wait if mandatory else 0.0)
    return min(waits, default=None)


# -- reading -----------------------------------------------------------------------------------------------------------


def build_cursors_query(*, consumer: str = "", session: str = "", waiting: bool = False) -> tuple[str, list[Any]]:
    where = ["true"]
    values: list[Any] = []
    if session:
        where.append("session = ?")
        values.append(session)
    if consumer:
        where.append("consumer = ?")
        values.append(consumer)
    if waiting:
        where.append("due is not null")
    return f"select {_COLUMNS} from cursors where {' and '.join(where)} order by session, consumer", values


SELECT_BACKLOG: Final = """
with backlog as (
  select cursors.consumer, sessions.agent, cursors.attempts, cursors.error, cursors.due,
    (select count(*) from operations as turn where turn.session = cursors.session and turn.type = 'turn'
      and turn.state in ('done', 'stopped', 'interrupted') and turn.last > cursors.processed_seq)
    + (select count(*) from entries where session = cursors.session and seq > cursors.processed_seq
      and kind = 'noted') as items,
    (select min(entries.at) from entries where session = cursors.session and seq > cursors.processed_seq
      and (kind = 'noted' or kind = 'ended' and op in (
        select turn.op from operations as turn where turn.session = cursors.session and turn.type = 'turn'
        and turn.state in ('done', 'stopped', 'interrupted')))) as oldest
  from cursors join sessions on sessions.id = cursors.session
  where cursors.due is not null and cursors.consumer >= :consumers and cursors.consumer < :beyond
)
select consumer, agent, count(*), sum(items), min(oldest), max(attempts), max(error), min(due)
from backlog group by consumer, agent order by consumer, agent
"""


def parse_backlog_row(row: Sequence[Any]) -> MemoryBacklog:
    consumer, agent, cursors, items, oldest, attempts, error, due = row
    return MemoryBacklog(
        consumer=consumer,
        agent=agent,
        cursors=cursors,
        items=items,
        oldest=oldest,
        attempts=attempts,
        error=error,
        due=due,
    )


def parse_cursor_row(row: Sequence[Any]) -> ConsumerCursor:
    consumer, session, processed_seq, in_flight, attempts, since, wait, mandatory, owner, fence, error, waits_for = row
    return ConsumerCursor(
        consumer=consumer,
        session=session,
        processed_seq=processed_seq,
        in_flight=None if in_flight is None else _batches.decode(in_flight),
        attempts=attempts,
        since=since,
        wait=wait,
        mandatory=bool(mandatory),
        owner=owner,
        fence=fence,
        error=error,
        waits_for=waits_for,
    )
