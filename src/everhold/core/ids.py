"""Make session ids, which are sortable by time and unguessable. Time and random bytes are arguments."""

from __future__ import annotations

from typing import Final

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"


def make_session_id(at: float, chance: bytes) -> str:
    """Return an id of 26 characters: 48 bits of milliseconds, then 80 bits of `chance` (ten random bytes)."""
    assert len(chance) == 10
    number = (int(max(0.0, at) * 1000) & (1 << 48) - 1) << 80 | int.from_bytes(chance)
    digits = []
    for _ in range(26):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
