"""A Hindsight server as a memory provider.

Every exchange and note is a document of its own, so nothing overwrites anything. Documents are handed over under an
operation's id that is made from their content: the same hand-over again does nothing, another one is another operation.
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
from everhold.memories.faults import partly
from everhold.memories.hindsight.client import Client, Gone
from everhold.memories.hindsight.tools import tools_of
from everhold.memories.remote import REMOTE_CAPABILITIES, read_time
from everhold.memories.scope import alone, beginning, handle, token
from everhold.memories.settings import filled
from everhold.memories.signature import signature
from everhold.memories.wording import packed, told, unpacked
from everhold.ports.log import Log
from everhold.ports.memory import (
    Batch,
    Exchange,
    Forgotten,
    Found,
    Health,
    Memory,
    Note,
    Query,
    Retraction,
)
from everhold.ports.platform import Delivery
from everhold.ports.tool import Tool

if TYPE_CHECKING:
    from everhold.memories.hindsight.settings import HindsightSettings

NAMESPACE: Final = uuid.UUID("5f7a1f1e-6a54-5f0b-9d0a-6b3a0c8f2e11")
"""Of the ids that operations get: any constant will do, if it never changes."""
_VARIABLE: Final = re.compile(r"\{person\}|\{session\}")


class HindsightMemory:
    """One instance for one agent."""

    delivery = Delivery.KEYED
    visible_after = 0.0
    capabilities: ClassVar = REMOTE_CAPABILITIES

    def __init__(self, settings: HindsightSettings, *, agent: str, log: Log) -> None:
        self.settings = settings
        self.agent = agent
        self.log = log
        self.deadline = settings.deadline_seconds + settings.confirm_seconds
        self.client = Client(settings)
        self.names: dict[str, str] = {}
        """session -> the name it goes by over there, as far as it has come up: for tools, which are not told."""

    # -- storing -----------------------------------------------------------------------------------------------------

    async def store(self, batch: Batch) -> Mapping[str, str]:
        """In order: neighbours for one bank go in one operation; deletions in their place."""
        remotes: dict[str, str] = {}
        for item in batch.items:
            self.learn(item.session, batch.name)
        placed = [(self._banks_of(batch, item), item) for item in batch.items]
        for (banks, kind), group in itertools.groupby(placed, lambda it: (it[0], _kind(it[1]))):
            items = [item for _, item in group]
            try:
                await self._forget_replaced(banks, items)
                if kind == "keep":
                    await self._retain(banks[0], batch.name, items)
            except EverholdError as error:
                raise partly(bool(remotes), error) from error
            remotes |= {item.key: document_id(item.key) for item in items}
        return remotes

    async def _retain(self, bank: str, name: str, items: Sequence[Memory]) -> None:
        documents = [document for item in items if (document := self._document(name, item)) is not None]
        if not documents:
            return
        await self.client.open(bank)
        operation = operation_id(bank, documents)
        await self.client.retain(bank, documents, operation)
        if self.settings.confirm:
            await self._confirm(bank, operation, documents)

    async def _confirm(self, bank: str, operation: str, documents: Sequence[dict[str, Any]]) -> None:
        """Accepted is not stored: wait for its end, and look. What takes longer is asked about again later."""
        try:
            ended = await self.client.outcome(bank, operation, seconds=self.settings.confirm_seconds)
        except Gone as error:
            raise InDoubt("Hindsight accepted an operation, and does not know it any more") from error
        if ended.status == "failed":
            await self.client.retry(bank, operation)
            raise Transient(f"Hindsight could not store it: {ended.error_message or 'no reason given'}")
        if ended.status != "completed":
            raise InDoubt(f"Hindsight accepted it, and has not stored it yet ({ended.status})")
        lost = (ended.result_metadata or {}).get("extraction_errors_count")
        if lost:
            # the document is there, what was to be learned from it is not: nothing a repeat would change
            self.log.warning("memory.incomplete", bank=bank, operation=operation, facts_lost=lost)
        for document in documents:
            if await self.client.document(bank, document["document_id"]) is None:
                raise InDoubt("Hindsight said that a document was stored, and it is not there")

    async def _forget_replaced(self, banks: Sequence[str], items: Sequence[Memory]) -> None:
        for bank, item in itertools.product(banks, items):
            for key in _taken_back(item):
                await self.client.delete(bank, document_id(key))
            if isinstance(item, Note) and item.action != "add" and item.fact and not item.supersedes:
                # the version before was noted in another session: it is known by the fact it is about
                for old in await self.client.documents(bank, f"fact:{handle(item.fact)}"):
                    if old.id != document_id(item.key):
                        await self.client.delete(bank, old.id)

    # -- asking what is there ----------------------------------------------------------------------------------------

    async def probe(self, batch: Batch) -> Sequence[str]:
        arrived = []
        for item in batch.items:
            banks = self._banks_of(batch, item)
            gone = [
                await self.client.document(bank, document_id(key)) is None
                for bank in banks
                for key in _taken_back(item)
            ]
            document = self._document(batch.name, item) if _kind(item) == "keep" else None
            here = document is None or await self.client.document(banks[0], document["document_id"]) is not None
            if here and all(gone):
                arrived.append(item.key)
        return arrived

    # -- finding -----------------------------------------------------------------------------------------------------

    async def find(self, query: Query) -> Sequence[Found]:
        if query.agent != self.agent or not query.audience or not query.text.strip():
            return ()
        if query.name:
            self.learn(query.session, query.name)
        bank = self.bank(query.audience, query.name)
        wanted = self.company(query.audience)
        try:
            answer = await self.client.ask(
                "recalling",
                lambda sdk: sdk.arecall(
                    bank,
                    query.text.strip(),
                    types=list(self.settings.recall_types),
                    max_tokens=self.settings.recall_tokens,
                    budget=self.settings.budget,
                    tags=list(wanted),
                    tags_match="all_strict",  # anything less lets through what nobody put a name to
                ),
            )
        except Gone:
            return ()
        fitting = [one for one in answer.results if set(wanted) <= set(one.tags or ())]
        return [_found(one, alone(query.audience)) for one in fitting[: query.limit]]

    # -- the rest ----------------------------------------------------------------------------------------------------

    def tools(self) -> Sequence[Tool]:
        return tools_of(self)

    async def forget(self, person: str) -> Forgotten:
        """Documents in which nobody else speaks are deleted with everything learned from them."""
        deleted, kept = 0, []
        banks, everywhere = await self._banks_with(person)
        for bank, document in await self._documents_of(person, banks):
            others = {tag for tag in document.tags or () if tag.startswith("person:")} - {f"person:{handle(person)}"}
            if others:
                kept.append(f"document {document.id} in bank {bank}: others speak in it, too")
            else:
                deleted += await self.client.delete(bank, document.id)
        if not everywhere:
            kept.append(f"banks called {self.settings.bank} other than {', '.join(banks)}: the server lists none")
        return Forgotten(deleted=deleted, kept=tuple(kept))

    async def export(self, person: str) -> AsyncIterator[Found]:
        banks, _ = await self._banks_with(person)
        for bank, listed in await self._documents_of(person, banks):
            document = await self.client.document(bank, listed.id)
            if document is not None:
                yield Found(
                    text=unpacked(document.original_text or ""), person=person, at=read_time(document.created_at)
                )

    async def _documents_of(self, person: str, banks: Sequence[str]) -> list[tuple[str, Any]]:
        """(bank, document) of all in which a person speaks."""
        # a bank whose name only begins like one of ours may be another agent's
        whose = () if self._one_bank else (f"agent:{handle(self.agent)}",)
        return [
            (bank, document)
            for bank in banks
            for document in await self.client.documents(bank, f"person:{handle(person)}", *whose)
        ]

    async def _banks_with(self, person: str) -> tuple[list[str], bool]:
        """Where something of a person's may be, and whether that is everywhere: in company, banks bear other names."""
        known = {self.bank((f"person:{person}",), name) for name in ("", *self.names.values())}
        if self._one_bank:
            return sorted(known), True
        try:
            banks = await self.client.banks()
        except Gone:
            return sorted(known), False
        ours = beginning(_VARIABLE.split(filled(self.settings.bank, self.agent))[0])
        return sorted({*known, *(bank for bank in banks if bank.startswith(ours))}), True

    async def health(self) -> Health:
        """Whether it answers, and whether operations fail: it was seen being well and storing nothing."""
        bank = self.bank((), "")
        try:
            await self.client.ask("asking how it is", lambda sdk: sdk.monitoring.health_endpoint_health_get())
            broken = await self.client.ask(
                "listing failures", lambda sdk: sdk.operations.list_operations(bank, status="failed", type="retain")
            )
        except Gone:
            return Health(well=True)
        except EverholdError as error:
            return Health(well=False, text=error.message)
        return Health(
            well=not broken.total,
            text=f"{describe_count(broken.total, 'operation')} failed there" if broken.total else "",
        )

    async def close(self) -> None:
        await self.client.close()

    def cache_busting_signature(self) -> dict[str, str] | None:
        return signature("hindsight", self.settings)

    # -- small things ------------------------------------------------------------------------------------------------

    def company(self, audience: Sequence[str]) -> tuple[str, ...]:
        """The tags that everything carries which those present may hear of."""
        tags = _heard_by(audience)
        return tags if self.settings.share_agents else (*tags, f"agent:{handle(self.agent)}")

    def bank(self, audience: Sequence[str], name: str) -> str:
        """The bank for those who are present."""
        who = alone(audience) or token(audience) or "nobody"
        filled = self.settings.bank.replace("{agent}", self.agent).replace("{person}", who).replace("{session}", name)
        return handle(filled)

    @property
    def _one_bank(self) -> bool:
        """Whether all that this agent keeps is in one bank."""
        return _VARIABLE.search(self.settings.bank) is None

    def learn(self, session: str, name: str) -> None:
        self.names[session] = name
        if len(self.names) > 1_000:
            del self.names[next(iter(self.names))]

    def _banks_of(self, batch: Batch, item: Memory) -> tuple[str, ...]:
        """Where an item belongs: one bank, or those of everybody who heard what is taken back."""
        if not isinstance(item, Retraction):
            return (self.bank(item.stamp.audience, batch.name),)
        audiences = [batch.heard_by.get(key, ()) for key in item.keys] or [()]
        return tuple(dict.fromkeys(self.bank(audience, batch.name) for audience in audiences))

    def _document(self, name: str, item: Memory) -> dict[str, Any] | None:
        """What is retained for an item; None if there is nothing in it."""
        assert not isinstance(item, Retraction)
        text = told(item) if isinstance(item, Exchange) else packed(item.text.strip())
        if not text:
            return None
        people = {item.stamp.person}
        if isinstance(item, Exchange):
            people |= {utterance.stamp.person for utterance in item.heard}
        company = (*_heard_by(item.stamp.audience), f"agent:{handle(item.agent)}")
        tags = [
            *self.settings.tags,
            *company,
            f"session:{handle(item.session)}",
            *(f"person:{handle(person)}" for person in sorted(people) if person),
            *(handle(tag) for tag in item.tags),
        ]
        metadata = {"everhold": item.key, "session": item.session, "name": name, "person": item.stamp.person}
        if isinstance(item, Exchange):
            first = (*item.heard, *item.said)[0]
            metadata |= {"turn": str(item.op), "seq": str(first.seq)}
            if item.parent:
                tags.append(f"parent:{handle(item.parent)}")
                metadata["parent"] = item.parent
        else:
            metadata["seq"] = str(item.seq)
            tags += [f"fact:{handle(item.fact)}"] if item.fact else []
        return {
            "content": text,
            "document_id": document_id(item.key),
            "timestamp": datetime.fromtimestamp(item.at, UTC).isoformat() if item.at else None,
            "context": self.settings.context if isinstance(item, Exchange) else "noted",
            "metadata": {key: value for key, value in metadata.items() if value},
            "tags": list(dict.fromkeys(tags)),
            # what is consolidated over several documents stays in the company they were heard in
            "observation_scopes": [list(company)],
        }


