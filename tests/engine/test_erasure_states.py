"""A forgetting goes from planned to confirmed place by place, and says "deleted" only after reading back. Until then
nothing shows the erased text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from everhold.admin.forgetting import BackupHolding
from everhold.admin.memory import MemoryAdmin
from everhold.assembly.memory_providers import MemoryTool
from everhold.core.entries import Changed, EntryDraft, MemoryNameSet, Stamp
from everhold.core.people import PeopleAction
from everhold.engine.memory.recall import HitJudge
from everhold.engine.memory.tombstones import load_erasures
from everhold.errors import Refused, Transient
from everhold.ports.memory import (
    ErasureState,
    ErasureTarget,
    MemoryCapability,
    MemoryHit,
    MemoryQuery,
    ProviderDeletion,
)
from everhold.ports.model import ToolSpec
from everhold.ports.store import Change, StateNamespace, StateWrite, Step
from everhold.ports.tool import ToolContext, ToolEffect, ToolResult
from everhold.testing.fakes import FakeMemoryProvider, get_memory_text
from everhold.testing.gateway import InProcessGateway

from .test_forgetting import (
    CANARY,
    OTHER,
    ForgettingProvider,
    builtin,
    collected,
    everywhere,
    link,
    live,
    memory,
    put_store_back,
    save_store,
)

DAY = 24 * 3_600.0


class LaterProvider(ForgettingProvider):
    """Answers at once and deletes later, as Honcho does. Until then it finds everything, some of it without a key."""

    capabilities = frozenset({MemoryCapability.FORGET, MemoryCapability.EXPORT, MemoryCapability.TOOLS})

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[ErasureTarget] = []
        self.works = False
        self.conclusions = True
        """Whether it also finds what it has concluded, which has no key."""

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        self.targets.append(target)
        self.faults.begin_call()
        session = next(iter(self.kept), "")
        if session and session not in target.moved_sessions and not self.works:
            state = ErasureState.PLANNED
            return [ProviderDeletion(id=" ".join(target.identities), what="a session", state=state, session=session)]
        return [ProviderDeletion(id=" ".join(target.identities), what="a session")]

    def work(self) -> None:
        self.works = True
        people = self.targets[-1].identities
        self.kept = {
            name: [item for item in items if not self.is_of(item, people)] for name, items in self.kept.items()
        }

    async def find(self, query: MemoryQuery) -> list[MemoryHit]:
        items = [item for items in self.kept.values() for item in items]
        keyed = [MemoryHit(text=get_memory_text(it), key=it.key, session=it.session) for it in items]
        return keyed + [MemoryHit(text=f"concluded: {self.words}")] * (self.conclusions and bool(self.words))

    def tools(self) -> list[Any]:
        return [SearchTool(self), ReasonTool(self)]


class OnceProvider(FakeMemoryProvider):
    """Deletes later, and names a deletion only in its first answer."""

    capabilities = frozenset({MemoryCapability.FORGET})

    def __init__(self, *, dies: int, die: Callable[[], None]) -> None:
        """`die` is called at the request with the number `dies`, which is never answered."""
        super().__init__()
        self.asked = 0
        self.dies, self.die = dies, die

    async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
        self.asked += 1
        if self.asked == self.dies:
            self.die()
            await asyncio.get_running_loop().create_future()
        planned = ProviderDeletion(id="later", what="a session", state=ErasureState.PLANNED, session="s")
        return [ProviderDeletion(id="now", what="it"), planned] if self.asked == 1 else []

    async def confirm_deletions(self, deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
        return {it.id: ErasureState.ASKED for it in deletions}


class SearchTool:
    spec = ToolSpec(name="later_search", description="", parameters={})
    effect = ToolEffect.PURE
    deadline = 5.0
    shows_hits = True

    def __init__(self, provider: LaterProvider) -> None:
        self.provider = provider

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        query = MemoryQuery(text="x", agent="main", session="", name="", audience=context.stamp.audience, person="")
        return ToolResult(text="Nothing was found.", hits=await self.provider.find(query))

    async def probe(self, context: ToolContext) -> ToolResult | None:
        return None


class ReasonTool(SearchTool):
    spec = ToolSpec(name="later_reason", description="", parameters={})
    shows_hits = False

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        return ToolResult(text=f"I reason that {self.provider.words}")


class ToolHost:
    """What `MemoryTool` needs of the memory providers."""

    peers = None

    def __init__(self, gateway: InProcessGateway, name: str) -> None:
        self.gateway, self.name = gateway, name

    def find_client(self, instance: str, agent: str) -> Any:
        return self.gateway.runtimes.find_memory(instance, agent)

    def make_judge(self, agent: str, stamp: Any) -> HitJudge:
        return HitJudge(self.gateway.store, self.gateway.runtimes.notes, agent=agent, audience=stamp.audience)


def run_tool(gateway: InProcessGateway, name: str, *audience: str) -> ToolResult:
    client = gateway.runtimes.find_memory("a", "main")
    assert client is not None
    tool = MemoryTool(ToolHost(gateway, "a"), "a", client.tools[name], agent="main")  # type: ignore[arg-type]
    context = ToolContext(session="s", agent="main", op=1, key="k", stamp=Stamp(person="ada", audience=audience))
    return gateway.run(tool.run({}, context))


def start(gateway: InProcessGateway) -> LaterProvider:
    provider = LaterProvider()
    gateway.runtimes.memories = {"a": provider}
    gateway.runtimes.settings.update(recall_memories=("a",), recall_seconds=1.0)
    gateway.send_message(f"my secret is {CANARY}")
    return provider


def admin_of_main(gateway: InProcessGateway) -> MemoryAdmin:
    """There is no other agent, so the provider is asked for each step once."""
    return MemoryAdmin(gateway.control, agents=lambda: ("main",))


def set_memory_name(gateway: InProcessGateway, session: str, name: str) -> None:
    named = EntryDraft(body=Changed(change=MemoryNameSet(memory="a", name=name)), author="system")
    change = Change(step=Step.STATE, session=session, at=gateway.clock.now(), entries=(named,))
    gateway.run(gateway.store.commit(change))


def shown(gateway: InProcessGateway) -> str:
    return "".join(message.text for message in gateway.runtimes.model.requests[-1].messages)


def place_of(report: Any, name: str) -> Any:
    return next(it for it in report.places if it.place == name and it.agent in ("", "main"))


class TestStates:
    def test_nothing_shows_the_text_until_the_provider_has_confirmed(self, gateway: InProcessGateway) -> None:
        provider = start(gateway)
        assert CANARY in run_tool(gateway, "later_search", "person:ada").text
        admin = memory(gateway)
        gateway.loop.create_task(admin.keep_finishing_unfinished())
        report = gateway.run(admin.forget_person("ada"))
        assert (report.state, place_of(report, "a").state, place_of(report, "log").state) == (
            "asked",
            "asked",
            "confirmed",
        )
        assert CANARY in provider.words
        assert CANARY not in run_tool(gateway, "later_search", "person:ada").text
        refused = run_tool(gateway, "later_reason", "person:ada")
        assert refused.error
        assert CANARY not in refused.text
        gateway.send_message("what do you know?", chat="new")
        assert CANARY not in shown(gateway)
        assert CANARY not in str(gateway.run(collected(admin.export_person("ada"))))
        found = gateway.run(admin.search_memories(CANARY, agent="main", person="ada"))
        assert CANARY not in str(found["memories"])
        provider.work()
        gateway.pass_time(120)
        (listed,) = gateway.run(admin.list_erasures())
        assert (listed.state, place_of(listed, "a").state) == ("confirmed", "confirmed")
        assert not run_tool(gateway, "later_reason", "person:ada").error

    def test_other_people_keep_their_tools(self, gateway: InProcessGateway) -> None:
        start(gateway)
        gateway.send_message(f"I like {OTHER}", who="bob", chat="bobs")
        gateway.run(memory(gateway).forget_person("ada"))
        assert not run_tool(gateway, "later_reason", "person:bob").error
        assert OTHER in run_tool(gateway, "later_search", "person:bob").text

    def test_a_provider_that_never_deletes_is_unconfirmed_after_a_day_and_asked_daily(
        self, gateway: InProcessGateway
    ) -> None:
        provider = start(gateway)
        admin = memory(gateway)
        gateway.loop.create_task(admin.keep_finishing_unfinished())
        gateway.run(admin.forget_person("ada"))
        asked = len(provider.targets)
        gateway.pass_time(DAY / 2)
        assert gateway.run(admin.list_erasures())[0].state == "asked"
        gateway.pass_time(DAY / 2 + 7_200)
        (listed,) = gateway.run(admin.list_erasures())
        assert (listed.state, place_of(listed, "a").parts[0].reason) == ("unconfirmed", "it is still there")
        assert CANARY not in run_tool(gateway, "later_search", "person:ada").text
        gateway.pass_time(2 * DAY)
        assert len(provider.targets) >= asked + 2
        provider.work()
        gateway.pass_time(DAY)
        assert gateway.run(admin.list_erasures())[0].state == "confirmed"

    def test_a_provider_that_is_down_for_days_is_asked_when_it_is_back(self, gateway: InProcessGateway) -> None:
        provider = ForgettingProvider()
        gateway.runtimes.memories = {"a": provider}
        gateway.send_message(f"my secret is {CANARY}")
        admin = memory(gateway)
        gateway.loop.create_task(admin.keep_finishing_unfinished())
        provider.faults.fail_next(Transient("down"), times=10_000)
        assert gateway.run(admin.forget_person("ada")).state == "planned"
        gateway.pass_time(DAY / 2)
        assert gateway.run(admin.list_erasures())[0].state == "planned"
        gateway.pass_time(2 * DAY)
        (listed,) = gateway.run(admin.list_erasures())
        assert (listed.state, CANARY in provider.words) == ("unconfirmed", True)
        assert "down" in place_of(listed, "a").problem
        provider.faults = type(provider.faults)()
        gateway.pass_time(2 * 3_600)
        assert gateway.run(admin.list_erasures())[0].state == "confirmed"
        assert CANARY not in provider.words

    def test_one_clean_reading_is_not_enough(self, gateway: InProcessGateway) -> None:
        provider = start(gateway)
        provider.visible_after = 600.0
        provider.works = True
        admin = memory(gateway)
        provider.kept, kept = {}, provider.kept  # hidden for a moment
        assert gateway.run(admin.forget_person("ada")).state == "asked"
        provider.kept = kept
        gateway.pass_time(700)
        gateway.run(admin.finish_unfinished())
        assert gateway.run(admin.list_erasures())[0].state == "asked"
        provider.work()
        gateway.run(admin.finish_unfinished())
        gateway.pass_time(700)
        gateway.run(admin.finish_unfinished())
        assert gateway.run(admin.list_erasures())[0].state == "confirmed"

    def test_a_provider_that_cannot_be_read_back_is_not_confirmed(self, gateway: InProcessGateway) -> None:
        provider = start(gateway)
        provider.kept.clear()
        provider.faults.fail_next(Transient("blind"), times=0)
        admin = memory(gateway)

        async def blind(deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
            raise Transient("blind")

        provider.confirm_deletions = blind  # type: ignore[method-assign]
        report = gateway.run(admin.forget_person("ada"))
        assert report.state == "asked"
        assert any("blind" in line for line in report.remains)

    def test_a_second_order_asks_a_place_that_confirmed_the_first(self, gateway: InProcessGateway) -> None:
        """Simulator seed 340: what was said since was not deleted there, and counted as confirmed."""
        start(gateway)
        slow, quick = LaterProvider(), LaterProvider()
        gateway.runtimes.memories = {"a": slow, "b": quick}
        gateway.send_message("hello", who="ada")
        quick.works, quick.kept = True, {}
        admin = memory(gateway)
        first = gateway.run(admin.forget_person("ada"))
        assert (place_of(first, "a").state, place_of(first, "b").state) == ("asked", "confirmed")
        gateway.send_message("it is me again", who="ada")
        asked = len(quick.targets)
        second = gateway.run(admin.forget_person("ada"))
        assert len(quick.targets) > asked
        assert place_of(second, "b").state == "asked", "it still has what was said since"

    def test_a_kill_before_the_erasure_hides_it_from_everybody_who_could_read_it(
        self, gateway: InProcessGateway
    ) -> None:
        """Simulator seed 2220: the audiences were not recorded, so a group was shown what a memory still had."""
        start(gateway)
        gateway.send_message(f"we all know {CANARY}", chat="room", kind="group", who="ada")
        gateway.run(memory(gateway)._begin_erasure({"ada": 0.0}, by="operator", rebuild=False))
        gateway.crash()
        gateway.start()
        gateway.run(memory(gateway).resume_erasures())
        (erasure,) = gateway.run(load_erasures(gateway.store))
        assert len(erasure.audiences) == 2, "the direct chat and the group"
        for audience in erasure.audiences:
            assert CANARY not in run_tool(gateway, "later_search", *audience).text

    def test_the_states_survive_a_kill(self, gateway: InProcessGateway) -> None:
        provider = start(gateway)
        gateway.run(memory(gateway).forget_person("ada"))
        asked_at = place_of(gateway.run(memory(gateway).list_erasures())[0], "a").asked_at
        gateway.crash()
        gateway.start()
        admin = memory(gateway)
        gateway.run(admin.resume_erasures())
        assert CANARY not in run_tool(gateway, "later_search", "person:ada").text
        (listed,) = gateway.run(admin.list_erasures())
        assert (listed.state, place_of(listed, "a").asked_at) == ("asked", asked_at)
        provider.work()
        gateway.run(admin.finish_unfinished())
        assert gateway.run(admin.list_erasures())[0].state == "confirmed"
        assert gateway.run(admin.collect_status())["forgetting"] == []

    def test_the_chat_goes_on_under_a_new_name(self, gateway: InProcessGateway) -> None:
        provider = start(gateway)
        session = gateway.send_message("more").session
        before = gateway.run(gateway.store.get_session(session)).names["a"]
        gateway.run(memory(gateway).forget_person("ada"))
        gateway.send_message("and on")
        after = gateway.run(gateway.store.get_session(session)).names["a"]
        assert after != before
        assert [get_memory_text(it) for it in provider.kept[after]]
        assert provider.targets[-1].moved_sessions == {before: after}

    @pytest.mark.parametrize("titled", [False, True], ids=["set by an import", "made of a title"])
    def test_after_a_crash_a_session_moves_to_the_same_name(self, gateway: InProcessGateway, titled: bool) -> None:
        """What others said would be stored anew under one name, and the chat would go on under another."""
        provider = LaterProvider()
        gateway.runtimes.memories = {"a": provider}
        session = gateway.send_message("/title Bananas" if titled else "/status").session
        set_memory_name(gateway, session, "bananas")
        gateway.send_message(f"my secret is {CANARY}")
        assert list(provider.kept) == ["bananas"]
        provider.faults.succeed_next()
        provider.faults.fail_next(Transient("down"))
        gateway.run(admin_of_main(gateway).forget_person("ada"))
        chosen = provider.targets[-1].moved_sessions["bananas"]
        gateway.crash()
        gateway.start()
        admin = admin_of_main(gateway)
        gateway.run(admin.resume_erasures())
        gateway.run(admin.finish_unfinished())
        assert provider.targets[-1].moved_sessions == {"bananas": chosen}
        assert "bananas" not in chosen, "the title may be erased"
        gateway.send_message("and on")
        assert titled or gateway.run(gateway.store.get_session(session)).names["a"] == chosen
        provider.work()
        gateway.run(admin.finish_unfinished())
        assert gateway.run(admin.list_erasures())[0].state == "confirmed"
        assert "bananas" not in str(gateway.run(gateway.store.list_state_records(StateNamespace.ERASURE)))

    def test_an_item_that_is_replayed_goes_to_the_new_session(self, gateway: InProcessGateway) -> None:
        """An item from before the erasure would make the deleted session anew."""
        provider = LaterProvider()
        gateway.runtimes.memories = {"a": provider}
        gateway.send_message(f"my secret is {CANARY}", kind="thread", who="ada")
        (before,) = provider.kept
        provider.faults.fail_next(Refused("not now"))
        gateway.send_message(f"I like {OTHER}", kind="thread", who="bob")
        gateway.run(admin_of_main(gateway).forget_person("ada"))
        after = provider.targets[-1].moved_sessions[before]
        gateway.run(gateway.control.replay_dead_letters())
        gateway.run_until_idle()
        assert OTHER in str([get_memory_text(it) for it in provider.kept[after]])
        assert OTHER not in str([get_memory_text(it) for it in provider.kept[before]])

    def test_an_incapable_memory_cannot_and_its_hits_stay_hidden(self, gateway: InProcessGateway) -> None:
        class Incapable(FakeMemoryProvider):
            async def find(self, query: MemoryQuery) -> list[MemoryHit]:
                return [MemoryHit(text=get_memory_text(it)) for items in self.kept.values() for it in items]

        gateway.runtimes.memories = {"a": Incapable()}
        gateway.runtimes.settings.update(recall_memories=("a",), recall_seconds=1.0)
        gateway.send_message(f"my secret is {CANARY}")
        report = gateway.run(memory(gateway).forget_person("ada"))
        assert report.state == "cannot"
        gateway.send_message("what do you know?", chat="new")
        assert CANARY not in shown(gateway)

    def test_a_memory_that_learned_to_delete_is_no_longer_reported_as_incapable(
        self, gateway: InProcessGateway
    ) -> None:
        provider = start(gateway)  # keeps the forgetting open
        gateway.runtimes.memories = {"a": provider, "b": FakeMemoryProvider()}
        first = gateway.run(memory(gateway).forget_person("ada"))
        assert place_of(first, "b").state == "cannot"
        gateway.runtimes.memories = {"a": provider, "b": ForgettingProvider()}
        again = gateway.run(memory(gateway).forget_person("ada"))
        assert place_of(again, "b").state == "confirmed"

    @pytest.mark.parametrize("dies, named", [(1, ["interrupted"]), (2, ["now", "later"])])
    def test_a_kill_after_the_deletion_is_not_taken_for_a_confirmation(
        self, gateway: InProcessGateway, dies: int, named: list[str]
    ) -> None:
        """The provider names a deletion once. If the answer is lost with the process, nothing names it any more."""
        assert gateway.process is not None
        gateway.runtimes.memories = {"a": OnceProvider(dies=dies, die=gateway.process.die)}
        gateway.send_message("hello")
        gateway.loop.create_task(memory(gateway).forget_person("ada"))
        gateway.pass_time(1)
        gateway.start()
        admin = memory(gateway)
        gateway.run(admin.finish_unfinished())
        place = place_of(gateway.run(admin.list_erasures())[0], "a")
        assert [it.id for it in place.parts] == named
        assert place.state == "asked", "it still holds the data"

    def test_an_erasure_may_take_longer_than_one_write(self, gateway: InProcessGateway) -> None:
        class Thorough(ForgettingProvider):
            deadline = 5.0

            async def forget(self, target: ErasureTarget) -> Sequence[ProviderDeletion]:
                await asyncio.sleep(600)
                return await super().forget(target)

        gateway.runtimes.memories = {"a": Thorough()}
        gateway.send_message("hello")
        report = gateway.run(memory(gateway).forget_person("ada"))
        assert place_of(report, "a").state == "confirmed"


class TestPeople:
    def test_the_provider_is_asked_once_with_every_identity(self, gateway: InProcessGateway) -> None:
        provider = start(gateway)
        gateway.send_message("hello", who="telegram:7", chat="t")
        link(gateway, "ada", "telegram:7", label="Ada")
        gateway.run(memory(gateway).forget_person("Ada"))
        assert {it.identities for it in provider.targets} == {("ada", "telegram:7")}
        assert provider.targets[0].keys

    def test_label_and_links_go_and_whoever_speaks_again_is_new(self, gateway: InProcessGateway) -> None:
        gateway.send_message("hello")
        person = link(gateway, "ada", "telegram:7", label="Ada")
        gateway.run(memory(gateway).forget_person("Ada"))
        people = gateway.run(gateway.store.get_people())
        assert people.resolve_name("Ada") is None
        assert people.find_person("telegram:7") is None
        assert people.persons[person].forgotten_at
        events = gateway.run(gateway.store.list_people_events())
        assert events[-1].action is PeopleAction.FORGOTTEN
        gateway.pass_time(1)
        assert link(gateway, "ada", label="Ada") != person
        gateway.run(memory(gateway).resume_erasures())
        assert gateway.run(gateway.store.get_people()).find_label("ada") == "Ada"

    def test_formerly_linked_identities_are_listed_and_not_included(self, gateway: InProcessGateway) -> None:
        gateway.send_message("hello")
        gateway.send_message(f"{OTHER} stays", who="telegram:7", chat="t")
        link(gateway, "ada", "telegram:7", label="Ada")
        link(gateway, "bob", "telegram:7")
        plan = gateway.run(memory(gateway).plan_forgetting("Ada"))
        assert (plan.names, plan.former) == (("ada",), ("telegram:7",))
        gateway.run(memory(gateway).forget_person("Ada"))
        assert OTHER in live(gateway)

    def test_display_names_of_strangers_are_erased(self, gateway: InProcessGateway) -> None:
        records = [
            (StateNamespace.PAIRING_REQUEST, "telegram:main", "1001", {"at": 1.0, "digest": "", "name": CANARY}),
            (StateNamespace.PAIRING_GRANT, "telegram:main", "1001", {"at": 1.0, "name": CANARY}),
            (StateNamespace.IDENTITY_LINK, "", "matrix:x", {"at": 1.0, "digest": "d", "other": "telegram:1001"}),
            (StateNamespace.PAIRING_REQUEST, "telegram:main", "2", {"at": 1.0, "digest": "", "name": OTHER}),
        ]
        writes = [
            StateWrite(namespace=space, scope=scope, key=key, value=msgspec.json.encode(value).decode(), version=0)
            for space, scope, key, value in records
        ]
        owner = StateWrite(namespace=StateNamespace.DM_OWNER, scope="telegram:main", key="c", value="1001", version=0)
        change = Change(step=Step.STATE, session="", at=1.0, state_writes=(*writes, owner))
        gateway.run(gateway.store.commit(change))
        admin = memory(gateway)
        assert gateway.run(admin.plan_forgetting("telegram:1001")).records == 4
        assert gateway.run(admin.forget_person("telegram:1001")).records == 4
        assert everywhere(gateway.path, CANARY) == []
        left = [it for it in gateway.run(gateway.store.list_state_records()) if it.namespace != "erasure"]
        assert [OTHER in it.value for it in left] == [True]

    def test_a_name_is_known_until_the_forgetting_is_finished(self, gateway: InProcessGateway) -> None:
        provider = start(gateway)
        link(gateway, "ada", label="Ada")
        admin = memory(gateway)
        gateway.run(admin.forget_person("Ada"))
        provider.work()
        assert gateway.run(admin.forget_person("Ada")).state == "confirmed"
        assert len(gateway.run(admin.list_erasures())) == 1
        assert gateway.run(admin.plan_forgetting("Ada")).names == ("Ada",)


class TestBackups:
    def test_backups_cannot_until_they_expire(self, gateway: InProcessGateway) -> None:
        gateway.send_message(f"my secret is {CANARY}")
        held = BackupHolding(2, 1_800_000_000.0)
        report = gateway.run(memory(gateway, backups=lambda _: held).forget_person("ada"))
        assert (report.state, place_of(report, "backups").until) == ("cannot", 1_800_000_000.0)
        (listed,) = gateway.run(memory(gateway).list_erasures())
        assert listed.state == "confirmed"

    def test_a_restored_backup_is_erased_under_identities_that_were_linked_since(
        self, gateway: InProcessGateway
    ) -> None:
        index = builtin(gateway)
        gateway.send_message(f"{CANARY} here")
        gateway.send_message(f"{CANARY} there", who="telegram:7", chat="t")
        gateway.send_message(f"{OTHER} stays", who="bob", chat="bobs")
        copy = save_store(gateway)
        link(gateway, "ada", "telegram:7", label="Ada")
        gateway.run(memory(gateway).forget_person("Ada"))
        put_store_back(gateway, copy)
        assert live(gateway).count(CANARY) >= 2
        assert gateway.run(memory(gateway).resume_erasures(restored=True))
        gateway.run(gateway.control.reapply_erasures())
        assert CANARY not in live(gateway)
        assert OTHER in live(gateway)
        gateway.run(index.close())

    def test_a_person_keeps_the_links_of_a_restored_store_if_only_one_identity_was_forgotten(
        self, gateway: InProcessGateway
    ) -> None:
        """The identity was taken from the person before it was forgotten, and the backup is from before that."""
        gateway.send_message(f"{OTHER} stays")
        gateway.send_message(f"{CANARY} there", who="telegram:7", chat="t")
        link(gateway, "ada", "matrix:@a:x", "telegram:7", label="Ada")
        copy = save_store(gateway)
        link(gateway, "telegram:8", "telegram:7")
        gateway.run(memory(gateway).forget_person("telegram:8"))
        put_store_back(gateway, copy)
        assert gateway.run(memory(gateway).resume_erasures(restored=True))
        people = gateway.run(gateway.store.get_people())
        assert people.list_names("Ada") == ("ada", "matrix:@a:x")
        assert people.find_person("telegram:7") is None
        assert CANARY not in live(gateway)
        assert OTHER in live(gateway)


@pytest.mark.parametrize("planted", ["assumes-202", "tool-without-tombstones"])
def test_planted_bugs_are_found(gateway: InProcessGateway, planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two mistakes that these tests exist for."""
    provider = start(gateway)
    if planted == "assumes-202":

        async def assume(deletions: Sequence[ProviderDeletion]) -> Mapping[str, ErasureState]:
            return {it.id: ErasureState.CONFIRMED for it in deletions}

        provider.confirm_deletions = assume  # type: ignore[method-assign]
    else:

        async def show(self: HitJudge, memory: str, hits: Sequence[MemoryHit]) -> list[MemoryHit]:
            return list(hits)

        monkeypatch.setattr(HitJudge, "select_visible", show)
    report = gateway.run(memory(gateway).forget_person("ada"))
    leaks = CANARY in run_tool(gateway, "later_search", "person:ada").text
    lies = report.state == "confirmed" and CANARY in provider.words
    assert leaks or lies
