"""What is stored keeps its names: a build must read what every earlier build wrote."""

from __future__ import annotations

import pytest
from msgspec import Struct, inspect

from everhold.core import consumers
from everhold.core.entries import StoredRecord
from everhold.ports.store import StateNamespace
from tests.stores.stored_format import FILE, describe_type, render_stored_format


def test_what_is_stored_is_named_as_before() -> None:
    known, present = FILE.read_text(encoding="utf-8").splitlines(), render_stored_format().splitlines()
    lost = [line for line in known if line not in present]
    assert not lost, f"stores contain this; write a migration that converts it, then write the file again: {lost}"
    assert present == known, "python -m tests.stores.stored_format > tests/stores/stored_format.txt"


class OldRecord(StoredRecord, frozen=True):
    text: str
    asks: bool = True


class OldRecordElsewhere(StoredRecord, frozen=True):
    text: str
    asks: bool = True


class RenamedField(StoredRecord, frozen=True):
    words: str
    asks: bool = True


class OtherDefault(StoredRecord, frozen=True):
    text: str
    asks: bool = False


class OtherType(StoredRecord, frozen=True):
    text: str
    asks: int = True


class OldTag(StoredRecord, frozen=True, tag_field="type", tag="old_tag"):
    text: str


class NewTag(StoredRecord, frozen=True, tag_field="type", tag="new_tag"):
    text: str


def describe(record: type[Struct]) -> list[str]:
    return list(describe_type("x", inspect.type_info(record)))


def test_a_description_does_not_contain_the_name_of_a_class() -> None:
    assert (
        describe(OldRecord) == describe(OldRecordElsewhere) == ["x: object", "x.text: text", "x.asks: boolean = true"]
    )


@pytest.mark.parametrize(
    "before, after",
    [(OldRecord, RenamedField), (OldRecord, OtherDefault), (OldRecord, OtherType), (OldTag, NewTag)],
)
def test_a_change_that_makes_stored_data_unreadable_shows(before: type[Struct], after: type[Struct]) -> None:
    assert [line for line in describe(before) if line not in describe(after)]


def test_a_record_inside_itself_is_described_once() -> None:
    assert any(line.endswith(".remaining: as above = null") for line in FILE.read_text().splitlines())


def test_every_consumer_and_every_namespace_is_described() -> None:
    text = FILE.read_text(encoding="utf-8")
    names = [value for name, value in vars(consumers).items() if name.isupper() and isinstance(value, str)]
    assert len(names) > 8
    assert all(f": {name}" in text for name in names)
    assert all(f"state namespace: {namespace.value}\n" in text for namespace in StateNamespace)
