"""The table of sessions: next seq, generation of the context, title, names and choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import apsw
import msgspec

from everhold.core.entries import Changed, EntryKind, MemoryNameSet, SessionTitled, decode_body
from everhold.errors import Conflict, NotFound
from everhold.ports.store import Session, SessionOpening
from everhold.stores.sqlite.connect import fetch_rows

GENERATION: Final = (
    "s.generation + case s.parent when '' then 0 else ("
    "with recursive line(id, parent, erasures) as ("
    "select id, parent, erasures from sessions where id = s.parent "
    "union select p.id, p.parent, p.erasures from sessions p join line on p.id = line.parent) "
    "select coalesce(sum(erasures), 0) from line) end"
)
"""The generation of the context of session `s`. Erasures in the ancestors of a branch raise it, too, because a branch
sees their entries.
"""
_SELECT_HEAD: Final = f"select s.next_seq, {GENERATION} from sessions s where s.id = ?"
_SELECT_BOUND_HEAD: Final = (
    f"select s.id, s.title, s.next_seq, {GENERATION} "
    "from bindings b join sessions s on s.id = b.session where b.address = ?"
)
_UPDATE_NEXT_SEQ: Final = "update sessions set next_seq = ? where id = ?"
_text_map_decoder: Final = msgspec.json.Decoder(dict[str, str])


SessionHead: TypeAlias = tuple[int, int]
"""A session at the start of a change: the seq of its next entry, and the generation of its context."""


def insert_session(cur: apsw.Cursor, session: str, opening: SessionOpening, *, at: float) -> None:
    if opening.parent and cur.execute("select 1 from sessions where id = ?", (opening.parent,)).fetchone() is None:
        raise NotFound(f"session {session} cannot branch off {opening.parent}: there is no such session")
    try:
        cur.execute(
            "insert into sessions(id, agent, address, created, parent, parent_at) values (?, ?, ?, ?, ?, ?)",
            (session, opening.agent, opening.address, at, opening.parent, opening.parent_at),
        )
    except apsw.ConstraintError as error:
        raise Conflict(f"session {session} exists already") from error


def read_head(cur: apsw.Cursor, session: str) -> SessionHead:
    head: SessionHead | None = cur.execute(_SELECT_HEAD, (session,)).get
    if head is None:
        raise build_not_found(session)
    return head


def build_not_found(id: str) -> NotFound:
    return NotFound(f"there is no session {id!r}", remedy="`everhold sessions list` lists the sessions")


def read_bound_head(cur: apsw.Cursor, address: str, *, session: str, title: str) -> SessionHead | None:
    """The head of a session, or None if the address no longer leads to it or it has another title."""
    row: tuple[str, str, int, int] | None = cur.execute(_SELECT_BOUND_HEAD, (address,)).get
    return row[2:] if row is not None and row[:2] == (session, title) else None


def advance_session(cur: apsw.Cursor, session: str, first: int) -> None:
    """Set the seq of the session's next entry to `first`."""
    cur.execute(_UPDATE_NEXT_SEQ, (first, session))


def advance_sessions(cur: apsw.Cursor, grown: Sequence[tuple[int, str]]) -> None:
    """Set the seq of the next entry of several sessions: pairs of seq and session."""
    cur.executemany(_UPDATE_NEXT_SEQ, grown)


def raise_generation(cur: apsw.Cursor, session: str, *, by: int, erasures: int) -> None:
    cur.execute(
        "update sessions set generation = generation + ?, erasures = erasures + ? where id = ?",
        (by, erasures, session),
    )


def set_title(cur: apsw.Cursor, session: str, text: str) -> None:
    cur.execute("update sessions set title = ? where id = ?", (text, session))


