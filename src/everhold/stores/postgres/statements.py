"""Runs a group of statements in one round trip: they are sent together, and then their results are read.

psycopg's pipeline sends each statement by itself, and its cursors cost several times as much as the statement.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg
from psycopg.adapt import Transformer
from psycopg.generators import fetch_many, send
from psycopg.pq import ExecStatus, Format

if TYPE_CHECKING:
    from psycopg import abc
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGconn, PGresult

Rows: TypeAlias = list[tuple[Any, ...]]
Statement: TypeAlias = tuple[str, Sequence[Any] | Mapping[str, Any]]
"""SQL with a mark for each value, `%s` or `%(name)s`, and the values. The SQL says their types. A list is an array."""

BEGIN: Final = "begin"
COMMIT: Final = "commit"
_MARK: Final = re.compile(r"%(?:\((\w+)\))?s")
WAIT_SECONDS: Final = 60.0
"""psycopg wakes up so often while it waits, to notice signals. The event loop notices them itself."""


class PgConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection that knows which statements its server process has prepared."""

    is_pooled = False
    """Behind a pooler every transaction has another server process, so nothing may be prepared."""
    prepared: dict[str, bytes]
    """The names of the prepared statements."""
    numbers: Iterator[int]


async def run_statements(connection: PgConnection, statements: Sequence[Statement]) -> list[Rows]:
    """Run the statements in one round trip, and return the rows of each. After an error none of the later ones has run.

    Without `begin` they are one transaction.
    """
    encoded = [(sql, _encode_values(sql, values)) for sql, values in statements]
    async with connection.lock:
        results = await connection.wait(_run(connection, encoded), interval=WAIT_SECONDS)
    transformer = Transformer(connection)
    return [_load_rows(transformer, result) for result in results]


def _run(connection: PgConnection, statements: Sequence[tuple[str, list[bytes | None]]]) -> PQGen[list[PGresult]]:
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    sent = [_send_statement(connection, sql, values) for sql, values in statements]
    pgconn.pipeline_sync()
    yield from send(pgconn)
    results = []
    failure: PGresult | None = None
    for is_prepared_first in sent:
        if is_prepared_first:
            (result,) = yield from fetch_many(pgconn)
            failure = failure or _find_failure(result)
        (result,) = yield from fetch_many(pgconn)
        failure = failure or _find_failure(result)
        results.append(result)
    yield from fetch_many(pgconn)  # the synchronisation
    pgconn.exit_pipeline_mode()
    if failure is not None:
        connection.prepared.clear()  # some of them may not exist
        raise psycopg.errors.error_from_result(failure)
    return results


def _send_statement(connection: PgConnection, sql: str, values: list[bytes | None]) -> bool:
    """Give the statement to libpq, which gathers it. Return whether it has to be prepared, which has a result, too."""
    pgconn: PGconn = connection.pgconn
    if connection.is_pooled or sql in (BEGIN, COMMIT):  # these have no plan
        pgconn.send_query_params(_number_marks(sql)[0], values, result_format=Format.BINARY)
        return False
    name = connection.prepared.get(sql)
    is_new = name is None
    if name is None:
        name = connection.prepared[sql] = b"everhold_%d" % next(connection.numbers)
        pgconn.send_prepare(name, _number_marks(sql)[0])
    pgconn.send_query_prepared(name, values, result_format=Format.BINARY)
    return is_new


def _find_failure(result: PGresult) -> PGresult | None:
    return result if result.status == ExecStatus.FATAL_ERROR else None


def _load_rows(transformer: abc.Transformer, result: PGresult) -> Rows:
    if result.status != ExecStatus.TUPLES_OK:
        return []
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)


@functools.lru_cache(1_000)
def _number_marks(sql: str) -> tuple[bytes, list[str]]:
    """Return the SQL with `$1`, `$2` for the marks, as the server wants it, and the names of the marks."""
    names = _MARK.findall(sql)
    numbers = itertools.count(1)
    return _MARK.sub(lambda found: f"${next(numbers)}", sql).encode(), names


# -- values in PostgreSQL's text format --------------------------------------------------------------------------------


def _encode_values(sql: str, values: Sequence[Any] | Mapping[str, Any]) -> list[bytes | None]:
    if isinstance(values, Mapping):
        values = [values[name] for name in _number_marks(sql)[1]]
    return [_encode_value(value) for value in values]


def _encode_value(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        text = value
    elif isinstance(value, list):
        text = encode_array(value)
    elif isinstance(value, bytes):
        text = "\\x" + value.hex()
    else:
        text = str(value)
    if "\x00" in text:
        raise psycopg.DataError("PostgreSQL text cannot contain NUL (0x00) bytes")
    return text.encode()


def encode_array(values: Sequence[Any]) -> str:
    """Return an array in PostgreSQL's text format. A list of only texts or only numbers is encoded as a whole."""
    first = values[0] if values else None
    if isinstance(first, str):
        try:
            joined = "\x00".join(values)
        except TypeError:  # something in it is None
            return _encode_items(values)
        if joined.count("\x00") == len(values) - 1:
            return '{"' + _escape(joined).replace("\x00", '","') + '"}'
    elif isinstance(first, int | float):
        text = repr(values)
        if "'" not in text and '"' not in text:
            return "{" + text[1:-1].replace("None", "NULL") + "}"
    return _encode_items(values)


def _encode_items(values: Sequence[Any]) -> str:
    items = []
    for value in values:
        if value is None:
            items.append("NULL")
        elif isinstance(value, str):
            items.append('"' + _escape(value) + '"')
        elif isinstance(value, bytes):
            items.append('"\\\\x' + value.hex() + '"')
        else:
            items.append(repr(value))
    return "{" + ",".join(items) + "}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
