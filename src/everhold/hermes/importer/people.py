"""Records the people of an import: each identity as a live message has it, with the proof `import`, which grants no
rights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from everhold.core.people import IdentityProof, PeopleDirectory, PeoplePlanner, build_identity
from everhold.hermes.importer.conversations import ImportedConversation
from everhold.hermes.importer.places import IMPORTED_PLATFORM, HermesChat
from everhold.hermes.reader.lineage import SessionChain


class ImportedSender(NamedTuple):
    """A person of an import, with the ids that hermes-agent gave to memory services."""

    identity: str
    user: str
    alt: str
    chat: HermesChat
    chain: SessionChain


def list_senders(conversations: Iterable[ImportedConversation]) -> list[ImportedSender]:
    """Return the senders of all chains, oldest conversations first."""
    found = []
    for conversation in conversations:
        for chat, chain in zip(conversation.chats, conversation.chains, strict=True):
            identity = conversation.identity
            if chat.is_shared and chat.user:
                identity = build_identity(chat.address.platform, chat.user)
            found.append(ImportedSender(identity, chat.user, chat.alt, chat, chain))
    return found


def is_unknown(identity: str) -> bool:
    """Whether an identity stands for somebody without an id."""
    return identity.startswith(f"{IMPORTED_PLATFORM}:")


def plan_people(
    planner: PeoplePlanner,
    conversations: Sequence[ImportedConversation],
    owner: str,
    *,
    directory: PeopleDirectory,
) -> list[str]:
    """Plan a person for every identity, and the links of second ids. Return what was not linked."""
    senders = list_senders(conversations)
    identities = {it.identity for it in senders} | {it.identity for it in conversations} | ({owner} - {""})
    for identity in sorted(identities):
        planner.get_person(identity, proof=IdentityProof.IMPORT)
    remarks: list[str] = []
    for identity, alt in sorted({(it.identity, _build_alt(it)) for it in senders if it.alt}):
        known = directory.is_same_person(identity, alt)
        # Somebody who has spoken under the second id is a person already, whom an import must not give to another.
        if alt in identities or (alt in directory.identities and not known):
            remarks.append(f"{alt} is a second id of {identity} there, but is known here as another person; not linked")
        elif not known:
            planner.link_identity(alt, planner.get_person(identity), IdentityProof.IMPORT)
    return remarks


def _build_alt(sender: ImportedSender) -> str:
    return build_identity(sender.chat.address.platform, sender.alt)
