"""What every store promises about the log: order, identity, conditions and erasure."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from everhold.core.entries import (
    BODY_VERSION,
    AddressBound,
    Attachment,
    Began,
    BranchedFrom,
    Changed,
    ChatLocation,
    Ended,
    EntryDraft,
    EntryKind,
    Heard,
    MemoryNameSet,
    Noted,
    OperationsUndone,
    Said,
    SessionTitled,
    SettingChosen,
    Thought,
)
from everhold.errors import Conflict, InvalidRequest, LeaseLost, NotFound, Refused
from everhold.ports.store import (
    PAGE_BYTES,
    BudgetSpend,
    CitedEntry,
    CommitResult,
    SessionOpening,
    StateNamespace,
    StateWrite,
    Step,
)
from everhold.testing.contracts.store_scenario import (
    StoreScenario,
    get_heard_text,
    make_heard,
    make_own_draft,
    store_promise,
)


class StoreLogContract:
    # -- order

    @store_promise
    async def test_seq_is_gapless_under_concurrent_commits(self, scenario: StoreScenario) -> None:
        await scenario.open_session("t")
        await asyncio.gather(*[scenario.commit_heard(f"m{n}", session="st"[n % 2], wake="") for n in range(200)])
        for session in "st":
            entries = await scenario.store.list_entries(session)
            assert [entry.seq for entry in entries] == list(range(1, 101))
            assert (await scenario.store.get_session(session)).last_seq == 100

    @store_promise
    async def test_each_session_keeps_the_order_of_its_commits(self, scenario: StoreScenario) -> None:
        await asyncio.gather(*[scenario.commit_heard(f"m{n}", wake="") for n in range(100)])
        assert await scenario.read_texts() == [f"m{n}" for n in range(100)]

    @store_promise
    async def test_the_feed_is_in_commit_order_across_sessions(self, scenario: StoreScenario) -> None:
        await scenario.open_session("t")
        done = [await scenario.commit(make_heard(), session=session) for session in "sttss"]
        feed = await scenario.store.read_feed()
        assert [(entry.session, entry.pos) for entry in feed] == [(one.session, one.pos) for one in done]
        assert [entry.pos for entry in feed] == sorted({entry.pos for entry in feed})
        assert await scenario.store.read_feed(after=feed[2].pos) == feed[3:]
        assert await scenario.store.read_feed(after=feed[0].pos, limit=2) == feed[1:3]

    @store_promise
    async def test_the_latest_time_is_not_that_of_the_newest_entry(self, scenario: StoreScenario) -> None:
        """The clock may have been set back."""
        assert await scenario.store.find_latest_time() == 0.0
        for at in (5.0, 9.0, 2.0):
            await scenario.commit(make_heard(), at=at)
        assert await scenario.store.find_latest_time() == 9.0

    @store_promise
    async def test_a_page_of_long_entries_ends_early_and_none_is_left_out(self, scenario: StoreScenario) -> None:
        long = "x" * (PAGE_BYTES // 3)
        for number in range(7):
            await scenario.commit_heard(f"{number}{long}", wake="")
        await scenario.commit_heard("7" + "\U0001f98a" * PAGE_BYTES, wake="")
        await scenario.commit_heard("8", wake="")
        by_seq, by_pos, sizes = [], [], []
        after = 0
        while page := await scenario.store.read_log("s", after=after):
            by_seq += [get_heard_text(entry)[0] for entry in page]
            after = page[-1].seq
            sizes.append(len(page))
            assert page.has_more or page[-1].seq == 9
        after = 0
        while page := await scenario.store.read_feed(after=after):
            by_pos += [get_heard_text(entry)[0] for entry in page]
            after = page[-1].pos
        assert by_seq == by_pos == list("012345678")
        assert sizes == [3, 3, 2, 1], "one entry is in a page however long it is"
        assert [entry.seq for entry in await scenario.store.read_log("s", after=8, limit=5)] == [9]
        assert not (await scenario.store.read_log("s", after=8, limit=5)).has_more
        assert (await scenario.store.read_log("s", limit=1)).has_more

    @store_promise
    async def test_the_newest_compressions_of_all_sessions_are_listed_first(self, scenario: StoreScenario) -> None:
        await scenario.open_session("t")
        assert await scenario.store.list_compressions(limit=5) == []
        made = []
        for session in "sts":
            op = await scenario.commit_turn(session=session)
            made.append((session, await scenario.commit_compression(op, session=session)))
        found = await scenario.store.list_compressions(limit=2)
        assert [(entry.session, entry.op) for entry in found] == made[:0:-1]
        assert len(await scenario.store.list_compressions(limit=9)) == 3

    @store_promise
    async def test_notes_are_read_without_the_entries_between_them(self, scenario: StoreScenario) -> None:
        await scenario.open_session("t")
        await scenario.commit_heard()
        await scenario.commit(Noted(text="a"))
        await scenario.commit(Noted(text="b"), session="t")
        await scenario.commit_heard()
        await scenario.erase_entries(2)
        notes = await scenario.store.list_notes()
        assert [(entry.session, entry.kind) for entry in notes] == [("s", "noted"), ("t", "noted"), ("s", "erased")]
        assert notes[0].body is None
        assert await scenario.store.list_notes(after=notes[0].pos, limit=1) == notes[1:2]

    @store_promise
    async def test_a_change_of_several_entries_is_complete_and_in_order(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        done = await scenario.commit(Noted(text="a"), Noted(text="b"), Noted(text="c"))
        assert done.seqs == (2, 3, 4)
        entries = await scenario.store.list_entries("s", after=1)
        assert [entry.body for entry in entries] == [Noted(text="a"), Noted(text="b"), Noted(text="c")]
        assert entries[-1].pos == done.pos

    @store_promise
    async def test_an_entry_survives_a_write_and_a_read(self, scenario: StoreScenario) -> None:
        body = Heard(
            origin=ChatLocation(platform="p", account="a", chat="c", thread="t", message="m"),
            text="x\x00y \u202eright to left \u200b zero \U0001f9d1\u200d\U0001f680",
            attachments=(Attachment(blob="b", name="n", media="m", size=3),),
        )
        await scenario.commit(EntryDraft(body=body, author="person:ada", dedup="d"), at=12.5)
        entry = await scenario.store.get_entry("s", 1)
        assert (entry.session, entry.seq, entry.kind, entry.op) == ("s", 1, EntryKind.HEARD, None)
        assert (entry.author, entry.at, entry.version, entry.dedup) == ("person:ada", 12.5, BODY_VERSION, "d")
        assert entry.body == body
        assert len(entry.digest) == 32

    @store_promise
    async def test_entries_are_read_by_range_kind_and_limit(self, scenario: StoreScenario) -> None:
        await scenario.commit(make_heard("1"), Noted(text="2"), make_heard("3"), Noted(text="4"), make_heard("5"))

        async def read(**wanted: object) -> list[int]:
            return [entry.seq for entry in await scenario.store.list_entries("s", **wanted)]  # type: ignore[arg-type]

        assert await read(after=2) == [3, 4, 5]
        assert await read(after=1, upto=4) == [2, 3, 4]
        assert await read(kinds=(EntryKind.NOTED,)) == [2, 4]
        assert await read(kinds=(EntryKind.HEARD,), after=1, limit=1) == [3]
        assert await read(upto=0) == []

    @store_promise
    async def test_cited_entries_are_read_with_their_agents(self, scenario: StoreScenario) -> None:
        await scenario.commit(Noted(text="1"), Noted(text="2"))
        await scenario.commit(Noted(text="3"), session="t", opens=SessionOpening(agent="aide", address="test:t"))
        await scenario.erase_entries(2)
        one, two = await scenario.store.get_entry("s", 1), await scenario.store.get_entry("s", 2)
        three = await scenario.store.get_entry("t", 1)
        found = await scenario.store.get_cited_entries([("t", 1), ("s", 2), ("s", 1), ("s", 99), ("nobody's", 1)])
        assert found == {
            ("s", 1): CitedEntry(agent="main", entry=one),
            ("s", 2): CitedEntry(agent="main", entry=two),
            ("t", 1): CitedEntry(agent="aide", entry=three),
        }
        assert found["s", 2].entry.body is None
        assert await scenario.store.get_cited_entries([]) == {}

    @store_promise
    async def test_a_cited_entry_reports_whether_its_turn_is_undone(self, scenario: StoreScenario) -> None:
        async def undone() -> list[int]:
            cited = await scenario.store.get_cited_entries(
                [("s", entry.seq) for entry in await scenario.store.list_entries("s")]
            )
            return sorted(seq for (_, seq), it in cited.items() if it.undone)

        stays = await scenario.commit_heard("stays", wake="")
        first = await scenario.begin_operation(stays)
        steered, waits = await scenario.commit_heard("steered", wake=""), await scenario.commit_heard("waits", wake="")
        await scenario.take_messages(first, steered)
        to = ChatLocation(platform="p", account="a", chat="c")
        said, noted = (
            EntryDraft(body=it, author="agent:main", op=first) for it in (Said(text="1", to=to), Noted(text="2"))
        )
        answer, _ = (await scenario.commit(said, noted, op=first)).seqs
        await scenario.end_operation(first)
        second = await scenario.begin_operation(waits)
        assert await undone() == []
        await scenario.end_operation(second)
        await scenario.commit_change(OperationsUndone(ops=(second,)))
        assert await undone() == [waits]  # heard while the first turn ran, and not part of it
        await scenario.commit_change(OperationsUndone(ops=(first,), again=True))
        assert await undone() == [waits, answer]
        third = await scenario.begin_operation(stays, steered)
        assert await undone() == [waits, answer]
        await scenario.end_operation(third)
        await scenario.commit_change(OperationsUndone(ops=(third,)))
        assert await undone() == [stays, steered, waits, answer]

    @store_promise
    async def test_equal_bodies_have_different_digests(self, scenario: StoreScenario) -> None:
        await scenario.commit(Noted(text="same"), Noted(text="same"))
        one, two = await scenario.store.list_entries("s")
        assert one.digest != two.digest

    # -- unknown sessions and names

    @store_promise
    async def test_an_unknown_session_raises_not_found(self, scenario: StoreScenario) -> None:
        with pytest.raises(NotFound):
            await scenario.commit_heard(session="nobody")
        with pytest.raises(NotFound):
            await scenario.store.get_session("nobody")
        with pytest.raises(NotFound):
            await scenario.store.get_entry("s", 1)
        assert await scenario.store.list_entries("nobody") == []
        assert await scenario.store.get_cursor("turn", "nobody") is None

    @store_promise
    async def test_an_invalid_text_finds_no_session(self, scenario: StoreScenario) -> None:
        store, odd = scenario.store, "\udcff"
        await scenario.commit_heard()
        reads = (
            store.find_sessions,
            store.get_session,
            store.get_session_snapshot,
            store.get_session_head,
            store.resolve_address,
            store.get_bound_session,
            store.list_entries,
            store.read_replies,
            store.list_pending,
            store.list_receipts,
            store.get_blob,
        )
        for read in reads:
            with pytest.raises(InvalidRequest):
                await read(odd)

    # -- refused changes

    @store_promise
    async def test_a_lone_surrogate_fails_its_own_change_only(self, scenario: StoreScenario) -> None:
        done = await asyncio.gather(
            *[scenario.commit_heard(text) for text in ("one", "bad \ud800", "nul \x00", "two")], return_exceptions=True
        )
        assert isinstance(done[1], Refused)
        assert await scenario.read_texts() == ["one", "nul \x00", "two"]

    @store_promise
    async def test_a_refused_change_writes_nothing(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard("first")
        with pytest.raises(Conflict):
            await scenario.commit(
                make_heard("never"),
                seen=0,
                wakeups=(),
                spends=(BudgetSpend(budget="p", day="d", usd=1.0),),
                blobs=(b"never",),
                state_writes=(StateWrite(namespace=StateNamespace.SCHEDULE, key="n", value="v", version=0),),
            )
        with pytest.raises(Conflict):
            await scenario.commit(make_heard("never"), Began(type="turn", takes=(99,)), blobs=(b"never",))
        assert await scenario.read_texts() == ["first"]
        assert (await scenario.store.get_spend("p", "d")).usd == 0
        assert await scenario.store.get_blob(hashlib.sha256(b"never").hexdigest()) is None
        assert await scenario.store.list_state_records() == []
        assert await scenario.commit_heard("second") == 2

    @store_promise
    async def test_a_cancelled_caller_does_not_undo_its_commit(self, scenario: StoreScenario) -> None:
        task = asyncio.ensure_future(scenario.commit_heard("kept", dedup="k"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await scenario.commit_heard("next")
        assert (await scenario.read_texts())[-1] == "next"

    # -- identity

    @store_promise
    async def test_a_repeated_message_is_a_duplicate_and_appends_nothing(self, scenario: StoreScenario) -> None:
        first = await scenario.commit(EntryDraft(body=make_heard("hi"), author="person:ada", dedup="k"))
        again = await scenario.commit(
            EntryDraft(body=make_heard("hi"), author="person:ada", dedup="k"), Noted(text="no")
        )
        assert not first.duplicate
        assert (again.duplicate, again.differs) == (True, False)
        assert (again.session, again.seqs, again.pos) == ("s", first.seqs, first.pos)
        assert (await scenario.store.get_session("s")).last_seq == 1

    @store_promise
    async def test_a_duplicate_names_the_session_of_the_first_message(self, scenario: StoreScenario) -> None:
        await scenario.open_session("t")
        await scenario.commit_heard("hi", dedup="k")
        done = await scenario.commit(EntryDraft(body=make_heard("hi"), author="person:ada", dedup="k"), session="t")
        assert (done.session, done.seqs, done.duplicate) == ("s", (1,), True)
        assert await scenario.store.list_entries("t") == []

    @store_promise
    async def test_the_same_key_with_other_content_is_detected(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard("hi", dedup="k")
        other = await scenario.commit(EntryDraft(body=make_heard("something else"), author="person:ada", dedup="k"))
        assert (other.duplicate, other.differs) == (True, True)
        files = Heard(origin=ChatLocation(platform="test"), text="hi", attachments=(Attachment(blob="b"),))
        assert (await scenario.commit(EntryDraft(body=files, author="person:ada", dedup="k"))).differs
        assert await scenario.read_texts() == ["hi"]

    @store_promise
    async def test_an_edit_has_its_own_key_and_is_new(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard("helo", dedup="p:c:1:message:")
        await scenario.commit_heard("hello", dedup="p:c:1:message:2")
        assert await scenario.read_texts() == ["helo", "hello"]

    @store_promise
    async def test_a_redelivered_erased_message_is_a_duplicate(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard("secret", dedup="k")
        await scenario.erase_entries(1)
        again = await scenario.commit(EntryDraft(body=make_heard("secret"), author="person:ada", dedup="k"))
        assert (again.duplicate, again.differs) == (True, False)
        assert (await scenario.store.get_session("s")).last_seq == 2

    @store_promise
    async def test_a_shuffled_triple_delivery_is_heard_once(self, scenario: StoreScenario) -> None:
        order = [n for start in range(0, 20, 5) for n in (start + 2, start, start + 1, start + 4, start + 3) * 3]
        await asyncio.gather(*[scenario.commit_heard(f"m{n}", dedup=f"k{n}", wake="") for n in order])
        texts = await scenario.read_texts()
        assert texts == list(dict.fromkeys(f"m{n}" for n in order))

    # -- conditions

    @store_promise
    async def test_a_change_is_refused_when_the_session_has_grown(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard()
        await scenario.commit(Noted(text="fine"), seen=1)
        with pytest.raises(Conflict):
            await scenario.commit(Noted(text="late"), seen=1)

    @store_promise
    async def test_a_change_is_refused_when_the_context_has_changed(self, scenario: StoreScenario) -> None:
        op = await scenario.commit_turn()
        await scenario.commit(Noted(text="fine"), generation=0)
        await scenario.commit_change(OperationsUndone(ops=(op,)))
        with pytest.raises(Conflict):
            await scenario.commit(Noted(text="late"), generation=0)
        done = await scenario.commit(Noted(text="fine"), generation=1)
        assert done.generation == 1

    # -- sessions and addresses

    @store_promise
    async def test_a_session_is_created_once_and_its_address_is_bound_to_it(self, scenario: StoreScenario) -> None:
        done = await scenario.open_session("n", address="chat:1", at=5.0)
        assert done.session == "n"
        assert await scenario.store.resolve_address("chat:1") == "n"
        session = await scenario.store.get_session("n")
        assert (session.agent, session.address, session.created, session.last_seq) == ("main", "chat:1", 5.0, 0)
        with pytest.raises(Conflict):
            await scenario.open_session("n", address="chat:2")
        with pytest.raises(Conflict):
            await scenario.open_session("m", address="chat:1")
        with pytest.raises(NotFound):
            await scenario.store.get_session("m")
        assert await scenario.store.resolve_address("chat:2") is None

    @store_promise
    async def test_of_two_concurrent_openings_of_an_address_one_succeeds(self, scenario: StoreScenario) -> None:
        done = await asyncio.gather(
            scenario.open_session("a", address="chat:1"),
            scenario.open_session("b", address="chat:1"),
            return_exceptions=True,
        )
        assert sorted(type(one).__name__ for one in done) == ["CommitResult", "Conflict"]
        (opened,) = [one.session for one in done if isinstance(one, CommitResult)]
        assert await scenario.store.resolve_address("chat:1") == opened

    @store_promise
    async def test_an_address_moves_only_from_its_expected_session(self, scenario: StoreScenario) -> None:
        await scenario.open_session("t")
        with pytest.raises(Conflict):
            await scenario.commit_change(AddressBound(address="test:s"), session="t")
        with pytest.raises(Conflict):
            await scenario.commit_change(AddressBound(address="test:s", previous="x"), session="t")
        await scenario.commit_change(AddressBound(address="test:s", previous="s"), session="t")
        assert await scenario.store.resolve_address("test:s") == "t"
        await scenario.commit_change(AddressBound(address="new:1"), session="t")
        assert await scenario.store.resolve_address("new:1") == "t"
        with pytest.raises(Conflict):
            await scenario.commit_change(AddressBound(address="new:1"), session="s")
        assert (await scenario.store.get_session("t")).last_seq == 2

    @store_promise
    async def test_a_branch_opens_without_an_address_and_gets_it_by_a_binding(self, scenario: StoreScenario) -> None:
        await scenario.commit_turn()
        with pytest.raises(NotFound):
            await scenario.open_session("b", parent="nobody", parent_at=1)
        await scenario.open_session("b", address="test:s", parent="s", parent_at=3, bind=False)
        assert await scenario.store.resolve_address("test:s") == "s"
        await scenario.commit_change(BranchedFrom(parent="s", at=3), session="b")
        await scenario.commit_change(AddressBound(address="test:s", previous="s"), session="b")
        branch = await scenario.store.get_session("b")
        assert (branch.parent, branch.parent_at, branch.address) == ("s", 3, "test:s")
        assert await scenario.store.resolve_address("test:s") == "b"

    @store_promise
    async def test_the_branches_of_a_session_are_listed(self, scenario: StoreScenario) -> None:
        await scenario.open_session("b2", parent="s", parent_at=0)
        await scenario.open_session("b1", parent="s", parent_at=0)
        await scenario.open_session("c", parent="b1", parent_at=0)
        assert [one.id for one in await scenario.store.list_branches("s")] == ["b1", "b2"]
        assert await scenario.store.list_branches("c") == []

    @store_promise
    async def test_an_address_shows_its_session_and_title(self, scenario: StoreScenario) -> None:
        assert await scenario.store.get_bound_session("test:s") == ("s", "")
        await scenario.commit_change(SessionTitled(title="Garden"))
        assert await scenario.store.get_bound_session("test:s") == ("s", "Garden")
        assert await scenario.store.get_bound_session("nowhere") is None

    @store_promise
    async def test_titles_memory_names_and_choices_are_computed_from_the_log(self, scenario: StoreScenario) -> None:
        await scenario.commit_change(SessionTitled(title="one"))
        await scenario.commit_change(SessionTitled(title="Two"))
        await scenario.commit_change(MemoryNameSet(memory="honcho", name="s-1"))
        await scenario.commit_change(MemoryNameSet(memory="mem0", name="s-2"))
        await scenario.commit_change(SettingChosen(setting="model", value="big"))
        await scenario.commit_change(SettingChosen(setting="speed", value="fast"))
        await scenario.commit_change(SettingChosen(setting="model"))
        session = await scenario.store.get_session("s")
        assert session.title == "Two"
        assert session.names == {"honcho": "s-1", "mem0": "s-2"}
        assert session.choices == {"speed": "fast"}

    @store_promise
    async def test_an_erased_title_or_name_is_not_used(self, scenario: StoreScenario) -> None:
        for change in (
            SessionTitled(title="one"),
            MemoryNameSet(memory="honcho", name="one-1"),
            MemoryNameSet(memory="mem0", name="s-1"),
        ):
            await scenario.commit_change(change)
        await scenario.commit_change(MemoryNameSet(memory="mem0", name="s-2"))
        await scenario.commit_change(SessionTitled(title="two"))
        await scenario.erase_entries(2, 4, 5)
        session = await scenario.store.get_session("s")
        assert session.title == "one"
        assert session.names == {"mem0": "s-1"}

    @store_promise
    async def test_sessions_are_listed_page_by_page(self, scenario: StoreScenario) -> None:
        for id in ("a", "b", "c"):
            await scenario.open_session(id)
        assert [one.id for one in await scenario.store.list_sessions(limit=2)] == ["a", "b"]
        assert [one.id for one in await scenario.store.list_sessions(limit=2, after="b")] == ["c", "s"]

    @store_promise
    async def test_the_sessions_of_a_person_are_listed_newest_first(self, scenario: StoreScenario) -> None:
        def said(author: str) -> EntryDraft:
            return EntryDraft(body=make_heard("hello"), author=author)

        await scenario.open_session("a1")
        titled = EntryDraft(body=Changed(change=SessionTitled(title="x")), author="system")
        await scenario.commit(titled, said("person:ada"), said("person:bob"), session="a1")
        await scenario.open_session("b1")
        await scenario.commit(said("person:bob"), said("person:ada"), session="b1")
        await scenario.open_session("a2", parent="b1", parent_at=1)
        branched = Changed(change=BranchedFrom(parent="b1", at=1))
        await scenario.commit(EntryDraft(body=branched, author="person:ada"), said("person:bob"), session="a2")

        async def begun(**how: Any) -> list[str]:
            return [one.id for one in await scenario.store.list_sessions_begun_by(authors=("person:ada",), **how)]

        assert await begun() == ["a2", "a1"]
        assert await begun(address="test:b1") == ["b1", "a2", "a1"]
        assert (await begun(limit=1), await begun(after="a2")) == (["a2"], ["a1"])
        assert (await begun(agent="main"), await begun(agent="other")) == (["a2", "a1"], [])

    @store_promise
    async def test_a_session_is_found_by_id_prefix_title_address_or_as_the_last(self, scenario: StoreScenario) -> None:
        await scenario.open_session("abc-1", address="chat:1")
        await scenario.open_session("abc-2", address="chat:2")
        await scenario.commit_change(SessionTitled(title="Garden plans"), session="abc-1")
        await scenario.commit_heard(session="abc-2")
        find = scenario.store.find_sessions
        assert await find("abc-1") == ["abc-1"]
        assert sorted(await find("abc")) == ["abc-1", "abc-2"]
        assert await find("garden plans") == ["abc-1"]
        assert await find("chat:2") == ["abc-2"]
        assert await find("last") == ["abc-2"]
        await scenario.commit_change(SessionTitled(title="Garden plans, again"), session="abc-1")
        assert await find("last") == ["abc-2"], "the session of the last message"
        assert await find("nothing like it") == []
        assert await find("") == []

    # -- erasing

    @store_promise
    async def test_an_erasure_removes_the_body_and_keeps_the_entry(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard("secret")
        await scenario.commit_heard("public")
        before = await scenario.store.get_entry("s", 1)
        assert await scenario.store.count_erasures("s") == 0
        done = await scenario.erase_entries(1)
        after = await scenario.store.get_entry("s", 1)
        assert after.body is None
        assert (after.seq, after.kind, after.digest, after.author) == (1, EntryKind.HEARD, before.digest, before.author)
        assert get_heard_text(await scenario.store.get_entry("s", 2)) == "public"
        assert done.generation == 1
        assert [await scenario.store.count_erasures(session) for session in ("s", "nowhere")] == [1, 0]

    @store_promise
    async def test_an_erasure_needs_its_own_entry_and_existing_targets(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard("secret")
        with pytest.raises(InvalidRequest):
            await scenario.commit(Noted(text="quietly"), erase=(1,))
        with pytest.raises(NotFound):
            await scenario.erase_entries(9)
        with pytest.raises(NotFound):
            await scenario.erase_entries(2)
        assert get_heard_text(await scenario.store.get_entry("s", 1)) == "secret"

    @store_promise
    async def test_an_erased_message_is_not_pending(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard("secret")
        await scenario.commit_heard("public")
        await scenario.erase_entries(1)
        assert await scenario.list_pending_seqs() == [2]
        op = await scenario.begin_operation(2)
        await scenario.end_operation(op, "released")
        assert await scenario.list_pending_seqs() == [2]

    @store_promise
    async def test_an_erased_title_is_removed_from_the_session(self, scenario: StoreScenario) -> None:
        await scenario.commit_change(SessionTitled(title="before"))
        seq = await scenario.commit_change(SessionTitled(title="secret"))
        await scenario.erase_entries(seq)
        assert (await scenario.store.get_session("s")).title == "before"

    @store_promise
    async def test_an_erasure_can_end_a_running_operation_that_read_the_entry(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard("secret")
        claim = await scenario.claim_cursor()
        op = await scenario.begin_operation(1, claim=claim)
        ended = EntryDraft(body=Ended(outcome="erased"), author="person:ada", op=op)
        await scenario.erase_entries(1)
        await scenario.commit(ended, step=Step.ERASE)
        (operation,) = await scenario.store.list_operations("s")
        assert (operation.state, operation.last) == ("erased", 4)
        with pytest.raises(LeaseLost):
            await scenario.commit(EntryDraft(body=Thought(text="t"), author="agent:main", op=op), op=op, claim=claim)

    @store_promise
    async def test_an_erasure_in_an_ancestor_changes_the_generation_of_a_branch(self, scenario: StoreScenario) -> None:
        await scenario.commit_heard("secret")
        await scenario.open_session("child", parent="s", parent_at=1)
        await scenario.open_session("grandchild", parent="child", parent_at=0)
        op = await scenario.commit_turn()
        await scenario.commit_change(OperationsUndone(ops=(op,)))
        assert [await scenario.read_generation(one) for one in ("s", "child", "grandchild")] == [1, 0, 0]
        await scenario.erase_entries(1)
        assert [await scenario.read_generation(one) for one in ("s", "child", "grandchild")] == [2, 1, 1]
        with pytest.raises(Conflict):
            await scenario.commit(Noted(text="late"), session="grandchild", generation=0)
        done = await scenario.commit(Noted(text="fine"), session="grandchild", generation=1)
        assert done.generation == 1

    @store_promise
    async def test_own_operation_refers_to_the_operation_begun_in_the_same_change(
        self, scenario: StoreScenario
    ) -> None:
        await scenario.commit_heard()
        said = make_own_draft(Said(text="x", to=ChatLocation(platform="test")))
        await scenario.commit(
            said, make_own_draft(Began(type="command", takes=(1,), consumer="commands")), make_own_draft(Ended())
        )
        assert [entry.op for entry in await scenario.store.list_entries("s", after=1)] == [3, 3, 3]
        with pytest.raises(InvalidRequest):
            await scenario.commit(make_own_draft(Noted(text="whose?")))
