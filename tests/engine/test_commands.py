"""The reply to a command is true: the command did it, or the reply gives the reason and a remedy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from everhold.core.entries import Changed, Heard, SettingChosen
from everhold.engine import model_waits
from everhold.errors import Overloaded
from everhold.ports.model import ModelRequest, ModelResponse
from everhold.testing.fakes import FakeModel
from everhold.testing.gateway import InProcessGateway

from .conftest import HeldModel


def say(gateway: InProcessGateway, text: str) -> str:
    """Send a message and return the last text that is shown."""
    gateway.send_message(text)
    return gateway.list_shown_texts()[-1]


def named(text: str, *, name: str) -> FakeModel:
    return FakeModel(lambda _: ModelResponse(text=text, model=name), name=name)


# -- /model ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def models(gateway: InProcessGateway) -> InProcessGateway:
    gateway.runtimes.model = named("I am the first", name="first")
    gateway.runtimes.other_models = {"first": gateway.runtimes.model, "second": named("I am the second", name="second")}
    return gateway


def test_a_chosen_model_answers_until_it_is_reset(models: InProcessGateway) -> None:
    assert say(models, "who?") == "I am the first"
    assert say(models, "/model second") == "Model for this session: second."
    assert say(models, "who?") == "I am the second"
    models.crash()
    models.start()
    assert say(models, "who?") == "I am the second", "the choice is in the log"
    models.send_message("who?", chat="other")
    assert models.list_shown_texts()[-1] == "I am the first", "another session has its own"
    assert say(models, "/model default") == "Model for this session: first, as configured."
    assert say(models, "who?") == "I am the first"
    models.assert_sound()


def test_an_unknown_model_is_refused_and_nothing_changes(models: InProcessGateway) -> None:
    session = models.send_message("/model second").session
    assert say(models, "/model nonsense") == "There is no model 'nonsense'."
    assert say(models, "who?") == "I am the second"
    assert [body.change for body in models.read_bodies(session, Changed)] == [
        SettingChosen(setting="model", value="second")
    ]


def test_the_model_command_without_an_argument_shows_the_model(models: InProcessGateway) -> None:
    there = "Available: first, second. /model NAME chooses one, /model default resets it."
    assert say(models, "/model") == f"Model for this session: first, as configured. {there}"
    say(models, "/model second")
    assert say(models, "/model") == f"Model for this session: second, chosen for this session. {there}"
    assert say(models, "who?") == "I am the second"
    del models.runtimes.other_models["second"]
    assert say(models, "/model").startswith(
        "Model for this session: first, as configured, since second cannot be used."
    )


def busy(gateway: InProcessGateway, *, seconds: float) -> str:
    """The first model asks for time, and a message waits for it. Its session."""
    gateway.runtimes.model.faults.fail_next(Overloaded("too much", retry_after=seconds), times=9)
    session = gateway.send_message("hello", rest=False).session
    gateway.pass_time(1)
    assert "Your message is kept" in gateway.list_shown_texts()[-1]
    return session


def test_the_retry_delay_of_one_model_does_not_delay_another(models: InProcessGateway) -> None:
    session = busy(models, seconds=3_600.0)
    models.send_message("anybody?", rest=False)
    models.pass_time(60)
    assert len(models.runtimes.model.requests) == 1, "a wait that was asked for is not shortened"
    models.send_message("/model second", rest=False)
    models.pass_time(1)
    assert models.list_shown_texts()[-1] == "I am the second"
    assert models.run(models.store.get_session(session)).pending == 0
    models.assert_sound()


def test_the_model_choice_of_another_chat_ends_no_retry_delay(models: InProcessGateway) -> None:
    busy(models, seconds=3_600.0)
    models.send_message("/model second", chat="other", rest=False)
    models.send_message("/model first", rest=False)
    models.pass_time(60)
    assert len(models.runtimes.model.requests) == 1


def test_a_model_replaced_during_its_call_is_not_waited_for(models: InProcessGateway) -> None:
    class Slow(FakeModel):
        async def answer(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
            await asyncio.sleep(10)
            raise Overloaded("too much", retry_after=3_600.0)

    models.runtimes.model = models.runtimes.other_models["first"] = Slow(name="first")
    models.send_message("hello", rest=False)
    models.pass_time(5)
    models.send_message("/model second", rest=False)
    models.pass_time(10)
    assert models.list_shown_texts()[-1] == "I am the second"


def test_a_new_configuration_ends_a_retry_delay_that_no_longer_applies(models: InProcessGateway) -> None:
    session = busy(models, seconds=3_600.0)
    process = models.process
    assert process is not None

    def look() -> None:
        models.run(model_waits.recheck_all_waits(process.gates, models.runtimes, process.wakeups))
        models.pass_time(1)

    look()
    assert len(models.runtimes.model.requests) == 1, "the same models: the same wait"
    models.runtimes.model = models.runtimes.other_models["second"]
    look()
    assert models.list_shown_texts()[-1] == "I am the second"
    assert models.run(models.store.get_session(session)).pending == 0


# -- /queue, /usage ----------------------------------------------------------------------------------------------------


def test_a_queued_message_waits_although_the_policy_is_interrupt(gateway: InProcessGateway) -> None:
    gateway.runtimes.settings["busy_policy"] = "interrupt"
    gateway.runtimes.model = held = HeldModel()
    session = gateway.send_message("first", rest=False).session
    gateway.pass_time()
    gateway.send_message("/queue second", rest=False)
    gateway.pass_time(5)
    assert len(held.requests) == 1, "the running turn continues"
    held.free = True
    gateway.run_until_idle(5)
    assert [request.messages[-1].text for request in held.requests] == ["first", "second"]
    assert gateway.list_shown_texts() == ["at last", "at last"]
    assert [body.command for body in gateway.read_bodies(session, Heard)] == [None, None], (
        "the text is a message, not a command"
    )
    gateway.assert_sound()


def test_usage_shows_the_cost_of_the_turns(gateway: InProcessGateway) -> None:
    assert say(gateway, "/usage").splitlines()[0] == "0 tokens in, 0 out, 0.0000 USD."
    for _ in range(3):
        gateway.send_message("hello")
    here, everywhere = say(gateway, "/usage").splitlines()
    assert here == "30 tokens in, 15 out, 0.0000 USD."
    assert everywhere == "You today, with all agents: 45 tokens, 0.0000 USD."
    gateway.send_message("/undo")
    assert say(gateway, "/usage").startswith("30 tokens in"), "undone turns were charged"


# -- invalid arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["abc", "0", "-1", "two", "1 2", "²"])
def test_undo_with_an_invalid_argument_changes_nothing(gateway: InProcessGateway, argument: str) -> None:
    session = gateway.send_message("hello").session
    assert say(gateway, f"/undo {argument}") == "Use /undo, /undo N for the last N turns, or /undo compress."
    assert gateway.read_bodies(session, Changed) == []


@pytest.mark.parametrize("word", ["queue", "steer"])
def test_a_command_without_its_text_does_not_call_the_model(gateway: InProcessGateway, word: str) -> None:
    assert say(gateway, f"/{word}") == f"Add a text: /{word} TEXT"
    assert say(gateway, f"/{word} something") == "You said: something"
    assert len(gateway.runtimes.model.requests) == 1
