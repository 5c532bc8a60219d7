"""Erases a person at Hindsight, and reads back: documents, then the finished operations that brought them.

Hindsight keeps the text of an operation with it, and the requests to its language model in a log that can only be
listed. The log is named, and nothing that everhold asks shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from everhold.core.peers import make_safe_id
from everhold.memories.hindsight.client import HindsightNotFound
from everhold.memories.hindsight.tags import read_document_key
from everhold.memories.remote import build_states, make_deletion_id, read_time, split_deletion_id
from everhold.ports.memory import SEARCH_PROBE_TEXT, ErasureState, ErasureTarget, ProviderDeletion

if TYPE_CHECKING:
    from everhold.memories.hindsight.provider import HindsightMemory

DOCUMENTS: Final = "documents"
DOCUMENT: Final = "document"
OPERATIONS: Final = "operations"
PERSON_TAG: Final = "person:"


class HindsightErasure:
    """What one person has at Hindsight under all their identities."""

    def __init__(self, memory: HindsightMemory, target: ErasureTarget) -> None:
        self.memory = memory
        self.client = memory.client
        self.target = target
        self.tags = tuple(f"{PERSON_TAG}{make_safe_id(identity)}" for identity in target.identities)

    async def ask(self) -> list[ProviderDeletion]:
        deletions: list[ProviderDeletion] = []
        banks, is_complete = await self._list_banks()
        for bank in banks:
            deletions += await self._erase_in_bank(bank)
        if not is_complete:
            what = f"banks called {self.memory.settings.bank} other than {', '.join(banks)}"
            reason = "the server cannot list them; look for them by hand"
            deletions.append(ProviderDeletion(id="banks", what=what, state=ErasureState.CANNOT, reason=reason))
        return deletions

    async def _list_banks(self) -> tuple[list[str], bool]:
        names = (*self.target.identities, *self.target.peers, *self.target.shared_peers)
        return await self.memory.list_banks_with(names)

    async def _erase_in_bank(self, bank: str) -> list[ProviderDeletion]:
        documents = await self._list_documents(bank)
        if not documents:
            return []
        deletions, erased = [], []
        for document in documents:
            with_others = has_other_people(document.tags, self.tags)
            if with_others and read_document_key(document) not in self.target.keys:
                what = f"document {document.id} in bank {bank}"
                reason = "other people speak in it, too; delete it by hand"
                id = make_deletion_id(DOCUMENT, bank, document.id)
                deletions.append(ProviderDeletion(id=id, what=what, state=ErasureState.CANNOT, count=1, reason=reason))
                continue
            await self.client.delete_document(bank, document.id)
            erased.append(document)
            if with_others:
                id = make_deletion_id(DOCUMENT, bank, document.id)
                deletions.append(ProviderDeletion(id=id, what=f"a document in bank {bank}", count=1))
        if erased:
            deletions += await self._delete_operations(bank, {it.id for it in erased})
            upto = max(read_time(it.created_at) for it in erased)
            what = f"{len(erased)} documents in bank {bank}"
            id = make_deletion_id(DOCUMENTS, bank, *self.tags)
            deletions.append(ProviderDeletion(id=id, what=what, count=len(erased), upto=upto))
            deletions.append(_name_request_log(bank))
        return deletions

    async def _list_documents(self, bank: str) -> list[Any]:
        found: dict[str, Any] = {}
        for identity in self.target.identities:
            found |= {it.id: it for _, it in await self.memory.list_documents_of(identity, [bank])}
        return list(found.values())

    async def _delete_operations(self, bank: str, documents: set[str]) -> list[ProviderDeletion]:
        """Delete the finished operations that contain one of the documents. They keep its text."""
        mine = [it for it in await self.client.list_operations(bank) if documents & _list_document_ids(it.task_payload)]
        for operation in mine:
            await self.client.delete_operation(bank, operation.operation_id)
        if not mine:
            return []
        id = make_deletion_id(OPERATIONS, bank, *(it.operation_id for it in mine))
        return [ProviderDeletion(id=id, what=f"{len(mine)} operations in bank {bank}", count=len(mine), hidden=True)]


async def confirm_deletions(
    memory: HindsightMemory, deletions: Sequence[ProviderDeletion]
) -> Mapping[str, ErasureState]:
    left: dict[str, bool] = {}
    for it in deletions:
        kind, parts = split_deletion_id(it.id)
        match kind:
            case "documents":
                left[it.id] = await _are_documents_left(memory, parts[0], parts[1:], it.upto)
            case "document":
                left[it.id] = await memory.client.get_document(parts[0], parts[1]) is not None
            case "operations":
                left[it.id] = any([await memory.client.has_operation(parts[0], one) for one in parts[1:]])
            case _:
                left[it.id] = True
    return build_states(left)


async def _are_documents_left(memory: HindsightMemory, bank: str, tags: Sequence[str], upto: float) -> bool:
    """Read back by tag and by search. A fact whose document is gone is left, too."""
    for tag in tags:
        for document in await memory.client.list_documents(bank, tag):
            if read_time(document.created_at) <= upto and not has_other_people(document.tags, tags):
                return True
        for fact in await _search(memory, bank, tag):
            document = await memory.client.get_document(bank, fact.document_id) if fact.document_id else None
            if has_other_people(fact.tags, tags):
                continue
            if document is None or read_time(document.created_at) <= upto:
                return True
    return False


async def _search(memory: HindsightMemory, bank: str, tag: str) -> Sequence[Any]:
    try:
        answer = await memory.client.call(
            "searching for what was deleted",
            lambda sdk: sdk.arecall(
                bank, SEARCH_PROBE_TEXT, max_tokens=memory.settings.recall_tokens, tags=[tag], tags_match="all_strict"
            ),
        )
    except HindsightNotFound:
        return ()
    found: Sequence[Any] = answer.results
    return found


def has_other_people(tags: Sequence[str] | None, own: Sequence[str]) -> bool:
    return bool({it for it in tags or () if it.startswith(PERSON_TAG)} - set(own))


def _list_document_ids(payload: object) -> set[str]:
    """Return the documents that an operation names, wherever its payload has them."""
    if isinstance(payload, Mapping):
        named = payload.get("document_id")
        inner = set().union(*(_list_document_ids(it) for it in payload.values()))
        return inner | ({named} if isinstance(named, str) else set())
    if isinstance(payload, list | tuple):
        return set().union(*(_list_document_ids(it) for it in payload))
    return set()


def _name_request_log(bank: str) -> ProviderDeletion:
    return ProviderDeletion(
        id=make_deletion_id("request-log", bank),
        what=f"the log of requests to its language model and the audit log of bank {bank}",
        state=ErasureState.CANNOT,
        reason="Hindsight can only list them; delete the rows of llm_requests and audit_log in its database",
        hidden=True,
    )
