"""How services sign their webhooks. This module proves who sent a delivery, and knows no message.

A scheme is a row of a table, so another service is another row. All comparisons take the same time for any signature.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from everhold.infra.secret import SecretString

TOLERANCE_SECONDS: Final = 300.0
"""How old a signed time may be, and how far in the future."""
MAX_SIGNATURES: Final = 16
"""How many signatures of one delivery are compared; a sender that changes its secret sends two."""


class HookScheme(Struct, frozen=True, kw_only=True):
    """One way to sign a delivery."""

    header: str
    """The header with the signature, in lower case."""
    prefix: str = ""
    """What stands before the signature."""
    signed: str = "{body}"
    """What is signed: `{body}`, `{time}` and `{id}` are replaced. Empty: the header has the secret itself."""
    time_header: str = ""
    """The header with the time; empty if the time is not signed, or is part of the signature's header."""
    is_list: bool = False
    """The header has parts such as `t=1700000000,v1=…`, and `t` is the time."""
    separator: str = ""
    """Between several signatures."""
    is_base64: bool = False
    id_header: str = ""
    """The header whose value stands for `{id}` in `signed`."""
    delivery_id: str = ""
    """The template of the delivery's id, if the configuration has none."""


SCHEMES: Final[Mapping[str, HookScheme]] = MappingProxyType(
    {
        "hmac": HookScheme(header="x-signature"),
        "secret": HookScheme(header="x-hook-secret", signed=""),
        "github": HookScheme(header="x-hub-signature-256", prefix="sha256=", delivery_id="{headers.x-github-delivery}"),
        "gitlab": HookScheme(header="x-gitlab-token", signed="", delivery_id="{headers.x-gitlab-event-uuid}"),
        "slack": HookScheme(
            header="x-slack-signature",
            prefix="v0=",
            signed="v0:{time}:{body}",
            time_header="x-slack-request-timestamp",
            delivery_id="{event_id}",
        ),
        "stripe": HookScheme(
            header="stripe-signature", prefix="v1=", signed="{time}.{body}", is_list=True, delivery_id="{id}"
        ),
        "standard": HookScheme(
            header="webhook-signature",
            prefix="v1,",
            signed="{id}.{time}.{body}",
            time_header="webhook-timestamp",
            separator=" ",
            is_base64=True,
            id_header="webhook-id",
            delivery_id="{headers.webhook-id}",
        ),
    }
)
"""The schemes by the name that the configuration uses. `standard` is standardwebhooks.com."""


def find_scheme(name: str, header: str | None) -> HookScheme:
    """Return a scheme, with the header that the configuration names."""
    scheme = SCHEMES[name]
    if header is None:
        return scheme
    return HookScheme(header=header.lower(), prefix=scheme.prefix, signed=scheme.signed)


def find_objection(
    scheme: HookScheme, secret: SecretString, headers: Mapping[str, str], body: bytes, *, now: float
) -> str:
    """Return why a delivery does not prove its sender; empty if it does. `headers` have lower-case names."""
    given = headers.get(scheme.header, "")
    if not given:
        return f"the header {scheme.header} is missing"
    if not scheme.signed:
        right = _is_same(given.removeprefix("Bearer ").strip(), secret.reveal().strip())
        return "" if right else f"the header {scheme.header} has another secret"
    time = _find_time(scheme, given, headers)
    if "{time}" in scheme.signed and not _is_recent(time, now):
        return "the signed time is missing, or too far from now"
    expected = _sign(scheme, secret, time=time, id=headers.get(scheme.id_header, ""), body=body)
    found = [_is_same(candidate, expected) for candidate in _list_signatures(scheme, given)]
    return "" if any(found) else "the signature does not fit the body"


def sign_delivery(scheme: HookScheme, secret: SecretString, body: bytes, *, now: float, id: str = "") -> dict[str, str]:
    """Return the headers with which a sender signs a delivery."""
    if not scheme.signed:
        return {scheme.header: secret.reveal().strip()}
    time = str(int(now))
    headers = {scheme.id_header: id} if scheme.id_header else {}
    value = scheme.prefix + _sign(scheme, secret, time=time, id=id, body=body)
    if scheme.is_list:
        value = f"t={time},{value}"
    elif scheme.time_header:
        headers[scheme.time_header] = time
    return {**headers, scheme.header: value}


def _sign(scheme: HookScheme, secret: SecretString, *, time: str, id: str, body: bytes) -> str:
    head, _, tail = scheme.signed.partition("{body}")
    signed = head.replace("{time}", time).replace("{id}", id).encode("utf-8", "surrogatepass") + body + tail.encode()
    digest = hmac.digest(_find_key(scheme, secret), signed, hashlib.sha256)
    return base64.b64encode(digest).decode() if scheme.is_base64 else digest.hex()


def _find_key(scheme: HookScheme, secret: SecretString) -> bytes:
    value = secret.reveal().strip()
    if scheme.is_base64:
        try:
            return base64.b64decode(value.removeprefix("whsec_"), validate=True)
        except binascii.Error:
            pass  # a secret that was chosen by hand is used as it is
    return value.encode()


def _find_time(scheme: HookScheme, given: str, headers: Mapping[str, str]) -> str:
    if not scheme.is_list:
        return headers.get(scheme.time_header, "")
    return next((part[2:] for part in _split(given, ",") if part.startswith("t=")), "")


def _list_signatures(scheme: HookScheme, given: str) -> Iterator[str]:
    parts = _split(given, "," if scheme.is_list else scheme.separator)
    keep: Callable[[str], str] = str if scheme.is_base64 else str.lower
    for part in parts:
        if part.startswith(scheme.prefix):
            yield keep(part.removeprefix(scheme.prefix))


def _split(text: str, separator: str) -> list[str]:
    parts = text.split(separator, MAX_SIGNATURES)[:MAX_SIGNATURES] if separator else [text]
    return [part.strip() for part in parts]


def _is_recent(time: str, now: float) -> bool:
    is_number = time.isascii() and time.isdigit() and len(time) <= 12
    return is_number and abs(now - int(time)) <= TOLERANCE_SECONDS


def _is_same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))
