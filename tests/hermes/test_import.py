"""Imports of hermes-agent homes: every message once, in order, word for word; contexts as they were; safe to repeat."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import apsw
import pytest

from everhold.app import SystemRandomSource
from everhold.assembly.stores import plan_restore, restore_store
from everhold.config import Settings, load_settings, parse_settings
from everhold.core.audit import audit_session
from everhold.core.context import render_messages
from everhold.core.entries import (
    Changed,
    Compressed,
    Ended,
    EntryDraft,
    EntryKind,
    Erased,
    Heard,
    Noted,
    Notified,
    Returned,
    SessionTitled,
    Thought,
)
from everhold.engine.context_cache import load_context_at
from everhold.errors import StoreFull
from everhold.hermes.importer.run import ImportJob, ImportReport, convert_report_to_json, run_import
from everhold.infra.home import Home
from everhold.ports.store import Change, CommitResult, Session, Step
from everhold.stores.sqlite import SqliteStore
from tests.hermes.built_home import NOW, SUMMARY, BuiltHermesHome
from tests.hermes.test_doctor import DAMAGES, DM, forked, healthy, renamed, unread
from tests.stores.faulty_disk import FaultyVFS

ME = "me"


class ImportTarget:
    """A home, opened and closed around every import."""

    def __init__(self, path: Path) -> None:
        self.home = Home(path).create()
        self.store: SqliteStore | None = None

    def run_import(
        self,
        source: Path,
        *,
        dry: bool = False,
        owner: str = "",
        environ: Mapping[str, str] = MappingProxyType({}),
        before: Callable[[SqliteStore], None] | None = None,
    ) -> ImportReport:
        async def play() -> ImportReport:
            settings = load_settings(self.home, environ={})
            store = None if dry else self.open_store()
            if store is not None and before is not None:
                before(store)
            job = ImportJob(source, self.home, settings, environ, ME, store=store, now=NOW, owner=owner)
            try:
                return await run_import(job)
            finally:
                if store is not None:
                    await store.close()

        return asyncio.run(play())

    def open_store(self) -> SqliteStore:
        return SqliteStore.open(self.home.store, chance=SystemRandomSource(), synchronous="OFF")

    def query_store(self, ask: Callable[[SqliteStore], Any]) -> Any:
        async def play() -> Any:
            store = self.open_store()
            try:
                assert await store.verify() == []
                return await ask(store)
            finally:
                await store.close()

        return asyncio.run(play())

    def read_all_entries(self) -> list[tuple[Any, ...]]:
        """Return every entry without its random parts."""

        async def ask(store: SqliteStore) -> list[tuple[Any, ...]]:
            found = []
            for session in await store.list_sessions(limit=1000):
                entries = await store.list_entries(session.id)
                assert [f for f in audit_session(session.id, entries)[0] if f.level == "broken"] == []
                found += [(e.session, e.seq, e.kind, e.op, e.author, e.at, e.body, e.dedup) for e in entries]
            return found

        found: list[tuple[Any, ...]] = self.query_store(ask)
        return found

    def read_context(self, address: str) -> list[tuple[str, str]]:
        async def ask(store: SqliteStore) -> list[tuple[str, str]]:
            id = await store.resolve_address(address)
            assert id, address
            session = await store.get_session(id)
            return [
                (m.role, m.text)
                for m in render_messages(await load_context_at(store, session, at=session.last_seq + 1))
            ]

        found: list[tuple[str, str]] = self.query_store(ask)
        return found

    def find_session(self, address: str) -> Session:
        async def ask(store: SqliteStore) -> Session:
            id = await store.resolve_address(address)
            assert id, address
            return await store.get_session(id)

        found: Session = self.query_store(ask)
        return found


@pytest.fixture
def place(tmp_path: Path) -> ImportTarget:
    return ImportTarget(tmp_path / "here")


def settings_of(place: ImportTarget) -> Settings:
    return load_settings(place.home, environ={})


def read_rows(path: Path) -> dict[int, tuple[str, str, str]]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    found = {
        int(id): (s, role, text or "")
        for id, s, role, text in db.execute("select id, session_id, role, content from messages")
    }
    db.close()
    return found


def read_imported(place: ImportTarget) -> dict[int, tuple[str, str, str]]:
    """Return row -> (source session, role, text) as the log has it, in the log's order for each session."""
    found: dict[int, tuple[str, str, str]] = {}
    for *_, body, dedup in place.read_all_entries():
        if dedup is None or not dedup.startswith("hermes:"):
            continue
        _, _, session, row = dedup.split(":")
        roles: dict[type, str] = {Heard: "user", Thought: "assistant", Returned: "tool"}
        role = roles.get(type(body), "other")
        text = body.summary if isinstance(body, Compressed) else body.text
        assert int(row) not in found, "twice"
        found[int(row)] = (session, role, text)
    return found


