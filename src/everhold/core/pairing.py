"""Codes that prove something across two places: made, shown once, compared, and over after one use or a few minutes."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from msgspec import Struct

CODE_ALPHABET: Final = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""No letter or digit that is taken for another when it is read out or written by hand."""
CODE_CHARS: Final = 8
CODE_LIFETIME_SECONDS: Final = 600.0
MAX_WRONG_CODES: Final = 5
REPLY_INTERVAL_SECONDS: Final = 3600.0
"""How long a stranger who got an answer gets no other."""
MAX_PAIRING_REQUESTS: Final = 50
"""How many strangers may hold a code at once: whoever comes after them hears nothing until some are over."""


class PairingRequest(Struct, frozen=True, omit_defaults=True):
    """A stranger who asked to be let in. Only the digest of their code is kept."""

    at: float
    digest: str = ""
    """Empty once the code was used, or given up."""
    name: str = ""
    chat: str = ""


class PairingGrant(Struct, frozen=True, omit_defaults=True):
    """Somebody who was let in by a person in charge."""

    at: float
    name: str = ""
    person: str = ""
    """Whom letting them in made them known as."""


class WrongCodeCount(Struct, frozen=True, omit_defaults=True):
    """How often a code was got wrong."""

    count: int = 0
    since: float = 0.0


class IdentityLinkOffer(Struct, frozen=True, omit_defaults=True):
    """One side of two that want to be known as one person: what it has to say next, or the other has."""

    at: float
    digest: str
    person: str
    """Who the side that began is."""
    other: str = ""
    """The identity on the other side, once it has answered."""


def make_code(chance: bytes) -> str:
    """A code made of random bytes; bytes that would favour some letters are passed over."""
    fair = 256 - 256 % len(CODE_ALPHABET)
    letters = [CODE_ALPHABET[byte % len(CODE_ALPHABET)] for byte in chance if byte < fair][:CODE_CHARS]
    assert len(letters) == CODE_CHARS, "that was too little chance"
    return f"{''.join(letters[:4])}-{''.join(letters[4:])}"


def normalize_code(text: str) -> str:
    """A code as somebody typed it, without what does not count."""
    return "".join(letter for letter in text.upper() if letter.isalnum())


def digest_code(code: str, *, whose: str) -> str:
    return hashlib.sha256(f"{whose}\0{normalize_code(code)}".encode("utf-8", "surrogatepass")).hexdigest()


def is_code_match(kept: str, code: str, *, whose: str) -> bool:
    return bool(kept) and hmac.compare_digest(kept, digest_code(code, whose=whose))


def is_code_valid(at: float, now: float) -> bool:
    """Whether a code made at `at` still counts. A clock that went back ends it, too."""
    return at <= now < at + CODE_LIFETIME_SECONDS


def can_answer_request(request: PairingRequest | None, now: float) -> bool:
    """Whether a stranger may be answered: at most once an hour, whatever the clock does."""
    return request is None or not request.at - REPLY_INTERVAL_SECONDS < now < request.at + REPLY_INTERVAL_SECONDS


def count_wrong_code(tries: WrongCodeCount, now: float) -> WrongCodeCount:
    """One more wrong one; after a while the count begins anew."""
    fresh = not tries.since <= now < tries.since + CODE_LIFETIME_SECONDS
    return WrongCodeCount(count=1, since=now) if fresh else WrongCodeCount(count=tries.count + 1, since=tries.since)


def is_locked(tries: WrongCodeCount, now: float) -> bool:
    return tries.count >= MAX_WRONG_CODES and tries.since <= now < tries.since + CODE_LIFETIME_SECONDS
