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
from typing import TYPE_CHECKING, Any, ClassVar, Final

from everhold.core.wording import describe_count
from everhold.errors import EverholdError, InDoubt, Transient
from everhold.memories.errors import convert_partial_failure
from everhold.memories.formatting import escape_nul, format_exchange, unescape_nul
from everhold.memories.hindsight.client import HindsightClient, HindsightNotFound
from everhold.memories.hindsight.tools import build_tools
from everhold.memories.remote import REMOTE_CAPABILITIES, read_time
from everhold.memories.scope import get_only_person, hash_audience, make_safe_id, make_safe_id_prefix
from everhold.memories.settings import fill_agent_name
from everhold.memories.signature import compute_signature
from everhold.ports.log import EventLogger
from everhold.ports.memory import (
    Exchange,
    ForgetResult,
    MemoryBatch,
    MemoryHit,
    MemoryItem,
    MemoryNote,
    MemoryQuery,
    MemoryRetraction,
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
    capabilities: ClassVar = REMOTE_CAPABILITIES

    def __init__(self, settings: HindsightSettings, *, agent: str, log: EventLogger) -> None:
        self.settings = settings
        self.agent = agent
        self.log = log
        self.deadline = settings.deadline_seconds + settings.confirm_seconds
        self.client = HindsightClient(settings)
        self.session_names: dict[str, str] = {}
        """Session -> its name at Hindsight, as far as known. Tools need it, because their context does not contain the
        name.
        """

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
                    await self._retain_items(banks[0], batch.name, items)
            except EverholdError as error:
                raise convert_partial_failure(bool(remotes), error) from error
            remotes |= {item.key: make_document_id(item.key) for item in items}
        return remotes

    async def _retain_items(self, bank: str, name: str, items: Sequence[MemoryItem]) -> None:
        documents = [document for item in items if (document := self._build_document(name, item)) is not None]
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
            document = self._build_document(batch.name, item) if _classify_item(item) == "keep" else None
            here = document is None or await self.client.get_document(banks[0], document["document_id"]) is not None
            if here and all(gone):
                arrived.append(item.key)
        return arrived

    # -- finding -----------------------------------------------------------------------------------------------------

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        if query.agent != self.agent or not query.audience or not query.text.strip():
            return ()
        if query.name:
            self.remember_session_name(query.session, query.name)
        bank = self.get_bank(query.audience, query.name)
        wanted = self.build_present_tags(query.audience)
        try:
            answer = await self.client.call(
                "recalling",
                lambda sdk: sdk.arecall(
                    bank,
                    query.text.strip(),
                    types=list(self.settings.recall_types),
                    max_tokens=self.settings.recall_tokens,
                    budget=self.settings.budget,
                    tags=list(wanted),
                    tags_match="all_strict",  # a weaker match would let untagged documents through
                ),
            )
        except HindsightNotFound:
            return ()
        fitting = [one for one in answer.results if set(wanted) <= set(one.tags or ())]
        return [_to_memory_hit(one, get_only_person(query.audience)) for one in fitting[: query.limit]]

    # -- other capabilities ------------------------------------------------------------------------------------------

    def tools(self) -> Sequence[Tool]:
        return build_tools(self)

    async def forget(self, person: str) -> ForgetResult:
        """Delete the documents in which only this person speaks, with everything learned from them."""
        deleted, kept = 0, []
        banks, everywhere = await self._list_banks_with(person)
        for bank, document in await self._list_documents_of(person, banks):
            others = {tag for tag in document.tags or () if tag.startswith("person:")} - {
                f"person:{make_safe_id(person)}"
            }
            if others:
                kept.append(f"document {document.id} in bank {bank}: other people speak in it, too")
            else:
                deleted += await self.client.delete_document(bank, document.id)
        if not everywhere:
            kept.append(f"banks called {self.settings.bank} other than {', '.join(banks)}: the server cannot list them")
        return ForgetResult(deleted=deleted, kept=tuple(kept))

    async def export(self, person: str) -> AsyncIterator[MemoryHit]:
        banks, _ = await self._list_banks_with(person)
        for bank, listed in await self._list_documents_of(person, banks):
            document = await self.client.get_document(bank, listed.id)
            if document is not None:
                yield MemoryHit(
                    text=unescape_nul(document.original_text or ""), person=person, at=read_time(document.created_at)
                )

    async def _list_documents_of(self, person: str, banks: Sequence[str]) -> list[tuple[str, Any]]:
        """Yield (bank, document) for all documents in which a person speaks."""
        # a bank whose name only begins like ours may belong to another agent
        whose = () if self._uses_single_bank else (f"agent:{make_safe_id(self.agent)}",)
        return [
            (bank, document)
            for bank in banks
            for document in await self.client.list_documents(bank, f"person:{make_safe_id(person)}", *whose)
        ]

    async def _list_banks_with(self, person: str) -> tuple[list[str], bool]:
        """Return the banks that may hold something of a person, and whether the list is complete: banks of groups have
        other names.
        """
        known = {self.get_bank((f"person:{person}",), name) for name in ("", *self.session_names.values())}
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
            await self.client.call("asking how it is", lambda sdk: sdk.monitoring.health_endpoint_health_get())
            broken = await self.client.call(
                "listing failures", lambda sdk: sdk.operations.list_operations(bank, status="failed", type="retain")
            )
        except HindsightNotFound:
            return ProviderHealth(well=True)
        except EverholdError as error:
            return ProviderHealth(well=False, text=error.message)
        return ProviderHealth(
            well=not broken.total,
            text=f"{describe_count(broken.total, 'operation')} failed there" if broken.total else "",
        )

    async def close(self) -> None:
        await self.client.close()

    def cache_busting_signature(self) -> dict[str, str] | None:
        return compute_signature("hindsight", self.settings)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def build_present_tags(self, audience: Sequence[str]) -> tuple[str, ...]:
        """Return the tags that every document has which the people present may see."""
        tags = _build_audience_tags(audience)
        return tags if self.settings.share_agents else (*tags, f"agent:{make_safe_id(self.agent)}")

    def get_bank(self, audience: Sequence[str], name: str) -> str:
        """Return the bank of an audience."""
        who = get_only_person(audience) or hash_audience(audience) or "nobody"
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
            return (self.get_bank(item.stamp.audience, batch.name),)
        audiences = [batch.heard_by.get(key, ()) for key in item.keys] or [()]
        return tuple(dict.fromkeys(self.get_bank(audience, batch.name) for audience in audiences))

    def _build_document(self, name: str, item: MemoryItem) -> dict[str, Any] | None:
        """Build the document to retain for an item; None if the item has no text."""
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
        metadata = {"everhold": item.key, "session": item.session, "name": name, "person": item.stamp.person}
        if isinstance(item, Exchange):
            first = (*item.heard, *item.said)[0]
            metadata |= {"turn": str(item.op), "seq": str(first.seq)}
            if item.parent:
                tags.append(f"parent:{make_safe_id(item.parent)}")
                metadata["parent"] = item.parent
        else:
            metadata["seq"] = str(item.seq)
            tags += [f"fact:{make_safe_id(item.fact)}"] if item.fact else []
        return {
            "content": text,
            "document_id": make_document_id(item.key),
            "timestamp": datetime.fromtimestamp(item.at, UTC).isoformat() if item.at else None,
            "context": self.settings.context if isinstance(item, Exchange) else "noted",
            "metadata": {key: value for key, value in metadata.items() if value},
            "tags": list(dict.fromkeys(tags)),
            # what Hindsight consolidates over several documents stays within their audience
            "observation_scopes": [list(company)],
        }


def _build_audience_tags(audience: Sequence[str]) -> tuple[str, ...]:
    """Return one tag for each member of the audience; a query asks for the tags of everyone present."""
    return tuple(f"audience:{make_safe_id(one)}" for one in sorted(audience))


def make_document_id(key: str) -> str:
    """Return the id of the document for an exchange or note."""
    return f"everhold-{make_safe_id(key)}"


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
    about = result.metadata or {}
    return MemoryHit(
        text=unescape_nul(result.text),
        score=float(result.scores.final) if result.scores else 0.0,
        session=about.get("session", ""),
        seq=int(about.get("seq") or 0),
        person=about.get("person", "") or person,
        at=read_time(result.mentioned_at or result.occurred_start),
        key=about.get("everhold", ""),
    )
