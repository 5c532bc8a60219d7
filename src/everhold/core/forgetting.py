"""Which words of a log are a person's, so that they can be erased: what they said, what was said to them, what was
noted of them, and what repeats it to others. It errs on the side of forgetting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

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
from everhold.core.schedule import Schedule

MIN_WORD_CHARS: Final = 4
"""Characters of a word by which something can be told to be repeated."""
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
    """What of a session is a person's."""

    seqs: tuple[int, ...] = ()
    sole_speaker: bool = False
    """Nobody else ever spoke there: all of it is theirs."""
    repeated: tuple[int, ...] = ()
    """Those of `seqs` that were said to, or made for, somebody else, and use words only this person brought in."""


def has_text(entry: Entry) -> bool:
    """Whether an entry holds words that are still there."""
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


def is_scheduled_by(schedule: Schedule, names: Collection[str]) -> bool:
    """Whether somebody who goes by one of `names` made a schedule: it knows them by their id on its platform."""
    return schedule.sender in names or f"{schedule.place.platform}:{schedule.sender}" in names


def is_spoken_by(entry: Entry, names: Collection[str]) -> bool:
    """Whether these are their own words, or words kept in their name. What was erased still has its author."""
    if entry.author.startswith("person:") and entry.author.removeprefix("person:") in names:
        return True
    stamp = get_stamp(entry)
    return stamp is not None and stamp.person in names


def get_stamp(entry: Entry) -> Stamp | None:
    match entry.body:
        case Heard(stamp=stamp) | Said(stamp=stamp) | Noted(stamp=stamp) | Changed(change=TaskRequested(stamp=stamp)):
            return stamp
        case _:
            return None


def select_personal_entries(
    entries: Sequence[Entry], names: Collection[str], *, others: Collection[str] = ()
) -> PersonalPart:
    """What of one session's entries is theirs. `others` are words that somebody else uses, too, here or elsewhere."""
    heard = [entry for entry in entries if entry.kind is EntryKind.HEARD]
    mine = {entry.seq for entry in entries if is_spoken_by(entry, names)}
    if not mine:
        return PersonalPart()
    if all(is_spoken_by(entry, names) for entry in heard if entry.author.startswith("person:")):
        # what a memory files it under may have been made of its title, and would tell it to whoever lists them
        titled = any(_has_title(entry) for entry in entries)
        gone = {entry.seq for entry in entries if has_text(entry) and (titled or not _is_memory_name_change(entry))}
        return PersonalPart(seqs=tuple(sorted(gone)), sole_speaker=True)
    ops = {
        entry.op
        for entry in entries
        if isinstance(entry.body, Began | Took) and not mine.isdisjoint(entry.body.takes) and entry.op is not None
    }
    gone = {entry.seq for entry in entries if has_text(entry) and (entry.seq in mine or entry.op in ops)}
    # what was said to them is theirs, too, but the words are the agent's
    brought = [entry for entry in entries if entry.seq in mine and not isinstance(entry.body, Said)]
    own = set().union(*(extract_distinctive_words(extract_text(entry)) for entry in brought))
    told = set().union(*(extract_distinctive_words(extract_text(entry)) for entry in heard if entry.seq not in mine))
    distinct = own - told - set(others)
    first = min(mine)
    repeated = {
        entry.seq
        for entry in entries
        if entry.seq > first
        and entry.seq not in gone
        and has_text(entry)
        and not isinstance(entry.body, Heard | Compressed | Changed)
        and not distinct.isdisjoint(extract_distinctive_words(extract_text(entry)))
    }
    return PersonalPart(seqs=tuple(sorted(gone | repeated)), repeated=tuple(sorted(repeated)))


def extract_text(entry: Entry) -> str:
    """All that an entry says."""
    match entry.body:
        case Heard(text=text) | Said(text=text) | Noted(text=text) | Notified(text=text) | Returned(text=text):
            return text
        case Thought(text=text, reasoning=reasoning, calls=calls):
            asked = [json.dumps(call.arguments, ensure_ascii=False, default=str) for call in calls]
            return "\n".join((text, reasoning, *asked))
        case Compressed(summary=summary, kept=kept, effects=effects):
            return "\n".join((summary, *(one.text for one in kept), *effects))
        case (
            Changed(change=TaskRequested(text=text))
            | Changed(change=SessionTitled(title=text))
            | Changed(change=CompressionRequested(focus=text))
        ):
            return text
        case _:
            return ""


def extract_distinctive_words(text: str) -> set[str]:
    """The words of a text that could betray it: long ones, numbers, and pieces of scripts that have no spaces."""
    found: set[str] = set()
    for word in _WORD.findall(text.casefold()):
        if word.isascii():
            if len(word) >= MIN_WORD_CHARS or (len(word) > 1 and any(letter.isdigit() for letter in word)):
                found.add(word)
        else:
            found.update(word[at : at + MIN_WORD_CHARS] for at in range(max(1, len(word) - MIN_WORD_CHARS + 1)))
    return found


def collect_words_of_others(entries: Iterable[Entry], names: Collection[str]) -> set[str]:
    """Words that somebody other than `names` uses."""
    found: set[str] = set()
    for entry in entries:
        if isinstance(entry.body, Heard) and not is_spoken_by(entry, names):
            found |= extract_distinctive_words(entry.body.text)
    return found
