"""Jobs, not agents: tasks and reviews beside the conversation leave notes and results, and no other trace."""

from __future__ import annotations

import json

import pytest

from everhold.core import review
from everhold.core.claims import absence, contradicts
from everhold.core.entries import Began, Call, Compressed, Heard, Noted, Notified, Thought
from everhold.errors import Overloaded
from everhold.ports.model import Answer, Request
from everhold.ports.store import Step
from everhold.ports.tool import Effect
from everhold.testing.fakes import FakeProvider, FakeTool, ScriptedModel, echo
from everhold.testing.house import House

from .test_hearing import texts
from .test_viewing import LONG, folding
from .test_working import die_at


def reviewing(house: House, *notes: dict[str, object], every: int = 3) -> list[Request]:
    """A house whose model, asked for a review, finds these notes."""
    asked: list[Request] = []

    def answer(request: Request) -> Answer:
        if request.system == review.ASK:
            asked.append(request)
            return Answer(text="\n".join(["Here you are:", *(json.dumps(note) for note in notes)]))
        return echo(request)

    house.furniture.model = ScriptedModel(answer)
    house.furniture.settings["review_every"] = every
    return asked


class TestBackground:
    def test_a_task_reports_back_into_its_session_and_the_next_turn_sees_it(self, house: House) -> None:
        session = house.say("hello").session
        house.furniture.model = ScriptedModel(lambda request: Answer(text="forty-two"))
        house.say("/background what is the answer?")
        assert any("forty-two" in text for text in house.heard_back())
        house.furniture.model = ScriptedModel()
        house.say("thanks")
        assert any("forty-two" in text for text in texts(house, session))
        assert len(house.run(house.store.list_sessions())) == 1
        house.sound()

    def test_it_uses_only_tools_that_change_nothing(self, house: House) -> None:
        pure, once = FakeTool("look", Effect.PURE), FakeTool("deploy", Effect.ONCE)
        house.furniture.tools = {"look": pure, "deploy": once}

        def answer(request: Request) -> Answer:
            if request.messages[-1].role == "tool":
                return Answer(text="done: " + " / ".join(m.text for m in request.messages if m.role == "tool"))
            return Answer(calls=(Call(id="1", tool="look"), Call(id="2", tool="deploy")))

        house.furniture.model = ScriptedModel(answer)
        house.say("/background tidy up")
        assert sum(pure.started.values()) == 1
        assert sum(once.started.values()) == 0
        assert [spec.name for spec in house.furniture.model.asked[0].tools] == ["look"]
        assert "There is no tool 'deploy'" in house.heard_back()[-1]

    @pytest.mark.parametrize("after", [False, True])
    def test_a_crash_around_its_end_reports_once(self, house: House, after: bool) -> None:
        house.furniture.model = ScriptedModel(lambda request: Answer(text="forty-two"))
        die_at(house, Step.JOB, after=after)
        session = house.say("/background what is the answer?", rest=False).session
        house.tick(5)
        house.start()
        house.rest(30)
        told = [body for body in house.bodies(session, Notified) if "forty-two" in body.text]
        heard = [body for body in house.bodies(session, Heard) if body.origin.platform == "job"]
        assert len(told) == len(heard) == 1
        house.sound()

    def test_it_waits_for_a_model_that_is_down(self, house: House) -> None:
        house.furniture.model = ScriptedModel(lambda request: Answer(text="forty-two"))
        house.furniture.model.faults.fail(Overloaded("down"), times=5)
        house.say("/background what is the answer?", rest=False)
        house.tick(300)
        assert sum("forty-two" in text for text in house.heard_back()) == 1


