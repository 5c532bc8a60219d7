"""What every store promises about the log: order, identity, conditions, and what was erased."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from everhold.core.entries import (
    VERSION,
    AddressBound,
    Attachment,
    Began,
    BranchedFrom,
    Changed,
    Draft,
    Ended,
    Heard,
    Kind,
    MemoryNameSet,
    Noted,
    OperationsUndone,
    Place,
    Said,
    SessionTitled,
    SettingChosen,
    Thought,
)
from everhold.errors import Conflict, LeaseLost, Misuse, NotFound, Refused
from everhold.ports.store import Cited, Opening, Spend, StateNamespace, StateWrite, Step
from everhold.testing.contracts.scene import Scene, heard, own, promise, text_of


class LogContract:
    # -- order

    @promise
    async def test_seq_is_gapless_under_concurrent_commits(self, scene: Scene) -> None:
        await scene.open("t")
        await asyncio.gather(*[scene.hear(f"m{n}", session="st"[n % 2], wake="") for n in range(200)])
        for session in "st":
            entries = await scene.store.list_entries(session)
            assert [entry.seq for entry in entries] == list(range(1, 101))
            assert (await scene.store.get_session(session)).last_seq == 100

    @promise
    async def test_each_session_keeps_the_order_in_which_commits_were_asked_for(self, scene: Scene) -> None:
        await asyncio.gather(*[scene.hear(f"m{n}", wake="") for n in range(100)])
        assert await scene.texts() == [f"m{n}" for n in range(100)]

    @promise
    async def test_the_feed_is_in_commit_order_across_sessions(self, scene: Scene) -> None:
        await scene.open("t")
        done = [await scene.commit(heard(), session=session) for session in "sttss"]
        feed = await scene.store.read_feed()
        assert [(entry.session, entry.pos) for entry in feed] == [(one.session, one.pos) for one in done]
        assert [entry.pos for entry in feed] == sorted({entry.pos for entry in feed})
        assert await scene.store.read_feed(after=feed[2].pos) == feed[3:]
        assert await scene.store.read_feed(after=feed[0].pos, limit=2) == feed[1:3]

    @promise
    async def test_the_newest_folds_of_all_sessions_come_first(self, scene: Scene) -> None:
        await scene.open("t")
        assert await scene.store.list_compressions(limit=5) == []
        made = []
        for session in "sts":
            op = await scene.turn(session=session)
            made.append((session, await scene.fold(op, session=session)))
        found = await scene.store.list_compressions(limit=2)
        assert [(entry.session, entry.op) for entry in found] == made[:0:-1]
        assert len(await scene.store.list_compressions(limit=9)) == 3

    @promise
    async def test_notes_are_read_without_what_lies_between_them(self, scene: Scene) -> None:
        await scene.open("t")
        await scene.hear()
        await scene.commit(Noted(text="a"))
        await scene.commit(Noted(text="b"), session="t")
        await scene.hear()
        await scene.erase(2)
        notes = await scene.store.list_notes()
        assert [(entry.session, entry.kind) for entry in notes] == [("s", "noted"), ("t", "noted"), ("s", "erased")]
        assert notes[0].body is None
        assert await scene.store.list_notes(after=notes[0].pos, limit=1) == notes[1:2]

    @promise
    async def test_a_change_of_several_entries_is_whole_and_in_order(self, scene: Scene) -> None:
        await scene.hear()
        done = await scene.commit(Noted(text="a"), Noted(text="b"), Noted(text="c"))
        assert done.seqs == (2, 3, 4)
        entries = await scene.store.list_entries("s", after=1)
        assert [entry.body for entry in entries] == [Noted(text="a"), Noted(text="b"), Noted(text="c")]
        assert entries[-1].pos == done.pos

    @promise
    async def test_an_entry_reads_as_it_was_written(self, scene: Scene) -> None:
        body = Heard(
            origin=Place(platform="p", account="a", chat="c", thread="t", message="m"),
            text="x\x00y \u202eright to left \u200b zero \U0001f9d1\u200d\U0001f680",
            attachments=(Attachment(blob="b", name="n", media="m", size=3),),
        )
        await scene.commit(Draft(body=body, author="person:ada", dedup="d"), at=12.5)
        entry = await scene.store.get_entry("s", 1)
        assert (entry.session, entry.seq, entry.kind, entry.op) == ("s", 1, Kind.HEARD, None)
        assert (entry.author, entry.at, entry.version, entry.dedup) == ("person:ada", 12.5, VERSION, "d")
        assert entry.body == body
        assert len(entry.digest) == 32

    @promise
    async def test_entries_are_read_by_range_kind_and_limit(self, scene: Scene) -> None:
        await scene.commit(heard("1"), Noted(text="2"), heard("3"), Noted(text="4"), heard("5"))

        async def read(**wanted: object) -> list[int]:
            return [entry.seq for entry in await scene.store.list_entries("s", **wanted)]  # type: ignore[arg-type]

        assert await read(after=2) == [3, 4, 5]
        assert await read(after=1, upto=4) == [2, 3, 4]
        assert await read(kinds=(Kind.NOTED,)) == [2, 4]
        assert await read(kinds=(Kind.HEARD,), after=1, limit=1) == [3]
        assert await read(upto=0) == []

    @promise
    async def test_places_are_read_together_with_whose_they_are(self, scene: Scene) -> None:
        await scene.commit(Noted(text="1"), Noted(text="2"))
        await scene.commit(Noted(text="3"), session="t", opens=Opening(agent="aide", address="test:t"))
        await scene.erase(2)
        one, two = await scene.store.get_entry("s", 1), await scene.store.get_entry("s", 2)
        three = await scene.store.get_entry("t", 1)
        found = await scene.store.get_cited_entries([("t", 1), ("s", 2), ("s", 1), ("s", 99), ("nobody's", 1)])
        assert found == {
            ("s", 1): Cited(agent="main", entry=one),
            ("s", 2): Cited(agent="main", entry=two),
            ("t", 1): Cited(agent="aide", entry=three),
        }
        assert found["s", 2].entry.body is None
        assert await scene.store.get_cited_entries([]) == {}

    @promise
    async def test_a_place_tells_whether_its_turn_is_undone(self, scene: Scene) -> None:
        async def undone() -> list[int]:
            cited = await scene.store.get_cited_entries(
                [("s", entry.seq) for entry in await scene.store.list_entries("s")]
            )
            return sorted(seq for (_, seq), it in cited.items() if it.undone)

        stays = await scene.hear("stays", wake="")
        first = await scene.begin(stays)
        steered, waits = await scene.hear("steered", wake=""), await scene.hear("waits", wake="")
        await scene.take(first, steered)
        to = Place(platform="p", account="a", chat="c")
        said, noted = (Draft(body=it, author="agent:main", op=first) for it in (Said(text="1", to=to), Noted(text="2")))
        answer, _ = (await scene.commit(said, noted, op=first)).seqs
        await scene.end(first)
        second = await scene.begin(waits)
        assert await undone() == []
        await scene.end(second)
        await scene.alter(OperationsUndone(ops=(second,)))
        assert await undone() == [waits]  # heard while the first one ran, and no part of it
        await scene.alter(OperationsUndone(ops=(first,), again=True))
        assert await undone() == [waits, answer]
        third = await scene.begin(stays, steered)
        assert await undone() == [waits, answer]
        await scene.end(third)
        await scene.alter(OperationsUndone(ops=(third,)))
        assert await undone() == [stays, steered, waits, answer]

    @promise
    async def test_equal_bodies_have_different_digests(self, scene: Scene) -> None:
        await scene.commit(Noted(text="same"), Noted(text="same"))
        one, two = await scene.store.list_entries("s")
        assert one.digest != two.digest

    # -- what is not there

    @promise
    async def test_an_unknown_session_is_said_to_be_unknown(self, scene: Scene) -> None:
        with pytest.raises(NotFound):
            await scene.hear(session="nobody")
        with pytest.raises(NotFound):
            await scene.store.get_session("nobody")
        with pytest.raises(NotFound):
            await scene.store.get_entry("s", 1)
        assert await scene.store.list_entries("nobody") == []
        assert await scene.store.get_cursor("turn", "nobody") is None

    @promise
    async def test_what_is_no_text_is_nobodys_name(self, scene: Scene) -> None:
        store, odd = scene.store, "\udcff"
        await scene.hear()
        reads = (
            store.find_sessions,
            store.get_session,
            store.get_session_snapshot,
            store.get_session_head,
            store.resolve_address,
            store.get_bound_session,
            store.list_entries,
            store.list_pending,
            store.get_person,
            store.list_identities,
            store.list_receipts,
            store.get_blob,
        )
        for read in reads:
            with pytest.raises(Misuse):
                await read(odd)

    # -- one bad change

    @promise
    async def test_a_lone_surrogate_fails_its_own_change_only(self, scene: Scene) -> None:
        done = await asyncio.gather(
            *[scene.hear(text) for text in ("one", "bad \ud800", "nul \x00", "two")], return_exceptions=True
        )
        assert isinstance(done[1], Refused)
        assert await scene.texts() == ["one", "nul \x00", "two"]

    @promise
    async def test_a_refused_change_leaves_nothing_behind(self, scene: Scene) -> None:
        await scene.hear("first")
        with pytest.raises(Conflict):
            await scene.commit(
                heard("never"),
                seen=0,
                wakeups=(),
                spends=(Spend(budget="p", day="d", usd=1.0),),
                blobs=(b"never",),
                state_writes=(StateWrite(namespace=StateNamespace.SCHEDULE, key="n", value="v", version=0),),
            )
        with pytest.raises(Conflict):
            await scene.commit(heard("never"), Began(type="turn", takes=(99,)), blobs=(b"never",))
        assert await scene.texts() == ["first"]
        assert (await scene.store.get_spend("p", "d")).usd == 0
        assert await scene.store.get_blob(hashlib.sha256(b"never").hexdigest()) is None
        assert await scene.store.list_state_records() == []
        assert await scene.hear("second") == 2

    @promise
    async def test_a_caller_who_gave_up_does_not_undo_what_was_committed(self, scene: Scene) -> None:
        task = asyncio.ensure_future(scene.hear("kept", dedup="k"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await scene.hear("next")
        assert (await scene.texts())[-1] == "next"

    # -- identity

    @promise
    async def test_the_same_message_again_is_a_duplicate_and_appends_nothing(self, scene: Scene) -> None:
        first = await scene.commit(Draft(body=heard("hi"), author="person:ada", dedup="k"))
        again = await scene.commit(Draft(body=heard("hi"), author="person:ada", dedup="k"), Noted(text="no"))
        assert not first.duplicate
        assert (again.duplicate, again.differs) == (True, False)
        assert (again.session, again.seqs, again.pos) == ("s", first.seqs, first.pos)
        assert (await scene.store.get_session("s")).last_seq == 1

    @promise
    async def test_a_duplicate_names_the_session_where_the_first_one_stands(self, scene: Scene) -> None:
        await scene.open("t")
        await scene.hear("hi", dedup="k")
        done = await scene.commit(Draft(body=heard("hi"), author="person:ada", dedup="k"), session="t")
        assert (done.session, done.seqs, done.duplicate) == ("s", (1,), True)
        assert await scene.store.list_entries("t") == []

    @promise
    async def test_the_same_key_with_other_content_is_seen(self, scene: Scene) -> None:
        await scene.hear("hi", dedup="k")
        other = await scene.commit(Draft(body=heard("something else"), author="person:ada", dedup="k"))
        assert (other.duplicate, other.differs) == (True, True)
        files = Heard(origin=Place(platform="test"), text="hi", attachments=(Attachment(blob="b"),))
        assert (await scene.commit(Draft(body=files, author="person:ada", dedup="k"))).differs
        assert await scene.texts() == ["hi"]

    @promise
    async def test_an_edit_has_a_key_of_its_own_and_is_new(self, scene: Scene) -> None:
        await scene.hear("helo", dedup="p:c:1:message:")
        await scene.hear("hello", dedup="p:c:1:message:2")
        assert await scene.texts() == ["helo", "hello"]

    @promise
    async def test_a_redelivered_erased_message_is_a_duplicate(self, scene: Scene) -> None:
        await scene.hear("secret", dedup="k")
        await scene.erase(1)
        again = await scene.commit(Draft(body=heard("secret"), author="person:ada", dedup="k"))
        assert (again.duplicate, again.differs) == (True, False)
        assert (await scene.store.get_session("s")).last_seq == 2

    @promise
    async def test_three_times_shuffled_is_heard_once(self, scene: Scene) -> None:
        order = [n for start in range(0, 20, 5) for n in (start + 2, start, start + 1, start + 4, start + 3) * 3]
        await asyncio.gather(*[scene.hear(f"m{n}", dedup=f"k{n}", wake="") for n in order])
        texts = await scene.texts()
        assert texts == list(dict.fromkeys(f"m{n}" for n in order))

    # -- conditions

    @promise
    async def test_a_change_is_refused_when_the_session_has_grown(self, scene: Scene) -> None:
        await scene.hear()
        await scene.commit(Noted(text="fine"), seen=1)
        with pytest.raises(Conflict):
            await scene.commit(Noted(text="late"), seen=1)

    @promise
    async def test_a_change_is_refused_when_the_view_has_changed(self, scene: Scene) -> None:
        op = await scene.turn()
        await scene.commit(Noted(text="fine"), generation=0)
        await scene.alter(OperationsUndone(ops=(op,)))
        with pytest.raises(Conflict):
            await scene.commit(Noted(text="late"), generation=0)
        done = await scene.commit(Noted(text="fine"), generation=1)
        assert done.generation == 1

    # -- sessions and addresses

    @promise
    async def test_a_session_is_made_once_and_its_address_leads_to_it(self, scene: Scene) -> None:
        done = await scene.open("n", address="chat:1", at=5.0)
        assert done.session == "n"
        assert await scene.store.resolve_address("chat:1") == "n"
        session = await scene.store.get_session("n")
        assert (session.agent, session.address, session.created, session.last_seq) == ("main", "chat:1", 5.0, 0)
        with pytest.raises(Conflict):
            await scene.open("n", address="chat:2")
        with pytest.raises(Conflict):
            await scene.open("m", address="chat:1")
        with pytest.raises(NotFound):
            await scene.store.get_session("m")
        assert await scene.store.resolve_address("chat:2") is None

    @promise
    async def test_of_two_who_open_an_address_at_once_one_wins(self, scene: Scene) -> None:
        done = await asyncio.gather(
            scene.open("a", address="chat:1"), scene.open("b", address="chat:1"), return_exceptions=True
        )
        assert sorted(type(one).__name__ for one in done) == ["Committed", "Conflict"]
        assert await scene.store.resolve_address("chat:1") == "a"

    @promise
    async def test_an_address_moves_only_from_where_it_was_thought_to_lead(self, scene: Scene) -> None:
        await scene.open("t")
        with pytest.raises(Conflict):
            await scene.alter(AddressBound(address="test:s"), session="t")
        with pytest.raises(Conflict):
            await scene.alter(AddressBound(address="test:s", previous="x"), session="t")
        await scene.alter(AddressBound(address="test:s", previous="s"), session="t")
        assert await scene.store.resolve_address("test:s") == "t"
        await scene.alter(AddressBound(address="new:1"), session="t")
        assert await scene.store.resolve_address("new:1") == "t"
        with pytest.raises(Conflict):
            await scene.alter(AddressBound(address="new:1"), session="s")
        assert (await scene.store.get_session("t")).last_seq == 2

    @promise
    async def test_a_branch_opens_without_its_address_and_takes_it_with_a_bind(self, scene: Scene) -> None:
        await scene.turn()
        with pytest.raises(NotFound):
            await scene.open("b", parent="nobody", parent_at=1)
        await scene.open("b", address="test:s", parent="s", parent_at=3, bind=False)
        assert await scene.store.resolve_address("test:s") == "s"
        await scene.alter(BranchedFrom(parent="s", at=3), session="b")
        await scene.alter(AddressBound(address="test:s", previous="s"), session="b")
        branch = await scene.store.get_session("b")
        assert (branch.parent, branch.parent_at, branch.address) == ("s", 3, "test:s")
        assert await scene.store.resolve_address("test:s") == "b"

    @promise
    async def test_a_session_knows_its_branches(self, scene: Scene) -> None:
        await scene.open("b2", parent="s", parent_at=0)
        await scene.open("b1", parent="s", parent_at=0)
        await scene.open("c", parent="b1", parent_at=0)
        assert [one.id for one in await scene.store.list_branches("s")] == ["b1", "b2"]
        assert await scene.store.list_branches("c") == []

    @promise
    async def test_an_address_says_where_it_leads_and_under_which_title(self, scene: Scene) -> None:
        assert await scene.store.get_bound_session("test:s") == ("s", "")
        await scene.alter(SessionTitled(title="Garden"))
        assert await scene.store.get_bound_session("test:s") == ("s", "Garden")
        assert await scene.store.get_bound_session("nowhere") is None

    @promise
    async def test_titles_names_and_choices_follow_from_the_log(self, scene: Scene) -> None:
        await scene.alter(SessionTitled(title="one"))
        await scene.alter(SessionTitled(title="Two"))
        await scene.alter(MemoryNameSet(memory="honcho", name="s-1"))
        await scene.alter(MemoryNameSet(memory="mem0", name="s-2"))
        await scene.alter(SettingChosen(setting="model", value="big"))
        await scene.alter(SettingChosen(setting="speed", value="fast"))
        await scene.alter(SettingChosen(setting="model"))
        session = await scene.store.get_session("s")
        assert session.title == "Two"
        assert session.names == {"honcho": "s-1", "mem0": "s-2"}
        assert session.choices == {"speed": "fast"}

    @promise
    async def test_what_is_erased_names_nothing_any_more(self, scene: Scene) -> None:
        for change in (
            SessionTitled(title="one"),
            MemoryNameSet(memory="honcho", name="one-1"),
            MemoryNameSet(memory="mem0", name="s-1"),
        ):
            await scene.alter(change)
        await scene.alter(MemoryNameSet(memory="mem0", name="s-2"))
        await scene.alter(SessionTitled(title="two"))
        await scene.erase(2, 4, 5)
        session = await scene.store.get_session("s")
        assert session.title == "one"
        assert session.names == {"mem0": "s-1"}

    @promise
    async def test_sessions_are_listed_page_by_page(self, scene: Scene) -> None:
        for id in ("a", "b", "c"):
            await scene.open(id)
        assert [one.id for one in await scene.store.list_sessions(limit=2)] == ["a", "b"]
        assert [one.id for one in await scene.store.list_sessions(limit=2, after="b")] == ["c", "s"]

    @promise
    async def test_the_sessions_somebody_began_are_listed_newest_first(self, scene: Scene) -> None:
        def said(author: str) -> Draft:
            return Draft(body=heard("hello"), author=author)

        await scene.open("a1")
        titled = Draft(body=Changed(change=SessionTitled(title="x")), author="system")
        await scene.commit(titled, said("person:ada"), said("person:bob"), session="a1")
        await scene.open("b1")
        await scene.commit(said("person:bob"), said("person:ada"), session="b1")
        await scene.open("a2", parent="b1", parent_at=1)
        branched = Changed(change=BranchedFrom(parent="b1", at=1))
        await scene.commit(Draft(body=branched, author="person:ada"), said("person:bob"), session="a2")

        async def begun(**how: Any) -> list[str]:
            return [one.id for one in await scene.store.list_sessions_begun_by(author="person:ada", **how)]

        assert await begun() == ["a2", "a1"]
        assert await begun(address="test:b1") == ["b1", "a2", "a1"]
        assert (await begun(limit=1), await begun(after="a2")) == (["a2"], ["a1"])
        assert (await begun(agent="main"), await begun(agent="other")) == (["a2", "a1"], [])

    @promise
    async def test_a_session_is_found_by_id_prefix_title_address_or_as_the_last(self, scene: Scene) -> None:
        await scene.open("abc-1", address="chat:1")
        await scene.open("abc-2", address="chat:2")
        await scene.alter(SessionTitled(title="Garden plans"), session="abc-1")
        await scene.hear(session="abc-2")
        find = scene.store.find_sessions
        assert await find("abc-1") == ["abc-1"]
        assert sorted(await find("abc")) == ["abc-1", "abc-2"]
        assert await find("garden plans") == ["abc-1"]
        assert await find("chat:2") == ["abc-2"]
        assert await find("last") == ["abc-2"]
        await scene.alter(SessionTitled(title="Garden plans, again"), session="abc-1")
        assert await find("last") == ["abc-2"], "where somebody was heard last"
        assert await find("nothing like it") == []
        assert await find("") == []

    # -- erasing

    @promise
    async def test_erasing_takes_the_body_and_leaves_the_place(self, scene: Scene) -> None:
        await scene.hear("secret")
        await scene.hear("public")
        before = await scene.store.get_entry("s", 1)
        done = await scene.erase(1)
        after = await scene.store.get_entry("s", 1)
        assert after.body is None
        assert (after.seq, after.kind, after.digest, after.author) == (1, Kind.HEARD, before.digest, before.author)
        assert text_of(await scene.store.get_entry("s", 2)) == "public"
        assert done.generation == 1

    @promise
    async def test_erasing_must_say_so_in_the_log_and_speak_of_what_is_there(self, scene: Scene) -> None:
        await scene.hear("secret")
        with pytest.raises(Misuse):
            await scene.commit(Noted(text="quietly"), erase=(1,))
        with pytest.raises(NotFound):
            await scene.erase(9)
        with pytest.raises(NotFound):
            await scene.erase(2)
        assert text_of(await scene.store.get_entry("s", 1)) == "secret"

    @promise
    async def test_an_erased_message_asks_for_nothing_any_more(self, scene: Scene) -> None:
        await scene.hear("secret")
        await scene.hear("public")
        await scene.erase(1)
        assert await scene.pending() == [2]
        op = await scene.begin(2)
        await scene.end(op, "released")
        assert await scene.pending() == [2]

    @promise
    async def test_an_erased_title_is_gone_from_the_session_too(self, scene: Scene) -> None:
        await scene.alter(SessionTitled(title="before"))
        seq = await scene.alter(SessionTitled(title="secret"))
        await scene.erase(seq)
        assert (await scene.store.get_session("s")).title == "before"

    @promise
    async def test_erasing_may_end_a_running_operation_that_saw_it(self, scene: Scene) -> None:
        await scene.hear("secret")
        claim = await scene.claim()
        op = await scene.begin(1, claim=claim)
        ended = Draft(body=Ended(outcome="erased"), author="person:ada", op=op)
        await scene.erase(1)
        await scene.commit(ended, step=Step.ERASE)
        (operation,) = await scene.store.list_operations("s")
        assert (operation.state, operation.last) == ("erased", 4)
        with pytest.raises(LeaseLost):
            await scene.commit(Draft(body=Thought(text="t"), author="agent:main", op=op), op=op, claim=claim)

    @promise
    async def test_a_branch_sees_its_ancestors_erasures_in_its_generation(self, scene: Scene) -> None:
        await scene.hear("secret")
        await scene.open("child", parent="s", parent_at=1)
        await scene.open("grandchild", parent="child", parent_at=0)
        op = await scene.turn()
        await scene.alter(OperationsUndone(ops=(op,)))
        assert [await scene.generation(one) for one in ("s", "child", "grandchild")] == [1, 0, 0]
        await scene.erase(1)
        assert [await scene.generation(one) for one in ("s", "child", "grandchild")] == [2, 1, 1]
        with pytest.raises(Conflict):
            await scene.commit(Noted(text="late"), session="grandchild", generation=0)
        done = await scene.commit(Noted(text="fine"), session="grandchild", generation=1)
        assert done.generation == 1

    @promise
    async def test_own_stands_for_the_operation_begun_in_the_same_change(self, scene: Scene) -> None:
        await scene.hear()
        said = own(Said(text="x", to=Place(platform="test")))
        await scene.commit(said, own(Began(type="command", takes=(1,), consumer="commands")), own(Ended()))
        assert [entry.op for entry in await scene.store.list_entries("s", after=1)] == [3, 3, 3]
        with pytest.raises(Misuse):
            await scene.commit(own(Noted(text="whose?")))
