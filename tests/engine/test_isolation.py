"""P5: words of one person, conversation or agent are not shown to another, however they are requested."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from everhold.admin.memory import MemoryAdmin
from everhold.core import access, facts
from everhold.core.access import AdmissionDecision
from everhold.core.entries import ToolCall
from everhold.core.recall import RecallTarget
from everhold.engine.commands import memory as commands_memory
from everhold.engine.memory import recall as recalling
from everhold.memories.builtin import BuiltinMemory, MemoryIndex, candidates
from everhold.ports.memory import MemoryHit, MemoryQuery
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.ports.platform import IncomingMessage
from everhold.testing.fakes import FakeMemoryProvider, FakeModel
from everhold.testing.gateway import InProcessGateway
from everhold.tools.search import SessionSearchTool
from tests.engine.group_scenario import bind_address

from .memory_tools import FindingProvider, add_memory_tools

WORD = "hush7391"
"""Always said beside `zanzibar`, which is what people ask for."""


class LeakingProvider(FakeMemoryProvider):
    """Hands out everything it ever stored to everybody who asks: what may be shown is not left to it."""

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        return [
            MemoryHit(text=utterance.text, session=item.session, seq=utterance.seq, person=utterance.stamp.person)
            for items in self.kept.values()
            for item in items
            if hasattr(item, "heard")
            for utterance in item.heard
        ]


class PerAgentSearch:
    """Every agent searches through its own built-in memory."""

    def __init__(self, attached: dict[str, BuiltinMemory]) -> None:
        self.attached = attached

    async def search(self, text: str, *, agent: str, **more: Any) -> Sequence[MemoryHit]:
        return await self.attached[agent].search(text, agent=agent, **more)


class LeakScenario:
    """Ada and Bob, two agents, one group, and every way to ask."""

    def __init__(self, gateway: InProcessGateway, *, group: str = "per-person") -> None:
        self.gateway = gateway
        self.index = MemoryIndex(gateway.path / "index.db", inline=True, embeddings="table")
        gateway.runtimes.memories = {"blab": LeakingProvider()}
        add_memory_tools(gateway, notices=False, limits={"user": 5_000, "memory": 5_000})
        gateway.runtimes.settings.update(recall_memories=("builtin", "blab"), recall_seconds=1.0)
        self.linked: dict[str, str] = {}
        gateway.admit = lambda incoming: AdmissionDecision(
            agent=incoming.agent or "main", identity=self.person(incoming), group=group
        )
        real = gateway.runtimes.find_memory
        attached = {
            agent: BuiltinMemory(index=self.index, store=gateway.store, agent=agent) for agent in ("main", "other")
        }
        gateway.runtimes.find_memory = lambda name, agent: (  # type: ignore[method-assign, assignment]
            attach(name, agent, attached[agent]) if name == "builtin" else real(name, agent)
        )
        gateway.runtimes.tools["session_search"] = SessionSearchTool(PerAgentSearch(attached), gateway.store)
        gateway.runtimes.model = FakeModel(self._model)

    def person(self, incoming: IncomingMessage) -> str:
        return self.linked.get(incoming.sender, incoming.sender)

    def _model(self, request: ModelRequest) -> ModelResponse:
        """Note what the message says to keep, search for what it asks, and repeat everything shown."""
        tools = [message.text for message in request.messages if message.role == "tool"]
        last = next(message.text for message in reversed(request.messages) if message.role == "user")
        if request.messages[-1].role != "tool" and last.startswith("keep "):
            fact = {"action": "add", "content": last.removeprefix("keep ")}
            return ModelResponse(calls=(ToolCall(id="1", tool="memory", arguments=fact),))
        if request.messages[-1].role != "tool" and last.startswith("what about"):
            return ModelResponse(calls=(ToolCall(id="1", tool="session_search", arguments={"query": last}),))
        return ModelResponse(text="; ".join(tools) or "fine")

    def told(self, **where: Any) -> str:
        """Return all replies, and everything shown to the model, when a message asks for the word by its beginning."""
        gateway = self.gateway
        asked, back = len(gateway.runtimes.model.requests), len(gateway.list_shown_texts())
        for text in (
            "what about the zanzibar thing",
            "/memory",
            "/memory why",
            "/memory search zanzibar",
            "/memory forget zanzibar",
        ):
            gateway.send_message(text, **where)
        seen = [message.text for request in gateway.runtimes.model.requests[asked:] for message in request.messages]
        return "\n".join([*seen, *gateway.list_shown_texts()[back:]])

    def searched(self, person: str, agent: str = "main") -> str:
        memory = MemoryAdmin(self.gateway.control, agents=lambda: ("main", "other"))
        found = self.gateway.run(memory.search_memories("zanzibar", agent=agent, person=person))
        kept = self.gateway.run(memory.list_facts(agent, person))
        return f"{found} {kept}"

    def exported(self, person: str) -> str:
        memory = MemoryAdmin(self.gateway.control, agents=lambda: ("main", "other"))

        async def collect() -> str:
            return str([record async for record in memory.export_person(person)])

        return self.gateway.run(collect())


def attach(name: str, agent: str, provider: BuiltinMemory) -> Any:
    from everhold.engine.memory_client import MemoryClient

    return MemoryClient(provider, instance=name, agent=agent)


GROUP: dict[str, Any] = {"chat": "room", "kind": "group"}


def plant(scenario: LeakScenario, **where: Any) -> None:
    scenario.gateway.send_message(f"the word for zanzibar is {WORD}", **where)
    scenario.gateway.send_message(f"keep zanzibar {WORD} for later", **where)
    scenario.gateway.send_message(f"/memory note zanzibar {WORD} noted", **where)


def test_the_secret_word_is_found_by_its_own_audience(gateway: InProcessGateway) -> None:
    """Otherwise the other tests would prove nothing."""
    scenario = LeakScenario(gateway)
    plant(scenario)
    there = scenario.told(chat="elsewhere")
    assert there.count(WORD) >= 3
    assert WORD in scenario.searched("ada")
    assert WORD in scenario.exported("ada")


def test_two_people_do_not_see_each_others_words(gateway: InProcessGateway) -> None:
    scenario = LeakScenario(gateway)
    plant(scenario)
    assert WORD not in scenario.told(who="bob", chat="bobs")
    assert WORD not in scenario.searched("bob")
    assert WORD not in scenario.exported("bob")


@pytest.mark.parametrize("group", ["per-person", "shared"])
def test_private_words_are_not_recalled_in_a_group(gateway: InProcessGateway, group: str) -> None:
    scenario = LeakScenario(gateway, group=group)
    plant(scenario)
    assert WORD not in scenario.told(**GROUP)


def test_personal_sessions_in_a_group_do_not_share_words(gateway: InProcessGateway) -> None:
    scenario = LeakScenario(gateway)
    plant(scenario, **GROUP)
    assert WORD not in scenario.told(who="bob", **GROUP)
    assert WORD in scenario.told(who="ada", **GROUP)


def test_words_of_a_shared_group_stay_in_the_group(gateway: InProcessGateway) -> None:
    scenario = LeakScenario(gateway, group="shared")
    plant(scenario, **GROUP)
    assert WORD in scenario.told(who="bob", **GROUP)
    assert WORD not in scenario.told(who="bob", chat="bobs")
    assert WORD not in scenario.told(who="bob", chat="another room", kind="group")


def test_two_identities_are_one_person_only_if_they_are_linked(gateway: InProcessGateway) -> None:
    scenario = LeakScenario(gateway)
    plant(scenario, who="telegram:1", chat="t")
    assert WORD not in scenario.told(who="discord:1", chat="d")
    scenario.linked = {"telegram:1": "ada", "discord:1": "ada"}
    plant(scenario, who="telegram:1", chat="t")
    assert WORD in scenario.told(who="discord:1", chat="d")


def test_two_agents_share_nothing(gateway: InProcessGateway) -> None:
    scenario = LeakScenario(gateway)
    plant(scenario)
    assert WORD not in scenario.told(chat="others", agent="other")
    assert WORD not in scenario.searched("ada", agent="other")


def test_the_index_finds_only_what_its_audience_and_agent_may_see(gateway: InProcessGateway) -> None:
    """The log judges every hit again, so a search that ignores the audience is seen only here."""
    scenario = LeakScenario(gateway)
    plant(scenario)

    def find(agent: str, person: str) -> str:
        found = scenario.index.search(gateway.store, "zanzibar", agent=agent, audience=(f"person:{person}",))
        return str(gateway.run(found))

    assert WORD in find("main", "ada")
    assert WORD not in find("main", "bob")
    assert WORD not in find("other", "ada")


# -- each rule, broken -------------------------------------------------------------------------------------------------


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


def all_scopes(db: Any, *, agent: str | None, present: Any) -> Any:
    return SCOPES(db, agent=agent, present=None)


def any_agent(db: Any, *, agent: str | None, present: Any) -> Any:
    return SCOPES(db, agent=None, present=present)


async def whichever_view(
    gates: Any, runtimes: Any, runtime: Any, session: Any, takes: Any, text: str, stamp: Any, visible: Any
) -> Any:
    asked = RecallTarget(session=session.id, generation=session.generation, takes=takes)
    return asked, await recalling._ask_memories(gates, runtimes, runtime, session, text, stamp, visible)


SCOPES = candidates.find_scopes
REASON = commands_memory.find_recall_record
PLANTED: dict[str, tuple[Any, str, Any, Callable[[InProcessGateway], None]]] = {
    "facts for everybody": (facts, "is_visible_to", everybody, test_two_people_do_not_see_each_others_words),
    "an index that knows no audience": (
        candidates,
        "find_scopes",
        all_scopes,
        lambda gateway: test_the_index_finds_only_what_its_audience_and_agent_may_see(gateway),
    ),
    "an index that knows no agents": (
        candidates,
        "find_scopes",
        any_agent,
        lambda gateway: test_the_index_finds_only_what_its_audience_and_agent_may_see(gateway),
    ),
    "a provider that is believed": (
        recalling,
        "find_objection",
        lambda *_, **__: "",
        test_two_people_do_not_see_each_others_words,
    ),
    "a group is a private chat": (
        access,
        "compute_audience",
        lambda _address, person: (f"person:{person}",),
        lambda gateway: test_private_words_are_not_recalled_in_a_group(gateway, "per-person"),
    ),
    "an answer for a view that is gone": (
        recalling,
        "_ask_until_stable",
        whichever_view,
        lambda gateway: test_a_recall_for_an_outdated_context_is_dropped_and_repeated(gateway),
    ),
    "reasons for everybody": (
        commands_memory,
        "find_recall_record",
        lambda store, session, **_: REASON(store, session),
        lambda gateway: test_recall_records_are_shown_only_to_their_audience(gateway),
    ),
}


def test_recall_records_are_shown_only_to_their_audience(gateway: InProcessGateway) -> None:
    """A group is bound to Ada's session. It cannot see what was recalled for her."""
    LeakScenario(gateway, group="shared")
    finding = FindingProvider()
    finding.answers = [MemoryHit(text=f"zanzibar {WORD}", person="ada")]
    gateway.runtimes.memories = {"blab": finding}
    mine = gateway.send_message("what about the zanzibar thing", chat="second").session
    bind_address(gateway, mine, led=gateway.send_message("hello", **GROUP).session)
    before = len(gateway.list_shown_texts())
    gateway.send_message("/memory why", **GROUP)
    (said,) = gateway.list_shown_texts()[before:]
    assert WORD not in said


