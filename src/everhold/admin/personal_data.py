"""Finds and erases what this home has of a person: entries, recall records, attachments, state records, links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Final

import msgspec
from msgspec import Struct

from everhold.admin.sessions import SessionAdmin
from everhold.core import forgetting
from everhold.core.address import parse_address
from everhold.core.attachments import list_incoming_attachments
from everhold.core.entries import Entry, Thought
from everhold.core.erasure import ErasureMoment
from everhold.core.forgetting import IdentityStarts, PastEntries, PersonalSelection, is_of_person
from everhold.core.people import PERSON_MEMBER, PeoplePlanner
from everhold.core.quotas import SubjectKind, find_quota_account, find_shared_subject
from everhold.core.recall import RecallRecord, list_traces
from everhold.core.recall_blobs import read_record
from everhold.core.schedule import Schedule
from everhold.engine.recall_records import RecallRecords
from everhold.engine.state_updates import update_people, update_state_record
from everhold.ports.store import Change, Session, StateNamespace, StateRecord, Step

MAX_ROUNDS: Final = 5
"""How often the log is searched again for entries that were added during the forgetting."""
_PERSONAL_NAMESPACES: Final = (
    StateNamespace.PAIRING_REQUEST,
    StateNamespace.PAIRING_GRANT,
    StateNamespace.PAIRING_ATTEMPTS,
    StateNamespace.IDENTITY_LINK,
    StateNamespace.DM_OWNER,
    StateNamespace.HELD_MESSAGE,
    StateNamespace.QUOTA,
    StateNamespace.API_ANSWER,
)
"""State records that belong to one identity and may contain a display name."""


class SessionErasure(Struct, frozen=True, kw_only=True):
    """The entries of one session that would be, or were, erased."""

    session: str
    agent: str
    seqs: tuple[int, ...]
    alone: bool
    repeated: int
    """Entries for other people that contain words which only this person used."""
    blobs: tuple[str, ...] = ()
    """The attachments of these entries."""


class PersonalData:
    """What the log and the state records of one home have of people. `upto` is the moment at which a forgetting began:
    what is later is of somebody who came back.
    """

    def __init__(self, control: SessionAdmin) -> None:
        self.control = control
        self.gates = control.gates
        self.store = control.store
        self.remove_folders: Callable[[Collection[str]], Awaitable[int]] | None = None
        """Deletes the folders of persons, by their ids, and returns how many there were."""

    # -- the log -------------------------------------------------------------------------------------------------------

    async def list_parts(self, names: IdentityStarts, *, upto: ErasureMoment) -> list[SessionErasure]:
        """The person's entries in each session that are not erased yet."""
        concerned: list[tuple[Session, PastEntries, PersonalSelection]] = []
        async for session in self.iterate_sessions():
            selection, past = PersonalSelection(names), PastEntries(upto.pos)
            is_concerned = False
            async for entry in self._iterate_entries(session):
                past.read(entry)
                is_concerned = is_concerned or forgetting.is_spoken_by(entry, names)
            if not is_concerned:
                continue
            async for entry in self._iterate_entries(session):
                if past.contains(entry):
                    selection.read(entry)
            concerned.append((session, past, selection))
        await self._exclude_words_of_others([it for _, _, it in concerned if it.is_shared], names)
        found = []
        for session, past, selection in concerned:
            if selection.is_shared:
                async for entry in self._iterate_entries(session):
                    if past.contains(entry):
                        selection.read_repetition(entry)
            part = selection.build_part()
            if part.seqs:
                found.append(
                    SessionErasure(
                        session=session.id,
                        agent=session.agent,
                        seqs=part.seqs,
                        alone=part.sole_speaker,
                        repeated=len(part.repeated),
                        blobs=await self._list_blobs(session, frozenset(part.seqs)),
                    )
                )
        return found

    async def list_quotes(self, names: IdentityStarts, *, upto: ErasureMoment) -> list[str]:
        """Where other people quoted or forwarded text of the person, as `session:seq`."""
        found = []
        async for session in self.iterate_sessions():
            async for entry in self._iterate_entries(session):
                if entry.pos <= upto.pos and forgetting.is_quoting(entry, names):
                    found.append(f"{session.id}:{entry.seq}")
        return found

    async def _exclude_words_of_others(self, selections: Collection[PersonalSelection], names: IdentityStarts) -> None:
        """Take the words that others use anywhere from those by which a repetition of the person's is recognised."""
        wanted = frozenset().union(*(it.own_words for it in selections))
        others: set[str] = set()
        if not wanted:
            return
        async for session in self.iterate_sessions():
            async for entry in self._iterate_entries(session):
                others |= forgetting.extract_words_of_others(entry, names) & wanted
        for selection in selections:
            selection.exclude_words(others)

    async def _list_blobs(self, session: Session, seqs: Collection[int]) -> tuple[str, ...]:
        return tuple(
            [
                attachment.blob
                async for entry in self._iterate_entries(session)
                if entry.seq in seqs
                for attachment in list_incoming_attachments(entry)
            ]
        )

    async def _iterate_entries(self, session: Session) -> AsyncIterator[Entry]:
        """Read a log page by page, because a whole session may be larger than the memory."""
        after = 0
        while page := await self.store.read_log(session.id, after=after):
            after = page[-1].seq
            for entry in page:
                yield entry
            await asyncio.sleep(0)

    async def list_audiences(self, parts: Collection[SessionErasure]) -> list[tuple[str, ...]]:
        """Everybody who could read these entries."""
        found: dict[tuple[str, ...], None] = {}
        for part in parts:
            seqs = frozenset(part.seqs)
            async for entry in self._iterate_entries(await self.store.get_session(part.session)):
                stamp = forgetting.get_stamp(entry)
                if entry.seq in seqs and stamp is not None and stamp.audience:
                    found[tuple(stamp.audience)] = None
        return list(found)

    async def erase_entries(
        self, names: IdentityStarts, *, upto: ErasureMoment, by: str
    ) -> tuple[list[SessionErasure], int]:
        """Erase the person's entries, with their recall records and attachments. Return the erased entries and the
        number of recall records.
        """
        erased: list[SessionErasure] = []
        records = RecallRecords(self.store)
        for _ in range(MAX_ROUNDS):
            found = await self.list_parts(names, upto=upto)
            if not found:
                break
            for part in found:
                why = "a person was forgotten"
                await self.control.erase_entries(part.session, part.seqs, by=by, why=why, records=records)
            erased += found
        recalls = await self.find_recall_blobs(names, erased, upto=upto)
        blobs = await self._find_unshared({blob for part in erased for blob in part.blobs})
        if recalls or blobs:
            now = self.gates.clock.now()
            await self.store.commit(Change(step=Step.ERASE, session="", at=now, drop_blobs=(*recalls, *blobs)))
        return erased, len(recalls)

    async def find_recall_blobs(
        self, names: IdentityStarts, parts: Collection[SessionErasure], *, upto: ErasureMoment
    ) -> list[str]:
        """The blobs of recall records, in any session, that contain something of the person. A turn that runs now may
        add one later.
        """
        places = {(part.session, seq) for part in parts for seq in part.seqs}
        found: list[str] = []
        async for session in self.iterate_sessions():
            async for entry in self._iterate_entries(session):
                if not isinstance(entry.body, Thought) or not entry.body.why:
                    continue
                blob = await self.store.get_blob(entry.body.why)
                why = read_record(blob) if blob else None
                if why is None:
                    continue
                if entry.pos <= upto.pos:
                    is_personal = _is_about_person(why, names, places, at=entry.at)
                else:
                    is_personal = await self._shows_erased(why, names, places, upto=upto)
                if is_personal:
                    blobs = (entry.body.why, entry.body.recall)
                    found += [digest for digest in blobs if digest and await self.store.get_blob(digest)]
        return list(dict.fromkeys(found))

    async def _shows_erased(
        self, why: RecallRecord, names: IdentityStarts, places: Collection[tuple[str, int]], *, upto: ErasureMoment
    ) -> bool:
        """Whether a later recall still showed something that was erased."""
        traces = list_traces(why)
        cited = await self.store.get_cited_entries({(it.session, it.seq) for it in traces if it.session and it.seq})
        gone = {place for place, it in cited.items() if it.entry.body is None}
        return any(
            (it.session, it.seq) in places
            or (it.session, it.seq) in gone
            or (not it.session and is_of_person(it.person, names, at=it.at or upto.at) and it.at <= upto.at)
            for it in traces
        )

    async def _find_unshared(self, blobs: set[str]) -> set[str]:
        """The attachments that no other entry contains."""
        if not blobs:
            return blobs
        async for session in self.iterate_sessions():
            async for entry in self._iterate_entries(session):
                blobs -= {attachment.blob for attachment in list_incoming_attachments(entry)}
        return blobs

    async def list_sessions_of(self, identities: Collection[str]) -> list[Session]:
        """The sessions in which one of these identities ever spoke, whosever it was. An erased entry still has its
        author.
        """
        names = dict.fromkeys(identities, 0.0)
        found = []
        async for session in self.iterate_sessions():
            async for entry in self._iterate_entries(session):
                if forgetting.is_spoken_by(entry, names):
                    found.append(session)
                    break
        return found

    async def iterate_sessions(self) -> AsyncIterator[Session]:
        after = ""
        while page := await self.store.list_sessions(limit=500, after=after):
            for session in page:
                yield session
            after = page[-1].id

    # -- outside of the log --------------------------------------------------------------------------------------------

    async def remove_records(self, names: IdentityStarts, *, upto: ErasureMoment) -> int:
        """Delete what is stored about the person outside of the log. Return the number of records."""
        found = await self.list_records(names, upto=upto)
        for kept in (*await self.list_schedules(names, upto=upto), *found):
            # delete it even if it is rewritten at this moment
            await update_state_record(
                self.store,
                kept.namespace,
                kept.key,
                scope=kept.scope,
                at=self.gates.clock.now(),
                decide=lambda _: None,
                step=Step.ERASE,
            )
        await self._forget_identities(names, upto=upto)
        return len(found)

    async def list_schedules(self, names: IdentityStarts, *, upto: ErasureMoment) -> list[StateRecord]:
        """The state records of the schedules that the person made by then."""
        found = []
        for kept in await self.store.list_state_records(StateNamespace.SCHEDULE):
            schedule = msgspec.json.decode(kept.value, type=Schedule)
            if schedule.made <= upto.at and forgetting.is_scheduled_by(schedule, names):
                found.append(kept)
        return found

    async def list_records(self, names: Collection[str], *, upto: ErasureMoment) -> list[StateRecord]:
        """The pairing requests and grants, link offers and owners of direct chats of these identities."""
        found = []
        chats = await self._list_direct_chats(names)
        for namespace in _PERSONAL_NAMESPACES:
            for kept in await self.store.list_state_records(namespace):
                if forgetting.is_record_of(kept, names, chats=chats) and forgetting.read_record_time(kept) <= upto.at:
                    found.append(kept)
        return found

    async def _list_direct_chats(self, names: Collection[str]) -> set[str]:
        """The direct chats that these identities began, as quotas name them."""
        authors, chats, after = [f"{PERSON_MEMBER}{name}" for name in names], set(), ""
        while page := await self.store.list_sessions_begun_by(authors=authors, limit=500, after=after):
            for address in (parse_address(session.address) for session in page):
                if address.kind == "dm":
                    account = find_quota_account(address)
                    chats.add(str(find_shared_subject(address.platform, account, address.chat)))
            after = page[-1].id
        return {chat for chat in chats if chat.startswith(f"{SubjectKind.CHAT}:")}

    async def _forget_identities(self, names: Collection[str], *, upto: ErasureMoment) -> None:
        """Remove the label and the links of the person. An identity that speaks again is a new person.

        In a store that was restored from a backup, an identity may belong to a person from whom it was taken before
        it was forgotten. That person keeps the others.
        """
        people = await self.store.get_people()
        known = [it for it in people.identities.values() if it.at <= upto.at]
        gone = [it for it in known if it.identity in names]
        persons = {it.person for it in gone} - {it.person for it in known if it.identity not in names}
        if self.remove_folders is not None and persons:
            await self.remove_folders(persons)
        kept = {it.person for it in known if it.identity not in names}

        def plan(planner: PeoplePlanner) -> None:
            for person in dict.fromkeys(it.person for it in gone):
                if person in kept:
                    planner.forget_identities(person, [it.identity for it in gone if it.person == person])
                else:
                    planner.forget_person(person)

        if gone:
            now = self.gates.clock.now()
            await update_people(self.store, chance=self.gates.chance, at=now, by="operator", plan=plan)

    async def list_former_identities(self, names: Collection[str]) -> tuple[str, ...]:
        """Identities that once belonged to the same person, and do not any more."""
        people = await self.store.get_people()
        persons = {it.person for it in people.identities.values() if it.identity in names}
        former: list[str] = []
        after = 0
        while page := await self.store.list_people_events(after=after):
            former += [it.identity for it in page if it.person in persons and it.identity and it.identity not in names]
            after = page[-1].n
        return tuple(dict.fromkeys(former))


def _is_about_person(
    why: RecallRecord, names: IdentityStarts, places: Collection[tuple[str, int]], *, at: float
) -> bool:
    return any(
        is_of_person(one.person, names, at=one.at or at) or (one.session, one.seq) in places for one in list_traces(why)
    ) or any(f"person:{name}" in why.audience and at >= since for name, since in names.items())
