"""The rows that a change reads and writes, and the set of them on which the rules of `commit_rules` decide.

A store that keeps its rows elsewhere reads what a batch of changes needs under lock (`StoreNeeds`), lets the rules
decide on a `WorkingSet`, and writes what became different. The rules do no I/O.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from everhold.core.entries import (
    BODY_TYPES,
    BODY_VERSION,
    EntryDraft,
    EntryKind,
    Heard,
    decode_body,
    encode_with_digest,
)
from everhold.core.people import IdentityRecord, PeopleEvent, PersonRecord
from everhold.ports.store import DeadLetter, InFlightBatch, PeerRecord, Receipt

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

SALT_BYTES: Final = 16
"""Random bytes in each digest."""
_NAME_BY_BODY: Final[dict[type, str]] = {body: kind.value for kind, body in BODY_TYPES.items()}
_ABSENT: Final[Any] = object()

CursorKey: TypeAlias = tuple[str, str]
"""Session and consumer."""
PeerKey: TypeAlias = tuple[str, str, str]
"""Memory, agent and identity."""
EntryRow: TypeAlias = tuple[int | None, str, int, str, int | None, str, float, int, str, bytes, bytes, str | None]
"""pos, session, seq, kind, op, author, at, version, body, salt, digest, dedup"""


def build_entry_row(
    session: str, seq: int, draft: EntryDraft, *, at: float, salt: bytes, op: int | None = None, pos: int | None = None
) -> EntryRow:
    """Build the row of an entry."""
    body, author = draft.body, draft.author
    if draft.at is not None:
        at = draft.at
    kind = _NAME_BY_BODY[type(body)]
    text, seal = encode_with_digest(body, salt=salt, session=session, seq=seq, kind=kind, op=op, author=author, at=at)
    return pos, session, seq, kind, op, author, at, BODY_VERSION, text, salt, seal, draft.dedup


class DuplicateEntry(NamedTuple):
    """The existing entry with a dedup key."""

    session: str
    seq: int
    pos: int
    differs: bool


class KeyedEntry(NamedTuple):
    """An entry that has a dedup key."""

    session: str
    seq: int
    pos: int
    kind: str
    body: str | None
    generation: int = 0
    """The generation of its session when the batch began."""


def compare_duplicate(stored: KeyedEntry, draft: EntryDraft) -> DuplicateEntry:
    """Return the place of the entry with the dedup key of `draft`, and whether its text or attachments differ."""
    differs = False
    if stored.body is not None and isinstance(draft.body, Heard):
        body = decode_body(EntryKind(stored.kind), stored.body)
        differs = isinstance(body, Heard) and _list_sent_content(body) != _list_sent_content(draft.body)
    return DuplicateEntry(stored.session, stored.seq, stored.pos, differs)


def _list_sent_content(heard: Heard) -> tuple[object, ...]:
    """Return what the sender sent. Quoted and embedded text does not count, because a platform may add it later."""
    forwarded = tuple(piece for piece in heard.pieces if piece.source == "forwarded")
    return heard.text, heard.attachments, forwarded


class SessionRow(Struct):
    id: str
    agent: str
    address: str
    next_seq: int = 1
    generation: int = 0
    erasures: int = 0
    created: float = 0.0
    title: str = ""
    parent: str = ""
    parent_at: int = 0
    choices: dict[str, str] = {}
    names: dict[str, str] = {}
    inherited: int = 0
    """The erasures of its ancestors. They raise the generation of its context, because a branch sees their entries."""
    is_new: bool = False

    @property
    def context_generation(self) -> int:
        return self.generation + self.inherited


class CursorRow(Struct):
    session: str
    consumer: str
    start_seq: int = 0
    processed_seq: int = 0
    in_flight: InFlightBatch | None = None
    attempts: int = 0
    since: float | None = None
    wait: float = 0.0
    due: float | None = None
    mandatory: bool = False
    owner: str = ""
    lease_since: float = 0.0
    lease_wait: float = 0.0
    fence: int = 0
    error: str = ""
    waits_for: str = ""


class OperationRow(Struct):
    session: str
    op: int
    type: str
    state: str
    first: int
    last: int = 0
    consumer: str = ""
    fence: int = 0
    attempts: int = 0
    paused: bool = False
    blocking: bool = False
    covers: int = 0
    undone_at: int = 0
    compression: int = 0
    stop: bool = False


class LogExcerpt(Struct):
    """What an erasure, an undo or a release has to know of a session's log."""

    ended: dict[int, int] = {}
    """operation -> its `ended`"""
    takes: dict[int, list[int]] = {}
    """operation -> the messages that it consumed, as far as the entries that say so were not erased"""
    asks: dict[int, bool] = {}
    """message -> whether it asks for an answer; without erased ones"""
    ops: dict[int, int | None] = {}
    """entry that is erased -> its operation"""
    changed: dict[int, str] = {}
    """`changed` entry -> its body; without erased ones"""


