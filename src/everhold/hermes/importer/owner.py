"""Chooses the person to whom the memory files of an import belong. hermes-agent showed them to everybody who wrote to
it, but they are about one person.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from everhold.core.people import PeopleDirectory, is_identity
from everhold.errors import InvalidRequest


def choose_owner(given: str, candidates: Sequence[str], *, directory: PeopleDirectory, local: str) -> str:
    """Return the identity of the owner; empty if several people could be meant.

    `given` is an identity, or a person's name. Without it the owner is the only candidate, or `local`
    if there is none.
    """
    if given:
        return _resolve_owner(given, candidates, directory)
    people = group_candidates(candidates, directory)
    if len(people) > 1:
        return ""
    return people[0] if people else local


def group_candidates(candidates: Collection[str], directory: PeopleDirectory) -> list[str]:
    """Return one identity for each person among the candidates."""
    found: list[str] = []
    for identity in sorted(candidates):
        if not any(directory.is_same_person(identity, other) for other in found):
            found.append(identity)
    return found


def _resolve_owner(given: str, candidates: Sequence[str], directory: PeopleDirectory) -> str:
    if is_identity(given):
        return given
    person = directory.resolve_name(given)
    identities = [it.identity for it in directory.list_identities(person.id)] if person is not None else []
    if identities:
        return next((identity for identity in identities if identity in candidates), identities[0])
    listed = ", ".join(group_candidates(candidates, directory)) or "none in this home"
    raise InvalidRequest(
        f"--owner {given!r} is neither an identity nor the name of a known person",
        remedy=f"give an identity; candidates: {listed}",
    )
