"""Random logs: everything that can happen to a session, in any order, as the commits that would be made.

A chronicle keeps just enough state to stay valid (no turn begins while one runs). It does not compute contexts:
they are under test. The same commits can be made on a real store, and must give the same log.
"""

from __future__ import annotations

from random import Random
from typing import Any, Literal, TypeAlias

from hypothesis import strategies as st
from msgspec import Struct, structs

from everhold.core.entries import (
    BODY_VERSION,
    OWN_OPERATION,
    Began,
    BranchedFrom,
    Called,
    Changed,
    ChatLocation,
    Compressed,
    ContextReset,
    Ended,
    Entry,
    EntryBody,
    EntryDraft,
    EntryKind,
    Erased,
    Heard,
    Noted,
    OperationsUndone,
    Returned,
    Said,
    Stamp,
    Thought,
    Took,
    ToolCall,
    get_body_kind,
)
from everhold.ports.store import Change, SessionOpening, Step

Action: TypeAlias = tuple[str, int, int]
"""What happens, in which session, and a number that decides the rest."""

WEIGHTS = {
    "hear": 8,
    "begin": 6,
    "think": 3,
    "run": 4,
    "steer": 2,
    "end": 6,
    "compression_begin": 3,
    "compression_end": 3,
    "pin": 1,
    "fresh": 1,
    "undo": 2,
    "undo_compression": 1,
    "erase": 1,
    "branch": 1,
    "note": 1,
}
STORY: st.SearchStrategy[list[Action]] = st.lists(
    st.tuples(st.sampled_from(sorted(WEIGHTS)), st.integers(0, 2), st.integers(0, 63)), max_size=40
)
ERASABLE = {
    EntryKind.HEARD,
    EntryKind.THOUGHT,
    EntryKind.CALLED,
    EntryKind.RETURNED,
    EntryKind.NOTED,
    EntryKind.SAID,
    EntryKind.COMPRESSED,
}
STAMP = Stamp(person="ada", audience=("person:ada",), address="agent:main:fake:dm:1")
HERE = ChatLocation(platform="fake", account="main", chat="1")
MOST_SESSIONS = 3


def make_random_actions(seed: int, length: int = 60) -> list[Action]:
    chance = Random(seed)
    names = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=length)
    return [(name, chance.choice((0, 0, 0, 1, 2)), chance.randrange(64)) for name in names]


class Turn(Struct, kw_only=True):
    op: int
    pin: int
    takes: list[int]
    open: list[ToolCall] = []
    thoughts: int = 0
    state: str = "running"
    undone: bool = False


class RunningCompression(Struct, kw_only=True):
    op: int
    covers: int
    generation: int


class RandomSession(Struct, kw_only=True):
    """The state of one session in the generated log."""

    id: str
    parent: str = ""
    parent_at: int = 0
    log: list[Entry] = []
    pending: list[int] = []
    turns: dict[int, Turn] = {}
    compressions: dict[int, int] = {}
    """Folds that are done and that nothing took back: operation -> covers."""
    running: Turn | None = None
    running_compression: RunningCompression | None = None
    own_generation: int = 0
    erasures: int = 0
    reset_seq: int = 0
    marks: list[int] = []
    """The seqs at which commits ended. No state exists between two entries of one commit."""

    @property
    def last(self) -> int:
        return len(self.log)


