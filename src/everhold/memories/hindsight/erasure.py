"""Erases a person at Hindsight, and reads back: documents, then the finished operations that brought them.

Hindsight keeps the text of an operation with it, and the requests to its language model in a log that can only be
listed. The log is named, and nothing that everhold asks shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.core.peers import make_safe_id
from everhold.core.wording import describe_count
from everhold.errors import Transient
from everhold.memories.hindsight.client import FINISHED_STATUSES, UNFINISHED_STATUSES, HindsightNotFound
from everhold.memories.hindsight.tags import read_document_key
from everhold.memories.remote import ErasureScope, build_states, make_deletion_id, read_time, split_deletion_id
from everhold.memories.scope import make_document_id
from everhold.ports.memory import SEARCH_PROBE_TEXT, ErasureState, ErasureTarget, ProviderDeletion

if TYPE_CHECKING:
    from everhold.memories.hindsight.provider import HindsightMemory

DOCUMENTS: Final = "documents"
DOCUMENT: Final = "document"
OPERATIONS: Final = "operations"
PERSON_TAG: Final = "person:"
AUDIENCE_TAGS: Final = ("audience:", "agent:")
"""What recall asks by. Facts have all tags of their document; what is consolidated of several has only these."""
READBACK_TOKENS: Final = 65_536


class HindsightErasure:
    """What one person has at Hindsight under all their identities."""

    def __init__(self, memory: HindsightMemory, target: ErasureTarget) -> None:
        self.memory = memory
        self.client = memory.client
        self.target = target
        self.scope = ErasureScope(target)
        self.tags = tuple(f"{PERSON_TAG}{make_safe_id(identity)}" for identity in target.identities)

    async def ask(self) -> list[ProviderDeletion]:
        deletions: list[ProviderDeletion] = []
        banks, is_complete = await self._list_banks()
        for bank in banks:
            await self._require_stored(bank)
        for bank in banks:
            deletions += await self._erase_in_bank(bank)
        if not is_complete:
            what = f"banks called {self.memory.settings.bank} other than {', '.join(banks)}"
            reason = "the server cannot list them; look for them by hand"
            deletions.append(ProviderDeletion(id="banks", what=what, state=ErasureState.CANNOT, reason=reason))
        return deletions

    async def _require_stored(self, bank: str) -> None:
        """Raise Transient while Hindsight is still storing something of the person, because it would come later."""
        erased = {make_document_id(key) for key in self.target.keys}
        for operation in await self.client.list_operations(bank, statuses=UNFINISHED_STATUSES):
            documents = list_submitted_documents(operation.task_payload)
            if any(id in erased or set(self.tags) & set(tags) for id, tags in documents.items()):
                raise Transient("Hindsight has not finished storing something of the person")

    async def _list_banks(self) -> tuple[list[str], bool]:
        names = (*self.target.identities, *self.target.peers, *self.target.shared_peers)
        return await self.memory.list_banks_with(names)

    async def _erase_in_bank(self, bank: str) -> list[ProviderDeletion]:
        deletions, erased = [], []
        for document in await self._list_documents(bank):
            with_others = has_other_people(document.tags, self.tags)
            if with_others and read_document_key(document) not in self.target.keys:
                what = f"document {document.id} in bank {bank}"
                reason = "other people speak in it, too; delete it by hand"
                id = make_deletion_id(DOCUMENT, bank, document.id)
                deletions.append(ProviderDeletion(id=id, what=what, state=ErasureState.CANNOT, count=1, reason=reason))
                continue
            await self.client.delete_document(bank, document.id)
            erased.append(document)
        if erased:
            deletions += await self._delete_operations(bank, {it.id for it in erased})
            deletions += _record_documents(bank, erased)
            deletions.append(_name_request_log(bank))
        return deletions

    async def _list_documents(self, bank: str) -> list[Any]:
        found: dict[str, Any] = {}
        for identity in self.target.identities:
            found |= {it.id: it for _, it in await self.memory.list_documents_of(identity, [bank])}
        return [
            it
            for it in found.values()
            if self.scope.takes_item(read_document_key(it), stored_at=read_time(it.created_at))
        ]

    async def _delete_operations(self, bank: str, documents: set[str]) -> list[ProviderDeletion]:
        """Delete the finished operations that contain one of the documents. They keep its text."""
        finished = await self.client.list_operations(bank, statuses=FINISHED_STATUSES)
        mine = [it for it in finished if documents & set(list_submitted_documents(it.task_payload))]
        for operation in mine:
            await self.client.delete_operation(bank, operation.operation_id)
        if not mine:
            return []
        id = make_deletion_id(OPERATIONS, bank, *(it.operation_id for it in mine))
        return [ProviderDeletion(id=id, what=f"{len(mine)} operations in bank {bank}", count=len(mine), hidden=True)]


def _record_documents(bank: str, erased: Sequence[Any]) -> list[ProviderDeletion]:
    """Return the deletion of documents, one for each audience, because they are searched by audience."""
    groups: dict[tuple[str, ...], list[Any]] = {}
    for document in erased:
        audience = tuple(sorted(it for it in document.tags or () if it.startswith(AUDIENCE_TAGS)))
        groups.setdefault(audience, []).append(document)
    return [
        ProviderDeletion(
            id=make_deletion_id(DOCUMENTS, bank, str(len(audience)), *audience, *(it.id for it in documents)),
            what=f"{describe_count(len(documents), 'document')} in bank {bank}",
            count=len(documents),
            upto=max(read_time(it.created_at) for it in documents),
        )
        for audience, documents in groups.items()
    ]


async def confirm_deletions(
    memory: HindsightMemory, deletions: Sequence[ProviderDeletion]
) -> Mapping[str, ErasureState]:
    left: dict[str, bool] = {}
    for it in deletions:
        kind, parts = split_deletion_id(it.id)
        match kind:
            case "documents":
                bank, count, *rest = parts
                audience, ids = rest[: int(count)], rest[int(count) :]
                left[it.id] = await _are_documents_left(memory, bank, audience, ids, it.upto)
            case "operations":
                left[it.id] = any([await memory.client.has_operation(parts[0], one) for one in parts[1:]])
            case _:
                left[it.id] = True
    return build_states(left)


async def _are_documents_left(
    memory: HindsightMemory, bank: str, audience: Sequence[str], ids: Sequence[str], upto: float
) -> bool:
    """Read back by id, by list, and by search as recall searches. A fact whose document is gone is left, too."""
    if any([await memory.client.get_document(bank, id) for id in ids]):
        return True
    listed = {it.id for it in await memory.client.list_documents(bank, *audience)}
    if not listed.isdisjoint(ids):
        return True
    for fact in await _search(memory, bank, audience):
        if fact.document_id:
            if fact.document_id in ids or await memory.client.get_document(bank, fact.document_id) is None:
                return True
        elif not listed or 0 < read_time(fact.mentioned_at or fact.occurred_start) <= upto:
            return True
    return False


async def _search(memory: HindsightMemory, bank: str, audience: Sequence[str]) -> Sequence[Any]:
    """Return facts of every type for an audience. Reflection answers from the same facts."""
    try:
        answer = await memory.client.call(
            "searching for what was deleted",
            lambda sdk: sdk.arecall(
                bank, SEARCH_PROBE_TEXT, max_tokens=READBACK_TOKENS, tags=list(audience), tags_match="all_strict"
            ),
        )
    except HindsightNotFound:
        return ()
    found: Sequence[Any] = answer.results
    return found


def has_other_people(tags: Sequence[str] | None, own: Sequence[str]) -> bool:
    return bool({it for it in tags or () if it.startswith(PERSON_TAG)} - set(own))


def list_submitted_documents(payload: object) -> dict[str, tuple[str, ...]]:
    """Return the documents that an operation names with their tags, wherever its payload has them."""
    found: dict[str, tuple[str, ...]] = {}
    if isinstance(payload, Mapping):
        for inner in payload.values():
            found |= list_submitted_documents(inner)
        named, tags = payload.get("document_id"), payload.get("tags")
        if isinstance(named, str):
            found[named] = tuple(map(str, tags)) if isinstance(tags, list | tuple) else ()
    elif isinstance(payload, list | tuple):
        for inner in payload:
            found |= list_submitted_documents(inner)
    return found


def _name_request_log(bank: str) -> ProviderDeletion:
    return ProviderDeletion(
        id=make_deletion_id("request-log", bank),
        what=f"the log of requests to its language model and the audit log of bank {bank}",
        state=ErasureState.CANNOT,
        reason="Hindsight can only list them; delete the rows of llm_requests and audit_log in its database",
        hidden=True,
    )
