"""A5: memory files are imported once per memory session, never into a temporary one, and can be exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everhold.admin.memory import MemoryAdmin
from everhold.admin.memory_files import import_memory_files, read_memory_files, render_memory_files, write_memory_files
from everhold.core.entries import Noted
from everhold.errors import InvalidRequest, NotFound
from everhold.infra.safe_folder import LINK_REASON
from everhold.ports.memory import MemoryNote
from everhold.testing.fakes import FakeMemoryProvider
from everhold.testing.gateway import InProcessGateway

from .memory_tools import add, add_memory_tools, asked_for, shown

FILES = {
    "USER.md": "likes tea\n§\nhas a cat",
    "MEMORY.md": "the server is called atlas",
    "SOUL.md": "I am calm.\n\nI am brief.",
    "notes/garden.md": "# Garden\n- beans on the left\n- peas on the right",
}


def memory(gateway: InProcessGateway) -> MemoryAdmin:
    return MemoryAdmin(gateway.control, agents=lambda: ("main",))


def bring(gateway: InProcessGateway, session: str, files: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    made = gateway.run(
        import_memory_files(memory(gateway), session, FILES if files is None else files, really=True, **more)
    )
    gateway.run_until_idle()
    return made


def texts(gateway: InProcessGateway, session: str) -> list[str]:
    return [body.text for body in gateway.read_bodies(session, Noted)]


def named(gateway: InProcessGateway, name: str = "one-name") -> FakeMemoryProvider:
    provider = FakeMemoryProvider()
    gateway.runtimes.memories = {"a": provider}
    add_memory_tools(gateway)
    gateway.runtimes.settings["choose_memory_name"] = lambda _memory, origin: f"{name}-{origin.owner}"
    return provider


def test_facts_are_imported_and_the_rest_is_noted_and_reaches_the_provider(gateway: InProcessGateway) -> None:
    provider = named(gateway)
    session = gateway.send_message("hello").session
    made = bring(gateway, session)
    assert (made["facts"], made["notes"], made["noted"]) == (3, 2, 5)
    assert made["personas"] == ["SOUL.md"], "it is about the agent, and nothing that is known about the person"
    gateway.send_message("what do you know?")
    for fact in ("likes tea", "has a cat", "the server is called atlas"):
        assert f"| {fact}" in shown(gateway)
    stored = {item.text: item for items in provider.kept.values() for item in items if isinstance(item, MemoryNote)}
    assert set(stored) == {*texts(gateway, session)}
    assert not any("I am calm" in text for text in stored)
    assert stored["likes tea"].tags == ("file:USER.md", "user")
    assert stored["beans on the left"].tags == ("file:garden.md",)
    gateway.assert_sound()


def test_a_second_import_notes_nothing_in_the_same_memory_session(gateway: InProcessGateway) -> None:
    named(gateway)
    first = gateway.send_message("hello").session
    second = gateway.send_message("hello", chat="second").session
    bring(gateway, first)
    assert bring(gateway, first)["noted"] == 0
    assert bring(gateway, second)["noted"] == 0
    # only added lines are new
    assert bring(gateway, second, {**FILES, "USER.md": f"{FILES['USER.md']}\n§\nhas a dog"})["noted"] == 1
    assert texts(gateway, second) == ["has a dog"]
    other = gateway.send_message("hello", chat="bobs", who="bob").session
    assert bring(gateway, other)["noted"] == 5


def test_an_existing_fact_is_not_imported_again(gateway: InProcessGateway) -> None:
    named(gateway)
    session = gateway.send_message(asked_for(add("likes tea"))).session
    assert bring(gateway, session, {"USER.md": "likes tea\n§\nhas a cat"})["noted"] == 1
    assert texts(gateway, session) == ["likes tea", "has a cat"]


def test_a_temporary_session_is_refused(gateway: InProcessGateway) -> None:
    named(gateway)
    gateway.runtimes.settings["choose_memory_name"] = lambda _memory, origin: origin.session
    session = gateway.send_message("hello").session
    with pytest.raises(InvalidRequest, match="a name of its own"):
        bring(gateway, session)
    assert texts(gateway, session) == []


def test_facts_beyond_the_limit_become_notes(gateway: InProcessGateway) -> None:
    named(gateway)
    session = gateway.send_message("hello").session
    made = bring(gateway, session, limits={"user": 10, "memory": 0})
    assert (made["facts"], made["notes"]) == (1, 4)
    assert made["noted"] == 5


def test_a_dry_run_changes_nothing(gateway: InProcessGateway) -> None:
    named(gateway)
    session = gateway.send_message("hello").session
    made = gateway.run(import_memory_files(memory(gateway), session, FILES, really=False))
    assert (made["facts"], made["noted"], made["done"]) == (3, 5, False)
    assert texts(gateway, session) == []


def test_a_dry_run_announces_exactly_what_comes(gateway: InProcessGateway) -> None:
    named(gateway)
    session = gateway.send_message("hello").session
    bring(gateway, session, {"USER.md": "likes tea", "notes.md": "- one\n- two"})
    files = {**FILES, "notes.md": "- one\n- two\n- three\n- three", "deep/notes.md": "- three\n- four"}
    made = gateway.run(import_memory_files(memory(gateway), session, files, really=False))
    before = len(texts(gateway, session))
    done = bring(gateway, session, files)
    assert done["noted"] == len(texts(gateway, session)) - before == 6
    assert made == {**done, "done": False}


def test_an_export_equals_the_imported_files(gateway: InProcessGateway, tmp_path: Path) -> None:
    named(gateway)
    session = gateway.send_message("hello").session
    bring(gateway, session)
    made = write_memory_files(gateway.run(render_memory_files(memory(gateway), "ada")), tmp_path / "out")
    assert [Path(path).name for path in made] == ["USER.md", "MEMORY.md"]
    again, _ = read_memory_files(tmp_path / "out" / "main")
    assert again["USER.md"] == FILES["USER.md"] + "\n"
    assert again["MEMORY.md"] == FILES["MEMORY.md"] + "\n"
    assert gateway.run(render_memory_files(memory(gateway), "bob")) == []


def test_only_memory_files_in_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.md").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    assert read_memory_files(tmp_path) == ({"notes/a.md": "one"}, {})
    assert read_memory_files(tmp_path / "notes" / "a.md") == ({"a.md": "one"}, {})
    (tmp_path / "notes" / "c.md").symlink_to(tmp_path / "b.txt")
    assert read_memory_files(tmp_path) == ({"notes/a.md": "one"}, {"notes/c.md": LINK_REASON})
    with pytest.raises(NotFound):
        read_memory_files(tmp_path / "nothing")