class TestReview:
    def test_what_it_learns_is_noted_in_its_session_citing_what_it_rests_on(self, house: House) -> None:
        provider = FakeProvider()
        house.furniture.memories = {"a": provider}
        reviewing(house, {"note": "Ada's cat is called Tom", "cites": [1]})
        session = house.say("my cat is called Tom").session
        house.say("and it is old")
        assert house.bodies(session, Noted) == []
        house.say("bye")
        note = house.bodies(session, Noted)[0]
        assert (note.text, note.cites, note.stamp.person) == ("Ada's cat is called Tom", (1,), "ada")
        assert "Ada's cat is called Tom" in [getattr(item, "text", "") for item in provider.kept[session]]
        assert list(provider.kept) == [session], "no session appears anywhere for the job"
        house.sound()

    def test_each_part_is_reviewed_once(self, house: House) -> None:
        asked = reviewing(house, every=2)
        for n in range(6):
            house.say(f"message {n}")
        seen = [line for request in asked for line in request.messages[0].text.splitlines() if "message" in line]
        heard = [line for line in seen if "You said" not in line]
        assert len(heard) == len(set(heard)) == 6

    def test_what_cites_nothing_it_was_shown_is_not_noted(self, house: House) -> None:
        reviewing(
            house,
            {"note": "made up", "cites": [999]},
            {"note": "no cites"},
            {"note": 7, "cites": [1]},
            {"cites": [1]},
            every=1,
        )
        session = house.say("hello").session
        assert house.bodies(session, Noted) == []

    def test_a_false_claim_of_absence_is_refused(self, house: House) -> None:
        reviewing(
            house,
            {"note": "There is no record of the deployment to Frankfurt", "cites": [1]},
            {"note": "Ada never mentioned her sister Clara", "cites": [1]},
            {"note": "Ada likes tea", "cites": [1]},
            every=2,
        )
        session = house.say("I like tea, and the deployment to Frankfurt went through").session
        house.say("my sister Clara called")
        assert [note.text for note in house.bodies(session, Noted)] == ["Ada likes tea"]
        refused = house.diary.of("note.refused")
        assert len(refused) == 2
        assert "Frankfurt" not in str(refused), "words belong into the log of the session, where they can be erased"

    def test_what_another_machine_said_stays_marked_as_its_own(self, house: House) -> None:
        reviewing(
            house, {"note": "Everybody owes the bot", "cites": [1]}, {"note": "Ada agreed", "cites": [2]}, every=1
        )
        session = house.say("you all owe me", bot=True, who="spam", addressed=False).session
        house.say("fine")
        noted = {note.text: note.origin for note in house.bodies(session, Noted)}
        assert noted == {"Everybody owes the bot": "bot:spam", "Ada agreed": ""}

    def test_what_rests_on_private_and_public_words_is_for_those_who_heard_both(self, house: House) -> None:
        private = house.say("my secret").session
        house.say("hello", chat="room", kind="group")
        house.say(f"/resume {private}", chat="room", kind="group")
        house.say("in public", chat="room", kind="group")
        heard = [entry.seq for entry in house.log(private) if entry.kind == "heard"]
        reviewing(house, {"note": "Ada has a secret", "cites": [heard[0], heard[-1]]}, every=1)
        house.say("again", chat="room", kind="group")
        assert [note.stamp.audience for note in house.bodies(private, Noted)][-1] == ()

    def test_what_a_review_said_goes_with_what_it_may_repeat_though_it_cites_nothing(self, house: House) -> None:
        reviewing(house, {"note": "her secret is quokka", "cites": []}, every=1)
        session = house.say("my secret is quokka").session
        assert "quokka" in house.bodies(session, Thought)[-1].text
        house.run(house.control.erase(session, [1]))
        assert "quokka" not in " ".join(body.text for body in house.bodies(session, Thought)[1:])
        house.sound()

    def test_before_a_fold_its_part_is_reviewed_and_noted(self, house: House) -> None:
        folding(house, keep=1)
        note: dict[str, object] = {"note": "Ada lives in Berlin", "cites": [1]}
        summariser = house.furniture.summariser
        reviewing(house, note, every=1_000)
        house.furniture.model.context_tokens = 1_200
        house.furniture.summariser = summariser
        session = ""
        for n in range(5):
            session = house.say(f"I live in Berlin {n} {LONG}").session
        kinds = [str(entry.kind) for entry in house.log(session)]
        assert house.bodies(session, Compressed)
        assert kinds.index("noted") < kinds.index("compressed")
        assert next(b.trigger for b in house.bodies(session, Began) if b.type == "job") == "flush"
        house.sound()

    def test_a_review_that_fails_never_holds_a_fold_up(self, house: House) -> None:
        folding(house, keep=1)
        house.furniture.settings["review_every"] = 1_000

        def answer(request: Request) -> Answer:
            if request.system == review.ASK:
                raise RuntimeError("no")
            return Answer(text="fine " + LONG)

        house.furniture.model = ScriptedModel(answer, context_tokens=1_200)
        session = ""
        for n in range(5):
            session = house.say(f"{n} {LONG}").session
        assert house.bodies(session, Compressed)


@pytest.mark.parametrize(
    "claim, said, refuted",
    [
        ("I have no memory of the commit to main", "I made the commit to main an hour ago", True),
        ("The user never mentioned a budget", "our budget is 4,000", True),
        ("Keine Erinnerung an die Reise nach Rom", "die Reise nach Rom war schön", True),
        ("Ada does not know Python", "Ada asked about the weather", False),
        ("Ada likes tea", "Ada likes tea", False),
    ],
)
def test_a_claim_of_absence_is_recognised_by_its_wording(claim: str, said: str, refuted: bool) -> None:
    assert contradicts(absence(claim), said) is refuted
