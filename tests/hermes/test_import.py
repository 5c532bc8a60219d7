"""Imports of hermes-agent homes: every message once, in order, word for word; contexts as they were; safe to repeat."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from everhold.app import SystemChance
from everhold.backups import plan, restore
from everhold.config import Settings, load, parse
from everhold.core.audit import audit
from everhold.core.context import messages
from everhold.core.entries import (
    Changed,
    Compressed,
    Draft,
    Ended,
    Erased,
    Heard,
    Kind,
    Noted,
    Notified,
    Returned,
    SessionTitled,
    Thought,
)
from everhold.errors import StoreFull
from everhold.flow.view import view_at
from everhold.home import Home
from everhold.imports.run import Job, Report, run
from everhold.ports.store import Change, Committed, Session, Step
from everhold.stores.sqlite import SqliteStore
from tests.hermes.built import NOW, SUMMARY, Built
from tests.hermes.test_doctor import DAMAGES, DM, forked, healthy, renamed, unread
from tests.stores.faulty import FaultyVFS

ME = "me"


class Place:
    """A home here, opened and closed around every import."""

    def __init__(self, path: Path) -> None:
        self.home = Home(path).create()
        self.store: SqliteStore | None = None

    def bring(self, source: Path, *, dry: bool = False, before: Callable[[SqliteStore], None] | None = None) -> Report:
        async def play() -> Report:
            settings = load(self.home, environ={})
            store = None if dry else self.open()
            if store is not None and before is not None:
                before(store)
            job = Job(source, self.home, settings, {}, ME, store=store, now=NOW)
            try:
                return await run(job)
            finally:
                if store is not None:
                    await store.close()

        return asyncio.run(play())

    def open(self) -> SqliteStore:
        return SqliteStore.open(self.home.store, chance=SystemChance(), synchronous="OFF")

    def look(self, ask: Callable[[SqliteStore], Any]) -> Any:
        async def play() -> Any:
            store = self.open()
            try:
                assert await store.verify() == []
                return await ask(store)
            finally:
                await store.close()

        return asyncio.run(play())

    def all(self) -> list[tuple[Any, ...]]:
        """Every entry, but for what is drawn by lot."""

        async def ask(store: SqliteStore) -> list[tuple[Any, ...]]:
            found = []
            for session in await store.list_sessions(limit=1000):
                entries = await store.list_entries(session.id)
                assert [f for f in audit(session.id, entries)[0] if f.level == "broken"] == []
                found += [(e.session, e.seq, e.kind, e.op, e.author, e.at, e.body, e.dedup) for e in entries]
            return found

        found: list[tuple[Any, ...]] = self.look(ask)
        return found

    def context(self, address: str) -> list[tuple[str, str]]:
        async def ask(store: SqliteStore) -> list[tuple[str, str]]:
            id = await store.resolve_address(address)
            assert id, address
            session = await store.get_session(id)
            return [(m.role, m.text) for m in messages(await view_at(store, session, at=session.last_seq + 1))]

        found: list[tuple[str, str]] = self.look(ask)
        return found

    def session(self, address: str) -> Session:
        async def ask(store: SqliteStore) -> Session:
            id = await store.resolve_address(address)
            assert id, address
            return await store.get_session(id)

        found: Session = self.look(ask)
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "here")


def settings_of(place: Place) -> Settings:
    return load(place.home, environ={})


def rows(path: Path) -> dict[int, tuple[str, str, str]]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    found = {
        int(id): (s, role, text or "")
        for id, s, role, text in db.execute("select id, session_id, role, content from messages")
    }
    db.close()
    return found


def imported(place: Place) -> dict[int, tuple[str, str, str]]:
    """Row -> (session there, role, text), as the log here has it, in the log's order for each session."""
    found: dict[int, tuple[str, str, str]] = {}
    for *_, body, dedup in place.all():
        if dedup is None or not dedup.startswith("hermes:"):
            continue
        _, _, session, row = dedup.split(":")
        roles: dict[type, str] = {Heard: "user", Thought: "assistant", Returned: "tool"}
        role = roles.get(type(body), "other")
        text = body.summary if isinstance(body, Compressed) else body.text
        assert int(row) not in found, "twice"
        found[int(row)] = (session, role, text)
    return found


