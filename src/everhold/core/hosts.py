"""Rules for several hosts on one store: which versions may run together, and what a commit tells other hosts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from everhold.ports.hosts import CommitHint, HostStatus, HostVersion
from everhold.ports.store import Change, Claim

MOST_SCHEMAS_APART: Final = 1
"""A host works beside those of the version before and the version after, so that an upgrade can go host by host."""


def explain_version_conflict(own: HostVersion, other: HostVersion) -> str:
    """Return why two hosts must not work on one store, or an empty string if they may.

    They may if their schemas are equal or neighbours, and their releases as well. Releases are neighbours if only the
    last part of the number differs, if the middle part differs by one, or if the newer one is the first of the next
    major version.
    """
    if abs(own.schema - other.schema) > MOST_SCHEMAS_APART:
        return f"schema {own.schema} and schema {other.schema} are more than one version apart"
    if not _are_neighbours(_parse_release(own.program), _parse_release(other.program)):
        return f"everhold {own.program} and everhold {other.program} are more than one version apart"
    return ""


def find_version_conflict(own: HostVersion, hosts: Collection[HostStatus]) -> str:
    """Return why a host must not start beside `hosts`, or an empty string. Hosts that are not alive do not count."""
    for status in hosts:
        if status.is_alive and (reason := explain_version_conflict(own, status.host.version)):
            return f"{status.host.name} runs on this store: {reason}"
    return ""


def _parse_release(program: str) -> tuple[int, int]:
    """Return the major and the minor number. A part without a number counts as 0."""
    numbers = [_parse_number(part) for part in program.split(".")[:2]]
    major, minor = (*numbers, 0, 0)[:2]
    return major, minor


def _parse_number(part: str) -> int:
    digits = ""
    for char in part:
        if not ("0" <= char <= "9"):
            break
        digits += char
    return int(digits or "0")


def _are_neighbours(one: tuple[int, int], other: tuple[int, int]) -> bool:
    older, newer = sorted((one, other))
    if older[0] == newer[0]:
        return newer[1] - older[1] <= 1
    return newer == (older[0] + 1, 0)


def build_commit_hint(change: Change, claims: Collection[Claim]) -> CommitHint:
    """Return what a commit tells whoever waits for it. `claims` are those that it made."""
    return CommitHint(
        session=change.session,
        step=change.step,
        kinds=tuple([draft.kind for draft in change.entries]),
        is_work_due=len(claims) < len(change.wakeups),
    )