def make_address(session: str) -> str:
    return f"agent:main:terminal:dm:{session}"


# -- every message once, in order, word for word -----------------------------------------------------------------------


def test_every_message_arrives_once_in_order_and_word_for_word(tmp_path: Path, place: ImportTarget) -> None:
    built = healthy(tmp_path / "there")
    for damage in DAMAGES:
        damage(built)
    path = built.close()
    report = place.run_import(tmp_path / "there")
    assert report.is_complete
    tally = report.agents["main"]
    assert tally.accounted_rows == len(read_rows(path))
    there, here = read_rows(path), read_imported(place)
    for id, (session, role, text) in here.items():
        assert there[id][0] == session
        if role != "other":
            assert there[id][1:] == (role, text)
        else:
            assert there[id][2] in text
    # a message that was not imported is a copy of one that was
    come = {(role, text) for _, role, text in here.values()} | {("assistant", SUMMARY)}
    for id in there.keys() - here.keys():
        assert there[id][1] == "session_meta" or there[id][1:] in come
    order: dict[str, list[int]] = {}
    for session, *_, dedup in place.read_all_entries():
        if dedup and dedup.startswith("hermes:"):
            order.setdefault(f"{session}/{dedup.split(':')[2]}", []).append(int(dedup.split(":")[3]))
    assert all(ids == sorted(ids) for ids in order.values())


def test_times_and_authors_are_kept(tmp_path: Path, place: ImportTarget) -> None:
    built = healthy(tmp_path / "there")
    path = built.close()
    place.run_import(path)
    db = apsw.Connection(str(path))
    times = dict(db.execute("select id, timestamp from messages"))
    db.close()
    for *_, author, at, body, dedup in place.read_all_entries():
        if dedup and dedup.startswith("hermes:"):
            assert at == times[int(dedup.split(":")[3])]
            if isinstance(body, Heard):
                assert author in (
                    "person:telegram:1001",
                    "person:telegram:3003",
                    f"person:local:{ME}",
                    "person:imported:main/errand",
                )
                assert body.stamp.person == author.removeprefix("person:")
                assert body.stamp.audience


# -- contexts ----------------------------------------------------------------------------------------------------------


def test_a_context_equals_the_one_of_the_source(tmp_path: Path, place: ImportTarget) -> None:
    healthy(tmp_path / "there").close()
    place.run_import(tmp_path / "there")
    plain = place.read_context(make_address("cli-1"))
    assert [text for _, text in plain] == [
        "question a",
        "answer a",
        "question b",
        "",
        "saw b",
        "answer b",
        "question c",
        "answer c",
    ]
    direct = place.read_context(DM)
    assert SUMMARY in direct[0][1]
    assert "user: question a\nassistant: answer a" in direct[0][1], "the beginning that hermes-agent keeps goes with it"
    assert [text for _, text in direct[1:]] == ["question l", "", "saw l", "answer l", "question m", "answer m"]


def test_a_chain_of_compressions_is_one_session_with_summaries(tmp_path: Path, place: ImportTarget) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    renamed(built)
    built.close()
    report = place.run_import(tmp_path / "there")
    assert report.agents["main"].conversations == 1
    assert [text for _, text in place.read_context(make_address("r-1"))[1:]] == [
        "question h",
        "",
        "saw h",
        "answer h",
        "question i",
        "answer i",
    ]
    assert sum(isinstance(body, Compressed) for *_, body, _ in place.read_all_entries()) == 2
    assert sum(isinstance(body, Heard) for *_, body, _ in place.read_all_entries()) == 9