def restore_names(cur: apsw.Cursor, session: str) -> None:
    """Restore the newest title and the newest names for memories that are still in the log."""
    newest = ""
    names: dict[str, str] = {}
    for (text,) in fetch_rows(
        cur,
        "select body from entries where session = ? and kind = 'changed' and body is not null order by seq",
        (session,),
    ):
        body = decode_body(EntryKind.CHANGED, text)
        match body.change if isinstance(body, Changed) else None:
            case SessionTitled(title=newest):
                pass
            case MemoryNameSet(memory=memory, name=name):
                names[memory] = name
    set_title(cur, session, newest)
    given = {memory: name for memory, name in names.items() if name}
    cur.execute("update sessions set names = ? where id = ?", (msgspec.json.encode(given).decode(), session))


def set_session_value(cur: apsw.Cursor, session: str, column: str, key: str, value: str) -> None:
    """Set one of the session's `choices` or `names`; an empty value removes it."""
    stored = _text_map_decoder.decode(cur.execute(f"select {column} from sessions where id = ?", (session,)).get)
    if value:
        stored[key] = value
    else:
        stored.pop(key, None)
    cur.execute(f"update sessions set {column} = ? where id = ?", (msgspec.json.encode(stored).decode(), session))


# -- reading -----------------------------------------------------------------------------------------------------------

_COLUMNS: Final = f"""
  s.id, s.agent, s.address, s.next_seq, {GENERATION}, s.created, s.title, s.parent, s.parent_at, s.choices, s.names,
  (select count(*) from pending p where p.session = s.id),
  (select max(o.type) from operations o indexed by operations_running
    where o.session = s.id and o.state = 'running' and o.type in ('turn', 'compression')),
  (select o.covers from operations o indexed by operations_view
    where o.session = s.id and o.type = 'compression' and o.covers > 0 and o.undone_at = 0 order by o.op desc limit 1)
"""
_SELECT: Final = f"select {_COLUMNS} from sessions s "
SELECT_SNAPSHOT: Final = f"""
select {_COLUMNS},
  (select o.op from operations o where o.session = s.id and o.type = 'turn' order by o.op desc limit 1),
  exists(select 1 from operations o indexed by operations_running where o.session = s.id and o.state = 'running'),
  (select max(n) from people_log)
from sessions s where s.id = ?
"""
SELECT_SESSION: Final = _SELECT + "where s.id = ?"
SELECT_PAGE: Final = _SELECT + "where s.id > ? order by s.id limit ?"
SELECT_PAGE_BACKWARDS: Final = _SELECT + "where ?1 = '' or s.id < ?1 order by s.id desc limit ?2"
SELECT_BEGUN: Final = (
    _SELECT + "where (:agent = '' or s.agent = :agent) and (:after = '' or s.id < :after) "
    "and (s.address = :address or (select e.author from entries e where e.session = s.id "
    "and e.kind in ('heard', 'changed') and e.author <> 'system' order by e.seq limit 1) "
    "in (select value from json_each(:authors))) "
    "order by s.id desc limit :limit"
)
SELECT_BRANCHES: Final = _SELECT + "where s.parent = ? and s.parent <> '' order by s.id"
SELECT_BOUND_SESSION: Final = (
    "select s.id, s.title from bindings b join sessions s on s.id = b.session where b.address = ?"
)
FIND_SESSIONS: Final = """
select id from sessions where id = :name
union select session from bindings where address = :name
union select id from sessions where title <> '' and title = :name collate nocase
union select id from sessions where :name <> '' and id >= :name and id < :name || char(0x10ffff)
union select session from (select session from entries where :name = 'last' and pos = coalesce(
    (select pos from entries where :name = 'last' and kind = 'heard' order by pos desc limit 1),
    (select max(pos) from entries)))
"""


def parse_session_row(row: Sequence[Any]) -> Session:
    (
        id,
        agent,
        address,
        next_seq,
        generation,
        created,
        title,
        parent,
        parent_at,
        choices,
        names,
        waiting,
        running,
        covers,
    ) = row
    return Session(
        id=id,
        agent=agent,
        address=address,
        last_seq=next_seq - 1,
        generation=generation,
        created=created,
        title=title,
        parent=parent,
        parent_at=parent_at,
        pending=waiting,
        running=running or "",
        compressed_upto=covers or 0,
        choices=_text_map_decoder.decode(choices),
        names=_text_map_decoder.decode(names),
    )
