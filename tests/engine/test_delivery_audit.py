"""P2, P4, P5, P8: the audit finds a store whose deliveries, recall or budgets were altered by hand.

Each damage is one edit of rows. The digests match, so only the check of the promise can find it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import apsw
import msgspec
import pytest
from msgspec import structs

from everhold.core.audit import AuditFinding
from everhold.core.entries import Attachment, Heard, Said
from everhold.errors import Refused, Transient
from everhold.ports.memory import MemoryHit, MemoryQuery
from everhold.ports.platform import DeliveryGuarantee
from everhold.ports.store import DeliveryItem, InFlightBatch
from everhold.stores.sqlite.migrate import list_migrations
from everhold.testing.fakes import FakeMemoryProvider, FakeModel, FakePlatform
from everhold.testing.gateway import InProcessGateway

from .store_forger import StoreForger

PLATFORM = "platform:fake:main"
MEMORY = "memory:mem"
FILE = b"the plan of the cellar"


class CitingMemory(FakeMemoryProvider):
    """A memory that finds one entry of the log, whatever it is asked."""

    place = ("", 0)

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        session, seq = self.place
        return [MemoryHit(text="an earlier message", session=session, seq=seq, score=1.0)] if session else []


class DeliveryScenario:
    """Two chats with replies, notes, a reply in several parts, dead letters, a resent doubt, a task, a branch and
    recorded recall.
    """

    def __init__(self, path: Path, gateway: InProcessGateway) -> None:
        self.gateway = gateway
        self.path = path / "log.db"
        self.platform = FakePlatform(DeliveryGuarantee.BLIND, text_limit=60)
        gateway.runtimes.platforms[("fake", "main")] = self.platform
        self.memory = CitingMemory()
        gateway.runtimes.memories["mem"] = self.memory
        gateway.runtimes.settings.update(recall_memories=("mem",), recall_seconds=1.0)
        self.session = gateway.send_message("the cellar is flooded").session
        self.memory.place = (self.session, 1)
        gateway.send_message("/new")
        gateway.send_message("what about the cellar? " + "word " * 40)
        self.platform.faults.lose_next_answer()
        gateway.send_message("in doubt")
        gateway.run_until_idle(120)
        self.platform.faults.fail_next(Refused("the chat is gone"))
        gateway.send_message("refused by the platform")
        self.memory.faults.succeed_next()  # the recall before it
        self.memory.faults.fail_next(Refused("not this"))
        gateway.send_message("refused by the memory")
        gateway.send_message("/background look it up")
        gateway.run_until_idle(5)
        gateway.runtimes.other_models["other"] = FakeModel(name="other")
        gateway.send_message("/model other")
        gateway.send_message("/branch")
        gateway.send_message("in the branch")
        plan = Attachment(blob=hashlib.sha256(FILE).hexdigest(), name="plan.txt", media="text/plain", size=len(FILE))
        self.other = gateway.send_message("another chat", chat="elsewhere", attachments=(plan,), files=(FILE,)).session
        gateway.run_until_idle(60)
        gateway.assert_sound()
        self.forger = StoreForger(self.path)

    def damage(self, sql: str, *values: object) -> None:
        before = self.forger.db.total_changes()
        self.forger.db.execute(sql, values)
        assert self.forger.db.total_changes() > before, "the damage changed nothing"

    def list_broken(self) -> list[AuditFinding]:
        return self.gateway.run(self.gateway.control.audit_store()).broken_findings


@pytest.fixture
def scenario(tmp_path: Path, gateway: InProcessGateway) -> DeliveryScenario:
    return DeliveryScenario(tmp_path, gateway)


# -- damage ------------------------------------------------------------------------------------------------------------


def all_memory_receipts_are_deleted(scenario: DeliveryScenario) -> None:
    scenario.damage("delete from receipts where consumer = ?", MEMORY)


def one_memory_receipt_is_deleted(scenario: DeliveryScenario) -> None:
    scenario.damage(
        "delete from receipts where consumer = ? and session = ? "
        "and seq = (select min(seq) from receipts where consumer = ? and session = ?)",
        *(MEMORY, scenario.session) * 2,
    )


def all_platform_receipts_are_deleted(scenario: DeliveryScenario) -> None:
    scenario.damage("delete from receipts where consumer = ?", PLATFORM)


def the_receipt_of_one_part_is_deleted(scenario: DeliveryScenario) -> None:
    scenario.damage("delete from receipts where consumer = ? and part = 1", PLATFORM)


def the_platform_cursor_is_thrown_back(scenario: DeliveryScenario) -> None:
    scenario.damage("update cursors set processed_seq = 0 where consumer = ?", PLATFORM)


def the_memory_cursor_is_thrown_back(scenario: DeliveryScenario) -> None:
    scenario.damage("update cursors set processed_seq = 0 where consumer = ?", MEMORY)


def the_memory_cursor_is_moved_forward(scenario: DeliveryScenario) -> None:
    """Items wait behind a failing memory, and the cursor jumps over them."""
    scenario.damage("delete from receipts where consumer = ? and session = ?", MEMORY, scenario.other)


def the_platform_cursor_is_deleted(scenario: DeliveryScenario) -> None:
    scenario.damage("delete from cursors where consumer = ?", PLATFORM)


def the_dead_letters_of_the_platform_are_deleted(scenario: DeliveryScenario) -> None:
    scenario.damage("delete from dead_letters where consumer = ?", PLATFORM)


def the_dead_letters_of_the_memory_are_deleted(scenario: DeliveryScenario) -> None:
    scenario.damage("delete from dead_letters where consumer = ?", MEMORY)


def the_dedup_keys_are_removed(scenario: DeliveryScenario) -> None:
    scenario.damage("update entries set dedup = null where dedup is not null")


def one_dedup_key_is_removed(scenario: DeliveryScenario) -> None:
    scenario.damage("update entries set dedup = null where session = ? and seq = 1", scenario.session)


def a_dedup_key_names_another_message(scenario: DeliveryScenario) -> None:
    scenario.damage(
        "update entries set dedup = replace(dedup, 'm1\"', 'm999\"') where session = ? and seq = 1", scenario.session
    )


def a_reply_is_rewritten_for_another_chat(scenario: DeliveryScenario) -> None:
    """The receipt belongs to another account than the one that the reply was for."""
    seq = next(it.seq for it in scenario.gateway.read_log(scenario.session) if isinstance(it.body, Said))
    scenario.damage(
        "update receipts set consumer = 'platform:fake:other' where session = ? and seq = ?", scenario.session, seq
    )


def a_backlink_is_lost(scenario: DeliveryScenario) -> None:
    scenario.damage("update entries set dedup = null where dedup like 'backlink:%'")


def the_result_of_a_task_is_lost(scenario: DeliveryScenario) -> None:
    scenario.damage("update entries set dedup = 'job:other:1' where dedup like 'job:%'")


def a_recalled_entry_was_for_somebody_else(scenario: DeliveryScenario) -> None:
    body = scenario.forger.body(scenario.session, 1)
    assert isinstance(body, Heard)
    stamp = structs.replace(body.stamp, audience=("person:fake:mallory",))
    scenario.forger.rewrite(scenario.session, 1, structs.replace(body, stamp=stamp))


def a_recalled_entry_belongs_to_another_agent(scenario: DeliveryScenario) -> None:
    """The recall of the other session cites an entry of an agent that it does not belong to."""
    scenario.damage("update sessions set agent = 'other' where id = ?", scenario.other)


def a_budget_is_reset(scenario: DeliveryScenario) -> None:
    scenario.damage("update spending set tokens = 1 where budget = 'agent:main'")


def the_budget_of_a_person_is_deleted(scenario: DeliveryScenario) -> None:
    scenario.damage("delete from spending where budget like 'person:%'")


def the_budget_of_a_chat_is_lowered(scenario: DeliveryScenario) -> None:
    scenario.damage("update spending set tokens = tokens - 1 where budget like 'chat:%'")


def an_older_choice_is_put_back(scenario: DeliveryScenario) -> None:
    scenario.damage("update sessions set choices = '{}' where choices <> '{}'")


def a_receipt_belongs_to_no_session(scenario: DeliveryScenario) -> None:
    scenario.damage("update receipts set session = 'nowhere' where session = ?", scenario.other)


def a_delivered_reply_is_in_flight_again(scenario: DeliveryScenario) -> None:
    seq = next(it.seq for it in scenario.gateway.read_log(scenario.session) if isinstance(it.body, Said))
    item = DeliveryItem(seq=seq, key=f"{scenario.session}:{seq}:0")
    batch = msgspec.json.encode(InFlightBatch(items=(item,), upto=10_000, digest="", state="sent")).decode()
    scenario.damage(
        "update cursors set in_flight = ? where consumer = ? and session = ?", batch, PLATFORM, scenario.session
    )


def a_dead_letter_counts_as_replayed(scenario: DeliveryScenario) -> None:
    scenario.damage("update dead_letters set state = 'replayed' where consumer = ?", PLATFORM)


def a_session_continues_a_foreign_one(scenario: DeliveryScenario) -> None:
    scenario.damage("update sessions set parent = ?, parent_at = 5 where id = ?", scenario.session, scenario.other)


def a_branch_continues_nothing(scenario: DeliveryScenario) -> None:
    scenario.damage("update sessions set parent = '', parent_at = 0 where parent <> ''")


def a_branch_continues_more_than_it_did(scenario: DeliveryScenario) -> None:
    scenario.damage("update sessions set parent_at = parent_at + 1 where parent <> ''")


def a_file_is_deleted(scenario: DeliveryScenario) -> None:
    digest = hashlib.sha256(FILE).hexdigest()
    scenario.damage("delete from blobs where digest = ?", digest)


DAMAGE: dict[Callable[[DeliveryScenario], None], tuple[str, str]] = {
    a_delivered_reply_is_in_flight_again: ("P2", f"{PLATFORM}: the batch in flight would send entry"),
    a_dead_letter_counts_as_replayed: ("P2", f"{PLATFORM}: no receipt, dead letter or reason"),
    a_session_continues_a_foreign_one: ("P6", "it continues "),
    a_branch_continues_nothing: ("P6", "it continues "),
    a_branch_continues_more_than_it_did: ("P6", "it continues "),
    a_file_is_deleted: ("P8", "the file 'plan.txt' of entry"),
    all_memory_receipts_are_deleted: ("P4", f"{MEMORY}: no receipt, dead letter or reason"),
    one_memory_receipt_is_deleted: ("P4", f"{MEMORY}: no receipt, dead letter or reason"),
    all_platform_receipts_are_deleted: ("P2", f"{PLATFORM}: no receipt, dead letter or reason"),
    the_receipt_of_one_part_is_deleted: ("P2", f"{PLATFORM}: no receipt, dead letter or reason"),
    the_platform_cursor_is_thrown_back: ("P2", "the cursor is at 0, so it would send"),
    the_memory_cursor_is_thrown_back: ("P4", "the cursor is at 0, so it would send"),
    the_memory_cursor_is_moved_forward: ("P4", f"{MEMORY}: no receipt, dead letter or reason"),
    the_platform_cursor_is_deleted: ("P2", f"{PLATFORM}: no cursor, but receipts"),
    the_dead_letters_of_the_platform_are_deleted: ("P2", f"{PLATFORM}: no receipt, dead letter or reason"),
    the_dead_letters_of_the_memory_are_deleted: ("P4", f"{MEMORY}: no receipt, dead letter or reason"),
    the_dedup_keys_are_removed: ("P2", "no matching dedup key"),
    one_dedup_key_is_removed: ("P2", "no matching dedup key for entry 1,"),
    a_dedup_key_names_another_message: ("P2", "no matching dedup key for entry 1,"),
    a_reply_is_rewritten_for_another_chat: ("P2", f"{PLATFORM}: no receipt, dead letter or reason"),
    a_backlink_is_lost: ("P2", "backlinks: nothing follows from"),
    the_result_of_a_task_is_lost: ("P2", "tasks: nothing follows from"),
    a_recalled_entry_was_for_somebody_else: ("P5", "not for everybody who was present"),
    a_recalled_entry_belongs_to_another_agent: ("P5", "which belongs to the agent main"),
    a_budget_is_reset: ("P8", "the budget agent:main booked 1 tokens"),
    the_budget_of_a_person_is_deleted: ("P8", "the budget person:"),
    the_budget_of_a_chat_is_lowered: ("P8", "the budget chat:"),
    an_older_choice_is_put_back: ("P7", "the setting 'model' was changed"),
    a_receipt_belongs_to_no_session: ("P8", "receipts refers to session 'nowhere'"),
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_the_audit_finds_altered_rows(scenario: DeliveryScenario, damage: Callable[[DeliveryScenario], None]) -> None:
    damage(scenario)
    scenario.forger.close()
    promise, words = DAMAGE[damage]
    found = scenario.list_broken()
    assert any(it.promise == promise and words in it.text for it in found), found


def test_a_finding_lists_every_entry_and_its_text_names_a_few(scenario: DeliveryScenario) -> None:
    all_platform_receipts_are_deleted(scenario)
    found = next(it for it in scenario.list_broken() if it.session == scenario.session)
    receipts = {
        it.seq
        for it in scenario.gateway.read_log(scenario.session)
        if isinstance(it.body, Said) or it.kind == "notified"
    }
    assert set(found.seqs) <= receipts
    assert len(found.seqs) > 5
    assert f"and {len(found.seqs) - 5} more" in found.text


def test_resent_doubts_are_listed_and_counted(scenario: DeliveryScenario) -> None:
    report = scenario.gateway.run(scenario.gateway.control.audit_store())
    in_doubt = scenario.gateway.run(scenario.gateway.store.count_receipts_in_doubt())
    assert report.checked.resent == in_doubt == 1
    (doubt,) = [it for it in report.findings if "sent again after the answer was lost" in it.text]
    assert (doubt.promise, doubt.level, doubt.session) == ("P2", "doubt", scenario.session)
    assert doubt.text.startswith(PLATFORM)
    lines = {line["promise"]: line for line in report.render_lines()}
    assert "1 sent again in doubt" in lines["P2"]["evidence"]
    assert lines["P2"]["holds"]


def test_the_evidence_says_how_much_was_compared(scenario: DeliveryScenario) -> None:
    checked = scenario.gateway.run(scenario.gateway.control.audit_store()).checked
    assert checked.replies > 8
    assert checked.memory_items >= 6
    assert checked.recalled >= 3


def test_one_session_is_audited_alone(scenario: DeliveryScenario) -> None:
    all_memory_receipts_are_deleted(scenario)
    report = scenario.gateway.run(scenario.gateway.control.audit_store(scenario.other))
    assert {it.session for it in report.broken_findings} == {scenario.other}


# -- no false alarm ----------------------------------------------------------------------------------------------------


def list_columns(db: apsw.Connection) -> dict[str, set[str]]:
    tables = [str(row[0]) for row in db.execute("select name from sqlite_schema where type = 'table'")]
    return {table: {str(row[1]) for row in db.execute(f"pragma table_info({table})")} for table in tables}


def list_indexes(db: apsw.Connection) -> set[str]:
    return {
        str(row[0]) for row in db.execute("select name from sqlite_schema where type = 'index' and sql is not null")
    }


def undo_migrations(db: apsw.Connection, *, down_to: int) -> None:
    """Drop the tables, indexes and columns that a store of an earlier schema does not have."""
    earlier = apsw.Connection(":memory:")
    for migration in list_migrations()[:down_to]:
        earlier.execute(migration.sql)
    for index in list_indexes(db) - list_indexes(earlier):
        db.execute(f"drop index {index}")
    known, present = list_columns(earlier), list_columns(db)
    named = "select name from sqlite_master where type = 'index' and sql is not null"
    for index in {row[0] for row in db.execute(named)} - {row[0] for row in earlier.execute(named)}:
        db.execute(f"drop index {index}")
    for table in present.keys() - known.keys():
        db.execute(f"drop table {table}")
    for table, columns in known.items():
        for column in present[table] - columns:
            db.execute(f"alter table {table} drop column {column}")
    assert list_columns(db) == known
    db.pragma("user_version", down_to)


def test_a_store_of_the_schema_before_is_sound_after_its_upgrade(scenario: DeliveryScenario) -> None:
    undo_migrations(scenario.forger.db, down_to=2)
    scenario.gateway.crash()
    scenario.gateway.start()
    scenario.gateway.assert_sound()
    one_memory_receipt_is_deleted(scenario)
    assert any("no receipt, dead letter or reason" in it.text for it in scenario.list_broken())


def test_a_memory_answers_only_for_what_was_said_after_it_was_added(gateway: InProcessGateway) -> None:
    session = gateway.send_message("before").session
    gateway.runtimes.memories["mem"] = memory = FakeMemoryProvider()
    gateway.send_message("after")
    assert len(memory.arrived) == 1
    gateway.assert_sound()
    del gateway.runtimes.memories["mem"]  # from the configuration
    gateway.send_message("without it")
    gateway.run_until_idle(60)
    gateway.assert_sound()
    gateway.run(gateway.control.audit_store(session))


def test_an_undone_reply_that_was_never_sent_needs_no_receipt(gateway: InProcessGateway) -> None:
    gateway.platform.faults.fail_next(Transient("down"), times=3)
    session = gateway.send_message("hello", rest=False).session
    gateway.pass_time(0.5)
    gateway.send_message("/undo", rest=False)
    gateway.run_until_idle(60)
    assert not any("You said: hello" in text for text in gateway.list_shown_texts())
    assert any(isinstance(entry.body, Said) for entry in gateway.read_log(session))
    gateway.assert_sound()


def test_erased_replies_and_messages_need_no_receipt(scenario: DeliveryScenario) -> None:
    log = scenario.gateway.read_log(scenario.session)
    scenario.gateway.run(
        scenario.gateway.control.erase_entries(scenario.session, [it.seq for it in log if it.kind in ("heard", "said")])
    )
    scenario.gateway.run_until_idle(5)
    scenario.gateway.assert_sound()
