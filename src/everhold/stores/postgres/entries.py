"""The tables of entries and pending messages: reading. `saving` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from everhold.core.entries import BODY_VERSION, ChatCommand, Entry, EntryKind, decode_body
from everhold.core.inbox import PendingMessage
from everhold.errors import Poisoned, StoreDamaged
from everhold.ports.store import PAGE_BYTES, EntryPage

_COLUMN_NAMES: Final = "session seq pos kind op author at version body digest dedup".split()
COLUMNS: Final = ", ".join(_COLUMN_NAMES)
_E_COLUMNS: Final = ", ".join(f"e.{name}" for name in _COLUMN_NAMES)
_BODY: Final = _COLUMN_NAMES.index("body")
_KIND_BY_NAME: Final = {kind.value: kind for kind in EntryKind}
_KNOWN_KINDS: Final = ", ".join(f"'{kind.value}'" for kind in EntryKind)
_UNREADABLE: Final = f"version > {BODY_VERSION} or kind not in ({_KNOWN_KINDS})"
"""An entry that this build cannot read. It is in every result, so that no consumer skips it."""


def parse_entry_row(row: Sequence[Any]) -> Entry:
    """Build the entry from its row. Raises Poisoned if a newer everhold wrote it."""
    session, seq, pos, kind, op, author, at, version, text, seal, dedup = row
    known = _KIND_BY_NAME.get(kind)
    if known is None or version > BODY_VERSION:
        raise _build_poisoned(session, seq, kind, version)
    try:
        body = None if text is None else decode_body(known, text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(
            f"session {session}: entry {seq} ({kind}) cannot be decoded: {error}",
            remedy="run `everhold audit`; the last backup contains the original entry",
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


def _build_poisoned(session: str, seq: int, kind: str, version: int) -> Poisoned:
    return Poisoned(
        f"session {session}: entry {seq} is of kind {kind!r}, version {version}, "
        f"and this everhold reads versions up to {BODY_VERSION}",
        remedy="upgrade everhold; nothing is lost",
    )


def build_page(rows: Sequence[Sequence[Any]], *, limit: int, page: EntryPage) -> bool:
    """Add rows to a page until it has `limit` entries or its bodies reach `PAGE_BYTES`. Return whether it is full."""
    size = 0
    for row in rows:
        page.append(parse_entry_row(row))
        size += len(row[_BODY] or "")
        if size >= PAGE_BYTES or len(page) >= limit:
            page.has_more = True
            return True
    return False


def build_entries_query(
    session: str, *, after: int, upto: int | None, kinds: Sequence[EntryKind], limit: int | None
) -> tuple[str, list[Any]]:
    where = ["session = %s", "seq > %s"]
    values: list[Any] = [session, after]
    if upto is not None:
        where.append("seq <= %s")
        values.append(upto)
    if kinds:
        where.append(f"(kind = any(%s::text[]) or {_UNREADABLE})")
        values.append([kind.value for kind in kinds])
    sql = f"select {COLUMNS} from entries where {' and '.join(where)} order by seq"
    if limit is not None:
        sql += " limit %s"
        values.append(limit)
    return sql, values


SELECT_ENTRY: Final = f"select {COLUMNS} from entries where session = %s and seq = %s"
SELECT_LOG: Final = f"select {COLUMNS} from entries where session = %s and seq > %s and seq <= %s order by seq limit %s"
FEED_END: Final = "((pg_snapshot_xmin(pg_current_snapshot())::text::bigint + (select pos_base from store_info)) << 16)"
"""No entry below this pos can still be committed, so a reader of the feed skips none."""
SELECT_FEED: Final = f"select {COLUMNS} from entries where pos > %s and pos < {FEED_END} order by pos limit %s"
SELECT_NOTES: Final = (
    f"select {COLUMNS} from entries where pos > %s and kind in ('noted', 'erased') and pos < {FEED_END} "
    "order by pos limit %s"
)
SELECT_COMPRESSIONS: Final = f"select {COLUMNS} from entries where kind = 'compressed' order by pos desc limit %s"
# The server may keep a plan that it made while the tables were empty. `limit` rules out that it reads every entry of
# the session to find the few that wait.
_PENDING_ENTRY: Final = (
    "cross join lateral (select * from entries e where e.session = p.session and e.seq = p.seq limit 1) e "
    "where p.session = %s and p.seq > %s order by p.seq"
)
SELECT_PENDING: Final = f"select {_E_COLUMNS} from pending p {_PENDING_ENTRY}"
SELECT_FIRST_PENDING: Final = f"{SELECT_PENDING} limit %s"
SELECT_FIRST_PENDING_OF: Final = (
    f"select {_E_COLUMNS} from unnest(%s::text[]) wanted(session) cross join lateral ("
    "select p.session, p.seq from pending p where p.session = wanted.session order by p.seq limit %s) p "
    "cross join lateral (select * from entries e where e.session = p.session and e.seq = p.seq limit 1) e "
    "order by e.session, e.seq"
)
SCAN_PENDING: Final = f"select p.seq, e.author, e.version, e.body from pending p {_PENDING_ENTRY}"
SELECT_WAITING: Final = (
    "select e.author, s.address, count(*), coalesce(sum(octet_length(e.body)), 0)::bigint from pending p "
    "join entries e on e.session = p.session and e.seq = p.seq join sessions s on s.id = p.session "
    "where p.asks group by e.author, s.address order by 1, 2"
)
# For a heard entry the last turn that consumed it counts.
SELECT_CITED: Final = f"""
select s.agent, case
  when e.kind = 'said' then exists (
    select 1 from operations o where o.session = e.session and o.op = e.op and o.undone_at > 0)
  when e.kind <> 'heard'
    or not exists (select 1 from operations o where o.session = e.session and o.undone_at > 0
      and e.seq between o.first and o.last)
    or exists (select 1 from pending p where p.session = e.session and p.seq = e.seq) then false
  else coalesce((
    select o.undone_at > 0 from operations o
    where o.session = e.session and o.first <= e.seq and (o.last >= e.seq or o.state = 'running') and exists (
      select 1 from entries t cross join lateral json_array_elements_text(t.body::json -> 'takes') k(value)
      where t.session = o.session and t.seq >= o.op and (t.seq <= o.last or o.state = 'running') and t.op = o.op
        and t.kind in ('began', 'took') and t.body is not null and k.value = e.seq::text)
    order by o.op desc limit 1), false)
  end, {_E_COLUMNS}
