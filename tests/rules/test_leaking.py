"""P5: what one person, conversation or agent was told is not shown to another, whichever way it is asked for.

Every test plants a word and looks for it everywhere something is shown: to the model, on the platform, in search, in
reasons, in exports. `PLANTED` breaks the rules one by one; each of them must make a test here fail.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from everhold.core import access, facts
from everhold.core.access import Admission
from everhold.core.entries import Call
from everhold.core.recall import Asked
from everhold.flow import memo, recall as recalling
from everhold.memories.builtin import Builtin, Index, lookup
from everhold.memory import Memory
from everhold.ports.memory import Found, Query
from everhold.ports.model import Answer, Request
from everhold.ports.platform import Incoming
from everhold.testing.fakes import FakeProvider, ScriptedModel
from everhold.testing.house import House
from everhold.tools.search import Search

from .noting import Finding, furnish

WORD = "hush7391"
"""Always said beside `zanzibar`, which is what people ask for."""


class Blabbing(FakeProvider):
    """Hands out everything it ever stored to everybody who asks: what may be shown is not left to it."""

    async def find(self, query: Query) -> Sequence[Found]:
        return [
            Found(text=utterance.text, session=item.session, seq=utterance.seq, person=utterance.stamp.person)
            for items in self.kept.values()
            for item in items
            if hasattr(item, "heard")
            for utterance in item.heard
        ]


class Each:
    """Every agent searches through its own built-in memory."""

    def __init__(self, attached: dict[str, Builtin]) -> None:
        self.attached = attached

    async def search(self, text: str, *, agent: str, **more: Any) -> Sequence[Found]:
        return await self.attached[agent].search(text, agent=agent, **more)


class Town:
    """Ada and Bob, two agents, one group, and every way to ask."""

    def __init__(self, house: House, *, group: str = "per-person") -> None:
        self.house = house
        self.index = Index(house.path / "index.db", inline=True, embeddings="none")
        house.furniture.memories = {"blab": Blabbing()}
        furnish(house, notices=False, limits={"user": 5_000, "memory": 5_000})
        house.furniture.settings.update(recalls=("builtin", "blab"), recall_seconds=1.0)
        self.linked: dict[str, str] = {}
        house.admit = lambda incoming: Admission(
            agent=incoming.agent or "main", person=self.person(incoming), group=group
        )
        real = house.furniture.memory
        attached = {agent: Builtin(index=self.index, store=house.store, agent=agent) for agent in ("main", "other")}
        house.furniture.memory = lambda name, agent: (  # type: ignore[method-assign, assignment]
            attach(name, agent, attached[agent]) if name == "builtin" else real(name, agent)
        )
        house.furniture.tools["session_search"] = Search(Each(attached), house.store)
        house.furniture.model = ScriptedModel(self._model)

    def person(self, incoming: Incoming) -> str:
        return self.linked.get(incoming.sender, incoming.sender)

    def _model(self, request: Request) -> Answer:
        """Notes what it is told to keep, searches for what it is asked, and repeats all it has seen."""
        tools = [message.text for message in request.messages if message.role == "tool"]
        last = next(message.text for message in reversed(request.messages) if message.role == "user")
        if request.messages[-1].role != "tool" and last.startswith("keep "):
            fact = {"action": "add", "content": last.removeprefix("keep ")}
            return Answer(calls=(Call(id="1", tool="memory", arguments=fact),))
        if request.messages[-1].role != "tool" and last.startswith("what about"):
            return Answer(calls=(Call(id="1", tool="session_search", arguments={"query": last}),))
        return Answer(text="; ".join(tools) or "fine")

    def told(self, **where: Any) -> str:
        """All that comes back, and all that is shown to the model, when somebody asks for the word by its beginning."""
        house = self.house
        asked, back = len(house.furniture.model.asked), len(house.heard_back())
        for text in (
            "what about the zanzibar thing",
            "/memory",
            "/memory why",
            "/memory search zanzibar",
            "/memory forget zanzibar",
        ):
            house.say(text, **where)
        seen = [message.text for request in house.furniture.model.asked[asked:] for message in request.messages]
        return "\n".join([*seen, *house.heard_back()[back:]])

    def searched(self, person: str, agent: str = "main") -> str:
        memory = Memory(self.house.control, agents=lambda: ("main", "other"))
        found = self.house.run(memory.search("zanzibar", agent=agent, person=person))
        kept = self.house.run(memory.facts(agent, person))
        return f"{found} {kept}"

    def exported(self, person: str) -> str:
        memory = Memory(self.house.control, agents=lambda: ("main", "other"))

        async def collect() -> str:
            return str([record async for record in memory.export(person)])

        return self.house.run(collect())


def attach(name: str, agent: str, provider: Builtin) -> Any:
    from everhold.flow.memory import Attached

    return Attached(provider, instance=name, agent=agent)


GROUP: dict[str, Any] = {"chat": "room", "kind": "group"}


def plant(town: Town, **where: Any) -> None:
    town.house.say(f"the word for zanzibar is {WORD}", **where)
    town.house.say(f"keep zanzibar {WORD} in mind", **where)
    town.house.say(f"/memory note zanzibar {WORD} noted", **where)


def test_the_word_is_there_for_whom_it_was_said(house: House) -> None:
    """Otherwise the others would prove nothing."""
    town = Town(house)
    plant(town)
    there = town.told(chat="elsewhere")
    assert there.count(WORD) >= 3
    assert WORD in town.searched("ada")
    assert WORD in town.exported("ada")


def test_two_people_do_not_meet(house: House) -> None:
    town = Town(house)
    plant(town)
    assert WORD not in town.told(who="bob", chat="bobs")
    assert WORD not in town.searched("bob")
    assert WORD not in town.exported("bob")


@pytest.mark.parametrize("group", ["per-person", "shared"])
def test_what_was_said_in_private_does_not_come_up_in_a_group(house: House, group: str) -> None:
    town = Town(house, group=group)
    plant(town)
    assert WORD not in town.told(**GROUP)


def test_in_a_group_where_everybody_has_their_own_session_nobody_hears_the_others(house: House) -> None:
    town = Town(house)
    plant(town, **GROUP)
    assert WORD not in town.told(who="bob", **GROUP)
    assert WORD in town.told(who="ada", **GROUP)


def test_what_a_group_shares_stays_in_the_group(house: House) -> None:
    town = Town(house, group="shared")
    plant(town, **GROUP)
    assert WORD in town.told(who="bob", **GROUP)
    assert WORD not in town.told(who="bob", chat="bobs")
    assert WORD not in town.told(who="bob", chat="another room", kind="group")


def test_one_person_on_two_platforms_is_one_only_if_somebody_says_so(house: House) -> None:
    town = Town(house)
    plant(town, who="telegram:1", chat="t")
    assert WORD not in town.told(who="discord:1", chat="d")
    town.linked = {"telegram:1": "ada", "discord:1": "ada"}
    plant(town, who="telegram:1", chat="t")
    assert WORD in town.told(who="discord:1", chat="d")


def test_two_agents_share_nothing(house: House) -> None:
    town = Town(house)
    plant(town)
    assert WORD not in town.told(chat="others", agent="other")
    assert WORD not in town.searched("ada", agent="other")


# -- each rule, broken ---------------------------------------------------------------------------------------------


def everybody(*_: Any, **__: Any) -> bool:
    return True


@contextlib.contextmanager
def swapped(thing: Any, name: str, new: Any) -> Iterator[None]:
    old = getattr(thing, name)
    setattr(thing, name, new)
    try:
        yield
    finally:
        setattr(thing, name, old)


def all_scopes(db: Any, *, agent: str | None, audience: Any) -> Any:
    return SCOPES(db, agent=agent, audience=None)


def any_agent(db: Any, *, agent: str | None, audience: Any) -> Any:
    return SCOPES(db, agent=None, audience=audience)


async def whichever_view(
    gates: Any, runtimes: Any, runtime: Any, session: Any, takes: Any, text: str, stamp: Any, visible: Any
) -> Any:
    asked = Asked(session=session.id, generation=session.generation, takes=takes)
    return asked, await recalling._ask_all(gates, runtimes, runtime, session, text, stamp, visible)


SCOPES = lookup.scopes
REASON = memo.reason
PLANTED: dict[str, tuple[Any, str, Any, Callable[[House], None]]] = {
    "facts for everybody": (facts, "visible", everybody, test_two_people_do_not_meet),
    "an index that knows no audience": (lookup, "scopes", all_scopes, test_two_people_do_not_meet),
    "an index that knows no agents": (lookup, "scopes", any_agent, test_two_agents_share_nothing),
    "a provider that is believed": (
        recalling,
        "objection",
        lambda *_, **__: "",
        test_two_people_do_not_meet,
    ),
    "a group is a private chat": (
        access,
        "audience",
        lambda _address, person: (f"person:{person}",),
        lambda house: test_what_was_said_in_private_does_not_come_up_in_a_group(house, "per-person"),
    ),
    "an answer for a view that is gone": (
        recalling,
        "_steady",
        whichever_view,
        lambda house: test_an_answer_for_a_view_that_is_gone_is_dropped_and_asked_for_again(house),
    ),
    "reasons for everybody": (
        memo,
        "reason",
        lambda store, session, **_: REASON(store, session),
        lambda house: test_reasons_are_for_those_they_were_given_to(house),
    ),
}


def test_reasons_are_for_those_they_were_given_to(house: House) -> None:
    """A session of Ada's that a group was led to tells the group nothing of what was recalled for her."""
    Town(house, group="shared")
    finding = Finding()
    finding.answers = [Found(text=f"zanzibar {WORD}", person="ada")]
    house.furniture.memories = {"blab": finding}
    mine = house.say("what about the zanzibar thing", chat="second").session
    house.say("hello", **GROUP)
    house.say(f"/resume {mine}", **GROUP)
    before = len(house.heard_back())
    house.say("/memory why", **GROUP)
    (said,) = house.heard_back()[before:]
    assert WORD not in said


