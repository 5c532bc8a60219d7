"""Codes that prove control of two accounts or chats. A code is shown once and expires after one use
or a few minutes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Final

from msgspec import Struct

CODE_ALPHABET: Final = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""Letters and digits that are not confused when they are read out or written by hand."""
CODE_CHARS: Final = 8
CODE_LIFETIME_SECONDS: Final = 600.0
WELCOME: Final = "You have access now. What can I do for you?"
"""What a person hears who was admitted."""
MAX_WRONG_CODES: Final = 5
INVITATION_BYTES: Final = 20
INVITATION_LIFETIME_SECONDS: Final = 3600.0
_INVITATION_PATTERN: Final = re.compile(r"/start(?:@\w+)? +([A-Z2-7]{32})")
"""What a chat platform sends for somebody who opens the link of an invitation."""
REPLY_INTERVAL_SECONDS: Final = 3600.0
"""How long a stranger who got a reply gets no other."""
MAX_PAIRING_REQUESTS: Final = 1_000
"""How many strangers of one account may hold a code at once. A further stranger gets one, and the oldest code is void.
So a crowd cannot keep anybody out: whoever lost a code gets a new one at once by writing again."""


class PairingRequest(Struct, frozen=True, omit_defaults=True):
    """A stranger's request for admission. Only the digest of the code is stored."""

    at: float
    digest: str = ""
    """Empty after the code was used or withdrawn."""
    name: str = ""
    chat: str = ""


class PairingGrant(Struct, frozen=True, omit_defaults=True):
    """The admission of a stranger by an owner or operator."""

    at: float
    name: str = ""


class AccountInvitation(Struct, frozen=True, omit_defaults=True):
    """An offer of access to whoever opens its link first. Its key is the digest of the code."""

    at: float
    person: str = ""
    """The id of the person whom it admits; empty: a new one."""


class WrongCodeCount(Struct, frozen=True, omit_defaults=True):
    """The number of wrong codes."""

    count: int = 0
    since: float = 0.0


class IdentityLinkOffer(Struct, frozen=True, omit_defaults=True):
    """An offer to link two identities to one person. The digest is of the code that one of them has to send next."""

    at: float
    digest: str
    other: str = ""
    """The other identity, after it has answered."""


def make_code(chance: bytes) -> str:
    """Return a code made from random bytes. Bytes that would make some letters more likely are skipped."""
    fair = 256 - 256 % len(CODE_ALPHABET)
    letters = [CODE_ALPHABET[byte % len(CODE_ALPHABET)] for byte in chance if byte < fair][:CODE_CHARS]
    assert len(letters) == CODE_CHARS, "too few random bytes"
    return f"{''.join(letters[:4])}-{''.join(letters[4:])}"


def make_invitation_code(chance: bytes) -> str:
    """Return a code that nobody types: it has too many letters to be guessed, so wrong ones need not be counted."""
    assert len(chance) == INVITATION_BYTES
    return base64.b32encode(chance).decode()


def find_invitation_code(text: str) -> str:
    """Return the code of the invitation whose link was opened; empty if the message is none."""
    found = _INVITATION_PATTERN.fullmatch(text.strip())
    return found.group(1) if found else ""


def is_invitation_valid(invitation: AccountInvitation, now: float) -> bool:
    """Return whether an invitation can still be accepted. It cannot if the clock went back."""
    return invitation.at <= now < invitation.at + INVITATION_LIFETIME_SECONDS


def normalize_code(text: str) -> str:
    """Return a typed code in upper case, with letters and digits only."""
    return "".join(letter for letter in text.upper() if letter.isalnum())


def digest_code(code: str, *, whose: str) -> str:
    return hashlib.sha256(f"{whose}\0{normalize_code(code)}".encode("utf-8", "surrogatepass")).hexdigest()


def is_code_match(kept: str, code: str, *, whose: str) -> bool:
    return bool(kept) and hmac.compare_digest(kept, digest_code(code, whose=whose))


def is_code_valid(at: float, now: float) -> bool:
    """Return whether a code made at `at` is still valid. It is also invalid if the clock went back."""
    return at <= now < at + CODE_LIFETIME_SECONDS


def can_answer_request(request: PairingRequest | None, now: float) -> bool:
    """Return whether a stranger may get a reply: at most once an hour, even if the clock changes."""
    return request is None or not request.at - REPLY_INTERVAL_SECONDS < now < request.at + REPLY_INTERVAL_SECONDS


def strip_names(request: PairingRequest) -> PairingRequest:
    """Return a request without what describes the stranger. The digest explains a code that is too old."""
    return PairingRequest(at=request.at, digest=request.digest)


def void_request(request: PairingRequest) -> PairingRequest:
    """Return a request whose code is not valid any more. Only its time is kept, to answer at most once an hour."""
    return PairingRequest(at=request.at)


def count_wrong_code(tries: WrongCodeCount, now: float) -> WrongCodeCount:
    """Count one more wrong code. The count restarts after a while."""
    fresh = not tries.since <= now < tries.since + CODE_LIFETIME_SECONDS
    return WrongCodeCount(count=1, since=now) if fresh else WrongCodeCount(count=tries.count + 1, since=tries.since)


def is_locked(tries: WrongCodeCount, now: float) -> bool:
    return tries.count >= MAX_WRONG_CODES and tries.since <= now < tries.since + CODE_LIFETIME_SECONDS
