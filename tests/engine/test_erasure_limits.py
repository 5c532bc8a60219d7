"""An erasure takes what there was when it began: not what a person says who comes back, and again after a restore."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from everhold.admin.forgetting import BackupHolding
from everhold.core.entries import Said
from everhold.engine.memory.recall import HitJudge
from everhold.ports.memory import ErasureTarget, MemoryCapability, MemoryHit, MemoryQuery, ProviderDeletion
from everhold.ports.store import StateNamespace
from everhold.testing.fakes import FakeMemoryProvider, get_memory_text
from everhold.testing.gateway import InProcessGateway

from .conftest import HeldModel
from .test_erasure_states import DAY, LaterProvider, place_of, run_tool, shown, start
from .test_forgetting import CANARY, OTHER, ForgettingProvider, link, live, memory, put_store_back, save_store


class LostItemProvider(LaterProvider):
    """Finds its items with their keys, as most services do."""

    def __init__(self) -> None:
        super().__init__()
        self.conclusions = False


def restore_store(gateway: InProcessGateway, copy: dict[str, bytes]) -> Any:
    """Put a copy of the store back, and start as the gateway does. Return the new process's admin object."""
    put_store_back(gateway, copy)
    admin = memory(gateway)
    gateway.run(admin.resume_erasures())
    gateway.run(gateway.control.reapply_erasures())
    return admin


class TestReturning:
    def test_a_later_request_names_what_the_person_has_said_since(self, gateway: InProcessGateway) -> None:
        provider = start(gateway)
        admin = memory(gateway)
        gateway.loop.create_task(admin.keep_finishing_unfinished())
        gateway.run(admin.forget_person("ada"))
        gateway.pass_time(10)
        gateway.send_message(f"I am back with {OTHER}")
        gateway.pass_time(2 * DAY)
        first, *_, last = [it for it in provider.targets if it.keys]
        assert first.before == last.before, "a repeat is about the same moment"
        (since,) = [it for items in provider.kept.values() for it in items if OTHER in get_memory_text(it)]
        assert since.key in last.kept_keys
        assert not set(last.kept_keys) & set(last.keys)
        assert since.at > last.before
        assert OTHER in live(gateway)

    @pytest.mark.parametrize("jump", [-DAY, -400 * DAY])
    def test_a_clock_that_was_set_back_does_not_erase_what_was_said_since(
        self, gateway: InProcessGateway, jump: float
    ) -> None:
        provider = start(gateway)
        admin = memory(gateway)
        gateway.run(admin.forget_person("ada"))
        gateway.clock.skew += jump
        gateway.send_message(f"I am back with {OTHER}")
        link(gateway, "ada", label="Ada again")
        gateway.run(admin.finish_unfinished())
        gateway.run(admin.resume_erasures())
        assert OTHER in live(gateway)
        assert gateway.run(gateway.store.get_people()).find_label("ada") == "Ada again"
        provider.work()
        for _ in range(3):
            gateway.run(admin.finish_unfinished())
        assert gateway.run(admin.list_erasures())[0].state == "confirmed", "it does not wait for the old time"

    def test_words_from_a_clock_that_was_ahead_are_erased(self, gateway: InProcessGateway) -> None:
        gateway.clock.skew += 400 * DAY
        gateway.send_message(f"my secret is {CANARY}")
        gateway.clock.skew -= 400 * DAY
        gateway.run(memory(gateway).forget_person("ada"))
        assert CANARY not in live(gateway)

    def test_a_new_command_takes_what_was_said_since_the_first(self, gateway: InProcessGateway) -> None:
        provider = start(gateway)
        other = ForgettingProvider()
        gateway.runtimes.memories = {"a": provider, "b": other}
        gateway.run(memory(gateway).forget_person("ada"))
        gateway.send_message(f"I am back with {OTHER}")
        assert OTHER in other.words
        report = gateway.run(memory(gateway).forget_person("ada"))
        assert OTHER not in other.words, "a place that had confirmed is asked again"
        gateway.run(memory(gateway).resume_erasures())
        assert len(gateway.run(memory(gateway).list_erasures())) == 1, "the first has become part of the second"
        assert place_of(report, "b").state == "confirmed"
        assert OTHER not in live(gateway)

    def test_an_answer_that_is_finished_while_the_erasure_begins_is_erased(self, gateway: InProcessGateway) -> None:
        model = HeldModel()
        model.text = f"you said {CANARY}"
        gateway.runtimes.model = model
        gateway.send_message(f"my secret is {CANARY}", rest=False)
        gateway.pass_time(1)
        admin = memory(gateway)
        real = admin.records.save

        async def save(erasure: Any) -> None:
            """The turn ends right after the erasure was recorded."""
            await real(erasure)
            if not model.free:
                model.free = True
                (session,) = await gateway.store.list_sessions()
                while not any(isinstance(it.body, Said) for it in await gateway.store.list_entries(session.id)):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)  # virtual time

        admin.records.save = save  # type: ignore[method-assign]
        gateway.run(admin.forget_person("ada"))
        assert CANARY not in live(gateway)

    def test_two_commands_at_once_are_one_erasure_after_the_other(self, gateway: InProcessGateway) -> None:
        provider = start(gateway)
        admin = memory(gateway)
        real = provider.forget

        async def forget_slowly(target: ErasureTarget) -> Sequence[ProviderDeletion]:
            await asyncio.sleep(5)  # the first is still asking when the second comes
            return await real(target)

        provider.forget = forget_slowly  # type: ignore[method-assign]
        reports = gateway.run(_gather(admin.forget_person("ada"), _wait_and(admin.forget_person, "ada")))
        assert {it.state for it in reports} == {"asked"}
        assert len(gateway.run(admin.list_erasures())) == 1
        provider.work()
        gateway.run(admin.finish_unfinished())
        assert gateway.run(admin.list_erasures())[0].state == "confirmed"
        assert gateway.run(admin.collect_status())["forgetting"] == []
        gateway.assert_sound()


