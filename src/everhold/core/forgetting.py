"""Select the entries that contain a person's words, so that they can be erased: the person's messages, the replies to
them, notes about them, and texts that repeat them to others. In doubt, an entry is selected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from everhold.core.entries import (
    Began,
    Changed,
    Compressed,
    CompressionRequested,
    Entry,
    EntryKind,
    Heard,
    MemoryNameSet,
    Noted,
    Notified,
    Returned,
    Said,
    SessionTitled,
    Stamp,
    TaskRequested,
    Thought,
    Took,
)
from everhold.core.provenance import join_all_text
from everhold.core.quotas import SubjectKind
from everhold.core.schedule import Schedule
from everhold.ports.store import StateNamespace, StateRecord, split_state_scope

IdentityStarts: TypeAlias = Mapping[str, float]
"""The identities of a person -> the time from which on each stands for the person; 0: always. What was said before is
of a former owner of the identity.
"""
MIN_WORD_CHARS: Final = 4
"""Fewest characters of a word that can show that a text repeats another."""
_WORD: Final = re.compile(r"\w+")
_TEXT_KINDS: Final = (
    EntryKind.HEARD,
    EntryKind.THOUGHT,
    EntryKind.RETURNED,
    EntryKind.NOTED,
    EntryKind.SAID,
    EntryKind.NOTIFIED,
    EntryKind.COMPRESSED,
)


class PersonalPart(Struct, frozen=True, kw_only=True):
    """The entries of a session that belong to a person."""

    seqs: tuple[int, ...] = ()
    sole_speaker: bool = False
    """No other person ever spoke in the session, so all of it belongs to this person."""
    repeated: tuple[int, ...] = ()
    """Those of `seqs` that were said to other people, or made for them, and use words that only this person introduced.
    """


def has_text(entry: Entry) -> bool:
    """Return whether an entry has text that is not erased."""
    if isinstance(entry.body, Changed):
        return isinstance(entry.body.change, TaskRequested | SessionTitled | CompressionRequested | MemoryNameSet)
    return entry.body is not None and entry.kind in _TEXT_KINDS


def _has_title(entry: Entry) -> bool:
    stamp = get_stamp(entry)
    return bool(stamp and stamp.title) or (
        isinstance(entry.body, Changed) and isinstance(entry.body.change, SessionTitled)
    )


def _is_memory_name_change(entry: Entry) -> bool:
    return isinstance(entry.body, Changed) and isinstance(entry.body.change, MemoryNameSet)


def is_of_person(identity: str, names: IdentityStarts, *, at: float) -> bool:
    """Return whether an identity stood for the person at a time."""
    return identity in names and at >= names[identity]


def is_scheduled_by(schedule: Schedule, names: IdentityStarts) -> bool:
    """Return whether a person with one of `names` made a schedule. A schedule stores the person's
    id on its platform.
    """
    made_by = (schedule.sender, f"{schedule.place.platform}:{schedule.sender}")
    return any(is_of_person(it, names, at=schedule.made) for it in made_by)


def is_record_of(record: StateRecord, names: Collection[str], *, chats: Collection[str] = ()) -> bool:
    """Return whether a state record belongs to one of these identities, or to one of their direct chats, which `chats`
    names as quotas do."""
    platform, _ = split_state_scope(record.scope)
    match record.namespace:
        case StateNamespace.PAIRING_REQUEST | StateNamespace.PAIRING_GRANT:
            return f"{platform}:{record.key}" in names
        case StateNamespace.DM_OWNER:
            return f"{platform}:{record.value}" in names
        case StateNamespace.IDENTITY_LINK:
            return record.key in names or _read_field(record, "other") in names
        case StateNamespace.HELD_MESSAGE | StateNamespace.API_ANSWER:
            return _read_field(record, "identity") in names
        case StateNamespace.QUOTA:
            return record.key in chats or record.key.removeprefix(f"{SubjectKind.SENDER}:") in names
        case _:
            return record.key in names


def read_record_time(record: StateRecord) -> float:
    """Return when a record was made; 0 if it does not say."""
    at = _read_field(record, "at")
    return float(at) if isinstance(at, int | float) else 0.0


def _read_field(record: StateRecord, name: str) -> object:
    try:
        value: object = json.loads(record.value)
    except ValueError:
        return None
    return value.get(name) if isinstance(value, dict) else None


def is_spoken_by(entry: Entry, names: IdentityStarts) -> bool:
    """Return whether a person with one of `names` is the author, or is named in the stamp. An erased entry still has
    its author.
    """
    author = entry.author.removeprefix("person:") if entry.author.startswith("person:") else ""
    if is_of_person(author, names, at=entry.at):
        return True
    stamp = get_stamp(entry)
    return stamp is not None and is_of_person(stamp.person, names, at=entry.at)


def get_stamp(entry: Entry) -> Stamp | None:
    match entry.body:
        case Heard(stamp=stamp) | Said(stamp=stamp) | Noted(stamp=stamp) | Changed(change=TaskRequested(stamp=stamp)):
            return stamp
        case _:
            return None


class PastEntries:
    """Finds the entries of one session that were there at a position of the log, and those that were written later by
    an operation that had begun or that answers one of them. Reads every entry once before it judges one.
    """

    def __init__(self, upto_pos: int) -> None:
        self._upto_pos = upto_pos
        self._past: set[int] = set()
        self._ops: set[int] = set()

    def read(self, entry: Entry) -> None:
        if entry.pos <= self._upto_pos:
            self._past.add(entry.seq)
        elif entry.op is not None:
            answers = isinstance(entry.body, Began | Took) and not self._past.isdisjoint(entry.body.takes)
            if entry.op in self._past or answers:
                self._ops.add(entry.op)

    def contains(self, entry: Entry) -> bool:
        return entry.seq in self._past or entry.op in self._ops


class PersonalSelection:
    """Selects the entries of one session that belong to a person. The session is read twice in the order of the log, so
    that none of its text is kept: `read` and, if it is shared, `read_repetition` after `exclude_words`.
    """

    def __init__(self, names: IdentityStarts) -> None:
        self._names = names
        self._own_seqs: set[int] = set()
        self._first_seq = 0
        self._ops: set[int] = set()
        self._texts: list[tuple[int, int | None, bool]] = []
        """The entries with text: seq, operation, and whether it sets the name that a memory uses."""
        self._titled = False
        self._has_other_speakers = False
        self._repeated: set[int] = set()
        self.own_words: set[str] = set()
        """The words that the person brought, as long as nobody else is known to use them."""

    @property
    def is_empty(self) -> bool:
        return not self._own_seqs

    @property
    def is_shared(self) -> bool:
        """Whether other people speak in the session, so that it must be read again for what repeats the person."""
        return bool(self._own_seqs) and self._has_other_speakers

    def read(self, entry: Entry) -> None:
        if is_spoken_by(entry, self._names):
            self._first_seq = self._first_seq or entry.seq
            self._own_seqs.add(entry.seq)
            # Replies to the person are erased, too, but their words are the agent's.
            if not isinstance(entry.body, Said):
                self.own_words |= extract_distinctive_words(extract_text(entry))
        elif entry.kind is EntryKind.HEARD and entry.author.startswith("person:"):
            self._has_other_speakers = True
        # an operation takes messages that are before it in the log
        if isinstance(entry.body, Began | Took) and entry.op is not None:
            if not self._own_seqs.isdisjoint(entry.body.takes):
                self._ops.add(entry.op)
        self._titled = self._titled or _has_title(entry)
        if has_text(entry):
            self._texts.append((entry.seq, entry.op, _is_memory_name_change(entry)))

    def exclude_words(self, others: Collection[str]) -> None:
        """Take the words that others use, here or elsewhere, from those of the person."""
        self.own_words.difference_update(others)

    def read_repetition(self, entry: Entry) -> None:
        """Select a text for others that contains words which only the person used."""
        if (
            entry.seq > self._first_seq
            and has_text(entry)
            and not isinstance(entry.body, Heard | Compressed | Changed)
            and not self.own_words.isdisjoint(extract_distinctive_words(extract_text(entry)))
        ):
            self._repeated.add(entry.seq)

    def build_part(self) -> PersonalPart:
        if not self._own_seqs:
            return PersonalPart()
        if not self._has_other_speakers:
            # The name that a memory uses may be made from the title, so it could reveal the title.
            seqs = (seq for seq, _, is_name in self._texts if self._titled or not is_name)
            return PersonalPart(seqs=tuple(sorted(seqs)), sole_speaker=True)
        erased = {seq for seq, op, _ in self._texts if seq in self._own_seqs or op in self._ops}
        repeated = self._repeated - erased
        return PersonalPart(seqs=tuple(sorted(erased | repeated)), repeated=tuple(sorted(repeated)))


def select_personal_entries(
    entries: Sequence[Entry], names: IdentityStarts, *, others: Collection[str] = ()
) -> PersonalPart:
    """Return the entries of one session that belong to the person. `others` are words that other people use
    elsewhere.
    """
    selection = PersonalSelection(names)
    for entry in entries:
        selection.read(entry)
    if selection.is_shared:
        for entry in entries:
            selection.exclude_words(extract_words_of_others(entry, names))
        selection.exclude_words(others)
        for entry in entries:
            selection.read_repetition(entry)
    return selection.build_part()


def extract_words_of_others(entry: Entry, names: IdentityStarts) -> set[str]:
    """Return the words of a message of somebody else than `names`; empty for other entries. To quote the person or to
    forward their text is not to use their words.
    """
    if not isinstance(entry.body, Heard) or is_spoken_by(entry, names):
        return set()
    pieces = [piece.text for piece in entry.body.pieces if not is_of_person(piece.by, names, at=entry.at)]
    return extract_distinctive_words("\n".join((entry.body.text, *pieces)))


def extract_text(entry: Entry) -> str:
    """Return all text of an entry."""
    match entry.body:
        case Heard():
            return join_all_text(entry.body)
        case Said(text=text) | Noted(text=text) | Notified(text=text) | Returned(text=text):
            return text
        case Thought(text=text, reasoning=reasoning, calls=calls):
            asked = [json.dumps(call.arguments, ensure_ascii=False, default=str) for call in calls]
            return "\n".join((text, reasoning, *asked))
        case Compressed(summary=summary, kept=kept, effects=effects):
            return "\n".join((summary, *(one.text for one in kept), *effects))
        case Changed(change=TaskRequested(text=text, delegation=delegation)):
            return text if delegation is None else f"{text}\n{delegation.context}"
        case Changed(change=SessionTitled(title=text)) | Changed(change=CompressionRequested(focus=text)):
            return text
        case _:
            return ""


def extract_distinctive_words(text: str) -> set[str]:
    """Return the words that could identify a text: long ones, numbers, and pieces of scripts without spaces."""
    found: set[str] = set()
    for word in _WORD.findall(text.casefold()):
        if word.isascii():
            if len(word) >= MIN_WORD_CHARS or (len(word) > 1 and any(letter.isdigit() for letter in word)):
                found.add(word)
        else:
            found.update(word[at : at + MIN_WORD_CHARS] for at in range(max(1, len(word) - MIN_WORD_CHARS + 1)))
    return found


def is_quoting(entry: Entry, names: IdentityStarts) -> bool:
    """Return whether another person's message contains text that the person wrote: quoted, forwarded or embedded."""
    if not isinstance(entry.body, Heard) or is_spoken_by(entry, names):
        return False
    return any(is_of_person(piece.by, names, at=entry.at) for piece in entry.body.pieces)
