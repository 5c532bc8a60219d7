"""A SecretString shows its value only by `reveal`."""

from __future__ import annotations

import copy
import json
import logging
import pickle

import pytest
from pydantic import BaseModel, ValidationError

from everhold.infra.secret import SecretString

VALUE = "sk-canary-77"


class Section(BaseModel):
    key: SecretString
    more: SecretString | None = None


def test_a_secret_is_masked_in_every_representation() -> None:
    secret = SecretString(VALUE)
    record = logging.LogRecord("x", 20, "f", 1, "key %s %r", (secret, secret), None).getMessage()
    for shown in (str(secret), repr(secret), f"{secret:>20}", f"{secret!r}", record, repr([secret])):
        assert VALUE not in shown
        assert "***" in shown
    assert not hasattr(secret, "__dict__")
    assert secret.reveal() == VALUE
    assert secret.mask_in(f"Bearer {VALUE}!") == "Bearer ***!"
    assert SecretString("a").mask_in("banana") == "banana", "hiding a letter would show where it stood"


def test_settings_accept_a_secret_and_dump_the_mask() -> None:
    section = Section.model_validate({"key": VALUE})
    assert section.key.reveal() == VALUE
    assert Section(key=SecretString(VALUE)) == section
    assert json.loads(section.model_dump_json()) == {"key": "***", "more": None}
    assert section.model_dump()["key"] == "***"
    assert VALUE not in repr(section)
    assert Section.model_json_schema()["properties"]["key"]["format"] == "password"
    with pytest.raises(ValidationError) as raised:
        Section.model_validate({"key": ["not text"]})
    assert "a secret must be text" in str(raised.value)


def test_a_secret_compares_and_copies_but_cannot_be_pickled() -> None:
    secret = SecretString(VALUE)
    assert secret == SecretString(VALUE)
    assert secret != SecretString("other")
    assert secret != VALUE
    assert {secret, SecretString(VALUE)} == {secret}
    assert bool(secret)
    assert not SecretString("")
    assert copy.deepcopy({"k": secret})["k"] is secret
    assert copy.copy(secret) is secret
    assert SecretString(secret) == secret
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(secret)
