"""Who may do what: the roles of people in a chat, and the tables of the lowest role that each command and tool needs.

A role belongs to one person in one chat. The tables are data: the gateway, the reference page and the tests read them.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

ALLOW_EVERYBODY: Final = "*"
"""In an access list: admits every sender."""


class PersonRole(enum.IntEnum):
    """What a person is in one chat. A higher role may do everything that a lower role may."""

    STRANGER = 0
    """A sender whom only a `*` in the group's list admits."""
    KNOWN = 1
    """A person whose identity is proven, and whom only a `*` in the group's list admits."""
    MEMBER = 2
    """A person whom the account's `direct` or the group's list names, or who is paired."""
    OWNER = 3
    """A person whom `owners` of the access, the agent, the account or the chat names."""

    @property
    def label(self) -> str:
        return self.name.lower()


ROLE_NAMES: Final = tuple(role.label for role in PersonRole)


class ChatPlace(enum.StrEnum):
    """The kinds of chats that the tables distinguish."""

    DIRECT = "direct chat"
    OWN_SESSION = "group, own session"
    SHARED = "shared group"


def find_place(*, is_direct: bool, has_own_session: bool) -> ChatPlace:
    if is_direct:
        return ChatPlace.DIRECT
    return ChatPlace.OWN_SESSION if has_own_session else ChatPlace.SHARED


# -- the role of a sender ----------------------------------------------------------------------------------------------


class SenderFacts(Struct, frozen=True, kw_only=True):
    """What decides the role of a sender in a chat."""

    identity: str
    label: str = ""
    """The person's name, if a proof links the identity to it."""
    is_proven: bool = False
    """Configuration, a code, an operator or a token links the identity to its person."""
    is_paired: bool = False
    """A pairing code admitted the identity to this account."""
    is_direct: bool = False
    """The chat is a direct chat."""


def compute_role(
    sender: SenderFacts, *, owners: Collection[str], direct: Collection[str], group: Collection[str] = ()
) -> PersonRole | None:
    """Return the role of a sender in a chat; None if the sender may not speak there.

    `owners` are the owners of this chat from every level of the configuration. `direct` is the account's list, `group`
    the group's. In a direct chat nobody below member is heard.
    """
    if sender.label and sender.label in owners:
        return PersonRole.OWNER
    is_member = sender.is_paired or _is_listed(sender, direct)
    if sender.is_direct:
        return PersonRole.MEMBER if is_member or ALLOW_EVERYBODY in direct else None
    if _is_listed(sender, group):
        return PersonRole.MEMBER
    if ALLOW_EVERYBODY not in group:
        return None
    if is_member:
        return PersonRole.MEMBER
    return PersonRole.KNOWN if sender.is_proven else PersonRole.STRANGER


def _is_listed(sender: SenderFacts, allowed: Collection[str]) -> bool:
    return sender.identity in allowed or (bool(sender.label) and sender.label in allowed)


def find_lowest_role(roles: Iterable[PersonRole | None]) -> PersonRole:
    """Return the role of a turn: the lowest of the people whose words it takes. A sender who lost access is a
    stranger.
    """
    return min((PersonRole.STRANGER if role is None else role for role in roles), default=PersonRole.STRANGER)


def lower_role(stamped: PersonRole, current: PersonRole | None) -> PersonRole | None:
    """Return the role that counts when a message is handled: the lower of the stamped and the current role."""
    return None if current is None else min(stamped, current)


# -- the tables --------------------------------------------------------------------------------------------------------


class RoleCell(Struct, frozen=True):
    """What a table says for one action in one place."""

    role: PersonRole | None
    """The lowest role that may do it; None: nobody may do it there."""
    scope: str = ""
    """What it is limited to, for the reference page."""
    others: PersonRole | None = None
    """The lowest role that may do it to what another person made; None: there is no such difference."""
    below: str = ""
    """What happens below that role instead of a refusal; empty: it is refused."""

    def allows(self, role: PersonRole) -> bool:
        return self.role is not None and role >= self.role

    def allows_others(self, role: PersonRole) -> bool:
        return self.allows(role) and (self.others is None or role >= self.others)


RoleRow = Mapping[ChatPlace, RoleCell]

_S, _K, _M, _O = PersonRole.STRANGER, PersonRole.KNOWN, PersonRole.MEMBER, PersonRole.OWNER


def _row(direct: RoleCell | PersonRole, own: RoleCell | PersonRole, shared: RoleCell | PersonRole) -> RoleRow:
    cells = (cell if isinstance(cell, RoleCell) else RoleCell(cell) for cell in (direct, own, shared))
    return MappingProxyType(dict(zip(ChatPlace, cells, strict=True)))


_OWN: Final = RoleCell(_M, scope="your own")
_BEGUN_HERE: Final = RoleCell(_S, scope="begun in this chat")
_OWNER_BEGUN_HERE: Final = RoleCell(_O, scope="begun in this chat")
_AUDIBLE: Final = RoleCell(_S, scope="what everybody in the chat may know")
_FORGET: Final = RoleCell(_S, others=_O)
_DECIDABLE: Final = RoleCell(_M, scope="what `policy.approvals.by` lets you answer")
_DECIDABLE_HERE: Final = RoleCell(_S, scope="what `policy.approvals.by` lets you answer")
_NOWHERE: Final = RoleCell(None)
_MATERIAL: Final = RoleCell(_K, below="kept as material")
_CHANGE: Final = RoleCell(_M, others=_O)
_PIN: Final = RoleCell(_M, others=_O)