class RowTable(dict[K, V], Generic[K, V]):
    """Rows by key. A row is replaced and never changed in place, so that a refused change can be taken back."""

    def __init__(self, undo: list[tuple[RowTable[Any, Any], Any, Any]]) -> None:
        super().__init__()
        self.changed: set[K] = set()
        self._undo = undo

    def put(self, key: K, row: V) -> None:
        self._undo.append((self, key, self.get(key, _ABSENT)))
        self[key] = row
        self.changed.add(key)

    def drop(self, key: K) -> None:
        self._undo.append((self, key, self.get(key, _ABSENT)))
        self.pop(key, None)
        self.changed.add(key)

    def restore(self, key: K, row: V) -> None:
        if row is _ABSENT:
            self.pop(key, None)
        else:
            self[key] = row


class WorkingSet:
    """The rows that a batch of changes needs. `now` is the time of the store."""

    def __init__(self, *, now: float, first_pos: int) -> None:
        self.now = now
        self.next_pos = first_pos
        self._undo: list[tuple[RowTable[Any, Any], Any, Any]] = []
        self.sessions: RowTable[str, SessionRow] = RowTable(self._undo)
        self.bindings: RowTable[str, str] = RowTable(self._undo)
        self.cursors: RowTable[CursorKey, CursorRow] = RowTable(self._undo)
        self.operations: RowTable[tuple[str, int], OperationRow] = RowTable(self._undo)
        self.running: RowTable[str, tuple[int, ...]] = RowTable(self._undo)
        """The running operations of each session."""
        self.pending: RowTable[tuple[str, int], bool] = RowTable(self._undo)
        self.keyed: RowTable[str, KeyedEntry] = RowTable(self._undo)
        """Entries by dedup key."""
        self.replays: RowTable[CursorKey, frozenset[int]] = RowTable(self._undo)
        """The ids of the dead letters that a cursor has to replay. A new letter has no id yet and counts as 0."""
        self.states: RowTable[tuple[str, str, str], tuple[str, int]] = RowTable(self._undo)
        """Value and version of state records by namespace, scope and key."""
        self.state_version: RowTable[int, int] = RowTable(self._undo)
        """The version of the shared records, under the key 0."""
        self.accounts: dict[str, tuple[str, int]] = {}
        """Owner and fence of accounts."""
        self.state_floor = 0
        self.deleted_versions: RowTable[int, bool] = RowTable(self._undo)
        self.spends: RowTable[tuple[str, str], tuple[float, int]] = RowTable(self._undo)
        """What the batch adds to the budgets of a day."""
        self.receipts: RowTable[tuple[str, int, int, str], Receipt] = RowTable(self._undo)
        self.blobs: RowTable[str, bytes | None] = RowTable(self._undo)
        """Blobs to store by digest; None to delete one."""
        self.logs: dict[str, LogExcerpt] = {}
        self.newest_thought = 0
        self.newest_erasure = 0
        self.begun_pos: dict[tuple[str, int], int] = {}
        """The pos of the entry that began an operation."""
        self.people_changed = 0
        """The epoch of the last change of people that is not the first message of an identity."""
        self.people_epoch = 0
        self.persons: RowTable[str, PersonRecord] = RowTable(self._undo)
        self.identities: RowTable[str, IdentityRecord] = RowTable(self._undo)
        self.peers: RowTable[PeerKey, dict[int, PeerRecord]] = RowTable(self._undo)
        """The peers of an identity by the pos from which on they are in force."""
        self.people_events: list[PeopleEvent] = []
        """New events. The first one gets the number after `people_epoch`."""
        self.entries: list[EntryRow] = []
        self.dead_letters: list[DeadLetter] = []
        self.settled: list[int] = []
        """Dead letters that were replayed."""
        self.erased: list[tuple[str, int]] = []
        self.dropped: list[tuple[str, int]] = []
        """Entries whose dead letters are dropped."""
        self.scrubbed: list[tuple[str, int]] = []
        """Entries whose dead letters may repeat an erased text in their reason."""
        self._lists: tuple[list[Any], ...] = (
            self.entries,
            self.dead_letters,
            self.settled,
            self.erased,
            self.dropped,
            self.scrubbed,
            self.people_events,
        )

    def mark(self) -> tuple[int, ...]:
        """Begin a change. Pass the result to `roll_back` to take the change back."""
        self._undo.clear()
        return (self.next_pos, *map(len, self._lists))

    def roll_back(self, mark: tuple[int, ...]) -> None:
        while self._undo:
            table, key, row = self._undo.pop()
            table.restore(key, row)
        self.next_pos = mark[0]
        for rows, length in zip(self._lists, mark[1:], strict=True):
            del rows[length:]

    def find_running(self, session: str) -> list[OperationRow]:
        return [self.operations[session, op] for op in self.running.get(session, ())]
