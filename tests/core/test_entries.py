"""What is written reads back, and an altered line shows. Bodies of every kind, salted digests, strange text."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from everhold.core import entries
from everhold.core.entries import (
    BODY_TYPES,
    BODY_VERSION,
    OUTCOMES,
    RESERVED_KINDS,
    AddressBound,
    Began,
    ChangeBody,
    Changed,
    ChatLocation,
    Ended,
    Entry,
    EntryBody,
    EntryDraft,
    EntryKind,
    Heard,
    ModelUsage,
    StoredRecord,
    Took,
    compute_entry_digest,
    decode_body,
    encode_body,
    get_body_kind,
    list_consumed_seqs,
    snake_case,
    strip_surrogates,
)
from tests.core.bodies import TEXT, any_body


@pytest.mark.parametrize("kind", list(EntryKind))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_body_reads_back_as_it_was_written(kind: EntryKind, data: st.DataObject) -> None:
    body = data.draw(any_body(kind))
    text = encode_body(body)
    assert decode_body(kind, text) == body
    assert decode_body(kind, text.encode()) == body
    assert encode_body(decode_body(kind, text)) == text, "written again it is the same to the byte"
    assert get_body_kind(body) is kind is EntryDraft(body=body, author="system").kind


def test_every_kind_has_its_own_body_and_every_body_its_kind() -> None:
    assert set(BODY_TYPES) == set(EntryKind)
    assert len(set(BODY_TYPES.values())) == len(EntryKind)
    assert set(get_args(EntryBody)) == set(BODY_TYPES.values())


def test_the_stored_name_of_a_body_and_of_a_change_is_its_class_name_in_snake_case() -> None:
    assert {kind: snake_case(body.__name__) for kind, body in BODY_TYPES.items()} == {
        kind: kind.value for kind in EntryKind
    }
    changes = get_args(ChangeBody)
    assert {it.__struct_config__.tag for it in changes} == {snake_case(it.__name__) for it in changes}
    assert encode_body(Changed(change=AddressBound(address="a"))) == '{"change":{"type":"address_bound","address":"a"}}'
    assert snake_case("ContextReset") == "context_reset"


@pytest.mark.parametrize("kind", sorted(RESERVED_KINDS))
def test_a_reserved_kind_is_nobodys(kind: str) -> None:
    assert kind not in {snake_case(it.__name__) for it in (*BODY_TYPES.values(), *get_args(ChangeBody))}
    with pytest.raises(ValueError, match="reserved"):
        EntryKind(kind)
    with pytest.raises(ValueError, match="not a valid EntryKind"):
        EntryKind("dreamt")


def test_every_record_is_frozen_and_leaves_out_what_it_need_not_say() -> None:
    records = [it for _, it in inspect.getmembers(entries, inspect.isclass) if issubclass(it, StoredRecord)]
    assert len(records) > 25
    for record in records:
        assert record.__struct_config__.frozen, record
        assert record.__struct_config__.omit_defaults, record


def test_a_field_added_later_reads_from_what_was_written_before() -> None:
    """Every field but the essential ones has a default, so old logs stay readable."""
    assert decode_body(EntryKind.HEARD, '{"origin":{"platform":"p"},"text":"x"}') == Heard(
        origin=ChatLocation(platform="p"), text="x"
    )
    assert decode_body(EntryKind.ENDED, "{}") == Ended()
    assert decode_body(EntryKind.HEARD, '{"origin":{"platform":"p"},"text":"x","mood":"gay"}') == Heard(
        origin=ChatLocation(platform="p"), text="x"
    ), "and what a later build added is passed over, not choked on"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"text":1}', '{"type":"dream"}', "null", "\ud800"])
def test_what_is_no_body_is_an_error_and_never_half_a_body(text: str) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeError)):
        decode_body(EntryKind.HEARD, text)


def test_the_outcomes_are_those_an_operation_can_end_with() -> None:
    for outcome in OUTCOMES:
        assert decode_body(EntryKind.ENDED, f'{{"outcome":"{outcome}"}}') == Ended(outcome=outcome)
    with pytest.raises(msgspec.ValidationError):
        decode_body(EntryKind.ENDED, '{"outcome":"lost"}')


# -- digests -----------------------------------------------------------------------------------------------------------

LINE = st.fixed_dictionaries(
    {
        "salt": st.binary(min_size=16, max_size=16),
        "session": TEXT,
        "seq": st.integers(1, 2**40),
        "kind": st.sampled_from([kind.value for kind in EntryKind]),
        "op": st.none() | st.integers(1, 2**40),
        "author": TEXT,
        "at": st.integers(0, 2**40).map(lambda n: n / 8),
        "body": TEXT,
    }
)


@settings(max_examples=150, deadline=None)
@given(LINE, LINE, st.sets(st.sampled_from(["salt", "session", "seq", "kind", "op", "author", "at", "body"])))
def test_a_digest_changes_with_every_field(line: dict[str, Any], other: dict[str, Any], which: set[str]) -> None:
    altered = {**line, **{field: other[field] for field in which}}
    assert (compute_entry_digest(**line) == compute_entry_digest(**altered)) == (line == altered)


@settings(max_examples=100, deadline=None)
@given(LINE, st.text(alphabet='",\\\n[]', max_size=3), st.text(alphabet='",\\\n[]', max_size=3))
def test_what_moves_from_one_field_to_the_next_shows(line: dict[str, Any], tail: str, more: str) -> None:
    first = compute_entry_digest(**{**line, "author": line["author"] + tail, "body": more + line["body"]})
    second = compute_entry_digest(**{**line, "author": line["author"] + tail + more, "body": line["body"]})
    assert (first == second) == (more == "")


def test_a_digest_is_the_same_for_ever() -> None:
    """Written down, so that a change of format shows here and not in somebody's log."""
    made = compute_entry_digest(
        salt=bytes(range(16)),
        session="s",
        seq=1,
        kind="heard",
        op=None,
        author="person:ada",
        at=1.5,
        body='{"text":"x"}',
    )
    assert made.hex() == "7af7c397d590c22a75e409cba7b85e17896fe37cb29ee525f8397b1bd1f2e2fe"


