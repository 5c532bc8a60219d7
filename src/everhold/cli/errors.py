"""Exit codes, and how an error of the API becomes an error of ours. Needs nothing but the standard library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from everhold import errors
from everhold.errors import EverholdError

DONE, WRONG, USAGE, AGAIN, CONFIG = 0, 1, 2, 75, 78
"""What a command's exit code means."""

_EXIT_CODES: Final[Mapping[type[EverholdError], int]] = {
    errors.Transient: AGAIN,
    errors.Conflict: AGAIN,
    errors.StoreBusy: AGAIN,
    errors.StoreFull: AGAIN,
    errors.InvalidRequest: USAGE,
}
_RETRY_STATUSES: Final = frozenset({408, 409, 429, 503, 504, 507})
_USAGE_STATUSES: Final = frozenset({400, 405, 413, 415})


class ReportedError(EverholdError):
    """An error whose type this build does not know, in the words of the gateway."""

    def __init__(self, message: str, *, remedy: str = "", type: str, exit_code: int) -> None:
        super().__init__(message, remedy=remedy)
        self.type = type
        self.exit_code = exit_code


def get_exit_code(error: EverholdError) -> int:
    """The exit code for a command that ended with `error`."""
    from everhold.config.errors import ConfigError  # only a command that has failed needs it

    if isinstance(error, ReportedError):
        return error.exit_code
    if isinstance(error, ConfigError):
        return CONFIG
    return next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), WRONG)


def get_type_name(error: EverholdError | type[EverholdError]) -> str:
    """The type of an error as the API names it: `StoreFull` becomes `store_full`."""
    if isinstance(error, ReportedError):
        return error.type
    kind = error if isinstance(error, type) else type(error)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


_TYPES: Final[Mapping[str, type[EverholdError]]] = {
    get_type_name(kind): kind
    for kind in (
        errors.Transient, errors.Overloaded, errors.Refused, errors.TooLong, errors.Poisoned, errors.InDoubt,
        errors.LeaseLost, errors.Conflict, errors.StoreError, errors.StoreFull, errors.StoreBusy, errors.StoreDamaged,
        errors.StoreNewer, errors.HomeBusy, errors.NotFound, errors.InvalidRequest,
    )
} | {"denied": errors.Refused}  # fmt: skip


def show_error(error: EverholdError) -> dict[str, Any]:
    """An error as `--json` prints it, which is how the API answers it."""
    return {"type": get_type_name(error), "message": error.message, "remedy": error.remedy}


def read_error(status: int, content: object) -> EverholdError:
    """The error that the API answered, as one of ours if this build knows its type."""
    found = content.get("error") if isinstance(content, dict) else None
    if not isinstance(found, dict):
        return ReportedError(f"the gateway answered with status {status} and no reason", type="", exit_code=WRONG)
    type, message, remedy = (str(found.get(key, "")) for key in ("type", "message", "remedy"))
    if type in _TYPES:
        return _TYPES[type](message, remedy=remedy)
    code = AGAIN if status in _RETRY_STATUSES else USAGE if status in _USAGE_STATUSES else WRONG
    return ReportedError(message, remedy=remedy, type=type, exit_code=code)
