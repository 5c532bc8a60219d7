"""Small durable facts beside the log: how far platforms were read, what was spent, and content by its hash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import apsw

from everhold.errors import LeaseLost
from everhold.ports.store import Position, Spend


def move(cur: apsw.Cursor, it: Position) -> None:
    if it.expects is not None and it.expects != position(cur, platform=it.platform, account=it.account, name=it.name):
        raise LeaseLost(f"{it.platform}: {it.name} was changed or removed meanwhile")
    if not it.value:
        cur.execute(
            "delete from positions where platform = ? and account = ? and name = ?",
            (it.platform, it.account, it.name),
        )
        return
    cur.execute(
        "insert into positions(platform, account, name, value) values (?, ?, ?, ?) "
        "on conflict(platform, account, name) do update set value = excluded.value",
        (it.platform, it.account, it.name, it.value),
    )


def position(cur: apsw.Cursor, *, platform: str, account: str, name: str) -> str | None:
    value: str | None = cur.execute(
        "select value from positions where platform = ? and account = ? and name = ?", (platform, account, name)
    ).get
    return value


def positions(cur: apsw.Cursor, *, prefix: str, platform: str = "", account: str | None = None) -> list[Position]:
    found = cur.execute(
        "select platform, account, name, value from positions where substr(name, 1, ?) = ? "
        "and (? = '' or platform = ?) and (? is null or account = ?) order by platform, account, name",
        (len(prefix), prefix, platform, platform, account, account),
    )
    return [Position(platform=row[0], account=row[1], name=row[2], value=row[3]) for row in found]


def spend(cur: apsw.Cursor, spends: Iterable[Spend]) -> None:
    cur.executemany(
        "insert into spending(purse, day, usd, tokens) values (?, ?, ?, ?) "
        "on conflict(purse, day) do update set usd = usd + excluded.usd, tokens = tokens + excluded.tokens",
        [(one.purse, one.day, one.usd, one.tokens) for one in spends],
    )


def spent(cur: apsw.Cursor, purse: str, day: str) -> Spend:
    row = cur.execute("select usd, tokens from spending where purse = ? and day = ?", (purse, day)).get
    usd, tokens = (0.0, 0) if row is None else row
    return Spend(purse=purse, day=day, usd=usd, tokens=tokens)


def spending(cur: apsw.Cursor, purses: str, day: str) -> list[Spend]:
    found = cur.execute(
        "select purse, usd, tokens from spending where substr(purse, 1, ?) = ? and day = ? order by purse",
        (len(purses), purses, day),
    )
    return [Spend(purse=row[0], day=day, usd=row[1], tokens=row[2]) for row in found]


def keep(cur: apsw.Cursor, blobs: Iterable[bytes]) -> None:
    cur.executemany(
        "insert or ignore into blobs(digest, data) values (?, ?)",
        [(hashlib.sha256(data).hexdigest(), data) for data in blobs],
    )


def drop(cur: apsw.Cursor, digests: Iterable[str]) -> None:
    cur.executemany("delete from blobs where digest = ?", [(digest,) for digest in digests])


def blob(cur: apsw.Cursor, digest: str) -> bytes | None:
    data: bytes | None = cur.execute("select data from blobs where digest = ?", (digest,)).get
    return data
