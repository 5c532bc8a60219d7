"""Write a bundle for a bug report: findings, versions, log excerpts and the shape of the store.

It contains no message text, no secret and no person's id. Ids are replaced by aliases that are equal within one bundle.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
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
from everhold.telemetry.logs import SecretRedaction

MAX_LINES: Final = 2_000
MAX_LINE_CHARS: Final = 500
"""The length of a line after scrubbing. A line is scrubbed before it is cut, because half a key is not recognized."""
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
        kept: dict[str, str] = {}

        def keep(found: re.Match[str]) -> str:
            name = f"\x00{len(kept)}\x00"
            kept[name] = found[0]
            return name

        text = _SESSION.sub(keep, text)
        text = _ADDRESS.sub(lambda found: found[1] + self.make_alias(found[2]), text)
        text = _PATH.sub("~", text)
        text = _ID.sub(lambda found: self.make_alias(found[0]), text)
        text = _QUOTED.sub(lambda found: f"<{len(found[0]) - 2} characters>", text)
        for name, value in kept.items():
            text = text.replace(name, value)
        return text

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
    """Write a `.tar.gz` with these texts, readable by its owner only."""
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, text in parts.items():
            data = text.encode("utf-8", "replace")
            info = tarfile.TarInfo(f"everhold-bundle/{name}")
            info.size, info.mode = len(data), 0o600
            tar.addfile(info, io.BytesIO(data))
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
        found[f"log-{number}-{path.name}"] = _read_log_excerpt(path, scrub)
    for number, path in enumerate(stores, start=1):
        found[f"store-{number}.json"] = _dump_json(_describe_store(path, scrub))
    return found


def _read_log_excerpt(path: Path, scrub: BundleScrubber) -> str:
    """Return the lines about errors and compressions, newest last."""
    try:
        with path.open("r", encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip("\n") for line in file if _KEPT.search(line) or " error" in line.lower()]
    except OSError as error:
        return f"{error.strerror}\n"
    return "\n".join(scrub.scrub_line(line)[:MAX_LINE_CHARS] for line in lines[-MAX_LINES:]) + "\n"


def _describe_store(path: Path, scrub: BundleScrubber) -> dict[str, Any]:
    """Return a store's schema, its row counts, and its messages without their text."""
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.Error as error:
        return {"error": str(error)}
    found: dict[str, Any] = {"pages": _query_or_error(lambda: db.pragma("page_count"))}
    try:
        schema = list(db.execute("select name, sql from sqlite_master where type in ('table', 'index', 'trigger')"))
        found["schema"] = {str(name): sql for name, sql in schema if "fts_" not in str(name)}
        tables = [name for name, sql in schema if str(sql).upper().startswith("CREATE TABLE") and "_fts" not in name]
        found["rows"] = {name: _count_rows(db, name) for name in tables}
        found["shape"] = _query_or_error(
            lambda: [_scrub_shape_row(row, scrub) for row in db.execute(_build_shape_query(set(tables)))]
        )
    except apsw.Error as error:
        found["error"] = str(error)
    finally:
        db.close()
    return found


def _build_shape_query(tables: set[str]) -> str:
    if "entries" in tables:
        return (
            "select session, seq, kind, op, length(body), body is null from entries order by pos desc "
            f"limit {MAX_LINES}"
        )
    return (
        "select session_id, id, role, timestamp, length(content), active, compacted from messages "
        f"order by id desc limit {MAX_LINES}"
    )


def _scrub_shape_row(row: tuple[Any, ...], scrub: BundleScrubber) -> list[Any]:
    session, *rest = row
    return [session if _SESSION.fullmatch(str(session)) else scrub.make_alias(str(session), "session"), *rest]


def _count_rows(db: apsw.Connection, table: str) -> Any:
    return _query_or_error(lambda: db.execute(f"select count(*) from {table}").get)


def _query_or_error(query: Callable[[], Any]) -> Any:
    try:
        return query()
    except apsw.Error as error:
        return f"({error})"


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
