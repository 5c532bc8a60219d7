"""Write a bundle for a bug report: findings, versions, log excerpts and the shape of the store.

It contains no message text, no secret and no person's id. Ids are replaced by aliases that are equal within one bundle.
"""

from __future__ import annotations

import collections
import hashlib
import io
import json
import platform
import re
import secrets
import sys
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import apsw

from everhold import __version__
from everhold.infra.home import write_file
from everhold.infra.safe_folder import iter_log_lines
from everhold.telemetry.logs import SecretRedaction

MAX_LINES: Final = 2_000
MAX_LINE_CHARS: Final = 500
"""The length of a line after scrubbing. A line is scrubbed before it is cut, because half a key is not recognized."""
MAX_SCHEMA_CHARS: Final = 4_000
_ADDRESS: Final = re.compile(r"(agent:[^:\s]+:[^:\s]+:[^:\s]+:)([^\s'\",;)\]}]*[\w+/=-])")
_ID: Final = re.compile(
    r"[@!#$][\w.=/+-]+:[\w.-]+\w(?::\d+)?"  # at a server
    r"|(?<![\w.-])[@#!-]?\d{5,}(?!\w)"
    r"|(?<![\w-])[A-Z](?=[A-Z]*\d)[A-Z0-9]{8,}(?![\w-])"
    r"|[\w.+-]{1,64}@[\w-]{1,255}\.[\w.]+"
    r"|@[A-Za-z]\w{2,}"
)
_QUOTED: Final = re.compile(r"'[^']{3,}'|\"[^\"]{3,}\"|«[^»]*(?:»|\Z)")
_PATH: Final = re.compile(r"/(?:home|Users)/[^/\s]+")
_KEPT: Final = re.compile(r"compression|WARNING|ERROR|CRITICAL|Traceback")
_KEPT_PLACE: Final = re.compile("\x00([0-9]{1,9})\x00")
_UNSAFE_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_WORD: Final = re.compile(r"[a-z_]{1,20}")
_SELECT_SCHEMA: Final = (
    "select cast(name as blob), cast(sql as blob) from sqlite_master where type in ('table', 'index', 'trigger') "
    "limit 500"
)
_SESSION: Final = re.compile(r"\d{8}_\d{6}_[0-9a-f]{6,8}")


class BundleScrubber:
    """Replaces secrets, ids and quoted text. Equal ids get equal aliases."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._salt = secrets.token_bytes(16)
        self._redaction = SecretRedaction()
        self._redaction.add_secrets(*known)

    def make_alias(self, text: str, kind: str = "id") -> str:
        """Return an alias that is equal for equal texts and does not reveal them."""
        return f"{kind}-{hashlib.blake2b(text.encode(), key=self._salt, digest_size=4).hexdigest()}"

    def scrub_line(self, text: str) -> str:
        """Scrub a line of a log or a report. Removes names and texts of people and keeps the other words."""
        text = self._redaction.scrub_text(text)
        kept: list[str] = []

        def keep(found: re.Match[str]) -> str:
            kept.append(found[0])
            return f"\x00{len(kept) - 1}\x00"

        text = _SESSION.sub(keep, text)
        text = _ADDRESS.sub(lambda found: found[1] + self.make_alias(found[2]), text)
        text = _PATH.sub("~", text)
        text = _ID.sub(lambda found: self.make_alias(found[0]), text)
        text = _QUOTED.sub(lambda found: f"<{len(found[0]) - 2} characters>", text)
        return _KEPT_PLACE.sub(lambda found: kept[int(found[1])] if int(found[1]) < len(kept) else "", text)

    def scrub_value(self, value: Any) -> Any:
        match value:
            case str():
                return self.scrub_line(value)
            case Mapping():
                return {self.scrub_line(str(key)): self.scrub_value(item) for key, item in value.items()}
            case list() | tuple():
                return [self.scrub_value(item) for item in value]
            case _:
                return value


def write_bundle(target: Path, parts: Mapping[str, str]) -> Path:
    """Write a `.tar.gz` with these texts, readable by its owner only. A link at `target` is replaced, not followed."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in parts.items():
            data = text.encode("utf-8", "replace")
            info = tarfile.TarInfo(f"everhold-bundle/{name}")
            info.size, info.mode = len(data), 0o600
            tar.addfile(info, io.BytesIO(data))
    write_file(target, packed.getvalue())
    return target