def test_messages_archived_before_they_were_read_are_in_the_session_again(tmp_path: Path, place: ImportTarget) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    unread(built)
    built.close()
    assert place.run_import(tmp_path / "there").agents["main"].restored == 2
    context = [text for _, text in place.read_context(make_address("u-1"))]
    assert context[-4:] == ["written meanwhile", "and answered", "question e", "answer e"]


def test_a_tail_that_begins_inside_a_turn_splits_it(tmp_path: Path, place: ImportTarget) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    built.add_session("long")
    ids = [built.add_message("long", "user", "do it all")]
    for n in range(6):
        calls = json.dumps([{"id": f"k{n}", "function": {"name": "do", "arguments": "{}"}}])
        ids.append(built.add_message("long", "assistant", "", tool_calls=calls))
        ids.append(built.add_message("long", "tool", f"did {n}", tool_call_id=f"k{n}"))
    built.compress_in_place("long", head=ids[:1], tail=ids[-4:])
    built.add_message("long", "assistant", "all done")
    built.close()
    place.run_import(tmp_path / "there")
    assert [text for _, text in place.read_context(make_address("long"))[1:]] == ["", "did 4", "", "did 5", "all done"]


def test_undone_rows_are_imported_as_undone(tmp_path: Path, place: ImportTarget) -> None:
    healthy(tmp_path / "there").close()
    assert place.run_import(tmp_path / "there").agents["main"].undone == 2
    assert "question oops" not in [text for _, text in place.read_context(make_address("cli-1"))]
    assert any(isinstance(body, Heard) and body.text == "question oops" for *_, body, _ in place.read_all_entries())


def test_a_branch_refers_to_its_parent_and_the_chat_is_bound_to_it(tmp_path: Path, place: ImportTarget) -> None:
    healthy(tmp_path / "there").close()
    report = place.run_import(tmp_path / "there")
    assert report.agents["main"].branches == 1
    session = place.find_session("agent:main:telegram:dm:3003")
    assert session.parent
    assert [text for _, text in place.read_context("agent:main:telegram:dm:3003")] == [
        "question p",
        "answer p",
        "question q",
        "answer q",
    ]


def test_a_fork_becomes_a_branch_and_loses_nothing(tmp_path: Path, place: ImportTarget) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    forked(built)
    built.close()
    report = place.run_import(tmp_path / "there")
    assert report.is_complete
    assert report.agents["main"].branches == 1
    said = {body.text for *_, body, _ in place.read_all_entries() if isinstance(body, Heard)}
    assert {"question left", "question right"} <= said


def test_a_chat_that_was_reset_continues_in_one_session(tmp_path: Path, place: ImportTarget) -> None:
    key = "agent:main:telegram:dm:5005"
    built = BuiltHermesHome(tmp_path / "there")
    built.add_exchanges(built.add_chat("n-1", key), "old")
    built.run("update sessions set ended_at = 1, end_reason = 'session_reset' where id = 'n-1'")
    built.add_exchanges(built.add_chat("n-2", key), "new")
    built.close()
    report = place.run_import(tmp_path / "there")
    assert report.agents["main"].conversations == 1
    assert place.read_context(key) == [("user", "question new"), ("assistant", "answer new")]
    assert sum(isinstance(body, Heard) for *_, body, _ in place.read_all_entries()) == 2


def test_the_session_in_use_is_imported_last(tmp_path: Path, place: ImportTarget) -> None:
    key = "agent:main:telegram:dm:5005"
    built = BuiltHermesHome(tmp_path / "there")
    built.add_exchanges(built.add_chat("n-1", key), "old")
    built.add_exchanges(built.add_chat("n-2", key), "new")
    built.add_route(key, "n-1")
    built.close()
    place.run_import(tmp_path / "there")
    assert [text for _, text in place.read_context(key)] == ["question old", "answer old"]


