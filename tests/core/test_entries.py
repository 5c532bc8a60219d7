"""Every body survives encoding, and a digest reveals any change. Bodies of every kind, salted digests, unusual text."""

from __future__ import annotations

import inspect
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from everhold.core import entries
from everhold.core.entries import (
    BODY_TYPES,
    BODY_VERSION,
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
def test_every_body_survives_encoding_and_decoding(kind: EntryKind, data: st.DataObject) -> None:
    body = data.draw(any_body(kind))
    text = encode_body(body)
    assert decode_body(kind, text) == body
    assert decode_body(kind, text.encode()) == body
    assert encode_body(decode_body(kind, text)) == text, "a second encoding gives the same bytes"
    assert get_body_kind(body) is kind is EntryDraft(body=body, author="system").kind


def test_kinds_and_bodies_match_one_to_one() -> None:
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


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="not a valid EntryKind"):
        EntryKind("dreamt")


def test_every_record_is_frozen_and_omits_defaults() -> None:
    records = [it for _, it in inspect.getmembers(entries, inspect.isclass) if issubclass(it, StoredRecord)]
    assert len(records) > 25
    for record in records:
        assert record.__struct_config__.frozen, record
        assert record.__struct_config__.omit_defaults, record


def test_an_old_entry_can_be_read_after_a_field_is_added() -> None:
    """Every field but the essential ones has a default, so old logs stay readable."""
    assert decode_body(EntryKind.HEARD, '{"origin":{"platform":"p"},"text":"x"}') == Heard(
        origin=ChatLocation(platform="p"), text="x"
    )
    assert decode_body(EntryKind.ENDED, "{}") == Ended()
    assert decode_body(EntryKind.HEARD, '{"origin":{"platform":"p"},"text":"x","mood":"gay"}') == Heard(
        origin=ChatLocation(platform="p"), text="x"
    ), "fields of a later build are ignored"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"text":1}', '{"type":"dream"}', "null", "\ud800"])
def test_an_invalid_body_raises_an_error(text: str) -> None:
    with pytest.raises((msgspec.DecodeError, UnicodeError)):
        decode_body(EntryKind.HEARD, text)


def test_operations_have_exactly_these_outcomes() -> None:
    for outcome in get_args(get_type_hints(Ended)["outcome"]):
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
def test_text_moved_between_two_fields_changes_the_digest(line: dict[str, Any], tail: str, more: str) -> None:
    first = compute_entry_digest(**{**line, "author": line["author"] + tail, "body": more + line["body"]})
    second = compute_entry_digest(**{**line, "author": line["author"] + tail + more, "body": line["body"]})
    assert (first == second) == (more == "")


def test_the_digest_format_does_not_change() -> None:
    """The digest is written down, so that a change of the format fails here."""
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
def test_text_is_kept_unchanged_unless_it_is_invalid(text: str) -> None:
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


def test_an_operation_lists_its_messages_in_the_order_it_took_them() -> None:
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