def address(session: str) -> str:
    return f"agent:main:terminal:dm:{session}"


# -- every message once, in order, word for word -----------------------------------------------------------------------


def test_every_message_arrives_once_in_order_and_word_for_word(tmp_path: Path, place: Place) -> None:
    built = healthy(tmp_path / "there")
    for damage in DAMAGES:
        damage(built)
    path = built.close()
    report = place.bring(tmp_path / "there")
    assert report.complete
    tally = report.agents["main"]
    assert tally.accounted == len(rows(path))
    there, here = rows(path), imported(place)
    for id, (session, role, text) in here.items():
        assert there[id][0] == session
        if role != "other":
            assert there[id][1:] == (role, text)
        else:
            assert there[id][2] in text
    # what did not come is a copy of something that did
    come = {(role, text) for _, role, text in here.values()} | {("assistant", SUMMARY)}
    for id in there.keys() - here.keys():
        assert there[id][1] == "session_meta" or there[id][1:] in come
    order: dict[str, list[int]] = {}
    for session, *_, dedup in place.all():
        if dedup and dedup.startswith("hermes:"):
            order.setdefault(f"{session}/{dedup.split(':')[2]}", []).append(int(dedup.split(":")[3]))
    assert all(ids == sorted(ids) for ids in order.values())


def test_times_and_authors_are_those_of_the_source(tmp_path: Path, place: Place) -> None:
    built = healthy(tmp_path / "there")
    path = built.close()
    place.bring(path)
    db = apsw.Connection(str(path))
    times = dict(db.execute("select id, timestamp from messages"))
    db.close()
    for *_, author, at, body, dedup in place.all():
        if dedup and dedup.startswith("hermes:"):
            assert at == times[int(dedup.split(":")[3])]
            if isinstance(body, Heard):
                assert author in ("person:1001", "person:3003", f"person:{ME}")
                assert body.stamp.audience


# -- contexts ----------------------------------------------------------------------------------------------------------


def test_a_context_is_what_the_source_would_have_sent(tmp_path: Path, place: Place) -> None:
    healthy(tmp_path / "there").close()
    place.bring(tmp_path / "there")
    plain = place.context(address("cli-1"))
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
    direct = place.context(DM)
    assert SUMMARY in direct[0][1]
    assert "user: question a\nassistant: answer a" in direct[0][1], "the beginning that is kept there goes with it"
    assert [text for _, text in direct[1:]] == ["question l", "", "saw l", "answer l", "question m", "answer m"]


def test_a_chain_of_compressions_is_one_session_with_folds(tmp_path: Path, place: Place) -> None:
    built = Built(tmp_path / "there")
    renamed(built)
    built.close()
    report = place.bring(tmp_path / "there")
    assert report.agents["main"].conversations == 1
    assert [text for _, text in place.context(address("r-1"))[1:]] == [
        "question h",
        "",
        "saw h",
        "answer h",
        "question i",
        "answer i",
    ]
    assert sum(isinstance(body, Compressed) for *_, body, _ in place.all()) == 2
    assert sum(isinstance(body, Heard) for *_, body, _ in place.all()) == 9


def test_what_was_archived_unread_is_in_the_conversation_again(tmp_path: Path, place: Place) -> None:
    built = Built(tmp_path / "there")
    unread(built)
    built.close()
    assert place.bring(tmp_path / "there").agents["main"].restored == 2
    told = [text for _, text in place.context(address("u-1"))]
    assert told[-4:] == ["written meanwhile", "and answered", "question e", "answer e"]


def test_a_tail_that_begins_inside_a_turn_splits_it(tmp_path: Path, place: Place) -> None:
    built = Built(tmp_path / "there")
    built.session("long")
    ids = [built.say("long", "user", "do it all")]
    for n in range(6):
        calls = json.dumps([{"id": f"k{n}", "function": {"name": "do", "arguments": "{}"}}])
        ids.append(built.say("long", "assistant", "", tool_calls=calls))
        ids.append(built.say("long", "tool", f"did {n}", tool_call_id=f"k{n}"))
    built.compress("long", head=ids[:1], tail=ids[-4:])
    built.say("long", "assistant", "all done")
    built.close()
    place.bring(tmp_path / "there")
    assert [text for _, text in place.context(address("long"))[1:]] == ["", "did 4", "", "did 5", "all done"]


