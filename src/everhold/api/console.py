"""Serves the files of the console, read once at the start. They contain code and no data; data comes from the API."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from starlette.responses import Response

from everhold.api.request import ApiCall
from everhold.errors import NotFound

CONSOLE_DIRECTORY: Final = Path(__file__).parent.parent / "console"
MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX_NAME: Final = "index.html"


class ConsoleFile(Struct, frozen=True):
    content: bytes
    type: str
    tag: str


class ConsoleFiles:
    """The files that the browser loads."""

    def __init__(self, directory: Path = CONSOLE_DIRECTORY) -> None:
        self.files = dict(_read_files(directory))

    async def get_index(self, call: ApiCall) -> Response:
        """Return the console's HTML."""
        return self._serve_file(INDEX_NAME, call)

    async def get_file(self, call: ApiCall) -> Response:
        """Return a script, style sheet or image of the console."""
        return self._serve_file(call.path["name"], call)

    def _serve_file(self, name: str, call: ApiCall) -> Response:
        file = self.files.get(name)
        if file is None:
            raise NotFound(f"the console has no file {name!r}")
        headers = {"etag": file.tag, "cache-control": "no-cache"}
        if call.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.type, headers=headers)


def _read_files(directory: Path) -> Iterator[tuple[str, ConsoleFile]]:
    for path in sorted(directory.iterdir()):
        if path.suffix in MEDIA_TYPES:
            content = path.read_bytes()
            yield (
                path.name,
                ConsoleFile(content, MEDIA_TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"'),
            )
