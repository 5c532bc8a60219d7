"""Writes what a batch of changes did to a working set, and commits, in one round trip.

Rows of one table are written in the order of their keys, and the tables always in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from everhold.core.commit_rules import SCRUBBED
from everhold.core.people import PeopleAction
from everhold.core.store_rows import CursorRow, OperationRow, SessionRow, WorkingSet

PlannedWrite: TypeAlias = tuple[str, Sequence[Any]]

SPEND_SHARDS: Final = 16
_encoder: Final = msgspec.json.Encoder()


def _build_insert(table: str, columns: str, types: str, rest: str = "") -> str:
    marks = ", ".join(f"%s::{type}[]" for type in types.split())
    return f"insert into {table}({columns}) select * from unnest({marks}) {rest}"


_INSERT_SESSIONS: Final = _build_insert(
    "sessions",
    "id, agent, address, next_seq, generation, erasures, created, title, parent, parent_at, choices, names",
    "text text text bigint bigint bigint float8 text text bigint text text",
)
_UPDATE_HEADS: Final = (
    "update sessions s set next_seq = n.next_seq "
    "from unnest(%s::text[], %s::bigint[]) n(id, next_seq) where s.id = n.id"
)
_UPDATE_SESSIONS: Final = (
    "update sessions s set next_seq = n.next_seq, generation = n.generation, erasures = n.erasures, title = n.title, "
    "choices = n.choices, names = n.names from unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[], "
    "%s::text[], %s::text[], %s::text[]) n(id, next_seq, generation, erasures, title, choices, names) where s.id = n.id"
)
_INSERT_ENTRIES: Final = _build_insert(
    "entries",
    "pos, session, seq, kind, op, author, at, version, body, salt, digest, dedup",
    "bigint text bigint text bigint text float8 int text bytea bytea text",
)
_ERASE: Final = (
    "update entries e set body = null, salt = null from unnest(%s::text[], %s::bigint[]) n(session, seq) "
    "where e.session = n.session and e.seq = n.seq"
)
_INSERT_PENDING: Final = _build_insert("pending", "session, seq, asks", "text bigint bool", "on conflict do nothing")
_DELETE_PENDING: Final = (
    "delete from pending p using unnest(%s::text[], %s::bigint[]) n(session, seq) "
    "where p.session = n.session and p.seq = n.seq"
)
_OPERATION_COLUMNS: Final = (
    "session, op, type, state, first, last, consumer, fence, attempts, paused, blocking, covers, undone_at, "
    "compression, stop"
)
_OPERATION_TYPES: Final = "text bigint text text bigint bigint text bigint bigint bool bool bigint bigint bigint bool"
_INSERT_OPERATIONS: Final = _build_insert("operations", _OPERATION_COLUMNS, _OPERATION_TYPES)
_UPDATE_OPERATIONS: Final = (
    "update operations o set state = n.state, last = n.last, covers = n.covers, undone_at = n.undone_at, "
    "stop = n.stop, fence = greatest(o.fence, n.fence), "
    "attempts = case when n.claims then n.attempts else o.attempts end, "
    "paused = case when n.claims then n.paused else o.paused end "
    "from unnest(%s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bool[], "
    "%s::bigint[], %s::bigint[], %s::bool[], %s::bool[]) "
    "n(session, op, state, last, covers, undone_at, stop, fence, attempts, paused, claims) "
    "where o.session = n.session and o.op = n.op"
)
_CURSOR_COLUMNS: Final = (
    "session, consumer, start_seq, processed_seq, in_flight, attempts, since, wait, due, mandatory, owner, "
    "lease_since, lease_wait, fence, error, waits_for"
)
_CURSOR_TYPES: Final = (
    "text text bigint bigint text bigint float8 float8 float8 bool text float8 float8 bigint text text"
)
_UPSERT_CURSORS: Final = _build_insert(
    "cursors",
    _CURSOR_COLUMNS,
    _CURSOR_TYPES,
    "on conflict (session, consumer) do update set "
    + ", ".join(f"{name} = excluded.{name}" for name in _CURSOR_COLUMNS.split(", ")[3:]),
)
_UPSERT_BINDINGS: Final = _build_insert(
    "bindings", "address, session", "text text", "on conflict (address) do update set session = excluded.session"
)
_INSERT_BINDINGS: Final = _build_insert("bindings", "address, session", "text text")
_DROP_LETTERS: Final = (
    "update dead_letters d set state = 'dropped', reason = '' from unnest(%s::text[], %s::bigint[]) n(session, seq) "
    "where d.session = n.session and d.seq = n.seq and d.state = 'dead'"
)
_SCRUB_LETTERS: Final = (
    "update dead_letters d set reason = %s from unnest(%s::text[], %s::bigint[]) n(session, seq) "
    "where d.session = n.session and d.seq = n.seq and d.reason <> ''"
)
_INSERT_LETTERS: Final = _build_insert(
    "dead_letters",
    "consumer, session, seq, part, key, reason, in_doubt, at, state",
    "text text bigint bigint text text bool float8 text",
)
_SETTLE_LETTERS: Final = "update dead_letters set state = 'replayed' where id = any(%s::bigint[])"
_UPSERT_RECEIPTS: Final = _build_insert(
    "receipts",
    "session, seq, part, consumer, key, remote, in_doubt, at",
    "text bigint bigint text text text bool float8",
    "on conflict (session, seq, part, consumer) do update set "
    "key = excluded.key, remote = excluded.remote, in_doubt = excluded.in_doubt, at = excluded.at",
)
_INSERT_STATES: Final = _build_insert(
    "state_records", "namespace, scope, key, value, version", "text text text text bigint"
)
_UPDATE_STATES: Final = (
    "update state_records s set value = n.value, version = n.version "
    "from unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[]) "
    "n(namespace, scope, key, value, version) "
    "where s.namespace = n.namespace and s.scope = n.scope and s.key = n.key"
)
_DELETE_STATES: Final = (
    "delete from state_records s using unnest(%s::text[], %s::text[], %s::text[]) n(namespace, scope, key) "
    "where s.namespace = n.namespace and s.scope = n.scope and s.key = n.key"
)
_RAISE_FLOOR: Final = "update state_floor set version = greatest(version, %s) where version < %s"
_SET_STATE_VERSION: Final = "update state_version set version = %s"
_ADD_SPENDS: Final = _build_insert(
    "spending",
    "budget, day, shard, usd, tokens",
    "text text int float8 bigint",
    "on conflict (budget, day, shard) do update set "
    "usd = spending.usd + excluded.usd, tokens = spending.tokens + excluded.tokens",
)
_INSERT_BLOBS: Final = _build_insert("blobs", "digest, data", "text bytea", "on conflict (digest) do nothing")
_DELETE_BLOBS: Final = "delete from blobs where digest = any(%s::text[])"
_INSERT_EVENTS: Final = _build_insert(
    "people_log",
    "n, at, by, action, person, identity, proof, since, note",
    "bigint float8 text text text text text float8 text",
)
_ERASE_LABELS: Final = """
with recursive forgotten(id) as (
  select id collate "C" from unnest(%s::text[]) it(id)
  union select p.id from persons p join forgotten f on p.merged_into = f.id
)
update people_log set note = '' where action in ('made', 'named') and person in (select id from forgotten)
"""
_CLEAR_LABELS: Final = "update persons set label = '' where id = any(%s::text[])"
_UPSERT_PERSONS: Final = _build_insert(
    "persons",
    "id, label, merged_into, forgotten_at",
    "text text text float8",
    "on conflict (id) do update set "
    "label = excluded.label, merged_into = excluded.merged_into, forgotten_at = excluded.forgotten_at",
)
_DELETE_IDENTITIES: Final = "delete from identities where identity = any(%s::text[])"
_UPSERT_IDENTITIES: Final = _build_insert(
    "identities",
    "identity, person, proof, since, at, former",
    "text text text float8 float8 text",
    "on conflict (identity) do update set person = excluded.person, proof = excluded.proof, since = excluded.since, "
    "at = excluded.at, former = excluded.former",
)
_UPSERT_PEERS: Final = _build_insert(
    "peers",
    "memory, agent, identity, from_pos, peer, source, shared",
    "text text text bigint text text bool",
    "on conflict (memory, agent, identity, from_pos) do update set "
    "peer = excluded.peer, source = excluded.source, shared = excluded.shared",
)


def plan_writes(work: WorkingSet, *, shard: int, old: OldRows) -> Iterator[PlannedWrite]:
    """Return the statements that write what changed."""
    yield from _plan_people(work)
    yield from _plan_sessions(work, old)
    if work.entries:
        yield _INSERT_ENTRIES, _split_columns(work.entries)
    if work.erased:
        yield _ERASE, _split_columns(sorted(set(work.erased)))
    yield from _plan_pending(work, old)
    yield from _plan_operations(work, old)
    yield from _plan_cursors(work)
    yield from _plan_bindings(work, old)
    yield from _plan_deliveries(work)
    yield from _plan_states(work, old)
    if work.spends.changed:
        rows = [(*key, shard, *work.spends[key]) for key in sorted(work.spends.changed) if key in work.spends]
        if rows:
            yield _ADD_SPENDS, _split_columns(rows)
    yield from _plan_blobs(work)


class OldRows:
    """Which rows existed when the batch began, as far as a write has to know."""

    def __init__(self, work: WorkingSet) -> None:
        self.sessions = dict(work.sessions)
        self.operations = frozenset(work.operations)
        self.fences = {key: (row.fence, row.attempts, row.paused) for key, row in work.operations.items()}
        self.pending = frozenset(work.pending)
        self.bindings = frozenset(work.bindings)
        self.states = frozenset(work.states)


def _split_columns(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _plan_sessions(work: WorkingSet, old: OldRows) -> Iterator[PlannedWrite]:
    changed = [work.sessions[id] for id in sorted(work.sessions.changed) if id in work.sessions]
    new = [row for row in changed if row.is_new]
    if new:
        yield _INSERT_SESSIONS, _split_columns(map(_build_session_row, new))
    heads: list[SessionRow] = []
    others: list[SessionRow] = []
    for row in changed:
        if row.is_new:
            continue
        (heads if _has_only_grown(old.sessions[row.id], row) else others).append(row)
    if heads:
        yield _UPDATE_HEADS, ([row.id for row in heads], [row.next_seq for row in heads])
    if others:
        yield (
            _UPDATE_SESSIONS,
            _split_columns(
                (
                    row.id,
                    row.next_seq,
                    row.generation,
                    row.erasures,
                    _clean_text(row.title),
                    _encode_texts(row.choices),
                    _encode_texts(row.names),
                )
                for row in others
            ),
        )


def _has_only_grown(before: SessionRow, row: SessionRow) -> bool:
    return (before.generation, before.erasures, before.title, before.choices, before.names) == (
        row.generation,
        row.erasures,
        row.title,
        row.choices,
        row.names,
    )


def _build_session_row(row: SessionRow) -> tuple[Any, ...]:
    return (
        row.id,
        row.agent,
        row.address,
        row.next_seq,
        row.generation,
        row.erasures,
        row.created,
        _clean_text(row.title),
        row.parent,
        row.parent_at,
        _encode_texts(row.choices),
        _encode_texts(row.names),
    )


def _encode_texts(texts: dict[str, str]) -> str:
    return _encoder.encode(texts).decode() if texts else "{}"


def _clean_text(text: str) -> str:
    """Return a text for people without NUL, which PostgreSQL cannot store outside of JSON."""
    return text.replace("\x00", "�") if "\x00" in text else text


def _plan_pending(work: WorkingSet, old: OldRows) -> Iterator[PlannedWrite]:
    changed = sorted(work.pending.changed)
    gone = [key for key in changed if key not in work.pending and key in old.pending]
    new = [(*key, work.pending[key]) for key in changed if key in work.pending and key not in old.pending]
    if gone:
        yield _DELETE_PENDING, _split_columns(gone)
    if new:
        yield _INSERT_PENDING, _split_columns(new)


def _plan_operations(work: WorkingSet, old: OldRows) -> Iterator[PlannedWrite]:
    changed = [key for key in sorted(work.operations.changed) if key in work.operations]
    # Ends come first, because another operation may begin in the same batch, and only one may run.
    known = [work.operations[key] for key in changed if key in old.operations]
    if known:
        yield _UPDATE_OPERATIONS, _split_columns(_build_operation_update(row, old) for row in known)
    new = [work.operations[key] for key in changed if key not in old.operations]
    if new:
        yield _INSERT_OPERATIONS, _split_columns(map(_build_operation_row, new))


def _build_operation_update(row: OperationRow, old: OldRows) -> tuple[Any, ...]:
    # Claims change fence, attempts and the pause without a lock on the session, so others leave them alone.
    claims = old.fences[row.session, row.op] != (row.fence, row.attempts, row.paused)
    return (
        row.session,
        row.op,
        row.state,
        row.last,
        row.covers,
        row.undone_at,
        row.stop,
        row.fence,
        row.attempts,
        row.paused,
        claims,
    )


def _build_operation_row(row: OperationRow) -> tuple[Any, ...]:
    return (
        row.session,
        row.op,
        row.type,
        row.state,
        row.first,
        row.last,
        row.consumer,
        row.fence,
        row.attempts,
        row.paused,
        row.blocking,
        row.covers,
        row.undone_at,
        row.compression,
        row.stop,
    )


def _plan_cursors(work: WorkingSet) -> Iterator[PlannedWrite]:
    rows = [_build_cursor_row(work.cursors[key]) for key in sorted(work.cursors.changed) if key in work.cursors]
    if rows:
        yield _UPSERT_CURSORS, _split_columns(rows)


def _build_cursor_row(row: CursorRow) -> tuple[Any, ...]:
    return (
        row.session,
        row.consumer,
        row.start_seq,
        row.processed_seq,
        None if row.in_flight is None else _encoder.encode(row.in_flight).decode(),
        row.attempts,
        row.since,
        row.wait,
        row.due,
        row.mandatory,
        row.owner,
        row.lease_since,
        row.lease_wait,
        row.fence,
        _clean_text(row.error),
        row.waits_for,
    )


def _plan_bindings(work: WorkingSet, old: OldRows) -> Iterator[PlannedWrite]:
    changed = [address for address in sorted(work.bindings.changed) if address in work.bindings]
    new = [address for address in changed if address not in old.bindings]
    if new:
        yield _INSERT_BINDINGS, (new, [work.bindings[address] for address in new])
    known = [address for address in changed if address in old.bindings]
    if known:
        yield _UPSERT_BINDINGS, (known, [work.bindings[address] for address in known])


def _plan_deliveries(work: WorkingSet) -> Iterator[PlannedWrite]:
    if work.dropped:
        yield _DROP_LETTERS, _split_columns(sorted(set(work.dropped)))
    if work.scrubbed:
        yield _SCRUB_LETTERS, (SCRUBBED, *_split_columns(sorted(set(work.scrubbed))))
    if work.dead_letters:
        yield (
            _INSERT_LETTERS,
            _split_columns(
                (it.consumer, it.session, it.seq, it.part, it.key, _clean_text(it.reason), it.in_doubt, it.at, it.state)
                for it in work.dead_letters
            ),
        )
    if work.settled:
        yield _SETTLE_LETTERS, (sorted(set(work.settled)),)
    receipts = [work.receipts[key] for key in sorted(work.receipts.changed) if key in work.receipts]
    if receipts:
        yield (
            _UPSERT_RECEIPTS,
            _split_columns(
                (it.session, it.seq, it.part, it.consumer, it.key, it.remote, it.in_doubt, it.at) for it in receipts
            ),
        )


def _plan_states(work: WorkingSet, old: OldRows) -> Iterator[PlannedWrite]:
    changed = sorted(work.states.changed)
    gone = [key for key in changed if key not in work.states and key in old.states]
    if gone:
        yield _DELETE_STATES, _split_columns(gone)
    new = [(*key, *work.states[key]) for key in changed if key in work.states and key not in old.states]
    if new:
        yield _INSERT_STATES, _split_columns(new)
    known = [(*key, *work.states[key]) for key in changed if key in work.states and key in old.states]
    if known:
        yield _UPDATE_STATES, _split_columns(known)
    if work.state_version.changed:
        yield _SET_STATE_VERSION, (work.state_version[0],)
    if work.deleted_versions:
        floor = max(work.deleted_versions)
        yield _RAISE_FLOOR, (floor, floor)


def _plan_blobs(work: WorkingSet) -> Iterator[PlannedWrite]:
    changed = [(digest, work.blobs[digest]) for digest in sorted(work.blobs.changed) if digest in work.blobs]
    new = [(digest, data) for digest, data in changed if data is not None]
    if new:
        yield _INSERT_BLOBS, _split_columns(new)
    gone = [digest for digest, data in changed if data is None]
    if gone:
        yield _DELETE_BLOBS, (gone,)


def _plan_people(work: WorkingSet) -> Iterator[PlannedWrite]:
    events = work.people_events
    if events:
        yield (
            _INSERT_EVENTS,
            _split_columns(
                (it.n, it.at, it.by, it.action.value, it.person, it.identity, it.proof, it.since, it.note)
                for it in events
            ),
        )
        forgotten = sorted({it.person for it in events if it.action is PeopleAction.FORGOTTEN})
        if forgotten:
            yield _ERASE_LABELS, (forgotten,)
    gone = [name for name in sorted(work.identities.changed) if name not in work.identities]
    if gone:
        yield _DELETE_IDENTITIES, (gone,)
    persons = [work.persons[id] for id in sorted(work.persons.changed) if id in work.persons]
    if persons:
        # A label may move from one person to another in one change, so first take all labels away that change.
        yield _CLEAR_LABELS, ([it.id for it in persons],)
        yield _UPSERT_PERSONS, _split_columns((it.id, it.label, it.merged_into, it.forgotten_at) for it in persons)
    records = [work.identities[name] for name in sorted(work.identities.changed) if name in work.identities]
    if records:
        yield (
            _UPSERT_IDENTITIES,
            _split_columns((it.identity, it.person, it.proof, it.since, it.at, it.former) for it in records),
        )
    peers = [peer for key in sorted(work.peers.changed) for _, peer in sorted(work.peers.get(key, {}).items())]
    if peers:
        yield (
            _UPSERT_PEERS,
            _split_columns(
                (it.memory, it.agent, it.identity, it.from_pos, it.peer, it.source, it.shared) for it in peers
            ),
        )
