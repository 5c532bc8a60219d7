"""The table of identities: which person an identity is linked to."""

from __future__ import annotations

import apsw

from everhold.stores.sqlite.rows import fetch_rows


def link_identity(cur: apsw.Cursor, identity: str, person: str, *, at: float) -> None:
    if not person:
        cur.execute("delete from identities where identity = ?", (identity,))
        return
    cur.execute(
        "insert into identities(identity, person, at) values (?, ?, ?) "
        "on conflict(identity) do update set person = excluded.person, at = excluded.at",
        (identity, person, at),
    )


def list_identities(cur: apsw.Cursor, person: str) -> list[str]:
    found = fetch_rows(cur, "select identity from identities where person = ? order by identity", (person,))
    return [identity for (identity,) in found]


def find_person(cur: apsw.Cursor, identity: str) -> str | None:
    person: str | None = cur.execute("select person from identities where identity = ?", (identity,)).get
    return person
