"""The tables of entries (appending, reading, erasing) and of the blobs that they name. `commit` writes derived rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import apsw
import msgspec

from everhold.core.entries import (
    BODY_VERSION,
    OWN_OPERATION,
    Began,
    ChatCommand,
    Ended,
    Entry,
    EntryDraft,
    EntryKind,
    decode_body,
)
from everhold.core.inbox import PendingMessage
from everhold.core.store_rows import (
    SALT_BYTES,
    DuplicateEntry,
    EntryRow,
    KeyedEntry,
    build_entry_row,
    compare_duplicate,
)
from everhold.errors import InvalidRequest, NotFound, Poisoned, Refused, StoreDamaged
from everhold.ports.clock import RandomSource
from everhold.ports.store import PAGE_BYTES, EntryPage
from everhold.stores.sqlite.sessions import GENERATION

_INSERT_ENTRY: Final = (
    "insert into entries(pos, session, seq, kind, op, author, at, version, body, salt, digest, dedup) "
    "values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_COLUMNS: Final = "session, seq, pos, kind, op, author, at, version, body, digest, dedup"
_BODY_COLUMN: Final = _COLUMNS.split(", ").index("body")
_OWN_COLUMNS: Final = _COLUMNS.removeprefix("session, ")
_KIND_BY_NAME: Final = {kind.value: kind for kind in EntryKind}
_KNOWN_KINDS: Final = ", ".join(f"'{kind.value}'" for kind in EntryKind)
_UNREADABLE: Final = f"version > {BODY_VERSION} or kind not in ({_KNOWN_KINDS})"
"""An entry that this build cannot read. It is in every result, so that no consumer skips it."""


class DedupKeyTaken(InvalidRequest):
    """Another entry has this dedup key or this place."""


def append_entries(
    cur: apsw.Cursor,
    session: str,
    first: int,
    drafts: Sequence[EntryDraft],
    *,
    at: float,
    chance: RandomSource,
    pos: int | None = None,
    named: int | None = None,
    erases: bool = False,
) -> list[int | None]:
    """Append `drafts` from seq `first` on, at `pos` or after all others. Return the operation of each entry.

    An entry belongs to an operation that begins here, or to `named`, which the caller has checked. With `erases`, an
    entry may also end another operation, because that one had read an erased entry.
    """
    found = []
    own: int | None = None
    seq = first
    try:
        for draft in drafts:
            body, op = draft.body, draft.op
            if type(body) is Began:
                op = own = seq
            elif op is not None:
                if op == OWN_OPERATION:
                    op = _find_begun_op(drafts, first) if own is None else own
                elif op != named and op != own and not (erases and type(body) is Ended):
                    raise InvalidRequest(
                        f"session {session}: an entry belongs to operation {op}, which its change does not name"
                    )
            found.append(build_entry_row(session, seq, draft, at=at, salt=chance.bytes(SALT_BYTES), op=op, pos=pos))
            seq += 1
            pos = None
        if seq == first + 1:
            cur.execute(_INSERT_ENTRY, found[0])
        else:
            cur.executemany(_INSERT_ENTRY, found)
    except UnicodeEncodeError as error:
        raise Refused(
            f"session {session}: an entry contains code points that are not characters",
            remedy="clean its text before it is committed",
        ) from error
    except apsw.ConstraintError as error:
        raise DedupKeyTaken(f"session {session}: two entries have the same dedup key, or the same place") from error
    return [one[4] for one in found]


def insert_rows(cur: apsw.Cursor, rows: Sequence[EntryRow]) -> None:
    cur.executemany(_INSERT_ENTRY, rows)


def _find_begun_op(drafts: Sequence[EntryDraft], first: int) -> int:
    for seq, draft in enumerate(drafts, first):
        if type(draft.body) is Began:
            return seq
    raise InvalidRequest("an entry belongs to an operation that this change does not begin")


def find_duplicate(cur: apsw.Cursor, draft: EntryDraft) -> DuplicateEntry | None:
    """The existing entry with the dedup key of `draft`, and whether its text or attachments differ."""
    row = cur.execute("select session, seq, pos, kind, body from entries where dedup = ?", (draft.dedup,)).fetchone()
    if row is None:
        return None
    return compare_duplicate(KeyedEntry(*row), draft)


def has_thought_after(cur: apsw.Cursor, pos: int) -> bool:
    """Return whether any session has a `thought` after `pos`."""
    return cur.execute("select 1 from entries where pos > ? and kind = 'thought' limit 1", (pos,)).get is not None


def has_erasure_since(cur: apsw.Cursor, session: str, seq: int) -> bool:
    """Return whether anything was erased in any session since an entry was written."""
    return cur.execute(SELECT_ERASED_SINCE, (session, seq)).get is not None


def erase_entries(cur: apsw.Cursor, session: str, seqs: Sequence[int]) -> None:
    """Remove the bodies of entries and the salts of their digests."""
    for seq in seqs:
        cur.execute("update entries set body = null, salt = null where session = ? and seq = ?", (session, seq))
        if cur.connection.changes() != 1:
            raise NotFound(f"session {session} has no entry {seq} to erase")


# -- reading -----------------------------------------------------------------------------------------------------------


def parse_entry_row(row: Sequence[Any]) -> Entry:
    """Build the entry from its row. Raises Poisoned if a newer everhold wrote it."""
    session, seq, pos, kind, op, author, at, version, text, seal, dedup = row
    known = _KIND_BY_NAME.get(kind)
    if known is None or version > BODY_VERSION:
        raise Poisoned(
            f"session {session}: entry {seq} is of kind {kind!r}, version {version}, "
            f"and this everhold reads versions up to {BODY_VERSION}",
            remedy="upgrade everhold; nothing is lost",
        )
    try:
        body = None if text is None else decode_body(known, text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(
            f"session {session}: entry {seq} ({kind}) cannot be decoded: {error}",
            remedy="run `everhold doctor`; the last backup contains the original entry",
        ) from error
    return Entry(
        session=session,
        seq=seq,
        pos=pos,
        kind=known,
        op=op,
        author=author,
        at=at,
        version=version,
        body=body,
        digest=seal,
        dedup=dedup,
    )


def read_page(db: apsw.Connection, sql: str, values: Sequence[Any], *, limit: int) -> EntryPage:
    """Read rows with all columns until there are `limit` of them or their bodies reach `PAGE_BYTES`."""
    page, size = EntryPage(), 0
    cursor = db.cursor()
    try:
        for row in cursor.execute(sql, values):
            page.append(parse_entry_row(row))
            size += len(row[_BODY_COLUMN] or ())
            if size >= PAGE_BYTES or len(page) >= limit:
                page.has_more = True
                break
    finally:
        cursor.close(True)  # a statement that is not finished would keep its read transaction open
    return page


def build_entries_query(
    session: str, *, after: int, upto: int | None, kinds: Sequence[EntryKind], limit: int | None
) -> tuple[str, list[Any]]:
    """Build the statement that reads a part of one log. Put the session before each row for `parse_entry_row`; it is
    not selected, because it is the same in every row.
    """
    where = ["session = ?", "seq > ?"]
    values: list[Any] = [session, after]
    if upto is not None:
        where.append("seq <= ?")
        values.append(upto)
    if kinds:
        marks = ", ".join("?" * len(kinds))
        where.append(f"(kind in ({marks}) or {_UNREADABLE})")
        values.extend(kind.value for kind in kinds)
    sql = f"select {_OWN_COLUMNS} from entries where {' and '.join(where)} order by seq"
    if limit is not None:
        sql += " limit ?"
        values.append(limit)
    return sql, values


SELECT_ENTRY: Final = f"select {_COLUMNS} from entries where session = ? and seq = ?"
# Most sessions have no undone operations. The undone operations of a session are read once, however many of its places
# are requested. The last consumer is looked up only for messages in the range of an undone operation.
SELECT_CITED: Final = f"""
with places as materialized (
  select e.*, s.agent from json_each(?) j
  cross join entries e on e.session = j.value ->> 0 and e.seq = j.value ->> 1
  join sessions s on s.id = e.session
),
gone as materialized (
  select o.session, o.first, o.last
  from (select distinct session from places where kind = 'heard') p
  cross join operations o indexed by operations_undone on o.session = p.session where o.undone_at > 0
)
select agent, case
  when kind = 'said' then exists (
    select 1 from operations o where o.session = e.session and o.op = e.op and o.undone_at > 0)
  when kind <> 'heard'
    or not exists (select 1 from gone o where o.session = e.session and e.seq between o.first and o.last)
    or exists (select 1 from pending p where p.session = e.session and p.seq = e.seq) then 0
  else (
    select o.undone_at > 0 from operations o
    where o.session = e.session and o.first <= e.seq and (o.last >= e.seq or o.state = 'running') and exists (
      select 1 from entries t, json_each(t.body, '$.takes') k
      where t.session = o.session and t.seq >= o.op and (t.seq <= o.last or o.state = 'running') and t.op = o.op
        and t.kind in ('began', 'took') and k.value = e.seq)
    order by o.op desc limit 1)
  end, {_COLUMNS} from places e"""
SELECT_REPLIES: Final = f"""
select s.next_seq, {GENERATION}, {", ".join("e." + column for column in _COLUMNS.split(", "))}
from sessions s left join entries e on e.session = s.id and e.seq > ?
  and (e.kind in ('said', 'notified') or {_UNREADABLE})
  and not (e.kind = 'said' and exists (
    select 1 from operations o where o.session = e.session and o.op = e.op and o.undone_at > 0))
