"""Finds the role that a sender has in a chat now: by the configuration in force, the people directory and pairing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final, TypeVar

from msgspec import Struct

from everhold.config import AccountSettings, Settings
from everhold.config.settings import ChatSettings
from everhold.core.access import IdentifiedSender
from everhold.core.address import parse_address
from everhold.core.entries import Entry, Heard
from everhold.core.people import HOOK_PLATFORM, PERSON_MEMBER, PeopleDirectory
from everhold.core.roles import ChatPlace, PersonRole, SenderFacts, compute_role
from everhold.engine.roles import RoleStanding, find_heard_place
from everhold.ingress.pairing import PairingRegistry
from everhold.ports.store import Store

T = TypeVar("T")

AGENT_PLATFORM: Final = "agent"
HOOK_ROLE: Final = PersonRole.STRANGER
"""The role of every webhook: what it says may come from anybody."""
LOCAL_PLATFORMS: Final = frozenset({"terminal", "http", AGENT_PLATFORM, HOOK_PLATFORM})
"""Platforms whose server has already authenticated the sender."""
EVERYWHERE: Final = "access"
"""The section of the configuration whose owners are owners everywhere."""
MAX_KNOWN_STANDINGS: Final = 4_096


class ChatSender(Struct, frozen=True, kw_only=True):
    """A sender in a chat, with everything that decides the role there."""

    speaker: IdentifiedSender
    sender: str
    """The platform's id of the sender."""
    agent: str
    platform: str
    account: str
    is_direct: bool
    is_hook: bool = False
    """A webhook sends it."""
    chats: tuple[str, ...]
    """The ids of the chat."""


class RoleFinder:
    """Computes roles. The admission asks when a message arrives, the workers ask when they handle it."""

    def __init__(
        self,
        store: Store,
        *,
        pairing: PairingRegistry,
        load_settings: Callable[[], Awaitable[Settings]],
    ) -> None:
        """`load_settings` returns the settings in force, after the people in them were applied."""
        self._store = store
        self._pairing = pairing
        self._load_settings = load_settings
        self._known: dict[tuple[str, str, str, str], RoleStanding] = {}
        """The roles that follow from `_basis` alone."""
        self._basis: tuple[Settings | None, int] = (None, -1)
        """The settings and the people's epoch that `_known` was computed from."""

    async def find_role(self, entry: Entry) -> RoleStanding:
        """Return the role that the sender of a stored message has now in the chat it was sent from."""
        if not isinstance(entry.body, Heard) or not entry.author.startswith(PERSON_MEMBER):
            return RoleStanding(role=PersonRole.MEMBER)  # the gateway's own entries, such as the result of a task
        heard = entry.body
        if not heard.stamp.address:
            return RoleStanding(role=heard.role)
        if heard.hook and find_heard_place(heard) is not ChatPlace.DIRECT:
            return RoleStanding(role=HOOK_ROLE)
        settings = await self._load_settings()
        return await self.find_sender_role(
            entry.author.removeprefix(PERSON_MEMBER),
            address=heard.stamp.address,
            sender=heard.speaker,
            chat=heard.origin.chat,
            settings=settings,
        )

    async def find_person_role(self, identity: str, *, address: str) -> RoleStanding:
        """Return the role that an identity has now at an address."""
        return await self.find_sender_role(identity, address=address, settings=await self._load_settings())

    async def find_sender_role(
        self, identity: str, *, address: str, settings: Settings, sender: str = "", chat: str = ""
    ) -> RoleStanding:
        people = await self._store.get_people()
        if self._basis[0] is not settings or self._basis[1] != people.epoch:
            self._basis, self._known = (settings, people.epoch), {}
        known, key = self._known, (identity, address, sender, chat)
        if (standing := known.get(key)) is not None:
            return standing
        place = parse_address(address)
        found = ChatSender(
            speaker=identify_person(identity, people),
            sender=sender or identity.partition(":")[2],
            agent=place.agent,
            platform=place.platform,
            account=place.account or place.agent,
            is_direct=place.kind == "dm",
            chats=(chat, place.chat),
        )
        owners = list_owners(found, settings)
        role = compute_configured_role(found, settings, owners)
        if can_be_paired(found, role, settings):  # pairing can end at any time, so this is not kept
            paired = await self._apply_pairing(found, role)
            return RoleStanding(role=paired, owners=tuple(sorted(owners)))
        standing = RoleStanding(role=role, owners=tuple(sorted(owners)))
        if len(known) >= MAX_KNOWN_STANDINGS:
            known.clear()
        known[key] = standing
        return standing

    async def compute_role(self, chat: ChatSender, settings: Settings) -> PersonRole | None:
        """Return the role of a sender in a chat; None if the sender may not speak there."""
        role = compute_configured_role(chat, settings, list_owners(chat, settings))
        return await self._apply_pairing(chat, role) if can_be_paired(chat, role, settings) else role

    async def _apply_pairing(self, chat: ChatSender, role: PersonRole | None) -> PersonRole | None:
        """Return the role of a sender whom an operator may have admitted."""
        is_admitted = await self._pairing.is_admitted(chat.platform, chat.account, chat.sender)
        return PersonRole.MEMBER if is_admitted else role


