"""P8, D1 to D4: what compression promises is proven from the store alone, and a store damaged by hand is found out.

Whoever damages it here is clever: digests are made to fit again, so that only the promise itself can tell.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from everhold.core.entries import Began, Changed, Compressed, ContextReset, Ended, Entry, Heard
from everhold.testing.fakes import ScriptedModel
from everhold.testing.house import House

from .conftest import HeldModel
from .forger import Forger
from .test_viewing import LONG, folding


class Scene:
    """Two chats with folds in both, one of them made while a turn was running, and a hand in the database."""

    def __init__(self, path: Path, house: House) -> None:
        self.house = house
        folding(house, window=1_000_000)
        self.session = self._talk("chat")
        self.other = self._talk("elsewhere")
        self._fold_beside_a_turn()
        house.sound()
        self.forger = Forger(path / "log.db")

    def _talk(self, chat: str) -> str:
        session = ""
        for n in range(5):
            session = self.house.say(f"message {n} {LONG}", chat=chat).session
        self.house.say("/compress here 1", chat=chat)
        for n in range(4):
            self.house.say(f"more {n} {LONG}", chat=chat)
        self.house.say("/compress here 1", chat=chat)
        return session

    def _fold_beside_a_turn(self) -> None:
        """A fold made ahead that begins before, and ends while, a turn is running; another turn ends meanwhile."""
        house = self.house
        for n in range(3):
            house.say(f"again {n} {LONG}")
        folding(house, window=1_200)
        house.furniture.settings.update(hard=1.2)
        house.furniture.summariser = summing = HeldModel()
        summing.text = "short"
        house.say(f"full {LONG}", rest=False)
        house.tick(2)
        house.say("quick", rest=False)
        house.tick(2)
        house.furniture.model = thinking = HeldModel()
        thinking.context_tokens = 1_000_000
        house.say("slow", rest=False)
        house.tick(2)
        summing.free = True
        house.tick(2)
        thinking.free = True
        house.furniture.summariser = ScriptedModel()
        house.rest(5)

    def log(self, session: str = "") -> list[Entry]:
        return self.house.log(session or self.session)

    def first(self, kind: type, *, last: bool = False, what: str = "") -> Entry:
        found = [
            entry
            for entry in self.log()
            if isinstance(entry.body, kind)
            and (not what or (isinstance(entry.body, Began) and entry.body.type == what))
        ]
        return found[-1 if last else 0]

    def findings(self) -> set[tuple[str, str]]:
        report = self.house.run(self.house.control.audit())
        assert not [line for line in report.lines() if line["holds"]] or report.broken
        return {(finding.promise, finding.text) for finding in report.broken}


@pytest.fixture
def scene(tmp_path: Path, house: House) -> Scene:
    return Scene(tmp_path, house)


def overtaken(scene: Scene) -> tuple[Entry, int, int]:
    """The fold that was made beside turns: its entry, a turn that ended meanwhile, and one that was still running."""
    log = scene.log()
    folded = next(entry for entry in log if isinstance(entry.body, Compressed) and entry.body.summary == "short")
    began = folded.op or 0
    ends = {entry.op: entry.seq for entry in log if isinstance(entry.body, Ended)}
    turns = [e.seq for e in log if isinstance(e.body, Began) and e.body.type == "turn"]
    meanwhile = next(op for op in turns if op > began and ends[op] < folded.seq)
    running = next(op for op in turns if op < folded.seq < ends[op])
    return folded, meanwhile, running


# -- damage ------------------------------------------------------------------------------------------------------------


def the_id_changes_under_a_compression(scene: Scene) -> None:
    """What came after the fold goes on in a new session under the old address, numbered as if it had begun there."""
    db = scene.forger.db
    after = scene.first(Compressed).seq + 1
    moved = [entry for entry in scene.log() if entry.seq > after]
    start = next(entry.seq for entry in moved if isinstance(entry.body, Heard))
    old = scene.house.run(scene.house.store.get_session(scene.session))
    db.execute(
        "insert into sessions(id, agent, address, created, next_seq) values ('rotated', ?, ?, ?, ?)",
        (old.agent, old.address, old.created, len(moved)),
    )
    db.execute("update bindings set session = 'rotated' where session = ?", (old.id,))
    for entry in moved:
        if entry.seq >= start:
            scene.forger.move(old.id, entry.seq, to="rotated", at=entry.seq - start + 1)
    db.execute("update sessions set next_seq = ? where id = ?", (start, old.id))


def a_fold_covers_a_running_turn(scene: Scene) -> None:
    folded, _, running = overtaken(scene)
    assert isinstance(folded.body, Compressed)
    scene.forger.rewrite(scene.session, folded.seq, structs.replace(folded.body, covers=running))


def the_mark_is_taken_after_the_call(scene: Scene) -> None:
    folded, meanwhile, _ = overtaken(scene)
    assert isinstance(folded.body, Compressed)
    scene.forger.rewrite(scene.session, folded.seq, structs.replace(folded.body, covers=meanwhile))


def a_fold_covers_what_is_no_turn_here(scene: Scene) -> None:
    folded = scene.first(Compressed)
    assert isinstance(folded.body, Compressed)
    scene.forger.rewrite(scene.session, folded.seq, structs.replace(folded.body, covers=folded.body.covers - 1))


def two_folds_at_once(scene: Scene) -> None:
    last = scene.log()[-1].seq
    generation = scene.house.run(scene.house.store.get_session(scene.session)).generation
    began = Began(type="compression", generation=generation, consumer="compression")
    scene.forger.append(
        scene.session, (began, None), (began, None), (Ended(outcome="refused"), last + 1), (Ended(), last + 2)
    )


def a_turn_beside_a_blocking_fold(scene: Scene) -> None:
    last = scene.log()[-1].seq
    scene.forger.append(
        scene.session,
        (Began(type="compression", blocking=True, consumer="compression"), None),
        (Began(type="turn", consumer="turn"), None),
        (Ended(), last + 2),
        (Ended(outcome="refused"), last + 1),
    )


def a_fold_of_another_generation(scene: Scene) -> None:
    folded = scene.first(Compressed, last=True)
    assert isinstance(folded.body, Compressed)
    body = structs.replace(folded.body, generation=folded.body.generation - 1)
    scene.forger.rewrite(scene.session, folded.seq, body)


def a_fresh_context_slipped_in_before_a_fold(scene: Scene) -> None:
    titled = next(e for e in scene.log() if isinstance(e.body, Began) and e.body.type == "compression")
    before = next(e for e in reversed(scene.log()) if e.seq < titled.seq and isinstance(e.body, Ended))
    scene.forger.rewrite(scene.session, before.seq, Changed(change=ContextReset()))


def a_message_is_consumed_twice(scene: Scene) -> None:
    turns = [e for e in scene.log() if isinstance(e.body, Began) and e.body.type == "turn"]
    first, later = turns[0].body, turns[5].body
    assert isinstance(first, Began)
    assert isinstance(later, Began)
    scene.forger.rewrite(scene.session, turns[5].seq, structs.replace(later, takes=(*first.takes, *later.takes)))


def a_message_is_consumed_by_nobody(scene: Scene) -> None:
    turn = next(e for e in scene.log() if isinstance(e.body, Began) and e.body.type == "turn")
    assert isinstance(turn.body, Began)
    scene.forger.rewrite(scene.session, turn.seq, structs.replace(turn.body, takes=()))


def an_entry_moves_between_sessions(scene: Scene) -> None:
    last = scene.log()[-1].seq
    scene.forger.move(scene.session, last, to=scene.other, at=scene.log(scene.other)[-1].seq + 1)


def a_row_is_deleted(scene: Scene) -> None:
    scene.forger.db.execute(
        "delete from entries where session = ? and seq = ?", (scene.session, scene.first(Heard, last=True).seq)
    )


def the_end_of_the_log_is_deleted(scene: Scene) -> None:
    last = scene.log()[-1].seq
    scene.forger.db.execute("delete from entries where session = ? and seq > ?", (scene.session, last - 3))


def a_summary_is_exchanged(scene: Scene) -> None:
    seq = scene.first(Compressed).seq
    scene.forger.db.execute(
        "update entries set body = replace(body, 'the story so far', 'another story') where session = ? and seq = ?",
        (scene.session, seq),
    )


def a_message_is_archived_unread(scene: Scene) -> None:
    """Pending, and then not: somebody took the row away without an operation that had read it."""
    seq = scene.forger.append(scene.session, (scene.first(Heard).body, None))  # type: ignore[arg-type]
    scene.forger.db.execute("update entries set op = null where session = ? and seq = ?", (scene.session, seq))
    scene.forger.seal(scene.session, seq)


def an_undone_fold_is_put_back_by_hand(scene: Scene) -> None:
    scene.forger.db.execute("update operations set covers = covers + 1 where type = 'compression'")


DAMAGE: dict[Callable[[Scene], None], tuple[str, str]] = {
    the_id_changes_under_a_compression: ("P1", "an id changed"),
    a_fold_covers_a_running_turn: ("P3", "which was running"),
    the_mark_is_taken_after_the_call: ("P2", "more than its summary was made of"),
    a_fold_covers_what_is_no_turn_here: ("P2", "no turn of this session"),
    two_folds_at_once: ("P3", "began while fold"),
    a_turn_beside_a_blocking_fold: ("P3", "turn"),
    a_fold_of_another_generation: ("P1", "another view"),
    a_fresh_context_slipped_in_before_a_fold: ("P1", "another view"),
    a_message_is_consumed_twice: ("P2", "was taken by"),
    a_message_is_consumed_by_nobody: ("P8", "pending"),
    an_entry_moves_between_sessions: ("P3", "operation"),
    a_row_is_deleted: ("P8", "missing"),
    the_end_of_the_log_is_deleted: ("P8", "the next entry would be"),
    a_summary_is_exchanged: ("P8", "its digest does not match"),
    a_message_is_archived_unread: ("P8", "pending"),
    an_undone_fold_is_put_back_by_hand: ("P8", "covers"),
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_store_damaged_by_hand_is_found_out(scene: Scene, damage: Callable[[Scene], None]) -> None:
    damage(scene)
    scene.forger.close()
    promise, words = DAMAGE[damage]
    found = scene.findings()
    assert any(kind == promise and words in text for kind, text in found), found
    with pytest.raises(AssertionError):
        scene.house.sound()


def test_a_healthy_store_holds_and_says_on_what_evidence(scene: Scene) -> None:
    report = scene.house.run(scene.house.control.audit())
    assert not report.broken
    assert all(line["holds"] for line in report.lines())
    assert report.sessions == 2
    assert report.checked.folds >= 5
    assert report.checked.heard > 20
    one = scene.house.run(scene.house.control.audit(scene.session))
    assert (one.sessions, one.broken) == (1, [])
    assert 0 < one.checked.entries < report.checked.entries


def test_two_branches_and_a_moved_chat_are_no_change_of_id(scene: Scene) -> None:
    scene.house.say("/branch")
    scene.house.say("here I am")
    scene.house.say(f"/resume {scene.other}", chat="third")
    scene.house.say("and here", chat="third")
    scene.house.sound()
