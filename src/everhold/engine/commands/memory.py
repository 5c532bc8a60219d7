"""`/memory`: list facts, explain an answer, search, note and forget."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from everhold.core.commands import ParsedSubcommand
from everhold.core.entries import Entry, EntryBody, EntryKind, Heard, Noted, Said, Stamp, Thought
from everhold.core.facts import Fact, find_maker, match_facts, render_fact_list
from everhold.core.people import PERSON_MEMBER, can_hear
from everhold.core.provenance import join_all_text
from everhold.core.recall import RecallRecord, list_cited_places, render_recall_record, render_search_results
from everhold.core.recall_blobs import read_record
from everhold.engine.agent_runtime import AgentRuntime, AgentRuntimes
from everhold.engine.gates import Gates
from everhold.engine.memory.recall import recall_for_turn
from everhold.ports.store import Session, Store

MAX_TURNS_BACK: Final = 20
"""How many turns back a recall record is searched."""
MAX_REPLY_CHARS: Final = 8_000
MAX_LISTED_NOTES: Final = 5
"""How many notes are listed."""
MEMORY_USAGE: Final = (
    "/memory shows my facts, /memory why shows what I recalled for my last answer, /memory search WORDS shows what I"
    " know about a topic; /memory note TEXT adds a note, /memory forget WORDS takes back a fact or a note that contains"
    " them."
)


class ForgetRights(Struct, frozen=True, kw_only=True):
    """Whose notes and facts the sender may take back."""

    sender: str = ""
    """The identity of the sender, if only their own notes may be taken back; empty: all."""
    refusal: str = ""
    """What the sender is told about notes of others."""


async def run_memory_command(
    gates: Gates,
    runtimes: AgentRuntimes,
    session: Session,
    runtime: AgentRuntime,
    heard: Heard,
    arguments: ParsedSubcommand,
    *,
    rights: ForgetRights,
) -> tuple[tuple[EntryBody, ...], str]:
    """Return the entries that `/memory ...` writes, and its reply."""
    store = gates.store
    rest = arguments.text
    match arguments.word:
        case "why":
            return (), await _explain_last_answer(store, session, heard.stamp)
        case "search":
            if not rest:
                return (), "Add words to search for: /memory search WORDS"
            searching = dataclasses.replace(runtime, recall_memories=runtime.shown_memories)
            looked = await recall_for_turn(
                gates, runtimes, searching, session, op=0, takes=(), text=rest, stamp=heard.stamp, list_visible=tuple
            )
            if looked.record is None:
                return (), "I cannot search here, because recall is off or the people present are unknown."
            return (), render_search_results(
                looked.record,
                await read_cited_texts(store, looked.record, session.agent, audience=heard.stamp.audience),
            )
        case "note":
            if not heard.stamp.audience:
                return (), "I cannot note anything here, because the people present are unknown."
            if not rest or len(rest) > MAX_REPLY_CHARS:
                return (), f"Add a text of at most {MAX_REPLY_CHARS} characters: /memory note TEXT"
            return (Noted(text=rest, stamp=heard.stamp),), "Noted."
        case "forget":
            return await _forget_matching(store, session, runtime, heard.stamp, rest, rights)
        case "":
            facts = await _list_facts(runtime, session, heard.stamp)
            notes = [
                f"- {note.text}" for _, note in (await _list_notes(store, session, heard.stamp))[-MAX_LISTED_NOTES:]
            ]
            lately = ["Recent notes in this session:", *notes] if notes else []
            return (), "\n".join([f"Facts:\n{render_fact_list(facts)}", *lately, MEMORY_USAGE])
        case _:
            return (), MEMORY_USAGE


async def _list_facts(runtime: AgentRuntime, session: Session, stamp: Stamp) -> list[Fact]:
    return [] if runtime.fact_cache is None else await runtime.fact_cache.list_valid(session.agent, stamp.audience)


async def _explain_last_answer(store: Store, session: Session, stamp: Stamp) -> str:
    newest = await find_recall_record(store, session, audience=stamp.audience)
    if newest is None:
        return "Nothing was recalled for my recent answers to the people present."
    _, why = newest
    return render_recall_record(why, await read_cited_texts(store, why, session.agent, audience=stamp.audience))


async def _forget_matching(
    store: Store, session: Session, runtime: AgentRuntime, stamp: Stamp, rest: str, rights: ForgetRights
) -> tuple[tuple[EntryBody, ...], str]:
    """Take back the matching fact or notes. The log keeps the entries; `forget PERSON` erases them."""
    if not rest:
        return (), "Add words of what to forget: /memory forget WORDS"
    found = [
        (
            find_maker(fact.author, fact.stamp),
            fact.at,
            Noted(
                text=fact.text,
                action="remove",
                fact=fact.id,
                supersedes=fact.seq if fact.session == session.id else 0,
                tags=(fact.target,),
                stamp=stamp,
            ),
        )
        for fact in match_facts(await _list_facts(runtime, session, stamp), rest)
    ]
    found += [
        (
            find_maker(entry.author, note.stamp),
            entry.at,
            Noted(text=note.text, action="remove", supersedes=entry.seq, tags=note.tags, stamp=stamp),
        )
        for entry, note in await _list_notes(store, session, stamp)
        if rest in note.text
    ]
    if not found:
        return (), "No fact or note contains that. Messages stay in the log; /undo takes back turns."
    people = await store.get_people()
    removed = tuple(
        note
        for maker, at, note in found
        if not rights.sender or people.belongs_to(maker.removeprefix(PERSON_MEMBER), rights.sender, at=at)
    )
    refusal = rights.refusal if len(removed) < len(found) else ""
    lines = "\n".join(["Taken back:", *(f"- {note.text}" for note in removed)]) if removed else ""
    return removed, "\n".join(filter(None, (lines, refusal)))


async def _list_notes(store: Store, session: Session, stamp: Stamp) -> list[tuple[Entry, Noted]]:
    """Return the notes of this session that everybody present may see, that are not facts, and that were not taken
    back: entry and note.
    """
    noted = [
        (entry, entry.body)
        for entry in await store.list_entries(session.id, kinds=(EntryKind.NOTED,))
        if isinstance(entry.body, Noted)
    ]
    taken = {note.supersedes for _, note in noted}
    present = (await store.get_people()).expand_audience(stamp.audience)
    return [
        (entry, note)
        for entry, note in noted
        if not note.fact
        and note.action != "remove"
        and entry.seq not in taken
        and can_hear(present, note.stamp.audience, entry.at)
    ]


# -- recall records ----------------------------------------------------------------------------------------------------


async def find_recall_record(
    store: Store, session: Session, *, audience: Collection[str] | None = None, at: int | None = None
) -> tuple[Entry, RecallRecord] | None:
    """Return the newest thought up to entry `at`, with the record of what was recalled for it.

    With `audience`, only a thought that all of it may see counts, because other addresses can be bound to the session,
    too.
    """
    present = None if audience is None else (await store.get_people()).expand_audience(audience)
    before = None if at is None else at + 1
    turns = await store.list_operations(
        session.id, types=("turn",), before=before, newest_first=True, limit=MAX_TURNS_BACK
    )
    for turn in turns:
        upto = turn.last or None
        for entry in await store.list_entries(session.id, after=turn.first - 1, upto=upto, kinds=(EntryKind.THOUGHT,)):
            if entry.op != turn.op or not isinstance(entry.body, Thought) or not entry.body.why:
                continue
            blob = await store.get_blob(entry.body.why)
            if blob is None:
                continue  # the record contained an erased text and is gone
            why = read_record(blob)
            if present is None or can_hear(present, why.audience, entry.at):
                return entry, why
    return None


async def read_cited_texts(
    store: Store, why: RecallRecord, agent: str, *, audience: Collection[str] | None = None
) -> dict[tuple[str, int], str]:
    """Return the texts that a record refers to, if they still exist and the whole audience may read them."""
    present = None if audience is None else (await store.get_people()).expand_audience(audience)
    read: dict[tuple[str, int], str] = {}
    agents: dict[str, str] = {}
    for session, seq in list_cited_places(why):
        if session not in agents:
            known = await store.find_sessions(session)
            agents[session] = (await store.get_session(session)).agent if session in known else ""
        if agents[session] != agent:
            continue
        entry = await store.get_entry(session, seq)
        body = entry.body
        if isinstance(body, Heard | Said | Noted) and (
            present is None or can_hear(present, body.stamp.audience, entry.at)
        ):
            read[session, seq] = join_all_text(body) if isinstance(body, Heard) else body.text
    return read
