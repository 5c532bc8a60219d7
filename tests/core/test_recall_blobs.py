"""What is stored of a recall refers to entries, restores exactly, and older forms can be read."""

from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given, strategies as st

from everhold.core import recall_blobs
from everhold.core.recall import (
    RecalledItem,
    RecallRecord,
    RecallTarget,
    RecallTrace,
    merge_results,
    quote_items,
    trace_item,
)
from everhold.core.recall_blobs import (
    TextSource,
    list_text_places,
    pack_record,
    pack_text,
    read_record,
    restore_text,
)
from everhold.ports.memory import MemoryHit

DELIMITER = "0123456789abcdef"


def quote(texts: list[str]) -> tuple[str, list[TextSource], tuple[RecalledItem, ...]]:
    hits = [
        MemoryHit(text=text, session=f"{number % 5:026d}", seq=number + 1, person="ada", at=86_400.5 * number)
        for number, text in enumerate(texts)
    ]
    shown = merge_results({"builtin": hits}, budget=1_700).shown
    sources = [TextSource(it.hit.session, it.hit.seq, it.hit.text, it.hit.text) for it in shown]
    return quote_items(shown, DELIMITER), sources, shown


def collect(sources: list[TextSource]) -> dict[tuple[str, int], str]:
    return {(it.session, it.seq): it.text for it in sources}


@given(st.lists(st.text(max_size=300), max_size=12))
def test_a_text_restores_byte_for_byte(texts: list[str]) -> None:
    block, sources, _ = quote(texts)
    assert restore_text(pack_text(block, sources), collect(sources)) == block


def test_a_passage_of_a_long_entry_restores() -> None:
    whole = " ".join(f"line {number}\nof a long story" for number in range(200))
    hit = MemoryHit(text=f"… {whole[400:900]} …", session="s", seq=3, person="ada", at=5.0)
    block = quote_items([RecalledItem(provider="builtin", hit=hit)], DELIMITER)
    packed = pack_text(block, [TextSource("s", 3, hit.text, whole)])
    assert list_text_places(packed) == {("s", 3)}
    assert restore_text(packed, {("s", 3): whole}) == block


def test_a_stored_recall_repeats_no_words_and_cannot_be_restored_after_an_erasure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    block, sources, _ = quote(["the code of the safe is four times seven", "the cat sleeps on the boiler"])
    packed = pack_text(block, sources)
    left = {place: text for place, text in collect(sources).items() if "safe" not in text}
    assert restore_text(packed, left) is None
    assert b"safe" not in zlib.decompress(packed[1:])
    monkeypatch.setattr(recall_blobs, "MIN_REFERENCE_CHARS", 1_000)  # the planted bug: words instead of references
    assert b"safe" in zlib.decompress(pack_text(block, sources)[1:])


def test_an_earlier_plain_text_and_record_are_read() -> None:
    assert restore_text("<recalled x>\n| é\n</recalled x>".encode(), {}) == "<recalled x>\n| é\n</recalled x>"
    assert list_text_places(b"<recalled x>") == set()
    record = RecallRecord(
        asked=RecallTarget(session="s", generation=2, takes=(4,)),
        audience=("person:ada",),
        shown=(RecallTrace(provider="builtin", session="t", seq=9, person="ada", at=1.5, score=0.25),),
    )
    assert read_record(msgspec.json.encode(record)) == record


@given(
    st.lists(
        st.builds(
            RecallTrace,
            provider=st.sampled_from(["builtin", "honcho"]),
            session=st.sampled_from(["", "s", "t"]),
            seq=st.integers(0, 9_999),
            person=st.text(max_size=9),
            at=st.floats(0, 4e9),
            score=st.floats(0, 3),
            text=st.text(max_size=20),
            kind=st.sampled_from(["", "reply", "note"]),
            origin=st.sampled_from(["", "tool:web"]),
            why_not=st.sampled_from(["", "budget"]),
            until=st.sampled_from([0.0, 7.5]),
            replaced_by=st.sampled_from(["", "s:3"]),
        ),
        max_size=20,
    ),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_a_record_survives_packing(traces: list[RecallTrace], facts: int, shown: int) -> None:
    record = RecallRecord(
        asked=RecallTarget(session="s", generation=2, takes=(4,)),
        audience=("person:ada",),
        facts=tuple(traces[:facts]),
        shown=tuple(traces[facts : facts + shown]),
        left_out=tuple(traces[facts + shown :]),
        left_out_counts={"budget": 7},
        unavailable=("honcho",),
        budget=1_700,
        tokens=12,
        deadline=0.8,
    )
    assert read_record(pack_record(record)) == record


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01nonsense", b"nonsense"])
def test_a_damaged_record_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        read_record(data)


def test_a_usual_recall_takes_less_than_two_kilobytes() -> None:
    """Forty-odd short messages of ten sessions, which fill the budget."""
    texts = [
        f"On day {n} I went to place {n * 37 % 101} with {n * 53 % 97} friends, and it was {n * n}. " * 2
        for n in range(90)
    ]
    block, sources, shown = quote(texts)
    record = RecallRecord(
        asked=RecallTarget(session="s" * 26, generation=2, takes=(4,)),
        audience=("person:ada",),
        shown=tuple(trace_item(it) for it in shown),
        budget=1_700,
    )
    assert len(shown) > 35
    assert len(block.encode()) > 6_000
    assert len(pack_text(block, sources)) + len(pack_record(record)) < 2_000
