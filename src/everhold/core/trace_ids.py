"""Compute the ids of traces and spans from what they describe.

So a turn that was resumed after a crash has one trace, a repeated export has the same ids, and a log line names the
trace without asking anything.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final, NamedTuple

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


_PARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.{0,200})?", re.ASCII)
_NOTHING_FOLLOWS: Final = "00"
"""The version of `traceparent` whose fields are all known."""


class SpanReference(NamedTuple):
    """A span, perhaps one of another program."""

    trace_id: str
    span_id: str

    @property
    def traceparent(self) -> str:
        """The header that names this span to another program."""
        return f"00-{self.trace_id}-{self.span_id}-01"


def parse_traceparent(text: str) -> SpanReference | None:
    """Return the span that a `traceparent` header of W3C Trace Context names; None if it is not valid."""
    found = _PARENT.fullmatch(text.strip())
    if found is None or (found[4] and found[1] == _NOTHING_FOLLOWS):
        return None
    reference = SpanReference(found[2], found[3])
    return reference if int(reference.trace_id, 16) and int(reference.span_id, 16) else None


def _digest(*parts: str | int) -> str:
    return hashlib.sha256("\t".join(map(str, parts)).encode("utf-8", "surrogatepass")).hexdigest()
