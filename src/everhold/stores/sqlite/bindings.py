"""The table of bindings: which address leads to which session."""

from __future__ import annotations

import apsw

from everhold.core.entries import AddressBound
from everhold.errors import Conflict


def bind_new_session(cur: apsw.Cursor, address: str, session: str) -> None:
    """Bind a new session's own address. Raises Conflict if the address is bound already."""
    try:
        cur.execute("insert into bindings(address, session) values (?, ?)", (address, session))
    except apsw.ConstraintError as error:
        raise Conflict(f"{address} leads to a session already") from error


def bind_address(cur: apsw.Cursor, session: str, bound: AddressBound) -> None:
    """Bind an address to a session. Raises Conflict unless it still leads to the session that the caller expects."""
    now = resolve_address(cur, bound.address) or ""
    if now != bound.previous:
        raise Conflict(f"{bound.address} now leads to {now or 'no session'}, not to {bound.previous or 'no session'}")
    cur.execute(
        "insert into bindings(address, session) values (?, ?) "
        "on conflict(address) do update set session = excluded.session",
        (bound.address, session),
    )


def resolve_address(cur: apsw.Cursor, address: str) -> str | None:
    session: str | None = cur.execute("select session from bindings where address = ?", (address,)).get
    return session
