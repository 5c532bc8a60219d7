"""The roles that people have in a chat, and the lowest role that a rule asks for."""

from __future__ import annotations

import enum

from msgspec import Struct


class PersonRole(enum.IntEnum):
    """What a person may be in one chat. A higher role may do everything that a lower role may."""

    STRANGER = 0
    """A sender whom only a `*` in the access list admits."""
    KNOWN = 1
    """A person whose identity is linked, and whom only a `*` admits here."""
    MEMBER = 2
    """A person whom the account's or the group's access list names, or who is paired."""
    OWNER = 3
    """A person whom `access.owners` names."""


class RequiredRole(Struct, frozen=True):
    """The lowest role that a rule asks for, by the kind of chat."""

    direct: PersonRole = PersonRole.MEMBER
    group: PersonRole = PersonRole.STRANGER