async def _wait_and(forget: Any, person: str) -> Any:
    await asyncio.sleep(0.5)
    return await forget(person)


async def _gather(*work: Any) -> list[Any]:
    return list(await asyncio.gather(*work))


class TestRestoring:
    @pytest.mark.parametrize("finished", [False, True])
    def test_what_a_service_still_has_stays_hidden_after_a_restore(
        self, gateway: InProcessGateway, finished: bool
    ) -> None:
        provider = start(gateway)
        copy = save_store(gateway)
        admin = memory(gateway)
        gateway.run(admin.forget_person("ada"))
        if finished:
            kept, works = provider.kept, provider.works
            provider.work()
            gateway.run(admin.finish_unfinished())
            assert gateway.run(admin.list_erasures())[0].state == "confirmed"
            provider.kept, provider.works = kept, works  # a service that brought back its own backup
        admin = restore_store(gateway, copy)
        assert CANARY not in live(gateway)
        assert CANARY in provider.words
        assert CANARY not in run_tool(gateway, "later_search", "person:ada").text
        assert run_tool(gateway, "later_reason", "person:ada").error
        gateway.send_message("what do you know?", chat="new")
        assert CANARY not in shown(gateway)
        (listed,) = gateway.run(admin.list_erasures())
        assert place_of(listed, "a").state == "planned"
        gateway.run(admin.finish_unfinished())
        provider.work()
        gateway.run(admin.finish_unfinished())
        assert gateway.run(admin.list_erasures())[0].state == "confirmed"

    def test_items_that_the_restored_log_never_had_stay_hidden(self, gateway: InProcessGateway) -> None:
        provider = LostItemProvider()
        gateway.runtimes.memories = {"a": provider}
        gateway.runtimes.settings.update(recall_memories=("a",), recall_seconds=1.0)
        gateway.send_message("hello", chat="first")
        copy = save_store(gateway)
        gateway.send_message(f"my secret is {CANARY}")
        gateway.run(memory(gateway).forget_person("ada"))
        restore_store(gateway, copy)
        assert CANARY in provider.words
        assert CANARY not in run_tool(gateway, "later_search", "person:ada").text

    def test_a_restored_erasure_whose_answer_is_lost_is_not_confirmed_by_silence(
        self, gateway: InProcessGateway
    ) -> None:
        """The service hides what it has not deleted yet, and the record that named it was in the lost store."""
        provider = start(gateway)
        copy = save_store(gateway)
        gateway.run(memory(gateway).forget_person("ada"))
        admin = restore_store(gateway, copy)

        async def name_nothing(target: ErasureTarget) -> Sequence[ProviderDeletion]:
            return []

        provider.forget = name_nothing  # type: ignore[method-assign]
        gateway.run(admin.finish_unfinished())
        assert place_of(gateway.run(admin.list_erasures())[0], "a").state == "asked"
        assert run_tool(gateway, "later_reason", "person:ada").error

    def test_a_restored_record_that_was_asked_since_is_not_confirmed_by_silence(
        self, gateway: InProcessGateway
    ) -> None:
        provider = start(gateway)
        admin, copies = memory(gateway), list[dict[str, bytes]]()
        real = admin.records.save

        async def save(erasure: Any) -> None:
            await real(erasure)
            if not copies:  # the forgetting is recorded, and nothing was asked yet
                copies.append(save_store(gateway))

        admin.records.save = save  # type: ignore[method-assign]
        gateway.run(admin.forget_person("ada"))
        assert provider.targets
        admin = restore_store(gateway, copies[0])
        gateway.run(admin.resume_erasures(restored=True))

        async def name_nothing(target: ErasureTarget) -> Sequence[ProviderDeletion]:
            return []

        provider.forget = name_nothing  # type: ignore[method-assign]
        gateway.run(admin.finish_unfinished())
        assert place_of(gateway.run(admin.list_erasures())[0], "a").state == "asked"

    def test_what_was_said_after_the_erasure_survives_a_restore(self, gateway: InProcessGateway) -> None:
        provider = start(gateway)
        gateway.run(memory(gateway).forget_person("ada"))
        gateway.pass_time(5)
        gateway.send_message(f"I am back with {OTHER}")
        copy = save_store(gateway)
        gateway.pass_time(5)
        gateway.send_message("more")
        admin = restore_store(gateway, copy)
        gateway.run(admin.finish_unfinished())
        assert OTHER in live(gateway)
        assert OTHER in provider.words

    def test_audiences_of_an_unfinished_erasure_are_known_again(self, gateway: InProcessGateway) -> None:
        provider = start(gateway)
        gateway.send_message(f"hello all, {CANARY} it is", chat="room", kind="group")
        gateway.send_message("I am bob", chat="room", kind="group", who="bob")
        copy = save_store(gateway)
        gateway.run(memory(gateway).forget_person("ada"))
        (before,) = gateway.run(gateway.store.list_state_records(StateNamespace.ERASURE))
        restore_store(gateway, copy)
        (after,) = gateway.run(gateway.store.list_state_records(StateNamespace.ERASURE))
        assert "chat:" in before.value
        room = next(it for it in before.value.split('"') if it.startswith("chat:"))
        assert room in after.value
        assert run_tool(gateway, "later_reason", room).error
        assert CANARY in provider.words