@pytest.mark.parametrize("bug", sorted(PLANTED))
def test_each_planted_bug_is_found(house: House, bug: str) -> None:
    thing, name, new, test = PLANTED[bug]
    with swapped(thing, name, new), imported(name, new, thing), pytest.raises(AssertionError):
        test(house)


@contextlib.contextmanager
def imported(name: str, new: Any, thing: Any) -> Iterator[None]:
    """Whoever imported a name keeps what it was: exchange it there, too."""
    from everhold.flow import accept

    with contextlib.ExitStack() as stack:
        for holder in (accept,) if thing is access else ():
            stack.enter_context(swapped(holder, name, new))
        yield


# -- late answers --------------------------------------------------------------------------------------------------


class Late(FakeProvider):
    """Answers when it is let go, with whom it was asked for."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def find(self, query: Query) -> Sequence[Found]:
        import asyncio

        await asyncio.sleep(self.seconds)
        return [Found(text=f"ANSWER for {query.session} about {query.text}", person=query.person)]


MOVES = ("/new", "/branch", "/resume", "/undo", "/compress here 0", "erase")


@pytest.mark.parametrize("moves", list(itertools.permutations(MOVES, 2)), ids=" then ".join)
@pytest.mark.parametrize("seconds", [0.3, 5.0])
def test_an_answer_that_comes_late_is_shown_where_it_belongs_or_nowhere(
    house: House, moves: tuple[str, str], seconds: float
) -> None:
    house.furniture.memories = {"late": Late(seconds)}
    house.furniture.settings.update(recalls=("late",), recall_seconds=1.0)
    other = house.say("in another chat", chat="other", rest=False).session
    first = house.say("first", rest=False)
    house.tick(10)
    house.say("second", rest=False)
    house.tick(0.1)
    for move in moves:
        if move == "erase":
            house.run(house.control.erase(first.session, [first.seq]))
        else:
            house.say(f"/resume {other}" if move == "/resume" else move, rest=False)
        house.tick(0.1)
    house.say("third", rest=False)
    house.tick(30)
    house.rest()
    for session in house.run(house.store.list_sessions()):
        for entry in house.log(session.id):
            if entry.kind != "thought" or entry.body is None:
                continue
            context = house.run(house.control.context(session.id, at=entry.seq))
            blocks = [message.text for message in context.request.messages if message.text.startswith("<recalled")]
            for block in blocks:
                assert f"ANSWER for {session.id} about" in block
                heard = context.request.messages[[m.text for m in context.request.messages].index(block) + 1].text
                assert f"about {heard}" in block
            found = house.run(memo.reason(house.store, session, at=entry.seq))
            if found is not None and found[0].seq == entry.seq:
                asked = found[1].asked
                assert asked.session == session.id
    house.sound()


def test_an_answer_for_a_view_that_is_gone_is_dropped_and_asked_for_again(house: House) -> None:
    house.furniture.memories = {"late": Late(0.5)}
    house.furniture.settings.update(recalls=("late",), recall_seconds=1.0)
    house.say("first", rest=False)
    house.tick(5)
    session = house.say("second", rest=False).session
    house.tick(0.2)
    house.say("/new", rest=False)
    house.tick(10)
    assert [line["session"] for line in house.diary.of("recall.dropped")] == [session]
    stored = house.run(house.store.get_session(session))
    found = house.run(memo.reason(house.store, stored))
    assert found is not None
    assert found[1].asked.generation == stored.generation
