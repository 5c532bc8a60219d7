"""Codes that prove something across two places: made, shown once, compared, and over after one use or a few minutes."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from msgspec import Struct

ALPHABET: Final = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""No letter or digit that is taken for another when it is read out or written by hand."""
LENGTH: Final = 8
GOOD_SECONDS: Final = 600.0
TRIES: Final = 5
QUIET_SECONDS: Final = 3600.0
"""How long a stranger who got an answer gets no other."""
MOST_WAITING: Final = 50
"""How many strangers may hold a code at once: whoever comes after them hears nothing until some are over."""


class Knock(Struct, frozen=True, omit_defaults=True):
    """A stranger who asked to be let in. Only the digest of their code is kept."""

    at: float
    digest: str = ""
    """Empty once the code was used, or given up."""
    name: str = ""
    chat: str = ""


class Grant(Struct, frozen=True, omit_defaults=True):
    """Somebody who was let in by a person in charge."""

    at: float
    name: str = ""
    person: str = ""
    """Whom letting them in made them known as."""


class Tries(Struct, frozen=True, omit_defaults=True):
    """How often a code was got wrong."""

    count: int = 0
    since: float = 0.0


class Offer(Struct, frozen=True, omit_defaults=True):
    """One side of two that want to be known as one person: what it has to say next, or the other has."""

    at: float
    digest: str
    person: str
    """Who the side that began is."""
    other: str = ""
    """The identity on the other side, once it has answered."""


def code_of(chance: bytes) -> str:
    """A code made of random bytes; bytes that would favour some letters are passed over."""
    fair = 256 - 256 % len(ALPHABET)
    letters = [ALPHABET[byte % len(ALPHABET)] for byte in chance if byte < fair][:LENGTH]
    assert len(letters) == LENGTH, "that was too little chance"
    return f"{''.join(letters[:4])}-{''.join(letters[4:])}"


def normal(text: str) -> str:
    """A code as somebody typed it, without what does not count."""
    return "".join(letter for letter in text.upper() if letter.isalnum())


def digest(code: str, *, whose: str) -> str:
    return hashlib.sha256(f"{whose}\0{normal(code)}".encode("utf-8", "surrogatepass")).hexdigest()


def fits(kept: str, code: str, *, whose: str) -> bool:
    return bool(kept) and hmac.compare_digest(kept, digest(code, whose=whose))


def is_good(at: float, now: float) -> bool:
    """Whether a code made at `at` still counts. A clock that went back ends it, too."""
    return at <= now < at + GOOD_SECONDS


def may_answer(knock: Knock | None, now: float) -> bool:
    """Whether a stranger may be answered: at most once an hour, whatever the clock does."""
    return knock is None or not knock.at - QUIET_SECONDS < now < knock.at + QUIET_SECONDS


def wrong(tries: Tries, now: float) -> Tries:
    """One more wrong one; after a while the count begins anew."""
    fresh = not tries.since <= now < tries.since + GOOD_SECONDS
    return Tries(count=1, since=now) if fresh else Tries(count=tries.count + 1, since=tries.since)


def is_locked(tries: Tries, now: float) -> bool:
    return tries.count >= TRIES and tries.since <= now < tries.since + GOOD_SECONDS
