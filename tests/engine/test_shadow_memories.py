"""A memory that is only compared is written, asked and recorded, and the model never sees what it has."""

from __future__ import annotations

from everhold.admin.memory import MemoryAdmin
from everhold.core.entries import Thought
from everhold.core.recall import RecallRecord
from everhold.core.recall_blobs import read_record
from everhold.ports.memory import Exchange
from everhold.testing.gateway import InProcessGateway

from .test_recall import Remembering, recalling, shown


def compare(gateway: InProcessGateway, shadow: Remembering, **primary: Remembering) -> None:
    recalling(gateway, **primary)
    gateway.runtimes.memories = {**gateway.runtimes.memories, "other": shadow}
    gateway.runtimes.settings["shadow_memories"] = ("other",)


def read_last_record(gateway: InProcessGateway) -> RecallRecord:
    (session,) = gateway.run(gateway.store.list_sessions())
    thoughts = [it.body for it in gateway.run(gateway.store.list_entries(session.id)) if isinstance(it.body, Thought)]
    blob = gateway.run(gateway.store.get_blob(thoughts[-1].why))
    assert blob is not None
    return read_record(blob)


def test_the_hits_are_recorded_and_not_shown(gateway: InProcessGateway) -> None:
    shadow = Remembering("the cat is called Tom")
    shadow.place = ("another session", 1)
    compare(gateway, shadow, a=Remembering("the dog is called Rex"))
    gateway.send_message("what are my pets called?")
    assert "Rex" in shown(gateway)[0]
    assert not any("Tom" in text for text in shown(gateway))
    record = read_last_record(gateway)
    assert [one.provider for one in record.shown] == ["a"]
    assert [(one.provider, one.seq) for one in record.shadow] == [("other", 1)]
    assert {name: answer.found for name, answer in record.answers.items()} == {"a": 1, "other": 1}
    gateway.run_until_idle()
    stored = [it.heard[0].text for items in shadow.kept.values() for it in items if isinstance(it, Exchange)]
    assert stored == ["what are my pets called?"]
    gateway.assert_sound()


def test_a_slow_shadow_causes_no_warning(gateway: InProcessGateway) -> None:
    compare(gateway, Remembering("the cat is called Tom", slow=5.0), a=Remembering("the dog is called Rex"))
    gateway.send_message("what are my pets called?")
    assert not any("incomplete" in text for text in shown(gateway))
    record = read_last_record(gateway)
    assert record.unavailable == ()
    assert not record.answers["other"].answered
    assert record.answers["other"].seconds >= 1.0


def test_the_record_of_an_erased_entry_is_erased(gateway: InProcessGateway) -> None:
    shadow = Remembering("the cat is called Tom")
    compare(gateway, shadow, a=Remembering("the dog is called Rex"))
    gateway.send_message("my cat is called Tom", chat="1")
    sessions = gateway.run(gateway.store.list_sessions())
    shadow.place = (sessions[0].id, 1)
    gateway.send_message("what is my cat called?", chat="2")
    (second,) = [it for it in gateway.run(gateway.store.list_sessions()) if it.id != sessions[0].id]
    entries = gateway.run(gateway.store.list_entries(second.id))
    (why,) = [it.body.why for it in entries if isinstance(it.body, Thought)]
    assert gateway.run(gateway.store.get_blob(why)) is not None
    gateway.run(gateway.control.erase_entries(sessions[0].id, (1,)))
    assert gateway.run(gateway.store.get_blob(why)) is None


def test_the_operator_compares_by_real_questions(gateway: InProcessGateway) -> None:
    compare(gateway, Remembering("the cat said: what are my pets called"), a=Remembering("the dog is called Rex"))
    gateway.send_message("what are my pets called?")
    admin = MemoryAdmin(gateway.control, agents=lambda: ["main"])
    found = gateway.run(admin.compare_memories("main"))
    assert [(it["memory"], it["mode"], it["answered"]) for it in found["memories"]] == [
        ("a", "primary", 1),
        ("other", "shadow", 1),
    ]
    (question,) = found["questions"]
    assert question["question"] == "what are my pets called?"
    assert not gateway.run(admin.compare_memories("main", person="nobody"))["questions"]