def test_two_chats_that_shared_a_key_get_two_sessions(tmp_path: Path, place: ImportTarget) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    key = "agent:main:telegram:group:-5:42"
    built.add_exchanges(
        built.add_session("k-1", source="telegram", session_key=key, chat_id="-5", chat_type="group", user_id="42"), "a"
    )
    built.add_exchanges(
        built.add_session(
            "k-2", source="telegram", session_key=key, chat_id="-5", chat_type="group", thread_id="42", user_id="7"
        ),
        "b",
    )
    built.close()
    place.run_import(tmp_path / "there")
    assert place.read_context("agent:main:telegram:group:-5:person:42")[0] == ("user", "question a")
    assert place.read_context("agent:main:telegram:group:-5:thread:42")[0] == ("user", "question b")


def test_an_overheard_message_waits_for_the_next_turn(tmp_path: Path, place: ImportTarget) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    built.add_session("o-1")
    built.add_message("o-1", "user", "chatter", observed=1)
    built.add_exchanges("o-1", "a")
    built.add_message("o-1", "user", "later chatter", observed=1)
    built.close()
    place.run_import(tmp_path / "there")
    assert [text for _, text in place.read_context(make_address("o-1"))] == ["chatter", "question a", "answer a"]
    assert place.find_session(make_address("o-1")).pending == 1


def test_unusual_rows_are_kept_and_cause_no_error(tmp_path: Path, place: ImportTarget) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    built.add_session("odd")
    built.add_message("odd", "assistant", "nobody asked")
    built.add_message("odd", "tool", "from nowhere", tool_call_id="gone")
    built.add_message("odd", "system", "be nice")
    built.add_message(
        "odd", "user", '\0json:[{"type": "text", "text": "see"}, {"type": "image_url", "image_url": "x"}]'
    )
    built.add_message(
        "odd", "assistant", "", tool_calls='[{"id": "a"}, {"id": "a"}, {"function": {"arguments": "not json"}}]'
    )
    built.add_message("odd", "user", None)
    built.add_message("odd", "assistant", "no json", tool_calls="{broken")
    built.add_message("odd", "wizard", "hocus")
    built.close()
    report = place.run_import(tmp_path / "there")
    assert report.is_complete
    asides = [body.text for *_, body, _ in place.read_all_entries() if isinstance(body, Notified)]
    assert asides == ["from nowhere", "be nice", "hocus"]
    assert place.read_context(make_address("odd"))[1] == ("user", 'see\n{"type": "image_url", "image_url": "x"}')


def test_a_continuation_without_its_beginning_keeps_its_summary(tmp_path: Path, place: ImportTarget) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    built.add_session("tip", parent_session_id=None)
    built.add_message("tip", "assistant", SUMMARY)
    built.add_exchanges("tip", "a")
    built.close()
    place.run_import(tmp_path / "there")
    context = place.read_context(make_address("tip"))
    assert SUMMARY in context[0][1]
    assert [text for _, text in context[1:]] == ["question a", "answer a"]


def test_costs_and_titles_are_imported(tmp_path: Path, place: ImportTarget) -> None:
    built = healthy(tmp_path / "there")
    built.run(
        "update sessions set input_tokens = 100, cache_read_tokens = 50, output_tokens = 7, estimated_cost_usd = 0.25 "
        "where id = 'cli-1'"
    )
    built.close()
    place.run_import(tmp_path / "there")
    (usage,) = [body.usage for *_, body, _ in place.read_all_entries() if isinstance(body, Ended) and body.usage.usd]
    assert (usage.input, usage.cached, usage.output, usage.usd) == (150, 50, 7, 0.25)
    assert place.find_session(make_address("cli-1")).title == "plain"
    place.run_import(tmp_path / "there")
    assert sum(isinstance(body, Ended) and body.usage.usd > 0 for *_, body, _ in place.read_all_entries()) == 1


def test_an_old_schema_is_imported(tmp_path: Path, place: ImportTarget) -> None:
    healthy(tmp_path / "there", version=5).close()
    report = place.run_import(tmp_path / "there")
    assert report.is_complete
    assert len(place.read_context(make_address("cli-1"))) == 8


# -- repeated imports --------------------------------------------------------------------------------------------------


