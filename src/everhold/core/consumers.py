"""The names of consumers. Only this module makes and parses them, because the store keeps them with every cursor.

A consumer reads the log of a session and acts on it. Its name is one word (`turn`), or a kind and what it serves
(`memory:NAME`, `platform:PLATFORM:ACCOUNT`).
"""

from __future__ import annotations

import functools
from typing import Final, NamedTuple, TypeAlias

from everhold.core.entries import Attachment, ChatLocation, EntryBody, Notified, Said, TaskRequested

TURN: Final = "turn"
"""Answers messages."""
COMMANDS: Final = "commands"
"""Carries out chat commands."""
COMPRESSION: Final = "compression"
"""Compresses old operations."""
BACKLINKS: Final = "backlinks"
"""Writes the matching entry into the other session."""
TASKS: Final = "tasks"
"""Works on background tasks."""
DELEGATE: Final = "delegate"
"""The kind of the consumers that do the work of sub-agents."""
REVIEW: Final = "review"
"""Looks back over finished turns for notes."""
APPROVALS: Final = "approvals"
"""Runs calls that were approved, and ends requests that were not answered in time."""
PLATFORM: Final = "platform"
"""The kind of the consumers that deliver replies."""
MEMORY: Final = "memory"
"""The kind of the consumers that feed memories."""
BACKFILL: Final = "backfill"
"""The kind of the consumers that feed a memory with older history."""

REKEY: Final = "rekey"
"""The kind of the consumers that move a person's items in a memory to another peer."""

DELEGATE_SLOTS: Final = 4
"""How many sub-agents of one conversation work at once."""
MEMORY_PREFIX: Final = f"{MEMORY}:"
PLATFORM_PREFIX: Final = f"{PLATFORM}:"
BACKFILL_PREFIX: Final = f"{BACKFILL}:"

ReplyPart: TypeAlias = str | Attachment
"""What is sent as one message: a piece of the text, or a file."""


class ConsumerName(NamedTuple):
    """A consumer's name, parsed. `served` is what it serves: a memory's name, or a platform and an account."""

    kind: str
    served: str = ""

    @property
    def platform(self) -> str:
        return self.served.partition(":")[0]

    @property
    def account(self) -> str:
        return self.served.partition(":")[2]


@functools.lru_cache(maxsize=1_024)
def parse_consumer(name: str) -> ConsumerName:
    kind, _, served = name.partition(":")
    return ConsumerName(kind, served)


def delegate_consumer(slot: int) -> str:
    """Return the consumer that does the work of one of a conversation's sub-agents."""
    return f"{DELEGATE}:{slot}"


def task_consumer(task: TaskRequested) -> str:
    """Return the consumer that works on a task."""
    return TASKS if task.delegation is None else delegate_consumer(task.delegation.slot)


def memory_consumer(memory: str) -> str:
    """Return the consumer that feeds a memory."""
    return f"{MEMORY_PREFIX}{memory}"


def backfill_consumer(memory: str) -> str:
    """Return the consumer that feeds a memory with older history."""
    return f"{BACKFILL_PREFIX}{memory}"


def rekey_consumer(memory: str) -> str:
    """Return the consumer that moves a person's items in a memory to another peer."""
    return f"{REKEY}:{memory}"


def get_memory_name(consumer: str) -> str:
    """Return the memory that a consumer feeds; empty if it feeds none."""
    name = parse_consumer(consumer)
    return name.served if name.kind in (MEMORY, BACKFILL, REKEY) else ""


def platform_consumer(platform: str, account: str) -> str:
    """Return the consumer that delivers replies through a platform account."""
    return f"{PLATFORM}:{platform}:{account}"


def place_consumer(place: ChatLocation) -> str:
    """Return the consumer that delivers replies to a chat."""
    return platform_consumer(place.platform, place.account)


def get_reply_parts(body: EntryBody | None) -> tuple[ChatLocation | None, tuple[ReplyPart, ...]]:
    """Return where an entry is delivered, and in which parts; (None, ()) if it is not delivered."""
    match body:
        case Said(to=to, parts=parts, text=text, attachments=files):
            return to, (*(parts or (text,)), *files)
        case Notified(to=to, parts=parts, text=text):
            return to, parts or (text,)
        case _:
            return None, ()
