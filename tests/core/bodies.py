"""Strategies for every kind of entry body."""

from __future__ import annotations

import types
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from everhold.core.entries import BODY_TYPES, EntryBody, EntryKind, StoredRecord
from everhold.core.roles import PersonRole

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(-(2**63), 2**63 - 1),
    bool: st.booleans(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    type(None): st.none(),
    PersonRole: st.sampled_from(PersonRole),
    Any: JSON,
}


@cache
def any_value(type_: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that a body may have for a field."""
    if type_ in _PLAIN:
        return _PLAIN[type_]
    origin, args = get_origin(type_), get_args(type_)
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, types.UnionType):
        return st.one_of([any_value(arg) for arg in args])
    if origin is tuple:
        assert args[1:] == (...,), "bodies hold tuples of one type"
        return st.lists(any_value(args[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(any_value(args[0]), any_value(args[1]), max_size=2)
    assert issubclass(type_, StoredRecord), f"a body holds {type_}, which this file cannot make yet"
    hints = get_type_hints(type_)
    return st.builds(type_, **{name: any_value(hints[name]) for name in type_.__struct_fields__})


def any_body(kind: EntryKind) -> st.SearchStrategy[EntryBody]:
    """Any body of a kind."""
    return any_value(BODY_TYPES[kind])
