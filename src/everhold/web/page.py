"""The page in the browser: a few files, read once. They hold code and no data; what is shown comes through the API."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from starlette.responses import Response

from everhold.errors import NotFound
from everhold.web.call import Call

DIRECTORY: Final = Path(__file__).parent / "static"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
INDEX: Final = "index.html"


class File(Struct, frozen=True):
    content: bytes
    type: str
    tag: str


class Page:
    """Everything the browser loads."""

    def __init__(self, directory: Path = DIRECTORY) -> None:
        self.files = dict(_read(directory))

    async def index(self, call: Call) -> Response:
        """The page."""
        return self._give(INDEX, call)

    async def file(self, call: Call) -> Response:
        """A part of the page."""
        return self._give(call.path["name"], call)

    def _give(self, name: str, call: Call) -> Response:
        file = self.files.get(name)
        if file is None:
            raise NotFound(f"the page has no {name!r}")
        headers = {"etag": file.tag, "cache-control": "no-cache"}
        if call.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.type, headers=headers)


def _read(directory: Path) -> Iterator[tuple[str, File]]:
    for path in sorted(directory.iterdir()):
        if path.suffix in TYPES:
            content = path.read_bytes()
            yield path.name, File(content, TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
