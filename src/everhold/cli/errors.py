"""Exit codes, and the conversion of the API's errors to everhold's errors. Imports only the standard library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from everhold import errors
from everhold.errors import EverholdError

DONE, WRONG, USAGE, AGAIN, CONFIG = 0, 1, 2, 75, 78
"""The exit codes of commands."""

_EXIT_CODES: Final[Mapping[type[EverholdError], int]] = {
    errors.OperatorNeeded: WRONG,  # before its base class: trying again does not help
    errors.Transient: AGAIN,
    errors.Conflict: AGAIN,
    errors.StoreBusy: AGAIN,
    errors.StoreFull: AGAIN,
    errors.InvalidRequest: USAGE,
}
_RETRY_STATUSES: Final = frozenset({408, 409, 429, 503, 504, 507})
_USAGE_STATUSES: Final = frozenset({400, 405, 413, 415})


class ReportedError(EverholdError):
    """An error from the gateway whose type this version does not know."""

    def __init__(self, message: str, *, remedy: str = "", type: str, exit_code: int) -> None:
        super().__init__(message, remedy=remedy)
        self.type = type
        self.exit_code = exit_code


def get_exit_code(error: EverholdError) -> int:
    """Return the exit code for a command that ended with `error`."""
    from everhold.config.errors import ConfigError  # imported here because only a failed command needs it

    if isinstance(error, ReportedError):
        return error.exit_code
    if isinstance(error, ConfigError):
        return CONFIG
    return next((code for kind, code in _EXIT_CODES.items() if isinstance(error, kind)), WRONG)


def get_type_name(error: EverholdError | type[EverholdError]) -> str:
    """Return the API's name for the type of an error: `StoreFull` becomes `store_full`."""
    if isinstance(error, ReportedError):
        return error.type
    kind = error if isinstance(error, type) else type(error)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


_TYPES: Final[Mapping[str, type[EverholdError]]] = {
    get_type_name(kind): kind
    for kind in (
        errors.Transient, errors.Overloaded, errors.OperatorNeeded, errors.Refused, errors.TooLong, errors.Poisoned,
        errors.InDoubt,
        errors.LeaseLost, errors.Conflict, errors.StoreError, errors.StoreFull, errors.StoreBusy, errors.StoreDamaged,
        errors.StoreMissing, errors.StoreNewer, errors.StoreOutdated, errors.HomeBusy, errors.NotFound,
        errors.InvalidRequest,
    )
} | {"denied": errors.Refused}  # fmt: skip


def show_error(error: EverholdError) -> dict[str, Any]:
    """Return an error in the format of the API, which `--json` prints."""
    return {"type": get_type_name(error), "message": error.message, "remedy": error.remedy}


def read_error(status: int, content: object) -> EverholdError:
    """Return the API's error as one of everhold's errors if its type is known."""
    found = content.get("error") if isinstance(content, dict) else None
    if not isinstance(found, dict):
        return ReportedError(f"the gateway answered with status {status} and no reason", type="", exit_code=WRONG)
    type, message, remedy = (str(found.get(key, "")) for key in ("type", "message", "remedy"))
    if type in _TYPES:
        return _TYPES[type](message, remedy=remedy)
    code = AGAIN if status in _RETRY_STATUSES else USAGE if status in _USAGE_STATUSES else WRONG
    return ReportedError(message, remedy=remedy, type=type, exit_code=code)
