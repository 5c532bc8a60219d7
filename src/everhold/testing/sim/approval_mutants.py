"""Planted bugs of approvals, which the simulator must find. Each breaks one rule."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from msgspec import structs

from everhold.core.approvals import ApprovalState, decode_approval, encode_record
from everhold.core.entries import ApprovalDecided, EntryDraft, Heard
from everhold.core.policy import PolicyOutcome, PolicyRule, ToolPolicy
from everhold.core.roles import PersonRole
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes
from everhold.engine.approvals.worker import ApprovalWorker
from everhold.engine.roles import RoleStanding
from everhold.engine.supervisor import WorkerSupervisor
from everhold.ports.store import Change, Claim, CommitResult, StateNamespace, StateRecord, Step
from everhold.ports.tool import ToolEffect
from everhold.testing.sim.approvals import SimRoles
from everhold.testing.sim.host import SimProcessParts
from everhold.testing.sim.process import GatedStore


class AsksNobody:
    """Allows what the policy asks about."""

    def __init__(self, runtimes: AgentRuntimes) -> None:
        self.runtimes = runtimes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runtimes, name)

    def get_runtime(self, agent: str, choices: Mapping[str, str]) -> AgentRuntime:
        everything = ToolPolicy(
            rules=(PolicyRule(tool="*", do=PolicyOutcome.ALLOW),), after_foreign=PolicyOutcome.ALLOW
        )
        return dataclasses.replace(self.runtimes.get_runtime(agent, choices), get_policy=lambda: everything)


class TakesOpenForAllowed(GatedStore):
    """Takes a request that waits for one that was allowed."""

    async def list_state_records(
        self, namespace: StateNamespace | None = None, *, scope: str | None = None
    ) -> list[StateRecord]:
        found = await super().list_state_records(namespace, scope=scope)
        return list(map(_allow, found)) if namespace is StateNamespace.APPROVAL else found


def _allow(stored: StateRecord) -> StateRecord:
    record = structs.replace(decode_approval(stored.value), state=ApprovalState.ALLOWED)
    return structs.replace(stored, value=encode_record(record))


class RerunsApprovedCalls(WorkerSupervisor):
    """Runs an approved call again that was started before a crash, whatever a repeat does."""

    def build_approval_worker(self, claim: Claim) -> ApprovalWorker:
        worker = super().build_approval_worker(claim)
        worker.resume_by_effect = {**worker.resume_by_effect, ToolEffect.ONCE: "again"}
        return worker


class ForgetsRequests(GatedStore):
    """Does not store that something waits for an answer."""

    async def commit(self, change: Change) -> CommitResult:
        if change.step is Step.REQUEST:
            change = structs.replace(change, state_writes=())
        return await super().commit(change)


class DecidesTwice(GatedStore):
    """Does not recognise a second answer."""

    async def commit(self, change: Change) -> CommitResult:
        if change.step is Step.DECIDE:
            entries = tuple(structs.replace(it, dedup=None) if _decides(it) else it for it in change.entries)
            change = structs.replace(change, entries=entries, state_writes=())
        return await super().commit(change)


def _decides(draft: EntryDraft) -> bool:
    return isinstance(draft.body, ApprovalDecided)


class LosesReports(GatedStore):
    """Does not tell the conversation what became of its request."""

    async def commit(self, change: Change) -> CommitResult:
        if change.step is Step.ACTION_END:
            change = structs.replace(change, entries=tuple(it for it in change.entries if not _reports(it)))
        return await super().commit(change)


def _reports(draft: EntryDraft) -> bool:
    return isinstance(draft.body, Heard) and draft.body.approval is not None


class EverybodyIsOwner(SimRoles):
    """Takes everybody for an owner when they answer."""

    async def find_person_role(self, identity: str, *, address: str) -> RoleStanding:
        return RoleStanding(role=PersonRole.OWNER)


APPROVAL_BUGS: Final[dict[str, tuple[str, SimProcessParts]]] = {
    "asks-nobody": ("run what needs permission", SimProcessParts(runtimes=lambda it: AsksNobody(it))),
    "open-runs": ("start a request that nobody answered", SimProcessParts(store=TakesOpenForAllowed)),
    "approved-twice": ("run an approved once tool again", SimProcessParts(supervisor=RerunsApprovedCalls)),
    "request-forgotten": ("let nothing wait for an answer", SimProcessParts(store=ForgetsRequests)),
    "decided-twice": ("take a second answer", SimProcessParts(store=DecidesTwice)),
    "report-lost": ("do not report an outcome", SimProcessParts(store=LosesReports)),
    "anybody-answers": ("take everybody for an owner", SimProcessParts(roles=EverybodyIsOwner)),
}
"""Name -> what the bug does, and the part that has it."""
