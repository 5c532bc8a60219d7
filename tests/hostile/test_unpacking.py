"""An archive or a picture in a message can be a bomb only for who unpacks or decodes it. Nothing here does."""

from __future__ import annotations

import ast
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

import everhold
from everhold.core import recall_blobs
from everhold.core.recall_blobs import PACKED, read_record

SOURCE: Final = Path(everhold.__file__).parent
DECODERS: Final = frozenset(
    "PIL bz2 cairosvg cv2 gzip imageio libarchive lzma py7zr pypdf rarfile tarfile zipfile zlib zstandard".split()
)
"""Modules that unpack archives or decode pictures."""
ALLOWED: Final = {
    "core/recall_blobs.py": {"zlib"},  # our own records, up to a limit
    "doctor/bundle.py": {"tarfile"},  # it only writes
    "infra/fetch.py": {"zlib"},  # the answers of servers, up to a limit
    "infra/http1.py": {"zlib"},  # the same
    "memories/builtin/indexing.py": {"zlib"},  # a checksum
    "stores/postgres/writer.py": {"zlib"},  # a checksum
}


def find_decoders(text: str) -> Iterator[str]:
    """Return the decoders that a module uses."""
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [it.name for it in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Attribute) and node.attr == "unpack_archive":
            yield node.attr
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            names = [str(node.args[0].value)] if "import" in ast.unparse(node.func) else []
        yield from ({name.partition(".")[0] for name in names} & DECODERS)


def test_nothing_unpacks_or_decodes_what_others_sent() -> None:
    found = {
        path.relative_to(SOURCE).as_posix(): used
        for path in SOURCE.rglob("*.py")
        if (used := set(find_decoders(path.read_text(encoding="utf-8"))))
    }
    assert found == ALLOWED


@pytest.mark.parametrize(
    "text, used",
    [
        ("def f():\n    import zipfile", "zipfile"),
        ("from PIL.Image import open", "PIL"),
        ("importlib.import_module('tarfile')", "tarfile"),
        ("shutil.unpack_archive('x.zip')", "unpack_archive"),
    ],
)
def test_a_planted_decoder_is_found(text: str, used: str) -> None:
    assert list(find_decoders(text)) == [used]


def test_a_record_that_is_a_bomb_is_refused() -> None:
    """Such a blob can be in a store that was restored."""
    bomb = PACKED + zlib.compress(b'"' + b" " * (recall_blobs.MAX_UNPACKED_BYTES + 1), 9)
    assert len(bomb) < 100_000
    with pytest.raises(msgspec.DecodeError, match="more than 67,108,864 bytes"):
        read_record(bomb)
    with pytest.raises(zlib.error, match="incomplete"):
        recall_blobs.list_text_places(bomb[:-20])
