"""A report for a bug tracker: what is wrong, how things are set, what the logs say. No message text, no secret, no
person's id: those are replaced by names that stay the same within one bundle.
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
from everhold.logs import Redaction

MOST_LINES: Final = 2_000
MOST_CHARACTERS: Final = 500
"""Of a line, once it is scrubbed: half a key is not known for one."""
_ADDRESS: Final = re.compile(r"(agent:[^:\s]+:[^:\s]+:[^:\s]+:)([^\s'\",;)\]}]*[\w+/=-])")
_ID: Final = re.compile(
    r"[@!#$][\w.=/+-]+:[\w.-]+\w(?::\d+)?"  # at a server
    r"|(?<![\w.-])[@#!-]?\d{5,}(?!\w)"
    r"|(?<![\w-])[A-Z](?=[A-Z]*\d)[A-Z0-9]{8,}(?![\w-])"
    r"|[\w.+-]+@[\w-]+\.[\w.]+"
    r"|@[A-Za-z]\w{2,}"
)
_QUOTED: Final = re.compile(r"'[^']{3,}'|\"[^\"]{3,}\"|«[^»]*»")
_PATH: Final = re.compile(r"/(?:home|Users)/[^/\s]+")
_KEPT: Final = re.compile(r"compression|WARNING|ERROR|CRITICAL|Traceback")
_SESSION: Final = re.compile(r"\d{8}_\d{6}_[0-9a-f]{6,8}")


class Scrubber:
    """Takes away what is nobody's business, and lets what belongs together look alike."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._salt = secrets.token_bytes(16)
        self._redaction = Redaction()
        self._redaction.hide(*known)

    def alias(self, text: str, kind: str = "id") -> str:
        """The same for the same text, and nothing to guess it from."""
        return f"{kind}-{hashlib.blake2b(text.encode(), key=self._salt, digest_size=4).hexdigest()}"

    def line(self, text: str) -> str:
        """A line of a log or a report: its words stay, what people wrote or are called does not."""
        text = self._redaction.scrub(text)
        kept: dict[str, str] = {}

        def keep(found: re.Match[str]) -> str:
            name = f"\x00{len(kept)}\x00"
            kept[name] = found[0]
            return name

        text = _SESSION.sub(keep, text)
        text = _ADDRESS.sub(lambda found: found[1] + self.alias(found[2]), text)
        text = _PATH.sub("~", text)
        text = _ID.sub(lambda found: self.alias(found[0]), text)
        text = _QUOTED.sub(lambda found: f"<{len(found[0]) - 2} characters>", text)
        for name, value in kept.items():
            text = text.replace(name, value)
        return text

    def value(self, value: Any) -> Any:
        match value:
            case str():
                return self.line(value)
            case Mapping():
                return {self.line(str(key)): self.value(item) for key, item in value.items()}
            case list() | tuple():
                return [self.value(item) for item in value]
            case _:
                return value


def write(target: Path, parts: Mapping[str, str]) -> Path:
    """A `.tar.gz` with these texts, readable by its owner only."""
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, text in parts.items():
            data = text.encode("utf-8", "replace")
            info = tarfile.TarInfo(f"everhold-bundle/{name}")
            info.size, info.mode = len(data), 0o600
            tar.addfile(info, io.BytesIO(data))
    return target


def parts(report: Any, logs: Iterable[Path], stores: Iterable[Path], scrub: Scrubber) -> dict[str, str]:
    """What goes into a bundle."""
    found = {
        "report.json": _json(scrub.value(report)),
        "versions.json": _json(
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
        found[f"log-{number}-{path.name}"] = _log(path, scrub)
    for number, path in enumerate(stores, start=1):
        found[f"store-{number}.json"] = _json(_store(path, scrub))
    return found


def _log(path: Path, scrub: Scrubber) -> str:
    """The lines about trouble and compressions, newest last."""
    try:
        with path.open("r", encoding="utf-8", errors="replace") as file:
            lines = [line.rstrip("\n") for line in file if _KEPT.search(line) or " error" in line.lower()]
    except OSError as error:
        return f"{error.strerror}\n"
    return "\n".join(scrub.line(line)[:MOST_CHARACTERS] for line in lines[-MOST_LINES:]) + "\n"


def _store(path: Path, scrub: Scrubber) -> dict[str, Any]:
    """A store's shape: its tables and how full they are, and of its messages everything but what they say."""
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    except apsw.Error as error:
        return {"error": str(error)}
    found: dict[str, Any] = {"pages": _try(lambda: db.pragma("page_count"))}
    try:
        schema = list(db.execute("select name, sql from sqlite_master where type in ('table', 'index', 'trigger')"))
        found["schema"] = {str(name): sql for name, sql in schema if "fts_" not in str(name)}
        tables = [name for name, sql in schema if str(sql).upper().startswith("CREATE TABLE") and "_fts" not in name]
        found["rows"] = {name: _count(db, name) for name in tables}
        found["shape"] = _try(lambda: [_shaped(row, scrub) for row in db.execute(_shape_of(set(tables)))])
    except apsw.Error as error:
        found["error"] = str(error)
    finally:
        db.close()
    return found


def _shape_of(tables: set[str]) -> str:
    if "entries" in tables:
        return (
            "select session, seq, kind, op, length(body), body is null from entries order by pos desc "
            f"limit {MOST_LINES}"
        )
    return (
        "select session_id, id, role, timestamp, length(content), active, compacted from messages "
        f"order by id desc limit {MOST_LINES}"
    )


def _shaped(row: tuple[Any, ...], scrub: Scrubber) -> list[Any]:
    session, *rest = row
    return [session if _SESSION.fullmatch(str(session)) else scrub.alias(str(session), "session"), *rest]


def _count(db: apsw.Connection, table: str) -> Any:
    return _try(lambda: db.execute(f"select count(*) from {table}").get)


def _try(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except apsw.Error as error:
        return f"({error})"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
