"""Lines on the socket: how long they may be, and how an error crosses it. Knows no method."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from everhold import errors
from everhold.errors import EverholdError, Misuse, Refused

LIMIT: Final = 16 << 20
"""Bytes of the longest line either side reads."""

DONE, WRONG, USAGE, AGAIN, CONFIG = 0, 1, 2, 75, 78
"""What a command's exit code means."""

_EXITS: Final[Mapping[type[EverholdError], int]] = {
    errors.Transient: AGAIN,
    errors.Conflict: AGAIN,
    errors.StoreBusy: AGAIN,
    errors.StoreFull: AGAIN,
    errors.Misuse: USAGE,
}
_TYPES: Final[Mapping[str, type[EverholdError]]] = {
    kind.__name__: kind
    for kind in (
        errors.Transient, errors.Overloaded, errors.Refused, errors.TooLong, errors.Poisoned, errors.InDoubt,
        errors.LeaseLost, errors.Conflict, errors.StoreError, errors.StoreFull, errors.StoreBusy, errors.StoreDamaged,
        errors.StoreNewer, errors.HomeBusy, errors.NotFound, errors.Misuse,
    )
}  # fmt: skip


class Told(EverholdError):
    """An error of a kind this build does not know, as the other side told it."""

    def __init__(self, message: str, *, remedy: str = "", kind: str, exit: int) -> None:
        super().__init__(message, remedy=remedy)
        self.kind = kind
        self.exit = exit


def exit_of(error: EverholdError) -> int:
    """The exit code for a command that ended with `error`."""
    from everhold.config.problems import ConfigError  # only who has failed needs it

    if isinstance(error, Told):
        return error.exit
    if isinstance(error, ConfigError):
        return CONFIG
    return next((code for kind, code in _EXITS.items() if isinstance(error, kind)), WRONG)


def to_json(error: EverholdError) -> dict[str, Any]:
    kind = error.kind if isinstance(error, Told) else type(error).__name__
    return {"type": kind, "message": error.message, "remedy": error.remedy, "exit": exit_of(error)}


def from_json(data: object) -> EverholdError:
    """The error the other side told of, as one of ours if we know its kind."""
    if not isinstance(data, dict):
        return Told("the gateway answered something else", kind="", exit=WRONG)
    kind, message, remedy = (str(data.get(key, "")) for key in ("type", "message", "remedy"))
    if kind in _TYPES:
        return _TYPES[kind](message, remedy=remedy)
    code = data.get("exit")
    return Told(message, remedy=remedy, kind=kind, exit=code if isinstance(code, int) and 0 < code < 126 else WRONG)


def encode(message: Mapping[str, Any]) -> bytes:
    """One line. Everything beyond ASCII is escaped, lone surrogates too: what was typed arrives as it was."""
    line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    if len(line) > LIMIT:
        raise Refused(f"an answer of {len(line) >> 20} MB does not fit", remedy="ask for less of it at once")
    return line


def decode(line: bytes) -> dict[str, Any]:
    """The object a line holds. Raises Misuse."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise Misuse("that line is no JSON", remedy="one JSON object per line") from None
    if not isinstance(message, dict):
        raise Misuse("that line is no object", remedy='{"id": 1, "method": "ping", "params": {}}')
    return message