class TestDetachedMemories:
    def test_a_memory_that_was_taken_out_cannot_and_the_remedy_is_named(self, gateway: InProcessGateway) -> None:
        provider = ForgettingProvider()
        gateway.runtimes.memories = {"a": provider}
        gateway.send_message(f"my secret is {CANARY}")
        gateway.runtimes.memories = {}
        admin = memory(gateway)
        plan = gateway.run(admin.plan_forgetting("ada"))
        assert place_of(plan, "a").state == "cannot"
        report = gateway.run(admin.forget_person("ada"))
        place = place_of(report, "a")
        assert (report.state, place.state) == ("cannot", "cannot")
        (part,) = place.parts
        assert "1 item" in part.what
        assert "put its section back" in part.reason
        assert any("put its section back" in line for line in report.remains)
        assert CANARY in provider.words

    def test_a_memory_that_is_put_back_is_asked_and_shows_nothing_before(self, gateway: InProcessGateway) -> None:
        provider = start(gateway)
        gateway.runtimes.memories = {}
        gateway.runtimes.settings.update(recall_memories=())
        admin = memory(gateway)
        gateway.loop.create_task(admin.keep_finishing_unfinished())
        assert gateway.run(admin.forget_person("ada")).state == "cannot"
        gateway.pass_time(3 * DAY)
        gateway.runtimes.memories = {"a": provider}
        gateway.runtimes.settings.update(recall_memories=("a",))
        assert CANARY not in run_tool(gateway, "later_search", "person:ada").text
        assert run_tool(gateway, "later_reason", "person:ada").error
        gateway.pass_time(2 * 3_600)
        assert provider.targets
        provider.work()
        gateway.pass_time(2 * 3_600)
        (listed,) = gateway.run(admin.list_erasures())
        assert [it.state for it in listed.places if it.place == "a" and it.agent == "main"] == ["confirmed"]

    def test_a_memory_of_a_removed_agent_is_listed(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.memories = {"a": ForgettingProvider()}
        gateway.send_message(f"my secret is {CANARY}")
        admin = memory(gateway)
        admin.agents = lambda: ("other",)
        place = place_of(gateway.run(admin.forget_person("ada")), "a")
        assert (place.agent, place.state) == ("main", "cannot")

    def test_the_memory_that_the_gateway_wipes_itself_is_not_listed(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.memories = {"builtin": ForgettingProvider()}
        gateway.send_message("hello")
        gateway.runtimes.memories = {}
        report = gateway.run(memory(gateway).forget_person("ada"))
        assert [it.place for it in report.places] == ["log"]


class TestAccepting:
    def test_an_operator_ends_the_withholding_of_what_cannot_be_deleted(self, gateway: InProcessGateway) -> None:
        class Incapable(FakeMemoryProvider):
            capabilities = frozenset({MemoryCapability.TOOLS})

            async def find(self, query: MemoryQuery) -> list[MemoryHit]:
                return [MemoryHit(text=f"keyless {CANARY}")]

            def tools(self) -> list[Any]:
                return LaterProvider.tools(self)  # type: ignore[arg-type]

            words = CANARY

        gateway.runtimes.memories = {"a": Incapable()}
        gateway.send_message("hello")
        admin = memory(gateway)
        gateway.run(admin.forget_person("ada"))
        gateway.pass_time(3 * DAY)
        assert run_tool(gateway, "later_reason", "person:ada").error, "time does not end it"
        (listed,) = gateway.run(admin.list_erasures())
        accepted = gateway.run(admin.accept_remainders(listed.id))
        assert accepted.state == "cannot", "the report still says what remains"
        assert place_of(accepted, "a").accepted_at > 0
        assert not run_tool(gateway, "later_reason", "person:ada").error
        assert CANARY in run_tool(gateway, "later_search", "person:ada").text

    def test_what_may_still_be_deleted_cannot_be_accepted(self, gateway: InProcessGateway) -> None:
        start(gateway)
        admin = memory(gateway)
        gateway.run(admin.forget_person("ada"))
        (listed,) = gateway.run(admin.list_erasures())
        with pytest.raises(Exception, match="nothing"):
            gateway.run(admin.accept_remainders(listed.id))
        assert run_tool(gateway, "later_reason", "person:ada").error

    def test_a_later_erasure_of_the_same_person_withholds_again(self, gateway: InProcessGateway) -> None:
        gateway.runtimes.memories = {"a": FakeMemoryProvider()}
        gateway.send_message("hello")
        admin = memory(gateway)
        gateway.run(admin.forget_person("ada"))
        (first,) = gateway.run(admin.list_erasures())
        gateway.run(admin.accept_remainders(first.id))
        gateway.pass_time(5)
        gateway.send_message("hello again")
        gateway.run(admin.forget_person("ada"))
        newest = gateway.run(admin.list_erasures())[0]
        assert newest.id != first.id
        assert not place_of(newest, "a").accepted_at


def test_a_backup_that_is_made_while_an_erasure_waits_contains_it(gateway: InProcessGateway) -> None:
    """The log is erased some time after the erasure began. A backup from between has the text."""
    gateway.send_message(f"my secret is {CANARY}")
    asked: list[float] = []

    def find(before: float) -> Any:
        asked.append(before)
        return BackupHolding()

    admin = memory(gateway, backups=find)
    real = admin.records.save

    async def save(erasure: Any) -> None:
        await real(erasure)
        if not erasure.log_erased:
            await asyncio.sleep(30)

    admin.records.save = save  # type: ignore[method-assign]
    began = gateway.clock.now()
    gateway.run(admin.forget_person("ada"))
    assert asked[-1] >= began + 30


def test_a_note_that_was_taken_back_is_known_by_its_text(gateway: InProcessGateway) -> None:
    """Some services keep a note without its key."""
    notes = gateway.runtimes.notes
    assert notes is not None
    gateway.send_message(f"/memory note {CANARY} it is")
    assert not gateway.run(notes.list_retracted_texts("main"))
    gateway.send_message(f"/memory forget {CANARY}")
    assert f"{CANARY} it is" in gateway.run(notes.list_retracted_texts("main"))
    assert not gateway.run(notes.list_retracted_texts("other"))
    judge = HitJudge(gateway.store, notes, agent="main", audience=("person:ada",))
    (judged,) = gateway.run(judge.judge_hits("a", [MemoryHit(text=f"{CANARY} it is")]))
    assert judged.objection == "taken back"
    gateway.send_message(f"/memory note {CANARY} it is")
    assert f"{CANARY} it is" not in gateway.run(notes.list_retracted_texts("main"))
