"""Which address leads to which session. It never decides that one should."""

from __future__ import annotations

import apsw

from everhold.core.entries import AddressBound
from everhold.errors import Conflict


def bind_new_session(cur: apsw.Cursor, address: str, session: str) -> None:
    """A new session's own address, which must be free."""
    try:
        cur.execute("insert into bindings(address, session) values (?, ?)", (address, session))
    except apsw.ConstraintError as error:
        raise Conflict(f"{address} leads to a session already") from error


def bind_address(cur: apsw.Cursor, session: str, bound: AddressBound) -> None:
    """Lead an address here, if it still leads where the caller thinks it does."""
    now = resolve_address(cur, bound.address) or ""
    if now != bound.previous:
        raise Conflict(f"{bound.address} leads to {now or 'nowhere'} by now, not to {bound.previous or 'nowhere'}")
    cur.execute(
        "insert into bindings(address, session) values (?, ?) "
        "on conflict(address) do update set session = excluded.session",
        (bound.address, session),
    )


def resolve_address(cur: apsw.Cursor, address: str) -> str | None:
    session: str | None = cur.execute("select session from bindings where address = ?", (address,)).get
    return session
