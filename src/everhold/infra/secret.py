"""A string that must not be shown. Its value is revealed only where it is sent to a service."""

from __future__ import annotations

import hmac
from typing import Any, Final, NoReturn

MASK: Final = "***"


class SecretString:
    """Prints, logs, formats and serializes as `***`. Only `reveal` returns the value."""

    __slots__ = ("_value",)

    def __init__(self, value: str | SecretString) -> None:
        self._value: str = value.reveal() if isinstance(value, SecretString) else value

    def reveal(self) -> str:
        return self._value

    def mask_in(self, text: str) -> str:
        """Return `text` with each occurrence of the value masked."""
        value = self._value.strip()
        return text.replace(value, MASK) if len(value) >= 4 else text

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str, /) -> str:
        return format(MASK, spec)

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SecretString):
            return NotImplemented
        return hmac.compare_digest(_encode_text(self._value), _encode_text(other._value))

    def __hash__(self) -> int:
        return hash((SecretString, self._value))

    def __copy__(self) -> SecretString:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SecretString:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SecretString cannot be pickled, because pickles are stored in files")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Accept a string or a SecretString in settings, and dump the mask."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            cls._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(str),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": "string", "format": "password", "writeOnly": True}

    @classmethod
    def _validate(cls, value: object) -> SecretString:
        if isinstance(value, SecretString):
            return value
        if isinstance(value, str):
            return cls(value)
        raise ValueError("a secret must be text")


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
