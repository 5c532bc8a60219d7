"""A forgetting reads every session, however large it is, with a bounded amount of memory."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from everhold.admin.personal_data import PersonalData
from everhold.core.erasure import ErasureMoment
from everhold.testing.gateway import InProcessGateway

T = TypeVar("T")

NOTES: Final = 30
NOTE_CHARS: Final = 500_000
MOST_BYTES: Final = 8 << 20
"""About half of what the session contains."""


def measure(gateway: InProcessGateway, work: Coroutine[Any, Any, T]) -> tuple[T, int]:
    """Return a result, and how many bytes were held at once for it."""
    tracemalloc.start()
    try:
        return gateway.run(work), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_large_session_is_read_in_pages(gateway: InProcessGateway) -> None:
    gateway.send_message("hello")
    (session,) = gateway.run(gateway.store.list_sessions())
    for number in range(NOTES):
        gateway.run(gateway.control.add_note(session.id, f"{number} {'x' * NOTE_CHARS}"))
    data, upto = PersonalData(gateway.control), ErasureMoment(2**53, math.inf)
    parts, peak = measure(gateway, data.list_parts({"ada": 0.0}, upto=upto))
    assert len(parts[0].seqs) > NOTES
    assert peak < MOST_BYTES, "her session"
    nothing, peak = measure(gateway, data.list_parts({"eve": 0.0}, upto=upto))
    assert (nothing, peak < MOST_BYTES) == ([], True), "a session of somebody else"
    nobody, peak = measure(gateway, data.list_sessions_of(["eve"]))
    assert (nobody, peak < MOST_BYTES) == ([], True), "whether she spoke"
    audiences, peak = measure(gateway, data.list_audiences(parts))
    assert audiences
    assert peak < MOST_BYTES, "who could read it"