from unnest(%s::text[], %s::bigint[]) j(session, seq)
join entries e on e.session = j.session and e.seq = j.seq join sessions s on s.id = e.session"""
SELECT_REPLIES_OF: Final = f"""
select {_E_COLUMNS}, wanted.n from unnest(%s::text[], %s::bigint[]) with ordinality wanted(session, after, n)
cross join lateral (
  select * from entries e
  where e.session = wanted.session and e.seq > wanted.after and (e.kind in ('said', 'notified') or {_UNREADABLE})
    and not (e.kind = 'said' and exists (
      select 1 from operations o where o.session = e.session and o.op = e.op and o.undone_at > 0))
  order by e.seq) e
order by wanted.n, e.seq"""


class _PendingText(msgspec.Struct, frozen=True):
    """The part of a message that decides what happens to it. Its text is not read."""

    asks: bool = True
    busy: str = ""
    command: ChatCommand | None = None


_pending_texts: Final = msgspec.json.Decoder(_PendingText)
_ERASED: Final = _PendingText(asks=False)


def parse_pending_row(session: str, row: Sequence[Any]) -> PendingMessage:
    seq, author, version, text = row
    if version > BODY_VERSION:
        raise _build_poisoned(session, seq, "heard", version)
    body = _ERASED if text is None else _pending_texts.decode(text)
    return PendingMessage(seq=seq, author=author, asks=body.asks, command=body.command, busy=body.busy)
