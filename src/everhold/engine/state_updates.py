"""Update state records and people: read, decide, write under the version that was read, and decide again after a
conflict.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from everhold.core.people import (
    PERSON_ID_BYTES,
    PeopleDirectory,
    PeopleEvent,
    PeoplePlanner,
    build_directory,
    date_links,
    make_person_id,
)
from everhold.errors import Conflict
from everhold.ports.clock import RandomSource
from everhold.ports.hosts import AccountClaim
from everhold.ports.store import Change, StateNamespace, StateWrite, Step, Store

MOST_CONFLICTS: Final = 100
"""How often in a row another writer may come first before the update is given up."""
MOST_PEOPLE_CONFLICTS: Final = 1_000
"""The same for people. Every stranger's first message changes them, and of colliding commits one always succeeds."""


async def update_state_record(
    store: Store,
    namespace: StateNamespace,
    key: str,
    *,
    at: float,
    decide: Callable[[str | None], str | None],
    scope: str = "",
    step: Step = Step.STATE,
    account: AccountClaim | None = None,
) -> str | None:
    """Write what `decide` returns for the present value, and return it; None stands for no record. Raises LeaseLost if
    `account` is no longer held.

    If another writer comes first, the record is read again and `decide` is called again. Raises Conflict if that
    happens too often.
    """
    conflicts = 0
    while True:
        record = await store.get_state_record(namespace, key, scope=scope)
        present = None if record is None else record.value
        value = decide(present)
        if value == present:
            return value
        version = 0 if record is None else record.version
        write = StateWrite(namespace=namespace, key=key, scope=scope, value=value, version=version)
        try:
            await store.commit(Change(step=step, session="", at=at, state_writes=(write,), account=account))
        except Conflict:
            conflicts += 1
            if conflicts == MOST_CONFLICTS:
                raise
        else:
            return value


PlanPeople: TypeAlias = Callable[[PeopleDirectory, Callable[[], str], float], Sequence[PeopleEvent]]
"""(directory, maker of person ids, time) -> the events to commit."""


ListWrites: TypeAlias = Callable[[], Awaitable[Sequence[StateWrite]]]
"""Reads state records, and returns what belongs into the same commit as a change of people."""


async def update_people(
    store: Store,
    *,
    chance: RandomSource,
    at: float,
    by: str,
    plan: Callable[[PeoplePlanner], None],
    list_writes: ListWrites | None = None,
) -> Sequence[PeopleEvent]:
    """Commit what `plan` adds to the planner, and return it. `list_writes` as in `plan_people_update`."""

    def plan_events(directory: PeopleDirectory, new_id: Callable[[], str], at: float) -> Sequence[PeopleEvent]:
        planner = PeoplePlanner(directory, new_id=new_id, at=at, by=by)
        plan(planner)
        return planner.events

    return await plan_people_update(store, chance=chance, at=at, plan=plan_events, list_writes=list_writes)


async def plan_people_update(
    store: Store, *, chance: RandomSource, at: float, plan: PlanPeople, list_writes: ListWrites | None = None
) -> Sequence[PeopleEvent]:
    """Commit the events that `plan` returns for the present directory, together with what `list_writes` returns. If
    another writer comes first, call both again.
    """
    conflicts = 0
    while True:
        directory = await store.get_people()
        events = tuple(plan(directory, lambda: make_person_id(chance.bytes(PERSON_ID_BYTES)), at))
        if any(event.since == at for event in events):
            events = date_links(events, at=at, latest=await store.find_latest_time())
        writes = tuple(await list_writes()) if list_writes is not None else ()
        if not (events or writes):
            return events
        change = Change(
            step=Step.PEOPLE,
            session="",
            at=at,
            people=events,
            people_epoch=directory.epoch if events else None,
            state_writes=writes,
        )
        try:
            await store.commit(change)
        except Conflict:
            conflicts += 1
            if conflicts == MOST_PEOPLE_CONFLICTS:
                raise
        else:
            return events


async def load_people_at(store: Store, epoch: int) -> PeopleDirectory:
    """Return the people as they were at an epoch."""
    present = await store.get_people()
    if epoch >= present.version:
        return present  # only strangers have come since
    events: list[PeopleEvent] = []
    while page := await store.list_people_events(after=events[-1].n if events else 0):
        events += [event for event in page if event.n <= epoch]
        if page[-1].n >= epoch:
            break
    return build_directory(events)
