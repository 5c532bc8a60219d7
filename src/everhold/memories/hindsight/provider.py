"""A Hindsight server as a memory provider.

Every exchange and note is its own document, so no document overwrites another. Documents are retained under an
operation id that is made from their content: repeating the same documents does nothing, and other documents are another
operation.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from everhold.core.peers import PeerRule, make_safe_id, make_safe_id_prefix
from everhold.core.people import PresentAudience, can_hear
from everhold.core.wording import describe_count
from everhold.errors import EverholdError, InDoubt, Transient
from everhold.memories.errors import convert_partial_failure
from everhold.memories.hindsight.client import HindsightClient, HindsightNotFound
from everhold.memories.hindsight.erasure import HindsightErasure, confirm_deletions
from everhold.memories.hindsight.tags import KEY_TAG, SEQ_TAG, SPEAKER_TAG, read_document_key, read_tag
from everhold.memories.hindsight.tools import build_tools
from everhold.memories.remote import (
    REMOTE_CAPABILITIES,
    compute_signature,
    escape_nul,
    format_exchange,
    read_time,
    unescape_nul,
)
from everhold.memories.scope import (
    get_only_person,
    get_present,
    list_present_names,
    make_document_id,
    name_audience,
)
from everhold.memories.settings import fill_agent_name
from everhold.ports.log import EventLogger
from everhold.ports.memory import (
    ErasureState,
    ErasureTarget,
    Exchange,
    MemoryBatch,
    MemoryCapability,
    MemoryHit,
    MemoryItem,
    MemoryNote,
    MemoryQuery,
    MemoryRetraction,
    ProviderDeletion,
    ProviderHealth,
)
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.tool import Tool

if TYPE_CHECKING:
    from everhold.memories.hindsight.settings import HindsightSettings

OPERATION_NAMESPACE: Final = uuid.UUID("5f7a1f1e-6a54-5f0b-9d0a-6b3a0c8f2e11")
"""Namespace of the operation ids. Any constant works if it never changes."""
_TEMPLATE_VARIABLE: Final = re.compile(r"\{person\}|\{session\}")


class HindsightMemory:
    """One instance for one agent."""

    delivery = DeliveryGuarantee.KEYED
    visible_after = 0.0
    capabilities: ClassVar = REMOTE_CAPABILITIES | {MemoryCapability.PERSONA}

    def __init__(self, settings: HindsightSettings, *, agent: str, log: EventLogger) -> None:
        self.settings = settings
        self.agent = agent
        self.log = log
        self.deadline = settings.deadline_seconds + settings.confirm_seconds
        self.client = HindsightClient(settings)
        self.peer_rule = PeerRule()
        self.session_names: dict[str, str] = {}
        """Session -> its name at Hindsight, as far as known. Tools need it, because their context does not contain the
        name.
        """

    def set_persona(self, persona: str) -> None:
        self.client.set_persona(persona.strip())

    # -- storing -----------------------------------------------------------------------------------------------------

    async def store(self, batch: MemoryBatch) -> Mapping[str, str]:
        """Store the items in order. Adjacent items of one bank go in one operation; deletions keep their place in the
        order.
        """
        remotes: dict[str, str] = {}
        for item in batch.items:
            self.remember_session_name(item.session, batch.name)
        placed = [(self._select_banks(batch, item), item) for item in batch.items]
        for (banks, kind), group in itertools.groupby(placed, lambda it: (it[0], _classify_item(it[1]))):
            items = [item for _, item in group]
            try:
                await self._delete_replaced(banks, items)
                if kind == "keep":
                    await self._retain_items(banks[0], items)
            except EverholdError as error:
                raise convert_partial_failure(bool(remotes), error) from error
            remotes |= {item.key: make_document_id(item.key) for item in items}
        return remotes

    async def _retain_items(self, bank: str, items: Sequence[MemoryItem]) -> None:
        documents = [document for item in items if (document := self._build_document(item)) is not None]
        if not documents:
            return
        await self.client.ensure_bank(bank)
        operation = make_operation_id(bank, documents)
        await self.client.retain_documents(bank, documents, operation)
        if self.settings.confirm:
            await self._confirm_operation(bank, operation, documents)

    async def _confirm_operation(self, bank: str, operation: str, documents: Sequence[dict[str, Any]]) -> None:
        """Wait until an operation has ended and its documents exist. Accepted is not stored. A longer operation is
        probed later.
        """
        try:
            ended = await self.client.wait_for_operation(bank, operation, seconds=self.settings.confirm_seconds)
        except HindsightNotFound as error:
            raise InDoubt("Hindsight accepted an operation but no longer knows it") from error
        if ended.status == "failed":
            await self.client.retry_operation(bank, operation)
            raise Transient(f"Hindsight could not store it: {ended.error_message or 'no reason given'}")
        if ended.status != "completed":
            raise InDoubt(f"Hindsight accepted it but has not stored it yet ({ended.status})")
        lost = (ended.result_metadata or {}).get("extraction_errors_count")
        if lost:
            # The document exists, but extraction from it failed. A repeat would not change that.
            self.log.warning("memory.incomplete", bank=bank, operation=operation, facts_lost=lost)
        for document in documents:
            if await self.client.get_document(bank, document["document_id"]) is None:
                raise InDoubt("Hindsight reported a document as stored, but it is not there")

    async def _delete_replaced(self, banks: Sequence[str], items: Sequence[MemoryItem]) -> None:
        for bank, item in itertools.product(banks, items):
            for key in _list_retracted_keys(item):
                await self.client.delete_document(bank, make_document_id(key))
            if isinstance(item, MemoryNote) and item.action != "add" and item.fact and not item.supersedes:
                # The previous version may be from another session, so it is found by the fact it is about.
                for old in await self.client.list_documents(bank, f"fact:{make_safe_id(item.fact)}"):
                    if old.id != make_document_id(item.key):
                        await self.client.delete_document(bank, old.id)

    # -- probing -----------------------------------------------------------------------------------------------------

    async def probe(self, batch: MemoryBatch) -> Sequence[str]:
        arrived = []
        for item in batch.items:
            banks = self._select_banks(batch, item)
            gone = [
                await self.client.get_document(bank, make_document_id(key)) is None
                for bank in banks
                for key in _list_retracted_keys(item)
            ]
            document = self._build_document(item) if _classify_item(item) == "keep" else None
            here = document is None or await self.client.get_document(banks[0], document["document_id"]) is not None
            if here and all(gone):
                arrived.append(item.key)
        return arrived

    async def remove(self, batch: MemoryBatch) -> Sequence[str]:
        left = []
        for item in batch.items:
            if isinstance(item, MemoryRetraction):
                continue
            bank, document = self.get_bank(item.stamp.audience, batch.name, item.peers), make_document_id(item.key)
            await self.client.delete_document(bank, document)
            if await self.client.get_document(bank, document) is not None:
                left.append(item.key)
        return left

    # -- finding -----------------------------------------------------------------------------------------------------

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        if query.agent != self.agent or not query.audience or not query.text.strip():
            return ()
        if query.name:
            self.remember_session_name(query.session, query.name)
        present, person = get_present(query), get_only_person(query.audience)
        found: dict[str, MemoryHit] = {}
        for bank in self.list_present_banks(present, query.peers, query.name):
            try:
                answer = await self.client.call(
                    "recalling",
                    lambda sdk, bank=bank: sdk.arecall(
                        bank,
                        query.text.strip(),
                        types=list(self.settings.recall_types),
                        max_tokens=self.settings.recall_tokens,
                        budget=self.settings.budget,
                        **self.build_tag_filter(present),
                    ),
                )
            except HindsightNotFound:
                continue
            for one in answer.results:
                hit = _to_memory_hit(one, person)
                if self._can_hear(present, one.tags or (), hit.at):
                    found.setdefault(one.id, hit)
        return list(found.values())[: query.limit]

    def _can_hear(self, present: PresentAudience, tags: Sequence[str], at: float) -> bool:
        heard_by = [one for one in present.list_members() if _build_audience_tag(one) in tags]
        ours = self.settings.share_agents or self._agent_tag in tags
        return ours and can_hear(present, heard_by, at)

    # -- other capabilities ------------------------------------------------------------------------------------------

    def tools(self) -> Sequence[Tool]:
        return build_tools(self)

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        return await HindsightErasure(self, target).ask()

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        return await confirm_deletions(self, deletions)

    async def export(
        self, person: str, *, peers: Sequence[str] = (), shared_peers: Sequence[str] = ()
    ) -> AsyncIterator[MemoryHit]:
        banks, _ = await self.list_banks_with((person, *peers, *shared_peers))
        for bank, listed in await self.list_documents_of(person, banks):
            document = await self.client.get_document(bank, listed.id)
            if document is not None:
                about = document.document_metadata or {}
                key = read_document_key(document)
                yield MemoryHit(
                    text=unescape_nul(document.original_text or ""),
                    session=key.partition(":")[0] or str(about.get("session", "")),
                    seq=int(read_tag(document.tags or (), SEQ_TAG) or about.get("seq") or 0),
                    person=person,
                    at=read_time(document.created_at),
                    key=key,
                )

    async def list_documents_of(self, person: str, banks: Sequence[str]) -> list[tuple[str, Any]]:
        """Yield (bank, document) for all documents in which a person speaks."""
        # a bank whose name only begins like ours may belong to another agent
        agent_tags = () if self._uses_single_bank else (f"agent:{make_safe_id(self.agent)}",)
        return [
            (bank, document)
            for bank in banks
            for document in await self.client.list_documents(bank, f"person:{make_safe_id(person)}", *agent_tags)
        ]

    async def list_banks_with(self, names: Sequence[str]) -> tuple[list[str], bool]:
        """Return the banks that may hold something of a person, and whether the list is complete: banks of groups have
        other names. `names` are the person's identities and peers.
        """
        known = {self._fill_bank(who, name) for who in names for name in ("", *self.session_names.values())}
        if self._uses_single_bank:
            return sorted(known), True
        try:
            banks = await self.client.list_banks()
        except HindsightNotFound:
            return sorted(known), False
        ours = make_safe_id_prefix(_TEMPLATE_VARIABLE.split(fill_agent_name(self.settings.bank, self.agent))[0])
        return sorted({*known, *(bank for bank in banks if bank.startswith(ours))}), True

    async def health(self) -> ProviderHealth:
        """Check that the server answers and that operations do not fail. Servers were seen to answer while they stored
        nothing.
        """
        bank = self.get_bank((), "")
        try:
            await self.client.call("checking its health", lambda sdk: sdk.monitoring.health_endpoint_health_get())
            broken = await self.client.call(
                "listing failures", lambda sdk: sdk.operations.list_operations(bank, status="failed", type="retain")
            )
        except HindsightNotFound:
            return ProviderHealth(healthy=True)
        except EverholdError as error:
            return ProviderHealth(healthy=False, text=error.message)
        return ProviderHealth(
            healthy=not broken.total,
            text=f"{describe_count(broken.total, 'operation')} failed there" if broken.total else "",
        )

    async def close(self) -> None:
        await self.client.close()

    def cache_busting_signature(self) -> dict[str, str] | None:
        return compute_signature("hindsight", self.settings)

    # -- helpers -----------------------------------------------------------------------------------------------------

    @property
    def _agent_tag(self) -> str:
        return f"agent:{make_safe_id(self.agent)}"

    def build_tag_filter(self, present: PresentAudience) -> dict[str, Any]:
        """Return the filter for documents that the people present may see: for each of them, a tag of any of their
        identities. A weaker match would let untagged documents through.
        """
        tags = [[_build_audience_tag(one.member) for one in group] for group in present.groups]
        tags += [] if self.settings.share_agents else [[self._agent_tag]]
        if all(len(group) == 1 for group in tags):
            return {"tags": sorted(group[0] for group in tags), "tags_match": "all_strict"}
        # the groups are combined with AND
        return {"tag_groups": [{"tags": group, "match": "any_strict"} for group in tags]}

    def list_present_banks(self, present: PresentAudience, peers: Mapping[str, Sequence[str]], name: str) -> list[str]:
        """Return the banks that may hold what the people present may see."""
        return list(dict.fromkeys(self._fill_bank(it.who, name) for it in list_present_names(present, peers)))

    def get_bank(self, audience: Sequence[str], name: str, peers: Mapping[str, str] = MappingProxyType({})) -> str:
        """Return the bank of an audience."""
        return self._fill_bank(name_audience(audience, peers), name)

    def _fill_bank(self, who: str, name: str) -> str:
        filled = self.settings.bank.replace("{agent}", self.agent).replace("{person}", who).replace("{session}", name)
        return make_safe_id(filled)

    @property
    def _uses_single_bank(self) -> bool:
        """Whether everything this agent stores is in one bank."""
        return _TEMPLATE_VARIABLE.search(self.settings.bank) is None

    def remember_session_name(self, session: str, name: str) -> None:
        self.session_names[session] = name
        if len(self.session_names) > 1_000:
            del self.session_names[next(iter(self.session_names))]

    def _select_banks(self, batch: MemoryBatch, item: MemoryItem) -> tuple[str, ...]:
        """Return the banks of an item: one, or for a retraction the banks of everyone who heard the retracted items."""
        if not isinstance(item, MemoryRetraction):
            own = self.get_bank(item.stamp.audience, batch.name, item.peers)
            if not isinstance(item, MemoryNote) or item.action == "add":
                return (own,)
            known = batch.peers_of.get(item.supersedes) or batch.peers_of.get(item.fact)
            before = own if known is None else self.get_bank(item.stamp.audience, batch.name, known)
            return tuple(dict.fromkeys((own, before)))
        places = [(batch.heard_by.get(key, ()), batch.peers_of.get(key, {})) for key in item.keys] or [((), {})]
        return tuple(dict.fromkeys(self.get_bank(audience, batch.name, peers) for audience, peers in places))

    def _build_document(self, item: MemoryItem) -> dict[str, Any] | None:
        """Build the document to retain for an item; None if the item has no text.

        Hindsight writes the metadata of a document into the prompt for its language model, so what we need to find the
        entry again is in tags.
        """
        assert not isinstance(item, MemoryRetraction)
        text = format_exchange(item) if isinstance(item, Exchange) else escape_nul(item.text.strip())
        if not text:
            return None
        people = {item.stamp.person}
        if isinstance(item, Exchange):
            people |= {utterance.stamp.person for utterance in item.heard}
        company = (*_build_audience_tags(item.stamp.audience), f"agent:{make_safe_id(item.agent)}")
        tags = [
            *self.settings.tags,
            *company,
            f"session:{make_safe_id(item.session)}",
            *(f"person:{make_safe_id(person)}" for person in sorted(people) if person),
            *(make_safe_id(tag) for tag in item.tags),
        ]
        seq = (*item.heard, *item.said)[0].seq if isinstance(item, Exchange) else item.seq
        tags += [f"{KEY_TAG}{item.key}", f"{SEQ_TAG}{seq}"]
        tags += [f"{SPEAKER_TAG}{item.stamp.person}"] if item.stamp.person else []
        if isinstance(item, Exchange):
            tags += [f"parent:{make_safe_id(item.parent)}"] if item.parent else []
        else:
            tags += [f"fact:{make_safe_id(item.fact)}"] if item.fact else []
        return {
            "content": text,
            "document_id": make_document_id(item.key),
            "timestamp": datetime.fromtimestamp(item.at, UTC).isoformat() if item.at else None,
            "context": self.settings.context if isinstance(item, Exchange) else "noted",
            "tags": list(dict.fromkeys(tags)),
            # what Hindsight consolidates over several documents stays within their audience
            "observation_scopes": [list(company)],
        }


def _build_audience_tags(audience: Sequence[str]) -> tuple[str, ...]:
    """Return one tag for each member of the audience; a query asks for the tags of everyone present."""
    return tuple(_build_audience_tag(one) for one in sorted(audience))


def _build_audience_tag(member: str) -> str:
    return f"audience:{make_safe_id(member)}"


def make_operation_id(bank: str, documents: Sequence[Mapping[str, Any]]) -> str:
    """Make the operation id from the content, because Hindsight silently drops other content under the same id."""
    content = json.dumps([bank, documents], sort_keys=True, ensure_ascii=True)
    return str(uuid.uuid5(OPERATION_NAMESPACE, hashlib.sha256(content.encode()).hexdigest()))


def _classify_item(item: MemoryItem) -> str:
    return (
        "drop"
        if isinstance(item, MemoryRetraction) or (isinstance(item, MemoryNote) and item.action == "remove")
        else "keep"
    )


def _list_retracted_keys(item: MemoryItem) -> tuple[str, ...]:
    """Return the keys of the items that an item removes."""
    match item:
        case MemoryRetraction(keys=keys):
            return keys
        case MemoryNote(supersedes=key) if key:
            return (key,)
        case _:
            return ()


def _to_memory_hit(result: Any, person: str) -> MemoryHit:
    # Earlier versions stored these values as metadata.
    about, tags = result.metadata or {}, result.tags or ()
    key = read_tag(tags, KEY_TAG) or about.get("everhold", "")
    return MemoryHit(
        text=unescape_nul(result.text),
        score=float(result.scores.final) if result.scores else 0.0,
        session=key.partition(":")[0] or about.get("session", ""),
        seq=int(read_tag(tags, SEQ_TAG) or about.get("seq") or 0),
        person=read_tag(tags, SPEAKER_TAG) or about.get("person", "") or person,
        at=read_time(result.mentioned_at or result.occurred_start),
        key=key,
    )
