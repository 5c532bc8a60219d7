"""A committed entry is found at once by its audience. A retracted entry is no longer found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import apsw
import msgspec
import pytest

from everhold.core.entries import AGENT_ITSELF, ChatCommand, Entry, Heard, Noted, Stamp, TextPiece
from everhold.memories.builtin import (
    MemoryIndex,
    index as index_module,
    static_embeddings,
    vector_cache as shelf_module,
)
from everhold.memories.builtin.indexing import IndexedBatch, IndexWriter
from everhold.ports.memory import ErasureTarget, MemoryBatch, MemoryQuery
from tests.memories.builtin.index_scenario import ADA, PLACE, IndexScenario


@pytest.fixture
async def scenario(tmp_path: Path) -> AsyncIterator[IndexScenario]:
    scenario = IndexScenario(tmp_path)
    yield scenario
    await scenario.close()


# -- found -------------------------------------------------------------------------------------------------------------


async def test_a_committed_entry_is_found_at_once_with_its_source(scenario: IndexScenario) -> None:
    await scenario.say("The weather was dull.")
    seq = await scenario.say("My cat is called Schrödinger.", name="Ada L", at=77.0)
    (hit, *_) = await scenario.hits("what is the cat's name?")
    assert (hit.text, hit.session, hit.seq, hit.person) == ("My cat is called Schrödinger.", "s", seq, "ada")
    assert (hit.kind, hit.author, hit.name, hit.at) == ("heard", "person:ada", "Ada L", 77.0)


FORWARD = TextPiece(source="forwarded", by="test:bob", name="Bob", text="The vault code is 4711.")


async def test_forwarded_text_is_found_and_never_as_the_senders_words(scenario: IndexScenario) -> None:
    agent = TextPiece(source="quoted", by=AGENT_ITSELF, text="Which vault code?")
    seq = await scenario.say("Look at this!", pieces=(FORWARD, agent))
    found = {hit.text: hit for hit in await scenario.hits("vault code")}
    assert found.keys() == {"Look at this!", FORWARD.text}, "the agent's own words have their own entry"
    hit, own = found[FORWARD.text], found["Look at this!"]
    assert (hit.text, hit.seq, hit.author, hit.origin) == (FORWARD.text, seq, "forward:test:bob", "forward:test:bob")
    assert (own.author, own.origin) == ("person:ada", "")
    assert await scenario.find("vault code", audience=("person:eve",)) == []
    assert await scenario.index.find_entries_with_words(scenario.log, "vault", limit=9) == [("s", seq)]
    await scenario.reopen_index()
    assert (await scenario.find("vault code"))[0] == FORWARD.text


async def test_erasing_a_message_erases_what_it_forwarded(scenario: IndexScenario) -> None:
    await scenario.say("Before.")
    seq = await scenario.say("Look at this!", pieces=(FORWARD, msgspec.structs.replace(FORWARD, text="quux is open")))
    await scenario.say("After.")
    assert (await scenario.find("quux"))[0] == "quux is open"
    await scenario.erase_entries(seq)
    assert sorted(await scenario.find("vault quux look")) == ["After.", "Before."]
    await scenario.provider().forget(ErasureTarget(identities=("ada",)))
    await scenario.index.close()
    assert b"4711" not in scenario.files()
    assert b"quux" not in scenario.files()


async def test_words_are_found_in_other_forms_and_without_accents(scenario: IndexScenario) -> None:
    await scenario.say("We were running along the Zürich lakeshore.")
    await scenario.say("Nothing to see.")
    assert (await scenario.find("runs in zurich"))[0].startswith("We were running")


async def test_embeddings_find_text_without_a_common_word(scenario: IndexScenario) -> None:
    await scenario.say("The meeting is at noon.")
    await scenario.say("I adopted a puppy last week.")
    await scenario.say("Quarterly revenue fell.")
    assert (await scenario.find("which dog do they have"))[0].startswith("I adopted a puppy")


@pytest.mark.parametrize(
    "said, asked",
    [
        ("我昨天在东京买了一只猫", "东京"),
        ("我昨天在东京买了一只猫", "猫"),
        ("私の誕生日は五月です", "誕生日はいつ"),
        ("ฉันชอบกินข้าวผัด", "ข้าวผัด"),
        ("저는 서울에서 살아요", "서울"),
        ("Жду поезд на вокзале", "вокзале"),
        ("Meet at the 🏖️ café", "cafe"),
    ],
)
async def test_text_in_other_scripts_is_found(scenario: IndexScenario, said: str, asked: str) -> None:
    for filler in ("全然違う話です", "完全不同的内容", "unrelated", "다른 이야기"):
        await scenario.say(filler)
    await scenario.say(said)
    assert (await scenario.find(asked))[0] == said


async def test_a_short_answer_is_found_by_the_question_before_it(scenario: IndexScenario) -> None:
    await scenario.say("Where did you spend the summer holidays?", who="bob")
    await scenario.say("In Porto!")
    await scenario.say("Let us talk about taxes.", session="t")
    assert "In Porto!" in (await scenario.find("summer holidays"))[:2]


async def test_a_passage_in_a_megabyte_of_text_is_found(scenario: IndexScenario) -> None:
    filler = "lorem ipsum dolor sit amet " * 20_000
    await scenario.say(f"{filler}The vault opens with opal-seventeen. {filler}")
    (hit,) = await scenario.hits("opal seventeen vault")
    assert "opal-seventeen" in hit.text
    assert len(hit.text) < 3_000
    assert hit.size > 1_000_000


async def test_a_search_can_be_limited_to_one_session(scenario: IndexScenario) -> None:
    await scenario.say("apples here", session="a")
    await scenario.say("apples there", session="b")
    assert await scenario.find("apples", session="b") == ["apples there"]


@pytest.mark.parametrize("text", ["", "   ", '"', "a AND (b OR", "NEAR(x)", "self:x *", "\x00", "the of and", "?!"])
async def test_no_question_is_parsed_as_a_query_expression(scenario: IndexScenario, text: str) -> None:
    await scenario.say("a b x the of and")
    await scenario.find(text)


async def test_commands_and_entries_without_an_audience_are_not_found(scenario: IndexScenario) -> None:
    await scenario.say("open the session")
    await scenario.say("hidden words", audience=())
    stamp = Stamp(person="ada", audience=ADA)
    await scenario.commit(Heard(origin=PLACE, text="/title hidden", command=ChatCommand(name="title"), stamp=stamp))
    assert await scenario.find("hidden words title") in ([], ["open the session"])


async def test_a_hit_names_its_kind_and_its_author(scenario: IndexScenario) -> None:
    await scenario.say("the marmot sleeps")
    await scenario.say("so the marmot hibernates", who="agent")
    await scenario.note("marmots sleep in winter")
    stamp = Stamp(person="ada", audience=ADA)
    await scenario.commit(Heard(origin=PLACE, text="marmot for sale", sender="spam", bot=True, stamp=stamp))
    await scenario.commit(Noted(text="a page says marmots fly", origin="tool:web", stamp=stamp))
    query = MemoryQuery(text="marmot", agent="main", session="s", name="n", audience=ADA, person="ada")
    found = {one.text: (one.kind, one.author, one.origin) for one in await scenario.provider().find(query)}
    assert found == {
        "the marmot sleeps": ("message", "person:ada", ""),
        "so the marmot hibernates": ("reply", "agent:main", ""),
        "marmots sleep in winter": ("note", "person:ada", ""),
        "marmot for sale": ("message", "person:ada", "bot:spam"),
        "a page says marmots fly": ("note", "person:ada", "tool:web"),
    }


async def test_a_query_without_content_words_finds_nothing(scenario: IndexScenario) -> None:
    await scenario.say("the one that is not")
    query = MemoryQuery(text="What about that one?", agent="main", session="t", name="n", audience=ADA, person="ada")
    assert await scenario.provider().find(query) == ()


async def test_entries_in_the_context_are_not_found(scenario: IndexScenario) -> None:
    first = await scenario.say("the kettle is red")
    second = await scenario.say("the kettle is new")
    away = await scenario.say("the kettle is loud", session="t")
    query = MemoryQuery(text="kettle", agent="main", session="s", name="n", audience=ADA, person="ada")

    async def found(*seen: int) -> set[str]:
        asked = msgspec.structs.replace(query, seen=frozenset(seen))
        return {one.text for one in await scenario.provider().find(asked)}

    assert await found(first) == {"the kettle is new", "the kettle is loud"}
    assert await found(first, second) == {
        "the kettle is loud"
    }  # of session s only, although other sessions have the same seq
    assert away == first


async def test_the_number_of_hits_is_limited(scenario: IndexScenario) -> None:
    for number in range(20):
        await scenario.say(f"kettle number {number} " + "is very loud indeed " * 20, session=f"s{number}")
    query = MemoryQuery(text="kettle", agent="main", session="x", name="n", audience=ADA, person="ada", tokens=500)
    assert 5 <= len(await scenario.provider().find(query)) <= 8
    assert len(await scenario.provider().find(msgspec.structs.replace(query, tokens=0))) == 20


async def test_pending_entries_are_indexed_when_a_search_could_find_them(scenario: IndexScenario) -> None:
    """Entries stay pending in memory and are written together, unless a search could find one."""
    await scenario.say("nothing to do with it")
    await scenario.find("kettle")
    taken: list[int] = []
    take = scenario.index._index_writer.index_entries

    def count(entries: Sequence[Entry], agents: Mapping[str, str], position: int) -> IndexedBatch:
        taken.append(len(entries))
        return take(entries, agents, position)

    scenario.index._index_writer.index_entries = count  # type: ignore[method-assign]
    await scenario.say("not for ada", session="b", audience=("person:bob",))
    await scenario.find("kettle")
    assert taken == []
    assert await scenario.find("not for", audience=("person:bob",)) == ["not for ada"]
    await scenario.say("the kettle is blue")
    assert (await scenario.find("kettle"))[0] == "the kettle is blue"
    assert taken == [1, 1]
    for number in range(index_module.BATCH_ENTRIES):
        await scenario.say(f"not for ada {number}", session="b", audience=("person:bob",))
    await scenario.find("kettle")
    assert taken == [1, 1, index_module.BATCH_ENTRIES]


async def test_an_unrestricted_search_finds_all_entries_newest_first(scenario: IndexScenario) -> None:
    first = await scenario.say("the dentist comes on Tuesdays")
    other = await scenario.say("dentist", session="other/b", audience=("person:bob",))
    hidden = await scenario.say("Tuesday is for the dentist", session="b", audience=())
    long = await scenario.say("dentist " + "filler " * 400 + "tuesday", session="c")
    index, log = scenario.index, scenario.log
    assert await index.find_entries_with_words(log, "TUESDAY, dentist!", limit=9) == [
        ("c", long),
        ("b", hidden),
        ("s", first),
    ]
    assert await index.find_entries_with_words(log, "dentist", limit=3) == [
        ("c", long),
        ("b", hidden),
        ("other/b", other),
    ]
    assert await index.find_entries_with_words(log, "rhinoceros dentist", limit=3) == []
    assert await index.find_entries_with_words(log, "?!", limit=3) == []
    chinese = await scenario.say("我昨天在东京买了一只猫")
    assert await index.find_entries_with_words(log, "东京", limit=3) == [("s", chinese)]
    assert {hit.text for hit in await index.search(log, "tuesday", agent=None, audience=None)} >= {
        "the dentist comes on Tuesdays",
        "Tuesday is for the dentist",
    }


async def test_the_provider_finds_entries_with_their_source_and_stores_nothing(scenario: IndexScenario) -> None:
    seq = await scenario.note("Ada's locker is 42")
    builtin = scenario.provider()
    query = MemoryQuery(text="locker", agent="main", session="s", name="n", audience=ADA, person="ada")
    (found,) = await builtin.find(query)
    assert (found.text, found.session, found.seq, found.key) == ("Ada's locker is 42", "s", seq, f"s:{seq}:note")
    assert await builtin.store(MemoryBatch(name="n", items=())) == {}
    assert [one.text for one in await builtin.search("locker", agent="main", audience=ADA)] == ["Ada's locker is 42"]
    assert await scenario.provider("other").find(query) == ()
    assert await scenario.provider("other").search("locker", agent="main", audience=ADA) == ()


# -- no longer found ---------------------------------------------------------------------------------------------------


async def test_erased_text_leaves_no_byte_in_the_file(scenario: IndexScenario) -> None:
    await scenario.say("short one before")
    seq = await scenario.say("xylophonecanary lives at quartzlane", name="Zebulon")
    await scenario.say("short one after")
    assert len(await scenario.find("xylophonecanary")) > 0
    await scenario.erase_entries(seq)
    assert "xylophonecanary lives at quartzlane" not in await scenario.find("xylophonecanary quartzlane")
    left = scenario.files().lower()  # while it is in use, without a restart
    for canary in (b"xylophonecanary", b"xylophon", b"quartzlane", b"quartzlan", b"zebulon"):
        assert canary not in left


@pytest.mark.parametrize("by", ["itself", "another process"])
async def test_after_an_erasure_the_cache_equals_the_file(scenario: IndexScenario, by: str) -> None:
    first = await scenario.say("which harbour does the ferry leave from?", who="bob")
    await scenario.say("from the old one")
    await scenario.say("the ferry is late", session="t")
    other = MemoryIndex(scenario.path, inline=True, embeddings="table")

    async def found(index: MemoryIndex) -> list[tuple[str, float]]:
        hits = await index.search(scenario.log, "ferry harbour", agent="main", audience=ADA)
        return [(hit.text, hit.score) for hit in hits]

    before = await found(scenario.index)
    await scenario.erase_entries(first)
    if by == "another process":
        await other.catch_up(scenario.log)
    after = await found(scenario.index)
    rebuilt = MemoryIndex(scenario.path, inline=True, embeddings="table")
    assert after == await found(rebuilt)
    assert dict(after)["from the old one"] < dict(before)["from the old one"]
    await other.close()
    await rebuilt.close()


async def test_an_undone_turn_is_found_only_if_it_is_retried(scenario: IndexScenario) -> None:
    heard = await scenario.say("penguins are nice")
    op = await scenario.begin_operation(heard)
    await scenario.say("Penguins indeed", who="agent", op=op)
    await scenario.end_operation(op)
    assert len(await scenario.find("penguins")) == 2
    await scenario.undo(op, again=True)
    assert await scenario.find("penguins") == ["penguins are nice"]
    op = await scenario.begin_operation(heard)
    await scenario.end_operation(op)
    await scenario.undo(op)
    assert await scenario.find("penguins") == []


async def test_a_newer_fact_replaces_the_older_one(scenario: IndexScenario) -> None:
    first = await scenario.note("favourite colour is red", fact="colour")
    second = await scenario.note("favourite colour is blue", action="replace", fact="colour", supersedes=first)
    assert await scenario.find("favourite colour") == ["favourite colour is blue"]
    await scenario.note("", action="remove", fact="colour", supersedes=second)
    assert await scenario.find("favourite colour") == []


# -- derived -----------------------------------------------------------------------------------------------------------


async def contents(scenario: IndexScenario) -> list[object]:
    db = apsw.Connection(str(scenario.path))
    items = db.execute("select session, seq, kind, author, name, state from items order by pos").fetchall()
    chunks = db.execute("select pos, self from chunks order by pos, id").fetchall()
    vectors = db.execute(
        "select c.pos, v.vector, v.pieces from vectors v join chunks c on c.id = v.chunk order by c.pos, c.id"
    ).fetchall()
    places = db.execute(
        "select i.pos, b.pos, p.chunks, a.author, p.flags, p.at from places p join items i on i.first = p.first"
        " left join items b on b.first = p.before join authors a on a.id = p.author order by 1"
    ).fetchall()
    names = db.execute("select name, author from names order by 1, 2").fetchall()
    scopes = db.execute("select agent, audience, items from scopes where items > 0 order by 1, 2").fetchall()
    db.close()
    return [items, chunks, vectors, places, names, scopes]


async def test_a_rebuilt_index_equals_an_incrementally_built_one(scenario: IndexScenario) -> None:
    first = await scenario.say("one red apple", name="Ada")
    await scenario.find("x")
    middle = await scenario.say("and a pear", who="bob", name="Bob")
    await scenario.say("both are fruit")
    await scenario.find("x")
    old = await scenario.note("pears are green", fact="pear")
    newer = await scenario.note("pears are yellow", action="replace", fact="pear")
    op = await scenario.begin_operation(first)
    await scenario.say("indeed", who="agent", op=op)
    await scenario.end_operation(op)
    await scenario.undo(op)
    await scenario.say("第二 " * 500, session="t")
    await scenario.find("x")
    await scenario.erase_entries(middle, newer)
    await scenario.find("x")
    bit_by_bit = await contents(scenario)
    await scenario.index.rebuild()
    await scenario.find("x")
    assert await contents(scenario) == bit_by_bit
    assert await scenario.find("pears", limit=1) == ["pears are green"]
    assert old


@pytest.mark.parametrize("damage", [b"", b"not a database at all" * 400, None])
async def test_a_damaged_file_is_rebuilt(scenario: IndexScenario, damage: bytes | None) -> None:
    await scenario.say("something to find again")
    await scenario.find("something")
    await scenario.index.close()
    if damage is None:
        whole = bytearray(scenario.path.read_bytes())
        whole[4096:] = b"\xff" * (len(whole) - 4096)
        scenario.path.write_bytes(whole)
    else:
        scenario.path.write_bytes(damage)
    scenario.index = MemoryIndex(scenario.path, inline=True, embeddings=scenario.embeddings)
    assert await scenario.find("something") == ["something to find again"]


async def test_an_index_of_another_version_is_rebuilt(scenario: IndexScenario) -> None:
    await scenario.say("something to find again")
    await scenario.find("something")
    with scenario.index._writer as db:
        db.execute("update meta set value = 'older' where key = 'version'")
        db.execute("drop table places")  # as an older version might have created it
    await scenario.reopen_index()
    assert await scenario.find("something") == ["something to find again"]


async def test_an_index_of_another_log_is_rebuilt(tmp_path: Path) -> None:
    first, second = IndexScenario(tmp_path / "a"), IndexScenario(tmp_path / "b")
    await first.say("only in the first")
    await first.say("also in the first")
    await first.find("first")
    await first.close()
    await second.say("only in the second")
    await second.index.close()
    (tmp_path / "b" / "index.db").write_bytes((tmp_path / "a" / "index.db").read_bytes())
    second.index = MemoryIndex(second.path, inline=True)
    assert await second.find("only first second") == ["only in the second"]
    await second.close()


async def test_vectors_of_another_table_are_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = IndexScenario(tmp_path)
    await scenario.say("I adopted a puppy last week.")
    assert await scenario.find("which dog") == ["I adopted a puppy last week."]
    with apsw.Connection(str(scenario.path)) as db:
        db.execute("update vectors set vector = zeroblob(length(vector))")
    monkeypatch.setattr(static_embeddings, "TABLE_VERSION", static_embeddings.TABLE_VERSION + 1)
    await scenario.reopen_index()
    assert await scenario.find("which dog") == ["I adopted a puppy last week."]
    await scenario.close()


async def test_entries_that_cannot_be_indexed_are_searched_directly(
    scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scenario.say("indexed teapot")
    await scenario.find("teapot")
    await scenario.say("a teapot that came later")
    await scenario.say("a teapot of somebody else", session="b", audience=("person:bob",))

    def full(*_: object) -> None:
        raise apsw.FullError("no room")

    monkeypatch.setattr(IndexWriter, "index_entries", full)
    assert set(await scenario.find("teapot")) == {"indexed teapot", "a teapot that came later"}
    await scenario.erase_entries(2)
    assert await scenario.find("teapot") == ["indexed teapot"]  # an entry that was read before its erasure is not found


async def test_the_least_recently_searched_scope_leaves_memory_first(
    scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = [(f"person:p{number}",) for number in range(4)]
    for number, audience in enumerate(people):
        await scenario.say(f"kettle {number}", session=f"s{number}", audience=audience)
        assert await scenario.find("kettle", audience=audience) == [f"kettle {number}"]
    kept = scenario.index._embeddings._get_scope_cache()._scopes
    assert len(kept) == 4
    monkeypatch.setattr(shelf_module, "MAX_CACHE_BYTES", 0)
    await scenario.say("kettle 4", session="s4", audience=("person:p4",))
    assert await scenario.find("kettle", audience=("person:p4",)) == ["kettle 4"]
    assert len(kept) == 1
    assert await scenario.find("kettle", audience=people[0]) == ["kettle 0"]


async def test_a_large_scope_is_loaded_before_the_first_search(
    scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(70):
        await scenario.say(f"crate number {number}")
    while await scenario.index.catch_up(scenario.log):
        pass
    monkeypatch.setattr(index_module, "MAX_INLINE_CHUNKS", 30)
    await scenario.index.warm_cache()
    (shelf,) = scenario.index._embeddings._get_scope_cache()._scopes.values()
    assert shelf.used == 60
    await scenario.say("the kettle is blue")
    assert (await scenario.find("kettle"))[0] == "the kettle is blue"
    assert shelf.used == 71


async def test_a_search_during_writes_finds_committed_entries_and_no_erased_ones(tmp_path: Path) -> None:
    """With threads, as in production: searches on the loop, writes beside it."""
    scenario = IndexScenario(tmp_path)
    await scenario.index.close()
    scenario.index = MemoryIndex(scenario.path, embeddings="table")
    said: dict[int, str] = {}
    erased: set[str] = set()

    async def write(number: int) -> None:
        text = f"canary {number} sings in cage{number}"
        said[await scenario.say(text, session="s")] = text
        if number % 4 == 0:
            seq, victim = next(iter(said.items()))
            del said[seq]
            await scenario.erase_entries(seq)
            erased.add(victim)

    async def search(number: int) -> None:
        gone = set(erased)
        found = set(await scenario.find(f"canary cage{number}", limit=200))
        assert not found & gone

    for low in range(0, 80, 8):
        await asyncio.gather(*(work(number) for number in range(low, low + 8) for work in (write, search)))
    assert set(await scenario.find("canary", limit=200)) == set(said.values())
    assert len(said) == 60
    await scenario.close()


async def test_with_many_unindexed_entries_the_newest_of_this_session_are_found(
    scenario: IndexScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "MAX_UNINDEXED_ENTRIES", 5)
    for number in range(20):
        await scenario.say(f"message {number}")
    await scenario.say("the kettle is blue")
    assert (await scenario.find("kettle", here="s"))[0] == "the kettle is blue"
