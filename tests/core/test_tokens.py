"""Estimates without a tokenizer: never shrinking, calibrated by what models report, bounded against nonsense."""

from __future__ import annotations

from hypothesis import given, strategies as st

from everhold.core.entries import Attachment, Call
from everhold.core.tokens import (
    LEAST,
    MOST,
    UNCALIBRATED,
    ceiling,
    expected,
    observe,
    weigh,
    weigh_message,
    weigh_messages,
    weigh_request,
)
from everhold.ports.model import Message, Request, ToolSpec


@given(st.text(), st.text())
def test_more_text_never_weighs_less(text: str, more: str) -> None:
    assert weigh(text) <= weigh(text + more) <= weigh(text) + weigh(more)


def test_bytes_by_four() -> None:
    assert weigh("") == 0
    assert weigh("abcd") == 1
    assert weigh("abcde") == 2
    assert weigh("äöüß") == 2
    assert weigh("😀") == 1
    assert weigh("\ud800") == 1


def test_everything_a_model_reads_is_weighed() -> None:
    plain = Message(role="user", text="hello")
    assert weigh_message(Message(role="user", text="hello", name="Ada")) > weigh_message(plain)
    call = Call(id="1", tool="note", arguments={"text": "x" * 400})
    assert weigh_message(Message(role="assistant", calls=(call,))) > 100
    image = Attachment(blob="b", media="image/png")
    assert weigh_message(Message(role="user", attachments=(image,))) > 1000
    tool = ToolSpec(name="note", description="d" * 400, parameters={"type": "object"})
    bare = Request(system="", messages=(plain,))
    assert weigh_request(Request(system="s" * 400, messages=(plain,), tools=(tool,))) >= weigh_request(bare) + 200
    assert weigh_messages([plain, plain]) == 2 * weigh_message(plain)


@given(st.floats(0.5, 2.0), st.lists(st.integers(100, 100_000), min_size=15, max_size=30))
def test_a_steady_model_is_learned(true: float, weights: list[int]) -> None:
    calibration = UNCALIBRATED
    for weight in weights:
        calibration = observe(calibration, weight=weight, tokens=round(weight * true))
    for weight in weights:
        assert abs(expected(weight, calibration) - weight * true) <= 0.02 * weight * true + 2
        assert ceiling(weight, calibration) >= int(weight * true)
        assert ceiling(weight, calibration) <= weight * true * 1.5 + 2


def test_an_exchanged_model_is_learned_anew() -> None:
    calibration = UNCALIBRATED
    for _ in range(200):
        calibration = observe(calibration, weight=1000, tokens=800)
    for _ in range(60):
        calibration = observe(calibration, weight=1000, tokens=1500)
    assert 1.45 < calibration.ratio < 1.55


@given(st.lists(st.tuples(st.integers(-5, 10**9), st.integers(-5, 10**9))))
def test_no_report_can_ruin_it(reports: list[tuple[int, int]]) -> None:
    calibration = UNCALIBRATED
    for weight, tokens in reports:
        calibration = observe(calibration, weight=weight, tokens=tokens)
    assert LEAST <= calibration.ratio <= MOST
    assert 0 < calibration.spread <= 1
    assert expected(1000, calibration) <= ceiling(1000, calibration)


def test_what_says_nothing_teaches_nothing() -> None:
    assert observe(UNCALIBRATED, weight=10, tokens=90) == UNCALIBRATED
    assert observe(UNCALIBRATED, weight=1000, tokens=0) == UNCALIBRATED