where s.id = ? order by e.seq"""
SELECT_LOG: Final = f"select {_COLUMNS} from entries where session = ? and seq > ? and seq <= ? order by seq limit ?"
SELECT_FEED: Final = f"select {_COLUMNS} from entries where pos > ? order by pos limit ?"
# The index is named, so that this query never scans the table.
SELECT_NOTES: Final = (
    f"select {_COLUMNS} from entries indexed by entries_notes "
    "where pos > ? and kind in ('noted', 'erased') order by pos limit ?"
)
SELECT_ERASED_SINCE: Final = (
    "select 1 from entries indexed by entries_notes where kind in ('noted', 'erased') and kind = 'erased' "
    "and pos > (select pos from entries where session = ? and seq = ?) limit 1"
)
SELECT_COMPRESSIONS: Final = (
    f"select {_COLUMNS} from entries indexed by entries_compressions where kind = 'compressed' "
    "order by pos desc limit ?"
)
SELECT_PENDING: Final = (
    f"select {', '.join('e.' + column for column in _COLUMNS.split(', '))} from pending p "
    "join entries e on e.session = p.session and e.seq = p.seq where p.session = ? and p.seq > ? order by p.seq"
)
SELECT_FIRST_PENDING: Final = f"{SELECT_PENDING} limit ?"
_SCAN_PENDING: Final = (
    "select p.seq, e.author, e.version, e.body from pending p "
    "join entries e on e.session = p.session and e.seq = p.seq where p.session = ? and p.seq > ? order by p.seq"
)


class _PendingBody(msgspec.Struct, frozen=True):
    """The part of a message that decides what happens to it. Its text is not read."""

    asks: bool = True
    busy: str = ""
    command: ChatCommand | None = None


_pending_bodies: Final = msgspec.json.Decoder(_PendingBody)


def scan_pending(cur: apsw.Cursor, session: str, after: int) -> list[PendingMessage]:
    """Return all pending messages, without their texts."""
    found = []
    for seq, author, version, text in cur.execute(_SCAN_PENDING, (session, after)):
        if version > BODY_VERSION:
            raise Poisoned(
                f"session {session}: entry {seq} is of version {version}, "
                f"and this everhold reads versions up to {BODY_VERSION}",
                remedy="upgrade everhold; nothing is lost",
            )
        body = _ERASED_BODY if text is None else _pending_bodies.decode(text)
        found.append(PendingMessage(seq=seq, author=author, asks=body.asks, command=body.command, busy=body.busy))
    return found


_ERASED_BODY: Final = _PendingBody(asks=False)


def store_blobs(cur: apsw.Cursor, blobs: Iterable[bytes]) -> None:
    """Store each content under its SHA-256 digest."""
    cur.executemany(
        "insert or ignore into blobs(digest, data) values (?, ?)",
        [(hashlib.sha256(data).hexdigest(), data) for data in blobs],
    )


def delete_blobs(cur: apsw.Cursor, digests: Iterable[str]) -> None:
    cur.executemany("delete from blobs where digest = ?", [(digest,) for digest in digests])


def read_blob(cur: apsw.Cursor, digest: str) -> bytes | None:
    data: bytes | None = cur.execute("select data from blobs where digest = ?", (digest,)).get
    return data