def build_full_home(home: Path) -> BuiltHermesHome:
    built = healthy(home)
    for damage in DAMAGES:
        damage(built)
    return built


def test_a_second_import_adds_nothing(tmp_path: Path, place: ImportTarget) -> None:
    build_full_home(tmp_path / "there").close()
    place.run_import(tmp_path / "there")
    before = place.read_all_entries()
    again = place.run_import(tmp_path / "there")
    assert again.is_complete
    assert again.agents["main"].messages == 0
    assert place.read_all_entries() == before


@pytest.mark.parametrize("dry", [True, False])
def test_readable_rows_of_a_damaged_store_are_imported_and_the_rest_is_named(
    tmp_path: Path, place: ImportTarget, dry: bool
) -> None:
    built = BuiltHermesHome(tmp_path / "there")
    for name in ("before", "harmed", "after"):
        built.add_exchanges(built.add_session(name), *(f"{name} {n} " + "x" * 600 for n in range(30)))
    built.db.pragma("journal_mode", "delete")
    path = built.close()
    whole = path.read_bytes()
    data = bytearray(whole)
    at = data.index(b"harmed 15 ") // 4096 * 4096
    data[at : at + 4096] = bytes(byte ^ 0x5A for byte in data[at : at + 4096])
    path.write_bytes(data)
    report = place.run_import(tmp_path / "there", dry=dry)
    assert not report.is_complete
    (trouble,) = report.troubles
    assert "session harmed" in trouble
    assert "everhold doctor" in trouble
    assert report.agents["main"].messages == 180
    if not dry:
        assert len(place.read_context(make_address("after"))) == 90
        path.write_bytes(whole)  # once it is repaired, or restored from a copy
        assert place.run_import(tmp_path / "there").is_complete
        assert len(place.read_context(make_address("harmed"))) == 90


def test_a_full_disk_stops_an_import_and_the_next_run_continues(tmp_path: Path, place: ImportTarget) -> None:
    build_full_home(tmp_path / "there").close()
    other = BuiltHermesHome(tmp_path / "there" / "profiles" / "coder")
    other.add_exchanges(other.add_session("c-1"), "a")
    other.close()
    whole = ImportTarget(tmp_path / "whole")
    whole.run_import(tmp_path / "there")
    vfs = FaultyVFS()

    async def fill() -> None:
        store = SqliteStore.open(place.home.store, chance=SystemRandomSource(), synchronous="OFF", vfs=vfs.name)
        vfs.disk.free_bytes = 150_000
        job = ImportJob(
            tmp_path / "there", place.home, load_settings(place.home, environ={}), {}, ME, store=store, now=NOW
        )
        with pytest.raises(StoreFull) as caught:
            await run_import(job)
        assert "free some space" in caught.value.remedy
        vfs.disk.free_bytes = None
        await store.close()

    asyncio.run(fill())
    vfs.unregister()
    assert 0 < len(place.read_all_entries()) < len(whole.read_all_entries())
    assert place.run_import(tmp_path / "there").is_complete
    assert place.read_all_entries() == whole.read_all_entries()


def test_a_title_and_an_erasure_made_here_survive_an_import(tmp_path: Path, place: ImportTarget) -> None:
    """Two conversations of one chat with their own titles do not alternate, either."""
    built = healthy(tmp_path / "there")
    key = "agent:main:telegram:dm:5005"
    built.add_exchanges(built.add_chat("n-1", key, title="old name"), "old")
    built.run("update sessions set ended_at = started_at + 9, end_reason = 'session_reset' where id = 'n-1'")
    built.add_exchanges(built.add_chat("n-2", key, title="new name"), "new")
    built.close()
    place.run_import(tmp_path / "there")
    before = place.read_all_entries()
    place.run_import(tmp_path / "there")
    assert place.read_all_entries() == before
    assert place.find_session(key).title == "new name"

    async def change(store: SqliteStore) -> None:
        id = await store.resolve_address(DM)
        assert id
        draft = EntryDraft(body=Changed(change=SessionTitled(title="mine")), author="person:me")
        await store.commit(Change(step=Step.NOTE, session=id, at=NOW, entries=(draft,)))
        (first, *_) = await store.list_entries(id, kinds=(EntryKind.HEARD,))
        gone = EntryDraft(body=Erased(seqs=(first.seq,), why="asked for"), author="system")
        await store.commit(Change(step=Step.ERASE, session=id, at=NOW, entries=(gone,), erase=(first.seq,)))

    place.query_store(change)
    place.run_import(tmp_path / "there")
    assert place.find_session(DM).title == "mine"
    here = place.find_session(DM).id
    assert not any(
        isinstance(body, Heard) and body.text == "question a"
        for s, *_, body, _ in place.read_all_entries()
        if s == here
    )


