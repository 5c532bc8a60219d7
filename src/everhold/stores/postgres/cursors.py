"""The table of cursors: claims, leases, and what is due.

The clock is the server's. `clock` in a statement is the time of a test's clock, or null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from everhold.ports.store import Claim, ConsumerCursor, InFlightBatch, MemoryBacklog

MAX_CLAIMED: Final = 1_024
"""The highest limit of a claim. The limit is written into the statement, because the plan depends on it."""
_COLUMNS: Final = (
    "consumer, session, processed_seq, in_flight, attempts, since, wait, mandatory, owner, fence, error, waits_for"
)
_CLOCK: Final = (
    "clock(now) as materialized (select coalesce(%(now)s::float8, extract(epoch from clock_timestamp())::float8))"
)
# The names of the consumers with waiting cursors, found by skipping from one to the next in the index.
_NAMES: Final = """
names(name) as (
  (select min(consumer) from cursors where free is not null)
  union all
  select (select min(c.consumer) from cursors c where c.free is not null and c.consumer > names.name)
  from names where names.name is not null
),
wanted(name) as materialized (
  select name from names where name is not null
    and (%(only_all)s or name = any(%(only)s::text[])
      or exists (select 1 from unnest(%(only_prefixes)s::text[]) p where starts_with(name, p)))
    and not (name = any(%(skip)s::text[])
      or exists (select 1 from unnest(%(skip_prefixes)s::text[]) p where starts_with(name, p)))
)"""
_CLAIM: Final = """
with recursive {clock}, {names},
found as materialized (
  select f.* from wanted cross join lateral (
    select c.session, c.consumer, c.due, c.owner from cursors c
    where c.consumer = wanted.name and c.free <= (select now from clock) {held}
    order by c.free, c.session limit {limit} for update skip locked
  ) f
),
chosen as materialized (select * from found order by due, session, consumer limit {limit}),
claimed as (
  update cursors c set owner = %(owner)s, lease_since = clock.now, lease_wait = %(lease)s, fence = c.fence + 1
  from chosen, clock where c.session = chosen.session and c.consumer = chosen.consumer
  returning c.*, chosen.owner as before, chosen.due as was_due
),
resumed as (
  update operations o
  set fence = claimed.fence, attempts = o.attempts + case when o.paused then 0 else 1 end, paused = false
  from claimed where o.session = claimed.session and o.consumer = claimed.consumer and o.state = 'running'
)
select clock.now, claimed.before, s.agent,
  exists (select 1 from dead_letters d where d.state = 'replaying' and d.session = claimed.session
    and d.consumer = claimed.consumer),
  {columns}, set_config('synchronous_commit', 'off', true)
from clock left join (claimed join sessions s on s.id = claimed.session) on true
order by claimed.was_due, claimed.session, claimed.consumer
"""
_HELD: Final = (
    "and not (c.owner = %(owner)s and c.consumer || E'\\t' || c.session = any(%(held)s::text[])) "
    "and not (c.owner <> %(owner)s and c.consumer || E'\\t' || c.session = any(%(held_back)s::text[]))"
)
_NEXT_DUE: Final = """
with recursive {clock}, {names}
select (select now from clock), min(f.due) from wanted cross join lateral (
  select c.due from cursors c where c.consumer = wanted.name and c.free is not null
    and (c.owner = '' or c.free <= (select now from clock)) order by c.free limit 1
) f
"""
# The clock went back to before these delays began, so it is unknown how long they have lasted.
_EARLY: Final = (
    "select consumer, wait, mandatory from cursors where due is not null and since > %(now)s "
    "and (owner = '' or %(now)s >= lease_since + lease_wait or %(now)s < lease_since)"
)
_REPAIR_CLOCK: Final = """
update cursors c set
  since = case when c.since > clock.now then clock.now else c.since end,
  due = case when c.since > clock.now then clock.now + case when c.mandatory then c.wait else 0 end else c.due end,
  wait = case when c.since > clock.now and not c.mandatory then 0 else c.wait end,
  lease_since = least(c.lease_since, clock.now),
  lease_wait = case when c.lease_since > clock.now then 0 else c.lease_wait end
