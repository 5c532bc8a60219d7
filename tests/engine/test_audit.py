"""P8, D1 to D4: what compression promises is proven from the store alone, and a store damaged by hand is found out.

Whoever damages it here is clever: digests are made to fit again, so that only the promise itself can tell.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from everhold.core.entries import Began, Changed, Compressed, ContextReset, Ended, Entry, Heard
from everhold.testing.fakes import FakeModel
from everhold.testing.gateway import InProcessGateway

from .conftest import HeldModel
from .store_forger import StoreForger
from .test_context import LONG, make_compressing


class AuditScenario:
    """Two chats with folds in both, one of them made while a turn was running, and a hand in the database."""

    def __init__(self, path: Path, gateway: InProcessGateway) -> None:
        self.gateway = gateway
        make_compressing(gateway, window=1_000_000)
        self.session = self._hold_conversation("chat")
        self.other = self._hold_conversation("elsewhere")
        self._compress_during_a_turn()
        gateway.assert_sound()
        self.forger = StoreForger(path / "log.db")

    def _hold_conversation(self, chat: str) -> str:
        session = ""
        for n in range(5):
            session = self.gateway.send_message(f"message {n} {LONG}", chat=chat).session
        self.gateway.send_message("/compress here 1", chat=chat)
        for n in range(4):
            self.gateway.send_message(f"more {n} {LONG}", chat=chat)
        self.gateway.send_message("/compress here 1", chat=chat)
        return session

    def _compress_during_a_turn(self) -> None:
        """A fold made ahead that begins before, and ends while, a turn is running; another turn ends meanwhile."""
        house = self.gateway
        for n in range(3):
            house.send_message(f"again {n} {LONG}")
        make_compressing(house, window=1_200)
        house.runtimes.settings.update(hard=1.2)
        house.runtimes.summariser = summing = HeldModel()
        summing.text = "short"
        house.send_message(f"full {LONG}", rest=False)
        house.pass_time(2)
        house.send_message("quick", rest=False)
        house.pass_time(2)
        house.runtimes.model = thinking = HeldModel()
        thinking.context_tokens = 1_000_000
        house.send_message("slow", rest=False)
        house.pass_time(2)
        summing.free = True
        house.pass_time(2)
        thinking.free = True
        house.runtimes.summariser = FakeModel()
        house.run_until_idle(5)

    def log(self, session: str = "") -> list[Entry]:
        return self.gateway.read_log(session or self.session)

    def first(self, kind: type, *, last: bool = False, what: str = "") -> Entry:
        found = [
            entry
            for entry in self.log()
            if isinstance(entry.body, kind)
            and (not what or (isinstance(entry.body, Began) and entry.body.type == what))
        ]
        return found[-1 if last else 0]

    def findings(self) -> set[tuple[str, str]]:
        report = self.gateway.run(self.gateway.control.audit_store())
        assert not [line for line in report.render_lines() if line["holds"]] or report.broken_findings
        return {(finding.promise, finding.text) for finding in report.broken_findings}


@pytest.fixture
def scene(tmp_path: Path, house: InProcessGateway) -> AuditScenario:
    return AuditScenario(tmp_path, house)


def find_overtaken_compression(scene: AuditScenario) -> tuple[Entry, int, int]:
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


def the_id_changes_under_a_compression(scene: AuditScenario) -> None:
    """What came after the fold goes on in a new session under the old address, numbered as if it had begun there."""
    db = scene.forger.db
    after = scene.first(Compressed).seq + 1
    moved = [entry for entry in scene.log() if entry.seq > after]
    start = next(entry.seq for entry in moved if isinstance(entry.body, Heard))
    old = scene.gateway.run(scene.gateway.store.get_session(scene.session))
    db.execute(
        "insert into sessions(id, agent, address, created, next_seq) values ('rotated', ?, ?, ?, ?)",
        (old.agent, old.address, old.created, len(moved)),
    )
    db.execute("update bindings set session = 'rotated' where session = ?", (old.id,))
    for entry in moved:
        if entry.seq >= start:
            scene.forger.move(old.id, entry.seq, to="rotated", at=entry.seq - start + 1)
    db.execute("update sessions set next_seq = ? where id = ?", (start, old.id))


def a_compression_covers_a_running_turn(scene: AuditScenario) -> None:
    folded, _, running = find_overtaken_compression(scene)
    assert isinstance(folded.body, Compressed)
    scene.forger.rewrite(scene.session, folded.seq, structs.replace(folded.body, covers=running))


def the_mark_is_taken_after_the_call(scene: AuditScenario) -> None:
    folded, meanwhile, _ = find_overtaken_compression(scene)
    assert isinstance(folded.body, Compressed)
    scene.forger.rewrite(scene.session, folded.seq, structs.replace(folded.body, covers=meanwhile))


def a_compression_covers_what_is_no_turn_here(scene: AuditScenario) -> None:
    folded = scene.first(Compressed)
    assert isinstance(folded.body, Compressed)
    scene.forger.rewrite(scene.session, folded.seq, structs.replace(folded.body, covers=folded.body.covers - 1))


def two_compressions_at_once(scene: AuditScenario) -> None:
    last = scene.log()[-1].seq
    generation = scene.gateway.run(scene.gateway.store.get_session(scene.session)).generation
    began = Began(type="compression", generation=generation, consumer="compression")
    scene.forger.append(
        scene.session, (began, None), (began, None), (Ended(outcome="refused"), last + 1), (Ended(), last + 2)
    )


def a_turn_during_a_blocking_compression(scene: AuditScenario) -> None:
    last = scene.log()[-1].seq
    scene.forger.append(
        scene.session,
        (Began(type="compression", blocking=True, consumer="compression"), None),
        (Began(type="turn", consumer="turn"), None),
        (Ended(), last + 2),
        (Ended(outcome="refused"), last + 1),
    )


def a_compression_of_another_generation(scene: AuditScenario) -> None:
    folded = scene.first(Compressed, last=True)
    assert isinstance(folded.body, Compressed)
    body = structs.replace(folded.body, generation=folded.body.generation - 1)
    scene.forger.rewrite(scene.session, folded.seq, body)


def a_reset_slipped_in_before_a_compression(scene: AuditScenario) -> None:
    titled = next(e for e in scene.log() if isinstance(e.body, Began) and e.body.type == "compression")
    before = next(e for e in reversed(scene.log()) if e.seq < titled.seq and isinstance(e.body, Ended))
    scene.forger.rewrite(scene.session, before.seq, Changed(change=ContextReset()))


def a_message_is_consumed_twice(scene: AuditScenario) -> None:
    turns = [e for e in scene.log() if isinstance(e.body, Began) and e.body.type == "turn"]
    first, later = turns[0].body, turns[5].body
    assert isinstance(first, Began)
    assert isinstance(later, Began)
    scene.forger.rewrite(scene.session, turns[5].seq, structs.replace(later, takes=(*first.takes, *later.takes)))


def a_message_is_consumed_by_nobody(scene: AuditScenario) -> None:
    turn = next(e for e in scene.log() if isinstance(e.body, Began) and e.body.type == "turn")
    assert isinstance(turn.body, Began)
    scene.forger.rewrite(scene.session, turn.seq, structs.replace(turn.body, takes=()))


def an_entry_moves_between_sessions(scene: AuditScenario) -> None:
    last = scene.log()[-1].seq
    scene.forger.move(scene.session, last, to=scene.other, at=scene.log(scene.other)[-1].seq + 1)


def a_row_is_deleted(scene: AuditScenario) -> None:
    scene.forger.db.execute(
        "delete from entries where session = ? and seq = ?", (scene.session, scene.first(Heard, last=True).seq)
    )


def the_end_of_the_log_is_deleted(scene: AuditScenario) -> None:
    last = scene.log()[-1].seq
    scene.forger.db.execute("delete from entries where session = ? and seq > ?", (scene.session, last - 3))


def a_summary_is_exchanged(scene: AuditScenario) -> None:
    seq = scene.first(Compressed).seq
    scene.forger.db.execute(
        "update entries set body = replace(body, 'the story so far', 'another story') where session = ? and seq = ?",
        (scene.session, seq),
    )


def a_message_is_archived_unread(scene: AuditScenario) -> None:
    """Pending, and then not: somebody took the row away without an operation that had read it."""
    seq = scene.forger.append(scene.session, (scene.first(Heard).body, None))  # type: ignore[arg-type]
    scene.forger.db.execute("update entries set op = null where session = ? and seq = ?", (scene.session, seq))
    scene.forger.seal(scene.session, seq)


def an_undone_compression_is_put_back_by_hand(scene: AuditScenario) -> None:
    scene.forger.db.execute("update operations set covers = covers + 1 where type = 'compression'")


DAMAGE: dict[Callable[[AuditScenario], None], tuple[str, str]] = {
    the_id_changes_under_a_compression: ("P1", "an id changed"),
    a_compression_covers_a_running_turn: ("P3", "which was running"),
    the_mark_is_taken_after_the_call: ("P2", "more than its summary was made of"),
    a_compression_covers_what_is_no_turn_here: ("P2", "no turn of this session"),
    two_compressions_at_once: ("P3", "began while fold"),
    a_turn_during_a_blocking_compression: ("P3", "turn"),
    a_compression_of_another_generation: ("P1", "another view"),
    a_reset_slipped_in_before_a_compression: ("P1", "another view"),
    a_message_is_consumed_twice: ("P2", "was taken by"),
    a_message_is_consumed_by_nobody: ("P8", "pending"),
    an_entry_moves_between_sessions: ("P3", "operation"),
    a_row_is_deleted: ("P8", "missing"),
    the_end_of_the_log_is_deleted: ("P8", "the next entry would be"),
    a_summary_is_exchanged: ("P8", "its digest does not match"),
    a_message_is_archived_unread: ("P8", "pending"),
    an_undone_compression_is_put_back_by_hand: ("P8", "covers"),
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_store_damaged_by_hand_is_found_out(scene: AuditScenario, damage: Callable[[AuditScenario], None]) -> None:
    damage(scene)
    scene.forger.close()
    promise, words = DAMAGE[damage]
    found = scene.findings()
    assert any(kind == promise and words in text for kind, text in found), found
    with pytest.raises(AssertionError):
        scene.gateway.assert_sound()


def test_a_healthy_store_holds_and_says_on_what_evidence(scene: AuditScenario) -> None:
    report = scene.gateway.run(scene.gateway.control.audit_store())
    assert not report.broken_findings
    assert all(line["holds"] for line in report.render_lines())
    assert report.sessions == 2
    assert report.checked.compressions >= 5
    assert report.checked.heard > 20
    one = scene.gateway.run(scene.gateway.control.audit_store(scene.session))
    assert (one.sessions, one.broken_findings) == (1, [])
    assert 0 < one.checked.entries < report.checked.entries


def test_two_branches_and_a_moved_chat_are_no_change_of_id(scene: AuditScenario) -> None:
    scene.gateway.send_message("/branch")
    scene.gateway.send_message("here I am")
    scene.gateway.send_message(f"/resume {scene.other}", chat="third")
    scene.gateway.send_message("and here", chat="third")
    scene.gateway.assert_sound()