def test_a_later_import_adds_new_messages(tmp_path: Path, place: ImportTarget) -> None:
    built = healthy(tmp_path / "there")
    place.run_import(tmp_path / "there")
    before = place.read_all_entries()
    more = built.add_exchanges("dm-1", "n", "o")
    built.compress_in_place("dm-1", head=[], tail=more[-4:])
    built.add_exchanges("dm-1", "p")
    built.add_exchanges(built.add_session("fresh"), "x")
    built.close()
    report = place.run_import(tmp_path / "there")
    assert report.is_complete
    assert report.agents["main"].messages == 10
    after = place.read_all_entries()
    assert [entry for entry in after if entry in before] == before
    context = [text for _, text in place.read_context(DM)]
    assert context[1:] == ["question o", "", "saw o", "answer o", "question p", "answer p"]


@pytest.mark.parametrize("seed", range(6))
def test_an_import_interrupted_anywhere_has_the_same_result(tmp_path: Path, place: ImportTarget, seed: int) -> None:
    build_full_home(tmp_path / "there").close()
    whole = ImportTarget(tmp_path / "whole")
    whole.run_import(tmp_path / "there")
    chance = random.Random(seed)

    class Cut(Exception):
        pass

    def cut(store: SqliteStore) -> None:
        left = chance.randint(1, 25)
        real = store.commit

        async def commit(change: Change) -> CommitResult:
            nonlocal left
            left -= 1
            if left < 0:
                raise Cut
            done = await real(change)
            if left == 0 and chance.random() < 0.5:
                raise Cut  # committed, but the caller was not informed
            return done

        store.commit = commit  # type: ignore[method-assign]

    cuts = 0
    for _ in range(200):
        try:
            place.run_import(tmp_path / "there", before=cut)
            break
        except Cut:
            cuts += 1
    assert cuts > 2
    assert [e for e in place.read_all_entries() if not isinstance(e[6], Noted)] == [
        e for e in whole.read_all_entries() if not isinstance(e[6], Noted)
    ]


@pytest.mark.parametrize("tenths", [0, 1, 4, 7, 9])
def test_a_later_undo_is_imported(tmp_path: Path, place: ImportTarget, tenths: int) -> None:
    built = build_full_home(tmp_path / "there")
    built.run("update sessions set input_tokens = 100, estimated_cost_usd = 0.25 where id = 'cli-1'")
    first = place.query_store(lambda store: store.last_pos())
    place.run_import(tmp_path / "there")
    whole = read_imported(place)
    last = place.query_store(lambda store: store.last_pos())

    pos = max(first, 1) + (last - first) * tenths // 10
    restore_store(place.home, plan_restore(place.home, at=str(pos)), now=NOW, chance=SystemRandomSource())
    assert len(read_imported(place)) < len(whole)
    report = place.run_import(tmp_path / "there")
    assert report.is_complete
    # a result that was cut off from its call is kept outside the conversation
    assert {row: (s, text) for row, (s, _, text) in read_imported(place).items()} == {
        row: (s, text) for row, (s, _, text) in whole.items()
    }
    assert sum(body.usage.usd for *_, body, _ in place.read_all_entries() if isinstance(body, Ended)) == pytest.approx(
        0.25
    )

    built.add_exchanges("cli-1", "later")
    built.close()
    again = place.run_import(tmp_path / "there")
    assert again.is_complete
    assert again.agents["main"].messages == 2, "already imported messages are recognised"


