"""Owners in groups, and bindings that no command makes."""

from __future__ import annotations

from everhold.core.access import AdmissionDecision
from everhold.core.entries import AddressBound, Changed, EntryDraft
from everhold.core.roles import PersonRole
from everhold.ports.store import Change, Step
from everhold.testing.gateway import InProcessGateway


def admit_owners(gateway: InProcessGateway) -> None:
    """Make everybody an owner. A group shares one session."""
    gateway.admit = lambda incoming: AdmissionDecision(
        agent=incoming.agent or "main", identity=incoming.sender, group="shared", role=PersonRole.OWNER
    )


def bind_address(gateway: InProcessGateway, session: str, *, led: str) -> None:
    """Bind the address that led to the session `led` to another session, whoever may read that one.

    No command does this. A store may hold such a binding nevertheless, and nothing may leak through it.
    """
    address = gateway.run(gateway.store.get_session(led)).address
    bound = Changed(change=AddressBound(address=address, previous=led))
    draft = EntryDraft(body=bound, author="system")
    change = Change(step=Step.BACKLINK, session=session, at=gateway.clock.now(), entries=(draft,))
    gateway.run(gateway.store.commit(change))