def _heard_by(audience: Sequence[str]) -> tuple[str, ...]:
    """A tag for each who heard it: those present ask for all of theirs."""
    return tuple(f"audience:{handle(one)}" for one in sorted(audience))


def document_id(key: str) -> str:
    """One document for each exchange or note, whatever happens to others."""
    return f"everhold-{handle(key)}"


def operation_id(bank: str, documents: Sequence[Mapping[str, Any]]) -> str:
    """Made from the content: under the same id, other content would be dropped in silence."""
    content = json.dumps([bank, documents], sort_keys=True, ensure_ascii=True)
    return str(uuid.uuid5(NAMESPACE, hashlib.sha256(content.encode()).hexdigest()))


def _kind(item: Memory) -> str:
    return "drop" if isinstance(item, Retraction) or (isinstance(item, Note) and item.action == "remove") else "keep"


def _taken_back(item: Memory) -> tuple[str, ...]:
    """Keys of what an item makes disappear."""
    match item:
        case Retraction(keys=keys):
            return keys
        case Note(supersedes=key) if key:
            return (key,)
        case _:
            return ()


def _found(result: Any, person: str) -> Found:
    about = result.metadata or {}
    return Found(
        text=unpacked(result.text),
        score=float(result.scores.final) if result.scores else 0.0,
        session=about.get("session", ""),
        seq=int(about.get("seq") or 0),
        person=about.get("person", "") or person,
        at=read_time(result.mentioned_at or result.occurred_start),
        key=about.get("everhold", ""),
    )