def test_undone_is_undone_and_can_be_seen(tmp_path: Path, place: Place) -> None:
    healthy(tmp_path / "there").close()
    assert place.bring(tmp_path / "there").agents["main"].undone == 2
    assert "question oops" not in [text for _, text in place.context(address("cli-1"))]
    assert any(isinstance(body, Heard) and body.text == "question oops" for *_, body, _ in place.all())


def test_a_branch_refers_to_its_parent_and_the_chat_leads_to_it(tmp_path: Path, place: Place) -> None:
    healthy(tmp_path / "there").close()
    report = place.bring(tmp_path / "there")
    assert report.agents["main"].branches == 1
    session = place.session("agent:main:telegram:dm:3003")
    assert session.parent
    assert [text for _, text in place.context("agent:main:telegram:dm:3003")] == [
        "question p",
        "answer p",
        "question q",
        "answer q",
    ]


def test_a_fork_becomes_a_branch_and_loses_nothing(tmp_path: Path, place: Place) -> None:
    built = Built(tmp_path / "there")
    forked(built)
    built.close()
    report = place.bring(tmp_path / "there")
    assert report.complete
    assert report.agents["main"].branches == 1
    said = {body.text for *_, body, _ in place.all() if isinstance(body, Heard)}
    assert {"question left", "question right"} <= said


def test_a_chat_that_began_anew_goes_on_in_one_session(tmp_path: Path, place: Place) -> None:
    key = "agent:main:telegram:dm:5005"
    built = Built(tmp_path / "there")
    built.talk(built.chat("n-1", key), "old")
    built.run("update sessions set ended_at = 1, end_reason = 'session_reset' where id = 'n-1'")
    built.talk(built.chat("n-2", key), "new")
    built.close()
    report = place.bring(tmp_path / "there")
    assert report.agents["main"].conversations == 1
    assert place.context(key) == [("user", "question new"), ("assistant", "answer new")]
    assert sum(isinstance(body, Heard) for *_, body, _ in place.all()) == 2


def test_the_session_in_use_comes_last_whatever_its_age(tmp_path: Path, place: Place) -> None:
    key = "agent:main:telegram:dm:5005"
    built = Built(tmp_path / "there")
    built.talk(built.chat("n-1", key), "old")
    built.talk(built.chat("n-2", key), "new")
    built.route(key, "n-1")
    built.close()
    place.bring(tmp_path / "there")
    assert [text for _, text in place.context(key)] == ["question old", "answer old"]


def test_two_chats_that_shared_a_key_are_two_here(tmp_path: Path, place: Place) -> None:
    built = Built(tmp_path / "there")
    key = "agent:main:telegram:group:-5:42"
    built.talk(
        built.session("k-1", source="telegram", session_key=key, chat_id="-5", chat_type="group", user_id="42"), "a"
    )
    built.talk(
        built.session(
            "k-2", source="telegram", session_key=key, chat_id="-5", chat_type="group", thread_id="42", user_id="7"
        ),
        "b",
    )
    built.close()
    place.bring(tmp_path / "there")
    assert place.context("agent:main:telegram:group:-5:person:42")[0] == ("user", "question a")
    assert place.context("agent:main:telegram:group:-5:thread:42")[0] == ("user", "question b")


def test_what_was_overheard_waits_for_the_next_turn(tmp_path: Path, place: Place) -> None:
    built = Built(tmp_path / "there")
    built.session("o-1")
    built.say("o-1", "user", "chatter", observed=1)
    built.talk("o-1", "a")
    built.say("o-1", "user", "later chatter", observed=1)
    built.close()
    place.bring(tmp_path / "there")
    assert [text for _, text in place.context(address("o-1"))] == ["chatter", "question a", "answer a"]
    assert place.session(address("o-1")).pending == 1