COMMAND_ROLES: Final[Mapping[str, RoleRow]] = MappingProxyType(
    {
        "help": _row(_M, _S, _S),
        "whoami": _row(_M, _S, _S),
        "status": _row(_M, _S, _S),
        "halt": _row(_M, _S, _S),
        "queue": _row(_M, _S, _S),
        "steer": _row(_M, _S, _S),
        "wake": _row(_M, _K, _K),
        "stop": _row(_M, _S, RoleCell(_S, others=_M)),
        "new": _row(_M, _S, _O),
        "title": _row(_M, _S, _O),
        "title --memory": _row(_M, _O, _O),
        "undo": _row(_M, _O, _O),
        "retry": _row(_M, _O, _O),
        "compress": _row(_M, _O, _O),
        "pin": _row(_M, _M, _PIN),
        "unpin": _row(_M, _M, _PIN),
        "pins": _row(_M, _AUDIBLE, _AUDIBLE),
        "model": _row(_M, _O, _O),
        "sessions": _row(_OWN, _BEGUN_HERE, _BEGUN_HERE),
        "resume": _row(_OWN, _OWNER_BEGUN_HERE, _OWNER_BEGUN_HERE),
        "branch": _row(_OWN, _OWNER_BEGUN_HERE, _OWNER_BEGUN_HERE),
        "memory": _row(_M, _AUDIBLE, _AUDIBLE),
        "memory why": _row(_M, _AUDIBLE, _AUDIBLE),
        "memory search": _row(_M, _AUDIBLE, _AUDIBLE),
        "memory note": _row(_M, _S, _K),
        "memory forget": _row(_M, _FORGET, _FORGET),
        "background": _row(_M, _M, _M),
        "schedule": _row(_M, _M, _M),
        "schedule make": _row(_M, _O, _O),
        "schedule remove": _row(_M, _O, _O),
        "usage": _row(_M, RoleCell(_S, scope="this session's"), RoleCell(_S, scope="this session's")),
        "approvals": _row(_DECIDABLE, _DECIDABLE_HERE, _DECIDABLE_HERE),
        "approve": _row(_DECIDABLE, _DECIDABLE_HERE, _DECIDABLE_HERE),
        "deny": _row(_DECIDABLE, _DECIDABLE_HERE, _DECIDABLE_HERE),
        "link": _row(_M, _NOWHERE, _NOWHERE),
    }
)
"""The lowest role for each command, by the kind of chat. A key with two words is a command with a subcommand."""


class ToolAccess(enum.StrEnum):
    """What a tool does, for the table of tools. A tool that does not say so acts."""

    READ = "read"
    """It searches or shows what the people present may know."""
    NOTE = "note"
    """It stores notes."""
    CHANGE = "change"
    """It replaces or removes what was stored."""
    ACT = "act"
    """It has effects outside the conversation, or nothing is known about it."""


TOOL_ROLES: Final[Mapping[ToolAccess, RoleRow]] = MappingProxyType(
    {
        ToolAccess.READ: _row(_M, _S, _S),
        ToolAccess.NOTE: _row(_M, _MATERIAL, _MATERIAL),
        ToolAccess.CHANGE: _row(_M, _CHANGE, _CHANGE),
        ToolAccess.ACT: _row(_M, _M, _M),
    }
)
"""The lowest role that a turn needs to use a tool, by the kind of chat."""

NEEDS_OWN_WORDS: Final = frozenset({ToolAccess.CHANGE, ToolAccess.ACT})
"""The tools that a turn does not get if it takes only forwarded or quoted text, whatever the role."""


# -- refusals ----------------------------------------------------------------------------------------------------------


def explain_refusal(
    what: str, *, needed: PersonRole, role: PersonRole | None, place: ChatPlace, owners: Collection[str]
) -> str:
    """Return why something was refused: what it is, the role it needs, the sender's role, and whom to ask."""
    where = "in this chat" if place is ChatPlace.DIRECT else "in this group"
    yours = "You may no longer speak here" if role is None else f"Your role here is {role.label}"
    return f"{what} needs the role {needed.label} {where}. {yours}. {name_helpers(needed, owners)}"


def explain_lost_access(owners: Collection[str]) -> str:
    """Return why a message gets no answer after its sender lost access."""
    return (
        "You had access here when you wrote, and you no longer have it. "
        f"{name_helpers(PersonRole.MEMBER, owners)} Then send your message again."
    )


def name_helpers(needed: PersonRole, owners: Collection[str]) -> str:
    """Return whom to ask for a role, as a sentence."""
    who = f"an owner ({', '.join(sorted(owners))})" if owners else "the operator of this gateway"
    if needed is PersonRole.OWNER:
        return f"Ask {who} to do it."
    if needed is PersonRole.KNOWN:
        return f"Ask {who}, or send /link in a direct chat with me to prove who you are."
    return f"Ask {who} to add you to the access list of this chat."


class ToolRule(Struct, frozen=True):
    """What one tool needs: its row of the table, and the role that the configuration asks for in addition."""

    access: ToolAccess = ToolAccess.ACT
    needs: PersonRole = PersonRole.STRANGER

    def find_needed(self, role: PersonRole, place: ChatPlace) -> PersonRole | None:
        """Return the role that is missing; None if a turn with this role may use the tool."""
        cell = TOOL_ROLES[self.access][place]
        assert cell.role is not None, "every tool may be used by somebody"
        needed = max(self.needs, PersonRole.STRANGER if cell.below else cell.role)
        return None if role >= needed else needed


def list_role_refusals(rules: Mapping[str, ToolRule], role: PersonRole, place: ChatPlace) -> dict[str, str]:
    """Return the tools that a turn may not use, each with the reason that the model is told."""
    return {
        tool: f"{tool} was not run: it needs the role {needed.label} here, and the least trusted person whose words "
        f"this turn takes is {role.label}. Say so if it matters; an owner can do it or change the access list."
        for tool, rule in rules.items()
        if (needed := rule.find_needed(role, place)) is not None
    }
