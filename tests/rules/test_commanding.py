"""What a command says is so: it did that, or it says why not and what to say instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from everhold.core.entries import Changed, Heard, SettingChosen
from everhold.errors import Overloaded
from everhold.flow import waits
from everhold.ports.model import Answer, Request
from everhold.testing.fakes import ScriptedModel
from everhold.testing.house import House

from .conftest import HeldModel


def say(house: House, text: str) -> str:
    """What is seen last after somebody said this."""
    house.say(text)
    return house.heard_back()[-1]


def named(text: str, *, name: str) -> ScriptedModel:
    return ScriptedModel(lambda _: Answer(text=text, model=name), name=name)


# -- /model ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def models(house: House) -> House:
    house.furniture.model = named("I am the first", name="first")
    house.furniture.others = {"first": house.furniture.model, "second": named("I am the second", name="second")}
    return house


def test_a_model_that_was_chosen_answers_until_it_is_taken_back(models: House) -> None:
    assert say(models, "who?") == "I am the first"
    assert say(models, "/model second") == "Model for this session: second."
    assert say(models, "who?") == "I am the second"
    models.crash()
    models.start()
    assert say(models, "who?") == "I am the second", "it is in the log"
    models.say("who?", chat="other")
    assert models.heard_back()[-1] == "I am the first", "another session has its own"
    assert say(models, "/model default") == "Model for this session: first, as configured."
    assert say(models, "who?") == "I am the first"
    models.sound()


def test_a_model_that_is_not_there_is_refused_and_nothing_changes(models: House) -> None:
    session = models.say("/model second").session
    assert say(models, "/model nonsense") == "There is no model 'nonsense'."
    assert say(models, "who?") == "I am the second"
    assert [body.change for body in models.bodies(session, Changed)] == [SettingChosen(setting="model", value="second")]


def test_the_word_alone_shows_the_model_and_changes_nothing(models: House) -> None:
    there = "There are: first, second. /model NAME chooses, /model default goes back."
    assert say(models, "/model") == f"Model for this session: first, as configured. {there}"
    say(models, "/model second")
    assert say(models, "/model") == f"Model for this session: second, chosen here. {there}"
    assert say(models, "who?") == "I am the second"
    del models.furniture.others["second"]
    assert say(models, "/model").startswith(
        "Model for this session: first, as configured, since second cannot be used."
    )


def busy(house: House, *, seconds: float) -> str:
    """The first model asks for time, and a message waits for it. Its session."""
    house.furniture.model.faults.fail(Overloaded("too much", retry_after=seconds), times=9)
    session = house.say("hello", rest=False).session
    house.tick(1)
    assert "Your message is kept" in house.heard_back()[-1]
    return session


def test_what_one_model_asked_for_does_not_hold_up_another(models: House) -> None:
    session = busy(models, seconds=3_600.0)
    models.say("anybody?", rest=False)
    models.tick(60)
    assert len(models.furniture.model.asked) == 1, "a wait that was asked for is not shortened"
    models.say("/model second", rest=False)
    models.tick(1)
    assert models.heard_back()[-1] == "I am the second"
    assert models.run(models.store.get_session(session)).pending == 0
    models.sound()


def test_another_chat_s_choice_ends_no_wait(models: House) -> None:
    busy(models, seconds=3_600.0)
    models.say("/model second", chat="other", rest=False)
    models.say("/model first", rest=False)
    models.tick(60)
    assert len(models.furniture.model.asked) == 1


def test_a_model_that_is_exchanged_while_it_is_asked_is_not_waited_for(models: House) -> None:
    class Slow(ScriptedModel):
        async def answer(self, request: Request, *, on_text: Callable[[str], None] | None = None) -> Answer:
            await asyncio.sleep(10)
            raise Overloaded("too much", retry_after=3_600.0)

    models.furniture.model = models.furniture.others["first"] = Slow(name="first")
    models.say("hello", rest=False)
    models.tick(5)
    models.say("/model second", rest=False)
    models.tick(10)
    assert models.heard_back()[-1] == "I am the second"


def test_another_configuration_ends_a_wait_that_concerns_nobody_any_more(models: House) -> None:
    session = busy(models, seconds=3_600.0)
    process = models.process
    assert process is not None

    def look() -> None:
        models.run(waits.look_through(process.gates, models.furniture, process.bells))
        models.tick(1)

    look()
    assert len(models.furniture.model.asked) == 1, "the same models: the same wait"
    models.furniture.model = models.furniture.others["second"]
    look()
    assert models.heard_back()[-1] == "I am the second"
    assert models.run(models.store.get_session(session)).pending == 0


# -- /queue, /usage ----------------------------------------------------------------------------------------------------


def test_what_is_queued_waits_its_turn_where_others_would_interrupt(house: House) -> None:
    house.furniture.settings["busy"] = "interrupt"
    house.furniture.model = held = HeldModel()
    session = house.say("first", rest=False).session
    house.tick()
    house.say("/queue second", rest=False)
    house.tick(5)
    assert len(held.asked) == 1, "the running turn goes on"
    held.free = True
    house.rest(5)
    assert [request.messages[-1].text for request in held.asked] == ["first", "second"]
    assert house.heard_back() == ["at last", "at last"]
    assert [body.command for body in house.bodies(session, Heard)] == [None, None], "it is said, not ordered"
    house.sound()


def test_usage_is_what_the_turns_have_cost(house: House) -> None:
    assert say(house, "/usage").splitlines()[0] == "0 tokens in, 0 out, 0.0000 USD."
    for _ in range(3):
        house.say("hello")
    here, everywhere = say(house, "/usage").splitlines()
    assert here == "30 tokens in, 15 out, 0.0000 USD."
    assert everywhere == "You, everywhere, today: 45 tokens, 0.0000 USD."
    house.say("/undo")
    assert say(house, "/usage").startswith("30 tokens in"), "what was taken back was paid for"


# -- what is no use as it was said -------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["abc", "0", "-1", "two", "1 2", "²"])
def test_undo_takes_back_nothing_that_nobody_asked_for(house: House, argument: str) -> None:
    session = house.say("hello").session
    assert say(house, f"/undo {argument}") == "Say /undo, /undo N for the last N turns, or /undo compress."
    assert house.bodies(session, Changed) == []


@pytest.mark.parametrize("word", ["queue", "steer"])
def test_nothing_is_not_put_to_a_model(house: House, word: str) -> None:
    assert say(house, f"/{word}") == f"Say what: /{word} TEXT"
    assert say(house, f"/{word} something") == "You said: something"
    assert len(house.furniture.model.asked) == 1