from (select coalesce(%(now)s::float8, extract(epoch from clock_timestamp())::float8) as now) clock
where c.due is not null and (c.since > clock.now or c.owner <> '' and c.lease_since > clock.now)
"""
_LATEST: Final = "select max(since) from cursors where due is not null"
_RENEW: Final = """
with held as materialized (
  select c.session, c.consumer from cursors c
  where (c.session, c.consumer) in (select * from unnest(%(sessions)s::text[], %(consumers)s::text[]))
    and c.owner = %(owner)s order by c.session, c.consumer for update
)
update cursors c
set lease_since = coalesce(%(now)s::float8, extract(epoch from clock_timestamp())::float8), lease_wait = %(lease)s
from held where c.session = held.session and c.consumer = held.consumer and c.owner = %(owner)s
"""
_REVOKE: Final = """
with others as materialized (
  select session, consumer from cursors where owner <> '' and owner <> %(owner)s order by session, consumer for update
)
update cursors c
set lease_since = coalesce(%(now)s::float8, extract(epoch from clock_timestamp())::float8), lease_wait = 0
from others where c.session = others.session and c.consumer = others.consumer
"""
_RETRY: Final = """
with recursive {clock}, {names},
waiting as materialized (
  select c.session, c.consumer from cursors c
  where c.due is not null and c.due > (select now from clock) and not c.mandatory and {which}
  order by c.session, c.consumer for update
)
update cursors c set since = clock.now, wait = 0, due = clock.now
from waiting, clock where c.session = waiting.session and c.consumer = waiting.consumer
"""
_REPLAY: Final = """
with {clock},
chosen as materialized (
  select d.id, d.session, d.consumer from dead_letters d where d.id = any(%(ids)s::bigint[]) and d.state = 'dead'
  order by d.id for update
),
replayed as (
  update dead_letters d set state = 'replaying' from chosen where d.id = chosen.id returning d.session, d.consumer
),
woken as (
  insert into cursors as c (session, consumer, start_seq, processed_seq, since, wait, due, mandatory)
  select r.session, r.consumer, s.next_seq - 1, s.next_seq - 1, clock.now, 0, clock.now, false
  from (select distinct session, consumer from replayed) r join sessions s on s.id = r.session, clock
  order by r.session, r.consumer
  on conflict (session, consumer) do update
  set since = excluded.since, wait = 0, due = excluded.due, mandatory = false
  where c.due is null or (not c.mandatory and c.attempts = 0 and excluded.due < c.due)
)
select count(*) from replayed
"""
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
  where cursors.due is not null and starts_with(cursors.consumer, %s)
)
select consumer, agent, count(*), sum(items)::bigint, min(oldest), max(attempts), max(error), min(due)
from backlog group by consumer, agent order by consumer, agent
"""
_batches: Final = msgspec.json.Decoder(InFlightBatch)


def build_claim_query(limit: int, *, has_held: bool) -> str:
    columns = ", ".join(f"claimed.{name}" for name in _COLUMNS.split(", "))
    return _CLAIM.format(
        clock=_CLOCK, names=_NAMES, limit=min(limit, MAX_CLAIMED), held=_HELD if has_held else "", columns=columns
    )


def build_patterns(only: Sequence[str], skip: Sequence[str]) -> dict[str, Any]:
    """Return the values that select consumers. A name that ends with `*` stands for all that begin with it."""
    return {
        "only_all": not only,
        "only": [name for name in only if not name.endswith("*")],
        "only_prefixes": [name[:-1] for name in only if name.endswith("*")],
        "skip": [name for name in skip if not name.endswith("*")],
        "skip_prefixes": [name[:-1] for name in skip if name.endswith("*")],
    }


def is_consumer_selected(consumer: str, *, only: Sequence[str], skip: Sequence[str]) -> bool:
    return (not only or _is_match(consumer, only)) and not _is_match(consumer, skip)


def _is_match(consumer: str, patterns: Sequence[str]) -> bool:
    return any(
        consumer.startswith(pattern[:-1]) if pattern.endswith("*") else consumer == pattern for pattern in patterns
    )


NEXT_DUE: Final = _NEXT_DUE.format(clock=_CLOCK, names=_NAMES)
SELECT_EARLY: Final = _EARLY
REPAIR_CLOCK: Final = _REPAIR_CLOCK
SELECT_LATEST: Final = _LATEST
RENEW: Final = _RENEW
REVOKE: Final = _REVOKE
RETRY_FAILED: Final = _RETRY.format(clock=_CLOCK, names=_NAMES, which="c.attempts > 0")
RETRY_HELD: Final = _RETRY.format(
    clock=_CLOCK, names=_NAMES, which="c.attempts = 0 and c.consumer in (select name from wanted)"
)
REPLAY: Final = _REPLAY.format(clock=_CLOCK)


def parse_claim_row(row: Sequence[Any]) -> Claim:
    _, before, agent, has_replays, *columns, _ = row
    return Claim(cursor=parse_cursor_row(columns), agent=agent, taken_over=before != "", has_replays=bool(has_replays))


def build_cursors_query(*, consumer: str = "", session: str = "", waiting: bool = False) -> tuple[str, list[Any]]:
    where = ["true"]
    values: list[Any] = []
    if session:
        where.append("session = %s")
        values.append(session)
    if consumer:
        where.append("consumer = %s")
        values.append(consumer)
    if waiting:
        where.append("due is not null")
    return f"select {_COLUMNS} from cursors where {' and '.join(where)} order by session, consumer", values


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
        mandatory=mandatory,
        owner=owner,
        fence=fence,
        error=error,
        waits_for=waits_for,
    )


def parse_backlog_row(row: Sequence[Any]) -> MemoryBacklog:
    consumer, agent, cursors, items, oldest, attempts, error, due = row
    return MemoryBacklog(
        consumer=consumer,
        agent=agent,
        cursors=cursors,
        items=int(items),
        oldest=oldest,
        attempts=attempts,
        error=error,
        due=due,
    )
