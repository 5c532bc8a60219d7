"""P8, D1 to D4: the audit proves the promises of compression from the store alone, and finds a store damaged by hand.

Each forgery makes the digests match again, so that only the check of the promise can find it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from everhold.core.entries import Began, Changed, Compressed, ContextReset, Ended, Entry, Heard, Said, Thought
from everhold.testing.fakes import FakeModel
from everhold.testing.gateway import InProcessGateway

from .conftest import HeldModel
from .store_forger import StoreForger
from .test_context import LONG, make_compressing


class AuditScenario:
    """Two chats with compressions in both, one of them made while a turn was running, and access to the database."""

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
        """A background compression that begins before a turn and ends while it is running; another turn ends in
        between.
        """
        gateway = self.gateway
        for n in range(3):
            gateway.send_message(f"again {n} {LONG}")
        make_compressing(gateway, window=1_200)
        gateway.runtimes.settings.update(hard_share=1.2)
        gateway.runtimes.summariser = summing = HeldModel()
        summing.text = "short"
        gateway.send_message(f"full {LONG}", rest=False)
        gateway.pass_time(2)
        gateway.send_message("quick", rest=False)
        gateway.pass_time(2)
        gateway.runtimes.model = thinking = HeldModel()
        thinking.context_tokens = 1_000_000
        gateway.send_message("slow", rest=False)
        gateway.pass_time(2)
        summing.free = True
        gateway.pass_time(2)
        thinking.free = True
        gateway.runtimes.summariser = FakeModel()
        gateway.run_until_idle(5)

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
def scenario(tmp_path: Path, gateway: InProcessGateway) -> AuditScenario:
    return AuditScenario(tmp_path, gateway)


def find_overtaken_compression(scenario: AuditScenario) -> tuple[Entry, int, int]:
    """Return the compression that was made beside turns: its entry, a turn that ended during it, and one that was
    running.
    """
    log = scenario.log()
    compressed = next(entry for entry in log if isinstance(entry.body, Compressed) and entry.body.summary == "short")
    began = compressed.op or 0
    ends = {entry.op: entry.seq for entry in log if isinstance(entry.body, Ended)}
    turns = [e.seq for e in log if isinstance(e.body, Began) and e.body.type == "turn"]
    meanwhile = next(op for op in turns if op > began and ends[op] < compressed.seq)
    running = next(op for op in turns if op < compressed.seq < ends[op])
    return compressed, meanwhile, running


# -- damage ------------------------------------------------------------------------------------------------------------


def the_id_changes_under_a_compression(scenario: AuditScenario) -> None:
    """What came after the compression continues in a new session with the same address, numbered from its beginning."""
    db = scenario.forger.db
    after = scenario.first(Compressed).seq + 1
    moved = [entry for entry in scenario.log() if entry.seq > after]
    start = next(entry.seq for entry in moved if isinstance(entry.body, Heard))
    old = scenario.gateway.run(scenario.gateway.store.get_session(scenario.session))
    db.execute(
        "insert into sessions(id, agent, address, created, next_seq) values ('rotated', ?, ?, ?, ?)",
        (old.agent, old.address, old.created, len(moved)),
    )
    db.execute("update bindings set session = 'rotated' where session = ?", (old.id,))
    for entry in moved:
        if entry.seq >= start:
            scenario.forger.move(old.id, entry.seq, to="rotated", at=entry.seq - start + 1)
    db.execute("update sessions set next_seq = ? where id = ?", (start, old.id))


def a_compression_covers_a_running_turn(scenario: AuditScenario) -> None:
    compressed, _, running = find_overtaken_compression(scenario)
    assert isinstance(compressed.body, Compressed)
    scenario.forger.rewrite(scenario.session, compressed.seq, structs.replace(compressed.body, covers=running))


def the_mark_is_taken_after_the_call(scenario: AuditScenario) -> None:
    compressed, meanwhile, _ = find_overtaken_compression(scenario)
    assert isinstance(compressed.body, Compressed)
    scenario.forger.rewrite(scenario.session, compressed.seq, structs.replace(compressed.body, covers=meanwhile))


def a_compression_covers_what_is_no_turn_here(scenario: AuditScenario) -> None:
    compressed = scenario.first(Compressed)
    assert isinstance(compressed.body, Compressed)
    scenario.forger.rewrite(
        scenario.session, compressed.seq, structs.replace(compressed.body, covers=compressed.body.covers - 1)
    )


def two_compressions_at_once(scenario: AuditScenario) -> None:
    last = scenario.log()[-1].seq
    generation = scenario.gateway.run(scenario.gateway.store.get_session(scenario.session)).generation
    began = Began(type="compression", generation=generation, consumer="compression")
    scenario.forger.append(
        scenario.session, (began, None), (began, None), (Ended(outcome="refused"), last + 1), (Ended(), last + 2)
    )


def a_turn_during_a_blocking_compression(scenario: AuditScenario) -> None:
    last = scenario.log()[-1].seq
    scenario.forger.append(
        scenario.session,
        (Began(type="compression", blocking=True, consumer="compression"), None),
        (Began(type="turn", consumer="turn"), None),
        (Ended(), last + 2),
        (Ended(outcome="refused"), last + 1),
    )


def a_compression_of_another_generation(scenario: AuditScenario) -> None:
    compressed = scenario.first(Compressed, last=True)
    assert isinstance(compressed.body, Compressed)
    body = structs.replace(compressed.body, generation=compressed.body.generation - 1)
    scenario.forger.rewrite(scenario.session, compressed.seq, body)


def a_reset_slipped_in_before_a_compression(scenario: AuditScenario) -> None:
    titled = next(e for e in scenario.log() if isinstance(e.body, Began) and e.body.type == "compression")
    before = next(e for e in reversed(scenario.log()) if e.seq < titled.seq and isinstance(e.body, Ended))
    scenario.forger.rewrite(scenario.session, before.seq, Changed(change=ContextReset()))


def a_message_is_consumed_twice(scenario: AuditScenario) -> None:
    turns = [e for e in scenario.log() if isinstance(e.body, Began) and e.body.type == "turn"]
    first, later = turns[0].body, turns[5].body
    assert isinstance(first, Began)
    assert isinstance(later, Began)
    scenario.forger.rewrite(scenario.session, turns[5].seq, structs.replace(later, takes=(*first.takes, *later.takes)))


def a_message_is_consumed_by_nobody(scenario: AuditScenario) -> None:
    turn = next(e for e in scenario.log() if isinstance(e.body, Began) and e.body.type == "turn")
    assert isinstance(turn.body, Began)
    scenario.forger.rewrite(scenario.session, turn.seq, structs.replace(turn.body, takes=()))


def an_entry_moves_between_sessions(scenario: AuditScenario) -> None:
    last = scenario.log()[-1].seq
    scenario.forger.move(scenario.session, last, to=scenario.other, at=scenario.log(scenario.other)[-1].seq + 1)


def a_row_is_deleted(scenario: AuditScenario) -> None:
    scenario.forger.db.execute(
        "delete from entries where session = ? and seq = ?", (scenario.session, scenario.first(Heard, last=True).seq)
    )


def the_end_of_the_log_is_deleted(scenario: AuditScenario) -> None:
    last = scenario.log()[-1].seq
    scenario.forger.db.execute("delete from entries where session = ? and seq > ?", (scenario.session, last - 3))


def a_summary_is_exchanged(scenario: AuditScenario) -> None:
    seq = scenario.first(Compressed).seq
    scenario.forger.db.execute(
        "update entries set body = replace(body, 'the story so far', 'another story') where session = ? and seq = ?",
        (scenario.session, seq),
    )


def a_message_is_archived_unread(scenario: AuditScenario) -> None:
    """A pending row is deleted without an operation that consumed the message."""
    seq = scenario.forger.append(scenario.session, (scenario.first(Heard).body, None))  # type: ignore[arg-type]
    scenario.forger.db.execute("update entries set op = null where session = ? and seq = ?", (scenario.session, seq))
    scenario.forger.seal(scenario.session, seq)


def an_undone_compression_is_put_back_by_hand(scenario: AuditScenario) -> None:
    scenario.forger.db.execute("update operations set covers = covers + 1 where type = 'compression'")


def kept_words_are_exchanged(scenario: AuditScenario) -> None:
    compressed = next(it for it in scenario.log() if isinstance(it.body, Compressed) and it.body.kept)
    assert isinstance(compressed.body, Compressed)
    first, *others = compressed.body.kept
    kept = (structs.replace(first, text="what nobody said"), *others)
    scenario.forger.rewrite(scenario.session, compressed.seq, structs.replace(compressed.body, kept=kept))


def a_compression_forgets_the_one_before(scenario: AuditScenario) -> None:
    compressed = scenario.first(Compressed, last=True)
    assert isinstance(compressed.body, Compressed)
    assert compressed.body.based_on
    scenario.forger.rewrite(scenario.session, compressed.seq, structs.replace(compressed.body, based_on=0))


def a_reply_is_for_one_person_more(scenario: AuditScenario) -> None:
    said = scenario.first(Said)
    assert isinstance(said.body, Said)
    stamp = structs.replace(said.body.stamp, audience=(*said.body.stamp.audience, "person:fake:mallory"))
    scenario.forger.rewrite(scenario.session, said.seq, structs.replace(said.body, stamp=stamp))


def the_list_of_tools_is_deleted(scenario: AuditScenario) -> None:
    thought = scenario.first(Thought)
    assert isinstance(thought.body, Thought)
    scenario.forger.db.execute("delete from blobs where digest = ?", (thought.body.tools,))


def the_prompt_is_deleted(scenario: AuditScenario) -> None:
    thought = scenario.first(Thought)
    assert isinstance(thought.body, Thought)
    scenario.forger.db.execute("delete from blobs where digest = ?", (thought.body.prompt,))


DAMAGE: dict[Callable[[AuditScenario], None], tuple[str, str]] = {
    kept_words_are_exchanged: ("P2", "keeps other words than message"),
    a_compression_forgets_the_one_before: ("P2", "but says 0"),
    a_reply_is_for_one_person_more: ("P5", "is for other people"),
    the_list_of_tools_is_deleted: ("P8", "the list of tools of entry"),
    the_prompt_is_deleted: ("P8", "the prompt of entry"),
    the_id_changes_under_a_compression: ("P1", "its id changed"),
    a_compression_covers_a_running_turn: ("P3", "which was running"),
    the_mark_is_taken_after_the_call: ("P2", "more than its summary was made from"),
    a_compression_covers_what_is_no_turn_here: ("P2", "not a turn of this session"),
    two_compressions_at_once: ("P3", "began while compression"),
    a_turn_during_a_blocking_compression: ("P3", "turn"),
    a_compression_of_another_generation: ("P1", "another context"),
    a_reset_slipped_in_before_a_compression: ("P1", "another context"),
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
def test_the_audit_finds_a_store_damaged_by_hand(
    scenario: AuditScenario, damage: Callable[[AuditScenario], None]
) -> None:
    damage(scenario)
    scenario.forger.close()
    promise, words = DAMAGE[damage]
    found = scenario.findings()
    assert any(kind == promise and words in text for kind, text in found), found
    with pytest.raises(AssertionError):
        scenario.gateway.assert_sound()


def test_a_healthy_store_passes_with_its_evidence(scenario: AuditScenario) -> None:
    report = scenario.gateway.run(scenario.gateway.control.audit_store())
    assert not report.broken_findings
    assert all(line["holds"] for line in report.render_lines())
    assert report.sessions == 2
    assert report.checked.compressions >= 5
    assert report.checked.heard > 20
    one = scenario.gateway.run(scenario.gateway.control.audit_store(scenario.session))
    assert (one.sessions, one.broken_findings) == (1, [])
    assert 0 < one.checked.entries < report.checked.entries


def test_branches_and_a_resumed_session_pass_the_audit(scenario: AuditScenario) -> None:
    scenario.gateway.send_message("/branch")
    scenario.gateway.send_message("here I am")
    scenario.gateway.send_message(f"/resume {scenario.other}", chat="third")
    scenario.gateway.send_message("and here", chat="third")
    scenario.gateway.assert_sound()