def compute_configured_role(chat: ChatSender, settings: Settings, owners: Collection[str]) -> PersonRole | None:
    """Return the role of a sender in a chat by the configuration and the people directory, without pairing."""
    speaker = chat.speaker
    if chat.platform in LOCAL_PLATFORMS:
        return PersonRole.OWNER if speaker.label and speaker.label in owners else PersonRole.MEMBER
    account = find_account(chat, settings)
    if account is None:
        return None
    group = () if chat.is_direct else find_configured(account.access.groups, *chat.chats) or ()
    facts = SenderFacts(
        identity=speaker.identity, label=speaker.label, is_proven=speaker.is_proven, is_direct=chat.is_direct
    )
    return compute_role(facts, owners=owners, direct=account.access.direct, group=group)


def can_be_paired(chat: ChatSender, role: PersonRole | None, settings: Settings) -> bool:
    """Return whether an admission by an operator would change this role."""
    if role is PersonRole.OWNER or role is PersonRole.MEMBER or (role is None and not chat.is_direct):
        return False
    return find_account(chat, settings) is not None


def identify_person(identity: str, people: PeopleDirectory) -> IdentifiedSender:
    """Return a sender with the name of the person, if a proof links the identity to one."""
    record = people.identities.get(identity)
    return IdentifiedSender(
        identity=identity,
        label=people.find_proven_label(identity),
        is_proven=record is not None and record.is_proven,
    )


def list_owners(chat: ChatSender, settings: Settings) -> set[str]:
    """Return the owners of a chat: those of the access, the agent, the account and the chat."""
    owners = {*settings.access.owners}
    if chat.agent in settings.agents:
        owners |= {*settings.agents[chat.agent].owners}
    account = find_account(chat, settings)
    if account is not None:
        owners |= {*account.owners}
        own = find_configured(account.chats, *chat.chats)
        if own is not None:
            owners |= {*own.owners}
    return owners


def find_account(chat: ChatSender, settings: Settings) -> AccountSettings | None:
    return settings.platforms.get(chat.platform, {}).get(chat.account)


def find_configured(given: Mapping[str, T], *names: str) -> T | None:
    """Return the configuration of a chat, under any of its ids."""
    return next((given[name] for name in names if name in given), None)


def describe_ownership(label: str, settings: Settings) -> list[str]:
    """Return where a person is an owner, as key paths of the configuration; `access` means everywhere."""
    places = [(EVERYWHERE, settings.access.owners)]
    places += [(f"agents.{name}", agent.owners) for name, agent in settings.agents.items()]
    for account in settings.list_accounts():
        at = f"platforms.{account.platform}.{account.account}"
        places.append((at, account.owners))
        places += [(f"{at}.chats.{chat}", _get_owners(own)) for chat, own in account.chats.items()]
    return [place for place, owners in places if label and label in owners]


def _get_owners(chat: ChatSettings) -> tuple[str, ...]:
    return chat.owners
