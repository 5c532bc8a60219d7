"""Tags of a Hindsight document that say which entry it was made of. Metadata would get into the service's prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

KEY_TAG: Final = "key:"
SEQ_TAG: Final = "seq:"
SPEAKER_TAG: Final = "speaker:"


def read_tag(tags: Sequence[str], prefix: str) -> str:
    return next((tag.removeprefix(prefix) for tag in tags if tag.startswith(prefix)), "")


def read_document_key(document: Any) -> str:
    """Return the key of the item that a document was made of. Earlier versions stored it as metadata."""
    about = document.document_metadata or {}
    return read_tag(document.tags or (), KEY_TAG) or str(about.get("everhold", ""))
