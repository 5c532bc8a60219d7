"""Applies several changes at once that only append a message each: one statement per table, not per message.

It is used when many messages arrive at once. Special cases (a repeated delivery, an address that leads to another
session by now) raise an error here; then the transaction is rolled back, and `commit` applies the changes one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import apsw
import msgspec

from everhold.core.entries import Heard
from everhold.errors import Conflict
from everhold.ports.clock import RandomSource
from everhold.ports.store import Change, Claim, CommitResult, Step
from everhold.stores.sqlite import cursors, entries, operations, sessions, state_records

HANDLED_FIELDS: Final = frozenset({"step", "session", "at", "entries", "bound", "wakeups", "state_writes"})
"""The fields of a change that this module handles. A change that sets any other field is left to `commit`."""

# `cross join` fixes the order of the joins, so that only the requested rows are read.
_SELECT_HEADS: Final = (
    "select b.address, s.id, s.title, s.next_seq, s.generation, s.parent, "
    "(select due from cursors where session = s.id and consumer = j.value) "
    "from json_each(?) j cross join bindings b on b.address = j.key cross join sessions s on s.id = b.session"
)
_encoder: Final = msgspec.json.Encoder()
_other_fields: Final = attrgetter(*(name for name in Change.__struct_fields__ if name not in HANDLED_FIELDS))
_NO_OTHER_FIELDS: Final = _other_fields(Change(step=Step.ACCEPT, session="", at=0.0))


def is_plain_message(change: Change) -> bool:
    """Return whether a change appends one message to an existing session and does nothing else."""
    drafts = change.entries
    return (
        change.step is Step.ACCEPT
        and change.bound is not None
        and len(drafts) == 1
        and type(drafts[0].body) is Heard
        and drafts[0].op is None
        and bool(_other_fields(change) == _NO_OTHER_FIELDS)
    )


def append_messages(cur: apsw.Cursor, changes: Sequence[Change], chance: RandomSource) -> list[CommitResult]:
    """Apply `changes` in their order. Each of them satisfies `is_plain_message`."""
    asked = {change.bound[0]: change.wakeups[0].consumer if change.wakeups else "" for change in changes}  # type: ignore[index]
    heads = {row[0]: row for row in cur.execute(_SELECT_HEADS, (_encoder.encode(asked).decode(),))}
    salts = chance.bytes(entries.SALT_BYTES * len(changes))
    salt = 0
    grown: dict[str, int] = {}
    rows, pending, placed = [], [], []
    for change in changes:
        (address, title), session, draft = change.bound, change.session, change.entries[0]  # type: ignore[misc]
        head = heads.get(address)
        if head is None or head[1] != session or head[2] != title:
            raise Conflict(f"{address} no longer leads to session {session} with the title {title!r}")
        seq = grown.get(session) or head[3]
        grown[session] = seq + 1
        rows.append(entries.build_row(session, seq, draft, at=change.at, salt=salts[salt : salt + entries.SALT_BYTES]))
        pending.append((session, seq, draft.body.asks))  # type: ignore[union-attr]
        placed.append((change, seq, head))
        salt += entries.SALT_BYTES
    entries.insert_rows(cur, rows)
    pos = cur.connection.last_insert_rowid() - len(rows)
    operations.add_pending_messages(cur, pending)
    sessions.advance_sessions(cur, [(following, session) for session, following in grown.items()])
    done = []
    woken = set[str]()
    for change, seq, (address, session, _, _, generation, parent, due) in placed:
        pos += 1
        claims: tuple[Claim, ...] = ()
        if wakeups := change.wakeups:
            first, at = wakeups[0], change.at
            awake = due is not None and due <= at and first.consumer == asked[address] and session not in woken
            if not awake or first.owner or first.waits_for or len(wakeups) > 1:
                claims = cursors.apply_wakeups(cur, session, wakeups, before=seq - 1, at=at)
                woken.add(session)
        for write in change.state_writes:
            state_records.write_state(cur, write)
        if parent:
            generation += sessions.count_inherited_erasures(cur, parent)
        done.append(CommitResult(session=session, seqs=(seq,), pos=pos, generation=generation, claims=claims))
    return done
