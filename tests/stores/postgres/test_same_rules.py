"""Random changes are applied to SQLite and to PostgreSQL, and every read must agree.

SQLite has its rules in SQL, for speed. PostgreSQL uses those in `core`. So this test holds both to the same rules.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec import structs

from everhold.core.entries import (
    OWN_OPERATION,
    AddressBound,
    Began,
    Changed,
    ChatLocation,
    Compressed,
    ContextReset,
    Ended,
    EntryDraft,
    EntryPinned,
    Erased,
    MemoryNameSet,
    Noted,
    OperationsUndone,
    Said,
    SessionTitled,
    SettingChosen,
    StopRequested,
    Thought,
    Took,
)
from everhold.errors import EverholdError
from everhold.ports.store import (
    BudgetSpend,
    Change,
    Claim,
    CursorUpdate,
    DeadLetter,
    DeliveryItem,
    FirstSeen,
    InFlightBatch,
    Receipt,
    RetryDelay,
    SessionOpening,
    StateNamespace,
    StateWrite,
    Step,
    Store,
    Wakeup,
)
from everhold.stores.postgres import PostgresStore
from everhold.stores.sqlite import SqliteStore
from everhold.testing.contracts.store_scenario import make_heard
from everhold.testing.postgres_server import PostgresTestServer
from everhold.testing.seeded_random import SeededRandom

SESSIONS = ("s", "t", "b")
"""`b` is a branch of `s`."""
CONSUMERS = ("turn", "platform", "memory:m")
numbers = st.integers(0, 12)
SKIPS = ((), ("memory:*",))
sessions = st.sampled_from(SESSIONS)
types = st.sampled_from(["turn", "compression", "job"])
consumers = st.sampled_from(CONSUMERS)
waits = st.sampled_from([0.0, 0.0, 5.0, 50.0])
wakeups = st.one_of(
    st.none(),
    st.builds(
        Wakeup,
        consumer=consumers,
        wait=st.builds(RetryDelay, seconds=waits, mandatory=st.booleans()),
        start=st.one_of(st.none(), st.just(0)),
        owner=st.sampled_from(["", "", "me"]),
        lease=st.just(30.0),
        waits_for=st.sampled_from(["", "", "", "x"]),
    ),
)
updates = st.builds(
    CursorUpdate,
    processed_seq=st.one_of(st.none(), st.integers(0, 1)),
    clear_in_flight=st.booleans(),
    attempts=st.one_of(st.none(), st.integers(0, 2)),
    error=st.one_of(st.none(), st.sampled_from(["", "down"])),
    wait=st.one_of(
        st.none(), st.builds(RetryDelay, seconds=waits, mandatory=st.booleans(), waits_for=st.sampled_from(["", "y"]))
    ),
    idle_at=st.one_of(st.none(), numbers),
    release=st.booleans(),
)
actions = st.one_of(
    st.tuples(st.just("hear"), sessions, st.sampled_from([None, "k1", "k2", "k3"]), wakeups, st.booleans()),
    st.tuples(st.just("hear"), sessions, st.none(), wakeups, st.just(True)),
    st.tuples(
        st.just("begin"),
        sessions,
        st.sampled_from(["turn", "compression", "job"]),
        st.sets(numbers, max_size=2),
        numbers,
    ),
    st.tuples(st.just("step"), sessions, st.sampled_from(["think", "say", "take", "note"]), numbers, numbers),
    st.tuples(st.just("end"), sessions, st.sampled_from(["done", "released", "erased", "stopped"]), numbers),
    st.tuples(st.just("change"), sessions, st.integers(0, 9), numbers),
    st.tuples(st.just("erase"), sessions, st.sets(st.integers(1, 8), min_size=1, max_size=2)),
    st.tuples(
        st.just("claim"), st.sampled_from(["me", "you"]), st.integers(1, 3), st.sampled_from([(), ("memory:*",)])
    ),
    st.tuples(st.just("update"), numbers, updates, st.booleans()),
    st.tuples(st.just("send"), numbers, st.integers(1, 6)),
    st.tuples(st.just("letter"), sessions, st.integers(1, 4), st.sampled_from(["dead", "replaying"])),
    st.tuples(st.just("replay"), numbers),
    st.tuples(st.just("state"), st.sampled_from(["k1", "k2"]), st.sampled_from(["a", None]), st.integers(-1, 1)),
    st.tuples(st.just("spend"), st.sampled_from(["agent:main", "person:p"]), st.integers(1, 9)),
    st.tuples(st.just("meet"), st.sampled_from(["i1", "i2"])),
    st.tuples(st.just("time"), st.sampled_from([1.0, 10.0, 60.0])),
    st.tuples(st.just("renew"), st.just("me")),
    st.tuples(st.just("retry"), st.sampled_from([(), ("turn",)])),
)


class StorePlayer:
    """Plays actions on one store. What an action refers to is looked up in the store itself."""

    def __init__(self, store: Store, clock: list[float]) -> None:
        self.store = store
        self.clock = clock
        self.claims: list[Claim] = []

    async def play(self, action: tuple[Any, ...]) -> Any:
        method: Callable[..., Awaitable[Any]] = getattr(self, action[0])
        try:
            return normalize(await method(*action[1:]))
        except EverholdError as error:
            return type(error).__name__

    async def commit(self, session: str, *drafts: EntryDraft, step: Step = Step.NOTE, **rest: Any) -> Any:
        done = await self.store.commit(Change(step=step, session=session, at=self.clock[0], entries=drafts, **rest))
        self.claims.extend(done.claims)
        return done

    async def open(self) -> None:
        for session in SESSIONS:
            parent = "s" if session == "b" else ""
            opens = SessionOpening(agent="main", address=f"test:{session}", parent=parent)
            await self.commit(session, step=Step.ACCEPT, opens=opens)

    def pick_claim(self, number: int) -> Claim | None:
        return [None, *self.claims][number % (len(self.claims) + 1)]

    async def find_running(self, session: str, number: int) -> int:
        running = await self.store.list_operations(session, states=("running",))
        return running[number % len(running)].op if running else 99

    async def hear(self, session: str, dedup: str | None, wakeup: Wakeup | None, asks: bool) -> Any:
        draft = EntryDraft(body=make_heard("hi", asks=asks), author="person:ada", dedup=dedup)
        return await self.commit(session, draft, step=Step.ACCEPT, wakeups=() if wakeup is None else (wakeup,))

    async def begin(self, session: str, type: Any, takes: set[int], number: int) -> Any:
        body = Began(type=type, takes=tuple(sorted(takes)), consumer="turn")
        own = EntryDraft(body=Noted(text="n"), author="agent:main", op=OWN_OPERATION)
        claim = self.pick_claim(number)
        return await self.commit(session, EntryDraft(body=body, author="agent:main"), own, claim=claim)

    async def step(self, session: str, kind: str, number: int, other: int) -> Any:
        op = await self.find_running(session, number)
        bodies: dict[str, Any] = {
            "think": Thought(text="t"),
            "say": Said(text="s", to=ChatLocation(platform="test")),
            "take": Took(takes=(other,)),
            "note": Noted(text="n"),
        }
        draft = EntryDraft(body=bodies[kind], author="agent:main", op=op)
        claim = self.pick_claim(other)
        return await self.commit(session, draft, op=op, claim=claim, pause=kind == "note", records=(b"%d" % number,))

    async def end(self, session: str, outcome: Any, number: int) -> Any:
        op = await self.find_running(session, number)
        drafts = [EntryDraft(body=Ended(outcome=outcome), author="agent:main", op=op)]
        if number % 3 == 0:
            drafts.insert(0, EntryDraft(body=Compressed(summary="c", covers=number), author="system", op=op))
        return await self.commit(session, *drafts, op=op)

    async def change(self, session: str, kind: int, number: int) -> Any:
        operations = await self.store.list_operations(session)
        op = operations[number % len(operations)].op if operations else 99
        body: Any = (
            ContextReset(),
            EntryPinned(seq=number),
            OperationsUndone(ops=(op,)),
            OperationsUndone(ops=(op,), again=True),
            StopRequested(op=op),
            SessionTitled(title=f"title {number % 2}"),
            MemoryNameSet(memory="m", name="" if number % 3 == 0 else f"n{number}"),
            SettingChosen(setting="model", value="" if number % 3 == 0 else "big"),
            AddressBound(address=f"test:{SESSIONS[number % 3]}", previous=SESSIONS[number % 3]),
            AddressBound(address=f"new:{number % 2}"),
        )[kind]
        generation = number // 4 if number % 5 == 0 else None
        return await self.commit(
            session, EntryDraft(body=Changed(change=body), author="person:ada"), generation=generation
        )

    async def erase(self, session: str, seqs: set[int]) -> Any:
        named = tuple(sorted(seqs))
        draft = EntryDraft(body=Erased(seqs=named), author="person:ada")
        return await self.commit(session, draft, step=Step.ERASE, erase=named)

    async def claim(self, owner: str, limit: int, skip: tuple[str, ...]) -> Any:
        found = await self.store.claim_cursors(owner=owner, lease=30.0, limit=limit, skip=skip)
        self.claims.extend(found)
        return found

    async def update(self, number: int, update: CursorUpdate, grows: bool) -> Any:
        claim = self.pick_claim(number)
        session = "s" if claim is None else claim.session
        drafts = (EntryDraft(body=Noted(text="n"), author="system"),) if grows else ()
        return await self.commit(session, *drafts, claim=claim, cursor=update)

    async def send(self, number: int, seq: int) -> Any:
        claim = self.pick_claim(number)
        session = "s" if claim is None else claim.session
        last, _ = await self.store.get_session_head(session)
        seq = min(seq, max(last, 1))
        batch = InFlightBatch(items=(DeliveryItem(seq=seq, key=f"k{seq}"),), upto=seq, digest="d")
        receipt = Receipt(consumer="platform", session=session, seq=seq, key="k", in_doubt=seq % 2 == 0)
        return await self.commit(session, claim=claim, cursor=CursorUpdate(in_flight=batch), receipts=(receipt,))

    async def letter(self, session: str, seq: int, state: Any) -> Any:
        letter = DeadLetter(consumer="turn", session=session, seq=seq, reason="no", state=state)
        return await self.commit(session, dead_letters=(letter,))

    async def replay(self, number: int) -> Any:
        letters = await self.store.list_dead_letters(state="")
        chosen = [letters[number % len(letters)].id] if letters else []
        if number % 2:
            return await self.commit("", replayed=tuple(chosen))
        return await self.store.replay_dead_letters(chosen)

    async def state(self, key: str, value: str | None, by: int) -> Any:
        namespace = StateNamespace.CHAT_HALT if key == "k1" else StateNamespace.SCHEDULE
        record = await self.store.get_state_record(namespace, key)
        version = max(0, (0 if record is None else record.version) + by)
        return await self.commit(
            "", state_writes=(StateWrite(namespace=namespace, key=key, value=value, version=version),)
        )

    async def spend(self, budget: str, tokens: int) -> Any:
        return await self.commit("", spends=(BudgetSpend(budget=budget, day="d", tokens=tokens),))

    async def meet(self, identity: str) -> Any:
        return await self.commit("", first_seen=(FirstSeen(identity=identity, person=f"p_{identity}"),))

    async def time(self, seconds: float) -> None:
        """The clock of both stores has moved already."""

    async def renew(self, owner: str) -> Any:
        return await self.store.renew_leases(self.claims, owner=owner, lease=20.0)

    async def retry(self, held: tuple[str, ...]) -> Any:
        return await self.store.retry_now(held=held)

    async def read_everything(self) -> dict[str, Any]:
        """Every read of the port that says something about the rows."""
        store = self.store
        found: dict[str, Any] = {
            "sessions": await store.list_sessions(),
            "feed": await store.read_feed(),
            "notes": await store.list_notes(),
            "compressions": await store.list_compressions(limit=9),
            "waiting": sorted(await store.list_waiting(), key=lambda it: (it.author, it.address)),
            "letters": await store.list_dead_letters(state=""),
            "states": await store.list_state_records(),
            "state version": await store.get_state_version(),
            "spends": await store.list_spends("", "d"),
            "due": await store.get_next_due(),
            "backlogs": await store.list_backlogs("memory:"),
            "doubt": await store.count_receipts_in_doubt(),
            "people": await store.list_people_events(),
            "cursors": await store.list_cursors(),
            "restarted": await store.list_restarted_turns(starts=2),
            "titles": [sorted(await store.find_sessions(name)) for name in ("TITLE 1", "last", "s", "test:t")],
            "blobs": [await store.get_blob(digest) is not None for digest in BLOBS],
            "addresses": [await store.resolve_address(address) for address in ("test:s", "test:t", "new:0", "new:1")],
        }
        for session in SESSIONS:
            log = await store.list_entries(session)
            cited = await store.get_cited_entries([(session, entry.seq) for entry in log])
            snapshot = await store.get_session_snapshot(session)
            found[session] = {
                "log": log,
                "operations": await store.list_operations(session),
                "pending": await store.list_pending(session),
                "scan": await store.scan_pending(session),
                "receipts": await store.list_receipts(session),
                "head": await store.get_session_head(session),
                "replies": await store.read_replies(session),
                "undone": sorted(place for place, it in cited.items() if it.undone),
                "snapshot": structs.replace(snapshot, people=snapshot.people.epoch),
            }
        found["contradictions"] = await store.verify()
        return {name: normalize(value) for name, value in found.items()}


BLOBS = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(13)]


def normalize(value: Any) -> Any:
    """Remove what may differ: positions, salted digests, and the ids of dead letters."""
    if isinstance(value, dict):
        return {key: normalize(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [normalize(item) for item in value]
    if hasattr(value, "__struct_fields__"):
        name = type(value).__name__
        hidden = {"pos", "digest", "salt"} | ({"id"} if name == "DeadLetter" else set())
        return (
            name,
            {field: normalize(getattr(value, field)) for field in value.__struct_fields__ if field not in hidden},
        )
    return value


async def compare_stores(url: str, path: Path, script: list[tuple[Any, ...]]) -> None:
    clock = [1_000.0]
    sqlite = SqliteStore.open(path, chance=SeededRandom(), now=lambda: clock[0], inline=True, synchronous="OFF")
    postgres = await PostgresStore.open(url, chance=SeededRandom(), now=lambda: clock[0], writers=2, readers=2)
    try:
        players = [StorePlayer(sqlite, clock), StorePlayer(postgres, clock)]
        for player in players:
            await player.open()
        for number, action in enumerate(script):
            if action[0] == "time":
                clock[0] += action[1]
            ours, theirs = [await player.play(action) for player in players]
            assert ours == theirs, (number, action)
        one, other = [await player.read_everything() for player in players]
        for name in one:
            assert one[name] == other[name], name
        # A batch in flight that the log does not contain yet is a contradiction, and the only one.
        assert not [line for line in one["contradictions"] if "in flight" not in line and "is at" not in line]
    finally:
        await sqlite.close()
        await postgres.close()


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(script=st.lists(actions, min_size=5, max_size=40))
def test_both_stores_follow_the_same_rules(postgres_server: PostgresTestServer, script: list[tuple[Any, ...]]) -> None:
    with postgres_server.lend_store_database() as url, tempfile.TemporaryDirectory(prefix="everhold-same-") as home:
        asyncio.run(compare_stores(url, Path(home) / "log.db", script))
