"""Alters the database directly, and makes the digests match again."""

from __future__ import annotations

from pathlib import Path

import apsw

from everhold.core.entries import (
    BODY_VERSION,
    EntryBody,
    EntryKind,
    compute_entry_digest,
    decode_body,
    encode_body,
    get_body_kind,
)

SALT = b"0123456789abcdef"


class StoreForger:
    def __init__(self, path: Path) -> None:
        self.db = apsw.Connection(str(path))

    def close(self) -> None:
        self.db.close()

    def body(self, session: str, seq: int) -> EntryBody:
        kind, text = next(
            self.db.execute("select kind, body from entries where session = ? and seq = ?", (session, seq))
        )
        return decode_body(EntryKind(str(kind)), str(text))

    def rewrite(self, session: str, seq: int, body: EntryBody) -> None:
        """Another body in the place of the one that was written, with a digest that fits."""
        self.db.execute(
            "update entries set body = ?, kind = ? where session = ? and seq = ?",
            (encode_body(body), str(get_body_kind(body)), session, seq),
        )
        self.seal(session, seq)

    def append(self, session: str, *bodies: tuple[EntryBody, int | None]) -> int:
        """Append forged entries, each with its operation (None: itself); return the seq of the first."""
        (first,) = next(self.db.execute("select next_seq from sessions where id = ?", (session,)))
        assert isinstance(first, int)
        for seq, (body, op) in enumerate(bodies, start=first):
            self.db.execute(
                "insert into entries(session, seq, kind, op, author, at, version, body, salt, digest) "
                "values (?, ?, ?, ?, 'system', 1, ?, ?, ?, x'')",
                (
                    session,
                    seq,
                    str(get_body_kind(body)),
                    seq if op is None else op,
                    BODY_VERSION,
                    encode_body(body),
                    SALT,
                ),
            )
            self.seal(session, seq)
        self.db.execute("update sessions set next_seq = ? where id = ?", (first + len(bodies), session))
        return first

    def move(self, session: str, seq: int, *, to: str, at: int) -> None:
        """An entry into another session, as if it had been written there."""
        self.db.execute("update entries set session = ?, seq = ? where session = ? and seq = ?", (to, at, session, seq))
        self.seal(to, at)

    def seal(self, session: str, seq: int) -> None:
        kind, op, author, at, body = next(
            self.db.execute(
                "select kind, op, author, at, body from entries where session = ? and seq = ?", (session, seq)
            )
        )
        assert op is None or isinstance(op, int)
        assert isinstance(at, float)
        made = compute_entry_digest(
            salt=SALT, session=session, seq=seq, kind=str(kind), op=op, author=str(author), at=at, body=str(body)
        )
        self.db.execute(
            "update entries set salt = ?, digest = ? where session = ? and seq = ?", (SALT, made, session, seq)
        )