def test_a_chat_with_a_session_here_keeps_it(tmp_path: Path, place: ImportTarget) -> None:
    first = BuiltHermesHome(tmp_path / "first")
    first.add_exchanges(first.add_chat("a-1", DM), "first")
    first.close()
    place.run_import(tmp_path / "first")
    second = BuiltHermesHome(tmp_path / "second")
    second.add_exchanges(second.add_chat("b-1", DM), "second")
    second.close()
    report = place.run_import(tmp_path / "second")
    assert "has a session here already" in report.agents["main"].remarks[0]
    assert [text for _, text in place.read_context(DM)] == ["question first", "answer first"]
    assert place.read_context("agent:main:imported:dm:b-1")[0] == ("user", "question second")


def test_a_dry_run_writes_nothing_and_prints_the_same_counts(tmp_path: Path, place: ImportTarget) -> None:
    build_full_home(tmp_path / "there").close()
    (tmp_path / "there" / "SOUL.md").write_text("You are calm.")
    settings_of(place)
    before = sorted(path.name for path in place.home.path.rglob("*"))
    dry = place.run_import(tmp_path / "there", dry=True)
    assert sorted(path.name for path in place.home.path.rglob("*")) == before
    real = place.run_import(tmp_path / "there")
    assert vars(real.agents["main"]) == vars(dry.agents["main"])
    assert dry.settings == real.settings
    assert (dry.facts, dry.peers, dry.left_behind) == (real.facts, real.peers, real.left_behind)
    again = place.run_import(tmp_path / "there", dry=True)
    assert again.agents["main"].messages == 0
    assert again.agents["main"].known == real.agents["main"].messages + real.agents["main"].summaries


def count_spoken(place: ImportTarget) -> int:
    return sum(isinstance(entry[6], Heard | Thought | Returned) for entry in place.read_all_entries())


@pytest.mark.parametrize("first", ["", "half"])
def test_a_dry_run_of_a_damaged_home_announces_exactly_what_comes(
    tmp_path: Path, place: ImportTarget, first: str
) -> None:
    """The home has every damage that doctor knows. In the second case a part of it was imported before."""
    built = healthy(tmp_path / "there")
    if first:
        built.db.pragma("wal_checkpoint", "truncate")
        place.run_import(tmp_path / "there", owner="telegram:1001")
    for damage in DAMAGES:
        damage(built)
    built.close()
    (tmp_path / "there" / "memories").mkdir()
    (tmp_path / "there" / "memories" / "USER.md").write_text("likes tea\n§\nlikes tea\n§\nhas a cat")
    before = count_spoken(place) if first else 0
    dry, real = (
        convert_report_to_json(place.run_import(tmp_path / "there", owner="telegram:1001", dry=dry))
        for dry in (True, False)
    )
    assert dry["agents"]["main"]["messages"] > 26
    assert dry == {**real, "dry_run": True, "position_before": dry["position_before"]}
    assert count_spoken(place) - before == real["agents"]["main"]["messages"]


def test_an_import_wakes_no_consumer_and_sends_nothing(tmp_path: Path, place: ImportTarget) -> None:
    build_full_home(tmp_path / "there").close()
    place.run_import(tmp_path / "there")

    async def ask(store: SqliteStore) -> tuple[int, int]:
        return len(await store.list_cursors()), await store.count_waiting()

    assert place.query_store(ask) == (0, 0)


def test_every_imported_session_change_has_a_known_kind(tmp_path: Path, place: ImportTarget) -> None:
    """An import adds bindings, titles, branches, context resets and undone turns, and nothing else."""
    build_full_home(tmp_path / "there").close()
    place.run_import(tmp_path / "there")
    changes = {type(body.change).__name__ for *_, body, _ in place.read_all_entries() if isinstance(body, Changed)}
    assert changes <= {
        "AddressBound", "SessionTitled", "BranchedFrom", "ContextReset", "OperationsUndone", "MemoryNameSet",
    }  # fmt: skip
    assert {kind for _, _, kind, *_ in place.read_all_entries()} <= set(EntryKind)
    assert parse_settings(b"").agents
