"""Reads the state of requests and the remembered rules. What was asked and answered is in the log."""

from __future__ import annotations

from msgspec import Struct

from everhold.core.address import parse_address
from everhold.core.approvals import (
    ApprovalRecord,
    RememberedRule,
    decision_key,
    decode_approval,
    decode_rule,
    find_requested_call,
    request_key,
)
from everhold.core.entries import ApprovalDecided, ApprovalRequested, Entry, EntryKind, ToolCall
from everhold.errors import InvalidRequest
from everhold.ports.store import StateNamespace, StateRecord, Store, make_state_scope


class StoredApproval(Struct, frozen=True, kw_only=True):
    """The record of a request, and its state."""

    id: str
    stored: StateRecord
    record: ApprovalRecord


class StoredRule(Struct, frozen=True, kw_only=True):
    """A remembered rule, and its record."""

    id: str
    stored: StateRecord
    rule: RememberedRule


class RequestedCall(Struct, frozen=True, kw_only=True):
    """A request with everything that is in the log about it."""

    entry: Entry
    body: ApprovalRequested
    call: ToolCall | None
    """What would run; None if it was erased."""
    is_undone: bool
    """The turn that asked was taken back."""


async def list_approvals(store: Store, *, session: str = "") -> list[StoredApproval]:
    """Return the requests that are not settled, of one session or of all, the oldest first."""
    found = [
        StoredApproval(id=stored.key, stored=stored, record=decode_approval(stored.value))
        for stored in await store.list_state_records(StateNamespace.APPROVAL)
    ]
    return sorted((it for it in found if session in ("", it.record.session)), key=lambda it: (it.record.at, it.id))


async def get_approval(store: Store, id: str) -> StoredApproval | None:
    """Return a request that is not settled."""
    stored = await store.get_state_record(StateNamespace.APPROVAL, id)
    return None if stored is None else StoredApproval(id=id, stored=stored, record=decode_approval(stored.value))


async def is_chat_halted(store: Store, address: str) -> bool:
    """Return whether the agents of a chat are silenced, so that nothing may act for it."""
    try:
        chat = parse_address(address)
    except InvalidRequest:
        return False  # a session without a chat
    halt = await store.get_state_record(StateNamespace.CHAT_HALT, chat.chat, scope=make_state_scope(chat.platform))
    return halt is not None


async def list_rules(store: Store) -> list[StoredRule]:
    """Return the remembered rules, the oldest first."""
    found = [
        StoredRule(id=stored.key, stored=stored, rule=decode_rule(stored.value))
        for stored in await store.list_state_records(StateNamespace.APPROVAL_RULE)
    ]
    return sorted(found, key=lambda it: (it.rule.at, it.id))


async def _load_request(store: Store, session: str, seq: int) -> RequestedCall:
    """Return a request with the call that would run."""
    entry = await store.get_entry(session, seq)
    assert isinstance(entry.body, ApprovalRequested), "a request has no words, so it is never erased"
    assert entry.op is not None, "a turn made it"
    steps = await store.list_entries(session, after=entry.op - 1, upto=seq, kinds=(EntryKind.THOUGHT,))
    turns = await store.list_operations(session, after=entry.op - 1, before=entry.op + 1)
    return RequestedCall(
        entry=entry,
        body=entry.body,
        call=find_requested_call(steps, entry),
        is_undone=any(turn.undone_at for turn in turns),
    )


async def find_request(store: Store, id: str) -> RequestedCall | None:
    """Return a request by its id, also one that was settled long ago."""
    place = await store.find_entry_place(request_key(id))
    return None if place is None else await _load_request(store, place[0], place[1])


async def find_decision(store: Store, id: str) -> Entry | None:
    """Return what became of a request; None if it is open."""
    place = await store.find_entry_place(decision_key(id))
    if place is None:
        return None
    entry = await store.get_entry(place[0], place[1])
    return entry if isinstance(entry.body, ApprovalDecided) else None
