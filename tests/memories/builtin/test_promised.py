"""The promised numbers of the built-in memory, on the promised data (`make prove`, if the data is there)."""

from __future__ import annotations

import asyncio

import pytest

from bench.recall import fresh, quality, speed
from bench.recall.data import ABSENT, DATA, beam, locomo
from everhold.memories.builtin import onnx_embeddings
from everhold.memories.builtin.embeddings import EmbeddingsMode

pytestmark = pytest.mark.prove
SETS = {"LoCoMo": locomo, "BEAM": beam}
PROMISED: dict[tuple[str, EmbeddingsMode], tuple[float, float]] = {
    ("LoCoMo", "table"): (0.76, 0.86),
    ("LoCoMo", "auto"): (0.80, 0.89),
    ("BEAM", "table"): (0.54, 0.0),
    ("BEAM", "auto"): (0.60, 0.0),
}
"""The share of the evidence that must be among ten items and within 1,700 tokens."""


@pytest.mark.parametrize("name, use", PROMISED)
def test_the_promised_recall_is_reached(name: str, use: EmbeddingsMode) -> None:
    if use == "auto" and not onnx_embeddings.is_available():
        pytest.skip("needs the weights of the extra [embeddings]")
    talks = SETS[name](DATA)
    if not talks:
        pytest.skip(ABSENT)
    at_10, in_budget = PROMISED[name, use]
    score = asyncio.run(quality.measure(talks, use=use))
    assert score.at_10 >= at_10
    assert score.in_budget >= in_budget


def test_a_search_in_a_hundred_thousand_entries_takes_less_than_twenty_milliseconds() -> None:
    times = asyncio.run(speed.measure(100_000, use="table"))
    assert times.cpu_p95_ms < 20.0  # CPU time, because other processes may be busy


def test_indexing_a_turn_takes_less_than_half_a_millisecond() -> None:
    assert min(asyncio.run(speed.measure(10_000, use="table")).turn_ms for _ in range(3)) < 0.5


def test_a_note_is_found_within_ten_milliseconds_of_its_commit() -> None:
    assert asyncio.run(fresh.measure(10_000)).cpu_ms < 10.0
