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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from everhold import __version__
from everhold.assembly import stores
from everhold.infra.home import write_file
from everhold.infra.safe_folder import iter_log_lines
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
_KEPT_PLACE: Final = re.compile("\x00([0-9]{1,9})\x00")
_UNSAFE_NAME: Final = re.compile(r"[^A-Za-z0-9_.-]+")
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
    report: Any, logs: Iterable[Path], files: Iterable[Path], scrub: BundleScrubber
) -> dict[str, str]:
    """Return the files of a bundle, by name."""
    found = {
        "report.json": _dump_json(scrub.scrub_value(report)),
        "versions.json": _dump_json(
            {
                "everhold": __version__,
                "python": sys.version.split()[0],
                "system": platform.platform(),
                **stores.describe_libraries(),
            }
        ),
    }
    for number, path in enumerate(logs, start=1):
        found[f"log-{number}-{_UNSAFE_NAME.sub('-', path.name)[:100]}"] = _read_log_excerpt(path, scrub)
    for number, path in enumerate(files, start=1):
        found[f"store-{number}.json"] = _dump_json(stores.describe_file(path, scrub))
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


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