class RandomLog:
    """Sessions and their logs as they come about."""

    def __init__(self, name: str = "s") -> None:
        self.name = name
        self.sessions: dict[str, RandomSession] = {}
        self.changes: list[Change] = []
        self.pos = 0
        self.branch_off("", 0)

    def logs(self) -> dict[str, list[Entry]]:
        return {id: chapter.log for id, chapter in self.sessions.items()}

    def perform(self, story: list[Action]) -> RandomLog:
        for action in story:
            self.perform_action(action)
        return self

    def perform_action(self, action: Action) -> None:
        name, where, number = action
        chapter = list(self.sessions.values())[where % len(self.sessions)]
        getattr(self, f"_{name}")(chapter, number)

    def generation(self, chapter: RandomSession) -> int:
        """The generation. It rises with every change of the context, also with erasures in ancestors."""
        total, above = chapter.own_generation, chapter.parent
        while above:
            total += self.sessions[above].erasures
            above = self.sessions[above].parent
        return total

    def visible(self, chapter: RandomSession) -> list[Turn]:
        """Ended turns of its own that a person would say they can see."""
        mark = max([chapter.reset_seq, *chapter.compressions.values()])
        return [
            turn
            for turn in chapter.turns.values()
            if turn.state in ("done", "failed", "stopped", "interrupted") and not turn.undone and turn.op > mark
        ]

    # -- writing

    def commit(
        self,
        chapter: RandomSession,
        *bodies: EntryBody,
        op: int | None = None,
        erase: tuple[int, ...] = (),
        **rest: Any,
    ) -> int:
        """Append; the seq of the first."""
        first = chapter.last + 1
        drafts = []
        for body in bodies:
            drafts.append(EntryDraft(body=body, author="agent:main", op=op))
            self._append(chapter, body, op)
        for seq in erase:
            chapter.log[seq - 1] = structs.replace(chapter.log[seq - 1], body=None)
        chapter.marks.append(chapter.last)
        named = None if op == OWN_OPERATION else op
        self.changes.append(
            Change(step=Step.NOTE, session=chapter.id, at=1.0, op=named, entries=tuple(drafts), erase=erase, **rest)
        )
        return first

    def _append(self, chapter: RandomSession, body: EntryBody, op: int | None) -> None:
        self.pos += 1
        seq = chapter.last + 1
        if isinstance(body, Began):
            op = seq
        elif op == OWN_OPERATION:
            op = next(entry.seq for entry in reversed(chapter.log) if entry.kind is EntryKind.BEGAN)
        chapter.log.append(
            Entry(
                session=chapter.id,
                seq=seq,
                pos=self.pos,
                kind=get_body_kind(body),
                op=op,
                author="agent:main",
                at=1.0,
                version=BODY_VERSION,
                body=body,
                digest=b"",
            )
        )

    def command(self, chapter: RandomSession, body: EntryBody) -> int:
        """A change as the operation of its own that it is; the seq of the change."""
        return self.commit(chapter, Began(type="command"), body, Ended(), op=OWN_OPERATION) + 1

    def branch_off(self, parent: str, at: int) -> RandomSession:
        chapter = RandomSession(id=f"{self.name}{len(self.sessions)}", parent=parent, parent_at=at)
        self.sessions[chapter.id] = chapter
        opens = SessionOpening(agent="main", address=f"test:{chapter.id}", parent=parent, parent_at=at)
        first = (Changed(change=BranchedFrom(parent=parent, at=at)),) if parent else ()
        self.commit(chapter, *first, opens=opens)
        return chapter

    # -- random events

    def _hear(self, chapter: RandomSession, number: int) -> None:
        seq = chapter.last + 1
        heard = Heard(
            origin=structs.replace(HERE, message=str(self.pos)),
            text=f"heard-{chapter.id}-{seq}",
            asks=number % 5 != 0,
            sender="ada",
            stamp=STAMP,
        )
        self.commit(chapter, heard)
        chapter.pending.append(seq)

    def _asks(self, chapter: RandomSession, seq: int) -> bool:
        body = chapter.log[seq - 1].body
        return isinstance(body, Heard) and body.asks

    def _begin(self, chapter: RandomSession, number: int) -> None:
        asking = [n for n, seq in enumerate(chapter.pending) if self._asks(chapter, seq)]
        if chapter.running or not asking:
            return
        takes = chapter.pending[: max(asking[0] + 1, number % 6)]
        del chapter.pending[: len(takes)]
        pin = max((op for op, covers in chapter.compressions.items() if covers >= chapter.reset_seq), default=0)
        op = self.commit(
            chapter,
            Began(
                type="turn", takes=tuple(takes), compression=pin, generation=self.generation(chapter), consumer="turn"
            ),
        )
        chapter.running = chapter.turns[op] = Turn(op=op, pin=pin, takes=takes)

    def _think(self, chapter: RandomSession, number: int) -> None:
        turn = chapter.running
        if turn is None or turn.open:
            return
        calls = [ToolCall(id=f"c{n}", tool="t", arguments={"n": number}) for n in range(1 + number % 3)]
        self.commit(chapter, Thought(text="", calls=tuple(calls), request="r"), op=turn.op)
        turn.open, turn.thoughts = calls, turn.thoughts + 1

    def _run(self, chapter: RandomSession, number: int) -> None:
        turn = chapter.running
        if turn is None or not turn.open:
            return
        call = turn.open.pop(0)
        if number % 2:
            self.commit(chapter, Called(call=call.id, tool="t", effect="once", key=f"k{self.pos}"), op=turn.op)
        bodies: list[EntryBody] = [Returned(call=call.id, text=f"result-{chapter.id}-{chapter.last + 1}")]
        if number % 7 == 0:
            bodies.append(Noted(text="a fact", stamp=STAMP))
        self.commit(chapter, *bodies, op=turn.op)

    def _steer(self, chapter: RandomSession, number: int) -> None:
        turn = chapter.running
        if turn is None or turn.open or not turn.thoughts or not chapter.pending:
            return
        takes = chapter.pending[: 1 + number % 3]
        del chapter.pending[: len(takes)]
        self.commit(chapter, Took(takes=tuple(takes)), op=turn.op)
        turn.takes += takes

    def _end(self, chapter: RandomSession, number: int) -> None:
        if chapter.running is None:
            return
        outcomes = ("done", "done", "done", "done", "failed", "stopped", "interrupted", "released")
        outcome = outcomes[number % len(outcomes)]
        if outcome == "released" and chapter.running.thoughts:
            outcome = "failed"
        self.finish(chapter, outcome)  # type: ignore[arg-type]  # mypy makes plain strings of them

    def finish(
        self, chapter: RandomSession, outcome: Literal["done", "failed", "stopped", "interrupted", "released"]
    ) -> None:
        turn = chapter.running
        assert turn is not None
        bodies: list[EntryBody] = [Returned(call=call.id, text="not run", error=True) for call in turn.open]
        if outcome == "done":
            text = f"answer-{chapter.id}-{chapter.last + len(bodies) + 1}"
            asked = [chapter.log[seq - 1].body for seq in turn.takes]
            to = next((body.origin for body in reversed(asked) if isinstance(body, Heard)), HERE)
            bodies += [Thought(text=text, request="r"), Said(text=text, to=to, parts=(text,), stamp=STAMP)]
        reason = f"because-{chapter.id}-{turn.op}" if outcome == "failed" else ""
        self.commit(chapter, *bodies, Ended(outcome=outcome, reason=reason), op=turn.op)
        turn.state, chapter.running = outcome, None
        if outcome == "released":
            self.give_back(chapter, turn)

    def give_back(self, chapter: RandomSession, turn: Turn) -> None:
        back = [seq for seq in turn.takes if chapter.log[seq - 1].body is not None]
        chapter.pending = sorted({*chapter.pending, *back})
        turn.takes = []

    # compressions

    def _covers(self, chapter: RandomSession, count: int) -> int | None:
        """Return `covers` of a compression of the `count` oldest exchanges, and always of all that is inherited."""
        own = self.visible(chapter)
        inherited = chapter.parent and not chapter.reset_seq and not chapter.compressions
        compressed = own[:count]
        return compressed[-1].op if compressed else 0 if inherited else None

    def _compression_begin(self, chapter: RandomSession, number: int) -> None:
        covers = self._covers(chapter, 1 + number % 4)
        if chapter.running_compression or covers is None:
            return
        generation = self.generation(chapter)
        op = self.commit(chapter, Began(type="compression", generation=generation, consumer="compression"))
        chapter.running_compression = RunningCompression(op=op, covers=covers, generation=generation)

    def _compression_end(self, chapter: RandomSession, number: int) -> None:
        work = chapter.running_compression
        if work is None:
            return
        if number % 6 == 0 or work.generation != self.generation(chapter):
            self.commit(chapter, Ended(outcome="refused", reason="no"), op=work.op)
        else:
            self._commit_compression(chapter, work)
        chapter.running_compression = None

    def _commit_compression(self, chapter: RandomSession, work: RunningCompression) -> None:
        compressed = Compressed(
            summary=f"compression-{chapter.id}-{work.op}", covers=work.covers, generation=work.generation
        )
        self.commit(chapter, compressed, Ended(), op=work.op)
        chapter.compressions[work.op] = work.covers
        chapter.own_generation += 1

    def _pin(self, chapter: RandomSession, _number: int) -> None:
        """Compress everything before a running turn that does not fit, and let the turn continue with the summary."""
        turn = chapter.running
        if turn is None or turn.open or chapter.running_compression:
            return
        pinned = chapter.compressions.get(turn.pin, 0)
        before = [
            it.op
            for it in chapter.turns.values()
            if it.state in ("done", "failed", "stopped", "interrupted") and not it.undone and pinned < it.op < turn.op
        ]
        fresh = max((e.seq for e in chapter.log[: turn.op] if _is_fresh(e)), default=0)
        before = [op for op in before if op > fresh]
        if not before:
            return
        generation = self.generation(chapter)
        op = self.commit(chapter, Began(type="compression", generation=generation, consumer="turn"))
        self._commit_compression(chapter, RunningCompression(op=op, covers=before[-1], generation=generation))
        self.commit(chapter, Took(compression=op), op=turn.op)
        turn.pin = op

    # changes of the context

    def _fresh(self, chapter: RandomSession, _number: int) -> None:
        if not chapter.last:
            return
        chapter.reset_seq = self.command(chapter, Changed(change=ContextReset()))
        chapter.own_generation += 1

    def _undo(self, chapter: RandomSession, number: int) -> None:
        turns = self.visible(chapter)[-(1 + number % 2) :]
        if chapter.running or not turns:
            return
        self.undo(chapter, turns, again=number % 3 == 0)

    def undo(self, chapter: RandomSession, turns: list[Turn], *, again: bool = False) -> None:
        self.command(chapter, Changed(change=OperationsUndone(ops=tuple(turn.op for turn in turns), again=again)))
        chapter.own_generation += 1
        for turn in turns:
            turn.undone = True
            if again:
                self.give_back(chapter, turn)
        first = min(turn.op for turn in turns)
        chapter.compressions = {op: covers for op, covers in chapter.compressions.items() if covers < first}

    def _undo_compression(self, chapter: RandomSession, _number: int) -> None:
        if not chapter.compressions:
            return
        newest = max(chapter.compressions)
        self.command(chapter, Changed(change=OperationsUndone(ops=(newest,))))
        chapter.own_generation += 1
        del chapter.compressions[newest]

    def _erase(self, chapter: RandomSession, number: int) -> None:
        possible = [e.seq for e in chapter.log if e.kind in ERASABLE and e.body is not None]
        if possible:
            self.erase(chapter, {possible[number % len(possible)]})

    def erase(self, chapter: RandomSession, seqs: set[int]) -> None:
        """Erase entries, with the compressions that contain them. A running operation has read them and ends. Branches
        erase them, too.
        """
        holders = {
            e.op
            for e in chapter.log
            if e.op is not None
            and (e.seq in seqs or (isinstance(e.body, Began | Took) and not seqs.isdisjoint(e.body.takes)))
        }
        summaries = [e.op or 0 for e in chapter.log if e.seq in seqs and e.kind is EntryKind.COMPRESSED]
        made = {e.op: e for e in chapter.log if e.kind is EntryKind.COMPRESSED and e.op is not None}
        compressions = {
            op
            for op, e in made.items()
            if isinstance(e.body, Compressed)
            and (
                any(holder <= e.body.covers for holder in holders)
                or any(op >= compression for compression in summaries)
            )
        }
        gone = tuple(sorted(seqs | {made[op].seq for op in compressions}))
        ends = [work.op for work in (chapter.running, chapter.running_compression) if work is not None]
        seq = chapter.last + 1
        drafts = [EntryDraft(body=Erased(seqs=gone, compressions=tuple(sorted(compressions))), author="agent:main")]
        drafts += [EntryDraft(body=Ended(outcome="erased"), author="agent:main", op=op) for op in ends]
        for draft in drafts:
            self._append(chapter, draft.body, draft.op)
        for one in gone:
            chapter.log[one - 1] = structs.replace(chapter.log[one - 1], body=None)
        chapter.marks.append(chapter.last)
        self.changes.append(Change(step=Step.ERASE, session=chapter.id, at=1.0, entries=tuple(drafts), erase=gone))
        chapter.own_generation += 1
        chapter.erasures += 1
        chapter.pending = [one for one in chapter.pending if one not in gone]
        chapter.compressions = {op: covers for op, covers in chapter.compressions.items() if op not in compressions}
        if chapter.running is not None:
            chapter.running.state = "erased"
            self.give_back(chapter, chapter.running)
        chapter.running = chapter.running_compression = None
        assert chapter.log[seq - 1].kind is EntryKind.ERASED
        for branch in list(self.sessions.values()):
            if branch.parent == chapter.id and branch.parent_at >= min(seqs):
                theirs = {e.seq for e in branch.log if isinstance(e.body, Compressed)}
                if theirs:
                    self.erase(branch, theirs)

    def _branch(self, chapter: RandomSession, _number: int) -> None:
        if len(self.sessions) < MOST_SESSIONS and chapter.last:
            self.branch_off(chapter.id, chapter.last)

    def _note(self, chapter: RandomSession, _number: int) -> None:
        if chapter.last:
            self.commit(chapter, Noted(text="a fact", stamp=STAMP))


def _is_fresh(entry: Entry) -> bool:
    return isinstance(entry.body, Changed) and isinstance(entry.body.change, ContextReset)