# -- text --------------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.characters(), max_size=20) | st.text(alphabet="a\ud800\udfff\U0001f600", max_size=8))
def test_text_is_kept_to_the_letter_unless_it_cannot_be(text: str) -> None:
    kept, mangled = strip_surrogates(text)
    assert mangled == any("\ud800" <= char <= "\udfff" for char in text)
    assert kept.encode().decode() == kept
    if not mangled:
        assert kept is text
    else:
        assert [c for c in kept if c != "\ufffd"] == [
            c for c in text if not "\ud800" <= c <= "\udfff" and c != "\ufffd"
        ]
    assert strip_surrogates(kept) == (kept, False)


def test_what_an_operation_took_is_told_in_the_order_it_took_it() -> None:
    def entry(seq: int, body: EntryBody | None) -> Entry:
        kind = EntryKind.HEARD if body is None else get_body_kind(body)
        return Entry(
            session="s",
            seq=seq,
            pos=seq,
            kind=kind,
            op=2,
            author="a",
            at=0.0,
            version=BODY_VERSION,
            body=body,
            digest=b"",
        )

    log = [entry(2, Began(type="turn", takes=(1,))), entry(5, Took(takes=(4, 3))), entry(6, Ended()), entry(7, None)]
    assert list_consumed_seqs(log) == (1, 4, 3)


@settings(max_examples=50, deadline=None)
@given(*[st.builds(ModelUsage, input=st.integers(0, 99), cached=st.integers(0, 99), output=st.integers(0, 99))] * 3)
def test_costs_add_up_in_any_order(one: ModelUsage, two: ModelUsage, three: ModelUsage) -> None:
    assert one + two == two + one
    assert (one + two) + three == one + (two + three)
    assert one + ModelUsage() == one
