"""What the callers of the HTTP API may do, and how long a login lasts. Pure: no clock, no I/O.

A credential is a token of the configuration, or a login that a token made. A login has the rights that its token has
now, so nothing that a client sends or keeps can extend them.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

LOGIN_SECONDS: Final = 30 * 86_400.0
"""A login ends when it was not used for this long."""
FRESH_SECONDS: Final = 15 * 60.0
"""Sensitive routes accept a login that is younger than this."""
CODE_SECONDS: Final = 10 * 60.0
"""How long the code of a login link is valid."""
USE_RECORD_SECONDS: Final = 3_600.0
"""How exactly the last use of a login is recorded."""
CLOCK_SKEW_SECONDS: Final = 60.0
"""How far the clocks of two hosts may differ. What was made later than that in the future is not trusted."""

MIN_TOKEN_CHARS: Final = 32
MIN_TOKEN_DISTINCT: Final = 8
MAX_USER_CHARS: Final = 128


class CallerRole(StrEnum):
    """What a caller may call. A route names the least role it needs; see `can_call`."""

    ANYBODY = "anybody"
    """No credential."""
    METRICS = "metrics"
    """The metrics and nothing else."""
    SERVICE = "service"
    """A program that speaks for its own users."""
    MEMBER = "member"
    """One person, with that person's data."""
    OPERATOR = "operator"
    """Everything."""


_GRANTED: Final = MappingProxyType(
    {
        CallerRole.ANYBODY: frozenset({CallerRole.ANYBODY}),
        CallerRole.METRICS: frozenset({CallerRole.ANYBODY, CallerRole.METRICS}),
        CallerRole.SERVICE: frozenset({CallerRole.ANYBODY, CallerRole.SERVICE}),
        CallerRole.MEMBER: frozenset({CallerRole.ANYBODY, CallerRole.SERVICE, CallerRole.MEMBER}),
        CallerRole.OPERATOR: frozenset(CallerRole),
    }
)
"""The role of a caller -> the least roles of the routes that it may call."""


def can_call(role: CallerRole, least: CallerRole) -> bool:
    """Return whether a caller of this role may call a route that needs `least`."""
    return least in _GRANTED[role]


class CallerScope(Struct, frozen=True, kw_only=True):
    """The rights of a token. They come from the configuration only."""

    role: CallerRole
    token: str = ""
    """The token's name; empty without one."""
    agents: tuple[str, ...] = ()
    """The agents that it may use; empty: all of them."""
    read_only: bool = False

    def can_use(self, agent: str) -> bool:
        return not self.agents or agent in self.agents

    def covers(self, other: CallerScope) -> bool:
        """Return whether `other` has no right that this scope lacks, so that a login of `other` may be made with it.

        The data of one person is no part of the data of another, so only an operator's scope covers other tokens.
        """
        if self.role is not CallerRole.OPERATOR and self.token != other.token:
            return False
        if self.read_only and not other.read_only:
            return False
        if not self.agents:
            return True
        return bool(other.agents) and set(other.agents) <= set(self.agents)


def find_token_weakness(token: str) -> str:
    """Return why a token is too easy to guess; empty if it has the minimum strength. This does not measure entropy."""
    if len(token) < MIN_TOKEN_CHARS:
        return f"has {len(token)} characters, and a token needs at least {MIN_TOKEN_CHARS}"
    if len(set(token)) < MIN_TOKEN_DISTINCT:
        return f"has {len(set(token))} different characters, and a token needs at least {MIN_TOKEN_DISTINCT}"
    return ""


def find_user_objection(name: str) -> str:
    """Return why a service cannot call its user so; empty if it can."""
    if not name:
        return "is empty"
    if len(name) > MAX_USER_CHARS:
        return f"is longer than {MAX_USER_CHARS} characters"
    if not name.isprintable() or name != name.strip():
        return "contains invalid characters"
    return ""


def is_login_alive(*, used_at: float, now: float) -> bool:
    """Return whether a login that was used at this time is still valid."""
    return -CLOCK_SKEW_SECONDS <= now - used_at < LOGIN_SECONDS


def is_login_fresh(*, created_at: float, now: float) -> bool:
    """Return whether somebody proved the token, or a code for it, a moment ago."""
    return -CLOCK_SKEW_SECONDS <= now - created_at < FRESH_SECONDS


def is_code_alive(*, created_at: float, now: float) -> bool:
    """Return whether the code of a login link is still valid."""
    return -CLOCK_SKEW_SECONDS <= now - created_at < CODE_SECONDS


def is_use_due(*, used_at: float, now: float) -> bool:
    """Return whether the use of a login at `now` has to be recorded."""
    return not 0 <= now - used_at < USE_RECORD_SECONDS