def test_odd_rows_are_kept_and_break_nothing(tmp_path: Path, place: Place) -> None:
    built = Built(tmp_path / "there")
    built.session("odd")
    built.say("odd", "assistant", "nobody asked")
    built.say("odd", "tool", "from nowhere", tool_call_id="gone")
    built.say("odd", "system", "be nice")
    built.say("odd", "user", '\0json:[{"type": "text", "text": "see"}, {"type": "image_url", "image_url": "x"}]')
    built.say("odd", "assistant", "", tool_calls='[{"id": "a"}, {"id": "a"}, {"function": {"arguments": "not json"}}]')
    built.say("odd", "user", None)
    built.say("odd", "assistant", "no json", tool_calls="{broken")
    built.say("odd", "wizard", "hocus")
    built.close()
    report = place.bring(tmp_path / "there")
    assert report.complete
    asides = [body.text for *_, body, _ in place.all() if isinstance(body, Notified)]
    assert asides == ["from nowhere", "be nice", "hocus"]
    assert place.context(address("odd"))[1] == ("user", 'see\n{"type": "image_url", "image_url": "x"}')


def test_a_continuation_whose_beginning_is_gone_keeps_its_summary(tmp_path: Path, place: Place) -> None:
    built = Built(tmp_path / "there")
    built.session("tip", parent_session_id=None)
    built.say("tip", "assistant", SUMMARY)
    built.talk("tip", "a")
    built.close()
    place.bring(tmp_path / "there")
    told = place.context(address("tip"))
    assert SUMMARY in told[0][1]
    assert [text for _, text in told[1:]] == ["question a", "answer a"]


def test_what_it_cost_and_what_it_was_called_comes_too(tmp_path: Path, place: Place) -> None:
    built = healthy(tmp_path / "there")
    built.run(
        "update sessions set input_tokens = 100, cache_read_tokens = 50, output_tokens = 7, estimated_cost_usd = 0.25 "
        "where id = 'cli-1'"
    )
    built.close()
    place.bring(tmp_path / "there")
    (usage,) = [body.usage for *_, body, _ in place.all() if isinstance(body, Ended) and body.usage.usd]
    assert (usage.input, usage.cached, usage.output, usage.usd) == (150, 50, 7, 0.25)
    assert place.session(address("cli-1")).title == "plain"
    place.bring(tmp_path / "there")
    assert sum(isinstance(body, Ended) and body.usage.usd > 0 for *_, body, _ in place.all()) == 1


def test_an_old_schema_comes_too(tmp_path: Path, place: Place) -> None:
    healthy(tmp_path / "there", version=5).close()
    report = place.bring(tmp_path / "there")
    assert report.complete
    assert len(place.context(address("cli-1"))) == 8


# -- again -------------------------------------------------------------------------------------------------------------


def everything(home: Path) -> Built:
    built = healthy(home)
    for damage in DAMAGES:
        damage(built)
    return built


def test_twice_is_once(tmp_path: Path, place: Place) -> None:
    everything(tmp_path / "there").close()
    place.bring(tmp_path / "there")
    before = place.all()
    again = place.bring(tmp_path / "there")
    assert again.complete
    assert again.agents["main"].messages == 0
    assert place.all() == before


@pytest.mark.parametrize("dry", [True, False])
def test_what_a_damaged_page_leaves_comes_and_the_rest_is_named(tmp_path: Path, place: Place, dry: bool) -> None:
    built = Built(tmp_path / "there")
    for name in ("before", "harmed", "after"):
        built.talk(built.session(name), *(f"{name} {n} " + "x" * 600 for n in range(30)))
    built.db.pragma("journal_mode", "delete")
    path = built.close()
    whole = path.read_bytes()
    data = bytearray(whole)
    at = data.index(b"harmed 15 ") // 4096 * 4096
    data[at : at + 4096] = bytes(byte ^ 0x5A for byte in data[at : at + 4096])
    path.write_bytes(data)
    report = place.bring(tmp_path / "there", dry=dry)
    assert not report.complete
    (trouble,) = report.troubles
    assert "session harmed" in trouble
    assert "everhold doctor" in trouble
    assert report.agents["main"].messages == 180
    if not dry:
        assert len(place.context(address("after"))) == 90
        path.write_bytes(whole)  # once it is mended, or brought back from a copy
        assert place.bring(tmp_path / "there").complete
        assert len(place.context(address("harmed"))) == 90


