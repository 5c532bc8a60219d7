"""Find out to whom a session belongs, and where it may continue: one session has one audience."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Collection
from enum import StrEnum
from typing import Final

from everhold.core import access
from everhold.core.address import parse_address
from everhold.core.entries import Entry, EntryKind, Heard, Stamp
from everhold.core.people import PERSON_MEMBER, PeopleDirectory, can_hear
from everhold.ports.store import Session, Store

PAGE_ENTRIES: Final = 100


async def find_session_start(store: Store, session: Session) -> tuple[str, float]:
    """Return the owner of a session (`person:<identity>`) and when it began. The owner is empty if it has none, or if
    no message was heard yet; then the time is 0. Otherwise neither changes.
    """
    found = await _find_first_entry(store, session)
    if found is None:
        return "", 0.0
    began, first = found
    return access.derive_session_owner(first, began.address), first.at


async def is_foreign_session(
    store: Store, session: Session, people: PeopleDirectory, identities: Collection[str]
) -> bool:
    """Return whether a session belongs to another person than one of these identities. A group's belongs to nobody."""
    owner, began_at = await find_session_start(store, session)
    author = owner.removeprefix(PERSON_MEMBER)
    return bool(owner) and any(not people.belongs_to(author, identity, at=began_at) for identity in identities)


async def find_last_stamp(store: Store, session: Session) -> Stamp:
    """Return the stamp for what happens in a session: that of the last speaker. A branch continues
    with its parent's.
    """
    one, upto, window = session, session.last_seq, PAGE_ENTRIES
    while True:
        while upto > 0:
            found = await store.list_entries(one.id, after=max(0, upto - window), upto=upto, kinds=(EntryKind.HEARD,))
            for entry in reversed(found):
                if isinstance(entry.body, Heard):
                    return entry.body.stamp
            upto, window = upto - window, window * 4
        if not one.parent:
            return Stamp(address=session.address, audience=(f"chat:{session.address}",))
        one, upto, window = await store.get_session(one.parent), one.parent_at, PAGE_ENTRIES


async def find_session_audience(store: Store, session: Session) -> tuple[tuple[str, ...], float]:
    """Return who can read a session, and when it began.

    The address at which it began and its first author decide, because every entry at that address has the same
    audience. The author stays known after an erasure.
    """
    first = await store.list_entries(session.id, kinds=(EntryKind.HEARD,), limit=1) or await store.list_entries(
        session.id, kinds=(EntryKind.CHANGED,), limit=1
    )
    if not first:
        return (), 0.0
    address = parse_address(session.address)
    return access.compute_audience(address, first[0].author.removeprefix(PERSON_MEMBER)), first[0].at


class SessionFit(StrEnum):
    """How a session fits the people who are present somewhere."""

    SAME = "same"
    """The same people can read both, so the session may continue there."""
    SMALLER = "smaller"
    """Fewer people are present, so a branch of the session may continue there."""
    OTHER = "other"
    """Somebody present cannot read the session."""


async def compare_audience(store: Store, session: Session, *, audience: Collection[str]) -> SessionFit:
    """Return how a session fits an audience. Links between identities count."""
    people = await store.get_people()
    theirs, since = await find_session_audience(store, session)
    if not theirs:
        return SessionFit.OTHER
    if not can_hear(people.expand_audience(audience), theirs, since):
        return SessionFit.OTHER
    same = set(audience) == set(theirs) or (
        people.identify_audience(audience, math.inf) == people.identify_audience(theirs, since)
    )
    return SessionFit.SAME if same else SessionFit.SMALLER


async def list_fitting_sessions(
    store: Store, *, author: str, agent: str, here: Stamp
) -> AsyncIterator[tuple[Session, SessionFit]]:
    """Return the sessions of an agent that `author` may continue at the address of `here`, newest first."""
    after = ""
    authors = (await store.get_people()).list_same_authors(author)
    while page := await store.list_sessions_begun_by(
        authors=authors, agent=agent, address=here.address, limit=PAGE_ENTRIES, after=after
    ):
        for session in page:
            fit = await compare_audience(store, session, audience=here.audience)
            if fit is not SessionFit.OTHER:
                yield session, fit
        after = page[-1].id


async def _find_first_entry(store: Store, session: Session) -> tuple[Session, Entry] | None:
    """Return the first message of a conversation, and the session that has it. For a branch this is its parent."""
    line = [session]
    while line[-1].parent:
        line.append(await store.get_session(line[-1].parent))
    for one in reversed(line):
        if found := await store.list_entries(one.id, kinds=(EntryKind.HEARD,), limit=1):
            return one, found[0]
    return None
