"""A secret shows itself to nobody who does not ask for it by name."""

from __future__ import annotations

import copy
import json
import logging
import pickle

import pytest
from pydantic import BaseModel, ValidationError

from everhold.secret import Secret

VALUE = "sk-canary-77"


class Section(BaseModel):
    key: Secret
    more: Secret | None = None


def test_it_hides_wherever_it_is_shown() -> None:
    secret = Secret(VALUE)
    record = logging.LogRecord("x", 20, "f", 1, "key %s %r", (secret, secret), None).getMessage()
    for shown in (str(secret), repr(secret), f"{secret:>20}", f"{secret!r}", record, repr([secret])):
        assert VALUE not in shown
        assert "***" in shown
    assert not hasattr(secret, "__dict__")
    assert secret.reveal() == VALUE
    assert secret.hide(f"Bearer {VALUE}!") == "Bearer ***!"
    assert Secret("a").hide("banana") == "banana", "hiding a letter would show where it stood"


def test_settings_take_it_and_dump_the_mask() -> None:
    section = Section.model_validate({"key": VALUE})
    assert section.key.reveal() == VALUE
    assert Section(key=Secret(VALUE)) == section
    assert json.loads(section.model_dump_json()) == {"key": "***", "more": None}
    assert section.model_dump()["key"] == "***"
    assert VALUE not in repr(section)
    assert Section.model_json_schema()["properties"]["key"]["format"] == "password"
    with pytest.raises(ValidationError) as raised:
        Section.model_validate({"key": ["not text"]})
    assert "a secret is text" in str(raised.value)


def test_it_compares_and_copies_but_is_never_pickled() -> None:
    secret = Secret(VALUE)
    assert secret == Secret(VALUE)
    assert secret != Secret("other")
    assert secret != VALUE
    assert {secret, Secret(VALUE)} == {secret}
    assert bool(secret)
    assert not Secret("")
    assert copy.deepcopy({"k": secret})["k"] is secret
    assert copy.copy(secret) is secret
    assert Secret(secret) == secret
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(secret)
