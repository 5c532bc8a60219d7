"""The table of sessions: reading. `saving` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from everhold.errors import NotFound
from everhold.ports.store import Session

# Erasures in the ancestors of a branch raise its generation, because a branch sees their entries.
GENERATION: Final = """s.generation + case when s.parent = '' then 0 else (
  with recursive line(id, parent, erasures) as (
    select p.id, p.parent, p.erasures from sessions p where p.id = s.parent
    union select p.id, p.parent, p.erasures from sessions p join line on p.id = line.parent)
  select coalesce(sum(erasures), 0)::bigint from line) end"""
_COLUMNS: Final = f"""
  s.id, s.agent, s.address, s.next_seq, {GENERATION}, s.created, s.title, s.parent, s.parent_at, s.choices, s.names,
  (select count(*) from pending p where p.session = s.id),
  (select max(o.type) from operations o
    where o.session = s.id and o.state = 'running' and o.type in ('turn', 'compression')),
  (select o.covers from operations o
    where o.session = s.id and o.type = 'compression' and o.covers > 0 and o.undone_at = 0 order by o.op desc limit 1)
"""
_SELECT: Final = f"select {_COLUMNS} from sessions s "
SELECT_SESSION: Final = _SELECT + "where s.id = %s"
SELECT_SNAPSHOTS: Final = f"""
select {_COLUMNS},
  (select o.op from operations o where o.session = s.id and o.type = 'turn' order by o.op desc limit 1),
  (select max(n) from people_log)
from sessions s where s.id = any(%s::text[])
"""
SELECT_HEAD: Final = f"select s.next_seq, {GENERATION} from sessions s where s.id = %s"
SELECT_HEADS: Final = (
    f"select s.next_seq, {GENERATION}, wanted.n from unnest(%s::text[]) with ordinality wanted(session, n) "
    "join sessions s on s.id = wanted.session"
)
SELECT_PAGE: Final = _SELECT + "where s.id > %s order by s.id limit %s"
SELECT_PAGE_BACKWARDS: Final = _SELECT + "where %s = '' or s.id < %s order by s.id desc limit %s"
SELECT_BEGUN: Final = (
    _SELECT + "where (%(agent)s = '' or s.agent = %(agent)s) and (%(after)s = '' or s.id < %(after)s) "
    "and (s.address = %(address)s or (select e.author from entries e where e.session = s.id "
    "and e.kind in ('heard', 'changed') and e.author <> 'system' order by e.seq limit 1) = any(%(authors)s::text[])) "
    "order by s.id desc limit %(limit)s"
)
SELECT_BRANCHES: Final = _SELECT + "where s.parent = %s and s.parent <> '' order by s.id"
SELECT_BOUND_SESSION: Final = (
    "select s.id, s.title from bindings b join sessions s on s.id = b.session where b.address = %s"
)
FIND_SESSIONS: Final = """
select id from sessions where id = %(name)s
union select session from bindings where address = %(name)s
union select id from sessions where title <> '' and lower(title) = lower(%(name)s::text collate "C")
union select id from sessions where %(name)s <> '' and id >= %(name)s and id < %(name)s || chr(1114111)
union select session from (
  (select session from entries where %(name)s = 'last' and kind = 'heard' order by pos desc limit 1)
  union all
  (select session from entries where %(name)s = 'last' order by pos desc limit 1)
  limit 1) newest
"""
_texts: Final = msgspec.json.Decoder(dict[str, str])


def build_not_found(id: str) -> NotFound:
    return NotFound(f"there is no session {id!r}", remedy="`everhold sessions list` lists the sessions")


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
        choices=_texts.decode(choices),
        names=_texts.decode(names),
    )
