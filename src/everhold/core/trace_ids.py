"""Compute the ids of traces and spans from what they describe.

So a turn that was resumed after a crash has one trace, a repeated export has the same ids, and a log line names the
trace without asking anything.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

TRACE_ID_CHARS: Final = 32
SPAN_ID_CHARS: Final = 16
OPERATION_SPAN: Final = "operation"
"""The name of an operation's root span."""


@lru_cache(maxsize=256)
def make_trace_id(session: str, *parts: str | int) -> str:
    """Return the id of the trace of an operation, or of what else `parts` name, in lowercase hex."""
    return _digest("trace", session, *parts)[:TRACE_ID_CHARS]


@lru_cache(maxsize=256)
def make_span_id(trace: str, *parts: str | int) -> str:
    """Return the id of a span of a trace, in lowercase hex."""
    return _digest("span", trace, *parts)[:SPAN_ID_CHARS]


def _digest(*parts: str | int) -> str:
    return hashlib.sha256("\t".join(map(str, parts)).encode("utf-8", "surrogatepass")).hexdigest()
