"""Estimates without a tokenizer: never shrinking, calibrated by what models report, bounded against nonsense."""

from __future__ import annotations

from hypothesis import given, strategies as st

from everhold.core.entries import Attachment, ToolCall
from everhold.core.tokens import (
    MAX_RATIO,
    MIN_RATIO,
    UNCALIBRATED,
    estimate_max_tokens,
    estimate_tokens,
    update_calibration,
    weigh_message,
    weigh_messages,
    weigh_request,
    weigh_text,
)
from everhold.ports.model import ModelMessage, ModelRequest, ToolSpec


@given(st.text(), st.text())
def test_more_text_never_has_fewer_tokens(text: str, more: str) -> None:
    assert weigh_text(text) <= weigh_text(text + more) <= weigh_text(text) + weigh_text(more)


def test_the_estimate_is_bytes_divided_by_four() -> None:
    assert weigh_text("") == 0
    assert weigh_text("abcd") == 1
    assert weigh_text("abcde") == 2
    assert weigh_text("äöüß") == 2
    assert weigh_text("😀") == 1
    assert weigh_text("\ud800") == 1


def test_every_part_of_a_request_is_counted() -> None:
    plain = ModelMessage(role="user", text="hello")
    assert weigh_message(ModelMessage(role="user", text="hello", name="Ada")) > weigh_message(plain)
    call = ToolCall(id="1", tool="note", arguments={"text": "x" * 400})
    assert weigh_message(ModelMessage(role="assistant", calls=(call,))) > 100
    image = Attachment(blob="b", media="image/png")
    assert weigh_message(ModelMessage(role="user", attachments=(image,))) > 1000
    tool = ToolSpec(name="note", description="d" * 400, parameters={"type": "object"})
    bare = ModelRequest(system="", messages=(plain,))
    assert weigh_request(ModelRequest(system="s" * 400, messages=(plain,), tools=(tool,))) >= weigh_request(bare) + 200
    assert weigh_messages([plain, plain]) == 2 * weigh_message(plain)


@given(st.floats(0.5, 2.0), st.lists(st.integers(100, 100_000), min_size=15, max_size=30))
def test_the_calibration_converges_for_a_steady_model(true: float, weights: list[int]) -> None:
    calibration = UNCALIBRATED
    for weight in weights:
        calibration = update_calibration(calibration, weight=weight, tokens=round(weight * true))
    for weight in weights:
        assert abs(estimate_tokens(weight, calibration) - weight * true) <= 0.02 * weight * true + 2
        assert estimate_max_tokens(weight, calibration) >= int(weight * true)
        assert estimate_max_tokens(weight, calibration) <= weight * true * 1.5 + 2


def test_the_calibration_follows_a_changed_model() -> None:
    calibration = UNCALIBRATED
    for _ in range(200):
        calibration = update_calibration(calibration, weight=1000, tokens=800)
    for _ in range(60):
        calibration = update_calibration(calibration, weight=1000, tokens=1500)
    assert 1.45 < calibration.ratio < 1.55


@given(st.lists(st.tuples(st.integers(-5, 10**9), st.integers(-5, 10**9))))
def test_no_report_moves_the_calibration_out_of_bounds(reports: list[tuple[int, int]]) -> None:
    calibration = UNCALIBRATED
    for weight, tokens in reports:
        calibration = update_calibration(calibration, weight=weight, tokens=tokens)
    assert MIN_RATIO <= calibration.ratio <= MAX_RATIO
    assert 0 < calibration.spread <= 1
    assert estimate_tokens(1000, calibration) <= estimate_max_tokens(1000, calibration)


def test_an_unusable_report_changes_nothing() -> None:
    assert update_calibration(UNCALIBRATED, weight=10, tokens=90) == UNCALIBRATED
    assert update_calibration(UNCALIBRATED, weight=1000, tokens=0) == UNCALIBRATED