@pytest.mark.parametrize("bug", sorted(PLANTED))
def test_each_planted_bug_is_found(gateway: InProcessGateway, bug: str) -> None:
    thing, name, new, test = PLANTED[bug]
    with swapped(thing, name, new), imported(name, new, thing), pytest.raises(AssertionError):
        test(gateway)


@contextlib.contextmanager
def imported(name: str, new: Any, thing: Any) -> Iterator[None]:
    """Replace a name also in the modules that have imported it."""
    from everhold.ingress import accept

    with contextlib.ExitStack() as stack:
        for holder in (accept,) if thing is access else ():
            stack.enter_context(swapped(holder, name, new))
        yield


# -- late answers ------------------------------------------------------------------------------------------------------


class LateProvider(FakeMemoryProvider):
    """Answers when it is let go, with whom it was asked for."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def find(self, query: MemoryQuery) -> Sequence[MemoryHit]:
        import asyncio

        await asyncio.sleep(self.seconds)
        return [MemoryHit(text=f"ANSWER for {query.session} about {query.text}", person=query.person)]


MOVES = ("/new", "/branch", "/resume", "/undo", "/compress here 0", "erase")


@pytest.mark.parametrize("moves", list(itertools.permutations(MOVES, 2)), ids=" then ".join)
@pytest.mark.parametrize("seconds", [0.3, 5.0])
def test_a_late_recall_is_shown_in_its_own_context_or_not_at_all(
    gateway: InProcessGateway, moves: tuple[str, str], seconds: float
) -> None:
    gateway.runtimes.memories = {"late": LateProvider(seconds)}
    gateway.runtimes.settings.update(recall_memories=("late",), recall_seconds=1.0)
    other = gateway.send_message("in another chat", chat="other", rest=False).session
    first = gateway.send_message("first", rest=False)
    gateway.pass_time(10)
    gateway.send_message("second", rest=False)
    gateway.pass_time(0.1)
    for move in moves:
        if move == "erase":
            gateway.run(gateway.control.erase_entries(first.session, [first.seq]))
        else:
            gateway.send_message(f"/resume {other}" if move == "/resume" else move, rest=False)
        gateway.pass_time(0.1)
    gateway.send_message("third", rest=False)
    gateway.pass_time(30)
    gateway.run_until_idle()
    for session in gateway.run(gateway.store.list_sessions()):
        for entry in gateway.read_log(session.id):
            if entry.kind != "thought" or entry.body is None:
                continue
            context = gateway.run(gateway.control.load_context(session.id, at=entry.seq))
            blocks = [message.text for message in context.request.messages if message.text.startswith("<recalled")]
            for block in blocks:
                assert f"ANSWER for {session.id} about" in block
                heard = context.request.messages[[m.text for m in context.request.messages].index(block) + 1].text
                assert f"about {heard}" in block
            found = gateway.run(commands_memory.find_recall_record(gateway.store, session, at=entry.seq))
            if found is not None and found[0].seq == entry.seq:
                asked = found[1].asked
                assert asked.session == session.id
    gateway.assert_sound()


def test_a_recall_for_an_outdated_context_is_dropped_and_repeated(gateway: InProcessGateway) -> None:
    gateway.runtimes.memories = {"late": LateProvider(0.5)}
    gateway.runtimes.settings.update(recall_memories=("late",), recall_seconds=1.0)
    gateway.send_message("first", rest=False)
    gateway.pass_time(5)
    session = gateway.send_message("second", rest=False).session
    gateway.pass_time(0.2)
    gateway.send_message("/new", rest=False)
    gateway.pass_time(10)
    assert [line["session"] for line in gateway.logger.find_events("recall.dropped")] == [session]
    stored = gateway.run(gateway.store.get_session(session))
    found = gateway.run(commands_memory.find_recall_record(gateway.store, stored))
    assert found is not None
    assert found[1].asked.generation == stored.generation
