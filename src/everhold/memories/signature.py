"""Computes the signature of a memory instance: texts that change when its settings change."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from everhold.infra.secret import SecretString

if TYPE_CHECKING:
    from pydantic import BaseModel


def compute_signature(provider: str, settings: BaseModel) -> dict[str, str]:
    """Return `provider.key -> value` for every setting. A secret appears as a fingerprint, so a corrected key is a
    change.
    """
    return {f"{provider}.{name}": _format_setting(getattr(settings, name)) for name in type(settings).model_fields}


def _format_setting(value: object) -> str:
    if isinstance(value, SecretString):
        return hashlib.sha256(value.reveal().encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return repr(sorted(value.items()) if isinstance(value, dict) else value)