def test_a_disk_that_is_full_stops_an_import_and_the_next_goes_on(tmp_path: Path, place: Place) -> None:
    everything(tmp_path / "there").close()
    other = Built(tmp_path / "there" / "profiles" / "coder")
    other.talk(other.session("c-1"), "a")
    other.close()
    whole = Place(tmp_path / "whole")
    whole.bring(tmp_path / "there")
    vfs = FaultyVFS()

    async def fill() -> None:
        store = SqliteStore.open(place.home.store, chance=SystemChance(), synchronous="OFF", vfs=vfs.name)
        vfs.disk.room = 150_000
        job = Job(tmp_path / "there", place.home, load(place.home, environ={}), {}, ME, store=store, now=NOW)
        with pytest.raises(StoreFull) as caught:
            await run(job)
        assert "free some space" in caught.value.remedy
        vfs.disk.room = None
        await store.close()

    asyncio.run(fill())
    vfs.unregister()
    assert 0 < len(place.all()) < len(whole.all())
    assert place.bring(tmp_path / "there").complete
    assert place.all() == whole.all()


def test_a_name_given_here_stays_and_what_was_erased_stays_erased(tmp_path: Path, place: Place) -> None:
    """Two conversations of one chat with names of their own do not take turns, either."""
    built = healthy(tmp_path / "there")
    key = "agent:main:telegram:dm:5005"
    built.talk(built.chat("n-1", key, title="old name"), "old")
    built.run("update sessions set ended_at = started_at + 9, end_reason = 'session_reset' where id = 'n-1'")
    built.talk(built.chat("n-2", key, title="new name"), "new")
    built.close()
    place.bring(tmp_path / "there")
    before = place.all()
    place.bring(tmp_path / "there")
    assert place.all() == before
    assert place.session(key).title == "new name"

    async def change(store: SqliteStore) -> None:
        id = await store.resolve_address(DM)
        assert id
        draft = Draft(body=Changed(change=SessionTitled(title="mine")), author="person:me")
        await store.commit(Change(step=Step.NOTE, session=id, at=NOW, entries=(draft,)))
        (first, *_) = await store.list_entries(id, kinds=(Kind.HEARD,))
        gone = Draft(body=Erased(seqs=(first.seq,), why="asked for"), author="system")
        await store.commit(Change(step=Step.ERASE, session=id, at=NOW, entries=(gone,), erase=(first.seq,)))

    place.look(change)
    place.bring(tmp_path / "there")
    assert place.session(DM).title == "mine"
    here = place.session(DM).id
    assert not any(isinstance(body, Heard) and body.text == "question a" for s, *_, body, _ in place.all() if s == here)


def test_a_later_import_brings_what_is_new(tmp_path: Path, place: Place) -> None:
    built = healthy(tmp_path / "there")
    place.bring(tmp_path / "there")
    before = place.all()
    more = built.talk("dm-1", "n", "o")
    built.compress("dm-1", head=[], tail=more[-4:])
    built.talk("dm-1", "p")
    built.talk(built.session("fresh"), "x")
    built.close()
    report = place.bring(tmp_path / "there")
    assert report.complete
    assert report.agents["main"].messages == 10
    after = place.all()
    assert [entry for entry in after if entry in before] == before
    told = [text for _, text in place.context(DM)]
    assert told[1:] == ["question o", "", "saw o", "answer o", "question p", "answer p"]


@pytest.mark.parametrize("seed", range(6))
def test_interrupted_anywhere_it_ends_up_the_same(tmp_path: Path, place: Place, seed: int) -> None:
    everything(tmp_path / "there").close()
    whole = Place(tmp_path / "whole")
    whole.bring(tmp_path / "there")
    chance = random.Random(seed)

    class Cut(Exception):
        pass

    def cut(store: SqliteStore) -> None:
        left = chance.randint(1, 25)
        real = store.commit

        async def commit(change: Change) -> Committed:
            nonlocal left
            left -= 1
            if left < 0:
                raise Cut
            done = await real(change)
            if left == 0 and chance.random() < 0.5:
                raise Cut  # committed, and nobody was told
            return done

        store.commit = commit  # type: ignore[method-assign]

    cuts = 0
    for _ in range(200):
        try:
            place.bring(tmp_path / "there", before=cut)
            break
        except Cut:
            cuts += 1
    assert cuts > 2
    assert [e for e in place.all() if not isinstance(e[6], Noted)] == [
        e for e in whole.all() if not isinstance(e[6], Noted)
    ]


