"""Reads the rows on which a batch of changes is decided, in one round trip, and locks those that may change.

Every transaction takes its locks in the same order: the gates, sessions by id, cursors by session and consumer, state
records by key, accounts by name. So two transactions never wait for each other in a circle. A statement that locks
returns only columns of the locked rows; what depends on them is read by a later statement, which sees everything that
was committed before the lock was granted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from everhold.core.commit_rules import StoreNeeds
from everhold.core.entries import Began, EntryKind, Heard, Took, decode_body
from everhold.core.people import IdentityRecord, PersonRecord
from everhold.core.store_rows import (
    CursorRow,
    KeyedEntry,
    LogExcerpt,
    OperationRow,
    SessionRow,
    WorkingSet,
)
from everhold.ports.store import InFlightBatch, PeerRecord
from everhold.stores.postgres.sessions import GENERATION
from everhold.stores.postgres.statements import BEGIN, PgConnection, Rows, run_statements

POS_BITS: Final = 16
"""How many bits of a pos number the entries of one transaction."""
MAX_BATCH_ENTRIES: Final = 1 << POS_BITS
IDLE_LIMIT: Final = "5s"
"""A transaction whose host stalls this long between two statements is ended, because it holds locks, and entries of
later transactions do not reach the feed before it."""
LOCK_LIMIT: Final = "10s"

PlannedRead: TypeAlias = tuple[str, str, Sequence[Any]]
"""Name, SQL and values."""

# A plan that was made while the tables were small is kept by the server. Every statement of a commit finds its rows by
# an index, so other plans are ruled out, and nothing is planned again.
PLANNER_SETTINGS: Final = (
    "set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), "
    "set_config('enable_mergejoin', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)"
)
_SETTINGS: Final = (
    "select set_config('idle_in_transaction_session_timeout', %s, true), set_config('lock_timeout', %s, true), "
    f"{PLANNER_SETTINGS}"
)
_NOT_WAITED_FOR: Final = ", set_config('synchronous_commit', 'off', true)"
_GATE: Final = "lock table sessions in exclusive mode"
_PEOPLE_GATE: Final = "lock table people_log in exclusive mode"
_PEOPLE_SHARED: Final = "lock table people_log in row share mode"
_STATE_GATE: Final = "lock table state_version in exclusive mode"
_STATE_SHARED: Final = "lock table state_version in row share mode"
_LOCK_ACCOUNTS: Final = (
    "select account, owner, fence from account_leases where account = any(%s::text[]) order by account for share"
)
_LOCK_SESSIONS: Final = (
    "select id, agent, address, next_seq, generation, erasures, title, parent, choices, names "
    "from sessions where id = any(%s::text[]) order by id for update"
)
_CURSOR_COLUMNS: Final = (
    "session, consumer, start_seq, processed_seq, in_flight, attempts, since, wait, due, mandatory, owner, "
    "lease_since, lease_wait, fence, error, waits_for"
)
_LOCK_CURSORS: Final = (
    f"select {_CURSOR_COLUMNS} from cursors "
    "where (session, consumer) in (select * from unnest(%s::text[], %s::text[])) order by session, consumer for update"
)
_LOCK_ALL_CURSORS: Final = (
    f"select {_CURSOR_COLUMNS} from cursors where session = any(%s::text[]) "
    "or (session, consumer) in (select * from unnest(%s::text[], %s::text[])) order by session, consumer for update"
)
_LOCK_STATES: Final = (
    "select namespace, scope, key, value, version from state_records "
    "where (namespace, scope, key) in (select * from unnest(%s::text[], %s::text[], %s::text[])) "
    "order by namespace, scope, key for update"
)
_MOMENT: Final = (
    "select pg_current_xact_id()::text::bigint, extract(epoch from clock_timestamp())::double precision, pos_base "
    "from store_info"
)
_INHERITED: Final = """
with recursive line(start, id, parent, erasures) as (
  select s.id, p.id, p.parent, p.erasures from sessions s join sessions p on p.id = s.parent
    where s.id = any(%s::text[]) and s.parent <> ''
  union
  select line.start, p.id, p.parent, p.erasures from line join sessions p on p.id = line.parent where line.parent <> ''
)
select start, sum(erasures)::bigint from line group by start
"""
_OPERATION_COLUMNS: Final = (
    "session, op, type, state, first, last, consumer, fence, attempts, paused, blocking, covers, undone_at, "
    "compression, stop"
)
_RUNNING: Final = f"select {_OPERATION_COLUMNS} from operations where session = any(%s::text[]) and state = 'running'"
_ALL_OPERATIONS: Final = f"select {_OPERATION_COLUMNS} from operations where session = any(%s::text[])"
_PENDING: Final = (
    "select session, seq, asks from pending where (session, seq) in (select * from unnest(%s::text[], %s::bigint[]))"
)
_ALL_PENDING: Final = "select session, seq, asks from pending where session = any(%s::text[])"
_BINDINGS: Final = "select address, session from bindings where address = any(%s::text[])"
_KEYED: Final = (
    f"select e.dedup, e.session, e.seq, e.pos, e.kind, e.body, {GENERATION} "
    "from entries e join sessions s on s.id = e.session where e.dedup = any(%s::text[])"
)
_REPLAYS: Final = (
    "select session, consumer, id from dead_letters where state = 'replaying' and session = any(%s::text[])"
)
_BEGUN: Final = (
    "select session, seq, pos from entries where (session, seq) in (select * from unnest(%s::text[], %s::bigint[]))"
)
_NEWEST_ERASURE: Final = "select max(pos) from entries where kind in ('noted', 'erased') and kind = 'erased'"
_NEWEST_THOUGHT: Final = "select max(pos) from entries where pos > %s and kind = 'thought'"
_PEOPLE_CHANGED: Final = (
    "select max(n) from people_log where action <> 'made' and (action <> 'linked' or proof <> 'seen')"
)
_LOG: Final = (
    "select session, seq, op, kind, body from entries where session = any(%s::text[]) "
    "and kind in ('began', 'took', 'ended', 'changed')"
)
_ERASED_OPS: Final = (
    "select session, seq, op from entries where (session, seq) in (select * from unnest(%s::text[], %s::bigint[]))"
)
_ASKED: Final = (
    "select session, seq, body from entries where (session, seq) in (select * from unnest(%s::text[], %s::bigint[])) "
    "and kind = 'heard' and body is not null"
)
_texts: Final = msgspec.json.Decoder(dict[str, str])
_batches: Final = msgspec.json.Decoder(InFlightBatch)


class LoadedBatch:
    """A transaction that has read its rows."""

    def __init__(self, work: WorkingSet, *, xid: int, at: float) -> None:
        self.work = work
        self.xid = xid
        self.at = at
        self.timeline = ""
        """The timeline of the server that ran it."""


def plan_reads(needs: StoreNeeds, *, durable: bool, roots: Callable[[str], bool]) -> list[PlannedRead]:
    """Return the statements of the first round trip. `roots` says which sessions are known to be no branches."""
    plan: list[PlannedRead] = [
        ("begin", BEGIN, ()),
        ("settings", _SETTINGS if durable else _SETTINGS + _NOT_WAITED_FOR, (IDLE_LIMIT, LOCK_LIMIT)),
    ]
    add = plan.append
    if needs.writes_people:
        add(("people_gate", _PEOPLE_GATE, ()))
    elif needs.people_changed:
        add(("people_gate", _PEOPLE_SHARED, ()))
    if needs.writes_shared:
        add(("state_gate", _STATE_GATE, ()))
    elif needs.reads_state_version:
        add(("state_gate", _STATE_SHARED, ()))
    if needs.has_erasure or needs.peers:
        # Everybody who writes entries holds a lock on a session, so nobody does from here on. The transaction id is
        # taken afterwards, so every pos says whether an entry was committed before an erasure or after it.
        add(("gate", _GATE, ()))
    sessions = sorted(needs.sessions)
    if sessions:
        add(("sessions", _LOCK_SESSIONS, (sessions,)))
    keys = sorted(needs.cursors)
    named = ([key[0] for key in keys], [key[1] for key in keys])
    if needs.has_erasure:
        add(("cursors", _LOCK_ALL_CURSORS, (sorted(needs.logs), *named)))
    elif keys:
        add(("cursors", _LOCK_CURSORS, named))
    if needs.states:
        add(("states", _LOCK_STATES, tuple(map(list, zip(*sorted(needs.states), strict=True)))))
    if needs.accounts:
        add(("accounts", _LOCK_ACCOUNTS, (sorted(needs.accounts),)))
    add(("moment", _MOMENT, ()))
    if needs.writes_shared or needs.reads_state_version:
        add(("state_version", "select version from state_version", ()))
    branches = [id for id in sessions if not roots(id)]
    if branches:
        add(("inherited", _INHERITED, (branches,)))
    if needs.logs:
        add(("operations", _ALL_OPERATIONS, (sessions,)))
        add(("pending", _ALL_PENDING, (sorted(needs.logs),)))
        add(("log", _LOG, (sorted(needs.logs),)))
        places = [(session, seq) for session, seqs in needs.logs.items() for seq in seqs]
        add(("erased_ops", _ERASED_OPS, _split_places(places)))
    elif needs.runs_operations:
        add(("operations", _RUNNING, (sessions,)))
    if needs.pending:
        add(("taken", _PENDING, _split_places(sorted(needs.pending))))
    if needs.addresses:
        add(("bindings", _BINDINGS, (sorted(needs.addresses),)))
    if needs.dedups:
        add(("keyed", _KEYED, (sorted(needs.dedups),)))
    if needs.replays:
        add(("replays", _REPLAYS, (sorted(needs.replays),)))
    if needs.begun:
        add(("begun", _BEGUN, _split_places(sorted(needs.begun))))
        add(("newest_erasure", _NEWEST_ERASURE, ()))
    if needs.thought_after is not None:
        add(("newest_thought", _NEWEST_THOUGHT, (needs.thought_after,)))
    if needs.inserts_states:
        add(("state_floor", "select version from state_floor", ()))
    if needs.people_changed:
        add(("people_changed", _PEOPLE_CHANGED, ()))
    _plan_people(plan, needs)
    return plan


def _plan_people(plan: list[PlannedRead], needs: StoreNeeds) -> None:
    if needs.writes_people:
        persons = sorted(needs.persons)
        plan.append(("people_epoch", "select max(n) from people_log", ()))
        plan.append(
            (
                "persons",
                "select id, label, merged_into, forgotten_at from persons where id = any(%s::text[])",
                (persons,),
            )
        )
        plan.append(
            (
                "identities",
                "select identity, person, proof, since, at, former from identities "
                "where identity = any(%s::text[]) or person = any(%s::text[])",
                (sorted(needs.identities), persons),
            )
        )
    if needs.peers:
        plan.append(
            (
                "peers",
                "select memory, agent, identity, from_pos, peer, source, shared from peers "
                "where (memory, agent, identity) in (select * from unnest(%s::text[], %s::text[], %s::text[]))",
                tuple(map(list, zip(*sorted(needs.peers), strict=True))),
            )
        )


def _split_places(places: Sequence[tuple[str, int]]) -> tuple[list[str], list[int]]:
    return [session for session, _ in places], [seq for _, seq in places]


async def run_reads(connection: PgConnection, plan: Sequence[PlannedRead]) -> dict[str, Rows]:
    """Run the statements in one round trip. Return the rows of each by its name."""
    found = await run_statements(connection, [(sql, values) for _, sql, values in plan])
    return {name: rows for (name, _, _), rows in zip(plan, found, strict=True)}


async def load_batch(
    connection: PgConnection,
    needs: StoreNeeds,
    *,
    durable: bool,
    roots: Callable[[str], bool],
    clock: Callable[[], float] | None,
) -> LoadedBatch:
    """Begin a transaction, lock and read."""
    found = await run_reads(connection, plan_reads(needs, durable=durable, roots=roots))
    ((xid, at, base),) = found["moment"]
    if clock is not None:
        at = clock()
    work = WorkingSet(now=at, first_pos=(xid + base) << POS_BITS)
    _fill_sessions(work, found)
    _fill_cursors(work, found)
    _fill_operations(work, found)
    _fill_conditions(work, found)
    _fill_people(work, found)
    if needs.logs:
        await _fill_logs(connection, work, needs, found)
    return LoadedBatch(work, xid=xid, at=at)


def _fill_sessions(work: WorkingSet, found: dict[str, Rows]) -> None:
    inherited: dict[str, int] = dict(found.get("inherited", ()))
    for id, agent, address, next_seq, generation, erasures, title, parent, choices, names in found.get("sessions", ()):
        work.sessions[id] = SessionRow(
            id=id,
            agent=agent,
            address=address,
            next_seq=next_seq,
            generation=generation,
            erasures=erasures,
            title=title,
            parent=parent,
            choices=_texts.decode(choices) if choices != "{}" else {},
            names=_texts.decode(names) if names != "{}" else {},
            inherited=inherited.get(id, 0),
        )
    work.bindings.update(found.get("bindings", ()))


def _fill_cursors(work: WorkingSet, found: dict[str, Rows]) -> None:
    for row in found.get("cursors", ()):
        in_flight = None if row[4] is None else _batches.decode(row[4])
        values = (*row[:4], in_flight, *row[5:])
        work.cursors[row[0], row[1]] = CursorRow(*values)
    for session, consumer, id in found.get("replays", ()):
        key = (session, consumer)
        work.replays[key] = work.replays.get(key, frozenset()) | {id}


def _fill_operations(work: WorkingSet, found: dict[str, Rows]) -> None:
    for row in found.get("operations", ()):
        operation = OperationRow(*row)
        work.operations[operation.session, operation.op] = operation
        if operation.state == "running":
            running = work.running.get(operation.session, ())
            work.running[operation.session] = (*running, operation.op)
    for session, seq, asks in (*found.get("pending", ()), *found.get("taken", ())):
        work.pending[session, seq] = asks


def _fill_conditions(work: WorkingSet, found: dict[str, Rows]) -> None:
    for dedup, *entry in found.get("keyed", ()):
        work.keyed[dedup] = KeyedEntry(*entry)
    for namespace, scope, key, value, version in found.get("states", ()):
        work.states[namespace, scope, key] = (value, version)
    for session, seq, pos in found.get("begun", ()):
        work.begun_pos[session, seq] = pos
    work.accounts = {account: (owner, fence) for account, owner, fence in found.get("accounts", ())}
    work.state_version[0] = _read_number(found, "state_version")
    work.state_floor = _read_number(found, "state_floor")
    work.newest_erasure = _read_number(found, "newest_erasure")
    work.newest_thought = _read_number(found, "newest_thought")
    work.people_changed = _read_number(found, "people_changed")
    work.people_epoch = _read_number(found, "people_epoch")


def _read_number(found: dict[str, Rows], name: str) -> int:
    rows = found.get(name)
    return int(rows[0][0] or 0) if rows else 0


def _fill_people(work: WorkingSet, found: dict[str, Rows]) -> None:
    for id, label, merged_into, forgotten_at in found.get("persons", ()):
        work.persons[id] = PersonRecord(id=id, label=label, merged_into=merged_into, forgotten_at=forgotten_at)
    for identity, person, proof, since, at, former in found.get("identities", ()):
        work.identities[identity] = IdentityRecord(
            identity=identity, person=person, proof=proof, since=since, at=at, former=former
        )
    for memory, agent, identity, from_pos, peer, source, shared in found.get("peers", ()):
        record = PeerRecord(
            memory=memory,
            agent=agent,
            identity=identity,
            from_pos=from_pos,
            peer=peer,
            source=source,
            shared=shared,
        )
        work.peers.setdefault((memory, agent, identity), {})[from_pos] = record


async def _fill_logs(connection: PgConnection, work: WorkingSet, needs: StoreNeeds, found: dict[str, Rows]) -> None:
    """Read what an erasure, an undo or a release has to know of its session's log, with one more round trip."""
    for session in needs.logs:
        work.logs[session] = LogExcerpt()
    for session, seq, op, kind, body in found.get("log", ()):
        log = work.logs[session]
        if kind == "ended" and op is not None:
            log.ended[op] = seq
        elif kind == "changed" and body is not None:
            log.changed[seq] = body
        elif kind in ("began", "took") and op is not None and body is not None:
            taking = decode_body(EntryKind(kind), body)
            assert isinstance(taking, Began | Took)
            log.takes.setdefault(op, []).extend(taking.takes)
    for session, seq, op in found.get("erased_ops", ()):
        work.logs[session].ops[seq] = op
    taken = [(session, seq) for session, log in work.logs.items() for takes in log.takes.values() for seq in takes]
    if not taken:
        return
    rows = (await run_reads(connection, [("asked", _ASKED, _split_places(taken))]))["asked"]
    for session, seq, body in rows:
        heard = decode_body(EntryKind.HEARD, body)
        assert isinstance(heard, Heard)
        work.logs[session].asks[seq] = heard.asks