def collect_bundle_parts(
    report: Any, logs: Iterable[Path], stores: Iterable[Path], scrub: BundleScrubber
) -> dict[str, str]:
    """Return the files of a bundle, by name."""
    found = {
        "report.json": _dump_json(scrub.scrub_value(report)),
        "versions.json": _dump_json(
            {
                "everhold": __version__,
                "python": sys.version.split()[0],
                "system": platform.platform(),
                "apsw": apsw.apsw_version(),
                "sqlite": apsw.sqlite_lib_version(),
            }
        ),
    }
    for number, path in enumerate(logs, start=1):
        found[f"log-{number}-{_UNSAFE_NAME.sub('-', path.name)[:100]}"] = _read_log_excerpt(path, scrub)
    for number, path in enumerate(stores, start=1):
        found[f"store-{number}.json"] = _dump_json(_describe_store(path, scrub))
    return found


def _read_log_excerpt(path: Path, scrub: BundleScrubber) -> str:
    """Return the lines about errors and compressions, newest last."""
    try:
        lines = collections.deque(
            (line for line in iter_log_lines(path, newest=True) if _KEPT.search(line) or " error" in line.lower()),
            maxlen=MAX_LINES,
        )
    except OSError as error:
        return f"not read: {error.strerror}\n"
    return "\n".join(scrub.scrub_line(line)[:MAX_LINE_CHARS] for line in lines) + "\n"


def _describe_store(path: Path, scrub: BundleScrubber) -> dict[str, Any]:
    """Return a store's schema, its row counts, and its messages without their text."""
    if not path.is_file():  # opening a pipe would wait for its writer
        return {"error": "there is no such file"}
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.Error as error:
        return {"error": str(error)}
    found: dict[str, Any] = {"pages": _query_or_error(lambda: db.pragma("page_count"))}
    try:
        # The store may be foreign: no view or function of its schema may do anything.
        db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0)
        schema = list(db.execute(_SELECT_SCHEMA))
        found["schema"] = {
            scrub.scrub_line(_read_text(name)): scrub.scrub_line(_read_text(sql)[:MAX_SCHEMA_CHARS])
            for name, sql in schema
            if b"fts_" not in name
        }
        tables = [
            _read_text(name)
            for name, sql in schema
            if _read_text(sql).upper().startswith("CREATE TABLE") and b"_fts" not in name
        ]
        found["rows"] = {scrub.scrub_line(name): _count_rows(db, name) for name in tables}
        if query := _build_shape_query(set(tables)):
            found["shape"] = _query_or_error(lambda: [_scrub_shape_row(row, scrub) for row in db.execute(query)])
    except apsw.Error as error:
        found["error"] = scrub.scrub_line(str(error))
    finally:
        db.close()
    return found


def _read_text(value: bytes | str | None) -> str:
    """Return a foreign text. It is selected as bytes, because it need not be UTF-8."""
    return value if isinstance(value, str) else (value or b"").decode("utf-8", "replace")


def _build_shape_query(tables: set[str]) -> str:
    """Return the query for messages without their text; empty if there are none. It selects nothing but numbers and
    known words, and ids, which are replaced."""
    if "entries" in tables:
        return (
            "select cast(session as blob), seq, cast(kind as blob), op, length(body), body is null from entries "
            f"order by pos desc limit {MAX_LINES}"
        )
    if "messages" in tables:
        return (
            "select cast(session_id as blob), id, cast(role as blob), timestamp, length(content), active, compacted "
            f"from messages order by id desc limit {MAX_LINES}"
        )
    return ""


def _scrub_shape_row(row: tuple[Any, ...], scrub: BundleScrubber) -> list[Any]:
    session, *rest = row
    name = _read_text(session)
    return [
        name if _SESSION.fullmatch(name) else scrub.make_alias(name, "session"),
        *(it if it is None or isinstance(it, int | float) else _scrub_word(_read_text(it)) for it in rest),
    ]


def _scrub_word(word: str) -> str:
    """Return a kind or role, and nothing that another program may have stored in its place."""
    return word if _WORD.fullmatch(word) else f"<{len(word)} characters>"


def _count_rows(db: apsw.Connection, table: str) -> Any:
    quoted = table.replace('"', '""')
    return _query_or_error(lambda: db.execute(f'select count(*) from "{quoted}"').get)


def _query_or_error(query: Callable[[], Any]) -> Any:
    try:
        return query()
    except (apsw.Error, UnicodeDecodeError) as error:
        return f"({type(error).__name__})"


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