@pytest.mark.parametrize("tenths", [0, 1, 4, 7, 9])
def test_what_was_taken_back_comes_with_the_next_import(tmp_path: Path, place: Place, tenths: int) -> None:
    built = everything(tmp_path / "there")
    built.run("update sessions set input_tokens = 100, estimated_cost_usd = 0.25 where id = 'cli-1'")
    first = place.look(lambda store: store.last_pos())
    place.bring(tmp_path / "there")
    whole = imported(place)
    last = place.look(lambda store: store.last_pos())

    pos = max(first, 1) + (last - first) * tenths // 10
    restore(place.home, plan(place.home, at=str(pos)), now=NOW, chance=SystemChance())
    assert len(imported(place)) < len(whole)
    report = place.bring(tmp_path / "there")
    assert report.complete
    # a result whose call was cut off from it is kept beside the conversation
    assert {row: (s, text) for row, (s, _, text) in imported(place).items()} == {
        row: (s, text) for row, (s, _, text) in whole.items()
    }
    assert sum(body.usage.usd for *_, body, _ in place.all() if isinstance(body, Ended)) == pytest.approx(0.25)

    built.talk("cli-1", "later")
    built.close()
    again = place.bring(tmp_path / "there")
    assert again.complete
    assert again.agents["main"].messages == 2, "and what is there is known"


def test_a_chat_that_has_a_session_here_keeps_it(tmp_path: Path, place: Place) -> None:
    first = Built(tmp_path / "first")
    first.talk(first.chat("a-1", DM), "first")
    first.close()
    place.bring(tmp_path / "first")
    second = Built(tmp_path / "second")
    second.talk(second.chat("b-1", DM), "second")
    second.close()
    report = place.bring(tmp_path / "second")
    assert "has a session here already" in report.agents["main"].remarks[0]
    assert [text for _, text in place.context(DM)] == ["question first", "answer first"]
    assert place.context("agent:main:imported:dm:b-1")[0] == ("user", "question second")


def test_a_dry_run_writes_nothing_and_counts_the_same(tmp_path: Path, place: Place) -> None:
    everything(tmp_path / "there").close()
    (tmp_path / "there" / "SOUL.md").write_text("You are calm.")
    settings_of(place)
    before = sorted(path.name for path in place.home.path.rglob("*"))
    dry = place.bring(tmp_path / "there", dry=True)
    assert sorted(path.name for path in place.home.path.rglob("*")) == before
    real = place.bring(tmp_path / "there")
    for name in ("messages", "copies", "summaries", "marks", "undone", "conversations", "sessions"):
        # a branch's copies are only known once its parent is here
        got, told = getattr(real.agents["main"], name), getattr(dry.agents["main"], name)
        assert abs(got - told) <= (2 if name in ("messages", "copies") else 0), name


def test_nothing_wakes_and_nothing_is_sent(tmp_path: Path, place: Place) -> None:
    everything(tmp_path / "there").close()
    place.bring(tmp_path / "there")

    async def ask(store: SqliteStore) -> tuple[int, int]:
        return len(await store.list_cursors()), await store.count_waiting()

    assert place.look(ask) == (0, 0)


def test_every_change_of_a_session_is_one_the_log_knows(tmp_path: Path, place: Place) -> None:
    """An import adds bindings, titles, branches, fresh contexts and undone turns, and nothing else."""
    everything(tmp_path / "there").close()
    place.bring(tmp_path / "there")
    changes = {type(body.change).__name__ for *_, body, _ in place.all() if isinstance(body, Changed)}
    assert changes <= {
        "AddressBound", "SessionTitled", "BranchedFrom", "ContextReset", "OperationsUndone", "MemoryNameSet",
    }  # fmt: skip
    assert {kind for _, _, kind, *_ in place.all()} <= set(Kind)
    assert parse(b"").agents
